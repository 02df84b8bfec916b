"""Bodies of noise that differ by connected component: hulls, degrees of protection, and who is exposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_floats
from dphmm.errors import StochasticError
from dphmm.geometry.hull import Body, CrossPolytope, Disc, Membership, SensitivityHull
from dphmm.geometry.incremental_hull import GrowingBody, origin
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.policy.graph import PolicyGraph

Calibration = Literal["graph", "component"]
"""What noise is measured for: one hull for the whole constrained graph, or one for each of its connected components."""

_SMALL = 48
"""Components of up to this number of states are looked at pair by pair."""


@dataclass(frozen=True)
class NoiseBody:
    """What the noise of some components is drawn from.

    Parameters
    ----------
    coordinate_hull, hull
        The sensitivity hull, in the measurements' coordinates and in their unit.
    body
        The hull itself, or the least cross-polytope or disc that holds it; in the unit of the measurements.
    """

    coordinate_hull: SensitivityHull
    hull: SensitivityHull
    body: SensitivityHull | Disc

    @classmethod
    def around(cls, measurements: Measurements, coordinate_hull: SensitivityHull, body: Body) -> NoiseBody:
        """The body of a kind around a hull in coordinates."""
        hull, around = measurements.to_units(coordinate_hull), noise_body(measurements, coordinate_hull, body)
        return cls(coordinate_hull, hull, hull if around is coordinate_hull else in_units(measurements, around))


def noise_body(measurements: Measurements, hull: SensitivityHull, body: Body) -> SensitivityHull | Disc:
    """The body that noise is drawn from around a hull in coordinates.

    In coordinates as well, except that a disc is in the unit of the measurements.
    """
    if body == "hull" or hull.dimension == 0:
        return hull
    if body == "disc":
        return Disc(float(measurements.lengths(hull.spanning).max()), measurements.dimension)
    steps = measurements.spacing
    # The largest length is attained by a difference, so that the facets of the hull are not needed.
    tips = hull.spanning
    if np.ptp(steps) <= 1e-12 * steps.max():
        radii = np.full(len(steps), np.abs(tips).sum(axis=1).max())
    else:
        radii = float(np.abs(tips * steps).sum(axis=1).max()) / steps
    return CrossPolytope(radii) if len(steps) > 2 else SensitivityHull(np.diag(radii))


def in_units(measurements: Measurements, body: SensitivityHull | Disc) -> SensitivityHull | Disc:
    """What `noise_body` gives, in the unit of the measurements."""
    return body if isinstance(body, Disc) else measurements.to_units(body)


def labels_of(graph: PolicyGraph, calibration: Calibration) -> IntArray:
    """What shares a body of noise in a constrained graph, ``(N,)``: -1 outside, otherwise counted from 0.

    Connected components; or all states that are not open, and each open one by itself.
    """
    if calibration == "component":
        return graph.components()
    labels = np.where(graph.node_mask, 0, -1)
    states = np.flatnonzero(graph.open)
    rest = int((graph.node_mask & ~graph.open).any())
    labels[states] = rest + np.arange(len(states))
    return labels


def shapes_of(graph: PolicyGraph, measurements: Measurements, labels: IntArray) -> list[GrowingBody]:
    """The hull of the differences over the edges of each component, in coordinates."""
    sizes = np.bincount(labels[labels >= 0])
    shapes = [origin(measurements.coordinates)] * len(sizes)
    if (sizes > 1).sum() == 1:
        shapes[int(np.argmax(sizes))] = _hull(graph, measurements)
        return shapes
    size = np.where(labels >= 0, sizes[labels], 0)
    small = (size > 1) & (size <= _SMALL)
    if small.any():
        for edges in graph.restrict(small).edge_blocks():
            for component, block in _by_label(edges, labels[edges[:, 0]]):
                shapes[component] = shapes[component].grow(measurements.differences(block))
    for component in np.flatnonzero(sizes > _SMALL).tolist():
        shapes[component] = _hull(graph.restrict(labels == component), measurements)
    return shapes


def _hull(graph: PolicyGraph, measurements: Measurements) -> GrowingBody:
    return measurements.body_of(graph.hull(measurements))


def _by_label(rows: IntArray, labels: IntArray) -> list[tuple[int, IntArray]]:
    """The rows of each label."""
    if not len(rows):
        return []
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    return list(zip(labels[order[starts]].tolist(), np.split(rows[order], starts[1:]), strict=True))


@dataclass(frozen=True)
class NoiseBodies:
    """The different bodies of noise of some components.

    Parameters
    ----------
    bodies
        Each different body once.
    of_component
        ``(c,)``: which of them each component has.
    """

    bodies: tuple[NoiseBody, ...]
    of_component: IntArray

    @classmethod
    def around(cls, measurements: Measurements, shapes: list[GrowingBody], body: Body) -> NoiseBodies:
        """The bodies of a kind around hulls in coordinates."""
        numbers: dict[bytes, int] = {}
        bodies: list[NoiseBody] = []
        which = np.empty(len(shapes), dtype=np.int64)
        for component, shape in enumerate(shapes):
            # Equal hulls share a body. Other bodies depend on lengths alone, and their hulls need not be known.
            key = (shape.vertices if body == "hull" else shape.points).tobytes()
            if key not in numbers:
                numbers[key] = len(bodies)
                bodies.append(NoiseBody.around(measurements, measurements.hull_of(shape), body))
            which[component] = numbers[key]
        return cls(tuple(bodies), which)

    def all_held(self, measurements: Measurements) -> tuple[SensitivityHull, SensitivityHull]:
        """The hull of all of them, in coordinates and in the measurements' unit: often one of them holds the others."""
        if len(self.bodies) == 1:
            return self.bodies[0].coordinate_hull, self.bodies[0].hull
        tips = np.concatenate([one.coordinate_hull.spanning for one in self.bodies])
        if measurements.dimension <= 2 or self.bodies[0].body is self.bodies[0].hull:
            largest = max(self.bodies, key=lambda one: (one.hull.dimension, one.hull.volume))
            if measurements.is_lattice and largest.coordinate_hull.contains(tips).all():
                return largest.coordinate_hull, largest.hull
        everything = SensitivityHull(tips)
        return everything, measurements.to_units(everything)


