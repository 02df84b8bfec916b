"""Releases summed up, one row per user, from public values alone; and private diagnostics, whose file says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError
from dphmm.release.ledger import total
from dphmm.tables import iso_time, new_file, new_private_file, private_name, write_csv
from dphmm.writers.table import ReleaseTable

if TYPE_CHECKING:
    from dphmm.release.trajectory import TimedDiagnostics

SUMMARY_COLUMNS: Mapping[str, Callable[[ReleaseTable], Any]] = {
    "user": lambda rows: str(rows["user"][0]),
    "releases": lambda rows: int((~rows["withheld"]).sum()),
    "moments_withheld": lambda rows: int(rows["withheld"].sum()),
    "moments_open": lambda rows: int(rows["open"].sum()),
    "first_time": lambda rows: iso_time(rows["time"].min()),
    "last_time": lambda rows: iso_time(rows["time"].max()),
    "epsilon_total": lambda rows: total(rows["epsilon"].tolist()),
    "epsilon_dearest_day": lambda rows: _of_known(rows["epsilon_last_day"], np.max),
    "exact": lambda rows: bool(rows["exact"].all()),
    "expected_error_m_median": lambda rows: _of_known(rows["expected_error_m"], np.median),
    "estimate_radius_m_median": lambda rows: _of_hidden(rows, "estimate_radius_m", np.median),
    "adversary_error_m_median": lambda rows: _of_hidden(rows, "adversary_error_m", np.median),
    "adversary_error_m_least": lambda rows: _of_hidden(rows, "adversary_error_m", np.min),
    "adversary_certainty_median": lambda rows: _of_hidden(rows, "adversary_certainty", np.median),
    "adversary_certainty_most": lambda rows: _of_hidden(rows, "adversary_certainty", np.max),
    "possible_states_least": lambda rows: int(rows["possible_states"].min()),
    "possible_states_most": lambda rows: int(rows["possible_states"].max()),
    "least_protection": lambda rows: int(rows["least_protection"].min()),
    "releases_with_edges_added": lambda rows: int((rows["edges_added"] > 0).sum()),
    "repair_gap_most": lambda rows: float(rows["repair_gap"].max()),
    "table_gain_median": lambda rows: _of_known(rows["table_gain"], np.median),
    "releases_already_known": lambda rows: int(rows["already_known"].sum()),
}
"""Column → what it says of one user's releases.

