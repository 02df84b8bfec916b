"""The most probable path (Viterbi), in logarithms over the sparse structure of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import StochasticError
from dphmm.markov.inference import Observations, first_belief
from dphmm.markov.model import MarkovModel
from dphmm.stochastic import MatrixLike


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


def path_of_releases(
    model: MarkovModel, observations: Observations, initial: npt.ArrayLike | None = None
) -> MostProbablePath:
    """The most probable path. Parameters as in `dphmm.markov.filter_releases`.

    Of equally probable paths the one of lower states is taken, from the last release backwards.

    Raises
    ------
    StochasticError
        When no possible path could have given the releases.
    """
    start = first_belief(model, observations, initial)
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
        self._columns, self._logs = model.columns, model.log_columns
        self._entered = np.flatnonzero(model.entered)
        self._starts = self._columns.indptr[:-1][self._entered]

    def best(self, scores: FloatArray) -> FloatArray:
        """``max_i scores[i] + log M_ij`` for every state j; minus infinity where no state leads to j."""
        found = np.full(len(scores), -np.inf)
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


def _check_possible(scores: FloatArray, t: int) -> None:
    if not (scores > -np.inf).any():
        raise StochasticError(f"release {t}: no possible path could have given it; model and releases do not match")


def most_probable_path(transition: MatrixLike, initial: npt.ArrayLike, log_likelihoods: npt.ArrayLike) -> IntArray:
    """The states of the most probable path, ``(T,)``, on plain arrays. Parameters and errors as `dphmm.markov.filter`.

    Of equally probable paths the one of lower states is taken, from the last observation backwards.

    Examples
    --------
    >>> most_probable_path([[.9, .1], [.2, .8]], [.5, .5], np.log([[.5, .5], [.9, .1]])).tolist()
    [0, 0]
    """
    model = MarkovModel(transition, initial)
    return path_of_releases(model, Observations(np.asarray(log_likelihoods))).states
