"""What an audit's HTML report says, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.blowfish import BlowfishAudit
from dphmm.audit.empirical import PairAudit
from dphmm.audit.policy_audit import ConstraintAudit, Witness
from dphmm.audit.sequence import ReleasedSequence, SequenceAudit
from dphmm.plots import audit as pictures
from dphmm.plots.page import Section

if TYPE_CHECKING:
    from dphmm.policy.graph import PolicyGraph

_SHOWN = 12
"""At most this many constraints, exposed ones first, have a section of their own; the table lists all."""
_WITNESSES = 20


def policy_sections(
    labels: Sequence[str],
    audits: Sequence[ConstraintAudit],
    graph: PolicyGraph,
    points: FloatArray,
    names: Sequence[str],
    epsilon: float,
) -> list[Section]:
    """A policy under some constraints, each with its label."""
    rows = [
        (
            label,
            f"{audit.possible:,}",
            f"{len(audit.disconnected):,}",
            f"{audit.components:,}",
            *(f"{len(body.exposed):,}" for body in audit.bodies),
        )
        for label, audit in zip(labels, audits, strict=True)
    ]
    mechanisms = [f"exposed under {body.mechanism}" for body in audits[0].bodies] if audits else []
    overview = Section(
        "All constraints",
        [
            "A possible state is exposed under a mechanism when no other possible state lies within the noise body "
            "about it: releases then tell it apart by more than epsilon."
        ],
        ("constraint", "possible", "disconnected", "components", *mechanisms),
        rows,
    )
    order = sorted(range(len(audits)), key=lambda i: not audits[i].is_exposed)[:_SHOWN]
    return [overview, *(_constraint(labels[i], audits[i], graph, points, names, epsilon) for i in order)]


def _constraint(
    label: str,
    audit: ConstraintAudit,
    graph: PolicyGraph,
    points: FloatArray,
    names: Sequence[str],
    epsilon: float,
) -> Section:
    rows: list[tuple[str, ...]] = []
    for body in audit.bodies:
        rows.append(
            (
                body.mechanism,
                "as it is",
                f"{len(body.exposed)}",
                "",
                f"{body.area:.4g}",
                f"{body.expected_error / epsilon:.4g}",
                _number(body.factor),
            )
        )
        for repair in audit.repairs:
            if repair.mechanism == body.mechanism:
                added = ", ".join(f"{names[a]}–{names[b]}" for a, b in repair.added[:8])
                more = f" and {len(repair.added) - 8} more" if len(repair.added) > 8 else ""
                proof = " (proven least)" if repair.certified and repair.method == "exact" else ""
                rows.append(
                    (
                        repair.mechanism,
                        f"{repair.method} repair{proof}",
                        "0",
                        added + more,
                        f"{repair.area:.4g}",
                        f"{repair.expected_error / epsilon:.4g}",
                        _number(repair.factor),
                    )
                )
    sentences = [
        f"{body.mechanism}: {_told(witness, names, epsilon)}"
        for body in audit.bodies
        for witness in body.witnesses[:_WITNESSES]
    ]
    planar = points.shape[1] == 2
    draws = [partial(_exposure, points, graph, audit, k, names) for k in range(len(audit.bodies))] if planar else []
    hulls = [partial(_hulls, audit)] if planar and audit.hull.dimension else []
    header = ("mechanism", "graph", "exposed", "edges added", "area", f"error at ε = {epsilon:g}", "factor")
    return Section(label, sentences, header, rows, [*draws, *hulls])


def _exposure(
    points: FloatArray, graph: PolicyGraph, audit: ConstraintAudit, k: int, names: Sequence[str], ax: object
) -> None:
    pictures.draw_exposure(ax, points, graph, audit, audit.bodies[k], names)  # type: ignore[arg-type]


def _hulls(audit: ConstraintAudit, ax: object) -> None:
    pictures.draw_hulls(ax, audit)  # type: ignore[arg-type]


def _told(witness: Witness, names: Sequence[str], epsilon: float) -> str:
    place = ", ".join(f"{x:.4g}" for x in witness.output)
    if witness.gives_away:
        return f"every release of {names[witness.state]} tells it apart for certain, such as ({place})."
    least = witness.factors[0]
    return (
        f"at the output ({place}) the log ratio of {names[witness.state]} to {names[witness.others[0]]} is "
        f"{least:.4g} ε = {least * epsilon:.4g}, and to every other possible state at least as much."
    )


def blowfish_sections(audit: BlowfishAudit) -> list[Section]:
    """A database policy."""
    rows = []
    for i, name in enumerate(audit.policy.names):
        cells = [
            f"{_number(level.factors[i] * audit.epsilon)}{'' if level.protected[i] else ' (exposed)'}"
            for level in audit.levels
        ]
        rows.append((name, *cells))
    totals = [
        f"{level.mechanism}: the whole is {_number(level.total_factor * audit.epsilon)}-unbounded-DP; one secret in "
        f"place of another is hidden to within {_number(level.pairwise_factor * audit.epsilon)}."
        for level in audit.levels
    ]
    draws = [lambda ax: pictures.draw_levels(ax, audit)]
    if np.asarray(audit.policy.contributions).shape[1] <= 2:
        draws.insert(0, lambda ax: pictures.draw_secrets(ax, audit))
    heads = ("secret", *(f"unbounded-DP level under {level.mechanism}" for level in audit.levels))
    return [Section("Secrets", totals, heads, rows, draws)]


def sequence_sections(
    audits: Sequence[SequenceAudit], sequences: Sequence[ReleasedSequence], points: FloatArray
) -> list[Section]:
    """Released sequences, one section each."""
    return [_sequence(audit, one, points) for audit, one in zip(audits, sequences, strict=True)]


def _sequence(audit: SequenceAudit, sequence: ReleasedSequence, points: FloatArray) -> Section:
    rows = []
    labels = ("without releases", "at each release", "in hindsight", "told every measurement")
    for k, known in enumerate((audit.uninformed, audit.online, audit.hindsight)):
        row = [
            labels[k],
            f"{known.entropy.mean():.3g}",
            f"{np.sqrt((known.spread**2).mean()):.3g}",
            f"{known.best.mean():.3g}",
            f"{known.top.mean():.3g}",
        ]
        if audit.accuracies is not None:
            one = audit.accuracies[k]
            row += [f"{one.expected_error.mean():.3g}", f"{one.best_hits.mean():.3g}", f"{one.top_hits.mean():.3g}"]
        rows.append(row)
    header = [
        "belief",
        "entropy (bits)",
        "expected error (km)",
        "best guess's probability",
        f"that of the top {audit.online.k}",
    ]
    if audit.accuracies is not None:
        best = audit.accuracies[3]
        cells = [
            f"{best.expected_error.mean():.3g}",
            f"{best.best_hits.mean():.3g}",
            f"{best.top_hits.mean():.3g}",
        ]
        rows.append([labels[3], "", "", "", "", *cells])
        header += ["true error (km)", "best guess right", f"top {audit.online.k} right"]
    exposed = audit.exposed_steps
    repaired = sum(step.exposed_before > 0 for step in audit.steps)
    sentences = [
        f"{len(audit.steps):,} releases cost {audit.epsilon:.4g} in all (Theorem 7.1); two possible sequences of "
        f"states are indistinguishable to within {_number(audit.constrained_epsilon)} (Theorem 7.2).",
        (
            f"The policy left states exposed at {repaired:,} releases, and the repair protected them. "
            if repaired
            else "The policy left no state exposed, so that nothing had to be repaired. "
        )
        + (
            f"Releases at which some state stayed exposed: {', '.join(str(t + 1) for t in exposed[:20])}"
            f"{' and more' if len(exposed) > 20 else ''}."
            if exposed
            else "At no release did a state stay exposed."
        ),
    ]
    draws = [lambda ax: pictures.draw_entropy(ax, audit), lambda ax: pictures.draw_spread(ax, audit)]
    if points.shape[1] == 2:
        draws.append(lambda ax: pictures.draw_belief_map(ax, points, audit, sequence.released))
    return Section(f"User {audit.user}", sentences, header, rows, draws)


def pair_sections(pairs: Sequence[PairAudit], names: Sequence[str], what: str) -> list[Section]:
    """Empirical bounds."""
    rows = [
        (
            f"{names[pair.first]} – {names[pair.second]}",
            f"{pair.claimed:.4g}",
            f"{pair.lower:.4g}",
            "violated" if pair.violated else "kept",
            f"{pair.hits[0]:,} : {pair.hits[1]:,} of {pair.counted:,}",
            pair.event,
        )
        for pair in pairs
    ]
    header = ("states", "claimed", "shown at least", "claim", "event seen under the one and the other", "found by")
    return [Section(what, (), header, rows, [lambda ax: pictures.draw_bounds(ax, pairs, names)])]


def _number(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else "∞"
