"""Basemaps with coast, water, borders, roads and names, which need no network.

The package contains a coarse map of the world (Natural Earth at 1:10m, names of GeoNames). Files of more detailed maps
can be read. All coordinates are in degrees, WGS 84.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import ConfigurationError, CoordinateError, DataFileError, InvalidInputError
from dphmm.jobs.model.loading import Model, load_model
from dphmm.space.grid import Box
from dphmm.space.projection import unwrap_longitudes, wrap_longitude
from dphmm.space.states import StateSpace
from dphmm.space.streets import Streets
from dphmm.space.world_map import CREDIT, clip_land, get_sea, list_polygons, load_outlines, select_names
from dphmm.space.world_map import PlaceName as PlaceName
from dphmm.tables.output import check_output, create_file
from dphmm.tables.source import get_suffix
from dphmm.tables.vector_files import (
    GEOMETRY_TYPES,
    OPENSTREETMAP_SUFFIXES,
    Feature,
    parse_geometry,
    read_layers,
    to_degrees,
)
from dphmm.validation import NonNegativeInt, check_arguments

# The kinds of lines on a basemap. A lane is a small street, and a line of unknown type is a ``line``.
LINES = ("road", "street", "lane", "stream", "border", "line")


@dataclass(frozen=True, eq=False)
class Basemap:
    """The background of a map.

    Parameters
    ----------
    water
        Polygons, longitude first.
    lines
        Kind, one of `LINES` → lines ``(k, 2)``, longitude first.
    names
        Names of places, in descending order of rank.
    credit
        The attribution, a sentence that is shown with the map.
    """

    water: Sequence[shapely.Polygon] = ()
    lines: Mapping[str, Sequence[FloatArray]] = field(default_factory=dict)
    names: Sequence[PlaceName] = ()
    credit: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the map is empty."""
        return not (self.water or any(self.lines.values()) or self.names)


# The credit of the basemap of a box across the date line.
NO_BASEMAP = "No basemap is drawn across the date line."


@check_arguments
def build_world_basemap(box: Box, max_names: NonNegativeInt = 300) -> Basemap:
    """Return the part of the shipped map of the world within a box.

    Parameters
    ----------
    box
        South, west, north, east in degrees. The map of a box across the date line is empty, and its credit states so.
    max_names
        The largest number of names, those of the largest places.

    Returns
    -------
    Basemap
        Seas and lakes, borders of countries, and names of places, without roads. It is empty if the box lies at sea.

    Raises
    ------
    CoordinateError
        If the box is invalid.
    """
    south, west, north, east = check_box(box)
    if east <= west:
        return Basemap(credit=NO_BASEMAP)
    frame = shapely.box(west, south, east, north)
    land = clip_land(frame)
    if land.is_empty:  # only sea
        return Basemap()
    water = list_polygons(shapely.difference(frame, land))
    borders = {"border": clip_lines(load_outlines()["border"].select_in_frame(frame), frame)}
    return Basemap(water, borders, select_names(frame, max_names), CREDIT)


@check_arguments
def check_box(box: Box) -> Box:
    """Validate a box in degrees and return it as numbers.

    Raises
    ------
    CoordinateError
        If the box is invalid.
    """
    values = as_floats(box, "box", CoordinateError)
    if values.shape != (4,) or not np.isfinite(values).all() or not -90 <= values[0] < values[2] <= 90:
        raise CoordinateError(f"box must be south, west, north and east in degrees, got {box}")
    south, west, north, east = values.tolist()
    return south, west, north, east


def clip_lines(lines: Iterable[FloatArray], frame: shapely.Polygon) -> list[FloatArray]:
    """Return the parts of lines ``(k, 2)`` within a rectangle."""
    inside = shapely.get_parts(shapely.clip_by_rect([shapely.LineString(line) for line in lines], *frame.bounds))
    return [shapely.get_coordinates(part) for part in inside if part.geom_type == "LineString"]


# The largest number of points of a map's lines. Lanes are omitted first, then streets, then roads.
MAX_POINTS = 60_000
# The largest number of points of the lines of an extracted map.
MAX_EXTRACT_POINTS = 250_000

