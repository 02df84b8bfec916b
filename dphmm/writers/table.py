"""A table of releases: one row per release, with columns that depend on nothing secret but the draw."""

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

    Parameters
    ----------
    name
        As files call it; where it has a unit, the unit ends it.
    kind
        A text, a time in UTC, a number, a count, or a flag.
    value
        From a release to what stands in the column.
    """

    name: str
    kind: Kind
    value: Callable[[TimedRelease], Any]

    def parse(self, found: Any) -> Any:
        """Parse a cell: a text, or a value as JSON or a database has it.

        Parameters
        ----------
        found
            The cell.

        Returns
        -------
        object
            A value of the column's kind.

        Raises
        ------
        ValueError
            When the cell holds nothing of the column's kind.
        """
        if self.kind == "time":
            return found if isinstance(found, np.datetime64) else np.datetime64(parse_time(found), "us")
        if self.kind == "number":
            number = math.nan if found in (None, "") else parse_number(found, self.name)
            if _FARTHEST < abs(number) < math.inf:
                raise ValueError(f"{self.name} is {shorten(found)}; give a number within {_FARTHEST:g}")
            return number
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


def _drawn(one: TimedRelease) -> tuple[float, float, float, float]:
    """Return where in the plane something was drawn, and its expected errors in metres; NaN where nothing was drawn."""
    if one.record.released is None:
        return math.nan, math.nan, math.nan, math.nan
    x, y = one.record.released
    return x, y, _to_digits(one.record.expected_error * 1000.0), _to_digits(one.record.component_error * 1000.0)


def _to_digits(number: float) -> float:
    """Round what follows from probabilities to `DIGITS` digits, so that anyone who recomputes it gets the same ones."""
    return float(f"{number:.{DIGITS}g}")


def _degrees(number: float) -> float:
    """Round degrees to `DECIMALS`, some 0.1 m."""
    return round(number, DECIMALS)


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number


DIGITS, DECIMALS = 7, 6
"""Digits that are written of lengths and probabilities, and decimals of degrees; what is beyond would be rounding's."""
_WHOLE = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_LARGEST = 1 << 62
_FARTHEST = 1e100  # noise is at most 1e30 wide and its area the square: no release says more, and squares stay finite
_FLAGS = {"true": True, "false": False, "1": True, "0": False}

COLUMNS = (
    Column("user", "text", lambda one: one.user),
    Column("time", "time", lambda one: one.time),
    Column("latitude", "number", lambda one: _degrees(one.latitude)),
    Column("longitude", "number", lambda one: _degrees(one.longitude)),
    Column("withheld", "flag", lambda one: one.record.withheld),
    Column("withheld_for", "text", lambda one: one.record.reason),
    Column("x_km", "number", lambda one: _drawn(one)[0]),
    Column("y_km", "number", lambda one: _drawn(one)[1]),
    Column("estimate_latitude", "number", lambda one: _degrees(one.estimate_latitude)),
    Column("estimate_longitude", "number", lambda one: _degrees(one.estimate_longitude)),
    Column("estimate_radius_m", "number", lambda one: _to_digits(one.estimate_radius * 1000.0)),
    Column("radius_90_m", "number", lambda one: _to_digits(one.held_radius * 1000.0)),
    Column("adversary_error_m", "number", lambda one: _to_digits(one.record.adversary_error * 1000.0)),
    Column("adversary_certainty", "number", lambda one: _to_digits(one.record.adversary_certainty)),
    Column("epsilon", "number", lambda one: one.record.epsilon),
    Column("epsilon_so_far", "number", lambda one: _or_nan(one.record.epsilon_so_far)),
    Column("epsilon_last_day", "number", lambda one: _or_nan(one.record.epsilon_last_day)),
    Column("mechanism", "text", lambda one: one.record.mechanism),
    Column("exact", "flag", lambda one: one.record.exact),
    Column("expected_error_m", "number", lambda one: _drawn(one)[2]),
    Column("possible_states", "count", lambda one: one.record.possible),
    Column("least_protection", "count", lambda one: one.record.least_protection),
    Column("edges_added", "count", lambda one: len(one.record.added)),
    Column("repair_gap", "number", lambda one: one.record.gap),
    Column("hull_area_km2", "number", lambda one: one.record.area),
    Column("constrained_factor", "number", lambda one: one.record.constrained_factor),
    Column("components", "count", lambda one: one.record.components),
    Column("component_states", "count", lambda one: one.record.component_size),
    Column("component_certainty", "number", lambda one: _to_digits(one.record.component_certainty)),
    Column("component_error_m", "number", lambda one: _drawn(one)[3]),
    Column("table_gain", "number", lambda one: _or_nan(one.record.gain)),
    Column("open", "flag", lambda one: one.record.open),
    Column("already_known", "flag", lambda one: one.record.already_known),
    Column("forgotten_releases", "count", lambda one: one.forgotten),
    Column("settings", "text", lambda one: one.record.settings[:16]),
    Column("model", "text", lambda one: one.record.model[:16]),
)
"""Everything that a file of releases holds. What else depends on the true place has no column.

=======================  ================================================================================
column                   what it says
=======================  ================================================================================
``user``                 whose release it is
``time``                 when, in UTC
``latitude``             released place, WGS 84 degrees; empty where nothing was drawn, or beyond the Earth's plane
``longitude``            released place, WGS 84 degrees; empty where nothing was drawn, or beyond the Earth's plane
``withheld``             true where nothing was drawn, which only public things decide: the estimate is the prediction
``withheld_for``         why: ``target`` (the estimate is good enough), ``budget`` (what is left would not last) or
                         ``caps`` (on events); empty where something was drawn
``x_km``                 released place in the local plane, km east of its centre; empty where nothing was drawn
``y_km``                 released place in the local plane, km north of its centre
``estimate_latitude``    posterior mean of the place given all releases so far, degrees; where that lies outside the
                         region the place of the nearest state
``estimate_longitude``   posterior mean of the place given all releases so far, degrees
``estimate_radius_m``    expected distance of the estimate from the person, metres, to those who know the model and all
                         releases so far; too small for people who do not move as the model says
``radius_90_m``          radius of a circle about the estimate that holds 90 % of moments, on average over people like
                         those the model was learned from, metres; empty where the model does not know
``adversary_error_m``    expected distance of their point estimate, the point expected to be nearest, metres; stated at
                         most 2 % too small, never too large
``adversary_certainty``  the probability of the state that they hold most probable
``epsilon``              privacy budget of this release; 0 where nothing was drawn
``epsilon_so_far``       the sum of the budgets of all the user's releases up to this one
``epsilon_last_day``     the same of those in the 24 hours that end with this one
``mechanism``            how the noise was drawn
``exact``                whether it was drawn by integers alone, so that the promise holds for the numbers in the file
``expected_error_m``     root mean square distance of the release from the truth, metres
``possible_states``      how many states were possible, |C_t|
``least_protection``     the least degree of protection of a possible state: this release alone distinguishes each from
                         as many states, itself included, by a factor of at most e^epsilon
``edges_added``          edges that were added to the policy so that no possible state was exposed
``repair_gap``           how much of the squared error (or area) a better repair could save at most; 0: proven best
``hull_area_km2``        area of the sensitivity hull
``constrained_factor``   any two possible states are distinguished by at most this many times epsilon
``components``           how many components with noise of their own the possible states fall into
``component_states``     how many possible states the likeliest of them has, given all releases so far
``component_certainty``  how probable it is
``component_error_m``    root mean square distance of its releases from what they were drawn around, metres
``table_gain``           with ``optimal``: by what share its expected error is less than that of the posterior mean of
                         K-norm noise by component; below 0.05 the table gains nothing
``open``                 whether it is an open place, released as it is
``already_known``        true when one state only was possible, which nothing can hide
``forgotten_releases``   how many earlier releases about the user the row does not take into account
``settings``             how it was released: the first 16 digits of the settings' SHA-256
``model``                the model it was released with: the first 16 digits of its SHA-256
=======================  ================================================================================
"""

