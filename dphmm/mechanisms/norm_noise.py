"""Real-valued noise of a norm: K-norm, Laplace, planar isotropic and planar Laplace mechanisms."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from math import isfinite, lgamma, log, pi, prod

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, RandomSource, Rng, as_floats, check_budget, random_source
from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.hull import Disc, SensitivityHull
from dphmm.mechanisms.base import Mechanism, PlanarLaw, check_size

_ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""How far rounding takes a sum of doubles, relative to the largest coordinate: a release is rounded off a flat body."""


class NormMechanism(Mechanism):
    """A mechanism of density ``exp(-epsilon ‖z - x‖) / Z`` for the norm of a symmetric convex body (Definition 3.3).

    ``Z`` is the same for every ``x``, so the log ratio of two true values' densities is at most ``epsilon ‖x - y‖``,
    which is `privacy_loss`, and attained.

    Draws are double-precision numbers. The guarantee is about real numbers: the low bits of a rounded draw can tell
    true values apart that the real-valued mechanism does not (Mironov, CCS 2012). `LatticeKNormMechanism` is exact.

    Parameters
    ----------
    epsilon
        The budget, positive and finite.
    dimension
        The number of coordinates ``d``.
    """

    epsilon: float

    def __init__(self, epsilon: float, dimension: int) -> None:
        self.epsilon = check_budget(epsilon)
        self.dimension = dimension

    @abstractmethod
    def norm(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:
        """The norms ``(n,)`` of vectors ``(n, d)``; infinite where no release can differ by that vector.

        A vector counts as on the body's span where ``rounding``, a length, may have taken it off.
        """

    @property
    @abstractmethod
    def log_normaliser(self) -> float:
        """``log Z``, with respect to the volume of the body's own span."""

    @abstractmethod
    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, d)``."""

    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> FloatArray:
        """Releases of true values: see `Mechanism.sample`."""
        true, _ = self._coordinates(x)
        check_size(size)
        shape = true.shape if size is None else (size, *true.shape)
        noise = self.noise(prod(shape[:-1]), random_source(rng))
        return true + noise.reshape(shape)

    def draw(self, value: FloatArray, source: RandomSource) -> FloatArray:
        """One release of one true value ``(d,)`` that was checked before."""
        return np.asarray(value + self.noise(1, source)[0])

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """The log density of releases ``z`` for true values ``x``, broadcast over the leading axes.

        One release against many states is ``z`` of shape ``(d,)`` and ``x`` of shape ``(n, d)``. Where the body has
        fewer dimensions than its space the density is with respect to its span, and minus infinity off it.
        """
        return -self.privacy_loss(z, x) - self.log_normaliser

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """The greatest log ratio of the densities for true values ``x`` and ``y``: ``epsilon ‖x - y‖``."""
        (first, size), (second, other) = self._coordinates(x), self._coordinates(y)
        difference = first - second
        norms = self.norm(difference.reshape(-1, self.dimension), _ROUNDING * max(size, other))
        return self.epsilon * norms.reshape(difference.shape[:-1])

    def _coordinates(self, values: npt.ArrayLike) -> tuple[FloatArray, float]:
        """Values as finite coordinates, and the largest of them."""
        array = as_floats(values, "values", CoordinateError)
        if array.ndim == 0 or array.shape[-1] != self.dimension:
            raise CoordinateError(f"values have shape {array.shape}; the last axis must be {self.dimension}")
        largest = float(np.abs(array).max(initial=0.0))
        if not isfinite(largest):
            raise CoordinateError("values hold NaN or infinity; give finite coordinates")
        return array, largest


@checked
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

    @property
    def rank(self) -> int:
        """The dimension of the hull."""
        return self.hull.dimension

    @property
    def walls(self) -> tuple[FloatArray, FloatArray] | None:
        """Those of a hull of up to two dimensions."""
        return None if self.hull.dimension > 2 else (self.hull.norm_form.normals, self.hull.norm_form.equations)

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
    def walls(self) -> tuple[FloatArray, FloatArray] | None:
        """Those of the cross-polytope of up to two dimensions."""
        if self.dimension > 2:
            return None
        signs = np.array([[1.0, 1.0], [1.0, -1.0]])[: self.dimension, : self.dimension]
        return signs / self.sensitivity, np.zeros((0, self.dimension))

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


_FLAT = 1e-10
"""Hulls whose least second moment is below this share of the largest are as good as flat: rounding would bend them."""


@checked
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


def laplace_noise(shape: tuple[int, ...], source: RandomSource) -> FloatArray:
    """Independent standard Laplace numbers in double precision, by inversion; both tails keep their full precision."""
    uniform = source.uniform(shape)
    return np.where(uniform < 0.5, 1.0, -1.0) * np.log(2.0 * np.minimum(uniform, 1.0 - uniform))
