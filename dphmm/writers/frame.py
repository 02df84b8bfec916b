"""Releases as GeoPackage, which QGIS opens, and as GeoParquet: what geopandas, GDAL and Arrow write and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dphmm.errors import OutputError, need
from dphmm.tables.values import one_line
from dphmm.writers.table import COLUMNS, CRS, ReleaseTable

LAYER = "releases"


def write_geopackage(path: Path, table: ReleaseTable) -> None:
    """Write the table as one layer of points. Times are kept to the millisecond, as the format has it."""
    frame = _frame(table)
    pyogrio = need("pyogrio", "files")
    try:
        pyogrio.write_dataframe(frame, path, layer=LAYER, driver="GPKG", geometry_type="Point")
    except pyogrio.errors.DataSourceError as problem:
        raise OutputError(f"{path}: GDAL cannot write it ({one_line(problem)}); check the folder") from None


def read_geopackage(path: Path) -> ReleaseTable:
    """Read what `write_geopackage` wrote."""
    return _table(need("pyogrio", "files").read_dataframe(path, layer=LAYER))


def write_geoparquet(path: Path, table: ReleaseTable) -> None:
    """Write the table, times to the microsecond in UTC, the reference system in the file's metadata."""
    need("pyarrow", "files")
    _frame(table).to_parquet(path, index=False)


def read_geoparquet(path: Path) -> ReleaseTable:
    """Read what `write_geoparquet` wrote."""
    need("pyarrow", "files")
    return _table(need("geopandas", "files").read_parquet(path))


def _frame(table: ReleaseTable) -> Any:
    """A `geopandas.GeoDataFrame` of points with its reference system."""
    geopandas = need("geopandas", "files")
    frame = geopandas.GeoDataFrame({column.name: table[column.name] for column in COLUMNS})
    frame["time"] = frame["time"].dt.tz_localize("UTC")
    points = geopandas.points_from_xy(table["longitude"], table["latitude"])
    return frame.set_geometry(geopandas.GeoSeries(points, crs=CRS).where(table.placed, None))


def _table(frame: Any) -> ReleaseTable:
    if frame["time"].dt.tz is not None:  # GDAL forgets the zone of a layer without rows
        frame["time"] = frame["time"].dt.tz_convert("UTC").dt.tz_localize(None)
    columns = {column.name: frame[column.name].to_numpy() for column in COLUMNS}
    counts = [column.name for column in COLUMNS if column.kind == "count"]
    return ReleaseTable(columns | {name: np.asarray(columns[name], dtype=np.int64) for name in counts})
