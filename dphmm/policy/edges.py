"""Edge sets of policy graphs: the common interface, and explicitly listed edges.

Most edge sets are implicit and never listed: a complete graph over 100,000 states has five billion edges. They provide
queries instead, most importantly the differences that span the sensitivity hull.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, copy_read_only, find_runs, hash_content
from dphmm.errors import PolicyError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.incremental_hull import GrowingBody, build_origin
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.sensitivity_hull import SensitivityHull

# Size of the first block of a sorted list of edges: small enough for one hull, and often sufficient for the full one.
_FIRST_BLOCK_EDGES = 1 << 12
# Cached in two orders and with lengths an edge takes 40 bytes: 80 MB for each edge set.
_MAX_CACHED_EDGES = 2_000_000


class EdgeSet(ABC):
    """Base class of sets of undirected edges between states ``0 .. size - 1``."""

    size: int
    _listed: tuple[FloatArray, IntArray, FloatArray] | None = None

    @abstractmethod
    def iterate_chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """Iterate over the edges within ``nodes``, as arrays ``(m, 2)``, smaller state first.

        Edges may be repeated.
        """

    @abstractmethod
    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Return whether each pair of different states is an edge."""

    @abstractmethod
    def bound_num_edges(self) -> int:
        """Return an upper bound of the number of edges."""

    @property
    @abstractmethod
    def content_hash(self) -> str:
        """A hash of the definition of the edges. Equal edges may have different definitions."""

    def build_body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """Return the hull of the differences of edges in ``nodes``, in coordinates."""
        hull = build_origin(measurements.coordinates)
        blocks: Iterable[IntArray] = self.iterate_chunks(nodes)
        if measurements.dimension > 2 and self.bound_num_edges() <= _MAX_CACHED_EDGES:
            edges = self._all_edges
            blocks = [edges.compress(nodes[edges[:, 0]] & nodes[edges[:, 1]], axis=0)]
        for edges in blocks:
            hull = hull.grow(measurements.differences(edges))
        return hull

    @cached_property
    def _all_edges(self) -> IntArray:
        """All edges ``(m, 2)``, cached because listing them takes longer than their hull."""
        everywhere = np.ones(self.size, dtype=np.bool_)
        return np.concatenate([np.zeros((0, 2), dtype=np.int64), *self.iterate_chunks(everywhere)])

    def find_spanning_differences(self, measurements: Measurements, nodes: BoolArray) -> npt.NDArray[Any]:
        """Return differences in coordinates that span the hull of the edges in ``nodes``."""
        body = self.build_body(measurements, nodes)
        return body.vertices if measurements.dimension <= 2 else body.points

    def hull(self, measurements: Measurements, nodes: BoolArray) -> SensitivityHull:
        """Return the symmetric hull of the differences of all edges within ``nodes``."""
        return measurements.compute_hull(self.build_body(measurements, nodes))

    def compute_max_gauge(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """Return the largest gauge of a difference of points over an edge within ``nodes``.

        If it is at most one, any number up to one may be returned. This is the independent check of
        `find_spanning_differences`, with which it shares no code. A small number of edges is cached, the longest first.
        Edges that are shorter than the inradius of the gauge are skipped.
        """
        blocks: Iterable[IntArray] = self.iterate_chunks(nodes)
        if self.bound_num_edges() <= _MAX_CACHED_EDGES:
            edges, lengths = self._sort_edges_by_distance(points)
            long = edges[: int(np.searchsorted(-lengths, -gauge.inner))]
            blocks = [long[nodes[long[:, 0]] & nodes[long[:, 1]]]]
        # Only values above one must be exact, so edges within the gauge's inner ball are skipped.
        worst = 0.0
        for edges in blocks:
            vectors = points[edges[:, 0]] - points[edges[:, 1]]
            vectors = vectors[~(np.linalg.norm(vectors, axis=1) < gauge.inner)]
            worst = float(np.maximum(worst, gauge(vectors).max(initial=0.0)))  # unlike `max`, keeps NaN
        return worst

    def _sort_edges_by_distance(self, points: FloatArray) -> tuple[IntArray, FloatArray]:
        if self._listed is None or self._listed[0] is not points:
            edges = self._all_edges
            lengths = np.linalg.norm(points[edges[:, 0]] - points[edges[:, 1]], axis=1)
            lengths[np.isnan(lengths)] = np.inf  # first in order, so that no edge of unknown length is skipped
            order = np.argsort(-lengths, kind="stable")
            self._listed = (points, edges[order], lengths[order])
        return self._listed[1:]

    def is_empty(self, nodes: BoolArray) -> bool:
        """Return whether there is no edge within ``nodes``. Stops at the first edge."""
        return not any(len(edges) for edges in self.iterate_chunks(nodes))

    def list_terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """Return the edges within ``nodes`` as terms of a certificate, in plain JSON values.

        The policy's edges are the union over its terms.

        Raises
        ------
        PolicyError
            If the edges have to be listed, and there are more than two million.
        """
        if self.bound_num_edges() > _MAX_CACHED_EDGES:
            raise PolicyError(
                f"a policy must have at most {_MAX_CACHED_EDGES:,} edges to be listed in a certificate: use fewer edges"
            )
        listed = [np.zeros((0, 2), dtype=np.int64), *self.iterate_chunks(nodes)]
        return [{"pairs": np.unique(np.concatenate(listed), axis=0).tolist()}]

    @property
    def is_complete(self) -> bool:
        """Whether every two states are known to be adjacent."""
        return False

    def find_connected_states(self, nodes: BoolArray) -> BoolArray:
        """Return which states have an edge within ``nodes``."""
        result = np.zeros(self.size, dtype=np.bool_)
        for edges in self.iterate_chunks(nodes):
            result[edges.ravel()] = True
        return result

    def components(self, nodes: BoolArray) -> IntArray:
        """Return the smallest state of each state's component, ``(N,)``. -1 outside."""
        components = np.where(nodes, np.arange(self.size), -1)
        for edges in self.iterate_chunks(nodes):
            components = merge_components(components, edges)
        return components

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """Return whether an edge within ``nodes`` connects states of different labels ``(N,)``.

        This is the independent check of `components`, with which it shares no code.
        """
        return any(bool((labels[edges[:, 0]] != labels[edges[:, 1]]).any()) for edges in self.iterate_chunks(nodes))


def restrict_term(term: dict[str, Any], nodes: BoolArray) -> dict[str, Any]:
    """Restrict a term of a certificate's policy to the edges within some states."""
    return term if nodes.all() else term | {"within": find_runs(nodes)}


def merge_components(components: IntArray, pairs: IntArray) -> IntArray:
    """Merge the components ``(N,)`` of each pair. Labels are the smallest states."""
    ends = components[pairs]
    ends = ends[ends[:, 0] != ends[:, 1]]
    if not len(ends):
        return components
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    labels, index = np.unique(ends, return_inverse=True)
    index = index.reshape(ends.shape)
    links = coo_array((np.ones(len(index), dtype=np.int8), (index[:, 0], index[:, 1])), shape=(len(labels),) * 2)
    _, group = connected_components(links, directed=False)
    # Labels ascend, so the first of a group is its smallest.
    first = np.unique(group, return_index=True)[1]
    # Shifted by one, so that -1 (outside) is mapped to itself.
    new_labels = np.arange(-1, len(components))
    new_labels[labels + 1] = labels[first[group]]
    return np.asarray(new_labels[components + 1])


class ListedEdges(EdgeSet):
    """Explicitly listed edges.

    Parameters
    ----------
    size
        The number of states.
    edges
        ``(m, 2)`` pairs of different states, in any order, possibly repeated.
    """

    def __init__(self, size: int, edges: npt.ArrayLike) -> None:
        self.size = size
        pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        # Sorting integers takes a tenth of the time of `np.unique`, which sorts pairs or hashes integers.
        keys = np.sort(self._encode_edges(np.minimum(*pairs.T), np.maximum(*pairs.T)))
        keys = keys[np.diff(keys, prepend=-1) > 0]
        self.edges: IntArray = copy_read_only(np.stack(np.divmod(keys, size), axis=1))
        self._longest_first: tuple[Measurements, IntArray] | None = None

    def iterate_chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """Yield all edges within ``nodes`` as one array."""
        yield self.edges[nodes[self.edges].all(axis=1)]

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Return whether each pair is an edge, by binary search."""
        keys = self._encode_edges(np.minimum(first, second), np.maximum(first, second))
        return np.isin(keys, self._encode_edges(self.edges[:, 0], self.edges[:, 1]))

    def _encode_edges(self, low: IntArray, high: IntArray) -> IntArray:
        # An edge as one integer: size² stays below 2⁶³ for three billion states.
        return low * self.size + high

    def bound_num_edges(self) -> int:
        """Return the number of edges."""
        return len(self.edges)

    @property
    def content_hash(self) -> str:
        """A hash of the sorted edges."""
        return hash_content("listed", self.size, self.edges)

    def build_body(self, measurements: Measurements, nodes: BoolArray) -> GrowingBody:
        """Build the hull from the longest edges on. Those within the inradius are skipped."""
        hull = build_origin(measurements.coordinates)
        # In three or more dimensions the inradius is unknown, so every edge counts.
        if measurements.dimension > 2:
            within = nodes[self.edges[:, 0]] & nodes[self.edges[:, 1]]
            return hull.grow(measurements.differences(self.edges.compress(within, axis=0)))
        edges = self._sort_edges_by_length(measurements)
        # Block sizes double, so at most about twice the necessary number of edges is processed.
        cuts = _FIRST_BLOCK_EDGES * (2 ** np.arange(1, 40) - 1)
        for block in np.split(edges, cuts[cuts < len(edges)]):
            part = block[nodes[block].all(axis=1)]
            if not len(part):
                continue
            differences = measurements.differences(part)
            hull = hull.grow(differences)
            if measurements.lengths(differences[-1:])[0] <= hull.inradius(measurements.spacing):
                break
        return hull

    def _sort_edges_by_length(self, measurements: Measurements) -> IntArray:
        if self._longest_first is None or self._longest_first[0] is not measurements:
            order = np.argsort(-measurements.lengths(measurements.differences(self.edges)), kind="stable")
            self._longest_first = (measurements, self.edges[order])
        return self._longest_first[1]


class UnionEdges(EdgeSet):
    """The union of edge sets, each restricted to its own nodes."""

    def __init__(self, parts: tuple[tuple[EdgeSet, BoolArray], ...]) -> None:
        self.size = parts[0][0].size
        self.parts = parts

    def iterate_chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """Iterate over the chunks of each part in turn."""
        for part, own_nodes in self.parts:
            yield from part.iterate_chunks(nodes & own_nodes)

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Return whether any part contains the edge."""
        result = np.zeros(len(first), dtype=np.bool_)
        for part, own_nodes in self.parts:
            result |= own_nodes[first] & own_nodes[second] & part.connects(first, second)
        return result

    def list_terms(self, nodes: BoolArray) -> list[dict[str, Any]]:
        """Return the terms of all parts."""
        return [term for part, own_nodes in self.parts for term in part.list_terms(nodes & own_nodes)]

    def bound_num_edges(self) -> int:
        """Return the sum over the parts."""
        return sum(part.bound_num_edges() for part, _ in self.parts)

    @property
    def content_hash(self) -> str:
        """A hash of the parts in their order, and of their nodes."""
        return hash_content("union", *(x for part, own_nodes in self.parts for x in (part.content_hash, own_nodes)))

    def find_spanning_differences(self, measurements: Measurements, nodes: BoolArray) -> npt.NDArray[Any]:
        """Return the spanning differences of all parts."""
        none = build_origin(measurements.coordinates).vertices
        return np.concatenate(
            [none, *(part.find_spanning_differences(measurements, both) for part, both in self._restrict_parts(nodes))]
        )

    def hull(self, measurements: Measurements, nodes: BoolArray) -> SensitivityHull:
        """Return the hull of the spanning differences of all parts."""
        return SensitivityHull(self.find_spanning_differences(measurements, nodes))

    def compute_max_gauge(self, points: FloatArray, nodes: BoolArray, gauge: Gauge) -> float:
        """Return the largest gauge over all parts."""
        gauges = [part.compute_max_gauge(points, both, gauge) for part, both in self._restrict_parts(nodes)]
        return float(np.max(gauges, initial=0.0))  # unlike `max`, keeps NaN

    def components(self, nodes: BoolArray) -> IntArray:
        """Return the components of all parts, merged."""
        components = np.where(nodes, np.arange(self.size), -1)
        met = np.zeros(self.size, dtype=np.bool_)
        for part, both in self._restrict_parts(nodes):
            if (met & both).any():
                states = np.flatnonzero(both)
                components = merge_components(components, np.stack([states, part.components(both)[states]], axis=1))
            else:  # no earlier part contains these nodes: there is nothing to merge
                components = np.where(both, part.components(both), components)
            met |= both
        return components

    def crosses(self, labels: IntArray, nodes: BoolArray) -> bool:
        """Return whether an edge of any part connects different labels."""
        return any(part.crosses(labels, both) for part, both in self._restrict_parts(nodes))

    def is_empty(self, nodes: BoolArray) -> bool:
        """Return whether no part has an edge."""
        return all(part.is_empty(nodes & own_nodes) for part, own_nodes in self.parts)

    def find_connected_states(self, nodes: BoolArray) -> BoolArray:
        """Return which states have an edge in any part."""
        result = np.zeros(self.size, dtype=np.bool_)
        for part, both in self._restrict_parts(nodes):
            result |= part.find_connected_states(both)
        return result

    def _restrict_parts(self, nodes: BoolArray) -> Iterator[tuple[EdgeSet, BoolArray]]:
        """Iterate over the parts with their remaining nodes. Parts without nodes are omitted."""
        within = ((part, nodes & own_nodes) for part, own_nodes in self.parts)
        return ((part, both) for part, both in within if both.any())


class IntersectionEdges(EdgeSet):
    """The intersection of two edge sets: edges of the smaller one that the other contains."""

    def __init__(self, first: EdgeSet, second: EdgeSet) -> None:
        self.size = first.size
        self.smaller, self.larger = sorted((first, second), key=lambda part: part.bound_num_edges())

    def iterate_chunks(self, nodes: BoolArray) -> Iterator[IntArray]:
        """Iterate over the chunks of the smaller set, filtered by the larger one."""
        for edges in self.smaller.iterate_chunks(nodes):
            yield edges[self.larger.connects(edges[:, 0], edges[:, 1])]

    def connects(self, first: IntArray, second: IntArray) -> BoolArray:
        """Return whether both sets contain the edge."""
        return self.smaller.connects(first, second) & self.larger.connects(first, second)

    def bound_num_edges(self) -> int:
        """Return the smaller bound."""
        return self.smaller.bound_num_edges()

    @property
    def content_hash(self) -> str:
        """A hash of the two sets."""
        return hash_content("intersection", self.smaller.content_hash, self.larger.content_hash)
