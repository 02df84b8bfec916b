"""Backward matrices by Bayes' rule, against the joint distribution of whole paths."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import scipy.sparse as sp

from dphmm.errors import InvalidInputError, StochasticError
from dphmm.leakage import backward_leakage, loss
from dphmm.model import reverse, reverse_by_step
from tests.leakage.oracles import FIGURE_4, sample_matrix


def sum_paths(matrix: np.ndarray, initial: np.ndarray, steps: int, time: int) -> np.ndarray:
    """Sum all paths: joint distribution of the states at ``time + 1`` (rows) and ``time``."""
    table = np.zeros((len(initial), len(initial)))
    for path in product(range(len(initial)), repeat=steps):
        weight = initial[path[0]]
        for before, after in pairwise(path):
            weight *= matrix[before, after]
        table[path[time + 1], path[time]] += weight
    return table


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_reversed_matrices_match_conditioning_on_paths(kind):
    matrix, initial = sample_matrix(3, seed=2, zeros=0.2), np.array([0.7, 0.0, 0.3])
    matrices = list(reverse_by_step(kind(matrix), initial, 5))
    assert len(matrices) == 4
    for time, form in enumerate(matrices):
        table = sum_paths(matrix, initial, 5, time)
        reached = table.sum(axis=1) > 0
        expected = table[reached] / table[reached].sum(axis=1, keepdims=True)
        dense = form.toarray() if sp.issparse(form) else form
        np.testing.assert_allclose(dense[reached], expected, rtol=1e-13, atol=1e-300)
        np.testing.assert_allclose(dense.sum(axis=1), 1.0, rtol=1e-13)


def test_stationary_chain_has_one_backward_matrix():
    matrix = np.array(FIGURE_4)
    values, vectors = np.linalg.eig(matrix.T)
    stationary = np.real(vectors[:, np.argmax(np.real(values))])
    stationary /= stationary.sum()
    first, *others = reverse_by_step(matrix, stationary, 6)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-12)
    np.testing.assert_allclose(reverse(matrix, stationary), first, rtol=1e-15)


def test_symmetric_chain_from_uniform_is_its_own_reverse():
    symmetric = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]])
    np.testing.assert_allclose(reverse(symmetric, np.full(3, 1 / 3)), symmetric, rtol=1e-14)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
def test_unreachable_states_do_not_change_loss(kind):
    matrix = np.array([[0.6, 0.4, 0, 0], [0.3, 0.7, 0, 0], [0.1, 0.2, 0.3, 0.4], [0, 0, 0.5, 0.5]])
    initial = np.array([0.5, 0.5, 0.0, 0.0])
    whole = reverse(kind(matrix), initial)
    part = reverse(matrix[:2, :2], initial[:2])
    for alpha in (0.1, 1.0, 5.0):
        assert loss(whole, alpha) == pytest.approx(loss(part, alpha), rel=1e-13)


def test_known_start_limits_backward_leakage():
    matrix, initial = np.array([[0.8, 0.2], [0.3, 0.7]]), [1.0, 0.0]
    leakage = backward_leakage(reverse_by_step(matrix, initial, 4), [0.5] * 4)
    assert leakage[1] == 0.5, "the first state is known, and its release does not reveal the second"
    assert leakage[2] > 0.5


def test_large_sparse_reverse_stays_sparse():
    n = 10_000
    chain = sp.csr_array(sp.diags_array([0.6, 0.4], offsets=[0, 1], shape=(n, n)))
    chain = sp.csr_array(sp.diags_array(1 / chain.sum(axis=1)) @ chain)
    initial = np.zeros(n)
    initial[:100] = 0.01
    for form in reverse_by_step(chain, initial, 4):
        assert sp.issparse(form)
        assert form.nnz < 4 * n


def test_underflow_raises():
    drifting = [[1.0, 1e-150, 0.0], [1.0, 0.0, 1e-150], [0.0, 0.0, 1.0]]
    with pytest.raises(StochasticError, match=r"state 2 .*1e-300"):
        list(reverse_by_step(drifting, [1.0, 0.0, 0.0], 4))


def test_invalid_input_raises():
    with pytest.raises(StochasticError, match=r"forward matrix must have rows that sum to 1, got 0\.9 in row 0\b"):
        reverse([[0.5, 0.4], [0.5, 0.5]], [0.5, 0.5])
    with pytest.raises(StochasticError, match="initial distribution"):
        reverse(FIGURE_4, [0.5, 0.5])
    with pytest.raises(InvalidInputError, match="steps must be a positive integer"):
        reverse_by_step(FIGURE_4, [0.2, 0.3, 0.5], 0)
