"""Which partners isolated states get where each connected component has noise of its own.

A partner merges two components, and so changes the noise of both. What is minimised is the sum over components of their
probability times the error of their noise. A repair is a set of edges, each from an exposed state to any other possible
one, at most as many as there are exposed states. Edges that hang together, with the components that they join, are a
*cluster*; what it adds to the sum does not depend on the others.

Repairs are found by taking partners one after another or together, and improved by changing one state's partner at a
time. Branch and bound then finds a better one or proves that there is none: exposed states are gone through in a fixed
order; one that has no edge yet takes each partner in turn, and one that an earlier state has chosen may also do
without. A cluster's cost never falls below its floor, which grows with its hull, and a state that has not chosen yet
adds its own probability times the least error of any noise that hides it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray
from dphmm.geometry.hull import Body, CrossPolytope, Disc, SensitivityHull
from dphmm.geometry.incremental_hull import GrowingBody, origin
from dphmm.geometry.least_error import reach_bounds
from dphmm.policy.hull_repair import Objective

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
            unit = CrossPolytope(np.ones(dimension)) if dimension > 2 else SensitivityHull(np.eye(dimension))
        if body != "hull":
            self._of_ball = unit.volume if objective == "volume" else unit.squared_error
            self._power = dimension if objective == "volume" else 2

    def of(self, shape: GrowingBody) -> float:
        """The cost of a body around a hull."""
        if self._body != "hull":
            return float(self._by_reach(self.reaches(shape.points).max(initial=0.0)))
        return shape.volume * self._unit if self._objective == "volume" else shape.squared_error(self.spacing)

    def with_each(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """The cost of the hull that each vector ``(n, d)`` grows."""
        if self._body != "hull":
            own = self.reaches(shape.points).max(initial=0.0)
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

    def holds(self, shape: GrowingBody, vector: npt.NDArray[Any], others: npt.NDArray[Any]) -> BoolArray:
        """Whether the body around a hull and a vector ``(1, d)`` contains each of some others ``(n, d)``."""
        if self._body == "hull" or len(self.spacing) <= 2:
            return shape.grow(vector).contains(others)
        # A ball is given by its radius. The hull inside it may have too many facets.
        radius = max(self.reaches(shape.points).max(initial=0.0), self.reaches(vector).max())
        return np.asarray(self.reaches(others) <= radius * (1.0 + RELATIVE_TOLERANCE))

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
        wide = [c for c, shape in enumerate(shapes) if not shape.is_point]
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
        largest = max(joined, key=lambda c: len(self.shapes[c].points))
        more = [self.shapes[c].points for c in joined if c != largest and not self.shapes[c].is_point]
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


_CLOSED = 1e-12
"""A bound this close to the value, relatively, has closed the search: both are rounded in the last places."""
_MANY = 16
"""With more exposed states than this no search is tried: it would look at a small part of all repairs."""
_PER_NODE, _PER_BRANCH, _PER_CHILD = 60_000, 30, 40_000
"""What a node, each partner that it looks at and each that may lead further cost in units of work, besides the shapes
that are made."""


@dataclass(frozen=True)
class _Options:
    """The partners of one exposed state.

    Parameters
    ----------
    partners, components
        ``(k,)``: the states and their components.
    floors
        ``(k,)``: what noise that hides the state from each cannot cost less than, a state.
    """

    partners: IntArray
    components: IntArray
    floors: FloatArray


def proven(problem: MergingProblem, best: list[Edge]) -> Merged:
    """The best repair, from a first one on, and what no repair can fall below."""
    search = _Search(problem, best)
    bound = search.run()
    return Merged(tuple(search.best), search.value, min(bound, search.value))


class _Search:
    def __init__(self, problem: MergingProblem, best: list[Edge]) -> None:
        self.problem, self.best, self.value = problem, best, problem.value(best)
        self.options = {state: _options(problem, state) for state in problem.exposed}
        self.weight = {state: float(problem.weights[problem.labels[state]]) for state in problem.exposed}
        self.floors = self._floors()
        # An exposed state's own probability is not counted again where another takes it.
        self.weights = problem.weights.copy()
        self.weights[problem.labels[problem.exposed]] = 0.0
        self.share = {s: self.weight[s] * float(self.options[s].floors.min()) for s in problem.exposed}
        """What each state's own noise costs at least in any repair."""
        # Those whose choice matters most come first.
        self.order = sorted(problem.exposed, key=lambda state: -self.share[state])
        self.least = float(problem.weights @ self.floors)
        self.open = np.inf

    def _floors(self) -> FloatArray:
        """What each component's noise cannot cost less than: what it costs, or what it does once a state joins it."""
        joined = np.full(len(self.problem.base), np.inf)
        for options in self.options.values():
            np.minimum.at(joined, options.components, options.floors)
        return np.asarray(np.minimum(self.problem.base, np.maximum(self.problem.floors, joined)))

    def run(self) -> float:
        """Search; returns the bound."""
        root = self.least + sum(self._grown_share(state) for state in self.order)
        if len(self.order) > _MANY:
            return root
        self._visit(0, frozenset(), self.least + sum(self.share.values()))
        return max(root, min(self.open, self.value))

    def _grown_share(self, state: int) -> float:
        """What a state's own noise costs at least, with its part of what the noise of its partner's component grows.

        A component's noise grows at least as the one of the states that join it would have it that needs most, and so
        by the mean of them all.
        """
        options = self.options[state]
        more = (options.floors - self.floors[options.components]) * self.weights[options.components]
        return float((self.weight[state] * options.floors + more / len(self.order)).min())

    def _beaten(self, bound: float) -> bool:
        return bound >= self.value * (1 - _CLOSED)

    def _bound(self, edges: frozenset[Edge], depth: int) -> float:
        """What no repair falls below that holds some edges, and whose others are chosen from a depth on."""
        touched = {end for edge in edges for end in edge}
        bound = self.least + sum(self.share[state] for state in self.order[depth:] if state not in touched)
        for edges_together in self.problem.clusters(sorted(edges)):
            one = self.problem.cluster(edges_together)
            joined = list(one.components)
            bound += one.weight * self.problem.floor(edges_together)
            bound -= float(self.problem.weights[joined] @ self.floors[joined])
        return bound

    def _visit(self, depth: int, edges: frozenset[Edge], bound: float) -> None:
        """Look at all repairs that hold the edges and whose further ones are chosen by the states from ``depth`` on."""
        if self._beaten(bound):
            return
        if depth == len(self.order):
            value = self.problem.value(sorted(edges))
            if value < self.value * (1 - _CLOSED):
                self.best, self.value = sorted(edges), value
            return
        if self.problem.left <= 0:
            self.open = min(self.open, bound)
            return
        state = self.order[depth]
        self.problem.spend(_PER_NODE + _PER_BRANCH * len(self.options[state].partners))
        if any(state in edge for edge in edges):
            self._visit(depth + 1, edges, bound)
        children = []
        for below, partner in self._children(state, edges, bound):
            child = edges | {edge_of(state, partner)}
            if child == edges:
                continue
            if self.problem.left <= 0:
                self.open = min(self.open, bound)
                break
            self.problem.spend(_PER_CHILD)
            children.append((max(below, self._bound(child, depth + 1)), child))
        for below, child in sorted(children, key=lambda found: (found[0], sorted(found[1]))):
            self._visit(depth + 1, child, below)

    def _children(self, state: int, edges: frozenset[Edge], bound: float) -> list[tuple[float, int]]:
        """The partners that may lead to a better repair, each with what that cannot fall below; the best first."""
        weights, floors = self.weights, self.floors
        own, waiting = self.weight[state], self.share[state]
        if edges:
            weights, floors = weights.copy(), floors.copy()
            for together in self.problem.clusters(sorted(edges)):
                one = self.problem.cluster(together)
                joined = list(one.components)
                weights[joined], floors[joined] = one.weight, self.problem.floor(together)
                if int(self.problem.labels[state]) in one.components:
                    own = waiting = 0.0
        options = self.options[state]
        held, least = weights[options.components], floors[options.components]
        found = bound - waiting + own * np.maximum(options.floors, least)
        found += held * np.maximum(options.floors - least, 0.0)
        order = np.argsort(found, kind="stable")
        order = order[: int(np.searchsorted(found[order], self.value * (1 - _CLOSED)))]
        return [(max(float(found[k]), bound), int(options.partners[k])) for k in order]


