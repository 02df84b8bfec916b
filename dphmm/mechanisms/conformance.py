"""Numerical and statistical checks of a mechanism against its own statements.

A mechanism of this package is derived from vectors that the soundness check reads itself. A registered mechanism states
its own gauge. These checks compare what it samples, its densities, its privacy loss and its gauge with each other.
"""

from __future__ import annotations

from math import exp, log, sqrt
from operator import attrgetter, is_

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray
from dphmm.errors import GuaranteeError, InvalidInputError
from dphmm.mechanisms import noise_tables, norm_noise
from dphmm.mechanisms.base import Mechanism, SampleSize
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from dphmm.mechanisms.registry import MECHANISM_REGISTRY, MECHANISMS
from dphmm.random import as_random_source
from dphmm.validation import check_arguments

# The probability that the statistical check rejects a sampler that follows its density.
ALPHA = 1e-9
# The number of samples of the statistical check.
NUM_SAMPLES = 4096
# The number of single draws for each later noise body of a mechanism that passed the statistical check.
NUM_LATER_DRAWS = 256

_NUM_PAIRS = 64
_NUM_OUTPUTS = 32
_NUM_COMPARED = 8
_SEED = 7
# Densities are sums and products of a few doubles.
_RELATIVE_TOLERANCE = 1e-6
_SHIPPED: tuple[type[Mechanism], ...] = (
    LatticeKNormMechanism,
    norm_noise.KNormMechanism,
    norm_noise.LaplaceMechanism,
    norm_noise.PlanarIsotropicMechanism,
    norm_noise.PlanarLaplaceMechanism,
    noise_tables.TableMechanism,
)
# The parts of a mechanism on which a release and its guarantee depend, as they were when this module was imported.
_METHODS = (
    *("draw", "sample", "noise", "norm", "table", "gauge", "corners", "log_density", "unchecked_log_density"),
    *("planar_law", "privacy_loss", "log_normaliser", "rank", "squared_error"),
)
_NAMES = {kind: tuple(name for name in _METHODS if hasattr(kind, name)) for kind in _SHIPPED}
# Every step compares them, so the functions that read them are prepared.
_READERS = {kind: attrgetter(*names) for kind, names in _NAMES.items()}
_ORIGINALS = {kind: read(kind) for kind, read in _READERS.items()}
# A cached property is stored in the instance too, so only functions are searched for there.
_FUNCTIONS = {kind: {name for name in names if callable(getattr(kind, name))} for kind, names in _NAMES.items()}


def is_shipped(mechanism: Mechanism) -> bool:
    """Return whether a mechanism is one of this package, with none of its methods replaced.

    Parameters
    ----------
    mechanism
        The mechanism.

    Returns
    -------
    bool
        False for a subclass, a class with a replaced method, and an instance with a method of its own.
    """
    kind = type(mechanism)
    if kind not in _ORIGINALS or not _FUNCTIONS[kind].isdisjoint(vars(mechanism)):
        return False
    return all(map(is_, _READERS[kind](kind), _ORIGINALS[kind]))


def check_origin(mechanism: Mechanism, name: str) -> bool:
    """Check that noise is published under its own name, and return whether it must be trusted.

    Parameters
    ----------
    mechanism
        The noise of a step.
    name
        The name of the mechanism in settings and records.

    Returns
    -------
    bool
        True for a registered mechanism, false for one of this package.

    Raises
    ------
    GuaranteeError
        If the noise is neither an unchanged mechanism of this package nor the registered one of this name.
    """
    if is_shipped(mechanism):
        return False
    kind = type(mechanism)
    if name not in MECHANISMS and MECHANISM_REGISTRY.find(name.partition("@")[0]) is kind:
        return True
    raise GuaranteeError(
        f"noise of {kind.__module__}.{kind.__qualname__}, which has other methods than mechanism {name!r}, must be "
        "registered under its own name; the release was aborted"
    )


