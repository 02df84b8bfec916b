"""Degrees of protection, exposed states, and the repair that leaves none exposed: the protectable graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, frozen, locked
from dphmm.errors import AlreadyKnownError, InvalidInputError, PolicyError
from dphmm.geometry.hull import Body, Disc, Membership, SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.policy.by_component import (
    Calibration,
    NoiseBodies,
    NoiseBody,
    degrees_within,
    exposed_among,
    in_units,
    labels_of,
    noise_body,
    prior_over,
    shapes_of,
)
from dphmm.policy.component_repair import Costs, Merged, MergingProblem, best_merging, merging_in_turn, nearest_merging
from dphmm.policy.graph import PolicyGraph, PolicyLike, over_measurements
from dphmm.policy.hull_repair import Objective, Repair, RepairProblem, candidates_of
from dphmm.tables.values import shorten

Method = Literal["greedy", "sequential", "exact"]
"""How exposed states get partners: Algorithm 1, Algorithm 3, or jointly and exactly."""

_METHODS, _OBJECTIVES, _BODIES, _CALIBRATIONS = map(get_args, (Method, Objective, Body, Calibration))

REPAIR_LIMIT = 5_000
"""How much work the exact repair's search may do: about a second per thousand on a processor of 2020."""


@dataclass(frozen=True)
class Protection:
    """The protectable graph, under which no possible state is exposed, and the body that noise is drawn from.

    Parameters
    ----------
    graph
        The constrained graph with the added edges: the repaired or, in the papers' word, protectable graph.
    hull
        The sensitivity hull of `graph`, in the unit of the measurements.
    added
        The edges ``(i, j)``, ``i < j``, that the repair added; empty where nothing was exposed.
    certified
        Whether the repair is proven to be of least `value` among all that give every exposed state one partner.
    value
        The objective reached: the body's area (volume), or its squared error at epsilon one. Of several bodies the
        mean over the possible states, by their prior probability.
    bound
        A proven lower bound of the objective. Equal to `value` where certified; otherwise `gap` says how far off.
    degrees
        The degree of protection of every state, ``(N,)``, after the repair; 0 outside the constraint.
    body
        What the noise is drawn from, in the unit of the measurements: `hull` itself, or the least cross-polytope or
        disc that holds it.
    coordinate_hull
        The hull in the measurements' coordinates: integers on a lattice.
    diameter
        ``max ‖f_j - f_k‖`` in the body's norm over pairs of possible states: the factor of Theorem 6.3. Infinite where
        there are several components with noise of their own: which one a state is in, a release may tell.
    components
        ``(N,)``: the component of each possible state, counted from 0, -1 outside; 0 for all where one body serves
        all. An open state is a component of its own.
    parts
        The different bodies of noise, each for some components. Where there are several, `hull` is that of the whole
        repaired graph and `body` the one around it, which no noise is drawn from.
    part_of
        ``(N,)``: which of the parts each possible state has, -1 outside.
    is_shared
        Whether one body was to serve all possible states, so that a state counts as hidden among all of them.
    """

    graph: PolicyGraph
    hull: SensitivityHull
    added: tuple[tuple[int, int], ...]
    certified: bool
    value: float
    bound: float
    degrees: IntArray = field(repr=False)
    body: SensitivityHull | Disc
    coordinate_hull: SensitivityHull = field(repr=False)
    diameter: float
    components: IntArray = field(repr=False)
    parts: tuple[NoiseBody, ...] = field(repr=False)
    part_of: IntArray = field(repr=False)
    is_shared: bool = False

    @property
    def open(self) -> BoolArray:
        """Which possible states are released as they are, ``(N,)``."""
        return self.graph.open

    @property
    def gap(self) -> float:
        """How much of `value` is not proven necessary: ``(value - bound) / value``, 0 where certified."""
        return 0.0 if self.certified or self.value == 0 else (self.value - self.bound) / self.value


