"""A model in which every possible move has mass: counts of moves, shrunk towards what the region has in common.

The region's kernel is a small family: how far people move, one share for each ring of distances, times how much each
place attracts. From state i a ring is taken with its share and, within it, state j in proportion to its attraction:

    K(i, j) = share[r(i, j)] · a(j) / Σ a(j'), over all j' in the same ring of i

(rings in which nothing lies around i are left out, and the other shares scaled). Where many moves were counted they
speak for themselves, where few were the kernel does:

    P(i, j) = (n(i, j) + w · K(i, j)) / (n(i) + w)

The weight w is the one that best predicts people whom the counts do not know: each person's moves are scored with
their own counts taken out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, SMALLEST, FloatArray, IntArray, as_floats, as_integers
from dphmm.errors import ConfigurationError, InvalidInputError, StateError
from dphmm.facts import fact
from dphmm.model.away import Away, shares
from dphmm.model.model import MarkovModel
from dphmm.model.moves import Moves, MoveTable, StateSequence, all_moves, coded, likeliest, moves_of, of_others
from dphmm.model.speed_limit import MAX_SPEED_KMH, SpeedLimit
from dphmm.model.time_classes import TimeClasses
from dphmm.space.states import StateSpace

EVEN = 0.3
"""The part of attraction, and of the first distribution, that all states have alike, seen or not."""

WEIGHTS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""What the weight of the kernel is chosen from."""

_USUAL_WEIGHT = 30.0
_PRIOR_MOVES = 0.5
"""Added to the moves of each ring, so that none is impossible (Jeffreys' prior)."""


class RegionKernel:
    """Moves by their distance times the attraction of where they lead.

    Parameters
    ----------
    reach
        The possible moves.
    shares
        ``(rings,)``: how probable each ring is, positive; scaled to sum to one.
    attraction
        ``(N,)``: how much each state attracts, positive.
    stays
        ``(N,)``: the probability of staying in each state, between 0 and 1, in place of the first ring's share; left
        out, that one for all.

    Raises
    ------
    InvalidInputError
        When there are not as many numbers as rings and states, or one is not positive and finite.
    """

    @checked
    def __init__(
        self, reach: SpeedLimit, shares: npt.ArrayLike, attraction: npt.ArrayLike, stays: npt.ArrayLike | None = None
    ) -> None:
        self.reach = reach
        self.stays = None if stays is None else as_floats(stays, "stays")
        if self.stays is not None and not (
            self.stays.shape == (reach.size,) and ((self.stays > 0) & (self.stays < 1)).all()
        ):
            raise InvalidInputError(f"stays have shape {self.stays.shape}; give {reach.size} numbers between 0 and 1")
        self.shares = _positive(shares, "shares", reach.ring_count)
        self.attraction = _positive(attraction, "attraction", reach.size)
        self._weights = self._per_ring()

    @classmethod
    def fit(cls, reach: SpeedLimit, entries: IntArray) -> RegionKernel:
        """The kernel of some moves, numbers of possible ones.

        Shares are those of the moves' rings, attraction that of their targets but for `EVEN`, which all have alike.

        Parameters
        ----------
        reach
            The possible moves.
        entries
            ``(n,)``: the numbers of the moves that were made.

        Returns
        -------
        RegionKernel
            The kernel.
        """
        rings, away = reach.rings[entries], entries[reach.rings[entries] > 0]
        shares = np.bincount(rings, minlength=reach.ring_count) + _PRIOR_MOVES
        return cls(reach, shares, attraction_of(np.bincount(reach.targets[away], minlength=reach.size)))

    def _per_ring(self) -> FloatArray:
        """``(N, rings)``: what the attraction of a target in each ring is multiplied by."""
        reach = self.reach
        sums = np.zeros((reach.size, reach.ring_count))
        for part, sources, cells in reach.blocks():
            own = sums[sources]
            own.ravel()[:] = np.bincount(cells, self.attraction[reach.targets[part]], minlength=own.size)
        shares = np.where(sums > 0, self.shares, 0.0)
        if self.stays is not None:
            away = shares[:, 1:].sum(axis=1)
            shares[:, 0] = np.where(away > 0, away * self.stays / (1 - self.stays), 1.0)
        shares /= shares.sum(axis=1, keepdims=True)
        return np.divide(shares, sums, out=shares, where=sums > 0)

    def data(self) -> FloatArray:
        """``(nnz,)``: the probability of each possible move; those of a state sum to one.

        Returns
        -------
        FloatArray
            ``(nnz,)``, in the order of the possible moves.
        """
        values = self.attraction[self.reach.targets]
        for part, sources, cells in self.reach.blocks():
            values[part] *= self._weights[sources].ravel()[cells]
        return values

    def of(self, sources: IntArray, entries: IntArray) -> FloatArray:
        """The probability of some possible moves, given by their sources and numbers, ``(n,)``.

        Parameters
        ----------
        sources
            ``(n,)``: the states that are left.
        entries
            ``(n,)``: the numbers of the moves.

        Returns
        -------
        FloatArray
            ``(n,)``.
        """
        return np.asarray(
            self._weights[sources, self.reach.rings[entries]] * self.attraction[self.reach.targets[entries]]
        )


