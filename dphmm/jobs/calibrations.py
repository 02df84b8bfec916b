"""Which epsilon for a model and a policy, from metres, odds or a day's spending, and what it achieves."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, inf, isfinite, isinf, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import expit

from dphmm.arguments import checked
from dphmm.arrays import as_floats, check_budget
from dphmm.attack import Channel, ChannelResult, Moves, Track, attack_tracks, parse_channel
from dphmm.attack.measures import advice
from dphmm.attack.noise_channel import Released
from dphmm.audit.sequence import PUBLIC
from dphmm.calibrate import (
    Figure,
    Simulation,
    epsilon_for_error,
    epsilon_for_odds,
    epsilon_for_spending,
    largest_epsilon,
    simulate,
)
from dphmm.calibrate.budgets import EventLimit, epsilon_for_factor, largest_between, rounded_down
from dphmm.calibrate.simulation import CONFIDENCE, PathReleases, beliefs_along, without_releases
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError
from dphmm.events import Cap, Clock, Event, EventOdds, EventText, parse_event
from dphmm.facts import fact, facts_of, metres
from dphmm.jobs.adversaries import HABITS, EachHabits, Moments, before, habits, tracks_of
from dphmm.jobs.attacks import halves
from dphmm.jobs.input_data import DataLike
from dphmm.jobs.models import Model, load_model, people_seen
from dphmm.jobs.progress import Watch, unwatched
from dphmm.mechanisms.base import TABLES
from dphmm.mechanisms.exact import rational
from dphmm.model import Belief, MarkovModel
from dphmm.policy.expression import policy_in_words
from dphmm.release import Releaser, ReleaseSettings, StepPlan
from dphmm.release.event_caps import chain_of
from dphmm.release.ledger import DAY_SECONDS, day_steps
from dphmm.space.trajectory import Trajectory


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
        no one, whatever is drawn.

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
            names = ", ".join(f"--{name.replace('_', '-')}" for name in _NUMBERS)
            raise ConfigurationError(f"no target is given; give one of {names}")
        for name, value in given.items():
            if not 0 < value < inf:
                raise ConfigurationError(f"--{name.replace('_', '-')} is {value:g}; give a positive, finite number")

    @property
    def numbers(self) -> dict[str, float]:
        """The targets by name that are given."""
        return {name: value for name, value in vars(self).items() if name in _NUMBERS and value is not None}

    def facts(self) -> dict[str, Any]:
        """What is given, as plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        found = {name: value for name, value in vars(self).items() if value is not None}
        return found if self.event is None else {**found, "event": str(self.event)}


_SIMULATED = {"error": "released", "estimate_error": "estimate", "adversary_error": "hindsight"}
"""Targets that are looked for among simulated people → the figure of theirs."""

_NUMBERS = ("error", "estimate_error", "adversary_error", "certainty", "odds", "day_epsilon")


