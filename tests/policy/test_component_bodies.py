"""Noise per component, against networkx and all partner choices."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from dphmm import Measurements, PolicyGraph, SensitivityHull, degree_of_protection, exposed_states, protect
from dphmm.errors import InvalidInputError, PolicyError, StochasticError
from dphmm.policy import component_repair as merging
from dphmm.policy.component_bodies import NoiseBody
from tests.policy.instances import (
    build_small_instance,
    compute_component_values,
    enumerate_repairs,
    find_isolated_states,
)
from tests.running_example import F, build_graph, mask_states
from tests.sizes import choose_count, mark_rest_slow, mark_slow

GRID = np.array([[x, y] for y in range(6) for x in range(6)])
CORNER = (GRID < 3).all(axis=1)


def build_policies(rng, size: int) -> list[PolicyGraph]:
    """Build graphs of every type over lattice or scattered places."""
    f = rng.integers(0, 9, (size, 2)) if rng.random() < 0.5 else rng.random((size, 2)) * 9
    pairs = [pair for pair in rng.integers(0, size, (8, 2)).tolist() if pair[0] != pair[1]]
    graphs = [
        PolicyGraph.utility(f, float(rng.choice([0.0, 0.5, 1.0, 1.5, 3.1]))),
        PolicyGraph.categorical(rng.integers(-1, 6, size)),
        PolicyGraph.from_edges(size, pairs or np.zeros((0, 2), int)),
        PolicyGraph.from_groups(size, [rng.choice(size, 2, replace=False) for _ in range(4)]),
    ]
    first, second = rng.choice(4, 2)
    return [*graphs, graphs[first] | graphs[second], graphs[first] & graphs[second]]


@pytest.mark.parametrize("seed", mark_rest_slow(range(40), 12))
def test_components_and_crossing_edges_match_networkx(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 40))
    for policy in build_policies(rng, size):
        mask = rng.random(size) < 0.7
        mask[0] = True
        components = policy.components(mask)
        expected = np.full(size, -1)
        parts = nx.connected_components(policy.restrict(mask).to_networkx())
        for number, part in enumerate(sorted(parts, key=min)):
            expected[list(part)] = number
        assert components.tolist() == expected.tolist()
        assert policy.restrict(mask).components().tolist() == expected.tolist()
        assert not policy.crosses(components, mask)
        labels, edges = rng.integers(0, 2, size), policy.restrict(mask).edge_array()
        assert policy.crosses(labels, mask) == bool((labels[edges[:, 0]] != labels[edges[:, 1]]).any())


def test_running_example_by_component():
    repaired = protect(build_graph(), F, noise_scope="component")
    assert exposed_states(build_graph(), F, noise_scope="component").tolist() == [0]
    assert repaired.added == ((0, 1),)
    assert repaired.is_optimal
    assert repaired.objective_value == pytest.approx(82 / 3, rel=1e-12) == repaired.lower_bound
    errors = sorted(part.hull.squared_error for part in repaired.parts)
    assert errors == pytest.approx([8, 140 / 3], rel=1e-12)
    alone = protect(build_graph(), F, mask_states(2, 3), noise_scope="component")
    assert alone.objective_value == pytest.approx(4, rel=1e-12)
    assert repaired.diameter == np.inf
    assert alone.diameter == 1


@pytest.mark.parametrize(
    ("possible", "exposed", "added", "value"), [((3, 4, 5, 6), 2, (2, 4), 47), ((2, 4, 5, 6), 1, (1, 5), 472 / 11)]
)
def test_constrained_running_example_by_component(possible, exposed, added, value):
    mask = mask_states(*possible)
    assert exposed_states(build_graph(), F, mask, noise_scope="component").tolist() == [exposed]
    repaired = protect(build_graph(), F, mask, noise_scope="component")
    assert (repaired.added, repaired.is_optimal) == ((added,), True)
    assert repaired.objective_value == pytest.approx(value, rel=1e-12)


def test_hull_of_another_component_does_not_protect():
    mask = mask_states(2, 4, 5, 6)
    assert exposed_states(build_graph(), F, mask).tolist() == []
    assert exposed_states(build_graph(), F, mask, noise_scope="component").tolist() == [1]


def test_private_corner_does_not_increase_noise_elsewhere():
    policy = PolicyGraph.categorical(np.where(CORNER, 0, -1)).with_open(~CORNER)
    by_component, shared = protect(policy, GRID, noise_scope="component"), protect(policy, GRID)
    assert by_component.objective_value == pytest.approx(8, rel=1e-12)
    assert shared.objective_value == pytest.approx(32, rel=1e-12)
    for protection in (by_component, shared):
        assert protection.added == ()
        assert protection.diameter == np.inf
        assert len(protection.parts) == 2
        assert protection.open.tolist() == (~CORNER).tolist()
    degrees = degree_of_protection(policy, GRID, noise_scope="component")
    assert (degrees[CORNER] == 9).all()
    assert (degrees[~CORNER] == 1).all()
    assert not len(exposed_states(policy, GRID, noise_scope="component"))


def test_unprotected_states_do_not_count_towards_degrees_under_a_shared_hull():
    """State 3 lies within the hull around states 0 and 1."""
    policy = PolicyGraph.from_edges(4, [(0, 1)]).with_open([2, 3])
    f = [[0, 0], [4, 0], [9, 9], [2, 0]]
    assert degree_of_protection(policy, f).tolist() == protect(policy, f).degrees.tolist() == [2, 2, 1, 1]
    assert exposed_states(policy, f).tolist() == []


@pytest.mark.parametrize("method", ["greedy", "sequential", "exact"])
def test_graph_without_exposed_states_is_optimal_by_every_method(method):
    policy = PolicyGraph.from_groups(6, [[0, 1, 2], [3, 4, 5]])
    repaired = protect(policy, F, method=method, noise_scope="component")
    assert (repaired.added, repaired.is_optimal, repaired.optimality_gap) == ((), True, 0.0)
    assert repaired.lower_bound == repaired.objective_value


@pytest.mark.parametrize("method", ["greedy", "sequential", "exact"])
def test_lower_bound_is_valid_if_an_edge_lowers_the_error(method):
    """The best edge makes the hull less elongated. That to the nearest partner does not."""
    f = np.array([[0, 0], [10, 1], [10, -1], [3, -1]])
    policy = PolicyGraph.from_edges(4, [(0, 1), (0, 2)])
    prior = np.array([0.33, 0.33, 0.33, 0.01])
    before = 0.99 * SensitivityHull(f[1:3]).squared_error
    best = find_best_value(f, policy, np.ones(4, dtype=bool), prior, "hull", "error")
    assert best < 0.95 * before
    repaired = protect(policy, f, method=method, noise_scope="component", prior=prior)
    assert 0 < repaired.lower_bound <= best * (1 + 1e-9)


@pytest.mark.parametrize(("body", "volume"), [("cross-polytope", 4 / 3), ("disc", 4 * np.pi / 3)])
def test_volumes_of_balls_in_space_are_cubes_of_their_radius(body, volume):
    f = np.array([[0, 0, 0], [3, 0, 0], [9, 9, 9], [9, 9, 14]])
    policy = PolicyGraph.from_edges(4, [(0, 1)])
    repaired = protect(policy, f, objective="volume", body=body, noise_scope="component")
    assert repaired.added == ((2, 3),)
    assert repaired.objective_value == pytest.approx(volume * (3**3 + 5**3) / 2)
    assert protect(policy, f, objective="volume", body=body).objective_value == pytest.approx(volume * 5**3)


def find_best_value(f, policy: PolicyGraph, mask, prior, body: str, objective: str) -> float:
    """Return the smallest mean over all choices of one partner per exposed state."""
    repairs = enumerate_repairs(find_isolated_states(policy, mask), mask)
    return min(compute_component_values(f, policy, mask, repairs, objective, prior, body).values())


def build_instance(seed: int):
    """Build eight states in categories with their probabilities.

    Some isolated states are unprotected.
    """
    f, policy, mask = build_small_instance(seed)
    rng = np.random.default_rng(seed)
    if seed % 3 == 0:
        policy = policy.with_open(~policy.find_connected_states() & (rng.random(8) < 0.5))
    return f, policy, mask, rng.random(8) + 0.01 if seed % 2 else np.ones(8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "objective"),
    [
        ("hull", "error"), ("cross-polytope", "volume"), ("disc", "error"),
        mark_slow("hull", "volume"), mark_slow("cross-polytope", "error"), mark_slow("disc", "volume"),
    ],
)  # fmt: skip
def test_exact_repair_matches_exhaustive_search_and_other_methods_are_valid(body, objective):
    for seed in range(choose_count(14, 7)):
        f, policy, mask, prior = build_instance(seed)
        if len(exposed_states(policy, f, mask, noise_scope="component")) > 4:
            continue
        best = find_best_value(f, policy, mask, prior, body, objective)
        for method in ("exact", "sequential", "greedy"):
            repaired = protect(
                policy, f, mask, method, objective, body, noise_scope="component", prior=prior, repair_max_work=20_000
            )
            assert repaired.lower_bound <= best * (1 + 1e-9) + 1e-12
            assert repaired.objective_value >= best * (1 - 1e-9)
            assert not ((repaired.degrees == 1) & mask & ~repaired.open).any()
            if method == "exact":
                assert repaired.is_optimal
                assert repaired.objective_value == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("body", "objective"), [("hull", "error"), ("cross-polytope", "volume"), ("disc", "error")])
def test_sequential_repair_takes_partner_of_least_added_cost_in_turn(body, objective):
    """A state that an earlier one has chosen needs no partner. Ties take the nearest one."""
    order = 1 if body == "cross-polytope" else 2
    for f, policy, mask, prior in map(build_instance, range(choose_count(24, 12))):
        added = frozenset()
        for state in find_isolated_states(policy, mask):
            if any(state in edge for edge in added):
                continue
            partners = [partner for partner in np.flatnonzero(mask).tolist() if partner != state]
            repairs = [added | {(min(state, partner), max(state, partner))} for partner in partners]
            values = compute_component_values(f, policy, mask, repairs, objective, prior, body)
            costs = [values[repair] for repair in repairs]
            lengths = np.linalg.norm(f[partners] - f[state], ord=order, axis=1)
            ties = np.array(costs) <= min(costs) * (1 + 1e-9)
            added = repairs[int(np.where(ties, lengths, np.inf).argmin())]
        if mask.sum() > 1:
            repaired = protect(policy, f, mask, "sequential", objective, body, noise_scope="component", prior=prior)
            (value,) = compute_component_values(f, policy, mask, [added], objective, prior, body).values()
            assert repaired.objective_value == pytest.approx(value, rel=1e-9, abs=1e-12)
            assert len(repaired.added) == len(added)


def test_repair_without_work_is_valid_and_reports_gap():
    f = np.random.default_rng(2).integers(0, 30, (12, 2))
    policy = PolicyGraph.from_edges(12, [[0, 1]])
    short = protect(policy, f, noise_scope="component", repair_max_work=0)
    full = protect(policy, f, noise_scope="component", repair_max_work=200)
    assert not (short.degrees == 1).any()
    assert short.lower_bound <= full.objective_value * (1 + 1e-12) <= short.objective_value * (1 + 1e-9)
    assert 0 <= full.optimality_gap <= short.optimality_gap <= 1


@pytest.mark.slow
def test_bounds_count_towards_repair_work(monkeypatch):
    """A bound costs 40,000 units. Many useless partners therefore end the search, too."""
    bound, calls = merging._MergeTree._compute_lower_bound, []
    monkeypatch.setattr(
        merging._MergeTree, "_compute_lower_bound", lambda *arguments: (calls.append(0), bound(*arguments))[1]
    )
    f = np.random.default_rng(3).integers(0, 60, (60, 2))
    policy = PolicyGraph.from_edges(60, [[k, k + 1] for k in range(0, 44, 2)])
    protect(policy, f, noise_scope="component", repair_max_work=500)
    assert 1_000 < len(calls) <= 500 * 1_000_000 / 40_000


def test_wrong_component_weight_fails_comparison(monkeypatch):
    """The broken variant weights the merged component by the isolated state only."""

    def build_wrong_cluster(self, edges):
        shape, joined = self.build_shape(edges)
        isolated_weight = sum(float(self.weights[c]) for c in joined if len(self.shapes[c].vertices) == 1)
        return merging.Cluster(isolated_weight * self.cost.evaluate(shape), 0.0, isolated_weight, tuple(joined))

    monkeypatch.setattr(merging.ComponentRepairProblem, "get_cluster", build_wrong_cluster)
    differ = 0
    for seed in range(8):
        f, policy, mask, prior = build_instance(seed)
        if 0 < len(exposed_states(policy, f, mask, noise_scope="component")) <= 3:
            best = find_best_value(f, policy, mask, prior, "hull", "error")
            repaired = protect(policy, f, mask, noise_scope="component", prior=prior)
            differ += abs(repaired.objective_value - best) > 1e-6 * best
    assert differ


@pytest.mark.parametrize("prior", [[0.5, 0.5], [-1, 1, 1, 1, 1, 1], [np.nan] * 6, [0] * 6], ids=repr)
def test_invalid_prior_raises(prior):
    with pytest.raises(StochasticError, match=r"^prior must"):
        protect(build_graph(), F, noise_scope="component", prior=prior)


def test_unknown_calibration_raises():
    with pytest.raises(InvalidInputError, match="noise_scope must be one of graph, component"):
        protect(build_graph(), F, noise_scope="city")


# ---- unprotected states ----------------------------------------------------------------------------------------------


def test_unprotected_state_with_edge_raises():
    with pytest.raises(PolicyError, match=r"state 1 .*open"):
        build_graph().with_open([1])
    lone = PolicyGraph.from_edges(4, [[0, 1]]).with_open([2])
    assert lone.open.tolist() == [False, False, True, False]
    with pytest.raises(PolicyError, match=r"state 2 .*open"):
        lone | PolicyGraph.from_edges(4, [[2, 3]])
    with pytest.raises(PolicyError, match=r"state 4\b"):
        lone.with_open([4])
    with pytest.raises(PolicyError, match="mask of open states must have shape"):
        lone.with_open([True, False])


def test_unprotected_states_survive_graph_operations_and_files(tmp_path):
    policy = PolicyGraph.from_edges(5, [[0, 1]]).with_open([2, 3])
    assert policy.restrict([True, False, True, True, True]).open.tolist() == [False, False, True, True, False]
    assert policy.restrict([True, True, False, False, True]).open.sum() == 0
    other = PolicyGraph.from_edges(5, [[0, 1]]).with_open([3, 4])
    assert np.flatnonzero((policy | other).open).tolist() == [2, 3, 4]
    assert np.flatnonzero((policy & other).open).tolist() == [3]
    assert np.flatnonzero(policy.with_edges([(3, 4)]).open).tolist() == [2]
    policy.to_json(tmp_path / "policy.json")
    assert PolicyGraph.from_json(tmp_path / "policy.json").open.tolist() == policy.open.tolist()
    assert policy.content_hash != PolicyGraph.from_edges(5, [[0, 1]]).content_hash
    assert policy.content_hash != other.content_hash


def test_repair_may_use_unprotected_partner_which_becomes_protected():
    f = np.array([[0, 0], [1, 0], [5, 0]])
    policy = PolicyGraph.from_edges(3, []).with_open([1, 2])
    for noise_scope in ("graph", "component"):
        repaired = protect(policy, f, noise_scope=noise_scope)
        assert repaired.added == ((0, 1),)
        assert repaired.open.tolist() == [False, False, True]
        assert repaired.degrees.tolist() == [2, 2, 1]


@pytest.mark.parametrize("spacing", [1.0, 0.25])
def test_noise_bodies_are_in_measurement_units(spacing):
    measurements = Measurements(spacing * np.array([[0, 0], [1, 0], [0, 1], [3, 4]]))
    assert measurements.spacing.tolist() == [spacing] * 2
    hull = SensitivityHull([[3, 0], [0, 4]])
    bodies = {body: NoiseBody.from_hull(measurements, hull, body) for body in ("hull", "cross-polytope", "disc")}
    for body in bodies.values():
        assert body.hull.volume == pytest.approx(spacing**2 * hull.volume)
        assert body.coordinate_hull is hull
    assert bodies["hull"].body is bodies["hull"].hull
    assert bodies["cross-polytope"].body.volume == pytest.approx(2 * (4 * spacing) ** 2)
    assert bodies["disc"].body.radius == pytest.approx(4 * spacing)


def test_changes_combine_alternatives_with_removable_edges():
    """State 0 leaves partner 1 for 2. Then 1 takes 4 or 5, and 2 may drop its edge to 3."""

    class Problem:
        is_exposed = frozenset({0, 1, 2})

        @staticmethod
        def partition_edges(edges):
            return []

    current = merging._LocalSearch(Problem, [(0, 1), (2, 3)])
    tried = {0: [2], 1: [4, 5, 3], 2: []}
    changes = {(frozenset(gone), frozenset(new)) for gone, new in current.iterate_changes(0, tried)}
    expected = {
        (frozenset(gone), frozenset({(0, 2), (1, third)}))
        for gone in ({(0, 1)}, {(0, 1), (2, 3)})
        for third in tried[1][: merging._MAX_TRIED_PARTNERS_OF_OTHER]
    }
    assert changes == expected
