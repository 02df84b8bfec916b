"""People's places over time: releases, estimates and true tracks, few as dots and lines, many as hexagons.

Points are ``(n, 2)``: kilometres east and north in a local plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.plots.maps import ESTIMATE, EXPOSED, RELEASED, TRUE, columns, halo

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CIRCLES = 12
"""At so many moments at most a picture says how far an estimate is expected to be off."""

MOST_DOTS = 1_500
"""More points than this are drawn as hexagons by how many they hold: dots would be an opaque field."""

_NARROW = 6.0
"""In a figure of fewer inches the bar of colours of time lies above the map."""

MOST_MARKS = 200
"""Of more true places than this not each has a mark of its own."""

HEXAGONS = 70
"""So many hexagons go along the longer side of a map."""


@checked
def draw_track(ax: Axes, points: npt.ArrayLike, label: str = "true places (private)") -> None:
    """True places in the order of time, as a thin line above everything else, with small dots where they are few."""
    x, y = columns(points)
    few: dict[str, Any] = {"marker": ".", "markersize": 2.5} if len(x) <= MOST_MARKS else {}
    ax.plot(x, y, "-", color=TRUE, label=label, lw=0.7, zorder=6, path_effects=halo(1.6), **few)


@checked
def draw_releases(ax: Axes, points: npt.ArrayLike, label: str = "released") -> None:
    """Released places, as faint dots; more than `MOST_DOTS` of them as hexagons, see `draw_density`."""
    if len(columns(points)[0]) > MOST_DOTS:
        draw_density(ax, points, RELEASED, label, strength=0.5, zorder=3)
        return
    ax.plot(*columns(points), "o", color=RELEASED, markersize=3.5, alpha=0.3, mew=0, zorder=3, label=label)


@checked
def draw_estimates(
    ax: Axes,
    points: npt.ArrayLike,
    label: str = "estimate (posterior mean)",
    radii: npt.ArrayLike | None = None,
    times: npt.ArrayLike | None = None,
    trips: npt.ArrayLike | None = None,
) -> None:
    """Posterior means, as small squares, or coloured by time and joined by a line for each trip.

    More than `MOST_DOTS` of them are hexagons by how many they hold, see `draw_density`.

    Parameters
    ----------
    points
        ``(n, 2)``.
    radii
        ``(n,)`` how far they are expected to be off, drawn as circles; of many moments some have one, every so often,
        and the last one has.
    times
        ``(n,)`` moments as ``datetime64``; needs `trips`.
    trips
        ``(n,)`` numbers, the same for the moments of a trip, whose moments stand together in the order of time.
    """
    x, y = columns(points)
    if len(x) > MOST_DOTS:
        draw_density(ax, points, ESTIMATE, label, zorder=4)
        return
    if radii is not None and np.size(radii):
        _circles(ax, np.column_stack([x, y]), np.asarray(radii, dtype=np.float64))
    if times is None or trips is None or len(x) < 2:
        ax.plot(x, y, "s", color=ESTIMATE, markersize=3.5, alpha=0.8, mew=0, zorder=4, label=label)
        return
    _by_time(ax, np.column_stack([x, y]), np.asarray(times), np.asarray(trips), label)


def _circles(ax: Axes, places: FloatArray, radii: FloatArray) -> None:
    from matplotlib.collections import EllipseCollection

    some = np.unique(np.linspace(0, len(radii) - 1, MOST_CIRCLES).astype(np.int64))
    across = 2.0 * radii[some]
    style: dict[str, Any] = {"facecolors": "none", "edgecolors": ESTIMATE, "linewidths": 0.6, "alpha": 0.3}
    where: dict[str, Any] = {"offsets": places[some], "offset_transform": ax.transData, "units": "xy", "zorder": 3}
    ax.add_collection(EllipseCollection(across, across, np.zeros(len(some)), **where, **style))
    last = {**where, "offsets": places[-1:], "zorder": 3.5}
    fill: dict[str, Any] = {"facecolors": (*_rgb(ESTIMATE), 0.12), "edgecolors": ESTIMATE, "linewidths": 1.2}
    ax.add_collection(EllipseCollection(across[-1:], across[-1:], np.zeros(1), **last, **fill))
    ax.plot([], [], "-", color=ESTIMATE, lw=0.9, alpha=0.6, label="expected distance from it")


def _by_time(ax: Axes, places: FloatArray, times: npt.NDArray[Any], trips: npt.NDArray[Any], label: str) -> None:
    """Lines of trips and a dot for each moment, coloured by time, with a bar that says which is which."""
    from matplotlib.collections import LineCollection
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    when = np.asarray(date2num(times), dtype=np.float64)  # type: ignore[no-untyped-call]
    span = (float(when.min()), max(float(when.max()), float(when.min()) + 1e-9))
    joined = np.flatnonzero(trips[1:] == trips[:-1])
    pairs = np.stack([places[joined], places[joined + 1]], axis=1)
    colours = time_colours()
    lines = LineCollection(list(pairs), cmap=colours, array=when[joined + 1], linewidths=1.1, alpha=0.7, zorder=4)
    lines.set_clim(*span)
    ax.add_collection(lines)
    style: dict[str, Any] = {"s": 12, "linewidths": 0, "zorder": 5, "vmin": span[0], "vmax": span[1]}
    drawn = ax.scatter(places[:, 0], places[:, 1], c=when, cmap=colours, **style)
    ax.plot([], [], "-o", color=colours(0.5), lw=1.1, markersize=3.5, label=f"{label}, by time")
    locator = AutoDateLocator(minticks=2, maxticks=6)  # type: ignore[no-untyped-call]
    narrow = float(ax.figure.bbox.width) / float(ax.figure.dpi) < _NARROW
    where: dict[str, Any] = (
        {"location": "top", "shrink": 0.9, "aspect": 45} if narrow else {"shrink": 0.6, "aspect": 28}
    )
    bar = ax.figure.colorbar(drawn, ax=ax, pad=0.015, ticks=locator, **where)
    axis = bar.ax.xaxis if narrow else bar.ax.yaxis
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axis.get_offset_text().set_fontsize(7)
    bar.set_label("time (UTC)", fontsize=8)
    bar.ax.tick_params(labelsize=7)


def time_colours() -> Any:
    """The colours of time: viridis without its yellow end, which a pale ground swallows."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    return ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.82, 256)))


