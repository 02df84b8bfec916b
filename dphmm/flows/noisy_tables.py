"""Tables of flows with noise: what each of them cost, the best estimates, intervals, whole numbers that agree.

Every cell of a table, and every sum of cells at its levels, gets exact discrete Laplace noise of scale (how many
events of a person count) / (its part of ε), also where nothing was counted. All else here is made of these numbers and
of what is public: estimates, intervals, which numbers are left out, whole numbers; and rows of them, a number with its
interval each, of cells, of levels and of sums over time or over areas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import inf, log, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.flows.areas import Areas
from dphmm.flows.forest import rounded_balanced
from dphmm.flows.tables import KINDS, Table
from dphmm.mechanisms.count_noise import CountNoise, laplace_variance, laplace_within

BOUNDS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200)
"""How many visits, or trips, of a person count at most, where that is chosen out of the budget."""

OF_BOUNDS = Fraction(1, 10)
"""The part of a budget that this choice takes."""

_ANY_ERROR = 1e100
"""A relative error beyond which no number is off; larger ones would overflow."""

MOST_BALANCED = 250_000
"""Tables of more cells than this are not balanced: the solver would take minutes."""

CELLS = "area"
"""The level of cells."""

_SHARES, _CELLS_WEIGHT = 20, 12.0
_FIRM = 100.0
_USUAL = 10.0
"""About as many events a person has at a guess."""


@dataclass(frozen=True)
class Bound:
    """How many events of a person count at most.

    Parameters
    ----------
    most
        The number.
    kept
        Which share of all events that is about, by noisy counts; None where the number was given.
    """

    most: int
    kept: float | None = None


def choose_bound(noise: CountNoise, unit: str, numbers: IntArray, epsilon: Fraction, cells: int, left: float) -> Bound:
    """How many events of a person count, by a noisy histogram of how many each person has.

    The bound for which what is lost by it, in the mean over cells, squared, and the noise of a cell, squared, have
    the least sum. A person is in one bin of the histogram, so that its sensitivity is 1.

    Parameters
    ----------
    noise
        Takes the price.
    unit
        What is counted.
    numbers
        How many events each person has; private.
    epsilon
        The price.
    cells
        Among how many cells most events are: public, such as a guess that follows from the number of areas.
    left
        What of epsilon the table has whose noise it is.

    Returns
    -------
    Bound
        A function of noisy and public numbers.
    """
    bins = np.bincount(np.searchsorted(BOUNDS, numbers, side="left"), minlength=len(BOUNDS) + 1)
    noisy = noise.add(f"bound of {unit}", bins, 1, epsilon)
    # How many people have more than each bound: where noise drowns it, as usual for that number of people.
    limits, scale = np.array(BOUNDS, dtype=np.float64), 1.0 / float(epsilon)
    people = max(float(noisy.sum()), scale, 1.0)
    counts = np.cumsum(noisy[::-1])[::-1][1:]
    usual = people * (1.0 + limits / _USUAL) ** -1.5
    trust = usual**2 / (usual**2 + 2.0 * scale**2 * np.arange(len(BOUNDS), 0, -1))
    above = np.minimum.accumulate(np.clip(trust * counts + (1.0 - trust) * usual, 0.0, people))
    lost = np.cumsum((above * np.append(np.diff(limits), limits[-1]))[::-1])[::-1]
    total = lost[0] + people * BOUNDS[0]
    price = (lost / cells) ** 2 + 2 * (limits / left) ** 2
    best = int(np.argmin(price))
    return Bound(BOUNDS[best], float(np.clip(1.0 - lost[best] / total, 0.0, 1.0)))


def level_shares(table: Table) -> tuple[Fraction, ...]:
    """Split a table's budget among its levels so that the product of their mean variances is smallest.

    The variance of the cells enters with the power `_CELLS_WEIGHT`, those of districts and of everything with the
    power 1: cells lose accuracy only if the sums gain far more, in proportion. The split depends on the numbers of
    nodes only, which are public.

    Parameters
    ----------
    table : Table
        The table.

    Returns
    -------
    tuple of Fraction
        One share per level, cells first. The shares sum to 1.
    """
    sizes = table.forest.sizes
    weights = [_CELLS_WEIGHT, *[1.0] * (len(sizes) - 1)]
    cuts = combinations(range(1, _SHARES), len(sizes) - 1)
    found = ([b - a for a, b in zip((0, *cut), (*cut, _SHARES), strict=True)] for cut in cuts)
    best = min(found, key=lambda parts: _log_variances(sizes, [one / _SHARES for one in parts], weights))
    return tuple(Fraction(one, _SHARES) for one in best)


def _log_variances(sizes: Sequence[int], shares: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted sum of the logarithms of the variances, as if all nodes of a level had equally many parts."""
    up, sums = [shares[0] ** -2], [0.0]
    for level in range(1, len(sizes)):
        sums.append(up[-1] * sizes[level - 1] / sizes[level])
        up.append(1.0 / (1.0 / sums[-1] + shares[level] ** 2))
    found = [up[-1]]
    for level in reversed(range(len(sizes) - 1)):
        part = up[level] / sums[level + 1]
        found.insert(0, up[level] * (1.0 - part) + part**2 * found[0])
    return sum(weight * log(one) for weight, one in zip(weights, found, strict=True))


