"""How far one row of a transition matrix can exceed another: every question the loss function asks of the matrix.

A pair of rows (q, d) and a set S of columns give the point (d_S, q_S) with ``q_S = Σ_{j∈S} q_j``; all points of a pair
lie under its ROC curve (the Neyman-Pearson test of q against d). The largest ``q_S − λ d_S`` of a pair, its *excess*,
is ``Σ_j (q_j − λ d_j)₊`` (the hockey-stick divergence), found in one pass and without a sort; the largest over all
pairs is one *query* here.

Queries of sparse matrices go through one loop, in double. Of a large dense matrix, sums in single precision give an
interval for what each row reaches, by a proved bound on their error (`short_error`); rows whose interval ends below
where another's begins cannot have the largest excess, and the others alone are summed in double. Where intervals leave
most rows, or the sum in double is outside them, all pairs are. Both loops are compiled once they are worth it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import often

Short = npt.NDArray[np.float32]
"""Rows in single precision."""

Compressed = tuple[FloatArray, IntArray, IntArray]
"""Values, indices and starts of compressed rows or columns."""

_SHORT_STRETCH = 256
"""Columns summed in single precision before the sum goes on in double."""

_TOO_WIDE = 0.02
"""Where intervals are wider than this share of the largest excess, they tell too little apart."""

_SHORT_FROM = 20_000
"""With fewer terms than this, sums in single precision save no time."""

_FEW = 1 / 64
"""Where a smaller share of the entries stands out of their columns, summing these alone is fastest."""

_RUN = 32
"""Rows of one task, a multiple of four; their peaks fit in the cache beside the rows."""

_SHARED_FROM = 1_000_000
"""From this number of terms on, tasks go to all processors."""

_AT_ONCE = 1 << 15
"""Terms that numpy works on at a time, about: as many as fit in the cache."""


def short_error(width: int) -> float:
    """What ``Σ_j min(q_j, λ d_j)`` in single precision, as `_least_shared` sums it, is off by at most.

    Let ``u = 2^-24`` be the unit of rounding, ``k`` the length of a stretch, and let all terms be at most ``q_j``, of
    which the sum is at most 1. Rounding is monotone, so that the least of two rounded numbers is the least of the two,
    rounded once: by a share of ``u``, or below the normal numbers by ``2^-150``. A stretch is summed by at most
    ``k − 1`` additions, in whatever order, each of which rounds by a share of ``u``. So it is off by a share of
    ``(1 + u)^k − 1 <= γ_k = k u / (1 − k u)``, and all stretches together by no more (Higham, *Accuracy and Stability
    of Numerical Algorithms*, section 4.2), and by ``2^-150 (1 + γ_k)`` for each term. What is done in double (the
    product, the sum of the stretches, rows that sum to one within `width` roundings, the sum that this is compared
    with) adds less than ``4 · width + 8`` roundings of one.

    Parameters
    ----------
    width
        The number of columns.

    Returns
    -------
    float
        About 256 units of single precision.
    """
    unit = 2.0**-24
    rounded = _SHORT_STRETCH * unit / (1 - _SHORT_STRETCH * unit)
    return rounded + width * 2.0**-149 + (4 * width + 8) * 2.0**-53


@dataclass(frozen=True)
class Vertex:
    """A pair of rows and a set of columns, as the point (d, q).

    Parameters
    ----------
    q, d
        Masses of the two rows on the set, ``0 <= d < q <= 1`` (both 0 for rows that never differ).
    rest
        ``1 − q``, summed on its own, so that it is right also where q is nearly 1.
    gap
        ``q − d``, summed on its own, so that it is right also where the rows are nearly equal.
    rows
        Indices of the two rows: the one in the numerator, then the one in the denominator.
    """

    q: float
    d: float
    rest: float
    gap: float
    rows: tuple[int, int]


NO_LOSS = Vertex(0.0, 0.0, 1.0, 0.0, (0, 0))
"""The point of a matrix whose rows are equal."""


@dataclass(frozen=True)
class Peaks:
    """The answer to one query.

    Parameters
    ----------
    rows, others
        The q rows and the d rows that were asked about.
    row_peak
        For each q row at least its largest excess over the d rows; it itself where sums are in double, and otherwise
        the upper end of an interval that holds it, which `Excess.interval` is as wide as.
    other_peak
        For each d row the same of the largest excess of the q rows.
    best, peak
        The pair of rows with the largest excess, and that excess, to the last digits.
    """

    rows: IntArray
    others: IntArray
    row_peak: FloatArray
    other_peak: FloatArray
    best: tuple[int, int]
    peak: float


class Excess:
    """Queries on one matrix.

    Parameters
    ----------
    matrix
        As `dphmm.leakage.loss_function.as_transition` gives it. Memory is twice that of the matrix.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.is_sparse = bool(sp.issparse(matrix))
        self.size, self.width = int(matrix.shape[0]), int(matrix.shape[1])
        self.everything = np.arange(self.size, dtype=np.int64)
        self._columns: Any = matrix.tocsc() if self.is_sparse else None

    def row(self, index: int) -> FloatArray:
        """One row as a dense array ``(width,)``."""
        return np.asarray(self.matrix[[index]].toarray()[0] if self.is_sparse else self.matrix[index])

    def rounding(self, value: float, q: float = 0.0) -> float:
        """How much of a computed excess can be rounding: of the sum, and of terms of the size of ``q``."""
        eps = float(np.finfo(np.float64).eps)
        terms = 8 * eps * (1.0 if self.is_sparse else q)
        return terms + (4 + self.width / 8) * eps * abs(value)

    def peaks(self, slope: float, rows: IntArray | None = None, others: IntArray | None = None) -> Peaks:
        """The largest ``Σ_j (q_j − slope·d_j)₊`` by q row and by d row.

        Of a large dense matrix single precision says which rows can have the largest one, and these alone are summed
        in double.

        Parameters
        ----------
        slope
            At least 1; infinity (sparse matrices only) asks for the mass of q where d has none.
        rows, others
            The q rows and the d rows to look at; all of them by default. In a sparse matrix a q row is held against
            all d rows, whatever is asked (its peak can only be larger for that).
        """
        rows = self.everything if rows is None else rows
        others = self.everything if others is None else others
        if self.is_sparse:
            return self._sparse_peaks(slope, rows, others)
        work = rows.size * others.size * self.width
        if work >= _SHORT_FROM and np.mean(self.matrix[rows] > slope * self._least) > _FEW:
            row_peak, other_peak = self._bounds(slope, rows, others)
            highest = row_peak.max()
            surely = highest - self.interval  # some pair's excess is at least this
            some, few = (np.flatnonzero(top >= surely) for top in (row_peak, other_peak))
            if self.interval < _TOO_WIDE * highest and 2 * some.size * few.size < rows.size * others.size:
                found = self._dense_peaks(slope, rows[some], others[few])
                if surely <= found.peak <= highest:
                    return Peaks(rows, others, row_peak, other_peak, found.best, found.peak)
        return self._dense_peaks(slope, rows, others)

    def _dense_peaks(self, slope: float, rows: IntArray, others: IntArray) -> Peaks:
        """The answer to a query, in double; only columns in which one of some q rows stands out are summed."""
        scaled, least = slope * self.matrix[others], slope * self._least
        several = max(1, _AT_ONCE // scaled.size)
        row_peak, partner = np.zeros(rows.size), np.zeros(rows.size, dtype=np.int64)

        def run(part: slice) -> FloatArray:
            other_peak = np.zeros(others.size)
            for first in range(part.start, min(part.stop, rows.size), several):
                some = slice(first, min(first + several, part.stop))
                ones, beside = self.matrix[rows[some]], scaled
                columns = np.flatnonzero((ones > least).any(axis=0))
                if 2 * columns.size < self.width:
                    ones, beside = ones[:, columns], scaled[:, columns]
                terms = ones[:, np.newaxis] - beside
                excess = np.maximum(terms, 0.0, out=terms).sum(axis=2)
                np.maximum(other_peak, excess.max(axis=0), out=other_peak)
                partner[some], row_peak[some] = others[excess.argmax(axis=1)], excess.max(axis=1)
            return other_peak

        other_peak = np.max(_in_runs(run, rows.size, rows.size * scaled.size > _SHARED_FROM), axis=0)
        return Peaks(rows, others, row_peak, other_peak, *_best(rows, row_peak, partner))

    def _bounds(self, slope: float, rows: IntArray, others: IntArray) -> tuple[FloatArray, FloatArray]:
        """What no excess of each q row, and of each d row, is above: by sums in single precision.

        The largest excess of each is in the interval of width `interval` that ends there.
        """
        # No entry of a q row is above 1, so that nothing is lost where a slope makes those of the others larger than 2.
        ones, scaled = self._short[rows], np.minimum(slope * self.matrix[others], 2.0).astype(np.float32)
        ones = np.concatenate([ones, ones[-1:].repeat(-len(ones) % 4, axis=0)])
        least = np.full(len(ones), np.inf)

        def run(part: slice) -> FloatArray:
            other_least = np.full(others.size, np.inf)
            _least_shared(ones[part], scaled, least[part], other_least)
            return other_least

        work = rows.size * scaled.size
        other_least = np.min(_in_runs(run, len(ones), work > 8 * _SHARED_FROM), axis=0)
        top = self._masses[1] + short_error(self.width)
        return top - least[: rows.size], top - other_least

    def _sparse_peaks(self, slope: float, rows: IntArray, others: IntArray) -> Peaks:
        """The answer to a query of a sparse matrix, each q row against all d rows."""
        by_row, by_column = ((m.data, m.indices, m.indptr) for m in (self.matrix, self._columns))
        row_peak, partner = np.full(rows.size, -1.0), np.zeros(rows.size, dtype=np.int64)

        def run(part: slice) -> FloatArray:
            other_peak = np.zeros(self.size)
            _peaks_of_compressed(rows[part], by_row, by_column, slope, row_peak[part], partner[part], other_peak)
            return other_peak

        work = rows.size * self.size * self.width
        other_peak = np.max(_in_runs(run, rows.size, work > _SHARED_FROM), axis=0)[others]
        return Peaks(rows, others, row_peak, other_peak, *_best(rows, row_peak, partner))

    def vertex(self, pair: tuple[int, int], slope: float) -> Vertex:
        """The point of a pair where ``q_S − slope·d_S`` is largest, each sum rounded once."""
        q, d = self.row(pair[0]), self.row(pair[1])
        chosen = (d == 0) & (q > 0) if math.isinf(slope) else q > slope * d
        inside = math.fsum(q[chosen])
        rest = math.fsum(q[~chosen])
        return Vertex(inside if rest else 1.0, math.fsum(d[chosen]), rest, math.fsum((q - d)[chosen]), pair)

    def disjoint_rows(self) -> tuple[int, int] | None:
        """Two rows with disjoint supports, where a look at a few rows of a sparse matrix finds them; else None.

        Rows that share no column with row i are those that its columns do not reach. The rows that reach least are
        tried, which settles any mobility matrix; None says nothing about the others.
        """
        if not self.is_sparse:
            return None
        matrix, columns = self.matrix, self._columns
        reach = np.add.reduceat(np.diff(columns.indptr)[matrix.indices], matrix.indptr[:-1])
        for i in np.argsort(reach, kind="stable")[:8]:
            met = np.zeros(self.size, dtype=np.bool_)
            for j in matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]]:
                met[self._holders(j)] = True
            if not met.all():
                return int(i), int(np.flatnonzero(~met)[0])
        return None

    def unbounded(self) -> Vertex | None:
        """The point with d = 0 and the largest q, or None where no state is possible for one row and not for another.

        It decides how the loss grows in the end, and whether leakage stays bounded.
        """
        if self.is_sparse:
            return self._unbounded_sparse()
        support = (self.matrix > 0).astype(np.float64)
        if support.all():
            return None
        best = self.vertex(_least(self.matrix, support), math.inf)
        if best.rest > 0.5:
            best = self.vertex(_least(self.matrix, support - 1.0), math.inf)
        return best if best.q > 0 else None

    def _unbounded_sparse(self) -> Vertex | None:
        counts = np.diff(self._columns.indptr)
        if (counts == self.size).all():
            return None
        best = self.vertex(self.peaks(math.inf).best, math.inf)
        at = int(np.argmax(np.where(counts[self.matrix.indices] < self.size, self.matrix.data, 0.0)))
        row = int(np.searchsorted(self.matrix.indptr, at, side="right")) - 1
        missing = int(np.setdiff1d(self.everything, self._holders(self.matrix.indices[at]))[0])
        return max(best, self.vertex((row, missing), math.inf), key=lambda vertex: vertex.q)

    def _holders(self, column: int) -> IntArray:
        """The rows of a sparse matrix that are positive in a column."""
        start, stop = self._columns.indptr[column : column + 2]
        return np.asarray(self._columns.indices[start:stop])

    def steepest(self) -> tuple[Vertex, float]:
        """The point with the largest ratio q/d, and that ratio; for a matrix without zeros."""
        matrix = self.matrix
        high, low = matrix.max(axis=0), matrix.min(axis=0)
        ratio = np.divide(high, low)
        column = int(np.argmax(ratio))
        pair = int(matrix[:, column].argmax()), int(matrix[:, column].argmin())
        q, d = float(high[column]), float(low[column])
        rest = math.fsum(np.delete(matrix[pair[0]], column))
        return Vertex(q, d, rest, q - d, pair), float(ratio[column])

    @cached_property
    def _least(self) -> FloatArray:
        """The least entry of each column."""
        return np.asarray(self.matrix.min(axis=0))

    @cached_property
    def _masses(self) -> tuple[float, float]:
        """The least and the greatest sum of a row: one, but for a tolerance."""
        sums = self.matrix.sum(axis=1)
        return float(sums.min()), float(sums.max())

    @cached_property
    def interval(self) -> float:
        """How wide the intervals are that single precision gives for largest excesses of a dense matrix."""
        fewest, most = self._masses
        return most - fewest + 2 * short_error(self.width)

    @cached_property
    def _short(self) -> Short:
        return np.asarray(self.matrix, dtype=np.float32)


