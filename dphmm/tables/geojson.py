"""GeoJSON feature collections (RFC 7946): read with their flaws named, and written one feature a line.

The standard library reads them, so that times stay the texts they are and a message can name the feature. RFC 7946
fixes the reference system to WGS 84; the ``crs`` member of the older specification says so once more in what is
written, for readers that look for it (GDAL, QGIS).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dphmm.errors import DataFileError
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
    try:
        collection = json.loads(document.text())
    except json.JSONDecodeError as problem:
        raise DataFileError(document.source, f"is no JSON ({problem.msg}); it may be cut off", problem.lineno) from None
    except RecursionError as problem:
        raise DataFileError(document.source, f"is no JSON ({problem}); export it again") from None
    features = collection.get("features") if isinstance(collection, dict) else None
    if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
        raise DataFileError(document.source, "is no GeoJSON feature collection; export the features as one")
    system = collection.get("crs")
    if system is not None and not _WGS84.search(json.dumps(system)):
        raise DataFileError(document.source, "is in another reference system than WGS 84; export it in EPSG:4326")
    kept = []
    for feature in features:
        properties = feature.get("properties")
        kept.append(Feature(properties if isinstance(properties, dict) else {}, feature.get("geometry")))
    return kept


def write_features(path: Path, name: str, features: Iterable[Feature]) -> None:
    """Write a collection of this name, one feature a line.

    Raises
    ------
    ValueError
        When a number is not finite, which JSON cannot say.
    """
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write(f'{{"type": "FeatureCollection", "name": {json.dumps(name)},\n')
        stream.write(f'"crs": {json.dumps(_CRS)},\n"features": [\n')
        for number, feature in enumerate(features):
            stream.write(",\n" if number else "")
            written = {"type": "Feature", "geometry": feature.geometry, "properties": feature.properties}
            stream.write(json.dumps(written, ensure_ascii=False, allow_nan=False))
        stream.write("\n]}\n")


def geometry_of(value: object) -> shapely.Geometry | None:
    """A geometry given as a GeoJSON object, well-known text or well-known binary; None where there is none.

    Raises
    ------
    ValueError
        When it does not read.
    """
    import shapely  # here, since most tables need no map

    try:
        if isinstance(value, str):
            return shapely.from_wkt(value)
        if isinstance(value, bytes):
            return shapely.from_wkb(value)
        return None if value is None else shapely.from_geojson(json.dumps(value))
    except shapely.errors.GEOSException:
        raise ValueError(f"geometry is {shorten(str(value))}, which does not read") from None
