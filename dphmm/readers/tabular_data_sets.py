"""Layouts of public tables: T-Drive, Foursquare, Porto and taxis of New York.

Names of columns do not determine them.

==============================  ========================================================================================
T-Drive                         No header: taxi, time, longitude, latitude (Yuan et al., ACM SIGSPATIAL GIS 2010). The
                                longitudes are those of Beijing, which cannot be latitudes.
Foursquare, New York and Tokyo  No header, separated by tabs: user, venue, two columns of its category, latitude,
                                longitude, minutes from UTC, time in UTC (Yang et al., IEEE Trans. SMC 45(1), 2015).
Porto                           A trip per row: ``TIMESTAMP`` is its start in seconds since 1970, and ``POLYLINE`` a
                                list of longitudes and latitudes 15 s apart (ECML/PKDD 2015 challenge).
Taxis of New York               A trip per row with time and place of its start and its end. The user is the medallion.
==============================  ========================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dphmm.errors import DataFileError
from dphmm.readers.fixes import ReadOptions
from dphmm.readers.instants import Instants
from dphmm.tables.json_toml import parse_json
from dphmm.tables.table import find_column, join_names, normalize_column
from dphmm.tables.values import parse_number, shorten, with_decimal_point

# Quantity → cell of a row.
Cells = Mapping[str, Any]


class Layout(NamedTuple):
    """The columns of a table and the fixes in its rows.

    Attributes
    ----------
    columns
        Quantity → index of its column, from 0.
    has_header
        Whether the first line is a header rather than a row.
    split
        Function from the cells of a row to its fixes, each in the form of `dphmm.readers.column_conversion.Rows`; it
        may raise `ValueError`. None if a row is a fix.
    """

    columns: Mapping[str, int]
    has_header: bool = True
    split: Callable[[Cells], Iterable[Cells]] | None = None


def find_numbered(first: Sequence[str], source: str, options: ReadOptions) -> Layout | None:
    """Return the layout of a table if the caller numbers its columns from 1. None otherwise.

    Parameters
    ----------
    first
        The cells of the first line.
    source
        The file, for messages.
    options
        Options of the caller.

    Raises
    ------
    DataFileError
        If there is no column of such a number, or the numbers do not include a time and a location.
    """
    wanted = options.columns
    numbers = [name for name in wanted.values() if name.isdecimal() and name.isascii()]
    # A header may have columns that are named by numbers. Then all of them are in it.
    if not wanted or len(numbers) < len(wanted) or set(numbers) <= set(first):
        return None
    columns = {what: int(name) - 1 for what, name in wanted.items()}
    for what, at in columns.items():
        if not 0 <= at < len(first):
            raise DataFileError(source, f"has {len(first)} columns, got number {at + 1} for {what!r}")
    has_place = {"latitude", "longitude"} <= set(columns) or "geometry" in columns
    if "time" not in columns or not has_place:
        raise DataFileError(
            source, f"needs numbers for time and latitude, longitude or geometry, got {join_names(list(wanted))}"
        )
    degrees = [first[at] for what, at in columns.items() if what in ("latitude", "longitude")]
    return Layout(columns, has_header=not any(map(_is_number, degrees)))


_TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"
_NUMBER = r"-?\d{1,3}(?:\.\d+)?"
_T_DRIVE = re.compile(rf"\d+,{_TIME},{_NUMBER},{_NUMBER}", re.ASCII)
_ZERO = r"-?0{1,3}(?:\.0+)?"
_T_DRIVE_WITHOUT_FIX = re.compile(rf"\d+,{_TIME},{_ZERO},{_ZERO}", re.ASCII)
# The pattern of the first line of Foursquare's check-ins, which are encoded in Latin-1.
FOURSQUARE = re.compile(
    rb"\d+\t[0-9a-f]{24}\t[^\t]*\t[^\t]*\t-?\d+\.\d+\t-?\d+\.\d+\t-?\d+\t"
    rb"\w{3} \w{3} \d\d \d\d:\d\d:\d\d \+0000 \d{4}\r?$"
)


def has_no_fix(row: Sequence[str]) -> bool:
    """Return whether a row is one of T-Drive at 0, 0: the receiver had no fix.

    Parameters
    ----------
    row
        Its cells.
    """
    return _T_DRIVE_WITHOUT_FIX.fullmatch(",".join(row)) is not None


def find_unnamed(rows: Sequence[Sequence[str]]) -> Layout | None:
    """Return the layout of a public table without a header. None for other tables.

    Parameters
    ----------
    rows
        The cells of its first lines, at least of one; of all lines if each of these satisfies `has_no_fix`.
    """
    first = rows[0]
    if _T_DRIVE.fullmatch(",".join(first)):
        degrees = [row[2:4] for row in rows if _T_DRIVE.fullmatch(",".join(row))]
        # Only degrees beyond 90 distinguish longitude, latitude from the more common latitude, longitude.
        longest, other_longest = (max(abs(float(cell)) for cell in column) for column in zip(*degrees, strict=True))
        # A taxi without a fix has no coordinates to mistake for each other.
        if longest > _MAX_LATITUDE >= other_longest or all(map(has_no_fix, rows)):
            return Layout({"user": 0, "time": 1, "longitude": 2, "latitude": 3}, has_header=False)
    if len(first) == 8 and FOURSQUARE.fullmatch("\t".join(first).encode()):
        return Layout({"user": 0, "latitude": 4, "longitude": 5, "time": 7}, has_header=False)
    return None


_MAX_LATITUDE = 90.0


def find_trips(names: Sequence[str], options: ReadOptions) -> Layout | None:
    """Return the layout of a table of trips. None if its header is another one.

    Parameters
    ----------
    names
        The header.
    options
        Options of the caller. Named columns of users replace those of the layout. If other columns are named, the table
        is not one of trips.
    """
    if set(options.columns) - {"user"}:
        return None
    places = {normalize_column(name): at for at, name in enumerate(names)}
    user = names.index(options.columns["user"]) if options.columns.get("user") in names else None
    if {"polyline", "timestamp"} <= set(places):
        owner = places.get("taxi_id") if user is None else user
        columns = {"user": owner, "time": places["timestamp"], "line": places["polyline"]}
        columns["missing"] = places.get("missing_data")
        return Layout({what: at for what, at in columns.items() if at is not None}, split=_split_porto)
    for begin, end, *quantities in _RIDES:
        times = [
            next((places[name] for name in _RIDE_TIMES.get(part, ()) if name in places), None) for part in (begin, end)
        ]
        ends = [places.get(f"{part}_{what}") for part in (begin, end) for what in quantities]
        if None not in (*times, *ends):
            owner = next((places[name] for name in _RIDE_USERS if name in places), None) if user is None else user
            keys = ("time", "latitude", "longitude", "end time", "end latitude", "end longitude")
            at = (times[0], *ends[:2], times[1], *ends[2:])
            columns = dict(zip(keys, at, strict=True)) | {"user": owner}
            return Layout({what: at for what, at in columns.items() if at is not None}, split=_split_ride)
    return None


# Prefixes of the start and the end of a ride, and the names of latitude and longitude.
_RIDES = (("pickup", "dropoff", "latitude", "longitude"), ("start", "end", "lat", "lon"))
_RIDE_TIMES = {
    "pickup": ("tpep_pickup_datetime", "lpep_pickup_datetime", "pickup_datetime"),
    "dropoff": ("tpep_dropoff_datetime", "lpep_dropoff_datetime", "dropoff_datetime"),
    "start": ("trip_pickup_datetime",),
    "end": ("trip_dropoff_datetime",),
}
_RIDE_USERS = ("medallion",)

# Time between two points of a trip in Porto.
_PORTO_MICROSECONDS = 15_000_000


def _split_porto(row: Cells) -> Iterable[Cells]:
    if str(row.get("missing", "")).strip().lower() == "true":
        raise ValueError("MISSING_DATA is True, so the times of the points are unknown")
    start = Instants(format="s").parse_microseconds(row["time"])
    try:
        line = parse_json(row["line"])
        places = [(longitude + 0.0, latitude + 0.0) for longitude, latitude in line]
    except (ValueError, TypeError):
        raise ValueError(f"POLYLINE must be a list of longitudes and latitudes, got {shorten(row['line'])}") from None
    user = {"user": row["user"]} if "user" in row else {}
    return [
        {**user, "microseconds": start + at * _PORTO_MICROSECONDS, "longitude": longitude, "latitude": latitude}
        for at, (longitude, latitude) in enumerate(places)
    ]


def _split_ride(row: Cells) -> Iterable[Cells]:
    user = {"user": row["user"]} if "user" in row else {}
    for prefix in ("", "end "):
        yield {**user, **{what: row[prefix + what] for what in ("time", "latitude", "longitude")}}


def looks_like_row(first: Sequence[str]) -> bool:
    """Return whether a first line contains numbers and no recognised name of a column."""
    is_known = any(
        find_column(first, what) is not None for what in ("user", "time", "latitude", "longitude", "geometry")
    )
    return not is_known and any(map(_is_number, first))


def _is_number(cell: str) -> bool:
    try:
        parse_number(with_decimal_point(cell), "a cell")
    except ValueError:
        return False
    return True
