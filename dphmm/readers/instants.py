"""Times of fixes in tables: strings with or without a zone, and numbers since 1970."""

from __future__ import annotations

import logging
import math
import re
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, tzinfo
from functools import cached_property

import numpy as np

from dphmm.errors import ConfigurationError
from dphmm.space.trajectory import parse_time_zone
from dphmm.tables.values import iso_time, parse_time, shorten, to_microseconds
from dphmm.validation import check_arguments

_LOG = logging.getLogger(__name__)

# Unit of a numeric time since 1970 in UTC → microseconds per unit. Nanoseconds are truncated to microseconds.
UNITS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}


@check_arguments
@dataclass(frozen=True)
class Instants:
    """Interpretation of the times in a table.

    Parameters
    ----------
    zone
        The zone of times without one: a name such as ``"Asia/Shanghai"``, or ``"+08:00"``. Defaults to UTC. A local
        time that occurs twice denotes the earlier instant, and a warning is logged.
    format
        The form of times that are strings, as for `datetime.strptime`, such as ``"%d.%m.%Y %H:%M:%S"``, or the unit of
        numbers since 1970 in UTC: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``. By default strings are ISO 8601, or of the
        form ``Tue Apr 03 18:00:09 +0000 2012``, and numbers are refused, because their unit is unknown. ``%z`` reads an
        offset; ``%Z`` is refused.

    Raises
    ------
    ConfigurationError
        For an unknown zone, or a format that is not a unit and lacks year, month or day, or contains the name of a
        zone.

    Examples
    --------
    >>> Instants(format="s").parse_microseconds(1255269870) == Instants().parse_microseconds("2009-10-11T14:04:30Z")
    True
    >>> local = Instants(zone="+08:00").parse_microseconds("2009-10-11 22:04:30")
    >>> local == Instants(format="ms").parse_microseconds(1255269870000)
    True
    >>> Instants(format="%d.%m.%Y %H:%M:%S").parse_microseconds("11.10.2009 14:04:30")
    1255269870000000
    """

    zone: str | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.zone is not None:
            parse_time_zone(self.zone)
        if self.format is None or self.unit is not None:
            return
        if not _has_date(self.format):
            raise ConfigurationError(
                f"time_format must be one of {', '.join(UNITS)}, or contain day, month and year, such as %d.%m.%Y "
                f"%H:%M:%S, got {shorten(self.format)}"
            )
        # Python reads the name of a zone, but ignores it.
        if "%Z" in self.format.replace("%%", ""):
            raise ConfigurationError(
                "time_format must not contain %Z, because names of zones are ambiguous, got "
                f"{shorten(self.format)}: use %z for offsets such as +0100, or write the name instead of %Z and set "
                "time_zone (--time-zone)"
            )

    @property
    def unit(self) -> str | None:
        """The unit of numbers, or None."""
        return self.format if self.format in UNITS else None

    @cached_property
    def _zone(self) -> tzinfo:
        return UTC if self.zone is None else parse_time_zone(self.zone)

    @cached_property
    def _repeated_days(self) -> set[date]:
        """The days with times that occur twice of which a warning was logged."""
        return set()

    def parse_microseconds(self, value: object) -> int:
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
        if isinstance(value, np.datetime64):  # an element of a column of objects
            value = value.astype("datetime64[us]").item()
        if isinstance(value, datetime):
            return self._convert_to_utc(value)
        unit = self.unit
        if self.format is not None and unit is None and isinstance(value, str):
            return self._convert_to_utc(self._parse_format(value))
        number = _parse_number(value)
        if number is None:
            try:
                counted = parse_time(value)
            except ValueError as problem:
                dated = _parse_dated(value)
                if dated is not None:
                    return dated
                hint = _suggest_format(value)
                if not hint and isinstance(value, str) and _FORMATTED.search(value):
                    hint = f"{problem}; for another form, set time_format (--time-format)"
                if not hint:
                    raise
                raise ValueError(hint) from None
            return counted if self.zone is None else self._convert_to_utc(datetime.fromisoformat(str(value).strip()))
        if unit is None:
            raise ValueError(_describe_missing_unit(value, number))
        return _to_microseconds(number, unit, value)

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
        if not isinstance(value, str):
            return False
        if self.format is not None and self.unit is None:
            return self._parse_format(value).tzinfo is None
        if _parse_number(value) is not None or _parse_dated(value) is not None:
            return False
        return datetime.fromisoformat(value.strip()).tzinfo is None

    def convert_clock(self, microseconds: int) -> int:
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
            return self._convert_to_utc(datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(tzinfo=None)) + (
                microseconds % 1_000_000
            )
        except (OverflowError, OSError):
            raise ValueError(
                f"time must be in the years 1 to 9999, got {microseconds} microseconds after 1970"
            ) from None

    def _parse_format(self, value: str) -> datetime:
        assert self.format is not None
        try:
            return datetime.strptime(value.strip(), self.format)
        except ValueError:
            raise ValueError(f"time must have the form {self.format!r}, got {shorten(value)}") from None

    def _convert_to_utc(self, instant: datetime) -> int:
        if instant.tzinfo is not None:
            return to_microseconds(instant)
        there = instant.replace(tzinfo=self._zone)
        try:
            shown = there.astimezone(UTC).astimezone(self._zone).replace(tzinfo=None)
        except OverflowError:
            raise ValueError(f"time must be in the years 1 to 9999, got {instant.isoformat()}") from None
        if shown != instant:
            raise ValueError(
                f"time {instant.isoformat()} does not exist in {self.zone} (clock change); check the zone, or use UTC"
            )
        if there.replace(fold=1).utcoffset() != there.utcoffset() and instant.date() not in self._repeated_days:
            self._repeated_days.add(instant.date())
            _LOG.warning(
                "dphmm: warning: some local times of %s occur twice in %s (clock change): they are read as the earlier "
                "one; use UTC, or times with an offset",
                instant.date(),
                self.zone,
            )
        return to_microseconds(there)


