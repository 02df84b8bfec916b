"""Hockey-stick divergences between rows of a transition matrix, for the loss function.

A pair of rows (q, d) and a set S of columns define the point (d_S, q_S) with ``q_S = Σ_{j∈S} q_j``. All points of a
pair lie under its ROC curve (the Neyman-Pearson test of q against d). The largest ``q_S − λ d_S`` of a pair, its
*excess*, is ``Σ_j (q_j − λ d_j)₊`` (the hockey-stick divergence). It takes one pass and no sort. The largest excess
over all pairs is one *query*.

Queries of sparse matrices run in one loop in double precision. For a large dense matrix, sums in single precision give
an interval for the peak of each row, by a proved bound on their error (`bound_single_precision_error`). Only rows with
an interval that reaches the highest lower end can have the largest excess, and only these are summed in double
precision. If the intervals exclude too few rows, or the sum in double precision lies outside them, all pairs are summed
in double precision. Both loops are compiled once the work justifies it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import compile_if_hot

# Rows in single precision.
Short = npt.NDArray[np.float32]

# Values, indices and starts of compressed rows or columns.
Compressed = tuple[FloatArray, IntArray, IntArray]

# Columns summed in single precision before the sum continues in double precision.
_SINGLE_PRECISION_COLUMNS = 256

# Intervals wider than this fraction of the largest excess exclude too few rows.
_MAX_INTERVAL_FRACTION = 0.02

# Sums in single precision save time only from this number of terms on.
_SINGLE_PRECISION_MIN_TERMS = 20_000

# If a smaller fraction of the entries can contribute to an excess, summing only their columns is fastest.
_MIN_SHARE_STANDING_OUT = 1 / 64

# Rows per task, a multiple of four. Their peaks and the rows fit into the cache together.
_ROWS_PER_TASK = 32

# From this number of terms on, tasks run on all processors.
_PARALLEL_MIN_TERMS = 1_000_000

# Approximate number of terms per numpy operation. They fit into the cache.
_CHUNK_TERMS = 1 << 16


def bound_single_precision_error(width: int) -> float:
    """Return the error bound of ``Σ_j min(q_j, λ d_j)`` summed in single precision.

    The bound applies to the summation of `_find_min_shared_sums`. Let ``u = 2^-24`` be the unit roundoff and ``k`` the
    length of a stretch. All terms are at most ``q_j``, and the sum of ``q_j`` is at most 1. Rounding is monotone: the
    minimum of two rounded numbers is the rounded minimum. Its relative error is at most ``u``, or for subnormal numbers
    its absolute error is at most ``2^-150``. A stretch is summed by at most ``k − 1`` additions in any order, each with
    a relative error of at most ``u``. Its relative error is at most ``(1 + u)^k − 1 <= γ_k = k u / (1 − k u)``, plus
    ``2^-150 (1 + γ_k)`` for each term; this also bounds the error of all stretches together (Higham, *Accuracy and
    Stability of Numerical Algorithms*, section 4.2). The operations in double precision (the product, the sum of the
    stretches, the normalisation of rows within `width` roundings, the compared sum) add less than ``4 · width + 8``
    roundings of one.

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
    rounded = _SINGLE_PRECISION_COLUMNS * unit / (1 - _SINGLE_PRECISION_COLUMNS * unit)
    return rounded + width * 2.0**-149 + (4 * width + 8) * 2.0**-53


@dataclass(frozen=True)
class Vertex:
    """The point (d, q) of a pair of rows and a set of columns.

    Parameters
    ----------
    q, d
        Masses of the two rows on the set, ``0 <= d < q <= 1`` (both 0 for equal rows).
    rest
        ``1 − q``, summed separately, so that it is accurate even if q is nearly 1.
    gap
        ``q − d``, summed separately, so that it is accurate even if the rows are nearly equal.
    rows
        Indices of the two rows: numerator, then denominator.
    """

    q: float
    d: float
    rest: float
    gap: float
    rows: tuple[int, int]