def degrees_within(
    measurements: Measurements, labels: IntArray, bodies: NoiseBodies, body: Body, membership: Membership
) -> IntArray:
    """How many states of its own component lie within the component's body about each state, ``(N,)``; 0 outside."""
    if not labels.max(initial=0) and len(bodies.bodies) == 1:
        found = noise_body(measurements, bodies.bodies[0].coordinate_hull, body)
        return count_within(CoordinateBody(measurements, found, membership), labels == 0)
    degrees = np.where(labels >= 0, 1, 0)
    sizes = np.bincount(labels[labels >= 0])

    def body_of(component: int) -> CoordinateBody:
        own = bodies.bodies[int(bodies.of_component[component])]
        return CoordinateBody(measurements, noise_body(measurements, own.coordinate_hull, body), membership)

    for component in np.flatnonzero(sizes > _SMALL).tolist():
        within: BoolArray = labels == component
        np.copyto(degrees, count_within(body_of(component), within), where=within)
    few = (sizes > 1) & (sizes <= _SMALL)
    states = np.flatnonzero(few[labels] & (labels >= 0)) if few.any() else np.zeros(0, dtype=np.int64)
    for component, members in _by_label(states, labels[states]):
        points = measurements.coordinates[members]
        pairs = (points[:, None] - points[None]).reshape(-1, measurements.dimension)
        degrees[members] = body_of(component).contains(pairs).reshape(len(members), -1).sum(axis=1)
    return degrees


def exposed_among(graph: PolicyGraph, labels: IntArray) -> IntArray:
    """The states of a constrained graph that are alone in their component and not open."""
    sizes = np.bincount(labels[labels >= 0])
    alone = (labels >= 0) & ~graph.open
    alone[alone] = sizes[labels[alone]] == 1
    return np.flatnonzero(alone)


def prior_over(prior: npt.ArrayLike | None, possible: BoolArray) -> FloatArray:
    """Probabilities ``(N,)`` of the possible states that sum to one: a prior's, or equal ones; zero elsewhere.

    Raises
    ------
    StochasticError
        When the prior is no array ``(N,)`` of numbers that are finite and not negative, or has nothing on them.
    """
    if prior is None:
        return np.asarray(possible / possible.sum())
    given = as_floats(prior, "the prior", StochasticError)
    if given.shape != possible.shape or not ((given >= 0) & (given < np.inf)).all():
        raise StochasticError(
            f"the prior has shape {given.shape}; give a probability for each of {len(possible)} states"
        )
    within = np.where(possible, given, 0.0)
    if not within.sum() > 0:
        raise StochasticError("the prior holds no possible state; give positive probabilities to some")
    return np.asarray(within / within.sum())
