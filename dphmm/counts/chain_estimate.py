"""Filter and smoother for the Markov chain of population counts.

Each of ``n`` users moves by ``M`` independently of the others, so the counts are a Markov chain themselves: given
``R^t``, the next counts have mean ``R^t M`` and covariance ``sum_i R^t_i (diag(M_i) - M_i' M_i)``. Both are linear in
``R^t``, so the Gaussian chain with these two moments, the covariance at the mean counts, is the collective Gaussian
approximation of the model (Sheldon and Dietterich, *Collective graphical models*, 2011). The noise's likelihood and
the bound at zero enter by expectation propagation (Minka 2001): each noisy count becomes a Gaussian factor whose
moments agree with the exact one-count product, first as the filter passes, then, over the whole chain, as the smoother
revisits it. With ``sweeps=0`` only first and second moments are used, including those of the noise. If users start and
move according to the model, the smoother is then the linear estimator with the smallest mean squared error (Kalman).

A row of integers has discrete Laplace noise, any other row Laplace noise in real numbers.

Expectation propagation needs two moments of the product at every count. With Laplace noise the product is a mixture of
two truncated Gaussians, one below the noisy value and one above it. Both moments then have closed forms. The likelihood
of discrete Laplace noise has the same form, but its moments are sums over the integers: at small scales this noise has
a smaller variance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpotrf
from scipy.special import erfcx

from dphmm.arrays import BoolArray, FloatArray, as_distribution, as_numbers, check_budget
from dphmm.counts.noisy_stream import as_noisy, as_scales, as_transition, as_whole
from dphmm.errors import ConfigurationError, CountError, StochasticError
from dphmm.stochastic_matrix import MatrixLike
from dphmm.threads import limit_to_one_thread
from dphmm.validation import Integers, check_arguments

# Standard deviations from the mean beyond which the density on an interval is treated as exponential.
_MAX_DEVIATIONS = 500.0

# Standard deviations that contain all of the mass in double precision.
_ALL_MASS_DEVIATIONS = 37.0

# Width in standard deviations below which the density is treated as exponential.
_MIN_WIDTH = 1e-3

# Summands with a logarithm this far below the largest one are negligible.
_MAX_LOG_DROP = 40.0

# Integers summed to either side. If more matter, the integral is accurate to 2 % of a standard deviation.
_MAX_INTEGERS = 200

# Summands held in memory simultaneously.
_CHUNK_TERMS = 1 << 21


def compute_tilted_moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compute the moments of a Gaussian times a Laplace likelihood on r >= 0.

    The density is proportional to ``N(r; mean, variance) exp(-|noisy - r| / scale)``.

    Parameters
    ----------
    mean, variance, noisy, scale
        Arrays that broadcast together; ``variance`` and ``scale`` positive.

    Returns
    -------
    mean, variance : FloatArray
        Moments of the product. The variance is at most that of the Gaussian.
    """
    sigma = np.sqrt(variance)
    shift = sigma / scale
    start = -mean / sigma
    split = (np.maximum(noisy, 0.0) - mean) / sigma
    # The log likelihood has slope +1/scale below the noisy value and -1/scale above it. Multiplied into the Gaussian, a
    # slope shifts its mean by that many standard deviations. Weights are relative to the value at `split`.
    below_log, below_mean, below_var = _compute_interval_moments(start - shift, split - shift)
    above_log, above_mean, above_var = _compute_interval_moments(split + shift, np.full_like(split, np.inf))
    below_log = below_log + 0.5 * (split - shift) ** 2
    above_log = above_log + 0.5 * (split + shift) ** 2
    weight = np.exp(below_log - np.logaddexp(below_log, above_log))
    below_mean = below_mean + shift
    above_mean = above_mean - shift
    centre = weight * below_mean + (1.0 - weight) * above_mean
    spread = weight * below_var + (1.0 - weight) * above_var + weight * (1.0 - weight) * (above_mean - below_mean) ** 2
    return mean + sigma * centre, variance * np.minimum(spread, 1.0)


