"""What the best-informed adversary infers from a released sequence: filter, smoother, most probable path.

Everything is in logarithms and follows the sparse structure of the model, so that no possible state is ever lost to
an underflow and no impossible one gains mass. The filter is the engine's own belief; the smoother runs the same kernel
on the reversed model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, as_distribution
from dphmm.errors import InvalidInputError, StochasticError
from dphmm.markov.belief import Belief
from dphmm.markov.model import MarkovModel


@dataclass(frozen=True, eq=False)
class Observations:
    """A sequence of releases as its log densities.

    Parameters
    ----------
    log_likelihood
        ``(T, N)``: ``log p(z_t | s)`` of each release in every state, minus infinity where state s could not give it;
        `dphmm.release.engine.Replay` has the rows. A constant per row changes the evidence and nothing else.
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
        rows = np.ascontiguousarray(self.log_likelihood, dtype=np.float64)
        if rows.ndim != 2 or not rows.size:
            raise InvalidInputError(
                f"log_likelihood has shape {rows.shape}; give one row per release, a column per state"
            )
        if np.isnan(rows).any() or (rows == np.inf).any():
            row = int(np.flatnonzero((np.isnan(rows) | (rows == np.inf)).any(axis=1))[0])
            raise InvalidInputError(f"log_likelihood: row {row} holds NaN or plus infinity; give log densities")
        steps = np.asarray(self.steps, dtype=np.int64)
        steps = np.ones(len(rows), dtype=np.int64) if not steps.size else steps.copy()
        if steps.shape != (len(rows),) or (steps[1:] < 0).any():
            raise InvalidInputError(
                f"steps have shape {steps.shape}; give one per release ({len(rows)}), none negative"
            )
        rows.setflags(write=False)
        steps.setflags(write=False)
        object.__setattr__(self, "log_likelihood", rows)
        object.__setattr__(self, "steps", steps)

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


@dataclass(frozen=True, eq=False)
class MostProbablePath:
    """The most probable sequence of states given all releases.

    Parameters
    ----------
    states
        ``(T,)``: its states at the releases. Between releases further apart than a step the path goes through other
        states, which are maximised over along with these and not listed.
    log_probability
        ``log p(path, z_1..T)``, up to the constants of the rows.
    """

    states: IntArray = field(repr=False)
    log_probability: float


class ReversedModel:
    """A model run backwards: what turns a vector ``r`` over next states into ``M r``.

    Parameters
    ----------
    model
        The model ``M``.

    Notes
    -----
    The transpose of ``M`` with its rows scaled to one is a Markov model ``R``, and ``M r = (r c) R`` for the column
    sums ``c`` of ``M``; so `Belief.predict` does the work, with its care for small numbers.
    """

    def __init__(self, model: MarkovModel) -> None:
        from scipy.sparse import csr_array, diags_array

        sums = np.asarray(model.transition.sum(axis=0)).ravel()
        scale = np.where(sums > 0, sums, 1.0)
        never_entered = diags_array((sums == 0).astype(np.float64))
        turned = csr_array(diags_array(1.0 / scale) @ model.transition.T + never_entered)
        self._model = MarkovModel(turned, np.full(model.size, 1.0 / model.size))
        self._log_scale: FloatArray = np.log(scale)

    def pull(self, ahead: Belief, steps: int = 1) -> Belief:
        """``M^k r``, scaled to sum to one: where the mass of the next states' vector ``r`` can come from."""
        for _ in range(steps):
            ahead = Belief(ahead.support, ahead.log_mass + self._log_scale).predict(self._model)
        return ahead


def filter_releases(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None) -> Filtering:
    """The filter: what an adversary knows at each release.

    Parameters
    ----------
    model
        The adversary's Markov model over ``N`` states.
    observations
        The releases.
    initial
        ``(N,)``: the adversary's distribution of the state at the first release; left out, the model's.

    Raises
    ------
    StochasticError
        When ``initial`` is no distribution over the states, or no state that the adversary thinks possible could have
        given a release.
    InvalidInputError
        When observations and model differ in the number of states.
    """
    belief = _start(model, observations, initial)
    predicted, filtered, evidence = [], [], 0.0
    for t, row in enumerate(observations.log_likelihood):
        if t:
            belief = belief.predict(model, int(observations.steps[t]))
        predicted.append(belief)
        before = belief
        belief = _update(before, row, t)
        top = int(belief.log_mass.argmax())
        evidence += float(before.log_mass[top] + row[top] - belief.log_mass[top])
        filtered.append(belief)
    return Filtering(tuple(predicted), tuple(filtered), evidence)


