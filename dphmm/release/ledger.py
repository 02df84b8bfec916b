"""What releases have cost so far, by the composition theorems, and what they may cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, exp, inf

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import check_epsilon
from dphmm.errors import BudgetExceededError, InvalidInputError
from dphmm.release.account import Account, constrained_cost, exactly
from dphmm.release.record import ReleaseRecord

_LIMITS_NOTHING = 14.0
"""A level from which on a factor of e^level, beyond a million, is said to limit nothing."""


@dataclass(frozen=True)
class Ledger:
    """The cost of a sequence of releases about one person.

    There is no parallel composition: the person is in one state at a time, and every release is about it.

    Parameters
    ----------
    records
        The public records, in the order of their release.
    """

    records: tuple[ReleaseRecord, ...]

    @classmethod
    def of(cls, records: Sequence[ReleaseRecord]) -> Ledger:
        """A ledger of any sequence of records."""
        return cls(tuple(records))

    @property
    def epsilon(self) -> float:
        """The sum of the budgets: what several releases at one time step cost together (Theorem 7.1)."""
        return float(sum(exactly(record.epsilon) for record in self.records))

    @property
    def constrained_epsilon(self) -> float:
        """The level of constrained differential privacy of the whole sequence (Theorem 7.2).

        Two possible sequences of true states are indistinguishable to within this log ratio. Infinite once a release
        could rule a possible state out.
        """
        return float(sum(record.constrained_epsilon for record in self.records))

    @checked
    def window(self, steps: int) -> float:
        """The largest sum of budgets within any ``steps`` consecutive time steps.

        Raises
        ------
        InvalidInputError
            When ``steps`` is below 1.
        """
        if steps < 1:
            raise InvalidInputError(f"a window of {steps} steps has no meaning; give at least 1")
        if not self.records:
            return 0.0
        times = np.cumsum([record.steps for record in self.records])
        spent = np.concatenate([[0.0], np.cumsum([record.epsilon for record in self.records])])
        first = np.searchsorted(times, times - steps, side="right")
        return float((spent[1:] - spent[first]).max())


@checked
@dataclass(frozen=True)
class Limits:
    """What a session may spend. Each limit may be reached and not passed; one left out does not bind.

    Parameters
    ----------
    epsilon
        On the sum of all budgets: the level for edges of the policy (Theorem 7.1).
    constrained_epsilon
        On the constrained-DP level of the whole sequence (Theorems 6.3 and 7.2).
    window_epsilon, window_steps
        On the sum of the budgets within any ``window_steps`` consecutive time steps. Both or neither.

    Raises
    ------
    BudgetError
        When a limit is not positive and finite.
    InvalidInputError
        When one of the window's two numbers is missing, or its steps are not a whole number from 1.
    """

    epsilon: float | None = None
    constrained_epsilon: float | None = None
    window_epsilon: float | None = None
    window_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "constrained_epsilon", "window_epsilon"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_epsilon(value, f"limit {name}"))
        if (self.window_epsilon is None) != (self.window_steps is None):
            raise InvalidInputError("a window limit is two numbers; give both window_epsilon and window_steps")
        steps = self.window_steps
        if steps is not None and (isinstance(steps, bool) or steps != int(steps) or steps < 1):
            raise InvalidInputError(f"window_steps is {steps}; give a whole number from 1")

    def check(self, account: Account, slot: int, epsilon: float, constrained_factor: float) -> None:
        """Refuse a release that would pass a limit. Nothing is spent by asking.

        Parameters
        ----------
        account
            What is spent.
        slot
            The time step of the release asked for, not before the last one of the account.
        epsilon, constrained_factor
            Its budget and its factor of Theorem 6.3.

        Raises
        ------
        BudgetExceededError
            Naming the limit, what is spent and what was asked for.
        """
        if not epsilon:
            return  # nothing is drawn
        asked = exactly(epsilon)
        _hold("epsilon", self.epsilon, account.epsilon, asked)
        if self.constrained_epsilon is not None:
            cost = constrained_cost(epsilon, constrained_factor)
            _hold("constrained-DP", self.constrained_epsilon, account.constrained_epsilon, cost)
        if self.window_epsilon is not None and self.window_steps is not None:
            name = f"{self.window_steps}-step window"
            _hold(name, self.window_epsilon, account.window(slot, self.window_steps), asked)


def in_words(epsilon: float, constrained_epsilon: float, total: float) -> dict[str, str]:
    """What releases about one person promise: between what, by which factor, at one moment and over all of them.

    Parameters
    ----------
    epsilon, constrained_epsilon
        The greatest budget of a release, and the greatest constrained-DP level of one (Theorem 6.3).
    total
        The sum of the budgets (Theorem 7.1).

    Returns
    -------
    dict
        What a release, or all of them, may be compared between → how many times as likely they are from one side as
        from the other, at most.

    Examples
    --------
    >>> in_words(1, 2.5, 730)["one_release_from_two_joined_places"]
    'at most 2.72 times as likely'
    >>> in_words(1, inf, 730)["one_release_from_any_two_possible_places"]
    'without limit: it can rule a place out'
    >>> in_words(1, 2.5, 730)["all_releases_from_two_paths_joined_throughout"]
    'at most e^730 times as likely, which limits nothing'
    """
    return {
        "one_release_from_two_joined_places": factor_in_words(epsilon),
        "one_release_from_any_two_possible_places": factor_in_words(constrained_epsilon),
        "all_releases_from_two_paths_joined_throughout": factor_in_words(total),
    }


def factor_in_words(level: float) -> str:
    """How many times as likely something is from one side as from the other, at most: e to the level, in words.

    Three figures of it, rounded up, since it is said to be the most.

    Examples
    --------
    >>> factor_in_words(1.0), factor_in_words(4.5)
    ('at most 2.72 times as likely', 'at most 90.1 times as likely')
    """
    if level == inf:
        return "without limit: it can rule a place out"
    if level > _LIMITS_NOTHING:
        return f"at most e^{level:,.4g} times as likely, which limits nothing"
    factor = exp(level)
    if factor >= 100:
        return f"at most {ceil(factor):,} times as likely"
    scale = 100 if factor < 10 else 10
    return f"at most {ceil(factor * scale) / scale:g} times as likely"


def unless_seeded(promise: Mapping[str, str], is_private: bool) -> dict[str, str]:
    """The promise in words, or that there is none where the noise does not come from the operating system."""
    return dict(promise) if is_private else dict.fromkeys(promise, "nothing: the noise follows from a seed")


def _hold(name: str, limit: float | None, spent: Fraction | float, asked: Fraction | float) -> None:
    if limit is not None and spent + asked > exactly(limit):
        raise BudgetExceededError(
            f"the {name} limit of {limit:g} would be passed: {float(spent):.6g} is spent and this release asks for "
            f"{float(asked):.6g}; release less often, with a smaller epsilon, or not at all"
        )
