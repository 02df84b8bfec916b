"""Audits of what may be released (policies, secrets, mechanisms) and of what was: places, and events over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, eye_array

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, Rng, as_distribution, check_epsilon, random_source
from dphmm.audit.blowfish import BlowfishPolicy, audit_blowfish
from dphmm.audit.blowfish import SecretsAudit as SecretsAudit
from dphmm.audit.empirical import PairAudit, audit_pairs, hardest_edges
from dphmm.audit.inference import TOP, AdversaryAudit, audit_support
from dphmm.audit.policy_audit import (
    AuditedMechanism,
    ConstraintAudit,
    EntryAudit,
    audit_constraints,
    audit_entries,
    support_sequence,
)
from dphmm.audit.realised import EventAudit, audit_events
from dphmm.audit.sequence import PUBLIC, SequenceAudit, Thresholds, audit_adversaries, verdict
from dphmm.audit.tables import edges_graph, possible_states, read_edges, read_prior, read_secrets, read_states
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, StochasticError
from dphmm.events import Event, EventText, parse_event
from dphmm.facts import fact, facts_of, plain
from dphmm.geometry.measurements import Measurements
from dphmm.jobs.adversaries import Adversaries
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.progress import Watch, unwatched
from dphmm.jobs.stored_releases import Replayed, SettingsLike, replay_all
from dphmm.mechanisms.base import MechanismName
from dphmm.mechanisms.exact import Rational
from dphmm.model.model import MarkovModel
from dphmm.policy import Objective, PolicyGraph, parse_policy, protect
from dphmm.policy.by_component import Calibration
from dphmm.policy.graph import PolicyLike, as_policy
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.settings import GIVEN
from dphmm.release.trajectory import located
from dphmm.space.states import OUTSIDE, Places, StateSpace
from dphmm.tables.values import iso_time, shorten

Prior = npt.ArrayLike | str | Path
"""Another adversary's prior: a distribution ``(N,)``, or a table with columns ``state`` and ``probability``."""


@dataclass(frozen=True, eq=False)
class Constraint:
    """Which states are possible, and what that is called.

    Parameters
    ----------
    label
        For people.
    states
        The constraint set, ``(N,)``.
    """

    label: str
    states: BoolArray = field(repr=False)


