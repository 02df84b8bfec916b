"""Paths of people as files, block by block: CSV, Parquet, GeoPackage. Memory holds one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import need
from dphmm.space.states import StateSpace
from dphmm.tables import iso_time
from dphmm.writers.frames import written_by_gdal
from dphmm.writers.table import CRS

HEADER = ("user", "time", "latitude", "longitude")
LAYER = "people"
_DIGITS = 6
"""Degrees are rounded to about a decimetre."""


class PathFile(Protocol):
    """A file of paths that is being written."""

    def add(self, users: Sequence[str], states: npt.NDArray[Any]) -> None:
        """Write some people, whose states at every time are ``(n, T)``."""

    def close(self) -> None:
        """Finish the file."""


class _Lines:
    """CSV: one line for each person and time, their cells made once for each time and state."""

    def __init__(self, path: Path, times: npt.NDArray[np.datetime64], places: FloatArray) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(",".join(HEADER) + "\r\n")
        self._times = [f",{iso_time(time)}," for time in times]
        self._places = np.array([f"{latitude!r},{longitude!r}\r\n" for latitude, longitude in places.tolist()], object)

    def add(self, users: Sequence[str], states: npt.NDArray[Any]) -> None:
        """As `PathFile.add`."""
        for user, row in zip(users, states, strict=True):
            between = zip(self._times, self._places[row].tolist(), strict=True)
            self._file.write("".join([user + time + place for time, place in between]))

    def close(self) -> None:
        """As `PathFile.close`."""
        self._file.close()


class _Columns:
    """Parquet: a group of rows for each block."""

    def __init__(self, path: Path, times: npt.NDArray[np.datetime64], places: FloatArray) -> None:
        self._arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
        self._times, self._places = times.astype("datetime64[us]"), places
        kinds = (self._arrow.string(), self._arrow.timestamp("us", tz="UTC"), *[self._arrow.float64()] * 2)
        self._schema = self._arrow.schema(list(zip(HEADER, kinds, strict=True)))
        self._stream = path.open("wb")
        self._writer = parquet.ParquetWriter(self._stream, self._schema, write_page_checksum=True)

    def add(self, users: Sequence[str], states: npt.NDArray[Any]) -> None:
        """As `PathFile.add`."""
        arrow, (count, length) = self._arrow, states.shape
        number = np.repeat(np.arange(count, dtype=np.int32), length)
        names = arrow.DictionaryArray.from_arrays(number, arrow.array(list(users))).cast(arrow.string())
        times = arrow.array(np.tile(self._times, count), type=self._schema.field("time").type)
        places = self._places[states.ravel()]
        columns = [names, times, *(arrow.array(np.ascontiguousarray(part)) for part in places.T)]
        self._writer.write_table(arrow.table(columns, schema=self._schema))

    def close(self) -> None:
        """As `PathFile.close`."""
        self._writer.close()
        self._stream.close()


class _Layer:
    """GeoPackage: one layer of points, to which each block is added."""

    def __init__(self, path: Path, times: npt.NDArray[np.datetime64], places: FloatArray) -> None:
        self._path, self._times, self._places = path.absolute(), times, places
        self._geopandas, self._pyogrio = need("geopandas", "files"), need("pyogrio", "files")
        self._is_new = True

    def add(self, users: Sequence[str], states: npt.NDArray[Any]) -> None:
        """As `PathFile.add`."""
        count, length = states.shape
        places = self._places[states.ravel()]
        frame = self._geopandas.GeoDataFrame(
            {"user": np.repeat(np.array(users, dtype=object), length), "time": np.tile(self._times, count)},
            geometry=self._geopandas.points_from_xy(places[:, 1], places[:, 0], crs=CRS),
        )
        frame["time"] = frame["time"].dt.tz_localize("UTC")
        frame["latitude"], frame["longitude"] = places[:, 0], places[:, 1]
        with written_by_gdal(self._path, self._times[-1]):
            self._pyogrio.write_dataframe(
                frame, self._path, layer=LAYER, driver="GPKG", geometry_type="Point", append=not self._is_new
            )
        self._is_new = False

    def close(self) -> None:
        """As `PathFile.close`."""


PATH_FORMATS: Mapping[str, type[_Lines] | type[_Columns] | type[_Layer]] = {
    ".csv": _Lines,
    ".parquet": _Columns,
    ".gpkg": _Layer,
}
"""Extension → what writes paths."""


def open_paths(path: Path, space: StateSpace, step: int, slots: IntArray) -> PathFile:
    """Open a new file of paths in the format of its extension.

    Parameters
    ----------
    path
        The file.
    space
        What the states are.
    step
        How long a step is, microseconds.
    slots
        ``(T,)``: the slots of the times.

    Returns
    -------
    PathFile
        What writes people.

    Raises
    ------
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    times = (slots * step).astype("datetime64[us]")
    return PATH_FORMATS[path.suffix.lower()](path, times, np.round(space.latlon(), _DIGITS))
