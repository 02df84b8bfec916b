"""Edges between states that hold two places within a distance of each other: the utility policy."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray, content_hash
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.hull import Disc, SensitivityHull
from dphmm.geometry.incremental_hull import GrowingBody, origin
from dphmm.geometry.measurements import Measurements, Raster
from dphmm.geometry.neighbours import CoordinateBody, count_within, near_pairs
from dphmm.policy.edges import EdgeSet, cut_to, joined

_CELLS_AT_A_TIME = 1 << 16
_FEW_PAIRS = 1 << 13
_FEW_OFFSETS = 64
_UNKNOWN: Any = object()
_ROUNDING = 64 * float(np.finfo(np.float64).eps)


class RadiusEdges(EdgeSet):
    """All pairs of states that hold two places at most ``radius`` apart (closed, within the one tolerance).

    Parameters
    ----------
    places
        Where the states are, in the space that distance is measured in.
    radius
        Not negative; in the unit of ``places``.
    cell
        The side of the cell along the axes that a state is the centre of; 0 for states that are points. Two cells whose
        centres differ by ``v`` are as far apart as the vector with ``max(|v_k| - cell, 0)`` is long.
    """

    def __init__(self, places: Measurements, radius: float, cell: float = 0.0) -> None:
        self.size = places.size
        self.places = places
        self.radius = radius
        self.cell = cell
        self._found: tuple[tuple[Measurements, IntArray | None], ...] = ()
        self._whole: tuple[IntArray, tuple[GrowingBody, list[tuple[int, int]]]] | None = None
        self._proportion: tuple[FloatArray, tuple[Raster, IntArray, FloatArray] | None] | None = None

    def chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """Near pairs, block by block."""
        index = np.flatnonzero(nodes)
        points = self.places.points[index]
        for rows, columns in near_pairs(points, np.full(self.places.dimension, self.radius + self.cell), once=True):
            near = self._near(points[rows] - points[columns])
            yield np.stack([index[rows[near]], index[columns[near]]], axis=1)

    def _near(self, vectors: npt.NDArray[Any]) -> BoolArray:
        apart = np.linalg.norm(np.maximum(np.abs(vectors) - self.cell, 0.0), axis=1)
        return np.asarray(apart <= self.radius + RELATIVE_TOLERANCE * (self.radius + self.cell))

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Whether the states are near enough."""
        return self._near(self.places.points[first] - self.places.points[second])

    def terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """The radius and the cells, where the places are on a lattice of two axes at most; otherwise all edges."""
        if not self.places.is_lattice or self.places.dimension > 2:
            return super().terms(nodes)
        at, side, first = np.zeros((self.size, 2), dtype=np.int64), np.ones(2), np.zeros(2)
        axes = slice(self.places.dimension)
        at[:, axes] = self.places.coordinates
        side[axes] = np.where(self.places.spacing > 0, self.places.spacing, 1.0)
        first[axes] = self.places.points.min(axis=0) - at[:, axes].min(axis=0) * side[axes]
        lengths = (self.radius, self.cell, *map(_tidied, side.tolist()), *first.tolist())
        radius, cell, *rest = (str(Fraction(str(one))) for one in lengths)
        return [cut_to({"near": radius, "cell": cell, "side": rest[:2], "first": rest[2:], "at": at.tolist()}, nodes)]

    def count_bound(self) -> int:
        """All pairs, or what a raster of this density allows."""
        everything = self.size * (self.size - 1) // 2
        raster, offsets = self.places.raster, self._offsets(self.places)
        if raster is None or offsets is None or not raster.is_simple:
            return everything
        return min(everything, self.size * len(offsets))

    @property
    def content_hash(self) -> str:
        """Of the places, the radius, and the cell if there is one."""
        return content_hash("radius", self.places.points, self.radius, *([self.cell] if self.cell else []))

    def is_empty(self, nodes: BoolArray) -> bool:
        """Whether no state has another one near enough."""
        return not self.connected(nodes).any()

    def connected(self, nodes: BoolArray) -> BoolArray:
        """Which states have another one near enough."""
        body: Disc | SensitivityHull
        if self.cell:  # lattice vectors near enough are all that lie in their hull: a square and a disc are convex
            offsets = self._offsets(self.places)
            if offsets is None or not len(offsets):
                return super().connected(nodes)
            body = self.places.hull_of(self._hull_of_offsets(self.places, offsets)[0])
        elif self.radius == 0:
            return super().connected(nodes)
        else:
            body = Disc(self.radius, self.places.dimension)
        return count_within(CoordinateBody(self.places, body), nodes) > 1

    def components(self, nodes: BoolArray) -> IntArray:
        """On a raster: cells that touch are joined at once, what is left by one offset after another."""
        raster, offsets = self.places.raster, self._offsets(self.places)
        if raster is None or offsets is None:
            return super().components(nodes)
        cells, blobs = _touching(raster.occupied(nodes), offsets)
        for dx, dy in offsets[::-1].tolist():
            if blobs.max(initial=0) == blobs.min(initial=0):
                break
            first, second = _shifted(cells, dx, dy)
            both = (first >= 0) & (second >= 0)
            blobs = joined(blobs, np.unique(np.stack([first[both], second[both]], axis=1), axis=0))
        states = np.flatnonzero(nodes)
        of_state = blobs[cells.ravel()[raster.flat[states]]]
        first = np.empty(len(blobs), dtype=np.int64)
        first[of_state[::-1]] = states[::-1]  # the last one written is the smallest
        found = np.full(self.size, -1, dtype=np.int64)
        found[states] = first[of_state]
        return found

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """On a raster where no two states share a cell: whether any state of the rarer labels has such an edge."""
        raster, offsets = self.places.raster, self._offsets(self.places)
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
        rare = states[number != np.bincount(number).argmax()]
        rows, columns = np.divmod(raster.flat[rare], raster.width)
        own = cells[rows, columns]
        for dx, dy in np.concatenate([offsets, -offsets]).tolist():
            x, y = columns + dx, rows + dy
            on = (x >= 0) & (x < raster.width) & (y >= 0) & (y < raster.height)
            other = cells[y[on], x[on]]
            if ((other >= 0) & (other != own[on])).any():
                return True
        return False

    def body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """On a raster there are few distinct differences: the longest first, each looked for once."""
        raster, offsets = measurements.raster, self._offsets(measurements)
        possible = int(np.count_nonzero(nodes))
        few = offsets is not None and len(offsets) <= _FEW_OFFSETS
        if raster is None or offsets is None or not (few or possible * min(possible, len(offsets)) > _FEW_PAIRS):
            return super().body(measurements, nodes)
        cells = raster.occupied(nodes)
        if few:  # a hull that grows by one vertex after another takes longer than to look for each of them
            whole = self._hull_of_offsets(measurements, offsets)
            if all(_occurs(cells, dx, dy) for dx, dy in whole[1]):
                return whole[0]
        cells, hull = _cropped(cells), origin(measurements.coordinates)
        if few:
            occurring = [_occurs(cells, dx, dy) for dx, dy in offsets.tolist()]
            return hull.grow(offsets[occurring][:, : measurements.dimension])
        while len(offsets):
            offset, offsets = offsets[0], offsets[1:]
            if _occurs(cells, int(offset[0]), int(offset[1])):
                hull = hull.grow(offset[None, : measurements.dimension])
                offsets = offsets[hull.outside(offsets[:, : measurements.dimension])]
        return hull

    def _hull_of_offsets(
        self, measurements: Measurements, offsets: IntArray
    ) -> tuple[GrowingBody, list[tuple[int, int]]]:
        """The hull of all offsets, and those at its corners: where these occur, it is that of all that occur."""
        if self._whole is None or self._whole[0] is not offsets:
            body = origin(measurements.coordinates).grow(offsets[:, : measurements.dimension])
            corners = {tuple(one) for one in np.concatenate([body.vertices, -body.vertices]).tolist()}
            at = [(dx, dy) for dx, dy in offsets.tolist() if (dx, dy)[: measurements.dimension] in corners]
            self._whole = (offsets, (body, at))
        return self._whole[1]

    def widest(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """On a raster, by the offsets that reach out of the gauge: is any of them a difference of possible states?"""
        found = self._steps_of(points)
        if found is None:
            return super().widest(points, nodes, gauge)
        raster, offsets, differences = found
        lengths = gauge(differences)
        out = np.flatnonzero(lengths > 1)
        if len(out):
            cells = _cropped(raster.occupied(nodes))
            out = np.array([k for k in out.tolist() if _occurs(cells, *offsets[k].tolist())], dtype=np.int64)
        return float(lengths[out].max(initial=0.0))

    def _steps_of(self, points: FloatArray) -> tuple[Raster, IntArray, FloatArray] | None:
        """The raster of the places, its offsets within the radius, and the differences of points that they stand for.

        ``None`` where there is no raster, or points are not in proportion to their places on it.
        """
        if self._proportion is None or self._proportion[0] is not points:
            raster, found = self.places.raster, None
            if raster is not None:
                cells = np.stack([raster.flat % raster.width, raster.flat // raster.width], axis=1).astype(np.float64)
                cells, moved = cells - cells[:1], points - points[:1]
                step = np.linalg.lstsq(cells, moved, rcond=None)[0]
                if (moved == np.rint(moved)).all():
                    step = np.rint(step)
                if np.abs(cells @ step - moved).max() <= _ROUNDING * np.abs(points).max():
                    offsets = self._find_offsets(raster, self.places.spacing)
                    found = (raster, offsets, np.asarray(offsets @ step))
            self._proportion = (points, found)
        return self._proportion[1]

    def _offsets(self, measurements: Measurements) -> IntArray | None:
        """Lattice offsets ``(k, 2)`` within the radius, one of each pair of opposite ones, longest first.

        ``None`` where the measurements fill no raster, or are not where the states are.
        """
        known = next((found for of, found in self._found if of is measurements), _UNKNOWN)
        if known is _UNKNOWN:
            points, places, raster = measurements.points, self.places.points, measurements.raster
            same = measurements is self.places or (
                points.shape == places.shape
                and bool(np.abs(points - places).max() <= RELATIVE_TOLERANCE / 4 * measurements.spacing.min())
            )
            found = None if raster is None or not same else self._find_offsets(raster, measurements.spacing)
            self._found = ((measurements, found), *self._found[:1])
            return found
        return known

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
        return np.asarray(offsets[order][self._near(vectors)[order]])


def _tidied(length: float) -> Fraction:
    """A length that was worked out in doubles as the short decimal that it differs from by rounding alone, if any."""
    exact = Fraction(repr(length))
    short = exact.limit_denominator(10**6)
    return short if abs(short - exact) <= exact / 10**14 else exact


def _touching(occupied: BoolArray, offsets: IntArray) -> tuple[IntArray, IntArray]:
    """Blobs of occupied cells that touch by offsets of at most one step: a blob's number in each cell, -1 where empty.

    And the blobs' own numbers, to be `joined`.
    """
    from scipy.ndimage import label

    structure = np.zeros((3, 3), dtype=np.bool_)
    structure[1, 1] = True
    for dx, dy in offsets[(np.abs(offsets) <= 1).all(axis=1)].tolist():
        structure[1 + dy, 1 + dx] = structure[1 - dy, 1 - dx] = True
    found, count = label(occupied, structure)
    return np.asarray(found, dtype=np.int64) - 1, np.arange(count)


def _shifted(cells: IntArray, dx: int, dy: int) -> tuple[IntArray, IntArray]:
    """Each cell beside the one ``(dx, dy)`` from it, ``dy >= 0``, where both are on the raster; flattened."""
    height, width = cells.shape
    if dy >= height or abs(dx) >= width:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    left, right = slice(max(0, -dx), width - max(0, dx)), slice(max(0, dx), width - max(0, -dx))
    return cells[: height - dy, left].ravel(), cells[dy:, right].ravel()


def _cropped(occupied: BoolArray) -> BoolArray:
    rows = np.flatnonzero(occupied.any(axis=1))
    columns = np.flatnonzero(occupied.any(axis=0))
    return np.ascontiguousarray(occupied[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])


def _occurs(cells: BoolArray, dx: int, dy: int) -> bool:
    """Whether two occupied cells differ by ``(dx, dy)``, ``dy >= 0``; looks until it finds one."""
    height, width = cells.shape
    if dy >= height or abs(dx) >= width:
        return False
    left = slice(max(0, -dx), width - max(0, dx))
    right = slice(max(0, dx), width - max(0, -dx))
    rows = max(1, _CELLS_AT_A_TIME // width)
    for start in range(0, height - dy, rows):
        stop = min(start + rows, height - dy)
        if bool((cells[start:stop, left] & cells[start + dy : stop + dy, right]).any()):
            return True
    return False
