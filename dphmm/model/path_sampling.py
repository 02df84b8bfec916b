"""Sampling of paths from a model: synthetic users."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arrays import IntArray, as_integers
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.model.model import MarkovModel
from dphmm.random import Rng, as_random_source
from dphmm.validation import PositiveInt, check_arguments

_MAX_SLOT = 2**40
_MAX_STATES = 1 << 27


class PathSampler:
    """A sampler of paths from a model.

    Probabilities are those of the model up to about ``1e-11``. This suffices because paths are not releases, and no
    privacy guarantee depends on them.

    Parameters
    ----------
    model
        The model.
    rng
        Defaults to the operating system's randomness. A seed makes the paths reproducible.
    """

    def __init__(self, model: MarkovModel, rng: Rng = None) -> None:
        matrices, starts = model.transitions, model.initial_by_class
        if model.outside is not None:
            starts = np.array([model.outside.split_initial(row) for row in starts])
        self._time_classes = model.time_classes
        self._state_of = model.state_of_context.astype(np.int32)
        self._source = as_random_source(rng)
        self._chain = model.chain_size
        self._starts = np.cumsum(starts, axis=1)
        self._starts /= self._starts[:, -1:]
        self._last = np.array([np.flatnonzero(row)[-1] for row in starts])
        # Row r of class c covers the interval [c P + r, c P + r + 1), divided by its cumulative probabilities: a single
        # binary search then samples the next states of all paths.
        pointers = []
        thresholds = []
        ends = 0
        for number, matrix in enumerate(matrices):
            lengths = np.diff(matrix.indptr)
            rows = np.repeat(np.arange(self._chain), lengths)
            sums = np.cumsum(matrix.data)
            before = np.concatenate([[0.0], sums])[matrix.indptr[:-1]]
            within = (sums - before[rows]) / np.repeat((sums[matrix.indptr[1:] - 1] - before), lengths)
            thresholds.append(number * self._chain + rows + within)
            pointers.append(ends + matrix.indptr[1:] - 1)
            ends += matrix.nnz
        self._thresholds, self._row_ends = np.concatenate(thresholds), np.concatenate(pointers)
        self._targets = np.concatenate([matrix.indices for matrix in matrices])

    def sample_state_paths(self, firsts: IntArray, length: int) -> npt.NDArray[np.int32]:
        """Sample paths, ``(n, length)``, that start in the slots ``firsts``, ``(n,)``."""
        return np.asarray(self._state_of[self.sample_context_paths(firsts, length)])

    def sample_context_paths(self, firsts: IntArray, length: int) -> npt.NDArray[np.int32]:
        """Sample `sample_state_paths` of contexts, which distinguish users outside the region."""
        count = len(firsts)
        contexts = np.empty((length, count), dtype=np.int32)
        classes = self._get_classes(firsts, 0)
        now = self._begin(classes, count)
        contexts[0] = now
        for k in range(1, length):
            now = self.step(now, self._get_classes(firsts, k))
            contexts[k] = now
        return np.ascontiguousarray(contexts.T)

    def step(self, now: IntArray, classes: IntArray | int) -> IntArray:
        """Sample the next state of the chain for each path."""
        rows = now + classes * self._chain
        at = np.searchsorted(self._thresholds, rows + self._source.sample_uniform(len(now)), side="right")
        return np.asarray(self._targets[np.minimum(at, self._row_ends[rows])])

    def _begin(self, classes: IntArray | int, count: int) -> IntArray:
        """Sample the first state of each path."""
        uniforms = self._source.sample_uniform(count)
        if isinstance(classes, int):
            states = np.searchsorted(self._starts[classes], uniforms, side="right")
        else:
            states = np.empty(count, dtype=np.int64)
            for number in np.unique(classes).tolist():
                members = classes == number
                states[members] = np.searchsorted(self._starts[number], uniforms[members], side="right")
        return np.asarray(np.minimum(states, self._last[classes]))

    def _get_classes(self, firsts: IntArray, k: int) -> IntArray | int:
        if self._time_classes is None:
            return 0
        if (firsts == firsts[0]).all():
            return self._time_classes.get_class(int(firsts[0]) + k)
        return self._time_classes.get_classes(firsts + k)


@check_arguments
def sample_paths(
    model: MarkovModel, num_users: PositiveInt, length: PositiveInt, first: int | None = None, rng: Rng = None
) -> npt.NDArray[np.int32]:
    """Sample paths of synthetic users from a model.

    Parameters
    ----------
    model
        The model.
    num_users
        The number of paths.
    length
        The number of states of each path, one step apart.
    first
        The slot of the first state. Required by models that vary with time.
    rng
        Defaults to the operating system's randomness. A seed makes the paths reproducible.

    Returns
    -------
    int32 array
        ``(num_users, length)``: the states of one path in each row.

    Raises
    ------
    InvalidInputError
        If a number is below 1, or there are more than 2 ** 27 states in total.
    ConfigurationError
        If the model varies with time and ``first`` is None.

    Examples
    --------
    >>> sample_paths(MarkovModel([[0, 1], [1, 0]], [1, 0]), num_users=2, length=4, rng=1).tolist()
    [[0, 1, 0, 1], [0, 1, 0, 1]]
    """
    contexts = sample_contexts(model, num_users, length, first, rng)
    return np.asarray(model.state_of_context.astype(np.int32)[contexts])


def sample_contexts(
    model: MarkovModel, num_users: int, length: int, first: int | None = None, rng: Rng = None
) -> npt.NDArray[np.int32]:
    """Sample `sample_paths` of contexts, see `dphmm.model.outside_states`."""
    if num_users * length > _MAX_STATES:
        raise InvalidInputError(f"num_users times length must be at most {_MAX_STATES}, got {num_users} times {length}")
    if model.time_classes is not None and first is None:
        raise ConfigurationError("a time-dependent model needs the slot of the first state: pass first")
    if first is not None and abs(first) > _MAX_SLOT:
        raise InvalidInputError(f"first must be a slot between -2**40 and 2**40, got {first}")
    return PathSampler(model, rng).sample_context_paths(np.full(num_users, 0 if first is None else first), int(length))


@check_arguments
def sample_paths_like(
    model: MarkovModel, firsts: npt.ArrayLike, lengths: npt.ArrayLike, rng: Rng = None
) -> list[IntArray]:
    """Sample paths with specified first slots and lengths.

    Parameters
    ----------
    model
        The model.
    firsts, lengths
        ``(n,)`` each: the slot of the first state and the number of states of each path.
    rng
        See `sample_paths`.

    Returns
    -------
    list of IntArray
        The states of each path.

    Raises
    ------
    InvalidInputError
        If there is no path, the arrays differ in length, or a number is out of range.
    """
    begins = as_integers(firsts, "firsts")
    counts = as_integers(lengths, "lengths")
    if begins.ndim != 1 or begins.shape != counts.shape or not len(counts) or counts.min() < 1:
        raise InvalidInputError("firsts and lengths must have one entry for each path, and lengths must be positive")
    if np.abs(begins).max() > _MAX_SLOT or int(counts.sum()) > _MAX_STATES:
        raise InvalidInputError(
            f"firsts must be between -2**40 and 2**40, and lengths must sum to at most {_MAX_STATES}"
        )
    sampler = PathSampler(model, rng)
    sampled = [np.zeros(0, dtype=np.int64)] * len(counts)
    # Paths of similar lengths share a batch, which samples up to the longest of them.
    order = np.argsort(counts, kind="stable")
    for part in np.array_split(order, max(1, int(counts.max()) * len(counts) // (4 * int(counts.sum()) + 1))):
        if len(part):
            paths = sampler.sample_state_paths(begins[part], int(counts[part].max()))
            for row, at in enumerate(part.tolist()):
                sampled[at] = paths[row, : counts[at]].astype(np.int64)
    return sampled
