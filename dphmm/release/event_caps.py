"""Caps on events, kept release by release: how much of a budget they leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dphmm.arrays import FloatArray
from dphmm.errors import EventError, InvalidInputError
from dphmm.events.calendar import Clock
from dphmm.events.cap import CapKeeper, Earlier, read_priors
from dphmm.events.expression import EventText
from dphmm.events.outputs import Outputs, PartedOutputs, TableOutputs, outputs_of
from dphmm.events.product_chain import Chain
from dphmm.model.model import MarkovModel
from dphmm.release.noise import StepNoise
from dphmm.release.settings import Settings
from dphmm.release.step import NextRelease, Planner, PublicState, StepPlan
from dphmm.space.trajectory import microseconds

_REMEMBERED = 64
_WEEK = 7 * 24 * 3_600_000_000
_AT_REST = 1e-8
"""How far the distribution of the first state may be from the one at rest, relative to it."""
_LOOKED_AT = 16
"""Where parts of the states have noise of their own: how many outputs are looked at for how far odds can get."""


class Capping:
    """The caps of an engine's settings, for every person whom it releases.

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

    def __init__(self, settings: Settings, model: MarkovModel) -> None:
        self._caps, self._model = settings.caps, model
        self.priors: tuple[FloatArray, ...] = ()
        """Other first distributions that caps are kept for."""
        if settings.priors is not None:
            self.priors = read_priors(settings.priors, model.space)
        self.passes_over_the_past = False
        """Whether caps of `over_before` are passed over; else they are refused."""
        self._begun: dict[int | None, CapKeeper] = {}
        self._outputs: tuple[StepPlan, Outputs] | None = None

    def __bool__(self) -> bool:
        return bool(self._caps)

    @property
    def names_dates(self) -> bool:
        """Whether what is asked of a first release depends on when it is."""
        clock = Clock(self._model.step_seconds, first=None)
        try:
            for event in (cap.event for cap in self._caps if isinstance(cap.event, EventText)):
                event.begins(clock)
                event.is_past(clock)
        except EventError:
            return True
        return False

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
            self._begun[person.first] = CapKeeper(
                self._caps, moves, start, states, clock, self.priors, over, earlier(self._model, person.first)
            )
        return self._begun[person.first].copy()

    def over_before(self, first: int | None) -> frozenset[int]:
        """The numbers of the caps whose events were over at a first release, where the model says nothing of them."""
        clock, sooner = Clock(self._model.step_seconds, first), earlier(self._model, first)
        texts = [(number, cap.event) for number, cap in enumerate(self._caps) if isinstance(cap.event, EventText)]
        over = [(number, event.begins(clock)) for number, event in texts if event.is_past(clock)]
        return frozenset(number for number, begins in over if not begins or sooner(-begins) is None)

    def outputs(self, planner: Planner, plan: StepPlan, epsilon: float) -> Outputs:
        """As `outputs_along`; those of the last plan are kept."""
        if self._outputs is None or self._outputs[0] is not plan:
            self._outputs = plan, outputs_along(planner, plan, epsilon)
        return self._outputs[1]

    def limit(self, release: NextRelease) -> NextRelease:
        """A release with the largest budget, at most the given one, at which no output passes a cap.

        Where none is left it is one at which nothing is drawn.

        Raises
        ------
        EventError, InvalidInputError
            As `keeper`.
        """
        if not self._caps or release.reason:
            return release
        outputs = self.outputs(release.planner, release.plan, release.epsilon)
        choice = self.keeper(release.person).choose(outputs, release.epsilon, release.steps)
        if choice.epsilon is None:
            return replace(release, reason="caps", reach=choice.highest)
        return replace(release, epsilon=choice.epsilon, reach=choice.highest)

    def updated(self, person: PublicState, log_likelihood: FloatArray, steps: int) -> CapKeeper | None:
        """What is known of the capped events after one more release; what was known before stays as it is."""
        if not self._caps:
            return None
        keeper = self.keeper(person).copy()
        keeper.update(log_likelihood, steps)
        return keeper


