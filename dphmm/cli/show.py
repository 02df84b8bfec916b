"""``dphmm show``: a picture of releases, or a map to open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli.inputs import data_of, names_of


@click.command()
@click.argument("releases", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="A .png, .svg, .pdf or .html file. [default: RELEASES.html]"
)
@click.option("--model", type=click.Path(path_type=Path), help="The model, to draw its states.")
@click.option("--policy", help="A policy over the model's states, to draw its edges (where few) and its hull.")
@click.option("--layer", type=click.Path(path_type=Path), help="Polygons to draw below, a GeoJSON file.")
@click.option("--true", "true", multiple=True, type=click.Path(), help="True trajectories to draw: the map is private.")
@click.option("--format", "format_", help="The format of --true. Left out, recognised.")
@click.option("--column", "columns", multiple=True, metavar="WHAT=NAME", help="Columns of --true, in tables.")
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--from", "start", metavar="TIME", help="No release before this time, ISO 8601, UTC.")
@click.option("--to", "end", metavar="TIME", help="No release at or after this time.")
@click.option("--title", help="The title of the map.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def command(releases: Path, output: Path | None, **given: Any) -> None:
    """Draw the releases in a file that 'dphmm release' wrote.

    The HTML map needs no network: it can be moved, zoomed, narrowed down to a user and played through time.
    """
    from dphmm.plots.showing import show

    users, true = names_of(given.pop("users")), given.pop("true")
    tracks = data_of(true, given) if true else None
    options = {name: value for name, value in given.items() if name not in ("format_", "columns")}
    written = show(releases, output, users=users, true=tracks, **options)
    if true:
        click.echo(f"dphmm: {written} shows true places; keep it to yourself.", err=True)
    click.echo(str(written))
