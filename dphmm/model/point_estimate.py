"""Point estimates of a belief, and their expected errors."""

from __future__ import annotations

from functools import cached_property
from math import asinh, hypot, inf, sqrt
from typing import NamedTuple

import numpy as np

from dphmm.arrays import FloatArray, read_only
from dphmm.compilation import compile_if_hot
from dphmm.model.outside_states import OutsideBelief

# The relative gap up to which the lower bound of the expected error is tightened.
ERROR_BOUND_ACCURACY = 0.02

# The distance of a uniform point in a unit square from the centre: root mean square, and mean.
_UNIT_CELL_RMS = sqrt(1 / 6)
_UNIT_CELL_MEAN = (sqrt(2) + asinh(1)) / 6

# Number of partial sums of a sum over states.
_LANES = 64
# States of smaller probability contribute less than rounding to every sum, unless all others share one location. After
# many releases they are most of the possible states.
_MIN_PROBABILITY = 1e-100
# With more states, those of negligible mass are omitted. The lower bound can only decrease.
_EXACT_SEARCH_MAX_STATES = 4096
# A state is omitted if its mass is below this share of a uniform mass. Omitted states have at most this mass together.
_NEGLIGIBLE_MASS = 1e-6
# Most beliefs need fewer than ten iterations. The bound is valid, but less tight, if the limit is reached.
_MAX_ITERATIONS = 64
# Newton's method converges fast from the mean, but may cycle in later iterations.
_NEWTON_ITERATIONS = 2
# A search point counts as on a state if it is nearer than this share of its error: its direction is rounding error.
_TOUCHING_SHARE = 1e-9
# Newton's step needs a Hessian with at least this determinant, in squared weights. It is singular for collinear points.
_MIN_DETERMINANT = 0.02
# Over-relaxation of Weiszfeld's step. The factor 2 is Newton's step for isotropic mass in the plane; less converges.
_RELAXATION = 1.8


def cell_rms_distance(cell: float) -> float:
    """Return the RMS distance of a uniform point in a square cell from its centre."""
    return _UNIT_CELL_RMS * cell


def expected_distance(
    probabilities: FloatArray,
    points: FloatArray,
    cell: float = 0.0,
    outside: OutsideBelief | None = None,
    estimate: FloatArray | None = None,
) -> float:
    """Return the expected error of an estimate, defined as `Inference.mean_error`.

    The estimate defaults to the mean. Rounding depends on the number of threads.
    """
    vectors = points - (probabilities @ points if estimate is None else estimate)
    distances = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    distance = float(probabilities @ np.sqrt(distances**2 + cell_rms_distance(cell) ** 2))
    return distance if outside is None else distance + _compute_outside_excess(distances[outside.states], cell, outside)


def _compute_outside_excess(distances: FloatArray, cell: float, outside: OutsideBelief) -> float:
    """Return the excess of the expected distance due to outside states."""
    inside = np.sqrt(distances**2 + cell_rms_distance(cell) ** 2)
    return float(outside.masses @ np.maximum(distances + outside.mean_distances - inside, 0.0))


