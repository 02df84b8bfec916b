"""The points of a recording: order in time, receiver errors, ends, and publication.

`publish` is a function of the kept points, each with its time, elevation, sensors and activity, and of the zones. The
tracks and segments of the file are not used: an end of a segment next to a zone can depend on the removed points. Lines
are instead broken where they would cross a zone, and where the kept points pause.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.hide.zone import HiddenZone
from dphmm.model.blank_model import KINDS
from dphmm.space.trajectory import Recording, Segment

MOVEMENT_OF_ACTIVITY: Mapping[str, str] = {
    "running": "walking",
    "walking": "walking",
    "hiking": "walking",
    "cycling": "cycling",
    "biking": "cycling",
    "driving": "driving",
}
"""The activity in a file → the type of movement, with its usual speed and its speed limit."""

TRIP_GAP = np.timedelta64(1, "h")
"""A longer time between two points separates trips. The user may have used another means of transport in it."""

JUMP_COST = 10
"""The number of points that are dropped to remove a jump, at most."""

# A jump is longer than the way at the speed limit by more than the error of a fix between buildings.
_FIX_ERROR_KM = 0.1
# A recording with a larger share of errors has another activity than stated.
_MAX_ERROR_SHARE = 0.1
# A receiver does not repeat an old location for longer than this.
_LONG_PART = np.timedelta64(10, "m")
# With more jumps than this, the search for the longest possible sequence takes seconds.
_MAX_PIECES = 1000
# A line is broken at a pause of this multiple of the median interval, and of at least this time or distance.
_PAUSE_RATIO = 10
_MIN_PAUSE_SECONDS = 60
_MIN_PAUSE_KM = 0.2


@cache
def _geod() -> Any:
    from pyproj import Geod

    return Geod(ellps="WGS84")


def distance_km(
    latitude: npt.ArrayLike, longitude: npt.ArrayLike, other_latitude: npt.ArrayLike, other_longitude: npt.ArrayLike
) -> FloatArray:
    """Return the geodesic distances between locations in degrees, kilometres.

    The coordinates of the locations are broadcast.
    """
    degrees = np.broadcast_arrays(longitude, latitude, other_longitude, other_latitude)
    return np.asarray(_geod().inv(*(np.array(values, float) for values in degrees))[2]) / 1000


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

    def take(self, rows: IntArray | BoolArray) -> Points:
        """Return the points with some indices, or those of a mask."""
        return Points(self.values.part(rows), self.activity[rows], self.track[rows], self.segment[rows])

    def time_order(self) -> IntArray:
        """Return the indices of the points in order of time.

        A point without a time follows its predecessor in the file.
        """
        times = self.values.times
        is_timed = ~np.isnat(times)
        if not is_timed.any():
            return np.arange(len(self))
        latest = np.maximum.accumulate(np.where(is_timed, np.arange(len(self)), int(is_timed.argmax())))
        return np.argsort(times[latest], kind="stable")


def max_speeds(points: Points, kind: str | None) -> FloatArray:
    """Return the speed limit at each point, km/h.

    Parameters
    ----------
    points
        The points.
    kind
        The type of movement; by default that of the point's activity, and driving if it is unknown.

    Returns
    -------
    FloatArray
        ``(n,)``.
    """
    activities = points.activity.tolist()
    kinds = {
        activity: kind or MOVEMENT_OF_ACTIVITY.get(str(activity).lower(), "driving") for activity in set(activities)
    }
    limits = {activity: KINDS[name].max_speed_kmh for activity, name in kinds.items()}
    return np.array([limits[activity] for activity in activities], dtype=np.float64)


def _can_reach(points: Points, kind: str | None, first: IntArray, last: IntArray) -> BoolArray:
    """Return whether the user can move from some points to others, pair by pair.

    Points without times and points more than an hour apart are not compared.
    """
    latitude, longitude, times = points.values.latitude, points.values.longitude, points.values.times
    limits = max_speeds(points, kind)
    taken = times[last] - times[first]
    reach = np.maximum(limits[first], limits[last]) * (taken / np.timedelta64(1, "h")) + _FIX_ERROR_KM
    is_near = distance_km(latitude[first], longitude[first], latitude[last], longitude[last]) <= reach
    return np.asarray(np.isnat(taken) | (taken > TRIP_GAP) | is_near)


def find_jumps(points: Points, kind: str | None) -> IntArray:
    """Return the indices of points from which the next point is out of reach.

    Parameters
    ----------
    points
        The points in order of time.
    kind
        As in `max_speeds`.

    Returns
    -------
    IntArray
        The indices in increasing order. From each, the next point is farther than the speed limit allows, by more than
        100 m, and at most an hour later.
    """
    rows = np.arange(len(points))
    return np.flatnonzero(~_can_reach(points, kind, rows[:-1], rows[1:]))


def find_errors(points: Points, kind: str | None) -> BoolArray:
    """Return which points are errors of the receiver.

    These are the points at latitude 0 and longitude 0, which receivers write without a fix, and the fewest points
    without which the recording has fewer jumps: a jump is removed if it takes at most `JUMP_COST` points. Other jumps
    remain, such as those of a receiver that finds its location after a tunnel.

    Parameters
    ----------
    points
        The points in order of time.
    kind
        As in `max_speeds`.

    Returns
    -------
    BoolArray
        ``(n,)``.
    """
    errors = (points.values.latitude == 0) & (points.values.longitude == 0)
    rows = np.flatnonzero(~errors)
    pieces = np.split(rows, find_jumps(points.take(rows), kind) + 1)
    if len(pieces) > _MAX_PIECES:
        kept = [max(pieces, key=len)]
    else:
        kept = _cheapest_chain(points, kind, pieces)
    errors[np.setdiff1d(rows, np.concatenate(kept))] = True
    return np.asarray(errors)


def _cheapest_chain(points: Points, kind: str | None, pieces: Sequence[IntArray]) -> list[IntArray]:
    """Return the pieces that remain at the least cost, by dynamic programming."""
    if len(pieces) == 1:
        return list(pieces)
    firsts, lasts = (np.array([piece[end] for piece in pieces]) for end in (0, -1))
    # The points of the best chain that ends with each piece, less the cost of its jumps.
    totals, previous = np.array([len(piece) for piece in pieces]), np.full(len(pieces), -1)
    for number in range(1, len(pieces)):
        is_reached = _can_reach(points, kind, lasts[:number], np.repeat(firsts[number], number))
        before = totals[:number] - np.where(is_reached, 0, JUMP_COST)
        if before.max() > 0:
            previous[number] = before.argmax()
            totals[number] += before.max()
    chain = [int(totals.argmax())]
    while previous[chain[-1]] >= 0:
        chain.append(int(previous[chain[-1]]))
    return [pieces[number] for number in reversed(chain)]


def check_errors(points: Points, errors: BoolArray, kind: str | None) -> None:
    """Raise an error if too many points are out of reach.

    Raises
    ------
    ConfigurationError
        If they are more than `JUMP_COST` and more than a tenth of the points. Names the speed limit and the remedy.
    """
    out_of_reach = errors & ((points.values.latitude != 0) | (points.values.longitude != 0))
    if are_many(out_of_reach):
        row = int(out_of_reach.argmax())
        raise ConfigurationError(
            f"{int(out_of_reach.sum()):,} of {len(points):,} points are out of reach at "
            f"{max_speeds(points, kind)[row]:g} km/h, the first is {describe_point(points, row)}: use --kind driving, "
            "or a file of one device"
        )


def are_many(errors: BoolArray) -> bool:
    """Return whether errors are so many that the activity may be another than stated."""
    return bool(errors.sum() > max(JUMP_COST, _MAX_ERROR_SHARE * len(errors)))


def describe_point(points: Points, row: int) -> str:
    """Return a point's coordinates and time in words."""
    values = points.values
    time = "" if np.isnat(values.times[row]) else f" at {values.times[row].astype('datetime64[s]')!s}Z"
    return f"{values.latitude[row]:.6g}, {values.longitude[row]:.6g}{time}"


