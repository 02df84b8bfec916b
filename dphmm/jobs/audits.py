"""Audits of a policy and of its noise: what is exposed, and what releases really give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, Rng, check_epsilon, random_source
from dphmm.audit.adversary import AdversaryAudit, audit_support
from dphmm.audit.blowfish import BlowfishPolicy, SecretsAudit, audit_blowfish
from dphmm.audit.empirical import PairAudit, audit_pairs, hardest_edges
from dphmm.audit.entry import EntryAudit, audit_entries
from dphmm.audit.policy_audit import AuditedMechanism, ConstraintAudit, audit_constraints
from dphmm.audit.tables import read_edges, read_secrets
from dphmm.errors import ConfigurationError
from dphmm.jobs.subjects import Constraint, Prior, Subject, checked_prior
from dphmm.jobs.watch import Watch, unwatched
from dphmm.markov.model import MarkovModel
from dphmm.mechanisms.catalogue import MechanismName
from dphmm.mechanisms.exact import Rational
from dphmm.policy.by_component import Calibration
from dphmm.policy.protection import protect
from dphmm.policy.repair import Objective
from dphmm.release.engine import Releaser
from dphmm.release.noise import parts_of
from dphmm.release.settings import GIVEN, ReleaseSettings

__all__ = ["MechanismAudit", "PolicyAudit", "SecretsAudit", "audit_mechanism", "audit_policy", "audit_secrets"]

_BODIES: tuple[AuditedMechanism, ...] = ("k-norm", "laplace")


@dataclass(frozen=True, eq=False)
class PolicyAudit:
    """A policy under some constraints.

    Attributes
    ----------
    subject
        The states and the policy.
    epsilon
        The budget that levels and errors are told at.
    constraints, audits
        Which states were possible, and what was found under each.
    others
        What the repaired K-norm release means for another adversary under each; None where there is no such adversary,
        or one state only was possible.
    entries
        What is told of people who enter a zone; None where the policy has no open places or there is no model.
    """

    subject: Subject
    epsilon: float
    constraints: tuple[Constraint, ...]
    audits: tuple[ConstraintAudit, ...] = field(repr=False)
    others: tuple[AdversaryAudit | None, ...] = field(repr=False)
    entries: EntryAudit | None = field(default=None, repr=False)

    @property
    def is_exposed(self) -> bool:
        """Whether some state is, to the public adversary or to the other one."""
        return any(audit.is_exposed for audit in self.audits) or any(
            other is not None and (other.exposed or other.known) for other in self.others
        )

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values."""
        names = self.subject.names
        return {
            "form": "markov",
            "states": len(names),
            "epsilon": self.epsilon,
            "exposed": self.is_exposed,
            "entries": None if self.entries is None else self.entries.facts(names),
            "constraints": [
                {
                    "label": constraint.label,
                    **audit.facts(names, self.epsilon),
                    "adversary": None if other is None else other.facts(names),
                }
                for constraint, audit, other in zip(self.constraints, self.audits, self.others, strict=True)
            ],
        }


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
        The states and the policy: `Subject.of_model`, `Subject.of_tables`.
    constraints
        Which states are possible: `Subject.possible`, `Subject.along`; left out, all.
    mechanisms
        The mechanisms whose bodies are looked at.
    epsilon
        The budget that levels and errors are told at.
    objective
        What the exact repair minimises.
    calibration
        Whether noise is measured for the whole graph, or for each component by itself.
    prior
        Another adversary's, for whom the repaired K-norm release is looked at as well.
    watch
        Who is shown the progress.

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
    >>> subject = Subject.of_model(model, "utility:1km")
    >>> found = audit_policy(subject, [subject.possible(("3", "4", "90"))])
    >>> found.is_exposed, found.audits[0].bodies[0].exposed
    (True, (90,))
    """
    check_epsilon(epsilon)
    believed = None if prior is None else checked_prior(prior, subject.names)
    chosen = tuple(constraints) or (subject.all_states(),)
    sets = [constraint.states for constraint in chosen]
    found = audit_constraints(subject.policy, subject.measurements, sets, mechanisms, objective, calibration)
    audits = tuple(watch(found, "Auditing", len(chosen)))
    others: list[AdversaryAudit | None] = []
    for audit in audits:
        others.append(None)
        if believed is not None and audit.possible > 1:
            repaired = protect(
                subject.policy,
                subject.measurements,
                audit.constraint,
                objective=objective,
                calibration=calibration,
            )
            others[-1] = audit_support(repaired, subject.measurements, believed > 0)
    entries = None
    if subject.model is not None and subject.policy.open.any():
        entries = audit_entries(subject.policy, subject.measurements, subject.model, epsilon)
    return PolicyAudit(subject, float(epsilon), chosen, audits, tuple(others), entries)


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

    Attributes
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
    mechanism: str
    epsilon: float
    confidence: float
    low_bits: bool
    pairs: tuple[PairAudit, ...] = field(repr=False)

    @property
    def is_exposed(self) -> bool:
        """Whether some claim is violated."""
        return any(pair.violated for pair in self.pairs)

    def facts(self) -> dict[str, Any]:
        """What was found as plain JSON values."""
        return {
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "constraint": self.constraint.label,
            "confidence": self.confidence,
            "low_bits": self.low_bits,
            "exposed": self.is_exposed,
            "largest_lower_bound": max(pair.lower for pair in self.pairs),
            "pairs": [pair.facts(self.subject.names) for pair in self.pairs],
        }


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
        Who is shown the progress.

    Raises
    ------
    ConfigurationError
        When the repaired graph has no edge.
    DphmmError
        As `dphmm.Releaser` and `dphmm.audit.empirical.audit_pair`.

    Examples
    --------
    >>> from dphmm.jobs import Subject, audit_mechanism, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> subject = Subject.of_model(model, "utility:1km")
    >>> found = audit_mechanism(subject, epsilon=0.5, samples=2000, pairs=2, rng=1)
    >>> len(found.pairs), found.is_exposed
    (2, False)
    """
    possible = constraint or subject.all_states()
    given = GIVEN + subject.policy.content_hash
    settings = ReleaseSettings(given, epsilon, mechanism, spacing=spacing, calibration=calibration)
    source = random_source(rng)
    engine = _engine(subject, possible.states, settings, source)
    step = engine.prepare()
    assert step.plan.protection is not None, "an engine that allows no known state has a repaired graph"
    assert step.mechanism is not None, "without a schedule something is drawn at every moment"
    graph, chosen = step.plan.protection.graph, []
    for drawn, members in parts_of(step.mechanism, possible.states):
        edges = hardest_edges(graph.restrict(members), engine.measurements, pairs) if members.any() else ()
        if len(edges):
            chosen.append((drawn, edges))
    count = sum(len(edges) for _, edges in chosen)
    if not count:
        raise ConfigurationError("the policy has no edge between possible states; there is nothing to sample")

    def bounds() -> Iterator[PairAudit]:
        for drawn, edges in chosen:
            own = 1.0 - (1.0 - confidence) * len(edges) / count
            budget = settings.epsilon
            yield from audit_pairs(drawn, engine.values, edges, budget, samples, own, rng=source, low_bits=low_bits)

    found = tuple(watch(bounds(), "Sampling", count))
    return MechanismAudit(subject, possible, mechanism, settings.epsilon, confidence, low_bits, found)


def _engine(subject: Subject, possible: BoolArray, settings: ReleaseSettings, rng: Rng) -> Releaser:
    """An engine whose first step is under the constraint."""
    chain = MarkovModel(csr_array(eye_array(len(subject.names))), np.asarray(possible / possible.sum()))
    if subject.model is not None:
        return Releaser.made(settings, chain, subject.model.space, subject.policy, rng)
    return Releaser(
        chain,
        subject.measurements,
        subject.policy,
        settings.epsilon,
        settings.mechanism,
        rng=rng,
        spacing=settings.spacing,
        calibration=settings.calibration,
    )
