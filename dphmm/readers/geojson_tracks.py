"""GeoJSON with times, sequences of it, batches of Overland, and rows in JSON.

GeoJSON is RFC 7946, and sequences are RFC 8142. A feature is a point, with its time and user among its properties; or a
line or several points, with a list of times: the property ``coordTimes``, as togeojson writes it,
``coordinateProperties.times``, ``times`` or ``timestamps``. Other lists under ``coordinateProperties`` are accuracies,
validity and sensors. The accuracy and the validity of a feature are those of all its points. The third coordinate is
the elevation.

Rows are objects with the names of the columns of tables, one a line or in a list: what ``dphmm release`` reads from
standard input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeGuard

from dphmm.errors import DataFileError
from dphmm.readers.column_conversion import Rows, collect, resolve, warn_of_times
from dphmm.readers.fixes import FixCollector, Fixes, ReadOptions
from dphmm.readers.xml_tracks import get_activity
from dphmm.space.trajectory import SENSORS
from dphmm.tables.json_toml import JsonItems
from dphmm.tables.source import Document
from dphmm.tables.table import find_column
from dphmm.tables.values import shorten
from dphmm.tables.vector_files import is_wgs84

_LISTS = ("features", "locations")
_TIMES = ("coordTimes", "times", "timestamps", "coordinateProperties")
_OTHER_SHAPES = ("Polygon", "MultiPolygon", "GeometryCollection")
_DEPTHS: Mapping[str, int] = {"Point": 0, "MultiPoint": 1, "LineString": 1, "MultiLineString": 2}


class _Columns:
    """The columns of rows that may have different keys.

    Parameters
    ----------
    source
        The file.
    options
        Options of the caller.
    """

    def __init__(self, source: str, options: ReadOptions) -> None:
        self._source = source
        self._options = options
        self.is_recording = options.is_recording
        self._by_names: dict[tuple[str, ...], dict[str, str]] = {}
        self._first: dict[str, str] | None = None

    def select(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the cells of a row by quantity."""
        names = tuple(row)
        columns = self._by_names.get(names)
        if columns is None:
            columns = self._resolve(names)
            if len(self._by_names) < _MAX_LAYOUTS:
                self._by_names[names] = columns
        return {what: row.get(name) for what, name in columns.items()}

    def _resolve(self, names: tuple[str, ...]) -> dict[str, str]:
        # The first row must have all columns, so that the message names them. A later one may lack some.
        if self._first is None:
            self._first = resolve(names, self._source, self._options)
            warn_of_times(self._first, names, self._source, self._options)
            return self._first
        try:
            return resolve(names, self._source, self._options)
        except DataFileError:
            return {what: find_column(names, what) or name for what, name in self._first.items()}


_MAX_LAYOUTS = 1000
_PART_ROWS = 1 << 12


