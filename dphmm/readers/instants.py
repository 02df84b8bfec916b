"""Times of fixes in tables: strings with or without a zone, and numbers since 1970."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cached_property

import numpy as np

from dphmm.errors import ConfigurationError
from dphmm.space.trajectory import time_zone
from dphmm.tables.values import iso_time, parse_time, shorten, since_epoch
from dphmm.validation import checked

UNITS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}
"""Unit of a numeric time since 1970 in UTC → microseconds per unit. Nanoseconds are truncated to microseconds."""


@checked
@dataclass(frozen=True)
class Instants:
    """Interpretation of the times in a table.

    Parameters
    ----------
    unit
        The unit of numbers since 1970 in UTC: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``. By default numbers are refused,
        because their unit is unknown.
    zone
        The zone of times without one: a name such as ``"Asia/Shanghai"``, or ``"+08:00"``. Defaults to UTC. A local
        time that occurs twice denotes the earlier instant.

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
            raise ConfigurationError(f"time_unit must be one of {', '.join(UNITS)}, got {shorten(self.unit)}")
        if self.zone is not None:
            time_zone(self.zone)

    @cached_property
    def _zone(self) -> tzinfo:
        return UTC if self.zone is None else time_zone(self.zone)

    def microseconds(self, value: object) -> int:
        """Return microseconds since 1970 in UTC of a string, a number or a `datetime`.

        Parameters
        ----------
        value
            The time.

        Returns
        -------
        int
            Microseconds; exact for integers.

        Raises
        ------
        ValueError
            If it is not a time, is a number without a known unit, or a local time that does not exist in the zone.
        """
        if isinstance(value, datetime):
            return self._in_utc(value)
        number = _parse_number(value)
        if number is None:
            counted = parse_time(value)  # raises if it is not a time
            return counted if self.zone is None else self._in_utc(datetime.fromisoformat(str(value).strip()))
        if self.unit is None:
            raise ValueError(_describe_missing_unit(value, number))
        return _to_microseconds(number, self.unit, value)

    def lacks_zone(self, value: object) -> bool:
        """Return whether a time depends on the zone: a string without a zone.

        Parameters
        ----------
        value
            The time.

        Returns
        -------
        bool
            False for numbers and for strings with a zone.

        Raises
        ------
        ValueError
            If it is not a time.
        """
        if _parse_number(value) is not None or not isinstance(value, str):
            return False
        return datetime.fromisoformat(value.strip()).tzinfo is None

    def of_clock(self, microseconds: int) -> int:
        """Convert a local clock reading, counted as if in UTC, to microseconds in UTC.

        Parameters
        ----------
        microseconds
            The local clock reading, microseconds since 1970.

        Returns
        -------
        int
            The instant.

        Raises
        ------
        ValueError
            If the local time does not exist in the zone, or is not in the years 1 to 9999.
        """
        if self.zone is None:
            return microseconds
        try:
            return self._in_utc(datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(tzinfo=None)) + (
                microseconds % 1_000_000
            )
        except (OverflowError, OSError):
            raise ValueError(
                f"time must be in the years 1 to 9999, got {microseconds} microseconds after 1970"
            ) from None

    def _in_utc(self, instant: datetime) -> int:
        if instant.tzinfo is not None:
            return since_epoch(instant)
        there = instant.replace(tzinfo=self._zone)
        try:
            shown = there.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None)
        except OverflowError:
            raise ValueError(f"time must be in the years 1 to 9999, got {instant.isoformat()}") from None
        if shown != instant:
            raise ValueError(
                f"time {instant.isoformat()} does not exist in {self.zone} (clock change); check the zone, or use UTC"
            )
        return since_epoch(there)


_NO_TIMES = frozenset(("", "null", "none", "nan"))
_UTC_SUFFIX = re.compile(r"\s*(?:UTC|GMT)$", re.IGNORECASE)


def parse_track_time(text: str | None) -> int | None:
    """Return a time of a recording, microseconds since 1970 in UTC; None if there is none.

    Parameters
    ----------
    text
        ISO 8601, also with ``UTC`` or ``GMT`` after it; UTC if it has no zone. Devices without a clock write nothing,
        or ``null``.

    Raises
    ------
    ValueError
        If it is not such a time.
    """
    try:
        return parse_time(text)
    except ValueError:
        if text is None or text.strip().lower() in _NO_TIMES:
            return None
        return parse_time(_UTC_SUFFIX.sub("", text.strip()))


def _parse_number(value: object) -> float | int | None:
    """Return a numeric time; None for a string that contains a date."""
    if isinstance(value, bool | np.bool_):
        return None
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, str):
        text = value.strip()
        digits = text.removeprefix("-")
        if not digits.replace(".", "", 1).isdecimal() or not text.isascii() or _is_date(text):
            return None
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"time must be ISO 8601 such as 2009-10-11T14:04:30Z, got {shorten(value)}")
        return int(text) if digits.isdecimal() else float(text)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return None


_MAX_DIGITS = 40


def _to_microseconds(number: float, unit: str, value: object) -> int:
    """Return a number of units in microseconds; exact for integers."""
    if not abs(number) <= _MAX_NUMBER:
        raise ValueError(f"time must be in the years 1 to 9999, got {shorten(value)}")
    return int(number // 1000) if unit == "ns" else round(number * UNITS[unit])


_MAX_NUMBER = 10**30


def _is_date(text: str) -> bool:
    """Return whether eight digits are an ISO 8601 date from 1900 to 2099: 20091011."""
    try:
        return len(text) == 8 and 1900 <= datetime.fromisoformat(text).year < 2100
    except ValueError:
        return False


def _describe_missing_unit(value: object, number: float) -> str:
    """Return the message for a number without a unit.

    It suggests the unit that yields a year from 1980 to 2099.
    """
    for unit in UNITS:
        microseconds = _to_microseconds(number, unit, value)
        if _FIRST_LIKELY <= microseconds <= _LAST_LIKELY:
            text = iso_time(np.datetime64(microseconds, "us").astype("datetime64[s]"))
            return f"time is {shorten(value)}; set time_unit = {unit!r} if it counts {unit} since 1970, for {text}"
    return f"time must be ISO 8601 such as 2009-10-11T14:04:30Z, got {shorten(value)}"


_FIRST_LIKELY, _LAST_LIKELY = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("1980-01-01", "2100-01-01"))