@checked
@dataclass(frozen=True, eq=False)
class Subject:
    """Named states with their measurements, and a policy over them; the model where there is one.

    Parameters
    ----------
    names
        What the ``N`` states are called.
    measurements
        What is measured in each.
    policy
        The policy graph over them; a `networkx.Graph` of their numbers or names is converted.
    model
        How people move among them, or None.

    Examples
    --------
    >>> from dphmm import PolicyGraph
    >>> f = Measurements([[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 2]])
    >>> subject = Subject(("s1", "s2", "s3", "s4", "s5", "s6"), f, PolicyGraph.categorical([0, 1, 1, 2, 2, 2]))
    >>> subject.possible(("s2", "s3", "s5")).label
    'possible: s2,s3,s5'
    """

    names: tuple[str, ...]
    measurements: Measurements
    policy: PolicyGraph
    model: MarkovModel | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", as_policy(self.policy, len(self.names), self.names))

    @classmethod
    @checked
    def from_model(cls, model: Model, policy: str | PolicyLike) -> Subject:
        """The states of a model, with a policy as text or as a graph.

        Parameters
        ----------
        model
            The model, or its file.
        policy
            The policy as text, such as ``"utility:1km"``; or a `PolicyGraph` or a `networkx.Graph`.

        Raises
        ------
        ConfigurationError, DataFileError, PolicyError
            As `dphmm.jobs.load_model` and `dphmm.parse_policy`.
        """
        learned = load_model(model)
        space = learned.space
        return cls(state_names(space), space.measurements(), parse_policy(policy, space, learned.structure), learned)

    @classmethod
    def from_tables(cls, states: str | Path, edges: str | Path | None = None, category: str | None = None) -> Subject:
        """The states of a table, with a policy of exactly one kind.

        Parameters
        ----------
        states
            A column ``state``; the columns of numbers among the others are measurements.
        edges
            A table of two columns: pairs that must be indistinguishable.
        category
            A column of the states: those of equal value must be.

        Raises
        ------
        ConfigurationError
            When neither or both kinds of policy are given.
        DataFileError, PolicyError
            As the tables say.
        """
        if (edges is None) == (category is None):
            raise ConfigurationError("no single policy is given; with --states give --edges FILE or --category COLUMN")
        names, measurements, labels = read_states(states, category)
        policy = PolicyGraph.categorical(labels) if edges is None else edges_graph(names, read_edges(edges))
        return cls(names, Measurements(measurements), policy)

    def all_states(self) -> Constraint:
        """Everything is possible.

        Returns
        -------
        Constraint
            All ``N`` states.
        """
        return Constraint("all states", np.ones(len(self.names), dtype=np.bool_))

    @checked
    def possible(self, names: Sequence[str]) -> Constraint:
        """These states alone are possible.

        Parameters
        ----------
        names
            The names of the states.

        Returns
        -------
        Constraint
            The set of them.

        Raises
        ------
        StateError
            When a state is named twice or does not exist.
        """
        text = ",".join(names)
        label = f"possible: {text if len(text) <= 60 else text[:57] + '…'}"
        return Constraint(label, possible_states(names, self.names))

    @checked
    def along(self, steps: int, start: Sequence[str] = ()) -> list[Constraint]:
        """What is possible along the model's support, equal neighbours in time as one.

        Parameters
        ----------
        steps
            How many time steps.
        start
            The states possible at first; left out, those of the model's initial distribution.

        Returns
        -------
        list of Constraint
            In order of time.

        Raises
        ------
        ConfigurationError
            When there is no model to say what can follow.
        StateError, InvalidInputError
            When a state is named twice or does not exist, there is no step, or there are more than 50,000.
        """
        if self.model is None:
            raise ConfigurationError("--steps needs a model to say what can follow; give --model, or --possible")
        if steps > _MOST_STEPS:
            raise InvalidInputError(f"--steps is {steps:,}; give at most {_MOST_STEPS:,}")
        first = possible_states(start, self.names) if len(start) else None
        supports = enumerate(support_sequence(self.model, steps, first), start=1)
        found = []
        for key, run in groupby(supports, key=lambda timed: timed[1].tobytes()):
            times = [t for t, _ in run]
            label = f"t = {times[0]}" + (f" to {times[-1]}" if len(times) > 1 else "")
            found.append(Constraint(label, np.frombuffer(key, dtype=np.bool_)))
        return found


_MOST_STEPS = 50_000


def state_names(space: StateSpace) -> tuple[str, ...]:
    """What states are called: the names of places, the numbers of cells."""
    return tuple(space.names) if isinstance(space, Places) else tuple(str(i) for i in range(space.size))


def checked_prior(prior: Prior | None, names: Sequence[str]) -> FloatArray | None:
    """Another adversary's prior over named states, ``(N,)``; None where there is no such adversary.

    Raises
    ------
    DataFileError
        When it is a table that cannot be read, or whose probabilities do not sum to one.
    StochasticError
        When it is no distribution over the states.
    """
    if prior is None or not isinstance(prior, str | Path):
        return None if prior is None else as_distribution(prior, len(names), "the prior")
    try:
        return as_distribution(read_prior(prior, names), len(names), "the prior")
    except StochasticError as problem:
        raise DataFileError(prior, str(problem)) from None


_BODIES: tuple[AuditedMechanism, ...] = ("k-norm", "laplace")


@dataclass(frozen=True, eq=False)
class PolicyAudit:
    """A policy under some constraints.

    Parameters
    ----------
    subject
        The states and the policy.
    epsilon
        The budget at which levels and errors are stated.
    constraints, audits
        Which states were possible, and what was found under each.
    others
        What the repaired K-norm release means for another adversary under each; None where there is no such adversary,
        or one state only was possible.
    entries
        What is disclosed of people who enter a zone; None where the policy has no open places or there is no model.
    """

    subject: Subject
    epsilon: float = field(metadata=fact())
    constraints: tuple[Constraint, ...]
    audits: tuple[ConstraintAudit, ...] = field(repr=False)
    others: tuple[AdversaryAudit | None, ...] = field(repr=False)
    entries: EntryAudit | None = field(default=None, repr=False, metadata=fact())

    @property
    def is_exposed(self) -> bool:
        """Whether some state is, to the public adversary or to the other one."""
        known = (other is not None and bool(other.exposed or other.known) for other in self.others)
        return any(audit.is_exposed for audit in self.audits) or any(known)

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        names = self.subject.names
        each = zip(self.constraints, self.audits, self.others, strict=True)
        constraints = [
            {"label": constraint.label, **audit.facts(names, self.epsilon), "adversary": plain(other, names)}
            for constraint, audit, other in each
        ]
        return facts_of(self, names, form="markov", states=len(names), exposed=self.is_exposed, constraints=constraints)


