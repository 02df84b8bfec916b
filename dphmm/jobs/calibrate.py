"""Calibration of epsilon for a model and a policy from errors, odds or a total budget."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import takewhile
from math import ceil, inf, isfinite, isinf, log
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
from scipy.special import expit

from dphmm.arrays import as_floats, check_budget
from dphmm.attack import Channel, ChannelResult, MeshMovement, Track, attack_tracks, parse_channel
from dphmm.attack.measures import recommend_channel
from dphmm.attack.noise_channel import ReleaseChannel
from dphmm.audit.empirical import CONFIDENCE
from dphmm.audit.sequence import PUBLIC
from dphmm.calibrate import (
    MeanEstimate,
    Simulation,
    epsilon_for_error,
    epsilon_for_odds,
    epsilon_per_release,
    largest_epsilon,
    simulate,
)
from dphmm.calibrate.budgets import EventLimit, epsilon_for_factor, round_down, search_largest
from dphmm.calibrate.simulation import (
    MAX_WORK,
    PathReleaser,
    compute_errors_without_releases,
    compute_max_prior,
    count_period_steps,
    iterate_beliefs,
)
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError
from dphmm.events import Cap, Clock, Event, EventOdds, EventText, parse_event
from dphmm.formatting import Result, export_fields, exported, metres
from dphmm.jobs.attack.tracks import split_track
from dphmm.jobs.audit.adversaries import (
    HABITS,
    HabitModels,
    LocationHistory,
    build_habit_model,
    build_map_adversary,
    history_before,
    read_tracks_by_user,
)
from dphmm.jobs.audit.uses import UsesComparison, UsesSettings, compare_uses, sample_users
from dphmm.jobs.input_data import DataLike
from dphmm.jobs.model.loading import Model, load_model
from dphmm.jobs.model.training_users import find_training_users
from dphmm.jobs.progress import ProgressCallback, unwatched
from dphmm.mechanisms.base import TABLE_MECHANISMS
from dphmm.mechanisms.exact import rational
from dphmm.model import Belief, MarkovModel
from dphmm.policy.expression import policy_in_words
from dphmm.random import derive_seed
from dphmm.release import Releaser, ReleaseSettings, StepPlan
from dphmm.release.caps import make_chain
from dphmm.release.ledger import DAY_SECONDS, steps_per_day
from dphmm.space.trajectory import Trajectory, microseconds
from dphmm.validation import (
    Interval,
    NonNegativeInt,
    OpenProbability,
    PositiveNumber,
    Seconds,
    SeedOrGenerator,
    checked,
    checked_as,
)


@checked_as(ConfigurationError)
@dataclass(frozen=True)
class CalibrationTargets(Result):
    """Targets of a calibration. If several are given, all must hold. Lengths are kilometres.

    Parameters
    ----------
    error
        Lower limit on the RMS distance between a release and the value that the noise is added to.
    estimate_error
        Lower limit on the mean expected error of the posterior mean.
    adversary_error
        Lower limit on the mean expected error of the adversary's point estimate given all releases.
    max_posterior
        Upper limit on the probability of any state, or of the event, after any output.
    max_odds_ratio
        Upper limit on the factor by which the odds of any state, or of the event, rise after any output.
    window_epsilon
        Upper limit on the sum of the budgets within 24 hours.
    event
        The event over time that `max_posterior` and `max_odds_ratio` refer to, as a value or in words. By default they
        refer to states.
    failure_rate
        The share of the users for whom the event occurs that may exceed the limits, estimated by simulation. By default
        no output may exceed them.

    Raises
    ------
    ConfigurationError
        If no target is given, or one is not positive and finite.
    EventError
        If the event cannot be parsed.
    """

    error: PositiveNumber | None = None
    estimate_error: PositiveNumber | None = None
    adversary_error: PositiveNumber | None = None
    max_posterior: OpenProbability | None = None
    max_odds_ratio: Annotated[float, Interval(1, inf, "neither")] | None = None
    window_epsilon: PositiveNumber | None = None
    event: str | EventText | Event | None = None
    failure_rate: OpenProbability | None = None

    def __post_init__(self) -> None:
        if isinstance(self.event, str):
            object.__setattr__(self, "event", parse_event(self.event))
        if self.event is not None and self.max_posterior is None and self.max_odds_ratio is None:
            raise ConfigurationError("event must have a limit, such as --max-posterior 0.7 or --max-odds-ratio 3")
        if self.failure_rate is not None and self.event is None:
            raise ConfigurationError(
                "failure_rate needs an event: it is the share of users that may exceed the event's limit"
            )
        if not self.numeric_targets:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in _NUMERIC_TARGETS)
            raise ConfigurationError(f"at least one target must be given: {names}")

    @property
    def numeric_targets(self) -> dict[str, float]:
        """The numeric targets that are given, by name."""
        return {name: value for name, value in vars(self).items() if name in _NUMERIC_TARGETS and value is not None}

    def _derived(self) -> dict[str, Any]:
        fields = {name: value for name, value in vars(self).items() if value is not None}
        return fields if self.event is None else {**fields, "event": str(self.event)}


# Targets that are searched for by simulation → metric of `Simulation`.
_SIMULATED_METRICS = {
    "error": "released_error",
    "estimate_error": "estimate_error",
    "adversary_error": "smoothed_error",
}
# Names of the numeric targets.
_NUMERIC_TARGETS = ("error", "estimate_error", "adversary_error", "max_posterior", "max_odds_ratio", "window_epsilon")


@dataclass(frozen=True, eq=False)
class BudgetOutcome(Result):
    """Errors and totals of releases at one budget.

    Parameters
    ----------
    epsilon
        The budget of each release.
    released_error
        The RMS distance of a release in kilometres by formula, with all states possible that ever are. With ``delta``,
        the mean over the simulated users' releases, or None without them.
    epsilon_per_hour, epsilon_24h
        The total budget of an hour and of a day with a release at every step.
    simulation
        Metrics of simulated users, None without them.
    event_simulation
        Metrics of simulated users for whom the event occurs. None without an event.
    """

    epsilon: float = field(metadata=exported())
    released_error: float | None = field(metadata=exported("released_error_m", scale=1000))
    epsilon_per_hour: float | None = field(metadata=exported())
    epsilon_24h: float | None = field(metadata=exported())
    simulation: Simulation | None
    event_simulation: Simulation | None = None

    def _derived(self) -> dict[str, Any]:
        event_metrics = {} if self.event_simulation is None else self.event_simulation.to_dict("max_event_probability")
        if self.simulation is None:
            return event_metrics
        names = ("estimate_error", "filtered_error", "smoothed_error", "smoothed_max_posterior")
        return self.simulation.to_dict(*names) | event_metrics


@dataclass(frozen=True, eq=False)
class EventLimitResult:
    """Evaluation of a limit on an event, and of an event cap as an alternative.

    Parameters
    ----------
    cap
        The event cap: the event and the upper limit on its probability.
    prior_probability
        The probability of the event before any release.
    max_epsilon_one_release
        The largest budget at which no output of a single release, at any timestep, exceeds the limit.
    failure_rate, max_failure_rate
        The share of simulated users, among those for whom the event occurs, that exceed the limit at the calibrated
        budget, and its upper bound with confidence 0.99. None without simulated users.
    capped_simulation
        Metrics of such users with an event cap at the limit and at most `max_epsilon_one_release` per release. None
        without simulated users.
    """

    cap: Cap
    prior_probability: float = field(metadata=exported())
    max_epsilon_one_release: float = field(metadata=exported())
    failure_rate: float | None = field(metadata=exported())
    max_failure_rate: float | None = field(metadata=exported())
    capped_simulation: Simulation | None

    def apply_cap(self, settings: ReleaseSettings) -> ReleaseSettings:
        """Add the event cap to settings.

        Parameters
        ----------
        settings
            Settings without an event cap.

        Returns
        -------
        ReleaseSettings
            The settings with the cap, and with `max_epsilon_one_release` as the budget.
        """
        return replace(settings, epsilon=self.max_epsilon_one_release, caps=(self.cap,))

    def to_dict(self) -> dict[str, Any]:
        """Export the values as plain JSON.

        Returns
        -------
        dict
            Names → plain JSON values.
        """
        values = {"event": str(self.cap.event), "limit": self.cap.probability, **export_fields(self)}
        if self.capped_simulation is not None:
            fields = self.capped_simulation.to_dict("estimate_error", "withheld_share", "epsilon_spent")
            values |= {f"capped_{key}": value for key, value in fields.items()}
            assert self.capped_simulation.max_event_probability is not None, "an event was simulated"
            values["capped_max_event_probability"] = float(self.capped_simulation.max_event_probability.max())
            values["capped_num_users"] = self.capped_simulation.num_users
        return values


@dataclass(frozen=True, eq=False)
class CalibrationResult:
    """Result of `calibrate`.

    Parameters
    ----------
    settings
        The settings with the calibrated budget.
    targets
        The targets.
    epsilon_by_target
        Target → the largest budget that meets it.
    achieved
        The outcome at the calibrated budget.
    report
        The outcomes at other budgets.
    num_releases
        Number of releases of each simulated user.
    num_guaranteed_releases
        Number of releases that `max_posterior` and `max_odds_ratio` limit jointly.
    num_users
        Number of simulated users.
    error_without_releases
        The mean expected error of the point estimate without releases, kilometres. With auxiliary data, the mean over
        the simulated users.
    model
        The model's file, or None.
    event
        Evaluation of a limit on an event, None without one.
    auxiliary_knowledge
        What the adversary knows about the users' movement, in words.
    num_users_with_habits
        Number of users with habits known to the adversary. `max_posterior` holds for each of them.
    first_release
        The time of a user's first release for which `max_posterior` and `max_odds_ratio` hold. None if they hold for
        any, or are no targets.
    has_clock_changes
        Whether these limits concern local time with changes of the clocks. They do not hold across one.
    channel_results
        Attacks on releases at these budgets and on other channels (see `dphmm.attack`), for simulated users or for
        users with earlier data. Empty if none were requested, or the attack does not support the model.
    num_training_users
        Number of users with earlier data that the model was trained on, as far as that is known.
    uses
        Uses of the releases of simulated users, for each policy and budget. Empty if they were not requested.
    """

    settings: ReleaseSettings
    targets: CalibrationTargets = field(metadata=exported())
    epsilon_by_target: dict[str, float] = field(metadata=exported())
    achieved: BudgetOutcome = field(metadata=exported())
    report: tuple[BudgetOutcome, ...] = field(metadata=exported())
    num_releases: int = field(metadata=exported())
    num_guaranteed_releases: int = field(metadata=exported())
    num_users: int = field(metadata=exported())
    error_without_releases: float = field(metadata=exported("adversary_error_without_releases_m", scale=1000))
    model: str | None
    event: EventLimitResult | None = None
    auxiliary_knowledge: str = field(default=PUBLIC.auxiliary_knowledge, metadata=exported())
    num_users_with_habits: int = field(default=0, metadata=exported())
    first_release: str | None = field(default=None, metadata=exported())
    has_clock_changes: bool = False
    channel_results: tuple[ChannelResult, ...] = field(default=(), metadata=exported("channels"))
    num_training_users: int = field(default=0, metadata=exported())
    uses: tuple[UsesComparison, ...] = field(default=(), metadata=exported())

    @property
    def channel_population(self) -> str:
        """Description of the users in `channel_results`."""
        count = len(self.channel_results[0].outcomes) if self.channel_results else 0
        users = "user" if count == 1 else "users"
        if self.auxiliary_knowledge != HABITS:
            return f"{count} simulated {users}"
        return f"{count} {users} in the later half of their earlier data"

    @property
    def chosen_result(self) -> ChannelResult | None:
        """The element of `channel_results` for the calibrated budget, None if there is none."""
        return next((outcome for outcome in self.channel_results if outcome.settings == self.settings), None)

    def warnings(self) -> list[str]:
        """Return warnings about the accuracy of the result, each with a remedy.

        Returns
        -------
        list of str
            Sentences. Empty if the binding target is met within a tenth, by users that the model was not trained on.
        """
        parts = []
        if self.num_training_users:
            parts.append(
                f"the model was trained on {self.num_training_users} of the users with earlier data; for other users "
                "the adversary's error may be larger. Train the model on others (--exclude-users)"
            )
        name = _SIMULATED_METRICS.get(self.binding_target)
        simulation = self.achieved.simulation
        if name is None or simulation is None or self.binding_target == "error":
            return parts
        estimate = simulation.estimate_mean(name)
        target = self.targets.numeric_targets[self.binding_target]
        if max(estimate.mean - target, estimate.margin) <= _TARGET_TOLERANCE * target:
            return parts
        return [
            *parts,
            f"the error of {self.num_users} simulated users is {metres(estimate.mean)} ± {metres(estimate.margin)}, "
            f"not within a tenth of the target {metres(target)}; use more --num-users or a shorter --horizon",
        ]

    @property
    def binding_target(self) -> str:
        """The target with the smallest budget."""
        return min(self.epsilon_by_target, key=lambda name: self.epsilon_by_target[name])

    @property
    def command(self) -> str:
        """The command that uses the calibrated budget."""
        return self._build_command(self.settings)

    @property
    def capped_command(self) -> str | None:
        """The alternative command with an event cap, None without an event."""
        return None if self.event is None else self._build_command(self.event.apply_cap(self.settings))

    def _build_command(self, settings: ReleaseSettings) -> str:
        command_options: dict[str, Any] = {"policy": settings.policy, "epsilon": repr(settings.epsilon)}
        defaults = ReleaseSettings(settings.policy, settings.epsilon).to_dict()
        keys = []
        for name, value in settings.to_dict().items():
            if name in command_options or name in ("caps", "layers") or value is None or value == defaults.get(name):
                continue
            if name in _RELEASE_OPTIONS:
                command_options[name.replace("_", "-")] = value
            else:
                keys.append(f"{name} = {json.dumps(value)}")
        for cap in settings.caps:
            command_options |= {"max-event-probability": repr(cap.probability), "event": str(cap.event)}
        if keys:
            command_options["settings"] = "settings.toml"
        options = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in command_options.items())
        line = f"dphmm release DATA --model {shlex.quote(self.model or 'model.npz')} {options} -o releases.gpkg"
        return f"{line}  # settings.toml: {', '.join(keys)}" if keys else line

    def to_dict(self) -> dict[str, Any]:
        """Export the result as plain JSON values.

        Returns
        -------
        dict
            Names → plain JSON values.
        """
        fields = {
            "epsilon": self.settings.epsilon,
            "policy": policy_in_words(self.settings.policy),
            "binding_target": self.binding_target,
            **export_fields(self),
            "confidence": CONFIDENCE,
            "command": self.command,
            "advice": recommend_channel(self.channel_results, self.chosen_result, "the calibrated budget"),
            "channel_population": self.channel_population,
        }
        if self.event is None:
            return fields
        return fields | self.event.to_dict() | {"capped_command": self.capped_command}


# Settings, other than policy and epsilon, with an option of `dphmm release`. The others are keys of a settings file.
_RELEASE_OPTIONS = ("mechanism", "delta", "noise_scope")
# Range of the search for the budget of a lookup table, and the ratio at which it ends.
_TABLE_MIN_EPSILON = 1e-3
_TABLE_MAX_EPSILON = 20.0
_TABLE_SEARCH_RATIO = 1.005
# Targets that limit every output.
_LIMITS = frozenset(("max_posterior", "max_odds_ratio"))
# Maximum number of first slots that limits are computed for: a week of steps of 30 s.
_MAX_STARTS = 20_160
# Number of steps after which the constraint sets must repeat.
_MAX_STEPS = 10_000
# Maximum of steps times states of a simulated user, 400 MB of beliefs.
_MAX_BELIEF_CELLS = 50_000_000
# Added to the seed for users that a search does not use.
_FRESH_SEED_OFFSET = 1 << 32

# Relative amount by which a prior computed in doubles is assumed to be too small.
_ROUNDING = 1e-12

# Default number of simulated users, before the required number is known.
_DEFAULT_NUM_USERS = 16
# Default number of users of whom uses are compared: fewer seldom meet.
_NUM_COMPARED_USERS = 50
# Relative tolerance of an error target, and of the mean over users that it needs.
_TARGET_TOLERANCE = 0.1
_MEAN_TOLERANCE = 0.03
# Maximum number of simulated users for a budget, and of releases times states, about four seconds. A release of an
# engine that runs step by step counts several times.
_MAX_SIMULATED_USERS = 512
_MAX_WORK = 3.5e6
_ENGINE_WORK_FACTOR = 30

# Maximum number of simulated releases with event caps: each takes several milliseconds.
_MAX_CAPPED_RELEASES = 2000


@checked
def calibrate(
    model: Model,
    settings: ReleaseSettings,
    targets: CalibrationTargets,
    *,
    horizon_seconds: Seconds | None = None,
    num_users: NonNegativeInt | None = None,
    report_epsilons: Sequence[float] = (),
    rng: SeedOrGenerator = 0,
    first: int | None = None,
    auxiliary_data: DataLike | None = None,
    adversary_map: str | Path | None = None,
    compare: Sequence[str | Channel] = (),
    uses: UsesSettings | None = None,
    report_policies: Sequence[str] = (),
    watch: ProgressCallback = unwatched,
) -> CalibrationResult:
    """Find the largest budget that meets all targets, as ``dphmm calibrate`` does.

    Where a formula exists, the budget is rounded down to four digits: for the error of a release, for `max_posterior`
    and `max_odds_ratio` (which hold for every output), and for the total budget. The error of a lookup table is
    computed for one budget after another, with the model's probabilities and all states possible that ever are.
    Releases may have smaller errors if fewer states are possible. For the other targets, users that follow the model
    are simulated with one release per step. The budget then has two digits and is checked with users that the search
    did not use.

    With an event, `max_posterior` and `max_odds_ratio` refer to the event. For a single release, all outputs are
    searched at every timestep up to the event's last. For all releases of a horizon, a formula bounds the worst outputs
    jointly. With a failure rate, the limit holds for all but that share of the users for whom the event occurs, as
    shown by simulated users with confidence 0.99.

    Parameters
    ----------
    model
        The model, or its file. It must have a step length.
    settings
        The release settings. Their epsilon is ignored.
    targets
        The targets.
    horizon_seconds
        The time that the adversary observes. For simulated users it defaults to a day, or to the last timestep of an
        event. For `max_posterior` and `max_odds_ratio` it defaults to a single release.
    num_users
        Number of simulated users: 0 to use formulas only, else at least 2. Defaults to 16. For error targets, more are
        used until the target is met within a tenth, within about a minute; see `CalibrationResult.warnings`.
    report_epsilons
        Other budgets to evaluate.
    rng
        Seed or generator of the users.
    first
        Time slot of the first release, counted from 1970. Events with dates need it. For time-dependent models,
        simulated users and events then start at 0, and limits on states hold for any first slot if this can be computed
        in some seconds, otherwise for 0; see `CalibrationResult.first_release`. They do not hold across changes of the
        clocks.
    auxiliary_data
        Earlier data of users, known to the adversary. Simulated users move by the habits of one of these users each, in
        turn, and the adversary knows which; see `dphmm.model.habits.with_habits`. `rng` selects 64 users if there
        are more. `max_posterior` limits the posterior of this adversary about each of these users, of any `num_users`.
        The result is then private.
    adversary_map
        A map that the adversary has, ``"coast"`` or a file (`dphmm.jobs.region_map.build_region_map`). Simulated users
        move by the model weighted with its land (`dphmm.model.map_attraction.with_map`), and the adversary knows this.
        Cannot be combined with auxiliary data or an event.
    compare
        Channels, or their specifications (see `dphmm.attack.parse_channel`), such as `COMPARED_CHANNELS`. At most 16
        users are released by these channels and at the budgets, and attacked: `CalibrationResult.channel_results`. The
        users are simulated. With auxiliary data, they are the later half of each user's days, with habits of the
        earlier half, as in `dphmm.jobs.attack`. Models that an attack does not support are skipped.
    uses
        The assumptions for the uses of releases, see `dphmm.jobs.compare_uses`. They are compared at the calibrated and
        the reported budgets, on `num_users` users sampled from the model (50 by default), of which a tenth are
        patients. By default the uses are not measured.
    report_policies
        Other policies for which the uses are compared, at the same budgets.
    watch
        Progress callback, see `dphmm.jobs.ProgressCallback`.

    Returns
    -------
    CalibrationResult
        The budget and its outcome.

    Raises
    ------
    ConfigurationError, InvalidInputError, BudgetError
        If a target cannot be met (the message states what can), the settings have event caps or a schedule, the horizon
        is shorter than a step, or beliefs do not fit into memory.
    DphmmError
        If the model's file or the policy are invalid.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import CalibrationTargets, calibrate, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> result = calibrate(model, ReleaseSettings("utility:1km", 1.0), CalibrationTargets(error=2.0), num_users=0)
    >>> result.settings.epsilon, round(result.achieved.released_error, 4)
    (1.832, 2.0003)
    """
    seed = derive_seed(rng)
    if settings.caps or settings.schedule is not None:
        raise ConfigurationError(
            "event caps and schedules cannot be combined with a calibration: they choose each budget themselves"
        )
    if num_users == 1:
        raise ConfigurationError("num_users must be 0 or at least 2, got 1")
    _check_uses(uses, report_policies, num_users, auxiliary_data is not None or adversary_map is not None)
    budgets = [check_budget(epsilon) for epsilon in as_floats(report_epsilons, "report_epsilons").ravel().tolist()]
    learned = load_model(model)
    engine = replace(settings, epsilon=1.0).engine(learned)
    for policy in report_policies:
        replace(settings, policy=policy).graph(learned)  # refused before the search
    event = targets.event
    if isinstance(event, EventText):
        event = event.resolve(engine.model.states, Clock(engine.model.step_seconds, first))
    assert not isinstance(event, str), "targets read their event"
    if auxiliary_data is not None and event is not None:
        raise ConfigurationError(
            "--event cannot be combined with --auxiliary-data: its limits hold for the public adversary"
        )
    if adversary_map is not None and (auxiliary_data is not None or event is not None):
        raise ConfigurationError("--map cannot be combined with --auxiliary-data and --event")
    steps = _count_steps(engine, horizon_seconds, None if event is None else event.last + 1)
    earlier = tuple(read_tracks_by_user(auxiliary_data).values())
    habits = () if auxiliary_data is None else _build_habit_models(earlier, engine.model, seed)
    knowledge = HABITS if habits else PUBLIC.auxiliary_knowledge
    if adversary_map is not None:
        adversary = build_map_adversary(adversary_map, engine.model)
        assert adversary.model is not None, "an adversary with a map has a model"
        knowledge, habits = adversary.auxiliary_knowledge, (adversary.model,)
    guaranteed = 1 if horizon_seconds is None else steps
    num_compared = _NUM_COMPARED_USERS if num_users is None else num_users
    can_add_users = num_users is None
    if num_users is None:
        num_users = _DEFAULT_NUM_USERS
    start = 0 if first is None else first
    has_limit = not _LIMITS.isdisjoint(targets.numeric_targets)
    has_any_start = first is None and event is None and has_limit and count_period_steps(learned) <= _MAX_STARTS
    job = _Calibration(
        engine,
        targets,
        event,
        steps,
        guaranteed,
        num_users,
        seed,
        watch,
        start,
        earlier,
        habits,
        can_add_users,
        has_any_start,
    )
    by_target = {name: job.find_epsilon(name, value) for name, value in targets.numeric_targets.items()}
    chosen = round_down(min(by_target.values()))
    # A budget is only known to keep the limit if it was checked itself.
    while not job.keeps_limit(chosen):
        chosen = round_down(0.99 * chosen)
    achieved = job.evaluate(chosen, "Releasing at the calibrated epsilon")
    others = tuple(job.evaluate(epsilon, "Releasing at the reported epsilons") for epsilon in budgets)
    return CalibrationResult(
        replace(settings, epsilon=achieved.epsilon),
        targets,
        by_target,
        achieved,
        others,
        steps,
        guaranteed,
        job.num_users,
        job.errors_without_releases[0],
        str(model) if isinstance(model, str | Path) else None,
        None if event is None else job.evaluate_event_limit(event, achieved),
        knowledge,
        len(habits) if auxiliary_data is not None else 0,
        None if job.has_any_start or not has_limit or learned.time_classes is None else _format_slot(start, learned),
        has_limit and learned.time_classes is not None and learned.time_classes.zone != "UTC",
        job.attack_channels([outcome.epsilon for outcome in (*others, achieved)], compare),
        len((find_training_users(model, learned) or frozenset()) & {track.user for track in earlier}),
        ()
        if uses is None
        else compare_uses(
            learned,
            [
                replace(settings, policy=policy, epsilon=epsilon)
                for policy in dict.fromkeys((settings.policy, *report_policies))
                for epsilon in sorted({*budgets, achieved.epsilon})
            ],
            sample_users(learned, num_compared, steps, start, seed),
            first=start,
            num_patients=max(1, num_compared // 10),
            uses=uses,
            rng=seed,
            watch=watch,
        ),
    )


def _check_uses(uses: UsesSettings | None, policies: Sequence[str], num_users: int | None, has_habits: bool) -> None:
    """Refuse requests for uses that the simulated users cannot answer."""
    if uses is None and policies:
        raise ConfigurationError("report_policies needs uses: other outcomes are those of one policy")
    if uses is not None and has_habits:
        raise ConfigurationError("uses cannot be combined with auxiliary data or a map: their users follow the model")
    if uses is not None and num_users is not None and num_users < 2:
        raise ConfigurationError(f"num_users must be at least 2 for uses, got {num_users}")


COMPARED_CHANNELS = (
    *(f"release:utility:1km@day:{epsilon}" for epsilon in (48, 12, 3)),
    *(f"snap:{length}" for length in ("1km", "2km", "4km")),
    *(f"planar-laplace:{length}" for length in ("500m", "2km", "8km")),
    *(f"hourly:{hours}" for hours in (1, 4)),
)
"""Channels for comparison in a figure: daily budgets, grids, planar Laplace noise and infrequent exact locations."""

# Maximum number of attacked users.
_MAX_ATTACKED_USERS = 16
# Maximum number of users with habits: each has its own model of some megabytes.
_MAX_HABITS = 64

# Columns and rows of parts per cell for these attacks, see `dphmm.attack.mesh`.
_PARTS = 2


def _build_habit_models(tracks: Iterable[Trajectory], model: MarkovModel, seed: int) -> tuple[MarkovModel, ...]:
    """Build the movement models of at most `_MAX_HABITS` users with data in the region."""
    histories = [history for track in tracks if (history := history_before(track, model, None)) is not None]
    if not histories:
        raise ConfigurationError("auxiliary data must have a location in the model's region; use data of other users")
    if len(histories) > _MAX_HABITS:
        chosen = np.random.default_rng(seed).choice(len(histories), _MAX_HABITS, replace=False)
        histories = [histories[i] for i in chosen]
    return tuple(build_habit_model(model, history) for history in histories)


def _count_steps(engine: Releaser, horizon_seconds: float | None, default: int | None) -> int:
    step = engine.model.step
    seconds = DAY_SECONDS if horizon_seconds is None else horizon_seconds
    if seconds < step and horizon_seconds is not None:
        raise ConfigurationError(f"--horizon must be at least the model's step of {step:g} s, got {seconds:g} s")
    steps = default if horizon_seconds is None and default is not None else max(1, int(seconds / step))
    if steps * engine.model.size > _MAX_BELIEF_CELLS:
        raise ConfigurationError(
            f"{steps:,} releases over {engine.model.size:,} states do not fit into memory; use a shorter --horizon, "
            f"such as {max(1, _MAX_BELIEF_CELLS // engine.model.size) * step / 3600:.3g}h"
        )
    return steps


@dataclass(eq=False)
class _Calibration:
    """A running calibration with cached intermediate results."""

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
            max_work = MAX_WORK / len(self._models)
            models = self.watch(self._models, "Computing probabilities")
            priors = list(takewhile(bool, (compute_max_prior(model, None, max_work) for model in models)))
            if len(priors) == len(self._models):
                return max(filter(None, priors))
            # All first slots would take too long.
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
        period = count_period_steps(self.engine.model) if self.has_any_start else 1
        return _plans_by_support(self.engine, range(self.first, self.first + period))

    @property
    def _has_adaptive_plans(self) -> bool:
        """Whether plans of later releases depend on earlier outputs."""
        settings = self.engine.settings
        chosen = settings.mechanism not in TABLE_MECHANISMS and any(
            plan.repair_prior is not None for plan, _ in self._plans
        )
        return settings.delta is not None or chosen or any(isinf(plan.protection.diameter) for plan, _ in self._plans)

    def _total_diameter(self, option: str) -> float:
        """Return the largest constrained-DP factor times the number of guaranteed releases."""
        widest = max(plan.protection.diameter for plan, _ in self._plans)
        if self._has_adaptive_plans and isfinite(widest):
            reason = "delta" if self.engine.settings.delta is not None else "a repair that depends on the belief"
            raise ConfigurationError(
                f"{option} cannot be combined with {reason}: later releases depend on earlier outputs and may reveal "
                "more than the limit. Remove it, or use --adversary-error or --event with --failure-rate"
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
                return epsilon_for_factor(self._total_diameter("--max-odds-ratio"), value)
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
            if target not in _LIMITS:
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
        return epsilon_for_odds(self._total_diameter("--horizon"), prior, limit)

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

        def metric(epsilon: float, what: str, seed: int) -> MeanEstimate:
            return MeanEstimate(1.0 - self._simulate(epsilon, what, seed, event).estimate_share_above(limit)[1], 0.0)

        return self._search(metric, 1.0 - share, start, f"a failure rate of {share:g} above {limit:g}")

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
        unit = float(rational(settings.spacing)) if settings.mechanism == "lattice" else 1.0
        return min(epsilon_for_error(part, length / unit) for part in noisy)

    def _released_error(self, epsilon: float) -> float:
        """Return the error of a release if all states are possible that ever are."""
        plan, prior = max(self._plans, key=lambda plan_and_prior: int(plan_and_prior[0].constraint.sum()))
        return self.engine.planner.build_noise(plan, epsilon).expected_error(prior)

    def _find_for_table_error(self, length: float) -> float:
        low = _TABLE_MIN_EPSILON
        high = _TABLE_MAX_EPSILON

        def excess(epsilon: float) -> float:
            return _log_ratio(self._released_error(epsilon), length)

        values = {epsilon: excess(epsilon) for epsilon in (low, high)}
        if values[low] < 0:
            raise BudgetError(
                f"no table has an error of {metres(length)}: at epsilon {low:g} it is "
                f"{metres(self._released_error(low))}; use a shorter length"
            )
        if values[high] >= 0:
            return high
        return round_down(search_largest(excess, low, high, _TABLE_SEARCH_RATIO, values=values), 3)

    def _find_for_max_posterior(self, max_posterior: float) -> float:
        prior = self._max_prior
        if max_posterior <= prior:
            raise InvalidInputError(
                f"--max-posterior must be above {prior:.4g}, a bound of the probabilities without releases, got "
                f"{max_posterior:g}"
            )
        return epsilon_for_odds(self._total_diameter("--max-posterior"), prior, max_posterior)

    def _find_for_simulated_error(self, name: str, max_error: float, length: float) -> float:
        if length >= max_error:
            raise InvalidInputError(
                f"the target error must be below {metres(max_error)}, the mean error without releases, got "
                f"{metres(length)}"
            )
        if self.num_users < 2:
            raise ConfigurationError("this target needs at least 2 simulated users: use --num-users 2 or more")

        def metric(epsilon: float, what: str, seed: int) -> MeanEstimate:
            return self._simulate(epsilon, what, seed, metric=name).estimate_mean(name)

        about = f"target {metres(length)}, below the {metres(max_error)} without releases"
        if not self.can_add_users:
            return self._search(metric, length, 0.1, about)
        about = f"{about}, with {self.num_users} users at first"
        # Find the budget roughly with few users, then add as many as the variance of their errors requires.
        first_users = self.num_users
        near = search_largest(
            lambda epsilon: _log_ratio(metric(epsilon, "Trying", self.seed).mean, length), 1e-3, 1e2, 1.2
        )
        deviation = metric(near, "Trying", self.seed).margin / length
        is_sequential = PathReleaser(self.engine, near, self.steps, self.first).is_sequential
        work = (_ENGINE_WORK_FACTOR if is_sequential else 1) * self.steps * self.engine.model.size
        max_users = int(min(_MAX_SIMULATED_USERS, _MAX_WORK / work))
        self.num_users = max(first_users, min(ceil(first_users * (deviation / _MEAN_TOLERANCE) ** 2), max_users))
        return self._search(metric, length, near, about, fine=True)

    def evaluate(self, epsilon: float, what: str) -> BudgetOutcome:
        """Evaluate a budget."""
        step = self.engine.model.step
        simulation = None
        event_simulation = None
        delta = self.engine.settings.delta
        error = None if delta is not None else self._released_error(epsilon)
        if self.num_users:
            simulation = self._simulate(epsilon, what, self.seed + _FRESH_SEED_OFFSET)
            error = error if delta is None else float(simulation.released_error.mean())
            if self.event is not None:
                event_simulation = self._simulate(epsilon, what, self.seed + _FRESH_SEED_OFFSET, self.event)
        hour = epsilon * ceil(3600 / step)
        day = epsilon * ceil(DAY_SECONDS / step)
        return BudgetOutcome(epsilon, error, hour, day, simulation, event_simulation)

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


def _log_ratio(error: float, length: float) -> float:
    """Return the logarithm of a ratio, which is nearly linear in that of the budget."""
    return log(error / length) if error > 0 else -inf


def _format_slot(slot: int, model: MarkovModel) -> str:
    """Return the time of a slot."""
    time = np.datetime64(0, "us") + np.timedelta64(slot * microseconds(model.step, "step"), "us")
    return f"{time.astype('datetime64[s]')}Z"


def _plans_by_support(engine: Releaser, starts: Sequence[int]) -> list[tuple[StepPlan, Belief]]:
    """Collect the plans of all constraint sets along the model's support, each with a belief.

    The constraint sets follow from the model and the time if no release excludes a state. The collection is complete
    for a start once a set occurs again, for time-dependent models at the same time of the week, or once every time
    class leads from a set to itself.
    """
    plans: dict[bytes, tuple[StepPlan, Belief]] = {}
    seen = set[tuple[int, bytes]]()
    stable: dict[bytes, bool] = {}
    period = count_period_steps(engine.model)
    for start in starts:
        for slot, belief in zip(range(start, start + _MAX_STEPS), iterate_beliefs(engine.model, start), strict=False):
            now = np.isfinite(belief.chain_logs).tobytes()
            support = belief.support.tobytes()
            if support not in plans:
                plans[support] = engine.planner.build_plan(belief), belief
            if now not in stable:
                stable[now] = _support_is_stable(engine, belief, slot)
            if stable[now] or (slot % period, now) in seen:
                break
            seen.add((slot % period, now))
        else:
            raise ConfigurationError(
                f"the possible states must repeat within {_MAX_STEPS:,} steps of the model, so that a limit holds for "
                "each release; use a model with transitions that reach all of its states, such as one with --smoothing"
            )
    return list(plans.values())


def _support_is_stable(engine: Releaser, belief: Belief, slot: int) -> bool:
    """Return whether the possible states stay the same from a time on, in every time class."""
    model = engine.model
    possible = np.isfinite(belief.chain_logs)
    slots = {0: slot}
    if model.time_classes is not None:
        hour = max(1, round(3600 / model.step))
        slots = {
            model.time_classes.get_class(hour_slot + 1): hour_slot for hour_slot in range(slot, slot + 168 * hour, hour)
        }
    after = (np.isfinite(belief.predict(model, 1, hour_slot).chain_logs) for hour_slot in slots.values())
    return all((reachable == possible).all() for reachable in after)
