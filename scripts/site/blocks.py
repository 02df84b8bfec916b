"""Blocks of code in a Markdown page, and the remarks on how to run them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^(?:<!-- (?P<remark>[^\n]*?) -->\n)?```(?P<language>[\w-]+)\n(?P<body>.*?)^```$"
    r"|^<!-- (?P<alone>picture|page|check): (?P<path>\S+) (?P<words>[^\n]*?) -->$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block, or a remark that refers to a file written by earlier blocks.

    Attributes
    ----------
    start, end
        Position in the page's text.
    language
        Language of the fence, such as ``console`` or ``python``. For a remark without a fence: ``picture`` or ``page``,
        a file to show, or ``check``, a Python expression that must be true.
    body
        Contents of the fence. For a remark without a fence: the path, or the first word of the expression.
    remark
        Comment directly above the fence: ``not run: why``, ``run where: command`` (if the command succeeds),
        ``file: name``, ``exits with 1``, ``silent``, ``open`` (the output is not folded), or
        ``as printed: within 20 %`` (lines that earlier commands printed, with figures within this tolerance). For a
        remark without a fence: its words.
    """

    start: int
    end: int
    language: str
    body: str
    remark: str

    @property
    def is_run(self) -> bool:
        """Whether the block is run."""
        return self.language in ("console", "python") and not self.remark.startswith("not run: ")

    @property
    def code(self) -> int:
        """The expected exit code of the block's commands."""
        return int(self.remark.removeprefix("exits with ")) if self.remark.startswith("exits with ") else 0

    @property
    def file(self) -> str | None:
        """The file with this text, named by the remark or by a comment in its first line."""
        if self.remark.startswith("file: "):
            return self.remark.removeprefix("file: ")
        first = re.match(r"# ([\w-]+\.\w+)\n", self.body)
        return first[1] if first and self.language not in ("console", "python") else None


def parse_blocks(text: str) -> list[Block]:
    """Return the blocks of a page in order."""
    return [
        Block(
            match.start(),
            match.end(),
            match["language"] or match["alone"],
            match["body"] if match["alone"] is None else match["path"],
            (match["remark"] if match["alone"] is None else match["words"]) or "",
        )
        for match in _BLOCK.finditer(text)
    ]


def parse_commands(body: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output below it (or "")."""
    pairs: list[tuple[str, str]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], ""))
        elif pairs and (pairs[-1][0].endswith("\\") and not pairs[-1][1]):
            pairs[-1] = (f"{pairs[-1][0]}\n{line}", "")
        elif pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]}{line}\n")
    return pairs