@dataclass(frozen=True, eq=False)
class Achieved:
    """What releases with a budget do.

    Parameters
    ----------
    epsilon
        The budget of each release.
    released_error
        The root mean square distance of a release, kilometres, where all is possible that ever is; by formula. With
        ``delta`` the mean over simulated people's releases, None without them.
    hour_epsilon, day_epsilon
        What a release at every step of the model spends in an hour and in a day; None for a model without a step.
    simulation
        What simulated people's releases disclosed; None where none were asked for.
    doing
        The same of people who do what an event says; None without one.
    """

    epsilon: float = field(metadata=fact())
    released_error: float | None = field(metadata=fact("released_error_m", times=1000))
    hour_epsilon: float | None = field(metadata=fact("epsilon_an_hour"))
    day_epsilon: float | None = field(metadata=fact("epsilon_a_day"))
    simulation: Simulation | None
    doing: Simulation | None = None

    def facts(self) -> dict[str, Any]:
        """As plain JSON values, in metres.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        facts = facts_of(self)
        if self.simulation is not None:
            facts |= self.simulation.facts("estimate", "online", "hindsight", "certainty")
        return facts if self.doing is None else facts | self.doing.facts("reached")


@dataclass(frozen=True, eq=False)
class EventLimited:
    """How a limit on an event holds, and what a cap on it would do instead.

    Parameters
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
    prior: float = field(metadata=fact("probability_before"))
    one_release: float = field(metadata=fact("epsilon_for_one_release"))
    share: float | None = field(metadata=fact("share_of_those_above"))
    share_most: float | None = field(metadata=fact("share_of_those_above_most"))
    capped: Simulation | None

    def settings(self, settings: ReleaseSettings) -> ReleaseSettings:
        """Settings with the cap.

        Parameters
        ----------
        settings
            Settings without a cap.

        Returns
        -------
        ReleaseSettings
            The same with the cap, and the budget of one release.
        """
        return replace(settings, epsilon=self.one_release, caps=(self.cap,))

    def facts(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        facts = {"event": str(self.cap.event), "limit": self.cap.probability, **facts_of(self)}
        if self.capped is not None:
            found = self.capped.facts("estimate", "withheld", "spent")
            facts |= {f"never_surer_{key}": value for key, value in found.items()}
            assert self.capped.reached is not None, "an event was simulated"
            facts["never_surer_event_probability_most"] = float(self.capped.reached.max())
            facts["never_surer_people"] = self.capped.people
        return facts


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A budget that meets targets.

    Parameters
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
    knows
        What the adversary knows of how people move, in words.
    tried
        What releases at these budgets, and channels beside them, give away of simulated people, or of those whose
        earlier data are known, as an attack finds it; see `dphmm.attack`. Empty where none were asked for, or no attack
        takes the model.
    learned_from
        How many of the people whose earlier data are known the model was learned from, as far as is known.
    """

    settings: ReleaseSettings
    targets: Targets = field(metadata=fact())
    by_target: dict[str, float] = field(metadata=fact("epsilon_by_target"))
    achieved: Achieved = field(metadata=fact())
    row: tuple[Achieved, ...] = field(metadata=fact())
    releases: int = field(metadata=fact())
    guaranteed: int = field(metadata=fact("guaranteed_releases"))
    people: int = field(metadata=fact())
    uninformed: float = field(metadata=fact("adversary_error_m_without_releases", times=1000))
    model: str | None
    event: EventLimited | None = None
    knows: str = field(default=PUBLIC.knows, metadata=fact("adversary_knows"))
    tried: tuple[ChannelResult, ...] = field(default=(), metadata=fact("channels"))
    learned_from: int = field(default=0, metadata=fact("known_people_that_the_model_was_learned_from"))

    @property
    def tried_on(self) -> str:
        """Whom `tried` is about, in words."""
        count = len(self.tried[0].outcomes) if self.tried else 0
        people = "person" if count == 1 else "people"
        if self.knows == PUBLIC.knows:
            return f"{count} simulated {people}"
        return f"{count} {people}, in the later half of the earlier data"

    @property
    def chosen(self) -> ChannelResult | None:
        """What the budget found gives away, of `tried`; None where that is empty."""
        return next((one for one in self.tried if one.settings == self.settings), None)

    def warnings(self) -> list[str]:
        """Why figures may mislead: too few people, or people the model was learned from; with what to do about it.

        Returns
        -------
        list of str
            Sentences; none where the target that binds the budget is met within a tenth, by others.
        """
        own = []
        if self.learned_from:
            own.append(
                f"the model was learned from {self.learned_from} of the people whose earlier data are known; of people "
                "whom it has not seen a reader may be farther off: learn it from others (--exclude-users)"
            )
        name, simulation = _SIMULATED.get(self.binding), self.achieved.simulation
        if name is None or simulation is None or self.binding == "error":
            return own
        found, asked = simulation.figure(name), self.targets.numbers[self.binding]
        if max(found.mean - asked, found.margin) <= _WITHIN * asked:
            return own
        return [
            *own,
            f"of {self.people} simulated people the error is {metres(found.mean)} ± {metres(found.margin)}, not within "
            f"a tenth of the {metres(asked)} asked for; give more --people, or a shorter --over",
        ]

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
            if name not in said and name not in ("caps", "layers") and value is not None and value != usual.get(name):
                said[name.replace("_", "-")] = value
        for cap in settings.caps:
            said |= {"never-surer": f"{cap.probability:.6g}", "event": str(cap.event)}
        options = " ".join(
            f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}" for name, value in said.items()
        )
        return f"dphmm release DATA --model {shlex.quote(self.model or 'model.npz')} {options} -o releases.gpkg"

    def facts(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns
        -------
        dict
            Names of facts → plain JSON values.
        """
        words = {"joined_places": policy_in_words(self.settings.policy), "binding": self.binding}
        found = {"epsilon": self.settings.epsilon, **words, **facts_of(self), "confidence": CONFIDENCE}
        found |= {"command": self.command, "which_to_take": advice(self.tried, self.chosen, "the budget found")}
        found |= {"channels_tried_on": self.tried_on}
        return found if self.event is None else found | self.event.facts() | {"command_with_a_cap": self.capped_command}


_LEAST_TABLE, _MOST_TABLE, _NEAR_TABLE = 1e-3, 20.0, 1.005
"""Between which budgets a table's is looked for, and how near, as a ratio."""
_MOST_STEPS = 10_000
"""The steps after which the sets of possible states must have begun to repeat themselves."""
_MOST_CELLS = 50_000_000
_OTHERS = 1 << 32
"""What is added to a seed for people whom a search has not looked at."""

_ROUNDING = 1e-12
"""By which part of itself a prior in doubles is taken to be too small."""

_PEOPLE = 16
"""How many people are simulated where it is not said, before it is known how many are needed."""
_WITHIN, _CLOSE = 0.1, 0.03
"""How near, as a part of it, a target of an error is to be met, and how well a mean over people is known for that."""
_MOST_PEOPLE, _WORK, _ONE_BY_ONE = 512, 3.5e6, 30
"""The most people that are simulated for a budget, and the most releases times states, about four seconds; and how
often a release counts for an engine that goes through them one by one."""

_CAPPED_STEPS = 2000
"""The most capped releases that are simulated: each takes several milliseconds."""


@checked
def calibrate(
    model: Model,
    settings: ReleaseSettings,
    targets: Targets,
    *,
    over_seconds: float | None = None,
    people: int | None = None,
    row: Sequence[float] = (),
    seed: int = 0,
    first: int | None = None,
    known: DataLike | None = None,
    beside: Sequence[str | Channel] = (),
    watch: Watch = unwatched,
) -> Calibrated:
    """The largest budget of a release that meets some targets, as ``dphmm calibrate`` does.

    By formula where there is one, rounded down to four digits: the error of a release, odds and certainty (which hold
    whatever is drawn), and spending. The error of tables is worked out for one budget after another, under what the
    model alone gives each state where all is possible that ever is: where less is, releases may err less.
    Otherwise people who move as the model says are simulated, one release a step, and
    the budget is of two digits and held against people whom the search had not looked at.

    With an event, odds and certainty are about that: of one release by looking at all its outputs, at every moment up
    to the event's last; of all releases of a time by formula, which counts what the worst outputs together could do;
    with a share of the people who do it, for all others of them, as far as simulated people show it with confidence
    0.99.

    Parameters
    ----------
    model
        The model, or its file; it knows its step.
    settings
        How places are to be released; the epsilon in it does not matter.
    targets
        What is asked for.
    over_seconds
        The time that adversaries are given: for simulated people, a day where it is left out, or up to the last moment
        of an event; for certainty and odds one release where it is left out.
    people
        How many people are simulated; 0 for none, where formulas do. Left out, 16, and for targets of errors as many as
        it takes to meet them within a tenth, as far as a minute or so suffices: see `Calibrated.warnings`.
    row
        Budgets to say the same figures of.
    seed
        Which people.
    first
        The time step of the first release, counted from 1970: what events of dates need, and models that vary with
        time, for which 0 is used where it is left out.
    known
        Earlier data of people: targets are held against somebody who has them. Simulated people move by their habits,
        one of these people after another, and the adversary knows which; see `dphmm.model.habits.with_habits`. Of more
        than 64 people the seed chooses 64. What is found is private then.
    beside
        Channels, or their texts (see `dphmm.attack.parse_channel`), that people, at most 16, are released by as well as
        at the budgets, and attacked: `Calibrated.tried`; such as `BESIDE`. They are simulated, or of known data the
        later half of each person's days, by habits of the earlier half as `dphmm.jobs.attack` does it. Models that no
        attack takes are not attacked.
    watch
        Shows how far the job has come; see `dphmm.jobs.Watch`.

    Returns
    -------
    Calibrated
        The budget, and what it achieves.

    Raises
    ------
    ConfigurationError, InvalidInputError, BudgetError
        When a target is out of reach, saying what is within reach; when settings keep caps; when the time is shorter
        than a step, or a time and a number of states that do not fit into memory.
    DphmmError
        As the model's file and the policy say.

    Examples
    --------
    >>> from dphmm import ReleaseSettings
    >>> from dphmm.jobs import Targets, calibrate, learn, region
    >>> space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    >>> model = learn("data/sample/geolife", space, step_seconds=300).model
    >>> found = calibrate(model, ReleaseSettings("utility:1km", 1.0), Targets(error=2.0), people=0)
    >>> found.settings.epsilon, round(found.achieved.released_error, 4)
    (1.832, 2.0003)
    """
    if settings.caps or settings.schedule is not None:
        raise ConfigurationError(
            "caps on events and schedules choose each budget themselves; leave them out of a calibration"
        )
    if seed < 0:
        raise InvalidInputError(f"seed is {seed}; give a whole number from 0")
    budgets = [check_budget(one) for one in as_floats(row, "row").ravel().tolist()]
    learned = load_model(model)
    engine = replace(settings, epsilon=1.0).engine(learned)
    event = targets.event
    if isinstance(event, EventText):
        event = event.resolve(engine.model.states, Clock(engine.model.step_seconds, first))
    assert not isinstance(event, str), "targets read their event"
    if known is not None and event is not None:
        raise ConfigurationError("limits on an --event are held against who knows the model; leave out --known")
    steps = _steps_of(engine, over_seconds, None if event is None else event.last + 1)
    earlier = tuple(tracks_of(known).values())
    theirs = () if known is None else _habits_of(earlier, engine.model, seed)
    guaranteed = 1 if over_seconds is None else steps
    many = _PEOPLE if people is None else people
    start = 0 if first is None else first
    job = _Job(engine, targets, event, steps, guaranteed, many, seed, watch, start, earlier, theirs, people is None)
    by_target = {name: job.budget(name, value) for name, value in targets.numbers.items()}
    chosen = rounded_down(min(by_target.values()))
    while not job.keeps(chosen):  # a smaller budget than one that was looked at may not keep the limit
        chosen = rounded_down(0.99 * chosen)
    achieved = job.achieved(chosen, "Releasing at the epsilon found")
    others = tuple(job.achieved(one, "Releasing at the row's epsilons") for one in budgets)
    return Calibrated(
        replace(settings, epsilon=achieved.epsilon),
        targets,
        by_target,
        achieved,
        others,
        steps,
        guaranteed,
        job.people,
        job.alone[0],
        str(model) if isinstance(model, str | Path) else None,
        None if event is None else job.limited(event, achieved),
        HABITS if theirs else PUBLIC.knows,
        job.tried([one.epsilon for one in (*others, achieved)], beside),
        len((people_seen(model, learned) or frozenset()) & {one.user for one in earlier}),
    )


BESIDE = (
    *(f"release:utility:1km@day:{epsilon}" for epsilon in (48, 12, 3)),
    *(f"snap:{length}" for length in ("1km", "2km", "4km")),
    *(f"planar-laplace:{length}" for length in ("500m", "2km", "8km")),
    *(f"hourly:{hours}" for hours in (1, 4)),
)
"""What budgets stand beside in a picture: a day's budgets, grids, planar Laplace and a place now and then."""

_MOST_TRIED = 16
"""How many people at most are attacked."""
_MOST_KNOWN = 64
"""Of how many people at most habits are known: each is a model of its own, of some megabytes."""

_PARTS = 2
"""Into how many columns and rows of parts cells are cut for that, see `dphmm.attack.mesh`."""


def _habits_of(known: Iterable[Trajectory], model: MarkovModel, seed: int) -> tuple[MarkovModel, ...]:
    """How people move who were seen in the region; of more than `_MOST_KNOWN` some, as the seed says."""
    found = [moments for one in known if (moments := before(one, model, None)) is not None]
    if not found:
        raise ConfigurationError("no place of the earlier data lies in the model's region; give data of other people")
    if len(found) > _MOST_KNOWN:
        found = [found[i] for i in np.random.default_rng(seed).choice(len(found), _MOST_KNOWN, replace=False)]
    return tuple(habits(model, moments) for moments in found)


def _steps_of(engine: Releaser, over_seconds: float | None, otherwise: int | None) -> int:
    step, seconds = engine.model.step, DAY_SECONDS if over_seconds is None else over_seconds
    if seconds < step and over_seconds is not None:
        raise ConfigurationError(f"--over is {seconds:g} s, less than the model's step of {step:g} s; give more")
    steps = otherwise if over_seconds is None and otherwise is not None else max(1, int(seconds / step))
    if steps * engine.model.size > _MOST_CELLS:
        raise ConfigurationError(
            f"{steps:,} releases over {engine.model.size:,} states do not fit into memory; give a shorter --over, such "
            f"as {max(1, _MOST_CELLS // engine.model.size) * step / 3600:.3g}h"
        )
    return steps


@dataclass(eq=False)
class _Job:
    """A calibration as it goes on: what was worked out once, and how each target is met."""

    engine: Releaser
    targets: Targets
    event: Event | None
    steps: int
    guaranteed: int
    people: int
    seed: int
    watch: Watch
    first: int
    known: tuple[Trajectory, ...] = ()
    habits: tuple[MarkovModel, ...] = ()
    """How people move whose habits are known."""
    may_take_more: bool = False
    _checked: dict[tuple[float, int, int, str | None], Simulation] = field(default_factory=dict)
    """The last simulation: a search ends with the one that is told."""
    _one_release: dict[float, tuple[EventLimit, float]] = field(default_factory=dict)

    @cached_property
    def alone(self) -> tuple[float, float, float]:
        """What the adversary's models tell without any release, on average and at most: see `without_releases`."""
        models = self.habits[: self.people or None] or (self.engine.model,)
        found = [without_releases(self.engine, self.steps, self.first, model) for model in models]
        guess, mean, most = zip(*found, strict=True)
        return fmean(guess), fmean(mean), max(most)

    @cached_property
    def _plans(self) -> list[tuple[StepPlan, Belief]]:
        return _plans_by_support(self.engine, self.first)

    @property
    def _depends(self) -> bool:
        """Whether later releases are planned for what earlier ones left likely or possible."""
        settings = self.engine.settings
        chosen = settings.mechanism not in TABLES and any(plan.prior is not None for plan, _ in self._plans)
        return settings.delta is not None or chosen or any(isinf(plan.protection.diameter) for plan, _ in self._plans)

    def _diameter(self, target: str) -> float:
        """The largest constrained-DP factor of a release, times the number of releases that are looked at together."""
        widest = max(plan.protection.diameter for plan, _ in self._plans)
        if self._depends and isfinite(widest):
            chosen = "delta is given" if self.engine.settings.delta is not None else "repairs follow the belief"
            raise ConfigurationError(
                f"--{target} limits what is learned whatever is drawn, and {chosen}: later releases are planned for "
                "what earlier ones left likely, and may tell more; leave it out, or give --adversary-error, or --event "
                "with --share"
            )
        return widest * self.guaranteed

    def budget(self, target: str, value: float) -> float:
        """The largest budget that meets a target."""
        match target:
            case "certainty" | "odds" if self.event is not None:
                return self._for_event(self.event, self._limits[target])
            case "error" if self.engine.settings.mechanism in TABLES and not self._depends:
                return self._for_error_of_tables(value)
            case "error":
                return self._for_error(value)
            case "estimate_error":
                return self._for_simulated("estimate", inf if self.habits else self.alone[1], value)
            case "adversary_error":
                return self._for_simulated("hindsight", self.alone[0], value)
            case "certainty":
                return self._for_certainty(value)
            case "odds":
                return epsilon_for_factor(self._diameter(target), value)
        releases = day_steps(self.engine.model.step)
        assert releases is not None, "the model has a step"
        return epsilon_for_spending(value, releases)

    # ---- an event ----------------------------------------------------------------------------------------------------

    @cached_property
    def _log_odds(self) -> float:
        """``logit`` of the event's probability before anything is released."""
        assert self.event is not None, "there is an event"
        return EventOdds(*chain_of(self.engine.model, self.first), self.event, str(self.targets.event)).prior

    @cached_property
    def _limits(self) -> dict[str, float]:
        """Target → the probability of the event that it allows."""
        found, before = {}, float(expit(self._log_odds))
        for target, value in self.targets.numbers.items():
            if target not in ("certainty", "odds"):
                continue
            if target == "odds" and not value > 1:
                raise InvalidInputError(f"the odds may change by a factor of {value:g}; give a finite number above 1")
            found[target] = value if target == "certainty" else float(expit(self._log_odds + log(value)))
            if not before < found[target] < 1:
                raise InvalidInputError(
                    f"--{target} {value:g} is out of reach: event '{self.targets.event}' has probability {before:.4g} "
                    "under the model before anything is released; give a certainty above it and below 1"
                )
        return found

    def _for_event(self, event: Event, limit: float) -> float:
        if self.targets.share is not None:
            return self._for_share(event, limit, self.targets.share)
        if self.guaranteed == 1:
            return self._of_one_release(event, limit)[1]
        before = float(expit(self._log_odds)) * (1.0 + _ROUNDING)
        return epsilon_for_odds(self._diameter("over"), before, limit)

    def _of_one_release(self, event: Event, limit: float) -> tuple[EventLimit, float]:
        """A limit on the event, and the largest budget at which no output of one release passes it."""
        if limit not in self._one_release:
            looked_at = partial(self.watch, what="Looking at all outputs")
            found = EventLimit(self.engine, event, limit, self.first)
            self._one_release[limit] = found, found.largest(event.last + 1, looked_at)
        return self._one_release[limit]

    def keeps(self, epsilon: float) -> bool:
        """Whether a budget, less than one that does, keeps the limit for one release where that is what was asked."""
        if self.event is None or self.guaranteed > 1 or self.targets.share is not None:
            return True
        limit, _ = self._of_one_release(self.event, min(self._limits.values()))
        return limit.holds(epsilon, self.event.last + 1)

    def _for_share(self, event: Event, limit: float, share: float) -> float:
        least = 1.0 - (1.0 - CONFIDENCE) ** (1.0 / self.people) if self.people else 1.0
        if least > share:
            needed = ceil(log(1 - CONFIDENCE) / log(1 - share))
            raise ConfigurationError(
                f"{self.people} simulated people cannot show a share of {share:g}: with {least:.2g} of all above the "
                f"limit none of them might be; give --people {needed} or more"
            )
        start = self._of_one_release(event, limit)[1]

        def figure(epsilon: float, what: str, seed: int) -> Figure:
            return Figure(1.0 - self._simulated(epsilon, what, seed, event).share_above(limit)[1], 0.0)

        return self._searched(figure, 1.0 - share, start, f"a share of {share:g} of the people above {limit:g}")

    def limited(self, event: Event, achieved: Achieved) -> EventLimited:
        """How the limit on the event holds at a budget, and what a cap does instead."""
        limit, seed = min(self._limits.values()), self.seed + _OTHERS
        known, epsilon = self._of_one_release(event, limit)
        share, most = (None, None) if achieved.doing is None else achieved.doing.share_above(limit)
        found = EventLimited(Cap(self.targets.event or event, limit), known.prior, epsilon, share, most, None)
        people = min(self.people, _CAPPED_STEPS // self.steps)
        if people < 2:
            return found
        capped = found.settings(self.engine.settings).engine(self.engine.model)
        watch = partial(self.watch, what="Releasing with a cap", total=people)
        return replace(found, capped=simulate(capped, epsilon, people, self.steps, seed, watch, event, self.first))

    # ---- places ------------------------------------------------------------------------------------------------------

    def _for_error(self, length: float) -> float:
        if self._depends:
            return self._for_simulated("released", inf, length)
        parts = [part for plan, _ in self._plans for part in self.engine.noise(plan, 1.0).parts]
        noisy = [part for part in parts if part.squared_error > 0]  # known and open places are released as they are
        if not noisy:
            raise InvalidInputError("every place is released as it is, which no budget changes; give another policy")
        settings = self.engine.settings
        unit = float(rational(settings.spacing)) if settings.mechanism == "lattice" else 1.0
        return min(epsilon_for_error(part, length / unit) for part in noisy)

    def _released_error(self, epsilon: float) -> float:
        """The error of a release where all is possible that ever is, under what the model gives each state."""
        plan, prior = max(self._plans, key=lambda one: int(one[0].constraint.sum()))
        return self.engine.noise(plan, epsilon).expected_error(prior)

    def _for_error_of_tables(self, length: float) -> float:
        low, high, most = _LEAST_TABLE, _MOST_TABLE, self._released_error(_LEAST_TABLE)
        if most < length:
            raise BudgetError(
                f"no table errs by {metres(length)}: it does by {metres(most)} at epsilon {low:g}; give a shorter "
                "length"
            )

        def errs(epsilon: float) -> bool:
            return self._released_error(epsilon) >= length

        return high if errs(high) else rounded_down(largest_between(errs, low, high, _NEAR_TABLE), 3)

    def _for_certainty(self, most: float) -> float:
        before = self.alone[2]
        if most <= before:
            raise InvalidInputError(
                f"--certainty {most:g} is out of reach: the model alone gives a place {before:.4g}; give more than that"
            )
        return epsilon_for_odds(self._diameter("certainty"), before, most)

    def _for_simulated(self, name: str, most: float, length: float) -> float:
        if length >= most:
            raise InvalidInputError(
                f"{metres(length)} are out of reach: without any release the error is {metres(most)} on average; give "
                "less than that"
            )
        if self.people < 2:
            raise ConfigurationError("this target needs simulated people; give --people 2 or more")

        def figure(epsilon: float, what: str, seed: int) -> Figure:
            return self._simulated(epsilon, what, seed, only=name).figure(name)

        about = f"{metres(length)}, less than the {metres(most)} without releases"
        if not self.may_take_more:
            return self._searched(figure, length, 0.1, about)
        about, few = f"{about}, of {self.people} people at first", self.people
        near = largest_between(lambda epsilon: figure(epsilon, "Trying", self.seed).mean >= length, 1e-3, 1e2, 1.2)
        deviation = figure(near, "Trying", self.seed).margin / length
        releases = _ONE_BY_ONE if PathReleases(self.engine, near, self.steps, self.first).is_one_by_one else 1
        most_people = int(min(_MOST_PEOPLE, _WORK / (releases * self.steps * self.engine.model.size)))
        self.people = max(few, min(ceil(few * (deviation / _CLOSE) ** 2), most_people))
        return self._searched(figure, length, near, about, fine=True)

    def achieved(self, epsilon: float, what: str) -> Achieved:
        """What a budget does."""
        step, simulation, doing = self.engine.model.step, None, None
        delta = self.engine.settings.delta
        error = None if delta is not None else self._released_error(epsilon)
        if self.people:
            simulation = self._simulated(epsilon, what, self.seed + _OTHERS)
            error = error if delta is None else float(simulation.released.mean())
            doing = None if self.event is None else self._simulated(epsilon, what, self.seed + _OTHERS, self.event)
        hour, day = epsilon * ceil(3600 / step), epsilon * ceil(DAY_SECONDS / step)
        return Achieved(epsilon, error, hour, day, simulation, doing)

    def tried(self, budgets: Iterable[float], channels: Sequence[str | Channel]) -> tuple[ChannelResult, ...]:
        """What people give away at some budgets and by some channels; empty without channels, or people in the region.

        Simulated people, who report at each step; or of known data the later half of each person's days, by habits of
        the earlier half. Empty also for a model that no attack takes: one with classes of time, or of named places.
        """
        try:
            moves = Moves(self.engine.model, _PARTS) if channels else None
        except ConfigurationError:
            moves = None
        if moves is None:
            return ()
        rng, most = np.random.default_rng([self.seed, 2]), min(self.people, _MOST_TRIED)
        people: list[tuple[Track, Moments | None]]
        if self.known:
            halved = [both for one in self.known if (both := halves(one, moves, self.steps)) is not None]
            able = [both for both in halved if both[1] is not None] or halved
            people = [able[i] for i in np.sort(rng.permutation(len(able))[:_MOST_TRIED])]
        else:
            people = [(Track.drawn(f"{i}", self.steps, self.first, moves, rng), None) for i in range(most)]
        if not people:
            return ()
        tracks, moments = zip(*people, strict=True)
        ours = (Released(replace(self.engine.settings, epsilon=epsilon)) for epsilon in sorted(set(budgets)))
        watch = partial(self.watch, what="Attacking", total=len(tracks) * (len(set(budgets)) + len(channels)))
        others = [parse_channel(one) if isinstance(one, str) else one for one in channels]
        return attack_tracks(tracks, [*ours, *others], moves, 200.0, self.seed, EachHabits(moves.model, moments), watch)

    def _searched(
        self, figure: Callable[[float, str, int], Figure], bound: float, start: float, about: str, fine: bool = False
    ) -> float:
        """The largest budget at which a figure of simulated people keeps above a bound."""

        def looked_at(epsilon: float, is_check: bool) -> Figure:
            what = f"{'Checking' if is_check else 'Trying'} epsilon {epsilon:.3g}"
            return figure(epsilon, what, self.seed + (_OTHERS if is_check else 0))

        try:
            return largest_epsilon(looked_at, bound, start, fine).epsilon
        except BudgetError as problem:
            raise BudgetError(f"{about}: {problem}") from None

    def _simulated(
        self, epsilon: float, what: str, seed: int, event: Event | None = None, only: str | None = None
    ) -> Simulation:
        """Releases of simulated people; with an event, of such who do it."""
        people, key = self.people, (epsilon, seed, self.people, only)
        if event is None and key in self._checked:
            return self._checked[key]
        watch = partial(self.watch, what=what, total=people)
        found = simulate(self.engine, epsilon, people, self.steps, seed, watch, event, self.first, self.habits, only)
        self._checked = {key: found} if event is None else {}
        return found


def _plans_by_support(engine: Releaser, first: int) -> list[tuple[StepPlan, Belief]]:
    """The plan of each set of possible states that releases go through which rule nothing out, and a belief in it.

    The sets follow from the model and the time alone. They are all there once one comes again; where the model varies
    with time, once every class of it leads from one to the same.
    """
    plans: dict[bytes, tuple[StepPlan, Belief]] = {}
    seen = set[bytes]()
    for slot, belief in zip(range(first, first + _MOST_STEPS), beliefs_along(engine.model, first), strict=False):
        now, support = np.isfinite(belief.chain_logs).tobytes(), belief.support.tobytes()
        if support not in plans:
            plans[support] = engine.plan(belief), belief
        is_new = now not in seen
        seen.add(now)
        if _stays(engine, belief, slot) if is_new else engine.model.time_classes is None:
            return list(plans.values())
    raise ConfigurationError(
        f"after {_MOST_STEPS:,} steps of the model the possible states still change, so that no limit holds for each "
        "release; give a model whose moves reach all of its states, such as one with --smoothing"
    )


def _stays(engine: Releaser, belief: Belief, slot: int) -> bool:
    """Whether the possible states stay the same from a time on, whatever class of time a step is of."""
    model, possible = engine.model, np.isfinite(belief.chain_logs)
    slots = {0: slot}
    if model.time_classes is not None:
        hour = max(1, round(3600 / model.step))
        slots = {model.time_classes.class_of(one + 1): one for one in range(slot, slot + 168 * hour, hour)}
    after = (np.isfinite(belief.predict(model, 1, one).chain_logs) for one in slots.values())
    return all((one == possible).all() for one in after)
