"""Areas between which people move, cells or polygons within districts, which are public; and people's visits and trips.

Visits and trips follow from fixes: who stays in an area, and who goes from one to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.policy.zones import PolygonLayer, read_polygons
from dphmm.space.grid import Grid
from dphmm.space.states import OUTSIDE, StateSpace

ELSEWHERE = "elsewhere"
"""The district of areas that are in none."""

MOST_AREAS = 500_000
"""The most states that become areas; their outlines take half a gigabyte."""

_SQUARE = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5


@dataclass(frozen=True, eq=False)
class Areas:
    """Areas, each with a name, an outline and a district. Choose them without looking at the data.

    Parameters
    ----------
    names
        One for each of the n areas.
    places
        ``(n, 2)``: latitude and longitude of a point of each.
    outlines
        Their polygons in degrees, longitude first; points where a place has no extent.
    district_of
        ``(n,)``: the number of the district that each lies in.
    districts
        The names of the districts, each of which holds an area.
    space
        The states that these areas are; None where they are polygons.
    """

    names: tuple[str, ...]
    places: FloatArray
    outlines: tuple[Any, ...]
    district_of: IntArray
    districts: tuple[str, ...]
    space: StateSpace | None = None

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    @checked
    def from_space(cls, space: StateSpace, block: int = 4) -> Areas:
        """The states of a space as areas; districts are blocks of a grid's cells.

        Parameters
        ----------
        space
            A grid, or named places.
        block
            How many cells a side of a district has; 1 for no districts. Named places have none.

        Returns
        -------
        Areas
            An area for each state, in their order.

        Raises
        ------
        ConfigurationError
            When the block is less than one cell, or there are more states than `MOST_AREAS`.
        """
        if block < 1:
            raise ConfigurationError(f"districts of {block} cells a side are none; give 1 or more")
        if space.size > MOST_AREAS:
            raise ConfigurationError(f"{space.size:,} areas are too many; take larger ones, {MOST_AREAS:,} at most")
        places = space.latlon()
        if not isinstance(space, Grid):
            names = tuple(getattr(space, "names", map(str, range(space.size))))
            points = tuple(shapely.points(places[:, 1], places[:, 0]))
            return cls(names, places, points, np.zeros(space.size, dtype=np.int64), ("everywhere",), space)
        corners = space.points[:, None, :] + space.cell_km * _SQUARE
        degrees = space.projection.to_latlon(corners.reshape(-1, 2)).reshape(-1, 4, 2)[:, :, ::-1]
        names = tuple(f"{column}-{row}" for column, row in space.lattice.tolist())
        columns, rows = (space.lattice // block).T
        found, district_of = np.unique(rows * space.columns + columns, return_inverse=True)
        blocks = tuple(f"block {one % space.columns}-{one // space.columns}" for one in found.tolist())
        return cls(names, places, tuple(shapely.polygons(degrees)), district_of.astype(np.int64), blocks, space)

    @classmethod
    def from_polygons(
        cls, layer: str | Path | PolygonLayer, label: str | None = None, district: str | Path | None = None
    ) -> Areas:
        """The polygons of a layer as areas: those of one name are one area.

        Parameters
        ----------
        layer
            As `dphmm.policy.zones.read_polygons` takes it.
        label
            The property that names an area; left out, ``category`` or ``name``.
        district
            A property of the same polygons that names their district, or the file of a layer of districts, each
            holding the areas that have their point within it. Left out, there are none.

        Returns
        -------
        Areas
            In the order of the layer.

        Raises
        ------
        DataFileError
            When a layer cannot be read, or areas of one name are in several districts.
        """
        shapes: dict[str, list[shapely.Geometry]] = {}
        for name, shape in read_polygons(layer, label):
            shapes.setdefault(name, []).append(shape)
        outlines = tuple(one[0] if len(one) == 1 else shapely.union_all(one) for one in shapes.values())
        inner = shapely.get_coordinates(shapely.point_on_surface(outlines))
        names, of = tuple(shapes), ["everywhere"] * len(shapes)
        if district is not None and Path(district).suffix:
            within = [(name, shape) for name, shape in read_polygons(district)]
            of = [next((n for n, shape in within if shapely.intersects_xy(shape, *at)), ELSEWHERE) for at in inner]
        elif district is not None:
            pairs = zip(read_polygons(layer, label), read_polygons(layer, str(district)), strict=True)
            found = {(area, one) for (area, _), (one, _) in pairs}
            if len(found) != len(names):
                raise DataFileError(str(layer), f"has areas of one name in several of {district!r}; name them apart")
            of = [dict(found)[name] for name in names]
        districts = tuple(dict.fromkeys(of))
        numbers = np.array([districts.index(one) for one in of], dtype=np.int64)
        return cls(names, inner[:, ::-1].copy(), outlines, numbers, districts)

    @cached_property
    def _tree(self) -> shapely.STRtree:
        return shapely.STRtree(self.outlines)

    def locate(self, latitude: FloatArray, longitude: FloatArray) -> IntArray:
        """The area of each place, -1 where it is in none; where polygons overlap, the first that holds it.

        Parameters
        ----------
        latitude, longitude
            ``(m,)`` degrees.

        Returns
        -------
        IntArray
            ``(m,)``.
        """
        if self.space is not None:
            return self.space.locate(latitude, longitude)
        found = np.full(len(latitude), len(self), dtype=np.int64)
        at, which = self._tree.query(shapely.points(longitude, latitude), predicate="intersects")
        np.minimum.at(found, at, which)
        return np.where(found == len(self), OUTSIDE, found)

    def __getstate__(self) -> dict[str, Any]:
        """Without the tree, which is made anew in another process."""
        return {name: value for name, value in vars(self).items() if name != "_tree"}


def named(areas: Areas, numbers: IntArray) -> Sequence[str]:
    """The names of areas by number."""
    return [areas.names[number] for number in numbers.tolist()]


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
