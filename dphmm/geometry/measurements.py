"""What is measured in each state, with exact integer coordinates where the measurements lie on a lattice."""

from __future__ import annotations

from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray, as_points, frozen, locked
from dphmm.errors import CoordinateError
from dphmm.geometry import planar
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody, growing_body
from dphmm.geometry.span import common_denominator, distinct_rows, largest

_LATTICE_LIMIT = planar.COORDINATE_LIMIT // 4
"""Lattices wider than this many steps are not looked for: steps that small are rounding, not a lattice."""

_STEP_LIMIT = 2**52
"""Doubles tell neighbours on a lattice apart up to this many steps from its origin."""

_ROUNDING = 64 * float(np.finfo(np.float64).eps)
"""How far floats may lie off a lattice, relative to the largest: as far as a few roundings take them, no farther."""

_COMMON = 4
"""An axis with steps up to this many times those of another is counted in the other's, so that units stay the same."""

_REMEMBERED = 64
"""How many polygons are kept."""

Axis = tuple[IntArray, float, float]
"""Whole steps from the lowest value, their length (0.0 where all are equal), and how far values may lie off them."""


class Measurements:
    """The measurement ``f(s)`` of every state, and the coordinates that decisions are made in.

    Parameters
    ----------
    f
        ``(N, d)``: one row per state. Floats, integers, or `fractions.Fraction` objects.

    Notes
    -----
    Where every axis is a lattice (integers; rationals; or floats that differ by rounding alone from whole multiples of
    one step from an origin, such as a grid's centres) ``points = origin + spacing * coordinates`` with integer
    coordinates, and geometry done in them is exact: convexity and membership do not depend on the axes' units.
    Elsewhere ``coordinates`` are the points themselves. Values that differ have different coordinates, however close.

    Examples
    --------
    >>> Measurements([[0.17, 0.17], [0.51, 0.17], [0.17, 1.19]]).coordinates.tolist()
    [[0, 0], [1, 0], [0, 3]]
    """

    def __init__(self, f: npt.ArrayLike) -> None:
        points = as_points(f, "measurements")
        axes = [_lattice_axis(column) for column in np.asarray(f).T]
        self._set(points, points, axes)

    @classmethod
    @checked
    def on_lattice(cls, steps: npt.ArrayLike, unit: float, origin: npt.ArrayLike | None = None) -> Measurements:
        """Measurements at known points of a lattice, ``origin + unit * steps``: nothing is guessed.

        Parameters
        ----------
        steps
            ``(N, d)`` integers.
        unit
            The length of one step, positive and finite, in the unit of the measurements.
        origin
            ``(d,)``: the place of the step zero, in the unit of the measurements; left out, zeros.

        Raises
        ------
        CoordinateError
            When the steps are no integers, or an argument has the wrong shape or is not finite.

        Examples
        --------
        >>> found = Measurements.on_lattice([[0, 0], [3, 0], [0, 6]], 0.3333, origin=[12.345, 0.0])
        >>> found.coordinates.tolist(), found.steps_per_coordinate.tolist(), found.points[1].tolist()
        ([[0, 0], [1, 0], [0, 2]], [3, 3], [13.3449, 0.0])
        """
        whole = np.asarray(steps)
        if whole.dtype.kind not in "iu":
            raise CoordinateError(f"the steps are of type {whole.dtype}; give whole numbers of steps as integers")
        if not (isfinite(unit) and unit > 0):
            raise CoordinateError(f"the length of a step is {unit}; give a positive, finite number")
        floats = as_points(whole, "steps")
        if np.abs(floats).max() > _STEP_LIMIT:
            raise CoordinateError("the steps reach beyond 2**52; choose a longer step")
        place = np.zeros(floats.shape[1]) if origin is None else np.asarray(origin, dtype=np.float64)
        if place.shape != floats.shape[1:]:
            raise CoordinateError(
                f"the origin has shape {place.shape}; give one number for each of {whole.shape[1]} axes"
            )
        made = object.__new__(cls)
        axes = [_whole_axis(column) for column in whole.astype(np.int64).T]
        if float(np.abs(floats).max(initial=0.0)) * float(unit) > LARGEST:
            raise CoordinateError(f"the steps of {unit} reach beyond {LARGEST:g}; choose a larger unit")
        made._set(as_points(place + floats * unit, "measurements"), floats, axes)
        made.steps_per_coordinate = frozen(np.rint(made.spacing).astype(np.int64))
        made.spacing = frozen(made.spacing * unit)
        return made

    def _set(self, points: FloatArray, otherwise: FloatArray, axes: list[Axis | None]) -> None:
        """The points, and the coordinates: those of the axes' lattices where all are, or ``otherwise``."""
        self.points: FloatArray = frozen(points)
        """``(N, d)``, read-only as every array here."""
        found = [axis for axis in axes if axis is not None]
        self.is_lattice = len(found) == self.dimension
        """Whether coordinates are integers and decisions exact."""
        coordinates, spacing = _on_common_steps(found) if self.is_lattice else (otherwise, np.ones(self.dimension))
        self.coordinates: npt.NDArray[Any] = frozen(coordinates)
        """``(N, d)``: integers on a lattice, otherwise the points (or the steps of `on_lattice`, as floats)."""
        self.spacing: FloatArray = frozen(spacing)
        """``(d,)``: the length of one step of the coordinates, in the unit of the measurements."""
        self.steps_per_coordinate: IntArray = frozen(np.ones(self.dimension, dtype=np.int64))
        """``(d,)``: how many steps of a given lattice (see `on_lattice`) one step of the coordinates is."""
        self._polygons: dict[bytes, tuple[SensitivityHull, SensitivityHull, PlanarBody]] = {}

    @classmethod
    def of(cls, f: npt.ArrayLike | Measurements) -> Measurements:
        """The argument itself where it is a `Measurements` already.

        Parameters
        ----------
        f
            ``(N, d)`` measurements, or a `Measurements`.
        """
        return f if isinstance(f, cls) else cls(f)  # type: ignore[arg-type]

    @cached_property
    def by_columns(self) -> FloatArray:
        """The points ``(N, d)`` once more, in memory one column after the other."""
        return locked(np.asfortranarray(self.points))

    @cached_property
    def size(self) -> int:
        """The number of states ``N``."""
        return len(self.points)

    @cached_property
    def dimension(self) -> int:
        """The number of measured dimensions ``d``."""
        return int(self.points.shape[1])

    def differences(self, edges: IntArray) -> npt.NDArray[Any]:
        """The differences in coordinates ``(m, d)`` between the two states of each edge ``(m, 2)``.

        Parameters
        ----------
        edges
            ``(m, 2)``: pairs of states.

        Returns
        -------
        ndarray
            ``(m, d)``: first minus second, in coordinates.
        """
        return np.asarray(self.coordinates[edges[:, 0]] - self.coordinates[edges[:, 1]])

    def lengths(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """Euclidean lengths, in the unit of the measurements, of vectors in coordinates ``(k, d)``.

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
        """A hull in coordinates as the same hull in the unit of the measurements.

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
        return hull.scaled(self.spacing) if hull.corners is None else self._polygon(hull.corners)[1]

    def hull_of(self, body: GrowingBody) -> SensitivityHull:
        """The hull of differences in coordinates, with what was worked out of it before where it is met again.

        Polygons with integer corners are: whatever is possible, the longest differences are often the same.

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
        return self._polygon(body.vertices)[0]

    def body_of(self, hull: SensitivityHull) -> GrowingBody:
        """A hull in coordinates as a body that grows.

        Parameters
        ----------
        hull
            A hull of differences in coordinates.

        Returns
        -------
        GrowingBody
            The same as a body to which differences can be added.
        """
        if hull.corners is not None:
            return self._polygon(hull.corners)[2]
        if self.dimension > 2:
            return GrowingBody.of_hull(hull, self.is_lattice)
        return growing_body(np.rint(hull.vertices).astype(np.int64) if self.is_lattice else hull.vertices)

    def _polygon(self, corners: npt.NDArray[np.int64]) -> tuple[SensitivityHull, SensitivityHull, PlanarBody]:
        """The hull of some corners, the same in the unit of the measurements, and as a body that grows."""
        key = corners.tobytes()
        known = self._polygons.get(key)
        if known is None:
            if len(self._polygons) >= _REMEMBERED:
                self._polygons.clear()
            hull = SensitivityHull.of_polygon(corners)
            known = self._polygons[key] = (hull, hull.stretched(self.spacing), PlanarBody(corners))
        return known

    @cached_property
    def raster(self) -> Raster | None:
        """The coordinates as cells of a dense raster, where they fill enough of their bounding box."""
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
        """The possible state that stands in for each of some states ``(k,)``: the nearest one by measurement.

        Of several that are as near always the same one, whatever other states are asked about.

        Parameters
        ----------
        states
            ``(k,)`` states, possible or not.
        constraint
            ``(N,)`` booleans: which states are possible; at least one.

        Returns
        -------
        IntArray
            ``(k,)``: the possible state nearest to each.
        """
        if self.raster is not None:
            known = self._nearest
            if known is None or not np.array_equal(known[0], constraint):
                known = self._nearest = (constraint.copy(), self.raster.nearest(constraint, self.spacing))
            return np.asarray(known[1][self.raster.flat[states]])
        from scipy.spatial import cKDTree

        possible = np.flatnonzero(constraint)
        return np.asarray(possible[cKDTree(self.points[possible]).query(self.points[states])[1]])

    _nearest: tuple[BoolArray, IntArray] | None = None
    """The constraint that was asked about last, and the nearest possible state to each cell of the raster."""

    def extremes(self, constraint: BoolArray) -> npt.NDArray[Any]:
        """Coordinates ``(h, d)`` of possible states whose convex hull is that of all of them; few, in the plane.

        Those of a read-only constraint are kept until another one is asked about.

        Parameters
        ----------
        constraint
            ``(N,)`` booleans: which states are possible; at least one.

        Returns
        -------
        ndarray
            ``(h, d)``: points, in coordinates, with the same convex hull as all possible states.
        """
        if self._extremes is None or self._extremes[0] is not constraint:
            found = frozen(self._find_extremes(constraint))
            if constraint.flags.writeable or constraint.base is not None:
                return found
            self._extremes = (constraint, found)
        return self._extremes[1]

    _extremes: tuple[BoolArray, npt.NDArray[Any]] | None = None

    def _find_extremes(self, constraint: BoolArray) -> npt.NDArray[Any]:
        if self.dimension > 2:
            return planar.hull_candidates(distinct_rows(self.coordinates[constraint]))
        if self.dimension == 2 and self.raster is not None:
            return self.raster.corners(constraint)
        points = self.coordinates[constraint]
        if self.dimension == 1:
            return np.array([points.min(axis=0), points.max(axis=0)])
        return planar.convex_polygon(points)


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
        self.width, self.height, self._low = width, height, low
        self.flat = cells[:, 1] * width + cells[:, 0]
        """``(N,)``: the index of each state's cell in the flattened array."""
        self.is_raster_order = bool((self.flat == np.arange(len(cells))).all()) and len(cells) == width * height
        self.is_simple = self.is_raster_order or len(np.unique(self.flat)) == len(cells)
        """Whether no two states share a cell."""

    def counts(self, constraint: BoolArray) -> npt.NDArray[np.int32]:
        """How many possible states each cell holds, ``(height, width)``."""
        if self.is_raster_order:
            return constraint.reshape(self.height, self.width).astype(np.int32)
        size = self.width * self.height
        return np.bincount(self.flat[constraint], minlength=size).astype(np.int32).reshape(self.height, self.width)

    def occupied(self, constraint: BoolArray) -> BoolArray:
        """Which cells hold a possible state, ``(height, width)``."""
        return constraint.reshape(self.height, self.width) if self.is_raster_order else self.counts(constraint) > 0

    def nearest(self, constraint: BoolArray, spacing: FloatArray) -> IntArray:
        """The possible state nearest to each cell of the flattened array, by a distance transform.

        Parameters
        ----------
        constraint
            ``(N,)``; some state is possible.
        spacing
            ``(d,)``: the width of a cell, and its height.
        """
        from scipy.ndimage import distance_transform_edt

        possible = np.flatnonzero(constraint)[::-1]
        first = np.full(self.width * self.height, -1, dtype=np.int64)
        first[self.flat[possible]] = possible  # the last one written is the smallest
        sides = (float(spacing[-1]) or 1.0 if len(spacing) > 1 else 1.0, float(spacing[0]) or 1.0)  # 0: one row alone
        rows, columns = distance_transform_edt(
            first.reshape(self.height, self.width) < 0, sampling=sides, return_distances=False, return_indices=True
        )
        return np.asarray(first[(rows * self.width + columns).ravel()])

    def corners(self, constraint: BoolArray) -> IntArray:
        """The corners ``(h, 2)`` of the convex hull of possible states' coordinates, as `planar.convex_polygon`'s."""
        occupied = self.occupied(constraint)
        rows = np.flatnonzero(occupied.any(axis=1))
        first, last = occupied.argmax(axis=1)[rows], self.width - 1 - occupied[:, ::-1].argmax(axis=1)[rows]
        return planar.polygon_of_rows(*(np.stack([one, rows], axis=1) + self._low for one in (first, last)))


def _on_common_steps(axes: list[Axis]) -> tuple[IntArray, FloatArray]:
    """Axes side by side; one whose steps are a few whole steps of the shortest is counted in the shortest."""
    shortest = min((step for _, step, _ in axes if step > 0), default=1.0)
    columns, spacing = [], []
    for steps, step, rounding in axes:
        ratio = round(step / shortest)
        drift = abs(step - ratio * shortest) * int(steps.max())
        if step == 0.0 or (ratio <= _COMMON and drift <= min(rounding, RELATIVE_TOLERANCE * step)):
            steps, step = steps * max(ratio, 1), shortest
        columns.append(steps)
        spacing.append(step)
    return np.ascontiguousarray(np.stack(columns, axis=1)), np.array(spacing)


def _lattice_axis(column: npt.NDArray[Any]) -> Axis | None:
    """An axis whose values are whole steps, or ``None``. Values that differ never share a step."""
    if column.dtype == object:
        whole, denominator = common_denominator(column)
        return _whole_axis(whole.astype(np.int64), denominator) if largest(whole) <= _LATTICE_LIMIT else None
    values = column.astype(np.float64)
    if bool((values == np.rint(values)).all()) and float(np.abs(values).max()) <= _LATTICE_LIMIT:
        return _whole_axis(values.astype(np.int64))
    return _float_axis(values)


def _whole_axis(values: IntArray, denominator: int = 1) -> Axis | None:
    steps = values - values.min()
    common = int(np.gcd.reduce(steps))
    if int(steps.max()) > _LATTICE_LIMIT * common:
        return None
    return (steps // common, common / denominator, 0.0) if common else (steps, 0.0, 0.0)


def _float_axis(values: FloatArray) -> Axis | None:
    """The lattice of floats that differ from it by rounding alone; values that differ are different steps of it."""
    found, where = np.unique(values, return_inverse=True)
    low, high = float(found[0]), float(found[-1])
    if low == high:
        return np.zeros(len(values), dtype=np.int64), 0.0, 0.0
    rounding = _ROUNDING * max(abs(low), abs(high))
    step = _common_step(np.unique(np.diff(found)), RELATIVE_TOLERANCE * (high - low) + rounding)
    if step is None or not high - low <= _LATTICE_LIMIT * step:
        return None
    step = (high - low) / round((high - low) / step)
    steps = np.rint((found - low) / step)
    off = np.abs((found - low) - steps * step).max()  # the differences are exact where the values are near each other
    if off > min(rounding, RELATIVE_TOLERANCE * step) or (np.diff(steps) < 1).any():
        return None
    return steps.astype(np.int64)[where.ravel()], step, rounding


def _common_step(gaps: FloatArray, noise: float) -> float | None:
    """The largest length of which every gap is a whole multiple, by Euclid's algorithm with the noise as zero."""
    step = float(gaps[0])
    for gap in gaps.tolist():
        a, b = gap, step
        while b > 4 * noise:
            a, b = b, abs(a - b * round(a / b))
        step = a
        if step <= 16 * noise:
            return None
    return step
