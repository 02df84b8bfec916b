"""``dphmm batch``: every user of a data set released, in files by user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from dphmm.cli.inputs import columns_of, input_options, names_of
from dphmm.cli.progress import progress
from dphmm.cli.summary import say
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.space.trajectory import Trajectory


@click.command()
@click.argument("data", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", "folder", required=True, type=click.Path(path_type=Path), help="A new folder.")
@click.option("--model", required=True, type=click.Path(path_type=Path), help="A model that 'dphmm learn' wrote.")
@click.option("--policy", required=True, help="What must stay indistinguishable, as in 'dphmm release'.")
@click.option("--epsilon", required=True, type=float, help="The privacy budget of each release.")
@click.option("--mechanism", default="lattice", show_default=True, help="Or k-norm, laplace, planar-isotropic, …")
@click.option("--repair", default="exact", show_default=True, help="How exposed states get partners.")
@click.option("--delta", type=float, help="Hide among the most probable states of mass 1 - delta alone.")
@click.option("--allow-known", is_flag=True, help="Go on where one state only is possible.")
@click.option(
    "--session-gap", default=500, show_default=True, metavar="STEPS", help="A longer gap begins a new session."
)
@click.option("--files", "kind", default="parquet", show_default=True, help="The users' files: parquet, csv, …")
@click.option("--workers", type=int, help="Processes on this machine. [default: one per processor]")
@click.option("--seed", type=int, help="Repeatable noise, for experiments: the output is not private.")
@click.option("--resume", is_flag=True, help="Go on with the batch in the folder; users who are released stay.")
@input_options
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def command(data: tuple[Path, ...], folder: Path, workers: int | None, resume: bool, **options: Any) -> None:
    """Release every user in DATA, each in a file of their own, without a true place in any of them.

    DATA are read one after another, and the places of only one of them are in memory at a time: for a data set beyond
    memory, give a file or folder per user or per group of users. A user must not occur in two of them.
    """
    from dphmm.evaluation.batch import BatchJob, check_job, release_everyone
    from dphmm.evaluation.checkpoint import Checkpoint, content_hash
    from dphmm.release.engine import MechanismName

    count = workers if workers is not None else os.cpu_count() or 1
    if count < 1:
        raise ConfigurationError(f"--workers is {count}; give at least 1")
    if options["mechanism"] not in get_args(MechanismName):
        raise ConfigurationError(f"--mechanism is {options['mechanism']!r}; use {', '.join(get_args(MechanismName))}")
    if options["seed"] is not None:
        click.echo("dphmm: the noise follows from --seed, so this output is not private.", err=True)
    names = ("policy", "epsilon", "mechanism", "repair", "delta", "allow_known", "seed", "kind", "session_gap")
    model = options["model"]
    job = BatchJob(
        str(folder.absolute()), str(model.absolute()), content_hash(model), **{name: options[name] for name in names}
    )
    check_job(job)
    facts = {key: value for key, value in asdict(job).items() if key not in ("folder", "model")}
    Checkpoint.open(folder, facts, resume)
    before = sum(1 for _ in folder.glob("user=*/releases.*"))
    done = list(progress(release_everyone(job, _people(data, options), count), "Releasing users"))
    told = {
        "users_released": sum(1 for one in done if one.releases),
        "releases": sum(one.releases for one in done),
        "users_never_in_the_region": sum(1 for one in done if not one.releases),
        "users_released_before": before,
        "policy": job.policy,
        "mechanism": job.mechanism,
        "epsilon_of_each": job.epsilon,
        "private": job.seed is None,
        "folder": str(folder),
    }
    if not told["users_released"] and not before:
        raise ConfigurationError(f"none of {len(done)} users was within the model's region; learn a model of theirs")
    say("Released", told, options["as_json"])


def _people(data: tuple[Path, ...], options: dict[str, Any]) -> Iterator[Trajectory]:
    """Everyone to be released, out of one input after another."""
    from dphmm.readers import read

    columns = columns_of(options["columns"]) or None
    users, excluded = names_of(options["users"]), names_of(options["exclude_users"])
    met: set[str] = set()
    for path in data:
        result = read(path, options["format_"], skip_bad=bool(options["skip_bad"]), columns=columns)
        for person in result.trajectories:
            if person.user in met:
                raise ConfigurationError(f"{path}: user {person.user!r} was in an input before; give each user once")
            met.add(person.user)
            if (not users or person.user in users) and person.user not in excluded:
                yield person