def _best(rows: IntArray, row_peak: FloatArray, partner: IntArray) -> tuple[tuple[int, int], float]:
    """The pair of rows with the largest excess, and that excess."""
    at = int(np.argmax(row_peak))
    return (int(rows[at]), int(partner[at])), float(row_peak[at])


def _in_runs(run: Callable[[slice], FloatArray], count: int, is_shared: bool) -> list[FloatArray]:
    """What comes of runs of ``count`` rows, one after another or on all processors."""
    parts = [slice(start, start + _RUN) for start in range(0, count, _RUN)] if is_shared else [slice(0, count)]
    if len(parts) < 2:
        return [run(part) for part in parts]
    with ThreadPoolExecutor(_processors()) as pool:
        return list(pool.map(run, parts))


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else (os.cpu_count() or 1)


def _least_shared_loop(ones: Short, scaled: Short, least: FloatArray, other_least: FloatArray) -> None:
    """`_least_shared`, four rows at a time, which share what is read of the other."""
    width = scaled.shape[1]
    for k in range(len(scaled)):
        for b in range(0, len(ones), 4):
            t0 = t1 = t2 = t3 = 0.0
            for left in range(0, width, _SHORT_STRETCH):
                right = min(left + _SHORT_STRETCH, width)
                d, q0, q1 = scaled[k, left:right], ones[b, left:right], ones[b + 1, left:right]
                q2, q3 = ones[b + 2, left:right], ones[b + 3, left:right]
                s0 = s1 = s2 = s3 = np.float32(0.0)
                for j in range(right - left):
                    s0 += min(q0[j], d[j])
                    s1 += min(q1[j], d[j])
                    s2 += min(q2[j], d[j])
                    s3 += min(q3[j], d[j])
                t0, t1, t2, t3 = t0 + float(s0), t1 + float(s1), t2 + float(s2), t3 + float(s3)
            least[b], least[b + 1] = min(least[b], t0), min(least[b + 1], t1)
            least[b + 2], least[b + 3] = min(least[b + 2], t2), min(least[b + 3], t3)
            other_least[k] = min(other_least[k], t0, t1, t2, t3)


