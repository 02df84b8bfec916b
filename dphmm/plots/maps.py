"""Maps of states, policies, tracks and releases, few as dots and lines, many as hexagons.

Every function draws into an `ax`. Points are ``(n, 2)``: kilometres east and north in a local plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_integers, as_points
from dphmm.errors import InvalidInputError
from dphmm.geometry.hull import SensitivityHull
from dphmm.plots import figures
from dphmm.plots.figures import ESTIMATE, EXPOSED, HULL, RELEASED, TRUE, Axes
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

if TYPE_CHECKING:
    from dphmm.plots.basemap import Basemap
    from dphmm.space.states import LocalProjection


_GROUND, _OUTLINE, _NAME, _LAND = "#d9d9d9", "#888888", "#444444", "#f7f5f0"

MOST_CELLS = 3_000
"""A grid with more cells than this is drawn as its outline alone."""

_WIDEST_LETTER = 0.016
"""How wide a letter of an outline's name is, of the width of the axes."""

MOST_EDGES = 5_000
"""A policy with more edges than this is not drawn: it would be a black field."""


@checked
def draw_space(ax: Axes, space: StateSpace) -> None:
    """The states: a grid's cells, or its outline where there are very many; places as dots.

    Drawn in kilometres.

    Parameters
    ----------
    ax
        Where to draw.
    space
        The states.
    """
    if not isinstance(space, Grid):
        ax.plot(*space.points.T, ".", color=_OUTLINE, markersize=4, zorder=1, label="places")
        return
    if space.size <= MOST_CELLS:
        draw_cells(ax, space, facecolors="none", edgecolors=_GROUND, linewidths=0.3, zorder=0)
    (west, south), (east, north) = extent(space)
    ax.plot([west, east, east, west, west], [south, south, north, north, south], color=_OUTLINE, lw=0.8, zorder=0)


def draw_cells(ax: Axes, grid: Grid, states: IntArray | slice = slice(None), **style: Any) -> Any:
    """Cells of a grid, kilometres.

    Parameters
    ----------
    ax
        Where to draw.
    grid
        The grid.
    states
        Which of its cells; left out, all.
    **style
        As `matplotlib.collections.PolyCollection` has it.

    Returns
    -------
    matplotlib.collections.PolyCollection
        What was drawn.
    """
    from matplotlib.collections import PolyCollection

    corners = grid.cell_km * (np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5)
    drawn = PolyCollection(list(grid.points[states, None, :] + corners), **style)
    ax.add_collection(drawn)
    return drawn


def extent(space: StateSpace) -> FloatArray:
    """The corners of the least rectangle around the states, ``[[west, south], [east, north]]``, kilometres.

    Parameters
    ----------
    space
        The states; a grid's cells count whole.

    Returns
    -------
    numpy.ndarray
        ``(2, 2)``.
    """
    margin = space.cell_km / 2 if isinstance(space, Grid) else 0.0
    return np.array([space.points.min(axis=0) - margin, space.points.max(axis=0) + margin])


@checked
def draw_outlines(ax: Axes, outlines: Mapping[str, Sequence[npt.ArrayLike]]) -> None:
    """Named outlines, such as districts: each name with its rings ``(k, 2)``; the name stands in the first ring.

    Where the axes' limits are set, names stand within them, and one without room there is left out.

    Parameters
    ----------
    ax
        Where to draw.
    outlines
        Name → rings, kilometres.

    Raises
    ------
    InvalidInputError
        When rings are no arrays of points.
    """
    for name, rings in outlines.items():
        if isinstance(rings, str) or not isinstance(rings, Iterable):
            raise InvalidInputError(f"the outline of {name} is no list of rings; give arrays of points")
        corners = [as_points(ring, f"a ring of {name}") for ring in rings]
        for points in corners:
            ax.plot(*points.T, color=_OUTLINE, lw=1.2, zorder=1)
        middle = _middle_in_view(ax, corners[0], name) if corners else None
        if middle is not None:
            _write(ax, middle[0], middle[1], name, 2.5, color=_NAME, fontsize=9, zorder=7, clip_on=True)


