"""Public classes of time: which transition matrix holds at which step of the clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, content_hash
from dphmm.errors import ConfigurationError
from dphmm.space.trajectory import microseconds, time_zone
from dphmm.tables.values import shorten

By = Literal["hours", "weekday-hours"]
"""The classes that have a name: the hours of a day, or those of working days and of weekends."""

WEEK = 168
_HOUR, _DAY = 3_600_000_000, 86_400_000_000
_QUARTER = 900_000_000
_MONDAY = 72
"""1970 began on a Thursday, this many hours after a Monday."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOST = 250_000_000_000_000_000
"""Microseconds before and after 1970 beyond which no calendar goes; zones keep the offset that they have there."""
_CHUNK = 1 << 16


@checked
@dataclass(frozen=True)
class TimeClasses:
    """A public function of the clock: the class of every step.

    A step that ends at an instant belongs to the hour that it begins in, in a time zone; each of the 168 hours of a
    week has a class.

    Parameters
    ----------
    classes
        The class of each hour of the week from Monday 0:00 on: 168 whole numbers that use each of 0, 1, … once or more.
    step_seconds
        How long a step is.
    zone
        The time zone: a name such as ``Asia/Shanghai``, ``UTC``, or an offset such as ``+08:00``.

    Raises
    ------
    ConfigurationError
        When the classes are others, or the zone is unknown.

    Examples
    --------
    >>> classes = TimeClasses.of("hours", 3600, "Asia/Shanghai")
    >>> classes.count, classes.class_of(1), classes.class_of(17)
    (24, 8, 0)
    """

    classes: tuple[int, ...]
    step_seconds: float
    zone: str = "UTC"

    def __post_init__(self) -> None:
        microseconds(self.step_seconds, "step_seconds")
        given: Any = self.classes
        classes = tuple(given.tolist()) if isinstance(given, np.ndarray) and given.ndim == 1 else given
        good = isinstance(classes, tuple) and len(classes) == WEEK
        good = good and all(isinstance(one, int) and not isinstance(one, bool) for one in classes)
        if not good or set(classes) != set(range(len(set(classes)))):
            raise ConfigurationError(
                f"the classes of time are {shorten(given)}; give one for each of the {WEEK} hours of a week, numbered "
                "from 0 without gaps"
            )
        object.__setattr__(self, "classes", classes)
        time_zone(self.zone)

    @classmethod
    def of(cls, by: By, step_seconds: float, zone: str = "UTC") -> TimeClasses:
        """The classes of a name: ``"hours"``, 24; or ``"weekday-hours"``, 24 from Monday to Friday and 24 for weekends.

        Parameters
        ----------
        by
            The name.
        step_seconds
            How long a step is.
        zone
            The time zone.

        Returns
        -------
        TimeClasses
            The classes.

        Raises
        ------
        ConfigurationError
            When there is no such name, or the zone is unknown.
        """
        if not isinstance(by, str) or by not in get_args(By):
            raise ConfigurationError(
                f"classes of time {shorten(by)} are unknown; give one of {', '.join(get_args(By))}"
            )
        hours = range(WEEK)
        found = (h % 24 if by == "hours" or h < 120 else 24 + h % 24 for h in hours)
        return cls(tuple(found), step_seconds, zone)

    @property
    def count(self) -> int:
        """How many classes there are."""
        return max(self.classes) + 1

    @cached_property
    def shares(self) -> FloatArray:
        """The share of a week that each class has, ``(K,)``."""
        return np.bincount(self.classes) / WEEK

    @property
    def content_hash(self) -> str:
        """A hash of the classes, the step and the zone's name."""
        return content_hash(np.array(self.classes), self.step_seconds, self.zone)

    def name_of(self, number: int) -> str:
        """What a class is called: its hours of the week, as far as they are short.

        Parameters
        ----------
        number
            The number of a class.

        Returns
        -------
        str
            The name, such as ``every day 8h``.
        """
        hours = [hour for hour, one in enumerate(self.classes) if one == number]
        days = sorted({hour // 24 for hour in hours})
        times = sorted({hour % 24 for hour in hours})
        named = (
            "every day" if len(days) == 7 else "/".join(["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"][day] for day in days)
        )
        return f"{named} {','.join(str(time) for time in times)}h"

    def class_of(self, slot: int) -> int:
        """The class of the step that ends at slot number ``slot`` (see `dphmm.Session.slot_of`).

        Parameters
        ----------
        slot
            The slot at which the step ends.

        Returns
        -------
        int
            The number of the class.
        """
        local = (int(slot) - 1) * self._step + self._offset_at(int(slot) - 1)
        return self.classes[(local // _HOUR + _MONDAY) % WEEK]

    def classes_of(self, slots: IntArray) -> IntArray:
        """The same for an array of slots.

        Parameters
        ----------
        slots
            Slots, an array of any shape.

        Returns
        -------
        IntArray
            The numbers of their classes, of the same shape.
        """
        slots = np.asarray(slots, dtype=np.int64)
        if not slots.size:
            return np.zeros(slots.shape, dtype=np.int64)
        if int(slots.max()) * self._step > _MOST or int(slots.min() - 1) * self._step < -_MOST:
            return np.array([self.class_of(int(slot)) for slot in slots.ravel()]).reshape(slots.shape)
        start = (slots - 1) * self._step
        local = start + offsets(start, self.zone)
        return np.asarray(self._table[(local // _HOUR + _MONDAY) % WEEK])

    def runs(self, after: int, steps: int) -> Iterator[tuple[int, int]]:
        """The classes of the steps after slot ``after``, as runs of equal ones: class and length, in all ``steps``.

        Parameters
        ----------
        after
            The slot before the first step.
        steps
            How many steps.

        Yields
        ------
        tuple of int and int
            The number of a class, and how many steps in a row are of it.
        """
        done, now, length = 0, -1, 0
        while done < steps:
            count = min(_CHUNK, steps - done)
            found = self.classes_of(after + done + np.arange(1, count + 1))
            starts = np.concatenate([[0], np.flatnonzero(np.diff(found)) + 1])
            for number, run in zip(found[starts].tolist(), np.diff(starts, append=count).tolist(), strict=True):
                if number == now:
                    length += run
                    continue
                if length:
                    yield now, length
                now, length = number, run
            done += count
        if length:
            yield now, length

    def periods(self, after: int, steps: int) -> list[tuple[list[tuple[int, int]], int]]:
        """The steps after slot ``after`` as periods that come one after another, of which many are equal.

        A period is a day, or a week where days differ; between changes of the clock all are equal.

        Parameters
        ----------
        after
            The slot before the first step.
        steps
            How many steps.

        Returns
        -------
        list of (runs, times)
            The `runs` of each period, and how often it comes in a row; in all ``steps`` steps.
        """
        days = 1 if self.classes[:24] * 7 == self.classes and _DAY % self._step == 0 else 7
        whole = 0 if days * _DAY % self._step else days * _DAY // self._step
        found, done, last = list[tuple[list[tuple[int, int]], int]](), 0, None
        while whole and done + whole <= steps:
            since = after + done
            # Offsets are looked at day by day: no zone changes its clock and back within one.
            offsets = {self._offset_at(since + k * whole // days) for k in range(days + 1)}
            offset = offsets.pop() if len(offsets) == 1 else None
            if offset is not None and offset == last:
                found[-1] = found[-1][0], found[-1][1] + 1
            else:
                found.append((list(self.runs(since, whole)), 1))
            done, last = done + whole, offset
        return found + [(list(self.runs(after + done, steps - done)), 1)] * (done < steps)

    def _offset_at(self, slot: int) -> int:
        """The zone's offset where a step begins that ends at the next slot."""
        return _offset(self.zone, min(max(slot * self._step, -_MOST), _MOST) // _QUARTER)

    def to_dict(self) -> dict[str, Any]:
        """The classes as plain JSON values, from which `from_dict` makes it again.

        Returns
        -------
        dict
            The fields by name.
        """
        return {"classes": list(self.classes), "step_seconds": self.step_seconds, "zone": self.zone}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TimeClasses:
        """The classes that `to_dict` wrote.

        Parameters
        ----------
        values
            What `to_dict` wrote.

        Returns
        -------
        TimeClasses
            The classes.

        Raises
        ------
        ConfigurationError
            When the values are others.
        """
        if isinstance(values, Mapping) and set(values) == {"classes", "step_seconds", "zone"}:
            classes, step, zone = values["classes"], values["step_seconds"], values["zone"]
            good = isinstance(classes, list) and isinstance(zone, str) and len(zone) < 100
            if good and isinstance(step, int | float) and not isinstance(step, bool):
                return cls(tuple(classes), step, zone)
        raise ConfigurationError("the classes of time are written in another way; make the model anew")

    @cached_property
    def _step(self) -> int:
        return microseconds(self.step_seconds, "step_seconds")

    @cached_property
    def _table(self) -> IntArray:
        return np.array(self.classes, dtype=np.int64)


def offsets(instants: IntArray, zone: str) -> IntArray:
    """Offsets of a zone from UTC, microseconds: one a day where its ends agree, otherwise one a quarter of an hour.

    Parameters
    ----------
    instants
        Microseconds since 1970, UTC.
    zone
        The time zone.

    Returns
    -------
    IntArray
        Of the instants' shape.
    """
    days, at = np.unique(instants // _DAY, return_inverse=True)
    ends = [[_offset(zone, (day + end) * _DAY // _QUARTER) for end in (0, 1)] for day in days.tolist()]
    both = np.array(ends, dtype=np.int64).reshape(-1, 2)
    found = both[at.reshape(instants.shape), 0]
    changing = (both[:, 0] != both[:, 1])[at.reshape(instants.shape)]
    quarters, at = np.unique(instants[changing] // _QUARTER, return_inverse=True)
    if len(quarters):
        found[changing] = np.array([_offset(zone, quarter) for quarter in quarters.tolist()])[at]
    return np.asarray(found)


@lru_cache(maxsize=1 << 16)
def _offset(zone: str, quarter: int) -> int:
    """The offset of a zone from UTC, microseconds, at a quarter of an hour, counted from 1970."""
    instant = (_EPOCH + timedelta(microseconds=min(max(quarter * _QUARTER, -_EARLIEST), _MOST))).astimezone(
        time_zone(zone)
    )
    offset = instant.utcoffset()
    assert offset is not None, "a zone has an offset"
    return offset // timedelta(microseconds=1)


_EARLIEST = 62_000_000_000_000_000
"""Microseconds from about the year 5 to 1970."""
