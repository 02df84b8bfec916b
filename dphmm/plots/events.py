"""What releases tell of an event, drawn over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.audit.event import EventAudit
from dphmm.plots.bands import draw_steps
from dphmm.plots.maps import BLUE, GREEN, GREY, ORANGE, RED, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW = 40
"""Up to so many releases each is a dot of its own."""

_STIR, _SHARE = 0.005, 0.7
"""Where the probability moves by more than the first in less than this share of the releases, the rest is not drawn."""


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
    start, end = np.interp([audit.event.first - 0.5, audit.event.last + 0.5], steps, np.arange(len(steps)))
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
            ax.plot(
                x[at], audit.probability[at], marker, color=BLUE, markeredgecolor="white", markersize=9, label=label
            )
    for line in (most_certainty, least_certainty):
        if line:
            ax.axhline(line, color=RED, linewidth=1, label="learned beyond this" if line == most_certainty else None)
    ax.set_ylim(-0.03, 1.03)
    settled = np.flatnonzero(np.abs(audit.probability - audit.probability[-1]) > _STIR)
    rest = max(int(np.ceil(end)), int(settled.max(initial=0)) + 1, 1)
    if rest < _SHARE * len(x):
        margin = (x[rest] - x[0]) / 20
        ax.set_xlim(x[0] - margin, x[rest] + margin)
    finish(ax, "step" if times is None else "time (UTC)", "probability of the event")
    if times is not None:
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(minticks=2, maxticks=6)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _between(x: Any, at: float) -> Any:
    """What lies at a fraction of the way between two entries."""
    low = int(at)
    high = min(low + 1, len(x) - 1)
    return x[low] + (x[high] - x[low]) * (at - low)
