"""The empirical audit: sound mechanisms pass as often as promised, broken ones are caught with 100 000 samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dphmm import KNormMechanism, LaplaceMechanism, PlanarLaplaceMechanism, PolicyGraph, SensitivityHull, protect
from dphmm.audit.empirical import audit_pair, audit_pairs, hardest_edges, log_ratio_bound
from dphmm.errors import BudgetError, InvalidInputError, StateError
from dphmm.mechanisms.lattice import LatticeKNormMechanism
from tests.running_example import F, graph, states
from tests.sizes import fewer

SAMPLES = fewer(100_000, 50_000)


class Broken:
    """A sampler that claims the density of a sound mechanism and draws otherwise."""

    def __init__(self, claimed: KNormMechanism, draw: Callable) -> None:
        self.log_density = claimed.log_density
        self._draw = draw

    def sample(self, x, rng=None, size=None):
        return self._draw(np.asarray(x, dtype=float), rng, size)


def half_the_noise(hull: SensitivityHull, epsilon: float) -> Broken:
    return Broken(KNormMechanism(hull, epsilon), KNormMechanism(hull, 2 * epsilon).sample)


def one_axis_only(hull: SensitivityHull, epsilon: float) -> Broken:
    claimed = KNormMechanism(hull, epsilon)

    def draw(x, rng, size):
        z = claimed.sample(x, rng, size)
        z[..., 1] = x[1]
        return z

    return Broken(claimed, draw)


def own_neighbours(epsilon: float) -> Broken:
    """§10.5: the hull of the true state's own edges, which are those of the graph without the edge 4-5."""
    neighbours = {3: [5], 4: [5], 5: [3, 4]}
    claimed = KNormMechanism(SensitivityHull(F[[3, 4]] - F[5]), epsilon)

    def draw(x, rng, size):
        own = int(np.flatnonzero((x == F).all(axis=1))[0])
        return KNormMechanism(SensitivityHull(F[neighbours[own]] - F[own]), epsilon).sample(x, rng, size)

    return Broken(claimed, draw)


def test_bounds_stay_below_the_truth_on_200_sound_mechanisms():
    """Confidence 0.9 each: of 200, every day 80, a tenth may fail; more than the most have probability below 0.002."""
    confidence, count = 0.9, fewer(200, 80)
    most = {200: 33, 80: 17}[count]
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
        found = audit_pair(mechanism, x, y, truth, 4_000, confidence, rng=rng)
        failures += found.lower > truth
        closest.append(found.lower / truth)
    assert failures <= most
    assert stats.binom.sf(most, count, 1 - confidence) < 0.002
    assert np.median(closest) > 0.3


def test_as_many_draws_are_made_of_each_value_as_are_asked_for_and_a_quarter_of_them_is_not_counted():
    claimed, drawn = LaplaceMechanism(1.0, 1.0, 1), {0.0: 0, 1.0: 0}

    def draw(x, rng, size):
        drawn[float(x[0])] += size
        return claimed.sample(x, rng, size)

    assert audit_pair(Broken(claimed, draw), [0.0], [1.0], 1.0, 1000, rng=2).counted == 750
    assert drawn == {0.0: 1000, 1.0: 1000}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_each_broken_mechanism_is_caught_over_the_edges_of_a_graph(epsilon):
    hull = SensitivityHull(graph().differences(F))
    edges = graph().edge_array()
    for broken in (half_the_noise(hull, epsilon), one_axis_only(hull, epsilon)):
        found = list(audit_pairs(broken, F, edges, epsilon, SAMPLES, 0.999, rng=11))
        assert any(pair.violated for pair in found)
    sound = list(audit_pairs(KNormMechanism(hull, epsilon), F, edges, epsilon, SAMPLES, 0.999, rng=11))
    assert not any(pair.violated for pair in sound)


def test_hull_of_the_true_states_own_neighbours_is_caught():
    found = list(audit_pairs(own_neighbours(1.0), F, [[3, 5], [4, 5]], 1.0, SAMPLES, 0.999, rng=2))
    assert all(pair.violated for pair in found)
    assert min(pair.lower for pair in found) > 3


