"""Learning a Markov model from releases alone, by expectation maximisation (§3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError
from dphmm.model.forward_backward import (
    Observations,
    compute_initial_logs,
    expand_log_likelihoods,
    run_backward_pass,
    run_forward_pass,
)
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import normalize_logs
from dphmm.tolerances import MAX_SCALE
from dphmm.validation import Interval, PositiveInt, check_arguments

# Floor of the probabilities of possible transitions: a transition that underflows to zero could never recover.
_MIN_PROBABILITY = 1e-200

# Approximate number of products of pairs that are in memory at a time.
_CHUNK_PRODUCTS = 1 << 16

# Pairs with a smaller sum in plain floats are computed in logs.
_MIN_PLAIN_SUM = 2.0**-500


@dataclass(frozen=True, eq=False)
class LearnedModel:
    """The result of expectation maximisation.

    Parameters
    ----------
    model
        The last model. Transitions that are impossible in the initial model stay impossible, all others stay possible.
    log_evidence
        ``log p(all releases)`` under the model before each round. Without smoothing it never decreases.
    converged
        Whether the gain of the last round was within the tolerance.
    """

    model: MarkovModel = field(repr=False)
    log_evidence: tuple[float, ...]
    converged: bool


@check_arguments
def learn_from_releases(
    model: MarkovModel,
    sequences: Sequence[Observations],
    rounds: PositiveInt = 100,
    tolerance: Annotated[float, Interval(0)] = 1e-6,
    smoothing: Annotated[float, Interval(0, MAX_SCALE)] = 0.0,
    learn_initial: bool = True,
) -> LearnedModel:
    """Learn transition probabilities from releases (Baum–Welch), with the mechanism known.

    Parameters
    ----------
    model
        The initial model, over ``N`` states. It need not be the model of the releases. Its structure determines the
        possible transitions.
    sequences
        One for each user or session. Their densities must be those of the mechanism that produced the releases.
    rounds
        Maximum number of rounds, at least 1.
    tolerance
        Stop if a round increases the log evidence by at most this factor of its absolute value.
    smoothing
        A pseudo-count added to every possible transition and first state, non-negative.
    learn_initial
        Whether to learn the initial distribution, too.

    Returns
    -------
    LearnedModel
        The model, and the log evidence of every round.

    Raises
    ------
    InvalidInputError
        If there is no sequence, or a number is out of its range.
    StochasticError
        If a release is impossible in every possible state of the model.

    Notes
    -----
    The time of a round is proportional to the number of timesteps times the number of possible transitions. Steps
    without a release are computed as well, so a long gap costs as much as the same number of releases.
    """
    if not sequences:
        raise InvalidInputError("sequences must contain at least one sequence of releases")
    smoothing = float(smoothing)
    history: list[float] = []
    for _ in range(rounds):
        counts, first, evidence = _compute_expected_counts(model, sequences)
        history.append(evidence)
        if len(history) > 1 and evidence - history[-2] <= tolerance * abs(history[-2]):
            return LearnedModel(model, tuple(history), True)
        model = _maximise(model, counts + smoothing, first + smoothing if learn_initial else None)
    return LearnedModel(model, tuple(history), False)


def _compute_expected_counts(
    model: MarkovModel, sequences: Sequence[Observations]
) -> tuple[FloatArray, FloatArray, float]:
    """Return expected transitions, expected first states, and the log evidence (E-step).

    The transitions are the smoothed pairs ``p(s_t, s_t+1 | z_1..T)``, summed over time, one for each stored entry.
    """
    pairs = _Pairs(model)
    first = np.zeros(model.size)
    evidence = 0.0
    step = model.operator()
    for observed in sequences:
        operators = model.operators(observed.gaps)
        rows = expand_log_likelihoods(model, observed)
        start = compute_initial_logs(model, observed, None)
        filtered, sums = run_forward_pass(operators, rows, start)
        later = run_backward_pass(operators, rows)
        ahead = later + rows
        evidence += float(sums.sum())
        first += np.exp(normalize_logs(filtered[0] + later[0])[0])
        begin = 0
        for t, steps in enumerate([*observed.steps[1:].tolist(), 0]):
            if steps == 1:
                continue
            pairs.add(filtered[begin:t], ahead[begin + 1 : t + 1])
            # In a gap the pairs of every step count, although nothing is observed there.
            if steps:
                forwards = [filtered[t]]
                backwards = [ahead[t + 1]]
                for _ in range(steps - 1):
                    forwards.append(normalize_logs(step.propagate_forward(forwards[-1]))[0])
                    backwards.append(normalize_logs(step.propagate_backward(backwards[-1]))[0])
                pairs.add(np.array(forwards), np.array(backwards[::-1]))
            begin = t + 1
    return pairs.compute_counts(), first, evidence


class _Pairs:
    """Sums over time of the probabilities of pairs of consecutive states."""

    def __init__(self, model: MarkovModel) -> None:
        self._matrix = model.transition
        self._back = model.one_step_operators[0].backward_product
        self._is_dense = self._back.dense is not None
        self._sums = np.zeros((model.size, model.size) if self._is_dense else self._matrix.nnz)
        self._log_domain_sums = np.zeros(self._matrix.nnz)
        self._targets = self._matrix.indices
        self._sources = np.repeat(np.arange(model.size), np.diff(self._matrix.indptr))

    def add(self, filtered: FloatArray, ahead: FloatArray) -> None:
        """Add the pairs of ``T`` timesteps.

        ``filtered`` contains the log masses of the current state, ``ahead`` the log likelihoods of all later releases
        given the next state, ``(T, N)`` each. Timesteps that underflow in floats are computed in logs, one at a time.
        """
        # Each row is scaled by its largest entry. The factor cancels when the pairs of a timestep are normalised.
        current, following = (np.exp(rows - rows.max(axis=1, keepdims=True)) for rows in (filtered, ahead))
        sums = np.einsum("tn,nt->t", current, self._back.multiply(following.T))
        small = ~(sums >= _MIN_PLAIN_SUM)
        scales = np.where(small, 0.0, 1.0 / np.where(small, 1.0, sums))
        if self._is_dense:
            self._sums += (current * scales[:, np.newaxis]).T @ following
        elif len(scales):
            now = np.ascontiguousarray((current * scales[:, np.newaxis]).T)
            after = np.ascontiguousarray(following.T)
            size = max(1, _CHUNK_PRODUCTS // len(scales))
            for first in range(0, len(self._sums), size):
                part = slice(first, first + size)
                pairs = now[self._sources[part]], after[self._targets[part]]
                self._sums[part] += np.einsum("et,et->e", *pairs)
        for t in np.flatnonzero(small).tolist():
            logs = filtered[t][self._sources] + self._back.log_shares + ahead[t][self._targets]
            self._log_domain_sums += np.exp(normalize_logs(logs)[0])

    def compute_counts(self) -> FloatArray:
        """Return the sums, one for each stored entry of the transition matrix."""
        sums = self._sums[self._sources, self._targets] if self._is_dense else self._sums
        return np.asarray(sums * self._matrix.data + self._log_domain_sums)


def _maximise(model: MarkovModel, counts: FloatArray, first: FloatArray | None) -> MarkovModel:
    """Return the model that maximises the expected log likelihood (M-step).

    A state that is never left in expectation keeps its transition probabilities.
    """
    matrix = model.transition
    starts = matrix.indptr[:-1]
    lengths = np.diff(matrix.indptr)
    # Counts divided by the sum of their row. Transitions without an expected count stay at a floor: no later E-step
    # could make a transition of probability zero possible again.
    totals = np.repeat(np.add.reduceat(counts, starts), lengths)
    data = np.maximum(np.divide(counts, totals, out=matrix.data.copy(), where=totals > 0), _MIN_PROBABILITY)
    data /= np.repeat(np.add.reduceat(data, starts), lengths)
    initial = model.initial
    if first is not None:
        initial = np.where(model.initial > 0, np.maximum(first / first.sum(), _MIN_PROBABILITY), 0.0)
        initial /= initial.sum()
    transition = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    return MarkovModel(transition, initial, model.states, model.step_seconds)
