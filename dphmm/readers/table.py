"""Tables of fixes: CSV, GeoJSON, Parquet and GeoParquet.

Columns go by the names that trackintel and scikit-mobility use, in any case, unless the caller names them:

==========  ============================================
what        recognised columns
==========  ============================================
user        ``user_id``, ``uid``, ``user``
time        ``tracked_at``, ``datetime``, ``timestamp``, ``time``
latitude    ``latitude``, ``lat``
longitude   ``longitude``, ``lon``, ``lng``, ``long``
geometry    ``geometry``, ``geom``: points
==========  ============================================

A table without a user column is one person, named after the file. Times are ISO 8601 texts or, in Parquet, timestamps;
one with a zone is converted to UTC, one without is taken as UTC. Numbers are refused as times: nothing says whether
they count seconds or milliseconds. Coordinates are WGS 84 degrees; a GeoParquet geometry in another reference system is
converted. All other columns are left unread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, DataFileError, need
from dphmm.readers.fixes import FixCollector, Fixes, user_of_file
from dphmm.tables.columns import find_column, listed
from dphmm.tables.delimited import csv_rows
from dphmm.tables.geojson import geometry_of, read_features
from dphmm.tables.source import Document, suffix_of
from dphmm.tables.table import read_parquet
from dphmm.tables.values import parse_number, parse_time, plain_text

HELD = ("user", "time", "latitude", "longitude", "geometry")
"""What a column of a table of fixes may hold; `dphmm.tables.ALIASES` has the names that each is recognised by."""

Rows = Iterator[tuple[int, Mapping[str, Any] | str]]
"""Rows of any format: the number of a line, feature or row, counted from one; and what each of its columns that are
read holds, or, as a text, why it could not be taken apart. A time proper stands under ``microseconds``, since 1970 in
UTC, in place of ``time``."""


def fixes(
    document: Document, skip_bad: bool, user: str | None, columns: Mapping[str, str] | None = None
) -> Iterator[Fixes]:
    """The rows of a table; by default of the users that it names, or of one named after the file.

    Parameters
    ----------
    document
        CSV (UTF-8; separated by comma, semicolon or tab), GeoJSON or Parquet, by its extension; any other is read as
        CSV.
    skip_bad
        True to pass over malformed rows and count them.
    user
        The user whose fixes these are.
    columns
        What a column holds (``user``, ``time``, ``latitude``, ``longitude``, ``geometry``) → its name in the file.

    Raises
    ------
    DataFileError
        For a missing column, a malformed row (unless skipped), a damaged file.
    ConfigurationError
        When `columns` names something else than the five.
    MissingDependencyError
        For Parquet without pyarrow.
    """
    unknown = set(columns or {}) - set(HELD)
    if unknown:
        raise ConfigurationError(f"columns name {sorted(unknown)}; what a column may hold is one of {sorted(HELD)}")
    take_apart, unit = _FORMATS.get(suffix_of(document.name), (_rows_of_csv, "line"))
    collector = FixCollector(document.source, skip_bad, user)
    fallback = user_of_file(document.source)
    for number, row in take_apart(document, columns or {}):
        try:
            _add(row, fallback, collector)
        except ValueError as problem:
            if unit == "line":
                collector.refuse(str(problem), number)
            else:
                collector.refuse(f"{unit} {number}: {problem}")
    yield collector.fixes()


def _add(row: Mapping[str, Any] | str, fallback: str, collector: FixCollector) -> None:
    if isinstance(row, str):
        raise ValueError(row)
    moment = row.get("microseconds")
    if moment is None:
        moment = parse_time(row.get("time"))
    if "geometry" in row:
        latitude, longitude = _point(row["geometry"])
    else:
        latitude, longitude = parse_number(row["latitude"], "latitude"), parse_number(row["longitude"], "longitude")
    collector.add(plain_text(row["user"]).strip() if "user" in row else fallback, moment, latitude, longitude)


def _point(value: object) -> tuple[float, float]:
    """Latitude and longitude of a point as well-known text, well-known binary or a GeoJSON object."""
    geometry = geometry_of(value)
    if not isinstance(geometry, shapely.Point) or geometry.is_empty:
        found = "missing" if geometry is None else f"a {'empty ' * geometry.is_empty}{geometry.geom_type}"
        raise ValueError(f"geometry is {found}; a fix needs a point")
    return float(geometry.y), float(geometry.x)


def _resolve(names: Sequence[str], wanted: Mapping[str, str], source: str) -> dict[str, str]:
    """What each column that is to be read holds → its name in the file.

    Latitude and longitude are preferred to a geometry, unless the caller names the geometry.

    Parameters
    ----------
    names
        The file's columns.
    wanted
        What a column holds → its name, where the caller says so.
    source
        The file, for messages.

    Raises
    ------
    DataFileError
        When a column that the caller named is not there, or no column holds times or places.
    """
    for name in wanted.values():
        if name not in names:
            raise DataFileError(source, f"has no column {name!r}; its columns are {listed(names)}")
    recognised = {what: wanted.get(what) or find_column(names, what) for what in HELD}
    found = {what: name for what, name in recognised.items() if name is not None}
    degrees = {"latitude", "longitude"} <= set(found)
    if "time" not in found:
        raise DataFileError(source, f"has no column of times; say which of {listed(names)} it is with columns=")
    if not degrees and "geometry" not in found:
        raise DataFileError(source, f"has no column of places; say which of {listed(names)} they are with columns=")
    unread = {"geometry"} if degrees and "geometry" not in wanted else {"latitude", "longitude"}
    return {what: name for what, name in found.items() if what not in unread}


def _rows_of_csv(document: Document, columns: Mapping[str, str]) -> Rows:
    """The rows of a CSV file with a header; see `dphmm.tables.delimited.csv_rows`."""
    lines = csv_rows(document)
    _, names = next(lines, (1, []))
    index = {what: names.index(name) for what, name in _resolve(names, columns, document.source).items()}
    for number, fields in lines:
        if len(fields) == len(names):
            yield number, {what: fields[at] for what, at in index.items()}
        else:
            yield number, f"has {len(fields)} fields; the header has {len(names)}"


def _rows_of_geojson(document: Document, columns: Mapping[str, str]) -> Rows:
    """The features of a GeoJSON collection, whose properties are the columns; see `dphmm.tables.read_features`."""
    features = read_features(document)
    names = [*dict.fromkeys(name for feature in features for name in feature.properties), "geometry"]
    found = _resolve(names, {"geometry": "geometry"} | dict(columns), document.source)
    for number, (properties, geometry) in enumerate(features, start=1):
        yield number, {what: properties.get(name) for what, name in found.items()} | {"geometry": geometry}


def _rows_of_parquet(document: Document, columns: Mapping[str, str]) -> Rows:
    """The rows of a Parquet file; of a GeoParquet file with its geometry converted to WGS 84.

    Only the columns that are needed are read. A timestamp with a zone is stored in UTC by the format; one without is
    taken as UTC. What is finer than a microsecond is cut off.
    """
    found: dict[str, str] = {}

    def choose(names: list[str]) -> Iterable[str]:
        found.update(_resolve(names, columns, document.source))
        return found.values()

    table, pa = read_parquet(document, choose), need("pyarrow", "files")
    held = {what: table[name] for what, name in found.items()}
    if pa.types.is_timestamp(held["time"].type):
        stamps = held.pop("time")
        held["microseconds"] = stamps.cast(pa.timestamp("us", tz=stamps.type.tz), safe=False).cast(pa.int64())
    cells = {what: column.to_pylist() for what, column in held.items()}
    if "geometry" in cells:
        geometries = shapely.from_wkb(np.array(cells.pop("geometry"), dtype=object), on_invalid="ignore")
        points = np.column_stack([shapely.get_x(geometries), shapely.get_y(geometries)])  # NaN for what is no point
        degrees = _in_degrees(points, table.schema.metadata or {}, found["geometry"])
        cells["longitude"], cells["latitude"] = degrees.T.tolist()
    for number, values in enumerate(zip(*cells.values(), strict=True), start=1):
        yield number, dict(zip(cells, values, strict=True))


def _in_degrees(points: FloatArray, metadata: Mapping[bytes, bytes], column: str) -> FloatArray:
    """Points in WGS 84, out of the system that the GeoParquet metadata names; none, the default, is WGS 84 degrees."""
    crs = json.loads(metadata.get(b"geo", b"{}")).get("columns", {}).get(column, {}).get("crs")
    if crs is None:
        return points
    from pyproj import CRS, Transformer

    system = CRS.from_user_input(crs)
    if system.equals(CRS("OGC:CRS84"), ignore_axis_order=True) or system.to_epsg() == 4326:
        return points
    return np.column_stack(Transformer.from_crs(system, "OGC:CRS84", always_xy=True).transform(*points.T))


_FORMATS: Mapping[str, tuple[Callable[[Document, Mapping[str, str]], Rows], str]] = {
    ".csv": (_rows_of_csv, "line"),
    ".tsv": (_rows_of_csv, "line"),
    ".geojson": (_rows_of_geojson, "feature"),
    ".json": (_rows_of_geojson, "feature"),
    ".parquet": (_rows_of_parquet, "row"),
    ".geoparquet": (_rows_of_parquet, "row"),
}
"""Extension → what takes the file apart, and what its records are called."""

SUFFIXES = frozenset(_FORMATS)
