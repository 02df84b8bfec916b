"""Releases under models that vary with time or know of people outside: the belief, the promise, sessions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dphmm import PolicyGraph, Releaser, Session, degree_of_protection
from dphmm.audit.sequence import ReleasedSequence, audit_sequence, replay_sequence
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.model import Belief, MarkovModel, TimeClasses
from dphmm.model.away import Away

HOUR = 3600.0
FIRST = 470_000
F = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])


BORDER, SHARE = [1, 2], np.array([0.3, 0.6])


def _model(rng, varies=True, zeros=False):
    """A model over three states and two twins, and its law over these contexts by class: starts and moves."""
    time_classes = TimeClasses(tuple(h % 24 // 3 % 4 for h in range(168)), HOUR, "Asia/Kolkata") if varies else None
    count = time_classes.count if time_classes else 1

    def rows(*shape):
        raw = rng.random(shape) + 0.05
        if zeros:
            raw[..., 2] *= rng.random(shape[:-1]) > 0.5
        return raw / raw.sum(axis=-1, keepdims=True)

    starts, moves = rows(count, 3), rows(count, 5, 5)
    away = Away(3, BORDER, [1.0, 2.0], [1.5, 5.0], SHARE)
    return MarkovModel(list(moves), starts, None, HOUR, time_classes, away), (begun(starts), moves)


def begun(starts):
    """The law of the first context, of each row of a law of the first state."""
    found = np.concatenate([starts, starts[:, BORDER] * SHARE], axis=1)
    found[:, BORDER] *= 1 - SHARE
    return found


def paths_of(model, tables, slots):
    """The probability of every path of contexts through consecutive slots, by enumeration."""
    first, moves = tables
    number = [0 if model.time_classes is None else model.time_classes.class_of(slot) for slot in slots]
    found = {}
    for path in itertools.product(range(5), repeat=len(slots)):
        mass = first[number[0]][path[0]]
        for t in range(1, len(slots)):
            mass *= moves[number[t]][path[t - 1], path[t]]
        found[path] = mass
    return found


def _posterior(model, tables, slots, logs):
    """``p(s_t | z_1..t)`` at the last slot by all paths, with log densities where there were releases."""
    law, found = paths_of(model, tables, slots), np.zeros(3)
    paths, masses = model.last[np.array(list(law))], np.array(list(law.values()))
    for t, row in logs.items():
        masses = masses * np.exp(row[paths[:, t]])
    np.add.at(found, paths[:, -1], masses)
    return found / found.sum()


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_belief_after_each_release_is_that_of_all_paths(seed, varies):
    model, tables = _model(np.random.default_rng(seed), varies)
    releaser = Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=seed)
    releaser.restart(first=FIRST)
    logs, at = {}, 0
    for t, steps in enumerate((1, 1, 2, 1)):
        at += steps if t else 0
        step = releaser.prepare(steps=steps)
        record = releaser.draw(step, (seed + t) % 3)
        logs[at] = releaser.log_likelihood(step, record.released)
        expected = _posterior(model, tables, FIRST + np.arange(at + 1), logs)
        assert releaser.belief.probabilities == pytest.approx(expected, abs=1e-12)
        assert record.estimate == pytest.approx(expected @ F, abs=1e-12)


def test_the_promise_is_about_states_and_a_twin_hides_nobody():
    """State 2 has no edge; its twin has its measurement. Taken for states they would hide each other."""
    model, _ = _model(np.random.default_rng(1), varies=False)
    policy = PolicyGraph.from_edges(3, [[0, 1]])
    releaser = Releaser(model, F, policy, 1.0, rng=0)
    releaser.release(0)
    record = releaser.release(1)
    assert (releaser.belief.chain_logs > -np.inf).all(), "both twins are possible"
    assert record.possible == 3
    assert any(2 in edge for edge in record.added), "state 2 is exposed, and gets a partner"
    last, size = model.away.last, len(model.away)
    pairs = [(a, b) for a, b in itertools.combinations(range(size), 2) if last[a] == last[b]]
    pairs += [(a, b) for a, b in itertools.combinations(range(size), 2) if {*last[[a, b]].tolist()} == {0, 1}]
    twin = degree_of_protection(PolicyGraph.from_edges(size, sorted(pairs)), F[last])
    assert degree_of_protection(policy, F)[2] == 1
    assert twin[last == 2].min() > 1, "the broken twin: contexts as states of their own would seem to be protected"


def test_on_every_edge_all_contexts_of_its_states_have_the_promised_ratio():
    model, _ = _model(np.random.default_rng(2))
    releaser = Releaser(model, F, PolicyGraph.from_edges(3, [[0, 1], [1, 2]]), 0.7, rng=0)
    releaser.restart(first=FIRST)
    releaser.release(0)
    step, last = releaser.prepare(), model.away.last
    for z in [(0.0, 0.0), (0.4, 1.3), (-2.0, 0.1)]:
        over_contexts = model.away.spread(releaser.log_likelihood(step, z))
        for a, b in itertools.combinations(range(len(last)), 2):
            if {int(last[a]), int(last[b])} in ({0, 1}, {1, 2}):
                assert abs(over_contexts[a] - over_contexts[b]) <= 0.7 * (1 + 1e-9)


def test_a_model_that_varies_needs_the_clock_and_one_that_does_not_ignores_it():
    model, _ = _model(np.random.default_rng(3))
    releaser = Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=0)
    with pytest.raises(ConfigurationError, match=r"releaser.restart\(first=slot\)"):
        releaser.release(0)
    releaser.restart(first=FIRST)
    releaser.release(0)
    plain = MarkovModel(np.full((3, 3), 1 / 3), [0.2, 0.3, 0.5])
    one, other = (Releaser(plain, F, PolicyGraph.complete(3), 1.0, rng=5) for _ in range(2))
    other.restart(first=FIRST)
    assert [one.release(k) for k in (0, 1)] == [other.release(k) for k in (0, 1)]


@pytest.mark.parametrize("varies", [False, True])
def test_a_session_goes_on_as_if_it_had_not_been_closed(tmp_path, varies):
    model, _ = _model(np.random.default_rng(4), varies)
    moments, states = [FIRST, FIRST + 1, FIRST + 5, FIRST + 40], [0, 2, 1, 1]

    def engine(seed):
        return Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=np.random.default_rng(seed))

    whole = []
    with Session.open(tmp_path / "a", "me", engine(1)) as session:
        whole = [session.release(state, moment) for state, moment in zip(states, moments, strict=True)]
        belief = session.belief
    replayed = engine(2)
    released = np.array([record.released for record in whole])
    steps = np.diff(moments, prepend=moments[0])
    sequence = ReleasedSequence("me", released, np.ones(4), steps, first=FIRST)
    last = list(replay_sequence(replayed, sequence))[-1]
    assert belief.probabilities == pytest.approx(last.posterior.probabilities, abs=1e-13)
    reopened = []
    source = np.random.default_rng(1)
    for state, moment in zip(states, moments, strict=True):
        with Session.open(
            tmp_path / "b", "me", Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=source)
        ) as session:
            reopened.append(session.release(state, moment))
    assert [one.possible for one in reopened] == [one.possible for one in whole]
    assert [one.released for one in reopened] == [one.released for one in whole]
    for one, other in zip(reopened, whole, strict=True):
        assert one.estimate == pytest.approx(other.estimate, rel=1e-12)


def test_an_audit_of_a_sequence_equals_all_paths_and_an_hour_off_it_does_not():
    model, tables = _model(np.random.default_rng(6))
    releaser = Releaser(model, F, PolicyGraph.complete(3), 1.0, rng=3)
    releaser.restart(first=FIRST)
    records = [releaser.release(k) for k in (0, 1, 2, 2)]
    released = np.array([one.released for one in records])

    def audit(first):
        return audit_sequence(
            releaser, ReleasedSequence("me", released, np.ones(4), np.ones(4, dtype=int), first=first)
        )

    found = audit(FIRST)
    rows = [
        replay.log_likelihood
        for replay in replay_sequence(
            releaser, ReleasedSequence("me", released, np.ones(4), np.ones(4, dtype=int), first=FIRST)
        )
    ]
    expected = _posterior(model, tables, FIRST + np.arange(4), dict(enumerate(rows)))
    assert found.filtering.filtered[-1].probabilities == pytest.approx(expected, abs=1e-12)
    assert found.smoothed[-1].probabilities == pytest.approx(expected, abs=1e-12)
    assert np.abs(audit(FIRST + 5).filtering.filtered[-1].probabilities - expected).max() > 1e-6


def test_a_belief_of_contexts_is_not_taken_for_one_of_states():
    model, _ = _model(np.random.default_rng(7), varies=False)
    belief = Belief.first(model).predict(model, 2)
    again = Belief.from_bytes(belief.to_bytes()).predict(model, 0)
    np.testing.assert_array_equal(again.probabilities, belief.probabilities)
    with pytest.raises(StochasticError, match="about 5 states and the model has 3"):
        belief.predict(MarkovModel(np.eye(3), [1, 0, 0]), 1)
