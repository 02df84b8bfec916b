"""The comparison of estimators equals the estimators on the same releases."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.counts import ESTIMATORS, compare, estimate, least_squares, maximum_likelihood, post_process, release
from dphmm.errors import BudgetError, ConfigurationError, CountError
from dphmm.random import as_random_source

MATRIX = np.array([[0.2, 0.8, 0.0], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]])
TRUE = np.array([[8, 1, 1], [3, 6, 1], [2, 3, 5], [4, 3, 3]])


def test_each_estimator_equals_its_function():
    noisy = release(TRUE, 1.0, rng=3)
    expected = {
        "coupled": post_process(noisy, MATRIX, 10, 2.0, coupled=True),
        "online": post_process(noisy, MATRIX, 10, 2.0, coupled="online"),
        "single": post_process(noisy, MATRIX, 10, 2.0),
        "least-squares": least_squares(noisy, 10),
        "maximum-likelihood": maximum_likelihood(noisy, 10),
    }
    assert set(expected) == set(ESTIMATORS)
    for name, values in expected.items():
        np.testing.assert_array_equal(estimate(name, noisy, MATRIX, 10, 2.0), values)
        assert (estimate(name, noisy, MATRIX, 10, 2.0, integer=True).sum(axis=1) == 10).all()


def test_compare_returns_errors_of_consecutive_releases():
    errors = compare(TRUE, [1.0, 0.5, 1.0, 2.0], MATRIX, runs=2, rng=5)
    source = as_random_source(5)
    for run in range(2):
        noisy = release(TRUE, [1.0, 0.5, 1.0, 2.0], source)
        assert errors["noisy"][run] == np.mean((noisy - TRUE) ** 2)
        single = post_process(noisy, MATRIX, 10, [2.0, 4.0, 2.0, 1.0])
        assert errors["single"][run] == np.mean((single - TRUE) ** 2)


def test_transition_is_required_only_by_estimators_with_mobility():
    assert set(compare(TRUE, 1, None, names=["least-squares"], rng=1)) == {"noisy", "least-squares"}
    with pytest.raises(ConfigurationError, match="needs transitions: use a model or a matrix"):
        estimate("single", TRUE, None, 10, 2.0)


def test_invalid_comparison_raises():
    with pytest.raises(ConfigurationError, match="name must be one of"):
        estimate("best", TRUE, MATRIX, 10, 2.0)
    with pytest.raises(ConfigurationError, match="runs must be an integer in"):
        compare(TRUE, 1, MATRIX, runs=0)
    with pytest.raises(BudgetError, match=r"epsilon .*\b0\b"):
        compare(TRUE, 0, MATRIX)
    with pytest.raises(CountError, match="-1"):
        compare([[-1, 2]], 1, np.eye(2))
