"""GeoPackage with styles for QGIS, GeoParquet, and frames for other libraries."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import DataFileError, InvalidInputError, OutputError, import_library
from dphmm.formatting import format_ratio_bound, format_upper_bound
from dphmm.release.ledger import sum_budgets
from dphmm.tables import read_document
from dphmm.tables.arrow_columns import build_binary_column
from dphmm.tables.parquet_files import read_parquet, write_parquet
from dphmm.tables.values import shorten_message
from dphmm.tables.vector_files import read_layers
from dphmm.validation import check_arguments
from dphmm.writers.release_table import COLUMNS, CRS, NAMES, Column, Geometry, ReleaseTable, get_locations

# The layers of a GeoPackage of releases → their descriptions. The folder `styles` contains their styles for QGIS.
LAYERS: Mapping[str, str] = {
    "estimates": "The estimate at each timestep; its radius is the expected error under the model.",
    "released": "The sampled locations: with noise, and less accurate than the estimates.",
    "tracks": "A line through the estimates of each trip.",
}


def build_style_rows(changed: str, layers: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of the table ``layer_styles`` for QGIS, one per layer.

    Parameters
    ----------
    changed
        The time of the last change of the styles, ISO 8601.
    layers
        Layer → its description.

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


# The largest number of rows of a row group in a Parquet file. A reader has one row group in memory.
GROUP_ROWS = 100_000

# The options of GeoPackages: a version that GDAL supports since 3.3, and times in milliseconds.
GPKG: dict[str, Any] = {"driver": "GPKG", "VERSION": "1.3", "DATETIME_PRECISION": "MILLISECOND"}

# A longer gap between two timesteps of a user starts a new trip.
_TRIP_GAP = np.timedelta64(1, "h")


def write_geopackage(
    path: Path,
    table: ReleaseTable,
    geometry: Geometry = "estimate",  # noqa: ARG001 - every writer has this signature
    is_private: bool = True,
    settings: str | None = None,
) -> None:
    """Write layers of estimates, sampled locations and tracks, with styles and metadata.

    ``estimates`` contains all rows, ``released`` the timesteps with a sampled location. Times are stored in
    milliseconds. The format requires the time of a layer's last change: it is the time of the last release, so that
    equal tables make equal files. A GeoPackage has both geometries.
    """
    sampled = to_geodataframe(table.select(~table["withheld"]), "released")
    layers = {
        "estimates": (to_geodataframe(table), "Point"),
        "released": (sampled, "Point"),
        "tracks": (tracks(table), "LineString"),
    }
    changed = max(table["time"].astype("datetime64[ms]"), default=np.datetime64(0, "ms"))
    write_layers(path, layers, LAYERS, _build_metadata(table, is_private, settings), changed)


def write_layers(
    path: Path,
    layers: Mapping[str, tuple[Any, str | None]],
    descriptions: Mapping[str, str],
    metadata: Mapping[str, str],
    changed: np.datetime64,
) -> None:
    """Write frames as the layers of a GeoPackage, with their geometry types and styles.

    Parameters
    ----------
    path
        The file.
    layers
        Layer → its frame and its geometry type; None for a table without geometry.
    descriptions
        Layer with geometry → its description. The folder `styles` contains its style for QGIS.
    metadata
        Metadata of the file.
    changed
        The time of its last change.
    """
    pyogrio = import_library("pyogrio", "files")
    pandas = import_library("pandas", "files")
    file = path.absolute()
    with configure_gdal(path, changed):
        for layer, (frame, geometry_type) in layers.items():
            options: dict[str, Any] = {}
            if geometry_type:
                options = {
                    "geometry_type": geometry_type,
                    "layer_metadata": {"DESCRIPTION": descriptions.get(layer)},
                    "dataset_metadata": metadata,
                }
            pyogrio.write_dataframe(frame, file, layer=layer, append=file.exists(), **GPKG, **options)
        styles = pandas.DataFrame(build_style_rows(f"{changed}Z", descriptions))
        styles["update_time"] = pandas.to_datetime(styles["update_time"])  # the column type of QGIS
        pyogrio.write_dataframe(styles, file, layer="layer_styles", append=True, **GPKG, FID="id")


@contextmanager
def configure_gdal(path: Path, changed: np.datetime64) -> Iterator[None]:
    """Set the date of layers that GDAL writes, and convert its errors to an `OutputError`."""
    pyogrio = import_library("pyogrio", "files")
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": f"{changed.astype('datetime64[ms]')}Z"})
    try:
        with warnings.catch_warnings():
            # An unfinished file has another extension until it is renamed.
            warnings.filterwarnings("ignore", ".*filename extension should be 'gpkg'", RuntimeWarning)
            warnings.filterwarnings("ignore", ".*non conformant file extension", RuntimeWarning)
            yield
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError) as problem:
        raise OutputError(
            f"{path}: GDAL cannot write it ({shorten_message(problem)}): check the folder and its free space"
        ) from None
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})


def read_geopackage(path: Path) -> ReleaseTable:
    """Read a file of `write_geopackage`. The columns of its estimates contain all releases."""
    layers = read_layers(path, names=("estimates",))
    if not layers:
        raise DataFileError(path, "has no layer 'estimates': write it again with 'dphmm release'")
    column_of = {name: column for column, name in NAMES.items()}
    rows = [feature.properties for feature in layers[0].features]
    return ReleaseTable.parse([{column_of.get(name, name): cell for name, cell in row.items()} for row in rows])


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file of releases: ``settings`` and others, if it has them.

    Only GeoPackage and GeoParquet have metadata, and only GeoPackage states the ``randomness``.
    """
    suffix = path.suffix.lower()
    if suffix == ".gpkg":
        return import_library("pyogrio", "files").read_info(path, layer="estimates")["dataset_metadata"] or {}
    if suffix in (".parquet", ".geoparquet"):
        with path.open("rb") as stream:  # Arrow might interpret a path as a URI
            stored = import_library("pyarrow.parquet", "files").read_schema(stream).metadata or {}
        return {name.decode(errors="replace"): text.decode(errors="replace") for name, text in stored.items()}
    return {}


