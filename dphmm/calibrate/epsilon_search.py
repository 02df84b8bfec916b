"""Budgets by formula, by search and from all outputs of a release, rounded down."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context, Decimal, localcontext
from itertools import count
from math import inf, log, nextafter, sqrt
from typing import Annotated

import numpy as np
from scipy.special import expit

from dphmm.calibrate.simulation import MeanEstimate, iterate_beliefs
from dphmm.errors import BudgetError, EventError, InvalidInputError
from dphmm.events import Event, EventOdds, Split
from dphmm.events.chain_start import make_chain
from dphmm.events.output_bounds import OddsBounds
from dphmm.mechanisms.base import Mechanism
from dphmm.release import Releaser, StepPlan
from dphmm.tolerances import MAX_SCALE, MIN_SCALE
from dphmm.validation import Epsilon, Interval, OpenProbability, PositiveInt, PositiveNumber, check_arguments

# Decimal digits of the formulas, so that conversion to a double rounds epsilon down, never up.
_DIGITS = 50
# Relative amount by which an error computed in doubles is assumed to be too large.
_MARGIN = 1e-9


@check_arguments
def epsilon_for_error(mechanism: Mechanism, target: Annotated[float, Interval(MIN_SCALE, MAX_SCALE)]) -> float:
    """Return the largest budget at which the RMS error of a release is at least a target.

    Parameters
    ----------
    mechanism
        A mechanism of the family. Its own epsilon does not matter.
    target
        The RMS distance between a release and the true value, in the unit of the mechanism's points.

    Returns
    -------
    float
        A budget with an error of at least the target, by the closed form in doubles with a margin of ``1e-9``. The
        error of K-norm noise is ``c / epsilon``. On a lattice the error decreases strictly in epsilon and the budget is
        found by bisection.

    Raises
    ------
    InvalidInputError
        If the target is not in [1e-30, 1e30], or the mechanism has no noise because all protected states share one
        point.
    BudgetError
        If no budget has such an error.

    Examples
    --------
    >>> from dphmm import KNormMechanism, SensitivityHull
    >>> hull = SensitivityHull([[1, -1], [4, 1], [-3, 0]])
    >>> epsilon = epsilon_for_error(KNormMechanism(hull, 1.0), 2.0)
    >>> round(epsilon, 5), KNormMechanism(hull, epsilon).squared_error >= 4.0
    (3.27525, True)
    """
    squared = mechanism.squared_error_at
    if not squared(float(mechanism.epsilon)) > 0:
        raise InvalidInputError("all protected states share one point, so no budget causes an error")
    min_squared = target * target * (1.0 + _MARGIN)
    # Exact for K-norm noise. Lattice noise needs nearly this budget, or less if it rarely leaves its point.
    guess = float(mechanism.epsilon) * sqrt(squared(float(mechanism.epsilon)) / min_squared)
    low = high = min(max(guess, MIN_SCALE), MAX_SCALE)
    while not squared(low) >= min_squared:
        if low == MIN_SCALE:
            raise BudgetError(f"no budget has an RMS error of {target:g}; use a smaller target")
        low = max(low / 2, MIN_SCALE)
    while squared(high) >= min_squared:
        if high == MAX_SCALE:
            return high
        high = min(high * 2, MAX_SCALE)
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (middle, high) if squared(middle) >= min_squared else (low, middle)
    return low


@check_arguments
def epsilon_for_odds(
    diameter: Annotated[float, Interval(0, inf, "right")], prior: OpenProbability, posterior: OpenProbability
) -> float:
    """Return the largest budget that keeps the probability of a state at most ``posterior``.

    Over states with measurements within ``diameter`` of each other in the norm of the noise, a release changes the log
    odds of any state by at most ``diameter * epsilon`` (Theorem 10.10). With
    ``epsilon = (logit posterior - logit prior) / diameter`` no output exceeds the limit. For several releases, both the
    diameters and the budgets add up (Theorem 7.2). Pass the sum of the diameters.

    Parameters
    ----------
    diameter
        The constrained-DP factor, positive.
    prior, posterior
        Probabilities in (0, 1). The posterior must exceed the prior.

    Returns
    -------
    float
        The largest such budget, rounded down.

    Raises
    ------
    InvalidInputError
        If a probability is not in (0, 1), the posterior does not exceed the prior, or the diameter is not positive and
        finite. If a release can exclude a state, no budget limits the posterior.

    Examples
    --------
    >>> epsilon_for_odds(2.0, 0.2, 0.5)
    0.6931471805599453
    """
    if not posterior > prior:
        raise InvalidInputError(
            f"posterior must be above the prior {prior:g}, which holds without any release, got {posterior:g}"
        )
    with localcontext(Context(prec=_DIGITS)):
        q = Decimal(repr(float(posterior)))
        p = Decimal(repr(float(prior)))
        return _divide_rounding_down((q / (1 - q)).ln() - (p / (1 - p)).ln(), diameter)


@check_arguments
def epsilon_for_factor(
    diameter: Annotated[float, Interval(0, inf, "right")], factor: Annotated[float, Interval(1, inf, "neither")]
) -> float:
    """Return the largest budget at which the odds of a state rise by at most a factor.

    Raises
    ------
    InvalidInputError
        If the factor is not above 1 and finite, or the diameter is not positive and finite.
    """
    with localcontext(Context(prec=_DIGITS)):
        return _divide_rounding_down(Decimal(repr(float(factor))).ln(), diameter)


@check_arguments
def epsilon_per_release(total: Epsilon, releases: PositiveInt) -> float:
    """Return the largest budget that a number of releases can each have within a total.

    Parameters
    ----------
    total
        The total budget of all releases, positive and finite.
    releases
        Number of releases, at least 1.

    Returns
    -------
    float
        The budget of each release, rounded down so that the decimals add up to at most the total.

    Raises
    ------
    BudgetError
        If the total is not positive and finite.
    InvalidInputError
        If the number of releases is below 1.

    Examples
    --------
    >>> epsilon_per_release(5, 288)
    0.01736111111111111
    """
    with localcontext(Context(prec=_DIGITS)):
        return _divide_rounding_down(Decimal(repr(float(total))), float(releases))


def round_down(epsilon: float, digits: int = 4) -> float:
    """Round a budget down to some significant digits.

    Examples
    --------
    >>> round_down(3.27525), round_down(0.000123456, 2)
    (3.275, 0.00012)
    """
    return float(Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(repr(epsilon)))


def _divide_rounding_down(level: Decimal, diameter: float) -> float:
    """Return the largest double that, as a decimal, is at most the level over the diameter."""
    if diameter == inf:
        raise InvalidInputError(
            "diameter must be finite, got inf: a release can exclude a state, so no budget limits the odds"
        )
    width = Decimal(repr(float(diameter)))
    epsilon = float(level / width)
    while Decimal(repr(epsilon)) * width > level:
        epsilon = nextafter(epsilon, 0.0)
    return epsilon


# Range of a search. Below it the noise exceeds any region, above it nothing is protected.
_MIN_EPSILON = 1e-6
_MAX_EPSILON = 1e3
# A search ends when the ratio of the smallest failing to the largest passing budget is at most this.
_SEARCH_RATIO = 1.05
# The ratio for a fine search, with many users.
_FINE_SEARCH_RATIO = 1.01
# Two trials at most are needed for an accurate metric. More are a safeguard against noisy estimates.
_MAX_TRIALS = 40
# Every third budget of a search is the middle of the bracket, in case the metric is far from linear.
_MIDDLE_INTERVAL = 3


@dataclass(frozen=True)
class SearchResult:
    """Result of a search for the largest budget.

    Parameters
    ----------
    epsilon
        The budget, with two significant digits, or three after a fine search.
    estimate
        The metric at this budget, for users that the search did not use. Its lower bound is at least the target.
    num_evaluations
        Number of simulated budgets.
    """

    epsilon: float
    estimate: MeanEstimate
    num_evaluations: int


def search_largest(
    excess: Callable[[float], float],
    low: float,
    high: float,
    max_ratio: float,
    digits: int | None = None,
    values: dict[float, float] | None = None,
) -> float:
    """Search for the largest budget at which a decreasing function is not negative.

    Regula falsi in the logarithm of the budget. A budget is evaluated slightly beyond the interpolated zero, on the
    side where the bracket is wider, so that two evaluations enclose the zero of a nearly linear function. Every third
    one is the middle of the bracket. At most three times as many evaluations as by bisection are therefore needed.

    Parameters
    ----------
    excess
        The function. Its sign alone determines the result. Its values determine the number of evaluations.
    low, high
        A budget at which the function is not negative, and one at which it is negative, or equal ones. Positive.
    max_ratio
        Stop when the ratio of ``high`` to ``low`` is at most this, above 1.
    digits
        Evaluate budgets with this number of significant digits only, as ``low`` and ``high`` have. By default, any.
    values
        Known values of the function, by budget. New ones are added.

    Returns
    -------
    float
        The last ``low``. At a budget of at most ``max_ratio`` times as much, or at the next one with ``digits``, the
        function is negative.
    """
    values = {} if values is None else values
    for trial in count(1):
        if not high > max_ratio * low:
            break
        budget = middle = sqrt(low * high)
        if trial % _MIDDLE_INTERVAL and low in values and high in values and values[low] > values[high]:
            zero = low * (high / low) ** (values[low] / (values[low] - values[high]))
            # Less than half of the ratio, so that rounding does not leave the final bracket too wide.
            beyond = max_ratio**0.45
            budget = zero / beyond if zero > middle else zero * beyond
            budget = budget if low < budget < high else middle
        if digits is not None:
            budget = max(round_down(budget, digits), _get_next_budget(low, digits))
            if budget >= high:
                break
        values[budget] = excess(budget)
        low, high = (budget, high) if values[budget] >= 0 else (low, budget)
    return low


def _get_next_budget(epsilon: float, digits: int) -> float:
    """Return the next larger budget with some significant digits."""
    return float(Context(prec=digits).next_plus(Decimal(repr(epsilon))))


@check_arguments
def largest_epsilon(
    metric: Callable[[float, bool], MeanEstimate], bound: float, start: PositiveNumber = 1.0, fine: bool = False
) -> SearchResult:
    """Return the largest budget at which a decreasing metric stays above a bound.

    The bound holds with confidence `CONFIDENCE`.

    The search uses means. Its result is then checked with other users and lowered until the lower confidence bound of
    the metric is at least the bound.

    Parameters
    ----------
    metric
        Function of a budget and of whether to use other users than the search, which returns the metric.
    bound
        The bound.
    start
        The first budget to try.
    fine
        Whether ``start`` is already close and there are enough users for three digits of the budget. The search then
        uses the lower confidence bounds of the other users' metric. As the metric decreases in the budget, this turns
        confidence intervals of the metric into one of the budget.

    Returns
    -------
    SearchResult
        The largest budget found that keeps the bound, and the metric at it.

    Raises
    ------
    BudgetError
        If no budget from ``1e-6`` keeps the metric above the bound. The message states the metric reached.
    """
    max_ratio, growth, digits = (_FINE_SEARCH_RATIO, 1.15, 3) if fine else (_SEARCH_RATIO, 4.0, 2)
    estimates = dict[float, MeanEstimate]()
    values = dict[float, float]()

    def compute_excess(epsilon: float) -> float:
        if epsilon not in values:
            estimates[epsilon] = estimate = metric(epsilon, fine)
            values[epsilon] = (estimate.lower_bound if fine else estimate.mean) - bound
        return values[epsilon]

    low = high = round_down(min(max(start, _MIN_EPSILON), _MAX_EPSILON), digits)
    while low > _MIN_EPSILON and compute_excess(low) < 0:
        low, high = max(round_down(low / growth, digits), _MIN_EPSILON), low
    if low == high:
        while high < _MAX_EPSILON and compute_excess(high) >= 0:
            low = high
            high = min(round_down(high * growth, digits), _MAX_EPSILON)
    epsilon = search_largest(compute_excess, low, high, max_ratio, digits, values)
    num_evaluations = len(estimates)
    for _ in range(_MAX_TRIALS):
        # A fine search has evaluated its result with the other users.
        is_known = fine and epsilon in estimates
        estimate = estimates[epsilon] if is_known else metric(epsilon, True)
        num_evaluations += not is_known
        if estimate.lower_bound >= bound:
            return SearchResult(epsilon, estimate, num_evaluations)
        epsilon = round_down(epsilon / max_ratio**1.5, digits)
    raise BudgetError(
        f"no budget keeps the value above {bound:g}: at {epsilon:g} it is {estimate.mean:.4g} ± {estimate.margin:.2g}; "
        "use a lower target or more users"
    )


# Range of a search. e^100 limits nothing, and below the minimum the noise is wider than a region.
_EVENT_MIN_EPSILON = 1e-4
_EVENT_MAX_EPSILON = 100.0
# A search ends when the ratio of the smallest failing to the largest passing budget is at most this.
_EVENT_SEARCH_RATIO = 1.002


class EventLimit:
    """Limit on the probability of an event after a single release.

    Parameters
    ----------
    releaser
        The engine.
    event
        The event, in steps from the first timestep.
    probability
        The largest probability that any output may cause.
    first
        Time slot of the first timestep, counted from 1970. Needed for time-dependent models.

    Raises
    ------
    EventError
        If the event is invalid for the model, or its prior probability is not below the limit.
    """

    def __init__(self, releaser: Releaser, event: Event, probability: float, first: int = 0) -> None:
        self._engine = releaser
        self._first = first
        self._odds = EventOdds(*make_chain(releaser.model, first), event)
        # probability of the event before any release
        self.prior = float(expit(self._odds.prior))
        if not self.prior < probability < 1:
            raise EventError(
                f"probability must be in ({self.prior:.4g}, 1), above the prior probability of event '{event}', got "
                f"{probability:g}"
            )
        self._level = log(probability) - log(1 - probability)

    def is_satisfied(self, epsilon: float, steps: int) -> bool:
        """Return whether no output of a release exceeds the limit, at any of the first timesteps."""
        return all(self._is_satisfied_at(split, plan, epsilon) for split, plan in self._iterate_timesteps(range(steps)))

    def find_largest_epsilon(self, steps: int, watch: Callable[[Iterable[int]], Iterable[int]] = iter) -> float:
        """Search for the largest budget, with four digits, that satisfies the limit.

        `is_satisfied` holds for the result. A slightly larger budget may satisfy the limit, too.

        Raises
        ------
        BudgetError
            If no budget from 1e-4 satisfies the limit.
        """
        epsilon = _EVENT_MAX_EPSILON
        while True:
            lowered = False
            for split, plan in self._iterate_timesteps(watch(range(steps))):
                largest = self._lower_to_limit(split, plan, epsilon)
                lowered |= largest < epsilon
                epsilon = largest
            if not lowered:
                return epsilon

    def _lower_to_limit(self, split: Split, plan: StepPlan, epsilon: float) -> float:
        """Return the largest budget up to ``epsilon`` that satisfies the limit at one timestep."""
        if self._is_satisfied_at(split, plan, epsilon):
            return epsilon
        low = epsilon
        high = epsilon
        while not self._is_satisfied_at(split, plan, low):
            if low <= _EVENT_MIN_EPSILON:
                raise BudgetError(
                    f"no budget from {_EVENT_MIN_EPSILON:g} keeps the event below the probability: the bounds for this "
                    "type of noise are too weak, or a release can exclude states; use a higher probability"
                )
            low, high = max(round_down(low / 4), _EVENT_MIN_EPSILON), low
        while high > _EVENT_SEARCH_RATIO * low and low < (middle := round_down(sqrt(low * high))) < high:
            low, high = (middle, high) if self._is_satisfied_at(split, plan, middle) else (low, middle)
        return low

    def _is_satisfied_at(self, split: Split, plan: StepPlan, epsilon: float) -> bool:
        outputs = self._engine.planner.build_outputs(plan, epsilon)
        first, second = (outputs.sum_by_place(column[:, np.newaxis]) for column in (split.log_with, split.log_without))
        return outputs.check(OddsBounds.from_masses(first, second, np.array([self._level])), epsilon).is_certain

    def _iterate_timesteps(self, steps: Iterable[int]) -> Iterable[tuple[Split, StepPlan]]:
        """Yield the belief before each release, split by the event, and the plan of its noise."""
        odds = self._odds.copy()
        model = self._engine.model
        odds.update(np.full(model.size, np.nan))  # no release at time 0: the next update is for time 1
        for step, belief in zip(steps, iterate_beliefs(model, self._first), strict=False):
            yield odds.split(step), self._engine.planner.build_plan(belief)


@check_arguments
def epsilon_for_event(
    releaser: Releaser,
    event: Event,
    probability: Annotated[float, Interval(0, 1, "neither", error=EventError)],
    steps: int = 1,
    first: int = 0,
) -> float:
    """Return the largest budget at which one release keeps an event's probability limited.

    The limit holds for every output and at each of the first ``steps`` timesteps, if nothing else is released. All
    outputs are searched by branch and bound, as for event caps. Several releases together can exceed the limit. Use
    event caps or `epsilon_for_odds` for these.

    Parameters
    ----------
    releaser
        The engine. Its model, policy and mechanism are used.
    event
        The event, in steps from the first timestep.
    probability
        The largest probability that any output may cause.
    steps
        Number of timesteps to check, at least 1.
    first
        Time slot of the first timestep, counted from 1970. Needed for time-dependent models.

    Returns
    -------
    float
        A budget with four digits, at most 100. A budget 1 % above it could not be shown to satisfy the limit at some
        timestep.

    Raises
    ------
    EventError
        If the event is invalid for the model, or its prior probability is not below the limit.
    BudgetError
        If no budget from 1e-4 satisfies the limit.

    Examples
    --------
    >>> from dphmm import MarkovModel, PolicyGraph, Releaser
    >>> from dphmm.events import Presence
    >>> model = MarkovModel([[0.9, 0.1], [0.2, 0.8]], [0.5, 0.5])
    >>> engine = Releaser(model, [[0, 0], [1, 0]], PolicyGraph.complete(2), 1.0)
    >>> epsilon_for_event(engine, Presence([1], 0, 0), 0.75, steps=1)  # ln 3 = 1.0986
    1.098
    """
    return EventLimit(releaser, event, probability, first).find_largest_epsilon(max(1, steps))
