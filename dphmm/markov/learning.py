"""A Markov model learned from released data alone, by expectation maximisation (§3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray
from dphmm.errors import InvalidInputError
from dphmm.markov.inference import Backwards, Observations, filter_releases, ratio
from dphmm.markov.model import MarkovModel

_LEAST = 1e-200
"""No expected count of a possible transition falls below this: an underflow would make it impossible for good."""


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

    Notes
    -----
    A round costs time in proportion to the number of time steps times that of conceivable transitions. Steps without a
    release are gone through too, so that a long gap costs as much as releases do.

    Raises
    ------
    InvalidInputError
        When there is no sequence, or a number is out of its range.
    StochasticError
        When the model rules out every state that could have given some release.
    """
    if not sequences:
        raise InvalidInputError("there are no releases to learn from; give at least one sequence")
    if rounds < 1 or not tolerance >= 0 or not (np.isfinite(smoothing) and smoothing >= 0):
        raise InvalidInputError(
            f"rounds {rounds}, tolerance {tolerance} and smoothing {smoothing}: give at least one round, and numbers "
            f"that are not negative"
        )
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
    backwards, targets = Backwards(model), model.transition.indices
    sources = np.repeat(np.arange(model.size), np.diff(model.transition.indptr))
    counts, first, evidence = np.zeros(len(targets)), np.zeros(model.size), 0.0
    for observed in sequences:
        filtering = filter_releases(model, observed)
        evidence += filtering.log_evidence
        smoothed = filtering.filtered[-1]
        for t in range(len(observed) - 2, -1, -1):
            ahead = ratio(smoothed, filtering.predicted[t + 1])
            steps = int(observed.steps[t + 1])
            beliefs = [filtering.filtered[t]] * min(steps, 1)
            while len(beliefs) < steps:
                beliefs.append(beliefs[-1].predict(model))
            for belief in reversed(beliefs):
                logs = belief.log_mass[sources] + model.log_rows + ahead.log_mass[targets]
                weights = np.exp(logs - logs.max())
                counts += weights / weights.sum()
                ahead = backwards.pull(ahead)
            smoothed = filtering.filtered[t].update(ahead.log_mass)
        first += smoothed.probabilities
    return counts, first, evidence


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