def _options(problem: MergingProblem, state: int) -> _Options:
    """All partners of a state."""
    labels = problem.labels[problem.states]
    single = np.array([shape.is_point for shape in problem.shapes])
    alone = problem.states[single[labels] & (problem.states != state)]
    vectors = problem.vectors(state, alone)
    partners, floors = [alone], [problem.costs.with_each(origin(vectors), vectors)]
    for component in np.flatnonzero(~single).tolist():
        members = problem.states[labels == component]
        shape, least = problem.shapes[component], float(problem.floors[component])
        partners.append(members)
        floors.append(problem.costs.floors(shape, problem.vectors(state, members), least))
    every = np.concatenate(partners)
    return _Options(every, problem.labels[every], np.concatenate(floors))


TRIED, _TRIED_ALONE = 10, 2
"""How many partners are tried for each state, and for one that this leaves alone."""


class _Current:
    """A repair of which single edges are changed.

    Parameters
    ----------
    problem
        What is repaired.
    edges
        The repair.
    """

    def __init__(self, problem: MergingProblem, edges: Iterable[Edge]) -> None:
        self.problem = problem
        self.edges: dict[Edge, None] = dict.fromkeys(edges)
        self._clusters: dict[int, frozenset[Edge]] = {}
        self._enter(problem.clusters(self.edges))

    def _enter(self, clusters: Iterable[frozenset[Edge]]) -> None:
        for cluster in clusters:
            self._clusters.update(dict.fromkeys(self.problem.cluster(cluster).components, cluster))

    def _after(self, gone: set[Edge], new: list[Edge]) -> tuple[set[frozenset[Edge]], list[frozenset[Edge]]]:
        """The clusters that a change touches, and what becomes of them."""
        ends = {int(self.problem.labels[state]) for edge in (*gone, *new) for state in edge}
        touched = {self._clusters[end] for end in ends if end in self._clusters}
        kept = sorted(edge for cluster in touched for edge in cluster if edge not in gone)
        return touched, self.problem.clusters(dict.fromkeys([*kept, *new]))

    def change(self, gone: set[Edge], new: list[Edge]) -> float:
        """By how much the value changes where some edges go and others come."""
        self.problem.spend(PER_CHANGE)
        before, after = self._after(gone, new)
        added = [sum(one.cost - one.before for one in map(self.problem.cluster, some)) for some in (before, after)]
        return float(added[1] - added[0])

    def make(self, gone: set[Edge], new: list[Edge]) -> None:
        """Make such a change."""
        before, after = self._after(gone, new)
        for cluster in before:
            for component in self.problem.cluster(cluster).components:
                self._clusters.pop(component, None)
        self._enter(after)
        for edge in gone:
            del self.edges[edge]
        self.edges.update(dict.fromkeys(new))

    def changes(self, state: int, tried: dict[int, list[int]]) -> Iterator[tuple[set[Edge], list[Edge]]]:
        """Changes by which a state takes another partner; a state left alone by that takes another, too."""
        exposed = self.problem.is_exposed
        degrees = Counter(end for edge in self.edges for end in edge)

        def holds(gone: set[Edge], new: list[Edge]) -> bool:
            """Whether no state is left alone."""
            less, more = (Counter(end for edge in some for end in edge) for some in (gone, new))
            return all(degrees[end] - less[end] + more[end] > 0 for end in less if end in exposed)

        for given_up in [edge for edge in self.edges if state in edge]:
            alone = [end for end in given_up if end in exposed and degrees[end] == 1]
            if not alone:
                yield {given_up}, []
            other = next((end for end in alone if end != state), None)
            for partner in tried[state]:
                chosen = edge_of(state, partner)
                if chosen in self.edges:
                    continue
                more: list[list[Edge]] = [[]]
                if other is not None and partner != other:
                    more = [[edge_of(other, third)] for third in tried[other][:_TRIED_ALONE] if third != state]
                # An exposed partner gains an edge, so it may give up one of its own.
                spare = [one for one in self.edges if partner in one and one != given_up] if partner in exposed else []
                for rest in more:
                    new = [edge for edge in dict.fromkeys([chosen, *rest]) if edge not in self.edges]
                    for gone in ({given_up}, *({given_up, edge} for edge in spare)):
                        if holds(gone, new):
                            yield gone, new


