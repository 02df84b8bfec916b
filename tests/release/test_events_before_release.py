"""Events that begin before a person's first release, against every path of the chain from the window's start on."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.audit import ReleasedSequence, audit_events, replay_sequence
from dphmm.errors import EventError
from dphmm.events import Cap, Clock, EventOdds, parse_event
from dphmm.events.cap import placed
from dphmm.model import stationary
from dphmm.model.time_classes import TimeClasses
from dphmm.release.event_caps import earlier
from dphmm.release.session import Session
from tests.events.oracles import happens, joint, odds, paths

FIRST = int(np.datetime64("2024-03-08T22:00", "h").astype(np.int64))
TEXTS = [
    ("state:2 between 2024-03-08T19:00Z and 2024-03-09T00:00Z", 3),
    ("state:2 at least 2 visits between 2024-03-08T20:00Z and 2024-03-09T00:00Z", 2),
    ("state:0 then state:1 then state:1 from 2024-03-08T21:00Z", 1),
    ("state:2 between 2024-03-08T19:00Z and 2024-03-08T21:00Z", 3),
    ("state:2 between 2024-03-08T20:00Z and 2024-03-08T23:00Z & state:0 between 1 and 2", 2),
]
CLIPPED = " from the first release"
WATCHED = "state:2 between 2024-03-08T19:00Z and 2024-03-09T00:00Z"


def chain(seed: int) -> np.ndarray:
    matrix = np.random.default_rng(seed).random((3, 3)) + 2 * np.eye(3)
    return matrix / matrix.sum(axis=1, keepdims=True)


def at_rest() -> MarkovModel:
    return MarkovModel(chain(1), stationary(chain(1)), step_seconds=3600.0)


def at_rest_by_the_clock() -> MarkovModel:
    """A matrix for each hour, and the distribution at each hour that comes again a day later."""
    matrices, classes = [chain(seed) for seed in range(24)], TimeClasses.of("hours", 3600.0)
    begun, starts = np.full(3, 1 / 3), np.zeros((24, 3))
    for slot in range(24 * 50):  # it forgets where it began within a day
        begun = begun @ matrices[classes.class_of(slot)]
        starts[classes.class_of(slot)] = begun
    return MarkovModel(matrices, starts, step_seconds=3600.0, time_classes=classes)


def every_path(model: MarkovModel, lead: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """All paths from some steps before the first release on, and their probabilities, one matrix after another."""
    begin = FIRST - lead
    matrices = [model.transitions[model.class_of(begin + step)].toarray() for step in range(1, lead + steps)]
    return paths(matrices, model.starts[model.class_of(begin)])


@pytest.mark.parametrize(("text", "lead"), TEXTS)
@pytest.mark.parametrize("made", [at_rest, at_rest_by_the_clock])
def test_the_odds_of_an_event_that_begins_before_are_those_of_all_paths(made, text, lead):
    model, rows = made(), np.log(np.random.default_rng(3).random((3, 3)) + 0.05)
    event, found, begun = placed(parse_event(text), None, Clock(3600.0, FIRST), earlier(model, FIRST))
    assert found == lead
    assert begun is not None
    ours = EventOdds(*begun, event, text, lead)
    every, weights = every_path(model, lead, 3)
    holds = np.array([happens(event, path) for path in every.tolist()])
    np.testing.assert_allclose(expit(ours.prior), weights[holds].sum(), rtol=1e-9)
    expected = odds(holds, weights, joint(every, weights, rows, range(lead, lead + 3)))
    np.testing.assert_allclose([ours.update(row) for row in rows], expected, rtol=1e-8, atol=1e-10)


def released(folder, text: str, seed: int) -> tuple[np.ndarray, float]:
    """Two releases under a cap of .9: what the event as worded came to by all paths, and what an audit says of it."""
    model, f = at_rest(), np.array([[0, 0], [1, 0], [3, 0]])

    def engine(caps=()) -> Releaser:
        return Releaser(model, f, PolicyGraph.complete(3), 6.0, spacing=1, rng=seed, caps=caps)

    with Session.open(folder / f"{len(text)}-{seed}.db", "ann", engine([Cap(text, 0.9)])) as session:
        records = [session.release(2, FIRST + step) for step in range(2)]
    drawn = [record.released is not None for record in records]
    sequence = ReleasedSequence(
        "ann",
        np.array([record.released if one else (0.0, 0.0) for record, one in zip(records, drawn, strict=True)]),
        np.array([record.epsilon if one else 0.0 for record, one in zip(records, drawn, strict=True)]),
        np.array([0, 1]),
        np.array([record.possible for record in records]),
        np.array([record.constrained_factor for record in records]),
        first=FIRST,
    )
    rows = np.array([one.log_likelihood for one in replay_sequence(engine(), sequence)])
    every, weights = every_path(model, 3, 2)
    seen = joint(every, weights, rows, [3, 4])
    probability = seen[:, (every == 2).any(axis=1)].sum(axis=1) / seen.sum(axis=1)
    (audit,) = audit_events(engine(), sequence, [(WATCHED, parse_event(WATCHED))])
    np.testing.assert_allclose(audit.probability, probability, rtol=1e-9)
    np.testing.assert_allclose(audit.happened[-1], probability[-1], rtol=1e-9)
    assert audit.lead == 3
    return probability, audit.prior_probability


def test_a_cap_is_kept_as_worded_where_a_clipped_window_passes_it(tmp_path):
    """The broken twin watches the part from the first release on alone: the event as worded passes the cap then."""
    kept = [released(tmp_path, WATCHED, seed)[0].max() for seed in range(12)]
    clipped = [released(tmp_path, WATCHED + CLIPPED, seed)[0].max() for seed in range(12)]
    assert max(kept) <= 0.9 < max(clipped)


@pytest.mark.parametrize("initial", [[0.2, 0.3, 0.5], [0.98, 0.01, 0.01]])
def test_without_rest_the_clipped_window_has_to_be_asked_for(tmp_path, initial):
    model = MarkovModel(chain(1), initial, step_seconds=3600.0)
    clock, sooner = Clock(3600.0, FIRST), earlier(model, FIRST)
    for text in (one for one, _ in TEXTS[:2]):
        with pytest.raises(EventError, match=r"begins before the first release, at .*; write 'from the first release'"):
            placed(parse_event(text), None, clock, sooner)
        event, lead, begun = placed(parse_event(text + CLIPPED), None, clock, sooner)
        assert (event.first, lead, begun) == (0, 0, None)
        assert str(parse_event(text + CLIPPED)) == text + CLIPPED
    f = np.array([[0, 0], [1, 0], [3, 0]])
    with (
        pytest.raises(EventError, match="begins before the first release"),
        Session.open(
            tmp_path / "s.db", "ann", Releaser(model, f, PolicyGraph.complete(3), 6.0, caps=[Cap(WATCHED, 0.9)])
        ) as session,
    ):
        session.release(0, FIRST)


def test_another_prior_says_nothing_of_the_time_before_the_first_release():
    sequence = ReleasedSequence(
        "ann", np.zeros((1, 2)), np.ones(1), np.zeros(1, dtype=np.int64), np.array([3]), np.ones(1), first=FIRST
    )
    releaser = Releaser(at_rest(), np.eye(3)[:, :2], PolicyGraph.complete(3), 1.0, spacing=1)
    with pytest.raises(EventError, match="adversary's prior says nothing"):
        audit_events(releaser, sequence, [(WATCHED, parse_event(WATCHED))], [0.2, 0.3, 0.5])


def test_steps_have_no_time_before_the_first_release():
    with pytest.raises(EventError, match="are from the first release anyway"):
        parse_event("state:2 between 1 and 2 from the first release")