def write_geoparquet(
    path: Path,
    table: ReleaseTable,
    geometry: Geometry = "estimate",
    is_private: bool = True,  # noqa: ARG001 - every writer has this signature
    settings: str | None = None,
) -> None:
    """Write a table as GeoParquet, with times in microseconds (UTC).

    Plain columns of both locations follow the geometry, for programs without support for it.
    """
    arrow = table.to_arrow()
    columns = dict(zip(arrow.column_names, arrow.columns, strict=True))
    latitude, longitude, is_located = get_locations(table, geometry)
    geometry_types = ["Point"] if is_located.any() else []
    geo: dict[str, Any] = {"encoding": "WKB", "crs": _build_projjson(), "geometry_types": geometry_types}
    if is_located.any():
        corners = ((values[is_located].min(), values[is_located].max()) for values in (longitude, latitude))
        geo["bbox"] = np.transpose(list(corners)).ravel().tolist()
    metadata = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": geo}}
    columns["geometry"] = _encode_points(longitude, latitude, is_located)
    texts = {"geo": json.dumps(metadata)} | ({} if settings is None else {"settings": settings})
    write_parquet(path, columns, texts, row_group_size=GROUP_ROWS)


def _encode_points(longitude: FloatArray, latitude: FloatArray, is_located: BoolArray) -> Any:
    """Return points as an Arrow array of well-known binary, null if a location is missing."""
    points = np.zeros(len(is_located), dtype=[("order", "u1"), ("kind", "<u4"), ("x", "<f8"), ("y", "<f8")])
    points["order"] = 1
    points["kind"] = 1
    points["x"] = longitude
    points["y"] = latitude
    located = zip(points, is_located.tolist(), strict=True)
    return build_binary_column(
        import_library("pyarrow", "files").large_binary(),
        [point.tobytes() if there else None for point, there in located],
    )


@cache
def _build_projjson() -> dict[str, Any]:
    from pyproj import CRS as ReferenceSystem

    projjson = dict(ReferenceSystem(CRS).to_json_dict())
    for member in projjson["datum_ensemble"]["members"]:  # PROJ before 9.1 does not know all of these numbers
        member.pop("id", None)
    return projjson


def read_geoparquet(path: Path) -> ReleaseTable:
    """Read a file of `write_geoparquet`. The geometry is not read."""
    required = [column.name for column in COLUMNS]
    table = read_parquet(read_document(path), lambda names: [name for name in required if name in names])
    return ReleaseTable({column.name: _convert_column(table, column) for column in COLUMNS})


@check_arguments
def to_geodataframe(table: ReleaseTable, geometry: Geometry = "estimate") -> Any:
    """Return a `geopandas.GeoDataFrame` of points, for trackintel and movingpandas.

    Parameters
    ----------
    table
        The releases.
    geometry
        The geometry of a row: the ``"estimate"``, or the ``"released"`` location, which withheld timesteps lack.

    Returns
    -------
    geopandas.GeoDataFrame
        The rows and columns of the table, with ``user`` and ``time`` renamed to ``user_id`` and ``tracked_at`` (UTC).

    Raises
    ------
    MissingDependencyError
        If geopandas is not installed.
    """
    return table.to_geopandas(geometry)


