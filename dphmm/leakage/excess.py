"""How far one row of a transition matrix can exceed another: every question the loss function asks of the matrix.

A pair of rows (q, d) and a set S of columns give the point (d_S, q_S) with ``q_S = Σ_{j∈S} q_j``; all points of a pair
lie under its ROC curve (the Neyman-Pearson test of q against d). The largest ``q_S − λ d_S`` of a pair is
``Σ_j (q_j − λ d_j)₊``, found in one pass and without a sort, and the largest over all pairs is one *query* here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.compilation import compiled
from dphmm.leakage import kernels
from dphmm.leakage.kernels import Compressed, Out

COMPILE_FROM = 32
"""Matrices smaller than this are done by numpy, in less time than compiled loops take for 100 states; loading the
compiler would take longer than the work."""

Loop = Callable[..., None]

_RUN = 32
"""Rows of one task; the peaks of a run of rows fit in the cache beside the rows."""

_SHARED_FROM = 1_000_000
"""From so many terms on, tasks go to all processors."""

_SHORT_FROM = 20_000
"""With fewer terms than this, sums in single precision save no time."""

SHORT_MARGIN = (kernels.SHORT_STRETCH + 4) * 2.0**-24
"""More than what sums in single precision are off by: the rounding of three factors, of each sum, and of the rest."""

_TOO_SMALL = 100 * SHORT_MARGIN
"""Where no excess is above this, what single precision is off by tells too little apart."""

_STEEPEST = 1e30
"""In single precision a larger slope is taken for this one, by which excesses can only seem larger."""

_FEW_OF = 128, 16
"""Where fewer entries than one in so many stand out of their columns, these alone are summed; the second where single
precision tells too little apart."""

_LOOK = 32
"""So many rows are looked at first."""

_AT_ONCE = 1 << 15
"""Terms that numpy's loop works on at a time, about: as many as fit in the cache."""


