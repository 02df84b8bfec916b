"""The inner loops, written so that numba can compile them; nothing here is called uncompiled.

For two rows q and d and a slope λ the *excess* is ``Σ_j (q_j − λ d_j)₊``, the hockey-stick divergence. Each loop takes
a run of q rows and many d rows, and keeps the largest excess (and where it was) of every q row and of every d row.
"""

from __future__ import annotations

from typing import Any

from dphmm.arrays import FloatArray, IntArray


def dense_peaks(
    matrix: FloatArray,
    slope: float,
    rows: IntArray,
    others: IntArray,
    row_peak: FloatArray,
    partner: IntArray,
    other_peak: FloatArray,
) -> None:
    """Peaks of a run of rows of a dense matrix; four q rows by two d rows share their loads."""
    count, width = rows.size, matrix.shape[1]
    for start in range(0, count, 4):
        last = count - 1
        b1, b2, b3 = min(start + 1, last), min(start + 2, last), min(start + 3, last)
        r0, r1, r2, r3 = rows[start], rows[b1], rows[b2], rows[b3]
        for place in range(0, others.size, 2):
            after = min(place + 1, others.size - 1)
            k, l = others[place], others[after]  # noqa: E741
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = 0.0
            for j in range(width):
                u = slope * matrix[k, j]
                v = slope * matrix[l, j]
                q0, q1, q2, q3 = matrix[r0, j], matrix[r1, j], matrix[r2, j], matrix[r3, j]
                s0 += max(q0 - u, 0.0)
                s1 += max(q1 - u, 0.0)
                s2 += max(q2 - u, 0.0)
                s3 += max(q3 - u, 0.0)
                t0 += max(q0 - v, 0.0)
                t1 += max(q1 - v, 0.0)
                t2 += max(q2 - v, 0.0)
                t3 += max(q3 - v, 0.0)
            other_peak[place] = max(other_peak[place], s0, s1, s2, s3)
            other_peak[after] = max(other_peak[after], t0, t1, t2, t3)
            for b, s, t in ((start, s0, t0), (b1, s1, t1), (b2, s2, t2), (b3, s3, t3)):
                if s > row_peak[b]:
                    row_peak[b] = s
                    partner[b] = k
                if t > row_peak[b]:
                    row_peak[b] = t
                    partner[b] = l


def sparse_peaks(
    data: FloatArray,
    indices: IntArray,
    indptr: IntArray,
    column_data: FloatArray,
    column_rows: IntArray,
    column_start: IntArray,
    slope: float,
    rows: IntArray,
    row_peak: FloatArray,
    partner: IntArray,
    other_peak: FloatArray,
) -> None:
    """Peaks of a run of rows of a sparse matrix, by ``Σ (q − λd)₊ = Σ q − Σ min(q, λd)``: only shared columns cost."""
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


def compiled(function: Any) -> Any:
    """The function compiled by numba, without the interpreter's lock, and kept on disk where that is possible.

    Raises
    ------
    ImportError
        When numba is not installed.
    """
    import numba

    free = {"reassoc", "nsz"}  # sums may be reordered, so that they run in vectors; nothing else is given up
    try:
        return numba.njit(function, nogil=True, fastmath=free, cache=True)
    except RuntimeError:  # nowhere to keep it
        return numba.njit(function, nogil=True, fastmath=free)
