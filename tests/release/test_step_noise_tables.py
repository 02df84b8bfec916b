"""Steps with noise tables: repairs, beliefs, soundness checks, caches and refusals."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule, Session
from dphmm.errors import ConfigurationError, CoordinateError, GuaranteeError, PolicyError
from dphmm.mechanisms import TABLE_MECHANISMS, TableMechanism
from dphmm.mechanisms.noise_tables import ROW_WEIGHT
from dphmm.model import Belief
from dphmm.release.budget_schedule import BudgetEffects, Scheduler
from dphmm.release.engine import prepare_together
from tests.mechanisms.test_noise_tables_values import _bound_exp
from tests.sizes import mark_slow

F = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]], dtype=float)
POLICY = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
UNIFORM = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
# Two halves without transitions between them.
BLOCKS = np.kron(np.eye(2), np.full((3, 3), 1 / 3))


def make_releaser(mechanism, policy=POLICY, model=UNIFORM, f=F, **settings):
    return Releaser(model, f, policy, 1.0, mechanism=mechanism, rng=settings.pop("rng", 0), **settings)


def enumerate_table(step, f):
    """Return the table of a step in fractions, by the mechanism of each state."""
    noise, probabilities = step.noise, {}
    for s in np.flatnonzero(step.constraint).tolist():
        for z in {tuple(point) for point in f.tolist()}:
            mechanism = noise.get_mechanism(s)
            at = mechanism.probability(z, f[s]) if isinstance(mechanism, TableMechanism) else Fraction(z == tuple(f[s]))
            probabilities[s, z] = at
    return probabilities


@pytest.mark.parametrize("mechanism", sorted(TABLE_MECHANISMS))
def test_tables_keep_exact_ratio_on_every_edge_and_repair_exposed_state(mechanism):
    releaser = make_releaser(mechanism)
    step = releaser.prepare()
    table, limit = enumerate_table(step, F), _bound_exp(1.0)
    edges = step.protection.graph.edge_array().tolist()
    assert sorted({state for edge in edges for state in edge}) == list(range(6)), "s1 has a partner"
    assert len(step.protection.added) == 1
    for s in range(6):
        assert sum(table[s, tuple(z)] for z in F.tolist()) == 1
    for j, k in edges:
        for z in map(tuple, F.tolist()):
            assert table[j, z] <= limit * table[k, z]
            assert table[k, z] <= limit * table[j, z]
    record = releaser.draw(step, 0)
    assert record.is_exact
    assert record.min_degree_of_protection == 2
    assert record.num_components == 2
    assert record.constrained_dp_factor == np.inf
    assert record.released in {tuple(point) for point in F.tolist()}


@pytest.mark.parametrize("mechanism", sorted(TABLE_MECHANISMS))
def test_belief_matches_bayes_rule_with_table_column(mechanism):
    releaser = make_releaser(mechanism, PolicyGraph.utility(F, 1.6))
    prior = np.full(6, 1 / 6)
    for state in (4, 0, 2):
        step = releaser.prepare()
        table = enumerate_table(step, F)
        record = releaser.draw(step, state)
        column = np.array([float(table[s, record.released]) for s in range(6)])
        expected = prior * column / (prior @ column)
        np.testing.assert_allclose(releaser.belief.probabilities, expected, rtol=1e-9)
        np.testing.assert_allclose(np.exp(releaser.log_likelihood(step, record.released)), column, rtol=1e-9)
        prior = expected @ np.full((6, 6), 1 / 6)


def test_expected_error_is_table_error_under_prior():
    releaser = make_releaser("optimal", PolicyGraph.utility(F, 1.6))
    releaser.release(3)
    step = releaser.prepare()
    table, prior = enumerate_table(step, F), step.prior.probabilities
    squared = sum(prior[s] * float(p) * np.square(F[s] - z).sum() for (s, z), p in table.items())
    assert releaser.draw(step, 3).expected_error == pytest.approx(squared**0.5, rel=1e-9)


def test_table_is_cached_while_component_belief_is_equal_and_is_reproducible():
    apart = MarkovModel(BLOCKS, np.full(6, 1 / 6))
    releaser = make_releaser("optimal", PolicyGraph.from_groups(6, [[0, 1, 2], [3, 4, 5]]), apart)
    first, again = releaser.prepare().noise, releaser.prepare().noise
    assert first is again
    releaser.release(1)
    later = releaser.prepare().noise
    fresh = make_releaser("optimal", PolicyGraph.from_groups(6, [[0, 1, 2], [3, 4, 5]]), apart)
    fresh.resume(releaser.belief, 1)
    for table, other in zip(later.parts[1:], fresh.prepare().noise.parts[1:], strict=True):
        np.testing.assert_array_equal(table.weights, other.weights)
    assert any(table is other for table in first.parts[1:] for other in later.parts[1:])


def test_unprotected_states_are_released_exactly_and_others_from_table():
    policy = PolicyGraph.from_groups(6, [[0, 1, 2]]).with_open([3, 4, 5])
    releaser = make_releaser("optimal", policy, rng=3)
    step = releaser.prepare()
    table = enumerate_table(step, F)
    assert all(table[s, tuple(F[s])] == 1 for s in (3, 4, 5))
    assert releaser.draw(step, 4).released == (4.0, 2.0)
    assert releaser.release(0).released in {tuple(point) for point in F[:3].tolist()}


def test_invalid_table_raises_before_draw():
    """Omit an edge from the program, use rows that are not distributions, or omit a state."""
    policy = PolicyGraph.utility(F, 1.6)
    releaser = make_releaser("optimal", policy)
    step = releaser.prepare()
    (as_is, good), parts = step.noise.parts, step.noise.part_of

    def assert_refused(table, match, members=parts):
        noise = replace(step.noise, part_of=members, parts=(as_is, table))
        with pytest.raises(GuaranteeError, match=match):
            releaser.draw(replace(step, noise=noise), 0)

    edges = step.protection.graph.edge_array()
    lacking = TableMechanism.optimal(F, [edge for edge in edges.tolist() if edge != [0, 1]], 1.0)
    assert_refused(lacking, "must be at most epsilon, got more in a table")
    over = TableMechanism.optimal(F, edges, 1.0 + 1e-3)
    assert_refused(over, "must be at most epsilon, got more in a table")
    weights = good.weights.copy()
    weights[0, 0] += 1
    bad = TableMechanism.optimal(F, edges, 1.0)
    bad.weights = weights
    assert_refused(bad, "is not a probability distribution over the locations")
    assert_refused(
        TableMechanism.optimal(F[:5], [(0, 1), (1, 2), (2, 4), (0, 3)], 1.0),
        "is not a probability distribution over the locations",
    )
    assert (good.weights.sum(axis=1) == ROW_WEIGHT).all()
    assert releaser.draw(step, 0).min_degree_of_protection >= 2


def test_state_without_neighbour_raises():
    releaser = make_releaser("optimal")
    step = releaser.prepare()
    bare = replace(step.protection, added=())
    with pytest.raises(GuaranteeError, match=r"state 0 has no indistinguishable partner"):
        releaser.draw(replace(step, protection=bare), 0)


def test_component_above_limit_raises_or_uses_fallback():
    policy = PolicyGraph.utility(F, 1.6)
    with pytest.raises(
        ConfigurationError, match=r"at most 5 states for mechanism 'optimal', got 6: .*optimal_fallback"
    ) as caught:
        make_releaser("optimal", policy, optimal_max_states=5).prepare()
    assert "\n" not in str(caught.value)
    zone = PolicyGraph.complete(6)
    assert make_releaser("optimal", zone, optimal_max_states=2).prepare().noise.parts[1].loss < 1e-4, (
        "four times as many"
    )
    nine = MarkovModel(np.full((9, 9), 1 / 9), np.full(9, 1 / 9))
    with pytest.raises(ConfigurationError, match=r"at most 8 states for mechanism 'optimal', got 9"):
        make_releaser("optimal", PolicyGraph.complete(9), nine, np.arange(9.0)[:, None], optimal_max_states=2).prepare()
    fallback = (
        make_releaser("optimal", policy, optimal_max_states=5, optimal_fallback="graph-exponential")
        .prepare()
        .noise.parts[1]
    )
    np.testing.assert_array_equal(
        fallback.weights, make_releaser("graph-exponential", policy).prepare().noise.parts[1].weights
    )
    line = np.arange(2100.0)[:, None]
    many = MarkovModel.fit([np.arange(2100)], 2100, smoothing=1.0)
    with pytest.raises(PolicyError, match="at most 2,048 states for a table, got 2,100"):
        make_releaser("graph-exponential", PolicyGraph.utility(line, 1.0), many, line).prepare()


@pytest.mark.parametrize("mechanism", sorted(TABLE_MECHANISMS))
def test_joint_answers_by_table_and_hull_keep_sum_on_every_edge(mechanism):
    place = make_releaser(mechanism)
    kinds = place.for_query([[0.0], [4.0], [8.5], [1.0], [9.0], [1.0]], mechanism="k-norm", epsilon=0.5)
    turned = place.for_query(F[::-1].copy(), mechanism="optimal", epsilon=0.25)
    for first, *others in ((place, kinds, turned), (kinds, turned, place)):
        steps = prepare_together((first, *others), None)
        losses = np.zeros((6, 6))
        for engine, step in zip((first, *others), steps, strict=True):
            noise = step.noise
            for s, t in product(range(6), repeat=2):
                apart = noise.part_of[s] != noise.part_of[t]
                losses[s, t] += (
                    np.inf
                    if apart
                    else noise.get_mechanism(s).privacy_loss(engine.query.values[s], engine.query.values[t])
                )
        edges = {tuple(edge) for step in steps for edge in step.protection.graph.edge_array().tolist()}
        assert len({step.protection.added for step in steps}) == 1
        assert {state for edge in edges for state in edge} == set(range(6))
        assert max(losses[j, k] for j, k in edges) <= 1.75 * (1 + 1e-9)
        answers = first.release_together(2, *others)
        assert answers.epsilon == 1.75
        assert len({record.index for record in answers.records}) == 3


SLOW = MarkovModel(np.eye(6) * 0.7 + 0.05, np.full(6, 1 / 6), step_seconds=3600.0)


@pytest.mark.parametrize("mechanism", sorted(TABLE_MECHANISMS))
def test_predicted_error_of_tables_matches_enumeration(mechanism):
    releaser, prior = make_releaser(mechanism, model=SLOW), np.array([0.4, 0.05, 0.2, 0.2, 0.1, 0.05])
    belief = Belief.from_probabilities(prior)
    table = enumerate_table(releaser.build_plan(belief, 1.0), F)
    plan, expected = releaser.planner.build_plan(belief), 0.0
    for z in map(tuple, F.tolist()):
        joint = prior * [float(table[s, z]) for s in range(6)]
        expected += joint @ np.linalg.norm(F - joint @ F / joint.sum(), axis=1)
    outlooks = BudgetEffects(Scheduler(Schedule(0.9), SLOW, F), plan, releaser.planner, 9.0)
    assert outlooks.compute_effect(1.0).error == pytest.approx(expected, rel=1e-9)
    assert outlooks.compute_effect(0.5).error > 1.02 * expected, "half the budget gives a larger error"


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [mark_slow(Schedule(1.1)), Schedule(0.9, 6.0, 10 * 3600)])
def test_schedule_with_tables_continues_after_restart(tmp_path, schedule):
    def make_engine(source):
        return make_releaser("optimal", model=SLOW, schedule=schedule, rng=source)

    source, records = np.random.default_rng(5), []
    with Session.open(tmp_path / "whole.db", "ann", make_engine(source)) as session:
        whole = [session.release(slot % 6, slot) for slot in range(16)]
    source = np.random.default_rng(5)
    for slot in range(16):
        if slot % 5 == 0:
            handle = Session.open(tmp_path / "parts.db", "ann", make_engine(source))
        records.append(handle.release(slot % 6, slot))
        if slot % 5 == 4 or slot == 15:
            handle.close()
    assert records == whole
    assert {record.withheld for record in whole} == {True, False}
    if schedule.window_epsilon:
        spent = [record.epsilon for record in whole]
        assert max(sum(spent[max(0, end - 9) : end + 1]) for end in range(16)) <= 6.0


def test_table_settings_have_component_scope_and_validate_options():
    assert ReleaseSettings(mechanism="optimal").noise_scope == "component"
    assert ReleaseSettings(mechanism="optimal").is_exact
    for options in ({"optimal_max_states": 1}, {"optimal_max_states": 2.5}, {"optimal_fallback": "k-norm"}):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            ReleaseSettings(mechanism="optimal", **options)
    assert ReleaseSettings(mechanism="optimal", caps=[{"event": "state:1 at 1", "probability": 0.5}]).caps


def test_log_likelihood_raises_for_point_without_state():
    releaser = make_releaser("graph-exponential", PolicyGraph.utility(F, 1.6))
    step = releaser.prepare()
    np.testing.assert_array_equal(
        releaser.log_likelihood(step, [2.001, 0.999]), releaser.log_likelihood(step, [2.0, 1.0])
    )
    with pytest.raises(CoordinateError, match=r"must be the location of a state"):
        releaser.log_likelihood(step, [2.5, 0.5])
