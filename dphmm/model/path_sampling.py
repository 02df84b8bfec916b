"""Paths drawn from a model: people who do not exist."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import IntArray, Rng, as_integers, random_source
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.model.model import MarkovModel

_FARTHEST = 2**40
_MOST = 1 << 27


class PathSampler:
    """Draws paths from a model, any number at once.

    Probabilities are those of the model to about ``1e-11``: what is drawn is no release, and no promise rests on it.

    Parameters
    ----------
    model
        The model.
    rng
        Left out, the operating system's randomness. A seed makes the paths repeatable.
    """

    def __init__(self, model: MarkovModel, rng: Rng = None) -> None:
        matrices, starts = model.transitions, model.starts
        if model.away is not None:
            starts = np.array([model.away.begun(row) for row in starts])
        self._time_classes, self._state_of = model.time_classes, model.last
        self._source, self._chain = random_source(rng), model.chain_size
        self._starts = np.cumsum(starts, axis=1)
        self._starts /= self._starts[:, -1:]
        self._last = np.array([np.flatnonzero(row)[-1] for row in starts])
        pointers, reached, ends = [], [], 0
        for number, matrix in enumerate(matrices):
            lengths = np.diff(matrix.indptr)
            rows = np.repeat(np.arange(self._chain), lengths)
            sums = np.cumsum(matrix.data)
            before = np.concatenate([[0.0], sums])[matrix.indptr[:-1]]
            within = (sums - before[rows]) / np.repeat((sums[matrix.indptr[1:] - 1] - before), lengths)
            reached.append(number * self._chain + rows + within)
            pointers.append(ends + matrix.indptr[1:] - 1)
            ends += matrix.nnz
        self._reached, self._row_ends = np.concatenate(reached), np.concatenate(pointers)
        self._targets = np.concatenate([matrix.indices for matrix in matrices])

    def paths(self, firsts: IntArray, length: int) -> npt.NDArray[np.int32]:
        """The states of people, ``(n, length)``, who begin in the slots ``firsts``, ``(n,)``."""
        count = len(firsts)
        found = np.empty((length, count), dtype=np.int32)
        classes = self._classes(firsts, 0)
        now = self._begin(classes, count)
        found[0] = self._state_of[now]
        for k in range(1, length):
            now = self.step(now, self._classes(firsts, k))
            found[k] = self._state_of[now]
        return np.ascontiguousarray(found.T)

    def step(self, now: IntArray, classes: IntArray | int) -> IntArray:
        """The next states of the chain."""
        rows = now + classes * self._chain
        at = np.searchsorted(self._reached, rows + self._source.uniform(len(now)), side="right")
        return np.asarray(self._targets[np.minimum(at, self._row_ends[rows])])

    def _begin(self, classes: IntArray | int, count: int) -> IntArray:
        draws = self._source.uniform(count)
        if isinstance(classes, int):
            found = np.searchsorted(self._starts[classes], draws, side="right")
        else:
            found = np.empty(count, dtype=np.int64)
            for number in np.unique(classes).tolist():
                chosen = classes == number
                found[chosen] = np.searchsorted(self._starts[number], draws[chosen], side="right")
        return np.asarray(np.minimum(found, self._last[classes]))

    def _classes(self, firsts: IntArray, k: int) -> IntArray | int:
        if self._time_classes is None:
            return 0
        if (firsts == firsts[0]).all():
            return self._time_classes.class_of(int(firsts[0]) + k)
        return self._time_classes.classes_of(firsts + k)


@checked
def draw_paths(
    model: MarkovModel, people: int, length: int, first: int | None = None, rng: Rng = None
) -> npt.NDArray[np.int32]:
    """Paths of people who do not exist: a sample from the law of a model.

    Parameters
    ----------
    model
        The model.
    people
        How many paths.
    length
        How many states each has, one step apart.
    first
        The slot of the first state, for models that vary with time.
    rng
        Left out, the operating system's randomness. A seed makes the paths repeatable.

    Returns
    -------
    int32 array
        ``(people, length)``: the states of each path in a row.

    Raises
    ------
    InvalidInputError
        When a number is below 1, or there are more than 2 ** 27 states in all.
    ConfigurationError
        When the model varies with time, and no slot is given.

    Examples
    --------
    >>> draw_paths(MarkovModel([[0, 1], [1, 0]], [1, 0]), people=2, length=4, rng=1).tolist()
    [[0, 1, 0, 1], [0, 1, 0, 1]]
    """
    if people < 1 or length < 1 or people * length > _MOST:
        raise InvalidInputError(
            f"{people} paths of {length} states are asked for; give at least one of each, and at most {_MOST} in all"
        )
    if model.time_classes is not None and first is None:
        raise ConfigurationError("the model varies with the time of day; give the slot of the first state, 'first'")
    if first is not None and abs(first) > _FARTHEST:
        raise InvalidInputError(f"the first slot is {first}; give one of a date that there is")
    return PathSampler(model, rng).paths(np.full(people, 0 if first is None else first), int(length))


@checked
def draw_like(model: MarkovModel, firsts: npt.ArrayLike, lengths: npt.ArrayLike, rng: Rng = None) -> list[IntArray]:
    """A path for each of some stretches of time: one that begins in the same slot and is as long.

    Parameters
    ----------
    model
        The model.
    firsts, lengths
        ``(n,)`` each: the slot of the first state, and how many states.
    rng
        As for `draw_paths`.

    Returns
    -------
    list of IntArray
        The states of each path, of the lengths given.

    Raises
    ------
    InvalidInputError
        When there is no stretch, or the numbers do not fit.
    """
    begins, counts = as_integers(firsts, "firsts"), as_integers(lengths, "lengths")
    if begins.ndim != 1 or begins.shape != counts.shape or not len(counts) or counts.min() < 1:
        raise InvalidInputError("firsts and lengths differ, or a length is below 1; give one of each for each stretch")
    if np.abs(begins).max() > _FARTHEST or int(counts.sum()) > _MOST:
        raise InvalidInputError(f"a slot is no date's, or there are more than {_MOST} states in all; give fewer")
    walker, found = PathSampler(model, rng), [np.zeros(0, dtype=np.int64)] * len(counts)
    order = np.argsort(counts, kind="stable")
    for part in np.array_split(order, max(1, int(counts.max()) * len(counts) // (4 * int(counts.sum()) + 1))):
        if len(part):
            paths = walker.paths(begins[part], int(counts[part].max()))
            for row, at in enumerate(part.tolist()):
                found[at] = paths[row, : counts[at]].astype(np.int64)
    return found
