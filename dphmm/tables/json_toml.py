"""JSON (RFC 8259) and TOML in files, lines and tables, parsed with limits on size."""

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


# Memory of an empty object or list, in bytes. A number in a list takes half.
_OBJECT_BYTES = 64


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
        The parsed value, as returned by `json.loads`.

    Raises
    ------
    ValueError
        If it is not JSON, is nested about a thousand levels deep, has an integer of over 4,300 digits, or a string in
        it contains an unpaired surrogate, which cannot be written.
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
        raise ValueError("a string in it contains an unpaired surrogate")
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
        The parsed value, as returned by `json.loads`.

    Raises
    ------
    DataFileError
        As for `parse_json`, with the line if it is known; also if a packed file contains more objects and lists than
        `dphmm.tables.max_unpacked` allows.
    """
    document.check_objects((b"{", b"[", b","), _OBJECT_BYTES)
    try:
        return parse_json(document.text())
    except json.JSONDecodeError as problem:
        raise DataFileError(
            document.source, f"is not JSON ({problem.msg}); it may be cut off", problem.lineno
        ) from None
    except DataFileError:
        raise
    except ValueError as problem:
        raise DataFileError(document.source, f"is not usable JSON ({problem}); export it again") from None


_MAX_CHARACTERS = 1 << 20
_MAX_DOTS = 1000  # the library takes time quadratic in the length of a dotted key
_INTEGER_LIMIT = 1 << 63
_MAX_DEPTH = 32


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text.

    Parameters
    ----------
    text
        The text.

    Returns
    -------
    dict
        The parsed table, as returned by `tomllib.loads`.

    Raises
    ------
    ValueError
        If it is not TOML, or exceeds the limits for settings: a mebibyte, 32 levels of nesting, a thousand dots in a
        line (dotted keys take the library quadratic time), or integers of 64 bits, the maximum of the format.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"it must have at most {_MAX_CHARACTERS} characters, got {len(text)}")
    if any(line.count(".") > _MAX_DOTS for line in text.split("\n")):
        raise ValueError(f"a line has over {_MAX_DOTS} dots")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _check(table, _MAX_DEPTH)
    return table


def _check(value: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError("it is nested too deeply")
    if isinstance(value, int) and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        raise ValueError("an integer in it has over 64 bits")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(part, depth - 1)


def read_keys(path: Path, example: str) -> dict[str, Any]:
    """Read the keys of a TOML file; messages refer to the file `example`.

    Raises
    ------
    DataFileError
        If the file cannot be read or is not TOML.
    """
    text = read_document(path).text()
    try:
        return parse_toml(text)
    except ValueError as problem:
        raise DataFileError(path, f"is not TOML ({one_line(problem)}); see {example}") from None


def first_flaw(problem: ValidationError, secret: Container[str] = ()) -> tuple[str, str, str]:
    """Return the first wrong key, pydantic's error type, and a message about its value.

    Values of the keys in ``secret``, and of tables that may contain such keys, are not repeated.
    """
    error = problem.errors()[0]
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return key, error["type"], "is missing; add it"
    requirement = error["msg"].removeprefix("Input ").lower()
    value = error["input"]
    hidden = any(part in secret for part in error["loc"]) or (secret and isinstance(value, dict))
    return (
        key,
        error["type"],
        requirement.removeprefix("value error, ") if hidden else f"is {shown(value)}; {requirement}",
    )
