"""Backward, forward and temporal privacy leakage over a stream of releases.

With budgets ``ε_1 … ε_T``: ``BPL_1 = ε_1`` and ``BPL_t = L^B(BPL_{t−1}) + ε_t`` (Equation 13 of the TPL paper);
``FPL_T = ε_T`` and ``FPL_t = L^F(FPL_{t+1}) + ε_t`` (Equation 15); ``TPL_t = BPL_t + FPL_t − ε_t`` (Equation 10).

They are upper bounds on the information that an adversary with these matrices gains about the state at time t from all
releases. Erratum: they need not be attained, even by one mechanism for one user, because the pair of states with the
largest loss can differ between times. They concern one time (event level); see `Leakage.window` for several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, as_floats, copy_read_only, make_read_only
from dphmm.errors import BudgetError, InvalidInputError, StochasticError
from dphmm.leakage.loss_function import Knowledge, LossFunction, as_loss_function, is_matrix, loss
from dphmm.validation import NonNegativeInt, PositiveInt, check_arguments

# One matrix for all steps, or one for each of the T − 1 steps from t to t + 1, in temporal order.
KnowledgeByTime = Knowledge | Iterable[Knowledge]


@check_arguments
@dataclass(frozen=True)
class Leakage:
    """Privacy leakage of a stream of releases, by time.

    Parameters
    ----------
    epsilons, backward, forward : FloatArray
        ``(T,)``, read-only: budgets, backward and forward privacy leakage. Infinite at times without a bound.

    Raises
    ------
    InvalidInputError
        If the arrays are not one-dimensional and of equal length.
    """

    epsilons: FloatArray
    backward: FloatArray
    forward: FloatArray

    def __post_init__(self) -> None:
        for name in ("epsilons", "backward", "forward"):
            object.__setattr__(self, name, copy_read_only(getattr(self, name)))
        shape = self.epsilons.shape
        if len(shape) != 1 or self.backward.shape != shape or self.forward.shape != shape:
            raise InvalidInputError(
                f"leakage must have one value per time, got shapes {shape}, {self.backward.shape}, {self.forward.shape}"
            )

    @cached_property
    def temporal(self) -> FloatArray:
        """Temporal privacy leakage ``(T,)``: ``BPL + FPL − ε``. Infinite if BPL or FPL is."""
        parts = self.backward + self.forward
        return make_read_only(np.where(np.isinf(parts), np.inf, parts - np.where(np.isinf(parts), 0.0, self.epsilons)))

    @property
    def worst(self) -> float:
        """The largest temporal leakage over all times: the α for which the stream is α-DP_T."""
        return float(self.temporal.max())

    @property
    def user_level(self) -> float:
        """The sum of the budgets, the level of differential privacy for all times together."""
        return math.fsum(self.epsilons)

    @check_arguments
    def window(self, start: NonNegativeInt, stop: PositiveInt) -> float:
        """Return the leakage about all states at times ``start … stop − 1`` together.

        Parameters
        ----------
        start, stop
            Indices from 0, ``0 <= start < stop <= T``.

        Returns
        -------
        float
            ``TPL`` for one time, ``BPL_start + FPL_last`` for two. For more times the budgets in between are added.
            The complete stream gives `user_level`.

        Raises
        ------
        InvalidInputError
            When the window is empty or leaves the stream.

        Examples
        --------
        >>> leakage = compute_leakage(None, [[.8, .2], [0, 1]], [.1, .1, .1])
        >>> round(leakage.window(0, 1), 4), round(leakage.window(0, 2), 4), round(leakage.window(0, 3), 4)
        (0.2471, 0.2808, 0.3)
        """
        if not 0 <= start < stop <= self.epsilons.size:
            raise InvalidInputError(
                f"window must be non-empty and within the times 0:{self.epsilons.size}, got {start}:{stop}"
            )
        if stop - start == 1:
            return float(self.temporal[start])
        between = math.fsum(self.epsilons[start + 1 : stop - 1])
        return float(self.backward[start] + between + self.forward[stop - 1])

    @check_arguments
    def largest_window(self, times: PositiveInt) -> tuple[float, int]:
        """Return the largest leakage about ``times`` consecutive times, and their start.

        Parameters
        ----------
        times
            The number of consecutive times, 1 to T.

        Returns
        -------
        leakage, start : float, int
            The largest leakage, and the index of the first time of that window.

        Raises
        ------
        InvalidInputError
            When ``times`` is below 1 or above T.

        Examples
        --------
        >>> compute_leakage(None, [[.8, .2], [0, 1]], [.1, .1, .1]).largest_window(2)
        (0.28..., 0)
        """
        count = self.epsilons.size - times + 1
        if times < 1 or count < 1:
            raise InvalidInputError(f"a window must have 1 to {self.epsilons.size} times, got {times}")
        if math.isinf(self.user_level):
            leakage = np.array([self.window(first, first + times) for first in range(count)])
        elif times == 1:
            leakage = self.temporal
        else:
            spent = np.concatenate([[0.0], np.cumsum(self.epsilons)])
            between = spent[times - 1 : times - 1 + count] - spent[1 : count + 1]
            leakage = self.backward[:count] + between + self.forward[times - 1 :]
        start = int(leakage.argmax())
        return self.window(start, start + times), start


@check_arguments
def backward_leakage(matrix: KnowledgeByTime, epsilons: npt.ArrayLike) -> FloatArray:
    """Compute backward privacy leakage: through the releases up to each time.

    Parameters
    ----------
    matrix
        ``P^B[i, j] = Pr(before = j | now = i)``: ``(n, n)``, dense or scipy sparse, a `LossFunction`, or None for an
        adversary without it; or an iterable of T − 1 of these, the first for the step from the first time to the
        second (see `dphmm.model.reverse_by_step`).
    epsilons
        ``(T,)`` non-negative budgets. 0 denotes a time without a release.

    Returns
    -------
    FloatArray
        ``(T,)``.

    Raises
    ------
    StochasticError
        When a matrix is not square or not row-stochastic, or matrices differ in size.
    BudgetError
        When a budget is negative or not finite, or there are no budgets.

    Examples
    --------
    >>> backward_leakage([[.8, .2], [0, 1]], [.1] * 5).round(4)
    array([0.1   , 0.1808, 0.2471, 0.3024, 0.3488])
    """
    return _accumulate(matrix, as_budgets(epsilons), "backward matrix", {})


@check_arguments
def forward_leakage(matrix: KnowledgeByTime, epsilons: npt.ArrayLike) -> FloatArray:
    """Compute forward privacy leakage: through the releases from each time on.

    Parameters
    ----------
    matrix
        ``P^F[i, j] = Pr(after = j | now = i)``, in any form that `backward_leakage` accepts. Of several matrices, the
        first is for the step from the first time to the second.
    epsilons
        ``(T,)`` non-negative budgets.

    Returns
    -------
    FloatArray
        ``(T,)``.

    Raises
    ------
    StochasticError, BudgetError
        As `backward_leakage`.

    Notes
    -----
    Example 3 of the TPL paper states that forward leakage is lowest at the first time and highest at the last. Its
    Figure 3 shows the opposite, which is correct: all other releases follow the first time.

    Examples
    --------
    >>> forward_leakage([[.8, .2], [0, 1]], [.1] * 5).round(4)
    array([0.3488, 0.3024, 0.2471, 0.1808, 0.1   ])
    """
    return _accumulate_forward(matrix, as_budgets(epsilons), {})


@check_arguments
def temporal_leakage(backward: KnowledgeByTime, forward: KnowledgeByTime, epsilons: npt.ArrayLike) -> FloatArray:
    """Compute temporal privacy leakage at each time. `compute_leakage` also returns its parts.

    Parameters
    ----------
    backward, forward
        Matrices that the adversary knows, in any form that `backward_leakage` accepts.
    epsilons
        ``(T,)`` non-negative budgets.

    Returns
    -------
    FloatArray
        ``(T,)``.

    Raises
    ------
    StochasticError, BudgetError
        As `backward_leakage`.

    Examples
    --------
    >>> temporal_leakage([[.8, .2], [0, 1]], [[.8, .2], [0, 1]], [.1] * 10).round(4)
    array([0.4964, 0.5558, 0.5975, 0.6239, 0.6368, 0.6368, 0.6239, 0.5975, 0.5558, 0.4964])
    """
    return compute_leakage(backward, forward, epsilons).temporal


@check_arguments
def compute_leakage(backward: KnowledgeByTime, forward: KnowledgeByTime, epsilons: npt.ArrayLike) -> Leakage:
    """Compute backward, forward and temporal leakage of a stream.

    Parameters
    ----------
    backward, forward
        Matrices that the adversary knows, in any form that `backward_leakage` accepts.
    epsilons
        ``(T,)`` non-negative budgets.

    Returns
    -------
    Leakage
        Leakage at all T times.

    Raises
    ------
    StochasticError, BudgetError
        As `backward_leakage`.
    """
    budgets = as_budgets(epsilons)
    sizes: dict[str, int] = {}
    if backward is forward and _is_single(backward):
        forward = backward = as_loss_function(cast(Knowledge, backward), "matrix", sum_budgets_upwards(budgets))
    past = _accumulate(backward, budgets, "backward matrix", sizes)
    return Leakage(budgets, past, _accumulate_forward(forward, budgets, sizes))


class Stream:
    """Leakage of a growing stream of releases.

    Adding a release costs one evaluation of L^B. Forward leakage of earlier times, which every release can raise, is
    updated by `leakage`.

    Parameters
    ----------
    backward, forward
        One matrix each, dense or scipy sparse, a `LossFunction`, or None.

    Examples
    --------
    >>> stream = Stream([[.8, .2], [0, 1]], None)
    >>> [round(stream.add(.1), 4) for _ in range(3)]
    [0.1, 0.1808, 0.2471]
    >>> stream.leakage().temporal.round(4)
    array([0.1   , 0.1808, 0.2471])
    """

    def __init__(self, backward: Knowledge, forward: Knowledge) -> None:
        self._past, self._future = as_loss_functions(backward, forward)
        self._epsilons: list[float] = []
        self._backward: list[float] = []
        self._forward: list[float] = []

    def __len__(self) -> int:
        return len(self._epsilons)

    def add(self, epsilon: float) -> float:
        """Add a release and return the backward leakage at its time.

        Parameters
        ----------
        epsilon
            Non-negative budget of the release. 0 denotes a time without a release.

        Returns
        -------
        float
            The backward leakage at the time of the release.

        Raises
        ------
        BudgetError
            When the budget is negative or not finite. The stream is then unchanged.
        """
        budget = float(as_budgets([epsilon])[0])
        before = self._past(self._backward[-1]) if self._backward else 0.0
        self._epsilons.append(budget)
        self._backward.append(before + budget)
        return self._backward[-1]

    def leakage(self) -> Leakage:
        """Return the backward, forward and temporal leakage of every release so far.

        Returns
        -------
        Leakage
            One entry for each release so far.

        Raises
        ------
        BudgetError
            When there is no release yet.
        """
        budgets = as_budgets(self._epsilons)
        self._forward += [math.nan] * (len(self) - len(self._forward))
        after = 0.0
        for t in range(len(self) - 1, -1, -1):
            value = self._future(after) + self._epsilons[t]
            if value == self._forward[t]:
                break  # forward leakage of earlier times is unchanged
            self._forward[t] = after = value
        return Leakage(budgets, np.array(self._backward), np.array(self._forward))


def as_budgets(epsilons: npt.ArrayLike) -> FloatArray:
    """Return budgets as an array ``(T,)``: at least one, finite and non-negative.

    Raises
    ------
    BudgetError
        Otherwise.
    """
    budgets = as_floats(epsilons, "epsilons", BudgetError).copy()
    if budgets.ndim != 1 or budgets.size == 0:
        raise BudgetError(f"epsilons must be a non-empty one-dimensional array, got shape {budgets.shape}")
    bad = np.flatnonzero(~(np.isfinite(budgets) & (budgets >= 0)))
    if bad.size:
        raise BudgetError(f"epsilons must be finite and non-negative, got {budgets[bad[0]]} at index {bad[0]}")
    if (budgets > np.finfo(np.float64).max / (2 * budgets.size)).any():
        raise BudgetError(f"epsilons must have a sum within the range of a float, got a maximum of {budgets.max():g}")
    return budgets


def as_loss_functions(backward: Knowledge, forward: Knowledge) -> tuple[LossFunction, LossFunction]:
    """Return the loss functions of one adversary's two matrices. Equal matrices share one.

    Raises
    ------
    StochasticError
        When a matrix is not row-stochastic, or the two differ in size.
    """
    past = as_loss_function(backward, "backward matrix")
    future = past if forward is backward else as_loss_function(forward, "forward matrix")
    sizes: dict[str, int] = {}
    _check_size(sizes, "backward matrix", past.size)
    _check_size(sizes, "forward matrix", future.size)
    return past, future


def _check_size(sizes: dict[str, int], name: str, size: int | None) -> None:
    """Raise an error if matrices of one adversary differ in size. None stands for no matrix."""
    for other, other_size in sizes.items():
        if size not in (None, other_size):
            raise StochasticError(
                f"{name} and {other} must describe the same states, got {size} states and {other_size}"
            )
    if size is not None:
        sizes[name] = size


def _is_single(knowledge: KnowledgeByTime) -> bool:
    return knowledge is None or isinstance(knowledge, LossFunction) or is_matrix(knowledge)


def sum_budgets_upwards(budgets: FloatArray) -> float:
    """Return an upper bound on the leakage under these budgets."""
    return max(math.fsum(budgets) * (1 + 1e-9), float(np.finfo(np.float64).tiny))


def _accumulate(knowledge: KnowledgeByTime, budgets: FloatArray, name: str, sizes: dict[str, int]) -> FloatArray:
    """Add to each time's budget the loss of the leakage at the previous time.

    During a long gap without releases, leakage reaches a fixed point. The loss is then evaluated once.
    """
    leakage = budgets.tolist()
    passed_on = 0.0
    last: tuple[Knowledge, float] = None, 0.0
    for t, matrix in enumerate(_iterate_matrices(knowledge, budgets, name, sizes), start=1):
        before = leakage[t - 1]
        # An array can change in place between steps, so only loss functions are reused.
        if not isinstance(matrix, LossFunction) or matrix is not last[0] or before != last[1]:
            last = (matrix, before)
            passed_on = loss(matrix, before)
        leakage[t] += passed_on
    return np.array(leakage)


def _accumulate_forward(knowledge: KnowledgeByTime, budgets: FloatArray, sizes: dict[str, int]) -> FloatArray:
    if not _is_single(knowledge):
        knowledge = list(cast(Iterable[Knowledge], knowledge))[::-1]
    return _accumulate(knowledge, budgets[::-1], "forward matrix", sizes)[::-1].copy()


def _iterate_matrices(
    knowledge: KnowledgeByTime, budgets: FloatArray, name: str, sizes: dict[str, int]
) -> Iterator[Knowledge]:
    """Yield the matrix of each of the T − 1 steps, or one loss function for all."""
    count = budgets.size - 1
    num_matrices = 0
    if _is_single(knowledge):
        function = as_loss_function(cast(Knowledge, knowledge), name, sum_budgets_upwards(budgets))
        _check_size(sizes, name, function.size)
        yield from repeat(function, count)
        return
    for num_matrices, matrix in enumerate(cast(Iterable[Knowledge], knowledge), start=1):
        if num_matrices > count:
            break
        if matrix is not None:
            size = matrix.size if isinstance(matrix, LossFunction) else next(iter(np.shape(cast(Any, matrix))), None)
            _check_size(sizes, name, size)
        yield matrix
    if num_matrices != count:
        received = f"more than {count}" if num_matrices > count else num_matrices
        raise InvalidInputError(
            f"{name}: {budgets.size} times need {count} matrices, one for each step, got {received}"
        )


Figure = TypeVar("Figure")


@dataclass(frozen=True)
class PopulationLeakage:
    """Privacy leakage of one stream of releases about each of many users.

    Parameters
    ----------
    by_user
        Name → leakage of that user.
    """

    by_user: Mapping[Hashable, Leakage]

    @cached_property
    def temporal(self) -> FloatArray:
        """The largest temporal leakage of any user at each time, ``(T,)`` (Equation 3).

        Equation 11 of the paper adds the largest backward and the largest forward leakage instead. If these belong to
        different users, the sum exceeds every user's leakage.
        """
        return make_read_only(np.asarray(self._build_table().max(axis=0), dtype=np.float64))

    @cached_property
    def most_exposed_users(self) -> tuple[Hashable, ...]:
        """The user with the largest temporal leakage at each time, ``T`` names."""
        names = list(self.by_user)
        return tuple(names[at] for at in self._build_table().argmax(axis=0))

    @property
    def worst(self) -> float:
        """The largest temporal leakage of any user at any time."""
        return float(self.temporal.max())

    def _build_table(self) -> FloatArray:
        return np.array([leakage.temporal for leakage in self.by_user.values()])


@check_arguments
def compute_population_leakage(
    users: Mapping[Any, tuple[KnowledgeByTime, KnowledgeByTime]], epsilons: npt.ArrayLike
) -> PopulationLeakage:
    """Compute the leakage of one stream of releases for every user.

    Parameters
    ----------
    users
        Name → (backward, forward) matrices of that user, in any form that `backward_leakage` accepts.
    epsilons
        ``(T,)`` non-negative budgets of the stream.

    Returns
    -------
    PopulationLeakage
        Leakage by user.

    Raises
    ------
    InvalidInputError
        When there are no users. Errors in a user's matrices are those of `compute_leakage`, with the user's name if
        there are several users.

    Examples
    --------
    >>> mover, stayer = [[.5, .5], [.5, .5]], [[1, 0], [0, 1]]
    >>> population = compute_population_leakage({"ann": (mover, mover), "bob": (stayer, None)}, [.1, .1, .1])
    >>> population.temporal.round(3).tolist(), population.most_exposed_users
    ([0.1, 0.2, 0.3], ('ann', 'bob', 'bob'))
    """
    return PopulationLeakage(
        apply_to_users(users, lambda backward, forward: compute_leakage(backward, forward, epsilons))
    )


def apply_to_users(
    users: Mapping[Any, tuple[Any, Any]], figure: Callable[[Any, Any], Figure]
) -> dict[Hashable, Figure]:
    """Apply a function to every user's two matrices. With several users, errors name the user.

    Raises
    ------
    InvalidInputError
        When there are no users. Errors of ``figure`` are raised again.
    """
    if not isinstance(users, Mapping) or not users:
        raise InvalidInputError(f"users must be a non-empty mapping from names to pairs of matrices, got {users!r}")
    results: dict[Hashable, Figure] = {}
    for name, knowledge in users.items():
        if not isinstance(knowledge, tuple | list) or len(knowledge) != 2:
            raise InvalidInputError(f"user {name}: matrices must be a pair, the backward and the forward matrix")
        try:
            results[name] = figure(*knowledge)
        except InvalidInputError as problem:
            raise (problem if len(users) == 1 else type(problem)(f"user {name}: {problem}")) from None
    return results
