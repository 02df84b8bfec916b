"""A budget that lasts: when to draw and with which epsilon, decided from public things alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, inf
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
from dphmm.release.noise import StepNoise, distance_after_tables, evenly_spread
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
        starts = evenly_spread(masses, _PLACES).tolist()
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


NODES = 96
"""For how many draws the error that a release would leave is worked out."""

_SEED = 7
"""Of the draws for which it is worked out: the same ones for every person, and none that is ever released."""

_STATES = 768
"""By how many states a belief is represented there at most."""

_LADDER = range(0, 88, 8)
"""Budgets tried, in sixteenths of an octave below the greatest: a factor of the square root of two apart."""

_DOWN_TO = 0.6
"""What a draw is to leave of the expected error. Measured on people not seen: `scripts/benchmark frontier`."""

_EAGER = 1.3
"""How much more than an even share of what is left a moment may have: what is not drawn with in time is lost."""

_PART = 0.5
"""Which part of the budget that a draw should have it must have at least, where less than that is left."""

_UNKNOWN, _UNKNOWN_WEIGHT = 24.0, 0.25
"""How many moments follow one within a window, where nothing is known of a person, and how many of theirs that equals.
"""

REMEMBERED, _MOMENTS = 28, 2048
"""How many windows back it is looked how often a person reported, and at how many moments at most."""

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
    """

    epsilon: float
    error: float
    steps: float


class Arrivals:
    """How often a person reports, learned from the moments so far, which are public.

    Parameters
    ----------
    slots
        ``(n,)``: the time steps of the moments before the present one, increasing.
    now
        The present one.
    window
        The steps of a window.
    """

    def __init__(self, slots: IntArray, now: int, window: int) -> None:
        self._slots, self._now, self._window = slots, now, window

    def after(self, steps: float) -> float:
        """How many moments are expected within some steps after one: as many as there were after those so far.

        One of which less time has passed counts for the part of it that has.
        """
        slots = self._slots
        counts = np.searchsorted(slots, slots + steps, side="right") - 1 - np.arange(len(slots))
        seen = np.minimum(1.0, (self._now - slots) / max(steps, 1.0))
        unknown = _UNKNOWN_WEIGHT * _UNKNOWN * steps / self._window
        return float((counts.sum() + unknown) / (seen.sum() + _UNKNOWN_WEIGHT))

    def served(self, steps: float) -> float:
        """How many moments a draw serves that lasts for some steps, with the present one: as have just been, or more.

        Where reports come in bursts, those of the last steps tell more than the mean.
        """
        just = np.count_nonzero(self._slots > self._now - steps)
        return 1.0 + max(float(just), self.after(steps))


@dataclass(frozen=True)
class Pace:
    """What a budget for a window allows of now.

    Parameters
    ----------
    left
        What is left for now.
    each
        What each of the moments to come may have, in every window that begins before now.
    arrivals
        How often the person reports; None without a budget.
    saved
        How many moments of the window, with the present one, there were since the last draw.
    """

    left: Fraction | float = inf
    each: float = inf
    arrivals: Arrivals | None = None
    saved: int = 1

    def over(self, steps: float) -> float:
        """The most that a draw may cost which lasts for some steps: what was saved, or what the moments have it serves.

        Where an error is as large as it gets soon after a draw, no draw lasts until the next can be paid for.
        """
        return self.each if self.arrivals is None else self.each * max(self.saved, self.arrivals.served(steps))


_GROWTHS: WeakKeyDictionary[MarkovModel, list[tuple[FloatArray, float, Growth]]] = WeakKeyDictionary()
"""What engines of one model have in common: measurements, the size of a cell, and the curve."""


