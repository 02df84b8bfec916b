"""Names of the mechanisms, their noise bodies, and their common interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import compile_if_hot
from dphmm.errors import ConfigurationError, GuaranteeError
from dphmm.extensions import Registry
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.sensitivity_hull import Body, SensitivityHull
from dphmm.random import RandomSource, Rng
from dphmm.validation import Choice, Integers

# The name of a mechanism in settings, on the command line and in records.
MechanismName = Literal[
    "lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace", "optimal", "graph-exponential"
]

# All names, the exact one first.
MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)

# The noise body of each mechanism: a state may be exposed under one and protected under another.
BODY_BY_MECHANISM: Mapping[MechanismName, Body] = MappingProxyType(
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

# Mechanisms that sample with integers only, so that the guarantee is exact in finite precision.
EXACT_COLUMN: frozenset[MechanismName] = frozenset({"lattice", "optimal", "graph-exponential"})

# Mechanisms that sample from a table over the states of a connected component instead of adding noise.
TABLE_MECHANISMS: frozenset[MechanismName] = frozenset({"optimal", "graph-exponential"})

# Mechanisms for two-dimensional measurements only.
PLANAR_MECHANISMS: frozenset[MechanismName] = frozenset({"planar-isotropic", "planar-laplace"})


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


# ---- registered mechanisms -----------------------------------------------------------------------------------------


class _MechanismRegistry(Registry[Mechanism]):
    """Mechanisms by name. Each states a valid noise body."""

    def register(self, extension: type[Mechanism]) -> type[Mechanism]:
        """Register a mechanism. See `register_mechanism`."""
        body = getattr(extension, "noise_body", "hull")
        if body not in get_args(Body):
            raise ConfigurationError(
                f"noise_body of {extension.__module__}.{extension.__qualname__} must be one of "
                f"{', '.join(get_args(Body))}, got {body!r}"
            )
        return super().register(extension)


# The mechanisms of other packages.
MECHANISM_REGISTRY = _MechanismRegistry(Mechanism, "dphmm.mechanisms", MECHANISMS)  # type: ignore[type-abstract]  # an abstract class is intended


def register_mechanism(mechanism: type[Mechanism]) -> type[Mechanism]:
    """Register a mechanism under its `name` and `version`. Usable as a decorator.

    Parameters
    ----------
    mechanism
        The class.

    Returns
    -------
    type
        The class.

    Raises
    ------
    ConfigurationError
        If it is not a mechanism, its name, version or noise body is invalid, or the name belongs to another mechanism.
    """
    return MECHANISM_REGISTRY.register(mechanism)


def resolve_mechanism(setting: str) -> str:
    """Return the name of a mechanism in records, with the version of a registered one.

    A name of this package is unchanged, another one becomes ``name@version``.

    Parameters
    ----------
    setting
        A name of this package's, or the name of a registered or installed mechanism with or without its version.

    Returns
    -------
    str
        The name.

    Raises
    ------
    MissingExtensionError
        If no such mechanism is registered or installed, or in another version.
    """
    if setting in MECHANISMS:
        return setting
    mechanism = find_mechanism(setting)
    return f"{mechanism.name}@{mechanism.version}"


def find_mechanism(setting: str) -> type[Mechanism]:
    """Return the class of a registered mechanism by its name, with or without ``@version``."""
    name, _, version = setting.partition("@")
    return MECHANISM_REGISTRY.find(name, version or None)


@contextmanager
def translate_mechanism_errors(mechanism: str, is_private: bool = False) -> Iterator[None]:
    """Raise a `GuaranteeError` that names a registered mechanism if the block fails.

    Parameters
    ----------
    mechanism
        The name in settings. Errors of mechanisms of this package are unchanged.
    is_private
        Whether the block reads the true state, which the text of an error could contain. The message omits it.
    """
    try:
        yield
    except GuaranteeError:
        raise
    except Exception as problem:  # a registered mechanism can raise any error
        if mechanism in MECHANISMS:
            raise
        kind = type(problem).__name__
        text = kind if is_private else " ".join(f"{kind}: {problem}".split())
        # A traceback with the cause would contain its text.
        cause = None if is_private else problem
        raise GuaranteeError(f"mechanism {mechanism!r} failed: {text}; the release was aborted") from cause


class _MechanismChoice(Choice):
    """A name of this package's, or one of the form of a registered mechanism's."""

    def __init__(self) -> None:
        super().__init__(*MECHANISMS)
        object.__setattr__(self, "text", f"{self.text}, or a registered mechanism")
        object.__setattr__(self, "accepts", _is_known)


def _is_known(value: Any) -> bool:
    # One with a version, as in a file, is refused later with the reason: it is missing, or of another version.
    if not isinstance(value, str) or value in MECHANISMS:
        return isinstance(value, str)
    return "@" in value or value in MECHANISM_REGISTRY.list_names()


# A `MechanismName`, or the name of a registered mechanism, with or without its version: ``"elliptic@1.0"``.
MechanismLike = Annotated[str, _MechanismChoice()]


def get_noise_body(mechanism: str) -> Body:
    """Return the noise body of a mechanism by its name in settings."""
    shipped = {str(name): body for name, body in BODY_BY_MECHANISM.items()}
    return shipped.get(mechanism) or find_mechanism(mechanism).noise_body


def is_exact_mechanism(mechanism: str) -> bool:
    """Return whether a mechanism samples with integers only, by its name in settings."""
    return mechanism in EXACT_COLUMN if mechanism in MECHANISMS else find_mechanism(mechanism).is_exact


def is_lattice_mechanism(mechanism: str) -> bool:
    """Return whether values are lattice coordinates, by the mechanism's name in settings."""
    return mechanism == "lattice" or (mechanism not in MECHANISMS and is_exact_mechanism(mechanism))
