"""Moves extracted from state sequences, and transition matrices with indexed entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csr_array

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_integers
from dphmm.errors import InvalidInputError, StateError
from dphmm.model.outside_states import OutsideStates
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import SlottedTrajectory, Trajectory, round_to_microseconds
from dphmm.validation import Seconds, check_arguments

# States one timestep apart, -1 if unknown; or a pair of slots (increasing) and the states at these slots.
StateSequence = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike]


@dataclass(frozen=True)
class Moves:
    """The visits and moves of one or several state sequences.

    Attributes
    ----------
    visits
        The known states, ``(v,)``.
    sources, targets
        ``(m,)`` each: the source and the target of each move. Moves connect consecutive slots only, never across a gap.
    slots
        ``(m,)``: the slot in which each move ends.
    """

    visits: IntArray
    sources: IntArray
    targets: IntArray
    slots: IntArray

    def __len__(self) -> int:
        return len(self.sources)

    def thin(self, maximum: int) -> Moves:
        """Return at most ``maximum`` evenly spaced moves: the contribution of one user."""
        if len(self) <= maximum:
            return self
        return self.select((np.arange(maximum) * len(self)) // maximum)

    def without_visits(self) -> Moves:
        """Return the moves without any visits."""
        return Moves(self.visits[:0], self.sources, self.targets, self.slots)

    def select(self, chosen: IntArray | BoolArray) -> Moves:
        """Return the moves at some indices or of a mask, with all visits."""
        return Moves(self.visits, self.sources[chosen], self.targets[chosen], self.slots[chosen])

    def to_states(self, state_of_context: IntArray) -> Moves:
        """Convert moves between contexts to moves between the states of the contexts, ``(P,)``."""
        sources, targets = state_of_context[self.sources], state_of_context[self.targets]
        return Moves(state_of_context[self.visits], sources, targets, self.slots)


@dataclass(frozen=True, eq=False)
class MoveCounts:
    """The visits and moves of several users, counted for each user.

    They are independent of the order of a user's moves, and need memory for different moves only.

    Attributes
    ----------
    num_users
        The number of users.
    visitors, visits, visit_counts
        ``(v,)`` each: a user, a state, and the number of the user's visits. Ascending.
    owners, sources, targets, counts
        ``(m,)`` each: a user, the source and the target of a move, and the number of the user's moves. Ascending.
    """

    num_users: int
    visitors: IntArray
    visits: IntArray
    visit_counts: IntArray
    owners: IntArray
    sources: IntArray
    targets: IntArray
    counts: IntArray

    @classmethod
    def count(cls, user_moves: Iterable[Moves], size: int) -> MoveCounts:
        """Count the visits and moves of users over ``size`` states."""
        return cls.concatenate([cls._count_user(moves, size) for moves in user_moves])

    @classmethod
    def _count_user(cls, moves: Moves, size: int) -> MoveCounts:
        visits, visit_counts = np.unique(moves.visits, return_counts=True)
        pairs, counts = np.unique(moves.sources * size + moves.targets, return_counts=True)
        sources, targets = pairs // size, pairs % size
        return cls(1, np.zeros_like(visits), visits, visit_counts, np.zeros_like(pairs), sources, targets, counts)

    @classmethod
    def concatenate(cls, parts: Sequence[MoveCounts]) -> MoveCounts:
        """Concatenate the counts of groups of users."""
        firsts = np.cumsum([0, *(part.num_users for part in parts)]).tolist()
        columns = {name: [np.zeros(0, dtype=np.int64)] for name in _COUNT_COLUMNS}
        for first, part in zip(firsts[:-1], parts, strict=True):
            for name, column in columns.items():
                values = getattr(part, name)
                column.append(values + first if name in ("visitors", "owners") else values)
        return cls(firsts[-1], **{name: np.concatenate(column) for name, column in columns.items()})

    def reorder(self, order: IntArray) -> MoveCounts:
        """Return the counts of the users in an order ``(num_users,)``, a permutation."""
        rank = np.argsort(order)
        visitors, owners = rank[self.visitors], rank[self.owners]
        # Stable: a user's states and moves stay ascending.
        visits, moves = (np.argsort(users, kind="stable") for users in (visitors, owners))
        return MoveCounts(
            self.num_users,
            visitors[visits],
            self.visits[visits],
            self.visit_counts[visits],
            owners[moves],
            self.sources[moves],
            self.targets[moves],
            self.counts[moves],
        )

    def select_users(self, is_selected: BoolArray) -> MoveCounts:
        """Return the counts of the users in a mask ``(num_users,)``. Users keep their numbers."""
        visits = is_selected[self.visitors]
        moves = is_selected[self.owners]
        return MoveCounts(
            self.num_users,
            *(getattr(self, name)[visits] for name in _COUNT_COLUMNS[:3]),
            *(getattr(self, name)[moves] for name in _COUNT_COLUMNS[3:]),
        )


_COUNT_COLUMNS = ("visitors", "visits", "visit_counts", "owners", "sources", "targets", "counts")


class MoveTable:
    """A transition matrix with an index of its entries.

    Parameters
    ----------
    matrix
        ``(N, N)``, CSR with sorted indices.
    """

    def __init__(self, matrix: csr_array) -> None:
        self.matrix = matrix
        self._keys = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)) * matrix.shape[1] + matrix.indices

    def _find_entries(self, rows: IntArray, columns: IntArray) -> IntArray:
        indices = np.searchsorted(self._keys, rows * self.matrix.shape[1] + columns)
        return np.minimum(indices, len(self._keys) - 1)

    def contains(self, rows: IntArray, columns: IntArray) -> BoolArray:
        """Return which pairs of row and column have an entry."""
        return np.asarray(self._keys[self._find_entries(rows, columns)] == rows * self.matrix.shape[1] + columns)

    def get_values(self, rows: IntArray, columns: IntArray) -> FloatArray:
        """Return the entries of pairs of row and column that have one."""
        return np.asarray(self.matrix.data[self._find_entries(rows, columns)])

    def mix(self, rows: IntArray, columns: IntArray, weight: float) -> MoveTable:
        """Shrink counts towards the rows: ``(counts + weight * row) / (total + weight)``."""
        if weight == inf or not len(rows):
            return self
        matrix = self.matrix
        share = 1.0 / (np.bincount(rows, minlength=matrix.shape[0]) + weight)
        data = matrix.data * np.repeat(weight * share, np.diff(matrix.indptr))
        np.add.at(data, self._find_entries(rows, columns), share[rows])
        return self.with_data(data)

    @cached_property
    def stay_probabilities(self) -> FloatArray:
        """The probability of staying in each state, ``(N,)``."""
        states = np.arange(self.matrix.shape[0])
        return np.where(self.contains(states, states), self.matrix.data[self._find_entries(states, states)], 0.0)

    def tilt(self, factor: float) -> MoveTable:
        """Return the rows with the odds of leaving the state multiplied by a factor."""
        lengths = np.diff(self.matrix.indptr)
        stays = self.matrix.indices == np.repeat(np.arange(len(lengths)), lengths)
        scale = 1.0 / (self.stay_probabilities + (1.0 - self.stay_probabilities) * factor)
        return self.with_data(
            self.matrix.data * np.where(stays, np.repeat(scale, lengths), np.repeat(scale * factor, lengths))
        )

    def with_data(self, data: FloatArray) -> MoveTable:
        """Return a table with the same structure and other entries."""
        matrix = self.matrix
        return MoveTable(csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape))


def extract_moves(sequence: StateSequence, size: int) -> Moves:
    """Extract the moves of one sequence over ``size`` states.

    Raises
    ------
    StateError
        If a state is outside ``-1 .. size - 1``, or slots do not increase, or there is not one for each state.
    InvalidInputError
        If a tuple does not have two parts.
    """
    if isinstance(sequence, tuple):
        if len(sequence) != 2:
            raise InvalidInputError(f"a sequence must be a pair of slots and states, got {len(sequence)} parts")
        slots, states = (as_integers(part, "slots and states", StateError) for part in sequence)
        if slots.ndim != 1 or slots.shape != states.shape or (np.diff(slots) <= 0).any():
            raise StateError("slots must increase, and there must be one for each state")
    else:
        states = as_integers(sequence, "the states of a sequence", StateError)
        if states.ndim != 1:
            raise StateError(f"the states of a sequence must be one-dimensional, got shape {states.shape}")
        slots = np.arange(len(states))
    is_seen = states >= 0
    check_states(states[states != -1], size)
    moved = is_seen[:-1] & (np.diff(slots) == 1) & is_seen[1:]
    return Moves(states[is_seen], states[:-1][moved], states[1:][moved], slots[1:][moved])


def concatenate_moves(several: Iterable[Moves]) -> Moves:
    """Concatenate the moves of several sequences."""
    parts = list(several)
    empty = np.zeros(0, dtype=np.int64)
    return Moves(
        *(
            np.concatenate([empty, *(getattr(part, name) for part in parts)])
            for name in ("visits", "sources", "targets", "slots")
        )
    )


def encode_rows(*names: IntArray) -> IntArray:
    """Encode each tuple of integers as one integer, counted from 0."""
    codes = np.unique(names[0], return_inverse=True)[1].ravel()
    for name in names[1:]:
        codes = np.unique(codes * (int(name.max(initial=0)) + 1) + name, return_inverse=True)[1].ravel()
    return np.asarray(codes)


def sum_others(values: FloatArray, owner: IntArray, *names: IntArray) -> FloatArray:
    """Return the sum of the values of other owners with the same names, ``(n,)``."""
    group = encode_rows(*names)
    owner_group = encode_rows(*names, owner)
    return np.asarray(np.bincount(group, values)[group] - np.bincount(owner_group, values)[owner_group])


def find_best_weight(weights: Sequence[float], score: Callable[[float], float]) -> float:
    """Return the weight with the highest score. Weights ascend, and ties take the largest."""
    scores = [score(weight) for weight in weights]
    return weights[len(scores) - 1 - int(np.argmax(scores[::-1]))]


def count_pairs(sources: IntArray, targets: IntArray, size: int, counts: IntArray | None = None) -> csr_array:
    """Return the number of occurrences of each pair of states, as a sparse matrix.

    Each pair counts once, or as often as stated.
    """
    values = np.ones(len(sources)) if counts is None else counts.astype(np.float64)
    return coo_array((values, (sources, targets)), shape=(size, size)).tocsr()


def check_states(states: IntArray, size: int) -> None:
    """Raise `StateError` if a state is outside ``0 .. size - 1``."""
    outside = states[(states < 0) | (states >= size)]
    if len(outside):
        raise StateError(f"states must be from 0 to {size - 1}, got {int(outside[0])}")


@check_arguments
def state_sequence(
    trajectory: Trajectory,
    space: StateSpace,
    step_seconds: Seconds,
    gap_seconds: Seconds | None = None,
    outside: OutsideStates | None = None,
) -> tuple[IntArray, IntArray]:
    """Convert a trajectory to slots and states. See `dphmm.space.Trajectory.resample`.

    Parameters
    ----------
    trajectory
        The locations of the user.
    space
        The states.
    step_seconds
        The timestep, in seconds.
    gap_seconds
        Gaps up to this length are filled with the state before the gap. Longer gaps split the sequence. Defaults to one
        step: no gap is filled.
    outside
        Outside states. Locations outside the space then have the index of their outside state; see
        `dphmm.model.outside_states`.

    Returns
    -------
    slots, states
        Shape ``(n,)`` each. Without outside states, -1 is a location outside the space.

    Raises
    ------
    ConfigurationError
        If the step or the gap is not a finite number of seconds, at least a microsecond.
    """
    track = trajectory.resample(step_seconds)
    locate = space.locate if outside is None else partial(outside.locate_contexts, space)
    return fill_gaps(track, locate(track.latitude, track.longitude), gap_seconds)


def fill_gaps(track: SlottedTrajectory, states: IntArray, gap_seconds: float | None) -> tuple[IntArray, IntArray]:
    """Return the slots and states of a track, with gaps filled as in `state_sequence`."""
    slots = track.slots
    if gap_seconds is None:
        return slots, states
    max_gap_steps = round_to_microseconds(gap_seconds, "gap") // round_to_microseconds(track.step_seconds, "step")
    lengths = np.append(np.where(track.steps <= max_gap_steps, track.steps, 1), 1)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    filled: IntArray = np.repeat(slots, lengths) + np.arange(lengths.sum()) - first
    return filled, np.repeat(states, lengths)


@check_arguments
def state_sequences(
    trajectories: Iterable[Trajectory],
    space: StateSpace,
    step_seconds: Seconds,
    gap_seconds: Seconds | None = None,
    outside: OutsideStates | None = None,
) -> list[tuple[IntArray, IntArray]]:
    """Convert several trajectories to slots and states. See `state_sequence`.

    Parameters
    ----------
    trajectories
        One for each user.
    space
        The states.
    step_seconds
        The timestep, in seconds.
    gap_seconds, outside
        See `state_sequence`.

    Returns
    -------
    list of (IntArray, IntArray)
        Slots and states of each trajectory.
    """
    return [state_sequence(trajectory, space, step_seconds, gap_seconds, outside) for trajectory in trajectories]