@check_arguments
def to_trajectory_collection(table: ReleaseTable, geometry: Geometry = "estimate") -> Any:
    """Return a `movingpandas.TrajectoryCollection` of users with at least two timesteps.

    Timesteps without a location are omitted. Times are UTC without a time zone, as the library requires.

    Parameters
    ----------
    table
        The releases.
    geometry
        As for `to_geodataframe`.

    Returns
    -------
    movingpandas.TrajectoryCollection
        The trajectories, identified by ``user_id``.

    Raises
    ------
    MissingDependencyError
        If movingpandas is not installed.
    """
    movingpandas = import_library("movingpandas", "geo")
    frame = to_geodataframe(table, geometry)
    frame["tracked_at"] = frame["tracked_at"].dt.tz_localize(None)
    return movingpandas.TrajectoryCollection(
        frame[frame.geometry.notna()], traj_id_col="user_id", t="tracked_at", min_length=0
    )


@check_arguments
def to_scikit_mobility(table: ReleaseTable, geometry: Geometry = "estimate") -> Any:
    """Return a `pandas.DataFrame` with the columns of scikit-mobility's ``TrajDataFrame``.

    Timesteps without a location are omitted.

    Parameters
    ----------
    table
        The releases.
    geometry
        As for `to_geodataframe`.

    Returns
    -------
    pandas.DataFrame
        Columns ``uid``, ``datetime`` (UTC without a time zone, as the library requires), ``lat`` and ``lng``, then the
        other columns of the table. The sampled location is in ``released_latitude`` and ``released_longitude``. Sorted
        by user and time.

    Raises
    ------
    MissingDependencyError
        If pandas is not installed.
    """
    pandas = import_library("pandas", "files")
    latitude, longitude, is_located = get_locations(table, geometry)
    columns = {"uid": table["user"], "datetime": table["time"], "lat": latitude, "lng": longitude}
    # The library recognises the names latitude and longitude, and would read them as the geometry.
    renamed = {"latitude": "released_latitude", "longitude": "released_longitude"}
    others = (column.name for column in COLUMNS if column.name not in ("user", "time"))
    other_columns = {renamed.get(name, name): table[name] for name in others}
    frame = pandas.DataFrame({**columns, **other_columns})[is_located]
    return frame.sort_values(["uid", "datetime"], kind="stable", ignore_index=True)


@check_arguments
def tracks(table: ReleaseTable) -> Any:
    """Return a line through the estimates of each trip.

    A new trip starts after a gap of more than an hour, or of more than 1.5 times the user's median gap if that is
    longer. The median of an even number of gaps is the lower of the middle two. A trip across the date line has a line,
    with its own values, for each stay on one side. One timestep has no line.

    Parameters
    ----------
    table
        The releases.

    Returns
    -------
    geopandas.GeoDataFrame
        Columns ``user_id``, ``trip`` (from 0), ``started_at``, ``finished_at``, ``num_timesteps``, ``num_releases``
        (the sampled locations), ``epsilon`` (their sum), ``mean_estimate_error_m`` and the lines.

    Raises
    ------
    MissingDependencyError
        If geopandas is not installed.
    """
    geopandas = import_library("geopandas", "files")
    pandas = import_library("pandas", "files")
    shapely = import_library("shapely", "files")
    latitude, longitude, is_located = get_locations(table, "estimate")
    points = np.column_stack([longitude, latitude])
    lines = []
    for trip in list_trips(table.select(is_located)):
        rows = np.flatnonzero(is_located)[trip.rows]
        # The straight line to the other side of the date line leads around the Earth.
        crossings = np.flatnonzero(np.abs(np.diff(longitude[rows])) > 180.0)
        lines += [trip._replace(rows=part) for part in np.split(rows, crossings + 1) if len(part) > 1]
    rows_by_line = [line.rows for line in lines]
    times = {
        name: pandas.Series(table["time"][[rows[end] for rows in rows_by_line]]).dt.tz_localize("UTC")
        for name, end in (("started_at", 0), ("finished_at", -1))
    }
    columns = {
        "user_id": [line.user for line in lines],
        "trip": [line.number for line in lines],
        **times,
        "num_timesteps": [len(rows) for rows in rows_by_line],
        "num_releases": [int((~table["withheld"][rows]).sum()) for rows in rows_by_line],
        "epsilon": [sum_budgets(table["epsilon"][rows].tolist()) for rows in rows_by_line],
        "mean_estimate_error_m": [float(table["estimate_error_m"][rows].mean()) for rows in rows_by_line],
    }
    geometries = [shapely.LineString(points[rows]) for rows in rows_by_line]
    return geopandas.GeoDataFrame(columns, geometry=geometries, crs=CRS)


