"""The counts of all times together: filter and smoother on the chain that the users' moves make of the counts.

Each of ``n`` users moves by ``M`` independently of the others, so the counts are a Markov chain themselves: given
``R^t``, the next counts have mean ``R^t M`` and covariance ``sum_i R^t_i (diag(M_i) - M_i' M_i)``. Both are linear in
``R^t``, so the Gaussian chain with these two moments, the covariance at the mean counts, is the collective Gaussian
approximation of the model (Sheldon and Dietterich, *Collective graphical models*, 2011). The noise's likelihood and
the bound at zero enter by expectation propagation (Minka 2001): each noisy count becomes a Gaussian factor whose
moments agree with the exact one-count product, first as the filter passes, then, over the whole chain, as the smoother
revisits it. With ``sweeps=0`` only first and second moments are used, those of the noise among them; for users who
start and move as the model says, the smoother is then the linear estimator of least mean squared error (Kalman).

A row of whole numbers has discrete Laplace noise, any other Laplace noise in real numbers.

Two moments of that product are what expectation propagation (Minka 2001) needs at every count. With Laplace noise the
product is a mixture of two truncated Gaussians, one below the noisy value and one above it, so both moments have closed
forms. With discrete Laplace noise, whose likelihood has the same form, they are sums over the integers: at small scales
that noise is less than the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpotrf
from scipy.special import erfcx

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, as_distribution, as_numbers, check_budget
from dphmm.counts.stream import as_noisy, as_scales, as_transition, as_whole
from dphmm.errors import ConfigurationError, CountError, StochasticError
from dphmm.stochastic import MatrixLike
from dphmm.threads import one_thread

_FAR = 500.0
"""Standard deviations from the mean beyond which an interval's density counts as exponential."""

_ALL = 37.0
"""Standard deviations within which all of the mass lies, to the last digit."""

_NARROW = 1e-3
"""Width in standard deviations below which it does."""

_FADED = 40.0
"""How far below its greatest value the logarithm of a summand is when it no longer counts."""

_WIDEST = 200
"""Integers to either side that are summed; where more count, the integral is as good, to 2 % of a deviation."""

_AT_ONCE = 1 << 21
"""Summands held at a time."""


