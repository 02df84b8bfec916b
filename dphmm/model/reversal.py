"""What follows from a transition matrix alone: the chain in reverse, by Bayes' rule, and where it comes to rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.stochastic import SMALLEST_PROBABILITY, MatrixLike, as_stochastic


@checked
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
    matrix = as_stochastic(forward, "forward matrix", smallest=SMALLEST_PROBABILITY)
    return _reverse(matrix, as_distribution(distribution, matrix.shape[0]))[0]


@checked
def reverses(forward: MatrixLike, initial: npt.ArrayLike, steps: int) -> Iterator[Any]:
    """The backward matrices of a chain that need not be stationary, one for each step from t to t + 1.

    Parameters
    ----------
    forward
        ``(n, n)`` row-stochastic, dense or scipy sparse.
    initial
        ``(n,)`` distribution of the first state.
    steps
        Number of times T; there are ``T − 1`` matrices. They are made one at a time, so that T does not cost memory.

    Returns
    -------
    iterator of array or scipy CSR array
        ``(n, n)``, as `reverse` gives.

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
    matrix = as_stochastic(forward, "forward matrix", smallest=SMALLEST_PROBABILITY)
    found = reverses_through(repeat(matrix, steps - 1), as_distribution(initial, matrix.shape[0]))
    return (backward for backward, _ in found)


def reverses_through(matrices: Iterable[Any], distribution: FloatArray) -> Iterator[tuple[Any, FloatArray]]:
    """The backward matrix of each of some steps, with the distribution before it; matrices are not checked."""
    for matrix in matrices:
        backward, after = _reverse(matrix, distribution)
        yield backward, distribution
        distribution = after


def _reverse(matrix: Any, before: FloatArray) -> tuple[Any, FloatArray]:
    """The backward matrix, and the distribution of the state now."""
    is_sparse = bool(sp.issparse(matrix))
    joint = (sp.diags_array(before) @ matrix).T if is_sparse else (before[:, np.newaxis] * matrix).T
    now = np.asarray(joint.sum(axis=1), dtype=np.float64).ravel()
    positive = np.asarray((matrix > 0).astype(np.int64).T @ (before > 0).astype(np.int64)).ravel() > 0
    lost = np.flatnonzero(positive & (now < SMALLEST_PROBABILITY))
    if lost.size:
        raise StochasticError(
            f"state {lost[0]} can be reached with probability {now[lost[0]]} only; "
            "raise the smallest probabilities of the chain or set them to 0"
        )
    scale = np.divide(1.0, now, out=np.zeros_like(now), where=positive)
    if is_sparse:
        return _fill_sparse(sp.csr_array(sp.diags_array(scale) @ joint), positive), now / now.sum()
    backward = np.ascontiguousarray(joint * scale[:, np.newaxis])
    backward[~positive] = before
    return backward, now / now.sum()


def _fill_sparse(backward: Any, positive: BoolArray) -> Any:
    """The sparse matrix with a copy of a defined row, the shortest, in place of each undefined one."""
    if positive.all():
        return backward
    lengths = np.where(positive, np.diff(backward.indptr), positive.size + 1)
    chosen = np.where(positive, np.arange(positive.size), int(np.argmin(lengths)))
    return sp.csr_array(backward[chosen])


_ELIMINATED = 600
"""The most states that are eliminated one by one, which takes a second; more are solved for with sparse factors."""


