"""Cells: times are ISO 8601 in UTC, numbers are decimal, and messages are one short line."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.tables.values import (
    _MAX_MESSAGE_CHARACTERS,
    as_number,
    format_cell,
    parse_number,
    parse_time,
    parse_times,
    shorten,
    shorten_message,
)


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)), st.integers(-1439, 1439))
def test_times_are_converted_to_utc(instant, minutes):
    zone = timezone(timedelta(minutes=minutes))
    exact = (instant - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert parse_time(instant.isoformat()) == exact
    assert parse_time(instant.replace(tzinfo=zone).isoformat()) == exact - minutes * 60_000_000
    assert parse_time(f" {instant.isoformat(' ')}Z ") == exact


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2008-02-30T00:00:00", "1440395361", "12:00", "NaT", "9999-12-31T23:00-14:00"]
)
def test_invalid_time_raises(text):
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "north", "1_000", "0x10", "1,5"])
def test_invalid_number_raises(text):
    with pytest.raises(ValueError, match=r"latitude .*number"):
        parse_number(text, "latitude")


@pytest.mark.parametrize("value", [1709776800, None, True, 1.5, ["2024-03-07"]], ids=repr)
def test_time_of_other_type_than_text_raises(value):
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time(value)


@pytest.mark.parametrize("value", ["45", True, None, [45]], ids=repr)
def test_as_number_of_other_type_raises(value):
    assert as_number(45, "latitude") == 45.0
    with pytest.raises(ValueError, match=r"latitude .*number"):
        as_number(value, "latitude")


def test_parse_times_finds_integers_floats_or_times():
    assert [parse_times(texts).dtype.kind for texts in (["1", " 2"], ["1", "2.5"], ["2024-03-07"])] == ["i", "f", "M"]
    with pytest.raises(ValueError, match=r"time .*'soon'"):
        parse_times(["2024-03-07", "soon"])


def test_plain_text_writes_values_as_csv_does():
    values = (None, 1.0, 0.1, 7, "a ", True, "é".encode())
    assert [format_cell(value) for value in values] == ["", "1", "0.1", "7", "a ", "True", "é"]


def test_long_messages_are_shortened():
    assert len(shorten("x" * 10_000)) < 50
    message = shorten_message(ValueError("x\n" * 10_000))
    assert (len(message), message[-5:]) == (_MAX_MESSAGE_CHARACTERS, " x...")
    assert shorten_message(ValueError("x" * _MAX_MESSAGE_CHARACTERS)) == "x" * _MAX_MESSAGE_CHARACTERS
