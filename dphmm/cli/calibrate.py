"""``dphmm calibrate``: epsilon from an error, odds or a total budget."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.attack import print_channels
from dphmm.cli.console import (
    FILE,
    Block,
    Once,
    Row,
    Table,
    echo,
    format_epsilon,
    format_use,
    format_value,
    print_json,
    render,
    show_progress,
    warn,
)
from dphmm.cli.keys import NAME_LIST, declare_key, get_parameter_name, name_parameters_in_errors
from dphmm.cli.leakage import check_picture
from dphmm.errors import ConfigurationError
from dphmm.formatting import format_lower_bound

if TYPE_CHECKING:
    from dphmm.jobs.calibrate.results import CalibrationResult, EventLimitResult

_LENGTHS = ("error", "estimate_error", "adversary_error")


@click.command(cls=Once, name="calibrate")
@click.option("--model", type=click.Path(), help="Model file of 'dphmm learn'.")
@click.option("--error", metavar="LENGTH", help="Minimum RMS noise of a release: 300m, 1.2km.")
@click.option("--estimate-error", metavar="LENGTH", help="Minimum mean expected error of the estimate.")
@click.option("--adversary-error", metavar="LENGTH", help="Minimum mean adversary error given all releases.")
@click.option(
    "--max-posterior",
    type=float,
    metavar="P",
    help="Maximum probability of a location after any output.",
)
@click.option(
    "--max-odds-ratio",
    type=float,
    metavar="FACTOR",
    help="Maximum factor by which the odds of a location rise.",
)
@click.option("--event", metavar="TEXT", help="Event that the last two limits refer to instead of locations.")
@click.option(
    "--failure-rate",
    type=float,
    metavar="P",
    help="With --event: share of its users that may exceed the limit.",
)
@click.option("--window-epsilon", type=float, help="Maximum total epsilon of 24 hours, one release per step.")
@click.option("--horizon", metavar="TIME", help="Observed time: 8h, 1d. [default: 1d; one release for limits]")
@click.option(
    "--num-users",
    type=click.IntRange(0, 100_000),
    help="Number of simulated users. [default: 16, more for error targets]",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the simulated users.")
@click.option("--report-epsilons", metavar="E,E,…", help="Other budgets to evaluate.")
@options.uses_options
@declare_key("--report-policies", type=NAME_LIST, help="With --uses: other policies to compare.")
@declare_key("--first", help="Time of the first release: 2024-03-04T08:00Z; for events with dates.")
@declare_key(
    "--adversary",
    type=click.Choice(["public", "informed", "map"]),
    help="Adversary of the targets. [default: informed with --auxiliary-data, map with --map]",
)
@click.option(
    "--auxiliary-data", multiple=True, type=click.Path(), help="Earlier data of users, known to the adversary."
)
@options.known_format_options
@options.map_adversary_option
@options.noise_options
@click.option("--picture", type=FILE, help="Plot errors by epsilon, with attacks; needs --report-epsilons.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def calibrate_command(**arguments: Any) -> None:
    """Find the largest epsilon for a model and a policy that meets all targets.

    Epsilon is rounded down. It follows by formula for --error, --max-posterior, --max-odds-ratio and --window-epsilon.
    --estimate-error and --adversary-error are means over simulated users who follow the model with one release per
    step, with a 99 % interval. --max-posterior and --max-odds-ratio are limits for every output, of one release or,
    with --horizon, of all releases in that time. Limits for a day require a small epsilon.

    With --map, the adversary has a map of land and water, and simulated users move by the model weighted with it.

    With --auxiliary-data, the adversary of errors and posteriors has earlier data of users and knows which habits each
    simulated user follows. --max-posterior then holds for each of these users (64 of them if there are more).

    With --event 'at:clinic.geojson between 3 and 9', both limits refer to the event: for one release, by a search over
    all outputs; with --horizon, for all releases in that time; with --failure-rate 0.1, for nine in ten of the users
    for whom it occurs, by simulation, and all releases up to its end or in a longer --horizon. The output also states
    the effect of --max-event-probability instead.

    With --uses, a table compares what the releases of users sampled from the model are good for, at the calibrated
    epsilon, at --report-epsilons and under the key report_policies: counts, the reproduction number of a disease, and
    contact tracing, the latter also with the policy updated for a tenth of the users as patients.
    """
    from dphmm.jobs.calibrate.calibrate import COMPARED_CHANNELS, calibrate
    from dphmm.jobs.calibrate.results import CalibrationTargets

    check_picture(arguments["picture"])
    if arguments["model"] is None:
        raise ConfigurationError("--model must be given: a model file of 'dphmm learn'")
    if arguments["epsilon"] is not None:
        raise ConfigurationError(
            f"{get_parameter_name('epsilon')} cannot be combined with a calibration: use --report-epsilons"
        )
    targets: dict[str, Any] = {
        name: arguments[name] for name in ("max_posterior", "max_odds_ratio", "window_epsilon", "event", "failure_rate")
    }
    for name in _LENGTHS:
        targets[name] = (
            None if arguments[name] is None else options.parse_kilometres(arguments[name], get_parameter_name(name))
        )
    if not arguments["auxiliary_data"]:
        options.refuse(options.READING, "needs --auxiliary-data")
    auxiliary_data = options.build_true_data(arguments, "auxiliary_data")
    if arguments["adversary"] == "informed" and auxiliary_data is None:
        raise ConfigurationError(f"{get_parameter_name('adversary')} 'informed' needs --auxiliary-data")
    adversary_map = arguments["adversary_map"]
    if arguments["adversary"] == "map":
        adversary_map = adversary_map or "coast"
    elif arguments["adversary"] is not None and adversary_map is not None:
        raise ConfigurationError(f"--map needs {get_parameter_name('adversary')} 'map', got {arguments['adversary']!r}")
    report_epsilons = _parse_epsilons(arguments["report_epsilons"])
    if arguments["picture"] is not None and len(report_epsilons) < 2:
        raise ConfigurationError(
            f"{get_parameter_name('picture')} needs at least two budgets in --report-epsilons, such as 0.01,0.1,1"
        )
    with name_parameters_in_errors(first="first"):  # an event with dates requires it
        result = calibrate(
            arguments["model"],
            options.build_settings({**arguments, "epsilon": 1.0, **dict.fromkeys(options.AIMS)}),
            CalibrationTargets(**targets),
            horizon_seconds=None
            if arguments["horizon"] is None
            else options.parse_seconds(arguments["horizon"], get_parameter_name("horizon")),
            num_users=arguments["num_users"],
            report_epsilons=report_epsilons,
            rng=arguments["seed"],
            first=None if arguments["first"] is None else parse_first_slot(arguments["model"], arguments["first"]),
            auxiliary_data=None if arguments["adversary"] == "public" else auxiliary_data,
            adversary_map=adversary_map,
            uses=options.build_uses(arguments),
            report_policies=arguments["report_policies"] or (),
            compare=() if arguments["picture"] is None else COMPARED_CHANNELS,
            watch=show_progress,
        )
    if auxiliary_data is not None:
        echo("Warning: this result used true locations. Do not publish it.", err=True)
    if arguments["as_json"]:
        print_json(result.to_dict())
    else:
        _print(result)
    if arguments["picture"] is not None:
        from dphmm.plots.calibrate import draw_calibration_figure
        from dphmm.plots.canvas import save_picture

        save_picture(draw_calibration_figure(result), arguments["picture"], private=auxiliary_data is not None)
    warn(result.list_warnings())


def parse_first_slot(model: str, text: str) -> int:
    """Return the time slot of a model that contains an instant."""
    from datetime import datetime

    from dphmm.jobs.model.loading import load_model
    from dphmm.release.session import to_slot

    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{get_parameter_name('first')} must be a time such as 2024-03-04T08:00Z, got {text!r}"
        ) from None
    return to_slot(instant if instant.tzinfo else instant.replace(tzinfo=UTC), load_model(model).step)


def _parse_epsilons(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise ConfigurationError(
            f"{get_parameter_name('report_epsilons')} must be numbers with commas, such as 0.01,0.1,1, got {text!r}"
        ) from None


for _parameter in calibrate_command.params:
    if isinstance(_parameter, click.Option) and _parameter.name == "epsilon":
        _parameter.hidden = True  # the command refuses it, with a remedy


_MAX_POSTERIOR = "smoothed_adversary_max_posterior"


def _format_max_posterior(achieved: Mapping[str, Any]) -> str:
    if _MAX_POSTERIOR not in achieved:
        return ""
    return f"{achieved[_MAX_POSTERIOR]:.3g} ± {achieved[f'{_MAX_POSTERIOR}_margin']:.2g}"


_TOTALS = (
    Row("achieved/epsilon_per_hour", "total epsilon per hour", format_epsilon),
    Row("achieved/epsilon_24h", "total epsilon in 24 h", format_epsilon),
)
_PRIVACY = (
    Row("auxiliary_knowledge", "adversary knows"),
    Row("achieved/adversary_error_m", "mean adversary error, past releases (m)", has_margin=True),
    Row("achieved/smoothed_adversary_error_m", "mean adversary error, all releases (m)", has_margin=True),
    Row("adversary_error_without_releases_m", "mean adversary error, no releases (m)"),
    Row("achieved", "mean max posterior, all releases", _format_max_posterior),
)
_UTILITY = (
    Row("achieved/released_error_m", "RMS noise of a release (m)"),
    Row("achieved/estimate_error_m", "mean expected error of estimates (m)", has_margin=True),
)


def _print(calibration: CalibrationResult) -> None:
    result = calibration.to_dict()
    targets = (
        Row(f"epsilon_by_target/{name}", f"largest epsilon for {name.replace('_', ' ')}", format_lower_bound)
        for name in calibration.epsilon_by_target
    )
    result_rows = [
        Row("epsilon", text=repr),
        Row("", "policy", "{0[policy]} ({0[policy_description]})".format),
        *targets,
        *_TOTALS,
    ]
    privacy_rows = list(_PRIVACY)
    if {"max_posterior", "max_odds_ratio"} & calibration.epsilon_by_target.keys():
        privacy_rows.insert(0, Row("", "limit holds for", lambda _: _describe_scope(calibration)))
    if calibration.event is not None:
        privacy_rows += _build_event_rows(calibration.event)
    utility_rows = list(_UTILITY)
    if calibration.num_users:
        simulated = (
            f"{calibration.num_users} users, {calibration.num_releases:,} releases each; 99 % intervals of the means"
        )
        utility_rows.append(Row("", "simulated", lambda _: simulated))
    render(result, Block("Result", result_rows), Block("Privacy", privacy_rows), Block("Utility", utility_rows))
    if calibration.report:
        _print_report(calibration)
    if calibration.uses:
        render(result, COMPARED_USES)
        echo(calibration.uses[0].uses.describe())
    if calibration.channel_results:
        print_channels(calibration.channel_results, f"Attacks on {calibration.channel_population}", result["advice"])
    echo(f"Run: {calibration.command}")
    if calibration.capped_command is not None:
        echo(f"Or, with an event cap that holds for every output: {calibration.capped_command}")


def _describe_scope(result: CalibrationResult) -> str:
    """Describe the releases that the limits hold for."""
    count = result.num_guaranteed_releases
    rate = result.targets.failure_rate
    if rate is not None:
        releases = "release" if count == 1 else f"{count:,} releases"
        scope = f"the first {releases} of all but {rate:.3g} of the users with the event"
    elif count > 1:
        scope = f"all {count:,} releases jointly"
    else:
        scope = "each release" if result.event is None else "a single release"
    if result.num_users_with_habits and result.targets.max_posterior is not None:
        scope += f" of {result.num_users_with_habits} users with known habits"
    if result.first_release is not None:
        scope += f" if the first is at {result.first_release}"
    if result.has_clock_changes:
        scope += ", without a change of the clocks"
    return f"{scope}, {'every output' if rate is None else 'by simulation'}"


def _build_event_rows(limited: EventLimitResult) -> list[Row]:
    """Build the rows of a limit on an event."""
    rows = [
        Row("event"),
        Row("prior_probability", "prior probability of the event", ".4g"),
        Row("max_epsilon_one_release", "largest epsilon for one release", format_lower_bound),
    ]
    if limited.failure_rate is not None:
        rate = (
            f"{limited.failure_rate:.3g} of the simulated users, at most {limited.max_failure_rate:.3g} of all (99 %)"
        )
        rows.append(Row("achieved", "mean max event probability", _format_max_event_probability))
        rows.append(Row("", f"share above {limited.cap.probability:.4g}", lambda _: rate))
    if limited.capped_simulation is not None:
        rows.append(Row("", "with --max-event-probability instead", _format_capped))
    return rows


def _format_max_event_probability(achieved: Mapping[str, Any]) -> str:
    mean, margin = (achieved[f"max_event_probability{end}"] for end in ("", "_margin"))
    return f"{mean:.3g} ± {margin:.2g}, users with the event"


def _format_capped(result: Mapping[str, Any]) -> str:
    return (
        f"probability at most {result['capped_max_event_probability']:.3g}, "
        f"{result['capped_withheld_share']:.0%} of the timesteps withheld, "
        f"estimate error {format_value(result['capped_estimate_error_m'])} m, "
        f"total epsilon {format_epsilon(result['capped_epsilon_spent'])} "
        f"({result['capped_num_users']} users with the event)"
    )


def _print_report(result: CalibrationResult) -> None:
    outcomes = {outcome.epsilon: outcome.to_dict() for outcome in (*result.report, result.achieved)}
    render({"outcomes": [outcomes[epsilon] for epsilon in sorted(outcomes)]}, _OUTCOMES)


_OUTCOMES = Table(
    "outcomes",
    (
        Row("epsilon", text=".4g"),
        Row("epsilon_24h", "total epsilon in 24 h", format_epsilon),
        Row("adversary_error_m", "adversary error, past (m)"),
        Row("smoothed_adversary_error_m", "all (m)"),
        Row(_MAX_POSTERIOR, "max posterior, all"),
        Row("released_error_m", "release error (m)"),
        Row("estimate_error_m", "estimate error (m)"),
    ),
    "Outcome by epsilon",
)

COMPARED_USES = Table(
    "uses",
    (
        Row("policy"),
        Row("epsilon", text=".4g"),
        Row("mean_error_m/value", "mean error (m)"),
        Row("monitoring_error", "error of counts", format_use),
        Row("reproduction_error", "error of reproduction", format_use),
        Row("tracing_precision", "contact precision", format_use),
        Row("tracing_recall", "recall", format_use),
        Row("updated_tracing_precision", "precision, updated", format_use),
        Row("updated_tracing_recall", "recall, updated", format_use),
        Row("disclosed_share", "disclosed by update", ".0%"),
    ),
    "Uses of the estimates, with 95 % intervals over users",
)
