"""What a budget buys and gives away: errors in metres by epsilon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dphmm.errors import InvalidInputError
from dphmm.plots.maps import BLUE, GREEN, GREY, ORANGE, RED, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.jobs.calibrated import Calibrated

_DRAWN = {
    "estimate": ("estimate", GREEN),
    "online": ("adversary, at once", ORANGE),
    "hindsight": ("adversary, in hindsight", RED),
}


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
    ax.plot(epsilons, [1000 * one.released_error for one in everyone], "s-", color=BLUE, ms=4, label="release (RMS)")
    for name, (label, color) in _DRAWN.items():
        figures = [one.simulation.figure(name) for one in everyone if one.simulation is not None]
        if figures:
            means, margins = (1000 * np.array([getattr(one, part) for one in figures]) for part in ("mean", "margin"))
            ax.plot(epsilons, means, "o-", color=color, ms=4, label=label)
            ax.fill_between(epsilons, np.maximum(means - margins, 1e-3), means + margins, color=color, alpha=0.2, lw=0)
    drawn = [line.get_ydata() for line in ax.lines]
    ax.set_ylim(bottom=float(np.min(np.concatenate(drawn))) / 3)  # an interval may reach down to nothing
    ax.axhline(1000 * found.uninformed, color=GREY, ls="--", lw=1, label="adversary, no release")
    ax.axvline(found.achieved.epsilon, color=GREY, lw=1, label=f"ε = {found.achieved.epsilon:g}")
    ax.set_xscale("log")
    ax.set_yscale("log")
    finish(ax, "ε of a release", "error (m)")
    ax.legend(fontsize="small")
