"""Categories drawn on a map: the polygons of a layer in GeoJSON, KML or GeoPackage."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import IntArray
from dphmm.errors import DataFileError
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.mending import mended, said, without_small_overlaps
from dphmm.space.states import StateSpace
from dphmm.tables.geojson import Feature, geometry_kind, geometry_of, read_collection
from dphmm.tables.geopackage import read_geopackage
from dphmm.tables.kml import read_kml
from dphmm.tables.source import read_document, suffix_of

LABELS = ("category", "name")
"""The properties that name a polygon's category, the first that every polygon has; otherwise each is its own."""

_AREAS = ("Polygon", "MultiPolygon")
_OTHERS = ("Point", "LineString", "MultiPoint", "MultiLineString")
_WGS84 = re.compile(r"CRS:?84|\b4326\b")
_SYSTEM = re.compile(r"\b(EPSG|ESRI)\W+(?:[\d.]*\W+)?(\d{4,6})$", re.IGNORECASE)

_COLLECTIONS = tuple(
    (b"\1" if order == "little" else b"\0") + number.to_bytes(4, order)
    for number in (7, 1007, 2007, 3007)
    for order in ("little", "big")
)
"""How collections begin in well-known binary."""
_DEEPEST = 32
"""Collections in one another that are read; many thousands would crash the library."""


def read_polygons(path: str | Path, label: str | None = None) -> list[tuple[str, shapely.Geometry]]:
    """The polygons of a layer, each with the name of its category.

    What is broken and has one plain meaning is mended, and what was mended is logged as a warning, in one line: rings
    that cross themselves, collections with points or lines beside the polygons, slivers, and polygons of different
    names that overlap by at most a hundredth of the smaller one, of which the first keeps what both cover.

    Parameters
    ----------
    path
        By its ending: KML (``.kml``), a GeoPackage of one layer (``.gpkg``), or a GeoJSON feature collection. Longitude
        first; another reference system than WGS 84 that the file names by its EPSG code is converted.
    label
        The property that names the category; left out, the first of `LABELS` that every polygon has, and failing
        that every polygon is a category of its own.

    Raises
    ------
    DataFileError
        When the file is no such layer, its reference system is unknown, or a feature is no polygon, has no plain
        meaning, or lacks the label.
    """
    features, system = _features(path)
    if not features:
        raise DataFileError(path, "is no GeoJSON feature collection with a feature in it; export the polygons as one")
    names = _names([feature.properties for feature in features], label, path)
    convert, found = _conversion(system, path), Counter[str]()
    shapes = []
    for name, feature in zip(names, features, strict=True):
        shapes.append(_polygon(feature.geometry, name, path, convert, found))
    shapes = without_small_overlaps(names, shapes, found)
    if found:
        _say(f"dphmm: {path} was mended: {said(found)}")
    shapely.prepare(shapes)
    return list(zip(names, shapes, strict=True))


def categories(path: str | Path, space: StateSpace, label: str | None = None) -> dict[str, IntArray]:
    """Which states lie in each category of a layer.

    Parameters
    ----------
    path, label
        As in `read_polygons`.
    space
        The states; a state lies in a polygon when its point does, the border included.

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
    for name, polygon in read_polygons(path, label):
        inside = shapely.intersects_xy(polygon, places[:, 1], places[:, 0])
        found.setdefault(name, []).append(np.flatnonzero(inside))
    groups = {name: np.unique(np.concatenate(parts)) for name, parts in found.items()}
    if not any(len(states) for states in groups.values()):
        raise DataFileError(path, "covers no state of the model; check that it is WGS 84 and of the same region")
    return groups


def categorical_layer(path: str | Path, space: StateSpace, label: str | None = None) -> PolicyGraph:
    """The policy that connects the states of each category of a layer; see `categories`.

    A state in two categories is connected with the states of both, a state in none with no other.
    """
    return PolicyGraph.from_groups(space.size, list(categories(path, space, label).values()))


def _names(tables: list[dict[str, Any]], label: str | None, path: str | Path) -> list[str]:
    if label is None:
        label = next((known for known in LABELS if all(table.get(known) is not None for table in tables)), None)
    if label is None:
        return [f"feature {number}" for number in range(1, len(tables) + 1)]
    for number, table in enumerate(tables, start=1):
        if table.get(label) is None:
            raise DataFileError(path, f"feature {number} has no property {label!r}; it has {sorted(table)}")
    return [str(table[label]) for table in tables]


def _features(path: str | Path) -> tuple[list[Feature], str | None]:
    """The features of a file, and its reference system where it names one."""
    if suffix_of(Path(path)) == ".gpkg":
        features, system = read_geopackage(path)
        return features, system or "none"
    document = read_document(path)
    return (read_kml(document), None) if suffix_of(Path(path)) == ".kml" else read_collection(document)


def _conversion(system: str | None, path: str | Path) -> Any:
    """What turns coordinates of a reference system into degrees, longitude first; None where they are."""
    if system is None or _WGS84.search(system):
        return None
    from pyproj import Transformer
    from pyproj.exceptions import ProjError

    named = _SYSTEM.search(system)
    try:
        if named is not None:
            return Transformer.from_crs(f"{named[1].upper()}:{named[2]}", "EPSG:4326", always_xy=True)
    except ProjError:
        pass
    raise DataFileError(path, f"is in a reference system that is not known, {system!r}; export it in EPSG:4326")


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
        shape = shapely.transform(shape, lambda x, y: convert.transform(x, y), interleaved=False)
    corners = shapely.get_coordinates(shape)
    if not np.isfinite(corners).all():
        raise DataFileError(path, f"{name}: a corner of its polygon is infinite; draw it anew")
    if np.abs(corners[:, 0]).max() > 360 or np.abs(corners[:, 1]).max() > 90:
        raise DataFileError(
            path, f"{name}: its corners are no degrees, and the file does not say what; export it in EPSG:4326"
        )
    whole = mended(shape, found)
    if whole is None:
        raise DataFileError(
            path, f"{name}: its polygon crosses itself so that what is inside is open, or has no area; draw it anew"
        )
    return whole


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
