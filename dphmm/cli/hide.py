"""The command ``dphmm hide``: protect locations in one recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli.console import FILE, PATH, STORE, Once, echo, escape_cell, print_json, print_paragraph
from dphmm.cli.shared_options import build_options, get_columns, parse_kilometres
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.jobs.input_data import Data

_NUM_NAMED = 3


@click.command(cls=Once)
@click.argument("data", type=PATH)
@click.option("-o", "--output", required=True, type=FILE, help="A .gpx, .geojson, .csv, .kml or .tcx file.")
@click.option(
    "--format",
    type=click.Choice(["gpx", "geojson", "csv", "kml", "tcx"]),
    help="Format of the output. [default: its extension]",
)
@click.option(
    "--near",
    multiple=True,
    metavar="LAT,LON",
    help="Location to hide: coordinates or a map's link; may be repeated. Or a GeoJSON file of points.",
)
@click.option(
    "--hide-endpoints", is_flag=True, help="Hide where tracks start and end, and both sides of gaps above an hour."
)
@click.option(
    "--within",
    metavar="LENGTH",
    help="Distance to a location in which no point is kept. [default: 500m, or as --among requires]",
)
@click.option(
    "--map",
    "map_file",
    type=PATH,
    help="Map of streets, and buildings or addresses: an adversary knows it. Such as .osm.pbf.",
)
@click.option("--among", type=float, metavar="N", help="Enlarge the zone to N addresses of --map.")
@click.option(
    "--kind",
    type=click.Choice(["walking", "cycling", "driving"]),
    help="Movement model of the adversary, and speed limit. [default: activity in the file, else cycling and 150 km/h]",
)
@click.option("--keep", multiple=True, type=click.Choice(["hr", "atemp"]), help="Keep heart rate or temperature.")
@click.option("--no-times", is_flag=True, help="Remove times.")
@click.option(
    "--session",
    type=STORE,
    help="Track cumulative disclosure across recordings in this file, and hide its zones in each of them.",
)
@click.option("--picture", type=FILE, help="Picture of the adversary's view: .png, .svg or .pdf.")
@click.option("--basemap", type=PATH, help="Background map of the picture, such as .geojson.")
@build_options(Data, names=("input_format", "time_zone", "time_format"))
@click.option("--column", multiple=True, metavar="WHAT=NAME", help="Column of user, time, latitude, elevation, …")
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def hide_command(data: Path, output: Path, picture: Path | None, basemap: Path | None, **options: Any) -> None:
    """Hide locations, such as a home, in the recording DATA and keep the rest exact.

    DATA is a file of one user: GPX, FIT, TCX, KML, KMZ, GeoJSON, CSV, Google Timeline, OwnTracks and others.

    A zone is a square of a fixed public grid and a ring around it. It does not depend on where in the square the
    location lies, and is the same in every recording of the location. With --map, an adversary who knows the streets
    is among those whose inference is printed. Names, descriptions, bounds, totals, heart rate
    and temperature are removed from the file.

    Of more than five zones, the five with the highest probability of a cell are described. --json describes all.
    """
    from dphmm.jobs.hide.hide import HideResult, hide
    from dphmm.space.coordinates import parse_coordinates

    length = None if options["within"] is None else parse_kilometres(options["within"], "--within")
    overwrite = options["overwrite"]
    if basemap is None and picture is not None:
        basemap = options["map_file"]
    if basemap is not None:
        from dphmm.tables.vector_files import check_vector_file

        if picture is None:
            raise ConfigurationError("--basemap needs --picture: it is the background of the picture")
        if not check_vector_file(basemap).is_file():
            raise DataFileError(basemap, "cannot be read (there is no such file); check the path")
    if picture is not None:
        from dphmm.plots.canvas import check_picture

        check_picture(picture, overwrite)
    places = {text: parse_coordinates(text, "--near") for text in options["near"]}
    locations = [place for place in places.values() if place is not None]
    files = [text for text, place in places.items() if place is None]
    # The path of an empty text is the working folder.
    if files and (len(places) > 1 or not Path(files[0]).exists() or Path(files[0]).is_dir()):
        others = " among others" if len(places) > 1 else ""
        raise ConfigurationError(
            "--near must be LATITUDE,LONGITUDE as in 45.01,-30.01, the link of a place on a map, or a single GeoJSON "
            f"file of points, got {files[0]!r}{others}"
        )
    figures: list[Any] = []

    def draw(result: HideResult) -> None:
        """Draw the picture before anything is written, because its map may lack the region."""
        if picture is not None:
            from dphmm.plots.hide import draw_hide_figure

            figures.append(draw_hide_figure(result, basemap))

    result = hide(
        data,
        files[0] if files else locations,
        length,
        output,
        times=not options["no_times"],
        check=draw,
        columns=get_columns(options),
        **{name: options[name] for name in ("input_format", "time_zone", "time_format")},
        **{name: options[name] for name in ("hide_endpoints", "kind", "keep", "format", "session", "overwrite")},
        **{name: options[name] for name in ("map_file", "among")},
    )
    if picture is not None:
        from dphmm.plots.canvas import save_picture

        save_picture(figures[0], picture, overwrite, private=False)
    if options["as_json"]:
        print_json({**result.to_dict(), "sentences": result.sentences})
        return
    for sentence in result.summary_sentences:
        label, _, text = sentence.partition(": ")
        print_paragraph(f"{label}:".ljust(10), text)
    echo()
    removed = f"; removed {result.removed_in_words}" if result.removed else ""
    echo(f"Wrote {escape_cell(str(output))}: kept {len(result.public):,} of {result.num_points:,} points{removed}.")
    for names, noun, text in (
        (
            result.errors,
            "point",
            "Dropped {count} (receiver errors: no fix, or a jump above the speed limit): {names}.",
        ),
        (result.jumps, "point", "Jumps above the speed limit after {count}: {names}. Delete a part that is not yours."),
        (result.unused, "location", "No point is near {count}: {names}. Check --near."),
    ):
        if names:
            count = f"{len(names):,} {noun}{'s' if len(names) > 1 else ''}"
            first = "; ".join([*map(escape_cell, names[:_NUM_NAMED]), *(["..."] if len(names) > _NUM_NAMED else [])])
            print_paragraph("", text.format(count=count, names=first))
    if result.num_untimed:
        echo(f"{result.num_untimed:,} of the kept points have no time.")
    if picture is not None:
        echo(f"Wrote {escape_cell(str(picture))}: the adversary's view.")
