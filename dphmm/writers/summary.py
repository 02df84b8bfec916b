"""Public summaries of releases, one row per user, and files of private diagnostics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.release.ledger import sum_budgets
from dphmm.tables import create_file, create_private_file, iso_time, private_name, write_csv
from dphmm.tables.values import shorten
from dphmm.validation import check_arguments
from dphmm.writers.release_table import ReleaseTable

if TYPE_CHECKING:
    from dphmm.release.trajectory_release import TimedDiagnostics

# Column → its value for the releases of one user.
#
# Budgets add up over time: `epsilon_total` is the total of all releases of a user, and `max_epsilon_24h` the largest
# total of the 24 hours that end with one of them. `is_exact` states whether all of them were sampled with integers
# only. The adversary knows the model and the releases up to each timestep, except those before a gap that restarted the
# belief (`num_timesteps_after_gap` counts the timesteps after one); the smoothed values use all releases. Metrics of
# the estimates and the adversary omit the timesteps of `num_unprotected`, at which the most probable location is
# released unchanged.
SUMMARY_COLUMNS: Mapping[str, Callable[[ReleaseTable], Any]] = {
    "user": lambda rows: str(rows["user"][0]),
    "num_releases": lambda rows: int((~rows["withheld"]).sum()),
    "num_withheld": lambda rows: int(rows["withheld"].sum()),
    "num_unprotected": lambda rows: int(rows["unprotected"].sum()),
    "num_timesteps_after_gap": lambda rows: int((rows["num_ignored_releases"] > 0).sum()),
    "first_time": lambda rows: iso_time(rows["time"].min()),
    "last_time": lambda rows: iso_time(rows["time"].max()),
    "epsilon_total": lambda rows: sum_budgets(rows["epsilon"].tolist()),
    "max_epsilon_24h": lambda rows: _apply_statistic(rows["epsilon_24h"], np.max),
    "is_exact": lambda rows: bool(rows["is_exact"].all()),
    "median_expected_error_m": lambda rows: _apply_statistic(rows["expected_error_m"], np.median),
    "median_estimate_error_m": lambda rows: _apply_to_protected(rows, "estimate_error_m", np.median),
    "median_adversary_error_m": lambda rows: _apply_to_protected(rows, "adversary_error_m", np.median),
    "min_adversary_error_m": lambda rows: _apply_to_protected(rows, "adversary_error_m", np.min),
    "median_max_posterior": lambda rows: _apply_to_protected(rows, "adversary_max_posterior", np.median),
    "max_posterior": lambda rows: _apply_to_protected(rows, "adversary_max_posterior", np.max),
    "min_possible_states": lambda rows: int(rows["possible_states"].min()),
    "max_possible_states": lambda rows: int(rows["possible_states"].max()),
    "min_degree_of_protection": lambda rows: int(rows["min_degree_of_protection"].min()),
    "num_releases_with_added_edges": lambda rows: int((rows["num_added_edges"] > 0).sum()),
    "max_repair_optimality_gap": lambda rows: float(rows["repair_optimality_gap"].max()),
    "median_table_gain": lambda rows: _apply_statistic(rows["table_gain"], np.median),
    "num_singleton_releases": lambda rows: int(rows["singleton"].sum()),
}


def _apply_to_protected(rows: ReleaseTable, column: str, statistic: Callable[[FloatArray], Any]) -> float:
    """Apply a statistic to the timesteps with a protected most probable location.

    NaN if there are none.
    """
    return _apply_statistic(rows[column][~rows["unprotected"]], statistic)


def _apply_statistic(values: FloatArray, statistic: Callable[[FloatArray], Any]) -> float:
    """Apply a statistic to the values that are not NaN. NaN if there are none."""
    valid = values[~np.isnan(values)]
    return float(statistic(valid)) if len(valid) else float("nan")


class Hindsight(NamedTuple):
    """Metrics of each row of a table for an adversary who has all releases of its user.

    Parameters
    ----------
    error_m
        ``(n,)``: the expected error of the adversary's point estimate, metres.
    max_posterior
        ``(n,)``: the posterior probability of the most probable state.
    """

    error_m: FloatArray
    max_posterior: FloatArray


@check_arguments
def summarise(table: ReleaseTable, daily: bool = False, hindsight: Hindsight | None = None) -> list[dict[str, Any]]:
    """Summarise releases by user, in the order of the users' names.

    Parameters
    ----------
    table
        The releases.
    daily
        Whether to return one row per user and day (UTC).
    hindsight
        Smoothed metrics. Rows then contain their medians and extremes too.

    Returns
    -------
    list of dict
        One row per user with the keys of `SUMMARY_COLUMNS`. Daily rows have ``"day"`` after the user.
    """
    users = table["user"].astype(str)
    days = table["time"].astype("datetime64[D]")
    rows = []
    for user in sorted(set(users.tolist())):
        is_user = users == user
        for day in np.unique(days[is_user]) if daily else (None,):
            mask = is_user if day is None else is_user & (days == day)
            selected = table.select(mask)
            row = {name: value(selected) for name, value in SUMMARY_COLUMNS.items()}
            if hindsight is not None:
                protected = mask & ~table["unprotected"]
                row |= _summarize_smoothed(hindsight.error_m[protected], hindsight.max_posterior[protected])
            rows.append(row if day is None else {"user": row.pop("user"), "day": str(day), **row})
    return rows


def _summarize_smoothed(error_m: FloatArray, max_posterior: FloatArray) -> dict[str, float]:
    return {
        "smoothed_median_adversary_error_m": _apply_statistic(error_m, np.median),
        "smoothed_min_adversary_error_m": _apply_statistic(error_m, np.min),
        "smoothed_median_max_posterior": _apply_statistic(max_posterior, np.median),
        "smoothed_max_posterior": _apply_statistic(max_posterior, np.max),
    }


def compute_medians(table: ReleaseTable, hindsight: Hindsight | None = None) -> dict[str, float | None]:
    """Compute the medians of the errors and posteriors over all timesteps of all users.

    Timesteps with an unprotected most probable location are omitted.

    Parameters
    ----------
    table
        The releases.
    hindsight
        Smoothed metrics. The result then contains their medians too.

    Returns
    -------
    dict
        Names such as ``median_estimate_error_m`` → the medians; None without a protected timestep.
    """
    names = ("median_estimate_error_m", "median_adversary_error_m", "median_max_posterior")
    medians = {name: SUMMARY_COLUMNS[name](table) for name in names}
    if hindsight is not None:
        protected = ~table["unprotected"]
        smoothed = _summarize_smoothed(hindsight.error_m[protected], hindsight.max_posterior[protected])
        medians |= {name: value for name, value in smoothed.items() if "median" in name}
    return {name: None if isnan(value) else value for name, value in medians.items()}


@check_arguments
def write_summary(
    path: str | Path,
    table: ReleaseTable,
    overwrite: bool = False,
    daily: bool = False,
    hindsight: Hindsight | None = None,
) -> None:
    """Write the rows of `summarise` as CSV, atomically. Missing values are empty.

    Parameters
    ----------
    path
        The file.
    table
        The releases.
    overwrite
        Whether an existing file may be replaced.
    daily, hindsight
        As for `summarise`.

    Raises
    ------
    OutputError
        If the file exists and may not be overwritten, or cannot be written.
    """
    rows = summarise(table, daily, hindsight)
    header = list(rows[0] if rows else SUMMARY_COLUMNS)
    with create_file(path, overwrite) as part:
        write_csv(part, header, ([_format_cell(value) for value in row.values()] for row in rows))


def _format_cell(value: Any) -> Any:
    return "" if isinstance(value, float) and isnan(value) else value


# ---- private diagnostics ---------------------------------------------------------------------------------------------

# Column, with a name that marks it as private → its cell.
DIAGNOSTIC_COLUMNS: Mapping[str, Callable[[TimedDiagnostics], object]] = {
    "private_user": lambda step: step.user,
    "private_time": lambda step: iso_time(step.time),
    "private_outside": lambda step: str(step.outside).lower(),
    "private_true_state": lambda step: step.diagnostics.true_state,
    "private_released_state": lambda step: step.diagnostics.released_state,
    "private_used_surrogate": lambda step: str(step.diagnostics.used_surrogate).lower(),
    "private_error_m": lambda step: repr(step.diagnostics.error * 1000.0),
    "private_estimate_error_m": lambda step: repr(step.diagnostics.estimate_error * 1000.0),
    "private_within_radius": lambda step: str(step.is_within_expected_error).lower(),
    "private_degree_of_protection": lambda step: step.diagnostics.degree_of_protection,
    "private_expected_error_m": lambda step: repr(step.diagnostics.expected_error * 1000.0),
}


@check_arguments
def check_private_name(path: str | Path) -> Path:
    """Check that a file of diagnostics is a CSV with PRIVATE in its name.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ConfigurationError
        If it is not; proposes a name.
    """
    path = Path(path)
    if path.suffix.lower() != ".csv":
        raise ConfigurationError(f"{path}: diagnostics must be a .csv file, such as PRIVATE-{path.stem}.csv")
    return private_name(path)


def write_diagnostics(path: str | Path, diagnostics: Iterable[TimedDiagnostics], overwrite: bool = False) -> None:
    """Write diagnostics as CSV, atomically and readable by the file's owner only.

    Parameters
    ----------
    path
        The file, see `check_private_name`.
    diagnostics
        The diagnostics, one per row.
    overwrite
        Whether an existing file may be replaced.

    Raises
    ------
    ConfigurationError
        If the name does not mark the file as private.
    InvalidInputError
        If the diagnostics are not iterable.
    OutputError
        If the file exists and may not be overwritten, or cannot be written.
    """
    if not isinstance(diagnostics, Iterable):
        raise InvalidInputError(f"diagnostics must be an iterable of diagnostics, got {shorten(diagnostics)}")
    with create_private_file(check_private_name(path), overwrite) as part:
        rows = ([cell(step) for cell in DIAGNOSTIC_COLUMNS.values()] for step in diagnostics)
        write_csv(part, list(DIAGNOSTIC_COLUMNS), rows)
