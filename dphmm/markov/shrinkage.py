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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, SMALLEST, FloatArray, IntArray, as_floats
from dphmm.errors import InvalidInputError
from dphmm.markov.model import MarkovModel
from dphmm.markov.moves import Sequence, all_moves, moves_of
from dphmm.markov.reach import MAX_SPEED_KMH, Reach
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
        self, reach: Reach, shares: npt.ArrayLike, attraction: npt.ArrayLike, stays: npt.ArrayLike | None = None
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
    def fit(cls, reach: Reach, entries: IntArray) -> RegionKernel:
        """The kernel of some moves, numbers of possible ones.

        Shares are those of the moves' rings, attraction that of their targets but for `EVEN`, which all have alike.
        """
        rings, away = reach.rings[entries], entries[reach.rings[entries] > 0]
        shares = np.bincount(rings, minlength=reach.ring_count) + _PRIOR_MOVES
        return cls(reach, shares, attraction_of(np.bincount(reach.targets[away], minlength=reach.size)))

    def _per_ring(self) -> FloatArray:
        """``(N, rings)``: what the attraction of a target in each ring is multiplied by."""
        reach, rings = self.reach, self.reach.ring_count
        sums = np.zeros((reach.size, rings))
        for part, first, lengths in reach.blocks():
            rows = np.repeat(np.arange(len(lengths)) * rings, lengths)
            rows += reach.rings[part]
            found = np.bincount(rows, self.attraction[reach.targets[part]], minlength=len(lengths) * rings)
            sums[first : first + len(lengths)] = found.reshape(-1, rings)
        shares = np.where(sums > 0, self.shares, 0.0)
        if self.stays is not None:
            away = shares[:, 1:].sum(axis=1)
            shares[:, 0] = np.where(away > 0, away * self.stays / (1 - self.stays), 1.0)
        shares /= shares.sum(axis=1, keepdims=True)
        return np.divide(shares, sums, out=shares, where=sums > 0)

    def data(self) -> FloatArray:
        """``(nnz,)``: the probability of each possible move; those of a state sum to one."""
        reach, rings = self.reach, self.reach.ring_count
        values = self.attraction[reach.targets]
        for part, first, lengths in reach.blocks():
            rows = np.repeat(np.arange(first, first + len(lengths)) * rings, lengths)
            rows += reach.rings[part]
            values[part] *= self._weights.ravel()[rows]
        return values

    def of(self, sources: IntArray, entries: IntArray) -> FloatArray:
        """The probability of some possible moves, told by their sources and numbers, ``(n,)``."""
        return np.asarray(
            self._weights[sources, self.reach.rings[entries]] * self.attraction[self.reach.targets[entries]]
        )


@dataclass(frozen=True)
class ShrunkModel:
    """A model with what it was made of.

    Attributes
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
        How many were left out, since nobody moves so fast: errors of measurement, or a speed set too low.
    rare
        How many were left out, since fewer people made them than were asked for.
    """

    model: MarkovModel
    kernel: RegionKernel
    weight: float
    moves: int
    too_fast: int
    rare: int = 0


@checked
def fit_shrunk(
    sequences: Iterable[Sequence],
    space: StateSpace,
    step_seconds: float,
    max_speed_kmh: float = MAX_SPEED_KMH,
    weight: float | None = None,
    least_people: int = 1,
) -> ShrunkModel:
    """Learn a model in which every move that a person can make is possible, whoever made it.

    Parameters
    ----------
    sequences
        One for each person; see `Sequence`.
    space
        The states.
    step_seconds
        One time step.
    max_speed_kmh
        What decides which moves are possible, kilometres an hour: see `Reach`.
    weight
        How many moves the region's kernel counts as at each state, positive; left out, the one of `WEIGHTS` that best
        predicts each person from all others, or 30 where there is one person only.
    least_people
        Moves that fewer people made are left out, and so are visits of places where fewer were. That is no guarantee:
        who knows what the others did can still tell what one person did.

    Raises
    ------
    StateError
        For a state that does not exist.
    InvalidInputError
        For a weight that is not positive, fewer than one person, or when no state was seen at all.
    ConfigurationError
        As `Reach`.

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
    people = [moves_of(sequence, space.size) for sequence in sequences]
    moves = all_moves(people)
    if not len(moves.visits):
        raise InvalidInputError("no sequence visits any state; check the region, the step and the times of the data")
    reach = Reach(space, step_seconds, max_speed_kmh)
    entries = reach.find(moves.sources, moves.targets)
    owner = np.repeat(np.arange(len(people)), [len(one) for one in people])
    visitor = np.repeat(np.arange(len(people)), [len(one.visits) for one in people])
    visits = moves.visits[_often(visitor, moves.visits, least_people)]
    fast = entries < 0
    known = ~fast & _often(owner, entries, least_people)
    kernel = RegionKernel.fit(reach, entries[known])
    chosen = _best_weight(kernel, owner[known], moves.sources[known], entries[known]) if weight is None else weight
    counts = np.bincount(entries[known], minlength=reach.entries)
    matrix = shrunk(kernel, counts, float(chosen))
    first = attraction_of(np.bincount(visits, minlength=space.size))
    model = MarkovModel(matrix, first, space, float(step_seconds))
    rare = int((~known & ~fast).sum())
    return ShrunkModel(model, kernel, float(chosen), int(known.sum()), int(fast.sum()), rare)


def _often(people: IntArray, things: IntArray, least: int) -> npt.NDArray[np.bool_]:
    """Which of the things were met by so many people at least."""
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
