"""Tables of flows as rows: a number with its interval each, of cells, of levels and of sums over time or over areas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import IntArray
from dphmm.flows.noisy_tables import CELLS, NoisyTable, Numbers
from dphmm.flows.tables import KINDS, Table

KEYS = ("table", "level", "day", "area", "to", "class")
"""The columns of texts: which number a row has. A class is one of time, of stay times or of lengths."""

NUMBERS = ("count", "low", "high", "unbiased", "sure")
"""The columns of numbers: the whole number of which all sums agree, its interval, the estimate without bias, and
whether it is surely more than noise."""

EVERYWHERE = "everywhere"

SUMS: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "visits": (("area in all", ("area",)),),
    "flows": (("area in all", ("area", "to")), ("departures", ("area",)), ("arrivals", ("to",))),
}
"""Table → sums of its cells that have rows: what they are called, and over which columns they are not summed up."""


class _Part(NamedTuple):
    level: str
    labels: tuple[tuple[str, tuple[str, ...]], ...]
    numbers: Numbers


def rows_of(
    tables: Iterable[NoisyTable], relative_error: float | None = None, every_row: bool = False
) -> dict[str, Any]:
    """Columns of `KEYS` and `NUMBERS`: which of the numbers are there follows from noisy ones alone.

    Parameters
    ----------
    tables
        The tables.
    relative_error
        Leave out numbers that may be off by more than this share of themselves, all numbers of a level at once.
    every_row
        Whether to have rows of cells with a count of zero too.

    Returns
    -------
    dict
        Column → array.
    """
    found: dict[str, list[Any]] = {name: [] for name in (*KEYS, *NUMBERS)}
    for noisy in tables:
        for part in _parts(noisy):
            numbers = part.numbers
            shown = numbers.within(relative_error)
            if part.level == CELLS and not every_row:
                shown &= numbers.counts > 0
            rows = np.flatnonzero(shown)
            at = np.unravel_index(rows, [len(labels) for _, labels in part.labels])
            texts = dict.fromkeys(KEYS, np.full(len(rows), "", dtype=object))
            texts["table"], texts["level"] = (
                np.full(len(rows), one, dtype=object) for one in (noisy.table.name, part.level)
            )
            for (axis, labels), index in zip(part.labels, at, strict=True):
                texts["class" if axis == "time" else axis] = np.array(labels, dtype=object)[index]
            for name, column in texts.items():
                found[name].append(column)
            columns = (numbers.counts, numbers.low, numbers.high, numbers.estimates, numbers.sure)
            for name, column in zip(NUMBERS, columns, strict=True):
                found[name].append(column[rows])
    joined = {name: np.concatenate(parts) for name, parts in found.items()}
    return {
        name: column.astype(np.int64) if name in ("count", "low", "high") else column for name, column in joined.items()
    }


def _parts(noisy: NoisyTable) -> Iterator[_Part]:
    table = noisy.table
    whole = tuple(np.arange(size) for size in table.shape)
    for number, (name, parts) in enumerate(((CELLS, whole), *table.levels)):
        labels = tuple(
            (axis, _labels(table, axis, names, part)) for (axis, names), part in zip(table.axes, parts, strict=True)
        )
        yield _Part(name, labels, noisy.level(number))
    axes = dict(table.axes)
    for name, kept in SUMS.get(table.name, ()):
        kept = tuple(axis for axis in axes if axis in (*kept, "day"))
        if kept != tuple(axis for axis in axes if len(axes[axis]) > 1 or axis in kept):  # otherwise it is the cells
            yield _Part(name, tuple((axis, axes[axis]) for axis in kept), noisy.sums(sums_over(table, kept)))


def sums_over(table: Table, kept: Sequence[str]) -> csr_array:
    """The sums of a table's cells over all columns but some, ``(k, cells)``."""
    index, size = np.zeros(1, dtype=np.int64), 1
    for axis, names in table.axes:
        own = np.arange(len(names)) if axis in kept else np.zeros(len(names), dtype=np.int64)
        step = len(names) if axis in kept else 1
        index, size = (index[:, None] * step + own[None, :]).ravel(), size * step
    return csr_array((np.ones(len(index)), (index, np.arange(len(index)))), shape=(size, len(index)))


def _labels(table: Table, axis: str, names: tuple[str, ...], parts: IntArray) -> tuple[str, ...]:
    """What the parts of a column's labels are called."""
    count, areas = int(parts.max()) + 1, table.layout.areas
    if count == len(names):
        return names
    if axis in ("area", "to"):
        return areas.districts if count == len(areas.districts) > 1 else (EVERYWHERE,)
    ends = [np.flatnonzero(parts == number)[[0, -1]] for number in range(count)]
    return tuple(f"{names[first]} to {names[last]}" for first, last in ends)


def in_words(count: int, low: int, high: int) -> str:
    """A number with its interval, such as ``214 ± 31``.

    Examples
    --------
    >>> in_words(214, 183, 245), in_words(3, 0, 20)
    ('214 ± 31', '3 (0 to 20)')
    """
    return f"{count:,} ± {high - count:,}" if high - count == count - low else f"{count:,} ({low:,} to {high:,})"


def units_of(names: Iterable[str]) -> dict[str, str]:
    """Table → what it counts."""
    return {name: KINDS[name].unit for name in names}
