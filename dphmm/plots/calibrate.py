"""Figures of a calibration: errors by epsilon and the frontier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.errors import InvalidInputError
from dphmm.plots import canvas
from dphmm.plots.canvas import BLUE, GREEN, GREY, ORANGE, RED, Axes
from dphmm.validation import check_arguments

if TYPE_CHECKING:
    from dphmm.jobs.calibrate.results import CalibrationResult
from dphmm.attack.recommendation import ADVERSARY_PHRASES, build_frontier_lines, select_protection_measure
from dphmm.audit.empirical_epsilon import CONFIDENCE
from dphmm.plots.attack import draw_frontier

_ERROR_CURVES = {
    "estimate_error": ("estimate", GREEN),
    "filtered_error": ("adversary, past releases", ORANGE),
    "smoothed_error": ("adversary, all releases", RED),
}


@check_arguments
def draw_trade_off(ax: Axes, result: CalibrationResult) -> None:
    """Plot the errors of release, estimate and adversary by epsilon, on logarithmic axes.

    The calibrated epsilon is a vertical line, the error without releases a horizontal line.

    Parameters
    ----------
    ax
        The axes.
    result
        A calibration with at least two reported budgets.

    Raises
    ------
    InvalidInputError
        If there are fewer than two budgets.
    """
    outcomes = sorted(
        {outcome.epsilon: outcome for outcome in (*result.report, result.achieved)}.values(),
        key=lambda outcome: outcome.epsilon,
    )
    if len(outcomes) < 2:
        raise InvalidInputError("result must contain at least two budgets: call calibrate() with report_epsilons")
    epsilons = [outcome.epsilon for outcome in outcomes]
    released = [1000 * (outcome.released_error or np.nan) for outcome in outcomes]
    ax.plot(epsilons, released, "s-", color=BLUE, ms=4, label="release (RMS)")
    for name, (label, color) in _ERROR_CURVES.items():
        estimates = [outcome.simulation.estimate_mean(name) for outcome in outcomes if outcome.simulation is not None]
        if estimates:
            means, margins = (
                1000 * np.array([getattr(estimate, part) for estimate in estimates]) for part in ("mean", "margin")
            )
            ax.plot(epsilons, means, "o-", color=color, ms=4, label=label)
            ax.fill_between(epsilons, np.maximum(means - margins, 1e-3), means + margins, color=color, alpha=0.2, lw=0)
    ax.axhline(1000 * result.error_without_releases, color=GREY, ls="--", lw=1, label="adversary, no release")
    ax.axvline(result.achieved.epsilon, color=GREY, lw=1, label=f"ε = {result.achieved.epsilon:g}")
    ax.set_xscale("log")
    ax.set_yscale("log")
    plotted = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.lines[:-1]])
    ax.set_ylim(float(np.nanmin(plotted)) / 3, 1.5 * float(np.nanmax(plotted)))  # an interval may extend to 0
    canvas.set_power_ticks(ax.xaxis, (min(epsilons), max(epsilons)), (1, 3), "{:g}".format)
    if ax.collections:
        ax.set_title(f"bands: {CONFIDENCE:.0%} intervals of means", fontsize=9)
    canvas.label_curves(ax, "ε of a release", "error (m)")
    ax.legend(fontsize="small")


@check_arguments
def draw_calibration_figure(result: CalibrationResult) -> Any:
    """Plot the errors by epsilon, and the filtered error against the protection.

    Parameters
    ----------
    result
        A calibration with at least two reported budgets and simulated users, as `dphmm.jobs.calibrate` returns it.

    Returns
    -------
    matplotlib.figure.Figure
        Two panels. The star is the calibrated budget.

    Raises
    ------
    InvalidInputError
        If there are fewer than two budgets.
    MissingDependencyError
        If matplotlib is not installed.
    """
    figure, panels = canvas.create_panels(
        11.0 if result.channel_results else 7.0, 4.8, columns=2 if result.channel_results else 1
    )
    draw_trade_off(panels[0], result)
    if result.chosen_result is not None:
        measure = select_protection_measure(result.channel_results)
        at = (
            result.chosen_result.estimate_mean("filtered_error_m").mean,
            result.chosen_result.estimate_mean(measure).mean,
        )
        draw_frontier(
            panels[1],
            build_frontier_lines(result.channel_results, measure),
            ADVERSARY_PHRASES[measure],
            at,
            "the budget found",
        )
        panels[1].set_title(result.channel_population, fontsize=9)
        canvas.place_legend_below(panels[1], 3)
    return figure
