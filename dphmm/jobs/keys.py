"""The keys of a TOML file, and what is wrong with the first of them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dphmm.errors import DataFileError


def read_keys(path: Path, example: str) -> dict[str, Any]:
    """The keys of a TOML file; `example` is where there is one, for messages.

    Raises
    ------
    DataFileError
        When the file cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    except (ValueError, RecursionError) as problem:
        raise DataFileError(path, f"is no TOML ({problem}); see {example}") from None


def first_flaw(problem: ValidationError) -> tuple[str, str, str]:
    """The first wrong key, pydantic's word for what is wrong with it, and what to say of its value."""
    error = problem.errors()[0]
    key = ".".join(str(part) for part in error["loc"])
    return key, error["type"], f"is {error['input']!r}; {error['msg'].removeprefix('Input ').lower()}"
