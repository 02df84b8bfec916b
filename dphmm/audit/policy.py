"""Audit of a policy under a constraint set: exposed states, repairs, entries into zones.

Entering a zone is audited separately: the last unprotected release before it reveals where the user enters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf, sqrt
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, copy_read_only
from dphmm.audit.input_tables import MAX_LISTED_STATES, describe_hull
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.formatting import Result, export_fields, exported, name_states
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody
from dphmm.geometry.sensitivity_hull import Body, Disc, SensitivityHull
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.policy.component_bodies import (
    NoiseBodies,
    NoiseBody,
    NoiseScope,
    build_noise_body,
    build_shapes,
    compute_protection_degrees,
    label_components,
)
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, convert_policy_and_measurements, get_state_names
from dphmm.policy.protection_degrees import Protection
from dphmm.policy.repair import Method, protect
from dphmm.policy.repair_objective import Objective
from dphmm.random import as_random_source
from dphmm.release.engine import Releaser
from dphmm.validation import Epsilon, PositiveInt, check_arguments

AuditedMechanism = Literal["k-norm", "laplace", "planar-laplace"]

# Mechanism → type of its noise body. The planar isotropic mechanism is the K-norm mechanism.
BODY_BY_MECHANISM: dict[AuditedMechanism, Body] = {
    "k-norm": "hull",
    "laplace": "cross-polytope",
    "planar-laplace": "disc",
}

# Maximum number of exposed states with a witness. All exposed states are listed.
MAX_WITNESSES = 100

# Number of other states that a witness lists, nearest in the norm first.
_MAX_WITNESS_STATES = 8


@dataclass(frozen=True)
class Witness(Result):
    """An output that distinguishes an exposed state from every other possible state.

    At the output ``z = f_i``, the log ratio of the densities of states i and j is ``epsilon ‖f_i - f_j‖_K``, the
    largest over all outputs. For an exposed state all these factors exceed 1.

    Parameters
    ----------
    state
        The exposed state ``i``.
    output
        ``(d,)``: the output ``z``.
    others
        The other possible states with the smallest factors, in increasing order.
    factors
        ``‖f_i - f_j‖_K`` of each. The log ratio at the output is this times epsilon. It is infinite if states i and j
        have no output in common, because the noise is confined to parallel subspaces.
    """

    state: int = field(metadata=exported(as_state_names=True))
    output: tuple[float, ...] = field(metadata=exported())
    others: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def is_certain(self) -> bool:
        """Whether every release of the state distinguishes it from all others with certainty."""
        return not self.factors or self.factors[0] == inf

    def _derive_fields(self, names: Sequence[str], epsilon: float) -> dict[str, Any]:
        against = [
            {"state": names[other], "factor": factor, "log_ratio": factor * epsilon}
            for other, factor in zip(self.others, self.factors, strict=True)
        ]
        return {"is_certain": self.is_certain, "against": against}


@dataclass(frozen=True)
class BodyAudit:
    """Exposure under one mechanism, before any repair.

    Parameters
    ----------
    mechanism
        The audited mechanism.
    body
        The noise body, in the unit of the measurements.
    parts, part_of
        The distinct noise bodies, and ``(N,)``: the index of that of each possible state, -1 outside. They differ
        between components with noise scope ``"component"``.
    degrees
        ``(N,)``: the degree of protection of every state, 0 outside the constraint set.
    exposed
        The possible states of degree 1.
    witnesses
        One for each exposed state, in order, at most `MAX_WITNESSES`.
    factor
        ``max ‖f_j - f_k‖`` over possible states: the constrained-DP factor (Theorem 5.3).
    """

    mechanism: AuditedMechanism = field(metadata=exported())
    body: SensitivityHull | Disc
    parts: tuple[NoiseBody, ...] = field(repr=False)
    part_of: IntArray = field(repr=False)
    degrees: IntArray = field(repr=False)
    exposed: tuple[int, ...] = field(metadata=exported(as_state_names=True))
    witnesses: tuple[Witness, ...] = field(repr=False, metadata=exported())
    factor: float

    @property
    def sensitivity(self) -> float | None:
        """The 1-norm sensitivity ``S_f`` (Laplace), the radius (planar Laplace) or None (K-norm)."""
        return None if self.mechanism == "k-norm" else self.body.circumradius


@dataclass(frozen=True)
class RepairAudit(Result):
    """A repair by one method: the added edges, the noise and its error.

    Parameters
    ----------
    mechanism, method
        The audited mechanism and the repair method.
    protection
        The repaired graph, its noise body and the proven bounds.
    """

    mechanism: AuditedMechanism = field(metadata=exported())
    method: Method = field(metadata=exported())
    protection: Protection

    def _derive_fields(self, names: Sequence[str], epsilon: float) -> dict[str, Any]:
        protection = self.protection
        return {
            "added_edges": name_states(protection.added, names),
            **_describe_noise(protection.body, protection.diameter, _compute_rms_error(protection) / epsilon),
            "min_degree_of_protection": protection.degrees[protection.graph.node_mask & ~protection.open].min(
                initial=len(names)
            ),
            "is_optimal": protection.is_optimal,
            "optimality_gap": protection.optimality_gap,
        }


@dataclass(frozen=True)
class ConstraintAudit(Result):
    """Result of `audit_constraint`.

    Parameters
    ----------
    constraint
        ``(N,)``: the constraint set.
    hull
        The sensitivity hull of the restricted policy, in the unit of the measurements.
    isolated
        The possible states without an edge.
    num_components
        Number of connected components of the restricted graph. An isolated state is a component.
    bodies
        One element per audited mechanism. With noise scope ``"component"``, those of the largest component.
    repairs
        One element per method, for each mechanism that exposes a state. Empty for a single possible state, which cannot
        be repaired.
    unprotected
        The possible states that the policy declares unprotected. They are released exactly and count neither as exposed
        nor as protected.
    noise_scope
        Whether the noise is calibrated to the whole graph or to each component.
    labels
        ``(N,)``: the component of each possible state, -1 for other states.
    """

    constraint: BoolArray = field(repr=False)
    hull: SensitivityHull
    isolated: tuple[int, ...] = field(metadata=exported(as_state_names=True))
    num_components: int = field(metadata=exported())
    bodies: tuple[BodyAudit, ...]
    repairs: tuple[RepairAudit, ...] = field(metadata=exported())
    unprotected: tuple[int, ...] = ()
    noise_scope: NoiseScope = field(default="graph", metadata=exported())
    labels: IntArray | None = field(default=None, repr=False)

    @property
    def num_possible_states(self) -> int:
        """The number of possible states."""
        return int(self.constraint.sum())

    @property
    def is_exposed(self) -> bool:
        """Whether any state is exposed under any audited mechanism."""
        return any(body.exposed for body in self.bodies)

    def _derive_fields(self, names: Sequence[str], epsilon: float) -> dict[str, Any]:
        possible = np.flatnonzero(self.constraint)
        return {
            "num_possible_states": self.num_possible_states,
            "possible_states": name_states(possible[:MAX_LISTED_STATES], names),
            "unprotected": name_states(self.unprotected[:MAX_LISTED_STATES], names),
            "hull": describe_hull(self.hull),
            "exposed": self.is_exposed,
            "mechanisms": [self._describe_body(body, names, epsilon) for body in self.bodies],
        }

    def _describe_body(self, body: BodyAudit, names: Sequence[str], epsilon: float) -> dict[str, Any]:
        possible = np.flatnonzero(self.constraint)
        protected = np.setdiff1d(possible, self.unprotected)
        degrees = dict(zip(name_states(possible, names), body.degrees[possible], strict=True))
        return export_fields(
            body,
            names,
            epsilon,
            sensitivity=body.sensitivity,
            **_describe_noise(body.body, body.factor, sqrt(body.body.squared_error) / epsilon),
            min_degree_of_protection=body.degrees[protected].min() if len(protected) else 1,
            degrees=degrees if len(degrees) <= MAX_LISTED_STATES else None,
        )


def _describe_noise(body: SensitivityHull | Disc, factor: float, error: float) -> dict[str, Any]:
    return {"hull_volume": body.volume, "expected_error": error, "constrained_dp_factor": factor}


@check_arguments
def audit_constraint(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraint: npt.ArrayLike | None = None,
    mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace"),
    objective: Objective = "error",
    noise_scope: NoiseScope = "graph",
    methods: Sequence[Method] = get_args(Method),
) -> ConstraintAudit:
    """Audit a policy under a constraint set (§5.1, §5.2) and evaluate every repair (§6.1).

    Parameters
    ----------
    graph, f, constraint
        The policy over ``N`` states, their measurements ``(N, d)`` and the possible states ``(N,)``. By default all
        states are possible.
    mechanisms
        The mechanisms to audit. A state may be exposed under one and protected under another.
    objective
        Objective of the exact repair, see `dphmm.policy.repair.protect`. If one body other than the hull serves the
        whole graph, all methods agree, and only the exact repair is listed.
    noise_scope
        Whether the noise is calibrated to the whole graph or to each component.
    methods
        The repair methods to evaluate. Without any, no repair is computed.

    Returns
    -------
    ConstraintAudit
        The exposed states under each mechanism, and every repair.

    Raises
    ------
    PolicyError, ConstraintError
        If policy, measurements and constraint have different numbers of states.
    InvalidInputError
        If a mechanism is unknown, or none is given.

    Examples
    --------
    >>> f = [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]]
    >>> graph = PolicyGraph.categorical([0, 1, 1, 2, 2, 2])
    >>> audit = audit_constraint(graph, f, [False, True, True, False, True, False], ["laplace"])
    >>> audit.bodies[0].exposed, audit.bodies[0].witnesses[0].factors
    ((4,), (1.5, 1.5))
    """
    policy, measurements = convert_policy_and_measurements(graph, f)
    if not mechanisms or any(name not in BODY_BY_MECHANISM for name in mechanisms):
        raise InvalidInputError(
            f"mechanisms must be chosen among {', '.join(BODY_BY_MECHANISM)}, got {list(mechanisms)}"
        )
    possible = as_constraint(constraint, policy.size)
    restricted = policy.restrict(possible)
    coordinate_hull = restricted.hull(measurements)
    connected = restricted.find_connected_states()
    labels = restricted.components()
    bodies = tuple(_audit_body(restricted, measurements, noise_scope, name) for name in mechanisms)
    repairs = []
    for name in (body.mechanism for body in bodies if body.exposed and possible.sum() > 1):
        methods_differ = BODY_BY_MECHANISM[name] == "hull" or noise_scope == "component"
        evaluated: Sequence[Method] = methods if methods_differ else ("exact",) if methods else ()
        for method in evaluated:
            protection = protect(
                policy, measurements, possible, method, objective, BODY_BY_MECHANISM[name], noise_scope=noise_scope
            )
            repairs.append(RepairAudit(name, method, protection))
    return ConstraintAudit(
        constraint=possible,
        hull=measurements.to_units(coordinate_hull),
        isolated=tuple(np.flatnonzero(possible & ~connected & ~restricted.open).tolist()),
        num_components=int(labels.max()) + 1,
        bodies=bodies,
        repairs=tuple(repairs),
        unprotected=tuple(np.flatnonzero(restricted.open).tolist()),
        noise_scope=noise_scope,
        labels=labels,
    )


@check_arguments
def audit_constraints(
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraints: Iterable[npt.ArrayLike],
    mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace"),
    objective: Objective = "error",
    noise_scope: NoiseScope = "graph",
) -> Iterator[ConstraintAudit]:
    """Run `audit_constraint` for each constraint set. Results of repeated sets are cached.

    Parameters
    ----------
    graph, f
        The policy over ``N`` states and their measurements ``(N, d)``.
    constraints
        The possible states ``(N,)`` of each step.
    mechanisms, objective, noise_scope
        See `audit_constraint`.

    Yields
    ------
    ConstraintAudit
        One result for each constraint set, in order.

    Raises
    ------
    DphmmError
        See `audit_constraint`.
    """
    policy, measurements = convert_policy_and_measurements(graph, f)

    @cache
    def audit(packed: bytes) -> ConstraintAudit:
        possible = np.unpackbits(np.frombuffer(packed, np.uint8), count=policy.size).astype(np.bool_)
        return audit_constraint(policy, measurements, possible, mechanisms, objective, noise_scope)

    for constraint in constraints:
        yield audit(np.packbits(as_constraint(constraint, policy.size)).tobytes())


@check_arguments
def support_sequence(model: MarkovModel, steps: PositiveInt, start: npt.ArrayLike | None = None) -> Iterator[BoolArray]:
    """Iterate over the model's supports at times 1 to ``steps`` (Definition 4.1).

    They are the constraint sets of a release if no release excludes a state, as with hulls of full dimension.

    Parameters
    ----------
    model
        The public model over ``N`` states. Its classes of time, if any, must have equal supports.
    steps
        Number of timesteps, at least 1. Time 1 has the initial distribution.
    start
        ``(N,)``: the possible states at time 1. Defaults to the support of the model's initial distribution.

    Yields
    ------
    ndarray of bool, shape (N,)
        The possible states at each time.

    Raises
    ------
    InvalidInputError
        If ``steps`` is below 1.
    ConfigurationError
        If the classes of time differ in their possible moves or, without ``start``, in the initial support.
    """
    # The supports would depend on the time of the first step. The union over the classes may hide exposed states.
    first = model.transitions[0]
    has_equal_moves = all(first.nnz == matrix.nnz == csr_array(first + matrix).nnz for matrix in model.transitions)
    initial = model.initial_by_class > 0
    if not has_equal_moves or (start is None and (initial != initial[0]).any()):
        raise ConfigurationError(
            f"the model's classes of time must have equal supports, got a model that {model.describe()}: "
            "list constraint sets with --possible"
        )
    support = as_constraint(start if start is not None else model.initial > 0, model.size)
    for _ in range(steps):
        yield support
        support = np.asarray(support @ model.structure) > 0


def _audit_body(
    graph: PolicyGraph, measurements: Measurements, noise_scope: NoiseScope, mechanism: AuditedMechanism
) -> BodyAudit:
    """Audit one mechanism. Each component has its own noise body if the noise scope says so."""
    body = BODY_BY_MECHANISM[mechanism]
    labels = label_components(graph, noise_scope)
    bodies = NoiseBodies.from_shapes(measurements, build_shapes(graph, measurements, labels), body)
    degrees = compute_protection_degrees(measurements, labels, bodies, body, "halfspace")
    exposed = np.flatnonzero((degrees == 1) & ~graph.open).tolist()
    part_of = np.where(labels < 0, -1, bodies.of_component[labels])
    witnesses = tuple(
        _build_witness(measurements.points, bodies.bodies[int(part_of[state])].body, labels == labels[state], state)
        for state in exposed[:MAX_WITNESSES]
    )
    largest = bodies.bodies[int(bodies.of_component[np.bincount(labels[labels >= 0]).argmax()])]
    diameter = inf
    if labels.max() == 0:
        around = CoordinateBody(measurements, build_noise_body(measurements, largest.coordinate_hull, body))
        diameter = around.diameter(graph.node_mask)
    return BodyAudit(
        mechanism, largest.body, bodies.bodies, copy_read_only(part_of), degrees, tuple(exposed), witnesses, diameter
    )


def _compute_rms_error(protection: Protection) -> float:
    """Return the RMS error at epsilon one of a release, averaged over the possible states."""
    squared = np.array([part.body.squared_error for part in protection.parts])
    return sqrt(float(squared[protection.part_of[protection.part_of >= 0]].mean()))


def _build_witness(points: FloatArray, body: SensitivityHull | Disc, possible: BoolArray, state: int) -> Witness:
    others = np.setdiff1d(np.flatnonzero(possible), state)
    factors = body.norm(points[state] - points[others])
    nearest = np.lexsort((others, factors))[:_MAX_WITNESS_STATES]
    return Witness(
        state, tuple(points[state].tolist()), tuple(others[nearest].tolist()), tuple(factors[nearest].tolist())
    )


# Maximum number of audited entries, at equal intervals through all of them. It is lower for models with many states.
MAX_ENTRIES = 100

# Maximum of audited entries times states, which bounds the run time.
_MAX_PAIRS = 100_000
# Minimum number of audited entries, whatever the number of states.
_MIN_ENTRIES = 16

# Samples per entry. Every starting state has its own generator with this seed, so audits are reproducible.
_NUM_DRAWS = 64
_SEED = 5


@dataclass(frozen=True)
class Entry:
    """An entry into a zone from an unprotected state.

    Parameters
    ----------
    state
        The state of the last unprotected release.
    component
        The policy component that is entered.
    num_states
        Number of its states that can be reached in one step.
    prior_probability
        The largest probability of a state for an adversary who knows that the zone was entered, before noise is
        sampled.
    posterior_quantile_90
        The 90 % quantile of the true state's posterior probability after the first release from the zone.
    """

    state: int
    component: int
    num_states: int = field(metadata=exported())
    prior_probability: float = field(metadata=exported())
    posterior_quantile_90: float = field(metadata=exported())


@dataclass(frozen=True, eq=False)
class EntryAudit(Result):
    """Entries into the protected zones of a policy with unprotected states.

    Parameters
    ----------
    epsilon
        The budget of the first release from a zone.
    components
        ``(N,)``: the policy's components, see `dphmm.PolicyGraph.components`.
    unprotected
        ``(N,)``: mask of the unprotected states.
    entries
        The audited entries, largest posterior probability first.
    num_entries
        Number of all entries: pairs of an unprotected state and a zone that one step leads into.
    """

    epsilon: float
    components: IntArray = field(repr=False)
    unprotected: BoolArray = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    num_entries: int = field(metadata=exported())

    @property
    def max_posterior_quantile_90(self) -> float:
        """The largest `Entry.posterior_quantile_90`, or 0 if there are no entries."""
        return max((entry.posterior_quantile_90 for entry in self.entries), default=0.0)

    def describe(self) -> str:
        """Describe the disclosure by entries in one or two sentences.

        Returns
        -------
        str
            One or two sentences.
        """
        zones = len({entry.component for entry in self.entries})
        count = len(self.entries)
        if not self.entries:
            return "No unprotected state leads into a zone in one step."
        median = float(np.median([entry.posterior_quantile_90 for entry in self.entries]))
        audited = "" if count == self.num_entries else f", of which {count:,} were audited"
        return (
            f"One step leads from unprotected states into {zones:,} zone{'s' * (zones > 1)} in {self.num_entries:,} "
            f"ways{audited}. With probability 90 %, the true state's posterior probability after the first release "
            f"from the zone is at most {median:.2f} for the median entry and {self.max_posterior_quantile_90:.2f} for "
            "the worst. With a buffer around the zone, this transition happens outside the zone."
        )

    def _derive_fields(self, names: Sequence[str]) -> dict[str, Any]:
        entries = [
            export_fields(entry, **{"from": names[entry.state], "into": self._describe_zone(entry, names)})
            for entry in self.entries
        ]
        summary = {"num_unprotected": self.unprotected.sum(), "in_words": self.describe()}
        return {**summary, "max_posterior_quantile_90": self.max_posterior_quantile_90, "entries": entries}

    def _describe_zone(self, entry: Entry, names: Sequence[str]) -> str:
        members = np.flatnonzero(self.components == entry.component)
        return f"zone of {len(members)} states with {names[members[0]]}"


@check_arguments
def audit_entries(
    graph: PolicyLike, f: npt.ArrayLike | Measurements, model: MarkovModel, epsilon: Epsilon = 1.0
) -> EntryAudit:
    """Audit the first release after a step from an unprotected state into a zone.

    Parameters
    ----------
    graph, f
        A policy with unprotected states over ``N`` states, and their measurements ``(N, d)``.
    model
        The movement model.
    epsilon
        The budget of the first release from the zone, sampled by the exact mechanism with noise scope ``"component"``.

    Returns
    -------
    EntryAudit
        The entries into zones.

    Raises
    ------
    BudgetError
        If epsilon is not positive and finite.
    InvalidInputError
        If policy and model differ in the number of states.

    Examples
    --------
    >>> corner = PolicyGraph.categorical([0, 0, -1, -1]).with_open([2, 3])
    >>> line = MarkovModel([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]], np.full(4, 0.25))
    >>> audit = audit_entries(corner, [[0], [1], [2], [3]], line)
    >>> [(entry.state, entry.num_states, entry.prior_probability) for entry in audit.entries]
    [(2, 1, 1.0)]
    """
    policy = as_policy(graph, model.size, get_state_names(model.states), "graph")
    measurements = policy.check_measurements(f)
    if model.size != policy.size:
        raise InvalidInputError(
            f"model and policy must have the same number of states, got {model.size} and {policy.size}"
        )
    labels = policy.components()
    unprotected = policy.open
    matrix = model.inside_transition
    zones = csr_array((np.ones(policy.size), labels, np.arange(policy.size + 1)))[~unprotected]
    places, into = (matrix[:, ~unprotected] @ zones).nonzero()
    places, into = places[unprotected[places]], into[unprotected[places]]
    order = np.lexsort((into, places))
    audited = order
    max_entries = min(MAX_ENTRIES, max(_MIN_ENTRIES, _MAX_PAIRS // policy.size))
    if len(order) > max_entries:
        audited = order[np.linspace(0, len(order) - 1, max_entries).astype(np.int64)]
    engine = Releaser(model, measurements, policy, epsilon, noise_scope="component", allow_singleton=True)
    entries: list[Entry] = []
    for place in np.unique(places[audited]).tolist():
        row = np.zeros(policy.size)
        row_entries = slice(matrix.indptr[place], matrix.indptr[place + 1])
        row[matrix.indices[row_entries]] = matrix.data[row_entries]
        components = into[audited][places[audited] == place].tolist()
        entries += _audit_entries_from(engine, place, row, labels, components)
    entries.sort(key=lambda entry: -entry.posterior_quantile_90)
    return EntryAudit(epsilon, labels, unprotected, tuple(entries), len(order))


def _audit_entries_from(
    engine: Releaser, place: int, row: FloatArray, labels: IntArray, zones: Sequence[int]
) -> list[Entry]:
    """Audit the entries from one state into some zones."""
    prior = Belief.from_probabilities(row)
    step = engine.build_plan(prior, float(engine.settings.epsilon), 1)
    entries = []
    rng = np.random.default_rng(_SEED)
    source = as_random_source(rng)
    for zone in zones:
        cells = np.flatnonzero((labels == zone) & (row > 0))
        weights = row[cells] / row[cells].sum()
        probabilities = []
        for state in rng.choice(cells, _NUM_DRAWS, p=weights).tolist():
            released = engine.query.to_point(step.noise.draw(state, source))
            probabilities.append(float(prior.update(engine.log_likelihood(step, released)).probabilities[state]))
        entries.append(Entry(place, zone, len(cells), float(weights.max()), float(np.quantile(probabilities, 0.9))))
    return entries
