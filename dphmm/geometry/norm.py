"""The Minkowski norm of a symmetric polytope, and membership in it.

A symmetric polytope is ``{v : E v = 0, |A v| <= b}``: its linear span is the null space of ``E``, and every pair of
opposite facets is one row of ``A``. Where ``E``, ``A`` and ``b`` are integers, membership of integer and rational
vectors is decided without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray

_BLOCK = 1 << 16
"""Rows that are worked on at a time, so that a million vectors need no large temporary."""


@dataclass(frozen=True)
class ExactInequalities:
    """Integer ``E``, ``A`` and ``b`` for vectors that are multiplied by ``denominator`` first."""

    equations: npt.NDArray[Any]
    normals: npt.NDArray[Any]
    offsets: npt.NDArray[Any]
    denominator: int

    def contains_integers(self, vectors: IntArray) -> BoolArray:
        """Exact membership of integer vectors ``(n, d)``."""
        scaled = vectors * self.denominator
        inside = np.ones(len(vectors), dtype=np.bool_)
        for equation in self.equations:
            inside &= scaled @ equation == 0
        heights = np.abs(scaled @ self.normals.T)
        inside &= np.less_equal(heights, self.offsets).all(axis=1)
        return inside

    def contains_fractions(self, vector: list[Fraction]) -> bool:
        """Exact membership of one rational vector."""
        scaled = [self.denominator * entry for entry in vector]
        if any(sum(int(e) * x for e, x in zip(row, scaled, strict=True)) != 0 for row in self.equations):
            return False
        for row, offset in zip(self.normals, self.offsets, strict=True):
            height = sum((int(a) * x for a, x in zip(row, scaled, strict=True)), Fraction(0))
            if abs(height) > int(offset):
                return False
        return True


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

    def __call__(self, vectors: FloatArray) -> FloatArray:
        """The norms ``(n,)`` of vectors ``(n, d)``."""
        norms = np.empty(len(vectors))
        for start in range(0, len(vectors), _BLOCK):
            norms[start : start + _BLOCK] = self._norms(vectors[start : start + _BLOCK])
        return norms

    def _norms(self, vectors: FloatArray) -> FloatArray:
        norms = np.zeros(len(vectors))
        for normal in self.normals:
            np.maximum(norms, np.abs(vectors @ normal), out=norms)
        if len(self.equations):
            norms[~self.in_span(vectors)] = np.inf
        return norms

    def in_span(self, vectors: FloatArray) -> BoolArray:
        """Whether each vector lies in the span of ``K``, within the tolerance times the larger of body and vector."""
        if not len(self.equations):
            return np.ones(len(vectors), dtype=np.bool_)
        off = np.abs(vectors @ self.equations.T).max(axis=1)
        size = np.maximum(self.scale, np.abs(vectors).max(axis=1, initial=0.0))
        return np.asarray(off <= RELATIVE_TOLERANCE * size)

    def contains(self, vectors: npt.NDArray[Any]) -> BoolArray:
        """Closed membership ``(n,)``: exact for integer and rational input where the body is exact."""
        if self.exact is not None:
            if vectors.dtype.kind in "iu":
                return self.exact.contains_integers(vectors.astype(np.int64))
            if vectors.dtype == object:
                rows = [[Fraction(x) for x in row] for row in vectors]
                return np.array([self.exact.contains_fractions(row) for row in rows], dtype=np.bool_)
        return np.asarray(self(vectors.astype(np.float64)) <= 1.0 + RELATIVE_TOLERANCE)
