"""``dphmm counts``: how many people are where, released with noise, repaired, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import data_of, input_options, space_of
from dphmm.cli.mobility import (
    Mobility,
    budget_options,
    mobility_options,
    read_budgets,
    read_mobility,
    temporal_leakage,
)
from dphmm.cli.progress import progress
from dphmm.cli.summary import say
from dphmm.errors import ConfigurationError, CountError, DataFileError

if TYPE_CHECKING:
    from dphmm.arrays import FloatArray
    from dphmm.space.states import StateSpace
    from dphmm.tables import TimedTable

ESTIMATOR_NAMES = ("coupled", "online", "single", "least-squares", "maximum-likelihood")
EPSILON = "epsilon"
"""The column of a table of counts that holds each time's budget; all others are places, in order."""


@click.group()
def command() -> None:
    """Counts of people per place and time: release them, repair them, compare the repairs.

    Tables of counts are CSV or Parquet files with a column of times and one column per place.
    """


@command.command()
@click.argument("data", nargs=-1, type=click.Path())
@click.option("--counts", "table", type=click.Path(path_type=Path), help="True counts in a table, in place of DATA.")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The noisy counts, .csv or .parquet."
)
@mobility_options
@click.option("--preset", help="Places without a model: a region and cell size of the papers, geolife or gowalla.")
@click.option("--bbox", nargs=4, type=float, metavar="S W N E", help="Places without a model: a region, in degrees.")
@click.option(
    "--polygon", type=click.Path(), metavar="FILE", help="Places without a model: polygons of a GeoJSON file."
)
@click.option("--places", type=click.Path(), metavar="FILE", help="Places without a model: a CSV of named places.")
@click.option("--within", type=float, metavar="KM", help="With --places: how far from a place a fix may lie.")
@click.option("--cell", type=float, metavar="KM", help="The side of a cell of the region's grid, kilometres.")
@click.option("--step", type=float, metavar="SECONDS", help="One time step. [default: the model's]")
@click.option("--start", metavar="TIME", help="First time, UTC. [default: the data's]")
@click.option("--end", metavar="TIME", help="Last time, UTC. [default: the data's]")
@click.option("--daily", is_flag=True, help="Lay days over each other: a member is one day of one person.")
@click.option("--hours", nargs=2, type=float, metavar="FROM TO", help="With --daily: local hours. [default: 0 24]")
@click.option("--utc-offset", default=0.0, metavar="HOURS", help="With --daily: local time minus UTC.")
@click.option("--least-seen", default=0.0, metavar="SHARE", help="With --daily: of the times, to count a day.")
@budget_options
@click.option("--integer", is_flag=True, help="Exact integer noise; safe against attacks on low bits.")
@click.option("--private-counts", type=click.Path(), metavar="FILE", help="The true counts, a .csv for yourself alone.")
@click.option("--seed", type=int, help="Repeatable noise, for experiments: the output is not private.")
@input_options
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def release(
    data: tuple[str, ...], table: Path | None, output: Path, as_json: bool, overwrite: bool, **options: Any
) -> None:
    """Release noisy counts of the people in DATA, or of a table of true counts.

    Whoever is not seen within the region at a time is counted where they were last seen, and before that where they
    are first seen, so that everybody is somewhere at every time. Each time's row is epsilon-differentially private for
    one person's place at that time.
    """
    import numpy as np

    from dphmm.counts.stream import as_counts
    from dphmm.tables import TimedTable, check_output, check_table_name
    from dphmm.writers.diagnostics import check_private_name

    private = options["private_counts"]
    check_output(check_table_name(output), overwrite)
    if private is not None:
        check_output(check_private_name(private), overwrite)
    mobility = read_mobility(options["model"], options["transition"], options["smooth"])
    true, facts = _of_table(data, table) if table is not None else _of_people(data, mobility, options)
    budgets = read_budgets(options["epsilon"], options["epsilons"], options["alpha"], mobility, len(true))
    values = as_counts(_counts(true), "true counts" if table is None else str(table))
    if options["seed"] is not None:
        click.echo("dphmm: the noise follows from --seed, so this output is not private.", err=True)
    noisy = _drawn(values, budgets, options["seed"], options["integer"])
    spent = np.array([float(budget) for budget in budgets])
    TimedTable(true.times, {EPSILON: spent, **_places(noisy)}).write(output, overwrite)
    if private is not None:
        true.write(private, overwrite, private=True)
    told = {
        "users": int(values[0].sum()),
        "times": len(true),
        "places": values.shape[1],
        **facts,
        "epsilon_least": float(spent.min()),
        "epsilon_greatest": float(spent.max()),
        "epsilon_of_all_times": float(spent.sum()),
        "temporal_leakage": None if options["alpha"] is None else temporal_leakage(mobility, budgets),
        "integer": options["integer"],
        "private": options["seed"] is None,
        "output": str(output),
        "private_counts": private,
    }
    say("Released", told, as_json)


