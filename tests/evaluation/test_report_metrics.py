from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dphmm.errors import InvalidInputError
from dphmm.evaluation.report import bootstrap


def test_interval_is_that_of_scipy():
    """Both are random: the ends agree to a tenth of the interval, which is over six standard errors of an end here."""
    values = np.random.default_rng(3).gamma(2.0, size=40)
    _, low, high = bootstrap(values)
    other = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=5).confidence_interval
    assert abs(low - other.low) < 0.1 * (other.high - other.low)
    assert abs(high - other.high) < 0.1 * (other.high - other.low)


def test_whole_sequences_are_drawn_again():
    """Steps within a sequence move together: as if independent, the interval would be a tenth as wide."""
    rows = np.repeat(np.random.default_rng(4).normal(size=(30, 1)), 100, axis=1)
    _, low, high = bootstrap(rows.mean(axis=1))
    _, narrow_low, narrow_high = bootstrap(rows.ravel())
    assert high - low > 5 * (narrow_high - narrow_low)


def test_interval_is_the_same_every_time_and_holds_the_mean():
    values = np.random.default_rng(5).normal(size=(12, 7))
    first, second = bootstrap(values), bootstrap(values)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert (first[1] <= first[0]).all()
    assert (first[0] <= first[2]).all()


def test_one_sequence_has_no_width():
    assert bootstrap([2.5]) == (2.5, 2.5, 2.5)


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(InvalidInputError):
        bootstrap([])
