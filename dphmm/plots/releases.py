"""A release as a picture and as a map for the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import FloatArray, IntArray
from dphmm.geometry.hull import SensitivityHull
from dphmm.plots import maps, tracks
from dphmm.plots.basemap import Basemap, shipped_basemap
from dphmm.plots.basemap_files import read_basemap
from dphmm.plots.webmap import MapLayer, MapPolicy, web_map
from dphmm.space.grid import Box, Grid
from dphmm.space.projection import LocalProjection
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import Trajectory
from dphmm.writers.frame import places, trips
from dphmm.writers.table import ReleaseTable

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from dphmm.policy.graph import PolicyGraph

Polygons = Sequence[tuple[str, shapely.Geometry]]
"""Named polygons in degrees, longitude first, as `dphmm.policy.layer.read_polygons` gives them."""

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
"""A page's basemap reaches so many widths of the places beyond them."""


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
        self.projection = self.space.projection if self.space is not None else _around(self.table)
        self.rings = [(name, ring) for name, shape in self.outlines for ring in _rings(shape)]

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
        """Draw everything into an `ax`; how many releases lie outside the view."""
        released = self._released(self.table)
        truth = [self._plane(track.latitude, track.longitude) for track in self.tracks]
        frame = self._frame(truth)
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
                maps.draw_edges(ax, self.space.points, edges, maps.EDGE, 0.3, "policy edges", zorder=1)
        tracks.draw_releases(ax, released)
        several = len(set(self.table["user"].tolist())) > 1
        order, numbers = self._trips()
        radii = self.table["estimate_radius_m"][order] / 1000.0
        times = self.table["time"][order]
        shown = None if several else radii
        tracks.draw_estimates(ax, self._estimates()[order], radii=shown, times=times, trips=numbers)
        for track, points in zip(self.tracks, truth, strict=True):
            for trip in _cut(track):
                tracks.draw_track(ax, points[trip])
        if self.space is not None and self.tracks:
            beyond = np.concatenate([self._beyond(track) for track in self.tracks])
            tracks.draw_outside(ax, beyond, "outside the region, moved to its border or dropped")
        maps.draw_noise(ax, self._hull, float(_median(self.table["expected_error_m"])) / 1000.0)
        self.draw_ground(ax)
        maps.label_axes(ax)
        maps.place_legend(ax)
        return outside

    def draw_ground(self, ax: Axes) -> None:
        """Draw the basemap below what is in view."""
        maps.draw_basemap(ax, self._basemap(_box_of_view(ax, self.projection)), self.projection)

    # ---- as a page -----------------------------------------------------------------------------------------------

    def to_html(self, title: str = "", tiles: str | None = None, credit: str = "") -> str:
        """The map as one HTML page; see `dphmm.plots.web_map`."""
        basemap = None if tiles else self._basemap(self._box(_AROUND))
        layers = [*self._ground(), *self._moments(), *self._true_layers()]
        policy = self._policy()
        said: dict[str, Any] = {"basemap": basemap, "policy": policy, "tiles": tiles, "credit": credit}
        return web_map(layers, title or self.title, self.note, **said)

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
        table, order = self.table, self._trips()
        drawn = table.select(table.placed)
        points = np.column_stack([drawn["latitude"], drawn["longitude"]])
        when: dict[str, Any] = {"users": drawn["user"], "times": drawn["time"]}
        released = MapLayer("released", "dots", maps.RELEASED, points, _facts(drawn, _OF_RELEASES), **when)
        sorted_rows, numbers = order
        trip = np.zeros(len(table), dtype=np.int64)
        trip[sorted_rows] = numbers
        estimated = MapLayer(
            "estimate (posterior mean)",
            "line",
            maps.ESTIMATE,
            np.column_stack([table["estimate_latitude"], table["estimate_longitude"]]),
            _facts(table, _OF_ESTIMATES),
            users=table["user"],
            times=table["time"],
            radii=table["estimate_radius_m"],
            trips=trip,
            by_time=True,
        )
        return [released, estimated]

    def _true_layers(self) -> list[MapLayer]:
        if not self.tracks:
            return []

        def joined(name: str, kind: Any, colour: str, parts: Sequence[Trajectory]) -> MapLayer:
            points = np.concatenate([np.column_stack([one.latitude, one.longitude]) for one in parts])
            users = np.concatenate([np.full(len(one), one.user, dtype=object) for one in parts])
            times = np.concatenate([one.times for one in parts])
            numbers = [np.repeat(np.arange(len(cut)), [len(some) for some in cut]) for cut in map(_cut, parts)]
            return MapLayer(name, kind, colour, points, users=users, times=times, trips=np.concatenate(numbers))

        layers = [joined("true places (private)", "line", maps.TRUE, self.tracks)]
        beyond = [part for track in self.tracks for part in self._outside(track)]
        if beyond:
            name = "outside the region (private): moved to its border or dropped"
            layers.append(joined(name, "dots", maps.EXPOSED, beyond))
        return layers

    def _policy(self) -> MapPolicy | None:
        error = float(_median(self.table["expected_error_m"]))
        if self.policy is None or self.space is None:
            return MapPolicy(np.zeros((0, 2)), error_m=error) if np.isfinite(error) else None
        hull, edges = self._hull, some_edges(self.policy, _MOST_LISTED)
        listed = np.zeros((0, 2), dtype=np.int64) if edges is None else edges
        corners = np.zeros((0, 2)) if hull is None else hull.vertices
        return MapPolicy(self.space.latlon(), listed, corners, error, self.policy_text)

    # ---- where things are ----------------------------------------------------------------------------------------

    @cached_property
    def _hull(self) -> SensitivityHull | None:
        if self.space is None or self.policy is None:
            return None
        return SensitivityHull(self.policy.differences(self.space.points))

    def _trips(self) -> tuple[IntArray, IntArray]:
        """The rows by user and time, and the number of the trip of each."""
        users = self.table["user"].astype(str)
        times = self.table["time"]
        order: list[IntArray] = []
        for user in np.unique(users):
            mine = np.flatnonzero(users == user)
            order += trips(mine[np.argsort(times[mine], kind="stable")], times)
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

    def _beyond(self, track: Trajectory) -> FloatArray:
        found = self._outside(track)
        return self._plane(found[0].latitude, found[0].longitude) if found else np.zeros((0, 2))

    def _plane(self, latitude: npt.NDArray[Any], longitude: npt.NDArray[Any]) -> FloatArray:
        return self.projection.to_plane(latitude, longitude) if len(latitude) else np.zeros((0, 2))

    def _released(self, table: ReleaseTable) -> FloatArray:
        drawn = table.select(table.placed)
        return self._plane(drawn["latitude"], drawn["longitude"])

    def _estimates(self) -> FloatArray:
        return self._plane(self.table["estimate_latitude"], self.table["estimate_longitude"])

    def _frame(self, truth: Sequence[FloatArray]) -> FloatArray:
        """A rectangle around the estimates, as far as they are off, and true places; of a kilometre at least."""
        points = np.concatenate([self._estimates(), *truth])
        if not len(points):
            return np.array([[-1.0, -1.0], [1.0, 1.0]]) if self.space is None else maps.extent(self.space)
        low, high = points.min(axis=0), points.max(axis=0)
        off = _median(self.table["estimate_radius_m"]) / 1000.0
        around = max(off, _LEAST_SIDE_KM / 2) if np.isfinite(off) else _LEAST_SIDE_KM / 2
        middle, half = (low + high) / 2, (high - low) / 2 + around
        half = np.maximum(half, half.max() / 1.5)  # no strip of a map
        return np.array([middle - half, middle + half])

    def _box(self, around: float) -> Box | None:
        low, high = self._frame([self._plane(one.latitude, one.longitude) for one in self.tracks])
        margin = around * float((high - low).max())
        return _box(self.projection, low - margin, high + margin)

    def _basemap(self, box: Box | None) -> Basemap:
        if box is None:
            return Basemap()
        if self.basemap is None:
            return shipped_basemap(box)
        found, world = read_basemap(self.basemap, box), shipped_basemap(box)
        if (found.water or not world.water) and (found.names or not world.names):
            return found
        credit = f"{found.credit} {world.credit}"
        return replace(found, water=found.water or world.water, names=found.names or world.names, credit=credit)


