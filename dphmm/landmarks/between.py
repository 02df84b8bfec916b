"""What the releases between one member and the next tell of both, for each time at which the next may lie.

Three things are put together: the bounds of `dphmm.landmarks.bridge` and `dphmm.landmarks.tilted` on a stretch without
further members; that of a stretch with one member more, ``loss(i, j) <= loss(i, v) + epsilon_v + loss(v, j)``, since
what is told of the ends alone is an average over the state at v; and the sum of budgets.
"""

from __future__ import annotations

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.landmarks.bridge import EXACT_STEPS, Steps, passed
from dphmm.landmarks.tilted import Tilted

_NEAR = 1024
"""Times from the first one up to which every way to split a stretch is tried, at a cost of their number squared."""


def losses_from(budgets: FloatArray, steps: Steps | None, start: int, sign: int = 1) -> FloatArray:
    """What releases strictly between the first of successive times and each tell of the states at both.

    Parameters
    ----------
    budgets
        ``(g,)`` of the times, both ends included.
    steps
        How states move; None uses nothing but the budgets.
    start
        Which of all times the first is.
    sign
        1, or -1 where the times run backwards.

    Returns
    -------
    FloatArray
        ``(g,)``, upper bounds; zero for the first time and its neighbour.
    """
    spent = np.where(np.arange(len(budgets)) > 0, budgets, 0.0)
    found = np.cumsum(spent) - spent
    if steps is None or not spent[:-1].any():
        return found
    near = _Stretch(spent[:_NEAR], steps, start, sign)
    tilted = steps.tilted(near.size, sign), steps.tilted(near.size, -sign)
    if steps.is_small or np.isfinite(near.since[1:]).any() or any(tilted):
        found[:_NEAR] = np.minimum(found[:_NEAR], near.split(*tilted))
    if len(spent) > _NEAR:
        far = _Stretch(spent, steps, start, sign).as_one(*tilted)
        found[_NEAR:] = np.minimum(found[_NEAR:], far[_NEAR:])
    return found


class _Stretch:
    """Successive times, the first of which is a member; what it spends does not matter and is zero."""

    def __init__(self, spent: FloatArray, steps: Steps, start: int, sign: int) -> None:
        self.size, self.spent, self.steps = len(spent), spent, steps
        self._start, self._sign = start, sign
        # The release before each time, the first time where there is none, and the spread of the steps from there.
        self.last = np.zeros(self.size, dtype=np.int64)
        self.last[1:] = np.maximum.accumulate(np.where(spent > 0, np.arange(self.size), 0))[:-1]
        self.since = np.array([self._spread(a, t) for t, a in enumerate(self.last.tolist())])

    def _spread(self, a: int, b: int) -> float:
        return self.steps.spread(self._start + self._sign * a, self._start + self._sign * b)

    def as_one(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """A bound for the times from `_NEAR` on: by all releases towards the first time, and from it to each time."""
        towards, half = 0.0, _NEAR // 2
        away: FloatArray = np.zeros(self.size)
        for at in np.flatnonzero(self.spent[:-1])[::-1].tolist():
            told = self.spent[at] + towards
            towards = float(passed(self.since[at], told))
            if to is not None and at <= half:  # every one of those times is at least half away
                towards = min(towards, to.passed_far(told, at - int(self.last[at]), half, self.size))
        for t in np.flatnonzero(self.last).tolist():
            at = int(self.last[t])
            told = self.spent[at] + away[at]
            away[t] = passed(self.since[t], told)
            if fro is not None and at >= half:
                away[t] = min(away[t], fro.passed_far(told, t - at, half, self.size))
        return np.asarray(np.where(self.last > 0, towards + away, 0.0))

    def split(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """The least over all ways to put members in between, each stretch by the least of its bounds."""
        direct = self._direct(to, fro)
        least: FloatArray = np.array(direct[0])
        for t in range(2, self.size):
            least[t] = min(least[t], (least[1:t] + self.spent[1:t] + direct[1:t, t]).min())
        return least

    def _direct(self, to: Tilted | None, fro: Tilted | None) -> FloatArray:
        """``(g, g)``: of two times, a bound without members in between."""
        size, spent, last, since = self.size, self.spent, self.last, self.since
        following = np.full(size, size)  # the release after each time
        following[:-1] = np.minimum.accumulate(np.where(spent > 0, np.arange(size), size)[:0:-1])[::-1]
        ahead = np.array([self._spread(v, at) if at < size else np.inf for v, at in enumerate(following.tolist())])
        towards, away = np.zeros((size, size)), np.zeros((size, size))
        for v in np.flatnonzero(following < size - 1)[::-1]:
            at = int(following[v])
            told = spent[at] + towards[at, at + 1 :]
            towards[v, at + 1 :] = passed(ahead[v], told)
            if to is not None:
                seen = to.passed(told, at - int(v), to.leanings[1 : size - at])
                towards[v, at + 1 :] = np.minimum(towards[v, at + 1 :], seen)
        for t in np.flatnonzero(last):
            at = int(last[t])
            told = spent[at] + away[:at, at]
            away[:at, t] = passed(since[t], told)
            if fro is not None:
                away[:at, t] = np.minimum(away[:at, t], fro.passed(told, int(t) - at, fro.leanings[at:0:-1]))
        sums = np.cumsum(spent)
        direct = np.minimum(np.maximum((sums - spent) - sums[:, None], 0.0), towards + away)
        for at in np.flatnonzero(spent[:-1]).tolist():  # one release between the two
            starts, stops = np.arange(last[at], at), np.arange(at + 1, min(following[at] + 1, size))
            alone = passed(ahead[starts][:, None] + since[stops], spent[at])
            if self.steps.is_small:
                for i in range(max(len(starts) - EXACT_STEPS, 0), len(starts)):
                    for j in range(min(len(stops), EXACT_STEPS)):
                        first, middle, end = (self._start + self._sign * int(k) for k in (starts[i], at, stops[j]))
                        alone[i, j] = min(alone[i, j], self.steps.loss(first, middle, end, float(spent[at])))
            part = np.ix_(starts, stops)
            direct[part] = np.minimum(direct[part], alone)
        return direct
