"""Tests of budgets by formula: they invert the error and are rounded to the safe side."""

from __future__ import annotations

from decimal import Decimal, localcontext
from itertools import product
from math import exp, inf, nextafter, sqrt

import numpy as np
import pytest

from dphmm import (
    KNormMechanism,
    LaplaceMechanism,
    LatticeKNormMechanism,
    PlanarLaplaceMechanism,
    SensitivityHull,
)
from dphmm.calibrate import epsilon_for_error, epsilon_for_odds, epsilon_per_release
from dphmm.calibrate.epsilon_search import epsilon_for_factor, round_down
from dphmm.errors import DphmmError, InvalidInputError
from tests.running_example import F, build_graph

HULL = SensitivityHull(build_graph().differences(F))
FAMILIES = {
    "lattice": lambda epsilon: LatticeKNormMechanism(HULL, epsilon),
    "lattice in metres": lambda epsilon: LatticeKNormMechanism(
        SensitivityHull(1000 * HULL.differences), epsilon, 0.001
    ),
    "segment": lambda epsilon: LatticeKNormMechanism(SensitivityHull([[2, 1]]), epsilon),
    "k-norm": lambda epsilon: KNormMechanism(HULL, epsilon),
    "laplace": lambda epsilon: LaplaceMechanism(5.0, epsilon, 2),
    "disc": lambda epsilon: PlanarLaplaceMechanism(epsilon, 1.5),
}


def test_epsilon_of_running_example_for_error_2_is_3_27525():
    assert epsilon_for_error(KNormMechanism(HULL, 1.0), 2.0) == pytest.approx(3.27525, abs=1e-5)
    assert epsilon_for_error(KNormMechanism(HULL, 7.0), 2.0) == pytest.approx(3.27525, abs=1e-5), (
        "independent of the mechanism's own epsilon"
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("epsilon", [1e-4, 0.013, 0.3, 1.0, 2.7])
def test_epsilon_for_error_inverts_squared_error_from_below(family, epsilon):
    make = FAMILIES[family]
    target = sqrt(make(epsilon).squared_error)
    epsilon_found = epsilon_for_error(make(1.0), target)
    assert epsilon_found == pytest.approx(epsilon, rel=1e-8)
    assert epsilon_found <= epsilon
    assert make(epsilon_found).squared_error >= target**2, "the safe side"
    assert make(epsilon_found * (1 + 1e-6)).squared_error < target**2, "and not far within it"


def test_lattice_error_matches_sum_over_lattice_points():
    # The sum over 121 x 121 points is sufficient: less than 1e-9 of the mass lies outside at this budget.
    points = np.array(list(product(range(-60, 61), repeat=2)))
    epsilon = epsilon_for_error(LatticeKNormMechanism(HULL, 1.0), 2.0)
    weights = np.exp(-epsilon * HULL.norm(points))
    assert sqrt(weights @ (points**2).sum(axis=1) / weights.sum()) == pytest.approx(2.0, rel=1e-8)
    assert epsilon < epsilon_for_error(KNormMechanism(HULL, 1.0), 2.0), "the continuous formula differs"


@pytest.mark.parametrize("seed", range(40))
def test_epsilon_for_odds_keeps_limit_in_exact_arithmetic_and_is_nearly_maximal(seed):
    rng = np.random.default_rng(seed)
    p, q = np.sort(rng.random(2)).tolist()
    diameter = float(rng.choice([1.0, 2.0, rng.uniform(1, 9), 1440 * rng.uniform(1, 9)]))
    epsilon = epsilon_for_odds(diameter, p, q)
    with localcontext(prec=60):
        a, b = Decimal(repr(p)), Decimal(repr(q))
        worst = (Decimal(repr(epsilon)) * Decimal(repr(diameter))).exp() * a / (1 - a)
        further = (Decimal(repr(epsilon * (1 + 1e-12))) * Decimal(repr(diameter))).exp() * a / (1 - a)
        assert worst / (1 + worst) <= b < further / (1 + further)


def test_epsilon_for_odds_holds_for_every_output_by_enumeration():
    # Three states of the running example's lattice and random priors; all outputs within range are enumerated.
    rng, states = np.random.default_rng(3), F[[1, 2, 4]]
    diameter = float(max(HULL.norm(states[i] - states[j]) for i, j in product(range(3), repeat=2)))
    outputs = np.array(list(product(range(-30, 35), repeat=2)))
    for _ in range(20):
        prior = rng.dirichlet(np.ones(3))
        limit = float(prior.max() + 0.3 * (1 - prior.max()))
        epsilon = epsilon_for_odds(diameter, float(prior.max()), limit)
        reached = []
        for used in (epsilon, 2 * epsilon):
            rows = np.array([LatticeKNormMechanism(HULL, used).log_density(outputs, s) for s in states])
            joint = prior[:, np.newaxis] * np.exp(rows)
            reached.append((joint / joint.sum(axis=0)).max())
        assert reached[0] <= limit
    assert reached[1] > limit, "twice the budget exceeds the limit"


def test_epsilons_are_rounded_down():
    assert exp(2.0 * epsilon_for_factor(2.0, 3.0)) <= 3.0 * (1 + 1e-15)
    for total, count in ((5.0, 288), (0.1, 3), (7.3, 1440)):
        epsilon = epsilon_per_release(total, count)
        assert Decimal(repr(epsilon)) * count <= Decimal(repr(total)) < Decimal(repr(nextafter(epsilon, inf))) * count
    assert [round_down(value, 3) for value in (0.12399, 1999.9, 3e-7)] == [0.123, 1990.0, 3e-7]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epsilon_for_error(KNormMechanism(HULL, 1.0), 0.0), "target must be in"),
        (lambda: epsilon_for_error(KNormMechanism(HULL, 1.0), inf), "target must be in"),
        (lambda: epsilon_for_error(KNormMechanism(SensitivityHull([[0, 0]]), 1.0), 1.0), "share one point"),
        (lambda: epsilon_for_error(KNormMechanism(HULL, 1.0), 1e40), "target must be in"),
        (lambda: epsilon_for_odds(1.0, 0.5, 0.5), "posterior must be above the prior 0.5"),
        (lambda: epsilon_for_odds(1.0, 0.0, 0.5), r"prior must be in \(0, 1\)"),
        (lambda: epsilon_for_odds(inf, 0.1, 0.5), "diameter must be finite, got inf: a release can exclude a state"),
        (lambda: epsilon_for_odds(0.0, 0.1, 0.5), "diameter must be a positive number"),
        (lambda: epsilon_for_factor(1.0, 1.0), "factor must be in"),
        (lambda: epsilon_per_release(5.0, 0), "releases must be a positive integer"),
        (lambda: epsilon_per_release(0.0, 5), "positive"),
    ],
)
def test_out_of_range_arguments_raise(call, words):
    with pytest.raises(DphmmError, match=words) as refused:
        call()
    assert isinstance(refused.value, InvalidInputError)
