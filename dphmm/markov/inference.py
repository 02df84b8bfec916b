"""What a sequence of observations says of the states: the filter and the smoother.

Everything is in logarithms and follows the sparse structure of the model, so that no possible state is ever lost to
an underflow and no impossible one gains mass. The filter is a belief, predicted and updated; the smoother divides what
is known of the next state by what was predicted of it, and takes the quotient back through the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, as_distribution, locked
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.markov.belief import Belief
from dphmm.markov.model import MarkovModel
from dphmm.stochastic import MatrixLike

_FAINT = 1e-290
"""Averages below this may have lost digits, or terms, and are done over in logarithms."""
_REST = 1e-15
"""A vector that a step changes by no more than this, relatively, is at rest: a million steps would not show."""


@dataclass(frozen=True, eq=False)
class Observations:
    """A sequence of releases as its log densities.

    Parameters
    ----------
    log_likelihood
        ``(T, N)``: ``log p(z_t | s)`` of each release in every state, minus infinity where state s could not give it.
        A constant per row changes the evidence and nothing else.
    steps
        ``(T,)``: the time steps of the model between each release and the one before, 0 for another release about the
        same moment; the first entry is not used. Left out, 1 throughout.

    Raises
    ------
    InvalidInputError
        When a shape does not fit, there is no release, a density is NaN or plus infinity, or a step is negative.
    """

    log_likelihood: FloatArray
    steps: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        rows = np.array(self.log_likelihood, dtype=np.float64, order="C")
        if rows.ndim != 2 or not rows.size:
            raise InvalidInputError(
                f"log_likelihood has shape {rows.shape}; give one row per release, a column per state"
            )
        if np.isnan(rows).any() or (rows == np.inf).any():
            row = int(np.flatnonzero((np.isnan(rows) | (rows == np.inf)).any(axis=1))[0])
            raise InvalidInputError(f"log_likelihood: row {row} holds NaN or plus infinity; give log densities")
        steps = np.array(self.steps, dtype=np.int64)
        steps = steps if steps.size else np.ones(len(rows), dtype=np.int64)
        if steps.shape != (len(rows),) or (steps[1:] < 0).any():
            raise InvalidInputError(
                f"steps have shape {steps.shape}; give one per release ({len(rows)}), none negative"
            )
        vars(self).update(log_likelihood=locked(rows), steps=locked(steps))

    def __len__(self) -> int:
        return len(self.log_likelihood)

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return int(self.log_likelihood.shape[1])


@dataclass(frozen=True, eq=False)
class Filtering:
    """What is known at each release from the releases up to it.

    Parameters
    ----------
    predicted
        ``p(s_t | z_1..t-1)``, one per release.
    filtered
        ``p(s_t | z_1..t)``, one per release.
    log_evidence
        ``log p(z_1..T)``: up to the constants of the rows.
    """

    predicted: tuple[Belief, ...] = field(repr=False)
    filtered: tuple[Belief, ...] = field(repr=False)
    log_evidence: float


class Backwards:
    """A model looked at from the future: what turns a vector ``r`` over next states into ``M r``.

    Parameters
    ----------
    model
        The model ``M``.

    Notes
    -----
    Every entry of ``M r`` is an average of entries of ``r``, so plain sums do while none of them is faint, and over a
    long gap they come to rest. Where some are faint, each row is summed relative to its own largest term.
    """

    def __init__(self, model: MarkovModel) -> None:
        self._model = model
        self._lengths = np.diff(model.transition.indptr)

    def pull(self, ahead: Belief, steps: int = 1) -> Belief:
        """``M^k r``, up to a factor: where the mass of the next states' vector ``r`` can come from."""
        while steps > 0:
            passed, ahead = self._by_plain_sums(ahead, steps)
            if not passed:
                passed, ahead = 1, self._by_logs(ahead)
            steps -= passed
        return ahead

    def _by_logs(self, ahead: Belief) -> Belief:
        matrix = self._model.transition
        starts = matrix.indptr[:-1]
        terms = ahead.log_mass[matrix.indices]
        terms += self._model.log_rows
        highest = np.maximum.reduceat(terms, starts)
        support = highest > -np.inf
        highest[~support] = 0.0
        terms -= np.repeat(highest, self._lengths)
        with np.errstate(divide="ignore"):
            log_mass = highest + np.log(np.add.reduceat(np.exp(terms), starts))
        return Belief.owning(support, log_mass - log_mass.max())

    def _by_plain_sums(self, ahead: Belief, steps: int) -> tuple[int, Belief]:
        """As many of the steps as can be taken with nothing faint, and the vector after them."""
        matrix, structure = self._model.transition, self._model.structure
        now, support = np.exp(ahead.log_mass - ahead.log_mass.max()), ahead.support
        passed = 0
        while passed < steps:
            wider = np.asarray(structure @ support)
            further = np.asarray(matrix @ now)
            if further[wider].min() < _FAINT:
                break
            resting = np.array_equal(wider, support) and bool((np.abs(further - now) <= _REST * now).all())
            now, support = further, wider
            passed = steps if resting else passed + 1
        if not passed:
            return 0, ahead
        log_mass = np.full(len(now), -np.inf)
        log_mass[support] = np.log(now[support] / now[support].sum())
        return passed, Belief.owning(support, log_mass)