@often(_least_shared_loop, lambda ones, scaled, *_: ones.size * len(scaled), reorder=True)
def _least_shared(ones: Short, scaled: Short, least: FloatArray, other_least: FloatArray) -> None:
    """The least ``Σ_j min(q_j, λ d_j)`` of each q row and of each d row, from single precision, d rows times λ given.

    The excess is what a row's mass has beyond that sum, so that the least sum is the largest excess. No term is larger
    than ``q_j``: a sum is off by at most `short_error`, whatever the slope.
    """
    for b, one in enumerate(ones):
        sums = np.minimum(one, scaled).sum(axis=1, dtype=np.float64)
        least[b] = sums.min()
        np.minimum(other_least, sums, out=other_least)


def _peaks_of_compressed_loop(  # pragma: no cover - compiled
    rows: IntArray,
    by_row: Compressed,
    by_column: Compressed,
    slope: float,
    row_peak: FloatArray,
    partner: IntArray,
    other_peak: FloatArray,
) -> None:
    """`_peaks_of_compressed`."""
    data, indices, starts = by_row
    column_data, column_rows, column_starts = by_column
    for b in range(rows.size):
        shared, mass = np.zeros(other_peak.size), 0.0
        for at in range(starts[rows[b]], starts[rows[b] + 1]):
            value, j = data[at], indices[at]
            mass += value
            for up in range(column_starts[j], column_starts[j + 1]):
                shared[column_rows[up]] += min(value, slope * column_data[up])
        for k in range(other_peak.size):
            excess = mass - shared[k]
            other_peak[k] = max(other_peak[k], excess)
            if excess > row_peak[b]:
                row_peak[b], partner[b] = excess, k


