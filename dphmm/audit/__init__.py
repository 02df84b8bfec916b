"""Audits of policies, mechanisms and released sequences."""

from dphmm.audit.blowfish import BlowfishPolicy, SecretsAudit, audit_blowfish
from dphmm.audit.empirical import PairAudit, audit_pair, audit_pairs, select_hardest_edges
from dphmm.audit.inference import AdversaryAudit, audit_support
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
from dphmm.audit.realized import EventAudit, audit_events
from dphmm.audit.sequence import ReleasedSequence, Replay, SequenceAudit, Thresholds, audit_sequence, replay_sequence

__all__ = [
    "AdversaryAudit",
    "BlowfishPolicy",
    "ConstraintAudit",
    "Entry",
    "EntryAudit",
    "EventAudit",
    "PairAudit",
    "ReleasedSequence",
    "Replay",
    "SecretsAudit",
    "SequenceAudit",
    "Thresholds",
    "Witness",
    "audit_blowfish",
    "audit_constraint",
    "audit_constraints",
    "audit_entries",
    "audit_events",
    "audit_pair",
    "audit_pairs",
    "audit_sequence",
    "audit_support",
    "replay_sequence",
    "select_hardest_edges",
    "support_sequence",
]
