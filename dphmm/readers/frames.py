"""Fixes from pandas and geopandas data frames, as trackintel and other libraries write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import shapely

from dphmm.errors import DataFileError, EmptyDataError, InvalidInputError, need
from dphmm.readers.columns import build_fixes, resolve, warn_of_trips, warn_of_unit
from dphmm.readers.fixes import ReadOptions, ReadResult, trajectories
from dphmm.readers.instants import Instants
from dphmm.space.fix_quality import Region
from dphmm.tables.table import TRIPS, find_column
from dphmm.validation import checked

SOURCE = "the frame"
"""The name of the data frame in messages."""


@checked
def read_frame(
    frame: Any,
    user: str | None = None,
    *,
    skip_bad: bool = False,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    time_zone: str | None = None,
    time_format: str | None = None,
    may_be_empty: bool = False,
    region: Region | None = None,
) -> ReadResult:
    """Read trajectories from a data frame with one row per fix.

    Columns are recognised by the same names as in files. These include positionfixes of trackintel (``user_id``,
    ``tracked_at`` and points), frames of scikit-mobility (``uid``, ``datetime``, ``lat``, ``lng``), and of movingpandas
    (``traj_id``, ``t`` and points). Trajectories and collections of movingpandas are accepted directly. Names of an
    index count as columns, and no column needs to be renamed.

    Parameters
    ----------
    frame
        A `pandas.DataFrame`, a `geopandas.GeoDataFrame` (points in another reference system are converted), a
        `movingpandas.Trajectory` or a `movingpandas.TrajectoryCollection`.
    user
        The user of all fixes. Defaults to the users in a column. If a frame has trajectories instead, as in
        movingpandas, each is treated as a separate user, with a warning in the log.
    skip_bad
        By default the first malformed row raises an error. True to skip and count such rows.
    columns
        Quantity (``user``, ``time``, ``latitude``, ``longitude``, ``geometry``) → name of its column.
    time_unit, time_zone, time_format
        The unit of numeric times since 1970, the zone of times without one, and the form of strings; as in
        `dphmm.read`. Times of movingpandas are in their original zone, which it removes.
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
        If `frame` is not a data frame.
    DataFileError
        If a column is missing, a row is malformed (with its number, from 1), or the frame does not specify users and
        no `user` is passed.
    EmptyDataError
        If there is no fix, unless `may_be_empty`.
    ConfigurationError
        For columns of other quantities, an unknown unit or an unknown zone.
    MissingDependencyError
        Without pandas or pyarrow.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"uid": [1, 1], "datetime": ["2024-03-07 09:00", "2024-03-07 09:05"],
    ...     "lat": [45.0, 45.001], "lng": [-30.0, -30.001]})
    >>> (trajectory,) = read_frame(table, time_zone="+01:00").trajectories
    >>> trajectory.user, str(trajectory.times[0])
    ('1', '2024-03-07T08:00:00.000000')
    """
    options = ReadOptions(skip_bad, user, columns or {}, Instants(time_unit, time_zone, time_format))
    cells = _cells(*_plain(frame, options))
    fixes = build_fixes(cells, SOURCE, options)
    warn_of_unit(fixes, options)
    if user is None and None in fixes.names:
        raise DataFileError(SOURCE, "does not specify users; set user=, or name its column of users")
    result = trajectories([fixes], region=region)
    if not result.trajectories and not may_be_empty:
        raise EmptyDataError(
            SOURCE, f"contains no usable fix ({fixes.skipped} malformed rows skipped); check its columns"
        )
    return result


def is_frame(value: object) -> bool:
    """Return whether `read_frame` accepts a value, judged by its class."""
    return any(base.__name__ in FRAMES for base in type(value).__mro__)


FRAMES = ("DataFrame", "TrajectoryCollection", "Trajectory")
"""The classes that `read_frame` accepts, with subclasses. Names, so that no library has to be installed."""


def _plain(frame: Any, options: ReadOptions) -> tuple[Any, Mapping[str, str]]:
    """Return a frame with its index levels as columns, and quantity → column name."""
    pandas = need("pandas", "files")
    if hasattr(frame, "to_point_gdf"):
        trips = frame.get_traj_id_col()
        frame = frame.to_point_gdf(return_orig_tz=True)
        user_column = find_column([str(name) for name in frame.columns], "user")
        user_is_named = options.user is not None or "user" in options.columns
        if not user_is_named and user_column in (None, trips, TRIPS) and trips not in _USER_COLUMNS:
            warn_of_trips(SOURCE, trips)
            options = replace(options, columns={**options.columns, "user": trips})
    if not isinstance(frame, pandas.DataFrame):
        raise InvalidInputError(f"frame must be a DataFrame of pandas or geopandas, got {type(frame).__name__}")
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    table = frame.reset_index(level=named) if named else frame
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        raise DataFileError(SOURCE, "must have unique column names")
    return table, resolve(names, SOURCE, options)


# Names of a trajectory column that denote users.
_USER_COLUMNS = frozenset({"user_id", "uid", "user"})


def _cells(table: Any, columns: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    """Return quantity → values of its column, None where pandas has missing values."""
    at = {str(name): place for place, name in enumerate(table.columns)}
    cells: dict[str, Sequence[Any]] = {}
    for what, name in columns.items():
        values = table.iloc[:, at[name]]
        missing = values.isna()
        if what == "geometry" and hasattr(values, "to_crs"):
            points = _points(values)
            cells["longitude"], cells["latitude"] = points.T.tolist()
            continue
        if what == "time" and need("pandas", "files").api.types.is_datetime64_any_dtype(values):
            what, values = _instants(values)
        cells[what] = [None if gone else value for value, gone in zip(values.tolist(), missing, strict=True)]
    return cells


def _instants(column: Any) -> tuple[str, Any]:
    """Return the key of `Rows` for a column of times, and its truncated microseconds."""
    zone = getattr(column.dt, "tz", None)
    plain = column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
    numbers = plain.to_numpy().astype("datetime64[us]").astype(np.int64)
    return "clock" if zone is None else "microseconds", numbers


def _points(column: Any) -> Any:
    """Return longitude and latitude ``(n, 2)`` of a column; NaN if not a point."""
    if column.crs is not None and column.crs.to_epsg() != 4326:
        column = column.to_crs(4326)
    shapes = np.asarray(column, dtype=object)
    return np.column_stack([shapely.get_x(shapes), shapely.get_y(shapes)])
