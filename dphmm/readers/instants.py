"""When a fix was recorded, as tables have it: texts with and without a zone, and numbers counted since 1970."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cached_property

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError
from dphmm.space.trajectory import time_zone
from dphmm.tables.values import iso_time, parse_time, shorten, since_epoch

UNITS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}
"""What a number of a time column may count since 1970 in UTC → how many microseconds that is; of nanoseconds, which are
thousandths of one, the rest is cut off."""


@checked
@dataclass(frozen=True)
class Instants:
    """How the times of a table are to be understood.

    Parameters
    ----------
    unit
        What numbers count since 1970 in UTC: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``. Left out, numbers are refused,
        for nothing says what they count.
    zone
        The zone of times that do not say theirs: a name such as ``"Asia/Shanghai"``, or ``"+08:00"``. Left out, UTC. Of
        an hour that clocks show twice the earlier one is meant.

    Raises
    ------
    ConfigurationError
        For another unit, or an unknown zone.

    Examples
    --------
    >>> Instants(unit="s").microseconds(1255269870) == Instants().microseconds("2009-10-11T14:04:30Z")
    True
    >>> Instants(zone="+08:00").microseconds("2009-10-11 22:04:30") == Instants(unit="ms").microseconds(1255269870000)
    True
    """

    unit: str | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        if self.unit is not None and self.unit not in UNITS:
            raise ConfigurationError(f"time unit {shorten(self.unit)} is unknown; give one of {', '.join(UNITS)}")
        if self.zone is not None:
            time_zone(self.zone)

    @cached_property
    def _zone(self) -> tzinfo:
        return UTC if self.zone is None else time_zone(self.zone)

    def microseconds(self, value: object) -> int:
        """Return microseconds since 1970 in UTC of a text, a number or a `datetime`.

        Parameters
        ----------
        value
            The time.

        Returns
        -------
        int
            Microseconds; of a whole number exactly.

        Raises
        ------
        ValueError
            When it is no time, a number whose unit is not known, or a local time that clocks in the zone left out.
        """
        if isinstance(value, datetime):
            return self._in_utc(value)
        number = _number(value)
        if number is None:
            counted = parse_time(value)  # which refuses what is no time
            return counted if self.zone is None else self._in_utc(datetime.fromisoformat(str(value).strip()))
        if self.unit is None:
            raise ValueError(_unclear(value, number))
        return _counted(number, self.unit, value)

    def lacks_zone(self, value: object) -> bool:
        """Return whether a time depends on the zone: a text of a time that does not say its own.

        Parameters
        ----------
        value
            The time.

        Returns
        -------
        bool
            False for numbers and for texts with a zone.

        Raises
        ------
        ValueError
            When it is no time.
        """
        if _number(value) is not None or not isinstance(value, str):
            return False
        return datetime.fromisoformat(value.strip()).tzinfo is None

    def of_clock(self, microseconds: int) -> int:
        """Return microseconds since 1970 in UTC of what a clock in the zone showed, counted as if it had shown UTC.

        Parameters
        ----------
        microseconds
            What the clock showed, microseconds since 1970.

        Returns
        -------
        int
            The instant.

        Raises
        ------
        ValueError
            As `microseconds`.
        """
        if self.zone is None:
            return microseconds
        try:
            return self._in_utc(datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(tzinfo=None)) + (
                microseconds % 1_000_000
            )
        except (OverflowError, OSError):
            raise ValueError(
                f"time is {microseconds} microseconds after 1970; it must lie in the years 1 to 9999"
            ) from None

    def _in_utc(self, moment: datetime) -> int:
        if moment.tzinfo is not None:
            return since_epoch(moment)
        there = moment.replace(tzinfo=self._zone)
        try:
            shown = there.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None)
        except OverflowError:
            raise ValueError(f"time is {moment.isoformat()}; it must lie in the years 1 to 9999") from None
        if shown != moment:
            raise ValueError(
                f"time is {moment.isoformat()}, which clocks in {self.zone} left out; check the zone, or give UTC"
            )
        return since_epoch(there)


def _number(value: object) -> float | int | None:
    """Return a number that counts time; None for a text that writes a date."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, str):
        text = value.strip()
        digits = text.removeprefix("-")
        if not digits.replace(".", "", 1).isdecimal() or not text.isascii() or _is_date(text):
            return None
        if len(text) > _MOST_DIGITS:
            raise ValueError(f"time is {shorten(value)}; give an ISO 8601 time such as 2009-10-11T14:04:30Z")
        return int(text) if digits.isdecimal() else float(text)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return None


_MOST_DIGITS = 40


def _counted(number: float, unit: str, value: object) -> int:
    """Return the microseconds in a number of units; of a whole number exactly."""
    if not abs(number) <= _LARGEST:
        raise ValueError(f"time is {shorten(value)}; it must lie in the years 1 to 9999")
    return int(number // 1000) if unit == "ns" else round(number * UNITS[unit])


_LARGEST = 10**30


def _is_date(text: str) -> bool:
    """Return whether eight digits are a date of this century or the last, such as 20091011, as ISO 8601 allows."""
    try:
        return len(text) == 8 and 1900 <= datetime.fromisoformat(text).year < 2100
    except ValueError:
        return False


def _unclear(value: object, number: float) -> str:
    """Write the message about a number without a unit; it names the unit that gives a time between 1980 and 2100."""
    for unit in UNITS:
        found = _counted(number, unit, value)
        if _OUR_DAYS <= found <= _END_OF_OUR_DAYS:
            text = iso_time(np.datetime64(found, "us").astype("datetime64[s]"))
            return f"time is {shorten(value)}; say --time-unit {unit} if it counts {unit} since 1970, for {text}"
    return f"time is {shorten(value)}; give an ISO 8601 time such as 2009-10-11T14:04:30Z"


_OUR_DAYS, _END_OF_OUR_DAYS = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("1980-01-01", "2100-01-01"))
