"""A matrix many of whose rows are alike, as fewer numbers."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray

_ROUNDING = 8 * np.finfo(np.float64).eps
"""What is left of an entry by no more than this part of it is rounding."""


class Lean:
    """A matrix as rows that many share, how much of one each takes, and what it has beside: ``part @ shared + rest``.

    All three are not negative, so that sums lose as little as those of the matrix itself. Entries that its rounding
    alone adds are left out.

    Parameters
    ----------
    matrix
        ``(N, N)`` CSR, without stored zeros.
    alike
        ``(N,)``: the row that each is like; a row that others are like is like itself. Entries that lead to a state
        like the row's own, stays, are not expected to follow it.
    """

    def __init__(self, matrix: csr_array, alike: IntArray) -> None:
        size, lengths = len(alike), np.diff(matrix.indptr)
        rows, first = np.repeat(np.arange(size), lengths), matrix.indptr[:-1].astype(np.int64)
        stays = alike[matrix.indices] == alike[rows]
        below = np.arange(matrix.nnz) - first[rows]
        like = np.minimum(first[alike[rows]] + below, matrix.nnz - 1)
        follows = (matrix.indices[like] == matrix.indices) & (lengths == lengths[alike])[rows]
        ratios = np.where(stays, np.inf, np.where(follows, matrix.data / matrix.data[like], 0.0))
        factors = np.minimum.reduceat(ratios, first)
        factors[~np.isfinite(factors)] = 0.0
        left = matrix.data - np.where(stays, 0.0, factors[rows] * matrix.data[like])
        left[left <= _ROUNDING * matrix.data] = 0.0
        leaders, number = np.unique(alike, return_inverse=True)
        shared = csr_array((np.where(stays, 0.0, matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)
        rest = csr_array((left, matrix.indices, matrix.indptr), shape=matrix.shape)
        part = csr_array((factors, (number, np.arange(size))), shape=(len(leaders), size))
        self._shared, self._rest, self._part = csr_array(shared[leaders]), rest.copy(), part
        for one in (self._shared, self._rest, self._part):
            one.eliminate_zeros()
        self.entries = int(self._shared.nnz + self._rest.nnz + self._part.nnz)

    def times(self, values: FloatArray, back: bool = False) -> FloatArray:
        """The matrix transposed times one column or several; or the matrix itself."""
        if back:
            return np.asarray(self._part.T @ (self._shared @ values) + self._rest @ values)
        return np.asarray(self._shared.T @ (self._part @ values) + self._rest.T @ values)
