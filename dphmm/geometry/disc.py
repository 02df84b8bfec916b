"""The Euclidean ball: the body of the planar Laplace mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from math import gamma, pi

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, RELATIVE_TOLERANCE, SMALLEST, BoolArray, FloatArray, as_floats
from dphmm.errors import CoordinateError, InvalidInputError

_LEAST, _MOST = SMALLEST**2, LARGEST**2
"""Radii: those of policies and of noise lie between the roots of these, and hulls reach a little farther."""


@checked
@dataclass(frozen=True)
class Disc:
    """The Euclidean ball of a radius about the origin: a disc in the plane.

    Parameters
    ----------
    radius
        From 1e-60 to 1e60, so that no quotient or square leaves a double.
    dimension
        The dimension ``d`` of the space.
    """

    radius: float
    dimension: int = 2

    def __post_init__(self) -> None:
        if not _LEAST <= self.radius <= _MOST:
            raise InvalidInputError(f"radius is {self.radius}; give a number from {_LEAST:g} to {_MOST:g}")

    def norm(self, vectors: npt.ArrayLike) -> FloatArray:
        """``|v| / radius`` for one vector ``(d,)`` or each row ``(n, d)``; infinite where no double holds it.

        Parameters
        ----------
        vectors
            ``(..., d)``.

        Returns
        -------
        FloatArray
            ``(...)``: Euclidean length over radius.
        """
        with np.errstate(over="ignore"):
            return np.asarray(np.linalg.norm(self._vectors(vectors), axis=-1) / self.radius)

    def _vectors(self, vectors: npt.ArrayLike) -> FloatArray:
        array = as_floats(vectors, "vectors", CoordinateError)
        if array.ndim == 0:
            raise CoordinateError(f"vectors have shape {array.shape}; the last axis must be {self.dimension}")
        return array

    def contains(self, vectors: npt.ArrayLike) -> BoolArray:
        """Closed membership, within the one tolerance.

        Parameters
        ----------
        vectors
            ``(..., d)``.

        Returns
        -------
        BoolArray
            ``(...)``: whether each lies in the disc, boundary included.
        """
        return np.asarray(self.norm(vectors) <= 1.0 + RELATIVE_TOLERANCE)

    @property
    def volume(self) -> float:
        """The volume (the area in the plane)."""
        d = self.dimension
        return float(pi ** (d / 2) / gamma(d / 2 + 1) * self.radius**d)

    @property
    def squared_error(self) -> float:
        """The expected squared error of a K-norm release at epsilon one, ``d (d + 1) radius²``."""
        return self.dimension * (self.dimension + 1) * self.radius**2

    @property
    def circumradius(self) -> float:
        """The radius."""
        return self.radius
