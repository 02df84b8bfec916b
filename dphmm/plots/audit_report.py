"""Sections of an audit's HTML report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.audit.blowfish import SecretsAudit
from dphmm.audit.policy import ConstraintAudit, EntryAudit
from dphmm.audit.sequence import ReleasedSequence, SequenceAudit
from dphmm.formatting import format_upper_bound
from dphmm.html_report import Picture, Section
from dphmm.jobs.audit.events import EventAudits
from dphmm.jobs.audit.identity import IdentityAudit
from dphmm.jobs.audit.mechanism import MechanismAudit
from dphmm.jobs.audit.membership import MembershipAudit
from dphmm.jobs.audit.policy import PolicyAudit
from dphmm.jobs.audit.session import SessionAudit
from dphmm.jobs.audit.target import AuditTarget
from dphmm.plots import audit as pictures
from dphmm.plots.audit import draw_event_probability
from dphmm.plots.canvas import create_figure, label_map, place_legend_below, render_png
from dphmm.validation import check_arguments

# Audits with a report.
Audit = PolicyAudit | SecretsAudit | SessionAudit | EventAudits | MechanismAudit | IdentityAudit | MembershipAudit

# Maximum number of constraint sets with a section, exposed ones first. The table lists all.
_MAX_SECTIONS = 12


@check_arguments
def build_audit_sections(audit: Audit, include_users: bool = True) -> list[Section]:
    """Build the sections of an audit's report.

    Parameters
    ----------
    audit
        The result of an audit.
    include_users
        Whether an identity audit's section lists single users.

    Returns
    -------
    list of Section
        For `dphmm.html_report.html_page`.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    stated = audit.to_dict()
    if isinstance(audit, PolicyAudit):
        return _build_policy_sections(audit, stated["constraints"])
    if isinstance(audit, SecretsAudit):
        return [_build_secrets_section(audit, stated)]
    if isinstance(audit, MechanismAudit):
        return [_build_mechanism_section(audit, stated["pairs"])]
    if isinstance(audit, EventAudits):
        return _build_event_sections(audit)
    if isinstance(audit, MembershipAudit):
        figures = [_build_picture("ROC curve", pictures.draw_membership, audit)]
        return [Section("Members and non-members", [], (), [], figures)]
    if isinstance(audit, IdentityAudit):
        return [_build_identity_section(audit, stated, include_users)]
    points = audit.space.points
    sequences = {replay.sequence.user: replay.sequence for replay in audit.replays}
    pairs = zip(audit.audits, stated["users"], strict=True)
    return [_build_sequence_section(audit, sequences[audit.user], points, user) for audit, user in pairs]


def _build_policy_sections(policy_audit: PolicyAudit, stated: list[dict[str, Any]]) -> list[Section]:
    rows = []
    for fields in stated:
        counts = [fields["num_possible_states"], len(fields["isolated"]), fields["num_components"]]
        counts.append(len(fields["unprotected"]))
        counts += [len(body["exposed"]) for body in fields["mechanisms"]]
        rows.append((fields["label"], *(f"{count:,}" for count in counts)))
    exposed = (f"exposed under {body['mechanism']}" for body in stated[0]["mechanisms"])
    header = ("constraint set", "possible", "isolated", "components", "unprotected", *exposed)
    sections = [Section("All constraint sets", [_EXPOSED_DEFINITION], header, rows)]
    if policy_audit.entries is not None and policy_audit.entries.entries:
        sections.append(_build_entry_section(policy_audit.entries, policy_audit.target))
    for fields, audit in sorted(zip(stated, policy_audit.audits, strict=True), key=lambda pair: not pair[1].is_exposed)[
        :_MAX_SECTIONS
    ]:
        sections += _build_constraint_sections(fields, audit, policy_audit.target, policy_audit.epsilon)
    return sections


_EXPOSED_DEFINITION = (
    "A possible state is exposed under a mechanism if it is protected and no other possible state (of its component, "
    "with noise scope component) lies within the noise body around it. Some output then distinguishes it from every "
    "other state by more than epsilon."
)


