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
        leaders, number = np.unique(alike, return_inverse=True)
        alike, first = alike.astype(np.int32), matrix.indptr[:-1].astype(np.int32)
        data, indices = matrix.data, matrix.indices.astype(np.int32, copy=False)
        # Which entry of the row that it is like each one is like; of rows of another length none is.
        like = np.arange(matrix.nnz, dtype=np.int32) + np.repeat(first[alike] - first, lengths)
        np.minimum(like, matrix.nnz - 1, out=like)
        stays = alike[indices] == np.repeat(alike, lengths)
        shares = data[like]
        ratios = data / shares
        ratios[indices[like] != indices] = 0.0
        ratios[stays] = np.inf
        factors = np.minimum.reduceat(ratios, first)
        factors[~np.isfinite(factors) | (lengths != lengths[alike])] = 0.0
        shares *= np.repeat(factors, lengths)
        shares[stays] = 0.0
        left = data - shares
        beside = left > _ROUNDING * data
        counts = np.add.reduceat(beside, first, dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)])
        shared = csr_array(matrix[leaders])
        shared.data[alike[shared.indices] == np.repeat(leaders, np.diff(shared.indptr))] = 0.0
        self._shared = shared
        self._rest = csr_array((left[beside], indices[beside], starts), shape=matrix.shape)
        self._part = csr_array((factors, (number, np.arange(size))), shape=(len(leaders), size))
        for one in (self._shared, self._part):
            one.eliminate_zeros()
        self.entries = int(self._shared.nnz + self._rest.nnz + self._part.nnz)

    def times(self, values: FloatArray, back: bool = False) -> FloatArray:
        """The matrix transposed times one column or several; or the matrix itself."""
        if back:
            return np.asarray(self._part.T @ (self._shared @ values) + self._rest @ values)
        return np.asarray(self._shared.T @ (self._part @ values) + self._rest.T @ values)
