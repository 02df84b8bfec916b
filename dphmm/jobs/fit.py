"""How well a model fits people whom it has not seen: their moves, their stays, and whether it knows its doubts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.jobs.learned_from import people_seen
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.people import Data, DataLike
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel
from dphmm.markov.moves import all_moves, moves_of
from dphmm.markov.sequence import state_sequences

LEVELS = (0.5, 0.9, 0.99)
"""The masses of the regions that are looked at."""

_MOST_STARTS = 200
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
        A model of first order without classes of time, or its file.
    data
        People whom it was not learned from; see `Data`.
    steps
        How many steps ahead the regions of the belief are looked at, each at least one.

    Raises
    ------
    ConfigurationError
        For a model of another kind, or when nobody moves within its region.
    DataFileError
        When data or model cannot be read.
    """
    loaded = load_model(model)
    if isinstance(loaded, ExtendedModel):
        raise ConfigurationError(f"the model {loaded.in_words}; its fit is compared by 'dphmm synthesize --compare'")
    if not steps or any(isinstance(k, bool) or not 1 <= k <= 10_000 for k in steps):
        raise ConfigurationError(f"steps are {tuple(steps)}; give whole numbers from 1 to 10000")
    people = Data.of(data).read().trajectories
    sequences = state_sequences(people, loaded.space, loaded.step)
    each = [moves_of(one, loaded.size) for one in sequences]
    moves = all_moves(each)
    if not len(moves):
        raise ConfigurationError("nobody moves within the model's region from one step to the next; take other data")
    chances = np.asarray(loaded.transition[moves.sources, moves.targets], dtype=np.float64).ravel()
    possible = chances > 0
    degrees = np.diff(loaded.transition.indptr)[moves.sources]
    seen = people_seen(model, loaded)
    return Fit(
        people=sum(len(one) > 0 for one in each),
        moves=len(moves),
        known=None if seen is None else sum(one.user in seen for one in people),
        impossible_moves=float(1 - possible.mean()),
        log_likelihood=float(np.log(chances[possible]).mean()) if possible.any() else float("-inf"),
        even=float(-np.log(degrees[possible]).mean()) if possible.any() else float("-inf"),
        stays=float((moves.sources == moves.targets).mean()),
        stays_expected=float(loaded.transition.diagonal()[moves.sources].mean()),
        coverage=tuple(_coverage(loaded, sequences, sorted({int(k) for k in steps}))),
    )


def _coverage(model: MarkovModel, sequences: Sequence[tuple[IntArray, IntArray]], steps: list[int]) -> list[Coverage]:
    """Of people seen, and seen again so many steps later; from some hundred starts, the same ones each time."""
    pairs = {
        k: [np.concatenate(side) for side in zip(*(_apart(*one, k) for one in sequences), strict=True)] for k in steps
    }
    starts, weights = np.unique(pairs[steps[0]][0], return_counts=True)
    if len(starts) > _MOST_STARTS:
        rng = np.random.default_rng(_SEED)
        starts = rng.choice(starts, _MOST_STARTS, replace=False, p=weights / weights.sum())
    rows = np.zeros((model.size, len(starts)))
    rows[starts, np.arange(len(starts))] = 1.0
    found, now = [], 0
    for count in steps:
        for _ in range(count - now):
            rows = np.asarray(model.ahead.matrix @ rows)
        now = count
        begun, ended = pairs[count]
        column = np.searchsorted(np.sort(starts), begun)
        column = np.argsort(starts)[np.minimum(column, len(starts) - 1)]
        mine = starts[column] == begun
        found += _held(rows, column[mine], ended[mine], count) if mine.any() else []
    return found


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


def _apart(slots: IntArray, states: IntArray, steps: int) -> tuple[IntArray, IntArray]:
    """The states that a person was seen in so many steps apart."""
    known = states >= 0
    slots, states = slots[known], states[known]
    later = np.searchsorted(slots, slots + steps)
    there = later < len(slots)
    there[there] = slots[later[there]] == slots[there] + steps
    return states[there], states[later[there]]
