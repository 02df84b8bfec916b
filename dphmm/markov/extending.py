"""Learning how movement varies with the clock, and what the state before the last one adds, by shrunken counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_integers
from dphmm.errors import ConfigurationError, InvalidInputError, StateError
from dphmm.markov.contexts import Contexts
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel
from dphmm.markov.moves import Moves, MoveTable, all_moves, moves_of
from dphmm.markov.rhythm import Rhythm

PAIRS_FROM = 1
"""A pair of states has a context of its own from so many moves on that follow it."""

_WEIGHTS = (*(float(2**k) for k in range(15)), inf)
_MOST = 1 << 26
_OWN = 4.0
"""So many moves the given row counts as beside those of all other people, when a person is left out."""
_LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class Extension:
    """An extended model, and how much was taken from the counts of its classes and pairs.

    Parameters
    ----------
    model
        The model.
    class_weight, pair_weight
        How many moves the row of all hours counts as beside those of a class, and the row of a state beside those of a
        pair; infinite where classes or pairs were of no use to other people. NaN where there are none.
    moves
        How many moves were counted.
    impossible
        How many more were seen that the given model thinks impossible, and were left out.
    """

    model: ExtendedModel
    class_weight: float
    pair_weight: float
    moves: int
    impossible: int


@dataclass(frozen=True, eq=False)
class _Counts:
    """Counted things: each has a parent row, a finer row within it, a column, and its probability in the parent row."""

    person: IntArray = field(repr=False)
    parent: IntArray = field(repr=False)
    row: IntArray = field(repr=False)
    column: IntArray = field(repr=False)
    known: FloatArray = field(repr=False)


@checked
def extend(
    model: MarkovModel,
    sequences: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    rhythm: Rhythm | None = None,
    order: int = 1,
    pairs_from: int = PAIRS_FROM,
) -> Extension:
    """How movement differs from a model of first order by the class of time, by the state before the last, or both.

    Each row of the result is ``(counts + w * row) / (total + w)``. For a pair ``row`` is that of its state; for a class
    it is that of all classes with the odds of leaving the state multiplied by the class's most likely factor, one
    number for the whole region. So what was seen little stays near what is known anyway, and no move becomes possible
    or impossible. Of the weights ``w`` that is chosen which predicts the moves of each person best from those of all
    others.

    Parameters
    ----------
    model
        A model of first order over ``N`` states, whose possible moves stay the possible ones at all times. What it
        promises to people the result does not: moves are counted without noise.
    sequences
        Slot numbers and states of people, one each, as `dphmm.markov.state_sequence` gives; a state of -1 is unknown.
    rhythm
        The classes of time; left out, one matrix serves all steps.
    order
        1, or 2 for pairs of states.
    pairs_from
        A pair has a context of its own from so many moves on that follow it; 0 for all pairs that are possible.

    Raises
    ------
    ConfigurationError
        When the order is another, the model is extended already, or its step is not the rhythm's.
    InvalidInputError
        When the result would have more than 2 ** 26 possible moves.
    StateError
        When a state does not exist, or slots do not increase.

    Examples
    --------
    >>> base = MarkovModel([[.5, .5], [.5, .5]], [.5, .5], step_seconds=3600)
    >>> days = np.tile(np.repeat([0, 1], [12, 12]), 10)
    >>> people = [(np.arange(240), days), (np.arange(240) + 2400, days)]
    >>> made = extend(base, people, Rhythm.of("hours", 3600)).model
    >>> made.transitions[3].toarray().round(2)[0].tolist(), made.transitions[11].toarray().round(2)[0].tolist()
    ([0.98, 0.02], [0.0, 1.0])
    """
    if order not in (1, 2):
        raise ConfigurationError(f"the order is {order}; give 1 or 2")
    if isinstance(model, ExtendedModel):
        raise ConfigurationError(f"the model {model.in_words}; extend one of first order")
    base = model.transition
    listed = [_checked(one, model.size) for one in sequences]
    each = [moves_of(one, model.size) for one in listed]
    seen = all_moves(each)
    everywhere = MoveTable(base, np.arange(model.size))
    possible = everywhere.holds(seen.sources, seen.targets)
    moves, person = seen.some(possible), np.repeat(np.arange(len(each)), [len(one) for one in each])[possible]
    rows, table, contexts, pair_weight = moves.sources, everywhere, None, float("nan")
    if order == 2:
        contexts = Contexts(model.size, _pairs(base, moves, pairs_from))
        _check_fits(int(np.diff(base.indptr)[contexts.last].sum()), len(contexts))
        rows = contexts.entered(moves.before, moves.sources)
        pair_weight = _weight(
            _Counts(person, moves.sources, rows, moves.targets, everywhere.entries(moves.sources, moves.targets))
        )
        own = rows >= contexts.size
        table = MoveTable(csr_array(base[contexts.last]), contexts.last).mixed(
            rows[own], moves.targets[own], pair_weight
        )
    tables, starts, class_weight = [table], model.initial[np.newaxis], float("nan")
    if rhythm is not None:
        _check_fits(rhythm.count * table.matrix.nnz, rhythm.count)
        classes = rhythm.classes_of(moves.slots)
        finer = classes * table.matrix.shape[0] + rows
        restlessness = _restlessness(everywhere, moves, person, classes, rhythm.count)
        tilt = _Tilt(moves.sources, restlessness[classes], table.stays[rows])
        known = table.entries(rows, moves.targets)
        counts = _Counts(person, rows, finer, moves.targets, known)
        class_weight = _weight(counts, tilt)
        chosen = [classes == number for number in range(rhythm.count)]
        tables = [
            table.tilted(float(factor)).mixed(rows[one], moves.targets[one], class_weight)
            for one, factor in zip(chosen, restlessness, strict=True)
        ]
        starts = _starts(model, listed, rhythm)
    matrices = [one.matrix if contexts is None else contexts.chain(one.matrix) for one in tables]
    made = ExtendedModel(matrices, starts, model.states, model.step_seconds, rhythm, contexts)
    said = {"promise": "none: moves were counted without noise", "extended": made.in_words}
    vars(made).update(learned={**(model.learned or {}), **said})
    return Extension(made, class_weight, pair_weight, len(moves.slots), len(seen.slots) - len(moves.slots))


def _checked(sequence: tuple[npt.ArrayLike, npt.ArrayLike], size: int) -> tuple[IntArray, IntArray]:
    slots, states = (as_integers(part, "slots and states", StateError) for part in sequence)
    if slots.ndim != 1 or slots.shape != states.shape or (np.diff(slots) <= 0).any():
        raise StateError("slot numbers must increase, one per state")
    if len(states) and (states.min() < -1 or states.max() >= size):
        raise StateError(f"a state of a sequence does not exist; states are 0 to {size - 1}, or -1")
    return slots, states


def _check_fits(moves: int, parts: int) -> None:
    if moves > _MOST:
        raise InvalidInputError(
            f"{moves} possible moves in {parts} parts are more than fit into memory; take larger cells, fewer classes "
            "of time, or pairs of states that were seen more often"
        )


def _pairs(base: csr_array, moves: Moves, least: int) -> IntArray:
    """The pairs that have a context of their own."""
    if least < 0:
        raise ConfigurationError(f"pairs_from is {least}; give a number that is not negative")
    if least == 0:
        rows = np.repeat(np.arange(base.shape[0]), np.diff(base.indptr))
        return np.stack([rows, base.indices], axis=1).astype(np.int64)
    known = moves.before >= 0
    keys, counts = np.unique(moves.before[known] * base.shape[0] + moves.sources[known], return_counts=True)
    return np.stack(np.divmod(keys[counts >= least], base.shape[0]), axis=1)


@dataclass(frozen=True, eq=False)
class _Tilt:
    """Of each counted move: where it began, what multiplies the odds of leaving then, how probable staying is."""

    source: IntArray
    factor: FloatArray
    stays: FloatArray


def _restlessness(table: MoveTable, moves: Moves, person: IntArray, classes: IntArray, count: int) -> FloatArray:
    """By what the odds of leaving a state are multiplied in each class, ``(K,)``.

    The ratio of Mantel and Haenszel, leaves weighed by the probability of staying and stays by that of leaving,
    relative to that of all classes, with as much added to both as predicts each person best from all others.
    """
    stays = table.stays[moves.sources]
    left, people = moves.targets != moves.sources, int(person.max(initial=0)) + 1
    cells = person * count + classes
    sums = [
        np.bincount(cells[chosen], part[chosen], minlength=people * count).reshape(people, count).astype(np.float64)
        for part, chosen in ((stays, left), (1.0 - stays, ~left))
    ]
    overall = float(sums[0].sum()) / max(float(sums[1].sum()), _LEAST) or 1.0
    sums[1] *= overall
    leaves, remains = ((one.sum(axis=0) - one).ravel() for one in sums)
    odds = overall * (1.0 - stays) / np.maximum(stays, _LEAST)

    def score(added: float) -> float:
        factor = 1.0 if added == inf else ((leaves + added) / (remains + added))[cells]
        return float(np.log(np.where(left, factor * odds, 1.0) / (1.0 + factor * odds)).sum())

    possible = stays < 1.0  # whoever cannot leave tells nothing
    odds, left, cells = odds[possible], left[possible], cells[possible]
    added = _best(score)
    total = [one.sum(axis=0) for one in sums]
    return np.ones(count) if added == inf else np.asarray((total[0] + added) / (total[1] + added))


def _best(score: Callable[[float], float]) -> float:
    """The weight of the highest score; the largest of equal ones."""
    scores = [score(weight) for weight in _WEIGHTS]
    return _WEIGHTS[len(scores) - 1 - int(np.argmax(scores[::-1]))]


def _weight(counts: _Counts, tilt: _Tilt | None = None) -> float:
    """The weight of the parent's row that predicts each person best from all others; the largest of equal ones.

    What all others say of a parent's row is their counts in it, beside a few moves of the row as it is given.
    """
    _, first, number = np.unique(
        _coded(counts.person, counts.row, counts.column), return_index=True, return_counts=True
    )
    own = number.astype(np.float64)
    person, row, column, parent = (part[first] for part in (counts.person, counts.row, counts.column, counts.parent))

    def others(values: FloatArray, *names: IntArray) -> FloatArray:
        """How often something was counted of all other people."""
        alone, mine = _coded(*names), _coded(*names, person)
        return np.asarray(np.bincount(alone, values)[alone] - np.bincount(mine, values)[mine])

    child, child_total = others(own, row, column), others(own, row)
    total = others(own, parent) + _OWN
    prior = (others(own, parent, column) + _OWN * counts.known[first]) / total
    if tilt is not None:
        factor, stayed = tilt.factor[first], tilt.source[first] == column
        staying = (others(own * stayed, parent) + _OWN * tilt.stays[first]) / total
        prior *= np.where(stayed, 1.0, factor) / (staying + (1.0 - staying) * factor)

    def score(weight: float) -> float:
        return float(own @ np.log(prior if weight == inf else (child + weight * prior) / (child_total + weight)))

    return _best(score)


def _starts(model: MarkovModel, sequences: Iterable[tuple[IntArray, IntArray]], rhythm: Rhythm) -> FloatArray:
    """The distribution of the state by class, shrunken towards that of all times."""
    parts = [(np.full(len(slots), person), slots, states) for person, (slots, states) in enumerate(sequences)]
    person, slots, states = (np.concatenate(column) for column in zip(*parts, strict=True))
    good = (states >= 0) & (model.initial[np.maximum(states, 0)] > 0)
    person, slots, states = person[good], slots[good], states[good]
    classes = rhythm.classes_of(slots)
    weight = _weight(_Counts(person, np.zeros_like(states), classes, states, model.initial[states]))
    if weight == inf:
        return np.repeat(model.initial[np.newaxis], rhythm.count, axis=0)
    seen = np.bincount(classes * model.size + states, minlength=rhythm.count * model.size).reshape(rhythm.count, -1)
    return np.asarray((seen + weight * model.initial) / (seen.sum(axis=1, keepdims=True) + weight))


def _coded(*names: IntArray) -> IntArray:
    """Rows of several numbers as one number each, from 0 on."""
    found = np.unique(names[0], return_inverse=True)[1].ravel()
    for name in names[1:]:
        found = np.unique(found * (int(name.max(initial=0)) + 1) + name, return_inverse=True)[1].ravel()
    return np.asarray(found)
