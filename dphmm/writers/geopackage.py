"""Releases as frames: GeoPackage with styles for QGIS, GeoParquet, and the frames that other libraries take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import DataFileError, InvalidInputError, OutputError, need
from dphmm.facts import guarantees_in_words, unless_seeded
from dphmm.release.ledger import total
from dphmm.tables import read_document
from dphmm.tables.binary_files import read_parquet, write_parquet
from dphmm.tables.values import one_line
from dphmm.tables.vector_files import read_layers
from dphmm.writers.table import COLUMNS, CRS, Column, ReleaseTable

LAYERS: Mapping[str, str] = {
    "estimates": "The best estimate of each moment; its radius is how far off the model expects it.",
    "released": "What was drawn, where something was: a place with noise, further off than the estimate.",
    "tracks": "A line through the estimates of each trip.",
}
"""The layers of a GeoPackage of releases → what each is; `styles` has how QGIS is to draw it."""


def style_rows(changed: str, layers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Make the rows of the table ``layer_styles``, one for each layer, as QGIS reads them.

    Parameters
    ----------
    changed
        When the styles were last changed, ISO 8601.
    layers
        The layers → what each is.

    Returns
    -------
    list of dict
        Column → cell.
    """
    texts = files("dphmm.writers").joinpath("styles")
    return [
        {
            "f_table_catalog": "",
            "f_table_schema": "",
            "f_table_name": layer,
            "f_geometry_column": "geom",
            "styleName": layer,
            "styleQML": texts.joinpath(f"{layer}.qml").read_text(encoding="utf-8"),
            "styleSLD": "",
            "useAsDefault": True,
            "description": description,
            "owner": "dphmm",
            "ui": "",
            "update_time": changed,
        }
        for layer, description in layers.items()
    ]


Geometry = Literal["estimate", "released"]
"""Which place a release is drawn at: the best estimate given all releases so far, or what was drawn."""

NAMES = {"user": "user_id", "time": "tracked_at"}
"""Columns that frames call otherwise, as movingpandas and trackintel read them."""

GROUP_ROWS = 100_000
"""How many rows a row group of a Parquet file has at most: a reader has that many in memory."""

GPKG: dict[str, Any] = {"driver": "GPKG", "VERSION": "1.3", "DATETIME_PRECISION": "MILLISECOND"}
"""How GeoPackages are written: a version that GDAL knows from 3.3 on, and times as the format has them."""

_TRIP_GAP = np.timedelta64(1, "h")
"""A longer gap between two moments of a user begins another trip."""


def write_geopackage(
    path: Path,
    table: ReleaseTable,
    geometry: Geometry = "estimate",  # noqa: ARG001
    is_private: bool = True,
) -> None:
    """Write layers of estimates, of released places and of tracks, with their styles and the promise as metadata.

    All rows are in ``estimates``; those of moments for which something was drawn are in ``released`` too. Times are
    kept to the millisecond, as the format has it. The format wants to know when a layer was last changed: the time of
    the last release is given, so that equal tables make equal files. A GeoPackage has both geometries.
    """
    drawn = to_geodataframe(table.select(~table["withheld"]), "released")
    layers = {
        "estimates": (to_geodataframe(table), "Point"),
        "released": (drawn, "Point"),
        "tracks": (tracks(table), "LineString"),
    }
    changed = max(table["time"].astype("datetime64[ms]"), default=np.datetime64(0, "ms"))
    write_layers(path, layers, LAYERS, _promise(table, is_private), changed)


def write_layers(
    path: Path,
    layers: Mapping[str, tuple[Any, str | None]],
    about: Mapping[str, str],
    said: Mapping[str, str],
    changed: np.datetime64,
) -> None:
    """Write frames as the layers of a GeoPackage, each with its kind of geometry, and their styles.

    Parameters
    ----------
    path
        The file.
    layers
        Layer → its frame and its kind of geometry; None for a table without places.
    about
        Layer with places → what it is; `styles` has how QGIS is to draw it.
    said
        Metadata of the file.
    changed
        When it was last changed.
    """
    pyogrio, pandas, where = need("pyogrio", "files"), need("pandas", "files"), path.absolute()
    with written_by_gdal(path, changed):
        for layer, (frame, kind) in layers.items():
            told = {"layer_metadata": {"DESCRIPTION": about.get(layer)}, "dataset_metadata": said}
            placed = {"geometry_type": kind, **told} if kind else {}
            pyogrio.write_dataframe(frame, where, layer=layer, append=where.exists(), **GPKG, **placed)
        styles = pandas.DataFrame(style_rows(f"{changed}Z", about))
        styles["update_time"] = pandas.to_datetime(styles["update_time"])  # of the type that QGIS gives the column
        pyogrio.write_dataframe(styles, where, layer="layer_styles", append=True, **GPKG, FID="id")


