"""The best score of each state at the next step: maxima over its predecessors, in logarithms over a sparse matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.compilation import compiled
from dphmm.markov import kernels
from dphmm.markov.flow import Flow

_COMPILE_FROM = 1_000_000
"""With fewer sums of a score and a logarithm than this, numpy is done before the compiled loops are loaded."""
_WHOLE = 256
"""Over so many states numpy takes the maxima of all sums; over more it passes over states that can be best nowhere."""
_BLOCK = 64
"""So many steps are walked between two looks at how scores have grown."""


class Walk(NamedTuple):
    """Some steps in a row.

    Parameters
    ----------
    scores
        The scores after no step, one step, …
    left
        How many steps follow that make all scores grow by the same amount, with the same predecessors.
    growth
        By how much each does.
    """

    scores: FloatArray
    left: int = 0
    growth: float = 0.0

    @property
    def end(self) -> FloatArray:
        """The scores after all steps."""
        return np.asarray(self.scores[-1] + self.growth * self.left)


class Maxima:
    """Log transition probabilities by the state that is entered, for the best scores of next states.

    Parameters
    ----------
    flow
        What takes masses one step forwards.
    length
        How many steps are to be taken, about.
    """

    def __init__(self, flow: Flow, length: float) -> None:
        starts, states, shares = flow.lists
        self._lists = starts, states, np.log(shares)
        self._dense = None
        if flow.size and flow.dense is not None:
            with np.errstate(divide="ignore"):
                logs = np.log(flow.dense)
            self._dense = logs, tops_of(logs)
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
            self._loops[0](*self._dense, rows, scores)

    def trace(self, scores: FloatArray, path: IntArray) -> None:
        """Fills in the states ``(T,)`` by which the last one was reached."""
        self._loops[2](self._lists, scores, path)

    def after(self, scores: FloatArray, steps: int) -> FloatArray:
        """The scores ``steps`` later: for each step ``max_i scores[i] + log M_ij`` for every state j."""
        for walk in self.walks(scores, steps):
            scores = walk.end
        return scores

    def back(self, walks: Sequence[Walk], state: int) -> int:
        """The best state before some walks in a row, of that after them."""
        for _ in range(walks[-1].left):
            earlier = self._source(walks[-1].scores[-1:], state)
            if earlier == state:
                break
            state = earlier
        for walk in reversed(walks):
            state = self._source(walk.scores[:-1], state)
        return state

    def _source(self, scores: FloatArray, state: int) -> int:
        """The state by which another was reached through steps from these scores; of equal ones the lowest."""
        path = np.full(len(scores) + 1, state)
        self.trace(scores, path)
        return int(path[0])

    def walks(self, scores: FloatArray, steps: int) -> Iterator[Walk]:
        """Some steps in parts, of which the last may leave steps that need not be walked.

        Maxima over ever longer paths come to grow by the same amount everywhere in each step, soon where states can be
        stayed in. From then on the predecessors stay the same.
        """
        if not steps:
            yield Walk(scores[np.newaxis])
        count = 1
        while steps:
            count = min(count, steps)
            walked = np.empty((count + 1, len(scores)))
            walked[0] = scores
            self.run(np.zeros_like(walked), walked)
            steps -= count
            growth = common_growth(walked[-2], walked[-1]) if steps else None
            if growth is not None:
                yield Walk(walked, steps, growth)
                return
            yield Walk(walked)
            scores, count = walked[-1], min(2 * count, _BLOCK)


def tops_of(logs: FloatArray) -> FloatArray:
    """The largest logarithm of each row in each block of columns, and in all of them."""
    blocks = np.maximum.reduceat(logs, np.arange(0, len(logs), kernels.TOGETHER), axis=1)
    return np.vstack([blocks.T, blocks.max(axis=1)])


def _dense_scores(logs: FloatArray, tops: FloatArray, rows: FloatArray, scores: FloatArray) -> None:
    """`dphmm.markov.kernels.dense_scores` in plain numpy."""
    size, width = len(logs), kernels.TOGETHER
    if size <= _WHOLE:
        sums = np.empty_like(logs)
        for t in range(1, len(rows)):
            np.add(scores[t - 1][:, np.newaxis], logs, out=sums)
            np.maximum.reduce(sums, axis=0, out=scores[t])
            scores[t] += rows[t]
        return
    starts = np.arange(0, size, width)
    parts = [np.ascontiguousarray(logs[:, start : start + width]) for start in starts]
    for t in range(1, len(rows)):
        before, after = scores[t - 1], scores[t]
        best = int(before.argmax())
        least = np.minimum.reduceat(logs[best] + before[best], starts)
        asked = before + tops[:-1] >= least[:, np.newaxis]
        for part, some, start in zip(parts, asked, starts, strict=True):
            kept = some.nonzero()[0]
            sums = part.take(kept, axis=0)
            sums += before.take(kept)[:, np.newaxis]
            np.maximum.reduce(sums, axis=0, out=after[start : start + width])
        after += rows[t]


def _gathered_scores(lists: kernels.Lists, rows: FloatArray, scores: FloatArray) -> None:
    """`dphmm.markov.kernels.gathered_scores` in plain numpy."""
    starts, states, logs = lists
    entered = np.flatnonzero(np.diff(starts))
    scores[1:] = -np.inf
    for t in range(1, len(rows)):
        scores[t, entered] = np.maximum.reduceat(scores[t - 1][states] + logs, starts[entered])
        scores[t] += rows[t]


def _gathered_sources(lists: kernels.Lists, scores: FloatArray, path: IntArray) -> None:
    """`dphmm.markov.kernels.gathered_sources` in plain numpy, of lists in the order of their states."""
    starts, states, logs = lists
    state = int(path[-1])
    for t in range(len(path) - 1, 0, -1):
        part = slice(int(starts[state]), int(starts[state + 1]))
        some = states[part]
        terms = scores[t - 1].take(some)
        terms += logs[part]
        path[t - 1] = state = int(some[terms.argmax()])


def common_growth(before: FloatArray, after: FloatArray) -> float | None:
    """By how much all finite scores have grown alike, or None where they have not or others are finite."""
    finite = before > -np.inf
    if not np.array_equal(finite, after > -np.inf) or not finite.any():
        return None
    growth = after[finite] - before[finite]
    low, high = float(growth.min()), float(growth.max())
    return (low + high) / 2 if high - low <= 1e-15 * float(np.abs(after[finite]).max()) else None
