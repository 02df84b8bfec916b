"""What a file of releases says: one row per release, with columns that depend on nothing secret but the draw."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray
from dphmm.errors import InvalidInputError
from dphmm.tables import iso_time
from dphmm.tables.values import is_text, parse_number, parse_time, shorten

if TYPE_CHECKING:
    from dphmm.release.trajectory import TimedRelease

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

    Attributes
    ----------
    name
        As files call it; where it has a unit, the unit ends it.
    kind
        A text, a time in UTC, a number, a count, or true or false.
    of
        What it says of a release.
    """

    name: str
    kind: Kind
    of: Callable[[TimedRelease], Any]

    def parse(self, found: Any) -> Any:
        """What a cell says: a text, or a value as JSON or a database has it.

        Raises
        ------
        ValueError
            When it says nothing of the column's kind.
        """
        if self.kind == "time":
            return found if isinstance(found, np.datetime64) else np.datetime64(parse_time(found), "us")
        if self.kind == "number":
            return math.nan if found in (None, "") else parse_number(found, self.name)
        if self.kind == "count":
            whole = int(found) if isinstance(found, str) and _WHOLE.fullmatch(found) else found
            if isinstance(whole, bool) or not isinstance(whole, int) or not -_LARGEST <= whole <= _LARGEST:
                raise ValueError(f"{self.name} is {shorten(found)}; give a whole number")
            return whole
        if self.kind == "flag":
            flag = _FLAGS.get(str(found).lower() if isinstance(found, str | bool | int) else "")
            if flag is None:
                raise ValueError(f"{self.name} is {shorten(found)}; give true or false")
            return flag
        if not isinstance(found, str) or not is_text(found):
            raise ValueError(f"{self.name} is {shorten(found)}; give a text")
        return found


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_LARGEST = 1 << 62
_FLAGS = {"true": True, "false": False, "1": True, "0": False}

COLUMNS = (
    Column("user", "text", lambda one: one.user),
    Column("time", "time", lambda one: one.time),
    Column("latitude", "number", lambda one: one.latitude),
    Column("longitude", "number", lambda one: one.longitude),
    Column("x_km", "number", lambda one: one.record.released[0]),
    Column("y_km", "number", lambda one: one.record.released[1]),
    Column("estimate_latitude", "number", lambda one: one.estimate_latitude),
    Column("estimate_longitude", "number", lambda one: one.estimate_longitude),
    Column("estimate_radius_m", "number", lambda one: one.record.estimate_radius * 1000.0),
    Column("adversary_error_m", "number", lambda one: one.record.adversary_error * 1000.0),
    Column("adversary_certainty", "number", lambda one: one.record.adversary_certainty),
    Column("epsilon", "number", lambda one: one.record.epsilon),
    Column("epsilon_so_far", "number", lambda one: _or_nan(one.record.epsilon_so_far)),
    Column("epsilon_last_day", "number", lambda one: _or_nan(one.record.epsilon_last_day)),
    Column("mechanism", "text", lambda one: one.record.mechanism),
    Column("exact", "flag", lambda one: one.record.exact),
    Column("expected_error_m", "number", lambda one: one.record.expected_error * 1000.0),
    Column("possible_states", "count", lambda one: one.record.possible),
    Column("least_protection", "count", lambda one: one.record.least_protection),
    Column("edges_added", "count", lambda one: len(one.record.added)),
    Column("repair_gap", "number", lambda one: one.record.gap),
    Column("hull_area_km2", "number", lambda one: one.record.area),
    Column("constrained_factor", "number", lambda one: one.record.constrained_factor),
    Column("components", "count", lambda one: one.record.components),
    Column("component_states", "count", lambda one: one.record.component_size),
    Column("component_certainty", "number", lambda one: one.record.component_certainty),
    Column("component_error_m", "number", lambda one: one.record.component_error * 1000.0),
    Column("open", "flag", lambda one: one.record.open),
    Column("already_known", "flag", lambda one: one.record.already_known),
    Column("forgotten_releases", "count", lambda one: one.forgotten),
    Column("settings", "text", lambda one: one.record.settings[:16]),
    Column("model", "text", lambda one: one.record.model[:16]),
)
"""Everything that a file of releases holds. Whatever else depends on the true place has no column.

=======================  ========================================================================="""

