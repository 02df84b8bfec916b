"""A basemap out of a file of one's own: GeoJSON, or an archive of vector tiles (PMTiles)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.errors import DataFileError
from dphmm.plots.basemap import LINES, Basemap, PlaceName, check_box, pieces, polygons
from dphmm.space.grid import Box
from dphmm.tables import read_document
from dphmm.tables.geojson import KINDS, Feature, geometry_of, read_features
from dphmm.tables.pmtiles import TileArchive, tiles_of_box
from dphmm.tables.source import readable, suffix_of
from dphmm.tables.values import one_line
from dphmm.tables.vector_tile import TileFeature, tile_features

MOST_POINTS = 60_000
"""A map has lines of at most so many points in all: streets are left out first, and then roads."""
_ALONG = 3000
"""Corners nearer to one another than such a part of the map's width are one."""
_TILES_ALONG = 6
"""About so many vector tiles go along a map."""

_WATER = {
    "water",
    "ocean",
    "sea",
    "lake",
    "river",
    "reservoir",
    "riverbank",
    "bay",
    "basin",
    "dock",
    "lagoon",
    "strait",
}
_ROADS = {"motorway", "trunk", "primary", "motorway_link", "trunk_link", "primary_link", "major_road", "freeway"}
_PATHS = {
    "path",
    "footway",
    "cycleway",
    "steps",
    "track",
    "pedestrian",
    "bridleway",
    "rail",
    "ferry",
    "service",
    "pier",
}
_STREAMS = {"waterway", "waterways", "stream", "river", "canal", "coastline", "coast", "shore"}
_BORDERS = {"boundary", "boundaries", "border", "administrative"}
_PLACES = ("city", "town", "borough", "suburb", "village", "quarter", "neighbourhood", "hamlet", "locality")
_TELLING = (
    *("kind", "pmap:kind", "class", "subclass", "type", "natural", "water", "waterway", "highway", "place", "boundary"),
    *("featurecla", "railway", "fclass"),
)
"""Properties that say what a feature is, in OpenStreetMap, its tiles, and Natural Earth."""


@checked
def read_basemap(path: str | Path, box: Box) -> Basemap:
    """The part of a map in a file that lies within a box.

    Parameters
    ----------
    path
        GeoJSON in WGS 84 (``.geojson``, ``.json``), or vector tiles in one archive (``.pmtiles``), as extracts of
        OpenStreetMap come: what is water, a road, a street, a border or a place is told from the properties (and
        the names of tiles' layers) that OpenStreetMap, Protomaps, OpenMapTiles and Natural Earth give them. Lines of
        a GeoJSON file of which nothing is known, and outlines of such polygons, are drawn as they are.
    box
        South, west, north, east in degrees; of a box over the date line nothing is drawn.

    Raises
    ------
    DataFileError
        When the file cannot be read, or holds nothing within the box.
    CoordinateError
        For a box that is none.
    """
    path, box = Path(path), check_box(box)
    tiles = suffix_of(path) == ".pmtiles"
    credit, features = _of_tiles(path, box) if tiles else (f"Basemap: {path.name}.", _of_geojson(path))
    found = _Sorted(box, strict=tiles)
    if box[3] > box[1]:
        for layer, feature in features:
            found.add(layer, feature)
    if found.is_empty:
        raise DataFileError(path, "holds no map of the region; give an extract of it, or leave the basemap out")
    return found.basemap(credit)


def _of_geojson(path: Path) -> Iterator[tuple[str, Feature]]:
    for feature in read_features(read_document(path)):
        yield "", feature


