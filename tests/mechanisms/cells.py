"""Planar lattice sums by half-open cones with parallelograms, independent of sails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

Point = tuple[int, int]


def cross(a: Point, b: Point) -> int:
    return a[0] * b[1] - a[1] * b[0]


@dataclass(frozen=True)
class Cone:
    """The lattice points ``alpha v + beta w``, ``alpha, beta >= 0``, of a half-open cone.

    Points with a zero coefficient on an open side are excluded.
    """

    v: Point
    w: Point
    open_v: bool
    open_w: bool

    @property
    def det(self) -> int:
        return cross(self.v, self.w)

    def cells(self) -> Iterator[tuple[Point, int]]:
        """Yield the lattice points of the half-open parallelogram with ``det`` times the norm."""
        height = gcd(self.v[1], self.w[1])
        for index in range(self.det):
            x, y = divmod(index, height)
            m = (x * self.w[1] - y * self.w[0]) % self.det or (self.det if self.open_v else 0)
            n = (self.v[0] * y - self.v[1] * x) % self.det or (self.det if self.open_w else 0)
            yield ((m * self.v[0] + n * self.w[0]) // self.det, (m * self.v[1] + n * self.w[1]) // self.det), m + n


def build_fan(vertices: list[Point]) -> list[Cone]:
    """Build cones over a symmetric polygon's edges that contain every lattice point once.

    The vertices are counter-clockwise. A point belongs to the cone that contains it after a step along ``(1, t)`` with
    a tiny positive ``t``. If the step decreases ``alpha``, points with ``alpha = 0`` leave the cone.

    Reference: Koeppe and Verdoolaege, 2008.
    """
    edges = list(zip(vertices, [*vertices[1:], vertices[0]], strict=True))
    return [Cone(v, w, (w[1], -w[0]) < (0, 0), (-v[1], v[0]) < (0, 0)) for v, w in edges]
