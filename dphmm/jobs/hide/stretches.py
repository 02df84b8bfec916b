"""The stretches of a recording that are removed in a zone, and their gates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from dphmm.arrays import BoolArray, IntArray, find_runs
from dphmm.hide.street_inference import AHEAD_KM
from dphmm.hide.trip_ends import FAR_RATIO, find_gaps, find_usual_km
from dphmm.hide.zone import Gate, HiddenZone, Stretch
from dphmm.space.trajectory import Segment

# A direction is computed over this distance, which is large compared with the errors of fixes, some metres.
_DIRECTION_KM = 0.1
_NUM_FIRST_POINTS = 1000


def find_stretches(
    zone: HiddenZone, points: Segment, removed: BoolArray, mask: BoolArray, times: bool
) -> tuple[Stretch, ...]:
    """Return the removed stretches in a zone, of points in order of time.

    Parameters
    ----------
    zone
        The zone.
    points
        The points.
    removed, mask
        ``(n,)``: the points in any zone, and in this one.
    times
        Whether times are published.
    """
    trip = _find_trips(points, removed)
    # All steps of a long recording are measured, once, and only if a point may be elsewhere.
    find_step_km = cache(partial(_find_step_km, points, trip))
    ends = find_runs(removed)
    stretches = []
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        if not mask[first : last + 1].any():
            continue
        before, after = first - 1, last + 1
        is_passage = before >= 0 and after < len(points) and trip[before] == trip[after]
        entered = left = None
        if before >= 0 and (is_passage or not _is_elsewhere(zone, points, before, find_step_km)):
            entered = _build_gate(zone, points, trip, range(before, -1, -1))
        if after < len(points) and (is_passage or not _is_elsewhere(zone, points, after, find_step_km)):
            left = _build_gate(zone, points, trip, range(after, len(points)))
        seconds = None
        if entered is not None and left is not None:
            taken = (points.times[after] - points.times[before]) / np.timedelta64(1, "s")
            seconds = None if np.isnan(taken) else float(taken)
        # The times that are published or would be, not those of removed points: equal files with removed stretches
        # between the same points have equal descriptions. Two facts depend on the removed points, and are assumed to be
        # known to adversaries: in which of overlapping zones a stretch lies, and that a kept point is an error.
        has_stop = zone.is_stop(Stretch(entered, left, seconds))
        stretches.append(Stretch(entered, left, seconds if times else None, has_stop))
    return tuple(stretches)


def _find_trips(points: Segment, removed: BoolArray) -> IntArray:
    """Return the index of the trip of each kept point, ``(n,)``. -1 for the removed points.

    The times of the removed points are not used. An adversary does not know when they end or begin a trip.
    """
    kept = np.flatnonzero(~removed)
    trip = np.full(len(points), -1)
    trip[kept[1:]] = np.cumsum(find_gaps(points.times[kept]))
    trip[kept[:1]] = 0
    return trip


def _find_step_km(points: Segment, trip: IntArray) -> float:
    """Return the length of a long step between kept points, kilometres."""
    usual = find_usual_km(points, (trip[1:] == trip[:-1]) & (trip[1:] >= 0))
    # Without steps to compare with, the adversary assumes that every point can be the last one before a zone.
    return np.inf if usual is None else FAR_RATIO * usual


def _is_elsewhere(zone: HiddenZone, points: Segment, row: int, find_step_km: Callable[[], float]) -> bool:
    """Return whether a kept point is too far from a zone for a trip that starts or ends there.

    It is farther than the zone is wide, and than a long step. The recording may have a gap of any time there.
    """
    plane = zone.projection.to_plane(points.latitude[[row]], points.longitude[[row]])
    outside_km = float(np.abs(plane).max()) - zone.half_km
    return outside_km > 2 * zone.half_km and outside_km > find_step_km()


def _build_gate(zone: HiddenZone, points: Segment, trip: IntArray, along: range) -> Gate:
    """Return the gate at the first of several points.

    Its direction is that to the first point at least 100 m away, and the location ahead is `AHEAD_KM` farther along the
    track, or its last point of this trip before another removed stretch.
    """
    count = _NUM_FIRST_POINTS
    while True:
        rows = np.array(along[:count])
        is_over = trip[rows] != trip[rows[0]]
        rows = rows[: is_over.argmax()] if is_over.any() else rows
        plane = zone.projection.to_plane(points.latitude[rows], points.longitude[rows])
        gone = np.cumsum(np.hypot(*np.diff(plane, axis=0).T))
        if len(rows) < count or gone[-1] >= AHEAD_KM:
            break
        count *= 4  # all points of a long recording would be projected for each gate
    far = np.flatnonzero(np.hypot(*(plane - plane[0]).T) >= _DIRECTION_KM)
    ahead = plane[min(int(np.searchsorted(gone, AHEAD_KM)) + 1, len(plane) - 1)]
    return Gate(plane[0], plane[far[0]] if len(far) else np.full(2, np.nan), ahead, points.times[rows[0]])
