"""How far guesses are expected to be off under many beliefs at once: `dphmm.markov.guess` for each of them."""

from __future__ import annotations

from math import hypot, inf, sqrt

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.compilation import compiled
from dphmm.markov.guess import best_guess

_COMPILE_FROM = 1_000_000
"""With fewer probabilities than this, numpy is done before the compiled loop is loaded."""
ACCURACY, _FEW, _TURNS, _QUICK, _TOUCHING, _FLAT, _FURTHER = 0.02, 4096, 64, 2, 1e-9, 0.02, 1.8
"""As in `dphmm.markov.guess`. They stand here again as a compiled loop is kept until its own file changes."""


def expected_errors(rows: FloatArray, points: FloatArray, often: int = 1) -> tuple[FloatArray, FloatArray]:
    """How far guesses are expected to be off under some beliefs.

    Parameters
    ----------
    rows
        ``(T, N)``: probabilities, with sum one in each row.
    points
        ``(N, d)``.
    often
        How many calls there are of as many rows.

    Returns
    -------
    spread, least_error
        ``(T,)`` each: the root of the mean square distance of the mean, and the expected distance of the best point as
        `dphmm.markov.guess.Guess` tells it, but for rounding.
    """
    found = np.empty((2, len(rows)))
    loop = None  # of so many places that `best_guess` leaves some out, numpy takes no longer
    if points.shape[1] == 2 and len(points) <= _FEW and often * rows.size >= _COMPILE_FROM:
        loop = compiled(_errors_in_a_plane, reorder=True)
    if loop is not None:
        loop(rows, *np.ascontiguousarray(points.T), found)
        return found[0], found[1]
    for t, row in enumerate(rows):
        centred = points - row @ points
        found[:, t] = sqrt((row @ (centred * centred)).sum()), best_guess(row, points).least_error
    return found[0], found[1]


def _errors_in_a_plane(rows: FloatArray, x: FloatArray, y: FloatArray, out: FloatArray) -> None:
    """The search of `dphmm.markov.guess.best_guess` in loops; here is ``at``, and ``near`` the point next to it."""
    size, distance = x.size, np.empty(x.size)
    for t in range(rows.shape[0]):
        p, mean_x, mean_y, squares = rows[t], 0.0, 0.0, 0.0
        for i in range(size):
            mean_x += p[i] * x[i]
            mean_y += p[i] * y[i]
        for i in range(size):
            squares += p[i] * ((x[i] - mean_x) * (x[i] - mean_x) + (y[i] - mean_y) * (y[i] - mean_y))
        at_x, at_y, least, reached, first = mean_x, mean_y, -inf, inf, 0.0
        for turn in range(_TURNS + 1):
            error = 0.0
            for i in range(size):
                distance[i] = sqrt((x[i] - at_x) * (x[i] - at_x) + (y[i] - at_y) * (y[i] - at_y))
                error += p[i] * distance[i]
            near, nearest, mass = distance.argmin(), distance.min(), 0.0
            for i in range(near, size):
                if distance[i] == nearest and (i == near or nearest == 0.0):
                    mass += p[i]
                    distance[i] = inf
            weight = pull_x = pull_y = xx = xy = 0.0
            for i in range(size):
                away_x, pull = x[i] - at_x, p[i] / distance[i]
                weight += pull
                pull_x += pull * away_x
                pull_y += pull * (y[i] - at_y)
                along = pull / (distance[i] * distance[i]) * away_x
                xx += along * away_x
                xy += along * (y[i] - at_y)
            force, most = hypot(pull_x, pull_y), max(hypot(pull_x, pull_y), mass)
            share = mass / most if most > 0.0 else 0.0
            near_x, near_y = x[near] - at_x, y[near] - at_y
            inner = error - mass * nearest - share * (pull_x * near_x + pull_y * near_y)
            left_x, left_y = pull_x - share * pull_x, pull_y - share * pull_y
            off = left_x * (mean_x - at_x) + left_y * (mean_y - at_y)
            first = first if turn else error
            least, reached = max(least, (inner - off) / (1.0 + hypot(left_x, left_y))), min(reached, error)
            if least >= (1.0 - ACCURACY) * reached:
                break
            if force <= mass:
                at_x, at_y = x[near], y[near]
                continue
            if nearest <= _TOUCHING * error:
                factor = (1.0 - mass / force) / weight
                at_x, at_y = at_x + factor * pull_x, at_y + factor * pull_y
                continue
            own, cube = mass / nearest, mass / (nearest * nearest * nearest)
            pull_x, pull_y, weight = pull_x + own * near_x, pull_y + own * near_y, weight + own
            xx, xy = xx + cube * near_x * near_x, xy + cube * near_x * near_y
            determinant = (weight - xx) * xx - xy * xy
            if turn < _QUICK and determinant > _FLAT * weight * weight:
                at_x += (xx * pull_x + xy * pull_y) / determinant
                at_y += ((weight - xx) * pull_y + xy * pull_x) / determinant
            else:
                at_x, at_y = at_x + _FURTHER / weight * pull_x, at_y + _FURTHER / weight * pull_y
        out[0, t], out[1, t] = sqrt(squares), min(max(least, 0.0), first)
