"""Files of synthetic trajectories in WGS 84, written in blocks of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import import_library
from dphmm.space.states import StateSpace
from dphmm.tables import iso_time
from dphmm.writers import geopackage
from dphmm.writers.release_table import CRS

_HEADER = ("user", "time", "latitude", "longitude")
_LAYER = "users"
# Six decimals of a degree are about a decimetre.
_DEGREE_DECIMALS = 6

# A function that writes a block of users, with states ``(n, T)`` at all times, to a file.
Add = Callable[[Sequence[str], npt.NDArray[Any]], object]


@contextmanager
def _write_csv(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """Write one line per user and time. The text of each time and state is formatted once."""
    time_texts = [f",{iso_time(time)}," for time in times]
    place_texts = np.array([f"{latitude!r},{longitude!r}\r\n" for latitude, longitude in points.tolist()], object)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(_HEADER) + "\r\n")

        def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
            for user, row in zip(users, states, strict=True):
                texts = zip(time_texts, place_texts[row].tolist(), strict=True)
                file.write("".join([user + time + place for time, place in texts]))

        yield add


@contextmanager
def _write_parquet(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """Write a row group per block."""
    arrow = import_library("pyarrow", "files")
    parquet = import_library("pyarrow.parquet", "files")
    kinds = (arrow.string(), arrow.timestamp("us", tz="UTC"), *[arrow.float64()] * 2)
    schema = arrow.schema(list(zip(_HEADER, kinds, strict=True)))
    with path.open("wb") as stream, parquet.ParquetWriter(stream, schema, write_page_checksum=True) as writer:

        def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
            count, length = states.shape
            number = np.repeat(np.arange(count, dtype=np.int32), length)
            names = arrow.DictionaryArray.from_arrays(number, arrow.array(list(users))).cast(arrow.string())
            time_column = arrow.array(np.tile(times, count), type=schema.field("time").type)
            degrees = (arrow.array(np.ascontiguousarray(column)) for column in points[states.ravel()].T)
            writer.write_table(arrow.table([names, time_column, *degrees], schema=schema))

        yield add


@contextmanager
def _write_geopackage(path: Path, times: npt.NDArray[np.datetime64], points: FloatArray) -> Iterator[Add]:
    """Write one layer of points, extended by each block."""
    geopandas = import_library("geopandas", "files")
    pyogrio = import_library("pyogrio", "files")
    file = path.absolute()

    def add(users: Sequence[str], states: npt.NDArray[Any]) -> None:
        count, length = states.shape
        latitude, longitude = points[states.ravel()].T
        cells = {"user": np.repeat(np.array(users, dtype=object), length), "time": np.tile(times, count)}
        geometry = geopandas.points_from_xy(longitude, latitude, crs=CRS)
        frame = geopandas.GeoDataFrame(cells, geometry=geometry).assign(latitude=latitude, longitude=longitude)
        frame["time"] = frame["time"].dt.tz_localize("UTC")
        options = {"layer": _LAYER, **geopackage.GPKG, "geometry_type": "Point"}
        with geopackage.configure_gdal(file, times[-1]):
            pyogrio.write_dataframe(frame, file, append=file.exists(), **options)

    yield add


_Open = Callable[[Path, npt.NDArray[np.datetime64], FloatArray], AbstractContextManager[Add]]
# Extension → the function that opens a file of trajectories.
PATH_FORMATS: Mapping[str, _Open] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
    ".gpkg": _write_geopackage,
}


def open_paths(path: Path, space: StateSpace, step: int, slots: IntArray) -> AbstractContextManager[Add]:
    """Open a new file of trajectories in the format of its extension.

    Parameters
    ----------
    path
        The file.
    space
        The state space.
    step
        The length of a step, microseconds.
    slots
        ``(T,)``: the slots of the times.

    Returns
    -------
    context manager
        A function that writes blocks of users. The file is finished when the context ends.

    Raises
    ------
    MissingDependencyError
        If a library of the format is not installed.
    """
    times = (slots * step).astype("datetime64[us]")
    return PATH_FORMATS[path.suffix.lower()](path, times, np.round(space.latlon(), _DEGREE_DECIMALS))
