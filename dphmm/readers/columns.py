"""From columns of tables and frames to fixes: which column holds what, and what a row or a whole column says."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import DataFileError, need
from dphmm.readers.fixes import HELD, FixCollector, Fixes, ReadOptions, check_user
from dphmm.readers.instants import UNITS
from dphmm.space.trajectory import EARLIEST, LATEST
from dphmm.tables.table import TRIPS, find_column, listed
from dphmm.tables.values import parse_number, plain_text
from dphmm.tables.vector_files import geometry_of

_LOG = logging.getLogger(__name__)

Rows = Iterator[tuple[int, Mapping[str, Any] | str]]
"""Rows of any format: the number of a line, feature or row, counted from one; and what each of its columns that are
read holds, or, as a text, why it could not be taken apart. A time proper stands in place of ``time`` under
``microseconds``, since 1970 in UTC, or, where it does not say its zone, under ``clock``."""


def collect(rows: Rows, unit: str, collector: FixCollector) -> None:
    """Collect the fixes in rows.

    Parameters
    ----------
    rows
        The rows, see `Rows`.
    unit
        What a row is called in messages: ``"line"``, ``"feature"`` or ``"row"``.
    collector
        What takes the fixes and malformed rows.
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
    moment, instants = row.get("microseconds"), collector.options.instants
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


def resolve(names: Sequence[str], source: str, options: ReadOptions) -> dict[str, str]:
    """Find what each column that is to be read holds.

    Latitude and longitude are preferred to a geometry, unless the caller names the geometry.

    Parameters
    ----------
    names
        The file's columns.
    source
        The file, for messages.
    options
        What the caller says of columns and of whose the fixes are.

    Returns
    -------
    dict
        What a column holds → its name in the file.

    Raises
    ------
    DataFileError
        When a column that the caller named is not there, or no column holds times or places.
    """
    wanted = options.columns
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
    if options.user is None and "user" not in wanted and found.get("user", "").strip().lower() == TRIPS:
        warn_of_trips(source, found["user"])
    return {what: name for what, name in found.items() if what not in unread}


def warn_of_trips(source: str, name: str) -> None:
    """Warn in the log, which the command shows, that a column of trajectories is taken for one of people."""
    _LOG.warning(
        "dphmm: warning: %s: each %r is taken for a person; where people have several, name the column of people with "
        "--column user=NAME: otherwise what is spent on one of them is counted as if they were many",
        source,
        name,
    )


_FIRST, _LAST = (int(instant.astype(np.int64)) for instant in (EARLIEST, LATEST))
_LARGEST = 1 << 62


def fixes_of_columns(
    cells: Mapping[str, Any], source: str, options: ReadOptions, rows: IntArray | None = None
) -> Fixes:
    """Make fixes out of whole columns, by arrays; row by row where a value needs to be looked at by itself.

    Parameters
    ----------
    cells
        What a column holds, as of `Rows`, → an array of Arrow, or a list.
    source
        The file or frame, as messages name it.
    options
        What the caller says of them.
    rows
        ``(n,)``: where each row stands in the file, from 0; left out, in this order.

    Returns
    -------
    Fixes
        A fix for each row that is not skipped.

    Raises
    ------
    DataFileError
        For a malformed row, unless it is skipped; with its number, from 1.
    """
    found = _by_arrays(cells, source, options)
    if found is not None:
        return found
    collector = FixCollector(source, options)
    lists = [column if isinstance(column, list) else column.to_pylist() for column in cells.values()]
    numbers = range(1, len(lists[0]) + 1) if rows is None else (rows + 1).tolist()
    values = (dict(zip(cells, row, strict=True)) for row in zip(*lists, strict=True))
    collect(zip(numbers, values, strict=True), "row", collector)
    return collector.fixes()


def _by_arrays(cells: Mapping[str, Any], source: str, options: ReadOptions) -> Fixes | None:
    """Make the fixes by arrays alone; None where Arrow does not take the values, or one needs a look by itself."""
    pa = need("pyarrow", "files")
    try:
        cells = {what: pa.array(column) if isinstance(column, list) else column for what, column in cells.items()}
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    numbers = [cells[what] for what in cells if what != "user"]
    user, unit, in_zone = options.user, options.instants.unit, "clock" in cells and options.instants.zone
    plain = all(pa.types.is_integer(one.type) or pa.types.is_floating(one.type) for one in numbers)
    if "geometry" in cells or not plain or any(one.null_count for one in numbers) or in_zone:
        return None
    latitude, longitude = (_numbers(cells[what].cast(pa.float64(), safe=False)) for what in ("latitude", "longitude"))
    if "time" in cells:
        if unit is None or not pa.types.is_integer(cells["time"].type) or pa.types.is_uint64(cells["time"].type):
            return None
        counted = _numbers(cells["time"].cast(pa.int64()))
        if counted.size and max(abs(int(counted.min())), abs(int(counted.max()))) > _LARGEST // UNITS[unit]:
            return None
        times = counted // 1000 if unit == "ns" else counted * UNITS[unit]
    else:
        times = _numbers(next(cells[what] for what in ("microseconds", "clock") if what in cells).cast(pa.int64()))
    on_earth = ((np.abs(latitude) <= 90.0) & (np.abs(longitude) <= 180.0)).all()
    if not on_earth or ((times < _FIRST) | (times > _LAST)).any():
        return None
    owner, names = np.zeros(len(times), np.int64), [user]
    if user is None and "user" in cells:
        if not is_plain(cells["user"].type):
            return None
        owner, found = people_of(cells["user"])
        names = list(found)
        try:
            for name in found:
                check_user(name)
        except ValueError:
            return None
    return Fixes(source, tuple(names), owner, times.astype("M8[us]"), latitude, longitude)


def people_of(column: Any) -> tuple[IntArray, list[str]]:
    """Return the index of each cell's person, ``(n,)``, and the people's names; an empty one where there is none."""
    pa = need("pyarrow", "files")
    coded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(coded, pa.ChunkedArray):  # of no chunks
        coded = pa.array([], column.type)
    coded = coded.dictionary_encode(null_encoding="encode")
    said = [plain_text(value).strip() for value in coded.dictionary.to_pylist()]
    names = list(dict.fromkeys(said))
    place = {name: at for at, name in enumerate(names)}
    return np.array([place[name] for name in said], dtype=np.int64)[_numbers(coded.indices)], names


def _numbers(column: Any) -> Any:
    """Whole or floating numbers of which none is missing, as an array; by itself Arrow would load pandas for it."""
    held = column.combine_chunks() if hasattr(column, "chunks") else column
    if hasattr(held, "chunks") or not len(held):
        return np.zeros(0, column.type.to_pandas_dtype())
    numbers = np.frombuffer(held.buffers()[1], held.type.to_pandas_dtype())
    return numbers[held.offset : held.offset + len(held)]


def is_plain(kind: Any) -> bool:
    """Return whether the values of an Arrow type are texts, bytes, numbers or booleans."""
    types = need("pyarrow", "files").types
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "fixed_size_binary", "boolean", "null")
    return types.is_integer(kind) or types.is_floating(kind) or any(getattr(types, f"is_{one}")(kind) for one in tests)