@check_arguments
def check_mechanism(
    mechanism: Mechanism,
    points: npt.ArrayLike,
    *,
    samples: SampleSize = NUM_SAMPLES,
    draws: SampleSize | None = None,
) -> None:
    """Check a mechanism's gauge, privacy loss and samples against its densities.

    The squared error must not be negative or NaN. For pairs of points within the gauge and sampled outputs, the log
    ratio of the densities must be at most epsilon, and at most the privacy loss. For one pair, the mean of
    ``p(z | y) / p(z | x)`` over samples ``z`` for ``x`` must be one, by an empirical Bernstein bound with `ALPHA` for
    bounded ratios (Maurer and Pontil, COLT 2009). It holds for every sampler that follows the density, whatever its
    normalizer.

    A pass is evidence and not a proof. The checks miss violations for outputs and pairs that are not sampled, a wrong
    normalizer, samplers that deviate less than the bound (about 0.1 at epsilon 1), and samplers with a backdoor.

    Parameters
    ----------
    mechanism
        The noise.
    points
        ``(n, d)``: true values that it is used for, in its units.
    samples
        Number of samples; 0 to omit the statistical check.
    draws
        Number of samples of `draw`, which returns one at a time and takes most of the check. Defaults to `samples`.

    Raises
    ------
    GuaranteeError
        If a check fails.
    InvalidInputError
        If the points have another dimension.

    Examples
    --------
    >>> from dphmm import KNormMechanism, SensitivityHull
    >>> check_mechanism(KNormMechanism(SensitivityHull([[1, 0], [0, 1]]), 1.0), [[0.0, 0.0], [1.0, 0.0]])
    """
    values = np.asarray(points)
    if values.ndim != 2 or values.shape[1] != mechanism.dimension:
        raise InvalidInputError(f"points must have shape (n, {mechanism.dimension}), got {values.shape}")
    epsilon = float(mechanism.epsilon)
    rng = np.random.default_rng(_SEED)
    first, second = _find_pairs(mechanism, values, epsilon, rng)
    name = type(mechanism).__name__
    for error in (mechanism.squared_error, *(mechanism.squared_error_from(x) for x in values[:_NUM_COMPARED])):
        if not error >= 0:  # NaN must fail: records with it could not be read again
            raise GuaranteeError(f"{name} must state a squared error of at least 0, got {error!r}")
    limit = _RELATIVE_TOLERANCE * (1 + epsilon)
    for index, (x, y) in enumerate(zip(first, second, strict=True)):
        both = np.stack([x, y])
        loss = float(mechanism.privacy_loss(x, y))
        if not 0 <= loss <= epsilon + limit:
            raise GuaranteeError(
                f"{name} states a privacy loss of {loss:.6g} for points within its gauge of {epsilon:.6g}"
            )
        outputs = np.concatenate([both, mechanism.sample(x, rng, _NUM_OUTPUTS), mechanism.sample(y, rng, _NUM_OUTPUTS)])
        logs = [mechanism.log_density(outputs, point) for point in both]
        ratio = float(np.abs(logs[0] - logs[1]).max())
        if not ratio <= loss + limit:  # NaN must fail: an output of a point is impossible for both
            raise GuaranteeError(
                f"{name} has densities with a log ratio of {ratio:.6g} for points with a stated privacy loss of "
                f"{loss:.6g}; its gauge or its privacy loss is wrong"
            )
        if index < _NUM_COMPARED:
            _compare_densities(mechanism, outputs[-1], both, float(logs[0][-1] - logs[1][-1]), limit)
    if samples and len(first):
        _check_samples(mechanism, first, second, samples, samples if draws is None else draws)


def _compare_densities(
    mechanism: Mechanism, z: npt.NDArray[np.generic], both: npt.NDArray[np.generic], ratio: float, limit: float
) -> None:
    """Check that the densities that the engine uses have the log ratio of the public ones."""
    law = mechanism.planar_law(float(np.abs(both).max() + np.abs(z).max()))
    forms = [mechanism.unchecked_log_density(z, both)]
    if law is not None:
        forms.append(law.log_densities(z, np.ascontiguousarray(both.T, np.float64)))
    if any(not abs(float(logs[0] - logs[1]) - ratio) <= limit for logs in forms):
        raise GuaranteeError(f"{type(mechanism).__name__} has several densities that differ for one output")


def _find_pairs(
    mechanism: Mechanism, values: npt.NDArray[np.generic], epsilon: float, rng: np.random.Generator
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]:
    """Return pairs within the gauge, for real values also close to its border."""
    gauge = mechanism.gauge(epsilon, 0.0)
    chosen = rng.integers(0, len(values), (2, 8 * _NUM_PAIRS))
    chosen[1, : 4 * _NUM_PAIRS] = (chosen[0, : 4 * _NUM_PAIRS] + 1) % len(values)  # neighbours are often numbered so
    differences = (values[chosen[0]] - values[chosen[1]]).astype(np.float64)
    norms = gauge(differences)
    within = np.flatnonzero((norms <= 1) & (np.abs(differences).max(axis=1) > 0))[:_NUM_PAIRS]
    first, second = values[chosen[0, within]], values[chosen[1, within]]
    is_usable = (norms > 0) & np.isfinite(norms) & (np.abs(differences).max(axis=1) > 0)
    if mechanism.rank < mechanism.dimension or values.dtype.kind in "iu" or not is_usable.any():
        return first, second
    border = np.flatnonzero(is_usable)[:_NUM_PAIRS]
    # Slightly inside, because the gauge allows for a tolerance beyond the body.
    steps: FloatArray = differences[border] / norms[border, np.newaxis] * (1 - 1e-7)
    starts = values[chosen[0, border]]
    return np.concatenate([first, starts]), np.concatenate([second, starts - steps])


def _check_samples(
    mechanism: Mechanism,
    first: npt.NDArray[np.generic],
    second: npt.NDArray[np.generic],
    samples: int,
    draws: int,
) -> None:
    losses = np.array([float(mechanism.privacy_loss(x, y)) for x, y in zip(first, second, strict=True)])
    # The variance of the ratio is exponential in the loss; without any loss every sampler passes.
    index = int(np.argmin(np.abs(losses - 1.0)))
    x = first[index]
    y = second[index]
    loss = float(losses[index])
    if loss > 1.0 and mechanism.rank == mechanism.dimension and first.dtype.kind == "f":
        y = x + (y - x) / loss
        loss = float(mechanism.privacy_loss(x, y))
    source = as_random_source(np.random.default_rng(_SEED))
    outputs = np.array([mechanism.draw(x, source) for _ in range(draws)])
    batch = mechanism.sample(x, np.random.default_rng(_SEED), samples)
    for drawn in (outputs, batch):
        if len(drawn) < 2:  # without a variance there is no bound
            continue
        ratios = np.exp(mechanism.log_density(drawn, y) - mechanism.log_density(drawn, x))
        mean, variance = float(ratios.mean()), float(ratios.var(ddof=1))
        width = (exp(loss) - exp(-loss)) * 7 * log(4 / ALPHA) / (3 * (len(drawn) - 1))
        width += sqrt(2 * variance * log(4 / ALPHA) / len(drawn))
        if not abs(mean - 1) <= width:
            raise GuaranteeError(
                f"{type(mechanism).__name__} samples another distribution than its density: the mean likelihood ratio "
                f"is {mean:.4f}, more than {width:.4f} from 1 over {len(drawn)} samples"
            )
