"""The planar Laplace mechanism of geo-indistinguishability."""

from __future__ import annotations

from math import log, pi

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, RandomSource
from dphmm.geometry.disc import Disc
from dphmm.geometry.gauge import Gauge
from dphmm.mechanisms.base import NormMechanism


@checked
class PlanarLaplaceMechanism(NormMechanism):
    """Noise with density proportional to ``exp(-epsilon |z - x| / unit)`` in the plane.

    It is the K-norm mechanism of a disc of radius ``unit``: two places are ``epsilon`` times their distance over
    ``unit`` indistinguishable (Andrés et al., CCS 2013).

    Parameters
    ----------
    epsilon
        The budget for two places one ``unit`` apart; positive and finite.
    unit
        A length, positive and finite, in the unit of the values.
    """

    def __init__(self, epsilon: float, unit: float = 1.0) -> None:
        super().__init__(epsilon, 2)
        self.body = Disc(float(unit))

    def norm(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:  # noqa: ARG002
        """``|v| / unit``."""
        return self.body.norm(vectors)

    @property
    def log_normaliser(self) -> float:
        """``log(2 π (unit / epsilon)²)``."""
        return log(2 * pi) + 2 * log(self.body.radius / self.epsilon)

    @property
    def squared_error(self) -> float:
        """``6 (unit / epsilon)²``."""
        return self.body.squared_error / self.epsilon**2

    @checked
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """The disc whose radius is the noise's scale times the loss."""
        return Gauge.of_ball(2, loss * self.body.radius / self.epsilon, 2, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, 2)``: a uniform angle and a Gamma(2) length."""
        angle = 2 * pi * source.uniform(count)
        length = -np.log(source.uniform((count, 2))).sum(axis=1) * self.body.radius / self.epsilon
        return np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1)
