"""People whose sessions are kept in one file."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.arrays import random_source
from dphmm.errors import BudgetExceededError, ConfigurationError, TimeOrderError
from dphmm.markov.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.ledger import Limits
from dphmm.release.recorded import RecordedPeople
from dphmm.release.stream import ReleaseStream
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
            assert len(people.session(user).releases()) == 3


def test_clocks_must_agree(tmp_path):
    with (
        RecordedPeople(tmp_path / "s", starter(), SPACE) as people,
        pytest.raises(ConfigurationError, match="resample"),
    ):
        list(people.trajectory(track(step=30.0)))
    with pytest.raises(ConfigurationError, match="step_seconds"):
        RecordedPeople(tmp_path / "t", starter(step=None), SPACE)
