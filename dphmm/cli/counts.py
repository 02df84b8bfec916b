"""``dphmm counts``: how many people are where, released with noise, repaired, and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dphmm.cli import inputs
from dphmm.cli.console import FILE, PATH, OnceGroup, progress, say, warn_of_seed
from dphmm.errors import ConfigurationError

_estimators = click.Choice(["coupled", "online", "single", "least-squares", "maximum-likelihood"])
_mobility_options = inputs.options(
    click.option("--model", type=PATH, help="A model that 'dphmm learn' wrote."),
    click.option("--transition", type=PATH, help="A matrix in a CSV, NPY or NPZ file."),
    click.option("--smooth", default=0.0, metavar="AMOUNT", help="Added to every probability before use."),
)
_budget_options = inputs.options(
    click.option("--epsilon", metavar="NUMBER", help="Budget of every time; a decimal number or a fraction."),
    click.option("--epsilons", type=PATH, help="File of budgets, one for each time."),
    click.option("--alpha", type=float, help="Budgets that keep temporal leakage at this level; with --model."),
)
_RUNS = click.IntRange(1, 10_000)
"""By then the mean is known to one in a hundred of the spread."""
_priors = click.Choice(["frequency", "uniform", "model"])
_mechanism_option = click.option(
    "--mechanism",
    default="lattice",
    show_default=True,
    type=click.Choice(["lattice", "laplace"]),
    help="Exact integer noise, or the paper's in floating point.",
)

_DAILY = ("hours", "utc_offset", "least_seen")


@click.group(cls=OnceGroup)
def counts_command() -> None:
    """Counts of people per place and time: release them, repair them, compare the repairs.

    Tables of counts are CSV or Parquet files with a column of times and one column per place.
    """


@counts_command.command()
@click.argument("data", nargs=-1, type=click.Path())
@click.option("--counts", "table", type=PATH, help="True counts in a table, in place of DATA.")
@click.option("-o", "--output", required=True, type=FILE, help="Noisy counts, .csv or .parquet.")
@_mobility_options
@inputs.own_model_option
@inputs.region_options
@click.option("--step", type=float, metavar="SECONDS", help="One time step. [default: the model's]")
@click.option("--start", metavar="TIME", help="First time, UTC. [default: the data's]")
@click.option("--end", metavar="TIME", help="Last time, UTC. [default: the data's]")
@click.option("--daily", is_flag=True, help="Lay days over each other: a member is one day of one person.")
@click.option("--hours", nargs=2, type=float, metavar="FROM TO", help="With --daily: local hours. [default: 0 24]")
@click.option("--utc-offset", default=0.0, metavar="HOURS", help="With --daily: local time minus UTC.")
@click.option("--least-seen", default=0.0, metavar="SHARE", help="With --daily: of the times, to count a day.")
@_budget_options
@_mechanism_option
@click.option("--private-counts", type=FILE, metavar="FILE", help="The true counts, a .csv for yourself alone.")
@inputs.seed_option
@inputs.input_options
@click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
@click.option("--json", "as_json", is_flag=True, help="Say what was released as JSON.")
def release(data: tuple[str, ...], table: Path | None, seed: int | None, as_json: bool, **given: Any) -> None:
    """Release noisy counts of the people in DATA, or of a table of true counts.

    Places are those of --model, or of a region. A person who is not seen within the region at a time is counted where
    they were last seen, and before that where they are first seen, so that everybody is somewhere at every time. Each
    time's row is epsilon-differentially private for one person's place at that time.
    """
    from dphmm.jobs import Budgets, Counts, Days, Mobility, count_people
    from dphmm.tables import check_table_name
    from dphmm.writers.summary import check_private_name

    output, private, overwrite = given["output"], given["private_counts"], given["overwrite"]
    check_table_name(output)
    if private is not None:
        check_private_name(private)
    if data and table is not None:
        raise ConfigurationError("DATA and --counts are both given; use one of them")
    if not data and table is None:
        raise ConfigurationError("no data are given; give files of trajectories, or a table with --counts")
    if table is not None:
        of_data = ("allow_own_model", "step", "start", "end", "daily", *_DAILY, *inputs.REGION, *inputs.READING)
        inputs.refuse(of_data, "is for DATA, not for --counts")
    if given["model"] is None:
        inputs.refuse(("allow_own_model",), "goes with --model")
    if not given["daily"]:
        inputs.refuse(_DAILY, "goes with --daily")
    warn_of_seed(seed)
    done = count_people(
        inputs.data_of(data, given) if table is None else Counts.read(table),
        Budgets(given["epsilon"], given["epsilons"], given["alpha"]),
        inputs.space_of(given) if any(given[name] is not None for name in inputs.REGION) else None,
        given["step"],
        mobility=Mobility.from_source(given["model"], given["transition"], given["smooth"]),
        days=Days(given["hours"] or (0, 24), given["utc_offset"], given["least_seen"]) if given["daily"] else None,
        allow_own_model=bool(given["allow_own_model"]),
        rng=seed,
        watch=progress,
        **{name: given[name] for name in ("start", "end", "mechanism")},
    )
    done.noisy.table.write(output, overwrite)
    if private is not None:
        done.true.table.write(private, overwrite, private=True)
    stated = {**done.facts(), **({"daily": given["daily"]} if table is None else {}), **done.private_facts()}
    facts = {**stated, "output": str(output), "private_counts": private}
    say("Released", facts, as_json, done.dropped, "private_left_out")


@counts_command.command()
@click.argument("noisy", type=PATH)
@click.option("-o", "--output", required=True, type=FILE, help="The counts, .csv or .parquet.")
@click.option("--users", required=True, type=int, help="The number of people, which is public.")
@_mobility_options
@click.option("--estimator", default="coupled", show_default=True, type=_estimators)
@click.option("--prior", default="frequency", show_default=True, type=_priors, help="Where people are at first.")
@click.option("--scale", type=float, help="Scale of the noise. [default: 2 / epsilon, from the table's column]")
@click.option("--integer", is_flag=True, help="Whole numbers.")
@click.option("--certificate", type=FILE, help="With 'single': what shows how near the best they are, as a file.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def postprocess(noisy: Path, output: Path, users: int, overwrite: bool, as_json: bool, **given: Any) -> None:
    """Repair the noisy counts in the table NOISY: not negative, summing to the number of people.

    Nothing but public things enters, so the result is as private as the noisy counts are. Time and memory of the
    coupled estimators grow with the square and cube of the number of places: they are for some hundred.
    """
    from dphmm.jobs import Counts, Mobility, repair_counts
    from dphmm.tables import check_table_name

    check_table_name(output)
    counts = Counts.read(noisy)
    mobility = Mobility.from_source(given["model"], given["transition"], given["smooth"])
    more = {name: given[name] for name in ("estimator", "prior", "scale", "integer", "certificate")}
    for _ in progress([noisy], f"Post-processing: {given['estimator']}"):
        repaired = repair_counts(counts, users, mobility, **more, overwrite=overwrite)
    repaired.table.write(output, overwrite)
    before = counts.values
    stated = {
        "estimator": given["estimator"],
        **{name: counts.size[name] for name in ("times", "places")},
        "users": users,
        "exact": counts.exact,
        "negative_counts_before": int((before < 0).sum()),
        "mean_absolute_change": float(abs(repaired.values - before).mean()),
        "output": str(output),
        "certificate": None if given["certificate"] is None else str(given["certificate"]),
    }
    say("Post-processed", stated, as_json)


@counts_command.command()
@click.argument("true", type=PATH)
@_mobility_options
@click.option("--noisy", type=PATH, help="Judge this release, in place of fresh ones.")
@_budget_options
@click.option("--runs", type=_RUNS, default=5, show_default=True, help="How many fresh releases.")
@_mechanism_option
@click.option("--prior", default="frequency", show_default=True, type=_priors, help="Where people are at first.")
@click.option("--estimator", "estimators", multiple=True, type=_estimators, help="[default: all]")
@click.option("--seed", type=int, help="Repeatable noise.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def evaluate(true: Path, noisy: Path | None, runs: int, seed: int | None, as_json: bool, **given: Any) -> None:
    """Mean squared errors of the estimators on the true counts in the table TRUE.

    Errors tell about the truth: use data that may be looked at.
    """
    from dphmm.jobs import Budgets, Counts, Mobility, compare_counts

    if noisy is not None and any(given[name] is not None for name in ("epsilon", "epsilons", "alpha")):
        raise ConfigurationError("--noisy and budgets are both given; the release says its own budgets")
    mobility, counts = Mobility.from_source(given["model"], given["transition"], given["smooth"]), Counts.read(true)
    released = Budgets(given["epsilon"], given["epsilons"], given["alpha"]) if noisy is None else Counts.read(noisy)
    more = {name: given[name] for name in ("estimators", "prior", "mechanism")}
    errors = compare_counts(counts, released, mobility, runs=runs, rng=seed, watch=progress, **more)
    stated = {name.replace("-", "_"): float(values.mean()) for name, values in errors.items()}
    exact = released.exact if isinstance(released, Counts) else given["mechanism"] == "lattice"
    of = {**counts.size, "runs": runs if noisy is None else 1, "exact": exact}
    say("Mean squared error", {**of, **stated}, as_json)
