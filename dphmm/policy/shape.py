"""Hulls while they grow: what the search for a repair needs to know, and nothing more.

A shape is an array of vertices; `PlanarShapes` works with polygons in exact coordinates, `SpatialShapes` with any
dimension by building every hull anew.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray
from dphmm.geometry import planar
from dphmm.geometry.hull import SensitivityHull

Shape = npt.NDArray[Any]
_BLOCK = 256


class Shapes(Protocol):
    """Operations on symmetric hulls given by their vertices ``(h, d)``."""

    def grow(self, shape: Shape, vector: npt.NDArray[Any]) -> Shape:
        """The hull of the shape, the vector and its negative."""

    def contains(self, shape: Shape, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership of the rows of ``vectors``."""

    def volume(self, shape: Shape) -> float:
        """The volume, up to a constant factor; zero below full dimension."""

    def growth(self, shape: Shape, vectors: npt.NDArray[Any]) -> FloatArray:
        """How much the volume grows when a vector joins, for each row."""

    def minimal(self, shape: Shape, vectors: npt.NDArray[Any]) -> BoolArray:
        """Which vectors are worth trying: the hull grown by any other contains a hull grown by one of these."""


class PlanarShapes:
    """Polygons, exact for integers. Volumes are doubled areas."""

    def grow(self, shape: Shape, vector: npt.NDArray[Any]) -> Shape:
        """The hull of the shape, the vector and its negative."""
        return planar.convex_polygon(np.concatenate([shape, vector[None], -vector[None]]))

    def contains(self, shape: Shape, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership of the rows of ``vectors``."""
        slack = 0 if shape.dtype.kind == "i" else RELATIVE_TOLERANCE
        if len(shape) <= 2:
            tip = shape[-1]
            square = (tip * tip).sum()
            along = np.abs(vectors @ tip) <= square * (1 + slack)
            size = np.sqrt(float(square)) * np.sqrt((vectors * vectors).sum(axis=1).astype(np.float64))
            on_line = np.abs(planar.cross(tip, vectors)) <= slack * size
            return np.asarray(along & on_line & ((square > 0) | (vectors == 0).all(axis=1)))
        heights, offsets = self._heights(shape, vectors)
        return np.asarray((np.abs(heights) <= offsets * (1 + slack)).all(axis=1))

    def _heights(self, shape: Shape, vectors: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        half = len(shape) // 2
        start, end = shape[:half], shape[1 : half + 1]
        edge = end - start
        return vectors @ np.stack([edge[:, 1], -edge[:, 0]]), planar.cross(start, end)

    def volume(self, shape: Shape) -> float:
        """Twice the area."""
        return float(planar.doubled_area(shape))

    def growth(self, shape: Shape, vectors: npt.NDArray[Any]) -> FloatArray:
        """Twice the area gained, for each row."""
        return planar.doubled_growth(shape, vectors).astype(np.float64)

    def minimal(self, shape: Shape, vectors: npt.NDArray[Any]) -> BoolArray:
        """Vectors whose grown hull holds no other vector (of equal ones, the first).

        Vectors are taken from the least growth up, a block at a time: what a vector's grown hull holds grows it less,
        and what is beaten by a beaten vector is beaten by that vector's victor too.
        """
        lengths = (vectors.astype(np.float64) ** 2).sum(axis=1)
        waiting = np.lexsort((lengths, self.growth(shape, vectors)))
        kept = np.zeros(len(vectors), dtype=np.bool_)
        while len(waiting):
            block, waiting = waiting[:_BLOCK], waiting[_BLOCK:]
            holds = self._holds(shape, vectors[block], vectors[block])
            mutual = holds & holds.T
            earlier = np.tri(len(block), k=-1, dtype=np.bool_)
            block = block[~((holds & ~mutual) | (mutual & earlier)).any(axis=1)]
            kept[block] = True
            if len(waiting) and len(block):
                waiting = waiting[~self._holds(shape, vectors[waiting], vectors[block]).any(axis=1)]
        return kept

    def _holds(self, shape: Shape, vectors: npt.NDArray[Any], others: npt.NDArray[Any]) -> BoolArray:
        """Entry ``(i, j)``: the hull grown by vector ``i`` (outside the shape) contains other vector ``j``."""
        own, other = vectors[:, None], others[None]
        if len(shape) <= 2:
            return self._flat_holds(shape[-1], own, other)
        (heights, offsets), (other_heights, _) = self._heights(shape, vectors), self._heights(shape, others)
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

    def _flat_holds(self, tip: npt.NDArray[Any], own: npt.NDArray[Any], other: npt.NDArray[Any]) -> BoolArray:
        """The same for a segment with end ``tip`` (or the origin): a parallelogram, or a longer segment."""
        whole = np.abs(planar.cross(tip, own))
        in_parallelogram = np.abs(planar.cross(other, own)) + np.abs(planar.cross(tip, other)) <= whole
        collinear = planar.cross(own, other) == 0
        shorter = (other * other).sum(axis=2) <= (own * own).sum(axis=2)
        return np.asarray(np.where(whole > 0, in_parallelogram, collinear & shorter))


class SpatialShapes:
    """Hulls of any dimension, each built anew: slow and plain."""

    def grow(self, shape: Shape, vector: npt.NDArray[Any]) -> Shape:
        """The hull of the shape, the vector and its negative."""
        grown = SensitivityHull(np.concatenate([shape, vector[None]])).vertices
        return np.rint(grown).astype(np.int64) if shape.dtype.kind == "i" else grown

    def contains(self, shape: Shape, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership of the rows of ``vectors``."""
        return SensitivityHull(shape).contains(vectors)

    def volume(self, shape: Shape) -> float:
        """The volume."""
        return SensitivityHull(shape).volume

    def growth(self, shape: Shape, vectors: npt.NDArray[Any]) -> FloatArray:
        """The volume gained, for each row."""
        before = self.volume(shape)
        return np.array([SensitivityHull(np.concatenate([shape, v[None]])).volume - before for v in vectors])

    def minimal(self, shape: Shape, vectors: npt.NDArray[Any]) -> BoolArray:  # noqa: ARG002
        """The first of equal vectors."""
        keep = np.zeros(len(vectors), dtype=np.bool_)
        keep[np.unique(vectors, axis=0, return_index=True)[1]] = True
        return keep


def shapes_for(dimension: int) -> Shapes:
    """The operations for measurements of ``dimension`` axes."""
    return PlanarShapes() if dimension == 2 else SpatialShapes()


def planar_squared_error(shape: Shape, spacing: FloatArray) -> float:
    """``(r + 1)(r + 2) E|u|²`` of a planar symmetric shape: the squared error of a release at epsilon one."""
    corners = shape * spacing
    if len(corners) <= 2:
        return 2.0 * float((corners[-1] ** 2).sum())
    half = len(corners) // 2
    start, end = corners[:half], corners[1 : half + 1]
    weights = planar.cross(start, end)
    squares = (start**2).sum(axis=1) + (end**2).sum(axis=1) + ((start + end) ** 2).sum(axis=1)
    return float((weights * squares).sum() / weights.sum())


def planar_error_floor(shape: Shape, spacing: FloatArray) -> float:
    """What the squared error at epsilon one of no symmetric convex body around this one can fall below.

    For any body ``K'`` around ``K`` and any ``λ``, the integral of ``|x|² - λ`` over ``K'`` is at least that over ``K``
    plus that over the part of the disc of radius ``√λ`` outside ``K``, where alone the integrand is negative. With
    the ``λ`` at which this lower bound is zero, ``E|u|² >= λ`` in ``K'``. The integrals over the disc outside an edge
    are closed forms; the root comes from Dinkelbach's iteration, which falls towards it.
    """
    if len(shape) <= 2:
        return 0.0
    corners = shape * spacing
    half = len(corners) // 2
    start, end = corners[:half], corners[1 : half + 1]
    edge = end - start
    length = np.linalg.norm(edge, axis=1)
    doubled = planar.cross(start, end)
    distance = doubled / length
    left, right = (start * edge).sum(axis=1) / (length * distance), (end * edge).sum(axis=1) / (length * distance)
    squares = (start**2).sum(axis=1) + (end**2).sum(axis=1) + ((start + end) ** 2).sum(axis=1)
    volume, moment = doubled.sum() / 2, (doubled * squares).sum() / 24
    level = moment / volume
    for _ in range(8):
        reach = np.sqrt(np.maximum(level / distance**2 - 1.0, 0.0))
        low, high = np.maximum(left, -reach), np.minimum(right, reach)
        open_ = high > low
        low, high = low[open_], high[open_]
        near = distance[open_]
        angle = np.arctan(high) - np.arctan(low)
        area = (level * angle - near**2 * (high - low)).sum() / 2
        outer = (level**2 * angle - near**4 * (high - low + (high**3 - low**3) / 3)).sum() / 4
        level = (moment + outer) / (volume + area)
    return 12.0 * float(level) * (1 - RELATIVE_TOLERANCE)
