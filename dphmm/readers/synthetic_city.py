"""A synthetic city and synthetic users, as phones would record their days.

The users move between home, work and leisure.
The city has streets, a river with three bridges and five districts. It lies at 45° N 30° W, in the open Atlantic, so
that its map contains no real place. It uses no real data and downloads nothing, and the same seed gives the same users.
It is suitable for examples and tests. Results on it are not evidence of performance on real movement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import shapely

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import ConfigurationError
from dphmm.random import RandomSource, Rng, as_random_source
from dphmm.space.projection import LocalProjection
from dphmm.space.trajectory import Trajectory

CENTRE = LocalProjection(45.0, -30.0)
HALF_WIDTH_KM = 3.0
_BLOCKS = 12
_JITTER_KM = 0.09
_CLOSED_SHARE = 0.12
_BRIDGES = (2, 6, 10)
_RIVER_ROW = 5
_AVENUES = (2, 6, 10)
_BORDER_KM = 3.2
# Corners that are this close to a district's border belong to it.
_SHARED_KM = 1e-9

# A street corner, named by its column and row in the street plan.
Corner = tuple[int, int]


@dataclass(frozen=True)
class City:
    """The map of the synthetic city.

    Parameters
    ----------
    projection
        The local plane.
    streets
        A connected graph of street corners; node attribute ``point`` is the corner in kilometres, edge attribute
        ``effort`` its length in kilometres, reduced on avenues, where movement is faster.
    districts
        Name → the district's outline in the plane, in kilometres. Together they cover the city without overlap.
    """

    projection: LocalProjection
    streets: Any
    districts: Mapping[str, shapely.Polygon]

    def find_corners(self, *districts: str) -> list[Corner]:
        """Return the street corners in the named districts, in the order of the plan."""
        area = shapely.union_all([self.districts[name] for name in districts])
        points = self.streets.nodes(data="point")
        return sorted(corner for corner, point in points if area.contains(shapely.Point(point)))

    def get_point(self, corner: Corner) -> FloatArray:
        """Return the location of a corner in the plane, kilometres, ``(2,)``."""
        point: FloatArray = self.streets.nodes[corner]["point"]
        return point

    def route(self, start: Corner, end: Corner) -> FloatArray:
        """Return the corners of the fastest route between two corners, kilometres, ``(n, 2)``."""
        way = nx.shortest_path(self.streets, start, end, weight="effort")
        return np.array([self.get_point(corner) for corner in way])

    @property
    def box(self) -> tuple[float, float, float, float]:
        """South, west, north, east of a box around the city in degrees, see `Grid.over`."""
        square = shapely.get_coordinates(shapely.box(-_BORDER_KM, -_BORDER_KM, _BORDER_KM, _BORDER_KM))
        places = self.projection.to_latlon(square)
        (south, west) = places.min(axis=0)
        (north, east) = places.max(axis=0)
        return float(south), float(west), float(north), float(east)

    def build_districts_geojson(self) -> dict[str, Any]:
        """Return the districts as a GeoJSON feature collection with the property ``name``.

        Degrees are rounded to six decimals. Neighbouring districts have all corners of their shared border in common,
        so that they neither overlap nor leave a gap after rounding.
        """
        features = []
        all_corners = np.unique(shapely.get_coordinates(list(self.districts.values())), axis=0)
        for name, outline in self.districts.items():
            exterior = shapely.orient_polygons(outline).exterior
            on_border = all_corners[shapely.distance(exterior, shapely.points(all_corners)) < _SHARED_KM]
            distances = shapely.line_locate_point(exterior, shapely.points(on_border))
            corners = on_border[np.argsort(distances)]
            corners = np.concatenate([corners, corners[:1]])
            ring = np.round(self.projection.to_latlon(corners)[:, ::-1], 6).tolist()
            geometry = {"type": "Polygon", "coordinates": [ring]}
            features.append({"type": "Feature", "properties": {"name": name}, "geometry": geometry})
        return {"type": "FeatureCollection", "features": features}


def build_city(rng: Rng = 1, blocks: int = _BLOCKS) -> City:
    """Build the city. The same seed and number of blocks give the same city.

    Parameters
    ----------
    rng
        Determines the bends of the streets and which are closed. Nothing private depends on it.
    blocks
        The number of blocks along each side of 6 km, a multiple of 12. With 12 they are 500 m wide, with 60 they are
        100 m wide, as in many real cities.

    Returns
    -------
    City
        The map.

    Raises
    ------
    ConfigurationError
        If `blocks` is not a positive multiple of 12.
    """
    if blocks < 1 or blocks % _BLOCKS:
        raise ConfigurationError(f"blocks must be a positive multiple of {_BLOCKS}, got {blocks}")
    source = as_random_source(rng)
    return City(CENTRE, _build_streets(source, blocks // _BLOCKS), _build_districts())


def _build_streets(source: RandomSource, finer: int) -> Any:
    """Build a square plan of bent streets, some of them closed. The graph stays connected."""
    count = _BLOCKS * finer + 1
    regular = np.linspace(-HALF_WIDTH_KM, HALF_WIDTH_KM, count)
    bends = (2 * source.sample_uniform((count, count, 2)) - 1) * _JITTER_KM / finer
    bridges, avenues = ([finer * row for row in rows] for rows in (_BRIDGES, _AVENUES))
    river_row = finer * _RIVER_ROW + finer // 2
    streets: Any = nx.grid_2d_graph(count, count)
    for (column, row), corner in streets.nodes.items():
        corner["point"] = np.array([regular[column], regular[row]]) + bends[column, row]
    ways = [(column, river_row) for column in range(count) if column not in bridges]
    streets.remove_edges_from([((column, row), (column, row + 1)) for column, row in ways])
    for crossing, other, street in streets.edges(data=True):
        street["avenue"] = (crossing[0] if crossing[0] == other[0] else crossing[1]) in avenues
        length = float(np.hypot(*(streets.nodes[crossing]["point"] - streets.nodes[other]["point"])))
        street["effort"] = length / (1.6 if street["avenue"] else 1.0)
    lanes = sorted((crossing, other) for crossing, other, avenue in streets.edges(data="avenue") if not avenue)
    for (crossing, other), draw in zip(lanes, source.sample_uniform(len(lanes)), strict=True):
        if draw < _CLOSED_SHARE:
            street = dict(streets.edges[crossing, other])
            streets.remove_edge(crossing, other)
            if not nx.has_path(streets, crossing, other):
                streets.add_edge(crossing, other, **street)
    return streets


def _build_districts() -> dict[str, shapely.Polygon]:
    """Return the old town, two districts around it, and two south of the river."""
    river = -0.25
    old_town = shapely.Polygon([(-1.2, river), (1.2, river), (1.2, 1.0), (0.7, 1.7), (-0.7, 1.7), (-1.2, 1.0)])
    return {
        "Old Town": old_town,
        "University": shapely.box(-_BORDER_KM, river, 0.0, _BORDER_KM).difference(old_town),
        "Gardens": shapely.box(0.0, river, _BORDER_KM, _BORDER_KM).difference(old_town),
        "Harbour": shapely.box(-_BORDER_KM, -_BORDER_KM, 0.4, river),
        "Works": shapely.box(0.4, -_BORDER_KM, _BORDER_KM, river),
    }


# A Thursday: five days include three working days and a weekend.
FIRST_DAY = np.datetime64("2024-03-07", "us")

# Hours to add to the city's clock for UTC.
UTC_OFFSET_HOURS = 2

_HOUR = 3600.0
_SPEEDS_KMH = (4.8, 14.0, 26.0)
_REST_KM = 0.006
_MOVING_KM = 0.010
_OFF_SHARE = 0.2
_MISSED_SHARE = 0.01


class _Dice(RandomSource):
    """A random source with the distributions that a diary needs."""

    def sample_between(self, low: float, high: float) -> float:
        return low + (high - low) * float(self.sample_uniform(1)[0])

    def happens(self, share: float) -> bool:
        return self.sample_between(0.0, 1.0) < share

    def pick(self, corners: list[Corner]) -> Corner:
        return corners[int(self.sample_between(0.0, len(corners)))]

    def sample_normal(self, count: int) -> FloatArray:
        """Independent planar normal errors, shape ``(count, 2)`` (Box and Muller, 1958)."""
        radius = np.sqrt(-2 * np.log(self.sample_uniform(count)))
        angle = 2 * np.pi * self.sample_uniform(count)
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])


class _Diary:
    """One user's days as a polyline in time: seconds since the first midnight, and km."""

    def __init__(self, city: City, haunts: list[Corner], dice: _Dice) -> None:
        self.city = city
        self.home = self.corner = dice.pick(city.find_corners("Gardens", "University", "Harbour"))
        self.work = dice.pick(city.find_corners("Works", "Old Town", "University"))
        self.speed_kmh = _SPEEDS_KMH[int(dice.sample_between(0, len(_SPEEDS_KMH)))]
        self.haunts = (dice.pick(haunts), dice.pick(haunts))
        self.seconds = [0.0]
        self.points = [city.get_point(self.home)]

    def stay_until(self, second: float) -> None:
        if second > self.seconds[-1]:
            self.seconds.append(second)
            self.points.append(self.points[-1])

    def go(self, corner: Corner) -> None:
        way = self.city.route(self.corner, corner)
        for before, after in pairwise(way):
            hours = float(np.hypot(*(after - before))) / self.speed_kmh
            self.seconds.append(self.seconds[-1] + hours * _HOUR)
            self.points.append(after)
        self.corner = corner

    def stay(self, hours: float) -> None:
        self.stay_until(self.seconds[-1] + hours * _HOUR)

    def interpolate_locations(self, seconds: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Return the locations at the given times, ``(n, 2)``, and whether the user rests there."""
        places = np.array(self.points)
        along = np.column_stack([np.interp(seconds, self.seconds, places[:, axis]) for axis in (0, 1)])
        leg = np.clip(np.searchsorted(self.seconds, seconds, side="right") - 1, 0, len(places) - 2)
        return along, (places[leg] == places[leg + 1]).all(axis=1)


def sample_synthetic_trajectories(
    users: int = 12, days: int = 5, step_minutes: float = 5.0, *, city: City | None = None, rng: Rng = 1
) -> tuple[Trajectory, ...]:
    """Sample trajectories of synthetic users of the synthetic city, from 2024-03-07 on.

    There is a fix at every step, with an error of 6 m at rest and 10 m in motion (standard deviation along each axis).
    One fix in a hundred is missing, and on one day in five the phone is off for one to two hours. On working days users
    go to work and back, some to lunch and some out in the evening; on other days they go out.

    Parameters
    ----------
    users
        Number of users, 1 to 99.
    days
        Number of days, at least 1.
    step_minutes
        Minutes between fixes, positive.
    city
        The city. Defaults to `build_city()`.
    rng
        Determines the users and their days.

    Returns
    -------
    tuple of Trajectory
        One for each user, named from ``p01`` on.

    Raises
    ------
    ConfigurationError
        For arguments outside these ranges.

    Examples
    --------
    >>> first, second = sample_synthetic_trajectories(users=2, days=1)
    >>> first.user, len(first) > 200
    ('p01', True)
    """
    if not 1 <= users <= 99 or days < 1 or not step_minutes > 0:
        raise ConfigurationError(
            f"users must be in 1..99, days at least 1 and step_minutes positive, got {users}, {days} and {step_minutes}"
        )
    city = city or build_city()
    dice = _Dice(as_random_source(rng).bytes)
    haunts = [dice.pick(city.find_corners("Old Town", "Harbour")) for _ in range(6)]
    diaries = [_Diary(city, haunts, dice) for _ in range(users)]
    trajectories = []
    for number, diary in enumerate(diaries, start=1):
        _fill_diary(diary, days, dice)
        trajectories.append(_record_trajectory(f"p{number:02d}", diary, days, step_minutes, dice))
    return tuple(trajectories)


def _fill_diary(diary: _Diary, days: int, dice: _Dice) -> None:
    for day in range(days):
        midnight = day * 24 * _HOUR
        weekday = (day + 3) % 7 < 5  # the first day is a Thursday, day 3 of a week from Monday
        (_add_working_day if weekday else _add_free_day)(diary, midnight, dice)
        diary.go(diary.home)
        diary.stay_until(midnight + 24 * _HOUR)


def _add_working_day(diary: _Diary, midnight: float, dice: _Dice) -> None:
    diary.stay_until(midnight + dice.sample_between(7.0, 9.0) * _HOUR)
    diary.go(diary.work)
    if dice.happens(0.5):
        diary.stay_until(midnight + dice.sample_between(11.8, 12.6) * _HOUR)
        diary.go(diary.haunts[0])
        diary.stay(dice.sample_between(0.5, 0.8))
        diary.go(diary.work)
    diary.stay_until(midnight + dice.sample_between(16.5, 18.0) * _HOUR)
    if dice.happens(0.4):
        diary.go(diary.haunts[1])
        diary.stay(dice.sample_between(1.0, 2.0))


def _add_free_day(diary: _Diary, midnight: float, dice: _Dice) -> None:
    for haunt, share, earliest in ((0, 0.8, 9.5), (1, 0.6, 14.0)):
        if dice.happens(share):
            diary.stay_until(midnight + dice.sample_between(earliest, earliest + 1.5) * _HOUR)
            diary.go(diary.haunts[haunt])
            diary.stay(dice.sample_between(1.0, 2.5))


def _record_trajectory(user: str, diary: _Diary, days: int, step_minutes: float, dice: _Dice) -> Trajectory:
    seconds = np.arange(0.0, days * 24 * _HOUR, step_minutes * 60.0)
    points, rests = diary.interpolate_locations(seconds)
    points = points + dice.sample_normal(len(seconds)) * np.where(rests, _REST_KM, _MOVING_KM)[:, None]
    kept = dice.sample_uniform(len(seconds)) >= _MISSED_SHARE
    for day in range(days):
        if dice.happens(_OFF_SHARE):
            start = (day * 24 + dice.sample_between(8.0, 20.0)) * _HOUR
            kept &= (seconds < start) | (seconds > start + dice.sample_between(1.0, 2.0) * _HOUR)
    kept[0] = True
    latitude, longitude = np.round(diary.city.projection.to_latlon(points[kept]), 6).T
    since = np.round((seconds[kept] + UTC_OFFSET_HOURS * _HOUR) * 1e6).astype("timedelta64[us]")
    return Trajectory(user, FIRST_DAY + since, latitude, longitude)
