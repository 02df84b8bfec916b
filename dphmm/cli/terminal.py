"""Words for the terminal: what files say of themselves is shown, and never obeyed.

A terminal takes some characters as orders: to clear the screen, to rename its window, to write in another direction.
They are shown as their escapes, in the form of JSON (``\\u001b``), so that JSON stays what it is.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import click

_ORDERS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES = re.compile(f"[{_ORDERS}]")
_IN_CELLS = re.compile(f"[\t\n{_ORDERS}]")


def echo(text: str = "", err: bool = False, **style: Any) -> None:
    """Print a text, tabs and line ends included, with what else a terminal would obey shown as its escape.

    Parameters
    ----------
    text
        What to say.
    err
        True for standard error.
    style
        As `click.style` takes it.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = _IN_LINES.sub(_escape, text).encode(encoding, "backslashreplace").decode(encoding)
    click.secho(shown, err=err, **style)


def cell(text: str) -> str:
    """A text from a file as part of a line: line ends and tabs are shown as their escapes too.

    Examples
    --------
    >>> print(cell("eve\\x1b[2J\\nbob"))
    eve\\u001b[2J\\u000abob
    """
    return _IN_CELLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
