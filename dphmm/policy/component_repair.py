"""Repair of graphs in which each connected component has its own noise body.

An added edge merges two components, and changes the noise of both. The objective is the sum over components of their
probability times the cost of their noise. A repair is a set of edges, each from an exposed state to another possible
state, at most as many edges as exposed states. Added edges that are connected through components form a *cluster*,
together with these components. The contribution of a cluster to the objective does not depend on other clusters.

Heuristic repairs add partners in turn or jointly, and are improved by local search: one state's partner is changed at a
time. `RepairSearch` then finds a better repair or proves that there is none. A node of depth k fixes the choices of the
first k exposed states. A state without an edge tries each partner. A state that an earlier one has chosen as its
partner may also keep that edge only. The bound of a node is a sum: each cluster costs at least its floor, and each
state that has not chosen contributes at least its own probability times the smallest cost of a noise body that protects
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.geometry.incremental_hull import GrowingBody, build_origin
from dphmm.policy.branch_and_bound import Edge, Repair, RepairProblem, RepairSearch, Work, make_edge
from dphmm.policy.repair_objective import ROUNDING, NoiseCost, find_minimum, list_orders_by_cost

# In units of work (see `Work`): a hull, the floor of its cost, one change of a repair, and one difference to a
# partner.
_WORK_PER_SHAPE = 60_000
_WORK_PER_FLOOR = 200_000
_WORK_PER_CHANGE = 30_000
_WORK_PER_PARTNER = 100


class Cluster(NamedTuple):
    """The cost of a set of components after merging them.

    Parameters
    ----------
    cost
        The probability of their states times the cost of their joint noise.
    before
        The sum of their costs before merging.
    weight
        The probability of their states.
    components
        The merged components.
    """

    cost: float
    before: float
    weight: float
    components: tuple[int, ...]


class ComponentRepairProblem:
    """The components and exposed states of a graph, and the objective of a repair.

    Parameters
    ----------
    cost
        The objective of one component's noise.
    coordinates
        ``(N, d)``: the measurements in coordinates.
    labels
        ``(N,)``: the component of each state, -1 for impossible ones.
    shapes
        The hull of each component.
    weights
        ``(c,)``: the probability of each component.
    exposed
        The exposed states. Each is a separate component.
    limit
        The work limit; see `Work`.
    """

    def __init__(
        self,
        cost: NoiseCost,
        coordinates: npt.NDArray[Any],
        labels: IntArray,
        shapes: Sequence[GrowingBody],
        weights: FloatArray,
        exposed: IntArray,
        limit: int,
    ) -> None:
        self.cost = cost
        self._coordinates = coordinates
        self.labels = labels
        self.shapes = shapes
        self.weights = weights
        self.exposed: list[int] = exposed.tolist()
        self.work = Work(limit)
        self.states: IntArray = np.flatnonzero(labels >= 0)
        self.is_exposed = frozenset(self.exposed)
        # (c,): the cost of each component's noise before the repair, and its lower bound after any merge.
        self.base_costs = np.zeros(len(shapes))
        self.floors = np.zeros(len(shapes))
        for c in (c for c, shape in enumerate(shapes) if not shape.is_point):
            self.base_costs[c] = cost.evaluate(shapes[c])
            self.floors[c] = cost.compute_floor(shapes[c])
        # The objective before the repair. Exposed states have no noise yet, and cost nothing.
        self.base_value = float(weights @ self.base_costs)
        # Both caches are bounded by the work limit: each new entry counts the work of a shape.
        self._clusters: dict[frozenset[Edge], Cluster] = {}
        self._floors: dict[frozenset[Edge], float] = {}

    def compute_differences(self, state: int, partners: IntArray) -> npt.NDArray[Any]:
        """Return the differences in coordinates from a state to partners."""
        self.work.count(_WORK_PER_PARTNER * len(partners))
        return np.asarray(self._coordinates[partners] - self._coordinates[state])

    def get_cluster(self, edges: frozenset[Edge]) -> Cluster:
        """Return the cluster of connected edges."""
        if edges not in self._clusters:
            shape, joined = self.build_shape(edges)
            weight = float(self.weights[joined].sum())
            before = float(self.weights[joined] @ self.base_costs[joined])
            self._clusters[edges] = Cluster(weight * self.cost.evaluate(shape), before, weight, tuple(joined))
        return self._clusters[edges]

    def compute_floor(self, edges: frozenset[Edge]) -> float:
        """Return a lower bound of the cost, per state, of the noise of merged components."""
        if edges not in self._floors:
            self.work.count(_WORK_PER_FLOOR)
            self._floors[edges] = self.cost.compute_tight_floor(self.build_shape(edges)[0])
        return self._floors[edges]

    def build_shape(self, edges: frozenset[Edge]) -> tuple[GrowingBody, list[int]]:
        """Return the hull of the components that edges merge, and these components."""
        self.work.count(_WORK_PER_SHAPE)
        pairs = np.array(sorted(edges))
        joined = np.unique(self.labels[pairs]).tolist()
        largest = max(joined, key=lambda c: len(self.shapes[c].points))
        more = [self.shapes[c].points for c in joined if c != largest and not self.shapes[c].is_point]
        differences = self._coordinates[pairs[:, 0]] - self._coordinates[pairs[:, 1]]
        return self.shapes[largest].grow(np.concatenate([differences, *more])), joined

    def build_repaired_shapes(self, edges: Iterable[Edge], labels: IntArray) -> list[GrowingBody]:
        """Return the hull of each component of the repaired graph, by its labels ``(N,)``."""
        first = np.unique(labels[self.states], return_index=True)[1]
        shapes = [self.shapes[int(self.labels[self.states[at]])] for at in first]
        for cluster in self.partition_edges(edges):
            shapes[int(labels[next(iter(cluster))[0]])] = self.build_shape(cluster)[0]
        return shapes

    def partition_edges(self, edges: Iterable[Edge]) -> list[frozenset[Edge]]:
        """Partition edges into clusters: connected sets of edges."""
        # Repairs have at most as many edges as exposed states, so relabelling is faster than a union-find structure.
        group: dict[int, int] = {}
        clusters: dict[int, list[Edge]] = {}
        for edge in edges:
            ends = [int(self.labels[state]) for state in edge]
            first, second = (group.setdefault(component, component) for component in ends)
            clusters.setdefault(first, []).append(edge)
            if first != second:
                clusters[first] += clusters.pop(second, [])
                for component, representative in group.items():
                    if representative == second:
                        group[component] = first
        return [frozenset(cluster) for cluster in clusters.values()]

    def compute_objective(self, edges: Iterable[Edge]) -> float:
        """Return the objective: the sum over components of probability times cost of noise."""
        clusters = (self.get_cluster(cluster_edges) for cluster_edges in self.partition_edges(edges))
        return self.base_value + sum(cluster.cost - cluster.before for cluster in clusters)

    def exposes_none(self, edges: Iterable[Edge]) -> bool:
        """Return whether each exposed state has at least one of the edges."""
        return self.is_exposed <= {end for edge in edges for end in edge}


# With more exposed states the search is skipped. A limit of 40 takes three times as long on the benchmark's instances,
# and improves one repair of 28, by 1.4 %. A limit of 8 makes three of them worse, by up to 47 %.
_MAX_SEARCHED_STATES = 16
# In units of work, in addition to the shapes: a node, one partner, one child.
_WORK_PER_NODE = 60_000
_WORK_PER_BRANCH = 30
_WORK_PER_CHILD = 40_000


@dataclass(frozen=True)
class _Options:
    """The candidate partners of one exposed state.

    Parameters
    ----------
    partners, components
        ``(k,)``: the states and their components.
    floors
        ``(k,)``: a lower bound of the cost, per state, of a noise body that makes the state indistinguishable from
        each.
    """

    partners: IntArray
    components: IntArray
    floors: FloatArray


class _Node(NamedTuple):
    """The repairs that contain certain edges, and further ones of later states.

    Parameters
    ----------
    depth, edges
        The number of states that have chosen, and the edges.
    total
        A lower bound that is a sum over clusters, components and states. The total of a child follows by its change.
    """

    depth: int
    edges: frozenset[Edge]
    total: float


class _MergeTree(RepairProblem[_Node, Repair]):
    """The nodes and bounds of a repair that merges components.

    Parameters
    ----------
    problem
        The problem.
    """

    def __init__(self, problem: ComponentRepairProblem) -> None:
        self.problem = problem
        self.options = {state: _list_options(problem, state) for state in problem.exposed}
        self.weight = {state: float(problem.weights[problem.labels[state]]) for state in problem.exposed}
        self.floors = self._compute_component_floors()
        # Zero the weight of exposed states: their own term already counts it.
        self.weights = problem.weights.copy()
        self.weights[problem.labels[problem.exposed]] = 0.0
        # The smallest contribution of each exposed state's own probability in any repair.
        self.own_floor = {s: self.weight[s] * float(self.options[s].floors.min()) for s in problem.exposed}
        # Branch first on the states with the largest lower bound.
        self.order = sorted(problem.exposed, key=lambda state: -self.own_floor[state])
        self.component_floor = float(problem.weights @ self.floors)

    def run(self, incumbent: Repair) -> Repair:
        """Return the best repair and its bound."""
        floor = self.component_floor + sum(self._compute_state_floor(state) for state in self.order)
        search = RepairSearch(self, incumbent, self.problem.work, floor)
        return search.run()

    def get_key(self, node: _Node) -> tuple[int, frozenset[Edge]]:
        """Return depth and edges, which define the set of repairs."""
        return node.depth, node.edges

    def get_depth(self, node: _Node) -> int:
        """Return the depth: depth-first search finds complete repairs early."""
        return node.depth

    def iterate_roots(self, search: MergeSearch) -> Iterator[tuple[float, _Node]]:
        """Yield the root, which has no edges, unless too many states are exposed."""
        if len(self.order) > _MAX_SEARCHED_STATES:
            # The search is skipped: the lower bound of all repairs is the floor.
            search.leave_open(0.0)
            return
        total = self.component_floor + sum(self.own_floor.values())
        yield total, _Node(0, frozenset(), total)

    def _compute_component_floors(self) -> FloatArray:
        """Return a lower bound of each component's cost, with or without merged states."""
        joined = np.full(len(self.problem.base_costs), np.inf)
        for options in self.options.values():
            np.minimum.at(joined, options.components, options.floors)
        return np.asarray(np.minimum(self.problem.base_costs, np.maximum(self.problem.floors, joined)))

    def _compute_state_floor(self, state: int) -> float:
        """Return a lower bound of a state's own cost and its share of a component's growth.

        The cost of a component grows at least as much as the most demanding of the states that join it requires, hence
        at least by the mean of their requirements. Each state is charged one n-th of its requirement.
        """
        options = self.options[state]
        growth = (options.floors - self.floors[options.components]) * self.weights[options.components]
        return float((self.weight[state] * options.floors + growth / len(self.order)).min())

    def _compute_lower_bound(self, edges: frozenset[Edge], depth: int) -> float:
        """Return a lower bound of all repairs of a node.

        Each cluster costs at least its weight times its floor; each other component, and each remaining state without
        an edge, at least its own floor. These bound disjoint parts of the objective, so their sum is a lower bound.
        """
        touched = {end for edge in edges for end in edge}
        total = self.component_floor + sum(
            self.own_floor[state] for state in self.order[depth:] if state not in touched
        )
        for cluster_edges in self.problem.partition_edges(sorted(edges)):
            cluster = self.problem.get_cluster(cluster_edges)
            components = list(cluster.components)
            total += cluster.weight * self.problem.compute_floor(cluster_edges)
            total -= float(self.problem.weights[components] @ self.floors[components])
        return total

    def branch(self, search: MergeSearch, bound: float, node: _Node) -> Iterator[tuple[float, _Node]]:
        """Yield one child for each partner of the next state, or none if it has an edge."""
        depth = node.depth + 1
        state = self.order[node.depth]
        search.spend(_WORK_PER_NODE + _WORK_PER_BRANCH * len(self.options[state].partners))
        # An earlier state has chosen this one. After the last state there is nothing left to choose, and the repair was
        # offered when its last edge was added.
        if any(state in edge for edge in node.edges) and depth < len(self.order):
            yield bound, _Node(depth, node.edges, node.total)
        for child_bound, partner in self._select_partners(search, state, node):
            edges = node.edges | {make_edge(state, partner)}
            if edges == node.edges:
                continue
            search.spend(_WORK_PER_CHILD)
            total = self._compute_lower_bound(edges, depth)
            child_bound = max(bound, child_bound, total)
            if search.is_beaten(child_bound):
                continue
            if self.problem.exposes_none(edges):
                added = sorted(edges)
                search.offer(Repair(tuple(added), self.problem.compute_objective(added), 0.0))
            if depth < len(self.order):
                yield child_bound, _Node(depth, edges, total)

    def _select_partners(self, search: MergeSearch, state: int, node: _Node) -> list[tuple[float, int]]:
        """Return the partners that may lead to a better repair, by ascending lower bound.

        Only the terms of the state and of its partner's cluster change in the node's total. The bound starts from the
        total and not from the node's bound, which may already contain a larger term for the same cluster.
        """
        weights = self.weights
        floors = self.floors
        own_weight = self.weight[state]
        replaced = self.own_floor[state]
        if node.edges:
            weights = weights.copy()
            floors = floors.copy()
            for cluster_edges in self.problem.partition_edges(sorted(node.edges)):
                cluster = self.problem.get_cluster(cluster_edges)
                components = list(cluster.components)
                weights[components] = cluster.weight
                floors[components] = self.problem.compute_floor(cluster_edges)
                if int(self.problem.labels[state]) in cluster.components:
                    own_weight = replaced = 0.0
        options = self.options[state]
        partner_floors = floors[options.components]
        bounds = node.total - replaced + own_weight * np.maximum(options.floors, partner_floors)
        bounds += weights[options.components] * np.maximum(options.floors - partner_floors, 0.0)
        order = np.argsort(bounds, kind="stable")
        level = search.best.value * (1 - ROUNDING)
        order = order[: int(np.searchsorted(bounds[order], level))]
        return [(float(bounds[k]), int(options.partners[k])) for k in order]


