"""Releases as a GeoJSON feature collection of points, in WGS 84 as the format prescribes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from dphmm.tables import Feature, read_document, read_features, write_features
from dphmm.writers.formats import parsed
from dphmm.writers.table import COLUMNS, Column, ReleaseTable


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table, one feature a line; a release beyond the Earth's plane has a null geometry."""
    write_features(path, "releases", (Feature(row, _point(row)) for row in table.rows()))


def _point(row: dict[str, Any]) -> dict[str, Any] | None:
    placed = row["latitude"] is not None
    return {"type": "Point", "coordinates": [row["longitude"], row["latitude"]]} if placed else None


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    rows = [properties for properties, _ in read_features(read_document(path))]
    return ReleaseTable({column.name: [_value(column, row[column.name]) for row in rows] for column in COLUMNS})


def _value(column: Column, value: Any) -> Any:
    return math.inf if value is None and column.name == "constrained_factor" else parsed(column, value)
