"""What a stream of private releases leaks: ``dphmm leak``; budgets that keep leakage at a level: ``dphmm budget``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli import inputs
from dphmm.cli.console import FILE, PATH, Once, cell, echo, say_table
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dphmm.arrays import FloatArray
    from dphmm.audit.realised import Realised
    from dphmm.jobs.leaks import Adversaries, Adversary, Leaked
    from dphmm.leakage import Supremum


knowledge_options = inputs.options(
    click.option("--backward", type=PATH, help="Matrix of Pr(state before | state now)."),
    click.option("--forward", type=PATH, help="Matrix of Pr(state after | state now)."),
    click.option(
        "--user",
        "users",
        nargs=3,
        multiple=True,
        metavar="NAME BACKWARD FORWARD",
        help="One of several users with matrices of their own; - for a matrix that is not known. Repeat it.",
    ),
)
"""What an adversary knows."""


def read_adversaries(given: Mapping[str, Any]) -> Adversaries:
    """What the `knowledge_options`, ``--model`` and, where a command has it, ``--initial`` say.

    Raises
    ------
    ConfigurationError
        When no matrix is given, several forms are, or a user occurs twice.
    DataFileError
        When a file cannot be read.
    """
    from dphmm.jobs.leaks import EVERYONE
    from dphmm.jobs.mobility import Mobility, as_matrix
    from dphmm.leakage.loss_function import read_numbers

    backward, forward, initial = given["backward"], given["forward"], given.get("initial")
    if given["model"] is not None:
        if backward or forward or given["users"] or initial:
            raise ConfigurationError("--model and matrices of other files are both given; use one of them")
        return Mobility.from_source(given["model"])
    if given["users"] and (backward or forward):
        raise ConfigurationError("--user and --backward/--forward are both given; use one of them")
    found: dict[str, Adversary] = {}
    for name, *texts in given["users"] or [(EVERYONE, backward, forward)]:
        past, future = (None if text in (None, "-") else Path(text) for text in texts)
        future = past if past == future else future  # one file is one matrix, whose loss function is built once
        if past is None and future is None:
            raise ConfigurationError(f"no matrix is given for {name}; give --backward, --forward or both")
        if name in found:
            raise ConfigurationError(f"user {name} is given twice; give each user once")
        if initial is not None and (past is not None or future is None):
            raise ConfigurationError("--initial makes the backward matrix from --forward; give that, and no --backward")
        found[name] = (past, future) if initial is None else Mobility(as_matrix(future), read_numbers(initial))
    return found


def check_picture(path: Path | None, overwrite: bool = False) -> None:
    """Refuse a picture that cannot be drawn before anything is computed, as `dphmm.plots.figures.check_picture`."""
    if path is not None:
        from dphmm.plots import figures

        figures.check_picture(path, overwrite)


def draw(path: Path, paint: Callable[[Axes], None], overwrite: bool = False) -> None:
    """One picture with one pair of axes, written to a file."""
    from dphmm.plots.figures import new_figure, save_picture

    figure, ax = new_figure(7.0, 4.2)
    paint(ax)
    save_picture(figure, path, overwrite, private=False)


@click.command(cls=Once, name="leak")
@knowledge_options
@click.option("--model", type=PATH, help="A learned model: its matrix, and that back by Bayes.")
@click.option("--releases", type=PATH, help="Releases made under --model: account for them.")
@click.option("--of", "person", help="Whose releases; needed where the file has several users.")
@click.option("--initial", type=PATH, help="Distribution of the first state; with --forward.")
@click.option("--steps", type=click.IntRange(1, 10_000_000), help="Number of times, with --epsilon of each.")
@click.option("--epsilons", type=PATH, help="File of budgets, one for each time.")
@click.option("--window", type=int, metavar="W", help="Say also what leaks of any W times together, at most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", type=FILE, help="Draw the leakage over time into this new file.")
@click.option("--certificate", type=FILE, help="What every figure follows from, for scripts/dphmm-verify: a new file.")
@inputs.release_options
def leak_command(releases: Path | None, person: str | None, as_json: bool, plot: Path | None, **given: Any) -> None:
    """Temporal privacy leakage of a stream of releases.

    Matrices are CSV (one row a line), NPY or NPZ files. With --initial the backward matrix of every step follows from
    --forward by Bayes' rule; --model does the same with a learned model. With --releases the budget of a time is what
    its release may tell about any two possible states (constrained factor times epsilon), and 0 where nothing was
    released. For every time the table has the budget, the leakage through releases up to then (BPL), from then on
    (FPL) and through all of them (TPL): limits for whatever might have been drawn. With --policy (and the other
    settings, as 'dphmm audit session' takes them) follows what the releases really told: how far each moved the log
    odds of two places that the policy joins, all together and those of a day, which ones ruled places out, and how far
    off the best guess of an adversary is. Releases that can rule a possible place out, as those of zones with noise of
    their own, have no limit; what they really told is finite.
    """
    from dphmm.jobs.leaks import leak, leak_of_releases, realised_of_releases
    from dphmm.release.settings import NAMES

    certificate, window = given["certificate"], given["window"]
    check_picture(plot)
    told = None
    if releases is None:
        if any(given.get(name) is not None for name in (*NAMES, *inputs.AIMS) if name != "epsilon"):
            raise ConfigurationError("--policy is that of --releases; leave it out, or give the file")
        budgets = _budgets(given["epsilon"], given["steps"], given["epsilons"])
        found = leak(read_adversaries(given), budgets, certificate)
    elif (
        given["model"] is None
        or any(given[name] for name in ("backward", "forward", "users", "initial", "steps", "epsilons"))
        or (given["epsilon"] is not None and given["policy"] is None)
    ):
        raise ConfigurationError("--releases goes with --model and nothing else: the file says the budgets")
    else:
        made = inputs.stated_settings_of(given)
        told = None if made is None else realised_of_releases(given["model"], releases, made, person)
        found = leak_of_releases(given["model"], releases, person, certificate)
        if found.unbounded and plot is not None:
            raise ConfigurationError("a release can rule a possible place out: leakage is infinite; leave --plot out")
    widest = None if window is None else _widest(found, window)
    if as_json:
        more = {"window": widest, "realised": None if told is None else told.facts()}
        echo(json.dumps(_record(found) | {name: one for name, one in more.items() if one is not None}, indent=2))
    else:
        _print(found, widest)
        if told is not None:
            _print_realised(told)
    if plot is not None:
        from dphmm.plots.curves import leakage_over_time

        worst = max(found.leakage.by_user.values(), key=lambda leakage: leakage.worst)
        draw(plot, lambda ax: leakage_over_time(ax, worst))


def _print_realised(told: Realised) -> None:
    facts = told.facts()

    def shown(key: str) -> str:
        return f"{facts[key]:.4g}"

    among = "places that the policy joins" if told.is_by_edge else "places that the policy joins by some path"
    first, second = facts["worst_places"]
    echo(
        f"really told, of two {among}: a release moved their log odds by {shown('moved_median')} (median), "
        f"{shown('moved_most')} at most; all together by {shown('so_far_most')} at most (states {first} and {second}, "
        f"up to release {facts['worst_release']})"
        + ("" if not facts["last_day_is_known"] else f"; those of 24 hours by {shown('last_day_most')} at most")
    )
    if told.releases_that_ruled_out:
        _print_ruled_out(facts)
    echo(
        f"a release told {facts['bits_median']:.3g} bits (median) of where the person was, "
        f"{facts['bits_most']:.3g} at most"
    )
    if facts["moments_open"]:
        echo(f"at {facts['moments_open']:,} of them the likeliest place was open, which is released as it is")
    if facts["adversary_error_m_median"] is not None:
        echo(
            f"an adversary who knows the model is expected to err by {facts['adversary_error_m_median']:,.0f} m "
            f"(median) at each {'other ' if facts['moments_open'] else ''}release, "
            f"{facts['adversary_error_m_least']:,.0f} m at least, and was {facts['adversary_certainty_most']:.2f} "
            "sure of one place at most; in hindsight: dphmm audit session"
        )


def _print_ruled_out(facts: Mapping[str, Any]) -> None:
    if facts["is_by_edge"]:
        so_far = (
            f"both of {facts['vacuous']} joined pairs are ruled out by now, and nothing is said of one against the "
            f"other; one alone of {facts['told_apart']}, which tells the two apart for certain"
        )
    else:
        so_far = (
            f"{facts['vacuous'] + facts['told_apart']} places are ruled out by now, {facts['told_apart']} of them by a "
            "release that left others of their component possible"
        )
    echo(f"{facts['releases_that_ruled_out']} releases ruled places out, of which these sums count none; {so_far}")
    if facts["worst_releases"] is not None:
        first, second = facts["worst_places"]
        echo(
            "of states {} and {}, {compared} releases compare them; {ruled_out_first} ruled out the first, "
            "{ruled_out_second} the second, {ruled_out_both} both".format(first, second, **facts["worst_releases"])
        )


def _budgets(epsilon: float | None, steps: int | None, epsilons: Path | None) -> FloatArray:
    import numpy as np

    from dphmm.leakage.loss_function import read_numbers

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
    from dphmm.facts import plain
    from dphmm.jobs.leaks import LEFT_OUT

    stated = {"temporal": every.temporal.tolist(), "who": list(every.who), "worst": every.worst, "users": users}
    infinite = [t + 1 for t in found.unbounded]
    record: dict[str, Any] = plain({**stated, "forgets": found.forgets, "unbounded": infinite, "left_out": LEFT_OUT})
    return record


def _bound(epsilon: float, bound: Supremum) -> dict[str, Any]:
    supremum = bound.value if math.isfinite(bound.value) else None
    return {"epsilon": epsilon, "supremum": supremum, "rows": list(bound.rows)}


def _widest(found: Leaked, times: int) -> dict[str, Any]:
    """The largest leakage of any user about a number of consecutive times together, and which they are, from 1."""
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
    if found.unbounded:  # without a line for what has no limit on either side
        told = [t for t in told if math.isfinite(first.backward[t]) or math.isfinite(first.forward[t])]
    for t in told:
        who = every.who[t]
        one = every.by_user[who]
        numbers = (one.epsilons[t], one.backward[t], one.forward[t], one.temporal[t])
        rows.append([str(t + 1), *(f"{value:.6g}" for value in numbers), *([str(who)] if several else [])])
    columns = ["time", "ε", "BPL", "FPL", "TPL", *(["of user"] if several else [])]
    if rows:
        say_table(columns, rows, "Temporal privacy leakage")
    if found.unbounded:
        echo(
            f"no limit: the releases at {len(found.unbounded)} times, the first at {found.unbounded[0] + 1}, can rule "
            "a possible place out, so that leakage is infinite; given the --policy, what they really told follows"
        )
    else:
        echo(f"largest TPL {every.worst:.6g}; all times together (user level) {first.user_level:.6g}")
    if widest is not None:
        which = "{first} to {last}".format(**widest) + (f" of user {cell(widest['user'])}" if several else "")
        echo(f"largest over {widest['times']} times together {widest['largest']:.6g}, at times {which}")
    for name, sides in found.suprema.items():
        for side, bound in sides.items():
            owner, pair = f"{cell(name)}: " if several else "", " and ".join(map(str, bound.rows))
            limit = f"stays below {bound.value:.6g}" if math.isfinite(bound.value) else "grows without bound"
            echo(f"{owner}{side} leakage {limit} at {found.epsilon:g} a release (rows {pair})")
    if len(told) < every.temporal.size and not found.unbounded:
        echo(f"of {every.temporal.size:,} times those with a release are listed")
    if not found.forgets:
        echo(
            "the model has too many transitions to follow what is forgotten in a step: leakage is told as the sum of "
            "all that was spent, which it does not exceed"
        )
    for what in LEFT_OUT:
        echo(f"not counted: {what}")


@click.command(cls=Once, name="budget")
@knowledge_options
@click.option("--model", type=PATH, help="A learned model: its matrix, and its reverse.")
@click.option("--alpha", type=float, required=True, help="The leakage that no time may pass.")
@click.option("--steps", type=int, help="Number of releases; left out, one budget for a stream of any length.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", type=FILE, help="Draw budgets and leakage into this new file.")
def budget_command(alpha: float, steps: int | None, as_json: bool, plot: Path | None, **given: Any) -> None:
    """Budgets under which temporal privacy leakage stays at or below ALPHA at every time.

    Without --steps: the largest constant budget, for a stream of any length. With it: budgets under which one user's
    leakage is ALPHA at every time, or, where states follow each other so closely that there are none, ALPHA / T at each
    of T times, which no correlation carries past ALPHA. With several users: at each time the least of theirs. With
    --model the backward matrix is the model's reverse under its initial distribution, as if that were stationary.
    """
    from dphmm.jobs.leaks import budget, knowledge

    check_picture(plot)
    known = knowledge(read_adversaries(given))
    found = budget(known, alpha, steps)
    budgets = found.budgets.tolist()
    if as_json:
        record = {
            "alpha": alpha,
            "constant": steps is None,
            "budgets": budgets,
            "tightest": found.tightest,
            "users": {str(name): values.tolist() for name, values in found.by_user.items()},
            "composed": {str(name): why for name, why in found.composed.items()},
        }
        echo(json.dumps(record, indent=2))
    elif steps is None:
        echo(f"spend {budgets[0]:.6g} at every time: leakage never passes {alpha:g}")
    else:
        rows = [[str(t), f"{value:.6g}"] for t, value in enumerate(budgets, start=1)]
        say_table(["time", "ε"], rows, f"Budgets for leakage {alpha:g} at every time")
        for name, why in found.composed.items():
            owner = "" if len(known) == 1 else f"{cell(str(name))}: "
            echo(f"{owner}{alpha:g} / {steps} at each time, the sum of which no correlation passes; {why}")
    if len(known) > 1 and not as_json:
        echo(f"the tightest user is {cell(str(found.tightest))}")
    if plot is not None:
        import numpy as np

        from dphmm.plots.curves import budgets_over_time

        shown = np.repeat(found.budgets, 30) if steps is None else found.budgets
        past, future = known[str(found.tightest)]
        draw(plot, lambda ax: budgets_over_time(ax, past, future, shown, alpha))
