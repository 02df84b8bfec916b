"""The paper's own extensions of the Markov model: transitions that vary with the clock, and a second order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_distribution, as_floats, content_hash, locked
from dphmm.errors import ConfigurationError, InvalidInputError, StateError, StochasticError
from dphmm.markov.contexts import Contexts
from dphmm.markov.days import Days, times_of
from dphmm.markov.flow import Flow
from dphmm.markov.masses import Masses
from dphmm.markov.model import EXTENDED_FORMAT, MarkovModel
from dphmm.markov.moving import Moving
from dphmm.markov.rhythm import Rhythm
from dphmm.space.states import StateSpace
from dphmm.space.trajectory import microseconds
from dphmm.stochastic import MatrixLike, as_stochastic, csr_of_arrays
from dphmm.tables.output import new_file
from dphmm.tables.values import as_number

_LONGEST = 100 * 366 * 86_400_000_000
"""No gap is longer than a hundred years, in microseconds."""
_WEEK = 7 * 86_400_000_000
_AT_ONCE = 8
"""At most so many days are taken at once."""
_RESTS = 40
"""After so many days of walking nothing changes, or nearly."""
_REST = 64 * float(np.finfo(np.float64).eps)
"""What a week may change a mass by, relatively, where nothing changes from week to week any more."""


@checked
class ExtendedModel(MarkovModel):
    """A Markov model whose transitions vary with public classes of time, or look back two steps, or both.

    It goes wherever a `MarkovModel` goes whose one matrix is not asked for: `transition` refuses. With a `rhythm`, the
    move into the step that ends at slot ``t`` is made by the matrix of that step's class, so that whoever uses the
    model has to say when the first step is.

    In a release of second order the belief is over pairs of states, and everything else over states: the constraint set
    holds the states that some possible pair ends in, and the policy, its repair and the promise are about the current
    state. So two pairs that end in one state hide nobody, and what is said of an edge ``jk`` holds for every pair that
    ends in j and every one that ends in k, whatever came before.

    Parameters
    ----------
    transitions
        One matrix for each class of the rhythm, or one alone without one: ``(N, N)``, or ``(P, P)`` over contexts.
    starts
        ``(K, N)``: the distribution of the first state, for each class of its step.
    states, step_seconds
        As for `MarkovModel`.
    rhythm
        The classes; left out, one matrix serves all steps.
    contexts
        For the second order: which pairs of states the chain tells apart. Its states are then contexts, of which each
        is in one state; measurements, policies and releases are of states. Left out, first order.

    Raises
    ------
    StochasticError
        When a matrix or a distribution is none, sizes differ, or a move leads to a context that does not follow.
    ConfigurationError
        When there is not one matrix for each class, or the rhythm's step is not the model's.
    """

    def __init__(
        self,
        transitions: Sequence[MatrixLike],
        starts: npt.ArrayLike,
        states: StateSpace | None = None,
        step_seconds: float | None = None,
        rhythm: Rhythm | None = None,
        contexts: Contexts | None = None,
    ) -> None:
        count = 1 if rhythm is None else rhythm.count
        if len(transitions) != count:
            raise ConfigurationError(
                f"there are {len(transitions)} matrices for {count} classes of time; give one each"
            )
        if rhythm is not None and rhythm.step_seconds != step_seconds:
            raise ConfigurationError(
                f"the classes of time are of steps of {rhythm.step_seconds:g} s, the model's are {step_seconds} s; "
                "give one step"
            )
        name = "transition matrix" if count == 1 else "transition matrix {}"
        made = [locked(as_stochastic(one, name.format(i), compressed=True)) for i, one in enumerate(transitions)]
        first = as_floats(starts, "starts", StochasticError)
        chain = int(made[0].shape[0])
        size = chain if contexts is None else contexts.size
        if first.ndim != 2 or len(first) != count:
            raise StochasticError(f"starts have shape {first.shape}; give one distribution for each of {count} classes")
        if {int(one.shape[0]) for one in made} != {chain if contexts is None else len(contexts)}:
            raise StochasticError("transition matrices differ in size, or are not of the contexts; give one size")
        if states is not None and states.size != size:
            raise StateError(f"the space has {states.size} states and the model {size}; they must agree")
        if step_seconds is not None:
            microseconds(step_seconds, "step_seconds")
        if contexts is not None:
            for one in made:
                contexts.check(one)
        begun = locked(np.array([as_distribution(row, size) for row in first]))
        shares = np.ones(1) if rhythm is None else rhythm.shares
        vars(self).update(
            transitions=tuple(made),
            starts=begun,
            initial=locked(shares @ begun),
            states=states,
            step_seconds=step_seconds,
            rhythm=rhythm,
            _contexts=contexts,
        )

    transitions: tuple[csr_array, ...]
    """The matrices by class, CSR without stored zeros."""
    starts: FloatArray
    """The distribution of the first state by class, ``(K, N)``. `initial` is its average over a week."""
    rhythm: Rhythm | None
    _contexts: Contexts | None

    @property
    def contexts(self) -> Contexts | None:
        """What the chain of second order tells apart."""
        return self._contexts

    @property
    def transition(self) -> csr_array:
        """Refuses: there is no one matrix of moves between states.

        Raises
        ------
        ConfigurationError
            Always.
        """
        raise ConfigurationError(
            f"the model {self.in_words}, and this needs one matrix of moves between states; learn a model without "
            "--by and --order"
        )

    @property
    def in_words(self) -> str:
        """How the model differs from one of first order with one matrix."""
        said = [f"has a matrix for each of {self.rhythm.count} classes of time"] if self.rhythm else []
        return " and ".join(said + (["looks back two steps"] if self.contexts else [])) or "is of the extended kind"

    @property
    def size(self) -> int:
        """The number of states ``N``."""
        return len(self.initial)

    @property
    def chain_size(self) -> int:
        """The number of states of the chain: of contexts, for the second order."""
        return int(self.transitions[0].shape[0])

    @property
    def possible_moves(self) -> int:
        """How many moves of the chain are possible, over all classes of time."""
        return sum(one.nnz for one in self.transitions)

    @cached_property
    def structure(self) -> csr_array:
        """Which moves between states are possible at some time, as a boolean matrix ``(N, N)``."""
        found = self.transitions[0].astype(np.bool_)
        for one in self.transitions[1:]:
            found = found + one.astype(np.bool_)
        return locked(csr_array(found) if self.contexts is None else self.contexts.moves(csr_array(found)))

    @cached_property
    def flows(self) -> tuple[Flow, ...]:
        """What takes masses one step forwards, by class."""
        alike = None if self.contexts is None else self.contexts.last
        brief = len(self.transitions) > 1
        return tuple(Flow(one.tocsc().T, turned=one, alike=alike, brief=brief) for one in self.transitions)

    @cached_property
    def flows_back(self) -> tuple[Flow, ...]:
        """What takes weights one step back, by class."""
        return tuple(Flow(one, ahead) for one, ahead in zip(self.transitions, self.flows, strict=True))

    @cached_property
    def content_hash(self) -> str:
        """A hash of everything: matrices, starts, states, step, classes of time and pairs."""
        parts: list[Any] = []
        for one in self.transitions:
            matrix = one.sorted_indices()
            parts += [matrix.indptr, matrix.indices, matrix.data]
        return content_hash(
            EXTENDED_FORMAT,
            self.size,
            *parts,
            self.starts,
            None if self.states is None else self.states.content_hash,
            self.step_seconds,
            None if self.rhythm is None else self.rhythm.content_hash,
            None if self.contexts is None else self.contexts.content_hash,
        )

    # ---- how masses move -----------------------------------------------------------------------------------------

    def class_of(self, slot: int | None) -> int:
        """The class of a step.

        Raises
        ------
        ConfigurationError
            When the model varies with time and nobody says when the step is.
        """
        return 0 if self.rhythm is None else self.rhythm.class_of(_known(slot))

    def first_masses(self, slot: int | None = None, initial: FloatArray | None = None) -> Masses:
        """The masses of the chain at the first release, in the step that ends at ``slot``."""
        given = self.starts[self.class_of(slot)] if initial is None else initial
        return Masses.of(given if self.contexts is None else self.contexts.begun(given))

    def carry(self, masses: Masses, steps: int, since: int | None = None) -> Masses:
        """Masses of the chain ``steps`` steps after slot ``since``.

        Raises
        ------
        ConfigurationError
            As `class_of`.
        InvalidInputError
            For a gap of more than a hundred years.
        """
        return self._through(masses, steps, since)

    def _through(self, masses: Masses, steps: int, since: int | None, back: bool = False, times: int = 1) -> Masses:
        """Masses some steps after slot ``since``; or, of weights so many steps after it, those at it.

        The gap is one of so many of at least that length.
        """
        if not steps:
            return masses
        if self.rhythm is None:
            return self._far(masses, steps, back, times)
        if steps * microseconds(self.rhythm.step_seconds, "step") > _LONGEST:
            raise InvalidInputError(f"a gap of {steps} steps is longer than a hundred years; begin anew after it")
        parts, done = list(self.rhythm.days(_known(since), steps)), 0
        if not any(kind for _, kind in parts):
            return self._along(masses, steps, since, back)
        for kinds, alike in groupby(parts[::-1] if back else parts, key=lambda part: part[1] is not None):
            group = list(alike)
            count = sum(length for length, _ in group)
            start = _known(since) + (steps - done - count if back else done)
            listed = [kind for _, kind in (reversed(group) if back else group) if kind]
            runs = [(kind, len(list(same))) for kind, same in groupby(listed)]
            far, days = self._days.carry(masses, runs, back, times) if kinds else (masses, 0)
            passed = days * group[0][0]
            masses = self._along(far, count - passed, start if back else start + passed, back)
            done += count
        return masses

    @property
    def _ways(self) -> tuple[Flow, Flow]:
        return self.flows[0], self.flows_back[0]

    def _made_days(self) -> Days:
        if self.rhythm is None:
            return super()._made_days()
        return Days(self.flows, self.rhythm.week, _AT_ONCE, _RESTS, self._often, self._prepared)

    @property
    def _has_powers(self) -> bool:
        return self.rhythm is None and super()._has_powers

    def _along(self, masses: Masses, steps: int, since: int | None, back: bool) -> Masses:
        """Run by run; of a gap forwards by weeks, until nothing changes any more."""
        flows = self.flows_back if back else self.flows
        if self.rhythm is None:
            return flows[0].carry(masses, steps)
        slot, end = _known(since), _known(since) + steps
        step = microseconds(self.rhythm.step_seconds, "step")
        if not back and _WEEK % step == 0 and steps > 2 * (_WEEK // step):
            slot, masses = self._through_weeks(masses, slot, end, _WEEK // step)
        runs = list(self.rhythm.runs(slot, end - slot))
        for number, count in reversed(runs) if back else runs:
            masses = flows[number].carry(masses, count)
        return masses

    def _through_weeks(self, masses: Masses, slot: int, end: int, week: int) -> tuple[int, Masses]:
        """Whole weeks, as many as there are; those that would change nothing are passed over.

        A week whose steps have the classes of the one before, after one that changed no mass, changes none either: what
        a float says of the next week follows from what it says of this one.
        """
        assert self.rhythm is not None, "a rhythm has weeks"
        classes = self.rhythm.classes_of(slot + np.arange(1, week + 1))
        while slot + week <= end:
            later = self._along(masses, week, slot, False).scaled()
            rests = _is_near(later, masses)
            slot, masses = slot + week, later
            while slot + week <= end:
                following = self.rhythm.classes_of(slot + np.arange(1, week + 1))
                same = np.array_equal(following, classes)
                classes = following
                if not (rests and same):
                    break
                slot += week
        return slot, masses

    def moving(self, steps: IntArray, slots: IntArray | None) -> Moving:
        """The way forwards to observations ``(T,)`` in some slots."""
        since, least = self._since(steps, slots), np.sort(steps)

        def long(masses: Masses, t: int) -> Masses:
            return self._through(masses, int(steps[t]), since[t], False, times_of(least, int(steps[t])))

        def runs(t: int) -> Sequence[tuple[int, int]]:
            return self._runs(int(steps[t]), since[t])

        return Moving(self.flows, steps, self._classes(slots, len(steps)), runs, long)

    def moving_back(self, steps: IntArray, slots: IntArray | None) -> Moving:
        """The way backwards, from the last observation on."""
        since, least, length = self._since(steps, slots), np.sort(steps), len(steps)

        def long(masses: Masses, t: int) -> Masses:
            count = int(steps[length - t]) if t else 0
            return self._through(masses, count, since[length - t], True, times_of(least, count)) if t else masses

        def runs(t: int) -> Sequence[tuple[int, int]]:
            return self._runs(int(steps[length - t]), since[length - t])[::-1] if t else ()

        classes = np.roll(self._classes(slots, length)[::-1], 1)
        return Moving(self.flows_back, np.roll(steps[::-1], 1), classes, runs, long)

    def _since(self, steps: IntArray, slots: IntArray | None) -> list[int | None]:
        """The slots of the observations before."""
        if self.rhythm is None:
            return [None] * len(steps)
        if slots is None:
            _known(None)
        assert slots is not None, "refused otherwise"
        return [int(slot) for slot in slots - steps]

    def _classes(self, slots: IntArray | None, length: int) -> IntArray:
        if self.rhythm is None or slots is None:
            return np.zeros(length, dtype=np.int64)
        return self.rhythm.classes_of(slots)

    def _runs(self, steps: int, since: int | None) -> Sequence[tuple[int, int]]:
        return [(0, steps)] if self.rhythm is None else list(self.rhythm.runs(_known(since), steps))

    # ---- files ---------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, overwrite: bool = True, private: bool = False) -> None:
        """Write the model as `MarkovModel.save` does; `MarkovModel.load` reads it. Errors are those of the former."""
        about = {
            "format": EXTENDED_FORMAT,
            "states": None if self.states is None else self.states.to_json(),
            "step_seconds": self.step_seconds,
            "rhythm": None if self.rhythm is None else self.rhythm.to_dict(),
            "order": 1 if self.contexts is None else 2,
            **({} if self.learned is None else {"learned": self.learned}),
        }
        arrays: dict[str, npt.NDArray[Any]] = {"about": np.array(json.dumps(about)), "starts": self.starts}
        if self.contexts is not None:
            arrays["pairs"] = self.contexts.pairs
        for i, one in enumerate(self.transitions):
            arrays |= {f"data_{i}": one.data, f"indices_{i}": one.indices, f"indptr_{i}": one.indptr}
        with new_file(path, overwrite, private) as part, part.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays, **self._prepared_arrays())

    @classmethod
    def from_arrays(cls, about: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> ExtendedModel:
        """The model that `save` wrote, of what a file holds.

        Raises
        ------
        ValueError
            When it is something else.
        """
        if "starts" not in arrays:
            raise ValueError("there is no array 'starts'")
        starts, order, described, step = (
            arrays["starts"],
            about.get("order"),
            about.get("states"),
            about.get("step_seconds"),
        )
        if starts.ndim != 2 or not starts.size or order not in (1, 2):
            raise ValueError(f"'starts' have shape {starts.shape} and the order is {order!r:.20}")
        size = int(starts.shape[1])
        if order == 2 and "pairs" not in arrays:
            raise ValueError("there is no array 'pairs'")
        contexts = Contexts(size, arrays["pairs"]) if order == 2 else None
        rhythm = None if about.get("rhythm") is None else Rhythm.from_dict(about["rhythm"])
        if step is not None:
            as_number(step, "step_seconds")
        chain = size if contexts is None else len(contexts)
        matrices = []
        for i in range(len(starts)):
            parts = {name: arrays.get(f"{name}_{i}") for name in ("data", "indices", "indptr")}
            if any(part is None for part in parts.values()):
                raise ValueError(f"there is no array of matrix {i}")
            given = {**parts, "format": "csr", "shape": (chain, chain)}
            matrices.append(csr_of_arrays(given, f"transition matrix {i}"))
        states = None if described is None else StateSpace.from_json(described, size)
        return cls(matrices, starts, states, step, rhythm, contexts)

    def __repr__(self) -> str:
        return f"ExtendedModel(states={self.size}, classes={len(self.transitions)}, chain={self.chain_size})"


def _known(slot: int | None) -> int:
    if slot is None:
        raise ConfigurationError(
            "the model varies with the time of day, and nobody said when the first release is; say it, as in "
            "releaser.restart(first=slot)"
        )
    return slot


def _is_near(one: Masses, other: Masses) -> bool:
    """Whether two distributions differ in no mass by more than rounding."""
    if not np.array_equal(one.support, other.support):
        return False
    apart = np.where(one.support, one.exponent - np.where(one.support, other.exponent, 0.0), 0.0)
    shifted = np.ldexp(one.mantissa, np.clip(apart, -8, 8).astype(np.int32))
    return bool((np.abs(shifted - other.mantissa) <= _REST * other.mantissa).all())