MergeSearch = RepairSearch[_Node, Repair]


def _list_options(problem: ComponentRepairProblem, state: int) -> _Options:
    """Return the candidate partners of a state."""
    labels = problem.labels[problem.states]
    single = np.array([shape.is_point for shape in problem.shapes])
    isolated = problem.states[single[labels] & (problem.states != state)]
    vectors = problem.compute_differences(state, isolated)
    partners = [isolated]
    floors = [problem.cost.evaluate_growths(build_origin(vectors), vectors)]
    for component in np.flatnonzero(~single).tolist():
        members = problem.states[labels == component]
        shape = problem.shapes[component]
        floor = float(problem.floors[component])
        partners.append(members)
        floors.append(problem.cost.compute_bounds(shape, problem.compute_differences(state, members), floor))
    states = np.concatenate(partners)
    return _Options(states, problem.labels[states], np.concatenate(floors))


# Tuned on the instances of scripts/benchmarks/policy.py: doubling either number takes 1.4 times as long and improves no
# repair. For a state that shares its edge with another exposed one, the number of changes is the product of both.
_MAX_TRIED_PARTNERS = 10
_MAX_TRIED_PARTNERS_OF_OTHER = 2


class _LocalSearch:
    """The state of a local search, which changes single edges of a repair.

    Parameters
    ----------
    problem
        The problem.
    edges
        The initial repair.
    """

    def __init__(self, problem: ComponentRepairProblem, edges: Iterable[Edge]) -> None:
        self.problem = problem
        self.edges: dict[Edge, None] = dict.fromkeys(edges)
        self._clusters: dict[int, frozenset[Edge]] = {}
        self._add_clusters(problem.partition_edges(self.edges))

    def _add_clusters(self, clusters: Iterable[frozenset[Edge]]) -> None:
        for cluster in clusters:
            self._clusters.update(dict.fromkeys(self.problem.get_cluster(cluster).components, cluster))

    def _find_changed_clusters(
        self, gone: set[Edge], new: list[Edge]
    ) -> tuple[set[frozenset[Edge]], list[frozenset[Edge]]]:
        """Return the clusters that a change affects, and the clusters that replace them."""
        ends = {int(self.problem.labels[state]) for edge in (*gone, *new) for state in edge}
        touched = {self._clusters[end] for end in ends if end in self._clusters}
        kept = sorted(edge for cluster in touched for edge in cluster if edge not in gone)
        return touched, self.problem.partition_edges(dict.fromkeys([*kept, *new]))

    def compute_change(self, gone: set[Edge], new: list[Edge]) -> float:
        """Return the change of the objective if some edges are removed and others added."""
        self.problem.work.count(_WORK_PER_CHANGE)
        before, after = self._find_changed_clusters(gone, new)
        added = [
            sum(cluster.cost - cluster.before for cluster in map(self.problem.get_cluster, clusters))
            for clusters in (before, after)
        ]
        return float(added[1] - added[0])

    def apply_change(self, gone: set[Edge], new: list[Edge]) -> None:
        """Remove some edges and add others."""
        before, after = self._find_changed_clusters(gone, new)
        # Components that are in no cluster afterwards must not keep an entry.
        for cluster in before:
            for component in self.problem.get_cluster(cluster).components:
                self._clusters.pop(component, None)
        self._add_clusters(after)
        for edge in gone:
            del self.edges[edge]
        self.edges.update(dict.fromkeys(new))

    def iterate_changes(self, state: int, tried: dict[int, list[int]]) -> Iterator[tuple[set[Edge], list[Edge]]]:
        """Iterate over changes of a state's partner that leave no exposed state isolated."""
        exposed = self.problem.is_exposed
        degrees = Counter(end for edge in self.edges for end in edge)

        def is_feasible(gone: set[Edge], new: list[Edge]) -> bool:
            """Return whether no exposed state is without an edge after the change."""
            lost, gained = (Counter(end for edge in edges for end in edge) for edges in (gone, new))
            return all(degrees[end] - lost[end] + gained[end] > 0 for end in lost if end in exposed)

        for removed in [edge for edge in self.edges if state in edge]:
            isolated = [end for end in removed if end in exposed and degrees[end] == 1]
            if not isolated:
                yield {removed}, []
            other = next((end for end in isolated if end != state), None)
            for partner in tried[state]:
                chosen = make_edge(state, partner)
                if chosen in self.edges:
                    continue
                more: list[list[Edge]] = [[]]
                if other is not None and partner != other:
                    more = [
                        [make_edge(other, third)]
                        for third in tried[other][:_MAX_TRIED_PARTNERS_OF_OTHER]
                        if third != state
                    ]
                # An exposed partner gains an edge, so one of its other edges may be removed.
                spare = [edge for edge in self.edges if partner in edge and edge != removed and partner in exposed]
                for rest in more:
                    new = [edge for edge in dict.fromkeys([chosen, *rest]) if edge not in self.edges]
                    for gone in ({removed}, *({removed, edge} for edge in spare)):
                        if is_feasible(gone, new):
                            yield gone, new


