"""Ends of the trips in a recording: points at which the user may have started or arrived."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.hide.fixed_squares import distance_outside
from dphmm.hide.receiver_errors import FIX_ERROR_KM, can_reach
from dphmm.hide.recording_points import TRIP_GAP, Points, distance_km
from dphmm.hide.zone import HiddenZone
from dphmm.space.trajectory import Segment

# A receiver does not repeat an old location for longer than this.
_LONG_PART = np.timedelta64(10, "m")
# The true start is farther from the zone of an old location than this multiple of the 90 % quantile of steps outside.
FAR_RATIO = 3
# A receiver does not repeat more old locations than this, each below the speed limit from the next.
_MAX_OLD_LOCATIONS = 2


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


def find_ends(points: Points, kind: str | None) -> tuple[IntArray, list[IntArray]]:
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
        As in `dphmm.hide.receiver_errors.get_max_speeds`.

    Returns
    -------
    tuple
        The indices in increasing order, and the ways, two per trip with times: its indices from the last of its starts
        on, and backwards from the first of its arrivals.
    """
    ends, ways = list[int](), list[IntArray]()
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
            last = len(parts) - 1 - (is_long[::-1].index(True) if any(is_long) else len(parts) - 1)
            ends += [rows[part[0]] for part in parts[: first + 1]]
            ends += [rows[part[-1]] for part in parts[last:]]
            if len(timed):  # vertices of a planned route can be far apart
                ways += [rows[parts[first][0] : trip[-1] + 1], rows[trip[0] : parts[last][-1] + 1][::-1]]
    return np.unique(np.array(ends, dtype=np.int64)), ways


def find_far_ends(
    points: Points, ways: Sequence[IntArray], zones: Sequence[HiddenZone], make_zone: Callable[[int], HiddenZone]
) -> list[int]:
    """Return the indices of further points at which the user may have started or arrived.

    The start of a trip can be an old location that the receiver repeats. The first point outside its zone is therefore
    also returned if the core of this point is far from the zone: by more than 100 m, and by more than three times the
    usual length of a step. So is then the first point outside the zone of this point, up to `_MAX_OLD_LOCATIONS`
    points. Zones that adjoin count as one. A further old location near them, at which the receiver rests, does not
    count as the first point outside. The result does not depend on where in their cores the points lie. The usual
    length is that of the steps that remain outside all zones, also outside those of points that are not returned then.

    Parameters
    ----------
    points, ways
        The points and the ways of `find_ends`.
    zones
        The zones, with those of the ends.
    make_zone
        Returns the zone around the point with an index.

    Returns
    -------
    list of int
        The indices.
    """
    latitude, longitude = points.values.latitude, points.values.longitude
    zones, masks = list(zones), [zone.contains(latitude, longitude) for zone in zones]
    is_hidden = np.logical_or.reduce(masks)
    rounds = list[tuple[BoolArray, dict[int, float]]]()
    while ways and len(rounds) < _MAX_OLD_LOCATIONS:
        centres = np.transpose([zone.square.centre for zone in zones])
        half_km = np.array([zone.half_km for zone in zones])
        gaps = _find_gaps_km(zones)
        far_rows = dict[int, float]()
        rests = list[IntArray]()
        added = list[HiddenZone]()
        for way in ways:
            hops = _find_hops_km(gaps, [zone.square for zone in zones].index(make_zone(int(way[0])).square))
            near = [mask[way] for mask, hop in zip(masks, hops, strict=True) if hop <= FIX_ERROR_KM]
            # Only published points may decide: the others depend on where in its core a location lies.
            rest = way[~np.logical_or.reduce([*near, is_hidden[way]])]
            repeated = list[HiddenZone]()
            while len(rest):
                zone = make_zone(int(rest[0]))
                to_core = distance_outside(zone.square, *centres) - half_km
                to_repeated = (_find_core_distance_km(other, zone) for other in repeated)
                hop = min([float(np.maximum(hops, to_core).min()), *to_repeated])
                if hop > FIX_ERROR_KM:
                    far_rows[int(rest[0])] = hop
                    rests.append(way[way.tolist().index(rest[0]) :])
                    added.append(zone)
                    break
                # Near the zone of the old location. It is a further old location if the points rest until the way is
                # outside its zone: a user who starts here would move.
                is_inside = zone.contains(latitude[rest], longitude[rest])
                count = len(rest) if is_inside.all() else int(is_inside.argmin())
                if _are_apart(points, rest[:count]):
                    break
                # A receiver that alternates between two locations returns to the same zones.
                if all(zone.square != other.square for other in repeated):
                    repeated.append(zone)
                rest = rest[count:]
        zones += added
        masks += [zone.contains(latitude, longitude) for zone in added]
        is_hidden = np.logical_or.reduce([is_hidden, *masks])
        rounds.append((is_hidden, far_rows))
        ways = rests
    # From the last round back: what decides on a round must not depend on points that it or an earlier one hides.
    for count in range(len(rounds), 0, -1):
        is_kept = ~rounds[count - 1][0]
        # Without a step, few points would remain, and 0 is the safe side.
        usual = find_usual_km(points.values, is_kept[1:] & is_kept[:-1] & (np.diff(points.track) == 0)) or 0.0
        limit = max(FIX_ERROR_KM, FAR_RATIO * usual)
        far = [[row for row, hop in hops_km.items() if hop > limit] for _, hops_km in rounds[:count]]
        if far[-1]:
            return [row for rows in far for row in rows]
    return []


