"""A model with a promise of its own: how much it tells of any one person, with all their days, is bounded.

Two data sets are neighbours when one has a person more than the other, with all that is known of them. Each person's
moves are thinned to at most m, so that one person more or less changes these counts by no more, in all, than is said:

1. how many people there are: by 1;
2. moves by the ring of their distance, of which staying is one: by m;
3. stays, and arrivals from elsewhere, in each block of states: by m, for a move is one or the other;
4. where there is a table, how often each move from one state to another was made: by m;
5. where the model varies with time, a short list, and where it is of second order, two: by m each; see
   `dphmm.jobs.private_extension`.

Discrete Laplace noise goes on each of them, drawn exactly, of scale (by how much) / (its part of ε), also where the
count is zero. All else is made of these noisy counts and of what is public, so that the model is ε-differentially
private for the sum of the parts (Dwork et al., TCC 2006), whatever anybody knows already of that person and others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, RandomSource, Rng, random_source
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError
from dphmm.jobs.private_extension import ThinnedMoves, extended_model
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel
from dphmm.markov.moves import Moves, Sequence, moves_of
from dphmm.markov.reach import MAX_SPEED_KMH, Reach
from dphmm.markov.rhythm import Rhythm
from dphmm.markov.shrinkage import EVEN, RegionKernel
from dphmm.mechanisms.exact import Rational, rational
from dphmm.mechanisms.lattice_noise import laplace_steps
from dphmm.space.grid import Grid
from dphmm.space.states import StateSpace

MOVES_PER_PERSON = 20
"""Of each person at most so many moves count, unless it is said."""

MOST_PER_PERSON = 100_000
LARGEST_TABLE = 3_000_000
"""Tables of more possible moves than this are not made: each of them needs noise."""

_OF_PEOPLE = Fraction(1, 20)
_OF_TABLE = Fraction(3, 5)
_OF_EXTRA = Fraction(1, 8)
_PEOPLE_PER_MOVE = 4
_FAR_FLOOR = 0.02
_STAY_WEIGHT = 10.0
_LEAST_WEIGHT = 30.0
_STAYS = 0.01, 0.998
_WIDEST = 2**42


@dataclass(frozen=True)
class BoundedCounts:
    """Counts without noise to which one person adds a bounded amount; private.

    Attributes
    ----------
    people
        How many people there are.
    rings
        Moves by the ring of their distance, staying first.
    places
        ``(2, blocks)``: stays, and arrivals from elsewhere.
    table
        How often each possible move was made, staying left out; None where no table is wanted.
    """

    people: int
    rings: IntArray
    places: IntArray
    table: IntArray | None

    @classmethod
    def of(
        cls, people: list[Moves], reach: Reach, blocks: IntArray, most: int, with_table: bool = False
    ) -> BoundedCounts:
        """The counts of some people, of whom each adds at most ``most`` to rings, to places and to the table."""
        count = int(blocks.max()) + 1
        rings, places = np.zeros(reach.ring_count, dtype=np.int64), np.zeros((2, count), dtype=np.int64)
        moved = [np.zeros(0, dtype=np.int64)]
        for one in people:
            kept = one.thinned(most)
            entries = reach.find(kept.sources, kept.targets)
            targets, entries = kept.targets[entries >= 0], entries[entries >= 0]
            ring = reach.rings[entries]
            rings += np.bincount(ring, minlength=reach.ring_count)
            places[0] += np.bincount(blocks[targets[ring == 0]], minlength=count)
            places[1] += np.bincount(blocks[targets[ring > 0]], minlength=count)
            if with_table:
                moved.append(entries[ring > 0])
        table = np.bincount(np.concatenate(moved), minlength=reach.entries) if with_table else None
        return cls(len(people), rings, places, table)


@dataclass(frozen=True)
class PrivateModel:
    """A model that may be published, and what its promise is made of; all of it may be published.

    Attributes
    ----------
    model
        It.
    epsilon
        Two data sets of which one has a person more give any set of models with probabilities that differ at most by
        the factor e to this.
    moves_per_person
        How many moves of a person counted at most.
    spent
        What each noisy count took of epsilon; they sum to it.
    people
        How many people there are, with noise.
    family
        ``"kernel"``: moves by distance and attraction; ``"table"``: counts of each move besides.
    block
        How many cells of a grid a side of the blocks had of which stays and arrivals were counted.
    """

    model: MarkovModel
    epsilon: Fraction
    moves_per_person: int
    spent: Mapping[str, Fraction]
    people: int
    family: str
    block: int

    @property
    def facts(self) -> dict[str, Any]:
        """What the model's file says of it."""
        return {
            "promise": "differential privacy of whole people: with one person more or less, with all their days, no "
            "set of models becomes more probable than e^epsilon times what it was",
            "epsilon": str(self.epsilon),
            "spent_on": {name: str(part) for name, part in self.spent.items()},
            "moves_per_person": self.moves_per_person,
            "people_with_noise": self.people,
            "family": self.family,
            "cells_along_a_block": self.block,
        }

    def after(self, name: str, epsilon: Fraction | None) -> PrivateModel:
        """The same with what was spent on something before."""
        if epsilon is None:
            return self
        made = replace(self, epsilon=self.epsilon + epsilon, spent={name: epsilon, **self.spent})
        return replace(made, model=self.model.saying({**(self.model.learned or {}), **made.facts}))


