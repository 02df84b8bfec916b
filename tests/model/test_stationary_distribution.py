"""Stationary distributions, against matrix powers and exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import StochasticError
from dphmm.model import compute_stationary_distribution


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
