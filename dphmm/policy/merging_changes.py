"""Repairs that merge components, bettered by changes of one state's partner at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dphmm.policy.merging import PER_CHANGE, SAME, Edge, MergingProblem, edge_of

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
        """Changes by which a state takes another partner; who is left alone by that takes another, too."""
        exposed = self.problem.is_exposed
        degrees = Counter(end for edge in self.edges for end in edge)

        def holds(gone: set[Edge], new: list[Edge]) -> bool:
            """Whether nobody is left alone."""
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
                for rest in more:
                    new = [edge for edge in dict.fromkeys([chosen, *rest]) if edge not in self.edges]
                    if holds({given_up}, new):
                        yield {given_up}, new
                if partner in exposed:  # which may give up somebody else whom it has chosen
                    for edge in [one for one in self.edges if partner in one and one != given_up]:
                        if holds({given_up, edge}, kept := [one for one in new if one != edge]):
                            yield {given_up, edge}, kept


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
