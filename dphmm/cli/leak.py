"""``dphmm leak``: what a stream of private releases leaks to an adversary who knows how the data move."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.adversary import ALL, check_picture, draw, knowledge_options, read_users
from dphmm.cli.summary import say_table
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.arrays import FloatArray
    from dphmm.leakage import Leakage, PopulationLeakage


@click.command(name="leak")
@knowledge_options
@click.option(
    "--model", type=click.Path(path_type=Path), help="A learned model: its matrix, forwards and by Bayes back."
)
@click.option("--releases", type=click.Path(path_type=Path), help="Releases made under --model: account for them.")
@click.option("--of", "person", help="Whose releases; needed where the file has several users.")
@click.option("--initial", type=click.Path(path_type=Path), help="Distribution of the first state; with --forward.")
@click.option("--epsilon", type=float, help="Budget of every time; with --steps.")
@click.option("--steps", type=click.IntRange(min=1), help="Number of times.")
@click.option("--epsilons", type=click.Path(path_type=Path), help="File of budgets, one for each time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the leakage over time into this new file.")
def command(
    backward: Path | None,
    forward: Path | None,
    users: tuple[tuple[str, str, str], ...],
    model: Path | None,
    releases: Path | None,
    person: str | None,
    initial: Path | None,
    epsilon: float | None,
    steps: int | None,
    epsilons: Path | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Temporal privacy leakage of a stream of releases.

    Matrices are CSV (one row a line), NPY or NPZ files. With --initial the backward matrix of every step follows from
    --forward by Bayes' rule; --model does the same with a learned model. With --releases the budget of a time is what
    its release may tell about any two possible states (constrained factor times epsilon), and 0 where nothing was
    released. For every time the table has the budget, the leakage through releases up to then (BPL), from then on
    (FPL) and through all of them (TPL).
    """
    check_picture(plot)
    bounds: dict[str, dict[str, Any]] = {}
    if releases is not None:
        if model is None or backward or forward or users or initial or epsilon or steps or epsilons:
            raise ConfigurationError("--releases goes with --model and nothing else: the file says the budgets")
        found = _of_releases(model, releases, person)
    else:
        from dphmm.leakage import account_users

        budgets = _budgets(epsilon, steps, epsilons)
        if model is not None:
            if backward or forward or users or initial:
                raise ConfigurationError("--model and matrices of other files are both given; use one of them")
            known = _of_model(model, budgets.size)
        else:
            matrices = read_users(backward, forward, users)
            known = _functions(matrices) if initial is None else _with_initial(matrices, initial, budgets.size)
        found = account_users(known, budgets)
        if initial is None and model is None:
            bounds = _bounds(known, float(budgets.max()))
    if as_json:
        click.echo(json.dumps(_record(found, bounds), indent=2))
    else:
        _print(found, bounds)
    if plot is not None:
        from dphmm.plots.leakage import leakage_over_time

        worst = max(found.by_user.values(), key=lambda leakage: leakage.worst)
        draw(plot, lambda ax: leakage_over_time(ax, worst))


def _of_model(path: Path, times: int) -> dict[str, tuple[Any, Any]]:
    from dphmm.markov import reverses
    from dphmm.markov.model import MarkovModel

    model = MarkovModel.load(path)
    return {ALL: (reverses(model.transition, model.initial, times), model.transition)}


def _of_releases(path: Path, releases: Path, person: str | None) -> PopulationLeakage:
    from dphmm.evaluation.release_leakage import leakage_of_releases
    from dphmm.leakage import PopulationLeakage
    from dphmm.markov.model import MarkovModel
    from dphmm.writers import read_releases

    model, table = MarkovModel.load(path), read_releases(releases)
    present = sorted(set(table["user"].tolist()))
    if person is None and len(present) > 1:
        raise ConfigurationError(f"{releases} holds {len(present)} users; say which with --of, such as {present[0]}")
    name = present[0] if person is None else person
    leakage, _ = leakage_of_releases(model, table, name)
    return PopulationLeakage({name: leakage})


