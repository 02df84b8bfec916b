"""How far the best single guess is expected to be from the truth, and how sure it can be: what a belief tells."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot, inf, sqrt
from typing import NamedTuple

import numpy as np

from dphmm.arrays import FloatArray

ACCURACY = 0.02
"""By which part of itself the least expected distance may be stated too small."""

_FEW = 4096
"""Among more states than this, those of hardly any mass are left out: the lower bound can only get smaller."""
_FAINT = 1e-6
_TURNS, _QUICK = 64, 2
_TOUCHING, _FLAT = 1e-9, 0.02
_FURTHER = 1.8
"""Twice Weiszfeld's step is Newton's where the mass lies evenly in all directions of a plane; below it, it settles."""


class PointEstimate(NamedTuple):
    """What an adversary with a belief can say of where the person is, in the unit of the points.

    Parameters
    ----------
    mean
        The mean of the points under the belief.
    mean_error
        The expected distance of the mean from the person.
    spread
        The root of the expected square of that distance.
    least_error
        The expected distance of the best point there is, the one that is expected to be nearest (the geometric median
        of the belief): a certified lower bound, which is above `ACCURACY` less than it but where rounding or points in
        one line keep the search from an end.
    certainty
        The probability of the most probable state.
    """

    mean: tuple[float, ...]
    mean_error: float
    spread: float
    least_error: float
    certainty: float


def point_estimate(probabilities: FloatArray, points: FloatArray) -> PointEstimate:
    """What a belief amounts to: see `PointEstimate`.

    Parameters
    ----------
    probabilities
        ``(N,)``, not negative, with sum one.
    points
        ``(N, d)``. Of points that lie in memory by columns no copy is made.

    Notes
    -----
    The search is Newton's at first, then Weiszfeld's with over-relaxation. For any point ``y`` and vectors ``u_i`` of
    length at most one, with ``P = Σ p_i``, ``g = Σ p_i u_i`` and ``m`` the mean, weak duality gives
    ``min_q Σ p_i |x_i - q| >= (Σ p_i u_i (x_i - y) - g (m - y)) / (1 + |g| / P)``; the ``u_i`` are the directions from
    ``y`` to the points, but for the point next to ``y``, whose vector makes ``g`` as small as it can. So what is told
    is true wherever the search ends.
    """
    p, columns = probabilities, np.ascontiguousarray(points.T)
    positive = np.flatnonzero(p)
    if 2 * len(positive) < len(p):
        p, columns = p[positive], columns.take(positive, axis=1)
    mean = _mean(p, columns)
    squares = _squares(columns - mean[:, np.newaxis])
    error, square = _sum(p, np.sqrt(squares)), _sum(p, squares)
    certainty = min(float(p.max()), 1.0)
    if len(columns) == 1:
        least = _about_the_median(p, columns[0])
    else:
        if len(p) > _FEW:
            kept = np.flatnonzero(p > _FAINT / len(p))
            p, columns = p[kept], columns.take(kept, axis=1)
        least = _search(p, columns)
    return PointEstimate(tuple(mean.tolist()), error, sqrt(square), min(max(least, 0.0), error), certainty)


def expected_errors(rows: Iterable[FloatArray], points: FloatArray) -> FloatArray:
    """How far guesses are expected to be off under some beliefs, ``(2, T)``: spread and least error of `PointEstimate`.

    Parameters
    ----------
    rows
        ``(T, N)``: probabilities, with sum one in each row.
    points
        ``(N, d)``.
    """
    columns = np.asfortranarray(points)
    guesses = (point_estimate(row, columns) for row in rows)
    return np.array([(guess.spread, guess.least_error) for guess in guesses]).reshape(-1, 2).T


def _about_the_median(p: FloatArray, x: FloatArray) -> float:
    """The expected distance of the median of points in a line."""
    order = np.argsort(x)
    median = x[order[int(np.searchsorted(np.cumsum(p[order]), 0.5 * float(p.sum()))) % len(x)]]
    return float(p @ np.abs(x - median))


def _search(p: FloatArray, columns: FloatArray) -> float:
    """What the expected distance of no point is below, for masses ``(N,)`` at points ``(d, N)``.

    The search begins at the mean. Each turn looks at where the masses lie about a point, what follows for all others,
    and where to look next.
    """
    whole, mean = float(p.sum()), _mean(p, columns)
    at, least, reached = mean, -inf, inf
    for turn in range(_TURNS + 1):
        away = columns - at[:, np.newaxis]
        distance = np.sqrt(_squares(away))
        near = int(distance.argmin())
        nearest, next_to = float(distance[near]), away[:, near]
        same = distance == nearest if nearest == 0.0 else np.arange(near, near + 1)
        error, mass = _sum(p, distance), float(p[same].sum())
        distance[same] = inf
        pull = p / distance
        rest = np.einsum("n,dn->d", pull, away)  # what pulls here, but for the point next to here
        force = hypot(*rest.tolist())
        # The vector of the next point that leaves least of the sum; where that is nothing, no point is better than it.
        share = mass / max(force, mass) if mass > 0.0 else 0.0
        left = rest - share * rest
        inner = error - mass * nearest - share * float(rest @ next_to)
        least = max(least, (inner - float(left @ (mean - at))) / (1.0 + hypot(*left.tolist()) / whole))
        reached = min(reached, error)
        if least >= (1.0 - ACCURACY) * reached:
            break
        if force <= mass:
            move = next_to
        elif nearest <= _TOUCHING * error:  # here is a point: Vardi and Zhang's step away from it
            move = rest * (1.0 - mass / force) / float(pull.sum())
        else:
            distance[same] = nearest
            pull[same] = p[same] / nearest
            weight, rest = float(pull.sum()), rest + mass / nearest * next_to
            along = pull * away[0] / (distance * distance)
            xx, xy = _sum(along, away[0]), _sum(along, away[-1])
            determinant = (weight - xx) * xx - xy * xy  # and yy is what is missing of the weight
            if turn < _QUICK and len(rest) == 2 and determinant > _FLAT * weight * weight:
                x, y = rest.tolist()  # Newton's step, which is quicker and may miss
                move = np.array([xx * x + xy * y, (weight - xx) * y + xy * x]) / determinant
            else:
                move = rest * _FURTHER / weight
        at = at + move
    return least


def _mean(p: FloatArray, columns: FloatArray) -> FloatArray:
    """The mean of points ``(d, N)``; sums are the same for any number of threads."""
    return np.asarray(np.einsum("n,dn->d", p, columns) / p.sum())


def _squares(away: FloatArray) -> FloatArray:
    """The squared lengths of vectors ``(d, N)``, axis after axis."""
    return np.asarray(np.einsum("dn,dn->n", away, away))


def _sum(ones: FloatArray, others: FloatArray) -> float:
    """The sum of the products of numbers ``(N,)``."""
    return float(np.einsum("n,n->", ones, others))
