"""Files of releases, in the format of their extension.

All formats use WGS 84. A CSV states it in a separate column, a GPX in its description. A GPX has one track per user,
with the other columns in extensions of each point, and omits timesteps without a location.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, OutputError, import_library
from dphmm.tables import (
    Feature,
    Table,
    create_file,
    iso_time,
    read_document,
    read_features,
    write_csv,
    write_features,
)
from dphmm.tables.output import check_extras
from dphmm.tables.source import convert_read_errors
from dphmm.tables.values import shorten, shorten_message, to_microseconds
from dphmm.tables.vector_files import read_gpx
from dphmm.validation import check_arguments
from dphmm.writers import geopackage
from dphmm.writers.geopackage import describe_content
from dphmm.writers.release_table import COLUMNS, CRS, Column, Geometry, ReleaseTable, get_locations


def write_delimited(path: Path, table: ReleaseTable, *_: object) -> None:
    """Write a CSV. Numbers are read back bit for bit. A missing number is an empty field."""
    columns = [_format_column(column, table) for column in COLUMNS]
    rows = ([*values, CRS] for values in zip(*columns, strict=True))
    write_csv(path, [column.name for column in COLUMNS] + ["crs"], rows)


def _format_column(column: Column, table: ReleaseTable) -> Iterable[str]:
    values = table[column.name]
    if column.kind == "time":
        return map(iso_time, values)
    if column.kind == "number":
        return ("" if math.isnan(value) else repr(value) for value in values.tolist())
    return (str(value).lower() if column.kind == "flag" else str(value) for value in values.tolist())


def read_delimited(path: Path) -> ReleaseTable:
    """Read a file of `write_delimited`, with columns in any order.

    Additional columns are ignored, except ``crs``, which must be that of the other columns.
    """
    table = Table.read(path, empty=True)
    if "crs" in table.columns:
        table.values("crs", _check_crs)
    return ReleaseTable({column.name: table.values(column.name, column.parse) for column in COLUMNS})


def _check_crs(cell: str) -> None:
    if cell != CRS:
        raise ValueError(f"crs must be {CRS}, got {shorten(cell)}")


def write_geojson(path: Path, table: ReleaseTable, geometry: Geometry = "estimate", *_: object) -> None:
    """Write GeoJSON, one feature per line.

    A row without the requested location has a null geometry.
    """
    latitude, longitude, is_located = get_locations(table, geometry)
    rows = zip(table.rows(), latitude.tolist(), longitude.tolist(), is_located.tolist(), strict=True)
    features = (Feature(row, {"type": "Point", "coordinates": [x, y]} if there else None) for row, y, x, there in rows)
    write_features(path, "releases", features)


def read_geojson(path: Path) -> ReleaseTable:
    """Read a file of `write_geojson`."""
    rows = [properties for properties, _ in read_features(read_document(path))]
    for row in rows:
        if row.get("constrained_dp_factor", 0) is None:  # JSON has no infinity
            row["constrained_dp_factor"] = math.inf
    return ReleaseTable.parse(rows)


NAMESPACE = "urn:dphmm:release"
_EXTENSION_COLUMNS = [column.name for column in COLUMNS if column.name not in ("user", "time")]
_INVALID_XML = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")


def write_gpx(
    path: Path, table: ReleaseTable, geometry: Geometry = "estimate", is_private: bool = True, *_: object
) -> None:
    """Write GPX 1.1, with one track per user in the order of first occurrence.

    Rows without the requested location are omitted.

    The comment of a point states the expected error of an estimate. The other columns are extensions of the point.
    """
    gpx = import_library("gpxpy.gpx", "files")
    document = gpx.GPX()
    document.creator = "dphmm"
    document.description = f"{describe_content(is_private, geometry)} Coordinates are WGS 84 ({CRS})."
    document.nsmap["dphmm"] = NAMESPACE
    segments: dict[str, Any] = {}
    latitude, longitude, is_located = get_locations(table, geometry)
    cells = [values.tolist() for values in table.select(is_located).columns.values()]
    for y, x, *values in zip(latitude[is_located].tolist(), longitude[is_located].tolist(), *cells, strict=True):
        row = dict(zip(table.columns, values, strict=True))
        segment = segments.setdefault(row["user"], gpx.GPXTrackSegment())
        segment.points.append(_build_gpx_point(gpx, row, y, x, geometry == "estimate"))
    for user, segment in segments.items():
        track = gpx.GPXTrack(name=user)
        track.segments.append(segment)
        document.tracks.append(track)
    text = document.to_xml(version="1.1")
    if _INVALID_XML.search(text):
        raise OutputError(f"{path}: GPX cannot contain a control character of a user's name; use another format")
    path.write_text(text, encoding="utf-8")


def _build_gpx_point(gpx: Any, row: dict[str, Any], latitude: float, longitude: float, is_estimate: bool) -> Any:
    comment = f"expected error {row['estimate_error_m']:.0f} m" if is_estimate else None
    point = gpx.GPXTrackPoint(latitude, longitude, time=row["time"].replace(tzinfo=UTC), comment=comment)
    for name in _EXTENSION_COLUMNS:
        element = ElementTree.Element(f"{{{NAMESPACE}}}{name}")
        element.text = str(row[name])
        point.extensions.append(element)
    return point


def read_gpx_releases(path: Path) -> ReleaseTable:
    """Read a file of `write_gpx`."""
    tracks = read_gpx(read_document(path)).tracks
    return ReleaseTable.parse([_build_row(track.name or "", point) for track in tracks for point in track.walk(True)])


def _build_row(user: str, point: Any) -> dict[str, Any]:
    extended = {str(element.tag).split("}")[-1]: element.text or "" for element in point.extensions}
    try:
        time = None if point.time is None else np.datetime64(to_microseconds(point.time), "us")
    except ValueError as problem:  # an offset from UTC of more than a day
        raise InvalidInputError(f"a time of {user} is invalid ({problem})") from None
    return extended | {"user": user, "time": time}


class Format(NamedTuple):
    """A format of releases: functions that write a table to a path and read it from there."""

    write: Callable[..., None]
    read: Callable[[Path], ReleaseTable]


_GEOJSON = Format(write_geojson, read_geojson)
_GEOPARQUET = Format(geopackage.write_geoparquet, geopackage.read_geoparquet)

# Extension → the format.
FORMATS: Mapping[str, Format] = {
    ".gpkg": Format(geopackage.write_geopackage, geopackage.read_geopackage),
    ".geojson": _GEOJSON,
    ".json": _GEOJSON,
    ".csv": Format(write_delimited, read_delimited),
    ".gpx": Format(write_gpx, read_gpx_releases),
    ".parquet": _GEOPARQUET,
    ".geoparquet": _GEOPARQUET,
}


# The extension of an unfinished file, after that of its format. It is renamed when it is published.
UNFINISHED_SUFFIX = ".part"


def _get_suffix(path: Path) -> str:
    """Return the extension of a file's format."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix == UNFINISHED_SUFFIX else suffix