@checked
def draw_density(
    ax: Axes, points: npt.ArrayLike, colour: str, label: str, strength: float = 1.0, zorder: float = 3
) -> None:
    """Points ``(n, 2)`` as hexagons: the more a hexagon holds, the stronger its colour, by the logarithm.

    The axes' limits say where; what lies beyond them is left out. With a strength below 1 even the fullest hexagon is
    faint.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    x, y = columns(points)
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    shown = (x >= west) & (x <= east) & (y >= south) & (y <= north)
    if not shown.any():
        return
    rgb = np.array(_rgb(colour))
    pale, full = (1.0 - (1.0 - rgb) * strength * share for share in (0.25, 1.0))
    shades = LinearSegmentedColormap.from_list("", [pale, full])
    size = max(east - west, north - south) / HEXAGONS
    grid = (max(2, round((east - west) / size)), max(2, round((north - south) / size / 3**0.5)))
    where: dict[str, Any] = {"gridsize": grid, "extent": (west, east, south, north), "mincnt": 1, "zorder": zorder}
    drawn = ax.hexbin(x[shown], y[shown], cmap=shades, norm=LogNorm(), linewidths=0.0, **where)
    most = int(np.asarray(drawn.get_array()).max())
    drawn.set_norm(LogNorm(1, max(most, 2)))
    ax.plot([], [], "h", color=shades(0.7), mew=0, label=f"{label}: up to {most:,} in a hexagon")
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return float(red), float(green), float(blue)


@checked
def draw_outside(ax: Axes, points: npt.ArrayLike, label: str) -> None:
    """True places that lie outside the region, as crosses: all of a few, some of many. The label says how many."""
    x, y = columns(points)
    if len(x):
        some = np.unique(np.linspace(0, len(x) - 1, MOST_MARKS).astype(np.int64))
        style: dict[str, Any] = {"markersize": 3.5, "mew": 0.7, "alpha": 0.7, "zorder": 7}
        ax.plot(x[some], y[some], "x", color=EXPOSED, label=f"{label}: {len(x):,}", **style)
