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

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, as_distribution, as_numbers, check_budget
from dphmm.counts.occupancy import as_transition
from dphmm.counts.stream import as_noisy, as_row, as_scales, as_whole
from dphmm.counts.tilted import lattice_moments, tilted_moments
from dphmm.errors import ConfigurationError, CountError, StochasticError
from dphmm.stochastic import MatrixLike
from dphmm.threads import one_thread

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

    Attributes
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
        precision = np.where(_whole(noisy), discrete, real) * np.ones(noisy.shape)
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
        spread = np.where(_whole(noisy), np.maximum(spread, 1.0 / (precision + _most_precise(scales))), spread)
        new = np.maximum(1.0 / spread - precision, 0.0)
        self.precision = np.where(useful, new, self.precision)
        self.weighted = np.where(useful, centre / spread - cavity * precision, self.weighted)


def _most_precise(scales: FloatArray | float) -> FloatArray:
    """Of a factor on the integers: what is certain of its integer would not bend where others are of another."""
    return np.asarray(np.maximum(_LATTICE_PRECISION, np.square(0.5 / np.asarray(scales))))


def _whole(noisy: FloatArray) -> BoolArray:
    """Which rows hold whole numbers, ``(..., 1)``."""
    return np.asarray((noisy == np.rint(noisy)).all(axis=-1, keepdims=True))


def _moments(
    mean: FloatArray, variance: FloatArray, noisy: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Those of `dphmm.counts.tilted`, by the noise of each row."""
    lattice = np.broadcast_to(_whole(noisy), noisy.shape)
    found = np.empty((2, *noisy.shape))
    for chosen, moments in ((lattice, lattice_moments), (~lattice, tilted_moments)):
        if chosen.any():
            found[:, chosen] = moments(mean[chosen], variance[chosen], noisy[chosen], scale[chosen])
    return found[0], found[1]


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
        noisy, scale = as_row(noisy, len(self._mean)), check_budget(scale, "scale")
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
