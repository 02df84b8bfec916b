"""People who are remembered, and people whose sessions are kept in one file."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.arrays import random_source
from dphmm.errors import (
    BudgetError,
    BudgetExceededError,
    ConfigurationError,
    CoordinateError,
    OmittedError,
    SessionMismatchError,
    TimeOrderError,
)
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Limits
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore
from dphmm.release.trajectory import Accepted, RecordedPeople, ReleaseStream, release_trajectory
from dphmm.space import Places, SlottedTrajectory

SPACE = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05], within_km=0.2)
SLOTS, STATES = np.array([1, 2, 3, 10]), [0, 2, 1, 1]


def starter(seed=7, step=60.0, outside="omit"):
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, step)
    return Releaser(model, SPACE.points, PolicyGraph.complete(3), 1.0, rng=random_source(seed), outside=outside)


def track(user="u", step=60.0):
    return SlottedTrajectory(user, step, SLOTS, *SPACE.latlon(STATES).T)


def fixes():
    return [(np.datetime64(int(slot) * 60, "s"), *SPACE.latlon(k)[0]) for slot, k in zip(SLOTS, STATES, strict=True)]


def test_a_recorded_trajectory_is_the_trajectorys_release_and_stays_it(tmp_path):
    expected = list(release_trajectory(starter(), SPACE, track()))
    with RecordedPeople(tmp_path / "s", starter()) as people:
        assert list(people.trajectory(track())) == expected
        assert list(people.trajectory(track())) == expected
    with RecordedPeople(tmp_path / "s", starter(8)) as people:
        assert list(people.trajectory(track())) == expected
        assert [people.take("u", *fix) for fix in fixes()] == expected


def test_recorded_fixes_are_answered_as_the_stream_answers_them(tmp_path):
    stream = ReleaseStream(starter())
    with RecordedPeople(tmp_path / "s", starter()) as people:
        for user in "ab":
            for fix in fixes():
                assert people.take(user, *fix) == stream.take(user, *fix)
        for answerer in (people, stream):
            for place in ((10.0, 10.0), SPACE.latlon(0)[0], (10.0, 10.0)):
                assert answerer.take("a", np.datetime64(601, "s"), *place) is None
            assert answerer.take("a", np.datetime64(600, "s"), 10.0, 10.0).record.index == 3
            for second, place in ((300, (10.0, 10.0)), (300, SPACE.latlon(0)[0])):
                with pytest.raises(TimeOrderError):
                    answerer.take("a", np.datetime64(second, "s"), *place)
            assert answerer.take("a", np.datetime64(661, "s"), *SPACE.latlon(0)[0]).record.steps == 2


def test_a_slot_of_which_was_said_that_it_has_no_release_never_gets_one(tmp_path):
    # Not in another process either, nor after a crash, nor from a file whose last place in the slot lies inside.
    with RecordedPeople(tmp_path / "s", starter()) as people, RecordedPeople(tmp_path / "s", starter()) as other:
        assert people.take("u", np.datetime64(600, "s"), 10.0, 10.0) is None
        assert other.take("u", np.datetime64(600, "s"), *SPACE.latlon(0)[0]) is None
        with pytest.raises(TimeOrderError, match="slot 3 lies before slot 10, the last one answered"):
            other.take("u", np.datetime64(180, "s"), *SPACE.latlon(0)[0])
    with RecordedPeople(tmp_path / "s", starter()) as people:
        assert list(people.trajectory(SlottedTrajectory("u", 60.0, SLOTS[3:], *SPACE.latlon([1]).T))) == []
        assert people.take("u", np.datetime64(660, "s"), *SPACE.latlon(0)[0]).record.index == 0
    with Session.open(tmp_path / "s", "u", starter()) as session:
        assert session.omit(12) is None
        with pytest.raises(OmittedError, match="slot 12 was omitted"):
            session.release(0, 12)
        assert session.omit(11) == session.find(11)
        assert [release.slot for release in session.releases()] == [11]


def placed(slots, *places):
    return SlottedTrajectory("u", 60.0, np.array(slots), *np.array(places).T)


def test_a_run_over_files_marks_what_it_leaves_out(tmp_path):
    """A file's rows say which times have none: later files, fixes and processes keep to that, and to what has one."""
    away, a, b = (10.0, 10.0), SPACE.latlon(0)[0], SPACE.latlon(1)[0]
    first = placed([1, 2, 3, 4, 5], away, a, away, a, away)
    with RecordedPeople(tmp_path / "s", starter()) as people:
        made = list(people.trajectory(first))
        assert [release.record.steps for release in made] == [0, 2]
        assert list(people.trajectory(first)) == made
    with RecordedPeople(tmp_path / "s", starter()) as people:
        again = list(people.trajectory(placed([4, 5, 6], away, a, b)))  # now outside at 4 and inside at 5
        assert [release.time.astype("M8[s]").astype(int) for release in again] == [240, 360]
        assert again[0] == made[1]
        assert people.take("u", np.datetime64(240, "s"), *away) == made[1]
        with pytest.raises(TimeOrderError, match="slot 3 lies before slot 6"):
            list(people.trajectory(placed([3], b)))
    with Session.open(tmp_path / "s", "u", starter()) as session:
        assert [release.slot for release in session.releases()] == [2, 4, 6]