class Inference:
    """The estimates of an adversary with a belief about the user's location, and their errors.

    Each is computed on first access. Lengths are in the unit of the points.

    Parameters
    ----------
    probabilities
        ``(N,)``, non-negative, with sum one. Probabilities below 1e-100 may be neglected.
    points
        ``(N, d)``: the coordinates of the states. Column-major arrays are not copied.
    cell
        The side of the square cells centred at the points, in the same unit. The user's location is uniform in the
        cell. With 0 it is the point.
    outside
        The part of the belief that concerns a user outside the region; see `dphmm.model.outside_states`. The direction
        of such a user is unknown. Their contributions to the error of the mean and to `error_lower_bound` are bounded
        by the triangle inequality.
    """

    def __init__(
        self, probabilities: FloatArray, points: FloatArray, cell: float = 0.0, outside: OutsideBelief | None = None
    ) -> None:
        self._probabilities = probabilities
        self._points = points
        self._cell = cell
        self._outside = outside

    @cached_property
    def _masses(self) -> tuple[FloatArray, FloatArray]:
        """The masses and points, without (nearly) impossible states if they are the majority."""
        p = self._probabilities
        columns = read_only(self._points.T)
        is_kept = p > _MIN_PROBABILITY  # NumPy counts and locates booleans faster than floats
        if 2 * np.count_nonzero(is_kept) >= len(p):
            return read_only(p), columns
        kept = np.flatnonzero(is_kept)
        return read_only(p[kept]), read_only(columns.take(kept, axis=1))

    @cached_property
    def _center(self) -> FloatArray:
        return _compute_mean(*self._masses)

    @cached_property
    def _mean_sums(self) -> _PointSums:
        return _build_point_sums(*self._masses, self._center)

    @cached_property
    def _border_distances(self) -> FloatArray:
        """The distances of the border states from the mean."""
        assert self._outside is not None, "used with outside states only"
        return np.asarray(np.linalg.norm(self._points[self._outside.states] - self._center, axis=1))

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean of the points under the belief: the point estimate."""
        return tuple(self._center.tolist())

    @cached_property
    def mean_error(self) -> float:
        """The expected error of the mean. The position within a cell contributes its mean square."""
        error = self._mean_sums.error
        if self._cell:
            p, columns = self._masses
            squares = np.add.reduce((columns - self._center[:, np.newaxis]) ** 2)
            error = float(_sum_in_lanes(p * np.sqrt(squares + cell_rms_distance(self._cell) ** 2)))
        return (
            error
            if self._outside is None
            else error + _compute_outside_excess(self._border_distances, self._cell, self._outside)
        )

    @cached_property
    def rms_error(self) -> float:
        """The root mean square error of the mean."""
        within_cell = cell_rms_distance(self._cell)
        square = self._mean_sums.square + within_cell * within_cell
        if self._outside is not None:
            distances = self._border_distances
            squares = (distances + np.sqrt(self._outside.mean_squares)) ** 2 - distances**2 - within_cell * within_cell
            square += float(self._outside.masses @ np.maximum(squares, 0.0))
        return sqrt(square)

    @property
    def max_probability(self) -> float:
        """The probability of the most probable state."""
        return min(float(self._probabilities.max()), 1.0)

    @cached_property
    def error_lower_bound(self) -> float:
        """A proven lower bound of the expected error of any point estimate.

        The best estimate is the geometric median of the belief. The bound is within a relative gap of
        `ERROR_BOUND_ACCURACY` of its expected error, unless rounding or collinear points prevent convergence. With
        cells it is at least the expected distance of a point in a cell from the centre.

        With outside states the gap is larger. The bound is then the sum of that of the users inside and of the mean
        absolute deviations of the distances outside (`OutsideStates.mean_deviations`). It is valid for every direction
        of the users outside, also if the adversary knows it, and for every point estimate, inside or outside.

        Notes
        -----
        The search uses Newton's method at first, then Weiszfeld's algorithm with over-relaxation. For any point ``y``
        and vectors ``u_i`` of length at most one, with ``P = Σ p_i``, ``g = Σ p_i u_i`` and ``m`` the mean, weak
        duality gives ``min_q Σ p_i |x_i - q| >= (Σ p_i u_i (x_i - y) - g (m - y)) / (1 + |g| / P)``. The ``u_i`` are
        the directions from ``y`` to the points, except for the point nearest to ``y``, for which ``u_i`` minimises
        ``|g|``. The bound is therefore valid wherever the search ends.

        A user outside is at a distance ``D`` from a border state ``b``. By the reverse triangle inequality their
        distance from any point ``y`` is at least ``|D - |y - b||``, the mean of which is smallest if ``|y - b|`` is the
        median of ``D``.
        """
        p, columns = self._masses
        about = self._center
        sums = self._mean_sums
        error_outside = 0.0
        if self._outside is not None:
            error_outside = float(self._outside.masses @ self._outside.mean_deviations)
            p = self._probabilities.copy()
            columns = np.ascontiguousarray(self._points.T)
            p[self._outside.states] = np.maximum(p[self._outside.states] - self._outside.masses, 0.0)
            p, columns = p[p > 0.0], columns[:, p > 0.0]
            if not len(p):
                return min(error_outside, self.mean_error)
            about = _compute_mean(p, columns)
            p, columns = read_only(p), read_only(columns)
            sums = _build_point_sums(p, columns, about)
        if len(columns) == 1:
            bound = _compute_median_error(p, columns[0])
        elif len(p) <= _EXACT_SEARCH_MAX_STATES:
            bound = _find_lower_bound(p, columns, about, sums)
        else:
            kept = np.flatnonzero(p > _NEGLIGIBLE_MASS / len(p))
            p = read_only(p[kept])
            columns = read_only(columns.take(kept, axis=1))
            middle = _compute_mean(p, columns)
            bound = _find_lower_bound(p, columns, middle, _build_point_sums(p, columns, middle))
        inside = 1.0 if self._outside is None else float(p.sum())
        return min(max(bound, _UNIT_CELL_MEAN * self._cell * inside) + error_outside, self.mean_error)

    def compute_sampled_error(self, place: FloatArray) -> float:
        """Return the mean error of a state sampled from the belief (Shokri et al., S&P 2011).

        Parameters
        ----------
        place
            ``(d,)``: the true location.

        Returns
        -------
        float
            The mean distance; 0 if the belief contains the state of the location only.
        """
        return float(self._probabilities @ np.linalg.norm(self._points - place, axis=1))


def _compute_median_error(p: FloatArray, x: FloatArray) -> float:
    """Return the expected distance from the median of points in one dimension."""
    order = np.argsort(x)
    median = x[order[int(np.searchsorted(np.cumsum(p[order]), 0.5 * float(p.sum()))) % len(x)]]
    return float(p @ np.abs(x - median))


class _PointSums(NamedTuple):
    """Weighted sums over all points, relative to a search point.

    Parameters
    ----------
    near
        The index of the nearest point, or of one at the search point.
    nearest
        Its distance.
    mass
        The mass of the nearest point, or of all points at the search point.
    error, square
        The sums of masses times distances, and of masses times squared distances.
    weight
        The sum of masses divided by distances. This sum and the following ones exclude ``mass``.
    force
        ``(d,)``: the sum of masses times unit vectors towards the points, the negative gradient of ``error``.
    xx, xy
        Sums of masses times products of the unit vectors' first coordinate with itself and with the last, divided by
        distances.
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


