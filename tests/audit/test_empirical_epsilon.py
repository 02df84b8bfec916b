"""Tests of the empirical audit: sound mechanisms pass, and broken ones are detected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dphmm import KNormMechanism, LaplaceMechanism, PlanarLaplaceMechanism, PolicyGraph, SensitivityHull, protect
from dphmm.audit.empirical_epsilon import audit_pair, audit_pairs, bound_log_ratio, select_hardest_edges
from dphmm.errors import BudgetError, InvalidInputError, StateError
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from tests.running_example import F, build_graph, mask_states
from tests.sizes import choose_count

SAMPLES = choose_count(100_000, 50_000)


class Broken:
    """A sampler that claims the density of a sound mechanism but samples differently."""

    def __init__(self, claimed: KNormMechanism, draw: Callable) -> None:
        self.log_density = claimed.log_density
        self._draw = draw

    def sample(self, x, rng=None, size=None):
        return self._draw(np.asarray(x, dtype=float), rng, size)


def halve_noise(hull: SensitivityHull, epsilon: float) -> Broken:
    return Broken(KNormMechanism(hull, epsilon), KNormMechanism(hull, 2 * epsilon).sample)


def perturb_one_axis(hull: SensitivityHull, epsilon: float) -> Broken:
    claimed = KNormMechanism(hull, epsilon)

    def draw(x, rng, size):
        z = claimed.sample(x, rng, size)
        z[..., 1] = x[1]
        return z

    return Broken(claimed, draw)


def use_own_neighbours(epsilon: float) -> Broken:
    """Sample from the hull of the true state's own edges, without the edge 4-5 (§10.5)."""
    neighbours = {3: [5], 4: [5], 5: [3, 4]}
    claimed = KNormMechanism(SensitivityHull(F[[3, 4]] - F[5]), epsilon)

    def draw(x, rng, size):
        state = int(np.flatnonzero((x == F).all(axis=1))[0])
        return KNormMechanism(SensitivityHull(F[neighbours[state]] - F[state]), epsilon).sample(x, rng, size)

    return Broken(claimed, draw)


@pytest.mark.slow
def test_bounds_stay_below_truth_for_sound_mechanisms():
    """With confidence 0.9, a tenth of 200 mechanisms (80 in the short run) may fail.

    The probability of more than ``max_failures`` failures is below 0.002.
    """
    confidence, count = 0.9, choose_count(200, 80)
    max_failures = {200: 33, 80: 17}[count]
    failures, closest = 0, []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        epsilon = float(np.exp(rng.uniform(np.log(0.05), np.log(4))))
        hull = SensitivityHull(rng.normal(size=(int(rng.integers(1, 6)), 2)))
        x, y = rng.normal(size=2), rng.normal(size=2)
        if hull.dimension < 2:
            y = x + hull.vertices[0] * rng.uniform(0.2, 2)
        kinds = (KNormMechanism(hull, epsilon), LaplaceMechanism(1.3, epsilon, 2), PlanarLaplaceMechanism(epsilon, 0.7))
        mechanism = kinds[seed % 3]
        truth = float(mechanism.privacy_loss(x, y))
        result = audit_pair(mechanism, x, y, truth, 4_000, confidence, rng=rng)
        failures += result.lower > truth
        closest.append(result.lower / truth)
    assert failures <= max_failures
    assert stats.binom.sf(max_failures, count, 1 - confidence) < 0.002
    assert np.median(closest) > 0.3


def test_audit_samples_each_value_equally_and_counts_three_quarters():
    claimed, num_samples = LaplaceMechanism(1.0, 1.0, 1), {0.0: 0, 1.0: 0}

    def draw(x, rng, size):
        num_samples[float(x[0])] += size
        return claimed.sample(x, rng, size)

    assert audit_pair(Broken(claimed, draw), [0.0], [1.0], 1.0, 1000, rng=2).num_counted == 750
    assert num_samples == {0.0: 1000, 1.0: 1000}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_broken_mechanisms_are_detected_on_graph_edges(epsilon):
    hull = SensitivityHull(build_graph().differences(F))
    edges = build_graph().edge_array()
    for broken in (halve_noise(hull, epsilon), perturb_one_axis(hull, epsilon)):
        results = list(audit_pairs(broken, F, edges, epsilon, SAMPLES, 0.999, rng=11))
        assert any(pair.is_violated for pair in results)
    sound = list(audit_pairs(KNormMechanism(hull, epsilon), F, edges, epsilon, SAMPLES, 0.999, rng=11))
    assert not any(pair.is_violated for pair in sound)


