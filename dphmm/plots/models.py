"""Pictures of a model, and of synthetic people beside real ones: where they are and stay, how far they go, and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.jobs.synthesis import Comparison
from dphmm.model.mobility_statistics import BUCKETS
from dphmm.model.model import MarkovModel
from dphmm.model.reversal import stationary
from dphmm.plots.figures import ORANGE, Axes, label_curves, label_map, new_panels, show_around
from dphmm.plots.maps import draw_cells, draw_space, extent
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

_MOST_ARROWS = 150


def draw_values(
    ax: Axes, space: StateSpace, values: FloatArray, colours: str, norm: Any = None, states: IntArray | None = None
) -> Any:
    """A number for each state as the colour of its cell or place.

    Parameters
    ----------
    ax
        Where to draw.
    space
        The states.
    values
        ``(N,)``.
    colours, norm
        As matplotlib has them.
    states
        The states to draw, ``(m,)``; left out, all of them.

    Returns
    -------
    matplotlib.collections.Collection
        What was drawn, for a bar that says which colour is which.
    """
    shown = np.arange(space.size) if states is None else states
    if isinstance(space, Grid):
        drawn = draw_cells(ax, space, shown, array=values[shown], cmap=colours, norm=norm, edgecolors="none")
    else:
        east, north = space.points[shown].T
        drawn = ax.scatter(east, north, c=values[shown], cmap=colours, norm=norm, s=18)
    show_around(ax, extent(space))
    return drawn


def _powers_of_ten(*values: FloatArray) -> Any:
    """One scale of colours for all values, by powers of ten, four of them at most."""
    from matplotlib.colors import LogNorm

    positive = np.concatenate([some[some > 0] for some in values])
    return LogNorm(max(float(positive.min()), float(positive.max()) / 1e4), float(positive.max()))


@checked
def draw_flows(ax: Axes, model: MarkovModel, occupancy: FloatArray) -> None:
    """The largest flows between states, as arrows as wide as the flow is large; ``occupancy`` is ``(N,)``.

    Parameters
    ----------
    ax
        Where to draw.
    model
        The model, of one transition matrix.
    occupancy
        ``(N,)`` the share of time in each state.
    """
    flows = model.moves_inside.tocoo()
    size = occupancy[flows.row] * flows.data * (flows.row != flows.col)
    largest = np.argsort(-size, kind="stable")[:_MOST_ARROWS]
    largest = largest[size[largest] > 0]
    draw_space(ax, model.space)
    if len(largest):
        start, end = model.space.points[flows.row[largest]], model.space.points[flows.col[largest]]
        width = size[largest] / size[largest[0]]
        # Both ways of one pair are told apart by a little way to the right of each.
        aside = (end - start)[:, ::-1] * [1, -1] * 0.08
        for one, other, share in zip(start + aside, end + aside, width, strict=True):
            style = {"arrowstyle": "-|>", "color": ORANGE, "lw": 0.4 + 2.2 * share, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", other, one, arrowprops={**style, "mutation_scale": 5 + 5 * share})
    show_around(ax, extent(model.space))


@checked
def model_figure(model: MarkovModel) -> Any:
    """A figure of a model that knows its states: where people are in the long run, where they stay, where they go.

    Parameters
    ----------
    model
        A model of one transition matrix that knows its states.

    Returns
    -------
    matplotlib.figure.Figure
        Three panels.
    """
    occupancy, space = stationary(model.moves_inside), model.space
    (west, south), (east, north) = extent(space)
    wide = (east - west) > 1.3 * (north - south)
    figure, axes = new_panels(8.0, 13.0, rows=3) if wide else new_panels(16.0, 6.0, columns=3)
    drawn = draw_values(axes[0], space, occupancy, "cividis", _powers_of_ten(occupancy))
    figure.colorbar(drawn, ax=axes[0], label="share of time in the long run", shrink=0.8)
    drawn = draw_values(axes[1], space, model.moves_inside.diagonal(), "cividis")
    figure.colorbar(drawn, ax=axes[1], label="probability of staying for a step", shrink=0.8)
    draw_flows(axes[2], model, occupancy)
    titles = "Where people are", "Where they stay", f"Where they go: the {_MOST_ARROWS} largest flows"
    for ax, title in zip(axes, titles, strict=True):
        label_map(ax)
        ax.set_title(title)
    return figure


_REAL, _DRAWN = "#44546a", "#c55a11"


def crowds_figure(found: Comparison) -> Any:
    """Two maps of visits, side by side on one scale, above the lengths, the radii of gyration and the hours.

    Parameters
    ----------
    found
        Synthetic people beside real ones, as `dphmm.jobs.compare_people` compares them.

    Returns
    -------
    matplotlib.figure.Figure
        As private as the real people are.
    """
    figure, _ = new_panels(11.0, 8.0, rows=0)
    figure.set_layout_engine("none")
    grid = figure.add_gridspec(2, 6, height_ratios=(1.7, 1.0), hspace=0.3, wspace=1.1, left=0.06, right=0.94)
    shares = [crowd.visits / crowd.visits.sum() for crowd in (found.real, found.drawn)]
    norm = _powers_of_ten(*shares)
    maps = [figure.add_subplot(grid[0, :3]), figure.add_subplot(grid[0, 3:])]
    titles = (f"real people ({found.people:,})", "people who do not exist, at the same times")
    for ax, share, title in zip(maps, shares, titles, strict=True):
        drawn = draw_values(ax, found.space, share, "viridis_r", norm, np.flatnonzero(share > 0))
        ax.set_aspect("equal")
        ax.tick_params(labelsize=7)
        ax.set_xlabel("km", fontsize=8)
        ax.set_title(title, fontsize=10)
    figure.colorbar(drawn, ax=maps, label="share of time", fraction=0.025, pad=0.02)
    panels = [figure.add_subplot(grid[1, 2 * k : 2 * k + 2]) for k in range(3)]
    _draw_spans(panels[0], found.real.lengths, found.drawn.lengths, "way of a stretch, km")
    _draw_spans(panels[1], found.real.radii, found.drawn.radii, "radius of gyration, km")
    _draw_hours(panels[2], found)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def _draw_spans(ax: Axes, real: FloatArray, drawn: FloatArray, label: str) -> None:
    """The shares of stretches by a length, in the buckets that the divergence counts; the last holds what is longer."""
    edges = np.linspace(0.0, max(float(real.max()), 1e-9), BUCKETS + 1)
    for values, colour, name in ((real, _REAL, "real"), (drawn, _DRAWN, "do not exist")):
        counts = np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values)
        ax.stairs(counts, edges, color=colour, lw=1.6, label=name)
    ax.set_yscale("symlog", linthresh=1e-3)
    ax.set_ylim(0, 1.3)
    label_curves(ax, label, "share of stretches")


def _draw_hours(ax: Axes, found: Comparison) -> None:
    """The share of steps that move, by class of time; nothing where there is no step."""
    for crowd, colour in ((found.real, _REAL), (found.drawn, _DRAWN)):
        moves, stays = crowd.hours[::2], crowd.hours[1::2]
        rates = np.divide(moves, moves + stays, out=np.full(len(moves), np.nan), where=moves + stays > 0)
        ax.stairs(rates, np.arange(len(rates) + 1), color=colour, lw=1.6)
    ax.set_ylim(bottom=0)
    label_curves(ax, "hour (class of time)", "share of steps that move")
