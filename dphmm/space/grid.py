"""Square grids of states on an exact integer lattice.

`StateSpace.locate` and `latlon` convert from and to degrees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import shapely

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError, CoordinateError, StateError
from dphmm.geometry.measurements import Measurements
from dphmm.space.projection import LocalProjection, wrap_longitude
from dphmm.space.states import OUTSIDE, REACH_KM, StateSpace, check_size
from dphmm.validation import Integers, Interval, check_arguments

# South, west, north, east, in degrees; a west greater than the east spans the date line.
Box = tuple[float, float, float, float]

# Name → bounding box and cell size in km.
#
# The cell sizes are those of the DPHMM paper's experiments (GeoLife inside Beijing's third ring, 0.34 km; Gowalla in
# Los Angeles, 0.89 km). The paper prints no coordinates. The first box contains the third ring. The second contains the
# City of Los Angeles (33.70 to 34.34 north, from 118.67 west) and extends east over the continuous built-up area. The
# third box is not from a paper; it contains San Francisco and its airport, for the taxis of the cabspotting data set.
PRESETS: Mapping[str, tuple[Box, float]] = {
    "geolife": ((39.87, 116.29, 39.97, 116.46), 0.34),
    "gowalla": ((33.70, -118.69, 34.34, -117.90), 0.89),
    "cabspotting": ((37.59, -122.53, 37.82, -122.35), 0.5),
}

# Maximum number of cells in a grid's rectangle. More cells are probably due to a wrong cell size.
MAX_CELLS = 50_000_000

_FARTHEST_KM = 4 * REACH_KM
KM_PER_DEGREE = 111.2  # of latitude; three digits suffice for margins and for widths of slivers
_PIECES = 8  # a piece of an eighth of a 1 km cell of an edge in degrees is straight in the plane to 1 mm
_MIN_AREA_SHARE = 1e-9  # smaller shares of a cell's area are treated as zero: 0.25 mm² of a 500 m cell
# The side of a cell; below a micrometre there would be too many cells.
CellSize = Annotated[float, Interval(1e-9, math.inf, "left", "kilometres", ConfigurationError)]
_Count = Annotated[int, Integers(1, error=ConfigurationError)]  # columns and rows on the Earth fit into 64 bits
_MARGIN_KM = 0.001  # minimum overlap of a grid over a box: the origin is rounded to a metre


@check_arguments
class Grid(StateSpace):
    """A grid of square cells of one size in a local plane.

    The points are the centres of the cells and satisfy ``points == origin + cell_km * lattice`` exactly. Therefore code
    that needs integers can use `lattice` without loss. States are numbered row by row from the south-west.

    Parameters
    ----------
    projection
        The plane.
    origin_m
        Integer metres east and north of the projection's centre: the centre of the cell in column 0 and row 0.
    cell_km
        The side of a cell in kilometres; positive.
    columns, rows
        The size of the rectangle of cells.
    mask
        Shape ``(rows, columns)``, true for the cells that are states. Defaults to all cells.

    Raises
    ------
    ConfigurationError
        If the cell size is not positive and finite or the rectangle is empty or has more than `MAX_CELLS` cells.
    StateError
        If no cell is a state.
    CoordinateError
        If a cell lies more than 2000 km from the projection's centre.

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
        cell_km: CellSize,
        columns: _Count,
        rows: _Count,
        mask: BoolArray | None = None,
    ) -> None:
        self.projection = projection
        self.cell_km = float(cell_km)
        self.columns, self.rows = _check_shape(columns, rows)
        east, north = origin_m
        self.origin_m = (int(east), int(north))
        far = max(map(abs, self.origin_m)) / 1000.0 + self.cell_km * (max(self.columns, self.rows) - 0.5)
        if far > _FARTHEST_KM:  # check before the arrays are allocated
            raise CoordinateError(f"the grid must lie within {REACH_KM:.0f} km of its centre, got {far:.3g} km")
        self.origin = np.array(self.origin_m) / 1000.0
        shape = (self.rows, self.columns)
        mask = np.ones(shape, dtype=np.bool_) if mask is None else mask
        if mask.shape != shape or mask.dtype != np.bool_:
            raise StateError(f"mask must be boolean of shape {shape}, got {mask.dtype} of shape {mask.shape}")
        self._cells = np.flatnonzero(mask)
        if not self._cells.size:
            raise StateError("no cell of the grid has its centre in the region; use smaller cells or a larger region")
        self._full = self._cells.size == mask.size
        self.lattice: IntArray = np.column_stack([self._cells % self.columns, self._cells // self.columns])
        self.points = self.origin + self.cell_km * self.lattice
        far = np.abs(self.points).max()
        if far > REACH_KM:
            raise CoordinateError(f"the grid must lie within {REACH_KM:.0f} km of its centre, got {far:.0f} km")
        for array in (self.origin, self._cells, self.lattice, self.points):
            array.setflags(write=False)
        self._sealed = True

    @classmethod
    @check_arguments
    def over(cls, region: Box | shapely.Polygon | shapely.MultiPolygon, cell_km: CellSize) -> Grid:
        """Return the grid over a region, in the projection around the region's middle.

        Parameters
        ----------
        region
            Either ``(south, west, north, east)`` in degrees. The states are then all cells of the smallest rectangle
            that covers the box, and every location in the box belongs to a state. Or a polygon with x the longitude and
            y the latitude in degrees, as in GeoJSON, in two parts if it crosses the date line. The states are then the
            cells with their centre inside it (not on its border), and a location near the border may belong to no
            state.
        cell_km
            The side of a cell in kilometres.

        Returns
        -------
        Grid
            The grid.

        Raises
        ------
        CoordinateError
            If the box or polygon is empty, invalid or out of range.
        ConfigurationError, StateError
            As for the class, if the cells are too many or none is inside.
        """
        outline = None if isinstance(region, tuple | list) else _build_outline(region)
        box = check_box(tuple(region)) if outline is None else np.asarray(outline.bounds)[[1, 0, 3, 2]].tolist()
        south, west, north, east = box
        width = (east - west) % 360.0 or 360.0
        projection = LocalProjection((south + north) / 2, wrap_longitude(west + width / 2))
        # The plane makes the sides of a box bulge; points along its border decide, those inside do no harm.
        if outline is None:
            along = np.meshgrid(np.linspace(west, west + width, 65), np.linspace(south, north, 65))
            longitude = wrap_longitude(along[0].ravel())
            latitude = along[1].ravel()
        else:
            longitude, latitude = shapely.get_coordinates(outline).T
            longitude = turn_back(longitude)
        plane = projection.to_plane(latitude, longitude)
        if not np.isfinite(plane).all() or np.abs(plane).max() > REACH_KM:
            raise CoordinateError(f"the region must lie within {REACH_KM:.0f} km of its middle; use a smaller one")
        rectangle = _fit_rectangle(plane, float(cell_km))
        grid = cls(projection, *rectangle)
        if outline is None:
            return grid
        area = shapely.transform(outline, lambda xy: projection.to_plane(xy[:, 1], turn_back(xy[:, 0])))
        shapely.prepare(area)
        inside = np.asarray(shapely.contains_xy(area, grid.points), dtype=np.bool_)
        return cls(projection, *rectangle, inside.reshape(grid.rows, grid.columns))

    @classmethod
    @check_arguments
    def preset(cls, name: str) -> Grid:
        """Return the grid of a published setting, see `PRESETS`.

        Parameters
        ----------
        name
            ``"geolife"`` (Beijing), ``"gowalla"`` (Los Angeles) or ``"cabspotting"`` (San Francisco).

        Returns
        -------
        Grid
            The grid.

        Raises
        ------
        ConfigurationError
            For any other name.
        """
        return cls.over(get_preset_box(name), PRESETS[name][1])

    def __repr__(self) -> str:
        return f"Grid({self.size} states of {self.cell_km} km in {self.columns} columns and {self.rows} rows)"

    def measurements(self) -> Measurements:
        """Return the points as measurements, with `lattice` as their exact coordinates."""
        return Measurements.on_lattice(self.lattice, self.cell_km, self.origin)

    @check_arguments
    def state_at(self, lattice: npt.ArrayLike) -> IntArray:
        """Return the state in each ``(column, row)``, -1 if there is none.

        Parameters
        ----------
        lattice
            ``(n, 2)`` or ``(2,)`` integers: column and row of each cell, which may lie outside the grid.

        Returns
        -------
        IntArray
            ``(n,)``: the state of each cell, -1 if there is none.

        Raises
        ------
        StateError
            If the input does not have two columns of integers.
        """
        cells = np.atleast_2d(np.asarray(lattice))
        if cells.ndim != 2 or cells.shape[1] != 2 or not np.issubdtype(cells.dtype, np.integer):
            raise StateError(f"lattice must have two columns of integers, got {cells.dtype} of shape {cells.shape}")
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
        """Return the share of each cell's area that lies in a polygon.

        Cells that share only a border with the polygon, up to rounding, have 0.

        Parameters
        ----------
        polygon
            A polygon or multipolygon, in degrees, longitude first; its edges are straight in degrees.

        Returns
        -------
        ndarray, shape (size,)
            From 0 to 1.
        """
        shares = np.zeros(self.size)
        half = self.cell_km / 2
        places = self.latlon()
        side = self.cell_km / KM_PER_DEGREE
        margin = 2 * side / max(np.cos(np.radians(np.abs(places[:, 0]).max())), 0.01)
        low = places.min(axis=0) - margin
        high = places.max(axis=0) + margin
        shape = shapely.intersection(polygon, shapely.box(low[1], low[0], high[1], high[0]))
        if shape.is_empty:
            return shares
        shape = shapely.segmentize(shape, side / _PIECES)  # edges are not straight in the plane
        shape = shapely.make_valid(shapely.transform(shape, self._to_plane))
        low, high = np.reshape(shape.bounds, (2, 2))
        near = np.flatnonzero(((self.points > low - half) & (self.points < high + half)).all(axis=1))
        corners = self.points[near]
        cells = shapely.box(*(corners - half).T, *(corners + half).T)
        shapely.prepare(shape)
        whole = shapely.covers(shape, cells)
        shares[near[whole]] = 1.0
        part = np.flatnonzero(~whole & shapely.intersects(shape, cells))
        part_shares = shapely.area(shapely.intersection(cells[part], shape)) / self.cell_km**2
        shares[near[part]] = np.where(part_shares > _MIN_AREA_SHARE, part_shares, 0.0)
        return shares

    def _to_plane(self, corners: FloatArray) -> FloatArray:
        return self.projection.to_plane(corners[:, 1], wrap_longitude(corners[:, 0]))

    def _locate_cells(self, plane: FloatArray) -> IntArray:
        """Return column and row of points. A border belongs to the cell east or north."""
        return np.floor((plane - self.origin) / self.cell_km + 0.5).astype(np.int64)

    def locate_plane(self, plane: FloatArray) -> IntArray:
        """Return the cells that contain points. See `StateSpace.locate_plane`."""
        return self.state_at(self._locate_cells(plane))

    def _find_nearest_in_plane(self, plane: FloatArray) -> IntArray:
        if not self._full:
            return super()._find_nearest_in_plane(plane)
        return self.state_at(np.clip(self._locate_cells(plane), 0, [self.columns - 1, self.rows - 1]))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable dictionary. See `StateSpace.to_json`.

        The states are encoded as runs of neighbouring cells, ``[first, length]``, counted row by row.
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
    def build(cls, data: Mapping[str, Any], size: int | None) -> Grid:
        """Build a grid from the dictionary of `to_json`. See `StateSpace.build`."""
        columns, rows = _check_shape(data["columns"], data["rows"])
        runs = np.array(data["runs"] or np.zeros((0, 2), dtype=np.int64))
        if runs.dtype != np.int64 or runs.ndim != 2 or runs.shape[1] != 2:
            raise StateError(f"runs must be pairs of a first cell and a length, got {runs.dtype} of shape {runs.shape}")
        starts, lengths = runs.T
        ends = starts + lengths
        wrong = (starts < 0) | (lengths < 1) | (lengths > rows * columns) | (ends > rows * columns)
        wrong[1:] |= starts[1:] < ends[:-1]
        if wrong.any():
            first, length = runs[wrong][0].tolist()
            raise StateError(
                f"runs must be disjoint, ascending and within {rows * columns} cells, got [{first}, {length}]; "
                "write the grid again"
            )
        check_size(int(lengths.sum()), size)
        mask = np.zeros(rows * columns, dtype=np.bool_)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            mask[start:end] = True
        projection = LocalProjection(**data["projection"])
        return cls(projection, data["origin_m"], data["cell_km"], columns, rows, mask.reshape(rows, columns))


def get_preset_box(name: str) -> Box:
    """Return south, west, north, east of a preset in degrees, or raise ConfigurationError."""
    if name not in PRESETS:
        raise ConfigurationError(f"grid preset must be one of {sorted(PRESETS)}, got {name!r}")
    return PRESETS[name][0]


def _check_shape(columns: int, rows: int) -> tuple[int, int]:
    columns = int(columns)
    rows = int(rows)
    if columns < 1 or rows < 1 or columns * rows > MAX_CELLS:
        raise ConfigurationError(
            f"the grid must have at least one column and row and at most {MAX_CELLS} cells, got {columns} × {rows}"
        )
    return columns, rows


def check_box(box: tuple[float, ...]) -> Box:
    """Return south, west, north and east of a box in degrees, after checks.

    A box that crosses the 180th meridian has its west beyond its east.

    Raises
    ------
    CoordinateError
        If it is invalid.
    """
    if len(box) != 4:
        raise CoordinateError(f"box must be south, west, north, east in degrees, got {len(box)} numbers")
    south, west, north, east = (float(side) for side in box)
    if not (-90 <= south < north <= 90 and -180 <= west <= 180 and -180 <= east <= 180 and west != east):
        raise CoordinateError(
            "box must be south, west, north, east with south < north in [-90, 90] and different west and east in "
            f"[-180, 180], got {box}"
        )
    return south, west, north, east


def _build_outline(region: object) -> shapely.Polygon | shapely.MultiPolygon:
    """Return the polygon with enough points along its border for its bulge in the plane."""
    if not isinstance(region, shapely.Polygon | shapely.MultiPolygon):
        raise CoordinateError(f"region must be (south, west, north, east) or a polygon, got {type(region).__name__}")
    if region.is_empty or not region.is_valid:
        raise CoordinateError("the polygon must be non-empty and not cross itself; use shapely.make_valid")
    west, south, east, north = region.bounds
    check_box((south, west, north, east))
    return join_at_date_line(shapely.segmentize(region, 0.01))


def join_at_date_line(polygon: shapely.Geometry) -> shapely.Geometry:
    """Join a polygon that is cut at the date line, with longitudes up to 360°.

    Parameters
    ----------
    polygon
        Longitudes from -180° to 180°. Each edge spans less than 180°. Other polygons are returned unchanged.
    """
    west, _, east, _ = polygon.bounds
    if east - west <= 180.0 or np.ptp(shapely.get_coordinates(polygon)[:, 0] % 360.0) >= 180.0:
        return polygon
    eastern = shapely.transform(polygon, lambda xy: np.column_stack([xy[:, 0] % 360.0, xy[:, 1]]))
    return shapely.union_all(shapely.get_parts(eastern))


def turn_back(longitude: Any) -> Any:
    """Return longitudes with those beyond 180° turned back by 360°. Others stay exact."""
    return np.where(longitude > 180.0, longitude - 360.0, longitude)


def _fit_rectangle(plane: FloatArray, cell_km: float) -> tuple[tuple[int, int], float, int, int]:
    """Return origin in metres, cell size, columns and rows of the smallest centred rectangle."""
    low = plane.min(axis=0)
    high = plane.max(axis=0)
    with np.errstate(over="ignore"):
        count = np.ceil((high - low + 2 * _MARGIN_KM) / cell_km)
    if count.prod() > MAX_CELLS:
        raise ConfigurationError(
            f"a grid must have at most {MAX_CELLS} cells, got {count.prod():.3g} of {cell_km} km; use larger cells"
        )
    middle = (low + high) / 2
    east, north = np.round((middle - (count - 1) / 2 * cell_km) * 1000)
    return (int(east), int(north)), cell_km, int(count[0]), int(count[1])
