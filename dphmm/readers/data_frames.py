"""Fixes from tables in memory: Arrow, Polars, DuckDB, pandas, geopandas, and trajectories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import shapely

from dphmm.errors import DataFileError, EmptyDataError, InvalidInputError, import_library
from dphmm.readers.column_conversion import MAX_MICROSECONDS, build_fixes, resolve, warn_of_trips, warn_of_unit
from dphmm.readers.fix_tables import extract_arrow_cells
from dphmm.readers.fixes import Fixes, ReadOptions, ReadResult, build_trajectories
from dphmm.readers.instants import UNITS, Instants
from dphmm.space.fix_quality import Region
from dphmm.space.trajectory import Trajectory
from dphmm.tables.table import TRIPS, find_column
from dphmm.tables.values import shorten_message
from dphmm.validation import check_arguments

# The name of the data frame in messages.
SOURCE = "the frame"


@check_arguments
def read_frame(
    frame: Any,
    user: str | None = None,
    *,
    skip_bad: bool = False,
    columns: Mapping[str, str] | None = None,
    time_zone: str | None = None,
    time_format: str | None = None,
    may_be_empty: bool = False,
    region: Region | None = None,
) -> ReadResult:
    """Read trajectories from a table in memory with one row per fix.

    Columns are recognised by the same names as in files. These include positionfixes of trackintel (``user_id``,
    ``tracked_at`` and points), frames of scikit-mobility (``uid``, ``datetime``, ``lat``, ``lng``), and of movingpandas
    (``traj_id``, ``t`` and points). Trajectories and collections of movingpandas are accepted directly. Names of an
    index count as columns, and no column needs to be renamed.

    Parameters
    ----------
    frame
        An object with ``__arrow_c_stream__`` or ``__dataframe__``, such as a table of Arrow, a frame of Polars, a
        relation of DuckDB, a `pandas.DataFrame` or a `geopandas.GeoDataFrame`. GeoArrow points and points in another
        reference system are converted. Also a `movingpandas.Trajectory` or `movingpandas.TrajectoryCollection`, and
        one or a list of `dphmm.Trajectory`, to which `columns` and times do not apply.
    user
        The user of all fixes. Defaults to the users in a column. If a frame has trajectories instead, as in
        movingpandas, each is treated as a separate user, with a warning in the log.
    skip_bad
        By default the first malformed row raises an error. True to skip and count such rows.
    columns
        Quantity (``user``, ``time``, ``latitude``, ``longitude``, ``geometry``) → name of its column.
    time_zone, time_format
        The zone of times without one, and the form of strings or the unit of numbers; as in `dphmm.read`. Times of
        movingpandas are in their original zone, which it removes.
    may_be_empty
        Whether a frame without a fix is valid; as in `dphmm.read`.
    region
        The region of the model; as in `dphmm.read`.

    Returns
    -------
    ReadResult
        One trajectory per user, sorted by time, one location per timestamp.

    Raises
    ------
    InvalidInputError
        If `frame` is not a table, or columns or times are set for trajectories.
    DataFileError
        If a column is missing, a row is malformed (with its number, from 1), or the frame does not specify users and
        no `user` is passed.
    EmptyDataError
        If there is no fix, unless `may_be_empty`.
    ConfigurationError
        For columns of other quantities, an invalid form of times or an unknown zone.
    MissingDependencyError
        Without pyarrow; for a frame of pandas without pandas.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"uid": [1, 1], "datetime": ["2024-03-07 09:00", "2024-03-07 09:05"],
    ...     "lat": [45.0, 45.001], "lng": [-30.0, -30.001]})
    >>> (trajectory,) = read_frame(table, time_zone="+01:00").trajectories
    >>> trajectory.user, str(trajectory.times[0])
    ('1', '2024-03-07T08:00:00.000000')
    """
    options = ReadOptions(skip_bad, user, columns or {}, Instants(time_zone, time_format))
    if are_trajectories(frame):
        blocks = _build_from_trajectories((frame,) if isinstance(frame, Trajectory) else frame, options)
    else:
        blocks = [build_fixes(_extract_cells(frame, options), SOURCE, options)]
        warn_of_unit(blocks[0], options)
        if user is None and None in blocks[0].names:
            raise DataFileError(SOURCE, "does not specify users; set user=, or name its column of users")
    fixes = blocks[0]
    result = build_trajectories(blocks, region=region)
    if not result.trajectories and not may_be_empty:
        raise EmptyDataError(
            SOURCE, f"contains no usable fix ({fixes.skipped} malformed rows skipped); check its columns"
        )
    return result


def is_frame(value: object) -> bool:
    """Return whether `read_frame` accepts a value, judged by its class."""
    return has_arrow(value) or are_trajectories(value) or hasattr(value, "to_point_gdf") or _is_pandas(value)


def are_trajectories(value: object) -> bool:
    """Return whether a value is a `dphmm.Trajectory` or a non-empty list of them."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(isinstance(element, Trajectory) for element in value)
    return isinstance(value, Trajectory)


