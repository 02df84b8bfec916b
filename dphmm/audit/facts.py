"""Audits as plain values for JSON: names for states, None for what is infinite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dphmm.audit.adversary import AdversaryAudit
from dphmm.audit.blowfish import BlowfishAudit, SecretLevels
from dphmm.audit.empirical import PairAudit
from dphmm.audit.metrics import Accuracy, Knowledge
from dphmm.audit.policy_audit import BodyAudit, ConstraintAudit, RepairAudit, Witness
from dphmm.audit.sequence import SequenceAudit, StepAudit

LISTED = 1000
"""Per-state numbers are listed for at most this many states."""

Facts = dict[str, Any]


def finite(value: float) -> float | None:
    """The number, or None where it is infinite or not a number."""
    return float(value) if math.isfinite(value) else None


def constraint_facts(audit: ConstraintAudit, names: Sequence[str], epsilon: float = 1.0) -> Facts:
    """A constraint's audit; log ratios and errors are those at the given budget."""
    possible = np.flatnonzero(audit.constraint)
    return {
        "possible": audit.possible,
        "possible_states": _named(possible[:LISTED].tolist(), names),
        "disconnected": _named(audit.disconnected, names),
        "components": audit.components,
        "hull": {
            "area": audit.hull.volume,
            "dimension": audit.hull.dimension,
            "vertices": audit.hull.vertices.tolist(),
        },
        "exposed": audit.is_exposed,
        "mechanisms": [_body(body, audit, names, epsilon) for body in audit.bodies],
        "repairs": [_repair(repair, names, epsilon) for repair in audit.repairs],
    }


def _body(body: BodyAudit, audit: ConstraintAudit, names: Sequence[str], epsilon: float) -> Facts:
    possible = np.flatnonzero(audit.constraint)
    listed = {names[i]: int(body.degrees[i]) for i in possible.tolist()} if len(possible) <= LISTED else None
    return {
        "mechanism": body.mechanism,
        "sensitivity": body.sensitivity,
        "area": body.area,
        "expected_error": body.expected_error / epsilon,
        "least_protection": int(body.degrees[possible].min()),
        "degrees": listed,
        "exposed": _named(body.exposed, names),
        "constrained_factor": finite(body.factor),
        "witnesses": [_witness(witness, names, epsilon) for witness in body.witnesses],
    }


def _witness(witness: Witness, names: Sequence[str], epsilon: float) -> Facts:
    return {
        "state": names[witness.state],
        "output": list(witness.output),
        "gives_away_for_certain": witness.gives_away,
        "against": [
            {"state": names[other], "factor": finite(factor), "log_ratio": finite(factor * epsilon)}
            for other, factor in zip(witness.others, witness.factors, strict=True)
        ],
    }


def _repair(repair: RepairAudit, names: Sequence[str], epsilon: float) -> Facts:
    return {
        "mechanism": repair.mechanism,
        "method": repair.method,
        "added": [[names[a], names[b]] for a, b in repair.added],
        "area": repair.area,
        "expected_error": repair.expected_error / epsilon,
        "constrained_factor": finite(repair.factor),
        "least_protection": repair.least_protection,
        "certified": repair.certified,
        "gap": repair.gap,
    }


def blowfish_facts(audit: BlowfishAudit) -> Facts:
    """A database policy's audit."""
    return {
        "form": "database",
        "epsilon": audit.epsilon,
        "secrets": len(audit.policy.names),
        "disconnected": list(audit.disconnected),
        "hull": {"area": audit.hull.volume, "vertices": audit.hull.vertices.tolist()},
        "exposed": audit.is_exposed,
        "mechanisms": [_levels(audit, level) for level in audit.levels],
    }


