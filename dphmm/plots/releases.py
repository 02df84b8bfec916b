"""Releases as a picture, or as a map to open in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.geometry.hull import SensitivityHull
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.stored_releases import read_released
from dphmm.model.model import MarkovModel
from dphmm.plots import figures, maps
from dphmm.plots.basemap import Basemap, basemap_of
from dphmm.plots.figures import Axes
from dphmm.plots.webmap import MapLayer, MapPolicy, tile_host, web_map
from dphmm.policy.expression import parse_policy, policy_in_words, policy_label
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, names_of
from dphmm.policy.graph_text import policy_text
from dphmm.policy.zones import read_polygons
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_database import is_server
from dphmm.release.settings import GIVEN
from dphmm.space.grid import Grid
from dphmm.space.states import OUTSIDE, LocalProjection, StateSpace
from dphmm.space.trajectory import Trajectory
from dphmm.tables import check_output, private_name, write_text
from dphmm.tables.values import parse_time, writable
from dphmm.tables.vector_files import check_vector_file
from dphmm.writers.geopackage import places, trips, user_trips
from dphmm.writers.table import ReleaseTable

Polygons = Sequence[tuple[str, shapely.Geometry]]
"""Named polygons in degrees, longitude first, as `dphmm.policy.zones.read_polygons` gives them."""

_OF_RELEASES = ("epsilon", "expected_error_m", "mechanism")
_OF_ESTIMATES = ("withheld_for", "epsilon_last_day", "possible_states")
"""What a page tells of a release, and of a moment, besides where and when."""

_MOST_LISTED = 100_000
"""Of a policy with more edges than this a page tells none."""

_SHOWN = (0.02, 0.98)
"""A picture grows for the releases between these quantiles: noise has no bound."""
_REACH = 0.3
"""By this part of the longer side at most, at each end."""
_LEAST_SIDE_KM = 1.0
_AROUND = 1.5
"""How far a page's basemap reaches beyond the places, in their width."""


