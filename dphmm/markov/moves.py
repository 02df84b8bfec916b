"""The moves that sequences of states hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from dphmm.arrays import IntArray, as_integers
from dphmm.errors import InvalidInputError, StateError

Sequence = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike]
"""States one time step apart, -1 where unknown; or a pair of slot numbers (increasing) and the states there."""


@dataclass(frozen=True)
class Moves:
    """What one sequence, or several, tell of movement.

    Attributes
    ----------
    visits
        The known states, ``(v,)``.
    sources, targets
        ``(m,)`` each: from where to where each move led; moves join neighbouring slots only, never across a gap.
    """

    visits: IntArray
    sources: IntArray
    targets: IntArray

    def __len__(self) -> int:
        return len(self.sources)

    def thinned(self, most: int) -> Moves:
        """At most so many of the moves, evenly spaced among them: what one person may add to counts."""
        if len(self) <= most:
            return self
        kept = (np.arange(most) * len(self)) // most
        return Moves(self.visits, self.sources[kept], self.targets[kept])

    def counts(self, size: int) -> csr_array:
        """``(N, N)``: how often each move was made."""
        return pair_counts(self.sources, self.targets, size)


def moves_of(sequence: Sequence, size: int) -> Moves:
    """The moves of one sequence over ``size`` states.

    Raises
    ------
    StateError
        For a state outside ``-1 .. size - 1``.
    InvalidInputError
        For slot numbers that do not increase, or not one per state.
    """
    if isinstance(sequence, tuple):
        if len(sequence) != 2:
            raise InvalidInputError(f"a sequence has {len(sequence)} parts; give slot numbers and states")
        slots, states = (as_integers(part, "slots and states", StateError) for part in sequence)
        if slots.ndim != 1 or slots.shape != states.shape or (np.diff(slots) <= 0).any():
            raise InvalidInputError("slot numbers must increase, one per state")
    else:
        states = as_integers(sequence, "the states of a sequence", StateError)
        if states.ndim != 1:
            raise StateError(f"the states of a sequence have shape {states.shape}; give a list of states")
        slots = np.arange(len(states))
    known = states >= 0
    check_states(states[states != -1], size)
    moved = known[:-1] & known[1:] & (np.diff(slots) == 1)
    return Moves(states[known], states[:-1][moved], states[1:][moved])


def all_moves(several: Iterable[Moves]) -> Moves:
    """The moves of several sequences, one after another."""
    parts = list(several)
    nothing = np.zeros(0, dtype=np.int64)
    return Moves(
        *(
            np.concatenate([nothing, *(getattr(part, name) for part in parts)])
            for name in ("visits", "sources", "targets")
        )
    )


def pair_counts(sources: IntArray, targets: IntArray, size: int) -> csr_array:
    """How often each pair of states is among some, as a matrix."""
    return coo_array((np.ones(len(sources)), (sources, targets)), shape=(size, size)).tocsr()


def check_states(states: IntArray, size: int) -> None:
    """Refuse states outside ``0 .. size - 1`` with a `StateError`."""
    outside = states[(states < 0) | (states >= size)]
    if len(outside):
        raise StateError(f"state {int(outside[0])} does not exist; states are 0 to {size - 1}")
