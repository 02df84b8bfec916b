"""What a file of releases says: one row per release, with columns that depend on nothing secret but the draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.errors import InvalidInputError
from dphmm.tables import iso_time

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
        """What a cell says: a text, or a value as JSON has it.

        Raises
        ------
        ValueError, KeyError, TypeError, AttributeError
            When it says nothing of the column's kind.
        """
        if self.kind == "time":
            return np.datetime64(found.removesuffix("Z"), "us")
        if self.kind == "number":
            return math.nan if found in (None, "") else float(found)
        if self.kind == "count":
            return int(found)
        return {"true": True, "false": False}[str(found).lower()] if self.kind == "flag" else found


COLUMNS = (
    Column("user", "text", lambda one: one.user),
    Column("time", "time", lambda one: one.time),
    Column("latitude", "number", lambda one: one.latitude),
    Column("longitude", "number", lambda one: one.longitude),
    Column("x_km", "number", lambda one: one.record.released[0]),
    Column("y_km", "number", lambda one: one.record.released[1]),
    Column("estimate_latitude", "number", lambda one: one.estimate_latitude),
    Column("estimate_longitude", "number", lambda one: one.estimate_longitude),
    Column("epsilon", "number", lambda one: one.record.epsilon),
    Column("mechanism", "text", lambda one: one.record.mechanism),
    Column("expected_error_m", "number", lambda one: one.record.expected_error * 1000.0),
    Column("possible_states", "count", lambda one: one.record.possible),
    Column("least_protection", "count", lambda one: one.record.least_protection),
    Column("edges_added", "count", lambda one: len(one.record.added)),
    Column("hull_area_km2", "number", lambda one: one.record.area),
    Column("constrained_factor", "number", lambda one: one.record.constrained_factor),
    Column("already_known", "flag", lambda one: one.record.already_known),
    Column("settings", "text", lambda one: one.record.settings[:16]),
    Column("model", "text", lambda one: one.record.model[:16]),
)
"""Everything that a file of releases holds. Whatever else depends on the true place has no column.

======================  =================================================================================
column                  what it says
======================  =================================================================================
``user``                whose release it is
``time``                when, in UTC
``latitude``            released place, WGS 84 degrees; empty when the draw lies beyond the Earth's plane
``longitude``           released place, WGS 84 degrees; empty when the draw lies beyond the Earth's plane
``x_km``                released place in the local plane, km east of its centre
``y_km``                released place in the local plane, km north of its centre
``estimate_latitude``   posterior mean of the place given all releases so far, degrees
``estimate_longitude``  posterior mean of the place given all releases so far, degrees
``epsilon``             privacy budget of this release
``mechanism``           how the noise was drawn
``expected_error_m``    root mean square distance of the release from the truth, metres
``possible_states``     how many states were possible, |C_t|
``least_protection``    the least degree of protection of a possible state
``edges_added``         edges that were added to the policy so that no possible state was exposed
``hull_area_km2``       area of the sensitivity hull
``constrained_factor``  any two possible states are told apart by at most this many times epsilon
``already_known``       true when one state only was possible, which nothing can hide
``settings``            how it was released: the first 16 digits of the settings' SHA-256
``model``               the model it was released with: the first 16 digits of its SHA-256
======================  =================================================================================
"""

CRS = "EPSG:4326"
"""The reference system of every latitude and longitude written: WGS 84."""

_BY_NAME: Mapping[str, Column] = {column.name: column for column in COLUMNS}


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

    def select(self, chosen: npt.NDArray[np.bool_]) -> ReleaseTable:
        """The rows that a mask ``(n,)`` chooses."""
        return ReleaseTable({name: array[chosen] for name, array in self.columns.items()})

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
    def parse(cls, rows: Sequence[Mapping[str, Any]]) -> ReleaseTable:
        """The table of rows as a file has them: what each column is called → its cell; see `Column.parse`."""
        return cls({column.name: [column.parse(row[column.name]) for row in rows] for column in COLUMNS})


def _plain(value: Any, kind: Kind) -> Any:
    if kind == "time":
        return iso_time(np.datetime64(value, "us"))
    if kind == "number" and not math.isfinite(value):
        return None
    return value
