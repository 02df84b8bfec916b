"""``dphmm batch``: releases of a whole data set, one file per user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.console import FILE, FOLDER, PATH, Once, show_progress, warn_of_seed
from dphmm.cli.keys import declare_key
from dphmm.cli.release import print_release_summary


@click.command(cls=Once)
@click.argument("data", nargs=-1, required=True, type=PATH)
@click.option("-o", "--output", "folder", required=True, type=FOLDER, help="New folder of the batch.")
@click.option("--model", type=PATH, help="Model of 'dphmm learn' or 'dphmm model blank'. Required.")
@options.release_options
@options.own_model_option
@declare_key(
    "--session-gap",
    type=int,
    help="Start a new session after this many missing steps. [default: 500]",
)
@click.option("--certificate", type=FILE, metavar="FILE", help="Write a certificate for scripts/dphmm-verify.")
@click.option(
    "--format",
    "kind",
    default="parquet",
    show_default=True,
    help="Format of the users' files: parquet, csv, geojson or gpkg.",
)
@options.engine_options
@options.seed_option
@options.earlier_option
@click.option("--resume", is_flag=True, help="Resume the batch in OUTPUT, skipping users already released.")
@options.release_input_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def batch_command(
    data: tuple[Path, ...],
    folder: Path,
    model: Path | None,
    seed: int | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Release every user in DATA into a separate file without true locations.

    DATA are read one after another, and the locations of only one of them are in memory at a time. For a data set
    larger than memory, use one Parquet of all users, or one file or folder per user or group of users. A user must not
    occur in two of them.

    On a Dask cluster, the folder and the model must have the same paths on all workers. Locations and the key are sent
    to the workers over the network.

    Until the batch is finished, the folder contains its key in PRIVATE-key, with which the noise can be removed. With
    the key, --resume restores a lost or damaged file unchanged instead of sampling new noise for the same locations.
    """
    from dphmm.jobs.batch.batch import batch

    options.require_model(model, data)
    assert model is not None
    settings = options.build_settings({**values, "caps": options.build_caps(values)}, for_a_day=True)
    warn_of_seed(seed)
    arguments = {name: values[name] for name in ("kind", "session_gap", "resume", "certificate")}
    arguments["allow_training_users"] = bool(values["allow_training_users"])
    arguments["auxiliary_data"] = options.build_true_data(values, "auxiliary_data")
    engine = options.build_engine(values)
    inputs = options.build_data(data, values)
    done = batch(inputs, folder, model, settings, engine=engine, rng=seed, watch=show_progress, **arguments)
    certificate = None if values["certificate"] is None else str(values["certificate"])
    result = {**done.to_dict(), "output": str(folder), "certificate": certificate, "private": done.to_private_dict()}
    print_release_summary(done, result, done.ratio_levels, as_json)
