"""The true places of one person over time, and the same on a fixed clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, CoordinateError, InvalidInputError, TimeOrderError

TimeArray = npt.NDArray[np.datetime64]
"""Instants as ``datetime64[us]``, UTC."""

EARLIEST = np.datetime64("0001-01-01", "us")
LATEST = np.datetime64("9999-12-31T23:59:59.999999", "us")
"""The range of Python's own `datetime`, so that every instant can be written by every library."""

_MICROSECONDS = 1_000_000


def _locked(values: npt.ArrayLike, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


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
    possible = (np.abs(latitude) <= 90.0) & (np.abs(longitude) <= 180.0)  # NaN compares false
    if not possible.all():
        row = int(np.flatnonzero(~possible)[0])
        raise CoordinateError(
            f"{what}: place {row} is latitude {float(latitude[row])!r}, longitude {float(longitude[row])!r}; "
            "latitudes lie in -90 to 90 and longitudes in -180 to 180"
        )


def _check_user(user: str) -> None:
    if not isinstance(user, str) or not user:
        raise InvalidInputError(f"user is {user!r}; give a name as a non-empty text")


def _check_places_per_time(count: int, latitude: FloatArray, longitude: FloatArray, what: str) -> None:
    if count == 0:
        raise InvalidInputError(f"{what} has no places; a trajectory holds one or more")
    check_places(latitude, longitude, what)
    if latitude.shape[0] != count:
        raise CoordinateError(f"{what}: {count} times but {latitude.shape[0]} places; give one place per time")


def _pieces(cuts: IntArray, count: int) -> Iterator[slice]:
    edges = [0, *cuts.tolist(), count]
    return (slice(first, last) for first, last in pairwise(edges))


def microseconds(seconds: float, name: str) -> int:
    """A duration in whole microseconds.

    Raises
    ------
    ConfigurationError
        When it is not finite, or not at least one microsecond.
    """
    value = float(seconds)
    if not np.isfinite(value) or round(value * _MICROSECONDS) < 1:
        raise ConfigurationError(f"{name} is {seconds} seconds; give a positive, finite number")
    return round(value * _MICROSECONDS)


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
        _check_user(self.user)
        object.__setattr__(self, "times", _locked(self.times, "datetime64[us]"))
        object.__setattr__(self, "latitude", _locked(self.latitude, np.float64))
        object.__setattr__(self, "longitude", _locked(self.longitude, np.float64))
        what = f"trajectory of user {self.user}"
        _check_times(self.times, what)
        _check_places_per_time(self.times.shape[0], self.latitude, self.longitude, what)

    def __len__(self) -> int:
        return int(self.times.shape[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return (
            self.user == other.user
            and np.array_equal(self.times, other.times)
            and np.array_equal(self.latitude, other.latitude)
            and np.array_equal(self.longitude, other.longitude)
        )

    def _part(self, part: slice) -> Trajectory:
        return Trajectory(self.user, self.times[part], self.latitude[part], self.longitude[part])

    def split(self, gap_seconds: float) -> tuple[Trajectory, ...]:
        """Cut wherever more than ``gap_seconds`` pass from one point to the next.

        Every point lies in exactly one piece, in order; a trajectory without such a gap comes back as the only piece.

        Raises
        ------
        ConfigurationError
            When the gap is not a positive, finite number of seconds.
        """
        gap = np.timedelta64(microseconds(gap_seconds, "gap"), "us")
        cuts = np.flatnonzero(np.diff(self.times) > gap) + 1
        return tuple(self._part(piece) for piece in _pieces(cuts, len(self)))

    def between(self, start: np.datetime64 | str, end: np.datetime64 | str) -> Trajectory | None:
        """The part with ``start <= time < end``, or None where there is none."""
        first, last = np.searchsorted(self.times, np.array([start, end], dtype="datetime64[us]"))
        return self._part(slice(int(first), int(last))) if first < last else None

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
    known = (times >= EARLIEST) & (times <= LATEST)  # NaT compares false
    if not known.all():
        row = int(np.flatnonzero(~known)[0])
        raise TimeOrderError(f"{what}: time {row} is {times[row]}; give a time in the years 1 to 9999")
    back = times[1:] <= times[:-1]
    if back.any():
        row = int(np.flatnonzero(back)[0]) + 1
        raise TimeOrderError(
            f"{what}: time {row} is {times[row]}, not later than {times[row - 1]} before it; "
            "sort the points and keep one per time"
        )


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
        _check_user(self.user)
        what = f"resampled trajectory of user {self.user}"
        given = np.asarray(self.slots)
        if given.ndim != 1 or (given.size and not np.issubdtype(given.dtype, np.integer)):
            raise TimeOrderError(
                f"{what}: slots are {given.dtype} of shape {given.shape}; give integers, one per place"
            )
        step = microseconds(self.step_seconds, "step")
        object.__setattr__(self, "slots", _locked(given, np.int64))
        object.__setattr__(self, "latitude", _locked(self.latitude, np.float64))
        object.__setattr__(self, "longitude", _locked(self.longitude, np.float64))
        furthest = (int(LATEST.astype(np.int64)) // step) + 1
        if given.size and int(np.abs(given).max()) > furthest:
            raise TimeOrderError(f"{what}: slot {int(np.abs(given).max())} lies beyond the year 9999; check the step")
        if (np.diff(self.slots) <= 0).any():
            row = int(np.flatnonzero(np.diff(self.slots) <= 0)[0]) + 1
            raise TimeOrderError(f"{what}: slot {row} is {self.slots[row]} after {self.slots[row - 1]}; slots increase")
        _check_places_per_time(given.shape[0], self.latitude, self.longitude, what)

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

    def split(self, gap_seconds: float) -> tuple[SlottedTrajectory, ...]:
        """Cut wherever the slots of two neighbours lie more than ``gap_seconds`` apart.

        Raises
        ------
        ConfigurationError
            When the gap is not a positive, finite number of seconds.
        """
        gap = microseconds(gap_seconds, "gap")
        cuts = np.flatnonzero(self.steps > gap // microseconds(self.step_seconds, "step")) + 1
        return tuple(
            SlottedTrajectory(
                self.user, self.step_seconds, self.slots[piece], self.latitude[piece], self.longitude[piece]
            )
            for piece in _pieces(cuts, len(self))
        )
