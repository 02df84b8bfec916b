"""A trajectory is validated, cut and put on a clock as its docstrings say; a plain loop is the oracle."""

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


def trajectory(seconds, user="u"):
    n = len(seconds)
    times = np.array([round(s * 1_000_000) for s in seconds], dtype="datetime64[us]")
    return Trajectory(user, times, np.linspace(0, 1, n), np.linspace(2, 3, n))


increasing = st.lists(st.integers(-(10**10), 10**10), min_size=1, max_size=40, unique=True).map(sorted)
"""Microseconds around 1970, so that both signs occur."""


def of_microseconds(micro):
    return Trajectory("u", np.array(micro, "M8[us]"), np.arange(len(micro)) / 100, np.arange(len(micro)) / 50)


@given(increasing, st.integers(1, 4 * 10**9))
def test_resampling_equals_a_plain_loop(micro, step):
    last = {}
    for row, moment in enumerate(micro):
        last[math.ceil(moment / step) if abs(moment) < 2**40 else -(-moment // step)] = row
    slotted = of_microseconds(micro).resample(step / 1e6)
    assert slotted.slots.tolist() == list(last)
    assert slotted.latitude.tolist() == [row / 100 for row in last.values()]
    assert slotted.longitude.tolist() == [row / 50 for row in last.values()]


@given(increasing, st.integers(1, 4 * 10**9))
def test_a_slot_never_holds_a_point_of_its_future_or_of_an_earlier_step(micro, step):
    slotted = of_microseconds(micro).resample(step / 1e6)
    rows = np.round(slotted.latitude * 100).astype(int)
    delay = slotted.slots * step - np.array(micro)[rows]
    assert (delay >= 0).all()
    assert (delay < step).all()


@given(increasing, st.integers(1, 4 * 10**9))
def test_split_keeps_every_point_once_and_cuts_exactly_at_the_long_gaps(micro, gap):
    whole = of_microseconds(micro)
    pieces = whole.split(gap / 1e6)
    assert np.concatenate([p.times for p in pieces]).tolist() == whole.times.tolist()
    for piece in pieces:
        assert (np.diff(piece.times).astype(int) <= gap).all()
    for before, after in pairwise(pieces):
        assert (after.times[0] - before.times[-1]).astype(int) > gap


@given(increasing, st.integers(1, 10**9), st.integers(1, 50))
def test_split_of_a_resampled_trajectory_agrees_with_its_times(micro, step, gap_steps):
    slotted = of_microseconds(micro).resample(step / 1e6)
    pieces = slotted.split(gap_steps * step / 1e6)
    assert np.concatenate([p.slots for p in pieces]).tolist() == slotted.slots.tolist()
    assert all((p.steps <= gap_steps).all() for p in pieces)
    assert len(pieces) == 1 + int((np.diff(slotted.times).astype(int) > gap_steps * step).sum())


def test_slots_of_two_people_on_the_same_clock_are_the_same_instants():
    one, other = trajectory([590, 1190]), trajectory([301, 1200], user="v")
    assert one.resample(600).slots.tolist() == other.resample(600).slots.tolist() == [1, 2]
    assert one.resample(600).times.tolist() == other.resample(600).times.tolist()


def test_a_jump_of_slots_counts_the_steps_of_the_clock():
    assert trajectory([0, 61, 600]).resample(60).slots.tolist() == [0, 2, 10]
    assert trajectory([0, 61, 600]).resample(60).steps.tolist() == [2, 8]


def test_between_is_half_open():
    whole = trajectory([0, 10, 20])
    part = whole.between("1970-01-01T00:00:10", "1970-01-01T00:00:20")
    assert part is not None
    assert part.times.tolist() == whole.times[1:2].tolist()
    assert whole.between("1980-01-01", "1981-01-01") is None


def test_the_arrays_are_copies_that_cannot_be_written_to():
    latitude = np.zeros(2)
    made = Trajectory("u", np.array([0, 1], "M8[s]"), latitude, np.zeros(2))
    latitude[0] = 50
    assert made.latitude[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        made.latitude[0] = 1


def test_only_time_and_place_are_held():
    assert set(vars(trajectory([0, 1]))) == {"user", "times", "latitude", "longitude"}


def test_pickle_gives_an_equal_trajectory():
    made = trajectory([0, 1.5, 7])
    assert pickle.loads(pickle.dumps(made)) == made
    assert made != trajectory([0, 1.5, 8])
    assert made != "made"


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
        (CoordinateError, "u", T2, [0, 400.17], [0, 0]),
        (CoordinateError, "u", T2, [0, 90.0000001], [0, 0]),
        (CoordinateError, "u", T2, [0, 0], [-180.0000001, 0]),
        (CoordinateError, "u", T2, [0, np.nan], [0, 0]),
        (CoordinateError, "u", T2, [0, 0], [np.inf, 0]),
        (CoordinateError, "u", T2, [0], [0]),
        (CoordinateError, "u", T2, [0, 0], [0]),
    ],
)
def test_an_invalid_trajectory_is_refused(error, user, times, latitude, longitude):
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
def test_an_invalid_resampled_trajectory_is_refused(error, step, slots):
    with pytest.raises(error):
        SlottedTrajectory("u", step, np.array(slots), np.zeros(2), np.zeros(2))


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e-9])
def test_a_step_or_gap_that_is_no_duration_is_refused(seconds):
    with pytest.raises(ConfigurationError):
        trajectory([0, 1]).resample(seconds)
    with pytest.raises(ConfigurationError):
        trajectory([0, 1]).split(seconds)
