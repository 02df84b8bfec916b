"""Several queries at one timestep, against Bayes' rule and joint privacy losses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser, Schedule, Session
from dphmm.errors import BudgetError, GuaranteeError, InvalidInputError, StateError
from dphmm.random import RandomSource
from dphmm.release.engine import prepare_together, share_filter_state
from dphmm.release.joint_queries import split_epsilon
from dphmm.release.ledger import Ledger
from tests.release.test_engine import MECHANISMS
from tests.running_example import F, build_graph

KIND = np.array([[0.0], [4.0], [8.5], [1.0], [9.0], [1.0]])
START = np.array([0.3, 0.2, 0.0, 0.3, 0.1, 0.1])
MODEL = MarkovModel(np.full((6, 6), 0.1) + 0.4 * np.eye(6), START)


def make_releaser(mechanism="k-norm", policy=None, f=F, epsilon=0.8, rng=0, **settings) -> Releaser:
    return Releaser(MODEL, f, policy or build_graph(), epsilon, mechanism, rng=rng, **settings)


def test_arguments_of_other_classes_are_refused_by_name():
    engine = make_releaser()
    for plan in (None, 5, "x"):
        with pytest.raises(InvalidInputError, match=f"plan must be a StepPlan, got {plan!r}"):
            engine.draw(plan, 0)
        with pytest.raises(InvalidInputError, match=f"plan must be StepPlan, got {plan!r}"):
            engine.log_likelihood(plan, F[0])
        with pytest.raises(InvalidInputError, match=f"prior must be Belief, got {plan!r}"):
            engine.build_plan(plan, 1.0)
    for other in (None, 5, "x"):
        with pytest.raises(InvalidInputError, match=f"others must be Releaser, got {other!r}"):
            engine.release_together(0, other)
    for epsilon in ("1", b"1", True):
        with pytest.raises(BudgetError, match=rf"epsilon must be in \[1e-30, 1e\+30\], got {epsilon!r}"):
            engine.release(0, epsilon=epsilon)
    assert engine.belief is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_belief_after_joint_answers_matches_bayes_rule(mechanism):
    first = make_releaser(mechanism)
    others = [first.for_query(KIND, mechanism="laplace", epsilon=0.3), first.for_query(F @ [[1.0, 0.5], [0.0, 2.0]])]
    posterior = START
    for step in range(4):
        prior = posterior if step == 0 else posterior @ MODEL.transition.toarray()
        prepared = prepare_together([first, *others], [0.8, 0.3, 0.4])
        answers = first.release_together(3, *others, epsilon=[0.8, 0.3, 0.4])
        assert [record.epsilon for record in answers.records] == [0.8, 0.3, 0.4]
        assert [record.steps for record in answers.records] == [min(step, 1), 0, 0]
        assert [record.index for record in answers.records] == [3 * step, 3 * step + 1, 3 * step + 2]
        log = np.zeros(6)
        for engine, step_of_engine, record in zip([first, *others], prepared, answers.records, strict=True):
            log += engine.log_likelihood(step_of_engine, record.released)
        posterior = prior * np.exp(log - log.max())
        posterior /= posterior.sum()
        np.testing.assert_allclose(first.belief.probabilities, posterior, rtol=1e-9)
        assert all(engine.belief is first.belief for engine in others)
    np.testing.assert_allclose(answers.records[2].estimate, posterior @ others[1].measurements.points, rtol=1e-9)


def compute_joint_losses(prepared, engines) -> np.ndarray:
    """Return ``(N, N)``: the largest log ratio of all answers for two true states."""
    losses = np.zeros((6, 6))
    for engine, step in zip(engines, prepared, strict=True):
        losses += [step.noise.parts[0].privacy_loss(engine.query.values, value) for value in engine.query.values]
    return losses


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("edges", [[], [(0, 1)], [(0, 5), (3, 4)], None], ids=repr)
def test_joint_answers_cost_sum_on_edges_and_protect_every_state(mechanism, edges):
    policy = None if edges is None else PolicyGraph.from_edges(6, edges)
    first = make_releaser(mechanism, policy)
    engines = [first, first.for_query(KIND, mechanism="laplace"), first.for_query(F[::-1] * 1.0)]
    prepared = prepare_together(engines, [0.5, 0.25, 0.125])
    losses, possible = compute_joint_losses(prepared, engines), np.flatnonzero(prepared[0].constraint)
    pairs = {tuple(pair) for pair in first.policy.restrict(prepared[0].constraint).edge_array().tolist()}
    added = {step.protection.added for step in prepared}
    assert len(added) == 1, "all queries share one repaired graph"
    for a, b in pairs | set(*added):
        assert losses[a, b] <= 0.875 * (1 + 1e-9)
    within = losses[np.ix_(possible, possible)] <= 0.875 * (1 + 1e-9)
    assert within.sum(axis=1).min() >= 2
    assert all(step.min_degree_of_protection >= 2 for step in prepared)


def test_separately_repaired_queries_can_expose_states():
    # A broken variant of the test above: on a line, each query pairs the states, and no pair occurs in both.
    policy = PolicyGraph.from_edges(6, [])
    f = np.array([[0.0], [1.0], [10.0], [11.0], [20.0], [21.0]])
    other = np.array([[0.0], [10.0], [11.0], [20.0], [21.0], [1.0]])
    engines = [make_releaser(policy=policy, f=f), make_releaser(policy=policy, f=other)]
    separate = compute_joint_losses([engine.prepare(0.5) for engine in engines], engines)
    possible = START > 0
    assert (separate[np.ix_(possible, possible)] <= 1 + 1e-9).sum(axis=1).min() == 1
    engines = [engines[0], engines[0].for_query(other)]
    together = compute_joint_losses(prepare_together(engines, [0.5, 0.5]), engines)
    assert (together[np.ix_(possible, possible)] <= 1 + 1e-9).sum(axis=1).min() >= 2


def test_impossible_state_has_one_surrogate_for_all_answers():
    first = make_releaser()
    other = first.for_query(KIND)
    answers = first.release_together(2, other)
    assert len(answers.records) == 2
    diagnostics = [engine.private_diagnostics(2) for engine in (first, other)]
    assert [private.used_surrogate for private in diagnostics] == [True, True]
    assert len({private.released_state for private in diagnostics}) == 1
    alone = Releaser(MODEL, KIND, build_graph(), 0.8, "k-norm", rng=0)
    alone.release(2)
    assert alone.private_diagnostics(2).released_state != diagnostics[0].released_state, (
        "its own measurements give another surrogate"
    )


def test_session_queries_share_surrogate(tmp_path):
    engines = {"place": make_releaser(rng=1), "kind": Releaser(MODEL, KIND, build_graph(), 0.8, "k-norm", rng=1)}
    with Session.open(tmp_path / "a.session", "a", engines) as session:
        session.release(2, 0, query="place")
        session.release(2, 0, query="kind")
    used = {engine.private_diagnostics(2).released_state for engine in engines.values()}
    assert len(used) == 1


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.3, 2.0, 1e-9, 1 / 3])
def test_budget_shares_do_not_exceed_total(epsilon, count):
    parts = split_epsilon(epsilon, [9.0] * count)
    total = sum(Fraction(str(part)) for part in parts)
    assert Fraction(str(epsilon)) * (1 - Fraction(1, 10**15)) <= total <= Fraction(str(epsilon))


def test_ledger_contains_cost_of_joint_answers():
    first = make_releaser("lattice")
    other = first.for_query(KIND, epsilon=0.1)
    answers = first.release_together(0, other, epsilon=[0.2, 0.1])
    factors = [record.constrained_dp_factor for record in answers.records]
    assert answers.epsilon == 0.3
    assert answers.constrained_epsilon == pytest.approx(0.2 * factors[0] + 0.1 * factors[1])
    later = first.release_together(0, other)
    whole = Ledger.from_records([*answers.records, *later.records])
    assert (whole.epsilon, whole.compute_max_window_epsilon(1)) == (pytest.approx(1.2), pytest.approx(0.9))


def refuse_drawing(_: int) -> bytes:
    raise AssertionError("something was drawn")


def test_invalid_joint_queries_raise_before_first_draw(monkeypatch):
    first = make_releaser(rng=RandomSource(refuse_drawing))
    other = first.for_query(KIND)
    stranger = make_releaser(f=F)
    for bad, error in (
        (lambda: first.release_together(9, other), StateError),
        (lambda: first.release_together(0, other, epsilon=[1.0]), BudgetError),
        (lambda: first.release_together(0, other, epsilon=[1.0, -1.0]), BudgetError),
        (lambda: first.release_together(0, other, epsilon=0.0), BudgetError),
        (lambda: first.release_together(0, other, steps=0), InvalidInputError),
        (lambda: first.release_together(0, stranger), InvalidInputError),
        (lambda: first.release_together(0, first), InvalidInputError),
        (lambda: first.release_together(0, first.for_query(KIND, delta=0.1)), InvalidInputError),
        (lambda: first.for_query(KIND[:5]), InvalidInputError),
        (lambda: first.for_query(KIND, mechanism="planar-laplace"), InvalidInputError),
        (lambda: share_filter_state([first, make_releaser(policy=PolicyGraph.complete(6))]), InvalidInputError),
    ):
        with pytest.raises(error):
            bad()
    # The noise of the second query is too small. The first query is not drawn either.
    make = other.planner.build_noise
    monkeypatch.setattr(other.planner, "build_noise", lambda plan, _: make(plan, 1.6))
    with pytest.raises(GuaranteeError):
        first.release_together(0, other)
    assert first.belief is None


def test_queries_of_one_user_share_filter_state():
    first = make_releaser()
    other = first.for_query(KIND)
    stale = other.prepare()
    first.release(0)
    with pytest.raises(InvalidInputError, match=r"stale.*call prepare\(\)"):
        other.draw(stale, 0)
    assert other.release(0).index == 1
    first.restart()
    assert other.belief is None
    assert first.spawn().filter_state is not first.filter_state


def test_single_joint_query_keeps_schedule():
    timed = MarkovModel(MODEL.transition, START, step_seconds=3600.0)
    schedule = Schedule(window_epsilon=4.0, window_seconds=7200.0)
    engine = Releaser(timed, F, build_graph(), 4.0, rng=0, schedule=schedule)
    ledger = Ledger([engine.release_together(3).records[0] for _ in range(8)])
    assert {record.withheld for record in ledger.records} == {False, True}
    assert ledger.compute_max_window_epsilon(2) == 4.0
