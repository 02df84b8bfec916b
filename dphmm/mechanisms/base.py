"""What every mechanism offers, and what those of real-valued noise of a norm share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from math import inf, isfinite, prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, RandomSource, Rng, as_floats, check_budget, random_source
from dphmm.compilation import often
from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.geometry.gauge import Gauge
from dphmm.mechanisms import loops

_ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""How far rounding takes a sum of doubles, relative to the largest coordinate: a release is rounded off a flat body."""

_MOST_RELEASES = 10**9


class PlanarLaw(NamedTuple):
    """A density ``exp(-decay ‖v‖ - shift)`` in the plane, where ``‖v‖`` is the largest ``|form v| / offset``.

    Parameters
    ----------
    forms, offsets
        ``(m, 2)`` and ``(m,)``.
    decay, shift
        A positive number, and the logarithm of the normaliser.
    """

    forms: FloatArray
    offsets: FloatArray
    decay: float
    shift: float

    def log_densities(self, z: npt.NDArray[Any], columns: FloatArray, possible: BoolArray) -> FloatArray:
        """``log p(z | x)`` of a release ``(2,)`` for points ``(2, N)``; minus infinity where they are not possible."""
        (x, y), out = columns, np.empty(len(possible))
        walls, law = (self.forms, self.offsets), (self.decay, self.shift)
        _densities_in_plane(x, y, possible, (float(z[0]), float(z[1])), walls, law, out)
        return out


class Mechanism(Protocol):
    """Noise about a true value whose law is the same for every true value but for the shift.

    Values are ``(d,)`` or ``(n, d)``; those of a mechanism on a lattice are lattice points.
    """

    @property
    def epsilon(self) -> float | Fraction:
        """The budget, positive and finite."""

    @property
    def dimension(self) -> int:
        """The number of coordinates ``d``."""

    @property
    def squared_error(self) -> float:
        """The expected squared Euclidean distance of a release from the true value."""

    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> npt.NDArray[Any]:
        """Releases of true values: the shape of ``x``, after an axis of length ``size`` where that is given."""

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """The log density (on a lattice, the log-probability) of releases ``z`` for true values ``x``, broadcast."""

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """The greatest log ratio of the densities for true values ``x`` and ``y``; infinite where it has no bound."""

    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """The differences of true values that draws keep within a loss, from the vectors that draws are made of."""


class NormMechanism(ABC):
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

    @property
    @abstractmethod
    def squared_error(self) -> float:
        """The expected squared Euclidean distance of a release from the true value."""

    @abstractmethod
    def gauge(self, loss: float, rounding: float = 0.0) -> Gauge:
        """The differences of true values that draws keep within a loss, from the vectors that `noise` is made of.

        Parameters
        ----------
        loss
            A log ratio of densities, positive.
        rounding
            A length by which true values may be off.
        """

    @abstractmethod
    def noise(self, count: int, source: RandomSource) -> FloatArray:
        """Independent noise vectors, ``(count, d)``."""

    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> FloatArray:
        """Releases of true values.

        Parameters
        ----------
        x
            One true value ``(d,)`` or one a row ``(n, d)``.
        rng
            Left out, the operating system's randomness; a generator or a seed for experiments.
        size
            How many independent releases of ``x``; left out, one, without an axis of its own.

        Returns
        -------
        ndarray
            The shape of ``x``, after an axis of length ``size`` where that is given.
        """
        true, _ = self._coordinates(x)
        check_size(size)
        shape = true.shape if size is None else (size, *true.shape)
        noise = self.noise(prod(shape[:-1]), random_source(rng))
        return true + noise.reshape(shape)

    def released(self, place: FloatArray, source: RandomSource) -> FloatArray:
        """One release of one true value ``(d,)``, which was looked at before and is not looked at again."""
        return np.asarray(place + self.noise(1, source)[0])

    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """The log density of releases ``z`` for true values ``x``, broadcast over the leading axes.

        One release against many states is ``z`` of shape ``(d,)`` and ``x`` of shape ``(n, d)``. Where the body has
        fewer dimensions than its space the density is with respect to its span, and minus infinity off it.
        """
        return -self.privacy_loss(z, x) - self.log_normaliser

    def planar_law(self, reach: float) -> PlanarLaw | None:  # noqa: ARG002
        """The density by the norm's walls, for coordinates up to ``reach``; None where it has no such form."""
        return None

    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """The greatest log ratio of the densities for true values ``x`` and ``y``: ``epsilon ‖x - y‖``."""
        (first, size), (second, other) = self._coordinates(x), self._coordinates(y)
        rounding = _ROUNDING * max(size, other)
        difference = first - second
        norms = self.norm(difference.reshape(-1, self.dimension), rounding)
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


@often(loops.densities_in_plane)
def _densities_in_plane(
    x: FloatArray,
    y: FloatArray,
    possible: BoolArray,
    z: tuple[float, float],
    walls: tuple[FloatArray, FloatArray],
    law: tuple[float, float],
    out: FloatArray,
) -> None:
    across, along = z[0] - x[possible], z[1] - y[possible]
    norms, other = np.zeros((2, len(across)))
    for (a, b), share in zip(walls[0].tolist(), (1.0 / walls[1]).tolist(), strict=True):
        np.abs(a * across + b * along, out=other)
        np.maximum(norms, np.multiply(other, share, out=other), out=norms)
    out[:] = -inf
    out[possible] = -(norms * law[0]) - law[1]


def check_size(size: int | None) -> None:
    """Refuse what is no number of releases.

    Raises
    ------
    InvalidInputError
        When it is not a whole number that is not negative, or more than memory could hold.
    """
    if size is not None and (
        isinstance(size, bool) or not isinstance(size, int | np.integer) or not 0 <= size <= _MOST_RELEASES
    ):
        raise InvalidInputError(
            f"size is {size!s:.40}; give a whole number that is not negative, below {_MOST_RELEASES}"
        )


def laplace_noise(shape: tuple[int, ...], source: RandomSource) -> FloatArray:
    """Independent standard Laplace numbers in double precision, by inversion; both tails keep their full precision."""
    uniform = source.uniform(shape)
    return np.where(uniform < 0.5, 1.0, -1.0) * np.log(2.0 * np.minimum(uniform, 1.0 - uniform))
