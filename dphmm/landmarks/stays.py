"""Detection of landmarks: stay points of a trajectory, and repeatedly visited places.

These functions read true locations. The user applies them to their own data before any release. The resulting list of
timestamps counts as public: publish a scheme's output only if that list can be disclosed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Annotated

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_instants, as_points
from dphmm.errors import BudgetError, ConfigurationError, CoordinateError, TimeOrderError
from dphmm.landmarks.budget_schemes import as_times, check_increasing
from dphmm.tolerances import MAX_SCALE, MIN_SCALE
from dphmm.validation import Interval, check_arguments

Times = npt.NDArray[np.datetime64]

# Hours from Monday 00:00 to the epoch (Thursday, 1 January 1970).
_HOURS_SINCE_MONDAY = 72

_HOUR = 3_600_000_000  # microseconds

# Minutes; longer durations would overflow 64 bits of microseconds.
_MAX_MINUTES = 1e11

StayRadius = Annotated[float, Interval(MIN_SCALE, MAX_SCALE, unit="kilometres", error=BudgetError)]
StayMinutes = Annotated[float, Interval(0, inf, "neither", "minutes", BudgetError)]
UtcOffset = Annotated[float, Interval(-24, 24, unit="hours", error=ConfigurationError)]


@dataclass(frozen=True)
class Stays:
    """Stay points: maximal runs of fixes within a radius of their first fix.

    Parameters
    ----------
    first, last
        ``(k,)`` indices of each stay's first and last fix.
    start, end
        ``(k,)`` their times, UTC.
    centre
        ``(k, d)`` mean coordinates, kilometres.
    size
        The number of fixes of the trajectory.
    """

    first: IntArray
    last: IntArray
    start: Times
    end: Times
    centre: FloatArray
    size: int

    def __len__(self) -> int:
        return len(self.first)

    def mask(self, chosen: BoolArray | None = None) -> BoolArray:
        """Return the fixes that belong to a stay: the landmark timestamps.

        Parameters
        ----------
        chosen
            ``(k,)`` mask of the stays to use. Defaults to all stays.

        Returns
        -------
        BoolArray
            ``(size,)`` mask of the fixes that belong to one of them.
        """
        inside = np.zeros(self.size + 1, dtype=np.int64)
        picked = slice(None) if chosen is None else chosen
        np.add.at(inside, self.first[picked], 1)
        np.add.at(inside, self.last[picked] + 1, -1)
        return np.cumsum(inside[:-1]) > 0


@check_arguments
def stay_points(times: npt.ArrayLike, points: npt.ArrayLike, radius_km: StayRadius, minutes: StayMinutes) -> Stays:
    """Find the stay points of a trajectory.

    The run of fixes from a fix on that are within `radius_km` of it is a stay if it lasts at least `minutes`. The
    search continues after the stay, or else at the next fix (Li et al., *Mining user similarity based on location
    history*, GIS 2008).

    Parameters
    ----------
    times
        ``(n,)`` strictly increasing ``datetime64`` or ISO strings, UTC.
    points
        ``(n, d)`` kilometres.
    radius_km
        Kilometres, positive.
    minutes
        Positive.

    Returns
    -------
    Stays
        The stays in temporal order. Can be empty.

    Raises
    ------
    TimeOrderError, CoordinateError, BudgetError
        When times are not strictly increasing, coordinates are not finite, their number differs from that of the times,
        or the radius or duration is not positive.
    ConfigurationError
        If times are numbers.
    """
    raw = as_times(times, "times")
    where = as_points(points)
    if raw.dtype.kind != "M":
        raise ConfigurationError(f"times must be datetime64 or ISO strings, UTC, got {raw.dtype}")
    try:
        stamps = as_instants(raw)
    except ValueError as problem:
        raise TimeOrderError(f"times: {problem}") from None
    if len(stamps) != len(where):
        raise CoordinateError(f"points must be one per time, got {len(where)} points and {len(stamps)} times")
    check_increasing(stamps, "times")
    reach = float(radius_km)
    needed = np.timedelta64(round(min(float(minutes), _MAX_MINUTES) * 60e6), "us")
    spans = []
    at = 0
    while at < len(stamps):
        stop = _find_departure(where, at, reach)
        if stamps[stop - 1] - stamps[at] >= needed:
            spans.append((at, stop - 1))
            at = stop
        else:
            at += 1
    first, last = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    centre = np.array([where[a : b + 1].mean(axis=0) for a, b in spans]).reshape(-1, where.shape[1])
    return Stays(first, last, stamps[first], stamps[last], centre, len(stamps))


def _find_departure(where: FloatArray, start: int, radius: float) -> int:
    """Return the first index after `start` beyond the radius, searched in growing blocks."""
    block = 16
    at = start + 1
    while at < len(where):
        far = np.flatnonzero(((where[at : at + block] - where[start]) ** 2).sum(axis=1) > radius**2)
        if far.size:
            return at + int(far[0])
        at = at + block
        block = 2 * block
    return len(where)


@dataclass(frozen=True)
class RepeatedPlaces:
    """Stays grouped into places.

    Parameters
    ----------
    place
        ``(k,)`` index of the place of each stay.
    centre
        ``(p, d)`` mean of the place's stays, weighted by duration.
    hours
        ``(p,)`` time spent there.
    visits
        ``(p,)`` number of stays.
    home, work
        Indices of places, or -1 if there is none.
    """

    place: IntArray
    centre: FloatArray
    hours: FloatArray
    visits: IntArray
    home: int
    work: int


@check_arguments
def repeated_places(stays: Stays, radius_km: StayRadius, utc_offset: UtcOffset = 0.0) -> RepeatedPlaces:
    """Group stays into places, and identify home and work by the hours spent there.

    Stays within `radius_km` of each other form one place, and so do chains of such stays. Home is the place with most
    time between 22:00 and 6:00. Work is the place other than home with most time from Monday to Friday between 9:00
    and 17:00.

    Parameters
    ----------
    stays
        Stays of one trajectory.
    radius_km
        Kilometres, positive.
    utc_offset
        Hours by which local time is ahead of UTC, constant over the trajectory, -24 to 24.

    Returns
    -------
    RepeatedPlaces
        The place of each stay, and the indices of home and work.

    Raises
    ------
    BudgetError
        When the radius is not positive.
    ConfigurationError
        When the offset is out of range.
    """
    reach = float(radius_km)
    if len(stays) == 0:
        empty = np.zeros(0, dtype=np.int64)
        return RepeatedPlaces(empty, np.zeros((0, stays.centre.shape[1])), np.zeros(0), empty, -1, -1)
    pairs = cKDTree(stays.centre).query_pairs(reach, output_type="ndarray")
    links = sparse.coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (len(stays), len(stays)))
    count, label = connected_components(links, directed=False)
    place = label.astype(np.int64)
    hours = (stays.end - stays.start) / np.timedelta64(1, "h")
    total = np.bincount(place, hours, count).astype(np.float64)
    centre = np.column_stack([np.bincount(place, hours * axis, count) / total for axis in stays.centre.T])
    shift = np.timedelta64(round(float(utc_offset) * 3600e6), "us")
    local = stays.start + shift, stays.end + shift
    night = np.bincount(place, compute_daily_overlap(*local, 22, 30, weekdays=False), count)
    home = int(night.argmax()) if night.max() > 0 else -1
    day = np.bincount(place, compute_daily_overlap(*local, 9, 17, weekdays=True), count)
    day[home if home >= 0 else slice(0, 0)] = 0.0
    work = int(day.argmax()) if day.max() > 0 else -1
    return RepeatedPlaces(place, centre, total, np.bincount(place, minlength=count), home, work)


def compute_daily_overlap(start: Times, end: Times, opens: int, closes: int, weekdays: bool) -> IntArray:
    """Compute the time of each span between two hours of the day.

    Times are integers, because rounding errors of hours would decide between places with equal times.

    Parameters
    ----------
    start, end
        ``(k,)`` local times.
    opens, closes
        Hours of the day, less than a day apart. `closes` can be on the next day.
    weekdays
        Whether only Monday to Friday count, by the day of `opens`.

    Returns
    -------
    IntArray
        ``(k,)`` microseconds.
    """
    period, days = (168, 5) if weekdays else (24, 1)
    length = (closes - opens) * _HOUR
    total = np.zeros(len(start), dtype=np.int64)
    for day in range(days):
        opening = (24 * day + opens - _HOURS_SINCE_MONDAY) * _HOUR
        for instants, sign in ((start, -1), (end, 1)):
            since = instants.astype("datetime64[us]").astype(np.int64) - opening
            whole, rest = np.divmod(since, period * _HOUR)
            total += sign * (whole * length + np.minimum(rest, length))
    return total
