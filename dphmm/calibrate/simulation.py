"""Simulated people who move as a model says: expected errors and certainty of their releases, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import count, islice
from math import hypot, inf, nan

import numpy as np
from scipy.special import expit
from scipy.stats import beta
from scipy.stats import t as student

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_floats
from dphmm.audit.inference import Knowledge, knowledge, no_information
from dphmm.errors import EventError, InvalidInputError
from dphmm.events import Event, EventOdds
from dphmm.events.automaton import Automaton
from dphmm.facts import fact
from dphmm.mechanisms.base import TABLES
from dphmm.model import Belief, MarkovModel, Observations, draw_paths, filter_releases, smooth_releases
from dphmm.model.forward_backward import Filtering
from dphmm.model.point_estimate import expected_distance, within_cell
from dphmm.release import Releaser, StepPlan
from dphmm.release.event_caps import chain_of

_AT_ONCE = 1 << 20
"""About how many pairs of an output and a state have their densities worked out at once."""


class PathReleases:
    """People's releases at a budget, one a step.

    Noise that reaches everywhere rules no state out, so that the possible states, and with them the noise of each step,
    are those of the model alone: the releases of a path are then drawn together. Otherwise the engine goes through them
    one after another.

    Parameters
    ----------
    engine
        The engine.
    epsilon
        The budget.
    steps
        How many releases each person has.
    first
        The time step of the first one, counted from 1970.
    """

    def __init__(self, engine: Releaser, epsilon: float, steps: int, first: int) -> None:
        self.engine, self.epsilon, self.steps, self.first = engine, epsilon, steps, first
        self._plans = _public_plans(engine, steps, first)

    @property
    def is_one_by_one(self) -> bool:
        """Whether the engine goes through the releases one after another."""
        return self._plans is None

    def released(self, path: IntArray, rng: np.random.Generator) -> tuple[FloatArray, float, float, float]:
        """What is known of the releases of a path ``(steps,)``.

        Returns
        -------
        rows
            ``(steps, N)``: log densities in every state, 0 throughout where nothing was drawn.
        spent, withheld
            The sum of the budgets, and the share of the moments without a draw.
        error
            The mean of what the releases are expected to err by; NaN where nothing was drawn.
        """
        rows = None if self._plans is None else self._together(self._plans, path, rng)
        if rows is not None:
            return rows, self.epsilon * self.steps, 0.0, self._error
        engine, rows, spent, withheld = self.engine.another(rng), np.empty((self.steps, self.engine.model.size)), 0.0, 0
        errors = []
        engine.restart(self.first)
        for at, state in enumerate(path.tolist()):
            step = engine.prepare(self.epsilon)
            record = engine.draw(step, state)
            rows[at] = engine.log_likelihood(step, record.released)
            spent, withheld = spent + record.epsilon, withheld + record.withheld
            if not record.withheld:
                errors.append(record.expected_error)
        return rows, spent, withheld / self.steps, float(np.mean(errors)) if errors else float("nan")

    @cached_property
    def _error(self) -> float:
        """The mean over the steps where plans do not depend on draws."""
        assert self._plans is not None, "plans are public"
        starts = [start for start, _, _ in self._plans]
        errors = [self.engine.noise(plan, self.epsilon).expected_error(belief) for _, plan, belief in self._plans]
        return float(np.diff([*starts, self.steps]) @ errors) / self.steps

    def _together(
        self, plans: list[tuple[int, StepPlan, Belief]], path: IntArray, rng: np.random.Generator
    ) -> FloatArray | None:
        """The log densities; None where an output ruled out a state that is possible."""
        size = self.engine.model.size
        rows, block = np.full((self.steps, size), -np.inf), max(1, _AT_ONCE // size)
        ends = [start for start, _, _ in plans[1:]] + [self.steps]
        for (start, plan, _), end in zip(plans, ends, strict=True):
            noise, states = self.engine.noise(plan, self.epsilon), np.flatnonzero(plan.constraint)
            stand_ins = self.engine.planner.released_as(np.arange(size), plan.constraint)
            for at in range(start, end, block):
                part = slice(at, min(at + block, end))
                rows[part, states] = noise.log_densities(noise.sample(path[part], rng), states)
                rows[part] = rows[part][:, stand_ins]
                if np.isneginf(rows[part, states]).any():
                    return None
        return rows


def beliefs_along(model: MarkovModel, first: int = 0) -> Iterator[Belief]:
    """What a model alone says of a person's place, step after step, where nothing is released.

    Parameters
    ----------
    model
        The model.
    first
        The time step of the first belief, counted from 1970.

    Yields
    ------
    Belief
        One for each step, without an end.
    """
    belief = Belief.first(model, first)
    for step in count(first):
        yield belief
        belief = belief.predict(model, 1, step)


def _public_plans(engine: Releaser, steps: int, first: int) -> list[tuple[int, StepPlan, Belief]] | None:
    """The plans of ``steps`` releases, each with the first step that it serves and the belief then.

    They are what the model alone makes of the belief. None where they depend on draws: with a δ-location set, caps, a
    schedule, tables, or a repair that is chosen by the belief. What else rules states out (noise on a line) shows in
    the densities.
    """
    settings, found = engine.settings, list[tuple[int, StepPlan, Belief]]()
    if settings.delta is not None or settings.caps or settings.schedule is not None or settings.mechanism in TABLES:
        return None
    before: Belief | None = None
    for step, belief in enumerate(islice(beliefs_along(engine.model, first), steps)):
        plan = engine.plan(belief)
        if plan.prior is not None:
            return None
        if not found or plan is not found[-1][1]:
            found.append((step, plan, belief))
        elif engine.model.is_plain and before is not None and (belief.support == before.support).all():
            return found
        before = belief
    return found


CONFIDENCE = 0.99
"""That of every interval."""

_MOST_DRAWN, _PEOPLE_AT_ONCE = 1 << 27, 1 << 22
"""About how many states of people are drawn, at most and at once, to find those who do what an event says."""

LOOKED_AT = 96
"""At how many of a person's releases, evenly spread, errors are worked out."""