def bettered(problem: MergingProblem, edges: Iterable[Edge], tried: dict[int, list[int]]) -> list[Edge]:
    """A repair after changes of one state's partner at a time, as long as one betters it and work is left."""
    current, changed = _Current(problem, edges), True
    least = SAME * max(problem.value(current.edges), 1e-300)
    while changed and problem.left > 0:
        changed = False
        for state in problem.exposed:
            for gone, new in current.changes(state, tried):
                if problem.left <= 0:
                    break
                if current.change(gone, new) < -least:
                    current.make(gone, new)
                    changed = True
                    break
    return list(current.edges)


_NEAR, _GROWTHS, _ROUNDS = 32, 16, 12
"""Of a component that several states may join together: how many partners are looked at for each, by how many
differences it may grow, and how often."""


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
        self.problem.spend(PER_SHAPE)
        shape = shape.grow(np.concatenate([vectors, other.points]))
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
            if self._shapes[component].is_point:
                at = at[[np.argmin(lengths[at])]]
            values = costs.with_each(self._shapes[component], problem.vectors(state, problem.states[at]))
            equal = np.flatnonzero(values <= values.min() * (1 + SAME))
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
    if not problem.exposed:
        return Merged((), problem.certain, problem.certain)
    nothing = _Growing(problem)
    alone = {state: nothing.cheapest(state, {})[1] for state in problem.exposed}
    dearest_first = sorted(problem.exposed, key=lambda state: -alone[state])
    guesses = [list(nearest_merging(problem).edges)]
    guesses += [_in_turn(problem, order, alone) for order in (dearest_first, dearest_first[::-1])]
    tried = {state: _partners(problem, nothing, state) for state in problem.exposed}
    best = bettered(problem, min(guesses, key=problem.value), tried)
    for _ in range(_ROUNDS):
        other = bettered(problem, _joined_together(problem, best, alone), tried)
        if not problem.value(other) < problem.value(best) * (1 - SAME):
            break
        best = other
    return proven(problem, best)


