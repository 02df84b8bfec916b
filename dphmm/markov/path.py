"""The most probable path (Viterbi), in logarithms over the sparse structure of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import compiled
from dphmm.errors import StochasticError
from dphmm.markov import kernels
from dphmm.markov.inference import Observations, first_masses
from dphmm.markov.model import MarkovModel
from dphmm.stochastic import MatrixLike

_COMPILE_FROM = 1_000_000
"""With fewer sums of a score and a logarithm than this, numpy is done before the compiled loops are loaded."""


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
    moves, rows = _Moves(model, len(observations)), observations.log_likelihood
    scores = np.empty_like(rows)
    np.add(first_masses(model, observations, initial).logs, rows[0], out=scores[0])
    runs = _runs(observations.steps)
    for start, stop, steps in runs:
        if start:
            np.add(moves.over(scores[start - 1], steps)[1], rows[start], out=scores[start])
        moves.run(rows[start:stop], scores[start:stop])
    impossible = scores.max(axis=1) == -np.inf
    if impossible.any():
        raise StochasticError(
            f"release {impossible.argmax()}: no possible path could have given it; model and releases do not match"
        )
    states = np.empty(len(rows), dtype=np.int64)
    states[-1] = int(scores[-1].argmax())
    for start, stop, steps in reversed(runs):
        moves.trace(scores[start:stop], states[start:stop])
        if start:
            states[start - 1] = _step_back(moves, scores[start - 1], int(states[start]), steps)
    return MostProbablePath(states, float(scores[-1].max()))


def _runs(steps: IntArray) -> list[tuple[int, int, int]]:
    """Releases one step apart, as the first one, the one after the last, and the steps before the first."""
    starts = [0, *(np.flatnonzero(steps[1:] != 1) + 1).tolist()]
    return [(*ends, int(steps[ends[0]])) for ends in zip(starts, [*starts[1:], len(steps)], strict=True)]


def _step_back(moves: _Moves, scores: FloatArray, state: int, steps: int) -> int:
    """The best state ``steps`` earlier; scores between are worked out anew rather than kept."""
    between, _ = moves.over(scores, steps)
    for _ in range(steps - len(between)):
        earlier = moves.source(between[-1], state)
        if earlier == state:
            break
        state = earlier
    for passed in reversed(between):
        state = moves.source(passed, state)
    return state


class _Moves:
    """Log transition probabilities by the state that is entered, for maxima over predecessors.

    Parameters
    ----------
    model
        The model.
    length
        How many releases there are.
    """

    def __init__(self, model: MarkovModel, length: int) -> None:
        flow = model.ahead
        starts, states, shares = flow.lists
        self._lists = starts, states, np.log(shares)
        self._dense = None
        if flow.dense is not None:
            with np.errstate(divide="ignore"):
                self._dense = np.log(flow.dense)
        worth = length * flow.matrix.nnz >= _COMPILE_FROM
        self._loops: list[Callable[..., None]] = [
            (compiled(getattr(kernels, loop.__name__[1:])) if worth else None) or loop
            for loop in (_dense_scores, _gathered_scores, _gathered_sources)
        ]

    def run(self, rows: FloatArray, scores: FloatArray) -> None:
        """Fills in the scores ``(T, N)`` after the first row, for releases with log densities ``rows``."""
        if self._dense is None:
            self._loops[1](self._lists, rows, scores)
        else:
            self._loops[0](self._dense, rows, scores)

    def trace(self, scores: FloatArray, path: IntArray) -> None:
        """Fills in the states ``(T,)`` by which the last one was reached."""
        self._loops[2](self._lists, scores, path)

    def best(self, scores: FloatArray) -> FloatArray:
        """``max_i scores[i] + log M_ij`` for every state j; minus infinity where no state leads to j."""
        both = np.stack([scores, scores])
        self.run(np.zeros_like(both), both)
        return np.asarray(both[1])

    def source(self, scores: FloatArray, state: int) -> int:
        """The state i at which that maximum is reached for j = ``state``; of equal ones the lowest."""
        path = np.array([0, state])
        self.trace(scores[np.newaxis], path)
        return int(path[0])

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


def _dense_scores(logs: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """`dphmm.markov.kernels.dense_scores` in plain numpy."""
    for t in range(1, len(rows)):
        np.max(scores[t - 1][:, np.newaxis] + logs, axis=0, out=scores[t])
        scores[t] += rows[t]


def _gathered_scores(lists: kernels.Lists, rows: FloatArray, scores: FloatArray) -> None:
    """`dphmm.markov.kernels.gathered_scores` in plain numpy."""
    starts, states, logs = lists
    entered = np.flatnonzero(np.diff(starts))
    scores[1:] = -np.inf
    for t in range(1, len(rows)):
        scores[t, entered] = np.maximum.reduceat(scores[t - 1][states] + logs, starts[entered])
        scores[t] += rows[t]


def _gathered_sources(lists: kernels.Lists, scores: FloatArray, path: IntArray) -> None:
    """`dphmm.markov.kernels.gathered_sources` in plain numpy."""
    starts, states, logs = lists
    for t in range(len(path) - 1, 0, -1):
        part = slice(int(starts[path[t]]), int(starts[path[t] + 1]))
        terms = scores[t - 1][states[part]] + logs[part]
        path[t - 1] = states[part][terms == terms.max()].min()


def _common_growth(before: FloatArray, after: FloatArray) -> float | None:
    """By how much all finite scores have grown alike, or None where they have not or others are finite."""
    finite = before > -np.inf
    if not np.array_equal(finite, after > -np.inf) or not finite.any():
        return None
    growth = after[finite] - before[finite]
    low, high = float(growth.min()), float(growth.max())
    return (low + high) / 2 if high - low <= 1e-15 * float(np.abs(after[finite]).max()) else None


@checked
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