@dataclass(frozen=True)
class ShrunkModel:
    """A model with what it was made of.

    Parameters
    ----------
    model
        It: every possible move has mass, and every state may be the first.
    kernel
        What all of the region have in common.
    weight
        How many moves the kernel counts as, at each state.
    moves
        How many moves were counted.
    too_fast
        How many were left out, since they were faster than people move: errors of measurement, or a speed set too low.
    rare
        How many were left out, since fewer people made them than were asked for.
    """

    model: MarkovModel
    kernel: RegionKernel
    weight: float = field(metadata=fact("weight_of_the_region_in_moves"))
    moves: int
    too_fast: int = field(metadata=fact("moves_that_were_faster"))
    rare: int = field(default=0, metadata=fact("moves_of_too_few_people"))


@checked
def fit_shrunk(
    sequences: Iterable[StateSequence],
    space: StateSpace,
    step_seconds: float,
    max_speed_kmh: float = MAX_SPEED_KMH,
    weight: float | None = None,
    least_people: int = 1,
    away: Away | None = None,
) -> ShrunkModel:
    """Learn a model in which every move that a person can make is possible, whether it was seen or not.

    Parameters
    ----------
    sequences
        One for each person; see `StateSequence`.
    space
        The states.
    step_seconds
        One time step.
    max_speed_kmh
        What decides which moves are possible, kilometres an hour: see `SpeedLimit`.
    weight
        How many moves the region's kernel counts as at each state, positive; left out, the one of `WEIGHTS` that best
        predicts each person from all others, or 30 where there is one person only.
    least_people
        Moves that fewer people made are left out, and so are visits of places where fewer were. That is no guarantee:
        who knows what the others did can still tell what one person did.
    away
        Twins of border states, whose numbers sequences use for people outside, see `dphmm.model.away`. Moves of people
        inside and outside then have kernels and counts of their own; what part of those who get to a border state is
        outside is counted at each, and shrunk towards that of all.

    Returns
    -------
    ShrunkModel
        The model with what it was made of.

    Raises
    ------
    StateError
        For a state that does not exist.
    InvalidInputError
        For a weight that is not positive, fewer than one person, or when no state was seen at all.
    ConfigurationError
        As `SpeedLimit`.

    Examples
    --------
    >>> from dphmm.space.grid import Grid
    >>> grid = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)
    >>> found = fit_shrunk([[0, 1, 1, 2], [2, 1, 0, 0]], grid, 60)
    >>> found.moves, found.too_fast, bool((found.model.initial > 0).all())
    (6, 0, True)
    """
    if weight is not None and not SMALLEST <= weight <= LARGEST:
        raise InvalidInputError(f"weight is {weight}; give a number of moves from {SMALLEST:g} to {LARGEST:g}")
    if least_people < 1:
        raise InvalidInputError(f"least_people is {least_people}; give at least one")
    last = np.arange(space.size) if away is None else away.last
    people = [moves_of(sequence, len(last)) for sequence in sequences]
    moves = all_moves(people)
    if not (moves.visits < space.size).any():
        raise InvalidInputError("no sequence visits any state; check the region, the step and the times of the data")
    reach = SpeedLimit(space, step_seconds, max_speed_kmh)
    entries = reach.find(last[moves.sources], last[moves.targets])
    owner = np.repeat(np.arange(len(people)), [len(one) for one in people])
    visitor = np.repeat(np.arange(len(people)), [len(one.visits) for one in people])
    visits = last[moves.visits[_often(visitor, moves.visits, least_people)]]
    fast = entries < 0
    known = ~fast & _often(owner, entries, least_people)

    def rows(some: npt.NDArray[np.bool_]) -> tuple[RegionKernel, float, csr_array]:
        kernel, sources = RegionKernel.fit(reach, entries[some]), last[moves.sources[some]]
        chosen = _best_weight(kernel, owner[some], sources, entries[some]) if weight is None else float(weight)
        return kernel, chosen, shrunk(kernel, np.bincount(entries[some], minlength=reach.entries), chosen)

    inside = moves.sources < space.size
    kernel, chosen, matrix = rows(known & inside)
    if away is not None:
        getting_out = (_shares_out(moves.targets[known & some], away) for some in (inside, ~inside))
        matrix = away.chain(matrix, rows(known & ~inside)[2], *getting_out)
    first = attraction_of(np.bincount(visits, minlength=space.size))
    model = MarkovModel(matrix, first, space, float(step_seconds), away=away)
    rare = int((~known & ~fast).sum())
    return ShrunkModel(model, kernel, chosen, int(known.sum()), int(fast.sum()), rare)


