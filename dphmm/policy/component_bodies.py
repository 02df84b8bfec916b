"""Noise bodies of connected components: hulls, degrees of protection and exposed states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_floats
from dphmm.errors import StochasticError
from dphmm.geometry.incremental_hull import GrowingBody, build_origin
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.geometry.sensitivity_hull import Body, CrossPolytope, Disc, Membership, SensitivityHull
from dphmm.policy.graph import PolicyGraph

# The scope of a noise body: the constrained graph, or each connected component.
NoiseScope = Literal["graph", "component"]

# Components up to this size share one pass over their edges, and all their pairs are compared. With many small
# components, a restricted graph and a search structure for each would be slower.
_MAX_PAIRWISE_STATES = 48


@dataclass(frozen=True)
class NoiseBody:
    """The body that determines the noise of one or several components.

    Parameters
    ----------
    coordinate_hull, hull
        The sensitivity hull, in the measurements' coordinates and in their unit.
    body
        The hull itself, or the smallest cross-polytope or disc that contains it, in the unit of the measurements.
    """

    coordinate_hull: SensitivityHull
    hull: SensitivityHull
    body: SensitivityHull | Disc

    @classmethod
    def from_hull(cls, measurements: Measurements, coordinate_hull: SensitivityHull, body: Body) -> NoiseBody:
        """Return the noise body of a type around a hull in coordinates."""
        hull = measurements.to_units(coordinate_hull)
        around = build_noise_body(measurements, coordinate_hull, body)
        return cls(coordinate_hull, hull, hull if around is coordinate_hull else convert_to_units(measurements, around))


def build_noise_body(measurements: Measurements, hull: SensitivityHull, body: Body) -> SensitivityHull | Disc:
    """Return the noise body around a hull in coordinates.

    The result is in coordinates, except for a disc, which is in the unit of the measurements.
    """
    if body == "hull" or hull.dimension == 0:
        return hull
    if body == "disc":
        return Disc(float(measurements.lengths(hull.spanning).max()), measurements.dimension)
    steps = measurements.spacing
    # A norm is convex, so it is maximal at a spanning difference. The facets of the hull are not needed.
    tips = hull.spanning
    # With equal steps on a lattice, lengths are sums of integers: the radius in coordinates is exact.
    if np.ptp(steps) <= 1e-12 * steps.max():
        radii = np.full(len(steps), np.abs(tips).sum(axis=1).max())
    else:
        radii = float(np.abs(tips * steps).sum(axis=1).max()) / steps
    return CrossPolytope(radii) if len(steps) > 2 else SensitivityHull(np.diag(radii))


def convert_to_units(measurements: Measurements, body: SensitivityHull | Disc) -> SensitivityHull | Disc:
    """Convert the result of `build_noise_body` to the unit of the measurements."""
    return body if isinstance(body, Disc) else measurements.to_units(body)


def label_components(graph: PolicyGraph, noise_scope: NoiseScope) -> IntArray:
    """Return the index of each state's noise body in a graph, ``(N,)``. -1 outside.

    With the scope ``"component"`` these are the connected components. With ``"graph"`` all states that are not open
    share one, and each open state has its own.
    """
    if noise_scope == "component":
        return graph.components()
    labels = np.where(graph.node_mask, 0, -1)
    states = np.flatnonzero(graph.open)
    # The states that are not open are component 0, if there are any. Open states are counted from there.
    rest = int((graph.node_mask & ~graph.open).any())
    labels[states] = rest + np.arange(len(states))
    return labels


def build_shapes(graph: PolicyGraph, measurements: Measurements, labels: IntArray) -> list[GrowingBody]:
    """Return the hull of the differences over the edges of each component, in coordinates."""
    sizes = np.bincount(labels[labels >= 0])
    shapes = [build_origin(measurements.coordinates)] * len(sizes)
    # If only one component has several states it contains all edges, so the graph need not be restricted.
    if (sizes > 1).sum() == 1:
        shapes[int(np.argmax(sizes))] = _build_shape(graph, measurements)
        return shapes
    size = np.where(labels >= 0, sizes[labels], 0)
    small = (size > 1) & (size <= _MAX_PAIRWISE_STATES)
    if small.any():
        for edges in graph.restrict(small).edge_blocks():
            for component, block in _group_rows_by_label(edges, labels[edges[:, 0]]):
                shapes[component] = shapes[component].grow(measurements.differences(block))
    for component in np.flatnonzero(sizes > _MAX_PAIRWISE_STATES).tolist():
        shapes[component] = _build_shape(graph.restrict(labels == component), measurements)
    return shapes


def _build_shape(graph: PolicyGraph, measurements: Measurements) -> GrowingBody:
    return measurements.build_body(graph.hull(measurements))


def _group_rows_by_label(rows: IntArray, labels: IntArray) -> list[tuple[int, IntArray]]:
    """Return the rows of each label."""
    if not len(rows):
        return []
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    return list(zip(labels[order[starts]].tolist(), np.split(rows[order], starts[1:]), strict=True))


@dataclass(frozen=True)
class NoiseBodies:
    """The distinct noise bodies of the components of a graph.

    Parameters
    ----------
    bodies
        The distinct bodies.
    of_component
        ``(c,)``: the index of each component's body.
    """

    bodies: tuple[NoiseBody, ...]
    of_component: IntArray

    @classmethod
    def from_shapes(cls, measurements: Measurements, shapes: list[GrowingBody], body: Body) -> NoiseBodies:
        """Return the noise bodies of a type around hulls in coordinates."""
        numbers: dict[bytes, int] = {}
        bodies: list[NoiseBody] = []
        of_component = np.empty(len(shapes), dtype=np.int64)
        for component, shape in enumerate(shapes):
            # Equal hulls share a body. Other bodies depend on lengths only, so their vertices need not be computed.
            key = (shape.vertices if body == "hull" else shape.points).tobytes()
            if key not in numbers:
                numbers[key] = len(bodies)
                bodies.append(NoiseBody.from_hull(measurements, measurements.compute_hull(shape), body))
            of_component[component] = numbers[key]
        return cls(tuple(bodies), of_component)

    def compute_joint_hull(self, measurements: Measurements) -> tuple[SensitivityHull, SensitivityHull]:
        """Return the hull of all bodies, in coordinates and in the measurements' unit."""
        if len(self.bodies) == 1:
            return self.bodies[0].coordinate_hull, self.bodies[0].hull
        tips = np.concatenate([body.coordinate_hull.spanning for body in self.bodies])
        if measurements.dimension <= 2 or self.bodies[0].body is self.bodies[0].hull:
            largest = max(self.bodies, key=lambda body: (body.hull.dimension, body.hull.volume))
            # Often the largest body contains all others. Only exact membership may replace the joint hull: on a
            # lattice every comparison is between integers.
            if measurements.is_lattice and largest.coordinate_hull.contains(tips).all():
                return largest.coordinate_hull, largest.hull
        joint = SensitivityHull(tips)
        return joint, measurements.to_units(joint)


