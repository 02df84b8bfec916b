"""What people recognise a place by: coast, water, borders, roads and names, with no request leaving the machine.

The package ships a coarse map of the world (Natural Earth at 1:10m, names of GeoNames); files of finer ones are read
too. All places are in degrees, WGS 84.
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

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import ConfigurationError, CoordinateError, DataFileError, InvalidInputError
from dphmm.jobs.models import Model, load_model
from dphmm.space.grid import Box
from dphmm.space.states import StateSpace
from dphmm.space.world_map import CREDIT, Outlines, names_within, outlines
from dphmm.space.world_map import PlaceName as PlaceName
from dphmm.tables.output import check_output, new_file
from dphmm.tables.source import suffix_of
from dphmm.tables.vector_files import KINDS, Feature, geometry_of, read_layers, to_degrees

LINES = ("road", "street", "lane", "stream", "border", "line")
"""The kinds of lines on a basemap; a lane is a small street, and a line of which nothing is known a ``line``."""


@dataclass(frozen=True, eq=False)
class Basemap:
    """What is drawn below everything else on a map.

    Parameters
    ----------
    water
        Polygons, longitude first.
    lines
        Kind, one of `LINES` → lines ``(k, 2)``, longitude first.
    names
        Names of places, those of the highest ranks first.
    credit
        Whose map it is, in a sentence that is shown with it.
    """

    water: Sequence[shapely.Polygon] = ()
    lines: Mapping[str, Sequence[FloatArray]] = field(default_factory=dict)
    names: Sequence[PlaceName] = ()
    credit: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not (self.water or any(self.lines.values()) or self.names)


@checked
def shipped_basemap(box: Box, most_names: int = 300) -> Basemap:
    """Return the part of the shipped map of the world within a box.

    Parameters
    ----------
    box
        South, west, north, east in degrees. Of a box over the date line nothing is drawn.
    most_names
        How many names there are at most, those of the largest places.

    Returns
    -------
    Basemap
        Seas and lakes, borders of countries, and names of places; nothing where the box lies at sea. There are no roads
        in it.

    Raises
    ------
    CoordinateError
        For a box that is none.
    """
    south, west, north, east = check_box(box)
    if east <= west:
        return Basemap()
    frame = shapely.box(west, south, east, north)
    world = outlines()
    land = _area(world["land"], frame)
    if land.is_empty:  # nothing to recognise
        return Basemap()
    lakes = _area(world["lake"], frame)
    water = polygons(shapely.union(shapely.difference(frame, land), lakes))
    borders = {"border": pieces(world["border"].within(frame), frame)}
    return Basemap(water, borders, names_within(frame, most_names), CREDIT)


@checked
def check_box(box: Box) -> Box:
    """Return a box of degrees as numbers.

    Raises
    ------
    CoordinateError
        When it is none.
    """
    values = as_floats(box, "box", CoordinateError)
    if values.shape != (4,) or not np.isfinite(values).all() or not -90 <= values[0] < values[2] <= 90:
        raise CoordinateError(f"the box is {box}; give south, west, north and east in degrees")
    south, west, north, east = values.tolist()
    return south, west, north, east


def polygons(shape: Any) -> list[shapely.Polygon]:
    """Return the polygons of a geometry, without what has no area."""
    parts = shapely.get_parts(shapely.get_parts(shape))
    return [part for part in np.atleast_1d(parts) if part.geom_type == "Polygon" and not part.is_empty]


def pieces(lines: Iterable[FloatArray], frame: shapely.Polygon) -> list[FloatArray]:
    """Return the parts of lines ``(k, 2)`` within a rectangle."""
    inside = shapely.get_parts(shapely.clip_by_rect([shapely.LineString(line) for line in lines], *frame.bounds))
    return [shapely.get_coordinates(part) for part in inside if part.geom_type == "LineString"]


def _area(outlines: Outlines, frame: shapely.Polygon) -> Any:
    """The area of rings within a rectangle."""

    def covered(holes: bool) -> Any:
        rings = [shapely.Polygon(ring) for ring in outlines.within(frame, holes)]
        return shapely.union_all(shapely.make_valid(shapely.clip_by_rect(rings, *frame.bounds)))

    return shapely.difference(covered(False), covered(True))


MOST_POINTS = 60_000
"""A map has lines of at most this many points in all: lanes are left out first, then streets, and then roads."""
EXTRACT_POINTS = 250_000
"""A map that is made for a region has this many at most."""
_ALONG = 3000
"""Corners nearer to one another than such a part of the map's width are one."""

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
_LAYERS = _WATER | _STREETS | _STREAMS | _BORDERS
"""Words in the name of a layer that say what is in it."""
_NOT_SHOWN = {
    "building", "buildings", "landuse", "landcover", "poi", "pois", "earth", "park", "housenumber", "transit",
    "aeroway", "addresses", "sites", "traffic",
}
# fmt: on
"""Words in the names of layers of OpenStreetMap's usual extracts that a map below others does not need."""
_TELLING = (
    *("kind", "pmap:kind", "class", "subclass", "type", "natural", "water", "waterway", "highway", "place", "boundary"),
    *("featurecla", "railway", "fclass", "landuse"),
)
"""Properties that say what a feature is, in OpenStreetMap, its extracts, and Natural Earth."""
_COASTLINE = '"natural"=>"coastline"'
_OPENSTREETMAP = "© OpenStreetMap contributors."
_OF_OPENSTREETMAP: Mapping[str, str] = {
    "points": "place IS NOT NULL",
    "lines": f"highway IS NOT NULL OR waterway IN ('river', 'canal') OR other_tags LIKE '%{_COASTLINE}%'",
    "multipolygons": "\"natural\" = 'water' OR landuse IN ('reservoir', 'basin')",
}
"""What is read of each layer of an extract as OpenStreetMap's own format has it."""


