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
from functools import cache, partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from dphmm.arrays import FloatArray, IntArray
from dphmm.leakage import kernels
from dphmm.leakage.kernels import Compressed, Out

COMPILE_FROM = 64
"""Matrices smaller than this are done by numpy: loading the compiler would take longer than the work."""

_RUN = 32
"""Rows of one task; the peaks of a run of rows fit in the cache beside the rows."""


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
    row_peak, partner
        For each q row the largest excess over the d rows, and the d row that gives it.
    other_peak
        For each d row the largest excess of the q rows.
    """

    rows: IntArray
    others: IntArray
    row_peak: FloatArray
    partner: IntArray
    other_peak: FloatArray

    @property
    def best(self) -> tuple[int, int]:
        """The pair of rows with the largest excess."""
        at = int(np.argmax(self.row_peak))
        return int(self.rows[at]), int(self.partner[at])


class Excess:
    """Queries on one matrix.

    Parameters
    ----------
    matrix
        As `dphmm.leakage.transition.as_transition` gives it. Memory is that of the matrix and O(n) for each query.
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

        Parameters
        ----------
        slope
            At least 1; infinity (sparse matrices only) asks for the mass of q where d has none.
        rows, others
            The q rows and the d rows to look at; all of them by default. In a sparse matrix a q row is held against
            all d rows, whatever is asked (its peak can only be larger for that).
        """
        rows = self.everything if rows is None else rows
        wanted = self.everything if others is None else others
        others = self.everything if self.is_sparse else wanted
        row_peak = np.full(rows.size, -1.0)
        partner = np.zeros(rows.size, dtype=np.int64)
        loop = self._loop(slope, others)

        def run(start: int) -> FloatArray:
            part = slice(start, start + step)
            other_peak = np.zeros(others.size)
            loop(rows[part], (row_peak[part], partner[part], other_peak))
            return other_peak

        work = rows.size * others.size * self.width
        step = _RUN if work > 1_000_000 else rows.size
        starts = range(0, rows.size, step)
        if len(starts) < 2:
            found = [run(start) for start in starts]
        else:
            with ThreadPoolExecutor(_processors()) as pool:
                found = list(pool.map(run, starts))
        other_peak = np.max(found, axis=0)
        if self.is_sparse:
            other_peak = other_peak[wanted]
        return Peaks(rows, wanted, row_peak, partner, other_peak)

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

    def _loop(self, slope: float, others: IntArray) -> Callable[[IntArray, Out], None]:
        """The loop over a run of rows: compiled where numba is there and the matrix is large, else numpy's."""
        fast = _compiled() if self.size >= COMPILE_FROM else None
        dense, sparse = fast or (_dense_peaks, _sparse_peaks)
        if self.is_sparse:
            by_row, by_column = ((m.data, m.indices, m.indptr) for m in (self.matrix, self._columns))
            return partial(sparse, by_row, by_column, slope)
        return partial(dense, self.matrix, slope, others)


@cache
def _compiled() -> tuple[Any, Any] | None:
    try:
        return kernels.compiled(kernels.dense_peaks), kernels.compiled(kernels.sparse_peaks)
    except ImportError:
        return None


def _processors() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else (os.cpu_count() or 1)


def _dense_peaks(matrix: FloatArray, slope: float, others: IntArray, rows: IntArray, out: Out) -> None:
    row_peak, partner, other_peak = out
    scaled = slope * matrix[others]
    work = np.empty_like(scaled)
    for b, i in enumerate(rows):
        np.subtract(matrix[i], scaled, out=work)
        np.maximum(work, 0.0, out=work)
        excess = work.sum(axis=1)
        np.maximum(other_peak, excess, out=other_peak)
        at = int(np.argmax(excess))
        row_peak[b], partner[b] = excess[at], others[at]


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