@dataclass(frozen=True)
class Precision:
    """What noise a table gets, known before anything is counted.

    Parameters
    ----------
    table
        The table.
    most
        How many events of a person count at most.
    epsilon
        Its part of the budget.
    shares
        The part of that for each level, cells first.
    confidence
        Of intervals.
    """

    table: Table
    most: int
    epsilon: Fraction
    shares: tuple[Fraction, ...]
    confidence: float

    @property
    def decays(self) -> list[Fraction]:
        """By which factor e to the minus this the noise of each level falls a step."""
        return [self.epsilon * share / self.most for share in self.shares]

    @property
    def variances(self) -> list[float]:
        """Of the noise of each level."""
        return [laplace_variance(float(decay)) if decay else inf for decay in self.decays]

    def half_widths(self, variances: FloatArray, all_at_once: bool = False) -> FloatArray:
        """Half the widths of intervals around estimates of some variances, each by itself or all of them at once.

        A sum of independent Laplace noise with weights has lighter tails than one such noise of its variance, and
        heavier ones than a normal distribution, so that the wider of these intervals holds it. Where steps of one
        matter, half a step is added. A table of one level has the interval of its noise, to the unit.
        """
        outside = (1.0 - self.confidence) / (variances.size if all_at_once else 1)
        if len(self.shares) == 1 and np.allclose(variances, self.variances[0]):
            return np.full(variances.shape, float(laplace_within(float(self.decays[0]), 1.0 - outside)))
        factor = max(log(1.0 / outside) / sqrt(2.0), NormalDist().inv_cdf(1.0 - outside / 2))
        step = 0.5 if max(map(float, self.decays)) > 0.5 else 0.0
        return np.asarray(factor * np.sqrt(variances) + step)

    @property
    def expected(self) -> list[tuple[str, float]]:
        """Each level, and the mean half width of intervals there."""
        found = self.table.forest.variances(self.variances)
        names = (CELLS, *(name for name, _ in self.table.levels))
        return [(name, float(self.half_widths(one).mean())) for name, one in zip(names, found, strict=True)]


