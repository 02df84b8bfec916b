"""Maps of states, policies, tracks and releases; every function draws into an `ax`.

Points are ``(n, 2)``: kilometres east and north in a local plane. Colours are those of Okabe and Ito, which people with
any colour vision tell apart.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_integers, as_points
from dphmm.errors import InvalidInputError, MissingDependencyError
from dphmm.geometry.hull import SensitivityHull
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.plots.basemap import Basemap
    from dphmm.space.projection import LocalProjection


BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#7f7f7f"
TRUE, RELEASED, ESTIMATE, HULL, EXPOSED = "#000000", RED, BLUE, PURPLE, "#b00020"
EDGE = "#7fb8a4"
_GROUND, _OUTLINE, _NAME, _LAND = "#d9d9d9", "#888888", "#444444", "#f7f5f0"

MOST_CELLS = 3_000
"""A grid with more cells than this is drawn as its outline alone."""

_WIDEST_LETTER = 0.016
"""How wide a letter of an outline's name is, of the width of the axes."""

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
    """Named outlines, such as districts: each name with its rings ``(k, 2)``; the name stands in the first ring.

    Where the axes' limits are set, names stand within them, and one without room there is left out.
    """
    for name, rings in outlines.items():
        if isinstance(rings, str) or not isinstance(rings, Iterable):
            raise InvalidInputError(f"the outline of {name} is no list of rings; give arrays of points")
        for number, ring in enumerate(rings):
            points = as_points(ring, f"a ring of {name}")
            ax.plot(*points.T, color=_OUTLINE, lw=1.2, zorder=1)
            if number == 0:
                middle = _middle_in_view(ax, points, name)
                if middle is None:
                    continue
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
                text.set_path_effects(halo(2.5))


def _middle_in_view(ax: Axes, ring: FloatArray, name: str) -> FloatArray | None:
    """Where the name of a ring goes; None where too little of the ring is in view."""
    middle: FloatArray = ring[:-1].mean(axis=0) if len(ring) > 1 else ring[0]
    if ax.get_autoscale_on() or len(ring) < 4:
        return middle
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    half = (east - west) * (len(name) + 1) / 2 * _WIDEST_LETTER
    if west + half < middle[0] < east - half and south < middle[1] < north:
        return middle
    seen = shapely.clip_by_rect(shapely.make_valid(shapely.Polygon(ring)), west + half, south, east - half, north)
    if seen.is_empty or shapely.area(seen) < 0.01 * (east - west) * (north - south):
        return None
    return np.array(shapely.get_coordinates(shapely.point_on_surface(seen))[0])


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


def draw_hull(ax: Axes, hull: SensitivityHull) -> None:
    """A planar sensitivity hull around the origin; one without area is drawn as the segment or point that it is."""
    label = "sensitivity hull, at the centre"
    _hull(ax, hull, np.zeros(2), 1.0, label)


def _hull(ax: Axes, hull: SensitivityHull, centre: FloatArray, scale: float, label: str, zorder: float = 2) -> None:
    corners = centre + scale * np.asarray(hull.vertices)
    if hull.dimension == 2:
        ax.fill(*corners.T, facecolor=HULL, edgecolor=HULL, alpha=0.35, lw=1.2, zorder=zorder, label=label)
    else:
        ax.plot(*corners.T, color=HULL, lw=2.0, marker="d", markersize=4, zorder=zorder, label=label)


def draw_noise(ax: Axes, hull: SensitivityHull | None, error: float) -> None:
    """The shape of the noise and how far a release is off, once, beside the data, at the scale of the map.

    The axes' limits grow to the east by what they take. Where the noise is wider than a quarter of the map it is drawn
    at a part of the scale, which the picture says.

    Parameters
    ----------
    hull
        The sensitivity hull, kilometres; None where it is not known.
    error
        The root mean square distance of a release from the place it was drawn around, kilometres; NaN where it is not
        known.
    """
    from matplotlib.patches import Circle, Rectangle

    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    known = error if np.isfinite(error) else 0.0
    reach = max(known, 0.0 if hull is None else float(np.abs(hull.vertices).max(initial=0.0)))
    if not reach > 0:
        return
    room = 0.16 * max(east - west, north - south)
    part = next((part for part in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if reach / part <= room), 10_000)
    side = 2.3 * max(reach / part, room / 2)
    centre = np.array([east + side / 2, north - side / 2])
    style: dict[str, Any] = {"facecolor": "white", "edgecolor": _GROUND, "lw": 0.8, "zorder": 8}
    ax.add_patch(Rectangle((east, north - side), side, side, **style))
    if hull is not None:
        _hull(ax, hull, centre, 1 / part, "sensitivity hull", zorder=9)
    if known:
        ring: dict[str, Any] = {"fill": False, "edgecolor": RELEASED, "lw": 1.2, "linestyle": "--", "zorder": 9}
        ax.add_patch(Circle((float(centre[0]), float(centre[1])), known / part, **ring))
        ax.plot([], [], "--", color=RELEASED, lw=1.2, label="how far a release is off")
    said = "noise, to scale" if part == 1 else f"noise, at 1/{part}\nof the scale"
    below: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 7, "color": _NAME, "zorder": 9}
    ax.text(centre[0], north - side - 0.01 * (north - south), said, path_effects=halo(2.5), **below)
    ax.set_xlim(west, east + side)
    ax.set_ylim(south, north)


