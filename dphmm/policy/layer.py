"""Categories drawn on a map: the polygons of a GeoJSON layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import IntArray
from dphmm.errors import DataFileError
from dphmm.policy.graph import PolicyGraph
from dphmm.space.states import StateSpace
from dphmm.tables.geojson import geometry_of, read_features
from dphmm.tables.source import read_document

LABELS = ("category", "name")
"""The properties that name a polygon's category, the first that every polygon has; otherwise each is its own."""


def read_polygons(path: str | Path, label: str | None = None) -> list[tuple[str, shapely.Geometry]]:
    """The polygons of a layer, each with the name of its category.

    Parameters
    ----------
    path
        A GeoJSON feature collection of polygons in WGS 84, longitude first, as QGIS exports it.
    label
        The property that names the category; left out, the first of `LABELS` that every polygon has, and failing
        that every polygon is a category of its own.

    Raises
    ------
    DataFileError
        When the file is no such collection, or a polygon is not valid or lacks the label.
    """
    features = read_features(read_document(path))
    if not features:
        raise DataFileError(path, "is no GeoJSON feature collection with a feature in it; export the polygons as one")
    names = _names([feature.properties for feature in features], label, path)
    return [(name, _polygon(feature.geometry, name, path)) for name, feature in zip(names, features, strict=True)]


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


def _polygon(geometry: object, name: str, path: str | Path) -> shapely.Geometry:
    try:
        polygon = geometry_of(geometry, ("Polygon", "MultiPolygon"))
    except ValueError:
        polygon = None
    if not isinstance(polygon, shapely.Polygon | shapely.MultiPolygon) or polygon.is_empty:
        raise DataFileError(path, f"{name}: its geometry is no polygon; a layer of categories holds polygons alone")
    if not np.isfinite(shapely.get_coordinates(polygon)).all():
        raise DataFileError(path, f"{name}: a corner of its polygon is infinite; draw it anew")
    if not polygon.is_valid:
        raise DataFileError(path, f"{name}: its polygon crosses itself; draw it anew or run 'Fix geometries' in QGIS")
    shapely.prepare(polygon)
    return polygon