def _write(ax: Axes, x: float, y: float, text: str, edge: float, **style: Any) -> None:
    """A text around a point, with a white edge."""
    ax.text(x, y, text, path_effects=figures.halo(edge), **{"ha": "center", "va": "center", **style})


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
    """Edges ``(m, 2)`` between points ``(N, 2)``, where there are at most `MOST_EDGES`.

    Parameters
    ----------
    ax
        Where to draw.
    points
        ``(N, 2)``, kilometres.
    edges
        ``(m, 2)`` pairs of points; none are drawn where there are more than `MOST_EDGES`.
    colour, width, label, zorder
        As matplotlib has them.

    Raises
    ------
    InvalidInputError
        When edges are no pairs of points.
    """
    from matplotlib.collections import LineCollection

    points, edges = as_points(points), as_integers(edges, "edges")
    if edges.size and (edges.ndim != 2 or edges.min() < 0 or edges.max() >= len(points)):
        raise InvalidInputError(f"edges have shape {edges.shape}; give pairs of {len(points)} points")
    if 0 < len(edges) <= MOST_EDGES:
        lines = LineCollection(list(points[edges]), colors=colour, linewidths=width, zorder=zorder, label=label)
        ax.add_collection(lines)


@checked
def draw_hull(ax: Axes, hull: SensitivityHull) -> None:
    """A planar sensitivity hull around the origin; one without area is drawn as the segment or point that it is.

    Parameters
    ----------
    ax
        Where to draw.
    hull
        The hull, kilometres.
    """
    draw_body(ax, hull.vertices, HULL, "sensitivity hull, at the centre", zorder=2)


def draw_body(
    ax: Axes, corners: FloatArray, colour: str, label: str, centre: npt.ArrayLike = (0.0, 0.0), zorder: float = 1
) -> None:
    """A planar body about a point: a filled outline, or the segment or point that it is.

    Parameters
    ----------
    ax
        Where to draw.
    corners
        ``(k, 2)`` relative to the centre; up to two of them are no outline.
    colour, label, zorder
        As matplotlib has them.
    centre
        ``(2,)``.
    """
    ring = corners + np.asarray(centre, dtype=np.float64)
    if len(ring) > 2:
        ax.fill(*ring.T, facecolor=(colour, 0.25), edgecolor=colour, lw=1.3, zorder=zorder, label=label)
    else:
        ax.plot(*ring.T, color=colour, lw=2.5, marker="d", ms=4, zorder=zorder, label=label)


@checked
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
    ax
        The axes to draw on.
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
    ax.add_patch(Rectangle((east, north - side), side, side, facecolor="white", edgecolor=_GROUND, lw=0.8, zorder=8))
    if hull is not None:
        draw_body(ax, hull.vertices / part, HULL, "sensitivity hull", centre, zorder=9)
    if known:
        ring: dict[str, Any] = {"fill": False, "edgecolor": RELEASED, "lw": 1.2, "linestyle": "--", "zorder": 9}
        ax.add_patch(Circle((float(centre[0]), float(centre[1])), known / part, **ring))
        ax.plot([], [], "--", color=RELEASED, lw=1.2, label="how far a release is off")
    said = "noise, to scale" if part == 1 else f"noise, at 1/{part}\nof the scale"
    below = north - side - 0.01 * (north - south)
    _write(ax, centre[0], below, said, 2.5, va="top", fontsize=7, color=_NAME, zorder=9)
    ax.set_xlim(west, east + side)
    ax.set_ylim(south, north)


_WATER, _NAMED = "#c9dcea", "#777777"
_LOOKS: dict[str, dict[str, Any]] = {
    "stream": {"colors": "#b3cfe2", "linewidths": 0.9},
    "line": {"colors": "#9a9a9a", "linewidths": 0.8},
    "lane": {"colors": "#e6e1d6", "linewidths": 0.5},
    "street": {"colors": "#e6e1d6", "linewidths": 0.7},
    "road": {"colors": "#d8c9a3", "linewidths": 1.5},
    "border": {"colors": "#a58fa8", "linewidths": 0.9, "linestyles": (0, (6, 4))},
}
_MOST_NAMES = 18
_LETTERS = 13
"""Small letters to an inch of a figure, less what stands beside the axes."""


