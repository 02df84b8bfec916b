"""Tests of receiver errors, order and ends of small recordings, by brute force."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.hide.points import Points, check_errors, distance_km, find_ends, find_errors, find_jumps, max_speeds, publish
from dphmm.space.trajectory import Recording, Segment
from tests.hide.test_zone import ZONE

HOUR = 3600


def make_points(rows, activity="cycling", tracks=None, segments=None):
    """Return points from kilometres north of 45 N, 30 W and seconds; None for no time."""
    kilometres, seconds = zip(*rows, strict=True)
    times = np.array(["NaT" if second is None else second for second in seconds], "datetime64[s]")
    count = len(rows)
    values = Segment(
        45 + np.array(kilometres) / 111.13,
        np.full(count, -30.0),
        times.astype("datetime64[us]"),
        np.full(count, np.nan),
    )
    tracks, segments = (np.zeros(count, int) if labels is None else np.array(labels) for labels in (tracks, segments))
    return Points(values, np.array([activity] * count, object), tracks, segments)


def can_follow(first, last, limit):
    """The rule for two points, with the meridian arc: the points are on a meridian."""
    taken = None if None in (first[1], last[1]) else last[1] - first[1]
    return taken is None or taken > HOUR or abs(last[0] - first[0]) <= limit * taken / 3600 + 0.1


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.5, 3.0, 40.0]), st.sampled_from([20, 600, 5000]), st.sampled_from([1, 4, 11])
        ),
        min_size=1,
        max_size=6,
    )
)
def test_errors_are_fewest_points_without_which_there_are_fewer_jumps(steps):
    """Brute force over all subsets of the pieces, at ten points per kept jump."""
    rows, second = [], 0
    for place, step, count in steps:
        rows += [(place, second + step + number) for number in range(count)]
        second += step + count
    pieces = [[rows[0]]]
    for first, last in pairwise(rows):
        if can_follow(first, last, 70):
            pieces[-1].append(last)
        else:
            pieces.append([last])
    subsets = (subset for count in range(1, len(pieces) + 1) for subset in combinations(pieces, count))

    def value(subset):
        return sum(map(len, subset)) - 10 * sum(not can_follow(a[-1], b[0], 70) for a, b in pairwise(subset))

    points = make_points(rows)
    errors = find_errors(points, None)
    left = [row for row, is_error in zip(rows, errors, strict=True) if not is_error]
    jumps = [number for number, pair in enumerate(pairwise(left)) if not can_follow(*pair, 70)]
    assert len(left) - 10 * len(jumps) == max(map(value, subsets))
    assert find_jumps(points.take(~errors), None).tolist() == jumps


def test_points_without_fix_are_errors_and_the_equator_is_not():
    points = make_points([(0.0, 20 * number) for number in range(30)])
    points.values.latitude[[3, 20]] = 0.0
    points.values.longitude[3] = 0.0
    points.values.latitude[20:] = 0.0
    assert np.flatnonzero(find_errors(points, None)).tolist()[0] == 3
    assert not find_errors(points.take(np.arange(20, 30)), None).any()


@pytest.mark.parametrize(
    ("activity", "kind", "limit"),
    [("Cycling", None, 70), ("running", None, 20), (None, None, 150), ("skiing", None, 150), (None, "walking", 20)],
)
def test_speed_limit_is_that_of_activity_or_option(activity, kind, limit):
    points = make_points([(0.0, 0), (0.1, 60)], activity)
    assert max_speeds(points, kind).tolist() == [limit] * 2
    kilometres = 0.1 + limit / 60
    for factor, errors in ((0.99, 0), (1.01, 1)):
        rows = [(0.0, -60), (0.0, 0), (factor * kilometres, 60)]
        assert find_errors(make_points(rows, activity), kind).sum() == errors


@pytest.mark.parametrize(("seconds", "ends"), [(30, [0, 30, 729]), (600, [0, 600, 1299]), (601, [0, 1300])])
def test_part_before_a_jump_is_followed_by_another_start_if_it_is_short(seconds, ends):
    """An old location is repeated, and then the trip begins 3 km away."""
    rows = [(3.0, second) for second in range(seconds)] + [(0.001 * step, seconds + step) for step in range(700)]
    points = make_points(rows)
    assert not find_errors(points, None).any()
    assert find_ends(points, None).tolist() == ends
    mirrored = make_points([(place, 2000 - second) for place, second in rows[::-1]])
    assert (len(rows) - 1 - find_ends(mirrored, None)[::-1]).tolist() == ends


def test_jump_after_an_hour_is_another_trip():
    assert not find_errors(make_points([(0.0, 0), (900.0, HOUR + 1)]), None).any()
    assert find_errors(make_points([(0.0, 0), (900.0, HOUR)]), None).sum() == 1


def test_recording_of_another_activity_raises_with_the_speed_limit():
    points = make_points([(3.0 * number, 60 * number) for number in range(20)])
    with pytest.raises(ConfigurationError, match=r"19 of 20 points are out of reach at 70 km/h.*use --kind driving"):
        check_errors(points, find_errors(points, None), None)
    check_errors(points, find_errors(points, "driving") & False, "driving")


def test_many_jumps_leave_largest_piece_in_seconds():
    rows = [(50.0 * (number % 2), 10 * number) for number in range(3000)]
    rows += [(0.0, 30_000 + number) for number in range(50)]
    errors = find_errors(make_points(rows), None)
    assert (~errors).sum() >= 50
    assert not errors[-50:].any()


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=12))
def test_time_order_sorts_times_and_keeps_untimed_points_after_their_predecessors(seconds):
    points = make_points([(0.0, second) for second in seconds])
    order = points.time_order().tolist()
    timed = [second for second in (seconds[row] for row in order) if second is not None]
    assert sorted(order) == list(range(len(seconds)))
    assert timed == sorted(timed)
    for place, row in enumerate(order):
        if seconds[row] is None and row > 0 and any(second is not None for second in seconds[:row]):
            assert order[place - 1] == row - 1


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


def test_lines_are_broken_at_zones_and_pauses_only():
    away = ZONE.half_km + 1
    rows = [(away + 0.01 * number, number) for number in range(40)]
    rows += [(row + 0.4, second + 100) for row, second in rows]
    rows += [(-row, second + 3000) for row, second in rows]
    points = make_points(rows, segments=np.arange(len(rows)))
    latitude, longitude = ZONE.square.centre
    points.values.latitude[:] += latitude - 45
    points.values.longitude[:] = longitude
    public, errors = publish(points, [ZONE], (), True, None)
    assert not errors.any()
    assert [len(segment) for segment in public.segments] == [40, 40, 40, 40]
    untimed, _ = publish(points, [ZONE], (), False, None)
    assert [len(segment) for segment in untimed.segments] == [80, 80]
    whole, _ = publish(points, [], (), False, None)
    assert [len(segment) for segment in whole.segments] == [80, 80], "the jump of 5 km is a pause"


def test_distances_match_meridian_arc():
    """A degree of latitude at 45 N is 111.13 km on WGS 84."""
    assert distance_km(44.5, -30.0, 45.5, -30.0).item() == pytest.approx(111.132, abs=0.01)
    assert distance_km(45.0, 179.999, [45.0], [-179.999]).shape == (1,)


def test_points_of_a_recording_have_activity_and_track_of_their_segments():
    values = make_points([(0.0, 0), (1.0, 60)]).values
    first, last = (Segment(values.latitude, values.longitude, values.times, values.elevation, {}, kind, track)
                   for kind, track in (("running", 0), (None, 1)))  # fmt: skip
    points = Points.from_recording(Recording((first, last)))
    assert points.activity.tolist() == ["running", "running", None, None]
    assert (points.track.tolist(), points.segment.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])
