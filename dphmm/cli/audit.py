"""``dphmm audit``: audits of policies, mechanisms and releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.console import (
    FILE,
    Block,
    OnceGroup,
    Row,
    Table,
    echo,
    format_epsilon,
    format_use,
    print_json,
    print_paragraph,
    render,
    show_progress,
    warn,
)
from dphmm.cli.keys import NAME_LIST, NUMBER, declare_key, get_parameter_name
from dphmm.errors import ConfigurationError
from dphmm.formatting import format_kilometres
from dphmm.release.settings import Settings

if TYPE_CHECKING:
    from dphmm.audit.realized_leakage import EventAudit
    from dphmm.audit.sequence import SequenceAudit
    from dphmm.jobs.audit.target import AuditTarget, Constraint
    from dphmm.plots.audit_report import Audit

# Exit code if something is exposed. 0 means nothing is, 2 invalid input.
EXPOSED = 1

_BODIES = ("k-norm", "laplace", "planar-laplace")
_MAX_LINES = 20
_PRIVACY_WARNING = "Warning: this audit used true locations. Do not publish its result."

_subject_options = options.compose(
    click.option("--model", type=click.Path(), help="Model file of 'dphmm learn': states and transitions."),
    options.build_options(Settings, names=("policy",)),
    click.option("--states", type=click.Path(), help="CSV of states: column 'state', others are measurements."),
    click.option("--edges", type=click.Path(), help="CSV of two columns: pairs that must be indistinguishable."),
    click.option("--category", metavar="COLUMN", help="With --states: connect states of equal value."),
    click.option(
        "--possible",
        multiple=True,
        type=NAME_LIST,
        metavar="A,B,…",
        help="Constraint set: only these states are possible.",
    ),
)
_NO_MODEL = "--model must be given: the model of the releases"


def _require_model(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001 - as click calls it
    """Require a model, unless a shell requests completions."""
    if value is None and not context.resilient_parsing:
        raise ConfigurationError(_NO_MODEL)
    return value


_released_options = options.compose(
    click.argument("releases", callback=options.parse_store),
    click.option("--model", type=click.Path(), callback=_require_model, help="Model of the releases."),
)
_reader_options = options.compose(options.users_option, options.adversary_options)


def _build_adversary_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Build the arguments for the users and adversaries from the `_reader_options`."""
    return {
        "users": arguments["users"] or (),
        "prior": arguments["adversary_prior"],
        "watch": show_progress,
        "adversaries": options.build_adversaries(arguments),
    }


_output_options = options.compose(
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("--report", type=FILE, metavar="FILE.html", help="Write a report with figures."),
    click.option("--overwrite", is_flag=True, help="Replace an existing report."),
)


@click.group(cls=OnceGroup)
def audit_command() -> None:
    """Audit policies, mechanisms and releases.

    The exit code is 0 if no state is exposed, 1 if one is, and 2 for invalid input. A state is exposed if one release
    may distinguish it from every other state by more than e^epsilon. Exit code 0 does not limit what many releases
    reveal together: see 'dphmm audit session'.
    """


@audit_command.command()
@_subject_options
@click.option("--steps", type=int, help="Constraint sets along the model's support, this many timesteps.")
@declare_key("--first-states", type=NAME_LIST, help="With --steps: states possible at first. [default: the model's]")
@declare_key(
    "--repair-objective",
    type=click.Choice(["error", "volume"]),
    default="error",
    help="Objective of the exact repair: error or volume.",
)
@declare_key("--adversary-prior", type=click.Path(), help="Another adversary's prior: CSV of state, probability.")
@click.option(
    "--map",
    "region_map",
    metavar="FILE",
    help="Audit also for an adversary who excludes water: a map FILE, or coast.",
)
@click.option("--secrets", type=click.Path(), help="CSV with a column 'secret': audit a database policy.")
@click.option("--count", "counts", multiple=True, metavar="COLUMN=VALUE", help="With --secrets: a count query.")
@click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(_BODIES),
    help="Mechanism to audit. [default: k-norm, laplace]",
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="Budget for stated levels and errors.")
@click.option("--noise-scope", type=click.Choice(["graph", "component"]), default="graph", show_default=True)
@_output_options
def policy(**arguments: Any) -> None:
    """Audit the exposed states of a policy, with witnesses, and all repairs.

    Markov form: --model with --policy, or --states with --edges or --category, under the constraint sets of --possible
    or --steps, or all states. Database form: --secrets with --edges, where 'null' is the node of absence.
    """
    _check_report(arguments)
    arguments["mechanisms"] = tuple(dict.fromkeys(arguments["mechanisms"])) or ("k-norm", "laplace")
    if arguments["secrets"] is not None:
        _audit_secrets(arguments)
    else:
        _audit_policy(arguments)


