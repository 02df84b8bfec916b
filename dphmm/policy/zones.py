"""Polygons of a layer as categories, private zones and open places; and the places from which zones are entered.

Polygons as people draw them are mended where their meaning is plain: crossing rings, slivers, borders drawn twice.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import shapely

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray
from dphmm.errors import DataFileError, PolicyError
from dphmm.policy.graph import PolicyGraph
from dphmm.space.states import StateSpace
from dphmm.tables.source import Document, suffix_of
from dphmm.tables.values import is_text, shown
from dphmm.tables.vector_files import (
    Feature,
    Layer,
    geometry_kind,
    geometry_of,
    read_collection,
    read_layers,
    to_degrees,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_NAME = re.compile(r"[^\s&|@+]+")

LABELS = ("category", "name")
"""The properties that name a polygon's category, the first that every polygon has; otherwise each is its own."""

_AREAS = ("Polygon", "MultiPolygon")
_OTHERS = ("Point", "LineString", "MultiPoint", "MultiLineString")

_COLLECTIONS = tuple(
    (b"\1" if order == "little" else b"\0") + number.to_bytes(4, order)
    for number in (7, 1007, 2007, 3007)
    for order in ("little", "big")
)
"""How collections begin in well-known binary."""
_DEEPEST = 32
"""Collections in one another that are read; many thousands would crash the library."""

_DISPUTED = 0.01
"""Readings of one polygon, or two polygons of different names, may differ by so much of an area."""
_SLIVER_KM = 0.001
"""A part that is narrower than this in the mean is a sliver."""
_ROUNDING = 1e-9
"""Overlaps below this share of an area come from rounding; they are not looked at."""
_MOST_CROSSINGS = 1_000_000
"""Pairs of edges that meet, each counted from both, in a polygon that is mended: GEOS takes some 60 bytes for each, and
there can be as many as edges squared."""
_KM_PER_DEGREE = 111.2


@dataclass(frozen=True)
class PolygonLayer:
    """Polygons as a value with a name, by which the text of a policy refers to them instead of a file.

    Parameters
    ----------
    name
        What stands in the policy's text, as in ``zone:home``; without spaces and ``& | @ +``.
    geojson
        A GeoJSON feature collection of polygons, as text; longitude first, in degrees.

    Raises
    ------
    PolicyError
        When the name cannot stand in a policy's text, or the collection is no text.

    Examples
    --------
    >>> PolygonLayer("home", '{"type": "FeatureCollection", "features": []}').name
    'home'
    """

    name: str
    geojson: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or not is_text(self.name):
            raise PolicyError(f"a layer is named {shown(self.name)}; give a name without spaces and & | @ +")
        if not isinstance(self.geojson, str) or not is_text(self.geojson):
            raise PolicyError(f"layer {self.name} is {shown(self.geojson)}; give a GeoJSON feature collection as text")


def find_layer(reference: str, layers: Iterable[PolygonLayer]) -> str | PolygonLayer:
    """The layer that a policy's text refers to: the value of that name, otherwise the path of a file."""
    return next((layer for layer in layers if layer.name == reference), reference)


def read_polygons(layer: str | Path | PolygonLayer, label: str | None = None) -> list[tuple[str, shapely.Geometry]]:
    """The polygons of a layer, each with the name of its category.

    What is broken and has one plain meaning is mended, and what was mended is logged as a warning, in one line: rings
    that cross themselves, collections with points or lines beside the polygons, slivers, and polygons of different
    names that overlap by at most a hundredth of the smaller one, of which the first keeps what both cover.

    Parameters
    ----------
    layer
        Polygons as a value, or a file. By its ending, a file is KML (``.kml``), a GeoPackage of one layer
        (``.gpkg``), FlatGeobuf (``.fgb``), a Shapefile (``.shp``), or a GeoJSON feature collection. Longitude first;
        another reference system than WGS 84 that the file names is converted.
    label
        The property that names the category; left out, the first of `LABELS` that every polygon has, and failing
        that every polygon is a category of its own.

    Raises
    ------
    DataFileError
        When the file is no such layer, its reference system is unknown, or a feature is no polygon, has no plain
        meaning, or lacks the label.
    MissingDependencyError
        For anything but GeoJSON without pyogrio.
    """
    path = _source(layer)
    features, convert = _features(layer)
    if not features:
        raise DataFileError(path, "is no GeoJSON feature collection with a feature in it; export the polygons as one")
    names = _names([feature.properties for feature in features], label, path)
    found = Counter[str]()
    shapes = []
    for name, feature in zip(names, features, strict=True):
        shapes.append(_polygon(feature.geometry, name, path, convert, found))
    shapes = _without_small_overlaps(names, shapes, found)
    if found:
        _say(f"dphmm: {path} was mended: {', '.join(f'{what} ({count:,})' for what, count in found.items())}")
    shapely.prepare(shapes)
    return list(zip(names, shapes, strict=True))


