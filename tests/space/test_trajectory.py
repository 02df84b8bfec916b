"""Validation, splitting and resampling of trajectories, compared with a plain loop."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError, TimeOrderError
from dphmm.space import SlottedTrajectory, Trajectory


def build_trajectory(seconds, user="u"):
    n = len(seconds)
    times = np.array([round(s * 1_000_000) for s in seconds], dtype="datetime64[us]")
    return Trajectory(user, times, np.linspace(0, 1, n), np.linspace(2, 3, n))


# Microseconds around 1970, for both signs.
increasing = st.lists(st.integers(-(10**10), 10**10), min_size=1, max_size=40, unique=True).map(sorted)


def build_from_microseconds(micro):
    return Trajectory("u", np.array(micro, "M8[us]"), np.arange(len(micro)) / 100, np.arange(len(micro)) / 50)


@given(increasing, st.integers(1, 4 * 10**9))
def test_resample_equals_plain_loop(micro, step):
    last = {}
    for row, moment in enumerate(micro):
        last[math.ceil(moment / step) if abs(moment) < 2**40 else -(-moment // step)] = row
    slotted = build_from_microseconds(micro).resample(step / 1e6)
    assert slotted.slots.tolist() == list(last)
    assert slotted.latitude.tolist() == [row / 100 for row in last.values()]
    assert slotted.longitude.tolist() == [row / 50 for row in last.values()]


@given(increasing, st.integers(1, 4 * 10**9))
def test_slot_holds_point_of_same_step(micro, step):
    slotted = build_from_microseconds(micro).resample(step / 1e6)
    rows = np.round(slotted.latitude * 100).astype(int)
    delay = slotted.slots * step - np.array(micro)[rows]
    assert (delay >= 0).all()
    assert (delay < step).all()


@given(increasing, st.integers(1, 4 * 10**9))
def test_split_keeps_points_and_cuts_at_long_gaps(micro, gap):
    whole = build_from_microseconds(micro)
    pieces = whole.split(gap / 1e6)
    assert np.concatenate([p.times for p in pieces]).tolist() == whole.times.tolist()
    for piece in pieces:
        assert (np.diff(piece.times).astype(int) <= gap).all()
    for before, after in pairwise(pieces):
        assert (after.times[0] - before.times[-1]).astype(int) > gap


@given(increasing, st.integers(1, 10**9), st.integers(1, 50))
def test_split_of_resampled_trajectory_matches_its_times(micro, step, gap_steps):
    slotted = build_from_microseconds(micro).resample(step / 1e6)
    pieces = slotted.split(gap_steps * step / 1e6)
    assert np.concatenate([p.slots for p in pieces]).tolist() == slotted.slots.tolist()
    assert all((p.steps <= gap_steps).all() for p in pieces)
    assert len(pieces) == 1 + int((np.diff(slotted.times).astype(int) > gap_steps * step).sum())


def test_slots_of_two_users_share_times():
    first, second = build_trajectory([590, 1190]), build_trajectory([301, 1200], user="v")
    assert first.resample(600).slots.tolist() == second.resample(600).slots.tolist() == [1, 2]
    assert first.resample(600).times.tolist() == second.resample(600).times.tolist()


def test_slots_and_steps_count_clock_steps():
    assert build_trajectory([0, 61, 600]).resample(60).slots.tolist() == [0, 2, 10]
    assert build_trajectory([0, 61, 600]).resample(60).steps.tolist() == [2, 8]


def test_between_excludes_end():
    whole = build_trajectory([0, 10, 20])
    part = whole.select_time_range("1970-01-01T00:00:10", "1970-01-01T00:00:20")
    assert part is not None
    assert part.times.tolist() == whole.times[1:2].tolist()
    assert whole.select_time_range("1980-01-01", "1981-01-01") is None


def test_arrays_are_read_only_copies():
    latitude = np.zeros(2)
    trajectory = Trajectory("u", np.array([0, 1], "M8[s]"), latitude, np.zeros(2))
    latitude[0] = 50
    assert trajectory.latitude[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        trajectory.latitude[0] = 1


def test_trajectory_contains_user_times_locations_and_accuracies_only():
    assert set(vars(build_trajectory([0, 1]))) == {"user", "times", "latitude", "longitude", "accuracy_m"}


def test_pickle_round_trips_trajectory():
    sample = build_trajectory([0, 1.5, 7])
    assert pickle.loads(pickle.dumps(sample)) == sample
    assert sample != build_trajectory([0, 1.5, 8])
    assert sample != "made"


T2 = np.array([0, 1], "M8[s]")


@pytest.mark.parametrize(
    ("error", "user", "times", "latitude", "longitude"),
    [
        (InvalidInputError, "", T2, [0, 0], [0, 0]),
        (InvalidInputError, None, T2, [0, 0], [0, 0]),
        (InvalidInputError, "u", T2[:0], [], []),
        (TimeOrderError, "u", T2[::-1], [0, 0], [0, 0]),
        (TimeOrderError, "u", T2[[0, 0]], [0, 0], [0, 0]),
        (TimeOrderError, "u", np.array(["1970-01-01", "NaT"], "M8[s]"), [0, 0], [0, 0]),
        (TimeOrderError, "u", np.array(["0000-05-01", "1970-01-01"], "M8[s]"), [0, 0], [0, 0]),
        (TimeOrderError, "u", T2.reshape(1, 2), [0, 0], [0, 0]),
        (TimeOrderError, "u", [1709830800, 1709830860], [0, 0], [0, 0]),  # seconds, which NumPy reads as microseconds
        (TimeOrderError, "u", T2 - T2[0], [0, 0], [0, 0]),
        (CoordinateError, "u", T2, [0, 400.17], [0, 0]),
        (CoordinateError, "u", T2, [0, 90.0000001], [0, 0]),
        (CoordinateError, "u", T2, [0, 0], [-180.0000001, 0]),
        (CoordinateError, "u", T2, [0, np.nan], [0, 0]),
        (CoordinateError, "u", T2, [0, 0], [np.inf, 0]),
        (CoordinateError, "u", T2, [0], [0]),
        (CoordinateError, "u", T2, [0, 0], [0]),
    ],
)
def test_invalid_trajectory_raises(error, user, times, latitude, longitude):
    with pytest.raises(error) as caught:
        Trajectory(user, times, latitude, longitude)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "step", "slots"),
    [
        (ConfigurationError, 0, [1, 2]),
        (ConfigurationError, -5, [1, 2]),
        (ConfigurationError, math.nan, [1, 2]),
        (ConfigurationError, math.inf, [1, 2]),
        (ConfigurationError, 1e-8, [1, 2]),
        (TimeOrderError, 60, [2, 1]),
        (TimeOrderError, 60, [2, 2]),
        (TimeOrderError, 60, [1.0, 2.0]),
        (TimeOrderError, 60, [1, 2**62]),
        (CoordinateError, 60, [1, 2, 3]),
    ],
)
def test_invalid_resampled_trajectory_raises(error, step, slots):
    with pytest.raises(error):
        SlottedTrajectory("u", step, np.array(slots), np.zeros(2), np.zeros(2))


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e-9])
def test_invalid_step_or_gap_raises(seconds):
    with pytest.raises(ConfigurationError):
        build_trajectory([0, 1]).resample(seconds)
    with pytest.raises(ConfigurationError):
        build_trajectory([0, 1]).split(seconds)
