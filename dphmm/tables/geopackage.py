"""The layer of features in a GeoPackage (OGC 12-128r19), read as the SQLite file that it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dphmm.errors import DataFileError
from dphmm.tables.geojson import Feature
from dphmm.tables.sqlite import read_layer, read_table

_WIDEST = 16 << 20
"""How long a geometry may be, in bytes: a million corners."""
_ENVELOPES = (0, 32, 48, 48, 64)
"""How long the envelope before a geometry is, by its kind."""


def read_geopackage(path: str | Path) -> tuple[list[Feature], str | None]:
    """The features, each with its geometry in well-known binary, and the name of their reference system.

    Returns
    -------
    features, system
        The system as in ``EPSG:4326``; None where the file does not know it.

    Raises
    ------
    DataFileError
        When the file is no GeoPackage that can be read safely, or has not one layer of features.
    """
    geometries = read_layer(path, "gpkg_geometry_columns", ("table_name", "column_name", "srs_id"))
    if len(geometries) != 1:
        names = ", ".join(str(name) for name, _, _ in geometries)
        raise DataFileError(path, f"has {len(geometries)} layers ({names}); export the one that is meant alone")
    layer, column, number = geometries[0]
    systems = read_layer(path, "gpkg_spatial_ref_sys", ("srs_id", "organization", "organization_coordsys_id"))
    known = [f"{authority}:{code}" for key, authority, code in systems if key == number and str(authority) != "NONE"]
    columns, rows = read_table(path, str(layer), _WIDEST)
    if column not in columns:
        raise DataFileError(path, f"has no column {column!r} in {layer!r}, where its geometries should be")
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    return [Feature(one, _binary(one.pop(column))) for one in found], known[0] if known else None


def _binary(blob: Any) -> bytes | None:
    """The well-known binary in a GeoPackage's blob; None where it holds no geometry."""
    if not isinstance(blob, bytes) or blob[:2] != b"GP" or len(blob) < 8:
        return None
    envelope = blob[3] >> 1 & 7
    is_empty = bool(blob[3] & 16)
    return None if is_empty or envelope >= len(_ENVELOPES) else blob[8 + _ENVELOPES[envelope] :]
