"""Ends of the trips in a recording: points at which the user may have started or arrived."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, IntArray
from dphmm.hide.points import TRIP_GAP, Points
from dphmm.hide.receiver_errors import can_reach

# A receiver does not repeat an old location for longer than this.
_LONG_PART = np.timedelta64(10, "m")


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
        As in `dphmm.hide.receiver_errors.max_speeds`.

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
        jumps = np.flatnonzero(~can_reach(points, kind, rows[timed[:-1]], rows[timed[1:]]))
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
