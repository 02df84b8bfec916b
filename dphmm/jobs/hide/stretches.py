"""The stretches of a recording that are removed in a zone, and their gates."""

from __future__ import annotations

import numpy as np

from dphmm.arrays import BoolArray, IntArray, find_runs
from dphmm.hide.street_inference import AHEAD_KM
from dphmm.hide.trip_ends import find_gaps
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
    trip = np.concatenate([[0], np.cumsum(find_gaps(points.times))])
    ends = find_runs(removed)
    stretches = []
    for first, last in zip(ends[::2], ends[1::2], strict=True):
        inside = first + np.flatnonzero(mask[first : last + 1])
        if not len(inside):
            continue
        entered = left = None
        if first > 0 and trip[first - 1] == trip[inside[0]]:
            entered = _build_gate(zone, points, removed, trip, range(first - 1, -1, -1))
        if last + 1 < len(points) and trip[last + 1] == trip[inside[-1]]:
            left = _build_gate(zone, points, removed, trip, range(last + 1, len(points)))
        seconds = None
        if entered is not None and left is not None:
            taken = (points.times[last + 1] - points.times[first - 1]) / np.timedelta64(1, "s")
            seconds = None if np.isnan(taken) else float(taken)
        # The times that are published or would be, not the removed points: equal files have equal descriptions.
        has_stop = zone.is_stop(Stretch(entered, left, seconds))
        stretches.append(Stretch(entered, left, seconds if times else None, has_stop))
    return tuple(stretches)


def _build_gate(zone: HiddenZone, points: Segment, removed: BoolArray, trip: IntArray, along: range) -> Gate:
    """Return the gate at the first of several points.

    Its direction is that to the first point at least 100 m away, and the location ahead is `AHEAD_KM` farther along the
    track, or its last point of this trip before another removed stretch.
    """
    count = _NUM_FIRST_POINTS
    while True:
        rows = np.array(along[:count])
        is_over = removed[rows] | (trip[rows] != trip[rows[0]])
        rows = rows[: is_over.argmax()] if is_over.any() else rows
        plane = zone.projection.to_plane(points.latitude[rows], points.longitude[rows])
        gone = np.cumsum(np.hypot(*np.diff(plane, axis=0).T))
        if len(rows) < count or gone[-1] >= AHEAD_KM:
            break
        count *= 4  # all points of a long recording would be projected for each gate
    far = np.flatnonzero(np.hypot(*(plane - plane[0]).T) >= _DIRECTION_KM)
    ahead = plane[min(int(np.searchsorted(gone, AHEAD_KM)) + 1, len(plane) - 1)]
    return Gate(plane[0], plane[far[0]] if len(far) else np.full(2, np.nan), ahead, points.times[rows[0]])
