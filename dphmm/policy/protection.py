"""Degrees of protection, exposed states, and the repair to a protectable graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, copy_read_only, make_read_only
from dphmm.errors import PolicyError, SingletonConstraintError
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.geometry.sensitivity_hull import Body, Disc, Membership, SensitivityHull
from dphmm.policy.branch_and_bound import UNITS_PER_MAX_WORK, Repair
from dphmm.policy.component_bodies import (
    NoiseBodies,
    NoiseBody,
    NoiseScope,
    build_noise_body,
    build_shapes,
    compute_protection_degrees,
    condition_prior,
    convert_to_units,
    find_exposed_states,
    label_components,
)
from dphmm.policy.component_repair import ComponentRepairProblem, merge_exactly, merge_nearest, merge_sequentially
from dphmm.policy.graph import PolicyGraph, PolicyLike, convert_policy_and_measurements
from dphmm.policy.repair import HullProblem, list_candidates
from dphmm.policy.repair_effect import RepairEffect
from dphmm.policy.repair_objective import Objective, build_noise_cost
from dphmm.validation import NonNegativeInt, check_arguments

# The repair method: Algorithm 1, Algorithm 3, or joint optimisation.
Method = Literal["greedy", "sequential", "exact"]


# A release waits for its plan, at most five seconds. Nearly all instances of the benchmark end within half a second.
# The default work limit of the exact repair. 1000 is about one second on a processor of 2020.
REPAIR_MAX_WORK = 5_000


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


@check_arguments
def protect(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    method: Method = "exact",
    objective: Objective = "error",
    body: Body = "hull",
    membership: Membership = "halfspace",
    repair_max_work: NonNegativeInt = REPAIR_MAX_WORK,
    noise_scope: NoiseScope = "graph",
    prior: npt.ArrayLike | None = None,
) -> Protection:
    """Add edges to the constrained graph until no possible state is exposed.

    States outside the constraint set are not protected themselves. A release replaces such a state by its surrogate,
    the nearest possible state.

    Parameters
    ----------
    graph, f, constraint, body, membership
        See `degree_of_protection`.
    method
        ``"greedy"`` is Algorithm 1 (nearest other state). ``"sequential"`` is Algorithm 3 (exposed states in turn are
        connected to the partner with the smallest volume). ``"exact"`` chooses one partner for every exposed state
        jointly; erratum: Algorithm 3 does so for a single exposed state only. If one cross-polytope or disc serves
        the whole graph, the nearest partners in its norm are jointly optimal, and every method uses them.
    objective
        The objective of the exact method and of `Protection.objective_value`: ``"error"``, the expected squared error
        of a release, or ``"volume"``, the objective of the paper, which can have a much larger error. The error is not
        a monotone function of the hull: more edges than one for each exposed state might reduce it further. Such
        repairs are not searched.
    repair_max_work
        The work limit of the exact method's search. 1000 is about one second on a processor of 2020, in addition to the
        time for checking every pair of an exposed and a possible state once. Work is counted, not timed, so the same
        graph gets the same repair everywhere. If the limit is reached, `Protection.is_optimal` is false and
        `Protection.optimality_gap` bounds the distance from the optimum.
    noise_scope
        Whether one noise body serves the whole graph (``"graph"``), or each connected component has its own
        (``"component"``). In the latter case an added edge merges two components, and the objective is the mean over
        the possible states: ``sum of p(s) E|z - f(s)|²`` at epsilon one. ``"greedy"`` uses the nearest partners,
        ``"sequential"`` those with the smallest added cost, in turn.
    prior
        With ``"component"``: ``(N,)``, the probability of each state, which is conditioned on the possible ones.
        Defaults to a uniform prior.

    Returns
    -------
    Protection
        The repaired graph, its noise bodies, and the added edges.

    Raises
    ------
    SingletonConstraintError
        If only one state is possible, and it is not open.
    StochasticError
        If the prior is not a distribution over the states, or is zero on all possible ones.
    InvalidInputError
        If the method, the objective or the body is unknown, or the limit is not a non-negative integer.

    Examples
    --------
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> graph = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    >>> repaired = protect(graph, f, [False, False, True, True, True, True])
    >>> repaired.added, round(repaired.hull.squared_error, 9), repaired.is_optimal
    (((2, 4),), 47.0, True)
    >>> protect(graph, f, [False, False, True, True, True, True], objective="volume").hull.volume
    14.0
    """
    policy, measurements = convert_policy_and_measurements(graph, f)
    protector = Protector(measurements, method, objective, body, membership, repair_max_work, noise_scope)
    return protector(policy, as_constraint(constraint, policy.size), prior)


@dataclass(frozen=True)
class Protector:
    """Validated arguments of `protect`, reusable across constraint sets."""

    measurements: Measurements
    method: Method
    objective: Objective
    body: Body
    membership: Membership
    repair_max_work: int
    noise_scope: NoiseScope

    def __call__(self, graph: PolicyGraph, possible: BoolArray, prior: npt.ArrayLike | None = None) -> Protection:
        """Repair a policy for the possible states ``(N,)`` and a prior. See `protect`."""
        restricted = graph.restrict(possible)
        has_open = restricted.has_open
        if not has_open and np.count_nonzero(possible) < 2:
            state = int(np.argmax(possible))
            raise SingletonConstraintError(
                f"state {state} is the only state of the constraint set, so no noise can protect it: set "
                "allow_singleton = true to release it"
            )
        if self.noise_scope == "component":
            return self.repair_by_component(restricted, condition_prior(prior, possible))
        return self.repair_with_open_states(restricted) if has_open else self.repair_with_shared_body(restricted)

    def repair_with_shared_body(self, restricted: PolicyGraph) -> Protection:
        """Repair a graph without open states, with one noise body for all possible states."""
        possible = restricted.node_mask
        hull = restricted.hull(self.measurements)
        noise = CoordinateBody(self.measurements, build_noise_body(self.measurements, hull, self.body), self.membership)
        if covers_all := restricted.is_complete and self.membership == "halfspace":
            # Complete graph: the hull contains all pairwise differences, and each body contains the hull.
            degrees = possible * np.count_nonzero(possible)
        else:
            degrees = count_within(noise, possible)
        # Definition 5.2 with the noise body: a state is exposed if and only if its degree is 1.
        exposed = (degrees == 1).nonzero()[0]
        candidates, complete = list_candidates(self.measurements, exposed, possible)
        cost = build_noise_cost(self.measurements.spacing, self.body, self.objective)
        problem = HullProblem(self.measurements.build_body(hull), candidates, cost, complete)
        if self.body != "hull" or self.method == "greedy":
            repair = problem.repair_greedily()
        elif self.method == "sequential":
            repair = problem.repair_sequentially()
        else:
            repair = problem.repair_exactly(self.repair_max_work * UNITS_PER_MAX_WORK)
        effect = None
        if len(exposed):
            repaired_hull = self.measurements.compute_hull(repair.shape)
            if len(exposed) < np.count_nonzero(possible):
                effect = RepairEffect.from_shared_body(
                    self.measurements, restricted, self.body, hull, repaired_hull, repair.added, exposed
                )
            restricted = restricted.with_edges(repair.added)
            hull = repaired_hull
            noise = CoordinateBody(
                self.measurements, build_noise_body(self.measurements, hull, self.body), self.membership
            )
            degrees = count_within(noise, possible)
            self._check_none_exposed(degrees, restricted)
        # The factor of Theorem 6.3. Vertices of the hull are differences of norm one, the largest norm of any
        # difference.
        if covers_all and self.body == "hull":
            diameter = 1.0 if hull.dimension else 0.0
        else:
            diameter = noise.diameter(possible)
        part = NoiseBody.from_hull(self.measurements, hull, self.body)
        chosen: Repair = repair
        if self.body != "hull":
            # Nearest partners in the ball's norm are optimal: each state needs this radius, and the largest suffices
            # for all.
            value: float = part.body.volume if self.objective == "volume" else part.body.squared_error
            chosen = Repair(repair.added, value, value)
        return _build_single_body_protection(restricted, part, degrees, diameter, chosen, effect)

    def build_noiseless_protection(self, restricted: PolicyGraph) -> Protection:
        """Return a protection without noise, for unchanged singletons and withheld timesteps.

        The degree of protection of every possible state is the number of possible states: the release, or its absence,
        is the same for all of them.
        """
        point = SensitivityHull(np.zeros((0, self.measurements.dimension)))
        degrees = restricted.node_mask * np.count_nonzero(restricted.node_mask)
        return _build_single_body_protection(
            restricted, NoiseBody(point, point, point), degrees, 0.0, Repair((), 0.0, 0.0)
        )

    def repair_with_open_states(self, restricted: PolicyGraph) -> Protection:
        """Repair a graph with open states, with one noise body for all other possible states.

        If only one state is not open, it is connected to an open state.
        """
        protected = restricted.node_mask & ~restricted.open
        # A single state has no partner among protected ones. It is connected to an open one, in a separate component.
        if int(protected.sum()) < 2:
            return self.repair_by_component(restricted, condition_prior(None, restricted.node_mask))
        protection = self.repair_with_shared_body(restricted.restrict(protected))
        graph = restricted.with_edges(protection.added)
        labels = label_components(graph, "graph")
        point = SensitivityHull(np.zeros((0, self.measurements.dimension)))
        return replace(
            protection,
            graph=graph,
            degrees=copy_read_only(np.where(graph.open, 1, protection.degrees)),
            diameter=inf,
            components=copy_read_only(labels),
            parts=(protection.parts[0], NoiseBody(point, point, point)),
            part_of=copy_read_only(np.where(labels < 0, -1, np.where(graph.open, 1, 0))),
            is_shared=False,
        )

    def repair_by_component(self, restricted: PolicyGraph, prior: FloatArray) -> Protection:
        """Repair a graph with a noise body for each connected component."""
        measurements = self.measurements
        labels = label_components(restricted, "component")
        shapes = build_shapes(restricted, measurements, labels)
        exposed = find_exposed_states(restricted, labels)
        weights = np.bincount(labels[restricted.node_mask], prior[restricted.node_mask], len(shapes)).astype(np.float64)
        cost = build_noise_cost(measurements.spacing, self.body, self.objective)
        limit = self.repair_max_work * UNITS_PER_MAX_WORK
        problem = ComponentRepairProblem(cost, measurements.coordinates, labels, shapes, weights, exposed, limit)
        repair = _MERGE_METHODS[self.method](problem)
        unrepaired = (restricted, labels, shapes)
        if repair.added:
            restricted = restricted.with_edges(repair.added)
            labels = label_components(restricted, "component")
            shapes = problem.build_repaired_shapes(repair.added, labels)
        bodies = NoiseBodies.from_shapes(measurements, shapes, self.body)
        effect = None
        if 0 < len(exposed) < np.count_nonzero(restricted.node_mask & ~restricted.open):
            graph, unrepaired_labels, unrepaired_shapes = unrepaired
            effect = RepairEffect.from_components(
                measurements,
                graph,
                self.body,
                (NoiseBodies.from_shapes(measurements, unrepaired_shapes, self.body), unrepaired_labels),
                (bodies, labels),
                prior,
                repair.added,
                exposed,
            )
        degrees = compute_protection_degrees(measurements, labels, bodies, self.body, self.membership)
        self._check_none_exposed(degrees, restricted)
        joint, units = bodies.compute_joint_hull(measurements)
        around = build_noise_body(measurements, joint, self.body)
        # Noise that differs by component can reveal the component of a state, so no factor bounds all pairs.
        diameter = inf
        if len(shapes) == 1:
            diameter = CoordinateBody(measurements, around, self.membership).diameter(restricted.node_mask)
        return Protection(
            graph=restricted,
            hull=units,
            added=repair.added,
            is_optimal=repair.is_optimal,
            objective_value=repair.value,
            lower_bound=repair.bound,
            degrees=copy_read_only(degrees),
            body=units if around is joint else convert_to_units(measurements, around),
            coordinate_hull=joint,
            diameter=diameter,
            components=copy_read_only(labels),
            parts=bodies.bodies,
            part_of=copy_read_only(np.where(labels < 0, -1, bodies.of_component[labels])),
            effect=effect,
        )

    def _check_none_exposed(self, degrees: IntArray, graph: PolicyGraph) -> None:
        # The differences of edges are on the boundary, and the quadratic program of Equation (6) has its own tolerance.
        has_degree_one = degrees == 1
        if not has_degree_one.any():
            return
        exposed = np.flatnonzero(has_degree_one & ~graph.open)
        if len(exposed):
            raise PolicyError(
                f"state {int(exposed[0])} is still exposed after the repair: its partner is on the boundary, within "
                f"the tolerance of membership {self.membership!r}. Use membership 'halfspace'"
            )


def _build_single_body_protection(
    graph: PolicyGraph,
    part: NoiseBody,
    degrees: IntArray,
    diameter: float,
    repair: Repair,
    effect: RepairEffect | None = None,
) -> Protection:
    """Return the protection with one noise body for all possible states."""
    components = make_read_only(np.where(graph.node_mask, 0, -1))
    return Protection(
        graph=graph,
        hull=part.hull,
        added=repair.added,
        is_optimal=repair.is_optimal,
        objective_value=repair.value,
        lower_bound=repair.bound,
        degrees=make_read_only(degrees),
        body=part.body,
        coordinate_hull=part.coordinate_hull,
        diameter=diameter,
        components=components,
        parts=(part,),
        part_of=components,
        is_shared=True,
        effect=effect,
    )


_MERGE_METHODS: Mapping[Method, Callable[[ComponentRepairProblem], Repair]] = {
    "greedy": merge_nearest,
    "sequential": merge_sequentially,
    "exact": merge_exactly,
}
