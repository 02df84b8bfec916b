"""What calibrations are asked for, and what they find."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from dphmm.arguments import checked
from dphmm.calibrate.simulation import CONFIDENCE, Simulation
from dphmm.errors import ConfigurationError
from dphmm.events.caps import Cap
from dphmm.events.event import Event
from dphmm.events.expression import parse_event
from dphmm.events.wording import EventText
from dphmm.policy.expression import policy_in_words
from dphmm.release.settings import ReleaseSettings


@checked
@dataclass(frozen=True)
class Targets:
    """What releases should do; where several are given, all of them hold. Lengths are kilometres.

    Parameters
    ----------
    error
        The root mean square distance of a release from the place it is drawn around: at least this.
    estimate_error
        The mean expected distance of the posterior mean: at least this.
    adversary_error
        The mean expected distance of the best guess in hindsight: at least this.
    certainty
        The probability that no place, or the event, may come to have from any release, whatever is drawn.
    odds
        The factor by which the odds of no place, or of the event, may rise, whatever is drawn.
    day_epsilon
        The sum of the budgets of the releases within 24 hours: at most this.
    event
        What certainty and odds are about instead of places: something over time, as a value or in words.
    share
        With an event: it may pass the limits for this share of the people who do it; they are simulated. Left out, for
        nobody, whatever is drawn.

    Raises
    ------
    ConfigurationError
        When none is given, or one is not positive and finite.
    EventError
        When the event cannot be read.
    """

    error: float | None = None
    estimate_error: float | None = None
    adversary_error: float | None = None
    certainty: float | None = None
    odds: float | None = None
    day_epsilon: float | None = None
    event: str | EventText | Event | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.event, str):
            object.__setattr__(self, "event", parse_event(self.event))
        given = self.numbers
        if self.event is not None and self.certainty is None and self.odds is None:
            raise ConfigurationError("an event is without a limit; give --certainty 0.7, or --odds 3")
        if self.share is not None and (self.event is None or not 0 < self.share < 1):
            raise ConfigurationError(
                f"--share is {self.share:g}; give a share of people between 0 and 1, for a limit on an --event"
            )
        if not given:
            raise ConfigurationError(
                "no target is given; give --error, --estimate-error, --adversary-error, --certainty, --odds or "
                "--day-epsilon"
            )
        for name, value in given.items():
            if not 0 < value < inf:
                raise ConfigurationError(f"--{name.replace('_', '-')} is {value:g}; give a positive, finite number")

    @property
    def numbers(self) -> dict[str, float]:
        """The targets by name that are given."""
        return {name: value for name, value in vars(self).items() if name not in _WORDS and value is not None}

    def facts(self) -> dict[str, Any]:
        """What is given, as plain JSON values."""
        found = {name: value for name, value in vars(self).items() if value is not None}
        return found if self.event is None else {**found, "event": str(self.event)}


_WORDS = ("event", "share")


@dataclass(frozen=True, eq=False)
class Achieved:
    """What releases with a budget do.

    Attributes
    ----------
    epsilon
        The budget of each release.
    released_error
        The root mean square distance of a release, kilometres, where all is possible that ever is; by formula.
    hour_epsilon, day_epsilon
        What a release at every step of the model spends in an hour and in a day; None for a model without a step.
    simulation
        What simulated people's releases told; None where none were asked for.
    doing
        The same of people who do what an event says; None without one.
    """

    epsilon: float
    released_error: float
    hour_epsilon: float | None
    day_epsilon: float | None
    simulation: Simulation | None
    doing: Simulation | None = None

    def facts(self) -> dict[str, Any]:
        """As plain JSON values, in metres."""
        facts: dict[str, Any] = {
            "epsilon": self.epsilon,
            "released_error_m": 1000.0 * self.released_error,
            "epsilon_an_hour": self.hour_epsilon,
            "epsilon_a_day": self.day_epsilon,
        }
        simulation = self.simulation
        if simulation is not None:
            for key, name in _NAMES.items():
                found = simulation.figure(name)
                unit = 1.0 if name == "certainty" else 1000.0
                facts[key], facts[f"{key}_give_or_take"] = unit * found.mean, unit * found.margin
        if self.doing is not None:
            found = self.doing.figure("reached")
            facts |= {"event_probability_most": found.mean, "event_probability_most_give_or_take": found.margin}
        return facts


_NAMES = {
    "estimate_error_m": "estimate",
    "adversary_error_m_at_once": "online",
    "adversary_error_m_in_hindsight": "hindsight",
    "adversary_certainty_in_hindsight": "certainty",
}


@dataclass(frozen=True, eq=False)
class EventLimited:
    """How a limit on an event holds, and what a cap on it would do instead.

    Attributes
    ----------
    cap
        The event, and what no release is to take its probability above.
    prior
        Its probability before anything is released.
    one_release
        The largest budget at which no output of one release, made at any one moment, does so.
    share, share_most
        Among simulated people who do it the share of whom all releases together did at the budget found, and the most
        that it may be among all who do it, with confidence 0.99; None without simulated people.
    capped
        Such people's releases with a cap at the limit, at most `one_release` each; None where none were simulated.
    """

    cap: Cap
    prior: float
    one_release: float
    share: float | None
    share_most: float | None
    capped: Simulation | None

    def settings(self, settings: ReleaseSettings) -> ReleaseSettings:
        """Settings with the cap."""
        return replace(settings, epsilon=self.one_release, caps=(self.cap,))

    def facts(self) -> dict[str, Any]:
        """As plain JSON values."""
        facts: dict[str, Any] = {
            "event": str(self.cap.event),
            "probability_before": self.prior,
            "limit": self.cap.probability,
            "epsilon_for_one_release": self.one_release,
        }
        if self.share is not None:
            facts |= {"share_of_those_above": self.share, "share_of_those_above_most": self.share_most}
        if self.capped is not None:
            told = {"estimate": "estimate_error_m", "withheld": "moments_withheld", "spent": "epsilon"}
            for name, key in told.items():
                mean = self.capped.figure(name).mean
                facts[f"never_surer_{key}"] = 1000.0 * mean if key.endswith("_m") else mean
            assert self.capped.reached is not None, "an event was simulated"
            facts["never_surer_event_probability_most"] = float(self.capped.reached.max())
            facts["never_surer_people"] = self.capped.people
        return facts


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A budget that meets targets.

    Attributes
    ----------
    settings
        With the budget.
    targets
        What was asked for.
    by_target
        Target → the largest budget that meets it.
    achieved
        What the budget achieves.
    row
        The same of other budgets.
    releases
        How many releases each simulated person has.
    guaranteed
        Over how many releases together certainty and odds are limited, whatever is drawn.
    people
        How many of these there are.
    uninformed
        The mean expected distance of the best guess without any release, kilometres.
    model
        The model's file, where it is one.
    event
        How a limit on an event holds; None without one.
    """

    settings: ReleaseSettings
    targets: Targets
    by_target: dict[str, float]
    achieved: Achieved
    row: tuple[Achieved, ...]
    releases: int
    guaranteed: int
    people: int
    uninformed: float
    model: str | None
    event: EventLimited | None = None

    @property
    def binding(self) -> str:
        """The target that asks for the least budget."""
        return min(self.by_target, key=lambda name: self.by_target[name])

    @property
    def command(self) -> str:
        """The line to run."""
        return self._line(self.settings)

    @property
    def capped_command(self) -> str | None:
        """The line to run instead, with a cap on the event; None without one."""
        return None if self.event is None else self._line(self.event.settings(self.settings))

    def _line(self, settings: ReleaseSettings) -> str:
        said: dict[str, Any] = {"policy": settings.policy, "epsilon": repr(settings.epsilon)}
        usual = ReleaseSettings(settings.policy, settings.epsilon).to_dict()
        for name, value in settings.to_dict().items():
            if name not in said and name != "caps" and value is not None and value != usual.get(name):
                said[name.replace("_", "-")] = value
        for cap in settings.caps:
            said |= {"never-surer": f"{cap.probability:.6g}", "event": str(cap.event)}
        options = " ".join(
            f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}" for name, value in said.items()
        )
        return f"dphmm release DATA --model {shlex.quote(self.model or 'model.npz')} {options} -o releases.gpkg"

    def facts(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "epsilon": self.settings.epsilon,
            "joined_places": policy_in_words(self.settings.policy),
            "targets": self.targets.facts(),
            "epsilon_by_target": self.by_target,
            "binding": self.binding,
            "achieved": self.achieved.facts(),
            "row": [one.facts() for one in self.row],
            "releases": self.releases,
            "guaranteed_releases": self.guaranteed,
            "people": self.people,
            "confidence": CONFIDENCE,
            "adversary_error_m_without_releases": 1000.0 * self.uninformed,
            "command": self.command,
            **({} if self.event is None else {**self.event.facts(), "command_with_a_cap": self.capped_command}),
        }
