"""Windows of events: steps, dates, instants, or hours of certain days in a time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

import numpy as np

from dphmm.errors import ConfigurationError, EventError
from dphmm.space.trajectory import parse_time_zone, round_to_microseconds
from dphmm.validation import check_arguments

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# The days of the week that a word stands for, 0 for Monday.
WEEKDAYS_BY_NAME: dict[str, tuple[int, ...]] = {
    "day": tuple(range(7)),
    "weekday": tuple(range(5)),
    "weekend": (5, 6),
    **{name: (index,) for index, name in enumerate(DAYS)},
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_DAYS = 36_600
_HOUR = re.compile(r"(\d{1,2})(?::(\d{2}))?")

# A step, counted from the first release; a day; or an instant. An instant without a zone has that of the window.
Bound = int | date | datetime

# The first and the last of consecutive steps.
Span = tuple[int, int]


@dataclass(frozen=True)
class Clock:
    """A conversion of instants to steps.

    Parameters
    ----------
    step_seconds
        Length of a step. With None, events must be given in steps.
    first
        Slot of the first release (see `dphmm.Session.to_slot`), which is step 0 of an event without a lead. With None,
        events must be given in steps.
    lead
        Number of steps by which step 0 of an event precedes the first release; positive for an event about the time
        before it.
    """

    step_seconds: float | None = None
    first: int | None = 0
    lead: int = 0

    def span(self, start: datetime, end: datetime) -> Span:
        """Return the steps at ``start <= t < end``, counted from step 0.

        If there are none, the last is smaller than the first.

        Parameters
        ----------
        start, end
            Instants with a time zone.

        Returns
        -------
        Span
            The first and the last step.

        Raises
        ------
        EventError
            If the length of a step or the slot of the first release is unknown.
        """
        step = self._get_step_microseconds()
        ends = [-((_EPOCH - instant) // _MICROSECOND // step) for instant in (start, end)]
        return ends[0] - self._get_zero_slot(), ends[1] - 1 - self._get_zero_slot()

    @check_arguments
    def step_at(self, instant: datetime) -> int:
        """Return the step of an instant, counted from step 0.

        An instant belongs to the step that contains it or ends with it.

        Parameters
        ----------
        instant
            Instant with a time zone.

        Returns
        -------
        int
            The step; negative before step 0.

        Raises
        ------
        EventError
            If the length of a step or the slot of the first release is unknown.
        """
        return -(-((instant - _EPOCH) // _MICROSECOND) // self._get_step_microseconds()) - self._get_zero_slot()

    def format_instant(self, step: int) -> str:
        """Return the time of a step in UTC, for messages. Its index if the time is unknown.

        Parameters
        ----------
        step
            Step, counted from step 0.

        Returns
        -------
        str
            Such as ``2024-03-04T08:30:00Z``, or ``step 3``.
        """
        if self.step_seconds is None or self.first is None:
            return f"step {step}"
        instant = np.datetime64((self._get_zero_slot() + step) * self._get_step_microseconds(), "us").astype(
            "datetime64[s]"
        )
        return f"{instant}Z"

    def _get_zero_slot(self) -> int:
        if self.first is None:
            raise EventError(
                "first must be set for an event with dates, to the time of the first release; or use steps such as "
                "'between 0 and 9'"
            )
        return self.first - self.lead

    def _get_step_microseconds(self) -> int:
        if self.step_seconds is None:
            raise EventError("an event with dates needs a model with step_seconds: use steps such as 'between 0 and 9'")
        return round_to_microseconds(self.step_seconds, "step")


@dataclass(frozen=True)
class Daily:
    """Hours of certain days.

    Parameters
    ----------
    kind
        A key of `WEEKDAYS_BY_NAME`.
    start, end
        Start (included) and end (excluded) in minutes after midnight, 0 to 1440. If the end is not later than the
        start, it is on the next day. The hours belong to the day on which they begin.
    """

    kind: str
    start: int = 0
    end: int = 1440

    def __str__(self) -> str:
        hours = (
            "" if (self.start, self.end) == (0, 1440) else f" {_format_minutes(self.start)}-{_format_minutes(self.end)}"
        )
        return f"any {self.kind}{hours}"


@dataclass(frozen=True)
class Window:
    """The time at which an event may happen.

    Parameters
    ----------
    start, end
        Both ends. Steps and days are included; an instant ends the window.
    daily
        Hours to which the window is restricted; None for all.
    zone
        Time zone of days, hours, and instants without a zone.
    is_clipped
        Whether the part before the first release is ignored.
    """

    start: Bound
    end: Bound
    daily: Daily | None = None
    zone: str = "UTC"
    is_clipped: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.start, int) != isinstance(self.end, int):
            raise EventError(f"window '{self}' must be between two steps or between two times")
        if isinstance(self.start, int) and self.is_clipped:
            raise EventError(
                f"window '{self}': 'from the first release' cannot be combined with steps, which count from it anyway"
            )
        if isinstance(self.start, int) and (self.daily is not None or self.zone != "UTC"):
            raise EventError(f"window '{self}': days and zones cannot be combined with steps; use dates")
        get_zone(self.zone)
        if not isinstance(self.start, int):
            first, last = self._get_ends()
            # In spring an hour is missing: different local times may then stand for the same instant.
            if last == first and isinstance(self.start, datetime) and self.start != self.end:
                raise EventError(
                    f"window '{self}' must not lie in the hour that is skipped when clocks are set forward"
                )
            if last <= first:
                raise EventError(f"window '{self}' must not end before it begins")
        elif self.end < self.start:  # type: ignore[operator]  # both ends are steps, or both are days
            raise EventError(f"window '{self}' must not end before it begins")

    def list_spans(self, clock: Clock) -> list[Span]:
        """Return the steps in the window as consecutive runs, counted from step 0 of the clock.

        Raises
        ------
        EventError
            If there are none, the window begins before step 0 and is not clipped, or it has dates and the length of a
            step is unknown.
        """
        if isinstance(self.start, int):
            return [(self.start + clock.lead, int(self.end) + clock.lead)]  # type: ignore[arg-type]  # the end is a step if the start is
        # Adjacent runs are merged, because an event is about steps and not about their days.
        spans: list[Span] = []
        for first, last in self._list_runs(clock):
            begin = spans.pop()[0] if spans and spans[-1][1] >= first - 1 else first
            spans.append((begin, last))
        if not spans:
            if not self._list_time_ranges():
                raise EventError(f"window '{self}' must contain a time of '{self.daily}'; use other dates")
            raise EventError(
                f"window '{self}' must contain a step from the first release on, at "
                f"{clock.format_instant(clock.lead)}; use a "
                "later window"
            )
        return spans

    def find_first_step(self, clock: Clock) -> int:
        """Return the first step, negative before the first release. 0 if clipped or empty."""
        if isinstance(self.start, int) or self.is_clipped:
            return 0
        return min((first for first, last in self._convert_time_ranges(clock) if first <= last), default=0)

    def is_past(self, clock: Clock) -> bool:
        """Return whether the window ended before the first release. False for steps."""
        if isinstance(self.start, int):
            return False
        # A night that begins on the last day ends on the next.
        ends = [last for first, last in self._convert_time_ranges(clock) if first <= last]
        return max(ends, default=clock.span(*self._get_ends())[1]) < clock.lead

    def list_spans_by_day(self, clock: Clock) -> list[list[Span]]:
        """Return the runs of steps for each day separately, without days that contain none.

        Raises
        ------
        EventError
            If `list_spans` raises it, or the window is given in steps.
        """
        if isinstance(self.start, int):
            raise EventError(f"window '{self}' must be given in dates to count days, got steps")
        days = [[run] for run in self._list_runs(clock, by_day=True)]
        if not days:
            self.list_spans(clock)
        return days

    def _list_runs(self, clock: Clock, by_day: bool = False) -> list[Span]:
        """Return the steps of each time range, without empty ranges."""
        spans = [(first, last) for first, last in self._convert_time_ranges(clock, by_day) if first <= last]
        if self.is_clipped:
            return [(max(first, clock.lead), last) for first, last in spans if clock.lead <= last]
        if spans and spans[-1][1] < 0:
            return []
        if spans and spans[0][0] < 0:
            raise EventError(
                f"window '{self}' must not begin before the first release, at {clock.format_instant(clock.lead)}, "
                "unless the "
                "model starts in its stationary distribution; append 'from the first release' to ignore that part"
            )
        return spans

    def _convert_time_ranges(self, clock: Clock, by_day: bool = False) -> list[Span]:
        return [clock.span(*piece) for piece in self._list_time_ranges(by_day)]

    def _list_time_ranges(self, by_day: bool = False) -> list[tuple[datetime, datetime]]:
        """Return the time ranges of the window, in order."""
        start, end = self._get_ends()
        if self.daily is None and not by_day:
            return [(start, end)]
        daily = self.daily or Daily("day")
        zone = get_zone(self.zone)
        day = start.astimezone(zone).date() - timedelta(days=1)
        pieces = []
        while day <= end.astimezone(zone).date():
            if day.weekday() in WEEKDAYS_BY_NAME[daily.kind]:
                end_day = day + timedelta(days=daily.end <= daily.start)
                first = _to_utc(day, daily.start, zone)
                last = _to_utc(end_day, daily.end, zone, end=True)
                if first < start:  # a night belongs to the day on which it begins
                    first = start if isinstance(self.start, datetime) else last
                if first < end < last and isinstance(self.end, datetime):
                    last = end
                if first < min(last, end):
                    pieces.append((first, last))
            day += timedelta(days=1)
        return pieces

    def _get_ends(self) -> tuple[datetime, datetime]:
        start = to_instant(self.start, self.zone)
        end = to_instant(self.end, self.zone, end=True)
        if (end - start).days > _MAX_DAYS:
            raise EventError(f"window '{self}' must be at most a hundred years long")
        return start, end

    def __str__(self) -> str:
        if self.start == self.end and not isinstance(self.start, datetime):
            text = f"at {self.start}" if isinstance(self.start, int) else f"on {self.start}"
        else:
            text = f"between {format_bound(self.start)} and {format_bound(self.end)}"
        zone = "" if self.zone == "UTC" else f" in {self.zone}"
        clipped = " from the first release" if self.is_clipped else ""
        return text + ("" if self.daily is None else f" {self.daily}") + zone + clipped


def get_zone(name: str) -> tzinfo:
    """Return a time zone by name.

    Raises
    ------
    EventError
        If it is unknown.
    """
    try:
        return parse_time_zone(name)
    except ConfigurationError as problem:
        raise EventError(str(problem)) from None


def parse_bound(text: str) -> Bound:
    """Parse a step, a day, or an instant in whole seconds with an offset in whole minutes.

    Raises
    ------
    EventError
        If the text is none of these.

    Examples
    --------
    >>> parse_bound("12"), parse_bound("2024-03-04"), parse_bound("2024-03-04T08:30Z")
    (12, datetime.date(2024, 3, 4), datetime.datetime(2024, 3, 4, 8, 30, tzinfo=datetime.timezone.utc))
    """
    try:
        if text.isdecimal() and len(text) < 8:
            return int(text)
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return date.fromisoformat(text)
        if re.match(r"\d{4}-\d{2}-\d{2}[Tt ]", text):
            instant = datetime.fromisoformat(text)
            # `format_bound` writes no other instants, and its text identifies the event in hashes.
            if not instant.microsecond and not (instant.utcoffset() or timedelta()) % timedelta(minutes=1):
                return instant
    except ValueError:
        pass
    raise EventError(
        "time must be a date, a step such as 12, or an instant such as 2024-03-04T09:30Z, in whole seconds with an "
        f"offset in whole minutes, got {text!r}"
    )


def parse_daily(kind: str, hours: str | None) -> Daily:
    """Parse hours of certain days, such as ``weekday`` and ``9-12:30``.

    Raises
    ------
    EventError
        If the days or the hours are invalid.
    """
    if kind.lower() not in WEEKDAYS_BY_NAME:
        raise EventError(f"days must be one of {', '.join(WEEKDAYS_BY_NAME)}, got {kind!r}")
    if hours is None:
        return Daily(kind.lower())
    ends = [_parse_minutes(part.strip()) for part in re.split("[-\u2013]", hours)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        raise EventError(f"hours must have the form 9-12 or 22:30-6, got {hours!r}")
    if ends[0] == ends[1]:
        raise EventError(f"hours must end at another time than they start; omit them for whole days, got {hours!r}")
    return Daily(kind.lower(), ends[0], ends[1])


def _parse_minutes(text: str) -> int | None:
    """Parse a time such as 9 or 22:30 as minutes after midnight. None if invalid."""
    match = _HOUR.fullmatch(text)
    minutes = 60 * int(match[1]) + int(match[2] or 0) if match else -1
    return minutes if 0 <= minutes <= 1440 and (not match or int(match[2] or 0) < 60) else None


def to_instant(bound: Bound, zone: str, end: bool = False) -> datetime:
    """Convert an instant, or the beginning or end of a day, to UTC.

    A local time that occurs twice is the first one as the beginning of a window and the second one as its end. A local
    time that is skipped is the instant at which the clock is changed.

    Raises
    ------
    EventError
        If the zone is unknown or the time is out of range.
    """
    try:
        if isinstance(bound, datetime):
            return bound.astimezone(UTC) if bound.tzinfo else _resolve_local(bound, get_zone(zone), end)
        assert isinstance(bound, date), "a step is not an instant"
        return _to_utc(bound + timedelta(days=end), 0, get_zone(zone))
    except OverflowError:
        raise EventError(f"times must be in the years 2 to 9998, got {bound}") from None


def _to_utc(day: date, minutes: int, zone: tzinfo, end: bool = False) -> datetime:
    """Convert a time of a day in a zone to UTC. See `_resolve_local`."""
    return _resolve_local(datetime.combine(day, time(0)) + timedelta(minutes=minutes), zone, end)


def _resolve_local(local: datetime, zone: tzinfo, end: bool) -> datetime:
    """Convert a local time to UTC, as the beginning or the end of a window.

    A window begins when the clock first shows its start or a later time. It ends when the clock last stops showing an
    earlier time than its end. So a window contains all that the clock shows within it, even if it is set forward or
    back.
    """
    first, last = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if last < first:  # skipped: the old offset gives a time after the change, and the new offset one before it
        while first - last > _MICROSECOND:
            middle = last + (first - last) // 2
            if _to_local_time(middle, zone) < local:
                last = middle
            else:
                first = middle
        return first
    return last if end and _to_local_time(last - _MICROSECOND, zone) < local else first


def _to_local_time(instant: datetime, zone: tzinfo) -> datetime:
    """Return the local time of an instant in a zone."""
    return instant.astimezone(zone).replace(tzinfo=None)


def _format_minutes(minutes: int) -> str:
    return f"{minutes // 60}" + (f":{minutes % 60:02d}" if minutes % 60 else "")


def format_bound(bound: Bound) -> str:
    """Format a bound as text that `parse_bound` parses."""
    if not isinstance(bound, datetime):
        return str(bound)
    text = bound.isoformat(timespec="seconds" if bound.second else "minutes")
    return text.replace("+00:00", "Z")
