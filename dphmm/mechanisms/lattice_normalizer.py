"""The normalizer of a discrete K-norm distribution, from the sails of planar cones.

The sail of a cone is the boundary of the convex hull of its non-zero lattice points. Neighbouring lattice points on it
span a parallelogram of area one. Along one edge of the sail, with ``count`` steps from ``start`` to ``end = start +
count * step``, the cone closed at ``start`` and open at ``end`` is tiled by the parallelogram of the two. The non-zero
lattice points of the parallelogram are ``start + k step`` for ``0 <= k < count``. Therefore every non-zero lattice
point of this half-open cone is uniquely::

    (1 + a) start + k step + b end      with integers a >= 0, 0 <= k < count, b >= 0

and a linear form ``l`` is ``l(start) + a l(start) + k l(step) + b l(end)`` there (Hirzebruch 1953). A cone has as many
edges as Euclid's algorithm has steps. Sums are computed in doubles or to any precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from math import exp, expm1, gcd, inf, log, log1p
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, make_read_only
from dphmm.geometry.exact_linear_algebra import exact_product
from dphmm.mechanisms.exact_sampling import compute_exp, count_integer_digits, make_decimal_context

Point = tuple[int, int]


class SailEdge(NamedTuple):
    """An edge of a cone's sail, with the norms of its ends.

    Parameters
    ----------
    start, step, count
        The lattice points on the edge are ``start + k step`` for ``0 <= k <= count``.
    first, slope, unit
        ``first / unit`` is the norm of ``start``, and ``slope / unit`` the increment of the norm per step.
    """

    start: Point
    step: Point
    count: int  # type: ignore[assignment]  # replaces the method of tuples
    first: int
    slope: int
    unit: int

    @property
    def end(self) -> Point:
        """The last lattice point on the edge."""
        return self.start[0] + self.count * self.step[0], self.start[1] + self.count * self.step[1]

    @property
    def last(self) -> int:
        """The numerator of the norm of `end`, ``last / unit``."""
        return self.first + self.count * self.slope

    def mass(self, decay: Fraction) -> Decimal:
        """Return the sum of ``exp(-decay ‖z‖)`` over the edge's half-open cone, as a decimal.

        Every term is positive; there is no cancellation. Terms along the edge are summed from the largest one.
        """
        rate = decay / self.unit
        slope = abs(self.slope)
        t = compute_exp(-rate * self.first)
        u = compute_exp(-rate * self.last)
        largest = t if self.slope >= 0 else compute_exp(-rate * (self.last + slope))
        run = compute_exp(-rate * slope * self.count)
        step = compute_exp(-rate * slope)
        return largest * ((1 - run) / (1 - step) if slope else self.count) / ((1 - t) * (1 - u))


def cross(a: Point, b: Point) -> int:
    """Return the determinant of two planar integer vectors."""
    return a[0] * b[1] - a[1] * b[0]


def iterate_sail_edges(v: Point, w: Point) -> Iterator[SailEdge]:
    """Yield the edges of the sail of the cone from ``v`` to ``w``, counter-clockwise.

    There are at most ``2 + log2(det(v, w))``. The norm is the linear form with value one at ``v`` and at ``w``.
    """
    unit = cross(v, w)
    (across, along) = (w[1] - v[1], v[0] - w[0])
    first = _find_primitive_point(v)
    (end_x, end_y) = _find_primitive_point(w)
    complement = _find_complement(first)
    while (area := first[0] * end_y - first[1] * end_x) > 0:
        (x, y) = first
        # ``complement`` completes ``first`` to a basis. The step is ``complement`` minus the fewest multiples of
        # ``first`` with which it points past the last ray. It is repeated while the points stay in the cone.
        (a, b) = complement
        shift = (a * end_y - b * end_x) // area + 1
        step = dx, dy = a - shift * x, b - shift * y
        count = area // (dy * end_x - dx * end_y)
        yield SailEdge(first, step, count, x * across + y * along, dx * across + dy * along, unit)
        first = x + count * dx, y + count * dy
        complement = dx - first[0], dy - first[1]


def list_half_sail_edges(corners: list[list[int]] | list[Point]) -> list[SailEdge]:
    """Return edges of half-open cones with one of each pair ``z, -z`` of non-zero points.

    Parameters
    ----------
    corners
        Corners of a symmetric polygon around the origin, counter-clockwise; the unit ball of the norm.
    """
    points = [(x, y) for x, y in corners[: len(corners) // 2 + 1]]
    return [edge for v, w in pairwise(points) for edge in iterate_sail_edges(v, w)]


def _find_primitive_point(z: Point) -> Point:
    """Return the first lattice point on the ray of ``z``."""
    divisor = gcd(*z)
    return z[0] // divisor, z[1] // divisor


def _find_complement(p: Point) -> Point:
    """Return ``q`` with ``det(p, q) = 1`` for a primitive ``p``, by Euclid's algorithm."""
    (a, b) = p
    row = (1, 0)
    following = (0, 1)
    while b:
        quotient = a // b
        a, b = b, a - quotient * b
        row, following = following, (row[0] - quotient * following[0], row[1] - quotient * following[1])
    return -a * row[1], a * row[0]