class Numbers(NamedTuple):
    """Numbers of one level of a table, or sums of its cells, ``(k,)`` each.

    Intervals are about what was counted of bounded contributions, none of which is negative. Where a count lies beyond
    an end of its own, that end is moved to it, so that intervals hold no less often than they say. Of many intervals
    some do not hold, those of the largest numbers above all; what is said of all numbers at once has no such fault.

    Parameters
    ----------
    counts
        Whole numbers that are not negative, of which all sums agree.
    estimates
        Without bias.
    low, high
        The ends of an interval for each number.
    sure
        Which are more than noise: that none of them is zero has at least the confidence of the intervals.
    off
        How far counts are off at most, all of them at once.
    """

    counts: FloatArray
    estimates: FloatArray
    low: FloatArray
    high: FloatArray
    sure: BoolArray
    off: FloatArray

    def within(self, relative_error: float | None) -> BoolArray:
        """Which counts are off by no more than this share of themselves, all of them at once; None for all."""
        if relative_error is None:
            return np.ones(len(self.counts), dtype=np.bool_)
        return np.asarray((self.counts > 0) & (self.off <= min(relative_error, _ANY_ERROR) * self.counts))


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A table that may be published; all of it follows from noisy numbers and public things.

    Parameters
    ----------
    precision
        Its noise.
    measured
        Of each level, cells first: true numbers of bounded contributions with noise.
    counts
        ``(cells,)``: whole numbers that are not negative, of which all sums agree.
    """

    precision: Precision
    measured: tuple[IntArray, ...]
    counts: IntArray

    @property
    def table(self) -> Table:
        """What was counted."""
        return self.precision.table

    @cached_property
    def estimates(self) -> list[FloatArray]:
        """Of every level, without bias."""
        known = [one.astype(np.float64) for one in self.measured]
        return self.table.forest.estimate(known, self.precision.variances)

    def level(self, number: int) -> Numbers:
        """The nodes of a level.

        Parameters
        ----------
        number
            0 for the cells.

        Returns
        -------
        Numbers
            Counts, estimates and intervals.
        """
        forest = self.table.forest
        variances = forest.variances(self.precision.variances)[number]
        return self._numbers(forest.totals(self.counts)[number], self.estimates[number], variances)

    def sums(self, weights: csr_array) -> Numbers:
        """Sums of cells, such as rows.

        Parameters
        ----------
        weights
            ``(k, cells)``: a sum a row.

        Returns
        -------
        Numbers
            ``(k,)`` of each.
        """
        variances = self.table.forest.variance_of(weights, self.precision.variances)
        return self._numbers(weights @ self.counts.astype(np.float64), weights @ self.estimates[0], variances)

    def _numbers(self, counts: FloatArray, estimate: FloatArray, variances: FloatArray) -> Numbers:
        half, half_of_all = (self.precision.half_widths(variances, all_at_once) for all_at_once in (False, True))
        low = np.maximum(np.ceil(estimate - half - 1e-9), 0.0)
        high = np.maximum(np.floor(estimate + half + 1e-9), 0.0)
        off = np.abs(counts - estimate) + half_of_all
        return Numbers(counts, estimate, np.minimum(low, counts), np.maximum(high, counts), estimate > half_of_all, off)


def add_noise(noise: CountNoise, precision: Precision, true: IntArray, balanced: bool = False) -> NoisyTable:
    """A table of true cells with noise, paid for.

    Parameters
    ----------
    noise
        Takes the price.
    precision
        How much noise.
    true
        ``(cells,)``: what was counted of bounded contributions; private.
    balanced
        Whether as many trips are to leave each area as get there, over a day or in all.

    Returns
    -------
    NoisyTable
        May be published.

    Raises
    ------
    BudgetError
        As `CountNoise.add`.
    ConfigurationError
        For a table that is too large to be balanced.
    """
    table, forest = precision.table, precision.table.forest
    if balanced and forest.sizes[0] > MOST_BALANCED:
        raise ConfigurationError(
            f"table {table.name} has {forest.sizes[0]:,} cells, and at most {MOST_BALANCED:,} can be balanced; take "
            "fewer areas, or leave --balanced out"
        )
    measured = []
    for level, (nodes, share) in enumerate(zip(forest.totals(true), precision.shares, strict=True)):
        whole = nodes.astype(np.int64)
        name = table.name if level == 0 else f"{table.name} by {table.levels[level - 1][0]}"
        noisy = noise.add(name, whole, precision.most, precision.epsilon * share) if share else np.zeros_like(whole)
        measured.append(noisy)
    known = [one.astype(np.float64) for one in measured]
    made = NoisyTable(precision, tuple(measured), np.zeros_like(measured[0]))
    # Numbers that are surely more than noise give way less: otherwise they would pay for what is clipped at zero.
    variances: list[float | FloatArray] = list(precision.variances)
    variances[0] = np.where(made.level(0).sure, precision.variances[0] / _FIRM, precision.variances[0])
    if balanced:
        out, into = ends_of(table)
        counts = rounded_balanced(forest.balanced(known, variances, out, into), out, into)
    else:
        counts = forest.rounded(forest.nonnegative(known, variances))
    return replace(made, counts=counts)


def ends_of(table: Table) -> tuple[IntArray, IntArray]:
    """Of each cell of a table between areas, ``(cells,)``: where it leads from and to, areas of each day apart."""
    names = [name for name, _ in table.axes]
    at = np.indices(table.shape, dtype=np.int64).reshape(len(names), -1)
    n = len(table.layout.areas)
    day = at[names.index("day")] * n if "day" in names else 0
    return day + at[names.index("area")], day + at[names.index("to")]


def dealt(epsilon: Fraction, split: Mapping[str, Fraction], names: Sequence[str]) -> dict[str, Fraction]:
    """A budget dealt among tables by weights, 1 where none is said."""
    weights = {name: split.get(name, Fraction(1)) for name in names}
    return {name: epsilon * weight / sum(weights.values()) for name, weight in weights.items()}


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
        for level, axes, numbers in _parts(noisy):
            shown = numbers.within(relative_error)
            if level == CELLS and not every_row:
                shown &= numbers.counts > 0
            rows = np.flatnonzero(shown)
            at = np.unravel_index(rows, [len(labels) for _, labels in axes])
            said = {**dict.fromkeys(KEYS, ""), "table": noisy.table.name, "level": level}
            columns: dict[str, Any] = {name: np.full(len(rows), text, dtype=object) for name, text in said.items()}
            for (axis, labels), index in zip(axes, at, strict=True):
                columns["class" if axis == "time" else axis] = np.array(labels, dtype=object)[index]
            whole = (one[rows].astype(np.int64) for one in (numbers.counts, numbers.low, numbers.high))
            columns |= zip(NUMBERS, (*whole, numbers.estimates[rows], numbers.sure[rows]), strict=True)
            for name, column in columns.items():
                found[name].append(column)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _parts(noisy: NoisyTable) -> Iterator[tuple[str, Sequence[tuple[str, tuple[str, ...]]], Numbers]]:
    """The name of each level and each sum, its columns with their labels, and its numbers."""
    table = noisy.table
    whole = tuple(np.arange(size) for size in table.shape)
    for number, (name, parts) in enumerate(((CELLS, whole), *table.levels)):
        pairs = zip(table.axes, parts, strict=True)
        yield (
            name,
            [(axis, _labels(table.layout.areas, names, part)) for (axis, names), part in pairs],
            noisy.level(number),
        )
    axes = dict(table.axes)
    for name, kept in SUMS.get(table.name, ()):
        kept = tuple(axis for axis in axes if axis in (*kept, "day"))
        if kept != tuple(axis for axis in axes if len(axes[axis]) > 1 or axis in kept):  # otherwise it is the cells
            yield name, [(axis, axes[axis]) for axis in kept], noisy.sums(sums_over(table, kept))


def sums_over(table: Table, kept: Sequence[str]) -> csr_array:
    """The sums of a table's cells over all columns but some, ``(k, cells)``."""
    index, size = np.zeros(1, dtype=np.int64), 1
    for axis, names in table.axes:
        own = np.arange(len(names)) if axis in kept else np.zeros(len(names), dtype=np.int64)
        step = len(names) if axis in kept else 1
        index, size = (index[:, None] * step + own[None, :]).ravel(), size * step
    return csr_array((np.ones(len(index)), (index, np.arange(len(index)))), shape=(size, len(index)))


def _labels(areas: Areas, names: tuple[str, ...], parts: IntArray) -> tuple[str, ...]:
    """Return the labels of a column at a level: its own, those of the districts, or `EVERYWHERE`."""
    count = int(parts.max()) + 1
    if count == len(names):
        return names
    return areas.districts if count == len(areas.districts) > 1 else (EVERYWHERE,)


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