@dataclass(frozen=True)
class Vertex:
    """A pair of rows and a set of columns, as the point (d, q).

    Attributes
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

    Attributes
    ----------
    rows, others
        The q rows and the d rows that were asked about.
    row_peak
        For each q row at least its largest excess over the d rows, and no more than `SHORT_MARGIN` twice above it.
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
        As `dphmm.leakage.transition.as_transition` gives it. Memory is twice that of the matrix.
    """

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix
        self.is_sparse = bool(sp.issparse(matrix))
        self.size, self.width = int(matrix.shape[0]), int(matrix.shape[1])
        self.everything = np.arange(self.size, dtype=np.int64)
        self._columns: Any = matrix.tocsc() if self.is_sparse else None
        self._is_told_apart = True  # by single precision, as far as known

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
        work = rows.size * others.size * self.width
        if self.is_sparse or work < _SHORT_FROM:
            return self._exact_peaks(slope, rows, others)
        standing_out = self._standing_out(slope, rows)
        if standing_out is not None:
            return self._peaks_of_few(slope, rows, others, standing_out)
        if not self._is_told_apart:
            return self._exact_peaks(slope, rows, others)
        row_peak, other_peak = self._tops(slope, rows, others)
        highest = row_peak.max()
        some, few = (np.flatnonzero(top >= highest - 2 * SHORT_MARGIN) for top in (row_peak, other_peak))
        self._is_told_apart = 2 * some.size * few.size < rows.size * others.size
        if not self._is_told_apart or highest < _TOO_SMALL:
            return self._exact_peaks(slope, rows, others)
        found = self._exact_peaks(slope, rows[some], others[few])
        return Peaks(rows, others, row_peak, other_peak, found.best, found.peak)

    def _standing_out(self, slope: float, rows: IntArray) -> BoolArray | None:
        """The entries of q rows that are above ``slope`` times the least of their column; None where they are many.

        No other entry is part of an excess. A look at a few rows says whether it is worth to look at all.
        """
        least, few_of = slope * self._least, _FEW_OF[not self._is_told_apart]
        for some in (rows[:: 1 + rows.size // _LOOK], rows):
            found = self.matrix[some] > least
            if np.count_nonzero(found) > found.size // few_of:
                return None
        return np.asarray(found)

    def _peaks_of_few(self, slope: float, rows: IntArray, others: IntArray, standing_out: BoolArray) -> Peaks:
        """What `_exact_peaks` gives, from the entries that stand out alone: column by column, against all d rows."""
        turned = self._turned if others.size == self.size else self._turned[:, others]
        row_peak, partner, other_peak = np.zeros(rows.size), np.zeros(rows.size, dtype=np.int64), np.zeros(others.size)
        for place, (row, chosen) in enumerate(zip(rows, standing_out, strict=True)):
            columns = np.flatnonzero(chosen)
            terms = self.matrix[row, columns, np.newaxis] - slope * turned[columns]
            excess = np.maximum(terms, 0.0, out=terms).sum(axis=0)
            at = partner[place] = excess.argmax()
            row_peak[place] = excess[at]
            np.maximum(other_peak, excess, out=other_peak)
        at = int(np.argmax(row_peak))
        return Peaks(rows, others, row_peak, other_peak, (int(rows[at]), int(others[partner[at]])), float(row_peak[at]))

    def _exact_peaks(self, slope: float, rows: IntArray, wanted: IntArray) -> Peaks:
        others = self.everything if self.is_sparse else wanted
        row_peak = np.full(rows.size, -1.0)
        partner = np.zeros(rows.size, dtype=np.int64)
        loop = self._loop(slope, others)

        def run(part: slice) -> FloatArray:
            other_peak = np.zeros(others.size)
            loop(rows[part], (row_peak[part], partner[part], other_peak))
            return other_peak

        work = rows.size * others.size * self.width
        other_peak = np.max(_in_runs(run, rows.size, work > _SHARED_FROM), axis=0)
        if self.is_sparse:
            other_peak = other_peak[wanted]
        at = int(np.argmax(row_peak))
        return Peaks(rows, wanted, row_peak, other_peak, (int(rows[at]), int(partner[at])), float(row_peak[at]))

    def _tops(self, slope: float, rows: IntArray, others: IntArray) -> tuple[FloatArray, FloatArray]:
        """What no excess of each q row, and of each d row, is above."""
        ones, scaled = (self._short if some.size == self.size else self._short[some] for some in (rows, others))
        scaled = scaled * np.float32(min(slope, _STEEPEST))
        least = np.full(rows.size, np.inf)
        loop = self._compiled(kernels.shared_masses) or _shared_masses

        def run(part: slice) -> FloatArray:
            other_least = np.full(others.size, np.inf)
            loop(ones[part], scaled, (least[part], other_least))
            return other_least

        work = rows.size * others.size * self.width
        other_least = np.min(_in_runs(run, rows.size, work > 8 * _SHARED_FROM), axis=0)
        return 1.0 - least + SHORT_MARGIN, 1.0 - other_least + SHORT_MARGIN

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
    def _turned(self) -> FloatArray:
        return np.ascontiguousarray(self.matrix.T)

    @cached_property
    def _short(self) -> kernels.Short:
        return np.asarray(self.matrix, dtype=np.float32)

    def _compiled(self, loop: Loop) -> Loop | None:
        return compiled(loop, reorder=True) if self.size >= COMPILE_FROM else None

    def _loop(self, slope: float, others: IntArray) -> Callable[[IntArray, Out], None]:
        """The loop over a run of rows: compiled where numba is there and the matrix is large, else numpy's."""
        if self.is_sparse:
            by_row, by_column = ((m.data, m.indices, m.indptr) for m in (self.matrix, self._columns))
            return partial(self._compiled(kernels.sparse_peaks) or _sparse_peaks, by_row, by_column, slope)
        return partial(self._compiled(kernels.dense_peaks) or _dense_peaks, self.matrix, slope, others)


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


def _dense_peaks(matrix: FloatArray, slope: float, others: IntArray, rows: IntArray, out: Out) -> None:
    row_peak, partner, other_peak = out
    scaled = slope * matrix[others]
    several = max(1, _AT_ONCE // scaled.size)
    for first in range(0, rows.size, several):
        part = slice(first, first + several)
        work = matrix[rows[part], np.newaxis] - scaled
        np.maximum(work, 0.0, out=work)
        excess = work.sum(axis=2)
        np.maximum(other_peak, excess.max(axis=0), out=other_peak)
        partner[part] = others[excess.argmax(axis=1)]
        row_peak[part] = excess.max(axis=1)


def _shared_masses(ones: kernels.Short, scaled: kernels.Short, out: tuple[FloatArray, FloatArray]) -> None:
    least, other_least = out
    length = kernels.SHORT_STRETCH
    several = max(1, 2 * _AT_ONCE // (len(scaled) * min(length, scaled.shape[1])))
    for first in range(0, len(ones), several):
        part, sums = slice(first, first + several), np.zeros(())
        for left in range(0, scaled.shape[1], length):
            columns = slice(left, left + length)
            work = np.minimum(ones[part, np.newaxis, columns], scaled[:, columns])
            sums = sums + work @ np.ones(work.shape[2], dtype=np.float32)
        least[part] = sums.min(axis=1)
        np.minimum(other_least, sums.min(axis=0), out=other_least)


def _sparse_peaks(by_row: Compressed, by_column: Compressed, slope: float, rows: IntArray, out: Out) -> None:
    (data, indices, indptr), (column_data, column_rows, column_start) = by_row, by_column
    row_peak, partner, other_peak = out
    for b, i in enumerate(rows):
        part = slice(indptr[i], indptr[i + 1])
        shared = np.zeros(indptr.size - 1)
        for value, j in zip(data[part], indices[part], strict=True):
            up = slice(column_start[j], column_start[j + 1])
            shared[column_rows[up]] += np.minimum(value, slope * column_data[up])
        excess = data[part].sum() - shared
        np.maximum(other_peak, excess, out=other_peak)
        at = int(np.argmax(excess))
        row_peak[b], partner[b] = excess[at], at


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
