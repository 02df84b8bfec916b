"""The Markov model of how a person moves."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csc_array, csr_array
from scipy.sparse.csgraph import connected_components

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_distribution, content_hash, locked
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, StateError
from dphmm.space.states import StateSpace
from dphmm.stochastic import MatrixLike, as_stochastic

Sequence = npt.ArrayLike | tuple[npt.ArrayLike, npt.ArrayLike]
"""States one time step apart, -1 where unknown; or a pair of slot numbers (increasing) and the states there."""

_FORMAT = "dphmm-markov-model-1"
_STRIDES = (32, 512, 8192)
_DENSE_LIMIT = 2048


@dataclass(frozen=True, init=False, eq=False, repr=False)
class MarkovModel:
    """A time-homogeneous, first-order Markov model over states ``0 .. N - 1``.

    A model is a value: it holds copies of what it was made of, which nobody can write to.

    Parameters
    ----------
    transition
        ``(N, N)``, dense or sparse; row ``i`` holds the probabilities of going from state ``i`` to each state in one
        step. Rows must sum to one within ``1e-9`` and are then normalised.
    initial
        ``(N,)``: the distribution of the first state.
    states
        What the states are, where that is known: a `dphmm.space` state space of ``N`` states.
    step_seconds
        How long one step is, where that is known.

    Raises
    ------
    StochasticError
        When the matrix is not square, not finite, has a negative entry or a row that does not sum to one.
    """

    transition: csr_array
    """The transition matrix, ``(N, N)`` CSR without stored zeros: its structure is what is possible."""
    initial: FloatArray
    """The distribution of the first state, ``(N,)``."""
    states: StateSpace | None
    step_seconds: float | None

    def __init__(
        self,
        transition: MatrixLike,
        initial: npt.ArrayLike,
        states: StateSpace | None = None,
        step_seconds: float | None = None,
    ) -> None:
        matrix = locked(as_stochastic(transition, compressed=True))
        size = int(matrix.shape[0])
        first = locked(as_distribution(initial, size))
        if states is not None and states.size != size:
            raise StateError(f"the space has {states.size} states and the transition matrix {size}; they must agree")
        if step_seconds is not None and not (np.isfinite(step_seconds) and step_seconds > 0):
            raise InvalidInputError(f"step_seconds is {step_seconds}; give a positive, finite number")
        vars(self).update(transition=matrix, initial=first, states=states, step_seconds=step_seconds)

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return int(self.transition.shape[0])

    @property
    def space(self) -> StateSpace:
        """What the states are.

        Raises
        ------
        ConfigurationError
            When the model does not say.
        """
        if self.states is None:
            raise ConfigurationError("the model does not say where its states are; make one with 'dphmm learn'")
        return self.states

    @property
    def step(self) -> float:
        """How many seconds one step takes.

        Raises
        ------
        ConfigurationError
            When the model does not say.
        """
        if self.step_seconds is None:
            raise ConfigurationError("the model has no step_seconds, so times mean no step; make one that says it")
        return self.step_seconds

    @cached_property
    def columns(self) -> csc_array:
        """The transition matrix by columns."""
        return locked(self.transition.tocsc())

    @cached_property
    def log_columns(self) -> FloatArray:
        """The logarithms of the entries of `columns`, in their order."""
        return locked(np.asarray(np.log(self.columns.data)))

    @cached_property
    def log_rows(self) -> FloatArray:
        """The logarithms of the entries of `transition`, in their order."""
        return locked(np.asarray(np.log(self.transition.data)))

    @property
    def strides(self) -> tuple[int, ...]:
        """For which numbers of steps `dense_power` is to be had: none for many states, whose powers fill the memory."""
        return _STRIDES if self.size <= _DENSE_LIMIT else ()

    def dense_power(self, stride: int) -> FloatArray:
        """The transition matrix of ``stride`` steps, ``(N, N)``, for a stride of `strides`; kept once made.

        Powers are squared from one to the next. Entries are sums of products of probabilities, without cancellation, so
        that rounding stays relative to each entry, as in as many single steps.
        """
        if stride not in self._powers:
            lower = [k for k in _STRIDES if k < stride]
            power: Any = self.dense_power(lower[-1]) if lower else self.transition.toarray()
            for _ in range((stride // (lower[-1] if lower else 1)).bit_length() - 1):
                power = power @ power
            self._powers[stride] = locked(power)
        return self._powers[stride]

    @cached_property
    def _powers(self) -> dict[int, FloatArray]:
        return {}

    @cached_property
    def structure(self) -> csr_array:
        """Which transitions are possible, as a boolean matrix."""
        structure: csr_array = locked(self.transition.astype(np.bool_))
        return structure

    @cached_property
    def content_hash(self) -> str:
        """A hash of the probabilities, the states and the step: equal models have equal hashes."""
        matrix = self.transition.sorted_indices()
        return content_hash(
            self.size,
            matrix.indptr,
            matrix.indices,
            matrix.data,
            self.initial,
            None if self.states is None else self.states.content_hash,
            self.step_seconds,
        )

    @cached_property
    def components(self) -> IntArray:
        """The weakly connected component of each state, ``(N,)``, numbered from 0: nobody ever leaves one."""
        return locked(np.array(connected_components(self.transition, directed=False)[1], dtype=np.int64))

    @cached_property
    def entered(self) -> BoolArray:
        """Which states have a predecessor, ``(N,)``."""
        entered = np.zeros(self.size, dtype=np.bool_)
        entered[self.transition.indices] = True
        return locked(entered)

    @classmethod
    def fit(
        cls,
        sequences: Iterable[Sequence],
        size: int,
        smoothing: float = 0.0,
        neighbours: npt.ArrayLike | None = None,
        states: StateSpace | None = None,
        step_seconds: float | None = None,
    ) -> MarkovModel:
        """Learn a model by counting.

        Parameters
        ----------
        sequences
            State sequences; see `Sequence`. Moves are counted between neighbouring slots only, never across a gap.
        size
            The number of states ``N``.
        smoothing
            A pseudo-count, not negative, added to the moves between neighbours (both ways), to staying, and to the
            occupancy of every state that is visited or a neighbour of one.
        neighbours
            ``(m, 2)`` pairs of states between which a move is conceivable. Left out, the pairs that were seen: a move
            seen one way becomes possible the other way.
        states, step_seconds
            Kept with the model.

        Returns
        -------
        MarkovModel
            The initial distribution is the share of time spent in each state. A state that was never left stays put.

        Raises
        ------
        StateError
            For a state outside ``-1 .. size - 1``.
        InvalidInputError
            For a negative smoothing, or when no state was seen at all.
        """
        if not (np.isfinite(smoothing) and smoothing >= 0):
            raise InvalidInputError(f"smoothing is {smoothing}; give a finite number that is not negative")
        occupancy, sources, targets = _count(sequences, size)
        if not occupancy.any():
            raise InvalidInputError(
                "no sequence visits any state; check the region, the step and the times of the data"
            )
        counts = _pairs(sources, targets, size)
        if smoothing > 0:
            one, other = (sources, targets) if neighbours is None else np.asarray(neighbours, dtype=np.int64).T
            _check_states(np.concatenate([one, other]), size)
            reached = np.unique(np.concatenate([one, other, np.flatnonzero(occupancy)]))
            conceivable = _pairs(one, other, size) + _pairs(other, one, size) + _pairs(reached, reached, size)
            conceivable.data[:] = smoothing
            counts = counts + conceivable
            occupancy = occupancy.astype(np.float64)
            occupancy[reached] += smoothing
        never_left = np.flatnonzero(np.diff(counts.indptr) == 0)
        counts = counts + _pairs(never_left, never_left, size)
        counts.data /= np.repeat(counts.sum(axis=1), np.diff(counts.indptr))
        return cls(counts, occupancy / occupancy.sum(), states, step_seconds)

    def save(self, path: str | Path) -> None:
        """Write the model, with its states and step where they are known, as a NumPy ``.npz`` archive."""
        about = {
            "format": _FORMAT,
            "states": None if self.states is None else self.states.to_json(),
            "step_seconds": self.step_seconds,
        }
        with Path(path).open("wb") as file:
            np.savez_compressed(
                file,
                about=np.array(json.dumps(about)),
                data=self.transition.data,
                indices=self.transition.indices,
                indptr=self.transition.indptr,
                initial=self.initial,
            )

    @classmethod
    def load(cls, path: str | Path) -> MarkovModel:
        """Read a model that `save` wrote.

        Raises
        ------
        DataFileError
            When the file is absent, truncated, or something else.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as archive:
                about: dict[str, Any] = json.loads(str(archive["about"]))
                if about.get("format") != _FORMAT:
                    raise ValueError(f"format {about.get('format')!r}")
                parts = {name: archive[name] for name in ("data", "indices", "indptr", "initial")}
            size = len(parts["initial"])
            matrix = csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=(size, size))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile, zlib.error) as problem:
            raise DataFileError(path, f"no Markov model ({problem}); make one with: dphmm learn") from problem
        states = None if about["states"] is None else StateSpace.from_json(about["states"])
        return cls(matrix, parts["initial"], states, about["step_seconds"])

    def __repr__(self) -> str:
        return f"MarkovModel(states={self.size}, transitions={self.transition.nnz})"