_WATER, _NAMED = "#c9dcea", "#777777"
_LOOKS: dict[str, dict[str, Any]] = {
    "stream": {"colors": "#b3cfe2", "linewidths": 0.9},
    "line": {"colors": "#9a9a9a", "linewidths": 0.8},
    "street": {"colors": "#e6e1d6", "linewidths": 0.7},
    "road": {"colors": "#d8c9a3", "linewidths": 1.5},
    "border": {"colors": "#a58fa8", "linewidths": 0.9, "linestyles": (0, (6, 4))},
}
_MOST_NAMES = 18
_LETTERS = 13
"""So many small letters go into an inch of a figure, less what stands beside the axes."""


def draw_basemap(ax: Axes, basemap: Basemap, projection: LocalProjection) -> None:
    """Water, roads, borders and names within the axes' limits, below everything else, and whose map it is."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    ax.set_facecolor(_LAND)
    for polygon in basemap.water:
        plane = shapely.transform(polygon, lambda xy: projection.to_plane(xy[:, 1], xy[:, 0]))
        rings = [Outline(shapely.get_coordinates(ring), closed=True) for ring in (plane.exterior, *plane.interiors)]
        ax.add_patch(PathPatch(Outline.make_compound_path(*rings), facecolor=_WATER, edgecolor="none", zorder=-3))
    for kind, style in _LOOKS.items():
        lines = [projection.to_plane(line[:, 1], line[:, 0]) for line in basemap.lines.get(kind, ())]
        if lines:
            ax.add_collection(LineCollection(lines, zorder=-2, **style), autolim=False)
    wide = float(ax.figure.bbox.width) / float(ax.figure.dpi)
    _names(ax, basemap, projection, wide)
    credit: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 5.5, "color": _NAMED, "zorder": 10}
    said = "\n".join(wrap(basemap.credit, max(20, int(_LETTERS * wide))))
    ax.text(0.998, 0.003, said, transform=ax.transAxes, path_effects=halo(1.5), **credit)


def _names(ax: Axes, basemap: Basemap, projection: LocalProjection, wide: float) -> None:
    """The first names that have room, in a figure so many inches wide."""
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    letter = (east - west) / (_LETTERS * wide) / 0.72  # kilometres; the axes take that part of a figure, or more
    taken: list[tuple[float, float, float]] = []
    for place in basemap.names:
        x, y = projection.to_plane(place.latitude, place.longitude)[0].tolist()
        half = letter * (len(place.name) + 2) / 2
        inside = west + half < x < east - half and south + letter < y < north - letter
        near = any(abs(x - a) < half + b and abs(y - c) < 2.5 * letter for a, b, c in taken)
        if inside and not near and len(taken) < _MOST_NAMES:
            taken.append((x, half, y))
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "color": _NAMED, "zorder": 5.5}
            ax.text(x, y, place.name, path_effects=halo(2.0), clip_on=True, **look)


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
        width = float(ax.figure.bbox.width) / float(ax.figure.dpi)
        columns_that_fit = max(1, int(width / (0.6 + 0.068 * max(map(len, unique)))))
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": min(len(unique), columns_that_fit)}
        where |= {"frameon": False, "fontsize": 8}
        ax.figure.legend(list(unique.values()), list(unique), **where)


def finish(ax: Axes, x: str, y: str) -> None:
    """Name the axes of a picture of curves, and draw a faint grid behind them."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(color="#dddddd", linewidth=0.5)
    ax.set_axisbelow(True)


def halo(width: float) -> list[Any]:
    """A white edge around a text or a line, so many points wide."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width, foreground="white"), Normal()]


def columns(points: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """The two columns of points ``(n, 2)``, of which there may be none."""
    array = as_points(points).reshape(-1, 2) if np.size(points) else np.zeros((0, 2))
    return array[:, 0], array[:, 1]