def find_gaps(times: npt.NDArray[np.datetime64]) -> BoolArray:
    """Return whether over an hour lies between neighbouring points, ``(n - 1,)``.

    A point without a time can have been at any time between those of its neighbours. If these are more than an hour
    apart, there is a gap on both of its sides.

    Parameters
    ----------
    times
        ``(n,)``: the times in order, NaT where unknown.
    """
    is_timed = ~np.isnat(times)
    if not is_timed.any():
        return np.zeros(max(len(times) - 1, 0), dtype=np.bool_)
    rows = np.arange(len(times))
    timed = rows[is_timed]
    before = np.maximum.accumulate(np.where(is_timed, rows, timed[0]))
    after = np.minimum.accumulate(np.where(is_timed, rows, timed[-1])[::-1])[::-1]
    return (np.diff(times[before]) > TRIP_GAP) | (np.diff(times[after]) > TRIP_GAP)


def find_ends(points: Points, kind: str | None) -> IntArray:
    """Return the indices of the points at which the user may have started or arrived.

    These are the first and the last point of each track, the points on both sides of a gap of more than an hour, and
    those on both sides of a gap between segments of unknown length. The part before a jump may not belong to the trip,
    for example if the receiver repeats an old location. The first points after the first jumps are therefore also
    returned, up to the first part of at least ten minutes, and the last points before the last jumps.

    Parameters
    ----------
    points
        The points in order of time, without errors of the receiver.
    kind
        As in `max_speeds`.

    Returns
    -------
    IntArray
        The indices in increasing order.
    """
    ends = list[int]()
    for track in np.unique(points.track):
        rows = np.flatnonzero(points.track == track)
        times = points.values.times[rows]
        is_gap = find_gaps(times) | (np.isnat(np.diff(times)) & (np.diff(points.segment[rows]) != 0))
        # Points without a time between two others do not hide a jump. Like a gap, it is on both of their sides.
        timed = np.flatnonzero(~np.isnat(times))
        jumps = np.flatnonzero(~_can_reach(points, kind, rows[timed[:-1]], rows[timed[1:]]))
        is_jump = np.zeros(max(len(rows) - 1, 0), dtype=np.bool_)
        is_jump[timed[jumps]] = is_jump[timed[jumps + 1] - 1] = True
        for trip in np.split(np.arange(len(rows)), np.flatnonzero(is_gap) + 1):
            parts = np.split(trip, np.flatnonzero(is_jump[trip[:-1]]) + 1)
            is_long = [times[part[-1]] - times[part[0]] >= _LONG_PART for part in parts]
            first = is_long.index(True) if any(is_long) else len(parts) - 1
            last = is_long[::-1].index(True) if any(is_long) else len(parts) - 1
            ends += [rows[part[0]] for part in parts[: first + 1]]
            ends += [rows[part[-1]] for part in parts[len(parts) - 1 - last :]]
    return np.unique(np.array(ends, dtype=np.int64))