@checked
def draw_basemap(ax: Axes, basemap: Basemap, projection: LocalProjection) -> None:
    """Water, roads, borders and names within the axes' limits, below everything else, and whose map it is.

    Parameters
    ----------
    ax
        Where to draw.
    basemap
        Water, lines and names in degrees.
    projection
        From degrees to the plane of the picture.
    """
    from matplotlib.collections import LineCollection
    from shapely.plotting import patch_from_polygon

    ax.set_facecolor(_LAND)
    for polygon in basemap.water:
        plane = shapely.transform(polygon, lambda xy: projection.to_plane(xy[:, 1], xy[:, 0]))
        ax.add_patch(patch_from_polygon(plane, facecolor=_WATER, edgecolor="none", zorder=-3))
    for kind, style in _LOOKS.items():
        lines = [projection.to_plane(line[:, 1], line[:, 0]) for line in basemap.lines.get(kind, ())]
        if lines:
            ax.add_collection(LineCollection(lines, zorder=-2, **style), autolim=False)
    wide = figures.inches_wide(ax)
    _draw_names(ax, basemap, projection, wide)
    said = "\n".join(wrap(basemap.credit, max(20, int(_LETTERS * wide))))
    corner: dict[str, Any] = {"ha": "right", "va": "bottom", "transform": ax.transAxes}
    _write(ax, 0.998, 0.003, said, 1.5, fontsize=5.5, color=_NAMED, zorder=10, **corner)


def _draw_names(ax: Axes, basemap: Basemap, projection: LocalProjection, wide: float) -> None:
    """The first names that have room, in a figure `wide` inches wide."""
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
            _write(ax, x, y, place.name, 2.0, fontsize=7.5, color=_NAMED, zorder=5.5, clip_on=True)


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
    figures.show_around(ax, np.concatenate([corners, shown]), 0.03 * side)
    return len(drawn) - len(shown)


