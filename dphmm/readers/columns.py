"""What the columns of a table are called, and what a row of one says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import shapely

from dphmm.errors import DataFileError
from dphmm.readers.fixes import FixCollector, parse_number, parse_time, shorten

NAMES: Mapping[str, tuple[str, ...]] = {
    "user": ("user_id", "uid", "user"),
    "time": ("tracked_at", "datetime", "timestamp", "time"),
    "latitude": ("latitude", "lat"),
    "longitude": ("longitude", "lon", "lng", "long"),
    "geometry": ("geometry", "geom"),
}
"""What a column holds → the names that it is recognised by, in any case; the first that occurs wins."""

Geometry = str | bytes | dict[str, Any] | None
"""A point as well-known text, well-known binary or a GeoJSON object, or none."""


@dataclass(frozen=True)
class Row:
    """One row of a table of any format, before it is checked.

    Parameters
    ----------
    number
        The line, feature or row, counted from one, for messages.
    user
        Whose fix it is; None where the table has no column of users.
    time
        An ISO 8601 text; any other type is refused.
    microseconds
        The time since 1970 in UTC, where the file holds timestamps proper.
    place
        Latitude and longitude, as texts or numbers, or a geometry alone.
    problem
        Why the row could not be taken apart; empty where it could.
    """

    number: int
    user: object = None
    time: object = None
    microseconds: int | None = None
    place: tuple[object, object] | Geometry = None
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
        moment = self.microseconds if self.microseconds is not None else _moment(self.time)
        if isinstance(self.place, tuple):
            latitude, longitude = _degrees(self.place[0], "latitude"), _degrees(self.place[1], "longitude")
        else:
            latitude, longitude = _point(self.place)
        collector.add(fallback if self.user is None else str(self.user), moment, latitude, longitude)


def _moment(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError(f"time is {shorten(str(value))}; give an ISO 8601 text such as 2009-10-11T14:04:30Z")
    return parse_time(value)


def _degrees(value: object, name: str) -> float:
    if isinstance(value, str):
        return parse_number(value, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shorten(str(value))}; give a decimal number")
    return float(value)


def _point(value: Geometry) -> tuple[float, float]:
    try:
        if isinstance(value, str):
            geometry = shapely.from_wkt(value)
        elif isinstance(value, bytes):
            geometry = shapely.from_wkb(value)
        else:
            geometry = None if value is None else shapely.from_geojson(json.dumps(value))
    except shapely.errors.GEOSException:
        raise ValueError(f"geometry is {shorten(str(value))}, which does not read; a fix needs a point") from None
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
    lower = {name.strip().lower(): name for name in reversed(names)}
    found = {}
    for what, known in NAMES.items():
        if what in wanted:
            if wanted[what] not in names:
                raise DataFileError(source, f"has no column {wanted[what]!r}; its columns are {_listed(names)}")
            found[what] = wanted[what]
        elif any(name in lower for name in known):
            found[what] = next(lower[name] for name in known if name in lower)
    degrees = {"latitude", "longitude"} <= set(found)
    if "time" not in found:
        raise DataFileError(source, f"has no column of times; say which of {_listed(names)} it is with columns=")
    if not degrees and "geometry" not in found:
        raise DataFileError(source, f"has no column of places; say which of {_listed(names)} they are with columns=")
    unread = {"geometry"} if degrees and "geometry" not in wanted else {"latitude", "longitude"}
    return {what: name for what, name in found.items() if what not in unread}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "no columns"