def test_at_the_border_a_place_outside_is_the_nearest_state_for_fixes_and_files_alike(tmp_path):
    away = SPACE.projection.to_latlon(
        SPACE.points + np.array([[-5, -5], [0, 0], [90, 3]])
    )  # west of a, at b, far east of c
    gone = SlottedTrajectory("u", 60.0, SLOTS[:3], *away.T)
    there = SlottedTrajectory("u", 60.0, SLOTS[:3], *SPACE.latlon([0, 1, 2]).T)
    expected = list(release_trajectory(starter(outside="border"), SPACE, there))
    private = []
    assert list(release_trajectory(starter(outside="border"), SPACE, gone, private=private.append)) == expected
    assert [one.outside for one in private] == [True, False, True]
    stream = ReleaseStream(starter(outside="border"))
    taken = [stream.take("u", np.datetime64(60 * k, "s"), *place) for k, place in enumerate(away, start=1)]
    assert taken == expected
    with RecordedPeople(tmp_path / "s", starter(outside="border")) as people:
        assert list(people.trajectory(gone)) == expected
    with pytest.raises(SessionMismatchError, match="session 'u' began with outside border, not omit"):
        Session.open(tmp_path / "s", "u", starter(outside="omit"))


def test_a_limit_names_the_person_and_binds_each_alone(tmp_path):
    with RecordedPeople(tmp_path / "s", starter(), Limits(epsilon=3)) as people:
        for user in "ab":
            with pytest.raises(BudgetExceededError, match=f"user {user}: the epsilon limit of 3"):
                list(people.trajectory(track(user)))
    with SessionStore(tmp_path / "s", readonly=True) as store:
        assert [len(list(store.releases(store.session(user).number))) for user in "ab"] == [3, 3]


def test_clocks_must_agree(tmp_path):
    with (
        RecordedPeople(tmp_path / "s", starter()) as people,
        pytest.raises(ConfigurationError, match="resample"),
    ):
        list(people.trajectory(track(step=30.0)))
    with pytest.raises(ConfigurationError, match="step_seconds"):
        RecordedPeople(tmp_path / "t", starter(step=None))


# ---- remembered -------------------------------------------------------------------------------------------------

MODEL = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, 60.0)


def _releaser(outside="omit"):
    return Releaser(MODEL, SPACE.points, PolicyGraph.complete(3), 1.0, rng=7, outside=outside)


def _instant(second):
    return np.datetime64(second, "s")


def _place(state):
    return tuple(SPACE.latlon(state)[0].tolist())


