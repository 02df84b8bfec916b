"""Redraws figures of the TPL paper, among them the setting of Figure 7, into a folder.

Usage: python scripts/figure_leakage.py FOLDER

Figure 7: identity matrices of 50 and 200 states, smoothed with s = .005 … 1, and budgets ε = 1 and .1 a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dphmm.leakage import account, constant_budget, exact_budgets
from dphmm.plots.leakage import (
    approach_to_supremum,
    budgets_over_time,
    degrees_of_correlation,
    leakage_over_time,
    loss_pieces,
)

ABSORBING = [[0.8, 0.2], [0.0, 1.0]]
PAST, FUTURE = [[0.8, 0.2], [0.2, 0.8]], [[0.8, 0.2], [0.1, 0.9]]
THREE = [[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.5, 0.3, 0.2]]
SETTINGS = [(50, 0.005), (50, 0.05), (50, 1.0), (200, 0.005), (200, 0.05), (200, 1.0)]

Panel = tuple[str, Callable[[Axes], None]]


def panels() -> dict[str, list[Panel]]:
    exact = exact_budgets(PAST, FUTURE, 1.0, 30)
    constant = np.full(30, constant_budget(PAST, FUTURE, 1.0))
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
            ("ε = 1", lambda ax: degrees_of_correlation(ax, SETTINGS, 1.0, 15)),
            ("ε = 0.1", lambda ax: degrees_of_correlation(ax, SETTINGS, 0.1, 150)),
        ],
        "figure_8": [
            ("constant budget (Algorithm 7)", lambda ax: budgets_over_time(ax, PAST, FUTURE, constant, 1.0)),
            ("exact budgets (Algorithm 8)", lambda ax: budgets_over_time(ax, PAST, FUTURE, exact, 1.0)),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the PNG files go; made if it is not there")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, drawn in panels().items():
        figure = Figure(figsize=(4.4 * len(drawn) + 0.6, 3.8), dpi=130, layout="constrained")
        for ax, (title, paint) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
            paint(ax)
            ax.set_title(title, fontsize="medium")
        figure.savefig(folder / f"{name}.png")
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main()
