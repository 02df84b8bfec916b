"""What releases tell of people who move as a model says: expected errors, certainty, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

import numpy as np
from scipy.stats import t as student

from dphmm.arguments import checked
from dphmm.arrays import FloatArray, IntArray, as_floats
from dphmm.audit.metrics import knowledge, no_information
from dphmm.errors import InvalidInputError
from dphmm.markov import Belief, MarkovModel, Observations, filter_releases, smooth_releases
from dphmm.release.engine import Releaser

CONFIDENCE = 0.99
"""That of every interval."""

_START = 0
"""The time step of the first release, for models that vary with time: the one that ends as 1970 begins, in UTC."""


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
    def of(cls, values: FloatArray) -> Figure:
        """The mean of independent values ``(n,)``, at least one.

        Raises
        ------
        InvalidInputError
            When they are no list of finite numbers.
        """
        found = as_floats(values, "values", InvalidInputError)
        if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
            raise InvalidInputError(f"values have shape {found.shape}; give at least one finite number")
        count, mean = len(found), float(found.mean())
        if count < 2:
            return cls(mean, inf)
        quantile = float(student.ppf(0.5 + CONFIDENCE / 2, count - 1))
        return cls(mean, quantile * float(found.std(ddof=1)) / count**0.5)


@dataclass(frozen=True, eq=False)
class Simulation:
    """What releases told of simulated people; errors in the unit of the measurements.

    Parameters
    ----------
    epsilon
        The budget of each release.
    steps
        How many releases each person had.
    estimate, online, hindsight, certainty
        ``(people,)``: means over each one's releases of the expected distance of the estimate, of the best guess at the
        time and in hindsight, and of the probability in hindsight of the likeliest state.
    """

    epsilon: float
    steps: int
    estimate: FloatArray = field(repr=False)
    online: FloatArray = field(repr=False)
    hindsight: FloatArray = field(repr=False)
    certainty: FloatArray = field(repr=False)

    @property
    def people(self) -> int:
        """How many people."""
        return len(self.estimate)

    def figure(self, name: str) -> Figure:
        """The mean of ``"estimate"``, ``"online"``, ``"hindsight"`` or ``"certainty"``, with its interval."""
        return Figure.of(getattr(self, name))


@checked
def simulate(
    releaser: Releaser,
    epsilon: float,
    people: int,
    steps: int,
    seed: int = 0,
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Simulation:
    """Release people whose paths follow the engine's model, one release a step, and say what is known of them.

    The belief is right for such people, so the mean distance that it expects of an estimate is the mean distance of the
    estimate; that has less variance than the distances themselves.

    Parameters
    ----------
    releaser
        An engine without caps on events or a schedule; it is left as it is.
    epsilon
        The budget of each release.
    people, steps
        How many people, from 2, and how many releases each.
    seed
        Whom: the same seed gives the same paths, and the same random bytes, for every budget.
    watch
        Hands on the people's numbers, and may show how far it has come.

    Raises
    ------
    InvalidInputError
        When there are fewer than 2 people or no step, or the engine keeps caps or a schedule.
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
    if releaser.settings.caps or releaser.settings.schedule is not None:
        raise InvalidInputError("caps on events and schedules withhold releases; simulate an engine without them")
    found = np.array([_of_one(releaser, epsilon, steps, seed, number) for number in watch(range(people))])
    return Simulation(epsilon, steps, *found.T)


def _of_one(releaser: Releaser, epsilon: float, steps: int, seed: int, number: int) -> tuple[float, ...]:
    moving, drawing = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(k, number))) for k in (0, 1))
    engine = releaser.another(drawing)
    engine.restart(_START)
    rows, records = [], []
    for state in walk_of(engine.model, steps, moving).tolist():
        step = engine.prepare(epsilon)
        record = engine.draw(step, state)
        assert record.released is not None, "nothing withholds a release"
        rows.append(engine.log_likelihood(step, record.released))
        records.append(record)
    observed = Observations(np.array(rows), np.ones(steps, dtype=np.int64), _START)
    smoothed = smooth_releases(engine.model, observed, filter_releases(engine.model, observed))
    later = knowledge(smoothed, engine.measurements.points, 1)
    return (
        float(np.mean([record.estimate_radius for record in records])),
        float(np.mean([record.adversary_error for record in records])),
        float(later.error.mean()),
        float(later.best.mean()),
    )


def walk_of(model: MarkovModel, steps: int, rng: np.random.Generator) -> IntArray:
    """The states ``(steps,)`` of a person who moves as a model says, drawn one after another."""
    belief, path = Belief.first(model, _START), np.empty(steps, dtype=np.int64)
    for t in range(steps):
        if t:
            belief = belief.predict(model, 1, _START + t - 1)
        path[t] = rng.choice(model.size, p=belief.probabilities / belief.probabilities.sum())
        here = np.full(model.size, -np.inf)
        here[path[t]] = 0.0
        belief = belief.update(here)
    return path


def without_releases(releaser: Releaser, steps: int) -> tuple[float, float, float]:
    """What the model alone tells over so many steps: no release can make the best guess err by more.

    Returns
    -------
    tuple of float
        The mean expected distance of the best guess, that of the mean, and the greatest probability of a state.
    """
    beliefs = no_information(releaser.model, np.ones(steps, dtype=np.int64), None, _START)
    points = releaser.measurements.points
    told = knowledge(beliefs, points, 1)
    radii = [one.probabilities @ np.linalg.norm(points - one.mean(points), axis=1) for one in beliefs]
    return float(told.error.mean()), float(np.mean(radii)), float(told.best.max())
