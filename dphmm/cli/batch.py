"""``dphmm batch``: every user of a data set released, in files by user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli.engine import engine_of, engine_options
from dphmm.cli.inputs import (
    cap_options,
    caps_of,
    data_of,
    event_option,
    input_options,
    own_model_option,
    settings_of,
    settings_options,
)
from dphmm.cli.once import Once
from dphmm.cli.progress import progress
from dphmm.cli.summary import dropped_facts, say, say_dropped, warn, warn_of_seed


@click.command(cls=Once)
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="A new folder.")
@click.option("--model", required=True, type=click.Path(path_type=Path), help="A model that 'dphmm learn' wrote.")
@settings_options
@event_option
@cap_options
@own_model_option
@click.option(
    "--session-gap",
    type=int,
    metavar="STEPS",
    help="A longer gap begins a new session. [default: 500; with --never-surer none does]",
)
@click.option("--files", "kind", default="parquet", show_default=True, help="The users' files: parquet, csv, …")
@engine_options
@click.option("--seed", type=int, help="Repeatable noise, for experiments: the output is not private.")
@click.option("--resume", is_flag=True, help="Go on with the batch in the folder; users who are released stay.")
@input_options
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def command(data: tuple[Path, ...], folder: Path, model: Path, seed: int | None, as_json: bool, **given: Any) -> None:
    """Release every user in DATA, each in a file of their own, without a true place in any of them.

    DATA are read one after another, and the places of only one of them are in memory at a time: for a data set beyond
    memory, give one Parquet of everyone, of which a few people are taken at a time, or a file or folder per user or
    per group of users. A user must not occur in two of them.

    On a Dask cluster, whose workers must see the folder and the model under the same paths, the places and the key go
    over the network to the workers.

    Until the batch is finished, the folder holds its key in PRIVATE-key: whoever has it can take the noise away. With
    it --resume makes a lost or damaged file again as it was, instead of drawing twice about the same places.
    """
    from dphmm.jobs.batches import batch

    settings = settings_of({**given, "caps": caps_of(given)})
    warn_of_seed(seed)
    more = {name: given[name] for name in ("kind", "session_gap", "resume")}
    more["allow_own_model"] = bool(given["allow_own_model"])
    engine = engine_of(given)
    found = batch(data_of(data, given), folder, model, settings, engine=engine, seed=seed, watch=progress, **more)
    warnings = found.warnings()
    listed = {"private_left_out": dropped_facts(found.dropped), "warnings": warnings} if as_json else {}
    say("Released", {**found.facts(), **found.private_facts(), "folder": str(folder), **listed}, as_json)
    if not as_json:
        say_dropped(found.dropped)
    warn(warnings)
