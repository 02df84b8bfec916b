"""Beliefs at one time after another, kept as rows of masses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.markov.belief import Belief
from dphmm.markov.contexts import Contexts
from dphmm.markov.passes import Rows


class Beliefs(Sequence[Belief]):
    """Beliefs at one time after another, of which each is made when it is asked for.

    Parameters
    ----------
    rows
        Masses that sum to one.
    contexts
        What they are of, where it is not states.
    which
        ``(T,)``: the row of each time; left out, there is one for each.
    """

    def __init__(self, rows: Rows, contexts: Contexts | None, which: npt.ArrayLike | None = None) -> None:
        self.which: IntArray = np.asarray(np.arange(len(rows.values)) if which is None else which, dtype=np.int64)
        self._rows, self._contexts = rows, contexts

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, t: int) -> Belief: ...
    @overload
    def __getitem__(self, t: slice) -> Beliefs: ...
    def __getitem__(self, t: int | slice) -> Belief | Beliefs:
        if isinstance(t, slice):
            return Beliefs(self._rows, self._contexts, self.which[t])
        return self._of(self.which[t])

    def probabilities(self, part: IntArray) -> FloatArray:
        """Those of some rows, ``(k, N)``."""
        if self._contexts is None:
            return self._rows.values[part]
        return np.array([self._of(row).probabilities for row in part])

    def _of(self, row: int | np.integer) -> Belief:
        return Belief.owning(self._rows[int(row)], self._contexts)
