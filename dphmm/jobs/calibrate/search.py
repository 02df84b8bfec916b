"""The search for the largest budget that meets a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product, takewhile
from math import ceil, inf, isfinite, isinf, log
from statistics import fmean

import numpy as np
from scipy.special import expit

from dphmm.attack import Channel, ChannelResult, MeshMovement, Track, attack_tracks, parse_channel
from dphmm.attack.noise_channel import ReleaseChannel
from dphmm.audit.empirical_epsilon import CONFIDENCE
from dphmm.calibrate import (
    MeanEstimate,
    Simulation,
    epsilon_for_error,
    epsilon_for_odds,
    epsilon_per_release,
    largest_epsilon,
    simulate,
)
from dphmm.calibrate.epsilon_search import EventLimit, epsilon_for_factor, round_down, search_largest
from dphmm.calibrate.simulation import (
    MAX_WORK,
    PathReleaser,
    compute_errors_without_releases,
    compute_max_prior,
    count_period_steps,
    iterate_beliefs,
)
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError
from dphmm.events import Cap, Event, EventOdds
from dphmm.events.chain_start import make_chain
from dphmm.formatting import format_kilometres
from dphmm.jobs.attack.tracks import split_track
from dphmm.jobs.audit.adversaries import HabitModels, LocationHistory
from dphmm.jobs.calibrate.results import BudgetOutcome, CalibrationTargets, EventLimitResult
from dphmm.jobs.progress import ProgressCallback
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.mechanisms.registry import TABLE_MECHANISMS
from dphmm.model import Belief, MarkovModel
from dphmm.release import Releaser, StepPlan
from dphmm.release.ledger import DAY_SECONDS, steps_per_day
from dphmm.space.trajectory import Trajectory

# Range of the search for the budget of a lookup table, and the ratio at which it ends.
_TABLE_MIN_EPSILON = 1e-3
_TABLE_MAX_EPSILON = 20.0
_TABLE_SEARCH_RATIO = 1.005
# Targets that limit every output.
LIMITS = frozenset(("max_posterior", "max_odds_ratio"))
# Number of steps after which the constraint sets must repeat.
_MAX_STEPS = 10_000
# Added to the seed for users that a search does not use.
_FRESH_SEED_OFFSET = 1 << 32
# Relative amount by which a prior computed in doubles is assumed to be too small.
_ROUNDING = 1e-12
# Relative tolerance of the mean over users that an error target needs.
_MEAN_TOLERANCE = 0.03
# Maximum number of simulated users for a budget, and of releases times states, about four seconds. A release of an
# engine that runs step by step counts several times.
_MAX_SIMULATED_USERS = 512
_MAX_WORK = 3.5e6
_ENGINE_WORK_FACTOR = 30
# Maximum number of simulated releases with event caps: each takes several milliseconds.
_MAX_CAPPED_RELEASES = 2000
# Maximum number of attacked users, and columns and rows of parts per cell for these attacks, see `dphmm.attack.mesh`.
_MAX_ATTACKED_USERS = 16
_PARTS = 2


@dataclass(eq=False)
class BudgetSearch:
    """A search for budgets of one model and policy, with cached intermediate results."""

    engine: Releaser
    targets: CalibrationTargets
    event: Event | None
    steps: int
    num_guaranteed_releases: int
    num_users: int
    seed: int
    watch: ProgressCallback
    first: int
    auxiliary_data: tuple[Trajectory, ...] = ()
    # movement models of users with known habits
    habits: tuple[MarkovModel, ...] = ()
    can_add_users: bool = False
    # whether limits on states hold for streams with any first slot
    has_any_start: bool = False
    _errors: dict[MarkovModel, tuple[float, float]] = field(default_factory=dict)
    # simulations by budget, seed, number of users and metric: a search may return to a budget
    _simulations: dict[tuple[float, int, int, str | None], Simulation] = field(default_factory=dict)
    _event_limits: dict[float, tuple[EventLimit, float]] = field(default_factory=dict)

    @property
    def errors_without_releases(self) -> tuple[float, float]:
        """The simulated users' mean `compute_errors_without_releases`."""
        errors = [self._compute_errors_without_releases(model) for model in self._models[: self.num_users or None]]
        return fmean(error for error, _ in errors), fmean(mean_error for _, mean_error in errors)

    def _compute_errors_without_releases(self, model: MarkovModel) -> tuple[float, float]:
        if model not in self._errors:
            self._errors[model] = compute_errors_without_releases(self.engine, self.steps, self.first, model)
        return self._errors[model]

    @property
    def _models(self) -> tuple[MarkovModel, ...]:
        """The adversary's model of each user, or that of all users."""
        return self.habits or (self.engine.model,)

    @cached_property
    def _max_prior(self) -> float:
        """A bound on the probability of a state without releases, whichever users are simulated."""
        if self.has_any_start:
            models = [fixed for model in self._models for fixed in model.with_fixed_offsets()]
            max_work = MAX_WORK / len(models)
            watched = self.watch(models, "Computing probabilities")
            priors = list(takewhile(bool, (compute_max_prior(model, None, max_work) for model in watched)))
            if len(priors) == len(models):
                return max(filter(None, priors))
            # All first slots would take too long. `calibrate` reads this afterwards, to state the first slot.
            self.has_any_start = False
        priors = [compute_max_prior(model, self.first) for model in self.watch(self._models, "Computing probabilities")]
        if None in priors:
            raise ConfigurationError(
                "the probabilities of states without releases settle too late for --max-posterior: use a model with "
                "fewer states, longer steps or more --smoothing"
            )
        return max(filter(None, priors))

    @cached_property
    def _plans(self) -> list[tuple[StepPlan, Belief]]:
        if not self.has_any_start:
            return _collect_plans_by_support(self.engine, [self.first])
        model = self.engine.model
        return _collect_plans_by_support(self.engine, range(count_period_steps(model)), model.with_fixed_offsets())

    @property
    def _has_adaptive_plans(self) -> bool:
        """Whether plans of later releases depend on earlier outputs."""
        settings = self.engine.settings
        can_choose_repair = settings.mechanism not in TABLE_MECHANISMS
        return settings.delta is not None or any(
            isinf(plan.protection.diameter) or (can_choose_repair and plan.repair_prior is not None)
            for plan, _ in self._plans
        )

    def _compute_total_diameter(self, option: str) -> float:
        """Return the largest constrained-DP factor times the number of guaranteed releases."""
        widest = max(plan.protection.diameter for plan, _ in self._plans)
        if self._has_adaptive_plans and isfinite(widest):
            reason = "delta" if self.engine.settings.delta is not None else "a repair that depends on the belief"
            raise ConfigurationError(
                f"{option} cannot be combined with {reason}: later releases depend on earlier outputs and may reveal "
                "more than the limit. Remove it, or use --adversary-error or --event with --failure-rate"
            )
        if isinf(widest):
            raise ConfigurationError(
                f"{option} has no solution: a release can exclude a state, so no budget limits the odds; use "
                "--adversary-error, or a policy that connects all locations"
            )
        return widest * self.num_guaranteed_releases

    def find_epsilon(self, target: str, value: float) -> float:
        """Find the largest budget that meets a target."""
        match target:
            case "max_posterior" | "max_odds_ratio" if self.event is not None:
                return self._find_for_event(self.event, self._limits[target])
            case "error" if self.engine.settings.mechanism in TABLE_MECHANISMS and not self._has_adaptive_plans:
                return self._find_for_table_error(value)
            case "error":
                return self._find_for_error(value)
            case "estimate_error":
                error = inf if self.habits else self.errors_without_releases[1]
                return self._find_for_simulated_error("estimate_error", error, value)
            case "adversary_error":
                return self._find_for_simulated_error("smoothed_error", self.errors_without_releases[0], value)
            case "max_posterior":
                return self._find_for_max_posterior(value)
            case "max_odds_ratio":
                return epsilon_for_factor(self._compute_total_diameter("--max-odds-ratio"), value)
        releases = steps_per_day(self.engine.model.step)
        assert releases is not None, "the model has a step"
        return epsilon_per_release(value, releases)

    # ---- an event ----------------------------------------------------------------------------------------------------

    @cached_property
    def _prior_log_odds(self) -> float:
        """The log odds of the event before any release."""
        assert self.event is not None, "there is an event"
        return EventOdds(*make_chain(self.engine.model, self.first), self.event, str(self.targets.event)).prior

    @cached_property
    def _limits(self) -> dict[str, float]:
        """Target → the upper limit on the event's probability."""
        limits = {}
        prior = float(expit(self._prior_log_odds))
        for target, value in self.targets.numeric_targets.items():
            if target not in LIMITS:
                continue
            limits[target] = value if target == "max_posterior" else float(expit(self._prior_log_odds + log(value)))
            if not prior < limits[target] < 1:
                raise InvalidInputError(
                    f"--{target.replace('_', '-')} must allow a probability in ({prior:.4g}, 1), above the prior "
                    f"probability of event '{self.targets.event}', got {value:g}"
                )
        return limits

    def _find_for_event(self, event: Event, limit: float) -> float:
        if self.targets.failure_rate is not None:
            return self._find_for_failure_rate(event, limit, self.targets.failure_rate)
        if self.num_guaranteed_releases == 1:
            return self._find_for_one_release(event, limit)[1]
        prior = float(expit(self._prior_log_odds)) * (1.0 + _ROUNDING)
        return epsilon_for_odds(self._compute_total_diameter("--horizon"), prior, limit)

    def _find_for_one_release(self, event: Event, limit: float) -> tuple[EventLimit, float]:
        """Return a limit on the event, and the largest budget of one release that satisfies it."""
        if limit not in self._event_limits:
            watch = partial(self.watch, what="Searching all outputs")
            event_limit = EventLimit(self.engine, event, limit, self.first)
            self._event_limits[limit] = event_limit, event_limit.find_largest_epsilon(event.last + 1, watch)
        return self._event_limits[limit]

    def keeps_limit(self, epsilon: float) -> bool:
        """Return whether a budget keeps the limit for one release, if that is a target."""
        if self.event is None or self.num_guaranteed_releases > 1 or self.targets.failure_rate is not None:
            return True
        limit, _ = self._find_for_one_release(self.event, min(self._limits.values()))
        return limit.is_satisfied(epsilon, self.event.last + 1)

    def _find_for_failure_rate(self, event: Event, limit: float, share: float) -> float:
        # exact upper bound on the failure rate if no simulated user fails
        min_rate = 1.0 - (1.0 - CONFIDENCE) ** (1.0 / self.num_users) if self.num_users else 1.0
        if min_rate > share:
            needed = ceil(log(1 - CONFIDENCE) / log(1 - share))
            raise ConfigurationError(
                f"{self.num_users} simulated users are too few for a failure rate of {share:g}: without any failure "
                f"among them, the rate may still be {min_rate:.2g}; use --num-users {needed} or more"
            )
        start = self._find_for_one_release(event, limit)[1]

        def estimate_share_within(epsilon: float, what: str, seed: int) -> MeanEstimate:
            return MeanEstimate(1.0 - self._simulate(epsilon, what, seed, event).estimate_share_above(limit)[1], 0.0)

        return self._search(estimate_share_within, 1.0 - share, start, f"a failure rate of {share:g} above {limit:g}")

    def evaluate_event_limit(self, event: Event, achieved: BudgetOutcome) -> EventLimitResult:
        """Evaluate the limit on the event at a budget, and an event cap as an alternative."""
        limit = min(self._limits.values())
        seed = self.seed + _FRESH_SEED_OFFSET
        event_limit, epsilon = self._find_for_one_release(event, limit)
        simulation = achieved.event_simulation
        rate, max_rate = (None, None) if simulation is None else simulation.estimate_share_above(limit)
        cap = Cap(self.targets.event or event, limit)
        result = EventLimitResult(cap, event_limit.prior, epsilon, rate, max_rate, None)
        num_users = min(self.num_users, _MAX_CAPPED_RELEASES // self.steps)
        if num_users < 2:
            return result
        capped = result.apply_cap(self.engine.settings).engine(self.engine.model)
        watch = partial(self.watch, what="Releasing with a cap", total=num_users)
        simulation = simulate(capped, epsilon, num_users, self.steps, seed, watch, event, self.first)
        return replace(result, capped_simulation=simulation)

    # ---- locations ---------------------------------------------------------------------------------------------------

    def _find_for_error(self, length: float) -> float:
        if self._has_adaptive_plans:
            return self._find_for_simulated_error("released_error", inf, length)
        parts = [part for plan, _ in self._plans for part in self.engine.planner.build_noise(plan, 1.0).parts]
        # parts without error belong to unprotected or isolated states, which are released exactly
        noisy = [part for part in parts if part.squared_error > 0]
        if not noisy:
            raise InvalidInputError("every state is released exactly, whatever the budget; use another policy")
        settings = self.engine.settings
        unit = float(parse_rational(settings.spacing)) if settings.mechanism == "lattice" else 1.0
        return min(epsilon_for_error(part, length / unit) for part in noisy)

    def _compute_release_error(self, epsilon: float) -> float:
        """Return the error of a release if all states are possible that ever are."""
        plan, prior = max(self._plans, key=lambda plan_and_prior: int(plan_and_prior[0].constraint.sum()))
        return self.engine.planner.build_noise(plan, epsilon).expected_error(prior)

    def _find_for_table_error(self, length: float) -> float:
        low = _TABLE_MIN_EPSILON
        high = _TABLE_MAX_EPSILON

        def compute_excess(epsilon: float) -> float:
            return _compute_log_ratio(self._compute_release_error(epsilon), length)

        values = {epsilon: compute_excess(epsilon) for epsilon in (low, high)}
        if values[low] < 0:
            raise BudgetError(
                f"no table has an error of {format_kilometres(length)}: at epsilon {low:g} it is "
                f"{format_kilometres(self._compute_release_error(low))}; use a shorter length"
            )
        if values[high] >= 0:
            return high
        return round_down(search_largest(compute_excess, low, high, _TABLE_SEARCH_RATIO, values=values), 3)

    def _find_for_max_posterior(self, max_posterior: float) -> float:
        prior = self._max_prior
        if max_posterior <= prior:
            raise InvalidInputError(
                f"--max-posterior must be above {prior:.4g}, a bound of the probabilities without releases, got "
                f"{max_posterior:g}"
            )
        return epsilon_for_odds(self._compute_total_diameter("--max-posterior"), prior, max_posterior)

    def _find_for_simulated_error(self, name: str, max_error: float, length: float) -> float:
        if length >= max_error:
            raise InvalidInputError(
                f"the target error must be below {format_kilometres(max_error)}, the mean error without releases, got "
                f"{format_kilometres(length)}"
            )
        if self.num_users < 2:
            raise ConfigurationError("this target needs at least 2 simulated users: use --num-users 2 or more")

        def estimate_metric(epsilon: float, what: str, seed: int) -> MeanEstimate:
            return self._simulate(epsilon, what, seed, metric=name).estimate_mean(name)

        bound = "" if isinf(max_error) else f", below the {format_kilometres(max_error)} without releases"
        about = f"target {format_kilometres(length)}{bound}"
        if not self.can_add_users:
            return self._search(estimate_metric, length, 0.1, about)
        about = f"{about}, with {self.num_users} users at first"
        # Find the budget roughly with few users, then add as many as the variance of their errors requires.
        first_users = self.num_users
        near = search_largest(
            lambda epsilon: _compute_log_ratio(estimate_metric(epsilon, "Trying", self.seed).mean, length),
            1e-3,
            1e2,
            1.2,
        )
        deviation = estimate_metric(near, "Trying", self.seed).margin / length
        is_sequential = PathReleaser(self.engine, near, self.steps, self.first).is_sequential
        work = (_ENGINE_WORK_FACTOR if is_sequential else 1) * self.steps * self.engine.model.size
        max_users = int(min(_MAX_SIMULATED_USERS, _MAX_WORK / work))
        # `calibrate` states this number.
        self.num_users = max(first_users, min(ceil(first_users * (deviation / _MEAN_TOLERANCE) ** 2), max_users))
        return self._search(estimate_metric, length, near, about, fine=True)

    def evaluate(self, epsilon: float, what: str) -> BudgetOutcome:
        """Evaluate a budget."""
        step = self.engine.model.step
        simulation = None
        event_simulation = None
        has_formula = not self._has_adaptive_plans
        error = self._compute_release_error(epsilon) if has_formula else None
        if self.num_users:
            simulation = self._simulate(epsilon, what, self.seed + _FRESH_SEED_OFFSET)
            error = error if has_formula else simulation.estimate_mean("released_error").mean
            if self.event is not None:
                event_simulation = self._simulate(epsilon, what, self.seed + _FRESH_SEED_OFFSET, self.event)
        hour = epsilon * ceil(3600 / step)
        day = epsilon * ceil(DAY_SECONDS / step)
        return BudgetOutcome(epsilon, error, hour, day, simulation, event_simulation, has_formula)

    def attack_channels(self, budgets: Iterable[float], channels: Sequence[str | Channel]) -> tuple[ChannelResult, ...]:
        """Attack users at some budgets and under some channels.

        The result is empty without channels or users in the region.

        The users are simulated and report at each step. With auxiliary data, they are the later half of each user's
        days, with habits of the earlier half. The result is also empty for models that an attack does not support:
        those with time classes or with named places.
        """
        try:
            moves = MeshMovement(self.engine.model, _PARTS) if channels else None
        except ConfigurationError:
            moves = None
        if moves is None:
            return ()
        rng = np.random.default_rng([self.seed, 2])
        count = min(self.num_users, _MAX_ATTACKED_USERS)
        users: list[tuple[Track, LocationHistory | None]]
        if self.auxiliary_data:
            split = [
                parts for track in self.auxiliary_data if (parts := split_track(track, moves, self.steps)) is not None
            ]
            with_history = [parts for parts in split if parts[1] is not None] or split
            users = [with_history[i] for i in np.sort(rng.permutation(len(with_history))[:_MAX_ATTACKED_USERS])]
        else:
            users = [(Track.sample(f"{i}", self.steps, self.first, moves, rng), None) for i in range(count)]
        if not users:
            return ()
        tracks, histories = zip(*users, strict=True)
        ours = (ReleaseChannel(replace(self.engine.settings, epsilon=epsilon)) for epsilon in sorted(set(budgets)))
        watch = partial(self.watch, what="Attacking", total=len(tracks) * (len(set(budgets)) + len(channels)))
        others = [parse_channel(channel) if isinstance(channel, str) else channel for channel in channels]
        habits = HabitModels(moves.model, histories)
        return attack_tracks(tracks, [*ours, *others], moves, 200.0, self.seed, habits, watch)

    def _search(
        self,
        metric: Callable[[float, str, int], MeanEstimate],
        bound: float,
        start: float,
        about: str,
        fine: bool = False,
    ) -> float:
        """Search for the largest budget at which a metric of simulated users stays above a bound."""

        def evaluate(epsilon: float, is_check: bool) -> MeanEstimate:
            what = f"{'Checking' if is_check else 'Trying'} epsilon {epsilon:.3g}"
            return metric(epsilon, what, self.seed + (_FRESH_SEED_OFFSET if is_check else 0))

        try:
            return largest_epsilon(evaluate, bound, start, fine).epsilon
        except BudgetError as problem:
            raise BudgetError(f"{about}: {problem}") from None

    def _simulate(
        self, epsilon: float, what: str, seed: int, event: Event | None = None, metric: str | None = None
    ) -> Simulation:
        """Simulate users, with an event only those for whom it occurs."""
        num_users = self.num_users
        key = (epsilon, seed, num_users, metric)
        if event is None and key in self._simulations:
            return self._simulations[key]
        watch = partial(self.watch, what=what, total=num_users)
        simulation = simulate(
            self.engine, epsilon, num_users, self.steps, seed, watch, event, self.first, self.habits, metric
        )
        if event is None:
            self._simulations[key] = simulation
        return simulation


def _compute_log_ratio(error: float, length: float) -> float:
    """Return the logarithm of a ratio, which is nearly linear in that of the budget."""
    return log(error / length) if error > 0 else -inf


def _collect_plans_by_support(
    engine: Releaser, starts: Sequence[int], models: Sequence[MarkovModel] = ()
) -> list[tuple[StepPlan, Belief]]:
    """Collect the plans of all constraint sets along the models' support, each with a belief.

    The models default to the engine's. The constraint sets follow from the model and the time if no release excludes a
    state. The collection is complete for a start once a set occurs again, for time-dependent models at the same time of
    the week, or once every time class leads from a set to itself.
    """
    plans: dict[bytes, tuple[StepPlan, Belief]] = {}
    seen = set[tuple[int, int, bytes]]()
    stable: dict[bytes, bool] = {}
    period = count_period_steps(engine.model)
    for (number, model), start in product(enumerate(models or [engine.model]), starts):
        for slot, belief in zip(range(start, start + _MAX_STEPS), iterate_beliefs(model, start), strict=False):
            now = np.isfinite(belief.chain_logs).tobytes()
            support = belief.support.tobytes()
            if support not in plans:
                plans[support] = engine.planner.build_plan(belief), belief
            if now not in stable:
                stable[now] = _has_stable_support(model, belief)
            if stable[now] or (number, slot % period, now) in seen:
                break
            seen.add((number, slot % period, now))
        else:
            raise ConfigurationError(
                f"the possible states must repeat within {_MAX_STEPS:,} steps of the model, so that a limit holds for "
                "each release; use a model with transitions that reach all of its states, such as one with --smoothing"
            )
    return list(plans.values())


def _has_stable_support(model: MarkovModel, belief: Belief) -> bool:
    """Return whether the possible states stay the same in every time class."""
    possible = np.isfinite(belief.chain_logs)
    return all(
        np.array_equal(operator.forward_product.propagate_support(possible), possible)
        for operator in model.one_step_operators
    )
