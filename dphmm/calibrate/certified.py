"""The largest budget at which no output of one release tells too much of an event, whenever it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import log, sqrt

import numpy as np
from scipy.special import expit

from dphmm.arguments import checked
from dphmm.calibrate.budgets import rounded_down
from dphmm.calibrate.simulation import beliefs_along
from dphmm.errors import BudgetError, EventError
from dphmm.events.event import Event
from dphmm.events.outputs import Outputs, Questions
from dphmm.events.product_chain import EventOdds, Split
from dphmm.release.engine import Releaser
from dphmm.release.event_caps import chain_of, outputs_along
from dphmm.release.step import StepPlan

_LEAST, _MOST = 1e-4, 100.0
_NEAR = 1.002
"""A search ends where budgets that hold and that do not are this near to each other, as a ratio."""


class EventLimit:
    """What one release may tell of an event, at any of some moments, where nothing else was released.

    Parameters
    ----------
    releaser
        The engine.
    event
        The event, in steps from the first moment.
    probability
        What no output is to take its probability above.
    first
        The time step of the first moment, counted from 1970, for models that vary with time.

    Raises
    ------
    EventError
        When the event cannot be asked about, or is as probable as that before anything is released.
    """

    def __init__(self, releaser: Releaser, event: Event, probability: float, first: int = 0) -> None:
        self._engine, self._first = releaser, first
        self._odds = EventOdds(*chain_of(releaser.model, first), event)
        self.prior = float(expit(self._odds.prior))
        """The probability of the event before anything is released."""
        if not self.prior < probability < 1:
            raise EventError(
                f"event '{event}' has probability {self.prior:.4g} before anything is released, which no budget takes "
                f"below {probability:g}; give a probability between the two and 1"
            )
        self._level = log(probability) - log(1 - probability)
        self._outputs: tuple[StepPlan, Outputs] | None = None

    def holds(self, epsilon: float, steps: int, watch: Callable[[Iterable[int]], Iterable[int]] = iter) -> bool:
        """Whether no output of a release with a budget passes the limit, at any of the first ``steps`` moments."""
        return all(self._holds_at(split, plan, epsilon) for split, plan in self._moments(watch(range(steps))))

    def largest(self, steps: int, watch: Callable[[Iterable[int]], Iterable[int]] = iter) -> float:
        """About the largest budget of four digits that holds; `holds` is certain of it.

        Raises
        ------
        BudgetError
            When none from 1e-4 does.
        """
        epsilon = _MOST
        while True:
            lowered = False
            for split, plan in self._moments(watch(range(steps))):
                found = self._at_most(split, plan, epsilon)
                lowered |= found < epsilon
                epsilon = found
            if not lowered:
                return epsilon

    def _at_most(self, split: Split, plan: StepPlan, epsilon: float) -> float:
        """The largest budget that holds at a moment, at most one."""
        if self._holds_at(split, plan, epsilon):
            return epsilon
        low, high = epsilon, epsilon
        while not self._holds_at(split, plan, low):
            if low <= _LEAST:
                raise BudgetError(
                    f"no budget from {_LEAST:g} keeps the event below the probability: what is said of noise of this "
                    "kind does not suffice, or a release rules states out; give a higher one"
                )
            low, high = max(rounded_down(low / 4), _LEAST), low
        while high > _NEAR * low and low < (middle := rounded_down(sqrt(low * high))) < high:
            low, high = (middle, high) if self._holds_at(split, plan, middle) else (low, middle)
        return low

    def _holds_at(self, split: Split, plan: StepPlan, epsilon: float) -> bool:
        if self._outputs is None or self._outputs[0] is not plan:
            self._outputs = (plan, outputs_along(self._engine.planner, plan, epsilon))
        outputs = self._outputs[1]
        first, second = (outputs.gathered(column[:, np.newaxis]) for column in (split.log_with, split.log_without))
        return outputs.ask(Questions.from_masses(first, second, np.array([self._level])), epsilon).certain

    def _moments(self, steps: Iterable[int]) -> Iterable[tuple[Split, StepPlan]]:
        """The belief before a release at each moment, cut by the event, and the noise that goes with it."""
        odds, model = self._odds.copy(), self._engine.model
        odds.update(np.full(model.size, np.nan))  # nothing was released, so that time goes on from 0
        for step, belief in zip(steps, beliefs_along(model, self._first), strict=False):
            yield odds.split(step), self._engine.plan(belief)


@checked
def epsilon_for_event(releaser: Releaser, event: Event, probability: float, steps: int = 1, first: int = 0) -> float:
    """The largest budget at which no output of one release takes the probability of an event above another.

    At every one of the first ``steps`` moments, where nothing else was released: all outputs of the noise are looked at
    by branch and bound, as caps do. About several releases together it says nothing; caps do, or `epsilon_for_odds`.

    Parameters
    ----------
    releaser
        The engine, of which model, policy and noise count.
    event
        The event, in steps from the first moment.
    probability
        What no output is to take its probability above.
    steps
        How many moments are looked at, from 1.
    first
        The time step of the first moment, counted from 1970, for models that vary with time.

    Returns
    -------
    float
        Of four digits and at most 100; a budget a hundredth above it was not found to hold, at one of the moments.

    Raises
    ------
    EventError
        When the event cannot be asked about, or is as probable as that before anything is released.
    BudgetError
        When no budget from 1e-4 holds.

    Examples
    --------
    >>> from dphmm import MarkovModel, PolicyGraph, Releaser
    >>> from dphmm.events import Presence
    >>> model = MarkovModel([[0.9, 0.1], [0.2, 0.8]], [0.5, 0.5])
    >>> engine = Releaser(model, [[0, 0], [1, 0]], PolicyGraph.complete(2), 1.0)
    >>> epsilon_for_event(engine, Presence([1], 0, 0), 0.75, steps=1)  # ln 3 = 1.0986
    1.098
    """
    return EventLimit(releaser, event, probability, first).largest(max(1, steps))