@checked
def degree_of_protection(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    body: Body = "hull",
    membership: Membership = "halfspace",
    calibration: Calibration = "graph",
) -> IntArray:
    """How many possible states each possible state is hidden among (Definition 5.2), itself included.

    Parameters
    ----------
    graph, f
        The policy over ``N`` states, a `PolicyGraph` or a `networkx.Graph` (see `PolicyGraph.from_networkx`), and their
        measurements ``(N, d)``.
    constraint
        ``(N,)`` booleans, the possible states; left out, all.
    body
        What the noise is drawn from: the hull (K-norm, planar isotropic), the least cross-polytope that holds it
        (Laplace) or the least disc (planar Laplace). A state may be exposed under one and protected under another.
    membership
        How membership in a hull is decided: by half-spaces, or by the quadratic program of Equation (6).
    calibration
        Whether one body serves the whole graph (``"graph"``), or each connected component has its own
        (``"component"``). Then a state is hidden among states of its own component only.

    Returns
    -------
    ndarray of int, shape (N,)
        At least 1 for a possible state (1 means exposed, or open), 0 outside the constraint. A different state with the
        same measurement counts, an open one never. Exact where the measurements lie on a lattice and the body is the
        hull.
    """
    policy, measurements = over_measurements(graph, f)
    possible = as_constraint(constraint, policy.size)
    _check_choices(body=body, calibration=calibration)
    restricted = policy.restrict(possible)
    if calibration == "component" or restricted.has_open:
        labels = labels_of(restricted, calibration)
        bodies = NoiseBodies.around(measurements, shapes_of(restricted, measurements, labels), body)
        return degrees_within(measurements, labels, bodies, body, membership)
    hull = restricted.hull(measurements)
    return count_within(
        CoordinateBody(measurements, noise_body(measurements, hull, body), membership), restricted.node_mask
    )


@checked
def exposed_states(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    body: Body = "hull",
    membership: Membership = "halfspace",
    calibration: Calibration = "graph",
) -> IntArray:
    """The possible states that nothing hides and that are not open: their degree of protection is 1.

    Parameters as for `degree_of_protection`. With ``calibration="component"`` they are the states that are alone in
    their component: being inside another component's hull hides nothing.

    Parameters
    ----------
    graph, f, constraint, body, membership, calibration
        As in `degree_of_protection`.

    Returns
    -------
    IntArray
        ``(k,)``: the exposed states, ascending.
    """
    policy, measurements = over_measurements(graph, f)
    degrees = degree_of_protection(policy, measurements, constraint, body, membership, calibration)
    return np.flatnonzero((degrees == 1) & ~policy.open)


@checked
def protect(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    method: Method = "exact",
    objective: Objective = "error",
    body: Body = "hull",
    membership: Membership = "halfspace",
    repair_limit: int = REPAIR_LIMIT,
    calibration: Calibration = "graph",
    prior: npt.ArrayLike | None = None,
) -> Protection:
    """The constrained graph with edges added until no possible state is exposed: a protectable graph.

    To repair a graph is to add such edges. States outside the constraint have no protection of their own: in a release
    a possible state stands in for them, their surrogate, which is the nearest one.

    Parameters
    ----------
    graph, f, constraint, body, membership
        As in `degree_of_protection`.
    method
        ``"greedy"`` is Algorithm 1 (nearest other state). ``"sequential"`` is Algorithm 3 (exposed states in turn take
        the partner of least volume). ``"exact"`` chooses one partner for every exposed state jointly; erratum:
        Algorithm 3 does so for a single exposed state only. For a cross-polytope or a disc the nearest partners in its
        norm are jointly optimal, and every method takes them.
    objective
        What the exact method minimises, and what `Protection.value` says: ``"error"``, the expected squared error of a
        release, or ``"volume"``, which is the paper's and can have a much larger error. The error is no monotone
        function of the hull, so that edges beyond one per exposed state might lower it further; those are not looked
        for.
    repair_limit
        How much work the exact method's search may do: about a second per thousand on a processor of 2020, after what
        it takes to look at every pair of an exposed and a possible state once. It is counted and not timed, so that the
        same graph gets the same repair everywhere. What is found when it runs out is not `Protection.certified`, and
        `Protection.gap` says how far from the best it may be.
    calibration
        Whether one body of noise serves the whole graph (``"graph"``), or each connected component has its own
        (``"component"``). A partner then merges two components, and what is minimised is the mean over the possible
        states: ``sum of p(s) E|z - f(s)|²`` at epsilon one. ``"greedy"`` takes the nearest partners, ``"sequential"``
        those that add least, one after another.
    prior
        With ``"component"``: ``(N,)``, how probable each state is, of which the possible ones count in proportion; left
        out, all alike.

    Returns
    -------
    Protection
        The repaired graph, the body of its noise, and what was added.

    Raises
    ------
    AlreadyKnownError
        When one state only is possible, and is not open.
    StochasticError
        When the prior is no distribution over the states, or rules out all possible ones.
    InvalidInputError
        For an unknown method, objective or body, or a limit that is no whole number from 0.

    Examples
    --------
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> graph = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    >>> repaired = protect(graph, f, [False, False, True, True, True, True])
    >>> repaired.added, round(repaired.hull.squared_error, 9), repaired.certified
    (((2, 4),), 47.0, True)
    >>> protect(graph, f, [False, False, True, True, True, True], objective="volume").hull.volume
    14.0
    """
    policy, measurements = over_measurements(graph, f)
    _check_choices(method, objective, body, calibration)
    check_repair_limit(repair_limit)
    asked = Protecting(measurements, method, objective, body, membership, repair_limit, calibration)
    return asked(policy, as_constraint(constraint, policy.size), prior)


