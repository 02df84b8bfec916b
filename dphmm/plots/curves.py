"""Curves over time or epsilon: events, budgets and errors, landmark schemes, temporal leakage.

Every function draws into an ``ax`` of matplotlib and returns nothing; times are counted from 1. Leakage is drawn in the
manner of Figures 3, 4, 5 and 8 of the TPL paper. Curves of thousands of steps are drawn as bands, as a line through
all of them would paint over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats, check_budget, runs
from dphmm.audit.realised import EventAudit
from dphmm.errors import BudgetError, InvalidInputError, StochasticError
from dphmm.landmarks import LandmarkBudget
from dphmm.leakage import Leakage, LossFunction, account, backward
from dphmm.plots import figures
from dphmm.plots.figures import BLUE, GREEN, GREY, ORANGE, RED, Axes
from dphmm.stochastic import as_stochastic

if TYPE_CHECKING:
    from dphmm.jobs.calibrations import Calibrated


MOST_STEPS = 300
"""A curve of more steps than this is drawn as a band."""

BANDS = "bands: quartiles, least to greatest"
"""What a legend says of them, once."""

_PIECES = 160


@checked
def draw_steps(ax: Axes, times: npt.ArrayLike, values: npt.ArrayLike, colour: str, label: str, **style: Any) -> None:
    """A value at each step: a line, or of more than `MOST_STEPS` a band.

    The steps are then put into pieces of equal numbers. Of each are drawn the median as a line, the quartiles as a
    strong band, and the least and the greatest as a faint one, so that no step lies outside what is drawn. The legend
    says so once.

    Parameters
    ----------
    ax
        Where to draw.
    times
        ``(n,)`` numbers or ``datetime64``, ascending.
    values
        ``(n,)``; steps whose value is not finite are left out.
    colour, label
        Of the line.
    **style
        Of the line, as matplotlib has it, such as ``linewidth``; ``drawstyle="steps-post"`` for values that hold until
        the next step. Markers are for few steps alone.

    Raises
    ------
    InvalidInputError
        When there are not as many values as steps.
    """
    at: npt.NDArray[Any] = np.asarray(times)
    shown = as_floats(values, "values")
    if at.ndim != 1 or at.shape != shown.shape:
        raise InvalidInputError(f"values have shape {shown.shape} at {at.shape} steps; give one for each")
    if len(at) <= MOST_STEPS:
        ax.plot(at, np.where(np.isfinite(shown), shown, np.nan), color=colour, label=label, **style)
        return
    pieces = [part[np.isfinite(shown[part])] for part in np.array_split(np.arange(len(at)), _PIECES)]
    pieces = [part for part in pieces if len(part)]
    middle = at[[part[len(part) // 2] for part in pieces]]
    told = np.array([np.quantile(shown[part], (0.0, 0.25, 0.5, 0.75, 1.0)) for part in pieces]).reshape(-1, 5).T
    said = None if BANDS in ax.get_legend_handles_labels()[1] else BANDS
    ax.fill_between(middle, told[0], told[4], color=colour, alpha=0.15, linewidth=0, label=said)
    ax.fill_between(middle, told[1], told[3], color=colour, alpha=0.35, linewidth=0)
    kept = {name: value for name, value in style.items() if name in ("linewidth", "lw", "linestyle", "zorder")}
    ax.plot(middle, told[2], color=colour, label=label, **kept)


_FEW = 40
"""Up to this many releases each is a dot of its own."""

_STIR, _SHARE = 0.005, 0.7
"""Where the probability moves by more than the first in less than this share of the releases, the rest is not drawn."""


@checked
def event_over_time(
    ax: Axes,
    audit: EventAudit,
    most_certainty: float | None = None,
    least_certainty: float | None = None,
    times: Sequence[Any] | None = None,
) -> None:
    """The probability of an event after every release, the window that it is about, and what moved it most.

    Thousands of releases are drawn as bands, see `draw_steps`.

    Parameters
    ----------
    ax
        Where to draw.
    audit
        What was found.
    most_certainty, least_certainty
        Lines above and below which the event counts as learned; None, or 0 for the least, draws none.
    times
        ``(T,)`` when the releases were, as `datetime64`; left out, their steps.
    """
    steps = audit.times.astype(np.float64)
    x: Any = steps if times is None else np.asarray(times)
    few = len(steps) <= _FEW
    ends = [audit.event.first - audit.lead - 0.5, audit.event.last - audit.lead + 0.5]
    start, end = np.interp(ends, steps, np.arange(len(steps)))
    left, right = (_between(x, at) for at in (start, end))
    ax.axvspan(left, right, color=ORANGE, alpha=0.15, linewidth=0, label="window of the event")
    ax.axhline(audit.prior_probability, color=GREY, linestyle="--", linewidth=1, label="before any release")
    draw_steps(ax, x, audit.happened, GREEN, "had happened, in hindsight", drawstyle="steps-post", linewidth=1)
    dots: dict[str, Any] = {"marker": "o" if few else "", "markersize": 4}
    draw_steps(ax, x, audit.probability, BLUE, "known", drawstyle="steps-post", linewidth=1.5, **dots)
    movers = audit.movers()
    movers = movers[np.abs(audit.moved[movers]) > 0]
    up = audit.moved[movers] > 0
    for which, marker, label in ((up, "^", "moved it most, up"), (~up, "v", "moved it most, down")):
        at = movers[which]
        if len(at):
            ax.plot(x[at], audit.probability[at], marker, color=BLUE, mec="white", ms=9, label=label)
    for line in (most_certainty, least_certainty):
        if line:
            ax.axhline(line, color=RED, linewidth=1, label="learned beyond this" if line == most_certainty else None)
    ax.set_ylim(-0.03, 1.03)
    settled = np.flatnonzero(np.abs(audit.probability - audit.probability[-1]) > _STIR)
    rest = max(int(np.ceil(end)), int(settled.max(initial=0)) + 1, 1)
    if rest < _SHARE * len(x):
        margin = (x[rest] - x[0]) / 20
        ax.set_xlim(x[0] - margin, x[rest] + margin)
    figures.label_curves(ax, "step" if times is None else "time (UTC)", "probability of the event")
    if times is not None:
        figures.show_dates(ax.xaxis)


def _between(x: Any, at: float) -> Any:
    """What lies at a fraction of the way between two entries."""
    low = int(at)
    high = min(low + 1, len(x) - 1)
    return x[low] + (x[high] - x[low]) * (at - low)


_DRAWN = {
    "estimate": ("estimate", GREEN),
    "online": ("adversary, at once", ORANGE),
    "hindsight": ("adversary, in hindsight", RED),
}


@checked
def trade_off(ax: Axes, found: Calibrated) -> None:
    """Errors of the release, of the estimate and of an adversary, by epsilon, on logarithmic axes.

    The epsilon found is a line up, what the model alone tells a line across.

    Parameters
    ----------
    ax
        Where to draw.
    found
        A calibration with a row of at least two budgets.

    Raises
    ------
    InvalidInputError
        When there is no such row.
    """
    everyone = sorted({one.epsilon: one for one in (*found.row, found.achieved)}.values(), key=lambda one: one.epsilon)
    if len(everyone) < 2:
        raise InvalidInputError("the calibration has no row of budgets; give at least two")
    epsilons = [one.epsilon for one in everyone]
    released = [1000 * (one.released_error or np.nan) for one in everyone]
    ax.plot(epsilons, released, "s-", color=BLUE, ms=4, label="release (RMS)")
    for name, (label, color) in _DRAWN.items():
        told = [one.simulation.figure(name) for one in everyone if one.simulation is not None]
        if told:
            means, margins = (1000 * np.array([getattr(one, part) for one in told]) for part in ("mean", "margin"))
            ax.plot(epsilons, means, "o-", color=color, ms=4, label=label)
            ax.fill_between(epsilons, np.maximum(means - margins, 1e-3), means + margins, color=color, alpha=0.2, lw=0)
    drawn = [line.get_ydata() for line in ax.lines]
    ax.set_ylim(bottom=float(np.min(np.concatenate(drawn))) / 3)  # an interval may reach down to nothing
    ax.axhline(1000 * found.uninformed, color=GREY, ls="--", lw=1, label="adversary, no release")
    ax.axvline(found.achieved.epsilon, color=GREY, lw=1, label=f"ε = {found.achieved.epsilon:g}")
    ax.set_xscale("log")
    ax.set_yscale("log")
    figures.tick_powers(ax.xaxis, (min(epsilons), max(epsilons)), (1, 3), "{:g}".format)
    figures.label_curves(ax, "ε of a release", "error (m)")
    ax.legend(fontsize="small")


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
    figures.label_curves(ax, "time", "budget of the timestamp")
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
    columns = 2 if figures.inches_wide(ax) >= _TWO_COLUMNS else 1
    figures.legend_above(ax, columns, handles=bars + curves, labels=names + more)


MOST_BARS = 120
"""More timestamps than this are drawn as an area, and their landmarks as needles in front of it."""

_TWO_COLUMNS = 6.0
"""Inches; a wider figure has room for a legend of two columns."""


def _few_budgets(ax: Axes, budget: LandmarkBudget) -> None:
    """A bar for each timestamp, and a shade behind stretches of landmarks."""
    line = budget.timeline
    at, width = line.timestamps, _bar_width(line.timestamps)
    for first, last in np.reshape(runs(line.landmark), (-1, 2)).tolist():
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


def _bar_width(at: npt.NDArray[Any]) -> Any:
    """The distance that most neighbours have, so that bars touch where timestamps are regular."""
    if at.size == 1:
        return np.timedelta64(60, "s") if at.dtype.kind == "M" else 1.0
    values, counts = np.unique(np.diff(at), return_counts=True)
    return values[counts.argmax()]


_PAIRS_DRAWN = 12
"""Up to this many states the curve of every pair of rows is drawn beside the loss function."""
_LARGEST_ALPHA = 700.0
_MOST_STEPS = 1_000_000


@checked
def leakage_over_time(ax: Axes, leakage: Leakage) -> None:
    """Backward, forward and temporal leakage and the budgets, by time (Figure 3); thousands of times as bands.

    Parameters
    ----------
    ax
        Where to draw.
    leakage
        What `dphmm.leakage.account` returned.
    """
    times = np.arange(1, leakage.epsilons.size + 1)
    style: dict[str, Any] = {"markersize": 4, "markevery": max(1, times.size // 20)}
    draw_steps(ax, times, leakage.temporal, RED, "TPL", marker="o", **style)
    draw_steps(ax, times, leakage.backward, BLUE, "BPL", marker="^", **style)
    draw_steps(ax, times, leakage.forward, GREEN, "FPL", marker="v", **style)
    draw_steps(ax, times, leakage.epsilons, GREY, "ε", linestyle="--")
    _finish(ax, "time", "leakage")


@checked
def loss_pieces(ax: Axes, matrix: npt.ArrayLike, limit: float = 8.0) -> None:
    """The loss function in bold with its breakpoints, and the curve of every pair of rows (Figure 4).

    Parameters
    ----------
    ax
        Where to draw.
    matrix
        ``(n, n)`` transition matrix; the pairs' own curves are drawn up to 12 states.
    limit
        The largest α.
    """
    limit = check_budget(limit, "limit")
    if limit > _LARGEST_ALPHA:
        raise BudgetError(f"limit is {limit}; give a number up to {_LARGEST_ALPHA:g}")
    function = LossFunction(as_stochastic(matrix))
    alphas = np.linspace(limit / 400, limit, 400)
    dense = as_floats(matrix, "matrix", StochasticError)
    if len(dense) <= _PAIRS_DRAWN:
        for curve in _pair_curves(dense, alphas):
            ax.plot(alphas, curve, color=GREY, linewidth=0.8)
    ax.plot(alphas, function(alphas), color=BLUE, linewidth=2.5, label="L(α)")
    inside = function.starts[(function.starts > 0) & (function.starts <= limit)]
    if inside.size:
        ax.plot(inside, function(inside), "o", color=ORANGE, markersize=5, label="a new piece begins")
    _finish(ax, "α", "privacy loss")


@checked
def approach_to_supremum(ax: Axes, matrix: npt.ArrayLike, epsilon: float, steps: int) -> None:
    """Backward leakage over time under a constant budget, and its supremum where there is one (Figure 5).

    Parameters
    ----------
    ax
        Where to draw.
    matrix
        ``(n, n)`` backward matrix.
    epsilon
        Budget of each time.
    steps
        Number of times.
    """
    function = LossFunction(as_stochastic(matrix))
    epsilon = check_budget(epsilon)
    if not 1 <= steps <= _MOST_STEPS:
        raise InvalidInputError(f"steps is {steps}; give a number from 1 to {_MOST_STEPS}")
    times = np.arange(1, steps + 1)
    ax.plot(times, backward(function, np.full(steps, epsilon)), color=BLUE, label=f"BPL, ε = {epsilon:g}")
    bound = function.supremum(epsilon)
    if np.isfinite(bound.value):
        ax.axhline(bound.value, color=RED, linestyle="--", label=f"supremum {bound.value:.4g}")
    else:
        first, second = bound.rows
        ax.plot([], [], " ", label=f"no supremum (rows {first} and {second})")
    _finish(ax, "time", "leakage")


@checked
def budgets_over_time(
    ax: Axes, backward: npt.ArrayLike | None, forward: npt.ArrayLike | None, epsilons: npt.ArrayLike, alpha: float
) -> None:
    """Budgets as bars, the temporal leakage that they cause, and the level that they should keep (Figure 8).

    Of many times the budgets are a line, and of thousands a band.

    Parameters
    ----------
    ax
        Where to draw.
    backward, forward
        What the adversary knows.
    epsilons
        ``(T,)`` budgets.
    alpha
        The level.
    """
    leakage, alpha = account(backward, forward, epsilons), check_budget(alpha, "alpha")
    times = np.arange(1, leakage.epsilons.size + 1)
    if len(times) <= MOST_BARS:
        ax.bar(times, leakage.epsilons, color=BLUE, alpha=0.7, label="ε")
    else:
        draw_steps(ax, times, leakage.epsilons, BLUE, "ε", drawstyle="steps-mid")
    draw_steps(ax, times, leakage.temporal, RED, "TPL", marker="o" if len(times) <= MOST_BARS else "", markersize=3)
    ax.axhline(alpha, color=GREY, linestyle="--", label=f"α = {alpha:g}")
    _finish(ax, "time", "budget, leakage")


def _pair_curves(matrix: npt.NDArray[np.float64], alphas: npt.NDArray[np.float64]) -> list[npt.NDArray[np.float64]]:
    """The loss of every ordered pair of rows at every α: the states that attain it are those of the largest ratios."""
    e = np.expm1(alphas)[:, np.newaxis]
    curves = []
    for q, d in permutations(matrix, 2):
        order = np.argsort(-np.divide(q, d, out=np.full_like(q, np.inf), where=d > 0))
        q_sum, d_sum = np.cumsum(q[order]), np.cumsum(d[order])
        curves.append(np.log1p((q_sum - d_sum) * e / (1 + d_sum * e)).max(axis=1))
    return curves


def _finish(ax: Axes, x: str, y: str) -> None:
    figures.label_curves(ax, x, y)
    ax.set_ylim(bottom=0)
    if BANDS in ax.get_legend_handles_labels()[1]:  # bands leave no room
        figures.legend_above(ax, 2)
    else:
        ax.legend(fontsize="small")
