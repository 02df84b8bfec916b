"""Pictures and interactive maps of releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.release.stored import get_user_name, read_released
from dphmm.model.model import MarkovModel
from dphmm.plots import canvas, maps
from dphmm.plots.basemap import Basemap, add_credit, build_basemap, get_states_credit
from dphmm.plots.canvas import Axes
from dphmm.plots.webmap import MapLayer, MapPolicy, build_web_map, parse_tile_host
from dphmm.policy.expression import describe_policy, format_policy_label, parse_policy
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, get_state_names
from dphmm.policy.graph_text import format_policy_text
from dphmm.policy.zones import read_polygons
from dphmm.release.database_backends import is_server
from dphmm.release.engine import ReleaseSettings
from dphmm.release.settings import GRAPH_POLICY_PREFIX
from dphmm.space.grid import Grid
from dphmm.space.projection import LocalProjection, unwrap_longitudes
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.streets import Streets
from dphmm.space.trajectory import Trajectory
from dphmm.tables import check_output, private_name, write_text
from dphmm.tables.values import iso_time, parse_time, replace_surrogates
from dphmm.tables.vector_files import check_vector_file
from dphmm.validation import check_arguments
from dphmm.writers.geopackage import SEEDED_NOTE, list_trips, split_into_trips
from dphmm.writers.release_table import ReleaseTable, get_locations

# Named polygons in degrees, longitude first, as returned by `dphmm.policy.zones.read_polygons`.
Polygons = Sequence[tuple[str, shapely.Geometry]]

_RELEASE_FACTS = ("epsilon", "expected_error_m", "mechanism")
_ESTIMATE_FACTS = ("withheld_reason", "epsilon_24h", "possible_states")

# A page omits the edges of a policy with more edges than this.
_MAX_LISTED_EDGES = 100_000

# A picture is extended to the releases and circles between these quantiles, because noise is unbounded, at each end by
# at most this share of its longer side.
_SHOWN_QUANTILES = (0.02, 0.98)
_MAX_EXTENSION = 0.3

_MIN_SIDE_KM = 1.0

_SAMPLED = "sampled location"
_ESTIMATED = "estimate at a sample"
_PREDICTED = "predicted between samples"

# The colours of users on one map. The colour of samples is the seventh, and black is that of true locations.
_USER_COLOURS = (canvas.BLUE, canvas.ORANGE, canvas.GREEN, canvas.PURPLE, "#56b4e9", "#8c564b", canvas.RED)

# The largest number of users with a panel each in a picture. More are plotted on one map as counts.
MAX_PANELS = 36

_MANY_USERS = "Predictions and circles are not shown for this number of users: select some with --users."

# Up to this number of panels are in one row.
_MAX_PANELS_IN_ROW = 3

# Up to this number of columns a panel has room for names.
_LARGE_PANEL_COLUMNS = 3
_MAX_NAME_LETTERS = 16

# The margin of a page's basemap around the locations, as a multiple of their width.
_BASEMAP_MARGIN = 1.5


@check_arguments
@dataclass(eq=False)
class ReleaseMap:
    """The content of a map of releases, in one plane.

    Parameters
    ----------
    table
        The releases.
    space
        The states. Without them the plane is centred on the releases, and no cells are plotted.
    tracks
        True trajectories to plot over the releases. A map with them is as private as they are.
    outlines
        Named polygons in the background.
    policy
        A policy over the states, to plot its edges, and its hull once, next to the data.
    policy_text
        The policy as it was written, for the title.
    remarks
        Additional sentences for the note, such as the locations that the policy connects. They must be true of the
        releases.
    basemap
        A file for the background, see `dphmm.plots.read_basemap`. Water and names that it lacks are taken from the
        package's map of the world.
    is_private
        Whether the noise came from the operating system; None if this is unknown.
    """

    table: ReleaseTable
    space: StateSpace | None = None
    tracks: Sequence[Trajectory] = ()
    outlines: Polygons = ()
    policy: PolicyGraph | None = None
    policy_text: str = ""
    basemap: str | Path | None = None
    remarks: str = ""
    is_private: bool | None = None

    def __post_init__(self) -> None:
        self.table = self.table.select(get_locations(self.table, "estimate")[2])
        if self.policy is not None and self.space is not None:
            self.policy = as_policy(self.policy, self.space.size, get_state_names(self.space))
        self.projection = self.space.projection if self.space is not None else _build_centred_projection(self.table)
        self.rings = [  # the outer ones, latitude and longitude
            (name, shapely.get_coordinates(polygon.exterior)[:, ::-1])
            for name, shape in self.outlines
            for polygon in shapely.get_parts(shape)
        ]
        located = self.table.select(self.table.placed)
        self._released = self._project_to_plane(located["latitude"], located["longitude"])
        self._estimates = self._project_to_plane(self.table["estimate_latitude"], self.table["estimate_longitude"])
        self._outside_tracks = [part for track in self.tracks for part in self._select_outside(track)]
        self._error_m = _compute_median(self.table["expected_error_m"])

    # ---- in words ------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """The policy, the budget of a release, and the median errors."""
        table = self.table
        sampled = table.select(~table["withheld"])
        title = self.policy_text or " and ".join(sorted(set(sampled["mechanism"].tolist()))) or "releases"
        budgets = sampled["epsilon"]
        if len(budgets):
            low = float(budgets.min())
            high = float(budgets.max())
            title += f", ε = {low:.3g}" if low == high else f", ε = {low:.3g} to {high:.3g}"
        protected = table.select(~table["unprotected"])  # as in the summary of a release
        columns = (("releases", protected["component_error_m"]), ("estimates", protected["estimate_error_m"]))
        errors = [f"of {name} {_format_median(values)}" for name, values in columns if np.isfinite(values).any()]
        return f"{title}: median error {', '.join(errors)}" if errors else title

    @property
    def note(self) -> str:
        """The content of the map and its privacy, in a few sentences."""
        users = len(set(self.table["user"].tolist()))
        withheld = int(self.table["withheld"].sum())
        released = len(self.table) - withheld
        kind = {True: "private ", False: "repeatable ", None: ""}[self.is_private]
        text = f"{released:,} {kind}release{'s' if released != 1 else ''} of {users:,} user{'s' if users != 1 else ''}."
        if withheld:
            text = f"{text[:-1]}, and predictions at {withheld:,} timesteps without a release."
        text += f" {SEEDED_NOTE}" if self.is_private is False else ""
        text += f" {self.remarks}" if self.remarks else ""
        text += " Errors are medians of the errors expected under the model."
        return text + (" The map contains true locations: do not publish it." if self.tracks else "")

    # ---- as a picture --------------------------------------------------------------------------------------------

    def draw(self, ax: Axes) -> int:
        """Plot the map into an `ax`.

        Parameters
        ----------
        ax
            The axes.

        Returns
        -------
        int
            The number of releases outside the view; a caption should state it.
        """
        frame, view, outside = self._compute_view(has_circles=len(self.users) <= len(_USER_COLOURS))
        maps.fit_view(ax, frame, view)
        if self.space is not None:
            maps.draw_space(ax, self.space)
        outlines: dict[str, list[FloatArray]] = {}
        for name, ring in self.rings:
            outlines.setdefault(name, []).append(self._project_to_plane(ring[:, 0], ring[:, 1]))
        maps.draw_outlines(ax, outlines)
        if self.space is not None and self.policy is not None:
            edges = collect_edges(self.policy, maps.MAX_EDGES)
            if edges is not None:
                maps.draw_edges(ax, self.space.points, edges, canvas.EDGE_COLOUR, 0.3, "policy edges", zorder=1)
        self._draw_published(ax)
        for track, points in zip(self.tracks, self._truth, strict=True):
            for trip in _split_trips(track):
                maps.draw_track(ax, points[trip])
        if self._outside_tracks:
            outside_points = [self._project_to_plane(track.latitude, track.longitude) for track in self._outside_tracks]
            maps.draw_outside(ax, np.concatenate(outside_points), "outside the region, moved to its border or dropped")
        maps.draw_noise(ax, self._hull, self._error_m / 1000.0)
        maps.draw_scale(ax)
        draw_ground(ax, self.projection, self.basemap, self.space)
        canvas.label_map(ax)
        canvas.place_legend_below(ax)
        return outside

    def _draw_published(self, ax: Axes) -> None:
        """Plot what is published: of one user by time, of few users by colour, of many alike."""
        users = self.users
        if len(users) > len(_USER_COLOURS):
            maps.draw_releases(ax, self._released, _SAMPLED)
            maps.draw_estimates(ax, self._estimates[~self.table["withheld"]], _ESTIMATED)
            return
        for user, colour in zip(users, _USER_COLOURS, strict=False):
            self._draw_user(ax, user, colour if len(users) > 1 else None, f", {user}" if len(users) > 1 else "")

    def _draw_user(
        self,
        ax: Axes,
        user: str,
        colour: str | None = None,
        suffix: str = "",
        size: float = 3.5,
        sample_colour: str | None = None,
    ) -> None:
        """Plot what is published of a user, coloured by time if there is no colour."""
        of_user = self.table["user"] == user
        predicted = of_user & self.table["withheld"]
        is_single = colour is None
        shade = colour or canvas.ESTIMATE_COLOUR
        radii = self._radii / 1000.0
        maps.draw_area(ax, self._estimates[predicted], radii[predicted], f"{_PREDICTED}{suffix}", shade)
        order, numbers = self._number_sample_trips()
        kept = of_user[order] & ~self.table["withheld"][order]
        rows = order[kept]
        placed = rows[self.table.placed[rows]]
        samples = self._project_to_plane(self.table["latitude"][placed], self.table["longitude"][placed])
        dots = sample_colour or colour or canvas.RELEASE_COLOUR
        maps.draw_releases(ax, samples, f"{_SAMPLED}{suffix}", dots, size)
        if not len(rows):
            return
        places = self._estimates[rows]
        if is_single:
            times = self.table["time"][rows]
            maps.draw_estimates(ax, places, _ESTIMATED, radii[rows], times, numbers[kept], self._radius_name)
            return
        maps.draw_circles(ax, places, radii[rows], f"{self._radius_name}{suffix}", shade, count=1)
        for trip in np.unique(numbers[kept]):
            ax.plot(*places[numbers[kept] == trip].T, "-", color=shade, lw=0.8, alpha=0.6, zorder=4)
        square: dict[str, Any] = {
            "color": shade,
            "markersize": max(size, 3.2),
            "mew": 0.5,
            "mec": "white",
            "zorder": 4.6,
        }
        ax.plot(*places.T, "s", label=f"{_ESTIMATED}{suffix}", **square)

    def draw_panels(self, figure: Any) -> str:
        """Plot a map for each user, all with one view.

        Parameters
        ----------
        figure
            A figure of matplotlib without axes.

        Returns
        -------
        str
            The picture's caption, with the attribution of the ground.
        """
        users = self.users
        columns = len(users) if len(users) <= _MAX_PANELS_IN_ROW else int(np.ceil(np.sqrt(len(users))))
        rows = -(-len(users) // columns)
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        frame, view, outside = self._compute_view(has_circles=True)
        is_small = columns > _LARGE_PANEL_COLUMNS
        ground = Basemap()
        for number, (ax, user) in enumerate(zip(panels, users, strict=False)):
            maps.fit_view(ax, frame, view)
            if self.space is not None:
                maps.draw_outline(ax, self.space)
            size = 2.2 if is_small else 3.5
            self._draw_user(ax, user, canvas.ESTIMATE_COLOUR, size=size, sample_colour=canvas.RELEASE_COLOUR)
            for track, points in zip(self.tracks, self._truth, strict=True):
                for trip in _split_trips(track) if track.user == user else ():
                    maps.draw_track(ax, points[trip])
            if number == 0:
                low, high = np.array([ax.get_xlim(), ax.get_ylim()]).T
                ground = _build_credited_basemap(self.basemap, self.projection, low, high, self.space)
                ground = replace(ground, names=() if is_small else ground.names)
            maps.draw_basemap(ax, replace(ground, credit=""), self.projection)
            maps.draw_scale(ax, 5.5 if is_small else 7.0)
            ax.set_aspect("equal")
            ax.set_xticks([])
            ax.set_yticks([])
            of_user = self.table["user"] == user
            sampled = int((of_user & ~self.table["withheld"]).sum())
            name = user if len(user) <= _MAX_NAME_LETTERS else f"{user[: _MAX_NAME_LETTERS - 1]}…"
            ax.set_title(f"{name}: {sampled:,} of {int(of_user.sum()):,} sampled", fontsize=6.5 if is_small else 8.5)
        for ax in panels[len(users) :]:
            ax.set_axis_off()
        canvas.place_legend_below(panels[0], others=panels[1 : len(users)])
        return f"{self._build_caption(outside)} {ground.credit}".rstrip()

    def _compute_view(self, has_circles: bool) -> tuple[FloatArray, FloatArray, int]:
        """Return the frame, its extension to most releases and circles, and the number of others."""
        released = self._released
        frame = self._compute_frame()
        parts = [released] if len(released) else [frame]
        if has_circles:
            radii = self._radii[:, None] / 1000.0
            is_finite = np.isfinite(radii[:, 0])
            parts += [(self._estimates + side * radii)[is_finite] for side in (-1, 1)]
        ends = np.array([np.quantile(points, _SHOWN_QUANTILES, axis=0) for points in parts if len(points)])
        extent = np.array([ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)])
        reach = _MAX_EXTENSION * float((frame[1] - frame[0]).max())
        view = np.clip(extent, frame[0] - reach, frame[1] + reach)
        low, high = maps.compute_view_limits(frame, view)
        return frame, view, len(released) - int(((released >= low) & (released <= high)).all(axis=1).sum())

    def draw_with_note(self, ax: Axes) -> str:
        """Plot the map into an `ax` and return its caption.

        Parameters
        ----------
        ax
            The axes.

        Returns
        -------
        str
            The picture's caption.
        """
        caption = self._build_caption(self.draw(ax))
        return caption if len(self.users) <= len(_USER_COLOURS) else f"{caption} {_MANY_USERS}"

    def _build_caption(self, outside: int) -> str:
        subject = "release is" if outside == 1 else "releases are"
        return f"{self.note} {outside:,} {subject} outside the picture." if outside else self.note

    # ---- as a page -----------------------------------------------------------------------------------------------

    def to_html(self, title: str = "", tiles: str | None = None, credit: str = "") -> str:
        """Return the map as an HTML page. See `dphmm.plots.webmap`.

        Parameters
        ----------
        title
            Defaults to the title of the map.
        tiles, credit
            The address of a tile server that replaces the basemap, and its attribution.

        Returns
        -------
        str
            The page.
        """
        low, high = self._compute_frame()
        margin = _BASEMAP_MARGIN * float((high - low).max())
        basemap = (
            None
            if tiles
            else _build_credited_basemap(self.basemap, self.projection, low - margin, high + margin, self.space)
        )
        credit = f"{credit} {get_states_credit(self.space)}".strip()
        # Longitudes around the middle of the map: those of the other side of the date line are beyond 180°.
        centre = float(self.projection.to_latlon((low + high) / 2)[0, 1])
        layers = [
            replace(layer, points=_unwrap(layer, centre))
            for layer in (*self._build_background_layers(), *self._build_release_layers(), *self._build_true_layers())
        ]
        policy = self._build_policy()
        if policy is not None:
            policy = replace(policy, states=unwrap_longitudes(np.asarray(policy.states), centre))
        page_title = title or self.title
        return build_web_map(layers, page_title, self.note, basemap=basemap, policy=policy, tiles=tiles, credit=credit)

    def _build_background_layers(self) -> list[MapLayer]:
        layers = []
        if isinstance(self.space, Grid):
            lines = [self.projection.to_latlon(line) for line in _build_grid_lines(self.space)]
            layers.append(MapLayer("states", "strokes", "#d3d0c6", lines))
        elif isinstance(self.space, Streets):
            layers.append(MapLayer("states", "strokes", "#b5b1a4", self.space.latlon_lines()))
        elif self.space is not None:
            layers.append(MapLayer("states", "dots", "#888888", self.space.latlon()))
        if self.rings:
            names = [name for name, _ in self.rings]
            layers.append(MapLayer("areas", "outlines", "#888888", [ring for _, ring in self.rings], {"name": names}))
        return layers

    def _build_release_layers(self) -> list[MapLayer]:
        table = self.table
        located = table.select(table.placed)
        points = np.column_stack([located["latitude"], located["longitude"]])
        facts = {name: located[name] for name in _RELEASE_FACTS}
        columns: dict[str, Any] = {"users": located["user"], "times": located["time"]}
        layers = [MapLayer(_SAMPLED, "dots", canvas.RELEASE_COLOUR, points, facts, **columns)]
        order, numbers = self._number_sample_trips()
        withheld = table["withheld"]
        trip = np.zeros(len(table), dtype=np.int64)
        trip[order] = numbers
        points = np.column_stack([table["estimate_latitude"], table["estimate_longitude"]])

        def build_estimate_layer(name: str, kind: Literal["line", "area"], mask: BoolArray) -> MapLayer:
            facts = {column: table[column][mask] for column in _ESTIMATE_FACTS}
            return MapLayer(
                name,
                kind,
                canvas.ESTIMATE_COLOUR,
                points[mask],
                facts,
                users=table["user"][mask],
                times=table["time"][mask],
                radii=self._radii[mask],
                radius_name=self._radius_name,
                trips=trip[mask],
                by_time=kind == "line",
            )

        if withheld.any():
            layers.insert(0, build_estimate_layer(_PREDICTED, "area", withheld))
        return [*layers, build_estimate_layer(_ESTIMATED, "line", ~withheld)]

    def _build_true_layers(self) -> list[MapLayer]:
        if not self.tracks:
            return []

        def merge(name: str, kind: Any, colour: str, tracks: Sequence[Trajectory]) -> MapLayer:
            points = np.concatenate([np.column_stack([track.latitude, track.longitude]) for track in tracks])
            users = np.concatenate([np.full(len(track), track.user, dtype=object) for track in tracks])
            times = np.concatenate([track.times for track in tracks])
            trip_rows = [_split_trips(track) for track in tracks]
            numbers = [np.repeat(np.arange(len(parts)), [len(rows) for rows in parts]) for parts in trip_rows]
            return MapLayer(name, kind, colour, points, users=users, times=times, trips=np.concatenate(numbers))

        layers = [merge("true locations (private)", "line", canvas.TRUE_COLOUR, self.tracks)]
        if self._outside_tracks:
            name = "outside the region (private): moved to its border or dropped"
            layers.append(merge(name, "dots", canvas.EXPOSED_COLOUR, self._outside_tracks))
        return layers

    def _build_policy(self) -> MapPolicy | None:
        error = self._error_m
        if self.policy is None or self.space is None or self._hull is None:
            return MapPolicy(np.zeros((0, 2)), error_m=error) if np.isfinite(error) else None
        edges = collect_edges(self.policy, _MAX_LISTED_EDGES)
        listed = np.zeros((0, 2), dtype=np.int64) if edges is None else edges
        return MapPolicy(self.space.latlon(), listed, self._hull.vertices, error, self.policy_text)

    @cached_property
    def users(self) -> tuple[str, ...]:
        """The released users, sorted."""
        return tuple(sorted(set(self.table["user"].tolist())))

    @property
    def _is_calibrated(self) -> bool:
        return bool(np.isfinite(self.table["calibrated_radius_90_m"]).any())

    @property
    def _radii(self) -> FloatArray:
        """The radii of circles in metres: calibrated, or expected errors without calibration."""
        return self.table["calibrated_radius_90_m" if self._is_calibrated else "estimate_error_m"]

    @property
    def _radius_name(self) -> str:
        return "calibrated radius: contains 90 % of timesteps on average" if self._is_calibrated else "expected error"

    def _number_sample_trips(self) -> tuple[IntArray, IntArray]:
        """Return the rows by user and time, and a number of each that also changes at predictions.

        Between samples no path is published, so a line through estimates is broken there.
        """
        order, numbers = self._number_trips()
        withheld = self.table["withheld"]
        breaks = np.concatenate([[0], np.diff(numbers) != 0])[: len(order)] + withheld[order]
        return order, np.cumsum(breaks)

    # ---- coordinates ---------------------------------------------------------------------------------------------

    @cached_property
    def _hull(self) -> SensitivityHull | None:
        if self.space is None or self.policy is None:
            return None
        return SensitivityHull(self.policy.differences(self.space.points))

    def _number_trips(self) -> tuple[IntArray, IntArray]:
        """Return the rows by user and time, and the trip number of each."""
        order = [trip.rows for trip in list_trips(self.table)]
        lengths = [len(trip) for trip in order]
        empty = np.zeros(0, dtype=np.int64)
        return np.concatenate([*order, empty]), np.repeat(np.arange(len(order)), lengths)

    def _select_outside(self, track: Trajectory) -> list[Trajectory]:
        """Return the fixes of a track outside the region, as a list of at most one track."""
        if self.space is None:
            return []
        mask = self.space.locate(track.latitude, track.longitude) == OUTSIDE
        if not mask.any():
            return []
        return [Trajectory(track.user, track.times[mask], track.latitude[mask], track.longitude[mask])]

    def _project_to_plane(self, latitude: npt.NDArray[Any], longitude: npt.NDArray[Any]) -> FloatArray:
        return self.projection.to_plane(latitude, longitude) if len(latitude) else np.zeros((0, 2))

    @cached_property
    def _truth(self) -> list[FloatArray]:
        return [self._project_to_plane(track.latitude, track.longitude) for track in self.tracks]

    def _compute_frame(self) -> FloatArray:
        """Return a rectangle around estimates with their errors, and true locations.

        It is at least a kilometre wide.
        """
        points = np.concatenate([self._estimates, *self._truth])
        if not len(points):
            return np.array([[-1.0, -1.0], [1.0, 1.0]]) if self.space is None else maps.extent(self.space)
        low = points.min(axis=0)
        high = points.max(axis=0)
        error = _compute_median(self._radii) / 1000.0
        margin = max(error, _MIN_SIDE_KM / 2) if np.isfinite(error) else _MIN_SIDE_KM / 2
        middle = (low + high) / 2
        half = (high - low) / 2 + margin
        half = np.maximum(half, half.max() / 1.5)  # limits the aspect ratio
        return np.array([middle - half, middle + half])


def draw_ground(
    ax: Axes,
    projection: LocalProjection,
    basemap: str | Path | None,
    space: StateSpace | None = None,
    is_optional: bool = False,
) -> None:
    """Plot the basemap of the current view.

    Parameters
    ----------
    ax
        The axes, in kilometres.
    projection
        The projection from degrees to kilometres.
    basemap
        A file, as for `ReleaseMap`.
    space
        The states that are plotted, if any: the map of streets is credited.
    is_optional
        Whether the file is ignored, instead of refused, for a view across the date line. The attribution states so.
    """
    low, high = np.array([ax.get_xlim(), ax.get_ylim()]).T
    maps.draw_basemap(ax, _build_credited_basemap(basemap, projection, low, high, space, is_optional), projection)


def collect_edges(policy: PolicyGraph, max_edges: int) -> IntArray | None:
    """Return the edges ``(m, 2)`` of a policy, or None if there are more than `max_edges`.

    Parameters
    ----------
    policy
        The policy.
    max_edges
        The largest number of edges.

    Returns
    -------
    numpy.ndarray or None
        Each edge once, in order.
    """
    blocks = [np.zeros((0, 2), dtype=np.int64)]
    count = 0
    for block in policy.edge_blocks():
        blocks.append(block)
        count += len(block)
        # Blocks may repeat edges. Duplicates are removed only when the count is well beyond the limit.
        if count > 2 * max_edges:
            blocks = [np.unique(np.concatenate(blocks), axis=0)]
            count = len(blocks[0])
            if count > max_edges:
                return None
    edges = np.unique(np.concatenate(blocks), axis=0)
    return edges if len(edges) <= max_edges else None


def _build_grid_lines(grid: Grid) -> list[FloatArray]:
    """Return the sides of a grid's cells, one line per run of adjacent sides."""
    filled = np.zeros((grid.rows + 2, grid.columns + 2), dtype=np.bool_)
    filled[grid.lattice[:, 1] + 1, grid.lattice[:, 0] + 1] = True
    lines = []
    for axis in (0, 1):
        cells = filled if axis == 0 else filled.T
        sides = cells[:-1] | cells[1:]  # sides between a row and the next one
        for number in np.flatnonzero(sides.any(axis=1)):
            turns = np.flatnonzero(np.diff(sides[number].astype(np.int8)))
            for start, end in turns.reshape(-1, 2).tolist():
                along = np.linspace(start, end, 2 + (end - start) // 16)
                across = np.full(len(along), float(number))
                steps = np.column_stack([along, across] if axis == 0 else [across, along])
                lines.append(grid.origin + grid.cell_km * (steps - 0.5))
    return lines


def _unwrap(layer: MapLayer, centre: float) -> Any:
    """Return the points of a layer with longitudes around a centre. See `unwrap_longitudes`."""
    if layer.kind == "strokes":
        return [unwrap_longitudes(line, centre) for line in layer.points]
    if layer.kind == "outlines":  # of any extent: a ring is moved as a whole, which does not tear it
        return [ring - [0.0, 360.0 * round((ring[:, 1].mean() - centre) / 360.0)] for ring in layer.points]
    return unwrap_longitudes(layer.points, centre)


def _split_trips(track: Trajectory) -> list[IntArray]:
    return split_into_trips(np.arange(len(track)), track.times)


def _build_centred_projection(table: ReleaseTable) -> LocalProjection:
    if not len(table):
        return LocalProjection(0.0, 0.0)
    return LocalProjection(float(np.median(table["estimate_latitude"])), float(np.median(table["estimate_longitude"])))


def _compute_median(values: npt.NDArray[Any]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def _format_median(values: npt.NDArray[Any]) -> str:
    middle = _compute_median(values)
    return f"{middle:,.0f} m" if middle < 10_000 else f"{middle / 1000:,.0f} km"


def _build_credited_basemap(
    path: str | Path | None,
    projection: LocalProjection,
    low: FloatArray,
    high: FloatArray,
    space: StateSpace | None,
    is_optional: bool = False,
) -> Basemap:
    """Return the basemap of a rectangle, with the credit of plotted states.

    It is empty outside the range of the projection and, without a file, across the date line.
    """
    credit = get_states_credit(space)
    turns = np.linspace(0.0, 1.0, 17)
    sides = [np.column_stack([turns, np.full(17, end)]) for end in (0.0, 1.0)]
    corners = low + np.concatenate([*sides, *(side[:, ::-1] for side in sides)]) * (high - low)
    if np.abs(corners).max() > 6000:
        return Basemap(credit=credit)
    north, east = projection.to_latlon(corners).T
    west, last = float(east.min()), float(east.max())
    if last - west > 180:  # its corners are on both sides of the date line
        west, last = float(east[east > 0].min()), float(east[east <= 0].max())
        path = None if is_optional else path
    return add_credit(build_basemap(path, (float(north.min()), west, float(north.max()), last)), credit)


_FIGURE_INCHES = 9.0


@check_arguments
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
    """Plot releases as a picture or an interactive map, as ``dphmm show`` does.

    Parameters
    ----------
    releases
        A file of `dphmm.jobs.release`, the folder of a `dphmm.jobs.batch`, or a SQLite file of sessions or the address
        of their PostgreSQL server. Sessions need their model.
    output
        A .png, .svg or .pdf picture, or an .html page that works offline. Defaults to a page next to the releases. With
        `true` its name must contain PRIVATE, and only its owner may read it.
    model
        The model, to plot its states.
    policy
        With `model`: a policy as a string or a graph, to plot its edges and its hull. Defaults to the policy of a
        batch, or of sessions with equal settings.
    layer
        Polygons in the background: GeoJSON, KML or GeoPackage.
    basemap
        A map for the background, see `dphmm.plots.read_basemap`. Defaults to the package's coarse map of the world.
    tiles
        For a page: the address of a tile server that replaces the basemap, as ``https://host/{z}/{x}/{y}.png``. The
        browser reveals the viewed part of the world to this server.
    true
        True trajectories of the released users to plot: the map is private then.
    users, start, end
        Only these users; only releases from the first time on and before the second (ISO 8601, UTC).
    title
        The title of the map. Defaults to the policy, the budget and the median errors.
    overwrite
        Whether an existing output may be replaced.

    Returns
    -------
    Path
        The file, written atomically.

    Raises
    ------
    ConfigurationError
        For another extension, a policy or sessions without a model, tiles in a picture or together with a basemap, a
        name without PRIVATE for true locations, or a period without releases.
    OutputError
        If the file exists and may not be overwritten, or cannot be written; raised before anything is read.
    MissingDependencyError
        For a picture if matplotlib is not installed.
    DataFileError
        If a file is invalid.
    """
    if str(releases) == ".":  # the name of the page needs that of the folder
        releases = Path(releases).resolve()
    if not Path(releases).name:
        raise ConfigurationError(f"releases must be a file or folder, got {str(releases)!r}")
    if is_server(releases) and output is None:
        raise ConfigurationError("releases of a server need an output: use -o")
    page = Path(releases).with_suffix(".html")
    path = Path(output) if output is not None else page if true is None else page.with_name(f"PRIVATE-{page.name}")
    is_page = canvas.is_page(path)
    if tiles is not None:
        parse_tile_host(tiles)
        if basemap is not None or not is_page:
            raise ConfigurationError(
                "--tiles cannot be combined with --basemap or a picture: tiles replace the basemap of a page"
            )
    period = _parse_period(start, end)
    check_output(path if true is None else private_name(path), overwrite)
    if basemap is not None:
        check_vector_file(basemap)
    loaded_model = model if isinstance(model, MarkovModel) or model is None else load_model(model)
    stored = read_released(releases, loaded_model, users)
    if not len(stored.table):
        raise ConfigurationError(f"{get_user_name(releases)} contains no release to show")
    table = _select(stored.table, users, period)
    region = None if loaded_model is None else loaded_model.space
    true_tracks = () if true is None else Data.from_any(true).with_region(region).read().trajectories
    parts = (restrict_to_releases(track, table) for track in true_tracks)
    tracks = tuple(part for part in parts if part is not None)
    if policy is not None and loaded_model is None:
        raise ConfigurationError("--policy needs the states of a model: use --model too")
    requested = None if policy is None else format_policy_text(policy)
    graph, text, remarks = _resolve_policy(table, stored.settings, requested, loaded_model)
    space = None if loaded_model is None else loaded_model.states
    areas = read_polygons(layer) if layer is not None else ()
    release_map = ReleaseMap(table, space, tracks, areas, graph, text, basemap, " ".join(remarks), stored.is_private)
    page_title = replace_surrogates(title or release_map.title)
    has_true = true is not None
    if is_page:
        write_text(path, release_map.to_html(page_title, tiles), overwrite, has_true)
    else:
        canvas.save_picture(_draw_figure(release_map, page_title), path, overwrite, has_true)
    return path


def _resolve_policy(
    table: ReleaseTable, settings: ReleaseSettings | None, requested: str | None, model: MarkovModel | None
) -> tuple[PolicyGraph | None, str, list[str]]:
    """Return the graph, the label and remarks of the requested or the stored policy.

    The remarks state whether the policy and the model are those of the releases.
    """
    remarks = []
    if model is not None and set(table["model_hash"].tolist()) != {model.content_hash[:16]}:
        remarks.append("The states are those of another model than the releases'.")
    text = requested or ("" if settings is None else settings.policy)
    if not text or text.startswith(GRAPH_POLICY_PREFIX):
        return None, "", remarks
    try:
        is_original = _is_policy_for(table, settings, text)
        layers = () if settings is None else settings.layers
        graph = None if model is None else parse_policy(text, model.space, model.structure, layers)
    except DataFileError:
        if requested is not None:
            raise
        return None, format_policy_label(text), [*remarks, "The policy is not shown: a file of it is missing."]
    if is_original:
        return graph, format_policy_label(text), [f"The policy connects {describe_policy(text)}.", *remarks]
    if requested is None:
        return None, format_policy_label(text), [*remarks, "The policy is not shown: a file of it has changed."]
    remark = "The policy was given with the map; the releases do not confirm that it is theirs."
    return graph, f"{format_policy_label(text)} (as given)", [*remarks, remark]


def _is_policy_for(table: ReleaseTable, settings: ReleaseSettings | None, text: str) -> bool:
    """Return whether the hashes in the rows are those of settings with a policy.

    The other settings are the stored ones or defaults.
    """
    hashes = set(table["settings_hash"].tolist())
    sampled = table.select(~table["withheld"])
    budgets = set(zip(sampled["epsilon"].tolist(), sampled["mechanism"].tolist(), strict=True))
    candidates = [] if settings is None else [replace(settings, policy=text)]
    if len(budgets) <= len(hashes):  # different budgets under one hash are those of a schedule
        candidates += [ReleaseSettings(text, epsilon, mechanism) for epsilon, mechanism in budgets]
    return hashes <= {candidate.content_hash[:16] for candidate in candidates}


def _draw_figure(release_map: ReleaseMap, title: str) -> Any:
    """Return the map as a picture with its title and its note above it."""
    if 1 < len(release_map.users) <= MAX_PANELS:
        return _draw_panel_figure(release_map, title)
    figure, ax = canvas.create_figure(_FIGURE_INCHES, _FIGURE_INCHES)
    note = wrap(release_map.draw_with_note(ax), 105)
    (west, east) = ax.get_xlim()
    (south, north) = ax.get_ylim()
    map_height = _FIGURE_INCHES * 0.74 * (north - south) / (east - west)
    figure.set_size_inches(_FIGURE_INCHES, min(max(map_height, 3.0), 12.0) + 2.0)
    ax.text(0.5, 1.01, "\n".join(note), transform=ax.transAxes, ha="center", va="bottom", fontsize=8, color="#555555")
    ax.set_title("\n".join(wrap(title, 80)), fontsize=11, pad=8 + 11 * len(note))
    return figure


def _draw_panel_figure(release_map: ReleaseMap, title: str) -> Any:
    """Return a picture with a panel for each user."""
    figure, _ = canvas.create_panels(_FIGURE_INCHES, _FIGURE_INCHES, rows=0)
    note = wrap(release_map.draw_panels(figure), 130)
    first = figure.axes[0]
    (west, east) = first.get_xlim()
    (south, north) = first.get_ylim()
    columns = first.get_gridspec().ncols
    rows = first.get_gridspec().nrows
    # A panel needs its title, about a quarter of an inch.
    height = rows * (_FIGURE_INCHES / columns * (north - south) / (east - west) + 0.25)
    figure.set_size_inches(_FIGURE_INCHES, height + 0.9 + 0.15 * len(note))
    figure.suptitle("\n".join([*wrap(title, 100), *note]), fontsize=8, color="#444444")
    return figure


def _parse_period(start: str | None, end: str | None) -> dict[str, np.datetime64]:
    """Return the times of the options that are set."""
    options = {"--start": start, "--end": end}
    period = {option: _parse_time(text, option) for option, text in options.items() if text is not None}
    if len(period) == 2 and period["--start"] >= period["--end"]:
        raise ConfigurationError(f"--start must be before --end, got --start {start} and --end {end}")
    return period


def _select(table: ReleaseTable, users: Sequence[str], period: Mapping[str, np.datetime64]) -> ReleaseTable:
    table = select_users(table, users)
    times = table["time"]
    mask = np.ones(len(table), dtype=np.bool_)
    if "--start" in period:
        mask &= times >= period["--start"]
    if "--end" in period:
        mask &= times < period["--end"]
    if not mask.any():
        stated = " and ".join(f"{option} {iso_time(time)}" for option, time in period.items())
        raise ConfigurationError(
            f"{stated} must leave a release, got releases from {iso_time(times.min())} to {iso_time(times.max())}"
        )
    return table.select(mask)


def select_users(table: ReleaseTable, users: Sequence[str]) -> ReleaseTable:
    """Return the releases of users.

    Parameters
    ----------
    table
        The releases.
    users
        The users. Empty for all.

    Returns
    -------
    ReleaseTable
        Their rows, in the table's order.

    Raises
    ------
    ConfigurationError
        If a user has no release.
    """
    names = sorted(set(table["user"].tolist()))
    for user in users:
        if user not in names:
            raise ConfigurationError(f"user {user!r} has no release; the releases contain {', '.join(names[:8])}")
    return table.select(np.isin(table["user"].astype(str), users)) if users else table


def restrict_to_releases(track: Trajectory, table: ReleaseTable) -> Trajectory | None:
    """Return the part of a track between its user's first and last release.

    None without a release.

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
    return track.select_time_range(times.min(), times.max() + np.timedelta64(1, "s")) if len(times) else None


def _parse_time(text: str, option: str) -> np.datetime64:
    try:
        return np.datetime64(parse_time(text), "us")
    except ValueError as problem:
        raise ConfigurationError(f"{option}: {problem}") from None
