"""Targets and results of a calibration."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Any

from dphmm.attack import ChannelResult
from dphmm.attack.recommendation import recommend_channel
from dphmm.audit.empirical_epsilon import CONFIDENCE
from dphmm.audit.sequence import PUBLIC
from dphmm.calibrate import (
    Simulation,
)
from dphmm.errors import ConfigurationError
from dphmm.events import Cap, Event, EventText, parse_event
from dphmm.formatting import Result, export_fields, exported, format_kilometres
from dphmm.jobs.audit.adversaries import (
    HABITS,
)
from dphmm.jobs.audit.uses import UsesComparison
from dphmm.policy.expression import describe_policy, format_policy_label
from dphmm.release import ReleaseSettings
from dphmm.validation import (
    Interval,
    OpenProbability,
    PositiveNumber,
    check_arguments_as,
)

# Settings, other than policy and epsilon, with an option of `dphmm release`. The others are keys of a settings file.
_RELEASE_OPTIONS = ("mechanism", "delta", "noise_scope")
# Relative tolerance of an error target.
_TARGET_TOLERANCE = 0.1


@check_arguments_as(ConfigurationError)
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

    def _derive_fields(self) -> dict[str, Any]:
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
        The RMS distance of a release in kilometres by formula, with all states possible that ever are. If later
        releases depend on earlier outputs, as with ``delta``, the RMS error of the simulated users' releases, or
        None without them.
    epsilon_per_hour, epsilon_24h
        The total budget of an hour and of a day with a release at every step.
    simulation
        Metrics of simulated users, None without them.
    event_simulation
        Metrics of simulated users for whom the event occurs. None without an event.
    has_error_formula
        Whether `released_error` follows by formula.
    """

    epsilon: float = field(metadata=exported())
    released_error: float | None = field(metadata=exported("released_error_m", scale=1000))
    epsilon_per_hour: float | None = field(metadata=exported())
    epsilon_24h: float | None = field(metadata=exported())
    simulation: Simulation | None
    event_simulation: Simulation | None = None
    has_error_formula: bool = True

    def _derive_fields(self) -> dict[str, Any]:
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

    def list_warnings(self) -> list[str]:
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
        is_simulated = self.binding_target != "error" or not self.achieved.has_error_formula
        if name is None or simulation is None or not is_simulated:
            return parts
        estimate = simulation.estimate_mean(name)
        target = self.targets.numeric_targets[self.binding_target]
        if max(estimate.mean - target, estimate.margin) <= _TARGET_TOLERANCE * target:
            return parts
        return [
            *parts,
            f"the error of {self.num_users} simulated users is {format_kilometres(estimate.mean)} ± "
            f"{format_kilometres(estimate.margin)}, "
            f"not within a tenth of the target {format_kilometres(target)}; use more --num-users or a shorter "
            "--horizon",
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
            "policy": format_policy_label(self.settings.policy),
            "policy_description": describe_policy(self.settings.policy),
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