def read_json_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the fixes in the rows of a file in JSON.

    Parameters
    ----------
    document
        Objects, one a line or in a list, with the columns of a table.
    options
        Options of the caller.

    Yields
    ------
    Fixes
        All rows.

    Raises
    ------
    DataFileError
        If the file is not JSON, lacks a column, or contains a malformed row (unless skipped).
    """
    columns = _Columns(document.source, options)

    def iterate_rows() -> Rows:
        for number, (_, row) in enumerate(JsonItems(document).walk(()), start=1):
            yield number, columns.select(row) if isinstance(row, dict) else f"must be an object, got {shorten(row)}"

    yield from _collect_in_blocks(iterate_rows(), "row", document, options)


def read_geojson_fixes(document: Document, options: ReadOptions) -> Iterator[Fixes]:
    """Yield the points of the features of a GeoJSON file.

    Parameters
    ----------
    document
        A feature collection, a feature, a geometry, a sequence of them, or a batch of Overland.
    options
        Options of the caller. For a recording, points without times are read too.

    Yields
    ------
    Fixes
        All points.

    Raises
    ------
    DataFileError
        If the file is not GeoJSON in WGS 84, has no times, or contains a malformed feature (unless skipped).
    """
    dropped: set[str] = set()
    rows = _read_feature_rows(document, options, dropped)
    yield from _collect_in_blocks(rows, "feature", document, options, dropped)


def _collect_in_blocks(
    rows: Rows, unit: str, document: Document, options: ReadOptions, dropped: set[str] | None = None
) -> Iterator[Fixes]:
    collector = FixCollector(document.source, options)
    while part := list(islice(rows, _PART_ROWS)):
        collect(iter(part), unit, collector)
        yield from collector.flush()
    collector.drop(*(dropped or ()))
    yield collector.get_fixes()


def _read_feature_rows(document: Document, options: ReadOptions, dropped: set[str]) -> Rows:
    columns = _Columns(document.source, replace(options, columns={"geometry": "geometry", **options.columns}))
    number = 0
    for key, item in JsonItems(document).walk(_LISTS):
        if not isinstance(item, dict):
            number += 1
            yield number, f"must be an object, got {shorten(item)}"
            continue
        kind = item.get("type")
        if key or kind == "Feature":
            number += 1
            yield from _read_feature(item, number, columns, dropped)
        elif isinstance(kind, str) and kind in (*_DEPTHS, *_OTHER_SHAPES):
            number += 1
            yield from _read_feature({"geometry": item}, number, columns, dropped)
        elif not is_wgs84(item.get("crs")):
            reason = "is in another reference system than WGS 84; export it in EPSG:4326"
            raise DataFileError(document.source, reason)


def _read_feature(feature: Mapping[str, Any], number: int, columns: _Columns, dropped: set[str]) -> Rows:
    properties, geometry = feature.get("properties") or {}, feature.get("geometry")
    if geometry is None and columns.is_recording:
        dropped.add("features without a geometry")
        return
    if not isinstance(properties, dict) or not isinstance(geometry, dict):
        yield number, "must have a geometry and properties, which are objects"
        return
    kind = geometry.get("type")
    if not isinstance(kind, str) or kind not in _DEPTHS:
        yield number, f"geometry must be a {', '.join(_DEPTHS)}, got {shorten(kind)}"
        return
    coordinates = geometry.get("coordinates")
    if kind == "Point" and not any(isinstance(properties.get(name), list) for name in _TIMES):
        row = columns.select({**properties, "geometry": geometry})
        if isinstance(coordinates, list) and len(coordinates) > 2 and row.get("elevation") is None:
            row["elevation"] = coordinates[2]
        # Numbers need no geometry. Any other value is described by the error of its geometry.
        if "geometry" in row and _are_numbers(coordinates):
            del row["geometry"]
            row["longitude"], row["latitude"] = coordinates[:2]
        dropped.update(f"{name} of features" for name in properties if name not in row.values() and name in _PERSONAL)
        yield number, row
        return
    # A line of one point is written as a Point.
    parts = [[coordinates]] if kind == "Point" else [coordinates] if _DEPTHS[kind] == 1 else coordinates
    yield from _read_line(properties, parts, number, columns, dropped)


def _are_numbers(coordinates: object) -> TypeGuard[list[float]]:
    if not isinstance(coordinates, list) or len(coordinates) not in (2, 3):
        return False
    # Some apps write null for an unknown elevation.
    numbers = coordinates[:2] if coordinates[2:] == [None] else coordinates
    return all(isinstance(number, float | int) for number in numbers)


_QUALITY = ("accuracy", "valid")
_PERSONAL = ("name", "description", "wifi", "device_id", "desc", "title")


def _read_line(properties: Mapping[str, Any], parts: Any, number: int, columns: _Columns, dropped: set[str]) -> Rows:
    """Yield a row for each position of a line, several lines or several points."""
    lists: dict[str, Any] = {}
    for name in _TIMES:
        held = properties.get(name)
        if isinstance(held, dict):
            lists |= held
        elif isinstance(held, list):
            lists.setdefault("times", held)
    names = {what: find_column(lists, what) for what in (*_QUALITY, *SENSORS)}
    columns_of_points = {what: lists[name] for what, name in names.items() if name is not None}
    if isinstance(lists.get("times"), list):
        columns_of_points["time"] = lists["times"]
    elif not columns.is_recording:
        yield number, "has no times; a line needs a list of them, coordTimes (only 'dphmm hide' reads it without)"
        return
    user = find_column(properties, "user")
    activity = properties.get("activity") or properties.get("type")
    shared: dict[str, Any] = {} if user is None else {"user": properties[user]}
    for what in _QUALITY:
        of_feature = find_column(properties, what)
        if of_feature is not None:
            shared[what] = properties[of_feature]
            columns_of_points.setdefault(what, properties[of_feature])  # used if it is a list
    shared |= {"track": number - 1, "activity": get_activity(activity if isinstance(activity, str) else None)}
    dropped.update(f"{name} of features" for name in properties if name in _PERSONAL)
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        yield number, "coordinates must be a list of positions"
        return
    for at, part in enumerate(parts):
        values = {
            what: held[at] if at < len(held) and isinstance(held[at], list) else held
            for what, held in columns_of_points.items()
            if isinstance(held, list)
        }
        wrong = next((what for what, held in values.items() if len(held) != len(part)), None)
        if wrong is not None:
            yield number, f"has {len(part)} positions, but {len(values[wrong])} values of {wrong}"
            continue
        for index, position in enumerate(part):
            if not isinstance(position, list) or len(position) < 2:
                yield number, f"a position must be a list of numbers, got {shorten(position)}"
                continue
            row = {"longitude": position[0], "latitude": position[1], "time": None, **shared, "segment": (number, at)}
            row |= {what: held[index] for what, held in values.items()}
            if len(position) > 2:
                row["elevation"] = position[2]
            yield number, row
