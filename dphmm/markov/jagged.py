"""A sparse matrix as many short sums are fastest: the first terms of all rows, then the second ones, and so on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray


class Jagged:
    """Rows by decreasing length, so that those with a k-th term are the first ones.

    States that nothing moves (their row is themselves, with a share of one) are left as they are. Terms are added in
    the order of their rows, so that sums are those of a product with the matrix, to the last bit.

    Parameters
    ----------
    matrix
        ``(N, N)`` CSR, without stored zeros.
    """

    def __init__(self, matrix: csr_array) -> None:
        lengths, size = np.diff(matrix.indptr), matrix.shape[0]
        is_still = (lengths == 1) & (matrix.diagonal() == 1.0)
        order = np.lexsort((-lengths, is_still))
        place = np.empty(size, dtype=np.uint32)
        place[order] = np.arange(size)
        starts, lengths = matrix.indptr[order], lengths[order][: size - int(is_still.sum())]
        self._moved = len(lengths)
        self._counts = self._moved - np.searchsorted(lengths[::-1], np.arange(lengths.max(initial=0)), side="right")
        at = np.concatenate([starts[:count] + k for k, count in enumerate(self._counts)] or [starts[:0]])
        self._states, self._shares = place[matrix.indices[at]], matrix.data[at]
        self._order = order

    def after(self, loop: Callable[..., None], values: FloatArray, steps: int) -> FloatArray:
        """``(N,)``: the matrix times ``values``, as often, by `dphmm.markov.kernels.jagged_steps` compiled."""
        now, other = values[self._order], values[self._order]
        loop((self._counts, self._states, self._shares), self._moved, now, other, steps)
        found = np.empty_like(values)
        found[self._order] = other if steps % 2 else now
        return found
