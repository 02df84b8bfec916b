"""Plots of budgets and losses of landmark schemes by time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, as_floats, find_runs
from dphmm.errors import InvalidInputError
from dphmm.landmarks import LandmarkBudget
from dphmm.plots import canvas
from dphmm.plots.canvas import BLUE, GREY, MAX_BARS, ORANGE, RED, Axes, draw_steps
from dphmm.tables import iso_time
from dphmm.validation import check_arguments


@check_arguments
def draw_landmark_budget(ax: Axes, budget: LandmarkBudget, losses: FloatArray | None = None) -> None:
    """Plot the budget of every timestamp, and the loss, if any, on a separate scale.

    Bars of landmarks have another colour, and stretches of landmarks a shaded background. More than `MAX_BARS`
    timestamps are plotted as an area with a needle for each landmark, and many losses as a band (see `draw_steps`).
    Neither shades nor the line of losses cross gaps between timestamps.

    Parameters
    ----------
    ax
        Axes to draw on.
    budget
        Timestamps, landmarks and budgets.
    losses
        ``(T,)`` temporal losses. Infinite losses are omitted. Defaults to no losses, and no scale for them.

    Raises
    ------
    InvalidInputError
        If there is not one loss for each timestamp.
    """
    line = budget.timeline
    at: npt.NDArray[Any] = line.timestamps
    if len(at) > MAX_BARS:
        _draw_area(ax, budget)
    else:
        _draw_bars(ax, budget)
    is_dated = at.dtype.kind == "M"
    canvas.label_curves(ax, "time (UTC)" if is_dated else "time", "budget of the timestamp")
    ax.set_ylim(bottom=0)
    if len(at) == 1:
        ax.set_xticks(at, [iso_time(at[0]) if is_dated else f"{at[0]:g}"])
    elif is_dated:
        canvas.show_dates(ax.xaxis)
    handles, labels = ax.get_legend_handles_labels()
    if losses is not None:
        losses = as_floats(losses, "losses")
        if losses.shape != at.shape:
            raise InvalidInputError(f"losses must be one for each of {len(at)} timestamps, got shape {losses.shape}")
        right = ax.twinx()
        after_gaps = _find_gaps(at)
        # A line through one point is invisible.
        marker = "o" if len(at) == 1 else "." if len(after_gaps) else ""
        ends = at[after_gaps - 1] + _find_bar_width(at)
        draw_steps(
            right,
            np.insert(at, after_gaps, ends),
            np.insert(losses, after_gaps, np.nan),
            RED,
            "loss of all landmarks and this time (right)",
            is_bound=True,
            linewidth=1.4,
            marker=marker,
            markersize=6 if len(at) == 1 else 3,
        )
        right.axhline(budget.epsilon, color=GREY, linestyle="--", label=f"ε = {budget.epsilon:g} (right)")
        right.set_ylim(0, 1.08 * max(right.get_ylim()[1], budget.epsilon))
        right.set_ylabel("loss", color=RED)
        curves, names = right.get_legend_handles_labels()
        handles, labels = handles + curves, labels + names
    columns = 2 if canvas.get_width_inches(ax) >= canvas.TWO_COLUMN_INCHES else 1
    canvas.place_legend_above(ax, columns, handles=handles, labels=labels)


# Line width of the edges of bars and areas, in points: the least visible width.
_MIN_BAR_POINTS = 0.8

# Distance of neighbours, in widths of a bar, above which there is a gap between them.
_GAP_BARS = 3


def _draw_bars(ax: Axes, budget: LandmarkBudget) -> None:
    """Draw a bar for each timestamp and shade stretches of landmarks."""
    line = budget.timeline
    at = line.timestamps
    width = _find_bar_width(line.timestamps)
    after_gaps = _find_gaps(at)
    for first, last in np.reshape(find_runs(line.landmark), (-1, 2)).tolist():
        starts = [first, *after_gaps[(after_gaps > first) & (after_gaps <= last)].tolist()]
        for start, end in zip(starts, [*(at_gap - 1 for at_gap in starts[1:]), last], strict=True):
            ax.axvspan(at[start] - width / 2, at[end] + width / 2, color=ORANGE, alpha=0.15, linewidth=0, zorder=0)
    for chosen, colour, label in ((~line.landmark, BLUE, "ε, regular"), (line.landmark, ORANGE, "ε, landmark")):
        if chosen.any():
            # The edge keeps a bar visible that is narrow compared with the time axis.
            bars = ax.bar(at[chosen], budget.epsilons[chosen], width=width, color=colour, label=label)
            for bar in bars:
                bar.set(edgecolor=colour, linewidth=_MIN_BAR_POINTS)


def _draw_area(ax: Axes, budget: LandmarkBudget) -> None:
    """Draw regular timestamps as areas with gaps, and each landmark as a needle."""
    line = budget.timeline
    at = line.timestamps
    width = _find_bar_width(line.timestamps)
    regular = ~line.landmark
    times = at[regular]
    heights = budget.epsilons[regular]
    if len(times):
        apart = np.flatnonzero(np.diff(times) > _GAP_BARS * width) + 1
        # The last step of a part is as wide as a bar, and NaN separates the parts: one artist for each would take time
        # quadratic in their number.
        after = np.append(apart, len(times))
        edges = np.insert(times, np.repeat(after, 2), np.repeat(times[after - 1] + width, 2))
        ends = np.column_stack([heights[after - 1], np.full(len(after), np.nan)]).ravel()
        steps = np.insert(heights, np.repeat(after, 2), ends)
        style: dict[str, Any] = {"color": BLUE, "alpha": 0.45, "linewidth": _MIN_BAR_POINTS}
        ax.fill_between(edges, steps, step="post", label="ε, regular", **style)
    marked = line.landmark
    if marked.any():
        ax.vlines(at[marked], 0, budget.epsilons[marked], color=ORANGE, linewidth=0.9, zorder=3)
        ax.plot(at[marked], budget.epsilons[marked], "o", color=ORANGE, ms=4, mew=0, zorder=3, label="ε, landmark")


def _find_bar_width(at: npt.NDArray[Any]) -> Any:
    """Return the most frequent distance of neighbours, so that bars of a regular series touch."""
    if at.size == 1:
        return np.timedelta64(60, "s") if at.dtype.kind == "M" else 1.0
    values, counts = np.unique(np.diff(at), return_counts=True)
    return values[counts.argmax()]


def _find_gaps(at: npt.NDArray[Any]) -> IntArray:
    """Return the indices of the timestamps that follow a gap."""
    if at.size == 1:
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(np.diff(at) > _GAP_BARS * _find_bar_width(at)) + 1
