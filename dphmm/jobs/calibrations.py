"""Which epsilon for a model and a policy: from metres, odds or a day's spending, and what it achieves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import ceil, log, sqrt
from pathlib import Path

from scipy.special import expit

from dphmm.arguments import checked
from dphmm.arrays import check_budget
from dphmm.audit.verdict import metres
from dphmm.calibrate.certified import EventLimit
from dphmm.calibrate.formula import (
    epsilon_for_error,
    epsilon_for_factor,
    epsilon_for_odds,
    epsilon_for_spending,
    rounded_down,
)
from dphmm.calibrate.search import largest_epsilon
from dphmm.calibrate.simulation import CONFIDENCE, Figure, Simulation, simulate, without_releases
from dphmm.errors import BudgetError, ConfigurationError, InvalidInputError
from dphmm.events.calendar import Clock
from dphmm.events.caps import Cap
from dphmm.events.event import Event
from dphmm.events.odds import EventOdds
from dphmm.events.wording import EventText
from dphmm.jobs.calibrated import Achieved, Calibrated, EventLimited, Targets
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.watch import Watch, unwatched
from dphmm.markov.belief import Belief
from dphmm.mechanisms.catalogue import TABLES
from dphmm.mechanisms.exact import rational
from dphmm.release.account import DAY_SECONDS, day_steps
from dphmm.release.capped import chain_of
from dphmm.release.engine import Releaser
from dphmm.release.noise import parts_of
from dphmm.release.settings import ReleaseSettings
from dphmm.release.step import StepPlan

_LEAST_TABLE, _MOST_TABLE, _NEAR_TABLE = 1e-3, 20.0, 1.005
"""Between which budgets a table's is looked for, and how near, as a ratio."""
_MOST_SUPPORTS = 200
_MOST_CELLS = 50_000_000
_OTHERS = 1 << 32
"""What is added to a seed for people whom a search has not looked at."""

_ROUNDING = 1e-12
"""By which part of itself a prior in doubles is taken to be too small."""

_CAPPED_STEPS = 2000
"""So many capped releases are simulated at most: each takes several milliseconds."""