def _audit_secrets(arguments: dict[str, Any]) -> None:
    from dphmm.jobs.audit.policy import audit_secrets

    for name in (
        "model",
        "states",
        "policy",
        "category",
        "possible",
        "steps",
        "first_states",
        "adversary_prior",
        "region_map",
    ):
        if arguments[name]:
            raise ConfigurationError(
                f"{get_parameter_name(name)} cannot be combined with --secrets: it belongs to the Markov form"
            )
    if arguments["edges"] is None:
        raise ConfigurationError("--secrets needs --edges with pairs of secrets, 'null' for absence")
    result = audit_secrets(
        arguments["secrets"],
        arguments["edges"],
        arguments["counts"],
        arguments["mechanisms"],
        epsilon=arguments["epsilon"],
    )
    verdict = "Some secrets are exposed." if result.is_exposed else "No secret is exposed."
    _finish(result, arguments, "Policy audit", verdict, _SECRETS)


def _format_total_epsilon(level: Mapping[str, Any]) -> str:
    return "unbounded" if level["total_epsilon"] is None else format_epsilon(level["total_epsilon"])


_SECRETS = Table(
    "mechanisms",
    (
        Row("mechanism"),
        Row("", "epsilon of the table", _format_total_epsilon),
        Row("exposed", "exposed secrets", lambda names: ", ".join(names[:_MAX_LINES]) or "none"),
    ),
    max_lines=_MAX_LINES,
)


def _audit_policy(arguments: dict[str, Any]) -> None:
    from dphmm.jobs.audit.policy import audit_policy

    if arguments["counts"]:
        raise ConfigurationError("--count needs --secrets: it belongs to the database form")
    target = _build_target(arguments)
    constraints = _build_constraints(target, arguments)
    if arguments["steps"] is not None:
        constraints += target.constrain_along(arguments["steps"], arguments["first_states"] or ())
    elif arguments["first_states"] is not None:
        raise ConfigurationError(f"{get_parameter_name('first_states')} needs --steps")
    result = audit_policy(
        target,
        constraints,
        prior=arguments["adversary_prior"],
        region_map=arguments["region_map"],
        watch=show_progress,
        **{name: arguments[name] for name in ("mechanisms", "epsilon", "repair_objective", "noise_scope")},
    )
    verdict = " ".join(result.summary_sentences())
    if not result.is_exposed:
        verdict += " For the joint disclosure of many releases, use 'dphmm audit session'."
    if result.entries is not None:
        verdict += f" {result.entries.describe()}"
    exposed = [_build_exposed_column(index, name) for index, name in enumerate(arguments["mechanisms"])]
    if arguments["adversary_prior"] is not None:
        exposed.append(_EXPOSED_TO_OTHER)
    if arguments["region_map"] is not None:
        exposed.append(_EXPOSED_WITH_MAP)
    warn(result.list_warnings())
    _finish(
        result,
        arguments,
        "Policy audit",
        verdict,
        replace(_CONSTRAINTS, columns=(*_CONSTRAINTS.columns, *exposed, _ADDED)),
    )


def _format_count(items: Sequence[Any]) -> str:
    return f"{len(items):,}"


