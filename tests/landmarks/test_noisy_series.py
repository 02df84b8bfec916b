"""Series under a scheme: repeated values, fresh values and their noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dphmm.errors import BudgetError, CoordinateError
from dphmm.landmarks import Adaptive, laplace_noise, planar_laplace, release_series, skip_scheme, uniform_scheme
from tests.sizes import choose_count


def return_value(value, epsilon):
    return value


def test_skipped_landmarks_repeat_last_release_and_leading_one_takes_next():
    out = release_series([10.0, 11.0, 12.0, 13.0, 14.0], skip_scheme(range(5), [0, 2, 3], 1.0), return_value)
    assert out.values.ravel().tolist() == [11.0, 11.0, 11.0, 11.0, 14.0]
    assert out.published.tolist() == [False, True, False, False, True]


def test_values_of_skipped_landmarks_do_not_matter():
    budget = skip_scheme(range(5), [0, 2, 3], 1.0)
    first = release_series([10.0, 11, 12, 13, 14], budget, laplace_noise(1.0, rng=1))
    second = release_series([-9.0, 11, 99, -4, 14], budget, laplace_noise(1.0, rng=1))
    np.testing.assert_array_equal(first.values, second.values)


@pytest.mark.slow
def test_noise_has_scale_of_step():
    """Kolmogorov-Smirnov test, alpha 1e-4, seed 4. Half the scale must fail.

    20,000 values, 6,000 in the fast tests.
    """
    size = choose_count(20_000, 6_000)
    budget = uniform_scheme(range(size), range(3), 2.0)
    noise = release_series(np.zeros(size), budget, laplace_noise(3.0, rng=4)).values.ravel()
    assert stats.kstest(noise, stats.laplace(scale=6.0).cdf).pvalue > 1e-4
    assert stats.kstest(noise, stats.laplace(scale=3.0).cdf).pvalue < 1e-4


def test_adaptive_scheme_accepts_vector_series():
    walk = np.cumsum(np.random.default_rng(0).normal(0, 1, (60, 2)), axis=0)
    scheme = Adaptive(range(60), range(0, 60, 7), 5.0, sensitivity=1.0, rng=2)
    out = release_series(walk, scheme, laplace_noise(1.0, rng=3))
    assert out.values.shape == (60, 2)
    repeated = ~out.published
    assert repeated.any()
    np.testing.assert_array_equal(out.values[1:][repeated[1:]], out.values[:-1][repeated[1:]])
    np.testing.assert_array_equal(out.budget.epsilons > 0, out.published)


def test_invalid_series_raises():
    with pytest.raises(CoordinateError, match=r"2 values .*\b3\b"):
        release_series([1.0, 2.0], uniform_scheme([1, 2, 3], [], 1.0), return_value)
    with pytest.raises(CoordinateError, match=r"2 values .*\b3\b"):
        release_series([1.0, 2.0], Adaptive([1, 2, 3], [], 1.0, sensitivity=1.0), return_value)
    with pytest.raises(BudgetError, match="positive budget: keep one"):
        release_series([1.0, 2.0], skip_scheme([1, 2], [1, 2], 1.0), return_value)
    with pytest.raises(BudgetError, match="sensitivity"):
        laplace_noise(0.0)


@pytest.mark.slow
def test_planar_noise_has_length_of_step():
    """Kolmogorov-Smirnov test, alpha 1e-4, seed 4. Half the scale must fail.

    20,000 values, 6,000 in the fast tests.
    """
    size = choose_count(20_000, 6_000)
    budget = uniform_scheme(range(size), range(3), 2.0)
    places = np.random.default_rng(0).normal(0, 5, (size, 2))
    noise = release_series(places, budget, planar_laplace(3.0, rng=4)).values - places
    length = np.hypot(*noise.T)
    assert stats.kstest(length, stats.gamma(2, scale=6.0).cdf).pvalue > 1e-4
    assert stats.kstest(length, stats.gamma(2, scale=3.0).cdf).pvalue < 1e-4


@pytest.mark.parametrize("scheme", ["skip", "uniform", "adaptive"])
def test_trajectory_is_released_with_planar_laplace(scheme):
    walk = np.cumsum(np.random.default_rng(0).normal(0, 0.1, (60, 2)), axis=0)
    marks = range(0, 60, 7)
    schemes = {"skip": skip_scheme, "uniform": uniform_scheme}
    rule = (
        schemes[scheme](range(60), marks, 5.0)
        if scheme in schemes
        else Adaptive(range(60), marks, 5.0, 1.0, 0.5, rng=2)
    )
    out = release_series(walk, rule, planar_laplace(1.0, rng=3))
    np.testing.assert_array_equal(out.budget.epsilons > 0, out.published)
    again = ~out.published
    again[0] = False
    np.testing.assert_array_equal(out.values[again], out.values[np.flatnonzero(again) - 1])
    assert out.published.all() == (scheme == "uniform")


def test_planar_noise_with_invalid_unit_raises():
    with pytest.raises(BudgetError, match="unit must be a positive, finite number"):
        planar_laplace(0.0)
