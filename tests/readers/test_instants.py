"""Times in tables: unit and time zone come from the caller and are never guessed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import ConfigurationError
from dphmm.readers.instants import UNITS, Instants

DATETIMES = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1))


@given(DATETIMES, st.sampled_from(sorted(UNITS)), st.booleans())
def test_number_counts_unit_since_1970(moment, unit, as_text):
    exact = (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    length = {"s": 10**6, "ms": 1000, "us": 1}.get(unit)
    number = exact * 1000 + 7 if length is None else exact // length
    whole = exact if length is None else number * length
    assert Instants(format=unit).parse_microseconds(str(number) if as_text else number) == whole


@given(
    DATETIMES, st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe", "+05:45"])
)
def test_naive_time_uses_given_zone_like_pandas(moment, zone):
    """Ambiguous times take the earlier instant, and missing times raise, as in pandas."""
    fixed = timedelta(hours=5, minutes=45) if zone.startswith("+") else None
    if fixed is not None:
        expected = pd.Timestamp(moment - fixed, tz="UTC")
    else:
        try:
            expected = pd.Timestamp(moment).tz_localize(zone, ambiguous=True)
        except ValueError:
            with pytest.raises(ValueError, match="zone"):
                Instants(zone=zone).parse_microseconds(moment.isoformat())
            return
    instants = Instants(zone=zone)
    counted = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    results = [
        instants.parse_microseconds(moment.isoformat()),
        instants.parse_microseconds(moment),
        instants.convert_clock(counted),
    ]
    assert (
        results == [expected.value // 1000] * 3 or zone == "Australia/Lord_Howe"
    )  # Lord Howe has a half-hour DST in pandas


def test_explicit_zone_overrides_given_zone():
    zoned = Instants(zone="America/New_York")
    assert (
        zoned.parse_microseconds("2024-03-07T02:00:00+02:00")
        == zoned.parse_microseconds("2024-03-07T00:00:00Z")
        == 1709769600 * 10**6
    )


@pytest.mark.parametrize(
    ("value", "unit"),
    [("1709776800", "s"), (1709776800000, "ms"), ("1709776800000000", "us"), (1709776800000000000, "ns")],
)
def test_plain_number_raises_with_suitable_unit(value, unit):
    with pytest.raises(
        ValueError,
        match=rf"set time_format \(--time-format\) = '{unit}' if it counts {unit} since 1970, for 2024-03-07T02:00",
    ):
        Instants().parse_microseconds(value)


def test_utc_after_a_time_is_its_zone():
    here = Instants(zone="+08:00")
    assert here.parse_microseconds("2023-07-14 06:30:00 UTC") == here.parse_microseconds("2023-07-14T06:30:00Z")
    assert here.parse_microseconds("2023/07/14 06:30:00+00") == here.parse_microseconds("2023-07-14T06:30:00Z")
    assert not here.lacks_zone("2023-07-14 06:30:00 UTC")
    with pytest.raises(ValueError, match="ISO 8601"):
        here.parse_microseconds("2023-07-14 06:30:00+02:00 UTC")


def test_days_of_spreadsheets_and_times_without_date_are_described():
    with pytest.raises(ValueError, match="days in a spreadsheet, for 2023-07-14, export it as a date and time"):
        Instants().parse_microseconds("45121.270833")
    with pytest.raises(ValueError, match=r"--time-format\) = '%Y%m%d%H%M%S' for 2023-07-14"):
        Instants().parse_microseconds("20230714063000")
    with pytest.raises(ValueError, match=r"got '14-Jul-2023 06:30:00'; for another form, set time_format"):
        Instants().parse_microseconds("14-Jul-2023 06:30:00")
    with pytest.raises(ValueError, match=r"must have a date, got '06:30:00'; join"):
        Instants().parse_microseconds("06:30:00")


def test_thirteen_digits_are_not_parsed_as_date():
    """Python's own parser of ISO 8601 accepts them as a date."""
    assert datetime.fromisoformat("1711011120000").year == 1711
    with pytest.raises(ValueError, match=r"--time-format\) = 'ms'"):
        Instants().parse_microseconds("1711011120000")
    assert Instants().parse_microseconds("20091011") == Instants().parse_microseconds("2009-10-11")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, None, "", "x", "1e9", "12" * 30, np.bool_(True)])
def test_invalid_time_raises_in_any_unit(value):
    with pytest.raises(ValueError, match="time "):
        Instants(format="s").parse_microseconds(value)


def test_repeated_local_time_is_the_earlier_one_and_logged_once_per_day(caplog):
    instants = Instants("Europe/Berlin")
    hours = [
        Instants("+02:00").parse_microseconds(f"2024-10-{day} 02:{minute}:00")
        for day in (26, 27)
        for minute in (10, 50)
    ]
    times = [f"2024-10-{day} 02:{minute}:00" for day in (26, 27) for minute in (10, 50)]
    assert [instants.parse_microseconds(time) for time in times] == hours
    assert [record.getMessage() for record in caplog.records] == [
        "dphmm: warning: some local times of 2024-10-27 occur twice in Europe/Berlin (clock change): they are read as "
        "the earlier one; use UTC, or times with an offset"
    ]


def test_unknown_unit_or_zone_raises():
    with pytest.raises(ConfigurationError, match=r"time_format must be one of s, .*'h'"):
        Instants(format="h")
    with pytest.raises(ConfigurationError, match=r"time.zone .*'Mars'"):
        Instants(zone="Mars")