@checked
def read_basemap(path: str | Path, box: Box) -> Basemap:
    """Read the part of a map in a vector file that lies within a box.

    Parameters
    ----------
    path
        GeoPackage, FlatGeobuf, GeoJSON, Shapefile, KML, or ``.osm.pbf``. What is water, a road, a street, a border or a
        place follows from the properties, and the names of layers, that extracts of OpenStreetMap and Natural Earth
        give them. Lines of which nothing is known, and outlines of such polygons, are drawn as they are.
    box
        South, west, north, east in degrees; of a box over the date line nothing is drawn.

    Returns
    -------
    Basemap
        What is within the box.

    Raises
    ------
    DataFileError
        When the file cannot be read, is in an unknown reference system, or holds nothing within the box.
    CoordinateError
        For a box that is none.
    MissingDependencyError
        For anything but GeoJSON without pyogrio.
    """
    return _read(Path(path), check_box(box), MOST_POINTS)


def _read(path: Path, box: Box, most_points: int) -> Basemap:
    raw, crosses = suffix_of(path) == ".pbf", box[3] <= box[1]
    found, wanted = _Sorted(box), _OF_OPENSTREETMAP if raw else None
    for layer in read_layers(path, None if crosses else box, wanted, wanted):
        words = set(re.findall("[a-z]+", layer.name.lower()))
        if not crosses and not words & _NOT_SHOWN:
            try:
                convert = to_degrees(layer.system)
            except ValueError as problem:
                raise DataFileError(path, f"is in a reference system that is not known ({problem})") from None
            for feature in layer.features:
                found.add(words & _LAYERS, feature, convert)
    basemap = found.basemap(_OPENSTREETMAP if raw else f"Basemap: {path.name}.", most_points)
    if basemap.is_empty:
        raise DataFileError(path, "holds no map of the region; give an extract of it, or leave the basemap out")
    return basemap


@checked
def basemap_of(path: str | Path | None, box: Box, most_points: int = MOST_POINTS) -> Basemap:
    """The map in a file, with the shipped one for what it lacks of water or names; without a file the shipped one.

    Parameters
    ----------
    path
        As for `read_basemap`; None for no file.
    box
        South, west, north, east in degrees.
    most_points
        Lines have at most this many points in all.

    Raises
    ------
    DataFileError, CoordinateError, MissingDependencyError
        As `read_basemap`.
    """
    world = shipped_basemap(box)
    if path is None:
        return world
    found = _read(Path(path), check_box(box), most_points)
    if (found.water or not world.water) and (found.names or not world.names):
        return found
    credit = f"{found.credit} {world.credit}"
    return replace(found, water=found.water or world.water, names=found.names or world.names, credit=credit)


def around(space: StateSpace, share: float) -> Box:
    """The box of a model's places, and by this part of its longer side more at each end."""
    (south, west), (north, east) = (edge(space.latlon(), axis=0).tolist() for edge in (np.min, np.max))
    more = share * max(north - south, east - west, 0.01)
    return max(south - more, -90.0), west - more, min(north + more, 90.0), east + more


_AROUND_REGION = 0.15