# The tolerance of simplification is the width of the map divided by this.
_SIMPLIFICATION_STEPS = 3000

# fmt: off
_WATER = {
    "water", "ocean", "sea", "lake", "river", "reservoir", "riverbank", "bay", "basin", "dock", "lagoon", "strait",
}
_ROADS = {"motorway", "trunk", "primary", "motorway_link", "trunk_link", "primary_link", "major_road", "freeway"}
_STREETS = {"roads", "road", "transportation", "street", "streets"}
_LANES = {"residential", "living_street", "unclassified"}
_PATHS = {
    "path", "footway", "cycleway", "steps", "track", "pedestrian", "bridleway", "rail", "ferry", "service", "pier",
}
_STREAMS = {"waterway", "waterways", "stream", "river", "canal", "coastline", "coast", "shore"}
_BORDERS = {"boundary", "boundaries", "border", "administrative"}
_KINDS_OF_LINES = {
    "road": _ROADS | {"highway"}, "stream": _STREAMS, "border": _BORDERS, "lane": _LANES,
    "street": _STREETS | {"highway="},
}
_PLACES = ("city", "town", "borough", "suburb", "village", "quarter", "neighbourhood", "hamlet", "locality")
# Words in the name of a layer that describe its content.
_LAYERS = _WATER | _STREETS | _STREAMS | _BORDERS
# Words in the names of layers of common OpenStreetMap extracts that a background map does not need.
_OMITTED_LAYERS = {
    "building", "buildings", "landuse", "landcover", "poi", "pois", "earth", "park", "housenumber", "transit",
    "aeroway", "addresses", "sites", "traffic",
}
# fmt: on
# Properties that contain the type of a feature, in OpenStreetMap, its extracts, and Natural Earth.
_TYPE_PROPERTIES = (
    *("kind", "pmap:kind", "class", "subclass", "type", "natural", "water", "waterway", "highway", "place", "boundary"),
    *("featurecla", "railway", "fclass", "landuse"),
)
_COASTLINE = '"natural"=>"coastline"'
_OPENSTREETMAP = "© OpenStreetMap contributors."
# The features that are read from each layer of an extract in OpenStreetMap's own format.
_OPENSTREETMAP_FILTERS: Mapping[str, str] = {
    "points": "place IS NOT NULL",
    "lines": f"highway IS NOT NULL OR waterway IN ('river', 'canal') OR other_tags LIKE '%{_COASTLINE}%'",
    "multipolygons": "\"natural\" = 'water' OR landuse IN ('reservoir', 'basin')",
}


@check_arguments
def read_basemap(path: str | Path, box: Box) -> Basemap:
    """Read the part of a map in a vector file that lies within a box.

    Parameters
    ----------
    path
        GeoPackage, FlatGeobuf, GeoJSON, Shapefile, KML, ``.osm.pbf`` or ``.osm``. Water, roads, streets, borders and
        places are recognised by the properties and the names of layers of OpenStreetMap extracts and Natural Earth.
        Lines of unknown type, and outlines of such polygons, are plotted as lines.
    box
        South, west, north, east in degrees.

    Returns
    -------
    Basemap
        The map within the box.

    Raises
    ------
    DataFileError
        If the file cannot be read, has an unknown reference system, or contains nothing within the box, or the box
        crosses the date line.
    CoordinateError
        If the box is invalid.
    MissingDependencyError
        For formats other than GeoJSON if pyogrio is not installed.
    """
    return _read(Path(path), check_box(box), MAX_POINTS)


def _read(path: Path, box: Box, max_points: int) -> Basemap:
    if box[3] <= box[1]:
        raise DataFileError(path, "cannot be drawn across the date line: use no basemap")
    is_openstreetmap = get_suffix(path) in OPENSTREETMAP_SUFFIXES
    collector = _FeatureCollector(box)
    filters = _OPENSTREETMAP_FILTERS if is_openstreetmap else None
    for layer in read_layers(path, box, filters, filters):
        words = set(re.findall("[a-z]+", layer.name.lower()))
        if not words & _OMITTED_LAYERS:
            try:
                convert = to_degrees(layer.system)
            except ValueError as problem:
                raise DataFileError(path, f"has an unknown reference system ({problem})") from None
            for feature in layer.features:
                collector.add(words & _LAYERS, feature, convert)
    basemap = collector.make_basemap(_OPENSTREETMAP if is_openstreetmap else f"Basemap: {path.name}.", max_points)
    if basemap.is_empty:
        raise DataFileError(path, "contains no map of the region: use another extract, or no basemap")
    return basemap


