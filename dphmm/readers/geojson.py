"""Rows of a GeoJSON feature collection of points."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dphmm.errors import DataFileError
from dphmm.readers.columns import Row, resolve
from dphmm.readers.source import Document

_WGS84_NAMES = ("CRS84", "EPSG::4326", "EPSG:4326")


def geojson_rows(document: Document, columns: Mapping[str, str]) -> Iterator[Row]:
    """The features of a GeoJSON collection (RFC 7946), whose properties are the columns.

    The standard library reads it, so that times stay the texts they are and a message can name the feature.

    Raises
    ------
    DataFileError
        When the file is no GeoJSON feature collection, is cut off, is in another reference system than WGS 84, or lacks
        a property.
    """
    features = _features(document)
    tables = [feature.get("properties") or {} for feature in features]
    names = [*dict.fromkeys(name for table in tables for name in table), "geometry"]
    found = resolve(names, {"geometry": "geometry"} | dict(columns), document.source)
    for number, (feature, table) in enumerate(zip(features, tables, strict=True), start=1):
        user = _user(table.get(found["user"])) if "user" in found else None
        yield Row(number, user, table.get(found["time"]), place=feature.get("geometry"))


def _user(value: object) -> str:
    return "" if value is None else str(value)


def _features(document: Document) -> list[dict[str, Any]]:
    try:
        collection = json.loads(document.data.decode("utf-8-sig"))
    except json.JSONDecodeError as problem:
        raise DataFileError(document.source, f"is no JSON ({problem.msg}); it may be cut off", problem.lineno) from None
    except (UnicodeDecodeError, RecursionError) as problem:
        raise DataFileError(document.source, f"is no JSON ({problem}); export it again") from None
    features = collection.get("features") if isinstance(collection, dict) else None
    if not isinstance(features, list) or not all(isinstance(feature, dict) for feature in features):
        raise DataFileError(document.source, "is no GeoJSON feature collection; export the points as one")
    system = json.dumps(collection.get("crs"))
    if system != "null" and not any(name in system for name in _WGS84_NAMES):
        raise DataFileError(document.source, "is in another reference system than WGS 84; export it in that one")
    return features