def _build_entry_section(audit: EntryAudit, subject: AuditTarget) -> Section:
    """Build the section on entries into zones."""
    stated = audit.to_dict(subject.names)["entries"][:_MAX_SECTIONS]
    rows = [
        (
            entry["from"],
            entry["into"],
            f"{entry['num_states']:,}",
            f"{entry['prior_probability']:.2f}",
            f"{entry['posterior_quantile_90']:.2f}",
        )
        for entry in stated
    ]
    figures = []
    if subject.measurements.points.shape[1] == 2:
        what = subject.measurements.points, audit
        figures.append(_build_picture("Entries into zones", pictures.draw_entries, *what, unit=_get_unit(subject)))
    sentences = [
        audit.describe(),
        f"Every release has epsilon = {audit.epsilon:g}. The table contains the {len(rows)} worst entries.",
    ]
    header = ["last unprotected release", "zone", "reachable states"]
    header += ["largest prior probability", "posterior of the true state, 90 % quantile"]
    return Section("Entries into zones", sentences, header, rows, figures)


def _build_constraint_sections(
    stated: dict[str, Any], audit: ConstraintAudit, subject: AuditTarget, epsilon: float
) -> list[Section]:
    """Build the sections on exposed states, noise and repairs under one constraint set."""
    rows: list[tuple[str, ...]] = []
    for body in stated["mechanisms"]:
        rows.append(_build_noise_row(body, "without repair", len(body["exposed"]), ""))
        for repair in stated["repairs"]:
            if repair["mechanism"] == body["mechanism"]:
                proof = ""
                if repair["method"] == "exact":
                    gap = f" (optimality gap at most {repair['optimality_gap']:.1%})"
                    proof = " (proven optimal)" if repair["is_optimal"] else gap
                added = _shorten_list(["–".join(edge) for edge in repair["added_edges"]])
                rows.append(_build_noise_row(repair, f"{repair['method']} repair{proof}", 0, added))
    exposed = [row for body in stated["mechanisms"] for row in _group_witnesses(body)]
    maps: list[Picture] = []
    bodies: list[Picture] = []
    points = subject.measurements.points
    unit = _get_unit(subject)
    if points.shape[1] == 2:
        if audit.labels is not None and (audit.unprotected or audit.noise_scope == "component"):
            title = "Components and unprotected states"
            maps.append(_build_picture(title, pictures.draw_components, points, audit, unit=unit))
        space = None if subject.model is None else subject.model.states
        for body_audit in audit.bodies:
            what = points, subject.policy, audit, body_audit, subject.names, space
            title = f"States and noise under {body_audit.mechanism}"
            maps.append(_build_picture(title, pictures.draw_exposure, *what, unit=unit))
        if audit.hull.dimension:
            bodies.append(_build_picture("Noise bodies", pictures.draw_hulls, audit, unit, unit=unit))
    volume = f"volume ({unit}{'²' if points.shape[1] == 2 else ''})" if unit else "volume"
    error = f"expected error at ε = {epsilon:g}" + (f" ({unit})" if unit else "")
    header = ("mechanism", "graph", "exposed", "added edges", volume, error, "constrained-DP factor")
    alike = ("mechanism", "number", "states", "distinguished from every other possible state", "example")
    first = () if exposed else ("No state is exposed.",)
    return [
        Section(f"{stated['label']}: exposed states", first, alike if exposed else (), exposed, maps),
        Section(f"{stated['label']}: noise and repairs", (), header, rows, bodies),
    ]


def _get_unit(subject: AuditTarget) -> str:
    """Return the unit of the measurements. That of a table of states is unknown."""
    return "" if subject.model is None else "km"


def _group_witnesses(body: dict[str, Any]) -> list[tuple[str, ...]]:
    """Group the exposed states by how they are distinguished, certain ones first."""
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for witness in body["witnesses"]:
        nearest = None if witness["is_certain"] else witness["against"][0]
        factor = np.inf
        description = "with certainty, by every release"
        if nearest is not None:
            factor = float(f"{nearest['factor']:.4g}")
            description = f"by a log ratio of at least {factor:.4g} ε = {nearest['log_ratio']:.4g}, at some output"
        groups.setdefault((factor, description), []).append(witness)
    rows: list[tuple[str, ...]] = []
    for (_, description), alike in sorted(groups.items(), key=lambda group: -group[0][0]):
        place = ", ".join(f"{x:.4g}" for x in alike[0]["output"])
        example = f"{alike[0]['state']} at the output ({place})"
        names = _shorten_list([witness["state"] for witness in alike], 12)
        rows.append((body["mechanism"], f"{len(alike):,}", names, description, example))
    others = len(body["exposed"]) - len(body["witnesses"])
    if others:
        names = _shorten_list(body["exposed"][len(body["witnesses"]) :], 12)
        rows.append((body["mechanism"], f"{others:,}", names, "without a witness", ""))
    return rows


