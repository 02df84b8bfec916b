"""Automata of events: an event compiled for a number of states, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import EventError
from dphmm.events.event import Event, Progress, States, Verdict

# The largest number of progress states of an event at a step.
MAX_PROGRESS = 512

# The largest number of progress states over all steps. The odds of larger events would take many minutes.
MAX_TOTAL_PROGRESS = 1_000_000

# Transitions ``(source row, target row, states)`` of the progress. Slices, which mean all states, come first.
Arcs = tuple[tuple[int, int, BoolArray | slice], ...]

# Sets of states, and the mask ``(N,)`` of the states that lie in exactly these sets.
Part = tuple[frozenset[States], BoolArray]


@dataclass(frozen=True)
class ProgressSlices:
    """Slices of the verdicts and the undecided progress states among sorted progress states.

    Verdicts come first, no before yes.
    """

    yes: slice
    no: slice
    open: slice


@dataclass(frozen=True, eq=False)
class Layer:
    """The effect of one step on the progress of an event.

    Parameters
    ----------
    before, after
        Progress states before and after the step. Decided ones are a `Verdict`.
    arcs
        Transitions of the progress, by state.
    """

    before: tuple[Progress, ...]
    after: tuple[Progress, ...]
    arcs: Arcs = field(repr=False)

    def lift(self, states: IntArray) -> Layer:
        """Return the layer over more states. ``states``, ``(P,)``, maps each to a present one."""
        lifted = (where if isinstance(where, slice) else where[states] for *_, where in self.arcs)
        arcs = ((source, target, where) for (source, target, _), where in zip(self.arcs, lifted, strict=True))
        return Layer(self.before, self.after, tuple(arcs))

    @cached_property
    def slices_before(self) -> ProgressSlices:
        """The slices of the progress states before the step."""
        return _slice_by_verdict(self.before)

    @cached_property
    def slices_after(self) -> ProgressSlices:
        """The slices of the progress states after the step."""
        return _slice_by_verdict(self.after)


@dataclass(frozen=True, eq=False)
class Automaton:
    """An event compiled over ``N`` states.

    Parameters
    ----------
    event
        The event.
    size
        ``N``.
    layers
        One layer for each step from the event's first to its last.
    """

    event: Event
    size: int
    layers: tuple[Layer, ...] = field(repr=False)

    @classmethod
    def compile(cls, event: Event, size: int) -> Automaton:
        """Compile an event.

        Raises
        ------
        EventError
            If it contains a state that does not exist, or needs more than `MAX_PROGRESS` progress states at a step or
            `MAX_TOTAL_PROGRESS` over all steps.
        """
        # Construct the automaton step by step: only progress that a path can reach is built.
        compiler = _Compiler(event, size)
        layers = list[Layer]()
        progress: tuple[Progress, ...] = (event.start,)
        if event.last - event.first >= MAX_TOTAL_PROGRESS:
            raise _build_too_long_error("steps")
        num_progress = 0
        for step in range(event.first, event.last + 1):
            layer = compiler.get_layer(step, progress)
            layers.append(layer)
            progress = layer.after
            num_progress += len(progress)
            if num_progress > MAX_TOTAL_PROGRESS:
                raise _build_too_long_error("progress states")
        return cls(event, size, tuple(layers))

    def lift(self, states: IntArray) -> Automaton:
        """Return the automaton over more states. ``states``, ``(P,)``, maps each to a present one."""
        distinct = {id(layer): layer for layer in self.layers}
        lifted = {key: layer.lift(states) for key, layer in distinct.items()}
        return Automaton(self.event, len(states), tuple(lifted[id(layer)] for layer in self.layers))

    def happens(self, paths: IntArray) -> BoolArray:
        """Return whether the event happens on each path of states ``(n, T)``.

        Paths start at step 0 and extend beyond the event's last step.
        """
        progress = np.zeros(len(paths), dtype=np.int64)
        for step, layer in enumerate(self.layers, self.event.first):
            table = np.zeros((len(layer.before), self.size), dtype=np.int64)
            for source, target, where in layer.arcs:
                table[source, where] = target
            progress = table[progress, paths[:, step]]
        yes = self.get_slices(self.event.last).yes
        return np.asarray((progress >= yes.start) & (progress < yes.stop))

    def get_layer(self, step: int) -> Layer | None:
        """Return the layer of a step. None if the step has no effect."""
        index = step - self.event.first
        return self.layers[index] if 0 <= index < len(self.layers) else None

    def get_slices(self, step: int) -> ProgressSlices:
        """Return the slices of the progress states after a step."""
        index = min(step - self.event.first, len(self.layers) - 1)
        return self.layers[index].slices_after if index >= 0 else self.layers[0].slices_before


def _build_too_long_error(unit: str) -> EventError:
    return EventError(f"the event must have at most {MAX_TOTAL_PROGRESS:,} {unit}; use a shorter window")


class _Compiler:
    """The shared state of the layers of one event.

    Parameters
    ----------
    event, size
        Arguments of `Automaton`.
    """

    def __init__(self, event: Event, size: int) -> None:
        self.event = event
        self.size = size
        self._parts, self._mask = cache(self._partition_states), cache(self._get_mask)
        self._layers: dict[tuple[object, ...], Layer] = {}
        self._layers_by_signature: dict[tuple[object, ...], Layer] = {}

    def get_layer(self, step: int, before: tuple[Progress, ...]) -> Layer:
        """Return the layer of a step for given progress states."""
        key = (before, self.event.step_signature(step))
        if key not in self._layers_by_signature:
            self._layers_by_signature[key] = self._build_layer(step, before)
        return self._layers_by_signature[key]

    def _build_layer(self, step: int, before: tuple[Progress, ...]) -> Layer:
        decided = all(isinstance(state, Verdict) for state in before)
        sets = () if decided else tuple(sorted(self.event.sets(step)))
        parts = self._parts(sets)
        targets: list[list[Progress]] = [
            [state] * len(parts)
            if isinstance(state, Verdict)
            else [self.event.advance(state, step, within.__contains__) for within, _ in parts]
            for state in before
        ]
        if len({state for row in targets for state in row}) > MAX_PROGRESS:
            raise EventError(
                f"the event must need at most {MAX_PROGRESS} progress states at a step, got more at step {step}; "
                "simplify it"
            )
        # Steps with the same effect share one layer, because masks dominate the memory of a long window.
        key = (before, sets, tuple(map(tuple, targets)))
        if key not in self._layers:
            self._layers[key] = self._make_layer(before, targets, [states for _, states in parts])
        return self._layers[key]

    def _partition_states(self, sets: tuple[States, ...]) -> list[Part]:
        """Return the parts of the states that lie in the same sets."""
        if not sets:
            return [(frozenset(), np.ones(self.size, dtype=np.bool_))]
        # States in the same sets lead to the same progress, so a step is computed once for each part.
        rows, row_of_state = np.unique(np.stack([self._mask(members) for members in sets]), axis=1, return_inverse=True)
        row_of_state = np.asarray(row_of_state).ravel()
        return [
            (
                frozenset(members for members, within in zip(sets, rows[:, index], strict=True) if within),
                row_of_state == index,
            )
            for index in range(rows.shape[1])
        ]

    def _get_mask(self, states: States) -> BoolArray:
        if states and states[-1] >= self.size:
            raise EventError(f"states of an event must be from 0 to {self.size - 1}, got {states[-1]}")
        mask = np.zeros(self.size, dtype=np.bool_)
        mask[np.array(states, dtype=np.int64)] = True
        return mask

    @staticmethod
    def _make_layer(before: tuple[Progress, ...], targets: list[list[Progress]], parts: list[BoolArray]) -> Layer:
        after = tuple(sorted({state for row in targets for state in row}, key=_get_sort_key))
        row_of = {state: row for row, state in enumerate(after)}
        arcs: list[tuple[int, int, BoolArray | slice]] = []
        for source, row in enumerate(targets):
            for state in dict.fromkeys(row):
                masks = [states for target, states in zip(row, parts, strict=True) if target == state]
                where = slice(None) if len(masks) == len(parts) else np.any(masks, axis=0)
                arcs.append((source, row_of[state], where))
        return Layer(before, after, tuple(sorted(arcs, key=lambda arc: not isinstance(arc[2], slice))))


def _get_sort_key(progress: Progress) -> tuple[int, str]:
    """Sort verdicts first, then by text. Any fixed order would do."""
    return (progress.value, "") if isinstance(progress, Verdict) else (2, repr(progress))


def _slice_by_verdict(progress: tuple[Progress, ...]) -> ProgressSlices:
    no = Verdict.NO in progress
    yes = Verdict.YES in progress
    return ProgressSlices(slice(no, no + yes), slice(0, no), slice(no + yes, len(progress)))
