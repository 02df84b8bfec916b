"""Branch and bound over the repairs that merge components: a better one, or a proof that there is none.

Exposed states are gone through in a fixed order. One that has no edge yet takes each partner in turn; one that an
earlier state has chosen may also do without. A cluster's cost never falls below its floor, which grows with its hull;
and a state that has not chosen yet adds its own probability times what noise must cost that hides it from somebody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.geometry.growing import origin
from dphmm.policy.merging import Edge, Merged, MergingProblem, edge_of

_CLOSED = 1e-12
"""A bound this close to the value, relatively, has closed the search: both are rounded in the last places."""
_MANY = 16
"""With more exposed states than this no search is tried: it would look at a small part of all repairs."""
_PER_NODE, _PER_OPTION, _PER_CHILD = 60_000, 30, 40_000
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
        self.problem.spend(_PER_NODE + _PER_OPTION * len(self.options[state].partners))
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
    single = np.array([len(shape.vertices) == 1 for shape in problem.shapes])
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