def _shorten_list(names: Sequence[str], maximum: int = 8) -> str:
    more = f" and {len(names) - maximum:,} more" if len(names) > maximum else ""
    return ", ".join(names[:maximum]) + more


def _build_noise_row(stated: dict[str, Any], graph: str, exposed: int, added: str) -> tuple[str, ...]:
    noise = (
        f"{stated['hull_volume']:.4g}",
        f"{stated['expected_error']:.4g}",
        _format_number(stated["constrained_dp_factor"]),
    )
    return (stated["mechanism"], graph, f"{exposed}", added, *noise)


def _build_secrets_section(audit: SecretsAudit, stated: dict[str, Any]) -> Section:
    levels = stated["mechanisms"]
    rows = [
        (
            name,
            *(_format_number(level["epsilons"][name]) + " (exposed)" * (name in level["exposed"]) for level in levels),
        )
        for name in audit.policy.names
    ]
    totals = [
        f"{level.mechanism}: the table has {_format_bound(level.total_factor * audit.epsilon)}-unbounded-DP. "
        "Replacing one secret by another changes log probabilities by at most "
        f"{_format_bound(level.pairwise_factor * audit.epsilon)}."
        for level in audit.levels
    ]
    figures = [_build_picture("Levels", pictures.draw_levels, audit)]
    if np.asarray(audit.policy.contributions).shape[1] <= 2:
        figures.insert(0, _build_picture("Contributions and noise bodies", pictures.draw_secrets, audit))
    heads = ("secret", *(f"unbounded-DP level under {level.mechanism}" for level in audit.levels))
    return Section("Secrets", totals, heads, rows, figures)


def _build_sequence_section(
    audit: SequenceAudit, sequence: ReleasedSequence, points: FloatArray, stated: dict[str, Any]
) -> Section:
    k = audit.filtered_metrics.k
    columns = {
        "entropy (bits)": "mean_entropy_bits",
        "median expected error (km)": "median_error",
        "probability of the top location": "mean_top_1_probability",
        f"of the top {k}": f"mean_top_{k}_probability",
    }
    accuracy = stated.get("accuracy", {})
    if accuracy:
        columns["mean true error of the posterior mean (km)"] = "mean_estimate_error"
        columns["accuracy"] = "top_1_accuracy"
        columns[f"top {k} accuracy"] = f"top_{k}_accuracy"
    labels = {
        "without_releases": "without releases",
        "filtered": "given past releases",
        "smoothed": "given all releases",
        "exact_measurements": "given exact measurements",
    }
    rows = []
    for name, label in labels.items():
        metrics = {**stated["inference"].get(name, {}), **accuracy.get(name, {})}
        if metrics:
            rows.append((label, *(f"{metrics[key]:.3g}" if key in metrics else "" for key in columns.values())))
    exposed = stated["exposed_releases"]
    repaired = sum(step.num_exposed_before_repair > 0 for step in audit.steps)
    text = "The policy left no state exposed, and no repair was needed. "
    if repaired:
        text = f"The policy left states exposed at {repaired:,} releases, and the repair protected them. "
    more = " and more" if len(exposed) > 20 else ""
    still_exposed = f"Releases with exposed states: {', '.join(map(str, exposed[:20]))}{more}."
    text += still_exposed if exposed else "No release leaves a state exposed."
    if stated["unprotected_releases"]:
        text += f" {len(stated['unprotected_releases']):,} releases are of unprotected states, exact."
        if stated["entries"]:
            probability = max(entry["top_1_probability"] for entry in stated["entries"])
            text += (
                f" {len(stated['entries']):,} releases directly follow one of these, from a zone. The largest "
                f"probability of a location after them is {probability:.2f}."
            )
    cost = (
        f"The total epsilon of {stated['num_releases']:,} releases at {stated['num_timesteps']:,} timesteps is "
        f"{format_upper_bound(audit.epsilon)} (Theorem 7.1). Any two possible sequences of states are distinguished "
        "by a "
        f"log-likelihood ratio of at most {_format_bound(audit.constrained_epsilon)} (Theorem 7.2)."
    )
    if stated.get("randomness_was_private") is False:
        cost += (
            " The noise is seeded and can be reproduced: these bounds do not hold for an adversary who has the seed."
        )
    figures = [
        _build_picture("Uncertainty at each timestep", pictures.draw_entropy, audit),
        _build_picture("Expected error of the adversary at each timestep", pictures.draw_expected_error, audit),
        _build_picture(
            "Belief given all releases", pictures.draw_belief_map, points, audit, sequence.released, unit="km"
        ),
    ]
    return Section(f"User {audit.user}", [cost, text], ("belief", *columns), rows, figures)