# The point of a matrix with equal rows.
NO_LOSS = Vertex(0.0, 0.0, 1.0, 0.0, (0, 0))


@dataclass(frozen=True)
class Peaks:
    """The result of one query.

    Parameters
    ----------
    rows, others
        The queried q rows and d rows.
    row_peak
        For each q row an upper bound on its largest excess over the d rows. With sums in double precision it is the
        excess. Otherwise it is the upper end of an interval that contains the excess, of width `Excess.interval`.
    other_peak
        For each d row an upper bound, in the same form, on the largest excess of the q rows over it.
    best, peak
        The pair of rows with the largest excess, and that excess in double precision.
    """

    rows: IntArray
    others: IntArray
    row_peak: FloatArray
    other_peak: FloatArray
    best: tuple[int, int]
    peak: float


class Excess:
    """Queries of the largest excess between rows of one matrix.

    Parameters
    ----------
    matrix
        A result of `dphmm.leakage.loss_function.as_transition`. Queries need about the memory of a second copy.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.is_sparse = bool(sp.issparse(matrix))
        self.size, self.width = int(matrix.shape[0]), int(matrix.shape[1])
        self.everything = np.arange(self.size, dtype=np.int64)
        self._columns: Any = matrix.tocsc() if self.is_sparse else None

    def get_row(self, index: int) -> FloatArray:
        """Return one row as a dense array ``(width,)``."""
        return np.asarray(self.matrix[[index]].toarray()[0] if self.is_sparse else self.matrix[index])

    def bound_rounding_error(self, value: float, q: float = 0.0) -> float:
        """Return the rounding error of an excess with terms of size ``q``."""
        eps = float(np.finfo(np.float64).eps)
        terms = 8 * eps * (1.0 if self.is_sparse else q)
        return terms + (4 + self.width / 8) * eps * abs(value)

    def find_peaks(self, slope: float, rows: IntArray | None = None, others: IntArray | None = None) -> Peaks:
        """Return the largest ``Σ_j (q_j − slope·d_j)₊`` by q row and by d row.

        For a large dense matrix, sums in single precision select the rows that can attain the largest excess. Only
        these are summed in double precision.

        Parameters
        ----------
        slope
            At least 1. Infinity (sparse matrices only) gives the mass of q on columns where d is zero.
        rows, others
            The q rows and the d rows to query. Default to all rows. In a sparse matrix a q row is always compared with
            all d rows, which can only raise its peak.
        """
        rows = self.everything if rows is None else rows
        others = self.everything if others is None else others
        if self.is_sparse:
            return self._find_sparse_peaks(slope, rows, others)
        work = rows.size * others.size * self.width
        if work >= _SINGLE_PRECISION_MIN_TERMS and self._stands_out(slope, rows):
            row_peak, other_peak = self._bound_excesses(slope, rows, others)
            highest = row_peak.max()
            surely = highest - self.interval  # lower bound on the largest excess
            (q_rows,) = (row_peak >= surely).nonzero()
            (d_rows,) = (other_peak >= surely).nonzero()
            if (
                self.interval < _MAX_INTERVAL_FRACTION * highest
                and 2 * q_rows.size * d_rows.size < rows.size * others.size
            ):
                exact = self._find_dense_peaks(slope, rows[q_rows], others[d_rows])
                if surely <= exact.peak <= highest:
                    return Peaks(rows, others, row_peak, other_peak, exact.best, exact.peak)
        return self._find_dense_peaks(slope, rows, others)

    def _stands_out(self, slope: float, rows: IntArray) -> bool:
        """Return whether enough entries of the q rows can contribute to an excess."""
        entries = self._select(self.matrix, rows) > slope * self._column_minima
        return bool(np.count_nonzero(entries) > _MIN_SHARE_STANDING_OUT * entries.size)

    def _select(self, matrix: Any, rows: IntArray) -> Any:
        """Return rows of a dense matrix. All rows (always in order) without a copy."""
        return matrix if rows.size == self.size else matrix[rows]

    def _find_dense_peaks(self, slope: float, rows: IntArray, others: IntArray) -> Peaks:
        """Query in double precision. Sum only columns with an entry that can contribute."""
        # An entry of q that is at most `slope` times its column's minimum exceeds no d: skip such columns.
        scaled = slope * self._select(self.matrix, others)
        minimum = slope * self._column_minima
        several = max(1, _CHUNK_TERMS // scaled.size)
        row_peak = np.zeros(rows.size)
        partner = np.zeros(rows.size, dtype=np.int64)

        def run(part: slice) -> FloatArray:
            other_peak = np.zeros(others.size)
            for first in range(part.start, min(part.stop, rows.size), several):
                block = slice(first, min(first + several, part.stop))
                q = self.matrix[rows[block]]
                d = scaled
                stands_out = (q > minimum).any(axis=0)
                if 2 * np.count_nonzero(stands_out) < self.width:
                    q = q[:, stands_out]
                    d = scaled[:, stands_out]
                terms = q[:, np.newaxis] - d
                excess = np.maximum(terms, 0.0, out=terms).sum(axis=2)
                np.maximum(other_peak, excess.max(axis=0), out=other_peak)
                partner[block] = others[excess.argmax(axis=1)]
                row_peak[block] = excess.max(axis=1)
            return other_peak

        other_peak = _run_in_parts(run, rows.size, rows.size * scaled.size > _PARALLEL_MIN_TERMS, np.maximum)
        return Peaks(rows, others, row_peak, other_peak, *_select_best_pair(rows, row_peak, partner))

    def _bound_excesses(self, slope: float, rows: IntArray, others: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return upper bounds on the excess of each row, from single precision.

        The largest excess of each row lies in the interval of width `interval` below its bound.
        """
        # No entry of a q row exceeds 1, so scaled entries of d rows can be clipped at 2 without changing a minimum.
        ones = self._select(self._short, rows)
        scaled = np.minimum(slope * self._select(self.matrix, others), 2.0).astype(np.float32)
        minimum = np.full(rows.size, np.inf)

        def run(part: slice) -> FloatArray:
            other_min = np.full(others.size, np.inf)
            _find_min_shared_sums(ones[part], scaled, minimum[part], other_min)
            return other_min

        work = rows.size * scaled.size
        other_min = _run_in_parts(run, rows.size, work > 8 * _PARALLEL_MIN_TERMS, np.minimum)
        top = self._masses[1] + bound_single_precision_error(self.width)
        return top - minimum, top - other_min

    def _find_sparse_peaks(self, slope: float, rows: IntArray, others: IntArray) -> Peaks:
        """Query a sparse matrix, each q row against all d rows."""
        by_row, by_column = ((m.data, m.indices, m.indptr) for m in (self.matrix, self._columns))
        row_peak = np.full(rows.size, -1.0)
        partner = np.zeros(rows.size, dtype=np.int64)

        def run(part: slice) -> FloatArray:
            other_peak = np.zeros(self.size)
            _find_compressed_peaks(rows[part], by_row, by_column, slope, row_peak[part], partner[part], other_peak)
            return other_peak

        work = rows.size * self.size * self.width
        other_peak = _run_in_parts(run, rows.size, work > _PARALLEL_MIN_TERMS, np.maximum)[others]
        return Peaks(rows, others, row_peak, other_peak, *_select_best_pair(rows, row_peak, partner))

    def build_vertex(self, pair: tuple[int, int], slope: float) -> Vertex:
        """Return the point of a pair with the largest ``q_S − slope·d_S``, each sum rounded once."""
        # Exactly rounded sums: points of different pairs are compared, and the result must not depend on their order.
        q = self.get_row(pair[0])
        d = self.get_row(pair[1])
        chosen = (d == 0) & (q > 0) if math.isinf(slope) else q > slope * d
        inside = math.fsum(q[chosen].tolist())
        rest = math.fsum(q[~chosen].tolist())
        gap = math.fsum((q - d)[chosen].tolist())
        mass = math.fsum(d[chosen].tolist())
        return Vertex(inside if rest else 1.0, mass, rest, gap, pair)

    def find_disjoint_rows(self) -> tuple[int, int] | None:
        """Return the point with d = 0 and the largest q. None if all supports are equal.

        The rows that overlap with the fewest others are tried; for a mobility matrix these suffice. None does not
        imply that no such rows exist.
        """
        if not self.is_sparse:
            return None
        matrix, columns = self.matrix, self._columns
        reach = np.add.reduceat(np.diff(columns.indptr)[matrix.indices], matrix.indptr[:-1])
        for i in np.argsort(reach, kind="stable")[:8]:
            met = np.zeros(self.size, dtype=np.bool_)
            for j in matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]]:
                met[self._get_positive_rows(j)] = True
            if not met.all():
                return int(i), int(np.flatnonzero(~met)[0])
        return None

    def find_unbounded_vertex(self) -> Vertex | None:
        """Return the point with d = 0 and the largest q, or None if all rows have equal supports.

        It determines the growth of the loss for large α, and whether leakage is bounded.
        """
        if self.is_sparse:
            return self._find_sparse_unbounded_vertex()
        support = (self.matrix > 0).astype(np.float64)
        if support.all():
            return None
        best = self.build_vertex(_find_smallest(self.matrix, support), math.inf)
        if best.rest > 0.5:
            best = self.build_vertex(_find_smallest(self.matrix, support - 1.0), math.inf)
        return best if best.q > 0 else None

    def _find_sparse_unbounded_vertex(self) -> Vertex | None:
        counts = np.diff(self._columns.indptr)
        if (counts == self.size).all():
            return None
        best = self.build_vertex(self.find_peaks(math.inf).best, math.inf)
        at = int(np.argmax(np.where(counts[self.matrix.indices] < self.size, self.matrix.data, 0.0)))
        row = int(np.searchsorted(self.matrix.indptr, at, side="right")) - 1
        missing = int(np.setdiff1d(self.everything, self._get_positive_rows(self.matrix.indices[at]))[0])
        return max(best, self.build_vertex((row, missing), math.inf), key=lambda vertex: vertex.q)

    def _get_positive_rows(self, column: int) -> IntArray:
        """Return the rows of a sparse matrix that are positive in a column."""
        start, stop = self._columns.indptr[column : column + 2]
        return np.asarray(self._columns.indices[start:stop])

    def find_steepest_vertex(self) -> tuple[Vertex, float]:
        """Return the point with the largest ratio q/d, and that ratio, for a matrix without zeros."""
        matrix = self.matrix
        high = matrix.max(axis=0)
        low = matrix.min(axis=0)
        ratio = np.divide(high, low)
        column = int(np.argmax(ratio))
        pair = int(matrix[:, column].argmax()), int(matrix[:, column].argmin())
        q = float(high[column])
        d = float(low[column])
        rest = math.fsum(np.delete(matrix[pair[0]], column))
        return Vertex(q, d, rest, q - d, pair), float(ratio[column])

    @cached_property
    def _column_minima(self) -> FloatArray:
        """The smallest entry of each column."""
        return np.asarray(self.matrix.min(axis=0))

    @cached_property
    def _masses(self) -> tuple[float, float]:
        """The smallest and the largest sum of a row. Both are 1 within the tolerance."""
        sums = self.matrix.sum(axis=1)
        return float(sums.min()), float(sums.max())

    @cached_property
    def interval(self) -> float:
        """Width of the intervals that single precision gives for the excesses of a dense matrix."""
        smallest, largest = self._masses
        return largest - smallest + 2 * bound_single_precision_error(self.width)

    @cached_property
    def _short(self) -> Short:
        return np.asarray(self.matrix, dtype=np.float32)


