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

A table without a user column does not say whose fixes it holds. Times are ISO 8601 texts or, in Parquet, timestamps;
one with a zone is converted to UTC, one without is taken as UTC. Numbers are refused as times: nothing says whether
they count seconds or milliseconds. Coordinates are WGS 84 degrees; a GeoParquet geometry in another reference system is
converted. All other columns are left unread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, DataFileError, need
from dphmm.readers.fixes import FixCollector, Fixes
from dphmm.tables.columns import find_column, listed
from dphmm.tables.delimited import csv_rows
from dphmm.tables.geojson import geometry_kind, geometry_of, read_features
from dphmm.tables.json_text import parse_json
from dphmm.tables.parquet import read_parquet
from dphmm.tables.source import Document, suffix_of
from dphmm.tables.values import one_line, parse_number, parse_time, plain_text, shorten

HELD = ("user", "time", "latitude", "longitude", "geometry")
"""What a column of a table of fixes may hold; `dphmm.tables.ALIASES` has the names that each is recognised by."""

Rows = Iterator[tuple[int, Mapping[str, Any] | str]]
"""Rows of any format: the number of a line, feature or row, counted from one; and what each of its columns that are
read holds, or, as a text, why it could not be taken apart. A time proper stands under ``microseconds``, since 1970 in
UTC, in place of ``time``."""


def fixes(
    document: Document, skip_bad: bool, user: str | None, columns: Mapping[str, str] | None = None
) -> Iterator[Fixes]:
    """The rows of a table; by default of the users that it names, where it names any.

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
    for number, row in take_apart(document, columns or {}):
        try:
            _add(row, collector)
        except ValueError as problem:
            if unit == "line":
                collector.refuse(str(problem), number)
            else:
                collector.refuse(f"{unit} {number}: {problem}")
    yield collector.fixes()


def _add(row: Mapping[str, Any] | str, collector: FixCollector) -> None:
    if isinstance(row, str):
        raise ValueError(row)
    moment = row.get("microseconds")
    if moment is None:
        moment = parse_time(row.get("time"))
    if "geometry" in row:
        latitude, longitude = _point(row["geometry"])
    else:
        latitude, longitude = parse_number(row["latitude"], "latitude"), parse_number(row["longitude"], "longitude")
    collector.add(plain_text(row["user"]).strip() if "user" in row else None, moment, latitude, longitude)


def _point(value: object) -> tuple[float, float]:
    """Latitude and longitude of a point as well-known text, well-known binary or a GeoJSON object."""
    geometry = geometry_of(value, ("Point",))
    if geometry is None or geometry.is_empty:
        raise ValueError(f"geometry is {'missing' if geometry is None else 'an empty Point'}; a fix needs a point")
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
        try:
            held["microseconds"] = stamps.cast(pa.timestamp("us", tz=stamps.type.tz), safe=False).cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataFileError(document.source, f"has times in {found['time']!r} beyond the year 9999") from None
    for what, column in held.items():
        if not _is_plain(pa.types, column.type):
            raise DataFileError(document.source, f"holds {column.type} values in {found[what]!r}, which is no {what}")
    cells = {what: column.to_pylist() for what, column in held.items()}
    if "geometry" in cells:
        binaries = [value if geometry_kind(value) == "Point" else None for value in cells.pop("geometry")]
        geometries = shapely.from_wkb(np.array(binaries, dtype=object), on_invalid="ignore")
        geometries[shapely.is_empty(geometries)] = None
        points = np.column_stack([shapely.get_x(geometries), shapely.get_y(geometries)])  # NaN for what is no point
        degrees = _in_degrees(points, table.schema.metadata or {}, found["geometry"], document)
        cells["longitude"], cells["latitude"] = degrees.T.tolist()
    for number, values in enumerate(zip(*cells.values(), strict=True), start=1):
        yield number, dict(zip(cells, values, strict=True))


def _is_plain(types: Any, kind: Any) -> bool:
    """Whether the values of a type of Arrow are texts, bytes, numbers or truths."""
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "fixed_size_binary", "boolean", "null")
    return types.is_integer(kind) or types.is_floating(kind) or any(getattr(types, f"is_{one}")(kind) for one in tests)


def _in_degrees(points: FloatArray, metadata: Mapping[bytes, bytes], column: str, document: Document) -> FloatArray:
    """Points in WGS 84, out of the system that the GeoParquet metadata names; none, the default, is WGS 84 degrees."""
    try:
        crs = parse_json(metadata.get(b"geo", b"{}")).get("columns", {}).get(column, {}).get("crs")
        if crs is None:
            return points
        if not (isinstance(crs, dict) or (isinstance(crs, str) and _CRS.match(crs))):  # PROJ would look into files
            raise ValueError(f"crs is {shorten(crs)}, no PROJJSON")
        from pyproj import CRS, Transformer
        from pyproj.exceptions import ProjError

        try:
            system = CRS.from_user_input(crs)
            if system.equals(CRS("OGC:CRS84"), ignore_axis_order=True) or system.to_epsg() == 4326:
                return points
            return np.column_stack(Transformer.from_crs(system, "OGC:CRS84", always_xy=True).transform(*points.T))
        except ProjError as problem:
            raise ValueError(one_line(problem)) from None
    except (ValueError, AttributeError) as problem:
        reason = f"says in no known way which reference system it is in ({one_line(problem)})"
        raise DataFileError(document.source, f"{reason}; write it anew in EPSG:4326") from None


_CRS = re.compile(r"(?:EPSG|OGC|ESRI|IAU_\d{4}):\w{1,20}$|\s*[A-Z]{4,12}(?:CRS|CS|CRS\d)?\s*\[", re.ASCII)
"""The texts for reference systems that earlier versions of GeoParquet had: an authority's code, or well-known text."""

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
