"""The privacy cost of releases under the composition theorems."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, inf
from typing import Any

import numpy as np

from dphmm.arrays import IntArray
from dphmm.errors import InvalidInputError
from dphmm.release.record import ReleaseRecord
from dphmm.tables.values import shorten, shorten_message
from dphmm.validation import PositiveInt, check_arguments

# The length in seconds of the window for which records state the total epsilon.
DAY_SECONDS = 86_400.0

# Below this number of releases nothing is pruned, because it would save too little memory.
_MIN_RELEASES_TO_PRUNE = 64

# Slots are stored as signed integers of 64 bits.
_MAX_SLOT = 1 << 63

_FRACTION = re.compile(r"[0-9]+(/[0-9]+)?")


class Account:
    """The running privacy cost of the releases about one user, in exact arithmetic.

    A budget of ``0.1`` counts as exactly one tenth.

    Parameters
    ----------
    max_window_steps
        Largest number of timesteps of a window. Older costs are kept only as a sum, so that the account of years is no
        larger than that of a window. None means that windows may have any length.

    Attributes
    ----------
    count
        Number of releases.
    epsilon
        Sum of the budgets (Theorem 7.1).
    constrained_epsilon
        Level of constrained differential privacy of the sequence (Theorem 7.2); infinite once a release could exclude a
        state.
    last_draw_slot
        Slot of the last release that was not withheld; None if there is none.
    """

    def __init__(self, max_window_steps: int | None = None) -> None:
        self.max_window_steps = max_window_steps
        self.count = 0
        self.epsilon = Fraction(0)
        self.constrained_epsilon: Fraction | float = Fraction(0)
        self.last_draw_slot: int | None = None
        # An array of integers, so that NumPy reads the slots of weeks without converting each of them.
        self._slots = array("q")
        self._before: list[Fraction] = []
        # The slots and budgets of the releases that were not withheld: a schedule withholds most timesteps.
        self._draw_slots: list[int] = []
        self._draws: list[Fraction] = []

    def add(self, slot: int, epsilon: float, constrained_dp_factor: float) -> None:
        """Add one more release, with budget 0 if it is withheld.

        Its slot must not precede that of the last one.
        """
        self.count += 1
        self._slots.append(slot)
        self._before.append(self.epsilon)
        spent = to_fraction(epsilon)
        if epsilon > 0:
            self.last_draw_slot = slot
            self._draw_slots.append(slot)
            self._draws.append(spent)
        self.epsilon += spent
        self.constrained_epsilon += constrained_cost(epsilon, constrained_dp_factor)
        if (
            self.max_window_steps is not None
            and len(self._slots) >= _MIN_RELEASES_TO_PRUNE
            and self._slots[0] <= slot - self.max_window_steps
        ):
            num_outside = bisect_right(self._slots, slot - self.max_window_steps)
            # Remove at least half of them at a time, so that a release takes constant time on average.
            if 2 * num_outside >= len(self._slots):
                del self._slots[:num_outside], self._before[:num_outside]
                num_draws = bisect_right(self._draw_slots, slot - self.max_window_steps)
                del self._draw_slots[:num_draws], self._draws[:num_draws]

    @property
    def slot(self) -> int | None:
        """The slot of the last release. None before the first."""
        return self._slots[-1] if self._slots else None

    def sum_window_epsilon(self, slot: int, steps: int) -> Fraction:
        """Return the sum of the budgets in the ``steps`` timesteps that end with ``slot``.

        `slot` must be the last slot or a later one.
        """
        first = self._find_first(slot, steps)
        # A difference of running sums is exact, as they are fractions.
        return self.epsilon - self._before[first] if first < len(self._slots) else Fraction(0)

    def list_recent_releases(self, slot: int, steps: int) -> list[tuple[int, Fraction]]:
        """Return slot and budget of the releases in the ``steps`` timesteps up to ``slot``.

        Withheld timesteps are omitted. `slot` must be the last slot or a later one.
        """
        self._check_window(steps)
        first = bisect_right(self._draw_slots, slot - steps)
        return list(zip(self._draw_slots[first:], self._draws[first:], strict=True))

    def list_recent_slots(self, slot: int, steps: int) -> IntArray:
        """Return the distinct slots of the releases in the ``steps`` timesteps up to ``slot``.

        Withheld timesteps are included.
        """
        slots = np.array(self._slots[self._find_first(slot, steps) :], dtype=np.int64)
        return slots if len(slots) < 2 else slots[np.concatenate([[True], slots[1:] > slots[:-1]])]

    def to_dict(self, max_window_steps: int | None = None) -> dict[str, Any]:
        """Return the account as plain JSON values. `from_dict` restores it.

        Parameters
        ----------
        max_window_steps
            Largest number of timesteps of a window. Slots of older releases are omitted. Defaults to the account's.

        Returns
        -------
        dict
            ``count``, ``epsilon`` and ``constrained_epsilon`` (as fractions, or ``"inf"``), ``last_draw_slot``,
            ``max_window_steps``, and ``recent``: slot and budget of each release in the window, in order.
        """
        steps = min((limit for limit in (self.max_window_steps, max_window_steps) if limit is not None), default=None)
        first = 0 if steps is None or self.slot is None else self._find_first(self.slot, steps)
        sums = [*self._before[first:], self.epsilon]
        budgets = [str(after - before) for before, after in pairwise(sums)]
        return {
            "count": self.count,
            "epsilon": str(self.epsilon),
            "constrained_epsilon": str(self.constrained_epsilon),
            "last_draw_slot": self.last_draw_slot,
            "max_window_steps": steps,
            "recent": [[slot, budget] for slot, budget in zip(self._slots[first:], budgets, strict=True)],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Account:
        """Return the account with the values of `to_dict`.

        Raises
        ------
        InvalidInputError
            If the values are invalid.
        """
        try:
            account = cls(values["max_window_steps"])
            account.count = values["count"]
            account.epsilon = _parse_fraction(values["epsilon"])
            constrained = values["constrained_epsilon"]
            account.constrained_epsilon = inf if constrained == "inf" else _parse_fraction(constrained)
            account.last_draw_slot = values["last_draw_slot"]
            slots = [slot for slot, _ in values["recent"]]
            budgets = [_parse_fraction(budget) for _, budget in values["recent"]]
        except (TypeError, KeyError, ValueError, ArithmeticError) as problem:
            raise InvalidInputError(f"invalid account: {shorten_message(problem)}") from None
        integers = [account.count, *slots]
        integers += [value for value in (account.last_draw_slot, account.max_window_steps) if value is not None]
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in integers):
            raise InvalidInputError("invalid account: count, slots and steps must be integers")
        spent = account.epsilon - sum(budgets)
        if (
            slots != sorted(slots)
            or not all(abs(slot) < _MAX_SLOT for slot in slots)
            or account.count < len(budgets)
            or spent < 0
            or (account.max_window_steps is not None and account.max_window_steps < 1)
        ):
            raise InvalidInputError("invalid account: its sums and slots contradict each other")
        account._slots = array("q", slots)
        account._before = list(accumulate(budgets, initial=spent))[:-1]
        draws = [(slot, budget) for slot, budget in zip(slots, budgets, strict=True) if budget > 0]
        account._draw_slots = [slot for slot, _ in draws]
        account._draws = [budget for _, budget in draws]
        return account

    def _find_first(self, slot: int, steps: int) -> int:
        self._check_window(steps)
        return bisect_right(self._slots, slot - steps)

    def _check_window(self, steps: int) -> None:
        assert self.max_window_steps is None or steps <= self.max_window_steps, "older releases are not in the account"


def _parse_fraction(text: str) -> Fraction:
    # `Fraction` itself accepts "1e999999999", which takes a gigabyte.
    if not _FRACTION.fullmatch(text):
        raise ValueError(f"a sum must be a fraction, got {shorten(text)}")
    return Fraction(text)


def steps_per_day(step_seconds: float | None) -> int | None:
    """Return the number of timesteps in a day, rounded up. None if their length is unknown."""
    return None if step_seconds is None else max(1, ceil(DAY_SECONDS / step_seconds))


@lru_cache(maxsize=1024)
def constrained_cost(epsilon: float, constrained_dp_factor: float) -> Fraction | float:
    """Return the cost of a release in constrained differential privacy (Theorem 6.3)."""
    return inf if constrained_dp_factor == inf else Fraction(constrained_dp_factor) * to_fraction(epsilon)


@lru_cache(maxsize=1024)
def to_fraction(value: float) -> Fraction:
    """Return the rational number with the shortest decimal representation of a budget."""
    return Fraction(repr(float(value)))


def sum_budgets(budgets: Iterable[float]) -> float:
    """Return the sum of budgets in exact decimal arithmetic, rounded once.

    Ten times 0.1 is 1.
    """
    return float(sum(map(to_fraction, budgets), Fraction(0)))


@dataclass(frozen=True)
class Ledger:
    """The privacy cost of a sequence of releases about one user.

    There is no parallel composition: the user is in one state at a time, and every release is about that state. Sums
    are computed in exact decimal arithmetic and rounded once.

    Parameters
    ----------
    records
        Public records, in the order of their release.
    """

    records: tuple[ReleaseRecord, ...]

    @classmethod
    def from_records(cls, records: Sequence[ReleaseRecord]) -> Ledger:
        """Return a ledger of a sequence of records.

        Parameters
        ----------
        records
            Records of the releases, in order.

        Returns
        -------
        Ledger
            Their total cost.
        """
        return cls(tuple(records))

    @property
    def epsilon(self) -> float:
        """The sum of the budgets: the total cost of the releases (Theorem 7.1)."""
        return sum_budgets(record.epsilon for record in self.records)

    @property
    def constrained_epsilon(self) -> float:
        """The level of constrained differential privacy of the whole sequence (Theorem 7.2).

        The log-likelihood ratio of any two possible sequences of true states is bounded by it. It is infinite once a
        release could exclude a possible state.
        """
        costs = (constrained_cost(record.epsilon, record.constrained_dp_factor) for record in self.records)
        return float(sum(costs, Fraction(0)))

    @check_arguments
    def compute_max_window_epsilon(self, steps: PositiveInt) -> float:
        """Return the largest sum of budgets within any ``steps`` consecutive timesteps.

        Parameters
        ----------
        steps
            Number of timesteps of a window.

        Returns
        -------
        float
            The largest sum.

        Raises
        ------
        InvalidInputError
            If ``steps`` is below 1.
        """
        account = Account(steps)
        slot = 0
        largest = Fraction(0)
        for record in self.records:
            slot += record.steps
            account.add(slot, record.epsilon, record.constrained_dp_factor)
            largest = max(largest, account.sum_window_epsilon(slot, steps))
        return float(largest)
