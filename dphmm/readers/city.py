"""A city that does not exist: streets, a river with three bridges, five districts.

It lies at 45° N 30° W, in the open Atlantic, so that nothing on its map is anybody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import shapely

from dphmm.arrays import FloatArray, RandomSource, Rng, random_source
from dphmm.space.projection import LocalProjection

CENTRE = LocalProjection(45.0, -30.0)
HALF_WIDTH_KM = 3.0
_BLOCKS = 12
_JITTER_KM = 0.09
_CLOSED = 0.12
_BRIDGES = (2, 6, 10)
_RIVER_ROW = 5
_AVENUES = (2, 6, 10)
_BORDER_KM = 3.2

Corner = tuple[int, int]
"""A street corner, named by its column and row in the street plan."""


@dataclass(frozen=True)
class City:
    """The map of the synthetic city.

    Parameters
    ----------
    projection
        The local plane.
    streets
        A connected graph of street corners; node attribute ``point`` is the corner in kilometres, edge attribute
        ``effort`` its length in kilometres, less on avenues, where one moves faster.
    districts
        Name → the district's outline in the plane, in kilometres; together they cover the city without overlap.
    """

    projection: LocalProjection
    streets: Any
    districts: Mapping[str, shapely.Polygon]

    def corners(self, *districts: str) -> list[Corner]:
        """The street corners in the named districts, in the order of the plan."""
        area = shapely.union_all([self.districts[name] for name in districts])
        points = self.streets.nodes(data="point")
        return sorted(corner for corner, point in points if area.contains(shapely.Point(point)))

    def point(self, corner: Corner) -> FloatArray:
        """A corner's place in the plane, kilometres, shape ``(2,)``."""
        point: FloatArray = self.streets.nodes[corner]["point"]
        return point

    def route(self, start: Corner, end: Corner) -> FloatArray:
        """The corners of the fastest way, kilometres, shape ``(n, 2)``."""
        way = nx.shortest_path(self.streets, start, end, weight="effort")
        return np.array([self.point(corner) for corner in way])

    @property
    def box(self) -> tuple[float, float, float, float]:
        """South, west, north, east in degrees of a box around the city, as `dphmm.space.Grid.over` takes it."""
        square = shapely.get_coordinates(shapely.box(-_BORDER_KM, -_BORDER_KM, _BORDER_KM, _BORDER_KM))
        places = self.projection.to_latlon(square)
        (south, west), (north, east) = places.min(axis=0), places.max(axis=0)
        return float(south), float(west), float(north), float(east)

    def districts_geojson(self) -> dict[str, Any]:
        """The districts as a GeoJSON feature collection with the property ``name``; degrees to six decimals."""
        features = []
        for name, outline in self.districts.items():
            corners = shapely.get_coordinates(shapely.orient_polygons(outline).exterior)
            ring = np.round(self.projection.to_latlon(corners)[:, ::-1], 6).tolist()
            geometry = {"type": "Polygon", "coordinates": [ring]}
            features.append({"type": "Feature", "properties": {"name": name}, "geometry": geometry})
        return {"type": "FeatureCollection", "features": features}


def build_city(rng: Rng = 1) -> City:
    """The city; the same for the same seed.

    Parameters
    ----------
    rng
        Decides the bends of the streets and which are closed. Nothing private depends on it.
    """
    source = random_source(rng)
    return City(CENTRE, _streets(source), _districts())


def _streets(source: RandomSource) -> Any:
    """A square plan of bent streets, some of them closed, as far as every corner stays within reach."""
    count = _BLOCKS + 1
    regular = np.linspace(-HALF_WIDTH_KM, HALF_WIDTH_KM, count)
    bends = (2 * source.uniform((count, count, 2)) - 1) * _JITTER_KM
    streets: Any = nx.grid_2d_graph(count, count)
    for (column, row), corner in streets.nodes.items():
        corner["point"] = np.array([regular[column], regular[row]]) + bends[column, row]
    ways = [(column, _RIVER_ROW) for column in range(count) if column not in _BRIDGES]
    streets.remove_edges_from([((column, row), (column, row + 1)) for column, row in ways])
    for one, other, street in streets.edges(data=True):
        street["avenue"] = (one[0] if one[0] == other[0] else one[1]) in _AVENUES
        length = float(np.hypot(*(streets.nodes[one]["point"] - streets.nodes[other]["point"])))
        street["effort"] = length / (1.6 if street["avenue"] else 1.0)
    lanes = sorted((one, other) for one, other, avenue in streets.edges(data="avenue") if not avenue)
    for (one, other), draw in zip(lanes, source.uniform(len(lanes)), strict=True):
        if draw < _CLOSED:
            street = dict(streets.edges[one, other])
            streets.remove_edge(one, other)
            if not nx.has_path(streets, one, other):
                streets.add_edge(one, other, **street)
    return streets


def _districts() -> dict[str, shapely.Polygon]:
    """The old town in the middle north of the river, two districts around it, two south of the river."""
    river = -0.25
    old_town = shapely.Polygon([(-1.2, river), (1.2, river), (1.2, 1.0), (0.7, 1.7), (-0.7, 1.7), (-1.2, 1.0)])
    return {
        "Old Town": old_town,
        "University": shapely.box(-_BORDER_KM, river, 0.0, _BORDER_KM).difference(old_town),
        "Gardens": shapely.box(0.0, river, _BORDER_KM, _BORDER_KM).difference(old_town),
        "Harbour": shapely.box(-_BORDER_KM, -_BORDER_KM, 0.4, river),
        "Works": shapely.box(0.4, -_BORDER_KM, _BORDER_KM, river),
    }