def _shares_out(targets: IntArray, away: Away) -> FloatArray:
    """The part of moves to each border state, or to places nearest to it, that lead outside, ``(m,)``."""
    counts = np.bincount(targets, minlength=len(away))
    return shares(counts[away.size :], counts[away.border])


def _often(people: IntArray, things: IntArray, least: int) -> npt.NDArray[np.bool_]:
    """Which of the things were met by at least a number of people."""
    if least == 1:
        return np.ones(len(things), dtype=np.bool_)
    _, number = np.unique(things, return_inverse=True)
    pairs = np.unique(np.stack([number.ravel(), people]), axis=1)
    return np.asarray(np.bincount(pairs[0], minlength=int(number.max(initial=0)) + 1)[number.ravel()] >= least)


def shrunk(kernel: RegionKernel, counts: npt.NDArray[Any], weight: float) -> Any:
    """The transition matrix of counts of the possible moves, ``(nnz,)``, shrunk towards a kernel of some weight."""
    data = kernel.data()
    data *= weight
    data += counts
    matrix = kernel.reach.with_data(data)
    matrix.data /= np.repeat(matrix.sum(axis=1), np.diff(matrix.indptr))
    return matrix


def attraction_of(counts: npt.NDArray[Any]) -> FloatArray:
    """Shares of counts that are not negative, ``(N,)``, but for `EVEN`, which all have alike; they sum to one."""
    total = counts.sum()
    even = np.full(len(counts), 1.0 / len(counts))
    return even if total == 0 else np.asarray(EVEN * even + (1 - EVEN) * counts / total)