@check_arguments
def build_basemap(path: str | Path | None, box: Box, max_points: int = MAX_POINTS) -> Basemap:
    """Return the map in a file, completed by the shipped map.

    Without a file it is the shipped map.

    Parameters
    ----------
    path
        As for `read_basemap`. Water or names that the file lacks are taken from the shipped map.
    box
        South, west, north, east in degrees.
    max_points
        The largest number of points of all lines.

    Raises
    ------
    DataFileError, CoordinateError, MissingDependencyError
        As `read_basemap`.
    """
    world = build_world_basemap(box)
    if path is None:
        return world
    basemap = _read(Path(path), check_box(box), max_points)
    if (basemap.water or not world.water) and (basemap.names or not world.names):
        return basemap
    credit = f"{basemap.credit} {world.credit}"
    return replace(basemap, water=basemap.water or world.water, names=basemap.names or world.names, credit=credit)


def compute_bounding_box(space: StateSpace, share: float) -> Box:
    """Return the bounding box of states, extended at each end by a share of its longer side.

    The west of a region across the date line is greater than its east.
    """
    places = unwrap_longitudes(space.latlon(), space.projection.longitude)
    (south, west), (north, east) = (edge(places, axis=0).tolist() for edge in (np.min, np.max))
    margin = share * max(north - south, east - west, 0.01)
    return extend_box((south, west, north, east), margin)


def extend_box(box: Box, margin: float) -> Box:
    """Extend a box at each side by a margin in degrees.

    Parameters
    ----------
    box
        South, west, north, east. A longitude beyond 180° marks a box across the date line.
    margin
        Degrees.

    Returns
    -------
    Box
        The west of a box across the date line is greater than its east. A margin of another box may exceed 180°.
    """
    south, west, north, east = box
    if west < -180.0 or east > 180.0:
        west, east = (wrap_longitude(side) for side in (west - margin, east + margin))
    else:
        west, east = west - margin, east + margin
    return max(south - margin, -90.0), west, min(north + margin, 90.0), east


# The margin of an extracted map around the region.
_REGION_MARGIN = 0.15


@check_arguments
def extract_basemap(path: str | Path, model: Model, output: str | Path, overwrite: bool = False) -> dict[str, Any]:
    """Extract a small map of a model's region from a large one.

    Parameters
    ----------
    path
        As for `read_basemap`.
    model
        The model, or its file.
    output
        A ``.geojson`` or ``.geojson.gz`` file for `read_basemap`: water, roads, streets, rivers and names.
    overwrite
        Whether an existing output may be replaced.

    Returns
    -------
    dict
        The numbers of its contents.

    Raises
    ------
    DataFileError, MissingDependencyError
        As `read_basemap`.
    ConfigurationError
        If the output has an unsupported extension, or the model has no region.
    OutputError
        If the output exists or cannot be written.
    """
    output = check_output(output, overwrite)
    if get_suffix(output) != ".geojson":
        raise ConfigurationError(f"output must be a .geojson or .geojson.gz file, got {output.name}")
    basemap = _read(Path(path), compute_bounding_box(load_model(model).space, _REGION_MARGIN), MAX_EXTRACT_POINTS)
    write_basemap(output, basemap, overwrite)
    counts = {kind: len(lines) for kind, lines in basemap.lines.items()}
    return {"water": len(basemap.water), **counts, "names": len(basemap.names), "bytes": output.stat().st_size}


def write_basemap(path: Path, basemap: Basemap, overwrite: bool = False) -> None:
    """Write a map as GeoJSON for `read_basemap`, compressed if the name ends with ``.gz``."""
    text = json.dumps(_build_collection(basemap), ensure_ascii=False, separators=(",", ":")).encode()
    with create_file(path, overwrite) as part:
        part.write_bytes(gzip.compress(text, mtime=0) if path.suffix.lower() == ".gz" else text)


