"""Flow tables with noise: epsilon spent, estimates, intervals and consistent integers.

Every cell of a table, and every sum of cells at its levels, gets exact discrete Laplace noise of scale (maximum number
of events per user) / (its part of ε), including empty cells. Everything else is post-processing of these noisy numbers
and public data: estimates, intervals, integers, the selection of rows, and rows of cells, levels and sums over time or
areas.

Rows are selected by their noisy numbers, so intervals that hold for each number separately would fail for many rows.
All intervals of a file hold simultaneously instead, and therefore those of any selection of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import exp, inf, log, log1p, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.flows.area_hierarchy import round_balanced
from dphmm.flows.areas import Areas
from dphmm.flows.tables import TABLE_TYPES, Table
from dphmm.mechanisms.discrete_laplace import CountNoise, bound_laplace_noise, laplace_variance

# Candidate maximum numbers of visits or trips per user, if the budget chooses it.
CANDIDATE_BOUNDS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200)

# Fraction of the budget spent on this choice.
BOUND_FRACTION = Fraction(1, 10)

# From this decay of discrete Laplace noise on, its tails and those of sums differ from continuous ones: at 3.8 and 6.7
# all intervals of a file held in 92 and 82 % of files instead of 95 %.
_MAX_CONTINUOUS_DECAY = 3.0
_TINY = 1e-300  # instead of a variance that is zero by underflow
# Larger relative errors include every number and would overflow.
_MAX_RELATIVE_ERROR = 1e100

# Maximum number of cells of a balanced table. The solver would take minutes for more.
MAX_BALANCED_CELLS = 250_000

# The level of cells.
CELL_LEVEL = "area"

_NUM_SHARES = 20
_CELLS_WEIGHT = 12.0
_SIGNIFICANT_VARIANCE_DIVISOR = 100.0
# Guess of the number of events per user.
_TYPICAL_NUM_EVENTS = 10.0


def choose_bound(noise: CountNoise, unit: str, numbers: IntArray, epsilon: Fraction, cells: int, left: float) -> int:
    """Choose the maximum number of events per user from a noisy histogram.

    The bound minimises the sum of the squared mean loss per cell and the squared noise of a cell. Each user is in one
    bin of the histogram. Therefore its sensitivity is 1.

    Parameters
    ----------
    noise
        Takes the price.
    unit
        What is counted.
    numbers
        Number of events of each user. Private.
    epsilon
        The price.
    cells
        Number of cells that contain most events: public, such as a guess from the number of areas.
    left
        Epsilon of the table's cells.

    Returns
    -------
    int
        The bound, a function of noisy and public numbers.
    """
    bins = np.bincount(np.searchsorted(CANDIDATE_BOUNDS, numbers, side="left"), minlength=len(CANDIDATE_BOUNDS) + 1)
    noisy = noise.add(f"bound of {unit}", bins, 1, epsilon)
    # Number of users above each bound; if noise dominates, a typical value for this number of users.
    limits = np.array(CANDIDATE_BOUNDS, dtype=np.float64)
    scale = 1.0 / float(epsilon)
    num_users = max(float(noisy.sum()), scale, 1.0)
    counts = np.cumsum(noisy[::-1])[::-1][1:]
    usual = num_users * (1.0 + limits / _TYPICAL_NUM_EVENTS) ** -1.5
    trust = usual**2 / (usual**2 + 2.0 * scale**2 * np.arange(len(CANDIDATE_BOUNDS), 0, -1))
    above = np.minimum.accumulate(np.clip(trust * counts + (1.0 - trust) * usual, 0.0, num_users))
    lost = np.cumsum((above * np.append(np.diff(limits), limits[-1]))[::-1])[::-1]
    price = (lost / cells) ** 2 + 2 * (limits / left) ** 2
    return CANDIDATE_BOUNDS[int(np.argmin(price))]


def split_budget_by_level(table: Table) -> tuple[Fraction, ...]:
    """Split a table's budget among its levels.

    The product of the levels' mean variances is minimised. The variance of the cells enters with the power
    `_CELLS_WEIGHT`, those of districts and of everything with the power 1. Cells lose accuracy only if the sums gain
    far more, in proportion. The split depends on the numbers of nodes only, which are public.

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
    cuts = combinations(range(1, _NUM_SHARES), len(sizes) - 1)
    candidates = ([b - a for a, b in zip((0, *cut), (*cut, _NUM_SHARES), strict=True)] for cut in cuts)
    best = min(candidates, key=lambda parts: _sum_log_variances(sizes, [part / _NUM_SHARES for part in parts], weights))
    return tuple(Fraction(part, _NUM_SHARES) for part in best)


