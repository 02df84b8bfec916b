"""Noise per component: components against networkx, repairs against all partner choices, MATH's values."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest

from dphmm import Measurements, PolicyGraph, SensitivityHull, degree_of_protection, exposed_states, protect
from dphmm.errors import InvalidInputError, PolicyError, StochasticError
from dphmm.geometry.hull import Disc
from dphmm.policy import component_repair as merging
from dphmm.policy import component_repair as merging_search
from dphmm.policy.by_component import NoiseBody
from tests.policy.instances import small_instance
from tests.running_example import F, graph, states
from tests.sizes import few_every_day, fewer, slow

GRID = np.array([[x, y] for y in range(6) for x in range(6)])
CORNER = (GRID < 3).all(axis=1)


def kinds(rng, size: int) -> list[PolicyGraph]:
    """Graphs of every kind over places on a lattice or scattered."""
    f = rng.integers(0, 9, (size, 2)) if rng.random() < 0.5 else rng.random((size, 2)) * 9
    pairs = [pair for pair in rng.integers(0, size, (8, 2)).tolist() if pair[0] != pair[1]]
    made = [
        PolicyGraph.utility(f, float(rng.choice([0.0, 0.5, 1.0, 1.5, 3.1]))),
        PolicyGraph.categorical(rng.integers(-1, 6, size)),
        PolicyGraph.from_edges(size, pairs or np.zeros((0, 2), int)),
        PolicyGraph.from_groups(size, [rng.choice(size, 2, replace=False) for _ in range(4)]),
    ]
    first, second = rng.choice(4, 2)
    return [*made, made[first] | made[second], made[first] & made[second]]


@pytest.mark.parametrize("seed", few_every_day(range(40), 12))
def test_components_are_those_of_networkx_and_edges_cross_labels_where_they_do(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 40))
    for policy in kinds(rng, size):
        mask = rng.random(size) < 0.7
        mask[0] = True
        found = policy.components(mask)
        expected = np.full(size, -1)
        parts = nx.connected_components(policy.restrict(mask).to_networkx())
        for number, part in enumerate(sorted(parts, key=min)):
            expected[list(part)] = number
        assert found.tolist() == expected.tolist()
        assert policy.restrict(mask).components().tolist() == expected.tolist()
        assert not policy.crosses(found, mask)
        labels, edges = rng.integers(0, 2, size), policy.restrict(mask).edge_array()
        assert policy.crosses(labels, mask) == bool((labels[edges[:, 0]] != labels[edges[:, 1]]).any())


def test_the_running_example_by_component():
    repaired = protect(graph(), F, calibration="component")
    assert exposed_states(graph(), F, calibration="component").tolist() == [0]
    assert repaired.added == ((0, 1),)
    assert repaired.certified
    assert repaired.value == pytest.approx(82 / 3, rel=1e-12) == repaired.bound
    errors = sorted(part.hull.squared_error for part in repaired.parts)
    assert errors == pytest.approx([8, 140 / 3], rel=1e-12)
    alone = protect(graph(), F, states(2, 3), calibration="component")
    assert alone.value == pytest.approx(4, rel=1e-12)
    assert repaired.diameter == np.inf
    assert alone.diameter == 1


@pytest.mark.parametrize(
    ("possible", "exposed", "added", "value"), [((3, 4, 5, 6), 2, (2, 4), 47), ((2, 4, 5, 6), 1, (1, 5), 472 / 11)]
)
def test_constrained_running_example_by_component(possible, exposed, added, value):
    mask = states(*possible)
    assert exposed_states(graph(), F, mask, calibration="component").tolist() == [exposed]
    repaired = protect(graph(), F, mask, calibration="component")
    assert (repaired.added, repaired.certified) == ((added,), True)
    assert repaired.value == pytest.approx(value, rel=1e-12)


def test_being_inside_another_components_hull_hides_nothing():
    mask = states(2, 4, 5, 6)
    assert exposed_states(graph(), F, mask).tolist() == []
    assert exposed_states(graph(), F, mask, calibration="component").tolist() == [1]


def test_a_private_corner_costs_the_rest_nothing():
    policy = PolicyGraph.categorical(np.where(CORNER, 0, -1)).with_open(~CORNER)
    by_component, shared = protect(policy, GRID, calibration="component"), protect(policy, GRID)
    assert by_component.value == pytest.approx(8, rel=1e-12)
    assert shared.value == pytest.approx(32, rel=1e-12)
    for found in (by_component, shared):
        assert found.added == ()
        assert found.diameter == np.inf
        assert len(found.parts) == 2
        assert found.open.tolist() == (~CORNER).tolist()
    degrees = degree_of_protection(policy, GRID, calibration="component")
    assert (degrees[CORNER] == 9).all()
    assert (degrees[~CORNER] == 1).all()
    assert not len(exposed_states(policy, GRID, calibration="component"))


def exhaustive(f, policy: PolicyGraph, mask, prior, body: str, objective: str) -> float:
    """The least mean over one partner for every exposed state, by trying them all."""
    weights = np.where(mask, prior, 0) / prior[mask].sum()
    start = policy.restrict(mask).to_networkx()
    lone = [state for state in start if start.degree(state) == 0 and not policy.open[state]]

    def mean(repaired) -> float:
        total = 0.0
        for part in nx.connected_components(repaired):
            differences = [f[a] - f[b] for a, b in repaired.subgraph(part).edges()]
            noise = SensitivityHull(np.array(differences).reshape(-1, 2))
            if noise.dimension == 0:
                continue
            if body == "disc":
                noise = Disc(noise.circumradius, 2)
            elif body == "cross-polytope":
                noise = SensitivityHull(np.abs(noise.vertices).sum(axis=1).max() * np.eye(2))
            total += weights[list(part)].sum() * (noise.volume if objective == "volume" else noise.squared_error)
        return total

    best = np.inf
    for chosen in itertools.product(*[[j for j in np.flatnonzero(mask) if j != i] for i in lone]):
        repaired = start.copy()
        repaired.add_edges_from(zip(lone, chosen, strict=True))
        best = min(best, mean(repaired))
    return best


def instance(seed: int):
    """Eight states in categories, of which some that are alone are open, and how probable each is."""
    f, policy, mask = small_instance(seed)
    rng = np.random.default_rng(seed)
    if seed % 3 == 0:
        policy = policy.with_open(~policy.connected() & (rng.random(8) < 0.5))
    return f, policy, mask, rng.random(8) + 0.01 if seed % 2 else np.ones(8)


@pytest.mark.parametrize(
    ("body", "objective"),
    [
        ("hull", "error"), ("cross-polytope", "volume"), ("disc", "error"),
        slow("hull", "volume"), slow("cross-polytope", "error"), slow("disc", "volume"),
    ],
)  # fmt: skip
def test_the_exact_repair_is_the_best_of_all_partner_choices_and_others_are_sound(body, objective):
    for seed in range(fewer(14, 7)):
        f, policy, mask, prior = instance(seed)
        if len(exposed_states(policy, f, mask, calibration="component")) > 4:
            continue
        best = exhaustive(f, policy, mask, prior, body, objective)
        for method in ("exact", "sequential", "greedy"):
            found = protect(
                policy, f, mask, method, objective, body, calibration="component", prior=prior, repair_limit=20_000
            )
            assert found.bound <= best * (1 + 1e-9) + 1e-12
            assert found.value >= best * (1 - 1e-9)
            assert not ((found.degrees == 1) & mask & ~found.open).any()
            if method == "exact":
                assert found.certified
                assert found.value == pytest.approx(best, rel=1e-9, abs=1e-12)


def test_without_work_a_repair_is_sound_and_says_how_far_from_the_best_it_may_be():
    f = np.random.default_rng(2).integers(0, 30, (12, 2))
    policy = PolicyGraph.from_edges(12, [[0, 1]])
    short = protect(policy, f, calibration="component", repair_limit=0)
    full = protect(policy, f, calibration="component", repair_limit=200)
    assert not (short.degrees == 1).any()
    assert short.bound <= full.value * (1 + 1e-12) <= short.value * (1 + 1e-9)
    assert 0 <= full.gap <= short.gap <= 1


def test_every_bound_of_the_search_is_paid_for_out_of_what_a_repair_may_cost(monkeypatch):
    """A bound costs 40,000 units however little its shapes do: many partners that lead nowhere end the search too."""
    bound, asked = merging_search._Search._bound, []
    monkeypatch.setattr(merging_search._Search, "_bound", lambda *given: (asked.append(0), bound(*given))[1])
    f = np.random.default_rng(3).integers(0, 60, (60, 2))
    policy = PolicyGraph.from_edges(60, [[k, k + 1] for k in range(0, 44, 2)])
    protect(policy, f, calibration="component", repair_limit=500)
    assert 1_000 < len(asked) <= 500 * 1_000_000 / 40_000


def test_a_repair_that_forgets_the_partners_component_is_found_out(monkeypatch):
    """The broken twin: costs of the merged component taken at the state's own probability alone."""

    def broken(self, edges):
        shape, joined = self.shape_of(edges)
        own = sum(float(self.weights[c]) for c in joined if len(self.shapes[c].vertices) == 1)
        return merging.Cluster(own * self.costs.of(shape), 0.0, own, tuple(joined))

    monkeypatch.setattr(merging.MergingProblem, "cluster", broken)
    differ = 0
    for seed in range(8):
        f, policy, mask, prior = instance(seed)
        if 0 < len(exposed_states(policy, f, mask, calibration="component")) <= 3:
            best = exhaustive(f, policy, mask, prior, "hull", "error")
            found = protect(policy, f, mask, calibration="component", prior=prior)
            differ += abs(found.value - best) > 1e-6 * best
    assert differ


