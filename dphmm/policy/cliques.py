"""Edge sets of cliques: complete, categorical and one-step transition policies.

Each group of states is a clique. A single group of all states is the complete graph, and disjoint groups are
categories. The groups of the transition policy are the successors of each state; they may overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, copy_read_only, find_runs, hash_content
from dphmm.compilation import compile_if_hot
from dphmm.geometry import planar, soundness_loops
from dphmm.geometry.exact_linear_algebra import select_distinct_rows
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody, build_origin
from dphmm.geometry.measurements import Measurements
from dphmm.policy.edges import EdgeSet, merge_components, restrict_term

# Up to these sizes all pairwise differences of a group are computed faster than the hull of its points, in the plane
# and in three or more dimensions.
_PAIRWISE_MAX_SIZE = 32
_PAIRWISE_MAX_SIZE_IN_SPACE = 200
# Pairs and heights that are in memory at a time: 16 and 64 MB.
_CHUNK_PAIRS = 1 << 20
_CHUNK_HEIGHTS = 1 << 23
# Multiples of the golden ratio modulo one form the sequence with the most even gaps.
_GOLDEN_RATIO = (5**0.5 - 1) / 2
# The first batch of groups or pairs is small, because a few of the widest groups usually determine the hull.
_FIRST_BATCH = 64
# Maximum number of edges that are searched for those at the vertices of the hull. A vertex needs only one possible
# edge.
_MAX_SAMPLED_EDGES = 1 << 14


@dataclass(frozen=True)
class _Extents:
    """The extents of groups along some directions, by classes of equal extents.

    ``order`` sorts the groups by decreasing size, ``class_of`` is the class of each group, and ``widths`` contains the
    extents of each class.
    """

    order: IntArray
    class_of: IntArray
    widths: FloatArray


@dataclass(frozen=True)
class _FullHull:
    """The hull of all edges, and for each pair of opposite vertices the edges of it."""

    body: GrowingBody
    pairs: list[IntArray]


class CliqueEdges(EdgeSet):
    """Edges within groups of states, each of which is a clique.

    Parameters
    ----------
    size
        The number of states.
    starts, members
        Group ``g`` is ``members[starts[g] : starts[g + 1]]``. Groups of fewer than two states are dropped.
    """

    def __init__(self, size: int, starts: IntArray, members: IntArray) -> None:
        self.size = size
        starts, members = _select_groups(np.diff(starts) >= 2, starts, members)
        self.starts: IntArray = copy_read_only(starts.astype(np.int64))
        self.members: IntArray = copy_read_only(members)
        self._extents_of: tuple[Measurements, _Extents] | None = None
        self._label: IntArray | None = None
        self._last_measurements: Measurements | None = None
        self._full_hull: tuple[Measurements, _FullHull | None] | None = None
        self._rows: tuple[FloatArray, IntArray, FloatArray] | None = None
        # Disjoint groups, such as categories: one label for each state determines whether two states share a group.
        if len(self.members) == len(np.unique(self.members)):
            self._label = np.full(size, -1, dtype=np.int64)
            self._label[self.members] = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @classmethod
    def from_labels(cls, labels: IntArray) -> CliqueEdges:
        """Create one group for each label. States with a negative label are in no group."""
        order = np.argsort(labels, kind="stable")
        order = order[labels[order] >= 0]
        changes = np.flatnonzero(np.diff(labels[order])) + 1
        return cls(len(labels), np.concatenate([[0], changes, [len(order)]]), order)

    def iterate_chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """Iterate over all pairs of each group, in chunks of bounded size."""
        return _iterate_pairs(*self._restrict_groups(nodes, np.arange(len(self.starts) - 1)))

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Return whether the states share a group."""
        if self._label is not None:
            return np.asarray((self._label[first] >= 0) & (self._label[first] == self._label[second]))
        from scipy.sparse import csr_array

        groups = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        ones = np.ones(len(groups), dtype=np.int32)
        incidence = csr_array((ones, (self.members, groups)), shape=(self.size, len(self.starts) - 1))
        return np.asarray(incidence[first].multiply(incidence[second]).sum(axis=1)).ravel() > 0

    def list_terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """Return the groups as terms of a certificate's policy."""
        groups = np.split(self.members, self.starts[1:-1]) if len(self.starts) > 1 else []
        masks = [np.isin(np.arange(self.size), group) for group in groups]
        return [restrict_term({"groups": [find_runs(mask) for mask in masks]}, nodes)]

    def bound_num_edges(self) -> int:
        """Return the number of pairs within groups, with multiplicity."""
        lengths = np.diff(self.starts)
        return int((lengths * (lengths - 1) // 2).sum())

    @property
    def content_hash(self) -> str:
        """A hash of the groups in their order."""
        return hash_content("cliques", self.size, self.starts, self.members)

    def find_connected_states(self, nodes: BoolArray) -> BoolArray:
        """Return which states share a group with another state of ``nodes``."""
        result = np.zeros(self.size, dtype=np.bool_)
        starts, members = self._restrict_groups(nodes, np.arange(len(self.starts) - 1))
        result[members[np.repeat(np.diff(starts) >= 2, np.diff(starts))]] = True
        return result

    def components(self, nodes: BoolArray) -> IntArray:
        """Return the connected components, computed from a star within each group."""
        starts, members = self._restrict_groups(nodes, np.arange(len(self.starts) - 1))
        # A star around a group's first state has the same components as the clique, but only linearly many edges.
        first = (
            np.repeat(members[np.minimum(starts[:-1], len(members) - 1)], np.diff(starts)) if len(members) else members
        )
        return merge_components(np.where(nodes, np.arange(self.size), -1), np.stack([first, members], axis=1))

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """Return whether the smallest and the largest label of a group differ."""
        starts, members = self._restrict_groups(nodes, np.arange(len(self.starts) - 1))
        starts, members = _select_groups(np.diff(starts) >= 2, starts, members)
        if not len(members):
            return False
        member_labels = labels[members]
        smallest, largest = (reduce.reduceat(member_labels, starts[:-1]) for reduce in (np.minimum, np.maximum))
        return bool((smallest != largest).any())

    def build_body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """Return the hull of the edges within ``nodes``, from the full hull if possible."""
        if self.is_complete:
            extremes = measurements.extremes(nodes)
            if measurements.dimension == 2:
                return PlanarBody(planar.build_difference_polygon(extremes))
            return _grow_by_group(build_origin(extremes), extremes, are_extremes=True)
        full = self._get_full_hull(measurements)
        # The hull within the nodes is contained in the full one. Both are equal if each vertex of the full hull is a
        # difference within the nodes.
        if full is not None and all(_contains_any_pair(pairs, nodes) for pairs in full.pairs):
            return full.body
        return self._build_widest_first(measurements, nodes)

    def _build_widest_first(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """Build the hull group by group, widest first. Groups inside the hull are skipped."""
        hull = build_origin(measurements.coordinates)
        extents = self._get_extents(measurements)
        remaining = extents.order
        batch = _FIRST_BATCH
        while len(remaining):
            hull = self._add_groups(hull, measurements, nodes, remaining[:batch])
            remaining = remaining[batch:]
            batch *= 4
            remaining = remaining[_may_grow(hull, extents.widths)[extents.class_of[remaining]]]
        return hull

    def compute_max_gauge(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """Return the largest gauge of a difference within a group, by heights over facets.

        For a ball the differences between the hull vertices of each group are compared instead.
        """
        # Within a row of equal y-coordinate the extremes of any linear function are at the ends of the row.
        if self.is_complete and gauge.normals is not None and points.shape[1] == 2:
            return _measure_widths(nodes, *self._sort_points_by_row(points), gauge.normals, gauge.limits)
        starts, members = self._restrict_groups(nodes, np.arange(len(self.starts) - 1))
        starts, members = _select_groups(np.diff(starts) >= 2, starts, members)
        if not len(members):
            return 0.0
        if gauge.normals is None:
            if int(np.diff(starts).max()) <= _PAIRWISE_MAX_SIZE:
                return super().compute_max_gauge(points, nodes, gauge)
            groups = pairwise(starts.tolist())
            return float(np.max([_compute_max_gauge_by_corners(points[members[a:b]], gauge) for a, b in groups]))
        heights = gauge.compute_heights(points[members])
        worst = 0.0
        columns = max(1, _CHUNK_HEIGHTS // len(members))
        for first in range(0, heights.shape[1], columns):
            block = heights[:, first : first + columns]
            reach = np.maximum.reduceat(block, starts[:-1]) - np.minimum.reduceat(block, starts[:-1])
            worst = float(np.maximum(worst, reach.max()))  # unlike `max`, keeps NaN
        return worst

    def _get_full_hull(self, measurements: Measurements) -> _FullHull | None:
        """Return the hull of all edges, or None.

        The full hull pays only if the same measurements are used again, so it is computed at the second call with them.
        None at the first call, and for measurements off a lattice.
        """
        is_first = self._last_measurements is not measurements
        self._last_measurements = measurements
        if is_first or not measurements.is_lattice or measurements.dimension != 2:
            return None
        if self._full_hull is None or self._full_hull[0] is not measurements:
            self._full_hull = (measurements, self._compute_full_hull(measurements))
        return self._full_hull[1]

    def _compute_full_hull(self, measurements: Measurements) -> _FullHull | None:
        all_nodes = np.ones(self.size, dtype=np.bool_)
        body = self._build_widest_first(measurements, all_nodes)
        vertices = body.vertices[: len(body.vertices) // 2]
        groups = _order_scattered_rows(np.arange(len(self.starts) - 1))
        squares = np.cumsum(np.diff(self.starts)[groups] ** 2)
        groups = groups[: int(np.searchsorted(squares, 2 * _MAX_SAMPLED_EDGES))]
        if len(vertices) < 2 or not len(groups):
            return None
        edges = np.concatenate(list(_iterate_pairs(*self._restrict_groups(all_nodes, np.sort(groups)))))
        differences = measurements.differences(edges)
        at_vertex = [(differences == vertex).all(axis=1) | (differences == -vertex).all(axis=1) for vertex in vertices]
        return _FullHull(body, [_order_scattered_rows(edges[mask]) for mask in at_vertex])

    @property
    def is_complete(self) -> bool:
        """Whether one group contains all states."""
        return len(self.starts) == 2 and len(self.members) == self.size

    def _sort_points_by_row(self, points: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the order of points by rows of equal y-coordinate, and the sorted points.

        Both are cached for the last points.
        """
        if self._rows is None or self._rows[0] is not points:
            order = np.lexsort((points[:, 0], points[:, 1]))
            self._rows = (points, order, np.ascontiguousarray(points[order].T))
        return self._rows[1:]

    def _add_groups(
        self, hull: GrowingBody, measurements: Measurements, nodes: BoolArray, groups: IntArray
    ) -> GrowingBody:
        starts, members = self._restrict_groups(nodes, groups)
        lengths = np.diff(starts)
        small = _PAIRWISE_MAX_SIZE if measurements.dimension <= 2 else _PAIRWISE_MAX_SIZE_IN_SPACE
        for group in np.flatnonzero(lengths > small):
            hull = _grow_by_group(hull, measurements.coordinates[members[starts[group] : starts[group + 1]]])
        starts, members = _select_groups(lengths <= small, starts, members)
        for edges in _iterate_pairs(starts, members):
            hull = hull.grow(measurements.differences(edges))
        return hull

    def _restrict_groups(self, nodes: BoolArray, groups: IntArray) -> tuple[IntArray, IntArray]:
        """Return selected groups restricted to ``nodes``, as starts and members."""
        lengths = self.starts[groups + 1] - self.starts[groups]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        index = np.arange(offsets[-1]) + np.repeat(self.starts[groups] - offsets[:-1], lengths)
        members = self.members[index]
        kept = nodes[members]
        counts = np.concatenate([[0], np.cumsum(kept)])[offsets]
        return counts, members[kept]

    def _get_extents(self, measurements: Measurements) -> _Extents:
        if self._extents_of is None or self._extents_of[0] is not measurements:
            self._extents_of = (measurements, self._compute_extents(measurements))
        return self._extents_of[1]

    def _compute_extents(self, measurements: Measurements) -> _Extents:
        points = measurements.coordinates
        axes = [points[:, i] for i in range(measurements.dimension)]
        if measurements.dimension == 2:
            axes += [points[:, 0] + points[:, 1], points[:, 0] - points[:, 1]]
        widths = np.zeros((len(self.starts) - 1, len(axes)))
        if len(widths):
            for column, values in enumerate(axes):
                taken = values[self.members]
                widths[:, column] = np.maximum.reduceat(taken, self.starts[:-1])
                widths[:, column] -= np.minimum.reduceat(taken, self.starts[:-1])
        classes, class_of = np.unique(widths, axis=0, return_inverse=True)
        radius = measurements.lengths(classes[:, : measurements.dimension])
        return _Extents(np.argsort(-radius[class_of], kind="stable"), class_of.ravel(), classes)


@compile_if_hot(soundness_loops.measure_extent)
def _measure_widths(
    nodes: BoolArray, order: IntArray, places: FloatArray, normals: FloatArray, limits: FloatArray
) -> float:
    x, y = places[:, nodes.take(order)]
    if not len(y):
        return 0.0
    new = (y[1:] != y[:-1]).nonzero()[0]
    ends = np.concatenate([[0], new + 1, new, [len(y) - 1]])
    heights = normals[:, 0] * x[ends, None] + normals[:, 1] * y[ends, None]
    reach = (heights.max(axis=0) - heights.min(axis=0)) / np.maximum(limits, soundness_loops.MIN_NORM)
    return float(reach.max(initial=0.0))


def _order_scattered_rows(rows: IntArray) -> IntArray:
    """Return the rows in a deterministic order, consecutive ones far apart."""
    return rows[np.argsort(np.arange(len(rows)) * _GOLDEN_RATIO % 1.0, kind="stable")]


def _contains_any_pair(pairs: IntArray, nodes: BoolArray) -> bool:
    """Return whether both states of any pair ``(m, 2)`` are in ``nodes``."""
    start = 0
    stop = _FIRST_BATCH
    while start < len(pairs):
        both = nodes[pairs[start:stop]]
        if (both[:, 0] & both[:, 1]).any():
            return True
        start = stop
        stop = 8 * stop
    return False


def _may_grow(hull: GrowingBody, widths: FloatArray) -> BoolArray:
    """Return which extents may exceed a planar hull, by an upper bound of the support."""
    if not isinstance(hull, PlanarBody) or hull.is_flat:
        return np.ones(len(widths), dtype=np.bool_)
    may_grow = np.zeros(len(widths), dtype=np.bool_)
    for (x, y), offset in zip(*hull.half_planes, strict=True):
        diagonal = widths[:, 2] if x * y >= 0 else widths[:, 3]
        longer = widths[:, 0] if abs(x) >= abs(y) else widths[:, 1]
        # x·a + y·b = short·(a ± b) + (long − short)·(a or b): the extents along axes and diagonals bound the support.
        short, long = sorted((abs(float(x)), abs(float(y))))
        may_grow |= short * diagonal + (long - short) * longer > float(offset)
    return may_grow


def _grow_by_group(hull: GrowingBody, points: npt.NDArray[Any], are_extremes: bool = False) -> GrowingBody:
    """Grow a hull by the differences between all pairs of points of a group."""
    if points.shape[1] == 1:
        return hull.grow(points.max(axis=0, keepdims=True) - points.min(axis=0, keepdims=True))
    if points.shape[1] == 2:
        return hull.grow(planar.build_difference_polygon(planar.build_convex_polygon(points)))
    if not are_extremes:
        points = planar.select_hull_candidates(select_distinct_rows(points))
    for edges in _iterate_pairs(np.array([0, len(points)]), np.arange(len(points))):
        hull = hull.grow(points[edges[:, 0]] - points[edges[:, 1]])
    return hull


def _compute_max_gauge_by_corners(points: FloatArray, gauge: Gauge) -> float:
    """Return the largest gauge of a difference within a group: between hull vertices."""
    if len(points) > _PAIRWISE_MAX_SIZE:
        points = planar.select_hull_candidates(points)
    return float(np.max([gauge(points - point).max() for point in points]))  # unlike `max`, keeps NaN


def _select_groups(keep: BoolArray, starts: IntArray, members: IntArray) -> tuple[IntArray, IntArray]:
    """Return the starts and members of the groups to keep."""
    lengths = np.diff(starts)
    return np.concatenate([[0], np.cumsum(lengths[keep])]), members[np.repeat(keep, lengths)]


def _iterate_pairs(starts: IntArray, members: IntArray) -> Iterator[IntArray]:
    """Iterate over the pairs ``(m, 2)`` of each group, the smaller state first, in chunks."""
    lengths = np.diff(starts)
    partners = np.repeat(lengths, lengths)
    partners_from = np.repeat(starts[:-1], lengths)
    total = np.concatenate([[0], np.cumsum(partners)])
    first = 0
    while first < len(members):
        last = max(first + 1, int(np.searchsorted(total, total[first] + _CHUNK_PAIRS, side="right")) - 1)
        repeats = partners[first:last]
        left = np.repeat(members[first:last], repeats)
        shifts = partners_from[first:last] - (total[first:last] - total[first])
        right = members[np.arange(len(left)) + np.repeat(shifts, repeats)]
        forward = left < right
        yield np.stack([left[forward], right[forward]], axis=1)
        first = last
