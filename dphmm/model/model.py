"""The Markov model of a user's movement."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arrays import FloatArray, IntArray, as_distribution, as_floats, as_integers, hash_content, make_read_only
from dphmm.errors import (
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    MissingExtensionError,
    StateError,
    StochasticError,
)
from dphmm.model.multi_step import Gap, LimitDistributions, Powers, build_homogeneous_gap
from dphmm.model.observed_moves import MoveCounts, StateSequence, check_states, count_pairs, extract_moves
from dphmm.model.outside_states import OutsideStates
from dphmm.model.radius_factors import CalibratedRadii
from dphmm.model.time_classes import TimeClasses
from dphmm.model.transition_operator import IDENTITY, Operator, TransitionOperator
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import round_to_microseconds
from dphmm.stochastic_matrix import MatrixLike, as_stochastic, build_csr
from dphmm.tables.json_toml import parse_json
from dphmm.tables.numpy_files import read_npz
from dphmm.tables.output import create_file
from dphmm.tables.values import as_number, shorten, shorten_message
from dphmm.tolerances import MAX_SCALE
from dphmm.validation import Integers, Interval, Seconds, check_arguments

# The format of model files. Files with another format are rejected.
_FORMAT = "dphmm-markov-model-1"
_METADATA_KEYS = {"format", "states", "step_seconds", "time_classes", "provenance", "calibrated_radii"}
# The arrays of a model file that define its `OutsideStates`.
_OUTSIDE_ARRAYS = ("border", "mean_distances", "mean_squares", "outside_shares")
# Maximum length of a gap in a model with classes of time: a hundred years, in microseconds.
_MAX_GAP_MICROSECONDS = 100 * 366 * 86_400_000_000


@check_arguments
@dataclass(frozen=True, init=False, eq=False, repr=False)
class MarkovModel:
    """A Markov model over states, with optional classes of time and outside states.

    The ``N`` states are ``0 .. N - 1``. The model has one transition matrix, or one for each public class of time. In
    the latter case the class of the step that ends at slot ``t`` selects the matrix of the move into slot ``t``, and
    methods need the slot of the first step. A model with outside states has a chain of contexts
    (`dphmm.model.outside_states`). Each context belongs to one state; measurements, policies and releases use states.

    A model is immutable and contains read-only copies of its arguments.

    Parameters
    ----------
    transition
        ``(N, N)``, dense or sparse. Row ``i`` contains the probabilities of moving from state ``i`` to each state in
        one step. Rows must sum to one within ``1e-9`` and are then normalised. With `outside` ``(P, P)`` over contexts.
        With classes of time a sequence of K such matrices, one for each class.
    initial
        ``(N,)``: the distribution of the first state; or ``(K, N)`` for each class of the first step, with a sequence
        of K matrices.
    states
        A `dphmm.space` state space of ``N`` states. Defaults to None: unknown.
    step_seconds
        The timestep, in seconds. Defaults to None: unknown.
    time_classes
        The classes of time. Defaults to None: one matrix for all steps.
    outside
        Outside states; see `dphmm.model.outside_states`. Defaults to None: every user is inside the region.

    Raises
    ------
    StochasticError
        If a matrix is not square, not finite, has a negative entry or a row that does not sum to one; or if sizes
        differ.
    ConfigurationError
        If there is not one matrix for each class, or the step of the classes differs from the model's.
    """

    # The matrices by class of time, CSR without stored zeros. Their structure defines the possible moves.
    transitions: tuple[csr_array, ...]
    # The distribution of the first state in each class, ``(K, N)``.
    initial_by_class: FloatArray
    # The distribution of the first state, ``(N,)``, averaged over a week.
    initial: FloatArray
    states: StateSpace | None
    step_seconds: float | None
    time_classes: TimeClasses | None
    outside: OutsideStates | None
    # Metadata on how the model was learned and on its guarantee to the training users. No result depends on it.
    provenance: Mapping[str, Any] | None = None
    # The factors of calibrated radii. `None` if unknown. They are not part of `content_hash`: only the published radius
    # depends on them.
    calibrated_radii: CalibratedRadii | None = None

    def __init__(
        self,
        transition: MatrixLike | Sequence[MatrixLike],
        initial: npt.ArrayLike,
        states: StateSpace | None = None,
        step_seconds: Seconds | None = None,
        time_classes: TimeClasses | None = None,
        outside: OutsideStates | None = None,
    ) -> None:
        initials = as_floats(initial, "initial", StochasticError)
        if initials.ndim == 1 and time_classes is None:
            matrices: list[MatrixLike] = [cast(MatrixLike, transition)]
        else:
            matrices = list(cast(Sequence[MatrixLike], transition))
        count = 1 if time_classes is None else time_classes.count
        if len(matrices) != count:
            raise ConfigurationError(
                f"transition must have one matrix for each of {count} classes of time, got {len(matrices)}"
            )
        if time_classes is not None and time_classes.step_seconds != step_seconds:
            raise ConfigurationError(
                f"time_classes must have the step_seconds of the model, {step_seconds}, got "
                f"{time_classes.step_seconds:g}"
            )
        name = "transition matrix" if count == 1 else "transition matrix {}"
        transitions = [
            make_read_only(as_stochastic(matrix, name.format(i), compressed=True)) for i, matrix in enumerate(matrices)
        ]
        chain = int(transitions[0].shape[0])
        size = chain if outside is None else outside.size
        if initials.ndim == 1:
            initial_by_class = as_distribution(initials, size)[np.newaxis]
        elif initials.ndim == 2 and len(initials) == count:
            initial_by_class = np.array([as_distribution(row, size) for row in initials])
        else:
            raise StochasticError(
                f"initial must be one distribution for each of {count} classes, got shape {initials.shape}"
            )
        if {int(matrix.shape[0]) for matrix in transitions} != {chain if outside is None else len(outside)}:
            raise StochasticError("transition must have matrices of one size, that of the contexts")
        if states is not None and states.size != size:
            raise StateError(f"states must be a space of the model's {size} states, got {states.size} states")
        if step_seconds is not None:
            round_to_microseconds(step_seconds, "step_seconds")
        # A step of unknown class belongs to a random hour of the week.
        average = initial_by_class[0] if time_classes is None else time_classes.shares @ initial_by_class
        vars(self).update(
            transitions=tuple(transitions),
            initial_by_class=make_read_only(initial_by_class),
            initial=make_read_only(average),
            states=states,
            step_seconds=step_seconds,
            time_classes=time_classes,
            outside=outside,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Operators are several times as large as the matrices, and computed again in less time than they are sent.
        kept = {"content_hash", *(each.name for each in fields(self))}
        return {name: value for name, value in vars(self).items() if name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for array in (*self.transitions, self.initial_by_class, self.initial):
            make_read_only(array)  # pickling loses it

    @property
    def transition(self) -> csr_array:
        """The transition matrix of a plain model, ``(N, N)`` CSR. See `is_plain`.

        Raises
        ------
        ConfigurationError
            If there are several matrices, or the matrix is over contexts.
        """
        if not self.is_plain:
            raise ConfigurationError(
                f"the model must have one transition matrix between states, got a model that {self.describe()}: learn "
                "a model without --time-classes and with outside_states = false"
            )
        return self.transitions[0]

    @property
    def inside_transition(self) -> csr_array:
        """The transition matrix of users inside the region, ``(N, N)`` CSR.

        A user who leaves the region counts as in the border state. Without outside states this is `transition`.

        Raises
        ------
        ConfigurationError
            If there are several matrices.
        """
        if self.outside is None or self.time_classes is not None:
            return self.transition
        return self.outside.build_inside_transition(self.transitions[0])

    @property
    def is_plain(self) -> bool:
        """Whether the model is one matrix between states: no classes of time, no outside states."""
        return self.time_classes is None and self.outside is None

    @property
    def state_of_context(self) -> IntArray:
        """The state of each context of the chain, ``(P,)``."""
        return np.arange(self.size) if self.outside is None else self.outside.state_of_context

    def describe(self) -> str:
        """Return a verb phrase on the matrices and states of the model, for messages.

        Returns
        -------
        str
            Such as ``"has outside states"``.
        """
        traits = [f"has a matrix for each of {self.time_classes.count} classes of time"] if self.time_classes else []
        traits += ["has outside states"] if self.outside else []
        return " and ".join(traits) or "has one transition matrix between states"

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return int(self.initial_by_class.shape[1])

    @property
    def space(self) -> StateSpace:
        """The state space.

        Raises
        ------
        ConfigurationError
            If it is unknown.
        """
        if self.states is None:
            raise ConfigurationError("the model has no state locations: learn a model with 'dphmm learn'")
        return self.states

    @property
    def step(self) -> float:
        """The timestep, in seconds.

        Raises
        ------
        ConfigurationError
            If it is unknown.
        """
        if self.step_seconds is None:
            raise ConfigurationError("the model has no step_seconds: set it when creating the model")
        return self.step_seconds

    @property
    def chain_size(self) -> int:
        """The number of states of the chain, which are contexts if the model has outside states."""
        return int(self.transitions[0].shape[0])

    @property
    def num_possible_moves(self) -> int:
        """The number of possible moves of the chain, summed over the classes of time."""
        return sum(matrix.nnz for matrix in self.transitions)

    @cached_property
    def structure(self) -> csr_array:
        """The boolean ``(N, N)`` matrix of transitions possible in at least one time class."""
        moves = csr_array(self.transitions[0].astype(np.bool_))
        for matrix in self.transitions[1:]:
            moves = csr_array(moves + matrix.astype(np.bool_))
        return make_read_only(moves if self.outside is None else self.outside.project_moves(moves))

    @cached_property
    def content_hash(self) -> str:
        """A hash of everything that results depend on. See `calibrated_radii` and `provenance`."""
        parts: list[Any] = []
        for part in self.transitions:
            matrix = part.sorted_indices()
            parts += [matrix.indptr, matrix.indices, matrix.data]
        about = (None if self.states is None else self.states.content_hash, self.step_seconds)
        if self.is_plain:
            return hash_content(self.size, *parts, self.initial, *about)
        # The verifier of certificates computes the same hash. The format distinguishes it from that of a plain model.
        others = (None if part is None else part.content_hash for part in (self.time_classes, self.outside))
        return hash_content(_FORMAT, self.size, *parts, self.initial_by_class, *about, *others)

    # ---- transition operators --------------------------------------------------------------------------------------

    def get_class(self, slot: int | None) -> int:
        """Return the class of the step that ends at a slot. 0 without classes of time.

        Parameters
        ----------
        slot
            The slot. Required by models that vary with time.

        Returns
        -------
        int
            The index of the class.

        Raises
        ------
        ConfigurationError
            If the model varies with time and ``slot`` is None.
        """
        return 0 if self.time_classes is None else self.time_classes.get_class(_require_slot(slot))

    def get_classes(self, slots: IntArray) -> IntArray:
        """Return the classes of the steps that end at slots. 0 without classes of time.

        Parameters
        ----------
        slots
            ``(T,)``: the slots.

        Returns
        -------
        IntArray
            ``(T,)``: the indices of the classes.
        """
        if self.time_classes is None:
            return np.zeros(np.shape(slots), dtype=np.int64)
        return self.time_classes.get_classes(slots)

    def initial_logs(self, slot: int | None = None, initial: FloatArray | None = None) -> FloatArray:
        """Return the log masses of the chain at the first release.

        Parameters
        ----------
        slot
            The slot of the release. Required by models that vary with time.
        initial
            ``(N,)``: the initial distribution of the state. Defaults to the model's.

        Returns
        -------
        FloatArray
            ``(P,)``; minus infinity for impossible contexts.
        """
        distribution = self.initial_by_class[self.get_class(slot)] if initial is None else initial
        with np.errstate(divide="ignore"):
            return np.asarray(
                np.log(distribution if self.outside is None else self.outside.split_initial(distribution))
            )

    def operator(self, steps: int = 1, slot: int | None = None) -> Operator:
        """Return the operator of several steps.

        Parameters
        ----------
        steps
            The number of steps, non-negative.
        slot
            The slot before the first step. Required by models that vary with time.

        Returns
        -------
        Operator
            The operator of all steps together.

        Raises
        ------
        ConfigurationError
            If the model varies with time and ``slot`` is None.
        InvalidInputError
            If the model varies with time and the gap is longer than a hundred years.
        """
        if steps == 0:
            return IDENTITY
        if self.time_classes is None:
            return (
                self.one_step_operators[0]
                if steps == 1
                else build_homogeneous_gap(self.one_step_operators[0], steps, self._powers)
            )
        since = _require_slot(slot)
        if steps == 1:
            return self.one_step_operators[self.time_classes.get_class(since + 1)]
        if steps * round_to_microseconds(self.step, "step") > _MAX_GAP_MICROSECONDS:
            raise InvalidInputError(
                f"steps must span at most a hundred years, got {steps} steps of {self.step:g} s: restart after the gap"
            )
        periods = self.time_classes.periods(since, steps)
        # Periods are counted from the end of the gap: the limit distribution then does not depend on the start.
        whole = steps // self.time_classes.period * self.time_classes.period if self.time_classes.period else 0
        limit = self._limits.find(self.time_classes.periods(since + steps - whole, whole))
        operators = [([(self.one_step_operators[k], count) for k, count in runs], times) for runs, times in periods]
        return Gap(operators, None, limit)

    def operators(self, steps: IntArray, slots: IntArray | None = None) -> list[Operator]:
        """Return the operators that lead to each of ``T`` observations.

        Parameters
        ----------
        steps
            ``(T,)``: the number of steps before each observation.
        slots
            ``(T,)``: the slot of each observation. Required by models that vary with time.

        Returns
        -------
        list of Operator
            One for each observation.

        Raises
        ------
        ConfigurationError
            If the model varies with time, and there are no slots.
        """
        # One operator for each length: passes recognise runs of equal operators by identity.
        if self.time_classes is None:
            by_length = {count: self.operator(count) for count in set(steps.tolist())}
            return [by_length[count] for count in steps.tolist()]
        if slots is None:
            _require_slot(None)
        assert slots is not None, "checked above"
        classes = self.get_classes(slots)
        return [
            self.one_step_operators[number] if count == 1 else self.operator(count, slot - count)
            for count, slot, number in zip(steps.tolist(), slots.tolist(), classes.tolist(), strict=True)
        ]

    @cached_property
    def one_step_operators(self) -> tuple[TransitionOperator, ...]:
        """The operator of one step, for each class of time."""
        return tuple(TransitionOperator(matrix) for matrix in self.transitions)

    @cached_property
    def _powers(self) -> Powers:
        return Powers(self.one_step_operators[0])

    @cached_property
    def _limits(self) -> LimitDistributions:
        return LimitDistributions(self.one_step_operators)

    def with_provenance(self, provenance: Mapping[str, Any]) -> MarkovModel:
        """Return a copy of the model with other provenance metadata.

        Parameters
        ----------
        provenance
            Plain JSON values, which `save` writes to the model's file.

        Returns
        -------
        MarkovModel
            The copy.
        """
        return self._with(provenance=dict(provenance))

    def with_calibrated_radii(self, radii: CalibratedRadii | None) -> MarkovModel:
        """Return a copy of the model with other factors of calibrated radii.

        Parameters
        ----------
        radii
            The factors; see `dphmm.model.conformal_radii.compute_calibrated_radii`. None removes them.

        Returns
        -------
        MarkovModel
            The copy.
        """
        return self._with(calibrated_radii=radii)

    def with_fixed_offsets(self) -> list[MarkovModel]:
        """Return the model at fixed UTC offsets. See `TimeClasses.with_fixed_offsets`.

        Returns
        -------
        list of MarkovModel
            The copies; the model itself without classes of time.
        """
        if self.time_classes is None:
            return [self]
        models = [self._with(time_classes=classes) for classes in self.time_classes.with_fixed_offsets()]
        for model in models:
            vars(model).pop("content_hash", None)
        return models

    def _with(self, **changes: Any) -> MarkovModel:
        model = copy(self)
        vars(model).update(changes)
        return model

    def with_probabilities(self, transitions: Sequence[csr_array], initial_by_class: FloatArray) -> MarkovModel:
        """Return a model with other probabilities and the same states and times.

        Parameters
        ----------
        transitions
            ``(P, P)`` each: the transition matrix of each class of time.
        initial_by_class
            ``(K, N)``: the initial distribution of each class.

        Returns
        -------
        MarkovModel
            The new model.

        Raises
        ------
        StochasticError
            If a matrix or a distribution is invalid.
        """
        has_classes = self.time_classes is not None
        return MarkovModel(
            list(transitions) if has_classes else transitions[0],
            initial_by_class if has_classes else initial_by_class[0],
            self.states,
            self.step_seconds,
            self.time_classes,
            self.outside,
        )

    @classmethod
    @check_arguments
    def fit(
        cls,
        sequences: Iterable[StateSequence],
        size: Annotated[int, Integers(1, error=StateError)],
        smoothing: Annotated[float, Interval(0, MAX_SCALE)] = 0.0,
        neighbours: npt.ArrayLike | None = None,
        states: StateSpace | None = None,
        step_seconds: Seconds | None = None,
    ) -> MarkovModel:
        """Learn a model by counting.

        Parameters
        ----------
        sequences
            State sequences; see `StateSequence`. Moves are counted between consecutive slots only, never across a gap.
        size
            The number of states ``N``.
        smoothing
            A pseudo-count, non-negative. It is added to the moves between neighbours (in both directions), to staying,
            and to the occupancy of every state that is visited or a neighbour of a visited one.
        neighbours
            ``(m, 2)`` pairs of states between which a move is possible. Defaults to the observed pairs, so the reverse
            of each observed move becomes possible.
        states, step_seconds
            The state space and the timestep of the model.

        Returns
        -------
        MarkovModel
            The model. The initial distribution is the share of time spent in each state. A state that is never left is
            absorbing.

        Raises
        ------
        StateError
            If a state is outside ``-1 .. size - 1``.
        InvalidInputError
            If smoothing is negative, or no sequence visits a state.
        """
        moves = MoveCounts.count((extract_moves(sequence, size) for sequence in sequences), size)
        return cls.fit_counts(moves, size, float(smoothing), neighbours, states, step_seconds)

    @classmethod
    def fit_counts(
        cls,
        moves: MoveCounts,
        size: int,
        smoothing: float = 0.0,
        neighbours: npt.ArrayLike | None = None,
        states: StateSpace | None = None,
        step_seconds: float | None = None,
    ) -> MarkovModel:
        """Learn a model from counts of moves.

        Parameters
        ----------
        moves
            The visits and moves of users.
        size, smoothing, neighbours, states, step_seconds
            See `fit`.

        Returns
        -------
        MarkovModel
            The model that `fit` learns from the sequences.

        Raises
        ------
        InvalidInputError
            If no state is visited.
        """
        occupancy = np.bincount(moves.visits, moves.visit_counts, size)
        sources = moves.sources
        targets = moves.targets
        if not occupancy.any():
            raise InvalidInputError("no sequence visits a state: check the region, the step and the times of the data")
        counts = count_pairs(sources, targets, size, moves.counts)
        if smoothing > 0:
            left, right = (sources, targets) if neighbours is None else _split_neighbours(neighbours)
            check_states(np.concatenate([left, right]), size)
            reached = np.unique(np.concatenate([left, right, np.flatnonzero(occupancy)]))
            both = np.concatenate([left, right, reached]), np.concatenate([right, left, reached])
            pseudo_counts = count_pairs(*both, size)
            pseudo_counts.data[:] = smoothing
            counts = counts + pseudo_counts
            occupancy[reached] += smoothing
        # States that are never left become absorbing: a row without counts could not be normalised.
        never_left = np.flatnonzero(np.diff(counts.indptr) == 0)
        counts = counts + count_pairs(never_left, never_left, size)
        counts.data /= np.repeat(counts.sum(axis=1), np.diff(counts.indptr))
        return cls(counts, occupancy / occupancy.sum(), states, step_seconds)

    def save(self, path: str | Path, overwrite: bool = True, private: bool = False) -> None:
        """Write the model, with its states and step, to a NumPy ``.npz`` archive.

        Parameters
        ----------
        path
            The file. It is written atomically.
        overwrite
            Whether an existing file may be replaced.
        private
            Whether only the owner may read the file. Models are usually public. An exception is a set of models, each
            learned without some users, because their differences reveal data of these users.

        Raises
        ------
        OutputError
            If the file exists and may not be overwritten, or cannot be written.
        """
        about: dict[str, Any] = {
            "format": _FORMAT,
            "states": None if self.states is None else self.states.to_document(),
            "step_seconds": self.step_seconds,
        }
        arrays: dict[str, npt.NDArray[Any]]
        if self.is_plain:
            matrix = self.transitions[0]
            arrays = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "initial": self.initial}
        else:
            about["time_classes"] = None if self.time_classes is None else self.time_classes.to_dict()
            arrays = {"initial_by_class": self.initial_by_class}
            if self.outside is not None:
                arrays |= {name: getattr(self.outside, name) for name in _OUTSIDE_ARRAYS}
            for i, matrix in enumerate(self.transitions):
                arrays |= {f"data_{i}": matrix.data, f"indices_{i}": matrix.indices, f"indptr_{i}": matrix.indptr}
        if self.provenance is not None:
            about["provenance"] = self.provenance
        if self.calibrated_radii is not None:
            about["calibrated_radii"] = self.calibrated_radii.to_dict()
        with create_file(path, overwrite, private) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)

    @classmethod
    @check_arguments
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
            If the file is missing, truncated, or not a model file of this format.
        MissingExtensionError
            If its state space is that of a package that is not installed.
        """
        try:
            arrays = read_npz(path)
            about = _read_metadata(arrays)
            described = about.get("states")
            step = about.get("step_seconds")
            if step is not None:
                as_number(step, "step_seconds")  # checked only: the hash distinguishes integers from floats
            size, arguments = _read_parts(arrays, about)
            states = None if described is None else StateSpace.from_json(described, size)
            return _add_provenance(cls(arguments[0], arguments[1], states, step, *arguments[2:]), about)
        except MissingExtensionError:
            raise
        except DataFileError as problem:
            raise DataFileError(
                path, f"is not a Markov model ({problem.problem}): create one with 'dphmm learn'"
            ) from None
        except ValueError as problem:
            raise DataFileError(
                path, f"is not a Markov model ({shorten_message(problem)}): create one with 'dphmm learn'"
            ) from None

    def __repr__(self) -> str:
        if self.is_plain:
            return f"MarkovModel(states={self.size}, transitions={self.num_possible_moves})"
        return f"MarkovModel(states={self.size}, classes={len(self.transitions)}, chain={self.chain_size})"


