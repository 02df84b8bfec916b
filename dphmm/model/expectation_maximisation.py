"""A Markov model learned from released data alone, by expectation maximisation (§3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, FloatArray
from dphmm.errors import InvalidInputError
from dphmm.model.forward_backward import Observations, backward_pass, chain_rows, first_logs, forward_pass
from dphmm.model.model import MarkovModel
from dphmm.model.transition_operator import log_normalised

_LEAST = 1e-200
"""No expected count of a possible transition falls below this: an underflow would make it impossible for good."""

_AT_ONCE = 1 << 16
"""Pairs at one time whose products are held at once, about."""

_SMALL = 2.0**-500
"""Pairs of which plain sums come to less than this are weighed as masses."""


@dataclass(frozen=True, eq=False)
class LearnedModel:
    """What expectation maximisation found.

    Parameters
    ----------
    model
        The last model. Transitions that the starting model rules out stay impossible, all others stay possible.
    log_evidence
        ``log p(all releases)`` under the model before each round; without a pseudo-count it never falls.
    converged
        Whether the gain of the last round was within the tolerance.
    """

    model: MarkovModel = field(repr=False)
    log_evidence: tuple[float, ...]
    converged: bool


@checked
def learn_from_releases(
    model: MarkovModel,
    sequences: Sequence[Observations],
    rounds: int = 100,
    tolerance: float = 1e-6,
    smoothing: float = 0.0,
    learn_initial: bool = True,
) -> LearnedModel:
    """Expectation maximisation (Baum and Welch) for the transition probabilities, with the mechanism known.

    Parameters
    ----------
    model
        Where to start, over ``N`` states. It need not be the one that the releases were made with, and its structure
        says which transitions are conceivable.
    sequences
        One per person or session; their densities are those of the mechanism as it ran.
    rounds
        At most this many rounds, at least 1.
    tolerance
        Stop once a round raises the log evidence by no more than this times its absolute value.
    smoothing
        A pseudo-count added to every conceivable transition and first state; not negative.
    learn_initial
        Whether to learn the distribution of the first state too.

    Returns
    -------
    LearnedModel
        The model, and how the log evidence rose.

    Raises
    ------
    InvalidInputError
        When there is no sequence, or a number is out of its range.
    StochasticError
        When the model rules out every state that could have given some release.

    Notes
    -----
    A round costs time in proportion to the number of time steps times that of conceivable transitions. Steps without a
    release are gone through too, so that a long gap costs as much as releases do.
    """
    if not sequences:
        raise InvalidInputError("there are no releases to learn from; give at least one sequence")
    if rounds < 1 or not tolerance >= 0 or not 0 <= smoothing <= LARGEST:
        raise InvalidInputError(
            f"rounds {rounds}, tolerance {tolerance} and smoothing {smoothing}: give at least one round, and numbers "
            f"that are not negative"
        )
    smoothing = float(smoothing)
    history: list[float] = []
    for _ in range(rounds):
        counts, first, evidence = _expected_counts(model, sequences)
        history.append(evidence)
        if len(history) > 1 and evidence - history[-2] <= tolerance * abs(history[-2]):
            return LearnedModel(model, tuple(history), True)
        model = _maximised(model, counts + smoothing, first + smoothing if learn_initial else None)
    return LearnedModel(model, tuple(history), False)


def _expected_counts(model: MarkovModel, sequences: Sequence[Observations]) -> tuple[FloatArray, FloatArray, float]:
    """Expected transitions (in the order of the stored entries), expected first states, and the log evidence.

    The transitions are the smoother's pairs ``p(s_t, s_t+1 | z_1..T)``, summed over time.
    """
    pairs, first, evidence = _Pairs(model), np.zeros(model.size), 0.0
    step = model.operator()
    for observed in sequences:
        operators = model.operators(observed.gaps)
        rows, start = chain_rows(model, observed), first_logs(model, observed, None)
        known, sums = forward_pass(operators, rows, start)
        later = backward_pass(operators, rows)
        ahead = later + rows
        evidence += float(sums.sum())
        first += np.exp(log_normalised(known[0] + later[0])[0])
        begin = 0
        for t, steps in enumerate([*observed.steps[1:].tolist(), 0]):
            if steps == 1:
                continue
            pairs.add(known[begin:t], ahead[begin + 1 : t + 1])
            if steps:
                forwards, backwards = [known[t]], [ahead[t + 1]]
                for _ in range(steps - 1):
                    forwards.append(log_normalised(step.forward(forwards[-1]))[0])
                    backwards.append(log_normalised(step.backward(backwards[-1]))[0])
                pairs.add(np.array(forwards), np.array(backwards[::-1]))
            begin = t + 1
    return pairs.counts(), first, evidence


class _Pairs:
    """Sums over time of the probabilities of being in one state and in another one step later."""

    def __init__(self, model: MarkovModel) -> None:
        self._matrix, self._back = model.transition, model.steppers[0].back
        self._is_dense = self._back.dense is not None
        self._sums = np.zeros((model.size, model.size) if self._is_dense else self._matrix.nnz)
        self._others = np.zeros(self._matrix.nnz)
        self._targets = self._matrix.indices
        self._sources = np.repeat(np.arange(model.size), np.diff(self._matrix.indptr))

    def add(self, known: FloatArray, ahead: FloatArray) -> None:
        """Add times ``(T, N)``: log masses of each state now, and log likelihoods of what follows given the next one.

        Pairs that floats cannot weigh are weighed in logs, one time at a time.
        """
        ones, others = (np.exp(rows - rows.max(axis=1, keepdims=True)) for rows in (known, ahead))
        sums = np.einsum("tn,nt->t", ones, self._back.plain(others.T))
        small = ~(sums >= _SMALL)
        scales = np.where(small, 0.0, 1.0 / np.where(small, 1.0, sums))
        if self._is_dense:
            self._sums += (ones * scales[:, np.newaxis]).T @ others
        elif len(scales):
            now, after = np.ascontiguousarray((ones * scales[:, np.newaxis]).T), np.ascontiguousarray(others.T)
            size = max(1, _AT_ONCE // len(scales))
            for first in range(0, len(self._sums), size):
                part = slice(first, first + size)
                pairs = now[self._sources[part]], after[self._targets[part]]
                self._sums[part] += np.einsum("et,et->e", *pairs)
        for t in np.flatnonzero(small).tolist():
            logs = known[t][self._sources] + self._back.log_shares + ahead[t][self._targets]
            self._others += np.exp(log_normalised(logs)[0])

    def counts(self) -> FloatArray:
        """The sums, in the order of the stored entries of the transition matrix."""
        sums = self._sums[self._sources, self._targets] if self._is_dense else self._sums
        return np.asarray(sums * self._matrix.data + self._others)


def _maximised(model: MarkovModel, counts: FloatArray, first: FloatArray | None) -> MarkovModel:
    """The model of the expected counts; a state that is never left in expectation keeps its probabilities."""
    matrix = model.transition
    starts, lengths = matrix.indptr[:-1], np.diff(matrix.indptr)
    totals = np.repeat(np.add.reduceat(counts, starts), lengths)
    data = np.maximum(np.divide(counts, totals, out=matrix.data.copy(), where=totals > 0), _LEAST)
    data /= np.repeat(np.add.reduceat(data, starts), lengths)
    initial = model.initial
    if first is not None:
        initial = np.where(model.initial > 0, np.maximum(first / first.sum(), _LEAST), 0.0)
        initial /= initial.sum()
    made = csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)
    return MarkovModel(made, initial, model.states, model.step_seconds)
