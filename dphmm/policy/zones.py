"""Polygon layers as categories, zones and open states, and buffers around zones.

Hand-drawn polygons are repaired if their meaning is unambiguous: crossing rings, slivers, borders drawn twice.
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

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import DataFileError, PolicyError
from dphmm.policy.graph import PolicyGraph
from dphmm.space.grid import KM_PER_DEGREE
from dphmm.space.states import StateSpace
from dphmm.tables.source import Document, get_suffix
from dphmm.tables.values import is_text, shorten_repr
from dphmm.tables.vector_files import (
    Feature,
    Layer,
    get_geometry_type,
    parse_geometry,
    read_collection,
    read_layers,
    to_degrees,
)
from dphmm.tolerances import RELATIVE_TOLERANCE

if TYPE_CHECKING:
    from scipy.sparse import csr_array


_NAME = re.compile(r"[^\s&|@+]+")

# The properties that may contain a polygon's category. The first one that every polygon has is used.
LABELS = ("category", "name")

_AREAL_TYPES = ("Polygon", "MultiPolygon")
_OTHER_TYPES = ("Point", "LineString", "MultiPoint", "MultiLineString")

# First bytes of collections in well-known binary.
_COLLECTION_HEADERS = tuple(
    (b"\1" if order == "little" else b"\0") + number.to_bytes(4, order)
    for number in (7, 1007, 2007, 3007)
    for order in ("little", "big")
)
# GEOS reads collections recursively: thousands of nested ones crash it.
_MAX_NESTED_COLLECTION_HEADERS = 32

# Two interpretations of one polygon, or polygons with different names, may differ by this share of an area. Borders
# that were drawn or simplified twice overlap by less. Larger overlaps are considered intended.
_MAX_DISPUTED_SHARE = 0.01
# A part with a mean width below one metre is a sliver: the error of a phone's fixes is larger.
_SLIVER_KM = 0.001
# Smaller overlaps, as a share of an area, come from rounding of coordinates.
_ROUNDING = 1e-9
# Pairs of intersecting edges, each counted twice. GEOS uses about 60 bytes for each, and their number can be quadratic.
_MAX_CROSSINGS = 1_000_000


@dataclass(frozen=True)
class PolygonLayer:
    """A named polygon layer, to which the text of a policy can refer instead of a file.

    Parameters
    ----------
    name
        The name in the policy's text, as in ``zone:home``, without spaces and ``& | @ +``.
    geojson
        A GeoJSON feature collection of polygons, as a string; longitude first, in degrees.

    Raises
    ------
    PolicyError
        If the name contains invalid characters, or the collection is not a string.

    Examples
    --------
    >>> PolygonLayer("home", '{"type": "FeatureCollection", "features": []}').name
    'home'
    """

    name: str
    geojson: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or not is_text(self.name):
            raise PolicyError(f"the name of a layer must not contain spaces and & | @ +, got {shorten_repr(self.name)}")
        if not isinstance(self.geojson, str) or not is_text(self.geojson):
            raise PolicyError(f"layer {self.name} must be a GeoJSON string, got {shorten_repr(self.geojson)}")


def find_layer(reference: str, layers: Iterable[PolygonLayer]) -> str | PolygonLayer:
    """Return the layer with a name, or else the name itself as the path of a file."""
    return next((layer for layer in layers if layer.name == reference), reference)


def read_polygons(layer: str | Path | PolygonLayer, label: str | None = None) -> list[tuple[str, shapely.Geometry]]:
    """Read the polygons of a layer, each with the name of its category.

    Parts beyond ±180° of longitude are moved by 360°, to the other side of the date line.

    Invalid geometries with an unambiguous meaning are repaired, and the repairs are logged as a warning: rings that
    cross themselves, collections with points or lines in addition to polygons, slivers, and polygons with different
    names that overlap by at most a hundredth of the smaller one. The first of two such polygons keeps the overlap.

    Parameters
    ----------
    layer
        A layer as a value, or a file. By its extension, a file is KML (``.kml``), a GeoPackage with one layer
        (``.gpkg``), FlatGeobuf (``.fgb``), a Shapefile (``.shp``), or a GeoJSON feature collection. Longitude first.
        Coordinates in another reference system than WGS 84 are converted if the file names the system.
    label
        The property that contains the category. Defaults to the first of `LABELS` that every polygon has, or else to a
        separate category for every polygon.

    Raises
    ------
    DataFileError
        If the file is not such a layer, its reference system is unknown, or a feature is not a polygon, is ambiguous,
        has an edge across more than 180° of longitude, or lacks the label.
    MissingDependencyError
        If pyogrio is not installed, for formats other than GeoJSON.
    """
    path = _get_source(layer)
    features, convert = _read_features(layer)
    if not features:
        raise DataFileError(
            path, "must be a GeoJSON feature collection with at least one feature: export the polygons as one"
        )
    names = _list_feature_names([feature.properties for feature in features], label, path)
    repaired = Counter[str]()
    shapes = []
    for name, feature in zip(names, features, strict=True):
        shapes.append(_parse_polygon(feature.geometry, name, path, convert, repaired))
    shapes = _remove_small_overlaps(names, shapes, repaired)
    if repaired:
        _warn(f"repaired {path}: {', '.join(f'{what} ({count:,})' for what, count in repaired.items())}")
    shapely.prepare(shapes)
    return list(zip(names, shapes, strict=True))


def _get_source(layer: str | Path | PolygonLayer) -> str | Path:
    """Return the name of a layer, or its file, for error messages."""
    return layer.name if isinstance(layer, PolygonLayer) else layer


def find_categories(
    layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None, centres: bool = True
) -> dict[str, IntArray]:
    """Find the states of each category of a layer.

    Parameters
    ----------
    layer, label
        See `read_polygons`.
    space
        The states.
    centres
        If true, a state belongs to a polygon that contains its point, the border included. Otherwise it belongs to each
        polygon that overlaps its area.

    Returns
    -------
    dict
        The states of each category, in the order of the layer. Polygons of one category may be disjoint, and different
        categories may overlap. States in no polygon are omitted.

    Raises
    ------
    DataFileError
        If the layer is invalid, see `read_polygons`, or contains no state.
    """
    places = space.latlon()
    members: dict[str, list[IntArray]] = {}
    for name, polygon in read_polygons(layer, label):
        if centres:
            inside = shapely.intersects_xy(polygon, places[:, 1], places[:, 0])
        else:
            inside = space.share_within(polygon) > 0
        members.setdefault(name, []).append(np.flatnonzero(inside))
    groups = {name: np.unique(np.concatenate(parts)) for name, parts in members.items()}
    if not any(len(states) for states in groups.values()):
        problem = "contains no state of the model: check that it is WGS 84 and of the same region"
        raise DataFileError(_get_source(layer), problem)
    return groups


def build_categorical_policy(
    layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None
) -> PolicyGraph:
    """Create the policy that connects the states of each category. See `find_categories`.

    A state in two categories is adjacent to the states of both. A state in none has no edges.
    """
    return PolicyGraph.from_groups(space.size, list(find_categories(layer, space, label).values()))


def _list_feature_names(tables: list[dict[str, Any]], label: str | None, path: str | Path) -> list[str]:
    if label is None:
        label = next((name for name in LABELS if all(table.get(name) is not None for table in tables)), None)
    if label is None:
        return [f"feature {number}" for number in range(1, len(tables) + 1)]
    for number, table in enumerate(tables, start=1):
        if table.get(label) is None:
            raise DataFileError(path, f"feature {number} must have the property {label!r}, got {sorted(table)}")
    return [str(table[label]) for table in tables]


def _read_features(layer: str | Path | PolygonLayer) -> tuple[list[Feature], Any]:
    """Return the features of a layer (or all KML folders) and the conversion to degrees."""
    path = _get_source(layer)
    if isinstance(layer, PolygonLayer):
        document = Document(layer.name, PurePosixPath(layer.name), layer.geojson.encode("utf-8"))
        layers = [Layer("", *read_collection(document))]
    else:
        layers = read_layers(layer)
    if len(layers) > 1 and get_suffix(Path(path)) != ".kml":
        names = ", ".join(layer.name for layer in layers)
        raise DataFileError(path, f"must have one layer, got {len(layers)} ({names}): export a single layer")
    try:
        convert = to_degrees(layers[0].system) if layers else None
    except ValueError as problem:
        raise DataFileError(path, f"has an unknown reference system ({problem}): export it in EPSG:4326") from None
    return [feature for layer in layers for feature in layer.features], convert


def _parse_polygon(
    geometry: object, name: str, path: str | Path, convert: Any, repaired: Counter[str]
) -> shapely.Geometry:
    try:
        parts = [parse_geometry(part, (*_AREAL_TYPES, *_OTHER_TYPES)) for part in _flatten_collection(geometry)]
    except (ValueError, shapely.errors.ShapelyError):
        parts = []
    areas = [part for part in parts if isinstance(part, shapely.Polygon | shapely.MultiPolygon) and not part.is_empty]
    if not areas:
        raise DataFileError(path, f"{name}: the geometry must be a polygon")
    shape = shapely.force_2d(parts[0] if len(parts) == 1 else shapely.geometrycollections(parts))
    if convert is not None:
        shape = shapely.transform(shape, convert, interleaved=False)
    corners = shapely.get_coordinates(shape)
    if not np.isfinite(corners).all():
        raise DataFileError(path, f"{name}: the coordinates of the polygon must be finite")
    if np.abs(corners[:, 0]).max() > 360 or np.abs(corners[:, 1]).max() > 90:
        raise DataFileError(
            path, f"{name}: the coordinates are not degrees, and the file names no system: export it in EPSG:4326"
        )
    longest = _measure_longest_edge(shape)
    if longest > 180:
        problem = f"an edge of the polygon must span at most 180° of longitude, got {longest:g}°"
        raise DataFileError(path, f"{name}: {problem}: cut the polygon at the date line")
    polygon = _repair_polygon(shape, repaired)
    if polygon is None:
        problem = "crosses itself ambiguously or too often, or has no area"
        raise DataFileError(path, f"{name}: the polygon {problem}: draw it again")
    return _wrap_longitudes(polygon)


def _measure_longest_edge(shape: shapely.Geometry) -> float:
    """Return the longest edge of polygons in degrees of longitude.

    Beyond 180° it is ambiguous: it may lead across the date line or around the rest of the Earth.
    """
    corners, ring = shapely.get_coordinates(shapely.get_rings(_get_all_parts(shape)), return_index=True)
    return float(np.abs(np.diff(corners[:, 0]))[ring[:-1] == ring[1:]].max())


def _wrap_longitudes(polygon: shapely.Geometry) -> shapely.Geometry:
    """Return a polygon with its parts beyond ±180° moved by 360°.

    Maps across the date line draw polygons beyond it.
    """
    west, south, east, north = polygon.bounds
    if west >= -180 and east <= 180:
        return polygon
    parts = []
    for turn in (-360, 0, 360):
        part = _extract_areas(
            shapely.intersection(polygon, shapely.box(turn - 180, south, turn + 180, north)), Counter()
        )
        parts.append(shapely.transform(part, lambda corners, turn=turn: corners - [turn, 0.0]))
    return shapely.union_all(parts)


def _repair_polygon(shape: shapely.Geometry, repaired: Counter[str]) -> shapely.Geometry | None:
    """Return polygons as one valid geometry, or None if they cannot be repaired.

    A ring that crosses itself is ambiguous if the two interpretations differ: areas encircled twice are outside, or
    inside.

    Parameters
    ----------
    shape
        Finite coordinates in degrees, longitude first; possibly a collection.
    repaired
        Counters of the repairs, updated in place.
    """
    if not shape.is_valid:
        if _is_tangled(shape):
            return None
        # Two interpretations of a ring that crosses itself: areas encircled twice are outside ('linework', the even-odd
        # rule) or inside ('structure'). If they nearly agree, the polygon is unambiguous.
        odd, full = (
            _extract_areas(shapely.make_valid(shape, method=method, keep_collapsed=keep), Counter())
            for method, keep in (("linework", True), ("structure", False))
        )
        # A hole outside its polygon would become a part of the area.
        polygons = _get_all_parts(shape)
        rings = shapely.get_exterior_ring(polygons[shapely.get_type_id(polygons) == shapely.GeometryType.POLYGON])
        shells = shapely.make_valid(shapely.polygons(rings), method="structure", keep_collapsed=False)
        disputed = odd.symmetric_difference(full).area + full.difference(shapely.union_all(shells)).area
        if disputed > _MAX_DISPUTED_SHARE * full.area:
            return None
        shape = full
        repaired["polygons that cross or touch themselves"] += 1
    shape = _extract_areas(shape, repaired)
    parts = shapely.get_parts(shape)
    narrow = _compute_widths(parts) < _SLIVER_KM
    if narrow.any() and not narrow.all():
        repaired["removed slivers"] += int(narrow.sum())
        parts = parts[~narrow]
        shape = shapely.multipolygons(parts) if len(parts) > 1 else parts[0]
    return None if shape.is_empty or not shape.area else shape


def _is_tangled(shape: shapely.Geometry) -> bool:
    """Return whether too many pairs of non-consecutive edges intersect."""
    rings = shapely.get_rings(_get_all_parts(shape))
    corners, ring = shapely.get_coordinates(rings, return_index=True)
    edges = shapely.linestrings(np.stack([corners[:-1], corners[1:]], axis=1)[ring[:-1] == ring[1:]])
    tree = shapely.STRtree(edges)
    # Each edge intersects itself and both its neighbours. The blocks bound the memory of a query.
    left = _MAX_CROSSINGS + 3 * len(edges)
    for block in np.array_split(edges, 1 + len(edges) ** 2 // (2 * _MAX_CROSSINGS)):
        left -= tree.query(block, predicate="intersects").shape[1]
        if left < 0:
            return True
    return False


def _remove_small_overlaps(
    names: Sequence[str], shapes: Sequence[shapely.Geometry], repaired: Counter[str]
) -> list[shapely.Geometry]:
    """Remove small overlaps of polygons with different names. The first one keeps them.

    An overlap is small if it is at most `_MAX_DISPUTED_SHARE` of the smaller polygon.
    """
    kept = list(shapes)
    areas = shapely.area(kept)
    first, second = shapely.STRtree(kept).query(kept, predicate="intersects")
    for i, j in sorted(zip(first.tolist(), second.tolist(), strict=True)):
        if i >= j or names[i] == names[j]:
            continue
        share = kept[i].intersection(kept[j]).area / min(areas[i], areas[j])
        if _ROUNDING < share <= _MAX_DISPUTED_SHARE:
            kept[j] = _extract_areas(kept[j].difference(kept[i]), Counter())
            repaired["small overlaps assigned to the first polygon"] += 1
    return kept


def _extract_areas(shape: shapely.Geometry, repaired: Counter[str]) -> shapely.Geometry:
    """Return the areal part of a geometry, and count the points and lines that are removed."""
    if isinstance(shape, shapely.Polygon | shapely.MultiPolygon):
        return shape
    parts = _get_all_parts(shape)
    is_area = shapely.get_type_id(parts) == shapely.GeometryType.POLYGON
    if not is_area.all():
        repaired["removed points or lines"] += int((~is_area).sum())
    return shapely.union_all(parts[is_area])


def _get_all_parts(shape: shapely.Geometry) -> Any:
    """Return the parts of a collection, and the parts of those."""
    return shapely.get_parts(shapely.get_parts(shape))


def _compute_widths(parts: Sequence[shapely.Geometry]) -> FloatArray:
    """Return the mean widths of polygons, in kilometres: area divided by half the perimeter."""
    bounds = shapely.bounds(parts)
    # A long thin part of width w and length l has area w·l and perimeter 2l + 2w.
    across = np.cos(np.radians((bounds[:, 1] + bounds[:, 3]) / 2))
    flat = [_scale_to_km(part, np.array([by, 1.0])) for part, by in zip(parts, across.tolist(), strict=True)]
    return np.asarray(2 * shapely.area(flat) / np.maximum(shapely.length(flat), np.finfo(float).tiny))


def _scale_to_km(part: shapely.Geometry, by: FloatArray) -> shapely.Geometry:
    return shapely.transform(part, lambda corners: corners * by * KM_PER_DEGREE)


def _flatten_collection(geometry: object) -> list[object]:
    """Return the parts of a nested collection, or the geometry itself."""
    parts = []
    stack = [geometry]
    while stack:
        part = stack.pop()
        if isinstance(part, Mapping) and get_geometry_type(part) == "GeometryCollection":
            inner = part.get("geometries")
            stack += reversed(inner) if isinstance(inner, list) else [None]
        elif (
            isinstance(part, bytes)
            and part[:5] in _COLLECTION_HEADERS
            and sum(map(part.count, _COLLECTION_HEADERS)) <= _MAX_NESTED_COLLECTION_HEADERS
        ):
            stack += reversed(shapely.to_wkb(shapely.get_parts(shapely.from_wkb(part))).tolist())
        else:
            parts.append(part)
    return parts


@lru_cache(maxsize=64)
def _warn(line: str) -> None:
    """Log a warning once, although every term of a policy reads its file again."""
    logging.getLogger(__name__).warning("%s", line)


def find_zones(layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None) -> dict[str, IntArray]:
    """Find the states of each zone of a layer: all states that overlap a polygon.

    Polygons with one name that share a state are one zone. Others are separate zones. A state that overlaps zones with
    different names belongs to the zone with the largest share of its area.

    Parameters
    ----------
    layer, label
        See `read_polygons`.
    space
        The states.

    Returns
    -------
    dict
        The states of each zone, in the order of the layer. A second zone with the same name is called ``name (2)``.

    Raises
    ------
    DataFileError
        If the layer is invalid, see `read_polygons`, a zone contains no state, or zones with different names overlap.
    """
    path = _get_source(layer)
    polygons = read_polygons(layer, label)
    for (name, first), (other, second) in combinations(polygons, 2):
        overlap = shapely.area(shapely.intersection(first, second)) if name != other else 0.0
        if overlap > _ROUNDING * min(first.area, second.area):
            raise DataFileError(
                path, f"zones {name!r} and {other!r} must not overlap: separate them, or give them one name"
            )
    shares = np.array([space.share_within(polygon) for _, polygon in polygons])
    names = np.array([name for name, _ in polygons], dtype=object)
    maximum = {name: shares[names == name].max(axis=0) for name, _ in polygons}
    rank = np.stack(list(maximum.values()))
    # Each state belongs to the first zone with the largest share.
    owner = np.where(rank.max(axis=0) > 0, rank.argmax(axis=0), -1)
    zones_of: dict[str, list[IntArray]] = {}
    for number, name in enumerate(maximum):
        for share in shares[names == name]:
            inside = np.flatnonzero((share > 0) & (owner == number))
            if not len(inside):
                remedy = "give both zones one name" if (share > 0).any() else "draw it larger"
                owner_note = " that is not in another zone" if (share > 0).any() else ""
                raise DataFileError(
                    path, f"zone {name!r} must contain a state of the model{owner_note}: {remedy}, or use smaller cells"
                )
            apart = []
            together = inside
            for zone in zones_of.get(name, []):
                if np.isin(zone, together).any():
                    together = np.union1d(together, zone)
                else:
                    apart.append(zone)
            zones_of[name] = [*apart, together]
    numbered: dict[str, IntArray] = {}
    for name, parts in zones_of.items():
        for number, states in enumerate(parts, start=1):
            numbered[name if number == 1 else f"{name} ({number})"] = states
    return numbered


def find_open_states(layer: str | Path | PolygonLayer, space: StateSpace, label: str | None = None) -> IntArray:
    """Find the states that the polygons of a layer cover completely.

    Therefore no location outside the polygons is released unchanged.

    Raises
    ------
    DataFileError
        If the layer is invalid, see `read_polygons`, or contains no state.
    """
    whole = shapely.union_all([polygon for _, polygon in read_polygons(layer, label)])
    inside = space.share_within(whole) >= 1 - RELATIVE_TOLERANCE
    if not inside.any():
        problem = "contains no state of the model: check that it is WGS 84, of the same region, and larger than a cell"
        raise DataFileError(_get_source(layer), problem)
    return np.flatnonzero(inside)


def extend_zones(
    groups: dict[str, IntArray], space: StateSpace, length: float, structure: csr_array | None
) -> dict[str, IntArray]:
    """Extend zones by the nearby states from which they can be entered.

    Parameters
    ----------
    groups
        The states of each zone; no state is in two zones.
    space
        The states.
    length
        The maximum distance from the zone, in kilometres.
    structure
        ``(N, N)``: the possible moves. A state is added only if the zone can be reached from it through added states.
        None adds all states within the distance.

    Returns
    -------
    dict
        The extended zones. A state near several zones is added to the nearest. States of a zone stay in their zone.
    """
    points = space.measurements().points
    # Relative tolerance: cells at exactly this distance are added, because membership is closed.
    distance, nearest = _find_nearest_zone(list(groups.values()), points, space.cell_km, length * (1 + 1e-9))
    taken = np.zeros(len(points), dtype=np.bool_)
    taken[np.concatenate(list(groups.values()))] = True
    near = np.isfinite(distance) & ~taken
    widened = {}
    for number, (name, states) in enumerate(groups.items()):
        around = near & (nearest == number)
        inside = np.zeros(len(points), dtype=np.bool_)
        inside[states] = True
        widened[name] = np.flatnonzero(
            inside | (around if structure is None else _find_entry_states(inside, around, structure))
        )
    return widened


def _find_nearest_zone(
    groups: list[IntArray], points: np.ndarray, cell: float, length: float
) -> tuple[np.ndarray, IntArray]:
    """Return the distance of each cell to the nearest zone, and the index of this zone.

    Distances beyond the length are infinite. Ties take the zone with the nearer centres, then the first.
    """
    from scipy.spatial import cKDTree

    between = []
    apart = []
    for states in groups:
        tree = cKDTree(points[states])
        between.append(tree.query(points)[0])
        # Between two cells with centres v apart the distance is ‖max(|v| − side, 0)‖, at most a diagonal less than ‖v‖.
        candidates = np.flatnonzero(between[-1] <= length + np.sqrt(2) * cell)
        apart.append(np.full(len(points), np.inf))
        around = tree.query_ball_point(points[candidates], length + np.sqrt(2) * cell)
        for state, others in zip(candidates, around, strict=True):
            gaps = np.maximum(np.abs(points[states[others]] - points[state]) - cell, 0.0)
            distance = np.linalg.norm(gaps, axis=1).min()
            apart[-1][state] = distance if distance <= length else np.inf
    nearest = np.lexsort((np.stack(between), np.stack(apart)), axis=0)[0]
    return np.min(apart, axis=0), np.asarray(nearest, dtype=np.int64)


def _find_entry_states(inside: BoolArray, around: BoolArray, structure: csr_array) -> BoolArray:
    """Return the surrounding states from which a zone can be reached through such states."""
    reached = inside.copy()
    while True:
        before = np.asarray(structure @ reached.astype(np.float64)) > 0
        new = before & around & ~reached
        if not new.any():
            return reached & ~inside
        reached |= new