def publish(
    kept: Points, zones: Sequence[HiddenZone], sensors: Collection[str], times: bool, kind: str | None
) -> tuple[Recording, BoolArray]:
    """Return the public recording, a function of the kept points and the zones.

    Parameters
    ----------
    kept
        The points outside the zones, in the order of the file.
    zones
        The zones.
    sensors
        The names of the sensors to publish.
    times
        Whether times are published.
    kind
        As in `max_speeds`.

    Returns
    -------
    tuple
        The recording in order of time without errors of the receiver, and the mask of these errors, ``(n,)``.

    Raises
    ------
    ConfigurationError
        If more than a tenth of the points are errors.
    """
    order = kept.time_order()
    points = kept.take(order)
    is_error = find_errors(points, kind)
    check_errors(points, is_error, kind)
    errors = np.zeros(len(kept), dtype=np.bool_)
    errors[order] = is_error
    points = points.take(~is_error)
    columns = {name: values for name, values in points.values.sensors.items() if name in sensors}
    values = replace(
        points.values, sensors={name: column for name, column in columns.items() if not np.isnan(column).all()}
    )
    if not times:
        values = replace(values, times=np.full(len(values), np.datetime64("NaT", "us")))
    points = replace(points, values=values)
    pieces = np.split(np.arange(len(points)), np.flatnonzero(_breaks(points, zones)) + 1)
    activity = next((activity for activity in points.activity if activity is not None), None)
    return Recording(tuple(values.part(piece) for piece in pieces if len(piece)), activity), errors


def _breaks(points: Points, zones: Sequence[HiddenZone]) -> BoolArray:
    """Return after which points but the last the line is broken, ``(n - 1,)``."""
    values = points.values
    if len(values) < 2:
        return np.zeros(0, dtype=np.bool_)
    seconds = np.diff(values.times) / np.timedelta64(1, "s")
    kilometres = distance_km(values.latitude[:-1], values.longitude[:-1], values.latitude[1:], values.longitude[1:])
    breaks: BoolArray = np.where(
        np.isnan(seconds),
        kilometres > max(_MIN_PAUSE_KM, _PAUSE_RATIO * _median(kilometres)),
        seconds > max(_MIN_PAUSE_SECONDS, _PAUSE_RATIO * _median(seconds)),
    )
    for zone in zones:
        rows = np.flatnonzero(zone.may_be_near(values.latitude[:-1], values.longitude[:-1], kilometres))
        plane = [zone.projection.to_plane(values.latitude[at], values.longitude[at]) for at in (rows, rows + 1)]
        # The antipode of the zone has no image.
        lines = shapely.linestrings(np.nan_to_num(np.stack(plane, axis=1), posinf=1e6, neginf=-1e6))
        breaks[rows] |= shapely.intersects(lines, shapely.Polygon(zone.corners))
    return np.asarray(breaks, dtype=np.bool_)


def _median(steps: FloatArray) -> float:
    """Return the median of the positive steps between consecutive points; 0 without one."""
    positive = steps[steps > 0]  # NaN compares false
    return float(np.median(positive)) if len(positive) else 0.0