@checked
def audit_policy(
    subject: Subject,
    constraints: Sequence[Constraint] = (),
    mechanisms: Sequence[AuditedMechanism] = _BODIES,
    *,
    epsilon: float = 1.0,
    objective: Objective = "error",
    calibration: Calibration = "graph",
    prior: Prior | None = None,
    watch: Watch = unwatched,
) -> PolicyAudit:
    """What a policy leaves exposed, with witnesses, and how each repair would help, as ``dphmm audit policy`` does.

    Parameters
    ----------
    subject
        The states and the policy: `Subject.from_model`, `Subject.from_tables`.
    constraints
        Which states are possible: `Subject.possible`, `Subject.along`; left out, all.
    mechanisms
        The mechanisms whose bodies are looked at.
    epsilon
        The budget at which levels and errors are stated.
    objective
        What the exact repair minimises.
    calibration
        Whether noise is measured for the whole graph, or for each component by itself.
    prior
        Another adversary's, for whom the repaired K-norm release is looked at as well.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    PolicyAudit
        What is exposed under each constraint.

    Raises
    ------
    BudgetError
        When epsilon is not positive and finite.
    DphmmError
        As `dphmm.audit.policy_audit.audit_constraint`, and the table of the prior.

    Examples
    --------
    >>> from dphmm.jobs import Subject, audit_policy, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> subject = Subject.from_model(model, "utility:1km")
    >>> found = audit_policy(subject, [subject.possible(("3", "4", "90"))])
    >>> found.is_exposed, found.audits[0].bodies[0].exposed
    (True, (90,))
    """
    check_epsilon(epsilon)
    believed = checked_prior(prior, subject.names)
    chosen = tuple(constraints) or (subject.all_states(),)
    policy, f, sets = subject.policy, subject.measurements, [constraint.states for constraint in chosen]

    def other(audit: ConstraintAudit) -> AdversaryAudit | None:
        if believed is None or audit.possible <= 1:
            return None
        repaired = protect(policy, f, audit.constraint, objective=objective, calibration=calibration)
        return audit_support(repaired, f, believed > 0)

    found = audit_constraints(policy, f, sets, mechanisms, objective, calibration)
    audits = tuple(watch(found, "Auditing", len(chosen)))
    model = subject.model if policy.open.any() else None
    entries = None if model is None else audit_entries(policy, f, model, epsilon)
    return PolicyAudit(subject, float(epsilon), chosen, audits, tuple(map(other, audits)), entries)


@checked
def audit_secrets(
    secrets: str | Path,
    edges: str | Path,
    counts: Sequence[str] = (),
    mechanisms: Sequence[AuditedMechanism] = _BODIES,
    *,
    epsilon: float = 1.0,
) -> SecretsAudit:
    """Which secrets of a database a policy leaves exposed, as ``dphmm audit policy --secrets`` does.

    Parameters
    ----------
    secrets
        A table with a column ``secret``; without `counts` the columns of numbers are what each adds to the answers.
    edges
        A table of two columns: pairs that must be indistinguishable, ``null`` for absence.
    counts
        Count queries ``COLUMN=VALUE``, several conditions joined by commas.
    mechanisms, epsilon
        As in `audit_policy`; of the mechanisms ``"k-norm"`` and ``"laplace"``.

    Returns
    -------
    SecretsAudit
        The levels of each mechanism, and which secrets are exposed.

    Raises
    ------
    DataFileError, PolicyError
        As the tables say.
    InvalidInputError, BudgetError
        For another mechanism, or an epsilon that is none.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     secrets, edges = Path(folder, "secrets.csv"), Path(folder, "edges.csv")
    ...     _ = secrets.write_text("secret,x,y\\na,1,0\\nb,0,2\\n")
    ...     _ = edges.write_text("first,second\\na,null\\n")
    ...     found = audit_secrets(secrets, edges)
    >>> found.exposed("k-norm")
    ('b',)
    """
    names, contributions = read_secrets(secrets, counts)
    policy = BlowfishPolicy(names, contributions, read_edges(edges))
    return audit_blowfish(policy, epsilon, mechanisms)


