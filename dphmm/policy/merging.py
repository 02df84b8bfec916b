"""Which partners exposed states get where each connected component has noise of its own.

A partner merges two components, and so changes the noise of both. What is minimised is the sum over components of their
probability times the error of their noise. A repair is a set of edges, each from an exposed state to any other possible
one, at most as many as there are exposed states. Edges that hang together, with the components that they join, are a
*cluster*; what it adds to the sum does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

_SAME = 1e-12
"""Values this close, relatively, are equal up to rounding."""
_PER_SHAPE, _PER_OPTION = 60_000, 600
"""What it costs, in units of work of a few nanoseconds, to make a shape and to look at one partner."""
_TRIED = 12
"""How many partners a local search tries for each state."""


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

    def floors(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """The same for the hull and each vector."""
        if self._body != "hull" or self._objective == "volume":
            return self.with_each(shape, vectors)
        return np.maximum(reach_bounds(shape.vertices * self.spacing, vectors * self.spacing), self.floor(shape))

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
    cost, floor
        The probability of their states times the cost of their noise, and times what that cannot fall below.
    before, least
        The same of the components as they were, together.
    """

    cost: float
    floor: float
    before: float
    least: float


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
            known = Cluster(
                weight * self.costs.of(shape),
                weight * self.costs.floor(shape),
                float(self.weights[joined] @ self.base[joined]),
                float(self.weights[joined] @ self.floors[joined]),
            )
            self._known[edges] = known
        return known

    def shape_of(self, edges: frozenset[Edge]) -> tuple[GrowingBody, list[int]]:
        """The hull of the components that edges join, and which those are."""
        self.spend(_PER_SHAPE)
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


class _Growing:
    """A repair in the making, which knows the components as they are now.

    Parameters
    ----------
    problem
        What is repaired.
    """

    def __init__(self, problem: MergingProblem) -> None:
        self.problem = problem
        self.edges: list[Edge] = []
        self.touched: set[int] = set()
        self._labels = problem.labels[problem.states].copy()
        self._where = {int(state): at for at, state in enumerate(problem.states)}
        self._shapes = list(problem.shapes)
        self._weights, self._costs, self._floors = problem.weights.copy(), problem.base.copy(), problem.floors.copy()

    def join(self, state: int, partner: int) -> None:
        """Add an edge."""
        one, two = (int(self._labels[self._where[end]]) for end in (state, partner))
        shape, other = self._shapes[two], self._shapes[one]
        vectors = self.problem.vectors(state, np.array([partner]))
        self.problem.spend(_PER_SHAPE)
        shape = shape.grow(np.concatenate([vectors, other.vertices]))
        self._labels[self._labels == one] = two
        self._weights[two] += self._weights[one] if one != two else 0.0
        self._shapes[two] = shape
        self._costs[two], self._floors[two] = self.problem.costs.of(shape), self.problem.costs.floor(shape)
        self.edges.append(edge_of(state, partner))
        self.touched |= {state, partner} & self.problem.is_exposed

    def choices(self, state: int) -> Iterator[tuple[float, float, int]]:
        """Components from the one up that a state without an edge could add least to by taking a partner there.

        Of each: a bound of what it would add, what it would add, and the partner; of equal ones the nearest.
        """
        problem, costs = self.problem, self.problem.costs
        lengths = costs.reaches(problem.vectors(state, problem.states))
        lengths[self._where[state]] = np.inf
        nearest = np.full(len(self._shapes), np.inf)
        np.minimum.at(nearest, self._labels, lengths)
        own = float(problem.weights[problem.labels[state]])
        together = self._weights + own
        with np.errstate(invalid="ignore"):
            least = together * np.maximum(self._floors, costs.least(nearest)) - self._weights * self._costs
        for component in np.argsort(least, kind="stable").tolist():
            if not np.isfinite(nearest[component]):
                continue
            at = np.flatnonzero(self._labels == component)
            if len(self._shapes[component].vertices) == 1:
                at = at[[np.argmin(lengths[at])]]
            values = costs.with_each(self._shapes[component], problem.vectors(state, problem.states[at]))
            equal = np.flatnonzero(values <= values.min() * (1 + _SAME))
            best = int(equal[np.argmin(lengths[at[equal]])])
            added = together[component] * float(values[best]) - self._weights[component] * self._costs[component]
            yield float(least[component]), float(added), int(problem.states[at[best]])

    def cheapest(self, state: int, saved: dict[int, float]) -> tuple[int, float]:
        """The partner that adds least, and what it adds.

        An exposed state without an edge that is taken needs no other, and ``saved``, by state, is what that would add.
        """
        best, found, most = np.inf, -1, max(saved.values(), default=0.0)
        for least, added, partner in self.choices(state):
            if least - most >= best:
                break
            if added - saved.get(partner, 0.0) < best:
                best, found = added - saved.get(partner, 0.0), partner
        return found, best