@checked
def extract_basemap(path: str | Path, model: Model, output: str | Path, overwrite: bool = False) -> dict[str, Any]:
    """Make a small map of a model's region out of a large one, such as a country's extract of OpenStreetMap.

    Parameters
    ----------
    path
        As for `read_basemap`.
    model
        The model, or its file.
    output
        A ``.geojson``, or ``.geojson.gz``, that `read_basemap` reads: water, roads, streets, rivers and names.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    dict
        What is on it, to be shown.

    Raises
    ------
    DataFileError, MissingDependencyError
        As `read_basemap`.
    ConfigurationError
        When the output has another ending, or the model no region.
    OutputError
        When the output exists or cannot be written.
    """
    output = check_output(output, overwrite)
    if suffix_of(output) != ".geojson":
        raise ConfigurationError(f"the map is a .geojson or .geojson.gz file, and the output {output.name}; rename it")
    found = _read(Path(path), around(load_model(model).space, _AROUND_REGION), EXTRACT_POINTS)
    write_basemap(output, found, overwrite)
    lines = {kind: len(some) for kind, some in found.lines.items()}
    return {"water": len(found.water), **lines, "names": len(found.names), "bytes": output.stat().st_size}


def write_basemap(path: Path, basemap: Basemap, overwrite: bool = False) -> None:
    """Write a map as GeoJSON that `read_basemap` reads, gzipped where the name ends in ``.gz``."""
    text = json.dumps(_collection(basemap), ensure_ascii=False, separators=(",", ":")).encode()
    with new_file(path, overwrite) as part:
        part.write_bytes(gzip.compress(text, mtime=0) if path.suffix.lower() == ".gz" else text)


_WRITTEN = {
    "road": "primary", "street": "street", "lane": "residential",
    "stream": "river", "border": "boundary", "line": "line",
}  # fmt: skip
"""Kind of a line → the word by which it is known again."""


def _collection(found: Basemap) -> dict[str, Any]:
    """A basemap as a GeoJSON collection that reads as the same, to a metre."""

    def feature(kind: str, shapes: Sequence[Any]) -> dict[str, Any]:
        shape = shapely.multipolygons(shapes) if kind == "water" else shapely.multilinestrings(shapes)
        geometry = json.loads(shapely.to_geojson(shapely.set_precision(shape, 1e-5, mode="pointwise")))
        return {"type": "Feature", "properties": {"kind": kind, "credit": found.credit}, "geometry": geometry}

    features = [feature("water", found.water)] if found.water else []
    features += [feature(_WRITTEN[kind], [*map(shapely.LineString, some)]) for kind, some in found.lines.items()]
    for name in found.names:
        said = {"place": "locality", "name": name.name, "population": 10 ** (name.rank / 10)}
        at = {"type": "Point", "coordinates": [round(name.longitude, 5), round(name.latitude, 5)]}
        features.append({"type": "Feature", "properties": said, "geometry": at})
    return {"type": "FeatureCollection", "features": features}


def coded_basemap(basemap: Basemap) -> dict[str, Any]:
    """A basemap as the pages' scripts read it, in few bytes of JSON.

    Water is polygons, each a list of rings, and lines are by kind; a ring or a line is its latitudes and longitudes in
    turn, in whole steps of 1e-5 degrees, the first two from 0 and all others from the place before. Names are text,
    latitude, longitude and rank.
    """

    def moves(points: FloatArray) -> list[int]:
        if not np.isfinite(points).all():
            raise InvalidInputError("a point of the basemap is not finite; leave it out")
        steps = np.round(points[:, ::-1] * 1e5).astype(np.int64)
        return np.diff(steps, axis=0, prepend=np.zeros((1, 2), np.int64)).ravel().tolist()

    return {
        "water": [[moves(shapely.get_coordinates(ring)) for ring in shapely.get_rings(one)] for one in basemap.water],
        "lines": {kind: [moves(line) for line in some] for kind, some in basemap.lines.items()},
        "names": [[one.name, round(one.latitude, 5), round(one.longitude, 5), one.rank] for one in basemap.names],
        "credit": basemap.credit,
    }


