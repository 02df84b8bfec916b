"""Which partners exposed states get where each connected component has noise of its own.

A partner merges two components, and so changes the noise of both. What is minimised is the sum over components of their
probability times the error of their noise. A repair is a set of edges, each from an exposed state to any other possible
one, at most as many as there are exposed states. Edges that hang together, with the components that they join, are a
*cluster*; what it adds to the sum does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.geometry.disc import Disc
from dphmm.geometry.growing import GrowingBody
from dphmm.geometry.hull import Body, SensitivityHull
from dphmm.geometry.least_error import reach_bounds
from dphmm.policy.repair import Objective

Edge = tuple[int, int]

SAME = 1e-12
"""Values this close, relatively, are equal up to rounding."""
PER_SHAPE, _PER_FLOOR, PER_CHANGE, _PER_OPTION = 60_000, 200_000, 30_000, 100
"""What it costs, in units of work of a few nanoseconds, to make a shape, to find the floor of its cost, to look at a
change of a repair, and to look at one partner."""


class Costs:
    """What noise costs a state of a component: of a body around growing differences.

    Parameters
    ----------
    spacing
        ``(d,)``: lengths of the coordinates' steps.
    body
        What noise is drawn from: the hull, or the least ball of a norm around it.
    objective
        The squared ``"error"`` at epsilon one, or the body's ``"volume"``.
    """

    def __init__(self, spacing: FloatArray, body: Body, objective: Objective) -> None:
        self.spacing, self._body, self._objective = spacing, body, objective
        self._unit = float(np.prod(spacing))
        dimension = len(spacing)
        if body == "disc":
            unit: Disc | SensitivityHull = Disc(1.0, dimension)
        elif body == "cross-polytope":
            unit = SensitivityHull(np.eye(dimension))
        if body != "hull":
            self._of_ball = unit.volume if objective == "volume" else unit.squared_error
            self._power = dimension if objective == "volume" else 2

    def of(self, shape: GrowingBody) -> float:
        """The cost of a body around a hull."""
        if self._body != "hull":
            return float(self._by_reach(self.reaches(shape.vertices).max(initial=0.0)))
        return shape.volume * self._unit if self._objective == "volume" else shape.squared_error(self.spacing)

    def with_each(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """The cost of the hull that each vector ``(n, d)`` grows."""
        if self._body != "hull":
            own = self.reaches(shape.vertices).max(initial=0.0)
            return self._by_reach(np.maximum(own, self.reaches(vectors)))
        if self._objective == "volume":
            return (shape.volume + shape.growth(vectors)) * self._unit
        return shape.errors_with(vectors, self.spacing)

    def floor(self, shape: GrowingBody) -> float:
        """What the cost of no body around a hull can fall below."""
        if self._body != "hull" or self._objective == "volume":
            return self.of(shape)
        return shape.error_floor(self.spacing)

    def floors(self, shape: GrowingBody, vectors: npt.NDArray[Any], least: float) -> FloatArray:
        """The same for the hull and each vector, where that of the hull is known."""
        if self._body != "hull" or self._objective == "volume":
            return self.with_each(shape, vectors)
        return np.maximum(reach_bounds(shape.vertices * self.spacing, vectors * self.spacing), least)

    def least(self, lengths: FloatArray) -> FloatArray:
        """What the cost of no body can fall below that reaches so far; for one difference alone it is that."""
        if self._body != "hull":
            return np.asarray(self._by_reach(lengths))
        return np.zeros(len(lengths)) if self._objective == "volume" else 2.0 * lengths**2

    def reaches(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """The lengths of vectors ``(n, d)`` in the ball's norm, or Euclidean ones."""
        order = 1 if self._body == "cross-polytope" else 2
        return np.asarray(np.linalg.norm(vectors * self.spacing, ord=order, axis=1))

    def _by_reach(self, reach: npt.ArrayLike) -> FloatArray:
        return np.asarray(self._of_ball * np.asarray(reach, dtype=np.float64) ** self._power)


class Cluster(NamedTuple):
    """What some components cost once edges have joined them.

    Parameters
    ----------
    cost
        The probability of their states times the cost of their noise.
    before
        The same of the components as they were, together.
    weight
        The probability of their states.
    components
        Which they are.
    """

    cost: float
    before: float
    weight: float
    components: tuple[int, ...]


