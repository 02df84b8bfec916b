"""Schedules: the choice of released timesteps and their budgets from public information."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import ceil, inf

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray, hash_content
from dphmm.caching import BoundedCache
from dphmm.errors import ConfigurationError, InvalidInputError
from dphmm.events.cap_budget import compute_rung_budget
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.model.point_estimate import cell_rms_distance, expected_distance
from dphmm.release.ledger import DAY_SECONDS, Account, to_fraction
from dphmm.release.settings import Schedule
from dphmm.release.state_between_steps import FilterState
from dphmm.release.step_noise import StepNoise, compute_table_posterior_error, spread_over_quantiles
from dphmm.release.step_plan import Planner, StepPlan

# The error of a prediction is followed from this number of states, which are spread over the long-run distribution.
# Each costs one prediction for every step of the curve.
_NUM_START_STATES = 8

# A curve has at most 2048 steps, and fewer in large spaces: at most 1e8 visited states, but then up to 64 steps.
_MIN_CURVE_STEPS = 64
_MAX_CURVE_STEPS = 2048
_MAX_STATE_VISITS = 1e8

# Above this share of the long-run error the curve is extrapolated with its last slope.
_SETTLED_SHARE = 0.98

# After this number of steps from its initial distribution, a chain counts as being in its long-run distribution.
_LONG_RUN_STEPS = 256

# Curves are shared by the engines of different users. One curve has at most 2,049 numbers.
_GROWTH_CACHE_SIZE = 16


@dataclass(frozen=True)
class ErrorGrowth:
    """The expected error of a prediction as a function of the steps since a known location.

    Parameters
    ----------
    errors
        ``(h + 1,)``: error after 0, 1, … steps, averaged over locations drawn from the long-run distribution. It never
        decreases.
    """

    errors: FloatArray

    @classmethod
    def from_model(cls, model: MarkovModel, points: FloatArray, cell: float = 0.0) -> ErrorGrowth:
        """Compute the curve of a model for measurements ``(N, d)``.

        The curve starts from a few states and ends when the error is close to its long-run value. If the measurements
        are centres of cells, the error is at least that within a cell. A time-dependent model is started at hours that
        are spread over a day.
        """
        long_run = Belief.initial(model, 0).predict(model, _LONG_RUN_STEPS, 0)
        masses = long_run.probabilities
        starts = spread_over_quantiles(masses, _NUM_START_STATES).tolist()
        day = DAY_SECONDS / (model.step_seconds or DAY_SECONDS)
        slots = [int(day * index / _NUM_START_STATES) for index in range(_NUM_START_STATES)]
        beliefs = [
            Belief.initial(model, slot, np.eye(1, model.size, start)[0])
            for slot, start in zip(slots, starts, strict=True)
        ]
        settled = _SETTLED_SHARE * expected_distance(long_run.probabilities, points, cell)
        errors = [cell_rms_distance(cell)]
        steps = np.clip(_MAX_STATE_VISITS / (_NUM_START_STATES * model.size), _MIN_CURVE_STEPS, _MAX_CURVE_STEPS)
        for step in range(int(steps)):
            beliefs = [belief.predict(model, 1, slot + step) for belief, slot in zip(beliefs, slots, strict=True)]
            distances = [expected_distance(belief.probabilities, points, cell) for belief in beliefs]
            # A time-dependent model may lead users home again. The curve is made monotone, so that it has an inverse.
            errors.append(max(sum(distances) / _NUM_START_STATES, errors[-1]))
            if errors[-1] >= settled:
                break
        return cls(np.array(errors))

    @property
    def _slope(self) -> float:
        """The average growth of the error per step in the second half of the curve."""
        half = len(self.errors) // 2
        return float(self.errors[-1] - self.errors[half]) / max(1, len(self.errors) - 1 - half)

    def steps_to_reach(self, error: float) -> float:
        """Return the number of steps after which the error has grown to a value.

        Beyond the end of the curve the error is extrapolated with the last slope.
        """
        if error > self.errors[-1]:
            beyond = float(error - self.errors[-1]) / max(self._slope, 1e-12)
            return len(self.errors) - 1 + min(beyond, float(len(self.errors)))
        first: int = int(np.searchsorted(self.errors, error))
        if first == 0:
            return 0.0
        low = float(self.errors[first - 1])
        high = float(self.errors[first])
        return first - 1 + (error - low) / (high - low)

    def steps_between(self, low: float, high: float) -> float:
        """Return the number of steps in which the error grows from one value to another."""
        return max(0.0, self.steps_to_reach(high) - self.steps_to_reach(low))


# The number of outputs for which the error after a release is computed.
NUM_NODES = 96

# Most searches end with a budget that is far from sufficient. A quarter of the outputs decides if their error exceeds
# the goal by this factor. Their error deviates from that of all outputs by 3.5 % (standard deviation, GeoLife and the
# synthetic city).
_COARSE_DIVISOR = 4
_COARSE_FACTOR = 1.15

# Bounds the cost of the posterior of every output, which is computed over these states.
_MAX_REPRESENTATIVES = 768

# Budgets to try, in sixteenths of an octave below the largest one. Neighbours differ by a factor of sqrt(2).
_BUDGET_RUNGS = range(0, 88, 8)

# The share of the expected error that should remain after a release. Tuned with `scripts/benchmark frontier` on users
# that were not among the training users of the model.
_TARGET_SHARE = 0.6

# The factor by which a timestep may exceed an even share of the remaining budget. Budget that is not used before its
# window ends is lost, and some expected timesteps never come.
_SHARE_FACTOR = 1.3

# If less than the chosen budget remains, the release is made with the rest if that is at least this share of it.
_MIN_BUDGET_SHARE = 0.5

# Covers the rounding errors of a bound.
_ROUNDING = 1 + 1e-9

# Prior of a user's reporting rate: 24 timesteps in a window, with the weight of a quarter of an observed timestep.
_PRIOR_TIMESTEPS = 24.0
_PRIOR_WEIGHT = 0.25

# The number of windows from which the reporting rate is learned.
NUM_LEARNING_WINDOWS = 28

# The largest number of timesteps from which it is learned.
_MAX_TIMESTEPS = 2048

# The total mass of the states that the representation of a belief may omit.
_NEGLIGIBLE_MASS = 1e-6


def max_window_steps(
    schedules: Iterable[Schedule | None], step_seconds: float | None, num_windows: int = NUM_LEARNING_WINDOWS
) -> int:
    """Return the largest number of timesteps that records or schedules look back.

    Parameters
    ----------
    schedules
        The schedules; None stands for an engine without one.
    step_seconds
        Length of a timestep; None if unknown.
    num_windows
        Number of windows that a schedule looks back. Its sums of budgets need 1. The others determine only how the
        remaining budget is divided.

    Returns
    -------
    int
        The number of timesteps, at least 1.
    """
    if step_seconds is None:
        return 1
    windows = [(1, DAY_SECONDS)]
    windows += [(num_windows, schedule.window_seconds) for schedule in schedules if schedule is not None]
    return max(count * max(1, ceil(seconds / step_seconds)) for count, seconds in windows)


@dataclass(frozen=True)
class BudgetEffect:
    """The effect of a release with a given budget on the estimate.

    Parameters
    ----------
    epsilon
        The budget.
    error
        Expected error of the estimate after the release, averaged over outputs.
    steps
        Number of steps without a release after which the error is back at its present value, at least one.
    """

    epsilon: float
    error: float
    steps: float


class ReportingRate:
    """The rate at which a user reports, learned from the past timesteps, which are public.

    Parameters
    ----------
    slots
        ``(n,)``: slots of the past timesteps, increasing.
    now
        Present slot.
    window
        Number of steps of a window.
    """

    def __init__(self, slots: IntArray, now: int, window: int) -> None:
        self._slots = slots
        self._now = now
        self._window = window

    def expected_count(self, steps: float) -> float:
        """Return the expected number of reports within some steps after a report.

        It is the mean number over the past reports. A report that is more recent than ``steps`` counts for the fraction
        of the time that has passed.
        """
        slots = self._slots
        counts = np.searchsorted(slots, slots + steps, side="right") - 1 - np.arange(len(slots))
        seen = np.minimum(1.0, (self._now - slots) / max(steps, 1.0))
        prior = _PRIOR_WEIGHT * _PRIOR_TIMESTEPS * steps / self._window
        return float((counts.sum() + prior) / (seen.sum() + _PRIOR_WEIGHT))

    def num_served(self, steps: float) -> float:
        """Return the number of reports that a release serves, including the present one.

        It serves them while it lasts. Reports come in bursts, so the count in the last steps is used if it is larger
        than the mean.
        """
        num_recent = np.count_nonzero(self._slots > self._now - steps)
        return 1.0 + max(float(num_recent), self.expected_count(steps))


@dataclass(frozen=True)
class Allowance:
    """The epsilon that the budget of a window leaves for the present timestep.

    Parameters
    ----------
    remaining
        Remaining budget.
    per_timestep
        Smallest share of an expected timestep, over all windows that begin before the present slot.
    reporting_rate
        Rate at which the user reports; None without a budget.
    num_saved
        Number of timesteps of the window since the last release, including the present.
    """

    remaining: Fraction | float = inf
    per_timestep: float = inf
    reporting_rate: ReportingRate | None = None
    num_saved: int = 1

    def max_epsilon(self, steps: float) -> float:
        """Return the largest budget of a release that lasts for some steps.

        It is the sum of the shares that were saved, or of the shares of the timesteps that the release serves,
        whichever is larger. Without saved shares there would never be a release if the error grows to its limit soon
        after each.
        """
        return (
            self.per_timestep
            if self.reporting_rate is None
            else self.per_timestep * max(self.num_saved, self.reporting_rate.num_served(steps))
        )


_GROWTHS: BoundedCache[str, ErrorGrowth] = BoundedCache(_GROWTH_CACHE_SIZE)


class Scheduler:
    """A scheduler that chooses the released timesteps and their budgets.

    Let ``v`` be the expected error of the prediction. A release with budget ``e`` would lower it to ``u(e)``, a mean
    over outputs. The outputs are fixed, so ``u`` is a function of the belief alone. Without further releases the error
    grows back to ``v`` in ``T(e)`` steps, along a curve that follows from the model. A few releases with large budgets
    are best: for small budgets the information of a release grows with their square, and repeated noise about a
    stationary user averages out.

    All errors omit the distance of a user from the region, on which no release depends.

    *With a target error*, the timestep is withheld unless ``v`` exceeds the target. Otherwise the budget is the
    smallest that lowers the error to 0.6 of the target, or the largest that a release may have.

    *With a budget for a window*, the release has the smallest ``e`` that lowers the error to ``0.6 v``, if that can be
    sustained: ``e`` must be at most the sum of the shares of the timesteps that the release serves until the error is
    back at ``v``, or of the timesteps since the last release. `ReportingRate` estimates the rate of timesteps from the
    past. A share is the minimum, over all windows that begin before the present and end after it, of the remaining
    budget divided by the expected number of timesteps. If a single share exceeds ``e``, the release has that budget
    instead. The cost of every window is checked before a release, in exact arithmetic.

    Parameters
    ----------
    schedule
        The schedule. With None, every timestep is released with the whole budget of a release.
    model
        The model.
    points
        ``(N, d)``: the measurement of each state.
    cell
        Side length of the cell around it; 0 if it is a point.
    num_nodes
        Number of outputs for which the error after a release is computed.

    Raises
    ------
    ConfigurationError
        If there is a budget for a window and the model has no step_seconds.
    """

    def __init__(
        self,
        schedule: Schedule | None,
        model: MarkovModel,
        points: FloatArray,
        cell: float = 0.0,
        num_nodes: int = NUM_NODES,
    ) -> None:
        self.schedule = schedule
        self._model = model
        self.points = points
        self.cell = cell
        self.num_nodes = num_nodes
        # The number of steps of a window; 0 without a budget for one.
        self.window = 0
        if schedule is not None and schedule.window_epsilon is not None:
            if model.step_seconds is None:
                raise ConfigurationError(
                    "window_epsilon cannot be combined with a model without step_seconds: a window has a duration"
                )
            self.window = max(1, ceil(schedule.window_seconds / model.step_seconds))

    @cached_property
    def growth(self) -> ErrorGrowth:
        """The expected error of an estimate as a function of the steps without a release."""
        key = hash_content(self._model.content_hash, self.points, self.cell)
        return _GROWTHS.get_or_make(key, lambda: ErrorGrowth.from_model(self._model, self.points, self.cell))

    def plan_within_schedule(
        self,
        prior: Belief,
        epsilon: float,
        steps: int,
        state: FilterState,
        planner: Planner,
        plan: StepPlan | None = None,
    ) -> StepPlan:
        """Plan a release within the schedule, or withhold the timestep.

        Parameters
        ----------
        prior
            Belief before the release.
        epsilon
            Largest budget that the release may have.
        steps
            Number of timesteps since the previous release.
        state, planner
            Filter state of the user, and the planner of the engine.
        plan
            The plan of the prior, if it is not the planner's own.

        Raises
        ------
        InvalidInputError
            If the cost of earlier releases is unknown.
        """
        schedule = self.schedule
        if schedule is None:
            unlimited = planner.build_plan(prior) if plan is None else replace(plan, prior=prior)
            return planner.with_epsilon(unlimited, epsilon, steps, state.version)
        # A larger budget fits no window: the search would withhold every timestep that needs it, in vain.
        epsilon = min(epsilon, schedule.window_epsilon or inf)
        level = expected_distance(prior.probabilities, self.points, self.cell)
        target = schedule.target_error
        if level <= (target or 0.0):
            return planner.withhold(prior, "target", steps, state.version)
        # Most timesteps are withheld because the window has no budget left. The allowance is not computed for them.
        if schedule.window_epsilon is not None and self._is_spent(state, steps, schedule.window_epsilon):
            return planner.withhold(prior, "budget", steps, state.version)
        allowance = self._compute_allowance(state, steps, schedule.window_epsilon)
        plan = planner.build_plan(prior) if plan is None else replace(plan, prior=prior)
        effects = BudgetEffects(self, plan, planner, level)
        budgets = [compute_rung_budget(epsilon, rung) for rung in _BUDGET_RUNGS]
        rest = next((budget for budget in budgets if to_fraction(budget) <= allowance.remaining), 0.0)
        # A release lasts at most until the error of a known location has grown to the present one.
        maximum = allowance.max_epsilon(max(1.0, self.growth.steps_to_reach(level))) * _ROUNDING
        best = effects.find_smallest_budget(
            _TARGET_SHARE * (target or level),
            budgets,
            lambda budget: min(budget, rest) > maximum or rest < _MIN_BUDGET_SHARE * budget,
        )
        if best is None:
            return planner.withhold(prior, "budget", steps, state.version)
        if best.epsilon > rest >= _MIN_BUDGET_SHARE * best.epsilon:
            best = effects.compute_effect(rest)
        if best.epsilon > rest or best.epsilon > allowance.max_epsilon(best.steps):
            return planner.withhold(prior, "budget", steps, state.version)
        share = 0.0
        if target is None:
            share = next((budget for budget in budgets if budget <= min(allowance.per_timestep, rest)), 0.0)
        return planner.with_epsilon(plan, max(best.epsilon, share), steps, state.version)

    def _is_spent(self, state: FilterState, steps: int, budget: float) -> bool:
        """Return whether the window that ends with the present slot has no budget left."""
        account, now = self._get_account(state, steps)
        return account.sum_window_epsilon(now, self.window) == to_fraction(budget)

    @staticmethod
    def _get_account(state: FilterState, steps: int) -> tuple[Account, int]:
        """Return the account of a user, and the slot of the present timestep."""
        account = state.account
        if account is None:
            raise InvalidInputError(
                "the cost of earlier releases is unknown: call resume() with their account, or replay them"
            )
        # The slot at which `FilterState.spend` enters the release: otherwise the window checked is not the one charged.
        if state.count or state.first is None:
            return account, (account.slot or 0) + (steps if state.count else 0)
        return account, state.first

    def _compute_allowance(self, state: FilterState, steps: int, budget: float | None) -> Allowance:
        """Return the budget that the windows leave which contain the present slot.

        A release at ``s`` counts in windows that end before ``s + W``. Therefore the binding windows end just before a
        release leaves them, and ``W`` steps after the present.
        """
        if budget is None:
            return Allowance()
        account, now = self._get_account(state, steps)
        total = to_fraction(budget)
        timesteps = account.list_recent_slots(now, NUM_LEARNING_WINDOWS * self.window)
        reporting_rate = ReportingRate(timesteps[timesteps < now][-_MAX_TIMESTEPS:], now, self.window)
        recent = account.list_recent_releases(now, self.window)
        spent_in_window = sum((spent for _, spent in recent), Fraction(0))
        remaining = total - spent_in_window
        per_timestep = float(total) / (1.0 + reporting_rate.expected_count(self.window))
        for slot, spent in recent:
            per_timestep = min(
                per_timestep,
                float(total - spent_in_window) / (1.0 + reporting_rate.expected_count(slot + self.window - now)),
            )
            spent_in_window -= spent
        last_draw = recent[-1][0] if recent else now - self.window
        return Allowance(
            remaining,
            _SHARE_FACTOR * per_timestep,
            reporting_rate,
            1 + int(np.count_nonzero((timesteps > last_draw) & (timesteps < now))),
        )


class BudgetEffects:
    """The effects of different budgets on one release, under one plan.

    Parameters
    ----------
    scheduler
        The scheduler.
    plan
        The plan, of which the budget is to be chosen.
    planner
        The planner of the plan.
    level
        Expected error of the prediction.
    """

    def __init__(self, scheduler: Scheduler, plan: StepPlan, planner: Planner, level: float) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._planner = planner
        self._level = level

    @cached_property
    def _representatives(self) -> tuple[IntArray, FloatArray]:
        return _choose_representatives(self._plan.prior.probabilities, self._plan.constraint, self._scheduler.points)

    def compute_effect(self, epsilon: float) -> BudgetEffect:
        """Compute the effect of a release with a given budget."""
        error = self._compute_error(self._planner.build_noise(self._plan, epsilon), self._scheduler.num_nodes)
        return BudgetEffect(epsilon, error, max(1.0, self._scheduler.growth.steps_between(error, self._level)))

    def is_far_from(self, goal: float, epsilon: float) -> bool:
        """Return whether the error after a release exceeds a goal by far, from few outputs."""
        noise = self._planner.build_noise(self._plan, epsilon)
        if noise.is_tabular:
            return False
        return self._compute_error(noise, self._scheduler.num_nodes // _COARSE_DIVISOR) > _COARSE_FACTOR * goal

    def _compute_error(self, noise: StepNoise, num_nodes: int) -> float:
        """Compute the expected error of the estimate after a release.

        The mean is over all outputs of tables, and over fixed outputs of other noise.
        """
        within = cell_rms_distance(self._scheduler.cell)
        if noise.is_tabular:
            return float(np.hypot(compute_table_posterior_error(noise, self._plan.prior.probabilities), within))
        states, weights = self._representatives
        # The outputs do not depend on the user and are never released, so the decision whether to release is public.
        nodes = np.arange(num_nodes)
        true_states = states[spread_over_quantiles(weights, len(nodes))]
        added = noise.get_reference_samples(len(nodes))[noise.part_of[true_states], nodes]
        logs = noise.log_densities(noise.query.values[true_states] + added, states)
        return _compute_mean_posterior_error(logs, weights, self._scheduler.points[states], within)

    def find_smallest_budget(
        self, goal: float, budgets: Sequence[float], exceeds_allowance: Callable[[float], bool]
    ) -> BudgetEffect | None:
        """Return the effect of the smallest budget that keeps the error within a goal.

        If no budget is sufficient, the effect of the largest is returned.

        Parameters
        ----------
        goal
            Upper bound on the error.
        budgets
            Decreasing budgets.
        exceeds_allowance
            Whether no release can have a budget or a larger one. If only such budgets are sufficient, the result is
            None: the timestep is withheld.
        """
        low = next((k for k, budget in enumerate(budgets) if not exceeds_allowance(budget)), None)
        if low is None:
            return None
        # The error increases along the sequence. Most searches end here: the largest budget that a release may have
        # does not suffice.
        if low and self.is_far_from(goal, budgets[low]):
            return None
        best = self.compute_effect(budgets[low])
        if best.error > goal:
            return None if low else best
        high = len(budgets)
        while high - low > 1:
            middle = (low + high) // 2
            effect = self.compute_effect(budgets[middle])
            if effect.error <= goal:
                low, best = middle, effect
            else:
                high = middle
        return best


def _choose_representatives(
    probabilities: FloatArray, constraint: npt.NDArray[np.bool_], points: FloatArray
) -> tuple[IntArray, FloatArray]:
    """Return states that represent a belief, and their masses.

    They are all states above a negligible mass or, if these are too many, the most probable one of each block of space.
    """
    weights = np.where(constraint, probabilities, 0.0)
    order = np.flatnonzero(weights >= _NEGLIGIBLE_MASS / len(weights))
    if len(order) <= _MAX_REPRESENTATIVES:
        return np.asarray(order, dtype=np.int64), weights[order]
    low = points[order].min(axis=0)
    extent = points[order].max(axis=0) - low
    side = float(np.prod(np.maximum(extent, 1e-12)) / _MAX_REPRESENTATIVES) ** (1 / points.shape[1])
    offsets = np.ascontiguousarray((points[order] - low).T)
    while True:
        cells = (offsets / side).astype(np.int64)
        names = np.ravel_multi_index(tuple(cells), tuple(cells.max(axis=1) + 1))
        if len(np.unique(names)) <= _MAX_REPRESENTATIVES:
            break
        side *= 1.25
    by_mass = np.lexsort((-weights[order], names))
    first = np.flatnonzero(np.diff(names[by_mass], prepend=-1))
    return np.asarray(order[by_mass[first]], dtype=np.int64), np.add.reduceat(weights[order[by_mass]], first)


def _compute_mean_posterior_error(logs: FloatArray, weights: FloatArray, places: FloatArray, within: float) -> float:
    """Return the mean distance from the posterior mean over ``n`` outputs.

    `logs` contains the log likelihoods of the outputs, ``(n, k)``.
    """
    logs -= logs.max(axis=1, keepdims=True)
    posterior = np.exp(logs, out=logs)
    posterior *= weights
    posterior /= posterior.sum(axis=1, keepdims=True)
    distances = np.zeros(posterior.shape)
    # One contiguous array for each dimension: inner loops over two coordinates would take most of the time.
    for coordinate in np.ascontiguousarray(places.T):
        # Not a matrix product: its threads would wait, busily, for the next one, and determine its last bits.
        mean = np.einsum("nk,k->n", posterior, coordinate)
        offsets = coordinate[None] - mean[:, None]
        offsets *= offsets
        distances += offsets
    distances += within**2
    return float(np.einsum("nk,nk->", posterior, np.sqrt(distances, out=distances))) / len(logs)
