"""What an audit's HTML report says, section by section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray
from dphmm.audit.blowfish import SecretsAudit
from dphmm.audit.policy_audit import ConstraintAudit, EntryAudit
from dphmm.audit.sequence import ReleasedSequence, SequenceAudit
from dphmm.facts import Facts
from dphmm.jobs.audits import EventAudits, MechanismAudit, PolicyAudit, SessionAudit, Subject
from dphmm.jobs.identity import IdentityAudit, MembershipAudit
from dphmm.plots import audit as pictures
from dphmm.plots.curves import event_over_time
from dphmm.plots.figures import legend_below, new_figure, png
from dphmm.reports import Picture, Section

Audit = PolicyAudit | SecretsAudit | SessionAudit | EventAudits | MechanismAudit | IdentityAudit | MembershipAudit
"""What has a report."""

_SHOWN = 12
"""At most this many constraints, exposed ones first, have a section of their own; the table lists all."""


@checked
def audit_sections(found: Audit) -> list[Section]:
    """What an audit's page holds under its verdict.

    Parameters
    ----------
    found
        The result of an audit.

    Returns
    -------
    list of Section
        For `dphmm.reports.html_page`.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    """
    stated = found.facts()
    if isinstance(found, PolicyAudit):
        return _policy(found, stated["constraints"])
    if isinstance(found, SecretsAudit):
        return [_secrets(found, stated)]
    if isinstance(found, MechanismAudit):
        return [_mechanism(found, stated["pairs"])]
    if isinstance(found, EventAudits):
        return _events(found)
    if isinstance(found, MembershipAudit):
        drawn = [_picture("Members and others above each threshold", pictures.draw_membership, found)]
        return [Section("Members and others", [], (), [], drawn)]
    if isinstance(found, IdentityAudit):
        return [_identity(found, stated)]
    points = found.space.points
    sequences = {one.sequence.user: one.sequence for one in found.people}
    everyone = zip(found.audits, stated["users"], strict=True)
    return [_sequence(audit, sequences[audit.user], points, user) for audit, user in everyone]


def _policy(found: PolicyAudit, stated: list[Facts]) -> list[Section]:
    rows = []
    for one in stated:
        counts = [one["possible"], len(one["disconnected"]), one["components"], len(one["open"])]
        counts += [len(body["exposed"]) for body in one["mechanisms"]]
        rows.append((one["label"], *(f"{count:,}" for count in counts)))
    exposed = (f"exposed under {body['mechanism']}" for body in stated[0]["mechanisms"])
    header = ("constraint", "possible", "disconnected", "components", "open", *exposed)
    sections = [Section("All constraints", [_EXPOSED], header, rows)]
    if found.entries is not None and found.entries.entries:
        sections.append(_entering(found.entries, found.subject))
    for one, audit in sorted(zip(stated, found.audits, strict=True), key=lambda one: not one[1].is_exposed)[:_SHOWN]:
        sections += _constraint(one, audit, found.subject, found.epsilon)
    return sections


_EXPOSED = (
    "A possible state is exposed under a mechanism when no other possible state lies within the noise body about it "
    "(with noise by component: none of its component), and it is not open: releases then tell it apart by more than "
    "epsilon."
)


def _entering(audit: EntryAudit, subject: Subject) -> Section:
    """Where zones are entered, and what that tells."""
    stated = audit.facts(subject.names)["entries"][:_SHOWN]
    rows = [
        (one["from"], one["into"], f"{one['cells']:,}", f"{one['before']:.2f}", f"{one['after']:.2f}") for one in stated
    ]
    drawn = []
    if subject.measurements.points.shape[1] == 2:
        drawn.append(_picture("Entering zones", pictures.draw_entries, subject.measurements.points, audit))
    sentences = [
        audit.in_words(),
        f"Every release is at epsilon = {audit.epsilon:g}; the table has the {len(rows)} worst ways in.",
    ]
    head = ["last open release", "into", "places that can follow"]
    head += ["likeliest before noise", "true place after, nine in ten"]
    return Section("Entering zones", sentences, head, rows, drawn)


def _constraint(stated: Facts, audit: ConstraintAudit, subject: Subject, epsilon: float) -> list[Section]:
    """What is exposed under a constraint, alike states together and on a map; and what repairs and noise there are."""
    rows: list[tuple[str, ...]] = []
    for body in stated["mechanisms"]:
        rows.append(_noise_row(body, "as it is", len(body["exposed"]), ""))
        for repair in stated["repairs"]:
            if repair["mechanism"] == body["mechanism"]:
                proof = ""
                if repair["method"] == "exact":
                    spare = f" (at most {repair['gap']:.1%} could be saved)"
                    proof = " (proven best)" if repair["certified"] else spare
                added = _some(["–".join(edge) for edge in repair["added"]])
                rows.append(_noise_row(repair, f"{repair['method']} repair{proof}", 0, added))
    exposed = [row for body in stated["mechanisms"] for row in _alike(body)]
    maps: list[Picture] = []
    bodies: list[Picture] = []
    points = subject.measurements.points
    if points.shape[1] == 2:
        if audit.labels is not None and (audit.open or audit.calibration == "component"):
            maps.append(_picture("Components and open places", pictures.draw_components, points, audit))
        space = None if subject.model is None else subject.model.states
        for one in audit.bodies:
            what = points, subject.policy, audit, one, subject.names, space
            maps.append(_picture(f"States and noise under {one.mechanism}", pictures.draw_exposure, *what))
        if audit.hull.dimension:
            bodies.append(_picture("Noise bodies", pictures.draw_hulls, audit))
    header = ("mechanism", "graph", "exposed", "edges added", "area", f"error at ε = {epsilon:g}", "factor")
    alike = ("mechanism", "exposed alike", "which", "how they are told from every other possible state", "for example")
    first = () if exposed else ("No state is exposed.",)
    return [
        Section(f"{stated['label']}: what is exposed", first, alike if exposed else (), exposed, maps),
        Section(f"{stated['label']}: noise and repairs", (), header, rows, bodies),
    ]


def _alike(body: Facts) -> list[tuple[str, ...]]:
    """A row for all exposed states that are told from the others in the same way; first those told most surely."""
    groups: dict[tuple[float, str], list[Facts]] = {}
    for witness in body["witnesses"]:
        nearest = None if witness["gives_away_for_certain"] else witness["against"][0]
        factor, said = np.inf, "for certain, by every release"
        if nearest is not None:
            factor = float(f"{nearest['factor']:.4g}")
            said = f"by a log ratio of {factor:.4g} ε = {nearest['log_ratio']:.4g} or more, at some output"
        groups.setdefault((factor, said), []).append(witness)
    rows: list[tuple[str, ...]] = []
    for (_, said), alike in sorted(groups.items(), key=lambda one: -one[0][0]):
        place = ", ".join(f"{x:.4g}" for x in alike[0]["output"])
        example = f"{alike[0]['state']} at the output ({place})"
        names = _some([one["state"] for one in alike], 12)
        rows.append((body["mechanism"], f"{len(alike):,}", names, said, example))
    others = len(body["exposed"]) - len(body["witnesses"])
    if others:
        names = _some(body["exposed"][len(body["witnesses"]) :], 12)
        rows.append((body["mechanism"], f"{others:,}", names, "not looked at one by one", ""))
    return rows


def _some(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _noise_row(stated: Facts, graph: str, exposed: int, added: str) -> tuple[str, ...]:
    noise = (f"{stated['area']:.4g}", f"{stated['expected_error']:.4g}", _number(stated["constrained_factor"]))
    return (stated["mechanism"], graph, f"{exposed}", added, *noise)


def _secrets(audit: SecretsAudit, stated: Facts) -> Section:
    levels = stated["mechanisms"]
    rows = [
        (name, *(_number(one["epsilons"][name]) + " (exposed)" * (name in one["exposed"]) for one in levels))
        for name in audit.policy.names
    ]
    totals = [
        f"{level.mechanism}: the whole is {_number(level.total_factor * audit.epsilon)}-unbounded-DP; one secret in "
        f"place of another is hidden to within {_number(level.pairwise_factor * audit.epsilon)}."
        for level in audit.levels
    ]
    drawn = [_picture("Levels", pictures.draw_levels, audit)]
    if np.asarray(audit.policy.contributions).shape[1] <= 2:
        drawn.insert(0, _picture("Contributions and noise bodies", pictures.draw_secrets, audit))
    heads = ("secret", *(f"unbounded-DP level under {level.mechanism}" for level in audit.levels))
    return Section("Secrets", totals, heads, rows, drawn)


def _sequence(audit: SequenceAudit, sequence: ReleasedSequence, points: FloatArray, stated: Facts) -> Section:
    top = f"top_{audit.online.k}"
    columns = {
        "entropy (bits)": "entropy_bits_mean",
        "expected error (km)": "spread_rms",
        "best guess's probability": "best_guess_probability_mean",
        f"that of the top {audit.online.k}": f"{top}_probability_mean",
    }
    worth = stated.get("accuracy", {})
    if worth:
        columns["true error (km)"] = "expected_error_mean"
        columns["best guess right"] = "best_guess_right"
        columns[f"top {audit.online.k} right"] = f"{top}_right"
    rows = []
    for name in ("no_releases", "at_each_release", "in_hindsight", "told_every_measurement"):
        known = {**stated["knowledge"].get(name, {}), **worth.get(name, {})}
        if known:
            label = name.replace("no_", "without ").replace("_", " ")
            rows.append((label, *(f"{known[key]:.3g}" if key in known else "" for key in columns.values())))
    exposed = stated["exposed_releases"]
    repaired = sum(step.exposed_before_repair > 0 for step in audit.steps)
    said = "The policy left no state exposed, so that nothing had to be repaired. "
    if repaired:
        said = f"The policy left states exposed at {repaired:,} releases, and the repair protected them. "
    more = " and more" if len(exposed) > 20 else ""
    stayed = f"Releases at which some state stayed exposed: {', '.join(map(str, exposed[:20]))}{more}."
    said += stayed if exposed else "At no release did a state stay exposed."
    if stated["open_releases"]:
        entered = max((one["best_guess"] for one in stated["entries"]), default=0.0)
        said += (
            f" {len(stated['open_releases']):,} releases were of open places, as they are; {len(stated['entries']):,} "
            "came right after one, from a zone"
        )
        said += f", and left the likeliest place up to {entered:.2f} probable." if stated["entries"] else "."
    cost = (
        f"{len(audit.steps):,} releases cost {audit.epsilon:.4g} in all (Theorem 7.1); two possible sequences of "
        f"states are indistinguishable to within {_number(audit.constrained_epsilon)} (Theorem 7.2)."
    )
    drawn = [
        _picture("Uncertainty at each release", pictures.draw_entropy, audit),
        _picture("Error that the adversary expects at each release", pictures.draw_spread, audit),
        _picture("Belief in hindsight", pictures.draw_belief_map, points, audit, sequence.released),
    ]
    return Section(f"User {audit.user}", [cost, said], ("belief", *columns), rows, drawn)


def _events(found: EventAudits) -> list[Section]:
    sections = []
    for person, audits in zip(found.people, found.audits, strict=True):
        for audit in audits:
            probability = audit.probability
            before = np.append(audit.prior_probability, probability[:-1])
            rows = [
                (found.when(person, audit, t), f"{audit.moved[t]:+.3g}", f"{before[t]:.4g}", f"{probability[t]:.4g}")
                for t in audit.movers().tolist()
            ]
            said = (
                f"Before anything was released its probability was {audit.prior_probability:.4g}; after "
                f"{len(audit.told):,} releases it is {probability[-1]:.4g}, and meanwhile it was between "
                f"{probability.min():.4g} and {probability.max():.4g}."
            )
            seconds = person.engine.model.step_seconds or 0.0
            times: Any = (np.array(person.slots) * round(seconds * 1_000_000)).astype("M8[us]") if seconds else None
            figure, ax = new_figure(8.0, 4.4)
            event_over_time(ax, audit, found.most_certainty, found.least_certainty, times)
            legend_below(ax, columns=3)
            drawn = Picture(png(figure), "Probability of the event after each release", wide=True)
            header = ("release that moved it most", "log odds", "probability before", "probability after")
            sections.append(Section(f"User {audit.user}: {audit.wording}", [said], header, rows, [drawn]))
    return sections


def _mechanism(found: MechanismAudit, stated: list[Facts]) -> Section:
    rows = []
    for pair in stated:
        states, bounds = " – ".join(pair["states"]), (_number(pair["claimed"]), f"{pair['lower_bound']:.4g}")
        seen = "{:,} : {:,} of {:,}".format(*pair["hits"], pair["samples_counted_of_each"])
        rows.append((states, *bounds, "violated" if pair["violated"] else "kept", seen, pair["event"]))
    header = ("states", "claimed", "shown at least", "claim", "event seen under the one and the other", "found by")
    drawn = _picture("Bounds and claims", pictures.draw_bounds, found.pairs, found.subject.names)
    return Section(f"{found.mechanism} under {found.constraint.label}", (), header, rows, [drawn])


def _identity(found: IdentityAudit, stated: Facts) -> Section:
    forms = ["{user}", "{moments:,}", "{epsilon:.4g}", "{rank}", "{probability:.3g}"]
    forms += ["{likeliest}", "{probability_of_the_likeliest:.3g}"]
    rows = [[form.format(**one) for form in forms] for one in stated["users"]]
    header = ("user", "moments", "epsilon", "rank", "probability", "likeliest", "its probability")
    said = [
        f"The mean rank of the right candidate is {stated['rank_mean']:.3g}; by chance it is "
        f"{stated['rank_mean_by_chance']:.3g}."
    ]
    drawn = [
        _picture("Linked right, by how much was released", pictures.draw_linked, found),
        _picture("How often a stated probability is right", pictures.draw_calibration, found),
    ]
    if found.unique:
        drawn.append(_picture("Told from all others by known points", pictures.draw_unique, found))
    return Section("Everybody who was released", said, header, rows, drawn)


def _picture(caption: str, draw: Callable[..., object], *what: Any) -> Picture:
    figure, ax = new_figure(4.8, 4.4)
    draw(ax, *what)
    legend_below(ax, columns=2)
    return Picture(png(figure), caption)


def _number(value: float | None) -> str:
    return "∞" if value is None or not np.isfinite(value) else f"{value:.4g}"
