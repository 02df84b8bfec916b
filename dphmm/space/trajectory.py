"""The true places of one person over time, the same on a fixed clock, and as a device made them; time zones by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_instants, frozen, runs
from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError, TimeOrderError
from dphmm.tables.values import one_line, shorten

_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """A time zone by its name, or by an offset such as ``+08:00``.

    Raises
    ------
    ConfigurationError
        When it is unknown.
    """
    if name == "UTC":
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset and int(offset[2]) < 24 and int(offset[3]) < 60:
        away = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-away if offset[1] == "-" else away)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"time zone {shorten(name)} is unknown; give a name such as Europe/Berlin, or an offset such as +08:00 "
            "(where a system has no names: pip install tzdata)"
        ) from None


TimeArray = npt.NDArray[np.datetime64]
"""Instants as ``datetime64[us]``, UTC."""

EARLIEST = np.datetime64("0001-01-01", "us")
LATEST = np.datetime64("9999-12-31T23:59:59.999999", "us")
"""The range of Python's own `datetime`, so that every instant can be written by every library."""
LATEST_SECOND = int(LATEST.astype("datetime64[s]").astype(np.int64))
"""Seconds since 1970 up to `LATEST`, whole."""

_MICROSECONDS = 1_000_000
_LONGEST = int(LATEST.astype(np.int64)) - int(EARLIEST.astype(np.int64))


def check_places(latitude: FloatArray, longitude: FloatArray, what: str) -> None:
    """Refuse coordinates that are not on the Earth.

    Parameters
    ----------
    latitude, longitude
        Degrees, shape ``(n,)`` each.
    what
        What the coordinates belong to, for the message.

    Raises
    ------
    CoordinateError
        When the shapes differ, a number is NaN or infinite, a latitude lies outside -90 to 90 or a longitude outside
        -180 to 180.
    """
    if latitude.ndim != 1 or latitude.shape != longitude.shape:
        raise CoordinateError(
            f"{what}: latitudes have shape {latitude.shape}, longitudes {longitude.shape}; give one of each per time"
        )
    wrong = np.flatnonzero(~((np.abs(latitude) <= 90.0) & (np.abs(longitude) <= 180.0)))  # NaN compares false
    if wrong.size:
        row = int(wrong[0])
        raise CoordinateError(
            f"{what}: place {row} is latitude {float(latitude[row])!r}, longitude {float(longitude[row])!r}; "
            "latitudes lie in -90 to 90 and longitudes in -180 to 180"
        )


def microseconds(seconds: float, name: str) -> int:
    """A duration in whole microseconds.

    Raises
    ------
    ConfigurationError
        When it is not finite, not at least one microsecond, or longer than from the year 1 to the year 9999.
    """
    value = float(seconds)
    if not (np.isfinite(value) and value * _MICROSECONDS >= 0.5):
        raise ConfigurationError(f"{name} is {seconds} seconds; give a positive, finite number")
    if value * _MICROSECONDS > _LONGEST:
        raise ConfigurationError(
            f"{name} is {seconds} seconds, longer than all times that there are; give a shorter one"
        )
    return round(value * _MICROSECONDS)


