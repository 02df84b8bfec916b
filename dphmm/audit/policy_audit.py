"""The Markov form of a policy's audit: what stays exposed under a constraint set, and what would repair it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Literal

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint
from dphmm.errors import InvalidInputError
from dphmm.geometry.disc import Disc
from dphmm.geometry.hull import Body, SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.markov.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection import Method, noise_body, protect
from dphmm.policy.repair import Objective

AuditedMechanism = Literal["k-norm", "laplace", "planar-laplace"]

BODY_OF: dict[AuditedMechanism, Body] = {"k-norm": "hull", "laplace": "cross-polytope", "planar-laplace": "disc"}
"""Mechanism → the body that its noise has the shape of. The planar isotropic mechanism is the K-norm mechanism."""

METHODS: tuple[Method, ...] = ("greedy", "sequential", "exact")

WITNESSES = 100
"""At most this many exposed states of an audit come with a witness; all are listed."""

_OTHERS = 8
"""A witness names at most this many other states, the nearest in the norm."""


@dataclass(frozen=True)
class Witness:
    """An output that tells an exposed state apart from every other possible state.

    At the output ``z = f_i`` the log ratio of state i's density to that of state j is ``epsilon ‖f_i - f_j‖_K``, which
    no other output exceeds. For an exposed state all these factors are above 1.

    Parameters
    ----------
    state
        The exposed state ``i``.
    output
        ``(d,)``: the output ``z``.
    others
        The other possible states with the least factors, nearest first.
    factors
        ``‖f_i - f_j‖_K`` of each: the log ratio at the output is this times epsilon. Infinite where state j can give
        no output that state i can.
    flat
        ``(r, d)``: a basis of the linear span of the body. Where the factors are infinite, every release of state i
        lies on the flat ``f_i + span``, and no release of those others does.
    """

    state: int
    output: tuple[float, ...]
    others: tuple[int, ...]
    factors: tuple[float, ...]
    flat: FloatArray = field(repr=False)

    @property
    def gives_away(self) -> bool:
        """Whether every release of the state tells it apart from all others with certainty."""
        return not self.factors or self.factors[0] == inf


@dataclass(frozen=True)
class BodyAudit:
    """What one mechanism leaves exposed, before any repair.

    Parameters
    ----------
    mechanism
        The mechanism whose body is looked at.
    sensitivity
        The 1-norm sensitivity ``S_f`` (Laplace), the radius (planar Laplace), or None (K-norm).
    area
        The volume of the body: the area in the plane, 0 below full dimension.
    expected_error
        The root mean square distance of a release at epsilon one.
    degrees
        ``(N,)``: the degree of protection of every state; 0 outside the constraint set.
    exposed
        The possible states whose degree of protection is 1.
    witnesses
        One for each exposed state, in order, for at most `WITNESSES` of them.
    factor
        ``max ‖f_j - f_k‖`` over possible states: the constrained-DP factor (Theorem 5.3).
    """

    mechanism: AuditedMechanism
    sensitivity: float | None
    area: float
    expected_error: float
    degrees: IntArray = field(repr=False)
    exposed: tuple[int, ...]
    witnesses: tuple[Witness, ...] = field(repr=False)
    factor: float


@dataclass(frozen=True)
class RepairAudit:
    """What one method would add so that nobody is exposed, and what that costs.

    Parameters
    ----------
    mechanism, method
        Whose body, and how partners were chosen.
    added
        The edges ``(i, j)``, ``i < j``.
    area
        The volume of the repaired body.
    expected_error
        The root mean square distance of a release from the repaired body, at epsilon one.
    factor
        The constrained-DP factor after the repair (Theorem 6.3).
    least_protection
        The least degree of protection after the repair; at least 2.
    certified
        Whether no other choice of one partner per exposed state reaches a lower objective.
    gap
        How much of the objective is not proven necessary, relatively; 0 where certified.
    """

    mechanism: AuditedMechanism
    method: Method
    added: tuple[tuple[int, int], ...]
    area: float
    expected_error: float
    factor: float
    least_protection: int
    certified: bool
    gap: float


@dataclass(frozen=True)
class ConstraintAudit:
    """A policy under one constraint set.

    Parameters
    ----------
    constraint
        ``(N,)``: the constraint set.
    hull
        The sensitivity hull of the policy cut to it, in the unit of the measurements.
    disconnected
        The possible states without an edge.
    components
        The number of connected components of the constrained graph, a disconnected state being one.
    bodies
        One per audited mechanism.
    repairs
        For each mechanism under which a state is exposed, one per method; empty where one state only is possible,
        which nothing can repair.
    """

    constraint: BoolArray = field(repr=False)
    hull: SensitivityHull
    disconnected: tuple[int, ...]
    components: int
    bodies: tuple[BodyAudit, ...]
    repairs: tuple[RepairAudit, ...]

    @property
    def possible(self) -> int:
        """How many states are possible."""
        return int(self.constraint.sum())

    @property
    def is_exposed(self) -> bool:
        """Whether some state is exposed under one of the audited mechanisms."""
        return any(body.exposed for body in self.bodies)


def audit_constraint(
    graph: PolicyGraph,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace"),
    methods: Sequence[Method] = METHODS,
    objective: Objective = "volume",
) -> ConstraintAudit:
    """What a policy leaves exposed when only some states are possible (§5.1, §5.2), and each method's repair (§6.1).

    Parameters
    ----------
    graph, f, constraint
        The policy over ``N`` states, their measurements ``(N, d)``, and the possible states ``(N,)`` (all, left out).
    mechanisms
        The mechanisms whose bodies are looked at; a state may be exposed under one and protected under another.
    methods
        The repairs to work out where a state is exposed; see `dphmm.policy.protection.protect`. For a body other than
        the hull all methods agree, and the last alone is worked out.
    objective
        What the exact repair minimises.

    Raises
    ------
    PolicyError, ConstraintError
        When policy, measurements and constraint do not fit.
    InvalidInputError
        For an unknown mechanism, or none.

    Examples
    --------
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> graph = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    >>> audit = audit_constraint(graph, f, [False, True, True, False, True, False], ["laplace"])
    >>> audit.bodies[0].exposed, audit.bodies[0].witnesses[0].factors
    ((4,), (1.5, 1.5))
    """
    measurements = graph.check_measurements(f)
    if not mechanisms or any(name not in BODY_OF for name in mechanisms):
        raise InvalidInputError(f"mechanisms to audit are {list(mechanisms)}; choose among {', '.join(BODY_OF)}")
    possible = as_constraint(constraint, graph.size) & graph.nodes
    restricted = graph.restrict(possible)
    coordinate_hull = SensitivityHull(restricted.spanning(measurements))
    hull = measurements.to_units(coordinate_hull)
    connected = restricted.connected()
    bodies = tuple(_audit_body(measurements, coordinate_hull, hull, possible, name) for name in mechanisms)
    repairs: list[RepairAudit] = []
    if int(possible.sum()) > 1:
        for body in bodies:
            if body.exposed:
                wanted = methods if body.mechanism == "k-norm" else methods[-1:]
                repairs += [
                    _audit_repair(graph, measurements, possible, body.mechanism, method, objective) for method in wanted
                ]
    return ConstraintAudit(
        constraint=possible,
        hull=hull,
        disconnected=tuple(np.flatnonzero(possible & ~connected).tolist()),
        components=component_count(restricted, connected),
        bodies=bodies,
        repairs=tuple(repairs),
    )


def audit_constraints(
    graph: PolicyGraph,
    f: npt.ArrayLike | Measurements,
    constraints: Iterable[npt.ArrayLike],
    mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace"),
    methods: Sequence[Method] = METHODS,
    objective: Objective = "volume",
) -> Iterator[ConstraintAudit]:
    """`audit_constraint` of each constraint in turn; one that was met before is not worked out again."""
    measurements = graph.check_measurements(f)
    known: dict[bytes, ConstraintAudit] = {}
    for constraint in constraints:
        possible = as_constraint(constraint, graph.size)
        key = np.packbits(possible).tobytes()
        if key not in known:
            known[key] = audit_constraint(graph, measurements, possible, mechanisms, methods, objective)
        yield known[key]


def support_sequence(model: MarkovModel, steps: int, start: npt.ArrayLike | None = None) -> Iterator[BoolArray]:
    """The constraint sets at times ``1 .. steps`` as they follow from the model alone (Definition 4.1).

    While hulls have full dimension no release rules a state out, so these are the constraint sets that occur.

    Parameters
    ----------
    model
        The public model over ``N`` states.
    steps
        How many time steps, at least 1. Time 1 is that of the initial distribution.
    start
        ``(N,)``: the states possible at time 1; left out, those of positive initial probability.

    Yields
    ------
    ndarray of bool, shape (N,)
        The possible states at each time.

    Raises
    ------
    InvalidInputError
        When ``steps`` is below 1.
    """
    if steps < 1:
        raise InvalidInputError(f"steps is {steps}; give at least 1")
    support = as_constraint(start if start is not None else model.initial > 0, model.size)
    for _ in range(steps):
        yield support
        support = np.asarray(support @ model.structure) > 0


def component_count(graph: PolicyGraph, connected: BoolArray | None = None) -> int:
    """The number of connected components of what a graph still holds; a state without an edge is one.

    Edges are gone through a block at a time, and no further once all connected states are in one component.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    joined = graph.connected() if connected is None else connected
    alone = int((graph.nodes & ~joined).sum())
    if not joined.any():
        return alone
    number = np.cumsum(joined) - 1
    count = int(joined.sum())
    label: IntArray = np.arange(count)
    for edges in graph.edge_blocks():
        ends = label[number[edges]]
        links = coo_array((np.ones(len(ends), dtype=np.bool_), (ends[:, 0], ends[:, 1])), shape=(count, count))
        count, merged = connected_components(links, directed=False)
        label = merged[label].astype(np.int64)
        if count == 1:
            break
    return alone + int(count)