def _build_point_sums(p: FloatArray, columns: FloatArray, at: FloatArray) -> _PointSums:
    """Compute the sums for masses ``(N,)`` at points ``(d, N)``, relative to a point."""
    force = np.empty(len(columns))
    near, nearest, mass, error, square, weight, xx, xy = _compute_point_sums(p, columns, at, force)
    return _PointSums(near, nearest, mass, error, square, weight, force, xx, xy)


def _find_lower_bound(p: FloatArray, columns: FloatArray, mean: FloatArray, sums: _PointSums) -> float:
    """Return a lower bound of the expected distance from masses to any point.

    The search starts at the mean. Each iteration computes the sums at a search point, the dual bound that follows, and
    the next search point.
    """
    whole = float(p.sum())
    at = mean
    bound = -inf
    best_error = inf
    for iteration in range(_MAX_ITERATIONS + 1):
        if iteration:
            sums = _build_point_sums(p, columns, at)
        rest = sums.force
        mass = sums.mass
        nearest = sums.nearest
        to_nearest = columns[:, sums.near] - at
        force = hypot(*rest.tolist())
        # The dual vector of the nearest point is chosen to minimise |g|. If g vanishes, that point is the median.
        share = mass / max(force, mass) if mass > 0.0 else 0.0
        left = rest - share * rest
        inner = sums.error - mass * nearest - share * float(rest @ to_nearest)
        # Weak duality (see the notes of `Inference.error_lower_bound`): the bound is valid for any search point.
        bound = max(bound, (inner - float(left @ (mean - at))) / (1.0 + hypot(*left.tolist()) / whole))
        best_error = min(best_error, sums.error)
        if bound >= (1.0 - ERROR_BOUND_ACCURACY) * best_error:
            break
        if force <= mass:
            move = to_nearest
        elif nearest <= _TOUCHING_SHARE * sums.error:  # the search point is a data point: Vardi and Zhang's step
            move = rest * (1.0 - mass / force) / sums.weight
        else:
            pull = mass / nearest
            weight = sums.weight + pull
            rest = rest + pull * to_nearest
            first = to_nearest[0] / nearest
            last = to_nearest[-1] / nearest
            xx = sums.xx + pull * first * first
            xy = sums.xy + pull * first * last
            determinant = (weight - xx) * xx - xy * xy  # in the plane yy = weight - xx
            if iteration < _NEWTON_ITERATIONS and len(rest) == 2 and determinant > _MIN_DETERMINANT * weight * weight:
                x, y = rest.tolist()  # Newton's step: faster, but not guaranteed to converge
                move = np.array([xx * x + xy * y, (weight - xx) * y + xy * x]) / determinant
            else:
                move = rest * _RELAXATION / weight
        at = at + move
    return bound


# The result of `_compute_point_sums`: near, nearest, mass, error, square, weight, xx and xy of `_PointSums`.
Sums = tuple[int, float, float, float, float, float, float, float]


