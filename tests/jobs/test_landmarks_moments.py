"""Tests of landmarks as timestamps, strings, a file or a rule. Other values raise."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm.errors import ConfigurationError, DataFileError, LandmarkError
from dphmm.jobs import LandmarkFinder, Scheme, release_landmark_series
from dphmm.jobs.landmarks import parse_landmarks
from dphmm.tables import TimedTable

HOURS = np.datetime64("2024-03-07T00:00", "us") + np.arange(48) * np.timedelta64(1, "h")


def test_timestamps_strings_and_file_are_equivalent(tmp_path):
    file = tmp_path / "marks.csv"
    file.write_text("time\n2024-03-07T09:00:00Z\n2024-03-07T10:00:00Z\n")
    texts = ["2024-03-07T09:00", "2024-03-07T11:00+01:00"]
    for landmarks in (HOURS[[9, 10]], texts, tuple(texts), file):
        np.testing.assert_array_equal(parse_landmarks(landmarks, HOURS), HOURS[[9, 10]])
    assert parse_landmarks((), HOURS).dtype == HOURS.dtype
    file.write_text("time\n")
    with pytest.raises(DataFileError, match=r"marks\.csv: contains no landmark; write one time per line"):
        parse_landmarks(file, HOURS)


PLACES_OF_RULE = {"home": {0}, "work": {1}, "home-and-work": {0, 1}, "repeated": {0, 1}, "stays": {0, 1, 2}}


@pytest.mark.parametrize(("rule", "places"), PLACES_OF_RULE.items())
def test_rules_find_hours_at_their_places(rule, places):
    day = [0] * 8 + [1] * 9 + [0] * 7  # a Thursday and a Friday at home and at work, then an evening elsewhere
    where = np.array([*day, *day[:20], *[2] * 4])
    points = np.column_stack([5.0 * where, np.zeros(48)])
    np.testing.assert_array_equal(
        LandmarkFinder(rule, minutes=60).find_landmarks(HOURS, points), np.isin(where, list(places))
    )


def test_unknown_rule_or_scheme_raises():
    with pytest.raises(ConfigurationError, match="rule must be one of stays"):
        LandmarkFinder("sleep")
    with pytest.raises(ConfigurationError, match="name must be one of skip"):
        Scheme("best")


def test_rules_on_values_without_places_raise():
    table = TimedTable(HOURS[:3], {"beats": np.array([70, 75, 80])})
    with pytest.raises(ConfigurationError, match="must be named: finding them needs locations"):
        release_landmark_series(table, 20, 1, LandmarkFinder("home"))
    with pytest.raises(LandmarkError, match="timestamps"):
        release_landmark_series(table, 20, 1, [3])
