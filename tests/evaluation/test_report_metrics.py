from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dphmm.errors import InvalidInputError
from dphmm.evaluation.report import bootstrap


def test_interval_matches_scipy():
    """Both are random: the ends agree within a tenth of the interval.

    This is more than six standard errors of an end.
    """
    values = np.random.default_rng(3).gamma(2.0, size=40)
    _, low, high = bootstrap(values)
    other = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=5).confidence_interval
    assert abs(low - other.low) < 0.1 * (other.high - other.low)
    assert abs(high - other.high) < 0.1 * (other.high - other.low)


@pytest.mark.slow
def test_bootstrap_resamples_whole_sequences():
    """Timesteps within a sequence are equal: as independent, the interval would be narrower."""
    rows = np.repeat(np.random.default_rng(4).normal(size=(30, 1)), 100, axis=1)
    _, low, high = bootstrap(rows.mean(axis=1))
    _, narrow_low, narrow_high = bootstrap(rows.ravel())
    assert high - low > 5 * (narrow_high - narrow_low)


def test_interval_is_reproducible_and_contains_mean():
    values = np.random.default_rng(5).normal(size=(12, 7))
    first, second = bootstrap(values), bootstrap(values)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert (first[1] <= first[0]).all()
    assert (first[0] <= first[2]).all()


def test_interval_of_one_sequence_has_no_width():
    assert bootstrap([2.5]) == (2.5, 2.5, 2.5)


def test_interval_of_infinite_value_is_infinite():
    values = np.array([[1.0, np.inf], [2.0, 3.0], [3.0, 4.0]])
    with np.errstate(all="raise"):
        mean, low, high = bootstrap(values)
    assert (mean[1], low[1], high[1]) == (np.inf, np.inf, np.inf)
    assert (mean[0], low[0], high[0]) == bootstrap(values[:, 0])


def test_bootstrap_of_no_values_raises():
    with pytest.raises(InvalidInputError):
        bootstrap([])
