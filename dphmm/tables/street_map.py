"""Streets, buildings, addresses and water of a map file.

An extract of OpenStreetMap (``.osm.pbf``, ``.osm``, also packed as ``.osm.gz``) or any vector file that
`dphmm.tables.vector_files.read_layers` reads. Features are recognised by the tags of OpenStreetMap and by the names of
layers in common extracts. Ways of OpenStreetMap are connected at shared nodes only, so that a bridge does not touch the
street below. The lines of other files are also connected where they cross, because few of them mark junctions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import DataFileError
from dphmm.tables.source import get_suffix
from dphmm.tables.vector_files import (
    GEOMETRY_TYPES,
    OPENSTREETMAP_SUFFIXES,
    Box,
    Feature,
    Layer,
    parse_geometry,
    read_layers,
    to_degrees,
)
from dphmm.validation import check_arguments

# The classes of streets. A road is a main road, and a path is not open to cars.
STREET_CLASSES = ("motorway", "road", "street", "path")

# fmt: off
_CLASS_WORDS: Mapping[str, frozenset[str]] = {
    "motorway": frozenset(("motorway", "motorway_link", "freeway")),
    "road": frozenset((
        "trunk", "trunk_link", "primary", "primary_link", "secondary", "secondary_link", "tertiary", "tertiary_link",
        "major_road",
    )),
    "path": frozenset(("path", "footway", "cycleway", "steps", "track", "bridleway", "corridor")),
    "street": frozenset((
        "residential", "living_street", "unclassified", "service", "pedestrian", "road", "roads", "street", "streets",
        "minor_road", "transportation",
    )),
}
# Values of ``highway`` that are not ways in use.
_CLOSED = frozenset(("construction", "proposed", "planned", "abandoned", "razed", "platform", "raceway", "bus_stop"))
_WATER = frozenset(("water", "ocean", "sea", "lake", "reservoir", "riverbank", "basin", "dock", "lagoon"))
_COAST = frozenset(("coastline", "coast", "shore"))
_BUILDINGS = frozenset(("building", "buildings"))
_ADDRESSES = frozenset(("address", "addresses", "housenumber"))
# Values of ``building`` that are not homes.
_NOT_HOMES = frozenset((
    "no", "garage", "garages", "carport", "shed", "roof", "greenhouse", "barn", "farm_auxiliary", "stable", "cowshed",
    "sty", "industrial", "warehouse", "hangar", "church", "chapel", "cathedral", "mosque", "temple", "synagogue",
    "school", "kindergarten", "university", "hospital", "retail", "supermarket", "commercial", "office", "kiosk",
    "train_station", "transportation", "parking", "service", "transformer_tower", "ruins", "construction", "toilets",
    "bunker", "storage_tank", "silo", "sports_hall", "stadium", "public", "civic", "government", "fire_station",
))
# Properties that contain the type of a feature.
_TYPE_PROPERTIES = (
    "kind", "pmap:kind", "class", "subclass", "type", "natural", "water", "waterway", "landuse", "place", "featurecla",
    "fclass",
)
# fmt: on
_NUMBER_PROPERTIES = ("addr:housenumber", "addr_housenumber", "housenumber", "house_number", "number")
_STREET_PROPERTIES = ("addr:street", "addr_street", "street", "addr:place")
# Tags that GDAL keeps in one column.
_OTHER_TAG = re.compile(r'"((?:[^"\\]|\\.)*)"=>"((?:[^"\\]|\\.)*)"')
_OTHER_KEYS = frozenset(("natural", "water", "waterway", "landuse", *_NUMBER_PROPERTIES[:1], *_STREET_PROPERTIES))

_HAS_NUMBER = "other_tags LIKE '%\"addr:housenumber\"%'"
_FILTERS: Mapping[str, str] = {
    "points": _HAS_NUMBER,
    "lines": 'highway IS NOT NULL OR other_tags LIKE \'%"natural"=>"coastline"%\'',
    "multipolygons": "building IS NOT NULL OR \"natural\" = 'water' OR landuse IN ('reservoir', 'basin') OR "
    f'other_tags LIKE \'%"waterway"=>"riverbank"%\' OR {_HAS_NUMBER}',
}

# Nodes are merged within this, about a centimetre, the resolution of OpenStreetMap.
_DEGREE_STEP = 1e-7
_STEPS_PER_TURN = 3_600_000_000


@dataclass(frozen=True, eq=False)
class StreetMap:
    """The streets, buildings, addresses and water of a map. Locations are in degrees, WGS 84.

    Parameters
    ----------
    nodes
        ``(n, 2)``: latitude and longitude of the points of streets. The longitude 180° is written as -180°.
    edges
        ``(m, 2)``: the nodes at the ends of each straight piece of a street. One-way streets are not marked.
    lengths_km
        ``(m,)``: the lengths of the edges, kilometres.
    classes
        ``(m,)``: the class of the street, an index of `STREET_CLASSES`.
    buildings
        ``(b, 2)``: latitude and longitude of a point in each building that can be a home.
    addresses
        ``(a, 2)``: latitude and longitude of each address. A house number of a street is counted once.
    water
        Polygons of inland water, longitude first.
    coast
        Coastlines ``(k, 2)``, longitude first, with the land on their left.
    """

    nodes: FloatArray
    edges: IntArray
    lengths_km: FloatArray
    classes: IntArray
    buildings: FloatArray
    addresses: FloatArray
    water: Sequence[shapely.Polygon] = ()
    coast: Sequence[FloatArray] = ()

    @cached_property
    def is_motorway(self) -> BoolArray:
        """``(m,)``: mask of the edges of motorways and their slip roads."""
        return np.asarray(self.classes == STREET_CLASSES.index("motorway"))

    @property
    def is_empty(self) -> bool:
        """Whether the map is empty."""
        return not (len(self.edges) or len(self.buildings) or len(self.addresses) or self.water or self.coast)


@check_arguments
def read_street_map(path: str | Path, bounds: Box | None = None) -> StreetMap:
    """Read the streets, buildings, addresses and water of a map file.

    Parameters
    ----------
    path
        ``.osm.pbf``, ``.osm``, ``.osm.gz``, GeoPackage, FlatGeobuf, GeoJSON, Shapefile or KML. In files other than
        those of OpenStreetMap, lines without a type are streets.
    bounds
        South, west, north, east in degrees: features that lie outside are omitted. Features that cross the bounds are
        kept whole. Defaults to the whole map.

    Returns
    -------
    StreetMap
        The map.

    Raises
    ------
    DataFileError
        If the file cannot be read, has an unknown reference system, or contains no street, building, address or water
        within the bounds.
    MissingDependencyError
        For formats other than GeoJSON if pyogrio is not installed.
    """
    path = Path(path)
    is_openstreetmap = get_suffix(path) in OPENSTREETMAP_SUFFIXES
    filters = _FILTERS if is_openstreetmap else None
    # A box across the date line is not one box for GDAL.
    box = bounds if bounds is None or bounds[1] < bounds[3] else None
    collector = _Collector(box, is_openstreetmap)
    for layer in read_layers(path, box, filters, filters):
        try:
            collector.add(layer)
        except ValueError as problem:
            raise DataFileError(path, f"has an unknown reference system ({problem})") from None
    street_map = collector.build()
    if street_map.is_empty:
        raise DataFileError(
            path, "contains no street, building, address or water of the region; use an extract that covers it"
        )
    return street_map


class _Collector:
    """Collects features by type."""

    def __init__(self, box: Box | None, is_openstreetmap: bool) -> None:
        self._box = box
        self._is_openstreetmap = is_openstreetmap
        self._streets: dict[int, list[Any]] = {number: [] for number in range(len(STREET_CLASSES))}
        self._buildings: list[Any] = []
        self._addresses: dict[object, Any] = {}
        self._water: list[shapely.Polygon] = []
        self._coast: list[FloatArray] = []

    def add(self, layer: Layer) -> None:
        """Add the features of a layer.

        Raises
        ------
        ValueError
            If its reference system is unknown.
        """
        convert = to_degrees(layer.system)
        layer_words = set(re.findall("[a-z]+", layer.name.lower())) if not self._is_openstreetmap else set()
        shapes = np.array([_parse(feature) for feature in layer.features] or [None], dtype=object)
        if convert is not None:
            shapes = shapely.transform(shapely.force_2d(shapes), convert, interleaved=False)
        for shape, feature in zip(shapes, layer.features, strict=False):
            if shape is not None and not shape.is_empty and self._is_inside(shape):
                self._add_feature(shape, _merge_tags(feature.properties), layer_words)

    def _is_inside(self, shape: Any) -> bool:
        west, south, east, north = shape.bounds
        if not (abs(west) <= 360 and abs(east) <= 360 and abs(south) <= 90 and abs(north) <= 90):  # also for NaN
            return False
        if self._box is None:
            return True
        box_south, box_west, box_north, box_east = self._box
        return bool(west <= box_east and east >= box_west and south <= box_north and north >= box_south)

    def _add_feature(self, shape: Any, tags: Mapping[str, Any], layer_words: set[str]) -> None:
        words = {str(tags[key]).lower() for key in _TYPE_PROPERTIES if tags.get(key)}
        kind = shape.geom_type.removeprefix("Multi")
        if kind == "LineString":
            self._add_line(shape, str(tags.get("highway") or "").lower(), words, layer_words)
            return
        words |= layer_words & (_WATER | _BUILDINGS | _ADDRESSES)
        number = next((tags[key] for key in _NUMBER_PROPERTIES if tags.get(key)), None)
        if number is not None or words & _ADDRESSES:
            street = next((tags[key] for key in _STREET_PROPERTIES if tags.get(key)), None)
            point = shape.representative_point()
            key = (point.x, point.y) if number is None or street is None else (str(street), str(number))
            self._addresses.setdefault(key, point)
        if kind == "Polygon":
            building = str(tags.get("building") or "").lower()
            if (building or words & _BUILDINGS) and not ({building} | words) & _NOT_HOMES:
                self._buildings.append(shape.representative_point())
            elif words & _WATER:
                self._water += [part for part in shapely.get_parts(shape) if not part.is_empty]

    def _add_line(self, shape: Any, highway: str, words: set[str], layer_words: set[str]) -> None:
        if words & _COAST or (layer_words & _COAST and not highway):
            self._coast += [shapely.get_coordinates(part) for part in shapely.get_parts(shape)]
            return
        if highway in _CLOSED or words & _CLOSED:
            return
        words = {highway} if highway else words
        name = next((name for name, class_words in _CLASS_WORDS.items() if words & class_words), None)
        if name is None and (highway or not words or layer_words & _CLASS_WORDS["street"]):
            name = "street"
        if name is not None:
            self._streets[STREET_CLASSES.index(name)] += shapely.get_parts(shape).tolist()

    def build(self) -> StreetMap:
        lines = [line for members in self._streets.values() for line in members]
        classes = np.repeat(np.arange(len(STREET_CLASSES)), [len(members) for members in self._streets.values()])
        if lines and not self._is_openstreetmap:
            lines, classes = _split_at_crossings(lines, classes)
        nodes, edges, edge_classes = _build_graph(lines, classes)
        return StreetMap(
            nodes,
            edges,
            _compute_edge_lengths(nodes, edges),
            edge_classes,
            _get_coordinates(self._buildings),
            _get_coordinates([*self._addresses.values()]),
            self._water,
            self._coast,
        )


def _parse(feature: Feature) -> Any:
    """Return a feature's geometry. None if it is missing or invalid."""
    try:
        value = feature.geometry
        return parse_geometry(value, GEOMETRY_TYPES) if isinstance(value, Mapping | bytes) else None
    except ValueError:
        return None