# Represents the positive integers if the lattice has one dimension; its ``end`` is not used.
_LINE = SailEdge((1, 0), (0, 0), 1, 1, 0, 1)


class LatticeSum:
    """The sum of ``exp(-decay ‖z‖)`` over ``Z^r``, in the norm of a symmetric polytope.

    Parameters
    ----------
    rank
        The dimension ``r <= 2``: 0 for the origin only, 1 for ``‖z‖ = |z|`` on the integers, 2 for a polygon.
    edges
        `list_half_sail_edges` of the polygon if ``r = 2``, otherwise empty.
    basis
        ``(r, d)`` integers: the basis of the lattice. Defaults to the axes.
    """

    def __init__(self, rank: int, edges: Sequence[SailEdge], basis: npt.NDArray[np.object_] | None = None) -> None:
        self.rank, self.edges = rank, [_LINE] if rank == 1 else list(edges)
        self._basis = np.eye(rank, dtype=object) if basis is None else basis
        self._known: tuple[float, FloatArray, tuple[float, float]] | None = None

    def log_masses(self, decay: float) -> FloatArray:
        """Return the log sums over the half-open cones of the edges, one of each pair ``z, -z``."""
        return self._get_sums(decay)[1]

    def log_total(self, decay: float) -> float:
        """Return the log of the sum.

        The error is a few units in the last place of the sum's largest terms.
        """
        return self._get_sums(decay)[2][0]

    def mean_square(self, decay: float) -> float:
        """Return ``E|y|²`` of ``y = z basis`` with ``P(z)`` proportional to ``exp(-decay ‖z‖)``."""
        return self._get_sums(decay)[2][1]

    def _get_sums(self, decay: float) -> tuple[float, FloatArray, tuple[float, float]]:
        """Return all three, cached for the last decay."""
        # The sample, the density and the error of a release use the same decay.
        cached = self._known
        if cached is None or cached[0] != decay:
            masses, sums = self._sum_line(decay) if self.rank == 1 else self._sum_edges(decay)
            masses.setflags(write=False)
            cached = self._known = (decay, masses, sums)
        return cached

    def _sum_line(self, decay: float) -> tuple[FloatArray, tuple[float, float]]:
        complement = -expm1(-decay)
        mass = -decay - (log(complement) if decay < 1.0 else log1p(-exp(-decay)))
        line = self._basis[0].astype(np.float64)
        square = 2.0 * exp(-decay) / complement**2 * float(line @ line)
        return np.array([mass]), (float(np.logaddexp(0.0, log(2.0) + mass)), square)

    def _sum_edges(self, decay: float) -> tuple[FloatArray, tuple[float, float]]:
        """Return log masses and sums over edges, from two geometric counts and a truncated one."""
        numbers, corners = self._numbers
        count, first, slope, unit = numbers
        start = first * decay / unit
        end = (first + count * slope) * decay / unit
        step = slope * decay / unit
        size = np.abs(step)
        # The sum over k of exp(-step k), as a quotient of expm1, which is accurate for small steps.
        with np.errstate(divide="ignore", invalid="ignore"):
            along = np.log(np.expm1(-size * count) / np.expm1(-size))
        along = np.where(step == 0.0, np.log(count), along + np.where(step < 0.0, size * (count - 1), 0.0))
        masses = along - start - _compute_log1mexp(start) - _compute_log1mexp(end)
        # The origin adds 1. Terms are relative to the largest, so that none overflows.
        top = max(0.0, log(2.0) + float(masses.max(initial=-inf)))
        total = top + log(exp(-top) + float(np.exp(log(2.0) + masses - top).sum()))
        means = np.empty((3, len(count)))
        variances = np.empty((3, len(count)))
        for row, rate in ((0, start), (2, end)):
            means[row] = np.exp(-rate) / -np.expm1(-rate)
            variances[row] = means[row] / -np.expm1(-rate)
        means[1], variances[1] = _compute_mean_and_variance(step, count)
        means[0] += 1.0
        places = np.einsum("ke,ekd->ed", means, corners)
        squares = np.square(places).sum(axis=1) + np.einsum("ke,ekd,ekd->e", variances, corners, corners)
        return masses, (total, 2.0 * float(np.exp(masses - total) @ squares))

    def masses(self, decay: Fraction, digits: int) -> list[Decimal]:
        """Return the sums in `log_masses` themselves, with relative errors below ``10**-digits``."""
        with localcontext(self._make_context(decay, digits)):
            if self.rank == 1:
                q = compute_exp(-decay)
                return [q / (1 - q)]
            return [edge.mass(decay) for edge in self.edges]

    def total(self, decay: Fraction, digits: int) -> Decimal:
        """Return the sum with a relative error below ``10**-digits``."""
        with localcontext(self._make_context(decay, digits)):
            return 1 + 2 * sum(self.masses(decay, digits + 2), Decimal(0))

    def _make_context(self, decay: Fraction, digits: int) -> Context:
        """Return a context with enough working digits for the extreme exponents and the sum."""
        # A factor ``1 - exp(-x)`` loses the digits of ``1 / x``, and ``exp(x)`` needs the whole digits of its exponent.
        # A mass has several such factors: twice the digits of the smallest exponent, and ten more for the rounding of
        # the few operations of each edge, exceed their errors together. The last term is for the sum over the edges.
        exponents = [decay]
        for edge in self.edges:
            norms = (edge.first, edge.last, edge.slope, edge.count * edge.slope)
            exponents += [decay * abs(x) / edge.unit for x in norms if x]
        guard = (
            count_integer_digits(max(exponents))
            + 2 * count_integer_digits(1 / min(exponents))
            + len(str(len(exponents)))
        )
        return make_decimal_context(digits + 10 + guard)

    @cached_property
    def _numbers(self) -> tuple[FloatArray, FloatArray]:
        """Numbers of the edges ``(4, e)``, and their points in the basis, ``(e, 3, d)``.

        The numbers are count, first, slope and unit. The points are start, step and end,
        computed with integers: in a skew basis doubles would cancel.
        """
        numbers = np.array([edge[2:] for edge in self.edges], dtype=np.float64).reshape(-1, 4).T
        points = np.array([(edge.start, edge.step, edge.end) for edge in self.edges], dtype=object).reshape(-1, 3, 2)
        if not self.rank or self._basis.tolist() == [[1, 0], [0, 1]]:
            return numbers, points.astype(np.float64)
        return numbers, np.asarray((points @ self._basis).astype(np.float64))


