"""``dphmm audit``: what a policy exposes, what releases tell, and what the noise really gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import inputs
from dphmm.cli.console import FILE, OnceGroup, echo, progress, say_json, say_table, shown
from dphmm.errors import ConfigurationError
from dphmm.release.settings import Settings

if TYPE_CHECKING:
    from dphmm.audit.sequence import SequenceAudit
    from dphmm.jobs.audits import Constraint, Subject
    from dphmm.plots.audit_report import Audit

EXPOSED = 1
"""The exit code when something is exposed; 0 is nothing, 2 bad input."""

_BODIES = ("k-norm", "laplace", "planar-laplace")
_LINES = 20

_subject_options = inputs.options(
    click.option(
        "--model", type=click.Path(), help="A model that 'dphmm learn' wrote: its states and what can follow."
    ),
    inputs.options_of(Settings, names=("policy",)),
    inputs.buffer_option,
    click.option("--states", type=click.Path(), help="A .csv: a column 'state', the others what is measured there."),
    click.option("--edges", type=click.Path(), help="A .csv of two columns: pairs that must be indistinguishable."),
    click.option("--category", metavar="COLUMN", help="With --states: states of equal value are connected."),
    click.option("--possible", multiple=True, metavar="A,B,…", help="A constraint: these states alone are possible."),
)
_NO_MODEL = "the model is missing; give --model with the one that the releases were made with"


def _given(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001 - as click calls it
    """A model, which is there, unless a shell asks for completions."""
    if value is None and not context.resilient_parsing:
        raise ConfigurationError(_NO_MODEL)
    return value


_released_options = inputs.options(
    click.argument("releases", callback=inputs.store_of),
    click.option("--model", type=click.Path(), callback=_given, help="The model that the releases were made with."),
)
_reader_options = inputs.options(
    click.option("--users", metavar="A,B,…", help="These users alone."),
    click.option(
        "--adversary", type=click.Path(), metavar="FILE.csv", help="Another prior: columns state, probability."
    ),
    inputs.adversary_options,
)


def _readers(given: dict[str, Any]) -> dict[str, Any]:
    """Whose releases are looked at, and who reads them, by the `_reader_options`."""
    return {
        "users": inputs.names_of(given["users"]),
        "prior": given["adversary"],
        "watch": progress,
        "adversaries": inputs.adversaries_of(given),
    }


_output_options = inputs.options(
    click.option("--json", "as_json", is_flag=True, help="Say what was found as JSON."),
    click.option("--report", type=FILE, metavar="FILE.html", help="A report with pictures."),
    click.option("--overwrite", is_flag=True, help="Replace a report that exists."),
)


@click.group(cls=OnceGroup)
def audit_command() -> None:
    """What a policy exposes, what releases tell an adversary, and what the noise really gives.

    The exit code is 0 when no state is exposed, 1 when one is, 2 for bad input. A state is exposed when one release may
    tell it from every other by more than e^epsilon. 0 does not say that little was learned from many releases: 'dphmm
    audit session' does.
    """


@audit_command.command()
@_subject_options
@click.option("--steps", type=int, help="Constraints along the model's support, for this many time steps.")
@click.option("--start", metavar="A,B,…", help="With --steps: the states possible at first. [default: the model's]")
@click.option("--secrets", type=click.Path(), help="The database form: a .csv with a column 'secret'.")
@click.option("--count", "counts", multiple=True, metavar="COLUMN=VALUE", help="With --secrets: a count query.")
@click.option("--mechanism", "mechanisms", multiple=True, type=click.Choice(_BODIES), help="[default: k-norm, laplace]")
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The budget that levels are stated at.")
@click.option("--objective", type=click.Choice(["error", "volume"]), default="error", show_default=True)
@click.option("--calibration", type=click.Choice(["graph", "component"]), default="graph", show_default=True)
@click.option("--adversary", type=click.Path(), metavar="FILE.csv", help="Another prior: columns state, probability.")
@_output_options
def policy(**given: Any) -> None:
    """What a policy leaves exposed, with witnesses, and how each repair would help.

    Markov form: --model with --policy, or --states with --edges or --category; under the constraints of --possible or
    --steps, or all states. Database form: --secrets with --edges, where 'null' is the node of absence.
    """
    _check_report(given)
    given["mechanisms"] = tuple(dict.fromkeys(given["mechanisms"])) or ("k-norm", "laplace")
    if given["secrets"] is not None:
        _secrets(given)
    else:
        _policy(given)


def _secrets(given: dict[str, Any]) -> None:
    from dphmm.jobs.audits import audit_secrets

    for key in ("model", "states", "policy", "category", "possible", "steps", "start", "adversary"):
        if given[key]:
            raise ConfigurationError(f"--{key} belongs to the Markov form; leave it out, or --secrets")
    if given["edges"] is None:
        raise ConfigurationError("no policy is given; give --edges with pairs of secrets, 'null' for absence")
    found = audit_secrets(
        given["secrets"], given["edges"], given["counts"], given["mechanisms"], epsilon=given["epsilon"]
    )
    rows = [
        (
            level["mechanism"],
            "unbounded" if level["total_epsilon"] is None else shown(level["total_epsilon"]),
            ", ".join(level["exposed"][:_LINES]) or "none",
        )
        for level in found.facts()["mechanisms"]
    ]
    verdict = "Some secret is exposed." if found.is_exposed else "No secret is exposed."
    _end(found, given, "Policy audit", verdict, (("mechanism", "level of the whole", "exposed secrets"), rows))


def _policy(given: dict[str, Any]) -> None:
    from dphmm.jobs.audits import audit_policy

    if given["counts"]:
        raise ConfigurationError("--count belongs to the database form; give --secrets too, or leave it out")
    subject = _subject(given)
    constraints = _constraints(subject, given)
    if given["steps"] is not None:
        constraints += subject.along(given["steps"], inputs.names_of(given["start"]))
    elif given["start"] is not None:
        raise ConfigurationError("--start says where the first of several steps begins; give --steps too")
    found = audit_policy(
        subject,
        constraints,
        prior=given["adversary"],
        watch=progress,
        **{name: given[name] for name in ("mechanisms", "epsilon", "objective", "calibration")},
    )
    exposed = (f"exposed, {name}" for name in given["mechanisms"])
    head = ("constraint", "possible", "disconnected", *exposed, "best repair adds")
    verdict = (
        "Some state is exposed."
        if found.is_exposed
        else "No state is exposed by one release. What many tell together: dphmm audit session."
    )
    if found.entries is not None:
        verdict += f" {found.entries.in_words()}"
    _end(found, given, "Policy audit", verdict, (head, [_row(one) for one in found.facts()["constraints"]]))


def _row(stated: dict[str, Any]) -> tuple[str, ...]:
    exposed = [
        ", ".join(body["exposed"][:5]) + (", …" if len(body["exposed"]) > 5 else "") or "none"
        for body in stated["mechanisms"]
    ]
    best: list[list[str]] = next((repair["added"] for repair in stated["repairs"] if repair["method"] == "exact"), [])
    added = ", ".join("–".join(edge) for edge in best[:3])
    return (stated["label"], f"{stated['possible']:,}", f"{len(stated['disconnected']):,}", *exposed, added)


@audit_command.command()
@_released_options
@inputs.release_options
@inputs.true_options
@_reader_options
@click.option("--top", type=inputs.COUNT, default=5, show_default=True, help="How many places count as the top.")
@click.option("--least-error", metavar="LENGTH", help="Exit with 1 where the best guess comes nearer, such as 500m.")
@click.option("--most-certainty", type=float, help="Exit with 1 where one place is more probable than this.")
@_output_options
def session(releases: str | Path, **given: Any) -> None:
    """What the releases in RELEASES tell the best-informed adversary.

    RELEASES is a file of durable sessions ('dphmm release --session', or a relay's), or the address of a PostgreSQL
    server that keeps them; they say how they were made. Or it is a file that 'dphmm release -o' wrote. Then give the
    settings it was made with: --policy alone where all but the epsilon and the mechanism were left at their defaults,
    otherwise all of them. Errors are those that the adversary expects of the best guess, at some release and in
    hindsight. --known, --adversary-model and --knows ask about other adversaries beside the public one, who knows the
    model and nothing of the person; the verdict is about the one who knows most.
    """
    from dphmm.audit.sequence import PUBLIC, Thresholds
    from dphmm.facts import metres
    from dphmm.jobs.audits import audit_session

    _check_report(given)
    least = None if given["least_error"] is None else inputs.kilometres_of(given["least_error"], "--least-error")
    found = audit_session(
        releases,
        given["model"],
        inputs.stated_settings_of(given),
        true=inputs.true_data(given),
        top=given["top"],
        keep_beliefs=False,
        thresholds=Thresholds(least, given["most_certainty"]),
        **_readers(given),
    )
    several = any(audit.knows != PUBLIC.knows for audit in found.audits)
    rows = [
        (
            audit.user,
            *([audit.knows] if several else []),
            f"{len(audit.steps):,}",
            f"{audit.epsilon:.4g}",
            *(f"{known.entropy.mean():.2f}" for known in (audit.uninformed, audit.online, audit.hindsight)),
            *(f"{known.best.mean():.2f}" for known in (audit.uninformed, audit.hindsight)),
            f"{audit.hindsight.best.max():.2f}",
            *(metres(float(median(one.error))) for one in (audit.uninformed, audit.online, audit.hindsight)),
            metres(audit.hindsight.error.min()),
            *_truly(audit),
            f"{len(audit.exposed_steps):,}",
        )
        for audit in found.audits
    ]
    bits, guess = ("bits without", "at the time", "in hindsight"), ("best guess without", "in hindsight", "at most")
    error = ("error without", "at the time", "in hindsight", "at least")
    who = ("adversary knows",) if several else ()
    truly = ("right in hindsight", "expected off", "truly off") if given["true"] else ()
    head = ("user", *who, "releases", "epsilon", *bits, *guess, *error, *truly, "exposed")
    if found.private:
        echo("dphmm: true places went into this audit; keep it to yourself.", err=True)
    _end(found, given, "Session audit", found.in_words(), (head, rows))


def _truly(audit: SequenceAudit) -> tuple[str, ...]:
    """How often the best guess in hindsight is right, and how far off it is on average; empty without the truth."""
    from dphmm.facts import metres

    if audit.accuracies is None:
        return ()
    later = audit.accuracies[2]
    off = (float(one.mean()) for one in (audit.hindsight.error, later.estimate_error))
    return f"{later.best_hits.mean():.2f}", *map(metres, off)


@audit_command.command()
@_released_options
@click.option(
    "--most-certainty", type=float, help="A probability above it counts as learned. [default: the event's cap, or 0.9]"
)
@click.option("--least-certainty", type=float, default=0.0, show_default=True, help="And one below this.")
@inputs.release_options
@_reader_options
@inputs.known_format_options
@_output_options
def event(releases: str | Path, **given: Any) -> None:
    """What the releases in RELEASES tell of an event over time, such as 'was at the clinic this week'.

    RELEASES and the settings are as for 'dphmm audit session'. An event is at:PLACE WINDOW. A place is a name, the
    number of a cell, or a .geojson file of polygons. A window is 'between 2024-03-04 and 2024-03-10', 'on 2024-03-04
    any weekday 9-12 in Europe/Berlin', or 'between 0 and 20', steps from the first release. Events are joined by |, &
    and !. The exit code is 1 where one was learned at some release. --never-surer, --never-less and --priors say that
    the releases were made with such caps on these events.
    """
    from dphmm.audit.sequence import PUBLIC
    from dphmm.jobs.audits import audit_event

    _check_report(given)
    found = audit_event(
        releases,
        given["model"],
        given["events"],
        inputs.stated_settings_of(given),
        most_certainty=given["most_certainty"],
        least_certainty=given["least_certainty"],
        **_readers(given),
    )
    several = any(audit.knows != PUBLIC.knows for audits in found.audits for audit in audits)
    rows = []
    for person, audits in zip(found.people, found.audits, strict=True):
        for audit in audits:
            probability, moved = audit.probability, int(audit.movers(1)[0])
            rows.append(
                (
                    audit.user,
                    *([audit.knows] if several else []),
                    audit.wording if len(audit.wording) <= 40 else f"{audit.wording[:39]}…",
                    *(f"{one:.3g}" for one in (audit.prior_probability, probability.min(), probability.max())),
                    f"{probability[-1]:.3g}",
                    f"{found.when(person, audit, moved)} ({audit.moved[moved]:+.2f})",
                )
            )
    if found.private:
        echo("dphmm: true places went into this audit; keep it to yourself.", err=True)
    who, probabilities = ("adversary knows",) if several else (), ("before", "least", "most", "at the end")
    head = ("user", *who, "event", *probabilities, "moved most by the release of")
    verdict = "An event was learned." if found.is_exposed else "No event was learned."
    _end(found, given, "Event audit", verdict, (head, rows))


@audit_command.command()
@_subject_options
@click.option("--mechanism", default="lattice", show_default=True, help="Or k-norm, laplace, planar-isotropic, …")
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="The budget of a release.")
@click.option("--spacing", default="0.001", show_default=True, metavar="STEP", help="For lattice: its step.")
@click.option("--calibration", type=click.Choice(["graph", "component"]), default="graph", show_default=True)
@click.option("--samples", type=int, default=100_000, show_default=True, help="Draws of each state of a pair.")
@click.option("--confidence", type=float, default=0.99, show_default=True, help="That all bounds hold together.")
@click.option("--pairs", type=int, default=8, show_default=True, help="The hardest edges; 0 for every edge.")
@click.option("--low-bits", is_flag=True, help="Let events depend on the last bits of floating-point draws.")
@click.option("--seed", "rng", type=int, help="Repeatable draws.")
@_output_options
def mechanism(**given: Any) -> None:
    """Lower confidence bounds on the epsilon that a mechanism really gives, over the edges of the repaired graph."""
    from dphmm.jobs.audits import audit_mechanism

    _check_report(given)
    subject = _subject(given)
    constraints = _constraints(subject, given)
    if len(constraints) > 1:
        raise ConfigurationError(
            f"{len(constraints)} constraints are given; a mechanism is audited under one at a time"
        )
    drawn = ("mechanism", "epsilon", "spacing", "calibration", "samples", "confidence", "low_bits", "rng")
    found = audit_mechanism(
        subject,
        constraint=constraints[0] if constraints else None,
        pairs=given["pairs"] or None,
        watch=progress,
        **{name: given[name] for name in drawn},
    )
    rows = [
        (
            " – ".join(pair["states"]),
            f"{pair['claimed']:.4g}",
            f"{pair['lower_bound']:.4g}",
            "violated" if pair["violated"] else "kept",
        )
        for pair in found.facts()["pairs"]
    ]
    verdict = "A claim is violated." if found.is_exposed else "No claim was shown to be violated."
    _end(found, given, "Mechanism audit", verdict, (("states", "claimed", "shown at least", "claim"), rows))


@audit_command.command()
@_released_options
@inputs.release_options
@inputs.known_options
@click.option(
    "--true", multiple=True, type=click.Path(), help="What was released, read as --known: how few true places suffice."
)
@click.option("--prior", type=click.Path(), metavar="FILE.csv", help="Candidates before: columns state, probability.")
@click.option("--users", metavar="A,B,…", help="These released users alone.")
@click.option("--top", "k", type=int, default=3, show_default=True, help="How many candidates count as the likeliest.")
@click.option(
    "--most-certainty", type=float, default=0.5, show_default=True, help="Exit with 1 where someone is found surer."
)
@click.option("--no-names", is_flag=True, help="Print shares alone, and nothing of single people.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which known points are drawn, with --true.")
@_output_options
def identity(releases: str | Path, **given: Any) -> None:
    """Who the releases in RELEASES are linked to, by somebody who has earlier data of everybody.

    RELEASES and the settings are as for 'dphmm audit session'. A model of each candidate is made of their data before
    the first release; the releases are as probable under it as the filter says. The result tells who is who: keep it
    to yourself. The exit code is 1 where someone is singled out: linked right, with more than --most-certainty.
    """
    from dphmm.jobs.identity import audit_identity

    _check_report(given)
    known = inputs.true_data(given, "known")
    if known is None:
        raise ConfigurationError(
            "no candidates are given; give --known with earlier data of everybody who was released"
        )
    found = audit_identity(
        releases,
        given["model"],
        known,
        inputs.stated_settings_of(given),
        users=inputs.names_of(given["users"]),
        true=inputs.true_data(given),
        watch=progress,
        **{name: given[name] for name in ("prior", "k", "most_certainty", "seed")},
    )
    facts = found.without_names() if given["no_names"] else found.facts()
    if not given["no_names"]:
        echo("dphmm: this says who is who; keep it to yourself.", err=True)
    names = ("user", "moments", "epsilon", "rank", "probability", "likeliest", "probability_of_the_likeliest")
    rows = [
        [one if isinstance(one := user[name], str) else f"{one:.4g}" for name in names]
        for user in facts.get("users", ())
    ]
    lengths = [(f"{one['moments']:,}", *_found(one)) for one in facts["by_moments"]]
    by_length = ("after moments", "people", "linked right", f"among the {found.k} likeliest", "stated")
    by_points = ("known points", "told apart by times alone", "by releases", "by true places")
    tables = (
        ([name.replace("_", " ") for name in names], rows),
        (by_length, [*lengths, ("all", *_found(facts))]),
        (by_points, [_unique(one) for one in facts["unique"]]),
    )
    _end(found, given, "Identity audit", found.in_words(), *tables, facts=facts)


def _found(one: Mapping[str, Any]) -> list[str]:
    """How many people are found, for a table."""
    right = (one[f"linked_right{end}"] for end in ("", "_least", "_most"))
    share, least, most = (f"{100 * value:.0f}" for value in right)
    rest = (one["right_among_the_k_likeliest"], one["probability_of_the_likeliest"])
    return [f"{one['people']:,}", f"{share} % ({least} to {most})", *(f"{100 * value:.0f} %" for value in rest)]


@audit_command.command()
@click.argument("model", type=click.Path())
@click.option("--members", multiple=True, type=click.Path(), help="People whom the model was learned from.")
@click.option("--others", multiple=True, type=click.Path(), help="People like them whom it was not learned from.")
@click.option("--synthetic", multiple=True, type=click.Path(), help="Ask of people drawn from the model instead.")
@click.option("--member-users", metavar="A,B,…", help="These users alone of --members.")
@click.option("--other-users", metavar="A,B,…", help="These users alone of --others.")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="The share of others taken for members.")
@inputs.known_format_options
@_output_options
def membership(model: str, **given: Any) -> None:
    """Whether it shows that people are among those whom MODEL was learned from.

    Somebody who knows a person's moves asks whether they are more probable under the model (or one learned from
    --synthetic people) than under a model of other people without this person. The result tells who is who: keep it to
    yourself. The exit code is 1 where members are told from others (p < 0.01).
    """
    from dphmm.jobs.identity import audit_membership

    _check_report({**given, "known": True})
    people = {
        name: inputs.data_of(given[name], {**given, "users": given[f"{name[:-1]}_users"]})
        for name in ("members", "others")
    }
    for name in people:
        if not given[name]:
            raise ConfigurationError(f"no {name} are given; give data of people with --{name}")
    drawn = inputs.data_of(given["synthetic"], {**given, "users": None}) if given["synthetic"] else None
    found = audit_membership(model, **people, synthetic=drawn, alpha=given["alpha"], watch=progress)
    echo("dphmm: this says who was a member; keep it to yourself.", err=True)
    rows = [
        [
            f"{100 * one['alpha']:.3g} %",
            f"{100 * one['found']:.0f} % ({100 * one['found_least']:.0f} to {100 * one['found_most']:.0f})",
            f"{100 * one['promised_most']:.3g} %",
        ]
        for one in found.facts()["rates"]
    ]
    head = ("others taken for members", "members found", "at most by the promise")
    _end(found, {**given, "known": True}, "Membership audit", found.in_words(), (head, rows))


@audit_command.command()
@_released_options
@inputs.true_options
@click.option("--users", metavar="A,B,…", help="These released users alone.")
@click.option("--json", "as_json", is_flag=True, help="Say what was found as JSON.")
def utility(releases: str | Path, **given: Any) -> None:
    """What the releases in RELEASES are good for: errors of estimates, circles that hold, and crowds that stay alike.

    RELEASES is what 'dphmm release' or 'dphmm batch' wrote, or sessions. It is held against what was released (--true),
    so the result is private. Measures of likeness are those of 'dphmm synthesize --compare'.
    """
    from dphmm.facts import metres
    from dphmm.jobs.utility import audit_utility

    true = inputs.true_data(given)
    if true is None:
        raise ConfigurationError("there is nothing to hold the releases against; give --true with what was released")
    found = audit_utility(releases, given["model"], true, users=inputs.names_of(given["users"]), watch=progress)
    echo("dphmm: true places went into this audit; keep it to yourself.", err=True)
    if given["as_json"]:
        say_json(found.facts())
        return
    rows = [
        (
            one["user"],
            f"{one['moments']:,}",
            *(metres(one[f"error_m_{name}"] / 1000) for name in ("mean", "median", "90_percent")),
            "" if one["within_radius_90"] is None else f"{100 * one['within_radius_90']:.0f} %",
        )
        for one in found.facts()["users"]
    ]
    head = ("user", "moments", "error, mean", "median", "90 % below", "within the circle of 90 %")
    say_table(head, rows, most=_LINES)
    say_table(("alike", "divergence"), [(name.replace("_", " "), f"{one:.3f}") for name, one in found.measures.items()])
    echo(found.in_words())


def _unique(one: Mapping[str, Any]) -> list[str]:
    """How many people a few known points tell from all others, for a table."""
    ends = f" ({100 * one['by_releases_least']:.0f} to {100 * one['by_releases_most']:.0f})" if one["drawn"] else ""
    by = (f"{100 * one[name]:.3g} %" for name in ("by_times", "by_releases", "by_places"))
    times, releases, places = by
    return [str(one["known_points"]), times, releases + ends, places]


def _subject(given: dict[str, Any]) -> Subject:
    """The states and the policy that the `_subject_options` name."""
    from dphmm.jobs.audits import Subject

    if (given["model"] is None) == (given["states"] is None):
        raise ConfigurationError("no single set of states is given; give --model, or --states with a table of them")
    if given["states"] is not None:
        return Subject.from_tables(given["states"], given["edges"], given["category"])
    if given["policy"] is None:
        raise ConfigurationError("no policy is given; give --policy, such as utility:1km")
    return Subject.from_model(given["model"], inputs.policy_text(given))


def _constraints(subject: Subject, given: dict[str, Any]) -> list[Constraint]:
    return [subject.possible(inputs.names_of(text)) for text in given["possible"]]


# ---- saying it ---------------------------------------------------------------------------------------------------


def _check_report(given: dict[str, Any]) -> None:
    from dphmm.tables import private_name

    report = given["report"]
    if report is not None and report.suffix.lower() not in (".html", ".htm"):
        raise ConfigurationError(f"{report}: a report is an .html file; name it so")
    if report is not None and (given.get("true") or given.get("known")):
        private_name(report)


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""A header, and rows."""


def _end(
    found: Audit, given: dict[str, Any], title: str, verdict: str, *tables: Table, facts: dict[str, Any] | None = None
) -> None:
    """Say what was found, write the report where one is asked for, and leave with the exit code that goes with it."""
    if given["as_json"]:
        say_json(found.facts() if facts is None else facts)
    else:
        for header, rows in tables:
            if rows:
                say_table(header, rows, most=_LINES)
        echo(verdict, fg="red" if found.is_exposed else None)
    if given["report"] is not None:
        from dphmm.plots.audit_report import audit_sections
        from dphmm.reports import html_page
        from dphmm.tables import write_text

        page = html_page(title, verdict, found.is_exposed, audit_sections(found))
        write_text(given["report"], page, given["overwrite"], private=bool(given.get("true") or given.get("known")))
        echo(f"Report: {given['report']}", err=True)
    if found.is_exposed:
        raise click.exceptions.Exit(EXPOSED)
