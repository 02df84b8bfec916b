"""Build of a page as a notebook: ``python -m scripts.site.notebook [PAGE.md FILE.ipynb]``."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from scripts.site.blocks import Block, parse_blocks, parse_commands
from scripts.site.pages import ROOT, TIME_LIMIT_SECONDS

DISPLAY_CODE = {"picture": "from IPython.display import Image\n\nImage({!r})", "page": "from IPython.display import IFrame\n\nIFrame({!r}, 900, 600)"}  # fmt: skip  # noqa: E501


def get_code(block: Block) -> str | None:
    """Return the code of a block's cell. None if the block remains text."""
    if block.language in DISPLAY_CODE:
        return DISPLAY_CODE[block.language].format(block.body)
    if not block.is_run:
        return None
    if block.language == "python":
        return block.body.strip()
    return "\n".join(["%%bash", "set -e", *(command for command, _ in parse_commands(block.body))])


def build_notebook(text: str) -> nbformat.NotebookNode:
    """Return a page as a notebook. Relative links, without targets there, become text."""
    cells, at = [], 0
    for block in [*parse_blocks(text), Block(len(text), len(text), "picture", "", "")]:
        code = get_code(block)
        if code is None:
            continue
        words = re.sub(r"!?\[([^\]]*)\]\((?!http)[^)]*\)", r"\1", text[at : block.start])
        cells += [new_markdown_cell(words.strip())] if words.strip() else []
        cells += [new_code_cell(code)] if block.body else []
        at = block.end
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # deterministic
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def run(page: Path, to: Path) -> None:
    """Run the page's notebook and write it with its outputs.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        If a cell fails.
    """
    book = build_notebook(page.read_text(encoding="utf-8"))
    python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "data", Path(folder) / "data")
        client = NotebookClient(book, timeout=TIME_LIMIT_SECONDS, resources={"metadata": {"path": folder}})
        client.execute(env={**os.environ, "PYTHONPATH": python_path, "PATH": path})
    nbformat.write(book, to)


if __name__ == "__main__":
    run(*map(Path, sys.argv[1:] or (ROOT / "docs" / "tutorial" / "first.md", "first.ipynb")))