def compute_lattice_moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compute the moments of a Gaussian times a discrete Laplace likelihood.

    Parameters
    ----------
    mean, variance, noisy, scale
        ``(k,)``; ``variance`` and ``scale`` positive, ``noisy`` integers.

    Returns
    -------
    mean, variance : FloatArray
        ``(k,)`` moments of the product. The variance is at most that of the Gaussian, and can be zero.
    """
    centre, spread = compute_tilted_moments(mean, variance, noisy, scale)
    shift = variance / scale
    peak = np.maximum(np.clip(noisy, mean - shift, mean + shift), 0.0)
    # The (non-positive) slopes of the log density away from its peak determine the range that matters.
    slope = np.abs(peak - mean) / variance
    steepness = np.maximum(1.0 / scale - slope, 0.0) * np.sqrt(variance)
    reach = 2.0 * _MAX_LOG_DROP * np.sqrt(variance) / (np.sqrt(steepness**2 + 2.0 * _MAX_LOG_DROP) + steepness)
    short = np.flatnonzero(reach < _MAX_INTEGERS)
    size = max(1, _CHUNK_TERMS // (2 * _MAX_INTEGERS + 3))
    for start in range(0, short.size, size):
        at = short[start : start + size]
        width = int(reach[at].max()) + 2
        counts = np.rint(peak[at])[:, None] + np.arange(-width, width + 1)
        log = -((counts - mean[at, None]) ** 2) / (2.0 * variance[at, None])
        log -= np.abs(counts - noisy[at, None]) / scale[at, None]
        log[counts < 0] = -np.inf
        weight = np.exp(log - log.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        centre[at] = (weight * counts).sum(axis=1)
        spread[at] = (weight * (counts - centre[at, None]) ** 2).sum(axis=1)
    return centre, np.minimum(spread, variance)


def _compute_interval_moments(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log mass, mean and variance of the standard Gaussian on ``[low, high]``.

    The log mass omits the constant ``log sqrt(2 pi)``.

    ``high`` can be infinite. An interval in the right tail is mirrored into the left tail to keep precision.
    """
    mirrored = low + np.minimum(high, 1e300) > 0
    left = np.where(mirrored, -high, low)
    right = np.where(mirrored, -low, high)
    width = right - left
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Mass and the densities at both ends, all relative to the density at the right end.
        falling = np.exp(-0.5 * width * (-2.0 * right + width))
        mass = _compute_mills_ratio(-right) - np.where(np.isinf(width), 0.0, falling * _compute_mills_ratio(-left))
        offset = (falling - 1.0) / mass
        edge = np.where(np.isinf(width), 0.0, left * falling)
        variance = 1.0 + (edge - right) / mass - offset**2
        tail = (width < _MIN_WIDTH) | (-right > _MAX_DEVIATIONS)
        slope, back, tail_variance = _approximate_exponentially(right, width)
        log_mass = -0.5 * right**2 + np.log(np.where(tail, _integrate_exponential(slope, width), mass))
        log_mass = np.where(right > _ALL_MASS_DEVIATIONS, 0.5 * np.log(2.0 * np.pi), log_mass)
    mean = np.where(tail, right - back, offset)
    variance = np.where(tail, tail_variance, np.maximum(variance, 0.0))
    return log_mass, np.where(mirrored, -mean, mean), variance


def _compute_mills_ratio(x: FloatArray) -> FloatArray:
    """Return Mills' ratio: the Gaussian mass beyond ``x`` relative to the density at ``x``."""
    return np.asarray(np.sqrt(np.pi / 2.0) * erfcx(np.maximum(x, -_ALL_MASS_DEVIATIONS) / np.sqrt(2.0)))


