"""Pages with the outputs of their code."""

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

from scripts.site.blocks import Block, parse_blocks, parse_commands

ROOT = Path(__file__).parents[2]
# Maximum number of characters of a line of output that is a sentence.
MAX_LINE_LENGTH = 84
# Time limit in seconds for the code of a page, which shares two processors with all tests in CI.
TIME_LIMIT_SECONDS = 900

# Maximum number of lines of output that are not folded.
MAX_OPEN_LINES = 14


class FailedPages(Exception):
    """Some pages have code that fails or prints different output than the page shows."""


def run_pages(pages: Iterable[Path], folder: Path) -> dict[Path, list[dict[str, Any]]]:
    """Return the outputs of each page's blocks, using one process per processor.

    Outputs are cached in the folder under a digest of the page, the package and the sample. Only changed pages are run
    again.

    Raises
    ------
    FailedPages
        If a page fails, with the messages of all failed pages.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package = _hash_package()
    wanted = [page for page in pages if any(block.is_run for block in parse_blocks(page.read_text(encoding="utf-8")))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # The longest pages start first: none of them is left to run alone at the end.
        messages = list(
            pool.map(lambda page: _run(page, folder, package), sorted(wanted, key=_count_runs, reverse=True))
        )
    failed = [message for message in messages if message]
    if failed:
        raise FailedPages("\n\n".join(failed))
    return {page: json.loads((folder / f"{page.stem}.json").read_text(encoding="utf-8")) for page in wanted}


def _count_runs(page: Path) -> int:
    """Return the number of commands and Python blocks that a page runs."""
    runs = [block for block in parse_blocks(page.read_text(encoding="utf-8")) if block.is_run]
    return sum(len(parse_commands(block.body)) if block.language == "console" else 1 for block in runs)


def _hash_package() -> str:
    """Return a digest of the package and the sample, which pages run."""
    return _hash_files([*sorted((ROOT / "dphmm").rglob("*.py")), *sorted((ROOT / "data").rglob("*"))])


def _hash_files(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        if path.is_file():
            whole.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return whole.hexdigest()


def _run(page: Path, folder: Path, package: str) -> str:
    """Run a page unless its outputs are cached. Return an error message or an empty string."""
    key = _hash_files([page]) + package
    kept = folder / f"{page.stem}.key"
    if kept.is_file() and kept.read_text(encoding="utf-8") == key and (folder / f"{page.stem}.json").is_file():
        return ""
    kept.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.site.run_page", str(page), str(folder)]
    threads = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **threads}, timeout=TIME_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{page.name}: its code runs for more than {TIME_LIMIT_SECONDS} s: shorten it or add a 'not run' remark"
    if done.returncode:
        return done.stderr
    kept.write_text(key, encoding="utf-8")
    return ""


def with_outputs(text: str, outputs: list[dict[str, Any]], generated: str) -> str:
    """Return a page with each block's output below it.

    ``generated`` is the folder of pictures, relative to the page.
    """
    parts, at = [], 0
    for block, output in zip(parse_blocks(text), outputs, strict=True):
        printed_outputs = output.get("printed", ())
        if any(printed_outputs):
            parts.append(text[at : block.start])
            for (command, _), printed in zip(parse_commands(block.body), printed_outputs, strict=True):
                parts.append(f"```console\n$ {command}\n```\n{_format_output(printed, block.remark == 'open')}\n")
        else:
            parts.append(
                text[at : block.start] if block.language in ("picture", "page", "check") else text[at : block.end]
            )
            parts.append(_format_shown(block, output, generated))
        at = block.end
    return "".join([*parts, text[at:]])


def _format_output(text: str, unfolded: bool = False) -> str:
    """Return a block with the printed text. Long output is folded."""
    lines = [part for line in text.rstrip().splitlines() for part in _wrap_line(line)]
    if not lines:
        return ""
    block = "\n\n````{code-block} text\n:class: output\n" + "\n".join(lines) + "\n````\n"
    if len(lines) <= MAX_OPEN_LINES or unfolded:
        return block
    return f'\n\n<details class="output"><summary>{len(lines)} lines of output</summary>\n{block}\n</details>\n'


def _wrap_line(line: str) -> list[str]:
    """Wrap a line of output if it is a long sentence. Rows of tables are not wrapped."""
    if len(line) <= MAX_LINE_LENGTH or "  " in line.strip():
        return [line]
    return textwrap.wrap(line, MAX_LINE_LENGTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _format_shown(block: Block, output: dict[str, Any], generated: str) -> str:
    parts = [_format_output(output.get("text", ""))]
    parts += [f"\n\n![Figure of the code above]({generated}/{name})\n" for name in output.get("pictures", ())]
    if block.language in ("picture", "page") and "file" not in output:
        return ""
    if block.language == "picture":
        parts.append(f"![{block.remark}]({generated}/{output['file']})\n\n*{block.remark}*")
    elif block.language == "page":
        link = f"{generated}/{output['file']}"
        parts.append(
            f'<iframe class="made" src="{link}" title="{block.remark}" loading="lazy"></iframe>\n\n'
            f'*{block.remark}* (<a href="{link}">on a separate page</a>)'
        )
    return "".join(parts)
