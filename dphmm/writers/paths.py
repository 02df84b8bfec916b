"""Paths of people who do not exist as files, in WGS 84: some people at a time, since there may be very many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import need
from dphmm.space.states import StateSpace
from dphmm.tables import iso_time
from dphmm.writers import geopackage
from dphmm.writers.table import CRS

_HEADER = ("user", "time", "latitude", "longitude")
_LAYER = "people"
_ROUNDED = 6
"""Degrees are rounded to about a decimetre."""


Add = Callable[[Sequence[str], npt.NDArray[Any]], object]
"""Writes some people, whose states at every time are ``(n, T)``, to a file of paths."""


@contextmanager
def _paths_csv(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """One line for each person and time, their cells made once for each time and state."""
    when = [f",{iso_time(time)}," for time in times]
    where = np.array([f"{latitude!r},{longitude!r}\r\n" for latitude, longitude in points.tolist()], object)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(_HEADER) + "\r\n")

        def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
            for user, row in zip(users, states, strict=True):
                between = zip(when, where[row].tolist(), strict=True)
                file.write("".join([user + time + place for time, place in between]))

        yield add


@contextmanager
def _paths_parquet(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """A group of rows for each block."""
    arrow, parquet = need("pyarrow", "files"), need("pyarrow.parquet", "files")
    kinds = (arrow.string(), arrow.timestamp("us", tz="UTC"), *[arrow.float64()] * 2)
    schema = arrow.schema(list(zip(_HEADER, kinds, strict=True)))
    with path.open("wb") as stream, parquet.ParquetWriter(stream, schema, write_page_checksum=True) as writer:

        def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
            count, length = states.shape
            number = np.repeat(np.arange(count, dtype=np.int32), length)
            names = arrow.DictionaryArray.from_arrays(number, arrow.array(list(users))).cast(arrow.string())
            when = arrow.array(np.tile(times, count), type=schema.field("time").type)
            where = (arrow.array(np.ascontiguousarray(part)) for part in points[states.ravel()].T)
            writer.write_table(arrow.table([names, when, *where], schema=schema))

        yield add


@contextmanager
def _paths_geopackage(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """One layer of points, to which each block is added."""
    geopandas, pyogrio = need("geopandas", "files"), need("pyogrio", "files")
    file = path.absolute()

    def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
        count, length = states.shape
        latitude, longitude = points[states.ravel()].T
        cells = {"user": np.repeat(np.array(users, dtype=object), length), "time": np.tile(times, count)}
        where = geopandas.points_from_xy(longitude, latitude, crs=CRS)
        frame = geopandas.GeoDataFrame(cells, geometry=where).assign(latitude=latitude, longitude=longitude)
        frame["time"] = frame["time"].dt.tz_localize("UTC")
        about = {"layer": _LAYER, **geopackage.GPKG, "geometry_type": "Point"}
        with geopackage.written_by_gdal(file, times[-1]):
            pyogrio.write_dataframe(frame, file, append=file.exists(), **about)

    yield add


_Open = Callable[[Path, npt.NDArray[np.datetime64], FloatArray], AbstractContextManager[Add]]
PATH_FORMATS: Mapping[str, _Open] = {
    ".csv": _paths_csv,
    ".parquet": _paths_parquet,
    ".gpkg": _paths_geopackage,
}
"""Extension → what writes paths."""


def open_paths(path: Path, space: StateSpace, step: int, slots: IntArray) -> AbstractContextManager[Add]:
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
    context manager
        What writes people; at its end the file is finished.

    Raises
    ------
    MissingDependencyError
        When the format needs a library that is not installed.
    """
    times = (slots * step).astype("datetime64[us]")
    return PATH_FORMATS[path.suffix.lower()](path, times, np.round(space.latlon(), _ROUNDED))
