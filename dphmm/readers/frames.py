"""Fixes in frames of pandas and geopandas, as trackintel, movingpandas and scikit-mobility have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import shapely

from dphmm.arguments import checked
from dphmm.errors import DataFileError, InvalidInputError, need
from dphmm.readers.columns import fixes_of_columns, resolve, warn_of_trips
from dphmm.readers.fixes import ReadOptions, ReadResult, trajectories
from dphmm.readers.instants import Instants
from dphmm.tables.table import TRIPS, find_column

SOURCE = "the frame"
"""How messages name it."""


@checked
def read_frame(
    frame: Any,
    user: str | None = None,
    *,
    skip_bad: bool = False,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    time_zone: str | None = None,
) -> ReadResult:
    """Read trajectories out of a frame with a row for each fix, whatever library made it; no column is renamed.

    Columns go by the names that tables in files have: positionfixes of trackintel (``user_id``, ``tracked_at`` and
    points), frames of scikit-mobility (``uid``, ``datetime``, ``lat``, ``lng``), and of movingpandas (``traj_id``,
    ``t`` and points), whose trajectories and collections are taken as they are. Names of an index count as columns.

    Parameters
    ----------
    frame
        A `pandas.DataFrame`, a `geopandas.GeoDataFrame` (points in another reference system are converted), a
        `movingpandas.Trajectory` or a `movingpandas.TrajectoryCollection`.
    user
        The user whose fixes these are; left out, those that a column names. A frame that has trajectories instead, as
        movingpandas does, takes each for a person, with a warning in the log.
    skip_bad
        By default the first malformed row is refused; true to pass over such rows and count them.
    columns
        What a column holds (``user``, ``time``, ``latitude``, ``longitude``, ``geometry``) → its name.
    time_unit, time_zone
        What numbers in the column of times count since 1970, and the zone of times that do not say theirs; as in
        `dphmm.read`. Times of movingpandas are in the zone that they had before it took it off.

    Returns
    -------
    ReadResult
        One trajectory per user, sorted by time, one place per timestamp.

    Raises
    ------
    InvalidInputError
        When it is no frame.
    DataFileError
        When a column is missing, a row is malformed (with its number, from 1), nothing is left, or the frame does not
        say whose fixes it holds and no user is given.
    ConfigurationError
        For columns that hold something else, an unknown unit or an unknown zone.
    MissingDependencyError
        Without pandas or pyarrow.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"uid": [1, 1], "datetime": ["2024-03-07 09:00", "2024-03-07 09:05"],
    ...     "lat": [45.0, 45.001], "lng": [-30.0, -30.001]})
    >>> (person,) = read_frame(table, time_zone="+01:00").trajectories
    >>> person.user, str(person.times[0])
    ('1', '2024-03-07T08:00:00.000000')
    """
    options = ReadOptions(skip_bad, user, columns or {}, Instants(time_unit, time_zone))
    cells = _cells(*_plain(frame, options))
    found = fixes_of_columns(cells, SOURCE, options)
    if user is None and None in found.names:
        raise DataFileError(SOURCE, "does not say whose fixes it holds; give user=, or name its column of people")
    result = trajectories([found])
    if not result.trajectories:
        raise DataFileError(SOURCE, f"holds no usable fix ({found.skipped} malformed rows skipped); check its columns")
    return result


def is_frame(value: object) -> bool:
    """Return whether `read_frame` takes a value, by its class."""
    return any(one.__name__ in FRAMES for one in type(value).__mro__)


FRAMES = ("DataFrame", "TrajectoryCollection", "Trajectory")
"""The classes that `read_frame` takes, and what derives from them: by name, so that no library need be there."""


def _plain(frame: Any, options: ReadOptions) -> tuple[Any, Mapping[str, str]]:
    """Return a frame with each level of its index as a column, and what each column that is read holds → its name."""
    pandas = need("pandas", "files")
    if hasattr(frame, "to_point_gdf"):
        trips = frame.get_traj_id_col()
        frame = frame.to_point_gdf(return_orig_tz=True)
        known = find_column([str(name) for name in frame.columns], "user")
        said = options.user is not None or "user" in options.columns
        if not said and known in (None, trips, TRIPS) and trips not in _PEOPLE:
            warn_of_trips(SOURCE, trips)
            options = replace(options, columns={**options.columns, "user": trips})
    if not isinstance(frame, pandas.DataFrame):
        raise InvalidInputError(f"frame is of type {type(frame).__name__}; give a DataFrame of pandas or geopandas")
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    table = frame.reset_index(level=named) if named else frame
    names = [str(name) for name in table.columns]
    if len(set(names)) < len(names):
        raise DataFileError(SOURCE, "names a column twice; give each its own name")
    return table, resolve(names, SOURCE, options)


_PEOPLE = frozenset({"user_id", "uid", "user"})
"""Names of a column of trajectories that are, by that name, people."""


def _cells(table: Any, found: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    """Return what each column that is read holds → its values, None where pandas has them missing."""
    at = {str(name): place for place, name in enumerate(table.columns)}
    cells: dict[str, Sequence[Any]] = {}
    for what, name in found.items():
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
    """Return what a column of times holds (a key of `Rows`) and its numbers; finer than a microsecond is cut off."""
    zone = getattr(column.dt, "tz", None)
    plain = column if zone is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
    numbers = plain.to_numpy().astype("datetime64[us]").astype(np.int64)
    return "clock" if zone is None else "microseconds", numbers


def _points(column: Any) -> Any:
    """Longitude and latitude ``(n, 2)`` of a column of geometries, NaN for what is no point."""
    if column.crs is not None and column.crs.to_epsg() != 4326:
        column = column.to_crs(4326)
    shapes = np.asarray(column, dtype=object)
    return np.column_stack([shapely.get_x(shapes), shapely.get_y(shapes)])
