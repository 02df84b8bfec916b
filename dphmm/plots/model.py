"""Pictures of a model: where people are, where they stay, and where they go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.markov.chain import stationary
from dphmm.markov.model import MarkovModel
from dphmm.plots.maps import ORANGE, cells, draw_space, extent, label_axes, new_figure
from dphmm.space.grid import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ARROWS = 150


@checked
def draw_values(ax: Axes, model: MarkovModel, values: FloatArray, label: str, logarithmic: bool = False) -> None:
    """A number for each state, ``(N,)``, as the colour of its cell or place; with a bar that says which is which."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LogNorm

    space = model.space
    norm = None
    if logarithmic:
        top = float(values.max())
        norm = LogNorm(max(float(values[values > 0].min()), top / 1e4), top)
    if isinstance(space, Grid):
        shown: Any = PolyCollection(cells(space), array=values, cmap="cividis", norm=norm, edgecolors="none")
        ax.add_collection(shown)
    else:
        shown = ax.scatter(space.points[:, 0], space.points[:, 1], c=values, cmap="cividis", norm=norm, s=18)
    (west, south), (east, north) = extent(space)
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)
    ax.figure.colorbar(shown, ax=ax, label=label, shrink=0.8)
    label_axes(ax)


@checked
def draw_flows(ax: Axes, model: MarkovModel, occupancy: FloatArray) -> None:
    """The largest flows between states, as arrows as wide as the flow is large; ``occupancy`` is ``(N,)``."""
    flows = model.transition.tocoo()
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
    (west, south), (east, north) = extent(model.space)
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)
    label_axes(ax)


@checked
def model_figure(model: MarkovModel) -> Any:
    """A figure of a model that knows its states: where people are in the long run, where they stay, where they go."""
    occupancy = stationary(model.transition)
    (west, south), (east, north) = extent(model.space)
    wide = (east - west) > 1.3 * (north - south)
    figure, first = new_figure(*((8.0, 13.0) if wide else (16.0, 6.0)))
    first.remove()
    axes = figure.subplots(3, 1) if wide else figure.subplots(1, 3)
    draw_values(axes[0], model, occupancy, "share of time in the long run", logarithmic=True)
    axes[0].set_title("Where people are")
    draw_values(axes[1], model, model.transition.diagonal(), "probability of staying for a step")
    axes[1].set_title("Where they stay")
    draw_flows(axes[2], model, occupancy)
    axes[2].set_title(f"Where they go: the {_MOST_ARROWS} largest flows")
    return figure