def improve(problem: ComponentRepairProblem, edges: Iterable[Edge], tried: dict[int, list[int]]) -> list[Edge]:
    """Improve a repair by local search, which changes one state's partner at a time.

    The search ends if no change improves the repair, or if the work limit is reached.
    """
    current = _LocalSearch(problem, edges)
    changed = True
    # Changes smaller than rounding could undo each other indefinitely.
    min_improvement = ROUNDING * max(problem.compute_objective(current.edges), 1e-300)
    while changed and problem.work.left > 0:
        changed = False
        for state in problem.exposed:
            for gone, new in current.iterate_changes(state, tried):
                if problem.work.left <= 0:
                    break
                if current.compute_change(gone, new) < -min_improvement:
                    current.apply_change(gone, new)
                    changed = True
                    break
    return list(current.edges)


# For the joint merge of several states into one component: the components with the largest contributions are tried.
_MAX_GROWN_COMPONENTS = 10
# The partners of each state, the differences by which the component may grow, and the repetitions. Half or twice these
# numbers give the same repairs of the benchmark's instances in the same time. Without the step, repairs of some towns
# with nine states around each have up to 5 % more error.
_NUM_NEAREST_PARTNERS = 32
_NUM_GROWTHS = 16
_MAX_ROUNDS = 12


