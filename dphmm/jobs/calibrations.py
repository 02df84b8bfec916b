"""Which epsilon for a model and a policy: from metres, odds or a day's spending, and what it achieves."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Any

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, check_budget
from dphmm.audit.verdict import metres
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
from dphmm.jobs.models import Model, load_model
from dphmm.jobs.watch import Watch, unwatched
from dphmm.markov.belief import Belief
from dphmm.mechanisms.catalogue import TABLES
from dphmm.mechanisms.exact import rational
from dphmm.policy.expression import policy_in_words
from dphmm.release.account import DAY_SECONDS, day_steps
from dphmm.release.engine import Releaser
from dphmm.release.noise import parts_of
from dphmm.release.settings import ReleaseSettings
from dphmm.release.step import StepPlan

_MOST_SUPPORTS = 200
_MOST_CELLS = 50_000_000
_OTHERS = 1 << 32
"""What is added to a seed for people whom a search has not looked at."""


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
        The probability that no place may come to have from any release, whatever is drawn.
    odds
        The factor by which the odds of no place may rise, whatever is drawn.
    day_epsilon
        The sum of the budgets of the releases within 24 hours: at most this.

    Raises
    ------
    ConfigurationError
        When none is given, or one is not positive and finite.
    """

    error: float | None = None
    estimate_error: float | None = None
    adversary_error: float | None = None
    certainty: float | None = None
    odds: float | None = None
    day_epsilon: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        if not given:
            raise ConfigurationError(
                "no target is given; give --error, --estimate-error, --adversary-error, --certainty, --odds or "
                "--day-epsilon"
            )
        for name, value in given.items():
            if not 0 < value < inf:
                raise ConfigurationError(f"--{name.replace('_', '-')} is {value:g}; give a positive, finite number")


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
    """

    epsilon: float
    released_error: float
    hour_epsilon: float | None
    day_epsilon: float | None
    simulation: Simulation | None

    def facts(self) -> dict[str, Any]:
        """As plain JSON values, in metres."""
        facts: dict[str, Any] = {
            "epsilon": self.epsilon,
            "released_error_m": 1000.0 * self.released_error,
            "epsilon_an_hour": self.hour_epsilon,
            "epsilon_a_day": self.day_epsilon,
        }
        if self.simulation is not None:
            for key, name in _NAMES.items():
                found = self.simulation.figure(name)
                unit = 1.0 if name == "certainty" else 1000.0
                facts[key], facts[f"{key}_give_or_take"] = unit * found.mean, unit * found.margin
        return facts


_NAMES = {
    "estimate_error_m": "estimate",
    "adversary_error_m_at_once": "online",
    "adversary_error_m_in_hindsight": "hindsight",
    "adversary_certainty_in_hindsight": "certainty",
}


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

    @property
    def binding(self) -> str:
        """The target that asks for the least budget."""
        return min(self.by_target, key=lambda name: self.by_target[name])

    @property
    def command(self) -> str:
        """The line to run."""
        said: dict[str, Any] = {"policy": self.settings.policy, "epsilon": repr(self.settings.epsilon)}
        usual = ReleaseSettings(self.settings.policy, self.settings.epsilon).to_dict()
        for name, value in self.settings.to_dict().items():
            if name not in said and value is not None and value != usual.get(name):
                said[name.replace("_", "-")] = value
        options = " ".join(
            f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}" for name, value in said.items()
        )
        return f"dphmm release DATA --model {shlex.quote(self.model or 'model.npz')} {options} -o releases.gpkg"

    def facts(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "epsilon": self.settings.epsilon,
            "joined_places": policy_in_words(self.settings.policy),
            "targets": {name: value for name, value in vars(self.targets).items() if value is not None},
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
        }


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
    watch: Watch = unwatched,
) -> Calibrated:
    """The largest budget of a release that meets some targets, as ``dphmm calibrate`` does.

    By formula where there is one, rounded down to four digits: the error of a release, odds and certainty (which hold
    whatever is drawn), and spending. Otherwise people who move as the model says are simulated, one release a step, and
    the budget is of two digits and held against people whom the search had not looked at.

    Parameters
    ----------
    model
        The model, or its file; it knows its step.
    settings
        How places are to be released; the epsilon in it does not matter.
    targets
        What is asked for.
    over_seconds
        The time that adversaries are given: for simulated people, a day where it is left out; for certainty and odds
        one release where it is left out.
    people
        How many people are simulated; 0 for none, where formulas do.
    row
        Budgets to say the same figures of.
    seed
        Which people.
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
    job = _Job(engine, _steps_of(engine, over_seconds), over_seconds is not None, people, seed, watch)
    by_target = {name: job.budget(name, value) for name, value in vars(targets).items() if value is not None}
    chosen = min(by_target.values())
    achieved = job.achieved(rounded_down(chosen), "Releasing at the epsilon found")
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
    )


