"""Releases as a GeoJSON feature collection of points.

RFC 7946 fixes the reference system to WGS 84; the ``crs`` member of the older specification says so once more, for
readers that look for it (GDAL, QGIS).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from dphmm.writers.table import COLUMNS, Column, ReleaseTable

_CRS = {"type": "name", "properties": {"name": "urn:ogc:def:crs:OGC:1.3:CRS84"}}


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table, one feature a line; a release beyond the Earth's plane has a null geometry."""
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.write('{"type": "FeatureCollection", "name": "releases",\n')
        stream.write(f'"crs": {json.dumps(_CRS)},\n"features": [\n')
        for number, row in enumerate(table.rows()):
            stream.write(",\n" if number else "")
            stream.write(json.dumps(_feature(row), ensure_ascii=False, allow_nan=False))
        stream.write("\n]}\n")


def _feature(row: dict[str, Any]) -> dict[str, Any]:
    placed = row["latitude"] is not None
    geometry = {"type": "Point", "coordinates": [row["longitude"], row["latitude"]]} if placed else None
    return {"type": "Feature", "geometry": geometry, "properties": row}


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    features = json.loads(path.read_text(encoding="utf-8"))["features"]
    rows = [feature["properties"] for feature in features]
    return ReleaseTable({column.name: [_value(column, row[column.name]) for row in rows] for column in COLUMNS})


def _value(column: Column, value: Any) -> Any:
    if column.kind == "time":
        return np.datetime64(value.removesuffix("Z"), "us")
    if value is None and column.kind == "number":
        return math.inf if column.name == "constrained_factor" else math.nan
    return value
