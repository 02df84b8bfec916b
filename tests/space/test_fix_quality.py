"""Tests of the rule for invalid and inaccurate fixes, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm import Grid, Trajectory
from dphmm.space import Places
from dphmm.space.fix_quality import (
    INACCURATE,
    NEGATIVE_ACCURACY,
    REASONS,
    UNSTATED_ACCURACY_M,
    ZERO_LOCATION,
    find_refused,
    parse_accuracy,
    parse_validity,
    select_most_accurate,
)

accuracies = st.sampled_from([float("nan"), 0.0, 4.0, 5.0, 99.0, UNSTATED_ACCURACY_M, 101.0, 900.0])


@given(st.lists(st.tuples(st.integers(0, 4), accuracies), max_size=12))
def test_selected_fix_is_best_of_each_slot_by_a_plain_loop(fixes):
    best = {}
    for index, (slot, accuracy) in enumerate(fixes):
        rank = accuracy if accuracy > 0 else UNSTATED_ACCURACY_M + 1e-9
        if slot not in best or rank <= best[slot][0]:
            best[slot] = (rank, index)
    slots = np.array([slot for slot, _ in fixes], dtype=np.int64)
    selected = select_most_accurate(slots, np.array([accuracy for _, accuracy in fixes]))
    assert selected.tolist() == [best[slot][1] for slot in sorted(best)]


def test_fix_without_accuracy_loses_against_one_of_at_most_100_m():
    slots = np.zeros(2, dtype=np.int64)
    for accuracy, selected in ((5.0, 0), (100.0, 0), (99.9, 0), (101.0, 1), (999.0, 1)):
        assert select_most_accurate(slots, np.array([accuracy, np.nan])).tolist() == [selected]
    assert select_most_accurate(slots, np.array([100.0, np.nan])[::-1]).tolist() == [1]
    assert select_most_accurate(np.zeros(1, dtype=np.int64), np.array([np.nan])).tolist() == [0]


def _find_reason(latitude=45.0, longitude=7.0, accuracy=5.0, is_valid=True, region=None, max_accuracy=np.inf):
    arrays = (np.array([value]) for value in (latitude, longitude, accuracy))
    (number,) = find_refused(*arrays, np.array([is_valid]), region, max_accuracy).tolist()
    return REASONS[number] if number >= 0 else None


def test_each_reason_is_named():
    assert _find_reason() is None
    assert _find_reason(accuracy=np.nan) is None
    assert _find_reason(accuracy=0.0) is None
    assert _find_reason(accuracy=-1.0) == NEGATIVE_ACCURACY
    assert _find_reason(accuracy=55_000.0) is _find_reason(accuracy=np.inf) is None
    assert _find_reason(accuracy=999.9, max_accuracy=1000.0) is None
    assert _find_reason(accuracy=1000.0, max_accuracy=1000.0) == INACCURATE
    assert _find_reason(is_valid=False) == REASONS[0]
    assert _find_reason(0.0, 0.0) == _find_reason(-0.0, 0.0) == ZERO_LOCATION
    assert _find_reason(0.0, 7.0) is None


def test_zero_location_is_valid_if_region_contains_it():
    assert _find_reason(0.0, 0.0, region=Grid.over((-0.1, -0.1, 0.1, 0.1), 1)) is None
    assert _find_reason(0.0, 0.0, region=Grid.over((0.1, 0.1, 0.3, 0.3), 1)) == ZERO_LOCATION
    # Named places without a maximum distance take fixes from the whole Earth.
    assert _find_reason(0.0, 0.0, region=Places(["a", "b"], [45.0, 45.1], [7.0, 7.1])) == ZERO_LOCATION
    assert _find_reason(0.0, 0.0, region=Places(["a", "b"], [0.0, 0.1], [0.01, 0.1])) is None


@pytest.mark.parametrize("value", ["", None, "null", "%ACC", "abc", True, [], {}, "1_0"])
def test_accuracy_that_is_not_a_number_is_unstated(value):
    assert np.isnan(parse_accuracy(value))


@pytest.mark.parametrize("value", [False, 0, 0.0, "false", "False", "0", "no", "V", " invalid "])
def test_negations_mark_a_fix_as_invalid(value):
    assert not parse_validity(value)


def test_resampling_uses_most_accurate_point_and_the_last_without_accuracies():
    times = np.array(["2024-03-07T09:00:10", "2024-03-07T09:00:20", "2024-03-07T09:00:30"], "M8[us]")
    latitude, longitude = np.array([45.0, 45.1, 45.2]), np.full(3, 7.0)
    track = Trajectory("a", times, latitude, longitude, np.array([5.0, 60.0, np.nan]))
    assert track.resample(60).latitude.tolist() == [45.0]
    assert Trajectory("a", times, latitude, longitude).resample(60).latitude.tolist() == [45.2]
    assert track != Trajectory("a", times, latitude, longitude)
    assert track == Trajectory("a", times, latitude, longitude, np.array([5.0, 60.0, np.nan]))
    assert track.select_time_range("2024-03-07T09:00:15", "2024-03-07T10:00").accuracy_m.tolist()[0] == 60.0
