"""Fixes out of whole columns, of files and of frames alike; what needs to be looked at by itself is left to rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import need
from dphmm.readers.fixes import Fixes, check_user
from dphmm.readers.instants import UNITS, Instants
from dphmm.space.trajectory import EARLIEST, LATEST
from dphmm.tables.values import plain_text

_FIRST, _LAST = (int(instant.astype(np.int64)) for instant in (EARLIEST, LATEST))
_LARGEST = 1 << 62


def whole_columns(cells: Mapping[str, Any], source: str, user: str | None, instants: Instants) -> Fixes | None:
    """The fixes, by arrays alone; None where a value needs to be looked at by itself.

    Parameters
    ----------
    cells
        What a column holds, as of `dphmm.readers.rows.Rows`, → an array of Arrow; ``latitude`` and ``longitude`` among
        them.
    source
        The file or frame, as messages name it.
    user
        Whose the fixes are, where the caller says so.
    instants
        How times are to be understood.
    """
    pa = need("pyarrow", "files")
    numbers = [cells[what] for what in cells if what != "user"]
    unit = instants.unit
    plain = all(pa.types.is_integer(one.type) or pa.types.is_floating(one.type) for one in numbers)
    if not plain or any(one.null_count for one in numbers) or ("clock" in cells and instants.zone):
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
    """For each cell the index of its person, ``(n,)``, and the people's names; an empty one for none."""
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
    """Whether the values of a type of Arrow are texts, bytes, numbers or truths."""
    types = need("pyarrow", "files").types
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "fixed_size_binary", "boolean", "null")
    return types.is_integer(kind) or types.is_floating(kind) or any(getattr(types, f"is_{one}")(kind) for one in tests)