@dataclass(frozen=True)
class Figure:
    """A mean over people with its interval.

    Parameters
    ----------
    mean
        The mean.
    margin
        By how much the expectation may be more or less, with confidence `CONFIDENCE` where the people's figures are
        about normal (Student's interval); infinite for one person.
    """

    mean: float
    margin: float

    @property
    def least(self) -> float:
        """The lower end."""
        return self.mean - self.margin

    @classmethod
    @checked
    def from_values(cls, values: FloatArray) -> Figure:
        """The mean of independent values ``(n,)``, at least one.

        Parameters
        ----------
        values
            ``(n,)``: one value for each simulated person.

        Raises
        ------
        InvalidInputError
            When they are no list of finite numbers.
        """
        found = as_floats(values, "values", InvalidInputError)
        if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
            raise InvalidInputError(f"values have shape {found.shape}; give at least one finite number")
        number, mean = len(found), float(found.mean())
        if number < 2:
            return cls(mean, inf)
        quantile = float(student.ppf(0.5 + CONFIDENCE / 2, number - 1))
        return cls(mean, quantile * float(found.std(ddof=1)) / number**0.5)


@dataclass(frozen=True, eq=False)
class Simulation:
    """What releases disclosed of simulated people; errors in the unit of the measurements.

    Parameters
    ----------
    epsilon
        The most that a release may cost: the budget of each, where no cap or schedule takes less.
    steps
        How many moments each person had.
    only
        The one figure that was asked for; None for all of them. The errors and certainty that it does not need are NaN.
    estimate, online, hindsight, certainty
        ``(people,)``: means over `LOOKED_AT` of each one's moments (or all of fewer), evenly spread, of the expected
        distance of the estimate, of the best guess at the time and in hindsight, and of the probability in hindsight of
        the likeliest state.
    spent, withheld
        ``(people,)``: the sum of the budgets, and the share of the moments for which nothing was drawn.
    released
        ``(people,)``: means over each one's releases of what they are expected to err by.
    reached
        ``(people,)``: the highest probability that the event ever had, before a release or after. None without one.
    """

    epsilon: float
    steps: int
    only: str | None
    estimate: FloatArray = field(repr=False, metadata=fact("estimate_error_m", times=1000))
    online: FloatArray = field(repr=False, metadata=fact("adversary_error_m_at_once", times=1000))
    hindsight: FloatArray = field(repr=False, metadata=fact("adversary_error_m_in_hindsight", times=1000))
    certainty: FloatArray = field(repr=False, metadata=fact("adversary_certainty_in_hindsight"))
    spent: FloatArray = field(repr=False, metadata=fact("epsilon"))
    withheld: FloatArray = field(repr=False, metadata=fact("moments_withheld"))
    released: FloatArray = field(repr=False, metadata=fact("released_error_m", times=1000))
    reached: FloatArray | None = field(default=None, repr=False, metadata=fact("event_probability_most"))

    @property
    def people(self) -> int:
        """How many people."""
        return len(self.estimate)

    def figure(self, name: str) -> Figure:
        """The mean of a figure by its name, with its interval.

        Parameters
        ----------
        name
            The name of a figure; see the attributes of `Simulation`.

        Returns
        -------
        Figure
            Its mean with an interval.

        Raises
        ------
        InvalidInputError
            When it is none, or the simulation was without an event.
        """
        values = vars(self).get(name)
        if not isinstance(values, np.ndarray) or (self.only not in (None, name)):
            raise InvalidInputError(f"figure {name!r} was not simulated; ask for one that was, such as 'hindsight'")
        return Figure.from_values(values)

    def facts(self, *names: str) -> dict[str, float]:
        """The means of figures and their margins, errors in metres where measurements are kilometres.

        Parameters
        ----------
        *names
            Which figures; see the attributes of `Simulation`.

        Returns
        -------
        dict
            The name of each fact → its mean, and the same with ``_give_or_take`` → its margin.
        """
        found: dict[str, float] = {}
        for one in fields(self):
            if one.name in names:
                key, times, figure = one.metadata["fact"], one.metadata["times"], self.figure(one.name)
                found |= {key: times * figure.mean, f"{key}_give_or_take": times * figure.margin}
        return found

    def share_above(self, probability: float) -> tuple[float, float]:
        """The share of people of whom the event ever became more probable, and the most that it may be among all.

        The second is a one-sided exact upper bound (Clopper and Pearson) of confidence `CONFIDENCE`.

        Parameters
        ----------
        probability
            From 0 to 1.

        Returns
        -------
        tuple of float
            The share of simulated people above it, and the bound.
        """
        if self.reached is None:
            raise InvalidInputError("the simulation was without an event; give it one")
        many, people = int((self.reached > probability).sum()), self.people
        most = 1.0 if many == people else float(beta.ppf(CONFIDENCE, many + 1, people - many))
        return many / people, most


