"""A page as a notebook that was run: ``python -m scripts.site.notebook [PAGE.md FILE.ipynb]``."""

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

from scripts.site.blocks import Block, blocks, commands
from scripts.site.pages import PATIENCE, ROOT

SHOWN = {"picture": "from IPython.display import Image\n\nImage({!r})", "page": "from IPython.display import IFrame\n\nIFrame({!r}, 900, 600)"}  # fmt: skip  # noqa: E501


def code_of(block: Block) -> str | None:
    """What a cell says for a block; None where it stays text."""
    if block.language in SHOWN:
        return SHOWN[block.language].format(block.body)
    if not block.is_run:
        return None
    if block.language == "python":
        return block.body.strip()
    return "\n".join(["%%bash", "set -e", *(command for command, _ in commands(block.body))])


def notebook(text: str) -> nbformat.NotebookNode:
    """The cells of a page; its links are words, for they lead to pages that are not beside a notebook."""
    cells, at = [], 0
    for block in [*blocks(text), Block(len(text), len(text), "picture", "", "")]:
        code = code_of(block)
        if code is None:
            continue
        words = re.sub(r"!?\[([^\]]*)\]\((?!http)[^)]*\)", r"\1", text[at : block.start])
        cells += [new_markdown_cell(words.strip())] if words.strip() else []
        cells += [new_code_cell(code)] if block.body else []
        at = block.end
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same at every build
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})


def run(page: Path, to: Path) -> None:
    """Write the page's notebook with what its cells printed and drew.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        When a cell fails.
    """
    made = notebook(page.read_text(encoding="utf-8"))
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "data", Path(folder) / "data")
        client = NotebookClient(made, timeout=PATIENCE, resources={"metadata": {"path": folder}})
        client.execute(env={**os.environ, "PYTHONPATH": found, "PATH": path})
    nbformat.write(made, to)


if __name__ == "__main__":
    run(*map(Path, sys.argv[1:] or (ROOT / "docs" / "tutorial" / "first.md", "first.ipynb")))
