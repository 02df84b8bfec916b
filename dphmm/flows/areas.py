"""Public areas (cells or polygons within districts), and visits and trips of users.

Visits and trips are derived from fixes: a stay in an area, and a move from one area to another.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.policy.zones import PolygonLayer, read_polygons
from dphmm.space.grid import Grid
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.validation import Integers, check_arguments

# The district of areas outside all districts.
OUTSIDE_DISTRICTS = "elsewhere"

# Maximum number of states as areas. Their outlines take half a gigabyte.
MAX_AREAS = 500_000

_SQUARE = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5


@dataclass(frozen=True, eq=False)
class Areas:
    """Areas with name, outline and district. Choose them independently of the data.

    Parameters
    ----------
    names
        One name for each of the n areas.
    places
        ``(n, 2)``: latitude and longitude of a point of each.
    outlines
        Polygons in degrees, longitude first; points for places without extent.
    district_of
        ``(n,)`` index of each area's district.
    districts
        The names of the districts. Each contains an area.
    space
        The state space of these areas. None for polygons.
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
    @check_arguments
    def from_space(cls, space: StateSpace, block: Annotated[int, Integers(1, error=ConfigurationError)] = 4) -> Areas:
        """Build areas from the states of a space, with blocks of grid cells as districts.

        Parameters
        ----------
        space
            A grid, or named places.
        block
            Side of a district in cells; 1 for no districts. Named places have no districts.

        Returns
        -------
        Areas
            One area for each state, in the same order.

        Raises
        ------
        ConfigurationError
            When the block is less than one cell, or there are more states than `MAX_AREAS`.
        """
        if space.size > MAX_AREAS:
            raise ConfigurationError(f"areas must be at most {MAX_AREAS:,}, got {space.size:,} areas: use larger cells")
        places = space.latlon()
        if not isinstance(space, Grid):
            names = tuple(getattr(space, "names", map(str, range(space.size))))
            points = tuple(shapely.points(places[:, 1], places[:, 0]))
            return cls(names, places, points, np.zeros(space.size, dtype=np.int64), ("everywhere",), space)
        corners = space.points[:, None, :] + space.cell_km * _SQUARE
        degrees = space.projection.to_latlon(corners.reshape(-1, 2)).reshape(-1, 4, 2)[:, :, ::-1]
        names = tuple(f"{column}-{row}" for column, row in space.lattice.tolist())
        columns, rows = (space.lattice // block).T
        block_numbers, district_of = np.unique(rows * space.columns + columns, return_inverse=True)
        blocks = tuple(f"block {number % space.columns}-{number // space.columns}" for number in block_numbers.tolist())
        return cls(names, places, tuple(shapely.polygons(degrees)), district_of.astype(np.int64), blocks, space)

    @classmethod
    def from_polygons(
        cls, layer: str | Path | PolygonLayer, label: str | None = None, district: str | Path | None = None
    ) -> Areas:
        """Build areas from the polygons of a layer. Polygons of one name form one area.

        Parameters
        ----------
        layer
            As for `dphmm.policy.zones.read_polygons`.
        label
            The property with an area's name. Defaults to ``category`` or ``name``.
        district
            The property of the same polygons with the name of their district, or a file of districts. A district of a
            file contains the areas with their point inside it. Defaults to no districts.

        Returns
        -------
        Areas
            The areas, in the order of the layer.

        Raises
        ------
        DataFileError
            When a layer cannot be read, or areas of one name are in several districts.
        """
        shapes: dict[str, list[shapely.Geometry]] = {}
        for name, shape in read_polygons(layer, label):
            shapes.setdefault(name, []).append(shape)
        outlines = tuple(parts[0] if len(parts) == 1 else shapely.union_all(parts) for parts in shapes.values())
        inner = shapely.get_coordinates(shapely.point_on_surface(outlines))
        names = tuple(shapes)
        of = ["everywhere"] * len(shapes)
        if district is not None and Path(district).suffix:
            within = [(name, shape) for name, shape in read_polygons(district)]
            of = [
                next((n for n, shape in within if shapely.intersects_xy(shape, *at)), OUTSIDE_DISTRICTS) for at in inner
            ]
        elif district is not None:
            pairs = zip(read_polygons(layer, label), read_polygons(layer, str(district)), strict=True)
            district_pairs = {(area, name) for (area, _), (name, _) in pairs}
            if len(district_pairs) != len(names):
                raise DataFileError(str(layer), f"areas of one name must have one {district!r}: use distinct names")
            of = [dict(district_pairs)[name] for name in names]
        districts = tuple(dict.fromkeys(of))
        numbers = np.array([districts.index(district_name) for district_name in of], dtype=np.int64)
        return cls(names, inner[:, ::-1].copy(), outlines, numbers, districts)

    def locate(self, latitude: FloatArray, longitude: FloatArray) -> IntArray:
        """Return the area of each location, -1 outside. The first of overlapping polygons.

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
        nearest = np.full(len(latitude), len(self), dtype=np.int64)
        # A tree of the points, not of the outlines: GEOS prepares the geometries of a query, once for all points.
        points = shapely.STRtree(shapely.points(longitude, latitude))
        which, at = points.query(self.outlines, predicate="intersects")
        np.minimum.at(nearest, at, which)
        return np.where(nearest == len(self), OUTSIDE, nearest)


_EARTH_KM = 6371.0088


@dataclass(frozen=True)
class Visits:
    """Visits of users, grouped by user in temporal order, and the trips between them.

    Attributes
    ----------
    user
        ``(v,)`` user index of each visit, non-decreasing.
    area
        ``(v,)`` area of each visit.
    start, end
        ``(v,)`` times of the first and the last fix, microseconds since 1970, UTC.
    latitude, longitude
        ``(v,)`` location of the last fix, degrees.
    leads_on
        ``(v,)`` whether a trip leads to the next visit, of the same user in another area.
    """

    user: IntArray
    area: IntArray
    start: IntArray
    end: IntArray
    latitude: FloatArray
    longitude: FloatArray
    leads_on: BoolArray

    def __len__(self) -> int:
        return len(self.user)

    @property
    def trips(self) -> IntArray:
        """Indices of the visits from which trips start, ``(t,)``."""
        return np.flatnonzero(self.leads_on)

    @property
    def lengths(self) -> FloatArray:
        """Length of each trip in kilometres between last fixes of visits, ``(t,)``."""
        at = self.trips
        latitude = np.radians(self.latitude)
        longitude = np.radians(self.longitude)
        north = np.sin((latitude[at + 1] - latitude[at]) / 2) ** 2
        east = np.sin((longitude[at + 1] - longitude[at]) / 2) ** 2 * np.cos(latitude[at]) * np.cos(latitude[at + 1])
        return np.asarray(2 * _EARTH_KM * np.arcsin(np.sqrt(np.minimum(north + east, 1.0))))

    def select(self, chosen: BoolArray) -> Visits:
        """Select visits, with the trips that start from them."""
        return Visits(*(getattr(self, field.name)[chosen] for field in fields(self)))


def derive_visits(
    user: IntArray,
    times: npt.NDArray[np.int64],
    areas: IntArray,
    latitude: FloatArray,
    longitude: FloatArray,
    stay_seconds: float,
    gap_seconds: float,
) -> Visits:
    """Derive visits from fixes.

    A visit is a run of fixes in one area with the minimum duration. Shorter runs in other areas, or outside, do not end
    a visit; a time without fixes longer than the gap does. A trip leads from a visit to the next one in another area if
    the time between them is at most the gap and the user did not stay outside all areas in between.

    Parameters
    ----------
    user
        ``(n,)`` user index of each fix, non-decreasing.
    times
        ``(n,)`` microseconds since 1970, increasing for each user.
    areas
        ``(n,)`` area of each fix, -1 outside all areas.
    latitude, longitude
        ``(n,)`` degrees.
    stay_seconds
        Minimum duration of a visit, from its first to its last fix; 0 for check-ins.
    gap_seconds
        Maximum time without a fix over which a user is followed.

    Returns
    -------
    Visits
        Visits of all users.
    """
    gap = round(gap_seconds * 1e6)
    stay = round(stay_seconds * 1e6)
    first = _find_run_starts(user, areas, times, times, gap)
    last = np.append(first[1:], len(user)) - 1 if len(first) else first
    kept = times[last] - times[first] >= stay
    first = first[kept]
    last = last[kept]
    # The runs in between are not visits, so runs in one area on both sides are merged.
    at = _find_run_starts(user[first], areas[first], times[first], times[last], gap)
    first = first[at]
    last = last[np.append(at[1:], len(last)) - 1] if len(at) else last[:0]
    user_of_visit = user[first]
    where = areas[first]
    start = times[first]
    end = times[last]
    onwards = np.zeros(len(first), dtype=np.bool_)
    onwards[:-1] = (user_of_visit[1:] == user_of_visit[:-1]) & (where[1:] != where[:-1]) & (start[1:] - end[:-1] <= gap)
    onwards[:-1] &= (where[1:] != OUTSIDE) & (where[:-1] != OUTSIDE)
    return Visits(user_of_visit, where, start, end, latitude[last], longitude[last], onwards).select(where != OUTSIDE)


def _find_run_starts(user: IntArray, areas: IntArray, start: IntArray, end: IntArray, gap: int) -> IntArray:
    """Return the starts of runs of one user in one area without a long gap."""
    new = np.ones(len(user), dtype=np.bool_)
    new[1:] = (user[1:] != user[:-1]) | (areas[1:] != areas[:-1]) | (start[1:] - end[:-1] > gap)
    return np.flatnonzero(new)
