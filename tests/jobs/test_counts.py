"""Tests of populations: every user has a state at all times, and days can be aligned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, CountError
from dphmm.jobs.counts import DayAlignment, build_daily_population, build_population
from dphmm.space.grid import PRESETS, Grid
from dphmm.space.states import Places
from dphmm.space.trajectory import Trajectory

SPACE = Places(["a", "b", "c"], [45.0, 45.02, 45.04], [7.0, 7.0, 7.0], within_km=0.5)
ELSEWHERE = 46.0


def make_track(user, times, places):
    latitude = [ELSEWHERE if place < 0 else 45.0 + 0.02 * place for place in places]
    return Trajectory(user, np.array(times, dtype="datetime64[us]"), np.array(latitude), np.full(len(times), 7.0))


ANN = make_track("ann", ["2024-03-07T08:00", "2024-03-07T10:00", "2024-03-07T11:00"], [0, 1, -1])
BOB = make_track("bob", ["2024-03-07T09:00", "2024-03-08T09:30"], [2, 0])


def test_states_are_held_forwards_and_backwards_before_first_fix():
    counted = build_population([ANN, BOB], SPACE, 3600, end="2024-03-07T12:00")
    assert counted.states.tolist() == [[0, 0, 1, 1, 1], [2, 2, 2, 2, 2]]
    assert counted.seen.tolist() == [[True, False, True, False, False], [False, True, False, False, False]]
    assert [str(time) for time in counted.times[:2]] == ["2024-03-07T08:00:00.000000", "2024-03-07T09:00:00.000000"]


def test_counts_sum_to_number_of_users_at_every_time():
    counted = build_population([ANN, BOB], SPACE, 3600)
    assert counted.counts.shape == (27, 3)
    assert (counted.counts.sum(axis=1) == 2).all()
    assert counted.counts[0].tolist() == [1, 0, 1]


def test_user_without_fixes_in_span_is_not_member():
    for start in ("2024-03-08T00:00", "2024-03-08T00:00Z", "2024-03-08T01:00+01:00", np.datetime64("2024-03-08")):
        assert build_population([ANN, BOB], SPACE, 3600, start=start).members == ("bob",)


def test_daily_population_has_one_member_per_day():
    counted = build_daily_population([ANN, BOB], SPACE, 3600, DayAlignment((8, 12)))
    assert counted.members == ("ann 2024-03-07", "bob 2024-03-07", "bob 2024-03-08")
    assert counted.times.tolist() == [480, 540, 600, 660]
    assert counted.states.tolist() == [[0, 0, 1, 1], [2, 2, 2, 2], [0, 0, 0, 0]]


def test_utc_offset_shifts_day():
    counted = build_daily_population(
        [make_track("eve", ["2024-03-07T23:00"], [1])], SPACE, 3600, DayAlignment(utc_offset=2)
    )
    assert counted.members == ("eve 2024-03-08",)
    assert counted.seen[0].nonzero()[0].tolist() == [1]


@pytest.mark.parametrize("offset", [0, -3.5, 5.5, 5.75, 14])
def test_fix_is_counted_at_next_local_time_with_any_offset(offset):
    minutes = np.random.default_rng(0).integers(0, 1440 * 5, 40)
    for minute in np.append(minutes, [0, 60, 75]).tolist():
        time = np.datetime64("2024-03-07") + np.timedelta64(minute, "m")
        counted = build_daily_population(
            [make_track("eve", [str(time)], [1])], SPACE, 3600, DayAlignment(utc_offset=offset)
        )
        local = minute + round(60 * offset)
        (shown,) = counted.times[counted.seen[0]]
        assert shown == math.ceil(local / 60) * 60 % 1440
        date = np.datetime64("2024-03-07") + math.ceil(local / 60) // 24
        assert counted.members == (f"eve {date}",)


def test_days_with_low_coverage_are_omitted():
    assert build_daily_population([ANN, BOB], SPACE, 3600, DayAlignment((8, 12), min_coverage=0.5)).members == (
        "ann 2024-03-07",
    )


def test_part_contains_selected_members():
    whole = build_population([ANN, BOB], SPACE, 3600)
    assert whole.select_members([1]).members == ("bob",)
    assert whole.select_members(np.array([True, False])).states.tolist() == whole.states[:1].tolist()
    with pytest.raises(CountError, match="at least one member"):
        whole.select_members(np.array([False, False]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: build_population([], SPACE, 60), CountError, "no user has a fix"),
        (
            lambda: build_population([make_track("x", ["2024-03-07T08:00"], [-1])], SPACE, 60),
            CountError,
            "no user has a fix",
        ),
        (lambda: build_population([ANN], SPACE, 0), ConfigurationError, "must be a finite number of seconds"),
        (
            lambda: build_population([ANN], SPACE, 60, start="noon"),
            ConfigurationError,
            "start must be a UTC time .* got 'noon'",
        ),
        (
            lambda: build_population([ANN], SPACE, 60, start="2030-01-01", end="2029-01-01"),
            ConfigurationError,
            "end must be after start",
        ),
        (lambda: build_daily_population([ANN], SPACE, 7000), ConfigurationError, "the step must divide a day"),
        (lambda: build_daily_population([ANN], SPACE, 90), ConfigurationError, "into whole minutes, got 90 s"),
        (
            lambda: build_daily_population([ANN], SPACE, 3600, DayAlignment((8.1, 8.9))),
            ConfigurationError,
            r"hours must contain the start of a step, got 8\.1 to 8\.9",
        ),
        (lambda: DayAlignment((12, 8)), ConfigurationError, r"\(12, 8\)"),
        (lambda: DayAlignment(min_coverage=1.5), ConfigurationError, r"min_coverage must be in \[0, 1\]"),
        (lambda: build_daily_population([ANN], SPACE, 3600, DayAlignment((20, 24))), CountError, "no user has a fix"),
    ],
)
def test_invalid_populations_raise(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_geolife_days_contain_every_user_at_every_time(real_trajectories):
    trajectories = real_trajectories("geolife/geolife_beijing.tar.gz")
    grid = Grid.over(PRESETS["geolife"][0], 2.0)
    days = build_daily_population(trajectories, grid, 600, DayAlignment((8, 20), 8, 1 / 6))
    assert len({name.split()[0] for name in days.members}) > 20
    assert (days.counts.sum(axis=1) == len(days.members)).all()
    assert (days.seen.sum(axis=1) >= 12).all()
    name = days.members[5]
    user, date = name.split()
    user_track = next(user_track for user_track in trajectories if user_track.user == user)
    local = user_track.times + np.timedelta64(8, "h")
    start = np.datetime64(date, "us") + np.timedelta64(8, "h")
    for slot in np.flatnonzero(days.seen[5]):
        end = start + slot * np.timedelta64(600, "s")
        last = np.flatnonzero((local > end - np.timedelta64(600, "s")) & (local <= end))[-1]
        assert grid.locate(user_track.latitude[last], user_track.longitude[last])[0] == days.states[5, slot]
