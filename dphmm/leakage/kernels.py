"""The inner loops, written so that numba can compile them; nothing here is called uncompiled.

For two rows q and d and a slope λ the *excess* is ``Σ_j (q_j − λ d_j)₊``, the hockey-stick divergence. Each loop takes
a run of q rows and many d rows, and keeps the largest excess (and where it was) of every q row and of every d row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray

Out = tuple[FloatArray, IntArray, FloatArray]
"""What a loop fills: the peak and the partner of each of its q rows, and the peak of each d row."""

Compressed = tuple[FloatArray, IntArray, IntArray]
"""Values, indices and starts of compressed rows or columns."""

Short = npt.NDArray[np.float32]
"""Rows in single precision."""

_BLOCK = 32
"""d rows whose sums are kept at a time."""

_STRETCH = 1024
"""Columns done at a time."""

SHORT_STRETCH = 256
"""Columns summed in single precision before the sum goes on in double."""


def dense_peaks(matrix: FloatArray, slope: float, others: IntArray, rows: IntArray, out: Out) -> None:
    """Peaks of a run of rows of a dense matrix.

    Four q rows by two d rows share their loads, and stretches of columns are done for a block of d rows at a time, so
    that the run stays in the cache while the matrix passes by once.
    """
    row_peak, partner, other_peak = out
    last, width = rows.size - 1, matrix.shape[1]
    sums = np.zeros((rows.size, _BLOCK))
    for block in range(0, others.size, _BLOCK):
        end = min(block + _BLOCK, others.size)
        sums[:] = 0.0
        for left in range(0, width, _STRETCH):
            right = min(left + _STRETCH, width)
            for place in range(block, end, 2):
                after = min(place + 1, end - 1)
                k, m = others[place], others[after]
                for b0 in range(0, rows.size, 4):
                    b1, b2, b3 = min(b0 + 1, last), min(b0 + 2, last), min(b0 + 3, last)
                    r0, r1, r2, r3 = rows[b0], rows[b1], rows[b2], rows[b3]
                    s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = 0.0
                    for j in range(left, right):
                        u = slope * matrix[k, j]
                        v = slope * matrix[m, j]
                        q0, q1, q2, q3 = matrix[r0, j], matrix[r1, j], matrix[r2, j], matrix[r3, j]
                        s0 += max(q0 - u, 0.0)
                        s1 += max(q1 - u, 0.0)
                        s2 += max(q2 - u, 0.0)
                        s3 += max(q3 - u, 0.0)
                        t0 += max(q0 - v, 0.0)
                        t1 += max(q1 - v, 0.0)
                        t2 += max(q2 - v, 0.0)
                        t3 += max(q3 - v, 0.0)
                    for step, s, t in ((0, s0, t0), (1, s1, t1), (2, s2, t2), (3, s3, t3)):
                        if b0 + step <= last:  # at the end of the run the last row stands in for those beyond it
                            sums[b0 + step, place - block] += s
                            if after > place:
                                sums[b0 + step, after - block] += t
        for b in range(rows.size):
            for place in range(block, end):
                excess = sums[b, place - block]
                other_peak[place] = max(other_peak[place], excess)
                if excess > row_peak[b]:
                    row_peak[b] = excess
                    partner[b] = others[place]


def shared_masses(ones: Short, scaled: Short, out: tuple[FloatArray, FloatArray]) -> None:
    """The least ``Σ_j min(q_j, λ d_j)`` of each q row and of each d row, in single precision, d rows times λ given.

    The excess is what a row's mass has beyond that sum, so that the least sum is the largest excess. No term is larger
    than ``q_j``: a sum is off by at most `SHORT_STRETCH` roundings of one, whatever the slope. Four q rows by two d
    rows share their loads.
    """
    least, other_least = out
    last, size, width = ones.shape[0] - 1, scaled.shape[0], ones.shape[1]
    sums = np.zeros((last + 4, _BLOCK + 1))
    for block in range(0, size, _BLOCK):
        end = min(block + _BLOCK, size)
        sums[:] = 0.0
        for left in range(0, width, SHORT_STRETCH):
            right = min(left + SHORT_STRETCH, width)
            for b in range(0, last + 1, 4):
                r0, r1 = ones[b, left:right], ones[min(b + 1, last), left:right]
                r2, r3 = ones[min(b + 2, last), left:right], ones[min(b + 3, last), left:right]
                for place in range(block, end, 2):
                    k, m = scaled[place, left:right], scaled[min(place + 1, end - 1), left:right]
                    s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = np.float32(0.0)
                    for j in range(right - left):
                        u, v = k[j], m[j]
                        q0, q1, q2, q3 = r0[j], r1[j], r2[j], r3[j]
                        s0 += min(q0, u)
                        s1 += min(q1, u)
                        s2 += min(q2, u)
                        s3 += min(q3, u)
                        t0 += min(q0, v)
                        t1 += min(q1, v)
                        t2 += min(q2, v)
                        t3 += min(q3, v)
                    at = place - block
                    for step, s, t in ((0, s0, t0), (1, s1, t1), (2, s2, t2), (3, s3, t3)):
                        sums[b + step, at] += s
                        sums[b + step, at + 1] += t
        for b in range(last + 1):
            for place in range(block, end):
                mass = sums[b, place - block]
                least[b] = min(least[b], mass)
                other_least[place] = min(other_least[place], mass)


def sparse_peaks(by_row: Compressed, by_column: Compressed, slope: float, rows: IntArray, out: Out) -> None:
    """Peaks of a run of rows of a sparse matrix, by ``Σ (q − λd)₊ = Σ q − Σ min(q, λd)``: only shared columns cost."""
    data, indices, indptr = by_row
    column_data, column_rows, column_start = by_column
    row_peak, partner, other_peak = out
    size = indptr.size - 1
    shared = other_peak * 0.0
    for b in range(rows.size):
        i = rows[b]
        shared[:] = 0.0
        mass = 0.0
        for at in range(indptr[i], indptr[i + 1]):
            value = data[at]
            mass += value
            j = indices[at]
            for up in range(column_start[j], column_start[j + 1]):
                shared[column_rows[up]] += min(value, slope * column_data[up])
        for k in range(size):
            excess = mass - shared[k]
            other_peak[k] = max(other_peak[k], excess)
            if excess > row_peak[b]:
                row_peak[b] = excess
                partner[b] = k