def filter_releases(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None) -> Filtering:
    """The filter: what is known at each release.

    Parameters
    ----------
    model
        A Markov model over ``N`` states.
    observations
        The releases.
    initial
        ``(N,)``: the distribution of the state at the first release; left out, the model's.

    Raises
    ------
    StochasticError
        When ``initial`` is no distribution over the states, or no possible state could have given a release.
    InvalidInputError
        When observations and model differ in the number of states.
    """
    belief = first_belief(model, observations, initial)
    predicted, filtered, evidence = [], [], 0.0
    for t, row in enumerate(observations.log_likelihood):
        if t:
            belief = belief.predict(model, int(observations.steps[t]))
        predicted.append(belief)
        before = belief
        try:
            belief = before.update(row)
        except StochasticError as problem:
            raise StochasticError(f"release {t}: {problem}") from None
        top = int(belief.log_mass.argmax())
        evidence += float(before.log_mass[top] + row[top] - belief.log_mass[top])
        filtered.append(belief)
    return Filtering(tuple(predicted), tuple(filtered), evidence)


def smooth_releases(model: MarkovModel, observations: Observations, filtering: Filtering) -> tuple[Belief, ...]:
    """The smoother: ``p(s_t | z_1..T)``, what is known of each time once all releases are there.

    Parameters
    ----------
    model, observations
        As in `filter_releases`.
    filtering
        What that found.

    Returns
    -------
    tuple of Belief
        One per release; the last is the filter's.
    """
    backwards = Backwards(model)
    smoothed = [filtering.filtered[-1]]
    for t in range(len(observations) - 2, -1, -1):
        evidence = backwards.pull(ratio(smoothed[-1], filtering.predicted[t + 1]), int(observations.steps[t + 1]))
        smoothed.append(filtering.filtered[t].update(evidence.log_mass))
    return tuple(reversed(smoothed))


def ratio(smoothed: Belief, predicted: Belief) -> Belief:
    """``p(s | all) / p(s | before)`` as an unnormalised belief: what later releases say of a state."""
    with np.errstate(invalid="ignore"):
        log_ratio = np.where(smoothed.support, smoothed.log_mass - predicted.log_mass, -np.inf)
    return Belief.owning(smoothed.support, log_ratio)


def first_belief(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None) -> Belief:
    """The belief before the first release. Parameters and errors as in `filter_releases`."""
    if observations.size != model.size:
        raise InvalidInputError(f"the releases speak of {observations.size} states and the model of {model.size}")
    return Belief.of(model.initial if initial is None else as_distribution(initial, model.size))


def filter(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """The filter on plain arrays: rows are ``p(s_t | z_1..t)``.

    Parameters
    ----------
    transition
        ``(N, N)`` row-stochastic, dense or sparse.
    initial
        ``(N,)``: the distribution of the first state.
    log_likelihoods
        ``(T, N)``: ``log p(z_t | s)``, minus infinity where state s could not give it.

    Returns
    -------
    FloatArray
        ``(T, N)``; each row sums to one. Possible states below about ``1e-308`` show as zero: `filter_releases` keeps
        them apart from impossible ones.

    Raises
    ------
    StochasticError
        When the matrix or the distribution is none, or no possible state could have given an observation.
    InvalidInputError
        When shapes do not fit, there is no row, or one holds NaN or plus infinity.

    Examples
    --------
    >>> filter([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.5  , 0.5  ],
           [0.917, 0.083]])
    """
    filtering = filter_releases(MarkovModel(transition, initial), Observations(np.asarray(log_likelihoods)))
    return np.array([belief.probabilities for belief in filtering.filtered])


def smooth(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> FloatArray:
    """The smoother on plain arrays: rows are ``p(s_t | z_1..T)``. Parameters, shape and errors as `filter`.

    Examples
    --------
    >>> smooth([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).round(3)
    array([[0.759, 0.241],
           [0.917, 0.083]])
    """
    model, observations = MarkovModel(transition, initial), Observations(np.asarray(log_likelihoods))
    smoothed = smooth_releases(model, observations, filter_releases(model, observations))
    return np.array([belief.probabilities for belief in smoothed])
