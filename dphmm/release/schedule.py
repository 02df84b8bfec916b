"""A budget that lasts: when to draw and with which epsilon, decided from public things alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.events.cap import rung_of
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.model.point_estimate import expected_distance, within_cell
from dphmm.release.ledger import DAY_SECONDS, exactly
from dphmm.release.noise import StepNoise, distance_after_tables
from dphmm.release.settings import Schedule
from dphmm.release.step import NextRelease, PublicState

_PLACES = 8
"""From how many places the error is followed."""

_FEWEST, _MOST, _WORK = 64, 2048, 1e8
"""For how many steps at least and at most; in between, as many as keep the number of states visited below the last."""

_SETTLED = 0.98
"""The share of the error of someone who knows nothing from which on the curve is known well enough."""

_REST = 256
"""After this number of steps the starting place hardly matters."""


@dataclass(frozen=True)
class Growth:
    """The expected error of a prediction, by the number of steps since the place was known.

    Parameters
    ----------
    errors
        ``(h + 1,)``: after 0, 1, … steps, averaged over places as likely as they are in the long run; it never falls.
    """

    errors: FloatArray

    @classmethod
    def from_model(cls, model: MarkovModel, points: FloatArray, cell: float = 0.0) -> Growth:
        """The curve of a model for measurements ``(N, d)``: from a few places, until the error hardly grows.

        Where these are the centres of cells, the error is at least that within one.

        Where the model varies with time they are left at hours that are spread over a day.
        """
        rest = Belief.first(model, 0).predict(model, _REST, 0)
        masses = rest.probabilities
        levels = (np.arange(_PLACES) + 0.5) / _PLACES
        starts = np.searchsorted(np.cumsum(masses), levels * masses.sum()).clip(max=model.size - 1).tolist()
        day = DAY_SECONDS / (model.step_seconds or DAY_SECONDS)
        slots = [int(day * number / _PLACES) for number in range(_PLACES)]
        beliefs = [
            Belief.first(model, slot, np.eye(1, model.size, start)[0])
            for slot, start in zip(slots, starts, strict=True)
        ]
        settled, errors = _SETTLED * expected_distance(rest.probabilities, points, cell), [within_cell(cell)]
        for step in range(int(np.clip(_WORK / (_PLACES * model.size), _FEWEST, _MOST))):
            beliefs = [one.predict(model, 1, slot + step) for one, slot in zip(beliefs, slots, strict=True)]
            reached = sum(expected_distance(one.probabilities, points, cell) for one in beliefs) / _PLACES
            errors.append(max(reached, errors[-1]))
            if errors[-1] >= settled:
                break
        return cls(np.array(errors))

    @property
    def _slope(self) -> float:
        """How much the error still grows in a step where the curve ends."""
        half = len(self.errors) // 2
        return float(self.errors[-1] - self.errors[half]) / max(1, len(self.errors) - 1 - half)

    def step_of(self, error: float) -> float:
        """After how many steps the error is so large; beyond the curve's end as far as it grew there last."""
        if error > self.errors[-1]:
            beyond = float(error - self.errors[-1]) / max(self._slope, 1e-12)
            return len(self.errors) - 1 + min(beyond, float(len(self.errors)))
        first: int = int(np.searchsorted(self.errors, error))
        if first == 0:
            return 0.0
        low, high = float(self.errors[first - 1]), float(self.errors[first])
        return first - 1 + (error - low) / (high - low)

    def steps_between(self, low: float, high: float) -> float:
        """In how many steps the error grows from one level to another."""
        return max(0.0, self.step_of(high) - self.step_of(low))

    def cycle(self, low: float, high: float) -> tuple[float, float]:
        """The steps from one level to a higher one, at least one, and the error saved meanwhile against the higher."""
        start, end = self.step_of(low), self.step_of(high)
        if end - start <= 1.0:
            return 1.0, high - low
        inner = np.arange(np.floor(start) + 1, np.ceil(end))
        times = np.concatenate([[start], inner, [end]])
        known = np.interp(times, np.arange(len(self.errors)), self.errors)
        known[0], known[-1] = low, high
        return end - start, float(np.trapezoid(np.maximum(high - known, 0.0), times))


NODES = 96
"""For how many draws the error that a release would leave is worked out."""

_SEED = 7
"""Of the draws for which it is worked out: the same ones for every person, and none that is ever released."""

_STATES = 768
"""By how many states a belief is represented there at most."""

_LADDER = (0, 8, 16, 24, 32, 40, 48)
"""Budgets tried, in sixteenths of an octave below the greatest: a factor of the square root of two apart."""

