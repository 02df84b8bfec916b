"""How well a model fits people whom it has not seen: their moves, their stays, and whether it knows its doubts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.jobs.learned_from import people_seen
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.people import Data, DataLike
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel
from dphmm.markov.moves import Moves, all_moves, moves_of
from dphmm.markov.sequence import state_sequences

LEVELS = (0.5, 0.9, 0.99)
"""The masses of the regions that are looked at."""

_MOST_STARTS, _LEAST_STARTS, _NUMBERS = 1000, 40, 1 << 23
"""Looks are taken from so many starts, or fewer where beliefs are of very many states."""
_SEED = 0


@dataclass(frozen=True)
class Coverage:
    """Whether regions of the belief hold what they say, so many steps after a person was seen.

    Attributes
    ----------
    steps
        How many steps ahead.
    level
        The mass that was asked for: a region holds the fewest most probable states of so much at least.
    said
        The mass of the regions, on the average: at least the level, for states are not divided.
    held
        The share of the regions that the person was in.
    looks
        How many there were.
    """

    steps: int
    level: float
    said: float
    held: float
    looks: int


@dataclass(frozen=True)
class Fit:
    """How well a model fits people; private, as far as they are.

    Attributes
    ----------
    people, moves
        How many people moved, and how often.
    known
        How many of the people the model was learned from, as far as a list tells; None without one.
    impossible_moves
        The share of moves that the model thinks impossible.
    log_likelihood
        The mean logarithm of the probability of a move, of those that are possible; natural.
    even
        The same for a model under which all moves that are possible here are equally probable.
    stays, stays_expected
        The share of moves that are stays, and what the model expects of people where these were.
    coverage
        For some numbers of steps and each of `LEVELS`.
    """

    people: int
    moves: int
    known: int | None
    impossible_moves: float
    log_likelihood: float
    even: float
    stays: float
    stays_expected: float
    coverage: tuple[Coverage, ...]


@checked
def fit_of(model: Model, data: DataLike, steps: Sequence[int] = (1, 3, 12)) -> Fit:
    """How well a model fits some people, as ``dphmm model show --true`` says.

    Parameters
    ----------
    model
        A model, or its file. By classes of time each move and step counts by its own; of second order, by the state
        before, where that is known.
    data
        People whom it was not learned from; see `Data`.
    steps
        How many steps ahead the regions of the belief are looked at, each at least one.

    Raises
    ------
    ConfigurationError
        When nobody moves within the model's region.
    DataFileError
        When data or model cannot be read.
    """
    loaded = load_model(model)
    if not steps or any(isinstance(k, bool) or not 1 <= k <= 10_000 for k in steps):
        raise ConfigurationError(f"steps are {tuple(steps)}; give whole numbers from 1 to 10000")
    people = Data.of(data).read().trajectories
    sequences = state_sequences(people, loaded.space, loaded.step)
    each = [moves_of(one, loaded.size) for one in sequences]
    moves = all_moves(each)
    if not len(moves):
        raise ConfigurationError("nobody moves within the model's region from one step to the next; take other data")
    rows, matrices = _rows(loaded, moves), _matrices(loaded)
    chances = rows.chances(matrices, rows.entered)
    possible = chances > 0
    degrees = rows.degrees(matrices)
    seen = people_seen(model, loaded)
    return Fit(
        people=sum(len(one) > 0 for one in each),
        moves=len(moves),
        known=None if seen is None else sum(one.user in seen for one in people),
        impossible_moves=float(1 - possible.mean()),
        log_likelihood=float(np.log(chances[possible]).mean()) if possible.any() else float("-inf"),
        even=float(-np.log(degrees[possible]).mean()) if possible.any() else float("-inf"),
        stays=float((moves.sources == moves.targets).mean()),
        stays_expected=float(rows.chances(matrices, rows.stayed).mean()),
        coverage=tuple(_coverage(loaded, sequences, sorted({int(k) for k in steps}))),
    )


@dataclass(frozen=True)
class _Rows:
    """Of some moves: the class of each, the context that it leaves, those that it and staying enter; ``(m,)`` each."""

    classes: IntArray
    origins: IntArray
    entered: IntArray
    stayed: IntArray

    def chances(self, matrices: Sequence[csr_array], targets: IntArray) -> FloatArray:
        """The probability of entering some contexts from these, ``(m,)``."""
        found = np.zeros(len(targets))
        for number, matrix in enumerate(matrices):
            mine = self.classes == number
            found[mine] = np.asarray(matrix[self.origins[mine], targets[mine]]).ravel()
        return found

    def degrees(self, matrices: Sequence[csr_array]) -> IntArray:
        """How many moves are possible from these contexts, ``(m,)``."""
        return np.asarray(np.stack([np.diff(one.indptr) for one in matrices])[self.classes, self.origins])


def _matrices(model: MarkovModel) -> tuple[csr_array, ...]:
    return model.transitions if isinstance(model, ExtendedModel) else (model.transition,)


def _rows(model: MarkovModel, moves: Moves) -> _Rows:
    pairs, rhythm = model.contexts, model.rhythm if isinstance(model, ExtendedModel) else None
    classes = np.zeros(len(moves), dtype=np.int64) if rhythm is None else rhythm.classes_of(moves.slots)
    if pairs is None:
        return _Rows(classes, moves.sources, moves.targets, moves.sources)
    origins, stayed = pairs.entered(moves.before, moves.sources), pairs.entered(moves.sources, moves.sources)
    return _Rows(classes, origins, pairs.entered(moves.sources, moves.targets), stayed)


def _coverage(model: MarkovModel, sequences: Sequence[tuple[IntArray, IntArray]], steps: list[int]) -> list[Coverage]:
    """Of people seen, and seen again so many steps later; of looks drawn at random, the same ones each time."""
    found = []
    for count in steps:
        slots, starts, ended = (
            np.concatenate(part) for part in zip(*(_apart(model, *one, count) for one in sequences), strict=True)
        )
        order = np.random.default_rng(_SEED).permutation(len(slots))
        _, first, column = np.unique(
            np.stack([slots, starts])[:, order], axis=1, return_index=True, return_inverse=True
        )
        most = min(_MOST_STARTS, max(_LEAST_STARTS, _NUMBERS // model.chain_size))
        until = len(order) if len(first) <= most else int(np.sort(first)[most])
        chosen, column = np.unique(column.ravel()[:until], return_inverse=True)
        begun = order[first[chosen]]
        if until:
            rows = _ahead(model, slots[begun], starts[begun], count)
            found += _held(rows, column.ravel(), ended[order[:until]], count)
    return found


def _ahead(model: MarkovModel, slots: IntArray, starts: IntArray, steps: int) -> FloatArray:
    """Where somebody is so many steps after being in a context at a slot: the masses of states, ``(N, n)``."""
    rows = np.zeros((model.chain_size, len(starts)))
    rows[starts, np.arange(len(starts))] = 1.0
    rhythm = model.rhythm if isinstance(model, ExtendedModel) else None
    flows = model.flows if isinstance(model, ExtendedModel) else (model.ahead,)
    for step in range(1, steps + 1):
        classes = np.zeros(len(slots), dtype=np.int64) if rhythm is None else rhythm.classes_of(slots + step)
        for number in np.unique(classes).tolist():
            mine = classes == number
            rows[:, mine] = flows[number].columns(rows[:, mine])
    for flow in flows:
        flow.forget()
    if model.contexts is None:
        return rows
    last = model.contexts.last
    alike = csr_array((np.ones(len(last)), (last, np.arange(len(last)))), shape=(model.size, len(last)))
    return np.asarray(alike @ rows)


def _held(rows: FloatArray, column: IntArray, ended: IntArray, steps: int) -> list[Coverage]:
    """Regions of each column's belief, and who is in them: a state is, where likelier ones have less than the level."""
    order = np.argsort(-rows, axis=0, kind="stable")
    mass = np.cumsum(np.take_along_axis(rows, order, axis=0), axis=0)
    before = np.empty_like(rows)
    np.put_along_axis(before, order, np.vstack([np.zeros(rows.shape[1]), mass[:-1]]), axis=0)
    found = []
    for level in LEVELS:
        inside = before < level * (1 - 1e-12)
        said = (rows * inside).sum(axis=0)
        looks = len(column)
        held = inside[ended, column].mean()
        found.append(Coverage(steps, level, float(said[column].mean()), float(held), looks))
    return found


def _apart(model: MarkovModel, slots: IntArray, states: IntArray, steps: int) -> tuple[IntArray, IntArray, IntArray]:
    """Where a person was seen so many steps apart: the slots, which matter where the model varies, contexts, states."""
    known = states >= 0
    slots, states = slots[known], states[known]
    before = np.where(np.diff(slots, prepend=slots[:1] - 2) == 1, np.roll(states, 1), -1)
    starts = states if model.contexts is None else model.contexts.entered(before, states)
    later = np.searchsorted(slots, slots + steps)
    there = later < len(slots)
    there[there] = slots[later[there]] == slots[there] + steps
    varies = isinstance(model, ExtendedModel) and model.rhythm is not None
    return slots[there] if varies else np.zeros(int(there.sum()), dtype=np.int64), starts[there], states[later[there]]
