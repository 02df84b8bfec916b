"""Releases of people who move as a model says, many at once where noise does not depend on what was drawn before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.markov.belief import Belief
from dphmm.markov.extended import ExtendedModel
from dphmm.mechanisms.catalogue import TABLES
from dphmm.release.engine import Releaser
from dphmm.release.noise import ComponentNoise
from dphmm.release.step import StepPlan

_AT_ONCE = 1 << 20
"""Densities of so many pairs of an output and a state are worked out at once."""


class PathReleases:
    """People's releases at a budget, one a step.

    Noise that reaches everywhere rules no state out, so that the possible states, and with them the noise of each step,
    are those of the model alone: the releases of a path are then drawn together. Otherwise the engine goes through them
    one after another.

    Parameters
    ----------
    engine
        The engine.
    epsilon
        The budget.
    steps
        How many releases each person has.
    first
        The time step of the first one, counted from 1970.
    """

    def __init__(self, engine: Releaser, epsilon: float, steps: int, first: int) -> None:
        self.engine, self.epsilon, self.steps, self.first = engine, epsilon, steps, first
        self._plans = plans_along(engine, steps, first)

    def released(self, path: IntArray, rng: np.random.Generator) -> tuple[FloatArray, float, float]:
        """What is known of the releases of a path ``(steps,)``.

        Returns
        -------
        rows
            ``(steps, N)``: log densities in every state, 0 throughout where nothing was drawn.
        spent, withheld
            The sum of the budgets, and the share of the moments without a draw.
        """
        rows = None if self._plans is None else self._together(self._plans, path, rng)
        return self._one_by_one(path, rng) if rows is None else (rows, self.epsilon * self.steps, 0.0)

    def _together(
        self, plans: list[tuple[int, StepPlan]], path: IntArray, rng: np.random.Generator
    ) -> FloatArray | None:
        """The log densities; None where an output ruled out a state that is possible."""
        rows = np.empty((self.steps, self.engine.model.size))
        ends = [start for start, _ in plans[1:]] + [self.steps]
        block = max(1, _AT_ONCE // self.engine.model.size)
        for (start, plan), end in zip(plans, ends, strict=True):
            for at in range(start, end, block):
                part = slice(at, min(at + block, end))
                rows[part] = self._densities(plan, self._drawn(plan, path[part], rng))
                if np.isneginf(rows[part][:, plan.constraint]).any():
                    return None
        return rows

    def _drawn(self, plan: StepPlan, states: IntArray, rng: np.random.Generator) -> npt.NDArray[np.generic]:
        noise, values = self.engine.mechanism(plan, self.epsilon), self.engine.values[states]
        if not isinstance(noise, ComponentNoise):
            return noise.sample(values, rng)
        found, part = np.empty_like(values), noise.part_of[states]
        for number in np.unique(part).tolist():
            found[part == number] = noise.mechanisms[number].sample(values[part == number], rng)
        return found

    def _densities(self, plan: StepPlan, outputs: npt.NDArray[np.generic]) -> FloatArray:
        engine, noise, constraint = self.engine, self.engine.mechanism(plan, self.epsilon), plan.constraint
        if isinstance(noise, ComponentNoise):
            found = engine.query.log_densities(noise, constraint, engine.places, outputs)
        else:
            states = np.flatnonzero(constraint)
            values = engine.values[states]
            found = np.full((len(outputs), len(constraint)), -np.inf)
            logs = noise.log_density(np.repeat(outputs, len(states), axis=0), np.tile(values, (len(outputs), 1)))
            found[:, states] = logs.reshape(len(outputs), -1)
        outside = np.flatnonzero(~constraint)
        if len(outside):
            found[:, outside] = found[:, engine.places.surrogates(outside, constraint)]
        return found

    def _one_by_one(self, path: IntArray, rng: np.random.Generator) -> tuple[FloatArray, float, float]:
        engine, rows, spent, withheld = self.engine.another(rng), [], 0.0, 0
        engine.restart(self.first)
        for state in path.tolist():
            step = engine.prepare(self.epsilon)
            record = engine.draw(step, state)
            rows.append(engine.log_likelihood(step, record.released))
            spent, withheld = spent + record.epsilon, withheld + record.withheld
        return np.array(rows), spent, withheld / self.steps


def plans_along(engine: Releaser, steps: int, first: int) -> list[tuple[int, StepPlan]] | None:
    """The plans of so many releases, one a step, each with the first step that it serves.

    None where they depend on what is drawn: with a δ-location set, caps, a schedule, tables, or a repair that is chosen
    by the belief. What else rules states out (noise on a line) shows in the densities.
    """
    settings, model = engine.settings, engine.model
    if settings.delta is not None or settings.caps or settings.schedule is not None or settings.mechanism in TABLES:
        return None
    belief = Belief.first(model, first)
    found = [(0, engine.plan(belief))]
    for step in range(1, steps):
        before, belief = belief, belief.predict(model, 1, first + step - 1)
        plan = engine.plan(belief)
        if plan.prior is not None:
            return None
        if plan is not found[-1][1]:
            found.append((step, plan))
        elif not isinstance(model, ExtendedModel) and (belief.support == before.support).all():
            break  # and so it stays
    return None if found[0][1].prior is not None else found