def _compute_point_sums_loop(p: FloatArray, columns: FloatArray, at: FloatArray, force: FloatArray) -> Sums:
    """Form of `_compute_point_sums` that numba can compile. Results are equal to the last bit."""
    dimension, size = columns.shape
    last = dimension - 1
    sums = np.zeros((5 + dimension, _LANES))
    errors = sums[0]
    squared_errors = sums[1]
    weights = sums[2]
    xxs = sums[3]
    xys = sums[4]
    squares = np.empty(_LANES)
    pulls = np.empty(_LANES)
    distances = np.empty(size)
    for start in range(0, size, _LANES):
        masses = p[start : start + _LANES]
        lengths = distances[start : start + _LANES]
        squares[:] = 0.0
        for k in range(dimension):
            column = columns[k, start : start + _LANES]
            for j in range(column.size):
                squares[j] += (column[j] - at[k]) * (column[j] - at[k])
        for j in range(masses.size):
            lengths[j] = np.sqrt(squares[j])
            errors[j] += masses[j] * lengths[j]
            squared_errors[j] += masses[j] * squares[j]
    near = 0
    for i in range(size):
        if distances[i] < distances[near]:
            near = i
    nearest = distances[near]
    mass = 0.0
    for i in range(near, size if nearest == 0.0 else near + 1):
        if distances[i] == nearest:
            mass += p[i]
            distances[i] = np.inf
    for start in range(0, size, _LANES):
        masses = p[start : start + _LANES]
        lengths = distances[start : start + _LANES]
        firsts = columns[0, start : start + _LANES]
        lasts = columns[last, start : start + _LANES]
        for j in range(masses.size):
            pulls[j] = masses[j] / lengths[j]
            along = pulls[j] * (firsts[j] - at[0]) / (lengths[j] * lengths[j])
            weights[j] += pulls[j]
            xxs[j] += along * (firsts[j] - at[0])
            xys[j] += along * (lasts[j] - at[last])
        for k in range(dimension):
            column = columns[k, start : start + _LANES]
            forces = sums[5 + k]
            for j in range(column.size):
                forces[j] += pulls[j] * (column[j] - at[k])
    totals = np.zeros(5 + dimension)
    for k in range(5 + dimension):
        for j in range(_LANES):
            totals[k] += sums[k, j]
    for k in range(dimension):  # numba takes two seconds to compile an assignment of an array
        force[k] = totals[5 + k]
    return near, nearest, mass, totals[0], totals[1], totals[2], totals[3], totals[4]


@compile_if_hot(_compute_point_sums_loop)
def _compute_point_sums(p: FloatArray, columns: FloatArray, at: FloatArray, force: FloatArray) -> Sums:
    """Compute the sums of `_PointSums`. ``force`` is an output array."""
    offsets = columns - at[:, np.newaxis]
    squares = np.add.reduce(offsets * offsets)
    distances = np.sqrt(squares)
    near = int(distances.argmin())
    nearest = float(distances[near])
    here = np.flatnonzero(distances == 0.0) if nearest == 0.0 else np.array([near])
    terms = [p * distances, p * squares]
    distances[here] = inf
    pull = p / distances
    along = pull * offsets[0] / (distances * distances)
    terms += [pull, along * offsets[0], along * offsets[-1], *(pull * offsets)]
    error, square, weight, xx, xy, *force[:] = _sum_in_lanes(np.array(terms)).tolist()
    return near, nearest, float(np.cumsum(p[here])[-1]), error, square, weight, xx, xy


def _sum_in_lanes(terms: FloatArray) -> FloatArray:
    """Sum rows ``(..., N)`` in the order of the loop: releases depend on the last bit.

    Term ``i`` is added to lane ``i mod _LANES``, and the lanes are then added in order. Additions within a lane wait
    for each other, those of different lanes do not.
    """
    missing = -terms.shape[-1] % _LANES
    padded = np.concatenate([terms, np.zeros((*terms.shape[:-1], missing))], axis=-1)
    lanes = np.add.reduce(padded.reshape(*terms.shape[:-1], -1, _LANES), axis=-2)
    sums: FloatArray = np.cumsum(lanes, axis=-1)[..., -1]
    return sums


def _compute_mean(p: FloatArray, columns: FloatArray) -> FloatArray:
    """Return the mean of points ``(d, N)``. The sums do not depend on the number of threads."""
    return np.asarray(np.einsum("n,dn->d", p, columns) / p.sum())
