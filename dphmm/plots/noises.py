"""Kinds of noise beside each other: the errors of an evaluation's comparison as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.evaluation.noises import NoiseRow
from dphmm.plots import maps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BARS = (("released", "as released", "#bbbbbb"), ("estimate", "posterior mean", maps.BLUE))
_MARK = ("hindsight", "adversary, in hindsight", maps.RED)


def noise_figure(rows: Sequence[NoiseRow], title: str = "") -> Any:
    """A matplotlib figure of rows of one policy: a panel at equal budgets, and one at equal promises.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    panels = [equal for equal in ("edge", "any two") if any(row.equal == equal and row.releases for row in rows)]
    figure, first = maps.new_figure(5.5 * max(1, len(panels)), 4.5)
    first.remove()
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False)[0]
    for ax, equal in zip(axes, panels, strict=False):
        draw_noises(ax, [row for row in rows if row.equal == equal and row.releases])
        said = "equal budget on every edge" if equal == "edge" else "equal promise for any two states"
        ax.set_title(f"{title}\n{said}" if title else said, fontsize=9)
    return figure


def draw_noises(ax: Axes, rows: Sequence[NoiseRow]) -> None:
    """Draw errors of some kinds of noise, from above down: bars for people who read them, marks for the adversary."""
    places = np.arange(len(rows))
    for number, (name, label, colour) in enumerate(_BARS):
        values = [getattr(row, name) for row in rows]
        ax.barh(places + (number - 0.5) * 0.36, values, 0.34, color=colour, label=label)
    name, label, colour = _MARK
    ax.plot([getattr(row, name) for row in rows], places, "d", color=colour, label=label)
    ax.set_yticks(places, [f"{row.noise}\nε = {row.epsilon:.3g}" for row in rows], fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("error, root mean square (km)")
    ax.legend(fontsize=7)
