"""What the hour and the state before the last add to a private model, out of few counts with noise.

A table of moves by hour, or by pairs of states, drowns in noise: there are too many numbers for each person. So what is
learned is small and serves the whole region:

1. in second order, how much more often than the model of first order says people leave a state after a stay, and after
   a move: a factor each for the odds of leaving any state;
2. how many of the moves elsewhere that follow one go ahead, aside and back;
3. by class of time, how much more often people leave than the model says that is made of all this: a factor each.

Each kept move of a person adds at most one to one cell of each list, so that one person more or less changes each of
them by no more than m in all: see `dphmm.jobs.private_models`. A list may be counted beside what the ones before gave
with their noise (adaptive composition).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.markov.contexts import Contexts
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel
from dphmm.markov.moves import Moves, MoveTable
from dphmm.markov.reach import Reach
from dphmm.markov.rhythm import Rhythm

LARGEST = 6_000_000
"""A model has no more possible moves than this, in all its classes: fewer pairs have contexts of their own then."""

TURNS = ("ahead", "aside", "back")
"""Within 60 degrees of the way come, of the way back, and between."""

AddNoise = Callable[[str, IntArray, int], IntArray]
Classes = Callable[[Moves], tuple[IntArray, IntArray]]

UNITS = 64
"""Of so many units, whole numbers, is what a move adds to a factor's counts at most."""

_TIMES_NOISE = 1.0
_TIMES_NOISE_OF_CLASSES = 6.0
_LEAST_WEIGHT = 30.0
_FACTORS = 1e-2, 1e2


@dataclass(frozen=True)
class ThinnedMoves:
    """The moves of people, of whom each has at most so many; private.

    Parameters
    ----------
    people
        The moves of each.
    reach
        What is possible; impossible moves are no moves.
    most
        How many moves of one person count.
    """

    people: list[Moves]
    reach: Reach
    most: int

    def leaving(self, stays: FloatArray, classes: Classes, count: int) -> IntArray:
        """``(count, 2)``, in `UNITS`: moves elsewhere by a model's probability of staying, stays by that of leaving.

        These are equally many where the model is right. Each person adds at most ``most`` times `UNITS`.

        Parameters
        ----------
        stays
            The model's probability of staying in each state, or in each context, of which ``classes`` says which.
        classes
            Moves → of each its class, -1 for one that does not count, and the row of ``stays``.
        """
        found = np.zeros((count, 2), dtype=np.int64)
        units = np.rint(np.clip(stays, 0.0, 1.0) * UNITS).astype(np.int64)
        for kept in self._kept:
            kinds, rows = classes(kept)
            left = kept.targets != kept.sources
            add = np.where(left, units[rows], UNITS - units[rows])
            np.add.at(found, (kinds[kinds >= 0], np.where(left, 0, 1)[kinds >= 0]), add[kinds >= 0])
        return found

    def turns(self) -> IntArray:
        """``(3,)``: moves elsewhere after moves elsewhere, by `TURNS`; each person adds at most ``most``."""
        found = np.zeros(len(TURNS), dtype=np.int64)
        for kept in self._kept:
            after = kept.some((_came(kept) == 1) & (kept.targets != kept.sources))
            turns = _turns(self.reach, after.before, after.sources, after.targets)
            found += np.bincount(turns, minlength=len(TURNS))
        return found

    @property
    def _kept(self) -> Iterator[Moves]:
        for one in self.people:
            kept = one.thinned(self.most)
            yield kept.some(self.reach.find(kept.sources, kept.targets) >= 0)


def _came(moves: Moves) -> IntArray:
    """What came before each move: -1 is unknown, 0 a stay, 1 a move elsewhere."""
    return np.where(moves.before < 0, -1, (moves.before != moves.sources).astype(np.int64))


def _turns(reach: Reach, before: IntArray, sources: IntArray, targets: IntArray) -> IntArray:
    """Which of `TURNS` each move elsewhere is after one from ``before``."""
    points = reach.space.points
    come, go = points[sources] - points[before], points[targets] - points[sources]
    cosine = (come * go).sum(axis=1) / np.sqrt((come * come).sum(axis=1) * (go * go).sum(axis=1))
    return np.where(cosine > 0.5 + 1e-9, 0, np.where(cosine < -0.5 - 1e-9, 2, 1)).astype(np.int64)


