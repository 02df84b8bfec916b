"""The counts of all times together: filter and smoother on the chain that the users' moves make of the counts.

Each of ``n`` users moves by ``M`` independently of the others, so the counts are a Markov chain themselves: given
``R^t``, the next counts have mean ``R^t M`` and covariance ``sum_i R^t_i (diag(M_i) - M_i' M_i)``. Both are linear in
``R^t``, so the Gaussian chain with these two moments, the covariance at the mean counts, is the collective Gaussian
approximation of the model (Sheldon and Dietterich, *Collective graphical models*, 2011). The Laplace likelihood and
the bound at zero enter by expectation propagation (Minka 2001): each noisy count becomes a Gaussian factor whose
moments agree with the exact one-count product, first as the filter passes, then, over the whole chain, as the smoother
revisits it. With ``sweeps=0`` only first and second moments are used, those of the Laplace noise among them; for users
who start and move as the model says, the smoother is then the linear estimator of least mean squared error (Kalman).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dpotrf, dpotri

from dphmm.arrays import FloatArray
from dphmm.counts.tilted import tilted_moments

_DENSE_SHARE = 0.05
"""Share of entries from which a matrix is multiplied as a dense one."""

_ROUNDS = 2
"""How often the filter revisits the factors of the time it stands at."""

_CERTAIN = 1e-9
"""Variance below which a count is known and its noisy value tells nothing."""


@dataclass(frozen=True)
class Start:
    """Mean and covariance of the counts at the first time, before anything is seen.

    Attributes
    ----------
    mean
        ``(m,)``.
    covariance
        ``(m, m)``, with a zero row sum: the total is known.
    """

    mean: FloatArray
    covariance: FloatArray

    @classmethod
    def multinomial(cls, first: FloatArray, users: int) -> Start:
        """Every user starts in a place drawn from ``first``, independently."""
        return cls(users * first, users * (np.diag(first) - np.outer(first, first)))

    @classmethod
    def flat(cls, size: int, users: int) -> Start:
        """All count vectors of this total alike: nothing is assumed about the start, the noisy counts tell it."""
        share = np.full(size, 1.0 / size)
        spread = users * (users + size) / (size + 1.0)
        return cls(users * share, spread * (np.diag(share) - np.outer(share, share)))


@dataclass
class _Factors:
    """The Gaussian factors that stand for noisy counts: precisions and precision-weighted means, ``(..., m)``."""

    precision: FloatArray
    weighted: FloatArray

    @classmethod
    def gaussian(cls, noisy: FloatArray, scales: FloatArray | float) -> _Factors:
        """Of Gaussian noise with the Laplace noise's variance ``2 scale^2``."""
        precision = np.broadcast_to(0.5 / np.square(scales), noisy.shape).copy()
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
        useful = (variance > _CERTAIN) & (others > 1e-9 / safe)
        precision = np.where(useful, others, 1.0 / safe)
        cavity = np.where(useful, (mean / safe - self.weighted) / precision, mean)
        centre, spread = tilted_moments(cavity, 1.0 / precision, noisy, np.broadcast_to(scales, noisy.shape))
        spread = np.maximum(spread, 1e-12 / precision)
        new = np.maximum(1.0 / spread - precision, 0.0)
        self.precision = np.where(useful, new, self.precision)
        self.weighted = np.where(useful, centre / spread - cavity * precision, self.weighted)


