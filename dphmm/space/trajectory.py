"""Trajectories of one user, resampled trajectories, recordings of devices, and time zones."""

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

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_instants, copy_read_only
from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError, TimeOrderError
from dphmm.space.fix_quality import select_most_accurate
from dphmm.tables.values import shorten, shorten_message
from dphmm.validation import Seconds, check_arguments

_OFFSET = re.compile(r"([+-])(\d{2}):(\d{2})")


@lru_cache(maxsize=64)
def parse_time_zone(name: str) -> tzinfo:
    """Return a time zone by its name, or by an offset such as ``+08:00``.

    Raises
    ------
    ConfigurationError
        If it is unknown.
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
            f"time zone must be a name such as Europe/Berlin, or an offset such as +08:00, got {shorten(name)} "
            "(on a system without time zone names: pip install tzdata)"
        ) from None


# Instants as ``datetime64[us]``, UTC.
TimeArray = npt.NDArray[np.datetime64]

EARLIEST = np.datetime64("0001-01-01", "us")
# The range of Python's own `datetime`, so that every instant can be written by every library.
LATEST = np.datetime64("9999-12-31T23:59:59.999999", "us")
# The seconds from 1970 to `LATEST`, rounded down.
LATEST_SECOND = int(LATEST.astype("datetime64[s]").astype(np.int64))

_MICROSECONDS = 1_000_000
_MAX_MICROSECONDS = int(LATEST.astype(np.int64)) - int(EARLIEST.astype(np.int64))


def check_places(latitude: FloatArray, longitude: FloatArray, what: str) -> None:
    """Raise an error for coordinates that are out of range.

    Parameters
    ----------
    latitude, longitude
        Degrees, shape ``(n,)`` each.
    what
        The owner of the coordinates, for the message.

    Raises
    ------
    CoordinateError
        If the shapes differ, a number is NaN or infinite, a latitude lies outside -90 to 90 or a longitude outside
        -180 to 180.
    """
    if latitude.ndim != 1 or latitude.shape != longitude.shape:
        raise CoordinateError(
            f"{what}: latitude and longitude must have the same shape (n,), got {latitude.shape} and {longitude.shape}"
        )
    wrong = np.flatnonzero(~((np.abs(latitude) <= 90.0) & (np.abs(longitude) <= 180.0)))  # NaN compares false
    if wrong.size:
        row = int(wrong[0])
        raise CoordinateError(
            f"{what}: latitude must be in [-90, 90] and longitude in [-180, 180], "
            f"got {float(latitude[row])!r} and {float(longitude[row])!r} at index {row}"
        )


def round_to_microseconds(seconds: float, name: str) -> int:
    """Return a duration in integer microseconds.

    Raises
    ------
    ConfigurationError
        If it is not finite, not at least one microsecond, or longer than from the year 1 to the year 9999.
    """
    value = float(seconds)
    if not (np.isfinite(value) and value * _MICROSECONDS >= 1):
        raise ConfigurationError(f"{name} must be a finite number of seconds, at least 0.000001, got {seconds}")
    if value * _MICROSECONDS > _MAX_MICROSECONDS:
        raise ConfigurationError(f"{name} must be shorter than the years 1 to 9999, got {seconds} seconds")
    return round(value * _MICROSECONDS)


@check_arguments
@dataclass(frozen=True, eq=False)
class Trajectory:
    """The locations of one user at strictly increasing times.

    A trajectory contains only times, locations and their accuracies. Altitude, speed or course of a file never enter
    the object, and therefore cannot be published from it.

    Parameters
    ----------
    user
        The user's name; not empty.
    times
        Shape ``(n,)``, ``n >= 1``, ``datetime64`` in UTC, strictly increasing. Truncated to microseconds.
    latitude, longitude
        Shape ``(n,)`` each, WGS 84 degrees in -90 to 90 and -180 to 180.
    accuracy_m
        Shape ``(n,)``, or None: the accuracy radius of each point in metres, NaN if unstated. It only determines which
        point of a timestep `resample` uses, and two trajectories that differ in it alone are different.

    Raises
    ------
    TimeOrderError
        If a time is missing (NaT), outside the years 1 to 9999, or not later than its predecessor. The readers sort
        points and merge those with the same timestamp before they build a trajectory.
    CoordinateError
        If a coordinate is NaN, infinite or out of range, or there are more or fewer than times.
    InvalidInputError
        If the user is not a non-empty string, or there is no location.

    Notes
    -----
    The arrays are read-only copies. Two trajectories are equal if user and arrays are equal.
    """

    user: str
    times: TimeArray
    latitude: FloatArray
    longitude: FloatArray
    accuracy_m: FloatArray | None = None

    def __post_init__(self) -> None:
        what = f"trajectory of user {self.user}"
        try:
            with np.errstate(invalid="ignore"):
                values = np.asarray(self.times)
                if values.size and values.dtype.kind in "biufm":  # NumPy would read seconds as microseconds
                    raise TypeError(f"they are {values.dtype}")
                times = as_instants(values) if values.dtype.kind == "M" else np.asarray(values, dtype="datetime64[us]")
        except (TypeError, ValueError, OverflowError) as problem:
            raise TimeOrderError(f"{what}: times must be numpy.datetime64 ({shorten_message(problem)})") from None
        object.__setattr__(self, "times", copy_read_only(times))
        _check_times(self.times, what)
        _validate_path(self, self.times.shape[0], what)
        if self.accuracy_m is not None:
            object.__setattr__(self, "accuracy_m", copy_read_only(np.asarray(self.accuracy_m, dtype=np.float64)))
            if self.accuracy_m.shape != self.latitude.shape:
                raise InvalidInputError(
                    f"{what}: accuracy_m must have one entry for each location, got shape {self.accuracy_m.shape}"
                )

    def __len__(self) -> int:
        return int(self.times.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        arrays = ("times", "latitude", "longitude")
        same = self.user == other.user and all(np.array_equal(getattr(self, a), getattr(other, a)) for a in arrays)
        if self.accuracy_m is None or other.accuracy_m is None:
            return same and self.accuracy_m is other.accuracy_m
        return same and np.array_equal(self.accuracy_m, other.accuracy_m, equal_nan=True)

    @check_arguments
    def split(self, gap_seconds: Seconds) -> tuple[Trajectory, ...]:
        """Cut at gaps of more than ``gap_seconds`` between consecutive points.

        Every point lies in exactly one piece, in order. A trajectory without such a gap is returned as the only piece.

        Parameters
        ----------
        gap_seconds
            The longest time between consecutive points that is not a gap; positive, finite, in seconds.

        Returns
        -------
        tuple of Trajectory
            The pieces in order, at least one.

        Raises
        ------
        ConfigurationError
            If the gap is not a finite number of seconds, at least a microsecond.
        """
        gap = np.timedelta64(round_to_microseconds(gap_seconds, "gap"), "us")
        return _cut(self, np.diff(self.times) > gap)

    @check_arguments
    def select_time_range(self, start: np.datetime64 | str, end: np.datetime64 | str) -> Trajectory | None:
        """Return the part with ``start <= time < end``, or None if there is none.

        Parameters
        ----------
        start, end
            Instants in UTC, as ``numpy.datetime64`` or ISO 8601 text.

        Returns
        -------
        Trajectory or None
            The locations from `start` on and before `end`; None if there are none.
        """
        first, last = np.searchsorted(self.times, np.array([start, end], dtype="datetime64[us]"))
        return _slice_path(self, slice(first, last)) if first < last else None

    @check_arguments
    def resample(self, step_seconds: Seconds) -> SlottedTrajectory:
        """Resample the trajectory to a regular clock without interpolation.

        Slot ``k`` is the instant ``k * step`` after 1970-01-01T00:00:00Z. Its location is that of the most accurate
        point in the step that ends there, with ``(k - 1) * step < time <= k * step``, and of the last one of equally
        accurate points; see `dphmm.space.fix_quality`. No later point is used. A slot without a point in its step does
        not occur. All users share one clock: equal slots of two users are equal times.

        Parameters
        ----------
        step_seconds
            The step; a positive number of seconds, rounded to microseconds.

        Returns
        -------
        SlottedTrajectory
            The most accurate location of each non-empty step, by slot.

        Raises
        ------
        ConfigurationError
            If the step is not a finite number of seconds, at least a microsecond.
        """
        step = round_to_microseconds(step_seconds, "step")
        slots = -(-self.times.astype(np.int64) // step)
        if self.accuracy_m is None:  # times increase, so no sorting is needed
            used = np.flatnonzero(np.append(slots[1:] != slots[:-1], True))
        else:
            used = select_most_accurate(slots, self.accuracy_m)
        return SlottedTrajectory(self.user, step_seconds, slots[used], self.latitude[used], self.longitude[used])


def _check_times(times: TimeArray, what: str) -> None:
    if times.ndim != 1:
        raise TimeOrderError(f"{what}: times must be one-dimensional, got shape {times.shape}")
    unknown = np.flatnonzero(~((times >= EARLIEST) & (times <= LATEST)))  # NaT compares false
    if unknown.size:
        row = int(unknown[0])
        raise TimeOrderError(f"{what}: times must be in the years 1 to 9999, got {times[row]} at index {row}")
    back = np.flatnonzero(times[1:] <= times[:-1])
    if back.size:
        row = int(back[0]) + 1
        raise TimeOrderError(
            f"{what}: times must be strictly increasing, got {times[row]} after {times[row - 1]} at index {row}; "
            "sort the points and keep one per time"
        )


@check_arguments
@dataclass(frozen=True, eq=False)
class SlottedTrajectory:
    """A trajectory on a clock of equal steps, without the empty slots.

    Parameters
    ----------
    user
        The user's name; not empty.
    step_seconds
        The length of a step, positive.
    slots
        Shape ``(n,)``, strictly increasing integers: slot ``k`` is ``k`` steps after 1970-01-01T00:00:00Z. A jump
        from ``k`` to ``k + j`` means that ``j`` steps of the clock lie between the two locations.
    latitude, longitude
        Shape ``(n,)`` each, WGS 84 degrees.

    Raises
    ------
    TimeOrderError
        If the slots are not integers, do not increase, or lie outside the years 1 to 9999.
    CoordinateError, InvalidInputError, ConfigurationError
        As for `Trajectory`; the last for a step that is not positive and finite.
    """

    user: str
    step_seconds: Seconds
    slots: IntArray
    latitude: FloatArray
    longitude: FloatArray

    def __post_init__(self) -> None:
        what = f"resampled trajectory of user {self.user}"
        slots = np.asarray(self.slots)
        if slots.ndim != 1 or (slots.size and not np.issubdtype(slots.dtype, np.integer)):
            raise TimeOrderError(
                f"{what}: slots must be integers, one per location, got {slots.dtype} of shape {slots.shape}"
            )
        step = round_to_microseconds(self.step_seconds, "step")
        object.__setattr__(self, "slots", copy_read_only(slots.astype(np.int64)))
        furthest = int(np.abs(slots).max(initial=0))
        if furthest > int(LATEST.astype(np.int64)) // step + 1:
            raise TimeOrderError(f"{what}: slots must not lie beyond the year 9999, got {furthest}; check the step")
        back = np.flatnonzero(self.steps <= 0)
        if back.size:
            row = int(back[0]) + 1
            raise TimeOrderError(
                f"{what}: slots must increase, got {self.slots[row]} after {self.slots[row - 1]} at index {row}"
            )
        _validate_path(self, slots.shape[0], what)

    def __len__(self) -> int:
        return int(self.slots.shape[0])

    @property
    def times(self) -> TimeArray:
        """The instants of the slots, shape ``(n,)``, ``datetime64[us]`` in UTC."""
        return (self.slots * round_to_microseconds(self.step_seconds, "step")).astype("datetime64[us]")

    @property
    def steps(self) -> IntArray:
        """The number of clock steps between consecutive points, ``(n - 1,)``, each at least one."""
        return np.diff(self.slots)

    @check_arguments
    def split(self, gap_seconds: Seconds) -> tuple[SlottedTrajectory, ...]:
        """Cut at gaps of more than ``gap_seconds`` between consecutive slots.

        Parameters
        ----------
        gap_seconds
            The longest time between consecutive points that is not a gap; positive, finite, in seconds.

        Returns
        -------
        tuple of SlottedTrajectory
            The pieces in order, at least one.

        Raises
        ------
        ConfigurationError
            If the gap is not a finite number of seconds, at least a microsecond.
        """
        gap = round_to_microseconds(gap_seconds, "gap")
        return _cut(self, self.steps > gap // round_to_microseconds(self.step_seconds, "step"))


PathT = TypeVar("PathT", Trajectory, SlottedTrajectory)


def _validate_path(path: PathT, count: int, what: str) -> None:
    """Validate user and coordinates, and replace the coordinates by read-only copies."""
    if not isinstance(path.user, str) or not path.user:
        raise InvalidInputError(f"user must be a non-empty string, got {path.user!r}")
    if count == 0:
        raise InvalidInputError(f"{what} must have at least one location")
    for name in ("latitude", "longitude"):
        object.__setattr__(path, name, copy_read_only(np.asarray(getattr(path, name), dtype=np.float64)))
    check_places(path.latitude, path.longitude, what)
    if path.latitude.shape[0] != count:
        raise CoordinateError(f"{what}: there must be one location per time, got {path.latitude.shape[0]} for {count}")


def _cut(path: PathT, after: BoolArray) -> tuple[PathT, ...]:
    """Return the pieces between the points after which to cut."""
    edges = [0, *(np.flatnonzero(after) + 1).tolist(), len(path)]
    return tuple(_slice_path(path, slice(first, last)) for first, last in pairwise(edges))


def _slice_path(path: PathT, part: slice) -> PathT:
    arrays: Any = {name: values[part] for name, values in vars(path).items() if isinstance(values, np.ndarray)}
    return replace(path, **arrays)


_COLUMNS = ("latitude", "longitude", "times", "elevation", "accuracy_m")
# The sensors kept of a point: cadence, power, speed, course, heart rate, air temperature.
SENSORS = ("cad", "power", "speed", "course", "hr", "atemp")


@dataclass(frozen=True, eq=False)
class Segment:
    """A sequence of points without interruption.

    Parameters
    ----------
    latitude, longitude
        ``(n,)``: degrees.
    times
        ``(n,)``: datetime64 in UTC, NaT if unknown.
    elevation
        ``(n,)``: metres, NaN if unknown.
    sensors
        Names out of `SENSORS` → ``(n,)`` numbers, NaN for missing values.
    activity
        The type of activity of its track, such as ``"cycling"``; None if the file has none.
    track
        The index of its track in the file.
    accuracy_m
        ``(n,)``: accuracy radius in metres, NaN if unknown. Defaults to unknown for every point.
    """

    latitude: FloatArray
    longitude: FloatArray
    times: npt.NDArray[np.datetime64]
    elevation: FloatArray
    sensors: dict[str, FloatArray] = field(default_factory=dict)
    activity: str | None = None
    track: int = 0
    accuracy_m: FloatArray = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if not len(self.accuracy_m):
            object.__setattr__(self, "accuracy_m", np.full(len(self.latitude), np.nan))

    def __len__(self) -> int:
        return len(self.latitude)

    def select_points(self, which: slice | IntArray | BoolArray) -> Segment:
        """Return some of the points as a segment.

        Parameters
        ----------
        which
            The slice, indices or mask of the points.

        Returns
        -------
        Segment
            The selected points.
        """
        columns = {name: getattr(self, name)[which] for name in _COLUMNS}
        return replace(self, **columns, sensors={name: values[which] for name, values in self.sensors.items()})

    @classmethod
    def concatenate(cls, segments: Sequence[Segment]) -> Segment:
        """Concatenate segments, with the sensors that any of them has.

        Parameters
        ----------
        segments
            At least one segment.

        Returns
        -------
        Segment
            All points in order.
        """
        columns: dict[str, Any] = {
            name: np.concatenate([getattr(segment, name) for segment in segments]) for name in _COLUMNS
        }
        sensors = {
            name: np.concatenate([segment.sensors.get(name, np.full(len(segment), np.nan)) for segment in segments])
            for name in dict.fromkeys(name for segment in segments for name in segment.sensors)
        }
        return cls(**columns, sensors=sensors)


@dataclass(frozen=True)
class Recording:
    """The content of a recorded file.

    Parameters
    ----------
    segments
        The segments in the order of the file.
    activity
        The type of activity in the file, such as ``"cycling"``; None if the file has none.
    dropped
        Names of the other contents of the file, which are not included here.
    source
        The name of the format that was read, one of `dphmm.readers.FORMATS`; None if it was not read from a file.
    """

    segments: tuple[Segment, ...]
    activity: str | None = None
    dropped: tuple[str, ...] = ()
    source: str | None = None

    def __len__(self) -> int:
        return sum(map(len, self.segments))
