"""What a file of releases says: one row per release, with columns that depend on nothing secret but the draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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


@dataclass(frozen=True)
class Column:
    """A column of a table of releases.

    Parameters
    ----------
    name
        As files call it; where it has a unit, the unit ends it.
    kind
        A text, a time in UTC, a number, a count, or true or false.
    meaning
        What it says, for people who read the file.
    """

    name: str
    kind: Kind
    meaning: str


COLUMNS = (
    Column("user", "text", "whose release it is"),
    Column("time", "time", "when, in UTC"),
    Column("latitude", "number", "released place, WGS 84 degrees; empty when the draw lies beyond the Earth's plane"),
    Column("longitude", "number", "released place, WGS 84 degrees; empty when the draw lies beyond the Earth's plane"),
    Column("x_km", "number", "released place in the local plane, km east of its centre"),
    Column("y_km", "number", "released place in the local plane, km north of its centre"),
    Column("estimate_latitude", "number", "posterior mean of the place given all releases so far, degrees"),
    Column("estimate_longitude", "number", "posterior mean of the place given all releases so far, degrees"),
    Column("epsilon", "number", "privacy budget of this release"),
    Column("mechanism", "text", "how the noise was drawn"),
    Column("expected_error_m", "number", "root mean square distance of the release from the truth, metres"),
    Column("possible_states", "count", "how many states were possible, |C_t|"),
    Column("least_protection", "count", "the least degree of protection of a possible state"),
    Column("edges_added", "count", "edges that were added to the policy so that no possible state was exposed"),
    Column("hull_area_km2", "number", "area of the sensitivity hull"),
    Column("constrained_factor", "number", "any two possible states are told apart by at most this many times epsilon"),
    Column("already_known", "flag", "true when one state only was possible, which nothing can hide"),
    Column("settings", "text", "how it was released: the first 16 digits of the settings' SHA-256"),
    Column("model", "text", "the model it was released with: the first 16 digits of its SHA-256"),
)
"""Everything that a file of releases holds. Whatever else depends on the true place has no column."""

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
        records = [one.record for one in made]
        released = np.array([record.released for record in records], dtype=np.float64).reshape(-1, 2)
        return cls(
            {
                "user": [one.user for one in made],
                "time": [one.time for one in made],
                "latitude": [one.latitude for one in made],
                "longitude": [one.longitude for one in made],
                "x_km": released[:, 0],
                "y_km": released[:, 1],
                "estimate_latitude": [one.estimate_latitude for one in made],
                "estimate_longitude": [one.estimate_longitude for one in made],
                "epsilon": [record.epsilon for record in records],
                "mechanism": [record.mechanism for record in records],
                "expected_error_m": [record.expected_error * 1000.0 for record in records],
                "possible_states": [record.possible for record in records],
                "least_protection": [record.least_protection for record in records],
                "edges_added": [len(record.added) for record in records],
                "hull_area_km2": [record.area for record in records],
                "constrained_factor": [record.constrained_factor for record in records],
                "already_known": [record.already_known for record in records],
                "settings": [record.settings[:16] for record in records],
                "model": [record.model[:16] for record in records],
            }
        )


def _plain(value: Any, kind: Kind) -> Any:
    if kind == "time":
        return iso_time(np.datetime64(value, "us"))
    if kind == "number" and not math.isfinite(value):
        return None
    return value
