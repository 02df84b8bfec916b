"""Tests of receiver errors and jumps of small recordings, by brute force."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.hide.receiver_errors import check_errors, find_errors, find_jumps, get_max_speeds
from tests.hide.test_recording_points import make_points

HOUR = 3600


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

    def evaluate_subset(subset):
        return sum(map(len, subset)) - 10 * sum(not can_follow(a[-1], b[0], 70) for a, b in pairwise(subset))

    points = make_points(rows)
    errors = find_errors(points, None)
    left = [row for row, is_error in zip(rows, errors, strict=True) if not is_error]
    jumps = [number for number, pair in enumerate(pairwise(left)) if not can_follow(*pair, 70)]
    assert len(left) - 10 * len(jumps) == max(map(evaluate_subset, subsets))
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
    assert get_max_speeds(points, kind).tolist() == [limit] * 2
    kilometres = 0.1 + limit / 60
    for factor, errors in ((0.99, 0), (1.01, 1)):
        rows = [(0.0, -60), (0.0, 0), (factor * kilometres, 60)]
        assert find_errors(make_points(rows, activity), kind).sum() == errors


def test_jump_after_an_hour_is_another_trip():
    assert not find_errors(make_points([(0.0, 0), (900.0, HOUR + 1)]), None).any()
    assert find_errors(make_points([(0.0, 0), (900.0, HOUR)]), None).sum() == 1


def test_recording_of_another_activity_raises_with_the_speed_limit():
    points = make_points([(3.0 * number, 60 * number) for number in range(20)])
    with pytest.raises(ConfigurationError, match=r"19 of 20 points are out of reach at 70 km/h.*use --kind driving"):
        check_errors(points, find_errors(points, None), None)
    check_errors(points, find_errors(points, "driving") & False, "driving")


@pytest.mark.parametrize(("activity", "kind"), [(None, None), (None, "driving"), ("cycling", "driving")])
def test_message_does_not_name_driving_at_its_own_speed_limit(activity, kind):
    points = make_points([(6.0 * number, 60 * number) for number in range(20)], activity)
    with pytest.raises(ConfigurationError, match=r"at 150 km/h, .*: use a file of one device$"):
        check_errors(points, find_errors(points, kind), kind)


def test_times_rounded_to_minutes_are_up_to_a_minute_wrong():
    """The user moves at 69 km/h, and the limit is 70 km/h."""
    exact = [(69 / 3600 * second, second) for second in range(0, 3000, 40)]
    rounded = [(place, 60 * round(second / 60)) for place, second in exact]
    assert not find_errors(make_points(rounded), None).any()
    # A minute is 1.17 km at the limit, and a fix 0.1 km wrong.
    for metres, count in ((1250, 0), (1290, 1)):
        rows = [(0.0, 0)] * 5 + [(metres / 1000, 0)]
        assert find_errors(make_points(rows), None).sum() == count
    # No rounding: one time with seconds, or no time twice.
    assert find_errors(make_points([*rounded, (57.6, 3001)]), None).any()
    assert find_errors(make_points([(0.0, -60), (0.0, 0), (1.28, 60)]), None).sum() == 1


def test_many_jumps_leave_largest_piece_in_seconds():
    rows = [(50.0 * (number % 2), 10 * number) for number in range(3000)]
    rows += [(0.0, 30_000 + number) for number in range(50)]
    errors = find_errors(make_points(rows), None)
    assert (~errors).sum() >= 50
    assert not errors[-50:].any()


def test_rounding_of_times_is_detected_once_per_recording(monkeypatch):
    """It takes a sort of all times. The recording has 19 jumps."""
    points = make_points([(3.0 * (second // 20 % 2), second) for second in range(400)])
    calls, unique = [], np.unique
    monkeypatch.setattr(np, "unique", lambda values: [calls.append(None), unique(values)][1])
    assert len(find_jumps(points, None)) == 19
    find_errors(points, None)
    assert len(calls) <= 2
