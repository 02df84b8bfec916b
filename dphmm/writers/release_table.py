"""A table of releases.

It contains the sampled locations, and values that follow from them and from public information.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import InvalidInputError, import_library
from dphmm.space.trajectory import TimeArray, round_to_microseconds
from dphmm.tables import iso_time
from dphmm.tables.arrow_columns import build_column
from dphmm.tables.values import is_text, parse_number, parse_time, shorten, shorten_message
from dphmm.validation import MAX_INTEGER, Seconds, check_arguments

if TYPE_CHECKING:
    import geopandas
    import pandas
    import pyarrow

    from dphmm.release.trajectory_release import TimedRelease

Kind = Literal["text", "time", "number", "count", "flag"]

_DTYPES: Mapping[Kind, npt.DTypeLike] = {
    "text": np.object_,
    "time": "datetime64[us]",
    "number": np.float64,
    "count": np.int64,
    "flag": np.bool_,
}


class Column(NamedTuple):
    """A column of a table of releases.

    Parameters
    ----------
    name
        The name in files; it ends with the unit.
    kind
        A string, a time in UTC, a number, a count, or a flag.
    value
        Maps a release to its cell.
    """

    name: str
    kind: Kind
    value: Callable[[TimedRelease], Any]

    def parse(self, cell: Any) -> Any:
        """Parse a cell: a string, or a value of JSON or a database.

        Parameters
        ----------
        cell
            The cell.

        Returns
        -------
        object
            A value of the column's kind.

        Raises
        ------
        ValueError
            If the cell does not contain a value of the column's kind.
        """
        if self.kind == "time":
            return cell if isinstance(cell, np.datetime64) else np.datetime64(parse_time(cell), "us")
        if self.kind == "number":
            number = math.nan if cell in (None, "") else parse_number(cell, self.name)
            if _MAX_KM < abs(number) < math.inf:
                raise ValueError(f"{self.name} must be a number within {_MAX_KM:g}, got {shorten(cell)}")
            return number
        if self.kind == "count":
            integer = int(cell) if isinstance(cell, str) and _INTEGER.fullmatch(cell) else cell
            if isinstance(integer, bool) or not isinstance(integer, int) or not abs(integer) <= MAX_INTEGER:
                raise ValueError(f"{self.name} must be an integer, got {shorten(cell)}")
            return integer
        if self.kind == "flag":
            flag = _FLAGS.get(str(cell).lower() if isinstance(cell, str | bool | int) else "")
            if flag is None:
                raise ValueError(f"{self.name} must be true or false, got {shorten(cell)}")
            return flag
        if not isinstance(cell, str) or not is_text(cell):
            raise ValueError(f"{self.name} must be a string, got {shorten(cell)}")
        return cell


def _get_sampled(release: TimedRelease) -> tuple[float, float, float, float]:
    """Return the sampled location in the plane and its errors in metres. NaN if withheld."""
    record = release.record
    if record.released is None:
        return math.nan, math.nan, math.nan, math.nan
    x, y = record.released
    return x, y, to_digits(record.expected_error * 1000.0), to_digits(record.component_error * 1000.0)


def to_digits(number: float) -> float:
    """Round a value to `DIGITS` digits, which any recomputation reproduces."""
    return float(f"{number:.{DIGITS}g}")


def _round_degrees(number: float) -> float:
    """Round degrees to `DECIMALS`, about 0.1 m."""
    return round(number, DECIMALS)


def _replace_none(number: float | None) -> float:
    return math.nan if number is None else number


# The significant digits of lengths and probabilities in files. Further digits would be rounding errors.
DIGITS = 7
# The decimals of degrees in files.
DECIMALS = 6

_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
# Noise is at most 1e30 wide and its area the square. Squares of larger numbers would overflow.
_MAX_KM = 1e100
_FLAGS = {"true": True, "false": False, "1": True, "0": False}

# The columns of a file of releases. docs/reference/command.md describes each of them. No other value that depends on
# the true location has a column.
COLUMNS = (
    Column("user", "text", lambda release: release.user),
    Column("time", "time", lambda release: release.time),
    Column("latitude", "number", lambda release: _round_degrees(release.latitude)),
    Column("longitude", "number", lambda release: _round_degrees(release.longitude)),
    Column("withheld", "flag", lambda release: release.record.withheld),
    Column("withheld_reason", "text", lambda release: release.record.withheld_reason),
    Column("x_km", "number", lambda release: _get_sampled(release)[0]),
    Column("y_km", "number", lambda release: _get_sampled(release)[1]),
    Column("estimate_latitude", "number", lambda release: _round_degrees(release.estimate_latitude)),
    Column("estimate_longitude", "number", lambda release: _round_degrees(release.estimate_longitude)),
    Column("estimate_error_m", "number", lambda release: to_digits(release.expected_estimate_error * 1000.0)),
    Column("calibrated_radius_90_m", "number", lambda release: to_digits(release.calibrated_radius_90 * 1000.0)),
    Column("adversary_error_m", "number", lambda release: to_digits(release.record.adversary_error * 1000.0)),
    Column("adversary_max_posterior", "number", lambda release: to_digits(release.record.max_posterior_probability)),
    Column("epsilon", "number", lambda release: release.record.epsilon),
    Column("epsilon_total", "number", lambda release: _replace_none(release.record.epsilon_total)),
    Column("epsilon_24h", "number", lambda release: _replace_none(release.record.epsilon_24h)),
    Column("mechanism", "text", lambda release: release.record.mechanism),
    Column("is_exact", "flag", lambda release: release.record.is_exact),
    Column("expected_error_m", "number", lambda release: _get_sampled(release)[2]),
    Column("possible_states", "count", lambda release: release.record.num_possible_states),
    Column("min_degree_of_protection", "count", lambda release: release.record.min_degree_of_protection),
    Column("num_added_edges", "count", lambda release: len(release.record.added_edges)),
    Column("repair_optimality_gap", "number", lambda release: release.record.repair_optimality_gap),
    Column("hull_area_km2", "number", lambda release: release.record.hull_volume),
    Column("constrained_dp_factor", "number", lambda release: release.record.constrained_dp_factor),
    Column("num_components", "count", lambda release: release.record.num_components),
    Column("component_num_states", "count", lambda release: release.record.component_num_states),
    Column("component_posterior", "number", lambda release: to_digits(release.record.component_posterior)),
    Column("component_error_m", "number", lambda release: _get_sampled(release)[3]),
    Column("table_gain", "number", lambda release: _replace_none(release.record.table_gain)),
    Column("unprotected", "flag", lambda release: release.record.is_unprotected),
    Column("singleton", "flag", lambda release: release.record.is_singleton),
    Column("num_ignored_releases", "count", lambda release: release.num_ignored_releases),
    Column("settings_hash", "text", lambda release: release.record.settings_hash[:16]),
    Column("model_hash", "text", lambda release: release.record.model_hash[:16]),
)

# The reason of a withheld timestep → a message.
WITHHELD_MESSAGES: Mapping[str, str] = {
    "target": "withheld: the estimate meets the error target",
    "budget": "withheld: budget saved or used up",
    "caps": "withheld to satisfy an event cap",
}

# The reference system of all latitudes and longitudes in files: WGS 84.
CRS = "EPSG:4326"

# The geometry of a release: the estimate given all releases so far, or the sampled location.
Geometry = Literal["estimate", "released"]

# Columns that have other names in frames, as movingpandas and trackintel read them.
NAMES = {"user": "user_id", "time": "tracked_at"}

_COLUMNS_BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}


@check_arguments
@dataclass(frozen=True, eq=False)
class ReleaseTable:
    """A table of releases, stored as columns.

    Libraries that read the Arrow PyCapsule interface accept it as a table, such as ``polars.DataFrame(table)``.

    Parameters
    ----------
    columns
        Each name of `COLUMNS` → an array ``(n,)`` of its kind; no other names.

    Raises
    ------
    InvalidInputError
        If a column is missing or unknown, contains values of another kind, or differs in length from the first, or if
        a budget is negative or not finite.
    """

    columns: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping) or not all(isinstance(name, str) for name in self.columns):
            raise InvalidInputError("columns must be a mapping of names to arrays")
        wrong = set(self.columns) ^ set(_COLUMNS_BY_NAME)
        if wrong:
            name = min(wrong)
            problem = "is missing" if name in _COLUMNS_BY_NAME else "is unknown"
            raise InvalidInputError(f"column {name!r} {problem}: a table of releases has {', '.join(_COLUMNS_BY_NAME)}")
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, column in _COLUMNS_BY_NAME.items():
            try:
                array = np.array(self.columns[name], dtype=_DTYPES[column.kind])
            except (TypeError, ValueError, OverflowError):
                raise InvalidInputError(f"column {name!r} must contain a {column.kind} in every row") from None
            array.setflags(write=False)
            arrays[name] = array
        lengths = {array.shape for array in arrays.values()}
        if len(lengths) != 1 or len(arrays["user"].shape) != 1:
            raise InvalidInputError(f"columns must have one value per release, got shapes {sorted(lengths)}")
        for number, epsilon in enumerate(arrays["epsilon"].tolist(), start=1):
            if not 0 <= epsilon <= _MAX_KM:
                raise InvalidInputError(f"release {number}: epsilon must be at least 0 and finite, got {epsilon:g}")
        object.__setattr__(self, "columns", arrays)

    def __len__(self) -> int:
        return int(self.columns["user"].shape[0])

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        column: npt.NDArray[Any] = self.columns[name]
        return column

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReleaseTable):
            return NotImplemented
        return all(
            np.array_equal(self[column.name], other[column.name], equal_nan=column.kind == "number")
            for column in COLUMNS
        )

    @property
    def max_constrained_epsilon(self) -> float:
        """The largest constrained-DP level of a release. 0 without releases."""
        sampled = self["epsilon"] > 0
        return float((self["constrained_dp_factor"][sampled] * self["epsilon"][sampled]).max(initial=0.0))

    @property
    def placed(self) -> npt.NDArray[np.bool_]:
        """Boolean mask ``(n,)`` of the releases with a latitude and longitude."""
        placed: npt.NDArray[np.bool_] = np.isfinite(self["latitude"]) & np.isfinite(self["longitude"])
        return placed

    @check_arguments
    def step_starts(self, step_seconds: Seconds) -> TimeArray:
        """Return the start of each row's timestep, of which ``time`` is the end.

        Parameters
        ----------
        step_seconds
            The length of a timestep: that of the model of the releases.

        Returns
        -------
        numpy.ndarray
            ``(n,)``, ``datetime64[us]`` in UTC. A row is of the fixes after this and at or before ``time``.

        Raises
        ------
        InvalidInputError
            If a time is not a multiple of the step since 1970: the releases have another step.
        ConfigurationError
            If `step_seconds` is not positive and finite.

        Examples
        --------
        >>> table = ReleaseTable({column.name: np.array([], dtype=object) for column in COLUMNS})
        >>> table.step_starts(300).shape
        (0,)
        """
        step = round_to_microseconds(step_seconds, "step_seconds")
        times = self["time"]
        offsets = np.flatnonzero(times.astype(np.int64) % step)
        if len(offsets):
            raise InvalidInputError(
                f"step_seconds must be that of the releases, got {step_seconds:g} s and a release at "
                f"{iso_time(times[offsets[0]])}"
            )
        return (times.astype(np.int64) - step).astype("datetime64[us]")

    @check_arguments
    def select(self, mask: BoolArray) -> ReleaseTable:
        """Return the rows at which a mask is true, in their order.

        Parameters
        ----------
        mask
            Booleans ``(n,)``.

        Returns
        -------
        ReleaseTable
            The selected rows.

        Raises
        ------
        InvalidInputError
            If `mask` is not an array of ``n`` booleans.
        """
        mask = np.asarray(mask)
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise InvalidInputError(f"mask must be {len(self)} booleans, got {mask.dtype} of shape {mask.shape}")
        return ReleaseTable({name: array[mask] for name, array in self.columns.items()})

    def to_arrow(self) -> pyarrow.Table:
        """Return the table as a `pyarrow.Table`, with times in UTC and missing numbers as NaN.

        Returns
        -------
        pyarrow.Table
            The columns, in the order of `COLUMNS`.

        Raises
        ------
        MissingDependencyError
            Without pyarrow.

        Examples
        --------
        >>> ReleaseTable.from_releases([]).to_arrow().num_rows
        0
        """
        pa = import_library("pyarrow", "files")
        return pa.table({column.name: build_column(self[column.name], column.kind) for column in COLUMNS})

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a `pandas.DataFrame`, with times in UTC and missing numbers as NaN.

        Returns
        -------
        pandas.DataFrame
            The columns, in the order of `COLUMNS`.

        Raises
        ------
        MissingDependencyError
            Without pandas.
        """
        library = import_library("pandas", "files")
        time = library.DatetimeIndex(self["time"], tz="UTC")
        frame: pandas.DataFrame = library.DataFrame({**self.columns, "time": time})
        return frame

    def to_geopandas(self, geometry: Geometry = "estimate") -> geopandas.GeoDataFrame:
        """Return the table as a `geopandas.GeoDataFrame` of points.

        Parameters
        ----------
        geometry
            The geometry of a row: the ``"estimate"``, or the ``"released"`` location, which withheld timesteps lack.

        Returns
        -------
        geopandas.GeoDataFrame
            The rows and columns of the table, with ``user`` and ``time`` renamed to ``user_id`` and ``tracked_at``.

        Raises
        ------
        InvalidInputError
            For another `geometry`.
        MissingDependencyError
            Without geopandas.
        """
        library = import_library("geopandas", "files")
        frame = library.GeoDataFrame({NAMES.get(column.name, column.name): self[column.name] for column in COLUMNS})
        frame["tracked_at"] = frame["tracked_at"].dt.tz_localize("UTC")
        latitude, longitude, is_located = get_locations(self, geometry)
        points = library.points_from_xy(longitude, latitude)
        return frame.set_geometry(library.GeoSeries(points, crs=CRS).where(is_located, None))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a stream of the Arrow PyCapsule interface, which Polars, DuckDB and others read."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return each release as a dictionary of plain JSON values.

        Times are ISO 8601 strings that end with ``Z``. Non-finite numbers are None, such as a missing latitude or an
        infinite factor.

        Returns
        -------
        iterator of dict
            The columns of a release, in the order of `COLUMNS`.
        """
        plain = {
            column.name: [_convert_to_json(value, column.kind) for value in self[column.name].tolist()]
            for column in COLUMNS
        }
        return (dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True))

    @classmethod
    def from_releases(cls, releases: Iterable[TimedRelease]) -> ReleaseTable:
        """Create a table of timed releases, in their order.

        Parameters
        ----------
        releases
            The releases.

        Returns
        -------
        ReleaseTable
            One row per release.
        """
        timed_releases = list(releases)
        return cls({column.name: [column.value(release) for release in timed_releases] for column in COLUMNS})

    @classmethod
    @check_arguments
    def parse(cls, rows: Any) -> ReleaseTable:
        """Create a table of the rows of a file. See `Column.parse`.

        Parameters
        ----------
        rows
            For each release a mapping of column names to cells.

        Returns
        -------
        ReleaseTable
            One row per release.

        Raises
        ------
        InvalidInputError
            If a row lacks a column or has an invalid cell; names the first such row, counted from one.
        """
        if isinstance(rows, str) or not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            raise InvalidInputError("rows must be a list of mappings, one per release")
        cells: dict[str, list[Any]] = {column.name: [] for column in COLUMNS}
        for number, row in enumerate(rows, start=1):
            for column in COLUMNS:
                if column.name not in row:
                    raise InvalidInputError(f"release {number} has no column {column.name!r}")
                try:
                    cells[column.name].append(column.parse(row[column.name]))
                except ValueError as problem:
                    raise InvalidInputError(f"release {number}: {problem}") from None
        return cls(cells)


def build_release_object(release: TimedRelease) -> dict[str, Any]:
    """Return a release as a JSON object, with the reason if it was withheld."""
    row = next(ReleaseTable.from_releases([release]).rows())
    if release.record.withheld:
        return {"released": False, "reason": WITHHELD_MESSAGES[release.record.withheld_reason]} | row
    return {"released": True} | row


def _convert_to_json(value: Any, kind: Kind) -> Any:
    if kind == "time":
        return iso_time(np.datetime64(value, "us"))
    if kind == "number" and not math.isfinite(value):
        return None
    return value


def get_locations(table: ReleaseTable, geometry: Geometry) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return the geometry of each release.

    Parameters
    ----------
    table
        The releases.
    geometry
        ``"estimate"`` or ``"released"``.

    Returns
    -------
    latitude, longitude, is_located
        ``(n,)`` each; degrees, and whether there is a location.

    Raises
    ------
    InvalidInputError
        If `geometry` is invalid.
    """
    if not isinstance(geometry, str) or geometry not in ("estimate", "released"):
        raise InvalidInputError(
            f"geometry must be 'estimate' or 'released', got {shorten_message(ValueError(geometry))!r}"
        )
    prefix = "estimate_" if geometry == "estimate" else ""
    latitude = table[f"{prefix}latitude"]
    longitude = table[f"{prefix}longitude"]
    return latitude, longitude, np.isfinite(latitude) & np.isfinite(longitude)
