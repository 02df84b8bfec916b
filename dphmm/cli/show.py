"""``dphmm show``: a picture of releases, or a map to open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli.inputs import names_of, store_of, true_data, true_options
from dphmm.cli.once import Once
from dphmm.cli.terminal import cell, echo


@click.command(cls=Once)
@click.argument("releases", callback=store_of)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A .png, .svg, .pdf or .html file; with --true, PRIVATE in its name. [default: RELEASES.html]",
)
@click.option("--model", type=click.Path(path_type=Path), help="The model, to draw its states.")
@click.option(
    "--policy",
    help="A policy over the model's states, to draw its edges and hull. [default: the one of a batch or of sessions]",
)
@click.option("--layer", type=click.Path(path_type=Path), help="Polygons to draw below: GeoJSON, KML or GeoPackage.")
@click.option(
    "--basemap", type=click.Path(path_type=Path), help="A finer map to draw on than the one inside: .geojson, .pmtiles."
)
@click.option("--tiles", metavar="URL", help="A server of map tiles, https://…/{z}/{x}/{y}.png: told where you look.")
@true_options
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--from", "start", metavar="TIME", help="No release before this time, ISO 8601, UTC.")
@click.option("--to", "end", metavar="TIME", help="No release at or after this time.")
@click.option("--title", help="The title of the map.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def command(releases: str | Path, output: Path | None, **given: Any) -> None:
    """Draw RELEASES: a file of 'dphmm release', a folder of 'dphmm batch', or (with --model) a store of sessions.

    The HTML map needs no network: it can be moved, zoomed, narrowed down to a person's day and played through time.
    """
    from dphmm.plots.showing import show

    true = true_data(given)
    options = {name: given[name] for name in ("model", "policy", "layer", "basemap", "tiles")}
    options |= {name: given[name] for name in ("start", "end", "title", "overwrite")}
    written = show(releases, output, users=names_of(given["users"]), true=true, **options)
    if true is not None:
        echo(f"dphmm: {cell(str(written))} shows true places; keep it to yourself.", err=True)
    echo(cell(str(written)))
