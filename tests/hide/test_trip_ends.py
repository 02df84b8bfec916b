"""Tests of the ends of trips in small recordings."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.hide.fixed_squares import Square
from dphmm.hide.receiver_errors import find_errors
from dphmm.hide.trip_ends import find_ends, find_far_ends
from dphmm.hide.zone import HiddenZone
from tests.hide.test_recording_points import make_points

HOUR = 3600


@pytest.mark.parametrize(("seconds", "ends"), [(30, [0, 30, 729]), (600, [0, 600, 1299]), (601, [0, 1300])])
def test_part_before_a_jump_is_followed_by_another_start_if_it_is_short(seconds, ends):
    """An old location is repeated, and then the trip begins 3 km away."""
    rows = [(3.0, second) for second in range(seconds)] + [(0.001 * step, seconds + step) for step in range(700)]
    points = make_points(rows)
    assert not find_errors(points, None).any()
    assert find_ends(points, None)[0].tolist() == ends
    mirrored = make_points([(place, 2000 - second) for place, second in rows[::-1]])
    assert (len(rows) - 1 - find_ends(mirrored, None)[0][::-1]).tolist() == ends


def test_ends_are_those_of_tracks_and_of_gaps_above_an_hour():
    rows = [(0.0, second) for second in (0, 60, 60 + HOUR, 61 + 2 * HOUR, 62 + 2 * HOUR, 63 + 2 * HOUR)]
    assert find_ends(make_points(rows), None)[0].tolist() == [0, 2, 3, 5]
    assert find_ends(make_points(rows, tracks=[0, 0, 0, 0, 0, 1]), None)[0].tolist() == [0, 2, 3, 4, 5]
    untimed = [(0.0, None)] * 6
    assert find_ends(make_points(untimed), None)[0].tolist() == [0, 5]
    assert find_ends(make_points(untimed, segments=[0, 0, 1, 1, 1, 1]), None)[0].tolist() == [0, 1, 2, 5]


def test_points_without_a_time_hide_neither_a_gap_nor_a_jump():
    rows = [(0.0, 0), (0.1, 60), (0.15, None), (0.16, None), (0.2, 60 + 4 * HOUR), (0.3, 120 + 4 * HOUR)]
    assert find_ends(make_points(rows), None)[0].tolist() == [0, 1, 2, 3, 4, 5]
    # The receiver first repeats an old location.
    rows = [(3.0, 0), (3.0, 1), (1.5, None), *((0.001 * step, 2 + step) for step in range(700))]
    assert find_ends(make_points(rows), None)[0].tolist() == [0, 2, 3, 702]


def find_rows(rows):
    """Return the rows of `find_far_ends` with the zones of all ends.

    They are 0.88 km wide, with cores of 0.4 km.
    """
    points = make_points(rows, None)
    ends, ways = find_ends(points, None)
    assert not find_errors(points, None).any()

    def make_zone(row):
        return HiddenZone(Square.around(*points.get_location(row), 0.3), 0.2)

    return sorted(find_far_ends(points, ways, [make_zone(row) for row in ends], make_zone))


@pytest.mark.parametrize(
    ("before", "far"),
    [
        ([(2.0, -120)], [1]),
        ([(30.0, -1200)], [1]),
        ([(2.0, -5000 + 600 * k) for k in range(8)], [8]),  # for over an hour
        ([(2.0 + 0.05 * k, -140 + 10 * k) for k in range(4)], [4]),  # the user moves
        ([(5.0, -1500), (2.0, -1200)], [1, 2]),
        ([(5.0, -1500), *((5.5, -1200 + second) for second in range(40))], [41]),  # the zones adjoin
        ([(5.0, -1500), (5.45, -1200), (5.9, -900)], [3]),
        ([(1.0 + 0.15 * (-1) ** k, -1300 + 20 * k) for k in range(60)], [60]),  # hidden steps of 300 m do not count
        ([(0.3, -60)], []),  # in the zone, or next to it
    ],
)
def test_first_point_far_from_the_zone_of_an_old_location_is_another_start(before, far):
    """No step is above 150 km/h. The trip has steps of 10 m."""
    rows = before + [(-0.01 * number, 10 * number) for number in range(400)]
    assert find_rows(rows) == far
    mirrored = [(place, 6000 - second) for place, second in rows[::-1]]
    assert find_rows(mirrored) == sorted(len(rows) - 1 - row for row in far)


@pytest.mark.parametrize(("share", "far"), [(0.05, [1]), (0.15, [])])
def test_start_is_far_only_beyond_three_times_the_step_that_nine_tenths_do_not_exceed(share, far):
    """The core is 0.36 km from the zone: above 100 m, and below three steps of 200 m."""
    steps = np.where(np.arange(200) % round(1 / share) == 0, 0.2, 0.01)
    rows = [(1.0, -120)] + [(-north, 10 * number) for number, north in enumerate(np.cumsum(steps))]
    assert find_rows(rows) == far


def test_starts_after_two_old_locations_are_far_if_their_zones_contain_all_points():
    """No step would remain. The ride is 400 m long."""
    rows = [(10.0, -2500), (5.0, -1200)] + [(-0.1 * number, 10 * number) for number in range(8)]
    assert find_rows(rows) == [1, 2]
