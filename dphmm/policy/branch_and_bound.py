"""Branch and bound over repairs, with an incumbent, a work limit and a proven lower bound.

A node represents a set of repairs, and its bound is a lower bound of the objective of each of them. A `RepairProblem`
creates the nodes and bounds of one objective, and offers the repairs that it finds. The search expands, among the
deepest nodes, the one with the smallest bound. It ends if no bound is below the incumbent, which is then optimal, or if
the work limit is reached. In the latter case the smallest remaining bound holds for every repair.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from math import floor, inf, log10
from typing import Generic, TypeVar

from dphmm.policy.repair_objective import ROUNDING

Edge = tuple[int, int]

# Only the nodes with the smallest bounds determine the lower bound, and their floors are expensive.
_MAX_TIGHTENED_NODES = 256


@dataclass(frozen=True)
class Repair:
    """Edges that leave no state exposed, their objective value, and a lower bound."""

    added: tuple[Edge, ...]
    value: float
    bound: float

    @property
    def is_optimal(self) -> bool:
        """Whether the bound reaches the value, up to rounding."""
        return self.bound >= self.value * (1 - ROUNDING)


def make_edge(state: int, partner: int) -> Edge:
    """Return an edge with the smaller state first."""
    return (state, partner) if state < partner else (partner, state)


# The units of work of each unit of the setting ``repair_max_work``: 1000 of these are a second or two.
UNITS_PER_MAX_WORK = 1_000_000


class OutOfWork(Exception):
    """Raised if the work limit is reached."""


class Work:
    """The remaining work of a search, in units of one or two nanoseconds.

    Work is counted, not timed, so the search ends at the same node on every machine. Each step counts a constant that
    approximates its time. Other constants would change the repairs of searches that reach their limit.

    Parameters
    ----------
    limit
        The number of units, see `UNITS_PER_MAX_WORK`.
    """

    def __init__(self, limit: int) -> None:
        self.left = limit

    def count(self, units: int) -> None:
        """Count work without checking the limit."""
        self.left -= units

    def spend(self, units: int) -> None:
        """Count work, and raise `OutOfWork` if the limit is exceeded."""
        self.left -= units
        if self.left < 0:
            raise OutOfWork


Node = TypeVar("Node")
RepairT = TypeVar("RepairT", bound=Repair)
_Entry = tuple[int, float, int, float, Node]


class RepairProblem(ABC, Generic[Node, RepairT]):
    """Base class of the nodes and bounds of one objective."""

    @abstractmethod
    def iterate_roots(self, search: RepairSearch[Node, RepairT]) -> Iterator[tuple[float, Node]]:
        """Yield bounds and nodes that contain every repair better than the incumbent.

        All nodes must be yielded before any work is spent. Nodes not yet yielded when the limit is reached would be
        missing from the lower bound.
        """

    @abstractmethod
    def branch(self, search: RepairSearch[Node, RepairT], bound: float, node: Node) -> Iterator[tuple[float, Node]]:
        """Offer the node's own repairs to the search. Yield children that contain all others."""

    @abstractmethod
    def get_key(self, node: Node) -> Hashable:
        """Return a key that is equal for nodes with the same repairs."""

    def get_depth(self, node: Node) -> int:  # noqa: ARG002 - overrides use it
        """Return the depth. Deeper nodes are expanded first. Constant means best-first."""
        return 0

    def compute_floor(self, node: Node) -> float:  # noqa: ARG002 - overrides use it
        """Return a second lower bound of a node that is too expensive to compute for every node."""
        return 0.0


class RepairSearch(Generic[Node, RepairT]):
    """One run of branch and bound.

    Parameters
    ----------
    problem
        The problem.
    incumbent
        The initial incumbent. Its bound is not used.
    work
        The work limit.
    floor
        A lower bound of the objective of every repair.
    """

    def __init__(
        self, problem: RepairProblem[Node, RepairT], incumbent: RepairT, work: Work, floor: float = 0.0
    ) -> None:
        self.problem = problem
        self.best = incumbent
        self.spend = work.spend
        self._floor = floor
        self._unexplored = inf
        self._seen: set[Hashable] = set()
        self._frontier: list[_Entry[Node]] = []
        self._insertions = count()

    def run(self) -> RepairT:
        """Return the best repair and its bound."""
        current: list[_Entry[Node]] = []
        try:
            self._push_all(self.problem.iterate_roots(self))
            while self._frontier:
                current = [heapq.heappop(self._frontier)]
                bound, node = current[0][3:]
                if not self.is_beaten(bound):
                    self._push_all(self.problem.branch(self, bound, node))
        except OutOfWork:
            # The current node counts as unexplored, too: some of its children may be missing from the frontier.
            self.leave_open(self._find_min_bound(current + self._frontier))
            # If the work ended before any node was pushed, only the floor is proven.
            if not self._seen:
                self.leave_open(self._floor)
        bound = max(self._floor, self._unexplored)
        return replace(self.best, bound=min(bound, self.best.value))

    def is_beaten(self, bound: float) -> bool:
        """Return whether repairs with this lower bound cannot improve on the incumbent."""
        return bound >= self.best.value * (1 - ROUNDING)

    def offer(self, repair: RepairT) -> None:
        """Replace the incumbent if a repair is better by more than rounding."""
        if not self.is_beaten(repair.value):
            self.best = repair

    def leave_open(self, bound: float) -> None:
        """Record that repairs with this lower bound are left unexplored."""
        self._unexplored = min(self._unexplored, bound)

    def _push_all(self, nodes: Iterator[tuple[float, Node]]) -> None:
        for bound, node in nodes:
            key = self.problem.get_key(node)
            if self.is_beaten(bound) or key in self._seen:
                continue
            self._seen.add(key)
            # Nodes of equal depth are ordered by ten digits of the bound, then by insertion, because further digits may
            # differ between platforms. The logarithm exists: an incumbent of zero beats every bound.
            rank = round(bound, 9 - floor(log10(self.best.value)))
            heapq.heappush(self._frontier, (-self.problem.get_depth(node), rank, next(self._insertions), bound, node))

    def _find_min_bound(self, entries: list[_Entry[Node]]) -> float:
        """Return the smallest bound of nodes, after tightening the first ones by their floors."""
        smallest = inf
        for index, (*_, bound, node) in enumerate(sorted(entries, key=lambda entry: entry[1:3])):
            if bound < smallest and index < _MAX_TIGHTENED_NODES:
                bound = max(bound, self.problem.compute_floor(node))
            smallest = min(smallest, bound)
        return smallest
