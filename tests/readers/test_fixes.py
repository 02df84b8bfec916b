"""Fixes become trajectories: sorted, one place per time, the last one recorded."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.readers.fixes import Fixes, parse_number, parse_time, shorten, trajectories, user_of_file

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


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)), st.integers(-1439, 1439))
def test_times_with_a_zone_are_converted_and_those_without_are_utc(moment, minutes):
    zone = timezone(timedelta(minutes=minutes))
    exact = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert parse_time(moment.isoformat()) == exact
    assert parse_time(moment.replace(tzinfo=zone).isoformat()) == exact - minutes * 60_000_000
    assert parse_time(f" {moment.isoformat(' ')}Z ") == exact


@pytest.mark.parametrize("text", ["", "yesterday", "2008-02-30T00:00:00", "1440395361", "12:00", "NaT"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "north", "1_000", "0x10", "1,5"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match=r"latitude is .*decimal number"):
        parse_number(text, "latitude")


def test_messages_stay_short_and_files_name_their_user():
    assert len(shorten("x" * 10_000)) < 50
    assert user_of_file("/a/b/gpx1.1_all.gpx") == "gpx1.1_all"
    assert user_of_file("me.csv.gz") == "me"