_CONSTRAINTS = Table(
    "constraints",
    (
        Row("label", "constraint set"),
        Row("num_possible_states", "possible states"),
        Row("isolated", "states without an edge", _format_count),
    ),
    max_lines=_MAX_LINES,
)


def _build_exposed_column(index: int, mechanism: str) -> Row:
    """Build the column of the states that a mechanism, given by its index, leaves exposed."""

    return Row("mechanisms", f"exposed, {mechanism}", lambda bodies: _format_states(bodies[index]["exposed"]))


def _format_states(states: Sequence[str]) -> str:
    return ", ".join(states[:5]) + (", …" if len(states) > 5 else "") or "none"


_EXPOSED_TO_OTHER = Row(
    "adversary",
    "exposed, provided prior",
    lambda other: "" if other is None else _format_states(other["exposed_with_surrogates"]),
)


_EXPOSED_WITH_MAP = Row(
    "map_adversary", "exposed, map", lambda other: "" if other is None else _format_states(other["exposed"])
)


def _format_added_edges(repairs: Sequence[Mapping[str, Any]]) -> str:
    exact = next((repair for repair in repairs if repair["method"] == "exact"), None)
    edges: list[list[str]] = [] if exact is None else exact["added_edges"]
    return ", ".join("–".join(edge) for edge in edges[:3])


_ADDED = Row("repairs", "edges of the exact repair", _format_added_edges)


@audit_command.command()
@_released_options
@options.release_options
@options.true_options
@_reader_options
@declare_key("--top", type=options.COUNT, default=5, help="Number of states for the top-k metrics.")
@click.option(
    "--adversary-error", metavar="LENGTH", help="Exit with 1 if an adversary's error is below this, e.g. 500m."
)
@click.option("--max-posterior", type=float, help="Exit with 1 if a location is more probable than this.")
@options.engine_options
@_output_options
def session(releases: str | Path, **arguments: Any) -> None:
    """Audit what the releases in RELEASES reveal about locations.

    RELEASES is a file of durable sessions ('dphmm release --session', or a relay's), the address of a PostgreSQL server
    with sessions, or the folder of a batch. These contain their settings. It can also be a file that 'dphmm release -o'
    wrote. Settings are needed only if they are not the defaults, in the file or in a certificate in its folder.

    Errors are those that the adversary expects of its point estimate, given past releases and given all releases. The
    public adversary knows the model and has no auxiliary data. --auxiliary-data, --adversary-model and
    --auxiliary-location add informed adversaries. The summary refers to the adversary with the largest posterior
    probabilities.
    """
    from dphmm.audit.sequence import Thresholds
    from dphmm.jobs.audit.session import audit_session

    _check_report(arguments)
    min_error = (
        None
        if arguments["adversary_error"] is None
        else options.parse_kilometres(arguments["adversary_error"], get_parameter_name("adversary_error"))
    )
    result = audit_session(
        releases,
        arguments["model"],
        options.build_stated_settings(arguments),
        true=options.build_true_data(arguments),
        top=arguments["top"],
        keep_beliefs=False,
        thresholds=Thresholds(min_error, arguments["max_posterior"]),
        engine=options.build_engine(arguments),
        **_build_adversary_arguments(arguments),
    )
    if result.private:
        echo(_PRIVACY_WARNING, err=True)
    _warn_of_omitted(result.users_without_earlier_data)
    tables = [_SESSIONS, _INFERENCE]
    if any(audit.accuracies is not None for audit in result.audits):
        tables.append(_ACCURACY)
    tables = [_add_adversary_column(table, result.audits) for table in tables]
    _finish(result, arguments, "Session audit", result.describe(), *tables)


def _warn_of_omitted(users: Sequence[str]) -> None:
    """Warn of users who are omitted, because an informed adversary has no data of them."""
    if users:
        warn([f"users without earlier data in the region are omitted: {_format_users(users)}"])


def _format_users(users: Sequence[str]) -> str:
    return ", ".join(users[:8]) + (", …" if len(users) > 8 else "")