class Trip(NamedTuple):
    """A user's timesteps without a long gap between them.

    Parameters
    ----------
    user, number
        The user, and the number of the trip, from 0.
    rows
        Rows of a table, in the order of their times.
    """

    user: str
    number: int
    rows: IntArray


def list_trips(table: ReleaseTable) -> list[Trip]:
    """Return the trips of all users, in the order in which users first occur. See `tracks`.

    Parameters
    ----------
    table
        The releases.

    Returns
    -------
    list of Trip
        Each row is in exactly one trip.
    """
    users = table["user"].astype(str)
    times = table["time"]
    all_trips: list[Trip] = []
    for user in dict.fromkeys(users.tolist()):
        user_rows = np.flatnonzero(users == user)
        user_rows = user_rows[np.argsort(times[user_rows], kind="stable")]
        all_trips += [Trip(user, number, rows) for number, rows in enumerate(split_into_trips(user_rows, times))]
    return all_trips


def split_into_trips(rows: npt.NDArray[np.int64], times: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
    """Split one user's rows, in the order of their times, into trips. See `tracks`."""
    gaps = np.diff(times[rows])
    if not len(gaps):
        return [rows]
    # The lower median: the upper one of two gaps is the longer gap, which would never end a trip.
    longest = max(_TRIP_GAP, np.sort(gaps)[(len(gaps) - 1) // 2] * 3 // 2)
    return np.split(rows, np.flatnonzero(gaps > longest) + 1)


# A sentence about releases with seeded noise.
SEEDED_NOTE = "No privacy guarantee: the noise is seeded and can be reproduced."


def describe_content(is_private: bool, geometry: Geometry | None = None) -> str:
    """Describe the content of a file of releases, with one geometry or with both."""
    kind = "private" if is_private else "repeatable"
    content = {
        "estimate": f"Estimates from {kind} releases",
        "released": f"{kind.capitalize()} releases",
        None: f"{kind.capitalize()} releases and estimates from them",
    }
    text = f"{content[geometry]}, not true locations."
    return text if is_private else f"{text} {SEEDED_NOTE}"


def _build_metadata(table: ReleaseTable, is_private: bool, settings: str | None) -> dict[str, str]:
    """Return the guarantee as metadata.

    It covers the release with the largest budget, and the user with the largest total.
    """
    metadata = {"generator": "dphmm", "content": f"{describe_content(is_private)} WGS 84."}
    if settings is not None:
        metadata["settings"] = settings
    if not len(table):
        return metadata
    users = table["user"].astype(str)
    epsilons = table["epsilon"]
    max_total = max(sum_budgets(epsilons[users == user].tolist()) for user in set(users.tolist()))
    levels = {"release": float(epsilons.max()), "any_states": table.max_constrained_epsilon, "total": max_total}
    metadata["randomness"] = "system" if is_private else "seeded"
    for name, level in levels.items():
        metadata[f"likelihood_ratio_{name}"] = f"at most {format_ratio_bound(level)}" if is_private else "no guarantee"
    metadata["max_epsilon_total"] = format_upper_bound(max_total)
    metadata["is_exact"] = str(bool(table["is_exact"].all())).lower()
    for name in ("mechanism", "settings_hash", "model_hash"):
        metadata[name] = ", ".join(sorted(set(table[name].tolist())))
    return metadata


def _convert_column(table: Any, column: Column) -> Any:
    """Return a column of a file as an array of its kind."""
    pa = import_library("pyarrow", "files")
    if column.name not in table.column_names:
        raise InvalidInputError(f"there is no column {column.name!r}")
    cells = table[column.name]
    stored = cells.type
    fits = {
        "text": pa.types.is_string(stored) or pa.types.is_large_string(stored),
        "time": pa.types.is_timestamp(stored),
        "number": pa.types.is_floating(stored) or pa.types.is_integer(stored),
        "count": pa.types.is_integer(stored),
        "flag": pa.types.is_boolean(stored),
    }[column.kind] or len(cells) == 0  # an empty column has no type
    if not fits or (cells.null_count and column.kind != "number"):
        raise InvalidInputError(f"column {column.name!r} contains {cells.null_count} nulls among its {stored} values")
    if len(cells) == 0:
        return []
    if column.kind == "time":
        return cells.cast(pa.timestamp("us", tz=stored.tz), safe=False).cast(pa.int64()).to_numpy().astype("M8[us]")
    return cells.cast(pa.float64(), safe=False).to_numpy() if column.kind == "number" else cells.to_numpy()
