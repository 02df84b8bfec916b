"""What is known of a release before it is drawn, all of it public."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import InvalidInputError, StateError
from dphmm.events.caps import CapKeeper
from dphmm.markov.belief import Belief
from dphmm.markov.model import MarkovModel
from dphmm.mechanisms.base import Mechanism
from dphmm.policy.protection import Protection
from dphmm.release.account import Account, day_steps
from dphmm.release.noise import ComponentNoise
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
        The time step of the first release, counted from 1970, where somebody said it.
    account
        What all releases about the person have cost; None where there were some that nobody told of.
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

    def spend(self, step: PreparedStep, step_seconds: float | None) -> tuple[float | None, float | None]:
        """Enter a release into the account; what all have spent, and those of the day that ends with it."""
        account, day = self.account, day_steps(step_seconds)
        if account is None:
            return None, None
        if self.count:
            slot = (account.slot or 0) + step.steps
        else:
            slot = (account.slot or 0) if self.first is None else self.first
        account.add(slot, step.epsilon, step.constrained_factor)
        return float(account.epsilon), None if day is None else float(account.window(slot, day))

    def advance(
        self,
        belief: Belief | None,
        count: int,
        keeper: CapKeeper | None = None,
        slot: int | None = None,
        told: FloatArray | None = None,
    ) -> None:
        """Come to another belief after so many releases, the last of them in a slot."""
        self.belief, self.count, self.keeper, self.slot, self.told = belief, count, keeper, slot, told
        self.moment = object()

    def prior(self, model: MarkovModel, steps: int) -> Belief:
        """The belief before the next release, ``steps`` time steps after the last one: ``p(s_t | z_1..t-1)``.

        Raises
        ------
        ConfigurationError
            When the model varies with time and nobody said when the first release is.
        """
        if self.belief is None:
            return Belief.first(model, self.first)
        return self.belief.predict(model, steps, self.slot)

    def slot_after(self, steps: int) -> int | None:
        """The slot of the next release, so many time steps after the last one (which the first ignores)."""
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
        The repaired graph and its body; ``None`` where one state only is possible.
    also
        The edges that were added before the repair; they count among the added ones.
    """

    constraint: BoolArray
    protection: Protection | None
    also: tuple[tuple[int, int], ...] = ()
    prior: Belief | None = field(default=None, repr=False)
    """The belief that the repair was chosen by, where it depends on one."""

    def serves(self, prior: Belief, constraint: BoolArray, also: tuple[tuple[int, int], ...]) -> bool:
        """Whether it is the plan of a belief that leads to a constraint set, with such edges."""
        same = self.prior is None or self.prior is prior or np.array_equal(self.prior.log_mass, prior.log_mass)
        return same and self.also == also and bool((self.constraint == constraint).all())

    def serves_repaired(self, constraint: BoolArray, also: tuple[tuple[int, int], ...]) -> bool:
        """Whether the repair would be the same under every belief: where nothing had to be added."""
        bare = self.protection is None or len(self.protection.added) == len(also)
        return bare and self.also == also and np.array_equal(self.constraint, constraint)

    @cached_property
    def least_protection(self) -> int:
        """The least degree of protection over ``C`` but its open states; 1 where there is no other."""
        if self.protection is None:
            return 1
        graph = self.protection.graph
        hidden = self.protection.degrees[self.constraint & ~graph.open if graph.has_open else self.constraint]
        return int(hidden.min()) if len(hidden) else 1


@dataclass(frozen=True)
class PreparedStep:
    """A release of which everything is known but the draw; a function of public things only.

    It is drawn once, from the engine that prepared it, before anything else is.

    Parameters
    ----------
    prior
        The belief before the release.
    plan
        The constraint set and its repaired graph.
    mechanism
        What the release is drawn from: one for all possible states, or one for each part of them; None where nothing
        is drawn.
    epsilon
        The budget; 0 where nothing is drawn.
    steps
        The time steps since the release before.
    """

    prior: Belief
    plan: StepPlan
    mechanism: Mechanism | ComponentNoise | None
    epsilon: float
    steps: int
    moment: object = field(repr=False)
    """What the engine knows its present moment by: a draw ends it."""
    reach: tuple[float, ...] = ()
    """How probable some output can make the event of each cap, as far as outputs were looked at."""
    reason: Reason = ""
    """Why nothing is drawn; empty where something is."""

    @classmethod
    def withholding(cls, prior: Belief, steps: int, moment: object, reason: Reason) -> PreparedStep:
        """A step at which nothing is drawn: the belief goes on by prediction."""
        return cls(prior, StepPlan(prior.support, None), None, 0.0, steps, moment, reason=reason)

    @property
    def withheld(self) -> bool:
        """Whether nothing is drawn."""
        return self.reason != ""

    @property
    def constrained_factor(self) -> float:
        """``max ‖f_j - f_k‖_K`` over possible states: the factor of Theorem 6.3; infinite where components differ."""
        return 0.0 if self.plan.protection is None else self.plan.protection.diameter


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


def check_steps(steps: object, least: int = 1) -> None:
    """Refuse what is no whole number of time steps, from ``least`` on.

    Raises
    ------
    InvalidInputError
        Naming what was found.
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < least:
        raise InvalidInputError(f"steps is {_name(steps)}; give a whole number from {least} on")


def _name(value: object) -> str:
    return shorten(value).strip("'")