class _PartialRepair:
    """A repair under construction, with the components after the edges added so far.

    Parameters
    ----------
    problem
        The problem.
    """

    def __init__(self, problem: ComponentRepairProblem) -> None:
        self.problem = problem
        self.edges: list[Edge] = []
        self.touched: set[int] = set()
        self._labels = problem.labels[problem.states].copy()
        self._where = {int(state): at for at, state in enumerate(problem.states)}
        self._shapes = list(problem.shapes)
        self._weights = problem.weights.copy()
        self._costs = problem.base_costs.copy()
        self._floors = problem.floors.copy()

    def join(self, state: int, partner: int) -> None:
        """Add an edge, which merges two components."""
        source, target = (int(self._labels[self._where[end]]) for end in (state, partner))
        vectors = self.problem.compute_differences(state, np.array([partner]))
        self.problem.work.count(_WORK_PER_SHAPE)
        shape = self._shapes[target].grow(np.concatenate([vectors, self._shapes[source].points]))
        self._labels[self._labels == source] = target
        # The entries of `source` stay: no state has its label any more, so `iterate_choices` skips it.
        self._weights[target] += self._weights[source] if source != target else 0.0
        self._shapes[target] = shape
        self._costs[target] = self.problem.cost.evaluate(shape)
        self._floors[target] = self.problem.cost.compute_floor(shape)
        self.edges.append(make_edge(state, partner))
        self.touched |= {state, partner} & self.problem.is_exposed

    def iterate_choices(self, state: int) -> Iterator[tuple[float, float, int]]:
        """Iterate over components that a state could be merged into, by ascending bound.

        Yields the lower bound of the added cost, the added cost and the best partner in the component. Ties take the
        nearest partner.
        """
        problem = self.problem
        cost = self.problem.cost
        lengths = cost.lengths(problem.compute_differences(state, problem.states))
        lengths[self._where[state]] = np.inf
        nearest = np.full(len(self._shapes), np.inf)
        np.minimum.at(nearest, self._labels, lengths)
        own_weight = float(problem.weights[problem.labels[state]])
        merged_weights = self._weights + own_weight
        with np.errstate(invalid="ignore"):
            bounds = merged_weights * np.maximum(self._floors, cost.compute_bounds_by_length(nearest))
            bounds -= self._weights * self._costs
        for component in np.argsort(bounds, kind="stable").tolist():
            if not np.isfinite(nearest[component]):
                continue
            at = np.flatnonzero(self._labels == component)
            if self._shapes[component].is_point:
                at = at[[np.argmin(lengths[at])]]
            values = cost.evaluate_growths(
                self._shapes[component], problem.compute_differences(state, problem.states[at])
            )
            best = find_minimum(values, lengths[at])
            added = merged_weights[component] * float(values[best]) - self._weights[component] * self._costs[component]
            yield float(bounds[component]), float(added), int(problem.states[at[best]])

    def find_cheapest_partner(self, state: int, saved: dict[int, float]) -> tuple[int, float]:
        """Return the partner with the smallest added cost, and this cost.

        An exposed state that is chosen as a partner needs no further edge. ``saved`` contains the cost that each such
        state would otherwise add.
        """
        best = np.inf
        best_partner = -1
        max_saved = max(saved.values(), default=0.0)
        for bound, added, partner in self.iterate_choices(state):
            # Bounds ascend, and no partner saves more than `max_saved`.
            if bound - max_saved >= best:
                break
            if added - saved.get(partner, 0.0) < best:
                best = added - saved.get(partner, 0.0)
                best_partner = partner
        return best_partner, best


