"""Plots of temporal leakage after Figures 3, 4, 5 and 8 of the TPL paper."""

from __future__ import annotations

from itertools import permutations
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import as_floats
from dphmm.errors import BudgetError, StochasticError
from dphmm.leakage import Leakage, LossFunction, backward_leakage, compute_leakage
from dphmm.plots import canvas
from dphmm.plots.canvas import BANDS_BELOW_MAXIMA, BLUE, GREEN, GREY, MAX_BARS, ORANGE, RED, Axes, draw_steps
from dphmm.stochastic_matrix import as_stochastic
from dphmm.tolerances import MIN_SCALE
from dphmm.validation import Integers, Interval, NoiseEpsilon, check_arguments

# Up to this number of states, the curve of every pair of rows is plotted alongside the loss function.
_MAX_PAIR_STATES = 12


_LARGEST_ALPHA = 700.0


_MAX_STEPS = 1_000_000


@check_arguments
def draw_leakage(ax: Axes, leakage: Leakage) -> None:
    """Plot backward, forward and temporal leakage and the budgets by time (Figure 3).

    Many times are plotted as bands with their maxima as lines, and a few budgets among many times as needles.

    Parameters
    ----------
    ax
        Axes to draw on.
    leakage
        Result of `dphmm.leakage.compute_leakage`.
    """
    times = np.arange(1, leakage.epsilons.size + 1)
    style: dict[str, Any] = {"markersize": 4, "markevery": max(1, times.size // 20)}
    draw_steps(ax, times, leakage.temporal, RED, "TPL", is_bound=True, marker="o", **style)
    draw_steps(ax, times, leakage.backward, BLUE, "BPL", is_bound=True, marker="^", **style)
    draw_steps(ax, times, leakage.forward, GREEN, "FPL", is_bound=True, marker="v", **style)
    spent = np.flatnonzero(leakage.epsilons)
    if 0 < len(spent) <= min(MAX_BARS, times.size / 2):  # a line would lie on 0 almost everywhere
        ax.vlines(times[spent], 0, leakage.epsilons[spent], color=GREY, linewidth=0.9, zorder=3)
        ax.plot(times[spent], leakage.epsilons[spent], "o", color=GREY, ms=4, mew=0, zorder=3, label="ε")
    else:
        # A line through one point is invisible. The markers of the leakage at this point are smaller.
        marker = {"marker": "_", "markersize": 16} if times.size == 1 else {}
        draw_steps(ax, times, leakage.epsilons, GREY, "ε", is_bound=True, linestyle="--", **marker)
    _finish_axes(ax, "time", "leakage")
    _set_integer_ticks(ax, len(times))


@check_arguments
def draw_loss_function(
    ax: Axes,
    matrix: npt.ArrayLike,
    limit: Annotated[float, Interval(MIN_SCALE, _LARGEST_ALPHA, error=BudgetError)] = 8.0,
) -> None:
    """Plot the loss function, its breakpoints and the curves of pairs of rows (Figure 4).

    Parameters
    ----------
    ax
        Axes to draw on.
    matrix
        ``(n, n)`` transition matrix; the curves of pairs are plotted for at most 12 states.
    limit
        The largest α.
    """
    limit = float(limit)
    function = LossFunction(as_stochastic(matrix))
    alphas = np.linspace(limit / 400, limit, 400)
    dense = as_floats(matrix, "matrix", StochasticError)
    if len(dense) <= _MAX_PAIR_STATES:
        for curve in _compute_pair_curves(dense, alphas):
            ax.plot(alphas, curve, color=GREY, linewidth=0.8)
    ax.plot(alphas, function(alphas), color=BLUE, linewidth=2.5, label="L(α)")
    inside = function.starts[(function.starts > 0) & (function.starts <= limit)]
    if inside.size:
        ax.plot(inside, function(inside), "o", color=ORANGE, markersize=5, label="start of a piece")
    _finish_axes(ax, "α", "privacy loss")


@check_arguments
def draw_supremum(
    ax: Axes, matrix: npt.ArrayLike, epsilon: NoiseEpsilon, steps: Annotated[int, Integers(1, _MAX_STEPS)]
) -> None:
    """Plot backward leakage under a constant budget and its supremum, if finite (Figure 5).

    Parameters
    ----------
    ax
        Axes to draw on.
    matrix
        ``(n, n)`` backward matrix.
    epsilon
        Budget of each time.
    steps
        Number of times.
    """
    function = LossFunction(as_stochastic(matrix))
    epsilon = float(epsilon)
    times = np.arange(1, steps + 1)
    ax.plot(times, backward_leakage(function, np.full(steps, epsilon)), color=BLUE, label=f"BPL, ε = {epsilon:g}")
    bound = function.supremum(epsilon)
    if np.isfinite(bound.value):
        ax.axhline(bound.value, color=RED, linestyle="--", label=f"supremum {bound.value:.4g}")
    else:
        first, second = bound.rows
        ax.plot([], [], " ", label=f"no supremum (rows {first} and {second})")
    _finish_axes(ax, "time", "leakage")
    _set_integer_ticks(ax, steps)


@check_arguments
def draw_leakage_budgets(
    ax: Axes,
    backward: npt.ArrayLike | None,
    forward: npt.ArrayLike | None,
    epsilons: npt.ArrayLike,
    alpha: NoiseEpsilon,
) -> None:
    """Plot budgets, the temporal leakage that they cause and the bound on it (Figure 8).

    Budgets are plotted as bars, and as a line for many times. Bands of still more times have their maxima as lines.

    Parameters
    ----------
    ax
        Axes to draw on.
    backward, forward
        Matrices that the adversary knows.
    epsilons
        ``(T,)`` budgets.
    alpha
        Bound on the leakage.
    """
    leakage = compute_leakage(backward, forward, epsilons)
    alpha = float(alpha)
    times = np.arange(1, leakage.epsilons.size + 1)
    if len(times) <= MAX_BARS:
        ax.bar(times, leakage.epsilons, color=BLUE, alpha=0.7, label="ε")
    else:
        draw_steps(ax, times, leakage.epsilons, BLUE, "ε", is_bound=True, drawstyle="steps-mid")
    marker = "o" if len(times) <= MAX_BARS else ""
    draw_steps(ax, times, leakage.temporal, RED, "TPL", is_bound=True, marker=marker, markersize=3)
    ax.axhline(alpha, color=GREY, linestyle="--", label=f"α = {alpha:g}")
    _finish_axes(ax, "time", "budget, leakage")
    _set_integer_ticks(ax, len(times))


def _compute_pair_curves(
    matrix: npt.NDArray[np.float64], alphas: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    """Compute the loss of every ordered pair of rows at every α.

    The maximising states are those with the largest ratios.
    """
    e = np.expm1(alphas)[:, np.newaxis]
    curves = []
    for q, d in permutations(matrix, 2):
        order = np.argsort(-np.divide(q, d, out=np.full_like(q, np.inf), where=d > 0))
        q_sum = np.cumsum(q[order])
        d_sum = np.cumsum(d[order])
        curves.append(np.log1p((q_sum - d_sum) * e / (1 + d_sum * e)).max(axis=1))
    return curves


def _set_integer_ticks(ax: Axes, num_times: int) -> None:
    """Set the ticks of times, which are numbered from 1."""
    from matplotlib.ticker import MaxNLocator

    if num_times == 1:  # the locator needs two integers within the axis
        ax.set_xticks([1])
    else:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _finish_axes(ax: Axes, x: str, y: str) -> None:
    canvas.label_curves(ax, x, y)
    ax.set_ylim(bottom=0)
    if BANDS_BELOW_MAXIMA in ax.get_legend_handles_labels()[1]:  # bands leave no space for the legend inside
        canvas.place_legend_above(ax, 2 if canvas.get_width_inches(ax) >= canvas.TWO_COLUMN_INCHES else 1)
    else:
        ax.legend(fontsize="small")