def _add_adversary_column(table: Table, audits: Iterable[SequenceAudit | EventAudit]) -> Table:
    """Add a column of auxiliary knowledge to a table, if there are informed adversaries."""
    from dphmm.audit.sequence import PUBLIC

    if all(audit.auxiliary_knowledge == PUBLIC.auxiliary_knowledge for audit in audits):
        return table
    user, *rest = table.columns
    return replace(table, columns=(user, Row("auxiliary_knowledge", "adversary knows"), *rest))


def _format_mean_error(user: Mapping[str, Any]) -> str:
    return format_kilometres(fmean(user["inference"]["smoothed"]["error"]))


_ENTROPY = "inference/{}/mean_entropy_bits".format
_PROBABILITY = "inference/{}/{}_top_1_probability".format
_ERROR = "inference/{}/{}_error".format
_SESSIONS = Table(
    "users",
    (
        Row("user"),
        Row("num_timesteps", "timesteps"),
        Row("num_releases", "releases"),
        Row("epsilon", "total epsilon", format_epsilon),
        Row("exposed_releases", "timesteps with exposed states", _format_count),
    ),
    "Result",
    max_lines=_MAX_LINES,
)
_INFERENCE = Table(
    "users",
    (
        Row("user"),
        Row(_ENTROPY("without_releases"), "entropy, none (bits)", ".2f"),
        Row(_ENTROPY("smoothed"), "entropy, all (bits)", ".2f"),
        Row(_PROBABILITY("without_releases", "mean"), "mean p, none", ".2f"),
        Row(_PROBABILITY("smoothed", "mean"), "mean p, all", ".2f"),
        Row(_PROBABILITY("smoothed", "max"), "max p, all", ".2f"),
        Row(_ERROR("without_releases", "median"), "median error, none", format_kilometres),
        Row(_ERROR("filtered", "median"), "median error, past", format_kilometres),
        Row(_ERROR("smoothed", "median"), "median error, all", format_kilometres),
        Row(_ERROR("smoothed", "min"), "min error, all", format_kilometres),
    ),
    "Privacy: the adversary's inference given no, past and all releases; p is the posterior probability of the most "
    "probable location, and errors are expected ones",
    max_lines=_MAX_LINES,
)
_ACCURACY = Table(
    "users",
    (
        Row("user"),
        Row("accuracy/smoothed/top_1_accuracy", "correct most probable location", ".2f"),
        Row("", "expected error", lambda user: _format_mean_error(user) if "accuracy" in user else ""),
        Row("accuracy/smoothed/mean_estimate_error", "true error", format_kilometres),
    ),
    "Private: accuracy of the inference given all releases",
    max_lines=_MAX_LINES,
)


@audit_command.command()
@_released_options
@click.option("--max-posterior", type=float, help="Learned above this probability. [default: the event cap, or 0.9]")
@declare_key("--min-posterior", type=float, default=0.0, help="Learned below this probability.")
@options.release_options
@_reader_options
@options.engine_options
@options.known_format_options
@_output_options
def event(releases: str | Path, **arguments: Any) -> None:
    """Audit what the releases in RELEASES reveal about an event over time.

    RELEASES and the settings are those of 'dphmm audit session'. An event is at:PLACE WINDOW. PLACE is a name, the
    number of a cell, or a .geojson file of polygons. WINDOW is 'between 2024-03-04 and 2024-03-10', 'on 2024-03-04 any
    weekday 9-12 in Europe/Berlin', or 'between 0 and 20', in steps from the first release. Events are combined by |, &
    and !. The exit code is 1 if an event was learned at some release. --max-event-probability and the keys
    min_event_probability and event_cap_priors specify that the releases were made with such caps on these events.
    """
    from dphmm.jobs.audit.events import audit_event

    _check_report(arguments)
    result = audit_event(
        releases,
        arguments["model"],
        arguments["events"],
        options.build_stated_settings(arguments, needs_caps=False),
        max_posterior=arguments["max_posterior"],
        min_posterior=arguments["min_posterior"],
        engine=options.build_engine(arguments),
        **_build_adversary_arguments(arguments),
    )
    if result.private:
        echo(_PRIVACY_WARNING, err=True)
    _warn_of_omitted(result.users_without_earlier_data)
    verdict = "An event was learned." if result.is_exposed else "No event was learned."
    if result.users_after_event:
        users = _format_users(result.users_after_event)
        verdict += f" Not audited for users with a first release after the end of an event: {users}."
    audits = (audit for user_audits in result.audits for audit in user_audits)
    _finish(result, arguments, "Event audit", verdict, _add_adversary_column(_EVENTS, audits))


