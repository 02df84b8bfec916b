"""Caps on events, kept release by release: how much of a budget they leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import InvalidInputError
from dphmm.events.calendar import Clock
from dphmm.events.caps import CapKeeper
from dphmm.events.chain import Transition, Varying
from dphmm.events.outputs import Outputs, PartedOutputs, TableOutputs, outputs_of
from dphmm.events.priors import read_priors
from dphmm.events.wording import EventText
from dphmm.markov.extended import ExtendedModel
from dphmm.markov.model import MarkovModel
from dphmm.mechanisms.catalogue import TABLES
from dphmm.mechanisms.table import TableMechanism
from dphmm.release.noise import ComponentNoise
from dphmm.release.step import PreparedStep, PublicState, StepPlan

if TYPE_CHECKING:
    from dphmm.markov.belief import Belief
    from dphmm.release.engine import Releaser
    from dphmm.release.settings import ReleaseSettings
    from dphmm.release.stored import StoredRelease

_REMEMBERED = 64
_LOOKED_AT = 16
"""Where parts of the states have noise of their own: how many outputs are looked at for how far odds can get."""


class Capping:
    """The caps of an engine's settings, for everybody whom it releases.

    Parameters
    ----------
    settings
        With their caps and the priors that these are kept for.
    model
        The model.

    Raises
    ------
    ConfigurationError, DataFileError
        When priors are given and the model does not say what its states are, or the file does not read.
    """

    def __init__(self, settings: ReleaseSettings, model: MarkovModel) -> None:
        self._caps, self._model = settings.caps, model
        self._priors: tuple[FloatArray, ...] = ()
        if settings.priors is not None:
            self._priors = read_priors(settings.priors, model.space)
        self.passes_over_the_past = False
        """Whether an event that was over at a person's first release is passed over; else it is refused."""
        self._begun: dict[int | None, CapKeeper] = {}
        self._outputs: tuple[StepPlan, Outputs] | None = None

    def __bool__(self) -> bool:
        return bool(self._caps)

    def keeper(self, person: PublicState) -> CapKeeper:
        """What is known of the capped events after a person's releases.

        Raises
        ------
        EventError
            When an event cannot be asked about, or passes its cap before anything is released.
        InvalidInputError
            When releases were made that it does not know of.
        """
        if person.keeper is not None:
            return person.keeper
        if person.count:
            raise InvalidInputError("what earlier releases told of the capped events is not known; replay them")
        if person.first not in self._begun:
            if len(self._begun) >= _REMEMBERED:
                self._begun.clear()
            clock, states = Clock(self._model.step_seconds, person.first), self._model.states
            moves, start = chain_of(self._model, person.first)
            over = self.over_before(person.first) if self.passes_over_the_past else frozenset()
            self._begun[person.first] = CapKeeper(self._caps, moves, start, states, clock, self._priors, over)
        return self._begun[person.first].copy()

    def over_before(self, first: int | None) -> frozenset[int]:
        """The numbers of the caps whose events were over at a first release: the model says nothing of them."""
        clock = Clock(self._model.step_seconds, first)
        texts = [(number, cap.event) for number, cap in enumerate(self._caps) if isinstance(cap.event, EventText)]
        return frozenset(number for number, event in texts if event.is_past(clock))

    def prepare(self, engine: Releaser, prior: Belief, plan: StepPlan, epsilon: float, steps: int) -> PreparedStep:
        """A step of an engine with the largest budget, at most the given one, at which no output passes a cap.

        Where nothing is left it is one at which nothing is drawn.

        Parameters
        ----------
        engine
            The engine, with the person whose releases it has made.
        prior, plan
            The belief before the release and what it leads to.
        epsilon
            The budget to stay within.
        steps
            The time steps since the last release.

        Raises
        ------
        EventError, InvalidInputError
            As `keeper`.
        """
        if not self:
            return engine.prepare_on(prior, plan, epsilon, steps)
        if self._outputs is None or self._outputs[0] is not plan:
            self._outputs = (plan, outputs_along(engine, plan, epsilon))
        choice = self.keeper(engine.person).choose(self._outputs[1], epsilon, steps)
        if choice.epsilon is None:
            return replace(PreparedStep.withholding(prior, steps, engine.person.moment, "caps"), reach=choice.highest)
        return replace(engine.prepare_on(prior, plan, choice.epsilon, steps), reach=choice.highest)

    def wanted(self, support: BoolArray) -> BoolArray:
        """The states whose likelihoods are needed, ``(N,)``: those of a belief, with caps all."""
        return np.ones_like(support) if self else support

    def after(self, person: PublicState, log_likelihood: FloatArray, steps: int) -> CapKeeper | None:
        """What is known of the capped events after one more release; what was known before stays as it is."""
        if not self:
            return None
        keeper = self.keeper(person).copy()
        keeper.update(log_likelihood, steps)
        return keeper


