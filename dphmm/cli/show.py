"""``dphmm show``: a picture of releases, or a map to open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import data_of, names_of
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.plots.releases import ReleaseMap
    from dphmm.space.trajectory import Trajectory
    from dphmm.writers.table import ReleaseTable

PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")


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
def command(releases: Path, output: Path | None, overwrite: bool, **options: Any) -> None:
    """Draw the releases in a file that 'dphmm release' wrote.

    The HTML map needs no network: it can be moved, zoomed, narrowed down to a user and played through time.
    """
    from dphmm.tables import check_output
    from dphmm.writers.formats import read_releases

    output = output or releases.with_suffix(".html")
    if output.suffix.lower() not in (*PICTURES, *PAGES):
        raise ConfigurationError(f"{output}: no map goes by {output.suffix!r}; use {', '.join((*PICTURES, *PAGES))}")
    check_output(output, overwrite)
    table = _chosen(read_releases(releases), names_of(options["users"]), options["start"], options["end"])
    tracks: tuple[Trajectory, ...] = ()
    if options["true"]:
        users = sorted(set(table["user"].tolist()))
        everyone = data_of(options["true"], {**options, "users": None}).read()
        tracks = _at_the_time(everyone.trajectories, users, table)
        click.echo(f"dphmm: {output} shows true places; keep it to yourself.", err=True)
    found = _map(table, options["model"], options["policy"], options["layer"], tracks)
    write_map(found, output, options["title"] or f"Releases of {releases.name}", overwrite)
    click.echo(str(output))


def write_map(found: ReleaseMap, output: Path, title: str, overwrite: bool) -> None:
    """Write a map as a picture or a page, by the extension, whole or not at all.

    Raises
    ------
    OutputError
        When the file exists and may not be overwritten, or cannot be written.
    MissingDependencyError
        For a picture without matplotlib.
    """
    from dphmm.plots.maps import new_figure
    from dphmm.tables import new_file, write_text

    if output.suffix.lower() in PAGES:
        write_text(output, found.to_html(title), overwrite)
        return
    figure, ax = new_figure()
    outside = found.draw(ax)
    beyond = f"\nOutside the picture: {outside:,} of them." if outside else ""
    ax.set_title(f"{title}\n{found.note}{beyond}", fontsize=10)
    with new_file(output, overwrite) as part:
        figure.savefig(part, dpi=150, bbox_inches="tight")


def _chosen(table: ReleaseTable, users: tuple[str, ...], start: str | None, end: str | None) -> ReleaseTable:
    import numpy as np

    known = set(table["user"].tolist())
    for user in users:
        if user not in known:
            raise ConfigurationError(f"user {user!r} has no release; there are {', '.join(sorted(known)[:8])}")
    kept = np.isin(table["user"].astype(str), users) if users else np.ones(len(table), dtype=np.bool_)
    if start is not None:
        kept &= table["time"] >= _moment(start, "--from")
    if end is not None:
        kept &= table["time"] < _moment(end, "--to")
    if not kept.any():
        raise ConfigurationError("no release is left to draw; choose other users or times")
    return table.select(kept)


def _moment(text: str, option: str) -> Any:
    import numpy as np

    from dphmm.tables import parse_time

    try:
        return np.datetime64(parse_time(text), "us")
    except ValueError as problem:
        raise ConfigurationError(f"{option}: {problem}") from None


def _at_the_time(tracks: tuple[Trajectory, ...], users: list[str], table: ReleaseTable) -> tuple[Trajectory, ...]:
    """The tracks of the users that were released, from their first release to their last."""
    import numpy as np

    kept = []
    for track in tracks:
        if track.user in users:
            times = table["time"][table["user"] == track.user]
            part = track.between(times.min(), times.max() + np.timedelta64(1, "s"))
            kept += [part] if part is not None else []
    return tuple(kept)


def _map(
    table: ReleaseTable, model: Path | None, policy: str | None, layer: Path | None, tracks: tuple[Trajectory, ...]
) -> ReleaseMap:
    from dphmm.geometry.hull import SensitivityHull
    from dphmm.markov.model import MarkovModel
    from dphmm.plots.releases import ReleaseMap
    from dphmm.policy.expression import parse_policy
    from dphmm.policy.layer import read_polygons

    learned = MarkovModel.load(model) if model is not None else None
    space = learned.states if learned is not None else None
    graph = hull = None
    if policy is not None:
        if learned is None or space is None:
            raise ConfigurationError("--policy needs the states that it is about; give --model too")
        graph = parse_policy(policy, space, learned.transition)
        hull = SensitivityHull(graph.differences(space.points))
    return ReleaseMap(table, space, tracks, read_polygons(layer) if layer is not None else (), graph, hull)
