"""Maps of states, policies, tracks and releases: few as dots and lines, many as hexagons.

Every function plots into an `ax`. Points are ``(n, 2)``: kilometres east and north in a local plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import FloatArray, IntArray, as_integers, as_points
from dphmm.errors import InvalidInputError
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.plots import canvas
from dphmm.plots.canvas import ESTIMATE_COLOUR, EXPOSED_COLOUR, HULL_COLOUR, RELEASE_COLOUR, TRUE_COLOUR, Axes
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace
from dphmm.space.streets import Streets
from dphmm.validation import check_arguments

if TYPE_CHECKING:
    from dphmm.plots.basemap import Basemap
    from dphmm.space.projection import LocalProjection


_GROUND = "#d9d9d9"
_OUTLINE = "#888888"
_NAME = "#444444"
_LAND = "#f7f5f0"

# The largest number of cells of a grid that is plotted with its cells instead of its outline only.
MAX_CELLS = 3_000

# The largest width of a letter of an outline's name, as a share of the width of the axes.
_LETTER_WIDTH = 0.016

# The largest number of edges of a policy that is plotted: more would be a black area.
MAX_EDGES = 5_000


@check_arguments
def draw_space(ax: Axes, space: StateSpace) -> None:
    """Plot the states: cells of a grid, outline of a large one, streets, or places as dots.

    Parameters
    ----------
    ax
        The axes.
    space
        The states.
    """
    if not isinstance(space, Grid | Streets):
        ax.plot(*space.points.T, ".", color=_OUTLINE, markersize=4, zorder=1, label="places")
        return
    if isinstance(space, Grid) and space.size <= MAX_CELLS:
        draw_cells(ax, space, facecolors="none", edgecolors=_GROUND, linewidths=0.3, zorder=0)
    draw_outline(ax, space)


def draw_outline(ax: Axes, space: StateSpace) -> None:
    """Plot the bounding box of the states, or the segments of streets."""
    if isinstance(space, Streets):
        draw_segments(ax, space, colors=_OUTLINE, linewidths=0.6, zorder=0)
        return
    (west, south), (east, north) = extent(space)
    ax.plot([west, east, east, west, west], [south, south, north, north, south], color=_OUTLINE, lw=0.8, zorder=0)


def draw_cells(ax: Axes, grid: Grid, states: IntArray | slice = slice(None), **style: Any) -> Any:
    """Plot cells of a grid, in kilometres.

    Parameters
    ----------
    ax
        The axes.
    grid
        The grid.
    states
        The cells. Defaults to all.
    **style
        As for `matplotlib.collections.PolyCollection`.

    Returns
    -------
    matplotlib.collections.PolyCollection
        The cells.
    """
    from matplotlib.collections import PolyCollection

    corners = grid.cell_km * (np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) - 0.5)
    cells = PolyCollection(list(grid.points[states, None, :] + corners), **style)
    ax.add_collection(cells)
    return cells


def draw_segments(ax: Axes, streets: Streets, states: IntArray | None = None, **style: Any) -> Any:
    """Plot segments of streets, in kilometres.

    Parameters
    ----------
    ax
        The axes.
    streets
        The segments.
    states
        The segments to plot, ``(m,)``. Defaults to all.
    **style
        As for `matplotlib.collections.LineCollection`.

    Returns
    -------
    matplotlib.collections.LineCollection
        The segments.
    """
    from matplotlib.collections import LineCollection

    lines = streets.lines()
    segments = LineCollection(lines if states is None else [lines[state] for state in states.tolist()], **style)
    ax.add_collection(segments)
    return segments


def extent(space: StateSpace) -> FloatArray:
    """Return the bounding box of the states, ``[[west, south], [east, north]]``, kilometres.

    Parameters
    ----------
    space
        The states. The box contains whole cells of a grid, and whole segments of streets.

    Returns
    -------
    numpy.ndarray
        ``(2, 2)``.
    """
    margin = space.cell_km / 2 if isinstance(space, Grid) else 0.0
    points = np.concatenate(space.lines()) if isinstance(space, Streets) else space.points
    return np.array([points.min(axis=0) - margin, points.max(axis=0) + margin])


@check_arguments
def draw_outlines(ax: Axes, outlines: Mapping[str, Sequence[npt.ArrayLike]]) -> None:
    """Plot named outlines, such as districts, with the name in the first ring.

    If the limits of the axes are set, names are placed within them. A name without space is omitted.

    Parameters
    ----------
    ax
        The axes.
    outlines
        Name → rings, kilometres.

    Raises
    ------
    InvalidInputError
        If a ring is not an array of points.
    """
    for name, rings in outlines.items():
        if isinstance(rings, str) or not isinstance(rings, Iterable):
            raise InvalidInputError(f"outline of {name} must be a list of rings, each an array of points")
        corners = [as_points(ring, f"a ring of {name}") for ring in rings]
        for points in corners:
            ax.plot(*points.T, color=_OUTLINE, lw=1.2, zorder=1)
        middle = _find_name_position(ax, corners[0], name) if corners else None
        if middle is not None:
            _write(ax, middle[0], middle[1], name, 2.5, color=_NAME, fontsize=9, zorder=7, clip_on=True)


def _write(ax: Axes, x: float, y: float, text: str, edge: float, **style: Any) -> None:
    """Write a text at a point, with a white edge."""
    ax.text(x, y, text, path_effects=canvas.build_halo(edge), **{"ha": "center", "va": "center", **style})


def _find_name_position(ax: Axes, ring: FloatArray, name: str) -> FloatArray | None:
    """Return the position of a ring's name. None if too little of the ring is in view."""
    middle: FloatArray = ring[:-1].mean(axis=0) if len(ring) > 1 else ring[0]
    if ax.get_autoscale_on() or len(ring) < 4:
        return middle
    (west, east) = ax.get_xlim()
    (south, north) = ax.get_ylim()
    half = (east - west) * (len(name) + 1) / 2 * _LETTER_WIDTH
    if west + half < middle[0] < east - half and south < middle[1] < north:
        return middle
    visible = shapely.clip_by_rect(shapely.make_valid(shapely.Polygon(ring)), west + half, south, east - half, north)
    if visible.is_empty or shapely.area(visible) < 0.01 * (east - west) * (north - south):
        return None
    return np.array(shapely.get_coordinates(shapely.point_on_surface(visible))[0])


