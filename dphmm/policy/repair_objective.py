"""Objectives of a repair: volume or squared error of a noise body, with lower bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.geometry.incremental_hull import GrowingBody
from dphmm.geometry.least_error import compute_reach_bounds
from dphmm.geometry.sensitivity_hull import Body, CrossPolytope, Disc, SensitivityHull
from dphmm.tolerances import RELATIVE_TOLERANCE

# The objective of a repair: volume of the hull, or expected squared error.
Objective = Literal["volume", "error"]

# Sums of a few hundred doubles, such as volumes and second moments, change by about 1e-13 if their terms are reordered.
# Values with a smaller relative difference are equal up to rounding.
ROUNDING = 1e-12


class NoiseCost(ABC):
    """Base class of objectives: the cost of the noise around a hull.

    The default bounds are those of a monotone cost: the cost of a hull is a lower bound for every larger one.

    Parameters
    ----------
    spacing
        ``(d,)``: the length of a unit step along each coordinate.
    """

    # Whether no larger hull has a smaller cost.
    is_monotone = True
    # The units of work of one bound: here, of the area of one grown polygon.
    work_per_vector = 150

    def __init__(self, spacing: FloatArray) -> None:
        self.spacing = spacing

    @abstractmethod
    def evaluate(self, shape: GrowingBody) -> float:
        """Return the cost of the noise around a hull."""

    @abstractmethod
    def evaluate_growths(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the cost of the shape grown by each of the vectors ``(n, d)`` alone."""

    def compute_floor(self, shape: GrowingBody) -> float:
        """Return a lower bound of the cost over all hulls that contain a shape."""
        return self.evaluate(shape)

    def compute_tight_floor(self, shape: GrowingBody) -> float:
        """Return a lower bound that is at least each bound by which the shape was grown."""
        return self.evaluate(shape)

    def compute_bounds(self, shape: GrowingBody, vectors: npt.NDArray[Any], floor: float = 0.0) -> FloatArray:  # noqa: ARG002 - overrides use it
        """Return a lower bound over all hulls that contain the shape and each vector.

        ``floor`` is a known lower bound for the shape alone.
        """
        return self.evaluate_growths(shape, vectors)

    def compute_open_bounds(self, shape: GrowingBody, vectors: npt.NDArray[Any], level: float) -> FloatArray:
        """Return `compute_bounds`, infinite for vectors that cannot beat the level."""
        bounds = self.compute_bounds(shape, vectors)
        return np.where(bounds < level, bounds, np.inf)

    def compute_quick_bounds(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return weaker lower bounds than `compute_bounds` that are faster to compute."""
        return self.compute_bounds(shape, vectors)

    @abstractmethod
    def compute_bounds_by_length(self, lengths: FloatArray) -> FloatArray:
        """Return lower bounds over all hulls that contain a vector of each length."""

    def lengths(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the lengths of vectors ``(n, d)`` in the norm that defines nearest partners."""
        return np.asarray(np.linalg.norm(vectors * self.spacing, ord=2, axis=1))

    def contains_after_growth(
        self, shape: GrowingBody, vector: npt.NDArray[Any], others: npt.NDArray[Any]
    ) -> BoolArray:
        """Return which of the others ``(n, d)`` the body around a grown hull contains."""
        return shape.grow(vector).contains(others)


class HullVolume(NoiseCost):
    """The volume of the hull, which is the objective of Equation (5)."""

    def evaluate(self, shape: GrowingBody) -> float:
        """Return the hull's volume."""
        return shape.volume * self._unit

    def evaluate_growths(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the volume of each grown hull."""
        return (shape.volume + shape.compute_growth(vectors)) * self._unit

    def compute_bounds_by_length(self, lengths: FloatArray) -> FloatArray:
        """Return zeros: a segment of any length has no volume."""
        return np.zeros(len(lengths))

    @property
    def _unit(self) -> float:
        return float(np.prod(self.spacing))


class HullError(NoiseCost):
    """The squared error of K-norm noise at epsilon one, ``(r + 1)(r + 2) E|u|²``.

    The error is not monotone: a larger hull may have a smaller error. Bounds are those of `dphmm.geometry.least_error`,
    which hold for every symmetric convex body that contains a hull.
    """

    is_monotone = False
    # The units of work of one bound: heights over 128 directions, and the excess of one grown polygon.
    work_per_vector = 3_000

    def evaluate(self, shape: GrowingBody) -> float:
        """Return the hull's error."""
        return shape.squared_error(self.spacing)

    def evaluate_growths(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the error of each grown hull."""
        return shape.compute_grown_errors(vectors, self.spacing)

    def compute_floor(self, shape: GrowingBody) -> float:
        """Return a lower bound of the error over all bodies that contain a shape."""
        return shape.compute_error_floor(self.spacing)

    def compute_tight_floor(self, shape: GrowingBody) -> float:
        """Return the larger of the floor and the reach bound. Neither dominates the other."""
        corners = shape.vertices * self.spacing
        return max(self.compute_floor(shape), float(compute_reach_bounds(corners, corners).max()))

    def compute_bounds(self, shape: GrowingBody, vectors: npt.NDArray[Any], floor: float = 0.0) -> FloatArray:
        """Return the reach bound of each grown hull, at least the floor."""
        return np.maximum(compute_reach_bounds(shape.vertices * self.spacing, vectors * self.spacing), floor)

    def compute_open_bounds(self, shape: GrowingBody, vectors: npt.NDArray[Any], level: float) -> FloatArray:
        """Return the bounds, infinite if the excess over the level cannot be negative."""
        return shape.compute_open_bounds(vectors, self.spacing, level)

    def compute_quick_bounds(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:  # noqa: ARG002 - overrides use it
        """Return the bounds that depend on the vectors only."""
        return np.asarray(2.0 * ((vectors * self.spacing) ** 2).sum(axis=1))

    def compute_bounds_by_length(self, lengths: FloatArray) -> FloatArray:
        """Return the errors of segments, the smallest for a given reach (Brunn–Minkowski)."""
        return 2.0 * lengths**2


class BallCost(NoiseCost):
    """The cost of the smallest cross-polytope or disc around a hull.

    Parameters
    ----------
    spacing
        See `NoiseCost`.
    body, objective
        The type of ball, and the objective.
    """

    def __init__(self, spacing: FloatArray, body: Body, objective: Objective) -> None:
        super().__init__(spacing)
        dimension = len(spacing)
        self._order = 1 if body == "cross-polytope" else 2
        unit: Disc | SensitivityHull = Disc(1.0, dimension)
        if body == "cross-polytope":
            unit = CrossPolytope(np.ones(dimension)) if dimension > 2 else SensitivityHull(np.eye(dimension))
        self._of_unit_ball = unit.volume if objective == "volume" else unit.squared_error
        self._power = dimension if objective == "volume" else 2

    def evaluate(self, shape: GrowingBody) -> float:
        """Return the cost of the ball around a hull."""
        return float(self.compute_bounds_by_length(self._compute_radius(shape)))

    def evaluate_growths(self, shape: GrowingBody, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the cost of the ball around each grown hull."""
        return self.compute_bounds_by_length(np.maximum(self._compute_radius(shape), self.lengths(vectors)))

    def compute_bounds_by_length(self, lengths: FloatArray) -> FloatArray:
        """Return the cost of a ball of each radius."""
        return np.asarray(self._of_unit_ball * lengths**self._power)

    def lengths(self, vectors: npt.NDArray[Any]) -> FloatArray:
        """Return the lengths of vectors ``(n, d)`` in the ball's norm."""
        return np.asarray(np.linalg.norm(vectors * self.spacing, ord=self._order, axis=1))

    def contains_after_growth(
        self, shape: GrowingBody, vector: npt.NDArray[Any], others: npt.NDArray[Any]
    ) -> BoolArray:
        """Return which others the ball contains (in the plane, the hull inside it)."""
        if len(self.spacing) <= 2:
            return super().contains_after_growth(shape, vector, others)
        # In more dimensions the hull inside the ball can have millions of facets. The radius does not need them.
        radius = np.maximum(self._compute_radius(shape), self.lengths(vector).max())
        return np.asarray(self.lengths(others) <= radius * (1.0 + RELATIVE_TOLERANCE))

    def _compute_radius(self, shape: GrowingBody) -> FloatArray:
        return np.asarray(self.lengths(shape.points).max(initial=0.0))


def build_noise_cost(spacing: FloatArray, body: Body, objective: Objective) -> NoiseCost:
    """Return the objective for noise from a type of body."""
    if body != "hull":
        return BallCost(spacing, body, objective)
    return HullVolume(spacing) if objective == "volume" else HullError(spacing)


def find_minimum(values: FloatArray, lengths: FloatArray) -> int:
    """Return the index of the smallest value. Ties take the smallest length, then the first."""
    minimal = np.flatnonzero(values <= values.min() * (1 + ROUNDING))
    return int(minimal[np.argmin(lengths[minimal])])


def list_orders_by_cost(costs: FloatArray) -> list[IntArray]:
    """Return the indices by descending and ascending cost, for greedy heuristics."""
    descending = np.argsort(-costs, kind="stable")
    return [descending, descending[::-1]]
