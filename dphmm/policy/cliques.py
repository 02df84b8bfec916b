"""Edges that form cliques: complete, categorical and one-step transition policies.

Each group of states is a clique. One group of all states is the complete graph; disjoint groups are categories;
the groups of the transition policy are the states reachable from a common predecessor, and overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, content_hash, frozen, runs
from dphmm.compilation import often
from dphmm.geometry import check_loops, planar
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody, origin
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.span import distinct_rows
from dphmm.policy.edges import EdgeSet, cut_to, joined

_SMALL_GROUP = 32
"""Groups up to this size are compared pair by pair; larger ones by their convex hulls."""
_SMALL_GROUP_IN_SPACE = 200
"""The same in three and more dimensions, where the hull of fewer points takes longer than their differences."""
_PAIRS_AT_A_TIME = 1 << 20
_GOLDEN = (5**0.5 - 1) / 2
_FIRST_BATCH = 64
_LOOKED_THROUGH = 1 << 14
"""Of more edges than this, from groups all over, those at the corners of the hull are kept."""
_UNKNOWN: Any = object()
_HEIGHTS_AT_A_TIME = 1 << 23


@dataclass(frozen=True)
class _Extents:
    """How far the groups reach at most, by class of groups with the same extents, widest first."""

    order: IntArray
    class_of: IntArray
    widths: FloatArray


@dataclass(frozen=True)
class _Whole:
    """The hull of all edges, and for each pair of its opposite corners some edges ``(m, 2)`` of that difference."""

    body: GrowingBody
    pairs: list[IntArray]


class CliqueEdges(EdgeSet):
    """Groups of states, each of which is a clique.

    Parameters
    ----------
    size
        The number of states.
    starts, members
        Group ``g`` is ``members[starts[g] : starts[g + 1]]``. Groups of fewer than two states are dropped.
    """

    def __init__(self, size: int, starts: IntArray, members: IntArray) -> None:
        self.size = size
        starts, members = _groups_where(np.diff(starts) >= 2, starts, members)
        self.starts: IntArray = frozen(starts.astype(np.int64))
        self.members: IntArray = frozen(members)
        self._extents_of: tuple[Measurements, _Extents] | None = None
        self._label: IntArray | None = None
        self._whole: tuple[Measurements, Any] | None = None
        self._rows: tuple[FloatArray, IntArray, FloatArray] | None = None
        if len(self.members) == len(np.unique(self.members)):
            self._label = np.full(size, -1, dtype=np.int64)
            self._label[self.members] = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    @classmethod
    def from_labels(cls, labels: IntArray) -> CliqueEdges:
        """One group per label; states with a negative label are in none."""
        order = np.argsort(labels, kind="stable")
        order = order[labels[order] >= 0]
        changes = np.flatnonzero(np.diff(labels[order])) + 1
        return cls(len(labels), np.concatenate([[0], changes, [len(order)]]), order)

    def chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """All pairs of each group, a bounded number at a time."""
        return _pairs(*self._within(nodes, np.arange(len(self.starts) - 1)))

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Whether the states share a group."""
        if self._label is not None:
            return np.asarray((self._label[first] >= 0) & (self._label[first] == self._label[second]))
        from scipy.sparse import csr_array

        groups = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        ones = np.ones(len(groups), dtype=np.int32)
        incidence = csr_array((ones, (self.members, groups)), shape=(self.size, len(self.starts) - 1))
        return np.asarray(incidence[first].multiply(incidence[second]).sum(axis=1)).ravel() > 0

    def terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """The groups."""
        groups = np.split(self.members, self.starts[1:-1]) if len(self.starts) > 1 else []
        masks = [np.isin(np.arange(self.size), group) for group in groups]
        return [cut_to({"groups": [runs(one) for one in masks]}, nodes)]

    def count_bound(self) -> int:
        """The number of pairs within groups."""
        lengths = np.diff(self.starts)
        return int((lengths * (lengths - 1) // 2).sum())

    @property
    def content_hash(self) -> str:
        """Of the groups in their order."""
        return content_hash("cliques", self.size, self.starts, self.members)

    def connected(self, nodes: BoolArray) -> BoolArray:
        """Which states share a group with another state of ``nodes``."""
        found = np.zeros(self.size, dtype=np.bool_)
        starts, members = self._within(nodes, np.arange(len(self.starts) - 1))
        found[members[np.repeat(np.diff(starts) >= 2, np.diff(starts))]] = True
        return found

    def components(self, nodes: BoolArray) -> IntArray:
        """Every state of a group is joined to the group's first."""
        starts, members = self._within(nodes, np.arange(len(self.starts) - 1))
        first = (
            np.repeat(members[np.minimum(starts[:-1], len(members) - 1)], np.diff(starts)) if len(members) else members
        )
        return joined(np.where(nodes, np.arange(self.size), -1), np.stack([first, members], axis=1))

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """Whether a group's least and largest labels differ."""
        starts, members = self._within(nodes, np.arange(len(self.starts) - 1))
        starts, members = _groups_where(np.diff(starts) >= 2, starts, members)
        if not len(members):
            return False
        found = labels[members]
        least, largest = (reduce.reduceat(found, starts[:-1]) for reduce in (np.minimum, np.maximum))
        return bool((least != largest).any())

    def body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """That of all edges where each of its corners is the difference of one within ``nodes``."""
        if self.is_complete:
            extremes = measurements.extremes(nodes)
            if measurements.dimension == 2:
                return PlanarBody(planar.difference_polygon(extremes))
            return _grown_by(origin(extremes), extremes, are_extremes=True)
        whole = self._whole_of(measurements)
        if whole is not None and all(_any_within(pairs, nodes) for pairs in whole.pairs):
            return whole.body
        return self._widest_first(measurements, nodes)

    def _widest_first(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """The hull by groups, the widest first: one whose unconstrained extents fit into it cannot matter."""
        hull = origin(measurements.coordinates)
        extents = self._extents(measurements)
        waiting = extents.order
        batch = _FIRST_BATCH
        while len(waiting):
            hull = self._add_groups(hull, measurements, nodes, waiting[:batch])
            waiting = waiting[batch:]
            batch *= 4
            waiting = waiting[_may_matter(hull, extents.widths)[extents.class_of[waiting]]]
        return hull

    def widest(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """Group by group how far the heights over each wall reach; for a ball, between corners of the groups."""
        if self.is_complete and gauge.normals is not None and points.shape[1] == 2:
            return _widest_of_rows(nodes, *self._by_rows(points), gauge.normals, gauge.limits)
        starts, members = self._within(nodes, np.arange(len(self.starts) - 1))
        starts, members = _groups_where(np.diff(starts) >= 2, starts, members)
        if not len(members):
            return 0.0
        if gauge.normals is None:
            if int(np.diff(starts).max()) <= _SMALL_GROUP:
                return super().widest(points, nodes, gauge)
            return max(_widest_by_corners(points[members[a:b]], gauge) for a, b in pairwise(starts.tolist()))
        heights, worst = gauge.heights(points[members]), 0.0
        columns = max(1, _HEIGHTS_AT_A_TIME // len(members))
        for first in range(0, heights.shape[1], columns):
            block = heights[:, first : first + columns]
            reach = np.maximum.reduceat(block, starts[:-1]) - np.minimum.reduceat(block, starts[:-1])
            worst = max(worst, float(reach.max()))
        return worst

    def _whole_of(self, measurements: Measurements) -> _Whole | None:
        """The hull of all edges, found when the same measurements are asked about again.

        None before, and off a lattice.
        """
        if self._whole is None or self._whole[0] is not measurements:
            asked = measurements.is_lattice and measurements.dimension == 2
            self._whole = (measurements, _UNKNOWN if asked else None)
            return None
        if self._whole[1] is _UNKNOWN:
            self._whole = (measurements, self._find_whole(measurements))
        return self._whole[1]

    def _find_whole(self, measurements: Measurements) -> _Whole | None:
        everywhere = np.ones(self.size, dtype=np.bool_)
        body = self._widest_first(measurements, everywhere)
        corners = body.vertices[: len(body.vertices) // 2]
        groups = _scattered(np.arange(len(self.starts) - 1))
        squares = np.cumsum(np.diff(self.starts)[groups] ** 2)
        groups = groups[: int(np.searchsorted(squares, 2 * _LOOKED_THROUGH))]
        if len(corners) < 2 or not len(groups):
            return None
        edges = np.concatenate(list(_pairs(*self._within(everywhere, np.sort(groups)))))
        differences = measurements.differences(edges)
        same = [(differences == one).all(axis=1) | (differences == -one).all(axis=1) for one in corners]
        return _Whole(body, [_scattered(edges[which]) for which in same])

    @property
    def is_complete(self) -> bool:
        """Whether one group holds all states."""
        return len(self.starts) == 2 and len(self.members) == self.size

    def _by_rows(self, points: FloatArray) -> tuple[IntArray, FloatArray]:
        """The order of points ``(N, 2)`` by rows of one height, and they themselves, ``(2, N)``.

        Both are kept for as long as the same points are asked about.
        """
        if self._rows is None or self._rows[0] is not points:
            order = np.lexsort((points[:, 0], points[:, 1]))
            self._rows = (points, order, np.ascontiguousarray(points[order].T))
        return self._rows[1:]

    def _add_groups(
        self, hull: GrowingBody, measurements: Measurements, nodes: BoolArray, groups: IntArray
    ) -> GrowingBody:
        starts, members = self._within(nodes, groups)
        lengths = np.diff(starts)
        small = _SMALL_GROUP if measurements.dimension <= 2 else _SMALL_GROUP_IN_SPACE
        for group in np.flatnonzero(lengths > small):
            hull = _grown_by(hull, measurements.coordinates[members[starts[group] : starts[group + 1]]])
        starts, members = _groups_where(lengths <= small, starts, members)
        for edges in _pairs(starts, members):
            hull = hull.grow(measurements.differences(edges))
        return hull

    def _within(self, nodes: BoolArray, groups: IntArray) -> tuple[IntArray, IntArray]:
        """The named groups cut to ``nodes``, as starts and members."""
        lengths = self.starts[groups + 1] - self.starts[groups]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        index = np.arange(offsets[-1]) + np.repeat(self.starts[groups] - offsets[:-1], lengths)
        members = self.members[index]
        kept = nodes[members]
        counts = np.concatenate([[0], np.cumsum(kept)])[offsets]
        return counts, members[kept]

    def _extents(self, measurements: Measurements) -> _Extents:
        if self._extents_of is None or self._extents_of[0] is not measurements:
            self._extents_of = (measurements, self._measure(measurements))
        return self._extents_of[1]

    def _measure(self, measurements: Measurements) -> _Extents:
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


@often(check_loops.widest_of_rows)
def _widest_of_rows(
    nodes: BoolArray, order: IntArray, places: FloatArray, normals: FloatArray, limits: FloatArray
) -> float:
    x, y = places[:, nodes.take(order)]
    if not len(y):
        return 0.0
    new = (y[1:] != y[:-1]).nonzero()[0]
    ends = np.concatenate([[0], new + 1, new, [len(y) - 1]])
    heights = normals[:, 0] * x[ends, None] + normals[:, 1] * y[ends, None]
    reach = (heights.max(axis=0) - heights.min(axis=0)) / np.maximum(limits, check_loops.LEAST)
    return float(reach.max(initial=0.0))


def _scattered(rows: IntArray) -> IntArray:
    """The rows in an order in which neighbours lie far apart, always the same."""
    return rows[np.argsort(np.arange(len(rows)) * _GOLDEN % 1.0, kind="stable")]


def _any_within(pairs: IntArray, nodes: BoolArray) -> bool:
    """Whether both states of any pair ``(m, 2)`` are among ``nodes``; looks until it finds one."""
    start, stop = 0, _FIRST_BATCH
    while start < len(pairs):
        both = nodes[pairs[start:stop]]
        if (both[:, 0] & both[:, 1]).any():
            return True
        start, stop = stop, 8 * stop
    return False


def _may_matter(hull: GrowingBody, widths: FloatArray) -> BoolArray:
    """Which extents ``(c, d)`` or ``(c, 4)`` reach out of a planar hull: an upper bound of each group's support."""
    if not isinstance(hull, PlanarBody) or hull.is_flat:
        return np.ones(len(widths), dtype=np.bool_)
    matter = np.zeros(len(widths), dtype=np.bool_)
    for (x, y), offset in zip(*hull.half_planes, strict=True):
        diagonal = widths[:, 2] if x * y >= 0 else widths[:, 3]
        longer = widths[:, 0] if abs(x) >= abs(y) else widths[:, 1]
        short, long = sorted((abs(float(x)), abs(float(y))))
        matter |= short * diagonal + (long - short) * longer > float(offset)
    return matter


def _grown_by(hull: GrowingBody, points: npt.NDArray[Any], are_extremes: bool = False) -> GrowingBody:
    """Grow a hull by the differences between any two points of a group."""
    if points.shape[1] == 1:
        return hull.grow(points.max(axis=0, keepdims=True) - points.min(axis=0, keepdims=True))
    if points.shape[1] == 2:
        return hull.grow(planar.difference_polygon(planar.convex_polygon(points)))
    if not are_extremes:
        points = planar.hull_candidates(distinct_rows(points))
    for edges in _pairs(np.array([0, len(points)]), np.arange(len(points))):
        hull = hull.grow(points[edges[:, 0]] - points[edges[:, 1]])
    return hull


def _widest_by_corners(points: FloatArray, gauge: Gauge) -> float:
    """The widest difference within one group: any norm's lies between corners of its hull."""
    if len(points) > _SMALL_GROUP:
        points = planar.hull_candidates(points)
    return max(float(gauge(points - point).max()) for point in points)


def _groups_where(keep: BoolArray, starts: IntArray, members: IntArray) -> tuple[IntArray, IntArray]:
    """The starts and members of the groups to keep."""
    lengths = np.diff(starts)
    return np.concatenate([[0], np.cumsum(lengths[keep])]), members[np.repeat(keep, lengths)]


def _pairs(starts: IntArray, members: IntArray) -> Iterator[IntArray]:
    """The pairs ``(m, 2)`` of each group, smaller state first, a bounded number at a time."""
    lengths = np.diff(starts)
    partners, partners_from = np.repeat(lengths, lengths), np.repeat(starts[:-1], lengths)
    total = np.concatenate([[0], np.cumsum(partners)])
    first = 0
    while first < len(members):
        last = max(first + 1, int(np.searchsorted(total, total[first] + _PAIRS_AT_A_TIME, side="right")) - 1)
        repeats = partners[first:last]
        left = np.repeat(members[first:last], repeats)
        shifts = partners_from[first:last] - (total[first:last] - total[first])
        right = members[np.arange(len(left)) + np.repeat(shifts, repeats)]
        forward = left < right
        yield np.stack([left[forward], right[forward]], axis=1)
        first = last