def merge_nearest(problem: ComponentRepairProblem) -> Repair:
    """Connect every exposed state to the nearest other state. Ties take the smallest state."""
    edges = []
    for state in problem.exposed:
        others = problem.states[problem.states != state]
        lengths = problem.cost.lengths(problem.compute_differences(state, others))
        edges.append(make_edge(state, int(others[np.argmin(lengths)])))
    return _build_unproven_repair(problem, edges)


def merge_sequentially(problem: ComponentRepairProblem) -> Repair:
    """Connect exposed states in turn to the partner with the smallest added cost."""
    return _build_unproven_repair(problem, _add_in_turn(problem, problem.exposed, {}))


def merge_exactly(problem: ComponentRepairProblem) -> Repair:
    """Connect exposed states to partners that jointly minimise the objective.

    Several greedy orders provide initial repairs, and local search improves the best of them. Branch and bound then
    searches for a better repair, or proves optimality, within the remaining work. If optimality is not proven, the
    result has a lower bound.
    """
    if not problem.exposed:
        return Repair((), problem.base_value, problem.base_value)
    empty = _PartialRepair(problem)
    single_costs = {state: empty.find_cheapest_partner(state, {})[1] for state in problem.exposed}
    exposed = np.array(problem.exposed)
    candidates = [list(merge_nearest(problem).added)]
    for order in list_orders_by_cost(np.array(list(single_costs.values()))):
        candidates.append(_add_in_turn(problem, exposed[order].tolist(), single_costs))
    tried = {state: _list_tried_partners(problem, empty, state) for state in problem.exposed}
    best = improve(problem, min(candidates, key=problem.compute_objective), tried)
    for _ in range(_MAX_ROUNDS):
        other = improve(problem, _merge_jointly(problem, best, single_costs), tried)
        if not problem.compute_objective(other) < problem.compute_objective(best) * (1 - ROUNDING):
            break
        best = other
    return _MergeTree(problem).run(_build_unproven_repair(problem, best))


