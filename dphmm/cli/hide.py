"""``dphmm hide``: a place hidden in one recording, in one step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from dphmm.cli.console import FILE, PATH, STORE, Once, cell, echo, say_json
from dphmm.cli.inputs import kilometres_of
from dphmm.errors import ConfigurationError, DataFileError

_PLACE = re.compile(r"\s*([+-]?\d+(?:\.\d*)?)\s*[,;]\s*([+-]?\d+(?:\.\d*)?)\s*", re.ASCII)


@click.command(cls=Once)
@click.argument("data", type=PATH)
@click.option("-o", "--output", required=True, type=FILE, help="A .gpx, .geojson or .csv file.")
@click.option(
    "--near",
    multiple=True,
    metavar="LAT,LON",
    help="A place to hide, in degrees; may be repeated. Or a GeoJSON file of points.",
)
@click.option("--ends", is_flag=True, help="Hide where the recording begins and where it ends.")
@click.option(
    "--within", default="500m", show_default=True, metavar="LENGTH", help="No point this near a place is kept."
)
@click.option(
    "--kind",
    type=click.Choice(["walking", "cycling", "driving"]),
    help="How people move, as a reader assumes. [default: what the file says, or cycling]",
)
@click.option("--keep", multiple=True, type=click.Choice(["hr", "atemp"]), help="Keep heart rate, or temperature.")
@click.option("--no-times", is_flag=True, help="Leave out times.")
@click.option("--session", type=STORE, help="A file that counts what several recordings tell.")
@click.option("--picture", type=FILE, help="A picture of what a reader sees: .png, .svg or .pdf.")
@click.option("--basemap", type=PATH, help="A map to draw the picture on, such as .geojson.")
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Say it as JSON.")
def hide_command(data: Path, output: Path, picture: Path | None, basemap: Path | None, **given: Any) -> None:
    """Hide places in the recording DATA, such as home in a ride: exact elsewhere, nothing around them.

    A zone is a square of the same public pattern for everybody and a ring around it, so that it does not tell where in
    the square the place is, and that another recording of the same place has the same zone. Names, descriptions,
    bounds, totals, heart rate and temperature are left out of the file.
    """
    from dphmm.jobs.hiding import hide

    length, overwrite = kilometres_of(given["within"], "--within"), given["overwrite"]
    if basemap is not None:
        from dphmm.tables.vector_files import check_vector_file

        if picture is None:
            raise ConfigurationError("--basemap is drawn on; give --picture too")
        if not check_vector_file(basemap).is_file():
            raise DataFileError(basemap, "cannot be read (there is no such file); check the path")
    if picture is not None:
        from dphmm.plots.figures import check_picture

        check_picture(picture, overwrite)
    places = {text: _PLACE.fullmatch(text) for text in given["near"]}
    spots = [(float(place[1]), float(place[2])) for place in places.values() if place is not None]
    files = [text for text, place in places.items() if place is None]
    if files and len(places) > 1:
        raise ConfigurationError(
            f"--near {files[0]!r} is no LATITUDE,LONGITUDE; give places, or one GeoJSON file of points"
        )
    found = hide(
        data,
        files[0] if files else spots,
        length,
        output,
        times=not given["no_times"],
        **{name: given[name] for name in ("ends", "kind", "keep", "session", "overwrite")},
    )
    if picture is not None:
        from dphmm.plots.figures import save_picture
        from dphmm.plots.hidden import hidden_figure

        save_picture(hidden_figure(found, basemap), picture, overwrite, private=False)
    if given["as_json"]:
        say_json({**found.facts(), "sentences": found.sentences})
        return
    for sentence in found.sentences:
        echo(sentence)
    left = f"; besides, left out: {', '.join(found.left_out)}" if found.left_out else ""
    echo(f"{cell(str(output))}: {len(found.public):,} of {found.points:,} points{left}.")
    if picture is not None:
        echo(f"{cell(str(picture))}: what a reader sees.")
