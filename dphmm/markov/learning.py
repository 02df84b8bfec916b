"""A Markov model learned from released data alone, by expectation maximisation (§3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, FloatArray
from dphmm.compilation import compiled
from dphmm.errors import InvalidInputError
from dphmm.markov import kernels
from dphmm.markov.inference import Observations, filter_releases, passed_back
from dphmm.markov.masses import Masses
from dphmm.markov.model import MarkovModel
from dphmm.markov.passes import Rows, rows_of

_LEAST = 1e-200
"""No expected count of a possible transition falls below this: an underflow would make it impossible for good."""

_SMALL = 2.0**-500
"""Pairs of which plain sums come to less than this are weighed as masses."""
_COMPILE_FROM = 1_000_000
"""With fewer terms than this, numpy is done before the compiled loop is loaded."""


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
    for observed in sequences:
        filtering, back = filter_releases(model, observed), passed_back(model, observed)
        known, ahead, later = filtering.rows, back.after.reversed(), back.before.reversed()
        evidence += filtering.log_evidence
        first += known[0].times(later[0])[0].plain()
        start = 0
        for t, steps in enumerate([*observed.steps[1:].tolist(), 0]):
            if steps == 1:
                continue
            pairs.add(known.part(start, t), ahead.part(start + 1, t + 1), later.part(start, t))
            if steps:
                pairs.add(*_through_gap(model, known[t], ahead[t + 1], steps))
            start = t + 1
    return pairs.counts(), first, evidence


def _through_gap(model: MarkovModel, known: Masses, ahead: Masses, steps: int) -> tuple[Rows, Rows, Rows]:
    """What is known before each step of a gap, what is to come after it, and what that says of the state before."""
    forwards, backwards = [known], [ahead]
    for _ in range(steps - 1):
        forwards.append(model.ahead.step(forwards[-1]))
    for _ in range(steps):
        backwards.append(model.back.step(backwards[-1]))
    backwards.reverse()
    return rows_of(forwards), rows_of(backwards[1:]), rows_of(backwards[:-1])


class _Pairs:
    """Sums over time of the probabilities of being in one state and in another one step later."""

    def __init__(self, model: MarkovModel) -> None:
        self._model = model
        self._is_dense = model.ahead.dense is not None
        self._sums = np.zeros((model.size, model.size) if self._is_dense else model.transition.nnz)
        self._others = np.zeros(model.transition.nnz)
        self._targets = model.transition.indices
        self._sources = np.repeat(np.arange(model.size), np.diff(model.transition.indptr))

    def add(self, known: Rows, ahead: Rows, later: Rows) -> None:
        """Adds times: what is ``known`` of a state, how the next one weighs ``ahead``, and so this one ``later``."""
        sums = np.einsum("ti,ti->t", known.values, later.values)
        apart = {*known.apart, *ahead.apart, *later.apart, *np.flatnonzero(~(sums >= _SMALL)).tolist()}
        scales = 1.0 / np.maximum(sums, _SMALL)
        scales[list(apart)] = 0.0
        if self._is_dense:
            self._sums += (known.values * scales[:, np.newaxis]).T @ np.ascontiguousarray(ahead.values)
        else:
            loop = compiled(kernels.gathered_pairs) if len(scales) * len(self._others) > _COMPILE_FROM else None
            (loop or _gathered_pairs)(self._model.back.lists, known.values, ahead.values, scales, self._sums)
        for t in apart:
            one, other = known[t], ahead[t]
            values = one.mantissa[self._sources] * self._model.transition.data
            values *= other.mantissa[self._targets]
            exponents = one.exponent[self._sources] + other.exponent[self._targets]
            self._others += Masses.of(values, exponents).scaled().plain()

    def counts(self) -> FloatArray:
        """The sums, in the order of the stored entries of the transition matrix."""
        sums = self._sums[self._sources, self._targets] if self._is_dense else self._sums
        return np.asarray(sums * self._model.transition.data + self._others)


def _gathered_pairs(
    lists: kernels.Lists, ones: FloatArray, others: FloatArray, scales: FloatArray, out: FloatArray
) -> None:
    """`dphmm.markov.kernels.gathered_pairs` in plain numpy."""
    starts, states, _ = lists
    lengths = np.diff(starts)
    for one, other, scale in zip(ones, others, scales.tolist(), strict=True):
        out += np.repeat(one * scale, lengths) * other[states]


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
