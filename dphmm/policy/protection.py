"""Degrees of protection, exposed states, and the repair that leaves none exposed: the protectable graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import IntArray, as_constraint, frozen
from dphmm.errors import AlreadyKnownError, InvalidInputError, PolicyError
from dphmm.geometry.disc import Disc
from dphmm.geometry.growing import growing_body
from dphmm.geometry.hull import Body, Membership, SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.repair import Objective, Repair, RepairProblem, candidates_of

Method = Literal["greedy", "sequential", "exact"]
"""How exposed states get partners: Algorithm 1, Algorithm 3, or jointly and exactly."""

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
        The objective reached: the body's area (volume), or its squared error at epsilon one.
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
        ``max ‖f_j - f_k‖`` in the body's norm over pairs of possible states: the factor of Theorem 6.3.
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

    @property
    def gap(self) -> float:
        """How much of `value` is not proven necessary: ``(value - bound) / value``, 0 where certified."""
        return 0.0 if self.certified or self.value == 0 else (self.value - self.bound) / self.value


@checked
def degree_of_protection(
    graph: PolicyGraph,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    body: Body = "hull",
    membership: Membership = "halfspace",
) -> IntArray:
    """How many possible states each possible state is hidden among (Definition 5.2), itself included.

    Parameters
    ----------
    graph, f
        The policy over ``N`` states and their measurements ``(N, d)``.
    constraint
        ``(N,)`` booleans, the possible states; left out, all.
    body
        What the noise is drawn from: the hull (K-norm, planar isotropic), the least cross-polytope that holds it
        (Laplace) or the least disc (planar Laplace). A state may be exposed under one and protected under another.
    membership
        How membership in a hull is decided: by half-spaces, or by the quadratic program of Equation (6).

    Returns
    -------
    ndarray of int, shape (N,)
        At least 1 for a possible state (1 means exposed), 0 outside the constraint. A different state with the same
        measurement counts. Exact where the measurements lie on a lattice and the body is the hull.
    """
    measurements = graph.check_measurements(f)
    possible = as_constraint(constraint, graph.size)
    hull = SensitivityHull(graph.restrict(possible).spanning(measurements))
    return count_within(CoordinateBody(measurements, noise_body(measurements, hull, body), membership), possible)


@checked
def exposed_states(
    graph: PolicyGraph,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    body: Body = "hull",
    membership: Membership = "halfspace",
) -> IntArray:
    """The possible states that nothing hides: those whose degree of protection is 1. Parameters as there."""
    return np.flatnonzero(degree_of_protection(graph, f, constraint, body, membership) == 1)


@checked
def protect(
    graph: PolicyGraph,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    method: Method = "exact",
    objective: Objective = "error",
    body: Body = "hull",
    membership: Membership = "halfspace",
    repair_limit: int = REPAIR_LIMIT,
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

    Raises
    ------
    AlreadyKnownError
        When one state only is possible.
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
    measurements = graph.check_measurements(f)
    _check_choices(method, objective, body)
    check_repair_limit(repair_limit)
    possible = as_constraint(constraint, graph.size)
    if int(possible.sum()) < 2:
        state = int(np.argmax(possible))
        raise AlreadyKnownError(
            f"state {state} is the only possible one, so no noise hides it; allow that or stop here"
        )
    restricted = graph.restrict(possible)
    hull = SensitivityHull(restricted.spanning(measurements))
    noise = CoordinateBody(measurements, noise_body(measurements, hull, body), membership)
    degrees = count_within(noise, possible)
    exposed = np.flatnonzero(degrees == 1)
    base = growing_body(np.rint(hull.vertices).astype(np.int64) if measurements.is_lattice else hull.vertices)
    candidates, complete = candidates_of(measurements, exposed, possible)
    problem = RepairProblem(base, candidates, measurements.spacing, objective, complete)
    if body != "hull":
        repair = _ball_repair(problem, measurements, objective, body)
    elif method == "exact" and len(exposed):
        repair = problem.exact(repair_limit * 1_000_000)
    else:
        repair = problem.sequential() if method == "sequential" else problem.greedy()
    if len(exposed):
        restricted = restricted.with_edges(repair.added)
        hull = SensitivityHull(repair.shape.vertices)
        noise = CoordinateBody(measurements, noise_body(measurements, hull, body), membership)
        degrees = count_within(noise, possible)
    still = np.flatnonzero(degrees == 1)
    if len(still):
        raise PolicyError(
            f"state {int(still[0])} is still exposed after the repair: its partner lies on the boundary beyond what "
            f"membership {membership!r} resolves; use membership 'halfspace'"
        )
    units = measurements.to_units(hull)
    scale = float(np.prod(measurements.spacing)) if body == "hull" and objective == "volume" else 1.0
    return Protection(
        graph=restricted,
        hull=units,
        added=repair.added,
        certified=repair.bound >= repair.value * (1 - 1e-12),
        value=repair.value * scale,
        bound=min(repair.bound, repair.value) * scale,
        degrees=frozen(degrees),
        body=units if body == "hull" else _in_units(measurements, noise.body),
        coordinate_hull=hull,
        diameter=noise.diameter(possible),
    )


def _check_choices(method: str, objective: str, body: str) -> None:
    for name, value, known in (
        ("repair method", method, get_args(Method)),
        ("objective", objective, get_args(Objective)),
        ("noise body", body, get_args(Body)),
    ):
        if value not in known:
            raise InvalidInputError(f"{name} is {value!r}; choose one of {', '.join(known)}")


def check_repair_limit(limit: object) -> int:
    """The limit of a repair's work, refused with an `InvalidInputError` where it is no whole number from 0."""
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0:
        raise InvalidInputError(f"repair_limit is {limit!r}; give a whole number from 0, such as {REPAIR_LIMIT}")
    return int(limit)


def noise_body(measurements: Measurements, hull: SensitivityHull, body: Body) -> SensitivityHull | Disc:
    """The body that noise is drawn from around a hull in coordinates.

    In coordinates as well, except that a disc is in the unit of the measurements.
    """
    if body == "hull" or hull.dimension == 0:
        return hull
    if body == "disc":
        return Disc(float(measurements.lengths(hull.vertices).max()), measurements.dimension)
    steps = measurements.spacing
    if np.ptp(steps) <= 1e-12 * steps.max():
        return SensitivityHull(np.abs(hull.vertices).sum(axis=1).max() * np.eye(len(steps)))
    reach = float(np.abs(hull.vertices * steps).sum(axis=1).max())
    return SensitivityHull(np.diag(reach / steps))


def _in_units(measurements: Measurements, body: SensitivityHull | Disc) -> SensitivityHull | Disc:
    return body if isinstance(body, Disc) else measurements.to_units(body)


def _ball_repair(problem: RepairProblem, measurements: Measurements, objective: Objective, body: Body) -> Repair:
    """Nearest partners in the ball's norm: each state needs that radius at least, and the largest serves all."""
    grown, added = problem.nearest(order=1 if body == "cross-polytope" else 2)
    ball = _in_units(measurements, noise_body(measurements, SensitivityHull(grown.vertices), body))
    value: float = ball.volume if objective == "volume" else ball.squared_error
    return Repair(tuple(dict.fromkeys(added)), grown, value, value)