@check_arguments
def draw_edges(
    ax: Axes, points: FloatArray, edges: IntArray, colour: str, width: float, label: str, zorder: int = 2
) -> None:
    """Plot at most `MAX_EDGES` edges ``(m, 2)`` between points ``(N, 2)``.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(N, 2)``, kilometres.
    edges
        ``(m, 2)`` pairs of points. More than `MAX_EDGES` are not plotted.
    colour, width, label, zorder
        As in matplotlib.

    Raises
    ------
    InvalidInputError
        If edges are not pairs of points.
    """
    from matplotlib.collections import LineCollection

    points = as_points(points)
    edges = as_integers(edges, "edges")
    if edges.size and (edges.ndim != 2 or edges.min() < 0 or edges.max() >= len(points)):
        raise InvalidInputError(f"edges must be pairs of {len(points)} points, got shape {edges.shape}")
    if 0 < len(edges) <= MAX_EDGES:
        lines = LineCollection(list(points[edges]), colors=colour, linewidths=width, zorder=zorder, label=label)
        ax.add_collection(lines)


@check_arguments
def draw_hull(ax: Axes, hull: SensitivityHull) -> None:
    """Plot a planar sensitivity hull around the origin.

    A hull without area is a segment or a point.

    Parameters
    ----------
    ax
        The axes.
    hull
        The hull, kilometres.
    """
    draw_body(ax, hull.vertices, HULL_COLOUR, "sensitivity hull, at the centre", zorder=2)