def _best_weight(kernel: RegionKernel, owner: IntArray, sources: IntArray, entries: IntArray) -> float:
    """The weight under which everyone's moves are the most probable when their own are not counted."""
    if len(np.unique(owner)) < 2:
        return _USUAL_WEIGHT
    everyone = np.bincount(entries, minlength=kernel.reach.entries)
    left = np.bincount(sources, minlength=kernel.reach.size)
    _, first, own = np.unique(owner * kernel.reach.entries + entries, return_index=True, return_counts=True)
    _, at, own_left = np.unique(owner * kernel.reach.size + sources, return_inverse=True, return_counts=True)
    others = everyone[entries[first]] - own
    others_left = left[sources[first]] - own_left[at[first]]
    share = kernel.of(sources[first], entries[first])
    scores = [float(own @ np.log((others + w * share) / (others_left + w))) for w in WEIGHTS]
    return WEIGHTS[int(np.argmax(scores))]


def _positive(values: npt.ArrayLike, name: str, count: int) -> FloatArray:
    found = as_floats(values, name)
    if found.shape != (count,) or not ((found > 0) & (found <= LARGEST)).all():
        raise InvalidInputError(f"{name} have shape {found.shape}; give {count} positive numbers")
    return np.asarray(found / found.sum())


_WEIGHTS = (*(float(2**k) for k in range(15)), inf)
_MOST = 1 << 26
_OWN = 4.0
"""How many moves the given row counts as beside those of all other people, when a person is left out."""
_LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class Extension:
    """An extended model, and how much was taken from the counts of its classes.

    Parameters
    ----------
    model
        The model.
    class_weight
        How many moves the row of all hours counts as beside those of a class; infinite where classes were of no use to
        other people.
    moves
        How many moves were counted.
    impossible
        How many more were seen that the given model thinks impossible, and were left out.
    """

    model: MarkovModel
    class_weight: float
    moves: int
    impossible: int


@checked
def extend(
    model: MarkovModel,
    sequences: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    time_classes: TimeClasses,
) -> Extension:
    """Learn how movement differs by the class of time from a model with one matrix.

    Each row of the result is ``(counts + w * row) / (total + w)``, where ``row`` is that of all classes with the odds
    of leaving the state multiplied by the class's most likely factor, one number for the whole region. So what was seen
    little stays near what is known anyway, and no move becomes possible or impossible. Of the weights ``w`` that is
    chosen which predicts the moves of each person best from those of all others.

    Parameters
    ----------
    model
        A model with one matrix, whose possible moves stay the possible ones at all times. What it promises to people
        the result does not: moves are counted without noise.
    sequences
        Slot numbers and states of people, one each, as `dphmm.model.state_sequence` gives; a state of -1 is unknown.
    time_classes
        The classes of time.

    Returns
    -------
    Extension
        The extended model, with the weight that was chosen.

    Raises
    ------
    ConfigurationError
        When the model is extended already, or its step is not that of the classes.
    InvalidInputError
        When the result would have more than 2 ** 26 possible moves.
    StateError
        When a state does not exist, or slots do not increase.

    Examples
    --------
    >>> base = MarkovModel([[.5, .5], [.5, .5]], [.5, .5], step_seconds=3600)
    >>> days = np.tile(np.repeat([0, 1], [12, 12]), 10)
    >>> people = [(np.arange(240), days), (np.arange(240) + 2400, days)]
    >>> made = extend(base, people, TimeClasses.of("hours", 3600)).model
    >>> made.transitions[3].toarray().round(2)[0].tolist(), made.transitions[11].toarray().round(2)[0].tolist()
    ([0.98, 0.02], [0.0, 1.0])
    """
    if model.time_classes is not None:
        raise ConfigurationError(f"the model must have one matrix for all times, but it {model.in_words}")
    listed = [tuple(as_integers(part, "slots and states", StateError) for part in one) for one in sequences]
    each = [moves_of(one, model.chain_size) for one in listed]
    seen, table = all_moves(each), MoveTable(model.transitions[0])
    possible = table.holds(seen.sources, seen.targets)
    moves, person = seen.some(possible), np.repeat(np.arange(len(each)), [len(one) for one in each])[possible]
    if time_classes.count * table.matrix.nnz > _MOST:
        raise InvalidInputError(
            f"{time_classes.count * table.matrix.nnz} possible moves in {time_classes.count} classes of time are more "
            "than fit into memory; take larger cells or fewer classes"
        )
    classes = time_classes.classes_of(moves.slots)
    restlessness = _restlessness(table, moves, person, classes, time_classes.count)
    tilt = _Tilt(moves.sources, restlessness[classes], table.stays[moves.sources])
    known, finer = table.entries(moves.sources, moves.targets), classes * model.chain_size + moves.sources
    class_weight = _weight(person, moves.sources, finer, moves.targets, known, tilt)
    chosen = [classes == number for number in range(time_classes.count)]
    matrices = [
        table.tilted(float(factor)).mixed(moves.sources[one], moves.targets[one], class_weight).matrix
        for one, factor in zip(chosen, restlessness, strict=True)
    ]
    starts = _starts(model, listed, time_classes)
    made = MarkovModel(matrices, starts, model.states, model.step_seconds, time_classes, model.away)
    said = {"promise": "none: moves were counted without noise", "extended": made.in_words}
    vars(made).update(learned={**(model.learned or {}), **said})
    return Extension(made, class_weight, len(moves.slots), len(seen.slots) - len(moves.slots))


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

    possible = stays < 1.0  # a state that cannot be left says nothing
    odds, left, cells = odds[possible], left[possible], cells[possible]
    added = likeliest(_WEIGHTS, score)
    total = [one.sum(axis=0) for one in sums]
    return np.ones(count) if added == inf else np.asarray((total[0] + added) / (total[1] + added))


