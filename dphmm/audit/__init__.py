"""Audits of policies, mechanisms and released sequences."""

from dphmm.audit.blowfish import BlowfishPolicy, SecretsAudit, audit_blowfish
from dphmm.audit.empirical_epsilon import PairAudit, audit_pair, audit_pairs, select_hardest_edges
from dphmm.audit.inference_metrics import (
    Accuracy,
    AdversaryAudit,
    InferenceMetrics,
    audit_support,
    compute_accuracy,
    compute_inference_metrics,
)
from dphmm.audit.policy import (
    ConstraintAudit,
    Entry,
    EntryAudit,
    Witness,
    audit_constraint,
    audit_constraints,
    audit_entries,
    support_sequence,
)
from dphmm.audit.realized_leakage import EventAudit, audit_events
from dphmm.audit.sequence import (
    Adversary,
    ReleasedSequence,
    Replay,
    SequenceAudit,
    Thresholds,
    audit_adversaries,
    audit_sequence,
    replay_sequence,
)
from dphmm.audit.uses import UseMetric, UsesAudit, audit_uses, compute_reproduction_number, open_visited_states

__all__ = [
    "Accuracy",
    "Adversary",
    "AdversaryAudit",
    "BlowfishPolicy",
    "ConstraintAudit",
    "Entry",
    "EntryAudit",
    "EventAudit",
    "InferenceMetrics",
    "PairAudit",
    "ReleasedSequence",
    "Replay",
    "SecretsAudit",
    "SequenceAudit",
    "Thresholds",
    "UseMetric",
    "UsesAudit",
    "Witness",
    "audit_adversaries",
    "audit_blowfish",
    "audit_constraint",
    "audit_constraints",
    "audit_entries",
    "audit_events",
    "audit_pair",
    "audit_pairs",
    "audit_sequence",
    "audit_support",
    "audit_uses",
    "compute_accuracy",
    "compute_inference_metrics",
    "compute_reproduction_number",
    "open_visited_states",
    "replay_sequence",
    "select_hardest_edges",
    "support_sequence",
]
