"""The Minkowski norm of a symmetric polytope, and membership in it, also by the quadratic program of Equation (6).

A symmetric polytope is ``{v : E v = 0, |A v| <= b}``: its linear span is the null space of ``E``, and every pair of
opposite facets is one row of ``A``. Where ``E``, ``A`` and ``b`` are integers, membership of integer and rational
vectors is decided without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray
from dphmm.geometry.span import common_denominator, exact_product

_BLOCK = 1 << 16
"""Rows that are worked on at a time, so that a million vectors need no large temporary."""


@dataclass(frozen=True)
class ExactInequalities:
    """Integer ``E``, ``A`` and ``b`` for vectors that are multiplied by ``denominator`` before they are compared."""

    equations: npt.NDArray[Any]
    normals: npt.NDArray[Any]
    offsets: npt.NDArray[Any]
    denominator: int

    def contains(self, vectors: npt.NDArray[Any], denominator: int = 1) -> BoolArray:
        """Exact membership of vectors ``(n, d)``: integers over a common denominator."""
        limits = self.offsets if denominator == 1 else self.offsets.astype(object) * denominator
        heights = np.abs(exact_product(vectors, self.normals.T))
        inside = (heights <= limits // self.denominator).all(axis=1)
        return np.asarray(inside & self.in_span(vectors) if len(self.equations) else inside, dtype=np.bool_)

    def in_span(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Whether each of the integer vectors ``(n, d)`` satisfies the equations."""
        return np.asarray((exact_product(vectors, self.equations.T) == 0).all(axis=1), dtype=np.bool_)


@dataclass(frozen=True)
class MinkowskiNorm:
    """``‖v‖_K = inf{r >= 0 : v in r K}`` of a symmetric polytope ``K``; infinite off its linear span.

    Parameters
    ----------
    normals
        ``(m, d)``, scaled so that the facets are ``|normals v| = 1``.
    equations
        ``(e, d)``, orthonormal rows whose null space is the span of ``K``.
    scale
        The largest Euclidean length in ``K``: what the tolerance off the span is relative to.
    exact
        The same in integers, where the body was given in integers or rationals.
    """

    normals: FloatArray
    equations: FloatArray
    scale: float
    exact: ExactInequalities | None

    def __call__(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:
        """The norms ``(n,)`` of vectors ``(n, d)``; those off the span by ``rounding``, a length, count as on it."""
        norms = np.zeros(len(vectors))
        for start in range(0, len(vectors), _BLOCK):
            block, found = vectors[start : start + _BLOCK], norms[start : start + _BLOCK]
            for normal in self.normals:
                np.maximum(found, np.abs(block @ normal), out=found)
            if len(self.equations):
                found[~self.in_span(block, rounding)] = np.inf
        return norms

    def in_span(self, vectors: npt.NDArray[Any], rounding: float = 0.0) -> BoolArray:
        """Whether each vector lies in the span of ``K``.

        Exact for integers where the body is exact; otherwise within the tolerance times the larger of body and vector,
        or within ``rounding``.
        """
        if not len(self.equations):
            return np.ones(len(vectors), dtype=np.bool_)
        if self.exact is not None and vectors.dtype.kind in "iu":
            return self.exact.in_span(vectors)
        off = np.abs(vectors @ self.equations.T).max(axis=1)
        size = np.maximum(self.scale, np.abs(vectors).max(axis=1, initial=0.0))
        return np.asarray(off <= np.maximum(RELATIVE_TOLERANCE * size, rounding))

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership ``(n,)``: exact for integer and rational input where the body is exact."""
        if self.exact is not None:
            if vectors.dtype.kind in "iu":
                return self.exact.contains(vectors)
            if vectors.dtype == object:
                return self.exact.contains(*common_denominator(vectors))
        return np.asarray(self(vectors.astype(np.float64)) <= 1.0 + RELATIVE_TOLERANCE)


def in_convex_hull(points: FloatArray, vectors: FloatArray) -> BoolArray:
    """Whether each row of ``vectors`` ``(n, d)`` is a convex combination of the rows of ``points`` ``(k, d)``."""
    return np.array([_distance(points, v) <= RELATIVE_TOLERANCE for v in vectors], dtype=np.bool_)


def _distance(points: FloatArray, vector: FloatArray) -> float:
    """The distance of a vector from the convex hull, in units of the largest coordinate of either.

    With ``D`` the points less the vector, weights ``w >= 0`` of least ``|D w|^2 + (1 - sum w)^2`` are, up to a factor,
    those of the nearest point: for weights of sum ``t`` that is ``t^2 |D w / t|^2 + (1 - t)^2``.
    """
    from scipy.optimize import nnls

    size = max(float(np.abs(points).max(initial=0.0)), float(np.abs(vector).max()))
    if size == 0.0:
        return 0.0
    if not len(points):
        return 1.0
    apart = (points - vector).T / size
    count = apart.shape[1]
    weights, _ = nnls(np.vstack([apart, np.ones(count)]), np.append(np.zeros(len(apart)), 1.0), maxiter=100 * count)
    return float(np.linalg.norm(apart @ (weights / weights.sum())))
