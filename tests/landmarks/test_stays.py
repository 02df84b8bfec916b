"""Stay points and places, against the published algorithm and synthetic traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import BudgetError, ConfigurationError, CoordinateError, TimeOrderError
from dphmm.landmarks import repeated_places, stay_points, uniform_scheme


def to_time(text):
    return np.datetime64(text, "us")


def find_stays(times, points, radius, minutes):
    """Find stays by Li et al. 2008, one fix at a time."""
    stays, i = [], 0
    while i < len(times):
        j = i + 1
        while j < len(times) and np.linalg.norm(points[j] - points[i]) <= radius:
            j += 1
        if times[j - 1] - times[i] >= np.timedelta64(minutes, "m"):
            stays.append((i, j - 1))
            i = j
        else:
            i += 1
    return stays


@given(st.integers(0, 10**6))
def test_stays_match_plain_algorithm(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 150))
    times = to_time("2020-01-01") + np.cumsum(rng.integers(1, 10, size)) * np.timedelta64(1, "m")
    points = np.cumsum(rng.normal(0, 1, (size, 2)) * (rng.random((size, 1)) < 0.15), axis=0)
    stays = stay_points(times, points, 0.8, 20)
    assert list(zip(stays.first.tolist(), stays.last.tolist(), strict=True)) == find_stays(times, points, 0.8, 20)
    for k in range(len(stays)):
        inside = points[stays.first[k] : stays.last[k] + 1]
        np.testing.assert_allclose(stays.centre[k], inside.mean(axis=0))
    covered = {i for a, b in find_stays(times, points, 0.8, 20) for i in range(a, b + 1)}
    assert set(np.flatnonzero(stays.mask()).tolist()) == covered


def test_fix_at_radius_belongs_to_stay():
    times = to_time("2020-01-01") + np.arange(3) * np.timedelta64(15, "m")
    assert stay_points(times, [[0.0, 0.0], [3.0, 4.0], [0.0, 5.0]], 5.0, 30).last.tolist() == [2]
    assert len(stay_points(times, [[0.0, 0.0], [3.0, 4.0], [0.0, 5.001]], 5.0, 30)) == 0


def test_home_and_work_are_missing_without_nights_and_working_hours():
    noon = stay_points([to_time("2020-01-06T10:00"), to_time("2020-01-06T12:00")], [[0.0, 0.0], [0.0, 0.1]], 1.0, 30)
    assert (repeated_places(noon, 1.0).home, repeated_places(noon, 1.0).work) == (-1, 0)
    night = stay_points([to_time("2020-01-06T23:00"), to_time("2020-01-07T05:00")], [[0.0, 0.0], [0.0, 0.1]], 1.0, 30)
    assert (repeated_places(night, 1.0).home, repeated_places(night, 1.0).work) == (0, -1)


def build_two_weeks():
    """Build two weeks in half hours.

    Home is at (0, 0), work at (5, 0), shopping on Saturdays at (0, 9).
    """
    times = np.arange(to_time("2020-01-06"), to_time("2020-01-20"), np.timedelta64(30, "m"))
    points = np.zeros((len(times), 2))
    for k, time in enumerate(times):
        day = (time.astype("datetime64[D]").astype(int) - 4) % 7  # 0 is Monday
        hour = (time - time.astype("datetime64[D]")) / np.timedelta64(1, "h")
        if day < 5 and 9 <= hour <= 17:
            points[k] = [5.0, 0.0]
        elif day == 5 and 10 <= hour <= 16:
            points[k] = [0.0, 9.0]
    return times, points + np.random.default_rng(0).uniform(-0.02, 0.02, points.shape)


def test_home_and_work_are_found_and_can_be_landmarks():
    times, points = build_two_weeks()
    stays = stay_points(times, points, 0.2, 60)
    places = repeated_places(stays, 0.2)
    assert len(places.hours) == 3
    np.testing.assert_allclose(places.centre[places.home], [0, 0], atol=0.02)
    np.testing.assert_allclose(places.centre[places.work], [5, 0], atol=0.02)
    assert places.visits[places.work] == 10
    assert places.hours[places.work] == pytest.approx(80)
    landmark = stays.mask(places.place == places.work)
    assert landmark.sum() == 10 * 17
    budget = uniform_scheme(times, times[landmark], 1.0)
    assert (budget.timeline.landmark == landmark).all()


def test_hours_use_utc_offset():
    times, points = build_two_weeks()
    stays = stay_points(times - np.timedelta64(12, "h"), points, 0.2, 60)
    places = repeated_places(stays, 0.2, utc_offset=12.0)
    np.testing.assert_allclose(places.centre[places.home], [0, 0], atol=0.02)
    np.testing.assert_allclose(places.centre[places.work], [5, 0], atol=0.02)


def test_trajectory_without_stays_has_no_places():
    stays = stay_points(["2020-01-01", "2020-01-02"], [[0.0, 0.0], [9.0, 9.0]], 1.0, 10)
    assert len(stays) == 0
    places = repeated_places(stays, 1.0)
    assert (places.home, places.work, len(places.place)) == (-1, -1, 0)
    assert not stays.mask().any()


@pytest.mark.parametrize(
    ("times", "points", "radius", "error", "message"),
    [
        (["2020-01-02", "2020-01-01"], [[0.0, 0], [0, 0]], 1.0, TimeOrderError, "entry 1"),
        (["2020-01-01", "2020-01-02"], [[0.0, 0]], 1.0, CoordinateError, "1 points and 2 times"),
        (["2020-01-01"], [[0.0, np.inf]], 1.0, CoordinateError, "finite"),
        (["2020-01-01"], [[0.0, 0]], 0.0, BudgetError, "radius"),
        ([1.0], [[0.0, 0]], 1.0, ConfigurationError, "datetime64"),
    ],
)
def test_invalid_trajectory_raises(times, points, radius, error, message):
    with pytest.raises(error, match=message):
        stay_points(times, points, radius, 10)


def test_invalid_utc_offset_raises():
    with pytest.raises(ConfigurationError, match=r"utc_offset must be in \[-24, 24\]"):
        repeated_places(stay_points(["2020-01-01"], [[0.0, 0]], 1.0, 10), 1.0, utc_offset=30)
