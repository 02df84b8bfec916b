"""What releases really told: against sums over every edge and every window, and never beyond epsilon."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.audit import ReleasedSequence, replay_sequence
from dphmm.audit import realised as module
from dphmm.audit.realised import realise
from tests.running_example import F, graph

START = np.full(6, 1 / 6)
MOVES = np.full((6, 6), 0.1) + 0.4 * np.eye(6)
LENGTH = 40


def made(policy: PolicyGraph, step_seconds: float | None = 7200.0, f=F, **settings):
    """An engine and forty releases some steps apart."""
    engine = Releaser(MarkovModel(MOVES, START, step_seconds=step_seconds), f, policy, 0.4, rng=7, **settings)
    steps = np.random.default_rng(2).integers(1, 5, size=LENGTH)
    records = [engine.release(int(t % 6), steps=int(s)) for t, s in enumerate(steps)]
    released = np.array([record.released for record in records])
    return engine, ReleasedSequence("ann", released, np.full(LENGTH, 0.4), steps), records


@pytest.mark.parametrize("policy", [graph(), PolicyGraph.complete(6)], ids=["categories", "complete"])
def test_every_figure_is_that_of_all_edges_and_windows_one_by_one(policy):
    engine, sequence, records = made(policy)
    told = realise(engine.another(), sequence)
    rows = np.array([one.log_likelihood for one in replay_sequence(engine.another(), sequence)])
    at = np.concatenate([[0], np.cumsum(sequence.steps[1:])])
    for t in range(LENGTH):
        day = at > at[t] - 12  # of two hours a step
        windows = (told.moved, [t]), (told.so_far, range(t + 1)), (told.last_day, np.flatnonzero(day[: t + 1]))
        for figure, chosen in windows:
            worst = max(abs(sum(rows[u, i] - rows[u, j] for u in chosen)) for i, j in policy.edges().tolist())
            assert figure[t] == pytest.approx(worst, rel=1e-9, abs=1e-12)
    assert told.certainty.tolist() == pytest.approx([record.adversary_certainty for record in records])
    assert told.error.tolist() == pytest.approx([record.adversary_error for record in records])
    i, j, t = told.worst
    assert policy.connects([i], [j]).all()
    assert abs((rows[: t + 1, i] - rows[: t + 1, j]).sum()) == pytest.approx(told.so_far.max())


def test_no_release_moves_the_odds_of_joined_places_by_more_than_epsilon_and_others_may():
    engine, sequence, _ = made(graph())
    told = realise(engine.another(), sequence)
    assert told.moved.max() <= 0.4 * (1 + 1e-9)
    assert (told.so_far <= 0.4 * np.arange(1, LENGTH + 1) + 1e-9).all()
    rows = np.array([one.log_likelihood for one in replay_sequence(engine.another(), sequence)])
    assert np.abs(rows[:, :1] - rows).max() > 0.4, "over all pairs, which the policy does not join, it would be more"


def test_places_that_were_not_possible_are_not_compared():
    # The walk begins in two places and spreads: the stand-ins of others are further apart than the policy says.
    moves = np.eye(6) * 0.5 + 0.5 * np.roll(np.eye(6), 1, axis=1)
    engine = Releaser(MarkovModel(moves, [0.5, 0.5, 0, 0, 0, 0]), F, PolicyGraph.complete(6), 0.4, rng=3)
    records = [engine.release(0) for _ in range(8)]
    released = np.array([record.released for record in records])
    sequence = ReleasedSequence("ann", released, np.full(8, 0.4), np.ones(8, dtype=int))
    told = realise(engine.another(), sequence)
    assert told.moved.max() <= 0.4 * (1 + 1e-9)
    assert set(told.worst[:2]) <= {0, 1}, "nobody was in another place throughout"


def test_odds_move_by_bayes_rule():
    engine, sequence, _ = made(PolicyGraph.complete(6))
    told: list[float] = []
    for one in replay_sequence(engine.another(), sequence):
        before, after = one.step.prior.probabilities, one.posterior.probabilities
        moved = np.log(after[2] / after[4]) - np.log(before[2] / before[4])
        told.append(after @ np.log2(after / before))
        assert moved == pytest.approx(one.log_likelihood[2] - one.log_likelihood[4], abs=1e-9)
    np.testing.assert_allclose(realise(engine.another(), sequence).bits, told, rtol=1e-9, atol=1e-12)


def test_with_many_edges_places_joined_by_a_path_are_looked_at_and_nothing_is_told_too_small(monkeypatch):
    engine, sequence, _ = made(graph())
    exact = realise(engine.another(), sequence)
    monkeypatch.setattr(module, "_MOST_EDGES", 1)
    wide = realise(engine.another(), sequence)
    assert exact.is_by_edge
    assert not wide.is_by_edge
    assert (wide.so_far >= exact.so_far - 1e-12).all()


def test_places_that_are_ruled_out_are_infinitely_far():
    # One edge: noise stays on a line, and the states off it are ruled out at the first release.
    engine, sequence, _ = made(PolicyGraph.from_edges(6, [[1, 4], [0, 1]]), repair="greedy", mechanism="k-norm")
    told = realise(engine.another(), sequence)
    assert not np.isnan(told.so_far).any()
    assert not np.isnan(told.last_day).any()


def test_a_day_has_no_length_without_a_step():
    engine, sequence, _ = made(graph(), step_seconds=None)
    told = realise(engine.another(), sequence)
    assert np.isnan(told.last_day).all()
    facts = told.facts()
    assert (facts["last_day_most"], facts["last_day_is_known"]) == (None, False)
    assert facts["worst_release"] == told.worst[2] + 1
