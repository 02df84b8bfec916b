"""Which partners exposed states get under one hull: greedy, one by one, or jointly and exactly.

The exact repair is branch and bound. A node is a hull that every repair below it contains. A state that it does not
protect is protected by a repair iff the repair's hull holds one of the state's differences, so that the children are
the hulls grown by them; a difference whose grown hull holds another of the same state's is needless. Once every state
is protected the volume is least as it is. The error may fall further with more edges, up to one for each exposed state:
in the plane the best convex polygon with vertices among all differences is found at once, and where exposed states for
its vertices run out (and outside the plane) sets of further edges are tried one after another.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from math import floor, inf, log10
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray
from dphmm.geometry import planar
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody
from dphmm.geometry.least_error import best_enclosing, reach_bounds
from dphmm.geometry.measurements import Measurements

Objective = Literal["volume", "error"]
"""What a repair minimises: the hull's volume, or the noise's expected squared error."""

_CANDIDATES = 10_000_000
"""How many candidates are considered at most; with more, every exposed state is offered its nearest partners only."""
_FEWEST = 16
"""How many partners each exposed state is offered at least."""
_SAME = 1e-12
"""Values this close, relatively, are equal up to rounding."""


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
        ``"volume"`` or ``"error"``.
    complete
        Whether the candidates are all possible partners, and not only the nearest.
    """

    base: GrowingBody
    candidates: list[Candidates]
    spacing: FloatArray
    objective: Objective
    complete: bool = True

    def value(self, shape: GrowingBody) -> float:
        """The objective of a hull, in coordinates."""
        return shape.volume if self.objective == "volume" else shape.squared_error(self.spacing)

    def values(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """The objective of the hull that each vector ``(n, d)`` grows from a shape."""
        if self.objective == "volume":
            return shape.volume + shape.growth(vectors)
        return shape.errors_with(vectors, self.spacing)

    def bounds(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """For each vector ``(n, d)``, a lower bound of the objective of every hull around the shape and the vector.

        The volume grows with the hull, so that the volume of the grown hull is one. The error does not.
        """
        if self.objective == "volume":
            return shape.volume + shape.growth(vectors)
        return reach_bounds(shape.vertices * self.spacing, vectors * self.spacing)

    # ---- the paper's two methods ---------------------------------------------------------------------------------

    def greedy(self) -> Repair:
        """Algorithm 1: every exposed state is joined to the nearest other one; no proof of anything."""
        return self.unproven(*self.nearest())

    def nearest(self, order: int = 2) -> tuple[GrowingBody, list[tuple[int, int]]]:
        """Every exposed state joined to the nearest other one by the norm of an order: the hull and the edges."""
        picks = [int(np.argmin(self.lengths(choice.vectors, order))) for choice in self.candidates]
        pairs = list(zip(self.candidates, picks, strict=True))
        grown = self.base.grow(np.array([choice.vectors[k] for choice, k in pairs])) if pairs else self.base
        return grown, [choice.edge(k) for choice, k in pairs]

    def lengths(self, vectors: npt.NDArray[Any], order: int = 2) -> FloatArray:
        """The norms of vectors ``(n, d)``, in the unit of the measurements."""
        return np.asarray(np.linalg.norm(vectors * self.spacing, ord=order, axis=1))

    def sequential(self) -> Repair:
        """Algorithm 3: exposed states in turn take the partner of least volume, whatever is to be minimised."""
        return self.unproven(*replace(self, objective="volume").in_turn(range(len(self.candidates))))

    def in_turn(self, order: Iterable[int]) -> tuple[GrowingBody, list[tuple[int, int]]]:
        """Exposed states in some order take the partner of least objective; protected ones need none."""
        shape, added = self.base, []
        for index in order:
            choice = self.candidates[index]
            if shape.contains(choice.vectors).any():
                continue
            best = self._cheapest(shape, choice)
            shape = shape.grow(choice.vectors[best : best + 1])
            added.append(choice.edge(best))
        return shape, added

    def _cheapest(self, shape: GrowingBody, choice: Candidates) -> int:
        """The partner of least objective; of equal ones the nearest, then the first."""
        values = self.values(shape, choice.vectors)
        least = np.flatnonzero(values <= values.min() * (1 + _SAME))
        return int(least[np.argmin(self.lengths(choice.vectors[least]))])

    def unproven(self, shape: GrowingBody, added: list[tuple[int, int]]) -> Repair:
        """A repair of which nothing is proven but that volumes only grow, and errors no further than a floor."""
        value = self.value(shape)
        if not added:
            return Repair((), shape, value, value)
        known = self.base.volume if self.objective == "volume" else self.base.error_floor(self.spacing)
        return Repair(tuple(dict.fromkeys(added)), shape, value, min(known, value))

    # ---- the exact method ----------------------------------------------------------------------------------------

    def exact(self, limit: int) -> Repair:
        """One partner for every exposed state, jointly of least objective, by best-first branch and bound.

        Parameters
        ----------
        limit
            The units of work that the search may do. Past it the best repair found comes with the least bound that is
            still open.
        """

        flat = self._flat_repair() if self.objective == "volume" else None
        if flat is not None:
            return flat
        found = Search(self, limit).run()
        return found if self.complete else replace(found, bound=min(found.bound, self._beyond_offered()))

    def _beyond_offered(self) -> float:
        """What no repair falls below that gives some state a partner farther than all it was offered."""
        if self.objective == "volume":
            return self.base.volume
        return min(2.0 * float(self.lengths(choice.vectors).max()) ** 2 for choice in self.candidates)

    def _flat_repair(self) -> Repair | None:
        """The shortest repair within a line, where one exists: it has no volume, which nothing can beat."""
        if not isinstance(self.base, PlanarBody) or not self.base.is_flat or not self.candidates:
            return None
        tip = self.base.vertices[-1]
        along = tip[None] if tip.any() else self.candidates[0].vectors
        lengths = self.lengths(along)
        best, reach = None, inf
        for index in np.argsort(lengths, kind="stable"):
            if lengths[index] >= reach:
                break
            found = self._along(along[index])
            if found is not None and (length := float(self.lengths(found.shape.vertices[-1:])[0])) < reach:
                best, reach = found, length
        return best

    def _along(self, direction: npt.NDArray[Any]) -> Repair | None:
        shape, added = self.base, []
        slack = 0 if shape.vertices.dtype.kind == "i" else RELATIVE_TOLERANCE
        for choice in self.candidates:
            cross = np.abs(planar.cross(direction, choice.vectors))
            sizes = np.linalg.norm(direction) * np.linalg.norm(choice.vectors, axis=1)
            on_line = choice.only(np.flatnonzero(cross <= slack * sizes))
            if not len(on_line.partners):
                return None
            nearest = int(np.argmin(self.lengths(on_line.vectors)))
            if not shape.contains(on_line.vectors[nearest : nearest + 1])[0]:
                shape = shape.grow(on_line.vectors[nearest : nearest + 1])
                added.append(on_line.edge(nearest))
        return Repair(tuple(dict.fromkeys(added)), shape, 0.0, 0.0)


def candidates_of(
    measurements: Measurements, exposed: IntArray, constraint: BoolArray
) -> tuple[list[Candidates], bool]:
    """The possible partners of each exposed state, and whether they are all of them and not only the nearest."""
    if not len(exposed):
        return [], True
    possible = np.flatnonzero(constraint)
    coordinates = measurements.coordinates
    if len(exposed) * len(possible) <= _CANDIDATES:
        choices = [possible[possible != state] for state in exposed]
    else:
        from scipy.spatial import cKDTree

        nearest = max(_FEWEST, _CANDIDATES // len(exposed))
        points = measurements.points
        found = cKDTree(points[possible]).query(points[exposed], k=min(nearest, len(possible)))[1]
        choices = [np.sort(row[row != state]) for row, state in zip(possible[found], exposed, strict=True)]
    candidates = [
        Candidates(int(state), coordinates[partners] - coordinates[state], partners)
        for state, partners in zip(exposed, choices, strict=True)
    ]
    return candidates, len(exposed) * len(possible) <= _CANDIDATES


_CLOSED = 1e-12
"""A bound this close to the value, relatively, has closed the search: both are rounded in the last places."""
_FEW = 256
"""Up to this many differences of a state are sifted anew at a node."""
_PER_NODE = 400_000
"""What a node costs in units of work, besides its differences."""
_PER_OPTION: dict[Objective, int] = {"volume": 150, "error": 3_000}
"""What each difference costs at a node."""
_PER_POLYGON, _PER_POLYTOPE = 50_000, 1_000_000
"""What it costs to make a hull, in the plane and in other dimensions."""


class _OutOfWork(Exception):
    """The search has done the work that it may do."""


class _Options:
    """The distinct differences of all exposed states, up to sign, and who may take them.

    Parameters
    ----------
    problem
        What is repaired.
    level
        The value to beat: differences that no better hull holds are left out.
    """

    def __init__(self, problem: RepairProblem, level: float) -> None:
        vectors = np.concatenate([choice.vectors for choice in problem.candidates])
        partners = np.concatenate([choice.partners for choice in problem.candidates])
        states = np.repeat(np.arange(len(problem.candidates)), [len(c.partners) for c in problem.candidates])
        kept = np.flatnonzero(_cheap_bounds(problem, vectors) < level)
        vectors, partners, states = _canonical(vectors[kept]), partners[kept], states[kept]
        order = np.lexsort(vectors.T[::-1])
        first = np.ones(len(order), dtype=np.bool_)
        first[1:] = (np.diff(vectors[order], axis=0) != 0).any(axis=1)
        which = np.empty(len(order), dtype=np.int64)
        which[order] = np.cumsum(first) - 1
        distinct = vectors[order[first]]
        alive = np.isfinite(bounds_below(problem, problem.base, distinct, level))
        renumber = np.cumsum(alive) - 1
        kept = np.flatnonzero(alive[which])
        self.vectors: npt.NDArray[Any] = distinct[alive]
        """``(u, d)``: the differences, of each pair of opposite ones the one that points up."""
        self.which: IntArray = renumber[which[kept]]
        """For every pair of an exposed state and a partner, by state: the difference."""
        self.partners: IntArray = partners[kept]
        self.starts: IntArray = np.searchsorted(states[kept], np.arange(len(problem.candidates) + 1))
        """Pairs ``starts[i]`` to ``starts[i + 1]`` are those of the exposed state number ``i``."""
        self.numbers = {tuple(vector): number for number, vector in enumerate(self.vectors.tolist())}
        self._owners: dict[int, list[int]] = {}

    def per_state(self, reduce: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The least, or whether any, of the values ``(u,)`` over every exposed state's differences."""
        return np.asarray(reduce.reduceat(values[self.which], self.starts[:-1]))

    def of_state(self, state: int) -> IntArray:
        """The differences of an exposed state."""
        return np.unique(self.which[self.starts[state] : self.starts[state + 1]])

    def _pairs_of(self, option: int) -> list[int]:
        if option not in self._owners:
            self._owners[option] = np.flatnonzero(self.which == option).tolist()
        return self._owners[option]

    def assign(self, options: list[int]) -> dict[int, int] | None:
        """A pair for each difference, all of different exposed states (by augmenting paths); None if there is none."""
        taken: dict[int, tuple[int, int]] = {}

        def place(option: int, tried: set[int]) -> bool:
            for pair in self._pairs_of(option):
                state = int(np.searchsorted(self.starts, pair, side="right")) - 1
                if state not in tried:
                    tried.add(state)
                    if state not in taken or place(taken[state][0], tried):
                        taken[state] = (option, pair)
                        return True
            return False

        return dict(taken.values()) if all(place(option, set()) for option in dict.fromkeys(options)) else None


@dataclass(frozen=True)
class _Node:
    """A hull that every repair below contains.

    Parameters
    ----------
    shape
        The hull.
    options
        The differences that a better repair below may add.
    chosen
        Those that led here.
    protected
        ``(m,)``: which exposed states are known to be protected by the hull.
    """

    shape: GrowingBody
    options: IntArray
    chosen: list[int]
    protected: BoolArray


class Search:
    """Best-first branch and bound over one partner for every exposed state.

    Parameters
    ----------
    problem
        At least one state is exposed.
    limit
        The units of work that may be done, a few nanoseconds each. It is counted and not timed, so that the same
        problem ends in the same repair on every machine.
    """

    def __init__(self, problem: RepairProblem, limit: int) -> None:
        self.problem = problem
        self.left = limit
        self.unresolved = inf
        self.seen: set[bytes] = set()
        self.heap: list[tuple[float, int, float, _Node]] = []
        self.tick = count()
        self.sifted: dict[int, IntArray] = {}

    def run(self) -> Repair:
        """The best repair, and the least bound that is still open where the work has run out."""
        self.best = min(self._first_guesses(), key=lambda repair: repair.value)
        if len(self.problem.candidates) == 1 or self.best.value == 0:
            return replace(self.best, bound=self.best.value)
        self.options = _Options(self.problem, self.best.value)
        if (np.diff(self.options.starts) == 0).any():
            return replace(self.best, bound=self.best.value)
        everything = np.arange(len(self.options.vectors))
        nobody = np.zeros(len(self.problem.candidates), dtype=np.bool_)
        self._push(0.0, _Node(self.problem.base, everything, [], nobody))
        try:
            if isinstance(self.problem.base, PlanarBody):
                guess = self.best.shape
                self._close(_Node(guess, everything, self._chosen(guess), ~nobody), inf)
            while self.heap:
                _, _, bound, node = self.heap[0]
                if not self._beaten(bound):
                    self._expand(bound, node)
                heapq.heappop(self.heap)
        except _OutOfWork:
            self.unresolved = min(self.unresolved, self._least_open())
        return replace(self.best, bound=min(self.unresolved, self.best.value))

    def _first_guesses(self) -> list[Repair]:
        """The values to beat: Algorithm 1, and the best partner for one state after another. One state is exact."""
        problem = self.problem
        if len(problem.candidates) == 1:
            return [self._guess(*problem.in_turn([0]))]
        cheapest = [float(_cheap_bounds(problem, choice.vectors).min()) for choice in problem.candidates]
        dearest_first = sorted(range(len(cheapest)), key=lambda i: -cheapest[i])
        orders = (dearest_first, dearest_first[::-1])
        return [self._guess(*made) for made in (problem.nearest(), *map(problem.in_turn, orders))]

    def _guess(self, shape: GrowingBody, added: list[tuple[int, int]]) -> Repair:
        return Repair(tuple(dict.fromkeys(added)), shape, self.problem.value(shape), 0.0)

    def _chosen(self, shape: GrowingBody) -> list[int]:
        """The differences among a hull's vertices."""
        corners, numbers = map(tuple, _canonical(shape.vertices).tolist()), self.options.numbers
        return list(dict.fromkeys(numbers[corner] for corner in corners if corner in numbers))

    def _least_open(self) -> float:
        """The least bound of the nodes in the heap, those of the lowest ones raised by what no larger hull can beat."""
        least = inf
        for rank, (_, _, bound, node) in enumerate(sorted(self.heap)):
            if bound >= least:
                break
            if self.problem.objective == "error" and rank < _FEW:
                bound = max(bound, node.shape.error_floor(self.problem.spacing))
            least = min(least, bound)
        return least

    def _spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise _OutOfWork

    def _beaten(self, bound: float) -> bool:
        return bound >= self.best.value * (1 - _CLOSED)

    def _push(self, bound: float, node: _Node) -> None:
        key = node.shape.vertices.tobytes()
        if not self._beaten(bound) and key not in self.seen:
            self.seen.add(key)
            # Bounds that are equal up to rounding come in the order they were made, on every machine.
            rank = round(bound, 9 - floor(log10(self.best.value)))
            heapq.heappush(self.heap, (rank, next(self.tick), bound, node))

    def _expand(self, bound: float, node: _Node) -> None:
        """Put the children of a node, the differences of one exposed state, into the heap."""
        known, shape, options = self.options, node.shape, node.options
        self._spend(_PER_NODE + _PER_OPTION[self.problem.objective] * len(options))
        vectors = known.vectors[options]
        inside = np.zeros(len(known.vectors), dtype=np.bool_)
        inside[options] = shape.contains(vectors)
        protected = node.protected | known.per_state(np.logical_or, inside)
        if protected.all():
            self._close(node, bound)
            return
        bounds = np.full(len(known.vectors), inf)
        bounds[options] = bounds_below(self.problem, shape, vectors, self.best.value)
        bounds[inside] = inf
        state = int(np.where(protected, -inf, known.per_state(np.minimum, bounds)).argmax())
        children = self._sifted(state)
        children = children[np.isfinite(bounds[children])]
        if len(children) <= _FEW:
            children = children[shape.minimal(known.vectors[children])]
        rest = options[np.isfinite(bounds[options])]
        for child in children.tolist():
            grown = self._grown(shape, child)
            self._push(max(bound, float(bounds[child])), _Node(grown, rest, [*node.chosen, child], protected))

    def _grown(self, shape: GrowingBody, option: int) -> GrowingBody:
        """The hull of a shape and a difference."""
        self._spend(_PER_POLYGON if isinstance(shape, PlanarBody) else _PER_POLYTOPE)
        return shape.grow(self.options.vectors[option][None])

    def _sifted(self, state: int) -> IntArray:
        """The differences of a state that no other of its differences makes needless, whatever the hull."""
        if state not in self.sifted:
            mine = self.options.of_state(state)
            self.sifted[state] = mine[self.problem.base.minimal(self.options.vectors[mine])]
        return self.sifted[state]

    # ---- hulls under which no state is exposed ---------------------------------------------------------------------

    def _close(self, node: _Node, bound: float) -> None:
        """Record the best hull around one that protects everybody: for the volume, and in a line, that hull itself."""
        shape, spacing = node.shape, self.problem.spacing
        self._record(shape, node.chosen)
        if self.problem.objective == "volume" or (isinstance(shape, PlanarBody) and not shape.volume > 0):
            return
        if not isinstance(shape, PlanarBody):
            self._enumerate(shape, node.options, node.chosen, [])
            return
        points = self.options.vectors[node.options]
        _, picked, complete = best_enclosing(shape.vertices * spacing, points * spacing, self.best.value, self._spend)
        more = node.options[picked].tolist()
        if more and not self._record(shape.grow(points[picked]), [*node.chosen, *more]):
            self._enumerate(shape, node.options, node.chosen, [])
        elif not complete:
            self.unresolved = min(self.unresolved, bound)

    def _record(self, shape: GrowingBody, chosen: list[int]) -> bool:
        """Keep a hull that is better than the best, if different exposed states can take its edges; if they can."""
        corners = set(map(tuple, _canonical(shape.vertices).tolist()))
        needed = [option for option in chosen if tuple(self.options.vectors[option].tolist()) in corners]
        pairs = self.options.assign(needed)
        if pairs is None:
            return False
        value = self.problem.value(shape)
        if value < self.best.value * (1 - _CLOSED):
            self.best = Repair(tuple(self._edge(pairs[option]) for option in needed), shape, value, 0.0)
        return True

    def _edge(self, pair: int) -> tuple[int, int]:
        number = int(np.searchsorted(self.options.starts, pair, side="right")) - 1
        a, b = sorted((self.problem.candidates[number].state, int(self.options.partners[pair])))
        return a, b

    def _enumerate(self, shape: GrowingBody, options: IntArray, chosen: list[int], taken: list[int]) -> None:
        """Try all sets of further differences that different exposed states can take, each set once."""
        known = self.options
        self._spend(_PER_NODE + _PER_OPTION[self.problem.objective] * len(options))
        options = options[np.isfinite(bounds_below(self.problem, shape, known.vectors[options], self.best.value))]
        options = np.array([one for one in options.tolist() if known.assign([*taken, one])], dtype=np.int64)
        values = self.problem.values(shape, known.vectors[options])
        for index in np.argsort(values, kind="stable").tolist():
            one = int(options[index])
            if self._beaten(float(values[index])) or self._record(self._grown(shape, one), [*chosen, one]):
                break
        if len(taken) + 1 >= len(self.problem.candidates):
            return
        for index, one in enumerate(options.tolist()):
            grown, rest = self._grown(shape, one), options[index + 1 :]
            rest = rest[~grown.contains(known.vectors[rest])]
            self._enumerate(grown, rest, [*chosen, one], [*taken, one])


def bounds_below(problem: RepairProblem, shape: GrowingBody, vectors: npt.NDArray[Any], level: float) -> FloatArray:
    """`RepairProblem.bounds`, infinite for vectors that no hull around the shape with a value below the level holds."""
    if problem.objective == "error":
        return shape.open_bounds(vectors, problem.spacing, level)
    bounds = problem.bounds(shape, vectors)
    return np.where(bounds < level, bounds, inf)


def _cheap_bounds(problem: RepairProblem, vectors: npt.NDArray[Any]) -> FloatArray:
    """A lower bound for each vector ``(n, d)`` that is quick to compute."""
    if problem.objective == "volume":
        return problem.bounds(problem.base, vectors)
    return np.asarray(2.0 * ((vectors * problem.spacing) ** 2).sum(axis=1))


def _canonical(vectors: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Of each vector ``(n, d)`` and its opposite the one whose last coordinate other than zero is positive."""
    sign = np.zeros(len(vectors), dtype=np.int64)
    for axis in range(vectors.shape[1] - 1, -1, -1):
        sign = np.where(sign == 0, np.sign(vectors[:, axis]).astype(np.int64), sign)
    return np.asarray(vectors * sign[:, None])
