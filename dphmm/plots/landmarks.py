"""Pictures of landmark schemes: budgets and losses over time, and errors by the share of landmarks.

Every function draws into an ``ax`` of matplotlib and returns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats
from dphmm.errors import InvalidInputError
from dphmm.landmarks import LandmarkBudget
from dphmm.plots.bands import draw_steps
from dphmm.plots.maps import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES: Mapping[str, tuple[str, str, str]] = {
    "skip": (BLUE, "-", "o"),
    "uniform": (ORANGE, "-", "s"),
    "adaptive": (GREEN, "-", "^"),
    "event level": (GREY, ":", ""),
    "user level": (RED, "--", ""),
}


@checked
def budget_and_loss(ax: Axes, budget: LandmarkBudget, losses: FloatArray | None = None) -> None:
    """Budget of every timestamp as bars, and the loss as a line with a scale of its own at the right.

    Landmarks' bars have another colour, and stretches of landmarks a shade behind them. More timestamps than
    `MOST_BARS` are an area, with a needle for each landmark; losses of very many are a band, see `draw_steps`.

    Parameters
    ----------
    ax
        Where to draw.
    budget
        Timestamps, landmarks and budgets.
    losses
        ``(T,)`` temporal losses; infinite ones are left out. None draws none.
    """
    line = budget.timeline
    at: npt.NDArray[Any] = line.timestamps
    if len(at) > MOST_BARS:
        _many_budgets(ax, budget)
    else:
        _few_budgets(ax, budget)
    finish(ax, "time", "budget of the timestamp")
    ax.set_ylim(bottom=0)
    if at.dtype.kind == "M":
        ax.tick_params(axis="x", labelrotation=30)
    right = ax.twinx()
    if losses is not None:
        losses = as_floats(losses, "losses")
        if losses.shape != at.shape:
            raise InvalidInputError(f"losses have shape {losses.shape}; give one for each of {len(at)} timestamps")
        draw_steps(right, at, losses, RED, "loss of all landmarks and this time (right)", linewidth=1.4)
    right.axhline(budget.epsilon, color=GREY, linestyle="--", label=f"ε = {budget.epsilon:g} (right)")
    right.set_ylim(0, 1.08 * max(right.get_ylim()[1], budget.epsilon))
    right.set_ylabel("loss", color=RED)
    (bars, names), (curves, more) = ax.get_legend_handles_labels(), right.get_legend_handles_labels()
    columns = 2 if ax.figure.bbox.width >= _TWO_COLUMNS * ax.figure.dpi else 1
    legend: dict[str, Any] = {"ncols": columns, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "frameon": False}
    ax.legend(bars + curves, names + more, fontsize="small", **legend)


MOST_BARS = 120
"""More timestamps than this are drawn as an area, and their landmarks as needles in front of it."""

_TWO_COLUMNS = 6.0
"""A figure of so many inches has room for a legend of two columns."""


def _few_budgets(ax: Axes, budget: LandmarkBudget) -> None:
    """A bar for each timestamp, and a shade behind stretches of landmarks."""
    line = budget.timeline
    at, width = line.timestamps, _bar_width(line.timestamps)
    for first, last in _runs(line.landmark):
        ax.axvspan(at[first] - width / 2, at[last] + width / 2, color=ORANGE, alpha=0.15, linewidth=0, zorder=0)
    for chosen, colour, label in ((~line.landmark, BLUE, "ε, regular"), (line.landmark, ORANGE, "ε, landmark")):
        if chosen.any():
            ax.bar(at[chosen], budget.epsilons[chosen], width=width, color=colour, label=label)


def _many_budgets(ax: Axes, budget: LandmarkBudget) -> None:
    """An area for regular timestamps, with gaps where there are none, and a needle with a head for each landmark."""
    line = budget.timeline
    at, width, regular = line.timestamps, _bar_width(line.timestamps), ~line.landmark
    times, heights = at[regular], budget.epsilons[regular]
    if len(times):
        apart = np.flatnonzero(np.diff(times) > 3 * width) + 1
        for number, part in enumerate(np.split(np.arange(len(times)), apart)):
            label = "ε, regular" if number == 0 else None
            edges, steps = np.append(times[part], times[part[-1]] + width), np.append(heights[part], heights[part[-1]])
            ax.fill_between(edges, steps, step="post", color=BLUE, alpha=0.45, linewidth=0, label=label)
    marked = line.landmark
    if marked.any():
        ax.vlines(at[marked], 0, budget.epsilons[marked], color=ORANGE, linewidth=0.9, zorder=3)
        ax.plot(at[marked], budget.epsilons[marked], "o", color=ORANGE, ms=4, mew=0, zorder=3, label="ε, landmark")


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last position of each run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]])))
    return list(zip(edges[::2].tolist(), (edges[1::2] - 1).tolist(), strict=True))


def _bar_width(at: npt.NDArray[Any]) -> Any:
    """The distance that most neighbours have, so that bars touch where timestamps are regular."""
    if at.size == 1:
        return np.timedelta64(60, "s") if at.dtype.kind == "M" else 1.0
    values, counts = np.unique(np.diff(at), return_counts=True)
    return values[counts.argmax()]


@checked
def error_by_share(ax: Axes, shares: Sequence[float], errors: Mapping[str, Sequence[float]], unit: str) -> None:
    """Error of schemes by the share of timestamps that are landmarks, in the manner of the landmark paper.

    Parameters
    ----------
    ax
        Where to draw; the errors' axis is logarithmic.
    shares
        From 0 to 1.
    errors
        Name (skip, uniform, adaptive, event level, user level, or another) → error at each share; NaN where there is
        none.
    unit
        What the errors are, for the axis.
    """
    part = as_floats(shares, "shares")
    if part.ndim != 1 or not errors or any(np.shape(values) != part.shape for values in errors.values()):
        raise InvalidInputError(
            f"shares have shape {part.shape}; give a list of them, and of errors of that length by name"
        )
    for name, values in errors.items():
        colour, line, marker = _STYLES.get(name, (PURPLE, "-.", "x"))
        ax.plot(100 * part, as_floats(values, name), color=colour, linestyle=line, marker=marker, ms=5, label=name)
    ax.set_yscale("log")
    finish(ax, "landmarks, % of the timestamps", unit)
    below: dict[str, Any] = {"ncols": 5, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "frameon": False}
    ax.legend(fontsize="small", columnspacing=1, **below)