def extended_model(
    base: MarkovModel, moves: ThinnedMoves, add: AddNoise, scale: float, rhythm: Rhythm | None, order: int
) -> ExtendedModel:
    """The model of noisy counts, and of nothing else that is not public.

    Parameters
    ----------
    base
        The private model of first order.
    moves
        What is counted.
    add
        Name of a count, the count, and what one person changes it by → the count with noise.
    scale
        Of this noise, where one person changes the count by ``most``.
    rhythm, order
        The classes of time; 1 or 2.
    """
    table, contexts, reach = MoveTable(base.transition, np.arange(base.size)), None, moves.reach
    if order == 2:
        contexts = Contexts(base.size, _told_apart(reach, 1 if rhythm is None else rhythm.count))
        counts = moves.leaving(table.stays, lambda kept: (_came(kept), kept.sources), 2)
        factors = _factors(add("leaving", counts, UNITS * moves.most), _TIMES_NOISE * scale)
        turns = add("turns", moves.turns(), moves.most)
        rows = MoveTable(csr_array(base.transition[contexts.last]), contexts.last)
        came = (contexts.pairs[:, 0] != contexts.pairs[:, 1]).astype(np.int64)
        table = _turned(rows, contexts, reach, turns, scale).tilted(np.append(np.ones(base.size), factors[came]))
    tables = [table]
    if rhythm is not None:

        def by_class(kept: Moves) -> tuple[IntArray, IntArray]:
            rows = kept.sources if contexts is None else contexts.entered(kept.before, kept.sources)
            return rhythm.classes_of(kept.slots), rows

        counts = moves.leaving(table.stays, by_class, rhythm.count)
        factors = _factors(add("clock", counts, UNITS * moves.most), _TIMES_NOISE_OF_CLASSES * scale)
        tables = [table.tilted(float(factor)) for factor in factors]
    matrices = [one.matrix if contexts is None else contexts.chain(one.matrix) for one in tables]
    starts = np.repeat(base.initial[np.newaxis], len(tables), axis=0)
    return ExtendedModel(matrices, starts, base.states, base.step_seconds, rhythm, contexts)


def _factors(counts: IntArray, weight: float) -> FloatArray:
    """What the odds of leaving are multiplied by: ratios of Mantel and Haenszel, drawn to one by a weight."""
    weight = max(weight, _LEAST_WEIGHT)
    left, stayed = (np.maximum(counts, 0) / UNITS).T
    return np.asarray(np.clip((left + weight) / (stayed + weight), *_FACTORS))


def _told_apart(reach: Reach, classes: int) -> IntArray:
    """``(m, 2)``: the pairs with a context of their own: stays, and moves within as many rings as there is room for."""
    rows = np.repeat(np.arange(reach.size), np.diff(reach.moves.indptr))
    columns = reach.moves.indices.astype(np.int64)
    lengths = np.diff(reach.moves.indptr)[columns]
    by_ring = np.cumsum(np.bincount(reach.rings, lengths, minlength=reach.ring_count)) + len(columns)
    rings = int(np.searchsorted(classes * by_ring, LARGEST, side="right"))
    if not rings:
        raise ConfigurationError(
            f"a second order over {reach.size} states with {reach.entries} possible moves in {classes} classes of time "
            f"has more than {LARGEST} moves; take larger cells, a shorter step or a lower --max-speed"
        )
    near = reach.rings < rings
    order = np.lexsort((columns[near], rows[near]))
    return np.stack([rows[near][order], columns[near][order]], axis=1)


def _turned(table: MoveTable, contexts: Contexts, reach: Reach, turns: IntArray, scale: float) -> MoveTable:
    """Rows ``(P, N)`` with other odds of each turn, and the same of leaving."""
    at = np.repeat(np.arange(len(contexts)), np.diff(table.matrix.indptr))
    targets, origins = (
        table.matrix.indices.astype(np.int64),
        np.append(contexts.last[: contexts.size], contexts.pairs[:, 0]),
    )
    turning = (origins[at] != contexts.last[at]) & (targets != contexts.last[at])
    at, data = at[turning], table.matrix.data[turning]
    turn = _turns(reach, origins[at], contexts.last[at], targets[turning])
    expected = _summed(turn, data, len(TURNS))
    if expected.min() <= 0:  # as where all places are on a line
        return table
    expected /= expected.sum()
    seen, weight = np.maximum(turns, 0), max(_TIMES_NOISE * scale, _LEAST_WEIGHT)
    odds = (seen + weight * expected) / (seen.sum() + weight) / expected
    scaled = data * odds[turn]
    share = _summed(at, data, len(contexts))[at] / _summed(at, scaled, len(contexts))[at]
    whole = table.matrix.data.copy()
    whole[turning] = scaled * share
    return table.with_data(whole)


def _summed(at: IntArray, values: FloatArray, count: int) -> FloatArray:
    return np.asarray(np.bincount(at, values, minlength=count), dtype=np.float64)
