"""``dphmm leak``: what a stream of private releases leaks to an adversary who knows how the data move."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.adversary import check_picture, draw, knowledge_options, read_adversaries
from dphmm.cli.summary import say_table
from dphmm.cli.terminal import cell, echo
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.arrays import FloatArray
    from dphmm.jobs.leaks import Leaked
    from dphmm.leakage import Supremum


@click.command(name="leak")
@knowledge_options
@click.option("--model", type=click.Path(path_type=Path), help="A learned model: its matrix, and that back by Bayes.")
@click.option("--releases", type=click.Path(path_type=Path), help="Releases made under --model: account for them.")
@click.option("--of", "person", help="Whose releases; needed where the file has several users.")
@click.option("--initial", type=click.Path(path_type=Path), help="Distribution of the first state; with --forward.")
@click.option("--epsilon", type=float, help="Budget of every time; with --steps.")
@click.option("--steps", type=click.IntRange(1, 10_000_000), help="Number of times.")
@click.option("--epsilons", type=click.Path(path_type=Path), help="File of budgets, one for each time.")
@click.option("--window", type=int, metavar="W", help="Say also what leaks of any W times together, at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the leakage over time into this new file.")
def command(
    releases: Path | None, person: str | None, window: int | None, as_json: bool, plot: Path | None, **given: Any
) -> None:
    """Temporal privacy leakage of a stream of releases.

    Matrices are CSV (one row a line), NPY or NPZ files. With --initial the backward matrix of every step follows from
    --forward by Bayes' rule; --model does the same with a learned model. With --releases the budget of a time is what
    its release may tell about any two possible states (constrained factor times epsilon), and 0 where nothing was
    released. For every time the table has the budget, the leakage through releases up to then (BPL), from then on
    (FPL) and through all of them (TPL).
    """
    from dphmm.jobs.leaks import leak, leak_of_releases

    check_picture(plot)
    if releases is None:
        budgets = _budgets(given["epsilon"], given["steps"], given["epsilons"])
        found = leak(read_adversaries(given), budgets)
    elif given["model"] is None or any(value for name, value in given.items() if name != "model"):
        raise ConfigurationError("--releases goes with --model and nothing else: the file says the budgets")
    else:
        found = leak_of_releases(given["model"], releases, person)
    widest = None if window is None else _widest(found, window)
    if as_json:
        echo(json.dumps(_record(found) | ({} if widest is None else {"window": widest}), indent=2))
    else:
        _print(found, widest)
    if plot is not None:
        from dphmm.plots.leakage import leakage_over_time

        worst = max(found.leakage.by_user.values(), key=lambda leakage: leakage.worst)
        draw(plot, lambda ax: leakage_over_time(ax, worst))


def _budgets(epsilon: float | None, steps: int | None, epsilons: Path | None) -> FloatArray:
    import numpy as np

    from dphmm.leakage.files import read_numbers

    if epsilons is not None:
        if epsilon is not None or steps is not None:
            raise ConfigurationError("--epsilons and --epsilon/--steps are both given; use one of them")
        return read_numbers(epsilons)
    if epsilon is None or steps is None:
        raise ConfigurationError("no budgets are given; give --epsilon and --steps, or --epsilons")
    return np.full(steps, epsilon)


def _record(found: Leaked) -> dict[str, Any]:
    every, users = found.leakage, {}
    for name, one in every.by_user.items():
        curves = {what: getattr(one, what).tolist() for what in ("epsilons", "backward", "forward", "temporal")}
        bounds = {side: _bound(found.epsilon, bound) for side, bound in found.suprema.get(str(name), {}).items()}
        users[name] = {**curves, "user_level": one.user_level, "bounds": bounds}
    from dphmm.jobs.leaks import LEFT_OUT

    stated = {"temporal": every.temporal.tolist(), "who": list(every.who), "worst": every.worst, "users": users}
    return {**stated, "left_out": LEFT_OUT}


def _bound(epsilon: float, bound: Supremum) -> dict[str, Any]:
    supremum = bound.value if math.isfinite(bound.value) else None
    return {"epsilon": epsilon, "supremum": supremum, "rows": list(bound.rows)}


def _widest(found: Leaked, times: int) -> dict[str, Any]:
    """The largest leakage of any user about so many consecutive times together, and which they are, from 1."""
    largest = {name: one.largest_window(times) for name, one in found.leakage.by_user.items()}
    who = max(largest, key=lambda name: largest[name][0])
    leakage, start = largest[who]
    return {"times": times, "largest": leakage, "first": start + 1, "last": start + times, "user": str(who)}


def _print(found: Leaked, widest: dict[str, Any] | None) -> None:
    from dphmm.jobs.leaks import LEFT_OUT

    every = found.leakage
    several = len(every.by_user) > 1
    first = next(iter(every.by_user.values()))
    rows = []
    for t, who in enumerate(every.who):
        one = every.by_user[who]
        numbers = (one.epsilons[t], one.backward[t], one.forward[t], one.temporal[t])
        rows.append([str(t + 1), *(f"{value:.6g}" for value in numbers), *([str(who)] if several else [])])
    columns = ["time", "ε", "BPL", "FPL", "TPL", *(["of user"] if several else [])]
    say_table(columns, rows, "Temporal privacy leakage")
    echo(f"largest TPL {every.worst:.6g}; all times together (user level) {first.user_level:.6g}")
    if widest is not None:
        which = "{first} to {last}".format(**widest) + (f" of user {cell(widest['user'])}" if several else "")
        echo(f"largest over {widest['times']} times together {widest['largest']:.6g}, at times {which}")
    for name, sides in found.suprema.items():
        for side, bound in sides.items():
            owner, pair = f"{cell(name)}: " if several else "", " and ".join(map(str, bound.rows))
            limit = f"stays below {bound.value:.6g}" if math.isfinite(bound.value) else "grows without bound"
            echo(f"{owner}{side} leakage {limit} at {found.epsilon:g} a release (rows {pair})")
    for what in LEFT_OUT:
        echo(f"not counted: {what}")
