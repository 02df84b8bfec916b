"""Which format a file name asks for."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.tables import new_file
from dphmm.writers.table import Column, ReleaseTable

FORMATS: Mapping[str, str] = {
    ".gpkg": "geopackage",
    ".geojson": "geojson",
    ".json": "geojson",
    ".csv": "delimited",
    ".gpx": "gpx",
    ".parquet": "geoparquet",
    ".geoparquet": "geoparquet",
}
"""Extension → the module of this stage that writes and reads it; each has `write` and `read`."""

CRS = "EPSG:4326"
"""The reference system of every latitude and longitude written: WGS 84."""


def check_format(path: str | Path) -> Path:
    """The path of an output, refused when no format goes by its extension.

    Raises
    ------
    ConfigurationError
        Naming the extensions that there are.
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ConfigurationError(
            f"{path}: no format goes by {path.suffix or 'no extension'!r}; use {', '.join(FORMATS)}"
        )
    return path


def _module(path: Path) -> Any:
    return importlib.import_module(f"dphmm.writers.{FORMATS[path.suffix.lower()]}")


def write_releases(path: str | Path, table: ReleaseTable, overwrite: bool = False) -> None:
    """Write releases in the format of the file's extension, whole or not at all.

    Raises
    ------
    ConfigurationError
        When no format goes by the extension.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    path = check_format(path)
    with new_file(path, overwrite) as part:
        _module(path).write(part, table)


def read_releases(path: str | Path) -> ReleaseTable:
    """The releases in a file that `write_releases` wrote.

    Raises
    ------
    DataFileError
        When the file is missing, damaged, or holds something else than releases.
    ConfigurationError
        When no format goes by the extension.
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    path = check_format(path)
    try:
        with path.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None
    if empty:
        raise DataFileError(path, "is empty; write the releases anew")
    try:
        table: ReleaseTable = _module(path).read(path)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError, EOFError) as problem:
        reason = " ".join(str(problem).split()) or type(problem).__name__
        if isinstance(problem, DataFileError):
            reason = problem.problem if problem.line is None else f"line {problem.line}: {problem.problem}"
        raise DataFileError(path, f"does not hold releases ({reason}); write it with 'dphmm release'") from None
    return table


def parsed(column: Column, found: Any) -> Any:
    """What a cell of a column says: a text, or a value as JSON has it.

    Raises
    ------
    ValueError, KeyError, TypeError, AttributeError
        When it says nothing of the column's kind.
    """
    if column.kind == "time":
        return np.datetime64(found.removesuffix("Z"), "us")
    if column.kind == "number":
        return math.nan if found in (None, "") else float(found)
    if column.kind == "count":
        return int(found)
    return {"true": True, "false": False}[str(found).lower()] if column.kind == "flag" else found
