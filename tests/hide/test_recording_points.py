"""Tests of the order of the points of small recordings, and of distances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.hide.recording_points import Points, distance_km
from dphmm.space.trajectory import Recording, Segment


def make_points(rows, activity="cycling", tracks=None, segments=None):
    """Return points from kilometres north of 45 N, 30 W and seconds. None for no time."""
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


@given(st.lists(st.one_of(st.none(), st.integers(0, 20)), min_size=1, max_size=12))
def test_time_order_sorts_times_and_keeps_untimed_points_after_their_predecessors(seconds):
    points = make_points([(0.0, second) for second in seconds])
    order = points.order_by_time().tolist()
    timed = [second for second in (seconds[row] for row in order) if second is not None]
    assert sorted(order) == list(range(len(seconds)))
    assert timed == sorted(timed)
    for place, row in enumerate(order):
        if seconds[row] is None and row > 0 and any(second is not None for second in seconds[:row]):
            assert order[place - 1] == row - 1


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