class Scheduling:
    """The schedule of an engine's settings at work, for every person whom it releases.

    Before each moment: with ``v`` the expected error of the prediction, a draw with budget ``e`` would take it down to
    ``u(e)``, the mean over what could be drawn (at fixed nodes: a function of the belief alone). Without further draws
    the error grows back to ``v`` in ``T(e)`` steps, along a curve that follows from the model. Drawn is seldom and
    strongly: what a draw tells grows with the square of a small budget, and noise that is drawn again and again for
    somebody who stays averages out in hindsight.

    How far outside the region a person may be is left out of all errors: no draw tells.

    *With a target* nothing is drawn unless ``v`` exceeds it. The budget is then the least that takes the error down to
    0.6 of the target, or all that a release may have.

    *With a budget for a window* the least ``e`` that takes the error down to ``0.6 v`` is drawn with where it can be
    kept up: ``e`` is at most what the moments that it serves, until the error is back at ``v``, may have together, or
    those since the last draw. How many come in some time is learned from those so far (`Arrivals`), and what each may
    have is the least, over all windows which begin before now and end later, of what is left in them by the moments
    that they will hold. Where one moment's share is more than ``e``, it is the share. What a window may cost is looked
    at before a draw all the same, in exact numbers.

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
        self._last: tuple[Belief, npt.NDArray[np.bool_], tuple[IntArray, FloatArray]] | None = None

    @cached_property
    def growth(self) -> Growth:
        """How fast an estimate gets worse without releases."""
        known = _GROWTHS.setdefault(self._model, [])
        for points, cell, made in known:
            if cell == self._cell and np.array_equal(points, self._points):
                return made
        known.append((self._points, self._cell, Growth.from_model(self._model, self._points, self._cell)))
        return known[-1][2]

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
        level, target = expected_distance(release.prior.probabilities, self._points, self._cell), schedule.target_error
        if level <= (target or 0.0):
            return replace(release, reason="target")
        pace = self._pace(release.person, release.steps, schedule.window_epsilon)
        if not pace.left:
            return replace(release, reason="budget")
        budgets = [rung_of(release.epsilon, rung) for rung in _LADDER]
        best = self._least(release, level, _DOWN_TO * (target or level), budgets)
        rest = next((budget for budget in budgets if exactly(budget) <= pace.left), 0.0)
        if best.epsilon > rest >= _PART * best.epsilon:
            best = self.outlook(release, level, rest)
        if best.epsilon > rest or best.epsilon > pace.over(best.steps):
            return replace(release, reason="budget")
        share = next((one for one in budgets if one <= min(pace.each, rest)), 0.0) if target is None else 0.0
        return replace(release, epsilon=max(best.epsilon, share))

    def _least(self, release: NextRelease, level: float, goal: float, budgets: Sequence[float]) -> Outlook:
        """The least budget of some, the greatest first, after which the error is down to a goal; else the greatest."""
        best, low, high = self.outlook(release, level, budgets[0]), 0, len(budgets)
        while best.error <= goal and high - low > 1:
            middle = (low + high) // 2
            look = self.outlook(release, level, budgets[middle])
            if look.error <= goal:
                low, best = middle, look
            else:
                high = middle
        return best

    def _pace(self, person: PublicState, steps: int, budget: float | None) -> Pace:
        """What the windows allow that begin before now and end later.

        A release at ``s`` counts in windows that end before ``s + W``. So the windows that bind end just before a
        release falls out of them, and ``W`` steps on.
        """
        if budget is None:
            return Pace()
        account, whole = person.account, exactly(budget)
        if account is None:
            raise InvalidInputError("what earlier releases cost is not known; resume with it, or replay them")
        now = (account.slot or 0) + steps
        if not person.count:
            now = (account.slot or 0) if person.first is None else person.first
        moments = account.moments(now, REMEMBERED * self.window)
        arrivals = Arrivals(moments[moments < now][-_MOMENTS:], now, self.window)
        recent = account.recent(now, self.window)
        used = sum((spent for _, spent in recent), Fraction(0))
        left, each = whole - used, float(whole) / (1.0 + arrivals.after(self.window))
        for slot, spent in recent:
            each = min(each, float(whole - used) / (1.0 + arrivals.after(slot + self.window - now)))
            used -= spent
        since = recent[-1][0] if recent else now - self.window
        return Pace(left, _EAGER * each, arrivals, 1 + int(np.count_nonzero((moments > since) & (moments < now))))

    def outlook(self, release: NextRelease, level: float, epsilon: float) -> Outlook:
        """What a release with a budget would do, from a belief whose expected error is ``level``."""
        error = self._error_after(release, epsilon)
        return Outlook(epsilon, error, max(1.0, self.growth.steps_between(error, level)))

    def _error_after(self, release: NextRelease, epsilon: float) -> float:
        """The estimate's expected error after a draw: over all outputs of tables, otherwise at fixed nodes.

        The nodes come from a generator with a seed of its own, so that they are the same for every person, and no
        draw of a release has anything to do with them.
        """
        noise, probabilities = release.noise(epsilon), release.prior.probabilities
        if any(part.table is not None for part in noise.parts):
            return float(np.hypot(distance_after_tables(noise, probabilities), within_cell(self._cell)))
        states, weights = self._represented(release)
        true = states[evenly_spread(weights, self._nodes)]
        values = noise.query.values
        added = self._added(noise)[noise.part_of[true], np.arange(self._nodes)]
        logs, within = noise.log_densities(values[true] + added, states), within_cell(self._cell)
        return _mean_error(logs, weights, self._points[states], within)

    def _represented(self, release: NextRelease) -> tuple[IntArray, FloatArray]:
        """States that stand for a belief; kept for the budgets that are tried with it."""
        last = self._last
        if last is None or last[0] is not release.prior or last[1] is not release.plan.constraint:
            constraint = release.plan.constraint
            found = _represented(release.prior.probabilities, constraint, self._points)
            self._last = last = (release.prior, constraint, found)
        return last[2]

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
        cells = np.floor((points[order] - low) / side).astype(np.int64)
        names = np.ravel_multi_index(tuple(cells.T), tuple(cells.max(axis=0) + 1))
        blocks = np.unique(names, return_inverse=True)[1]
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
