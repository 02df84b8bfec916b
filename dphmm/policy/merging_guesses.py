"""Repairs that merge components: partners taken one after another, and several states joining a component together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray
from dphmm.policy.merging import PER_SHAPE, SAME, Edge, Merged, MergingProblem, edge_of
from dphmm.policy.merging_changes import TRIED, bettered
from dphmm.policy.merging_search import proven

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
            inside = np.flatnonzero(shape.grow(distinct[which][None]).contains(vectors))
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
