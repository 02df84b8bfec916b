"""When an event may happen, in words: steps, dates, instants, hours of certain days in a time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import ConfigurationError, EventError
from dphmm.space.trajectory import microseconds, time_zone

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
KINDS: dict[str, tuple[int, ...]] = {
    "day": tuple(range(7)),
    "weekday": tuple(range(5)),
    "weekend": (5, 6),
    **{name: (number,) for number, name in enumerate(DAYS)},
}
"""Which days of the week a word means, 0 for Monday."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOST_DAYS = 36_600
_HOUR = re.compile(r"(\d{1,2})(?::(\d{2}))?")

Bound = int | date | datetime
"""A step, counted from the first release; a day; or an instant, without a zone where it is that of the window."""

Span = tuple[int, int]
"""The first and the last of some steps in a row."""


@dataclass(frozen=True)
class Clock:
    """What turns instants into steps.

    Parameters
    ----------
    step_seconds
        How long a step is; None where it is unknown: events must then be worded in steps.
    first
        The step of the first release, counted from 1970 (see `dphmm.Session.slot_of`): time 0 of an event without a
        lead. None where it is unknown: events must then be worded in steps.
    lead
        By how many steps time 0 of an event lies before the first release: 0, or more for an event about the time
        before it.
    """

    step_seconds: float | None = None
    first: int | None = 0
    lead: int = 0

    def span(self, start: datetime, end: datetime) -> Span:
        """The steps at ``start <= t < end``, counted from time 0; where there is none, the last is less.

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
            When the length of a step or the first release is not known.
        """
        step = self._step()
        ends = [-((_EPOCH - moment) // _MICROSECOND // step) for moment in (start, end)]
        return ends[0] - self._zero(), ends[1] - 1 - self._zero()

    @checked
    def step_at(self, moment: datetime) -> int:
        """The step whose instant this is, or that it lies within, counted from time 0.

        Parameters
        ----------
        moment
            An instant with a time zone.

        Returns
        -------
        int
            Its step, negative before time 0.

        Raises
        ------
        EventError
            When the length of a step or the first release is not known.
        """
        return -(-((moment - _EPOCH) // _MICROSECOND) // self._step()) - self._zero()

    def instant(self, step: int) -> str:
        """When a step is, in UTC, for messages; its number where that is unknown.

        Parameters
        ----------
        step
            A step, counted from time 0.

        Returns
        -------
        str
            Such as ``2024-03-04T08:30:00Z``, or ``step 3``.
        """
        if self.step_seconds is None or self.first is None:
            return f"step {step}"
        moment = np.datetime64((self._zero() + step) * self._step(), "us").astype("datetime64[s]")
        return f"{moment}Z"

    def _zero(self) -> int:
        if self.first is None:
            raise EventError(
                "the event names dates, and it is not known when the first release is; say it, or give steps: "
                "between 0 and 9"
            )
        return self.first - self.lead

    def _step(self) -> int:
        if self.step_seconds is None:
            raise EventError(
                "the event names dates, and the model has no step_seconds; give steps such as 'between 0 and 9'"
            )
        return microseconds(self.step_seconds, "step")


@dataclass(frozen=True)
class Daily:
    """Hours of certain days.

    Parameters
    ----------
    kind
        One of `KINDS`.
    start, end
        From which time of the day to before which, in minutes after midnight, 0 to 1440; where the end is not later it
        is on the next day, and the hours belong to the day on which they begin.
    """

    kind: str
    start: int = 0
    end: int = 1440

    def __str__(self) -> str:
        hours = "" if (self.start, self.end) == (0, 1440) else f" {_clock(self.start)}-{_clock(self.end)}"
        return f"any {self.kind}{hours}"


@dataclass(frozen=True)
class Window:
    """When an event may happen.

    Parameters
    ----------
    start, end
        Both ends: steps and days are included, an instant is where the window ends.
    daily
        Only then, or None for all the time.
    zone
        The time zone of days, hours, and instants that name none.
    clipped
        Whether only what lies from the first release on is meant.
    """

    start: Bound
    end: Bound
    daily: Daily | None = None
    zone: str = "UTC"
    clipped: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.start, int) != isinstance(self.end, int):
            raise EventError(f"window '{self}' goes from a step to a time; give two steps, or two times")
        if isinstance(self.start, int) and self.clipped:
            raise EventError(f"window '{self}' counts steps, which are from the first release anyway; leave that out")
        if isinstance(self.start, int) and (self.daily is not None or self.zone != "UTC"):
            raise EventError(f"window '{self}' counts steps, which have no days and no zone; give dates")
        zone_of(self.zone)
        if not isinstance(self.start, int):
            first, last = self._ends()
            if last == first and isinstance(self.start, datetime) and self.start != self.end:
                raise EventError(f"window '{self}' lies where the clock is put forward; give times that it shows")
            if last <= first:
                raise EventError(f"window '{self}' ends before it begins; give both in order")
        elif self.end < self.start:  # type: ignore[operator]
            raise EventError(f"window '{self}' ends before it begins; give both in order")

    def spans(self, clock: Clock) -> list[Span]:
        """The steps that lie within, as runs in order, counted from time 0 of the clock.

        Raises
        ------
        EventError
            When there is none, the window begins before time 0 and is not clipped, or dates are named and the length of
            a step is unknown.
        """
        if isinstance(self.start, int):
            return [(self.start + clock.lead, int(self.end) + clock.lead)]  # type: ignore[arg-type]
        found: list[Span] = []
        for first, last in self._runs(clock):
            begin = found.pop()[0] if found and found[-1][1] >= first - 1 else first
            found.append((begin, last))
        if not found:
            raise EventError(
                f"window '{self}' holds no step from the first release on, at {clock.instant(clock.lead)}; "
                "give a later window"
            )
        return found

    def begins(self, clock: Clock) -> int:
        """Its first step, negative where it begins before the first release and is not clipped; 0 for none."""
        if isinstance(self.start, int) or self.clipped:
            return 0
        return min((first for first, last in self._stretches(clock) if first <= last), default=0)

    def is_past(self, clock: Clock) -> bool:
        """Whether it was over before the first release; a window of steps never was."""
        return not isinstance(self.start, int) and clock.span(*self._ends())[1] < clock.lead

    def days(self, clock: Clock) -> list[list[Span]]:
        """The same for each day alone, without days that hold no step.

        Raises
        ------
        EventError
            As `spans`, and for a window of steps.
        """
        if isinstance(self.start, int):
            raise EventError(f"window '{self}' counts steps, which have no days; give dates")
        found = [[run] for run in self._runs(clock, by_day=True)]
        if not found:
            self.spans(clock)
        return found

    def _runs(self, clock: Clock, by_day: bool = False) -> list[Span]:
        """The steps of each stretch of time, without stretches that hold none."""
        spans = [(first, last) for first, last in self._stretches(clock, by_day) if first <= last]
        if self.clipped:
            return [(max(first, clock.lead), last) for first, last in spans if clock.lead <= last]
        if spans and spans[-1][1] < 0:
            return []
        if spans and spans[0][0] < 0:
            raise EventError(
                f"window '{self}' begins before the first release, at {clock.instant(clock.lead)}, and nothing is said "
                "of the time before it unless the model begins at rest; write 'from the first release' behind the "
                "window to ask about that part alone"
            )
        return spans

    def _stretches(self, clock: Clock, by_day: bool = False) -> list[Span]:
        return [clock.span(*piece) for piece in self._pieces(by_day)]

    def _pieces(self, by_day: bool = False) -> list[tuple[datetime, datetime]]:
        """The stretches of time, in order."""
        start, end = self._ends()
        if self.daily is None and not by_day:
            return [(start, end)]
        daily, zone = self.daily or Daily("day"), zone_of(self.zone)
        day, pieces = start.astimezone(zone).date() - timedelta(days=1), []
        while day <= end.astimezone(zone).date():
            if day.weekday() in KINDS[daily.kind]:
                until = day + timedelta(days=daily.end <= daily.start)
                first, last = _moment(day, daily.start, zone), _moment(until, daily.end, zone, end=True)
                if first < start:  # a night belongs to the day on which it begins
                    first = start if isinstance(self.start, datetime) else last
                if first < end < last and isinstance(self.end, datetime):
                    last = end
                if first < min(last, end):
                    pieces.append((first, last))
            day += timedelta(days=1)
        return pieces

    def _ends(self) -> tuple[datetime, datetime]:
        start, end = instant_of(self.start, self.zone), instant_of(self.end, self.zone, end=True)
        if (end - start).days > _MOST_DAYS:
            raise EventError(f"window '{self}' is longer than a hundred years; give a shorter one")
        return start, end

    def __str__(self) -> str:
        if self.start == self.end and not isinstance(self.start, datetime):
            text = f"at {self.start}" if isinstance(self.start, int) else f"on {self.start}"
        else:
            text = f"between {written(self.start)} and {written(self.end)}"
        zone = "" if self.zone == "UTC" else f" in {self.zone}"
        clipped = " from the first release" if self.clipped else ""
        return text + ("" if self.daily is None else f" {self.daily}") + zone + clipped


def zone_of(name: str) -> tzinfo:
    """A time zone by its name.

    Raises
    ------
    EventError
        When it is unknown.
    """
    try:
        return time_zone(name)
    except ConfigurationError as problem:
        raise EventError(str(problem)) from None


def parse_bound(text: str) -> Bound:
    """A step, a day or an instant.

    Raises
    ------
    EventError
        When the text is neither.

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
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise EventError(f"{text!r} is no time; give 2024-03-04, 2024-03-04T09:30Z, or a step such as 12")


def parse_daily(kind: str, hours: str | None) -> Daily:
    """Hours of certain days, such as ``weekday`` and ``9-12:30``.

    Raises
    ------
    EventError
        When the days have no such name, or the hours are none.
    """
    if kind.lower() not in KINDS:
        raise EventError(f"days {kind!r} are unknown; give one of {', '.join(KINDS)}")
    if hours is None:
        return Daily(kind.lower())
    ends = [_minutes(part.strip()) for part in re.split("[-\u2013]", hours)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None or ends[0] == ends[1]:
        raise EventError(f"hours {hours!r} are none; give them as 9-12 or 22:30-6")
    return Daily(kind.lower(), ends[0], ends[1])


def _minutes(text: str) -> int | None:
    """Minutes after midnight of a time such as 9 or 22:30; None where it is none."""
    found = _HOUR.fullmatch(text)
    minutes = 60 * int(found[1]) + int(found[2] or 0) if found else -1
    return minutes if 0 <= minutes <= 1440 and (not found or int(found[2] or 0) < 60) else None


def instant_of(bound: Bound, zone: str, end: bool = False) -> datetime:
    """An instant, or the beginning (or the end) of a day, in UTC.

    Where the clock shows a time twice, it is the first as the beginning of a window and the second as its end; one that
    the clock skips is the moment at which it does.

    Raises
    ------
    EventError
        When the zone is unknown, or it is out of range.
    """
    try:
        if isinstance(bound, datetime):
            return bound.astimezone(UTC) if bound.tzinfo else _shown(bound, zone_of(zone), end)
        assert isinstance(bound, date), "steps are no instants"
        return _moment(bound + timedelta(days=end), 0, zone_of(zone))
    except OverflowError:
        raise EventError(f"time {bound} is out of range; give one in the years 2 to 9998") from None


def _moment(day: date, minutes: int, zone: tzinfo, end: bool = False) -> datetime:
    """A time of a day in a zone, in UTC: see `_shown`."""
    return _shown(datetime.combine(day, time(0)) + timedelta(minutes=minutes), zone, end)


def _shown(local: datetime, zone: tzinfo, end: bool) -> datetime:
    """From when on (``end``: until when) a window holds that begins (ends) as a zone's clock shows a time, in UTC.

    It begins when the clock first shows that time or a later one, and ends when it shows an earlier one no more:
    nothing that the clock shows within a window is lost where it is put forward or back.
    """
    first, last = (local.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if last < first:  # skipped: an offset of before gives a time after the change, and that of after one before it
        while first - last > _MICROSECOND:
            middle = last + (first - last) // 2
            if _reading(middle, zone) < local:
                last = middle
            else:
                first = middle
        return first
    return last if end and _reading(last - _MICROSECOND, zone) < local else first


def _reading(moment: datetime, zone: tzinfo) -> datetime:
    """What a zone's clock shows."""
    return moment.astimezone(zone).replace(tzinfo=None)


def _clock(minutes: int) -> str:
    return f"{minutes // 60}" + (f":{minutes % 60:02d}" if minutes % 60 else "")


def written(bound: Bound) -> str:
    """A bound as `parse_bound` reads it."""
    if not isinstance(bound, datetime):
        return str(bound)
    text = bound.isoformat(timespec="seconds" if bound.second else "minutes")
    return text.replace("+00:00", "Z")
