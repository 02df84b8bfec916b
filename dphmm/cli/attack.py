"""``dphmm attack``: what deployed ways of blurring give away."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.console import FILE, PATH, Once, echo, progress, say_json, say_table, warn
from dphmm.cli.inputs import data_of, input_options, kilometres_of, own_model_option, refuse
from dphmm.errors import ConfigurationError, need

if TYPE_CHECKING:
    from dphmm.attack.measures import ChannelResult
    from dphmm.jobs.attacks import Attacked

_PAGES, _PICTURES = (".html", ".htm"), (".png", ".svg", ".pdf")


@click.command(cls=Once)
@click.argument("data", nargs=-1, type=click.Path())
@click.option("--model", type=PATH, help="What the adversary knows: 'dphmm learn' wrote it.")
@click.option(
    "--channel",
    "channels",
    multiple=True,
    metavar="TEXT",
    help="A way to blur: round:3, android, offset:500m, release:utility:1km@1, table:FILE, … May be repeated. "
    "[default: eighteen of them]",
)
@click.option("--areas", type=click.Path(), metavar="FILE", help="Attack tables of people by area and hour instead.")
@click.option("--label", metavar="PROPERTY", help="With --areas: what names a polygon. [default: category or name]")
@click.option("--user-epsilon", metavar="EPSILON", help="With --areas: the budget of a table with noise. [default: 1]")
@click.option("--zone", metavar="ZONE", help="With --areas: the time zone of hours. [default: UTC]")
@click.option("--home-within", default="200m", show_default=True, metavar="LENGTH", help="When a home counts as found.")
@click.option("--most-steps", default=288, show_default=True, help="At most this many times of each person.")
@click.option("--seed", default=0, show_default=True, help="Which draws.")
@click.option("-o", "--output", type=FILE, help="A new .html page, .csv table, or .png, .svg or .pdf.")
@input_options
@own_model_option
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was found as JSON.")
def attack_command(data: tuple[str, ...], model: Path | None, channels: tuple[str, ...], **given: Any) -> None:
    """What deployed ways of blurring places give away of the people in DATA, all under one adversary.

    Rounding, grids, Meshtastic's bits, Android's approximate location, a fixed offset, trimming about home, planar
    Laplace, a place now and then and this package's own releases are tried on the same true places, the later half of
    each person's days; a second adversary has learned the person's habits from the earlier half. It says which of this
    package's settings to take. Without DATA it takes people of a synthetic city, who do not exist. DATA are private,
    and so is what is found.

    With --areas it tries what tables of people by area and hour give away, as they are, with small numbers hidden and
    with noise: tracks that are recovered, and who is in the data.
    """
    from dphmm.attack.deployed_channels import DEFAULT_CHANNELS
    from dphmm.jobs.attacks import attack

    if given["areas"] is not None:
        _attack_tables(data, given)
        return
    refuse(("label", "user_epsilon", "zone"), "goes with --areas")
    if given["output"] is not None:
        _check(given["output"], bool(data))
    found = attack(
        data_of(data, given) if data else None,
        model,
        channels or DEFAULT_CHANNELS,
        home_within_km=kilometres_of(given["home_within"], "--home-within"),
        most_steps=given["most_steps"],
        allow_own_model=bool(given["allow_own_model"]),
        seed=given["seed"],
        watch=progress,
    )
    if given["output"] is not None:
        _write(found, given["output"], given["overwrite"])
    if given["as_json"]:
        say_json(found.facts())
    else:
        _print(found)
    if given["output"] is not None:
        echo(f"Report: {given['output']}", err=True)
    if data:
        echo("dphmm: this comes from true places; keep it to yourself.", err=True)


def _attack_tables(data: tuple[str, ...], given: dict[str, Any]) -> None:
    from dphmm.flows.areas import Areas
    from dphmm.jobs.flow_attacks import attack_tables

    if not data:
        raise ConfigurationError("--areas attacks tables of people; give DATA")
    of_channels = ("model", "channels", "home_within", "most_steps", "output", "overwrite", "allow_own_model")
    refuse(of_channels, "does not go with --areas")
    found = attack_tables(
        data_of(data, given),
        Areas.from_polygons(given["areas"], given["label"]),
        given["user_epsilon"] or 1,
        zone=given["zone"] or "UTC",
        seed=given["seed"],
        watch=progress,
    )
    if given["as_json"]:
        say_json([one.facts() for one in found])
    else:
        header = ("table", "places recovered", "in the data? right", "of the worst tenth", "at most")
        rows = [
            (one.protection, *(f"{share:.0%}" for share in (one.recovered, one.membership, one.membership_of_worst)),
             "-" if one.bound is None else f"{one.bound:.0%}")
            for one in found
        ]  # fmt: skip
        say_table(header, rows, "People by area and hour of a week")
    echo("dphmm: this comes from true places; keep it to yourself.", err=True)


def _check(output: Path, is_real: bool) -> None:
    """Refuse an output that cannot be written before anything is computed."""
    from dphmm.tables import private_name

    if output.suffix.lower() not in (*_PAGES, *_PICTURES, ".csv"):
        raise ConfigurationError(f"{output}: name an .html, .csv, .png, .svg or .pdf file")
    if output.suffix.lower() != ".csv":
        need("matplotlib", "plots")
    if is_real:
        private_name(output)


def _write(found: Attacked, output: Path, overwrite: bool) -> None:
    from dphmm.tables import write_text

    private, kind = not found.is_invented, output.suffix.lower()
    if kind == ".csv":
        found.write_table(output, overwrite)
        return
    from dphmm.plots.attack import attack_figure, attack_sections, attack_verdict
    from dphmm.plots.figures import save_picture
    from dphmm.reports import html_page

    if kind in _PAGES:
        page = html_page("What blurring gives away", *attack_verdict(found), attack_sections(found))
        write_text(output, page, overwrite, private=private)
    else:
        save_picture(attack_figure(found), output, overwrite, private)


def _print(found: Attacked) -> None:
    warn(found.warnings())
    title = (
        f"{found.people} {found.about}, {found.fixes:,} times, habits of {found.habits_known} known; the adversary "
        f"tells apart squares of {1000 * found.part_km:,.0f} m"
    )
    say_channels(found.results, title, found.advice)


def say_channels(results: Sequence[ChannelResult], title: str, advice: Sequence[str]) -> None:
    """What channels give away as a table, a row for each, and which of them to take."""
    errors = ("release off (m)", "at once (m)", "hindsight (m)", "knows habits (m)")
    homes = f"homes in {results[0].home_within_m:,.0f} m"
    say_table(("channel", *errors, homes, "sure", "right", "way", "left out"), [_row(one) for one in results], title)
    for sentence in advice:
        echo(sentence)


def _row(result: ChannelResult) -> list[str]:
    homes, people = result.homes
    return [
        result.name,
        *(_of(result, name, 0) for name in ("released_error_m", "at_once_m", "hindsight_m", "habits_m")),
        f"{homes}/{people}" if people else "-",
        *(_of(result, name, 2) for name in ("certainty", "right", "length_ratio", "withheld")),
    ]


def _of(result: ChannelResult, name: str, digits: int) -> str:
    mean = result.figure(name).mean
    return f"{mean:,.{digits}f}" if isfinite(mean) else "-"
