"""``dphmm synthesize``: people who do not exist, out of a model, and how alike they are to people who do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import data_of, input_options
from dphmm.cli.once import Once
from dphmm.cli.progress import progress
from dphmm.cli.summary import say, say_table
from dphmm.cli.terminal import cell, echo

if TYPE_CHECKING:
    from dphmm.jobs.synthesis import Comparison

_BEST = {"top_places": "1 is best", "rank_correlation": "1 is best"}


@click.command(cls=Once, name="synthesize")
@click.option("--model", required=True, type=click.Path(path_type=Path), help="A model that 'dphmm learn' wrote.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A .csv, .parquet or .gpkg file of people.")
@click.option("--people", default=1000, show_default=True, help="How many people.")
@click.option("--days", default=7.0, show_default=True, help="For how long.")
@click.option("--start", default="2024-01-01", show_default=True, metavar="DAY", help="Their first day.")
@click.option("--compare", multiple=True, metavar="DATA", type=click.Path(), help="Real people to compare with.")
@click.option(
    "--gap",
    type=float,
    metavar="SECONDS",
    help="With --compare: who is seen again within this time has stayed until then. [default: one step]",
)
@click.option("--plot", type=click.Path(path_type=Path), help="With --compare: a picture, PRIVATE in its name.")
@click.option("--seed", type=int, help="Repeatable people.")
@input_options
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say what was made as JSON.")
def command(model: Path, output: Path | None, compare: tuple[str, ...], **given: Any) -> None:
    """Draw people who do not exist from a model, and write where they are at every step.

    The file says nothing that the model does not say: it is as private as the model, no more and no less. --compare
    holds them against real people whom the model has not seen, by the measures of the literature.
    """
    from dphmm.errors import ConfigurationError
    from dphmm.jobs.synthesis import compare_people, synthesize

    plot, seed = given["plot"], given["seed"]
    if output is None and not compare:
        raise ConfigurationError("nothing is asked for; give -o FILE, or --compare DATA")
    if plot is not None:
        _check_plot(plot, bool(compare), given["overwrite"])
    facts: dict[str, Any] = {}
    if output is not None:
        options = {name: given[name] for name in ("people", "days", "start", "overwrite")}
        made = synthesize(model, output, rng=seed, watch=progress, **options)
        facts = {
            "file": str(made.output),
            "people": made.people,
            "places_each": made.steps,
            "first_time": f"{made.first.astype('datetime64[s]')}Z",
            "private": _PRIVATE,
            "promise_of_the_model": made.promise,
        }
    found = None
    if compare:
        found = compare_people(model, data_of(compare, given), given["gap"], rng=seed, watch=progress)
    if given["as_json"]:
        echo(json.dumps({**facts, **({} if found is None else found.facts())}, ensure_ascii=False, allow_nan=False))
    else:
        if facts:
            say("People who do not exist", facts, False)
        if found is not None:
            _say_comparison(found)
    if found is not None and plot is not None:
        from dphmm.plots.synthesis import crowds_figure, save_figure

        save_figure(crowds_figure(found), plot, given["overwrite"])
        echo(f"dphmm: {cell(str(plot))} shows where real people were; keep it to yourself.", err=True)


_PRIVATE = "as private as the model's file, no more and no less"


def _check_plot(plot: Path, compared: bool, overwrite: bool) -> None:
    from dphmm.errors import ConfigurationError
    from dphmm.tables import check_output

    if not compared:
        raise ConfigurationError("--plot shows a comparison; give --compare DATA too")
    if plot.suffix.lower() not in (".png", ".svg", ".pdf") or "PRIVATE" not in plot.name:
        raise ConfigurationError(f"{plot}: name a .png, .svg or .pdf file with PRIVATE in its name")
    check_output(plot, overwrite)


def _say_comparison(found: Comparison) -> None:
    """A table: measure by measure, how far from the real people."""
    columns = (found.synthetic, found.halves, found.places_alone)
    rows = [
        (
            name.replace("_", " "),
            *("-" if one[name] != one[name] else f"{one[name]:.3f}" for one in columns),
            _BEST.get(name, "0 is best"),
        )
        for name in found.synthetic
    ]
    title = f"Compared with {found.people:,} real people ({found.stretches:,} stretches, {found.places:,} places" + (
        f"; {found.left_out:,} whom the model has seen were left out)" if found.left_out else ")"
    )
    header = ("measure", "people who do not exist", "one half of the real ones", "places drawn alone", "")
    say_table(header, rows, title)
    echo(
        f"The model gives a step of theirs a log likelihood of {found.log_likelihood:.4f} on average; "
        f"{found.impossible:.2%} of their steps it thinks impossible."
    )
