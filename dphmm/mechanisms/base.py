"""The common interface of mechanisms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import compile_if_hot
from dphmm.errors import ConfigurationError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.sensitivity_hull import Body, SensitivityHull
from dphmm.random import RandomSource, Rng
from dphmm.validation import Integers

# Larger sizes are probably mistakes; 10**9 releases take 16 GB.
_MAX_RELEASES = 10**9
SampleSize = Annotated[int, Integers(0, _MAX_RELEASES)]

# Number of points in a block of densities, so that their heights stay in the cache.
_POINT_BLOCK = 1 << 13
# The same for the compiled loop, which needs no arrays between steps: three blocks of doubles fit the fastest cache.
_COMPILED_BLOCK = 512


class PlanarLaw(NamedTuple):
    """A planar density ``exp(-decay ‖v‖ - shift)`` with a polygonal norm ``‖v‖``.

    The norm is the largest ``|form v| / offset``.

    Parameters
    ----------
    forms, offsets
        ``(m, 2)`` and ``(m,)``.
    decay, shift
        A positive number, and the logarithm of the normalizer.
    is_exact
        Whether forms and coordinates are integers with products and sums that are exact in doubles.
    """

    forms: FloatArray
    offsets: FloatArray
    decay: float
    shift: float
    is_exact: bool = False

    def log_densities(self, z: npt.NDArray[Any], columns: FloatArray) -> FloatArray:
        """Return ``log p(z | x)`` of releases for points ``(2, N)``.

        One release ``(2,)`` gives ``(N,)``, several ``(c, 2)`` give ``(c, N)``.
        """
        logs = np.empty((*z.shape[:-1], columns.shape[1]))
        # A matrix product may fuse products and sums, a compiled loop does not. Both have the same bits if every
        # intermediate result is an integer; the faster one may be chosen only then.
        fill = _fill_norm_table if z.ndim == 2 else _fill_norms if self.is_exact else _fill_norms.plain
        fill(self.forms, 1.0 / self.offsets, z.astype(np.float64), columns, logs)
        logs *= -self.decay
        logs -= self.shift
        return logs


def _fill_norms_loop(
    forms: FloatArray, shares: FloatArray, z: FloatArray, columns: FloatArray, norms: FloatArray
) -> None:
    """`_fill_norms`, written so that numba can compile it."""
    # The points are the inner loop, over contiguous blocks: only then does the compiler vectorise it.
    for start in range(0, norms.size, _COMPILED_BLOCK):
        stop = min(start + _COMPILED_BLOCK, norms.size)
        xs = columns[0, start:stop]
        ys = columns[1, start:stop]
        block = norms[start:stop]
        block[:] = 0.0
        for k in range(shares.size):
            for i in range(block.size):
                height = abs(forms[k, 0] * (z[0] - xs[i]) + forms[k, 1] * (z[1] - ys[i])) * shares[k]
                block[i] = height if height > block[i] else block[i]


@compile_if_hot(_fill_norms_loop, lambda _, shares, __, ___, norms: shares.size * norms.size)
def _fill_norms(forms: FloatArray, shares: FloatArray, z: FloatArray, columns: FloatArray, norms: FloatArray) -> None:
    """Write the norms ``(N,)`` of the differences of a release ``(2,)`` and points ``(2, N)``."""
    for start in range(0, len(norms), _POINT_BLOCK):
        block = slice(start, start + _POINT_BLOCK)
        heights = forms @ (z[:, np.newaxis] - columns[:, block])
        np.abs(heights, out=heights)
        heights *= shares[:, np.newaxis]
        heights.max(axis=0, out=norms[block])


def _fill_norm_table(
    forms: FloatArray, shares: FloatArray, z: FloatArray, columns: FloatArray, norms: FloatArray
) -> None:
    """Write the norms ``(c, N)`` of releases ``(c, 2)`` minus points ``(2, N)``."""
    norms[:] = 0.0
    heights = np.empty_like(norms)
    # The height of a difference is a difference of heights: a subtraction for each pair instead of two products.
    for of_releases, of_points, share in zip(forms @ z.T, forms @ columns, shares.tolist(), strict=True):
        np.subtract.outer(of_releases, of_points, out=heights)
        np.abs(heights, out=heights)
        heights *= share
        np.maximum(norms, heights, out=norms)


@dataclass(frozen=True, eq=False)
class Table:
    """A mechanism on finitely many locations, as a table of integer weights.

    Parameters
    ----------
    points
        ``(n, d)``: the locations.
    weights
        ``(n, n)``: the weight of each output in the row of each true location. All rows have the same integer sum.
    """

    points: FloatArray
    weights: IntArray


class Mechanism(ABC):
    """Base class of the mechanisms, which define the noise of one part of a step.

    Values are ``(d,)`` or ``(n, d)``. Values of a mechanism on a lattice are lattice points. The output distribution is
    that of the noise shifted by the true value, except for a table, the true values of which are its points.

    A mechanism of another package inherits from this class or from `NormMechanism`, states `name` and `version`, and
    implements `from_hull`. It is registered by `register_mechanism` or by an entry point of the group
    ``dphmm.mechanisms``.
    """

    # The name of a registered mechanism in settings; empty for those of this package.
    name: ClassVar[str] = ""
    # The version of a registered mechanism. Records and the settings' hash contain it.
    version: ClassVar[str] = ""
    # The noise body of a registered mechanism, which determines the degrees of protection: ``"hull"``,
    # ``"cross-polytope"`` or ``"disc"``. The body of the mechanism's gauge must contain it.
    noise_body: ClassVar[Body] = "hull"
    # Whether a registered mechanism samples with integers only. Its values are then integer lattice coordinates.
    is_exact: ClassVar[bool] = False

    # The budget, positive and finite.
    epsilon: float | Fraction
    # The number of coordinates ``d``.
    dimension: int

    @classmethod
    def from_hull(cls, hull: SensitivityHull, epsilon: float) -> Self:  # noqa: ARG003 - overrides use them
        """Build the noise of a hull, for a registered mechanism.

        Parameters
        ----------
        hull
            The noise body, in lattice steps if the mechanism is exact. It may have fewer dimensions than its space, but
            is not a point.
        epsilon
            The budget.

        Returns
        -------
        Mechanism
            Noise with a privacy loss of at most `epsilon` for true values that differ by a vector of the hull.

        Raises
        ------
        ConfigurationError
            If the mechanism does not implement it.
        """
        raise ConfigurationError(f"{cls.__name__} must implement from_hull to be used by settings")

    @property
    def rank(self) -> int:
        """The dimension of the span of releases around a true value."""
        return self.dimension

    @property
    @abstractmethod
    def squared_error(self) -> float:
        """The expected squared Euclidean distance of a release from the true value."""

    def squared_error_from(self, x: npt.ArrayLike) -> float:  # noqa: ARG002 - overrides use it
        """Return the expected squared error for one true value ``(d,)``.

        Parameters
        ----------
        x
            The true value.

        Returns
        -------
        float
            The expected squared distance, in the squared unit of the values.
        """
        return self.squared_error

    def squared_error_at(self, epsilon: float) -> float:
        """Return the squared error of noise of this shape with another budget.

        It is strictly decreasing in the budget.

        Parameters
        ----------
        epsilon
            The other budget, positive.

        Returns
        -------
        float
            The expected squared distance, in the squared unit of the values.
        """
        return self.squared_error * float(self.epsilon) ** 2 / epsilon / epsilon

    @property
    def min_squared_error(self) -> float | None:
        """A proven lower bound on the squared error of such mechanisms. None if unknown."""
        return self.squared_error

    @property
    def halfspaces(self) -> tuple[FloatArray, FloatArray] | None:
        """The body of the norm as half-planes, if it is a polytope of up to two dimensions.

        Returns
        -------
        normals, equations : ndarray
            ``(m, d)`` and ``(e, d)``: the body is ``|normals v| <= 1`` in the span ``equations v = 0`` with
            orthonormal rows. None for another body, and for a table.
        """
        return None

    @property
    def corners(self) -> IntArray | None:
        """The corners of the noise body ``(h, d)``, counter-clockwise, for integer sampling.

        Returns
        -------
        ndarray or None
            In lattice steps; empty for a point. None for real-valued noise, and for a table.
        """
        return None if self.rank else np.zeros((0, self.dimension), dtype=np.int64)

    @property
    def table(self) -> Table | None:
        """The output distribution as integer weights if it is a table. None for additive noise."""
        return None

    @abstractmethod
    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> npt.NDArray[Any]:
        """Sample releases of true values.

        Parameters
        ----------
        x
            A single true value ``(d,)`` or one per row ``(n, d)``.
        rng
            Defaults to the operating system's randomness; a generator or a seed for experiments.
        size
            Number of independent releases of ``x``. Defaults to one, without an additional axis.

        Returns
        -------
        ndarray
            The shape of ``x``, preceded by an axis of length ``size`` if it is set.
        """

    @abstractmethod
    def draw(self, value: npt.NDArray[Any], source: RandomSource) -> npt.NDArray[Any]:
        """Sample one release of one validated true value ``(d,)``.

        Parameters
        ----------
        value
            The true value.
        source
            The source of random bytes.

        Returns
        -------
        ndarray, shape (d,)
            The release.
        """

    @abstractmethod
    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """Return the log density (log-probability if exact) of releases ``z`` for values ``x``.

        The arguments are broadcast.

        Parameters
        ----------
        z
            Releases, ``(d,)`` or ``(n, d)``.
        x
            True values, ``(d,)`` or ``(n, d)``.

        Returns
        -------
        ndarray
            ``()`` or ``(n,)``; minus infinity if a release is impossible.
        """

    def unchecked_log_density(self, z: npt.NDArray[Any], values: npt.NDArray[Any]) -> FloatArray:
        """Return the log density of one release ``(d,)`` for validated true values ``(n, d)``.

        Parameters
        ----------
        z
            The release.
        values
            The true values.

        Returns
        -------
        ndarray, shape (n,)
            As for `log_density`.
        """
        return self.log_density(z, values)

    def planar_law(self, reach: float) -> PlanarLaw | None:  # noqa: ARG002 - overrides use it
        """Return the density in terms of a polygon's half-spaces. None if it has no such form.

        Parameters
        ----------
        reach
            The sum of the largest coordinates of a true value and of a release.

        Returns
        -------
        PlanarLaw or None
            The density.
        """
        return None

    @abstractmethod
    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """Return the largest log ratio of the densities for true values ``x`` and ``y``.

        It is infinite if the ratio is unbounded.

        Parameters
        ----------
        x, y
            True values, ``(d,)`` or ``(n, d)``.

        Returns
        -------
        ndarray
            ``()`` or ``(n,)``, not negative.
        """

    @abstractmethod
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """Return the set of differences of true values with bounded loss.

        It is computed from the vectors that the noise is composed of.

        Parameters
        ----------
        loss
            A log ratio of densities, positive.
        rounding
            An upper bound on the rounding error of true values, a length.

        Raises
        ------
        InvalidInputError
            For a table: its privacy loss is not a function of the difference of two locations.
        """
