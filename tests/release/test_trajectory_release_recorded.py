"""Users of a release stream, and users with sessions in one file."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import (
    BudgetError,
    BudgetExceededError,
    ConfigurationError,
    CoordinateError,
    SessionMismatchError,
    TimeOrderError,
    WithheldTimestepError,
)
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.random import as_random_source
from dphmm.release.engine import Releaser
from dphmm.release.session import Session
from dphmm.release.session_limits import Limits
from dphmm.release.session_store import SessionStore
from dphmm.release.trajectory_release import FixFilter, RecordedReleaseStream, ReleaseStream, release_trajectory
from dphmm.space import Places, SlottedTrajectory

SPACE = Places(["a", "b", "c"], [45.0, 45.001, 45.02], [7.0, 7.01, 7.05], within_km=0.2)
SLOTS = np.array([1, 2, 3, 10])
STATES = [0, 2, 1, 1]


def make_starter(seed=7, step=60.0, outside="drop"):
    model = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, step)
    return Releaser(model, SPACE.points, PolicyGraph.complete(3), 1.0, rng=as_random_source(seed), outside=outside)


def make_track(user="u", step=60.0):
    return SlottedTrajectory(user, step, SLOTS, *SPACE.latlon(STATES).T)


def list_fixes():
    return [(np.datetime64(int(slot) * 60, "s"), *SPACE.latlon(k)[0]) for slot, k in zip(SLOTS, STATES, strict=True)]


def test_recorded_trajectory_matches_release_and_is_repeated(tmp_path):
    expected = list(release_trajectory(make_starter(), SPACE, make_track()))
    with RecordedReleaseStream(tmp_path / "s", make_starter()) as stream:
        assert list(stream.release_track(make_track())) == expected
        assert list(stream.release_track(make_track())) == expected
    with RecordedReleaseStream(tmp_path / "s", make_starter(8)) as stream:
        assert list(stream.release_track(make_track())) == expected
        assert [stream.take("u", *fix) for fix in list_fixes()] == expected


def test_recorded_fixes_match_stream(tmp_path):
    stream = ReleaseStream(make_starter())
    with RecordedReleaseStream(tmp_path / "s", make_starter()) as recorded:
        for user in "ab":
            for fix in list_fixes():
                assert recorded.take(user, *fix) == stream.take(user, *fix)
        for answerer in (recorded, stream):
            for place in ((10.0, 10.0), SPACE.latlon(0)[0], (10.0, 10.0)):
                assert answerer.take("a", np.datetime64(601, "s"), *place) is None
            assert answerer.take("a", np.datetime64(600, "s"), 10.0, 10.0).record.index == 3
            for second, place in ((300, (10.0, 10.0)), (300, SPACE.latlon(0)[0])):
                with pytest.raises(TimeOrderError):
                    answerer.take("a", np.datetime64(second, "s"), *place)
            assert answerer.take("a", np.datetime64(661, "s"), *SPACE.latlon(0)[0]).record.steps == 2


def test_omitted_slot_never_gets_release(tmp_path):
    # This includes other processes, restarts, and files with a last location in the slot that is inside.
    with (
        RecordedReleaseStream(tmp_path / "s", make_starter()) as stream,
        RecordedReleaseStream(tmp_path / "s", make_starter()) as other,
    ):
        assert stream.take("u", np.datetime64(600, "s"), 10.0, 10.0) is None
        assert other.take("u", np.datetime64(600, "s"), *SPACE.latlon(0)[0]) is None
        with pytest.raises(TimeOrderError, match=r"slot must not precede slot 10, .*got 3"):
            other.take("u", np.datetime64(180, "s"), *SPACE.latlon(0)[0])
    with RecordedReleaseStream(tmp_path / "s", make_starter()) as stream:
        assert list(stream.release_track(SlottedTrajectory("u", 60.0, SLOTS[3:], *SPACE.latlon([1]).T))) == []
        assert stream.take("u", np.datetime64(660, "s"), *SPACE.latlon(0)[0]).record.index == 0
    with Session.open(tmp_path / "s", "u", make_starter()) as session:
        assert session.omit(12) is None
        with pytest.raises(WithheldTimestepError, match=r"slot 12\b"):
            session.release(0, 12)
        assert session.omit(11) == session.find(11)
        assert [release.slot for release in session.releases()] == [11]


def make_placed(slots, *places):
    return SlottedTrajectory("u", 60.0, np.array(slots), *np.array(places).T)


def test_trajectory_marks_omitted_slots_for_later_runs(tmp_path):
    """Later files, fixes and processes keep omitted slots and existing releases."""
    away = (10.0, 10.0)
    a = SPACE.latlon(0)[0]
    b = SPACE.latlon(1)[0]
    first = make_placed([1, 2, 3, 4, 5], away, a, away, a, away)
    with RecordedReleaseStream(tmp_path / "s", make_starter()) as stream:
        first_releases = list(stream.release_track(first))
        assert [release.record.steps for release in first_releases] == [0, 2]
        assert list(stream.release_track(first)) == first_releases
    with RecordedReleaseStream(tmp_path / "s", make_starter()) as stream:
        again = list(
            stream.release_track(make_placed([4, 5, 6], away, a, b))
        )  # now outside at slot 4 and inside at slot 5
        assert [release.time.astype("M8[s]").astype(int) for release in again] == [240, 360]
        assert again[0] == first_releases[1]
        assert stream.take("u", np.datetime64(240, "s"), *away) == first_releases[1]
        with pytest.raises(TimeOrderError, match=r"slot must not precede slot 6, .*got 3"):
            list(stream.release_track(make_placed([3], b)))
    with Session.open(tmp_path / "s", "u", make_starter()) as session:
        assert [release.slot for release in session.releases()] == [2, 4, 6]


def test_outside_location_uses_nearest_state_for_fixes_and_files(tmp_path):
    away = SPACE.projection.to_latlon(
        SPACE.points + np.array([[-5, -5], [0, 0], [90, 3]])
    )  # west of a, at b, far east of c
    gone = SlottedTrajectory("u", 60.0, SLOTS[:3], *away.T)
    there = SlottedTrajectory("u", 60.0, SLOTS[:3], *SPACE.latlon([0, 1, 2]).T)
    expected = list(release_trajectory(make_starter(outside="clamp"), SPACE, there))
    private = []
    assert list(release_trajectory(make_starter(outside="clamp"), SPACE, gone, private=private.append)) == expected
    assert [row.outside for row in private] == [True, False, True]
    stream = ReleaseStream(make_starter(outside="clamp"))
    taken = [stream.take("u", np.datetime64(60 * k, "s"), *place) for k, place in enumerate(away, start=1)]
    assert taken == expected
    with RecordedReleaseStream(tmp_path / "s", make_starter(outside="clamp")) as stream:
        assert list(stream.release_track(gone)) == expected
    with pytest.raises(SessionMismatchError, match=r"outside clamp, .*drop"):
        Session.open(tmp_path / "s", "u", make_starter(outside="drop"))


def test_limit_applies_per_user_and_names_user(tmp_path):
    with RecordedReleaseStream(tmp_path / "s", make_starter(), Limits(epsilon=3)) as stream:
        for user in "ab":
            with pytest.raises(BudgetExceededError, match=f"user {user}: .*epsilon limit .*3"):
                list(stream.release_track(make_track(user)))
    with SessionStore(tmp_path / "s", readonly=True) as store:
        assert [len(list(store.releases(store.session(user).number))) for user in "ab"] == [3, 3]


def test_different_or_missing_step_seconds_raises(tmp_path):
    with (
        RecordedReleaseStream(tmp_path / "s", make_starter()) as stream,
        pytest.raises(ConfigurationError, match="resample"),
    ):
        list(stream.release_track(make_track(step=30.0)))
    with pytest.raises(ConfigurationError, match="step_seconds"):
        RecordedReleaseStream(tmp_path / "t", make_starter(step=None))


# ---- streams in memory -----------------------------------------------------------------------------------------------

MODEL = MarkovModel(np.full((3, 3), 1 / 3), np.full(3, 1 / 3), SPACE, 60.0)


def _make_releaser(outside="drop"):
    return Releaser(MODEL, SPACE.points, PolicyGraph.complete(3), 1.0, rng=7, outside=outside)


def _make_instant(second):
    return np.datetime64(second, "s")


def _get_place(state):
    return tuple(SPACE.latlon(state)[0].tolist())


def test_stream_matches_whole_trajectory():
    states, seconds = [0, 2, 1, 1], [60, 120, 180, 600]
    stream = ReleaseStream(_make_releaser())
    streamed = [stream.take("u", _make_instant(s), *_get_place(k)) for s, k in zip(seconds, states, strict=True)]
    track = SlottedTrajectory("u", 60.0, np.array(seconds) // 60, *SPACE.latlon(states).T)
    assert streamed == list(release_trajectory(_make_releaser(), SPACE, track))
    assert streamed[3].record.steps == 7


def test_users_have_separate_beliefs():
    stream = ReleaseStream(_make_releaser())
    first = [stream.take(user, _make_instant(60), *_get_place(0)) for user in "abc"]
    assert [release.record.index for release in first] == [0, 0, 0]
    assert stream.take("b", _make_instant(120), *_get_place(0)).record.index == 1


def test_second_fix_in_slot_repeats_release():
    stream = ReleaseStream(_make_releaser())
    first = stream.take("u", _make_instant(61), *_get_place(0))
    assert stream.take("u", _make_instant(100), *_get_place(2)) == first
    assert stream.take("u", _make_instant(120), 10.0, 10.0) == first
    assert first.time == _make_instant(120)
    assert (first.record.index, stream.take("u", _make_instant(121), *_get_place(2)).record.index) == (0, 1)


def test_outside_fix_has_no_release_and_no_step():
    stream = ReleaseStream(_make_releaser())
    assert stream.take("u", _make_instant(60), 10.0, 10.0) is None
    assert stream.take("u", _make_instant(60), *_get_place(1)) is None
    assert stream.take("u", _make_instant(120), *_get_place(1)).record.index == 0
    assert stream.take("u", _make_instant(300), 10.0, 10.0) is None
    assert stream.take("u", _make_instant(360), *_get_place(1)).record.steps == 4


def test_earlier_fix_raises():
    stream = ReleaseStream(_make_releaser())
    stream.take("u", _make_instant(120), *_get_place(0))
    with pytest.raises(TimeOrderError, match="user u: time "):
        stream.take("u", _make_instant(60), *_get_place(0))


def test_fix_epsilon_raises_unless_accepted_and_within_limit():
    refusing, accepting = ReleaseStream(_make_releaser()), ReleaseStream(_make_releaser(), FixFilter(0.5))
    with pytest.raises(BudgetError, match="epsilon of a fix must be omitted"):
        refusing.take("u", _make_instant(60), *_get_place(0), epsilon=0.1)
    with pytest.raises(BudgetError, match=r"epsilon must be at most 0\.5, got 100000"):
        accepting.take("u", _make_instant(60), *_get_place(0), epsilon=100_000)
    assert accepting.take("u", _make_instant(60), *_get_place(0), epsilon=0.5).record.epsilon == 0.5
    assert refusing.take("u", _make_instant(60), *_get_place(0)).record.index == 0
    with pytest.raises(BudgetError, match="epsilon must be a positive, finite number"):
        FixFilter(0)


def test_future_fix_beyond_clock_skew_raises(tmp_path):
    now, soon = np.datetime64("now", "us"), FixFilter(clock_skew_seconds=300.0)
    with RecordedReleaseStream(tmp_path / "s", make_starter(), accepted=soon) as recorded:
        for stream in (recorded, ReleaseStream(make_starter(), soon)):
            for ahead in (np.timedelta64(400, "s"), np.timedelta64(75 * 365, "D")):
                with pytest.raises(TimeOrderError, match="at most 300 s "):
                    stream.take("u", now + ahead, *_get_place(0))
            assert stream.take("u", now, *_get_place(0)).record.index == 0
            assert stream.take("u", now + np.timedelta64(200, "s"), *_get_place(0)).record.index == 1
    endless = ReleaseStream(make_starter(), FixFilter(clock_skew_seconds=3e11))
    assert endless.take("u", np.datetime64("9999-01-01", "us"), *_get_place(0)).record.index == 0
    for wrong in (0, -1, float("nan"), 1e20):
        with pytest.raises(ConfigurationError, match="clock_skew_seconds"):
            FixFilter(clock_skew_seconds=wrong)


def test_refused_fix_leaves_stream_unchanged():
    stream = ReleaseStream(_make_releaser(), FixFilter(1))
    with pytest.raises(CoordinateError):
        stream.take("u", _make_instant(60), 400.0, 7.0)
    with pytest.raises(BudgetError):
        stream.take("u", _make_instant(60), *_get_place(0), epsilon=0.0)
    assert stream.take("u", _make_instant(60), *_get_place(0), epsilon=0.25).record.epsilon == 0.25
