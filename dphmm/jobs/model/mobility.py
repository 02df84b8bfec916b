"""Mobility of users, and budgets of a stream that may depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sp

from dphmm.arrays import BoolArray, FloatArray
from dphmm.counts.noisy_stream import Budget, as_budgets
from dphmm.errors import ConfigurationError, StochasticError
from dphmm.jobs.model.loading import Model
from dphmm.leakage import LossFunction, exact_budgets, smooth
from dphmm.leakage.input_files import read_budgets, read_matrix
from dphmm.model import MarkovModel, compute_stationary_distribution, reverse, reverse_by_step
from dphmm.stochastic_matrix import MatrixLike
from dphmm.tolerances import MAX_SCALE
from dphmm.validation import Interval, check_arguments

# A matrix, or a CSV, NPY or NPZ file that contains one.
Matrix = MatrixLike | str | Path


@dataclass(frozen=True)
class Mobility:
    """The transition matrix and the initial distribution of users.

    Parameters
    ----------
    transition
        ``(m, m)`` matrix, dense or scipy sparse; None if unknown.
    initial
        ``(m,)``: the distribution of the first state. None means the stationary distribution.
    model
        The model with both, or None.
    name
        The name of the model in messages.
    file
        The model's file, or None.
    """

    transition: Any = None
    initial: FloatArray | None = None
    model: MarkovModel | None = None
    name: str = "the model"
    file: Path | None = None

    @classmethod
    @check_arguments
    def from_source(
        cls,
        model: Model | None = None,
        transition: Matrix | None = None,
        smoothing: Annotated[float, Interval(0, MAX_SCALE, error=StochasticError)] = 0.0,
    ) -> Mobility:
        """Create the mobility from a model or a matrix. Without either it is unknown.

        Parameters
        ----------
        model
            A model, or its file.
        transition
            A matrix, or its file.
        smoothing
            Added to every probability; see `dphmm.leakage.smooth`.

        Returns
        -------
        Mobility
            The mobility.

        Raises
        ------
        ConfigurationError
            If there are both a model and a matrix, or smoothing without either.
        DataFileError, StochasticError
            If a file cannot be read, or the smoothing is negative.

        Examples
        --------
        >>> Mobility.from_source(transition=[[1, 0], [0, 1]], smoothing=0.5).transition
        array([[0.75, 0.25],
               [0.25, 0.75]])
        """
        if model is not None and transition is not None:
            raise ConfigurationError("--model cannot be combined with --transition: use one of them")
        if model is None and transition is None:
            if smoothing:
                raise ConfigurationError("smooth requires --model or --transition")
            return UNKNOWN
        if model is None:
            mobility = cls(as_matrix(transition))
        elif isinstance(model, MarkovModel):
            mobility = cls(model.transition, model.initial, model)
        else:
            loaded = MarkovModel.load(model)
            mobility = cls(loaded.transition, loaded.initial, loaded, f"{model}: the model", Path(model))
        return replace(mobility, transition=smooth(mobility.transition, smoothing)) if smoothing else mobility

    @property
    def start(self) -> FloatArray:
        """The initial distribution, ``(m,)``, or else the stationary one."""
        return self.initial if self.initial is not None else compute_stationary_distribution(self.transition)

    @property
    def backward(self) -> Any:
        """The backward matrix, with `start` as the distribution of the previous state."""
        return reverse(self.transition, self.start)

    def iterate_backward_matrices(self, times: int) -> Iterator[Any]:
        """Return the backward matrix of each step. See `dphmm.model.reverse_by_step`.

        Parameters
        ----------
        times
            The number of timesteps. There is one step fewer.

        Returns
        -------
        Iterator
            ``times - 1`` matrices ``(m, m)``, in order of time.
        """
        return reverse_by_step(self.transition, self.start, times)

    def iterate_backward_losses(self, times: int, limit: float) -> Iterator[Any]:
        """Iterate over the backward matrices, and replace equal ones by one loss function.

        The set of reachable states eventually stops changing, and with it the set of positive entries. If two rows have
        disjoint supports from then on, the loss function is the identity: L(α) = α. Otherwise the matrices eventually
        converge to the last bit.

        Parameters
        ----------
        times
            The number of timesteps. There is one step fewer.
        limit
            An upper bound of the leakage α.

        Yields
        ------
        matrix or LossFunction
            One for each step, in order of time.
        """
        before: Any = None
        is_settled = False
        for step, matrix in enumerate(self.iterate_backward_matrices(times), start=1):
            yield matrix
            is_last = is_settled and _are_equal(before, matrix)
            if before is not None and not is_settled:
                is_settled = np.array_equal(_find_nonzero_columns(before), _find_nonzero_columns(matrix))
                is_last = is_settled and LossFunction(matrix, min(limit, _CHECKED_ALPHA)).is_identity
            if is_last:
                yield from repeat(LossFunction(matrix, limit), times - 1 - step)
                return
            before = matrix


# A loss function up to this α is computed quickly, and suffices to detect rows with disjoint supports.
_CHECKED_ALPHA = 1e-6


def _find_nonzero_columns(matrix: Any) -> BoolArray:
    """Return which columns of a matrix are non-zero: the possible previous states."""
    return np.asarray(matrix.sum(axis=0) > 0).ravel()


def _are_equal(first: Any, second: Any) -> bool:
    if sp.issparse(first):
        return all(
            np.array_equal(getattr(first, part), getattr(second, part)) for part in ("data", "indices", "indptr")
        )
    return np.array_equal(first, second)


# The mobility without a transition matrix.
UNKNOWN = Mobility()


def as_matrix(matrix: Matrix | None) -> Any:
    """Return a matrix unchanged, or read it from its file.

    Raises
    ------
    DataFileError
        If the file is invalid; see `dphmm.leakage.loss_function.read_matrix`.
    """
    return read_matrix(matrix) if isinstance(matrix, str | Path) else matrix


@dataclass(frozen=True)
class Budgets:
    """The budgets of the releases of a stream, specified by exactly one of three fields.

    Parameters
    ----------
    epsilon
        The budget of every timestep: a number, or a string such as ``"1/3"``.
    epsilons
        One budget for each timestep, or a file with them.
    alpha
        A bound of the temporal leakage under a `Mobility`. As with ``dphmm budget``, the initial distribution is
        assumed to be stationary.

    Raises
    ------
    ConfigurationError
        If not exactly one field is set.
    BudgetError
        If the budget of every timestep is not positive.
    """

    epsilon: Budget | None = None
    epsilons: Sequence[Budget] | FloatArray | Path | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        if sum(choice is not None for choice in (self.epsilon, self.epsilons, self.alpha)) != 1:
            raise ConfigurationError("exactly one budget is required: use one of --epsilon, --epsilons and --alpha")
        if self.epsilon is not None:
            as_budgets(self.epsilon, 1)  # raises an error if it is invalid

    def check(self, mobility: Mobility) -> None:
        """Raise the errors of `resolve` that do not depend on the number of timesteps.

        Parameters
        ----------
        mobility
            The mobility of users, required by ``alpha``.

        Raises
        ------
        ConfigurationError, BudgetError
            As for `resolve`.
        """
        if self.epsilons is None:
            self.resolve(1, mobility)
        else:
            as_budgets(self._numbers, len(self._numbers))

    @cached_property
    def _numbers(self) -> Any:
        """The budgets in `epsilons`. A file is read once, because a pipe is empty afterwards."""
        return read_budgets(self.epsilons) if isinstance(self.epsilons, Path) else self.epsilons

    def resolve(self, times: int, mobility: Mobility) -> list[Any]:
        """Return the budget of each timestep as a rational number.

        Parameters
        ----------
        times
            The number of timesteps.
        mobility
            The mobility of users, required by ``alpha``.

        Returns
        -------
        list of Fraction
            ``times`` budgets, positive.

        Raises
        ------
        ConfigurationError
            If ``alpha`` is set and the mobility is unknown.
        BudgetError
            If a budget is not positive, their number is wrong, or no budget satisfies the bound.
        """
        budgets = self.epsilon if self.epsilons is None else self._numbers
        if budgets is not None:
            return as_budgets(budgets, times)
        if mobility.transition is None:
            raise ConfigurationError("--alpha requires a mobility model: use --model or --transition")
        budgets_for_alpha = exact_budgets(mobility.backward, mobility.transition, self.alpha or 0.0, times)
        return as_budgets(budgets_for_alpha.tolist(), times)
