"""Tests of the ends of trips in small recordings."""

from __future__ import annotations

import pytest

from dphmm.hide.receiver_errors import find_errors
from dphmm.hide.trip_ends import find_ends
from tests.hide.test_points import make_points

HOUR = 3600


@pytest.mark.parametrize(("seconds", "ends"), [(30, [0, 30, 729]), (600, [0, 600, 1299]), (601, [0, 1300])])
def test_part_before_a_jump_is_followed_by_another_start_if_it_is_short(seconds, ends):
    """An old location is repeated, and then the trip begins 3 km away."""
    rows = [(3.0, second) for second in range(seconds)] + [(0.001 * step, seconds + step) for step in range(700)]
    points = make_points(rows)
    assert not find_errors(points, None).any()
    assert find_ends(points, None).tolist() == ends
    mirrored = make_points([(place, 2000 - second) for place, second in rows[::-1]])
    assert (len(rows) - 1 - find_ends(mirrored, None)[::-1]).tolist() == ends


def test_ends_are_those_of_tracks_and_of_gaps_above_an_hour():
    rows = [(0.0, second) for second in (0, 60, 60 + HOUR, 61 + 2 * HOUR, 62 + 2 * HOUR, 63 + 2 * HOUR)]
    assert find_ends(make_points(rows), None).tolist() == [0, 2, 3, 5]
    assert find_ends(make_points(rows, tracks=[0, 0, 0, 0, 0, 1]), None).tolist() == [0, 2, 3, 4, 5]
    untimed = [(0.0, None)] * 6
    assert find_ends(make_points(untimed), None).tolist() == [0, 5]
    assert find_ends(make_points(untimed, segments=[0, 0, 1, 1, 1, 1]), None).tolist() == [0, 1, 2, 5]


def test_points_without_a_time_hide_neither_a_gap_nor_a_jump():
    rows = [(0.0, 0), (0.1, 60), (0.15, None), (0.16, None), (0.2, 60 + 4 * HOUR), (0.3, 120 + 4 * HOUR)]
    assert find_ends(make_points(rows), None).tolist() == [0, 1, 2, 3, 4, 5]
    # The receiver first repeats an old location.
    rows = [(3.0, 0), (3.0, 1), (1.5, None), *((0.001 * step, 2 + step) for step in range(700))]
    assert find_ends(make_points(rows), None).tolist() == [0, 2, 3, 702]


@pytest.mark.parametrize(
    ("before", "step", "starts"),
    [
        ([(2.0, -120)], 0.01, [0, 1]),
        ([(30.0, -1200)], 0.01, [0, 1]),
        ([(0.15, -60)], 0.01, [0, 1]),
        ([(2.0, -120), (2.05, -110)], 0.01, [0, 2]),
        ([(5.0, -1500), (2.0, -1200)], 0.01, [0, 1, 2]),
        ([(2.0, -900), (2.0, -301), (2.0, -120)], 0.01, [0]),  # longer than a receiver repeats an old location
        ([(2.0, -140), (2.06, -130), (2.12, -120)], 0.01, [0]),  # the user moves
        ([(0.09, -60)], 0.01, [0]),  # the error of a fix
        ([(0.55, -60)], 0.2, [0]),  # below three usual steps
        ([(0.65, -60)], 0.2, [0, 1]),
    ],
)
def test_first_point_after_one_old_location_is_another_start(before, step, starts):
    """No step is above 150 km/h. The trip has a hundred steps of equal length."""
    rows = before + [(-step * number, 10 * number) for number in range(101)]
    points = make_points(rows, None)
    assert not find_errors(points, None).any()
    assert find_ends(points, None).tolist() == [*starts, len(rows) - 1]
    mirrored = make_points([(place, 2000 - second) for place, second in rows[::-1]], None)
    assert (len(rows) - 1 - find_ends(mirrored, None)[::-1]).tolist() == [*starts, len(rows) - 1]
