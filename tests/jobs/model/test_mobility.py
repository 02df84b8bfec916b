"""Tests of mobility for leakage: results match matrix-by-matrix products in less time."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.errors import BudgetError
from dphmm.jobs.model.mobility import UNKNOWN, Budgets, Mobility
from dphmm.leakage import LossFunction, backward_leakage, compute_leakage
from tests.sizes import mark_slow


def build_chain(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a transition matrix and an initial distribution."""
    rng = np.random.default_rng(5)
    if kind == "a line, from its end":  # distant rows are disjoint, but only once their states are reachable
        matrix = sum(np.diag(np.full(9 - abs(k), 1.0), k) for k in (-1, 0, 1))
        return matrix / matrix.sum(axis=1, keepdims=True), np.eye(9)[0]
    if kind == "to and fro":  # the reachable set never becomes constant
        return np.array([[0, 1.0], [1, 0]]), np.array([1.0, 0])
    if kind == "to and fro in two, and between":
        return np.array([[0, 0.5, 0.5], [1, 0, 0], [1, 0, 0]]), np.array([1.0, 0, 0])
    if kind == "one way":  # rows of states that are no longer reachable
        return np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1.0]]), np.array([1.0, 0, 0])
    matrix = rng.random((6, 6)) + 0.05
    if kind == "some zeros":
        matrix[np.abs(np.subtract.outer(range(6), range(6))) > 3] = 0
    return matrix / matrix.sum(axis=1, keepdims=True), rng.dirichlet(np.ones(6))


KINDS = ("a line, from its end", "to and fro", "to and fro in two, and between", "one way", "some zeros", "none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sparse"),
    [(kind, place % 2 == 0) for place, kind in enumerate(KINDS)]
    + [mark_slow(kind, place % 2 == 1) for place, kind in enumerate(KINDS)],
)
def test_backward_leakage_matches_explicit_matrices(kind, sparse):
    matrix, initial = build_chain(kind)
    moves = Mobility(sp.csr_array(matrix) if sparse else matrix, initial)
    for times in (1, 2, 3, 5, 120):
        budgets = np.tile([0.3, 0.0, 0.1, 0.7], 30)[:times]
        expected = backward_leakage(moves.iterate_backward_matrices(times), budgets)
        pasts = list(moves.iterate_backward_losses(times, budgets.sum() + 1))
        assert len(pasts) == times - 1
        np.testing.assert_allclose(backward_leakage(iter(pasts), budgets), expected, rtol=1e-12)
    if not kind.startswith("to and fro"):
        functions = [past for past in pasts if isinstance(past, LossFunction)]
        assert functions, "one function is reused for all later times"
        assert all(function is functions[0] for function in functions)


def test_leakage_of_learned_model_stops_computing_matrices_after_convergence(monkeypatch):
    """One matrix per minute would take seconds for a lattice of 900 places and two days."""
    side = 30
    line = sp.diags_array([np.ones(side - 1), np.ones(side), np.ones(side - 1)], offsets=[-1, 0, 1])
    grid = sp.csr_array(sp.kron(line, line))
    grid.data /= np.repeat(grid.sum(axis=1), np.diff(grid.indptr))
    times, matrices = 3_000, []
    moves = Mobility(grid, np.full(side**2, 1 / side**2))
    whole = Mobility.iterate_backward_matrices
    monkeypatch.setattr(
        Mobility, "iterate_backward_matrices", lambda self, times: (matrices.append(1) or m for m in whole(self, times))
    )
    leakage = compute_leakage(moves.iterate_backward_losses(times, 1e6), None, np.full(times, 0.1))
    assert len(matrices) < 10
    np.testing.assert_allclose(leakage.backward[[0, 1, -1]], [0.1, 0.2, 0.1 * times], rtol=1e-9)


def test_file_of_budgets_is_read_once(tmp_path):
    """A file that can be read once only, such as a pipe."""
    path = tmp_path / "budgets.csv"
    path.write_text("0.25\n1/3\n1\n", encoding="utf-8")
    budgets = Budgets(epsilons=path)
    budgets.check(UNKNOWN)
    path.unlink()
    assert budgets.resolve(3, UNKNOWN) == [Fraction(1, 4), Fraction(1, 3), 1]
    with pytest.raises(BudgetError, match="got 3 budgets"):
        budgets.resolve(2, UNKNOWN)
