"""The published algorithms, against the paper's numbers and exact enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.leakage import published
from tests.leakage.oracles import ABSORBING, FIGURE_4, compute_exact_loss, sample_matrix


def test_algorithm_2_matches_example_of_paper():
    pairs = published.run_algorithm_2([[0.2, 0.3, 0.5], [0.1, 0.0, 0.9], [0.2, 0.3, 0.5]])
    np.testing.assert_allclose(pairs.q[0], [0.3, 0.5, 0.0], rtol=1e-15)
    np.testing.assert_allclose(pairs.d[0], [0.0, 0.1, 0.0], rtol=1e-15)
    assert pairs.a[0, 0] == math.inf
    assert pairs.a[0, 1] == pytest.approx(1.47, abs=0.005)


@pytest.mark.parametrize("seed", range(3))
def test_algorithms_1_3_and_5_match_exact_enumeration(seed):
    matrix = sample_matrix(5, seed, zeros=0.2)
    pairs = published.run_algorithm_2(matrix)
    function = published.run_algorithm_4(pairs, 1e-6, 20.0)
    for alpha in (0.01, 1.0, 7.0):
        expected = compute_exact_loss(matrix, alpha)
        assert published.run_algorithm_1(matrix, alpha) == pytest.approx(expected, rel=1e-12)
        assert published.run_algorithm_3(pairs, alpha)[0] == pytest.approx(expected, rel=1e-12)
        assert published.run_algorithm_5(function, alpha) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("matrix", "epsilon", "value"),
    [
        (ABSORBING, 0.15, 1.192242),
        (ABSORBING, 0.23, math.inf),
        ([[0.8, 0.2], [0.1, 0.9]], 0.23, 0.792337),
        ([[0.8, 0.2], [0.2, 0.8]], 0.23, 0.561073),
        (np.full((3, 3), 1 / 3), 0.2, 0.2),
    ],
)
def test_algorithm_6_matches_published_suprema(matrix, epsilon, value):
    assert published.run_algorithm_6(published.run_algorithm_2(matrix), epsilon) == pytest.approx(value, abs=5e-7)


def test_equal_rows_have_zero_loss():
    pairs = published.run_algorithm_2(np.full((4, 4), 0.25))
    assert published.run_algorithm_3(pairs, 3.0) == (0.0, 0.0, 0.0)
    assert published.run_algorithm_5(published.run_algorithm_4(pairs, 0.1, 5.0), 3.0) == 0.0


def test_figure_4_has_two_pieces():
    function = published.run_algorithm_4(published.run_algorithm_2(FIGURE_4), 1e-6, 10.0)
    assert len(set(zip(function.q, function.d, strict=True))) == 2