@dataclass(frozen=True, eq=False)
class MechanismAudit:
    """What a mechanism was seen to give, over edges of a repaired graph.

    Parameters
    ----------
    subject, constraint
        The states, the policy, and which states were possible.
    mechanism, epsilon
        What was drawn from, and the budget.
    confidence
        That all bounds hold together.
    low_bits
        Whether events could depend on the last bits of draws.
    pairs
        A bound for each edge.
    """

    subject: Subject
    constraint: Constraint
    mechanism: str = field(metadata=fact())
    epsilon: float = field(metadata=fact())
    confidence: float = field(metadata=fact())
    low_bits: bool = field(metadata=fact())
    pairs: tuple[PairAudit, ...] = field(repr=False, metadata=fact())

    @property
    def is_exposed(self) -> bool:
        """Whether some claim is violated."""
        return any(pair.violated for pair in self.pairs)

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        largest = max(pair.lower for pair in self.pairs)
        more = {"constraint": self.constraint.label, "exposed": self.is_exposed, "largest_lower_bound": largest}
        return facts_of(self, self.subject.names, **more)


@checked
def audit_mechanism(
    subject: Subject,
    mechanism: MechanismName = "lattice",
    epsilon: float = 1.0,
    constraint: Constraint | None = None,
    *,
    spacing: Rational = ReleaseSettings.spacing,
    calibration: Calibration = "graph",
    samples: int = 100_000,
    confidence: float = 0.99,
    pairs: int | None = 8,
    low_bits: bool = False,
    rng: Rng = None,
    watch: Watch = unwatched,
) -> MechanismAudit:
    """Lower confidence bounds on the epsilon that a mechanism really gives, as ``dphmm audit mechanism`` does.

    Parameters
    ----------
    subject
        The states and the policy, whose repaired graph's edges are looked at.
    mechanism, epsilon, spacing, calibration
        As in `dphmm.ReleaseSettings`.
    constraint
        Which states are possible; left out, all.
    samples
        Draws of each state of a pair.
    confidence
        That all bounds hold together.
    pairs
        How many of the hardest edges of each body of noise, or None for every edge.
    low_bits
        Whether events may depend on the last bits of floating-point draws.
    rng
        Left out, the operating system's randomness.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    MechanismAudit
        A lower bound for each edge.

    Raises
    ------
    ConfigurationError
        When the repaired graph has no edge.
    InvalidInputError
        When the confidence is none, or no pair is asked for.
    DphmmError
        As `dphmm.Releaser` and `dphmm.audit.empirical.audit_pair`.

    Examples
    --------
    >>> from dphmm.jobs import Subject, audit_mechanism, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> subject = Subject.from_model(model, "utility:1km")
    >>> found = audit_mechanism(subject, epsilon=0.5, samples=2000, pairs=2, rng=1)
    >>> len(found.pairs), found.is_exposed
    (2, False)
    """
    if not 0 < confidence < 1 or (pairs is not None and pairs < 1):
        raise InvalidInputError(
            f"confidence is {confidence:g} and pairs {pairs}; give a number between 0 and 1, and at least one pair"
        )
    possible = constraint or subject.all_states()
    given = GIVEN + subject.policy.content_hash
    settings = ReleaseSettings(given, epsilon, mechanism, spacing=spacing, calibration=calibration)
    source = random_source(rng)
    engine = _engine(subject, possible.states, settings, source)
    step = engine.prepare()
    graph, f = step.plan.protection.graph, engine.measurements
    each = [(part, members) for part, members in step.noise.each_part() if members.any()]
    chosen = [(part, hardest_edges(graph.restrict(members), f, pairs)) for part, members in each]
    count = sum(len(edges) for _, edges in chosen)
    if not count:
        raise ConfigurationError("the policy has no edge between possible states; there is nothing to sample")

    def bounds() -> Iterator[PairAudit]:
        for part, edges in chosen:
            own, budget = 1.0 - (1.0 - confidence) * len(edges) / count, settings.epsilon
            yield from audit_pairs(part, engine.values, edges, budget, samples, own, rng=source, low_bits=low_bits)

    found = tuple(watch(bounds(), "Sampling", count))
    return MechanismAudit(subject, possible, mechanism, settings.epsilon, confidence, low_bits, found)


