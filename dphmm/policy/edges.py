"""Sets of edges: what every kind of policy graph knows about its edges, and edges that are simply listed.

Most kinds never list their edges: a complete graph over 100 000 states has five thousand million. They answer
questions instead, of which the important one is which differences span the sensitivity hull.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, content_hash, frozen, runs
from dphmm.errors import PolicyError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.incremental_hull import GrowingBody, origin
from dphmm.geometry.measurements import Measurements

_BLOCK = 1 << 12
_LISTED = 2_000_000
"""Sets of more edges than this are not kept as a list."""


class EdgeSet(ABC):
    """Undirected edges between states ``0 .. size - 1``."""

    size: int
    _listed: tuple[FloatArray, IntArray, FloatArray] | None = None

    @abstractmethod
    def chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """The edges with both ends in ``nodes``, as arrays ``(m, 2)`` with the smaller state first.

        An edge may come more than once.
        """

    @abstractmethod
    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Whether each pair of (different) states is an edge."""

    @abstractmethod
    def count_bound(self) -> int:
        """At least the number of edges."""

    @property
    @abstractmethod
    def content_hash(self) -> str:
        """A hash of what defines the edges; the same edges defined otherwise may have another."""

    def body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """The symmetric hull of the differences in coordinates of all edges within ``nodes``."""
        hull = origin(measurements.coordinates)
        blocks: Iterable[IntArray] = self.chunks(nodes)
        if measurements.dimension > 2 and self.count_bound() <= _LISTED:
            edges = self._every_edge
            blocks = [edges[nodes[edges[:, 0]] & nodes[edges[:, 1]]]]
        for edges in blocks:
            hull = hull.grow(measurements.differences(edges))
        return hull

    @cached_property
    def _every_edge(self) -> IntArray:
        """All edges ``(m, 2)``, kept: finding them again at each step takes longer than their hull."""
        everywhere = np.ones(self.size, dtype=np.bool_)
        return np.concatenate([np.zeros((0, 2), dtype=np.int64), *self.chunks(everywhere)])

    def spanning(self, measurements: Measurements, nodes: BoolArray) -> npt.NDArray[Any]:
        """Differences in coordinates, ``(k, d)``, whose symmetric hull is that of all edges within ``nodes``."""
        body = self.body(measurements, nodes)
        return body.vertices if measurements.dimension <= 2 else body.points

    def hull(self, measurements: Measurements, nodes: BoolArray) -> SensitivityHull:
        """The symmetric hull of what `spanning` gives."""
        return measurements.hull_of(self.body(measurements, nodes))

    def widest(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """The largest gauge of a difference of points ``(N, d)`` over an edge within ``nodes``.

        Where that is at most one, some number up to one. It is what `spanning` is checked by, and uses nothing of it.
        Where there are few edges they are kept, the longest first, and looked at only as far as they can reach out of
        the gauge.
        """
        blocks: Iterable[IntArray] = self.chunks(nodes)
        if self.count_bound() <= _LISTED:
            edges, lengths = self._longest_first_by(points)
            long = edges[: int(np.searchsorted(-lengths, -gauge.inner))]
            blocks = [long[nodes[long[:, 0]] & nodes[long[:, 1]]]]
        worst = 0.0
        for edges in blocks:
            worst = max(worst, float(gauge(points[edges[:, 0]] - points[edges[:, 1]]).max(initial=0.0)))
        return worst

    def _longest_first_by(self, points: FloatArray) -> tuple[IntArray, FloatArray]:
        if self._listed is None or self._listed[0] is not points:
            edges = self._every_edge
            lengths = np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1)
            order = np.argsort(-lengths, kind="stable")
            self._listed = (points, edges[order], lengths[order])
        return self._listed[1:]

    def is_empty(self, nodes: BoolArray) -> bool:
        """Whether there is no edge within ``nodes``; looks until it finds one."""
        return not any(len(edges) for edges in self.chunks(nodes))

    def terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """The edges within ``nodes`` as plain JSON values: terms of a certificate's policy, whose edges are all theirs.

        Raises
        ------
        PolicyError
            When they have to be listed, and are more than two million.
        """
        if self.count_bound() > _LISTED:
            raise PolicyError(f"a certificate lists at most {_LISTED:,} edges, and this policy has more; join fewer")
        listed = [np.zeros((0, 2), dtype=np.int64), *self.chunks(nodes)]
        return [{"pairs": np.unique(np.concatenate(listed), axis=0).tolist()}]

    @property
    def is_complete(self) -> bool:
        """Whether every two states are known to be connected."""
        return False

    def connected(self, nodes: BoolArray) -> BoolArray:
        """Which states have an edge within ``nodes``."""
        found = np.zeros(self.size, dtype=np.bool_)
        for edges in self.chunks(nodes):
            found[edges.ravel()] = True
        return found

    def components(self, nodes: BoolArray) -> IntArray:
        """The smallest state of each state's connected component within ``nodes``, ``(N,)``; -1 outside."""
        found = np.where(nodes, np.arange(self.size), -1)
        for edges in self.chunks(nodes):
            found = joined(found, edges)
        return found

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """Whether an edge within ``nodes`` joins states of different labels ``(N,)``.

        It is what `components` is checked by, and uses nothing of it.
        """
        return any(bool((labels[edges[:, 0]] != labels[edges[:, 1]]).any()) for edges in self.chunks(nodes))


