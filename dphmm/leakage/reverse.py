"""The backward matrix of a chain, by Bayes' rule from the forward one and a distribution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dphmm.arrays import FloatArray, as_distribution
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.leakage.transition import SMALLEST_PROBABILITY, MatrixLike, checked_matrix, is_sparse


def reverse(forward: MatrixLike, distribution: npt.ArrayLike) -> Any:
    """``P^B[i, j] = Pr(state before = j | state now = i)``, from ``P^F[j, i] = Pr(now = i | before = j)``.

    Parameters
    ----------
    forward
        ``(n, n)`` row-stochastic, dense or scipy sparse.
    distribution
        ``(n,)`` distribution of the state *before*. It belongs to one moment unless it is stationary: see
        `reverses`.

    Returns
    -------
    array or scipy CSR array
        ``(n, n)``, of the same kind as ``forward``. The row of a state that cannot be reached now is conditioned on
        something impossible; it is given the distribution of the state before, which is a mixture of the other rows
        and so changes no temporal privacy loss. In the sparse form it is a copy of one of the other rows, which
        changes none either and stays sparse.

    Raises
    ------
    StochasticError
        When the matrix or the distribution is none, or a state that can be reached has a probability too small for
        floating point.

    Examples
    --------
    >>> reverse([[.8, .2], [.4, .6]], [.5, .5]).round(3)
    array([[0.667, 0.333],
           [0.25 , 0.75 ]])
    """
    matrix = checked_matrix(forward, "forward matrix")
    return _reverse(matrix, as_distribution(distribution, matrix.shape[0]))[0]


def reverses(forward: MatrixLike, initial: npt.ArrayLike, steps: int) -> Iterator[Any]:
    """The backward matrices of a chain that need not be stationary, one for each step from t to t + 1.

    Parameters
    ----------
    forward
        ``(n, n)`` row-stochastic, dense or scipy sparse.
    initial
        ``(n,)`` distribution of the first state.
    steps
        Number of releases T; there are ``T − 1`` matrices. They are made one at a time, so that T does not cost
        memory; `dphmm.leakage.backward` takes the iterator as it is.

    Raises
    ------
    InvalidInputError
        When ``steps`` is less than 1.
    StochasticError
        As `reverse`.

    Examples
    --------
    >>> [matrix.round(2).tolist() for matrix in reverses([[.8, .2], [.4, .6]], [1, 0], 3)]
    [[[1.0, 0.0], [1.0, 0.0]], [[0.89, 0.11], [0.57, 0.43]]]
    """
    if steps < 1:
        raise InvalidInputError(f"steps is {steps}; give at least 1")
    matrix = checked_matrix(forward, "forward matrix")
    return _march(matrix, as_distribution(initial, matrix.shape[0]), steps)


def _march(matrix: Any, distribution: FloatArray, steps: int) -> Iterator[Any]:
    for _ in range(steps - 1):
        backward, distribution = _reverse(matrix, distribution)
        yield backward


def _reverse(matrix: Any, before: FloatArray) -> tuple[Any, FloatArray]:
    """The backward matrix, and the distribution of the state now."""
    joint = (sp.diags_array(before) @ matrix).T if is_sparse(matrix) else (before[:, np.newaxis] * matrix).T
    now = np.asarray(joint.sum(axis=1), dtype=np.float64).ravel()
    positive = np.asarray((matrix > 0).astype(np.int64).T @ (before > 0).astype(np.int64)).ravel() > 0
    lost = np.flatnonzero(positive & (now < SMALLEST_PROBABILITY))
    if lost.size:
        raise StochasticError(
            f"state {lost[0]} can be reached with probability {now[lost[0]]} only; "
            "raise the smallest probabilities of the chain or set them to 0"
        )
    scale = np.divide(1.0, now, out=np.zeros_like(now), where=positive)
    if is_sparse(matrix):
        return _fill_sparse(sp.csr_array(sp.diags_array(scale) @ joint), positive), now / now.sum()
    backward = np.ascontiguousarray(joint * scale[:, np.newaxis])
    backward[~positive] = before
    return backward, now / now.sum()


def _fill_sparse(backward: Any, positive: npt.NDArray[np.bool_]) -> Any:
    """The sparse matrix with a copy of a defined row, the shortest, in place of each undefined one."""
    if positive.all():
        return backward
    lengths = np.where(positive, np.diff(backward.indptr), positive.size + 1)
    chosen = np.where(positive, np.arange(positive.size), int(np.argmin(lengths)))
    return sp.csr_array(backward[chosen])
