"""The lattice points of planar cones as sums along a few edges, of which there are as many as Euclid's algorithm steps.

The sail of a cone is the boundary of the convex hull of its lattice points other than the origin. Neighbouring lattice
points on it span a parallelogram of area one. Along one edge of the sail, with ``count`` steps from ``start`` to
``end = start + count * step``, the cone closed at ``start`` and open at ``end`` is tiled by the parallelogram of the
two, whose lattice points but the origin's are ``start + k step`` for ``0 <= k < count``. So every lattice point of this
half-open cone but the origin is, in one way only::

    (1 + a) start + k step + b end      with whole a >= 0, 0 <= k < count, b >= 0

and a linear form ``l`` is ``l(start) + a l(start) + k l(step) + b l(end)`` there. (Hirzebruch 1953.)
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray
from dphmm.compilation import often
from dphmm.geometry.integers import largest
from dphmm.geometry.planar import COORDINATE_LIMIT
from dphmm.mechanisms import loops
from dphmm.mechanisms.decimals import decimal_power

Point = tuple[int, int]

_ROOM = 128
"""Most polygons have fewer edges of sails than this."""


class SailEdge(NamedTuple):
    """An edge of a cone's sail, and the cone's norm of its ends.

    Parameters
    ----------
    start, step, count
        The lattice points on the edge are ``start + k step`` for ``0 <= k <= count``.
    first, slope, unit
        ``first / unit`` is the norm of ``start``, and ``slope / unit`` what each step adds to it.
    """

    start: Point
    step: Point
    count: int  # type: ignore[assignment]
    first: int
    slope: int
    unit: int

    @property
    def end(self) -> Point:
        """The last lattice point on the edge."""
        return self.start[0] + self.count * self.step[0], self.start[1] + self.count * self.step[1]

    @property
    def last(self) -> int:
        """``last / unit`` is the norm of `end`."""
        return self.first + self.count * self.slope

    def mass(self, decay: Fraction) -> Decimal:
        """The sum of ``exp(-decay ‖z‖)`` over the edge's half-open cone, in the current decimal context.

        Every term is positive, so nothing cancels. Those along the edge are summed from its largest one.
        """
        rate, slope = decay / self.unit, abs(self.slope)
        t, u = decimal_power(-rate * self.first), decimal_power(-rate * self.last)
        largest = t if self.slope >= 0 else decimal_power(-rate * (self.last + slope))
        run, step = decimal_power(-rate * slope * self.count), decimal_power(-rate * slope)
        return largest * ((1 - run) / (1 - step) if slope else self.count) / ((1 - t) * (1 - u))


def cross(a: Point, b: Point) -> int:
    """The determinant of two planar integer vectors."""
    return a[0] * b[1] - a[1] * b[0]


def sail(v: Point, w: Point) -> Iterator[SailEdge]:
    """The edges of the sail of the cone from the ray of ``v`` to that of ``w``, counter-clockwise.

    There are at most ``2 + log2(det(v, w))``. The norm is the linear form that is one at ``v`` and at ``w``.
    """
    unit, (across, along) = cross(v, w), (w[1] - v[1], v[0] - w[0])
    first, (end_x, end_y) = _primitive(v), _primitive(w)
    beside = _complement(first)
    while (area := first[0] * end_y - first[1] * end_x) > 0:
        (x, y), (a, b) = first, beside
        shift = (a * end_y - b * end_x) // area + 1
        step = dx, dy = a - shift * x, b - shift * y
        count = area // (dy * end_x - dx * end_y)
        yield SailEdge(first, step, count, x * across + y * along, dx * across + dy * along, unit)
        first = x + count * dx, y + count * dy
        beside = dx - first[0], dy - first[1]


def half_sails(corners: list[Point]) -> list[SailEdge]:
    """Edges of half-open cones that hold one of each pair ``z, -z`` of lattice points but the origin.

    Parameters
    ----------
    corners
        Those of a symmetric polygon around the origin, counter-clockwise. The norm is the one whose unit ball it is.
    """
    return [edge for v, w in pairwise(corners[: len(corners) // 2 + 1]) for edge in sail(v, w)]


def rows_of(edges: list[SailEdge]) -> npt.NDArray[Any]:
    """Edges as rows of 8 numbers: of what fits 64 bits, or of Python's integers."""
    rows = np.array([(*start, *step, *rest) for start, step, *rest in edges], dtype=object).reshape(-1, 8)
    return rows.astype(np.int64) if largest(rows) < 2**62 else rows


def rows_of_half_sails(corners: IntArray) -> npt.NDArray[Any]:
    """`half_sails` of corners ``(h, 2)``, or none, as rows."""
    if largest(corners) >= COORDINATE_LIMIT:
        return rows_of(half_sails(list(map(tuple, corners.tolist()))))
    rows = np.empty((_ROOM, 8), dtype=np.int64)
    found = _edges_of_sails(corners, rows)
    if found > _ROOM:
        rows = np.empty((found, 8), dtype=np.int64)
        _edges_of_sails(corners, rows)
    return rows[:found]


@often(loops.edges_of_sails)
def _edges_of_sails(corners: IntArray, out: IntArray) -> int:
    rows = rows_of(half_sails(list(map(tuple, corners.tolist()))))
    out[: len(rows)] = rows[: len(out)]
    return len(rows)


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
