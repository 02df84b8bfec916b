"""Noisy counts have the distributions required by their guarantee."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dphmm.counts import count_states, release
from dphmm.errors import BudgetError, ConfigurationError, CountError, StateError

ALPHA = 1e-4


def test_real_noise_is_laplace_with_scale_two_over_epsilon():
    """Kolmogorov-Smirnov test per time, alpha 1e-4, 20,000 counts, seed 1.

    Its broken variant with half the scale must fail.
    """
    true = np.full((2, 20_000), 3)
    noise = release(true, [0.5, 2.0], rng=1, mechanism="laplace") - true
    for row, scale in zip(noise, [4.0, 1.0], strict=True):
        assert stats.kstest(row, stats.laplace(scale=scale).cdf).pvalue > ALPHA
        assert stats.kstest(row, stats.laplace(scale=scale / 2).cdf).pvalue < ALPHA


def test_integer_noise_is_discrete_laplace_with_scale_two_over_epsilon():
    """Chi-squared test, alpha 1e-4, 20,000 counts, seed 2."""
    true = np.full((1, 20_000), 3)
    noisy = release(true, "0.8", rng=2)
    assert noisy.dtype == np.int64
    values = np.arange(-10, 11)
    q = math.exp(-0.4)
    chance = (1 - q) / (1 + q) * q ** np.abs(values)
    seen = np.array([(noisy - true == v).sum() for v in values])
    seen, chance = np.append(seen, true.size - seen.sum()), np.append(chance, 1 - chance.sum())
    assert stats.chisquare(seen, chance * true.size).pvalue > ALPHA


def test_release_accepts_fractions_and_repeats_with_same_seed():
    true = [[1, 2], [2, 1]]
    noisy = release(true, Fraction(1, 3), rng=5)
    assert (noisy == release(true, ["1/3", Fraction(1, 3)], rng=5)).all()


def test_default_noise_uses_exact_sampler_only(monkeypatch):
    """The exact sampler receives rational decays, and no other source of noise is called."""
    decays = []

    def record_decays(decay, count, source):
        decays.extend([decay] * count)
        return np.ones(count, dtype=np.int64)

    sampler = {"sample_discrete_laplace": record_decays, "laplace_noise": None}
    for name, other in sampler.items():
        monkeypatch.setitem(release.__globals__, name, other)
    assert release([[1, 2], [2, 1]], [0.1, "1/3"]).tolist() == [[2, 3], [3, 2]]
    assert decays == [Fraction(1, 20)] * 2 + [Fraction(1, 6)] * 2


@pytest.mark.parametrize(
    ("true", "epsilons", "error", "message"),
    [
        ([[1, -1]], 1.0, CountError, r"-1\.0 at time 0, place 1"),
        ([[1, 1], [1, 2]], 1.0, CountError, "one sum at all times, got 3 at time 1"),
        ([[0.5, 0.5]], 1.0, CountError, "integers"),
        ([[1, float("nan")]], 1.0, CountError, "nan"),
        ([1, 2], 1.0, CountError, "shape"),
        ([[1, 1]], 0.0, BudgetError, "0"),
        ([[1, 1]], [1.0, 2.0], BudgetError, "2 budgets"),
        ([[1, 1], [1, 1]], [1.0, -2.0], BudgetError, r"time 1 .*-2"),
        ([[1, 1]], 1e-15, BudgetError, "64 bits"),
        ([[2**53 + 2, 0]], 1.0, CountError, "at most"),
        ([["a", 1]], 1.0, CountError, "true must be an array of numbers"),
        ([[1, 1], [2]], 1.0, CountError, "true must be an array of numbers"),
    ],
)
def test_invalid_counts_or_budgets_raise(true, epsilons, error, message):
    with pytest.raises(error, match=message):
        release(true, epsilons, rng=1)


def test_unknown_mechanism_raises():
    with pytest.raises(ConfigurationError, match="mechanism must be one of lattice, laplace"):
        release([[1, 1]], 1.0, mechanism="gaussian")


def test_count_states_equals_list_counts():
    rng = np.random.default_rng(3)
    states = rng.integers(0, 4, (7, 9))
    counts = count_states(states, 4)
    for time in range(9):
        assert counts[time].tolist() == [states[:, time].tolist().count(place) for place in range(4)]


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        ([[0, 1], [0]], CountError, "equal lengths"),
        ([[0, 4]], StateError, "got 4 for user 0 at time 1"),
        ([[0, -1]], StateError, "got -1 for user"),
        ([[0.0, 1.0]], CountError, "integers"),
        (np.zeros((0, 3), dtype=int), CountError, "shape"),
    ],
)
def test_invalid_sequences_raise(sequences, error, message):
    with pytest.raises(error, match=message):
        count_states(sequences, 4)
