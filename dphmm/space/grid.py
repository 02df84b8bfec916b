"""A regular square grid of states, whose points are an exact integer lattice; and squares the same for everybody.

Which `Square` a place lies in, and nothing else, is told by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError, CoordinateError, StateError
from dphmm.geometry.measurements import Measurements
from dphmm.space.states import OUTSIDE, REACH_KM, LocalProjection, StateSpace, check_size

Box = tuple[float, float, float, float]
"""South, west, north, east, in degrees; a west greater than the east spans the date line."""

PRESETS: Mapping[str, tuple[Box, float]] = {
    "geolife": ((39.87, 116.29, 39.97, 116.46), 0.34),
    "gowalla": ((33.70, -118.69, 34.34, -117.90), 0.89),
    "cabspotting": ((37.59, -122.53, 37.82, -122.35), 0.5),
}
"""Name → bounding box and cell size in km.

The cell sizes are those of the DPHMM paper's experiments (GeoLife inside Beijing's third ring, 0.34 km; Gowalla in Los
Angeles, 0.89 km). The paper prints no coordinates: the first box is the one that holds the third ring, the second holds
the City of Los Angeles (33.70 to 34.34 north, from 118.67 west) and reaches east over the continuous built-up area.
The third, of no paper, holds San Francisco and its airport, for the taxis of the cabspotting data set.
"""

MAX_CELLS = 50_000_000
"""The most cells that a grid's rectangle may have; beyond it a slip in the cell size is likelier than intent."""

_FARTHEST_KM = 4 * REACH_KM
KM_PER_DEGREE, _PIECES = 111.2, 8
"""Of a polygon's edge, straight in degrees, a piece of an eighth of a cell of 1 km is straight in the plane to 1 mm."""
_ROUNDING = 1e-9
"""The share of a cell's area that counts for nothing: 0.25 square millimetres of half a kilometre's."""
_SMALLEST_KM = 1e-9
"""Columns and rows of places on the Earth fit into 64 bits."""
_MARGIN_KM = 0.001
"""By how much a grid overlaps a box at least: the origin is moved to a whole metre."""


