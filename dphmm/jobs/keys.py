"""The keys of a TOML file, and what is wrong with the first of them."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dphmm.errors import DataFileError
from dphmm.tables import read_document
from dphmm.tables.toml_text import parse_toml
from dphmm.tables.values import one_line, shown


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