def draw_body(
    ax: Axes, corners: FloatArray, colour: str, label: str, centre: npt.ArrayLike = (0.0, 0.0), zorder: float = 1
) -> None:
    """Plot a planar body around a point as a filled outline, a segment or a point.

    Parameters
    ----------
    ax
        The axes.
    corners
        ``(k, 2)`` relative to the centre; up to two of them are a point or a segment.
    colour, label, zorder
        As in matplotlib.
    centre
        ``(2,)``.
    """
    ring = corners + np.asarray(centre, dtype=np.float64)
    if len(ring) > 2:
        ax.fill(*ring.T, facecolor=(colour, 0.25), edgecolor=colour, lw=1.3, zorder=zorder, label=label)
    else:
        ax.plot(*ring.T, color=colour, lw=2.5, marker="d", ms=4, zorder=zorder, label=label)


@check_arguments
def draw_noise(ax: Axes, hull: SensitivityHull | None, error_km: float) -> None:
    """Plot the shape of the noise and its root mean square next to the data.

    The limits of the axes are extended to the east. Noise that is too wide for the map is plotted at a part of the
    scale, which the picture states.

    Parameters
    ----------
    hull
        The sensitivity hull, kilometres; None if unknown.
    error_km
        The root mean square error of a release, kilometres; NaN if unknown.
    ax
        The axes.
    """
    from matplotlib.patches import Circle, Rectangle

    (west, east) = ax.get_xlim()
    (south, north) = ax.get_ylim()
    radius = error_km if np.isfinite(error_km) else 0.0
    reach = max(radius, 0.0 if hull is None else float(np.abs(hull.vertices).max(initial=0.0)))
    if not reach > 0:
        return
    room = 0.16 * max(east - west, north - south)
    part = next((part for part in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if reach / part <= room), 10_000)
    side = 2.3 * max(reach / part, room / 2)
    centre = np.array([east + side / 2, north - side / 2])
    ax.add_patch(Rectangle((east, north - side), side, side, facecolor="white", edgecolor=_GROUND, lw=0.8, zorder=8))
    if hull is not None:
        draw_body(ax, hull.vertices / part, HULL_COLOUR, "sensitivity hull", centre, zorder=9)
    if radius:
        ring: dict[str, Any] = {"fill": False, "edgecolor": RELEASE_COLOUR, "lw": 1.2, "linestyle": "--", "zorder": 9}
        ax.add_patch(Circle((float(centre[0]), float(centre[1])), radius / part, **ring))
        ax.plot([], [], "--", color=RELEASE_COLOUR, lw=1.2, label="RMS noise of a release")
    caption = "noise, to scale" if part == 1 else f"noise, at 1/{part}\nof the scale"
    below = north - side - 0.01 * (north - south)
    _write(ax, centre[0], below, caption, 2.5, va="top", fontsize=7, color=_NAME, zorder=9)
    ax.set_xlim(west, east + side)
    ax.set_ylim(south, north)


_WATER = "#c9dcea"
_PLACE_NAME = "#777777"
_LINE_STYLES: dict[str, dict[str, Any]] = {
    "stream": {"colors": "#b3cfe2", "linewidths": 0.9},
    "line": {"colors": "#9a9a9a", "linewidths": 0.8},
    "lane": {"colors": "#e6e1d6", "linewidths": 0.5},
    "street": {"colors": "#e6e1d6", "linewidths": 0.7},
    "road": {"colors": "#d8c9a3", "linewidths": 1.5},
    "border": {"colors": "#a58fa8", "linewidths": 0.9, "linestyles": (0, (6, 4))},
}
_MAX_NAMES = 18
# Small letters per inch of a figure, less the space next to the axes.
_LETTERS_PER_INCH = 13


