"""The Markov model of how a person moves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, FloatArray, IntArray, as_distribution, as_floats, as_integers, content_hash, locked
from dphmm.errors import ConfigurationError, DataFileError, InvalidInputError, StateError, StochasticError
from dphmm.model.away import Away
from dphmm.model.gaps import Gap, Powers, one_matrix
from dphmm.model.moves import StateSequence, all_moves, check_states, moves_of, pair_counts
from dphmm.model.point_estimate import HeldRadii
from dphmm.model.time_classes import TimeClasses
from dphmm.model.transition_operator import IDENTITY, Operator, TransitionOperator
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import microseconds
from dphmm.stochastic import MatrixLike, as_stochastic, csr_of_arrays
from dphmm.tables.binary_files import read_npz
from dphmm.tables.json_toml import parse_json
from dphmm.tables.output import new_file
from dphmm.tables.values import as_number, one_line, shorten

_FORMAT = "dphmm-markov-model-1"
"""The format of a model's file; a file that names another one is refused."""
_HASHED_FIRST = "dphmm-markov-model-2"
"""Hashed before the matrices of a model that is not plain, so that its hash differs from that of a plain model. It is
not a file's format: the verifiers of certificates hash the same text."""
_AWAY_ARRAYS = ("border", "reach", "square", "share")
"""The arrays of a file that make the `Away` of a model that knows of people outside."""
_LONGEST = 100 * 366 * 86_400_000_000
"""No gap of a model with classes of time is longer than a hundred years, in microseconds."""


