"""What releases have cost so far, by the composition theorems, and what they may cost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, inf

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import IntArray, check_epsilon
from dphmm.errors import BudgetExceededError, InvalidInputError
from dphmm.facts import setting
from dphmm.release.record import ReleaseRecord

DAY_SECONDS = 86_400.0
"""The seconds of the window that records tell the spending of."""

_TIDIED = 64
"""Fewer releases than this are kept, however long ago they were."""


class Account:
    """The running cost of the releases about one person: ``0.1`` is one tenth.

    Parameters
    ----------
    longest
        How many time steps a window will reach over at most: what was spent before is kept as a sum alone, so that the
        account of years is no larger than that of a window. Left out, windows may be of any length.

    Attributes
    ----------
    count
        How many releases are in it.
    epsilon
        The sum of the budgets (Theorem 7.1).
    constrained_epsilon
        The constrained-DP level of the sequence (Theorem 7.2); infinite once a release could rule a state out.
    drawn
        The time step of the last release with a draw; None before the first.
    """

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.count = 0
        self.epsilon = Fraction(0)
        self.constrained_epsilon: Fraction | float = Fraction(0)
        self.drawn: int | None = None
        self._slots: list[int] = []
        self._before: list[Fraction] = []

    def add(self, slot: int, epsilon: float, constrained_factor: float) -> None:
        """One more release, with a budget of 0 where it is withheld; its slot is not before the last one's."""
        self.count += 1
        self._slots.append(slot)
        self._before.append(self.epsilon)
        if epsilon > 0:
            self.drawn = slot
        self.epsilon += exactly(epsilon)
        self.constrained_epsilon += constrained_cost(epsilon, constrained_factor)
        if self.longest is not None and len(self._slots) >= _TIDIED and self._slots[0] <= slot - self.longest:
            gone = bisect_right(self._slots, slot - self.longest)
            if 2 * gone >= len(self._slots):  # as seldom as it is worth it
                del self._slots[:gone], self._before[:gone]

    @property
    def slot(self) -> int | None:
        """The time step of the last release; None before the first."""
        return self._slots[-1] if self._slots else None

    def window(self, slot: int, steps: int) -> Fraction:
        """The sum of the budgets in the ``steps`` time steps that end with ``slot``, the last one so far or a later."""
        first = self._first(slot, steps)
        return self.epsilon - self._before[first] if first < len(self._slots) else Fraction(0)

    def recent(self, slot: int, steps: int) -> list[tuple[int, Fraction]]:
        """Slot and budget of each release in the ``steps`` time steps that end with ``slot``; withheld ones have none.

        The slot is the last one so far or a later.
        """
        first = self._first(slot, steps)
        sums = [*self._before[first:], self.epsilon]
        found = zip(self._slots[first:], sums, sums[1:], strict=False)
        return [(when, after - before) for when, before, after in found if after > before]

    def moments(self, slot: int, steps: int) -> IntArray:
        """The slots of the releases in the ``steps`` time steps that end with ``slot``, withheld or not, each once."""
        return np.unique(np.array(self._slots[self._first(slot, steps) :], dtype=np.int64))

    def _first(self, slot: int, steps: int) -> int:
        assert self.longest is None or steps <= self.longest, "what such a window holds was not kept"
        return bisect_right(self._slots, slot - steps)


def day_steps(step_seconds: float | None) -> int | None:
    """How many time steps reach over a day; None where their length is not given."""
    return None if step_seconds is None else max(1, ceil(DAY_SECONDS / step_seconds))


@lru_cache(maxsize=1024)
def constrained_cost(epsilon: float, constrained_factor: float) -> Fraction | float:
    """What one release costs in constrained differential privacy (Theorem 6.3), known before it is drawn."""
    return inf if constrained_factor == inf else Fraction(constrained_factor) * exactly(epsilon)


@lru_cache(maxsize=1024)
def exactly(value: float) -> Fraction:
    """The rational that a budget was written as; the same few budgets come again and again."""
    return Fraction(repr(float(value)))


def total(budgets: Iterable[float]) -> float:
    """The sum of budgets as they were written, rounded once: ten times 0.1 is 1."""
    return float(sum(map(exactly, budgets), Fraction(0)))


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
    def from_records(cls, records: Sequence[ReleaseRecord]) -> Ledger:
        """A ledger of any sequence of records.

        Parameters
        ----------
        records
            The records of the releases, in their order.

        Returns
        -------
        Ledger
            What they cost together.
        """
        return cls(tuple(records))

    @property
    def epsilon(self) -> float:
        """The sum of the budgets: what several releases at one time step cost together (Theorem 7.1)."""
        return total(record.epsilon for record in self.records)

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

        Parameters
        ----------
        steps
            How many time steps the windows have.

        Returns
        -------
        float
            The largest sum.

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


_LIMITS = "Session and limits"
"""The heading of limits in help."""


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

    epsilon: float | None = setting(
        None, "With --session: what a user may spend in all.", name="limit_epsilon", heading=_LIMITS
    )
    constrained_epsilon: float | None = setting(
        None,
        "With --session: the constrained-DP level a user may reach.",
        name="limit_constrained",
        heading=_LIMITS,
    )
    window_epsilon: float | None = setting(
        None,
        "With --session: what a user may spend in any --limit-window-steps.",
        name="limit_window_epsilon",
        heading=_LIMITS,
    )
    window_steps: int | None = setting(
        None,
        "How many consecutive time steps --limit-window-epsilon is for.",
        name="limit_window_steps",
        heading=_LIMITS,
    )

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


def _hold(name: str, limit: float | None, spent: Fraction | float, asked: Fraction | float) -> None:
    if limit is not None and spent + asked > exactly(limit):
        raise BudgetExceededError(
            f"the {name} limit of {limit:g} would be passed: {float(spent):.6g} is spent and this release asks for "
            f"{float(asked):.6g}; release less often, with a smaller epsilon, or not at all"
        )