@checked
@dataclass(frozen=True, eq=False)
class Trajectory:
    """Where one person was, at instants that strictly increase.

    Nothing but time and place is held: what a file says of altitude, speed or course never enters the object, and so
    cannot leave it.

    Parameters
    ----------
    user
        Whose places these are; not empty.
    times
        Shape ``(n,)``, ``n >= 1``, ``datetime64`` in UTC, each later than the one before. Kept to the microsecond.
    latitude, longitude
        Shape ``(n,)`` each, WGS 84 degrees in -90 to 90 and -180 to 180.

    Raises
    ------
    TimeOrderError
        When a time is missing (NaT), outside the years 1 to 9999, or not later than its predecessor. The readers sort,
        and settle points that share a timestamp, before they make a trajectory.
    CoordinateError
        When a coordinate is NaN, infinite or impossible, or their number is not that of the times.
    InvalidInputError
        When the user is no text or empty, or there is no place at all.

    Notes
    -----
    The arrays are copies that cannot be written to. Two trajectories are equal when user and arrays are.
    """

    user: str
    times: TimeArray
    latitude: FloatArray
    longitude: FloatArray

    def __post_init__(self) -> None:
        what = f"trajectory of user {self.user}"
        try:
            with np.errstate(invalid="ignore"):
                given = np.asarray(self.times)
                times = as_instants(given) if given.dtype.kind == "M" else np.asarray(given, dtype="datetime64[us]")
        except (TypeError, ValueError, OverflowError) as problem:
            raise TimeOrderError(f"{what}: times are none ({one_line(problem)}); give numpy.datetime64") from None
        object.__setattr__(self, "times", frozen(times))
        _check_times(self.times, what)
        _settle(self, self.times.shape[0], what)

    def __len__(self) -> int:
        return int(self.times.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        arrays = ("times", "latitude", "longitude")
        return self.user == other.user and all(np.array_equal(getattr(self, a), getattr(other, a)) for a in arrays)

    @checked
    def split(self, gap_seconds: float) -> tuple[Trajectory, ...]:
        """Cut wherever more than ``gap_seconds`` pass from one point to the next.

        Every point lies in exactly one piece, in order; a trajectory without such a gap comes back as the only piece.

        Parameters
        ----------
        gap_seconds
            The longest time between neighbours that is no gap; a positive, finite number of seconds.

        Returns
        -------
        tuple of Trajectory
            The pieces in order, at least one.

        Raises
        ------
        ConfigurationError
            When the gap is not a positive, finite number of seconds.
        """
        gap = np.timedelta64(microseconds(gap_seconds, "gap"), "us")
        return _cut(self, np.diff(self.times) > gap)

    @checked
    def between(self, start: np.datetime64 | str, end: np.datetime64 | str) -> Trajectory | None:
        """The part with ``start <= time < end``, or None where there is none.

        Parameters
        ----------
        start, end
            Instants in UTC, as ``numpy.datetime64`` or ISO 8601 text.

        Returns
        -------
        Trajectory or None
            The places from `start` on and before `end`; None where there are none.
        """
        first, last = np.searchsorted(self.times, np.array([start, end], dtype="datetime64[us]"))
        return _part(self, slice(first, last)) if first < last else None

    @checked
    def resample(self, step_seconds: float) -> SlottedTrajectory:
        """The trajectory on a fixed clock.

        Slot ``k`` is the instant ``k * step`` after 1970-01-01T00:00:00Z. It takes the last point in the step that
        ends there, that is, with ``(k - 1) * step < time <= k * step``. No later point is looked at, so a stream can
        be resampled as it comes, and nothing is interpolated: a slot whose step holds no point does not occur.
        Because the clock is the same for everyone, equal slots of two people are equal times.

        Parameters
        ----------
        step_seconds
            The step; a positive number of seconds, taken to the microsecond.

        Returns
        -------
        SlottedTrajectory
            The last place of each step that has one, by slot.

        Raises
        ------
        ConfigurationError
            When the step is not a positive, finite number of seconds.
        """
        step = microseconds(step_seconds, "step")
        slots = -(-self.times.astype(np.int64) // step)
        last = np.flatnonzero(np.append(slots[1:] != slots[:-1], True))
        return SlottedTrajectory(self.user, step_seconds, slots[last], self.latitude[last], self.longitude[last])


def _check_times(times: TimeArray, what: str) -> None:
    if times.ndim != 1:
        raise TimeOrderError(f"{what}: times have shape {times.shape}; give one dimension")
    unknown = np.flatnonzero(~((times >= EARLIEST) & (times <= LATEST)))  # NaT compares false
    if unknown.size:
        row = int(unknown[0])
        raise TimeOrderError(f"{what}: time {row} is {times[row]}; give a time in the years 1 to 9999")
    back = np.flatnonzero(times[1:] <= times[:-1])
    if back.size:
        row = int(back[0]) + 1
        raise TimeOrderError(
            f"{what}: time {row} is {times[row]}, not later than {times[row - 1]} before it; "
            "sort the points and keep one per time"
        )


@checked
@dataclass(frozen=True, eq=False)
class SlottedTrajectory:
    """A trajectory on a clock of equal steps, with the empty slots left out.

    Parameters
    ----------
    user
        Whose places these are; not empty.
    step_seconds
        The length of a step, positive.
    slots
        Shape ``(n,)``, integers that strictly increase: slot ``k`` is ``k`` steps after 1970-01-01T00:00:00Z. A jump
        from ``k`` to ``k + j`` says that ``j`` steps of the clock passed between the two places.
    latitude, longitude
        Shape ``(n,)`` each, WGS 84 degrees.

    Raises
    ------
    TimeOrderError
        When the slots are no integers, do not increase, or lie outside the years 1 to 9999.
    CoordinateError, InvalidInputError, ConfigurationError
        As for `Trajectory`; the last for a step that is not positive and finite.
    """

    user: str
    step_seconds: float
    slots: IntArray
    latitude: FloatArray
    longitude: FloatArray

    def __post_init__(self) -> None:
        what = f"resampled trajectory of user {self.user}"
        given = np.asarray(self.slots)
        if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
            raise TimeOrderError(
                f"{what}: slots are {given.dtype} of shape {given.shape}; give integers, one per place"
            )
        step = microseconds(self.step_seconds, "step")
        object.__setattr__(self, "slots", frozen(given.astype(np.int64)))
        furthest = int(np.abs(given).max(initial=0))
        if furthest > int(LATEST.astype(np.int64)) // step + 1:
            raise TimeOrderError(f"{what}: slot {furthest} lies beyond the year 9999; check the step")
        back = np.flatnonzero(self.steps <= 0)
        if back.size:
            row = int(back[0]) + 1
            raise TimeOrderError(f"{what}: slot {row} is {self.slots[row]} after {self.slots[row - 1]}; slots increase")
        _settle(self, given.shape[0], what)

    def __len__(self) -> int:
        return int(self.slots.shape[0])

    @property
    def times(self) -> TimeArray:
        """The instants of the slots, shape ``(n,)``, ``datetime64[us]`` in UTC."""
        return (self.slots * microseconds(self.step_seconds, "step")).astype("datetime64[us]")

    @property
    def steps(self) -> IntArray:
        """How many steps of the clock lie between neighbours, shape ``(n - 1,)``, each at least one."""
        return np.diff(self.slots)

    @checked
    def split(self, gap_seconds: float) -> tuple[SlottedTrajectory, ...]:
        """Cut wherever the slots of two neighbours lie more than ``gap_seconds`` apart.

        Parameters
        ----------
        gap_seconds
            The longest time between neighbours that is no gap; a positive, finite number of seconds.

        Returns
        -------
        tuple of SlottedTrajectory
            The pieces in order, at least one.

        Raises
        ------
        ConfigurationError
            When the gap is not a positive, finite number of seconds.
        """
        gap = microseconds(gap_seconds, "gap")
        return _cut(self, self.steps > gap // microseconds(self.step_seconds, "step"))


PathT = TypeVar("PathT", Trajectory, SlottedTrajectory)


def _settle(path: PathT, count: int, what: str) -> None:
    """Refuse a user or places that cannot be, and make the coordinates copies that cannot be written to."""
    if not isinstance(path.user, str) or not path.user:
        raise InvalidInputError(f"user is {path.user!r}; give a name as a non-empty text")
    if count == 0:
        raise InvalidInputError(f"{what} has no places; a trajectory holds one or more")
    for name in ("latitude", "longitude"):
        object.__setattr__(path, name, frozen(np.asarray(getattr(path, name), dtype=np.float64)))
    check_places(path.latitude, path.longitude, what)
    if path.latitude.shape[0] != count:
        raise CoordinateError(f"{what}: {count} times but {path.latitude.shape[0]} places; give one place per time")


def _cut(path: PathT, after: BoolArray) -> tuple[PathT, ...]:
    """The pieces between the points after which it is cut."""
    edges = [0, *(np.flatnonzero(after) + 1).tolist(), len(path)]
    return tuple(_part(path, slice(first, last)) for first, last in pairwise(edges))


def _part(path: PathT, part: slice) -> PathT:
    arrays: Any = {name: values[part] for name, values in vars(path).items() if isinstance(values, np.ndarray)}
    return replace(path, **arrays)


SENSORS = ("cad", "power", "speed", "course", "hr", "atemp")
"""What is kept of a point besides its place: cadence, power, speed, course, heart rate, temperature of the air."""


@dataclass(frozen=True, eq=False)
class Segment:
    """Points without an interruption.

    Parameters
    ----------
    latitude, longitude
        ``(n,)``: degrees.
    times
        ``(n,)``: datetime64 in UTC, NaT where it is not known.
    elevation
        ``(n,)``: metres, NaN where it is not known.
    sensors
        Some of `SENSORS` → ``(n,)`` numbers, NaN where there is none.
    """

    latitude: FloatArray
    longitude: FloatArray
    times: npt.NDArray[np.datetime64]
    elevation: FloatArray
    sensors: dict[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.latitude)

    def part(self, which: slice) -> Segment:
        """Some points in a row.

        Parameters
        ----------
        which
            Which of them.

        Returns
        -------
        Segment
            These alone.
        """
        sensors = {name: values[which] for name, values in self.sensors.items()}
        return Segment(self.latitude[which], self.longitude[which], self.times[which], self.elevation[which], sensors)

    @classmethod
    def joined(cls, several: Sequence[Segment]) -> Segment:
        """All points of some segments as one, with the sensors that any of them has.

        Parameters
        ----------
        several
            At least one.

        Returns
        -------
        Segment
            Their points in a row.
        """
        names = ("latitude", "longitude", "times", "elevation")
        columns = {name: np.concatenate([getattr(one, name) for one in several]) for name in names}
        sensors = {
            name: np.concatenate([one.sensors.get(name, np.full(len(one), np.nan)) for one in several])
            for name in dict.fromkeys(name for one in several for name in one.sensors)
        }
        return cls(**columns, sensors=sensors)

    def runs(self, chosen: BoolArray) -> list[Segment]:
        """The stretches of chosen points.

        Parameters
        ----------
        chosen
            ``(n,)``: which.

        Returns
        -------
        list of Segment
            One for each stretch, in order.
        """
        ends = runs(chosen)
        return [self.part(slice(first, last + 1)) for first, last in zip(ends[::2], ends[1::2], strict=True)]


@dataclass(frozen=True)
class Recording:
    """What one file recorded.

    Parameters
    ----------
    segments
        In the order of the file.
    activity
        What the file calls the kind of activity, such as ``"cycling"``; None where it does not.
    left_out
        What else stands in the file, by name, and is not held here.
    """

    segments: tuple[Segment, ...]
    activity: str | None = None
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.segments))
