"""Cones of lattice points over the edges of a symmetric polygon, and exact draws from them.

Every name here holds integers; no floating-point number is computed or compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import gcd

from dphmm.mechanisms.exact import RandomBits, bernoulli_exp, geometric_exp

Point = tuple[int, int]


def cross(a: Point, b: Point) -> int:
    """The determinant of two planar integer vectors."""
    return a[0] * b[1] - a[1] * b[0]


@dataclass(frozen=True)
class Cone:
    """The lattice points ``alpha v + beta w`` with ``alpha, beta >= 0``, without those rays that are another cone's.

    Parameters
    ----------
    v, w
        Integer vectors, counter-clockwise: their determinant is positive.
    open_v, open_w
        Whether ``alpha`` (``beta``) must be positive, so that the ray of ``w`` (of ``v``) is left out.

    Notes
    -----
    The cone is tiled by the parallelogram of ``v`` and ``w``, whose ``det(v, w)`` lattice points stand for the
    residue classes of ``Z^2`` modulo ``v`` and ``w``. With ``g = gcd(v_y, w_y)`` the points ``(x, y)``,
    ``0 <= x < det / g``, ``0 <= y < g``, represent every class once, so a number below ``det`` names a class.
    """

    v: Point
    w: Point
    open_v: bool
    open_w: bool

    @cached_property
    def det(self) -> int:
        """The number of lattice points in the parallelogram."""
        return cross(self.v, self.w)

    @cached_property
    def _height(self) -> int:
        return gcd(self.v[1], self.w[1])

    def cell(self, index: int) -> tuple[int, int]:
        """The parallelogram's lattice point ``(m v + n w) / det`` of a number below ``det``, as ``(m, n)``.

        ``m`` lies in ``0 .. det - 1``, or in ``1 .. det`` where ``open_v``; so does ``n``.
        """
        det = self.det
        x, y = divmod(index, self._height)
        m = (x * self.w[1] - y * self.w[0]) % det
        n = (self.v[0] * y - self.v[1] * x) % det
        if not m and self.open_v:
            m = det
        if not n and self.open_w:
            n = det
        return m, n

    def point(self, m: int, n: int) -> Point:
        """The lattice point ``(m v + n w) / det``."""
        det = self.det
        return (m * self.v[0] + n * self.w[0]) // det, (m * self.v[1] + n * self.w[1]) // det


class Fan:
    """Half-open cones over the edges of a symmetric polygon that hold every lattice point exactly once.

    Parameters
    ----------
    vertices
        Integer vertices of a polygon around the origin, counter-clockwise.

    Notes
    -----
    A point belongs to the cone that contains it after a step in a fixed direction too short to matter. The direction
    is ``(1, t)`` with ``t`` smaller than any positive number, which points into the interior of exactly one cone, so
    each boundary ray, and the origin, goes to one cone. Where the step decreases ``alpha``, points with ``alpha = 0``
    leave the cone: it is open there. (Koeppe and Verdoolaege, 2008, use this for counting lattice points.)
    """

    def __init__(self, vertices: Sequence[Point]) -> None:
        edges = list(zip(vertices, [*vertices[1:], vertices[0]], strict=True))
        self.cones = tuple(Cone(v, w, (w[1], -w[0]) < (0, 0), (-v[1], v[0]) < (0, 0)) for v, w in edges)
        """One cone per edge."""

    @cached_property
    def _ends(self) -> list[int]:
        """Running totals of the parallelograms' numbers of lattice points."""
        return list(accumulate(cone.det for cone in self.cones))

    def draw(self, num: int, den: int, bits: RandomBits) -> Point:
        """A lattice point ``z`` with probability exactly proportional to ``exp(-num / den * ‖z‖)``.

        ``‖z‖`` is the norm whose unit ball is the polygon. A point of a cone is ``c + a v + b w`` with ``c`` in the
        parallelogram and integers ``a, b >= 0``, and as the norm is linear on the cone and one at ``v`` and ``w``,
        ``‖z‖ = (m + n) / det + a + b``. So a cell uniform among all cones' cells is kept with probability
        ``exp(-num / den * (m + n) / det)``, and ``a`` and ``b`` are independent geometric counts.

        Parameters
        ----------
        num, den
            The decay per unit of the norm, both at least one. The expected number of cells tried is at most the
            square of ``decay / (1 - exp(-decay))``, about, and at most the number of cells.
        bits
            The random bits.
        """
        ends = self._ends
        while True:
            pick = bits.below(ends[-1])
            cone = self.cones[which := bisect_right(ends, pick)]
            m, n = cone.cell(ends[which] - 1 - pick)
            if bernoulli_exp(num * (m + n), den * cone.det, bits):
                break
        det = cone.det
        return cone.point(m + det * geometric_exp(num, den, bits), n + det * geometric_exp(num, den, bits))
