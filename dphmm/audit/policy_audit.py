"""The Markov form of a policy's audit: what stays exposed under a constraint set, and what would repair it.

Entering a zone is a case of its own: the last open release before it narrows down where in the zone a person is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_constraint, check_epsilon, random_source
from dphmm.audit.tables import LISTED, hull_facts
from dphmm.errors import InvalidInputError
from dphmm.facts import Facts, fact, facts_of, named
from dphmm.geometry.hull import Body, Disc, SensitivityHull
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.policy.by_component import Calibration, NoiseBodies, degrees_within, labels_of, noise_body, shapes_of
from dphmm.policy.graph import PolicyGraph, PolicyLike, as_policy, names_of, over_measurements
from dphmm.policy.hull_repair import Objective
from dphmm.policy.protection import Method, Protection, protect
from dphmm.release.engine import Releaser

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

    state: int = field(metadata=fact(states=True))
    output: tuple[float, ...] = field(metadata=fact())
    others: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def gives_away(self) -> bool:
        """Whether every release of the state tells it apart from all others with certainty."""
        return not self.factors or self.factors[0] == inf

    def facts(self, names: Sequence[str], epsilon: float) -> Facts:
        """As plain values for JSON, log ratios at a budget.

        Parameters
        ----------
        names
            ``N`` texts: what the states are called.
        epsilon
            The budget that log ratios are stated for.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        against = [
            {"state": names[other], "factor": factor, "log_ratio": factor * epsilon}
            for other, factor in zip(self.others, self.factors, strict=True)
        ]
        return facts_of(self, names, gives_away_for_certain=self.gives_away, against=against)


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

    mechanism: AuditedMechanism = field(metadata=fact())
    body: SensitivityHull | Disc
    degrees: IntArray = field(repr=False)
    exposed: tuple[int, ...] = field(metadata=fact(states=True))
    witnesses: tuple[Witness, ...] = field(repr=False, metadata=fact())
    factor: float

    @property
    def sensitivity(self) -> float | None:
        """The 1-norm sensitivity ``S_f`` (Laplace), the radius (planar Laplace), or None (K-norm)."""
        return None if self.mechanism == "k-norm" else self.body.circumradius


@dataclass(frozen=True)
class RepairAudit:
    """What one method would add so that no state is exposed, and what that costs.

    Parameters
    ----------
    mechanism, method
        Whose body, and how partners were chosen.
    protection
        The repaired graph, its body, and what is proven of it.
    """

    mechanism: AuditedMechanism = field(metadata=fact())
    method: Method = field(metadata=fact())
    protection: Protection

    def facts(self, names: Sequence[str], epsilon: float) -> Facts:
        """As plain values for JSON, the error at a budget."""
        found = self.protection
        return facts_of(
            self,
            added=named(found.added, names),
            **_noise_facts(found.body, found.diameter, _mean_error(found) / epsilon),
            least_protection=found.degrees[found.graph.node_mask & ~found.open].min(initial=len(names)),
            certified=found.certified,
            gap=found.gap,
        )


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
    repairs
        For each mechanism under which a state is exposed, one per method; empty where one state only is possible,
        which nothing can repair.
    open
        The possible states that are open: released as they are, neither exposed nor protected.
    calibration
        Whether noise was measured for the whole graph or for each component.
    labels
        ``(N,)``: the component of each possible state, -1 for others.
    """

    constraint: BoolArray = field(repr=False)
    hull: SensitivityHull
    disconnected: tuple[int, ...] = field(metadata=fact(states=True))
    components: int = field(metadata=fact())
    bodies: tuple[BodyAudit, ...]
    repairs: tuple[RepairAudit, ...] = field(metadata=fact())
    open: tuple[int, ...] = ()
    calibration: Calibration = field(default="graph", metadata=fact())
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
        """As plain values for JSON: states by name, log ratios and errors at a budget.

        Parameters
        ----------
        names
            ``N`` texts: what the states are called.
        epsilon
            The budget that log ratios and errors are stated for.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        possible = np.flatnonzero(self.constraint)
        return facts_of(
            self,
            names,
            epsilon,
            possible=self.possible,
            possible_states=named(possible[:LISTED], names),
            open=named(self.open[:LISTED], names),
            hull=hull_facts(self.hull),
            exposed=self.is_exposed,
            mechanisms=[self._body_facts(body, names, epsilon) for body in self.bodies],
        )

    def _body_facts(self, body: BodyAudit, names: Sequence[str], epsilon: float) -> Facts:
        possible = np.flatnonzero(self.constraint)
        hidden = np.setdiff1d(possible, self.open)
        degrees = dict(zip(named(possible, names), body.degrees[possible], strict=True))
        return facts_of(
            body,
            names,
            epsilon,
            sensitivity=body.sensitivity,
            **_noise_facts(body.body, body.factor, sqrt(body.body.squared_error) / epsilon),
            least_protection=body.degrees[hidden].min() if len(hidden) else 1,
            degrees=degrees if len(degrees) <= LISTED else None,
        )