@often(_peaks_of_compressed_loop, lambda rows, by_row, *_: rows.size * len(by_row[2]), reorder=True)
def _peaks_of_compressed(
    rows: IntArray,
    by_row: Compressed,
    by_column: Compressed,
    slope: float,
    row_peak: FloatArray,
    partner: IntArray,
    other_peak: FloatArray,
) -> None:
    """Peaks of some rows of a sparse matrix, by ``Σ (q − λd)₊ = Σ q − Σ min(q, λd)``: only shared columns cost time."""
    (data, indices, starts), (column_data, column_rows, column_starts) = by_row, by_column
    for b, i in enumerate(rows):
        shared = np.zeros(other_peak.size)
        for at in range(starts[i], starts[i + 1]):
            up = slice(column_starts[indices[at]], column_starts[indices[at] + 1])
            shared[column_rows[up]] += np.minimum(data[at], slope * column_data[up])
        excess = data[starts[i] : starts[i + 1]].sum() - shared
        np.maximum(other_peak, excess, out=other_peak)
        partner[b] = at_most = int(np.argmax(excess))
        row_peak[b] = excess[at_most]


def _least(left: FloatArray, right: FloatArray) -> tuple[int, int]:
    """Where ``left @ right.T`` is least, a block of rows at a time so that memory stays O(n²)."""
    best, pair = math.inf, (0, 0)
    block = max(1, 4_000_000 // left.shape[0])
    for start in range(0, left.shape[0], block):
        product = left[start : start + block] @ right.T
        row, column = np.unravel_index(int(np.argmin(product)), product.shape)
        if product[row, column] < best:
            best, pair = float(product[row, column]), (start + int(row), int(column))
    return pair