@pytest.mark.parametrize("prior", [[0.5, 0.5], [-1, 1, 1, 1, 1, 1], [np.nan] * 6, [0] * 6])
def test_a_prior_that_is_none_is_refused(prior):
    with pytest.raises(StochasticError, match="the prior"):
        protect(graph(), F, calibration="component", prior=prior)


def test_an_unknown_calibration_is_refused():
    with pytest.raises(InvalidInputError, match="calibration is 'city'; choose one of graph, component"):
        protect(graph(), F, calibration="city")


# ---- open states ---------------------------------------------------------------------------------------------------


def test_an_open_state_has_no_edge():
    with pytest.raises(PolicyError, match="state 1 is open and connected by the policy"):
        graph().with_open([1])
    lone = PolicyGraph.from_edges(4, [[0, 1]]).with_open([2])
    assert lone.open.tolist() == [False, False, True, False]
    with pytest.raises(PolicyError, match="state 2 is open and connected"):
        lone | PolicyGraph.from_edges(4, [[2, 3]])
    with pytest.raises(PolicyError, match="state 4, which does not exist"):
        lone.with_open([4])
    with pytest.raises(PolicyError, match="booleans of shape"):
        lone.with_open([True, False])


def test_open_states_through_restriction_union_intersection_edges_and_files(tmp_path):
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


