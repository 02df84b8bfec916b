"""The accuracy of a run under a window budget, and of its alternatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan, nan
from operator import attrgetter
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.calibrate.epsilon_search import epsilon_per_release, round_down
from dphmm.formatting import Result, exported, format_duration, format_kilometres, format_upper_bound
from dphmm.mechanisms.registry import TABLE_MECHANISMS
from dphmm.release.settings import Settings
from dphmm.writers.release_table import ReleaseTable


@dataclass(frozen=True)
class SamplingSummary(Result):
    """The numbers and errors of sampled locations, and of two ways to sample every timestep.

    Parameters
    ----------
    num_released, num_unprotected, num_timesteps
        The number of sampled locations, of the unprotected ones among them, which are exact, and of timesteps.
    median_release_rmse_m
        The median root mean square distance of the protected sampled locations from the points of the states to which
        noise was added, metres. NaN if there are none. A user outside the region is farther away.
    median_prediction_error_m
        The median expected error of the estimates at the other timesteps, metres. NaN if there are none.
    window_epsilon, window_hours
        The budget of a window, and its length.
    num_timesteps_per_window
        The largest number of timesteps of a user within one window.
    even_epsilon
        The budget of each release if the window budget is spread evenly over these timesteps, rounded down.
    even_release_rmse_m
        This distance of such a release, metres. It is ``c / epsilon`` for norm noise, and nearly so for the lattice.
        NaN for noise by table, or without a protected sampled location.
    median_epsilon
        The median budget of the protected sampled locations, or of all if none is protected. NaN if there are none.
    required_window_epsilon
        The window budget at which every timestep has a release with `median_epsilon`. NaN if there are none.
    is_averaged
        Whether medians are means over users of each user's median, weighted by its timesteps, instead of medians over
        timesteps. The keys of `to_dict` then begin with ``mean_user_median`` instead of ``median``.
    has_caps
        Whether event caps apply. They also withhold timesteps with the budgets of the two ways, which `describe` then
        omits.
    """

    num_released: int = field(metadata=exported())
    num_unprotected: int
    num_timesteps: int = field(metadata=exported())
    median_release_rmse_m: float = field(metadata=exported())
    median_prediction_error_m: float = field(metadata=exported())
    window_epsilon: float = field(metadata=exported())
    window_hours: float = field(metadata=exported())
    num_timesteps_per_window: int = field(metadata=exported())
    even_epsilon: float = field(metadata=exported())
    even_release_rmse_m: float = field(metadata=exported())
    median_epsilon: float = field(metadata=exported())
    required_window_epsilon: float = field(metadata=exported())
    is_averaged: bool = False
    has_caps: bool = False

    def to_dict(self, *context: Any) -> dict[str, Any]:
        """Return the summary as plain JSON values, each median by the name of what it is."""
        values = super().to_dict(*context)
        if not self.is_averaged:
            return values
        return {f"mean_user_{key}" if key.startswith("median_") else key: value for key, value in values.items()}

    def describe(self) -> str:
        """The summary as a paragraph."""
        if not self.num_released:
            return f"No timestep of {self.num_timesteps:,} has a sampled location."
        of_steps = f"{self.num_released:,} of {self.num_timesteps:,} timesteps"
        verb = "has" if self.num_released == 1 else "have"
        over_users = ", averaged over users" if self.is_averaged else ""
        sentences = [f"{of_steps} {verb} a sampled location"]
        if self.num_unprotected == self.num_released:
            sentences[0] += ", all of them exact"
        elif not isnan(self.median_release_rmse_m):
            exact = f", {self.num_unprotected:,} unprotected and exact, the others" if self.num_unprotected else ","
            sentences[0] += (
                f"{exact} with a median RMS noise of {_format_length(self.median_release_rmse_m)}{over_users}"
            )
        sentences[0] += "."
        if not isnan(self.median_prediction_error_m):
            sentences.append(
                "The estimates at the other timesteps are predictions. If users move as the model assumes, these have "
                f"a median expected error of {_format_length(self.median_prediction_error_m)}{over_users}."
            )
        # Caps would withhold timesteps at any constant epsilon, and they lowered the median of the budgets.
        if self.has_caps:
            return " ".join(sentences)
        error = (
            ""
            if isnan(self.even_release_rmse_m)
            else f", with an RMS noise of {_format_length(self.even_release_rmse_m)}"
        )
        sentences.append(
            f"To sample every timestep within this budget, use --epsilon {self.even_epsilon:g}{error} "
            f"({self.window_epsilon:g} spread over {self.num_timesteps_per_window:,} timesteps)."
        )
        sentences.append(
            f"To sample every timestep as accurately as now, use --epsilon {round_down(self.median_epsilon):g}: the "
            f"timesteps of any {format_duration(round(3600.0 * self.window_hours, 6))} then spend up to "
            f"{format_upper_bound(self.required_window_epsilon, ',')}."
        )
        return " ".join(sentences)


def summarize_sampling(table: ReleaseTable, settings: Settings) -> SamplingSummary | None:
    """Summarise a run with a window budget. None for any other run.

    Parameters
    ----------
    table
        The releases.
    settings
        Their settings.
    """
    schedule = settings.schedule
    if schedule is None or schedule.window_epsilon is None:
        return None
    withheld = table["withheld"]
    protected = ~withheld & ~table["unprotected"]
    per_window = find_max_rows_per_window(table, schedule.window_seconds)
    even_epsilon = round_down(epsilon_per_release(schedule.window_epsilon, per_window), 3)
    # The accuracy of an exact location does not depend on its budget.
    median_epsilon = _compute_finite_median(table["epsilon"][protected if protected.any() else ~withheld])
    scales_inversely = settings.mechanism not in TABLE_MECHANISMS
    # Before a release, its expected error includes that of unprotected locations. It is not that of a protected one.
    errors = table["component_error_m"][protected]
    # The error of norm noise is c / epsilon. The constant c of each release follows from its row.
    constant = _compute_finite_median(errors * table["epsilon"][protected]) if scales_inversely else nan
    return SamplingSummary(
        int((~withheld).sum()),
        int((~withheld & ~protected).sum()),
        len(table),
        _compute_finite_median(errors),
        _compute_finite_median(table["estimate_error_m"][withheld]),
        schedule.window_epsilon,
        schedule.window_seconds / 3600.0,
        per_window,
        even_epsilon,
        constant / even_epsilon,
        median_epsilon,
        median_epsilon * per_window,
        has_caps=bool(settings.caps),
    )


def average_users(total: SamplingSummary, user: SamplingSummary) -> SamplingSummary:
    """Return the summary of several users, extended by one more user.

    Counts are summed, and other numbers are means weighted by the timesteps that they describe.
    """

    def average_values(get: Callable[[SamplingSummary], float], count: Callable[[SamplingSummary], int]) -> float:
        weights = count(total), count(user)
        # A summary of no timestep contains NaN.
        values = [weight * get(summary) for weight, summary in zip(weights, (total, user), strict=True) if weight]
        return sum(values) / sum(weights) if values else nan

    per_window = max(total.num_timesteps_per_window, user.num_timesteps_per_window)
    has_protected = _count_protected(total) + _count_protected(user) > 0
    median_epsilon = average_values(
        attrgetter("median_epsilon"), _count_protected if has_protected else attrgetter("num_released")
    )
    # The budget is spread over the timesteps of the busiest window of any user.
    even_epsilon = min(total.even_epsilon, user.even_epsilon)
    constant = average_values(_compute_error_constant, _count_protected)
    return SamplingSummary(
        total.num_released + user.num_released,
        total.num_unprotected + user.num_unprotected,
        total.num_timesteps + user.num_timesteps,
        average_values(attrgetter("median_release_rmse_m"), _count_protected),
        average_values(attrgetter("median_prediction_error_m"), _count_withheld),
        total.window_epsilon,
        total.window_hours,
        per_window,
        even_epsilon,
        constant / even_epsilon,
        median_epsilon,
        median_epsilon * per_window,
        is_averaged=True,
        has_caps=total.has_caps,
    )


def _compute_error_constant(summary: SamplingSummary) -> float:
    return summary.even_epsilon * summary.even_release_rmse_m


def _count_protected(summary: SamplingSummary) -> int:
    return summary.num_released - summary.num_unprotected


def _count_withheld(summary: SamplingSummary) -> int:
    return summary.num_timesteps - summary.num_released


def find_max_rows_per_window(table: ReleaseTable, window_seconds: float) -> int:
    """Return the largest number of rows of one user within one window."""
    window = np.timedelta64(round(window_seconds * 1e6), "us")
    users = table["user"].astype(str)
    largest = 1
    for user in np.unique(users):
        times = np.sort(table["time"][users == user])
        counts = np.searchsorted(times, times + window, side="left") - np.arange(len(times))
        largest = max(largest, int(counts.max()))
    return largest


def _compute_finite_median(values: FloatArray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else nan


def _format_length(length: float) -> str:
    """Format a length in metres, short ones with all digits of a metre."""
    return f"{length:,.0f} m" if length < 9_999.5 else format_kilometres(length / 1000)