class _Noise:
    """Exact noise out of a budget that is written down."""

    def __init__(self, epsilon: Fraction, source: RandomSource) -> None:
        self.left, self.source = epsilon, source
        self.spent: dict[str, Fraction] = {}

    def add(self, name: str, counts: npt.ArrayLike, sensitivity: int, epsilon: Fraction) -> IntArray:
        if not 0 < epsilon <= self.left:
            raise BudgetError(f"{name} would take {epsilon} of epsilon, and {self.left} is left")
        self.left -= epsilon
        self.spent[name] = epsilon
        true = np.asarray(counts, dtype=np.int64)
        return true + laplace_steps(epsilon / sensitivity, true.size, self.source).reshape(true.shape)


@checked
def fit_private(
    sequences: Iterable[Sequence],
    space: StateSpace,
    step_seconds: float,
    epsilon: Rational,
    moves_per_person: int = MOVES_PER_PERSON,
    max_speed_kmh: float = MAX_SPEED_KMH,
    rng: Rng = None,
    rhythm: Rhythm | None = None,
    order: int = 1,
) -> PrivateModel:
    """Learn a model with differential privacy for whole people.

    Parameters
    ----------
    sequences
        One for each person, with all their days; see `dphmm.markov.MarkovModel.fit`. Who is in two sequences is
        protected half as well.
    space, step_seconds, max_speed_kmh
        What is possible; see `dphmm.markov.Reach`. Choose them without looking at the data.
    epsilon
        The budget of the model, positive; a float stands for the decimal number that it prints as.
    moves_per_person
        How many moves of one person count at most; whoever has more is thinned to evenly spaced ones. Choose it
        without looking at the data: about how many moves most people have.
    rng
        Where the noise comes from; left out, the operating system, otherwise the model is not private.
    rhythm
        Classes of time, for a model that varies with them; see `dphmm.markov.Rhythm`.
    order
        1, or 2 for a model that looks back two steps.

    Returns
    -------
    PrivateModel
        Of few people the kernel alone, for many with a table: which one, and how finely places are told apart, follows
        from the noisy number of people, the budget and the region.

    Raises
    ------
    BudgetError
        For a budget that is not positive, or too small for 64 bits.
    InvalidInputError
        For a bound on moves outside of 1 to 100000.
    ConfigurationError
        For another order, a rhythm of another step, or when more moves are possible than fit into memory.
    StateError, ConfigurationError
        As `dphmm.markov.fit_shrunk`. That no state was seen is no error: whether there is data is private.

    Examples
    --------
    >>> grid = Grid.over((45.0, 7.0, 45.05, 7.05), 1)
    >>> found = fit_private([[0, 1, 1, 2]] * 200, grid, 600, 1, moves_per_person=3, rng=1)
    >>> found.family, found.people, sum(found.spent.values())
    ('kernel', 175, Fraction(1, 1))
    """
    budget = rational(epsilon)
    if not 1 <= moves_per_person <= MOST_PER_PERSON:
        raise InvalidInputError(f"moves_per_person is {moves_per_person}; give 1 to {MOST_PER_PERSON}")
    if budget * _WIDEST < 1000 * moves_per_person:
        raise BudgetError(f"epsilon is {epsilon}; its noise may pass 64 bits, so give a larger one")
    if order not in (1, 2):
        raise ConfigurationError(f"the order is {order}; give 1 or 2")
    people = [moves_of(sequence, space.size) for sequence in sequences]
    reach = Reach(space, step_seconds, max_speed_kmh)
    noise = _Noise(budget, random_source(rng))
    count = int(noise.add("people", len(people), 1, budget * _OF_PEOPLE))
    extended = ["leaving", "turns"] * (order == 2) + ["clock"] * (rhythm is not None)
    extras = dict.fromkeys(extended, budget * _OF_EXTRA)
    rest = budget - sum(extras.values(), Fraction(0))
    with_table = _has_table(max(count, 1), rest, reach)
    parts = _parts(max(count, 1), rest, budget * _OF_PEOPLE, with_table) | extras
    side = 1 if with_table else _block_side(space, max(count, 1) * float(parts["places"]))
    blocks = _blocks(space, side)
    true = BoundedCounts.of(people, reach, blocks, moves_per_person, with_table)
    rings = noise.add("rings", true.rings, moves_per_person, parts["rings"])
    places = noise.add("places", true.places, moves_per_person, parts["places"])
    scale = moves_per_person / float(parts["places"])
    kernel = _kernel(reach, rings, places, blocks, scale)
    matrix = reach.with_data(kernel.data())
    if true.table is not None:
        table = noise.add("table", true.table, moves_per_person, parts["table"])
        matrix = _with_table(kernel, table, places[1], moves_per_person / float(parts["table"]))
    family = "table" if with_table else "kernel"
    model = MarkovModel(matrix, kernel.attraction, space, float(step_seconds))
    if extras:
        kept = ThinnedMoves(people, reach, moves_per_person)
        scale = moves_per_person / float(budget * _OF_EXTRA)

        def add(name: str, counts: IntArray, sensitivity: int) -> IntArray:
            return noise.add(name, counts, sensitivity, parts[name])

        model = extended_model(model, kept, add, scale, rhythm, order)
    made = PrivateModel(model, budget, moves_per_person, dict(noise.spent), max(count, 0), family, side)
    said = {"extended": model.in_words} if isinstance(model, ExtendedModel) else {}
    return replace(made, model=model.saying({**made.facts, **said, "max_speed_kmh": reach.max_speed_kmh}))


