"""Edges between states with two locations within a radius: the utility policy."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, hash_content
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.incremental_hull import GrowingBody, build_origin
from dphmm.geometry.measurements import Measurements, Raster
from dphmm.geometry.neighbours import CoordinateBody, count_within, iterate_near_pairs
from dphmm.geometry.sensitivity_hull import Disc, SensitivityHull
from dphmm.policy.edges import EdgeSet, merge_components, restrict_term
from dphmm.tolerances import RELATIVE_TOLERANCE

# Number of cells compared at a time. The search for a pair of cells ends with the first block that contains one.
_CHUNK_CELLS = 1 << 16
# Up to this number of pairs computing all differences is faster than searching for offsets on the raster.
_MAX_LISTED_PAIRS = 1 << 13
# Up to this number of offsets each is searched for. Growing a hull vertex by vertex takes longer.
_MAX_SEARCHED_OFFSETS = 64
# Points that are proportional to their cells agree up to a few units in the last place, relative to the largest.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)


class RadiusEdges(EdgeSet):
    """All pairs of states that contain two locations at most ``radius`` apart.

    Parameters
    ----------
    places
        The coordinates of the states, in the space in which distance is measured.
    radius
        Non-negative, in the unit of ``places``.
    cell
        The side of the axis-parallel cells centred at the states; 0 for states that are points. The distance of two
        cells with centres that differ by ``v`` is the norm of ``max(|v_k| - cell, 0)``.
    """

    def __init__(self, places: Measurements, radius: float, cell: float = 0.0) -> None:
        self.size = places.size
        self.places = places
        self.radius = radius
        self.cell = cell
        self._offsets_of: tuple[tuple[Measurements, IntArray | None], ...] = ()
        self._offset_hull: tuple[IntArray, tuple[GrowingBody, list[tuple[int, int]]]] | None = None
        self._proportion: tuple[FloatArray, tuple[Raster, IntArray, FloatArray] | None] | None = None

    def iterate_chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """Iterate over the pairs within the radius, block by block."""
        index = np.flatnonzero(nodes)
        points = self.places.points[index]
        for rows, columns in iterate_near_pairs(points, np.full(self.places.dimension, self.radius + self.cell)):
            near = self._is_within_radius(points[rows] - points[columns])
            yield np.stack([index[rows[near]], index[columns[near]]], axis=1)

    def _is_within_radius(self, vectors: npt.NDArray[Any]) -> BoolArray:
        # The distance of the nearest points of two cells is ‖max(|v| − side, 0)‖. A cell of side zero is its centre.
        apart = np.linalg.norm(np.maximum(np.abs(vectors) - self.cell, 0.0), axis=1)
        return np.asarray(apart <= self.radius + RELATIVE_TOLERANCE * (self.radius + self.cell))

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Return whether each pair of states is within the radius."""
        return self._is_within_radius(self.places.points[first] - self.places.points[second])

    def list_terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """Return the radius and cells for a lattice of at most two axes, else all edges."""
        if not self.places.is_lattice or self.places.dimension > 2:
            return super().list_terms(nodes)
        at = np.zeros((self.size, 2), dtype=np.int64)
        side = np.ones(2)
        first = np.zeros(2)
        axes = slice(self.places.dimension)
        at[:, axes] = self.places.coordinates
        side[axes] = np.where(self.places.spacing > 0, self.places.spacing, 1.0)
        first[axes] = self.places.points.min(axis=0) - at[:, axes].min(axis=0) * side[axes]
        lengths = (self.radius, self.cell, *map(_snap_to_decimal, side.tolist()), *first.tolist())
        radius, cell, *rest = (str(Fraction(str(length))) for length in lengths)
        return [
            restrict_term({"near": radius, "cell": cell, "side": rest[:2], "first": rest[2:], "at": at.tolist()}, nodes)
        ]

    def bound_num_edges(self) -> int:
        """Return the number of all pairs, or the number of offsets times states on a raster."""
        everything = self.size * (self.size - 1) // 2
        raster = self.places.raster
        offsets = self._get_offsets(self.places)
        if raster is None or offsets is None or not raster.is_simple:
            return everything
        return min(everything, self.size * len(offsets))

    @property
    def content_hash(self) -> str:
        """A hash of the places, the radius, and the cell unless it is zero."""
        return hash_content("radius", self.places.points, self.radius, *([self.cell] if self.cell else []))

    def is_empty(self, nodes: BoolArray) -> bool:
        """Return whether no two states are within the radius."""
        return not self.find_connected_states(nodes).any()

    def find_connected_states(self, nodes: BoolArray) -> BoolArray:
        """Return which states have another state within the radius."""
        body: Disc | SensitivityHull
        if self.cell:
            # The sum of a square and a disc is convex: all lattice vectors in the hull of the offsets are offsets.
            offsets = self._get_offsets(self.places)
            if offsets is None or not len(offsets):
                return super().find_connected_states(nodes)
            body = self.places.compute_hull(self._compute_offset_hull(self.places, offsets)[0])
        elif self.radius == 0:
            return super().find_connected_states(nodes)
        else:
            body = Disc(self.radius, self.places.dimension)
        return count_within(CoordinateBody(self.places, body), nodes) > 1

    def components(self, nodes: BoolArray) -> IntArray:
        """Return the components. On a raster touching cells are merged first."""
        raster = self.places.raster
        offsets = self._get_offsets(self.places)
        if raster is None or offsets is None:
            return super().components(nodes)
        cells, blobs = _label_blobs(raster.find_occupied_cells(nodes), offsets)
        for dx, dy in offsets[::-1].tolist():
            if blobs.max(initial=0) == blobs.min(initial=0):
                break
            first, second = _pair_shifted_cells(cells, dx, dy)
            both = (first >= 0) & (second >= 0)
            blobs = merge_components(blobs, np.unique(np.stack([first[both], second[both]], axis=1), axis=0))
        states = np.flatnonzero(nodes)
        of_state = blobs[cells.ravel()[raster.flat[states]]]
        first = np.empty(len(blobs), dtype=np.int64)
        # Written in descending order: the smallest state of each blob is written last.
        first[of_state[::-1]] = states[::-1]
        components = np.full(self.size, -1, dtype=np.int64)
        components[states] = first[of_state]
        return components

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """Return whether an edge connects different labels, on a raster by rarer labels."""
        raster = self.places.raster
        offsets = self._get_offsets(self.places)
        states = np.flatnonzero(nodes)
        if not len(states) or (labels[states] == labels[states[0]]).all():
            return False
        if raster is None or offsets is None or not raster.is_simple:
            return super().crosses(labels, nodes)
        cells = np.full((raster.height, raster.width), -1, dtype=np.int64)
        number = labels[states] - labels[states].min()
        if number.max() > self.size:
            number = np.unique(number, return_inverse=True)[1].ravel()
        cells.ravel()[raster.flat[states]] = number
        # An edge between labels has an endpoint without the most common label: only these states are checked.
        rare = states[number != np.bincount(number).argmax()]
        rows, columns = np.divmod(raster.flat[rare], raster.width)
        own_label = cells[rows, columns]
        for dx, dy in np.concatenate([offsets, -offsets]).tolist():
            x = columns + dx
            y = rows + dy
            on = (x >= 0) & (x < raster.width) & (y >= 0) & (y < raster.height)
            other = cells[y[on], x[on]]
            if ((other >= 0) & (other != own_label[on])).any():
                return True
        return False

    def build_body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """Return the hull. On a raster distinct offsets are searched for, longest first."""
        raster = measurements.raster
        offsets = self._get_offsets(measurements)
        possible = int(np.count_nonzero(nodes))
        has_few_offsets = offsets is not None and len(offsets) <= _MAX_SEARCHED_OFFSETS
        if raster is None or offsets is None:
            return super().build_body(measurements, nodes)
        if not has_few_offsets and possible * min(possible, len(offsets)) <= _MAX_LISTED_PAIRS:
            return super().build_body(measurements, nodes)
        cells = raster.find_occupied_cells(nodes)
        if has_few_offsets:
            # If every vertex of the hull of all offsets occurs, it is also the hull of the offsets that occur.
            full_hull, vertex_offsets = self._compute_offset_hull(measurements, offsets)
            if all(_occurs(cells, dx, dy) for dx, dy in vertex_offsets):
                return full_hull
        cells = _crop(cells)
        hull = build_origin(measurements.coordinates)
        if has_few_offsets:
            occurring = [_occurs(cells, dx, dy) for dx, dy in offsets.tolist()]
            return hull.grow(offsets[occurring][:, : measurements.dimension])
        while len(offsets):
            offset = offsets[0]
            offsets = offsets[1:]
            if _occurs(cells, int(offset[0]), int(offset[1])):
                hull = hull.grow(offset[None, : measurements.dimension])
                offsets = offsets[hull.can_grow_by(offsets[:, : measurements.dimension])]
        return hull

    def _compute_offset_hull(
        self, measurements: Measurements, offsets: IntArray
    ) -> tuple[GrowingBody, list[tuple[int, int]]]:
        """Return the hull of all offsets, and the offsets that are its vertices."""
        if self._offset_hull is None or self._offset_hull[0] is not offsets:
            body = build_origin(measurements.coordinates).grow(offsets[:, : measurements.dimension])
            corners = {tuple(corner) for corner in np.concatenate([body.vertices, -body.vertices]).tolist()}
            at = [(dx, dy) for dx, dy in offsets.tolist() if (dx, dy)[: measurements.dimension] in corners]
            self._offset_hull = (offsets, (body, at))
        return self._offset_hull[1]

    def compute_max_gauge(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """Return the largest gauge. On a raster only offsets beyond it are searched for."""
        steps = self._compute_steps(points)
        if steps is None:
            return super().compute_max_gauge(points, nodes, gauge)
        raster, offsets, differences = steps
        lengths = gauge(differences)
        out = np.flatnonzero(~(lengths <= 1))  # also NaN
        if len(out):
            cells = _crop(raster.find_occupied_cells(nodes))
            out = np.array([k for k in out.tolist() if _occurs(cells, *offsets[k].tolist())], dtype=np.int64)
        return float(lengths[out].max(initial=0.0))

    def _compute_steps(self, points: FloatArray) -> tuple[Raster, IntArray, FloatArray] | None:
        """Return the raster of the places, its offsets, and their differences of points.

        None if there is no raster, or points are not proportional to their places on it.
        """
        if self._proportion is None or self._proportion[0] is not points:
            raster = self.places.raster
            steps = None
            if raster is not None:
                cells = np.stack([raster.flat % raster.width, raster.flat // raster.width], axis=1).astype(np.float64)
                cells = cells - cells[:1]
                moved = points - points[:1]
                step = np.linalg.lstsq(cells, moved, rcond=None)[0]
                if (moved == np.rint(moved)).all():
                    step = np.rint(step)
                if np.abs(cells @ step - moved).max() <= _ROUNDING * np.abs(points).max():
                    offsets = self._find_offsets(raster, self.places.spacing)
                    steps = (raster, offsets, np.asarray(offsets @ step))
            self._proportion = (points, steps)
        return self._proportion[1]

    def _get_offsets(self, measurements: Measurements) -> IntArray | None:
        """Return the lattice offsets ``(k, 2)`` within the radius, longest first.

        Of two opposite offsets one is included. None if the measurements are not on a raster, or differ from the places
        of the states.
        """
        for cached_measurements, offsets in self._offsets_of:
            if cached_measurements is measurements:
                return offsets
        points = measurements.points
        places = self.places.points
        raster = measurements.raster
        same = measurements is self.places or (
            points.shape == places.shape
            and bool(np.abs(points - places).max() <= RELATIVE_TOLERANCE / 4 * measurements.spacing.min())
        )
        offsets = None if raster is None or not same else self._find_offsets(raster, measurements.spacing)
        self._offsets_of = ((measurements, offsets), *self._offsets_of[:1])
        return offsets

    def _find_offsets(self, raster: Raster, step: FloatArray) -> IntArray:
        spacing: FloatArray = np.ones(2)
        spacing[: len(step)] = step
        reach = (self.radius + self.cell) * (1 + RELATIVE_TOLERANCE) / spacing
        a, b = (int(x) for x in np.minimum(reach, [raster.width - 1, raster.height - 1]))
        x, y = np.meshgrid(np.arange(-a, a + 1), np.arange(b + 1))
        offsets = np.stack([x.ravel(), y.ravel()], axis=1)
        offsets = offsets[(offsets[:, 1] > 0) | (offsets[:, 0] > 0)]
        vectors = offsets * spacing
        order = np.argsort(-np.linalg.norm(vectors, axis=1), kind="stable")
        return np.asarray(offsets[order][self._is_within_radius(vectors)[order]])


def _snap_to_decimal(length: float) -> Fraction:
    """Return the short fraction that a length equals up to rounding, or else its exact value."""
    exact = Fraction(repr(length))
    short = exact.limit_denominator(10**6)
    return short if abs(short - exact) <= exact / 10**14 else exact


def _label_blobs(occupied: BoolArray, offsets: IntArray) -> tuple[IntArray, IntArray]:
    """Label blobs of occupied cells that are connected by offsets of at most one step.

    Returns the index of the blob in each cell, -1 for empty ones, and the indices of all blobs for `merge_components`.
    """
    from scipy.ndimage import label

    structure = np.zeros((3, 3), dtype=np.bool_)
    structure[1, 1] = True
    for dx, dy in offsets[(np.abs(offsets) <= 1).all(axis=1)].tolist():
        structure[1 + dy, 1 + dx] = structure[1 - dy, 1 - dx] = True
    blobs, count = label(occupied, structure)
    return np.asarray(blobs, dtype=np.int64) - 1, np.arange(count)


def _pair_shifted_cells(cells: IntArray, dx: int, dy: int) -> tuple[IntArray, IntArray]:
    """Return all pairs of cells that differ by ``(dx, dy)``, ``dy >= 0``, as two flat arrays."""
    height, width = cells.shape
    if dy >= height or abs(dx) >= width:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    left = slice(max(0, -dx), width - max(0, dx))
    right = slice(max(0, dx), width - max(0, -dx))
    return cells[: height - dy, left].ravel(), cells[dy:, right].ravel()


def _crop(occupied: BoolArray) -> BoolArray:
    rows = np.flatnonzero(occupied.any(axis=1))
    columns = np.flatnonzero(occupied.any(axis=0))
    return np.ascontiguousarray(occupied[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


def _occurs(cells: BoolArray, dx: int, dy: int) -> bool:
    """Return whether two occupied cells differ by ``(dx, dy)``, ``dy >= 0``."""
    height, width = cells.shape
    if dy >= height or abs(dx) >= width:
        return False
    left = slice(max(0, -dx), width - max(0, dx))
    right = slice(max(0, dx), width - max(0, -dx))
    rows = max(1, _CHUNK_CELLS // width)
    for start in range(0, height - dy, rows):
        stop = min(start + rows, height - dy)
        if bool((cells[start:stop, left] & cells[start + dy : stop + dy, right]).any()):
            return True
    return False
