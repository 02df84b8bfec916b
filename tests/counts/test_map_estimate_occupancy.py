"""Distribution of one user's place: powers of the matrix, and a support without underflow."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.counts.map_estimate import build_first_distribution, compute_occupancy
from dphmm.counts.noisy_stream import as_transition


@pytest.mark.parametrize("size", [3, 300])
@pytest.mark.parametrize("steps", [1, 2, 7, 33])
def test_rows_are_first_row_times_matrix_powers(size, steps):
    rng = np.random.default_rng(size)
    matrix = rng.dirichlet(np.ones(size), size=size)
    first = rng.dirichlet(np.ones(size))
    occupancies = compute_occupancy(first, as_transition(matrix, size), steps)
    for t in range(steps):
        np.testing.assert_allclose(occupancies.probabilities[t], first @ np.linalg.matrix_power(matrix, t), rtol=1e-10)
    assert occupancies.possible.all()


@pytest.mark.parametrize("size", [40, 300])
def test_support_follows_structure_despite_underflow(size):
    ladder = np.eye(size) + np.eye(size, k=1) * 1e-40
    ladder /= ladder.sum(axis=1, keepdims=True)
    occupancies = compute_occupancy(np.eye(size)[0], as_transition(ladder, size), 30)
    for t in range(30):
        assert occupancies.possible[t].tolist() == [place <= t for place in range(size)]
    assert occupancies.probabilities[29, 20] == 0.0
    assert np.isfinite(occupancies.log_probabilities[29, 20])
    assert occupancies.log_probabilities[29, 35] == -np.inf


def test_frequency_prior_is_positive_part_of_first_row():
    assert build_first_distribution(np.array([[3.0, -1.0, 1.0]]), "frequency").tolist() == [0.75, 0.0, 0.25]
    assert build_first_distribution(np.array([[-3.0, -1.0]]), "frequency").tolist() == [0.5, 0.5]
