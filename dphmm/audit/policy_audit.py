"""The Markov form of a policy's audit: what stays exposed under a constraint set, and what would repair it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint
from dphmm.audit.facts import LISTED, Facts, finite, hull_facts, named
from dphmm.errors import InvalidInputError
from dphmm.geometry.disc import Disc
from dphmm.geometry.hull import Body, SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.markov.model import MarkovModel
from dphmm.policy.by_component import Calibration, NoiseBodies, degrees_within, labels_of, noise_body, shapes_of
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection import Method, Protection, protect
from dphmm.policy.repair import Objective

AuditedMechanism = Literal["k-norm", "laplace", "planar-laplace"]

BODY_OF: dict[AuditedMechanism, Body] = {"k-norm": "hull", "laplace": "cross-polytope", "planar-laplace": "disc"}
"""Mechanism → the body that its noise has the shape of. The planar isotropic mechanism is the K-norm mechanism."""

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
        no output that state i can: then no release of state i lies on the flat that those of state j lie on.
    """

    state: int
    output: tuple[float, ...]
    others: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def gives_away(self) -> bool:
        """Whether every release of the state tells it apart from all others with certainty."""
        return not self.factors or self.factors[0] == inf

    def facts(self, names: Sequence[str], epsilon: float) -> Facts:
        """As plain values for JSON, log ratios at a budget."""
        return {
            "state": names[self.state],
            "output": list(self.output),
            "gives_away_for_certain": self.gives_away,
            "against": [
                {"state": names[other], "factor": finite(factor), "log_ratio": finite(factor * epsilon)}
                for other, factor in zip(self.others, self.factors, strict=True)
            ],
        }


@dataclass(frozen=True)
class BodyAudit:
    """What one mechanism leaves exposed, before any repair.

    Parameters
    ----------
    mechanism
        The mechanism whose body is looked at.
    body
        What the noise is drawn from, in the unit of the measurements.
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
    body: SensitivityHull | Disc
    degrees: IntArray = field(repr=False)
    exposed: tuple[int, ...]
    witnesses: tuple[Witness, ...] = field(repr=False)
    factor: float

    @property
    def sensitivity(self) -> float | None:
        """The 1-norm sensitivity ``S_f`` (Laplace), the radius (planar Laplace), or None (K-norm)."""
        return None if self.mechanism == "k-norm" else self.body.circumradius


@dataclass(frozen=True)
class RepairAudit:
    """What one method would add so that nobody is exposed, and what that costs.

    Parameters
    ----------
    mechanism, method
        Whose body, and how partners were chosen.
    protection
        The repaired graph, its body, and what is proven of it.
    """

    mechanism: AuditedMechanism
    method: Method
    protection: Protection

    def facts(self, names: Sequence[str], epsilon: float) -> Facts:
        """As plain values for JSON, the error at a budget."""
        found = self.protection
        return {
            "mechanism": self.mechanism,
            "method": self.method,
            "added": [named(edge, names) for edge in found.added],
            **_noise_facts(found.body, found.diameter, epsilon),
            **({} if not found.parts else {"expected_error": _mean_error(found) / epsilon}),
            "least_protection": int(found.degrees[found.graph.nodes & ~found.open].min(initial=len(names))),
            "certified": found.certified,
            "gap": found.gap,
        }


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
        One per audited mechanism. Where each component has noise of its own, they are those of the largest one.
    open
        The possible states that are open: released as they are, neither exposed nor protected.
    calibration
        Whether noise was measured for the whole graph or for each component.
    labels
        ``(N,)``: the component of each possible state, -1 for others.
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
    open: tuple[int, ...] = ()
    calibration: Calibration = "graph"
    labels: IntArray | None = field(default=None, repr=False)

    @property
    def possible(self) -> int:
        """How many states are possible."""
        return int(self.constraint.sum())

    @property
    def is_exposed(self) -> bool:
        """Whether some state is exposed under one of the audited mechanisms."""
        return any(body.exposed for body in self.bodies)

    def facts(self, names: Sequence[str], epsilon: float) -> Facts:
        """As plain values for JSON: states by name, log ratios and errors at a budget."""
        possible = np.flatnonzero(self.constraint)
        return {
            "possible": self.possible,
            "possible_states": named(possible[:LISTED].tolist(), names),
            "disconnected": named(self.disconnected, names),
            "components": self.components,
            "calibration": self.calibration,
            "open": named(self.open[:LISTED], names),
            "hull": hull_facts(self.hull),
            "exposed": self.is_exposed,
            "mechanisms": [self._body_facts(body, names, epsilon) for body in self.bodies],
            "repairs": [repair.facts(names, epsilon) for repair in self.repairs],
        }

    def _hidden(self) -> list[int]:
        """The possible states that are not open."""
        return sorted(set(np.flatnonzero(self.constraint).tolist()) - set(self.open))

    def _body_facts(self, body: BodyAudit, names: Sequence[str], epsilon: float) -> Facts:
        degrees = {names[i]: int(body.degrees[i]) for i in np.flatnonzero(self.constraint).tolist()}
        return {
            "mechanism": body.mechanism,
            "sensitivity": body.sensitivity,
            **_noise_facts(body.body, body.factor, epsilon),
            "least_protection": min((degrees[names[i]] for i in self._hidden()), default=1),
            "degrees": degrees if len(degrees) <= LISTED else None,
            "exposed": named(body.exposed, names),
            "witnesses": [witness.facts(names, epsilon) for witness in body.witnesses],
        }


def _noise_facts(body: SensitivityHull | Disc, factor: float, epsilon: float) -> Facts:
    return {
        "area": body.volume,
        "expected_error": sqrt(body.squared_error) / epsilon,
        "constrained_factor": finite(factor),
    }


@checked
def audit_constraint(
    graph: PolicyGraph,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace"),
    objective: Objective = "error",
    calibration: Calibration = "graph",
) -> ConstraintAudit:
    """What a policy leaves exposed when only some states are possible (§5.1, §5.2), and each method's repair (§6.1).

    Parameters
    ----------
    graph, f, constraint
        The policy over ``N`` states, their measurements ``(N, d)``, and the possible states ``(N,)`` (all, left out).
    mechanisms
        The mechanisms whose bodies are looked at; a state may be exposed under one and protected under another.
    objective
        What the exact repair minimises. Where a state is exposed, the repairs of all methods are worked out; see
        `dphmm.policy.protection.protect`. For a body other than the hull all agree, and the exact one stands for them.
    calibration
        Whether noise is measured for the whole graph, or for each component by itself.

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
    possible = as_constraint(constraint, graph.size)
    restricted = graph.restrict(possible)
    coordinate_hull = restricted.hull(measurements)
    connected, labels = restricted.connected(), restricted.components()
    if calibration == "component" or restricted.open.any():
        bodies = tuple(_parted_body(restricted, measurements, calibration, name) for name in mechanisms)
    else:
        bodies = tuple(_audit_body(measurements, coordinate_hull, possible, name) for name in mechanisms)
    repairs = []
    for name in (body.mechanism for body in bodies if body.exposed and possible.sum() > 1):
        wanted: tuple[Method, ...] = get_args(Method) if name == "k-norm" else ("exact",)
        for method in wanted:
            found = protect(graph, measurements, possible, method, objective, BODY_OF[name], calibration=calibration)
            repairs.append(RepairAudit(name, method, found))
    return ConstraintAudit(
        constraint=possible,
        hull=measurements.to_units(coordinate_hull),
        disconnected=tuple(np.flatnonzero(possible & ~connected & ~restricted.open).tolist()),
        components=int(labels.max()) + 1,
        bodies=bodies,
        repairs=tuple(repairs),
        open=tuple(np.flatnonzero(restricted.open).tolist()),
        calibration=calibration,
        labels=labels,
    )


