"""People who do not exist beside people who do: where they are, how far they go, when they move."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.jobs.synthesis import Comparison
from dphmm.markov.likeness import BUCKETS
from dphmm.plots.maps import cells, extent, finish, new_figure, save
from dphmm.space.grid import Grid
from dphmm.tables import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_REAL, _DRAWN = "#44546a", "#c55a11"


def crowds_figure(found: Comparison) -> Any:
    """Two maps of visits, side by side on one scale, above the lengths, the radii of gyration and the hours."""
    figure, first = new_figure(11.0, 8.0)
    first.remove()
    figure.set_layout_engine("none")
    grid = figure.add_gridspec(2, 6, height_ratios=(1.7, 1.0), hspace=0.3, wspace=1.1, left=0.06, right=0.94)
    shares = [crowd.visits / crowd.visits.sum() for crowd in (found.real, found.drawn)]
    top = max(float(share.max()) for share in shares)
    maps = [figure.add_subplot(grid[0, :3]), figure.add_subplot(grid[0, 3:])]
    titles = (f"real people ({found.people:,})", "people who do not exist, at the same times")
    drawn = None
    for ax, share, title in zip(maps, shares, titles, strict=True):
        drawn = draw_visits(ax, found, share, top)
        ax.set_title(title, fontsize=10)
    figure.colorbar(drawn, ax=maps, label="share of time", fraction=0.025, pad=0.02)
    panels = [figure.add_subplot(grid[1, 2 * k : 2 * k + 2]) for k in range(3)]
    draw_spans(panels[0], found.real.lengths, found.drawn.lengths, "way of a stretch, km")
    draw_spans(panels[1], found.real.radii, found.drawn.radii, "radius of gyration, km")
    draw_hours(panels[2], found)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def draw_visits(ax: Axes, found: Comparison, share: FloatArray, top: float) -> Any:
    """The share of time in each state, colours by powers of ten; what was never visited is left blank."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LogNorm

    space, visited = found.space, np.flatnonzero(share > 0)
    norm = LogNorm(vmin=max(top * 1e-4, 1e-12), vmax=top)
    if isinstance(space, Grid):
        corners = cells(space)
        drawn: Any = PolyCollection([corners[k] for k in visited], cmap="viridis_r", norm=norm, linewidths=0.0)
        drawn.set_array(share[visited])
        ax.add_collection(drawn)
    else:
        east, north = space.points[visited].T
        drawn = ax.scatter(east, north, c=share[visited], cmap="viridis_r", norm=norm, s=30)
    low, high = extent(space)
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_aspect("equal")
    ax.tick_params(labelsize=7)
    ax.set_xlabel("km", fontsize=8)
    return drawn


def draw_spans(ax: Axes, real: FloatArray, drawn: FloatArray, label: str) -> None:
    """The shares of stretches by a length, in the buckets that the divergence counts; the last holds what is longer."""
    edges = np.linspace(0.0, max(float(real.max()), 1e-9), BUCKETS + 1)
    for values, colour, name in ((real, _REAL, "real"), (drawn, _DRAWN, "do not exist")):
        counts = np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values)
        ax.stairs(counts, edges, color=colour, lw=1.6, label=name)
    ax.set_yscale("symlog", linthresh=1e-3)
    ax.set_ylim(0, 1.3)
    finish(ax, label, "share of stretches")


def draw_hours(ax: Axes, found: Comparison) -> None:
    """The share of steps that move, by class of time; nothing where there is no step."""
    for crowd, colour in ((found.real, _REAL), (found.drawn, _DRAWN)):
        moves, stays = crowd.hours[::2], crowd.hours[1::2]
        rates = np.divide(moves, moves + stays, out=np.full(len(moves), np.nan), where=moves + stays > 0)
        ax.stairs(rates, np.arange(len(rates) + 1), color=colour, lw=1.6)
    ax.set_ylim(bottom=0)
    finish(ax, "hour (class of time)", "share of steps that move")


def save_figure(figure: Any, path: Path, overwrite: bool = False) -> None:
    """Write the figure, readable for the owner alone, whole or not at all."""
    with new_file(path, overwrite, private=True) as part:
        save(figure, part, dpi=150, bbox_inches="tight")
