"""A series under a scheme: what is given again, what is fresh, and with which noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dphmm.errors import BudgetError, CoordinateError
from dphmm.landmarks import Adaptive, laplace, planar_laplace, release_series, skip, uniform
from tests.sizes import fewer


def exact(value, epsilon):
    return value


def test_skipped_landmarks_repeat_the_last_release_and_a_first_one_takes_the_next():
    out = release_series([10.0, 11.0, 12.0, 13.0, 14.0], skip(range(5), [0, 2, 3], 1.0), exact)
    assert out.values.ravel().tolist() == [11.0, 11.0, 11.0, 11.0, 14.0]
    assert out.published.tolist() == [False, True, False, False, True]


def test_the_value_of_a_skipped_landmark_changes_nothing():
    budget = skip(range(5), [0, 2, 3], 1.0)
    one = release_series([10.0, 11, 12, 13, 14], budget, laplace(1.0, rng=1))
    two = release_series([-9.0, 11, 99, -4, 14], budget, laplace(1.0, rng=1))
    np.testing.assert_array_equal(one.values, two.values)


def test_noise_has_the_scale_of_the_step():
    """Kolmogorov-Smirnov test, alpha 1e-4, 20 000 values, every day 6 000, seed 4; half the scale must fail."""
    size = fewer(20_000, 6_000)
    budget = uniform(range(size), range(3), 2.0)
    noise = release_series(np.zeros(size), budget, laplace(3.0, rng=4)).values.ravel()
    assert stats.kstest(noise, stats.laplace(scale=6.0).cdf).pvalue > 1e-4
    assert stats.kstest(noise, stats.laplace(scale=3.0).cdf).pvalue < 1e-4


def test_adaptive_drives_a_vector_series():
    walk = np.cumsum(np.random.default_rng(0).normal(0, 1, (60, 2)), axis=0)
    scheme = Adaptive(range(60), range(0, 60, 7), 5.0, sensitivity=1.0, rng=2)
    out = release_series(walk, scheme, laplace(1.0, rng=3))
    assert out.values.shape == (60, 2)
    repeated = ~out.published
    assert repeated.any()
    np.testing.assert_array_equal(out.values[1:][repeated[1:]], out.values[:-1][repeated[1:]])
    np.testing.assert_array_equal(out.budget.epsilons > 0, out.published)


def test_impossible_series_are_refused():
    with pytest.raises(CoordinateError, match="2 values and 3"):
        release_series([1.0, 2.0], uniform([1, 2, 3], [], 1.0), exact)
    with pytest.raises(CoordinateError, match="2 values and 3"):
        release_series([1.0, 2.0], Adaptive([1, 2, 3], [], 1.0, sensitivity=1.0), exact)
    with pytest.raises(BudgetError, match="nothing can be released"):
        release_series([1.0, 2.0], skip([1, 2], [1, 2], 1.0), exact)
    with pytest.raises(BudgetError, match="sensitivity"):
        laplace(0.0)


def test_planar_noise_has_the_length_of_the_step():
    """Kolmogorov-Smirnov test, alpha 1e-4, 20 000 values, every day 6 000, seed 4; half the scale must fail."""
    size = fewer(20_000, 6_000)
    budget = uniform(range(size), range(3), 2.0)
    places = np.random.default_rng(0).normal(0, 5, (size, 2))
    noise = release_series(places, budget, planar_laplace(3.0, rng=4)).values - places
    length = np.hypot(*noise.T)
    assert stats.kstest(length, stats.gamma(2, scale=6.0).cdf).pvalue > 1e-4
    assert stats.kstest(length, stats.gamma(2, scale=3.0).cdf).pvalue < 1e-4


@pytest.mark.parametrize("scheme", ["skip", "uniform", "adaptive"])
def test_a_trajectory_goes_through_planar_laplace(scheme):
    walk = np.cumsum(np.random.default_rng(0).normal(0, 0.1, (60, 2)), axis=0)
    marks = range(0, 60, 7)
    made = {"skip": skip, "uniform": uniform}
    rule = made[scheme](range(60), marks, 5.0) if scheme in made else Adaptive(range(60), marks, 5.0, 1.0, 0.5, rng=2)
    out = release_series(walk, rule, planar_laplace(1.0, rng=3))
    np.testing.assert_array_equal(out.budget.epsilons > 0, out.published)
    again = ~out.published
    again[0] = False
    np.testing.assert_array_equal(out.values[again], out.values[np.flatnonzero(again) - 1])
    assert out.published.all() == (scheme == "uniform")


def test_planar_noise_needs_a_length():
    with pytest.raises(BudgetError, match="unit is 0"):
        planar_laplace(0.0)
