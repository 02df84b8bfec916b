"""Immutable symmetric bodies that grow by differences, one at a time.

A body is represented by points in the coordinates of the differences. `PlanarBody` has known vertices and is exact for
integers; `GrowingBody` works in any dimension and computes its hull on first use.
"""

from __future__ import annotations

from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, copy_read_only
from dphmm.geometry import planar
from dphmm.geometry.convex_hull import select_outer_points
from dphmm.geometry.exact_linear_algebra import find_nonzero_rows
from dphmm.geometry.least_error import (
    compute_error_floor,
    compute_open_bounds,
    compute_polygon_error,
    compute_reach_bounds,
    integrate_ball,
)
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.tolerances import RELATIVE_TOLERANCE

# Number of vectors in a block of pairwise comparisons, in arrays of this size squared.
_PAIR_BLOCK = 256
# More points than this are replaced by the vertices of their hull, so that memory stays bounded.
_MAX_POINTS = 1 << 20
# A point above a facet by less than this share of the facet's distance lies on it, up to rounding.
_FACET_ROUNDING = 1e-12


class GrowingBody:
    """A symmetric polytope in any dimension.

    Its hull is computed once, on first access to a vertex or a facet: bodies that only grow need no hull.

    Parameters
    ----------
    points
        ``(k, d)``: points that span the body with their negatives; integers or floats.
    is_sifted
        Whether points that certainly lie inside were removed (see `dphmm.geometry.convex_hull.select_outer_points`).
    """

    def __init__(self, points: npt.NDArray[Any], is_sifted: bool = False) -> None:
        self.points: npt.NDArray[Any] = copy_read_only(points)
        self._is_sifted = is_sifted

    @classmethod
    def from_hull(cls, hull: SensitivityHull, whole: bool) -> GrowingBody:
        """Wrap a hull that is already known. ``whole`` if its differences are integers."""
        body = cls(np.rint(hull.spanning).astype(np.int64) if whole else hull.spanning)
        body.__dict__["hull"] = hull
        return body

    @property
    def is_point(self) -> bool:
        """Whether it is the origin."""
        return not self.points.any()

    @cached_property
    def hull(self) -> SensitivityHull:
        """The body as a hull."""
        return SensitivityHull.from_outer_points(self.points) if self._is_sifted else SensitivityHull(self.points)

    @cached_property
    def vertices(self) -> npt.NDArray[Any]:
        """The vertices ``(h, d)``, both signs, in the type of the points."""
        vertices = self.hull.vertices
        return copy_read_only(np.rint(vertices).astype(np.int64) if self.points.dtype.kind == "i" else vertices)

    def grow(self, vectors: npt.NDArray[Any]) -> GrowingBody:
        """Return the hull of the body and vectors ``(k, d)`` of both signs."""
        new = vectors.compress(self.can_grow_by(vectors), axis=0)
        if not len(new):
            return self
        # Known vertices are fewer than the points. If they are unknown, no hull is computed for this purpose.
        base = self.vertices if "vertices" in self.__dict__ else self.points
        points = np.concatenate([base, new])
        if points.shape[1] == 1:
            return GrowingBody(points[[np.abs(points[:, 0]).argmax()]])
        points = select_outer_points(points)
        if len(points) > _MAX_POINTS and "vertices" not in self.__dict__:
            points = GrowingBody(points).vertices
        return GrowingBody(points, is_sifted=True)

    def can_grow_by(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return a mask of the vectors that could make the body grow."""
        # All vectors except those that certainly lie in it.
        return find_nonzero_rows(vectors)

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return closed membership of the rows of ``vectors``: exact for integers."""
        # Within the tolerance for other vectors.
        return self.hull.contains(vectors)

    @property
    def volume(self) -> float:
        """The volume, in the coordinates' unit. Zero below full dimension."""
        return self.hull.volume

    @cached_property
    def _facets(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Cones ``(c, d, d)`` over facets, normals ``(c, d)``, volumes ``(c,)``. None if flat.

        The rows of a cone are the corners of a simplicial facet, on which the normal is one.
        """
        if self.hull.dimension < self.vertices.shape[1]:
            return None
        cones = self.hull.cones
        normals = np.asarray(np.linalg.solve(cones, np.ones((*cones.shape[:2], 1)))[..., 0], dtype=np.float64)
        return cones, normals, self.hull.cone_volumes

    def compute_growth(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the volume gained by adding ``v`` and ``-v``, for each row ``v`` of ``vectors``.

        The cap of ``v`` is one simplex for each facet that ``v`` sees. A supporting plane of a full-dimensional body
        through ``v`` has ``-v`` on the body's side. Therefore the volumes of the two caps add up.
        """
        if self._facets is not None:
            return np.asarray(2.0 * self._compute_cap_volumes(vectors).sum(axis=1))
        if self.hull.dimension < self.vertices.shape[1] - 1:
            return np.zeros(len(vectors))
        form = self.hull.norm_form
        away = np.where(form.is_in_span(vectors), 0.0, np.abs(vectors @ form.equations[0]))
        return np.asarray(2.0 * away * self.hull.span_volume / self.vertices.shape[1])

    def _compute_cap_volumes(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the volumes ``(n, c)`` of the simplices between vectors and the facets they see."""
        assert self._facets is not None
        _, normals, volumes = self._facets
        above = vectors @ normals.T - 1.0
        return np.asarray(np.where(above > _FACET_ROUNDING, above, 0.0) * volumes)

    def squared_error(self, spacing: FloatArray) -> float:
        """Return the squared error ``(r + 1)(r + 2) E|u|²`` in the unit of ``spacing``."""
        return self.hull.scale_axes(spacing).squared_error

    def compute_grown_errors(self, vectors: npt.NDArray[Any], spacing: FloatArray) -> FloatArray:
        """Return the squared error of the body grown by ``v`` and ``-v``, for each vector ``v``."""
        if self._facets is None:
            return np.array([self.grow(v[None]).squared_error(spacing) for v in vectors])
        volumes, moments = self._integrate_grown_bodies(vectors, spacing)
        return moments / volumes

    def _integrate_grown_bodies(self, vectors: npt.NDArray[Any], spacing: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return volume and ``(d + 1)(d + 2) ∫ |u|²`` of each grown body.

        They are those of the body and of the simplices of `compute_growth`, in the unit of ``spacing``.
        """
        assert self._facets is not None
        cones, _, volumes = self._facets
        unit = float(np.prod(spacing))
        caps = self._compute_cap_volumes(vectors) * unit
        volumes = volumes * unit
        corners = cones * spacing
        tips = vectors * spacing
        total = corners.sum(axis=1)
        squares = (corners**2).sum(axis=(1, 2)) + (total**2).sum(axis=1)
        more = squares + 2.0 * (tips @ total.T) + 2.0 * (tips**2).sum(axis=1)[:, None]
        return volumes.sum() + 2.0 * caps.sum(axis=1), volumes @ squares + 2.0 * (caps * more).sum(axis=1)

    def compute_open_bounds(self, vectors: npt.NDArray[Any], spacing: FloatArray, level: float) -> FloatArray:
        """Return `least_error.compute_open_bounds`, sharpened outside the plane."""
        # There, the grown body and the part of the level's ball beyond its inner ball are excluded, too.
        bounds = compute_open_bounds(self.vertices * spacing, vectors * spacing, level)
        if self._facets is not None:
            open_ = np.flatnonzero(np.isfinite(bounds))
            (volumes, moments) = self._integrate_grown_bodies(vectors[open_], spacing)
            (more, further) = self._integrate_beyond_ball(spacing, level)
            bounds[open_[moments + further >= level * (volumes + more)]] = np.inf
        return bounds

    def _integrate_beyond_ball(self, spacing: FloatArray, level: float) -> tuple[float, float]:
        """Return volume and ``(d + 1)(d + 2) ∫ |u|²`` of the level's ball beyond the inner ball."""
        assert self._facets is not None
        d = len(spacing)
        inner = 1.0 / float(np.linalg.norm(self._facets[1] / spacing, axis=1).max())
        outer = max(inner, sqrt(level / ((d + 1) * (d + 2))))
        (less, nearer) = integrate_ball(inner, d)
        (volume, moment) = integrate_ball(outer, d)
        return volume - less, moment - nearer

    def compute_error_floor(self, spacing: FloatArray) -> float:
        """Return a lower bound on the squared error of any symmetric convex body around this one."""
        corners = self.vertices * spacing
        reach = float(compute_reach_bounds(corners, corners).max(initial=0.0))
        if self._facets is None:
            return reach
        volume, moment = (
            float(part[0])
            for part in self._integrate_grown_bodies(np.zeros((1, len(spacing)), dtype=np.int64), spacing)
        )
        level = moment / volume
        for _ in range(8):
            more, further = self._integrate_beyond_ball(spacing, level)
            level = (moment + further) / (volume + more)
        return max(reach, level * (1 - RELATIVE_TOLERANCE))

    def find_minimal_vectors(self, vectors: npt.NDArray[Any]) -> IntArray:
        """Return the indices of vectors with minimal growth: here the first of equal ones."""
        return np.sort(np.unique(vectors, axis=0, return_index=True)[1])

    def inradius(self, spacing: FloatArray) -> float:  # noqa: ARG002 - overrides use it
        """Return a radius in the unit of ``spacing`` ``(d,)`` of a ball in the body. 0 if unknown."""
        return 0.0


# A flat body excludes no vectors, so that many vectors are first compared with the farthest ones in a few directions.
_MIN_SIFTED_VECTORS = 10_000
_NUM_DIRECTIONS = 16


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
        """Normals ``(m, 2)`` and offsets ``(m,)`` of a full-dimensional body, see `planar`."""
        return planar.half_planes(self.vertices)

    def grow(self, vectors: npt.NDArray[Any]) -> PlanarBody:
        """Return the hull of the body and vectors ``(k, 2)`` of both signs."""
        if self.is_flat and len(vectors) > _MIN_SIFTED_VECTORS:
            # Most vectors lie within the hull of the farthest ones, and excluding them is faster than sorting them.
            angles = np.linspace(0, np.pi, _NUM_DIRECTIONS, endpoint=False)
            farthest = np.unique((vectors @ np.array([np.cos(angles), np.sin(angles)])).argmax(axis=0))
            body = self.grow(vectors[farthest])
            if not body.is_flat:
                return body.grow(vectors)
        new = vectors[self.can_grow_by(vectors)] if len(vectors) > 1 else vectors
        return PlanarBody(planar.build_convex_polygon(np.concatenate([self.vertices, new, -new]))) if len(new) else self

    def can_grow_by(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return a mask of the vectors that could make the body grow."""
        # All vectors except those that certainly lie in it.
        if self.is_flat:
            return find_nonzero_rows(vectors)
        result = np.zeros(len(vectors), dtype=np.bool_)
        for normal, offset in zip(*self.half_planes, strict=True):
            result |= np.abs(vectors @ normal) > offset
        return result

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Return closed membership of the rows of ``vectors``, with a tolerance for floats."""
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

    def compute_growth(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the area gained by adding ``v`` and ``-v``, for each row ``v`` of ``vectors``.

        The cap of ``v`` consists of one triangle for each edge that ``v`` sees. A supporting line of the polygon
        through ``v`` has ``-v`` on the polygon's side. Therefore the areas of the two caps add up. A segment gains a
        parallelogram. The origin becomes a segment, with zero gain.
        """
        if len(self.vertices) == 1:
            return np.zeros(len(vectors))
        if self.is_flat:
            return np.asarray(2.0 * np.abs(planar.cross(self.vertices[1], vectors)))
        normals, offsets = self.half_planes
        return np.asarray(np.maximum(np.abs(vectors @ normals.T) - offsets, 0).sum(axis=1), dtype=np.float64)

    def find_minimal_vectors(self, vectors: npt.NDArray[Any]) -> IntArray:
        """Return the indices of vectors with a grown hull that contains no other vector.

        Of equal vectors the first one is kept. Vectors are processed in the order of growth, block by block: a vector
        in another's grown hull has less growth, and dominance is transitive.
        """
        lengths = (vectors.astype(np.float64) ** 2).sum(axis=1)
        waiting = np.lexsort((lengths, self.compute_growth(vectors)))
        kept = np.zeros(len(vectors), dtype=np.bool_)
        while len(waiting):
            block, waiting = waiting[:_PAIR_BLOCK], waiting[_PAIR_BLOCK:]
            holds = self._contains_after_growth(vectors[block], vectors[block])
            mutual = holds & holds.T
            earlier = np.tri(len(block), k=-1, dtype=np.bool_)
            block = block[~((holds & ~mutual) | (mutual & earlier)).any(axis=1)]
            kept[block] = True
            if len(waiting) and len(block):
                waiting = waiting[~self._contains_after_growth(vectors[waiting], vectors[block]).any(axis=1)]
        return np.flatnonzero(kept)

    @cached_property
    def _facets(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Cones, normals and volumes of the edges, which are the facets."""
        if self.is_flat:
            return None
        start = self.vertices
        end = np.roll(self.vertices, -1, axis=0)
        doubled = planar.cross(start, end).astype(np.float64)
        edges = end - start
        return (
            np.stack([start, end], axis=1).astype(np.float64),
            np.stack([edges[:, 1], -edges[:, 0]], axis=1) / doubled[:, None],
            doubled / 2,
        )

    def _contains_after_growth(self, vectors: npt.NDArray[Any], others: npt.NDArray[Any]) -> BoolArray:
        """Return whether the hull grown by outer vector ``i`` contains vector ``j``, ``(i, j)``."""
        tips = vectors[:, None]
        other = others[None]
        shape = self.vertices
        if self.is_flat:
            return self._contains_after_flat_growth(tips, other)
        # The grown hull keeps the edges that the vector does not see, and has two new ones: from ``touch`` to the
        # vector and on to ``leave``. The other vector lies in it if it is beyond none of these.
        normals, offsets = self.half_planes
        heights = vectors @ normals.T
        other_heights = others @ normals.T
        unseen = np.abs(heights) <= offsets
        violated = np.abs(other_heights) > offsets
        unseen_violated = unseen.astype(np.float32) @ violated.T.astype(np.float32) > 0
        following = np.roll(shape, -1, axis=0)
        seen = planar.cross((following - shape)[None], tips - shape[None]) < 0
        first = (seen & ~np.roll(seen, 1, axis=1)).argmax(axis=1)
        last = (seen & ~np.roll(seen, -1, axis=1)).argmax(axis=1)
        touch = shape[first][:, None]
        leave = following[last][:, None]
        inside = ~unseen_violated
        for sign in (1, -1):
            inside &= planar.cross(tips - touch, sign * other - touch) >= 0
            inside &= planar.cross(leave - tips, sign * other - tips) >= 0
        return np.asarray(inside)

    def _contains_after_flat_growth(self, tips: npt.NDArray[Any], other: npt.NDArray[Any]) -> BoolArray:
        """Return `_contains_after_growth` of a segment (or the origin): a parallelogram."""
        tip = self.vertices[-1]
        whole = np.abs(planar.cross(tip, tips))
        in_parallelogram = np.abs(planar.cross(other, tips)) + np.abs(planar.cross(tip, other)) <= whole
        collinear = planar.cross(tips, other) == 0
        shorter = (other * other).sum(axis=2) <= (tips * tips).sum(axis=2)
        return np.asarray(np.where(whole > 0, in_parallelogram, collinear & shorter))

    def inradius(self, spacing: FloatArray) -> float:
        """Return the radius of the largest inner disc, in the unit of ``spacing`` ``(2,)``."""
        if self.is_flat:
            return 0.0
        normals, offsets = self.half_planes
        return float((offsets / np.linalg.norm(normals / spacing, axis=1)).min())

    def squared_error(self, spacing: FloatArray) -> float:
        """Return the squared error ``(r + 1)(r + 2) E|u|²`` in the unit of ``spacing``."""
        if self._error is None or self._error[0] is not spacing:
            flat = self.is_flat
            corners = self.vertices * spacing
            self._error = (spacing, 2.0 * float((corners[-1] ** 2).sum()) if flat else compute_polygon_error(corners))
        return self._error[1]

    _error: tuple[FloatArray, float] | None = None

    def compute_grown_errors(self, vectors: npt.NDArray[Any], spacing: FloatArray) -> FloatArray:
        """Return the squared error of the body grown by ``v`` and ``-v``, for each vector ``v``.

        A segment grows to a parallelogram, or to a longer segment.
        """
        if not self.is_flat:
            return super().compute_grown_errors(vectors, spacing)
        tip = self.vertices[-1]
        square = float(((tip * spacing) ** 2).sum())
        others = ((vectors * spacing) ** 2).sum(axis=1)
        return np.asarray(2.0 * np.where(planar.cross(tip, vectors) == 0, np.maximum(square, others), square + others))

    def compute_open_bounds(self, vectors: npt.NDArray[Any], spacing: FloatArray, level: float) -> FloatArray:
        """Return `least_error.compute_open_bounds`."""
        return compute_open_bounds(self.vertices * spacing, vectors * spacing, level)

    def compute_error_floor(self, spacing: FloatArray) -> float:
        """Return a lower bound on the squared error of any symmetric convex body around this one."""
        return compute_error_floor(self.vertices * spacing)


def build_growing_body(vertices: npt.NDArray[Any]) -> GrowingBody:
    """Build the body with vertices ``(h, d)``, planar or not."""
    return PlanarBody(vertices) if vertices.shape[1] == 2 else GrowingBody(vertices)


def build_origin(like: npt.NDArray[Any]) -> GrowingBody:
    """Return the origin, from which all bodies grow, for differences of points ``(n, d)``."""
    return build_growing_body(np.zeros((1, like.shape[1]), dtype=like.dtype))
