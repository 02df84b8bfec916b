"""Goodness of fit of a model to other users: likelihood of moves, stays, and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError
from dphmm.formatting import Result, exported
from dphmm.jobs.input_data import Data, DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.training_users import find_training_users
from dphmm.model.model import MarkovModel
from dphmm.model.observed_moves import Moves, concatenate_moves, extract_moves, state_sequences
from dphmm.validation import check_arguments

# The probability levels of the prediction regions that are checked.
LEVELS = (0.5, 0.9, 0.99)

# Maximum and minimum number of distinct starts of predictions, and the approximate size of their arrays.
_MAX_STARTS = 1000
_MIN_STARTS = 40
_MAX_NUMBERS = 1 << 23
# Starts are selected with a fixed seed: the same model and users give the same result.
_SEED = 0


@dataclass(frozen=True)
class Coverage:
    """The empirical coverage of prediction regions, several steps after an observation.

    Parameters
    ----------
    steps
        The number of steps ahead.
    level
        The nominal level: a region is the smallest set of states with at least this probability.
    mean_mass
        The mean probability of the regions under the model. It is at least the level, because states are not split.
    rate
        The share of the regions that contained the user.
    num_predictions
        The number of predictions.
    """

    steps: int
    level: float
    mean_mass: float
    rate: float
    num_predictions: int


@dataclass(frozen=True)
class Fit(Result):
    """The goodness of fit of a model to users. As private as the users' data.

    Parameters
    ----------
    num_users, moves
        The number of users with moves, and of moves.
    num_training_users
        The number of these users that the model was trained on; None if unknown.
    impossible_moves
        The share of moves that are impossible in the model.
    log_likelihood
        The mean natural logarithm of the probability of a move, over possible moves.
    uniform_log_likelihood
        The log likelihood if all possible moves were equally probable.
    stays, stays_expected
        The share of moves that are stays, observed and expected under the model for the same sources.
    coverage
        The coverage for each number of steps and each of `LEVELS`.
    """

    num_users: int = field(metadata=exported("num_users"))
    moves: int = field(metadata=exported("num_moves"))
    num_training_users: int | None
    impossible_moves: float = field(metadata=exported("impossible_moves_share"))
    log_likelihood: float = field(metadata=exported("log_likelihood_per_move"))
    uniform_log_likelihood: float = field(metadata=exported("uniform_log_likelihood_per_move"))
    stays: float = field(metadata=exported("stays_share"))
    stays_expected: float = field(metadata=exported("expected_stays_share"))
    coverage: tuple[Coverage, ...]

    def _derive_fields(self) -> dict[str, Any]:
        return {
            f"coverage_of_{coverage.level:.0%}_regions_{coverage.steps}_steps_ahead": coverage.rate
            for coverage in self.coverage
        }


@check_arguments
def evaluate_fit(model: Model, data: DataLike, steps: Sequence[int] = (1, 3, 12)) -> Fit:
    """Evaluate the goodness of fit of a model to users, as ``dphmm model show --true`` does.

    Parameters
    ----------
    model
        A model, or its file.
    data
        Users that the model was not trained on; see `Data`.
    steps
        The numbers of steps ahead for which the coverage is evaluated, each at least one.

    Returns
    -------
    Fit
        The likelihood of the moves, and the coverage of prediction regions.

    Raises
    ------
    ConfigurationError
        If no user moves within the model's region.
    DataFileError
        If the data or the model cannot be read.
    """
    loaded = load_model(model)
    if not steps or any(isinstance(k, bool) or not 1 <= k <= 10_000 for k in steps):
        raise ConfigurationError(f"steps must be integers from 1 to 10000, got {tuple(steps)}")
    tracks = Data.from_any(data).with_region(loaded.space).read().trajectories
    sequences = state_sequences(tracks, loaded.space, loaded.step, outside=loaded.outside)
    user_moves = [extract_moves(sequence, loaded.chain_size) for sequence in sequences]
    moves = concatenate_moves(user_moves)
    if not len(moves):
        raise ConfigurationError("data must contain two consecutive timesteps in the model's region: use other data")
    probabilities, stays, degrees = _score_moves(loaded, moves)
    possible = probabilities > 0
    seen = find_training_users(model, loaded)
    return Fit(
        num_users=sum(len(moves_of_user) > 0 for moves_of_user in user_moves),
        moves=len(moves),
        num_training_users=None if seen is None else sum(trajectory.user in seen for trajectory in tracks),
        impossible_moves=float(1 - possible.mean()),
        log_likelihood=float(np.log(probabilities[possible]).mean()) if possible.any() else float("-inf"),
        uniform_log_likelihood=float(-np.log(degrees[possible]).mean()) if possible.any() else float("-inf"),
        stays=float((moves.sources == moves.targets).mean()),
        stays_expected=float(stays.mean()),
        coverage=tuple(_compute_coverage(loaded, sequences, sorted({int(k) for k in steps}))),
    )


def compute_move_probabilities(model: MarkovModel, sequence: tuple[IntArray, IntArray]) -> FloatArray:
    """Return the probability of each move of a user, ``(m,)``. 0 for impossible moves."""
    return np.asarray(_score_moves(model, extract_moves(sequence, model.chain_size))[0])


def _score_moves(model: MarkovModel, moves: Moves) -> FloatArray:
    """Return, for each move, its probability, that of staying, and the possible moves."""
    classes = model.get_classes(moves.slots)
    sources = moves.sources
    scores = np.zeros((3, len(moves)))
    for number, matrix in enumerate(model.transitions):
        members = classes == number
        scores[0, members] = np.asarray(matrix[sources[members], moves.targets[members]]).ravel()
        scores[1, members] = np.asarray(matrix[sources[members], sources[members]]).ravel()
        scores[2, members] = np.diff(matrix.indptr)[sources[members]]
    return scores


def _compute_coverage(
    model: MarkovModel, sequences: Sequence[tuple[IntArray, IntArray]], steps: list[int]
) -> list[Coverage]:
    """Return the coverage for pairs of observations that are the given numbers of steps apart.

    Pairs are sampled with a fixed seed.
    """
    results = []
    for count in steps:
        slots, starts, ended = (
            np.concatenate(part)
            for part in zip(*(_list_observation_pairs(model, *sequence, count) for sequence in sequences), strict=True)
        )
        order = np.random.default_rng(_SEED).permutation(len(slots))
        _, first, column = np.unique(
            np.stack([slots, starts])[:, order], axis=1, return_index=True, return_inverse=True
        )
        max_starts = min(_MAX_STARTS, max(_MIN_STARTS, _MAX_NUMBERS // model.chain_size))
        until = len(order) if len(first) <= max_starts else int(np.sort(first)[max_starts])
        chosen, column = np.unique(column.ravel()[:until], return_inverse=True)
        selected = order[first[chosen]]
        if until:
            rows = _predict(model, slots[selected], starts[selected], count)
            results += _evaluate_regions(rows, column.ravel(), ended[order[:until]], count)
    return results


def _predict(model: MarkovModel, slots: IntArray, starts: IntArray, steps: int) -> FloatArray:
    """Return the distribution of states several steps after a context at a slot, ``(N, n)``."""
    rows = np.zeros((model.chain_size, len(starts)))
    rows[starts, np.arange(len(starts))] = 1.0
    for step in range(1, steps + 1):
        classes = model.get_classes(slots + step)
        for number in np.unique(classes).tolist():
            members = classes == number
            rows[:, members] = model.one_step_operators[number].forward_product.multiply(rows[:, members])
    if model.outside is None:
        return rows
    states = model.outside.state_of_context
    projection = csr_array((np.ones(len(states)), (states, np.arange(len(states)))), shape=(model.size, len(states)))
    return np.asarray(projection @ rows)


def _evaluate_regions(rows: FloatArray, column: IntArray, ended: IntArray, steps: int) -> list[Coverage]:
    """Evaluate the prediction regions of each column."""
    order = np.argsort(-rows, axis=0, kind="stable")
    mass = np.cumsum(np.take_along_axis(rows, order, axis=0), axis=0)
    before = np.empty_like(rows)
    np.put_along_axis(before, order, np.vstack([np.zeros(rows.shape[1]), mass[:-1]]), axis=0)
    results = []
    for level in LEVELS:
        # A state is in the region if all more probable states together have less than the level.
        inside = before < level * (1 - 1e-12)
        mean_mass = (rows * inside).sum(axis=0)[column].mean()
        rate = inside[ended, column].mean()
        results.append(Coverage(steps, level, float(mean_mass), float(rate), len(column)))
    return results


def _list_observation_pairs(
    model: MarkovModel, slots: IntArray, states: IntArray, steps: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Return observations several steps apart: first slots, first contexts, last states.

    Slots are zero unless the model varies with time.
    """
    is_known = states >= 0
    slots = slots[is_known]
    states = states[is_known]
    later = np.searchsorted(slots, slots + steps)
    there = later < len(slots)
    there[there] = slots[later[there]] == slots[there] + steps
    varies = model.time_classes is not None
    ended = states if model.outside is None else model.outside.state_of_context[states]
    return slots[there] if varies else np.zeros(int(there.sum()), dtype=np.int64), states[there], ended[later[there]]
