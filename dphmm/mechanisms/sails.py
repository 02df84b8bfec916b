"""Sums over the lattice points of planar cones in a number of steps that grows with the logarithm of the cone's size.

The sail of a cone is the boundary of the convex hull of its lattice points other than the origin. Neighbouring lattice
points on it span a parallelogram of area one. Along one edge of the sail, with ``count`` steps from ``start`` to
``end = start + count * step``, the cone closed at ``start`` and open at ``end`` is tiled by the parallelogram of the
two, whose lattice points are ``start + k step`` for ``0 <= k < count``. A linear form ``l`` then gives::

    sum of exp(-l(z)) = sum_k exp(-l(start + k step)) / ((1 - exp(-l(start))) (1 - exp(-l(end))))

where every term is positive, so nothing cancels. (Edges of the sail come from Euclid's algorithm; Hirzebruch 1953.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import copysign, exp, expm1, gcd, log, log1p
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.mechanisms.cones import Cone, Point, cross

_TAYLOR = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000)
"""Bernoulli numbers ``B_2k / (2k)!``; below 0.3 the next term is less than ``1e-17`` of the first."""


@dataclass(frozen=True)
class SailEdge:
    """An edge of a cone's sail, with the cone's norm of its ends.

    Parameters
    ----------
    start, step, count
        The lattice points on the edge are ``start + k step`` for ``0 <= k <= count``.
    first, slope
        The norm of ``start``, and what each step adds to it: rationals.
    """

    start: Point
    step: Point
    count: int
    first: Fraction
    slope: Fraction

    @property
    def end(self) -> Point:
        """The last lattice point on the edge."""
        return self.start[0] + self.count * self.step[0], self.start[1] + self.count * self.step[1]

    @property
    def last(self) -> Fraction:
        """The norm of `end`."""
        return self.first + self.count * self.slope

    def log_mass(self, decay: float) -> float:
        """The logarithm of the sum of ``exp(-decay ‖z‖)`` over the edge's half-open cone."""
        t, u, b = decay * float(self.first), decay * float(self.last), decay * float(self.slope)
        return -t + _log_geometric_sum(b, self.count) - log1mexp(t) - log1mexp(u)

    def mass(self, decay: Fraction) -> Decimal:
        """The sum of ``exp(-decay ‖z‖)`` over the edge's half-open cone, in the current decimal context."""
        t, u, b = (decimal_power(-decay * x) for x in (self.first, self.last, self.slope))
        powers = (1 - decimal_power(-decay * self.slope * self.count)) / (1 - b) if self.slope else self.count
        return t * powers / ((1 - t) * (1 - u))

    def second_moments(self, decay: float, basis: npt.NDArray[Any]) -> FloatArray:
        """``E[y yᵀ]``, ``(d, d)``, of ``y = z basis`` for ``z`` with weights ``exp(-decay ‖z‖)`` on the half-open cone.

        ``z = start + k step + a start + b end`` with ``a`` and ``b`` geometric and ``k`` a geometric count cut off at
        ``count``, all independent. The basis ``(2, d)`` is applied to these three in integers: it may be so skew that
        moments of ``z`` in doubles would cancel.
        """
        corners = np.array([self.start, self.step, self.end], dtype=object)
        start, step, end = (corners @ basis).astype(np.float64)
        mean_a, var_a = geometric_moments(decay * float(self.first))
        mean_b, var_b = geometric_moments(decay * float(self.last))
        mean_k, var_k = _truncated_moments(decay * float(self.slope), self.count)
        mean = (1 + mean_a) * start + mean_k * step + mean_b * end
        spread = [(var_a, start), (var_k, step), (var_b, end)]
        return np.asarray(np.outer(mean, mean) + sum(v * np.outer(x, x) for v, x in spread))


def sail(cone: Cone) -> Iterator[SailEdge]:
    """The edges of a cone's sail from the ray of ``v`` to the ray of ``w``; at most ``2 + log2(det)`` of them."""
    first, last = _primitive(cone.v), _primitive(cone.w)
    beside = _complement(first)
    while (area := cross(first, last)) > 0:
        shift = cross(beside, last) // area
        step = beside[0] - (shift + 1) * first[0], beside[1] - (shift + 1) * first[1]
        count = area // -cross(step, last)
        yield SailEdge(first, step, count, _norm(cone, first), _norm(cone, step))
        first = first[0] + count * step[0], first[1] + count * step[1]
        beside = step[0] - first[0], step[1] - first[1]


def _norm(cone: Cone, z: Point) -> Fraction:
    """The linear form that is one at ``v`` and at ``w``."""
    return Fraction(cross(z, cone.w) + cross(cone.v, z), cone.det)


def _primitive(z: Point) -> Point:
    """The first lattice point on the ray of ``z``."""
    divisor = gcd(*z)
    return z[0] // divisor, z[1] // divisor


def _complement(p: Point) -> Point:
    """A lattice point ``q`` with ``det(p, q) = 1``, for a primitive ``p``, by Euclid's algorithm."""
    (a, b), row, following = p, (1, 0), (0, 1)
    while b:
        quotient = a // b
        a, b = b, a - quotient * b
        row, following = following, (row[0] - quotient * following[0], row[1] - quotient * following[1])
    return -a * row[1], a * row[0]


def decimal_power(x: Fraction) -> Decimal:
    """``exp(x)`` in the current decimal context."""
    return (Decimal(x.numerator) / Decimal(x.denominator)).exp()


def log1mexp(t: float) -> float:
    """``log(1 - exp(-t))`` for a positive ``t``, without cancellation."""
    return log(-expm1(-t)) if t < 1 else log1p(-exp(-t))


def _log_geometric_sum(t: float, count: int) -> float:
    """The logarithm of the sum of ``exp(-t k)`` over ``0 <= k < count``, for ``t`` of either sign."""
    if t < 0:
        return -t * (count - 1) + _log_geometric_sum(-t, count)
    return log(expm1(-t * count) / expm1(-t)) if t else log(count)


def geometric_moments(t: float) -> tuple[float, float]:
    """Mean and variance of a count with weights ``exp(-t k)``, ``k >= 0``, for a positive ``t``."""
    q = -expm1(-t)
    return exp(-t) / q, exp(-t) / q / q


def _truncated_moments(t: float, count: int) -> tuple[float, float]:
    """Mean and variance of a count with weights ``exp(-t k)``, ``0 <= k < count``; the poles at ``t = 0`` cancel."""
    mean = (count - 1) / 2 + _pole_free_mean(t) - count * _pole_free_mean(count * t)
    return mean, _pole_free_variance(t) - count**2 * _pole_free_variance(count * t)


def _pole_free_mean(t: float) -> float:
    """``1 / (exp(t) - 1) - 1 / t + 1 / 2``, an odd function; its Taylor series near zero."""
    if abs(t) < 0.3:
        return t * sum(c * t ** (2 * k) for k, c in enumerate(_TAYLOR))
    size = abs(t)
    return copysign(geometric_moments(size)[0] - 1 / size + 0.5, t)


def _pole_free_variance(t: float) -> float:
    """``exp(t) / (exp(t) - 1)**2 - 1 / t**2``, an even function: minus the derivative of `_pole_free_mean`."""
    if abs(t) < 0.3:
        return -sum((2 * k + 1) * c * t ** (2 * k) for k, c in enumerate(_TAYLOR))
    return geometric_moments(abs(t))[1] - 1 / t**2