def test_hull_of_own_neighbours_is_detected():
    results = list(audit_pairs(use_own_neighbours(1.0), F, [[3, 5], [4, 5]], 1.0, SAMPLES, 0.999, rng=2))
    assert all(pair.is_violated for pair in results)
    assert min(pair.lower for pair in results) > 3


def test_broken_mechanism_without_density_is_detected_by_cells():
    class Bare:
        def sample(self, x, rng=None, size=None):
            return KNormMechanism(SensitivityHull([[1, 0], [0, 1]]), 2.0).sample(x, rng, size)

    result = audit_pair(Bare(), [0, 0], [1, 0], 1.0, SAMPLES, rng=4)
    assert result.event == "cells"
    assert result.is_violated
    assert result.lower < 2.0


def test_low_bits_reveal_true_value_for_floats_but_not_for_lattice():
    """Mironov's attack on a mechanism that is sound for real values, down to the last bit."""
    hull = SensitivityHull(build_graph().differences(F))
    real = KNormMechanism(hull, 1.0)
    pair = (F[3], F[5])
    assert not audit_pair(real, *pair, 1.0, SAMPLES, rng=1).is_violated
    assert audit_pair(real, *pair, 1.0, SAMPLES, rng=1, low_bits=True).is_violated
    exact = LatticeKNormMechanism(hull, 1)
    assert not audit_pair(exact, *pair, 1.0, 20_000, rng=1, low_bits=True).is_violated


def test_clopper_pearson_bounds_match_scipy():
    high = 130
    low = 40
    counted = 1000
    error = 0.05
    p = stats.binomtest(high, counted).proportion_ci(1 - error, "exact").low
    q = stats.binomtest(low, counted).proportion_ci(1 - error, "exact").high
    assert bound_log_ratio(np.array(high), np.array(low), counted, error) == pytest.approx(np.log(p / q), rel=1e-9)
    assert bound_log_ratio(np.array(0), np.array(0), counted, error) == -np.inf
    assert bound_log_ratio(np.array(counted), np.array(counted), counted, error) < 0


def test_family_wise_confidence_is_divided_among_pairs():
    results = list(audit_pairs(LaplaceMechanism(5.0, 1.0, 2), F, build_graph().edge_array(), 1.0, 1_000, 0.96, rng=0))
    assert [pair.confidence for pair in results] == pytest.approx([0.99] * 4)
    assert [[pair.first, pair.second] for pair in results] == build_graph().edge_array().tolist()


def test_hardest_edges_are_sorted_and_equal_differences_are_listed_once():
    repaired = protect(build_graph(), F, mask_states(3, 4, 5, 6)).graph
    edges = select_hardest_edges(repaired, F)
    norms = SensitivityHull(repaired.differences(F)).norm(F[edges[:, 0]] - F[edges[:, 1]])
    assert sorted(map(tuple, edges.tolist())) == sorted(map(tuple, repaired.edge_array().tolist()))
    assert (np.diff(norms) <= 0).all()
    row = np.stack([np.arange(50), np.zeros(50)], axis=1)
    few = select_hardest_edges(PolicyGraph.utility(row, 3.0), row, limit=2)
    assert np.abs(few[:, 0] - few[:, 1]).tolist() == [3, 2]
    assert len(select_hardest_edges(PolicyGraph.from_edges(3, []), row[:3])) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"samples": 99}, InvalidInputError, "samples must be an integer of at least 100"),
        ({"confidence": 1.0}, InvalidInputError, r"confidence must be in \(0, 1\)"),
        ({"claimed": -1.0}, BudgetError, "claimed must be a non-negative number"),
        ({"claimed": np.nan}, BudgetError, "claimed must be a non-negative number"),
    ],
)
def test_invalid_arguments_raise(arguments, error, words):
    call_arguments = {
        "sampler": LaplaceMechanism(1, 1, 2),
        "first": [0, 0],
        "second": [1, 0],
        "claimed": 1.0,
    } | arguments
    with pytest.raises(error, match=words):
        audit_pair(**call_arguments)


def test_invalid_sampler_shape_or_state_raises():
    class Flat:
        def sample(self, x, rng=None, size=None):
            return np.zeros(size)

    with pytest.raises(InvalidInputError, match=r"sampler .*shape"):
        audit_pair(Flat(), [0, 0], [1, 0], 1.0)
    with pytest.raises(StateError, match="0 to 5"):
        list(audit_pairs(LaplaceMechanism(1, 1, 2), F, [[0, 6]], 1.0))
