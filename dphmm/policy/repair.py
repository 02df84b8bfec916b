"""Which partners exposed states get, so that nobody stays exposed: greedy, one by one, or jointly exact."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import RELATIVE_TOLERANCE, BoolArray, FloatArray, IntArray
from dphmm.geometry import planar
from dphmm.geometry.growing import GrowingBody, PlanarBody
from dphmm.geometry.least_error import reach_bounds
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
        from dphmm.policy.search import Search  # imports this module

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
