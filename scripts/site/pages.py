"""Pages with what their code printed and drew put under it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.site.blocks import Block, blocks, commands

ROOT = Path(__file__).parents[2]
WIDEST = 84
"""Letters of a line of output that is a sentence."""
PATIENCE = 300
"""Seconds that the code of a page may take."""

LONGEST = 14
"""Lines of output that are shown at once; longer ones unfold."""


class FailedPages(Exception):
    """Pages whose code does not do what they say."""


def run_pages(pages: Iterable[Path], folder: Path) -> dict[Path, list[dict[str, Any]]]:
    """The outputs of each page's blocks, in as many processes as there are processors.

    What a page printed is kept in the folder, under a digest of the page, the package and the sample, so that only what
    changed is run again.

    Raises
    ------
    FailedPages
        With the message of every page that failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package = _package()
    wanted = [page for page in pages if any(one.is_run for one in blocks(page.read_text(encoding="utf-8")))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # tutorials, which come last, take longest: they begin first
        said = list(pool.map(lambda page: _run(page, folder, package), reversed(wanted)))
    failed = [message for message in said if message]
    if failed:
        raise FailedPages("\n\n".join(failed))
    return {page: json.loads((folder / f"{page.stem}.json").read_text(encoding="utf-8")) for page in wanted}


def _package() -> str:
    """A digest of all that pages run."""
    return _digest([*sorted((ROOT / "dphmm").rglob("*.py")), *sorted((ROOT / "data").rglob("*"))])


def _digest(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        if path.is_file():
            whole.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return whole.hexdigest()


def _run(page: Path, folder: Path, package: str) -> str:
    """Run a page unless its outputs are there; what went wrong, or an empty text."""
    key = _digest([page]) + package
    kept = folder / f"{page.stem}.key"
    if kept.is_file() and kept.read_text(encoding="utf-8") == key and (folder / f"{page.stem}.json").is_file():
        return ""
    kept.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.site.run_page", str(page), str(folder)]
    threads = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **threads}, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return f"{page.name}: its code runs for more than {PATIENCE} s; shorten it, or say '<!-- not run: why -->'"
    if done.returncode:
        return done.stderr
    kept.write_text(key, encoding="utf-8")
    return ""


def with_outputs(text: str, outputs: list[dict[str, Any]], made: str) -> str:
    """A page with each block's output under it; ``made`` is where pictures are, as the page's links have it."""
    parts, at = [], 0
    for block, output in zip(blocks(text), outputs, strict=True):
        told = output.get("told", ())
        if any(told):
            parts.append(text[at : block.start])
            for (command, _), printed in zip(commands(block.body), told, strict=True):
                parts.append(f"```console\n$ {command}\n```\n{_output(printed, block.remark == 'open')}\n")
        else:
            parts.append(
                text[at : block.start] if block.language in ("picture", "page", "check") else text[at : block.end]
            )
            parts.append(_shown(block, output, made))
        at = block.end
    return "".join([*parts, text[at:]])


def _output(text: str, unfolded: bool = False) -> str:
    """What was printed, under the code that printed it."""
    lines = [part for line in text.rstrip().splitlines() for part in _wrapped(line)]
    if not lines:
        return ""
    block = "\n\n````{code-block} text\n:class: output\n" + "\n".join(lines) + "\n````\n"
    if len(lines) <= LONGEST or unfolded:
        return block
    return f'\n\n<details class="output"><summary>{len(lines)} lines of output</summary>\n{block}\n</details>\n'


def _wrapped(line: str) -> list[str]:
    """A line of output, of which a long sentence takes several; a row of a table does not."""
    if len(line) <= WIDEST or "  " in line.strip():
        return [line]
    return textwrap.wrap(line, WIDEST, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _shown(block: Block, output: dict[str, Any], made: str) -> str:
    parts = [_output(output.get("text", ""))]
    parts += [f"\n\n![What the code above draws]({made}/{name})\n" for name in output.get("pictures", ())]
    if block.language in ("picture", "page") and "file" not in output:
        return ""
    if block.language == "picture":
        parts.append(f"![{block.remark}]({made}/{output['file']})\n\n*{block.remark}*")
    elif block.language == "page":
        link = f"{made}/{output['file']}"
        parts.append(
            f'<iframe class="made" src="{link}" title="{block.remark}" loading="lazy"></iframe>\n\n'
            f'*{block.remark}* (<a href="{link}">on a page of its own</a>)'
        )
    return "".join(parts)