def has_arrow(value: object) -> bool:
    """Return whether a value has the Arrow or the DataFrame interchange protocol."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "__dataframe__")


def _is_pandas(value: object) -> bool:
    # By name: pandas need not be installed, and is not imported for other frames.
    return any((base.__module__.partition(".")[0], base.__name__) == _PANDAS for base in type(value).__mro__)


_PANDAS = ("pandas", "DataFrame")


def _build_from_trajectories(frame: Sequence[Trajectory], options: ReadOptions) -> list[Fixes]:
    if options.columns or options.instants != Instants():
        raise InvalidInputError("columns, time_zone and time_format cannot be combined with trajectories")
    return [
        Fixes(
            SOURCE,
            (options.user or track.user,),
            np.zeros(len(track), np.int64),
            track.times,
            track.latitude,
            track.longitude,
            accuracy_m=track.accuracy_m,
        )
        for track in frame
    ]


def _extract_cells(frame: Any, options: ReadOptions) -> dict[str, Any]:
    """Return quantity → values of its column."""
    if hasattr(frame, "to_point_gdf") or _is_pandas(frame):
        return _extract_pandas_cells(*_resolve_columns(frame, options))
    if not has_arrow(frame):
        kind = type(frame)
        hint = "; call its collect() first" if hasattr(frame, "collect") else ""
        raise InvalidInputError(
            "frame must be a table with __arrow_c_stream__ or __dataframe__, or a list of dphmm.Trajectory, got "
            f"{kind.__module__}.{kind.__qualname__}{hint}"
        )
    table = _as_arrow(frame)
    names = list(table.column_names)
    if len(set(names)) < len(names):
        raise DataFileError(SOURCE, "must have unique column names")
    columns = resolve(names, SOURCE, options, _find_geoarrow_column(table.schema))
    shapes = columns.get("geometry")
    return extract_arrow_cells(
        table.select(list(dict.fromkeys(columns.values()))),
        columns,
        None if shapes is None else _get_reference_system(table.schema.field(shapes)),
        SOURCE,
    )


def _as_arrow(frame: Any) -> Any:
    """Return a table as `pyarrow.Table`, with words in place of the codes of categories."""
    pa = import_library("pyarrow", "files")
    try:
        if hasattr(frame, "__arrow_c_stream__"):
            table = pa.RecordBatchReader.from_stream(frame).read_all()  # pa.table would import pandas
        else:
            table = import_library("pyarrow.interchange", "files").from_dataframe(frame)
        for index, field in enumerate(table.schema):
            if pa.types.is_dictionary(field.type):
                words = [_decode_words(chunk) for chunk in table.column(index).chunks]
                table = table.set_column(index, field.name, pa.chunked_array(words or [pa.array([], pa.string())]))
    except Exception as problem:  # an interface raises whatever its library raises
        hint = "; call its compute() first" if hasattr(frame, "compute") else ""  # of Dask
        raise DataFileError(SOURCE, f"cannot be read as an Arrow table ({shorten_message(problem)}){hint}") from None
    return table


def _decode_words(chunk: Any) -> Any:
    """Return the values of a dictionary array."""
    types = import_library("pyarrow", "files").types
    words = chunk.dictionary
    if types.is_string_view(words.type):  # of Polars; Arrow cannot take from views
        words = words.cast("large_string")
    return words.take(chunk.indices)


def _find_geoarrow_column(schema: Any) -> str | None:
    """Return the first column with an extension type of GeoArrow, or None."""
    return next((field.name for field in schema if _get_extension_name(field).startswith("geoarrow.")), None)


def _get_extension_name(field: Any) -> str:
    name = getattr(field.type, "extension_name", None) or (field.metadata or {}).get(b"ARROW:extension:name", b"")
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _get_reference_system(field: Any) -> Any:
    """Return the reference system of a GeoArrow column. None for WGS 84 degrees."""
    plain = (field.metadata or {}).get(b"ARROW:extension:metadata", b"{}")
    if hasattr(field.type, "__arrow_ext_serialize__"):
        plain = field.type.__arrow_ext_serialize__()
    try:
        about = json.loads(plain or b"{}")
    except ValueError:
        raise DataFileError(SOURCE, f"has invalid GeoArrow metadata in {field.name!r}") from None
    return about.get("crs") if isinstance(about, dict) else None


def _resolve_columns(frame: Any, options: ReadOptions) -> tuple[Any, Mapping[str, str]]:
    """Return a frame with its index levels as columns, and quantity → column name."""
    if hasattr(frame, "to_point_gdf"):
        trips = frame.get_traj_id_col()
        frame = frame.to_point_gdf(return_orig_tz=True)
        user_column = find_column([str(name) for name in frame.columns], "user")
        user_is_named = options.user is not None or "user" in options.columns
        if not user_is_named and user_column in (None, trips, TRIPS) and trips not in _USER_COLUMNS:
            warn_of_trips(SOURCE, trips)
            options = replace(options, columns={**options.columns, "user": trips})
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    table = frame.reset_index(level=named) if named else frame
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        raise DataFileError(SOURCE, "must have unique column names")
    # Of several columns of geometries, geopandas knows the one in use, whatever its name.
    return table, resolve(names, SOURCE, options, getattr(table, "active_geometry_name", None))


# Names of a trajectory column that denote users.
_USER_COLUMNS = frozenset({"user_id", "uid", "user"})


def _extract_pandas_cells(table: Any, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return quantity → values of its column, None where pandas has missing values."""
    at = {str(name): place for place, name in enumerate(table.columns)}
    cells: dict[str, Any] = {}
    for what, name in columns.items():
        values = table.iloc[:, at[name]]
        missing = values.isna()
        if what == "geometry" and hasattr(values, "to_crs"):
            shapes = _convert_to_degrees(values)
            if (shapely.get_type_id(shapes) == shapely.GeometryType.POINT).all() and not shapely.is_empty(shapes).any():
                cells["longitude"], cells["latitude"] = shapely.get_coordinates(shapes).T.tolist()
            else:  # one by one, so that the message names the geometry that is not a point
                cells[what] = shapely.to_wkb(shapes).tolist()
            continue
        if what == "time" and import_library("pandas", "files").api.types.is_datetime64_any_dtype(values):
            what, values = _convert_times(values)
        cells[what] = [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)]
    return cells


def _convert_times(column: Any) -> tuple[str, Any]:
    """Return the key of `Rows` for a column of times, and its truncated microseconds."""
    zone = getattr(column.dt, "tz", None)
    plain = column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
    stamps = plain.to_numpy()
    unit = np.datetime_data(stamps.dtype)[0]
    if unit == "ns":
        numbers = stamps.astype("datetime64[us]").astype(np.int64)
    else:
        # A time that would overflow is replaced by one far outside the years 1 to 9999: only its row is refused.
        limit = MAX_MICROSECONDS // UNITS[unit]
        numbers = np.clip(stamps.astype(np.int64), -limit, limit) * UNITS[unit]
    return "clock" if zone is None else "microseconds", numbers


def _convert_to_degrees(column: Any) -> Any:
    """Return the geometries of a column in WGS 84, as an array."""
    if column.crs is not None and column.crs.to_epsg() != 4326:
        column = column.to_crs(4326)
    return np.array(column, dtype=object)
