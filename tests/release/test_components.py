"""Noise per component through the engine: every output in fractions, brute-force Bayes, and the attacks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseRecord, protect
from dphmm.arrays import RandomSource
from dphmm.errors import PromiseError
from dphmm.release.noise import StepNoise
from dphmm.release.step import StepPlan
from tests.running_example import F, graph

MECHANISMS = ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"]
NINE = np.array([[x, y] for y in range(3) for x in range(3)])
ZONED = PolicyGraph.from_groups(9, [[0, 1, 3]]) | PolicyGraph.from_edges(9, [[5, 8]])
"""A corner, an edge, and four states alone: 2 and 4 open below, 6 and 7 exposed."""


def model(size: int) -> MarkovModel:
    start = np.arange(1.0, size + 1)
    return MarkovModel(np.full((size, size), 1 / size), start / start.sum())


def untouchable(_: int) -> bytes:
    raise AssertionError("something was drawn")


def engine(policy: PolicyGraph, f=NINE, mechanism="lattice", rng=1, **settings) -> Releaser:
    settings = {"calibration": "component", "spacing": 1} | settings
    return Releaser(model(policy.size), f, policy, 1.0, mechanism, rng=rng, **settings)


def norm(vector, differences) -> Fraction | None:
    """The norm of a whole vector in the symmetric hull of whole differences, as a fraction; None off their span.

    The least sum of ``|a| + |b|`` with ``a u + b v`` the vector, over pairs of differences: two suffice in the plane.
    """
    x, y = map(int, vector)
    if (x, y) == (0, 0):
        return Fraction(0)
    found = []
    steps = [tuple(map(int, d)) for d in differences if any(d)]
    for u, v in itertools.combinations_with_replacement(steps, 2):
        across = u[0] * v[1] - u[1] * v[0]
        if across:
            found.append(Fraction(abs(x * v[1] - y * v[0]) + abs(u[0] * y - u[1] * x), abs(across)))
        elif x * u[1] == y * u[0]:
            found.append(abs(Fraction(x * u[0] + y * u[1], u[0] ** 2 + u[1] ** 2)))
    return min(found, default=None)


def laws(policy: PolicyGraph, f, added, reach: int = 40):
    """For every state the exponents of all outputs in a window, in fractions, and the repaired graph."""
    repaired = policy.to_networkx()
    repaired.add_edges_from(added)
    table: dict[int, dict[tuple[int, int], Fraction]] = {}
    for part in nx.connected_components(repaired):
        differences = [f[a] - f[b] for a, b in repaired.subgraph(part).edges()]
        window = range(-reach, reach + 1)
        exponents = {(x, y): value for x in window for y in window if (value := norm((x, y), differences)) is not None}
        for state in part:
            px, py = map(int, f[state])
            table[state] = {(x + px, y + py): value for (x, y), value in exponents.items()}
    return table, repaired


POLICIES = {
    "zones": ZONED.with_open([2, 4]),
    "exposed": ZONED,
    "open": PolicyGraph.from_groups(9, [[0, 1, 3]]).with_open([2, 4, 5, 6, 7, 8]),
}


@pytest.fixture(scope="module", params=POLICIES)
def case(request):
    policy = POLICIES[request.param]
    releaser = engine(policy)
    step = releaser.prepare()
    table, repaired = laws(policy, NINE, step.plan.protection.added)
    return releaser, step, table, repaired


def test_every_output_is_within_e_to_the_epsilon_on_every_edge(case):
    releaser, step, table, repaired = case
    for j, k in repaired.edges():
        assert table[j].keys() or not table[k].keys()
        for output in table[j].keys() & table[k].keys():
            assert abs(table[j][output] - table[k][output]) <= 1
    for j in range(9):  # the engine's exponents are these
        for output in list(table[j])[::97]:
            found = step.noise.at(j).exponent(output, releaser.values[j])
            assert found == table[j][output]


def test_likelihoods_sum_to_one_and_are_those_of_brute_force(case):
    releaser, step, table, _ = case
    outputs = sorted(set().union(*(law.keys() for law in table.values())))
    near = [z for z in outputs if max(map(abs, z)) <= 4]
    found = np.array([releaser.log_likelihood(step, z) for z in near])
    for state in range(9):
        total = sum(np.exp(-float(value)) for value in table[state].values())
        expected = [np.exp(-float(table[state][z])) / total if z in table[state] else 0.0 for z in near]
        np.testing.assert_allclose(np.exp(found[:, state]), expected, rtol=1e-6, atol=1e-300)
    # Beyond 25 lies less than 1e-7 of any law: 6,561 outputs of at most exp(-25), where the likeliest weighs 1.
    likely = [z for z in outputs if any(law.get(z, 25) < 25 for law in table.values())]
    everywhere = np.exp([releaser.log_likelihood(step, z) for z in likely]).sum(axis=0)
    np.testing.assert_allclose(everywhere, 1, rtol=1e-6)


def test_the_belief_after_a_release_is_bayes_rule_by_brute_force(case):
    releaser, step, table, _ = case
    other = releaser.another(rng=5)
    prior = other.prior().probabilities
    record = other.release(0)
    z = tuple(int(x) for x in record.released)
    totals = {state: sum(np.exp(-float(value)) for value in law.values()) for state, law in table.items()}
    joint = np.array([prior[s] * np.exp(-float(table[s][z])) / totals[s] if z in table[s] else 0.0 for s in range(9)])
    np.testing.assert_allclose(other.belief.probabilities, joint / joint.sum(), rtol=1e-6, atol=1e-15)
    assert not joint.all() or step.noise.parts  # open states drop out where the release is not theirs


def test_one_normaliser_for_all_components_gives_another_belief():
    """The broken twin of the two tests above."""
    releaser = engine(POLICIES["zones"])
    step = releaser.prepare()
    z = (2, 0)
    found = releaser.log_likelihood(step, z)
    noise = step.noise
    shared = np.array(
        [noise.at(s).log_density(np.array(z), releaser.values[s]) + noise.at(s).log_normaliser for s in range(9)]
    )
    possible = np.isfinite(shared)
    ratio = np.exp(found[possible] - shared[possible])
    assert ratio.max() / ratio.min() > 2


def test_far_components_are_released_exactly_as_without_the_zone():
    far = PolicyGraph.from_edges(9, [[5, 8]])
    rest = [0, 1, 2, 3, 4, 6, 7]
    alone, zoned = engine(far.with_open(rest)), engine(ZONED.with_open([2, 4, 6, 7]))
    steps = alone.prepare(), zoned.prepare()
    for z in itertools.product(range(-3, 6), repeat=2):
        one, two = (releaser.log_likelihood(step, z) for releaser, step in zip((alone, zoned), steps, strict=True))
        assert one[[5, 8]].tolist() == two[[5, 8]].tolist()
        assert one[[2, 4, 6, 7]].tolist() == two[[2, 4, 6, 7]].tolist()


def test_draws_follow_the_stated_probabilities():
    """χ² over outputs from a state of a zone, of a segment and an open one; α = 1e-4 each, n = 4,000, seed 3."""
    from scipy.stats import chi2

    releaser = engine(POLICIES["zones"], rng=3)
    step = releaser.prepare()
    for state in (0, 5, 2):
        drawn = [tuple(step.noise.draw(state, releaser.source).tolist()) for _ in range(4000)]
        cells, counts = np.unique(drawn, axis=0, return_counts=True)
        expected = 4000 * np.exp([releaser.log_likelihood(step, cell)[state] for cell in cells])
        large = expected >= 5
        statistic = ((counts[large] - expected[large]) ** 2 / expected[large]).sum()
        assert large.any()
        assert statistic <= chi2.isf(1e-4, max(int(large.sum()) - 1, 1))
        half = ((counts[large] - expected[large] / 2) ** 2 / (expected[large] / 2)).sum()
        assert half > chi2.isf(1e-4, max(int(large.sum()) - 1, 1))  # a law at half the weight fails


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_densities_of_several_outputs_are_those_of_each(mechanism):
    """Of noise in the plane, on a line and on points; where it is real, those lie in no common measure."""
    noise = engine(POLICIES["zones"], mechanism=mechanism).prepare().noise
    assert len({part.rank for part in noise.parts}) > 1
    states = np.array([5, 0, 2, 8])
    outputs = noise.sample(states, np.random.default_rng(4))
    wanted = [noise.log_density(output)[states] for output in outputs]
    np.testing.assert_allclose(noise.log_densities(outputs, states), wanted, rtol=1e-9)


# ---- records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_open_release_is_the_states_own_point_and_a_hidden_one_is_noise(mechanism):
    for calibration in ("component", "graph"):
        releaser = engine(POLICIES["open"], mechanism=mechanism, calibration=calibration)
        record = releaser.release(4)
        assert (record.released, record.open, record.component_size, record.component_error) == ((1, 1), True, 1, 0)
        assert record.component_certainty > 0.99 or mechanism == "lattice"
        assert (record.components, record.constrained_factor, record.added) == (7, np.inf, ())
        assert record.least_protection == 3
        assert record.epsilon == 1.0
        hidden = releaser.release(0)
        assert hidden.released != (0, 0)
        assert ReleaseRecord.from_json(hidden.to_json()) == hidden


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_record_is_a_function_of_public_things_and_of_the_release(mechanism, monkeypatch):
    """Whoever the true state is: the same release leads to the same record and belief."""
    policy = POLICIES["zones"]
    seen = {}
    for state in range(9):
        releaser = engine(policy, mechanism=mechanism)
        fixed = np.array([2, 1]) if mechanism == "lattice" else np.array([2.25, 1.5])
        monkeypatch.setattr(StepNoise, "draw", lambda *_, fixed=fixed: fixed)
        record = releaser.release(state)
        seen[record.to_json()] = state
    assert len(seen) == 1


def test_the_component_of_a_record_is_the_likeliest_one_and_its_certainty_is_the_posteriors():
    releaser = engine(POLICIES["zones"], rng=8)
    for state in (0, 5, 2, 8, 1, 4):
        record = releaser.release(state)
        assert 0 < record.component_certainty <= 1
        assert record.component_certainty >= 1 / record.components - 1e-12
        if record.open:
            assert record.component_size == 1
            assert record.component_error == 0


def test_the_expected_error_is_the_mean_over_the_prior():
    releaser = engine(graph(), F)
    record = releaser.release(4)
    prior = model(6).initial
    step = engine(graph(), F).prepare()
    squared = np.array([step.noise.at(state).squared_error for state in range(6)])
    assert record.expected_error == pytest.approx(np.sqrt(prior @ squared), rel=1e-12)
    real = engine(graph(), F, "k-norm").prepare()
    assert real.noise.mean_squared_error(prior) == pytest.approx(real.plan.protection.value, rel=1e-12)


# ---- the last look before a draw -----------------------------------------------------------------------------------


def stopped(releaser: Releaser, step, match: str, state: int = 0) -> None:
    with pytest.raises(PromiseError, match=match):
        releaser.draw(step, state)
    assert releaser.belief is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_edges_across_different_noise_stop_the_draw(mechanism):
    releaser = engine(ZONED.with_open([2, 4]), mechanism=mechanism, rng=RandomSource(untouchable))
    step = releaser.prepare()
    noise = step.noise
    for state in (1, 5):
        part_of = noise.part_of.copy()
        part_of[state] = noise.part_of[2]
        stopped(releaser, replace(step, noise=replace(noise, part_of=part_of)), "diff")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_open_state_inside_a_clique_stops_the_draw(mechanism):
    """The broken twin of open states: a plan that releases a connected state as it is."""
    releaser = engine(ZONED.with_open([2, 4]), mechanism=mechanism, rng=RandomSource(untouchable))
    step = releaser.prepare()
    noise = step.noise
    open_part = int(noise.part_of[2])
    part_of = noise.part_of.copy()
    part_of[[0, 1, 3]] = open_part
    stopped(releaser, replace(step, noise=replace(noise, part_of=part_of)), "times eps")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_hidden_state_released_as_if_it_were_open_stops_the_draw(mechanism):
    releaser = engine(ZONED, mechanism=mechanism, rng=RandomSource(untouchable))
    step = releaser.prepare()
    policy = ZONED.with_open([2, 4, 6, 7])
    plan = StepPlan(step.plan.constraint, protect(policy, releaser.measurements, calibration="component"))
    other = replace(step, plan=plan, noise=releaser.noise(plan, 1.0))
    stopped(releaser, other, "hidden among no other states")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_open_states_released_with_the_noise_of_others_stop_the_draw(mechanism):
    releaser = engine(ZONED.with_open([2, 4]), mechanism=mechanism, rng=RandomSource(untouchable))
    shared = engine(PolicyGraph.complete(9), mechanism=mechanism, calibration="graph")
    step = shared.prepare()
    stopped(releaser, replace(releaser.prepare(), noise=step.noise), "open states would be released with")


# ---- several queries, location sets, other settings ----------------------------------------------------------------


def test_queries_answered_together_share_the_components():
    place = engine(ZONED.with_open([2, 4]), rng=2)
    kind = place.beside(np.arange(9).reshape(-1, 1) % 4, mechanism="lattice")
    for state in range(9):
        found = place.release_together(state, kind, epsilon=1.0).records
        assert [record.epsilon for record in found] == [0.5, 0.5]
        place.restart()


def test_a_state_outside_the_location_set_is_released_as_its_stand_in_with_the_stand_ins_noise():
    releaser = engine(POLICIES["open"], delta=0.2)
    step = releaser.prepare()
    assert not step.plan.constraint.all()
    outside = int(np.flatnonzero(~step.plan.constraint)[0])
    likelihood = releaser.log_likelihood(step, (2, 2))
    stand_in = int(releaser.planner.released_as(np.array([outside]), step.plan.constraint)[0])
    assert likelihood[outside] == likelihood[stand_in]
    record = releaser.release(outside)
    assert record.possible == int(step.plan.constraint.sum())


def test_one_possible_state_that_is_open_is_released_and_one_that_is_not_is_refused():
    from dphmm.errors import AlreadyKnownError

    chain = MarkovModel(np.eye(9), np.eye(9)[2])
    record = Releaser(chain, NINE, POLICIES["open"], 1.0, calibration="component", allow_known=True).release(2)
    assert (record.open, record.already_known, record.least_protection) == (True, False, 1)
    hidden = MarkovModel(np.eye(9), np.eye(9)[0])
    with pytest.raises(AlreadyKnownError):
        Releaser(hidden, NINE, POLICIES["open"], 1.0, calibration="component").release(0)


def test_plans_depend_on_the_belief_where_something_is_repaired_and_are_kept_where_nothing_is():
    f = np.array([[0, 0], [1, 0], [5, 0], [6, 0], [3, 0]])
    policy = PolicyGraph.from_edges(5, [[0, 1], [2, 3]])
    first, second = np.array([0.5, 0.3, 0.05, 0.05, 0.1]), np.array([0.05, 0.05, 0.5, 0.3, 0.1])
    still = MarkovModel(np.full((5, 5), 0.2), first)
    releaser = Releaser(still, f, policy, 1.0, calibration="component")
    from dphmm import Belief

    added = [releaser.plan(Belief.of(prior)).protection.added for prior in (first, second)]
    assert added == [((2, 4),), ((1, 4),)]
    kept = Releaser(still, f, policy | PolicyGraph.from_edges(5, [[3, 4]]), 1.0, calibration="component")
    assert kept.plan(Belief.of(first)) is kept.plan(Belief.of(second))
