"""Curves of temporal privacy leakage, in the manner of Figures 3, 4, 5, 7 and 8 of the TPL paper.

Every function draws into an ``ax`` of matplotlib and returns nothing; times are counted from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import as_floats, check_budget
from dphmm.errors import BudgetError, InvalidInputError, StochasticError
from dphmm.leakage import Leakage, LossFunction, account, backward, smooth
from dphmm.plots.bands import BANDS, draw_steps
from dphmm.plots.maps import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, finish
from dphmm.stochastic import as_stochastic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAIRS_DRAWN = 12
_LARGEST_ALPHA = 700.0
_MOST_STEPS = 1_000_000
_MOST_BARS = 120
"""Up to this many states the curve of every pair of rows is drawn beside the loss function."""


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
    if math.isfinite(bound.value):
        ax.axhline(bound.value, color=RED, linestyle="--", label=f"supremum {bound.value:.4g}")
    else:
        first, second = bound.rows
        ax.plot([], [], " ", label=f"no supremum (rows {first} and {second})")
    _finish(ax, "time", "leakage")


def degrees_of_correlation(ax: Axes, settings: Sequence[tuple[int, float]], epsilon: float, steps: int) -> None:
    """Backward leakage under identity matrices smoothed to different degrees (Figure 7).

    Parameters
    ----------
    ax
        Where to draw.
    settings
        Pairs of a number of states and an amount of smoothing (Equation 28).
    epsilon
        Budget of each time.
    steps
        Number of times.
    """
    times = np.arange(1, steps + 1)
    colours = [BLUE, ORANGE, GREEN, RED, PURPLE, "#56B4E9"]
    styles = dict(zip(dict.fromkeys(size for size, _ in settings), ("-", "--", ":", "-."), strict=False))
    for at, (size, amount) in enumerate(settings):
        leakage = backward(smooth(np.eye(size), amount), np.full(steps, epsilon))
        label = f"s = {amount:g}, n = {size}"
        ax.plot(times, leakage, color=colours[at % len(colours)], linestyle=styles.get(size, "-"), label=label)
    _finish(ax, "time", "backward privacy leakage")
    ax.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))  # clear of the curves


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
    if len(times) <= _MOST_BARS:
        ax.bar(times, leakage.epsilons, color=BLUE, alpha=0.7, label="ε")
    else:
        draw_steps(ax, times, leakage.epsilons, BLUE, "ε", drawstyle="steps-mid")
    few: dict[str, Any] = {"marker": "o", "markersize": 3} if len(times) <= _MOST_BARS else {}
    draw_steps(ax, times, leakage.temporal, RED, "TPL", **few)
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
    finish(ax, x, y)
    ax.set_ylim(bottom=0)
    above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2, "frameon": False}
    ax.legend(fontsize="small", **(above if BANDS in ax.get_legend_handles_labels()[1] else {}))  # bands leave no room