def _budgets(epsilon: float | None, steps: int | None, epsilons: Path | None) -> FloatArray:
    import numpy as np

    from dphmm.leakage.accumulate import as_budgets
    from dphmm.leakage.files import read_numbers

    if epsilons is not None:
        if epsilon is not None or steps is not None:
            raise ConfigurationError("--epsilons and --epsilon/--steps are both given; use one of them")
        return as_budgets(read_numbers(epsilons))
    if epsilon is None or steps is None:
        raise ConfigurationError("no budgets are given; give --epsilon and --steps, or --epsilons")
    return as_budgets(np.full(steps, epsilon))


def _functions(matrices: dict[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Each user's loss functions, built once for leakage and bounds."""
    from dphmm.leakage.loss_function import as_loss_function

    built: dict[str, tuple[Any, Any]] = {}
    for name, (past, future) in matrices.items():
        owner = f"user {name}: " if len(matrices) > 1 else ""
        first = None if past is None else as_loss_function(past, f"{owner}backward matrix")
        second = None if future is None else as_loss_function(future, f"{owner}forward matrix")
        built[name] = first, first if past is future else second
    return built


def _with_initial(matrices: dict[str, tuple[Any, Any]], initial: Path, times: int) -> dict[str, tuple[Any, Any]]:
    from dphmm.leakage.files import read_numbers
    from dphmm.markov import reverses

    start = read_numbers(initial)
    known: dict[str, tuple[Any, Any]] = {}
    for name, (past, future) in matrices.items():
        if past is not None or future is None:
            raise ConfigurationError("--initial makes the backward matrix from --forward; give that, and no --backward")
        known[name] = reverses(future, start, times), future
    return known


def _bounds(known: dict[str, tuple[Any, Any]], epsilon: float) -> dict[str, dict[str, Any]]:
    """For each user and side, what leakage stays below if releases of at most ε go on for ever."""
    bounds: dict[str, dict[str, Any]] = {}
    if epsilon == 0:
        return bounds
    for name, functions in known.items():
        bounds[name] = {}
        for side, function in zip(("backward", "forward"), functions, strict=True):
            if function is not None:
                found = function.supremum(epsilon)
                value = found.value if math.isfinite(found.value) else None
                bounds[name][side] = {"epsilon": epsilon, "supremum": value, "rows": list(found.rows)}
    return bounds


def _record(found: PopulationLeakage, bounds: dict[Any, Any]) -> dict[str, Any]:
    return {
        "temporal": found.temporal.tolist(),
        "who": list(found.who),
        "worst": found.worst,
        "users": {name: _one(leakage) | {"bounds": bounds.get(name, {})} for name, leakage in found.by_user.items()},
    }


def _one(leakage: Leakage) -> dict[str, Any]:
    return {
        "epsilons": leakage.epsilons.tolist(),
        "backward": leakage.backward.tolist(),
        "forward": leakage.forward.tolist(),
        "temporal": leakage.temporal.tolist(),
        "user_level": leakage.user_level,
    }


def _print(found: PopulationLeakage, bounds: dict[Any, Any]) -> None:
    several = len(found.by_user) > 1
    first: Any = next(iter(found.by_user.values()))
    rows = []
    for t, who in enumerate(found.who):
        leakage = found.by_user[who] if several else first
        numbers = (leakage.epsilons[t], leakage.backward[t], leakage.forward[t], leakage.temporal[t])
        rows.append([str(t + 1), *(f"{value:.6g}" for value in numbers), *([str(who)] if several else [])])
    columns = ["time", "ε", "BPL", "FPL", "TPL", *(["of user"] if several else [])]
    say_table(columns, rows, "Temporal privacy leakage")
    click.echo(f"largest TPL {found.worst:.6g}; all times together (user level) {first.user_level:.6g}")
    for name, sides in bounds.items():
        for side, bound in sides.items():
            owner = f"{name}: " if several else ""
            value, pair = bound["supremum"], " and ".join(str(row) for row in bound["rows"])
            limit = f"stays below {value:.6g}" if value is not None else "grows without bound"
            click.echo(f"{owner}{side} leakage {limit} at {bound['epsilon']:g} a release (rows {pair})")
