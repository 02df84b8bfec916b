"""Releases under time-dependent models and outside states: belief, guarantee, sessions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dphmm import PolicyGraph, Releaser, Session, degree_of_protection
from dphmm.audit.sequence import ReleasedSequence, audit_sequence, replay_sequence
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.model import Belief, MarkovModel, TimeClasses
from dphmm.model.outside_states import OutsideStates

HOUR = 3600.0
FIRST = 470_000
F = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


BORDER = [1, 2]
SHARE = np.array([0.3, 0.6])


def _build_model(rng, varies=True, zeros=False):
    """Build a model with three states and two outside states, and its tables by class.

    The tables are the distribution of the first context and the transition matrix of each class.
    """
    time_classes = TimeClasses(tuple(h % 24 // 3 % 4 for h in range(168)), HOUR, "Asia/Kolkata") if varies else None
    count = time_classes.count if time_classes else 1

    def sample_rows(*shape):
        raw = rng.random(shape) + 0.05
        if zeros:
            raw[..., 2] *= rng.random(shape[:-1]) > 0.5
        return raw / raw.sum(axis=-1, keepdims=True)

    starts, moves = sample_rows(count, 3), sample_rows(count, 5, 5)
    away = OutsideStates(3, BORDER, [1.0, 2.0], [1.5, 5.0], SHARE)
    return MarkovModel(list(moves), starts, None, HOUR, time_classes, away), (extend_starts(starts), moves)


def extend_starts(starts):
    """Convert distributions of the first state to distributions of the first context."""
    distribution = np.concatenate([starts, starts[:, BORDER] * SHARE], axis=1)
    distribution[:, BORDER] *= 1 - SHARE
    return distribution


def list_paths(model, tables, slots):
    """Enumerate the probability of every path of contexts through consecutive slots."""
    first, moves = tables
    number = [0 if model.time_classes is None else model.time_classes.get_class(slot) for slot in slots]
    masses_by_path = {}
    for path in itertools.product(range(5), repeat=len(slots)):
        mass = first[number[0]][path[0]]
        for t in range(1, len(slots)):
            mass *= moves[number[t]][path[t - 1], path[t]]
        masses_by_path[path] = mass
    return masses_by_path


def _compute_posterior(model, tables, slots, logs):
    """Compute ``p(s_t | z_1..t)`` at the last slot by enumeration.

    ``logs`` contains the log densities of the slots with a release.
    """
    law, posterior = list_paths(model, tables, slots), np.zeros(3)
    paths, masses = model.state_of_context[np.array(list(law))], np.array(list(law.values()))
    for t, row in logs.items():
        masses = masses * np.exp(row[paths[:, t]])
    np.add.at(posterior, paths[:, -1], masses)
    return posterior / posterior.sum()


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_belief_after_each_release_matches_enumeration(seed, varies):
    model, tables = _build_model(np.random.default_rng(seed), varies)
    releaser = Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=seed)
    releaser.restart(first=FIRST)
    logs, at = {}, 0
    for t, steps in enumerate((1, 1, 2, 1)):
        at += steps if t else 0
        step = releaser.prepare(steps=steps)
        record = releaser.draw(step, (seed + t) % 3)
        logs[at] = releaser.log_likelihood(step, record.released)
        expected = _compute_posterior(model, tables, FIRST + np.arange(at + 1), logs)
        assert releaser.belief.probabilities == pytest.approx(expected, abs=1e-12)
        assert record.estimate == pytest.approx(expected @ F, abs=1e-12)


def test_guarantee_covers_states_and_outside_state_protects_no_state():
    """State 2 has no edge, and its outside state has its measurement.

    If contexts were states, they would protect each other.
    """
    model, _ = _build_model(np.random.default_rng(1), varies=False)
    policy = PolicyGraph.from_edges(3, [[0, 1]])
    releaser = Releaser(model, F, policy, 1.0, rng=0)
    releaser.release(0)
    record = releaser.release(1)
    assert (releaser.belief.chain_logs > -np.inf).all(), "both outside states are possible"
    assert record.num_possible_states == 3
    assert any(2 in edge for edge in record.added_edges), "state 2 is exposed and gets a partner"
    last, size = model.outside.state_of_context, len(model.outside)
    pairs = [(a, b) for a, b in itertools.combinations(range(size), 2) if last[a] == last[b]]
    pairs += [(a, b) for a, b in itertools.combinations(range(size), 2) if {*last[[a, b]].tolist()} == {0, 1}]
    context_degrees = degree_of_protection(PolicyGraph.from_edges(size, sorted(pairs)), F[last])
    assert degree_of_protection(policy, F)[2] == 1
    assert context_degrees[last == 2].min() > 1, "contexts as separate states would seem to be protected"


def test_all_contexts_of_edge_states_keep_likelihood_ratio():
    model, _ = _build_model(np.random.default_rng(2))
    releaser = Releaser(model, F, PolicyGraph.from_edges(3, [[0, 1], [1, 2]]), 0.7, rng=0)
    releaser.restart(first=FIRST)
    releaser.release(0)
    step, last = releaser.prepare(), model.outside.state_of_context
    for z in [(0.0, 0.0), (0.4, 1.3), (-2.0, 0.1)]:
        over_contexts = model.outside.expand(releaser.log_likelihood(step, z))
        for a, b in itertools.combinations(range(len(last)), 2):
            if {int(last[a]), int(last[b])} in ({0, 1}, {1, 2}):
                assert abs(over_contexts[a] - over_contexts[b]) <= 0.7 * (1 + 1e-9)


def test_time_dependent_model_requires_first_slot_and_plain_model_ignores_it():
    model, _ = _build_model(np.random.default_rng(3))
    releaser = Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=0)
    with pytest.raises(ConfigurationError, match=r"releaser.restart\(first=slot\)"):
        releaser.release(0)
    releaser.restart(first=FIRST)
    releaser.release(0)
    plain = MarkovModel(np.full((3, 3), 1 / 3), [0.2, 0.3, 0.5])
    first, other = (Releaser(plain, F, PolicyGraph.complete(3), 1.0, rng=5) for _ in range(2))
    other.restart(first=FIRST)
    assert [first.release(k) for k in (0, 1)] == [other.release(k) for k in (0, 1)]


@pytest.mark.parametrize("varies", [False, True])
def test_reopened_session_continues_like_uninterrupted_one(tmp_path, varies):
    model, _ = _build_model(np.random.default_rng(4), varies)
    moments, states = [FIRST, FIRST + 1, FIRST + 5, FIRST + 40], [0, 2, 1, 1]

    def make_engine(seed):
        return Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=np.random.default_rng(seed))

    whole = []
    with Session.open(tmp_path / "a", "me", make_engine(1)) as session:
        whole = [session.release(state, moment) for state, moment in zip(states, moments, strict=True)]
        belief = session.belief
    replayed = make_engine(2)
    released = np.array([record.released for record in whole])
    steps = np.diff(moments, prepend=moments[0])
    sequence = ReleasedSequence("me", released, np.ones(4), steps, first_slot=FIRST)
    last = list(replay_sequence(replayed, sequence))[-1]
    assert belief.probabilities == pytest.approx(last.posterior.probabilities, abs=1e-13)
    reopened = []
    source = np.random.default_rng(1)
    for state, moment in zip(states, moments, strict=True):
        with Session.open(
            tmp_path / "b", "me", Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=source)
        ) as session:
            reopened.append(session.release(state, moment))
    assert [record.num_possible_states for record in reopened] == [record.num_possible_states for record in whole]
    assert [record.released for record in reopened] == [record.released for record in whole]
    for record, other in zip(reopened, whole, strict=True):
        assert record.estimate == pytest.approx(other.estimate, rel=1e-12)


def test_audit_matches_enumeration_and_depends_on_first_slot():
    model, tables = _build_model(np.random.default_rng(6))
    releaser = Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=3)
    releaser.restart(first=FIRST)
    records = [releaser.release(k) for k in (0, 1, 2, 2)]
    released = np.array([record.released for record in records])

    def audit(first):
        return audit_sequence(
            releaser, ReleasedSequence("me", released, np.ones(4), np.ones(4, dtype=int), first_slot=first)
        )

    sequence_audit = audit(FIRST)
    rows = [
        replay.log_likelihood
        for replay in replay_sequence(
            releaser, ReleasedSequence("me", released, np.ones(4), np.ones(4, dtype=int), first_slot=FIRST)
        )
    ]
    expected = _compute_posterior(model, tables, FIRST + np.arange(4), dict(enumerate(rows)))
    assert sequence_audit.filtering.filtered[-1].probabilities == pytest.approx(expected, abs=1e-12)
    assert sequence_audit.smoothed[-1].probabilities == pytest.approx(expected, abs=1e-12)
    assert np.abs(audit(FIRST + 5).filtering.filtered[-1].probabilities - expected).max() > 1e-6


def test_context_belief_with_state_model_raises():
    model, _ = _build_model(np.random.default_rng(7), varies=False)
    belief = Belief.initial(model).predict(model, 2)
    again = Belief.from_bytes(belief.to_bytes()).predict(model, 0)
    np.testing.assert_array_equal(again.probabilities, belief.probabilities)
    with pytest.raises(StochasticError, match=r"5 states .*\b3\b"):
        belief.predict(MarkovModel(np.eye(3), [1, 0, 0]), 1)