_NO_TIMES = frozenset(("", "null", "none", "nan"))
_UTC_SUFFIX = re.compile(r"\s*(?:UTC|GMT)$", re.IGNORECASE)


def parse_track_time(text: str | None) -> int | None:
    """Return a time of a recording, microseconds since 1970 in UTC. None if there is none.

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
    """Return a numeric time. None for a string that contains a date."""
    if isinstance(value, bool | np.bool_ | np.timedelta64):
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


_SAMPLE = datetime(2001, 2, 3, 4, 5, 6, 7, UTC)


def _has_date(form: str) -> bool:
    """Return whether a format determines a date: it reads what it writes."""
    try:
        with warnings.catch_warnings():
            # Python 3.13 warns of a day without a year, which later versions may refuse.
            warnings.simplefilter("ignore", DeprecationWarning)
            return datetime.strptime(_SAMPLE.strftime(form), form).date() == _SAMPLE.date()
    except ValueError:
        return False


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# Check-ins of Foursquare and messages of Twitter: Tue Apr 03 18:00:09 +0000 2012.
_DATED = re.compile(
    rf"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ({'|'.join(_MONTHS)}) ([ \d]?\d) (\d\d:\d\d:\d\d) ([+-]\d{{4}}) (\d{{4}})",
    re.ASCII,
)
# Features that GDAL converted, such as from GPX: 2012/04/03 18:00:09+00.
_GDAL_TIME = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?[+-]\d\d(?::?\d\d)?", re.ASCII)
_LOCAL_DATE = re.compile(
    r"(\d{1,2})([./-])(\d{1,2})\2(\d{4}|\d\d)(,?[ T])(\d{1,2}:\d\d)(:\d\d)?(\.\d{1,6})?( ?[AaPp][Mm])?", re.ASCII
)
# A day and a month or year of another form.
_FORMATTED = re.compile(r"\d\D+\d", re.ASCII)
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
_YEAR_FIRST = re.compile(
    r"(\d{4})([./])(\d{1,2})\2(\d{1,2})(,?[ T])(\d{1,2}:\d\d)(:\d\d)?(\.\d{1,6})?( ?[AaPp][Mm])?", re.ASCII
)


def _parse_dated(value: object) -> int | None:
    """Return microseconds of a time with month name, ``UTC`` or slashes and zone, or None."""
    if isinstance(value, str) and _UTC_SUFFIX.search(value):
        try:
            plain = datetime.fromisoformat(_UTC_SUFFIX.sub("", value.strip()))
        except ValueError:
            return None
        return None if plain.tzinfo is not None else to_microseconds(plain.replace(tzinfo=UTC))
    if isinstance(value, str) and _GDAL_TIME.fullmatch(value.strip()):
        with suppress(ValueError):
            return parse_time(value.strip().replace("/", "-"))
    matched = _DATED.fullmatch(value.strip()) if isinstance(value, str) else None
    if matched is None:
        return None
    month, day, clock, offset, year = matched.groups()
    try:
        return parse_time(f"{year}-{_MONTHS.index(month) + 1:02}-{int(day):02}T{clock}{offset}")
    except ValueError:
        return None


def _suggest_format(value: object) -> str:
    """Return the message for a local form of dates. Empty for other strings."""
    text = value.strip() if isinstance(value, str) else ""
    if _CLOCK.fullmatch(text):
        return f"time must have a date, got {shorten(value)}; join the columns of date and time"
    year_first = _YEAR_FIRST.fullmatch(text)
    matched = year_first or _LOCAL_DATE.fullmatch(text)
    if matched is None:
        return ""
    _, mark, _, _, space, _, seconds, fraction, half = matched.groups()
    hour = "%I" if half else "%H"
    clock = f"{space}{hour}:%M{':%S' if seconds else ''}{'.%f' if fraction else ''}"
    clock += f"{' ' if half.startswith(' ') else ''}%p" if half else ""
    if year_first is not None:
        orders = [f"%Y{mark}%m{mark}%d"]
    else:
        year = "%Y" if len(matched[4]) == 4 else "%y"
        orders = [f"%d{mark}%m{mark}{year}"] + ([f"%m{mark}%d{mark}{year}"] if mark != "." else [])
    readings = []
    for order in orders:
        try:
            readings.append(f"{order + clock!r} for {datetime.strptime(text, order + clock).date()}")
        except ValueError:  # no such day or month
            continue
    if not readings:
        return ""
    return f"time is {shorten(value)}; set time_format (--time-format) = {' or '.join(readings)}"


_MAX_DIGITS = 40


def _to_microseconds(number: float, unit: str, value: object) -> int:
    """Return a number of units in microseconds. Exact for integers."""
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
            remedy = f"set time_format (--time-format) = {unit!r} if it counts {unit} since 1970, for {text}"
            return f"time is {shorten(value)}; {remedy}"
    if len(str(value)) == len("20091011140430"):
        with suppress(ValueError):
            instant = datetime.strptime(str(value), "%Y%m%d%H%M%S")
            return f"time is {shorten(value)}; set time_format (--time-format) = '%Y%m%d%H%M%S' for {instant.date()}"
    if _FIRST_LIKELY_DAY <= number < _LAST_LIKELY_DAY:
        date = np.datetime64("1899-12-30") + np.timedelta64(int(number), "D")
        return f"time is {shorten(value)}; if it counts days in a spreadsheet, for {date}, export it as a date and time"
    return f"time must be ISO 8601 such as 2009-10-11T14:04:30Z, got {shorten(value)}"


# Days of spreadsheets since 1899-12-30: from 1980 to 2099.
_FIRST_LIKELY_DAY = 29221
_LAST_LIKELY_DAY = 73051
_FIRST_LIKELY, _LAST_LIKELY = (int(np.datetime64(day, "us").astype(np.int64)) for day in ("1980-01-01", "2100-01-01"))
