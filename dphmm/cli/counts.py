"""The command ``dphmm counts``: release, repair and comparison of population counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import shared_options as options
from dphmm.cli.console import FILE, PATH, OnceGroup, echo, escape_cell, print_result, show_progress, warn_of_seed
from dphmm.cli.keys import NUMBER, as_keys, declare_key, name_parameters_in_errors
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.jobs import Counts

_estimators = click.Choice(["coupled", "online", "single", "least-squares", "maximum-likelihood"])
_mobility_options = options.compose(
    click.option("--model", type=PATH, help="A model from 'dphmm learn'."),
    click.option("--transition", type=PATH, help="Transition matrix, a CSV, NPY or NPZ file."),
    click.option(
        "--smoothing", "smooth", default=0.0, metavar="AMOUNT", help="Smoothing amount added to every probability."
    ),
)
_budget_options = options.compose(
    click.option(
        "--epsilon", type=NUMBER, metavar="NUMBER", help="Budget of every time, a decimal number or a fraction."
    ),
    click.option("--epsilons", type=PATH, help="File with one budget per time."),
    click.option("--alpha", type=float, help="Budgets for this bound on temporal leakage, with a model or matrix."),
)
# With 10,000 runs, the standard error of the mean is a hundredth of the standard deviation.
_RUNS = click.IntRange(1, 10_000)
_prior_option = click.option(
    "--prior",
    default="frequency",
    show_default=True,
    type=click.Choice(["frequency", "uniform", "model"]),
    help="Users' distribution at the first time.",
)
_mechanism_option = click.option(
    "--mechanism",
    default="lattice",
    show_default=True,
    type=click.Choice(["lattice", "laplace"]),
    help="Exact integer noise, or Laplace noise in floating point.",
)

_DAILY = ("hours", "utc_offset", "min_coverage")


@click.group(cls=OnceGroup)
def counts_command() -> None:
    """Release counts of users per place and time, repair them, and compare repairs.

    Tables of counts are CSV or Parquet files with a column of times and one column per place.
    """


@counts_command.command()
@click.argument("data", nargs=-1, type=click.Path())
@click.option("--counts", "table", type=PATH, help="Table of true counts, instead of DATA.")
@click.option("-o", "--output", required=True, type=FILE, help="Noisy counts, .csv or .parquet.")
@_mobility_options
@options.own_model_option
@options.region_options
@click.option("--step", type=float, metavar="SECONDS", help="Time step in seconds. [default: the model's]")
@click.option("--daily", is_flag=True, help="Align days: a member is one day of one user.")
@click.option("--utc-offset", default=0.0, metavar="HOURS", help="With --daily: local time minus UTC in hours.")
@declare_key("--start", help="The first time, UTC. [default: the data's]")
@declare_key("--end", help="The last time, UTC. [default: the data's]")
@declare_key("--hours", nargs=2, type=float, help="With --daily: first and last local hour. [default: 0, 24]")
@declare_key("--min-coverage", default=0.0, help="With --daily: fraction of times with a fix for a day to count.")
@_budget_options
@_mechanism_option
@click.option("--private-diagnostics", type=FILE, metavar="FILE", help="Write true counts to this .csv.")
@options.seed_option
@options.input_options
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def release(data: tuple[str, ...], table: Path | None, seed: int | None, as_json: bool, **arguments: Any) -> None:
    """Release noisy counts of the users in DATA, or of a table of true counts.

    Places are those of --model, or of a region. A user without a fix within the region at a time is counted at their
    last place, and before their first fix at their first place. Each time's row is epsilon-differentially private for
    one user's place at that time.
    """
    from dphmm.jobs import Budgets, Counts, DayAlignment, Mobility, count_users
    from dphmm.tables import check_table_name
    from dphmm.writers.summary import check_private_name

    output = arguments["output"]
    private = arguments["private_diagnostics"]
    overwrite = arguments["overwrite"]
    check_table_name(output)
    if private is not None:
        check_private_name(private)
    if data and table is not None:
        raise ConfigurationError("DATA cannot be combined with --counts: use one of them")
    if not data and table is None:
        raise ConfigurationError("no data: use files of trajectories, or a table with --counts")
    if table is not None:
        of_data = ("allow_training_users", "step", "start", "end", "daily", *_DAILY, *options.REGION, *options.READING)
        options.refuse(of_data, "cannot be combined with --counts: it is for DATA")
    if arguments["model"] is None:
        options.refuse(("allow_training_users",), "needs --model")
    if not arguments["daily"]:
        options.refuse(_DAILY, "needs --daily")
    warn_of_seed(seed)
    done = count_users(
        options.build_data(data, arguments) if table is None else Counts.read(table),
        Budgets(arguments["epsilon"], arguments["epsilons"], arguments["alpha"]),
        options.build_space(arguments) if any(arguments[name] is not None for name in options.REGION) else None,
        arguments["step"],
        mobility=Mobility.from_source(arguments["model"], arguments["transition"], arguments["smooth"]),
        days=DayAlignment(arguments["hours"] or (0, 24), arguments["utc_offset"], arguments["min_coverage"])
        if arguments["daily"]
        else None,
        allow_training_users=bool(arguments["allow_training_users"]),
        rng=seed,
        watch=show_progress,
        **{name: arguments[name] for name in ("start", "end", "mechanism")},
    )
    done.noisy.table.write(output, overwrite)
    if private is not None:
        done.true.table.write(private, overwrite, private=True)
    if table is not None:
        _note_names(done.true)
    stated = {**done.to_dict(), **done.to_private_dict()}
    if arguments["alpha"] is not None and arguments["smooth"]:
        stated["smoothing_of_transitions"] = arguments["smooth"]  # the bound holds for the smoothed matrix
    result = {**stated, "output": str(output), "private_counts": None if private is None else str(private)}
    labels = {"max_rms_error": "max RMS noise of a count"}
    print_result("Released", result, as_json, done.dropped, "private_dropped", labels)


def _note_names(counts: Counts) -> None:
    """State the order of the places, which the output numbers as certificates require."""
    from dphmm.tables.table import join_names

    names = list(counts.places.columns)
    if names != [f"place_{at}" for at in range(len(names))]:
        order = escape_cell(join_names(names))
        echo(f"Note: the output names these columns place_0, place_1, … in this order: {order}.", err=True)


@counts_command.command()
@click.argument("noisy", type=PATH)
@click.option("-o", "--output", required=True, type=FILE, help="Repaired counts, .csv or .parquet.")
@click.option("--num-users", required=True, type=int, help="Public number of users.")
@_mobility_options
@click.option("--estimator", default="coupled", show_default=True, type=_estimators)
@as_keys(_prior_option)
@declare_key("--scale", type=float, help="Scale of the noise. [default: 2 / epsilon of the table]")
@declare_key("--integer", is_flag=True, help="Release integers.")
@click.option("--certificate", type=FILE, help="With 'single': certificate of optimality, a new file.")
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def postprocess(noisy: Path, output: Path, num_users: int, overwrite: bool, as_json: bool, **arguments: Any) -> None:
    """Repair the noisy counts in the table NOISY to be non-negative with the public total.

    The result depends only on public data and is as private as the noisy counts. Memory and time of the coupled
    estimators grow with the square and cube of the number of places; they suit up to some hundred places.
    """
    from dphmm.jobs import Counts, Mobility, repair_counts
    from dphmm.tables import check_table_name

    check_table_name(output)
    counts = Counts.read(noisy)
    mobility = Mobility.from_source(arguments["model"], arguments["transition"], arguments["smooth"])
    more = {name: arguments[name] for name in ("estimator", "prior", "scale", "integer", "certificate")}
    for _ in show_progress([noisy], f"Post-processing: {arguments['estimator']}"):
        with name_parameters_in_errors(users="num_users"):
            repaired = repair_counts(counts, num_users, mobility, **more, overwrite=overwrite)
    repaired.table.write(output, overwrite)
    _note_names(counts)
    before = counts.values
    stated = {
        "estimator": arguments["estimator"],
        **{name: counts.size[name] for name in ("num_times", "num_places")},
        "num_users": num_users,
        "is_exact": counts.exact,
        "num_negative_noisy_counts": int((before < 0).sum()),
        "mean_absolute_change": float(abs(repaired.values - before).mean()),
        "output": str(output),
        "certificate": None if arguments["certificate"] is None else str(arguments["certificate"]),
    }
    print_result("Post-processed", stated, as_json)


@counts_command.command()
@click.argument("true", type=PATH)
@_mobility_options
@click.option("--noisy", type=PATH, help="Evaluate this release instead of new ones.")
@_budget_options
@click.option("--runs", type=_RUNS, default=5, show_default=True, help="Number of new releases.")
@_mechanism_option
@as_keys(_prior_option)
@click.option("--estimator", "estimators", multiple=True, type=_estimators, help="[default: all]")
@click.option("--seed", type=click.IntRange(0), help="Seed of repeatable noise.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def evaluate(true: Path, noisy: Path | None, runs: int, seed: int | None, as_json: bool, **arguments: Any) -> None:
    """Compute mean squared errors of the estimators on the true counts in the table TRUE.

    Errors depend on the true counts. Use data that can be disclosed.
    """
    from dphmm.jobs import Budgets, Counts, Mobility, compare_counts

    if noisy is not None and any(arguments[name] is not None for name in ("epsilon", "epsilons", "alpha")):
        raise ConfigurationError("--noisy cannot be combined with budgets: the release contains them")
    if noisy is not None:
        options.refuse(("runs", "seed", "mechanism"), "cannot be combined with --noisy: it is for new releases")
    mobility = Mobility.from_source(arguments["model"], arguments["transition"], arguments["smooth"])
    counts = Counts.read(true)
    released = (
        Budgets(arguments["epsilon"], arguments["epsilons"], arguments["alpha"])
        if noisy is None
        else Counts.read(noisy)
    )
    more = {name: arguments[name] for name in ("estimators", "prior", "mechanism")}
    errors = compare_counts(counts, released, mobility, runs=runs, rng=seed, watch=show_progress, **more)
    stated = {name.replace("-", "_"): float(values.mean()) for name, values in errors.items()}
    exact = released.exact if isinstance(released, Counts) else arguments["mechanism"] == "lattice"
    summary = {**counts.size, "num_runs": runs if noisy is None else 1, "is_exact": exact}
    print_result("Mean squared error", {**summary, **stated}, as_json)
