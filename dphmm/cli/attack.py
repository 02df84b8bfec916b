"""``dphmm attack``: attacks on obfuscation methods in common use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FILE, PATH, PICTURES, Once, Row, Table, echo, print_json, render, show_progress, warn
from dphmm.cli.keys import NUMBER, declare_key, get_parameter_name
from dphmm.cli.shared_options import READING, build_data, input_options, own_model_option, parse_kilometres, refuse
from dphmm.errors import ConfigurationError, import_library

if TYPE_CHECKING:
    from dphmm.attack.outcomes import ChannelResult
    from dphmm.jobs.attack.tracks import AttackResult

_PAGES = (".html", ".htm")


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("--model", type=PATH, help="Model file of 'dphmm learn', known to the adversary.")
@click.option(
    "--channel",
    "channels",
    multiple=True,
    metavar="TEXT",
    help="Channel, such as round:3 or release:utility:1km@1. [default: 18]",
)
@click.option("--areas", type=click.Path(), metavar="FILE", help="Attack tables of users by area and hour.")
@click.option("--label", metavar="PROPERTY", help="With --areas: name of a polygon. [default: category or name]")
@click.option(
    "--user-epsilon",
    type=NUMBER,
    metavar="EPSILON",
    help="With --areas: budget of the table with noise. [default: 1]",
)
@click.option("--zone", metavar="ZONE", help="With --areas: time zone of hours. [default: UTC]")
@declare_key("--home-within", default="200m", help="Largest error of a home that counts as found.")
@declare_key("--max-steps", default=288, help="Maximum number of times of each user.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the noise.")
@click.option("-o", "--output", type=FILE, help="New .html page, .csv table, or .png, .svg or .pdf.")
@input_options
@own_model_option
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def attack_command(data: tuple[str, ...], model: Path | None, channels: tuple[str, ...], **arguments: Any) -> None:
    """Attack obfuscation methods in common use with the users in DATA, all with one adversary.

    Rounding, grids, Meshtastic's bits, Android's approximate location, a fixed offset, a zone around home, planar
    Laplace noise, infrequent locations and this package's releases are applied to the same true locations, the later
    half of each user's days. A second, informed adversary has learned the user's habits from the earlier half. The
    output recommends settings of this package. Without DATA, users of a synthetic city are attacked. DATA and the
    result are private.

    With --areas, tables of users by area and hour are attacked: exact counts, suppressed small counts and noise. The
    attacks recover tracks and infer membership.
    """
    from dphmm.attack.deployed_channels import DEFAULT_CHANNELS
    from dphmm.jobs.attack.tracks import attack

    if arguments["areas"] is not None:
        _attack_tables(data, arguments)
        return
    refuse(("label", "user_epsilon", "zone"), "needs --areas")
    if not data:
        refuse((*READING, "allow_training_users"), "needs DATA")
    if arguments["output"] is not None:
        _check_output(arguments["output"], bool(data))
    result = attack(
        build_data(data, arguments) if data else None,
        model,
        channels or DEFAULT_CHANNELS,
        home_within_km=parse_kilometres(arguments["home_within"], get_parameter_name("home_within")),
        max_steps=arguments["max_steps"],
        allow_training_users=bool(arguments["allow_training_users"]),
        rng=arguments["seed"],
        watch=show_progress,
    )
    if arguments["output"] is not None:
        _write(result, arguments["output"], arguments["overwrite"])
    if arguments["as_json"]:
        print_json(result.to_dict())
    else:
        _print(result)
    if arguments["output"] is not None:
        echo(f"Report: {arguments['output']}", err=True)
    if data:
        echo("Warning: this result is derived from true locations. Do not publish it.", err=True)


def _attack_tables(data: tuple[str, ...], arguments: dict[str, Any]) -> None:
    from dphmm.flows.areas import Areas
    from dphmm.jobs.attack.flows import attack_tables

    if not data:
        raise ConfigurationError("--areas needs DATA with the users of the tables")
    channel_options = ("model", "channels", "home_within", "max_steps", "output", "overwrite", "allow_training_users")
    refuse(channel_options, "cannot be combined with --areas")
    results = attack_tables(
        build_data(data, arguments),
        Areas.from_polygons(arguments["areas"], arguments["label"]),
        arguments["user_epsilon"] or 1,
        zone=arguments["zone"] or "UTC",
        rng=arguments["seed"],
        watch=show_progress,
    )
    tables = [result.to_dict() for result in results]
    if arguments["as_json"]:
        print_json(tables)
    else:
        render({"tables": tables}, _TABLES)
    echo("Warning: this result is derived from true locations. Do not publish it.", err=True)


def _check_output(output: Path, is_real: bool) -> None:
    """Refuse an output that cannot be written before anything is computed."""
    from dphmm.tables import private_name

    if output.suffix.lower() not in (*_PAGES, *PICTURES, ".csv"):
        raise ConfigurationError(f"--output must be an .html, .csv, .png, .svg or .pdf file, got {output}")
    if output.suffix.lower() != ".csv":
        import_library("matplotlib", "plots")
    if is_real:
        private_name(output)


def _write(result: AttackResult, output: Path, overwrite: bool) -> None:
    from dphmm.tables import write_text

    private = not result.is_synthetic
    suffix = output.suffix.lower()
    if suffix == ".csv":
        result.write_table(output, overwrite)
        return
    from dphmm.html_report import html_page
    from dphmm.plots.attack import build_attack_sections, draw_attack_figure, summarize_attack
    from dphmm.plots.canvas import save_picture

    if suffix in _PAGES:
        page = html_page("Attacks on obfuscation methods", *summarize_attack(result), build_attack_sections(result))
        write_text(output, page, overwrite, private=private)
    else:
        save_picture(draw_attack_figure(result), output, overwrite, private)


def _print(result: AttackResult) -> None:
    warn(result.list_warnings())
    title = (
        f"{result.num_users} {result.population}, {result.num_fixes:,} times, {result.num_users_with_habits} with "
        f"known habits; resolution of the adversary {1000 * result.adversary_resolution_km:,.0f} m"
    )
    print_channels(result.results, title, result.advice)


def _format_estimate(key: str) -> Callable[[dict[str, Any]], str]:
    def format_row(row: dict[str, Any]) -> str:
        low, high = row[f"{key}_interval"]
        return f"{row[key]:.0%} ({low:.0%} to {high:.0%})"

    return format_row


_TABLES = Table(
    "tables",
    (
        Row("protection", "table"),
        Row("recovered_share", "recovered locations", ".0%"),
        Row("", "membership recognized (AUC)", _format_estimate("membership_auc")),
        Row("", "most exposed tenth of users", _format_estimate("worst_decile_membership_auc")),
        Row("max_membership_auc", "guaranteed maximum", ".0%"),
    ),
    "Attacks on tables of users by area and hour of a week (shares of correct answers; membership: 50% is a guess, "
    "99% intervals)",
    missing="-",
)


def _format_homes(channel: dict[str, Any]) -> str:
    return f"{channel['num_homes_found']}/{channel['num_homes']}" if channel["num_homes"] else "-"


def print_channels(results: Sequence[ChannelResult], title: str, advice: Sequence[str]) -> None:
    """Print the recommendations, and a table with a row for each channel."""
    columns = (
        Row("channel"),
        Row("released_error_m", "release error (m)", ",.0f"),
        Row("filtered_error_m", "adversary, past (m)", ",.0f"),
        Row("smoothed_error_m", "adversary, all (m)", ",.0f"),
        Row("informed_error_m", "informed, all (m)", ",.0f"),
        Row("", f"homes within {results[0].home_within_m:,.0f} m", _format_homes),
        Row("max_posterior", "max posterior", ",.2f"),
        Row("top_1_accuracy", "accuracy", ",.2f"),
        Row("length_ratio", "path length ratio", ",.2f"),
        Row("withheld_share", "withheld", ",.2f"),
    )
    for sentence in advice:
        echo(sentence)
    render({"channels": [result.to_dict() for result in results]}, Table("channels", columns, title, missing="-"))