@dataclass(frozen=True)
class Merged:
    """A repair by merging components: its edges, what it reaches, and what no repair can fall below."""

    edges: tuple[Edge, ...]
    value: float
    bound: float


def nearest_merging(problem: MergingProblem) -> Merged:
    """Every exposed state joined to the nearest other one; of equally near ones the first."""
    edges = []
    for state in problem.exposed:
        others = problem.states[problem.states != state]
        lengths = problem.costs.reaches(problem.vectors(state, others))
        edges.append(edge_of(state, int(others[np.argmin(lengths)])))
    return _unproven(problem, edges)


def merging_in_turn(problem: MergingProblem) -> Merged:
    """Exposed states in the order of their numbers take the partner that adds least; joined ones need none."""
    return _unproven(problem, _in_turn(problem, problem.exposed, {}))


def best_merging(problem: MergingProblem) -> Merged:
    """One partner for every exposed state, jointly of least value; what is not proven has a bound.

    Repairs are found by several orders of taking the cheapest partner, and bettered by changing one state's partner at
    a time until nothing betters it. Then branch and bound looks for a better one, or a proof, within the work left.
    """
    from dphmm.policy.merging_search import proven  # imports this module

    if not problem.exposed:
        return Merged((), problem.certain, problem.certain)
    nothing = _Growing(problem)
    alone = {state: nothing.cheapest(state, {})[1] for state in problem.exposed}
    dearest_first = sorted(problem.exposed, key=lambda state: -alone[state])
    guesses = [list(nearest_merging(problem).edges)]
    guesses += [_in_turn(problem, order, alone) for order in (dearest_first, dearest_first[::-1])]
    tried = {state: _partners(problem, nothing, state) for state in problem.exposed}
    best = min((bettered(problem, guess, tried) for guess in guesses), key=problem.value)
    return proven(problem, best)


def _unproven(problem: MergingProblem, edges: Iterable[Edge]) -> Merged:
    """A repair of which nothing is proven but that no noise falls below its floor."""
    value = problem.value(dict.fromkeys(edges))
    known = float(problem.weights @ problem.floors) if problem.exposed else value
    return Merged(tuple(dict.fromkeys(edges)), value, min(value, known))


def _in_turn(problem: MergingProblem, order: Iterable[int], alone: dict[int, float]) -> list[Edge]:
    """Exposed states in some order take the partner that adds least, counting what the partner then saves."""
    made = _Growing(problem)
    for state in order:
        if state not in made.touched:
            saved = {other: cost for other, cost in alone.items() if other not in made.touched}
            made.join(state, made.cheapest(state, saved)[0])
    return made.edges


def _partners(problem: MergingProblem, nothing: _Growing, state: int) -> list[int]:
    """The partners that a local search tries: the cheapest of several components, and the nearest exposed states."""
    found = [partner for _, (_, _, partner) in zip(range(_TRIED), nothing.choices(state), strict=False)]
    others = np.array([other for other in problem.exposed if other != state], dtype=np.int64)
    if len(others):
        lengths = problem.costs.reaches(problem.vectors(state, others))
        found += others[np.argsort(lengths, kind="stable")[:_TRIED]].tolist()
    return list(dict.fromkeys(found))


def bettered(problem: MergingProblem, edges: Iterable[Edge], tried: dict[int, list[int]]) -> list[Edge]:
    """A repair after changes of one state's partner at a time, as long as one betters it and work is left."""
    current = list(dict.fromkeys(edges))
    value, changed = problem.value(current), True
    while changed and problem.left > 0:
        changed = False
        for state in problem.exposed:
            for candidate in _changed(problem, current, state, tried):
                if problem.left <= 0:
                    break
                other = problem.value(candidate)
                if other < value * (1 - _SAME):
                    current, value, changed = candidate, other, True
                    break
    return current


def _changed(
    problem: MergingProblem, edges: list[Edge], state: int, tried: dict[int, list[int]]
) -> Iterator[list[Edge]]:
    """The repairs in which one state takes another partner; who is left alone by that takes its first choice."""
    for given_up in [edge for edge in edges if state in edge]:
        rest = [edge for edge in edges if edge != given_up]
        touched = {end for edge in rest for end in edge}
        alone = [end for end in given_up if end in problem.is_exposed and end not in touched]
        if not alone:
            yield rest
        others = {other: edge_of(other, tried[other][0]) for other in alone if other != state}
        for partner in tried[state]:
            chosen = edge_of(state, partner)
            more = [edge for other, edge in others.items() if other != partner]
            yield list(dict.fromkeys([*rest, chosen, *more]))
            # A partner that has chosen somebody else may give that one up.
            for edge in [e for e in rest if partner in e and partner in problem.is_exposed]:
                kept = [e for e in rest if e != edge]
                held = {end for e in (*kept, chosen) for end in e}
                if all(end in held for end in edge if end in problem.is_exposed):
                    yield list(dict.fromkeys([*kept, chosen, *more]))