def test_an_exposed_state_among_open_ones_takes_one_of_them_which_is_open_no_longer():
    f = np.array([[0, 0], [1, 0], [5, 0]])
    policy = PolicyGraph.from_edges(3, []).with_open([1, 2])
    for calibration in ("graph", "component"):
        found = protect(policy, f, calibration=calibration)
        assert found.added == ((0, 1),)
        assert found.open.tolist() == [False, False, True]
        assert found.degrees.tolist() == [2, 2, 1]


@pytest.mark.parametrize("spacing", [1.0, 0.25])
def test_the_body_of_noise_is_in_the_unit_of_the_measurements_whatever_its_kind(spacing):
    measurements = Measurements(spacing * np.array([[0, 0], [1, 0], [0, 1], [3, 4]]))
    assert measurements.spacing.tolist() == [spacing] * 2
    hull = SensitivityHull([[3, 0], [0, 4]])
    made = {body: NoiseBody.around(measurements, hull, body) for body in ("hull", "cross-polytope", "disc")}
    for one in made.values():
        assert one.hull.volume == pytest.approx(spacing**2 * hull.volume)
        assert one.coordinate_hull is hull
    assert made["hull"].body is made["hull"].hull
    assert made["cross-polytope"].body.volume == pytest.approx(2 * (4 * spacing) ** 2)
    assert made["disc"].body.radius == pytest.approx(4 * spacing)


def test_changes_combine_every_alternative_with_every_edge_that_a_partner_can_give_up():
    """State 0 leaves partner 1 for 2. Then 1 takes 4 or 5, and 2, which has a new edge, may give up its edge to 3."""

    class Problem:
        is_exposed = frozenset({0, 1, 2})

        @staticmethod
        def clusters(edges):
            return []

    current = merging._Current(Problem, [(0, 1), (2, 3)])
    tried = {0: [2], 1: [4, 5, 3], 2: []}
    changes = {(frozenset(gone), frozenset(new)) for gone, new in current.changes(0, tried)}
    expected = {
        (frozenset(gone), frozenset({(0, 2), (1, third)}))
        for gone in ({(0, 1)}, {(0, 1), (2, 3)})
        for third in tried[1][: merging._TRIED_ALONE]
    }
    assert changes == expected