@checked
@dataclass(frozen=True, init=False, eq=False, repr=False)
class MarkovModel:
    """A Markov model over states ``0 .. N - 1``: where a person goes from each state in one step.

    It holds one transition matrix, or one for each public class of time: the move into the step that ends at slot ``t``
    is then made by the matrix of that step's class, so that its users have to say when the first step is.
    A model that knows of people outside its region has a chain of contexts (`dphmm.model.away`), each of which is in
    one state; measurements, policies and releases are of states.

    A model is a value: it holds read-only copies of what it was made of.

    Parameters
    ----------
    transition
        ``(N, N)``, dense or sparse; row ``i`` holds the probabilities of going from state ``i`` to each state in one
        step. Rows must sum to one within ``1e-9`` and are then normalised. With `away` ``(P, P)`` over contexts; with
        classes of time a sequence of K such matrices, one for each class.
    initial
        ``(N,)``: the distribution of the first state; or ``(K, N)``, for each class of the first step, along with a
        sequence of K matrices.
    states
        What the states are, where that is known: a `dphmm.space` state space of ``N`` states.
    step_seconds
        How long one step is, where that is known.
    time_classes
        The classes of time; left out, one matrix serves all steps.
    away
        Twins of border states for people outside: see `dphmm.model.away`.

    Raises
    ------
    StochasticError
        When a matrix is not square, not finite, has a negative entry or a row that does not sum to one; or when sizes
        differ.
    ConfigurationError
        When there is not one matrix for each class, or the step of the classes is not the model's.
    """

    transitions: tuple[csr_array, ...]
    """The matrices by class of time, CSR without stored zeros: their structure is what is possible."""
    starts: FloatArray
    """The distribution of the first state by class, ``(K, N)``."""
    initial: FloatArray
    """The distribution of the first state, ``(N,)``: on average over a week."""
    states: StateSpace | None
    step_seconds: float | None
    time_classes: TimeClasses | None
    away: Away | None
    learned: Mapping[str, Any] | None = None
    """How it was learned and what is promised to those it was learned from, as its file says; nothing is computed from
    it."""
    held_radii: HeldRadii | None = None
    """How much wider than expected circles about estimates have to be to hold people; None where that is not known. No
    hash counts it: only the published radius follows from it."""

    def __init__(
        self,
        transition: MatrixLike | Sequence[MatrixLike],
        initial: npt.ArrayLike,
        states: StateSpace | None = None,
        step_seconds: float | None = None,
        time_classes: TimeClasses | None = None,
        away: Away | None = None,
    ) -> None:
        begun = as_floats(initial, "initial", StochasticError)
        if begun.ndim == 1 and time_classes is None:
            given: list[MatrixLike] = [cast(MatrixLike, transition)]
        else:
            given = list(cast(Sequence[MatrixLike], transition))
        count = 1 if time_classes is None else time_classes.count
        if len(given) != count:
            raise ConfigurationError(f"there are {len(given)} matrices for {count} classes of time; give one each")
        if time_classes is not None and time_classes.step_seconds != step_seconds:
            raise ConfigurationError(
                f"the classes of time are of steps of {time_classes.step_seconds:g} s, the model's are "
                f"{step_seconds} s; give one step"
            )
        name = "transition matrix" if count == 1 else "transition matrix {}"
        made = [locked(as_stochastic(one, name.format(i), compressed=True)) for i, one in enumerate(given)]
        chain = int(made[0].shape[0])
        size = chain if away is None else away.size
        if begun.ndim == 1:
            starts = as_distribution(begun, size)[np.newaxis]
        elif begun.ndim == 2 and len(begun) == count:
            starts = np.array([as_distribution(row, size) for row in begun])
        else:
            raise StochasticError(f"starts have shape {begun.shape}; give one distribution for each of {count} classes")
        if {int(one.shape[0]) for one in made} != {chain if away is None else len(away)}:
            raise StochasticError("transition matrices differ in size, or are not of the contexts; give one size")
        if states is not None and states.size != size:
            raise StateError(f"the space has {states.size} states and the model {size}; they must agree")
        if step_seconds is not None:
            microseconds(step_seconds, "step_seconds")
        average = starts[0] if time_classes is None else time_classes.shares @ starts
        vars(self).update(
            transitions=tuple(made),
            starts=locked(starts),
            initial=locked(average),
            states=states,
            step_seconds=step_seconds,
            time_classes=time_classes,
            away=away,
        )

    @property
    def transition(self) -> csr_array:
        """The one matrix of moves between states, ``(N, N)`` CSR.

        Raises
        ------
        ConfigurationError
            When there are several, or it is one of moves between contexts.
        """
        if not self.is_plain:
            raise ConfigurationError(
                f"the model {self.in_words}, and this needs one matrix of moves between states; learn a model without "
                "--by, and with --no-away"
            )
        return self.transitions[0]

    @property
    def moves_inside(self) -> csr_array:
        """The one matrix of moves between states, ``(N, N)`` CSR, of people inside the region where others are known.

        Who gets outside counts as in the border state.

        Raises
        ------
        ConfigurationError
            As `transition`, but for models that know of people outside.
        """
        if self.away is None or self.time_classes is not None:
            return self.transition
        return self.away.moves_inside(self.transitions[0])

    @property
    def is_plain(self) -> bool:
        """Whether one matrix of moves between states says all: no classes of time, and no one known outside."""
        return self.time_classes is None and self.away is None

    @property
    def last(self) -> IntArray:
        """The state that a person is in, for each state of the chain, ``(P,)``."""
        return np.arange(self.size) if self.away is None else self.away.last

    @property
    def in_words(self) -> str:
        """How the model differs from one with one matrix of moves between states."""
        said = [f"has a matrix for each of {self.time_classes.count} classes of time"] if self.time_classes else []
        said += ["knows of people outside its region"] if self.away else []
        return " and ".join(said) or "has one matrix of moves between states"

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return int(self.starts.shape[1])

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
    def chain_size(self) -> int:
        """The number of states of the chain: of contexts, where the model knows of people outside."""
        return int(self.transitions[0].shape[0])

    @property
    def possible_moves(self) -> int:
        """How many moves of the chain are possible, over all classes of time."""
        return sum(one.nnz for one in self.transitions)

    @cached_property
    def structure(self) -> csr_array:
        """Which moves between states are possible at some time, as a boolean matrix ``(N, N)``."""
        found = csr_array(self.transitions[0].astype(np.bool_))
        for one in self.transitions[1:]:
            found = csr_array(found + one.astype(np.bool_))
        return locked(found if self.away is None else self.away.moves(found))

    @cached_property
    def content_hash(self) -> str:
        """A hash of matrices, starts, states, step, classes and people outside: equal models have equal hashes."""
        parts: list[Any] = []
        for one in self.transitions:
            matrix = one.sorted_indices()
            parts += [matrix.indptr, matrix.indices, matrix.data]
        about = (None if self.states is None else self.states.content_hash, self.step_seconds)
        if self.is_plain:
            return content_hash(self.size, *parts, self.initial, *about)
        others = (None if one is None else one.content_hash for one in (self.time_classes, self.away))
        return content_hash(_HASHED_FIRST, self.size, *parts, self.starts, *about, *others)

    # ---- how a distribution moves ----------------------------------------------------------------------------------

    def class_of(self, slot: int | None) -> int:
        """The class of the step that ends at a slot; 0 where one matrix serves all steps.

        Parameters
        ----------
        slot
            The slot; it matters where the model varies with time.

        Returns
        -------
        int
            The number of the class.

        Raises
        ------
        ConfigurationError
            When the model varies with time and no slot is given.
        """
        return 0 if self.time_classes is None else self.time_classes.class_of(_known(slot))

    def classes_of(self, slots: IntArray) -> IntArray:
        """The class of the step that ends at each of some slots; 0 throughout where one matrix serves all steps.

        Parameters
        ----------
        slots
            ``(T,)``: the slots.

        Returns
        -------
        IntArray
            ``(T,)``: the numbers of their classes.
        """
        if self.time_classes is None:
            return np.zeros(np.shape(slots), dtype=np.int64)
        return self.time_classes.classes_of(slots)

    def first_logs(self, slot: int | None = None, initial: FloatArray | None = None) -> FloatArray:
        """Log masses of the chain ``(P,)`` at the first release, in the step that ends at ``slot``.

        Parameters
        ----------
        slot
            When the release is; it matters where the model varies with time.
        initial
            ``(N,)``: the distribution of the state then; left out, the model's.

        Returns
        -------
        FloatArray
            ``(P,)``, minus infinity where impossible.
        """
        given = self.starts[self.class_of(slot)] if initial is None else initial
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(given if self.away is None else self.away.begun(given)))

    def operator(self, steps: int = 1, slot: int | None = None) -> Operator:
        """What takes log masses of the chain some steps on, and log likelihoods back: all that inference asks for.

        Parameters
        ----------
        steps
            How many steps; not negative.
        slot
            The slot before the first of them; it matters where the model varies with time.

        Returns
        -------
        Operator
            The operator of all steps together.

        Raises
        ------
        ConfigurationError
            As `class_of`.
        InvalidInputError
            For a gap of more than a hundred years, in a model that varies with time.
        """
        if steps == 0:
            return IDENTITY
        if self.time_classes is None:
            return self.steppers[0] if steps == 1 else one_matrix(self.steppers[0], steps, self._powers)
        since = _known(slot)
        if steps == 1:
            return self.steppers[self.time_classes.class_of(since + 1)]
        if steps * microseconds(self.step, "step") > _LONGEST:
            raise InvalidInputError(f"a gap of {steps} steps is longer than a hundred years; begin anew after it")
        periods = self.time_classes.periods(since, steps)
        return Gap([([(self.steppers[k], count) for k, count in runs], times) for runs, times in periods])

    def operators(self, steps: IntArray, slots: IntArray | None = None) -> list[Operator]:
        """The operators that lead to each of ``T`` observations.

        Parameters
        ----------
        steps
            ``(T,)``: the steps before each observation.
        slots
            ``(T,)``: the slot of each; it matters where the model varies with time.

        Returns
        -------
        list of Operator
            One for each observation.
        """
        if self.time_classes is None:
            made = {count: self.operator(count) for count in set(steps.tolist())}
            return [made[count] for count in steps.tolist()]
        if slots is None:
            _known(None)
        assert slots is not None, "refused otherwise"
        classes = self.classes_of(slots)
        return [
            self.steppers[number] if count == 1 else self.operator(count, slot - count)
            for count, slot, number in zip(steps.tolist(), slots.tolist(), classes.tolist(), strict=True)
        ]

    @cached_property
    def steppers(self) -> tuple[TransitionOperator, ...]:
        """The operator of one step, by class of time."""
        return tuple(TransitionOperator(one) for one in self.transitions)

    @cached_property
    def _powers(self) -> Powers:
        return Powers(self.steppers[0])

    def saying(self, learned: Mapping[str, Any]) -> MarkovModel:
        """The same model with other words on how it was learned: plain JSON values, which its file will hold.

        Parameters
        ----------
        learned
            How it was learned; plain JSON values.

        Returns
        -------
        MarkovModel
            The same model, which says so.
        """
        return self._with(learned=dict(learned))

    def holding(self, radii: HeldRadii | None) -> MarkovModel:
        """The same model with factors by which circles about estimates hold people.

        Parameters
        ----------
        radii
            The factors, see `dphmm.model.left_out.held_radii`; None for none.

        Returns
        -------
        MarkovModel
            The same model with them.
        """
        return self._with(held_radii=radii)

    def _with(self, **fields: Any) -> MarkovModel:
        made = copy(self)
        vars(made).update(fields)
        return made

    def with_moves(self, transitions: Sequence[csr_array], starts: FloatArray) -> MarkovModel:
        """A model of the same places, steps, classes of time and contexts with other probabilities.

        Parameters
        ----------
        transitions
            ``(P, P)`` each: the transition matrix of each class of time.
        starts
            ``(K, N)``: the first distribution of each class.

        Returns
        -------
        MarkovModel
            The other model.

        Raises
        ------
        StochasticError
            As for a new model.
        """
        many = self.time_classes is not None
        return MarkovModel(
            list(transitions) if many else transitions[0],
            starts if many else starts[0],
            self.states,
            self.step_seconds,
            self.time_classes,
            self.away,
        )

    @classmethod
    @checked
    def fit(
        cls,
        sequences: Iterable[StateSequence],
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
            State sequences; see `StateSequence`. Moves are counted between neighbouring slots only, never across a gap.
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
        """Write the model, with its states and step, as a NumPy ``.npz`` archive.

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
        about: dict[str, Any] = {
            "format": _FORMAT,
            "states": None if self.states is None else self.states.to_json(),
            "step_seconds": self.step_seconds,
        }
        arrays: dict[str, npt.NDArray[Any]]
        if self.is_plain:
            one = self.transitions[0]
            arrays = {"data": one.data, "indices": one.indices, "indptr": one.indptr, "initial": self.initial}
        else:
            about["rhythm"] = None if self.time_classes is None else self.time_classes.to_dict()
            arrays = {"starts": self.starts}
            if self.away is not None:
                arrays |= {name: getattr(self.away, name) for name in _AWAY_ARRAYS}
            for i, one in enumerate(self.transitions):
                arrays |= {f"data_{i}": one.data, f"indices_{i}": one.indices, f"indptr_{i}": one.indptr}
        if self.learned is not None:
            about["learned"] = self.learned
        if self.held_radii is not None:
            about["held_radii"] = self.held_radii.to_dict()
        with new_file(path, overwrite, private) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)

    @classmethod
    @checked
    def load(cls, path: str | Path) -> MarkovModel:
        """Read a model that `save` wrote.

        Parameters
        ----------
        path
            The file.

        Returns
        -------
        MarkovModel
            The model.

        Raises
        ------
        DataFileError
            When the file is absent, truncated, of another format, or something else.
        """
        try:
            arrays = read_npz(path)
            about = _about(arrays)
            described, step = about.get("states"), about.get("step_seconds")
            if step is not None:
                as_number(step, "step_seconds")  # and kept as it is, whole or not, for its hash
            size, given = _made_of(arrays, about)
            states = None if described is None else StateSpace.from_json(described, size)
            return _told(cls(given[0], given[1], states, step, *given[2:]), about)
        except DataFileError as problem:
            raise DataFileError(path, f"no Markov model ({problem.problem}); make one with: dphmm learn") from None
        except ValueError as problem:
            raise DataFileError(path, f"no Markov model ({one_line(problem)}); make one with: dphmm learn") from None

    def __repr__(self) -> str:
        if self.is_plain:
            return f"MarkovModel(states={self.size}, transitions={self.possible_moves})"
        return f"MarkovModel(states={self.size}, classes={len(self.transitions)}, chain={self.chain_size})"


def _known(slot: int | None) -> int:
    if slot is None:
        raise ConfigurationError(
            "the model varies with the time of day, and the slot of the first release is not given; give it, as in "
            "releaser.restart(first=slot)"
        )
    return slot


def _made_of(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> tuple[int, list[Any]]:
    """Return the number of states and the other arguments of `MarkovModel` that a file contains."""
    if "initial" in arrays:  # a plain model: one matrix, whose arrays have no number
        initial = arrays["initial"]
        if initial.ndim != 1 or initial.dtype.kind not in "fiub":
            raise ValueError(f"'initial' is {initial.dtype} of shape {initial.shape}")
        size = len(initial)
        return size, [_matrix(arrays, "", size), initial]
    starts = _array(arrays, "starts")
    if starts.ndim != 2 or not starts.size:
        raise ValueError(f"'starts' have shape {starts.shape}")
    size = int(starts.shape[1])
    away = Away(size, *(_array(arrays, name) for name in _AWAY_ARRAYS)) if "border" in arrays else None
    classes = None if about.get("rhythm") is None else TimeClasses.from_dict(about["rhythm"])
    chain = size if away is None else len(away)
    return size, [[_matrix(arrays, f"_{i}", chain) for i in range(len(starts))], starts, classes, away]


def _matrix(arrays: Mapping[str, npt.NDArray[Any]], end: str, size: int) -> csr_array:
    """Return the transition matrix ``(size, size)`` of the arrays that have a given ending."""
    parts = {name: _array(arrays, name + end) for name in ("data", "indices", "indptr")}
    given = {**parts, "format": "csr", "shape": (size, size)}
    return csr_array(csr_of_arrays(given, f"transition matrix {end[1:]}".rstrip()))


def _told(model: MarkovModel, about: Mapping[str, Any]) -> MarkovModel:
    """A model with what its file says of how it was learned."""
    learned = about.get("learned")
    if not isinstance(learned, dict | None):
        raise ValueError(f"'learned' is {type(learned).__name__}")
    try:
        json.dumps(learned, allow_nan=False)
    except ValueError:
        raise ValueError("'learned' holds a number that is infinite or none") from None
    model = model if learned is None else model.saying(learned)
    radii = about.get("held_radii")
    if radii is None:
        return model
    if not isinstance(radii, dict):
        raise ValueError(f"'held_radii' is {type(radii).__name__}")
    return model.holding(HeldRadii.from_dict(radii))


def _about(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """What a model's file says of it, once it is known to be one."""
    text = _array(arrays, "about")
    if text.shape != () or text.dtype.kind != "U":
        raise ValueError(f"'about' is {text.dtype} of shape {text.shape}")
    about = parse_json(text.item())
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise ValueError(f"its format must be {_FORMAT}, got {shorten(found)}")
    return about


def _array(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"there is no array {name!r}")
    return arrays[name]


def _neighbours(neighbours: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    pairs = as_integers(neighbours, "neighbours", StateError)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise StateError(f"neighbours have shape {pairs.shape}; give pairs of states")
    return pairs[:, 0], pairs[:, 1]
