"""``dphmm leak``: what a stream of private releases leaks to an adversary who knows how the data move."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.adversary import check_picture, draw, knowledge_options, read_adversaries
from dphmm.cli.once import Once
from dphmm.cli.summary import say_table
from dphmm.cli.terminal import cell, echo
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.arrays import FloatArray
    from dphmm.audit.realised import Realised
    from dphmm.jobs.leaks import Leaked
    from dphmm.leakage import Supremum


@click.command(cls=Once, name="leak")
@knowledge_options
@click.option("--model", type=click.Path(path_type=Path), help="A learned model: its matrix, and that back by Bayes.")
@click.option("--releases", type=click.Path(path_type=Path), help="Releases made under --model: account for them.")
@click.option("--policy", help="That of --releases: say also what they really told. See 'dphmm audit session'.")
@click.option("--of", "person", help="Whose releases; needed where the file has several users.")
@click.option("--initial", type=click.Path(path_type=Path), help="Distribution of the first state; with --forward.")
@click.option("--epsilon", type=float, help="Budget of every time; with --steps.")
@click.option("--steps", type=click.IntRange(1, 10_000_000), help="Number of times.")
@click.option("--epsilons", type=click.Path(path_type=Path), help="File of budgets, one for each time.")
@click.option("--window", type=int, metavar="W", help="Say also what leaks of any W times together, at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the leakage over time into this new file.")
def command(
    releases: Path | None,
    person: str | None,
    policy: str | None,
    window: int | None,
    as_json: bool,
    plot: Path | None,
    **given: Any,
) -> None:
    """Temporal privacy leakage of a stream of releases.

    Matrices are CSV (one row a line), NPY or NPZ files. With --initial the backward matrix of every step follows from
    --forward by Bayes' rule; --model does the same with a learned model. With --releases the budget of a time is what
    its release may tell about any two possible states (constrained factor times epsilon), and 0 where nothing was
    released. For every time the table has the budget, the leakage through releases up to then (BPL), from then on
    (FPL) and through all of them (TPL): limits for whatever might have been drawn. With --policy follows what the
    releases really told: how far each moved the log odds of two places that the policy joins, all together and those of
    a day, and how far off the best guess of an adversary is.
    """
    from dphmm.jobs.leaks import leak, leak_of_releases, realised_of_releases

    check_picture(plot)
    told = None
    if releases is None:
        if policy is not None:
            raise ConfigurationError("--policy is that of --releases; leave it out, or give the file")
        budgets = _budgets(given["epsilon"], given["steps"], given["epsilons"])
        found = leak(read_adversaries(given), budgets)
    elif given["model"] is None or any(value for name, value in given.items() if name != "model"):
        raise ConfigurationError("--releases goes with --model and nothing else: the file says the budgets")
    else:
        found = leak_of_releases(given["model"], releases, person)
        told = None if policy is None else realised_of_releases(given["model"], releases, policy, person)
    widest = None if window is None else _widest(found, window)
    if as_json:
        more = {"window": widest, "realised": None if told is None else told.facts()}
        echo(json.dumps(_record(found) | {name: one for name, one in more.items() if one is not None}, indent=2))
    else:
        _print(found, widest)
        if told is not None:
            _print_realised(told)
    if plot is not None:
        from dphmm.plots.leakage import leakage_over_time

        worst = max(found.leakage.by_user.values(), key=lambda leakage: leakage.worst)
        draw(plot, lambda ax: leakage_over_time(ax, worst))


def _print_realised(told: Realised) -> None:
    facts = told.facts()

    def shown(key: str) -> str:
        return "without limit" if facts[key] is None else f"{facts[key]:.4g}"

    among = "places that the policy joins" if told.is_by_edge else "places that the policy joins by some path"
    first, second = facts["worst_places"]
    echo(
        f"really told, of two {among}: a release moved their log odds by {shown('moved_median')} (median), "
        f"{shown('moved_most')} at most; all together by {shown('so_far_most')} at most (states {first} and {second}, "
        f"up to release {facts['worst_release']})"
        + ("" if not facts["last_day_is_known"] else f"; those of 24 hours by {shown('last_day_most')} at most")
    )
    echo(
        f"a release told {facts['bits_median']:.3g} bits (median) of where the person was, "
        f"{facts['bits_most']:.3g} at most"
    )
    echo(
        f"whoever knows the model is expected to err by {facts['adversary_error_m_median']:,.0f} m (median) at each "
        f"release, {facts['adversary_error_m_least']:,.0f} m at least, and was {facts['adversary_certainty_most']:.2f} "
        "sure of one place at most; in hindsight: dphmm audit session"
    )


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


_MOST_ROWS = 10_000
"""Of more times than this those without a release have no line."""


def _record(found: Leaked) -> dict[str, Any]:
    every, users = found.leakage, {}
    for name, one in every.by_user.items():
        curves = {what: getattr(one, what).tolist() for what in ("epsilons", "backward", "forward", "temporal")}
        bounds = {side: _bound(found.epsilon, bound) for side, bound in found.suprema.get(str(name), {}).items()}
        users[name] = {**curves, "user_level": one.user_level, "bounds": bounds}
    from dphmm.jobs.leaks import LEFT_OUT

    stated = {"temporal": every.temporal.tolist(), "who": list(every.who), "worst": every.worst, "users": users}
    return {**stated, "forgets": found.forgets, "left_out": LEFT_OUT}


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
    told = [t for t, spent in enumerate(first.epsilons.tolist()) if spent > 0 or every.temporal.size <= _MOST_ROWS]
    for t in told:
        who = every.who[t]
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
    if len(told) < every.temporal.size:
        echo(f"of {every.temporal.size:,} times those with a release are listed")
    if not found.forgets:
        echo(
            "the model has too many transitions to follow what is forgotten in a step: leakage is told as the sum of "
            "all that was spent, which it does not exceed"
        )
    for what in LEFT_OUT:
        echo(f"not counted: {what}")
