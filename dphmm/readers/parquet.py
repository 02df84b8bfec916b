"""Rows of a Parquet or GeoParquet file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import shapely

from dphmm.arrays import FloatArray
from dphmm.errors import need
from dphmm.readers.rows import Row, resolve
from dphmm.tables.parquet import read_parquet
from dphmm.tables.source import Document
from dphmm.tables.values import plain_text


def rows_of_parquet(document: Document, columns: Mapping[str, str]) -> Iterator[Row]:
    """The rows of a Parquet file; of a GeoParquet file with its geometry converted to WGS 84.

    Only the columns that are needed are read. A timestamp with a zone is stored in UTC by the format; one without is
    taken as UTC. What is finer than a microsecond is cut off.

    Raises
    ------
    DataFileError
        When the file is no Parquet, is cut off, or lacks a column.
    MissingDependencyError
        When pyarrow is not installed.
    """
    found: dict[str, str] = {}

    def choose(names: list[str]) -> Iterable[str]:
        found.update(resolve(names, columns, document.source))
        return found.values()

    table = read_parquet(document, choose)
    users = map(plain_text, table[found["user"]].to_pylist()) if "user" in found else [None] * len(table)
    stamps, texts = _times(table[found["time"]])
    places = _places(table, found, table.schema.metadata or {})
    for number, (user, text, place, stamp) in enumerate(zip(users, texts, places, stamps, strict=True), start=1):
        yield Row(number, user, text, place, stamp)


def _times(column: Any) -> tuple[list[int | None], list[object]]:
    """Microseconds where the column holds timestamps, and the values themselves where it does not."""
    pa = need("pyarrow", "files")
    if pa.types.is_timestamp(column.type):
        exact = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
        return exact.cast(pa.int64()).to_pylist(), [None] * len(column)
    return [None] * len(column), column.to_pylist()


def _places(table: Any, found: Mapping[str, str], metadata: Mapping[bytes, bytes]) -> list[tuple[object, object]]:
    if "geometry" not in found:
        return list(zip(table[found["latitude"]].to_pylist(), table[found["longitude"]].to_pylist(), strict=True))
    values = np.array(table[found["geometry"]].to_pylist(), dtype=object)
    geometries = shapely.from_wkb(values, on_invalid="ignore")
    points = np.column_stack([shapely.get_x(geometries), shapely.get_y(geometries)])  # NaN for what is no point
    degrees = _in_degrees(points, _crs(metadata, found["geometry"]))
    return [(latitude, longitude) for longitude, latitude in degrees.tolist()]


def _crs(metadata: Mapping[bytes, bytes], column: str) -> Any:
    """The reference system in the GeoParquet metadata; None, the format's default, is WGS 84 degrees."""
    described = json.loads(metadata.get(b"geo", b"{}")).get("columns", {}).get(column, {})
    return described.get("crs")


def _in_degrees(points: FloatArray, crs: Any) -> FloatArray:
    if crs is None:
        return points
    from pyproj import CRS, Transformer

    system = CRS.from_user_input(crs)
    if system.equals(CRS("OGC:CRS84"), ignore_axis_order=True) or system.to_epsg() == 4326:
        return points
    east, north = Transformer.from_crs(system, "OGC:CRS84", always_xy=True).transform(points[:, 0], points[:, 1])
    return np.column_stack([east, north])
