"""Steps towards a state that is known: the rows of a matrix, weighed by how well each next state leads there."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.leakage import LossFunction

_SQUARINGS = 30
"""The far future is sought up to ``2**30`` steps away; what is still missing of it is counted in as drift."""

_DIRECT = 32
"""Steps up to which the leaning is read off a product of matrices."""

_TINY = 1e-90
"""A weight below this may have lost digits."""


class Tilted:
    """What one matrix passes on when the state some steps later is known.

    Given that state, b, the next one has the probabilities ``P(s, s') h(s')``, normalised, where ``h`` says how likely
    b is from each. For rows so weighed, with ``log max h / min h <= η`` (the *leaning*), it is ``L(α + η) + L(η)`` at
    most: a ratio of sums of ``P h x`` over one of sums of ``P h``, with x from 1 to e^α. The leaning fades with the
    number of steps to b, so that far from it the loss is that of the matrix itself.

    Parameters
    ----------
    matrix
        ``(n, n)``, not negative: a transition matrix, or one whose rows and columns are multiplied by weights.
    far, drift
        ``(n,)`` weights of the far future, in proportion to which others are taken; and by which ``log max / min`` a
        step changes them.
    most
        For how many steps leanings are needed.
    """

    def __init__(self, matrix: FloatArray, far: FloatArray, drift: float, most: int) -> None:
        rows = matrix * far
        self._loss, self._drift = LossFunction(rows / rows.sum(axis=1, keepdims=True)), drift
        self.leanings = np.full(most + 1, np.inf)
        """For each number of steps to the known state."""
        product, holds = np.eye(len(matrix)), np.eye(len(matrix))
        for steps in range(1, most + 1):
            before = self.leanings[steps - 1]
            if np.isfinite(before):
                self.leanings[steps] = self._loss.step(float(before)) + self._drift
            if steps <= _DIRECT:
                product, holds = matrix @ product, ((matrix > 0) @ holds > 0).astype(np.float64)
                possible = product[:, holds.any(axis=0)]
                if possible.min() >= _TINY:
                    direct = np.ptp(np.log(possible) - np.log(far)[:, None], axis=0).max()
                    self.leanings[steps] = min(self.leanings[steps], direct)

    @classmethod
    def of(cls, matrix: FloatArray, most: int) -> Tilted | None:
        """The steps of a matrix; None where losses pass undiminished, a row is zero, or digits may be lost."""
        if not matrix.any(axis=1).all() or matrix[matrix > 0].min() < _TINY:
            return None
        made = cls(matrix, *_far_future(matrix), most)
        return None if made._loss.is_identity else made

    def passed(self, alphas: FloatArray, steps: int, leanings: FloatArray) -> FloatArray:
        """What is left of losses after so many steps, seen with these leanings; infinite where nothing is known."""
        known = np.isfinite(leanings)
        less = np.where(known, leanings, 0.0)
        more = alphas + less
        for step in range(min(steps, _DIRECT)):
            drift = self._drift if step else 0.0
            more, less = self._loss.steps(more + drift), self._loss.steps(less + drift)
        return np.where(known, more + less, np.inf)

    def passed_far(self, alpha: float, steps: int, least: int, most: int) -> float:
        """The same of one loss, where the known state is at least and at most so many steps away."""
        leaning = self.leanings[least] + most * self._drift
        return float(self.passed(np.asarray(alpha), steps, np.asarray(leaning)))


def _far_future(matrix: FloatArray) -> tuple[FloatArray, float]:
    """Weights ``(n,)`` that a step leaves as they are, nearly; and by which ``log max / min`` it does change them."""
    power, found = matrix, np.ones(len(matrix))
    drift = float(np.ptp(np.log(matrix @ found)))
    for _ in range(_SQUARINGS):
        power = power / power.max()
        far = power @ np.ones(len(matrix))
        if drift < 1e-12 or far.min() < _TINY * far.max():
            break
        found, drift = far, float(np.ptp(np.log(matrix @ far) - np.log(far)))
        power = power @ power
    return found / found.max(), drift
