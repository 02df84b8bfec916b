"""How far the best single guess is expected to be from the truth, and how sure it can be: what a belief tells."""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot, inf, sqrt
from operator import mul
from typing import NamedTuple

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.compilation import often

ACCURACY = 0.02
"""By which part of itself the least expected distance may be told too small."""

LANES = 64
"""So many sums of every so manyth term are added up side by side."""
_FEW = 4096
"""Of more states than this those that hardly count are left out: what is told can but get smaller by that."""
_FAINT = 1e-6
_TURNS, _QUICK = 64, 2
_TOUCHING, _FLAT = 1e-9, 0.02
_FURTHER = 1.8
"""Twice Weiszfeld's step is Newton's where the mass lies evenly in all directions of a plane; below it, it settles."""


class Guess(NamedTuple):
    """What somebody who holds a belief can say of where the person is, in the unit of the points.

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


def best_guess(probabilities: FloatArray, points: FloatArray) -> Guess:
    """What a belief amounts to: see `Guess`.

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
    columns = np.ascontiguousarray(points.T)
    out = np.empty(4 + len(columns))
    _tell_of_the_mean(probabilities, columns, out)
    error, square, certainty, _, *mean = out.tolist()
    if len(columns) == 1:
        least = _about_the_median(probabilities, columns[0])
    else:
        p = probabilities
        if len(p) > _FEW:
            kept = np.flatnonzero(p > _FAINT / len(p))
            p, columns = p[kept], columns.take(kept, axis=1)
            _tell_of_the_mean(p, columns, out)
        least = _search(p, columns, out)
    return Guess(tuple(mean), error, sqrt(square), min(max(least, 0.0), error), min(certainty, 1.0))


def expected_errors(rows: Iterable[FloatArray], points: FloatArray) -> FloatArray:
    """How far guesses are expected to be off under some beliefs, ``(2, T)``: `Guess.spread` and `Guess.least_error`.

    Parameters
    ----------
    rows
        ``(T, N)``: probabilities, with sum one in each row.
    points
        ``(N, d)``.
    """
    columns = np.asfortranarray(points)
    guesses = (best_guess(row, columns) for row in rows)
    return np.array([(guess.spread, guess.least_error) for guess in guesses]).reshape(-1, 2).T


def _about_the_median(p: FloatArray, x: FloatArray) -> float:
    """The expected distance of the median of points in a line."""
    order = np.argsort(x)
    median = x[order[int(np.searchsorted(np.cumsum(p[order]), 0.5 * float(p.sum()))) % len(x)]]
    return float(p @ np.abs(x - median))


def _tell_of_the_mean_in_lanes(p: FloatArray, columns: FloatArray, out: FloatArray) -> None:
    """`_tell_of_the_mean`, written so that numba can compile it."""
    size, dimension = p.size, columns.shape[0]
    squares, sums = np.empty(LANES), np.zeros((4 + dimension, LANES))
    errors, errors_squared, largest, masses = sums[0], sums[1], sums[2], sums[3]
    for start in range(0, size, LANES):
        some = p[start : start + LANES]
        for k in range(some.size):
            masses[k] += some[k]
            largest[k] = some[k] if some[k] > largest[k] else largest[k]
        for d in range(dimension):
            column, means = columns[d, start : start + LANES], sums[4 + d]
            for k in range(some.size):
                means[k] += some[k] * column[k]
    out[:] = 0.0
    for j in range(3, 4 + dimension):
        for k in range(LANES):
            out[j] += sums[j, k]
    for d in range(dimension):
        out[4 + d] /= out[3]
    for start in range(0, size, LANES):
        some = p[start : start + LANES]
        squares[:] = 0.0
        for d in range(dimension):
            column, here = columns[d, start : start + LANES], out[4 + d]
            for k in range(some.size):
                away = column[k] - here
                squares[k] += away * away
        for k in range(some.size):
            errors[k] += some[k] * np.sqrt(squares[k])
            errors_squared[k] += some[k] * squares[k]
    for k in range(LANES):
        out[0] += errors[k]
        out[1] += errors_squared[k]
        out[2] = max(out[2], largest[k])


@often(_tell_of_the_mean_in_lanes)
def _tell_of_the_mean(p: FloatArray, columns: FloatArray, out: FloatArray) -> None:
    """What masses ``(N,)`` at points ``(d, N)`` amount to, into ``out``, ``(4 + d,)``.

    The expected distance from their mean, its expected square, the largest mass, the sum of all, and the mean.
    """
    out[3] = _summed(p[None])[0]
    out[4:] = _summed(p * columns) / out[3]
    squares = _squares(columns - out[4:, None])
    out[:2] = _summed(p * np.stack([np.sqrt(squares), squares]))
    out[2] = p.max()


