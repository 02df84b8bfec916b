"""Learning models with user-level differential privacy, which may be published.

Two data sets are neighbours if one has one user more than the other, with all of this user's data. The moves of each
user are thinned to at most m. Therefore the following counts have these sensitivities (in total over their cells):

1. the number of users: 1;
2. moves by ring of distance, of which staying is one: m;
3. stays, and arrivals from other states, in each block of states: m, because a move is one or the other;
4. if there is a table, the number of moves between each pair of states: m.

Discrete Laplace noise with scale sensitivity / (share of ε) is added to each count, sampled exactly, also to counts of
zero. Everything else is computed from these noisy counts and public inputs. The model is therefore ε-differentially
private with the sum of the shares (Dwork et al., TCC 2006), for any auxiliary knowledge about this user and others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import log, sqrt
from typing import Annotated, Any

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import BudgetError
from dphmm.formatting import export_fields, exported
from dphmm.mechanisms.discrete_laplace import MAX_NOISE_SCALE, CountNoise
from dphmm.mechanisms.exact_sampling import Rational, parse_rational
from dphmm.model import MAX_SPEED_KMH, MarkovModel, RegionKernel, SpeedLimit
from dphmm.model.learning import UNIFORM_SHARE
from dphmm.model.observed_moves import Moves, StateSequence, extract_moves
from dphmm.model.outside_states import OutsideStates, create_outside_states
from dphmm.random import Rng, as_random_source
from dphmm.space import Grid, StateSpace
from dphmm.validation import Integers, PositiveNumber, Seconds, check_arguments

# The default maximum number of moves of each user that are counted.
MOVES_PER_USER = 20

MAX_MOVES_PER_USER = 100_000
# The maximum number of possible moves of a table, because each of them needs noise.
MAX_TABLE_MOVES = 3_000_000

# Share of the budget for the number of users, which determines how the rest is divided. A rough number suffices.
_NUM_USERS_SHARE = Fraction(1, 20)
# Share of the budget for the table of moves, which has the most cells.
_TABLE_SHARE = Fraction(3, 5)
# A table is used from this number of users, times the share of the budget, per possible move.
_MIN_USERS_PER_MOVE = 4
# Share of all departures that is distributed evenly over cells: noise may conceal a far ring altogether.
_FAR_FLOOR = 0.02
# Weight of the region's share of stays, in scales of the noise: noise then has little influence on a state's own share.
_STAY_WEIGHT = 10.0
# Minimum weight of the region's kernel, in moves, so that no row depends on a few noisy counts only.
_MIN_KERNEL_WEIGHT = 30.0
# Range of the probability of staying. Noise may produce any number, and no state may be absorbing.
_STAY_RANGE = 0.01, 0.998
# Share of the budget for outside states.
_OUTSIDE_SHARE = Fraction(1, 8)


@dataclass(frozen=True)
class BoundedCounts:
    """Counts without noise, with bounded contributions of each user. Private.

    Parameters
    ----------
    num_users
        The number of users.
    rings
        Moves by ring of distance, staying first.
    places
        ``(2, blocks)``: stays, and arrivals from other states.
    table
        The number of each possible move except staying; None without a table.
    """

    num_users: int
    rings: IntArray
    places: IntArray
    table: IntArray | None

    @classmethod
    def count(
        cls, user_moves: list[Moves], reach: SpeedLimit, blocks: IntArray, max_moves: int, with_table: bool = False
    ) -> BoundedCounts:
        """Count the moves of users, at most ``max_moves`` of each."""
        count = int(blocks.max()) + 1
        rings = np.zeros(reach.ring_count, dtype=np.int64)
        places = np.zeros((2, count), dtype=np.int64)
        departures = [np.zeros(0, dtype=np.int64)]
        for moves in user_moves:
            kept = moves.thin(max_moves)
            entries = reach.find(kept.sources, kept.targets)
            targets = kept.targets[entries >= 0]
            entries = entries[entries >= 0]
            ring = reach.rings[entries]
            rings += np.bincount(ring, minlength=reach.ring_count)
            places[0] += np.bincount(blocks[targets[ring == 0]], minlength=count)
            places[1] += np.bincount(blocks[targets[ring > 0]], minlength=count)
            if with_table:
                departures.append(entries[ring > 0])
        table = np.bincount(np.concatenate(departures), minlength=reach.entries) if with_table else None
        return cls(len(user_moves), rings, places, table)


@dataclass(frozen=True)
class PrivateModel:
    """A differentially private model, with its parameters. All fields may be published.

    Parameters
    ----------
    model
        The model.
    epsilon
        The budget: with one user more or less, the probability of any set of models changes at most by the factor
        e^epsilon.
    moves_per_user
        The maximum number of moves of each user that were counted.
    spent
        The share of epsilon of each noisy count. The shares sum to epsilon.
    noisy_num_users
        The noisy number of users.
    family
        ``"kernel"``: moves by distance and attraction; ``"table"``: additionally counts of each move.
    block
        The number of grid cells along a side of the blocks for which stays and arrivals were counted.
    """

    model: MarkovModel
    epsilon: Fraction = field(metadata=exported())
    spent: Mapping[str, Fraction] = field(metadata=exported("spent_on"))
    moves_per_user: int = field(metadata=exported())
    noisy_num_users: int = field(metadata=exported())
    family: str = field(metadata=exported())
    block: int = field(metadata=exported("block_side_cells"))

    def to_dict(self) -> dict[str, Any]:
        """Return the guarantee and its parameters, as stored in the model's file.

        Returns
        -------
        dict
            Plain JSON values by name.
        """
        return {
            "guarantee": "user-level differential privacy: with one user more or less, with all their days, the "
            "probability of any set of models changes at most by the factor e^epsilon",
            **export_fields(self),
        }

    def with_spending(self, name: str, epsilon: Fraction | None) -> PrivateModel:
        """Return a copy that includes budget spent on an earlier query.

        Parameters
        ----------
        name
            The name of the query.
        epsilon
            Its budget; None for no query.

        Returns
        -------
        PrivateModel
            The copy, with the sum of both budgets.
        """
        if epsilon is None:
            return self
        total = replace(self, epsilon=self.epsilon + epsilon, spent={name: epsilon, **self.spent})
        return replace(total, model=self.model.with_provenance({**(self.model.provenance or {}), **total.to_dict()}))


@check_arguments
def fit_private(
    sequences: Iterable[StateSequence],
    space: StateSpace,
    step_seconds: Seconds,
    user_epsilon: Rational,
    moves_per_user: Annotated[int, Integers(1, MAX_MOVES_PER_USER)] = MOVES_PER_USER,
    max_speed_kmh: PositiveNumber = MAX_SPEED_KMH,
    rng: Rng = None,
    outside: Sequence[FloatArray] | None = None,
    attraction: FloatArray | None = None,
) -> PrivateModel:
    """Learn a model with user-level differential privacy.

    Parameters
    ----------
    sequences
        One for each user, with all their days; see `dphmm.model.MarkovModel.fit`. For a user with two sequences the
        guarantee holds with twice the epsilon.
    space, step_seconds, max_speed_kmh
        The states and the possible moves; see `dphmm.model.SpeedLimit`. Select them without looking at the data.
    user_epsilon
        The budget of the model, positive. A float is converted to the decimal number that it prints as.
    moves_per_user
        The maximum number of moves of each user that are counted. Longer sequences are thinned to evenly spaced moves.
        Select it without looking at the data; about the number of moves of most users is a good choice.
    rng
        The source of the noise. Defaults to the operating system. With any other the model is not private.
    outside
        For each user ``(t,)``: the distance from the point of the nearest state at each entry of the sequence, in
        kilometres, if outside. The sequences must have the indices of
        `dphmm.model.outside_states.create_outside_states`. An eighth of the budget is spent on the share of arrivals at
        border states that are outside, and on the distances, with the same parameters for the whole region. Defaults to
        None: all users are treated as inside.
    attraction
        ``(N,)``: the attraction of each state without data, positive. It must not depend on the data. Defaults to
        uniform.

    Returns
    -------
    PrivateModel
        The model: the kernel only for few users, with a table for many. The noisy number of users, the budget and the
        region determine this choice and the size of the blocks.

    Raises
    ------
    BudgetError
        If the budget is not positive, or too small for 64 bits.
    InvalidInputError
        If the bound on moves is outside 1 to 100000.
    StateError, ConfigurationError
        See `dphmm.model.fit_shrunk`. Sequences without a state are not an error: whether there are data is private.

    Examples
    --------
    >>> grid = Grid.over((45.0, 7.0, 45.05, 7.05), 1)
    >>> result = fit_private([[0, 1, 1, 2]] * 200, grid, 600, 1, moves_per_user=3, rng=1)
    >>> result.family, result.noisy_num_users, sum(result.spent.values())
    ('kernel', 175, Fraction(1, 1))
    """
    outside_states = None if outside is None else create_outside_states(space)
    size = space.size if outside_states is None else len(outside_states)
    user_moves = [extract_moves(sequence, size) for sequence in sequences]
    return fit_private_moves(
        user_moves, space, step_seconds, user_epsilon, moves_per_user, max_speed_kmh, rng, outside, attraction
    )


@check_arguments
def fit_private_moves(
    user_moves: list[Moves],
    space: StateSpace,
    step_seconds: Seconds,
    user_epsilon: Rational,
    moves_per_user: Annotated[int, Integers(1, MAX_MOVES_PER_USER)] = MOVES_PER_USER,
    max_speed_kmh: PositiveNumber = MAX_SPEED_KMH,
    rng: Rng = None,
    outside: Sequence[FloatArray] | None = None,
    attraction: FloatArray | None = None,
) -> PrivateModel:
    """Learn a model from each user's moves and distances. See `fit_private`.

    They may be thinned already.
    """
    budget = parse_rational(user_epsilon, "user_epsilon")
    if budget * MAX_NOISE_SCALE < 1000 * moves_per_user:
        raise BudgetError(f"user_epsilon must be larger, got {float(budget):g}: its noise may exceed 64 bits")
    outside_states = None if outside is None else create_outside_states(space)
    reach = SpeedLimit(space, step_seconds, max_speed_kmh)
    noise = CountNoise(budget, as_random_source(rng))
    count = int(noise.add("users", len(user_moves), 1, budget * _NUM_USERS_SHARE))
    extras: dict[str, Fraction] = {}
    if outside_states is not None and outside is not None:
        extras["outside"] = budget * _OUTSIDE_SHARE
        leaving = count_leaving(user_moves, outside, outside_states, moves_per_user)
        sensitivity = 2 * moves_per_user
        leaving = noise.add("outside", leaving, sensitivity, extras["outside"])
        outside_states, arrival_shares = _estimate_outside_states(
            outside_states, leaving, sensitivity / float(extras["outside"])
        )
        user_moves = [moves.to_states(outside_states.state_of_context) for moves in user_moves]
    rest = budget - sum(extras.values(), Fraction(0))
    positive_count = max(count, 1)
    # A table needs four times as many users, weighted by the share of the budget, as there are possible moves.
    is_small = reach.entries <= MAX_TABLE_MOVES
    with_table = is_small and positive_count * rest * _TABLE_SHARE >= _MIN_USERS_PER_MOVE * reach.entries
    parts = _split_budget(positive_count, rest, budget * _NUM_USERS_SHARE, with_table) | extras
    side, blocks = _assign_blocks(space, 0.0 if with_table else positive_count * float(parts["places"]))
    true = BoundedCounts.count(user_moves, reach, blocks, moves_per_user, with_table)
    rings = noise.add("rings", true.rings, moves_per_user, parts["rings"])
    places = noise.add("places", true.places, moves_per_user, parts["places"])
    scale = moves_per_user / float(parts["places"])
    base = np.ones(space.size) if attraction is None else attraction
    kernel = _estimate_kernel(reach, rings, places, blocks, scale, base)
    matrix = reach.with_data(kernel.data())
    if true.table is not None:
        table = noise.add("table", true.table, moves_per_user, parts["table"])
        matrix = _with_table(kernel, table, places[1], moves_per_user / float(parts["table"]))
    family = "table" if with_table else "kernel"
    if outside_states is not None:
        matrix = outside_states.build_chain(matrix, matrix, *arrival_shares)
    model = MarkovModel(matrix, kernel.attraction, space, float(step_seconds), outside=outside_states)
    result = PrivateModel(model, budget, dict(noise.spent), moves_per_user, max(count, 0), family, side)
    return replace(result, model=model.with_provenance({**result.to_dict(), "max_speed_kmh": reach.max_speed_kmh}))


# Prior shares of users who are outside after a move to the border: of those inside, and outside, before it.
_PRIOR_OUTSIDE_SHARES = 0.1, 0.9
# Edges of the classes of distances outside, in kilometres. The last class is unbounded.
_DISTANCES = 0.125 * 2.0 ** np.arange(15)


def count_leaving(
    user_moves: list[Moves], outside: Sequence[FloatArray], outside_states: OutsideStates, max_moves: int
) -> IntArray:
    """Count moves to the border by whether they start and end outside, and distances.

    A user contributes at most ``max_moves`` to the first four counts, and at most as many to the classes of distances.
    """
    counts = np.zeros((2, 2), dtype=np.int64)
    distances = np.zeros(len(_DISTANCES), dtype=np.int64)
    at_border = np.isin(np.arange(outside_states.size), outside_states.border)
    for moves, lengths in zip(user_moves, outside, strict=True):
        kept = moves.thin(max_moves)
        ends = (kept.targets >= outside_states.size) | at_border[outside_states.state_of_context[kept.targets]]
        np.add.at(
            counts,
            ((kept.sources[ends] >= outside_states.size) * 1, (kept.targets[ends] >= outside_states.size) * 1),
            1,
        )
        thinned = thin_evenly(lengths, max_moves)
        thinned = thinned[thinned > 0]
        distances += np.bincount(np.searchsorted(_DISTANCES[1:], thinned), minlength=len(_DISTANCES))
    return np.concatenate([counts.ravel(), distances])


def thin_evenly(values: FloatArray, maximum: int) -> FloatArray:
    """Return at most ``maximum`` evenly spaced values, as `Moves.thin` selects moves."""
    size = min(maximum, len(values))
    return values[(np.arange(size) * len(values)) // max(size, 1)]


def _estimate_outside_states(
    outside_states: OutsideStates, noisy: IntArray, scale: float
) -> tuple[OutsideStates, tuple[FloatArray, FloatArray]]:
    """Return outside states, and shares of arrivals that are outside, from noisy counts.

    The shares are for users who were inside and outside. If noise exceeds the counts, the shares are those of
    `_PRIOR_OUTSIDE_SHARES`, and each class of distances has half as many users as the previous one.
    """
    counts = np.maximum(noisy[:4].reshape(2, 2), 0)
    classes = noisy[4:]
    share = (counts[:, 1] + scale * np.array(_PRIOR_OUTSIDE_SHARES)) / (counts.sum(axis=1) + scale)
    overall = share[0] / (share[0] + 1.0 - share[1])  # the stationary distribution of a chain with two states
    # Counts that noise alone may produce are dropped, and a prior is added.
    mass = np.where(classes >= scale * log(len(classes)), classes, 0) + scale * 0.5 ** np.arange(1, len(classes) + 1)
    middles = 1.5 * _DISTANCES
    distance_moments = (float(mass @ middles**power) / float(mass.sum()) for power in (1, 2))
    parameters = [np.full(len(outside_states.border), value) for value in (*distance_moments, overall, *share)]
    return OutsideStates(outside_states.size, outside_states.border, *parameters[:3]), (parameters[3], parameters[4])


def _split_budget(num_users: int, epsilon: Fraction, spent: Fraction, with_table: bool) -> dict[str, Fraction]:
    """Split the remaining budget. With fewer users, distances get a larger share."""
    left = epsilon - spent
    if with_table:
        table = epsilon * _TABLE_SHARE
        left -= table
        return {"rings": left / 4, "places": left * 3 / 4, "table": table}
    share = min(max(15.0 / sqrt(num_users * float(epsilon)), 0.15), 0.95)
    rings = left * Fraction(round(share * 100), 100)
    return {"rings": rings, "places": left - rings}


def _assign_blocks(space: StateSpace, weight: float) -> tuple[int, IntArray]:
    """Return the side of blocks, in cells, and the block of each state, ``(N,)``.

    The side is the smallest with at most ``weight`` blocks, which is the number of users times the share of the budget.
    With a weight of 0, and for spaces that are not grids, each state is a block.
    """
    if not isinstance(space, Grid) or not weight:
        return 1, np.arange(space.size)
    side = 1
    while (-(-space.columns // side)) * (-(-space.rows // side)) > max(weight, 1.0):
        side += 1
    column, row = (space.lattice // side).T
    return side, np.unique(row * space.columns + column, return_inverse=True)[1].ravel().astype(np.int64)


def _estimate_kernel(
    reach: SpeedLimit, rings: IntArray, places: IntArray, blocks: IntArray, scale: float, base: FloatArray
) -> RegionKernel:
    """Return the region's kernel from noisy counts.

    Within a block, arrivals are divided in proportion to the base.
    """
    sizes = np.bincount(blocks)
    shares = _fit_decreasing_shares(rings, np.bincount(reach.rings, minlength=reach.ring_count) / reach.size)
    stayed, arrived = np.maximum(places, 0)
    total = float(max(places[1].sum(), 0))
    trust = (1 - UNIFORM_SHARE) * total / (total + scale * len(sizes))
    prior = base / base.sum()
    attraction = (arrived / np.bincount(blocks, base))[blocks] * base
    if attraction.any():
        attraction = (1 - trust) * prior + trust * attraction / attraction.sum()
    else:
        attraction = prior
    overall_stay = float(np.clip(shares[0] / shares.sum(), *_STAY_RANGE))
    weight = max(_STAY_WEIGHT * scale, _MIN_KERNEL_WEIGHT)
    stays = (stayed + weight * overall_stay) / (stayed + arrived + weight)
    return RegionKernel(reach, shares, attraction, np.clip(stays, *_STAY_RANGE)[blocks])


def _fit_decreasing_shares(rings: IntArray, cells: FloatArray) -> FloatArray:
    """Return positive shares of rings, for which the share per cell does not increase.

    Noise in a far ring with many cells would cause the largest errors. The share per cell is therefore fitted by
    isotonic regression, except for a small part that is equal for all cells.
    """
    from scipy.optimize import isotonic_regression

    shares = np.full(len(rings), 1e-6)
    occupied = np.flatnonzero(cells[1:] > 0) + 1
    if len(occupied):
        area = cells[occupied]
        density = isotonic_regression(rings[occupied] / area, weights=area**2, increasing=False).x
        departures = np.maximum(density, 0.0) * area
        shares[occupied] = departures + _FAR_FLOOR * max(float(departures.sum()), 1.0) * area / area.sum()
    shares[0] = max(float(rings[0]), 1.0)
    return shares


def _with_table(kernel: RegionKernel, table: IntArray, arrived: IntArray, scale: float) -> Any:
    """Return the transition matrix from noisy counts, without those of noise alone."""
    reach = kernel.reach
    moving = reach.rings > 0
    kept = np.where(moving & (table >= scale * log(reach.entries)), table, 0)
    data = kernel.data()
    rows = np.repeat(np.arange(reach.size), np.diff(reach.moves.indptr))
    leaving = np.bincount(rows, np.where(moving, data, 0.0), minlength=reach.size)
    counts = np.bincount(rows, kept, minlength=reach.size)
    weight = np.maximum(arrived - counts, _MIN_KERNEL_WEIGHT)
    with np.errstate(invalid="ignore", divide="ignore"):
        shrunk = leaving[rows] * (kept + weight[rows] * data / leaving[rows]) / (counts + weight)[rows]
    return reach.with_data(np.where(moving, shrunk, data))
