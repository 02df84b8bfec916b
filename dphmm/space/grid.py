"""A regular square grid of states, whose points are an exact integer lattice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError, CoordinateError, StateError
from dphmm.geometry.measurements import Measurements
from dphmm.space.projection import REACH_KM, LocalProjection
from dphmm.space.states import OUTSIDE, StateSpace

Box = tuple[float, float, float, float]
"""South, west, north, east, in degrees; a west greater than the east spans the date line."""

PRESETS: Mapping[str, tuple[Box, float]] = {
    "geolife": ((39.87, 116.29, 39.97, 116.46), 0.34),
    "gowalla": ((33.70, -118.69, 34.34, -117.90), 0.89),
}
"""Name → bounding box and cell size in km.

The cell sizes are those of the DPHMM paper's experiments (GeoLife inside Beijing's third ring, 0.34 km; Gowalla in Los
Angeles, 0.89 km). The paper prints no coordinates: the first box is the one that holds the third ring, the second holds
the City of Los Angeles (33.70 to 34.34 north, from 118.67 west) and reaches east over the continuous built-up area.
"""

MAX_CELLS = 50_000_000
"""The most cells that a grid's rectangle may have; beyond it a slip in the cell size is likelier than intent."""

_MARGIN_KM = 0.001
"""By how much a grid overlaps a box at least: the origin is moved to a whole metre."""


