"""The most probable path (Viterbi), in logarithms over the sparse structure of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import StochasticError
from dphmm.markov.inference import Observations, first_masses, rows_over
from dphmm.markov.maxima import Maxima, Walk, common_growth
from dphmm.markov.model import MarkovModel
from dphmm.markov.moving import Moving
from dphmm.markov.waiting import Waits, waits_of
from dphmm.stochastic import MatrixLike

_KEPT = 1 << 24
"""So many scores in gaps are kept for the way back; others are worked out twice."""


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


def prepare_path(moving: Moving) -> None:
    """Find what the most probable path on a way needs of its matrix, which keeps it, before there are any releases."""
    waits = _waits_in(moving)
    if waits is not None:
        waits.prepare()


def _waits_in(moving: Moving) -> Waits | None:
    """The ways through gaps of one matrix, where they pay."""
    waits = waits_of(moving.flows[0])
    return waits if len(moving.flows) == 1 and waits.pays(moving.steps[moving.steps > 1]) else None


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
        self._made: dict[int, Maxima] = {}
        self._waits = _waits_in(moving)
        self._waited: dict[int, BoolArray] = {}
        self._walks: dict[int, list[Walk]] = {}
        self._room = _KEPT

    def moves(self, number: int) -> Maxima:
        """Those of a class."""
        if number not in self._made:
            steps = self._length + float(self._moving.steps.sum(dtype=np.float64))
            self._made[number] = Maxima(self._moving.flows[number], steps)
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
        through = None if self._waits is None else self._waits.over(scores, int(self._moving.steps[t]))
        if through is not None:
            scores, self._waited[t] = through
            return scores
        found = self._moving.before(t)
        if len(found) == 1:
            return self._walked_over(scores, t, *found[0])
        for part in self._parts(scores, found):
            scores = part.after
        return scores

    def _walked_over(self, scores: FloatArray, t: int, number: int, count: int) -> FloatArray:
        """The scores some steps of one class later, before a release; those between are kept while there is room."""
        moves = self.moves(number)
        if count * len(scores) > self._room:
            return moves.after(scores, count)
        self._walks[t] = list(moves.walks(scores, count))
        self._room -= sum(walk.scores.size for walk in self._walks[t])
        return self._walks[t][-1].end

    def back(self, scores: FloatArray, state: int, t: int) -> int:
        """The best state at the release before, of that at a release."""
        if self._waits is not None and t in self._waited and self._waited[t][state]:
            return self._waits.back(scores, state, int(self._moving.steps[t]))
        found = self._moving.before(t)
        if len(found) == 1:
            number, count = found[0]
            walks = self._walks.pop(t, None)
            return self.moves(number).back(walks or list(self.moves(number).walks(scores, count)), state)
        for part in reversed(list(self._parts(scores, found))):
            for _ in range(part.times):
                earlier = state
                for (number, count), before in zip(reversed(part.runs), reversed(part.before), strict=True):
                    earlier = self.moves(number).back(list(self.moves(number).walks(before, count)), earlier)
                if earlier == state:
                    break
                state = earlier
        return state

    def _parts(self, scores: FloatArray, runs: Sequence[tuple[int, int]]) -> Iterator[_Part]:
        """A gap in parts: its first run, then as many as come around again, such as those of a day or a week.

        Once such a part makes all scores grow by the same amount, so do those like it that follow, with the same
        predecessors; they are not walked.
        """
        around, done = _around(runs), 0
        while done < len(runs):
            part, before, start = runs[done : done + around] if done else runs[:1], list[FloatArray](), scores
            for number, count in part:
                before.append(scores)
                scores = self.moves(number).after(scores, count)
            done, times = done + len(part), 1
            growth = common_growth(start, scores) if len(part) == around else None
            if growth is not None:
                while list(runs[done : done + around]) == list(part):
                    done, times = done + around, times + 1
                scores = scores + growth * (times - 1)
            yield _Part(part, before, times, scores)


@dataclass(frozen=True, eq=False)
class _Part:
    """Some runs of steps in a gap.

    Parameters
    ----------
    runs
        Their classes, and how many steps each has.
    before
        The scores before each, but for a constant.
    times
        How often they follow each other.
    after
        The scores after all.
    """

    runs: Sequence[tuple[int, int]]
    before: list[FloatArray]
    times: int
    after: FloatArray


def _around(runs: Sequence[tuple[int, int]]) -> int:
    """After how many runs, from the second one on, they come around again with all classes; all, where they do not."""
    if len(runs) < 4:
        return len(runs)
    classes, seen = {number for number, _ in runs}, set[int]()
    for count, (number, _) in enumerate(runs[1 : len(runs) // 2], start=1):
        seen.add(number)
        if seen == classes and runs[1 : 1 + count] == runs[1 + count : 1 + 2 * count]:
            return count
    return len(runs)


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
