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
_PER_NODE = 30_000
"""What a node costs in units of work, besides the shapes that it makes."""


@dataclass(frozen=True)
class _Options:
    """The partners of one exposed state, from the one up whose noise must cost the state least.

    Parameters
    ----------
    partners, floors
        ``(k,)``: the states, and what noise that hides the state from each must cost at least.
    """

    partners: IntArray
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
        self.share = {state: self.weight[state] * float(self.options[state].floors[0]) for state in problem.exposed}
        # Those whose choice matters most come first.
        self.order = sorted(problem.exposed, key=lambda state: -self.share[state])
        self.least = float(problem.weights @ problem.floors)
        self.open = np.inf

    def run(self) -> float:
        """Search; returns the bound."""
        root = self.least + sum(self.share.values())
        if len(self.order) > _MANY:
            return root
        self._visit(0, frozenset(), root)
        return max(root, min(self.open, self.value))

    def _beaten(self, bound: float) -> bool:
        return bound >= self.value * (1 - _CLOSED)

    def _bound(self, edges: frozenset[Edge], depth: int) -> float:
        found = [self.problem.cluster(cluster) for cluster in self.problem.clusters(sorted(edges))]
        touched = {end for edge in edges for end in edge}
        waiting = sum(self.share[state] for state in self.order[depth:] if state not in touched)
        return self.least + sum(one.floor - one.least for one in found) + waiting

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
        self.problem.spend(_PER_NODE)
        state = self.order[depth]
        if any(state in edge for edge in edges):
            self._visit(depth + 1, edges, bound)
        options = self.options[state]
        waiting = 0.0 if any(state in edge for edge in edges) else self.share[state]
        children = []
        for partner, floor in zip(options.partners.tolist(), options.floors.tolist(), strict=True):
            if self._beaten(bound - waiting + self.weight[state] * floor if waiting else bound):
                break
            child = edges | {edge_of(state, partner)}
            if child == edges:
                continue
            if self.problem.left <= 0:
                self.open = min(self.open, bound)
                break
            children.append((max(bound, self._bound(child, depth + 1)), child))
        for below, child in sorted(children, key=lambda found: (found[0], sorted(found[1]))):
            self._visit(depth + 1, child, below)


def _options(problem: MergingProblem, state: int) -> _Options:
    """All partners of a state but those whose differences are another's in the same component."""
    partners, floors = [], []
    order = np.argsort(problem.labels[problem.states], kind="stable")
    labels = problem.labels[problem.states][order]
    single = np.array([len(shape.vertices) == 1 for shape in problem.shapes])
    alone = problem.states[order][single[labels]]
    alone = alone[alone != state]
    vectors = problem.vectors(state, alone)
    partners.append(alone)
    floors.append(problem.costs.with_each(origin(vectors), vectors))
    for component in np.flatnonzero(~single).tolist():
        members = problem.states[order][labels == component]
        vectors = problem.vectors(state, members)
        partners.append(members)
        floors.append(problem.costs.floors(problem.shapes[component], vectors))
    every, least = np.concatenate(partners), np.concatenate(floors)
    by_floor = np.argsort(least, kind="stable")
    return _Options(every[by_floor], least[by_floor])
