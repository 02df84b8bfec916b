"""The planar isotropic mechanism: the K-norm mechanism by way of isotropic position."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import RELATIVE_TOLERANCE, FloatArray, RandomSource
from dphmm.errors import InvalidInputError
from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms.knorm import KNormMechanism


class PlanarIsotropicMechanism(KNormMechanism):
    """The planar isotropic mechanism, PIM (Xiao and Xiong, CCS 2015).

    The hull is mapped to isotropic position (second moments equal in all directions), noise is drawn there by the
    K-norm mechanism, and mapped back. As ``‖T v‖_{TK} = ‖v‖_K``, what comes out has the distribution of the K-norm
    mechanism of the hull itself, and so its density and error: isotropic position changes nothing, which a two-sample
    test of this package shows.

    Parameters
    ----------
    hull
        A planar hull, of any dimension up to 2.
    epsilon
        The budget, positive and finite.
    """

    def __init__(self, hull: SensitivityHull, epsilon: float) -> None:
        if hull.ambient_dimension != 2:
            raise InvalidInputError(
                f"the planar isotropic mechanism needs a planar hull, not one in {hull.ambient_dimension} dimensions"
            )
        super().__init__(hull, epsilon)
        variances, axes = np.linalg.eigh(hull.second_moments)
        within = variances > RELATIVE_TOLERANCE**2 * max(float(variances[-1]), np.finfo(float).tiny)
        roots = np.sqrt(np.where(within, variances, 1.0))
        self.to_isotropic: FloatArray = (axes * np.where(within, 1 / roots, 0.0)) @ axes.T
        """The symmetric matrix ``T`` that takes the hull to isotropic position (within its span)."""
        self.from_isotropic: FloatArray = (axes * np.where(within, roots, 0.0)) @ axes.T
        """The inverse of ``T`` on the span."""
        self._isotropic = KNormMechanism(SensitivityHull(hull.vertices @ self.to_isotropic), epsilon)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, 2)``, drawn in isotropic position and mapped back."""
        return np.asarray(self._isotropic.noise(count, source) @ self.from_isotropic)
