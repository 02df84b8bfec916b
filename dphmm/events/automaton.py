"""An event compiled for a number of states: which progress follows which, time by time, in every state."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np

from dphmm.arrays import BoolArray, IntArray
from dphmm.errors import EventError
from dphmm.events.event import Event, Progress, States, Verdict

MOST = 512
"""An event that needs more progress states than this at a time is refused."""

LONGEST = 1_000_000
"""And one that needs more than this over all times: its odds would take many minutes."""

Arcs = tuple[tuple[int, int, BoolArray | slice], ...]
"""``(source, target, where)``: which rows add to which, and in which states; a slice, which comes first, is of all."""

Part = tuple[frozenset[States], BoolArray]
"""Some sets of states, and the states ``(N,)`` that lie in these and in no other."""


@dataclass(frozen=True)
class Cut:
    """Which of some progress states are verdicts: they come first, no before yes."""

    yes: slice
    no: slice
    open: slice


@dataclass(frozen=True, eq=False)
class Layer:
    """What a time does to the progress of an event.

    Parameters
    ----------
    before, after
        The progress states before the time and after it, a `Verdict` for those that are decided.
    arcs
        What leads from which to which, and in which states.
    """

    before: tuple[Progress, ...]
    after: tuple[Progress, ...]
    arcs: Arcs = field(repr=False)

    def lift(self, states: IntArray) -> Layer:
        """The same over more states, ``(P,)``, of which each is in one of these."""
        lifted = (where if isinstance(where, slice) else where[states] for *_, where in self.arcs)
        arcs = ((source, target, where) for (source, target, _), where in zip(self.arcs, lifted, strict=True))
        return Layer(self.before, self.after, tuple(arcs))

    @cached_property
    def cut_before(self) -> Cut:
        """Which of those before are verdicts."""
        return _cut(self.before)

    @cached_property
    def cut_after(self) -> Cut:
        """Which of those after are verdicts."""
        return _cut(self.after)


@dataclass(frozen=True, eq=False)
class Automaton:
    """An event over ``N`` states.

    Parameters
    ----------
    event
        The event.
    size
        ``N``.
    layers
        One for each time from the event's first to its last.
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
            When it names a state that does not exist, or needs more than `MOST` progress states at a time, or more
            than `LONGEST` over all times.
        """
        compiler, layers = _Compiler(event, size), list[Layer]()
        progress: tuple[Progress, ...] = (event.start,)
        if event.last - event.first >= LONGEST:
            raise _too_long("steps")
        held = 0
        for time in range(event.first, event.last + 1):
            layer = compiler.layer(time, progress)
            layers.append(layer)
            progress = layer.after
            held += len(progress)
            if held > LONGEST:
                raise _too_long("progress states over all its steps")
        return cls(event, size, tuple(layers))

    def lift(self, states: IntArray) -> Automaton:
        """The same over more states, ``(P,)``, of which each is in one of these."""
        made = {id(layer): layer for layer in self.layers}
        lifted = {key: layer.lift(states) for key, layer in made.items()}
        return Automaton(self.event, len(states), tuple(lifted[id(layer)] for layer in self.layers))

    def happens(self, paths: IntArray) -> BoolArray:
        """Whether the event happens on each of some paths of states ``(n, T)`` from time 0, all beyond its last."""
        progress = np.zeros(len(paths), dtype=np.int64)
        for time, layer in enumerate(self.layers, self.event.first):
            table = np.zeros((len(layer.before), self.size), dtype=np.int64)
            for source, target, where in layer.arcs:
                table[source, where] = target
            progress = table[progress, paths[:, time]]
        yes = self.cut(self.event.last).yes
        return np.asarray((progress >= yes.start) & (progress < yes.stop))

    def layer(self, time: int) -> Layer | None:
        """What a time does to the progress; None where it does nothing."""
        index = time - self.event.first
        return self.layers[index] if 0 <= index < len(self.layers) else None

    def cut(self, time: int) -> Cut:
        """Which progress states after a time are yes, no, and undecided."""
        index = min(time - self.event.first, len(self.layers) - 1)
        return self.layers[index].cut_after if index >= 0 else self.layers[0].cut_before


def _too_long(what: str) -> EventError:
    return EventError(f"the event has more than {LONGEST:,} {what}; give a shorter window")


class _Compiler:
    """What the layers of one event share.

    Parameters
    ----------
    event, size
        As for `Automaton`.
    """

    def __init__(self, event: Event, size: int) -> None:
        self.event, self.size = event, size
        self._parts, self._mask = cache(self._parts_of), cache(self._mask_of)
        self._layers: dict[tuple[object, ...], Layer] = {}
        self._kinds: dict[tuple[object, ...], Layer] = {}

    def layer(self, time: int, before: tuple[Progress, ...]) -> Layer:
        """What a time does to some progress states."""
        key = (before, self.event.kind(time))
        if key not in self._kinds:
            self._kinds[key] = self._compiled(time, before)
        return self._kinds[key]

    def _compiled(self, time: int, before: tuple[Progress, ...]) -> Layer:
        decided = all(isinstance(one, Verdict) for one in before)
        sets = () if decided else tuple(sorted(self.event.sets(time)))
        parts = self._parts(sets)
        targets: list[list[Progress]] = [
            [one] * len(parts)
            if isinstance(one, Verdict)
            else [self.event.step(one, time, within.__contains__) for within, _ in parts]
            for one in before
        ]
        if len({one for row in targets for one in row}) > MOST:
            raise EventError(f"the event needs more than {MOST} progress states at time {time}; make it simpler")
        key = (before, sets, tuple(map(tuple, targets)))
        if key not in self._layers:
            self._layers[key] = self._made(before, targets, [states for _, states in parts])
        return self._layers[key]

    def _parts_of(self, sets: tuple[States, ...]) -> list[Part]:
        """The ways in which states lie within some sets and not in others, each with its states."""
        if not sets:
            return [(frozenset(), np.ones(self.size, dtype=np.bool_))]
        rows, which = np.unique(np.stack([self._mask(one) for one in sets]), axis=1, return_inverse=True)
        which = np.asarray(which).ravel()
        return [
            (frozenset(one for one, within in zip(sets, rows[:, index], strict=True) if within), which == index)
            for index in range(rows.shape[1])
        ]

    def _mask_of(self, states: States) -> BoolArray:
        if states and states[-1] >= self.size:
            raise EventError(f"the event names state {states[-1]}; states are 0 to {self.size - 1}")
        mask = np.zeros(self.size, dtype=np.bool_)
        mask[np.array(states, dtype=np.int64)] = True
        return mask

    @staticmethod
    def _made(before: tuple[Progress, ...], targets: list[list[Progress]], parts: list[BoolArray]) -> Layer:
        after = tuple(sorted({one for row in targets for one in row}, key=_order))
        place = {one: row for row, one in enumerate(after)}
        arcs: list[tuple[int, int, BoolArray | slice]] = []
        for source, row in enumerate(targets):
            for one in dict.fromkeys(row):
                there = [states for target, states in zip(row, parts, strict=True) if target == one]
                where = slice(None) if len(there) == len(parts) else np.any(there, axis=0)
                arcs.append((source, place[one], where))
        return Layer(before, after, tuple(sorted(arcs, key=lambda arc: not isinstance(arc[2], slice))))


def _order(progress: Progress) -> tuple[int, str]:
    """Verdicts first, then by their text: any fixed order does."""
    return (progress.value, "") if isinstance(progress, Verdict) else (2, repr(progress))


def _cut(progress: tuple[Progress, ...]) -> Cut:
    no, yes = Verdict.NO in progress, Verdict.YES in progress
    return Cut(slice(no, no + yes), slice(0, no), slice(no + yes, len(progress)))
