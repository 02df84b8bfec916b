"""The stationary distribution of a Markov chain."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import StochasticError
from dphmm.stochastic_matrix import MIN_PROBABILITY, MatrixLike, as_stochastic
from dphmm.validation import check_arguments

# Up to this number of states are eliminated one by one, which takes a second. Larger systems use sparse LU.
_MAX_ELIMINATED_STATES = 600


@check_arguments
def compute_stationary_distribution(transition: MatrixLike) -> FloatArray:
    """Compute the stationary distribution ``p P = p`` of a chain with a uniform start.

    Parameters
    ----------
    transition
        ``(n, n)`` row-stochastic, dense or scipy sparse. If there are several closed classes, each has the probability
        that the chain is absorbed in it. For periodic classes the result is the average over time.

    Returns
    -------
    FloatArray
        ``(n,)``; it sums to one.

    Raises
    ------
    StochasticError
        If the matrix is invalid, or parts of the chain are connected by moves so rare that the result is not
        stationary.

    Notes
    -----
    The system is solved directly, independent of the mixing time. Up to 600 states of a closed class, or transient
    states, are eliminated one by one without subtractions (Grassmann, Taksar and Heyman, 1985). Every probability,
    however small, then has a relative precision close to that of floating point. For larger classes digits are lost if
    groups of states are connected by moves that are rarer by a factor close to ``1e-16`` than those within the groups.

    Examples
    --------
    >>> compute_stationary_distribution([[.8, .2], [.4, .6]]).round(4)
    array([0.6667, 0.3333])
    """
    from scipy.sparse.csgraph import connected_components  # imports solvers that most commands do not need

    matrix = as_stochastic(transition, compressed=True)
    size = matrix.shape[0]
    classes, member = connected_components(matrix, connection="strong")
    sources, targets = matrix.nonzero()
    # A class is closed if no move leads out of it; all mass ends up in closed classes.
    closed = np.ones(classes, dtype=np.bool_)
    closed[member[sources[member[sources] != member[targets]]]] = False
    moves = sp.csr_array(matrix - sp.diags_array(matrix.diagonal()))
    # The sum of the moves instead of 1 - P_ii, which would lose digits in states that are rarely left.
    leaving = sp.csr_array(sp.diags_array(moves.sum(axis=1)) - moves)
    masses_at_rest = np.full(size, 1.0 / size)
    passing = np.flatnonzero(~closed[member])
    if passing.size:
        if passing.size <= _MAX_ELIMINATED_STATES:
            masses_at_rest = _absorb(moves, passing, masses_at_rest)
        else:
            visits = _solve_sparse(leaving[passing][:, passing].T, masses_at_rest[passing])
            masses_at_rest += visits @ moves[passing]
        masses_at_rest[passing] = 0.0
    masses = np.bincount(member, masses_at_rest, minlength=classes)
    order = np.argsort(member, kind="stable")
    for states in np.split(order, np.cumsum(np.bincount(member))[:-1]):
        if states.size == 1 or not closed[member[states[0]]]:
            continue
        if states.size <= _MAX_ELIMINATED_STATES:
            shares = _compute_stationary_shares(moves[states][:, states].toarray())
        else:
            balance: Any = leaving[states][:, states].T.tocsr()
            shares = np.append(1.0, _solve_sparse(balance[1:, 1:], -balance[1:, [0]].toarray().ravel()))
        masses_at_rest[states] = masses[member[states[0]]] * shares / shares.sum()
    masses_at_rest /= masses_at_rest.sum()
    if not np.allclose(masses_at_rest @ moves, masses_at_rest * moves.sum(axis=1), rtol=1e-6, atol=1e-15):
        raise _build_rarity_error()
    return np.asarray(masses_at_rest)


def _compute_stationary_shares(moves: FloatArray) -> FloatArray:
    """Return the stationary distribution of one closed class, up to a factor."""
    # Grassmann, Taksar and Heyman: states are censored one by one from the last on, in O(n³) time and in place. Shares
    # are divided by their largest after each state, because their ratios may exceed the range of floats.
    with np.errstate(all="ignore"):
        for last in range(len(moves) - 1, 0, -1):
            _eliminate(moves, last)
        shares = np.ones(len(moves))
        for state in range(1, len(moves)):
            shares[state] = shares[:state] @ moves[:state, state]
            shares[: state + 1] /= shares[: state + 1].max()
    if not np.isfinite(shares).all():
        raise _build_rarity_error()
    return shares


def _absorb(moves: Any, passing: IntArray, masses: FloatArray) -> FloatArray:
    """Move the masses of transient states to the states that absorb them."""
    kept = np.setdiff1d(np.unique(moves[passing].indices), passing)
    order = np.concatenate([kept, passing])
    rows = np.vstack([np.zeros((kept.size, order.size)), moves[passing][:, order].toarray()])
    passed = masses.copy()
    with np.errstate(all="ignore"):
        for last in range(order.size - 1, kept.size - 1, -1):
            shares = _eliminate(rows, last)
            passed[order[:last]] += passed[order[last]] * shares
    if not np.isfinite(passed).all():
        raise _build_rarity_error()
    return passed


def _eliminate(moves: FloatArray, last: int) -> FloatArray:
    """Censor the last state: redirect the moves into it, and count expected visits.

    The column of the state is replaced by the expected number of visits. Returns the distribution of the next state.
    The probability of leaving is a sum of moves. Nothing is subtracted, so no digits are lost.
    """
    leaving = moves[last, :last].sum()
    shares = np.asarray(moves[last, :last] / leaving)
    sources = np.flatnonzero(moves[:last, last])
    targets = np.flatnonzero(shares)
    moves[np.ix_(sources, targets)] += moves[sources, last, np.newaxis] * shares[targets]
    moves[sources, last] /= leaving
    return shares


def _solve_sparse(matrix: Any, right: FloatArray) -> FloatArray:
    """Return the non-negative solution of a sparse system with an M-matrix."""
    from scipy.sparse.linalg import splu

    try:
        solution = splu(sp.csc_array(matrix)).solve(right)
    except RuntimeError:  # SciPy reports a singular factor in no other way
        raise _build_rarity_error() from None
    if not np.abs(solution).max() < 1 / MIN_PROBABILITY:
        raise _build_rarity_error()
    return np.maximum(solution, 0.0)  # rounding may make rarely visited states slightly negative


def _build_rarity_error() -> StochasticError:
    return StochasticError(
        "the transition matrix has moves that are too rare to compute its stationary distribution in floating point: "
        "raise its smallest probabilities or set them to 0"
    )