def _weight(
    person: IntArray, parent: IntArray, row: IntArray, column: IntArray, known: FloatArray, tilt: _Tilt | None = None
) -> float:
    """The weight of the parent's row that predicts each person best from all others; the largest of equal ones.

    Of counted things: each has a parent row, a finer row within it, a column, and its probability in the parent row.
    What all others say of a parent's row is their counts in it, beside a few moves of the row as it is given.
    """
    _, first, number = np.unique(coded(person, row, column), return_index=True, return_counts=True)
    own = number.astype(np.float64)
    person, row, column, parent = (part[first] for part in (person, row, column, parent))
    child, child_total = of_others(own, person, row, column), of_others(own, person, row)
    total = of_others(own, person, parent) + _OWN
    prior = (of_others(own, person, parent, column) + _OWN * known[first]) / total
    if tilt is not None:
        factor, stayed = tilt.factor[first], tilt.source[first] == column
        staying = (of_others(own * stayed, person, parent) + _OWN * tilt.stays[first]) / total
        prior *= np.where(stayed, 1.0, factor) / (staying + (1.0 - staying) * factor)

    def score(weight: float) -> float:
        return float(own @ np.log(prior if weight == inf else (child + weight * prior) / (child_total + weight)))

    return likeliest(_WEIGHTS, score)


def _starts(model: MarkovModel, sequences: Iterable[tuple[IntArray, ...]], time_classes: TimeClasses) -> FloatArray:
    """The distribution of the state by class, shrunken towards that of all times."""
    parts = [(np.full(len(slots), person), slots, states) for person, (slots, states) in enumerate(sequences)]
    person, slots, states = (np.concatenate(column) for column in zip(*parts, strict=True))
    states = np.where(states < 0, -1, model.last[states])
    good = (states >= 0) & (model.initial[np.maximum(states, 0)] > 0)
    person, slots, states = person[good], slots[good], states[good]
    classes = time_classes.classes_of(slots)
    weight = _weight(person, np.zeros_like(states), classes, states, model.initial[states])
    if weight == inf:
        return np.repeat(model.initial[np.newaxis], time_classes.count, axis=0)
    seen = np.bincount(classes * model.size + states, minlength=time_classes.count * model.size)
    seen = seen.reshape(time_classes.count, -1)
    return np.asarray((seen + weight * model.initial) / (seen.sum(axis=1, keepdims=True) + weight))
