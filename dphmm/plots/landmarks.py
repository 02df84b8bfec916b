"""Plots of budgets and losses of landmark schemes by time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, as_floats, runs
from dphmm.errors import InvalidInputError
from dphmm.landmarks import LandmarkBudget
from dphmm.plots import canvas
from dphmm.plots.canvas import BLUE, GREY, MAX_BARS, ORANGE, RED, Axes, draw_steps
from dphmm.tables import iso_time
from dphmm.validation import checked


@checked
def budget_and_loss(ax: Axes, budget: LandmarkBudget, losses: FloatArray | None = None) -> None:
    """Plot the budget of every timestamp, and the loss on a separate scale.

    Bars of landmarks have another colour, and stretches of landmarks a shaded background. More than `MAX_BARS`
    timestamps are plotted as an area with a needle for each landmark, and many losses as a band (see `draw_steps`).

    Parameters
    ----------
    ax
        Axes to draw on.
    budget
        Timestamps, landmarks and budgets.
    losses
        ``(T,)`` temporal losses. Infinite losses are omitted. Defaults to no losses.
    """
    line = budget.timeline
    at: npt.NDArray[Any] = line.timestamps
    if len(at) > MAX_BARS:
        _draw_area(ax, budget)
    else:
        _draw_bars(ax, budget)
    canvas.label_curves(ax, "time", "budget of the timestamp")
    ax.set_ylim(bottom=0)
    if len(at) == 1:
        ax.set_xticks(at, [iso_time(at[0]) if at.dtype.kind == "M" else f"{at[0]:g}"])
    elif at.dtype.kind == "M":
        ax.tick_params(axis="x", labelrotation=30)
    right = ax.twinx()
    if losses is not None:
        losses = as_floats(losses, "losses")
        if losses.shape != at.shape:
            raise InvalidInputError(f"losses must be one for each of {len(at)} timestamps, got shape {losses.shape}")
        # A line through one point is invisible.
        marker = "o" if len(at) == 1 else ""
        draw_steps(right, at, losses, RED, "loss of all landmarks and this time (right)", linewidth=1.4, marker=marker)
    right.axhline(budget.epsilon, color=GREY, linestyle="--", label=f"ε = {budget.epsilon:g} (right)")
    right.set_ylim(0, 1.08 * max(right.get_ylim()[1], budget.epsilon))
    right.set_ylabel("loss", color=RED)
    (bars, names) = ax.get_legend_handles_labels()
    (curves, more) = right.get_legend_handles_labels()
    columns = 2 if canvas.inches_wide(ax) >= _TWO_COLUMN_INCHES else 1
    canvas.legend_above(ax, columns, handles=bars + curves, labels=names + more)


# Minimum width of a figure, in inches, for a legend of two columns.
_TWO_COLUMN_INCHES = 6.0


def _draw_bars(ax: Axes, budget: LandmarkBudget) -> None:
    """Draw a bar for each timestamp and shade stretches of landmarks."""
    line = budget.timeline
    at = line.timestamps
    width = _bar_width(line.timestamps)
    for first, last in np.reshape(runs(line.landmark), (-1, 2)).tolist():
        ax.axvspan(at[first] - width / 2, at[last] + width / 2, color=ORANGE, alpha=0.15, linewidth=0, zorder=0)
    for chosen, colour, label in ((~line.landmark, BLUE, "ε, regular"), (line.landmark, ORANGE, "ε, landmark")):
        if chosen.any():
            ax.bar(at[chosen], budget.epsilons[chosen], width=width, color=colour, label=label)


def _draw_area(ax: Axes, budget: LandmarkBudget) -> None:
    """Draw regular timestamps as areas with gaps, and each landmark as a needle."""
    line = budget.timeline
    at = line.timestamps
    width = _bar_width(line.timestamps)
    regular = ~line.landmark
    times = at[regular]
    heights = budget.epsilons[regular]
    if len(times):
        apart = np.flatnonzero(np.diff(times) > 3 * width) + 1
        for number, part in enumerate(np.split(np.arange(len(times)), apart)):
            label = "ε, regular" if number == 0 else None
            edges = np.append(times[part], times[part[-1]] + width)
            steps = np.append(heights[part], heights[part[-1]])
            ax.fill_between(edges, steps, step="post", color=BLUE, alpha=0.45, linewidth=0, label=label)
    marked = line.landmark
    if marked.any():
        ax.vlines(at[marked], 0, budget.epsilons[marked], color=ORANGE, linewidth=0.9, zorder=3)
        ax.plot(at[marked], budget.epsilons[marked], "o", color=ORANGE, ms=4, mew=0, zorder=3, label="ε, landmark")


def _bar_width(at: npt.NDArray[Any]) -> Any:
    """Return the most frequent distance of neighbours, so that bars of a regular series touch."""
    if at.size == 1:
        return np.timedelta64(60, "s") if at.dtype.kind == "M" else 1.0
    values, counts = np.unique(np.diff(at), return_counts=True)
    return values[counts.argmax()]