def tilted_moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of the density in proportion to ``N(r; mean, variance) exp(-|noisy - r| / scale)`` on r >= 0.

    Parameters
    ----------
    mean, variance, noisy, scale
        Arrays that broadcast together; ``variance`` and ``scale`` positive.

    Returns
    -------
    mean, variance : FloatArray
        Of the product; the variance is never above that of the Gaussian.
    """
    sigma = np.sqrt(variance)
    shift = sigma / scale
    start, split = -mean / sigma, (np.maximum(noisy, 0.0) - mean) / sigma
    # The likelihood's logarithm has slope +1/scale below the noisy value and -1/scale above it; multiplied into the
    # Gaussian, a slope moves its mean by that many standard deviations. Weights are relative to the value at `split`.
    below_log, below_mean, below_var = _interval(start - shift, split - shift)
    above_log, above_mean, above_var = _interval(split + shift, np.full_like(split, np.inf))
    below_log = below_log + 0.5 * (split - shift) ** 2
    above_log = above_log + 0.5 * (split + shift) ** 2
    weight = np.exp(below_log - np.logaddexp(below_log, above_log))
    below_mean, above_mean = below_mean + shift, above_mean - shift
    centre = weight * below_mean + (1.0 - weight) * above_mean
    spread = weight * below_var + (1.0 - weight) * above_var + weight * (1.0 - weight) * (above_mean - below_mean) ** 2
    return mean + sigma * centre, variance * np.minimum(spread, 1.0)


def lattice_moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The same over the integers r >= 0: for discrete Laplace noise, and a noisy value that is an integer.

    Parameters
    ----------
    mean, variance, noisy, scale
        ``(k,)``; ``variance`` and ``scale`` positive.

    Returns
    -------
    mean, variance : FloatArray
        ``(k,)``; the variance is never above that of the Gaussian, and may be zero.
    """
    centre, spread = tilted_moments(mean, variance, noisy, scale)
    shift = variance / scale
    peak = np.maximum(np.clip(noisy, mean - shift, mean + shift), 0.0)
    # The slopes of the log density away from its peak, which are not positive, say how far it counts to either side.
    slope = np.abs(peak - mean) / variance
    steepness = np.maximum(1.0 / scale - slope, 0.0) * np.sqrt(variance)
    reach = 2.0 * _FADED * np.sqrt(variance) / (np.sqrt(steepness**2 + 2.0 * _FADED) + steepness)
    short = np.flatnonzero(reach < _WIDEST)
    size = max(1, _AT_ONCE // (2 * _WIDEST + 3))
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


def _interval(low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Log mass (up to the constant ``log sqrt(2 pi)``), mean and variance of the standard Gaussian on ``[low, high]``.

    ``high`` may be infinite. An interval in the right tail is mirrored into the left one, where no digits are lost.
    """
    mirrored = low + np.minimum(high, 1e300) > 0
    left, right = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    width = right - left
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # Mass and the densities at both ends, all relative to the density at the right end.
        falling = np.exp(-0.5 * width * (-2.0 * right + width))
        mass = _mills(-right) - np.where(np.isinf(width), 0.0, falling * _mills(-left))
        offset = (falling - 1.0) / mass
        edge = np.where(np.isinf(width), 0.0, left * falling)
        variance = 1.0 + (edge - right) / mass - offset**2
        tail = (width < _NARROW) | (-right > _FAR)
        slope, back, tail_variance = _exponential(right, width)
        log_mass = -0.5 * right**2 + np.log(np.where(tail, _exponential_mass(slope, width), mass))
        log_mass = np.where(right > _ALL, 0.5 * np.log(2.0 * np.pi), log_mass)
    mean = np.where(tail, right - back, offset)
    variance = np.where(tail, tail_variance, np.maximum(variance, 0.0))
    return log_mass, np.where(mirrored, -mean, mean), variance


def _mills(x: FloatArray) -> FloatArray:
    """Mills' ratio: the standard Gaussian's mass beyond ``x``, relative to its density at ``x``."""
    return np.asarray(np.sqrt(np.pi / 2.0) * erfcx(np.maximum(x, -_ALL) / np.sqrt(2.0)))


def _exponential(right: FloatArray, width: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The Gaussian as an exponential density: its slope, the mean distance from ``right``, and the variance."""
    slope = np.maximum(-(right - 0.5 * np.minimum(width, _NARROW)), 1e-12)
    reach = slope * width
    growth = np.expm1(np.minimum(reach, 700.0))
    small = reach < 1e-3
    back = np.where(small, width * (0.5 - reach / 12.0), 1.0 / slope - np.where(reach < 700, width / growth, 0.0))
    squared = 1.0 / slope**2 - np.where(reach < 700, width**2 * (growth + 1.0) / growth**2, 0.0)
    return slope, back, np.where(small, width**2 / 12.0, squared)


def _exponential_mass(slope: FloatArray, width: FloatArray) -> FloatArray:
    """The integral of ``exp(-slope * x)`` over ``[0, width]``; tiny, not zero, for an empty interval."""
    return np.asarray(np.maximum(-np.expm1(-slope * width) / slope, 1e-300))


_DENSE_SHARE = 0.05
"""Share of entries from which a matrix is multiplied as a dense one."""

_MOST_SWEEPS = 10_000

_ROUNDS = 2
"""How often the filter revisits the factors of the time it stands at."""

_INDEPENDENT = 1e-7
"""Share of a count's precision that must come from the other factors; below it the rest is rounding."""

_SHARPEST = 1e4
"""How many times more precise than its ingredients a product may be: what data that contradict the model can ask for
has no limit, and would swamp everything else."""

_JITTER = 1e-14
"""What is added to a singular covariance before it is factorised, relative to its greatest entry."""

_LATTICE_PRECISION = 4.0
"""Of a factor on the integers at most, where noise is not less than that; see `_most_precise`."""

_CERTAIN = 1e-9
"""Variance below which a count is known and its noisy value tells nothing."""


@dataclass(frozen=True)
class Start:
    """Mean and covariance of the counts at the first time, before anything is seen.

    Parameters
    ----------
    mean
        ``(m,)``.
    root
        ``(m, m)``, a square root of the covariance, with zero column sums: the total is known.
    """

    mean: FloatArray
    root: FloatArray

    @classmethod
    def multinomial(cls, first: FloatArray, users: int) -> Start:
        """Every user starts in a place drawn from ``first``, independently.

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
            When it is no distribution, or the number of users is not positive.
        """
        given = as_numbers(first, "first distribution", StochasticError)
        chances = as_distribution(given, given.size)
        total = as_whole(users)
        return cls(total * chances, np.sqrt(total) * _multinomial_root(chances))

    @classmethod
    def flat(cls, size: int, users: int) -> Start:
        """All count vectors of this total alike: nothing is assumed about the start, the noisy counts tell it.

        Parameters
        ----------
        size
            The number of places ``m``, at least 1.
        users
            The number of users, at least 1.

        Returns
        -------
        Start
            Mean and covariance of a count vector drawn evenly.

        Raises
        ------
        CountError
            When a number is not positive.
        """
        places, total = as_whole(size, "the number of places"), as_whole(users)
        share = np.full(places, 1.0 / places)
        spread = total * (total + places) / (places + 1.0)
        return cls(total * share, np.sqrt(spread) * _multinomial_root(share))


def _multinomial_root(p: FloatArray) -> FloatArray:
    """A square root of ``diag(p) - p p'``, the covariance of one user's place."""
    return np.asarray(np.diag(np.sqrt(p)) - np.outer(p, np.sqrt(p)))


@dataclass
class _Factors:
    """The Gaussian factors that stand for noisy counts: precisions and precision-weighted means, ``(..., m)``."""

    precision: FloatArray
    weighted: FloatArray

    @classmethod
    def gaussian(cls, noisy: FloatArray, scales: FloatArray | float, kept: bool = False) -> _Factors:
        """Of Gaussian noise with the variance of the Laplace noise, or of the discrete one.

        Factors that are to be matched begin at `_most_precise` where noise is less; those that are `kept` do not.
        """
        real = 0.5 / np.square(scales)
        discrete = 2.0 * np.sinh(np.minimum(0.5 / np.asarray(scales), 20.0)) ** 2
        discrete = discrete if kept else np.minimum(discrete, _most_precise(scales))
        precision = np.where(_are_integers(noisy), discrete, real) * np.ones(noisy.shape)
        return cls(precision, precision * noisy)

    def match(self, mean: FloatArray, variance: FloatArray, noisy: FloatArray, scales: FloatArray | float) -> None:
        """Replace each factor so that, beside what the others say, the product's two moments are exact.

        Parameters
        ----------
        mean, variance
            The present belief about each count, this factor included.
        noisy, scales
            The noisy counts and noise scales.
        """
        safe = np.maximum(variance, _CERTAIN)
        others = 1.0 / safe - self.precision
        useful = (variance > _CERTAIN) & (others > _INDEPENDENT / safe)
        precision = np.where(useful, others, 1.0 / safe)
        cavity = np.where(useful, (mean / safe - self.weighted) / precision, mean)
        centre, spread = _moments(cavity, 1.0 / precision, noisy, np.broadcast_to(scales, noisy.shape))
        spread = np.maximum(spread, 1.0 / (_SHARPEST * (precision + 1.0 / np.square(scales))))
        spread = np.where(_are_integers(noisy), np.maximum(spread, 1.0 / (precision + _most_precise(scales))), spread)
        new = np.maximum(1.0 / spread - precision, 0.0)
        self.precision = np.where(useful, new, self.precision)
        self.weighted = np.where(useful, centre / spread - cavity * precision, self.weighted)


def _most_precise(scales: FloatArray | float) -> FloatArray:
    """Of a factor on the integers: what is certain of its integer would not bend where others are of another."""
    return np.asarray(np.maximum(_LATTICE_PRECISION, np.square(0.5 / np.asarray(scales))))


def _are_integers(noisy: FloatArray) -> BoolArray:
    """Which rows hold whole numbers, ``(..., 1)``."""
    return np.asarray((noisy == np.rint(noisy)).all(axis=-1, keepdims=True))


def _moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Those of `dphmm.counts.chain_estimate`, by the noise of each row."""
    lattice = np.broadcast_to(_are_integers(noisy), noisy.shape)
    found = np.empty((2, *noisy.shape))
    for chosen, moments in ((lattice, lattice_moments), (~lattice, tilted_moments)):
        if chosen.any():
            found[:, chosen] = moments(mean[chosen], variance[chosen], noisy[chosen], scale[chosen])
    return found[0], found[1]


@checked
class ChainFilter:
    """The online estimator: one row of noisy counts in, the estimate of that time's counts out.

    Parameters
    ----------
    transition
        ``(m, m)``, dense or sparse, row-stochastic.
    start
        The counts before the first row is seen.

    Raises
    ------
    StochasticError
        When the matrix is none of the start's size.
    """

    def __init__(self, transition: MatrixLike, start: Start) -> None:
        self._move: Any = _as_move(as_transition(transition, len(start.mean)))
        self._mean, self._root = start.mean, start.root
        self._begun = False

    def update(self, noisy: FloatArray, scale: float) -> tuple[FloatArray, FloatArray]:
        """Take in the next row.

        Parameters
        ----------
        noisy
            ``(m,)``.
        scale
            Of its noise.

        Returns
        -------
        mean, variance : FloatArray
            ``(m,)`` each, given all rows so far. The means sum to the number of users; they are not clipped.

        Raises
        ------
        CountError, BudgetError
            For a row of another length or that is not finite, or a scale that is not positive.
        """
        noisy, scale = as_numbers(noisy, "noisy counts", CountError), check_budget(scale, "scale")
        if noisy.shape != self._mean.shape or not np.isfinite(noisy).all():
            raise CountError(
                f"noisy counts of one time have shape {noisy.shape}; give {len(self._mean)} finite numbers"
            )
        if self._begun:
            self._mean, self._root = _predict(self._move, self._mean, self._root, self._mean)
        self._begun = True
        factors = _Factors.gaussian(noisy, scale)
        _match_here(self._mean, self._root, factors, noisy, scale)
        self._mean, self._root = _update(self._mean, self._root, factors)
        return self._mean, np.asarray(np.square(self._root).sum(axis=1))


def filter_counts(noisy: FloatArray, transition: MatrixLike, start: Start, scales: FloatArray) -> FloatArray:
    """Estimates ``(T, m)`` of which each uses the rows up to its own time only.

    Memory does not grow with ``T`` beyond the output; time is of order ``T m^3``.
    """
    chain = ChainFilter(transition, start)
    with one_thread():
        return np.array([chain.update(row, float(scale))[0] for row, scale in zip(noisy, scales, strict=True)])


@checked
def smooth_counts(
    noisy: npt.ArrayLike, transition: MatrixLike, start: Start, scales: npt.ArrayLike, sweeps: int = 2
) -> tuple[FloatArray, FloatArray]:
    """Estimates of which each uses the rows of all times.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    transition
        ``(m, m)``, dense or sparse, row-stochastic.
    start
        The counts before the first row is seen.
    scales
        One, or ``(T,)``.
    sweeps
        0 uses second moments alone (the best linear estimator); 1 keeps the factors that the filter found; each more
        refines them, and the moves' covariances, over the whole chain.

    Returns
    -------
    mean, variance : FloatArray
        ``(T, m)`` each, given all rows. The means sum to the number of users; they are not clipped.

    Raises
    ------
    CountError, StochasticError, BudgetError, ConfigurationError
        For counts, a matrix, scales or a number of sweeps that make no sense.

    Notes
    -----
    Time is of order ``T m^3`` per sweep; memory holds two ``(T, m, m)`` arrays.
    """
    noisy, places = as_noisy(noisy), len(start.mean)
    if noisy.shape[1] != places:
        raise CountError(f"noisy counts have {noisy.shape[1]} places and the start {places}; they must agree")
    scales = as_scales(scales, len(noisy))
    if not isinstance(sweeps, int) or not 0 <= sweeps <= _MOST_SWEEPS:
        raise ConfigurationError(f"sweeps is {sweeps}; give a whole number from 0 to {_MOST_SWEEPS}")
    move = _as_move(as_transition(transition, places))
    factors = _Factors.gaussian(noisy, scales[:, None], kept=sweeps == 0)
    with one_thread():
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


def _as_move(transition: sparse.csr_array) -> Any:
    """The transposed matrix, which moves columns of counts, dense unless it is very sparse."""
    size = transition.shape[0]
    if transition.nnz > _DENSE_SHARE * size * size:
        return np.ascontiguousarray(transition.toarray().T)
    return sparse.csr_array(transition.T)


def _predict(move: Any, mean: FloatArray, root: FloatArray, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """One step of every user; `counts` says how many move from each place (negative estimates as zero)."""
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
    return move @ mean, _root_with(covariance, _JITTER * size)  # singular: the total is known


def _root_with(matrix: FloatArray, jitter: float) -> FloatArray:
    """The Cholesky factor of a matrix plus a multiple of the identity, which grows until there is a factor."""
    while True:
        shifted = matrix.copy()
        shifted[np.diag_indices_from(shifted)] += jitter
        factor, failed = dpotrf(shifted, lower=1, overwrite_a=1, clean=1)
        if not failed:
            return np.asarray(factor)
        jitter = max(10.0 * jitter, _JITTER * float(np.diag(matrix).max()))


def _posterior_root(root: FloatArray, precision: FloatArray) -> FloatArray:
    """A root of the covariance after factors of these precisions: no difference is taken, so none can turn negative."""
    inner = root.T @ (precision[:, None] * root)
    return np.asarray(dtrsm(1.0, _root_with(inner, 1.0), root, side=1, lower=1, trans_a=1))


def _update(mean: FloatArray, root: FloatArray, factors: _Factors) -> tuple[FloatArray, FloatArray]:
    """The belief after one row's factors."""
    after = _posterior_root(root, factors.precision)
    return mean + after @ (after.T @ (factors.weighted - factors.precision * mean)), after


def _match_here(mean: FloatArray, root: FloatArray, factors: _Factors, noisy: FloatArray, scale: float) -> None:
    """Match one time's factors, given the prediction."""
    for _ in range(_ROUNDS):
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
    """Forward and backward over the chain; without counts, of which people move, the factors are matched on the way."""
    steps, size = noisy.shape
    predicted, filtered = np.empty((steps, size)), np.empty((steps, size))
    before, after = np.empty((steps, size, size)), np.empty((steps, size, size))
    mean, root = start.mean, start.root
    for t in range(steps):
        if t:
            mean, root = _predict(move, mean, root, mean if counts is None else counts[t - 1])
        predicted[t], before[t] = mean, root
        here = _Factors(factors.precision[t], factors.weighted[t])
        if counts is None:
            _match_here(mean, root, here, noisy[t], float(scales[t]))
            factors.precision[t], factors.weighted[t] = here.precision, here.weighted
        mean, root = _update(mean, root, here)
        filtered[t], after[t] = mean, root
    return _backward(predicted, filtered, before, after, move)


def _backward(
    predicted: FloatArray, filtered: FloatArray, before: FloatArray, after: FloatArray, move: Any
) -> tuple[FloatArray, FloatArray]:
    """The pass of Rauch, Tung and Striebel (1965), by triangular solves with the predictions' roots."""
    smoothed, variances = filtered.copy(), np.empty_like(filtered)
    covariance = after[-1] @ after[-1].T
    variances[-1] = np.diag(covariance)
    for t in range(len(filtered) - 2, -1, -1):
        moved = move @ after[t]
        root = before[t + 1]
        if not root[0, 0] > 0.0:
            smoothed[t], covariance = filtered[t], after[t] @ after[t].T
        else:
            whitened = dtrsm(1.0, root, moved, lower=1)
            gain = after[t] @ dtrsm(1.0, root, whitened, lower=1, trans_a=1).T
            smoothed[t] = filtered[t] + gain @ (smoothed[t + 1] - predicted[t + 1])
            # after (I - whitened' whitened) after' + gain covariance gain', the first part as a difference of roots
            through = gain @ root
            covariance = after[t] @ after[t].T - through @ through.T + gain @ covariance @ gain.T
        variances[t] = np.maximum(np.diag(covariance), 0.0)
    return smoothed, variances