def _has_table(people: int, epsilon: Fraction, reach: Reach) -> bool:
    """Whether there are four times as many people, each weighing its part of the budget, as possible moves."""
    return reach.entries <= LARGEST_TABLE and people * epsilon * _OF_TABLE >= _PEOPLE_PER_MOVE * reach.entries


def _parts(people: int, epsilon: Fraction, spent: Fraction, with_table: bool) -> dict[str, Fraction]:
    """How what is left of a budget is dealt: the fewer people, the more of it to distances, which tell the most."""
    left = epsilon - spent
    if with_table:
        table = epsilon * _OF_TABLE
        left -= table
        return {"rings": left / 4, "places": left * 3 / 4, "table": table}
    share = min(max(15.0 / sqrt(people * float(epsilon)), 0.15), 0.95)
    rings = left * Fraction(round(share * 100), 100)
    return {"rings": rings, "places": left - rings}


def _block_side(space: StateSpace, weight: float) -> int:
    """The least side, in cells, of which there are no more blocks than people, weighed by their part of the budget."""
    if not isinstance(space, Grid):
        return 1
    side = 1
    while (-(-space.columns // side)) * (-(-space.rows // side)) > max(weight, 1.0):
        side += 1
    return side


def _blocks(space: StateSpace, side: int) -> IntArray:
    """``(N,)``: the block that each state lies in."""
    if not isinstance(space, Grid) or side == 1:
        return np.arange(space.size)
    column, row = (space.lattice // side).T
    return np.unique(row * space.columns + column, return_inverse=True)[1].ravel().astype(np.int64)


def _kernel(reach: Reach, rings: IntArray, places: IntArray, blocks: IntArray, scale: float) -> RegionKernel:
    """The region's kernel out of noisy counts."""
    sizes = np.bincount(blocks)
    shares = _falling(rings, np.bincount(reach.rings, minlength=reach.ring_count) / reach.size)
    stayed, arrived = np.maximum(places, 0)
    total = float(max(places[1].sum(), 0))
    trust = (1 - EVEN) * total / (total + scale * len(sizes))
    even = np.full(reach.size, 1.0 / reach.size)
    pull = (arrived / sizes)[blocks]
    pull = even if not pull.any() else (1 - trust) * even + trust * pull / pull.sum()
    usual = float(np.clip(shares[0] / shares.sum(), *_STAYS))
    weight = max(_STAY_WEIGHT * scale, _LEAST_WEIGHT)
    stays = (stayed + weight * usual) / (stayed + arrived + weight)
    return RegionKernel(reach, shares, pull, np.clip(stays, *_STAYS)[blocks])


def _falling(rings: IntArray, cells: FloatArray) -> FloatArray:
    """Shares of the rings, the nearest that fall with distance for each of a ring's ``cells``; all positive.

    Noise that makes a far and wide ring seem likely would spoil the most. So what a cell gets never rises with distance
    (isotonic regression), but for a small part that all cells get alike.
    """
    from scipy.optimize import isotonic_regression

    shares = np.full(len(rings), 1e-6)
    known = np.flatnonzero(cells[1:] > 0) + 1
    if len(known):
        area = cells[known]
        density = isotonic_regression(rings[known] / area, weights=area**2, increasing=False).x
        away = np.maximum(density, 0.0) * area
        shares[known] = away + _FAR_FLOOR * max(float(away.sum()), 1.0) * area / area.sum()
    shares[0] = max(float(rings[0]), 1.0)
    return shares


def _with_table(kernel: RegionKernel, table: IntArray, arrived: IntArray, scale: float) -> Any:
    """The transition matrix out of noisy counts of moves, of which only those count that noise hardly makes."""
    reach = kernel.reach
    moving = reach.rings > 0
    kept = np.where(moving & (table >= scale * log(reach.entries)), table, 0)
    data = kernel.data()
    rows = np.repeat(np.arange(reach.size), np.diff(reach.moves.indptr))
    away = np.bincount(rows, np.where(moving, data, 0.0), minlength=reach.size)
    seen = np.bincount(rows, kept, minlength=reach.size)
    weight = np.maximum(arrived - seen, _LEAST_WEIGHT)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = away[rows] * (kept + weight[rows] * data / away[rows]) / (seen + weight)[rows]
    return reach.with_data(np.where(moving, spread, data))