def _source(layer: str | Path | PolygonLayer) -> str | Path:
    """What errors call a layer: its name, or its file."""
    return layer.name if isinstance(layer, PolygonLayer) else layer


def categories(
    layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None, centres: bool = True
) -> dict[str, IntArray]:
    """Which states lie in each category of a layer.

    Parameters
    ----------
    layer, label
        As in `read_polygons`.
    space
        The states.
    centres
        Whether a state lies in a polygon when its point does, the border included; else when it shares area with it.

    Returns
    -------
    dict
        Category → its states, in the order of the layer. Polygons of one category may be apart, and different
        categories may overlap; states in no polygon occur in none.

    Raises
    ------
    DataFileError
        As `read_polygons`, and when no state lies in any polygon.
    """
    places = space.latlon()
    found: dict[str, list[IntArray]] = {}
    for name, polygon in read_polygons(layer, label):
        if centres:
            inside = shapely.intersects_xy(polygon, places[:, 1], places[:, 0])
        else:
            inside = space.share_within(polygon) > 0
        found.setdefault(name, []).append(np.flatnonzero(inside))
    groups = {name: np.unique(np.concatenate(parts)) for name, parts in found.items()}
    if not any(len(states) for states in groups.values()):
        said = "covers no state of the model; check that it is WGS 84 and of the same region"
        raise DataFileError(_source(layer), said)
    return groups


def categorical_layer(layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None) -> PolicyGraph:
    """The policy that connects the states of each category of a layer; see `categories`.

    A state in two categories is connected with the states of both, a state in none with no other.
    """
    return PolicyGraph.from_groups(space.size, list(categories(layer, space, label).values()))


def _names(tables: list[dict[str, Any]], label: str | None, path: str | Path) -> list[str]:
    if label is None:
        label = next((known for known in LABELS if all(table.get(known) is not None for table in tables)), None)
    if label is None:
        return [f"feature {number}" for number in range(1, len(tables) + 1)]
    for number, table in enumerate(tables, start=1):
        if table.get(label) is None:
            raise DataFileError(path, f"feature {number} has no property {label!r}; it has {sorted(table)}")
    return [str(table[label]) for table in tables]


def _features(layer: str | Path | PolygonLayer) -> tuple[list[Feature], Any]:
    """The features of one layer, or of all folders of a KML, and what turns its coordinates into degrees."""
    path = _source(layer)
    if isinstance(layer, PolygonLayer):
        document = Document(layer.name, PurePosixPath(layer.name), layer.geojson.encode("utf-8"))
        layers = [Layer("", *read_collection(document))]
    else:
        layers = read_layers(layer)
    if len(layers) > 1 and suffix_of(Path(path)) != ".kml":
        names = ", ".join(layer.name for layer in layers)
        raise DataFileError(path, f"has {len(layers)} layers ({names}); export the one that is meant alone")
    try:
        convert = to_degrees(layers[0].system) if layers else None
    except ValueError as problem:
        said = f"is in a reference system that is not known ({problem})"
        raise DataFileError(path, f"{said}; export it in EPSG:4326") from None
    return [feature for layer in layers for feature in layer.features], convert


