"""Effect of a repair on the error of releases.

Noise covers the longest differences of a graph. One added edge can therefore raise the error of every possible state,
not only of the exposed state that it protects.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.sensitivity_hull import Body, SensitivityHull
from dphmm.policy.component_bodies import NoiseBodies, NoiseBody
from dphmm.policy.graph import PolicyGraph

# A repair that raises the error of the states that were not exposed by more than this share is announced.
MAX_ERROR_INCREASE = 0.1

# The longest edges are compared; each needs one more hull.
_NUM_COMPARED_EDGES = 32


@dataclass(frozen=True, eq=False)
class RepairEffect:
    """Effect of the edges that a repair added.

    The error is the root mean square distance of a release from the measurement to which noise is added, at epsilon
    one, averaged over the possible states that were not exposed. With noise by component they are weighted by their
    prior probability. The mechanism is the K-norm mechanism of the noise body.

    Parameters
    ----------
    measurements
        The measurements of the states.
    graph
        The constrained graph before the repair.
    body
        The type of the noise body.
    unrepaired
        The sensitivity hull without the added edges, in coordinates.
    added
        The added edges, at least one.
    exposed
        The states that were exposed, at least one and not all.
    error_without, error
        The error without and with the added edges, in the unit of the measurements.
    """

    measurements: Measurements = field(repr=False)
    graph: PolicyGraph = field(repr=False)
    body: Body
    unrepaired: SensitivityHull = field(repr=False)
    added: tuple[tuple[int, int], ...]
    exposed: IntArray = field(repr=False)
    error_without: float
    error: float

    @classmethod
    def from_shared_body(
        cls,
        measurements: Measurements,
        graph: PolicyGraph,
        body: Body,
        unrepaired: SensitivityHull,
        repaired: SensitivityHull,
        added: tuple[tuple[int, int], ...],
        exposed: IntArray,
    ) -> RepairEffect:
        """Return the effect if one body serves all states, around a hull in coordinates."""
        before, after = (
            sqrt(NoiseBody.from_hull(measurements, hull, body).body.squared_error) for hull in (unrepaired, repaired)
        )
        return cls(measurements, graph, body, unrepaired, added, exposed, before, after)

    @classmethod
    def from_components(
        cls,
        measurements: Measurements,
        graph: PolicyGraph,
        body: Body,
        unrepaired: tuple[NoiseBodies, IntArray],
        repaired: tuple[NoiseBodies, IntArray],
        prior: FloatArray,
        added: tuple[tuple[int, int], ...],
        exposed: IntArray,
    ) -> RepairEffect:
        """Return the effect from the bodies of components and the component of each state."""
        hull = unrepaired[0].compute_joint_hull(measurements)[0]
        weights = np.where(repaired[1] >= 0, prior, 0.0)
        weights[exposed] = 0.0
        if not weights.any():
            weights = (repaired[1] >= 0).astype(np.float64)
            weights[exposed] = 0.0
        before, after = (_compute_rms_error(bodies, labels, weights) for bodies, labels in (unrepaired, repaired))
        return cls(measurements, graph, body, hull, added, exposed, before, after)

    @property
    def ratio(self) -> float:
        """The error with the added edges, divided by the error without them."""
        if self.error_without == 0:
            return inf if self.error > 0 else 1.0
        return self.error / self.error_without

    @property
    def is_large(self) -> bool:
        """Whether the repair raises the error by more than `MAX_ERROR_INCREASE`."""
        return self.ratio > 1.0 + MAX_ERROR_INCREASE

    @cached_property
    def edge(self) -> tuple[int, int]:
        """The added edge that raises the error most, as an exposed state and its partner."""
        edges = np.array(self.added)
        differences = self.measurements.differences(edges)
        longest = np.argsort(-self.measurements.lengths(differences), kind="stable")[:_NUM_COMPARED_EDGES]
        shape = self.measurements.build_body(self.unrepaired)
        errors = [
            NoiseBody.from_hull(
                self.measurements, self.measurements.compute_hull(shape.grow(differences[[row]])), self.body
            ).body.squared_error
            for row in longest
        ]
        first, second = edges[longest[int(np.argmax(errors))]].tolist()
        return (first, second) if first in self.exposed else (second, first)

    @property
    def edge_length(self) -> float:
        """The distance between the two states of `edge`, in the unit of the measurements."""
        return float(self.measurements.lengths(self.measurements.differences(np.array([self.edge])))[0])


def _compute_rms_error(bodies: NoiseBodies, labels: IntArray, weights: FloatArray) -> float:
    """Return the root of the mean squared error at epsilon one over weighted states."""
    squared = np.array([part.body.squared_error for part in bodies.bodies])
    states = np.flatnonzero(weights > 0)
    return sqrt(float(np.average(squared[bodies.of_component[labels[states]]], weights=weights[states])))


class RepairLog:
    """The repair with the largest effect among all plans of an engine. Public."""

    def __init__(self) -> None:
        self.worst: RepairEffect | None = None

    def add(self, effect: RepairEffect | None) -> None:
        """Keep an effect if it is large, and larger than the largest one so far."""
        if effect is not None and effect.is_large and (self.worst is None or effect.ratio > self.worst.ratio):
            self.worst = effect
