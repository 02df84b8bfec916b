"""The largest budget that keeps a figure of simulated people above a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from dphmm.arguments import checked
from dphmm.calibrate.formula import rounded_down
from dphmm.calibrate.simulation import Figure
from dphmm.errors import BudgetError

_LEAST, _MOST = 1e-6, 1e3
_NEAR = 1.05
"""A search ends where the budgets that keep the bound and that do not are this near to each other, as a ratio."""
_STEP_BACK, _TRIES = 0.93, 40


@dataclass(frozen=True)
class Found:
    """What a search found.

    Parameters
    ----------
    epsilon
        The budget, of two significant digits.
    figure
        The figure at it, of people whom the search had not looked at; its lower end is at least the bound.
    looked_at
        How many budgets were simulated.
    """

    epsilon: float
    figure: Figure
    looked_at: int


@checked
def largest_epsilon(figure: Callable[[float, bool], Figure], bound: float, start: float = 1.0) -> Found:
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

    Raises
    ------
    BudgetError
        When no budget from ``1e-6`` keeps the figure above the bound, saying what is reached.
    """
    looked_at = 0

    def keeps(epsilon: float) -> bool:
        nonlocal looked_at
        looked_at += 1
        return figure(epsilon, False).mean >= bound

    low = high = min(max(start, _LEAST), _MOST)
    while low > _LEAST and not keeps(low):
        low, high = max(low / 4, _LEAST), low
    if low == high:
        while high < _MOST and keeps(high):
            low, high = high, min(high * 4, _MOST)
    while high > _NEAR * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if keeps(middle) else (low, middle)
    epsilon = rounded_down(low, 2)
    for tried in range(_TRIES):
        told = figure(epsilon, True)
        if told.least >= bound:
            return Found(epsilon, told, looked_at + tried + 1)
        epsilon = rounded_down(_STEP_BACK * epsilon, 2)
    raise BudgetError(
        f"no budget was found that keeps the figure above {bound:g}: at {epsilon:g} it is {told.mean:.4g} give or take "
        f"{told.margin:.2g}; give a target further below, or more people"
    )
