"""Where one user is at each time, given how users move: the marginals ``P^t = P^{t-1} M`` and their support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dphmm.arrays import BoolArray, FloatArray, as_distribution
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.stochastic import MatrixLike, as_stochastic

_DOUBLING = 256
"""Places up to which powers of the matrix are formed."""

Prior = Literal["frequency", "uniform"]
"""What stands for the unknown distribution at the first time: the noisy counts' frequencies, or every place alike."""


@dataclass(frozen=True)
class Occupancy:
    """The distribution of one user over ``m`` places at each of ``T`` times.

    The support is carried beside the probabilities, by the structure of the matrix: a probability that underflows
    does not make a place impossible.

    Parameters
    ----------
    probabilities
        ``(T, m)``, each row sums to one.
    possible
        ``(T, m)`` booleans, false where the probability is zero by structure.
    """

    probabilities: FloatArray
    possible: BoolArray

    @property
    def log_probabilities(self) -> FloatArray:
        """``(T, m)``; minus infinity where impossible, finite elsewhere."""
        floor = np.finfo(np.float64).tiny
        with np.errstate(divide="ignore"):
            return np.where(self.possible, np.log(np.maximum(self.probabilities, floor)), -np.inf)


def as_transition(matrix: MatrixLike, size: int) -> sparse.csr_array:
    """A row-stochastic matrix ``(m, m)``, dense or sparse, as CSR, renormalised within the tolerance.

    Raises
    ------
    StochasticError
        When it is not square, not of this size, or a row is no distribution.
    """
    transition: sparse.csr_array = as_stochastic(matrix, "the transition matrix", compressed=True)
    if transition.shape[0] != size:
        raise StochasticError(
            f"the transition matrix has shape {transition.shape}; there are {size} places, so give ({size}, {size})"
        )
    return transition


def first_distribution(noisy: FloatArray, prior: Prior | npt.ArrayLike) -> FloatArray:
    """The distribution that stands for ``P^1``.

    Parameters
    ----------
    noisy
        Noisy counts ``(T, m)``.
    prior
        ``"frequency"``: the first row, negative counts as zero, normalised (uniform when nothing positive is left);
        ``"uniform"``; or a distribution ``(m,)`` that is known.

    Raises
    ------
    ConfigurationError
        For another name.
    StochasticError
        For an array that is no distribution.
    """
    size = noisy.shape[1]
    if not isinstance(prior, str):
        return as_distribution(prior, size)
    if prior == "uniform":
        return np.full(size, 1.0 / size)
    if prior != "frequency":
        raise ConfigurationError(f"the prior is {prior!r}; give 'frequency', 'uniform' or a distribution")
    positive = np.maximum(noisy[0], 0.0)
    total = positive.sum()
    return positive / total if total > 0 else np.full(size, 1.0 / size)


def occupancy(first: npt.ArrayLike, transition: sparse.csr_array, steps: int) -> Occupancy:
    """The marginals of ``steps`` times, at least one, from the distribution at the first one."""
    start = np.asarray(first, dtype=np.float64)
    if (start > 0).all() and (np.bincount(transition.indices, minlength=len(start)) > 0).all():
        return Occupancy(_orbit(start, transition, steps), np.ones((steps, len(start)), dtype=np.bool_))
    links = np.ones_like(transition.data), transition.indices, transition.indptr
    structure = sparse.csr_array(links, shape=transition.shape)
    possible = _orbit((start > 0).astype(np.float64), structure, steps, cap=1.0) > 0
    return Occupancy(_orbit(start, transition, steps), possible)


def _orbit(first: FloatArray, matrix: sparse.csr_array, steps: int, cap: float = np.inf) -> FloatArray:
    """The rows ``first @ matrix**t`` for t below `steps`, entries capped; a small matrix doubles them each round."""
    size = matrix.shape[0]
    rows = np.empty((steps, size))
    rows[0] = first
    if size > _DOUBLING:
        backward = sparse.csr_array(matrix.T)
        for t in range(1, steps):
            rows[t] = np.minimum(backward @ rows[t - 1], cap)
        return rows
    have, power = 1, matrix.toarray()
    while have < steps:
        more = min(have, steps - have)
        rows[have : have + more] = np.minimum(rows[:more] @ power, cap)
        have, power = have + more, np.minimum(power @ power, cap)
    return rows