class Grid(StateSpace):
    """Square cells of one size in a local plane.

    The points, which are the cells' centres, satisfy ``points == origin + cell_km * lattice`` exactly, so whoever needs
    integers takes `lattice` and loses nothing. States are numbered row by row from the south-west.

    Parameters
    ----------
    projection
        The plane.
    origin_m
        Whole metres east and north of the projection's centre: the centre of the cell in column 0 and row 0.
    cell_km
        The side of a cell in kilometres; positive.
    columns, rows
        The size of the rectangle of cells.
    mask
        Shape ``(rows, columns)``, true for the cells that are states; left out, all are.

    Raises
    ------
    ConfigurationError
        When the cell size is not positive and finite or the rectangle is empty or has more than `MAX_CELLS` cells.
    StateError
        When no cell is a state.
    CoordinateError
        When a cell lies more than 2000 km from the projection's centre.

    Examples
    --------
    >>> grid = Grid.over((39.87, 116.29, 39.97, 116.46), cell_km=0.34)
    >>> grid.columns, grid.rows, grid.size
    (43, 33, 1419)
    >>> grid.lattice[grid.locate(39.92, 116.375)].tolist()
    [[21, 16]]
    """

    kind = "grid"

    def __init__(
        self,
        projection: LocalProjection,
        origin_m: tuple[int, int],
        cell_km: float,
        columns: int,
        rows: int,
        mask: BoolArray | None = None,
    ) -> None:
        self.projection = projection
        self.cell_km = _check_cell(cell_km)
        self.columns, self.rows = _check_shape(columns, rows)
        self.origin_m = (int(origin_m[0]), int(origin_m[1]))
        self.origin = np.array(self.origin_m) / 1000.0
        self._full = mask is None or bool(np.all(mask))
        self._cells = self._check_mask(mask)
        self.lattice: IntArray = np.column_stack([self._cells % self.columns, self._cells // self.columns])
        self.points = self.origin + self.cell_km * self.lattice
        furthest = np.abs(self.points[[0, -1]]).max() if self._full else np.abs(self.points).max()
        if furthest > REACH_KM:
            raise CoordinateError(
                f"the grid reaches {furthest:.0f} km from its centre; keep it within {REACH_KM:.0f} km"
            )
        for array in (self.origin, self._cells, self.lattice, self.points):
            array.setflags(write=False)
        self._seal()

    def _check_mask(self, mask: BoolArray | None) -> IntArray:
        if mask is None:
            return np.arange(self.columns * self.rows)
        if mask.shape != (self.rows, self.columns) or mask.dtype != np.bool_:
            raise StateError(
                f"mask is {mask.dtype} of shape {mask.shape}; give booleans of shape ({self.rows}, {self.columns})"
            )
        cells = np.flatnonzero(mask)
        if not cells.size:
            raise StateError("no cell of the grid has its centre in the region; take smaller cells or a larger region")
        return cells

    @classmethod
    def over(cls, region: Box | shapely.Polygon | shapely.MultiPolygon, cell_km: float) -> Grid:
        """The grid over a region, in the projection around the region's middle.

        Parameters
        ----------
        region
            Either ``(south, west, north, east)`` in degrees: the states are then all cells of the smallest rectangle
            that covers the box, so every place of the box belongs to one. Or a polygon with x the longitude and y the
            latitude in degrees, as in GeoJSON: the states are then the cells whose centre lies within it (a centre on
            its border does not), so a place near the border may belong to none.
        cell_km
            The side of a cell in kilometres.

        Raises
        ------
        CoordinateError
            When the box or polygon is empty, not valid or not on the Earth.
        ConfigurationError, StateError
            As for the class.
        """
        _check_cell(cell_km)
        polygon = None if isinstance(region, tuple | list) else _check_polygon(region)
        south, west, north, east = _check_box(
            tuple(region) if polygon is None else tuple(np.asarray(polygon.bounds)[[1, 0, 3, 2]].tolist())
        )
        width = (east - west) % 360.0 or 360.0
        middle_east = (west + width / 2 + 180.0) % 360.0 - 180.0
        projection = LocalProjection((south + north) / 2, middle_east)
        edge = _box_edge(south, west, north, width) if polygon is None else _densified(polygon)
        plane = projection.to_plane(edge[:, 1], edge[:, 0])
        if not np.isfinite(plane).all() or np.abs(plane).max() > REACH_KM:
            raise CoordinateError(f"the region reaches more than {REACH_KM:.0f} km from its middle; take a smaller one")
        grid = cls(projection, *_rectangle(plane, cell_km))
        return grid if polygon is None else grid._within(polygon)

    def _within(self, polygon: shapely.Polygon | shapely.MultiPolygon) -> Grid:
        region = shapely.transform(
            shapely.segmentize(polygon, 0.01), lambda xy: self.projection.to_plane(xy[:, 1], xy[:, 0])
        )
        shapely.prepare(region)
        inside = shapely.contains_xy(region, self.points[:, 0], self.points[:, 1])
        mask = np.asarray(inside, dtype=np.bool_).reshape(self.rows, self.columns)
        return Grid(self.projection, self.origin_m, self.cell_km, self.columns, self.rows, mask)

    @classmethod
    def preset(cls, name: str) -> Grid:
        """The grid of a published setting, see `PRESETS`: ``"geolife"`` (Beijing) or ``"gowalla"`` (Los Angeles).

        Raises
        ------
        ConfigurationError
            For any other name.
        """
        if name not in PRESETS:
            raise ConfigurationError(f"no grid preset is called {name!r}; there are {sorted(PRESETS)}")
        return cls.over(*PRESETS[name])

    def __repr__(self) -> str:
        return f"Grid({self.size} states of {self.cell_km} km in {self.columns} columns and {self.rows} rows)"

    def measurements(self) -> Measurements:
        """The points as what is measured in each state, with `lattice` as their exact coordinates."""
        return Measurements.on_lattice(self.lattice, self.cell_km, self.origin)

    def state_at(self, lattice: npt.ArrayLike) -> IntArray:
        """The state in each ``(column, row)``, -1 where there is none; shape ``(n,)`` for input ``(n, 2)`` or ``(2,)``.

        Raises
        ------
        StateError
            When the input is not of integers in two columns.
        """
        cells = np.atleast_2d(np.asarray(lattice))
        if cells.ndim != 2 or cells.shape[1] != 2 or not np.issubdtype(cells.dtype, np.integer):
            raise StateError(f"lattice is {cells.dtype} of shape {cells.shape}; give integer columns and rows")
        return self._state_of(cells[:, 0].astype(np.int64), cells[:, 1].astype(np.int64))

    def _state_of(self, column: IntArray, row: IntArray) -> IntArray:
        inside = (column >= 0) & (column < self.columns) & (row >= 0) & (row < self.rows)
        states = np.full(column.shape[0], OUTSIDE, dtype=np.int64)
        cells = row[inside] * self.columns + column[inside]
        states[inside] = cells if self._full else self._state_of_cell[cells]
        return states

    @cached_property
    def _state_of_cell(self) -> IntArray:
        states = np.full(self.columns * self.rows, OUTSIDE, dtype=np.int64)
        states[self._cells] = np.arange(self.size)
        return states

    def _position(self, plane: FloatArray) -> IntArray:
        """Column and row of points of the plane; a point on a border belongs to the cell east or north of it."""
        return np.floor((plane - self.origin) / self.cell_km + 0.5).astype(np.int64)

    def _locate_plane(self, plane: FloatArray) -> IntArray:
        position = self._position(plane)
        return self._state_of(position[:, 0], position[:, 1])

    def _nearest_plane(self, plane: FloatArray) -> IntArray:
        if not self._full:
            return super()._nearest_plane(plane)
        column, row = np.clip(self._position(plane), 0, [self.columns - 1, self.rows - 1]).T
        return self._state_of(column, row)

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain JSON values; see `StateSpace.to_json`.

        The states are written as runs of neighbouring cells, ``[first, length]``, counted row by row.
        """
        starts = np.flatnonzero(np.diff(self._cells, prepend=-2) != 1)
        lengths = np.diff(starts, append=self.size)
        return {
            "kind": self.kind,
            "projection": {"latitude": self.projection.latitude, "longitude": self.projection.longitude},
            "origin_m": list(self.origin_m),
            "cell_km": self.cell_km,
            "columns": self.columns,
            "rows": self.rows,
            "runs": np.column_stack([self._cells[starts], lengths]).tolist(),
        }

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Grid:
        columns, rows = _check_shape(data["columns"], data["rows"])
        mask = np.zeros(rows * columns, dtype=np.bool_)
        for first, length in data["runs"]:
            if first < 0 or length < 1 or first + length > mask.shape[0]:
                raise StateError(f"run [{first}, {length}] lies outside {rows * columns} cells; write the grid anew")
            mask[first : first + length] = True
        projection = LocalProjection(**data["projection"])
        east, north = data["origin_m"]
        return cls(projection, (east, north), data["cell_km"], columns, rows, mask.reshape(rows, columns))


def _check_cell(cell_km: float) -> float:
    value = float(cell_km)
    if not (np.isfinite(value) and value > 0):
        raise ConfigurationError(f"cell_km is {cell_km}; give a positive number of kilometres")
    return value


def _check_shape(columns: int, rows: int) -> tuple[int, int]:
    columns, rows = int(columns), int(rows)
    if columns < 1 or rows < 1 or columns * rows > MAX_CELLS:
        raise ConfigurationError(
            f"the grid has {columns} columns and {rows} rows; give at least one of each and at most {MAX_CELLS} cells"
        )
    return columns, rows


def _check_box(box: tuple[float, ...]) -> Box:
    if len(box) != 4:
        raise CoordinateError(f"box has {len(box)} numbers; give south, west, north, east in degrees")
    south, west, north, east = (float(side) for side in box)
    if not (-90 <= south < north <= 90 and -180 <= west <= 180 and -180 <= east <= 180 and west != east):
        raise CoordinateError(
            f"box is {box}; give south < north in -90 to 90, then different west and east in -180 to 180, "
            "in the order south, west, north, east"
        )
    return south, west, north, east


def _check_polygon(region: object) -> shapely.Polygon | shapely.MultiPolygon:
    if not isinstance(region, shapely.Polygon | shapely.MultiPolygon):
        raise CoordinateError(f"region is a {type(region).__name__}; give (south, west, north, east) or a polygon")
    if region.is_empty or not region.is_valid:
        raise CoordinateError("the region's polygon is empty or crosses itself; draw it anew or use shapely.make_valid")
    return region


def _box_edge(south: float, west: float, north: float, width: float) -> FloatArray:
    """Points along the box's border, closely enough for its bulge in the plane; shape (n, 2), longitude first."""
    along = np.linspace(0.0, 1.0, 65)
    east_west = west + width * along
    south_north = south + (north - south) * along
    sides = [
        np.column_stack([east_west, np.full(65, south)]),
        np.column_stack([east_west, np.full(65, north)]),
        np.column_stack([np.full(65, west), south_north]),
        np.column_stack([np.full(65, west + width), south_north]),
    ]
    edge = np.concatenate(sides)
    edge[:, 0] = (edge[:, 0] + 180.0) % 360.0 - 180.0
    return edge


def _densified(polygon: shapely.Polygon | shapely.MultiPolygon) -> FloatArray:
    return np.asarray(shapely.get_coordinates(shapely.segmentize(polygon, 0.01)))


def _rectangle(plane: FloatArray, cell_km: float) -> tuple[tuple[int, int], float, int, int]:
    """Origin in whole metres, cell size, columns and rows of the least centred rectangle of cells over the points."""
    low, high = plane.min(axis=0), plane.max(axis=0)
    count = np.ceil((high - low + 2 * _MARGIN_KM) / cell_km)
    if count.prod() > MAX_CELLS:
        raise ConfigurationError(
            f"cells of {cell_km} km make {count.prod():.3g} cells of the region; take larger ones, up to {MAX_CELLS}"
        )
    middle = (low + high) / 2
    east, north = np.round((middle - (count - 1) / 2 * cell_km) * 1000)
    return (int(east), int(north)), cell_km, int(count[0]), int(count[1])
