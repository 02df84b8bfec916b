"""How far the best single guess is expected to be from the truth, and how sure it can be; circles that hold people."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from math import asinh, hypot, inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.compilation import often
from dphmm.errors import InvalidInputError
from dphmm.model.away import Beyond

ACCURACY = 0.02
"""By which part of itself the least expected distance may be stated too small."""

_ROOT_MEAN_SQUARE, _MEAN = sqrt(1 / 6), (sqrt(2) + asinh(1)) / 6
"""The distance of a place anywhere in a square from its centre, in sides: by its mean square, and the mean itself."""

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
        The expected distance of the mean from the person; within a cell, by the mean of the square.
    spread
        The root of the expected square of that distance.
    least_error
        The expected distance of the best point there is, the one that is expected to be nearest (the geometric median
        of the belief): a certified lower bound, which is above `ACCURACY` less than it but where rounding or points in
        one line keep the search from an end. Within a cell no less than what is expected of its centre.
    certainty
        The probability of the most probable state.
    """

    mean: tuple[float, ...]
    mean_error: float
    spread: float
    least_error: float
    certainty: float


def within_cell(cell: float) -> float:
    """The root of the mean square distance of a place, anywhere in a square cell of this side, from the centre."""
    return _ROOT_MEAN_SQUARE * cell


def expected_distance(
    probabilities: FloatArray, points: FloatArray, cell: float = 0.0, beyond: Beyond | None = None
) -> float:
    """The ``mean_error`` of `point_estimate` alone, whose parameters these are."""
    vectors = points - probabilities @ points
    distances = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    found = float(probabilities @ np.sqrt(distances**2 + within_cell(cell) ** 2))
    return found if beyond is None else found + _further(distances[beyond.states], cell, beyond)


def _further(distances: FloatArray, cell: float, beyond: Beyond) -> float:
    """How much larger an expected distance is for people outside, whose points are some distances ``(m,)`` away."""
    inside = np.sqrt(distances**2 + within_cell(cell) ** 2)
    return float(beyond.masses @ np.maximum(distances + beyond.reach - inside, 0.0))


