"""Audit of a mechanism: lower confidence bounds on its actual epsilon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from scipy.sparse import csr_array, eye_array

from dphmm.arrays import BoolArray
from dphmm.audit.blowfish import SecretsAudit as SecretsAudit
from dphmm.audit.empirical_epsilon import PairAudit, audit_pairs, select_hardest_edges
from dphmm.errors import ConfigurationError, SingletonConstraintError
from dphmm.formatting import Result, exported
from dphmm.jobs.audit.target import AuditTarget, Constraint
from dphmm.jobs.progress import ProgressCallback, suppress_progress
from dphmm.mechanisms.exact_sampling import Rational
from dphmm.mechanisms.registry import MechanismLike
from dphmm.model.model import MarkovModel
from dphmm.policy.component_bodies import NoiseScope
from dphmm.random import Rng, as_random_source
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.settings import GRAPH_POLICY_PREFIX
from dphmm.validation import Integers, NoiseEpsilon, OpenProbability, PositiveInt, check_arguments


@dataclass(frozen=True, eq=False)
class MechanismAudit(Result):
    """Result of `audit_mechanism`: bounds over edges of a repaired graph.

    Parameters
    ----------
    target, constraint
        The states with their policy, and the possible states.
    mechanism, epsilon
        The mechanism and its budget.
    confidence
        Probability that all bounds hold jointly.
    low_bits
        Whether events could depend on the last bits of samples.
    pairs
        A bound for each edge.
    """

    target: AuditTarget
    constraint: Constraint
    mechanism: str = field(metadata=exported())
    epsilon: float = field(metadata=exported())
    confidence: float = field(metadata=exported())
    low_bits: bool = field(metadata=exported())
    pairs: tuple[PairAudit, ...] = field(repr=False, metadata=exported())

    @property
    def is_exposed(self) -> bool:
        """Whether any claim is violated."""
        return any(pair.is_violated for pair in self.pairs)

    def to_dict(self, *_: Any) -> dict[str, Any]:
        """Export the audit as plain JSON values with state names."""
        return super().to_dict(self.target.names)

    def _derive_fields(self, *_: Any) -> dict[str, Any]:
        largest = max(pair.lower for pair in self.pairs)
        return {"constraint": self.constraint.label, "exposed": self.is_exposed, "max_lower_bound": largest}


@check_arguments
def audit_mechanism(
    target: AuditTarget,
    mechanism: MechanismLike = "lattice",
    epsilon: NoiseEpsilon = 1.0,
    constraint: Constraint | None = None,
    *,
    spacing: Rational = ReleaseSettings.spacing,
    noise_scope: NoiseScope = "graph",
    samples: Annotated[int, Integers(100)] = 100_000,
    confidence: OpenProbability = 0.99,
    pairs: PositiveInt | None = 8,
    low_bits: bool = False,
    rng: Rng = None,
    watch: ProgressCallback = suppress_progress,
) -> MechanismAudit:
    """Bound the actual epsilon of a mechanism from below, as ``dphmm audit mechanism`` does.

    Parameters
    ----------
    target
        The states and the policy. The edges of its repaired graph are audited.
    mechanism, epsilon, spacing, noise_scope
        See `dphmm.ReleaseSettings`.
    constraint
        The possible states. Defaults to all states.
    samples
        Number of samples of each state of a pair.
    confidence
        Probability that all bounds hold jointly.
    pairs
        Number of edges with the largest norm for each noise body. None means all edges.
    low_bits
        Whether events may depend on the last bits of floating-point samples.
    rng
        Source of randomness. Defaults to the operating system.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    MechanismAudit
        A lower bound for each edge.

    Raises
    ------
    ConfigurationError
        If the repaired graph has no edge.
    SingletonConstraintError
        If fewer than two states are possible.
    InvalidInputError
        If the confidence is not in (0, 1), or `pairs` is not positive.
    DphmmError
        See `dphmm.Releaser` and `dphmm.audit.empirical_epsilon.audit_pair`.

    Examples
    --------
    >>> from dphmm.jobs import AuditTarget, audit_mechanism, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> target = AuditTarget.from_model(model, "utility:1km")
    >>> audit = audit_mechanism(target, epsilon=0.5, samples=2000, pairs=2, rng=1)
    >>> len(audit.pairs), audit.is_exposed
    (2, False)
    """
    possible = constraint or target.build_full_constraint()
    num_possible = int(possible.states.sum())
    if num_possible < 2:
        raise SingletonConstraintError(
            f"the constraint set must contain at least two states, got {num_possible}: add states with --possible"
        )
    policy_name = GRAPH_POLICY_PREFIX + target.policy.content_hash
    settings = ReleaseSettings(policy_name, epsilon, mechanism, spacing=spacing, noise_scope=noise_scope)
    source = as_random_source(rng)
    engine = _build_engine(target, possible.states, settings, source)
    step = engine.prepare()
    graph = step.protection.graph
    f = engine.measurements
    each = [(part, members) for part, members in step.noise.iterate_parts() if members.any()]
    chosen = [(part, select_hardest_edges(graph.restrict(members), f, pairs)) for part, members in each]
    count = sum(len(edges) for _, edges in chosen)
    if not count:
        raise ConfigurationError("policy must have an edge between possible states to sample")

    def iterate_audits() -> Iterator[PairAudit]:
        for part, edges in chosen:
            pair_confidence = 1.0 - (1.0 - confidence) * len(edges) / count
            budget = settings.epsilon
            values = engine.query.values
            yield from audit_pairs(part, values, edges, budget, samples, pair_confidence, rng=source, low_bits=low_bits)

    audits = tuple(watch(iterate_audits(), "Sampling", count))
    return MechanismAudit(target, possible, mechanism, settings.epsilon, confidence, low_bits, audits)


def _build_engine(subject: AuditTarget, possible: BoolArray, settings: ReleaseSettings, rng: Rng) -> Releaser:
    """Build an engine with the constraint set in its first step."""
    space = None if subject.model is None else subject.model.space
    chain = MarkovModel(csr_array(eye_array(len(subject.names))), np.asarray(possible / possible.sum()), space)
    if space is not None:
        return settings.engine(chain, rng, subject.policy)
    return Releaser(
        chain,
        subject.measurements,
        subject.policy,
        settings.epsilon,
        settings.mechanism,
        rng=rng,
        spacing=settings.spacing,
        noise_scope=settings.noise_scope,
    )
