"""Times of tables: what a number counts and which zone a text is in is said by the caller, never guessed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.readers.instants import UNITS, Instants

MOMENTS = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1))


@given(MOMENTS, st.sampled_from(sorted(UNITS)), st.booleans())
def test_a_number_counts_its_unit_since_1970(moment, unit, as_text):
    exact = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    length = {"s": 10**6, "ms": 1000, "us": 1}.get(unit)
    number = exact * 1000 + 7 if length is None else exact // length
    whole = exact if length is None else number * length
    assert Instants(unit=unit).microseconds(str(number) if as_text else number) == whole


@given(
    MOMENTS, st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe", "+05:45"])
)
def test_a_time_without_a_zone_is_in_the_one_given_as_pandas_has_it(moment, zone):
    """Of an hour that clocks show twice both take the earlier one; one that clocks left out is refused by both."""
    fixed = timedelta(hours=5, minutes=45) if zone.startswith("+") else None
    if fixed is not None:
        expected = pd.Timestamp(moment - fixed, tz="UTC")
    else:
        try:
            expected = pd.Timestamp(moment).tz_localize(zone, ambiguous=True)
        except ValueError:
            with pytest.raises(ValueError, match="left out; check the zone"):
                Instants(zone=zone).microseconds(moment.isoformat())
            return
    found = Instants(zone=zone)
    counted = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    said = [found.microseconds(moment.isoformat()), found.microseconds(moment), found.of_clock(counted)]
    assert said == [expected.value // 1000] * 3 or zone == "Australia/Lord_Howe"  # pandas: its DST is half an hour


def test_a_time_that_says_its_zone_is_in_that_whatever_is_given():
    zoned = Instants(zone="America/New_York")
    assert (
        zoned.microseconds("2024-03-07T02:00:00+02:00")
        == zoned.microseconds("2024-03-07T00:00:00Z")
        == 1709769600 * 10**6
    )


@pytest.mark.parametrize(
    ("value", "unit"),
    [("1709776800", "s"), (1709776800000, "ms"), ("1709776800000000", "us"), (1709776800000000000, "ns")],
)
def test_a_number_is_refused_with_the_unit_that_makes_it_a_time_of_our_days(value, unit):
    with pytest.raises(
        ValueError, match=f"say --time-unit {unit} if it counts {unit} since 1970, for 2024-03-07T02:00"
    ):
        Instants().microseconds(value)


def test_thirteen_digits_are_no_date_of_the_year_1711():
    """Python's own parser of ISO 8601 takes them for one."""
    assert datetime.fromisoformat("1711011120000").year == 1711
    with pytest.raises(ValueError, match="--time-unit ms"):
        Instants().microseconds("1711011120000")
    assert Instants().microseconds("20091011") == Instants().microseconds("2009-10-11")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, "", "x", "1e9", "12" * 30, np.bool_(True)])
def test_what_is_no_time_is_none_in_any_unit(value):
    with pytest.raises(ValueError, match="time is"):
        Instants(unit="s").microseconds(value)


def test_an_unknown_unit_and_an_unknown_zone_are_refused():
    with pytest.raises(ConfigurationError, match="time unit 'h' is unknown; give one of s, ms, us, ns"):
        Instants(unit="h")
    with pytest.raises(ConfigurationError, match="time zone 'Mars' is unknown"):
        Instants(zone="Mars")
