"""How people move, as an account of leakage takes it: the same figures as matrix by matrix, in much less time."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.jobs.mobility import Mobility
from dphmm.leakage import LossFunction, account, backward
from tests.sizes import slow


def chain(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """A transition matrix and a first distribution."""
    rng = np.random.default_rng(5)
    if kind == "a line, from its end":  # rows far apart are disjoint, but not before people can be there
        matrix = sum(np.diag(np.full(9 - abs(k), 1.0), k) for k in (-1, 0, 1))
        return matrix / matrix.sum(axis=1, keepdims=True), np.eye(9)[0]
    if kind == "to and fro":  # where people can be never ceases to change
        return np.array([[0, 1.0], [1, 0]]), np.array([1.0, 0])
    if kind == "to and fro in two, and between":
        return np.array([[0, 0.5, 0.5], [1, 0, 0], [1, 0, 0]]), np.array([1.0, 0, 0])
    if kind == "one way":  # rows of states that nobody can be in any more
        return np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1.0]]), np.array([1.0, 0, 0])
    matrix = rng.random((6, 6)) + 0.05
    if kind == "some zeros":
        matrix[np.abs(np.subtract.outer(range(6), range(6))) > 3] = 0
    return matrix / matrix.sum(axis=1, keepdims=True), rng.dirichlet(np.ones(6))


KINDS = ("a line, from its end", "to and fro", "to and fro in two, and between", "one way", "some zeros", "none")


@pytest.mark.parametrize(
    ("kind", "sparse"),
    [(kind, place % 2 == 0) for place, kind in enumerate(KINDS)]
    + [slow(kind, place % 2 == 1) for place, kind in enumerate(KINDS)],
)
def test_backward_leakage_is_that_of_all_matrices_one_by_one(kind, sparse):
    matrix, initial = chain(kind)
    moves = Mobility(sp.csr_array(matrix) if sparse else matrix, initial)
    for times in (1, 2, 3, 5, 120):
        budgets = np.tile([0.3, 0.0, 0.1, 0.7], 30)[:times]
        expected = backward(moves.backwards(times), budgets)
        pasts = list(moves.pasts(times, budgets.sum() + 1))
        assert len(pasts) == times - 1
        np.testing.assert_allclose(backward(iter(pasts), budgets), expected, rtol=1e-12)
    if not kind.startswith("to and fro"):
        made = [past for past in pasts if isinstance(past, LossFunction)]
        assert made, "one function stands for all that follow"
        assert all(one is made[0] for one in made)


def test_months_of_a_learned_model_take_as_many_matrices_as_it_needs_to_settle(monkeypatch):
    """A lattice of 900 places, two days of minutes: one matrix for each would take seconds."""
    side = 30
    line = sp.diags_array([np.ones(side - 1), np.ones(side), np.ones(side - 1)], offsets=[-1, 0, 1])
    grid = sp.csr_array(sp.kron(line, line))
    grid.data /= np.repeat(grid.sum(axis=1), np.diff(grid.indptr))
    times, made = 3_000, []
    moves = Mobility(grid, np.full(side**2, 1 / side**2))
    whole = Mobility.backwards
    monkeypatch.setattr(Mobility, "backwards", lambda self, times: (made.append(1) or m for m in whole(self, times)))
    found = account(moves.pasts(times, 1e6), None, np.full(times, 0.1))
    assert len(made) < 10
    np.testing.assert_allclose(found.backward[[0, 1, -1]], [0.1, 0.2, 0.1 * times], rtol=1e-9)