class _Sorted:
    """Features, sorted by what they are."""

    def __init__(self, box: Box, strict: bool) -> None:
        south, west, north, east = box
        self._frame = shapely.box(west, south, east, north)
        self._grain = (east - west) / _ALONG if east > west else 1.0
        self._strict = strict
        self._water: list[shapely.Polygon] = []
        self._lines: dict[str, list[FloatArray]] = {kind: [] for kind in LINES}
        self._names: dict[tuple[str, float, float], PlaceName] = {}

    @property
    def is_empty(self) -> bool:
        return not (self._water or any(self._lines.values()) or self._names)

    def add(self, layer: str, feature: Feature) -> None:
        """Take a feature in, if it is any of what a map shows."""
        shape = _shape(feature.geometry)
        if shape is None or not shapely.intersects(shapely.box(*shape.bounds), self._frame):
            return
        words = _words(layer, feature.properties)
        kind = shape.geom_type.removeprefix("Multi")
        if kind == "Polygon":
            self._area(shape, words, feature.properties)
        elif kind == "LineString":
            self._line(shape, words)
        elif kind == "Point":
            self._place(shape, words, feature.properties)

    def _area(self, shape: Any, words: set[str], properties: Mapping[str, Any]) -> None:
        if words & _WATER:
            inside = shapely.intersection(shapely.make_valid(shapely.simplify(shape, self._grain)), self._frame)
            self._water += polygons(inside)
        elif not self._strict and not words:
            self._keep("line", [shapely.get_coordinates(ring) for ring in _rings(shape)])
            middle = shape.representative_point()
            self._name(properties, middle.x, middle.y, 0.0)

    def _line(self, shape: Any, words: set[str]) -> None:
        if words & _PATHS:
            return
        if words & _ROADS or "highway" in words:
            kind = "road"
        elif words & _STREAMS:
            kind = "stream"
        elif words & _BORDERS:
            kind = "border"
        elif words & {"roads", "road", "transportation", "street", "streets"} or "highway=" in words:
            kind = "street"
        elif self._strict:
            return
        else:
            kind = "line"
        self._keep(kind, [shapely.get_coordinates(part) for part in shapely.get_parts(shape)])

    def _place(self, shape: Any, words: set[str], properties: Mapping[str, Any]) -> None:
        kinds = [number for number, word in enumerate(_PLACES) if word in words]
        if not kinds and (self._strict or words):
            return
        people = properties.get("population")
        rank = 50.0 - 5 * kinds[0] if kinds else 0.0
        if isinstance(people, int | float) and not isinstance(people, bool) and 1 < people < math.inf:
            rank = 10 * math.log10(people)
        for point in shapely.get_parts(shape):
            if shapely.intersects(point, self._frame):
                self._name(properties, point.x, point.y, rank)

    def _name(self, properties: Mapping[str, Any], east: float, north: float, rank: float) -> None:
        name = next((properties[key] for key in ("name:en", "name_en", "name", "NAME") if properties.get(key)), None)
        if isinstance(name, str) and name.isprintable():
            key = (name, round(east, 2), round(north, 2))  # a tile's neighbour may hold it too
            self._names[key] = PlaceName(name[:80], north, east, rank)

    def _keep(self, kind: str, lines: Iterable[FloatArray]) -> None:
        inside = pieces((line for line in lines if len(line) > 1), self._frame)
        kept = [shapely.get_coordinates(shapely.simplify(shapely.LineString(line), self._grain)) for line in inside]
        self._lines[kind] += kept

    def basemap(self, credit: str) -> Basemap:
        lines = {kind: some for kind, some in self._lines.items() if some}
        for kind in ("street", "road", "stream", "line"):
            if sum(len(line) for some in lines.values() for line in some) > MOST_POINTS:
                lines.pop(kind, None)
        names = sorted(self._names.values(), key=lambda place: (-place.rank, place.name))
        return Basemap(self._water, lines, names, credit)


def _shape(geometry: Any) -> Any:
    """A feature's geometry; None where there is none, or it is no place."""
    if geometry is None or not isinstance(geometry, Mapping | bytes):
        return None
    try:
        shape = geometry_of(geometry, KINDS)
    except ValueError:
        return None
    if shape is None or shape.is_empty:
        return None
    on_earth = np.abs(shapely.get_coordinates(shape)) <= [360.0, 90.0]  # NaN is none either
    return shape if on_earth.all() else None


def _words(layer: str, properties: Mapping[str, Any]) -> set[str]:
    """What a feature says that it is."""
    words = {layer.lower()} if layer else set()
    for key in _TELLING:
        value = properties.get(key)
        if isinstance(value, str) and value:
            words |= {value.lower()} | ({"highway="} if key == "highway" else set())
    if str(properties.get("name")).lower() in _STREAMS:
        words.add("coast")
    if "highway=" in words:
        words.discard("highway")
    return words


def _rings(shape: Any) -> list[Any]:
    return [ring for part in shapely.get_parts(shape) for ring in (part.exterior, *part.interiors)]