def _format_largest_change(moves: Sequence[Mapping[str, Any]]) -> str:
    """Format the time and size of the largest change of log odds. None means infinite."""
    return f"{moves[0]['time']} ({'∞' if moves[0]['log_odds'] is None else format(moves[0]['log_odds'], '+.2f')})"


_EVENTS = Table(
    "events",
    (
        Row("user"),
        Row("event", text=lambda wording: wording if len(wording) <= 40 else f"{wording[:39]}…"),
        Row("prior_probability", "prior", ".3g"),
        Row("min_probability/probability", "minimum", ".3g"),
        Row("max_probability/probability", "maximum", ".3g"),
        Row("final_probability", "final", ".3g"),
        Row("largest_changes", "largest change of log odds", _format_largest_change),
    ),
    max_lines=_MAX_LINES,
)


@audit_command.command()
@_subject_options
@click.option(
    "--mechanism", default="lattice", show_default=True, help="Mechanism to audit, such as k-norm or laplace."
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, help="Budget of a release.")
@click.option("--noise-scope", type=click.Choice(["graph", "component"]), default="graph", show_default=True)
@declare_key("--spacing", type=NUMBER, default="0.001", help="With lattice: step of the published lattice.")
@declare_key("--samples", type=int, default=100_000, help="Number of samples of each state of a pair.")
@declare_key("--confidence", type=float, default=0.99, help="Probability that all bounds hold jointly.")
@declare_key("--pairs", type=click.IntRange(0), default=8, help="Number of edges with the largest norm, 0 for all.")
@declare_key("--low-bits", is_flag=True, help="Let events depend on the last bits of floats.")
@click.option("--seed", "rng", type=click.IntRange(0), help="Seed of the samples.")
@_output_options
def mechanism(**arguments: Any) -> None:
    """Bound the actual epsilon of a mechanism from below.

    The bounds are over the edges of the repaired graph.
    """
    from dphmm.jobs.audit.mechanism import audit_mechanism

    _check_report(arguments)
    target = _build_target(arguments)
    constraints = _build_constraints(target, arguments)
    if len(constraints) > 1:
        raise ConfigurationError(f"--possible must be given at most once for a mechanism, got {len(constraints)} sets")
    names = ("mechanism", "epsilon", "spacing", "noise_scope", "samples", "confidence", "low_bits", "rng")
    result = audit_mechanism(
        target,
        constraint=constraints[0] if constraints else None,
        pairs=arguments["pairs"] or None,
        watch=show_progress,
        **{name: arguments[name] for name in names},
    )
    verdict = "A claim is violated." if result.is_exposed else "No violation of a claim was shown."
    _finish(result, arguments, "Mechanism audit", verdict, _PAIRS)


_PAIRS = Table(
    "pairs",
    (
        Row("states", text=" – ".join),
        Row("claimed", "claimed log ratio", ".4g"),
        Row("lower_bound", "lower bound", ".4g"),
        Row("violated", "result", lambda violated: "violated" if violated else "not violated"),
    ),
    max_lines=_MAX_LINES,
)


