"""The points of a recording: their order in time, distances and description."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.space.trajectory import Recording, Segment

# A longer time between two points separates trips. The user may have used another means of transport in it.
TRIP_GAP = np.timedelta64(1, "h")


@cache
def _get_geod() -> Any:
    from pyproj import Geod

    return Geod(ellps="WGS84")


def distance_km(
    latitude: npt.ArrayLike, longitude: npt.ArrayLike, other_latitude: npt.ArrayLike, other_longitude: npt.ArrayLike
) -> FloatArray:
    """Return the geodesic distances between locations in degrees, kilometres.

    The coordinates of the locations are broadcast.
    """
    degrees = np.broadcast_arrays(longitude, latitude, other_longitude, other_latitude)
    return np.asarray(_get_geod().inv(*(np.array(values, float) for values in degrees))[2]) / 1000


@dataclass(frozen=True, eq=False)
class Points:
    """The points of a recording.

    Parameters
    ----------
    values
        The points as a single segment.
    activity
        ``(n,)``: the activity of each point; None where unknown.
    track, segment
        ``(n,)``: the indices of the track and of the segment in the file.
    """

    values: Segment
    activity: npt.NDArray[np.object_]
    track: IntArray
    segment: IntArray

    @classmethod
    def from_recording(cls, recording: Recording) -> Points:
        """Return the points in the order of the file."""
        segments = recording.segments
        lengths = [len(segment) for segment in segments]
        return cls(
            Segment.concatenate(segments),
            np.repeat(np.array([segment.activity for segment in segments], object), lengths),
            np.repeat([segment.track for segment in segments], lengths),
            np.repeat(np.arange(len(segments)), lengths),
        )

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def are_minutes(self) -> bool:
        """Whether times are rounded to minutes: all are whole ones, and points share one."""
        times = self.values.times[~np.isnat(self.values.times)]
        minutes = times.astype("datetime64[m]")
        # A receiver that writes a point per minute has whole minutes, too, but each of them once.
        return len(np.unique(minutes)) < len(minutes) and not (times != minutes).any()

    def take(self, rows: IntArray | BoolArray) -> Points:
        """Return the points with some indices, or those of a mask."""
        return Points(self.values.select_points(rows), self.activity[rows], self.track[rows], self.segment[rows])

    def get_location(self, row: int) -> tuple[float, float]:
        """Return the latitude and longitude of a point."""
        return float(self.values.latitude[row]), float(self.values.longitude[row])

    def order_by_time(self) -> IntArray:
        """Return the indices of the points in order of time.

        A point without a time follows its predecessor in the file.
        """
        times = self.values.times
        is_timed = ~np.isnat(times)
        if not is_timed.any():
            return np.arange(len(self))
        latest = np.maximum.accumulate(np.where(is_timed, np.arange(len(self)), int(is_timed.argmax())))
        return np.argsort(times[latest], kind="stable")


def describe_point(points: Points, row: int) -> str:
    """Return a point's coordinates and time in words."""
    values = points.values
    time = "" if np.isnat(values.times[row]) else f" at {values.times[row].astype('datetime64[s]')!s}Z"
    return f"{values.latitude[row]:.6g}, {values.longitude[row]:.6g}{time}"