def _noise_facts(body: SensitivityHull | Disc, factor: float, error: float) -> Facts:
    return {"area": body.volume, "expected_error": error, "constrained_factor": factor}


@checked
def audit_constraint(
    graph: PolicyLike,
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

    Returns
    -------
    ConstraintAudit
        What is exposed under each mechanism, and every repair.

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
    policy, measurements = over_measurements(graph, f)
    if not mechanisms or any(name not in BODY_OF for name in mechanisms):
        raise InvalidInputError(f"mechanisms to audit are {list(mechanisms)}; choose among {', '.join(BODY_OF)}")
    possible = as_constraint(constraint, policy.size)
    restricted = policy.restrict(possible)
    coordinate_hull = restricted.hull(measurements)
    connected, labels = restricted.connected(), restricted.components()
    bodies = tuple(_audit_body(restricted, measurements, calibration, name) for name in mechanisms)
    repairs = []
    for name in (body.mechanism for body in bodies if body.exposed and possible.sum() > 1):
        wanted: tuple[Method, ...] = get_args(Method) if name == "k-norm" else ("exact",)
        for method in wanted:
            found = protect(policy, measurements, possible, method, objective, BODY_OF[name], calibration=calibration)
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
    graph: PolicyLike,
    f: npt.ArrayLike | Measurements,
    constraints: Iterable[npt.ArrayLike],
    mechanisms: Sequence[AuditedMechanism] = ("k-norm", "laplace"),
    objective: Objective = "error",
    calibration: Calibration = "graph",
) -> Iterator[ConstraintAudit]:
    """`audit_constraint` of each constraint in turn; one that was met before is not worked out again.

    Parameters
    ----------
    graph, f
        The policy over ``N`` states, and their measurements ``(N, d)``.
    constraints
        The possible states ``(N,)`` of each step.
    mechanisms, objective, calibration
        As in `audit_constraint`.

    Yields
    ------
    ConstraintAudit
        One for each constraint, in order.
    """
    policy, measurements = over_measurements(graph, f)
    known: dict[bytes, ConstraintAudit] = {}
    for constraint in constraints:
        possible = as_constraint(constraint, policy.size)
        key = np.packbits(possible).tobytes()
        if key not in known:
            known[key] = audit_constraint(policy, measurements, possible, mechanisms, objective, calibration)
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
    graph: PolicyGraph, measurements: Measurements, calibration: Calibration, mechanism: AuditedMechanism
) -> BodyAudit:
    """What a mechanism leaves exposed, each part of the states with noise of its own."""
    body = BODY_OF[mechanism]
    labels = labels_of(graph, calibration)
    bodies = NoiseBodies.around(measurements, shapes_of(graph, measurements, labels), body)
    degrees = degrees_within(measurements, labels, bodies, body, "halfspace")
    exposed = np.flatnonzero((degrees == 1) & ~graph.open).tolist()
    own = [bodies.bodies[int(bodies.of_component[labels[state]])].body for state in exposed[:WITNESSES]]
    seen = zip(exposed[:WITNESSES], own, strict=True)
    witnesses = tuple(_witness(measurements.points, one, labels == labels[state], state) for state, one in seen)
    largest = bodies.bodies[int(bodies.of_component[np.bincount(labels[labels >= 0]).argmax()])]
    diameter = inf
    if labels.max() == 0:
        around = CoordinateBody(measurements, noise_body(measurements, largest.coordinate_hull, body))
        diameter = around.diameter(graph.node_mask)
    return BodyAudit(mechanism, largest.body, degrees, tuple(exposed), witnesses, diameter)


