"""``dphmm model``: what a model says, and how well it fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import data_of, true_options
from dphmm.cli.once import OnceGroup
from dphmm.cli.summary import say
from dphmm.cli.terminal import cell, echo
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.jobs.fit import Fit
    from dphmm.markov.model import MarkovModel


@click.group(cls=OnceGroup)
def command() -> None:
    """What a model that 'dphmm learn' wrote says, and how well it fits."""


@command.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A map: a .png, .svg or .pdf file.")
@true_options
@click.option("--users", metavar="A,B,…", help="These users of --true alone.")
@click.option("--exclude-users", metavar="A,B,…", help="Everyone of --true but these users.")
@click.option("--skip-bad", is_flag=True, default=None, help="Pass over malformed records of --true.")
@click.option("--overwrite", is_flag=True, help="Replace an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Say it as JSON.")
def show(model: Path, output: Path | None, overwrite: bool, as_json: bool, **given: Any) -> None:
    """What MODEL holds possible and promises, a map of it, and how well it fits people whom it has not seen.

    --true are people whom the model was not learned from. Whether it knows its doubts is told by regions of the belief:
    of those that hold 90 % of its mass, 90 % should hold the person.
    """
    from dphmm.jobs.models import load_model
    from dphmm.tables import check_output

    if output is not None:
        if output.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise ConfigurationError(f"{output}: no map goes by {output.suffix!r}; use .png, .svg or .pdf")
        check_output(output, overwrite)
    loaded = load_model(model)
    facts = _facts(loaded)
    if given["true"]:
        from dphmm.jobs.fit import fit_of

        fit = fit_of(model, data_of(given["true"], given))
        facts |= _fit(fit)
        echo("dphmm: how well it fits is true of the people in --true, without noise: keep it to yourself.", err=True)
        if fit.known:
            echo(f"dphmm: the model was learned from {fit.known} of them; it fits those too well.", err=True)
    if output is not None:
        from dphmm.plots.maps import save
        from dphmm.plots.model import model_figure
        from dphmm.tables import new_file

        figure = model_figure(loaded)
        with new_file(output, overwrite) as part:
            save(figure, part, dpi=130, bbox_inches="tight", format=output.suffix[1:].lower())
        facts["map"] = cell(str(output))
    say(f"Model {model.name}", facts, as_json)


def _facts(model: MarkovModel) -> dict[str, Any]:
    stays = {}
    if not hasattr(model, "transitions"):
        chances = model.transition.diagonal()
        stays = {
            "stays_expected": float(model.initial @ chances),
            "least_and_most": f"{chances.min():.3g} to {chances.max():.3g}",
        }
    learned = model.learned or {}
    told = {
        name: ", ".join(f"{k} {v}" for k, v in one.items()) if isinstance(one, dict) else one
        for name, one in learned.items()
    }
    known = {
        "states": model.size,
        "possible_moves": model.possible_moves,
        "step_seconds": model.step_seconds,
        **stays,
        "hash": model.content_hash,
    }
    plain = {name: one for name, one in told.items() if isinstance(one, str | int | float)}
    return known | {name: one for name, one in plain.items() if name not in known}  # a file does not overrule these


def _fit(fit: Fit) -> dict[str, Any]:
    facts = {
        "people_moving": fit.people,
        "moves": fit.moves,
        "impossible_moves": fit.impossible_moves,
        "log_likelihood_per_move": fit.log_likelihood,
        "if_all_possible_moves_were_alike": fit.even,
        "stays_seen": fit.stays,
        "stays_said": fit.stays_expected,
    }
    for one in fit.coverage:
        facts[f"{one.level:.0%}_regions_{one.steps}_steps_ahead_hold"] = one.held
    return facts
