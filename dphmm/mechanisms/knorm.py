"""The K-norm mechanism: noise in the shape of the sensitivity hull."""

from __future__ import annotations

from functools import cached_property
from math import lgamma, log

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, RandomSource
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms.base import NormMechanism, PlanarLaw


class KNormMechanism(NormMechanism):
    """The mechanism with density proportional to ``exp(-epsilon ‖z - x‖_K)`` (Definition 3.3).

    Everything happens within the body's linear span, whose dimension ``r`` takes the place of ``d``: a segment's
    noise has a Gamma(2) length, not the Gamma(3) of the plane. The point ``{0}`` adds no noise at all.

    Parameters
    ----------
    hull
        The body ``K``.
    epsilon
        The budget, positive and finite. True values that differ by a vector of ``K`` are ``epsilon``-indistinguishable.

    Notes
    -----
    A body is tiled by cones over its facets. A draw picks a cone in proportion to its volume and sums the cone's ``r``
    vectors, each times an independent exponential number of mean ``1 / epsilon``: on a cone the norm is the sum of the
    coefficients. It is the distribution of ``Gamma(r + 1)`` times a uniform point of ``K``, with fewer numbers drawn.

    Examples
    --------
    >>> square = SensitivityHull([[1, 1], [1, -1]])
    >>> mechanism = KNormMechanism(square, epsilon=1.0)
    >>> mechanism.sample([10.0, 20.0], rng=0).shape
    (2,)
    >>> mechanism.privacy_loss([0, 0], [1, 1]).item()
    1.0
    """

    def __init__(self, hull: SensitivityHull, epsilon: float) -> None:
        super().__init__(epsilon, hull.ambient_dimension)
        self.hull = hull
        self._cumulative = np.cumsum(hull.cone_volumes) / hull.cone_volumes.sum()

    def norm(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:
        """The norm of the hull; infinite off its span by more than ``rounding``."""
        return self.hull.norm_form(vectors, rounding)

    def planar_law(self, reach: float) -> PlanarLaw | None:  # noqa: ARG002
        """The hull by its walls, where it is a polygon in the plane."""
        return self._law

    @cached_property
    def _law(self) -> PlanarLaw | None:
        if self.hull.dimension != 2 or self.dimension != 2:
            return None
        forms = self.hull.norm_form.normals
        return PlanarLaw(forms, np.ones(len(forms)), self.epsilon, self.log_normaliser)

    @property
    def log_normaliser(self) -> float:
        """``log(r! Vol(K) / epsilon^r)``, with the volume of the span."""
        r = self.hull.dimension
        return lgamma(r + 1) + log(self.hull.span_volume) - r * log(self.epsilon)

    @property
    def squared_error(self) -> float:
        """``(r + 1)(r + 2) E|u|² / epsilon²`` with ``u`` uniform in the hull."""
        return self.hull.squared_error / self.epsilon**2

    @checked
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """From the cones that `noise` picks from."""
        return Gauge.of_cones(self.hull.cones, loss / self.epsilon, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, d)``."""
        if self.hull.dimension == 0:
            return np.zeros((count, self.dimension))
        uniform = source.uniform(count * (1 + self.hull.dimension))  # read at once, which takes less time
        cone = np.searchsorted(self._cumulative[:-1], uniform[:count])
        lengths = np.log(uniform[count:]).reshape(count, 1, self.hull.dimension) / -self.epsilon
        return np.asarray((lengths @ self.hull.cones[cone])[:, 0])