def _sum_log_variances(sizes: Sequence[int], shares: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sum of log variances, assuming equal branching per level."""
    up = [shares[0] ** -2]
    sums = [0.0]
    for level in range(1, len(sizes)):
        sums.append(up[-1] * sizes[level - 1] / sizes[level])
        up.append(1.0 / (1.0 / sums[-1] + shares[level] ** 2))
    variances = [up[-1]]
    for level in reversed(range(len(sizes) - 1)):
        part = up[level] / sums[level + 1]
        variances.insert(0, up[level] * (1.0 - part) + part**2 * variances[0])
    return sum(weight * log(variance) for weight, variance in zip(weights, variances, strict=True))


@dataclass(frozen=True)
class Family:
    """The numbers of a file, with intervals that hold simultaneously.

    Parameters
    ----------
    num_values
        Number of numbers at all levels and sums of all tables, with one for the remaining numbers of each of them.
    num_parts
        Number of levels and sums of all tables.
    """

    num_values: int
    num_parts: int

    @classmethod
    def from_tables(cls, tables: Iterable[Table]) -> Family:
        """Return the family of all numbers of tables."""
        sizes = [part.num_values for table in tables for part in get_parts(table)]
        return cls(sum(sizes), len(sizes))

    def compute_miss_probability(self, num_values: int, confidence: float) -> float:
        """Return the probability with which the interval of one number may fail.

        Half of the total is split evenly over all numbers, and half over the levels, so that few sums do not get the
        wide intervals of many cells. The union bound holds for any dependence of the numbers.

        Parameters
        ----------
        num_values
            Number of numbers at the level of the number.
        confidence
            Probability with which all intervals hold.

        Returns
        -------
        float
            The probability.
        """
        return (1.0 - confidence) * (0.5 / self.num_values + 0.5 / (self.num_parts * num_values))


@dataclass(frozen=True)
class Precision:
    """The noise of a table, known before counting.

    Parameters
    ----------
    table
        The table.
    max_events
        Maximum number of events per user.
    epsilon
        Budget of the table.
    shares
        Fraction of the budget of each level, cells first.
    confidence
        Probability with which all intervals of the file hold.
    family
        The numbers of the file.
    """

    table: Table
    max_events: int
    epsilon: Fraction
    shares: tuple[Fraction, ...]
    confidence: float
    family: Family

    @cached_property
    def decays(self) -> list[Fraction]:
        """Decay rate of the noise per unit at each level: epsilon over sensitivity."""
        return [self.epsilon * share / self.max_events for share in self.shares]

    @cached_property
    def variances(self) -> list[float]:
        """Variance of the noise of each level."""
        return [laplace_variance(float(decay)) if decay else inf for decay in self.decays]

    @cached_property
    def level_variances(self) -> list[FloatArray]:
        """Variances of the estimates of every level."""
        return self.table.forest.compute_level_variances(self.variances)

    @cached_property
    def _variances_by_columns(self) -> dict[tuple[str, ...], FloatArray]:
        # Every level and sum of a table needs the variances of its total.
        return {}

    def compute_sum_variances(self, columns: Sequence[str], weights: csr_array) -> FloatArray:
        """Return the variances of sums of the estimated cells, computed once.

        Parameters
        ----------
        columns
            The columns that are kept.
        weights
            Their `build_sum_matrix`, ``(k, cells)``.

        Returns
        -------
        FloatArray
            ``(k,)``.
        """
        key = tuple(columns)
        if key not in self._variances_by_columns:
            self._variances_by_columns[key] = self.table.forest.compute_sum_variances(weights, self.variances)
        return self._variances_by_columns[key]

    def compute_miss_probability(self, part: Part) -> float:
        """Return the probability with which the interval of one number of a level or sum may fail."""
        return self.family.compute_miss_probability(part.num_values, self.confidence)

    def compute_half_widths(self, variances: FloatArray, miss_probability: float) -> FloatArray:
        """Return half widths of intervals for estimates with these variances.

        A weighted sum of independent Laplace noise has lighter tails than Laplace noise of the same variance and
        heavier tails than a normal distribution. Therefore the wider of both intervals is used. Half a step is added if
        unit steps matter. If the noise is mostly zero, this approximation fails, and Chernoff's bound for discrete
        noise is used. A table with one level uses the exact interval of its noise.
        """
        if len(self.shares) == 1 and np.allclose(variances, self.variances[0]):
            return np.full(variances.shape, float(bound_laplace_noise(float(self.decays[0]), 1.0 - miss_probability)))
        factor = max(log(1.0 / miss_probability) / sqrt(2.0), NormalDist().inv_cdf(1.0 - miss_probability / 2))
        largest = max(map(float, self.decays))
        step = 0.5 if largest > 0.5 else 0.0
        widths = np.asarray(factor * np.sqrt(variances) + step)
        if largest > _MAX_CONTINUOUS_DECAY:
            return np.maximum(widths, self._bound_sums(variances, miss_probability))
        return widths

    def _bound_sums(self, variances: FloatArray, miss_probability: float) -> FloatArray:
        """Return Chernoff bounds of weighted sums with these variances, with weights of at most 1.

        The cumulant K of discrete Laplace noise grows at least quadratically: ``K(s w) <= (w / m)² K(s m)`` for weights
        w of at most m. A sum with variance V has weights of at most ``m = min(1, sqrt(V / v))`` for noise of variance
        v. Its cumulant at s is therefore at most V times the largest ``K(s m) / (m² v)`` over the levels.
        """
        decays = np.array([[float(decay)] for decay in self.decays if decay])
        level_variances = np.array([[max(laplace_variance(decay), _TINY)] for decay in decays[:, 0].tolist()])
        variances = np.maximum(variances, _TINY)
        weights = np.minimum(1.0, np.sqrt(variances / level_variances))
        largest_rates = (decays / weights).min(axis=0)  # a cumulant is infinite from the decay on
        bounds = np.full(variances.shape, inf)
        for share in np.linspace(0.04, 0.98, 24).tolist():
            rates = share * largest_rates
            ahead, behind = rates * weights - decays, -rates * weights - decays
            cumulants = 2 * np.log1p(-np.exp(-decays)) - np.log1p(-np.exp(ahead)) - np.log1p(-np.exp(behind))
            growth = (cumulants / (weights**2 * level_variances)).max(axis=0)
            bounds = np.minimum(bounds, (log(2 / miss_probability) + growth * variances) / rates)
        return bounds

    @property
    def expected(self) -> list[tuple[str, float]]:
        """Each level with the largest half width of its intervals."""
        variances = self.level_variances
        parts = [part for part in get_parts(self.table) if part.level is not None]
        return [
            (part.name, float(self.compute_half_widths(level_variances, self.compute_miss_probability(part)).max()))
            for part, level_variances in zip(parts, variances, strict=True)
        ]


class Numbers(NamedTuple):
    """Numbers of one level of a table, or sums of its cells, ``(k,)`` each.

    Intervals are for sums of bounded contributions, which are non-negative. All intervals of a file hold
    simultaneously. If a count lies outside its interval, the interval is extended to it.

    Parameters
    ----------
    counts
        Non-negative integers with consistent sums.
    estimates
        Estimates without the constraint, unbiased before rows are selected.
    low, high
        Bounds of an interval for each number.
    off
        Bounds on the errors of the counts.
    """

    counts: FloatArray
    estimates: FloatArray
    low: FloatArray
    high: FloatArray
    off: FloatArray

    @property
    def is_significant(self) -> BoolArray:
        """Mask of numbers with an interval that excludes zero."""
        return np.asarray(self.low > 0)

    def find_accurate_counts(self, relative_error: float | None) -> BoolArray:
        """Return a mask of counts with a small relative error. None for all."""
        if relative_error is None:
            return np.ones(len(self.counts), dtype=np.bool_)
        return np.asarray((self.counts > 0) & (self.off <= min(relative_error, _MAX_RELATIVE_ERROR) * self.counts))


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A publishable table, a function of noisy numbers and public data.

    Parameters
    ----------
    precision
        The noise of the table.
    measured
        Noisy numbers of bounded contributions of each level, cells first.
    counts
        ``(cells,)`` non-negative integers with consistent sums.
    """

    precision: Precision
    measured: tuple[IntArray, ...]
    counts: IntArray

    @property
    def table(self) -> Table:
        """The table's layout and unit."""
        return self.precision.table

    @cached_property
    def estimates(self) -> list[FloatArray]:
        """Unbiased estimates of every level."""
        measured = [level.astype(np.float64) for level in self.measured]
        return self.table.forest.estimate(measured, self.precision.variances)

    def numbers(self, part: Part) -> Numbers:
        """Return counts, estimates and intervals of a level or sum.

        Parameters
        ----------
        part
            The level or sum.

        Returns
        -------
        Numbers
            ``(k,)``: one number of each row of the level or sum. All intervals of a file hold simultaneously.
        """
        forest = self.table.forest
        if part.level is None:
            counts, estimates, variances = self._sum_over_columns(part.columns)
        else:
            counts = forest.sum_levels(self.counts)[part.level]
            estimates = self.estimates[part.level]
            variances = self.precision.level_variances[part.level]
        half = self.precision.compute_half_widths(variances, self.precision.compute_miss_probability(part))
        low, high = _round_inwards(estimates - half, estimates + half)
        off = np.abs(counts - estimates) + half
        return Numbers(counts, estimates, np.minimum(low, counts), np.maximum(high, counts), off)

    def compute_remainder(self, part: Part, numbers: Numbers, shown: BoolArray) -> Numbers:
        """Return the sum of the numbers of a level that are not shown, per day.

        The shown numbers are selected by their noise, and so is this sum. Its interval holds for any selection. It is
        the intersection of two intervals: the total less the intervals of all shown numbers, and, for a level with
        independent noise, the total less their noisy counts, with a bound on the sum of any so many noises; see
        `bound_largest_noises`.

        Parameters
        ----------
        part
            The level or sum.
        numbers
            Its numbers.
        shown
            ``(k,)`` mask of the numbers that are shown.

        Returns
        -------
        Numbers
            ``(d,)``: one number a day, or of all days.
        """
        days = self.table.layout.days or 1
        counts, totals, variances = self._sum_over_columns(["day"])
        miss = self.precision.compute_miss_probability(part)
        half = self.precision.compute_half_widths(variances, miss / 2)

        def sum_shown(values: Any) -> FloatArray:
            return np.asarray(np.where(shown, values, 0.0).reshape(days, -1).sum(axis=1))

        low = totals - half - sum_shown(numbers.high)
        high = totals + half - sum_shown(numbers.low)
        if part.level is not None:
            per_day = len(shown) // days
            decay = float(self.precision.decays[part.level])
            num_shown = shown.reshape(days, -1).sum(axis=1).tolist()
            bounds = np.array([bound_largest_noises(decay, per_day, count, miss / 2) for count in num_shown])
            rests = totals - sum_shown(self.measured[part.level])
            low = np.maximum(low, rests - half - bounds)
            high = np.minimum(high, rests + half + bounds)
        low, high = _round_inwards(low, high)
        counts = counts - sum_shown(numbers.counts)
        estimates = totals - sum_shown(numbers.estimates)
        low, high = np.minimum(low, counts), np.maximum(high, counts)
        return Numbers(counts, estimates, low, high, np.maximum(high - counts, counts - low))

    def _sum_over_columns(self, columns: Sequence[str]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return counts, estimates and variances of the sums over all columns except these."""
        weights = build_sum_matrix(self.table, columns)
        variances = self.precision.compute_sum_variances(columns, weights)
        return weights @ self.counts.astype(np.float64), weights @ self.estimates[0], variances


def _round_inwards(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the smallest and the largest non-negative integer of intervals."""
    return np.maximum(np.ceil(low - 1e-9), 0.0), np.maximum(np.floor(high + 1e-9), 0.0)


def bound_largest_noises(decay: float, count: int, num_selected: int, miss_probability: float) -> float:
    """Return a bound on the absolute sum of any selected noises, however they are selected.

    For any k, the sum of r noises is at most r k plus the sum of (noise - k)⁺ over *all* noises, which has a known
    distribution. Chernoff's bound limits it, and a union bound both signs and every possible number r.

    Parameters
    ----------
    decay
        Decay rate of independent discrete Laplace noises.
    count
        Number of noises.
    num_selected
        Number of selected ones, r.
    miss_probability
        Probability with which the bound may fail for some selection of any number.

    Returns
    -------
    float
        The bound. 0 if none is selected.
    """
    if num_selected == 0:
        return 0.0
    q = exp(-decay)
    logs = log(2.0 * count / miss_probability)
    # Near the best k about as many noises exceed it as are selected; near the best slope both terms grow equally.
    usual = max(log(count / (2.0 * num_selected)) / decay, 0.0)
    slope = sqrt(logs) / (sqrt(num_selected) + sqrt(logs))
    best = inf
    for k in {int(usual * part) for part in (0.0, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)}:
        for s in (decay * slope * part for part in (0.5, 0.75, 0.9, 1.0, 1.1, 1.25)):
            if s >= decay:
                continue
            grown = q ** (k + 1) * ((1.0 - q) / (1.0 + q) * exp(s) / (1.0 - q * exp(s)) - 1.0 / (1.0 + q))
            best = min(best, num_selected * k + (count * log1p(grown) + logs) / s)
    return best


def add_noise(noise: CountNoise, precision: Precision, true: IntArray, balanced: bool = False) -> NoisyTable:
    """Add noise to the true cells of a table and account for its epsilon.

    Parameters
    ----------
    noise
        Takes the price.
    precision
        The noise of the table.
    true
        ``(cells,)`` true counts of bounded contributions. Private.
    balanced
        Whether departures and arrivals of each area must be equal, per day or in total.

    Returns
    -------
    NoisyTable
        The publishable table.

    Raises
    ------
    BudgetError
        As `CountNoise.add`.
    ConfigurationError
        When the table is too large to be balanced.
    """
    table = precision.table
    forest = precision.table.forest
    if balanced:
        check_balanced(table)
    measured = []
    for level, (nodes, share) in enumerate(zip(forest.sum_levels(true), precision.shares, strict=True)):
        whole = nodes.astype(np.int64)
        name = table.name if level == 0 else f"{table.name} by {table.levels[level - 1][0]}"
        noisy = (
            noise.add(name, whole, precision.max_events, precision.epsilon * share) if share else np.zeros_like(whole)
        )
        measured.append(noisy)
    unrounded = NoisyTable(precision, tuple(measured), np.zeros_like(measured[0]))
    half = precision.compute_half_widths(
        precision.level_variances[0], precision.compute_miss_probability(get_parts(table)[0])
    )
    # Significant numbers get a smaller variance; otherwise they would absorb the bias of clipping at zero.
    variances: list[float | FloatArray] = list(precision.variances)
    is_positive = unrounded.estimates[0] > half
    variances[0] = np.where(is_positive, precision.variances[0] / _SIGNIFICANT_VARIANCE_DIVISOR, precision.variances[0])
    values = [level.astype(np.float64) for level in measured]
    if balanced:
        out, into = get_cell_ends(table)
        counts = round_balanced(forest.estimate_balanced(values, variances, out, into), out, into)
    else:
        # Sums stay near their estimates, from the top down: otherwise clipping many cells would raise every sum more.
        values[1:] = [np.maximum(level, 0.0) for level in unrounded.estimates[1:]]
        variances[1:] = [
            v / _SIGNIFICANT_VARIANCE_DIVISOR ** (2 * level) for level, v in enumerate(precision.variances[1:], start=1)
        ]
        counts = forest.round(forest.estimate_nonnegative(values, variances))
    return replace(unrounded, counts=counts)


def check_balanced(table: Table) -> None:
    """Raise an error if a table is too large to be balanced.

    Parameters
    ----------
    table
        The table.

    Raises
    ------
    ConfigurationError
        If it has more than `MAX_BALANCED_CELLS` cells.
    """
    num_cells = table.forest.sizes[0]
    if num_cells > MAX_BALANCED_CELLS:
        raise ConfigurationError(
            f"balanced table {table.name} must have at most {MAX_BALANCED_CELLS:,} cells, got {num_cells:,}: use "
            "fewer areas, or remove balanced"
        )


def get_cell_ends(table: Table) -> tuple[IntArray, IntArray]:
    """Return origin and destination of each cell, ``(cells,)``, separately for each day."""
    names = [name for name, _ in table.axes]
    at = np.indices(table.shape, dtype=np.int64).reshape(len(names), -1)
    n = len(table.layout.areas)
    day = at[names.index("day")] * n if "day" in names else 0
    return day + at[names.index("area")], day + at[names.index("to")]


def split_budget(epsilon: Fraction, split: Mapping[str, Fraction], names: Sequence[str]) -> dict[str, Fraction]:
    """Split a budget among tables by weights, which default to 1."""
    weights = {name: split.get(name, Fraction(1)) for name in names}
    return {name: epsilon * weight / sum(weights.values()) for name, weight in weights.items()}


# The key columns of a row (strings). A class is a time class, or a class of stay times or lengths.
KEY_COLUMNS = ("table", "level", "day", "area", "to", "class")

# The numeric columns: the number of values that a row sums, the integer with consistent sums in its table, its
# interval, the unbiased estimate, and whether the interval excludes zero.
NUMERIC_COLUMNS = ("num_values", "count", "low", "high", "unbiased", "is_significant")

EVERYWHERE = "everywhere"

# The prefix of a level in the row that sums its values without a row.
REST = "rest of "

# Table → sums of its cells with rows: their names, and the columns that are kept.
SUMS: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "visits": (("area in all", ("area",)),),
    "flows": (("area in all", ("area", "to")), ("departures", ("area",)), ("arrivals", ("to",))),
}

Axis = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, eq=False)
class Part:
    """A level of a table, or sums of its cells over time or areas.

    Parameters
    ----------
    name
        The name of the level.
    axes
        The columns and their labels.
    level
        The number of the level, 0 for the cells. None for sums of cells.
    table
        The table.
    """

    name: str
    axes: Sequence[Axis]
    level: int | None
    table: Table

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self.axes]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of labels of each column."""
        return tuple(len(labels) for _, labels in self.axes)

    @property
    def num_values(self) -> int:
        """Number of numbers and of rests: one a day, unless a day has one number."""
        days = self.table.layout.days or 1
        size = int(np.prod(self.shape))
        return size if size == days else size + days


def get_parts(table: Table) -> list[Part]:
    """Return the levels of a table, cells first, and the sums of its cells."""
    parts = list[Part]()
    whole = tuple(np.arange(size) for size in table.shape)
    for level, (name, groups) in enumerate(((CELL_LEVEL, whole), *table.levels)):
        pairs = zip(table.axes, groups, strict=True)
        axes = [(axis, _get_labels(table.layout.areas, names, group)) for (axis, names), group in pairs]
        parts.append(Part(name, axes, level, table))
    labels_of = dict(table.axes)
    for name, columns in SUMS.get(table.name, ()):
        kept = tuple(axis for axis in labels_of if axis in (*columns, "day"))
        if kept != tuple(axis for axis in labels_of if len(labels_of[axis]) > 1 or axis in kept):  # otherwise the cells
            parts.append(Part(name, [(axis, labels_of[axis]) for axis in kept], None, table))
    return parts


def build_rows(
    tables: Iterable[NoisyTable], relative_error: float | None = None, every_row: bool = False
) -> dict[str, Any]:
    """Build the columns `KEY_COLUMNS` and `NUMERIC_COLUMNS` from noisy numbers only.

    A number has a row if its interval excludes zero, or if it is the only one of its level (and day). One more row of a
    level sums all its other numbers.

    Parameters
    ----------
    tables
        The tables.
    relative_error
        Omit numbers with a larger relative error bound.
    every_row
        Whether every number has a row.

    Returns
    -------
    dict
        Column → array.
    """
    columns_by_name: dict[str, list[Any]] = {name: [] for name in (*KEY_COLUMNS, *NUMERIC_COLUMNS)}
    for noisy in tables:
        for part in get_parts(noisy.table):
            numbers = noisy.numbers(part)
            days = noisy.table.layout.days or 1
            shown = numbers.find_accurate_counts(relative_error)
            if not every_row and len(shown) > days:
                shown &= numbers.is_significant
            _add_rows(columns_by_name, part, part.name, part.axes, numbers, shown, np.ones(len(shown)))
            missing = np.logical_not(shown).reshape(days, -1).sum(axis=1)
            if len(shown) > days:
                day_axes = [axis for axis in part.axes if axis[0] == "day"]
                rests = noisy.compute_remainder(part, numbers, shown)
                _add_rows(columns_by_name, part, f"{REST}{part.name}", day_axes, rests, missing > 0, missing)
    return {name: np.concatenate(parts) for name, parts in columns_by_name.items()}


def _add_rows(
    columns_by_name: dict[str, list[Any]],
    part: Part,
    level: str,
    axes: Sequence[Axis],
    numbers: Numbers,
    shown: BoolArray,
    num_values: IntArray | FloatArray,
) -> None:
    """Add the rows of shown numbers of a part."""
    rows = np.flatnonzero(shown)
    keys = {**dict.fromkeys(KEY_COLUMNS, ""), "table": part.table.name, "level": level}
    columns: dict[str, Any] = {name: np.full(len(rows), text, dtype=object) for name, text in keys.items()}
    if axes:
        at = np.unravel_index(rows, [len(labels) for _, labels in axes])
        for (axis, labels), index in zip(axes, at, strict=True):
            columns["class" if axis == "time" else axis] = np.array(labels, dtype=object)[index]
    whole = (values[rows].astype(np.int64) for values in (num_values, numbers.counts, numbers.low, numbers.high))
    columns |= zip(NUMERIC_COLUMNS, (*whole, numbers.estimates[rows], numbers.is_significant[rows]), strict=True)
    for name, column in columns.items():
        columns_by_name[name].append(column)


def build_sum_matrix(table: Table, kept: Sequence[str]) -> csr_array:
    """Return the matrix ``(k, cells)`` that sums cells over all columns except those kept."""
    index = np.zeros(1, dtype=np.int64)
    size = 1
    for axis, names in table.axes:
        positions = np.arange(len(names)) if axis in kept else np.zeros(len(names), dtype=np.int64)
        step = len(names) if axis in kept else 1
        index = (index[:, None] * step + positions[None, :]).ravel()
        size = size * step
    return csr_array((np.ones(len(index)), (index, np.arange(len(index)))), shape=(size, len(index)))


def _get_labels(areas: Areas, names: tuple[str, ...], parts: IntArray) -> tuple[str, ...]:
    """Return the labels of a column at a level: its own, the districts', or `EVERYWHERE`."""
    count = int(parts.max()) + 1
    if count == len(names):
        return names
    return areas.districts if count == len(areas.districts) > 1 else (EVERYWHERE,)


def format_interval(count: int, low: int, high: int) -> str:
    """Format a number with its interval, such as ``214 ± 31``.

    Examples
    --------
    >>> format_interval(214, 183, 245), format_interval(3, 0, 20)
    ('214 ± 31', '3 (0 to 20)')
    """
    return f"{count:,} ± {high - count:,}" if high - count == count - low else f"{count:,} ({low:,} to {high:,})"


def get_units(names: Iterable[str]) -> dict[str, str]:
    """Return the unit of each table."""
    return {name: TABLE_TYPES[name].unit for name in names}