# ---- vector tiles ----------------------------------------------------------------------------------------------------

_LONGEST_ABOUT = 1 << 22
_NOT_SHOWN = {"building", "buildings", "landuse", "landcover", "poi", "pois", "earth", "park", "housenumber", "transit"}
_NOT_SHOWN |= {"transportation_name", "water_name", "aeroway", "mountain_peak", "globallandcover", "addresses", "sites"}
"""Layers of OpenStreetMap's usual tiles that a map below others does not need."""


def _of_tiles(path: Path, box: Box) -> tuple[str, Iterator[tuple[str, Feature]]]:
    with readable(path), path.open("rb") as stream:
        archive = TileArchive(path, stream)
        return _credit(path, archive.about()), iter(list(_features(archive, box)))


def _credit(path: Path, about: bytes) -> str:
    """Whose tiles they are, where the archive says it."""
    said = ""
    with suppress(ValueError, RecursionError):
        found = json.loads(about[:_LONGEST_ABOUT])
        said = re.sub(r"<[^>]*>", "", str(found.get("attribution", ""))) if isinstance(found, dict) else ""
    return f"Basemap: {path.name}{f' ({said.strip()[:120]})' if said.isprintable() and said.strip() else ''}."


def _features(archive: TileArchive, box: Box) -> Iterator[tuple[str, Feature]]:
    """The features of the zoom of which a handful of tiles cover the box, each tile's own."""
    _, west, _, east = box
    if east <= west:
        return
    least, most = archive.zooms
    zoom = min(max(math.ceil(math.log2(360 * _TILES_ALONG / (east - west))) - 1, least), most, _DEEPEST_ZOOM)
    columns, rows = tiles_of_box(box, zoom)
    if len(columns) * len(rows) > _MOST_TILES:
        raise DataFileError(archive.path, f"begins with zoom {least}, too fine for the region; give a coarser archive")
    for column, row, data in archive.tiles(zoom, columns, rows):
        try:
            for feature in tile_features(data, _NOT_SHOWN):
                shape = _tile_shape(feature, zoom, column, row)
                if shape is not None:
                    yield feature.layer.lower(), Feature(feature.properties, shapely.to_wkb(shape))
        except ValueError as problem:
            raise DataFileError(archive.path, f"holds a tile that is none ({one_line(problem)})") from None


_MOST_TILES = 400
_DEEPEST_ZOOM = 20


def _tile_shape(feature: TileFeature, zoom: int, column: int, row: int) -> Any:
    """A feature's geometry in degrees, without what lies beyond its tile; None where nothing is left."""
    parts = [part.astype(np.float64) / feature.extent for part in feature.parts]
    if feature.kind == 1:
        held = [part for part in parts if len(part) and ((part >= 0) & (part <= 1)).all()]
        shape = shapely.MultiPoint(np.concatenate(held)) if held else shapely.MultiPoint()
    elif feature.kind == 2:
        shape = shapely.MultiLineString([part for part in parts if len(part) > 1])
    elif feature.kind == 3:
        shape = _filled([part for part in parts if len(part) > 2])
    else:
        return None
    inside = shapely.clip_by_rect(shape, 0.0, 0.0, 1.0, 1.0) if feature.kind > 1 else shape
    if inside.is_empty:
        return None
    side = 1 << zoom

    def degrees(points: FloatArray) -> FloatArray:
        across, down = (points[:, 0] + column) / side, (points[:, 1] + row) / side
        return np.column_stack([across * 360 - 180, np.degrees(np.arctan(np.sinh(np.pi * (1 - 2 * down))))])

    return shapely.transform(inside, degrees)


def _filled(rings: list[FloatArray]) -> Any:
    """Polygons out of rings: one that goes the other way than the first is a hole in what came before."""
    shape, first = shapely.Polygon(), 0.0
    for ring in rings:
        area = shapely.make_valid(shapely.Polygon(ring))
        turn = float(np.sum(ring[:, 0] * np.roll(ring[:, 1], -1) - np.roll(ring[:, 0], -1) * ring[:, 1]))
        first = first or turn
        shape = shapely.union(shape, area) if turn * first > 0 else shapely.difference(shape, area)
    return shape
