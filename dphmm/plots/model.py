"""Figures of a model, and of synthetic users compared with real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.jobs.model.synthesis import Comparison
from dphmm.model.mobility_statistics import BUCKETS
from dphmm.model.model import MarkovModel
from dphmm.model.stationary_distribution import compute_stationary_distribution
from dphmm.plots.canvas import ORANGE, Axes, create_panels, label_curves, label_map, set_limits
from dphmm.plots.maps import draw_cells, draw_scale, draw_segments, draw_space, extent
from dphmm.plots.release import draw_ground
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.space.streets import Streets
from dphmm.validation import check_arguments

_MAX_ARROWS = 150

# Cells are slightly transparent, so that coasts and names of the ground are visible through them.
_CELL_ALPHA = 0.8

# The ground that is shown around a region, as a share of its longer side.
_GROUND_SHARE = 0.06


def draw_values(
    ax: Axes, space: StateSpace, values: FloatArray, colours: str, norm: Any = None, states: IntArray | None = None
) -> Any:
    """Plot a number for each state as the colour of its cell, segment or place.

    Parameters
    ----------
    ax
        The axes.
    space
        The states.
    values
        ``(N,)``: the numbers.
    colours, norm
        A colormap and a norm of matplotlib.
    states
        The states to plot, ``(m,)``. Defaults to all.

    Returns
    -------
    matplotlib.collections.Collection
        The plotted collection, for a colour bar.
    """
    shown = np.arange(space.size) if states is None else states
    if isinstance(space, Grid):
        style = {"cmap": colours, "norm": norm, "edgecolors": "none", "alpha": _CELL_ALPHA}
        collection = draw_cells(ax, space, shown, array=values[shown], **style)
    elif isinstance(space, Streets):
        collection = draw_segments(ax, space, shown, array=values[shown], cmap=colours, norm=norm, linewidths=1.5)
    else:
        east, north = space.points[shown].T
        collection = ax.scatter(east, north, c=values[shown], cmap=colours, norm=norm, s=18)
    _show_region(ax, space)
    return collection


def _show_region(ax: Axes, space: StateSpace) -> None:
    """Set the limits of the axes to the region and the ground around it."""
    region = extent(space)
    set_limits(ax, region, _GROUND_SHARE * float((region[1] - region[0]).max()))


def _build_log_scale(*values: FloatArray) -> Any:
    """Return a logarithmic colour scale for all values, over at most four powers of ten."""
    from matplotlib.colors import LogNorm

    positive = np.concatenate([array[array > 0] for array in values])
    return LogNorm(max(float(positive.min()), float(positive.max()) / 1e4), float(positive.max()))


@check_arguments
def draw_flows(ax: Axes, model: MarkovModel, occupancy: FloatArray) -> None:
    """Plot the largest flows between states as arrows with proportional width.

    Parameters
    ----------
    ax
        The axes.
    model
        A model with one transition matrix.
    occupancy
        ``(N,)``: the share of time in each state.
    """
    flows = model.inside_transition.tocoo()
    size = occupancy[flows.row] * flows.data * (flows.row != flows.col)
    largest = np.argsort(-size, kind="stable")[:_MAX_ARROWS]
    largest = largest[size[largest] > 0]
    draw_space(ax, model.space)
    if len(largest):
        start = model.space.points[flows.row[largest]]
        end = model.space.points[flows.col[largest]]
        width = size[largest] / size[largest[0]]
        # Each arrow is shifted to its right, so that the two directions of a pair do not overlap.
        aside = (end - start)[:, ::-1] * [1, -1] * 0.08
        for source, target, share in zip(start + aside, end + aside, width, strict=True):
            style = {"arrowstyle": "-|>", "color": ORANGE, "lw": 0.4 + 2.2 * share, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", target, source, arrowprops={**style, "mutation_scale": 5 + 5 * share})
    _show_region(ax, model.space)


@check_arguments
def draw_model_figure(model: MarkovModel, basemap: str | Path | None = None) -> Any:
    """Plot the stationary distribution, stay probabilities and largest flows of a model.

    Parameters
    ----------
    model
        A model with one transition matrix and state locations.
    basemap
        A file for the ground below the cells, see `dphmm.plots.read_basemap`. Defaults to the package's coarse map of
        the world.

    Returns
    -------
    matplotlib.figure.Figure
        Three panels.
    """
    from matplotlib.colors import Normalize

    occupancy = compute_stationary_distribution(model.inside_transition)
    space = model.space
    (west, south), (east, north) = extent(space)
    wide = (east - west) > 1.3 * (north - south)
    figure, axes = create_panels(8.0, 13.0, rows=3) if wide else create_panels(16.0, 6.0, columns=3)
    collection = draw_values(axes[0], space, occupancy, "cividis", _build_log_scale(occupancy))
    figure.colorbar(collection, ax=axes[0], label="stationary probability", shrink=0.8)
    # Equal probabilities would otherwise get a colour bar of invented values around them, also above 1.
    collection = draw_values(axes[1], space, model.inside_transition.diagonal(), "cividis", Normalize(0, 1))
    figure.colorbar(collection, ax=axes[1], label="probability of staying in a step", shrink=0.8)
    draw_flows(axes[2], model, occupancy)
    titles = "Stationary distribution", "Stays", f"The {_MAX_ARROWS} largest flows"
    for ax, title in zip(axes, titles, strict=True):
        draw_ground(ax, space.projection, basemap, space)
        draw_scale(ax)
        label_map(ax)
        ax.set_title(title)
    return figure


_REAL_COLOUR = "#44546a"
_SYNTHETIC_COLOUR = "#c55a11"


def draw_crowds_figure(comparison: Comparison) -> Any:
    """Plot visits, path lengths, radii of gyration and hours of real and synthetic users.

    Parameters
    ----------
    comparison
        A result of `dphmm.jobs.compare_users`.

    Returns
    -------
    matplotlib.figure.Figure
        The figure. As private as the real users' data.
    """
    figure, _ = create_panels(11.0, 8.0, rows=0)
    figure.set_layout_engine("none")
    grid = figure.add_gridspec(2, 6, height_ratios=(1.7, 1.0), hspace=0.3, wspace=1.1, left=0.06, right=0.94)
    shares = [crowd.visits / crowd.visits.sum() for crowd in (comparison.real, comparison.drawn)]
    norm = _build_log_scale(*shares)
    maps = [figure.add_subplot(grid[0, :3]), figure.add_subplot(grid[0, 3:])]
    titles = (f"real users ({comparison.num_users:,})", "synthetic users, same timesteps")
    for ax, share, title in zip(maps, shares, titles, strict=True):
        collection = draw_values(ax, comparison.space, share, "viridis_r", norm, np.flatnonzero(share > 0))
        draw_ground(ax, comparison.space.projection, None, comparison.space)
        draw_scale(ax)
        ax.set_aspect("equal")
        ax.tick_params(labelsize=7)
        ax.set_xlabel("km", fontsize=8)
        ax.set_title(title, fontsize=10)
    figure.colorbar(collection, ax=maps, label="share of time", fraction=0.025, pad=0.02)
    panels = [figure.add_subplot(grid[1, 2 * k : 2 * k + 2]) for k in range(3)]
    _draw_spans(panels[0], comparison.real.lengths, comparison.drawn.lengths, "length of a path, km")
    _draw_spans(panels[1], comparison.real.radii, comparison.drawn.radii, "radius of gyration, km")
    _draw_hours(panels[2], comparison)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def _draw_spans(ax: Axes, real: FloatArray, drawn: FloatArray, label: str) -> None:
    """Plot the shares of paths by length, in the buckets of the divergence."""
    edges = np.linspace(0.0, max(float(real.max()), 1e-9), BUCKETS + 1)
    for values, colour, name in ((real, _REAL_COLOUR, "real"), (drawn, _SYNTHETIC_COLOUR, "synthetic")):
        counts = np.histogram(np.minimum(values, edges[-1]), edges)[0] / len(values)
        ax.stairs(counts, edges, color=colour, lw=1.6, label=name)
    ax.set_yscale("symlog", linthresh=1e-3)
    ax.set_ylim(0, 1.3)
    label_curves(ax, label, "share of paths")


def _draw_hours(ax: Axes, comparison: Comparison) -> None:
    """Plot the share of steps that are moves, for each class of time with a step."""
    for crowd, colour in ((comparison.real, _REAL_COLOUR), (comparison.drawn, _SYNTHETIC_COLOUR)):
        moves = crowd.hours[::2]
        stays = crowd.hours[1::2]
        rates = np.divide(moves, moves + stays, out=np.full(len(moves), np.nan), where=moves + stays > 0)
        # Without a baseline, a class without steps is a gap: lines down to zero would mean that all users stayed.
        ax.stairs(rates, np.arange(len(rates) + 1), baseline=None, color=colour, lw=1.6)
    ax.set_ylim(bottom=0)
    label_curves(ax, "hour (class of time)", "share of steps that move")
