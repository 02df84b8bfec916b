"""A model of one person: how they moved on earlier days, as far as these predict each other, else the model of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import spsolve

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_integers
from dphmm.errors import InvalidInputError, StateError
from dphmm.facts import fact
from dphmm.model.model import MarkovModel
from dphmm.model.moves import MoveTable, likeliest, moves_of, of_others

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
        The model of all.
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
        When nothing of the person is known.
    """
    found = moves_of((slots, states), model.chain_size)
    if not len(found.visits):
        raise InvalidInputError("no moment of the earlier data is in the region; give a person's data of other days")
    size, classes = model.chain_size, model.classes_of(found.slots)
    tables = [MoveTable(one) for one in model.transitions]
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
    here = model.last[states[moments]]
    when = model.classes_of(slots[moments])
    likely = model.starts[when, here] > 0
    here, when, day = here[likely], when[likely], slots[moments][likely] // day_steps
    start_weight = _best(day, when, here, model.starts[when, here])
    starts = model.starts
    if start_weight < inf:
        seen = np.zeros(starts.shape)
        np.add.at(seen, (when, here), 1.0)
        starts = (seen + start_weight * starts) / (seen.sum(axis=1, keepdims=True) + start_weight)
    made = model.with_moves(matrices, starts)
    days = len(np.unique(slots[moments] // day_steps))
    return Habits(made, weight, start_weight, len(kept), days)


NIGHT, WORK = (0, 6), (9, 17)
"""Hours of the night, and of work from Monday to Friday, mean solar time: people live and work where they are then."""


@checked
def usual_state(model: MarkovModel, slots: IntArray, states: IntArray, place: str) -> int:
    """The state in which a person was at most moments of the night or of work; of all, where none of these is known.

    Parameters
    ----------
    model
        The model, which knows where its states are.
    slots, states
        ``(t,)`` each: the person's moments and states, as for `with_habits`.
    place
        ``"home"`` or ``"work"``.

    Returns
    -------
    int
        The state.

    Raises
    ------
    InvalidInputError
        When no moment in the region is known.
    """
    inside = (states >= 0) & (states < model.size)
    slots, states = slots[inside], states[inside]
    if not len(slots):
        raise InvalidInputError(f"no moment in the region is known, so there is no {place}; give data of other days")
    longitude = float(model.space.latlon()[:, 1].mean())
    hours = slots * model.step / 3600 + longitude / 15
    first, last = NIGHT if place == "home" else WORK
    when = (hours % 24 >= first) & (hours % 24 < last)
    if place == "work":
        when &= (hours // 24 + 3) % 7 < 5  # 1 January 1970 was a Thursday
    return int(np.bincount(states[when] if when.any() else states).argmax())


PULL_HOURS = 12.0
"""Within how many hours, on average, somebody is thought to come back to a place they are known to keep coming to."""


@checked
def with_pull(model: MarkovModel, places: npt.ArrayLike, hours: float = PULL_HOURS) -> MarkovModel:
    """A model whose moves lead back to some places: every move is as much likelier as one comes there sooner from it.

    With ``h(s)`` the probability to come to one of the places from ``s`` before a time that ends with the same
    probability in each step, ``hours`` on average, each row is ``P(s, t) h(t)``, made to sum to one: away from the
    places that is the model under the condition that the person comes to them in that time (Doob's transform). The
    first distribution is changed likewise. No move becomes possible. Where the model varies with time, ``h`` is of the
    mean of its matrices.

    Parameters
    ----------
    model
        The model of all.
    places
        The states, at least one.
    hours
        The mean of the time, positive.

    Returns
    -------
    MarkovModel
        What somebody thinks who knows that the person keeps coming there.

    Raises
    ------
    InvalidInputError
        For no place, or hours that are not positive.
    StateError
        When a state does not exist.
    """
    chosen = np.unique(as_integers(places, "places", StateError))
    if chosen.ndim != 1 or not len(chosen) or not 0 < hours < inf:
        raise InvalidInputError(f"there are {chosen.size} places, and {hours:g} hours; give one or more of each")
    if chosen[0] < 0 or chosen[-1] >= model.size:
        raise StateError(f"place {chosen[-1]} does not exist; give states from 0 to {model.size - 1}")
    goes_on = exp(-model.step / (3600 * hours))
    mean = csr_array(sum(model.transitions[1:], model.transitions[0]) / len(model.transitions))
    there = np.isin(np.arange(model.chain_size), chosen)
    rest = np.flatnonzero(~there)
    towards = there.astype(np.float64)
    if len(rest):
        inner, outer = mean[rest][:, rest], mean[rest][:, np.flatnonzero(there)]
        stays = csr_array((goes_on * inner.data, inner.indices, inner.indptr), shape=inner.shape)
        system = csc_array(eye_array(len(rest)) - stays)
        towards[rest] = spsolve(system, goes_on * np.asarray(outer.sum(axis=1)))
    towards = np.maximum(towards, _NEVER)
    matrices = []
    for one in model.transitions:
        made = csr_array(one.multiply(towards[None, :]))
        made.data /= np.repeat(made.sum(axis=1), np.diff(made.indptr))
        matrices.append(made)
    starts = model.starts * towards[: model.size]
    starts /= starts.sum(axis=1, keepdims=True)
    return model.with_moves(matrices, starts)


_NEVER = 1e-9
"""The least chance of coming to a place: a move away from where none leads there stays possible."""


def _best(days: IntArray, rows: IntArray, columns: IntArray, known: FloatArray) -> float:
    """The weight under which each day's events are the most probable by those of the others; the largest of equals."""
    ones = np.ones(len(days))
    count, total = of_others(ones, days, rows, columns), of_others(ones, days, rows)

    def score(weight: float) -> float:
        return float(np.log(known if weight == inf else (count + weight * known) / (total + weight)).sum())

    return likeliest(WEIGHTS, score)
