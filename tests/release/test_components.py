"""Noise per component in the engine, against exact fractions, direct Bayes and attacks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseRecord, protect
from dphmm.errors import GuaranteeError
from dphmm.random import RandomSource
from dphmm.release.step_noise import StepNoise
from dphmm.release.step_noise_builder import NoiseBuilder
from tests.running_example import F, build_graph

MECHANISMS = ["lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"]
NINE = np.array([[x, y] for y in range(3) for x in range(3)])
# A corner, an edge and four isolated states: 2 and 4 are unprotected below, 6 and 7 exposed.
ZONED = PolicyGraph.from_groups(9, [[0, 1, 3]]) | PolicyGraph.from_edges(9, [[5, 8]])


def build_model(size: int) -> MarkovModel:
    start = np.arange(1.0, size + 1)
    return MarkovModel(np.full((size, size), 1 / size), start / start.sum())


def refuse_drawing(_: int) -> bytes:
    raise AssertionError("something was drawn")


def make_engine(policy: PolicyGraph, f=NINE, mechanism="lattice", rng=1, **settings) -> Releaser:
    settings = {"noise_scope": "component", "spacing": 1} | settings
    return Releaser(build_model(policy.size), f, policy, 1.0, mechanism, rng=rng, **settings)


def compute_norm(vector, differences) -> Fraction | None:
    """Compute the norm of an integer vector in the symmetric hull of integer differences.

    The result is a fraction, or None outside their span. It is the least sum of ``|a| + |b|`` with ``a u + b v`` the
    vector, over pairs of differences. Two differences suffice in the plane.
    """
    x, y = map(int, vector)
    if (x, y) == (0, 0):
        return Fraction(0)
    norms = []
    steps = [tuple(map(int, d)) for d in differences if any(d)]
    for u, v in itertools.combinations_with_replacement(steps, 2):
        across = u[0] * v[1] - u[1] * v[0]
        if across:
            norms.append(Fraction(abs(x * v[1] - y * v[0]) + abs(u[0] * y - u[1] * x), abs(across)))
        elif x * u[1] == y * u[0]:
            norms.append(abs(Fraction(x * u[0] + y * u[1], u[0] ** 2 + u[1] ** 2)))
    return min(norms, default=None)


def enumerate_exponents(policy: PolicyGraph, f, added, reach: int = 40):
    """Enumerate the exponents of all outputs in a window for every state, in fractions.

    Returns the table and the repaired graph.
    """
    repaired = policy.to_networkx()
    repaired.add_edges_from(added)
    table: dict[int, dict[tuple[int, int], Fraction]] = {}
    for part in nx.connected_components(repaired):
        differences = [f[a] - f[b] for a, b in repaired.subgraph(part).edges()]
        window = range(-reach, reach + 1)
        exponents = {
            (x, y): value for x in window for y in window if (value := compute_norm((x, y), differences)) is not None
        }
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
    releaser = make_engine(policy)
    step = releaser.prepare()
    table, repaired = enumerate_exponents(policy, NINE, step.protection.added)
    return releaser, step, table, repaired


@pytest.mark.slow
def test_output_exponents_differ_by_at_most_epsilon_on_every_edge(case):
    releaser, step, table, repaired = case
    for j, k in repaired.edges():
        assert table[j].keys() or not table[k].keys()
        for output in table[j].keys() & table[k].keys():
            assert abs(table[j][output] - table[k][output]) <= 1
    for j in range(9):  # the engine computes these exponents
        for output in list(table[j])[::97]:
            exponent = step.noise.get_mechanism(j).exponent(output, releaser.query.values[j])
            assert exponent == table[j][output]


@pytest.mark.slow
def test_likelihoods_are_normalized_and_match_enumeration(case):
    releaser, step, table, _ = case
    outputs = sorted(set().union(*(law.keys() for law in table.values())))
    near = [z for z in outputs if max(map(abs, z)) <= 4]
    log_likelihoods = np.array([releaser.log_likelihood(step, z) for z in near])
    for state in range(9):
        total = sum(np.exp(-float(value)) for value in table[state].values())
        expected = [np.exp(-float(table[state][z])) / total if z in table[state] else 0.0 for z in near]
        np.testing.assert_allclose(np.exp(log_likelihoods[:, state]), expected, rtol=1e-6, atol=1e-300)
    # Exponents above 25 have a mass below 1e-7: 6,561 outputs of at most exp(-25), where the likeliest weighs 1.
    likely = [z for z in outputs if any(law.get(z, 25) < 25 for law in table.values())]
    everywhere = np.exp([releaser.log_likelihood(step, z) for z in likely]).sum(axis=0)
    np.testing.assert_allclose(everywhere, 1, rtol=1e-6)


def test_belief_after_release_matches_bayes_rule(case):
    releaser, step, table, _ = case
    other = releaser.spawn(rng=5)
    prior = other.predict().probabilities
    record = other.release(0)
    z = tuple(int(x) for x in record.released)
    totals = {state: sum(np.exp(-float(value)) for value in law.values()) for state, law in table.items()}
    joint = np.array([prior[s] * np.exp(-float(table[s][z])) / totals[s] if z in table[s] else 0.0 for s in range(9)])
    np.testing.assert_allclose(other.belief.probabilities, joint / joint.sum(), rtol=1e-6, atol=1e-15)
    assert not joint.all() or step.noise.parts  # unprotected states are excluded unless the release is their own


def test_shared_normalizer_gives_different_likelihoods():
    """Check that the two tests above would detect a shared normalizer."""
    releaser = make_engine(POLICIES["zones"])
    step = releaser.prepare()
    z = (2, 0)
    log_likelihood = releaser.log_likelihood(step, z)
    noise = step.noise
    shared = np.array(
        [
            noise.get_mechanism(s).log_density(np.array(z), releaser.query.values[s])
            + noise.get_mechanism(s).log_normaliser
            for s in range(9)
        ]
    )
    possible = np.isfinite(shared)
    ratio = np.exp(log_likelihood[possible] - shared[possible])
    assert ratio.max() / ratio.min() > 2


def test_distant_components_are_unaffected_by_zone():
    far = PolicyGraph.from_edges(9, [[5, 8]])
    rest = [0, 1, 2, 3, 4, 6, 7]
    alone, zoned = make_engine(far.with_open(rest)), make_engine(ZONED.with_open([2, 4, 6, 7]))
    steps = alone.prepare(), zoned.prepare()
    for z in itertools.product(range(-3, 6), repeat=2):
        first, two = (releaser.log_likelihood(step, z) for releaser, step in zip((alone, zoned), steps, strict=True))
        assert first[[5, 8]].tolist() == two[[5, 8]].tolist()
        assert first[[2, 4, 6, 7]].tolist() == two[[2, 4, 6, 7]].tolist()


@pytest.mark.slow
def test_draws_match_stated_probabilities():
    """Run a χ² test for a zone, a segment and an unprotected state.

    α = 1e-4 each, n = 4,000, seed 3.
    """
    from scipy.stats import chi2

    releaser = make_engine(POLICIES["zones"], rng=3)
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
        assert half > chi2.isf(1e-4, max(int(large.sum()) - 1, 1))  # half the probabilities fail the test


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_log_densities_match_log_density_of_each_output(mechanism):
    """Cover noise in the plane, on a line and on points.

    Real-valued noise of these types has no common reference measure.
    """
    noise = make_engine(POLICIES["zones"], mechanism=mechanism).prepare().noise
    assert len({part.rank for part in noise.parts}) > 1
    states = np.array([5, 0, 2, 8])
    outputs = noise.sample(states, np.random.default_rng(4))
    wanted = [noise.log_density(output)[states] for output in outputs]
    np.testing.assert_allclose(noise.log_densities(outputs, states), wanted, rtol=1e-9)


# ---- records -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_unprotected_state_is_released_exactly_and_protected_state_with_noise(mechanism):
    for noise_scope in ("component", "graph"):
        releaser = make_engine(POLICIES["open"], mechanism=mechanism, noise_scope=noise_scope)
        record = releaser.release(4)
        assert (record.released, record.is_unprotected, record.component_num_states, record.component_error) == (
            (1, 1),
            True,
            1,
            0,
        )
        assert record.component_posterior > 0.99 or mechanism == "lattice"
        assert (record.num_components, record.constrained_dp_factor, record.added_edges) == (7, np.inf, ())
        assert record.min_degree_of_protection == 3
        assert record.epsilon == 1.0
        hidden = releaser.release(0)
        assert hidden.released != (0, 0)
        assert ReleaseRecord.from_json(hidden.to_json()) == hidden


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_record_depends_on_release_and_public_data_only(mechanism, monkeypatch):
    """Fix the release: all true states lead to the same record and belief."""
    policy = POLICIES["zones"]
    seen = {}
    for state in range(9):
        releaser = make_engine(policy, mechanism=mechanism)
        fixed = np.array([2, 1]) if mechanism == "lattice" else np.array([2.25, 1.5])
        monkeypatch.setattr(StepNoise, "draw", lambda *_, fixed=fixed: fixed)
        record = releaser.release(state)
        seen[record.to_json()] = state
    assert len(seen) == 1


def test_record_component_is_most_probable_and_has_its_posterior():
    releaser = make_engine(POLICIES["zones"], rng=8)
    for state in (0, 5, 2, 8, 1, 4):
        record = releaser.release(state)
        assert 0 < record.component_posterior <= 1
        assert record.component_posterior >= 1 / record.num_components - 1e-12
        if record.is_unprotected:
            assert record.component_num_states == 1
            assert record.component_error == 0


def test_withheld_timestep_is_not_unprotected():
    """Nothing is released there, whether or not the first state is open."""
    for opened in (0, 8):
        releaser = make_engine(PolicyGraph.from_groups(9, [[1, 3, 4]]).with_open([0, 2, 5, 6, 7, 8]))
        assert releaser.release(opened).is_unprotected
        plan = releaser.build_plan(releaser.belief.predict(releaser.model, 1), 0.0, 1, "budget")
        assert not releaser.draw(plan, opened).is_unprotected


def test_expected_error_averages_over_prior():
    releaser = make_engine(build_graph(), F)
    record = releaser.release(4)
    prior = build_model(6).initial
    step = make_engine(build_graph(), F).prepare()
    squared = np.array([step.noise.get_mechanism(state).squared_error for state in range(6)])
    assert record.expected_error == pytest.approx(np.sqrt(prior @ squared), rel=1e-12)
    real = make_engine(build_graph(), F, "k-norm").prepare()
    assert real.noise.mean_squared_error(prior) == pytest.approx(real.protection.objective_value, rel=1e-12)


# ---- soundness check before a draw----------------------------------------------------------------------------------


def assert_draw_raises(releaser: Releaser, step, match: str, state: int = 0) -> None:
    with pytest.raises(GuaranteeError, match=match):
        releaser.draw(step, state)
    assert releaser.belief is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_edge_across_noise_parts_raises(mechanism):
    releaser = make_engine(ZONED.with_open([2, 4]), mechanism=mechanism, rng=RandomSource(refuse_drawing))
    step = releaser.prepare()
    releaser.soundness(step)  # a plan equal to it is not verified again
    noise = step.noise
    for state in (1, 5):
        part_of = noise.part_of.copy()
        part_of[state] = noise.part_of[2]
        assert_draw_raises(releaser, replace(step, noise=replace(noise, part_of=part_of)), "diff")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_unprotected_noise_for_clique_raises(mechanism):
    """Break the plan: connected states get the noise of an unprotected one."""
    releaser = make_engine(ZONED.with_open([2, 4]), mechanism=mechanism, rng=RandomSource(refuse_drawing))
    step = releaser.prepare()
    noise = step.noise
    open_part = int(noise.part_of[2])
    part_of = noise.part_of.copy()
    part_of[[0, 1, 3]] = open_part
    assert_draw_raises(releaser, replace(step, noise=replace(noise, part_of=part_of)), "times eps")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_protected_state_without_noise_raises(mechanism):
    releaser = make_engine(ZONED, mechanism=mechanism, rng=RandomSource(refuse_drawing))
    step = releaser.prepare()
    policy = ZONED.with_open([2, 4, 6, 7])
    protection = protect(policy, releaser.measurements, noise_scope="component")
    other = replace(
        step, protection=protection, noise=NoiseBuilder(releaser.settings, releaser.query).build(protection, 1.0)
    )
    assert_draw_raises(releaser, other, "has no indistinguishable partner")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_unprotected_states_with_noise_raise(mechanism):
    releaser = make_engine(ZONED.with_open([2, 4]), mechanism=mechanism, rng=RandomSource(refuse_drawing))
    shared = make_engine(PolicyGraph.complete(9), mechanism=mechanism, noise_scope="graph")
    step = shared.prepare()
    assert_draw_raises(
        releaser, replace(releaser.prepare(), noise=step.noise), "unprotected states would be released with"
    )


# ---- several queries, location sets, other settings ----------------------------------------------------------------


@pytest.mark.slow
def test_joint_queries_split_budget_with_component_noise():
    place = make_engine(ZONED.with_open([2, 4]), rng=2)
    kind = place.for_query(np.arange(9).reshape(-1, 1) % 4, mechanism="lattice")
    for state in range(9):
        records = place.release_together(state, kind, epsilon=1.0).records
        assert [record.epsilon for record in records] == [0.5, 0.5]
        place.restart()


def test_state_outside_location_set_uses_noise_of_its_surrogate():
    releaser = make_engine(POLICIES["open"], delta=0.2)
    step = releaser.prepare()
    assert not step.constraint.all()
    outside = int(np.flatnonzero(~step.constraint)[0])
    likelihood = releaser.log_likelihood(step, (2, 2))
    stand_in = int(releaser.planner.map_to_surrogates(np.array([outside]), step.constraint)[0])
    assert likelihood[outside] == likelihood[stand_in]
    record = releaser.release(outside)
    assert record.num_possible_states == int(step.constraint.sum())


def test_singleton_constraint_is_released_if_unprotected_and_raises_otherwise():
    from dphmm.errors import SingletonConstraintError

    chain = MarkovModel(np.eye(9), np.eye(9)[2])
    record = Releaser(chain, NINE, POLICIES["open"], 1.0, noise_scope="component", allow_singleton=True).release(2)
    assert (record.is_unprotected, record.is_singleton, record.min_degree_of_protection) == (True, False, 1)
    hidden = MarkovModel(np.eye(9), np.eye(9)[0])
    with pytest.raises(SingletonConstraintError):
        Releaser(hidden, NINE, POLICIES["open"], 1.0, noise_scope="component").release(0)


def test_repair_depends_on_belief_only_if_states_are_exposed():
    f = np.array([[0, 0], [1, 0], [5, 0], [6, 0], [3, 0]])
    policy = PolicyGraph.from_edges(5, [[0, 1], [2, 3]])
    first, second = np.array([0.5, 0.3, 0.05, 0.05, 0.1]), np.array([0.05, 0.05, 0.5, 0.3, 0.1])
    still = MarkovModel(np.full((5, 5), 0.2), first)
    releaser = Releaser(still, f, policy, 1.0, noise_scope="component")
    from dphmm import Belief

    added = [
        releaser.planner.build_plan(Belief.from_probabilities(prior)).protection.added for prior in (first, second)
    ]
    assert added == [((2, 4),), ((1, 4),)]
    kept = Releaser(still, f, policy | PolicyGraph.from_edges(5, [[3, 4]]), 1.0, noise_scope="component")
    plans = [kept.planner.build_plan(Belief.from_probabilities(prior)) for prior in (first, second)]
    assert plans[0].repair_id == plans[1].repair_id
