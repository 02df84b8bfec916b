"""Figures 3, 4, 5, 7 and 8 of the TPL paper.

Figure 7: identity matrices of 50 and 200 states, smoothed with s = .005 … 1, and budgets ε = 1 and .1 a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from dphmm.leakage import account, backward, constant_budget, exact_budgets, smooth
from dphmm.plots.curves import approach_to_supremum, budgets_over_time, leakage_over_time, loss_pieces
from dphmm.plots.figures import BLUE, GREEN, ORANGE, PURPLE, RED, label_curves
from scripts.drawings.sheet import panels, save

DATA: tuple[str, ...] = ()
RUNS = 1
ABSORBING = [[0.8, 0.2], [0.0, 1.0]]
PAST, FUTURE = [[0.8, 0.2], [0.2, 0.8]], [[0.8, 0.2], [0.1, 0.9]]
THREE = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]]


def draw(options: argparse.Namespace) -> None:
    for name, drawn in plates([5, 10] if options.small else [50, 200]).items():
        figure, axes = panels(len(drawn), 4.5)
        for ax, (title, paint) in zip(axes, drawn, strict=True):
            paint(ax)
            ax.set_title(title, fontsize="medium")
        save(figure, options.folder / f"{name}.png")


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
    label_curves(ax, "time", "backward privacy leakage")
    ax.set_ylim(bottom=0)
    ax.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))  # clear of the curves


def plates(sizes: list[int]) -> dict[str, list[tuple[str, Callable[[Axes], None]]]]:
    """Name → title and painter of every panel."""
    exact = exact_budgets(PAST, FUTURE, 1.0, 30)
    constant = np.full(30, constant_budget(PAST, FUTURE, 1.0))
    smoothed = [(size, s) for size in sizes for s in (0.005, 0.05, 1.0)]
    return {
        "figure_3": [
            (title, lambda ax, m=matrix: leakage_over_time(ax, account(m, m, [0.1] * 10)))
            for title, matrix in (("identity", np.eye(2)), ("moderate", ABSORBING), ("no knowledge", None))
        ],
        "figure_4": [("rows .1 .2 .7, .3 .3 .4, .5 .3 .2", lambda ax: loss_pieces(ax, THREE, 6.0))],
        "figure_5": [
            (title, lambda ax, m=matrix, e=epsilon: approach_to_supremum(ax, m, e, 100))
            for title, matrix, epsilon in (
                ("(a) identity", np.eye(2), 0.23),
                ("(b) .8 .2, 0 1", ABSORBING, 0.23),
                ("(c) .8 .2, 0 1", ABSORBING, 0.15),
                ("(d) .8 .2, .1 .9", FUTURE, 0.23),
            )
        ],
        "figure_7": [
            (f"ε = {epsilon:g}", lambda ax, e=epsilon, t=steps: degrees_of_correlation(ax, smoothed, e, t))
            for epsilon, steps in ((1.0, 15), (0.1, 150))
        ],
        "figure_8": [
            ("constant budget (Algorithm 7)", lambda ax: budgets_over_time(ax, PAST, FUTURE, constant, 1.0)),
            ("exact budgets (Algorithm 8)", lambda ax: budgets_over_time(ax, PAST, FUTURE, exact, 1.0)),
        ],
    }