def _look_around_in_lanes(p: FloatArray, columns: FloatArray, at: FloatArray, out: FloatArray) -> int:
    """`_look_around`, written so that numba can compile it."""
    size, dimension, near, nearest = p.size, columns.shape[0], 0, np.inf
    distance, (squares, pulls) = np.empty(size), np.empty((2, LANES))
    sums = np.zeros((6 + dimension, LANES))
    errors, weights, squares_x, squares_xy = sums[0], sums[3], sums[4], sums[5]
    for start in range(0, size, LANES):
        some, far = p[start : start + LANES], distance[start : start + LANES]
        squares[:] = 0.0
        for d in range(dimension):
            column, here = columns[d, start : start + LANES], at[d]
            for k in range(some.size):
                along = column[k] - here
                squares[k] += along * along
        for k in range(some.size):
            far[k] = np.sqrt(squares[k])
            errors[k] += some[k] * far[k]
    for i in range(size):
        if distance[i] < nearest:
            near, nearest = i, distance[i]
    mass = 0.0
    for i in range(near, size if nearest == 0.0 else near + 1):
        if distance[i] == nearest:
            mass, distance[i] = mass + p[i], np.inf
    for start in range(0, size, LANES):
        some, far = p[start : start + LANES], distance[start : start + LANES]
        first, last = columns[0, start : start + LANES], columns[dimension - 1, start : start + LANES]
        here, there = at[0], at[dimension - 1]
        for k in range(some.size):
            pulls[k] = some[k] / far[k]
            along = pulls[k] / (far[k] * far[k]) * (first[k] - here)
            weights[k] += pulls[k]
            squares_x[k] += along * (first[k] - here)
            squares_xy[k] += along * (last[k] - there)
        for d in range(dimension):
            column, here, rests = columns[d, start : start + LANES], at[d], sums[6 + d]
            for k in range(some.size):
                rests[k] += pulls[k] * (column[k] - here)
    out[:] = 0.0
    for j in range(6 + dimension):
        for k in range(LANES):
            out[j] += sums[j, k]
    out[1], out[2] = nearest, mass
    return near


@often(_look_around_in_lanes)
def _look_around(p: FloatArray, columns: FloatArray, at: FloatArray, out: FloatArray) -> int:
    """Where masses ``(N,)`` at points ``(d, N)`` lie about a point ``(d,)``; which of them is the nearest.

    ``out``, ``(6 + d,)``, is filled with the expected distance from it; the distance and the mass of the nearest point
    (of all those that are there, where some are); and of all other points sums over the unit vectors ``u`` to them,
    weighed by mass over distance: their number, ``u_x u_x``, ``u_x u_y``, and last, times the distance, ``u``.
    """
    away = columns - at[:, None]
    distance = np.sqrt(_squares(away))
    near = int(distance.argmin())
    nearest = distance[near]
    same = distance == nearest if nearest == 0.0 else [near]
    out[0], out[1], out[2] = _summed((p * distance)[None])[0], nearest, np.add.accumulate(p[same])[-1]
    distance[same] = inf
    pull = p / distance
    along = pull / (distance * distance) * away[0]
    out[3:] = _summed(np.stack([pull, along * away[0], along * away[-1], *(pull * away)]))
    return near


def _search(p: FloatArray, columns: FloatArray, told: FloatArray) -> float:
    """What the expected distance of no point is below, for masses ``(N,)`` at points ``(d, N)``.

    ``told`` is what `_tell_of_the_mean` says of them: the search begins there. Each turn looks at where the masses lie
    about a point, what follows for all others, and where to look next.
    """
    whole, *mean = told[3:].tolist()
    at, least, reached, out = mean, -inf, inf, np.empty(6 + len(mean))
    for turn in range(_TURNS + 1):
        near = _look_around(p, columns, np.array(at), out)
        error, nearest, mass, weight, xx, xy, *rest = out.tolist()  # the rest pulls all but the point next to here
        away = [float(column[near]) - here for column, here in zip(columns, at, strict=True)]
        force = hypot(*rest)
        # The vector of the next point that leaves least of the sum; where that is nothing, no point is better than it.
        share = mass / max(force, mass) if mass > 0.0 else 0.0
        left = [part - share * part for part in rest]
        off = sum(part * (m - here) for part, m, here in zip(left, mean, at, strict=True))
        inner = error - mass * nearest - share * sum(map(mul, rest, away))
        least = max(least, (inner - off) / (1.0 + hypot(*left) / whole))
        reached = min(reached, error)
        if least >= (1.0 - ACCURACY) * reached:
            break
        if force <= mass:
            move, factor = away, 1.0
        elif nearest <= _TOUCHING * error:  # here is a point: Vardi and Zhang's step away from it
            move, factor = rest, (1.0 - mass / force) / weight
        else:
            own = mass / nearest
            weight, rest = weight + own, [part + own * one for part, one in zip(rest, away, strict=True)]
            along = own / (nearest * nearest) * away[0]
            xx, xy = xx + along * away[0], xy + along * away[-1]
            determinant = (weight - xx) * xx - xy * xy  # and yy is what is missing of the weight
            if turn < _QUICK and len(rest) == 2 and determinant > _FLAT * weight * weight:
                x, y = rest  # Newton's step, which is quicker and may miss
                move, factor = [xx * x + xy * y, (weight - xx) * y + xy * x], 1.0 / determinant
            else:
                move, factor = rest, _FURTHER / weight
        at = [here + factor * part for here, part in zip(at, move, strict=True)]
    return least


def _squares(away: FloatArray) -> FloatArray:
    """The squared lengths of vectors ``(d, N)``, axis after axis."""
    squares = away[0] * away[0]
    for one in away[1:]:
        squares += one * one
    return np.asarray(squares)


def _summed(terms: FloatArray) -> FloatArray:
    """The sums of terms ``(k, N)``.

    The k-th term goes to the lane k modulo `LANES`, and then lane after lane is added, as the loops do.
    """
    whole = terms.shape[1] // LANES * LANES
    sums = terms[:, :whole].reshape(len(terms), -1, LANES).sum(axis=1)
    rest = terms[:, whole:]
    sums[:, : rest.shape[1]] += rest
    return np.asarray(np.add.accumulate(sums, axis=1)[:, -1])