# The kind of a line → the word by which it is recognised when it is read.
_WORD_OF_KIND = {
    "road": "primary", "street": "street", "lane": "residential",
    "stream": "river", "border": "boundary", "line": "line",
}  # fmt: skip


def _build_collection(basemap: Basemap) -> dict[str, Any]:
    """Return a basemap as a GeoJSON collection, which preserves it to a metre."""

    def build_feature(kind: str, shapes: Sequence[Any]) -> dict[str, Any]:
        shape = shapely.multipolygons(shapes) if kind == "water" else shapely.multilinestrings(shapes)
        geometry = json.loads(shapely.to_geojson(shapely.set_precision(shape, 1e-5, mode="pointwise")))
        return {"type": "Feature", "properties": {"kind": kind, "credit": basemap.credit}, "geometry": geometry}

    features = [build_feature("water", basemap.water)] if basemap.water else []
    for kind, lines in basemap.lines.items():
        features.append(build_feature(_WORD_OF_KIND[kind], [*map(shapely.LineString, lines)]))
    for name in basemap.names:
        properties = {"place": "locality", "name": name.name, "population": 10 ** (name.rank / 10)}
        point = {"type": "Point", "coordinates": [round(name.longitude, 5), round(name.latitude, 5)]}
        features.append({"type": "Feature", "properties": properties, "geometry": point})
    return {"type": "FeatureCollection", "features": features}


def get_states_credit(space: StateSpace | None) -> str:
    """Return the attribution that drawn states require."""
    return space.credit if isinstance(space, Streets) else ""


def add_credit(basemap: Basemap, credit: str) -> Basemap:
    """Return a basemap with a further attribution, unless it contains it."""
    return basemap if credit in basemap.credit else replace(basemap, credit=f"{basemap.credit} {credit}".strip())


def encode_basemap(basemap: Basemap) -> dict[str, Any]:
    """Return a basemap in the compact JSON form of the pages' scripts.

    Water is a list of polygons, each a list of rings. Lines are grouped by kind. A ring or a line is a list of
    alternating latitudes and longitudes as differences in integer steps of 1e-5 degrees. The first two are absolute.
    Names are text, latitude, longitude and rank.
    """

    def encode_moves(points: FloatArray) -> list[int]:
        if not np.isfinite(points).all():
            raise InvalidInputError("points of a basemap must be finite")
        steps = np.round(points[:, ::-1] * 1e5).astype(np.int64)
        return np.diff(steps, axis=0, prepend=np.zeros((1, 2), np.int64)).ravel().tolist()

    return {
        "water": [
            [encode_moves(shapely.get_coordinates(ring)) for ring in shapely.get_rings(polygon)]
            for polygon in basemap.water
        ],
        "lines": {kind: [encode_moves(line) for line in lines] for kind, lines in basemap.lines.items()},
        "names": [[name.name, round(name.latitude, 5), round(name.longitude, 5), name.rank] for name in basemap.names],
        "credit": basemap.credit,
    }


