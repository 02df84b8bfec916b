"""A model of one person: how they moved on earlier days, as far as these predict each other, else the model of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import InvalidInputError
from dphmm.facts import fact
from dphmm.model.model import MarkovModel
from dphmm.model.moves import MoveTable, moves_of

WEIGHTS = (*(float(2**k) for k in range(-2, 13)), inf)
"""What the weights of the model of all are chosen from, in moves and moments."""


@dataclass(frozen=True, eq=False)
class Habits:
    """What is known of a person by somebody who has their earlier data.

    Parameters
    ----------
    model
        The person's model.
    weight, start_weight
        How many moves, and moments, the model of all counts as in each row, and at the start; infinite where earlier
        days do not predict each other.
    moves, days
        How many moves were counted, of how many days.
    """

    model: MarkovModel
    weight: float = field(metadata=fact("weight_of_the_model_in_moves"))
    start_weight: float
    moves: int = field(metadata=fact())
    days: int = field(metadata=fact())


@checked
def with_habits(model: MarkovModel, slots: IntArray, states: IntArray, day_steps: int) -> Habits:
    """A model whose rows are shrunk from what a person did before to what the model says of everybody.

    Each row is ``(counts + w * row) / (total + w)``, and the first distribution likewise. Of the weights ``w`` that is
    chosen under which each day is the most probable when its own moves are not counted. No move becomes possible.

    Parameters
    ----------
    model
        The model of all, of first order.
    slots, states
        ``(t,)`` each: the person's moments and states, as `dphmm.model.state_sequence` gives them, with the twins of a
        model that has some; a state of -1 is unknown.
    day_steps
        How many steps a day has.

    Returns
    -------
    Habits
        The person's model.

    Raises
    ------
    InvalidInputError
        For a model that looks back two steps, or when nothing of the person is known.
    """
    if model.state_pairs is not None:
        raise InvalidInputError("the model looks back two steps; habits are learned on one of first order")
    found = moves_of((slots, states), model.chain_size)
    if not len(found.visits):
        raise InvalidInputError("no moment of the earlier data is in the region; give a person's data of other days")
    size, classes = model.chain_size, model.classes_of(found.slots)
    tables = [MoveTable(one, np.arange(size)) for one in model.transitions]
    possible, known = np.zeros(len(found), dtype=np.bool_), np.zeros(len(found))
    for number, table in enumerate(tables):
        mine = np.flatnonzero(classes == number)
        mine = mine[table.holds(found.sources[mine], found.targets[mine])]
        possible[mine], known[mine] = True, table.entries(found.sources[mine], found.targets[mine])
    kept, classes, known = found.some(possible), classes[possible], known[possible]
    weight = _best(kept.slots // day_steps, classes * size + kept.sources, kept.targets, known)
    matrices = [
        table.mixed(kept.sources[classes == number], kept.targets[classes == number], weight).matrix
        for number, table in enumerate(tables)
    ]
    moments = states >= 0
    here = states[moments] if model.away is None else model.away.last[states[moments]]
    when = model.classes_of(slots[moments])
    likely = model.starts[when, here] > 0
    here, when, day = here[likely], when[likely], slots[moments][likely] // day_steps
    start_weight = _best(day, when, here, model.starts[when, here])
    starts = model.starts
    if start_weight < inf:
        seen = np.zeros(starts.shape)
        np.add.at(seen, (when, here), 1.0)
        starts = (seen + start_weight * starts) / (seen.sum(axis=1, keepdims=True) + start_weight)
    varies = model.time_classes is not None
    made = MarkovModel(
        matrices if varies else matrices[0],
        starts if varies else starts[0],
        model.states,
        model.step_seconds,
        model.time_classes,
        away=model.away,
    )
    days = len(np.unique(slots[moments] // day_steps))
    return Habits(made, weight, start_weight, len(kept), days)


def _best(days: IntArray, rows: IntArray, columns: IntArray, known: FloatArray) -> float:
    """The weight under which each day's events are the most probable by those of the others; the largest of equals."""
    width = int(columns.max(initial=0)) + 1
    _, cell = np.unique(rows * width + columns, return_inverse=True)
    _, row = np.unique(rows, return_inverse=True)
    _, day = np.unique(days, return_inverse=True)

    def others(names: IntArray) -> FloatArray:
        own = names * (int(day.max(initial=0)) + 1) + day
        mine = np.unique(own, return_inverse=True)[1].ravel()
        return np.asarray(np.bincount(names)[names] - np.bincount(mine)[mine], dtype=np.float64)

    count, total = others(cell.ravel()), others(row.ravel())
    scores = [
        float(np.log(known if weight == inf else (count + weight * known) / (total + weight)).sum())
        for weight in WEIGHTS
    ]
    return WEIGHTS[len(WEIGHTS) - 1 - int(np.argmax(scores[::-1]))]