_NEGLIGIBLE = 1e-6
"""The mass of states that is left out of it."""


@dataclass(frozen=True)
class Outlook:
    """What a release with some budget would do to the estimate.

    Parameters
    ----------
    epsilon
        The budget.
    error
        The estimate's expected error after it, averaged over what could be drawn.
    steps
        After how many steps without a release the error would be back where it is now; at least one.
    saved
        The error that it saves meanwhile, summed over the steps.
    """

    epsilon: float
    error: float
    steps: float
    saved: float


class Scheduling:
    """The schedule of an engine's settings at work, for every person whom it releases.

    Before each moment: with ``v`` the expected error of the prediction, a draw with budget ``e`` would take it down to
    ``u(e)``, the mean over what could be drawn (at fixed nodes: a function of the belief alone). Without further draws
    the error grows back to ``v`` in ``T(e)`` steps, along a curve that follows from the model. What is drawn with is
    the budget that saves the most error per epsilon until then, ``sum (v - error) / e``.

    How far outside the region a person may be is left out of all errors: no draw tells.

    *With a target* nothing is drawn unless ``v`` exceeds it. *With a budget for a window* nothing is drawn unless the
    cycle that comes back to ``v`` can be kept up: ``e / T(e)`` is at most the greatest steady rate of spending that
    fits into every window which begins before now and ends later. So the level at which draws happen is about the least
    that can be kept without an hour in which nothing is left.

    Parameters
    ----------
    schedule
        The schedule; None draws at every moment, with all that it may.
    model
        The model.
    points
        ``(N, d)``: what is measured in each state.
    cell
        The side of the cell whose centre that is; 0 where it is a point.
    nodes
        For how many draws the error that a release would leave is worked out.

    Raises
    ------
    ConfigurationError
        When there is a budget for a window and the model does not say how long its steps are.
    """

    def __init__(
        self, schedule: Schedule | None, model: MarkovModel, points: FloatArray, cell: float = 0.0, nodes: int = NODES
    ) -> None:
        self.schedule, self._model, self._points, self._cell, self._nodes = schedule, model, points, cell, nodes
        self.window = 0
        """The steps of a window; 0 where there is no budget for one."""
        if schedule is not None and schedule.window_epsilon is not None:
            if model.step_seconds is None:
                raise ConfigurationError("a budget for a window of time needs a model with step_seconds; give it one")
            self.window = max(1, ceil(schedule.window_seconds / model.step_seconds))
        self._made: WeakKeyDictionary[StepNoise, npt.NDArray[Any]] = WeakKeyDictionary()

    @cached_property
    def growth(self) -> Growth:
        """How fast an estimate gets worse without releases."""
        return Growth.from_model(self._model, self._points, self._cell)

    def limit(self, release: NextRelease) -> NextRelease:
        """A release within the schedule: with the budget that saves most error for it, or with why nothing is drawn.

        Raises
        ------
        InvalidInputError
            When releases were made of whose cost nothing is known.
        """
        schedule = self.schedule
        if schedule is None:
            return release
        level = expected_distance(release.prior.probabilities, self._points, self._cell)
        if level <= (schedule.target_error or 0.0):
            return replace(release, reason="target")
        left, pace = self._rate(release.person, release.steps, schedule.window_epsilon)
        budgets = [rung_of(release.epsilon, rung) for rung in _LADDER]
        if left is not None and pace is not None:
            budgets = [budget for budget in budgets if exactly(budget) <= left]
            longest = self.growth.steps_between(0.0, level)
            budgets = [budget for budget in budgets if budget <= pace * max(longest, 1.0)]
        if not budgets:
            return replace(release, reason="budget")
        best = self._best(release, level, budgets)
        if pace is not None and not (best.saved > 0 and best.epsilon <= pace * best.steps):
            return replace(release, reason="budget")
        return replace(release, epsilon=best.epsilon)

    def _best(self, release: NextRelease, level: float, budgets: Sequence[float]) -> Outlook:
        """The budget that saves the most error per epsilon, from the greatest down for as long as less is better.

        What a draw tells grows with the square of a small budget, so that of two small ones the greater is better.
        """
        best = self.outlook(release, level, budgets[0])
        for budget in budgets[1:]:
            next_one = self.outlook(release, level, budget)
            if next_one.saved / next_one.epsilon <= best.saved / best.epsilon:
                break
            best = next_one
        return best

    def _rate(
        self, person: PublicState, steps: int, budget: float | None
    ) -> tuple[Fraction, float] | tuple[None, None]:
        """What is left for now, and the greatest steady rate that fits every window over now; None without a budget.

        A release at ``s`` counts in windows that end before ``s + W``. So the windows that bind end just before a
        release falls out of them, and ``W`` steps on.
        """
        if budget is None:
            return None, None
        account, whole = person.account, exactly(budget)
        if account is None:
            raise InvalidInputError("what earlier releases cost is not known; resume with it, or replay them")
        now = (account.slot or 0) + steps
        if not person.count:
            now = (account.slot or 0) if person.first is None else person.first
        recent = account.recent(now, self.window)
        used = sum((spent for _, spent in recent), Fraction(0))
        left, rate = whole - used, float(whole) / self.window
        for slot, spent in recent:
            rate = min(rate, float(whole - used) / (slot + self.window - now))
            used -= spent
        return left, rate

    def outlook(self, release: NextRelease, level: float, epsilon: float) -> Outlook:
        """What a release with a budget would do, from a belief whose expected error is ``level``."""
        error = self._error_after(release, epsilon)
        if error >= level:
            return Outlook(epsilon, error, 1.0, 0.0)
        steps, saved = self.growth.cycle(error, level)
        return Outlook(epsilon, error, steps, saved)

    def _error_after(self, release: NextRelease, epsilon: float) -> float:
        """The estimate's expected error after a draw: over all outputs of tables, otherwise at fixed nodes.

        The nodes come from a generator with a seed of its own, so that they are the same for every person, and no
        draw of a release has anything to do with them.
        """
        noise, probabilities = release.noise(epsilon), release.prior.probabilities
        if any(part.table is not None for part in noise.parts):
            return float(np.hypot(distance_after_tables(noise, probabilities), within_cell(self._cell)))
        states, weights = _represented(probabilities, release.plan.constraint, self._points)
        levels = (np.arange(self._nodes) + 0.5) / self._nodes
        true = states[np.searchsorted(np.cumsum(weights), levels * weights.sum()).clip(max=len(states) - 1)]
        values = noise.query.values
        added = self._added(noise)[noise.part_of[true], np.arange(self._nodes)]
        logs, within = noise.log_densities(values[true] + added, states), within_cell(self._cell)
        return _mean_error(logs, weights, self._points[states], within)

    def _added(self, noise: StepNoise) -> npt.NDArray[Any]:
        """What each part of a noise adds at the nodes, ``(parts, n, d)``; kept for as long as the noise is."""
        if noise not in self._made:
            origin = np.zeros_like(noise.query.values[0])
            drawn = [part.sample(origin, np.random.default_rng(_SEED), self._nodes) for part in noise.parts]
            self._made[noise] = np.stack(drawn)
        return self._made[noise]


