"""The one list of mechanisms: their names, the bodies they draw from, and what every one of them offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, RandomSource, Rng
from dphmm.errors import InvalidInputError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.hull import Body

MechanismName = Literal[
    "lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace", "optimal", "graph-exponential"
]
"""What a mechanism is called in settings, on the command line and in records."""

MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)
"""All names, the exact one first."""

BODY_OF: Mapping[MechanismName, Body] = MappingProxyType(
    {
        "lattice": "hull",
        "k-norm": "hull",
        "laplace": "cross-polytope",
        "planar-isotropic": "hull",
        "planar-laplace": "disc",
        "optimal": "hull",
        "graph-exponential": "hull",
    }
)
"""The body that each mechanism's noise is drawn from: a state may be exposed under one and protected under another."""

EXACT: frozenset[MechanismName] = frozenset({"lattice", "optimal", "graph-exponential"})
"""Those that draw by integers alone, so that the guarantee holds on a computer and not only for real numbers."""

TABLES: frozenset[MechanismName] = frozenset({"optimal", "graph-exponential"})
"""Those that draw from a table over the states of a connected component, and not noise of a norm."""

PLANAR_ONLY: frozenset[MechanismName] = frozenset({"planar-isotropic", "planar-laplace"})
"""Those for measurements in two dimensions only."""


_MOST_RELEASES = 10**9

_AT_ONCE = 1 << 13
"""Points that are looked at together, so that what lies between stays in the cache."""


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

    def log_densities(self, z: npt.NDArray[Any], columns: FloatArray) -> FloatArray:
        """``log p(z | x)``, ``(N,)``, of a release ``(2,)`` for points ``(2, N)``."""
        shares, found = (1.0 / self.offsets)[:, np.newaxis], np.empty(columns.shape[1])
        for start in range(0, len(found), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            heights = self.forms @ (z[:, np.newaxis] - columns[:, some])  # of lattice points exactly
            np.abs(heights, out=heights)
            heights *= shares
            heights.max(axis=0, out=found[some])
        found *= -self.decay
        found -= self.shift
        return found


@dataclass(frozen=True, eq=False)
class Table:
    """A law over finitely many places in whole numbers.

    Parameters
    ----------
    points
        ``(n, d)``: the places.
    weights
        ``(n, n)``: row by true place, the weight of each output; every row sums to the same whole number.
    """

    points: FloatArray
    weights: IntArray


class Mechanism(ABC):
    """Noise of one kind: what a step's noise consists of, in one or several parts.

    Values are ``(d,)`` or ``(n, d)``; those of a mechanism on a lattice are lattice points. The law is the same for
    every true value but for the shift, except that of a table, whose true values are some places.
    """

    epsilon: float | Fraction
    """The budget, positive and finite."""
    dimension: int
    """The number of coordinates ``d``."""

    @property
    def rank(self) -> int:
        """The dimension of the span that releases are spread over about a true value."""
        return self.dimension

    @property
    @abstractmethod
    def squared_error(self) -> float:
        """The expected squared Euclidean distance of a release from the true value."""

    def squared_error_from(self, x: npt.ArrayLike) -> float:  # noqa: ARG002
        """The same for one true value ``(d,)``.

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
        """The same of noise of this shape with another budget, positive; it falls strictly in it.

        Parameters
        ----------
        epsilon
            The other budget.

        Returns
        -------
        float
            The expected squared distance, in the squared unit of the values.
        """
        return self.squared_error * float(self.epsilon) ** 2 / epsilon / epsilon

    @property
    def least_squared_error(self) -> float | None:
        """A proven lower bound of the squared error of noise of this kind; None where none is known."""
        return self.squared_error

    @property
    def walls(self) -> tuple[FloatArray, FloatArray] | None:
        """The body of the norm, where it is a polytope of up to two dimensions.

        Returns
        -------
        normals, equations : ndarray
            ``(m, d)`` and ``(e, d)``: the body is ``|normals v| <= 1`` within the span ``equations v = 0``, of
            orthonormal rows. None for another body, and for a table.
        """
        return None

    @property
    def corners(self) -> IntArray | None:
        """The corners of the body of noise ``(h, d)``, counter-clockwise, where draws are made by integers alone.

        Returns
        -------
        ndarray or None
            In whole steps of the lattice; none of a point. None for noise of real numbers, and for a table.
        """
        return None if self.rank else np.zeros((0, self.dimension), dtype=np.int64)

    @property
    def table(self) -> Table | None:
        """The law in whole numbers where it is a table; None for noise that is added."""
        return None

    @abstractmethod
    def sample(self, x: npt.ArrayLike, rng: Rng = None, size: int | None = None) -> npt.NDArray[Any]:
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

    @abstractmethod
    def draw(self, value: npt.NDArray[Any], source: RandomSource) -> npt.NDArray[Any]:
        """One release of one true value ``(d,)`` that was checked before.

        Parameters
        ----------
        value
            The true value.
        source
            Where random bytes come from.

        Returns
        -------
        ndarray, shape (d,)
            The release.
        """

    @abstractmethod
    def log_density(self, z: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
        """The log density (of exact noise, the log-probability) of releases ``z`` for true values ``x``, broadcast.

        Parameters
        ----------
        z
            Releases, ``(d,)`` or ``(n, d)``.
        x
            True values, ``(d,)`` or ``(n, d)``.

        Returns
        -------
        ndarray
            ``()`` or ``(n,)``; minus infinity where a release is impossible.
        """

    def unchecked_log_density(self, z: npt.NDArray[Any], values: npt.NDArray[Any]) -> FloatArray:
        """The same of one release ``(d,)`` for true values ``(n, d)`` that were checked before.

        Parameters
        ----------
        z
            The release.
        values
            The true values.

        Returns
        -------
        ndarray, shape (n,)
            As `log_density`.
        """
        return self.log_density(z, values)

    def planar_law(self, reach: float) -> PlanarLaw | None:  # noqa: ARG002
        """The density by the walls of a polygon, for coordinates up to ``reach``; None where it has no such form.

        Parameters
        ----------
        reach
            The largest coordinate of a true value and that of a release, added.

        Returns
        -------
        PlanarLaw or None
            The law.
        """
        return None

    @abstractmethod
    def privacy_loss(self, x: npt.ArrayLike, y: npt.ArrayLike) -> FloatArray:
        """The greatest log ratio of the densities for true values ``x`` and ``y``; infinite where it has no bound.

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
        """The differences of true values that draws keep within a loss, from the vectors that draws are made of.

        Parameters
        ----------
        loss
            A log ratio of densities, positive.
        rounding
            A length by which true values may be off.

        Raises
        ------
        InvalidInputError
            For a table: how far it tells two places apart is no function of their difference.
        """


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
