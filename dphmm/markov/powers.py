"""Powers of a transition matrix, which take masses many steps at once."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, locked
from dphmm.threads import one_thread

_SLICES, _SLICED_FROM = 4, 256
"""They are made in so many parts, from so many states on."""


class Powers:
    """Powers of a matrix, kept once made.

    They are squared from one to the next. Entries are sums of products of shares, without cancellation, so that
    rounding stays relative to each entry, as in as many single steps.

    Parameters
    ----------
    matrix
        ``(N, N)``.
    kept
        Which are worth their memory, all of them powers of two.
    """

    def __init__(self, matrix: csr_array, kept: Collection[int]) -> None:
        self._matrix, self._kept = matrix, sorted(kept)
        self.made: dict[int, FloatArray] = {}
        """Those there are."""

    def of(self, steps: int) -> FloatArray:
        """The matrix of so many steps transposed, ``(N, N)``."""
        if steps not in self.made:
            lower = max((k for k in self._kept if k < steps), default=1)
            power = self._matrix.toarray().T if lower == 1 else self.of(lower)
            for _ in range((steps // lower).bit_length() - 1):
                power = _squared(power)
            self.made[steps] = locked(power)
        return self.made[steps]


def _squared(power: FloatArray) -> FloatArray:
    """A matrix times itself, a large one in parts, side by side: the same parts however many processors there are."""
    with one_thread():
        if len(power) < _SLICED_FROM:
            return np.asarray(power @ power)
        made = np.empty(power.shape)
        rows, into = np.array_split(power, _SLICES), np.array_split(made, _SLICES)
        with ThreadPoolExecutor(_SLICES) as beside:
            list(beside.map(np.matmul, rows, repeat(power), into))
        return made
