"""Releases as a GeoJSON feature collection of points, in WGS 84 as the format prescribes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dphmm.tables import Feature, read_document, read_features, write_features
from dphmm.writers.table import ReleaseTable


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table, one feature a line; a release beyond the Earth's plane has a null geometry."""
    write_features(path, "releases", (Feature(row, _point(row)) for row in table.rows()))


def _point(row: dict[str, Any]) -> dict[str, Any] | None:
    placed = row["latitude"] is not None
    return {"type": "Point", "coordinates": [row["longitude"], row["latitude"]]} if placed else None


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    rows = [properties for properties, _ in read_features(read_document(path))]
    for row in rows:
        if row.get("constrained_factor", 0) is None:  # JSON has no infinity
            row["constrained_factor"] = math.inf
    return ReleaseTable.parse(rows)