@check_arguments
def check_format(path: str | Path, formats: Iterable[str] = tuple(FORMATS), what: str = "format") -> Path:
    """Check the extension of an output and that the libraries of its format are installed.

    Parameters
    ----------
    path
        The file.
    formats
        The supported extensions.
    what
        A noun for the message.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigurationError
        If the extension is not supported; names those that are.
    MissingDependencyError
        If a library is not installed; names the command that installs it.
    """
    path = Path(path)
    if path.suffix.lower() not in formats:
        raise ConfigurationError(
            f"{path}: extension of a {what} must be one of {', '.join(formats)}, got {path.suffix or 'no extension'!r}"
        )
    check_extras(path)
    return path


@check_arguments
def write_releases(
    path: str | Path,
    table: ReleaseTable,
    overwrite: bool = False,
    geometry: Geometry = "estimate",
    is_private: bool = True,
    settings: str | None = None,
) -> None:
    """Write releases in the format of the file's extension, atomically.

    Parameters
    ----------
    path
        The file. `UNFINISHED_SUFFIX` may follow the extension of its format.
    table
        The releases.
    overwrite
        Whether an existing file may be replaced.
    geometry
        The geometry of a row in formats with one geometry per row (GeoJSON, GPX, GeoParquet): the ``"estimate"`` or
        the ``"released"`` location. A GeoPackage has a layer for each. All columns are in every format.
    is_private
        Whether the noise came from the operating system. For seeded noise, files with a description (GeoPackage, GPX)
        state that there is no guarantee.
    settings
        The canonical settings of the releases, `ReleaseSettings.canonical`, for the metadata of a GeoPackage or
        GeoParquet. None omits them.

    Raises
    ------
    ConfigurationError
        If the extension is not supported.
    InvalidInputError
        If `geometry` is invalid.
    OutputError
        If the file exists and may not be overwritten, or cannot be written.
    MissingDependencyError
        If a library of the format is not installed.
    """
    path = Path(path)
    suffix = _get_suffix(path)
    check_format(path.with_suffix("") if path.suffix.lower() == UNFINISHED_SUFFIX else path)
    get_locations(table, geometry)  # raises if the geometry is invalid
    with create_file(path, overwrite) as part:
        FORMATS[suffix].write(part, table, geometry, is_private, settings)


@check_arguments
def read_releases(path: str | Path) -> ReleaseTable:
    """Read the releases in a file of `write_releases`.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    ReleaseTable
        The releases in the order of the file.

    Raises
    ------
    DataFileError
        If the file is missing, damaged, or does not contain releases.
    ConfigurationError
        If the extension is not supported.
    MissingDependencyError
        If a library of the format is not installed.
    """
    with convert_read_errors(path):
        Path(path).stat()  # of a missing file the extension does not matter
    path = check_format(path)
    with convert_read_errors(path), path.open("rb") as stream:
        is_empty = not stream.read(1)
    if is_empty:
        raise DataFileError(path, "is empty: write it again with 'dphmm release'")
    try:
        return FORMATS[path.suffix.lower()].read(path)
    except InvalidInputError as problem:
        reason = shorten_message(problem)
        if isinstance(problem, DataFileError):
            reason = problem.problem if problem.line is None else f"line {problem.line}: {problem.problem}"
        raise DataFileError(path, f"does not contain releases ({reason}): write it with 'dphmm release'") from None
