"""``dphmm report``: a page about releases for people who were not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli.inputs import (
    cap_options,
    event_option,
    names_of,
    settings_options,
    stated_settings_of,
    true_data,
    true_options,
)
from dphmm.cli.once import Once
from dphmm.cli.terminal import cell, echo


@click.command(cls=Once)
@click.argument("releases", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="An .html file.")
@click.option("--model", required=True, type=click.Path(), help="The model that the releases were made with.")
@settings_options
@event_option
@cap_options
@true_options
@click.option("--basemap", type=click.Path(path_type=Path), help="A finer map to draw on: .geojson, .pmtiles.")
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--title", help="The title of the page.")
@click.option("--seed", type=int, help="Repeatable: the invented person, and the noise about that person.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def command(releases: Path, output: Path, model: str, seed: int | None, **given: Any) -> None:
    """One page about RELEASES, to show and to print: before and after, what is promised, and what is not.

    RELEASES is a file that 'dphmm release -o' wrote, the folder of a batch, or a file of sessions. A file is made with
    settings that it does not say: give --policy alone where all but the epsilon and the mechanism were left at their
    defaults, otherwise all of them. The person on the page is invented, out of the model. With --true it is the one
    with most releases, and the page is private, as its name must say.
    """
    from dphmm.plots.reporting import report

    settings = stated_settings_of(given)
    true = true_data(given)
    more = {name: given[name] for name in ("title", "basemap", "overwrite")}
    written = report(releases, output, model, settings, true=true, users=names_of(given["users"]), rng=seed, **more)
    if true is not None:
        echo("dphmm: true places are on this page; keep it to yourself.", err=True)
    echo(cell(str(written)))
