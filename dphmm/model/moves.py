"""The moves that sequences of states hold, and rows of how probable moves are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray, as_integers
from dphmm.errors import InvalidInputError, StateError
from dphmm.model.away import Away
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import Trajectory, microseconds

StateSequence = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike]
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
    slots
        ``(m,)``: the slot that each move led into.
    """

    visits: IntArray
    sources: IntArray
    targets: IntArray
    slots: IntArray

    def __len__(self) -> int:
        return len(self.sources)

    def thinned(self, most: int) -> Moves:
        """At most a number of the moves, evenly spaced among them: what one person may add to counts."""
        if len(self) <= most:
            return self
        return self.some((np.arange(most) * len(self)) // most)

    def some(self, chosen: IntArray | BoolArray) -> Moves:
        """Those of the moves that have some numbers, or are marked, with all visits."""
        return Moves(self.visits, self.sources[chosen], self.targets[chosen], self.slots[chosen])

    def within(self, last: IntArray) -> Moves:
        """The same of states alone, where numbers are those of contexts whose states are ``last``, ``(P,)``."""
        return Moves(last[self.visits], last[self.sources], last[self.targets], self.slots)

    def counts(self, size: int) -> csr_array:
        """``(N, N)``: how often each move was made."""
        return pair_counts(self.sources, self.targets, size)


class MoveTable:
    """A transition matrix, and where each of its entries is.

    Parameters
    ----------
    matrix
        ``(N, N)``, CSR with sorted indices.
    """

    def __init__(self, matrix: csr_array) -> None:
        self.matrix = matrix
        self._keys = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * matrix.shape[1] + matrix.indices

    def _at(self, rows: IntArray, columns: IntArray) -> IntArray:
        found = np.searchsorted(self._keys, rows * self.matrix.shape[1] + columns)
        return np.minimum(found, len(self._keys) - 1)

    def holds(self, rows: IntArray, columns: IntArray) -> BoolArray:
        """Whether there are entries at some places."""
        return np.asarray(self._keys[self._at(rows, columns)] == rows * self.matrix.shape[1] + columns)

    def entries(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """The entries at some places that have some."""
        return np.asarray(self.matrix.data[self._at(rows, columns)])

    def mixed(self, rows: IntArray, columns: IntArray, weight: float) -> MoveTable:
        """The rows mixed with what was counted, ``(counts + weight * row) / (total + weight)``."""
        if weight == inf or not len(rows):
            return self
        matrix = self.matrix
        share = 1.0 / (np.bincount(rows, minlength=matrix.shape[0]) + weight)
        data = matrix.data * np.repeat(weight * share, np.diff(matrix.indptr))
        np.add.at(data, self._at(rows, columns), share[rows])
        return self.with_data(data)

    @cached_property
    def stays(self) -> FloatArray:
        """The probability of staying in each state, ``(N,)``."""
        states = np.arange(self.matrix.shape[0])
        return np.where(self.holds(states, states), self.matrix.data[self._at(states, states)], 0.0)

    def tilted(self, factor: float) -> MoveTable:
        """The rows with the odds of leaving the state multiplied by a factor."""
        lengths = np.diff(self.matrix.indptr)
        stays = self.matrix.indices == np.repeat(np.arange(len(lengths)), lengths)
        scale = 1.0 / (self.stays + (1.0 - self.stays) * factor)
        return self.with_data(
            self.matrix.data * np.where(stays, np.repeat(scale, lengths), np.repeat(scale * factor, lengths))
        )

    def with_data(self, data: FloatArray) -> MoveTable:
        """The same places with other entries."""
        matrix = self.matrix
        return MoveTable(csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape))


def moves_of(sequence: StateSequence, size: int) -> Moves:
    """The moves of one sequence over ``size`` states.

    Raises
    ------
    StateError
        For a state outside ``-1 .. size - 1``, and slot numbers that do not increase, or not one per state.
    InvalidInputError
        For a pair of other than two parts.
    """
    if isinstance(sequence, tuple):
        if len(sequence) != 2:
            raise InvalidInputError(f"a sequence has {len(sequence)} parts; give slot numbers and states")
        slots, states = (as_integers(part, "slots and states", StateError) for part in sequence)
        if slots.ndim != 1 or slots.shape != states.shape or (np.diff(slots) <= 0).any():
            raise StateError("slot numbers must increase, one per state")
    else:
        states = as_integers(sequence, "the states of a sequence", StateError)
        if states.ndim != 1:
            raise StateError(f"the states of a sequence have shape {states.shape}; give a list of states")
        slots = np.arange(len(states))
    known = states >= 0
    check_states(states[states != -1], size)
    moved = known[:-1] & (np.diff(slots) == 1) & known[1:]
    return Moves(states[known], states[:-1][moved], states[1:][moved], slots[1:][moved])


def all_moves(several: Iterable[Moves]) -> Moves:
    """The moves of several sequences, one after another."""
    parts = list(several)
    nothing = np.zeros(0, dtype=np.int64)
    return Moves(
        *(
            np.concatenate([nothing, *(getattr(part, name) for part in parts)])
            for name in ("visits", "sources", "targets", "slots")
        )
    )


def coded(*names: IntArray) -> IntArray:
    """Rows of several numbers as one number each, from 0 on."""
    found = np.unique(names[0], return_inverse=True)[1].ravel()
    for name in names[1:]:
        found = np.unique(found * (int(name.max(initial=0)) + 1) + name, return_inverse=True)[1].ravel()
    return np.asarray(found)


def of_others(values: FloatArray, owner: IntArray, *names: IntArray) -> FloatArray:
    """Of each of some things ``(n,)``, the sum of the values of those of the same names, but for its owner's own."""
    alone, mine = coded(*names), coded(*names, owner)
    return np.asarray(np.bincount(alone, values)[alone] - np.bincount(mine, values)[mine])


def likeliest(weights: Sequence[float], score: Callable[[float], float]) -> float:
    """The weight of the highest score; the largest of equal ones, which ascend."""
    scores = [score(weight) for weight in weights]
    return weights[len(scores) - 1 - int(np.argmax(scores[::-1]))]


def pair_counts(sources: IntArray, targets: IntArray, size: int) -> csr_array:
    """How often each pair of states is among some, as a matrix."""
    return coo_array((np.ones(len(sources)), (sources, targets)), shape=(size, size)).tocsr()


def check_states(states: IntArray, size: int) -> None:
    """Refuse states outside ``0 .. size - 1`` with a `StateError`."""
    outside = states[(states < 0) | (states >= size)]
    if len(outside):
        raise StateError(f"state {int(outside[0])} does not exist; states are 0 to {size - 1}")


@checked
def state_sequence(
    trajectory: Trajectory,
    space: StateSpace,
    step_seconds: float,
    gap_seconds: float | None = None,
    away: Away | None = None,
) -> tuple[IntArray, IntArray]:
    """Slot numbers and states of a trajectory on the clock of `dphmm.space.Trajectory.resample`.

    Parameters
    ----------
    trajectory
        Where the person was.
    space
        The states.
    step_seconds
        The step of the clock.
    gap_seconds
        A person who is seen again within this time is taken to have stayed in the earlier state until then, and the
        empty slots are filled with it; a longer gap cuts the sequence. Left out, one step: nothing is filled.
    away
        Twins of border states: places outside the space then have the number of their twin, see `dphmm.model.away`.

    Returns
    -------
    slots, states
        Shape ``(n,)`` each; a state of -1 is a place outside the space where there are no twins.

    Raises
    ------
    ConfigurationError
        When the step or the gap is not a positive, finite number of seconds.
    """
    slotted = trajectory.resample(step_seconds)
    locate = space.locate if away is None else partial(away.located, space)
    slots, states = slotted.slots, locate(slotted.latitude, slotted.longitude)
    if gap_seconds is None:
        return slots, states
    held = microseconds(gap_seconds, "gap") // microseconds(step_seconds, "step")
    lengths = np.append(np.where(slotted.steps <= held, slotted.steps, 1), 1)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    filled: IntArray = np.repeat(slots, lengths) + np.arange(lengths.sum()) - first
    return filled, np.repeat(states, lengths)


@checked
def state_sequences(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: float,
    gap_seconds: float | None = None,
    away: Away | None = None,
) -> list[tuple[IntArray, IntArray]]:
    """`state_sequence` of each trajectory.

    Parameters
    ----------
    trajectories
        One for each person.
    space
        The states.
    step_seconds
        How long a step is.
    gap_seconds, away
        As `state_sequence` takes them.

    Returns
    -------
    list of (IntArray, IntArray)
        Slots and states of each, as `state_sequence` gives them.
    """
    return [state_sequence(trajectory, space, step_seconds, gap_seconds, away) for trajectory in trajectories]