def cut_to(term: dict[str, Any], nodes: BoolArray) -> dict[str, Any]:
    """A term of a certificate's policy with the states between which its edges count, where these are not all."""
    return term if nodes.all() else term | {"within": runs(nodes)}


def joined(components: IntArray, pairs: IntArray) -> IntArray:
    """Components ``(N,)``, each named by its smallest state, after the two of each pair ``(m, 2)`` have become one."""
    ends = components[pairs]
    ends = ends[ends[:, 0] != ends[:, 1]]
    if not len(ends):
        return components
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    named, where = np.unique(ends, return_inverse=True)
    where = where.reshape(ends.shape)
    links = coo_array((np.ones(len(where), dtype=np.int8), (where[:, 0], where[:, 1])), shape=(len(named),) * 2)
    _, group = connected_components(links, directed=False)
    first = np.unique(group, return_index=True)[1]  # the names are in order, so that the first is the smallest
    renamed = np.arange(-1, len(components))  # shifted by one, for -1
    renamed[named + 1] = named[first[group]]
    return np.asarray(renamed[components + 1])


class ListedEdges(EdgeSet):
    """Edges given one by one.

    Parameters
    ----------
    size
        The number of states.
    edges
        ``(m, 2)`` pairs of different states; order and repetition do not matter.
    """

    def __init__(self, size: int, edges: npt.ArrayLike) -> None:
        self.size = size
        pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        self.edges: IntArray = frozen(np.unique(np.sort(pairs, axis=1), axis=0))
        self._longest_first: tuple[Measurements, IntArray] | None = None

    def chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """All edges within ``nodes`` at once."""
        yield self.edges[nodes[self.edges].all(axis=1)]

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Membership by binary search."""
        low, high = np.minimum(first, second), np.maximum(first, second)
        keys = self.edges[:, 0] * self.size + self.edges[:, 1]
        return np.isin(low * self.size + high, keys)

    def count_bound(self) -> int:
        """The number of edges."""
        return len(self.edges)

    @property
    def content_hash(self) -> str:
        """Of the sorted edges."""
        return content_hash("listed", self.size, self.edges)

    def body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """Longest edges first: one shorter than the inradius of the hull so far cannot matter."""
        hull = origin(measurements.coordinates)
        if measurements.dimension > 2:  # the inradius is unknown, so that every edge counts
            return hull.grow(measurements.differences(self.edges[nodes[self.edges].all(axis=1)]))
        edges = self._sorted(measurements)
        cuts = _BLOCK * (2 ** np.arange(1, 40) - 1)  # each block twice as long as the one before
        for block in np.split(edges, cuts[cuts < len(edges)]):
            part = block[nodes[block].all(axis=1)]
            if not len(part):
                continue
            differences = measurements.differences(part)
            hull = hull.grow(differences)
            if measurements.lengths(differences[-1:])[0] <= hull.inradius(measurements.spacing):
                break
        return hull

    def _sorted(self, measurements: Measurements) -> IntArray:
        if self._longest_first is None or self._longest_first[0] is not measurements:
            order = np.argsort(-measurements.lengths(measurements.differences(self.edges)), kind="stable")
            self._longest_first = (measurements, self.edges[order])
        return self._longest_first[1]


class UnionEdges(EdgeSet):
    """The edges of any of some sets, each within its own nodes."""

    def __init__(self, parts: tuple[tuple[EdgeSet, BoolArray], ...]) -> None:
        self.size = parts[0][0].size
        self.parts = parts

    def chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """The chunks of each part in turn."""
        for part, own in self.parts:
            yield from part.chunks(nodes & own)

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Whether any part has the edge."""
        found = np.zeros(len(first), dtype=np.bool_)
        for part, own in self.parts:
            found |= own[first] & own[second] & part.connects(first, second)
        return found

    def terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """Those of the parts."""
        return [term for part, own in self.parts for term in part.terms(nodes & own)]

    def count_bound(self) -> int:
        """The sum over the parts."""
        return sum(part.count_bound() for part, _ in self.parts)

    @property
    def content_hash(self) -> str:
        """Of the parts in their order, and their nodes."""
        return content_hash("union", *(x for part, own in self.parts for x in (part.content_hash, own)))

    def spanning(self, measurements: Measurements, nodes: BoolArray) -> npt.NDArray[Any]:
        """The spanning differences of all parts."""
        none = origin(measurements.coordinates).vertices
        return np.concatenate(
            [none, *(part.spanning(measurements, nodes & own) for part, own in self.parts if (nodes & own).any())]
        )

    def hull(self, measurements: Measurements, nodes: BoolArray) -> SensitivityHull:
        """The hull of the parts' differences."""
        return SensitivityHull(self.spanning(measurements, nodes))

    def widest(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """The widest of any part."""
        within = [(part, nodes & own) for part, own in self.parts]
        return max((part.widest(points, both, gauge) for part, both in within if both.any()), default=0.0)

    def components(self, nodes: BoolArray) -> IntArray:
        """The components of each part, joined."""
        found = np.where(nodes, np.arange(self.size), -1)
        met = np.zeros(self.size, dtype=np.bool_)
        for part, own in self.parts:
            both = nodes & own
            if not both.any():
                continue
            if (met & both).any():
                states = np.flatnonzero(both)
                found = joined(found, np.stack([states, part.components(both)[states]], axis=1))
            else:  # nothing that an earlier part could have joined
                found = np.where(both, part.components(both), found)
            met |= both
        return found

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """Whether an edge of any part does."""
        return any(part.crosses(labels, nodes & own) for part, own in self.parts if (nodes & own).any())

    def is_empty(self, nodes: BoolArray) -> bool:
        """Whether no part has an edge."""
        return all(part.is_empty(nodes & own) for part, own in self.parts)

    def connected(self, nodes: BoolArray) -> BoolArray:
        """Which states have an edge in any part."""
        found = np.zeros(self.size, dtype=np.bool_)
        for part, own in self.parts:
            if (nodes & own).any():
                found |= part.connected(nodes & own)
        return found


class IntersectionEdges(EdgeSet):
    """The edges that two sets share: those of the smaller one that the other has as well."""

    def __init__(self, first: EdgeSet, second: EdgeSet) -> None:
        self.size = first.size
        self.smaller, self.larger = sorted((first, second), key=lambda part: part.count_bound())

    def chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """The chunks of the smaller set, filtered by the larger."""
        for edges in self.smaller.chunks(nodes):
            yield edges[self.larger.connects(edges[:, 0], edges[:, 1])]

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Whether both have the edge."""
        return self.smaller.connects(first, second) & self.larger.connects(first, second)

    def count_bound(self) -> int:
        """The smaller bound."""
        return self.smaller.count_bound()

    @property
    def content_hash(self) -> str:
        """Of the two sets."""
        return content_hash("intersection", self.smaller.content_hash, self.larger.content_hash)
