"""Maps of states, policies, tracks and releases; every function draws into an `ax` and returns nothing but counts.

Points are ``(n, 2)``: kilometres east and north in a local plane, or longitude and latitude in degrees; one `ax` holds
one of the two, and `label_axes` says which. Colours are those of Okabe and Ito, which people with any colour vision
tell apart.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import MissingDependencyError
from dphmm.geometry.hull import SensitivityHull
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.policy.graph import PolicyGraph

TRUE, RELEASED, ESTIMATE, HULL, EXPOSED = "#000000", "#d55e00", "#0072b2", "#cc79a7", "#b00020"
_GROUND, _EDGE, _OUTLINE, _NAME = "#d9d9d9", "#7fb8a4", "#888888", "#444444"

MOST_CELLS = 20_000
"""A grid with more cells than this is drawn as its outline alone."""

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
    figure.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def draw_space(ax: Axes, space: StateSpace) -> None:
    """The states: a grid's cells, or its outline where there are very many; places as dots.

    Drawn in kilometres.
    """
    from matplotlib.collections import PolyCollection

    if not isinstance(space, Grid):
        ax.plot(*space.points.T, ".", color=_OUTLINE, markersize=4, zorder=1, label="places")
        return
    if space.size <= MOST_CELLS:
        half = space.cell_km / 2
        corners = np.array([[-half, -half], [half, -half], [half, half], [-half, half]])
        cells = space.points[:, None, :] + corners
        ax.add_collection(PolyCollection(list(cells), facecolors="none", edgecolors=_GROUND, linewidths=0.3, zorder=0))
    (west, south), (east, north) = extent(space)
    ax.plot([west, east, east, west, west], [south, south, north, north, south], color=_OUTLINE, lw=0.8, zorder=0)


def extent(space: StateSpace) -> FloatArray:
    """The corners of the least rectangle around the states, ``[[west, south], [east, north]]``, kilometres."""
    margin = space.cell_km / 2 if isinstance(space, Grid) else 0.0
    return np.array([space.points.min(axis=0) - margin, space.points.max(axis=0) + margin])


def draw_outlines(ax: Axes, outlines: Mapping[str, Sequence[npt.ArrayLike]]) -> None:
    """Named outlines, such as districts: each name with its rings ``(k, 2)``; the name stands in the first ring."""
    from matplotlib.patheffects import Normal, Stroke

    for name, rings in outlines.items():
        for number, ring in enumerate(rings):
            points = np.asarray(ring, dtype=np.float64)
            ax.plot(*points.T, color=_OUTLINE, lw=1.2, zorder=1)
            if number == 0:
                middle = points[:-1].mean(axis=0) if len(points) > 1 else points[0]
                text = ax.text(
                    float(middle[0]),
                    float(middle[1]),
                    name,
                    color=_NAME,
                    ha="center",
                    va="center",
                    fontsize=9,
                    zorder=7,
                    clip_on=True,
                )
                text.set_path_effects([Stroke(linewidth=2.5, foreground="white"), Normal()])


def draw_policy(ax: Axes, space: StateSpace, graph: PolicyGraph, limit: int = MOST_EDGES) -> int:
    """The edges of a policy, where there are at most `limit`; the number drawn.

    Drawn in kilometres.
    """
    from matplotlib.collections import LineCollection

    edges = graph.edges()
    if not 0 < len(edges) <= limit:
        return 0
    lines = LineCollection(list(space.points[edges]), colors=_EDGE, linewidths=0.6, zorder=1, label="policy edges")
    ax.add_collection(lines)
    return len(edges)


def draw_track(ax: Axes, points: npt.ArrayLike, label: str = "true places (private)") -> None:
    """True places in the order of time, as a line with dots, above everything else."""
    from matplotlib.patheffects import Normal, Stroke

    halo = [Stroke(linewidth=3.0, foreground="white"), Normal()]
    x, y = _columns(points)
    ax.plot(x, y, "-", color=TRUE, lw=1.2, marker=".", markersize=5, zorder=6, label=label, path_effects=halo)


def draw_releases(ax: Axes, points: npt.ArrayLike, label: str = "released") -> None:
    """Released places, as dots."""
    ax.plot(*_columns(points), "o", color=RELEASED, markersize=4, alpha=0.6, mew=0, zorder=3, label=label)


def draw_estimates(ax: Axes, points: npt.ArrayLike, label: str = "estimate (posterior mean)") -> None:
    """Posterior means, as small squares."""
    ax.plot(*_columns(points), "s", color=ESTIMATE, markersize=3.5, alpha=0.7, mew=0, zorder=4, label=label)


def draw_hull(
    ax: Axes, hull: SensitivityHull, centre: npt.ArrayLike = (0.0, 0.0), label: str = "sensitivity hull"
) -> None:
    """A planar sensitivity hull around a point; one without area is drawn as the segment or point that it is."""
    vertices = np.asarray(hull.vertices, dtype=np.float64).reshape(-1, 2) + np.asarray(centre, dtype=np.float64)
    if hull.dimension == 2:
        ax.fill(*vertices.T, facecolor=HULL, edgecolor=HULL, alpha=0.35, lw=1.2, zorder=2, label=label)
    else:
        ax.plot(*vertices.T, color=HULL, lw=2.0, marker="d", markersize=4, zorder=2, label=label)


def draw_exposed(ax: Axes, space: StateSpace, states: IntArray, label: str = "exposed states") -> None:
    """Crosses over the states that nothing hides; none are drawn where there are none. In kilometres."""
    if len(states):
        ax.plot(*space.points[states].T, "x", color=EXPOSED, markersize=7, mew=1.6, zorder=6, label=label)


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
    everything = np.concatenate([corners, shown])
    margin = 0.03 * side
    (west, south), (east, north) = everything.min(axis=0) - margin, everything.max(axis=0) + margin
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)
    return len(drawn) - len(shown)


def label_axes(ax: Axes, unit: Literal["km", "degrees"] = "km") -> None:
    """Name the axes and give both the same scale on the ground."""
    if unit == "km":
        ax.set_xlabel("east of the centre (km)")
        ax.set_ylabel("north of the centre (km)")
        ax.set_aspect("equal")
    else:
        ax.set_xlabel("longitude (degrees)")
        ax.set_ylabel("latitude (degrees)")
        south, north = ax.get_ylim()
        ax.set_aspect(1.0 / max(np.cos(np.radians((south + north) / 2)), 0.01))
    ax.ticklabel_format(useOffset=False)


def place_legend(ax: Axes) -> None:
    """The legend below the axes, where it hides nothing; none where nothing has a label."""
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        figure = ax.figure
        figure.legend(
            list(unique.values()), list(unique), loc="outside lower center", ncols=min(len(unique), 3), frameon=False
        )


def _columns(points: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    return array[:, 0], array[:, 1]
