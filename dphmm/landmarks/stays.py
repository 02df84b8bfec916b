"""Finding landmarks: stay points of a trajectory, and the places that a person keeps coming back to.

This reads true locations. It is the person's own act on their own data, before any release; the list of timestamps
that comes of it counts as public afterwards, so publish a scheme's output only where that list may be known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from dphmm.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    as_instants,
    as_numbers,
    as_points,
    check_budget,
    check_epsilon,
)
from dphmm.errors import ConfigurationError, CoordinateError, TimeOrderError
from dphmm.landmarks.schemes import as_times, check_increasing

Times = npt.NDArray[np.datetime64]

_MONDAY = 72
"""1970 began on a Thursday, this many hours after a Monday."""

_LONGEST = 1e11
"""Minutes, more than 64 bits of microseconds can tell apart: no stay is that long."""


@dataclass(frozen=True)
class Stays:
    """Maximal runs of fixes within a radius of their first one that last long enough.

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
        """``(size,)``: which fixes belong to a stay (one of the chosen stays, where given): landmark timestamps.

        Parameters
        ----------
        chosen
            ``(k,)`` booleans: which stays count; left out, all.

        Returns
        -------
        BoolArray
            ``(size,)``: whether each fix belongs to one of them.
        """
        inside = np.zeros(self.size + 1, dtype=np.int64)
        picked = slice(None) if chosen is None else chosen
        np.add.at(inside, self.first[picked], 1)
        np.add.at(inside, self.last[picked] + 1, -1)
        return np.cumsum(inside[:-1]) > 0


def stay_points(times: npt.ArrayLike, points: npt.ArrayLike, radius: float, minutes: float) -> Stays:
    """The stays of a trajectory (Li et al., *Mining user similarity based on location history*, GIS 2008).

    From each fix on, the run of fixes within `radius` of it is a stay if it lasts `minutes`; the search goes on behind
    it, or with the next fix when it does not.

    Parameters
    ----------
    times
        ``(n,)`` strictly increasing ``datetime64`` or ISO strings, UTC.
    points
        ``(n, d)`` kilometres.
    radius
        Kilometres, positive.
    minutes
        Positive.

    Returns
    -------
    Stays
        In order of time; none may have been found.

    Raises
    ------
    TimeOrderError, CoordinateError, BudgetError
        For times that go back, coordinates that are not finite or not as many as the times, a radius or duration that
        is not positive.
    """
    raw, where = as_times(times, "times"), as_points(points)
    if raw.dtype.kind != "M":
        raise ConfigurationError(f"times are {raw.dtype}; give datetime64 or ISO strings, UTC")
    try:
        stamps = as_instants(raw)
    except ValueError as problem:
        raise TimeOrderError(f"times: {problem}") from None
    if len(stamps) != len(where):
        raise CoordinateError(f"there are {len(where)} points and {len(stamps)} times; give one point per time")
    check_increasing(stamps, "times")
    reach = check_budget(radius, "radius")
    needed = np.timedelta64(round(min(check_epsilon(minutes, "minutes"), _LONGEST) * 60e6), "us")
    spans = []
    at = 0
    while at < len(stamps):
        stop = _leaves(where, at, reach)
        if stamps[stop - 1] - stamps[at] >= needed:
            spans.append((at, stop - 1))
            at = stop
        else:
            at += 1
    first, last = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    centre = np.array([where[a : b + 1].mean(axis=0) for a, b in spans]).reshape(-1, where.shape[1])
    return Stays(first, last, stamps[first], stamps[last], centre, len(stamps))


def _leaves(where: FloatArray, start: int, radius: float) -> int:
    """The first index after `start` that is farther than the radius, looked for in growing blocks."""
    block, at = 16, start + 1
    while at < len(where):
        far = np.flatnonzero(((where[at : at + block] - where[start]) ** 2).sum(axis=1) > radius**2)
        if far.size:
            return at + int(far[0])
        at, block = at + block, 2 * block
    return len(where)


@dataclass(frozen=True)
class RepeatedPlaces:
    """Stays grouped into places.

    Parameters
    ----------
    place
        ``(k,)`` the place of each stay.
    centre
        ``(p, d)`` mean of the place's stays, weighted by duration.
    hours
        ``(p,)`` time spent there.
    visits
        ``(p,)`` number of stays.
    home, work
        Indices of places, or -1 where there is none.
    """

    place: IntArray
    centre: FloatArray
    hours: FloatArray
    visits: IntArray
    home: int
    work: int


def repeated_places(stays: Stays, radius: float, utc_offset: float = 0.0) -> RepeatedPlaces:
    """Group stays into places, and name home and work by the hours spent there.

    Stays within `radius` of each other are one place, and so are chains of them. Home is where most time between 22 and
    6 o'clock is spent; work is where most time from Monday to Friday between 9 and 17 o'clock is spent, home aside.

    Parameters
    ----------
    stays
        Of one trajectory.
    radius
        Kilometres, positive.
    utc_offset
        Hours by which local time is ahead of UTC, constant over the trajectory, -24 to 24.

    Returns
    -------
    RepeatedPlaces
        The place of each stay, and which places are home and work.

    Raises
    ------
    BudgetError
        For a radius that is not positive.
    ConfigurationError
        For an offset out of range.
    """
    reach = check_budget(radius, "radius")
    offset = as_numbers(utc_offset, "utc_offset", ConfigurationError)
    if not (offset.shape == () and -24 <= offset <= 24):
        raise ConfigurationError(f"utc_offset is {utc_offset}; give hours from -24 to 24")
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
    shift = np.timedelta64(round(float(offset) * 3600e6), "us")
    local = stays.start + shift, stays.end + shift
    night = np.bincount(place, hours_within(*local, 22, 30, weekdays=False), count)
    home = int(night.argmax()) if night.max() > 0 else -1
    day = np.bincount(place, hours_within(*local, 9, 17, weekdays=True), count)
    day[home if home >= 0 else slice(0, 0)] = 0.0
    work = int(day.argmax()) if day.max() > 0 else -1
    return RepeatedPlaces(place, centre, total, np.bincount(place, minlength=count), home, work)


def hours_within(start: Times, end: Times, opens: int, closes: int, weekdays: bool) -> FloatArray:
    """Hours of each span between two hours of the day; `closes` may reach into the next day.

    Parameters
    ----------
    start, end
        ``(k,)`` local times.
    opens, closes
        Hours of the day, less than a day apart.
    weekdays
        Whether days count from Monday to Friday alone, by the day on which they open.

    Returns
    -------
    FloatArray
        ``(k,)``.
    """
    period, days = (168, 5) if weekdays else (24, 1)
    hours = [(one.astype("datetime64[us]").astype(np.int64) / 3.6e9 + _MONDAY) for one in (start, end)]
    found = np.zeros(len(start))
    for day in range(days):
        for one, sign in zip(hours, (-1, 1), strict=True):
            since = one - 24 * day - opens
            whole = np.floor(since / period)
            found += sign * (whole * (closes - opens) + np.minimum(since - period * whole, closes - opens))
    return np.asarray(np.maximum(found, 0.0))