def _unproven(problem: MergingProblem, edges: Iterable[Edge]) -> Merged:
    """A repair of which nothing is proven but that no noise falls below its floor."""
    value = problem.value(dict.fromkeys(edges))
    known = float(problem.weights @ problem.floors) if problem.exposed else value
    return Merged(tuple(dict.fromkeys(edges)), value, min(value, known))


def _in_turn(problem: MergingProblem, order: Iterable[int], alone: dict[int, float]) -> list[Edge]:
    """Exposed states in some order take the partner that adds least, counting what the partner then saves."""
    return _completed(_Growing(problem), order, alone)


def _completed(made: _Growing, order: Iterable[int], alone: dict[int, float]) -> list[Edge]:
    for state in order:
        if state not in made.touched:
            saved = {other: cost for other, cost in alone.items() if other not in made.touched}
            made.join(state, made.cheapest(state, saved)[0])
    return made.edges


def _joined_together(problem: MergingProblem, edges: list[Edge], alone: dict[int, float]) -> list[Edge]:
    """A repair after one component has grown by one difference and all whom that can hide have joined it.

    The first to join pays for what the noise of all its states grows, so that no change of one partner finds it.
    """
    paid: dict[int, float] = {}
    for together in problem.clusters(edges):
        one = problem.cluster(together)
        ends = {end for edge in together for end in edge} & problem.is_exposed
        paid.update(dict.fromkeys(ends, (one.cost - one.before) / len(ends)))
    best, found = 0.0, None
    for component in np.argsort(-problem.weights * problem.base)[:TRIED].tolist():
        if problem.base[component] == 0:
            break
        states, partners, vectors = _near(problem, component)
        shape, weight = problem.shapes[component], float(problem.weights[component])
        distinct = np.unique(np.where(vectors[:, -1:] < 0, -vectors, vectors), axis=0)
        errors = problem.costs.with_each(shape, distinct)
        for which in np.argsort(errors, kind="stable")[:_GROWTHS].tolist():
            inside = np.flatnonzero(problem.costs.holds(shape, distinct[which][None], vectors))
            joining = dict(zip(states[inside][::-1].tolist(), partners[inside][::-1].tolist(), strict=True))
            own = sum(float(problem.weights[problem.labels[state]]) for state in joining)
            change = (weight + own) * float(errors[which]) - weight * float(problem.base[component])
            change -= sum(paid[state] for state in joining)
            if joining and change < best:
                best, found = change, joining
    if found is None:
        return edges
    made = _Growing(problem)
    for state, partner in found.items():
        made.join(state, partner)
    for edge in edges:
        if not (set(edge) & found.keys()):
            exposed = next(end for end in edge if end in problem.is_exposed)
            made.join(exposed, edge[0] if exposed == edge[1] else edge[1])
    return _completed(made, [state for state in problem.exposed if state not in made.touched], alone)


def _near(problem: MergingProblem, component: int) -> tuple[IntArray, IntArray, npt.NDArray[Any]]:
    """The nearest partners in a component of every exposed state: pairs of states and their differences."""
    members = problem.states[problem.labels[problem.states] == component]
    states, partners, vectors = [], [], []
    for state in problem.exposed:
        mine = problem.vectors(state, members)
        nearest = np.argsort(problem.costs.reaches(mine), kind="stable")[:_NEAR]
        states.append(np.full(len(nearest), state))
        partners.append(members[nearest])
        vectors.append(mine[nearest])
    return np.concatenate(states), np.concatenate(partners), np.concatenate(vectors)


def _partners(problem: MergingProblem, nothing: _Growing, state: int) -> list[int]:
    """The partners that a local search tries: the cheapest of several components, and the nearest exposed states."""
    found = [partner for _, (_, _, partner) in zip(range(TRIED), nothing.choices(state), strict=False)]
    others = np.array([other for other in problem.exposed if other != state], dtype=np.int64)
    if len(others):
        lengths = problem.costs.reaches(problem.vectors(state, others))
        found += others[np.argsort(lengths, kind="stable")[:TRIED]].tolist()
    return list(dict.fromkeys(found))
