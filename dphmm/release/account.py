"""What releases about one person have spent so far, in exact sums of the budgets as they were written."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache
from math import ceil, inf

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
    """

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.count = 0
        self.epsilon = Fraction(0)
        self.constrained_epsilon: Fraction | float = Fraction(0)
        self._slots: list[int] = []
        self._before: list[Fraction] = []

    def add(self, slot: int, epsilon: float, constrained_factor: float) -> None:
        """One more release, with a budget of 0 where it is withheld; its slot is not before the last one's."""
        self.count += 1
        self._slots.append(slot)
        self._before.append(self.epsilon)
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

    def _first(self, slot: int, steps: int) -> int:
        assert self.longest is None or steps <= self.longest, "what such a window holds was not kept"
        return bisect_right(self._slots, slot - steps)


def day_steps(step_seconds: float | None) -> int | None:
    """How many time steps reach over a day; None where nobody said how long one is."""
    return None if step_seconds is None else max(1, ceil(DAY_SECONDS / step_seconds))


@lru_cache(maxsize=1024)
def constrained_cost(epsilon: float, constrained_factor: float) -> Fraction | float:
    """What one release costs in constrained differential privacy (Theorem 6.3), known before it is drawn."""
    return inf if constrained_factor == inf else Fraction(constrained_factor) * exactly(epsilon)


@lru_cache(maxsize=1024)
def exactly(value: float) -> Fraction:
    """The rational that a budget was written as; the same few budgets come again and again."""
    return Fraction(repr(float(value)))
