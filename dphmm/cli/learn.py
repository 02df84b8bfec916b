"""``dphmm learn``: a Markov model of movement out of trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import People, columns_of, input_options, names_of, read_people
from dphmm.cli.summary import say
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.markov.model import MarkovModel
    from dphmm.space.grid import Grid
    from dphmm.space.states import StateSpace


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The model, a .npz file.")
@click.option("--preset", help="A region and cell size of the papers: geolife or gowalla.")
@click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="The region: south, west, north, east, degrees.")
@click.option("--polygon", type=click.Path(), metavar="FILE", help="The region: the polygons of a GeoJSON file.")
@click.option("--places", type=click.Path(), metavar="FILE", help="Named places in a CSV: name, latitude, longitude.")
@click.option("--within", type=float, metavar="KM", help="How far from a place a fix may lie. [default: any distance]")
@click.option("--cell", type=float, metavar="KM", help="The side of a cell of the grid, kilometres.")
@click.option("--step", default=60.0, show_default=True, metavar="SECONDS", help="One time step of the model.")
@click.option(
    "--gap",
    type=float,
    metavar="SECONDS",
    help="Who is seen again within this time has stayed until then; a longer gap cuts. [default: one step]",
)
@click.option(
    "--smoothing", default=0.0, show_default=True, metavar="COUNT", help="Added to each move seen, both ways."
)
@input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was learned as JSON.")
def command(data: tuple[str, ...], output: Path, as_json: bool, overwrite: bool, **options: Any) -> None:
    """Learn a Markov model of movement from DATA and write it to a .npz file.

    DATA are files, folders or archives: GeoLife, check-ins, tables, GPX, OwnTracks. The model is public: learn it from
    people other than those whose places are to be released.
    """
    from dphmm.markov.model import MarkovModel
    from dphmm.markov.sequence import state_sequences
    from dphmm.writers.output import check_output, new_file

    if output.suffix != ".npz":
        raise ConfigurationError(f"{output}: a model is a .npz file; name it so")
    check_output(output, overwrite)
    space = space_of(options)
    people = read_people(
        data,
        options["format_"],
        columns_of(options["columns"]),
        names_of(options["users"]),
        names_of(options["exclude_users"]),
        bool(options["skip_bad"]),
    )
    sequences = state_sequences(people.trajectories, space, options["step"], options["gap"])
    model = MarkovModel.fit(
        sequences, space.size, options["smoothing"], states=space, step_seconds=float(options["step"])
    )
    with new_file(output, overwrite) as part:
        model.save(part)
    say("Learned", _facts(model, people, sequences, output), as_json)


def space_of(options: Mapping[str, Any]) -> StateSpace:
    """The state space that the options for a region describe: preset, bbox, polygon, places, within and cell.

    Raises
    ------
    ConfigurationError
        When not exactly one region is given, or a cell size is missing or too many.
    CoordinateError, StateError, DataFileError
        As the region says.
    """
    preset, bbox, polygon, places = (options[name] for name in ("preset", "bbox", "polygon", "places"))
    if sum(choice is not None for choice in (preset, bbox, polygon, places)) != 1:
        raise ConfigurationError("no single region is given; give one of --preset, --bbox, --polygon and --places")
    if places is None:
        if options["within"] is not None:
            raise ConfigurationError("--within goes with --places; leave it out")
        return _grid(preset, bbox, polygon, options["cell"])
    from dphmm.readers.places import read_places

    if options["cell"] is not None:
        raise ConfigurationError("--cell is for grids; leave it out with --places")
    return read_places(places, float("inf") if options["within"] is None else options["within"])


def _grid(preset: str | None, bbox: tuple[float, ...] | None, polygon: str | None, cell: float | None) -> Grid:
    import shapely

    from dphmm.policy.layer import read_polygons
    from dphmm.space.grid import Grid

    if preset is not None:
        if cell is not None:
            raise ConfigurationError("--preset has a cell size of its own; leave --cell out, or give --bbox instead")
        return Grid.preset(preset)
    if cell is None:
        raise ConfigurationError("no cell size is given; give --cell in kilometres, such as --cell 0.5")
    if bbox is not None:
        south, west, north, east = bbox
        return Grid.over((south, west, north, east), cell)
    return Grid.over(shapely.union_all([shape for _, shape in read_polygons(str(polygon))]), cell)


def _facts(model: MarkovModel, people: People, sequences: list[Any], output: Path) -> dict[str, Any]:
    import numpy as np

    states = np.concatenate([states for _, states in sequences])
    moves = sum(int(((np.diff(slots) == 1) & (found[1:] >= 0) & (found[:-1] >= 0)).sum()) for slots, found in sequences)
    return {
        "model": str(output),
        "states": model.size,
        "states_visited": len(np.unique(states[states >= 0])),
        "transitions": model.transition.nnz,
        "step_seconds": model.step_seconds,
        "users": len(people.trajectories),
        "fixes": people.fixes,
        "fixes_skipped": people.skipped,
        "fixes_at_the_same_time": people.merged,
        "places_on_the_clock": len(states),
        "of_them_outside_the_region": int((states < 0).sum()),
        "moves_counted": moves,
    }