@checked
def audit_constraints(
    graph: PolicyGraph,
    f: npt.ArrayLike | Measurements,
    constraints: Iterable[npt.ArrayLike],
    mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace"),
    objective: Objective = "error",
    calibration: Calibration = "graph",
) -> Iterator[ConstraintAudit]:
    """`audit_constraint` of each constraint in turn; one that was met before is not worked out again."""
    measurements = graph.check_measurements(f)
    known: dict[bytes, ConstraintAudit] = {}
    for constraint in constraints:
        possible = as_constraint(constraint, graph.size)
        key = np.packbits(possible).tobytes()
        if key not in known:
            known[key] = audit_constraint(graph, measurements, possible, mechanisms, objective, calibration)
        yield known[key]


@checked
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


def _audit_body(
    measurements: Measurements, coordinate_hull: SensitivityHull, possible: BoolArray, mechanism: AuditedMechanism
) -> BodyAudit:
    body = noise_body(measurements, coordinate_hull, BODY_OF[mechanism])
    noise = CoordinateBody(measurements, body)
    degrees = count_within(noise, possible)
    exposed = np.flatnonzero(degrees == 1).tolist()
    units = body if isinstance(body, Disc) else measurements.to_units(body)
    witnesses = tuple(_witness(measurements.points, units, possible, state) for state in exposed[:WITNESSES])
    return BodyAudit(mechanism, units, degrees, tuple(exposed), witnesses, noise.diameter(possible))


def _parted_body(
    graph: PolicyGraph, measurements: Measurements, calibration: Calibration, mechanism: AuditedMechanism
) -> BodyAudit:
    """What a mechanism leaves exposed where parts of the states have noise of their own."""
    body = BODY_OF[mechanism]
    labels = labels_of(graph, calibration)
    bodies = NoiseBodies.of(measurements, shapes_of(graph, measurements, labels), body)
    degrees = degrees_within(measurements, labels, bodies, body, "halfspace")
    exposed = np.flatnonzero((degrees == 1) & ~graph.open).tolist()
    own = [bodies.bodies[int(bodies.of_component[labels[state]])].body for state in exposed[:WITNESSES]]
    seen = zip(exposed[:WITNESSES], own, strict=True)
    witnesses = tuple(_witness(measurements.points, one, labels == labels[state], state) for state, one in seen)
    largest = bodies.bodies[int(bodies.of_component[np.bincount(labels[labels >= 0]).argmax()])]
    diameter = inf
    if labels.max() == 0:
        around = CoordinateBody(measurements, noise_body(measurements, largest.coordinate_hull, body))
        diameter = around.diameter(graph.nodes)
    return BodyAudit(mechanism, largest.body, degrees, tuple(exposed), witnesses, diameter)


def _mean_error(found: Protection) -> float:
    """The root mean square error at epsilon one of a release of the possible states, all alike."""
    assert found.part_of is not None, "the noise has parts"
    squared = np.array([part.body.squared_error for part in found.parts])
    return sqrt(float(squared[found.part_of[found.part_of >= 0]].mean()))


def _witness(points: FloatArray, body: SensitivityHull | Disc, possible: BoolArray, state: int) -> Witness:
    others = np.setdiff1d(np.flatnonzero(possible), state)
    factors = body.norm(points[state] - points[others])
    nearest = np.lexsort((others, factors))[:_OTHERS]
    return Witness(
        state, tuple(points[state].tolist()), tuple(others[nearest].tolist()), tuple(factors[nearest].tolist())
    )
