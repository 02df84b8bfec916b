"""People who are remembered, and people whose sessions are kept in one file."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.arrays import random_source
from dphmm.errors import BudgetError, BudgetExceededError, ConfigurationError, CoordinateError, TimeOrderError
from dphmm.markov.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Limits
from dphmm.release.people import RecordedPeople, ReleaseStream
from dphmm.release.store import SessionStore
from dphmm.release.trajectory import release_trajectory
from dphmm.space import Places, SlottedTrajectory

SPACE = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05], within_km=0.2)
SLOTS, STATES = np.array([1, 2, 3, 10]), [0, 2, 1, 1]


def starter(seed=7, step=60.0):
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, step)
    source = random_source(seed)
    return lambda: Releaser(model, SPACE.points, PolicyGraph.complete(3), 1.0, rng=source)


def track(user="u", step=60.0):
    return SlottedTrajectory(user, step, SLOTS, *SPACE.latlon(STATES).T)


def fixes():
    return [(np.datetime64(int(slot) * 60, "s"), *SPACE.latlon(k)[0]) for slot, k in zip(SLOTS, STATES, strict=True)]


def test_a_recorded_trajectory_is_the_trajectorys_release_and_stays_it(tmp_path):
    expected = list(release_trajectory(starter()(), SPACE, track()))
    with RecordedPeople(tmp_path / "s", starter(), SPACE) as people:
        assert list(people.trajectory(track())) == expected
        assert list(people.trajectory(track())) == expected
    with RecordedPeople(tmp_path / "s", starter(8), SPACE) as people:
        assert list(people.trajectory(track())) == expected
        assert [people.take("u", *fix) for fix in fixes()] == expected


def test_recorded_fixes_are_answered_as_the_stream_answers_them(tmp_path):
    stream = ReleaseStream(starter(), SPACE, 60.0)
    with RecordedPeople(tmp_path / "s", starter(), SPACE) as people:
        for user in "ab":
            for fix in fixes():
                assert people.take(user, *fix) == stream.take(user, *fix)
        for answerer in (people, stream):
            assert answerer.take("a", np.datetime64(601, "s"), 10.0, 10.0) is None
            assert answerer.take("a", np.datetime64(600, "s"), 10.0, 10.0).record.index == 3
            for place in ((10.0, 10.0), SPACE.latlon(0)[0]):
                with pytest.raises(TimeOrderError):
                    answerer.take("a", np.datetime64(300, "s"), *place)


def test_a_limit_names_the_person_and_binds_each_alone(tmp_path):
    with RecordedPeople(tmp_path / "s", starter(), SPACE, Limits(epsilon=3)) as people:
        for user in "ab":
            with pytest.raises(BudgetExceededError, match=f"user {user}: the epsilon limit of 3"):
                list(people.trajectory(track(user)))
    with SessionStore(tmp_path / "s", readonly=True) as store:
        assert [len(list(store.releases(store.session(user).number))) for user in "ab"] == [3, 3]


def test_clocks_must_agree(tmp_path):
    with (
        RecordedPeople(tmp_path / "s", starter(), SPACE) as people,
        pytest.raises(ConfigurationError, match="resample"),
    ):
        list(people.trajectory(track(step=30.0)))
    with pytest.raises(ConfigurationError, match="step_seconds"):
        RecordedPeople(tmp_path / "t", starter(step=None), SPACE)


# ---- remembered -------------------------------------------------------------------------------------------------

MODEL = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, 60.0)


def _releaser(epsilon=1.0, seed=7):
    return Releaser(MODEL, SPACE.points, PolicyGraph.complete(3), epsilon, rng=seed)


def _instant(second):
    return np.datetime64(second, "s")


def _place(state):
    return tuple(SPACE.latlon(state)[0].tolist())


def test_a_stream_answers_as_the_whole_trajectory_does():
    states, seconds = [0, 2, 1, 1], [60, 120, 180, 600]
    stream = ReleaseStream(_releaser, SPACE, 60.0)
    streamed = [stream.take("u", _instant(s), *_place(k)) for s, k in zip(seconds, states, strict=True)]
    track = SlottedTrajectory("u", 60.0, np.array(seconds) // 60, *SPACE.latlon(states).T)
    assert streamed == list(release_trajectory(_releaser(), SPACE, track))
    assert streamed[3].record.steps == 7


def test_people_have_beliefs_of_their_own():
    stream = ReleaseStream(_releaser, SPACE, 60.0)
    first = [stream.take(user, _instant(60), *_place(0)) for user in "abc"]
    assert [one.record.index for one in first] == [0, 0, 0]
    assert stream.take("b", _instant(120), *_place(0)).record.index == 1


def test_a_second_fix_in_a_slot_repeats_the_release_wherever_it_is():
    stream = ReleaseStream(_releaser, SPACE, 60.0)
    first = stream.take("u", _instant(61), *_place(0))
    assert stream.take("u", _instant(100), *_place(2)) == first
    assert stream.take("u", _instant(120), 10.0, 10.0) == first
    assert first.time == _instant(120)
    assert (first.record.index, stream.take("u", _instant(121), *_place(2)).record.index) == (0, 1)


def test_outside_the_space_there_is_no_release_and_no_step():
    stream = ReleaseStream(_releaser, SPACE, 60.0)
    assert stream.take("u", _instant(60), 10.0, 10.0) is None
    assert stream.take("u", _instant(60), *_place(1)).record.index == 0
    assert stream.take("u", _instant(240), 10.0, 10.0) is None
    assert stream.take("u", _instant(300), *_place(1)).record.steps == 4


def test_time_does_not_go_back():
    stream = ReleaseStream(_releaser, SPACE, 60.0)
    stream.take("u", _instant(120), *_place(0))
    with pytest.raises(TimeOrderError, match=r"user u: time .* goes back"):
        stream.take("u", _instant(60), *_place(0))


def test_a_refused_fix_changes_nothing():
    stream = ReleaseStream(_releaser, SPACE, 60.0)
    with pytest.raises(CoordinateError):
        stream.take("u", _instant(60), 400.0, 7.0)
    with pytest.raises(BudgetError):
        stream.take("u", _instant(60), *_place(0), epsilon=0.0)
    assert stream.take("u", _instant(60), *_place(0), epsilon=0.25).record.epsilon == 0.25
