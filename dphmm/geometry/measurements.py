"""Measurements of states, with exact integer coordinates if they lie on a lattice."""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import inf
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_points, copy_read_only, make_read_only
from dphmm.errors import CoordinateError
from dphmm.geometry import planar
from dphmm.geometry.exact_linear_algebra import compute_max_abs, select_distinct_rows, to_common_denominator
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody, build_growing_body
from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.tolerances import MAX_SCALE, RELATIVE_TOLERANCE
from dphmm.validation import Interval, check_arguments

# Wider lattices are not searched: steps that small are rounding. A quarter of the limit leaves room for sums and
# differences of differences.
_MAX_LATTICE_WIDTH = planar.COORDINATE_LIMIT // 4

# Doubles distinguish neighbours on a lattice up to this many steps from its origin.
_MAX_STEPS = 2**52

# Floats may lie off a lattice by this share of the largest: the error of a few roundings.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)

# An axis with steps up to this multiple of another's is counted in the other's steps, so that units stay the same.
_MAX_STEP_RATIO = 4

# A session uses the same dozen polygons repeatedly.
_POLYGON_CACHE_SIZE = 256

# Integer steps from the lowest value, their length (0.0 if all are equal), and the tolerance of values.
Axis = tuple[IntArray, float, float]


class Measurements:
    """The measurement ``f(s)`` of every state, and the coordinates for exact decisions.

    Parameters
    ----------
    f
        ``(N, d)``: one row per state. Floats, integers, or `fractions.Fraction` objects.

    Raises
    ------
    CoordinateError
        If there is no row, or a number is not finite.

    Notes
    -----
    If every axis is a lattice, ``points = origin + spacing * coordinates`` with integer coordinates. This holds for
    integers, rationals, and floats that differ only by rounding from integer multiples of one step from an origin, such
    as a grid's centres. Geometry in the coordinates is then exact: convexity and membership do not depend on the axes'
    units. Otherwise ``coordinates`` are the points. Distinct values have distinct coordinates, however close.

    Examples
    --------
    >>> Measurements([[0.17, 0.17], [0.51, 0.17], [0.17, 1.19]]).coordinates.tolist()
    [[0, 0], [1, 0], [0, 3]]
    """

    def __init__(self, f: npt.ArrayLike) -> None:
        points = as_points(f, "measurements")
        if not len(points):
            raise CoordinateError("measurements must have a row for each state, got no row")
        axes = [_find_lattice_axis(column) for column in np.asarray(f).T]
        self._set(points, points, axes)

    @staticmethod
    @check_arguments
    def on_lattice(
        steps: npt.ArrayLike,
        unit: Annotated[float, Interval(0, inf, "neither", error=CoordinateError)],
        origin: npt.ArrayLike | None = None,
    ) -> Measurements:
        """Build measurements at known lattice points, ``origin + unit * steps``.

        Parameters
        ----------
        steps
            ``(N, d)`` integers.
        unit
            The length of one step, positive and finite, in the unit of the measurements.
        origin
            ``(d,)``: the location of step zero, in the unit of the measurements. Defaults to zeros.

        Returns
        -------
        Measurements
            The measurements.

        Raises
        ------
        CoordinateError
            If the steps are not integers, or an argument has the wrong shape or is not finite.

        Examples
        --------
        >>> measurements = Measurements.on_lattice([[0, 0], [3, 0], [0, 6]], 0.3333, origin=[12.345, 0.0])
        >>> measurements.coordinates.tolist(), measurements.points[1].tolist()
        ([[0, 0], [1, 0], [0, 2]], [13.3449, 0.0])
        >>> measurements.steps_per_coordinate.tolist()
        [3, 3]
        """
        whole = np.asarray(steps)
        if whole.dtype.kind not in "iu":
            raise CoordinateError(f"steps must be integers, got type {whole.dtype}")
        floats = as_points(whole, "steps")
        if np.abs(floats).max() > _MAX_STEPS:
            raise CoordinateError("steps must be within 2**52: use a longer step")
        place = np.zeros(floats.shape[1]) if origin is None else np.asarray(origin, dtype=np.float64)
        if place.shape != floats.shape[1:]:
            raise CoordinateError(
                f"origin must be one number for each of {whole.shape[1]} axes, got shape {place.shape}"
            )
        if float(np.abs(floats).max(initial=0.0)) * float(unit) > MAX_SCALE:
            raise CoordinateError(f"steps of {unit} must stay within {MAX_SCALE:g}: use a larger unit")
        return _LatticeMeasurements(place, unit, whole.astype(np.int64))

    def _set(
        self, points: FloatArray, otherwise: FloatArray, axes: list[Axis | None], unit: float | None = None
    ) -> None:
        """Set every field. Coordinates are ``otherwise`` unless all axes are lattices.

        Parameters
        ----------
        unit
            The length of the axes' steps, if they are those of a known lattice.
        """
        # ``(N, d)``, read-only like every array here.
        self.points: FloatArray = copy_read_only(points)
        lattices = [axis for axis in axes if axis is not None]
        # Whether coordinates are integers and decisions exact.
        self.is_lattice = len(lattices) == self.dimension
        coordinates, spacing = _stack_axes(lattices) if self.is_lattice else (otherwise, np.ones(self.dimension))
        # ``(N, d)``: integers on a lattice, otherwise the points (or the steps of `on_lattice`, as floats).
        self.coordinates: npt.NDArray[Any] = copy_read_only(coordinates)
        # ``(d,)``: the length of one step of the coordinates, in the unit of the measurements.
        self.spacing: FloatArray = copy_read_only(spacing if unit is None else spacing * unit)
        per_coordinate = np.ones(self.dimension) if unit is None else np.rint(spacing)
        # ``(d,)``: the number of steps of a known lattice (see `on_lattice`) in one step of the coordinates.
        self.steps_per_coordinate: IntArray = copy_read_only(per_coordinate.astype(np.int64))

    @classmethod
    def from_values(cls, f: npt.ArrayLike | Measurements) -> Measurements:
        """Convert `f` to `Measurements`. Return it unchanged if it already is one.

        Parameters
        ----------
        f
            ``(N, d)`` measurements, or a `Measurements`.

        Returns
        -------
        Measurements
            The measurements.

        Raises
        ------
        CoordinateError
            If an array is invalid; see `Measurements`.
        """
        return f if isinstance(f, cls) else cls(f)  # type: ignore[arg-type]  # an array-like if not an instance

    @cached_property
    def by_columns(self) -> FloatArray:
        """The points ``(N, d)`` in column-major memory."""
        return make_read_only(np.asfortranarray(self.points))

    @cached_property
    def size(self) -> int:
        """The number of states ``N``."""
        return len(self.points)

    @cached_property
    def dimension(self) -> int:
        """The number of measured dimensions ``d``."""
        return int(self.points.shape[1])

    def differences(self, edges: IntArray) -> npt.NDArray[Any]:
        """Return differences of coordinates ``(m, d)`` between the states of each edge.

        Parameters
        ----------
        edges
            ``(m, 2)``: pairs of states.

        Returns
        -------
        ndarray
            ``(m, d)``: first minus second, in coordinates.
        """
        # `take` is five times as fast as indexing by an array of rows.
        return np.asarray(self.coordinates.take(edges[:, 0], axis=0) - self.coordinates.take(edges[:, 1], axis=0))

    def lengths(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return Euclidean lengths of coordinate vectors, in the unit of the measurements.

        Parameters
        ----------
        vectors
            ``(k, d)``, in coordinates.

        Returns
        -------
        FloatArray
            ``(k,)``: Euclidean lengths in the unit of the measurements.
        """
        return np.asarray(np.linalg.norm(vectors * self.spacing, axis=1))

    def to_units(self, hull: SensitivityHull) -> SensitivityHull:
        """Convert a hull in coordinates to the unit of the measurements.

        Parameters
        ----------
        hull
            A hull of differences in coordinates.

        Returns
        -------
        SensitivityHull
            The same body in the unit of the measurements.
        """
        if (self.spacing == 1.0).all():
            return hull
        return hull.scale_axes(self.spacing) if hull.corners is None else self._get_polygon_forms(hull.corners)[1]

    def compute_hull(self, body: GrowingBody) -> SensitivityHull:
        """Return the hull of a body, cached with its derived forms.

        Polygons with integer corners are cached: different constraints often have equal longest differences.

        Parameters
        ----------
        body
            A body of differences in coordinates.

        Returns
        -------
        SensitivityHull
            Its hull in coordinates.
        """
        if not isinstance(body, PlanarBody) or body.is_flat or body.vertices.dtype.kind != "i":
            return body.hull
        return self._get_polygon_forms(body.vertices)[0]

    def build_body(self, hull: SensitivityHull) -> GrowingBody:
        """Convert a hull in coordinates to a growing body.

        Parameters
        ----------
        hull
            A hull of differences in coordinates.

        Returns
        -------
        GrowingBody
            The hull as a body to which differences can be added.
        """
        if hull.corners is not None:
            return self._get_polygon_forms(hull.corners)[2]
        if self.dimension > 2:
            return GrowingBody.from_hull(hull, self.is_lattice)
        return build_growing_body(np.rint(hull.vertices).astype(np.int64) if self.is_lattice else hull.vertices)

    def _get_polygon_forms(self, corners: npt.NDArray[np.int64]) -> tuple[SensitivityHull, SensitivityHull, PlanarBody]:
        """Return the hull of corners, in coordinates and in units, and the growing body."""
        return _build_polygon_forms(corners.tobytes(), self.spacing.tobytes())

    @cached_property
    def raster(self) -> Raster | None:
        """The coordinates as cells of a dense raster, if they fill enough of their bounding box."""
        if not self.is_lattice or self.dimension > 2:
            return None
        planar_coordinates = np.zeros((self.size, 2), dtype=np.int64)
        planar_coordinates[:, : self.dimension] = self.coordinates
        low = planar_coordinates.min(axis=0)
        width, height = (int(x) for x in planar_coordinates.max(axis=0) - low + 1)
        if width * height > max(4096, 16 * self.size):
            return None
        return Raster(planar_coordinates - low, width, height, low)

    def surrogates(self, states: IntArray, constraint: BoolArray) -> IntArray:
        """Return the surrogate of each state: the possible state with the nearest measurement.

        Ties are broken consistently, independent of the other states.

        Parameters
        ----------
        states
            ``(k,)`` states, possible or not.
        constraint
            ``(N,)`` mask of the possible states; at least one.

        Returns
        -------
        IntArray
            ``(k,)``: the possible state nearest to each.
        """
        if self.raster is not None:
            cached = self._nearest
            if cached is None or not np.array_equal(cached[0], constraint):
                cached = self._nearest = (constraint.copy(), self.raster.find_nearest_states(constraint, self.spacing))
            return np.asarray(cached[1][self.raster.flat[states]])
        from scipy.spatial import cKDTree

        possible = np.flatnonzero(constraint)
        return np.asarray(possible[cKDTree(self.points[possible]).query(self.points[states])[1]])

    # The last constraint, and the nearest possible state to each cell of the raster.
    _nearest: tuple[BoolArray, IntArray] | None = None

    def extremes(self, constraint: BoolArray) -> npt.NDArray[Any]:
        """Return coordinates ``(h, d)`` of possible states with the convex hull of all of them.

        They are few in the plane. For a read-only constraint the result is cached until the next constraint.

        Parameters
        ----------
        constraint
            ``(N,)`` mask of the possible states; at least one.

        Returns
        -------
        ndarray
            ``(h, d)``: points, in coordinates, with the same convex hull as all possible states.
        """
        if self._extremes is None or self._extremes[0] is not constraint:
            corners = copy_read_only(self._find_extremes(constraint))
            if constraint.flags.writeable or constraint.base is not None:
                return corners
            self._extremes = (constraint, corners)
        return self._extremes[1]

    _extremes: tuple[BoolArray, npt.NDArray[Any]] | None = None

    def _find_extremes(self, constraint: BoolArray) -> npt.NDArray[Any]:
        if self.dimension > 2:
            return planar.select_hull_candidates(select_distinct_rows(self.coordinates[constraint]))
        if self.dimension == 2 and self.raster is not None:
            return self.raster.find_hull_corners(constraint)
        points = self.coordinates[constraint]
        if self.dimension == 1:
            return np.array([points.min(axis=0), points.max(axis=0)])
        return planar.build_convex_polygon(points)


class _LatticeMeasurements(Measurements):
    """Measurements ``origin + unit * steps``, see `Measurements.on_lattice`."""

    def __init__(self, origin: FloatArray, unit: float, steps: IntArray) -> None:
        floats = steps.astype(np.float64)
        points = as_points(origin + floats * unit, "measurements")
        self._set(points, floats, [_find_integer_axis(column) for column in steps.T], unit)


class Raster:
    """Lattice points as cells of a dense array ``(height, width)``.

    Parameters
    ----------
    cells
        ``(N, 2)``: column and row of each state.
    width, height
        The size of the array.
    low
        ``(2,)``: the coordinates of its first cell.
    """

    def __init__(self, cells: IntArray, width: int, height: int, low: IntArray) -> None:
        self.width = width
        self.height = height
        self._low = low
        # ``(N,)``: the index of each state's cell in the flattened array.
        self.flat = cells[:, 1] * width + cells[:, 0]
        self.is_raster_order = bool((self.flat == np.arange(len(cells))).all()) and len(cells) == width * height
        # Whether no two states share a cell.
        self.is_simple = self.is_raster_order or len(np.unique(self.flat)) == len(cells)

    def count_per_cell(self, constraint: BoolArray) -> npt.NDArray[np.int32]:
        """Return the number of possible states in each cell, ``(height, width)``."""
        if self.is_raster_order:
            return constraint.reshape(self.height, self.width).astype(np.int32)
        size = self.width * self.height
        return np.bincount(self.flat[constraint], minlength=size).astype(np.int32).reshape(self.height, self.width)

    def find_occupied_cells(self, constraint: BoolArray) -> BoolArray:
        """Return a mask of the cells with a possible state, ``(height, width)``."""
        return (
            constraint.reshape(self.height, self.width) if self.is_raster_order else self.count_per_cell(constraint) > 0
        )

    def find_nearest_states(self, constraint: BoolArray, spacing: FloatArray) -> IntArray:
        """Return the possible state nearest to each cell of the flattened array.

        Parameters
        ----------
        constraint
            ``(N,)``; at least one state is possible.
        spacing
            ``(d,)``: the width of a cell, and its height.
        """
        from scipy.ndimage import distance_transform_edt

        possible = np.flatnonzero(constraint)[::-1]
        first = np.full(self.width * self.height, -1, dtype=np.int64)
        first[self.flat[possible]] = possible  # the last one written is the smallest
        sides = (float(spacing[-1]) or 1.0 if len(spacing) > 1 else 1.0, float(spacing[0]) or 1.0)  # 0: a single row
        rows, columns = distance_transform_edt(
            first.reshape(self.height, self.width) < 0, sampling=sides, return_distances=False, return_indices=True
        )
        return np.asarray(first[(rows * self.width + columns).ravel()])

    def find_hull_corners(self, constraint: BoolArray) -> IntArray:
        """Return the corners ``(h, 2)`` of the convex hull of possible states' coordinates."""
        occupied = self.find_occupied_cells(constraint)
        rows = np.flatnonzero(occupied.any(axis=1))
        first = occupied.argmax(axis=1)[rows]
        last = self.width - 1 - occupied[:, ::-1].argmax(axis=1)[rows]
        # The transpose of an array of two lists is made in a fraction of the time that `np.stack` takes.
        return planar.build_polygon(*(np.array([columns, rows]).T + self._low for columns in (first, last)))


@lru_cache(maxsize=_POLYGON_CACHE_SIZE)
def _build_polygon_forms(
    corner_bytes: bytes, spacing_bytes: bytes
) -> tuple[SensitivityHull, SensitivityHull, PlanarBody]:
    corners = np.frombuffer(corner_bytes, dtype=np.int64).reshape(-1, 2)
    hull = SensitivityHull.from_polygon(corners)
    return hull, hull.scale_axes_unchecked(np.frombuffer(spacing_bytes)), PlanarBody(corners)


def _stack_axes(axes: list[Axis]) -> tuple[IntArray, FloatArray]:
    """Stack axes. Steps that are small multiples of the shortest step are counted in it."""
    shortest = min((step for _, step, _ in axes if step > 0), default=1.0)
    columns = []
    spacing = []
    for steps, step, rounding in axes:
        ratio = round(step / shortest)
        drift = abs(step - ratio * shortest) * int(steps.max())
        if step == 0.0 or (ratio <= _MAX_STEP_RATIO and drift <= min(rounding, RELATIVE_TOLERANCE * step)):
            steps = steps * max(ratio, 1)
            step = shortest
        columns.append(steps)
        spacing.append(step)
    return np.ascontiguousarray(np.stack(columns, axis=1)), np.array(spacing)


def _find_lattice_axis(column: npt.NDArray[Any]) -> Axis | None:
    """Return an axis in integer steps, or None. Distinct values never share a step."""
    if column.dtype == object:
        whole, denominator = to_common_denominator(column)
        return (
            _find_integer_axis(whole.astype(np.int64), denominator)
            if compute_max_abs(whole) <= _MAX_LATTICE_WIDTH
            else None
        )
    values = column.astype(np.float64)
    if bool((values == np.rint(values)).all()) and float(np.abs(values).max()) <= _MAX_LATTICE_WIDTH:
        return _find_integer_axis(values.astype(np.int64))
    return _find_float_axis(values)


def _find_integer_axis(values: IntArray, denominator: int = 1) -> Axis | None:
    steps = values - values.min()
    common = int(np.gcd.reduce(steps))
    if int(steps.max()) > _MAX_LATTICE_WIDTH * common:
        return None
    return (steps // common, common / denominator, 0.0) if common else (steps, 0.0, 0.0)


def _find_float_axis(values: FloatArray) -> Axis | None:
    """Return the lattice of floats that differ from it by rounding only, or None."""
    # Distinct values must be distinct steps.
    distinct, where = np.unique(values, return_inverse=True)
    low = float(distinct[0])
    high = float(distinct[-1])
    if low == high:
        return np.zeros(len(values), dtype=np.int64), 0.0, 0.0
    rounding = _ROUNDING * max(abs(low), abs(high))
    step = _find_common_step(np.unique(np.diff(distinct)), RELATIVE_TOLERANCE * (high - low) + rounding)
    if step is None or not high - low <= _MAX_LATTICE_WIDTH * step:
        return None
    step = (high - low) / round((high - low) / step)
    steps = np.rint((distinct - low) / step)
    off = np.abs(
        (distinct - low) - steps * step
    ).max()  # the differences are exact if the values are close to each other
    if off > min(rounding, RELATIVE_TOLERANCE * step) or (np.diff(steps) < 1).any():
        return None
    return steps.astype(np.int64)[where.ravel()], step, rounding


def _find_common_step(gaps: FloatArray, noise: float) -> float | None:
    """Return the largest common divisor of gaps, by Euclid's algorithm up to the noise."""
    step = float(gaps[0])
    for gap in gaps.tolist():
        a = gap
        b = step
        while b > 4 * noise:
            a, b = b, abs(a - b * round(a / b))
        step = a
        # A step that is not clearly above the noise would fit any values.
        if step <= 16 * noise:
            return None
    return step
