"""Caps on events through engine, sessions and trajectories: never passed, restarted alike, blind to the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dphmm import Limits, MarkovModel, Releaser, ReleaseSettings, Session
from dphmm.errors import EventError, InvalidInputError, SessionMismatchError
from dphmm.events import Cap, Clock, EventOdds, Presence
from dphmm.release import PreparedStep, ReleaseRecord, release_trajectory
from dphmm.space import Grid
from dphmm.space.trajectory import SlottedTrajectory
from tests.running_example import F, graph
from tests.sizes import few_every_day

STAY = np.eye(6) * 0.4 + 0.1
THERE = Presence([2], 1, 4)
Q = 0.75
CAPS = (Cap(THERE, Q),)
TIGHT = (Cap(THERE, 0.3735),)
"""The event has probability 0.3731 under the model: nothing is left for a release."""


def engine(seed=0, caps=CAPS, epsilon=3.0, **more) -> Releaser:
    start = np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    return Releaser(MarkovModel(STAY, start), F, graph(), epsilon, "lattice", rng=seed, spacing=1, caps=caps, **more)


def logit(probability: float) -> float:
    return float(np.log(probability / (1 - probability)))


def outputs() -> np.ndarray:
    return np.stack(np.meshgrid(np.arange(-12, 17), np.arange(-12, 15)), axis=-1).reshape(-1, 2)


class Chosen:
    """Noise that gives what it is told to: an unlucky draw."""

    def __init__(self, noise, place) -> None:
        self._noise, self._place = noise, place

    def __getattr__(self, name):
        return getattr(self._noise, name)

    def draw(self, state, source, around=None):
        return self._place


def unlucky(releaser: Releaser, step: PreparedStep, place, truth: int = 2) -> ReleaseRecord:
    """The record of a draw that gives a place."""
    return releaser.drawn(replace(step, noise=Chosen(step.noise, np.asarray(place))), truth)


@pytest.mark.parametrize("seed", few_every_day(range(3), 1))
def test_no_output_at_any_step_passes_the_cap(seed):
    """Everything that could be drawn is looked at before each draw, which is the worst of it half of the time."""
    releaser, rng = engine(seed), np.random.default_rng(seed)
    odds, since, bound = EventOdds(STAY, releaser.model.initial, THERE), 1, 0.0
    for _ in range(6):
        step = releaser.prepare(steps=since)
        if step.withheld:
            since += 1
            continue
        after = []
        for place in outputs():
            one = odds.copy()
            one.update(releaser.log_likelihood(step, place), since)
            after.append(one.log_odds)
        assert max(after) <= logit(Q)
        assert step.reach[0] <= Q
        if step.epsilon < 3.0:
            bound = max(bound, (max(after) - odds.log_odds) / (logit(Q) - odds.log_odds))
        worst = outputs()[int(np.argmax(after))]
        record = unlucky(releaser, step, worst) if rng.random() < 0.5 else releaser.draw(step, 2)
        odds.update(releaser.log_likelihood(step, record.released), since)
        assert record.reach == step.reach
        since = 1
    assert bound == 0 or bound >= 0.9


def test_without_the_cap_some_output_would_pass_it():
    releaser = engine(caps=())
    step = releaser.prepare()
    odds = EventOdds(STAY, releaser.model.initial, THERE)
    worst = max(outputs().tolist(), key=lambda place: releaser.log_likelihood(step, place)[2])
    for steps in range(4):
        odds.update(releaser.log_likelihood(releaser.prepare(), worst), steps)
    assert odds.log_odds > logit(Q)


def test_the_budgets_do_not_depend_on_the_truth():
    """The same outputs for different true states: the same budgets, records but for nothing, and gaps."""
    budgets = []
    for truth in (0, 2, 5):
        releaser, found = engine(1), []
        for place in ([3, 0], [2, 1], [3, 0], [3, 0], [3, 0]):
            step = releaser.prepare()
            record = releaser.draw(step, truth) if step.withheld else unlucky(releaser, step, place, truth)
            found.append((step.epsilon, step.reach, record))
        budgets.append(found)
    assert budgets[0] == budgets[1] == budgets[2]


def test_a_withheld_moment_tells_the_prediction_and_nothing_of_the_event():
    releaser, start = engine(0, TIGHT), np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    first, second = releaser.release(2), releaser.release(4)
    for record, belief in ((first, start), (second, start @ STAY)):
        assert (record.withheld, record.reason, record.released, record.epsilon) == (True, "caps", None, 0)
        np.testing.assert_allclose(record.estimate, belief @ F, rtol=1e-12)
    assert releaser.person.count == 2
    assert releaser.prepare().reach == pytest.approx(first.reach, rel=1e-9)


def test_another_engine_and_a_restart_begin_with_fresh_odds():
    releaser = engine()
    first = releaser.prepare().epsilon
    for _ in range(3):
        releaser.release(2)
    assert releaser.another().prepare().epsilon == first
    releaser.restart()
    assert releaser.prepare().epsilon == first
    releaser.resume(releaser.prior(), 3)
    with pytest.raises(InvalidInputError, match="not known; replay them"):
        releaser.prepare()


KINDS = np.array([[1], [0], [0], [2], [2], [2]])


@pytest.mark.parametrize("seed", few_every_day(range(3), 1))
def test_queries_answered_together_keep_the_cap_one_after_another(seed, monkeypatch):
    """Every pair of outputs: the second query's budget follows from the first's output, the worst half of the time."""
    first, rng = engine(seed), np.random.default_rng(seed)
    second = first.beside(KINDS)
    odds, chosen, reached = EventOdds(STAY, first.model.initial, THERE), [], []
    original = type(first).drawn

    def worst_of(one: Releaser, step: PreparedStep, used: int) -> ReleaseRecord:
        places = outputs() if one is first else np.arange(-12, 15)[:, np.newaxis]
        since = step.steps
        after = []
        for place in places:
            told = odds.copy()
            told.update(one.log_likelihood(step, place), since)
            after.append(told.log_odds)
        assert max(after) <= logit(Q)
        reached.append(max(after))
        chosen.append(step.epsilon)
        if not step.withheld and rng.random() < 0.5:
            step = replace(step, noise=Chosen(step.noise, places[int(np.argmax(after))]))
        record = original(one, step, used)
        odds.update(one.log_likelihood(step, record.released), since)
        return record

    monkeypatch.setattr(Releaser, "drawn", worst_of)
    for _ in range(3):
        ledger = first.release_together(2, second)
        assert [record.epsilon for record in ledger.records] == chosen[-2:]
        assert ledger.records[1].steps == 0
    assert len(reached) == 6
    assert first.person.keeper.splits[0].log_odds == pytest.approx(odds.split().log_odds)


def test_queries_answered_together_share_their_caps():
    releaser = engine()
    with pytest.raises(InvalidInputError, match="keep the same caps on events"):
        releaser.release_together(2, releaser.beside(KINDS, caps=[]))


@pytest.mark.parametrize("mechanism", ["optimal", "graph-exponential"])
@pytest.mark.parametrize("seed", range(2))
def test_tables_keep_the_cap_on_every_output_and_come_near_it(mechanism, seed):
    start = np.array([0.3, 0.3, 0.1, 0.1, 0.1, 0.1])
    releaser = Releaser(MarkovModel(STAY, start), F, graph(), 3.0, mechanism, rng=seed, caps=[Cap(THERE, 0.5)])
    odds, bound, rng, since = EventOdds(STAY, start, THERE), 0.0, np.random.default_rng(seed), 1
    for _ in range(5):
        step = releaser.prepare(steps=since)
        if step.withheld:
            since += 1
            continue
        after = []
        for place in np.array(F, dtype=float):
            one = odds.copy()
            one.update(releaser.log_likelihood(step, place), since)
            after.append(one.log_odds)
        assert max(after) <= logit(0.5)
        assert step.reach[0] == pytest.approx(1 / (1 + np.exp(-max(after)))), "every output is looked at"
        if step.epsilon < 3.0:
            bound = max(bound, (max(after) - odds.log_odds) / (logit(0.5) - odds.log_odds))
        place = np.array(F, dtype=float)[int(np.argmax(after))]
        record = unlucky(releaser, step, place) if rng.random() < 0.5 else releaser.draw(step, 2)
        odds.update(releaser.log_likelihood(step, record.released), since)
        since = 1
    assert bound >= 0.9


# ---- sessions --------------------------------------------------------------------------------------------------------


def walked(path, names: list[str], slots=range(12), seed=5) -> list:
    """Releases of one session through several openings of its file, one after another."""
    found, source = [], np.random.default_rng(seed)
    for number, slot in enumerate(slots):
        name = names[number % len(names)]
        releaser = engine(source)
        with Session.open(path, name, releaser) as session:
            found.append(session.release(2, slot))
    return found


def test_a_session_goes_on_after_a_restart_as_if_there_was_none(tmp_path):
    source, whole = np.random.default_rng(5), []
    with Session.open(tmp_path / "whole.db", "ann", engine(source)) as session:
        for slot in range(12):
            whole.append(session.release(2, slot))
    assert min(record.epsilon for record in whole) < 3.0
    assert walked(tmp_path / "again.db", ["ann"]) == whole


def test_a_withheld_moment_of_a_session_never_gets_a_release(tmp_path):
    with Session.open(tmp_path / "s.db", "ann", engine(2, TIGHT)) as session:
        record = session.release(2, 7)
        assert record.withheld
        assert [session.release(0, 7), session.find(7), session.omit(7)] == [record] * 3
        assert [release.record for release in session.releases()] == [record]
        assert session.ledger().epsilon == 0


def test_other_caps_are_other_terms(tmp_path):
    with Session.open(tmp_path / "s.db", "ann", engine(0)):
        pass
    with pytest.raises(SessionMismatchError, match="began with caps"):
        Session.open(tmp_path / "s.db", "ann", engine(0, caps=(Cap(THERE, 0.9),)))
    with pytest.raises(SessionMismatchError, match="began with caps"):
        Session.open(tmp_path / "s.db", "ann", engine(0, caps=()))


def test_limits_count_the_budgets_that_caps_leave(tmp_path):
    with Session.open(tmp_path / "s.db", "ann", engine(0), Limits(epsilon=100)) as session:
        records = [session.release(2, 0), session.release(2, 1)]
        assert session.ledger().epsilon == pytest.approx(sum(record.epsilon for record in records))
        assert all(record.epsilon <= 3.0 for record in records)


# ---- trajectories, dates, priors -------------------------------------------------------------------------------------

GRID = Grid.over((44.985, -30.02, 45.015, -29.98), cell_km=1.0)


def town(**settings) -> Releaser:
    size = GRID.size
    near = np.exp(-2 * np.linalg.norm(GRID.points[:, None] - GRID.points, axis=2))
    model = MarkovModel(near / near.sum(axis=1, keepdims=True), np.full(size, 1 / size), GRID, 3600.0)
    return ReleaseSettings(policy="utility:1km", epsilon=2.0, **settings).engine(model, 3)


def day(start: str, hours: int) -> SlottedTrajectory:
    first = int(np.datetime64(start, "h").astype(np.int64))
    place = GRID.latlon([5])[0]
    return SlottedTrajectory("ann", 3600.0, np.arange(first, first + hours), *(np.full(hours, one) for one in place))


def test_dates_are_counted_from_each_persons_first_release():
    text = "at:5,6 on 2024-03-04 any day 9-12 from the first release"
    releaser = town(caps=[Cap(text, 0.6)])
    for start in ("2024-03-04T06:00", "2024-03-04T10:00"):
        releases = list(release_trajectory(releaser, GRID, day(start, 8)))
        assert releases
        first = int(np.datetime64(start, "h").astype(np.int64))
        event = releaser.settings.caps[0].event.resolve(GRID, Clock(3600.0, first))
        odds, last = EventOdds(releaser.model.transition, releaser.model.initial, event), None
        again = town()
        for release in releases:
            slot = int(release.time.astype("datetime64[h]").astype(np.int64))
            steps = 1 if last is None else slot - last
            prior = again.prior(steps)
            step = again.prepare_on(prior, again.plan(prior), release.record.epsilon, steps)
            row = again.log_likelihood(step, release.record.released)
            odds.update(row, steps)
            again.resume(prior.update(row), 1)
            assert odds.log_odds <= logit(0.6)
            last = slot
    with pytest.raises(EventError, match=r"user ann: window 'on 2024-03-04 any day 9-12 from .*' holds no step"):
        list(release_trajectory(releaser, GRID, day("2024-03-05T06:00", 3)))


def test_an_engine_that_knows_no_first_release_takes_steps_alone():
    releaser = town(caps=[Cap("at:5 on 2024-03-04", 0.6)])
    with pytest.raises(EventError, match="it is not known when the first release is"):
        releaser.release(5)
    assert town(caps=[Cap("at:5 between 0 and 3", 0.6)]).release(5).epsilon <= 2.0


def test_a_cap_at_or_below_the_prior_draws_nothing():
    releaser = town(caps=[Cap("at:5 between 0 and 3", 0.05)])
    with pytest.raises(EventError, match=r"before anything is released, and is to stay at 0\.05"):
        releaser.release(5)
    assert releaser.belief is None


NEAR = {5: 0.3, 10: 0.7}


def test_caps_are_kept_for_every_prior_of_a_table(tmp_path):
    path = tmp_path / "priors.csv"
    path.write_text("state,near\n" + "".join(f"{state},{share}\n" for state, share in NEAR.items()))
    alone, both = (town(caps=[Cap("at:5 between 0 and 3", 0.6)], priors=one) for one in (None, str(path)))
    steps = [engine.prepare() for engine in (alone, both)]
    assert steps[1].epsilon < steps[0].epsilon
    prior = np.zeros(GRID.size)
    prior[list(NEAR)] = list(NEAR.values())
    event = both.settings.caps[0].event.resolve(GRID)
    begun = EventOdds(both.model.transition, prior, event)
    for place in np.stack(np.meshgrid(np.linspace(-6, 6, 25), np.linspace(-6, 6, 25)), axis=-1).reshape(-1, 2).round(3):
        odds = begun.copy()
        odds.update(both.log_likelihood(steps[1], place))
        assert odds.log_odds <= logit(0.6)
