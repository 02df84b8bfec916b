"""Releases as GeoParquet: a column of points with its reference system in the file's metadata."""

from __future__ import annotations

from pathlib import Path

from dphmm.errors import need
from dphmm.writers.frame import from_frame, to_frame
from dphmm.writers.table import ReleaseTable


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table, times to the microsecond in UTC."""
    frame = to_frame(table)
    need("pyarrow", "files")
    frame.to_parquet(path, index=False)


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    need("pyarrow", "files")
    return from_frame(need("geopandas", "files").read_parquet(path))
