"""The Laplace mechanism: independent noise on every coordinate."""

from __future__ import annotations

from math import log

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, RandomSource
from dphmm.errors import InvalidInputError
from dphmm.geometry.gauge import Gauge
from dphmm.mechanisms.base import NormMechanism, laplace_noise


@checked
class LaplaceMechanism(NormMechanism):
    """Laplace noise of scale ``sensitivity / epsilon`` on every coordinate.

    It is the K-norm mechanism of the cross-polytope ``{v : ‖v‖_1 <= sensitivity}`` (Theorem 5.1).

    Parameters
    ----------
    sensitivity
        The largest 1-norm of a difference over an edge, ``S_f``; positive and finite, in the unit of the values.
    epsilon
        The budget, positive and finite.
    dimension
        The number of coordinates.
    """

    def __init__(self, sensitivity: float, epsilon: float, dimension: int) -> None:
        super().__init__(epsilon, dimension)
        self.sensitivity = float(sensitivity)
        if not (np.isfinite(self.sensitivity) and self.sensitivity > 0):
            raise InvalidInputError(f"sensitivity is {sensitivity}; give a positive, finite number")
        if dimension < 1:
            raise InvalidInputError(f"dimension is {dimension}; give at least 1")

    @property
    def scale(self) -> float:
        """The scale of each coordinate's noise."""
        return self.sensitivity / self.epsilon

    def norm(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:  # noqa: ARG002
        """``‖v‖_1 / sensitivity``."""
        return np.asarray(np.abs(vectors).sum(axis=1) / self.sensitivity)

    @property
    def log_normaliser(self) -> float:
        """``d log(2 sensitivity / epsilon)``."""
        return self.dimension * log(2 * self.scale)

    @property
    def squared_error(self) -> float:
        """``2 d`` times the square of the scale."""
        return 2 * self.dimension * self.scale**2

    @checked
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """The cross-polytope of the scale."""
        return Gauge.of_ball(1, loss * self.scale, self.dimension, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, d)``."""
        return self.scale * laplace_noise((count, self.dimension), source)