def _mean_error(found: Protection) -> float:
    """The root mean square error at epsilon one of a release of the possible states, all alike."""
    squared = np.array([part.body.squared_error for part in found.parts])
    return sqrt(float(squared[found.part_of[found.part_of >= 0]].mean()))


def _witness(points: FloatArray, body: SensitivityHull | Disc, possible: BoolArray, state: int) -> Witness:
    others = np.setdiff1d(np.flatnonzero(possible), state)
    factors = body.norm(points[state] - points[others])
    nearest = np.lexsort((others, factors))[:_OTHERS]
    return Witness(
        state, tuple(points[state].tolist()), tuple(others[nearest].tolist()), tuple(factors[nearest].tolist())
    )


ENTRIES = 100
"""At most this many ways into zones are looked at, at equal steps through all; fewer of many states."""
_LOOKS = 100_000
"""About how many ways times states are looked at, but for the first few."""
_FEWEST = 16

_DRAWS = 64
_SEED = 5
"""Draws for each place come from a generator of its own: an audit says the same each time."""


@dataclass(frozen=True)
class Entry:
    """Entering from one open place: what a release from there, and the next one from a zone, tell.

    Parameters
    ----------
    place
        The open state of the last open release.
    zone
        The policy's component that is entered.
    cells
        How many of its states can follow.
    before
        How probable the likeliest of them is to an adversary who knows that the zone was entered, before any noise
        is drawn.
    after
        How probable the true one is after the first release from the zone: a level that nine in ten draws stay below.
    """

    place: int
    zone: int
    cells: int = field(metadata=fact())
    before: float = field(metadata=fact())
    after: float = field(metadata=fact())


@dataclass(frozen=True, eq=False)
class EntryAudit:
    """All ways into the zones of a policy with open places.

    Parameters
    ----------
    epsilon
        The budget of the first release from a zone.
    components
        ``(N,)``: the policy's components; see `dphmm.PolicyGraph.components`.
    open
        ``(N,)``: which states are open.
    entries
        One for each way that was looked at, the one that tells most first.
    ways
        How many there are: open places, each with a zone that one step leads into.
    """

    epsilon: float
    components: IntArray = field(repr=False)
    open: BoolArray = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)
    ways: int = field(metadata=fact())

    @property
    def worst(self) -> float:
        """The highest level of `Entry.after`; 0 where there is no way in."""
        return max((entry.after for entry in self.entries), default=0.0)

    def in_words(self) -> str:
        """What entering tells, in a sentence.

        Returns
        -------
        str
            For people.
        """
        zones, count = len({entry.zone for entry in self.entries}), len(self.entries)
        if not self.entries:
            return "No open place leads into a zone in one step."
        median = float(np.median([entry.after for entry in self.entries]))
        looked = "" if count == self.ways else f" ({count:,} of them were looked at)"
        return (
            f"One step leads from open places into {zones:,} zone{'s' * (zones > 1)} in {self.ways:,} ways{looked}: "
            f"after the first release from there, nine draws in ten leave the true place at most {median:.2f} probable "
            f"at the median way in, {self.worst:.2f} at the worst. A buffer moves this moment out of the zone."
        )

    def facts(self, names: Sequence[str]) -> Facts:
        """As plain values for JSON: states by name.

        Parameters
        ----------
        names
            ``N`` texts: what the states are called.

        Returns
        -------
        dict
            Texts, numbers, None and lists of them.
        """
        entries = [
            facts_of(entry, **{"from": names[entry.place], "into": self._zone(entry, names)}) for entry in self.entries
        ]
        return facts_of(self, open=self.open.sum(), worst=self.worst, in_words=self.in_words(), entries=entries)

    def _zone(self, entry: Entry, names: Sequence[str]) -> str:
        members = np.flatnonzero(self.components == entry.zone)
        return f"zone of {len(members)} states with {names[members[0]]}"


