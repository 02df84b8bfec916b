"""What is known of a release before it is drawn, all of it public: belief, constraint set, repaired graph."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Literal

import numpy as np

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import InvalidInputError, StateError
from dphmm.events.cap import CapKeeper
from dphmm.mechanisms.base import BODY_OF, TABLES
from dphmm.model.belief import Belief
from dphmm.model.model import MarkovModel
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection import Protecting, Protection
from dphmm.release.ledger import Account, day_steps
from dphmm.release.noise import Query, StepNoise, with_hops
from dphmm.release.settings import Settings
from dphmm.tables.values import shorten

Reason = Literal["", "target", "budget", "caps"]
"""Why nothing is drawn: the estimate is within the target, a budget for a window would not last, or caps on events."""


@dataclass(eq=False)
class PublicState:
    """How far the releases about one person have come; engines of several queries about them share it.

    Parameters
    ----------
    belief
        The public belief after the last release; ``None`` before the first.
    count
        How many releases there were, withheld ones included.
    keeper
        What is known of capped events after them; ``None`` where there are no caps, and before the first release.
    first
        The time step of the first release, counted from 1970, where it is given.
    account
        What all releases about the person have cost; None where some are unknown.
    slot
        The time step of the last release, where that of the first is known.
    told
        ``(N,)``: ``log p(z | s)`` of the last release, of every state that was possible before it; None where it was
        not made here.
    """

    belief: Belief | None = None
    count: int = 0
    keeper: CapKeeper | None = None
    first: int | None = None
    account: Account | None = field(default_factory=Account)
    slot: int | None = None
    told: FloatArray | None = None
    moment: object = field(default_factory=object, repr=False)
    """What the present is known by: it is another one after whatever happens."""

    def spend(self, step: PreparedStep, step_seconds: float | None) -> tuple[float | None, float | None, float | None]:
        """Enter a release into the account; what all have spent, what its day, and the hours since the last draw."""
        account, day = self.account, day_steps(step_seconds)
        if account is None:
            return None, None, None
        slot = account.slot or 0
        if self.count:
            slot += step.steps
        elif self.first is not None:
            slot = self.first
        account.add(slot, step.epsilon, step.plan.protection.diameter)
        spent = float(account.epsilon)
        if day is None or step_seconds is None:
            return spent, None, None
        hours = inf if account.drawn is None else (slot - account.drawn) * step_seconds / 3600
        return spent, float(account.window(slot, day)), hours

    def advance(
        self,
        belief: Belief | None,
        count: int,
        keeper: CapKeeper | None = None,
        slot: int | None = None,
        told: FloatArray | None = None,
    ) -> None:
        """Move on to the belief after ``count`` releases, the last of them in a slot."""
        self.belief, self.count, self.keeper, self.slot, self.told = belief, count, keeper, slot, told
        self.moment = object()

    def prior(self, model: MarkovModel, steps: int) -> Belief:
        """The belief before the next release, ``steps`` time steps after the last one: ``p(s_t | z_1..t-1)``.

        Raises
        ------
        ConfigurationError
            When the model varies with time and the slot of the first release is not given.
        """
        if self.belief is None:
            return Belief.first(model, self.first)
        return self.belief.predict(model, steps, self.slot)

    def slot_after(self, steps: int) -> int | None:
        """The slot of the next release, ``steps`` time steps after the last one (which the first ignores)."""
        if not self.count:
            return self.first
        return None if self.slot is None else self.slot + steps


@dataclass(frozen=True)
class StepPlan:
    """What a time step's constraint set leads to; a function of public things only.

    Parameters
    ----------
    constraint
        The constraint set ``C``, ``(N,)``.
    protection
        The repaired graph and its bodies; a point for a body where the only possible state is released as it is.
    also
        The edges that were added before the repair; they count among the added ones.
    prior
        The belief that the repair was chosen by, where it depends on one.
    """

    constraint: BoolArray
    protection: Protection
    also: tuple[tuple[int, int], ...] = ()
    prior: Belief | None = field(default=None, repr=False)

    def serves(self, prior: Belief, constraint: BoolArray, also: tuple[tuple[int, int], ...]) -> bool:
        """Whether it is the plan of a belief that leads to a constraint set, with such edges.

        Parameters
        ----------
        prior
            The belief.
        constraint
            The constraint set, ``(N,)``.
        also
            Edges that are added before the repair.

        Returns
        -------
        bool
            Whether the plan can be used again.
        """
        same = self.prior is None or self.prior is prior or np.array_equal(self.prior.log_mass, prior.log_mass)
        return same and self.also == also and bool((self.constraint == constraint).all())

    def serves_repaired(self, constraint: BoolArray, also: tuple[tuple[int, int], ...]) -> bool:
        """Whether the repair would be the same under every belief: where nothing had to be added.

        Parameters
        ----------
        constraint
            The constraint set, ``(N,)``.
        also
            Edges that are added before the repair.

        Returns
        -------
        bool
            Whether the repair can be used again.
        """
        bare = len(self.protection.added) == len(also)
        return bare and self.also == also and np.array_equal(self.constraint, constraint)

    @cached_property
    def possible(self) -> int:
        """How many states are possible."""
        return int(np.count_nonzero(self.constraint))

    @cached_property
    def is_known(self) -> bool:
        """Whether one state only is possible that is not open: it is released as it is."""
        return self.possible == 1 and not self.protection.open[self.constraint].any()

    @cached_property
    def least_protection(self) -> int:
        """The least degree of protection over ``C`` but its open states; 1 where there is no other."""
        graph = self.protection.graph
        hidden = self.protection.degrees[self.constraint & ~graph.open if graph.has_open else self.constraint]
        return int(hidden.min()) if len(hidden) else 1


@dataclass(frozen=True, eq=False)
class NextRelease:
    """What is known before the next release: what a schedule and caps take, and give back with their limits.

    Parameters
    ----------
    prior
        The belief before the release.
    epsilon
        The greatest budget that it may have.
    steps
        The time steps since the release before.
    person
        How far the releases about the person have come, and what they have cost.
    planner
        What the belief leads to, and the noise of it.
    planned
        The plan, where it is not the planner's own of the belief.
    reach
        How probable some output can make the event of each cap, as far as outputs were looked at.
    reason
        Why nothing is drawn; empty where something is.
    """

    prior: Belief
    epsilon: float
    steps: int
    person: PublicState
    planner: Planner
    planned: StepPlan | None = None
    reach: tuple[float, ...] = ()
    reason: Reason = ""

    @cached_property
    def plan(self) -> StepPlan:
        """The constraint set and its repaired graph; without one where nothing is drawn."""
        if self.reason:
            return self.planner.plan_without_noise(self.prior)
        return self.planned or self.planner.plan(self.prior)

    def noise(self, epsilon: float) -> StepNoise:
        """The noise that the release would have with a budget."""
        return self.planner.noise(self.plan, epsilon)


@dataclass(frozen=True, eq=False)
class PreparedStep:
    """A release of which everything is known but the draw; a function of public things only.

    It is drawn once, from the engine that prepared it, before anything else is.

    Parameters
    ----------
    prior
        The belief before the release.
    plan
        The constraint set and its repaired graph.
    noise
        What the release is drawn from; without parts where nothing is drawn.
    epsilon
        The budget; 0 where nothing is drawn.
    steps
        The time steps since the release before.
    moment
        What the engine knows its present moment by: a draw ends it.
    reach, reason
        As of `NextRelease`.
    """

    prior: Belief
    plan: StepPlan
    noise: StepNoise
    epsilon: float
    steps: int
    moment: object = field(repr=False)
    reach: tuple[float, ...] = ()
    reason: Reason = ""

    @property
    def withheld(self) -> bool:
        """Whether nothing is drawn."""
        return self.reason != ""

    @property
    def constrained_factor(self) -> float:
        """``max ‖f_j - f_k‖_K`` over possible states: the factor of Theorem 6.3; infinite where components differ."""
        return self.plan.protection.diameter


def as_state(state: object, size: int) -> int:
    """A state as an int.

    Raises
    ------
    StateError
        When it is no whole number from 0 to ``size - 1``.
    """
    found = state.item() if isinstance(state, np.generic | np.ndarray) and state.size == 1 else state
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < size:
        raise StateError(f"state {_name(state)} does not exist; states are 0 to {size - 1}")
    return found


def check_steps(steps: object) -> None:
    """Refuse what is no whole number of time steps, from 1 on.

    Raises
    ------
    InvalidInputError
        Naming what was found.
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise InvalidInputError(f"steps is {_name(steps)}; give a whole number from 1 on")


