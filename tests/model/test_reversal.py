"""Backward matrices by Bayes' rule, against the joint distribution of whole paths."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import InvalidInputError, StochasticError
from dphmm.leakage import backward_leakage, loss
from dphmm.model import compute_stationary_distribution, reverse, reverse_by_step
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


@given(st.integers(0, 10**6), st.integers(2, 8))
def test_stationary_distribution_matches_uniform_time_average(seed, size):
    """Chains have transient states, several closed classes and cycles. Oracle: matrix powers."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, size)) * (rng.random((size, size)) < 0.3)
    matrix[np.arange(size), rng.integers(0, size, size)] += 0.2
    matrix /= matrix.sum(axis=1, keepdims=True)
    lazy = np.linalg.matrix_power((matrix + np.eye(size)) / 2, 2**20)
    for kind in (np.asarray, sp.csr_array):
        distribution = compute_stationary_distribution(kind(matrix))
        np.testing.assert_allclose(distribution, lazy.mean(axis=0), rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(distribution @ matrix, distribution, rtol=1e-12, atol=1e-15)


def test_stationary_distribution_of_slow_chain_is_accurate():
    slow = [[1 - 3e-12, 3e-12, 0], [1e-12, 1 - 1e-12, 0], [0, 0, 1]]
    expected = 2 / 3 * np.array([1e-12, 3e-12]) / 4e-12
    np.testing.assert_allclose(compute_stationary_distribution(slow), [*expected, 1 / 3], rtol=1e-12)


def solve_stationary_exactly(matrix: np.ndarray) -> np.ndarray:
    """Solve for the stationary distribution of an irreducible chain in rational numbers."""
    size = len(matrix)
    rows = [[Fraction(matrix[j, i]) if i != j else Fraction(0) for j in range(size)] for i in range(size)]
    for i in range(size):
        rows[i][i] = -sum((Fraction(matrix[i, j]) for j in range(size) if j != i), Fraction(0))
    rows[-1] = [Fraction(1)] * size
    table = [[*row, Fraction(int(i == size - 1))] for i, row in enumerate(rows)]
    for pivot in range(size):
        chosen = next(i for i in range(pivot, size) if table[i][pivot] != 0)
        table[pivot], table[chosen] = table[chosen], table[pivot]
        table[pivot] = [value / table[pivot][pivot] for value in table[pivot]]
        for i in range(size):
            if i != pivot and table[i][pivot] != 0:
                factor = table[i][pivot]
                table[i] = [a - factor * b for a, b in zip(table[i], table[pivot], strict=True)]
    return np.array([float(row[-1]) for row in table])


@given(st.integers(0, 10**6), st.integers(2, 9))
def test_stationary_distribution_matches_exact_rationals(seed, size):
    """Transitions of 1e-12 and 1e-30 occur. Probabilities below 1e-16 keep their digits."""
    rng = np.random.default_rng(seed)
    matrix = rng.random((size, size)) * rng.choice([0, 1e-30, 1e-12, 1], (size, size))
    matrix[np.arange(size), (np.arange(size) + 1) % size] += rng.choice([1e-12, 1], size)
    matrix[np.arange(size), np.arange(size)] = 0
    matrix /= 2 * matrix.sum(axis=1, keepdims=True) * rng.choice([1, 1e6], (size, 1))
    matrix[np.arange(size), np.arange(size)] = 1 - matrix.sum(axis=1)
    expected = solve_stationary_exactly(matrix)
    np.testing.assert_allclose(compute_stationary_distribution(matrix), expected, rtol=1e-13)


def test_rarely_reached_closed_class_is_accurate():
    """From state 0 to state 1 or, with probability 1e-12, to state 2. Both are absorbing."""
    matrix = np.array([[0.5, 0.5 - 1e-12, 1e-12], [0, 1, 0], [0, 0, 1]])
    leaving = Fraction(matrix[0, 1]) + Fraction(matrix[0, 2])
    expected = [0, *(float(Fraction(1, 3) + Fraction(1, 3) * Fraction(matrix[0, i]) / leaving) for i in (1, 2))]
    np.testing.assert_allclose(compute_stationary_distribution(matrix), expected, rtol=1e-15)


def test_stationary_distribution_of_large_chain():
    side = 100
    line = sp.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(side, side))
    near = sp.csr_array(sp.kron(line, line))
    degrees = np.asarray(near.sum(axis=1)).ravel()
    distribution = compute_stationary_distribution(sp.diags_array(1 / degrees) @ near)
    np.testing.assert_allclose(distribution, degrees / degrees.sum(), rtol=1e-9)
    np.testing.assert_allclose(compute_stationary_distribution(sp.eye_array(5000)), np.full(5000, 1 / 5000), rtol=1e-14)


def test_stationary_distribution_of_invalid_matrix_raises():
    with pytest.raises(StochasticError, match="row 1"):
        compute_stationary_distribution([[0.5, 0.5], [0.5, 0.4]])
    with pytest.raises(StochasticError, match="too rare"):
        compute_stationary_distribution([[0.5, 0.5], [1e-320, 1.0]])
