"""Where one user is: the powers of the matrix, and a support that no underflow can touch."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.counts.map_estimate import first_distribution, occupancy
from dphmm.counts.stream import as_transition


@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("steps", [1, 2, 7, 33])
def test_rows_are_the_first_one_times_powers_of_the_matrix(size, steps):
    rng = np.random.default_rng(size)
    matrix = rng.dirichlet(np.ones(size), size=size)
    first = rng.dirichlet(np.ones(size))
    made = occupancy(first, as_transition(matrix, size), steps)
    for t in range(steps):
        np.testing.assert_allclose(made.probabilities[t], first @ np.linalg.matrix_power(matrix, t), rtol=1e-10)
    assert made.possible.all()


@pytest.mark.parametrize("size", [40, 300])
def test_the_support_follows_the_structure_and_not_the_numbers(size):
    ladder = np.eye(size) + np.eye(size, k=1) * 1e-40
    ladder /= ladder.sum(axis=1, keepdims=True)
    made = occupancy(np.eye(size)[0], as_transition(ladder, size), 30)
    for t in range(30):
        assert made.possible[t].tolist() == [place <= t for place in range(size)]
    assert made.probabilities[29, 20] == 0.0
    assert np.isfinite(made.log_probabilities[29, 20])
    assert made.log_probabilities[29, 35] == -np.inf


def test_the_frequency_prior_is_the_positive_part_of_the_first_row():
    assert first_distribution(np.array([[3.0, -1.0, 1.0]]), "frequency").tolist() == [0.75, 0.0, 0.25]
    assert first_distribution(np.array([[-3.0, -1.0]]), "frequency").tolist() == [0.5, 0.5]