class _Sorted:
    """Features, sorted by what they are."""

    def __init__(self, box: Box) -> None:
        south, west, north, east = box
        self._frame = shapely.box(west, south, east, north)
        self._grain = (east - west) / _ALONG if east > west else 1.0
        self._water: list[shapely.Polygon] = []
        self._lines: dict[str, list[FloatArray]] = {kind: [] for kind in LINES}
        self._coast: list[FloatArray] = []
        self._credit = ""
        self._names: dict[tuple[str, float, float], PlaceName] = {}

    def add(self, layer: set[str], feature: Feature, convert: Callable[..., Any] | None) -> None:
        """Take a feature in, if it is any of what a map shows."""
        shape = _shape(feature.geometry, convert)
        if shape is None or not shapely.intersects(shapely.box(*shape.bounds), self._frame):
            return
        words = _words(layer, feature.properties)
        self._credit = self._credit or str(feature.properties.get("credit") or "")
        kinds = {"Polygon": self._area, "LineString": self._line, "Point": self._place}
        kinds[shape.geom_type.removeprefix("Multi")](shape, words, feature.properties)

    def _area(self, shape: Any, words: set[str], properties: Mapping[str, Any]) -> None:
        if words & _WATER:
            inside = shapely.intersection(shapely.make_valid(shapely.simplify(shape, self._grain)), self._frame)
            self._water += polygons(inside)
        elif not words:
            self._keep("line", [shapely.get_coordinates(ring) for ring in shapely.get_rings(shapely.get_parts(shape))])
            middle = shape.representative_point()
            self._name(properties, middle.x, middle.y, 0.0)

    def _line(self, shape: Any, words: set[str], _: Mapping[str, Any]) -> None:
        if words & _PATHS:
            return
        kind = next((kind for kind, telling in _KINDS_OF_LINES.items() if words & telling), "line")
        kept = self._keep(kind, [shapely.get_coordinates(part) for part in shapely.get_parts(shape)])
        self._coast += kept if "coastline" in words else ()

    def _place(self, shape: Any, words: set[str], properties: Mapping[str, Any]) -> None:
        kinds = [number for number, word in enumerate(_PLACES) if word in words]
        if not kinds and words:
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
            key = (name, round(east, 2), round(north, 2))  # which another layer may hold too
            self._names[key] = PlaceName(name[:80], north, east, rank)

    def _keep(self, kind: str, lines: Iterable[FloatArray]) -> list[FloatArray]:
        inside = pieces((line for line in lines if len(line) > 1), self._frame)
        kept = [shapely.get_coordinates(shapely.simplify(shapely.LineString(line), self._grain)) for line in inside]
        self._lines[kind] += kept
        return kept

    def basemap(self, credit: str, most_points: int) -> Basemap:
        lines = {kind: some for kind, some in self._lines.items() if some}
        for kind in ("lane", "street", "road", "stream", "line"):
            if sum(len(line) for some in lines.values() for line in some) > most_points:
                lines.pop(kind, None)
        names = sorted(self._names.values(), key=lambda place: (-place.rank, place.name))
        return Basemap(self._water + _sea(self._coast, self._frame), lines, names, self._credit or credit)


def _sea(coast: Sequence[FloatArray], frame: shapely.Polygon) -> list[shapely.Polygon]:
    """The sea within a rectangle, by coastlines with the land on their left; none where these do not part the two."""
    if not coast:
        return []
    parted = shapely.union_all([shapely.LineString(line) for line in coast] + [frame.boundary])
    faces = polygons(shapely.polygonize(shapely.get_parts(parted)))
    tree, sides = shapely.STRtree(faces), np.zeros((2, len(faces)), np.int64)
    for line in coast:
        along = np.diff(line, axis=0)
        middles, right = line[:-1] + along / 2, along[:, ::-1] * [1, -1]
        right *= 1e-7 / np.maximum(np.hypot(*right.T), 1e-12)[:, None]  # a centimetre
        for side, points in enumerate((middles + right, middles - right)):
            np.add.at(sides[side], tree.query(shapely.points(points), "within")[1], 1)
    return [face for face, right, left in zip(faces, *sides.tolist(), strict=True) if right > 20 * left]


def _shape(geometry: Any, convert: Callable[..., Any] | None) -> Any:
    """Return a feature's geometry in degrees; None where there is none, or where it lies off the Earth."""
    try:
        shape = geometry_of(geometry, KINDS) if isinstance(geometry, Mapping | bytes) else None
    except ValueError:
        return None
    if shape is None or shape.is_empty:
        return None
    if convert is not None:
        shape = shapely.transform(shapely.force_2d(shape), convert, interleaved=False)
    on_earth = np.abs(shapely.get_coordinates(shape)) <= [360.0, 90.0]  # NaN is none either
    return shape if on_earth.all() else None


def _words(layer: set[str], properties: Mapping[str, Any]) -> set[str]:
    """Collect the words by which a feature, and the name of its layer, say what it is."""
    words = set(layer)
    for key in _TELLING:
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