def _engine(subject: Subject, possible: BoolArray, settings: ReleaseSettings, rng: Rng) -> Releaser:
    """An engine whose first step is under the constraint."""
    chain = MarkovModel(csr_array(eye_array(len(subject.names))), np.asarray(possible / possible.sum()))
    if subject.model is not None:
        return Releaser.made(settings, chain, subject.model.space, subject.policy, rng)
    more = {"spacing": settings.spacing, "calibration": settings.calibration}
    return Releaser(chain, subject.measurements, subject.policy, settings.epsilon, settings.mechanism, rng=rng, **more)


@dataclass(frozen=True, eq=False)
class SessionAudit:
    """What the releases of each of some people disclose.

    Parameters
    ----------
    space
        The states.
    people
        Their releases.
    audits
        What was found about each, one for each adversary, the public one's first.
    private
        Whether the truth went in, or earlier data of these people; what was found is private then.
    thresholds
        What was to be learned at most.
    """

    space: StateSpace
    people: tuple[Replayed, ...]
    audits: tuple[SequenceAudit, ...] = field(repr=False)
    private: bool = field(metadata=fact())
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def is_exposed(self) -> bool:
        """Whether at some release some state was, or more was learned than the thresholds allow."""
        return bool(self.beyond) or self.has_exposed_state

    @property
    def has_exposed_state(self) -> bool:
        """Whether at some release some state was exposed."""
        return any(audit.exposed_steps for audit in self.audits)

    @cached_property
    def beyond(self) -> dict[str, tuple[str, ...]]:
        """User → what was learned of them beyond the thresholds, in words; those alone of whom something was."""
        found: dict[str, tuple[str, ...]] = {}
        for audit in self.audits:
            who = "" if audit.knows == PUBLIC.knows else f"to somebody who knows {audit.knows}, "
            said = tuple(f"{who}{one}" for one in self.thresholds.violations(audit))
            if said:
                found[audit.user] = found.get(audit.user, ()) + said
        return found

    def in_words(self) -> str:
        """What each release hides, what all of them disclose of the person known best, and whether that is much.

        Returns
        -------
        str
            Some sentences.
        """
        kept = (
            "At some release a state is exposed."
            if self.has_exposed_state
            else "At no release is a state exposed: each possible one, open places aside, has another that this "
            "release tells it from by a factor of at most e^epsilon."
        )
        known_best = max(self.audits, key=lambda audit: float(audit.hindsight.best.mean()))
        text = f"{kept} {known_best.in_words()} {verdict(known_best)}."
        for user, said in list(self.beyond.items())[:1]:
            return (
                f"{text} Beyond the thresholds are {len(self.beyond)} of {len(self.people)} users; {user}: "
                f"{'; '.join(said)}. Release less often or with a smaller epsilon: dphmm calibrate finds it."
            )
        return text if self.thresholds == Thresholds() else f"{text} No one is known beyond the thresholds."

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        names, was = state_names(self.space), {one.sequence.user: one.private for one in self.people}
        users = [{**audit.facts(names), "randomness_was_private": was[audit.user]} for audit in self.audits]
        found = {"exposed": self.is_exposed, "in_words": self.in_words(), "thresholds": vars(self.thresholds)}
        return facts_of(self, **found, beyond=self.beyond, users=users)