@contextmanager
def written_by_gdal(path: Path, changed: np.datetime64) -> Iterator[None]:
    """Have GDAL date layers that are written within the block, and turn its errors into an `OutputError`."""
    pyogrio = need("pyogrio", "files")
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": f"{changed.astype('datetime64[ms]')}Z"})
    try:
        yield
    except pyogrio.errors.DataSourceError as problem:
        raise OutputError(f"{path}: GDAL cannot write it ({one_line(problem)}); check the folder") from None
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})


def read_geopackage(path: Path) -> ReleaseTable:
    """Read what `write_geopackage` wrote: the columns of its estimates hold all releases."""
    layers = read_layers(path, names=("estimates",))
    if not layers:
        raise DataFileError(path, "has no layer 'estimates'; write it anew")
    ours = {theirs: name for name, theirs in NAMES.items()}
    rows = [feature.properties for feature in layers[0].features]
    return ReleaseTable.parse([{ours.get(name, name): cell for name, cell in row.items()} for row in rows])


def write_geoparquet(path: Path, table: ReleaseTable, geometry: Geometry = "estimate", *_: object) -> None:
    """Write the table, times to the microsecond in UTC, the reference system in the file's metadata.

    Beside the geometry are plain columns of both places, for programs that know none. Neither pandas nor geopandas is
    used: for the few releases of one person, loading them and making frames takes longer than everything else.
    """
    columns = {column.name: _arrow(table[column.name], column.kind) for column in COLUMNS}
    latitude, longitude, known = places(table, geometry)
    geo: dict[str, Any] = {"encoding": "WKB", "crs": _projjson(), "geometry_types": ["Point"] if known.any() else []}
    if known.any():
        corners = ((along[known].min(), along[known].max()) for along in (longitude, latitude))
        geo["bbox"] = np.transpose(list(corners)).ravel().tolist()
    about = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": geo}}
    columns["geometry"] = _points(longitude, latitude, known)
    write_parquet(path, columns, {"geo": json.dumps(about)}, row_group_size=GROUP_ROWS)


def _arrow(values: npt.NDArray[Any], kind: str) -> Any:
    """Make an Arrow array of a column, an unknown number as NaN; of buffers, since of arrays it would import pandas."""
    pa = need("pyarrow", "files")
    if kind == "text":
        return _varying(pa.large_string(), [text.encode() for text in values.tolist()])
    stored = {"time": pa.timestamp("us", "UTC"), "count": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}[kind]
    held = np.packbits(values, bitorder="little") if kind == "flag" else np.ascontiguousarray(values).view(np.int64)
    return pa.Array.from_buffers(stored, len(values), [None, pa.py_buffer(held)])


def _points(longitude: FloatArray, latitude: FloatArray, known: BoolArray) -> Any:
    """Points as an Arrow array of well-known binary, null where a place is not known."""
    points = np.zeros(len(known), dtype=[("order", "u1"), ("kind", "<u4"), ("x", "<f8"), ("y", "<f8")])
    points["order"], points["kind"], points["x"], points["y"] = 1, 1, longitude, latitude
    texts = [point.tobytes() if there else None for point, there in zip(points, known.tolist(), strict=True)]
    return _varying(need("pyarrow", "files").large_binary(), texts)


def _varying(stored: Any, texts: Sequence[bytes | None]) -> Any:
    pa = need("pyarrow", "files")
    ends = np.cumsum([0, *(len(text or b"") for text in texts)], dtype=np.int64)
    there = np.packbits(np.array([text is not None for text in texts], dtype=np.bool_), bitorder="little")
    held = (there, ends, b"".join(text or b"" for text in texts))
    return pa.Array.from_buffers(stored, len(texts), list(map(pa.py_buffer, held)))


@cache
def _projjson() -> dict[str, Any]:
    from pyproj import CRS as ReferenceSystem

    found = dict(ReferenceSystem(CRS).to_json_dict())
    for member in found["datum_ensemble"]["members"]:  # PROJ before 9.1 does not know all of these numbers
        member.pop("id", None)
    return found


def read_geoparquet(path: Path) -> ReleaseTable:
    """Read what `write_geoparquet` wrote: the columns hold everything, and the geometry is not read."""
    wanted = [column.name for column in COLUMNS]
    found = read_parquet(read_document(path), lambda names: [name for name in wanted if name in names])
    return ReleaseTable({column.name: _cells(found, column) for column in COLUMNS})