def _represented(
    probabilities: FloatArray, constraint: npt.NDArray[np.bool_], points: FloatArray
) -> tuple[IntArray, FloatArray]:
    """States that stand for a belief, and their masses: those that matter, or the likeliest of each block of space."""
    weights = np.where(constraint, probabilities, 0.0)
    order = np.flatnonzero(weights >= _NEGLIGIBLE / len(weights))
    if len(order) <= _STATES:
        return np.asarray(order, dtype=np.int64), weights[order]
    low = points[order].min(axis=0)
    extent = points[order].max(axis=0) - low
    side = float(np.prod(np.maximum(extent, 1e-12)) / _STATES) ** (1 / points.shape[1])
    while True:
        blocks = np.unique(np.floor((points[order] - low) / side).astype(np.int64), axis=0, return_inverse=True)[1]
        if blocks.max() < _STATES:
            break
        side *= 1.25
    masses = np.bincount(blocks.ravel(), weights[order])
    by_mass = np.lexsort((-weights[order], blocks.ravel()))
    first = np.concatenate([[True], np.diff(blocks.ravel()[by_mass]) > 0])
    return np.asarray(order[by_mass[first]], dtype=np.int64), np.asarray(masses, dtype=np.float64)


def _mean_error(logs: FloatArray, weights: FloatArray, places: FloatArray, within: float) -> float:
    """The expected distance from the posterior mean, averaged over ``n`` outputs of log likelihoods ``(n, k)``."""
    logs -= logs.max(axis=1, keepdims=True)
    posterior = np.exp(logs) * weights
    posterior /= posterior.sum(axis=1, keepdims=True)
    away = places[None] - (posterior @ places)[:, None]
    return float(np.einsum("nk,nk->", posterior, np.sqrt(np.einsum("nkd,nkd->nk", away, away) + within**2))) / len(logs)