@command.command()
@click.argument("noisy", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The counts, .csv or .parquet.")
@click.option("--users", required=True, type=int, help="The number of people, which is public.")
@mobility_options
@click.option("--estimator", default="coupled", show_default=True, type=click.Choice(ESTIMATOR_NAMES))
@click.option(
    "--prior",
    default="frequency",
    show_default=True,
    type=click.Choice(["frequency", "uniform", "model"]),
    help="The people's distribution at the first time.",
)
@click.option("--scale", type=float, help="Scale of the noise. [default: 2 / epsilon, from the table's column]")
@click.option("--integer", is_flag=True, help="Whole numbers.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def postprocess(
    noisy: Path,
    output: Path,
    users: int,
    estimator: str,
    prior: str,
    scale: float | None,
    integer: bool,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Repair the noisy counts in the table NOISY: not negative, summing to the number of people.

    Nothing but public things enters, so the result is as private as the noisy counts are. Time and memory of the
    coupled estimators grow with the square and cube of the number of places: they are for some hundred.
    """
    from dphmm.counts import estimate
    from dphmm.tables import TimedTable, check_output, check_table_name

    check_output(check_table_name(output), overwrite)
    table = TimedTable.read(noisy)
    values, scales = _counts(table), scale if scale is not None else _scales(noisy, table)
    mobility = read_mobility(options["model"], options["transition"], options["smooth"])
    start = _prior(prior, mobility)
    for name in progress([estimator], f"Post-processing: {estimator}"):
        repaired = estimate(name, values, mobility.transition, users, scales, start, integer)
    TimedTable(table.times, _places(repaired)).write(output, overwrite)
    told = {
        "estimator": estimator,
        "times": len(table),
        "places": values.shape[1],
        "users": users,
        "negative_counts_before": int((values < 0).sum()),
        "mean_absolute_change": float(abs(repaired - values).mean()),
        "output": str(output),
    }
    say("Post-processed", told, as_json)


@command.command()
@click.argument("true", type=click.Path(path_type=Path))
@mobility_options
@click.option("--noisy", type=click.Path(path_type=Path), help="Judge this release, in place of fresh ones.")
@budget_options
@click.option("--runs", default=5, show_default=True, help="How many fresh releases.")
@click.option("--integer", is_flag=True, help="Exact integer noise in the fresh releases.")
@click.option("--prior", default="frequency", show_default=True, type=click.Choice(["frequency", "uniform", "model"]))
@click.option("--estimator", "estimators", multiple=True, type=click.Choice(ESTIMATOR_NAMES), help="[default: all]")
@click.option("--seed", type=int, help="Repeatable noise.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def evaluate(
    true: Path, noisy: Path | None, runs: int, integer: bool, prior: str, estimators: tuple[str, ...], **options: Any
) -> None:
    """Mean squared errors of the estimators on the true counts in the table TRUE.

    Errors tell about the truth: use data that may be looked at.
    """
    from dphmm.counts import compare
    from dphmm.counts.stream import as_counts
    from dphmm.tables import TimedTable

    table = TimedTable.read(true)
    counts = as_counts(_counts(table), str(true))
    mobility = read_mobility(options["model"], options["transition"], options["smooth"])
    start = _prior(prior, mobility)
    usable = ESTIMATOR_NAMES if mobility.transition is not None else ESTIMATOR_NAMES[-2:]
    wanted = estimators or usable
    if noisy is None:
        budgets = read_budgets(options["epsilon"], options["epsilons"], options["alpha"], mobility, len(table))
        found = compare(
            counts,
            budgets,
            mobility.transition,
            start,
            runs,
            integer,
            options["seed"],
            wanted,
            lambda numbers: progress(numbers, "Comparing", runs),
        )
    else:
        if any(options[name] is not None for name in ("epsilon", "epsilons", "alpha")):
            raise ConfigurationError("--noisy and budgets are both given; the release says its own budgets")
        found = _judged(table, counts, noisy, mobility, start, wanted)
    told = {name.replace("-", "_"): float(errors.mean()) for name, errors in found.items()}
    size = {"users": int(counts[0].sum()), "times": len(counts), "places": counts.shape[1]}
    say("Mean squared error", {**size, "runs": runs if noisy is None else 1, **told}, options["as_json"])


def _drawn(values: Any, budgets: list[Any], seed: int | None, integer: bool) -> Any:
    """Noisy counts ``(T, m)``, time by time; integers where they are exact."""
    import numpy as np

    from dphmm.arrays import random_source
    from dphmm.counts import release as add_noise

    source = random_source(seed)
    rows = progress(zip(values, budgets, strict=True), "Releasing", len(budgets))
    drawn = [add_noise(row[None], budget, source, integer)[0] for row, budget in rows]
    return np.array(drawn).astype(np.int64 if integer else np.float64)


def _judged(
    table: TimedTable, counts: Any, noisy: Path, mobility: Mobility, start: Any, wanted: tuple[str, ...]
) -> dict[str, FloatArray]:
    """Errors of one release that exists, and of what the estimators make of it."""
    import numpy as np

    from dphmm.counts import estimate
    from dphmm.counts.comparison import RAW
    from dphmm.tables import TimedTable

    released = TimedTable.read(noisy)
    values, users = _counts(released), int(counts[0].sum())
    if values.shape != counts.shape or (released.times != table.times).any():
        raise CountError(f"{noisy}: times or places are not those of the true counts; give a release of them")
    found, scales = dict[str, Any]({RAW: values}), _scales(noisy, released)
    for name in progress(wanted, "Comparing"):
        found[name] = estimate(name, values, mobility.transition, users, scales, start)
    return {name: np.array([np.mean((made - counts) ** 2)]) for name, made in found.items()}


def _of_table(data: tuple[str, ...], table: Path | None) -> tuple[TimedTable, dict[str, Any]]:
    from dphmm.tables import TimedTable

    if data:
        raise ConfigurationError("DATA and --counts are both given; use one of them")
    true = TimedTable.read(str(table))
    kept = {name: values for name, values in true.columns.items() if name != EPSILON}
    return TimedTable(true.times, kept), {}


def _of_people(data: tuple[str, ...], mobility: Mobility, options: dict[str, Any]) -> tuple[TimedTable, dict[str, Any]]:
    from dphmm.evaluation.population import daily_population, population
    from dphmm.tables import TimedTable

    if not data:
        raise ConfigurationError("no data are given; give files of trajectories, or a table with --counts")
    space, step = _space(mobility, options)
    people = data_of(data, options).read()
    everyone = progress(people.trajectories, "Counting", len(people.trajectories))
    if options["daily"]:
        if options["start"] or options["end"]:
            raise ConfigurationError("--daily lays all days over each other; leave --start and --end out")
        hours = options["hours"] or (0.0, 24.0)
        found = daily_population(everyone, space, step, hours, options["utc_offset"], options["least_seen"])
    else:
        found = population(everyone, space, step, options["start"], options["end"])
    facts = {"daily": options["daily"], "fixes_skipped": people.skipped}
    return TimedTable(found.times, _places(found.counts)), facts


def _space(mobility: Mobility, options: dict[str, Any]) -> tuple[StateSpace, float]:
    region = any(options[name] is not None for name in ("preset", "bbox", "polygon", "places", "within", "cell"))
    model = mobility.model
    if model is not None:
        if region:
            raise ConfigurationError("--model and a region are both given; the model has places of its own")
        if model.states is None:
            raise ConfigurationError(f"{options['model']}: the model has no map; make one with 'dphmm learn'")
        step = options["step"] or model.step_seconds
        if model.step_seconds is not None and step != model.step_seconds:
            raise ConfigurationError(
                f"--step is {step:g} s and the model's step {model.step_seconds:g} s; leave it out"
            )
        space: StateSpace = model.states
    else:
        space = space_of(options)
        step = options["step"]
    if step is None:
        raise ConfigurationError("no time step is given; give --step in seconds")
    return space, float(step)


def _counts(table: TimedTable) -> FloatArray:
    return table.matrix([name for name in table.columns if name != EPSILON])


def _places(values: Any) -> dict[str, Any]:
    return {f"place_{at}": values[:, at] for at in range(values.shape[1])}


def _scales(path: Path, table: TimedTable) -> FloatArray:
    from dphmm.arrays import check_epsilon
    from dphmm.counts.noise import SENSITIVITY

    if EPSILON not in table.columns:
        raise DataFileError(path, "has no column 'epsilon'; say the scale of its noise with --scale")
    for at, value in enumerate(table.columns[EPSILON]):
        check_epsilon(value, f"{path}: epsilon at time {at}")
    return SENSITIVITY / table.columns[EPSILON]


def _prior(name: str, mobility: Mobility) -> Any:
    if name != "model":
        return name
    if mobility.initial is None:
        raise ConfigurationError("--prior model needs --model; the file of a matrix says nothing of the start")
    return mobility.initial