class _FeatureCollector:
    """Collects features by type."""

    def __init__(self, box: Box) -> None:
        south, west, north, east = box
        self._frame = shapely.box(west, south, east, north)
        self._tolerance = (east - west) / _SIMPLIFICATION_STEPS
        self._water: list[shapely.Polygon] = []
        self._lines: dict[str, list[FloatArray]] = {kind: [] for kind in LINES}
        self._coast: list[FloatArray] = []
        self._credit = ""
        self._names: dict[tuple[str, float, float], PlaceName] = {}

    def add(self, layer: set[str], feature: Feature, convert: Callable[..., Any] | None) -> None:
        """Add a feature if its type is shown on a map."""
        shape = _parse_shape(feature.geometry, convert)
        if shape is None or not shapely.intersects(shapely.box(*shape.bounds), self._frame):
            return
        words = _collect_words(layer, feature.properties)
        self._credit = self._credit or str(feature.properties.get("credit") or "")
        kinds = {"Polygon": self._add_area, "LineString": self._add_line, "Point": self._add_place}
        kinds[shape.geom_type.removeprefix("Multi")](shape, words, feature.properties)

    def _add_area(self, shape: Any, words: set[str], properties: Mapping[str, Any]) -> None:
        if words & _WATER:
            inside = shapely.intersection(shapely.make_valid(shapely.simplify(shape, self._tolerance)), self._frame)
            self._water += list_polygons(inside)
        elif not words:
            self._keep("line", [shapely.get_coordinates(ring) for ring in shapely.get_rings(shapely.get_parts(shape))])
            middle = shape.representative_point()
            self._add_name(properties, middle.x, middle.y, 0.0)

    def _add_line(self, shape: Any, words: set[str], _: Mapping[str, Any]) -> None:
        if words & _PATHS:
            return
        kind = next((kind for kind, kind_words in _KINDS_OF_LINES.items() if words & kind_words), "line")
        kept = self._keep(kind, [shapely.get_coordinates(part) for part in shapely.get_parts(shape)])
        self._coast += kept if "coastline" in words else ()

    def _add_place(self, shape: Any, words: set[str], properties: Mapping[str, Any]) -> None:
        kinds = [number for number, word in enumerate(_PLACES) if word in words]
        if not kinds and words:
            return
        population = properties.get("population")
        rank = 50.0 - 5 * kinds[0] if kinds else 0.0
        if isinstance(population, int | float) and not isinstance(population, bool) and 1 < population < math.inf:
            rank = 10 * math.log10(population)
        for point in shapely.get_parts(shape):
            if shapely.intersects(point, self._frame):
                self._add_name(properties, point.x, point.y, rank)

    def _add_name(self, properties: Mapping[str, Any], east: float, north: float, rank: float) -> None:
        name = next((properties[key] for key in ("name:en", "name_en", "name", "NAME") if properties.get(key)), None)
        if isinstance(name, str) and name.isprintable():
            key = (name, round(east, 2), round(north, 2))  # another layer may contain the same name
            self._names[key] = PlaceName(name[:80], north, east, rank)

    def _keep(self, kind: str, lines: Iterable[FloatArray]) -> list[FloatArray]:
        inside = clip_lines((line for line in lines if len(line) > 1), self._frame)
        kept = [shapely.get_coordinates(shapely.simplify(shapely.LineString(line), self._tolerance)) for line in inside]
        self._lines[kind] += kept
        return kept

    def make_basemap(self, credit: str, max_points: int) -> Basemap:
        lines = {kind: kind_lines for kind, kind_lines in self._lines.items() if kind_lines}
        for kind in ("lane", "street", "road", "stream", "line"):
            if sum(len(line) for kind_lines in lines.values() for line in kind_lines) > max_points:
                lines.pop(kind, None)
        names = sorted(self._names.values(), key=lambda place: (-place.rank, place.name))
        return Basemap(self._water + get_sea(self._coast, self._frame), lines, names, self._credit or credit)


def _parse_shape(geometry: Any, convert: Callable[..., Any] | None) -> Any:
    """Return a feature's geometry in degrees. None if it is missing or invalid."""
    try:
        shape = parse_geometry(geometry, GEOMETRY_TYPES) if isinstance(geometry, Mapping | bytes) else None
    except ValueError:
        return None
    if shape is None or shape.is_empty:
        return None
    if convert is not None:
        shape = shapely.transform(shapely.force_2d(shape), convert, interleaved=False)
    is_valid = np.abs(shapely.get_coordinates(shape)) <= [360.0, 90.0]  # false for NaN
    return shape if is_valid.all() else None


def _collect_words(layer: set[str], properties: Mapping[str, Any]) -> set[str]:
    """Return the words that describe the type of a feature, including those of its layer."""
    words = set(layer)
    for key in _TYPE_PROPERTIES:
        value = properties.get(key)
        if isinstance(value, str) and value:
            words |= {value.lower()} | ({"highway="} if key == "highway" else set())
    if str(properties.get("name")).lower() in _STREAMS:
        words.add("coast")
    if _COASTLINE in str(properties.get("other_tags")):
        words.add("coastline")
    if "highway=" in words:
        words.discard("highway")
    return words