def compute_protection_degrees(
    measurements: Measurements, labels: IntArray, bodies: NoiseBodies, body: Body, membership: Membership
) -> IntArray:
    """Return the degree of protection of each state, ``(N,)``. 0 outside.

    It is the number of states in the state's component that the component's body, centred at the state, contains.
    """
    if not labels.max(initial=0) and len(bodies.bodies) == 1:
        shared_body = build_noise_body(measurements, bodies.bodies[0].coordinate_hull, body)
        return count_within(CoordinateBody(measurements, shared_body, membership), labels == 0)
    degrees = np.where(labels >= 0, 1, 0)
    sizes = np.bincount(labels[labels >= 0])

    def get_body(component: int) -> CoordinateBody:
        noise = bodies.bodies[int(bodies.of_component[component])]
        return CoordinateBody(measurements, build_noise_body(measurements, noise.coordinate_hull, body), membership)

    for component in np.flatnonzero(sizes > _MAX_PAIRWISE_STATES).tolist():
        within: BoolArray = labels == component
        np.copyto(degrees, count_within(get_body(component), within), where=within)
    is_small = (sizes > 1) & (sizes <= _MAX_PAIRWISE_STATES)
    # A label of -1 reads the last entry, which the second condition discards.
    states = np.flatnonzero(is_small[labels] & (labels >= 0)) if is_small.any() else np.zeros(0, dtype=np.int64)
    for component, members in _group_rows_by_label(states, labels[states]):
        points = measurements.coordinates[members]
        pairs = (points[:, None] - points[None]).reshape(-1, measurements.dimension)
        degrees[members] = get_body(component).contains(pairs).reshape(len(members), -1).sum(axis=1)
    return degrees


def find_exposed_states(graph: PolicyGraph, labels: IntArray) -> IntArray:
    """Return the exposed states of a graph: those that are isolated and not open."""
    sizes = np.bincount(labels[labels >= 0])
    is_exposed = (labels >= 0) & ~graph.open
    is_exposed[is_exposed] = sizes[labels[is_exposed]] == 1
    return np.flatnonzero(is_exposed)


def condition_prior(prior: npt.ArrayLike | None, possible: BoolArray) -> FloatArray:
    """Return a prior ``(N,)`` conditioned on the possible states. Uniform if None.

    Raises
    ------
    StochasticError
        If the prior is not an array ``(N,)`` of finite, non-negative numbers, or is zero on all possible states.
    """
    if prior is None:
        return np.asarray(possible / possible.sum())
    probabilities = as_floats(prior, "the prior", StochasticError)
    if probabilities.shape != possible.shape or not ((probabilities >= 0) & (probabilities < np.inf)).all():
        raise StochasticError(
            f"prior must be {len(possible)} probabilities, one for each state, got shape {probabilities.shape} or one "
            "out of range"
        )
    within = np.where(possible, probabilities, 0.0)
    if not within.sum() > 0:
        raise StochasticError("prior must have a positive probability for at least one possible state")
    return np.asarray(within / within.sum())