def some_edges(policy: PolicyGraph, most: int) -> IntArray | None:
    """The edges ``(m, 2)`` of a policy; None where there are more than `most`."""
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


def _rings(shape: shapely.Geometry) -> list[FloatArray]:
    """The outer rings of polygons, latitude and longitude."""
    return [shapely.get_coordinates(polygon.exterior)[:, ::-1] for polygon in shapely.get_parts(shape)]


def _cut(track: Trajectory) -> list[IntArray]:
    return trips(np.arange(len(track)), track.times)


def _facts(table: ReleaseTable, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    return {name: table[name] for name in names}


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


def _box_of_view(ax: Axes, projection: LocalProjection) -> Box | None:
    (west, east), (south, north) = ax.get_xlim(), ax.get_ylim()
    return _box(projection, np.array([west, south]), np.array([east, north]))


def _box(projection: LocalProjection, low: FloatArray, high: FloatArray) -> Box | None:
    """The degrees that a rectangle of the plane spans; None over the date line, or beyond the Earth's plane."""
    turns = np.linspace(0.0, 1.0, 17)
    sides = [np.column_stack([turns, np.full(17, end)]) for end in (0.0, 1.0)]
    corners = low + np.concatenate([*sides, *(side[:, ::-1] for side in sides)]) * (high - low)
    if np.abs(corners).max() > 6000:
        return None
    north, east = projection.to_latlon(corners).T
    if east.max() - east.min() > 180:
        return None
    return float(north.min()), float(east.min()), float(north.max()), float(east.max())
