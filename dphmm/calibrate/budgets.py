"""Budgets from formulas, by search and from all outputs of a release, rounded to the safe side: down."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from math import inf, log, nextafter, sqrt

import numpy as np
from scipy.special import expit

from dphmm.arguments import checked
from dphmm.arrays import LARGEST, SMALLEST, check_epsilon
from dphmm.calibrate.simulation import Figure, beliefs_along
from dphmm.errors import BudgetError, EventError, InvalidInputError
from dphmm.events import Event, EventOdds, Split
from dphmm.events.outputs import Outputs, Questions
from dphmm.mechanisms.base import Mechanism
from dphmm.release import Releaser, StepPlan
from dphmm.release.event_caps import chain_of, outputs_along

_DIGITS = 50
_MARGIN = 1e-9
"""By which part of itself an error in doubles is taken to be too large."""


@checked
def epsilon_for_error(mechanism: Mechanism, target: float) -> float:
    """The largest budget at which a mechanism's releases err by a length or more, as a root mean square.

    Parameters
    ----------
    mechanism
        Any mechanism of the family, whatever its own epsilon.
    target
        The root mean square distance of a release from the true value, in the unit of the mechanism's points.

    Returns
    -------
    float
        The error at it is at least the target, by the closed form in doubles and a margin of ``1e-9``: noise of a norm
        errs by ``c / epsilon``, and on a lattice the error falls strictly in epsilon, so that it is bisected for.

    Raises
    ------
    InvalidInputError
        When the target is not between 1e-30 and 1e30, or the noise is none because all that is hidden is in one place.
    BudgetError
        When no budget gives such an error.

    Examples
    --------
    >>> from dphmm import KNormMechanism, SensitivityHull
    >>> hull = SensitivityHull([[1, -1], [4, 1], [-3, 0]])
    >>> epsilon = epsilon_for_error(KNormMechanism(hull, 1.0), 2.0)
    >>> round(epsilon, 5), KNormMechanism(hull, epsilon).squared_error >= 4.0
    (3.27525, True)
    """
    if not SMALLEST <= target <= LARGEST:
        raise InvalidInputError(f"the error is {target:g}; give a length from {SMALLEST:g} to {LARGEST:g}")
    squared = mechanism.squared_error_at
    if not squared(float(mechanism.epsilon)) > 0:
        raise InvalidInputError("what is hidden is in one place, so that no budget makes a release err")
    least = target * target * (1.0 + _MARGIN)
    # Noise of a norm needs this budget; that of a lattice nearly the same, or less where it hardly leaves its point.
    guess = float(mechanism.epsilon) * sqrt(squared(float(mechanism.epsilon)) / least)
    low = high = min(max(guess, SMALLEST), LARGEST)
    while not squared(low) >= least:
        if low == SMALLEST:
            raise BudgetError(f"no budget makes a release err by {target:g}; give a shorter length")
        low = max(low / 2, SMALLEST)
    while squared(high) >= least:
        if high == LARGEST:
            return high
        high = min(high * 2, LARGEST)
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (middle, high) if squared(middle) >= least else (low, middle)
    return low


@checked
def epsilon_for_odds(diameter: float, prior: float, posterior: float) -> float:
    """The largest budget that keeps a belief of ``prior`` in one place from rising above ``posterior``.

    Over states whose measurements lie within ``diameter`` of each other in the norm of the noise, a release moves the
    log odds of any of them by at most ``diameter * epsilon`` (Theorem 10.10), so that
    ``epsilon = (logit posterior - logit prior) / diameter`` excludes more, whatever is drawn. Of several releases the
    diameters add up, as do their budgets (Theorem 7.2): give their sum.

    Parameters
    ----------
    diameter
        The constrained-DP factor, positive.
    prior, posterior
        Probabilities, the first one below the second.

    Returns
    -------
    float
        The largest such budget, rounded down.

    Raises
    ------
    InvalidInputError
        When a probability is not between 0 and 1, the posterior is not above the prior, or the diameter is not positive
        and finite: where a release can rule a place out, no budget limits what is learned.

    Examples
    --------
    >>> epsilon_for_odds(2.0, 0.2, 0.5)
    0.6931471805599453
    """
    for name, value in (("prior", prior), ("posterior", posterior)):
        if not 0 < value < 1:
            raise InvalidInputError(f"the {name} is {value:g}; give a probability between 0 and 1")
    if not posterior > prior:
        raise InvalidInputError(
            f"the posterior {posterior:g} is not above the prior {prior:g}, which is known without any release; give a "
            f"probability above {prior:g}"
        )
    with localcontext(Context(prec=_DIGITS)):
        q, p = Decimal(repr(float(posterior))), Decimal(repr(float(prior)))
        return _within((q / (1 - q)).ln() - (p / (1 - p)).ln(), diameter)


@checked
def epsilon_for_factor(diameter: float, factor: float) -> float:
    """The same for a factor, above 1, by which the odds of a place may rise, whatever they were.

    Raises
    ------
    InvalidInputError
        When the factor is not above 1 and finite, or the diameter not positive and finite.
    """
    if not 1 < factor < inf:
        raise InvalidInputError(f"the odds may change by a factor of {factor:g}; give a finite number above 1")
    with localcontext(Context(prec=_DIGITS)):
        return _within(Decimal(repr(float(factor))).ln(), diameter)


@checked
def epsilon_for_spending(total: float, releases: int) -> float:
    """The largest budget of which a number of releases, as decimals, add up to at most a total.

    Parameters
    ----------
    total
        What all releases together may spend; positive and finite.
    releases
        How many there are, at least 1.

    Returns
    -------
    float
        The budget of each, rounded down so that they add up to no more.

    Raises
    ------
    BudgetError
        When the total is not positive and finite.
    InvalidInputError
        When there is not at least one release.

    Examples
    --------
    >>> epsilon_for_spending(5, 288)
    0.01736111111111111
    """
    if releases < 1:
        raise InvalidInputError(f"there are {releases} releases; give at least 1")
    with localcontext(Context(prec=_DIGITS)):
        return _within(Decimal(repr(float(check_epsilon(total, "the sum")))), float(releases))


def rounded_down(epsilon: float, digits: int = 4) -> float:
    """A budget rounded down to some significant digits.

    Examples
    --------
    >>> rounded_down(3.27525), rounded_down(0.000123456, 2)
    (3.275, 0.00012)
    """
    return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(epsilon)))


def _within(level: Decimal, diameter: float) -> float:
    """The largest double that, as a decimal, times the diameter is at most the level."""
    if not 0 < diameter < inf:
        raise InvalidInputError(
            f"the diameter is {diameter:g}, so that no budget limits the odds: a release can rule a place out"
            if diameter == inf
            else f"the diameter is {diameter:g}; give a positive number"
        )
    exact, width = level, Decimal(repr(float(diameter)))
    epsilon = float(exact / width)
    while Decimal(repr(epsilon)) * width > exact:
        epsilon = nextafter(epsilon, 0.0)
    return epsilon


_LEAST, _MOST = 1e-6, 1e3
_NEAR = 1.05
"""A search ends where the budgets that keep the bound and that do not are this near to each other, as a ratio."""
_FINE = 1.01
"""The same where many people are looked at."""
_TRIES = 40


@dataclass(frozen=True)
class Found:
    """What a search found.

    Parameters
    ----------
    epsilon
        The budget, of two significant digits, or three of a fine search.
    figure
        The figure at it, of people whom the search had not looked at; its lower end is at least the bound.
    looked_at
        How many budgets were simulated.
    """

    epsilon: float
    figure: Figure
    looked_at: int


def largest_between(holds: Callable[[float], bool], low: float, high: float, near: float) -> float:
    """The largest budget that holds, by halving the ratio between one that does and one that does not.

    Parameters
    ----------
    holds
        Whether a budget does; if one does, so do all smaller ones.
    low, high
        A budget that holds and one that does not, or equal ones; positive.
    near
        Where to stop, above 1: at most this is the ratio of the next budget that does not hold to the one returned.
    """
    while high > near * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


@checked
def largest_epsilon(
    figure: Callable[[float, bool], Figure], bound: float, start: float = 1.0, fine: bool = False
) -> Found:
    """The largest budget at which a figure that falls in it keeps above a bound, with confidence.

    The search looks at means; the budget that it ends with is then held against other people, and lowered until the
    lower end of the figure's interval is not below the bound.

    Parameters
    ----------
    figure
        A budget, and whether to look at other people than in the search → the figure.
    bound
        The bound.
    start
        Where to begin.
    fine
        Whether that is near already, and figures are of enough people for three digits of the budget to count. The
        search then looks at the lower ends of the other people's figures: as they fall in the budget, that turns their
        intervals into one of the budget.

    Returns
    -------
    Found
        The largest budget found that keeps the bound, and the figure at it.

    Raises
    ------
    BudgetError
        When no budget from ``1e-6`` keeps the figure above the bound, saying what is reached.
    """
    looked_at = 0

    def keeps(epsilon: float) -> bool:
        nonlocal looked_at
        looked_at += 1
        told = figure(epsilon, fine)
        return (told.least if fine else told.mean) >= bound

    near, wide, digits = (_FINE, 1.15, 3) if fine else (_NEAR, 4.0, 2)
    low = high = min(max(start, _LEAST), _MOST)
    while low > _LEAST and not keeps(low):
        low, high = max(low / wide, _LEAST), low
    if low == high:
        while high < _MOST and keeps(high):
            low, high = high, min(high * wide, _MOST)
    epsilon = rounded_down(largest_between(keeps, low, high, near), digits)
    for tried in range(_TRIES):
        told = figure(epsilon, True)
        if told.least >= bound:
            return Found(epsilon, told, looked_at + tried + 1)
        epsilon = rounded_down(epsilon / near**1.5, digits)
    raise BudgetError(
        f"no budget was found that keeps the figure above {bound:g}: at {epsilon:g} it is {told.mean:.4g} give or take "
        f"{told.margin:.2g}; give a target further below, or more people"
    )


_EVENT_LEAST, _EVENT_MOST = 1e-4, 100.0
_EVENT_NEAR = 1.002
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

    def holds(self, epsilon: float, steps: int) -> bool:
        """Whether no output of a release with a budget passes the limit, at any of the first ``steps`` moments."""
        return all(self._holds_at(split, plan, epsilon) for split, plan in self._moments(range(steps)))

    def largest(self, steps: int, watch: Callable[[Iterable[int]], Iterable[int]] = iter) -> float:
        """About the largest budget of four digits that holds; `holds` is certain of it.

        Raises
        ------
        BudgetError
            When none from 1e-4 does.
        """
        epsilon = _EVENT_MOST
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
            if low <= _EVENT_LEAST:
                raise BudgetError(
                    f"no budget from {_EVENT_LEAST:g} keeps the event below the probability: what is said of noise of "
                    "this kind does not suffice, or a release rules states out; give a higher one"
                )
            low, high = max(rounded_down(low / 4), _EVENT_LEAST), low
        while high > _EVENT_NEAR * low and low < (middle := rounded_down(sqrt(low * high))) < high:
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
