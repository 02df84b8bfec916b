"""Fixes become trajectories: sorted, with the last recorded location per time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.readers.fixes import Fixes, build_trajectories, get_file_user
from dphmm.space import Grid

fix = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-5, 5), st.floats(-90, 90), st.floats(-180, 180))


def build_block(rows, source="f", skipped=0):
    names = sorted({row[0] for row in rows})
    return Fixes(
        source,
        tuple(names),
        np.array([names.index(row[0]) for row in rows], dtype=np.int64),
        np.array([row[1] for row in rows], dtype="M8[us]"),
        np.array([row[2] for row in rows], dtype=np.float64),
        np.array([row[3] for row in rows], dtype=np.float64),
        skipped,
    )


@pytest.mark.slow
@given(st.lists(st.lists(fix, max_size=12), max_size=4))
def test_trajectories_match_last_location_per_user_and_time(files):
    expected = {}
    for rows in files:
        for user, time, latitude, longitude in rows:
            expected.setdefault(user, {})[time] = (latitude, longitude)
    result = build_trajectories((build_block(rows) for rows in files), region=Grid.over((-1, -1, 1, 1), 50))
    assert [t.user for t in result.trajectories] == sorted(expected)
    for trajectory in result.trajectories:
        times = trajectory.times.astype(np.int64).tolist()
        assert times == sorted(expected[trajectory.user])
        assert [expected[trajectory.user][t] for t in times] == list(
            zip(trajectory.latitude.tolist(), trajectory.longitude.tolist(), strict=True)
        )
    assert result.points + result.merged == sum(len(rows) for rows in files)


def test_skipped_records_are_counted_per_file():
    row = ("a", 1, 0.0, 0.0)
    result = build_trajectories(
        [build_block([row], "x", 2), build_block([row], "x", 1), build_block([row], "y", 0), build_block([], "z", 4)]
    )
    assert result.skipped == {"x": 3, "z": 4}


def test_user_is_file_name_without_suffixes():
    assert get_file_user("/a/b/gpx1.1_all.gpx") == "gpx1.1_all"
    assert get_file_user("me.csv.gz") == "me"
