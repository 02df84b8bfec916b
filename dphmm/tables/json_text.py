"""JSON (RFC 8259) as files, lines and tables hold it."""

from __future__ import annotations

import json
import re
from typing import Any

from dphmm.errors import DataFileError
from dphmm.tables.source import Document
from dphmm.tables.values import is_text

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


_OBJECT = 64
"""What an empty object or list takes in memory, in bytes; a number in a list takes half."""


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says.

    Numbers may be ``NaN`` and ``Infinity``, as Python and JavaScript write them.

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
    """What a JSON file says.

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
