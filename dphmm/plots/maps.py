"""Maps of states, policies, tracks and releases; every function draws into an `ax`.

Points are ``(n, 2)``: kilometres east and north in a local plane. Colours are those of Okabe and Ito, which people with
any colour vision tell apart.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_integers, as_points
from dphmm.errors import InvalidInputError, MissingDependencyError
from dphmm.geometry.hull import SensitivityHull
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#7f7f7f"
TRUE, RELEASED, ESTIMATE, HULL, EXPOSED = "#000000", RED, BLUE, PURPLE, "#b00020"
EDGE = "#7fb8a4"
_GROUND, _OUTLINE, _NAME = "#d9d9d9", "#888888", "#444444"

MOST_CELLS = 20_000
"""A grid with more cells than this is drawn as its outline alone."""

MOST_CIRCLES = 40
"""At so many moments at most a picture says how far an estimate is expected to be off."""

MOST_EDGES = 5_000
"""A policy with more edges than this is not drawn: it would be a black field."""


def new_figure(width: float = 8.0, height: float = 7.0) -> tuple[Any, Axes]:
    """A figure that no window shows, with one `ax`.

    Parameters
    ----------
    width, height
        Inches.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError("matplotlib", "plots") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def png(figure: Any, dpi: int = 150) -> bytes:
    """A figure as the bytes of a PNG file."""
    file = io.BytesIO()
    save(figure, file, format="png", dpi=dpi)
    return file.getvalue()