def _approximate_exponentially(right: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return slope, mean distance and variance of the exponential approximation."""
    slope = np.maximum(-(right - 0.5 * np.minimum(width, _MIN_WIDTH)), 1e-12)
    reach = slope * width
    growth = np.expm1(np.minimum(reach, 700.0))
    small = reach < 1e-3
    back = np.where(small, width * (0.5 - reach / 12.0), 1.0 / slope - np.where(reach < 700, width / growth, 0.0))
    squared = 1.0 / slope**2 - np.where(reach < 700, width**2 * (growth + 1.0) / growth**2, 0.0)
    return slope, back, np.where(small, width**2 / 12.0, squared)


def _integrate_exponential(slope: FloatArray, width: FloatArray) -> FloatArray:
    """Integrate ``exp(-slope * x)`` over ``[0, width]``. At least 1e-300."""
    return np.asarray(np.maximum(-np.expm1(-slope * width) / slope, 1e-300))


# Fraction of non-zero entries above which a matrix is multiplied in dense form.
_DENSE_SHARE = 0.05

_MAX_SWEEPS = 10_000

# Number of matching rounds of the filter at each time.
_NUM_ROUNDS = 2

# Minimum fraction of a count's precision from the other factors; below it the difference is rounding error.
_MIN_CAVITY_FRACTION = 1e-7

# Maximum precision of a product relative to that of its factors. Data that contradict the model would otherwise get an
# unbounded precision and dominate all other factors.
_MAX_PRECISION_RATIO = 1e4

# Jitter added to the diagonal of a singular covariance before its factorisation, relative to its largest entry.
_JITTER = 1e-14

# Maximum precision of a factor on the integers unless the noise is smaller; see `_bound_precision`.
_LATTICE_PRECISION = 4.0

# Variance below which a count is determined and its noisy value adds no information.
_MIN_VARIANCE = 1e-9


@dataclass(frozen=True)
class Start:
    """Prior mean and covariance of the counts at the first time.

    Parameters
    ----------
    mean
        ``(m,)``.
    root
        ``(m, m)`` square root of the covariance. Its columns sum to zero, because the total is known.
    """

    mean: FloatArray
    root: FloatArray

    @classmethod
    def multinomial(cls, first: FloatArray, users: int) -> Start:
        """Return the prior of users who start independently in places distributed as ``first``.

        Parameters
        ----------
        first
            ``(m,)``: the distribution of one user's first place.
        users
            The number of users, at least 1.

        Returns
        -------
        Start
            Mean and covariance of the multinomial.

        Raises
        ------
        StochasticError, CountError
            When ``first`` is not a distribution, or the number of users is not positive.
        """
        probabilities = as_numbers(first, "first distribution", StochasticError)
        chances = as_distribution(probabilities, probabilities.size)
        total = as_whole(users)
        return cls(total * chances, np.sqrt(total) * _compute_multinomial_root(chances))

    @classmethod
    def flat(cls, size: int, users: int) -> Start:
        """Return the uniform prior over all count vectors with this total.

        Parameters
        ----------
        size
            The number of places ``m``, at least 1.
        users
            The number of users, at least 1.

        Returns
        -------
        Start
            Mean and covariance of a uniformly distributed count vector.

        Raises
        ------
        CountError
            When a number is not positive.
        """
        places = as_whole(size, "the number of places")
        total = as_whole(users)
        share = np.full(places, 1.0 / places)
        spread = total * (total + places) / (places + 1.0)
        return cls(total * share, np.sqrt(spread) * _compute_multinomial_root(share))


def _compute_multinomial_root(p: FloatArray) -> FloatArray:
    """Return a square root of ``diag(p) - p p'``, the covariance of one user's place."""
    return np.asarray(np.diag(np.sqrt(p)) - np.outer(p, np.sqrt(p)))


@dataclass
class _Factors:
    """Gaussian factors of noisy counts: precisions and precision-weighted means, ``(..., m)``."""

    precision: FloatArray
    weighted: FloatArray

    @classmethod
    def gaussian(cls, noisy: FloatArray, scales: FloatArray | float, kept: bool = False) -> _Factors:
        """Return the factors of Gaussian noise with the variance of the actual noise.

        Factors that will be matched start at `_bound_precision` or below; with `kept` they are not limited.
        """
        real = 0.5 / np.square(scales)
        discrete = 2.0 * np.sinh(np.minimum(0.5 / np.asarray(scales), 20.0)) ** 2
        discrete = discrete if kept else np.minimum(discrete, _bound_precision(scales))
        precision = np.where(_are_integers(noisy), discrete, real) * np.ones(noisy.shape)
        return cls(precision, precision * noisy)

    def match(self, mean: FloatArray, variance: FloatArray, noisy: FloatArray, scales: FloatArray | float) -> None:
        """Replace each factor so that the moments of its product with the other factors are exact.

        Parameters
        ----------
        mean, variance
            The current belief about each count, including this factor.
        noisy, scales
            The noisy counts and noise scales.
        """
        safe = np.maximum(variance, _MIN_VARIANCE)
        others = 1.0 / safe - self.precision
        useful = (variance > _MIN_VARIANCE) & (others > _MIN_CAVITY_FRACTION / safe)
        precision = np.where(useful, others, 1.0 / safe)
        cavity = np.where(useful, (mean / safe - self.weighted) / precision, mean)
        centre, spread = _compute_moments(cavity, 1.0 / precision, noisy, np.broadcast_to(scales, noisy.shape))
        spread = np.maximum(spread, 1.0 / (_MAX_PRECISION_RATIO * (precision + 1.0 / np.square(scales))))
        spread = np.where(
            _are_integers(noisy), np.maximum(spread, 1.0 / (precision + _bound_precision(scales))), spread
        )
        new = np.maximum(1.0 / spread - precision, 0.0)
        self.precision = np.where(useful, new, self.precision)
        self.weighted = np.where(useful, centre / spread - cavity * precision, self.weighted)


def _bound_precision(scales: FloatArray | float) -> FloatArray:
    """Return the maximum precision of a factor on the integers, so that it can still move."""
    return np.asarray(np.maximum(_LATTICE_PRECISION, np.square(0.5 / np.asarray(scales))))


def _are_integers(noisy: FloatArray) -> BoolArray:
    """Return a mask of the rows of integers, ``(..., 1)``."""
    return np.asarray((noisy == np.rint(noisy)).all(axis=-1, keepdims=True))


def _compute_moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Compute moments by the type of noise of each row."""
    lattice = np.broadcast_to(_are_integers(noisy), noisy.shape)
    results = np.empty((2, *noisy.shape))
    for chosen, moments in ((lattice, compute_lattice_moments), (~lattice, compute_tilted_moments)):
        if chosen.any():
            results[:, chosen] = moments(mean[chosen], variance[chosen], noisy[chosen], scale[chosen])
    return results[0], results[1]


@check_arguments
class ChainFilter:
    """The online estimator: filters one row of noisy counts at a time.

    Parameters
    ----------
    transition
        ``(m, m)``, dense or sparse, row-stochastic.
    start
        The prior of the counts at the first time.

    Raises
    ------
    StochasticError
        When the matrix is not row-stochastic or not of the start's size.
    """

    def __init__(self, transition: MatrixLike, start: Start) -> None:
        self._move: Any = _transpose_matrix(as_transition(transition, len(start.mean)))
        self._mean, self._root = start.mean, start.root
        self._begun = False

    def update(self, noisy: FloatArray, scale: float) -> tuple[FloatArray, FloatArray]:
        """Process the next row.

        Parameters
        ----------
        noisy
            ``(m,)``.
        scale
            Scale of its noise.

        Returns
        -------
        mean, variance : FloatArray
            ``(m,)`` each, conditional on all rows so far. The means sum to the number of users and are not clipped.

        Raises
        ------
        CountError, BudgetError
            When the row has the wrong length or is not finite, or the scale is not positive.
        """
        noisy = as_numbers(noisy, "noisy counts", CountError)
        scale = check_budget(scale, "scale")
        if noisy.shape != self._mean.shape or not np.isfinite(noisy).all():
            raise CountError(
                f"noisy counts of one time must be {len(self._mean)} finite numbers, got shape {noisy.shape}"
            )
        if self._begun:
            self._mean, self._root = _predict(self._move, self._mean, self._root, self._mean)
        self._begun = True
        factors = _Factors.gaussian(noisy, scale)
        _match_factors(self._mean, self._root, factors, noisy, scale)
        self._mean, self._root = _update(self._mean, self._root, factors)
        return self._mean, np.asarray(np.square(self._root).sum(axis=1))


def filter_counts(noisy: FloatArray, transition: MatrixLike, start: Start, scales: FloatArray) -> FloatArray:
    """Estimate counts ``(T, m)`` from the rows up to each time only.

    Memory does not grow with ``T`` beyond the output; time is of order ``T m^3``.
    """
    chain = ChainFilter(transition, start)
    with limit_to_one_thread():
        return np.array([chain.update(row, float(scale))[0] for row, scale in zip(noisy, scales, strict=True)])


@check_arguments
def smooth_counts(
    noisy: npt.ArrayLike,
    transition: MatrixLike,
    start: Start,
    scales: npt.ArrayLike,
    sweeps: Annotated[int, Integers(0, _MAX_SWEEPS, ConfigurationError)] = 2,
) -> tuple[FloatArray, FloatArray]:
    """Estimate counts from the rows of all times.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    transition
        ``(m, m)``, dense or sparse, row-stochastic.
    start
        The prior of the counts at the first time.
    scales
        One scale, or ``(T,)``.
    sweeps
        0 uses second moments only (the best linear estimator). 1 keeps the factors of the filter. Each further sweep
        refines the factors, and the covariances of the moves, over the complete chain.

    Returns
    -------
    mean, variance : FloatArray
        ``(T, m)`` each, conditional on all rows. The means sum to the number of users and are not clipped.

    Raises
    ------
    CountError, StochasticError, BudgetError, ConfigurationError
        When counts, matrix, scales or the number of sweeps are invalid.

    Notes
    -----
    Time is of order ``T m^3`` per sweep; memory holds two ``(T, m, m)`` arrays.
    """
    noisy = as_noisy(noisy)
    places = len(start.mean)
    if noisy.shape[1] != places:
        raise CountError(f"noisy counts must have the {places} places of the start, got {noisy.shape[1]}")
    scales = as_scales(scales, len(noisy))
    move = _transpose_matrix(as_transition(transition, places))
    factors = _Factors.gaussian(noisy, scales[:, None], kept=sweeps == 0)
    with limit_to_one_thread():
        if sweeps == 0:
            expected = [start.mean]
            for _ in range(len(noisy) - 1):
                expected.append(move @ expected[-1])
            return _sweep(noisy, scales, move, start, factors, expected)
        mean, variance = _sweep(noisy, scales, move, start, factors, None)
        for _ in range(sweeps - 1):
            factors.match(mean, variance, noisy, scales[:, None])
            mean, variance = _sweep(noisy, scales, move, start, factors, mean)
    return mean, variance


def _transpose_matrix(transition: sparse.csr_array) -> Any:
    """Return the transposed matrix, which acts on columns of counts. Dense unless very sparse."""
    size = transition.shape[0]
    if transition.nnz > _DENSE_SHARE * size * size:
        return np.ascontiguousarray(transition.toarray().T)
    return sparse.csr_array(transition.T)


def _predict(move: Any, mean: FloatArray, root: FloatArray, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a root of the covariance after factors, without taking differences."""
    movers = np.maximum(counts, 0.0)
    spread = move @ root
    leaving = (
        move @ sparse.diags_array(np.sqrt(movers)) if isinstance(move, sparse.csr_array) else move * np.sqrt(movers)
    )
    covariance = spread @ spread.T - leaving @ leaving.T
    covariance[np.diag_indices_from(covariance)] += move @ movers
    size = float(np.diag(covariance).max())
    if size <= 0.0:
        return move @ mean, np.zeros_like(covariance)
    return move @ mean, _compute_root(covariance, _JITTER * size)  # singular, because the total is known


def _compute_root(matrix: FloatArray, jitter: float) -> FloatArray:
    """Return the Cholesky factor with a jitter that grows until the factorisation succeeds."""
    while True:
        shifted = matrix.copy()
        shifted[np.diag_indices_from(shifted)] += jitter
        factor, failed = dpotrf(shifted, lower=1, overwrite_a=1, clean=1)
        if not failed:
            return np.asarray(factor)
        jitter = max(10.0 * jitter, _JITTER * float(np.diag(matrix).max()))


def _compute_posterior_root(root: FloatArray, precision: FloatArray) -> FloatArray:
    """Run forward and backward over the chain. Without counts, match the factors."""
    inner = root.T @ (precision[:, None] * root)
    return np.asarray(dtrsm(1.0, _compute_root(inner, 1.0), root, side=1, lower=1, trans_a=1))


def _update(mean: FloatArray, root: FloatArray, factors: _Factors) -> tuple[FloatArray, FloatArray]:
    """Update the belief with one row's factors."""
    after = _compute_posterior_root(root, factors.precision)
    return mean + after @ (after.T @ (factors.weighted - factors.precision * mean)), after


def _match_factors(mean: FloatArray, root: FloatArray, factors: _Factors, noisy: FloatArray, scale: float) -> None:
    """Match one time's factors to the prediction."""
    for _ in range(_NUM_ROUNDS):
        belief, after = _update(mean, root, factors)
        factors.match(belief, np.square(after).sum(axis=1), noisy, scale)


def _sweep(
    noisy: FloatArray,
    scales: FloatArray,
    move: Any,
    start: Start,
    factors: _Factors,
    counts: Sequence[FloatArray] | FloatArray | None,
) -> tuple[FloatArray, FloatArray]:
    """Run forward and backward over the chain. Without counts, match the factors on the way."""
    steps, size = noisy.shape
    predicted = np.empty((steps, size))
    filtered = np.empty((steps, size))
    before = np.empty((steps, size, size))
    after = np.empty((steps, size, size))
    mean, root = start.mean, start.root
    for t in range(steps):
        if t:
            mean, root = _predict(move, mean, root, mean if counts is None else counts[t - 1])
        predicted[t] = mean
        before[t] = root
        here = _Factors(factors.precision[t], factors.weighted[t])
        if counts is None:
            _match_factors(mean, root, here, noisy[t], float(scales[t]))
            factors.precision[t], factors.weighted[t] = here.precision, here.weighted
        mean, root = _update(mean, root, here)
        filtered[t] = mean
        after[t] = root
    return _run_backward(predicted, filtered, before, after, move)


def _run_backward(
    predicted: FloatArray, filtered: FloatArray, before: FloatArray, after: FloatArray, move: Any
) -> tuple[FloatArray, FloatArray]:
    """Run the Rauch-Tung-Striebel pass (1965) by triangular solves."""
    smoothed = filtered.copy()
    variances = np.empty_like(filtered)
    covariance = after[-1] @ after[-1].T
    variances[-1] = np.diag(covariance)
    for t in range(len(filtered) - 2, -1, -1):
        moved = move @ after[t]
        root = before[t + 1]
        if not root[0, 0] > 0.0:
            smoothed[t] = filtered[t]
            covariance = after[t] @ after[t].T
        else:
            whitened = dtrsm(1.0, root, moved, lower=1)
            gain = after[t] @ dtrsm(1.0, root, whitened, lower=1, trans_a=1).T
            smoothed[t] = filtered[t] + gain @ (smoothed[t + 1] - predicted[t + 1])
            # after (I - whitened' whitened) after' + gain covariance gain', the first part as a difference of roots
            through = gain @ root
            covariance = after[t] @ after[t].T - through @ through.T + gain @ covariance @ gain.T
        variances[t] = np.maximum(np.diag(covariance), 0.0)
    return smoothed, variances
