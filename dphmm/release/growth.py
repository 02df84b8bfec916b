"""How fast an estimate gets worse while nothing is released."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.markov.belief import Belief
from dphmm.markov.model import MarkovModel
from dphmm.release.account import DAY_SECONDS

_PLACES = 8
"""From how many places the error is followed."""

_FEWEST, _MOST, _WORK = 64, 2048, 1e8
"""For how many steps at least and at most; in between, until so many states were gone through."""

_SETTLED = 0.98
"""The share of the error of someone who knows nothing from which on the curve is known well enough."""

_REST = 256
"""After so many steps nothing much is left of where somebody began."""


@dataclass(frozen=True)
class Growth:
    """The expected error of a prediction, so many steps after the place was known.

    Parameters
    ----------
    errors
        ``(h + 1,)``: after 0, 1, … steps, averaged over places as likely as they are in the long run; it never falls.
    """

    errors: FloatArray

    @classmethod
    def of(cls, model: MarkovModel, points: FloatArray) -> Growth:
        """The curve of a model for measurements ``(N, d)``: from a few places, until the error hardly grows.

        Where the model varies with time they are left at hours that are spread over a day.
        """
        rest = Belief.first(model, 0).predict(model, _REST, 0)
        masses = rest.probabilities
        levels = (np.arange(_PLACES) + 0.5) / _PLACES
        starts = np.searchsorted(np.cumsum(masses), levels * masses.sum()).clip(max=model.size - 1).tolist()
        day = DAY_SECONDS / (model.step_seconds or DAY_SECONDS)
        slots = [int(day * number / _PLACES) for number in range(_PLACES)]
        beliefs = [
            Belief.first(model, slot, np.eye(1, model.size, start)[0])
            for slot, start in zip(slots, starts, strict=True)
        ]
        settled, errors = _SETTLED * _error(rest, points), [0.0]
        for step in range(int(np.clip(_WORK / (_PLACES * model.size), _FEWEST, _MOST))):
            beliefs = [one.predict(model, 1, slot + step) for one, slot in zip(beliefs, slots, strict=True)]
            errors.append(max(sum(_error(one, points) for one in beliefs) / _PLACES, errors[-1]))
            if errors[-1] >= settled:
                break
        return cls(np.array(errors))

    @property
    def _slope(self) -> float:
        """How much the error still grows in a step where the curve ends."""
        half = len(self.errors) // 2
        return float(self.errors[-1] - self.errors[half]) / max(1, len(self.errors) - 1 - half)

    def step_of(self, error: float) -> float:
        """After how many steps the error is so large; beyond the curve's end as far as it grew there last."""
        if error > self.errors[-1]:
            beyond = float(error - self.errors[-1]) / max(self._slope, 1e-12)
            return len(self.errors) - 1 + min(beyond, float(len(self.errors)))
        first: int = int(np.searchsorted(self.errors, error))
        if first == 0:
            return 0.0
        low, high = float(self.errors[first - 1]), float(self.errors[first])
        return first - 1 + (error - low) / (high - low)

    def steps_between(self, low: float, high: float) -> float:
        """In how many steps the error grows from one level to another."""
        return max(0.0, self.step_of(high) - self.step_of(low))

    def cycle(self, low: float, high: float) -> tuple[float, float]:
        """The steps from one level to a higher one, at least one, and the error saved meanwhile against the higher."""
        start, end = self.step_of(low), self.step_of(high)
        if end - start <= 1.0:
            return 1.0, high - low
        inner = np.arange(np.floor(start) + 1, np.ceil(end))
        times = np.concatenate([[start], inner, [end]])
        known = np.interp(times, np.arange(len(self.errors)), self.errors)
        known[0], known[-1] = low, high
        return end - start, float(np.trapezoid(np.maximum(high - known, 0.0), times))


def _error(belief: Belief, points: FloatArray) -> float:
    """The expected distance from the mean under a belief."""
    masses = belief.probabilities
    return float(masses @ np.linalg.norm(points - masses @ points, axis=1))
