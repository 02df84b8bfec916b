"""Degrees of protection, exposed states, and the protection after a repair."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, IntArray, as_constraint
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.geometry.sensitivity_hull import Body, Disc, Membership, SensitivityHull
from dphmm.policy.component_bodies import (
    NoiseBodies,
    NoiseBody,
    NoiseScope,
    build_noise_body,
    build_shapes,
    compute_protection_degrees,
    label_components,
)
from dphmm.policy.graph import PolicyGraph, PolicyLike, convert_policy_and_measurements
from dphmm.policy.repair_effect import RepairEffect
from dphmm.validation import check_arguments


@dataclass(frozen=True)
class Protection:
    """A protectable graph, under which no possible state is exposed, and its noise bodies.

    Parameters
    ----------
    graph
        The constrained graph with the added edges: the repaired graph (in the papers' term, the protectable graph).
    hull
        The sensitivity hull of `graph`, in the unit of the measurements.
    added
        The edges ``(i, j)``, ``i < j``, that the repair added. Empty if no state was exposed.
    is_optimal
        Whether the repair is proven to minimise the objective among all repairs with one partner for every exposed
        state.
    objective_value
        The value of the objective: the volume of the body, or its squared error at epsilon one. With several bodies it
        is the mean over the possible states, weighted by their prior probability.
    lower_bound
        A proven lower bound of the objective. It equals `objective_value` if the repair is optimal; see
        `optimality_gap`.
    degrees
        The degree of protection of every state, ``(N,)``, after the repair; 0 outside the constraint set.
    body
        The noise body, in the unit of the measurements: `hull` itself, or the smallest cross-polytope or disc that
        contains it.
    coordinate_hull
        The hull in the measurements' coordinates, which are integers on a lattice.
    diameter
        ``max ‖f_j - f_k‖`` in the body's norm over pairs of possible states: the factor of Theorem 6.3. Infinite if
        components have separate noise bodies, because a release may reveal the component of a state.
    components
        ``(N,)``: the component of each possible state, counted from 0, -1 outside; 0 for all states if one body serves
        all. An open state is a separate component.
    parts
        The distinct noise bodies, each for one or several components. If there are several, `hull` and `body` are those
        of the whole repaired graph, and are not used for noise.
    part_of
        ``(N,)``: the index of the part of each possible state, -1 outside.
    is_shared
        Whether one body serves all possible states. All of them then count as protected by each other.
    effect
        The effect of the added edges on the error of releases. None if no state was exposed, or every state was.
    """

    graph: PolicyGraph
    hull: SensitivityHull
    added: tuple[tuple[int, int], ...]
    is_optimal: bool
    objective_value: float
    lower_bound: float
    degrees: IntArray = field(repr=False)
    body: SensitivityHull | Disc
    coordinate_hull: SensitivityHull = field(repr=False)
    diameter: float
    components: IntArray = field(repr=False)
    parts: tuple[NoiseBody, ...] = field(repr=False)
    part_of: IntArray = field(repr=False)
    is_shared: bool = False
    effect: RepairEffect | None = field(default=None, repr=False)

    @property
    def open(self) -> BoolArray:
        """The possible states that are released unchanged, ``(N,)``."""
        return self.graph.open

    @property
    def optimality_gap(self) -> float:
        """The relative gap ``(objective_value - lower_bound) / objective_value``, 0 if optimal."""
        return (
            0.0
            if self.is_optimal or self.objective_value == 0
            else (self.objective_value - self.lower_bound) / self.objective_value
        )


@check_arguments
def degree_of_protection(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    body: Body = "hull",
    membership: Membership = "halfspace",
    noise_scope: NoiseScope = "graph",
) -> IntArray:
    """Compute the degree of protection of each state (Definition 5.2).

    It is the number of possible states from which a state is indistinguishable, itself included.

    Parameters
    ----------
    graph, f
        The policy over ``N`` states, a `PolicyGraph` or a `networkx.Graph` (see `PolicyGraph.from_networkx`), and the
        measurements of the states, ``(N, d)``.
    constraint
        ``(N,)`` booleans: the possible states. Defaults to all.
    body
        The noise body: the hull (K-norm, planar isotropic), the smallest cross-polytope (Laplace) or the smallest disc
        (planar Laplace) that contains it. A state may be exposed under one and protected under another.
    membership
        How membership in a hull is decided: by half-spaces, or by the quadratic program of Equation (6).
    noise_scope
        Whether one body serves the whole graph (``"graph"``), or each connected component has its own
        (``"component"``). In the latter case only states of the same component count.

    Returns
    -------
    ndarray of int, shape (N,)
        At least 1 for a possible state (1 means exposed, or open), 0 outside the constraint set. Other states with the
        same measurement count; open states never do. Exact if the measurements lie on a lattice and the body is the
        hull.
    """
    policy, measurements = convert_policy_and_measurements(graph, f)
    possible = as_constraint(constraint, policy.size)
    restricted = policy.restrict(possible)
    if noise_scope == "component" or restricted.has_open:
        labels = label_components(restricted, noise_scope)
        bodies = NoiseBodies.from_shapes(measurements, build_shapes(restricted, measurements, labels), body)
        return compute_protection_degrees(measurements, labels, bodies, body, membership)
    hull = restricted.hull(measurements)
    return count_within(
        CoordinateBody(measurements, build_noise_body(measurements, hull, body), membership), restricted.node_mask
    )


@check_arguments
def exposed_states(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    body: Body = "hull",
    membership: Membership = "halfspace",
    noise_scope: NoiseScope = "graph",
) -> IntArray:
    """Find the exposed states: possible and not open, with a degree of protection of 1.

    With ``noise_scope="component"`` these are the isolated states. The hulls of other components do not protect them.

    Parameters
    ----------
    graph, f, constraint, body, membership, noise_scope
        See `degree_of_protection`.

    Returns
    -------
    IntArray
        ``(k,)``: the exposed states, ascending.
    """
    policy, measurements = convert_policy_and_measurements(graph, f)
    degrees = degree_of_protection(policy, measurements, constraint, body, membership, noise_scope)
    return np.flatnonzero((degrees == 1) & ~policy.open)
