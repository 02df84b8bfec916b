"""JSON (RFC 8259) and TOML as files, lines and tables hold them, read with limits on what they may hold."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Container
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphmm.errors import DataFileError
from dphmm.tables.source import Document, read_document
from dphmm.tables.values import is_text, one_line, shown

if TYPE_CHECKING:
    from pydantic import ValidationError

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


_OBJECT = 64
"""What an empty object or list takes in memory, in bytes; a number in a list takes half."""


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Numbers may be ``NaN`` and ``Infinity``, as Python and JavaScript write them.

    Parameters
    ----------
    text
        The text, or its UTF-8 bytes with or without a byte order mark.

    Returns
    -------
    object
        What it says, as `json.loads` has it.

    Raises
    ------
    ValueError
        When it is no JSON, is nested a thousand deep, has an integer of over 4,300 digits, or a text in it holds half
        of a character (a lone surrogate), which nothing can write.
    """
    try:
        plain = text if isinstance(text, str) else text.decode("utf-8-sig")
        value = json.loads(plain)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except ValueError:
        raise ValueError("it has an integer of thousands of digits") from None
    if _SURROGATE.search(plain) and not is_text(json.dumps(value, ensure_ascii=False)):
        raise ValueError("a text in it holds half of a character")
    return value


def read_json(document: Document) -> Any:
    """Parse a JSON file.

    Parameters
    ----------
    document
        The file.

    Returns
    -------
    object
        What it says, as `json.loads` has it.

    Raises
    ------
    DataFileError
        As `parse_json`, with the line where it is known; and when a packed file holds more objects and lists than
        `dphmm.tables.max_unpacked` has room for.
    """
    document.check_objects((b"{", b"[", b","), _OBJECT)
    try:
        return parse_json(document.text())
    except json.JSONDecodeError as problem:
        raise DataFileError(document.source, f"is no JSON ({problem.msg}); it may be cut off", problem.lineno) from None
    except DataFileError:
        raise
    except ValueError as problem:
        raise DataFileError(document.source, f"is no JSON that can be used ({problem}); export it again") from None


_LONGEST = 1 << 20
_MOST_DOTS = 1000
_LARGEST = 1 << 63
_DEEPEST = 32


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Parameters
    ----------
    text
        The text.

    Returns
    -------
    dict
        What it says, as `tomllib.loads` has it.

    Raises
    ------
    ValueError
        When it is no TOML, or exceeds what settings need: a mebibyte, 32 levels of nesting, a line of a thousand dots
        (dotted keys take the library the square of their length), or whole numbers of 64 bits, the most that the format
        has.
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


def read_keys(path: Path, example: str) -> dict[str, Any]:
    """The keys of a TOML file; `example` is where there is one, for messages.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no TOML.
    """
    text = read_document(path).text()
    try:
        return parse_toml(text)
    except ValueError as problem:
        raise DataFileError(path, f"is no TOML ({one_line(problem)}); see {example}") from None


def first_flaw(problem: ValidationError, secret: Container[str] = ()) -> tuple[str, str, str]:
    """The first wrong key, pydantic's word for what is wrong with it, and what to say of its value.

    Values of the keys in ``secret`` are not repeated, nor tables that may hold such keys.
    """
    error = problem.errors()[0]
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return key, error["type"], "is missing; give it"
    said, given = error["msg"].removeprefix("Input ").lower(), error["input"]
    hidden = any(part in secret for part in error["loc"]) or (secret and isinstance(given, dict))
    return key, error["type"], said.removeprefix("value error, ") if hidden else f"is {shown(given)}; {said}"