def point_estimate(
    probabilities: FloatArray, points: FloatArray, cell: float = 0.0, beyond: Beyond | None = None
) -> PointEstimate:
    """What a belief amounts to: see `PointEstimate`.

    Parameters
    ----------
    probabilities
        ``(N,)``, not negative, with sum one.
    points
        ``(N, d)``. Of points that lie in memory by columns no copy is made.
    cell
        The side of the square cell that each point is the centre of, in the same unit: the person is anywhere in it. 0
        where they are at the point.
    beyond
        What of the masses is of people outside the region, see `dphmm.model.away`. Of such a person, in a direction
        that is not known, the mean's error is at most the distance of the point and how far from it they are; and
        ``least_error`` counts them as found.

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
    mean, certainty = _mean(p, columns), min(float(p.max()), 1.0)
    about = mean
    look = _look(p, columns, mean)
    error, square, within = look.error, look.square, within_cell(cell)
    if cell:
        squares = np.add.reduce((columns - mean[:, np.newaxis]) ** 2)
        error = float(_in_order(p * np.sqrt(squares + within * within)))
    square += within * within
    if beyond is not None:
        distances = np.linalg.norm(points[beyond.states] - mean, axis=1)
        error += _further(distances, cell, beyond)
        squares = (distances + np.sqrt(beyond.square)) ** 2 - distances**2 - within * within
        square += float(beyond.masses @ np.maximum(squares, 0.0))
        p, columns = probabilities.copy(), np.ascontiguousarray(points.T)
        p[beyond.states] = np.maximum(p[beyond.states] - beyond.masses, 0.0)
        p, columns = p[p > 0.0], columns[:, p > 0.0]
        if not len(p):
            return PointEstimate(tuple(mean.tolist()), error, sqrt(square), 0.0, certainty)
        about = _mean(p, columns)
        look = _look(p, columns, about)
    if len(columns) == 1:
        least = _about_the_median(p, columns[0])
    elif len(p) <= _FEW:
        least = _search(p, columns, about, look)
    else:
        kept = np.flatnonzero(p > _FAINT / len(p))
        p, columns = p[kept], columns.take(kept, axis=1)
        middle = _mean(p, columns)
        least = _search(p, columns, middle, _look(p, columns, middle))
    least = min(max(least, _MEAN * cell * (1.0 if beyond is None else float(p.sum()))), error)
    return PointEstimate(tuple(mean.tolist()), error, sqrt(square), least, certainty)


def expected_errors(
    rows: Iterable[FloatArray], points: FloatArray, cell: float = 0.0, beyond: Iterable[Beyond | None] = ()
) -> FloatArray:
    """How far guesses are expected to be off under some beliefs, ``(2, T)``: spread and least error of `PointEstimate`.

    Parameters
    ----------
    rows
        ``(T, N)``: probabilities, with sum one in each row.
    points, cell
        As of `point_estimate`.
    beyond
        That of each row; left out, none.
    """
    columns = np.asfortranarray(points)
    guesses = (point_estimate(row, columns, cell, out) for row, out in zip_longest(rows, beyond))
    return np.array([(guess.spread, guess.least_error) for guess in guesses]).reshape(-1, 2).T


def _about_the_median(p: FloatArray, x: FloatArray) -> float:
    """The expected distance of the median of points in a line."""
    order = np.argsort(x)
    median = x[order[int(np.searchsorted(np.cumsum(p[order]), 0.5 * float(p.sum()))) % len(x)]]
    return float(p @ np.abs(x - median))


class _Look(NamedTuple):
    """Where the masses lie about a point.

    Parameters
    ----------
    near
        The state next to the point, or one of those on it.
    nearest
        How far it is.
    mass
        The mass on it, or on all states on the point.
    error, square
        The sums of the masses times distances, and times squared distances.
    weight
        The sum of the masses over distances, but for ``mass``; so are those that follow.
    force
        ``(d,)``: the sum of the directions to the masses, times these.
    xx, xy
        Sums of products of the first coordinate of directions with itself and with the last, over distances.
    """

    near: int
    nearest: float
    mass: float
    error: float
    square: float
    weight: float
    force: FloatArray
    xx: float
    xy: float


def _look(p: FloatArray, columns: FloatArray, at: FloatArray) -> _Look:
    """What is about a point ``(d,)``, for masses ``(N,)`` at points ``(d, N)``."""
    force = np.empty(len(columns))
    near, nearest, mass, error, square, weight, xx, xy = _sums_about(p, columns, at, force)
    return _Look(near, nearest, mass, error, square, weight, force, xx, xy)


def _search(p: FloatArray, columns: FloatArray, mean: FloatArray, look: _Look) -> float:
    """What the expected distance of no point is below, for masses ``(N,)`` at points ``(d, N)``.

    The search begins at the mean. Each turn looks at where the masses lie about a point, what follows for all others,
    and where to look next.
    """
    whole, at, least, reached = float(p.sum()), mean, -inf, inf
    for turn in range(_TURNS + 1):
        if turn:
            look = _look(p, columns, at)
        rest, mass, nearest = look.force, look.mass, look.nearest
        next_to, force = columns[:, look.near] - at, hypot(*rest.tolist())
        # The vector of the next point that leaves least of the sum; where that is nothing, no point is better than it.
        share = mass / max(force, mass) if mass > 0.0 else 0.0
        left = rest - share * rest
        inner = look.error - mass * nearest - share * float(rest @ next_to)
        least = max(least, (inner - float(left @ (mean - at))) / (1.0 + hypot(*left.tolist()) / whole))
        reached = min(reached, look.error)
        if least >= (1.0 - ACCURACY) * reached:
            break
        if force <= mass:
            move = next_to
        elif nearest <= _TOUCHING * look.error:  # here is a point: Vardi and Zhang's step away from it
            move = rest * (1.0 - mass / force) / look.weight
        else:
            pull = mass / nearest
            weight, rest = look.weight + pull, rest + pull * next_to
            first, last = next_to[0] / nearest, next_to[-1] / nearest
            xx, xy = look.xx + pull * first * first, look.xy + pull * first * last
            determinant = (weight - xx) * xx - xy * xy  # and yy is what is missing of the weight
            if turn < _QUICK and len(rest) == 2 and determinant > _FLAT * weight * weight:
                x, y = rest.tolist()  # Newton's step, which is quicker and may miss
                move = np.array([xx * x + xy * y, (weight - xx) * y + xy * x]) / determinant
            else:
                move = rest * _FURTHER / weight
        at = at + move
    return least


Sums = tuple[int, float, float, float, float, float, float, float]
"""What `_sums_about` returns: near, nearest, mass, error, square, weight, xx and xy of a `_Look`."""


def _sums_about_loop(p: FloatArray, columns: FloatArray, at: FloatArray, force: FloatArray) -> Sums:
    """`_sums_about`, written so that numba can compile it; to the last bit the same."""
    dimension, size = columns.shape
    near, nearest, mass, error, square, weight, xx, xy = 0, np.inf, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    distances = np.empty(size)
    force[:] = 0.0
    for i in range(size):
        total = 0.0
        for k in range(dimension):
            total += (columns[k, i] - at[k]) * (columns[k, i] - at[k])
        distances[i] = np.sqrt(total)
        error += p[i] * distances[i]
        square += p[i] * total
        if distances[i] < nearest:
            near, nearest = i, distances[i]
    for i in range(size):
        if i == near or distances[i] == 0.0:
            mass += p[i]
            continue
        pull = p[i] / distances[i]
        weight += pull
        for k in range(dimension):
            force[k] += pull * (columns[k, i] - at[k])
        along = pull * (columns[0, i] - at[0]) / (distances[i] * distances[i])
        xx += along * (columns[0, i] - at[0])
        xy += along * (columns[-1, i] - at[-1])
    return near, nearest, mass, error, square, weight, xx, xy


@often(_sums_about_loop)
def _sums_about(p: FloatArray, columns: FloatArray, at: FloatArray, force: FloatArray) -> Sums:
    """The sums of a `_Look`; ``force`` is filled in."""
    away = columns - at[:, np.newaxis]
    squares = np.add.reduce(away * away)
    distances = np.sqrt(squares)
    near = int(distances.argmin())
    nearest = float(distances[near])
    here = distances == 0.0 if nearest == 0.0 else np.arange(len(p)) == near
    terms = [p * distances, p * squares, p * here]
    distances[here] = inf
    pull = p / distances
    along = pull * away[0] / (distances * distances)
    terms += [pull, along * away[0], along * away[-1], *(pull * away)]
    error, square, mass, weight, xx, xy, *force[:] = _in_order(np.array(terms)).tolist()
    return near, nearest, mass, error, square, weight, xx, xy


def _in_order(terms: FloatArray) -> FloatArray:
    """Sums of rows ``(..., N)`` from the first to the last, as a loop adds them: releases depend on the last bit."""
    sums: FloatArray = np.cumsum(terms, axis=-1)[..., -1]
    return sums


def _mean(p: FloatArray, columns: FloatArray) -> FloatArray:
    """The mean of points ``(d, N)``; sums are the same for any number of threads."""
    return np.asarray(np.einsum("n,dn->d", p, columns) / p.sum())


COVERAGE = 0.9
"""The share of moments, on average over people, at which a person is to be within the circle."""

MOST_PEOPLE, MOSTLY = 0.9, 0.8
"""The share of people who are to be within it at this share of their moments or more."""

HOURS = (0.0, 1.0, 3.0)
"""Hours after the last draw up to which factors hold; the last factor is for longer."""


@checked
@dataclass(frozen=True)
class HeldRadii:
    """Factors by which circles about estimates are wider than the estimate's expected distance, to hold people.

    Cross-conformal: people who were left out of a fit were followed with noise, and the factor of a class of moments
    is the least that held `COVERAGE` of (distance / expected distance) over them, each person alike, and
    `MOST_PEOPLE` of them at `MOSTLY` of their moments, with the rank of split conformal prediction (one person more).
    It holds on average over people exchangeable with these; of few people it is itself uncertain, and single people
    may be held less.

    Parameters
    ----------
    factors
        Positive: at a draw where every moment has one; and under schedules, which draw after silences, one for each of
        `HOURS` and one for longer.
    people
        How many people they are of.
    coverage
        The share of moments that is held.

    Raises
    ------
    InvalidInputError
        When there is another number of factors, or one is not positive.
    """

    factors: tuple[float, ...]
    people: int
    coverage: float = COVERAGE

    def __post_init__(self) -> None:
        if len(self.factors) != len(HOURS) + 2 or not all(0 < one < inf for one in self.factors):
            raise InvalidInputError(f"factors are {self.factors}; give {len(HOURS) + 2} positive numbers")
        if not 0 < self.coverage < 1 or self.people < 1:
            raise InvalidInputError(f"coverage is {self.coverage:g} of {self.people} people; give a share, and people")

    def factor(self, hours: float, scheduled: bool) -> float:
        """The factor at some hours since the last draw.

        Parameters
        ----------
        hours
            0 at a draw; infinite where there was none.
        scheduled
            Whether a schedule chooses the moments of draws.

        Returns
        -------
        float
            By what the expected distance is multiplied.
        """
        return self.factors[0 if hours == 0 and not scheduled else 1 + bisect_left(HOURS, hours)]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values, which `from_dict` reads.

        Returns
        -------
        dict
            The fields.
        """
        return {**asdict(self), "factors": list(self.factors)}

    @classmethod
    @checked
    def from_dict(cls, values: Mapping[str, Any]) -> HeldRadii:
        """What `to_dict` wrote.

        Parameters
        ----------
        values
            The fields.

        Returns
        -------
        HeldRadii
            The factors.

        Raises
        ------
        InvalidInputError
            When the fields are others.
        """
        try:
            factors = tuple(float(one) for one in values["factors"])
            return cls(factors, int(values["people"]), float(values["coverage"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise InvalidInputError(f"the radii's factors cannot be read ({problem}); learn the model again") from None
