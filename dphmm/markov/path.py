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
from dphmm.markov.flow import Flow
from dphmm.markov.inference import Observations, first_masses, rows_over
from dphmm.markov.model import MarkovModel
from dphmm.markov.moving import Moving
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

    Of equally probable paths the one of lower states is taken, from the last release backwards. With a model of second
    order it is the most probable path of its contexts, told as the states that they are in.

    Raises
    ------
    StochasticError
        When no possible path could have given the releases.
    """
    rows, first = rows_over(model, observations), first_masses(model, observations, initial)
    ways = _Ways(model.moving(observations.gaps, observations.slots), len(observations))
    scores = np.empty_like(rows)
    np.add(first.logs, rows[0], out=scores[0])
    runs = ways.runs()
    for start, stop, number in runs:
        if start:
            np.add(ways.over(scores[start - 1], start), rows[start], out=scores[start])
        ways.moves(number).run(rows[start:stop], scores[start:stop])
    impossible = scores.max(axis=1) == -np.inf
    if impossible.any():
        raise StochasticError(
            f"release {impossible.argmax()}: no possible path could have given it; model and releases do not match"
        )
    states = np.empty(len(rows), dtype=np.int64)
    states[-1] = int(scores[-1].argmax())
    for start, stop, number in reversed(runs):
        ways.moves(number).trace(scores[start:stop], states[start:stop])
        if start:
            states[start - 1] = ways.back(scores[start - 1], int(states[start]), start)
    if model.contexts is not None:
        states = model.contexts.last[states]
    return MostProbablePath(states, float(scores[-1].max()))


class _Ways:
    """The moves of each class of time, and the way to each release.

    Parameters
    ----------
    moving
        The way forwards to the releases.
    length
        How many releases there are.
    """

    def __init__(self, moving: Moving, length: int) -> None:
        self._moving, self._length = moving, length
        self._made: dict[int, _Moves] = {}

    def moves(self, number: int) -> _Moves:
        """Those of a class."""
        if number not in self._made:
            self._made[number] = _Moves(self._moving.flows[number], self._length)
        return self._made[number]

    def runs(self) -> list[tuple[int, int, int]]:
        """Releases one step of one class apart: the first one, the one after the last, and the class."""
        found, t = list[tuple[int, int, int]](), 0
        while t < self._length:
            alike, number = self._moving.stretch(t + 1) if t + 1 < self._length else (0, 0)
            found.append((t, t + 1 + alike, number))
            t += 1 + alike
        return found

    def over(self, scores: FloatArray, t: int) -> FloatArray:
        """The scores before a release, of those after the one before."""
        for number, count in self._moving.before(t):
            scores = self.moves(number).over(scores, count)[1]
        return scores

    def back(self, scores: FloatArray, state: int, t: int) -> int:
        """The best state at the release before, of that at a release."""
        reached, found = [scores], self._moving.before(t)
        for number, count in found[:-1]:
            reached.append(self.moves(number).over(reached[-1], count)[1])
        for (number, count), one in zip(reversed(found), reversed(reached[: len(found)]), strict=True):
            state = _step_back(self.moves(number), one, state, count)
        return state


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
    flow
        What takes masses one step forwards.
    length
        How many releases there are.
    """

    def __init__(self, flow: Flow, length: int) -> None:
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
