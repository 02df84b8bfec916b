"""How far the best single guess is expected to be from the truth, and how sure it can be: what a belief tells."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, inf
from operator import mul

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.compilation import often
from dphmm.markov import kernels

ACCURACY = 0.02
"""By which part of itself the least expected distance may be told too small."""

_FEW = 4096
"""Of more states than this those that hardly count are left out: what is told can but get smaller by that."""
_FAINT = 1e-6
_TURNS, _QUICK = 64, 2
_TOUCHING, _FLAT = 1e-9, 0.02
_FURTHER = 1.8
"""Twice Weiszfeld's step is Newton's where the mass lies evenly in all directions of a plane; below it, it settles."""


@dataclass(frozen=True)
class Guess:
    """What somebody who holds a belief can say of where the person is, in the unit of the points.

    Parameters
    ----------
    mean
        The mean of the points under the belief.
    mean_error
        The expected distance of the mean from the person.
    least_error
        The expected distance of the best point there is, the one that is expected to be nearest (the geometric median
        of the belief): a certified lower bound, which is above `ACCURACY` less than it but where rounding or points in
        one line keep the search from an end.
    certainty
        The probability of the most probable state.
    """

    mean: tuple[float, ...]
    mean_error: float
    least_error: float
    certainty: float


def best_guess(probabilities: FloatArray, points: FloatArray) -> Guess:
    """What a belief amounts to: see `Guess`.

    Parameters
    ----------
    probabilities
        ``(N,)``, not negative, with sum one.
    points
        ``(N, d)``.

    Notes
    -----
    The search is Newton's at first, then Weiszfeld's with over-relaxation. For any point ``y`` and vectors ``u_i`` of
    length at most one, with ``g = Σ p_i u_i`` and ``m`` the mean, weak duality gives
    ``min_q Σ p_i |x_i - q| >= (Σ p_i u_i (x_i - y) - g (m - y)) / (1 + |g|)``; the ``u_i`` are the directions from
    ``y`` to the points, but for the point next to ``y``, whose vector makes ``g`` as small as it can. So what is told
    is true wherever the search ends.
    """
    mean = np.asarray(probabilities @ points)
    certainty = min(float(probabilities.max()), 1.0)
    # Of points that lie in memory by columns this is no copy.
    p, columns, middle = probabilities, np.ascontiguousarray(points.T), mean.tolist()
    look = _Look(p, columns, middle, middle)
    error = look.error
    if len(columns) == 1:
        return Guess(tuple(middle), error, min(_about_the_median(p, columns[0]), error), certainty)
    if len(p) > _FEW:
        kept = np.flatnonzero(p > _FAINT / len(p))
        p, columns = p[kept], columns.take(kept, axis=1)
        middle = [float(p @ column) for column in columns]
        look = _Look(p, columns, middle, middle)
    least, reached = look.bound, look.error
    for turn in range(_TURNS):
        if least >= (1.0 - ACCURACY) * reached:
            break
        look = _Look(p, columns, look.onward(turn < _QUICK), middle)
        least, reached = max(least, look.bound), min(reached, look.error)
    return Guess(tuple(mean.tolist()), error, min(max(least, 0.0), error), certainty)


class _Look:
    """The expected distance of a point, what no point can go below, and where to look next."""

    def __init__(self, p: FloatArray, columns: FloatArray, at: list[float], mean: list[float]) -> None:
        self._columns, self._at = columns, at
        out = np.empty(6 + len(at))
        self._near = near = int(_looks_around(p, columns, tuple(at), out))
        self.error, self._nearest, mass, self._weight, *self._squares = out[:6].tolist()
        self._mass, self._rest = mass, out[6:].tolist()
        rest = self._rest  # with which all but the point next to here pull
        self._away = away = [float(column[near]) - here for column, here in zip(columns, at, strict=True)]
        self._force = force = hypot(*rest)
        # The vector of the next point that leaves least of the sum; where that is nothing, no point is better than it.
        most = max(force, mass)
        share = mass / most if most > 0 else 0.0
        left = [part - share * part for part in rest]
        inner = self.error - mass * self._nearest - share * sum(map(mul, rest, away))
        off = sum(part * (m - here) for part, m, here in zip(left, mean, at, strict=True))
        self.bound = (inner - off) / (1.0 + hypot(*left))

    def onward(self, newton: bool) -> list[float]:
        """Where the error is less, or nearly so; by Newton's step, which is quicker and may miss."""
        rest, away = self._rest, self._away
        if self._force <= self._mass:
            return [float(column[self._near]) for column in self._columns]
        if self._nearest <= _TOUCHING * self.error:  # here is a point: Vardi and Zhang's step away from it
            return self._by((1.0 - self._mass / self._force) / self._weight, rest)
        own = self._mass / self._nearest
        rest, weight = [part + own * one for part, one in zip(rest, away, strict=True)], self._weight + own
        if newton and len(rest) == 2:
            along = own / (self._nearest * self._nearest) * away[0]
            xx, xy = (part + along * one for part, one in zip(self._squares, away, strict=True))
            determinant = (weight - xx) * xx - xy * xy  # and yy is what is missing of the weight
            if determinant > _FLAT * weight * weight:
                return self._by(1 / determinant, [xx * rest[0] + xy * rest[1], (weight - xx) * rest[1] + xy * rest[0]])
        return self._by(_FURTHER / weight, rest)

    def _by(self, factor: float, move: list[float]) -> list[float]:
        return [here + factor * part for here, part in zip(self._at, move, strict=True)]