@dataclass(frozen=True)
class Protecting:
    """What `protect` is asked for whatever the constraint: its arguments, which are checked already."""

    measurements: Measurements
    method: Method
    objective: Objective
    body: Body
    membership: Membership
    repair_limit: int
    calibration: Calibration

    def __call__(self, graph: PolicyGraph, possible: BoolArray, prior: npt.ArrayLike | None = None) -> Protection:
        """What `protect` gives for a policy, the possible states ``(N,)`` and a prior; errors are the same."""
        restricted = graph.restrict(possible)
        has_open = restricted.has_open
        if not has_open and np.count_nonzero(possible) < 2:
            state = int(np.argmax(possible))
            raise AlreadyKnownError(
                f"state {state} is the only possible one, so no noise hides it; allow that or stop here"
            )
        if self.calibration == "component":
            return self.by_component(restricted, prior_over(prior, possible))
        return self.beside_open(restricted) if has_open else self.shared(restricted)

    def shared(self, restricted: PolicyGraph) -> Protection:
        """One body of noise for all possible states, none of which is open."""
        possible = restricted.node_mask
        hull = restricted.hull(self.measurements)
        noise = CoordinateBody(self.measurements, noise_body(self.measurements, hull, self.body), self.membership)
        if holds_all := restricted.joins_everyone and self.membership == "halfspace":
            degrees = possible * np.count_nonzero(possible)  # the body was made of all their differences
        else:
            degrees = count_within(noise, possible)
        exposed = (degrees == 1).nonzero()[0]
        candidates, complete = candidates_of(self.measurements, exposed, possible)
        problem = RepairProblem(
            self.measurements.body_of(hull), candidates, self.measurements.spacing, self.objective, complete
        )
        if self.body != "hull":
            repair = _ball_repair(problem, self.measurements, self.objective, self.body)
        elif self.method == "exact" and len(exposed):
            repair = problem.exact(self.repair_limit * 1_000_000)
        else:
            repair = problem.sequential() if self.method == "sequential" else problem.greedy()
        if len(exposed):
            restricted = restricted.with_edges(repair.added)
            hull = self.measurements.hull_of(repair.shape)
            noise = CoordinateBody(self.measurements, noise_body(self.measurements, hull, self.body), self.membership)
            degrees = count_within(noise, possible)
            self._check_nobody_exposed(degrees, restricted)
        if holds_all and self.body == "hull":
            diameter = 1.0 if hull.dimension else 0.0
        else:
            diameter = noise.diameter(possible)
        scale = float(np.prod(self.measurements.spacing)) if self.body == "hull" and self.objective == "volume" else 1.0
        part = NoiseBody.around(self.measurements, hull, self.body)
        certified, bound = repair.bound >= repair.value * (1 - 1e-12), min(repair.bound, repair.value) * scale
        return _of_one_part(restricted, part, degrees, diameter, repair.added, certified, repair.value * scale, bound)

    def without_noise(self, restricted: PolicyGraph) -> Protection:
        """No noise at all: for a possible state that is known and released as it is, or where nothing is drawn.

        Every possible state counts as hidden among all of them.
        """
        point = SensitivityHull(np.zeros((0, self.measurements.dimension)))
        degrees = restricted.node_mask * np.count_nonzero(restricted.node_mask)
        return _of_one_part(restricted, NoiseBody(point, point, point), degrees, 0.0)

    def beside_open(self, restricted: PolicyGraph) -> Protection:
        """One body of noise for all possible states but the open ones; a single one of these takes an open partner."""
        hidden = restricted.node_mask & ~restricted.open
        if int(hidden.sum()) < 2:
            return self.by_component(restricted, prior_over(None, restricted.node_mask))
        found = self.shared(restricted.restrict(hidden))
        graph = restricted.with_edges(found.added)
        labels, none = labels_of(graph, "graph"), SensitivityHull(np.zeros((0, self.measurements.dimension)))
        return replace(
            found,
            graph=graph,
            degrees=frozen(np.where(graph.open, 1, found.degrees)),
            diameter=inf,
            components=frozen(labels),
            parts=(NoiseBody(found.coordinate_hull, found.hull, found.body), NoiseBody(none, none, none)),
            part_of=frozen(np.where(labels < 0, -1, np.where(graph.open, 1, 0))),
            is_shared=False,
        )

    def by_component(self, restricted: PolicyGraph, prior: FloatArray) -> Protection:
        """A body of noise for each connected component; a partner merges two."""
        measurements = self.measurements
        labels = labels_of(restricted, "component")
        shapes = shapes_of(restricted, measurements, labels)
        exposed = exposed_among(restricted, labels)
        weights = np.bincount(labels[restricted.node_mask], prior[restricted.node_mask], len(shapes)).astype(np.float64)
        costs = Costs(measurements.spacing, self.body, self.objective)
        limit = self.repair_limit * 1_000_000
        problem = MergingProblem(costs, measurements.coordinates, labels, shapes, weights, exposed, limit)
        repair = _MERGING[self.method](problem)
        if repair.edges:
            restricted = restricted.with_edges(repair.edges)
            labels = labels_of(restricted, "component")
            shapes = problem.shapes_after(repair.edges, labels)
        bodies = NoiseBodies.around(measurements, shapes, self.body)
        degrees = degrees_within(measurements, labels, bodies, self.body, self.membership)
        self._check_nobody_exposed(degrees, restricted)
        everything, units = bodies.all_held(measurements)
        around = noise_body(measurements, everything, self.body)
        diameter = inf
        if len(shapes) == 1:
            diameter = CoordinateBody(measurements, around, self.membership).diameter(restricted.node_mask)
        return Protection(
            graph=restricted,
            hull=units,
            added=repair.edges,
            certified=repair.bound >= repair.value * (1 - 1e-12),
            value=repair.value,
            bound=repair.bound,
            degrees=frozen(degrees),
            body=units if around is everything else in_units(measurements, around),
            coordinate_hull=everything,
            diameter=diameter,
            components=frozen(labels),
            parts=bodies.bodies,
            part_of=frozen(np.where(labels < 0, -1, bodies.of_component[labels])),
        )

    def _check_nobody_exposed(self, degrees: IntArray, graph: PolicyGraph) -> None:
        alone = degrees == 1
        if not alone.any():
            return
        still = np.flatnonzero(alone & ~graph.open)
        if len(still):
            raise PolicyError(
                f"state {int(still[0])} is still exposed after the repair: its partner lies on the boundary beyond "
                f"what membership {self.membership!r} resolves; use membership 'halfspace'"
            )