def _build_event_sections(event_audits: EventAudits) -> list[Section]:
    sections = []
    for replay, audits in zip(event_audits.replays, event_audits.audits, strict=True):
        for audit in audits:
            probability = audit.probability
            before = np.append(audit.prior_probability, probability[:-1])
            rows = [
                (
                    event_audits.format_time(replay, audit, t),
                    f"{audit.release_log_odds[t]:+.3g}",
                    f"{before[t]:.4g}",
                    f"{probability[t]:.4g}",
                )
                for t in audit.largest_changes().tolist()
            ]
            text = (
                f"The prior probability of the event is {audit.prior_probability:.4g}. After "
                f"{len(audit.log_odds_change):,} timesteps it is {probability[-1]:.4g}, with a minimum of "
                f"{probability.min():.4g} and a maximum of {probability.max():.4g}."
            )
            seconds = replay.engine.model.step_seconds or 0.0
            times: Any = (np.array(replay.slots) * round(seconds * 1_000_000)).astype("M8[us]") if seconds else None
            figure, ax = create_figure(8.0, 4.4)
            draw_event_probability(ax, audit, event_audits.max_posterior, event_audits.min_posterior, times)
            place_legend_below(ax, columns=3)
            picture = Picture(render_png(figure), "Probability of the event after each timestep", wide=True)
            header = ("timestep", "change of log odds", "probability before", "probability after")
            sections.append(Section(f"User {audit.user}: {audit.wording}", [text], header, rows, [picture]))
    return sections


def _build_mechanism_section(audit: MechanismAudit, stated: list[dict[str, Any]]) -> Section:
    rows = []
    for pair in stated:
        states = " – ".join(pair["states"])
        bounds = (_format_number(pair["claimed"]), f"{pair['lower_bound']:.4g}")
        hits = "{:,} : {:,} of {:,}".format(*pair["hits"], pair["num_counted"])
        rows.append((states, *bounds, "violated" if pair["violated"] else "not violated", hits, pair["event"]))
    header = ("states", "claimed", "lower bound", "result", "samples in the event", "selected by")
    picture = _build_picture("Bounds and claims", pictures.draw_bounds, audit.pairs, audit.target.names)
    return Section(f"{audit.mechanism} under {audit.constraint.label}", (), header, rows, [picture])


def _build_identity_section(audit: IdentityAudit, stated: dict[str, Any], include_users: bool) -> Section:
    forms = ["{user}", "{num_timesteps:,}", "{epsilon}", "{rank}", "{posterior:.3g}"]
    forms += ["{most_probable_candidate}", "{max_posterior:.3g}"]
    users = [{**user, "epsilon": format_upper_bound(user["epsilon"])} for user in stated["users"]]
    rows = [[form.format(**user) for form in forms] for user in users]
    header = ("user", "timesteps", "epsilon", "rank", "posterior", "most probable candidate", "its posterior")
    sentences = [
        f"The mean rank of the true candidate is {stated['mean_rank']:.3g}, by chance "
        f"{stated['mean_rank_by_chance']:.3g}."
    ]
    figures = [
        _build_picture("Linkage accuracy by number of timesteps", pictures.draw_linkage, audit),
        _build_picture("Calibration of posterior probabilities", pictures.draw_calibration, audit),
    ]
    if audit.uniqueness:
        figures.append(_build_picture("Uniqueness given known points", pictures.draw_uniqueness, audit))
    if not include_users:
        return Section("Released users", sentences, pictures=figures)
    return Section("Released users", sentences, header, rows, figures)


def _build_picture(caption: str, draw: Callable[..., object], *what: Any, unit: str = "") -> Picture:
    """Draw a picture with a legend. Axes of a map in kilometres are labelled."""
    figure, ax = create_figure(4.8, 4.4)
    draw(ax, *what)
    if unit:
        label_map(ax)
    place_legend_below(ax, columns=2)
    return Picture(render_png(figure), caption)


def _format_bound(value: float) -> str:
    return format_upper_bound(value) if np.isfinite(value) else "∞"


def _format_number(value: float | None) -> str:
    return "∞" if value is None or not np.isfinite(value) else f"{value:.4g}"
