"""Errors of the receiver: points without a fix or out of reach at the speed limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.hide.recording_points import TRIP_GAP, Points, describe_point, distance_km
from dphmm.model.blank_model import KINDS

# The activity in a file → the type of movement, with its usual speed and its speed limit.
MOVEMENT_OF_ACTIVITY: Mapping[str, str] = {
    "running": "walking",
    "walking": "walking",
    "hiking": "walking",
    "cycling": "cycling",
    "biking": "cycling",
    "driving": "driving",
}

# The number of points that are dropped to remove a jump, at most.
JUMP_COST = 10

# The error of a fix between buildings. A jump is longer than the way at the speed limit by more than this.
FIX_ERROR_KM = 0.1

_ROUNDING = np.timedelta64(1, "m")
# A recording with a larger share of errors has another activity than stated.
_MAX_ERROR_SHARE = 0.1
# With more jumps than this, the search for the longest possible sequence takes seconds.
_MAX_PIECES = 1000


def get_max_speeds(points: Points, kind: str | None) -> FloatArray:
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


def can_reach(points: Points, kind: str | None, first: IntArray, last: IntArray) -> BoolArray:
    """Return whether the user can move from some points to others, pair by pair.

    Points without times and points more than an hour apart are not compared. Between times that are rounded to minutes
    up to a minute more can lie.
    """
    latitude = points.values.latitude
    longitude = points.values.longitude
    times = points.values.times
    limits = get_max_speeds(points, kind)
    taken = times[last] - times[first]
    hours = (taken + _ROUNDING * points.are_minutes) / np.timedelta64(1, "h")
    reach = np.maximum(limits[first], limits[last]) * hours + FIX_ERROR_KM
    is_near = distance_km(latitude[first], longitude[first], latitude[last], longitude[last]) <= reach
    return np.asarray(np.isnat(taken) | (taken > TRIP_GAP) | is_near)


def find_jumps(points: Points, kind: str | None) -> IntArray:
    """Return the indices of points from which the next point is out of reach.

    Parameters
    ----------
    points
        The points in order of time.
    kind
        As in `get_max_speeds`.

    Returns
    -------
    IntArray
        The indices in increasing order. From each, the next point is farther than the speed limit allows, by more than
        100 m, and at most an hour later.
    """
    rows = np.arange(len(points))
    return np.flatnonzero(~can_reach(points, kind, rows[:-1], rows[1:]))


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
        As in `get_max_speeds`.

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
        kept = _find_cheapest_chain(points, kind, pieces)
    errors[np.setdiff1d(rows, np.concatenate(kept))] = True
    return np.asarray(errors)


def _find_cheapest_chain(points: Points, kind: str | None, pieces: Sequence[IntArray]) -> list[IntArray]:
    """Return the pieces that remain at the least cost, by dynamic programming."""
    if len(pieces) == 1:
        return list(pieces)
    firsts, lasts = (np.array([piece[end] for piece in pieces]) for end in (0, -1))
    # The points of the best chain that ends with each piece, less the cost of its jumps.
    totals, previous = np.array([len(piece) for piece in pieces]), np.full(len(pieces), -1)
    for number in range(1, len(pieces)):
        is_reached = can_reach(points, kind, lasts[:number], np.repeat(firsts[number], number))
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
        If they are more than `JUMP_COST` and more than a tenth of the points. Names the speed limit and the remedy:
        driving, if its limit is higher.
    """
    out_of_reach = errors & ((points.values.latitude != 0) | (points.values.longitude != 0))
    if are_many(out_of_reach):
        row = int(out_of_reach.argmax())
        limit = get_max_speeds(points, kind)[row]
        remedy = "--kind driving, or " if limit < KINDS["driving"].max_speed_kmh else ""
        raise ConfigurationError(
            f"{int(out_of_reach.sum()):,} of {len(points):,} points are out of reach at {limit:g} km/h, the first is "
            f"{describe_point(points, row)}: use {remedy}a file of one device"
        )


def are_many(errors: BoolArray) -> bool:
    """Return whether errors are so many that the activity may be another than stated."""
    return bool(errors.sum() > max(JUMP_COST, _MAX_ERROR_SHARE * len(errors)))
