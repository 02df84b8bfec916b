"""Tests of event leakage against sums of the engine's emissions over all paths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.audit import ReleasedSequence, audit_events, replay_sequence
from dphmm.errors import EventError, StochasticError
from dphmm.events import Pattern, Presence
from tests.events import oracles

MATRIX = np.array([[0.5, 0.5, 0, 0], [0.2, 0.3, 0.5, 0], [0, 0.4, 0.3, 0.3], [0.1, 0, 0.4, 0.5]])
START = np.array([0.4, 0.6, 0.0, 0.0])
F = [[0, 0], [1, 0], [1, 1], [2, 1]]


def make_engine(seed: int = 0) -> Releaser:
    model = MarkovModel(MATRIX, START)
    return Releaser(model, F, PolicyGraph.utility(np.array(F), 1.0), 0.8, "lattice", rng=seed, spacing=1)


def release_sequence(states: list[int], steps: list[int]) -> ReleasedSequence:
    """Release a walk that leaves early constraint sets, so surrogates are used."""
    releaser = make_engine(3)
    records = [releaser.release(state, steps=max(step, 1)) for state, step in zip(states, steps, strict=True)]
    places = np.array([record.released for record in records])
    return ReleasedSequence("anna", places, np.array([record.epsilon for record in records]), np.array(steps))


SEQUENCE = release_sequence([1, 2, 3, 2], [0, 1, 2, 1])
EVENTS = [("there", Presence([3], 1, 3)), ("there and back", Pattern([[2], [3], [2]], 2))]


def test_event_log_odds_match_path_enumeration():
    rows = np.array([replay.log_likelihood for replay in replay_sequence(make_engine(), SEQUENCE)])
    for prior in (None, [0.1, 0.2, 0.3, 0.4]):
        for audit, (wording, event) in zip(audit_events(make_engine(), SEQUENCE, EVENTS, prior), EVENTS, strict=True):
            start = START if prior is None else np.array(prior)
            expected = oracles.compute_log_odds([MATRIX] * 4, start, rows, event, [0, 1, 3, 4])
            np.testing.assert_allclose(audit.log_odds_change, expected, rtol=1e-10)
            assert (audit.user, audit.wording) == ("anna", wording)
            all_paths, weights = oracles.enumerate_paths([MATRIX] * 4, start)
            holds = np.array([oracles.happens(event, path) for path in all_paths.tolist()])
            assert audit.prior_probability == pytest.approx(weights[holds].sum())
            assert audit.smoothed_occurred[-1] == pytest.approx(audit.probability[-1])


def test_releases_before_an_event_change_its_odds():
    rows = np.array([replay.log_likelihood for replay in replay_sequence(make_engine(), SEQUENCE)])
    event = Presence([3], 5, 6)
    (audit,) = audit_events(make_engine(), SEQUENCE, [("later", event)])
    expected = oracles.compute_log_odds([MATRIX] * 6, START, rows, event, [0, 1, 3, 4])
    np.testing.assert_allclose(audit.log_odds_change, expected, rtol=1e-10)
    assert np.abs(expected).max() > 0.01
    assert audit.smoothed_occurred.tolist() == [0, 0, 0, 0]


def test_releases_with_largest_change_come_first():
    (audit, _) = audit_events(make_engine(), SEQUENCE, EVENTS)
    moved = np.diff(audit.log_odds_change, prepend=0)
    np.testing.assert_allclose(audit.release_log_odds, moved)
    assert audit.largest_changes(2).tolist() == np.argsort(-np.abs(moved))[:2].tolist()
    facts = audit.to_dict()
    assert facts["largest_changes"][0]["log_odds"] == pytest.approx(moved[audit.largest_changes(1)[0]])
    assert facts["steps"] == [0, 1, 3, 4]


def test_certain_event_has_no_further_change():
    model = MarkovModel(np.eye(2), [0.5, 0.5])
    releaser = Releaser(model, [[0, 0], [9, 0]], PolicyGraph.complete(2), 1.0, "lattice", rng=0, spacing=1, delta=0.0)
    sequence = ReleasedSequence("anna", np.array([[0.0, 0.0], [3.0, 0.0]]), np.ones(2), np.array([0, 1]))
    (audit,) = audit_events(releaser, sequence, [("east", Presence([1], 0, 1))])
    assert np.isfinite(audit.log_odds_change).all()
    certain = replace(audit, log_odds_change=np.array([1.0, np.inf]), smoothed_occurred=np.array([0.5, 1.0]))
    assert certain.probability[-1] == 1.0
    assert certain.to_dict()["max_log_odds_change"] is None
    longer = replace(audit, log_odds_change=np.array([np.inf, np.inf]))
    assert longer.release_log_odds.tolist() == [np.inf, 0.0]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            Presence([3], 0, 0),
            "user anna: the event 'it' must be neither certain nor impossible .*, got probability 0$",
        ),
        (
            Presence([0, 1, 2, 3], 2, 3),
            "user anna: the event 'it' must be neither certain nor impossible .*, got probability 1$",
        ),
        (Presence([4], 2, 3), "user anna: states of an event must be from 0 to 3, got 4"),
    ],
)
def test_invalid_event_raises_with_user_and_event(event, message):
    with pytest.raises(EventError, match=message):
        audit_events(make_engine(), SEQUENCE, [("it", event)])


def test_invalid_prior_raises():
    with pytest.raises(StochasticError, match="the adversary's prior"):
        audit_events(make_engine(), SEQUENCE, EVENTS, [0.5, 0.5, 0.5, 0.5])