@checked
def to_geodataframe(table: ReleaseTable, geometry: Geometry = "estimate") -> Any:
    """Make a `geopandas.GeoDataFrame` of points in WGS 84, which trackintel and movingpandas take as it is.

    Parameters
    ----------
    table
        The releases.
    geometry
        Where the points are: at the ``"estimate"``, or where something was ``"released"``; there is none otherwise.

    Returns
    -------
    geopandas.GeoDataFrame
        A row for each of the table's, with its columns, but for ``user_id`` and ``tracked_at`` (UTC) in place of
        ``user`` and ``time``.

    Raises
    ------
    MissingDependencyError
        Without geopandas.
    """
    geopandas = need("geopandas", "files")
    frame = geopandas.GeoDataFrame({NAMES.get(column.name, column.name): table[column.name] for column in COLUMNS})
    frame["tracked_at"] = frame["tracked_at"].dt.tz_localize("UTC")
    latitude, longitude, known = places(table, geometry)
    points = geopandas.points_from_xy(longitude, latitude)
    return frame.set_geometry(geopandas.GeoSeries(points, crs=CRS).where(known, None))


@checked
def to_trajectory_collection(table: ReleaseTable, geometry: Geometry = "estimate") -> Any:
    """Make a `movingpandas.TrajectoryCollection`: one trajectory for each user with two moments or more.

    Moments without a place are left out. Times are in UTC without saying so, as the library has it.

    Parameters
    ----------
    table
        The releases.
    geometry
        As for `to_geodataframe`.

    Returns
    -------
    movingpandas.TrajectoryCollection
        With ``user_id`` to tell trajectories apart.

    Raises
    ------
    MissingDependencyError
        Without movingpandas.
    """
    movingpandas = need("movingpandas", "geo")
    frame = to_geodataframe(table, geometry)
    frame["tracked_at"] = frame["tracked_at"].dt.tz_localize(None)
    return movingpandas.TrajectoryCollection(
        frame[frame.geometry.notna()], traj_id_col="user_id", t="tracked_at", min_length=0
    )


@checked
def to_scikit_mobility(table: ReleaseTable, geometry: Geometry = "estimate") -> Any:
    """Make a `pandas.DataFrame` of the shape that scikit-mobility's ``TrajDataFrame`` takes as it is.

    Moments without a place are left out.

    Parameters
    ----------
    table
        The releases.
    geometry
        As for `to_geodataframe`.

    Returns
    -------
    pandas.DataFrame
        Columns ``uid``, ``datetime`` (UTC without saying so, as the library has it), ``lat`` and ``lng``, then the
        table's others, with where something was drawn as ``released_latitude`` and ``released_longitude``; sorted by
        user and time.

    Raises
    ------
    MissingDependencyError
        Without pandas.
    """
    pandas = need("pandas", "files")
    latitude, longitude, known = places(table, geometry)
    columns = {"uid": table["user"], "datetime": table["time"], "lat": latitude, "lng": longitude}
    names = {"latitude": "released_latitude", "longitude": "released_longitude"}  # not to be taken for those
    some = (column.name for column in COLUMNS if column.name not in ("user", "time"))
    rest = {names.get(name, name): table[name] for name in some}
    frame = pandas.DataFrame({**columns, **rest})[known]
    return frame.sort_values(["uid", "datetime"], kind="stable", ignore_index=True)


