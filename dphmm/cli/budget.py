"""``dphmm budget``: budgets that keep temporal privacy leakage at a level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from dphmm.cli.adversary import check_picture, draw, knowledge_options, read_adversaries
from dphmm.cli.once import Once
from dphmm.cli.summary import say_table
from dphmm.cli.terminal import cell, echo


@click.command(cls=Once, name="budget")
@knowledge_options
@click.option("--model", type=click.Path(path_type=Path), help="A learned model: its matrix, and its reverse.")
@click.option("--alpha", type=float, required=True, help="The leakage that no time may pass.")
@click.option("--steps", type=int, help="Number of releases; left out, one budget for a stream of any length.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw budgets and leakage into this new file.")
def command(alpha: float, steps: int | None, as_json: bool, plot: Path | None, **given: Any) -> None:
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

        from dphmm.plots.leakage import budgets_over_time

        shown = np.repeat(found.budgets, 30) if steps is None else found.budgets
        past, future = known[str(found.tightest)]
        draw(plot, lambda ax: budgets_over_time(ax, past, future, shown, alpha))
