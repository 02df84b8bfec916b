"""Symmetric bodies that grow by one difference after another, as values: each growth gives a new one.

A body is given by points in the coordinates of the differences. `PlanarBody` knows its vertices and is exact for
integers; `GrowingBody` works in any dimension and computes its hull when it is first needed.
"""

from __future__ import annotations

from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray, frozen
from dphmm.geometry import planar
from dphmm.geometry.facets import outer_points
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.least_error import ball, error_floor, open_bounds, polygon_error, reach_bounds

_BLOCK = 256
_MAX_POINTS = 1 << 20
"""More points than this are replaced by the vertices of their hull, so that memory stays bounded."""
_ROUNDED = 1e-12
"""A facet that is less than this part of its own distance away is on it, up to rounding."""


class GrowingBody:
    """A symmetric polytope in any number of dimensions.

    Its hull is computed once, when a vertex or a facet is first asked for: bodies that only grow cost no hull.

    Parameters
    ----------
    points
        ``(k, d)``: points of which, with their negatives, the body is the hull; integers or floats.
    """

    _is_sifted = False
    """Whether points that lie inside were removed."""

    def __init__(self, points: npt.NDArray[Any]) -> None:
        self.points: npt.NDArray[Any] = frozen(points)

    @classmethod
    def of_hull(cls, hull: SensitivityHull, whole: bool) -> GrowingBody:
        """Wrap a hull that is known already; ``whole`` if its differences are integers."""
        body = cls(np.rint(hull.spanning).astype(np.int64) if whole else hull.spanning)
        body.__dict__["hull"] = hull
        return body

    @property
    def is_point(self) -> bool:
        """Whether it is the origin alone."""
        return not self.points.any()

    @cached_property
    def hull(self) -> SensitivityHull:
        """The body as a hull."""
        return SensitivityHull.of_outer_points(self.points) if self._is_sifted else SensitivityHull(self.points)

    @cached_property
    def vertices(self) -> npt.NDArray[Any]:
        """The vertices ``(h, d)``, both signs, in the type of the points."""
        vertices = self.hull.vertices
        return frozen(np.rint(vertices).astype(np.int64) if self.points.dtype.kind == "i" else vertices)

    def grow(self, vectors: npt.NDArray[Any]) -> GrowingBody:
        """The hull of the body and vectors ``(k, d)`` of both signs."""
        new = vectors[self.outside(vectors)]
        if not len(new):
            return self
        # Known vertices are fewer than the points; until they are known, no hull is computed for their sake.
        base = self.vertices if "vertices" in self.__dict__ else self.points
        points = np.concatenate([base, new])
        if points.shape[1] == 1:
            return GrowingBody(points[[np.abs(points[:, 0]).argmax()]])
        points = outer_points(points)
        if len(points) > _MAX_POINTS and "vertices" not in self.__dict__:
            points = GrowingBody(points).vertices
        grown = GrowingBody(points)
        grown._is_sifted = True
        return grown

    def outside(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Which vectors could make the body grow: all but those that certainly lie in it."""
        return np.asarray((vectors != 0).any(axis=1))

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership of the rows of ``vectors``: exact for integers, within the one tolerance otherwise."""
        return self.hull.contains(vectors)

    @property
    def volume(self) -> float:
        """The volume, in the coordinates' unit; zero below full dimension."""
        return self.hull.volume

    @cached_property
    def _facets(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Cones ``(c, d, d)`` over simplicial facets, normals ``(c, d)``, volumes ``(c,)``; None where it is flat.

        The rows of a cone are a facet's corners, on which the normal is one.
        """
        if self.hull.dimension < self.vertices.shape[1]:
            return None
        cones = self.hull.cones
        normals = np.asarray(np.linalg.solve(cones, np.ones((*cones.shape[:2], 1)))[..., 0], dtype=np.float64)
        return cones, normals, self.hull.cone_volumes

    def growth(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """The volume gained when ``v`` and ``-v`` join, for each row ``v`` of ``vectors``.

        The cap that ``v`` adds is one simplex for each facet that ``v`` sees. A plane that touches a body of full
        dimension has ``-v`` on the body's side if it passes through ``v``, so that the two caps add up.
        """
        if self._facets is not None:
            return np.asarray(2.0 * self._caps(vectors).sum(axis=1))
        if self.hull.dimension < self.vertices.shape[1] - 1:
            return np.zeros(len(vectors))
        form = self.hull.norm_form
        away = np.where(form.in_span(vectors), 0.0, np.abs(vectors @ form.equations[0]))
        return np.asarray(2.0 * away * self.hull.span_volume / self.vertices.shape[1])

    def _caps(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """The volumes ``(n, c)`` of the simplices between each vector and each facet that it sees."""
        assert self._facets is not None
        _, normals, volumes = self._facets
        above = vectors @ normals.T - 1.0
        return np.asarray(np.where(above > _ROUNDED, above, 0.0) * volumes)

    def squared_error(self, spacing: FloatArray) -> float:
        """``(r + 1)(r + 2) E|u|²``, in the unit of ``spacing``: the squared error of a release at epsilon one."""
        return self.hull.scaled(spacing).squared_error

    def errors_with(self, vectors: npt.NDArray[Any], spacing: FloatArray) -> FloatArray:
        """The squared error of the body that each row ``v`` of ``vectors`` grows together with ``-v``."""
        if self._facets is None:
            return np.array([self.grow(v[None]).squared_error(spacing) for v in vectors])
        volumes, moments = self._grown(vectors, spacing)
        return moments / volumes

    def _grown(self, vectors: npt.NDArray[Any], spacing: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Of the body that each vector grows: its volume, and ``(d + 1)(d + 2)`` times its second moment.

        They are those of the body and of the simplices of `growth`; in the unit of ``spacing``.
        """
        assert self._facets is not None
        cones, _, volumes = self._facets
        unit = float(np.prod(spacing))
        caps, volumes = self._caps(vectors) * unit, volumes * unit
        corners, tips = cones * spacing, vectors * spacing
        total = corners.sum(axis=1)
        squares = (corners**2).sum(axis=(1, 2)) + (total**2).sum(axis=1)
        more = squares + 2.0 * (tips @ total.T) + 2.0 * (tips**2).sum(axis=1)[:, None]
        return volumes.sum() + 2.0 * caps.sum(axis=1), volumes @ squares + 2.0 * (caps * more).sum(axis=1)

    def open_bounds(self, vectors: npt.NDArray[Any], spacing: FloatArray, level: float) -> FloatArray:
        """`least_error.open_bounds`, outside the plane by the grown body and the level's ball beyond its inner one."""
        bounds = open_bounds(self.vertices * spacing, vectors * spacing, level)
        if self._facets is not None:
            open_ = np.flatnonzero(np.isfinite(bounds))
            (volumes, moments), (more, further) = self._grown(vectors[open_], spacing), self._beyond(spacing, level)
            bounds[open_[moments + further >= level * (volumes + more)]] = np.inf
        return bounds

    def _beyond(self, spacing: FloatArray, level: float) -> tuple[float, float]:
        """The volume and moment of the level's ball beyond the largest that the body holds."""
        assert self._facets is not None
        d = len(spacing)
        inner = 1.0 / float(np.linalg.norm(self._facets[1] / spacing, axis=1).max())
        outer = max(inner, sqrt(level / ((d + 1) * (d + 2))))
        (less, nearer), (volume, moment) = ball(inner, d), ball(outer, d)
        return volume - less, moment - nearer

    def error_floor(self, spacing: FloatArray) -> float:
        """What the squared error of no symmetric convex body around this one can fall below."""
        corners = self.vertices * spacing
        reach = float(reach_bounds(corners, corners).max(initial=0.0))
        if self._facets is None:
            return reach
        volume, moment = (float(part[0]) for part in self._grown(np.zeros((1, len(spacing)), dtype=np.int64), spacing))
        level = moment / volume
        for _ in range(8):
            more, further = self._beyond(spacing, level)
            level = (moment + further) / (volume + more)
        return max(reach, level * (1 - RELATIVE_TOLERANCE))

    def minimal(self, vectors: npt.NDArray[Any]) -> IntArray:
        """Vectors whose growth no other vector's makes needless, by index: here the first of equal ones."""
        return np.sort(np.unique(vectors, axis=0, return_index=True)[1])

    def inradius(self, spacing: FloatArray) -> float:  # noqa: ARG002
        """A radius, in the unit of ``spacing`` ``(d,)``, below which all vectors lie in it: 0 if unknown."""
        return 0.0


class PlanarBody(GrowingBody):
    """A symmetric polygon, a segment, or the origin, without Qhull.

    Parameters
    ----------
    vertices
        ``(h, 2)``: strictly convex, counter-clockwise, both signs; two for a segment, one for the origin. Integers make
        every decision exact.
    """

    def __init__(self, vertices: npt.NDArray[Any]) -> None:
        super().__init__(vertices)
        self.vertices = self.points

    @property
    def is_flat(self) -> bool:
        """Whether it is a segment or the origin."""
        return len(self.vertices) <= 2

    @cached_property
    def half_planes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Normals ``(m, 2)`` and offsets ``(m,)`` of a body that is not flat: see `planar.half_planes`."""
        return planar.half_planes(self.vertices)

    def grow(self, vectors: npt.NDArray[Any]) -> PlanarBody:
        """The hull of the body and vectors ``(k, 2)`` of both signs."""
        new = vectors[self.outside(vectors)] if len(vectors) > 1 else vectors
        return PlanarBody(planar.convex_polygon(np.concatenate([self.vertices, new, -new]))) if len(new) else self

    def outside(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Which vectors could make the body grow: all but those that certainly lie in it."""
        if self.is_flat:
            return np.asarray((vectors != 0).any(axis=1))
        result = np.zeros(len(vectors), dtype=np.bool_)
        for normal, offset in zip(*self.half_planes, strict=True):
            result |= np.abs(vectors @ normal) > offset
        return result

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership of the rows of ``vectors``, within the one tolerance where they are not integers."""
        slack = 0 if self.vertices.dtype.kind == "i" else RELATIVE_TOLERANCE
        if self.is_flat:
            tip = self.vertices[-1]
            square = (tip * tip).sum()
            along = np.abs(vectors @ tip) <= square * (1 + slack)
            size = np.sqrt(float(square)) * np.sqrt((vectors * vectors).sum(axis=1).astype(np.float64))
            on_line = np.abs(planar.cross(tip, vectors)) <= slack * size
            return np.asarray(along & on_line & ((square > 0) | (vectors == 0).all(axis=1)))
        normals, offsets = self.half_planes
        return np.asarray((np.abs(vectors @ normals.T) <= offsets * (1 + slack)).all(axis=1))

    @property
    def volume(self) -> float:
        """The area."""
        return float(planar.doubled_area(self.vertices)) / 2

    def growth(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """The area gained when ``v`` and ``-v`` join, for each row ``v`` of ``vectors``.

        The cap that ``v`` adds consists of one triangle for each edge that ``v`` sees, and a line that touches the
        polygon and passes through ``v`` has ``-v`` on the polygon's side; so the two caps add up. A segment gains a
        parallelogram; the origin alone only ever becomes a segment: zero.
        """
        if len(self.vertices) == 1:
            return np.zeros(len(vectors))
        if self.is_flat:
            return np.asarray(2.0 * np.abs(planar.cross(self.vertices[1], vectors)))
        normals, offsets = self.half_planes
        return np.asarray(np.maximum(np.abs(vectors @ normals.T) - offsets, 0).sum(axis=1), dtype=np.float64)

    def minimal(self, vectors: npt.NDArray[Any]) -> IntArray:
        """Vectors whose grown hull holds no other vector (of equal ones, the first), by index.

        Vectors are taken from the least growth up, a block at a time: what a vector's grown hull holds grows it less,
        and what is beaten by a beaten vector is beaten by that vector's victor too.
        """
        lengths = (vectors.astype(np.float64) ** 2).sum(axis=1)
        waiting = np.lexsort((lengths, self.growth(vectors)))
        kept = np.zeros(len(vectors), dtype=np.bool_)
        while len(waiting):
            block, waiting = waiting[:_BLOCK], waiting[_BLOCK:]
            holds = self._holds(vectors[block], vectors[block])
            mutual = holds & holds.T
            earlier = np.tri(len(block), k=-1, dtype=np.bool_)
            block = block[~((holds & ~mutual) | (mutual & earlier)).any(axis=1)]
            kept[block] = True
            if len(waiting) and len(block):
                waiting = waiting[~self._holds(vectors[waiting], vectors[block]).any(axis=1)]
        return np.flatnonzero(kept)

    @cached_property
    def _facets(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """An edge is a facet."""
        if self.is_flat:
            return None
        start, end = self.vertices, np.roll(self.vertices, -1, axis=0)
        doubled = planar.cross(start, end).astype(np.float64)
        edges = end - start
        return (
            np.stack([start, end], axis=1).astype(np.float64),
            np.stack([edges[:, 1], -edges[:, 0]], axis=1) / doubled[:, None],
            doubled / 2,
        )

    def _holds(self, vectors: npt.NDArray[Any], others: npt.NDArray[Any]) -> BoolArray:
        """Entry ``(i, j)``: the hull grown by vector ``i`` (outside the shape) contains other vector ``j``."""
        own, other = vectors[:, None], others[None]
        shape = self.vertices
        if self.is_flat:
            return self._flat_holds(own, other)
        normals, offsets = self.half_planes
        heights, other_heights = vectors @ normals.T, others @ normals.T
        unseen, violated = np.abs(heights) <= offsets, np.abs(other_heights) > offsets
        unseen_violated = unseen.astype(np.float32) @ violated.T.astype(np.float32) > 0
        following = np.roll(shape, -1, axis=0)
        seen = planar.cross((following - shape)[None], own - shape[None]) < 0
        first = (seen & ~np.roll(seen, 1, axis=1)).argmax(axis=1)
        last = (seen & ~np.roll(seen, -1, axis=1)).argmax(axis=1)
        touch, leave = shape[first][:, None], following[last][:, None]
        inside = ~unseen_violated
        for sign in (1, -1):
            inside &= planar.cross(own - touch, sign * other - touch) >= 0
            inside &= planar.cross(leave - own, sign * other - own) >= 0
        return np.asarray(inside)

    def _flat_holds(self, own: npt.NDArray[Any], other: npt.NDArray[Any]) -> BoolArray:
        """The same for a segment (or the origin): a parallelogram, or a longer segment."""
        tip = self.vertices[-1]
        whole = np.abs(planar.cross(tip, own))
        in_parallelogram = np.abs(planar.cross(other, own)) + np.abs(planar.cross(tip, other)) <= whole
        collinear = planar.cross(own, other) == 0
        shorter = (other * other).sum(axis=2) <= (own * own).sum(axis=2)
        return np.asarray(np.where(whole > 0, in_parallelogram, collinear & shorter))

    def inradius(self, spacing: FloatArray) -> float:
        """The Euclidean radius, in the unit of ``spacing`` ``(2,)``, below which all vectors lie in it."""
        if self.is_flat:
            return 0.0
        normals, offsets = self.half_planes
        return float((offsets / np.linalg.norm(normals / spacing, axis=1)).min())

    def squared_error(self, spacing: FloatArray) -> float:
        """``(r + 1)(r + 2) E|u|²``, in the unit of ``spacing``: the squared error of a release at epsilon one."""
        if self._error is None or self._error[0] is not spacing:
            flat, corners = self.is_flat, self.vertices * spacing
            self._error = (spacing, 2.0 * float((corners[-1] ** 2).sum()) if flat else polygon_error(corners))
        return self._error[1]

    _error: tuple[FloatArray, float] | None = None

    def errors_with(self, vectors: npt.NDArray[Any], spacing: FloatArray) -> FloatArray:
        """The squared error of the body that each row ``v`` of ``vectors`` grows together with ``-v``.

        A segment grows to a parallelogram, or to a longer segment.
        """
        if not self.is_flat:
            return super().errors_with(vectors, spacing)
        tip = self.vertices[-1]
        own, others = float(((tip * spacing) ** 2).sum()), ((vectors * spacing) ** 2).sum(axis=1)
        return np.asarray(2.0 * np.where(planar.cross(tip, vectors) == 0, np.maximum(own, others), own + others))

    def open_bounds(self, vectors: npt.NDArray[Any], spacing: FloatArray, level: float) -> FloatArray:
        """`least_error.open_bounds`."""
        return open_bounds(self.vertices * spacing, vectors * spacing, level)

    def error_floor(self, spacing: FloatArray) -> float:
        """What the squared error of no symmetric convex body around this one can fall below."""
        return error_floor(self.vertices * spacing)


def growing_body(vertices: npt.NDArray[Any]) -> GrowingBody:
    """The body with vertices ``(h, d)``, planar or not."""
    return PlanarBody(vertices) if vertices.shape[1] == 2 else GrowingBody(vertices)


def origin(like: npt.NDArray[Any]) -> GrowingBody:
    """The body that holds only the origin, from which all grow, for differences of points ``(n, d)``."""
    return growing_body(np.zeros((1, like.shape[1]), dtype=like.dtype))
