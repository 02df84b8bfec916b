"""What the commands on count streams share: how people move, the places, and budgets over time, from options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.arrays import FloatArray
    from dphmm.markov.model import MarkovModel


@dataclass(frozen=True)
class Mobility:
    """How people move, as far as options say it.

    Attributes
    ----------
    transition
        ``(m, m)`` matrix, or None where nothing is known.
    initial
        ``(m,)`` distribution of the first state, or None.
    model
        The model that both come from, or None.
    """

    transition: Any
    initial: FloatArray | None
    model: MarkovModel | None


def mobility_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `read_mobility`."""
    for option in (
        click.option(
            "--smooth", type=float, default=0.0, metavar="AMOUNT", help="Added to every probability before use."
        ),
        click.option("--transition", type=click.Path(path_type=Path), help="A matrix in a CSV, NPY or NPZ file."),
        click.option("--model", type=click.Path(path_type=Path), help="A model that 'dphmm learn' wrote."),
    ):
        command = option(command)
    return command


def read_mobility(model: Path | None, transition: Path | None, smooth: float) -> Mobility:
    """The transition matrix that the options describe.

    Raises
    ------
    ConfigurationError
        When both a model and a matrix are given, or smoothing and neither.
    DataFileError, StochasticError
        When a file cannot be read, or the amount of smoothing is negative.
    """
    if model is not None and transition is not None:
        raise ConfigurationError("--model and --transition are both given; use one of them")
    if model is None and transition is None:
        if smooth:
            raise ConfigurationError("--smooth is given and no matrix; give --model or --transition too")
        return Mobility(None, None, None)
    if model is not None:
        from dphmm.markov.model import MarkovModel

        learned = MarkovModel.load(model)
        return Mobility(_smoothed(learned.transition, smooth), learned.initial, learned)
    from dphmm.leakage.files import read_matrix

    return Mobility(_smoothed(read_matrix(Path(str(transition))), smooth), None, None)


def _smoothed(matrix: Any, amount: float) -> Any:
    if amount == 0:
        return matrix
    from dphmm.leakage import smooth

    return smooth(matrix, amount)


def budget_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of `read_budgets`."""
    for option in (
        click.option("--alpha", type=float, help="Budgets that keep temporal leakage at this level; with --model."),
        click.option("--epsilons", type=click.Path(path_type=Path), help="File of budgets, one for each time."),
        click.option("--epsilon", metavar="NUMBER", help="Budget of every time; a decimal number or a fraction."),
    ):
        command = option(command)
    return command


def read_budgets(
    epsilon: str | None, epsilons: Path | None, alpha: float | None, mobility: Mobility, steps: int
) -> list[Any]:
    """A budget for each time, as rationals: constant, listed, or from `dphmm.leakage`.

    Budgets for a level of temporal leakage suppose, as ``dphmm budget`` does, that the distribution from which the
    backward matrix follows is stationary: a model's initial one, or that of the matrix.

    Raises
    ------
    ConfigurationError
        When not exactly one way is chosen, or a level is given without a matrix.
    BudgetError
        For budgets that are not positive, or too few or many; or where no budget keeps the level.
    """
    from dphmm.counts.noise import as_budgets

    if sum(choice is not None for choice in (epsilon, epsilons, alpha)) != 1:
        raise ConfigurationError("no single budget is given; give one of --epsilon, --epsilons and --alpha")
    if epsilon is not None:
        return as_budgets(epsilon, steps)
    if epsilons is not None:
        from dphmm.leakage.files import read_numbers

        return as_budgets(read_numbers(epsilons).tolist(), steps)
    if mobility.transition is None:
        raise ConfigurationError("--alpha depends on how people move; give --model or --transition")
    from dphmm.leakage import exact_budgets
    from dphmm.markov import reverse

    backward = reverse(mobility.transition, _start(mobility))
    return as_budgets(exact_budgets(backward, mobility.transition, float(alpha or 0.0), steps).tolist(), steps)


def temporal_leakage(mobility: Mobility, budgets: list[Any]) -> float:
    """The greatest temporal leakage of a stream with these budgets, with the backward matrix of each of its steps.

    Where a model's initial distribution is not stationary this is another figure than the level asked for.
    """
    import numpy as np

    from dphmm.leakage import account
    from dphmm.markov import reverses

    backward = reverses(mobility.transition, _start(mobility), len(budgets))
    return float(account(backward, mobility.transition, np.array([float(budget) for budget in budgets])).worst)


def _start(mobility: Mobility) -> FloatArray:
    from dphmm.markov import stationary

    return mobility.initial if mobility.initial is not None else stationary(mobility.transition)
