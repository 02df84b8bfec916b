"""Budgets that protect all landmarks together with any one regular timestamp, and the proof that they do.

A mechanism that spends ``eps_i`` at timestamp ``i`` with independent randomness has landmark privacy ``epsilon`` when
for every timestamp ``t`` the budgets of ``L ∪ {t}`` sum to at most ``epsilon`` (Katsomallos, Tzompanaki and Kotzinos,
*Landmark Privacy*, CODASPY 2022, the theorem of its problem section). The theorem is about releases whose data are
independent over time; `dphmm.landmarks.leakage` says what correlation adds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, as_numbers, check_epsilon, locked
from dphmm.errors import BudgetError, BudgetExceededError
from dphmm.landmarks.timestamps import Timeline, timeline
from dphmm.leakage.accumulate import as_budgets
from dphmm.mechanisms.exact import rational


@dataclass(frozen=True)
class LandmarkBudget:
    """A budget for every timestamp, proved sound when it is made.

    The check is exact: budgets are summed as the decimal numbers that they print as, which is how mechanisms on a
    lattice read them too, so no rounding can hide an excess, however small.

    Attributes
    ----------
    timeline
        Timestamps and landmarks.
    epsilons
        ``(T,)``, read-only; zero where nothing is read from the data.
    epsilon
        What ``L ∪ {t}`` may spend, for every t.

    Raises
    ------
    BudgetExceededError
        When they are not sound.
    BudgetError
        When a budget is negative or not finite, or their number is not ``T``.
    """

    timeline: Timeline
    epsilons: FloatArray
    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        object.__setattr__(self, "epsilons", locked(budgets_over(self.timeline, self.epsilons)))
        if self.spent > rational(self.epsilon):
            raise BudgetExceededError(
                f"landmarks and one regular timestamp spend {float(self.spent)!r} of {self.epsilon!r}; "
                "lower the budgets"
            )

    @property
    def spent(self) -> Fraction:
        """The greatest budget that any ``L ∪ {t}`` spends, exact: ``sum over L + max over the regular timestamps``."""
        landmark = self.timeline.landmark
        together = sum((printed(budget) for budget in self.epsilons[landmark]), Fraction(0))
        return together + printed(self.epsilons[~landmark].max(initial=0.0))


def budgets_over(line: Timeline, epsilons: npt.ArrayLike) -> FloatArray:
    """Budgets of all timestamps as an array ``(T,)``.

    Raises
    ------
    BudgetError
        When one is negative or not a finite number, or their number is not ``T``.
    """
    budgets = as_numbers(epsilons, "budgets", BudgetError)
    if budgets.shape != (len(line),):
        raise BudgetError(f"budgets have shape {budgets.shape}; give {len(line)} finite numbers that are not negative")
    return as_budgets(budgets)


def printed(budget: float) -> Fraction:
    """The number that a budget prints as: 0.1 is one tenth."""
    return Fraction(repr(float(budget)))


def round_down(budget: Fraction) -> float:
    """The greatest double that does not print as more than a rational: rounding falls on the safe side."""
    value = float(budget)
    return math.nextafter(value, -math.inf) if printed(value) > budget else value


def skip(timestamps: npt.ArrayLike, landmarks: npt.ArrayLike, epsilon: float) -> LandmarkBudget:
    """Scheme Skip: the whole budget at every regular timestamp, nothing from the data at landmarks.

    At a landmark an approximation is released in place of data, such as the last release. That the gap itself draws
    attention to the landmarks is no leak, since they are public, but under correlation the neighbouring releases say
    much about the skipped ones: see `dphmm.landmarks.leakage`.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilon
        Positive.

    Examples
    --------
    >>> skip([1, 2, 3], [2], 0.5).epsilons.tolist()
    [0.5, 0.0, 0.5]
    """
    line, whole = timeline(timestamps, landmarks), check_epsilon(epsilon)
    return LandmarkBudget(line, np.where(line.landmark, 0.0, whole), whole)


def uniform(timestamps: npt.ArrayLike, landmarks: npt.ArrayLike, epsilon: float) -> LandmarkBudget:
    """Scheme Uniform: ``epsilon / (|L| + 1)`` at every timestamp, or ``epsilon / |L|`` when all are landmarks.

    Shares are rounded down, so that they sum to no more than the budget.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilon
        Positive.

    Examples
    --------
    >>> uniform([1, 2, 3, 4], [2, 4], 0.75).epsilons.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    line, whole = timeline(timestamps, landmarks), check_epsilon(epsilon)
    parts = int(line.landmark.sum()) + (0 if line.landmark.all() else 1)
    return LandmarkBudget(line, np.full(len(line), round_down(rational(whole) / parts)), whole)