@checked
def audit_session(
    path: str | Path,
    model: Model,
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    prior: Prior | None = None,
    true: DataLike | None = None,
    adversaries: Adversaries | None = None,
    top: int = TOP,
    thresholds: Thresholds | None = None,
    keep_beliefs: bool = True,
    watch: Watch = unwatched,
) -> SessionAudit:
    """What releases tell the best-informed adversary, as ``dphmm audit session`` does.

    Parameters
    ----------
    path, model, settings, users
        As in `replay`.
    prior
        The distribution of the first state that another adversary holds; left out, the model's.
    true
        The trajectories that were released, where they may be known; the result is private then.
    adversaries
        Who else reads the releases, such as somebody with earlier data of the same people; the result has an audit for
        each of them beside the public one's, and may be private.
    top
        How many places count as the top.
    thresholds
        The most that may be learned; a person who is known better counts as exposed.
    keep_beliefs
        Whether audits hold the beliefs at each release, and what everybody thinks of how each person moves; without
        them thousands of people fit into memory.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    SessionAudit
        What is known of each person, at each release and in hindsight.

    Raises
    ------
    DphmmError
        As `replay`, `dphmm.audit.sequence.audit_sequence` and the data.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, audit_session, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> others, town = (Data(("data/sample/geolife",), users=users) for users in (("000", "001"), ("002",)))
    >>> model = learn(others, space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/releases.csv"
    ...     made = release(town, model, ReleaseSettings(policy="utility:1km", epsilon=0.5), file, rng=1)
    ...     found = audit_session(file, model, "utility:1km", true=town)
    >>> found.is_exposed, found.audits[0].epsilon == 0.5 * len(made.table)
    (False, True)
    >>> bool(found.audits[0].hindsight.entropy.mean() < found.audits[0].uninformed.entropy.mean())
    True
    """
    learned = load_model(model)
    believed, people = _adversary_and_people(path, learned, settings, users, prior)
    truths = [None] * len(people) if true is None else true_states(true, people)
    others = adversaries or Adversaries()
    readers = others.of(learned, {one.sequence.user: one.slots[0] for one in people})
    audits = list[SequenceAudit]()
    for one, truth in watch(zip(people, truths, strict=True), "Replaying", len(people)):
        theirs = [replace(reader, prior=believed) for reader in readers[one.sequence.user]]
        made = audit_adversaries(one.engine, one.sequence, theirs, truth, top)
        audits += made if keep_beliefs else [replace(audit, filtering=None, smoothed=()) for audit in made]
    private = true is not None or others.is_private
    return SessionAudit(learned.space, people, tuple(audits), private, thresholds or Thresholds())


def true_states(data: DataLike, everyone: Sequence[Replayed]) -> list[IntArray]:
    """The true states of each person at each of their releases, ``(T,)`` each. Private."""
    users = tuple(one.sequence.user for one in everyone)
    tracks = {one.user: one for one in replace(Data.from_any(data), users=users).read().trajectories}
    found = []
    for one, user in zip(everyone, users, strict=True):
        track, space = tracks[user].resample(one.engine.model.step), one.engine.model.space
        states, _ = located(space, track.latitude, track.longitude, one.engine.settings.outside)
        at = dict(zip(track.slots.tolist(), states.tolist(), strict=True))
        truth = np.array([at.get(slot, OUTSIDE) for slot in one.slots])
        if (truth < 0).any():
            raise ConfigurationError(
                f"user {user}: the true trajectory has no place within the region at release "
                f"{int((truth < 0).argmax()) + 1}; give the data that was released"
            )
        found.append(truth)
    return found


EventLike = str | EventText | Event
"""An event, in words or as a value whose times are steps from the first release."""

CERTAINTY = 0.9
"""A probability above which an event counts as learned, unless another is given."""


@dataclass(frozen=True, eq=False)
class EventAudits:
    """What the releases of each of some people disclose of some events.

    Parameters
    ----------
    people
        Their releases.
    audits
        For each of the people, one for each adversary and event.
    most_certainty, least_certainty
        Above and below which probability an event counts as learned.
    private
        Whether earlier data of these people went in; what was found is private then.
    """

    people: tuple[Replayed, ...]
    audits: tuple[tuple[EventAudit, ...], ...] = field(repr=False)
    most_certainty: float = field(metadata=fact())
    least_certainty: float = field(metadata=fact())
    private: bool = field(default=False, metadata=fact())

    @property
    def is_exposed(self) -> bool:
        """Whether some event was learned at some release."""
        return any(self.is_learned(audit) for audits in self.audits for audit in audits)

    def is_learned(self, audit: EventAudit) -> bool:
        """Whether at some release an event was more probable than the most, or less than the least.

        Parameters
        ----------
        audit
            The audit of one event for one person.

        Returns
        -------
        bool
            Whether a threshold was passed.
        """
        probability = audit.probability
        return bool((probability > self.most_certainty).any() or (probability < self.least_certainty).any())

    def when(self, person: Replayed, audit: EventAudit, release: int) -> str:
        """When a release was, as text: its time in UTC, or its step where the model does not say how long one is.

        Parameters
        ----------
        person
            Whose release.
        audit
            The audit of an event.
        release
            The number of the release, from 0.

        Returns
        -------
        str
            Such as ``2024-03-07T09:00:00Z``, or ``step 12``.
        """
        seconds = person.engine.model.step_seconds
        if seconds is None:
            return f"step {int(audit.times[release])}"
        return iso_time(np.datetime64(round(person.slots[release] * seconds * 1_000_000), "us"))

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        found = []
        for person, audits in zip(self.people, self.audits, strict=True):
            for audit in audits:
                stated = audit.facts()
                for mover in stated["moved_most"]:
                    mover["time"] = self.when(person, audit, mover["release"] - 1)
                found.append({**stated, "learned": self.is_learned(audit), "randomness_was_private": person.private})
        return facts_of(self, exposed=self.is_exposed, events=found)