@checked
def stationary(transition: MatrixLike) -> FloatArray:
    """The distribution ``(n,)`` that the chain, begun in all states alike, spends its time in: ``p P = p``.

    Parameters
    ----------
    transition
        ``(n, n)`` row-stochastic, dense or scipy sparse. Where it has several closed classes, of which no state is
        left, each has the mass that ends up in it; a cycle counts by the time spent in each of its states.

    Returns
    -------
    FloatArray
        ``(n,)``; it sums to one.

    Raises
    ------
    StochasticError
        When the matrix is none, or parts of the chain are joined by moves so rare that what is found is no rest.

    Notes
    -----
    Solved for directly, however slowly the chain mixes. Up to 600 states, of a closed class or of those that are left
    for good, are eliminated one after another without a subtraction (Grassmann, Taksar and Heyman, 1985), so that every
    state's probability, however small, is right to a relative precision near that of floating point. Of larger ones
    digits are lost where groups of states are joined by moves that are rarer by a factor that nears ``1e-16`` than
    those within.

    Examples
    --------
    >>> stationary([[.8, .2], [.4, .6]]).round(4)
    array([0.6667, 0.3333])
    """
    from scipy.sparse.csgraph import connected_components  # with solvers that most commands need not

    matrix = as_stochastic(transition, compressed=True)
    size = matrix.shape[0]
    classes, member = connected_components(matrix, connection="strong")
    sources, targets = matrix.nonzero()
    closed = np.ones(classes, dtype=np.bool_)
    closed[member[sources[member[sources] != member[targets]]]] = False
    moves = sp.csr_array(matrix - sp.diags_array(matrix.diagonal()))
    # Leaving by the sum of the moves rather than by 1 - P_ii, which would cancel where states are seldom left.
    leaving = sp.csr_array(sp.diags_array(moves.sum(axis=1)) - moves)
    found = np.full(size, 1.0 / size)
    passing = np.flatnonzero(~closed[member])
    if passing.size:
        if passing.size <= _ELIMINATED:
            found = _passed_on(moves, passing, found)
        else:
            visits = _solved(leaving[passing][:, passing].T, found[passing])
            found += visits @ moves[passing]
        found[passing] = 0.0
    masses = np.bincount(member, found, minlength=classes)
    order = np.argsort(member, kind="stable")
    for states in np.split(order, np.cumsum(np.bincount(member))[:-1]):
        if states.size == 1 or not closed[member[states[0]]]:
            continue
        if states.size <= _ELIMINATED:
            shares = _eliminated(moves[states][:, states].toarray())
        else:
            balance: Any = leaving[states][:, states].T.tocsr()
            shares = np.append(1.0, _solved(balance[1:, 1:], -balance[1:, [0]].toarray().ravel()))
        found[states] = masses[member[states[0]]] * shares / shares.sum()
    found /= found.sum()
    if not np.allclose(found @ moves, found * moves.sum(axis=1), rtol=1e-6, atol=1e-15):
        raise _too_rare()
    return np.asarray(found)


def _eliminated(moves: FloatArray) -> FloatArray:
    """What a chain spends in each state of one closed class, up to a factor, from its moves; these are overwritten."""
    with np.errstate(all="ignore"):
        for last in range(len(moves) - 1, 0, -1):
            _eliminate(moves, last)
        shares = np.ones(len(moves))
        for state in range(1, len(moves)):
            shares[state] = shares[:state] @ moves[:state, state]
            shares[: state + 1] /= shares[: state + 1].max()
    if not np.isfinite(shares).all():
        raise _too_rare()
    return shares


def _passed_on(moves: Any, passing: IntArray, masses: FloatArray) -> FloatArray:
    """Masses once those in the states that are left for good have gone to where they end up."""
    kept = np.setdiff1d(np.unique(moves[passing].indices), passing)
    order = np.concatenate([kept, passing])
    rows, found = np.vstack([np.zeros((kept.size, order.size)), moves[passing][:, order].toarray()]), masses.copy()
    with np.errstate(all="ignore"):
        for last in range(order.size - 1, kept.size - 1, -1):
            shares = _eliminate(rows, last)
            found[order[:last]] += found[order[last]] * shares
    if not np.isfinite(found).all():
        raise _too_rare()
    return found


def _eliminate(moves: FloatArray, last: int) -> FloatArray:
    """Make the moves into a state go on to those before it, and its column how often it is come to until then.

    Returns where it is left for. What leaves it is a sum of its moves: nothing is subtracted, so no digits are lost.
    """
    leaving = moves[last, :last].sum()
    shares = np.asarray(moves[last, :last] / leaving)
    sources = np.flatnonzero(moves[:last, last])
    targets = np.flatnonzero(shares)
    moves[np.ix_(sources, targets)] += moves[sources, last, np.newaxis] * shares[targets]
    moves[sources, last] /= leaving
    return shares


def _solved(matrix: Any, right: FloatArray) -> FloatArray:
    """The solution, not negative, of a sparse system whose matrix has positive entries on its diagonal alone."""
    from scipy.sparse.linalg import splu

    try:
        found = splu(sp.csc_array(matrix)).solve(right)
    except RuntimeError:  # no other sign of a singular factor
        raise _too_rare() from None
    if not np.abs(found).max() < 1 / SMALLEST_PROBABILITY:
        raise _too_rare()
    return np.maximum(found, 0.0)  # rounding may leave a state that is hardly visited a hair below


def _too_rare() -> StochasticError:
    return StochasticError(
        "transition matrix: some moves are too rare for floating point to say where the chain comes to rest; "
        "raise its smallest probabilities or set them to 0"
    )
