"""Noisy counts have the distributions that their guarantee rests on."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dphmm.counts import count_states, release
from dphmm.errors import BudgetError, ConfigurationError, CountError, StateError

ALPHA = 1e-4


def test_real_noise_is_laplace_of_scale_two_over_epsilon():
    """Kolmogorov-Smirnov test per time, alpha 1e-4, 20 000 counts, seed 1; its twin of half the scale must fail."""
    true = np.full((2, 20_000), 3)
    noise = release(true, [0.5, 2.0], rng=1, mechanism="laplace") - true
    for row, scale in zip(noise, [4.0, 1.0], strict=True):
        assert stats.kstest(row, stats.laplace(scale=scale).cdf).pvalue > ALPHA
        assert stats.kstest(row, stats.laplace(scale=scale / 2).cdf).pvalue < ALPHA


def test_integer_noise_is_discrete_laplace_of_scale_two_over_epsilon():
    """Chi-squared test, alpha 1e-4, 20 000 counts, seed 2."""
    true = np.full((1, 20_000), 3)
    noisy = release(true, "0.8", rng=2)
    assert noisy.dtype == np.int64
    values = np.arange(-10, 11)
    q = math.exp(-0.4)
    chance = (1 - q) / (1 + q) * q ** np.abs(values)
    seen = np.array([(noisy - true == v).sum() for v in values])
    seen, chance = np.append(seen, true.size - seen.sum()), np.append(chance, 1 - chance.sum())
    assert stats.chisquare(seen, chance * true.size).pvalue > ALPHA


def test_budgets_may_be_fractions_and_seeds_repeat():
    true = [[1, 2], [2, 1]]
    one = release(true, Fraction(1, 3), rng=5)
    assert (one == release(true, ["1/3", Fraction(1, 3)], rng=5)).all()


def test_what_is_asked_for_by_default_is_drawn_with_integers_alone(monkeypatch):
    """The decays that the exact sampler is called with, as rationals; and no other source of noise is touched."""
    asked = []

    def exact(decay, count, source):
        asked.extend([decay] * count)
        return np.ones(count, dtype=np.int64)

    sampler = {"laplace_steps": exact, "laplace_noise": None}
    for name, other in sampler.items():
        monkeypatch.setitem(release.__globals__, name, other)
    assert release([[1, 2], [2, 1]], [0.1, "1/3"]).tolist() == [[2, 3], [3, 2]]
    assert asked == [Fraction(1, 20)] * 2 + [Fraction(1, 6)] * 2


@pytest.mark.parametrize(
    ("true", "epsilons", "error", "message"),
    [
        ([[1, -1]], 1.0, CountError, "time 0, place 1 is -1"),
        ([[1, 1], [1, 2]], 1.0, CountError, "time 1 has 3 users"),
        ([[0.5, 0.5]], 1.0, CountError, "integers"),
        ([[1, float("nan")]], 1.0, CountError, "nan"),
        ([1, 2], 1.0, CountError, "shape"),
        ([[1, 1]], 0.0, BudgetError, "0"),
        ([[1, 1]], [1.0, 2.0], BudgetError, "2 budgets"),
        ([[1, 1], [1, 1]], [1.0, -2.0], BudgetError, "time 1 is -2"),
        ([[1, 1]], 1e-15, BudgetError, "64 bits"),
        ([[2**53 + 2, 0]], 1.0, CountError, "at most"),
        ([["a", 1]], 1.0, CountError, "not an array of numbers"),
        ([[1, 1], [2]], 1.0, CountError, "not an array of numbers"),
    ],
)
def test_impossible_input_is_refused(true, epsilons, error, message):
    with pytest.raises(error, match=message):
        release(true, epsilons, rng=1)


def test_another_mechanism_is_refused():
    with pytest.raises(ConfigurationError, match="mechanism is 'gaussian'; choose one of lattice, laplace"):
        release([[1, 1]], 1.0, mechanism="gaussian")


def test_counting_agrees_with_counting_by_hand():
    rng = np.random.default_rng(3)
    states = rng.integers(0, 4, (7, 9))
    counts = count_states(states, 4)
    for time in range(9):
        assert counts[time].tolist() == [states[:, time].tolist().count(place) for place in range(4)]


@pytest.mark.parametrize(
    ("sequences", "error", "message"),
    [
        ([[0, 1], [0]], CountError, "different lengths"),
        ([[0, 4]], StateError, "user 0 at time 1 is in state 4"),
        ([[0, -1]], StateError, "state -1"),
        ([[0.0, 1.0]], CountError, "integers"),
        (np.zeros((0, 3), dtype=int), CountError, "shape"),
    ],
)
def test_impossible_sequences_are_refused(sequences, error, message):
    with pytest.raises(error, match=message):
        count_states(sequences, 4)