def _select_best_pair(rows: IntArray, row_peak: FloatArray, partner: IntArray) -> tuple[tuple[int, int], float]:
    """Return the pair of rows with the largest excess, and that excess."""
    at = int(row_peak.argmax())
    return (int(rows[at]), int(partner[at])), float(row_peak[at])


def _run_in_parts(
    run: Callable[[slice], FloatArray],
    count: int,
    is_shared: bool,
    combine: Callable[[FloatArray, FloatArray], FloatArray],
) -> FloatArray:
    """Combine the results of runs over ``count`` rows, on all processors if ``is_shared``."""
    if not is_shared or count <= _ROWS_PER_TASK:
        return run(slice(0, count))
    parts = [slice(start, start + _ROWS_PER_TASK) for start in range(0, count, _ROWS_PER_TASK)]
    with ThreadPoolExecutor(_count_processors()) as pool:
        return reduce(combine, pool.map(run, parts))


def _count_processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else (os.cpu_count() or 1)


def _find_min_shared_sums_loop(ones: Short, scaled: Short, minimum: FloatArray, other_min: FloatArray) -> None:
    """Compute `_find_min_shared_sums` in blocks of four q rows by two d rows."""
    last = len(ones) - 1
    other_last = len(scaled) - 1
    width = scaled.shape[1]
    for k in range(0, len(scaled), 2):
        k1 = min(k + 1, other_last)
        for b in range(0, len(ones), 4):
            b1 = min(b + 1, last)
            b2 = min(b + 2, last)
            b3 = min(b + 3, last)
            sums0 = sums1 = sums2 = sums3 = 0.0
            more0 = more1 = more2 = more3 = 0.0
            for left in range(0, width, _SINGLE_PRECISION_COLUMNS):
                right = min(left + _SINGLE_PRECISION_COLUMNS, width)
                d0 = scaled[k, left:right]
                d1 = scaled[k1, left:right]
                q0 = ones[b, left:right]
                q1 = ones[b1, left:right]
                q2 = ones[b2, left:right]
                q3 = ones[b3, left:right]
                s0 = s1 = s2 = s3 = np.float32(0.0)
                t0 = t1 = t2 = t3 = np.float32(0.0)
                for j in range(right - left):
                    s0 += min(q0[j], d0[j])
                    s1 += min(q1[j], d0[j])
                    s2 += min(q2[j], d0[j])
                    s3 += min(q3[j], d0[j])
                    t0 += min(q0[j], d1[j])
                    t1 += min(q1[j], d1[j])
                    t2 += min(q2[j], d1[j])
                    t3 += min(q3[j], d1[j])
                sums0 += float(s0)
                sums1 += float(s1)
                sums2 += float(s2)
                sums3 += float(s3)
                more0 += float(t0)
                more1 += float(t1)
                more2 += float(t2)
                more3 += float(t3)
            minimum[b] = min(minimum[b], sums0, more0)
            minimum[b1] = min(minimum[b1], sums1, more1)
            minimum[b2] = min(minimum[b2], sums2, more2)
            minimum[b3] = min(minimum[b3], sums3, more3)
            other_min[k] = min(other_min[k], sums0, sums1, sums2, sums3)
            other_min[k1] = min(other_min[k1], more0, more1, more2, more3)


