"""The Markov model of how a person moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, FloatArray, IntArray, as_distribution, as_integers, content_hash, locked
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, StateError
from dphmm.markov.contexts import Contexts
from dphmm.markov.days import Days, times_of
from dphmm.markov.flow import LEAST_POWER, NEXT_POWER, POWERS_UP_TO, Flow
from dphmm.markov.masses import Masses
from dphmm.markov.moves import Sequence, all_moves, check_states, moves_of, pair_counts
from dphmm.markov.moving import Moving
from dphmm.markov.prepared import ABOUT, PreparedDays
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import microseconds
from dphmm.stochastic import MatrixLike, as_stochastic, csr_of_arrays
from dphmm.tables.json_text import parse_json
from dphmm.tables.numpy_files import read_npz
from dphmm.tables.output import new_file
from dphmm.tables.values import as_number, one_line

_FORMAT = "dphmm-markov-model-1"
EXTENDED_FORMAT = "dphmm-markov-model-2"
"""The format of a model whose transitions vary with time or look back: see `dphmm.markov.ExtendedModel`."""

_CHUNK = 16
"""Where nothing varies with time, so many steps are a day to `dphmm.markov.days`."""
_AT_ONCE = 512
"""At most so many of these are taken at once."""
_RESTS = 40 * 86_400
"""After so many seconds of walking nothing changes, or nearly."""
_MOST_CHUNKS = 1 << 24
"""After so many nothing changes any more."""


@checked
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
    learned: Mapping[str, Any] | None = None
    """How it was learned and what is promised to those it was learned from, as its file says; nothing is computed from
    it."""

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
        if step_seconds is not None:
            microseconds(step_seconds, "step_seconds")
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

    @property
    def contexts(self) -> Contexts | None:
        """What the chain remembers beside its state: nothing, in a model of first order."""
        return None

    @property
    def chain_size(self) -> int:
        """The number of states of the chain that the model is: those of the model, in one of first order."""
        return self.size

    @property
    def possible_moves(self) -> int:
        """How many moves of the chain are possible."""
        return int(self.transition.nnz)

    def first_masses(self, slot: int | None = None, initial: FloatArray | None = None) -> Masses:  # noqa: ARG002
        """The masses at the first release, in the step that ends at ``slot``: of the model, or of a distribution."""
        return Masses.of(self.initial if initial is None else initial)

    def carry(self, masses: Masses, steps: int, since: int | None = None) -> Masses:  # noqa: ARG002
        """Masses ``steps`` steps after slot ``since``, which matters where a model varies with time."""
        return self._far(masses, steps)

    def _far(self, masses: Masses, steps: int, back: bool = False, times: int = 1) -> Masses:
        """Masses some steps later; or, of weights, before: in one of so many gaps of at least that length."""
        chunk = self._chunk
        chunks = 0 if self._has_powers and self._prepared is None else min(steps // chunk, _MOST_CHUNKS)
        far = self._days.carry(masses, [(((0, chunk),), chunks)], back, times) if chunks > 1 else (masses, 0)
        masses, left = far[0], steps - far[1] * chunk
        # Where what is left is short, another power of the matrix takes longer than all of it.
        is_short = self._prepared is not None and left < self._prepared.unit * chunk
        return self._ways[back].carry(masses, left, LEAST_POWER if is_short else None)

    def expecting(self, gaps: int) -> Self:
        """The same model for whoever will come to so many gaps: it prepares for shorter ones.

        Results agree to nine digits. Left alone, a model prepares for what one gap is worth.
        """
        made = copy(self)
        vars(made).pop("_days", None)
        vars(made).update(_often=gaps)
        return made

    _often = 1

    @property
    def _ways(self) -> tuple[Flow, Flow]:
        """Where one matrix serves all steps, what takes masses forwards and weights back."""
        return self.ahead, self.back

    @cached_property
    def _days(self) -> Days:
        return self._made_days()

    def _made_days(self) -> Days:
        chunk = self._chunk
        rests = int(_RESTS / self.step_seconds / chunk) if self.step_seconds else _MOST_CHUNKS
        least = NEXT_POWER // chunk if self._has_powers else 1
        return Days([self._ways[0]], [((0, chunk),)], _AT_ONCE, max(1, rests), self._often, self._prepared, least)

    def prepared(self, limit_seconds: float = 120.0) -> Self:
        """The same model with its days prepared, which its file will hold: no gap of days then waits for that.

        Left as it is where that is to take longer, or people mix too slowly. Long gaps then differ in the tenth digit.
        """
        found = self._made_days().prepare(limit_seconds)
        if found is None:
            return self
        made = copy(self)
        vars(made).pop("_days", None)
        vars(made).update(_prepared=found)
        return made

    _prepared: PreparedDays | None = None

    @property
    def _has_powers(self) -> bool:
        """Whether gaps for which no days are prepared go by powers of one matrix."""
        return self.chain_size <= POWERS_UP_TO

    @property
    def _chunk(self) -> int:
        """What stands for a day where there are none."""
        return LEAST_POWER if self._has_powers else _CHUNK

    def moving(self, steps: IntArray, slots: IntArray | None) -> Moving:  # noqa: ARG002
        """The way forwards to observations, ``steps`` after one another, in some slots; both ``(T,)``."""
        return replace(Moving.alike(self.ahead, steps), long=self._long(steps, False))

    def moving_back(self, steps: IntArray, slots: IntArray | None) -> Moving:  # noqa: ARG002
        """The way backwards, from the last observation on, of the same ``steps`` and ``slots``."""
        before = np.roll(steps[::-1], 1)
        return replace(Moving.alike(self.back, before), long=self._long(before, True))

    def _long(self, steps: IntArray, back: bool) -> Callable[[Masses, int], Masses]:
        """What takes masses through the steps before each of some observations, ``(T,)``."""
        least = np.sort(steps)

        def long(masses: Masses, t: int) -> Masses:
            return self._far(masses, int(steps[t]), back, times_of(least, int(steps[t])))

        return long

    @cached_property
    def ahead(self) -> Flow:
        """What takes masses one step forwards."""
        return Flow(self.transition.tocsc().T, turned=self.transition)

    @cached_property
    def back(self) -> Flow:
        """What takes weights of next states back to the states that they can come from."""
        return Flow(self.transition, self.ahead)

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

    def saying(self, learned: Mapping[str, Any]) -> MarkovModel:
        """The same model with other words on how it was learned: plain JSON values, which its file will hold."""
        made = copy(self)
        vars(made).update(learned=dict(learned))
        return made

    @classmethod
    @checked
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
        if not 0 <= smoothing <= LARGEST:
            raise InvalidInputError(f"smoothing is {smoothing}; give a number from 0 to {LARGEST:g}")
        smoothing = float(smoothing)
        if size < 1:
            raise StateError(f"size is {size}; give at least one state")
        moves = all_moves(moves_of(sequence, size) for sequence in sequences)
        occupancy, sources, targets = np.bincount(moves.visits, minlength=size), moves.sources, moves.targets
        if not occupancy.any():
            raise InvalidInputError(
                "no sequence visits any state; check the region, the step and the times of the data"
            )
        counts = pair_counts(sources, targets, size)
        if smoothing > 0:
            one, other = (sources, targets) if neighbours is None else _neighbours(neighbours)
            check_states(np.concatenate([one, other]), size)
            reached = np.unique(np.concatenate([one, other, np.flatnonzero(occupancy)]))
            both = np.concatenate([one, other, reached]), np.concatenate([other, one, reached])
            conceivable = pair_counts(*both, size)
            conceivable.data[:] = smoothing
            counts = counts + conceivable
            occupancy = occupancy.astype(np.float64)
            occupancy[reached] += smoothing
        never_left = np.flatnonzero(np.diff(counts.indptr) == 0)
        counts = counts + pair_counts(never_left, never_left, size)
        counts.data /= np.repeat(counts.sum(axis=1), np.diff(counts.indptr))
        return cls(counts, occupancy / occupancy.sum(), states, step_seconds)

    def save(self, path: str | Path, overwrite: bool = True, private: bool = False) -> None:
        """Write the model, with its states, step and `prepared` days where it has them, as a NumPy ``.npz`` archive.

        Parameters
        ----------
        path
            The file, which appears whole or not at all.
        overwrite
            Whether one that exists may be replaced.
        private
            Whether only the owner may read it. A model is public, unless it is one of several whose difference tells of
            the people that one was learned without.

        Raises
        ------
        OutputError
            When the file exists and may not be overwritten, or cannot be written.
        """
        about = {
            "format": _FORMAT,
            "states": None if self.states is None else self.states.to_json(),
            "step_seconds": self.step_seconds,
            **({} if self.learned is None else {"learned": self.learned}),
        }
        with new_file(path, overwrite, private) as part, part.open("wb") as file:
            np.savez_compressed(
                file,
                allow_pickle=False,
                about=np.array(json.dumps(about)),
                data=self.transition.data,
                indices=self.transition.indices,
                indptr=self.transition.indptr,
                initial=self.initial,
                **self._prepared_arrays(),
            )

    def _prepared_arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {} if self._prepared is None else self._prepared.to_arrays(self.content_hash)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> MarkovModel:
        """Read a model that `save` wrote.

        Raises
        ------
        DataFileError
            When the file is absent, truncated, or something else.
        """
        try:
            arrays = read_npz(path)
            about = _about(arrays)
            if about["format"] == EXTENDED_FORMAT:
                from dphmm.markov.extended import ExtendedModel

                return _told(ExtendedModel.from_arrays(about, arrays), about, arrays)
            initial, size = _of_numbers(arrays, "initial"), len(arrays["initial"])
            matrix = csr_of_arrays({**arrays, "format": "csr", "shape": (size, size)}, "transition matrix")
            described, step = about.get("states"), about.get("step_seconds")
            states = None if described is None else StateSpace.from_json(described, size)
            if step is not None:
                as_number(step, "step_seconds")  # and kept as it is, whole or not, for its hash
            return _told(cls(matrix, initial, states, step), about, arrays)
        except DataFileError as problem:
            raise DataFileError(path, f"no Markov model ({problem.problem}); make one with: dphmm learn") from None
        except ValueError as problem:
            raise DataFileError(path, f"no Markov model ({one_line(problem)}); make one with: dphmm learn") from None

    def __repr__(self) -> str:
        return f"MarkovModel(states={self.size}, transitions={self.transition.nnz})"


def _told(model: MarkovModel, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> MarkovModel:
    """A model with what its file says of how it was learned, and with days that it holds."""
    prepared = PreparedDays.of_arrays(arrays, model.chain_size, model.content_hash) if ABOUT in arrays else None
    vars(model).update(_prepared=prepared)
    learned = about.get("learned")
    if not isinstance(learned, dict | None):
        raise ValueError(f"'learned' is {type(learned).__name__}")
    try:
        json.dumps(learned, allow_nan=False)
    except ValueError:
        raise ValueError("'learned' holds a number that is infinite or none") from None
    return model if learned is None else model.saying(learned)


def _about(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """What a model's file says of it, once it is known to be one."""
    if "about" not in arrays:
        raise ValueError("there is no array 'about'")
    text = arrays["about"]
    if text.shape != () or text.dtype.kind != "U":
        raise ValueError(f"'about' is {text.dtype} of shape {text.shape}")
    about = parse_json(text.item())
    if not isinstance(about, dict) or about.get("format") not in (_FORMAT, EXTENDED_FORMAT):
        raise ValueError(f"it is of another format than {_FORMAT} and {EXTENDED_FORMAT}")
    plain = ("data", "indices", "indptr", "initial")
    missing = [name for name in plain if name not in arrays and about["format"] == _FORMAT]
    if missing:
        raise ValueError(f"there is no array {missing[0]!r}")
    return about


def _of_numbers(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "fiub":
        raise ValueError(f"{name!r} is {arrays[name].dtype} of shape {arrays[name].shape}")
    return arrays[name]


def _neighbours(neighbours: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    pairs = as_integers(neighbours, "neighbours", StateError)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise StateError(f"neighbours have shape {pairs.shape}; give pairs of states")
    return pairs[:, 0], pairs[:, 1]