class ChainFilter:
    """The online estimator: one row of noisy counts in, the estimate of that time's counts out.

    Parameters
    ----------
    transition
        ``(m, m)``, CSR, row-stochastic.
    start
        The counts before the first row is seen.
    matched
        Match the Laplace likelihood and the bound at zero; otherwise take the noise as Gaussian.
    """

    def __init__(self, transition: sparse.csr_array, start: Start, matched: bool = True) -> None:
        self._move: Any = _as_move(transition)
        self._mean, self._covariance = start.mean, start.covariance
        self._matched = matched
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
        """
        if self._begun:
            self._mean, self._covariance = _predict(self._move, self._mean, self._covariance, self._mean)
        self._begun = True
        factors = _Factors.gaussian(noisy, scale)
        if self._matched:
            _match_here(self._mean, self._covariance, factors, noisy, scale)
        self._mean, self._covariance, _ = _update(self._mean, self._covariance, factors.precision, factors.weighted)
        return self._mean, np.diag(self._covariance).copy()


def filter_counts(
    noisy: FloatArray, transition: sparse.csr_array, start: Start, scales: FloatArray, sweeps: int = 1
) -> FloatArray:
    """Estimates ``(T, m)`` of which each uses the rows up to its own time only.

    Memory does not grow with ``T`` beyond the output; time is of order ``T m^3``.
    """
    chain = ChainFilter(transition, start, matched=sweeps > 0)
    with _one_thread():
        return np.array([chain.update(row, float(scale))[0] for row, scale in zip(noisy, scales, strict=True)])


def smooth_counts(
    noisy: FloatArray, transition: sparse.csr_array, start: Start, scales: FloatArray, sweeps: int = 2
) -> tuple[FloatArray, FloatArray]:
    """Estimates of which each uses the rows of all times.

    Parameters
    ----------
    noisy
        ``(T, m)``.
    transition
        ``(m, m)``, CSR, row-stochastic.
    start
        The counts before the first row is seen.
    scales
        ``(T,)``.
    sweeps
        0 uses second moments alone (the best linear estimator); 1 keeps the factors that the filter found; each more
        refines them, and the moves' covariances, over the whole chain.

    Returns
    -------
    mean, variance : FloatArray
        ``(T, m)`` each, given all rows. The means sum to the number of users; they are not clipped.

    Notes
    -----
    Time is of order ``T m^3`` per sweep; memory holds two ``(T, m, m)`` arrays.
    """
    move = _as_move(transition)
    factors = _Factors.gaussian(noisy, scales[:, None])
    with _one_thread():
        if sweeps == 0:
            return _sweep(noisy, scales, move, start, factors, _expected(move, start.mean, len(noisy)), "fixed")
        mean, variance = _sweep(noisy, scales, move, start, factors, None, "filter")
        for _ in range(sweeps - 1):
            factors.match(mean, variance, noisy, scales[:, None])
            mean, variance = _sweep(noisy, scales, move, start, factors, mean, "fixed")
    return mean, variance


def _expected(move: Any, mean: FloatArray, steps: int) -> FloatArray:
    """The mean counts of each time before anything is seen."""
    rows = [mean]
    for _ in range(steps - 1):
        rows.append(move @ rows[-1])
    return np.array(rows)


def _one_thread() -> AbstractContextManager[Any]:
    """Linear algebra on one thread: thousands of small products in a row lose more to waking threads than they gain.

    On two busy cores the loss was measured to be fortyfold. Without threadpoolctl the threads stay as they are.
    """
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(limits=1, user_api="blas")
    return limits


def _as_move(transition: sparse.csr_array) -> Any:
    """The transposed matrix, which moves columns of counts, dense unless it is very sparse."""
    size = transition.shape[0]
    if transition.nnz > _DENSE_SHARE * size * size:
        return np.ascontiguousarray(transition.toarray().T)
    return sparse.csr_array(transition.T)


def _predict(move: Any, mean: FloatArray, covariance: FloatArray, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """One step of every user; `counts` says how many move from each place (negative estimates as zero)."""
    movers = np.maximum(counts, 0.0)
    inner = covariance - np.diag(movers)
    moved = move @ np.ascontiguousarray((move @ inner).T)
    moved[np.diag_indices_from(moved)] += move @ movers
    return move @ mean, moved


def _gain(covariance: FloatArray, precision: FloatArray) -> FloatArray:
    """``(covariance + 1 / precision)^-1``, also where the covariance is singular or a precision zero."""
    root = np.sqrt(precision)
    inner = root[:, None] * covariance * root
    inner[np.diag_indices_from(inner)] += 1.0
    factor, failed = dpotrf(inner, lower=1, overwrite_a=1)
    if failed:
        raise FloatingPointError("the covariance of the counts lost its positive definiteness")
    inverse, _ = dpotri(factor, lower=1, overwrite_c=1)
    lower = np.tril(inverse)
    full = lower + np.tril(inverse, -1).T
    return np.asarray(root[:, None] * full * root)


def _update(
    mean: FloatArray, covariance: FloatArray, precision: FloatArray, weighted: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The belief after one row's factors, and their gain."""
    gain = _gain(covariance, precision)
    updated = covariance - covariance @ (gain @ covariance)
    updated = 0.5 * (updated + updated.T)
    return mean + updated @ (weighted - precision * mean), updated, gain


def _match_here(mean: FloatArray, covariance: FloatArray, factors: _Factors, noisy: FloatArray, scale: float) -> None:
    """Match one time's factors, given the prediction."""
    for _ in range(_ROUNDS):
        gain = _gain(covariance, factors.precision)
        through = covariance @ gain
        variance = np.diag(covariance) - np.einsum("ij,ij->i", through, covariance)
        step = factors.weighted - factors.precision * mean
        belief = mean + covariance @ step - through @ (covariance @ step)
        factors.match(belief, variance, noisy, scale)


def _sweep(
    noisy: FloatArray,
    scales: FloatArray,
    move: Any,
    start: Start,
    factors: _Factors,
    counts: FloatArray | None,
    mode: Literal["filter", "fixed"],
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward over the chain; in mode "filter" the factors are matched on the way.

    The backward pass is the disturbance form (de Jong 1989), which inverts no covariance: the total is known, so all of
    them are singular.
    """
    steps, size = noisy.shape
    means, covariances, gains = np.empty((steps, size)), np.empty((steps, size, size)), np.empty((steps, size, size))
    mean, covariance = start.mean, start.covariance
    for t in range(steps):
        if t:
            movers = mean if counts is None else counts[t - 1]
            mean, covariance = _predict(move, mean, covariance, movers)
        means[t], covariances[t] = mean, covariance
        if mode == "filter":
            here = _Factors(factors.precision[t], factors.weighted[t])
            _match_here(mean, covariance, here, noisy[t], float(scales[t]))
            factors.precision[t], factors.weighted[t] = here.precision, here.weighted
        mean, covariance, gains[t] = _update(mean, covariance, factors.precision[t], factors.weighted[t])
    return _backward(means, covariances, gains, move, factors)


def _backward(
    means: FloatArray, covariances: FloatArray, gains: FloatArray, move: Any, factors: _Factors
) -> tuple[FloatArray, FloatArray]:
    steps, size = means.shape
    smoothed, variances = np.empty((steps, size)), np.empty((steps, size))
    pull, certainty = np.zeros(size), np.zeros((size, size))
    for t in range(steps - 1, -1, -1):
        covariance, gain = covariances[t], gains[t]
        kept = -(covariance @ gain)
        kept[np.diag_indices_from(kept)] += 1.0
        # gain @ (y - mean) in a form without dividing by a precision, which may be zero
        step = factors.weighted[t] - factors.precision[t] * means[t]
        pull = kept.T @ (step + pull)
        certainty = gain + kept.T @ (certainty @ kept)
        smoothed[t] = means[t] + covariance @ pull
        variances[t] = np.diag(covariance) - np.einsum("ij,ij->i", covariance @ certainty, covariance)
        if t:
            pull = move.T @ pull
            certainty = move.T @ np.ascontiguousarray((move.T @ certainty).T)
    return smoothed, variances
