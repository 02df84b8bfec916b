"""Fixes become trajectories: sorted, one place per time, the last one recorded."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dphmm.readers.fixes import Fixes, trajectories, user_of_file

fix = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-5, 5), st.floats(-90, 90), st.floats(-180, 180))


def block(rows, source="f", skipped=0):
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


@given(st.lists(st.lists(fix, max_size=12), max_size=4))
def test_collecting_equals_a_dictionary_of_the_last_place_per_user_and_time(files):
    expected = {}
    for rows in files:
        for user, time, latitude, longitude in rows:
            expected.setdefault(user, {})[time] = (latitude, longitude)
    result = trajectories(block(rows) for rows in files)
    assert [t.user for t in result.trajectories] == sorted(expected)
    for made in result.trajectories:
        times = made.times.astype(np.int64).tolist()
        assert times == sorted(expected[made.user])
        assert [expected[made.user][t] for t in times] == list(
            zip(made.latitude.tolist(), made.longitude.tolist(), strict=True)
        )
    assert result.points + result.merged == sum(len(rows) for rows in files)


def test_skipped_records_are_counted_per_file():
    row = ("a", 1, 0.0, 0.0)
    result = trajectories([block([row], "x", 2), block([row], "x", 1), block([row], "y", 0), block([], "z", 4)])
    assert result.skipped == {"x": 3, "z": 4}


def test_files_name_their_user():
    assert user_of_file("/a/b/gpx1.1_all.gpx") == "gpx1.1_all"
    assert user_of_file("me.csv.gz") == "me"
