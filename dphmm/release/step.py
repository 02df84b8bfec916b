"""What is known of a release before it is drawn, all of it public."""

from __future__ import annotations

from dataclasses import dataclass, field

from dphmm.arrays import BoolArray
from dphmm.markov.belief import Belief
from dphmm.mechanisms.base import Mechanism
from dphmm.policy.protection import Protection


@dataclass(frozen=True)
class StepPlan:
    """What a time step's constraint set leads to; a function of public things only.

    Parameters
    ----------
    constraint
        The constraint set ``C``, ``(N,)``.
    protection
        The repaired graph and its body; ``None`` where one state only is possible.
    """

    constraint: BoolArray
    protection: Protection | None

    @property
    def least_protection(self) -> int:
        """The least degree of protection over ``C``."""
        return 1 if self.protection is None else int(self.protection.degrees[self.constraint].min())


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
        What the release is drawn from.
    epsilon
        The budget.
    steps
        The time steps since the release before.
    """

    prior: Belief
    plan: StepPlan
    mechanism: Mechanism
    epsilon: float
    steps: int
    moment: object = field(repr=False)
    """What the engine knows its present moment by: a draw ends it."""

    @property
    def constrained_factor(self) -> float:
        """``max ‖f_j - f_k‖_K`` over possible states: the factor of Theorem 6.3."""
        return 0.0 if self.plan.protection is None else self.plan.protection.diameter
