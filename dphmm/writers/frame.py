"""Releases as a geopandas frame, for the formats that GDAL and Arrow write."""

from __future__ import annotations

from typing import Any

import numpy as np

from dphmm.errors import need
from dphmm.writers.formats import CRS
from dphmm.writers.table import COLUMNS, ReleaseTable


def to_frame(table: ReleaseTable) -> Any:
    """The table as a `geopandas.GeoDataFrame` of points with its reference system.

    Raises
    ------
    MissingDependencyError
        Without geopandas.
    """
    geopandas = need("geopandas", "files")
    frame = geopandas.GeoDataFrame({column.name: table[column.name] for column in COLUMNS})
    frame["time"] = frame["time"].dt.tz_localize("UTC")
    points = geopandas.points_from_xy(table["longitude"], table["latitude"])
    return frame.set_geometry(geopandas.GeoSeries(points, crs=CRS).where(table.placed, None))


def from_frame(frame: Any) -> ReleaseTable:
    """The table that a frame of `to_frame` holds, after a file in between."""
    columns = {column.name: frame[column.name].to_numpy() for column in COLUMNS if column.kind != "time"}
    times = frame["time"]
    if times.dt.tz is not None:  # GDAL forgets the zone of a layer without rows
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    columns["time"] = times.to_numpy().astype("datetime64[us]")
    counts = [column.name for column in COLUMNS if column.kind == "count"]
    return ReleaseTable(columns | {name: np.asarray(columns[name], dtype=np.int64) for name in counts})