@checked
def simulate(
    releaser: Releaser,
    epsilon: float,
    people: int,
    steps: int,
    seed: int = 0,
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
    event: Event | None = None,
    first: int = 0,
    habits: Sequence[MarkovModel] = (),
    only: str | None = None,
) -> Simulation:
    """Release people whose paths follow the engine's model, one release a step, and say what is known of them.

    The belief is right for such people, so the mean distance that it expects of an estimate is the mean distance of the
    estimate; that has less variance than the distances themselves.

    Parameters
    ----------
    releaser
        An engine; it is left as it is. One that keeps caps on events or a schedule withholds what these withhold, and
        takes far longer, as does one whose noise depends on what was drawn before.
    epsilon
        The budget of each release, or the most that it may cost.
    people, steps
        How many people, from 2, and how many moments each.
    seed
        Whom: the same seed gives the same paths, and the same random bytes, for every budget.
    watch
        Hands on the people's numbers, and may show how far it has come.
    event
        An event, in steps from the first release, of which to say how probable releases made it. All people are then
        such that do it: drawn by the model until there are enough.
    first
        The time step of the first release, counted from 1970, for models that vary with time.
    habits
        How each person moves, one model after another and then from the start again: the adversary knows that of the
        person, and the estimate, which follows from the engine's model, is held against the path. Left out, everyone
        moves as the engine's model says.
    only
        The one figure to work out, such as ``"hindsight"``; left out, all of them.

    Returns
    -------
    Simulation
        What the releases of the simulated people tell.

    Raises
    ------
    InvalidInputError
        When there are fewer than 2 people or no step.
    EventError
        When the event cannot be asked about, or is too rare to draw people who do it.
    DphmmError
        As `Releaser.release`.

    Examples
    --------
    >>> from dphmm import MarkovModel, PolicyGraph, Releaser
    >>> model = MarkovModel([[0.9, 0.1], [0.2, 0.8]], [0.5, 0.5])
    >>> engine = Releaser(model, [[0, 0], [1, 0]], PolicyGraph.complete(2), 1.0)
    >>> some = simulate(engine, 0.5, people=8, steps=5)
    >>> some.people, some.figure("hindsight").mean < some.figure("online").mean < 0.5
    (8, True)
    """
    if people < 2 or steps < 1:
        raise InvalidInputError(f"there are {people} people and {steps} steps; give at least 2 and 1")
    releases = PathReleases(releaser, epsilon, steps, first)
    odds = None if event is None else EventOdds(*chain_of(releaser.model, first), event)
    if habits and event is not None:
        raise InvalidInputError("an event is asked about for people who move as the model says; leave the habits out")
    own = [habits[number % len(habits)] for number in range(people)] if habits else [releaser.model] * people
    moving = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    if habits:
        paths = np.concatenate([draw_paths(one, 1, steps, first, moving) for one in own]).astype(np.int64)
    elif event is None or odds is None:
        paths = draw_paths(releaser.model, people, steps, first, moving).astype(np.int64)
    else:
        paths = _paths_with(releaser.model, event, float(expit(odds.prior)), people, steps, first, moving)
    found = np.array(
        [_figures_of(releases, odds, paths[number], seed, number, own[number], only) for number in watch(range(people))]
    )
    return Simulation(epsilon, steps, only, *found.T)