WITHHELD_FOR: Mapping[str, str] = {
    "target": "withheld: the estimate is within the target",
    "budget": "withheld: the budget of the window would not last",
    "caps": "withheld to keep a cap on an event",
}
"""Why nothing was drawn → in words."""

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
        When a column is missing or unknown, does not hold its kind, or has another length than the first, or a
        budget is negative or not finite.
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
        for number, epsilon in enumerate(kept["epsilon"].tolist(), start=1):
            if not 0 <= epsilon <= _FARTHEST:
                raise InvalidInputError(f"release {number}: epsilon is {epsilon:g}; give a budget of 0 or more")
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
        """Return the rows that a mask chooses.

        Parameters
        ----------
        chosen
            Booleans ``(n,)``.

        Returns
        -------
        ReleaseTable
            Those rows, in their order.

        Raises
        ------
        InvalidInputError
            For another array.
        """
        mask = np.asarray(chosen)
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise InvalidInputError(f"the choice is {mask.dtype} of shape {mask.shape}; give {len(self)} booleans")
        return ReleaseTable({name: array[mask] for name, array in self.columns.items()})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return each release as a dictionary of plain JSON values.

        Times are ISO 8601 texts that end in ``Z``. What is not finite is None: a latitude beyond the plane, or a factor
        without bound.

        Returns
        -------
        iterator of dict
            The columns of a release, in the order of `COLUMNS`.
        """
        plain = {
            column.name: [_plain(value, column.kind) for value in self[column.name].tolist()] for column in COLUMNS
        }
        return (dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True))

    @classmethod
    def from_releases(cls, releases: Iterable[TimedRelease]) -> ReleaseTable:
        """Make the table of timed releases, in their order.

        Parameters
        ----------
        releases
            The releases.

        Returns
        -------
        ReleaseTable
            A row for each.
        """
        made = list(releases)
        return cls({column.name: [column.value(one) for one in made] for column in COLUMNS})

    @classmethod
    @checked
    def parse(cls, rows: Any) -> ReleaseTable:
        """Make the table of rows as a file has them; see `Column.parse`.

        Parameters
        ----------
        rows
            For each release what each column is called → its cell.

        Returns
        -------
        ReleaseTable
            A row for each.

        Raises
        ------
        InvalidInputError
            Naming the first row, counted from one, that lacks a column or holds nothing of its kind.
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


def release_object(release: TimedRelease) -> dict[str, Any]:
    """Return one release as a JSON object: whether something was drawn, why not, and its row."""
    row = next(ReleaseTable.from_releases([release]).rows())
    if release.record.withheld:
        return {"released": False, "reason": WITHHELD_FOR[release.record.reason]} | row
    return {"released": True} | row


def _plain(value: Any, kind: Kind) -> Any:
    if kind == "time":
        return iso_time(np.datetime64(value, "us"))
    if kind == "number" and not math.isfinite(value):
        return None
    return value