def _compute_log1mexp(t: FloatArray) -> FloatArray:
    """Return ``log(1 - exp(-t))`` for positive numbers."""
    with np.errstate(divide="ignore"):
        return np.where(t < 1.0, np.log(-np.expm1(-t)), np.log1p(-np.exp(-t)))


def _compute_mean_and_variance(step: FloatArray, count: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and variance of ``0 <= k < count``, ``P(k) ~ exp(-step k)``.

    They are differences between those of two geometric counts, the poles of which at zero cancel. Near zero the Taylor
    series of the difference is summed, with Bernoulli numbers ``B_2k / (2k)!``.
    """
    mean = (count - 1) / 2.0
    variance = np.zeros(len(step))
    for t, share in ((step, np.ones(len(step))), (count * step, -count)):
        near = np.abs(t) < _NEAR_POLE
        s = np.where(near, t * t, 0.0)
        mean_near = np.zeros(len(t))
        variance_near = np.zeros(len(t))
        for power, factor in reversed(list(enumerate(_TAYLOR))):
            mean_near = mean_near * s + factor
            variance_near = variance_near * s + (2 * power + 1) * factor
        size = np.where(near, 1.0, np.abs(t))
        complement = -np.expm1(-size)
        far = np.exp(-size) / complement
        mean += share * np.where(near, t * mean_near, np.copysign(far - 1.0 / size + 0.5, t))
        variance += share * np.abs(share) * np.where(near, -variance_near, far / complement - 1.0 / size**2)
    return np.where(count > 1, mean, 0.0), np.where(count > 1, variance, 0.0)


# The Taylor series ``B_2k / (2k)!`` for ``k`` from 1. Below 0.3 its first omitted term is below 1e-16 of the sum, and
# below 2e-15 for the variance; above, the difference of the closed form from its pole loses two digits at most.
_NEAR_POLE = 0.3
_TAYLOR = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)


class Sublattice:
    """All integer points in the linear span of integer vectors.

    They are not only the integer combinations of the vectors.

    The segment from ``-(6, 4)`` to ``(6, 4)`` spans a line; its integer points are the multiples of ``(3, 2)``.

    Parameters
    ----------
    vectors
        ``(k, d)`` integers.
    rank
        The dimension ``r`` of their span, if it is known. Only that of the whole space saves a computation.

    Notes
    -----
    Column operations of determinant one take the vectors ``A`` to ``A U = [H 0]`` with ``r`` columns in ``H``. An
    integer point ``z`` lies in the span exactly if the last ``d - r`` entries of ``z U`` are zero, and the first ``r``
    entries are its coordinates in the basis formed by the first ``r`` rows of the inverse of ``U``.

    Examples
    --------
    >>> line = Sublattice(np.array([[6, 4]]))
    >>> line.basis.tolist(), line.contains(np.array([[3, 2], [3, 1]])).tolist()
    ([[3, 2]], [True, False])
    >>> line.coordinates(np.array([[-9, -6]])).tolist()
    [[-3]]
    """

    def __init__(self, vectors: npt.NDArray[Any], rank: int | None = None) -> None:
        dimension = vectors.shape[1]
        span_rank = dimension
        if rank != dimension:
            columns, inverse, span_rank = _reduce_columns(vectors.astype(object))
        if span_rank == dimension:  # the axes are a basis, too, and need no products
            columns = inverse = _build_identity(dimension)
        # The dimension ``r`` of the span.
        self.rank: int = span_rank
        # ``(r, d)`` Python integers: every integer point of the span is a unique integer combination of these rows.
        self.basis: npt.NDArray[Any] = inverse[:span_rank]
        self._columns = columns.T

    @property
    def is_everything(self) -> bool:
        """Whether the span is the whole space, with the axes as basis."""
        return self.rank == len(self._columns)

    def coordinates(self, points: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the coordinates ``(n, r)`` in the basis of integer points ``(n, d)`` of the span."""
        if self.is_everything:
            return points
        return exact_product(points, self._columns[:, : self.rank])

    def contains(self, points: npt.NDArray[Any]) -> BoolArray:
        """Return whether each of the integer points ``(n, d)`` lies in the span. Exact."""
        if self.is_everything:
            return np.ones(len(points), dtype=np.bool_)
        return np.asarray((exact_product(points, self._columns[:, self.rank :]) == 0).all(axis=1), dtype=np.bool_)


@lru_cache(maxsize=8)
def _build_identity(dimension: int) -> npt.NDArray[Any]:
    matrix: npt.NDArray[Any] = make_read_only(np.eye(dimension, dtype=object))
    return matrix


def _reduce_columns(vectors: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """Return the columns of ``U``, the rows of its inverse, and the rank (Euclid)."""
    dimension = vectors.shape[1]
    columns = np.eye(dimension, dtype=object)
    inverse = np.eye(dimension, dtype=object)
    rank = 0
    for vector in vectors:
        if rank == dimension:
            break
        image = columns @ vector
        # Invariant: columns times inverse is the identity, and entries before ``rank`` are final.
        while True:
            live = [j for j in range(rank, dimension) if image[j]]
            if len(live) < 2:
                break
            pivot = min(live, key=lambda j: abs(image[j]))
            for j in live:
                if j != pivot:
                    factor = image[j] // image[pivot]
                    image[j] -= factor * image[pivot]
                    columns[j] -= factor * columns[pivot]
                    inverse[pivot] += factor * inverse[j]
        if live:
            for rows in (columns, inverse):
                rows[[rank, live[0]]] = rows[[live[0], rank]]
            rank += 1
    return columns, inverse, rank
