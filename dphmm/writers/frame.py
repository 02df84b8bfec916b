"""Releases as GeoPackage, which QGIS opens, and as GeoParquet: what geopandas, GDAL and Arrow write and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dphmm.errors import InvalidInputError, OutputError, need
from dphmm.tables import read_document
from dphmm.tables.parquet import read_parquet
from dphmm.tables.sqlite import read_layer
from dphmm.tables.values import one_line
from dphmm.writers.table import COLUMNS, CRS, Column, ReleaseTable

LAYER = "releases"


def write_geopackage(path: Path, table: ReleaseTable) -> None:
    """Write the table as one layer of points. Times are kept to the millisecond, as the format has it.

    The format wants to know when a layer was last changed: the time of the last release is given, so that equal tables
    make equal files.
    """
    frame = _frame(table)
    pyogrio = need("pyogrio", "files")
    changed = max(table["time"].astype("datetime64[ms]"), default=np.datetime64(0, "ms"))
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": f"{changed}Z"})
    try:
        pyogrio.write_dataframe(frame, path.absolute(), layer=LAYER, driver="GPKG", geometry_type="Point")
    except pyogrio.errors.DataSourceError as problem:
        raise OutputError(f"{path}: GDAL cannot write it ({one_line(problem)}); check the folder") from None
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})


def read_geopackage(path: Path) -> ReleaseTable:
    """Read what `write_geopackage` wrote, without GDAL: the columns tell everything, and SQLite reads them."""
    names = [column.name for column in COLUMNS]
    rows = read_layer(path, LAYER, names)
    return ReleaseTable.parse([dict(zip(names, row, strict=True)) for row in rows])


def write_geoparquet(path: Path, table: ReleaseTable) -> None:
    """Write the table, times to the microsecond in UTC, the reference system in the file's metadata."""
    need("pyarrow", "files")
    with path.open("wb") as stream:  # of a path Arrow might think that it is a URI
        _frame(table).to_parquet(stream, index=False)


def read_geoparquet(path: Path) -> ReleaseTable:
    """Read what `write_geoparquet` wrote; the columns tell everything, the geometry is left unread."""
    wanted = [column.name for column in COLUMNS]
    found = read_parquet(read_document(path), lambda names: [name for name in wanted if name in names])
    return ReleaseTable({column.name: _cells(found, column) for column in COLUMNS})


def _frame(table: ReleaseTable) -> Any:
    """A `geopandas.GeoDataFrame` of points with its reference system."""
    geopandas = need("geopandas", "files")
    frame = geopandas.GeoDataFrame({column.name: table[column.name] for column in COLUMNS})
    frame["time"] = frame["time"].dt.tz_localize("UTC")
    points = geopandas.points_from_xy(table["longitude"], table["latitude"])
    return frame.set_geometry(geopandas.GeoSeries(points, crs=CRS).where(table.placed, None))


def _cells(found: Any, column: Column) -> Any:
    """A column of a file as an array of its kind."""
    pa = need("pyarrow", "files")
    if column.name not in found.column_names:
        raise InvalidInputError(f"there is no column {column.name!r}")
    cells = found[column.name]
    stored = cells.type
    fits = {
        "text": pa.types.is_string(stored) or pa.types.is_large_string(stored),
        "time": pa.types.is_timestamp(stored),
        "number": pa.types.is_floating(stored) or pa.types.is_integer(stored),
        "count": pa.types.is_integer(stored),
        "flag": pa.types.is_boolean(stored),
    }[column.kind] or len(cells) == 0  # where nothing tells the type
    if not fits or (cells.null_count and column.kind != "number"):
        raise InvalidInputError(f"column {column.name!r} holds {cells.null_count} nulls among its {stored} values")
    if len(cells) == 0:
        return []
    if column.kind == "time":
        return cells.cast(pa.timestamp("us", tz=stored.tz), safe=False).cast(pa.int64()).to_numpy().astype("M8[us]")
    return cells.cast(pa.float64(), safe=False).to_numpy() if column.kind == "number" else cells.to_numpy()
