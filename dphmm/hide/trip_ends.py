"""Ends of the trips in a recording: points at which the user may have started or arrived."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.hide.points import TRIP_GAP, Points, distance_km
from dphmm.hide.receiver_errors import FIX_ERROR_KM, can_reach

# A receiver does not repeat an old location for longer than this.
_LONG_PART = np.timedelta64(10, "m")
# The step from an old location to the start is longer than this multiple of the 90 % quantile of all steps.
_FAR_RATIO = 3


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
    returned, up to the first part of at least ten minutes, and the last points before the last jumps. A step of at
    least 100 m and of three times the usual length counts as a jump if the part before it stays in one place.

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
    ends = [np.zeros(0, dtype=np.int64)]
    for track in np.unique(points.track):
        rows = np.flatnonzero(points.track == track)
        times = points.values.times[rows]
        is_gap = find_gaps(times) | (np.isnat(np.diff(times)) & (np.diff(points.segment[rows]) != 0))
        # Points without a time between two others do not hide a jump. Like a gap, it is on both of their sides.
        timed = np.flatnonzero(~np.isnat(times))
        pairs = rows[timed[:-1]], rows[timed[1:]]
        is_jump, is_far = np.zeros((2, max(len(rows) - 1, 0)), dtype=np.bool_)
        for mask, of_pairs in ((is_jump, ~can_reach(points, kind, *pairs)), (is_far, _is_far(points, *pairs))):
            before = np.flatnonzero(of_pairs)
            mask[timed[before]] = mask[timed[before + 1] - 1] = True
        for trip in np.split(np.arange(len(rows)), np.flatnonzero(is_gap) + 1):
            steps = trip[:-1]
            ends.append(_find_starts(points, rows[trip], is_jump[steps], is_far[steps]))
            ends.append(_find_starts(points, rows[trip[::-1]], is_jump[steps[::-1]], is_far[steps[::-1]]))
    return np.unique(np.concatenate(ends))


def _is_far(points: Points, first: IntArray, last: IntArray) -> BoolArray:
    """Return which steps are much longer than the others, ``(n,)``."""
    if not len(first):
        return np.zeros(0, dtype=np.bool_)
    lengths = _distance_km(points, first, last)
    # A median would be that of a receiver at rest.
    usual = np.quantile(lengths, 0.9, method="lower")
    return np.asarray(lengths > max(FIX_ERROR_KM, _FAR_RATIO * usual))


def _find_starts(points: Points, trip: IntArray, is_jump: BoolArray, is_far: BoolArray) -> IntArray:
    """Return the points at which a trip may have started. Of a reversed trip, ended."""
    times, starts = points.values.times, [0]
    for step in np.flatnonzero(is_jump | is_far).tolist():
        part = trip[starts[-1] : step + 1]
        if abs(times[part[-1]] - times[part[0]]) >= _LONG_PART:
            break
        if is_jump[step] or _distance_km(points, part[:1], part).max() <= FIX_ERROR_KM:
            starts.append(step + 1)
    return trip[starts]


def _distance_km(points: Points, first: IntArray, last: IntArray) -> FloatArray:
    latitude, longitude = points.values.latitude, points.values.longitude
    return distance_km(latitude[first], longitude[first], latitude[last], longitude[last])