@audit_command.command()
@_released_options
@options.release_options
@options.known_options
@click.option(
    "--true",
    multiple=True,
    type=click.Path(),
    help="Released trajectories: measure the uniqueness of users.",
)
@options.users_option
@declare_key(
    "--candidate-prior",
    "prior",
    type=click.Path(),
    help="Prior of the candidates: CSV of state (the name), probability.",
)
@declare_key("--top", "k", type=options.COUNT, default=3, help="Number of candidates for the top-k accuracy.")
@click.option(
    "--max-posterior",
    type=float,
    default=0.5,
    show_default=True,
    help="Exit with 1 if a user is linked with a higher probability.",
)
@click.option("--no-names", is_flag=True, help="Print and report shares only, nothing about single users.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="With --true: seed of the known points."
)
@options.engine_options
@_output_options
def identity(releases: str | Path, **arguments: Any) -> None:
    """Audit the linkage of the releases in RELEASES to users.

    The adversary has earlier data of all candidates. Released users without earlier data are omitted. RELEASES and the
    settings are those of 'dphmm audit session'. A model of each candidate is built from the data before the first
    release, and the filter gives the likelihood of the releases under it. The result reveals identities: do not
    publish it. The exit code is 1 if a user is singled out, that is, linked correctly with a probability above
    --max-posterior.
    """
    from dphmm.jobs.audit.identity import audit_identity

    _check_report(arguments)
    auxiliary_data = options.build_true_data(arguments, "auxiliary_data")
    if auxiliary_data is None:
        raise ConfigurationError("--auxiliary-data must be given: earlier data of the released users")
    audit = audit_identity(
        releases,
        arguments["model"],
        auxiliary_data,
        options.build_stated_settings(arguments),
        users=arguments["users"] or (),
        true=options.build_true_data(arguments),
        watch=show_progress,
        **{name: arguments[name] for name in ("prior", "k", "max_posterior")},
        rng=arguments["seed"],
        engine=options.build_engine(arguments),
    )
    result = audit.to_dict_without_users() if arguments["no_names"] else audit.to_dict()
    if not arguments["no_names"]:
        echo("Warning: this result reveals identities. Do not publish it.", err=True)
        _warn_of_omitted(audit.users_without_earlier_data)
    more = {"lengths": [*result["by_num_timesteps"], result]}  # the result itself is the row of all timesteps
    by_length = Table("lengths", _build_linkage_columns(audit.k), max_lines=_MAX_LINES)
    _finish(
        audit,
        arguments,
        "Identity audit",
        audit.describe(),
        _CANDIDATES,
        by_length,
        _KNOWN_POINTS,
        result=result,
        more=more,
    )


