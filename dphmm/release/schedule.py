"""A budget that lasts: when to draw and with which epsilon, decided from public things alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, check_epsilon
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.events.caps import rung_of
from dphmm.markov.belief import Belief
from dphmm.markov.guess import best_guess
from dphmm.markov.model import MarkovModel
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.catalogue import TABLES
from dphmm.release.account import DAY_SECONDS, exactly
from dphmm.release.gain import distance_after_tables
from dphmm.release.growth import Growth
from dphmm.release.noise import ComponentNoise
from dphmm.release.step import PreparedStep, PublicState, Reason, StepPlan
from dphmm.tables.values import shown

if TYPE_CHECKING:
    from dphmm.release.engine import Releaser

Noise = Mechanism | ComponentNoise

_LARGEST = 1e300

NODES = 96
"""For how many draws the error that a release would leave is worked out."""

_SEED = 7
"""Of the draws for which it is worked out: the same ones for everybody, and none that is ever released."""

_STATES = 768
"""By how many states a belief is represented there at most."""

_LADDER = (0, 8, 16, 24, 32, 40, 48)
"""Budgets tried, in sixteenths of an octave below the greatest: a factor of the square root of two apart."""

_NEGLIGIBLE = 1e-6
"""The mass of states that is left out of it."""


@dataclass(frozen=True)
class Schedule:
    """When there is a release at all: as rarely as a target of error, a budget for a window of time, or both, allow.

    A moment without a release has a record all the same, with the prediction in it: that nothing was drawn is decided
    from the public belief alone, and says nothing of where the person is.

    Parameters
    ----------
    target_error
        Draw only where the estimate's expected distance from the truth would exceed this, in the unit of the
        measurements (kilometres for places). Left out, the least that the budget can pay for.
    window_epsilon
        What the budgets of all releases within any window may sum to. Left out, no such bound.
    window_seconds
        How long a window is; a day, unless it is said.

    Raises
    ------
    ConfigurationError
        When neither a target nor a budget is given, or a number is not positive and finite.

    Examples
    --------
    >>> Schedule(target_error=0.5).to_dict()
    {'target_error': 0.5}
    """

    target_error: float | None = None
    window_epsilon: float | None = None
    window_seconds: float = DAY_SECONDS

    def __post_init__(self) -> None:
        if self.target_error is None and self.window_epsilon is None:
            raise ConfigurationError("a schedule is without aim; give a target_error, a window_epsilon, or both")
        for name in ("target_error", "window_epsilon", "window_seconds"):
            value = getattr(self, name)
            if value is None:
                continue
            number = isinstance(value, int | float | np.floating | np.integer | Fraction) and value is not True
            if not number or not 0 < value < _LARGEST:
                raise ConfigurationError(f"{name} is {shown(value)}; give a positive number")
            object.__setattr__(self, name, float(value))
        if self.window_epsilon is not None:
            check_epsilon(self.window_epsilon, "window_epsilon")

    def to_dict(self) -> dict[str, Any]:
        """What was given, as plain JSON values, from which `of` makes it again."""
        found = {"target_error": self.target_error, "window_epsilon": self.window_epsilon}
        if self.window_epsilon is not None:
            found["window_seconds"] = self.window_seconds
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def of(cls, given: Any) -> Schedule | None:
        """A schedule, out of one or of what `to_dict` wrote; None for None.

        Raises
        ------
        ConfigurationError
            When it is neither.
        """
        if given is None or isinstance(given, Schedule):
            return given
        if not isinstance(given, Mapping) or not set(given) <= {"target_error", "window_epsilon", "window_seconds"}:
            raise ConfigurationError(
                f"schedule is {shown(given)}; give a target_error, a window_epsilon and its window_seconds, or some"
            )
        return cls(**given)


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
    """The schedule of an engine's settings at work, for everybody whom it releases.

    Before each moment: with ``v`` the expected error of the prediction, a draw with budget ``e`` would take it down to
    ``u(e)``, the mean over what could be drawn (at fixed nodes: a function of the belief alone). Without further draws
    the error grows back to ``v`` in ``T(e)`` steps, along a curve that follows from the model. What is drawn with is
    the budget that saves the most error per epsilon until then, ``sum (v - error) / e``.

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
    nodes
        For how many draws the error that a release would leave is worked out.

    Raises
    ------
    ConfigurationError
        When there is a budget for a window and the model does not say how long its steps are.
    """

    def __init__(self, schedule: Schedule | None, model: MarkovModel, points: FloatArray, nodes: int = NODES) -> None:
        self.schedule, self._model, self._points, self._nodes = schedule, model, points, nodes
        self.window = 0
        """The steps of a window; 0 where there is no budget for one."""
        if schedule is not None and schedule.window_epsilon is not None:
            if model.step_seconds is None:
                raise ConfigurationError("a budget for a window of time needs a model with step_seconds; give it one")
            self.window = max(1, ceil(schedule.window_seconds / model.step_seconds))
        self._made: tuple[StepPlan | None, dict[float, tuple[Noise, npt.NDArray[Any]]]] = (None, {})

    @cached_property
    def growth(self) -> Growth:
        """How fast an estimate gets worse without releases."""
        return Growth.of(self._model, self._points)

    def prepare(self, engine: Releaser, prior: Belief, most: float, steps: int) -> PreparedStep:
        """The next step of an engine, within its caps: with the budget of `choose`, or one at which nothing is drawn.

        Parameters and errors are those of `choose`.
        """
        choice = self.choose(engine, prior, most, steps)
        if isinstance(choice, str):
            return PreparedStep.withholding(prior, steps, engine.person.moment, choice)
        return engine.capping.prepare(engine, prior, engine.plan(prior), choice, steps)

    def choose(self, engine: Releaser, prior: Belief, most: float, steps: int) -> float | Reason:
        """The budget of the next release, or why there is none: ``"target"`` or ``"budget"``.

        Parameters
        ----------
        engine
            The engine, with the person whose releases it has made.
        prior
            The belief before the release.
        most
            The greatest budget that it may have.
        steps
            The time steps since the moment before.

        Raises
        ------
        InvalidInputError
            When releases were made of whose cost nothing is known.
        """
        schedule = self.schedule
        if schedule is None:
            return most
        level = best_guess(prior.probabilities, self._points).mean_error
        if level <= (schedule.target_error or 0.0):
            return "target"
        left, pace = self._rate(engine.person, steps, schedule.window_epsilon)
        budgets = [rung_of(most, rung) for rung in _LADDER]
        if left is not None and pace is not None:
            budgets = [budget for budget in budgets if exactly(budget) <= left]
            longest = self.growth.steps_between(0.0, level)
            budgets = [budget for budget in budgets if budget <= pace * max(longest, 1.0)]
        if not budgets:
            return "budget"
        best = self._best(engine, prior, level, budgets)
        if pace is not None and not (best.saved > 0 and best.epsilon <= pace * best.steps):
            return "budget"
        return best.epsilon

    def _best(self, engine: Releaser, prior: Belief, level: float, budgets: Sequence[float]) -> Outlook:
        """The budget that saves the most error per epsilon, from the greatest down for as long as less is better.

        What a draw tells grows with the square of a small budget, so that of two small ones the greater is better.
        """
        best = self.outlook(engine, prior, level, budgets[0])
        for budget in budgets[1:]:
            next_one = self.outlook(engine, prior, level, budget)
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

    def outlook(self, engine: Releaser, prior: Belief, level: float, epsilon: float) -> Outlook:
        """What a release with a budget would do, from a belief whose expected error is ``level``."""
        error = self._error_after(engine, prior, epsilon)
        if error >= level:
            return Outlook(epsilon, error, 1.0, 0.0)
        steps, saved = self.growth.cycle(error, level)
        return Outlook(epsilon, error, steps, saved)

    def _error_after(self, engine: Releaser, prior: Belief, epsilon: float) -> float:
        """The estimate's expected error after a draw: over all outputs of tables, otherwise at fixed nodes.

        The nodes come from a generator with a seed of its own, so that they are the same for everybody, and no draw of
        a release has anything to do with them.
        """
        plan = engine.plan(prior)
        if engine.settings.mechanism in TABLES and isinstance(
            tables := engine.mechanism(plan, epsilon), ComponentNoise
        ):
            return distance_after_tables(tables, self._points, prior.probabilities)
        mechanism, noise = self._noise(engine, plan, epsilon)
        states, weights = _represented(prior.probabilities, plan.constraint, self._points)
        levels = (np.arange(self._nodes) + 0.5) / self._nodes
        true = states[np.searchsorted(np.cumsum(weights), levels * weights.sum()).clip(max=len(states) - 1)]
        places, values = self._points[states], engine.values[states]
        if isinstance(mechanism, ComponentNoise):
            outputs = engine.values[true] + noise[mechanism.part_of[true], np.arange(self._nodes)]
            logs = engine.query.log_densities(mechanism, plan.constraint, engine.places, outputs)[:, states]
        else:
            outputs = np.repeat(engine.values[true] + noise, len(states), axis=0)
            logs = mechanism.log_density(outputs, np.tile(values, (self._nodes, 1)))
        return _mean_error(logs.reshape(self._nodes, len(states)), weights, places)

    def _noise(self, engine: Releaser, plan: StepPlan, epsilon: float) -> tuple[Noise, npt.NDArray[Any]]:
        """The noise of a step, and what it adds at the nodes: ``(n, d)``, or ``(parts, n, d)`` where it differs."""
        if self._made[0] is not plan:
            self._made = (plan, {})
        made = self._made[1]
        if epsilon not in made:
            noise, origin = engine.mechanism(plan, epsilon), np.zeros_like(engine.values[0])
            several = noise.mechanisms if isinstance(noise, ComponentNoise) else (noise,)
            drawn = np.stack([one.sample(origin, np.random.default_rng(_SEED), self._nodes) for one in several])
            made[epsilon] = noise, drawn if isinstance(noise, ComponentNoise) else drawn[0]
        return made[epsilon]


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


def _mean_error(logs: FloatArray, weights: FloatArray, places: FloatArray) -> float:
    """The expected distance from the posterior mean, averaged over ``n`` outputs of log likelihoods ``(n, k)``."""
    logs -= logs.max(axis=1, keepdims=True)
    posterior = np.exp(logs) * weights
    posterior /= posterior.sum(axis=1, keepdims=True)
    away = places[None] - (posterior @ places)[:, None]
    return float(np.einsum("nk,nk->", posterior, np.sqrt(np.einsum("nkd,nkd->nk", away, away)))) / len(logs)
