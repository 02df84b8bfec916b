"""Models of a single user, shrunk towards the model of all users."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf

import numpy as np
import numpy.typing as npt
from scipy.sparse import csc_array, csr_array, eye_array
from scipy.sparse.linalg import spsolve

from dphmm.arrays import FloatArray, IntArray, as_integers
from dphmm.errors import InvalidInputError, StateError
from dphmm.formatting import exported
from dphmm.model.model import MarkovModel
from dphmm.model.observed_moves import MoveTable, extract_moves, find_best_weight, sum_others
from dphmm.validation import check_arguments

# The candidate weights of the model of all users, in moves and timesteps.
CANDIDATE_WEIGHTS = (*(float(2**k) for k in range(-2, 13)), inf)


@dataclass(frozen=True, eq=False)
class Habits:
    """The model of a user that an adversary learns from the user's earlier data.

    Parameters
    ----------
    model
        The user's model.
    weight, start_weight
        The weights of the model of all users: in each row, in moves, and in the initial distribution, in timesteps.
        Infinite if the earlier days do not predict each other, always for a single day.
    moves, days
        The number of moves counted, and the number of days that they are from.
    """

    model: MarkovModel
    weight: float = field(metadata=exported("model_weight_moves"))
    start_weight: float
    moves: int = field(metadata=exported())
    days: int = field(metadata=exported())


@check_arguments
def with_habits(model: MarkovModel, slots: IntArray, states: IntArray, day_steps: int) -> Habits:
    """Learn the model of one user, shrunk towards the model of all users.

    Each row is ``(counts + w * row) / (total + w)``, and the initial distribution likewise. The weight ``w`` maximises
    the leave-one-out likelihood over days: each day is scored by the counts of the other days. No move becomes
    possible.

    Parameters
    ----------
    model
        The model of all users.
    slots, states
        ``(t,)`` each: the user's slots and states, as `dphmm.model.state_sequence` returns them, including the model's
        outside states. A state of -1 is unknown.
    day_steps
        The number of steps of a day.

    Returns
    -------
    Habits
        The user's model.

    Raises
    ------
    InvalidInputError
        If no state of the user is known.
    """
    moves = extract_moves((slots, states), model.chain_size)
    if not len(moves.visits):
        raise InvalidInputError("the auxiliary data must have a location in the region: use data of other days")
    size = model.chain_size
    classes = model.get_classes(moves.slots)
    tables = [MoveTable(matrix) for matrix in model.transitions]
    possible = np.zeros(len(moves), dtype=np.bool_)
    shares = np.zeros(len(moves))
    for number, table in enumerate(tables):
        members = np.flatnonzero(classes == number)
        members = members[table.contains(moves.sources[members], moves.targets[members])]
        possible[members], shares[members] = True, table.get_values(moves.sources[members], moves.targets[members])
    kept = moves.select(possible)
    classes = classes[possible]
    shares = shares[possible]
    weight = _find_habit_weight(kept.slots // day_steps, classes * size + kept.sources, kept.targets, shares)
    matrices = [
        table.mix(kept.sources[classes == number], kept.targets[classes == number], weight).matrix
        for number, table in enumerate(tables)
    ]
    is_known = states >= 0
    known_states = model.state_of_context[states[is_known]]
    known_classes = model.get_classes(slots[is_known])
    is_possible = model.initial_by_class[known_classes, known_states] > 0
    known_states = known_states[is_possible]
    known_classes = known_classes[is_possible]
    day = slots[is_known][is_possible] // day_steps
    start_weight = _find_habit_weight(
        day, known_classes, known_states, model.initial_by_class[known_classes, known_states]
    )
    initial = model.initial_by_class
    if start_weight < inf:
        counts = np.zeros(initial.shape)
        np.add.at(counts, (known_classes, known_states), 1.0)
        initial = (counts + start_weight * initial) / (counts.sum(axis=1, keepdims=True) + start_weight)
    user_model = model.with_probabilities(matrices, initial)
    days = len(np.unique(slots[is_known] // day_steps))
    return Habits(user_model, weight, start_weight, len(kept), days)


NIGHT_HOURS = (0, 6)
# The hours of the night, and of work from Monday to Friday, in mean solar time. They determine home and workplace.
WORK_HOURS = (9, 17)


@check_arguments
def find_usual_state(model: MarkovModel, slots: IntArray, states: IntArray, place: str) -> int:
    """Return the most frequent state of a user at night or during work hours.

    If the user has no known state at these hours, all timesteps count.

    Parameters
    ----------
    model
        A model with state locations.
    slots, states
        ``(t,)`` each: the user's slots and states; see `with_habits`.
    place
        ``"home"`` or ``"work"``.

    Returns
    -------
    int
        The state.

    Raises
    ------
    InvalidInputError
        If no state in the region is known.
    """
    inside = (states >= 0) & (states < model.size)
    slots = slots[inside]
    states = states[inside]
    if not len(slots):
        raise InvalidInputError(
            f"the auxiliary data must have a location in the region to find {place}: use data of other days"
        )
    longitude = float(model.space.latlon()[:, 1].mean())
    hours = slots * model.step / 3600 + longitude / 15
    first, last = NIGHT_HOURS if place == "home" else WORK_HOURS
    when = (hours % 24 >= first) & (hours % 24 < last)
    if place == "work":
        when &= (hours // 24 + 3) % 7 < 5  # 1 January 1970 was a Thursday
    return int(np.bincount(states[when] if when.any() else states).argmax())


# The mean time, in hours, until a user returns to a location that the adversary knows they visit regularly.
MEAN_RETURN_HOURS = 12.0


@check_arguments
def with_return_bias(model: MarkovModel, places: npt.ArrayLike, hours: float = MEAN_RETURN_HOURS) -> MarkovModel:
    """Condition a model on the user's return to one of several states within a random time.

    Let ``h(s)`` be the probability of reaching one of the states from ``s`` before a geometrically distributed time
    with a mean of ``hours``. Each row is proportional to ``P(s, t) h(t)``. Away from the states this is the model
    conditioned on reaching them in that time (Doob's h-transform). The initial distribution is changed likewise. No
    move becomes possible. If the model varies with time, ``h`` belongs to the mean of its matrices.

    Parameters
    ----------
    model
        The model of all users.
    places
        The states, at least one.
    hours
        The mean of the time, positive.

    Returns
    -------
    MarkovModel
        The model of an adversary who knows that the user regularly visits the states.

    Raises
    ------
    InvalidInputError
        If there is no state, or ``hours`` is not positive.
    StateError
        If a state does not exist.
    """
    chosen = np.unique(as_integers(places, "places", StateError))
    if chosen.ndim != 1 or not len(chosen) or not 0 < hours < inf:
        raise InvalidInputError(
            f"places must contain a state and hours must be positive, got {chosen.size} states and {hours:g} hours"
        )
    if chosen[0] < 0 or chosen[-1] >= model.size:
        raise StateError(f"places must be states from 0 to {model.size - 1}, got {chosen[-1]}")
    continuation = exp(-model.step / (3600 * hours))
    mean = csr_array(sum(model.transitions[1:], model.transitions[0]) / len(model.transitions))
    is_target = np.isin(np.arange(model.chain_size), chosen)
    others = np.flatnonzero(~is_target)
    hitting = is_target.astype(np.float64)
    if len(others):
        # Hitting probabilities solve h = c (P_inner h + P_outer 1), with c the probability that the time continues.
        inner, outer = mean[others][:, others], mean[others][:, np.flatnonzero(is_target)]
        scaled = csr_array((continuation * inner.data, inner.indices, inner.indptr), shape=inner.shape)
        system = csc_array(eye_array(len(others)) - scaled)
        hitting[others] = spsolve(system, continuation * np.asarray(outer.sum(axis=1)))
    hitting = np.maximum(hitting, _MIN_HITTING_PROBABILITY)
    matrices = []
    for transition in model.transitions:
        transformed = csr_array(transition.multiply(hitting[None, :]))
        transformed.data /= np.repeat(transformed.sum(axis=1), np.diff(transformed.indptr))
        matrices.append(transformed)
    initial = model.initial_by_class * hitting[: model.size]
    initial /= initial.sum(axis=1, keepdims=True)
    return model.with_probabilities(matrices, initial)


# Floor of the probability of reaching a state: moves stay possible in states from which no path leads there.
_MIN_HITTING_PROBABILITY = 1e-9


def _find_habit_weight(days: IntArray, rows: IntArray, columns: IntArray, shares: FloatArray) -> float:
    """Return the weight with the largest leave-one-day-out likelihood."""
    ones = np.ones(len(days))
    count = sum_others(ones, days, rows, columns)
    total = sum_others(ones, days, rows)

    def score_weight(weight: float) -> float:
        return float(np.log(shares if weight == inf else (count + weight * shares) / (total + weight)).sum())

    return find_best_weight(CANDIDATE_WEIGHTS, score_weight)