def _levels(audit: BlowfishAudit, level: SecretLevels) -> Facts:
    names = audit.policy.names
    return {
        "mechanism": level.mechanism,
        "sensitivity": level.sensitivity,
        "factors": {name: finite(factor) for name, factor in zip(names, level.factors.tolist(), strict=True)},
        "epsilons": {
            name: finite(factor * audit.epsilon) for name, factor in zip(names, level.factors.tolist(), strict=True)
        },
        "protected": [name for name, safe in zip(names, level.protected.tolist(), strict=True) if safe],
        "exposed": list(audit.exposed(level.mechanism)),
        "total_factor": finite(level.total_factor),
        "total_epsilon": finite(level.total_factor * audit.epsilon),
        "pairwise_factor": finite(level.pairwise_factor),
    }


def adversary_facts(audit: AdversaryAudit, names: Sequence[str], epsilon: float = 1.0) -> Facts:
    """What a release means for another adversary."""
    return {
        "possible": int(audit.support.sum()),
        "relation": audit.relation,
        "shared": audit.shared,
        "already_known": audit.known,
        "factor": finite(audit.factor),
        "log_ratio": finite(audit.factor * epsilon),
        "exposed": _named(audit.exposed, names),
        "exposed_with_stand_ins": _named(audit.exposed_with_stand_ins, names),
    }


def sequence_facts(audit: SequenceAudit, names: Sequence[str]) -> Facts:
    """A released sequence's audit."""
    known = {"no_releases": audit.uninformed, "at_each_release": audit.online, "in_hindsight": audit.hindsight}
    facts: Facts = {
        "user": audit.user,
        "releases": len(audit.steps),
        "epsilon": audit.epsilon,
        "constrained_epsilon": finite(audit.constrained_epsilon),
        "log_evidence": audit.filtering.log_evidence,
        "exposed_releases": [t + 1 for t in audit.exposed_steps],
        "states_exposed_before_repair_most": max(step.exposed_before for step in audit.steps),
        "edges_added": sum(len(step.added) for step in audit.steps),
        "knowledge": {name: _knowledge(one) for name, one in known.items()},
        "most_probable_path": _named(audit.path.states.tolist(), names),
        "steps": [_step(step, names) for step in audit.steps],
    }
    if audit.accuracies is not None:
        labels = (*known, "told_every_measurement")
        facts["accuracy"] = {name: _accuracy(one) for name, one in zip(labels, audit.accuracies, strict=True)}
        facts["accuracy"]["most_probable_path_right"] = audit.path_hits
    return facts


def _knowledge(one: Knowledge) -> Facts:
    return {
        "entropy_bits_mean": float(one.entropy.mean()),
        "spread_rms": float(np.sqrt((one.spread**2).mean())),
        "best_guess_probability_mean": float(one.best.mean()),
        f"top_{one.k}_probability_mean": float(one.top.mean()),
        "entropy_bits": one.entropy.tolist(),
        "spread": one.spread.tolist(),
    }


def _accuracy(one: Accuracy) -> Facts:
    return {
        "expected_error_mean": float(one.expected_error.mean()),
        "estimate_error_rms": float(np.sqrt((one.estimate_error**2).mean())),
        "best_guess_right": float(one.best_hits.mean()),
        f"top_{one.k}_right": float(one.top_hits.mean()),
        "expected_error": one.expected_error.tolist(),
    }


def _step(step: StepAudit, names: Sequence[str]) -> Facts:
    return {
        "possible": step.possible,
        "least_protection": step.least_protection,
        "exposed_before_repair": step.exposed_before,
        "added": [[names[a], names[b]] for a, b in step.added],
        "area": step.area,
        "constrained_factor": finite(step.factor),
        "already_known": step.already_known,
        "adversary": None if step.adversary is None else adversary_facts(step.adversary, names),
    }


def pair_facts(audit: PairAudit, names: Sequence[str]) -> Facts:
    """An empirical bound."""
    return {
        "states": [names[audit.first], names[audit.second]],
        "claimed": finite(audit.claimed),
        "lower_bound": audit.lower,
        "violated": audit.violated,
        "confidence_of_this_bound": audit.confidence,
        "event": audit.event,
        "more_probable_under": names[audit.more_probable],
        "hits": list(audit.hits),
        "samples_counted_of_each": audit.counted,
    }


def _named(states: Iterable[int], names: Sequence[str]) -> list[str]:
    return [names[state] for state in states]
