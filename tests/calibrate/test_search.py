"""Tests of the search for the largest budget against plain bisection."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt

import numpy as np
import pytest

from dphmm import KNormMechanism, LaplaceMechanism, LatticeKNormMechanism, SensitivityHull
from dphmm.calibrate import MeanEstimate, largest_epsilon
from dphmm.calibrate.epsilon_search import round_down, search_largest
from tests.running_example import F, build_graph

# Decreasing functions of the budget with a zero in [1e-3, 1e2].
FUNCTIONS = {
    "inverse": lambda epsilon: log(0.7 / epsilon),
    "saturated at small budgets": lambda epsilon: 1.9 / (1 + epsilon) - 0.5,
    "exponential": lambda epsilon: exp(-epsilon) - 1e-12,
    "steep": lambda epsilon: 2.0 - epsilon**9,
    "flat until the zero": lambda epsilon: 1e-9 if epsilon < 31.4 else -(epsilon**3),
    "step": lambda epsilon: 1.0 if epsilon < 0.0123 else -1.0,
    "infinite beyond the zero": lambda epsilon: 1.0 if epsilon < 3.3 else -np.inf,
    "zero at an evaluated budget": lambda epsilon: log(sqrt(1e-3 * 1e2) / epsilon),
}
# Their errors are exact and decrease in the budget. That of lattice noise vanishes faster than the inverse.
HULL = SensitivityHull(build_graph().differences(F))
MECHANISMS = {
    "lattice": LatticeKNormMechanism(HULL, 1.0),
    "k-norm": KNormMechanism(HULL, 1.0),
    "laplace": LaplaceMechanism(5.0, 1.0, 2),
}


def bisect_largest(condition: Callable[[float], bool], low: float, high: float, max_ratio: float) -> tuple[float, int]:
    """Return the largest budget by plain bisection, and the number of evaluations."""
    count = 0
    while high > max_ratio * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if condition(middle) else (low, middle)
        count += 1
    return low, count


@pytest.mark.parametrize("known_ends", [False, True])
@pytest.mark.parametrize("max_ratio", [1.2, 1.01, 1.0001])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_search_agrees_with_bisection(name, max_ratio, known_ends):
    function = FUNCTIONS[name]
    seen = []

    def record_excess(epsilon: float) -> float:
        seen.append(epsilon)
        return function(epsilon)

    values = {end: function(end) for end in (1e-3, 1e2)} if known_ends else {}
    result = search_largest(record_excess, 1e-3, 1e2, max_ratio, values=values)
    bisected, num_bisections = bisect_largest(lambda epsilon: function(epsilon) >= 0, 1e-3, 1e2, max_ratio)
    assert function(result) >= 0 > function(result * max_ratio)
    assert bisected / max_ratio <= result <= bisected * max_ratio, "both are at most one ratio below the zero"
    assert len(seen) == len(set(seen)) <= 3 * num_bisections
    assert set(seen) <= set(values), "evaluations are recorded for the caller"


@pytest.mark.parametrize("name", ["inverse", "saturated at small budgets"])
def test_smooth_functions_need_fewer_evaluations_than_bisection(name):
    function = FUNCTIONS[name]
    values = {end: function(end) for end in (1e-3, 1e2)}
    search_largest(function, 1e-3, 1e2, 1.0001, values=values)
    _, num_bisections = bisect_largest(lambda epsilon: function(epsilon) >= 0, 1e-3, 1e2, 1.0001)
    assert num_bisections == 17
    assert len(values) - 2 <= 11


@pytest.mark.parametrize("max_ratio", [1.0001, 1.05])
@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("zero", [0.1, 0.10001, 0.0999, 0.5, 0.99, 0.7351, 1.05])
def test_search_over_budgets_of_some_digits_ends_at_neighbours_or_ratio(zero, digits, max_ratio):
    values: dict[float, float] = {}
    result = search_largest(lambda epsilon: log(zero / epsilon), 0.01, 10.0, max_ratio, digits, values)
    assert all(round_down(epsilon, digits) == epsilon for epsilon in values)
    grid = [float(f"{digit}e{power}") for power in range(-5, 2) for digit in range(10 ** (digits - 1), 10**digits)]
    next_budget = min(epsilon for epsilon in grid if epsilon > result * (1 + 1e-12))
    assert result <= zero < max(next_budget, result * max_ratio)


@pytest.mark.parametrize("start", [0.02, 0.9, 1.0, 300.0])
@pytest.mark.parametrize("target", [0.07, 1.0, 47.0])
@pytest.mark.parametrize("name", MECHANISMS)
def test_largest_epsilon_agrees_with_bisection_for_errors_of_noise(name, target, start):
    mechanism = MECHANISMS[name]
    seen = []

    def estimate_metric(epsilon: float, is_check: bool) -> MeanEstimate:
        seen.append((epsilon, is_check))
        return MeanEstimate(sqrt(mechanism.squared_error_at(epsilon)), 0.0)

    def keeps(epsilon: float) -> bool:
        return sqrt(mechanism.squared_error_at(epsilon)) >= target

    for is_fine, max_ratio, digits in ((False, 1.05, 2), (True, 1.01, 3)):
        seen.clear()
        search = largest_epsilon(estimate_metric, target, start, fine=is_fine)
        bisected, _ = bisect_largest(keeps, 1e-6, 1e3, max_ratio)
        # Both results keep the target and are below the zero by one ratio at most, and by one unit of the last digit.
        unit = 10.0 ** (1 - digits)
        assert bisected / max_ratio / (1 + unit) <= search.epsilon <= bisected * max_ratio
        assert round_down(search.epsilon, digits) == search.epsilon
        assert keeps(search.epsilon)
        assert search.estimate.mean == sqrt(mechanism.squared_error_at(search.epsilon))
        assert search.num_evaluations == len(seen) == len(set(seen)), "no budget is evaluated twice"


def test_noisy_metric_keeps_its_bound():
    # The errors of few users are not monotone in the budget. The result has been evaluated and keeps the bound.
    rng = np.random.default_rng(7)
    noise: dict[float, float] = {}

    def estimate_metric(epsilon: float, is_check: bool) -> MeanEstimate:
        return MeanEstimate(1 / epsilon * noise.setdefault(epsilon, rng.uniform(0.98, 1.02)), 0.01)

    for bound in np.geomspace(0.02, 40, 200).tolist():
        search = largest_epsilon(estimate_metric, bound, 1.2 / bound, fine=True)
        assert search.estimate.lower_bound == estimate_metric(search.epsilon, True).lower_bound >= bound
        exact = 1 / (bound + 0.01)
        assert 0.96 * exact <= search.epsilon <= 1.03 * exact
