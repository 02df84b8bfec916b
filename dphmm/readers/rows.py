"""What rows of tables have in common, in files of any format and in frames: their columns, and what a row says."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dphmm.errors import ConfigurationError, DataFileError
from dphmm.readers.fixes import FixCollector
from dphmm.readers.instants import Instants
from dphmm.tables.columns import TRIPS, find_column, listed
from dphmm.tables.geojson import geometry_of
from dphmm.tables.values import parse_number, plain_text

_LOG = logging.getLogger(__name__)

HELD = ("user", "time", "latitude", "longitude", "geometry")
"""What a column of a table of fixes may hold; `dphmm.tables.ALIASES` has the names that each is recognised by."""

Rows = Iterator[tuple[int, Mapping[str, Any] | str]]
"""Rows of any format: the number of a line, feature or row, counted from one; and what each of its columns that are
read holds, or, as a text, why it could not be taken apart. A time proper stands in place of ``time`` under
``microseconds``, since 1970 in UTC, or, where it does not say its zone, under ``clock``."""


def check_columns(columns: Mapping[str, str] | None) -> None:
    """Refuse columns that hold something else than the five.

    Raises
    ------
    ConfigurationError
        Naming them.
    """
    unknown = set(columns or {}) - set(HELD)
    if unknown:
        raise ConfigurationError(f"columns name {sorted(unknown)}; what a column may hold is one of {sorted(HELD)}")


def collect(rows: Rows, unit: str, collector: FixCollector, instants: Instants) -> None:
    """Collect what rows say; of a malformed one with its number among the lines, features or rows, as `unit` has it."""
    for number, row in rows:
        try:
            _add(row, collector, instants)
        except ValueError as problem:
            if unit == "line":
                collector.refuse(str(problem), number)
            else:
                collector.refuse(f"{unit} {number}: {problem}")


def _add(row: Mapping[str, Any] | str, collector: FixCollector, instants: Instants) -> None:
    if isinstance(row, str):
        raise ValueError(row)
    moment = row.get("microseconds")
    if moment is None:
        shown = row.get("clock")
        moment = instants.microseconds(row.get("time")) if shown is None else instants.of_clock(shown)
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


def resolve(names: Sequence[str], wanted: Mapping[str, str], source: str, user: str | None = None) -> dict[str, str]:
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
    user
        Whose the fixes are, where the caller says so.

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
    if user is None and "user" not in wanted and found.get("user", "").strip().lower() == TRIPS:
        warn_of_trips(source, found["user"])
    return {what: name for what, name in found.items() if what not in unread}


def warn_of_trips(source: str, name: str) -> None:
    """Say in the log, which the command shows, that a column of trajectories is taken for one of people."""
    _LOG.warning(
        "dphmm: warning: %s: each %r is taken for a person; where people have several, name the column of people with "
        "--column user=NAME: otherwise what is spent on one of them is counted as if they were many",
        source,
        name,
    )