def smooth_releases(model: MarkovModel, observations: Observations, filtering: Filtering) -> tuple[Belief, ...]:
    """The smoother: ``p(s_t | z_1..T)``, what an adversary knows of each time once all releases are there.

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
    backwards = ReversedModel(model)
    smoothed = [filtering.filtered[-1]]
    for t in range(len(observations) - 2, -1, -1):
        evidence = backwards.pull(ratio(smoothed[-1], filtering.predicted[t + 1]), int(observations.steps[t + 1]))
        smoothed.append(filtering.filtered[t].update(evidence.log_mass))
    return tuple(reversed(smoothed))


def ratio(smoothed: Belief, predicted: Belief) -> Belief:
    """``p(s | all) / p(s | before)`` as an unnormalised belief: what later releases say of a state."""
    with np.errstate(invalid="ignore"):
        log_ratio = np.where(smoothed.support, smoothed.log_mass - predicted.log_mass, -np.inf)
    return Belief(smoothed.support, log_ratio)


def most_probable_path(
    model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None
) -> MostProbablePath:
    """The most probable path (Viterbi), in logarithms over the sparse structure. Parameters as in `filter_releases`.

    Of equally probable paths the one of lower states is taken, from the last release backwards.

    Raises
    ------
    StochasticError
        When no possible path could have given the releases.
    """
    start = _start(model, observations, initial)
    columns = _LogColumns(model)
    scores = [start.log_mass + observations.log_likelihood[0]]
    _check_possible(scores[0], 0)
    for t in range(1, len(observations)):
        ahead = scores[-1]
        for _ in range(int(observations.steps[t])):
            ahead = columns.best(ahead)
        scores.append(ahead + observations.log_likelihood[t])
        _check_possible(scores[-1], t)
    states = np.empty(len(observations), dtype=np.int64)
    states[-1] = int(scores[-1].argmax())
    for t in range(len(observations) - 1, 0, -1):
        states[t - 1] = _step_back(columns, scores[t - 1], int(states[t]), int(observations.steps[t]))
    return MostProbablePath(states, float(scores[-1].max()))


def _step_back(columns: _LogColumns, scores: FloatArray, state: int, steps: int) -> int:
    """The best state ``steps`` earlier; scores between are worked out anew rather than kept."""
    between = [scores] * min(steps, 1)
    while len(between) < steps:
        between.append(columns.best(between[-1]))
    for earlier in reversed(between):
        state = columns.source(earlier, state)
    return state


class _LogColumns:
    """Log transition probabilities by columns, for maxima over predecessors."""

    def __init__(self, model: MarkovModel) -> None:
        self._size = model.size
        self._columns = model.columns
        self._entered = np.flatnonzero(model.entered)
        self._starts = self._columns.indptr[:-1][self._entered]

    @cached_property
    def _logs(self) -> FloatArray:
        return np.asarray(np.log(self._columns.data))

    def best(self, scores: FloatArray) -> FloatArray:
        """``max_i scores[i] + log M_ij`` for every state j; minus infinity where no state leads to j."""
        found = np.full(self._size, -np.inf)
        terms = scores[self._columns.indices]
        terms += self._logs
        found[self._entered] = np.maximum.reduceat(terms, self._starts)
        return found

    def source(self, scores: FloatArray, state: int) -> int:
        """The state i at which that maximum is reached for j = ``state``; of equal ones the lowest."""
        part = slice(int(self._columns.indptr[state]), int(self._columns.indptr[state + 1]))
        sources = self._columns.indices[part]
        terms = scores[sources] + self._logs[part]
        return int(sources[terms == terms.max()].min())


def _start(model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None) -> Belief:
    if observations.size != model.size:
        raise InvalidInputError(f"the releases speak of {observations.size} states and the model of {model.size}")
    return Belief.of(
        model.initial if initial is None else as_distribution(initial, model.size, "the adversary's prior")
    )


def _update(belief: Belief, row: FloatArray, t: int) -> Belief:
    try:
        return belief.update(row)
    except StochasticError as problem:
        raise StochasticError(f"release {t}: {problem}") from None


def _check_possible(scores: FloatArray, t: int) -> None:
    if not (scores > -np.inf).any():
        raise StochasticError(f"release {t}: no possible path could have given it; model and releases do not match")
