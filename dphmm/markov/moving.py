"""How masses come from one observation to the next: by one matrix throughout, or by that of each step's class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dphmm.arrays import IntArray
from dphmm.markov.flow import Flow
from dphmm.markov.masses import Masses

Runs = Callable[[int], Sequence[tuple[int, int]]]
"""A time → the classes of the steps before its observation and how many there are of each, in order."""


@dataclass(frozen=True, eq=False)
class Moving:
    """The way to each of ``T`` observations, in the order of a pass.

    Parameters
    ----------
    flows
        What takes masses one step on, for each class of time.
    steps
        ``(T,)``: how many steps there are before each observation; 0 before the first of a pass.
    classes
        ``(T,)``: the class of the step before an observation, where there is one step.
    runs
        The classes of the steps before any observation; left out, all are of class 0.
    long
        What takes masses through the steps before an observation where there are many of them, each of its class.
    """

    flows: tuple[Flow, ...]
    steps: IntArray
    classes: IntArray = field(repr=False)
    runs: Runs | None = None
    long: Callable[[Masses, int], Masses] | None = None

    @classmethod
    def alike(cls, flow: Flow, steps: IntArray) -> Moving:
        """One matrix for all steps."""
        return cls((flow,), steps, np.zeros(len(steps), dtype=np.int64))

    def carry(self, masses: Masses, t: int) -> Masses:
        """The masses before observation ``t``, of those after the one before."""
        if self.long is not None and self.steps[t] > 1:
            return self.long(masses, t)
        for number, count in self.before(t):
            masses = self.flows[number].carry(masses, count)
        return masses

    def before(self, t: int) -> Sequence[tuple[int, int]]:
        """The classes of the steps before observation ``t`` and how many there are of each, in order."""
        return [(0, int(self.steps[t]))] if self.runs is None else self.runs(t)

    def stretch(self, t: int) -> tuple[int, int]:
        """How many observations from ``t`` on are one step of one class after the one before; and the class."""
        if self.steps[t] != 1:
            return 0, 0
        ends = self._ends
        return int(ends[np.searchsorted(ends, t, side="right")]) - t, int(self.classes[t])

    @cached_property
    def _ends(self) -> IntArray:
        """Where stretches end, ascending."""
        alone = self.steps != 1
        changes = alone[1:] | alone[:-1] | (np.diff(self.classes) != 0)
        return np.append(np.flatnonzero(changes) + 1, len(self.steps))
