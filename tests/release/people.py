"""Engines for the tests of sessions."""

from __future__ import annotations

import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.release.noise import StepNoise
from tests.running_example import F, graph

STICKY = np.full((6, 6), 0.04) + 0.76 * np.eye(6)


def engine(rng=None, *, kind=Releaser, matrix=STICKY, policy=None, f=F, epsilon=0.5, step=None, initial=None, **more):
    start = np.full(6, 1 / 6) if initial is None else np.array(initial)
    return kind(MarkovModel(matrix, start, step_seconds=step), f, policy or graph(), epsilon, rng=rng, **more)


class CountingReleaser(Releaser):
    """Counts its draws."""

    draws = 0

    def draw(self, step, state):
        self.draws += 1
        return super().draw(step, state)


class _Fixed:
    """Noise whose draws are given, whatever the truth is; in lattice steps for an exact one."""

    def __init__(self, whole: StepNoise, places: list[tuple[float, float]]) -> None:
        self.whole, self.places = whole, places

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def draw(self, state, source, around=None):
        place = np.array(self.places.pop(0))
        return place if self.whole.query.values.dtype.kind == "f" else np.rint(1000 * place).astype(np.int64)


class FixedReleaser(Releaser):
    """Its draws are those it is given."""

    places: list[tuple[float, float]]

    def noise(self, plan, epsilon):
        return _Fixed(super().noise(plan, epsilon), self.places)


class LeakingReleaser(FixedReleaser):
    """The broken twin: the truth enters the belief."""

    def draw(self, step, state):
        record = super().draw(step, state)
        nudge = np.zeros(6)
        nudge[state] = 1e-12
        self.person.advance(self.belief.update(nudge), self.person.count)
        return record


def with_policy(*edges: tuple[int, int]) -> PolicyGraph:
    return PolicyGraph.from_edges(6, edges)
