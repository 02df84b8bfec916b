"""``dphmm show``: a picture of releases, or a map to open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli.inputs import names_of, true_data, true_options
from dphmm.cli.terminal import cell, echo


@click.command()
@click.argument("releases", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A .png, .svg, .pdf or .html file; with --true, PRIVATE in its name. [default: RELEASES.html]",
)
@click.option("--model", type=click.Path(path_type=Path), help="The model, to draw its states.")
@click.option("--policy", help="A policy over the model's states, to draw its edges (where few) and its hull.")
@click.option("--layer", type=click.Path(path_type=Path), help="Polygons to draw below: GeoJSON, KML or GeoPackage.")
@true_options
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

    true = true_data(given)
    options = {name: given[name] for name in ("model", "policy", "layer", "start", "end", "title", "overwrite")}
    written = show(releases, output, users=names_of(given["users"]), true=true, **options)
    if true is not None:
        echo(f"dphmm: {cell(str(written))} shows true places; keep it to yourself.", err=True)
    echo(cell(str(written)))
