"""GeoJSON feature collections (RFC 7946): read with their flaws named, and written one feature a line.

The standard library reads them, so that times stay the texts they are and a message can name the feature. RFC 7946
fixes the reference system to WGS 84; the ``crs`` member of the older specification says so once more in what is
written, for readers that look for it (GDAL, QGIS).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dphmm.arguments import checked
from dphmm.errors import DataFileError
from dphmm.tables.json_text import read_json
from dphmm.tables.output import check_output
from dphmm.tables.source import Document
from dphmm.tables.values import shorten

if TYPE_CHECKING:
    import shapely

_CRS = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}
_WGS84 = re.compile(r"CRS84|\b4326\b")


class Feature(NamedTuple):
    """What a feature says, and where.

    Attributes
    ----------
    properties
        Its columns.
    geometry
        A GeoJSON geometry, longitude first, as it stands in the file; None where there is none.
    """

    properties: dict[str, Any]
    geometry: Any


def read_features(document: Document) -> list[Feature]:
    """The features of a collection, in their order.

    Raises
    ------
    DataFileError
        When the file is no GeoJSON feature collection, is cut off, or is in another reference system than WGS 84.
    """
    features, system = read_collection(document)
    if system is not None and not _WGS84.search(system):
        raise DataFileError(document.source, "is in another reference system than WGS 84; export it in EPSG:4326")
    return features


def read_collection(document: Document) -> tuple[list[Feature], str | None]:
    """The features of a collection, and what its reference system is called where it says so.

    Raises
    ------
    DataFileError
        When the file is no GeoJSON feature collection, or is cut off.
    """
    collection = read_json(document)
    features = collection.get("features") if isinstance(collection, dict) else None
    if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
        raise DataFileError(document.source, "is no GeoJSON feature collection; export the features as one")
    system = collection.get("crs")
    kept = []
    for feature in features:
        properties = feature.get("properties")
        kept.append(Feature(properties if isinstance(properties, dict) else {}, feature.get("geometry")))
    return kept, None if system is None else _name(system)


def _name(system: object) -> str:
    """What a reference system is called, by the member ``crs`` of the older specification."""
    properties = system.get("properties") if isinstance(system, dict) else None
    return str(properties.get("name")) if isinstance(properties, dict) else ""


@checked
def write_features(path: str | Path, name: str, features: Iterable[Feature]) -> None:
    """Write a collection of this name, one feature a line.

    Raises
    ------
    ValueError
        When a number is not finite, which JSON cannot say.
    """
    path = Path(path)
    check_output(path, overwrite=True)
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(f'{{"type": "FeatureCollection", "name": {json.dumps(name)},\n')
        stream.write(f'"crs": {json.dumps(_CRS)},\n"features": [\n')
        for number, feature in enumerate(features):
            stream.write(",\n" if number else "")
            written = {"type": "Feature", "geometry": feature.geometry, "properties": feature.properties}
            stream.write(json.dumps(written, ensure_ascii=False, allow_nan=False))
        stream.write("\n]}\n")


def geometry_of(value: object, kinds: Collection[str]) -> shapely.Geometry | None:
    """A geometry given as a GeoJSON object, well-known text or well-known binary; None where there is none.

    Its coordinates may be infinite, or NaN.

    Only geometries of the kinds are read: collections may be nested so deeply that the library crashes.

    Parameters
    ----------
    value
        What the file says.
    kinds
        Of `KINDS`.

    Raises
    ------
    ValueError
        When it does not read, or is of another kind.
    """
    if value is None:
        return None
    kind = geometry_kind(value)
    if kind not in kinds:
        said = f"a {kind}" if kind in KINDS else shorten(value)
        raise ValueError(f"geometry is {said}; give a {' or '.join(kinds)}")
    import shapely  # here, since most tables need no map

    try:
        if isinstance(value, str):
            with np.errstate(over="ignore"):  # numbers beyond all floats become infinite
                return shapely.from_wkt(value)
        if isinstance(value, bytes):
            with np.errstate(all="ignore"):  # numbers that are none are told by whoever asks
                return shapely.from_wkb(value)
        return shapely.from_geojson(json.dumps(value))
    except (shapely.errors.ShapelyError, RecursionError):
        raise ValueError(f"geometry is {shorten(value)}, which does not read") from None


KINDS = ("Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon")
"""The kinds of geometries by their numbers in well-known binary, from 1."""
_WORD = re.compile(r"\s*([A-Za-z]+)")


def geometry_kind(value: object) -> str | None:
    """What a geometry in one of the forms of `geometry_of` says it is; None where it does not say."""
    if isinstance(value, Mapping):
        kind = value.get("type")
        return kind if isinstance(kind, str) else None
    if isinstance(value, str):
        word = _WORD.match(value)
        return next((kind for kind in KINDS if word and kind.upper() == word[1].upper()), None)
    if isinstance(value, bytes) and value[:1] in (b"\0", b"\1") and len(value) >= 5:
        number = int.from_bytes(value[1:5], "little" if value[0] else "big") & 0x1FFFFFFF  # three bits say Z, M, SRID
        return dict(enumerate(KINDS, start=1)).get(number % 1000) if number < 4000 else None  # and so do thousands
    return None