@checked
def calibrate(
    model: Model,
    settings: ReleaseSettings,
    targets: Targets,
    *,
    over_seconds: float | None = None,
    people: int = 16,
    row: Sequence[float] = (),
    seed: int = 0,
    first: int | None = None,
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
        How many people are simulated; 0 for none, where formulas do.
    row
        Budgets to say the same figures of.
    seed
        Which people.
    first
        The time step of the first release, counted from 1970: what events of dates need, and models that vary with
        time, for which 0 is used where it is left out.
    watch
        Who is shown the progress.

    Raises
    ------
    ConfigurationError, InvalidInputError, BudgetError
        When a target is out of reach, saying what is within reach; when settings keep caps; when the time is shorter
        than a step, or so long over so many states that it would not fit into memory.
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
    (0.9999, 2.0002)
    """
    if settings.caps or settings.schedule is not None:
        raise ConfigurationError(
            "caps on events and schedules choose each budget themselves; leave them out of a calibration"
        )
    learned = load_model(model)
    engine = replace(settings, epsilon=1.0).engine(learned)
    event = None if targets.event is None else _Event(engine, targets.event, first)
    steps = _steps_of(engine, over_seconds, None if event is None else event.event.last + 1)
    job = _Job(engine, steps, over_seconds is not None, people, seed, watch, first or 0, event, targets.share)
    by_target = {name: job.budget(name, value) for name, value in targets.numbers.items()}
    chosen = rounded_down(min(by_target.values()))
    while event is not None and not job.keeps(chosen):  # of less budget nothing is known until it is looked at
        chosen = rounded_down(0.99 * chosen)
    achieved = job.achieved(chosen, "Releasing at the epsilon found")
    others = tuple(job.achieved(check_budget(one), "Releasing at the row's epsilons") for one in row)
    return Calibrated(
        replace(settings, epsilon=achieved.epsilon),
        targets,
        by_target,
        achieved,
        others,
        job.steps,
        job.guaranteed,
        people,
        job.alone[0],
        str(model) if isinstance(model, str | Path) else None,
        None if event is None else job.limited(achieved),
    )


def _steps_of(engine: Releaser, over_seconds: float | None, otherwise: int | None) -> int:
    step = engine.model.step
    steps = max(1, int((DAY_SECONDS if over_seconds is None else over_seconds) / step))
    if over_seconds is None and otherwise is not None:
        steps = otherwise
    if over_seconds is not None and over_seconds < step:
        raise ConfigurationError(f"--over is {over_seconds:g} s, less than the model's step of {step:g} s; give more")
    if steps * engine.model.size > _MOST_CELLS:
        raise ConfigurationError(
            f"{steps:,} releases over {engine.model.size:,} states do not fit into memory; give a shorter --over, such "
            f"as {max(1, _MOST_CELLS // engine.model.size) * step / 3600:.3g}h"
        )
    return steps


class _Event:
    """The event of a calibration, in steps from the first release, and the limits on it."""

    def __init__(self, engine: Releaser, given: str | EventText | Event, first: int | None) -> None:
        model, text = engine.model, given
        assert not isinstance(text, str), "targets read their event"
        self.text = text
        self.event = text if isinstance(text, Event) else text.on(model.states, Clock(model.step_seconds, first))
        self.log_odds = EventOdds(*chain_of(model, first or 0), self.event, str(text)).prior
        """``logit`` of its probability before anything is released."""
        self.limits: list[float] = []
        """The probabilities that targets allow."""

    def limit(self, target: str, value: float) -> float:
        """The probability that a target allows."""
        if target == "odds" and not value > 1:
            raise InvalidInputError(f"the odds may change by a factor of {value:g}; give a finite number above 1")
        found = value if target == "certainty" else float(expit(self.log_odds + log(value)))
        prior = float(expit(self.log_odds))
        if not prior < found < 1:
            raise InvalidInputError(
                f"--{target} {value:g} is out of reach: event '{self.text}' has probability {prior:.4g} under the "
                "model before anything is released; give a certainty above it and below 1"
            )
        self.limits.append(found)
        return found


class _Job:
    """A calibration as it goes on: what was worked out once, and how each target is met."""

    def __init__(
        self,
        engine: Releaser,
        steps: int,
        is_over_said: bool,
        people: int,
        seed: int,
        watch: Watch,
        first: int = 0,
        event: _Event | None = None,
        share: float | None = None,
    ) -> None:
        self._engine, self.steps, self._people, self._seed, self._watch = engine, steps, people, seed, watch
        self._first, self._event, self._share = first, event, share
        self.guaranteed = steps if is_over_said else 1
        self.alone = without_releases(engine, steps, first)
        self._plans = _plans_along(engine, steps)
        exact = engine.settings.mechanism == "lattice"
        self._unit = float(rational(engine.settings.spacing)) if exact else 1.0

    def budget(self, target: str, value: float) -> float:
        """The largest budget that meets a target."""
        ways: dict[str, Callable[[float], float]] = {
            "error": self._for_error,
            "estimate_error": partial(self._for_simulated, "estimate", self.alone[1]),
            "adversary_error": partial(self._for_simulated, "hindsight", self.alone[0]),
            "certainty": self._for_certainty,
            "odds": lambda factor: epsilon_for_factor(self._diameter, factor),
            "day_epsilon": self._for_day,
        }
        if self._event is not None and target in ("certainty", "odds"):
            limit = self._event.limit(target, value)
            if self._share is not None:
                return self._for_share(limit, self._share)
            if self.guaranteed == 1:
                return self._one_release
            before = float(expit(self._event.log_odds)) * (1.0 + _ROUNDING)
            return epsilon_for_odds(self._diameter, before, limit)
        return ways[target](value)

    @cached_property
    def _limit(self) -> EventLimit:
        assert self._event is not None, "there is an event"
        return EventLimit(self._engine, self._event.event, min(self._event.limits), self._first)

    @property
    def _moments(self) -> int:
        """How many moments there are up to the event's last."""
        assert self._event is not None, "there is an event"
        return self._event.event.last + 1

    @cached_property
    def _one_release(self) -> float:
        """The largest budget at which no output of one release passes the limits on the event."""
        return self._limit.largest(self._moments, lambda moments: self._watch(moments, "Looking at all outputs"))

    def keeps(self, epsilon: float) -> bool:
        """Whether a budget, less than one that does, keeps the limit for one release where that is what was asked."""
        return self.guaranteed > 1 or self._share is not None or self._limit.holds(epsilon, self._moments)

    def _for_share(self, limit: float, share: float) -> float:
        least = 1.0 - (1.0 - CONFIDENCE) ** (1.0 / self._people) if self._people else 1.0
        if least > share:
            needed = ceil(log(1 - CONFIDENCE) / log(1 - share))
            raise ConfigurationError(
                f"{self._people} simulated people cannot show a share of {share:g}: with {least:.2g} of all above the "
                f"limit none of them might be; give --people {needed} or more"
            )

        def figure(epsilon: float, is_check: bool) -> Figure:
            what = f"Checking epsilon {epsilon:.3g}" if is_check else f"Trying epsilon {epsilon:.3g}"
            simulation = self._doing(epsilon, what, self._seed + (_OTHERS if is_check else 0))
            return Figure(1.0 - simulation.share_above(limit)[1], 0.0)

        try:
            return largest_epsilon(figure, 1.0 - share, self._one_release).epsilon
        except BudgetError as problem:
            raise BudgetError(f"a share of {share:g} of the people above {limit:g}: {problem}") from None

    def limited(self, achieved: Achieved) -> EventLimited:
        """How the limit on the event holds at a budget, and what a cap does instead."""
        event, simulation = self._event, achieved.doing
        assert event is not None, "there is an event"
        limit = min(event.limits)
        shares = (None, None) if simulation is None else simulation.share_above(limit)
        share, most = shares
        found = EventLimited(Cap(event.text, limit), self._limit.prior, self._one_release, share, most, None)
        people = min(self._people, _CAPPED_STEPS // self.steps)
        if people < 2:
            return found
        capped = found.settings(self._engine.settings).engine(self._engine.model)
        simulated = self._doing(found.one_release, "Releasing with a cap", self._seed + _OTHERS, capped, people)
        return replace(found, capped=simulated)

    def _for_error(self, length: float) -> float:
        if self._engine.settings.mechanism in TABLES:
            return self._for_error_of_tables(length)
        plans = [plan for plan, _ in self._plans if plan.protection is not None]  # elsewhere one state is known
        parts = [part for plan in plans for part, _ in parts_of(self._engine.mechanism(plan, 1.0), plan.constraint)]
        noisy = [part for part in parts if part.squared_error > 0]  # open places are released as they are
        if not noisy:
            raise InvalidInputError("every place is released as it is, which no budget changes; give another policy")
        return min(epsilon_for_error(part, length / self._unit) for part in noisy)

    def _for_error_of_tables(self, length: float) -> float:
        """By halving: where all is possible that ever is, under what the model gives each state."""
        plan, prior = self._plans[-1]

        def errs(epsilon: float) -> bool:
            return self._engine.query.expected_error(self._engine.mechanism(plan, epsilon), prior) >= length

        low, high = _LEAST_TABLE, _MOST_TABLE
        if not errs(low):
            most = self._engine.query.expected_error(self._engine.mechanism(plan, low), prior)
            raise BudgetError(
                f"no table errs by {metres(length)}: it does by {metres(most)} at epsilon {low:g}; give a shorter "
                "length"
            )
        if errs(high):
            return high
        while high > _NEAR_TABLE * low:
            middle = sqrt(low * high)
            low, high = (middle, high) if errs(middle) else (low, middle)
        return rounded_down(low, 3)

    def _for_certainty(self, most: float) -> float:
        before = without_releases(self._engine, self.guaranteed)[2]
        if most <= before:
            raise InvalidInputError(
                f"--certainty {most:g} is out of reach: the model alone gives a place {before:.4g}; give more than that"
            )
        return epsilon_for_odds(self._diameter, before, most)

    def _for_day(self, total: float) -> float:
        releases = day_steps(self._engine.model.step)
        assert releases is not None, "the model has a step"
        return epsilon_for_spending(total, releases)

    @property
    def _diameter(self) -> float:
        """The largest constrained-DP factor of a release, times as many as are looked at together."""
        widest = max(0.0 if plan.protection is None else plan.protection.diameter for plan, _ in self._plans)
        return widest * self.guaranteed

    def _for_simulated(self, name: str, most: float, length: float) -> float:
        if length >= most:
            raise InvalidInputError(
                f"{metres(length)} are out of reach: without any release the error is {metres(most)} on average; give "
                "less than that"
            )
        if self._people < 2:
            raise ConfigurationError("this target needs simulated people; give --people 2 or more")

        def figure(epsilon: float, is_check: bool) -> Figure:
            what = f"Checking epsilon {epsilon:.3g}" if is_check else f"Trying epsilon {epsilon:.3g}"
            return self._simulated(epsilon, what, self._seed + (_OTHERS if is_check else 0)).figure(name)

        try:
            return largest_epsilon(figure, length, 0.1).epsilon
        except BudgetError as problem:
            raise BudgetError(f"{metres(length)}, less than the {metres(most)} without releases: {problem}") from None

    def achieved(self, epsilon: float, what: str) -> Achieved:
        """What a budget does."""
        step, (plan, prior) = self._engine.model.step, self._plans[-1]
        error = self._engine.query.expected_error(self._engine.mechanism(plan, epsilon), prior)
        simulation, doing = None, None
        if self._people:
            simulation = self._simulated(epsilon, what, self._seed + _OTHERS)
            doing = None if self._event is None else self._doing(epsilon, what, self._seed + _OTHERS)
        hour, day = epsilon * ceil(3600 / step), epsilon * ceil(DAY_SECONDS / step)
        return Achieved(epsilon, error, hour, day, simulation, doing)

    def _doing(
        self, epsilon: float, what: str, seed: int, engine: Releaser | None = None, people: int | None = None
    ) -> Simulation:
        """People who do what the event says."""
        assert self._event is not None, "there is an event"
        watch, many = self._watched(what, people), people or self._people
        return simulate(engine or self._engine, epsilon, many, self.steps, seed, watch, self._event.event, self._first)

    def _simulated(self, epsilon: float, what: str, seed: int) -> Simulation:
        return simulate(self._engine, epsilon, self._people, self.steps, seed, self._watched(what), first=self._first)

    def _watched(self, what: str, people: int | None = None) -> Callable[[Iterable[int]], Iterable[int]]:
        return lambda numbers: self._watch(numbers, what, people or self._people)


def _plans_along(engine: Releaser, steps: int) -> list[tuple[StepPlan, Belief]]:
    """The plans of the constraint sets that follow one another, each once, with the belief of the model alone.

    Which sets they are depends on no draw.

    Noise that reaches everywhere rules no state out, so that the possible states are those of the model alone. Under a
    δ-location set they are not; then the first alone is looked at.
    """
    belief = Belief.first(engine.model, 0)
    plans = [(engine.plan(belief), belief)]
    for slot in range(min(steps, _MOST_SUPPORTS) - 1 if engine.settings.delta is None else 0):
        later = belief.predict(engine.model, 1, slot)
        if (later.support == belief.support).all():
            break
        belief = later
        plans.append((engine.plan(belief), belief))
    return plans
