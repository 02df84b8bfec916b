"""Cells: a time is ISO 8601 and in UTC, a number is a decimal, and whatever else is said in one short line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.tables.values import (
    _LONGEST,
    as_number,
    one_line,
    parse_number,
    parse_time,
    parse_times,
    plain_text,
    shorten,
)


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)), st.integers(-1439, 1439))
def test_times_with_a_zone_are_converted_and_those_without_are_utc(moment, minutes):
    zone = timezone(timedelta(minutes=minutes))
    exact = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert parse_time(moment.isoformat()) == exact
    assert parse_time(moment.replace(tzinfo=zone).isoformat()) == exact - minutes * 60_000_000
    assert parse_time(f" {moment.isoformat(' ')}Z ") == exact


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2008-02-30T00:00:00", "1440395361", "12:00", "NaT", "9999-12-31T23:00-14:00"]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "north", "1_000", "0x10", "1,5"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match=r"latitude is .*decimal number"):
        parse_number(text, "latitude")


@pytest.mark.parametrize("value", [1709776800, None, True, 1.5, ["2024-03-07"]])
def test_what_is_no_text_is_no_time(value):
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time(value)


@pytest.mark.parametrize("value", ["45", True, None, [45]])
def test_a_typed_number_is_a_number_and_neither_text_nor_truth(value):
    assert as_number(45, "latitude") == 45.0
    with pytest.raises(ValueError, match=r"latitude is .*decimal number"):
        as_number(value, "latitude")


def test_times_are_whole_numbers_or_numbers_or_instants():
    assert [parse_times(texts).dtype.kind for texts in (["1", " 2"], ["1", "2.5"], ["2024-03-07"])] == ["i", "f", "M"]
    with pytest.raises(ValueError, match="time is 'soon'"):
        parse_times(["2024-03-07", "soon"])


def test_typed_values_become_the_texts_of_a_csv():
    assert [plain_text(value) for value in (None, 1.0, 0.1, 7, "a ", True)] == ["", "1", "0.1", "7", "a ", "True"]


def test_messages_stay_short():
    assert len(shorten("x" * 10_000)) < 50
    said = one_line(ValueError("x\n" * 10_000))
    assert (len(said), said[-5:]) == (_LONGEST, " x...")
    assert one_line(ValueError("x" * _LONGEST)) == "x" * _LONGEST
