"""Learning models from counts of moves, shrunk towards a kernel of the region.

The kernel of the region has few parameters: one share for each ring of distances, and one attraction for each state.
From state i a ring is selected with its share and, within the ring, state j in proportion to its attraction:

    K(i, j) = share[r(i, j)] · a(j) / Σ a(j'), over all j' in the same ring of i

Rings without a state around i are omitted, and the other shares are normalised. The counts are shrunk towards the
kernel. They dominate in states with many moves, the kernel in states with few:

    P(i, j) = (n(i, j) + w · K(i, j)) / (n(i) + w)

The weight w is chosen by leave-one-out cross-validation over users: each user's moves are scored with the user's own
counts removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray, as_floats, as_integers
from dphmm.errors import ConfigurationError, InvalidInputError, StateError
from dphmm.formatting import exported
from dphmm.model.model import MarkovModel
from dphmm.model.observed_moves import (
    MoveCounts,
    Moves,
    MoveTable,
    StateSequence,
    concatenate_moves,
    encode_rows,
    extract_moves,
    find_best_weight,
    sum_others,
)
from dphmm.model.outside_states import OutsideStates, shrink_shares
from dphmm.model.speed_limit import MAX_SPEED_KMH, Speed, SpeedLimit
from dphmm.model.time_classes import TimeClasses
from dphmm.space.states import StateSpace
from dphmm.tolerances import MAX_SCALE, MIN_SCALE
from dphmm.validation import Interval, PositiveInt, Seconds, check_arguments

# The share of the attraction, and of the initial distribution, that is uniform over all states.
UNIFORM_SHARE = 0.3

# The candidate weights of the kernel, in moves.
CANDIDATE_WEIGHTS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)

# The weight if there is a single user, so that no cross-validation is possible.
_DEFAULT_WEIGHT = 30.0
# Pseudo-count of each ring, so that no ring is impossible (Jeffreys' prior).
_PRIOR_MOVES = 0.5


class RegionKernel:
    """A transition kernel: the share of the distance times the attraction of the target.

    Parameters
    ----------
    reach
        The possible moves.
    shares
        ``(rings,)``: the probability of each ring, positive. It is normalised to sum to one.
    attraction
        ``(N,)``: the attraction of each state, positive.
    stays
        ``(N,)``: the probability of staying in each state, between 0 and 1. Defaults to the share of the first ring
        for all states.

    Raises
    ------
    InvalidInputError
        If an array has another length than there are rings or states, or a number is not positive and finite.
    """

    @check_arguments
    def __init__(
        self, reach: SpeedLimit, shares: npt.ArrayLike, attraction: npt.ArrayLike, stays: npt.ArrayLike | None = None
    ) -> None:
        self.reach = reach
        self.stays = None if stays is None else as_floats(stays, "stays")
        if self.stays is not None and not (
            self.stays.shape == (reach.size,) and ((self.stays > 0) & (self.stays < 1)).all()
        ):
            raise InvalidInputError(
                f"stays must be {reach.size} numbers between 0 and 1, got shape {self.stays.shape} or one out of range"
            )
        self.shares = _normalize_positive_values(shares, "shares", reach.ring_count)
        self.attraction = _normalize_positive_values(attraction, "attraction", reach.size)
        self._weights = self._compute_ring_weights()

    @classmethod
    def fit(
        cls, reach: SpeedLimit, entries: IntArray, base: FloatArray | None = None, counts: IntArray | None = None
    ) -> RegionKernel:
        """Fit the kernel to moves.

        Shares are the relative frequencies of the moves' rings, attraction that of their targets. `UNIFORM_SHARE` of
        the attraction is uniform, or proportional to a base.

        Parameters
        ----------
        reach
            The possible moves.
        entries
            ``(n,)``: the observed moves, as indices of possible moves.
        base
            ``(N,)``: the attraction without data, positive. Defaults to uniform.
        counts
            ``(n,)``: the number of observations of each move. Defaults to one.

        Returns
        -------
        RegionKernel
            The kernel.
        """
        rings = reach.rings[entries]
        is_departure = rings > 0
        weights = np.ones(len(entries), dtype=np.int64) if counts is None else counts
        shares = np.bincount(rings, weights, reach.ring_count) + _PRIOR_MOVES
        arrivals = np.bincount(reach.targets[entries[is_departure]], weights[is_departure], reach.size)
        return cls(reach, shares, compute_attraction(arrivals, base))

    def _compute_ring_weights(self) -> FloatArray:
        """Return the factor of the attraction of targets in each ring, ``(N, rings)``."""
        reach = self.reach
        sums = np.zeros((reach.size, reach.ring_count))
        for part, sources, cells in reach.blocks():
            to_source = sums[sources]
            to_source.ravel()[:] = np.bincount(cells, self.attraction[reach.targets[part]], minlength=to_source.size)
        shares = np.where(sums > 0, self.shares, 0.0)
        if self.stays is not None:
            leaving = shares[:, 1:].sum(axis=1)
            shares[:, 0] = np.where(leaving > 0, leaving * self.stays / (1 - self.stays), 1.0)
        shares /= shares.sum(axis=1, keepdims=True)
        return np.divide(shares, sums, out=shares, where=sums > 0)

    def data(self) -> FloatArray:
        """Return the probability of each possible move.

        Returns
        -------
        FloatArray
            ``(nnz,)``, in the order of the possible moves. The probabilities of the moves from a state sum to one.
        """
        values = self.attraction[self.reach.targets]
        for part, sources, cells in self.reach.blocks():
            values[part] *= self._weights[sources].ravel()[cells]
        return values

    def probabilities_at(self, sources: IntArray, entries: IntArray) -> FloatArray:
        """Return the probabilities of selected possible moves.

        Parameters
        ----------
        sources
            ``(n,)``: the source of each move.
        entries
            ``(n,)``: the index of each move.

        Returns
        -------
        FloatArray
            ``(n,)``: the probabilities.
        """
        return np.asarray(
            self._weights[sources, self.reach.rings[entries]] * self.attraction[self.reach.targets[entries]]
        )


@dataclass(frozen=True)
class ShrunkModel:
    """A model learned by shrinkage, its kernel, and the numbers of moves.

    Parameters
    ----------
    model
        The model. Every possible move has mass, and every state may be the first.
    kernel
        The kernel of the region.
    weight
        The weight of the kernel in each state, in moves.
    moves
        The number of moves counted.
    too_fast
        The number of moves omitted because they exceed the speed limit. They are measurement errors, or the limit is
        too low.
    rare
        The number of moves omitted because fewer than `min_users` users made them.
    """

    model: MarkovModel
    kernel: RegionKernel
    weight: float = field(metadata=exported("kernel_weight_moves"))
    moves: int
    too_fast: int = field(metadata=exported("num_moves_too_fast"))
    rare: int = field(default=0, metadata=exported("num_moves_too_rare"))


@check_arguments
def fit_shrunk(
    sequences: Iterable[StateSequence],
    space: StateSpace,
    step_seconds: Seconds,
    max_speed_kmh: Speed = MAX_SPEED_KMH,
    weight: Annotated[float, Interval(MIN_SCALE, MAX_SCALE)] | None = None,
    min_users: PositiveInt = 1,
    outside: OutsideStates | None = None,
    attraction: npt.ArrayLike | None = None,
) -> ShrunkModel:
    """Learn a model in which every move below a speed limit is possible, observed or not.

    Parameters
    ----------
    sequences
        One for each user; see `StateSequence`.
    space
        The states.
    step_seconds
        The timestep, in seconds.
    max_speed_kmh
        The speed limit, in kilometres per hour. It determines which moves are possible; see `SpeedLimit`.
    weight
        The weight of the region's kernel in each state, in moves, positive. Defaults to the element of
        `CANDIDATE_WEIGHTS` that best predicts each user from all others, or to 30 for a single user.
    min_users
        Moves made by fewer users are omitted, as are visits to states that fewer users visited. This is not a privacy
        guarantee: an adversary who knows the data of the other users can still infer what one user did.
    outside
        Outside states; see `dphmm.model.outside_states`. The sequences must use their indices for users outside the
        region. Moves of users inside and outside then have separate kernels and counts. At each border state the share
        of arrivals that are outside is estimated, and shrunk towards the share at all of them.
    attraction
        ``(N,)``: the attraction of each state without data, positive, such as that of a map
        (`dphmm.model.map_attraction`). `UNIFORM_SHARE` of the attraction and of the initial distribution is
        proportional to it. Defaults to uniform.

    Returns
    -------
    ShrunkModel
        The model, its kernel, and the numbers of moves.

    Raises
    ------
    StateError
        If a state does not exist.
    InvalidInputError
        If the weight is not positive, `min_users` is below one, or no sequence visits a state.
    ConfigurationError
        If the speed limit allows too many moves; see `SpeedLimit`.

    Examples
    --------
    >>> from dphmm.space.grid import Grid
    >>> grid = Grid.over((45.0, 7.0, 45.02, 7.03), 0.5)
    >>> result = fit_shrunk([[0, 1, 1, 2], [2, 1, 0, 0]], grid, 60)
    >>> result.moves, result.too_fast, bool((result.model.initial > 0).all())
    (6, 0, True)
    """
    size = space.size if outside is None else len(outside)
    moves = MoveCounts.count((extract_moves(sequence, size) for sequence in sequences), size)
    return fit_shrunk_counts(moves, space, step_seconds, max_speed_kmh, weight, min_users, outside, attraction)


def fit_shrunk_counts(
    moves: MoveCounts,
    space: StateSpace,
    step_seconds: float,
    max_speed_kmh: Speed = MAX_SPEED_KMH,
    weight: float | None = None,
    min_users: int = 1,
    outside: OutsideStates | None = None,
    attraction: npt.ArrayLike | None = None,
) -> ShrunkModel:
    """Learn a model from the counts of each user's moves. See `fit_shrunk`.

    All sums are of integers, or in the order of the users. The result does not depend on how the users were divided
    when their moves were counted.
    """
    state_of_context = np.arange(space.size) if outside is None else outside.state_of_context
    if not (moves.visits < space.size).any():
        raise InvalidInputError("no sequence visits a state: check the region, the step and the times of the data")
    base = None if attraction is None else _normalize_positive_values(attraction, "attraction", space.size)
    reach = SpeedLimit(space, step_seconds, max_speed_kmh)
    entries = reach.find(state_of_context[moves.sources], state_of_context[moves.targets])
    is_visited = _has_min_users(moves.visitors, moves.visits, min_users)
    visits = np.bincount(state_of_context[moves.visits[is_visited]], moves.visit_counts[is_visited], space.size)
    fast = entries < 0
    common = ~fast & _has_min_users(moves.owners, entries, min_users)

    def fit_rows(selected: npt.NDArray[np.bool_]) -> tuple[RegionKernel, float, csr_array]:
        counts = moves.counts[selected]
        kernel = RegionKernel.fit(reach, entries[selected], base, counts)
        sources = state_of_context[moves.sources[selected]]
        chosen = (
            _find_kernel_weight(kernel, moves.owners[selected], sources, entries[selected], counts)
            if weight is None
            else float(weight)
        )
        return kernel, chosen, shrink(kernel, np.bincount(entries[selected], counts, reach.entries), chosen)

    inside = moves.sources < space.size
    kernel, chosen, matrix = fit_rows(common & inside)
    if outside is not None:
        arrival_shares = (
            _compute_outside_shares(moves.targets[common & part], moves.counts[common & part], outside)
            for part in (inside, ~inside)
        )
        matrix = outside.build_chain(matrix, fit_rows(common & ~inside)[2], *arrival_shares)
    model = MarkovModel(matrix, compute_attraction(visits, base), space, float(step_seconds), outside=outside)
    num_moves, num_fast, num_rare = (int(moves.counts[part].sum()) for part in (common, fast, ~common & ~fast))
    return ShrunkModel(model, kernel, chosen, num_moves, num_fast, num_rare)


def _compute_outside_shares(targets: IntArray, counts: IntArray, outside: OutsideStates) -> FloatArray:
    """Return the share of arrivals at each border state that end outside, ``(m,)``."""
    arrivals = np.bincount(targets, counts, len(outside))
    return shrink_shares(arrivals[outside.size :], arrivals[outside.border])


def _has_min_users(users: IntArray, values: IntArray, min_users: int) -> npt.NDArray[np.bool_]:
    """Return which of the values occur for at least a minimum number of different users."""
    if min_users == 1:
        return np.ones(len(values), dtype=np.bool_)
    _, number = np.unique(values, return_inverse=True)
    pairs = np.unique(np.stack([number.ravel(), users]), axis=1)
    return np.asarray(np.bincount(pairs[0], minlength=int(number.max(initial=0)) + 1)[number.ravel()] >= min_users)


def shrink(kernel: RegionKernel, counts: npt.NDArray[Any], weight: float) -> Any:
    """Shrink counts of possible moves ``(nnz,)`` towards a kernel. Return the matrix."""
    data = kernel.data()
    data *= weight
    data += counts
    matrix = kernel.reach.with_data(data)
    matrix.data /= np.repeat(matrix.sum(axis=1), np.diff(matrix.indptr))
    return matrix


def compute_attraction(counts: npt.NDArray[Any], base: FloatArray | None = None) -> FloatArray:
    """Mix normalised counts ``(N,)`` with `UNIFORM_SHARE` of a base, by default uniform."""
    total = counts.sum()
    base = np.full(len(counts), 1.0 / len(counts)) if base is None else base
    return base if total == 0 else np.asarray(UNIFORM_SHARE * base + (1 - UNIFORM_SHARE) * counts / total)


def _find_kernel_weight(
    kernel: RegionKernel, owner: IntArray, sources: IntArray, entries: IntArray, counts: IntArray
) -> float:
    """Return the weight with the largest leave-one-user-out log likelihood."""
    if len(np.unique(owner)) < 2:
        return _DEFAULT_WEIGHT
    move_counts = np.bincount(entries, counts, kernel.reach.entries)
    source_counts = np.bincount(sources, counts, kernel.reach.size)
    _, first, move_of = np.unique(owner * kernel.reach.entries + entries, return_index=True, return_inverse=True)
    _, source_of = np.unique(owner * kernel.reach.size + sources, return_inverse=True)
    own_moves = np.bincount(move_of, counts)
    other_moves = move_counts[entries[first]] - own_moves
    other_sources = source_counts[sources[first]] - np.bincount(source_of, counts)[source_of[first]]
    share = kernel.probabilities_at(sources[first], entries[first])
    scores = [float(own_moves @ np.log((other_moves + w * share) / (other_sources + w))) for w in CANDIDATE_WEIGHTS]
    return CANDIDATE_WEIGHTS[int(np.argmax(scores))]


def _normalize_positive_values(values: npt.ArrayLike, name: str, count: int) -> FloatArray:
    numbers = as_floats(values, name)
    if numbers.shape != (count,) or not ((numbers > 0) & (numbers <= MAX_SCALE)).all():
        raise InvalidInputError(
            f"{name} must be {count} positive numbers, got shape {numbers.shape} or one out of range"
        )
    return np.asarray(numbers / numbers.sum())


_EXTENSION_WEIGHTS = (*(float(2**k) for k in range(15)), inf)
_MAX_ENTRIES = 1 << 26
# Pseudo-count of the row of the base model, next to the moves of all other users, in the cross-validation.
_SOURCE_ROW_MOVES = 4.0
# Floor of probabilities in denominators.
_MIN_SHARE = 1e-12


@dataclass(frozen=True, eq=False)
class Extension:
    """A model with one matrix for each class of time, and the weight that was chosen.

    Parameters
    ----------
    model
        The model.
    class_weight
        The weight of the row of all hours, in moves, next to the moves of a class. Infinite if the classes do not
        improve the prediction of other users.
    moves
        The number of moves counted.
    impossible
        The number of moves omitted because they are impossible in the base model.
    """

    model: MarkovModel
    class_weight: float
    moves: int
    impossible: int


@check_arguments
def extend(
    model: MarkovModel,
    sequences: Iterable[tuple[npt.ArrayLike, npt.ArrayLike]],
    time_classes: TimeClasses,
) -> Extension:
    """Learn one transition matrix for each class of time from a model with a single matrix.

    Each row of the result is ``(counts + w * row) / (total + w)``. Here ``row`` is the row of the base model, with the
    odds of leaving the state multiplied by the most likely factor of the class, one number for the whole region.
    Rows with few counts therefore stay close to the base model, and no move becomes possible or impossible. The weight
    ``w`` is the one that best predicts the moves of each user from the moves of all others.

    Parameters
    ----------
    model
        A model with one matrix. Its possible moves are the possible moves of every class. The result does not inherit
        the privacy guarantee of the model: moves are counted without noise.
    sequences
        Slots and states of each user, as `dphmm.model.state_sequence` returns them. A state of -1 is unknown.
    time_classes
        The classes of time.

    Returns
    -------
    Extension
        The extended model, with the weight that was chosen.

    Raises
    ------
    ConfigurationError
        If the model has classes of time already, or its step differs from the step of the classes.
    InvalidInputError
        If the result would have more than 2 ** 26 possible moves.
    StateError
        If a state does not exist, or slots do not increase.

    Examples
    --------
    >>> base = MarkovModel([[.5, .5], [.5, .5]], [.5, .5], step_seconds=3600)
    >>> days = np.tile(np.repeat([0, 1], [12, 12]), 10)
    >>> sequences = [(np.arange(240), days), (np.arange(240) + 2400, days)]
    >>> extended = extend(base, sequences, TimeClasses.from_name("hour", 3600)).model
    >>> extended.transitions[3].toarray().round(2)[0].tolist(), extended.transitions[11].toarray().round(2)[0].tolist()
    ([0.98, 0.02], [0.0, 1.0])
    """
    if model.time_classes is not None:
        raise ConfigurationError(f"model must have one matrix for all times, got a model that {model.describe()}")
    listed = [tuple(as_integers(part, "slots and states", StateError) for part in sequence) for sequence in sequences]
    each = [extract_moves(sequence, model.chain_size) for sequence in listed]
    seen = concatenate_moves(each)
    table = MoveTable(model.transitions[0])
    possible = table.contains(seen.sources, seen.targets)
    moves = seen.select(possible)
    user = np.repeat(np.arange(len(each)), [len(sequence) for sequence in each])[possible]
    if time_classes.count * table.matrix.nnz > _MAX_ENTRIES:
        raise InvalidInputError(
            f"model must have at most {_MAX_ENTRIES} possible moves in {time_classes.count} classes of time, got "
            f"{time_classes.count * table.matrix.nnz}: use larger cells or fewer classes"
        )
    classes = time_classes.get_classes(moves.slots)
    restlessness = _compute_restlessness(table, moves, user, classes, time_classes.count)
    tilt = _Tilt(moves.sources, restlessness[classes], table.stay_probabilities[moves.sources])
    shares = table.get_values(moves.sources, moves.targets)
    finer = classes * model.chain_size + moves.sources
    class_weight = _find_parent_weight(user, moves.sources, finer, moves.targets, shares, tilt)
    chosen = [classes == number for number in range(time_classes.count)]
    matrices = [
        table.tilt(float(factor)).mix(moves.sources[sequence], moves.targets[sequence], class_weight).matrix
        for sequence, factor in zip(chosen, restlessness, strict=True)
    ]
    initial_by_class = _estimate_initial_by_class(model, listed, time_classes)
    extended = MarkovModel(matrices, initial_by_class, model.states, model.step_seconds, time_classes, model.outside)
    provenance = {"guarantee": "none: moves were counted without noise", "extended": extended.describe()}
    vars(extended).update(provenance={**(model.provenance or {}), **provenance})
    return Extension(extended, class_weight, len(moves.slots), len(seen.slots) - len(moves.slots))


@dataclass(frozen=True, eq=False)
class _Tilt:
    """For each move: its source, the factor of the odds of leaving, and P(stay)."""

    source: IntArray
    factor: FloatArray
    stays: FloatArray


def _compute_restlessness(table: MoveTable, moves: Moves, user: IntArray, classes: IntArray, count: int) -> FloatArray:
    """Return the factor of the odds of leaving a state in each class, ``(K,)``.

    This is the Mantel–Haenszel odds ratio of the class relative to all classes: departures are weighted by the
    probability of staying, and stays by the probability of leaving. The pseudo-count added to both is the one that best
    predicts each user from all others.
    """
    stays = table.stay_probabilities[moves.sources]
    left = moves.targets != moves.sources
    num_users = int(user.max(initial=0)) + 1
    cells = user * count + classes
    sums = [
        np.bincount(cells[chosen], part[chosen], minlength=num_users * count)
        .reshape(num_users, count)
        .astype(np.float64)
        for part, chosen in ((stays, left), (1.0 - stays, ~left))
    ]
    overall = float(sums[0].sum()) / max(float(sums[1].sum()), _MIN_SHARE) or 1.0
    sums[1] *= overall
    leaves, remains = ((counts.sum(axis=0) - counts).ravel() for counts in sums)
    odds = overall * (1.0 - stays) / np.maximum(stays, _MIN_SHARE)

    def score_pseudo_count(added: float) -> float:
        factor = 1.0 if added == inf else ((leaves + added) / (remains + added))[cells]
        return float(np.log(np.where(left, factor * odds, 1.0) / (1.0 + factor * odds)).sum())

    possible = stays < 1.0  # a state that cannot be left contains no information on the odds
    odds = odds[possible]
    left = left[possible]
    cells = cells[possible]
    added = find_best_weight(_EXTENSION_WEIGHTS, score_pseudo_count)
    total = [counts.sum(axis=0) for counts in sums]
    return np.ones(count) if added == inf else np.asarray((total[0] + added) / (total[1] + added))


def _find_parent_weight(
    user: IntArray, parent: IntArray, row: IntArray, column: IntArray, shares: FloatArray, tilt: _Tilt | None = None
) -> float:
    """Return the parent-row weight that best predicts each user from all others.

    Ties take the largest weight. Each counted move has a parent row, a row within it, a column, and its probability in
    the parent row. The parent row is estimated from the counts of all other users and `_SOURCE_ROW_MOVES` moves of the
    base model's row.
    """
    _, first, number = np.unique(encode_rows(user, row, column), return_index=True, return_counts=True)
    values = number.astype(np.float64)
    user, row, column, parent = (part[first] for part in (user, row, column, parent))
    child = sum_others(values, user, row, column)
    child_total = sum_others(values, user, row)
    total = sum_others(values, user, parent) + _SOURCE_ROW_MOVES
    prior = (sum_others(values, user, parent, column) + _SOURCE_ROW_MOVES * shares[first]) / total
    if tilt is not None:
        factor = tilt.factor[first]
        stayed = tilt.source[first] == column
        staying = (sum_others(values * stayed, user, parent) + _SOURCE_ROW_MOVES * tilt.stays[first]) / total
        prior *= np.where(stayed, 1.0, factor) / (staying + (1.0 - staying) * factor)

    def score_weight(weight: float) -> float:
        return float(values @ np.log(prior if weight == inf else (child + weight * prior) / (child_total + weight)))

    return find_best_weight(_EXTENSION_WEIGHTS, score_weight)


def _estimate_initial_by_class(
    model: MarkovModel, sequences: Iterable[tuple[IntArray, ...]], time_classes: TimeClasses
) -> FloatArray:
    """Return the distribution of the state in each class, shrunk towards the overall one."""
    parts = [(np.full(len(slots), user), slots, states) for user, (slots, states) in enumerate(sequences)]
    user, slots, states = (np.concatenate(column) for column in zip(*parts, strict=True))
    states = np.where(states < 0, -1, model.state_of_context[states])
    good = (states >= 0) & (model.initial[np.maximum(states, 0)] > 0)
    user = user[good]
    slots = slots[good]
    states = states[good]
    classes = time_classes.get_classes(slots)
    weight = _find_parent_weight(user, np.zeros_like(states), classes, states, model.initial[states])
    if weight == inf:
        return np.repeat(model.initial[np.newaxis], time_classes.count, axis=0)
    seen = np.bincount(classes * model.size + states, minlength=time_classes.count * model.size)
    seen = seen.reshape(time_classes.count, -1)
    return np.asarray((seen + weight * model.initial) / (seen.sum(axis=1, keepdims=True) + weight))