CRS = "EPSG:4326"
"""The reference system of every latitude and longitude written: WGS 84."""

_BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}


@checked
@dataclass(frozen=True, eq=False)
class ReleaseTable:
    """Releases as columns.

    Parameters
    ----------
    columns
        Every name of `COLUMNS` → an array ``(n,)`` of its kind; no other names.

    Raises
    ------
    InvalidInputError
        When a column is missing or unknown, does not hold its kind, or has another length than the first.
    """

    columns: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping) or not all(isinstance(name, str) for name in self.columns):
            raise InvalidInputError("the columns are no mapping; give an array for each name")
        wrong = set(self.columns) ^ set(_BY_NAME)
        if wrong:
            name = min(wrong)
            problem = "is missing" if name in _BY_NAME else "is unknown"
            raise InvalidInputError(f"column {name!r} {problem}; a table of releases has {', '.join(_BY_NAME)}")
        kept: dict[str, npt.NDArray[Any]] = {}
        for name, column in _BY_NAME.items():
            try:
                array = np.array(self.columns[name], dtype=_DTYPES[column.kind])
            except (TypeError, ValueError, OverflowError):
                raise InvalidInputError(f"column {name!r} does not hold a {column.kind} in every row") from None
            array.setflags(write=False)
            kept[name] = array
        lengths = {array.shape for array in kept.values()}
        if len(lengths) != 1 or len(kept["user"].shape) != 1:
            raise InvalidInputError(f"columns have shapes {sorted(lengths)}; give one value per release in each")
        object.__setattr__(self, "columns", kept)

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
    def placed(self) -> npt.NDArray[np.bool_]:
        """Which releases lie on the Earth, ``(n,)``; the others have no latitude and longitude."""
        placed: npt.NDArray[np.bool_] = np.isfinite(self["latitude"]) & np.isfinite(self["longitude"])
        return placed

    @checked
    def select(self, chosen: BoolArray) -> ReleaseTable:
        """The rows that a mask ``(n,)`` chooses."""
        mask = np.asarray(chosen)
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise InvalidInputError(f"the choice is {mask.dtype} of shape {mask.shape}; give {len(self)} booleans")
        return ReleaseTable({name: array[mask] for name, array in self.columns.items()})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each release as a dictionary of plain JSON values.

        Times are ISO 8601 texts that end in ``Z``. What is not finite is None: a latitude beyond the plane, or a
        factor without bound.
        """
        plain = {
            column.name: [_plain(value, column.kind) for value in self[column.name].tolist()] for column in COLUMNS
        }
        return (dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True))

    @classmethod
    def of(cls, releases: Iterable[TimedRelease]) -> ReleaseTable:
        """The table of timed releases, in their order."""
        made = list(releases)
        return cls({column.name: [column.of(one) for one in made] for column in COLUMNS})

    @classmethod
    @checked
    def parse(cls, rows: Any) -> ReleaseTable:
        """The table of rows as a file has them: what each column is called → its cell; see `Column.parse`.

        Raises
        ------
        InvalidInputError
            Naming the first row, counted from one, that lacks a column or says nothing of its kind.
        """
        if isinstance(rows, str) or not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            raise InvalidInputError("the rows are no list of mappings; give one for each release")
        found: dict[str, list[Any]] = {column.name: [] for column in COLUMNS}
        for number, row in enumerate(rows, start=1):
            for column in COLUMNS:
                if column.name not in row:
                    raise InvalidInputError(f"release {number} has no column {column.name!r}")
                try:
                    found[column.name].append(column.parse(row[column.name]))
                except ValueError as problem:
                    raise InvalidInputError(f"release {number}: {problem}") from None
        return cls(found)


def _plain(value: Any, kind: Kind) -> Any:
    if kind == "time":
        return iso_time(np.datetime64(value, "us"))
    if kind == "number" and not math.isfinite(value):
        return None
    return value
