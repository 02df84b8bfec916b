"""A release as a picture and as a map for the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import FloatArray
from dphmm.geometry.hull import SensitivityHull
from dphmm.plots import maps
from dphmm.plots.webmap import MapLayer, web_map
from dphmm.space.grid import Grid
from dphmm.space.projection import LocalProjection
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import Trajectory
from dphmm.writers.frame import places
from dphmm.writers.table import ReleaseTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.policy.graph import PolicyGraph

Polygons = Sequence[tuple[str, shapely.Geometry]]
"""Named polygons in degrees, longitude first, as `dphmm.policy.layer.read_polygons` gives them."""

_STATED = (
    *("user", "time", "estimate_latitude", "estimate_longitude", "estimate_radius_m", "withheld", "epsilon"),
    *("epsilon_last_day", "latitude", "longitude", "mechanism", "expected_error_m", "possible_states"),
)

_MOST_CIRCLES, _CORNERS = 3000, 25
"""For so many moments at most a page has circles, of so many corners."""


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
        A policy over the states, to draw its edges where they are few, and its hull around the middle of the space.
    """

    table: ReleaseTable
    space: StateSpace | None = None
    tracks: Sequence[Trajectory] = ()
    outlines: Polygons = ()
    policy: PolicyGraph | None = None

    def __post_init__(self) -> None:
        self.table = self.table.select(places(self.table, "estimate")[2])
        self.projection = self.space.projection if self.space is not None else _around(self.table)
        self.rings = [(name, ring) for name, shape in self.outlines for ring in self._rings(shape)]

    @property
    def note(self) -> str:
        """What is on the map and how private it is, in a sentence or two."""
        users = len(set(self.table["user"].tolist()))
        withheld = int(self.table["withheld"].sum())
        text = f"{len(self.table) - withheld:,} private releases of {users} user{'s' if users != 1 else ''}."
        if withheld:
            text = f"{text[:-1]}, and predictions at {withheld:,} moments without one."
        return text + (" The true places are on it too: this map is not for publication." if self.tracks else "")

    def draw(self, ax: Axes) -> int:
        """Draw everything into an `ax`; how many releases lie outside the view."""
        released = self._released(self.table)
        if self.space is not None:
            maps.draw_space(ax, self.space)
        rings: dict[str, list[FloatArray]] = {}
        for name, ring in self.rings:
            rings.setdefault(name, []).append(ring)
        maps.draw_outlines(ax, rings)
        if self.space is not None and self.policy is not None:
            maps.draw_edges(ax, self.space.points, self.policy.edges(), maps.EDGE, 0.6, "policy edges", zorder=1)
            maps.draw_hull(ax, SensitivityHull(self.policy.differences(self.space.points)))
        maps.draw_releases(ax, released)
        maps.draw_estimates(ax, self._estimates(), radii=self.table["estimate_radius_m"] / 1000.0)
        truth = [self._plane(track.latitude, track.longitude) for track in self.tracks]
        for points in truth:
            maps.draw_track(ax, points)
        outside = maps.fit_view(ax, self._frame(truth), released)
        maps.label_axes(ax)
        maps.place_legend(ax)
        return outside

    def to_html(self, title: str) -> str:
        """The map as one HTML page; see `dphmm.plots.webmap.web_map`."""
        drawn = self.table.select(self.table.placed)
        releases = MapLayer("released", "dots", maps.RELEASED, self._released(drawn), *_said(drawn), visible=False)
        facts, users, times = _said(self.table)
        places = self._estimates()
        estimates = MapLayer("estimate (posterior mean)", "line", maps.ESTIMATE, places, facts, users, times)
        layers = [releases, estimates]
        if len(self.table) <= _MOST_CIRCLES:
            turn = np.linspace(0.0, 2.0 * np.pi, _CORNERS)
            unit = np.stack([np.cos(turn), np.sin(turn)], axis=1)
            known = np.isfinite(self.table["estimate_radius_m"])
            circled = self.table.select(known)
            radii = circled["estimate_radius_m"][:, None, None] / 1000.0
            rings = list(places[known][:, None, :] + radii * unit)
            off = "how far off the model expects the estimate to be"
            layers.insert(1, MapLayer(off, "outlines", maps.ESTIMATE, rings, *_said(circled), visible=False))
        return web_map([*self._ground(), *layers, *self._true_layers()], title, self.note)

    def _ground(self) -> list[MapLayer]:
        layers = []
        if isinstance(self.space, Grid) and self.space.size <= maps.MOST_CELLS:
            layers.append(MapLayer("states", "outlines", "#ddd", maps.cells(self.space)))
        elif self.space is not None:
            layers.append(MapLayer("states", "dots", "#aaa", self.space.points))
        if self.rings:
            names = [{"name": name} for name, _ in self.rings]
            layers.append(MapLayer("areas", "outlines", "#888", [ring for _, ring in self.rings], names))
        return layers

    def _true_layers(self) -> list[MapLayer]:
        if not self.tracks:
            return []
        points = np.concatenate([self._plane(track.latitude, track.longitude) for track in self.tracks])
        users = [track.user for track in self.tracks for _ in range(len(track))]
        times = [f"{moment}Z" for track in self.tracks for moment in track.times.astype("datetime64[s]")]
        facts = [{"user": user, "time": time} for user, time in zip(users, times, strict=True)]
        return [MapLayer("true places (private)", "line", maps.TRUE, points, facts, users, times)]

    def _plane(self, latitude: npt.NDArray[Any], longitude: npt.NDArray[Any]) -> FloatArray:
        return self.projection.to_plane(latitude, longitude) if len(latitude) else np.zeros((0, 2))

    def _released(self, table: ReleaseTable) -> FloatArray:
        drawn = table.select(table.placed)
        return self._plane(drawn["latitude"], drawn["longitude"])

    def _estimates(self) -> FloatArray:
        return self._plane(self.table["estimate_latitude"], self.table["estimate_longitude"])

    def _frame(self, truth: Sequence[FloatArray]) -> FloatArray:
        if self.space is not None:
            return maps.extent(self.space)
        points = np.concatenate([self._estimates(), *truth])
        if not len(points):
            return np.array([[-1.0, -1.0], [1.0, 1.0]])
        return np.array([points.min(axis=0), points.max(axis=0)])

    def _rings(self, shape: shapely.Geometry) -> list[FloatArray]:
        rings = []
        for polygon in shapely.get_parts(shape):
            corners = shapely.get_coordinates(polygon.exterior)
            rings.append(self.projection.to_plane(corners[:, 1], corners[:, 0]))
        return rings


def _said(table: ReleaseTable) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """What is told of each row, its user and its time."""
    rows = list(table.rows())
    facts = [{name: _short(row[name]) for name in _STATED} for row in rows]
    return facts, [row["user"] for row in rows], [row["time"] for row in rows]


def _around(table: ReleaseTable) -> LocalProjection:
    if not len(table):
        return LocalProjection(0.0, 0.0)
    return LocalProjection(float(np.median(table["estimate_latitude"])), float(np.median(table["estimate_longitude"])))


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value
