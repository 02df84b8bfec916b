"""What releases between two moments tell of the states at both, when states move by known matrices.

Between the states ``a`` at time i and ``b`` at time j, a state at u has ``Pr(s | a, b) ∝ A(a, s) B(s, b)``, where A and
B are the products of the steps from i to u and from u to j. Rows of this *bridge*, one for each pair (a, b) that can
be, may differ far more than rows of A do. What bounds ``log Pr(z | a, b) / Pr(z | a', b')`` for releases z in between:

* the sum of their budgets;
* of one release, the loss function (Cao et al., TKDE 2019, Equation 24) of the bridge, where states are few;
* two recursions. Given b, the states from i on are a Markov chain whose matrices are the given ones with their rows
  weighed (`dphmm.landmarks.tilted`). A recursion from j down bounds the ratio of a and a' at the same b, one from i up
  that of b and b' at the same a', and their sum both. Weighing changes no cross ratio: with the *spread* of a matrix,
  ``D = max log (M(a,s) M(a',s')) / (M(a,s') M(a',s))``, a loss α passes with ``4 artanh(tanh(D/4) tanh(α/4))`` at
  most (`passed`; Birkhoff 1957). Where that is less than α at one step, every pair (a, b) can be, as the argument
  needs; where it is less at none, the sum of budgets is less than the two recursions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray
from dphmm.landmarks.tilted import Tilted
from dphmm.leakage import curve
from dphmm.leakage.envelope import strongest
from dphmm.leakage.excess import Excess

MOST_STATES = 256
"""Above so many states products of matrices are not formed, and the sum of budgets is the bound."""

_EXACT_STATES, EXACT_STEPS = 16, 8
"""The bridge itself is to be asked up to so many states, and up to so many steps to either side."""

_BLOCK = 32
"""Products of more steps are bounded by those of their blocks: spreads of factors contract each other."""

_TINY = 1e-150
"""A probability below this may have lost digits, or a product of two of them all."""


def passed(spread: npt.ArrayLike, alpha: npt.ArrayLike) -> FloatArray:
    """The greatest ``log (1 + q(e^α − 1)) / (1 + d(e^α − 1))`` of masses q, d whose odds have a ratio of ``e^spread``.

    The lesser of both arguments at most; either may be infinite. Elementwise.

    Examples
    --------
    >>> passed([1.0, 1.0, np.inf], [0.5, np.inf, 0.5]).round(6).tolist()
    [0.121863, 1.0, 0.5]
    """
    with np.errstate(over="ignore", invalid="ignore"):
        u, v = np.expm1(np.multiply(spread, 0.5)), np.expm1(np.multiply(alpha, 0.5))
        loss = 2.0 * np.log1p(u * v / (u + v + 2.0))  # NaN where a number is too large to matter
    return np.asarray(np.fmin(loss, np.minimum(spread, alpha)))


class Steps:
    """Products of the matrices of successive steps, and what they pass on.

    Parameters
    ----------
    matrices
        ``(n, n)`` arrays of entries that are not negative: one for all steps, or one for each. Rows need not sum to
        one: backward matrices, transposed, have the bridges of the chain that they belong to.
    """

    def __init__(self, matrices: FloatArray | Sequence[FloatArray]) -> None:
        self._matrices = matrices
        self._same = isinstance(matrices, np.ndarray)
        self.size = len(matrices if self._same else matrices[0])
        self.is_small = self.size <= _EXACT_STATES
        """Whether there are so few states that the bridge itself can be asked."""
        self._products: dict[tuple[int, int], tuple[FloatArray, BoolArray]] = {}
        self._spreads: dict[tuple[int, int], float] = {}
        self._tilted: dict[int, Tilted | None] = {}
        self._losses: dict[tuple[int, int, int, float], float] = {}

    def spread(self, start: int, stop: int) -> float:
        """The spread of the steps between two times, or more; infinite where rows have different zeros."""
        start, stop = min(start, stop), max(start, stop)
        key = (0, stop - start) if self._same else (start, stop)
        if key not in self._spreads:
            ends = [*range(start, stop, _BLOCK), stop]
            parts = [_spread(*self._product(a, b)) for a, b in pairwise(ends)]
            self._spreads[key] = reduce(lambda one, more: float(passed(one, more)), parts, math.inf)
        return self._spreads[key]

    def loss(self, start: int, at: int, stop: int, epsilon: float) -> float:
        """What one release between two times tells of both, by the bridge itself; at most ``epsilon``."""
        start, stop = sorted((start, stop))
        key = (*self._key(start, at), self._key(at, stop)[1], epsilon)
        if key not in self._losses:
            rows = _bridge(self._product(start, at), self._product(at, stop))
            self._losses[key] = epsilon if rows is None else min(epsilon, _loss(rows, epsilon))
        return self._losses[key]

    def tilted(self, most: int, sign: int) -> Tilted | None:
        """Single steps forth (1) or back (-1), towards a state up to so many steps away.

        None where the matrix changes with time, and where `Tilted` has nothing to say of it.
        """
        if not self._same:
            return None
        kept = self._tilted.get(sign)
        if sign not in self._tilted or (kept is not None and len(kept.leanings) <= most):
            matrix = np.asarray(self._matrices, dtype=np.float64)
            self._tilted[sign] = kept = Tilted.of(matrix if sign > 0 else matrix.T, most)
        return kept

    def _key(self, start: int, stop: int) -> tuple[int, int]:
        return (0, stop - start) if self._same else (start, stop)

    def _product(self, start: int, stop: int) -> tuple[FloatArray, BoolArray]:
        """The product, and where it is not zero by structure."""
        key = self._key(start, stop)
        if key not in self._products:
            one = self._matrices if self._same else self._matrices[stop - 1]
            last = np.asarray(one, dtype=np.float64)
            found, holds = last, last > 0
            if stop - start > 1:
                before, possible = self._product(start, stop - 1)
                found = before @ last
                holds = (possible.astype(np.float64) @ holds) > 0
            self._products[key] = found, holds
        return self._products[key]


def _spread(product: FloatArray, holds: BoolArray) -> float:
    can_be = np.ix_(holds.any(axis=1), holds.any(axis=0))
    if not holds[can_be].all() or product[can_be].min() < _TINY:
        return math.inf
    logs = np.log(product[can_be])
    return max(float(np.ptp(row - logs, axis=1).max()) for row in logs)


def _bridge(before: tuple[FloatArray, BoolArray], after: tuple[FloatArray, BoolArray]) -> FloatArray | None:
    """The rows ``Pr(s | a, b)`` of all pairs that can be; None where digits were lost."""
    (left, from_a), (right, to_b) = before, after
    holds = from_a[:, None, :] & to_b.T[None, :, :]
    if min(left[from_a].min(), right[to_b].min()) < _TINY:
        return None
    masses = (left[:, None, :] * right.T[None, :, :])[holds.any(axis=2)]
    return np.asarray(masses / masses.sum(axis=1, keepdims=True))


def _loss(rows: FloatArray, alpha: float) -> float:
    vertex = strongest(Excess(np.ascontiguousarray(rows[:, rows.any(axis=0)])), alpha)
    point: Any = np.array([vertex.q, vertex.d, vertex.rest, vertex.gap])
    return float(curve.loss_at(np.asarray(alpha), *point))
