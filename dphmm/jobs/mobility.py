"""How people move, as one value: out of a model or a matrix; and budgets of a stream, which may depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray
from dphmm.counts.stream import Budget, as_budgets
from dphmm.errors import ConfigurationError
from dphmm.jobs.models import Model
from dphmm.leakage import LossFunction, exact_budgets, smooth
from dphmm.leakage.loss_function import read_matrix, read_numbers
from dphmm.model import MarkovModel, reverse, reverses, stationary
from dphmm.stochastic import MatrixLike

Matrix = MatrixLike | str | Path
"""A matrix, or the CSV, NPY or NPZ file that holds one."""


@dataclass(frozen=True)
class Mobility:
    """How people move, as far as it is known.

    Parameters
    ----------
    transition
        ``(m, m)`` matrix, dense or scipy sparse, or None where nothing is known.
    initial
        ``(m,)`` distribution of the first state, or None; then the stationary one takes its place.
    model
        The model that both come from, or None.
    name
        What messages call the model.
    file
        The model's file, or None where it is in none.
    """

    transition: Any = None
    initial: FloatArray | None = None
    model: MarkovModel | None = None
    name: str = "the model"
    file: Path | None = None

    @classmethod
    @checked
    def from_source(
        cls, model: Model | None = None, transition: Matrix | None = None, smoothing: float = 0.0
    ) -> Mobility:
        """What a model or a matrix says; without either, nothing.

        Parameters
        ----------
        model
            A model, or its file.
        transition
            A matrix, or its file.
        smoothing
            Added to every probability; see `dphmm.leakage.smooth`.

        Raises
        ------
        ConfigurationError
            When both a model and a matrix are given, or smoothing and neither.
        DataFileError, StochasticError
            When a file cannot be read, or the amount of smoothing is negative.

        Examples
        --------
        >>> Mobility.from_source(transition=[[1, 0], [0, 1]], smoothing=0.5).transition
        array([[0.75, 0.25],
               [0.25, 0.75]])
        """
        if model is not None and transition is not None:
            raise ConfigurationError("--model and --transition are both given; use one of them")
        if model is None and transition is None:
            if smoothing:
                raise ConfigurationError("--smooth is given and no matrix; give --model or --transition too")
            return UNKNOWN
        if model is None:
            found = cls(as_matrix(transition))
        elif isinstance(model, MarkovModel):
            found = cls(model.transition, model.initial, model)
        else:
            learned = MarkovModel.load(model)
            found = cls(learned.transition, learned.initial, learned, f"{model}: the model", Path(model))
        return replace(found, transition=smooth(found.transition, smoothing)) if smoothing else found

    @property
    def start(self) -> FloatArray:
        """``(m,)``: where people begin, the initial distribution or else the stationary one."""
        return self.initial if self.initial is not None else stationary(self.transition)

    @property
    def backward(self) -> Any:
        """The matrix of Pr(state before | state now), as if the start were stationary: see `dphmm.model.reverse`."""
        return reverse(self.transition, self.start)

    def backwards(self, times: int) -> Iterator[Any]:
        """The same for each of the steps between a number of times: see `dphmm.model.reverses`.

        Parameters
        ----------
        times
            How many times there are; of the steps between them there is one less.

        Returns
        -------
        Iterator
            ``times - 1`` matrices ``(m, m)``, in order of time.
        """
        return reverses(self.transition, self.start, times)

    def pasts(self, times: int, limit: float) -> Iterator[Any]:
        """The same as an account of leakage takes them: a loss function in place of all matrices that have one.

        Where people can be ceases to change after a while, and with it which entries are positive. If two rows have
        disjoint supports then, so they have ever after, and nothing is forgotten: L(α) = α. Otherwise the matrices
        come to rest in the last bit some time.

        Parameters
        ----------
        times
            How many times there are; of the steps between them there is one less.
        limit
            An α that no leakage passes.

        Yields
        ------
        matrix or LossFunction
            What is known of each step, in order of time.
        """
        before: Any = None
        is_settled = False
        for step, matrix in enumerate(self.backwards(times), start=1):
            yield matrix
            is_last = is_settled and _equal(before, matrix)
            if before is not None and not is_settled:
                is_settled = np.array_equal(_columns(before), _columns(matrix))
                is_last = is_settled and LossFunction(matrix, min(limit, _AT_ONCE)).is_identity
            if is_last:
                yield from repeat(LossFunction(matrix, limit), times - 1 - step)
                return
            before = matrix


_AT_ONCE = 1e-6
"""An α up to which a loss function is made at once; whether two rows have disjoint supports, it tells."""


def _columns(matrix: Any) -> BoolArray:
    """Which columns of a matrix hold anything: where people can have been."""
    return np.asarray(matrix.sum(axis=0) > 0).ravel()


def _equal(one: Any, other: Any) -> bool:
    if sp.issparse(one):
        return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("data", "indices", "indptr"))
    return np.array_equal(one, other)


UNKNOWN = Mobility()
"""Nothing is known of how people move."""


def as_matrix(matrix: Matrix | None) -> Any:
    """A matrix as it is, or out of its file.

    Raises
    ------
    DataFileError
        As `dphmm.leakage.loss_function.read_matrix`.
    """
    return read_matrix(matrix) if isinstance(matrix, str | Path) else matrix


@dataclass(frozen=True)
class Budgets:
    """What each time's release may spend, said in exactly one way.

    Parameters
    ----------
    epsilon
        The budget of every time; a number, or a text such as ``"1/3"``.
    epsilons
        One for each time, or a file of them.
    alpha
        A level at which they keep temporal leakage, under a `Mobility`. As of ``dphmm budget`` these suppose that the
        distribution which people start in is stationary.

    Raises
    ------
    ConfigurationError
        When not exactly one is given.
    BudgetError
        When the budget of every time is not positive.
    """

    epsilon: Budget | None = None
    epsilons: Sequence[Budget] | FloatArray | Path | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        if sum(choice is not None for choice in (self.epsilon, self.epsilons, self.alpha)) != 1:
            raise ConfigurationError("no single budget is given; give one of --epsilon, --epsilons and --alpha")
        if self.epsilon is not None:
            as_budgets(self.epsilon, 1)  # refuses what is none

    def resolve(self, times: int, mobility: Mobility) -> list[Any]:
        """A rational for each of a number of times.

        Parameters
        ----------
        times
            How many times there are.
        mobility
            How people move, for budgets that keep a level.

        Returns
        -------
        list of Fraction
            ``times`` budgets, positive.

        Raises
        ------
        ConfigurationError
            When a level is given and it is not known how people move.
        BudgetError
            For budgets that are not positive, or too few or many; or where no budget keeps the level.
        """
        given = self.epsilon if self.epsilons is None else self.epsilons
        if given is not None:
            return as_budgets(read_numbers(given).tolist() if isinstance(given, Path) else given, times)
        if mobility.transition is None:
            raise ConfigurationError("--alpha depends on how people move; give --model or --transition")
        found = exact_budgets(mobility.backward, mobility.transition, self.alpha or 0.0, times)
        return as_budgets(found.tolist(), times)