@checked
def audit_entries(
    graph: PolicyLike, f: npt.ArrayLike | Measurements, model: MarkovModel, epsilon: float = 1.0
) -> EntryAudit:
    """What releases tell of people who enter a zone, one step after an open release.

    Parameters
    ----------
    graph, f
        A policy with open states over ``N`` states, and their measurements ``(N, d)``.
    model
        How people move.
    epsilon
        The budget of the first release from the zone, drawn by the exact mechanism with noise by component.

    Returns
    -------
    EntryAudit
        All ways into zones.

    Raises
    ------
    BudgetError
        When epsilon is not positive and finite.
    InvalidInputError
        When policy and model differ in the number of states.

    Examples
    --------
    >>> corner = PolicyGraph.categorical([0, 0, -1, -1]).with_open([2, 3])
    >>> line = MarkovModel([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0.5, 0.5]], np.full(4, 0.25))
    >>> found = audit_entries(corner, [[0], [1], [2], [3]], line)
    >>> [(entry.place, entry.cells, entry.before) for entry in found.entries]
    [(2, 1, 1.0)]
    """
    check_epsilon(epsilon)
    policy = as_policy(graph, model.size, names_of(model.states), "graph")
    measurements = policy.check_measurements(f)
    if model.size != policy.size:
        raise InvalidInputError(f"the model has {model.size} states and the policy {policy.size}; they must agree")
    labels, open_ = policy.components(), policy.open
    matrix = model.moves_inside
    zones = csr_array((np.ones(policy.size), labels, np.arange(policy.size + 1)))[~open_]
    places, into = (matrix[:, ~open_] @ zones).nonzero()
    places, into = places[open_[places]], into[open_[places]]
    order = np.lexsort((into, places))
    some = order
    most = min(ENTRIES, max(_FEWEST, _LOOKS // policy.size))
    if len(order) > most:
        some = order[np.linspace(0, len(order) - 1, most).astype(np.int64)]
    engine = Releaser(model, measurements, policy, epsilon, calibration="component", allow_known=True)
    found: list[Entry] = []
    for place in np.unique(places[some]).tolist():
        row = np.zeros(policy.size)
        entries = slice(matrix.indptr[place], matrix.indptr[place + 1])
        row[matrix.indices[entries]] = matrix.data[entries]
        found += _entries(engine, place, row, labels, into[some][places[some] == place].tolist())
    return EntryAudit(epsilon, labels, open_, tuple(sorted(found, key=lambda entry: -entry.after)), len(order))


def _entries(engine: Releaser, place: int, row: FloatArray, labels: IntArray, zones: Sequence[int]) -> list[Entry]:
    """Some zones that are entered from a place by a row of the model's matrix."""
    prior = Belief.of(row)
    step = engine.prepare_on(prior, engine.plan(prior), float(engine.settings.epsilon), 1)
    found, rng = [], np.random.default_rng(_SEED)
    source = random_source(rng)
    for zone in zones:
        cells = np.flatnonzero((labels == zone) & (row > 0))
        weights = row[cells] / row[cells].sum()
        probabilities = []
        for state in rng.choice(cells, _DRAWS, p=weights).tolist():
            released = engine.query.place(step.noise.draw(state, source))
            probabilities.append(float(prior.update(engine.log_likelihood(step, released)).probabilities[state]))
        found.append(Entry(place, zone, len(cells), float(weights.max()), float(np.quantile(probabilities, 0.9))))
    return found
