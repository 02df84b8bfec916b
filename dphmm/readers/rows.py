"""Rows of tables of fixes: which columns they are read from, what a row says, and the rows of CSV and GeoJSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import shapely

from dphmm.errors import DataFileError
from dphmm.readers.fixes import FixCollector
from dphmm.tables.columns import find_column, listed
from dphmm.tables.delimited import csv_rows
from dphmm.tables.geojson import geometry_of, read_features
from dphmm.tables.source import Document
from dphmm.tables.values import as_number, parse_number, parse_time, plain_text

HELD = ("user", "time", "latitude", "longitude", "geometry")
"""What a column of a table of fixes may hold; `dphmm.tables.ALIASES` has the names that each is recognised by."""

Geometry = str | bytes | dict[str, Any] | None
"""A point as well-known text, well-known binary or a GeoJSON object, or none."""


class Row(NamedTuple):
    """One row of a table of any format, before it is checked.

    Parameters
    ----------
    number
        The line, feature or row, counted from one, for messages.
    user
        Whose fix it is; None where the table has no column of users.
    time
        An ISO 8601 text; any other type is refused.
    place
        Latitude and longitude, as texts or numbers, or a geometry alone.
    microseconds
        The time since 1970 in UTC, where the file holds timestamps proper.
    problem
        Why the row could not be taken apart; empty where it could.
    """

    number: int
    user: str | None = None
    time: object = None
    place: tuple[object, object] | Geometry = None
    microseconds: int | None = None
    problem: str = ""

    def add_to(self, collector: FixCollector, fallback: str) -> None:
        """Check the row and hand it on as a fix.

        Raises
        ------
        ValueError
            When the row is malformed; the message says how.
        """
        if self.problem:
            raise ValueError(self.problem)
        moment = self.microseconds if self.microseconds is not None else parse_time(self.time)
        if isinstance(self.place, tuple):
            latitude, longitude = _degrees(self.place[0], "latitude"), _degrees(self.place[1], "longitude")
        else:
            latitude, longitude = _point(self.place)
        collector.add(fallback if self.user is None else self.user, moment, latitude, longitude)


def _degrees(value: object, name: str) -> float:
    return parse_number(value, name) if isinstance(value, str) else as_number(value, name)


def _point(value: Geometry) -> tuple[float, float]:
    geometry = geometry_of(value)
    if not isinstance(geometry, shapely.Point) or geometry.is_empty:
        found = "missing" if geometry is None else f"a {'empty ' * geometry.is_empty}{geometry.geom_type}"
        raise ValueError(f"geometry is {found}; a fix needs a point")
    return float(geometry.y), float(geometry.x)


def resolve(names: Sequence[str], wanted: Mapping[str, str], source: str) -> dict[str, str]:
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


def rows_of_csv(document: Document, columns: Mapping[str, str]) -> Iterator[Row]:
    """The rows of a CSV file with a header; see `dphmm.tables.csv_rows`.

    Raises
    ------
    DataFileError
        When the file is no UTF-8 text, a quoted field is broken, or the header lacks a column.
    """
    lines = csv_rows(document)
    _, names = next(lines, (1, []))
    found = resolve(names, columns, document.source)
    index = {what: names.index(name) for what, name in found.items()}
    for number, fields in lines:
        yield _row(number, fields, len(names), index)


def _row(number: int, fields: list[str], count: int, index: Mapping[str, int]) -> Row:
    if len(fields) != count:
        return Row(number, problem=f"has {len(fields)} fields; the header has {count}")
    if "geometry" in index:
        place: tuple[str, str] | str = fields[index["geometry"]]
    else:
        place = (fields[index["latitude"]], fields[index["longitude"]])
    return Row(number, fields[index["user"]].strip() if "user" in index else None, fields[index["time"]], place)


def rows_of_geojson(document: Document, columns: Mapping[str, str]) -> Iterator[Row]:
    """The features of a GeoJSON collection, whose properties are the columns; see `dphmm.tables.read_features`.

    Raises
    ------
    DataFileError
        When the file is no such collection or lacks a property.
    """
    features = read_features(document)
    names = [*dict.fromkeys(name for feature in features for name in feature.properties), "geometry"]
    found = resolve(names, {"geometry": "geometry"} | dict(columns), document.source)
    for number, (table, geometry) in enumerate(features, start=1):
        user = plain_text(table.get(found["user"])) if "user" in found else None
        yield Row(number, user, table.get(found["time"]), geometry)