def test_a_broken_mechanism_without_a_density_is_caught_by_cells_alone():
    class Bare:
        def sample(self, x, rng=None, size=None):
            return KNormMechanism(SensitivityHull([[1, 0], [0, 1]]), 2.0).sample(x, rng, size)

    found = audit_pair(Bare(), [0, 0], [1, 0], 1.0, SAMPLES, rng=4)
    assert found.event == "cells"
    assert found.violated
    assert found.lower < 2.0


def test_low_bits_of_doubles_give_the_true_value_away_and_those_of_the_lattice_do_not():
    """Mironov's attack: the same sound real-valued mechanism, looked at down to the last bit."""
    hull = SensitivityHull(graph().differences(F))
    real = KNormMechanism(hull, 1.0)
    pair = (F[3], F[5])
    assert not audit_pair(real, *pair, 1.0, SAMPLES, rng=1).violated
    assert audit_pair(real, *pair, 1.0, SAMPLES, rng=1, low_bits=True).violated
    exact = LatticeKNormMechanism(hull, 1)
    assert not audit_pair(exact, *pair, 1.0, 20_000, rng=1, low_bits=True).violated


def test_clopper_pearson_bounds_are_scipys():
    high, low, counted, error = 130, 40, 1000, 0.05
    p = stats.binomtest(high, counted).proportion_ci(1 - error, "exact").low
    q = stats.binomtest(low, counted).proportion_ci(1 - error, "exact").high
    assert log_ratio_bound(np.array(high), np.array(low), counted, error) == pytest.approx(np.log(p / q), rel=1e-9)
    assert log_ratio_bound(np.array(0), np.array(0), counted, error) == -np.inf
    assert log_ratio_bound(np.array(counted), np.array(counted), counted, error) < 0


def test_family_wise_confidence_is_shared_out():
    found = list(audit_pairs(LaplaceMechanism(5.0, 1.0, 2), F, graph().edge_array(), 1.0, 1_000, 0.96, rng=0))
    assert [pair.confidence for pair in found] == pytest.approx([0.99] * 4)
    assert [[pair.first, pair.second] for pair in found] == graph().edge_array().tolist()


def test_hardest_edges_come_first_and_equal_differences_once():
    repaired = protect(graph(), F, states(3, 4, 5, 6)).graph
    every = hardest_edges(repaired, F)
    norms = SensitivityHull(repaired.differences(F)).norm(F[every[:, 0]] - F[every[:, 1]])
    assert sorted(map(tuple, every.tolist())) == sorted(map(tuple, repaired.edge_array().tolist()))
    assert (np.diff(norms) <= 0).all()
    row = np.stack([np.arange(50), np.zeros(50)], axis=1)
    few = hardest_edges(PolicyGraph.utility(row, 3.0), row, limit=2)
    assert np.abs(few[:, 0] - few[:, 1]).tolist() == [3, 2]
    assert len(hardest_edges(PolicyGraph.from_edges(3, []), row[:3])) == 0


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"samples": 99}, InvalidInputError, "at least 100"),
        ({"confidence": 1.0}, InvalidInputError, "between 0 and 1"),
        ({"claimed": -1.0}, BudgetError, "not negative"),
        ({"claimed": np.nan}, BudgetError, "not negative"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, words):
    given = {"sampler": LaplaceMechanism(1, 1, 2), "first": [0, 0], "second": [1, 0], "claimed": 1.0} | arguments
    with pytest.raises(error, match=words):
        audit_pair(**given)


def test_samplers_of_a_wrong_shape_and_unknown_states_are_refused():
    class Flat:
        def sample(self, x, rng=None, size=None):
            return np.zeros(size)

    with pytest.raises(InvalidInputError, match="the sampler gave shape"):
        audit_pair(Flat(), [0, 0], [1, 0], 1.0)
    with pytest.raises(StateError, match="0 to 5"):
        list(audit_pairs(LaplaceMechanism(1, 1, 2), F, [[0, 6]], 1.0))
