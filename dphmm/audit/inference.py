"""What the best-informed adversary infers from a released sequence: filter, smoother, most probable path.

Everything is in logarithms and follows the sparse structure of the model, so that no possible state is ever lost to
an underflow and no impossible one gains mass. The filter is the engine's own belief; the smoother divides what is
known of the next state by what was predicted of it, and takes the quotient back through the model.
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
        self._logs: FloatArray = np.log(model.transition.data)

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
        terms += self._logs
        highest = np.maximum.reduceat(terms, starts)
        support = highest > -np.inf
        highest[~support] = 0.0
        terms -= np.repeat(highest, self._lengths)
        with np.errstate(divide="ignore"):
            log_mass = highest + np.log(np.add.reduceat(np.exp(terms), starts))
        return Belief(support, log_mass - log_mass.max())

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
        return passed, Belief(support, log_mass)


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
        _, ahead = columns.over(scores[-1], int(observations.steps[t]))
        scores.append(ahead + observations.log_likelihood[t])
        _check_possible(scores[-1], t)
    states = np.empty(len(observations), dtype=np.int64)
    states[-1] = int(scores[-1].argmax())
    for t in range(len(observations) - 1, 0, -1):
        states[t - 1] = _step_back(columns, scores[t - 1], int(states[t]), int(observations.steps[t]))
    return MostProbablePath(states, float(scores[-1].max()))


def _step_back(columns: _LogColumns, scores: FloatArray, state: int, steps: int) -> int:
    """The best state ``steps`` earlier; scores between are worked out anew rather than kept."""
    between, _ = columns.over(scores, steps)
    for _ in range(steps - len(between)):
        earlier = columns.source(between[-1], state)
        if earlier == state:
            break
        state = earlier
    for passed in reversed(between):
        state = columns.source(passed, state)
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

    def over(self, scores: FloatArray, steps: int) -> tuple[list[FloatArray], FloatArray]:
        """The scores ``steps`` later, and those before each step as far as they differ by more than a constant.

        Maxima over ever longer paths come to grow by the same amount everywhere in each step, soon where states can be
        stayed in. From then on the predecessors stay the same, and the steps left are taken at once.
        """
        before: list[FloatArray] = []
        for passed in range(steps):
            further = self.best(scores)
            before.append(scores)
            growth = _common_growth(scores, further) if passed < steps - 1 else None
            if growth is not None:
                return before, further + growth * (steps - passed - 1)
            scores = further
        return before, scores

    def source(self, scores: FloatArray, state: int) -> int:
        """The state i at which that maximum is reached for j = ``state``; of equal ones the lowest."""
        part = slice(int(self._columns.indptr[state]), int(self._columns.indptr[state + 1]))
        sources = self._columns.indices[part]
        terms = scores[sources] + self._logs[part]
        return int(sources[terms == terms.max()].min())


def _common_growth(before: FloatArray, after: FloatArray) -> float | None:
    """By how much all finite scores have grown alike, or None where they have not or others are finite."""
    finite = before > -np.inf
    if not np.array_equal(finite, after > -np.inf) or not finite.any():
        return None
    growth = after[finite] - before[finite]
    low, high = float(growth.min()), float(growth.max())
    return (low + high) / 2 if high - low <= 1e-15 * float(np.abs(after[finite]).max()) else None


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