def _format_4_digits(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


_CANDIDATES = Table(
    "users",
    (
        Row("user"),
        Row("num_timesteps", "timesteps", _format_4_digits),
        Row("epsilon", text=format_epsilon),
        Row("rank", text=_format_4_digits),
        Row("posterior", "posterior of the user", _format_4_digits),
        Row("most_probable_candidate"),
        Row("max_posterior", "its posterior", _format_4_digits),
    ),
    max_lines=_MAX_LINES,
)


def _format_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _format_3_digits(share: float) -> str:
    return f"{100 * share:.3g} %"


def _format_interval(item: Mapping[str, Any], key: str) -> str:
    """Format a share with its interval, in percent."""
    share, lower, upper = (item[name] for name in (key, f"min_{key}", f"max_{key}"))
    return f"{_format_percent(share)} ({100 * lower:.0f} to {100 * upper:.0f})"


def _build_linkage_columns(k: int) -> tuple[Row, ...]:
    """Build the columns of the linkage accuracy after some timesteps, and after all."""
    return (
        Row("", "timesteps", lambda item: "all" if item["num_timesteps"] is None else f"{item['num_timesteps']:,}"),
        Row("num_users", "users"),
        Row("", "correct", lambda item: _format_interval(item, "top_1_accuracy")),
        Row("top_k_accuracy", f"correct among the top {k}", _format_percent),
        Row("mean_max_posterior", "mean max posterior", _format_percent),
    )


def _format_by_releases(item: Mapping[str, Any]) -> str:
    interval = f" ({100 * item['min_by_releases']:.0f} to {100 * item['max_by_releases']:.0f})"
    return f"{_format_3_digits(item['by_releases'])}{interval if item['num_samples'] else ''}"


_KNOWN_POINTS = Table(
    "uniqueness",
    (
        Row("num_known_points", "known points"),
        Row("by_times", "unique by times", _format_3_digits),
        Row("", "unique by releases", _format_by_releases),
        Row("by_places", "unique by true locations", _format_3_digits),
    ),
    max_lines=_MAX_LINES,
)


@audit_command.command()
@click.argument("model", type=click.Path())
@click.option("--members", multiple=True, type=click.Path(), help="Data of training users of the model.")
@click.option("--others", multiple=True, type=click.Path(), help="Data of similar users who are not training users.")
@click.option("--synthetic", multiple=True, type=click.Path(), help="Synthetic users published instead of the model.")
@declare_key("--member-users", type=NAME_LIST, help="Use only these users of --members.")
@declare_key("--other-users", type=NAME_LIST, help="Use only these users of --others.")
@declare_key("--false-positive-rate", "alpha", type=float, default=0.05, help="False positive rate of the summary.")
@options.membership_format_options
@_output_options
def membership(model: str, **arguments: Any) -> None:
    """Audit whether MODEL reveals its training users.

    With a user's transitions, an attacker compares their probability under the model (or one fitted to --synthetic
    users) with that under a model of other users. The result reveals membership: do not publish it. The exit code is 1
    if members are distinguished from others (p < 0.01).
    """
    from dphmm.jobs.audit.membership import audit_membership

    _check_report({**arguments, "auxiliary_data": True})
    data_by_role = {
        name: options.build_data(arguments[name], {**arguments, "users": arguments[f"{name[:-1]}_users"]})
        for name in ("members", "others")
    }
    for name in data_by_role:
        if not arguments[name]:
            raise ConfigurationError(f"--{name} must be given: data of users")
    synthetic = (
        options.build_data(arguments["synthetic"], {**arguments, "users": None}) if arguments["synthetic"] else None
    )
    result = audit_membership(model, **data_by_role, synthetic=synthetic, alpha=arguments["alpha"], watch=show_progress)
    echo("Warning: this result reveals membership. Do not publish it.", err=True)
    _finish(result, {**arguments, "auxiliary_data": True}, "Membership audit", result.describe(), _RATES)


_RATES = Table(
    "rates",
    (
        Row("alpha", "false positive rate", _format_3_digits),
        Row("max_false_positive_rate", "at most", _format_3_digits),
        Row("", "detected members", lambda rate: _format_interval(rate, "detection_rate")),
        Row("guaranteed_max_detection_rate", "guaranteed maximum", _format_3_digits),
    ),
    max_lines=_MAX_LINES,
)


@audit_command.command()
@_released_options
@options.true_options
@options.users_option
@options.uses_options
@options.engine_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def utility(releases: str | Path, **arguments: Any) -> None:
    """Audit the utility of the releases in RELEASES: errors, coverage, mobility statistics.

    RELEASES is a result of 'dphmm release' or 'dphmm batch', or sessions. It is compared with the released trajectories
    (--true), so the result is private. The divergences are those of 'dphmm synthesize --compare'.

    With --uses, the estimates of all users are used to count the users of each area and hour, to estimate the
    reproduction number of a disease, and to find contacts, which are users in one state at one timestep. The errors
    have 95 % intervals over users.
    """
    from dphmm.jobs.audit.utility import audit_utility
    from dphmm.model.mobility_statistics import MEASURES

    true = options.build_true_data(arguments)
    if true is None:
        raise ConfigurationError("--true must be given: the released trajectories")
    audit = audit_utility(
        releases,
        arguments["model"],
        true,
        users=arguments["users"] or (),
        uses=options.build_uses(arguments),
        engine=options.build_engine(arguments),
        watch=show_progress,
    )
    echo(_PRIVACY_WARNING, err=True)
    if arguments["as_json"]:
        print_json(audit.to_dict())
        return
    result = audit.to_dict()
    # The measures without a histogram are similarities.
    measures = [
        {"measure": name.replace("_", " "), "value": value, "best": "0" if name in MEASURES else "1"}
        for name, value in result["measures"].items()
    ]
    render({**result, "measures": measures}, _ERRORS, _MEASURES, USES)
    print_paragraph("", audit.describe())
    if audit.uses is not None:
        print_paragraph("", audit.uses.describe())


def _format_metres(value: float) -> str:
    return format_kilometres(value / 1000)


_ERRORS = Table(
    "users",
    (
        Row("user"),
        Row("num_timesteps", "timesteps"),
        Row("mean_stated_error_m", "mean stated error", _format_metres),
        Row("mean_error_m", "mean error", _format_metres),
        Row("median_error_m", "median error", _format_metres),
        Row("error_quantile_90_m", "90 % quantile", _format_metres),
        Row("coverage_90", "coverage of the 90 % radius", _format_percent),
    ),
    max_lines=_MAX_LINES,
)
_MEASURES = Table("measures", (Row("measure", "statistic"), Row("value", text=".3f"), Row("best", "best value")))
USES = Block(
    "Uses of the estimates, with 95 % intervals over users",
    (
        Row("uses/monitoring_error", "monitoring: relative error of counts", format_use),
        Row("uses/reproduction_error", "epidemic analysis: relative error of the reproduction number", format_use),
        Row("uses/tracing_precision", "contact tracing: precision", format_use),
        Row("uses/tracing_recall", "contact tracing: recall", format_use),
        Row("uses/num_contacts", "true contacts to trace"),
    ),
)


def _build_target(arguments: dict[str, Any]) -> AuditTarget:
    """Build the target from the `_subject_options`."""
    from dphmm.jobs.audit.target import AuditTarget

    if (arguments["model"] is None) == (arguments["states"] is None):
        raise ConfigurationError("exactly one of --model and --states must be given")
    if arguments["states"] is not None:
        options.refuse(("policy",), "cannot be combined with --states, which needs --edges or --category")
        return AuditTarget.from_tables(arguments["states"], arguments["edges"], arguments["category"])
    options.refuse(("edges", "category"), "cannot be combined with --model, which needs --policy")
    if arguments["policy"] is None:
        raise ConfigurationError("--model needs --policy, such as utility:1km")
    return AuditTarget.from_model(arguments["model"], arguments["policy"])


def _build_constraints(target: AuditTarget, arguments: dict[str, Any]) -> list[Constraint]:
    return [target.constrain_to(names) for names in arguments["possible"]]


# ---- output ------------------------------------------------------------------------------------------------------


def _check_report(arguments: dict[str, Any]) -> None:
    from dphmm.tables import private_name

    report = arguments["report"]
    if report is not None and report.suffix.lower() not in (".html", ".htm"):
        raise ConfigurationError(f"--report must be an .html file, got {report}")
    if report is not None and (arguments.get("true") or arguments.get("auxiliary_data")):
        private_name(report)


def _finish(
    audit: Audit,
    arguments: dict[str, Any],
    title: str,
    verdict: str,
    *tables: Table,
    result: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Print the result, write the report, and exit with `EXPOSED` if something is exposed."""
    result = audit.to_dict() if result is None else result
    if arguments["as_json"]:
        print_json(result)
    else:
        print_paragraph("", verdict, fg="red" if audit.is_exposed else None)
        render({**result, **(more or {})}, *tables)
    if arguments["report"] is not None:
        from dphmm.html_report import html_page
        from dphmm.plots.audit_report import build_audit_sections
        from dphmm.tables import write_text

        sections = build_audit_sections(audit, include_users=not arguments.get("no_names"))
        page = html_page(title, verdict, audit.is_exposed, sections)
        write_text(
            arguments["report"],
            page,
            arguments["overwrite"],
            private=bool(arguments.get("true") or arguments.get("auxiliary_data")),
        )
        echo(f"Report: {arguments['report']}", err=True)
    if audit.is_exposed:
        raise click.exceptions.Exit(EXPOSED)