def _steps_of(engine: Releaser, over_seconds: float | None) -> int:
    step = engine.model.step
    steps = max(1, int((DAY_SECONDS if over_seconds is None else over_seconds) / step))
    if over_seconds is not None and over_seconds < step:
        raise ConfigurationError(f"--over is {over_seconds:g} s, less than the model's step of {step:g} s; give more")
    if steps * engine.model.size > _MOST_CELLS:
        raise ConfigurationError(
            f"{steps:,} releases over {engine.model.size:,} states do not fit into memory; give a shorter --over, such "
            f"as {max(1, _MOST_CELLS // engine.model.size) * step / 3600:.3g}h"
        )
    return steps


class _Job:
    """A calibration as it goes on: what was worked out once, and how each target is met."""

    def __init__(self, engine: Releaser, steps: int, is_over_said: bool, people: int, seed: int, watch: Watch) -> None:
        if engine.settings.mechanism in TABLES:
            raise ConfigurationError(
                f"mechanism is {engine.settings.mechanism!r}, whose error follows from no formula; choose noise of "
                "a hull, such as 'lattice'"
            )
        self._engine, self.steps, self._people, self._seed, self._watch = engine, steps, people, seed, watch
        self.guaranteed = steps if is_over_said else 1
        self.alone = without_releases(engine, steps)
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
        return ways[target](value)

    def _for_error(self, length: float) -> float:
        plans = [plan for plan, _ in self._plans if plan.protection is not None]  # elsewhere one state is known
        parts = [part for plan in plans for part, _ in parts_of(self._engine.mechanism(plan, 1.0), plan.constraint)]
        noisy = [part for part in parts if part.squared_error > 0]  # open places are released as they are
        if not noisy:
            raise InvalidInputError("every place is released as it is, which no budget changes; give another policy")
        return min(epsilon_for_error(part, length / self._unit) for part in noisy)

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
        step, (plan, weights) = self._engine.model.step, self._plans[-1]
        error = self._engine.query.expected_error(self._engine.mechanism(plan, epsilon), weights)
        simulation = self._simulated(epsilon, what, self._seed + _OTHERS) if self._people else None
        return Achieved(epsilon, error, epsilon * ceil(3600 / step), epsilon * ceil(DAY_SECONDS / step), simulation)

    def _simulated(self, epsilon: float, what: str, seed: int) -> Simulation:
        def watched(numbers: Iterable[int]) -> Iterable[int]:
            return self._watch(numbers, what, self._people)

        return simulate(self._engine, epsilon, self._people, self.steps, seed, watched)


def _plans_along(engine: Releaser, steps: int) -> list[tuple[StepPlan, FloatArray]]:
    """The plans of the constraint sets that follow one another, each once, with what the model alone gives each state.

    Which sets they are depends on no draw.

    Noise that reaches everywhere rules no state out, so that the possible states are those of the model alone. Under a
    δ-location set they are not; then the first alone is looked at.
    """
    belief = Belief.first(engine.model, 0)
    plans = [(engine.plan(belief), belief.probabilities)]
    for slot in range(min(steps, _MOST_SUPPORTS) - 1 if engine.settings.delta is None else 0):
        later = belief.predict(engine.model, 1, slot)
        if (later.support == belief.support).all():
            break
        belief = later
        plans.append((engine.plan(belief), belief.probabilities))
    return plans
