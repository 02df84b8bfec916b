"""Releases as files in the format that the extension asks for.

All are in WGS 84: a CSV of releases has it in a column of its own, a GPX in its description.
A GPX of releases has one track per user, the other columns in extensions of each point; what has no place is left out.
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

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, OutputError, need
from dphmm.tables import Feature, Table, iso_time, new_file, read_document, read_features, write_csv, write_features
from dphmm.tables.output import check_extras
from dphmm.tables.source import readable
from dphmm.tables.values import one_line, since_epoch
from dphmm.tables.vector_files import read_gpx
from dphmm.writers import geopackage
from dphmm.writers.geopackage import Geometry, in_words, places
from dphmm.writers.table import COLUMNS, CRS, Column, ReleaseTable


def write_delimited(path: Path, table: ReleaseTable, *_: object) -> None:
    """Write a CSV; numbers are written so that they read back bit for bit, an unknown one as an empty field."""
    columns = [_texts(column, table) for column in COLUMNS]
    rows = ([*values, CRS] for values in zip(*columns, strict=True))
    write_csv(path, [column.name for column in COLUMNS] + ["crs"], rows)


def _texts(column: Column, table: ReleaseTable) -> Iterable[str]:
    values = table[column.name]
    if column.kind == "time":
        return map(iso_time, values)
    if column.kind == "number":
        return ("" if math.isnan(value) else repr(value) for value in values.tolist())
    return (str(value).lower() if column.kind == "flag" else str(value) for value in values.tolist())


def read_delimited(path: Path) -> ReleaseTable:
    """Read what `write_delimited` wrote; columns may stand in any order, and further ones are not read."""
    table = Table.read(path, empty=True)
    return ReleaseTable({column.name: table.values(column.name, column.parse) for column in COLUMNS})


def write_geojson(path: Path, table: ReleaseTable, geometry: Geometry = "estimate", *_: object) -> None:
    """Write GeoJSON, one feature a line; a row without the place asked for has a null geometry."""
    latitude, longitude, known = places(table, geometry)
    found = zip(table.rows(), latitude.tolist(), longitude.tolist(), known.tolist(), strict=True)
    features = (Feature(row, {"type": "Point", "coordinates": [x, y]} if there else None) for row, y, x, there in found)
    write_features(path, "releases", features)


def read_geojson(path: Path) -> ReleaseTable:
    """Read what `write_geojson` wrote."""
    rows = [properties for properties, _ in read_features(read_document(path))]
    for row in rows:
        if row.get("constrained_factor", 0) is None:  # JSON has no infinity
            row["constrained_factor"] = math.inf
    return ReleaseTable.parse(rows)


NAMESPACE = "urn:dphmm:release"
_EXTENDED = [column.name for column in COLUMNS if column.name not in ("user", "time")]
_NO_XML = re.compile("[\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]")


def write_gpx(path: Path, table: ReleaseTable, geometry: Geometry = "estimate", is_private: bool = True) -> None:
    """Write GPX 1.1: one track per user, in the order in which they first occur; rows without the place are left out.

    What an estimate is expected to be off is each point's comment, the other columns are its extensions.
    """
    gpx = need("gpxpy.gpx", "files")
    document = gpx.GPX()
    document.creator = "dphmm"
    document.description = f"{in_words(is_private, geometry)} Coordinates are WGS 84 ({CRS})."
    document.nsmap["dphmm"] = NAMESPACE
    segments: dict[str, Any] = {}
    latitude, longitude, known = places(table, geometry)
    cells = [values.tolist() for values in table.select(known).columns.values()]
    for y, x, *values in zip(latitude[known].tolist(), longitude[known].tolist(), *cells, strict=True):
        row = dict(zip(table.columns, values, strict=True))
        segment = segments.setdefault(row["user"], gpx.GPXTrackSegment())
        segment.points.append(_gpx_point(gpx, row, y, x, geometry == "estimate"))
    for user, segment in segments.items():
        track = gpx.GPXTrack(name=user)
        track.segments.append(segment)
        document.tracks.append(track)
    text = document.to_xml(version="1.1")
    if _NO_XML.search(text):
        raise OutputError(f"{path}: a user's name holds a control character, which GPX cannot; write another format")
    path.write_text(text, encoding="utf-8")


def _gpx_point(gpx: Any, row: dict[str, Any], latitude: float, longitude: float, is_estimate: bool) -> Any:
    off = f"expected to be {row['estimate_radius_m']:.0f} m off" if is_estimate else None
    point = gpx.GPXTrackPoint(latitude, longitude, time=row["time"].replace(tzinfo=UTC), comment=off)
    for name in _EXTENDED:
        element = ElementTree.Element(f"{{{NAMESPACE}}}{name}")
        element.text = str(row[name])
        point.extensions.append(element)
    return point


def read_gpx_releases(path: Path) -> ReleaseTable:
    """Read what `write_gpx` wrote."""
    tracks = read_gpx(read_document(path)).tracks
    return ReleaseTable.parse([_row(track.name or "", point) for track in tracks for point in track.walk(True)])


def _row(user: str, point: Any) -> dict[str, Any]:
    extended = {str(element.tag).split("}")[-1]: element.text or "" for element in point.extensions}
    try:
        time = None if point.time is None else np.datetime64(since_epoch(point.time), "us")
    except ValueError as problem:  # of an offset from UTC of over a day
        raise InvalidInputError(f"a time of {user} is none ({problem})") from None
    return extended | {"user": user, "time": time}


class Format(NamedTuple):
    """A format of releases: what writes a table to a path, and what reads it from there."""

    write: Callable[..., None]
    read: Callable[[Path], ReleaseTable]


_GEOJSON = Format(write_geojson, read_geojson)
_GEOPARQUET = Format(geopackage.write_geoparquet, geopackage.read_geoparquet)

FORMATS: Mapping[str, Format] = {
    ".gpkg": Format(geopackage.write_geopackage, geopackage.read_geopackage),
    ".geojson": _GEOJSON,
    ".json": _GEOJSON,
    ".csv": Format(write_delimited, read_delimited),
    ".gpx": Format(write_gpx, read_gpx_releases),
    ".parquet": _GEOPARQUET,
    ".geoparquet": _GEOPARQUET,
}
"""Extension → the format."""


@checked
def check_format(path: str | Path, formats: Iterable[str] = tuple(FORMATS), what: str = "format") -> Path:
    """Refuse the path of an output for which there is no format, or whose format needs a library that is missing.

    Parameters
    ----------
    path
        The file.
    formats
        The extensions that there are.
    what
        What goes by them, for the message.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        When no format goes by its extension; naming those that do.
    MissingDependencyError
        When a library is not installed; naming the command that installs it.
    """
    path = Path(path)
    if path.suffix.lower() not in formats:
        raise ConfigurationError(
            f"{path}: no {what} goes by {path.suffix or 'no extension'!r}; use {', '.join(formats)}"
        )
    check_extras(path)
    return path


def write_releases(
    path: str | Path,
    table: ReleaseTable,
    overwrite: bool = False,
    geometry: Geometry = "estimate",
    is_private: bool = True,
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
    is_private
        Whether noise came from the operating system. Where it follows from a seed, files that say what is promised
        (GeoPackage, GPX) say that nothing is.

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
    places(table, geometry)  # refuses another geometry
    with new_file(path, overwrite) as part:
        FORMATS[path.suffix.lower()].write(part, table, geometry, is_private)


@checked
def read_releases(path: str | Path) -> ReleaseTable:
    """Read the releases in a file that `write_releases` wrote.

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
