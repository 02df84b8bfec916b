"""``dphmm audit``: what a policy exposes, what releases tell, and what the noise really gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import names_of
from dphmm.cli.progress import progress
from dphmm.cli.summary import shown
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.audit.policy_audit import ConstraintAudit
    from dphmm.cli.audited import Subject
    from dphmm.plots.page import Section
    from dphmm.release.engine import Releaser

EXPOSED = 1
"""The exit code when something is exposed; 0 is nothing, 2 bad input."""

_BODIES = ("k-norm", "laplace", "planar-laplace")
_LINES = 20


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_states = _options(
    click.option(
        "--model", type=click.Path(), help="A model that 'dphmm learn' wrote: its states and what can follow."
    ),
    click.option("--policy", help="With --model: utility:1km, complete, transition, categorical:LAYER.geojson, …"),
    click.option("--states", type=click.Path(), help="A .csv: a column 'state', the others what is measured there."),
    click.option("--edges", type=click.Path(), help="A .csv of two columns: pairs that must be indistinguishable."),
    click.option("--category", metavar="COLUMN", help="With --states: states of equal value are connected."),
    click.option("--possible", multiple=True, metavar="A,B,…", help="A constraint: these states alone are possible."),
)
_outputs = _options(
    click.option("--json", "as_json", is_flag=True, help="Say what was found as JSON."),
    click.option("--report", type=click.Path(path_type=Path), metavar="FILE.html", help="A report with pictures."),
    click.option("--overwrite", is_flag=True, help="Replace a report that exists."),
)


@click.group()
def command() -> None:
    """What a policy exposes, what releases tell an adversary, and what the noise really gives.

    The exit code is 0 when nothing is exposed, 1 when something is, 2 for bad input.
    """


@command.command()
@_states
@click.option("--steps", type=int, help="Constraints along the model's support, for so many time steps.")
@click.option("--start", metavar="A,B,…", help="With --steps: the states possible at first. [default: the model's]")
@click.option("--secrets", type=click.Path(), help="The database form: a .csv with a column 'secret'.")
@click.option("--count", "counts", multiple=True, metavar="COLUMN=VALUE", help="With --secrets: a count query.")
@click.option("--mechanism", "mechanisms", multiple=True, type=click.Choice(_BODIES), help="[default: k-norm, laplace]")
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The budget that levels are told at.")
@click.option("--objective", type=click.Choice(["volume", "error"]), default="volume", show_default=True)
@click.option("--adversary", type=click.Path(), metavar="FILE.csv", help="Another prior: columns state, probability.")
@_outputs
def policy(as_json: bool, report: Path | None, overwrite: bool, **options: Any) -> None:
    """What a policy leaves exposed, with witnesses, and how each repair would help.

    Markov form: --model with --policy, or --states with --edges or --category; under the constraints of --possible or
    --steps, or all states. Database form: --secrets with --edges, where 'null' is the node of absence.
    """
    from dphmm.arrays import check_epsilon

    check_epsilon(options["epsilon"])
    _check_report(report, overwrite)
    mechanisms = tuple(dict.fromkeys(options.pop("mechanisms"))) or ("k-norm", "laplace")
    if options["secrets"] is not None:
        _database(options, mechanisms, as_json, report, overwrite)
    else:
        _markov(options, mechanisms, as_json, report, overwrite)


def _database(
    options: dict[str, Any], mechanisms: tuple[Any, ...], as_json: bool, report: Path | None, overwrite: bool
) -> None:
    from dphmm.audit.blowfish import BlowfishPolicy, audit_blowfish
    from dphmm.audit.facts import blowfish_facts
    from dphmm.audit.tables import read_edges, read_secrets

    for key in ("model", "states", "policy", "category", "possible", "steps", "start", "adversary"):
        if options[key]:
            raise ConfigurationError(f"--{key} belongs to the Markov form; leave it out, or --secrets")
    if options["edges"] is None:
        raise ConfigurationError("no policy is given; give --edges with pairs of secrets, 'null' for absence")
    names, contributions = read_secrets(options["secrets"], options["counts"])
    audit = audit_blowfish(
        BlowfishPolicy(names, contributions, read_edges(options["edges"])), options["epsilon"], mechanisms
    )
    facts = blowfish_facts(audit)
    rows = [
        (
            found["mechanism"],
            f"{shown(found['total_epsilon']) if found['total_epsilon'] is not None else 'unbounded'}",
            ", ".join(found["exposed"][:_LINES]) or "none",
        )
        for found in facts["mechanisms"]
    ]

    def sections() -> list[Section]:
        from dphmm.plots.audit_report import blowfish_sections

        return blowfish_sections(audit)

    _end(facts, ("mechanism", "level of the whole", "exposed secrets"), rows, audit.is_exposed, as_json)
    _write_report(report, overwrite, "Policy audit", _verdict(audit.is_exposed, "secret"), audit.is_exposed, sections)
    _leave(audit.is_exposed)


def _markov(
    options: dict[str, Any], mechanisms: tuple[Any, ...], as_json: bool, report: Path | None, overwrite: bool
) -> None:
    from dphmm.audit.facts import constraint_facts
    from dphmm.audit.policy_audit import audit_constraints
    from dphmm.cli.audited import constraints_of, prior_of, subject_of

    if options["counts"]:
        raise ConfigurationError("--count belongs to the database form; give --secrets too, or leave it out")
    subject = subject_of(options)
    prior = prior_of(options["adversary"], subject.index)
    labelled = constraints_of(subject, options)
    labels = [label for label, _ in labelled]
    found = audit_constraints(
        subject.policy,
        subject.measurements,
        [constraint for _, constraint in labelled],
        mechanisms,
        objective=options["objective"],
    )
    audits = list(progress(found, "Auditing", len(labelled)))
    others = [_other_adversary(subject, audit, prior, options["objective"]) for audit in audits]
    exposed = any(audit.is_exposed for audit in audits) or any(
        other["exposed"] or other["already_known"] for other in others if other is not None
    )
    facts = {
        "form": "markov",
        "states": len(subject.names),
        "epsilon": options["epsilon"],
        "exposed": exposed,
        "constraints": [
            {"label": label, **constraint_facts(audit, subject.names, options["epsilon"]), "adversary": other}
            for label, audit, other in zip(labels, audits, others, strict=True)
        ],
    }
    rows = [_row(label, audit, subject.names) for label, audit in zip(labels, audits, strict=True)]

    def sections() -> list[Section]:
        from dphmm.plots.audit_report import policy_sections

        points = subject.measurements.points
        return policy_sections(labels, audits, subject.policy, points, subject.names, options["epsilon"])

    head = ("constraint", "possible", "disconnected", *(f"exposed, {name}" for name in mechanisms), "best repair adds")
    _end(facts, head, rows, exposed, as_json)
    _write_report(report, overwrite, "Policy audit", _verdict(exposed, "state"), exposed, sections)
    _leave(exposed)


def _row(label: str, audit: ConstraintAudit, names: Sequence[str]) -> tuple[str, ...]:
    exposed = [
        ", ".join(names[state] for state in body.exposed[:5]) + (", …" if len(body.exposed) > 5 else "") or "none"
        for body in audit.bodies
    ]
    best = [repair for repair in audit.repairs if repair.method == "exact"] or list(audit.repairs)
    added = ", ".join(f"{names[a]}–{names[b]}" for a, b in best[0].added[:3]) if best else ""
    return (label, f"{audit.possible:,}", f"{len(audit.disconnected):,}", *exposed, added)


def _other_adversary(subject: Subject, audit: ConstraintAudit, prior: Any, objective: Any) -> dict[str, Any] | None:
    """What the repaired K-norm release would mean for another prior."""
    from dphmm.audit.adversary import audit_adversary
    from dphmm.audit.facts import adversary_facts
    from dphmm.policy.protection import protect

    if prior is None or audit.possible < 2:
        return None
    repaired = protect(subject.policy, subject.measurements, audit.constraint, objective=objective)
    return adversary_facts(audit_adversary(repaired, subject.measurements, prior), subject.names)


@command.command()
@click.argument("releases", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(), help="The model that the releases were made with.")
@click.option("--policy", help="The policy that they were made with, as 'dphmm release' was told.")
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--repair", type=click.Choice(["greedy", "sequential", "exact"]), default="exact", show_default=True)
@click.option("--objective", type=click.Choice(["volume", "error"]), default="volume", show_default=True)
@click.option("--membership", type=click.Choice(["halfspace", "qp"]), default="halfspace", show_default=True)
@click.option("--delta", type=float, help="As the releases were made.")
@click.option("--spacing", default="0.001", show_default=True, metavar="KM", help="For lattice releases: its step.")
@click.option("--allow-known", is_flag=True, help="Go on where one state only was possible.")
@click.option("--adversary", type=click.Path(), metavar="FILE.csv", help="Another prior: columns state, probability.")
@click.option("--true", "true", multiple=True, type=click.Path(), help="True trajectories: the result is private.")
@click.option("--format", "format_", help="The format of --true. Left out, recognised.")
@click.option("--column", "columns", multiple=True, metavar="WHAT=NAME", help="Columns of --true, in tables.")
@click.option("--top", type=int, default=5, show_default=True, help="How many places count as the top.")
@_outputs
def session(releases: Path, as_json: bool, report: Path | None, overwrite: bool, **options: Any) -> None:
    """What the releases in RELEASES tell the best-informed adversary.

    RELEASES is a file of durable sessions ('dphmm release --session'), which says how it was made, or a file that
    'dphmm release -o' wrote; then give the options it was made with.
    """
    from dphmm.audit.facts import sequence_facts
    from dphmm.audit.sequence import audit_sequence
    from dphmm.cli.audited import load_model, prior_of, releases_of, state_names, true_states

    _check_report(report, overwrite)
    _, space = load_model(options["model"])
    names = state_names(space)
    prior = prior_of(options["adversary"], {name: i for i, name in enumerate(names)})
    everyone = list(releases_of(releases, options, names_of(options["users"])))
    audits = [
        audit_sequence(one.engine, one.sequence, prior, true_states(options["true"], one, options), options["top"])
        for one in progress(everyone, "Replaying")
    ]
    exposed = any(audit.exposed_steps for audit in audits)
    facts = {
        "exposed": exposed,
        "private": bool(options["true"]),
        "users": [
            {**sequence_facts(audit, names), "randomness_was_private": one.private}
            for audit, one in zip(audits, everyone, strict=True)
        ],
    }
    rows = [
        (
            audit.user,
            f"{len(audit.steps):,}",
            f"{audit.epsilon:.4g}",
            *(f"{known.entropy.mean():.2f}" for known in (audit.uninformed, audit.online, audit.hindsight)),
            f"{audit.hindsight.spread.mean():.3g}",
            f"{len(audit.exposed_steps):,}",
        )
        for audit in audits
    ]

    def sections() -> list[Section]:
        from dphmm.plots.audit_report import sequence_sections

        return sequence_sections(audits, [one.sequence for one in everyone], space.points)

    head = ("user", "releases", "epsilon", "bits without", "at the time", "in hindsight", "error (km)", "exposed")
    _end(facts, head, rows, exposed, as_json)
    if options["true"]:
        click.echo("dphmm: the true places went into this audit; keep it to yourself.", err=True)
    _write_report(report, overwrite, "Session audit", _verdict(exposed, "release", "state"), exposed, sections)
    _leave(exposed)


@command.command()
@_states
@click.option("--mechanism", default="lattice", show_default=True, help="Or k-norm, laplace, planar-isotropic, …")
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The budget of a release.")
@click.option("--spacing", default="0.001", show_default=True, metavar="STEP", help="For lattice: its step.")
@click.option("--samples", type=int, default=100_000, show_default=True, help="Draws of each state of a pair.")
@click.option("--confidence", type=float, default=0.99, show_default=True, help="That all bounds hold together.")
@click.option("--pairs", type=int, default=8, show_default=True, help="The hardest edges; 0 for every edge.")
@click.option("--low-bits", is_flag=True, help="Let events depend on the last bits of floating-point draws.")
@click.option("--seed", type=int, help="Repeatable draws.")
@_outputs
def mechanism(as_json: bool, report: Path | None, overwrite: bool, **options: Any) -> None:
    """Lower confidence bounds on the epsilon that a mechanism really gives, over the edges of the repaired graph."""
    from dphmm.audit.empirical import audit_pairs, hardest_edges
    from dphmm.audit.facts import pair_facts
    from dphmm.cli.audited import constraints_of, subject_of

    _check_report(report, overwrite)
    subject = subject_of(options)
    ((label, constraint),) = _single(constraints_of(subject, options))
    engine = _engine(subject, constraint, options)
    step = engine.prepare()
    assert step.plan.protection is not None, "an engine that allows no known state has a repaired graph"
    edges = hardest_edges(step.plan.protection.graph, engine.measurements, options["pairs"] or None)
    if not len(edges):
        raise ConfigurationError("the policy has no edge between possible states; there is nothing to sample")
    bounds = audit_pairs(
        step.mechanism,
        engine.values,
        edges,
        options["epsilon"],
        options["samples"],
        options["confidence"],
        rng=options["seed"],
        low_bits=options["low_bits"],
    )
    found = list(progress(bounds, "Sampling", len(edges)))
    violated = any(pair.violated for pair in found)
    facts = {
        "mechanism": options["mechanism"],
        "epsilon": options["epsilon"],
        "constraint": label,
        "confidence": options["confidence"],
        "low_bits": options["low_bits"],
        "exposed": violated,
        "largest_lower_bound": max(pair.lower for pair in found),
        "pairs": [pair_facts(pair, subject.names) for pair in found],
    }
    rows = [
        (
            f"{subject.names[pair.first]} – {subject.names[pair.second]}",
            f"{pair.claimed:.4g}",
            f"{pair.lower:.4g}",
            "violated" if pair.violated else "kept",
        )
        for pair in found
    ]

    def sections() -> list[Section]:
        from dphmm.plots.audit_report import pair_sections

        return pair_sections(found, subject.names, f"{options['mechanism']} under {label}")

    verdict = "A claim is violated." if violated else "No claim was shown to be violated."
    _end(facts, ("states", "claimed", "shown at least", "claim"), rows, violated, as_json, verdict)
    _write_report(report, overwrite, "Mechanism audit", verdict, violated, sections)
    _leave(violated)


def _single(found: list[Any]) -> list[Any]:
    if len(found) != 1:
        raise ConfigurationError(f"{len(found)} constraints are given; a mechanism is audited under one at a time")
    return found


def _engine(subject: Subject, constraint: Any, options: dict[str, Any]) -> Releaser:
    """An engine whose first step is under the constraint."""
    from scipy.sparse import csr_array, eye_array

    from dphmm.markov.model import MarkovModel
    from dphmm.release.engine import Releaser

    model = MarkovModel(csr_array(eye_array(len(subject.names))), constraint / constraint.sum())
    return Releaser(
        model,
        subject.measurements,
        subject.policy,
        options["epsilon"],
        options["mechanism"],
        rng=options["seed"],
        spacing=options["spacing"],
    )


# ---- saying it ---------------------------------------------------------------------------------------------------


def _verdict(exposed: bool, what: str, whose: str | None = None) -> str:
    if whose is not None:
        return f"At some {what} a {whose} is exposed." if exposed else f"At no {what} is a {whose} exposed."
    return f"Some {what} is exposed." if exposed else f"No {what} is exposed."


def _end(
    facts: dict[str, Any],
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    exposed: bool,
    as_json: bool,
    verdict: str | None = None,
) -> None:
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False, allow_nan=False))
        return
    widths = [max(len(str(line[k])) for line in [header, *rows]) for k in range(len(header))]
    click.secho("  ".join(str(cell).ljust(width) for cell, width in zip(header, widths, strict=True)), bold=True)
    for row in rows[:_LINES]:
        click.echo("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if len(rows) > _LINES:
        click.echo(f"… and {len(rows) - _LINES:,} more; --json and --report have them all.")
    text = verdict or ("Something is exposed." if exposed else "Nothing is exposed.")
    click.secho(text, fg="red" if exposed else "green")


def _check_report(report: Path | None, overwrite: bool) -> None:
    from dphmm.tables import check_output

    if report is not None:
        if report.suffix.lower() not in (".html", ".htm"):
            raise ConfigurationError(f"{report}: a report is an .html file; name it so")
        check_output(report, overwrite)


def _write_report(
    report: Path | None,
    overwrite: bool,
    title: str,
    verdict: str,
    alarming: bool,
    sections: Callable[[], list[Section]],
) -> None:
    if report is None:
        return
    from dphmm.plots.page import html_page
    from dphmm.tables import write_text

    write_text(report, html_page(title, verdict, alarming, sections()), overwrite)
    click.echo(f"Report: {report}", err=True)


def _leave(exposed: bool) -> None:
    if exposed:
        raise click.exceptions.Exit(EXPOSED)