def _count(sequences: Iterable[Sequence], size: int) -> tuple[npt.NDArray[Any], IntArray, IntArray]:
    """Visits per state, and the source and target of every move seen."""
    occupancy = np.zeros(size, dtype=np.int64)
    sources, targets = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for sequence in sequences:
        if isinstance(sequence, tuple):
            slots, states = (np.asarray(part, dtype=np.int64) for part in sequence)
            if slots.shape != states.shape or (np.diff(slots) <= 0).any():
                raise InvalidInputError("slot numbers must increase, one per state")
        else:
            states = np.asarray(sequence, dtype=np.int64)
            slots = np.arange(len(states))
        known = states >= 0
        _check_states(states[states != -1], size)
        occupancy += np.bincount(states[known], minlength=size)
        moved = known[:-1] & known[1:] & (np.diff(slots) == 1)
        sources.append(states[:-1][moved])
        targets.append(states[1:][moved])
    return occupancy, np.concatenate(sources), np.concatenate(targets)


def _pairs(sources: IntArray, targets: IntArray, size: int) -> csr_array:
    """How often each pair of states is among some, as a matrix."""
    return coo_array((np.ones(len(sources)), (sources, targets)), shape=(size, size)).tocsr()


def _check_states(states: IntArray, size: int) -> None:
    outside = states[(states < 0) | (states >= size)]
    if len(outside):
        raise StateError(f"state {int(outside[0])} does not exist; states are 0 to {size - 1}")