@checked
@dataclass(eq=False)
class ReleaseMap:
    """What is to be seen on a map of releases, in one plane.

    Parameters
    ----------
    table
        The releases.
    space
        The states; left out, the plane is the one around the released places, and no cells are drawn.
    tracks
        True trajectories to draw over the releases. A map with them is as private as they are.
    outlines
        Named polygons to draw below.
    policy
        A policy over the states, to draw its edges, and its hull once, beside the data.
    policy_text
        The policy as it was written, for the title.
    remarks
        Further sentences for the note, such as between which places a release hides; what is said there must be known
        of the releases.
    basemap
        A file to draw below everything, see `dphmm.plots.read_basemap`; where it has no water or no names, or is left
        out, those of the map of the world that the package holds are drawn.
    """

    table: ReleaseTable
    space: StateSpace | None = None
    tracks: Sequence[Trajectory] = ()
    outlines: Polygons = ()
    policy: PolicyGraph | None = None
    policy_text: str = ""
    basemap: str | Path | None = None
    remarks: str = ""

    def __post_init__(self) -> None:
        self.table = self.table.select(places(self.table, "estimate")[2])
        if self.policy is not None and self.space is not None:
            self.policy = as_policy(self.policy, self.space.size, names_of(self.space))
        self.projection = self.space.projection if self.space is not None else _around(self.table)
        self.rings = [  # the outer ones, latitude and longitude
            (name, shapely.get_coordinates(polygon.exterior)[:, ::-1])
            for name, shape in self.outlines
            for polygon in shapely.get_parts(shape)
        ]
        drawn = self.table.select(self.table.placed)
        self._released = self._plane(drawn["latitude"], drawn["longitude"])
        self._estimates = self._plane(self.table["estimate_latitude"], self.table["estimate_longitude"])
        self._beyond = [part for track in self.tracks for part in self._outside(track)]
        self._error_m = _median(self.table["expected_error_m"])

    # ---- in words ------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What was promised and how far it is off: the policy, the budget of a release, the errors in metres."""
        table = self.table
        drawn = table.select(~table["withheld"])
        what = self.policy_text or " and ".join(sorted(set(drawn["mechanism"].tolist()))) or "releases"
        budgets = drawn["epsilon"]
        if len(budgets):
            low, high = float(budgets.min()), float(budgets.max())
            what += f", ε = {low:.3g}" if low == high else f", ε = {low:.3g} to {high:.3g}"
        told = (("releases", drawn["expected_error_m"]), ("estimates", table["estimate_radius_m"]))
        errors = [(said, _metres(values)) for said, values in told if np.isfinite(values).any()]
        return f"{what}: {', '.join(f'{said} {off} off' for said, off in errors)}" if errors else what

    @property
    def note(self) -> str:
        """What is on the map and how private it is, in a few sentences."""
        users = len(set(self.table["user"].tolist()))
        withheld = int(self.table["withheld"].sum())
        text = f"{len(self.table) - withheld:,} private releases of {users:,} user{'s' if users != 1 else ''}."
        if withheld:
            text = f"{text[:-1]}, and predictions at {withheld:,} moments without one."
        text += f" {self.remarks}" if self.remarks else ""
        text += " Errors are medians of what the model expects."
        return text + (" The true places are on it too: this map is not for publication." if self.tracks else "")

    # ---- as a picture --------------------------------------------------------------------------------------------

    def draw(self, ax: Axes) -> int:
        """Draw everything into an `ax`; how many releases lie outside the view.

        Parameters
        ----------
        ax
            Where to draw.

        Returns
        -------
        int
            How many releases lie outside what is in view; a caption should say so.
        """
        released = self._released
        frame = self._frame()
        most = frame if not len(released) else np.quantile(released, _SHOWN, axis=0)
        reach = _REACH * float((frame[1] - frame[0]).max())
        maps.fit_view(ax, frame, np.clip(most, frame[0] - reach, frame[1] + reach))
        (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
        outside = len(released) - int(((released >= [west, south]) & (released <= [east, north])).all(axis=1).sum())
        if self.space is not None:
            maps.draw_space(ax, self.space)
        outlines: dict[str, list[FloatArray]] = {}
        for name, ring in self.rings:
            outlines.setdefault(name, []).append(self._plane(ring[:, 0], ring[:, 1]))
        maps.draw_outlines(ax, outlines)
        if self.space is not None and self.policy is not None:
            edges = some_edges(self.policy, maps.MOST_EDGES)
            if edges is not None:
                maps.draw_edges(ax, self.space.points, edges, figures.EDGE, 0.3, "policy edges", zorder=1)
        maps.draw_releases(ax, released)
        several = len(set(self.table["user"].tolist())) > 1
        order, numbers = self._trips()
        times, radii = self.table["time"][order], self.table["estimate_radius_m"][order] / 1000.0
        shown = None if several else radii
        maps.draw_estimates(ax, self._estimates[order], radii=shown, times=times, trips=numbers)
        for track, points in zip(self.tracks, self._truth, strict=True):
            for trip in _cut(track):
                maps.draw_track(ax, points[trip])
        if self._beyond:
            beyond = np.concatenate([self._plane(one.latitude, one.longitude) for one in self._beyond])
            maps.draw_outside(ax, beyond, "outside the region, moved to its border or dropped")
        maps.draw_noise(ax, self._hull, self._error_m / 1000.0)
        draw_ground(ax, self.projection, self.basemap)
        figures.label_map(ax)
        figures.legend_below(ax)
        return outside

    def draw_with_note(self, ax: Axes) -> str:
        """Draw everything into an `ax`; the note, and how many releases lie outside the view.

        Parameters
        ----------
        ax
            Where to draw.

        Returns
        -------
        str
            The picture's caption.
        """
        outside = self.draw(ax)
        said = "release lies" if outside == 1 else "releases lie"
        return f"{self.note} {outside:,} {said} outside the picture." if outside else self.note

    # ---- as a page -----------------------------------------------------------------------------------------------

    def to_html(self, title: str = "", tiles: str | None = None, credit: str = "") -> str:
        """The map as one HTML page; see `dphmm.plots.web_map`.

        Parameters
        ----------
        title
            Left out, that of the map.
        tiles, credit
            The address of a server of map tiles in place of the basemap, and whose they are.

        Returns
        -------
        str
            The page.
        """
        low, high = self._frame()
        margin = _AROUND * float((high - low).max())
        basemap = None if tiles else _basemap(self.basemap, self.projection, low - margin, high + margin)
        layers, policy = [*self._ground(), *self._moments(), *self._true_layers()], self._policy()
        said = title or self.title
        return web_map(layers, said, self.note, basemap=basemap, policy=policy, tiles=tiles, credit=credit)

    def _ground(self) -> list[MapLayer]:
        layers = []
        if isinstance(self.space, Grid):
            lines = [self.projection.to_latlon(line) for line in _grid_lines(self.space)]
            layers.append(MapLayer("states", "strokes", "#d3d0c6", lines))
        elif self.space is not None:
            layers.append(MapLayer("states", "dots", "#888888", self.space.latlon()))
        if self.rings:
            names = [name for name, _ in self.rings]
            layers.append(MapLayer("areas", "outlines", "#888888", [ring for _, ring in self.rings], {"name": names}))
        return layers

    def _moments(self) -> list[MapLayer]:
        table = self.table
        drawn = table.select(table.placed)
        points = np.column_stack([drawn["latitude"], drawn["longitude"]])
        when: dict[str, Any] = {"users": drawn["user"], "times": drawn["time"]}
        facts = {name: drawn[name] for name in _OF_RELEASES}
        released = MapLayer("released", "dots", figures.RELEASED, points, facts, **when)
        order, numbers = self._trips()
        trip = np.zeros(len(table), dtype=np.int64)
        trip[order] = numbers
        points = np.column_stack([table["estimate_latitude"], table["estimate_longitude"]])
        when = {"users": table["user"], "times": table["time"], "radii": table["estimate_radius_m"], "trips": trip}
        facts = {name: table[name] for name in _OF_ESTIMATES}
        name = "estimate (posterior mean)"
        return [released, MapLayer(name, "line", figures.ESTIMATE, points, facts, by_time=True, **when)]

    def _true_layers(self) -> list[MapLayer]:
        if not self.tracks:
            return []

        def joined(name: str, kind: Any, colour: str, parts: Sequence[Trajectory]) -> MapLayer:
            points = np.concatenate([np.column_stack([one.latitude, one.longitude]) for one in parts])
            users = np.concatenate([np.full(len(one), one.user, dtype=object) for one in parts])
            times = np.concatenate([one.times for one in parts])
            numbers = [np.repeat(np.arange(len(cut)), [len(some) for some in cut]) for cut in map(_cut, parts)]
            return MapLayer(name, kind, colour, points, users=users, times=times, trips=np.concatenate(numbers))

        layers = [joined("true places (private)", "line", figures.TRUE, self.tracks)]
        if self._beyond:
            name = "outside the region (private): moved to its border or dropped"
            layers.append(joined(name, "dots", figures.EXPOSED, self._beyond))
        return layers

    def _policy(self) -> MapPolicy | None:
        error = self._error_m
        if self.policy is None or self.space is None or self._hull is None:
            return MapPolicy(np.zeros((0, 2)), error_m=error) if np.isfinite(error) else None
        edges = some_edges(self.policy, _MOST_LISTED)
        listed = np.zeros((0, 2), dtype=np.int64) if edges is None else edges
        return MapPolicy(self.space.latlon(), listed, self._hull.vertices, error, self.policy_text)

    # ---- where things are ----------------------------------------------------------------------------------------

    @cached_property
    def _hull(self) -> SensitivityHull | None:
        if self.space is None or self.policy is None:
            return None
        return SensitivityHull(self.policy.differences(self.space.points))

    def _trips(self) -> tuple[IntArray, IntArray]:
        """The rows by user and time, and the number of the trip of each."""
        order = [trip.rows for trip in user_trips(self.table)]
        lengths = [len(trip) for trip in order]
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([*order, empty]), np.repeat(np.arange(len(order)), lengths)

    def _outside(self, track: Trajectory) -> list[Trajectory]:
        """The fixes of a track outside the region, as a track; none where there are none."""
        if self.space is None:
            return []
        chosen = self.space.locate(track.latitude, track.longitude) == OUTSIDE
        if not chosen.any():
            return []
        return [Trajectory(track.user, track.times[chosen], track.latitude[chosen], track.longitude[chosen])]

    def _plane(self, latitude: npt.NDArray[Any], longitude: npt.NDArray[Any]) -> FloatArray:
        return self.projection.to_plane(latitude, longitude) if len(latitude) else np.zeros((0, 2))

    @cached_property
    def _truth(self) -> list[FloatArray]:
        return [self._plane(track.latitude, track.longitude) for track in self.tracks]

    def _frame(self) -> FloatArray:
        """A rectangle around the estimates, as far as they are off, and true places; of a kilometre at least."""
        points = np.concatenate([self._estimates, *self._truth])
        if not len(points):
            return np.array([[-1.0, -1.0], [1.0, 1.0]]) if self.space is None else maps.extent(self.space)
        low, high = points.min(axis=0), points.max(axis=0)
        off = _median(self.table["estimate_radius_m"]) / 1000.0
        around = max(off, _LEAST_SIDE_KM / 2) if np.isfinite(off) else _LEAST_SIDE_KM / 2
        middle, half = (low + high) / 2, (high - low) / 2 + around
        half = np.maximum(half, half.max() / 1.5)  # no strip of a map
        return np.array([middle - half, middle + half])


def draw_ground(ax: Axes, projection: LocalProjection, basemap: str | Path | None) -> None:
    """Draw the basemap below what is in view.

    Parameters
    ----------
    ax
        Where to draw, in kilometres.
    projection
        From degrees to these.
    basemap
        A file, as for `ReleaseMap`.
    """
    low, high = np.array([ax.get_xlim(), ax.get_ylim()]).T
    maps.draw_basemap(ax, _basemap(basemap, projection, low, high), projection)


def some_edges(policy: PolicyGraph, most: int) -> IntArray | None:
    """The edges ``(m, 2)`` of a policy; None where there are more than `most`.

    Parameters
    ----------
    policy
        The policy.
    most
        The bound.

    Returns
    -------
    numpy.ndarray or None
        Each edge once, in order.
    """
    found, count = [np.zeros((0, 2), dtype=np.int64)], 0
    for block in policy.edge_blocks():
        found.append(block)
        count += len(found[-1])
        if count > 2 * most:
            found = [np.unique(np.concatenate(found), axis=0)]
            count = len(found[0])
            if count > most:
                return None
    edges = np.unique(np.concatenate(found), axis=0)
    return edges if len(edges) <= most else None


def _grid_lines(grid: Grid) -> list[FloatArray]:
    """The sides of a grid's cells, as few lines as there are runs of them."""
    filled = np.zeros((grid.rows + 2, grid.columns + 2), dtype=np.bool_)
    filled[grid.lattice[:, 1] + 1, grid.lattice[:, 0] + 1] = True
    lines = []
    for axis in (0, 1):
        cells = filled if axis == 0 else filled.T
        sides = cells[:-1] | cells[1:]  # a side between a cell and the next row's
        for number in np.flatnonzero(sides.any(axis=1)):
            turns = np.flatnonzero(np.diff(sides[number].astype(np.int8)))
            for start, end in turns.reshape(-1, 2).tolist():
                along = np.linspace(start, end, 2 + (end - start) // 16)
                across = np.full(len(along), float(number))
                steps = np.column_stack([along, across] if axis == 0 else [across, along])
                lines.append(grid.origin + grid.cell_km * (steps - 0.5))
    return lines


def _cut(track: Trajectory) -> list[IntArray]:
    return trips(np.arange(len(track)), track.times)


def _around(table: ReleaseTable) -> LocalProjection:
    if not len(table):
        return LocalProjection(0.0, 0.0)
    return LocalProjection(float(np.median(table["estimate_latitude"])), float(np.median(table["estimate_longitude"])))


def _median(values: npt.NDArray[Any]) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _metres(values: npt.NDArray[Any]) -> str:
    middle = _median(values)
    return f"{middle:,.0f} m" if middle < 10_000 else f"{middle / 1000:,.0f} km"


def _basemap(path: str | Path | None, projection: LocalProjection, low: FloatArray, high: FloatArray) -> Basemap:
    """The basemap of a rectangle of the plane; an empty one over the date line, or beyond the Earth's plane."""
    turns = np.linspace(0.0, 1.0, 17)
    sides = [np.column_stack([turns, np.full(17, end)]) for end in (0.0, 1.0)]
    corners = low + np.concatenate([*sides, *(side[:, ::-1] for side in sides)]) * (high - low)
    if np.abs(corners).max() > 6000:
        return Basemap()
    north, east = projection.to_latlon(corners).T
    if east.max() - east.min() > 180:
        return Basemap()
    return basemap_of(path, (float(north.min()), float(east.min()), float(north.max()), float(east.max())))


_WIDE = 9.0
"""Inches."""


@checked
def show(
    releases: str | Path,
    output: str | Path | None = None,
    *,
    model: Model | None = None,
    policy: str | PolicyLike | None = None,
    layer: str | Path | None = None,
    basemap: str | Path | None = None,
    tiles: str | None = None,
    true: DataLike | None = None,
    users: Sequence[str] = (),
    start: str | None = None,
    end: str | None = None,
    title: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Draw the releases in a file, a batch's folder or a store of sessions, as ``dphmm show`` does.

    Parameters
    ----------
    releases
        A file that `dphmm.jobs.release` wrote, the folder of a `dphmm.jobs.batch`, or a SQLite file of sessions or the
        address of a PostgreSQL server that keeps them, which need their model.
    output
        A .png, .svg or .pdf picture, or an .html page that needs no network; left out, a page beside the releases. With
        `true` its name must say that it is private, and only its owner may read it.
    model
        The model, to draw its states.
    policy
        With `model`: a policy as text or as a graph, to draw its edges and its hull. Left out, the one of a batch or of
        sessions that agree on it.
    layer
        Polygons to draw below: GeoJSON, KML or GeoPackage.
    basemap
        A map to draw below everything, see `dphmm.plots.read_basemap`; left out, the coarse one of the world that the
        package holds.
    tiles
        For a page: the address of a server of map tiles in place of a basemap, as ``https://host/{z}/{x}/{y}.png``.
        The browser of the page tells that server which part of the world is looked at.
    true
        True trajectories to draw, of the users that were released: the map is private then.
    users, start, end
        These users alone; no release before, and none at or after these times (ISO 8601, UTC).
    title
        The title of the map; left out, the policy, the budget and the errors in metres.
    overwrite
        Whether an output that exists may be replaced.

    Returns
    -------
    Path
        The file, which appears whole or not at all.

    Raises
    ------
    ConfigurationError
        For another ending, a policy or sessions without a model, tiles in a picture or beside a basemap, a name that
        hides that true places are shown, or when no release is left to draw.
    OutputError
        When the file exists and may not be overwritten, or cannot be written; before anything is read.
    MissingDependencyError
        For a picture without matplotlib.
    DataFileError
        When a file cannot be read as what it should be.
    """
    if not Path(releases).name:
        raise ConfigurationError(f"{releases!r} names no file of releases; give one")
    if is_server(releases) and output is None:
        raise ConfigurationError("a server has no folder to write to; name an output")
    page = Path(releases).with_suffix(".html")
    path = Path(output) if output is not None else page if true is None else page.with_name(f"PRIVATE-{page.name}")
    is_page = figures.is_page(path)
    if tiles is not None:
        tile_host(tiles)
        if basemap is not None or not is_page:
            raise ConfigurationError("--tiles is for a page without --basemap; leave one of them out")
    check_output(path if true is None else private_name(path), overwrite)
    if basemap is not None:
        check_vector_file(basemap)
    learned = model if isinstance(model, MarkovModel) or model is None else load_model(model)
    released = read_released(releases, learned, users)
    table = _chosen(released.table, users, start, end)
    parts = () if true is None else (while_released(one, table) for one in Data.from_any(true).read().trajectories)
    tracks = tuple(part for part in parts if part is not None)
    if policy is not None and learned is None:
        raise ConfigurationError("--policy needs the states that it is about; give --model too")
    wanted = None if policy is None else policy_text(policy)
    graph, text, remarks = _policy(table, released.settings, wanted, learned)
    space = None if learned is None else learned.states
    areas = read_polygons(layer) if layer is not None else ()
    found = ReleaseMap(table, space, tracks, areas, graph, text, basemap, " ".join(remarks))
    named, private = writable(title or found.title), true is not None
    if is_page:
        write_text(path, found.to_html(named, tiles), overwrite, private)
    else:
        figures.save_picture(_figure(found, named), path, overwrite, private)
    return path


def _policy(
    table: ReleaseTable, settings: ReleaseSettings | None, given: str | None, model: MarkovModel | None
) -> tuple[PolicyGraph | None, str, list[str]]:
    """The policy given, or the one that a batch or sessions name; and whether the rows say that it is theirs.

    It is told where it can be drawn, as a title has it, and with what is said of it and of the model.
    """
    remarks = []
    if model is not None and set(table["model"].tolist()) != {model.content_hash[:16]}:
        remarks.append("The states drawn are those of another model than the releases'.")
    text = given or ("" if settings is None else settings.policy)
    if not text or text.startswith(GIVEN):
        return None, "", remarks
    try:
        theirs = _is_theirs(table, settings, text)
        layers = () if settings is None else settings.layers
        graph = None if model is None else parse_policy(text, model.space, model.structure, layers)
    except DataFileError:
        if given is not None:
            raise
        return None, policy_label(text), [*remarks, "A file that the policy names is gone: it is not drawn."]
    if theirs:
        return graph, policy_label(text), [f"A release hides between {policy_in_words(text)}.", *remarks]
    if given is None:
        return None, policy_label(text), [*remarks, "A file that the policy names has changed since: it is not drawn."]
    said = "The releases do not say that the policy drawn is theirs: it was given with the map."
    return graph, f"{policy_label(text)} (as given)", [*remarks, said]


def _is_theirs(table: ReleaseTable, settings: ReleaseSettings | None, text: str) -> bool:
    """Whether the hashes in the rows are those of settings with a policy, the others as named or left at default."""
    stated = set(table["settings"].tolist())
    drawn = table.select(~table["withheld"])
    several = set(zip(drawn["epsilon"].tolist(), drawn["mechanism"].tolist(), strict=True))
    tried = [] if settings is None else [replace(settings, policy=text)]
    if len(several) <= len(stated):  # budgets that differ under one hash are a schedule's
        tried += [ReleaseSettings(text, epsilon, mechanism) for epsilon, mechanism in several]
    return stated <= {one.content_hash[:16] for one in tried}


def _figure(found: ReleaseMap, title: str) -> Any:
    """The map as a picture with its title and its note above it."""
    figure, ax = figures.new_figure(_WIDE, _WIDE)
    note = wrap(found.draw_with_note(ax), 105)
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    figure.set_size_inches(_WIDE, min(max(_WIDE * 0.74 * (north - south) / (east - west), 3.0), 12.0) + 2.0)
    ax.text(0.5, 1.01, "\n".join(note), transform=ax.transAxes, ha="center", va="bottom", fontsize=8, color="#555555")
    ax.set_title("\n".join(wrap(title, 80)), fontsize=11, pad=8 + 11 * len(note))
    return figure


def _chosen(table: ReleaseTable, users: Sequence[str], start: str | None, end: str | None) -> ReleaseTable:
    table = rows_of_users(table, users)
    kept = np.ones(len(table), dtype=np.bool_)
    if start is not None:
        kept &= table["time"] >= _moment(start, "--from")
    if end is not None:
        kept &= table["time"] < _moment(end, "--to")
    if not kept.any():
        raise ConfigurationError("no release is left to draw; choose other users or times")
    return table.select(kept)


def rows_of_users(table: ReleaseTable, users: Sequence[str]) -> ReleaseTable:
    """The releases of some users.

    Parameters
    ----------
    table
        The releases.
    users
        Their users; all of them where none is named.

    Returns
    -------
    ReleaseTable
        Their rows, in the table's order.

    Raises
    ------
    ConfigurationError
        When one of them has no release.
    """
    known = sorted(set(table["user"].tolist()))
    for user in users:
        if user not in known:
            raise ConfigurationError(f"user {user!r} has no release; there are {', '.join(known[:8])}")
    return table.select(np.isin(table["user"].astype(str), users)) if users else table


def while_released(track: Trajectory, table: ReleaseTable) -> Trajectory | None:
    """The part of a track from its user's first release to the last; None where there is none.

    Parameters
    ----------
    track
        A true trajectory.
    table
        The releases, of any users.

    Returns
    -------
    Trajectory or None
        As private as the track.
    """
    times = table["time"][table["user"] == track.user]
    return track.between(times.min(), times.max() + np.timedelta64(1, "s")) if len(times) else None


def _moment(text: str, option: str) -> np.datetime64:
    try:
        return np.datetime64(parse_time(text), "us")
    except ValueError as problem:
        raise ConfigurationError(f"{option}: {problem}") from None