def _build_unproven_repair(problem: ComponentRepairProblem, edges: Iterable[Edge]) -> Repair:
    """Return a heuristic repair. Its lower bound consists of the floors of the components."""
    value = problem.compute_objective(dict.fromkeys(edges))
    bound = float(problem.weights @ problem.floors) if problem.exposed else value
    return Repair(tuple(dict.fromkeys(edges)), value, min(value, bound))


def _add_in_turn(problem: ComponentRepairProblem, order: Iterable[int], single_costs: dict[int, float]) -> list[Edge]:
    """Connect exposed states in order to the cheapest partner, net of saved costs."""
    return _complete_repair(_PartialRepair(problem), order, single_costs)


def _complete_repair(partial: _PartialRepair, order: Iterable[int], single_costs: dict[int, float]) -> list[Edge]:
    """Connect the remaining exposed states in order."""
    for state in order:
        if state not in partial.touched:
            saved = {other: cost for other, cost in single_costs.items() if other not in partial.touched}
            partial.join(state, partial.find_cheapest_partner(state, saved)[0])
    return partial.edges


def _merge_jointly(problem: ComponentRepairProblem, edges: list[Edge], single_costs: dict[int, float]) -> list[Edge]:
    """Grow one component by a difference, and merge all exposed states it then protects.

    Local search cannot find such changes: the first state that joins bears the growth of the noise of all states of the
    component.
    """
    current_costs: dict[int, float] = {}
    for cluster_edges in problem.partition_edges(edges):
        cluster = problem.get_cluster(cluster_edges)
        ends = {end for edge in cluster_edges for end in edge} & problem.is_exposed
        current_costs.update(dict.fromkeys(ends, (cluster.cost - cluster.before) / len(ends)))
    best = 0.0
    best_joining: dict[int, int] = {}
    for component in np.argsort(-problem.weights * problem.base_costs)[:_MAX_GROWN_COMPONENTS].tolist():
        if problem.base_costs[component] == 0:
            break
        states, partners, vectors = _find_nearest_partners(problem, component)
        shape = problem.shapes[component]
        weight = float(problem.weights[component])
        distinct = np.unique(np.where(vectors[:, -1:] < 0, -vectors, vectors), axis=0)
        costs = problem.cost.evaluate_growths(shape, distinct)
        for index in np.argsort(costs, kind="stable")[:_NUM_GROWTHS].tolist():
            inside = np.flatnonzero(problem.cost.contains_after_growth(shape, distinct[index][None], vectors))
            # Each state's partners are sorted by distance. In reverse, the nearest one is the last and stays.
            joining = dict(zip(states[inside][::-1].tolist(), partners[inside][::-1].tolist(), strict=True))
            joining_weight = sum(float(problem.weights[problem.labels[state]]) for state in joining)
            change = (weight + joining_weight) * float(costs[index]) - weight * float(problem.base_costs[component])
            change -= sum(current_costs[state] for state in joining)
            if joining and change < best:
                best = change
                best_joining = joining
    if not best_joining:
        return edges
    partial = _PartialRepair(problem)
    for state, partner in best_joining.items():
        partial.join(state, partner)
    for edge in edges:
        if not (set(edge) & best_joining.keys()):
            exposed = next(end for end in edge if end in problem.is_exposed)
            partial.join(exposed, edge[0] if exposed == edge[1] else edge[1])
    return _complete_repair(partial, problem.exposed, single_costs)


