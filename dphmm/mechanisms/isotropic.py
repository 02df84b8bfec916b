"""The planar isotropic mechanism: the K-norm mechanism by way of isotropic position."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray, RandomSource
from dphmm.errors import InvalidInputError
from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms.base import NormMechanism
from dphmm.mechanisms.knorm import KNormMechanism


class PlanarIsotropicMechanism(NormMechanism):
    """The planar isotropic mechanism, PIM (Xiao and Xiong, CCS 2015).

    The hull is mapped to isotropic position (second moments equal in all directions), noise is drawn there by the
    K-norm mechanism, and mapped back. As ``‖T v‖_{TK} = ‖v‖_K``, what comes out has the distribution of the K-norm
    mechanism of the hull itself: isotropic position changes nothing, which a two-sample test of this package shows.

    Parameters
    ----------
    hull
        A planar hull, of any dimension up to 2.
    epsilon
        The budget, positive and finite.
    """

    def __init__(self, hull: SensitivityHull, epsilon: float) -> None:
        super().__init__(epsilon, hull.ambient_dimension)
        if hull.ambient_dimension != 2:
            raise InvalidInputError(
                f"the planar isotropic mechanism needs a planar hull, not one in {hull.ambient_dimension} dimensions"
            )
        self.hull = hull
        variances, axes = np.linalg.eigh(hull.second_moments)
        within = variances > RELATIVE_TOLERANCE**2 * max(float(variances[-1]), np.finfo(float).tiny)
        roots = np.sqrt(np.where(within, variances, 1.0))
        self.to_isotropic: FloatArray = (axes * np.where(within, 1 / roots, 0.0)) @ axes.T
        """The symmetric matrix ``T`` that takes the hull to isotropic position (within its span)."""
        self.from_isotropic: FloatArray = (axes * np.where(within, roots, 0.0)) @ axes.T
        """The inverse of ``T`` on the span."""
        self._log_stretch = float(np.log(roots).sum())
        self._isotropic = KNormMechanism(SensitivityHull(hull.vertices @ self.to_isotropic), epsilon)

    def norm(self, vectors: FloatArray) -> FloatArray:
        """The norm of the isotropic body at the mapped vector; infinite off the hull's span."""
        norms = self._isotropic.norm(vectors @ self.to_isotropic)
        return np.where(self.hull.norm_form.in_span(vectors), norms, np.inf)

    @property
    def log_normaliser(self) -> float:
        """That of the isotropic mechanism, plus the log determinant of the map back."""
        return self._isotropic.log_normaliser + self._log_stretch

    @property
    def squared_error(self) -> float:
        """That of the K-norm mechanism of the hull."""
        return self.hull.squared_error / self.epsilon**2

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, 2)``, drawn in isotropic position and mapped back."""
        return np.asarray(self._isotropic.noise(count, source) @ self.from_isotropic)
