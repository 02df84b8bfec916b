"""What an audit's HTML report says, section by section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.blowfish import BlowfishAudit
from dphmm.audit.policy_audit import ConstraintAudit, Witness
from dphmm.audit.sequence import ReleasedSequence, SequenceAudit
from dphmm.jobs.audits import MechanismAudit, PolicyAudit, SecretsAudit
from dphmm.jobs.replays import SessionAudit
from dphmm.jobs.subjects import Subject
from dphmm.plots import audit as pictures
from dphmm.plots.maps import new_figure, png
from dphmm.reports.page import Picture, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 12
"""At most this many constraints, exposed ones first, have a section of their own; the table lists all."""
_WITNESSES = 20


def audit_sections(found: PolicyAudit | SecretsAudit | SessionAudit | MechanismAudit) -> list[Section]:
    """What an audit's page holds under its verdict.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    if isinstance(found, PolicyAudit):
        return _policy(found)
    if isinstance(found, SecretsAudit):
        return [_secrets(found.audit)]
    if isinstance(found, MechanismAudit):
        return [_mechanism(found)]
    points = found.space.points
    return [_sequence(audit, one.sequence, points) for audit, one in zip(found.audits, found.people, strict=True)]


def _policy(found: PolicyAudit) -> list[Section]:
    rows = [
        (
            constraint.label,
            f"{audit.possible:,}",
            f"{len(audit.disconnected):,}",
            f"{audit.components:,}",
            *(f"{len(body.exposed):,}" for body in audit.bodies),
        )
        for constraint, audit in zip(found.constraints, found.audits, strict=True)
    ]
    overview = Section(
        "All constraints",
        [
            "A possible state is exposed under a mechanism when no other possible state lies within the noise body "
            "about it: releases then tell it apart by more than epsilon."
        ],
        (
            "constraint",
            "possible",
            "disconnected",
            "components",
            *(f"exposed under {body.mechanism}" for body in found.audits[0].bodies),
        ),
        rows,
    )
    shown = sorted(zip(found.constraints, found.audits, strict=True), key=lambda one: not one[1].is_exposed)[:_SHOWN]
    return [overview, *(_constraint(one.label, audit, found.subject, found.epsilon) for one, audit in shown)]


def _constraint(label: str, audit: ConstraintAudit, subject: Subject, epsilon: float) -> Section:
    names, points = subject.names, subject.measurements.points
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
    drawn: list[Picture] = []
    if points.shape[1] == 2:
        for body in audit.bodies:
            exposure = partial(pictures.draw_exposure, points=points, graph=subject.policy, audit=audit, names=names)
            drawn.append(_picture(f"States and noise under {body.mechanism}", partial(exposure, body=body)))
        if audit.hull.dimension:
            drawn.append(_picture("Noise bodies", partial(pictures.draw_hulls, audit=audit)))
    header = ("mechanism", "graph", "exposed", "edges added", "area", f"error at ε = {epsilon:g}", "factor")
    return Section(label, sentences, header, rows, drawn)


def _told(witness: Witness, names: Sequence[str], epsilon: float) -> str:
    place = ", ".join(f"{x:.4g}" for x in witness.output)
    if witness.gives_away:
        return f"every release of {names[witness.state]} tells it apart for certain, such as ({place})."
    least = witness.factors[0]
    return (
        f"at the output ({place}) the log ratio of {names[witness.state]} to {names[witness.others[0]]} is "
        f"{least:.4g} ε = {least * epsilon:.4g}, and to every other possible state at least as much."
    )


def _secrets(audit: BlowfishAudit) -> Section:
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
    drawn = [_picture("Levels", partial(pictures.draw_levels, audit=audit))]
    if np.asarray(audit.policy.contributions).shape[1] <= 2:
        drawn.insert(0, _picture("Contributions and noise bodies", partial(pictures.draw_secrets, audit=audit)))
    heads = ("secret", *(f"unbounded-DP level under {level.mechanism}" for level in audit.levels))
    return Section("Secrets", totals, heads, rows, drawn)


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
    drawn = [
        _picture("Uncertainty at each release", partial(pictures.draw_entropy, audit=audit)),
        _picture("Error that the adversary expects at each release", partial(pictures.draw_spread, audit=audit)),
        _picture(
            "Belief in hindsight",
            partial(pictures.draw_belief_map, points=points, audit=audit, released=sequence.released),
        ),
    ]
    return Section(f"User {audit.user}", sentences, header, rows, drawn)


def _mechanism(found: MechanismAudit) -> Section:
    names = found.subject.names
    rows = [
        (
            f"{names[pair.first]} – {names[pair.second]}",
            f"{pair.claimed:.4g}",
            f"{pair.lower:.4g}",
            "violated" if pair.violated else "kept",
            f"{pair.hits[0]:,} : {pair.hits[1]:,} of {pair.counted:,}",
            pair.event,
        )
        for pair in found.pairs
    ]
    header = ("states", "claimed", "shown at least", "claim", "event seen under the one and the other", "found by")
    drawn = _picture("Bounds and claims", partial(pictures.draw_bounds, pairs=found.pairs, names=names))
    return Section(f"{found.mechanism} under {found.constraint.label}", (), header, rows, [drawn])


def _picture(caption: str, draw: Callable[[Axes], object]) -> Picture:
    figure, ax = new_figure(4.8, 4.4)
    draw(ax)
    if ax.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return Picture(png(figure), caption)


def _number(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else "∞"