def _require_slot(slot: int | None) -> int:
    if slot is None:
        raise ConfigurationError(
            "a time-dependent model needs the slot of the first release: call releaser.restart(first=slot)"
        )
    return slot


def _read_parts(arrays: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> tuple[int, list[Any]]:
    """Return the number of states and the other arguments of `MarkovModel` in a file."""
    if "initial" in arrays:  # a plain model: the arrays of its one matrix have no number
        initial = arrays["initial"]
        if initial.ndim != 1 or initial.dtype.kind not in "fiub":
            raise ValueError(f"array 'initial' must be one-dimensional, got {initial.dtype} of shape {initial.shape}")
        size = len(initial)
        return size, [_read_matrix(arrays, "", size), initial]
    initial = _get_array(arrays, "initial_by_class")
    if initial.ndim != 2 or not initial.size:
        raise ValueError(f"array 'initial_by_class' must be two-dimensional, got shape {initial.shape}")
    size = int(initial.shape[1])
    outside = None
    if "border" in arrays:
        outside = OutsideStates(size, *(_get_array(arrays, name) for name in _OUTSIDE_ARRAYS))
    classes = None if about.get("time_classes") is None else TimeClasses.from_dict(about["time_classes"])
    chain = size if outside is None else len(outside)
    return size, [[_read_matrix(arrays, f"_{i}", chain) for i in range(len(initial))], initial, classes, outside]


def _read_matrix(arrays: Mapping[str, npt.NDArray[Any]], end: str, size: int) -> csr_array:
    """Return the transition matrix ``(size, size)`` of the arrays with a suffix."""
    parts = {name: _get_array(arrays, name + end) for name in ("data", "indices", "indptr")}
    form = {**parts, "format": "csr", "shape": (size, size)}
    return csr_array(build_csr(form, f"transition matrix {end[1:]}".rstrip()))


def _add_provenance(model: MarkovModel, about: Mapping[str, Any]) -> MarkovModel:
    """Return a model with the provenance and the calibrated radii that its file contains."""
    provenance = about.get("provenance")
    if not isinstance(provenance, dict | None):
        raise ValueError(f"'provenance' must be an object, got {type(provenance).__name__}")
    try:
        json.dumps(provenance, allow_nan=False)
    except ValueError:
        raise ValueError("'provenance' must not contain infinite numbers or NaN") from None
    model = model if provenance is None else model.with_provenance(provenance)
    radii = about.get("calibrated_radii")
    if radii is None:
        return model
    if not isinstance(radii, dict):
        raise ValueError(f"'calibrated_radii' must be an object, got {type(radii).__name__}")
    return model.with_calibrated_radii(CalibratedRadii.from_dict(radii))


def _read_metadata(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the metadata of a model file, and check its format."""
    text = _get_array(arrays, "about")
    if text.shape != () or text.dtype.kind != "U":
        raise ValueError(f"array 'about' must be a string, got {text.dtype} of shape {text.shape}")
    about = parse_json(text.item())
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        version = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise ValueError(f"format must be {_FORMAT}, got {shorten(version)}")
    # Files of early versions have the same format, and their provenance, for example, under another key.
    unknown = sorted(about.keys() - _METADATA_KEYS)
    if unknown:
        raise ValueError(f"'about' must have known keys only, got {shorten(unknown[0])}")
    return about


def _get_array(arrays: Mapping[str, npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    if name not in arrays:
        raise ValueError(f"array {name!r} is missing")
    return arrays[name]


def _split_neighbours(neighbours: npt.ArrayLike) -> tuple[IntArray, IntArray]:
    pairs = as_integers(neighbours, "neighbours", StateError)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise StateError(f"neighbours must have shape (m, 2), got {pairs.shape}")
    return pairs[:, 0], pairs[:, 1]