def _merge_tags(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties, with those that GDAL keeps in one column."""
    others = properties.get("other_tags")
    if not isinstance(others, str):
        return properties
    return {key: value for key, value in _OTHER_TAG.findall(others) if key in _OTHER_KEYS} | {
        key: value for key, value in properties.items() if value is not None
    }


def _get_coordinates(points: Sequence[Any]) -> FloatArray:
    """Return latitudes and longitudes, ``(n, 2)``."""
    if not points:
        return np.zeros((0, 2))
    return np.asarray(shapely.get_coordinates(points)[:, ::-1].copy())


def _split_at_crossings(lines: Sequence[Any], classes: IntArray) -> tuple[list[Any], IntArray]:
    """Return lines that meet at their ends only, and their classes."""
    originals = shapely.force_2d(np.array(lines, dtype=object))
    corners, line = shapely.get_coordinates(originals, return_index=True)
    # Longitudes do not jump within a line, so that it crosses its neighbours only, and all lines lie in one turn.
    corners[:, 0] -= 360.0 * np.cumsum(np.round(np.diff(corners[:, 0], prepend=corners[0, 0]) / 360.0))
    first = corners[np.searchsorted(line, line), 0]
    corners[:, 0] -= 360.0 * np.round((first - first[0]) / 360.0)
    originals = shapely.set_coordinates(originals, corners)
    parts = shapely.get_parts(shapely.node(shapely.multilinestrings(originals)))
    middles = shapely.line_interpolate_point(parts, 0.5, normalized=True)
    nearest = shapely.STRtree(originals).nearest(middles)
    return parts.tolist(), classes[nearest]


def _build_graph(lines: Sequence[Any], classes: IntArray) -> tuple[FloatArray, IntArray, IntArray]:
    """Return the nodes ``(n, 2)``, the edges ``(m, 2)`` and their classes ``(m,)``."""
    if not lines:
        return np.zeros((0, 2)), np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    corners, line = shapely.get_coordinates(lines, return_index=True)
    steps = np.round(corners[:, ::-1] / _DEGREE_STEP).astype(np.int64)
    # A street across the date line may be cut there: its parts meet at one node.
    steps[:, 1] = (steps[:, 1] + _STEPS_PER_TURN // 2) % _STEPS_PER_TURN - _STEPS_PER_TURN // 2
    # One integer per node, which sorts faster than a row.
    keys, first, node = np.unique(steps[:, 0] * 2**33 + steps[:, 1], return_index=True, return_inverse=True)
    follows = line[:-1] == line[1:]
    edges = np.sort(np.stack([node[:-1], node[1:]], axis=1)[follows], axis=1)
    edge_classes = classes[line[:-1][follows]]
    is_proper = edges[:, 0] != edges[:, 1]
    # Of ways on the same edge the one of the highest class remains.
    order = np.flatnonzero(is_proper)[np.argsort(edge_classes[is_proper], kind="stable")]
    _, unique = np.unique(edges[order, 0] * len(keys) + edges[order, 1], return_index=True)
    chosen = order[unique]
    return steps[first] * _DEGREE_STEP, edges[chosen], edge_classes[chosen]


def _compute_edge_lengths(nodes: FloatArray, edges: IntArray) -> FloatArray:
    """Return the geodesic lengths of edges, kilometres."""
    from pyproj import Geod

    (south, west), (north, east) = (nodes[edges[:, end]].T for end in (0, 1))
    return np.asarray(Geod(ellps="WGS84").inv(west, south, east, north)[2], dtype=np.float64) / 1000