@check_arguments
def draw_basemap(ax: Axes, basemap: Basemap, projection: LocalProjection) -> None:
    """Plot a basemap within the limits of the axes, with its attribution.

    Parameters
    ----------
    ax
        The axes.
    basemap
        Water, lines and names in degrees.
    projection
        The projection from degrees to the plane of the picture.
    """
    from matplotlib.collections import LineCollection
    from shapely.plotting import patch_from_polygon

    ax.set_facecolor(_LAND)
    for polygon in basemap.water:
        plane = shapely.transform(polygon, lambda xy: projection.to_plane(xy[:, 1], xy[:, 0]))
        ax.add_patch(patch_from_polygon(plane, facecolor=_WATER, edgecolor="none", zorder=-3))
    for kind, style in _LINE_STYLES.items():
        lines = [projection.to_plane(line[:, 1], line[:, 0]) for line in basemap.lines.get(kind, ())]
        if lines:
            ax.add_collection(LineCollection(lines, zorder=-2, **style), autolim=False)
    wide = canvas.get_width_inches(ax)
    _draw_names(ax, basemap, projection, wide)
    credit = "\n".join(wrap(basemap.credit, max(20, int(_LETTERS_PER_INCH * wide))))
    corner: dict[str, Any] = {"ha": "right", "va": "bottom", "transform": ax.transAxes}
    _write(ax, 0.998, 0.003, credit, 1.5, fontsize=5.5, color=_PLACE_NAME, zorder=10, **corner)


def _draw_names(ax: Axes, basemap: Basemap, projection: LocalProjection, wide: float) -> None:
    """Plot the first names that have space, in a figure `wide` inches wide."""
    (west, east) = ax.get_xlim()
    (south, north) = ax.get_ylim()
    letter = (east - west) / (_LETTERS_PER_INCH * wide) / 0.72  # kilometres; the axes take at least 72 % of the figure
    taken: list[tuple[float, float, float]] = []
    for place in basemap.names:
        x, y = projection.to_plane(place.latitude, place.longitude)[0].tolist()
        half = letter * (len(place.name) + 2) / 2
        is_inside = west + half < x < east - half and south + letter < y < north - letter
        overlaps = any(abs(x - a) < half + b and abs(y - c) < 2.5 * letter for a, b, c in taken)
        if is_inside and not overlaps and len(taken) < _MAX_NAMES:
            taken.append((x, half, y))
            _write(ax, x, y, place.name, 2.0, fontsize=7.5, color=_PLACE_NAME, zorder=5.5, clip_on=True)


def fit_view(ax: Axes, frame: npt.ArrayLike, points: npt.ArrayLike, reach: float = 1.0) -> int:
    """Set the limits of the axes to a frame and the points around it, except distant ones.

    Parameters
    ----------
    ax
        The axes.
    frame
        ``[[west, south], [east, north]]``, shown entirely.
    points
        ``(n, 2)``. The view is extended to them by at most `reach` times the frame's longer side at each end: noise is
        unbounded, and a single distant release would reduce everything else to a dot.
    reach
        The largest extension, as a multiple of the frame's longer side.

    Returns
    -------
    int
        The number of points outside the view; a caption should state it.
    """
    low, high = compute_view_limits(frame, points, reach)
    canvas.set_limits(ax, np.array([low, high]))
    finite = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    return int((np.isfinite(finite).all(axis=1) & ~((finite >= low) & (finite <= high)).all(axis=1)).sum())


def compute_view_limits(frame: npt.ArrayLike, points: npt.ArrayLike, reach: float = 1.0) -> FloatArray:
    """Return the limits ``[[west, south], [east, north]]`` that `fit_view` sets."""
    corners = np.asarray(frame, dtype=np.float64)
    finite = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    side = float((corners[1] - corners[0]).max()) or 1.0
    is_near = ((finite >= corners[0] - reach * side) & (finite <= corners[1] + reach * side)).all(axis=1)
    shown = np.concatenate([corners, finite[is_near]])  # a comparison with NaN is false
    margin = 0.03 * side
    return np.array([shown.min(axis=0) - margin, shown.max(axis=0) + margin])