def _about_the_median(p: FloatArray, x: FloatArray) -> float:
    """The expected distance of the median of points in a line."""
    order = np.argsort(x)
    median = x[order[int(np.searchsorted(np.cumsum(p[order]), 0.5 * float(p.sum()))) % len(x)]]
    return float(p @ np.abs(x - median))


@often(kernels.looks_around)
def _looks_around(p: FloatArray, columns: FloatArray, at: tuple[float, ...], out: FloatArray) -> int:
    """Where masses ``(N,)`` at points ``(d, N)`` lie about a point; the index of the nearest of them is given back.

    ``out``, ``(6 + d,)``, is filled with the expected distance from it; the distance and the mass of the nearest point
    (of all those that are there, where some are); and of all other points sums over the unit vectors ``u`` to them,
    weighed by mass over distance: their number, ``u_x u_x``, ``u_x u_y``, and last, times the distance, ``u``.
    """
    away = columns - np.array(at)[:, None]
    squares = away[0] * away[0]
    for one in away[1:]:
        squares += one * one
    distance = np.sqrt(squares)
    near = int(distance.argmin())
    same = distance == 0.0 if distance[near] == 0.0 else [near]
    out[0] = _summed((p * distance)[None])[0]
    out[1], out[2] = distance[near], np.add.accumulate(p[same])[-1]
    distance[same] = inf
    terms = np.empty((3 + len(at), len(p)))
    pull = np.divide(p, distance, out=terms[0])
    distance *= distance
    along = np.divide(pull, distance, out=distance)
    along *= away[0]
    np.multiply(along, away[[0, -1]], out=terms[1:3])
    np.multiply(pull, away, out=terms[3:])
    out[3:] = _summed(terms)
    return near


def _summed(terms: FloatArray) -> FloatArray:
    """The sums of terms ``(k, N)`` by lanes, as `dphmm.markov.kernels.looks_around` adds them."""
    lanes, whole = kernels.LANES, terms.shape[1] // kernels.LANES * kernels.LANES
    sums = terms[:, :whole].reshape(len(terms), -1, lanes).sum(axis=1)
    rest = terms[:, whole:]
    sums[:, : rest.shape[1]] += rest
    return np.asarray(np.add.accumulate(sums, axis=1)[:, -1])