def _audit_body(
    measurements: Measurements,
    coordinate_hull: SensitivityHull,
    hull: SensitivityHull,
    possible: BoolArray,
    mechanism: AuditedMechanism,
) -> BodyAudit:
    body = noise_body(measurements, coordinate_hull, BODY_OF[mechanism])
    looked = CoordinateBody(measurements, body)
    degrees = count_within(looked, possible)
    exposed = np.flatnonzero(degrees == 1)
    units = body if isinstance(body, Disc) else measurements.to_units(body)
    sensitivity = None
    if mechanism == "laplace":
        sensitivity = float(np.abs(hull.vertices).sum(axis=1).max())
    elif mechanism == "planar-laplace":
        sensitivity = hull.circumradius
    witnesses = [_witness(measurements, units, possible, int(state)) for state in exposed[:WITNESSES]]
    return BodyAudit(
        mechanism=mechanism,
        sensitivity=sensitivity,
        area=units.volume,
        expected_error=sqrt(units.squared_error),
        degrees=degrees,
        exposed=tuple(exposed.tolist()),
        witnesses=tuple(witnesses),
        factor=looked.diameter(possible),
    )


def _witness(measurements: Measurements, body: SensitivityHull | Disc, possible: BoolArray, state: int) -> Witness:
    points = measurements.points
    others = np.flatnonzero(possible)
    others = others[others != state]
    factors = body.norm(points[state] - points[others]) if len(others) else np.zeros(0)
    nearest = np.lexsort((others, factors))[:_OTHERS]
    span = np.eye(measurements.dimension)
    if not isinstance(body, Disc) and body.dimension < body.ambient_dimension:
        span = np.linalg.svd(body.vertices)[2][: body.dimension]
    return Witness(
        state=state,
        output=tuple(points[state].tolist()),
        others=tuple(others[nearest].tolist()),
        factors=tuple(factors[nearest].tolist()),
        flat=span,
    )


def _audit_repair(
    graph: PolicyGraph,
    measurements: Measurements,
    possible: BoolArray,
    mechanism: AuditedMechanism,
    method: Method,
    objective: Objective,
) -> RepairAudit:
    found = protect(graph, measurements, possible, method, objective, BODY_OF[mechanism])
    return RepairAudit(
        mechanism=mechanism,
        method=method,
        added=found.added,
        area=found.body.volume,
        expected_error=sqrt(found.body.squared_error),
        factor=found.diameter,
        least_protection=int(found.degrees[possible].min()),
        certified=found.certified,
        gap=found.gap,
    )