def split_columns(points: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the two columns of points ``(n, 2)``. N may be 0."""
    array = as_points(points).reshape(-1, 2) if np.size(points) else np.zeros((0, 2))
    return array[:, 0], array[:, 1]


# The largest number of estimates with a circle of their expected error.
MAX_CIRCLES = 12

# The largest number of points that are plotted as large dots.
FEW_DOTS = 60

# The largest number of circles in the union of an area. Of more circles, evenly spaced ones are selected.
MAX_AREA_CIRCLES = 1_000

# The largest number of points that are plotted as dots. More are hexagons of their counts.
MAX_DOTS = 1_500

# In a figure narrower than this, inches, the colour bar of time is above the map.
_NARROW_INCHES = 6.0

# The largest number of true locations with separate markers.
MAX_MARKERS = 200

# The number of hexagons along the longer side of a map.
HEXAGONS = 70


@check_arguments
def draw_track(ax: Axes, points: npt.ArrayLike, label: str = "true locations (private)") -> None:
    """Plot true locations as a thin line in front, with small dots if there are few.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(n, 2)``, kilometres; n may be 0.
    label
        The label of the legend.
    """
    x, y = split_columns(points)
    dots = "." if len(x) <= MAX_MARKERS else ""
    ax.plot(
        x,
        y,
        "-",
        marker=dots,
        ms=2.5,
        color=TRUE_COLOUR,
        label=label,
        lw=0.7,
        zorder=6,
        path_effects=canvas.build_halo(1.6),
    )


@check_arguments
def draw_releases(
    ax: Axes, points: npt.ArrayLike, label: str = "released", colour: str = RELEASE_COLOUR, size: float = 3.5
) -> None:
    """Plot released locations as dots, faint if there are many, or as hexagons.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(n, 2)``, kilometres; n may be 0.
    label
        The label of the legend.
    colour
        The colour of the dots.
    size
        The size of a dot in points; few dots are larger.
    """
    x, y = split_columns(points)
    if len(x) > MAX_DOTS:
        draw_density(ax, points, colour, label, strength=0.5, zorder=3)
    elif len(x) > FEW_DOTS:
        ax.plot(x, y, "o", color=colour, markersize=size, alpha=0.3, mew=0, zorder=3, label=label)
    else:
        # Above the names of zones, at 7, which would hide one of few, and below estimates.
        style: dict[str, Any] = {"alpha": 0.9, "mec": "white", "mew": 0.6, "zorder": 7.4}
        ax.plot(x, y, "o", color=colour, markersize=1.6 * size, label=label, **style)


@check_arguments
def draw_estimates(
    ax: Axes,
    points: npt.ArrayLike,
    label: str = "estimate (posterior mean)",
    radii: npt.ArrayLike | None = None,
    times: npt.ArrayLike | None = None,
    trips: npt.ArrayLike | None = None,
    radius_label: str = "expected error of it",
) -> None:
    """Plot posterior means as small squares, or as lines coloured by time.

    More than `MAX_DOTS` of them are plotted as hexagons, see `draw_density`.

    Parameters
    ----------
    points
        ``(n, 2)``.
    radii
        ``(n,)`` radii, shown as circles around at most `MAX_CIRCLES` estimates, including the last one.
    times
        ``(n,)`` times as ``datetime64``; requires `trips`.
    trips
        ``(n,)`` integers, equal within a trip. The rows of a trip are adjacent and in the order of time.
    ax
        The axes.
    label
        The label of the legend.
    radius_label
        The label of the circles in the legend: what a radius is.
    """
    x, y = split_columns(points)
    if len(x) > MAX_DOTS:
        draw_density(ax, points, ESTIMATE_COLOUR, label, zorder=4)
        return
    places = np.column_stack([x, y])
    if radii is not None and np.size(radii):
        draw_circles(ax, places, np.asarray(radii, dtype=np.float64), radius_label)
    if times is None or trips is None or len(x) < 2:
        ax.plot(x, y, "s", color=ESTIMATE_COLOUR, markersize=3.5, alpha=0.8, mew=0, zorder=4, label=label)
    else:
        _draw_by_time(ax, places, np.asarray(times), np.asarray(trips), label)


def draw_circles(
    ax: Axes, points: FloatArray, radii: FloatArray, label: str, colour: str = ESTIMATE_COLOUR, count: int = MAX_CIRCLES
) -> None:
    """Plot circles around at most `count` points, including the last one, which is emphasized.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(n, 2)``, n at least 1.
    radii
        ``(n,)`` radii. A circle without a finite radius is omitted.
    label
        The label of the legend.
    colour
        The colour of the circles.
    count
        The largest number of circles.
    """
    from matplotlib.collections import EllipseCollection

    drawable = np.flatnonzero(np.isfinite(radii) & (radii > 0))
    if not len(drawable):
        return
    selected = drawable[np.unique(np.linspace(0, len(drawable) - 1, count).astype(np.int64))]
    faint: dict[str, Any] = {"facecolors": "none", "edgecolors": (colour, 0.4), "linewidths": 0.7, "zorder": 3}
    strong: dict[str, Any] = {
        "facecolors": "none",
        "edgecolors": colour,
        "linewidths": 1.4,
        "zorder": 3.5,
    }
    for rows, style in ((selected, faint), (selected[-1:], strong)):
        diameters = 2.0 * radii[rows]
        position: dict[str, Any] = {"offsets": points[rows], "offset_transform": ax.transData, "units": "xy"}
        ax.add_collection(EllipseCollection(diameters, diameters, np.zeros(len(rows)), **position, **style))
    ring: dict[str, Any] = {"marker": "o", "mfc": "none", "mec": colour, "mew": 1.1, "markersize": 8}
    ax.plot([], [], linestyle="none", label=label, **ring)


@check_arguments
def draw_area(ax: Axes, points: npt.ArrayLike, radii: npt.ArrayLike, label: str, colour: str = ESTIMATE_COLOUR) -> None:
    """Plot the union of circles as a faint area without lines between the points.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(n, 2)``, kilometres; n may be 0.
    radii
        ``(n,)``, kilometres. Points without a finite radius are omitted.
    label
        The label of the legend.
    colour
        The colour of the area.
    """
    from shapely.plotting import patch_from_polygon

    x, y = split_columns(points)
    reach = np.asarray(radii, dtype=np.float64)
    rows = np.flatnonzero(np.isfinite(reach) & (reach > 0))
    if not len(rows):
        return
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, MAX_AREA_CIRCLES).astype(np.int64))]
    area = shapely.union_all(shapely.buffer(shapely.points(x[rows], y[rows]), reach[rows], quad_segs=12))
    style: dict[str, Any] = {"facecolor": (colour, 0.13), "edgecolor": (colour, 0.5), "linewidth": 0.7}
    ax.add_patch(patch_from_polygon(area, linestyle=":", label=label, zorder=2, **style))


def draw_scale(ax: Axes, size: float = 7.0) -> None:
    """Plot a scale bar of a round length in the lower left corner of the axes.

    Parameters
    ----------
    ax
        Axes in kilometres, with their final limits.
    size
        The font size, points.
    """
    (west, east) = ax.get_xlim()
    (south, north) = ax.get_ylim()
    widest = 0.25 * (east - west)
    power = 10.0 ** np.floor(np.log10(widest))
    length = float(max(part * power for part in (1.0, 2.0, 5.0) if part * power <= widest))
    left = west + 0.03 * (east - west)
    bottom = south + 0.05 * (north - south)  # above the attribution of the ground
    style: dict[str, Any] = {"color": _NAME, "solid_capstyle": "butt", "zorder": 11}
    ax.plot([left, left + length], [bottom, bottom], lw=2.2, path_effects=canvas.build_halo(4.0), **style)
    text = f"{length:g} km" if length >= 1 else f"{1000 * length:g} m"
    above = bottom + 0.012 * (north - south)
    _write(ax, left + length / 2, above, text, 2.0, va="bottom", fontsize=size, color=_NAME, zorder=11)
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)


def _draw_by_time(ax: Axes, places: FloatArray, times: npt.NDArray[Any], trips: npt.NDArray[Any], label: str) -> None:
    """Plot lines of trips and a dot per timestep, coloured by time, with a colour bar."""
    import matplotlib as mpl
    from matplotlib.collections import LineCollection
    from matplotlib.colors import ListedColormap
    from matplotlib.dates import date2num

    days = np.asarray(date2num(times), dtype=np.float64)  # type: ignore[no-untyped-call]  # untyped in Matplotlib
    span = (float(days.min()), max(float(days.max()), float(days.min()) + 1e-9))
    starts = np.flatnonzero(trips[1:] == trips[:-1])
    pairs = np.stack([places[starts], places[starts + 1]], axis=1)
    colours = ListedColormap(
        mpl.colormaps["viridis"](np.linspace(0.0, 0.82, 256))
    )  # yellow is invisible on a pale background
    lines = LineCollection(list(pairs), cmap=colours, array=days[starts + 1], linewidths=1.1, alpha=0.7, zorder=4)
    lines.set_clim(*span)
    ax.add_collection(lines)
    is_few = len(places) <= FEW_DOTS
    style: dict[str, Any] = {"s": 30 if is_few else 12, "edgecolors": "white", "linewidths": 0.6 if is_few else 0.0}
    # The name of a zone, at 7, may cover some of many points, but would hide one of few.
    style["zorder"] = 7.5 if is_few else 5
    dots = ax.scatter(places[:, 0], places[:, 1], c=days, marker="s", cmap=colours, **style)
    dots.set_clim(*span)
    ax.plot([], [], "-s", color=colours(0.5), lw=1.1, markersize=3.5, label=f"{label}, by time")
    is_narrow = canvas.get_width_inches(ax) < _NARROW_INCHES
    location, shrink, aspect = ("top", 0.9, 45) if is_narrow else ("right", 0.6, 28)
    bar = ax.figure.colorbar(dots, ax=ax, pad=0.015, location=location, shrink=shrink, aspect=aspect)
    axis = bar.ax.xaxis if is_narrow else bar.ax.yaxis
    canvas.show_dates(axis)
    axis.get_offset_text().set_fontsize(7)
    bar.set_label("time (UTC)", fontsize=8)
    bar.ax.tick_params(labelsize=7)


@check_arguments
def draw_density(
    ax: Axes, points: npt.ArrayLike, colour: str, label: str, strength: float = 1.0, zorder: float = 3
) -> None:
    """Plot points ``(n, 2)`` as hexagons, coloured by the logarithm of their counts.

    Points outside the limits of the axes are omitted. With a strength below 1 even the hexagon with the largest count
    is faint.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(n, 2)``, kilometres.
    colour
        The colour of the largest count.
    label
        The label of the legend, to which the largest count is added.
    strength
        From 0 to 1.
    zorder
        As in matplotlib.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_rgb

    x, y = split_columns(points)
    (west, east) = ax.get_xlim()
    (south, north) = ax.get_ylim()
    shown = (x >= west) & (x <= east) & (y >= south) & (y <= north)
    if not shown.any():
        return
    rgb = np.array(to_rgb(colour))
    pale, full = (1.0 - (1.0 - rgb) * strength * share for share in (0.25, 1.0))
    shades = LinearSegmentedColormap.from_list("", [pale, full])
    size = max(east - west, north - south) / HEXAGONS
    grid = (max(2, round((east - west) / size)), max(2, round((north - south) / size / 3**0.5)))
    options: dict[str, Any] = {"gridsize": grid, "extent": (west, east, south, north), "mincnt": 1, "zorder": zorder}
    hexagons = ax.hexbin(x[shown], y[shown], cmap=shades, norm=LogNorm(), linewidths=0.0, **options)
    largest = int(np.asarray(hexagons.get_array()).max())
    hexagons.set_norm(LogNorm(1, max(largest, 2)))
    ax.plot([], [], "h", color=shades(0.7), mew=0, label=f"{label}: up to {largest:,} in a hexagon")
    ax.set_xlim(west, east)
    ax.set_ylim(south, north)


@check_arguments
def draw_outside(ax: Axes, points: npt.ArrayLike, label: str) -> None:
    """Plot true locations outside the region as at most `MAX_MARKERS` crosses.

    The label states their number.

    Parameters
    ----------
    ax
        The axes.
    points
        ``(n, 2)``, kilometres; n may be 0.
    label
        The label of the legend.
    """
    x, y = split_columns(points)
    if len(x):
        rows = np.unique(np.linspace(0, len(x) - 1, MAX_MARKERS).astype(np.int64))
        style: dict[str, Any] = {"markersize": 3.5, "mew": 0.7, "alpha": 0.7, "zorder": 7}
        ax.plot(x[rows], y[rows], "x", color=EXPOSED_COLOUR, label=f"{label}: {len(x):,}", **style)