@checked
def audit_event(
    path: str | Path,
    model: Model,
    event: EventLike | Sequence[EventLike],
    settings: SettingsLike | None = None,
    *,
    users: Sequence[str] = (),
    prior: Prior | None = None,
    adversaries: Adversaries | None = None,
    most_certainty: float | None = None,
    least_certainty: float = 0.0,
    watch: Watch = unwatched,
) -> EventAudits:
    """What releases tell of events, as ``dphmm audit event`` does.

    Parameters
    ----------
    path, model, settings, users
        As in `dphmm.jobs.replay`.
    event
        One event or several, in words (see `dphmm.events.parse_event`) or as values. Windows in dates are counted from
        each person's first release; what they hold before it is left out, because the model says nothing of it.
    prior
        The distribution of the first state that another adversary holds; left out, the model's.
    adversaries
        Who else reads the releases, beside the public adversary; what is found may be private then.
    most_certainty, least_certainty
        Above and below which probability an event counts as learned. Left out, above the greatest cap on one of the
        events in the settings that the releases were made with, or 0.9 where there is none.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    EventAudits
        What was learned of each event and person.

    Raises
    ------
    EventError
        When an event cannot be read, lies outside a person's releases, or is certain or impossible before anything is
        released.
    ConfigurationError
        When the certainties are none, or as `dphmm.jobs.replay`.
    DphmmError
        As `dphmm.jobs.replay`, and the table of the prior.

    Examples
    --------
    >>> import tempfile
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Data, audit_event, learn, region, release
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn(Data(("data/sample/geolife",), exclude_users=("002",)), space, step_seconds=300).model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/releases.csv"
    ...     town = Data(("data/sample/geolife",), users=("002",))
    ...     made = release(town, model, ReleaseSettings(policy="utility:1km", epsilon=0.5), file, rng=1)
    ...     found = audit_event(file, model, "at:95,99 between 5 and 30", "utility:1km")
    >>> len(found.audits[0][0].told) == len(made.table)
    True
    """
    _check_certainties(least_certainty, 1.0 if most_certainty is None else most_certainty)
    if not isinstance(event, str | EventText | Event | Sequence):
        raise ConfigurationError(f"event is {shorten(event)}; give a text or an event, or a list of them")
    asked = event if isinstance(event, Sequence) and not isinstance(event, str) else [event]
    if not asked:
        raise ConfigurationError("no event is given; give one such as 'at:clinic.geojson on 2024-03-04'")
    worded = [(str(one), parse_event(one) if isinstance(one, str) else one) for one in asked]
    learned, others = load_model(model), adversaries or Adversaries()
    believed, people = _adversary_and_people(path, learned, settings, users, prior)
    if most_certainty is None:
        events = {str(read) for _, read in worded}
        caps = [cap for one in people for cap in one.engine.settings.caps if str(cap.event) in events]
        most_certainty = max((cap.probability for cap in caps), default=CERTAINTY)
        _check_certainties(least_certainty, most_certainty)
    readers = others.of(learned, {one.sequence.user: one.slots[0] for one in people})
    found = []
    for one in watch(people, "Replaying", len(people)):
        audits = list[EventAudit]()
        for who in readers[one.sequence.user]:
            audits += audit_events(one.engine, one.sequence, worded, believed, who)
        found.append(tuple(audits))
    return EventAudits(people, tuple(found), float(most_certainty), float(least_certainty), others.is_private)


def _check_certainties(least: float, most: float) -> None:
    if not 0 <= least < most <= 1:
        raise ConfigurationError(
            f"the certainties are {least:g} and {most:g}; give probabilities, the least below the most"
        )


def _adversary_and_people(
    path: str | Path, model: MarkovModel, settings: SettingsLike | None, users: Sequence[str], prior: Any
) -> tuple[FloatArray | None, tuple[Replayed, ...]]:
    """Another adversary's prior, and the releases of at least one person."""
    return checked_prior(prior, state_names(model.space)), replay_all(path, model, settings, users)