def places(table: ReleaseTable, geometry: Geometry) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return where each release is drawn.

    Parameters
    ----------
    table
        The releases.
    geometry
        ``"estimate"`` or ``"released"``.

    Returns
    -------
    latitude, longitude, known
        ``(n,)`` each; degrees, and whether there is a place.

    Raises
    ------
    InvalidInputError
        For another geometry.
    """
    if not isinstance(geometry, str) or geometry not in ("estimate", "released"):
        raise InvalidInputError(f"geometry is {one_line(ValueError(geometry))!r}; give estimate or released")
    prefix = "estimate_" if geometry == "estimate" else ""
    latitude, longitude = table[f"{prefix}latitude"], table[f"{prefix}longitude"]
    return latitude, longitude, np.isfinite(latitude) & np.isfinite(longitude)


@checked
def tracks(table: ReleaseTable) -> Any:
    """Draw a line through the estimates of each trip.

    A gap of more than an hour begins another trip, or of more than half as much again as the user's usual one where
    that is longer. A trip of one moment has no line.

    Parameters
    ----------
    table
        The releases.

    Returns
    -------
    geopandas.GeoDataFrame
        Columns ``user_id``, ``trip`` (from 0), ``started_at``, ``finished_at``, ``moments``, ``releases`` (those for
        which something was drawn), ``epsilon`` (their sum), ``estimate_radius_m_mean`` and the lines.

    Raises
    ------
    MissingDependencyError
        Without geopandas.
    """
    geopandas, pandas, shapely = need("geopandas", "files"), need("pandas", "files"), need("shapely", "files")
    latitude, longitude, known = places(table, "estimate")
    line = np.column_stack([longitude, latitude])
    found = [one for one in user_trips(table.select(known)) if len(one.rows) > 1]
    rows = [np.flatnonzero(known)[one.rows] for one in found]
    times = {
        name: pandas.Series(table["time"][[trip[end] for trip in rows]]).dt.tz_localize("UTC")
        for name, end in (("started_at", 0), ("finished_at", -1))
    }
    columns = {
        "user_id": [one.user for one in found],
        "trip": [one.number for one in found],
        **times,
        "moments": [len(trip) for trip in rows],
        "releases": [int((~table["withheld"][trip]).sum()) for trip in rows],
        "epsilon": [total(table["epsilon"][trip].tolist()) for trip in rows],
        "estimate_radius_m_mean": [float(table["estimate_radius_m"][trip].mean()) for trip in rows],
    }
    return geopandas.GeoDataFrame(columns, geometry=[shapely.LineString(line[trip]) for trip in rows], crs=CRS)


class Trip(NamedTuple):
    """A user's moments without a long gap between them.

    Parameters
    ----------
    user, number
        Whose trip it is, and which of theirs, from 0.
    rows
        Rows of a table, in the order of their times.
    """

    user: str
    number: int
    rows: IntArray


def user_trips(table: ReleaseTable) -> list[Trip]:
    """Return the trips of all users, in the order in which users first occur; see `tracks`.

    Parameters
    ----------
    table
        The releases.

    Returns
    -------
    list of Trip
        Each row is in one of them.
    """
    users, times = table["user"].astype(str), table["time"]
    found: list[Trip] = []
    for user in dict.fromkeys(users.tolist()):
        mine = np.flatnonzero(users == user)
        mine = mine[np.argsort(times[mine], kind="stable")]
        found += [Trip(user, number, trip) for number, trip in enumerate(trips(mine, times))]
    return found


def trips(rows: npt.NDArray[np.int64], times: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
    """Split one user's rows, in the order of their times, into trips: a long gap begins another, see `tracks`."""
    gaps = np.diff(times[rows])
    if not len(gaps):
        return [rows]
    longest = max(_TRIP_GAP, np.sort(gaps)[len(gaps) // 2] * 3 // 2)
    return np.split(rows, np.flatnonzero(gaps > longest) + 1)


def in_words(is_private: bool, geometry: Geometry | None = None) -> str:
    """What a file of releases, of one geometry or of both, says of what it holds."""
    kind = "private" if is_private else "repeatable"
    what = {
        "estimate": f"Estimates from {kind} releases",
        "released": f"{kind.capitalize()} releases",
        None: f"{kind.capitalize()} releases and estimates from them",
    }
    text = f"{what[geometry]}, not true places."
    return text if is_private else f"{text} Nothing is private: the noise follows from a seed."


def _promise(table: ReleaseTable, is_private: bool) -> dict[str, str]:
    """The promise as metadata: of the release with the largest budget, and of the user with the largest sum."""
    said = {"generator": "dphmm", "content": f"{in_words(is_private)} WGS 84."}
    if not len(table):
        return said
    users, epsilons = table["user"].astype(str), table["epsilon"]
    spent = max(total(epsilons[users == user].tolist()) for user in set(users.tolist()))
    dearest = float(np.nanmax(np.where(epsilons > 0, table["constrained_factor"] * epsilons, 0.0)))
    said |= unless_seeded(guarantees_in_words(float(epsilons.max()), dearest, spent), is_private)
    said["epsilon_of_the_user_with_most"] = f"{spent:.6g}"
    said["exact"] = str(bool(table["exact"].all())).lower()
    for name in ("mechanism", "settings", "model"):
        said[name] = ", ".join(sorted(set(table[name].tolist())))
    return said


def _cells(found: Any, column: Column) -> Any:
    """Return a column of a file as an array of its kind."""
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
    }[column.kind] or len(cells) == 0  # where the type is not known
    if not fits or (cells.null_count and column.kind != "number"):
        raise InvalidInputError(f"column {column.name!r} holds {cells.null_count} nulls among its {stored} values")
    if len(cells) == 0:
        return []
    if column.kind == "time":
        return cells.cast(pa.timestamp("us", tz=stored.tz), safe=False).cast(pa.int64()).to_numpy().astype("M8[us]")
    return cells.cast(pa.float64(), safe=False).to_numpy() if column.kind == "number" else cells.to_numpy()