def save(figure: Any, file: Path | BinaryIO, **options: Any) -> None:
    """Write a figure; a letter that the font lacks is a box in it, and no warning on the terminal."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(file, **options)


def draw_space(ax: Axes, space: StateSpace) -> None:
    """The states: a grid's cells, or its outline where there are very many; places as dots.

    Drawn in kilometres.
    """
    from matplotlib.collections import PolyCollection

    if not isinstance(space, Grid):
        ax.plot(*space.points.T, ".", color=_OUTLINE, markersize=4, zorder=1, label="places")
        return
    if space.size <= MOST_CELLS:
        ax.add_collection(PolyCollection(cells(space), facecolors="none", edgecolors=_GROUND, linewidths=0.3, zorder=0))
    (west, south), (east, north) = extent(space)
    ax.plot([west, east, east, west, west], [south, south, north, north, south], color=_OUTLINE, lw=0.8, zorder=0)


def cells(grid: Grid) -> list[FloatArray]:
    """The corners ``(4, 2)`` of every cell, kilometres."""
    return list(grid.points[:, None, :] + grid.cell_km * (np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5))


def extent(space: StateSpace) -> FloatArray:
    """The corners of the least rectangle around the states, ``[[west, south], [east, north]]``, kilometres."""
    margin = space.cell_km / 2 if isinstance(space, Grid) else 0.0
    return np.array([space.points.min(axis=0) - margin, space.points.max(axis=0) + margin])


@checked
def draw_outlines(ax: Axes, outlines: Mapping[str, Sequence[npt.ArrayLike]]) -> None:
    """Named outlines, such as districts: each name with its rings ``(k, 2)``; the name stands in the first ring."""
    for name, rings in outlines.items():
        if isinstance(rings, str) or not isinstance(rings, Iterable):
            raise InvalidInputError(f"the outline of {name} is no list of rings; give arrays of points")
        for number, ring in enumerate(rings):
            points = as_points(ring, f"a ring of {name}")
            ax.plot(*points.T, color=_OUTLINE, lw=1.2, zorder=1)
            if number == 0:
                middle = points[:-1].mean(axis=0) if len(points) > 1 else points[0]
                text = ax.text(
                    middle[0],
                    middle[1],
                    name,
                    color=_NAME,
                    ha="center",
                    va="center",
                    fontsize=9,
                    zorder=7,
                    clip_on=True,
                )
                text.set_path_effects(_halo(2.5))


@checked
def draw_edges(
    ax: Axes, points: FloatArray, edges: IntArray, colour: str, width: float, label: str, zorder: int = 2
) -> None:
    """Edges ``(m, 2)`` between points ``(N, 2)``, where there are at most `MOST_EDGES`."""
    from matplotlib.collections import LineCollection

    points, edges = as_points(points), as_integers(edges, "edges")
    if edges.size and (edges.ndim != 2 or edges.min() < 0 or edges.max() >= len(points)):
        raise InvalidInputError(f"edges have shape {edges.shape}; give pairs of {len(points)} points")
    if 0 < len(edges) <= MOST_EDGES:
        lines = LineCollection(list(points[edges]), colors=colour, linewidths=width, zorder=zorder, label=label)
        ax.add_collection(lines)


@checked
def draw_track(ax: Axes, points: npt.ArrayLike, label: str = "true places (private)") -> None:
    """True places in the order of time, as a line with dots, above everything else."""
    style: dict[str, Any] = {"lw": 1.2, "marker": ".", "markersize": 5, "zorder": 6, "path_effects": _halo(3.0)}
    ax.plot(*_columns(points), "-", color=TRUE, label=label, **style)


@checked
def draw_releases(ax: Axes, points: npt.ArrayLike, label: str = "released") -> None:
    """Released places, as dots."""
    ax.plot(*_columns(points), "o", color=RELEASED, markersize=4, alpha=0.6, mew=0, zorder=3, label=label)


@checked
def draw_estimates(
    ax: Axes, points: npt.ArrayLike, label: str = "estimate (posterior mean)", radii: npt.ArrayLike | None = None
) -> None:
    """Posterior means, as small squares; with radii ``(n,)`` how far they are expected to be off, as circles.

    Of many moments some have a circle, one every so often.
    """
    if radii is not None and np.size(radii):
        from matplotlib.collections import EllipseCollection

        some = np.unique(np.linspace(0, np.size(radii) - 1, MOST_CIRCLES).astype(np.int64))
        across = 2.0 * np.asarray(radii, dtype=np.float64)[some]
        places = np.column_stack(_columns(points))[some]
        style: dict[str, Any] = {"facecolors": "none", "edgecolors": ESTIMATE, "linewidths": 0.7, "alpha": 0.4}
        where: dict[str, Any] = {"offsets": places, "offset_transform": ax.transData, "units": "xy", "zorder": 3}
        ax.add_collection(EllipseCollection(across, across, np.zeros(len(some)), **where, **style))
        ax.plot([], [], "-", color=ESTIMATE, lw=0.7, alpha=0.4, label="expected distance from it")
    ax.plot(*_columns(points), "s", color=ESTIMATE, markersize=3.5, alpha=0.7, mew=0, zorder=4, label=label)


def draw_hull(ax: Axes, hull: SensitivityHull) -> None:
    """A planar sensitivity hull around the origin; one without area is drawn as the segment or point that it is."""
    label = "sensitivity hull, at the centre"
    if hull.dimension == 2:
        ax.fill(*hull.vertices.T, facecolor=HULL, edgecolor=HULL, alpha=0.35, lw=1.2, zorder=2, label=label)
    else:
        ax.plot(*hull.vertices.T, color=HULL, lw=2.0, marker="d", markersize=4, zorder=2, label=label)


def fit_view(ax: Axes, frame: npt.ArrayLike, points: npt.ArrayLike, reach: float = 1.0) -> int:
    """Show a frame and the points around it, as far as they are not lost in the distance.

    Parameters
    ----------
    frame
        ``[[west, south], [east, north]]``, shown whole.
    points
        ``(n, 2)``; the view grows to show them, but by no more than `reach` times the frame's longer side at each
        end: noise has no bound, and one far draw would make everything else a dot.

    Returns
    -------
    int
        How many of the points lie outside the view; a caption should say so.
    """
    corners = np.asarray(frame, dtype=np.float64)
    drawn = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    drawn = drawn[np.isfinite(drawn).all(axis=1)]
    side = float((corners[1] - corners[0]).max()) or 1.0
    low, high = corners[0] - reach * side, corners[1] + reach * side
    shown = drawn[((drawn >= low) & (drawn <= high)).all(axis=1)]
    show_around(ax, np.concatenate([corners, shown]), 0.03 * side)
    return len(drawn) - len(shown)


def show_around(ax: Axes, points: FloatArray, margin: float) -> None:
    """Show points ``(n, 2)`` and a margin around them."""
    (west, south), (east, north) = points.min(axis=0) - margin, points.max(axis=0) + margin
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)


def label_axes(ax: Axes) -> None:
    """Name the axes and give both the same scale."""
    ax.set_xlabel("east of the centre (km)")
    ax.set_ylabel("north of the centre (km)")
    ax.set_aspect("equal")
    ax.ticklabel_format(useOffset=False)


def place_legend(ax: Axes) -> None:
    """The legend below the axes, where it hides nothing; none where nothing has a label."""
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": min(len(unique), 3), "frameon": False}
        ax.figure.legend(list(unique.values()), list(unique), **where)


def finish(ax: Axes, x: str, y: str) -> None:
    """Name the axes of a picture of curves, and draw a faint grid behind them."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)


def _halo(width: float) -> list[Any]:
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width, foreground="white"), Normal()]


def _columns(points: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    array = as_points(points).reshape(-1, 2) if np.size(points) else np.zeros((0, 2))
    return array[:, 0], array[:, 1]