def _polygon(geometry: object, name: str, path: str | Path, convert: Any, found: Counter[str]) -> shapely.Geometry:
    try:
        parts = [geometry_of(part, (*_AREAS, *_OTHERS)) for part in _parts(geometry)]
    except (ValueError, shapely.errors.ShapelyError):
        parts = []
    areas = [part for part in parts if isinstance(part, shapely.Polygon | shapely.MultiPolygon) and not part.is_empty]
    if not areas:
        raise DataFileError(path, f"{name}: its geometry is no polygon; a layer of categories holds polygons alone")
    shape = shapely.force_2d(parts[0] if len(parts) == 1 else shapely.geometrycollections(parts))
    if convert is not None:
        shape = shapely.transform(shape, convert, interleaved=False)
    corners = shapely.get_coordinates(shape)
    if not np.isfinite(corners).all():
        raise DataFileError(path, f"{name}: a corner of its polygon is infinite; draw it anew")
    if np.abs(corners[:, 0]).max() > 360 or np.abs(corners[:, 1]).max() > 90:
        raise DataFileError(
            path, f"{name}: its corners are no degrees, and the file does not say what; export it in EPSG:4326"
        )
    whole = _mended(shape, found)
    if whole is None:
        problem = "crosses itself so that what is inside is open, or too often, or has no area"
        raise DataFileError(path, f"{name}: its polygon {problem}; draw it anew")
    return whole


def _mended(shape: shapely.Geometry, found: Counter[str]) -> shapely.Geometry | None:
    """A polygon, or several, as one valid geometry; None where its meaning is open, or its edges are a tangle.

    It is open where the two ways to read a ring that crosses itself differ: that what is encircled twice is outside, or
    inside; and where nothing is left that has an area.

    Parameters
    ----------
    shape
        Finite coordinates in degrees, longitude first; a collection where that is what was drawn.
    found
        What was mended, and how often; counted up.
    """
    if not shape.is_valid:
        if _is_tangled(shape):
            return None
        odd, full = (
            _areas(shapely.make_valid(shape, method=method, keep_collapsed=keep), Counter())
            for method, keep in (("linework", True), ("structure", False))
        )
        if odd.symmetric_difference(full).area > _DISPUTED * full.area:
            return None
        shape = full
        found["a polygon that crosses or touches itself"] += 1
    shape = _areas(shape, found)
    parts = shapely.get_parts(shape)
    narrow = _widths(parts) < _SLIVER_KM
    if narrow.any() and not narrow.all():
        found["a sliver left out"] += int(narrow.sum())
        parts = parts[~narrow]
        shape = shapely.multipolygons(parts) if len(parts) > 1 else parts[0]
    return None if shape.is_empty or not shape.area else shape


