"""Engines for the tests of sessions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.release.step_noise import StepNoise
from tests.running_example import F, build_graph

STICKY = np.full((6, 6), 0.04) + 0.76 * np.eye(6)


def make_engine(
    rng=None, *, kind=Releaser, matrix=STICKY, policy=None, f=F, epsilon=0.5, step=None, initial=None, **more
):
    start = np.full(6, 1 / 6) if initial is None else np.array(initial)
    return kind(MarkovModel(matrix, start, step_seconds=step), f, policy or build_graph(), epsilon, rng=rng, **more)


class CountingReleaser(Releaser):
    """A releaser that counts its draws."""

    draws = 0

    def draw(self, step, state):
        self.draws += 1
        return super().draw(step, state)


class _Fixed:
    """Noise with predetermined draws for every true state, in lattice steps for exact noise."""

    def __init__(self, whole: StepNoise, places: list[tuple[float, float]]) -> None:
        self.whole, self.places = whole, places

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def draw(self, state, source, around=None):
        place = np.array(self.places.pop(0))
        return place if self.whole.query.values.dtype.kind == "f" else np.rint(1000 * place).astype(np.int64)


class FixedReleaser(Releaser):
    """A releaser with predetermined draws."""

    places: list[tuple[float, float]]

    def draw(self, plan, state):
        return super().draw(replace(plan, noise=_Fixed(plan.noise, self.places)), state)


class LeakingReleaser(FixedReleaser):
    """A broken releaser: the true state enters the belief."""

    def draw(self, step, state):
        record = super().draw(step, state)
        nudge = np.zeros(6)
        nudge[state] = 1e-12
        self.filter_state.advance(self.belief.update(nudge), self.filter_state.count)
        return record


def with_policy(*edges: tuple[int, int]) -> PolicyGraph:
    return PolicyGraph.from_edges(6, edges)
