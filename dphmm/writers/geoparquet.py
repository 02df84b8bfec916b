"""Releases as GeoParquet: a column of points with its reference system in the file's metadata."""

from __future__ import annotations

from pathlib import Path

from dphmm.errors import MissingDependencyError
from dphmm.tables.parquet import pyarrow
from dphmm.writers.frame import from_frame, to_frame
from dphmm.writers.table import ReleaseTable


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table, times to the microsecond in UTC."""
    frame = to_frame(table)
    pyarrow()
    frame.to_parquet(path, index=False)


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    pyarrow()
    try:
        import geopandas
    except ImportError:
        raise MissingDependencyError("geopandas", "files") from None
    return from_frame(geopandas.read_parquet(path))
