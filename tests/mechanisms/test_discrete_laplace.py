"""Noise of counts: its budget and scale, and its interval against many digits."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dphmm.errors import BudgetError
from dphmm.mechanisms.discrete_laplace import MAX_NOISE_SCALE, CountNoise, bound_laplace_noise, laplace_variance
from dphmm.random import as_random_source


def test_cost_is_subtracted_and_recorded_by_purpose():
    noise = CountNoise(Fraction(1), as_random_source(1))
    for name, epsilon in (("first", Fraction(1, 3)), ("second", Fraction(1, 6)), ("first", Fraction(1, 2))):
        assert noise.add(name, [[1, 2, 3], [4, 5, 6]], 1, epsilon).shape == (2, 3)
    assert noise.left == 0
    assert noise.spent == {"first": Fraction(5, 6), "second": Fraction(1, 6)}


@pytest.mark.parametrize("epsilon", [Fraction(10**20 + 1, 10**20), Fraction(0), Fraction(-1)], ids=str)
def test_cost_above_remaining_budget_or_not_positive_raises(epsilon):
    noise = CountNoise(Fraction(1), as_random_source(1))
    with pytest.raises(BudgetError, match=r"epsilon of trips must be positive and at most 1 \(left\)"):
        noise.add("trips", [1], 1, epsilon)
    assert (noise.left, noise.spent) == (1, {})


def test_scale_of_noise_is_sensitivity_over_epsilon():
    """The largest scale is accepted. The mean of 4,000 magnitudes is within 10 % of it.

    Alpha 1e-9, seed 2.
    """
    for sensitivity in (1, 2**41, 2**20):
        noise = CountNoise(Fraction(2), as_random_source(2))
        epsilon = Fraction(sensitivity, MAX_NOISE_SCALE)
        sizes = np.abs(noise.add("trips", np.zeros(4_000), sensitivity, epsilon))
        assert sizes.mean() == pytest.approx(MAX_NOISE_SCALE, rel=0.1)
        with pytest.raises(BudgetError, match="may exceed 64 bits"):
            noise.add("trips", [0], sensitivity, epsilon * Fraction(10**20 - 1, 10**20))
        assert noise.left == 2 - epsilon


@pytest.mark.parametrize("decay", [2.3e-13, 3e-13, 1e-12, 1e-9, 1e-6, 0.003, 0.1, 0.7, 3.0, 50.0, 1e4])
@pytest.mark.parametrize("confidence", [0.0, 0.05, 0.5, 0.95, 1 - 1e-6, 1 - 1e-12])
def test_interval_of_noise_is_shortest_of_its_confidence(decay, confidence):
    """With decays below 1e-8 the rounding of ``exp(-decay)`` is worth many steps."""
    within = bound_laplace_noise(decay, confidence)
    with mpmath.workdps(50):
        q = mpmath.exp(-mpmath.mpf(decay))
        miss = 1 - mpmath.mpf(confidence)
        probabilities = [2 * q ** (bound + 1) / (1 + q) for bound in (within, within - 1)]
        assert probabilities[0] <= miss
        assert within == 0 or probabilities[1] > miss


@pytest.mark.parametrize("decay", [3e-13, 1e-9, 1e-3, 1.0, 50.0])
def test_variance_agrees_with_fifty_digits(decay):
    with mpmath.workdps(50):
        q = mpmath.exp(-mpmath.mpf(decay))
        assert laplace_variance(decay) == pytest.approx(float(2 * q / (1 - q) ** 2), rel=1e-14)
