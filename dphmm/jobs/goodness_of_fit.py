"""How well a model fits people whom it has not seen: their moves, their stays, and whether it knows its doubts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.facts import fact, facts_of
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.models import Model, load_model, people_seen
from dphmm.model.model import MarkovModel
from dphmm.model.moves import Moves, all_moves, moves_of, state_sequences

LEVELS = (0.5, 0.9, 0.99)
"""The masses of the regions that are looked at."""

_MOST_STARTS, _LEAST_STARTS, _NUMBERS = 1000, 40, 1 << 23
"""The most and the fewest starts that looks are taken from, and about how many numbers they may take."""
_SEED = 0


@dataclass(frozen=True)
class Coverage:
    """Whether regions of the belief hold what they say, some steps after a person was seen.

    Parameters
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

    Parameters
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

    people: int = field(metadata=fact("people_moving"))
    moves: int = field(metadata=fact())
    known: int | None
    impossible_moves: float = field(metadata=fact())
    log_likelihood: float = field(metadata=fact("log_likelihood_per_move"))
    even: float = field(metadata=fact("if_all_possible_moves_were_alike"))
    stays: float = field(metadata=fact("stays_seen"))
    stays_expected: float = field(metadata=fact("stays_said"))
    coverage: tuple[Coverage, ...]

    def facts(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        held = {f"{one.level:.0%}_regions_{one.steps}_steps_ahead_hold": one.held for one in self.coverage}
        return {**facts_of(self), **held}


@checked
def fit_of(model: Model, data: DataLike, steps: Sequence[int] = (1, 3, 12)) -> Fit:
    """How well a model fits some people, as ``dphmm model show --true`` says.

    Parameters
    ----------
    model
        A model, or its file. By classes of time each move and step counts by its own.
    data
        People whom it was not learned from; see `Data`.
    steps
        How many steps ahead the regions of the belief are looked at, each at least one.

    Returns
    -------
    Fit
        How probable their moves are, and whether regions of the belief hold what they should.

    Raises
    ------
    ConfigurationError
        When no one moves within the model's region.
    DataFileError
        When data or model cannot be read.
    """
    loaded = load_model(model)
    if not steps or any(isinstance(k, bool) or not 1 <= k <= 10_000 for k in steps):
        raise ConfigurationError(f"steps are {tuple(steps)}; give whole numbers from 1 to 10000")
    people = Data.from_any(data).read().trajectories
    sequences = state_sequences(people, loaded.space, loaded.step, away=loaded.away)
    each = [moves_of(one, loaded.size if loaded.away is None else len(loaded.away)) for one in sequences]
    moves = all_moves(each)
    if not len(moves):
        raise ConfigurationError("no one moves within the model's region from one step to the next; take other data")
    chances, stays, degrees = _of_moves(loaded, moves)
    possible = chances > 0
    seen = people_seen(model, loaded)
    return Fit(
        people=sum(len(one) > 0 for one in each),
        moves=len(moves),
        known=None if seen is None else sum(one.user in seen for one in people),
        impossible_moves=float(1 - possible.mean()),
        log_likelihood=float(np.log(chances[possible]).mean()) if possible.any() else float("-inf"),
        even=float(-np.log(degrees[possible]).mean()) if possible.any() else float("-inf"),
        stays=float((moves.sources == moves.targets).mean()),
        stays_expected=float(stays.mean()),
        coverage=tuple(_coverage(loaded, sequences, sorted({int(k) for k in steps}))),
    )


def chances_of(model: MarkovModel, sequence: tuple[IntArray, IntArray]) -> FloatArray:
    """How probable a model thinks each move of a person, ``(m,)``; 0 where it thinks it impossible."""
    found = _of_moves(model, moves_of(sequence, model.size if model.away is None else len(model.away)))
    return np.asarray(found[0])


def _of_moves(model: MarkovModel, moves: Moves) -> FloatArray:
    """How probable moves are, how probable it was to stay, and how many moves were possible, ``(3, m)``."""
    classes, sources = model.classes_of(moves.slots), moves.sources
    found = np.zeros((3, len(moves)))
    for number, matrix in enumerate(model.transitions):
        mine = classes == number
        found[0, mine] = np.asarray(matrix[sources[mine], moves.targets[mine]]).ravel()
        found[1, mine] = np.asarray(matrix[sources[mine], sources[mine]]).ravel()
        found[2, mine] = np.diff(matrix.indptr)[sources[mine]]
    return found


def _coverage(model: MarkovModel, sequences: Sequence[tuple[IntArray, IntArray]], steps: list[int]) -> list[Coverage]:
    """Of people seen, and seen again some steps later; of looks drawn at random, the same ones each time."""
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
    """Where people are some steps after being in a context at a slot: the masses of states, ``(N, n)``."""
    rows = np.zeros((model.chain_size, len(starts)))
    rows[starts, np.arange(len(starts))] = 1.0
    for step in range(1, steps + 1):
        classes = model.classes_of(slots + step)
        for number in np.unique(classes).tolist():
            mine = classes == number
            rows[:, mine] = model.steppers[number].ahead.plain(rows[:, mine])
    if model.away is None:
        return rows
    last = model.away.last
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
        said, held = (rows * inside).sum(axis=0)[column].mean(), inside[ended, column].mean()
        found.append(Coverage(steps, level, float(said), float(held), len(column)))
    return found


def _apart(model: MarkovModel, slots: IntArray, states: IntArray, steps: int) -> tuple[IntArray, IntArray, IntArray]:
    """Where a person was seen some steps apart: the slots, which matter where the model varies, contexts, states."""
    known = states >= 0
    slots, states = slots[known], states[known]
    later = np.searchsorted(slots, slots + steps)
    there = later < len(slots)
    there[there] = slots[later[there]] == slots[there] + steps
    varies = model.time_classes is not None
    ended = states if model.away is None else model.away.last[states]
    return slots[there] if varies else np.zeros(int(there.sum()), dtype=np.int64), states[there], ended[later[there]]