def columns(points: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """The two columns of points ``(n, 2)``, of which there may be none."""
    array = as_points(points).reshape(-1, 2) if np.size(points) else np.zeros((0, 2))
    return array[:, 0], array[:, 1]


MOST_CIRCLES = 12
"""A picture says at most at this many moments how far an estimate is expected to be off."""

MOST_DOTS = 1_500
"""More points than this are drawn as hexagons by how many they hold: dots would be an opaque field."""

_NARROW = 6.0
"""In a figure of fewer inches the bar of colours of time lies above the map."""

MOST_MARKS = 200
"""Of more true places than this not each has a mark of its own."""

HEXAGONS = 70
"""Along the longer side of a map."""


@checked
def draw_track(ax: Axes, points: npt.ArrayLike, label: str = "true places (private)") -> None:
    """True places in the order of time, as a thin line above everything else, with small dots where they are few.

    Parameters
    ----------
    ax
        Where to draw.
    points
        ``(n, 2)``, kilometres; there may be none.
    label
        For the legend.
    """
    x, y = columns(points)
    dots = "." if len(x) <= MOST_MARKS else ""
    ax.plot(x, y, "-", marker=dots, ms=2.5, color=TRUE, label=label, lw=0.7, zorder=6, path_effects=figures.halo(1.6))


@checked
def draw_releases(ax: Axes, points: npt.ArrayLike, label: str = "released") -> None:
    """Released places, as faint dots; more than `MOST_DOTS` of them as hexagons, see `draw_density`.

    Parameters
    ----------
    ax
        Where to draw.
    points
        ``(n, 2)``, kilometres; there may be none.
    label
        For the legend.
    """
    x, y = columns(points)
    if len(x) > MOST_DOTS:
        draw_density(ax, points, RELEASED, label, strength=0.5, zorder=3)
    else:
        ax.plot(x, y, "o", color=RELEASED, markersize=3.5, alpha=0.3, mew=0, zorder=3, label=label)


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
    ax
        The axes to draw on.
    label
        What the legend calls them.
    """
    x, y = columns(points)
    if len(x) > MOST_DOTS:
        draw_density(ax, points, ESTIMATE, label, zorder=4)
        return
    places = np.column_stack([x, y])
    if radii is not None and np.size(radii):
        _circles(ax, places, np.asarray(radii, dtype=np.float64))
    if times is None or trips is None or len(x) < 2:
        ax.plot(x, y, "s", color=ESTIMATE, markersize=3.5, alpha=0.8, mew=0, zorder=4, label=label)
    else:
        _by_time(ax, places, np.asarray(times), np.asarray(trips), label)


def _circles(ax: Axes, places: FloatArray, radii: FloatArray) -> None:
    from matplotlib.collections import EllipseCollection

    some = np.unique(np.linspace(0, len(radii) - 1, MOST_CIRCLES).astype(np.int64))
    faint: dict[str, Any] = {"facecolors": "none", "edgecolors": (ESTIMATE, 0.3), "linewidths": 0.6, "zorder": 3}
    strong: dict[str, Any] = {"facecolors": (ESTIMATE, 0.12), "edgecolors": ESTIMATE, "linewidths": 1.2, "zorder": 3.5}
    for rows, style in ((some, faint), (some[-1:], strong)):
        across = 2.0 * radii[rows]
        where: dict[str, Any] = {"offsets": places[rows], "offset_transform": ax.transData, "units": "xy"}
        ax.add_collection(EllipseCollection(across, across, np.zeros(len(rows)), **where, **style))
    ax.plot([], [], "-", color=ESTIMATE, lw=0.9, alpha=0.6, label="expected distance from it")


def _by_time(ax: Axes, places: FloatArray, times: npt.NDArray[Any], trips: npt.NDArray[Any], label: str) -> None:
    """Lines of trips and a dot for each moment, coloured by time, with a bar that says which is which."""
    import matplotlib as mpl
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap
    from matplotlib.dates import date2num

    when = np.asarray(date2num(times), dtype=np.float64)  # type: ignore[no-untyped-call]
    span = (float(when.min()), max(float(when.max()), float(when.min()) + 1e-9))
    joined = np.flatnonzero(trips[1:] == trips[:-1])
    pairs = np.stack([places[joined], places[joined + 1]], axis=1)
    colours = ListedColormap(mpl.colormaps["viridis"](np.linspace(0.0, 0.82, 256)))  # a pale ground swallows yellow
    lines = LineCollection(list(pairs), cmap=colours, array=when[joined + 1], linewidths=1.1, alpha=0.7, zorder=4)
    lines.set_clim(*span)
    ax.add_collection(lines)
    drawn = ax.scatter(places[:, 0], places[:, 1], s=12, c=when, cmap=colours, linewidths=0, zorder=5)
    drawn.set_clim(*span)
    ax.plot([], [], "-o", color=colours(0.5), lw=1.1, markersize=3.5, label=f"{label}, by time")
    narrow = figures.inches_wide(ax) < _NARROW
    where, shrink, aspect = ("top", 0.9, 45) if narrow else ("right", 0.6, 28)
    bar = ax.figure.colorbar(drawn, ax=ax, pad=0.015, location=where, shrink=shrink, aspect=aspect)
    axis = bar.ax.xaxis if narrow else bar.ax.yaxis
    figures.show_dates(axis)
    axis.get_offset_text().set_fontsize(7)
    bar.set_label("time (UTC)", fontsize=8)
    bar.ax.tick_params(labelsize=7)


@checked
def draw_density(
    ax: Axes, points: npt.ArrayLike, colour: str, label: str, strength: float = 1.0, zorder: float = 3
) -> None:
    """Points ``(n, 2)`` as hexagons: the more a hexagon holds, the stronger its colour, by the logarithm.

    The axes' limits say where; what lies beyond them is left out. With a strength below 1 even the fullest hexagon is
    faint.

    Parameters
    ----------
    ax
        Where to draw.
    points
        ``(n, 2)``, kilometres.
    colour
        Of the fullest hexagon.
    label
        For the legend, which adds how many the fullest hexagon holds.
    strength
        From 0 to 1.
    zorder
        As matplotlib has it.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb

    x, y = columns(points)
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    shown = (x >= west) & (x <= east) & (y >= south) & (y <= north)
    if not shown.any():
        return
    rgb = np.array(to_rgb(colour))
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


@checked
def draw_outside(ax: Axes, points: npt.ArrayLike, label: str) -> None:
    """True places that lie outside the region, as crosses: all of a few, some of many. The label says how many.

    Parameters
    ----------
    ax
        Where to draw.
    points
        ``(n, 2)``, kilometres; there may be none.
    label
        For the legend.
    """
    x, y = columns(points)
    if len(x):
        some = np.unique(np.linspace(0, len(x) - 1, MOST_MARKS).astype(np.int64))
        style: dict[str, Any] = {"markersize": 3.5, "mew": 0.7, "alpha": 0.7, "zorder": 7}
        ax.plot(x[some], y[some], "x", color=EXPOSED, label=f"{label}: {len(x):,}", **style)
