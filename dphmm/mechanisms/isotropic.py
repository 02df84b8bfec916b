"""The planar isotropic mechanism: the K-norm mechanism by way of isotropic position."""

from __future__ import annotations

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, RandomSource
from dphmm.errors import InvalidInputError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms.knorm import KNormMechanism

_FLAT = 1e-10
"""Hulls whose least second moment is below this share of the largest are as good as flat: rounding would bend them."""


class PlanarIsotropicMechanism(KNormMechanism):
    """The planar isotropic mechanism, PIM (Xiao and Xiong, CCS 2015).

    The hull is mapped to isotropic position (second moments equal in all directions), noise is drawn there by the
    K-norm mechanism, and mapped back. As ``‖T v‖_{TK} = ‖v‖_K``, what comes out has the distribution of the K-norm
    mechanism of the hull itself, and so its density and error: isotropic position changes nothing, which a two-sample
    test of this package shows. A hull that is flat, or nearly so, has no isotropic position that doubles could hold;
    there the K-norm mechanism draws.

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
        if variances[0] <= _FLAT * variances[1]:
            variances = np.ones(2)
        roots = np.sqrt(variances)
        self.to_isotropic: FloatArray = (axes / roots) @ axes.T
        """The symmetric matrix ``T`` that takes the hull to isotropic position; the identity for a flat one."""
        self.from_isotropic: FloatArray = (axes * roots) @ axes.T
        """The inverse of ``T``."""
        moved = (variances != 1.0).any()
        self._isotropic = KNormMechanism(SensitivityHull(hull.vertices @ self.to_isotropic), epsilon) if moved else None

    @checked
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """From the cones that `noise` picks from, mapped back."""
        if self._isotropic is None:
            return super().gauge(loss, rounding)
        return Gauge.of_cones(self._isotropic.hull.cones @ self.from_isotropic, loss / self.epsilon, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, 2)``, drawn in isotropic position and mapped back."""
        if self._isotropic is None:
            return super().noise(count, source)
        return np.asarray(self._isotropic.noise(count, source) @ self.from_isotropic)
