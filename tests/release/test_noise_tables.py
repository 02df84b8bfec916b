"""Whole steps of tables: repairs, beliefs, the last look before a draw, what is kept, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, ReleaseSettings, Schedule, Session
from dphmm.errors import ConfigurationError, CoordinateError, PolicyError, PromiseError
from dphmm.mechanisms import TABLES, TableMechanism
from dphmm.mechanisms.optimal_table import TOTAL
from dphmm.model import Belief
from dphmm.release.engine import prepare_together
from dphmm.release.schedule import Scheduling
from dphmm.release.step import NextRelease
from tests.mechanisms.test_optimal_table_table import _exp_below
from tests.sizes import slow

F = np.array([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]], dtype=float)
POLICY = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
UNIFORM = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))
BLOCKS = np.kron(np.eye(2), np.full((3, 3), 1 / 3))
"""Two halves that nobody moves between."""


def made(mechanism, policy=POLICY, model=UNIFORM, f=F, **given):
    return Releaser(model, f, policy, 1.0, mechanism=mechanism, rng=given.pop("rng", 0), **given)


def brute(step, f):
    """The table of a whole step in fractions, from what its mechanisms say of each pair of states."""
    noise, found = step.noise, {}
    for s in np.flatnonzero(step.plan.constraint).tolist():
        for z in {tuple(point) for point in f.tolist()}:
            mechanism = noise.at(s)
            at = mechanism.probability(z, f[s]) if isinstance(mechanism, TableMechanism) else Fraction(z == tuple(f[s]))
            found[s, z] = at
    return found


@pytest.mark.parametrize("mechanism", sorted(TABLES))
def test_every_edge_of_the_repaired_graph_keeps_epsilon_in_fractions_and_nobody_is_alone(mechanism):
    releaser = made(mechanism)
    step = releaser.prepare()
    table, limit = brute(step, F), _exp_below(1.0)
    edges = step.plan.protection.graph.edge_array().tolist()
    assert sorted({state for edge in edges for state in edge}) == list(range(6)), "s1 got a partner"
    assert len(step.plan.protection.added) == 1
    for s in range(6):
        assert sum(table[s, tuple(z)] for z in F.tolist()) == 1
    for j, k in edges:
        for z in map(tuple, F.tolist()):
            assert table[j, z] <= limit * table[k, z]
            assert table[k, z] <= limit * table[j, z]
    record = releaser.draw(step, 0)
    assert record.exact
    assert record.least_protection == 2
    assert record.components == 2
    assert record.constrained_factor == np.inf
    assert record.released in {tuple(point) for point in F.tolist()}


@pytest.mark.parametrize("mechanism", sorted(TABLES))
def test_the_belief_is_bayes_with_the_tables_column(mechanism):
    releaser = made(mechanism, PolicyGraph.utility(F, 1.6))
    prior = np.full(6, 1 / 6)
    for state in (4, 0, 2):
        step = releaser.prepare()
        table = brute(step, F)
        record = releaser.draw(step, state)
        column = np.array([float(table[s, record.released]) for s in range(6)])
        expected = prior * column / (prior @ column)
        np.testing.assert_allclose(releaser.belief.probabilities, expected, rtol=1e-9)
        np.testing.assert_allclose(np.exp(releaser.log_likelihood(step, record.released)), column, rtol=1e-9)
        prior = expected @ np.full((6, 6), 1 / 6)


def test_expected_error_is_that_of_the_table_under_the_belief_before():
    releaser = made("optimal", PolicyGraph.utility(F, 1.6))
    releaser.release(3)
    step = releaser.prepare()
    table, prior = brute(step, F), step.prior.probabilities
    squared = sum(prior[s] * float(p) * np.square(F[s] - z).sum() for (s, z), p in table.items())
    assert releaser.draw(step, 3).expected_error == pytest.approx(squared**0.5, rel=1e-9)


def test_a_table_is_kept_while_belief_and_component_stay_and_follows_from_public_things_alone():
    apart = MarkovModel(BLOCKS, np.full(6, 1 / 6))
    releaser = made("optimal", PolicyGraph.from_groups(6, [[0, 1, 2], [3, 4, 5]]), apart)
    first, again = releaser.prepare().noise, releaser.prepare().noise
    assert first is again
    releaser.release(1)
    later = releaser.prepare().noise
    fresh = made("optimal", PolicyGraph.from_groups(6, [[0, 1, 2], [3, 4, 5]]), apart)
    fresh.resume(releaser.belief, 1)
    for one, other in zip(later.parts[1:], fresh.prepare().noise.parts[1:], strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
    assert any(one is other for one in first.parts[1:] for other in later.parts[1:])


def test_open_states_are_released_as_they_are_and_others_from_their_table():
    policy = PolicyGraph.from_groups(6, [[0, 1, 2]]).with_open([3, 4, 5])
    releaser = made("optimal", policy, rng=3)
    step = releaser.prepare()
    table = brute(step, F)
    assert all(table[s, tuple(F[s])] == 1 for s in (3, 4, 5))
    assert releaser.draw(step, 4).released == (4.0, 2.0)
    assert releaser.release(0).released in {tuple(point) for point in F[:3].tolist()}


def test_a_table_that_breaks_an_edge_draws_nothing():
    """Broken twins: an edge left out of the program, rows that are no law, and a state left alone."""
    policy = PolicyGraph.utility(F, 1.6)
    releaser = made("optimal", policy)
    step = releaser.prepare()
    (as_is, good), parts = step.noise.parts, step.noise.part_of

    def refused(table, match, members=parts):
        noise = replace(step.noise, part_of=members, parts=(as_is, table))
        with pytest.raises(PromiseError, match=match):
            releaser.draw(replace(step, noise=noise), 0)

    edges = step.plan.protection.graph.edge_array()
    lacking = TableMechanism.optimal(F, [edge for edge in edges.tolist() if edge != [0, 1]], 1.0)
    refused(lacking, "differ by more than epsilon in this step's table")
    over = TableMechanism.optimal(F, edges, 1.0 + 1e-3)
    refused(over, "differ by more than epsilon in this step's table")
    weights = good.weights.copy()
    weights[0, 0] += 1
    bad = TableMechanism.optimal(F, edges, 1.0)
    bad.weights = weights
    refused(bad, "is no law over the places")
    refused(TableMechanism.optimal(F[:5], [(0, 1), (1, 2), (2, 4), (0, 3)], 1.0), "is no law over the places")
    assert (good.weights.sum(axis=1) == TOTAL).all()
    assert releaser.draw(step, 0).least_protection >= 2


def test_a_state_without_a_neighbour_is_not_released_from_a_table():
    releaser = made("optimal")
    step = releaser.prepare()
    bare = replace(step.plan.protection, added=())
    with pytest.raises(PromiseError, match="state 0 would be hidden among no other states in this step's table"):
        releaser.draw(replace(step, plan=replace(step.plan, protection=bare)), 0)


def test_a_component_above_the_limit_is_refused_or_falls_back():
    policy = PolicyGraph.utility(F, 1.6)
    with pytest.raises(ConfigurationError, match=r"a component has 6 states, above the 5 .*fallback") as caught:
        made("optimal", policy, optimal_limit=5).prepare()
    assert "\n" not in str(caught.value)
    zone = PolicyGraph.complete(6)
    assert made("optimal", zone, optimal_limit=2).prepare().noise.parts[1].loss < 1e-4, "four times as many"
    nine = MarkovModel(np.full((9, 9), 1 / 9), np.full(9, 1 / 9))
    with pytest.raises(ConfigurationError, match="a component has 9 states, above the 8 of the program"):
        made("optimal", PolicyGraph.complete(9), nine, np.arange(9.0)[:, None], optimal_limit=2).prepare()
    fallen = made("optimal", policy, optimal_limit=5, fallback="graph-exponential").prepare().noise.parts[1]
    np.testing.assert_array_equal(fallen.weights, made("graph-exponential", policy).prepare().noise.parts[1].weights)
    line = np.arange(2100.0)[:, None]
    many = MarkovModel.fit([np.arange(2100)], 2100, smoothing=1.0)
    with pytest.raises(PolicyError, match=r"a component has 2,100 states and a table at most 2,048"):
        made("graph-exponential", PolicyGraph.utility(line, 1.0), many, line).prepare()


@pytest.mark.parametrize("mechanism", sorted(TABLES))
def test_answers_by_table_and_by_hull_together_keep_the_sum_on_every_edge_and_leave_nobody_alone(mechanism):
    place = made(mechanism)
    kinds = place.beside([[0.0], [4.0], [8.5], [1.0], [9.0], [1.0]], mechanism="k-norm", epsilon=0.5)
    turned = place.beside(F[::-1].copy(), mechanism="optimal", epsilon=0.25)
    for first, *others in ((place, kinds, turned), (kinds, turned, place)):
        steps = prepare_together((first, *others), None)
        losses = np.zeros((6, 6))
        for engine, step in zip((first, *others), steps, strict=True):
            noise = step.noise
            for s, t in product(range(6), repeat=2):
                apart = noise.part_of[s] != noise.part_of[t]
                losses[s, t] += np.inf if apart else noise.at(s).privacy_loss(engine.values[s], engine.values[t])
        edges = {tuple(edge) for step in steps for edge in step.plan.protection.graph.edge_array().tolist()}
        assert len({step.plan.protection.added for step in steps}) == 1
        assert {state for edge in edges for state in edge} == set(range(6))
        assert max(losses[j, k] for j, k in edges) <= 1.75 * (1 + 1e-9)
        answers = first.release_together(2, *others)
        assert answers.epsilon == 1.75
        assert len({record.index for record in answers.records}) == 3


SLOW = MarkovModel(np.eye(6) * 0.7 + 0.05, np.full(6, 1 / 6), step_seconds=3600.0)


@pytest.mark.parametrize("mechanism", sorted(TABLES))
def test_the_error_after_a_release_by_tables_is_that_of_enumeration(mechanism):
    releaser, prior = made(mechanism, model=SLOW), np.array([0.4, 0.05, 0.2, 0.2, 0.1, 0.05])
    belief = Belief.of(prior)
    table = brute(releaser.prepare_on(belief, releaser.plan(belief), 1.0), F)
    release, expected = NextRelease(belief, 1.0, 1, releaser.person, releaser.planner), 0.0
    for z in map(tuple, F.tolist()):
        joint = prior * [float(table[s, z]) for s in range(6)]
        expected += joint @ np.linalg.norm(F - joint @ F / joint.sum(), axis=1)
    outlook = Scheduling(Schedule(0.9), SLOW, F).outlook(release, 9.0, 1.0)
    assert outlook.error == pytest.approx(expected, rel=1e-9)
    other = Scheduling(Schedule(0.9), SLOW, F).outlook(release, 9.0, 0.5)
    assert other.error > 1.02 * expected, "the broken twin: half the budget"


@pytest.mark.parametrize("schedule", [slow(Schedule(1.1)), Schedule(0.9, 6.0, 10 * 3600)])
def test_a_schedule_decides_when_tables_are_drawn_from_and_goes_on_after_restarts(tmp_path, schedule):
    def engine(source):
        return made("optimal", model=SLOW, schedule=schedule, rng=source)

    source, found = np.random.default_rng(5), []
    with Session.open(tmp_path / "whole.db", "ann", engine(source)) as session:
        whole = [session.release(slot % 6, slot) for slot in range(16)]
    source = np.random.default_rng(5)
    for slot in range(16):
        if slot % 5 == 0:
            handle = Session.open(tmp_path / "parts.db", "ann", engine(source))
        found.append(handle.release(slot % 6, slot))
        if slot % 5 == 4 or slot == 15:
            handle.close()
    assert found == whole
    assert {record.withheld for record in whole} == {True, False}
    if schedule.window_epsilon:
        spent = [record.epsilon for record in whole]
        assert max(sum(spent[max(0, end - 9) : end + 1]) for end in range(16)) <= 6.0


def test_settings_of_tables():
    assert ReleaseSettings(mechanism="optimal").calibration == "component"
    assert ReleaseSettings(mechanism="optimal").is_exact
    for given in ({"optimal_limit": 1}, {"optimal_limit": 2.5}, {"fallback": "k-norm"}):
        with pytest.raises(ConfigurationError, match=next(iter(given))):
            ReleaseSettings(mechanism="optimal", **given)
    assert ReleaseSettings(mechanism="optimal", caps=[{"event": "state:1 at 1", "probability": 0.5}]).caps


def test_a_place_that_no_state_has_was_not_released_by_a_table():
    releaser = made("graph-exponential", PolicyGraph.utility(F, 1.6))
    step = releaser.prepare()
    np.testing.assert_array_equal(
        releaser.log_likelihood(step, [2.001, 0.999]), releaser.log_likelihood(step, [2.0, 1.0])
    )
    with pytest.raises(CoordinateError, match="is at no state's place"):
        releaser.log_likelihood(step, [2.5, 0.5])
