"""Conversion of the columns of tables and data frames to fixes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import DataFileError, NotRecordingError, import_library
from dphmm.readers.fixes import (
    DETAIL_QUANTITIES,
    FIX_QUANTITIES,
    FixCollector,
    Fixes,
    ReadOptions,
    check_user,
    parse_user,
)
from dphmm.readers.instants import UNITS
from dphmm.readers.xml_tracks import WITHOUT_POSITION
from dphmm.space.fix_quality import parse_accuracy, parse_validity
from dphmm.space.trajectory import EARLIEST, LATEST, SENSORS
from dphmm.tables.table import TRIPS, find_column, join_names, normalize_column
from dphmm.tables.values import parse_number, with_decimal_point
from dphmm.tables.vector_files import parse_geometry

_LOG = logging.getLogger(__name__)

# Rows of any format: pairs of a number and a value. The number is that of a line, feature or row, counted from one. The
# value maps each column that is read to its cell, or is a string that states why the row could not be split. A
# timestamp replaces ``time``: under ``microseconds``, since 1970 in UTC, or under ``clock`` if it has no zone.
Rows = Iterator[tuple[int, Mapping[str, Any] | str]]


def collect(rows: Rows, unit: str, collector: FixCollector) -> None:
    """Collect the fixes in rows.

    Parameters
    ----------
    rows
        The rows, see `Rows`.
    unit
        The name of a row in messages: ``"line"``, ``"feature"`` or ``"row"``.
    collector
        Receives the fixes and the malformed rows.
    """
    for number, row in rows:
        try:
            _add(row, collector)
        except ValueError as problem:
            if unit == "line":
                collector.refuse(str(problem), number)
            else:
                collector.refuse(f"{unit} {number}: {problem}")


def _add(row: Mapping[str, Any] | str, collector: FixCollector) -> None:
    if isinstance(row, str):
        raise ValueError(row)
    microseconds = row.get("microseconds")
    instants = collector.options.instants
    is_recording = collector.options.is_recording
    if is_recording and all(row.get(name) in ("", None) for name in ("latitude", "longitude", "geometry")):
        collector.pass_over(WITHOUT_POSITION)
        return
    if microseconds is None and not (is_recording and row.get("time") in (None, "") and "clock" not in row):
        shown = row.get("clock")
        microseconds = instants.parse_microseconds(row.get("time")) if shown is None else instants.convert_clock(shown)
    if "geometry" in row:
        latitude, longitude = _parse_point(row["geometry"])
    else:
        latitude = _parse_degrees(row["latitude"], "latitude")
        longitude = _parse_degrees(row["longitude"], "longitude")
    user = parse_user(row["user"]) if "user" in row else None
    accuracy = parse_accuracy(row.get("accuracy"))
    is_valid = parse_validity(row.get("valid"))
    if not is_recording:
        collector.add(user, microseconds, latitude, longitude, accuracy, is_valid)
        return
    if "segment" in row:
        collector.start_segment(row["segment"], row.get("track", 0), row.get("activity"))
    elevation, *values = (_parse_optional(row.get(name), name) for name in ("elevation", *SENSORS))
    sensors = {name: value for name, value in zip(SENSORS, values, strict=True) if value == value}
    collector.add(user, microseconds, latitude, longitude, accuracy, is_valid, elevation, sensors)


def _parse_optional(value: object, name: str) -> float:
    """Return a number. NaN for a missing one."""
    return np.nan if value is None or value == "" else parse_number(value, name)


def _parse_degrees(value: object, what: str) -> float:
    try:
        return parse_number(value, what)
    except ValueError:
        return parse_number(with_decimal_point(value), what)


def _parse_point(value: object) -> tuple[float, float]:
    """Return latitude and longitude of a point: well-known text or binary, or GeoJSON."""
    geometry = parse_geometry(value, ("Point",))
    if geometry is None or geometry.is_empty:
        raise ValueError(f"geometry must be a point, got {'nothing' if geometry is None else 'an empty Point'}")
    return float(geometry.y), float(geometry.x)


def resolve(names: Sequence[str], source: str, options: ReadOptions, geometry: str | None = None) -> dict[str, str]:
    """Return the column of the file that contains each quantity.

    Latitude and longitude are preferred to a geometry, unless the caller names the geometry.

    Parameters
    ----------
    names
        The file's columns.
    source
        The file, for messages.
    options
        Names of columns and the user, as specified by the caller.
    geometry
        The column of geometries that the file's metadata name, if the caller names none.

    Returns
    -------
    dict
        Quantity, one of `FIX_QUANTITIES` → name of its column in the file.

    Raises
    ------
    DataFileError
        If a column that the caller named is missing, or no column contains times (except in a recording) or locations.
    """
    wanted = options.columns
    for name in wanted.values():
        if name not in names:
            raise DataFileError(source, f"has no column {name!r}; its columns are {join_names(names)}")
    recognised = {what: wanted.get(what) or find_column(names, what) for what in FIX_QUANTITIES}
    if geometry in names and "geometry" not in wanted:
        recognised["geometry"] = geometry
    columns = {what: name for what, name in recognised.items() if name is not None}
    degrees = {"latitude", "longitude"} <= set(columns)
    zone = find_zone_column(names)
    if zone is not None and not degrees and "geometry" not in columns:
        problem = f"has zones of taxis ({zone}) instead of coordinates"
        raise NotRecordingError(source, f"{problem}; use a file up to June 2016, which has coordinates")
    hemisphere = next((name for name in names if normalize_column(name) in _HEMISPHERES), None)
    if hemisphere is not None and degrees:
        problem = f"has hemispheres in {hemisphere!r}, which are not read"
        raise NotRecordingError(source, f"{problem}; write southern and western degrees as negative numbers")
    if options.is_recording:  # times may be missing
        details = {what: wanted.get(what) or find_column(names, what) for what in DETAIL_QUANTITIES}
        columns |= {what: name for what, name in details.items() if name is not None}
    elif "time" not in columns:
        problem = "has no column of times; name it with columns= (--column time=NAME), one of"
        raise NotRecordingError(source, f"{problem} {join_names(names)}")
    if not degrees and "geometry" not in columns:
        problem = "has no column of locations; name them with columns= (--column latitude=NAME), out of"
        raise NotRecordingError(source, f"{problem} {join_names(names)}")
    unread = {"geometry"} if degrees and "geometry" not in wanted else {"latitude", "longitude"}
    if options.user is None and "user" not in wanted and columns.get("user", "").strip().lower() == TRIPS:
        warn_of_trips(source, columns["user"])
    return {what: name for what, name in columns.items() if what not in unread}


_HEMISPHERES = ("n/s", "e/w")


def warn_of_times(columns: Mapping[str, str], names: Sequence[str], source: str, options: ReadOptions) -> None:
    """Log a warning if a recording has no recognized column of times, but other columns.

    Parameters
    ----------
    columns
        Quantity → column that is read, as `resolve` returns it.
    names
        The file's columns.
    source
        The file.
    options
        Options of the caller.
    """
    others = [name for name in names if name not in columns.values()]
    if options.is_recording and "time" not in columns and others:
        hint = "name it with --column time=NAME, if it is one of"
        _LOG.warning("dphmm: warning: %s: is read without times; %s %s", source, hint, join_names(others))


def find_zone_column(names: Sequence[str]) -> str | None:
    """Return the column with the zone in which a taxi of New York starts, or None."""
    return next((name for name in names if normalize_column(name) == "pulocationid"), None)


def warn_of_trips(source: str, name: str) -> None:
    """Log a warning that each trajectory of a column is treated as a separate user."""
    _LOG.warning(
        "dphmm: warning: %s: each %r is treated as a separate user; if users have several trajectories, name the "
        "column of users with columns = {user = NAME}: otherwise one budget is accounted as several",
        source,
        name,
    )


_LAST_OF_JANUARY_1970 = np.datetime64("1970-02-01", "us")


def warn_of_unit(fixes: Fixes, options: ReadOptions) -> None:
    """Log a warning if a unit of numeric times places all fixes in January 1970.

    Parameters
    ----------
    fixes
        The fixes of a file, or a part of them.
    options
        Options of the caller.
    """
    unit = options.instants.unit
    if unit is None or not fixes.times.size:
        return
    if np.datetime64(0, "us") <= fixes.times.min() and fixes.times.max() < _LAST_OF_JANUARY_1970:
        _LOG.warning(
            "dphmm: warning: %s: with time_format = %r all times are in January 1970; check the unit%s",
            fixes.source,
            unit,
            "" if unit == "s" else ", such as --time-format s",
        )


_FIRST, _LAST = (int(instant.astype(np.int64)) for instant in (EARLIEST, LATEST))
# Below 2**63 by a factor of two: converted times stay in the range of int64.
MAX_MICROSECONDS = 1 << 62


def build_fixes(cells: Mapping[str, Any], source: str, options: ReadOptions, rows: IntArray | None = None) -> Fixes:
    """Build fixes from whole columns as arrays, or row by row if a value requires it.

    Parameters
    ----------
    cells
        Quantity, as in `Rows` → an Arrow array or a list.
    source
        The file or data frame, for messages.
    options
        Options of the caller.
    rows
        ``(n,)``: the position of each row in the file, from 0. Defaults to the order of `cells`.

    Returns
    -------
    Fixes
        One fix for each row that is not skipped.

    Raises
    ------
    DataFileError
        For a malformed row, with its number from 1, unless it is skipped.
    """
    fixes = None if options.is_recording else _build_from_arrays(cells, source, options)
    if fixes is not None:
        return fixes
    collector = FixCollector(source, options)
    lists = [column if isinstance(column, list) else column.to_pylist() for column in cells.values()]
    numbers = range(1, len(lists[0]) + 1) if rows is None else (rows + 1).tolist()
    values = (dict(zip(cells, row, strict=True)) for row in zip(*lists, strict=True))
    collect(zip(numbers, values, strict=True), "row", collector)
    return collector.get_fixes()


def _build_from_arrays(cells: Mapping[str, Any], source: str, options: ReadOptions) -> Fixes | None:
    """Build the fixes with array operations. None if a value needs to be parsed separately."""
    pa = import_library("pyarrow", "files")
    try:
        cells = {what: pa.array(column) if isinstance(column, list) else column for what, column in cells.items()}
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    accuracy, is_valid = (cells.pop(what, None) for what in ("accuracy", "valid"))
    if not all(column is None or _is_number_or_flag(column.type) for column in (accuracy, is_valid)):
        return None
    numbers = [cells[what] for what in cells if what != "user"]
    user = options.user
    unit = options.instants.unit
    in_zone = "clock" in cells and options.instants.zone
    plain = all(pa.types.is_integer(column.type) or pa.types.is_floating(column.type) for column in numbers)
    if "geometry" in cells or not plain or any(column.null_count for column in numbers) or in_zone:
        return None
    latitude, longitude = (
        _convert_to_array(cells[what].cast(pa.float64(), safe=False)) for what in ("latitude", "longitude")
    )
    if "time" in cells:
        if unit is None or not pa.types.is_integer(cells["time"].type) or pa.types.is_uint64(cells["time"].type):
            return None
        counted = _convert_to_array(cells["time"].cast(pa.int64()))
        if counted.size and max(abs(int(counted.min())), abs(int(counted.max()))) > MAX_MICROSECONDS // UNITS[unit]:
            return None
        times = counted // 1000 if unit == "ns" else counted * UNITS[unit]
    else:
        times = _convert_to_array(
            next(cells[what] for what in ("microseconds", "clock") if what in cells).cast(pa.int64())
        )
    on_earth = ((np.abs(latitude) <= 90.0) & (np.abs(longitude) <= 180.0)).all()
    if not on_earth or ((times < _FIRST) | (times > _LAST)).any():
        return None
    owner = np.zeros(len(times), np.int64)
    names = [user]
    if user is None and "user" in cells:
        if not is_plain(cells["user"].type):
            return None
        owner, users = encode_users(cells["user"])
        names = list(users)
        try:
            for name in users:
                check_user(name)
        except ValueError:
            return None
    quality: dict[str, Any] = {}
    if accuracy is not None:
        quality["accuracy_m"] = _convert_to_floats(accuracy)
    if is_valid is not None:
        quality["is_valid"] = _convert_to_floats(is_valid) != 0  # a missing value is not a negation
    return Fixes(source, tuple(names), owner, times.astype("M8[us]"), latitude, longitude, **quality)


def _is_number_or_flag(kind: Any) -> bool:
    types = import_library("pyarrow", "files").types
    return any(getattr(types, f"is_{name}")(kind) for name in ("integer", "floating", "boolean", "null"))


def _convert_to_floats(column: Any) -> Any:
    """Return a column of numbers or flags as floats, NaN if missing."""
    values = (
        column.to_pylist()
        if column.null_count or import_library("pyarrow", "files").types.is_boolean(column.type)
        else None
    )
    if values is not None:
        return np.array([np.nan if value is None else float(value) for value in values])
    return _convert_to_array(column.cast(import_library("pyarrow", "files").float64(), safe=False))


def encode_users(column: Any) -> tuple[IntArray, list[str]]:
    """Return the index of each cell's user, ``(n,)``, and the names of the users.

    The name of a missing cell is empty.
    """
    pa = import_library("pyarrow", "files")
    coded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(coded, pa.ChunkedArray):  # of no chunks
        coded = pa.array([], column.type)
    coded = coded.dictionary_encode(null_encoding="encode")
    labels = [parse_user(value) for value in coded.dictionary.to_pylist()]
    names = list(dict.fromkeys(labels))
    place = {name: at for at, name in enumerate(names)}
    return np.array([place[name] for name in labels], dtype=np.int64)[_convert_to_array(coded.indices)], names


class UserIndex:
    """The users in the parts of a column, numbered in order of first occurrence.

    Arrow compares the cells of each part with those of previous parts, and Python handles each distinct cell once.

    Attributes
    ----------
    names
        The names of the users, as of `encode_users`.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._is_valid: list[bool] = []
        # The distinct cells of previous parts, and the user of each.
        self._cells: Any = None
        self._users = np.zeros(0, dtype=np.int64)

    def encode(self, column: Any) -> IntArray:
        """Return the number of each cell's user, ``(n,)``, and add users that are new.

        Parameters
        ----------
        column
            The next part of the column, an Arrow array of strings, bytes, numbers or booleans.

        Returns
        -------
        IntArray
            The numbers.
        """
        pa = import_library("pyarrow", "files")
        compute = import_library("pyarrow.compute", "files")
        if self._cells is None:
            self._cells = column.slice(0, 0)
        at = np.full(len(column), -1, dtype=np.int64)
        with suppress(pa.ArrowException):  # a type that Arrow cannot compare: all cells are handled as new
            at = _convert_to_array(compute.index_in(column, value_set=self._cells).fill_null(-1)).astype(np.int64)
        new = np.flatnonzero(at < 0)
        if len(new):
            coded = column.take(pa.array(new)).dictionary_encode(null_encoding="encode")
            at[new] = len(self._users) + _convert_to_array(coded.indices)
            users = [self._register_user(parse_user(value)) for value in coded.dictionary.to_pylist()]
            self._users = np.append(self._users, np.array(users, dtype=np.int64))
            self._cells = pa.concat_arrays([self._cells, coded.dictionary])
        return np.asarray(self._users[at])

    def are_valid(self, users: IntArray) -> bool:
        """Return whether the names of users are valid. See `dphmm.readers.fixes.check_user`."""
        return bool(np.array(self._is_valid, dtype=np.bool_)[users].all())

    def _register_user(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
            try:
                check_user(name)
                self._is_valid.append(True)
            except ValueError:
                self._is_valid.append(False)
        return number


def _convert_to_array(column: Any) -> Any:
    """Return a numeric Arrow column without missing values as an array."""
    # Through the buffer: Arrow's own conversion would import pandas.
    held = column.combine_chunks() if hasattr(column, "chunks") else column
    if hasattr(held, "chunks") or not len(held):
        return np.zeros(0, column.type.to_pandas_dtype())
    numbers = np.frombuffer(held.buffers()[1], held.type.to_pandas_dtype())
    return numbers[held.offset : held.offset + len(held)]


def is_plain(kind: Any) -> bool:
    """Return whether an Arrow type is one of strings, bytes, numbers or booleans."""
    types = import_library("pyarrow", "files").types
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "fixed_size_binary", "boolean", "null")
    return (
        types.is_integer(kind) or types.is_floating(kind) or any(getattr(types, f"is_{name}")(kind) for name in tests)
    )
