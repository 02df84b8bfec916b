"""Visits and trips of people, out of their fixes: who stays in an area, and who goes from one to another."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.space.states import OUTSIDE

_EARTH_KM = 6371.0088


@dataclass(frozen=True)
class Visits:
    """Visits of people, each person's together and in order of time, and which of them a trip joins with the next.

    Attributes
    ----------
    person
        ``(v,)``: whose visit, numbers that do not fall.
    area
        ``(v,)``: where.
    start, end
        ``(v,)``: the first and the last fix there, microseconds since 1970, UTC.
    latitude, longitude
        ``(v,)``: the last fix there, degrees.
    leads_on
        ``(v,)``: whether a trip leads to the next visit, of the same person in another area.
    """

    person: IntArray
    area: IntArray
    start: IntArray
    end: IntArray
    latitude: FloatArray
    longitude: FloatArray
    leads_on: BoolArray

    def __len__(self) -> int:
        return len(self.person)

    @property
    def trips(self) -> IntArray:
        """``(t,)``: the visits from which trips lead to the next one."""
        return np.flatnonzero(self.leads_on)

    @property
    def lengths(self) -> FloatArray:
        """``(t,)``: of each trip, kilometres from the last fix of one visit to that of the next."""
        at = self.trips
        latitude, longitude = np.radians(self.latitude), np.radians(self.longitude)
        north = np.sin((latitude[at + 1] - latitude[at]) / 2) ** 2
        east = np.sin((longitude[at + 1] - longitude[at]) / 2) ** 2 * np.cos(latitude[at]) * np.cos(latitude[at + 1])
        return np.asarray(2 * _EARTH_KM * np.arcsin(np.sqrt(np.minimum(north + east, 1.0))))

    def some(self, chosen: BoolArray) -> Visits:
        """Those that are chosen, with the trips that lead from them."""
        return Visits(*(getattr(self, one.name)[chosen] for one in fields(self)))


def visits_of(
    person: IntArray,
    times: npt.NDArray[np.int64],
    areas: IntArray,
    latitude: FloatArray,
    longitude: FloatArray,
    stay_seconds: float,
    gap_seconds: float,
) -> Visits:
    """The visits that fixes tell of.

    A visit is a run of fixes in one area that lasts long enough. Shorter runs elsewhere, or outside, do not end one; a
    time without fixes that is longer than the gap does. A trip leads from a visit to the next one in another area, if
    no longer than the gap passed between them and the person did not stay outside all areas meanwhile.

    Parameters
    ----------
    person
        ``(n,)``: whose fix, numbers that do not fall.
    times
        ``(n,)``: microseconds since 1970, increasing for each person.
    areas
        ``(n,)``: the area of each fix, -1 outside all of them.
    latitude, longitude
        ``(n,)`` degrees.
    stay_seconds
        How long a visit lasts at least, from its first to its last fix; 0 for check-ins.
    gap_seconds
        The longest time without a fix through which a person is followed.

    Returns
    -------
    Visits
        Of everyone.
    """
    gap, stay = round(gap_seconds * 1e6), round(stay_seconds * 1e6)
    first = _starts(person, areas, times, times, gap)
    last = np.append(first[1:], len(person)) - 1 if len(first) else first
    kept = times[last] - times[first] >= stay
    first, last = first[kept], last[kept]
    # What lay between was no visit: runs in one area on both sides of it are one.
    at = _starts(person[first], areas[first], times[first], times[last], gap)
    first, last = first[at], last[np.append(at[1:], len(last)) - 1] if len(at) else last[:0]
    who, where, start, end = person[first], areas[first], times[first], times[last]
    onwards = np.zeros(len(first), dtype=np.bool_)
    onwards[:-1] = (who[1:] == who[:-1]) & (where[1:] != where[:-1]) & (start[1:] - end[:-1] <= gap)
    onwards[:-1] &= (where[1:] != OUTSIDE) & (where[:-1] != OUTSIDE)
    return Visits(who, where, start, end, latitude[last], longitude[last], onwards).some(where != OUTSIDE)


def _starts(person: IntArray, areas: IntArray, start: IntArray, end: IntArray, gap: int) -> IntArray:
    """Where runs of one person in one area without a long gap begin."""
    new = np.ones(len(person), dtype=np.bool_)
    new[1:] = (person[1:] != person[:-1]) | (areas[1:] != areas[:-1]) | (start[1:] - end[:-1] > gap)
    return np.flatnonzero(new)