class MergingProblem:
    """Components, of which some hold one exposed state alone, and what a repair is to minimise.

    Parameters
    ----------
    costs
        What noise costs.
    coordinates
        ``(N, d)``.
    labels
        ``(N,)``: the component of each state, -1 for impossible ones.
    shapes
        The hull of each component.
    weights
        ``(c,)``: the probability of each component.
    exposed
        The exposed states; each is a component of its own.
    limit
        The units of work that may be done, a few nanoseconds each; counted, so that it ends alike everywhere.
    """

    def __init__(
        self,
        costs: Costs,
        coordinates: npt.NDArray[Any],
        labels: IntArray,
        shapes: Sequence[GrowingBody],
        weights: FloatArray,
        exposed: IntArray,
        limit: int,
    ) -> None:
        self.costs, self._coordinates, self.labels, self.shapes = costs, coordinates, labels, shapes
        self.weights, self.exposed, self.left = weights, exposed.tolist(), limit
        self.states: IntArray = np.flatnonzero(labels >= 0)
        self.is_exposed = frozenset(self.exposed)
        wide = [c for c, shape in enumerate(shapes) if len(shape.vertices) > 1]
        self.base, self.floors = np.zeros(len(shapes)), np.zeros(len(shapes))
        """``(c,)``: the cost of each component's noise before the repair, and what it cannot fall below."""
        for c in wide:
            self.base[c], self.floors[c] = costs.of(shapes[c]), costs.floor(shapes[c])
        self.certain = float(weights @ self.base)
        """The value before the repair; exposed states cost nothing yet."""
        self._known: dict[frozenset[Edge], Cluster] = {}
        self._floors: dict[frozenset[Edge], float] = {}

    def spend(self, units: int) -> None:
        """Count some work."""
        self.left -= units

    def vectors(self, state: int, partners: IntArray) -> npt.NDArray[Any]:
        """The differences in coordinates from a state to some partners."""
        self.spend(_PER_OPTION * len(partners))
        return np.asarray(self._coordinates[partners] - self._coordinates[state])

    def cluster(self, edges: frozenset[Edge]) -> Cluster:
        """What edges that hang together lead to."""
        known = self._known.get(edges)
        if known is None:
            shape, joined = self.shape_of(edges)
            weight = float(self.weights[joined].sum())
            before = float(self.weights[joined] @ self.base[joined])
            known = self._known[edges] = Cluster(weight * self.costs.of(shape), before, weight, tuple(joined))
        return known

    def floor(self, edges: frozenset[Edge]) -> float:
        """What the noise of the components that edges join cannot cost less than, a state."""
        if edges not in self._floors:
            self.spend(_PER_FLOOR)
            self._floors[edges] = self.costs.floor(self.shape_of(edges)[0])
        return self._floors[edges]

    def shape_of(self, edges: frozenset[Edge]) -> tuple[GrowingBody, list[int]]:
        """The hull of the components that edges join, and which those are."""
        self.spend(PER_SHAPE)
        pairs = np.array(sorted(edges))
        joined = np.unique(self.labels[pairs]).tolist()
        largest = max(joined, key=lambda c: len(self.shapes[c].vertices))
        more = [self.shapes[c].vertices for c in joined if c != largest and len(self.shapes[c].vertices) > 1]
        differences = self._coordinates[pairs[:, 0]] - self._coordinates[pairs[:, 1]]
        return self.shapes[largest].grow(np.concatenate([differences, *more])), joined

    def shapes_after(self, edges: Iterable[Edge], labels: IntArray) -> list[GrowingBody]:
        """The hull of each component of the graph with the edges, by its new labels ``(N,)``."""
        first = np.unique(labels[self.states], return_index=True)[1]
        shapes = [self.shapes[int(self.labels[self.states[at]])] for at in first]
        for cluster in self.clusters(edges):
            shapes[int(labels[next(iter(cluster))[0]])] = self.shape_of(cluster)[0]
        return shapes

    def clusters(self, edges: Iterable[Edge]) -> list[frozenset[Edge]]:
        """The edges by what hangs together."""
        group: dict[int, int] = {}
        held: dict[int, list[Edge]] = {}
        for edge in edges:
            one, two = (int(self.labels[state]) for state in edge)
            first, second = group.setdefault(one, one), group.setdefault(two, two)
            held.setdefault(first, []).append(edge)
            if first != second:
                held[first] += held.pop(second, [])
                for component, its in group.items():
                    if its == second:
                        group[component] = first
        return [frozenset(found) for found in held.values()]

    def value(self, edges: Iterable[Edge]) -> float:
        """The sum over components of their probability times the cost of their noise."""
        found = (self.cluster(cluster) for cluster in self.clusters(edges))
        return self.certain + sum(one.cost - one.before for one in found)


def edge_of(state: int, partner: int) -> Edge:
    """An edge with the smaller state first."""
    return (state, partner) if state < partner else (partner, state)


@dataclass(frozen=True)
class Merged:
    """A repair by merging components: its edges, what it reaches, and what no repair can fall below."""

    edges: tuple[Edge, ...]
    value: float
    bound: float