def test_a_stream_answers_as_the_whole_trajectory_does():
    states, seconds = [0, 2, 1, 1], [60, 120, 180, 600]
    stream = ReleaseStream(_releaser())
    streamed = [stream.take("u", _instant(s), *_place(k)) for s, k in zip(seconds, states, strict=True)]
    track = SlottedTrajectory("u", 60.0, np.array(seconds) // 60, *SPACE.latlon(states).T)
    assert streamed == list(release_trajectory(_releaser(), SPACE, track))
    assert streamed[3].record.steps == 7


def test_people_have_beliefs_of_their_own():
    stream = ReleaseStream(_releaser())
    first = [stream.take(user, _instant(60), *_place(0)) for user in "abc"]
    assert [one.record.index for one in first] == [0, 0, 0]
    assert stream.take("b", _instant(120), *_place(0)).record.index == 1


def test_a_second_fix_in_a_slot_repeats_the_release_wherever_it_is():
    stream = ReleaseStream(_releaser())
    first = stream.take("u", _instant(61), *_place(0))
    assert stream.take("u", _instant(100), *_place(2)) == first
    assert stream.take("u", _instant(120), 10.0, 10.0) == first
    assert first.time == _instant(120)
    assert (first.record.index, stream.take("u", _instant(121), *_place(2)).record.index) == (0, 1)


def test_outside_the_space_there_is_no_release_and_no_step():
    stream = ReleaseStream(_releaser())
    assert stream.take("u", _instant(60), 10.0, 10.0) is None
    assert stream.take("u", _instant(60), *_place(1)) is None
    assert stream.take("u", _instant(120), *_place(1)).record.index == 0
    assert stream.take("u", _instant(300), 10.0, 10.0) is None
    assert stream.take("u", _instant(360), *_place(1)).record.steps == 4


def test_time_does_not_go_back():
    stream = ReleaseStream(_releaser())
    stream.take("u", _instant(120), *_place(0))
    with pytest.raises(TimeOrderError, match=r"user u: time .* goes back"):
        stream.take("u", _instant(60), *_place(0))


def test_a_fix_asks_for_a_budget_of_its_own_only_where_that_is_accepted_and_up_to_a_most():
    refusing, accepting = ReleaseStream(_releaser()), ReleaseStream(_releaser(), Accepted(0.5))
    with pytest.raises(BudgetError, match="an epsilon of its own, which is not accepted; leave it out"):
        refusing.take("u", _instant(60), *_place(0), epsilon=0.1)
    with pytest.raises(BudgetError, match=r"epsilon is 100000; at most 0\.5 is accepted"):
        accepting.take("u", _instant(60), *_place(0), epsilon=100_000)
    assert accepting.take("u", _instant(60), *_place(0), epsilon=0.5).record.epsilon == 0.5
    assert refusing.take("u", _instant(60), *_place(0)).record.index == 0
    with pytest.raises(BudgetError, match="the epsilon accepted is 0"):
        Accepted(0)


def test_a_fix_from_the_future_is_refused_beyond_the_clock_skew_and_locks_nobody_out(tmp_path):
    now, soon = np.datetime64("now", "us"), Accepted(clock_skew_seconds=300.0)
    with RecordedPeople(tmp_path / "s", starter(), accepted=soon) as recorded:
        for people in (recorded, ReleaseStream(starter(), soon)):
            for ahead in (np.timedelta64(400, "s"), np.timedelta64(75 * 365, "D")):
                with pytest.raises(TimeOrderError, match="more than 300 s ahead of the clock here"):
                    people.take("u", now + ahead, *_place(0))
            assert people.take("u", now, *_place(0)).record.index == 0
            assert people.take("u", now + np.timedelta64(200, "s"), *_place(0)).record.index == 1
    endless = ReleaseStream(starter(), Accepted(clock_skew_seconds=3e11))
    assert endless.take("u", np.datetime64("9999-01-01", "us"), *_place(0)).record.index == 0
    for wrong in (0, -1, float("nan"), 1e20):
        with pytest.raises(ConfigurationError, match="clock skew is"):
            Accepted(clock_skew_seconds=wrong)


def test_a_refused_fix_changes_nothing():
    stream = ReleaseStream(_releaser(), Accepted(1))
    with pytest.raises(CoordinateError):
        stream.take("u", _instant(60), 400.0, 7.0)
    with pytest.raises(BudgetError):
        stream.take("u", _instant(60), *_place(0), epsilon=0.0)
    assert stream.take("u", _instant(60), *_place(0), epsilon=0.25).record.epsilon == 0.25
