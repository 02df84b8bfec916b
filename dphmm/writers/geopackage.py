"""Releases as a GeoPackage with one layer of points, ``releases``, which QGIS opens."""

from __future__ import annotations

from pathlib import Path

from dphmm.errors import OutputError, need
from dphmm.writers.frame import from_frame, to_frame
from dphmm.writers.table import ReleaseTable

LAYER = "releases"


def write(path: Path, table: ReleaseTable) -> None:
    """Write the table. Times are kept to the millisecond, as the format has it."""
    frame = to_frame(table)
    pyogrio = need("pyogrio", "files")
    try:
        pyogrio.write_dataframe(frame, path, layer=LAYER, driver="GPKG", geometry_type="Point")
    except pyogrio.errors.DataSourceError as problem:
        raise OutputError(
            f"{path}: GDAL cannot write it ({' '.join(str(problem).split())}); check the folder"
        ) from None


def read(path: Path) -> ReleaseTable:
    """Read what `write` wrote."""
    return from_frame(need("pyogrio", "files").read_dataframe(path, layer=LAYER))