def outputs_along(planner: Planner, plan: StepPlan, epsilon: float) -> Outputs:
    """All outputs of a step's noise, at any budget; states that are not possible are released as their stand-ins.

    Parameters
    ----------
    planner, plan
        What the plan's noise is made by, and the plan.
    epsilon
        Any budget: the shape of the noise does not depend on it.
    """
    values, noise = planner.query.values, planner.noise(plan, epsilon)
    released_as = planner.released_as(np.arange(len(values)), plan.constraint)
    if any(part.table is not None for part in noise.parts):
        return TableOutputs(len(values), lambda budget: _table(planner.noise(plan, budget))[released_as])
    part = noise.part_of[released_as]
    members = [(mechanism, np.flatnonzero(part == number)) for number, mechanism in enumerate(noise.parts)]
    parts = [(outputs_of(mechanism, values[released_as[own]]), own) for mechanism, own in members if len(own)]
    if len(parts) == 1:
        return parts[0][0]
    possible = np.flatnonzero(plan.constraint)
    some = np.unique(possible[np.linspace(0, len(possible) - 1, _LOOKED_AT).astype(np.int64)])

    def at(budget: float) -> FloatArray:
        return planner.noise(plan, budget).log_densities(values[some], possible)[:, place[released_as]]

    place = np.full(len(values), -1)
    place[possible] = np.arange(len(possible))
    return PartedOutputs(parts, at)


def _table(noise: StepNoise) -> FloatArray:
    """The log probability of every output of a step's tables, ``(N, Z)``; minus infinity for impossible states."""
    values, possible = noise.query.values, noise.part_of >= 0
    points, column = np.unique(values[possible], axis=0, return_inverse=True)
    found, where = np.full((len(values), len(points)), -np.inf), np.zeros(len(values), dtype=np.int64)
    where[possible] = np.asarray(column).ravel()
    for mechanism, states in zip(noise.parts, noise.members, strict=True):
        if mechanism.table is not None:
            own = np.unique(where[states])  # a table's places are those of its states
            found[np.ix_(states, own)] = mechanism.log_density(points[own][np.newaxis], values[states][:, np.newaxis])
        else:
            found[states, where[states]] = 0.0  # released as it is
    return found


def chain_of(model: MarkovModel, first: int | None) -> tuple[Chain, FloatArray]:
    """A model as events take it: how a path goes on from the first release, in slot ``first``, and how it begins.

    Raises
    ------
    ConfigurationError
        When the model varies with time and the slot of the first release is unknown.
    """
    return Chain.of_model(model, first), model.starts[model.class_of(first)]


def earlier(model: MarkovModel, first: int | None) -> Earlier:
    """How a model is begun some steps before the first release, in slot ``first``, if it says anything of that time.

    It does where it begins at rest: where the distribution of the first state is the one that a step, or with classes
    of time a week, leads to again. Then the chain reversed in time is the same chain, begun at rest earlier on.

    Parameters
    ----------
    model
        The model.
    first
        The slot of the first release; None where it is unknown.

    Returns
    -------
    Earlier
        A number of steps → the chain from that many steps before the first release on, and the distribution of the
        state then; None where the model does not begin at rest, and where it knows of people outside.
    """

    def begun(lead: int) -> tuple[Chain, FloatArray] | None:
        if first is None or model.away is not None:
            return None
        start, period = model.first_logs(first), 1
        if model.time_classes is not None:
            period, rest = divmod(_WEEK, microseconds(model.step, "step"))
            if rest:
                return None
        # A whole period before the first release all is as then; further on in it the distribution is that of later.
        then = model.operator(-lead % period, first).forward(start)
        since = [model.operator(period, first).forward(start), model.operator(lead, first - lead).forward(then)]
        if not all(np.allclose(np.exp(one), np.exp(start), rtol=_AT_REST, atol=1e-12) for one in since):
            return None
        return Chain.of_model(model, first - lead), np.exp(then)

    return begun
