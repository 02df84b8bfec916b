"""Public classes of time, which select the transition matrix of each timestep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from math import gcd
from typing import Any, Literal, get_args

import numpy as np

from dphmm.arrays import FloatArray, IntArray, hash_content
from dphmm.errors import ConfigurationError
from dphmm.space.trajectory import parse_time_zone, round_to_microseconds
from dphmm.tables.values import shorten
from dphmm.validation import Seconds, check_arguments

# The named schemes of classes: hours of the day, or hours of weekdays and of weekends.
ClassScheme = Literal["hour", "weekday-hour"]

HOURS_PER_WEEK = 168
_HOUR_US = 3_600_000_000
_DAY_US = 86_400_000_000
_QUARTER_US = 900_000_000
_MINUTE_US = 60_000_000
# The weeks from 1970 to 2100. Every offset of a zone in this time lasts for a week at least.
_NUM_WEEKS = 6_783
# 1970 began on a Thursday, this many hours after a Monday.
_HOURS_SINCE_MONDAY = 72
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Calendars are defined up to this number of microseconds before and after 1970. Beyond it zones keep their offset.
_MAX_MICROSECONDS = 250_000_000_000_000_000
_CHUNK_STEPS = 1 << 16


@check_arguments
@dataclass(frozen=True)
class TimeClasses:
    """A public mapping of timesteps to classes of time.

    Each of the 168 hours of a week has a class. A step belongs to the hour in which it begins, in a time zone.

    Parameters
    ----------
    classes
        The class of each hour of the week from Monday 0:00 on: 168 integers, which use each of 0, 1, … at least once.
    step_seconds
        The timestep, in seconds.
    zone
        The time zone: a name such as ``Asia/Shanghai`` or ``UTC``, or an offset such as ``+08:00``.

    Raises
    ------
    ConfigurationError
        If the classes are invalid, or the zone is unknown.

    Examples
    --------
    >>> classes = TimeClasses.from_name("hour", 3600, "Asia/Shanghai")
    >>> classes.count, classes.get_class(1), classes.get_class(17)
    (24, 8, 0)
    """

    classes: tuple[int, ...]
    step_seconds: Seconds
    zone: str = "UTC"

    def __post_init__(self) -> None:
        round_to_microseconds(self.step_seconds, "step_seconds")
        hours: Any = self.classes
        classes = tuple(hours.tolist()) if isinstance(hours, np.ndarray) and hours.ndim == 1 else hours
        good = isinstance(classes, tuple) and len(classes) == HOURS_PER_WEEK
        good = good and all(isinstance(number, int) and not isinstance(number, bool) for number in classes)
        if not good or set(classes) != set(range(len(set(classes)))):
            raise ConfigurationError(
                f"classes must be {HOURS_PER_WEEK} integers, one for each hour of a week, numbered from 0 without "
                f"gaps, got {shorten(hours)}"
            )
        object.__setattr__(self, "classes", classes)
        parse_time_zone(self.zone)

    @classmethod
    def from_name(cls, name: ClassScheme, step_seconds: float, zone: str = "UTC") -> TimeClasses:
        """Return the classes of a named scheme.

        Parameters
        ----------
        name
            ``"hour"`` has 24 classes. ``"weekday-hour"`` has 24 for Monday to Friday and 24 for weekends.
        step_seconds
            The timestep, in seconds.
        zone
            The time zone.

        Returns
        -------
        TimeClasses
            The classes.

        Raises
        ------
        ConfigurationError
            If the name or the zone is unknown.
        """
        if not isinstance(name, str) or name not in get_args(ClassScheme):
            raise ConfigurationError(
                f"time_classes must be one of {', '.join(get_args(ClassScheme))}, got {shorten(name)}"
            )
        hours = range(HOURS_PER_WEEK)
        numbers = (h % 24 if name == "hour" or h < 120 else 24 + h % 24 for h in hours)
        return cls(tuple(numbers), step_seconds, zone)

    @property
    def count(self) -> int:
        """The number of classes."""
        return max(self.classes) + 1

    @cached_property
    def shares(self) -> FloatArray:
        """The share of each class in a week, ``(K,)``."""
        return np.bincount(self.classes) / HOURS_PER_WEEK

    @property
    def content_hash(self) -> str:
        """A hash of the classes, the step and the zone's name."""
        return hash_content(np.array(self.classes), self.step_seconds, self.zone)

    def get_name(self, number: int) -> str:
        """Return the name of a class: its days and hours.

        Parameters
        ----------
        number
            The index of the class.

        Returns
        -------
        str
            The name, such as ``every day 8h``.
        """
        hours = [hour for hour, own_class in enumerate(self.classes) if own_class == number]
        days = sorted({hour // 24 for hour in hours})
        times = sorted({hour % 24 for hour in hours})
        named = (
            "every day" if len(days) == 7 else "/".join(["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"][day] for day in days)
        )
        return f"{named} {','.join(str(time) for time in times)}h"

    def get_class(self, slot: int) -> int:
        """Return the class of the step that ends at a slot.

        Parameters
        ----------
        slot
            The slot at which the step ends; see `dphmm.Session.to_slot`.

        Returns
        -------
        int
            The index of the class.
        """
        local = (int(slot) - 1) * self._step + self._get_offset(int(slot) - 1)
        return self.classes[(local // _HOUR_US + _HOURS_SINCE_MONDAY) % HOURS_PER_WEEK]

    def get_classes(self, slots: IntArray) -> IntArray:
        """Return the classes of the steps that end at an array of slots.

        Parameters
        ----------
        slots
            Slots, an array of any shape.

        Returns
        -------
        IntArray
            The indices of their classes, of the same shape.
        """
        slots = np.asarray(slots, dtype=np.int64)
        if not slots.size:
            return np.zeros(slots.shape, dtype=np.int64)
        if int(slots.max()) * self._step > _MAX_MICROSECONDS or int(slots.min() - 1) * self._step < -_MAX_MICROSECONDS:
            return np.array([self.get_class(int(slot)) for slot in slots.ravel()]).reshape(slots.shape)
        start = (slots - 1) * self._step
        local = start + get_utc_offsets(start, self.zone)
        return np.asarray(self._table[(local // _HOUR_US + _HOURS_SINCE_MONDAY) % HOURS_PER_WEEK])

    def runs(self, after: int, steps: int) -> Iterator[tuple[int, int]]:
        """Iterate over the runs of equal classes in a sequence of steps.

        Parameters
        ----------
        after
            The slot before the first step.
        steps
            The number of steps.

        Yields
        ------
        tuple of int and int
            The index of a class, and the number of consecutive steps of this class.
        """
        done = 0
        now = -1
        length = 0
        while done < steps:
            count = min(_CHUNK_STEPS, steps - done)
            numbers = self.get_classes(after + done + np.arange(1, count + 1))
            starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
            for number, run in zip(numbers[starts].tolist(), np.diff(starts, append=count).tolist(), strict=True):
                if number == now:
                    length += run
                    continue
                if length:
                    yield now, length
                now = number
                length = run
            done += count
        if length:
            yield now, length

    def periods(self, after: int, steps: int) -> list[tuple[list[tuple[int, int]], int]]:
        """Split a sequence of steps into periods, and count consecutive equal ones.

        A period is a day, or a week if days differ. All periods between two changes of the UTC offset are equal.

        Parameters
        ----------
        after
            The slot before the first step.
        steps
            The number of steps.

        Returns
        -------
        list of (runs, times)
            The `runs` of each period, and the number of its consecutive repetitions.
        """
        days = self._days
        whole = self.period
        parts = list[tuple[list[tuple[int, int]], int]]()
        done = 0
        last = None
        while whole and done + whole <= steps:
            since = after + done
            # Offsets are checked once a day: no zone changes its offset and back within a day.
            period_offsets = {self._get_offset(since + k * whole // days) for k in range(days + 1)}
            offset = period_offsets.pop() if len(period_offsets) == 1 else None
            if offset is not None and offset == last:
                parts[-1] = parts[-1][0], parts[-1][1] + 1
            else:
                parts.append((list(self.runs(since, whole)), 1))
            done = done + whole
            last = offset
        return parts + [(list(self.runs(after + done, steps - done)), 1)] * (done < steps)

    def with_fixed_offsets(self) -> list[TimeClasses]:
        """Return the classes at each UTC offset of the zone from 1970 on.

        The results have no changes of the clocks. Offsets at which slots have equal classes up to a shift are returned
        once.

        Returns
        -------
        list of TimeClasses
            The classes at fixed offsets.
        """
        # A shift by slots moves local times by multiples of `shift` within a week. The hours that slots begin in differ
        # between two offsets within a shift only if a multiple of `resolution` lies between them.
        shift = gcd(self._step, 7 * _DAY_US)
        resolution = gcd(shift, _HOUR_US)
        offsets = get_utc_offsets(np.arange(_NUM_WEEKS) * 7 * _DAY_US, self.zone)
        # Only Liberia, until 1972, had an offset with seconds.
        minutes = list(dict.fromkeys((offsets // _MINUTE_US).tolist()))
        by_phase = {offset * _MINUTE_US % shift // resolution: offset for offset in reversed(minutes)}
        return [
            replace(self, zone=f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02}:{abs(offset) % 60:02}")
            for offset in by_phase.values()
        ]

    @property
    def period(self) -> int:
        """The steps of a day, or of a week if days differ. 0 if a week has no integer number."""
        return 0 if self._days * _DAY_US % self._step else self._days * _DAY_US // self._step

    @property
    def _days(self) -> int:
        return 1 if self.classes[:24] * 7 == self.classes and _DAY_US % self._step == 0 else 7

    def _get_offset(self, slot: int) -> int:
        """Return the UTC offset at a slot, where the step that ends at the next slot begins."""
        return _get_zone_offset(
            self.zone, min(max(slot * self._step, -_MAX_MICROSECONDS), _MAX_MICROSECONDS) // _QUARTER_US
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values, which `from_dict` reads.

        Returns
        -------
        dict
            The fields by name.
        """
        return {"classes": list(self.classes), "step_seconds": self.step_seconds, "zone": self.zone}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TimeClasses:
        """Return the classes from the fields that `to_dict` returned.

        Parameters
        ----------
        values
            The fields.

        Returns
        -------
        TimeClasses
            The classes.

        Raises
        ------
        ConfigurationError
            If a field is missing or invalid.
        """
        if isinstance(values, Mapping) and set(values) == {"classes", "step_seconds", "zone"}:
            classes = values["classes"]
            step = values["step_seconds"]
            zone = values["zone"]
            good = isinstance(classes, list) and isinstance(zone, str) and len(zone) < 100
            if good and isinstance(step, int | float) and not isinstance(step, bool):
                return cls(tuple(classes), step, zone)
        raise ConfigurationError("the classes of time are invalid: learn the model again")

    @cached_property
    def _step(self) -> int:
        return round_to_microseconds(self.step_seconds, "step_seconds")

    @cached_property
    def _table(self) -> IntArray:
        return np.array(self.classes, dtype=np.int64)


def get_utc_offsets(instants: IntArray, zone: str) -> IntArray:
    """Return the UTC offsets of a time zone, in microseconds.

    The offset is computed once for a day on which it does not change, otherwise for each quarter of an hour.

    Parameters
    ----------
    instants
        Microseconds since 1970, UTC.
    zone
        The time zone.

    Returns
    -------
    IntArray
        The offsets, with the shape of ``instants``.
    """
    days, at = np.unique(instants // _DAY_US, return_inverse=True)
    ends = [[_get_zone_offset(zone, (day + end) * _DAY_US // _QUARTER_US) for end in (0, 1)] for day in days.tolist()]
    both = np.array(ends, dtype=np.int64).reshape(-1, 2)
    values = both[at.reshape(instants.shape), 0]
    changing = (both[:, 0] != both[:, 1])[at.reshape(instants.shape)]
    quarters, at = np.unique(instants[changing] // _QUARTER_US, return_inverse=True)
    if len(quarters):
        values[changing] = np.array([_get_zone_offset(zone, quarter) for quarter in quarters.tolist()])[at]
    return np.asarray(values)


@lru_cache(maxsize=1 << 16)
def _get_zone_offset(zone: str, quarter: int) -> int:
    """Return the UTC offset of a zone, in microseconds, at a quarter of an hour since 1970."""
    instant = (
        _EPOCH
        + timedelta(microseconds=min(max(quarter * _QUARTER_US, -_MAX_MICROSECONDS_BEFORE_1970), _MAX_MICROSECONDS))
    ).astimezone(parse_time_zone(zone))
    offset = instant.utcoffset()
    assert offset is not None, "a zone has an offset"
    return offset // timedelta(microseconds=1)


# Microseconds from about the year 5 to 1970.
_MAX_MICROSECONDS_BEFORE_1970 = 62_000_000_000_000_000
