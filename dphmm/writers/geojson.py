"""Releases as a GeoJSON feature collection of points, in WGS 84 as the format prescribes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dphmm.tables import Feature, read_document, read_features, write_features
from dphmm.writers.frame import Geometry, places
from dphmm.writers.table import ReleaseTable


def write(path: Path, table: ReleaseTable, geometry: Geometry = "estimate") -> None:
    """Write the table, one feature a line; a row without the place asked for has a null geometry."""
    latitude, longitude, known = places(table, geometry)
    found = zip(table.rows(), latitude.tolist(), longitude.tolist(), known.tolist(), strict=True)
    write_features(path, "releases", (Feature(row, _point(x, y) if there else None) for row, y, x, there in found))


def _point(longitude: float, latitude: float) -> dict[str, Any]:
    return {"type": "Point", "coordinates": [longitude, latitude]}


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    rows = [properties for properties, _ in read_features(read_document(path))]
    for row in rows:
        if row.get("constrained_factor", 0) is None:  # JSON has no infinity
            row["constrained_factor"] = math.inf
    return ReleaseTable.parse(rows)