def outputs_along(engine: Releaser, plan: StepPlan, epsilon: float) -> Outputs:
    """All outputs of a step's noise, at any budget; states that are not possible are released as their stand-ins.

    Parameters
    ----------
    engine, plan
        The engine and its plan of the step.
    epsilon
        Any budget: the shape of the noise does not depend on it.
    """
    released_as = np.arange(len(engine.values))
    outside = np.flatnonzero(~plan.constraint)
    if len(outside):
        released_as[outside] = engine.places.surrogates(outside, plan.constraint)
    values, noise = engine.values[released_as], engine.mechanism(plan, epsilon)
    if not isinstance(noise, ComponentNoise):
        return outputs_of(noise, values)
    if engine.settings.mechanism in TABLES:
        return TableOutputs(len(values), lambda budget: _table(engine, plan, budget)[released_as])
    part = noise.part_of[released_as]
    members = [(mechanism, np.flatnonzero(part == number)) for number, mechanism in enumerate(noise.mechanisms)]
    parts = [(outputs_of(mechanism, values[states]), states) for mechanism, states in members if len(states)]
    possible = np.flatnonzero(plan.constraint)
    some = np.unique(possible[np.linspace(0, len(possible) - 1, _LOOKED_AT).astype(np.int64)])

    def at(budget: float) -> FloatArray:
        drawn, exact = engine.mechanism(plan, budget), engine.settings.is_exact
        assert isinstance(drawn, ComponentNoise), "a plan has one kind of noise"
        return np.stack([drawn.log_density(z, engine.values, exact)[released_as] for z in engine.values[some]])

    return PartedOutputs(parts, at)


def _table(engine: Releaser, plan: StepPlan, epsilon: float) -> FloatArray:
    """The log probability of every output of a step's tables, ``(N, Z)``; minus infinity for impossible states."""
    noise = engine.mechanism(plan, epsilon)
    assert isinstance(noise, ComponentNoise), "a plan has one kind of noise"
    points, column = np.unique(engine.values[plan.constraint], axis=0, return_inverse=True)
    found, where = np.full((len(engine.values), len(points)), -np.inf), np.zeros(len(engine.values), dtype=np.int64)
    where[plan.constraint] = np.asarray(column).ravel()
    for mechanism, states in zip(noise.mechanisms, noise.members, strict=True):
        if isinstance(mechanism, TableMechanism):
            own = np.unique(where[states])  # a table's places are those of its states
            values = engine.values[states]
            found[np.ix_(states, own)] = mechanism.log_density(points[own][np.newaxis], values[:, np.newaxis])
        else:
            found[states, where[states]] = 0.0  # released as it is
    return found


def chain_of(model: MarkovModel, first: int | None) -> tuple[Transition, FloatArray]:
    """A model as events take it: how a path goes on from the first release, in slot ``first``, and how it begins.

    Raises
    ------
    ConfigurationError
        When the model varies with time and nobody said when the first release is.
    """
    if not isinstance(model, ExtendedModel):
        return model.transition, model.initial
    start, rhythm = model.starts[model.class_of(first)], model.rhythm

    def which(time: int) -> int:
        return 0 if rhythm is None or first is None else rhythm.class_of(first + time + 1)

    return Varying(model.transitions, which, None if model.contexts is None else model.contexts.last), start


def again(queries: Mapping[str, Releaser], releases: Iterable[StoredRelease]) -> CapKeeper | None:
    """What stored releases told of the capped events, gone through one after another; None where there are none.

    Parameters
    ----------
    queries
        Query → its engine; all are about one person, and know when the first release was.
    releases
        In their order, from the first.
    """
    last = None
    for engine in queries.values():
        engine.restart()
    keeper = None
    for count, release in enumerate(releases):
        engine, record = queries[release.query], release.record
        steps = 0 if last is None else release.slot - last
        prior = engine.prior(steps)
        likelihood = np.zeros(engine.model.size)
        if record.released is not None:
            step = engine.prepare_on(prior, engine.plan(prior), record.epsilon, steps)
            likelihood = engine.log_likelihood(step, record.released)
        keeper = engine.capping.after(engine.person, likelihood, steps)
        engine.resume(prior.update(likelihood), count + 1, keeper, slot=release.slot)
        last = release.slot
    return keeper
