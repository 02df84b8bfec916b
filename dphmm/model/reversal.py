"""Time reversal of a Markov chain by Bayes' rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dphmm.arrays import BoolArray, FloatArray, as_distribution
from dphmm.errors import StochasticError
from dphmm.stochastic_matrix import MIN_PROBABILITY, MatrixLike, as_stochastic
from dphmm.validation import PositiveInt, check_arguments


@check_arguments
def reverse(forward: MatrixLike, distribution: npt.ArrayLike) -> Any:
    """Compute the backward transition matrix by Bayes' rule.

    The result is ``P^B[i, j] = Pr(previous state = j | current state = i)``, from ``P^F[j, i] = Pr(current state = i |
    previous state = j)``.

    Parameters
    ----------
    forward
        ``(n, n)`` row-stochastic, dense or scipy sparse.
    distribution
        ``(n,)``: the distribution of the *previous* state. Unless it is stationary it belongs to one timestep only; see
        `reverse_by_step`.

    Returns
    -------
    array or scipy CSR array
        ``(n, n)``, dense or sparse as ``forward``. The row of an unreachable current state is conditioned on an
        impossible event. It is set to ``distribution``, a mixture of the other rows, and therefore changes no temporal
        privacy loss. In the sparse form it is a copy of one of the other rows, which changes none either.

    Raises
    ------
    StochasticError
        If the matrix or the distribution is invalid, or the probability of a reachable state is too small for floating
        point.

    Examples
    --------
    >>> reverse([[.8, .2], [.4, .6]], [.5, .5]).round(3)
    array([[0.667, 0.333],
           [0.25 , 0.75 ]])
    """
    matrix = as_stochastic(forward, "forward matrix", smallest=MIN_PROBABILITY)
    return _reverse(matrix, as_distribution(distribution, matrix.shape[0]))[0]


@check_arguments
def reverse_by_step(forward: MatrixLike, initial: npt.ArrayLike, steps: PositiveInt) -> Iterator[Any]:
    """Compute the backward matrices of a chain, one for each step from t to t + 1.

    The chain need not be stationary.

    Parameters
    ----------
    forward
        ``(n, n)`` row-stochastic, dense or scipy sparse.
    initial
        ``(n,)``: the distribution of the first state.
    steps
        The number of timesteps T. There are ``T − 1`` matrices, computed one at a time, so memory does not depend on T.

    Returns
    -------
    iterator of array or scipy CSR array
        ``(n, n)`` each; see `reverse`.

    Raises
    ------
    InvalidInputError
        If ``steps`` is less than 1.
    StochasticError
        If an argument is invalid; see `reverse`.

    Examples
    --------
    >>> [matrix.round(2).tolist() for matrix in reverse_by_step([[.8, .2], [.4, .6]], [1, 0], 3)]
    [[[1.0, 0.0], [1.0, 0.0]], [[0.89, 0.11], [0.57, 0.43]]]
    """
    matrix = as_stochastic(forward, "forward matrix", smallest=MIN_PROBABILITY)
    pairs = reverse_steps(repeat(matrix, steps - 1), as_distribution(initial, matrix.shape[0]))
    return (backward for backward, _ in pairs)


def reverse_steps(matrices: Iterable[Any], distribution: FloatArray) -> Iterator[tuple[Any, FloatArray]]:
    """Yield the backward matrix of each step and the distribution before the step."""
    for matrix in matrices:
        backward, after = _reverse(matrix, distribution)
        yield backward, distribution
        distribution = after


def _reverse(matrix: Any, before: FloatArray) -> tuple[Any, FloatArray]:
    """Return the backward matrix, and the distribution of the current state."""
    is_sparse = bool(sp.issparse(matrix))
    joint = (sp.diags_array(before) @ matrix).T if is_sparse else (before[:, np.newaxis] * matrix).T
    now = np.asarray(joint.sum(axis=1), dtype=np.float64).ravel()
    positive = np.asarray((matrix > 0).astype(np.int64).T @ (before > 0).astype(np.int64)).ravel() > 0
    lost = np.flatnonzero(positive & (now < MIN_PROBABILITY))
    if lost.size:
        raise StochasticError(
            f"the probability of state {lost[0]} must be at least {MIN_PROBABILITY:g}, got {now[lost[0]]}: raise "
            "the smallest probabilities of the chain or set them to 0"
        )
    scale = np.divide(1.0, now, out=np.zeros_like(now), where=positive)
    if is_sparse:
        return _fill_sparse(sp.csr_array(sp.diags_array(scale) @ joint), positive), now / now.sum()
    backward = np.ascontiguousarray(joint * scale[:, np.newaxis])
    backward[~positive] = before
    return backward, now / now.sum()


def _fill_sparse(backward: Any, positive: BoolArray) -> Any:
    """Replace each undefined row of a sparse matrix by a copy of the shortest defined one."""
    if positive.all():
        return backward
    lengths = np.where(positive, np.diff(backward.indptr), positive.size + 1)
    chosen = np.where(positive, np.arange(positive.size), int(np.argmin(lengths)))
    return sp.csr_array(backward[chosen])
