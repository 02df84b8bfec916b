"""Real-valued mechanisms: K-norm, Laplace, planar isotropic and planar Laplace."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from math import isfinite, lgamma, log, pi, prod

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, as_floats, check_budget
from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.sensitivity_hull import Disc, SensitivityHull
from dphmm.mechanisms.base import Mechanism, PlanarLaw, SampleSize
from dphmm.random import RandomSource, Rng, as_random_source
from dphmm.validation import NoiseEpsilon, PositiveInt, PositiveNumber, check_arguments

# Rounding of a sum of doubles, relative to the largest coordinate: rounding moves a release off a flat body.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


class NormMechanism(Mechanism):
    """Base class of mechanisms with density ``exp(-epsilon ‖z - x‖) / Z`` (Definition 3.3).

    The norm is that of a symmetric convex body. ``Z`` does not depend on ``x``. Therefore the log ratio of the
    densities of two true values is at most ``epsilon ‖x - y‖``, which is `privacy_loss`; the bound is attained.

    Samples are double-precision numbers. The guarantee holds for real numbers: the low bits of a rounded sample can
    distinguish true values that the real-valued mechanism does not (Mironov, CCS 2012). `LatticeKNormMechanism` is
    exact.

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
        """Return the norms of vectors. Infinite if no release is possible.

        Parameters
        ----------
        vectors
            ``(n, d)``.
        rounding
            A length: a vector within it of the body's span is treated as lying in it.

        Returns
        -------
        ndarray, shape (n,)
            The norms.
        """

    @property
    @abstractmethod
    def log_normaliser(self) -> float:
        """``log Z`` with respect to the volume in the span of the body."""

    @abstractmethod
    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Sample independent noise vectors.

        Parameters
        ----------
        count
            Their number.
        source
            The source of random bytes.

        Returns
        -------
        ndarray, shape (count, d)
            The vectors.
        """

    @check_arguments
    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: SampleSize | None = None) -> FloatArray:
        """Sample releases of true values: see `Mechanism.sample`."""
        true, _ = self._check_coordinates(x)
        shape = true.shape if size is None else (size, *true.shape)
        noise = self.noise(prod(shape[:-1]), as_random_source(rng))
        return true + noise.reshape(shape)

    def draw(self, value: FloatArray, source: RandomSource) -> FloatArray:
        """Sample one release of one validated true value ``(d,)``."""
        return np.asarray(value + self.noise(1, source)[0])

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """Return the log density of releases ``z`` for true values ``x``, broadcast.

        For one release and many states, use ``z`` of shape ``(d,)`` and ``x`` of shape ``(n, d)``. If the body has
        fewer dimensions than its space, the density is with respect to its span, and minus infinity off it.
        """
        return -self.privacy_loss(z, x) - self.log_normaliser

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """Return the largest log ratio of the densities for ``x`` and ``y``: ``epsilon ‖x - y‖``."""
        (first, size) = self._check_coordinates(x)
        (second, other) = self._check_coordinates(y)
        difference = first - second
        norms = self.norm(difference.reshape(-1, self.dimension), _ROUNDING * max(size, other))
        return self.epsilon * norms.reshape(difference.shape[:-1])

    def _check_coordinates(self, values: npt.ArrayLike) -> tuple[FloatArray, float]:
        """Return values as finite coordinates, and the largest absolute coordinate."""
        array = as_floats(values, "values", CoordinateError)
        if array.ndim == 0 or array.shape[-1] != self.dimension:
            raise CoordinateError(f"values must have {self.dimension} as the last axis, got shape {array.shape}")
        largest = float(np.abs(array).max(initial=0.0))
        if not isfinite(largest):
            raise CoordinateError("values must be finite, got NaN or infinity")
        return array, largest


@check_arguments
class KNormMechanism(NormMechanism):
    """The mechanism with density proportional to ``exp(-epsilon ‖z - x‖_K)`` (Definition 3.3).

    All computations take place in the body's linear span, the dimension ``r`` of which replaces ``d``: the noise of a
    segment has a Gamma(2) length, not the Gamma(3) of the plane. The point ``{0}`` adds no noise at all.

    Parameters
    ----------
    hull
        The body ``K``.
    epsilon
        The budget, positive and finite. True values that differ by a vector of ``K`` are ``epsilon``-indistinguishable.

    Notes
    -----
    The body is tiled by cones over its facets. A sample picks a cone with probability proportional to its volume and
    sums the cone's ``r`` vectors, each times an independent exponential number of mean ``1 / epsilon``: on a cone the
    norm is the sum of the coefficients. The result is distributed as ``Gamma(r + 1)`` times a uniform point of ``K``,
    but needs fewer random numbers.

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
    def halfspaces(self) -> tuple[FloatArray, FloatArray] | None:
        """The half-spaces of a hull of up to two dimensions."""
        return None if self.hull.dimension > 2 else (self.hull.norm_form.normals, self.hull.norm_form.equations)

    def norm(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:
        """Return the norm of the hull. Infinite off its span by more than ``rounding``."""
        return self.hull.norm_form(vectors, rounding)

    def planar_law(self, reach: float) -> PlanarLaw | None:  # noqa: ARG002 - the density has this form at any distance
        """Return the density in terms of the hull's half-spaces, if it is a planar polygon."""
        return self._law

    @cached_property
    def _law(self) -> PlanarLaw | None:
        if self.hull.dimension != 2 or self.dimension != 2:
            return None
        forms = self.hull.norm_form.normals
        return PlanarLaw(forms, np.ones(len(forms)), self.epsilon, self.log_normaliser)

    @property
    def log_normaliser(self) -> float:
        """``log(r! Vol(K) / epsilon^r)``, with the volume in the span."""
        r = self.hull.dimension
        return lgamma(r + 1) + log(self.hull.span_volume) - r * log(self.epsilon)

    @property
    def squared_error(self) -> float:
        """``(r + 1)(r + 2) E|u|² / epsilon²`` with ``u`` uniform in the hull."""
        return self.hull.squared_error / self.epsilon**2

    @check_arguments
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """Return the gauge from the cones of `noise`."""
        return Gauge.from_cones(self.hull.cones, loss / self.epsilon, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Sample independent noise vectors, ``(count, d)``."""
        if self.hull.dimension == 0:
            return np.zeros((count, self.dimension))
        uniform = source.sample_uniform(count * (1 + self.hull.dimension))  # a single read is faster
        cone = np.searchsorted(self._cumulative[:-1], uniform[:count])
        lengths = np.log(uniform[count:]).reshape(count, 1, self.hull.dimension) / -self.epsilon
        return np.asarray((lengths @ self.hull.cones[cone])[:, 0])


@check_arguments
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

    def __init__(self, sensitivity: PositiveNumber, epsilon: NoiseEpsilon, dimension: PositiveInt) -> None:
        super().__init__(epsilon, dimension)
        self.sensitivity = float(sensitivity)

    @property
    def halfspaces(self) -> tuple[FloatArray, FloatArray] | None:
        """The half-spaces of the cross-polytope of up to two dimensions."""
        if self.dimension > 2:
            return None
        signs = np.array([[1.0, 1.0], [1.0, -1.0]])[: self.dimension, : self.dimension]
        return signs / self.sensitivity, np.zeros((0, self.dimension))

    @property
    def scale(self) -> float:
        """The scale of each coordinate's noise."""
        return self.sensitivity / self.epsilon

    def norm(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:  # noqa: ARG002 - the span is the whole space
        """Return ``‖v‖_1 / sensitivity``."""
        return np.asarray(np.abs(vectors).sum(axis=1) / self.sensitivity)

    @property
    def log_normaliser(self) -> float:
        """``d log(2 sensitivity / epsilon)``."""
        return self.dimension * log(2 * self.scale)

    @property
    def squared_error(self) -> float:
        """``2 d`` times the square of the scale."""
        return 2 * self.dimension * self.scale**2

    @check_arguments
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """Return the cross-polytope of the scale."""
        return Gauge.from_ball(1, loss * self.scale, self.dimension, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Sample independent noise vectors, ``(count, d)``."""
        return self.scale * sample_laplace((count, self.dimension), source)


# Hulls with a ratio of second moments below this are nearly flat: rounding would distort them.
_MIN_MOMENT_RATIO = 1e-10


@check_arguments
class PlanarIsotropicMechanism(KNormMechanism):
    """The planar isotropic mechanism, PIM (Xiao and Xiong, CCS 2015).

    The hull is mapped to isotropic position (second moments equal in all directions), noise is sampled there by the
    K-norm mechanism, and mapped back. As ``‖T v‖_{TK} = ‖v‖_K``, the result has the distribution, and therefore the
    density and error, of the K-norm mechanism of the hull itself. Isotropic position changes nothing, which a
    two-sample test of this package confirms. A flat or nearly flat hull has no isotropic position in doubles; the
    K-norm mechanism is then used directly.

    Parameters
    ----------
    hull
        A planar hull, of any dimension up to 2.
    epsilon
        The budget, positive and finite.

    Raises
    ------
    InvalidInputError
        If the hull is not in the plane.
    BudgetError
        If the budget is not positive, or out of range.
    """

    def __init__(self, hull: SensitivityHull, epsilon: float) -> None:
        if hull.ambient_dimension != 2:
            raise InvalidInputError(
                f"the hull of the planar isotropic mechanism must be planar, got {hull.ambient_dimension} dimensions"
            )
        super().__init__(hull, epsilon)
        variances, axes = np.linalg.eigh(hull.second_moments)
        if variances[0] <= _MIN_MOMENT_RATIO * variances[1]:
            variances = np.ones(2)
        roots = np.sqrt(variances)
        # The symmetric matrix ``T`` that maps the hull to isotropic position; the identity for a flat hull.
        self.to_isotropic: FloatArray = (axes / roots) @ axes.T
        # The inverse of ``T``.
        self.from_isotropic: FloatArray = (axes * roots) @ axes.T
        moved = (variances != 1.0).any()
        self._isotropic = KNormMechanism(SensitivityHull(hull.vertices @ self.to_isotropic), epsilon) if moved else None

    @check_arguments
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """Return the gauge from the cones of `noise`, mapped back."""
        if self._isotropic is None:
            return super().gauge(loss, rounding)
        return Gauge.from_cones(self._isotropic.hull.cones @ self.from_isotropic, loss / self.epsilon, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Sample noise vectors, ``(count, 2)``, in isotropic position and map them back."""
        if self._isotropic is None:
            return super().noise(count, source)
        return np.asarray(self._isotropic.noise(count, source) @ self.from_isotropic)


@check_arguments
class PlanarLaplaceMechanism(NormMechanism):
    """Noise with density proportional to ``exp(-epsilon |z - x| / unit)`` in the plane.

    It is the K-norm mechanism of a disc of radius ``unit``: the log ratio of densities of two locations is at most
    ``epsilon`` times their distance over ``unit`` (Andrés et al., CCS 2013).

    Parameters
    ----------
    epsilon
        The budget for two locations one ``unit`` apart; positive and finite.
    unit
        A length, positive and finite, in the unit of the values.
    """

    def __init__(self, epsilon: float, unit: float = 1.0) -> None:
        super().__init__(epsilon, 2)
        self.body = Disc(float(unit))

    def norm(self, vectors: FloatArray, rounding: float = 0.0) -> FloatArray:  # noqa: ARG002 - the span is the whole space
        """Return ``|v| / unit``."""
        return self.body.norm(vectors)

    @property
    def log_normaliser(self) -> float:
        """``log(2 π (unit / epsilon)²)``."""
        return log(2 * pi) + 2 * log(self.body.radius / self.epsilon)

    @property
    def squared_error(self) -> float:
        """``6 (unit / epsilon)²``."""
        return self.body.squared_error / self.epsilon**2

    @check_arguments
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """Return the disc with radius loss times the noise's scale."""
        return Gauge.from_ball(2, loss * self.body.radius / self.epsilon, 2, rounding)

    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Sample noise vectors, ``(count, 2)``: a uniform angle and a Gamma(2) length."""
        # The sum of two exponentials is Gamma(2), the radius of the density exp(-r) r in the plane.
        angle = 2 * pi * source.sample_uniform(count)
        length = -np.log(source.sample_uniform((count, 2))).sum(axis=1) * self.body.radius / self.epsilon
        return np.stack([length * np.cos(angle), length * np.sin(angle)], axis=1)


def sample_laplace(shape: tuple[int, ...], source: RandomSource) -> FloatArray:
    """Sample independent standard Laplace numbers by inversion, precise in both tails."""
    # Each tail is the logarithm of a separate small number: 1 - u is exact for doubles u from one half on.
    uniform = source.sample_uniform(shape)
    return np.where(uniform < 0.5, 1.0, -1.0) * np.log(2.0 * np.minimum(uniform, 1.0 - uniform))