Budgets add up over time, so `epsilon_total` is what all releases of a user cost together, and `epsilon_dearest_day`
the most that was spent within 24 hours up to one of them; `exact` is whether all of them were drawn by integers
alone. The adversary knows the model and the releases up to the one in question. How well estimate and adversary know
the person, in hindsight too, is of moments when the likeliest place is hidden: those of `moments_open` are released
as they are.
"""


def _of_hidden(rows: ReleaseTable, column: str, statistic: Callable[[FloatArray], Any]) -> float:
    """A statistic of the moments whose likeliest place is not open; NaN where none is."""
    return _of_known(rows[column][~rows["open"]], statistic)


def _of_known(values: FloatArray, statistic: Callable[[FloatArray], Any]) -> float:
    """A statistic of the values that are known; NaN where none is."""
    known = values[~np.isnan(values)]
    return float(statistic(known)) if len(known) else float("nan")


class Hindsight(NamedTuple):
    """What is known of each release's time once all releases of its user are there, in the order of a table.

    Parameters
    ----------
    error_m
        ``(n,)``: the expected distance of the adversary's point estimate from the person, metres.
    certainty
        ``(n,)``: the probability of the most probable state.
    """

    error_m: FloatArray
    certainty: FloatArray


@checked
def summarise(table: ReleaseTable, daily: bool = False, hindsight: Hindsight | None = None) -> list[dict[str, Any]]:
    """Sum up releases by user, in the order of the users' names.

    Parameters
    ----------
    table
        The releases.
    daily
        Whether to make a row for each day in UTC that a user has releases on.
    hindsight
        What is known in hindsight; then rows end with its median and worst values.

    Returns
    -------
    list of dict
        A row for each user; the keys are those of `SUMMARY_COLUMNS`, with ``"day"`` after the user's where it is daily.
    """
    users, days = table["user"].astype(str), table["time"].astype("datetime64[D]")
    rows = []
    for user in sorted(set(users.tolist())):
        mine = users == user
        for day in np.unique(days[mine]) if daily else (None,):
            part = mine if day is None else mine & (days == day)
            chosen = table.select(part)
            row = {name: value(chosen) for name, value in SUMMARY_COLUMNS.items()}
            if hindsight is not None:
                hidden = part & ~table["open"]
                row |= _in_hindsight(hindsight.error_m[hidden], hindsight.certainty[hidden])
            rows.append(row if day is None else {"user": row.pop("user"), "day": str(day), **row})
    return rows


def _in_hindsight(error_m: FloatArray, certainty: FloatArray) -> dict[str, float]:
    return {
        "adversary_error_m_median_in_hindsight": _of_known(error_m, np.median),
        "adversary_error_m_least_in_hindsight": _of_known(error_m, np.min),
        "adversary_certainty_median_in_hindsight": _of_known(certainty, np.median),
        "adversary_certainty_most_in_hindsight": _of_known(certainty, np.max),
    }


@checked
def write_summary(
    path: str | Path,
    table: ReleaseTable,
    overwrite: bool = False,
    daily: bool = False,
    hindsight: Hindsight | None = None,
) -> None:
    """Write `summarise` as CSV, whole or not at all; what is not known is left empty.

    Parameters
    ----------
    path
        The file.
    table
        The releases.
    overwrite
        True to replace a file that exists.
    daily, hindsight
        As for `summarise`.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    rows = summarise(table, daily, hindsight)
    header = list(rows[0] if rows else SUMMARY_COLUMNS)
    with new_file(path, overwrite) as part:
        write_csv(part, header, ([_cell(value) for value in row.values()] for row in rows))


def _cell(value: Any) -> Any:
    return "" if isinstance(value, float) and isnan(value) else value


# ---- what only the owner of the true places may see ------------------------------------------------------------------

DIAGNOSTIC_COLUMNS: Mapping[str, Callable[[TimedDiagnostics], object]] = {
    "private_user": lambda one: one.user,
    "private_time": lambda one: iso_time(one.time),
    "private_outside": lambda one: str(one.outside).lower(),
    "private_true_state": lambda one: one.diagnostics.true_state,
    "private_used_state": lambda one: one.diagnostics.used_state,
    "private_stood_in": lambda one: str(one.diagnostics.stood_in).lower(),
    "private_error_m": lambda one: repr(one.diagnostics.error * 1000.0),
    "private_estimate_error_m": lambda one: repr(one.diagnostics.estimate_error * 1000.0),
    "private_within_radius": lambda one: str(one.within_radius).lower(),
    "private_degree_of_protection": lambda one: one.diagnostics.degree_of_protection,
    "private_expected_error_m": lambda one: repr(one.diagnostics.expected_error * 1000.0),
}
"""The columns, every one of which says what it is → their cells."""


@checked
def check_private_name(path: str | Path) -> Path:
    """Refuse the path of a file of diagnostics unless its name says that it is private and it is a CSV.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ConfigurationError
        Naming what to call it.
    """
    path = Path(path)
    if path.suffix.lower() != ".csv":
        raise ConfigurationError(f"{path}: diagnostics are a CSV file; call it PRIVATE-{path.stem}.csv, say")
    return private_name(path)


def write_diagnostics(path: str | Path, diagnostics: Iterable[TimedDiagnostics], overwrite: bool = False) -> None:
    """Write diagnostics as CSV, readable for the owner alone, whole or not at all.

    Parameters
    ----------
    path
        The file, see `check_private_name`.
    diagnostics
        A row for each.
    overwrite
        True to replace a file that exists.

    Raises
    ------
    ConfigurationError
        When the name does not say that the file is private.
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    """
    with new_private_file(check_private_name(path), overwrite) as part:
        write_csv(
            part, list(DIAGNOSTIC_COLUMNS), ([cell(one) for cell in DIAGNOSTIC_COLUMNS.values()] for one in diagnostics)
        )
