"""TOML as settings and jobs are written in it."""

from __future__ import annotations

import tomllib
from typing import Any

_LONGEST = 1 << 20
_MOST_DOTS = 1000
_LARGEST = 1 << 63
_DEEPEST = 32


def parse_toml(text: str) -> dict[str, Any]:
    """What a TOML text says.

    Raises
    ------
    ValueError
        When it is no TOML, or is none that can be meant: over a mebibyte, nested over 32 deep, with a line of over a
        thousand dots (dotted keys take the library the square of their length), or a whole number of over 64 bits,
        which the format does not have.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters; a mebibyte is the most")
    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has over {_MOST_DOTS} dots")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check(found, _DEEPEST)
    return found


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
        raise ValueError("a whole number in it has over 64 bits")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(part, depth - 1)
