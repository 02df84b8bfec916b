"""Statistics of training users, which workers count and from which models are learned.

A block of users is reduced to integers and to lists, which are finally put in the order of the users' names. The
statistics of a data set, and the models learned from them, therefore do not depend on how the users were divided.
Without classes of time they need memory for each user's different moves, not for fixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add, or_
from typing import Any

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.jobs.input_data import RegionLoss, UserBlock
from dphmm.jobs.model.private import thin_evenly
from dphmm.model.observed_moves import MoveCounts, Moves, extract_moves, fill_gaps
from dphmm.model.outside_states import BorderTimesteps, OutsideStates
from dphmm.space.states import OUTSIDE, StateSpace
from dphmm.space.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class CountingRules:
    """The statistics that workers count.

    Parameters
    ----------
    space, step_seconds, gap_seconds
        As for `dphmm.model.state_sequence`.
    outside
        The outside states, of which the parameters are not used. None if users outside have no state.
    max_moves
        For a private model: the maximum number of moves of each user. None for any other.
    keeps_sequences
        Whether to keep the states of all timesteps, which classes of time need.
    """

    space: StateSpace
    step_seconds: float
    gap_seconds: float | None
    outside: OutsideStates | None
    max_moves: int | None
    keeps_sequences: bool

    @property
    def size(self) -> int:
        """The number of states, including those outside."""
        return self.space.size if self.outside is None else len(self.outside)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Statistics of some training users. Private.

    Parameters
    ----------
    users
        The users.
    num_fixes, num_timesteps, num_outside, num_moves
        The numbers of fixes, of timesteps with a location, of those outside the region, and of moves.
    loss
        The fixes that did not become a location.
    is_visited
        ``(N,)``: the states that were visited.
    counts
        The visits and moves of each user; not for a private model.
    border
        For each user the timesteps at the border; empty without outside states.
    thinned, distances
        For a private model: the thinned moves and distances from the region of each user.
    sequences
        Slots and states of each user; empty unless they are kept.
    """

    users: tuple[str, ...]
    num_fixes: int
    num_timesteps: int
    num_outside: int
    num_moves: int
    loss: RegionLoss
    is_visited: BoolArray = field(repr=False)
    counts: MoveCounts = field(repr=False)
    border: tuple[BorderTimesteps, ...] = field(repr=False)
    thinned: tuple[Moves, ...] = field(repr=False)
    distances: tuple[FloatArray, ...] = field(repr=False)
    sequences: tuple[tuple[IntArray, IntArray], ...] = field(repr=False)

    @classmethod
    def concatenate(cls, parts: Sequence[TrainingData]) -> TrainingData:
        """Concatenate the statistics of groups of users, at least one group."""
        names = [name for name in cls.__dataclass_fields__ if name not in ("is_visited", "counts")]
        sums = {name: reduce(add, [getattr(part, name) for part in parts]) for name in names}
        counts = MoveCounts.concatenate([part.counts for part in parts])
        return cls(is_visited=reduce(or_, [part.is_visited for part in parts]), counts=counts, **sums)

    def sort_users(self) -> TrainingData:
        """Return the statistics in the order of the users' names.

        Trajectories in memory are in this order, and those of a large file in another one.
        """
        order = np.array(sorted(range(len(self.users)), key=self.users.__getitem__), dtype=np.int64)
        lists = {name: getattr(self, name) for name in ("users", "border", "thinned", "distances", "sequences")}
        columns: dict[str, Any] = {
            name: tuple(values[user] for user in order) if values else () for name, values in lists.items()
        }
        counts = self.counts if self.counts.num_users == 0 else self.counts.reorder(order)
        return replace(self, counts=counts, **columns)

    def fit_outside(self, outside: OutsideStates | None, users: Sequence[int] | None = None) -> OutsideStates | None:
        """Return the outside states of users, by default of all. None if none of them is outside."""
        if outside is None:
            return None
        border = self.border if users is None else [self.border[user] for user in users]
        return BorderTimesteps.concatenate(border).fit(outside)


def count_block(block: UserBlock, rules: CountingRules) -> TrainingData:
    """Return the statistics of a block."""
    empty = TrainingData(
        (), 0, 0, 0, 0, RegionLoss(), np.zeros(rules.space.size, dtype=np.bool_), MoveCounts.concatenate([]), *[()] * 4
    )
    users = [_count_user(trajectory, rules) for trajectory in block.trajectories]
    return TrainingData.concatenate([empty, *users])


def _count_user(trajectory: Trajectory, rules: CountingRules) -> TrainingData:
    space = rules.space
    track = trajectory.resample(rules.step_seconds)
    distances = np.zeros(0)
    if rules.outside is None:
        contexts = space.locate(track.latitude, track.longitude)
    else:
        contexts, distances = rules.outside.observe_track(track, space)
    slots, states = fill_gaps(track, contexts, rules.gap_seconds)
    moves = extract_moves((slots, states), rules.size)
    is_inside = (states != OUTSIDE) & (states < space.size)
    is_visited = np.zeros(space.size, dtype=np.bool_)
    is_visited[states[is_inside]] = True
    num_outside = int(((contexts == OUTSIDE) | (contexts >= space.size)).sum())
    is_private = rules.max_moves is not None
    return TrainingData(
        (trajectory.user,),
        len(trajectory),
        len(states),
        int((~is_inside).sum()),
        len(moves),
        RegionLoss.from_user(len(trajectory), len(track), num_outside),
        is_visited,
        MoveCounts.concatenate([]) if is_private else MoveCounts.count([moves], rules.size),
        () if rules.outside is None or is_private else (BorderTimesteps.select(rules.outside, contexts, distances),),
        () if rules.max_moves is None else (moves.thin(rules.max_moves).without_visits(),),
        () if rules.max_moves is None else (thin_evenly(distances, rules.max_moves),),
        ((slots, states),) if rules.keeps_sequences else (),
    )
