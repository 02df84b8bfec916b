"""What releases have cost so far, by the composition theorems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dphmm.errors import InvalidInputError
from dphmm.release.record import ReleaseRecord


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
        return float(sum(record.epsilon for record in self.records))

    @property
    def constrained_epsilon(self) -> float:
        """The level of constrained differential privacy of the whole sequence (Theorem 7.2).

        Two possible sequences of true states are indistinguishable to within this log ratio. Infinite once a release
        could rule a possible state out.
        """
        return float(sum(record.constrained_epsilon for record in self.records))

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