def _paths_with(
    model: MarkovModel, event: Event, probability: float, people: int, steps: int, first: int, rng: np.random.Generator
) -> IntArray:
    """Paths ``(people, steps)`` of a model on which an event of some probability happens."""
    if model.away is not None:
        raise EventError(
            "simulated people of a model that knows of people outside do not tell who is in a place and who is nearest "
            "to it; learn one with --no-away"
        )
    length = max(steps, event.last + 1)
    if people * length > _MOST_DRAWN * probability:
        raise EventError(
            f"the event has probability {probability:.2g} under the model, too little to draw {people} people who do "
            "it; ask for fewer, or about an event that is less rare"
        )
    automaton, found, many = Automaton.compile(event, model.size), list[IntArray](), 2 * people
    while sum(map(len, found)) < people:
        paths = draw_paths(model, many, length, first, rng).astype(np.int64)
        found.append(paths[automaton.happens(paths), :steps])
        many = min(4 * many, max(people, _PEOPLE_AT_ONCE // length))
    return np.concatenate(found)[:people]


@dataclass(frozen=True, eq=False)
class _Reading:
    """What a person's releases tell at the moments that are looked at; each figure is worked out when it is asked for.

    The estimate is that of the engine's model, everything else that of an adversary who knows the person's ``own``.
    """

    engine: Releaser
    observed: Observations
    path: IntArray
    own: MarkovModel

    @cached_property
    def some(self) -> list[int]:
        return _looked_at(len(self.path))

    @cached_property
    def filtering(self) -> Filtering:
        return filter_releases(self.own, self.observed)

    @cached_property
    def later(self) -> Knowledge:
        return self._known(smooth_releases(self.own, self.observed, self.filtering, self.some))

    def _known(self, beliefs: Sequence[Belief]) -> Knowledge:
        return knowledge(beliefs, self.engine.measurements.points, 1, self.engine.cell)

    @property
    def estimate(self) -> list[float]:
        points, cell = self.engine.measurements.points, self.engine.cell
        if self.own is self.engine.model:
            now = self.filtering.at(self.some)
            return [expected_distance(one.probabilities, points, cell, one.beyond) for one in now]
        # The recipient's belief is not right for this person.
        now = filter_releases(self.engine.model, self.observed).at(self.some)
        away = [points[self.path[t]] - one.probabilities @ points for t, one in zip(self.some, now, strict=True)]
        return [hypot(float(np.linalg.norm(one)), within_cell(cell)) for one in away]

    @property
    def online(self) -> FloatArray:
        return self._known(self.filtering.at(self.some)).error

    @property
    def hindsight(self) -> FloatArray:
        return self.later.error

    @property
    def certainty(self) -> FloatArray:
        return self.later.best


def _figures_of(
    releases: PathReleases,
    odds: EventOdds | None,
    path: IntArray,
    seed: int,
    number: int,
    own: MarkovModel,
    only: str | None,
) -> tuple[float, ...]:
    """The figures of a person, in the order of `Simulation`; NaN for errors that ``only`` does not ask for."""
    drawing = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1, number)))
    rows, spent, withheld, error = releases.released(path, drawing)
    observed = Observations(rows, np.ones(releases.steps, dtype=np.int64), releases.first)
    reading = _Reading(releases.engine, observed, path, own)
    errors = (
        float(np.mean(getattr(reading, name))) if only in (None, name) else nan
        for name in ("estimate", "online", "hindsight", "certainty")
    )
    known = (*errors, spent, withheld, error)
    if odds is None:
        return known
    told, reached = odds.copy(), odds.log_odds
    for row in rows:
        told.update(row)
        reached = max(reached, told.log_odds)
    return *known, float(expit(reached))


def _looked_at(steps: int) -> list[int]:
    return [int(step) for step in np.unique(np.linspace(0, steps - 1, LOOKED_AT).astype(np.int64))]


def without_releases(
    releaser: Releaser, steps: int, first: int = 0, model: MarkovModel | None = None
) -> tuple[float, float, float]:
    """What a model alone tells over ``steps`` steps: no release can make the best guess err by more.

    Returns
    -------
    tuple of float
        The mean expected distance of the best guess, that of the mean, and the greatest probability of a state.
    """
    beliefs = no_information(model or releaser.model, np.ones(steps, dtype=np.int64), None, first)
    points, cell = releaser.measurements.points, releaser.cell
    some = [beliefs[t] for t in _looked_at(steps)]
    radii = [expected_distance(one.probabilities, points, cell, one.beyond) for one in some]
    most = max(float(one.probabilities.max()) for one in beliefs)
    return float(knowledge(some, points, 1, cell).error.mean()), float(np.mean(radii)), most