@checked
class Grid(StateSpace):
    """Square cells of one size in a local plane.

    The points, which are the cells' centres, satisfy ``points == origin + cell_km * lattice`` exactly, so that
    code that needs integers takes `lattice` and loses nothing. States are numbered row by row from the south-west.

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
        self.cell_km = _positive(cell_km)
        self.columns, self.rows = _check_shape(columns, rows)
        east, north = origin_m
        self.origin_m = (int(east), int(north))
        far = max(map(abs, self.origin_m)) / 1000.0 + self.cell_km * (max(self.columns, self.rows) - 0.5)
        if far > _FARTHEST_KM:  # before anything is multiplied out
            raise CoordinateError(f"the grid reaches {far:.3g} km from its centre; keep it within {REACH_KM:.0f} km")
        self.origin = np.array(self.origin_m) / 1000.0
        shape = (self.rows, self.columns)
        mask = np.ones(shape, dtype=np.bool_) if mask is None else mask
        if mask.shape != shape or mask.dtype != np.bool_:
            raise StateError(f"mask is {mask.dtype} of shape {mask.shape}; give booleans of shape {shape}")
        self._cells = np.flatnonzero(mask)
        if not self._cells.size:
            raise StateError("no cell of the grid has its centre in the region; take smaller cells or a larger region")
        self._full = self._cells.size == mask.size
        self.lattice: IntArray = np.column_stack([self._cells % self.columns, self._cells // self.columns])
        self.points = self.origin + self.cell_km * self.lattice
        far = np.abs(self.points).max()
        if far > REACH_KM:
            raise CoordinateError(f"the grid reaches {far:.0f} km from its centre; keep it within {REACH_KM:.0f} km")
        for array in (self.origin, self._cells, self.lattice, self.points):
            array.setflags(write=False)
        self._sealed = True

    @classmethod
    @checked
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
        outline = None if isinstance(region, tuple | list) else _outline(region)
        box = region if outline is None else np.asarray(outline.bounds)[[1, 0, 3, 2]].tolist()
        south, west, north, east = check_box(tuple(box))
        width = (east - west) % 360.0 or 360.0
        projection = LocalProjection((south + north) / 2, _wrapped(west + width / 2))
        if outline is None:  # points in the box too, but its border is what counts: the plane makes its sides bulge
            along = np.meshgrid(np.linspace(west, west + width, 65), np.linspace(south, north, 65))
            longitude, latitude = _wrapped(along[0].ravel()), along[1].ravel()
        else:
            longitude, latitude = shapely.get_coordinates(outline).T
        plane = projection.to_plane(latitude, longitude)
        if not np.isfinite(plane).all() or np.abs(plane).max() > REACH_KM:
            raise CoordinateError(f"the region reaches more than {REACH_KM:.0f} km from its middle; take a smaller one")
        rectangle = _rectangle(plane, _positive(cell_km))
        grid = cls(projection, *rectangle)
        if outline is None:
            return grid
        area = shapely.transform(outline, lambda xy: projection.to_plane(xy[:, 1], xy[:, 0]))
        shapely.prepare(area)
        inside = np.asarray(shapely.contains_xy(area, grid.points), dtype=np.bool_)
        return cls(projection, *rectangle, inside.reshape(grid.rows, grid.columns))

    @classmethod
    @checked
    def preset(cls, name: str) -> Grid:
        """The grid of a published setting, see `PRESETS`: ``"geolife"`` (Beijing), ``"gowalla"`` (Los
        Angeles) or ``"cabspotting"`` (San Francisco).

        Parameters
        ----------
        name
            One of these names.

        Raises
        ------
        ConfigurationError
            For any other name.
        """
        return cls.over(preset_box(name), PRESETS[name][1])

    def __repr__(self) -> str:
        return f"Grid({self.size} states of {self.cell_km} km in {self.columns} columns and {self.rows} rows)"

    def measurements(self) -> Measurements:
        """The points as what is measured in each state, with `lattice` as their exact coordinates."""
        return Measurements.on_lattice(self.lattice, self.cell_km, self.origin)

    @checked
    def state_at(self, lattice: npt.ArrayLike) -> IntArray:
        """The state in each ``(column, row)``, -1 where there is none; shape ``(n,)`` for input ``(n, 2)`` or ``(2,)``.

        Parameters
        ----------
        lattice
            ``(n, 2)`` integers: column and row of each cell, which need not lie in the grid.

        Returns
        -------
        IntArray
            ``(n,)``: the state of each cell, -1 where there is none.

        Raises
        ------
        StateError
            When the input is not of integers in two columns.
        """
        cells = np.atleast_2d(np.asarray(lattice))
        if cells.ndim != 2 or cells.shape[1] != 2 or not np.issubdtype(cells.dtype, np.integer):
            raise StateError(f"lattice is {cells.dtype} of shape {cells.shape}; give integer columns and rows")
        cells = cells.astype(np.int64)
        inside = ((cells >= 0) & (cells < [self.columns, self.rows])).all(axis=1)
        states = np.full(cells.shape[0], OUTSIDE, dtype=np.int64)
        numbers = cells[inside] @ [1, self.columns]
        states[inside] = numbers if self._full else self._state_of_cell[numbers]
        return states

    @cached_property
    def _state_of_cell(self) -> IntArray:
        states = np.full(self.columns * self.rows, OUTSIDE, dtype=np.int64)
        states[self._cells] = np.arange(self.size)
        return states

    def share_within(self, polygon: shapely.Geometry) -> FloatArray:
        """As of any state space; cells that meet the polygon along a border alone, but for rounding, have 0.

        Parameters
        ----------
        polygon
            A polygon or several, in degrees, longitude first; its edges are straight in degrees.

        Returns
        -------
        ndarray, shape (size,)
            From 0 to 1.
        """
        found, half, places = np.zeros(self.size), self.cell_km / 2, self.latlon()
        side = self.cell_km / KM_PER_DEGREE
        margin = 2 * side / max(np.cos(np.radians(np.abs(places[:, 0]).max())), 0.01)
        low, high = places.min(axis=0) - margin, places.max(axis=0) + margin
        shape = shapely.intersection(polygon, shapely.box(low[1], low[0], high[1], high[0]))
        if shape.is_empty:
            return found
        shape = shapely.segmentize(shape, side / _PIECES)  # edges are not straight in the plane
        shape = shapely.make_valid(shapely.transform(shape, self._to_plane))
        low, high = np.reshape(shape.bounds, (2, 2))
        near = np.flatnonzero(((self.points > low - half) & (self.points < high + half)).all(axis=1))
        corners = self.points[near]
        cells = shapely.box(*(corners - half).T, *(corners + half).T)
        shapely.prepare(shape)
        whole = shapely.covers(shape, cells)
        found[near[whole]] = 1.0
        part = np.flatnonzero(~whole & shapely.intersects(shape, cells))
        shares = shapely.area(shapely.intersection(cells[part], shape)) / self.cell_km**2
        found[near[part]] = np.where(shares > _ROUNDING, shares, 0.0)
        return found

    def _to_plane(self, corners: FloatArray) -> FloatArray:
        return self.projection.to_plane(corners[:, 1], _wrapped(corners[:, 0]))

    def _position(self, plane: FloatArray) -> IntArray:
        """Column and row of points of the plane; a point on a border belongs to the cell east or north of it."""
        return np.floor((plane - self.origin) / self.cell_km + 0.5).astype(np.int64)

    def _locate_plane(self, plane: FloatArray) -> IntArray:
        return self.state_at(self._position(plane))

    def _nearest_plane(self, plane: FloatArray) -> IntArray:
        if not self._full:
            return super()._nearest_plane(plane)
        return self.state_at(np.clip(self._position(plane), 0, [self.columns - 1, self.rows - 1]))

    def to_json(self) -> dict[str, Any]:
        """A dictionary of plain JSON values; see `StateSpace.to_json`.

        The states are written as runs of neighbouring cells, ``[first, length]``, counted row by row.
        """
        starts = np.flatnonzero(np.diff(self._cells, prepend=-2) != 1)
        lengths = np.diff(starts, append=self.size)
        return {
            "kind": self.kind,
            "projection": asdict(self.projection),
            "origin_m": list(self.origin_m),
            "cell_km": self.cell_km,
            "columns": self.columns,
            "rows": self.rows,
            "runs": np.column_stack([self._cells[starts], lengths]).tolist(),
        }

    @classmethod
    def _from_json(cls, data: Mapping[str, Any], size: int | None) -> Grid:
        columns, rows = _check_shape(data["columns"], data["rows"])
        runs = np.array(data["runs"] or np.zeros((0, 2), dtype=np.int64))
        if runs.dtype != np.int64 or runs.ndim != 2 or runs.shape[1] != 2:
            raise StateError(f"runs are {runs.dtype} of shape {runs.shape}; give pairs of a first cell and a length")
        starts, lengths = runs.T
        ends = starts + lengths
        wrong = (starts < 0) | (lengths < 1) | (lengths > rows * columns) | (ends > rows * columns)
        wrong[1:] |= starts[1:] < ends[:-1]
        if wrong.any():
            first, length = runs[wrong][0].tolist()
            raise StateError(
                f"run [{first}, {length}] lies outside {rows * columns} cells or before the end of the one before; "
                "write the grid anew"
            )
        check_size(int(lengths.sum()), size)
        mask = np.zeros(rows * columns, dtype=np.bool_)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            mask[start:end] = True
        projection = LocalProjection(**data["projection"])
        return cls(projection, data["origin_m"], data["cell_km"], columns, rows, mask.reshape(rows, columns))


def preset_box(name: str) -> Box:
    """South, west, north, east of a preset, degrees; a ConfigurationError for a name that is none."""
    if name not in PRESETS:
        raise ConfigurationError(f"no grid preset is called {name!r}; there are {sorted(PRESETS)}")
    return PRESETS[name][0]


def _positive(cell_km: float) -> float:
    value = float(cell_km)
    if not (np.isfinite(value) and value > 0):
        raise ConfigurationError(f"cell_km is {cell_km}; give a positive number of kilometres")
    if value < _SMALLEST_KM:
        raise ConfigurationError(f"cell_km is {cell_km}; cells below a micrometre are too many: take larger ones")
    return value


def _check_shape(columns: int, rows: int) -> tuple[int, int]:
    columns, rows = int(columns), int(rows)
    if columns < 1 or rows < 1 or columns * rows > MAX_CELLS:
        raise ConfigurationError(
            f"the grid has {columns} columns and {rows} rows; give at least one of each and at most {MAX_CELLS} cells"
        )
    return columns, rows


def check_box(box: tuple[float, ...]) -> Box:
    """South, west, north and east of a box, degrees; one that crosses the 180th meridian has its west beyond its east.

    Raises
    ------
    CoordinateError
        When it is none.
    """
    if len(box) != 4:
        raise CoordinateError(f"box has {len(box)} numbers; give south, west, north, east in degrees")
    south, west, north, east = (float(side) for side in box)
    if not (-90 <= south < north <= 90 and -180 <= west <= 180 and -180 <= east <= 180 and west != east):
        raise CoordinateError(
            f"box is {box}; give south < north in -90 to 90, then different west and east in -180 to 180, "
            "in the order south, west, north, east"
        )
    return south, west, north, east


def _outline(region: object) -> shapely.Polygon | shapely.MultiPolygon:
    """The polygon with points along its border closely enough for its bulge in the plane."""
    if not isinstance(region, shapely.Polygon | shapely.MultiPolygon):
        raise CoordinateError(f"region is a {type(region).__name__}; give (south, west, north, east) or a polygon")
    if region.is_empty or not region.is_valid:
        raise CoordinateError("the region's polygon is empty or crosses itself; draw it anew or use shapely.make_valid")
    return shapely.segmentize(region, 0.01)


def _wrapped(longitude: Any) -> Any:
    return (longitude + 180.0) % 360.0 - 180.0


def _rectangle(plane: FloatArray, cell_km: float) -> tuple[tuple[int, int], float, int, int]:
    """Origin in whole metres, cell size, columns and rows of the least centred rectangle of cells over the points."""
    low, high = plane.min(axis=0), plane.max(axis=0)
    with np.errstate(over="ignore"):
        count = np.ceil((high - low + 2 * _MARGIN_KM) / cell_km)
    if count.prod() > MAX_CELLS:
        raise ConfigurationError(
            f"cells of {cell_km} km make {count.prod():.3g} cells of the region; take larger ones, up to {MAX_CELLS}"
        )
    middle = (low + high) / 2
    east, north = np.round((middle - (count - 1) / 2 * cell_km) * 1000)
    return (int(east), int(north)), cell_km, int(count[0]), int(count[1])


LARGEST_KM = 12.8
_HIGHEST = 84.0
_LEVELS, _MOST = range(10), 1 << 20


@checked
@dataclass(frozen=True)
class Square:
    """A square of one of ten sizes, 12.8 km halved up to nine times; each lies within one of the next larger size.

    Rows of the largest are counted from the equator, columns from the meridian of Greenwich, both may be negative; a
    smaller one by halves of these. So two people with the same place and the same size have the same square, and where
    in it they are does not show.

    Parameters
    ----------
    level
        How often 12.8 km are halved, 0 to 9.
    row, column
        Which.

    Examples
    --------
    >>> Square.around(45.01, -30.01, 0.8)
    Square(level=4, row=6256, column=-2947)
    >>> Square.around(45.01, -30.01, 0.8) == Square.around(45.0112, -30.0118, 0.8)
    True
    """

    level: int
    row: int
    column: int

    def __post_init__(self) -> None:
        south, west, north, east = self.box if self.level in _LEVELS and abs(self.row) < _MOST else (99.0,) * 4
        if not (max(abs(south), abs(north)) < 85 and -181 < west < east < 181):
            raise CoordinateError(f"there is no square {self.level}, {self.row}, {self.column}; give one on the Earth")

    @classmethod
    @checked
    def around(cls, latitude: float, longitude: float, least_km: float) -> Square:
        """The square of the smallest size from a length on in which a place lies.

        Parameters
        ----------
        latitude, longitude
            Degrees.
        least_km
            The least side, kilometres, up to 12.8.

        Raises
        ------
        CoordinateError
            When the place is not on the Earth, or within 6 degrees of a pole, or no square is as large.
        """
        if not (abs(latitude) <= _HIGHEST and abs(longitude) <= 180):
            raise CoordinateError(
                f"the place is {latitude}, {longitude}; give latitude and longitude in degrees, at most {_HIGHEST:g} "
                "degrees from the equator"
            )
        if not 0 < least_km <= LARGEST_KM:
            raise CoordinateError(f"least_km is {least_km}; give a length of more than 0 and at most {LARGEST_KM} km")
        level = max(one for one in _LEVELS if one == 0 or LARGEST_KM / 2**one >= least_km)
        high = LARGEST_KM / KM_PER_DEGREE
        wide = _width(math.floor(latitude / high))
        return cls(level, math.floor(latitude / high * 2**level), math.floor(longitude / wide * 2**level))

    @property
    def side_km(self) -> float:
        """About how long each side is."""
        return LARGEST_KM / float(2**self.level)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """South, west, north, east in degrees; the last square before the date line reaches beyond it."""
        high, wide = self.side_km / KM_PER_DEGREE, _width(self.row >> self.level) / 2**self.level
        return self.row * high, self.column * wide, (self.row + 1) * high, (self.column + 1) * wide

    @property
    def centre(self) -> tuple[float, float]:
        """Latitude and longitude of its middle, degrees."""
        south, west, north, east = self.box
        return (south + north) / 2, ((west + east) / 2 + 180) % 360 - 180


def _width(row: int) -> float:
    """How many degrees of longitude the largest squares of a row span: those of 12.8 km at the row's middle."""
    middle = (row + 0.5) * LARGEST_KM / KM_PER_DEGREE
    return LARGEST_KM / (KM_PER_DEGREE * math.cos(math.radians(middle)))
