"""Models that may be published: how much they tell of any one person, with all their days, is bounded.

Two data sets are neighbours when one has one person more than the other, with all of that person's data. Each person's
moves are thinned to at most m, so that one person more or less changes these counts by no more, in all, than is said:

1. how many people there are: by 1;
2. moves by the ring of their distance, of which staying is one: by m;
3. stays, and arrivals from elsewhere, in each block of states: by m, for a move is one or the other;
4. where there is a table, how often each move from one state to another was made: by m.

Discrete Laplace noise goes on each of them, drawn exactly, of scale (by how much) / (its part of ε), also where the
count is zero. All else is made of these noisy counts and of what is public, so that the model is ε-differentially
private for the sum of the parts (Dwork et al., TCC 2006), whatever is already known of that person and others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import log, sqrt
from typing import Any

import numpy as np

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, Rng, random_source
from dphmm.errors import BudgetError, InvalidInputError
from dphmm.facts import fact, facts_of
from dphmm.mechanisms.count_noise import LARGEST_SCALE, CountNoise
from dphmm.mechanisms.exact import Rational, rational
from dphmm.model import MAX_SPEED_KMH, MarkovModel, RegionKernel, SpeedLimit
from dphmm.model.away import Away, twins_of
from dphmm.model.fitting import EVEN
from dphmm.model.moves import Moves, StateSequence, moves_of
from dphmm.space import Grid, StateSpace

MOVES_PER_PERSON = 20
"""The most moves of each person that count, unless it is said."""

MOST_PER_PERSON = 100_000
LARGEST_TABLE = 3_000_000
"""Tables of more possible moves than this are not made: each of them needs noise."""

_OF_PEOPLE = Fraction(1, 20)
_OF_TABLE = Fraction(3, 5)
_PEOPLE_PER_MOVE = 4
_FAR_FLOOR = 0.02
_STAY_WEIGHT = 10.0
_LEAST_KERNEL_WEIGHT = 30.0
_STAYS = 0.01, 0.998

_OF_OUTSIDE = Fraction(1, 8)
"""The part of the budget that goes into what is said of people outside."""


@dataclass(frozen=True)
class BoundedCounts:
    """Counts without noise to which one person adds a bounded amount; private.

    Parameters
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
    def count(
        cls, people: list[Moves], reach: SpeedLimit, blocks: IntArray, most: int, with_table: bool = False
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

    Parameters
    ----------
    model
        The model.
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
    epsilon: Fraction = field(metadata=fact())
    spent: Mapping[str, Fraction] = field(metadata=fact("spent_on"))
    moves_per_person: int = field(metadata=fact())
    people: int = field(metadata=fact("people_with_noise"))
    family: str = field(metadata=fact())
    block: int = field(metadata=fact("cells_along_a_block"))

    @property
    def facts(self) -> dict[str, Any]:
        """What the model's file says of it."""
        return {
            "promise": "differential privacy of whole people: with one person more or less, with all their days, no "
            "set of models becomes more probable than e^epsilon times what it was",
            **facts_of(self),
        }

    def with_spending(self, name: str, epsilon: Fraction | None) -> PrivateModel:
        """The same with what was spent on something before.

        Parameters
        ----------
        name
            What the budget was spent on.
        epsilon
            How much; None for nothing.

        Returns
        -------
        PrivateModel
            With the sum of both budgets.
        """
        if epsilon is None:
            return self
        made = replace(self, epsilon=self.epsilon + epsilon, spent={name: epsilon, **self.spent})
        return replace(made, model=self.model.saying({**(self.model.learned or {}), **made.facts}))


@checked
def fit_private(
    sequences: Iterable[StateSequence],
    space: StateSpace,
    step_seconds: float,
    epsilon: Rational,
    moves_per_person: int = MOVES_PER_PERSON,
    max_speed_kmh: float = MAX_SPEED_KMH,
    rng: Rng = None,
    outside: Sequence[FloatArray] | None = None,
) -> PrivateModel:
    """Learn a model with differential privacy for whole people.

    Parameters
    ----------
    sequences
        One for each person, with all their days; see `dphmm.model.MarkovModel.fit`. A person who is in
        two sequences is protected half as well.
    space, step_seconds, max_speed_kmh
        What is possible; see `dphmm.model.SpeedLimit`. Choose them without looking at the data.
    epsilon
        The budget of the model, positive; a float stands for the decimal number that it prints as.
    moves_per_person
        How many moves of one person count at most; a person who has more is thinned to evenly spaced ones. Choose it
        without looking at the data: about how many moves most people have.
    rng
        Where the noise comes from; left out, the operating system, otherwise the model is not private.
    outside
        Of each person ``(t,)``, how far from the point of the nearest state they are at each entry of their sequence,
        kilometres, where they are outside; the sequences then number such places as `dphmm.model.away.twins_of` does.
        An eighth of the budget goes into what part of those who get to a border state are outside, and how far, alike
        for the whole region. Left out, everybody is taken to be inside.

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
    StateError, ConfigurationError
        As `dphmm.model.fit_shrunk`. That no state was seen is no error: whether there is data is private.

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
    if budget * LARGEST_SCALE < 1000 * moves_per_person:
        raise BudgetError(f"epsilon is {epsilon}; its noise may pass 64 bits, so give a larger one")
    twins = None if outside is None else twins_of(space)
    listed = list(sequences)
    people = [moves_of(sequence, space.size if twins is None else len(twins)) for sequence in listed]
    reach = SpeedLimit(space, step_seconds, max_speed_kmh)
    noise = CountNoise(budget, random_source(rng))
    count = int(noise.add("people", len(people), 1, budget * _OF_PEOPLE))
    extras: dict[str, Fraction] = {}
    if twins is not None and outside is not None:
        extras["outside"] = budget * _OF_OUTSIDE
        leaving, most = leaving_region(people, outside, twins, moves_per_person), 2 * moves_per_person
        leaving = noise.add("outside", leaving, most, extras["outside"])
        twins, shares_out = _private_twins(twins, leaving, most / float(extras["outside"]))
        people = [one.within(twins.last) for one in people]
    rest = budget - sum(extras.values(), Fraction(0))
    several = max(count, 1)
    # A table needs four times as many people, each weighing its part of the budget, as there are possible moves.
    is_small = reach.entries <= LARGEST_TABLE
    with_table = is_small and several * rest * _OF_TABLE >= _PEOPLE_PER_MOVE * reach.entries
    parts = _parts(several, rest, budget * _OF_PEOPLE, with_table) | extras
    side, blocks = _blocks(space, 0.0 if with_table else several * float(parts["places"]))
    true = BoundedCounts.count(people, reach, blocks, moves_per_person, with_table)
    rings = noise.add("rings", true.rings, moves_per_person, parts["rings"])
    places = noise.add("places", true.places, moves_per_person, parts["places"])
    scale = moves_per_person / float(parts["places"])
    kernel = _kernel(reach, rings, places, blocks, scale)
    matrix = reach.with_data(kernel.data())
    if true.table is not None:
        table = noise.add("table", true.table, moves_per_person, parts["table"])
        matrix = _with_table(kernel, table, places[1], moves_per_person / float(parts["table"]))
    family = "table" if with_table else "kernel"
    if twins is not None:
        matrix = twins.chain(matrix, matrix, *shares_out)
    model = MarkovModel(matrix, kernel.attraction, space, float(step_seconds), away=twins)
    made = PrivateModel(model, budget, dict(noise.spent), moves_per_person, max(count, 0), family, side)
    return replace(made, model=model.saying({**made.facts, "max_speed_kmh": reach.max_speed_kmh}))


_ASSUMED = 0.1, 0.9
"""The part of people inside, and outside, who are outside after a move to the border, as far as noise hides it."""
_DISTANCES = 0.125 * 2.0 ** np.arange(15)
"""Edges of the classes of distances outside, kilometres; longer ones are of the last class."""


def leaving_region(people: list[Moves], outside: Sequence[FloatArray], twins: Away, most: int) -> IntArray:
    """Moves of people inside, and outside, that end at a border state and outside ``(4,)``, and how far outside.

    A person adds at most ``most`` to the first four and to the classes of distances each.
    """
    found = np.zeros((2, 2), dtype=np.int64)
    distances = np.zeros(len(_DISTANCES), dtype=np.int64)
    at_border = np.isin(np.arange(twins.size), twins.border)
    for one, lengths in zip(people, outside, strict=True):
        kept = one.thinned(most)
        ends = (kept.targets >= twins.size) | at_border[twins.last[kept.targets]]
        np.add.at(found, ((kept.sources[ends] >= twins.size) * 1, (kept.targets[ends] >= twins.size) * 1), 1)
        some = lengths[(np.arange(min(most, len(lengths))) * len(lengths)) // max(min(most, len(lengths)), 1)]
        some = some[some > 0]
        distances += np.bincount(np.searchsorted(_DISTANCES[1:], some), minlength=len(_DISTANCES))
    return np.concatenate([found.ravel(), distances])


def _private_twins(twins: Away, noisy: IntArray, scale: float) -> tuple[Away, tuple[FloatArray, FloatArray]]:
    """The twins out of noisy counts, and the part of moves to the border that lead outside, from inside and outside.

    Where noise drowns the counts it is what `_ASSUMED` says, and that there are half as many people twice as far away.
    """
    counts, classes = np.maximum(noisy[:4].reshape(2, 2), 0), noisy[4:]
    share = (counts[:, 1] + scale * np.array(_ASSUMED)) / (counts.sum(axis=1) + scale)
    overall = share[0] / (share[0] + 1.0 - share[1])  # of a chain of two states at rest
    known = np.where(classes >= scale * log(len(classes)), classes, 0) + scale * 0.5 ** np.arange(1, len(classes) + 1)
    middles = 1.5 * _DISTANCES
    moments = (float(known @ middles**power) / float(known.sum()) for power in (1, 2))
    of_all = [np.full(len(twins.border), value) for value in (*moments, overall, *share)]
    return Away(twins.size, twins.border, *of_all[:3]), (of_all[3], of_all[4])


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


def _blocks(space: StateSpace, weight: float) -> tuple[int, IntArray]:
    """The side of blocks, in cells, and the block that each state lies in, ``(N,)``.

    The side is the least of which there are no more blocks than ``weight``: people, by their part of the budget; of a
    weight of 0, and of places that are no grid's cells, each state is a block.
    """
    if not isinstance(space, Grid) or not weight:
        return 1, np.arange(space.size)
    side = 1
    while (-(-space.columns // side)) * (-(-space.rows // side)) > max(weight, 1.0):
        side += 1
    column, row = (space.lattice // side).T
    return side, np.unique(row * space.columns + column, return_inverse=True)[1].ravel().astype(np.int64)


def _kernel(reach: SpeedLimit, rings: IntArray, places: IntArray, blocks: IntArray, scale: float) -> RegionKernel:
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
    weight = max(_STAY_WEIGHT * scale, _LEAST_KERNEL_WEIGHT)
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
    weight = np.maximum(arrived - seen, _LEAST_KERNEL_WEIGHT)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = away[rows] * (kept + weight[rows] * data / away[rows]) / (seen + weight)[rows]
    return reach.with_data(np.where(moving, spread, data))