def _name(value: object) -> str:
    return shorten(value).strip("'")


Edges = tuple[tuple[int, int], ...]

_KEPT = 16
"""How many noises a planner keeps: a schedule tries eleven budgets, moment after moment."""


class Planner:
    """What beliefs lead to under some settings: plans, and their noise; the last ones often serve the next step too.

    Parameters
    ----------
    settings, policy
        As of a `dphmm.Releaser`.
    query
        What is measured.
    """

    def __init__(self, settings: Settings, policy: PolicyGraph, query: Query) -> None:
        self._settings, self._policy, self.query = settings, policy, query
        self.places = query.measurements
        """The nearest possible state by these stands in for one that is not possible."""
        self._draws_tables = settings.mechanism in TABLES
        self._protect = Protecting(
            query.measurements,
            settings.repair,
            settings.objective,
            BODY_OF[settings.mechanism],
            settings.membership,
            settings.repair_limit,
            settings.calibration,
        )
        self._last: StepPlan | None = None
        self._made: tuple[tuple[StepPlan, float, StepNoise], ...] = ()

    def plan(self, prior: Belief, also: Edges = ()) -> StepPlan:
        """The plan of a belief, with some edges added before the repair; see `dphmm.Releaser.plan`."""
        delta = self._settings.delta
        constraint = prior.support if delta is None else prior.location_set(delta)
        if self._last is None or not self._last.serves(prior, constraint, also):
            if self._draws_tables and self._last is not None and self._last.serves_repaired(constraint, also):
                self._last = replace(self._last, prior=prior)
                return self._last
            protection = self._protection(prior, constraint, also)
            # Which partners are best for components depends on how probable these are.
            chosen = bool(protection.added) and self._settings.calibration == "component"
            if also:
                protection = replace(protection, added=(*also, *protection.added))
            self._last = StepPlan(constraint, protection, also, prior if chosen or self._draws_tables else None)
        return self._last

    def plan_without_noise(self, prior: Belief) -> StepPlan:
        """The plan of a belief with which nothing is drawn."""
        return StepPlan(prior.support, self._protect.without_noise(self._policy.restrict(prior.support)))

    def _protection(self, prior: Belief, constraint: BoolArray, also: Edges) -> Protection:
        settings = self._settings
        if settings.allow_known and np.count_nonzero(constraint) == 1 and not self._policy.open[constraint].any():
            return self._protect.without_noise(self._policy.restrict(constraint))
        weights = prior.probabilities if settings.calibration == "component" else None
        if weights is not None and not weights[constraint].any():
            weights = None  # where doubles hold nothing of them, all possible states are alike
        found = self._protect(self._policy.with_edges(also), constraint, weights)
        return with_hops(found) if self._draws_tables else found

    def noise(self, plan: StepPlan, epsilon: float) -> StepNoise:
        """The noise of a plan: in lattice steps for ``"lattice"``, otherwise in the unit of the measurements."""
        for known, budget, noise in self._made:
            if known is plan and budget == epsilon:
                return noise
        self._made = ((plan, epsilon, self.query.noise(plan.protection, epsilon, plan.prior)), *self._made[: _KEPT - 1])
        return self._made[0][2]

    def released_as(self, states: IntArray, constraint: BoolArray) -> IntArray:
        """The possible state that each of some states ``(k,)`` is released as: itself, or the one that stands in."""
        found, outside = states.copy(), ~constraint[states]
        if outside.any():
            found[outside] = self.places.surrogates(states[outside], constraint)
        return found
