"""Backward, forward and temporal privacy leakage over a stream of releases, for one user and for many.

With budgets ``ε_1 … ε_T``: ``BPL_1 = ε_1`` and ``BPL_t = L^B(BPL_{t−1}) + ε_t`` (Equation 13 of the TPL paper);
``FPL_T = ε_T`` and ``FPL_t = L^F(FPL_{t+1}) + ε_t`` (Equation 15); ``TPL_t = BPL_t + FPL_t − ε_t`` (Equation 10).

They are upper bounds on what an adversary with these matrices learns about the state at time t from all releases, and
are attained when the mechanisms' outputs can reach every pattern of likelihoods that their budgets allow (as footnote
5 of the paper says of Equation 10). They are about one time (event level); see `Leakage.window` for several.
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

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, as_floats, frozen, locked
from dphmm.errors import BudgetError, InvalidInputError, StochasticError
from dphmm.leakage.loss_function import Knowledge, LossFunction, as_loss_function, is_matrix, loss

KnowledgeByTime = Knowledge | Iterable[Knowledge]
"""One matrix for every step, or one for each of the T − 1 steps from t to t + 1, in the order of time."""


@checked
@dataclass(frozen=True)
class Leakage:
    """What a stream of releases leaks, by time.

    Parameters
    ----------
    epsilons, backward, forward : FloatArray
        ``(T,)``, read-only: budgets, backward and forward privacy leakage; infinite where there is no bound.
    """

    epsilons: FloatArray
    backward: FloatArray
    forward: FloatArray

    def __post_init__(self) -> None:
        for name in ("epsilons", "backward", "forward"):
            object.__setattr__(self, name, frozen(getattr(self, name)))
        shape = self.epsilons.shape
        if len(shape) != 1 or self.backward.shape != shape or self.forward.shape != shape:
            raise InvalidInputError(
                f"leakage has shapes {shape}, {self.backward.shape}, {self.forward.shape}; give one number a time"
            )

    @cached_property
    def temporal(self) -> FloatArray:
        """``(T,)`` temporal privacy leakage, ``BPL + FPL − ε``; infinite where a part of it is."""
        parts = self.backward + self.forward
        return locked(np.where(np.isinf(parts), np.inf, parts - np.where(np.isinf(parts), 0.0, self.epsilons)))

    @property
    def worst(self) -> float:
        """The largest temporal leakage of any time: the α for which the stream is α-DP_T."""
        return float(self.temporal.max())

    @property
    def user_level(self) -> float:
        """``Σ ε``: what all states of the user together leak, whatever the correlation (Corollary 1)."""
        return math.fsum(self.epsilons)

    @checked
    def window(self, start: int, stop: int) -> float:
        """Leakage about all states at times ``start … stop − 1`` together (Theorem 3 of the TPL paper).

        Parameters
        ----------
        start, stop
            Indices from 0, ``0 <= start < stop <= T``.

        Returns
        -------
        float
            ``TPL`` for one time, ``BPL_start + FPL_last`` for two, and the budgets in between added for more; the
            whole stream gives `user_level`.

        Raises
        ------
        InvalidInputError
            When the window is empty or leaves the stream.

        Examples
        --------
        >>> leakage = account(None, [[.8, .2], [0, 1]], [.1, .1, .1])
        >>> round(leakage.window(0, 1), 4), round(leakage.window(0, 2), 4), round(leakage.window(0, 3), 4)
        (0.2471, 0.2808, 0.3)
        """
        if not 0 <= start < stop <= self.epsilons.size:
            raise InvalidInputError(f"window {start}:{stop} is empty or leaves the times 0:{self.epsilons.size}")
        if stop - start == 1:
            return float(self.temporal[start])
        between = math.fsum(self.epsilons[start + 1 : stop - 1])
        return float(self.backward[start] + between + self.forward[stop - 1])

    @checked
    def largest_window(self, times: int) -> tuple[float, int]:
        """The largest leakage about any ``times`` consecutive times together, and where that window starts.

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
            When there are fewer times than that, or it is below 1.

        Examples
        --------
        >>> account(None, [[.8, .2], [0, 1]], [.1, .1, .1]).largest_window(2)
        (0.28..., 0)
        """
        count = self.epsilons.size - times + 1
        if times < 1 or count < 1:
            raise InvalidInputError(f"a window of {times} times leaves the stream of {self.epsilons.size}; give fewer")
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


@checked
def backward(matrix: KnowledgeByTime, epsilons: npt.ArrayLike) -> FloatArray:
    """Backward privacy leakage: what releases up to each time say about the state at that time.

    Parameters
    ----------
    matrix
        ``P^B[i, j] = Pr(before = j | now = i)``: ``(n, n)``, dense or scipy sparse, a `LossFunction`, or None for an
        adversary without it; or an iterable of T − 1 of these, the first for the step from the first time to the
        second (`dphmm.model.reverses` makes them).
    epsilons
        ``(T,)`` budgets, not negative; 0 is a time without a release.

    Returns
    -------
    FloatArray
        ``(T,)``.

    Raises
    ------
    StochasticError
        When a matrix is not square or not row-stochastic, or matrices differ in size.
    BudgetError
        When a budget is negative or not finite, or there is none.

    Examples
    --------
    >>> backward([[.8, .2], [0, 1]], [.1] * 5).round(4)
    array([0.1   , 0.1808, 0.2471, 0.3024, 0.3488])
    """
    return _accumulate(matrix, as_budgets(epsilons), "backward matrix", {})


@checked
def forward(matrix: KnowledgeByTime, epsilons: npt.ArrayLike) -> FloatArray:
    """Forward privacy leakage: what releases from each time on say about the state at that time.

    Parameters
    ----------
    matrix
        ``P^F[i, j] = Pr(after = j | now = i)``, in any of the forms that `backward` takes; of several, the first is
        for the step from the first time to the second.
    epsilons
        ``(T,)`` budgets, not negative.

    Returns
    -------
    FloatArray
        ``(T,)``.

    Raises
    ------
    StochasticError, BudgetError
        As `backward`.

    Notes
    -----
    Example 3 of the TPL paper says that forward leakage is lowest at the first time and highest at the last; its own
    Figure 3 has it the other way, as it must be: the first time has all releases after it.

    Examples
    --------
    >>> forward([[.8, .2], [0, 1]], [.1] * 5).round(4)
    array([0.3488, 0.3024, 0.2471, 0.1808, 0.1   ])
    """
    return _forward(matrix, as_budgets(epsilons), {})


@checked
def temporal(backward: KnowledgeByTime, forward: KnowledgeByTime, epsilons: npt.ArrayLike) -> FloatArray:
    """Temporal privacy leakage at each time, ``(T,)``: `account` gives it with its parts.

    Parameters
    ----------
    backward, forward
        What the adversary knows, in any of the forms that `dphmm.leakage.backward` takes.
    epsilons
        ``(T,)`` budgets, not negative.

    Returns
    -------
    FloatArray
        ``(T,)``.

    Raises
    ------
    StochasticError, BudgetError
        As `dphmm.leakage.backward`.

    Examples
    --------
    >>> temporal([[.8, .2], [0, 1]], [[.8, .2], [0, 1]], [.1] * 10).round(4)
    array([0.4964, 0.5558, 0.5975, 0.6239, 0.6368, 0.6368, 0.6239, 0.5975, 0.5558, 0.4964])
    """
    return account(backward, forward, epsilons).temporal


@checked
def account(backward: KnowledgeByTime, forward: KnowledgeByTime, epsilons: npt.ArrayLike) -> Leakage:
    """Backward, forward and temporal leakage of a stream in one record.

    Parameters
    ----------
    backward, forward
        What the adversary knows, in any of the forms that `dphmm.leakage.backward` takes.
    epsilons
        ``(T,)`` budgets, not negative.

    Returns
    -------
    Leakage
        Of all T times.

    Raises
    ------
    StochasticError, BudgetError
        As `dphmm.leakage.backward`.
    """
    budgets = as_budgets(epsilons)
    sizes: dict[str, int] = {}
    if backward is forward and _is_single(backward):
        forward = backward = as_loss_function(cast(Knowledge, backward), "matrix", highest(budgets))
    past = _accumulate(backward, budgets, "backward matrix", sizes)
    return Leakage(budgets, past, _forward(forward, budgets, sizes))


class Stream:
    """Leakage of a stream that goes on: one release after the other.

    A release costs one evaluation of L^B. Forward leakage of earlier times, which every release raises, is brought up
    to date when it is asked for.

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
        """Take one more release into account, and return the backward leakage at its time.

        Parameters
        ----------
        epsilon
            Its budget, not negative; 0 is a time without a release.

        Returns
        -------
        float
            The backward leakage at the time of the release.

        Raises
        ------
        BudgetError
            When the budget is negative or not finite; the stream is then as it was.
        """
        budget = float(as_budgets([epsilon])[0])
        before = self._past(self._backward[-1]) if self._backward else 0.0
        self._epsilons.append(budget)
        self._backward.append(before + budget)
        return self._backward[-1]

    def leakage(self) -> Leakage:
        """Backward, forward and temporal leakage of every release so far.

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
                break  # nothing before this time changes
            self._forward[t] = after = value
        return Leakage(budgets, np.array(self._backward), np.array(self._forward))


def as_budgets(epsilons: npt.ArrayLike) -> FloatArray:
    """Budgets as an array ``(T,)``, at least one, each finite and not negative.

    Raises
    ------
    BudgetError
        Otherwise.
    """
    budgets = as_floats(epsilons, "epsilons", BudgetError).copy()
    if budgets.ndim != 1 or budgets.size == 0:
        raise BudgetError(f"epsilons has shape {budgets.shape}; give one budget for each time, at least one")
    bad = np.flatnonzero(~(np.isfinite(budgets) & (budgets >= 0)))
    if bad.size:
        raise BudgetError(f"epsilon {bad[0]} is {budgets[bad[0]]}; budgets are finite and not negative")
    if (budgets > np.finfo(np.float64).max / (2 * budgets.size)).any():
        raise BudgetError(
            f"epsilons reach {budgets.max():g}, and their sum is more than a number holds; give smaller ones"
        )
    return budgets


def as_loss_functions(backward: Knowledge, forward: Knowledge) -> tuple[LossFunction, LossFunction]:
    """The loss functions of one adversary's two matrices, built once where they are the same.

    Raises
    ------
    StochasticError
        When one is not row-stochastic, or the two differ in size.
    """
    past = as_loss_function(backward, "backward matrix")
    future = past if forward is backward else as_loss_function(forward, "forward matrix")
    sizes: dict[str, int] = {}
    _check_size(sizes, "backward matrix", past.size)
    _check_size(sizes, "forward matrix", future.size)
    return past, future


def _check_size(sizes: dict[str, int], name: str, size: int | None) -> None:
    """Matrices of one adversary have one size; None is no matrix."""
    for other, known in sizes.items():
        if size not in (None, known):
            raise StochasticError(f"{name} has {size} states, {other} has {known}; both describe the same states")
    if size is not None:
        sizes[name] = size


def _is_single(knowledge: KnowledgeByTime) -> bool:
    return knowledge is None or isinstance(knowledge, LossFunction) or is_matrix(knowledge)


def highest(budgets: FloatArray) -> float:
    """An α that no leakage under these budgets passes."""
    return max(math.fsum(budgets) * (1 + 1e-9), float(np.finfo(np.float64).tiny))


def _accumulate(knowledge: KnowledgeByTime, budgets: FloatArray, name: str, sizes: dict[str, int]) -> FloatArray:
    """Each time's budget, and the loss of what the time before leaks.

    A long time without a release repeats one step from one leakage, once it has come to rest: that is evaluated once.
    """
    leakage, passed_on = budgets.tolist(), 0.0
    last: tuple[Knowledge, float] = None, 0.0
    for t, matrix in enumerate(_matrices(knowledge, budgets, name, sizes), start=1):
        before = leakage[t - 1]
        # An array may have been filled anew, and is evaluated each time.
        if not isinstance(matrix, LossFunction) or matrix is not last[0] or before != last[1]:
            last, passed_on = (matrix, before), loss(matrix, before)
        leakage[t] += passed_on
    return np.array(leakage)


def _forward(knowledge: KnowledgeByTime, budgets: FloatArray, sizes: dict[str, int]) -> FloatArray:
    if not _is_single(knowledge):
        knowledge = list(cast(Iterable[Knowledge], knowledge))[::-1]
    return _accumulate(knowledge, budgets[::-1], "forward matrix", sizes)[::-1].copy()


def _matrices(knowledge: KnowledgeByTime, budgets: FloatArray, name: str, sizes: dict[str, int]) -> Iterator[Knowledge]:
    """What is known of each of the T − 1 steps; one matrix for all of them as its loss function."""
    count, given = budgets.size - 1, 0
    if _is_single(knowledge):
        function = as_loss_function(cast(Knowledge, knowledge), name, highest(budgets))
        _check_size(sizes, name, function.size)
        yield from repeat(function, count)
        return
    for given, matrix in enumerate(cast(Iterable[Knowledge], knowledge), start=1):
        if given > count:
            break
        if matrix is not None:
            size = matrix.size if isinstance(matrix, LossFunction) else next(iter(np.shape(cast(Any, matrix))), None)
            _check_size(sizes, name, size)
        yield matrix
    if given != count:
        found = f"more than {count}" if given > count else given
        raise InvalidInputError(f"{name}: {found} matrices for {budgets.size} times; give {count}, one for each step")


Figure = TypeVar("Figure")


@dataclass(frozen=True)
class PopulationLeakage:
    """What one stream of releases leaks about each of many users.

    Parameters
    ----------
    by_user
        Name → leakage of that user.
    """

    by_user: Mapping[Hashable, Leakage]

    @cached_property
    def temporal(self) -> FloatArray:
        """``(T,)`` the largest temporal leakage of any user at each time (Equation 3 of the TPL paper).

        Equation 11 of the paper adds the largest backward and the largest forward leakage instead; where these belong
        to different users that is more than anyone's leakage.
        """
        return locked(np.asarray(self._table().max(axis=0), dtype=np.float64))

    @cached_property
    def who(self) -> tuple[Hashable, ...]:
        """``T`` names, the user with the largest temporal leakage at each time."""
        names = list(self.by_user)
        return tuple(names[at] for at in self._table().argmax(axis=0))

    @property
    def worst(self) -> float:
        """The largest temporal leakage of any user at any time."""
        return float(self.temporal.max())

    def _table(self) -> FloatArray:
        return np.array([leakage.temporal for leakage in self.by_user.values()])


@checked
def account_users(
    users: Mapping[Any, tuple[KnowledgeByTime, KnowledgeByTime]], epsilons: npt.ArrayLike
) -> PopulationLeakage:
    """Leakage of one stream of budgets for every user.

    Parameters
    ----------
    users
        Name → (backward, forward) knowledge about that user, in any of the forms that `dphmm.leakage.backward` takes.
    epsilons
        ``(T,)`` budgets of the stream, not negative.

    Returns
    -------
    PopulationLeakage
        Leakage by user.

    Raises
    ------
    InvalidInputError
        When there are no users. Errors in a user's matrices are those of `dphmm.leakage.account`, with the user's name
        where there are several.

    Examples
    --------
    >>> mover, stayer = [[.5, .5], [.5, .5]], [[1, 0], [0, 1]]
    >>> population = account_users({"ann": (mover, mover), "bob": (stayer, None)}, [.1, .1, .1])
    >>> population.temporal.round(3).tolist(), population.who
    ([0.1, 0.2, 0.3], ('ann', 'bob', 'bob'))
    """
    return PopulationLeakage(by_user(users, lambda backward, forward: account(backward, forward, epsilons)))


def by_user(users: Mapping[Any, tuple[Any, Any]], figure: Callable[[Any, Any], Figure]) -> dict[Hashable, Figure]:
    """A figure of every user's backward and forward knowledge; where there are several users, errors name theirs.

    Raises
    ------
    InvalidInputError
        When there are no users, and what ``figure`` raises.
    """
    if not isinstance(users, Mapping) or not users:
        raise InvalidInputError("there are no users; give at least one pair of matrices")
    found: dict[Hashable, Figure] = {}
    for name, knowledge in users.items():
        if not isinstance(knowledge, tuple | list) or len(knowledge) != 2:
            raise InvalidInputError(f"user {name}: give a pair, the backward and the forward matrix")
        try:
            found[name] = figure(*knowledge)
        except InvalidInputError as problem:
            raise (problem if len(users) == 1 else type(problem)(f"user {name}: {problem}")) from None
    return found
