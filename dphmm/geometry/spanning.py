"""A set of differences kept small: only those that the symmetric hull of all of them needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray
from dphmm.geometry import planar
from dphmm.geometry.hull import SensitivityHull


class SpanningSet:
    """The vertices of the symmetric hull of all differences added so far.

    Parameters
    ----------
    dimension
        The number of coordinates of a difference.
    dtype
        ``int64`` for exact coordinates, ``float64`` otherwise.
    """

    def __init__(self, dimension: int, dtype: npt.DTypeLike) -> None:
        self.vertices: npt.NDArray[Any] = np.zeros((1, dimension), dtype=dtype)
        """``(h, d)``, both signs, starting with the origin alone."""

    def add(self, differences: npt.NDArray[Any]) -> None:
        """Let the hull grow by differences ``(k, d)``."""
        new = differences[self.outside(differences)]
        if not len(new):
            return
        both = np.concatenate([self.vertices, new, -new])
        if self.vertices.shape[1] == 2:
            self.vertices = planar.convex_polygon(both)
        else:
            hull = SensitivityHull(both)
            found = hull.vertices if both.dtype.kind == "f" else np.rint(hull.vertices)
            self.vertices = found.astype(both.dtype)

    def outside(self, differences: npt.NDArray[Any]) -> BoolArray:
        """Which differences could make the hull grow: all but those that certainly lie in it."""
        if self.vertices.shape[1] != 2 or len(self.vertices) < 4:
            return np.asarray((differences != 0).any(axis=1))
        result = np.zeros(len(differences), dtype=np.bool_)
        normals, offsets = self.half_planes()
        for normal, offset in zip(normals, offsets, strict=True):
            result |= np.abs(differences @ normal) > offset
        return result

    def half_planes(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Normals ``(m, 2)`` and offsets ``(m,)``, ``|normal · v| <= offset``, of a full-dimensional planar hull."""
        half = len(self.vertices) // 2
        start, end = self.vertices[:half], self.vertices[1 : half + 1]
        edge = end - start
        return np.stack([edge[:, 1], -edge[:, 0]], axis=1), np.asarray(planar.cross(start, end))

    def inradius(self, spacing: FloatArray) -> float:
        """The Euclidean radius, in the unit of the measurements, below which no difference matters."""
        if self.vertices.shape[1] != 2 or len(self.vertices) < 4:
            return 0.0
        normals, offsets = self.half_planes()
        return float((offsets / np.linalg.norm(normals / spacing, axis=1)).min())