@compile_if_hot(_find_min_shared_sums_loop, lambda ones, scaled, *_: ones.size * len(scaled), reorder=True)
def _find_min_shared_sums(ones: Short, scaled: Short, minimum: FloatArray, other_min: FloatArray) -> None:
    """Compute the smallest ``Σ_j min(q_j, λ d_j)`` of each row in single precision.

    ``scaled`` contains the d rows multiplied by λ. The excess is the row's mass minus this sum, so the smallest sum
    gives the largest excess. No term exceeds ``q_j``. Therefore the error of a sum is at most
    `bound_single_precision_error` for every slope.
    """
    width = scaled.shape[1]
    several = max(1, 2 * _CHUNK_TERMS // (len(scaled) * min(width, _SINGLE_PRECISION_COLUMNS)))
    for first in range(0, len(ones), several):
        block = ones[first : first + several]
        sums = np.zeros((len(block), len(scaled)))
        for left in range(0, width, _SINGLE_PRECISION_COLUMNS):
            d = scaled[:, left : left + _SINGLE_PRECISION_COLUMNS]
            # Repeat each q row for all d rows: numpy then runs one long inner loop instead of one per pair.
            shared = (
                block[:, left : left + _SINGLE_PRECISION_COLUMNS].repeat(len(d), axis=0).reshape(len(block), d.size)
            )
            np.minimum(shared, d.ravel(), out=shared)
            # A product with ones sums in single precision (in any order) and is faster than a sum along an axis.
            sums += (shared.reshape(-1, d.shape[1]) @ np.ones(d.shape[1], dtype=np.float32)).reshape(sums.shape)
        minimum[first : first + several] = sums.min(axis=1)
        np.minimum(other_min, sums.min(axis=0), out=other_min)


def _find_compressed_peaks_loop(  # pragma: no cover - compiled
    rows: IntArray,
    by_row: Compressed,
    by_column: Compressed,
    slope: float,
    row_peak: FloatArray,
    partner: IntArray,
    other_peak: FloatArray,
) -> None:
    """Compute `_find_compressed_peaks`. Compiled."""
    data, indices, starts = by_row
    column_data, column_rows, column_starts = by_column
    for b in range(rows.size):
        shared = np.zeros(other_peak.size)
        mass = 0.0
        for at in range(starts[rows[b]], starts[rows[b] + 1]):
            value = data[at]
            j = indices[at]
            mass += value
            for up in range(column_starts[j], column_starts[j + 1]):
                shared[column_rows[up]] += min(value, slope * column_data[up])
        for k in range(other_peak.size):
            excess = mass - shared[k]
            other_peak[k] = max(other_peak[k], excess)
            if excess > row_peak[b]:
                row_peak[b] = excess
                partner[b] = k


@compile_if_hot(_find_compressed_peaks_loop, lambda rows, by_row, *_: rows.size * len(by_row[2]), reorder=True)
def _find_compressed_peaks(
    rows: IntArray,
    by_row: Compressed,
    by_column: Compressed,
    slope: float,
    row_peak: FloatArray,
    partner: IntArray,
    other_peak: FloatArray,
) -> None:
    """Compute the peaks of q rows of a sparse matrix from shared columns only.

    Uses ``Σ (q − λd)₊ = Σ q − Σ min(q, λd)``.
    """
    (data, indices, starts) = by_row
    (column_data, column_rows, column_starts) = by_column
    for b, i in enumerate(rows):
        shared = np.zeros(other_peak.size)
        for at in range(starts[i], starts[i + 1]):
            up = slice(column_starts[indices[at]], column_starts[indices[at] + 1])
            shared[column_rows[up]] += np.minimum(data[at], slope * column_data[up])
        excess = data[starts[i] : starts[i + 1]].sum() - shared
        np.maximum(other_peak, excess, out=other_peak)
        partner[b] = peak = int(np.argmax(excess))
        row_peak[b] = excess[peak]


def _find_smallest(left: FloatArray, right: FloatArray) -> tuple[int, int]:
    """Return the index of the smallest entry of ``left @ right.T`` in O(n²) memory."""
    best = math.inf
    pair = (0, 0)
    block = max(1, 4_000_000 // left.shape[0])
    for start in range(0, left.shape[0], block):
        product = left[start : start + block] @ right.T
        row, column = np.unravel_index(int(np.argmin(product)), product.shape)
        if product[row, column] < best:
            best = float(product[row, column])
            pair = (start + int(row), int(column))
    return pair
