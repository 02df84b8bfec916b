"""Landmarks are timestamps, texts, a file or a rule; what is none of these is refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, LandmarkError
from dphmm.jobs import Find, Scheme, landmark_series
from dphmm.jobs.landmarks import moments_of
from dphmm.tables import TimedTable

HOURS = np.datetime64("2024-03-07T00:00", "us") + np.arange(48) * np.timedelta64(1, "h")


def test_all_ways_of_naming_give_the_same_moments(tmp_path):
    file = tmp_path / "marks.csv"
    file.write_text("time\n2024-03-07T09:00:00Z\n2024-03-07T10:00:00Z\n")
    texts = ["2024-03-07T09:00", "2024-03-07T11:00+01:00"]
    for moments in (HOURS[[9, 10]], texts, tuple(texts), file):
        np.testing.assert_array_equal(moments_of(moments, HOURS), HOURS[[9, 10]])
    assert moments_of((), HOURS).dtype == HOURS.dtype


FOUND = {"home": {0}, "work": {1}, "home-and-work": {0, 1}, "repeated": {0, 1}, "stays": {0, 1, 2}}


@pytest.mark.parametrize(("rule", "places"), FOUND.items())
def test_rules_find_the_hours_at_the_places_that_they_name(rule, places):
    day = [0] * 8 + [1] * 9 + [0] * 7  # a Thursday and a Friday at home and at work, then an evening elsewhere
    where = np.array([*day, *day[:20], *[2] * 4])
    points = np.column_stack([5.0 * where, np.zeros(48)])
    np.testing.assert_array_equal(Find(rule, minutes=60).mask(HOURS, points), np.isin(where, list(places)))


def test_what_is_no_rule_or_scheme_is_refused():
    with pytest.raises(ConfigurationError, match="rule is 'sleep'; choose one of stays"):
        Find("sleep")
    with pytest.raises(ConfigurationError, match="scheme is 'best'; choose one of skip"):
        Scheme("best")


def test_values_have_no_places_to_find_landmarks_in():
    table = TimedTable(HOURS[:3], {"beats": np.array([70, 75, 80])})
    with pytest.raises(ConfigurationError, match="found in places"):
        landmark_series(table, 20, 1, Find("home"))
    with pytest.raises(LandmarkError, match="not of the timestamps' kind"):
        landmark_series(table, 20, 1, [3])
