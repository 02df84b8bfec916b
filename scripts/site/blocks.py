"""The blocks of code in a page of Markdown, and what the page says of how they are to be treated."""

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
    """A fenced block, or a remark that asks for a file which the blocks before it made.

    Attributes
    ----------
    start, end
        Where it stands in the page's text.
    language
        Of the fence: ``console``, ``python``, …; of a remark alone ``picture`` or ``page``, a file to show, or
        ``check``, an expression in Python that must be true.
    body
        What is in the fence; of a remark alone the path, or the expression's first word.
    remark
        What the comment right above it says: ``not run: why``, ``run where: command`` (if that works), ``file: name``,
        ``exits with 1``, ``silent``, ``open`` (its output is not folded), ``as printed: within 20 %`` (lines that
        commands before it printed, with figures as near as that); of a remark alone its words.
    """

    start: int
    end: int
    language: str
    body: str
    remark: str

    @property
    def is_run(self) -> bool:
        """Whether its code is run."""
        return self.language in ("console", "python") and not self.remark.startswith("not run: ")

    @property
    def code(self) -> int:
        """With what its commands end."""
        return int(self.remark.removeprefix("exits with ")) if self.remark.startswith("exits with ") else 0

    @property
    def file(self) -> str | None:
        """The file that it is the text of, if it is one: named by the remark, or by its first line, a comment."""
        if self.remark.startswith("file: "):
            return self.remark.removeprefix("file: ")
        first = re.match(r"# ([\w-]+\.\w+)\n", self.body)
        return first[1] if first and self.language not in ("console", "python") else None


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [
        Block(
            found.start(),
            found.end(),
            found["language"] or found["alone"],
            found["body"] if found["alone"] is None else found["path"],
            (found["remark"] if found["alone"] is None else found["words"]) or "",
        )
        for found in _BLOCK.finditer(text)
    ]


def commands(body: str) -> list[tuple[str, str]]:
    """The commands of a block of a console, each with the output that the page shows under it (empty: none)."""
    found: list[tuple[str, str]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found and (found[-1][0].endswith("\\") and not found[-1][1]):
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found
