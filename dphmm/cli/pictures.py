"""``dphmm show``, a picture or a map of releases, ``dphmm report``, a page about them, and ``dphmm basemap`` below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli.console import FILE, Once, cell, echo, say
from dphmm.cli.inputs import (
    cap_options,
    event_option,
    names_of,
    settings_options,
    stated_settings_of,
    store_of,
    true_data,
    true_options,
)


@click.command(cls=Once)
@click.argument("releases", callback=store_of)
@click.option(
    "-o",
    "--output",
    type=FILE,
    help="A .png, .svg, .pdf or .html file; with --true, PRIVATE in its name. [default: RELEASES.html]",
)
@click.option("--model", type=click.Path(path_type=Path), help="The model, to draw its states.")
@click.option(
    "--policy",
    help="A policy over the model's states, to draw its edges and hull. [default: the one of a batch or of sessions]",
)
@click.option("--layer", type=click.Path(path_type=Path), help="Polygons to draw below: GeoJSON, KML or GeoPackage.")
@click.option("--basemap", type=click.Path(path_type=Path), help="A finer map: .gpkg, .fgb, .geojson, .shp, .osm.pbf.")
@click.option("--tiles", metavar="URL", help="A server of map tiles, https://…/{z}/{x}/{y}.png: told where you look.")
@true_options
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--from", "start", metavar="TIME", help="No release before this time, ISO 8601, UTC.")
@click.option("--to", "end", metavar="TIME", help="No release at or after this time.")
@click.option("--title", help="The title of the map.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def show_command(releases: str | Path, output: Path | None, **given: Any) -> None:
    """Draw RELEASES: a file of 'dphmm release', a folder of 'dphmm batch', or (with --model) a store of sessions.

    Of a file of 'dphmm flows' it draws areas, and flows between them by width.
    The HTML map needs no network: it can be moved, zoomed, narrowed down to a person's day and played through time.
    """
    from dphmm.plots.flow_maps import show_flows
    from dphmm.plots.releases import show
    from dphmm.writers.flow_files import is_flow_file

    if is_flow_file(releases):
        echo(cell(str(show_flows(releases, output, given["title"], given["overwrite"]))))
        return
    true = true_data(given)
    options = {name: given[name] for name in ("model", "policy", "layer", "basemap", "tiles")}
    options |= {name: given[name] for name in ("start", "end", "title", "overwrite")}
    written = show(releases, output, users=names_of(given["users"]), true=true, **options)
    if true is not None:
        echo(f"dphmm: {cell(str(written))} shows true places; keep it to yourself.", err=True)
    echo(cell(str(written)))


@click.command(cls=Once)
@click.argument("releases", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=FILE, help="An .html file.")
@click.option("--model", required=True, type=click.Path(), help="The model that the releases were made with.")
@settings_options
@event_option
@cap_options
@true_options
@click.option("--basemap", type=click.Path(path_type=Path), help="A finer map: .gpkg, .fgb, .geojson, .shp, .osm.pbf.")
@click.option("--users", metavar="A,B,…", help="These users alone.")
@click.option("--title", help="The title of the page.")
@click.option("--seed", type=int, help="Repeatable: the invented person, and the noise about that person.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
def report_command(releases: Path, output: Path, model: str, seed: int | None, **given: Any) -> None:
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


@click.command(cls=Once)
@click.argument("extract", type=click.Path(path_type=Path))
@click.option("--model", required=True, type=click.Path(path_type=Path), help="The model, whose region is kept.")
@click.option("-o", "--output", required=True, type=FILE, help="A .geojson or .geojson.gz file.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def basemap_command(extract: Path, model: Path, output: Path, overwrite: bool, as_json: bool) -> None:
    """Make a small map of a model's region out of EXTRACT: water, roads, streets, rivers and names.

    EXTRACT is a file that you downloaded: an .osm.pbf of OpenStreetMap, or a .gpkg, .fgb, .geojson or .shp with the
    same words. The map is for --basemap of 'dphmm show', and for the key 'basemap' of a relay's file.
    """
    from dphmm.plots.basemap import extract_basemap

    say(f"Map in {cell(str(output))}", extract_basemap(extract, model, output, overwrite), as_json)
