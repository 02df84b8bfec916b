from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import BudgetError, CoordinateError, TimeOrderError
from dphmm.markov.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.release.engine import Releaser
from dphmm.release.stream import ReleaseStream
from dphmm.release.trajectory import release_trajectory
from dphmm.space import Places, SlottedTrajectory

SPACE = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05], within_km=0.2)
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
    assert stream.take("u", _instant(100), *_place(2)) is first
    assert stream.take("u", _instant(120), 10.0, 10.0) is first
    assert first.time == _instant(120)
    assert stream.take("u", _instant(121), *_place(2)) is not first


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
