"""Leakage of one stream for many users, each with matrices of their own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, locked
from dphmm.errors import InvalidInputError
from dphmm.leakage.accumulate import KnowledgeByTime, Leakage, account

Figure = TypeVar("Figure")


@dataclass(frozen=True)
class PopulationLeakage:
    """What one stream of releases leaks about each of many users.

    Attributes
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