def _is_tangled(shape: shapely.Geometry) -> bool:
    """Whether more pairs of edges meet than can be mended, not counting those that follow one another."""
    rings = shapely.get_rings(shapely.get_parts(shapely.get_parts(shape)))
    corners, ring = shapely.get_coordinates(rings, return_index=True)
    edges = shapely.linestrings(np.stack([corners[:-1], corners[1:]], axis=1)[ring[:-1] == ring[1:]])
    tree = shapely.STRtree(edges)
    left = _MOST_CROSSINGS + 3 * len(edges)
    for some in np.array_split(edges, 1 + len(edges) ** 2 // (2 * _MOST_CROSSINGS)):
        left -= tree.query(some, predicate="intersects").shape[1]
        if left < 0:
            return True
    return False


def _without_small_overlaps(
    names: Sequence[str], shapes: Sequence[shapely.Geometry], found: Counter[str]
) -> list[shapely.Geometry]:
    """Valid polygons, of which those of different names that overlap by little no longer do: the first keeps it.

    Little is at most `_DISPUTED` of the smaller one, as borders that were drawn or simplified twice overlap. What
    overlaps by more is meant to.
    """
    kept = list(shapes)
    areas = shapely.area(kept)
    first, second = shapely.STRtree(kept).query(kept, predicate="intersects")
    for i, j in sorted(zip(first.tolist(), second.tolist(), strict=True)):
        if i >= j or names[i] == names[j]:
            continue
        share = kept[i].intersection(kept[j]).area / min(areas[i], areas[j])
        if _ROUNDING < share <= _DISPUTED:
            kept[j] = _areas(kept[j].difference(kept[i]), Counter())
            found["a small overlap given to the first of two polygons"] += 1
    return kept


def _areas(shape: shapely.Geometry, found: Counter[str]) -> shapely.Geometry:
    """What of a geometry has an area; points and lines beside it are counted."""
    if isinstance(shape, shapely.Polygon | shapely.MultiPolygon):
        return shape
    parts = shapely.get_parts(shapely.get_parts(shape))
    is_area = shapely.get_type_id(parts) == shapely.GeometryType.POLYGON
    if not is_area.all():
        found["a point or line left out"] += int((~is_area).sum())
    return shapely.union_all(parts[is_area])


def _widths(parts: Sequence[shapely.Geometry]) -> FloatArray:
    """The mean widths of polygons in degrees: area by half the length of the border, kilometres."""
    bounds = shapely.bounds(parts)
    across = np.cos(np.radians((bounds[:, 1] + bounds[:, 3]) / 2))
    flat = [_scaled(part, np.array([by, 1.0])) for part, by in zip(parts, across.tolist(), strict=True)]
    return np.asarray(2 * shapely.area(flat) / np.maximum(shapely.length(flat), np.finfo(float).tiny))


def _scaled(part: shapely.Geometry, by: FloatArray) -> shapely.Geometry:
    return shapely.transform(part, lambda corners: corners * by * _KM_PER_DEGREE)


def _parts(geometry: object) -> list[object]:
    """A geometry's parts where it is a collection, however deep; otherwise itself."""
    found, open_ones = [], [geometry]
    while open_ones:
        one = open_ones.pop()
        if isinstance(one, Mapping) and geometry_kind(one) == "GeometryCollection":
            inner = one.get("geometries")
            open_ones += reversed(inner) if isinstance(inner, list) else [None]
        elif isinstance(one, bytes) and one[:5] in _COLLECTIONS and sum(map(one.count, _COLLECTIONS)) <= _DEEPEST:
            open_ones += reversed(shapely.to_wkb(shapely.get_parts(shapely.from_wkb(one))).tolist())
        else:
            found.append(one)
    return found


@lru_cache(maxsize=64)
def _say(line: str) -> None:
    """Log a line once: every term of a policy reads its file anew."""
    logging.getLogger(__name__).warning("%s", line)


def zones(layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None) -> dict[str, IntArray]:
    """The states of each zone of a layer: those that share area with a polygon, so that no place inside is left out.

    Polygons of one name that share a state are one zone; others are zones of their own. A state that zones of different
    names share is of the one with most of it: its places are hidden, among that zone's.

    Parameters
    ----------
    layer, label
        As in `dphmm.policy.zones.read_polygons`.
    space
        The states.

    Returns
    -------
    dict
        Zone → its states, in the order of the layer; a second zone of a name is called ``name (2)``.

    Raises
    ------
    DataFileError
        As `read_polygons`; when a zone holds no state of its own, and when zones of different names overlap.
    """
    path, polygons = _source(layer), read_polygons(layer, label)
    for (one, first), (two, second) in combinations(polygons, 2):
        if one != two and shapely.area(shapely.intersection(first, second)) > _ROUNDING * min(first.area, second.area):
            raise DataFileError(path, f"zones {one!r} and {two!r} overlap; cut them apart, or give them one name")
    shares = np.array([space.share_within(polygon) for _, polygon in polygons])
    most = {name: shares[[one == name for one, _ in polygons]].max(axis=0) for name, _ in polygons}
    rank = np.stack(list(most.values()))
    owner = np.where(rank.max(axis=0) > 0, rank.argmax(axis=0), -1)
    found: dict[str, list[IntArray]] = {}
    for number, name in enumerate(most):
        for share in shares[[one == name for one, _ in polygons]]:
            inside = np.flatnonzero((share > 0) & (owner == number))
            if not len(inside):
                said = " that is not another zone's; give both one name" if (share > 0).any() else "; draw it larger"
                raise DataFileError(path, f"zone {name!r} holds no state of the model{said}, or take smaller cells")
            apart, together = [], inside
            for known in found.get(name, []):
                if np.isin(known, together).any():
                    together = np.union1d(together, known)
                else:
                    apart.append(known)
            found[name] = [*apart, together]
    made: dict[str, IntArray] = {}
    for name, parts in found.items():
        for number, states in enumerate(parts, start=1):
            made[name if number == 1 else f"{name} ({number})"] = states
    return made


def open_places(layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None) -> IntArray:
    """The states that lie in the polygons of a layer with all their area, so that nowhere else is released as it is.

    Raises
    ------
    DataFileError
        As `read_polygons`, and when there is none.
    """
    whole = shapely.union_all([polygon for _, polygon in read_polygons(layer, label)])
    inside = space.share_within(whole) >= 1 - RELATIVE_TOLERANCE
    if not inside.any():
        said = "covers no state of the model; check that it is WGS 84 and of the same region, and larger than a cell"
        raise DataFileError(_source(layer), said)
    return np.flatnonzero(inside)


def buffered(
    groups: dict[str, IntArray], space: StateSpace, length: float, structure: csr_array | None
) -> dict[str, IntArray]:
    """Zones with the places about them from which they can be entered.

    Parameters
    ----------
    groups
        Zone → its states; no state is in two.
    space
        The states.
    length
        Kilometres: a state with no place so near to one of a zone is not added to it.
    structure
        ``(N, N)``: which state can follow which. A place is added only if it leads into the zone by places that are
        added; left out, all places within the length are.

    Returns
    -------
    dict
        The same zones, larger. A state near several zones goes to the nearest, and none to a zone's own states.
    """
    points = space.measurements().points
    distance, nearest = _nearest_zone(list(groups.values()), points, space.cell_km, length * (1 + 1e-9))
    taken = np.zeros(len(points), dtype=np.bool_)
    taken[np.concatenate(list(groups.values()))] = True
    near = np.isfinite(distance) & ~taken
    found = {}
    for number, (name, states) in enumerate(groups.items()):
        around = near & (nearest == number)
        inside = np.zeros(len(points), dtype=np.bool_)
        inside[states] = True
        found[name] = np.flatnonzero(inside | (around if structure is None else _leading(inside, around, structure)))
    return found


def _nearest_zone(
    groups: list[IntArray], points: np.ndarray, cell: float, length: float
) -> tuple[np.ndarray, IntArray]:
    """How far each cell is from the nearest zone's, infinite beyond a length, and which that is.

    Of equally near zones the one whose centres are nearer, and then the first.
    """
    from scipy.spatial import cKDTree

    between, apart = [], []
    for states in groups:
        tree = cKDTree(points[states])
        between.append(tree.query(points)[0])
        some = np.flatnonzero(between[-1] <= length + np.sqrt(2) * cell)
        apart.append(np.full(len(points), np.inf))
        for one, others in zip(some, tree.query_ball_point(points[some], length + np.sqrt(2) * cell), strict=True):
            gaps = np.maximum(np.abs(points[states[others]] - points[one]) - cell, 0.0)
            distance = np.linalg.norm(gaps, axis=1).min()
            apart[-1][one] = distance if distance <= length else np.inf
    nearest = np.lexsort((np.stack(between), np.stack(apart)), axis=0)[0]
    return np.min(apart, axis=0), np.asarray(nearest, dtype=np.int64)


def _leading(inside: BoolArray, around: BoolArray, structure: csr_array) -> BoolArray:
    """The states around that lead into a zone by such states."""
    reached = inside.copy()
    while True:
        before = np.asarray(structure @ reached.astype(np.float64)) > 0
        new = before & around & ~reached
        if not new.any():
            return reached & ~inside
        reached |= new
