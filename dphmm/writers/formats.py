"""Which format a file name asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError
from dphmm.tables import new_file
from dphmm.tables.source import readable
from dphmm.tables.values import one_line
from dphmm.writers import delimited, frame, geojson, gpx
from dphmm.writers.frame import Geometry
from dphmm.writers.table import ReleaseTable


class Format(NamedTuple):
    """What writes releases to a path, and what reads them from it."""

    write: Callable[[Path, ReleaseTable, Geometry], None]
    read: Callable[[Path], ReleaseTable]


_GEOJSON = Format(geojson.write, geojson.read)
_GEOPARQUET = Format(frame.write_geoparquet, frame.read_geoparquet)

FORMATS: Mapping[str, Format] = {
    ".gpkg": Format(frame.write_geopackage, frame.read_geopackage),
    ".geojson": _GEOJSON,
    ".json": _GEOJSON,
    ".csv": Format(delimited.write, delimited.read),
    ".gpx": Format(gpx.write, gpx.read),
    ".parquet": _GEOPARQUET,
    ".geoparquet": _GEOPARQUET,
}
"""Extension → the format."""


@checked
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


def write_releases(
    path: str | Path, table: ReleaseTable, overwrite: bool = False, geometry: Geometry = "estimate"
) -> None:
    """Write releases in the format of the file's extension, whole or not at all.

    Parameters
    ----------
    path
        The file.
    table
        The releases.
    overwrite
        Whether a file that exists may be replaced.
    geometry
        Where formats with one place for each row (GeoJSON, GPX, GeoParquet) have it: at the ``"estimate"``, or where
        something was ``"released"``. A GeoPackage has a layer of each; all columns are in every format.

    Raises
    ------
    ConfigurationError
        When no format goes by the extension.
    InvalidInputError
        For another geometry.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    path = check_format(path)
    frame.places(table, geometry)  # refuses another geometry
    with new_file(path, overwrite) as part:
        FORMATS[path.suffix.lower()].write(part, table, geometry)


@checked
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
    with readable(path), path.open("rb") as stream:
        empty = not stream.read(1)
    if empty:
        raise DataFileError(path, "is empty; write the releases anew")
    try:
        return FORMATS[path.suffix.lower()].read(path)
    except InvalidInputError as problem:
        reason = one_line(problem)
        if isinstance(problem, DataFileError):
            reason = problem.problem if problem.line is None else f"line {problem.line}: {problem.problem}"
        raise DataFileError(path, f"does not hold releases ({reason}); write it with 'dphmm release'") from None