def _find_nearest_partners(
    problem: ComponentRepairProblem, component: int
) -> tuple[IntArray, IntArray, npt.NDArray[Any]]:
    """Return states, nearest partners in a component, and their differences."""
    members = problem.states[problem.labels[problem.states] == component]
    states = []
    partners = []
    vectors = []
    for state in problem.exposed:
        differences = problem.compute_differences(state, members)
        nearest = np.argsort(problem.cost.lengths(differences), kind="stable")[:_NUM_NEAREST_PARTNERS]
        states.append(np.full(len(nearest), state))
        partners.append(members[nearest])
        vectors.append(differences[nearest])
    return np.concatenate(states), np.concatenate(partners), np.concatenate(vectors)


def _list_tried_partners(problem: ComponentRepairProblem, empty: _PartialRepair, state: int) -> list[int]:
    """Return the partners that local search tries: cheapest ones, and near exposed states."""
    partners = [partner for _, _, partner in islice(empty.iterate_choices(state), _MAX_TRIED_PARTNERS)]
    others = np.array([other for other in problem.exposed if other != state], dtype=np.int64)
    if len(others):
        lengths = problem.cost.lengths(problem.compute_differences(state, others))
        partners += others[np.argsort(lengths, kind="stable")[:_MAX_TRIED_PARTNERS]].tolist()
    return list(dict.fromkeys(partners))