def find_usual_km(points: Segment, is_step: BoolArray) -> float | None:
    """Return the 90 % quantile of steps between consecutive points, kilometres.

    None without a step.

    Parameters
    ----------
    points
        The points in order of time.
    is_step
        ``(n - 1,)``: mask of the steps that count.
    """
    rows = np.flatnonzero(is_step)
    if not len(rows):
        return None
    latitude, longitude = points.latitude, points.longitude
    lengths = distance_km(latitude[rows], longitude[rows], latitude[rows + 1], longitude[rows + 1])
    # A median would be that of a receiver at rest.
    return float(np.quantile(lengths, 0.9, method="lower"))


def _find_core_distance_km(zone: HiddenZone, other: HiddenZone) -> float:
    """Return the distance of a zone from the core of another, in the direction of the sides."""
    return float(distance_outside(other.square, *zone.square.centre)[0]) - zone.half_km


def _are_apart(points: Points, rows: IntArray) -> bool:
    """Return whether points are at several locations, up to the error of a fix."""
    latitude, longitude = points.values.latitude[rows], points.values.longitude[rows]
    return bool((distance_km(latitude, longitude, latitude[:1], longitude[:1]) > FIX_ERROR_KM).any())


def _find_gaps_km(zones: Sequence[HiddenZone]) -> FloatArray:
    """Return the distances between zones, kilometres, ``(n, n)``.

    They are those in the direction of the sides.
    """
    centres = np.transpose([zone.square.centre for zone in zones])
    half_km = np.array([zone.half_km for zone in zones])
    core_km = np.array([[zone.square.side_km / 2] for zone in zones])
    from_cores = np.stack([distance_outside(zone.square, *centres) for zone in zones])
    return np.asarray(from_cores + core_km - half_km - half_km[:, None])


def _find_hops_km(gaps: FloatArray, start: int) -> FloatArray:
    """Return the longest hop on the way from a zone to each, kilometres, ``(n,)``.

    The way leads over other zones, and is that of which the longest hop is the shortest.
    """
    hops, is_open = gaps[start].copy(), np.ones(len(gaps), dtype=np.bool_)
    for _ in range(len(gaps)):
        nearest = int(np.where(is_open, hops, np.inf).argmin())
        is_open[nearest] = False
        hops = np.minimum(hops, np.maximum(hops[nearest], gaps[nearest]))
    return np.asarray(hops)