def _of_one_part(
    graph: PolicyGraph,
    part: NoiseBody,
    degrees: IntArray,
    diameter: float,
    added: tuple[tuple[int, int], ...] = (),
    certified: bool = True,
    value: float = 0.0,
    bound: float = 0.0,
) -> Protection:
    """What one body of noise for all possible states makes."""
    components = locked(np.where(graph.node_mask, 0, -1))
    return Protection(
        graph=graph,
        hull=part.hull,
        added=added,
        certified=certified,
        value=value,
        bound=bound,
        degrees=locked(degrees),
        body=part.body,
        coordinate_hull=part.coordinate_hull,
        diameter=diameter,
        components=components,
        parts=(part,),
        part_of=components,
        is_shared=True,
    )


_MERGING: Mapping[Method, Callable[[MergingProblem], Merged]] = {
    "greedy": nearest_merging,
    "sequential": merging_in_turn,
    "exact": best_merging,
}


def _check_choices(
    method: str = "exact", objective: str = "error", body: str = "hull", calibration: str = "graph"
) -> None:
    for name, value, known in (
        ("repair method", method, _METHODS),
        ("objective", objective, _OBJECTIVES),
        ("noise body", body, _BODIES),
        ("calibration", calibration, _CALIBRATIONS),
    ):
        if not isinstance(value, str) or value not in known:
            raise InvalidInputError(f"{name} is {shorten(value)}; choose one of {', '.join(known)}")


def check_repair_limit(limit: object) -> int:
    """The limit of a repair's work, refused with an `InvalidInputError` where it is no whole number from 0."""
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0:
        raise InvalidInputError(f"repair_limit is {limit!r}; give a whole number from 0, such as {REPAIR_LIMIT}")
    return int(limit)


def _ball_repair(problem: RepairProblem, measurements: Measurements, objective: Objective, body: Body) -> Repair:
    """Nearest partners in the ball's norm: each state needs that radius at least, and the largest serves all."""
    grown, added = problem.nearest(order=1 if body == "cross-polytope" else 2)
    ball = in_units(measurements, noise_body(measurements, measurements.hull_of(grown), body))
    value: float = ball.volume if objective == "volume" else ball.squared_error
    return Repair(tuple(dict.fromkeys(added)), grown, value, value)
