"""Which partners exposed states get, so that nobody stays exposed: greedy, one by one, or jointly exact."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray
from dphmm.geometry import planar
from dphmm.geometry.growing import GrowingBody, PlanarBody
from dphmm.geometry.measurements import Measurements

Objective = Literal["volume", "error"]
"""What a repair minimises: the hull's volume, or the noise's expected squared error."""

_ANGLES = np.pi * np.arange(64) / 128
_DIRECTIONS: FloatArray = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
_WORK = 50_000_000
"""How many candidates a search may test against hulls, in all."""
_CANDIDATES = 10_000_000
"""How many candidates are considered at most; with more, every exposed state is offered its nearest partners only."""
_CLOSED = 1e-12
"""A bound this close to the value, relatively, has closed the search: both are rounded in the last places."""


@dataclass(frozen=True)
class Candidates:
    """The partners an exposed state may take: ``vectors[k]`` is the difference to state ``partners[k]``."""

    state: int
    vectors: npt.NDArray[Any]
    partners: IntArray

    def edge(self, k: int) -> tuple[int, int]:
        """The edge to partner ``k``, the smaller state first."""
        a, b = sorted((self.state, int(self.partners[k])))
        return a, b

    def only(self, kept: IntArray) -> Candidates:
        """Some of the partners."""
        return Candidates(self.state, self.vectors[kept], self.partners[kept])


@dataclass(frozen=True)
class Repair:
    """Edges that protect every exposed state, the hull they lead to, and a proven lower bound of the objective."""

    added: tuple[tuple[int, int], ...]
    shape: GrowingBody
    value: float
    bound: float


@dataclass(frozen=True)
class RepairProblem:
    """A hull, the states exposed under it, and what is to be minimised.

    Parameters
    ----------
    base
        The hull before the repair.
    candidates
        For each exposed state, all other possible states, in the order of their numbers.
    spacing
        ``(d,)``: lengths of the coordinates' steps; the objective ``"error"`` depends on them.
    objective
        ``"volume"``, or ``"error"`` (planar only).
    complete
        Whether the candidates are all possible partners. Where they are only the nearest nothing is proven.
    """

    base: GrowingBody
    candidates: list[Candidates]
    spacing: FloatArray
    objective: Objective
    complete: bool = True

    def value(self, shape: GrowingBody) -> float:
        """The objective of a hull, in coordinates."""
        if self.objective == "volume":
            return shape.volume
        assert isinstance(shape, PlanarBody)
        return shape.squared_error(self.spacing)

    def lower_bound(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """For each vector, a lower bound of the objective of every hull that contains the shape and the vector.

        The volume grows with the hull, so the volume of the grown hull is one. The error does not. But the width of a
        convex body in a direction, as a function of the height, decreases away from the centre no faster than to a
        point, so ``E(u·a)² >= h(a)²/6`` for its support ``h``; over two orthogonal directions this gives
        ``12 E|u|² >= 2 (h(a)² + h(b)²)``, and supports only grow.
        """
        if self.objective == "volume":
            return shape.volume + shape.growth(vectors)
        support = np.abs((shape.vertices * self.spacing) @ self._compass).max(axis=0)
        grown = np.maximum(np.abs((vectors * self.spacing) @ self._compass), support)
        squares = grown**2
        return np.asarray(2.0 * (squares[:, :64] + squares[:, 64:]).max(axis=1))

    @property
    def _compass(self) -> FloatArray:
        return np.concatenate([_DIRECTIONS, _DIRECTIONS @ np.array([[0.0, 1.0], [-1.0, 0.0]])]).T

    # ---- the paper's two methods ---------------------------------------------------------------------------------

    def greedy(self) -> Repair:
        """Algorithm 1: every exposed state is joined to the nearest other one; no proof of anything."""
        return self._unproven(*self.nearest())

    def nearest(self, order: int = 2) -> tuple[GrowingBody, list[tuple[int, int]]]:
        """Every exposed state joined to the nearest other one by the norm of an order: the hull and the edges."""
        picks = [int(np.argmin(self._lengths(choice.vectors, order))) for choice in self.candidates]
        pairs = list(zip(self.candidates, picks, strict=True))
        grown = self.base.grow(np.array([choice.vectors[k] for choice, k in pairs])) if pairs else self.base
        return grown, [choice.edge(k) for choice, k in pairs]

    def _lengths(self, vectors: npt.NDArray[Any], order: int = 2) -> FloatArray:
        return np.asarray(np.linalg.norm(vectors * self.spacing, ord=order, axis=1))

    def sequential(self, order: list[int] | None = None) -> Repair:
        """Algorithm 3: exposed states in turn take the partner of least objective; protected ones need none."""
        shape, added = self.base, []
        for index in range(len(self.candidates)) if order is None else order:
            choice = self.candidates[index]
            if shape.contains(choice.vectors).any():
                continue
            best = self._cheapest(shape, choice)
            shape = shape.grow(choice.vectors[best : best + 1])
            added.append(choice.edge(best))
        return self._unproven(shape, added)

    def _cheapest(self, shape: GrowingBody, choice: Candidates) -> int:
        """The partner of least objective; of equal ones the nearest, then the first."""
        if self.objective == "volume":
            costs = shape.growth(choice.vectors)
        else:
            costs = np.array([self.value(shape.grow(v[None])) for v in choice.vectors])
        return int(np.lexsort((self._lengths(choice.vectors), costs))[0])

    def _unproven(self, shape: GrowingBody, added: list[tuple[int, int]]) -> Repair:
        value = self.value(shape)
        known = self.value(self.base) if self.objective == "volume" or not self.candidates else 0.0
        return Repair(tuple(dict.fromkeys(added)), shape, value, value if not added else known)

    # ---- the exact method ----------------------------------------------------------------------------------------

    def exact(self, search_limit: int) -> Repair:
        """One partner for every exposed state, jointly of least objective, by best-first branch and bound.

        Parameters
        ----------
        search_limit
            How many hulls may be looked at (fewer where each takes many candidates to look at). Past it the best repair
            found comes with the least bound still open.
        """
        flat = self._flat_repair() if self.objective == "volume" else None
        if flat is not None:
            return flat
        found = _Search(self, search_limit).run()
        return found if self.complete else self._unproven(found.shape, list(found.added))

    def _flat_repair(self) -> Repair | None:
        """The shortest repair within a line, where one exists: it has no volume, which nothing can beat."""
        if not isinstance(self.base, PlanarBody) or not self.base.is_flat or not self.candidates:
            return None
        tip = self.base.vertices[-1]
        along = tip[None] if tip.any() else self.candidates[0].vectors
        lengths = self._lengths(along)
        best, reach = None, inf
        for index in np.argsort(lengths, kind="stable"):
            if lengths[index] >= reach:
                break
            found = self._along(along[index])
            if found is not None and (length := float(self._lengths(found.shape.vertices[-1:])[0])) < reach:
                best, reach = found, length
        return best

    def _along(self, direction: npt.NDArray[Any]) -> Repair | None:
        shape, added = self.base, []
        slack = 0 if shape.vertices.dtype.kind == "i" else RELATIVE_TOLERANCE
        for choice in self.candidates:
            cross = np.abs(planar.cross(direction, choice.vectors))
            on_line = choice.only(np.flatnonzero(cross <= slack * cross.max(initial=0.0)))
            if not len(on_line.partners):
                return None
            nearest = int(np.argmin(self._lengths(on_line.vectors)))
            if not shape.contains(on_line.vectors[nearest : nearest + 1])[0]:
                shape = shape.grow(on_line.vectors[nearest : nearest + 1])
                added.append(on_line.edge(nearest))
        return Repair(tuple(dict.fromkeys(added)), shape, 0.0, 0.0)


@dataclass(frozen=True)
class _Node:
    """A hull on the way: what it still has to decide, and the edges that led to it."""

    shape: GrowingBody
    open_states: tuple[int, ...]
    added: tuple[tuple[int, int], ...]


class _Search:
    """Best-first branch and bound over one partner for every exposed state.

    A node is settled by its hull (for the volume) or by its hull and the states that have not chosen (for the error,
    which is not monotone, so that a state that is protected already may still choose). Children of a node are the
    choices of one state: the one whose cheapest choice is dearest.
    """

    def __init__(self, problem: RepairProblem, limit: int) -> None:
        self.problem = problem
        self.monotone = problem.objective == "volume"
        self.best = self._first_guess()
        self.choices = [self._worth_trying(c) for c in problem.candidates]
        self.vectors = np.concatenate([c.vectors for c in self.choices])
        self.starts = np.cumsum([0, *(len(c.vectors) for c in self.choices)])
        self.limit = min(limit, _WORK // max(1, len(self.vectors)))
        self.seen: set[tuple[Any, ...]] = set()
        self.heap: list[tuple[float, int, _Node]] = []
        self.tick = count()

    def _first_guess(self) -> Repair:
        """The best of a few runs of the paper's methods: the value to beat."""
        everyone = list(range(len(self.problem.candidates)))
        bounds = (self.problem.lower_bound(self.problem.base, c.vectors) for c in self.problem.candidates)
        cheapest = [float(found.min()) for found in bounds]
        dearest_first = sorted(everyone, key=lambda i: -cheapest[i])
        tries = [self.problem.greedy()]
        tries += [self.problem.sequential(order) for order in (everyone, dearest_first, dearest_first[::-1])]
        return min(tries, key=lambda repair: repair.value)

    def _worth_trying(self, choice: Candidates) -> Candidates:
        bounds = self.problem.lower_bound(self.problem.base, choice.vectors)
        choice = choice.only(np.flatnonzero(bounds <= self.best.value))
        body = self.problem.base if self.monotone else GrowingBody(self.problem.base.vertices)
        return choice.only(body.minimal(choice.vectors))

    def run(self) -> Repair:
        self._push(0.0, _Node(self.problem.base, tuple(range(len(self.choices))), ()))
        expanded = count()
        while self.heap:
            bound, _, node = heapq.heappop(self.heap)
            if self._beaten(bound):
                break
            if next(expanded) >= self.limit:
                return replace(self.best, bound=min(bound, self.best.value))
            self._expand(bound, node)
        return replace(self.best, bound=self.best.value)

    def _beaten(self, bound: float) -> bool:
        return bound >= self.best.value * (1 - _CLOSED)

    def _push(self, bound: float, node: _Node) -> None:
        key = (node.shape.vertices.tobytes(), () if self.monotone else node.open_states)
        if not self.monotone and isinstance(node.shape, PlanarBody) and not self._beaten(bound):
            bound = max(bound, node.shape.error_floor(self.problem.spacing))
        if not self._beaten(bound) and key not in self.seen:
            self.seen.add(key)
            heapq.heappush(self.heap, (bound, next(self.tick), node))

    def _expand(self, bound: float, node: _Node) -> None:
        waiting = node.open_states
        covered = self._covered(node.shape)
        exposed = [i for i in waiting if not covered[i]]
        if not exposed:
            self._record(node)
            if self.monotone:
                return
        elif self.monotone:
            waiting = tuple(exposed)
        if not waiting:
            return
        bounds = self._bounds(node.shape, exposed or waiting)
        least = {state: float(values.min(initial=inf)) for state, values in bounds.items()}
        state = max(least, key=lambda i: least[i])
        if exposed:
            bound = max(bound, least[state])
        if self._beaten(bound):
            return
        rest = tuple(i for i in waiting if i != state)
        choice = self.choices[state]
        if not exposed:
            self._push(bound, _Node(node.shape, rest, node.added))
        for k, reach in enumerate(bounds[state].tolist()):
            child_bound = max(bound, reach)
            if not self._beaten(child_bound):
                grown = node.shape.grow(choice.vectors[k : k + 1])
                self._push(child_bound, _Node(grown, rest, (*node.added, choice.edge(k))))

    def _bounds(self, shape: GrowingBody, states: list[int] | tuple[int, ...]) -> dict[int, FloatArray]:
        """Lower bounds of all choices of some states, computed at once."""
        everything = np.concatenate([self.choices[i].vectors for i in states])
        cuts = np.cumsum([len(self.choices[i].vectors) for i in states])[:-1]
        parts = np.split(self.problem.lower_bound(shape, everything), cuts)
        return dict(zip(states, parts, strict=True))

    def _covered(self, shape: GrowingBody) -> BoolArray:
        """Which states the hull protects; choices not worth trying lie in no hull that is worth looking at."""
        inside = shape.contains(self.vectors)
        counts = np.concatenate([[0], np.cumsum(inside)])
        return np.asarray(counts[self.starts[1:]] > counts[self.starts[:-1]])

    def _record(self, node: _Node) -> None:
        value = self.problem.value(node.shape)
        if value < self.best.value:
            self.best = Repair(tuple(dict.fromkeys(node.added)), node.shape, value, 0.0)


def candidates_of(
    measurements: Measurements, exposed: IntArray, constraint: BoolArray
) -> tuple[list[Candidates], bool]:
    """The possible partners of each exposed state, and whether they are all of them and not only the nearest."""
    possible = np.flatnonzero(constraint)
    coordinates = measurements.coordinates
    if len(exposed) * len(possible) <= _CANDIDATES:
        choices = [possible[possible != state] for state in exposed]
    else:
        from scipy.spatial import cKDTree

        nearest = max(16, _CANDIDATES // len(exposed))
        points = measurements.points
        found = cKDTree(points[possible]).query(points[exposed], k=min(nearest, len(possible)))[1]
        choices = [np.sort(row[row != state]) for row, state in zip(possible[found], exposed, strict=True)]
    candidates = [
        Candidates(int(state), coordinates[partners] - coordinates[state], partners)
        for state, partners in zip(exposed, choices, strict=True)
    ]
    return candidates, len(exposed) * len(possible) <= _CANDIDATES
