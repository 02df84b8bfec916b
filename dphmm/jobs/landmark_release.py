"""A person's places through the release engine under a landmark scheme, and what that loses through time."""

from __future__ import annotations

from itertools import chain, repeat
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import InvalidInputError, TimeOrderError
from dphmm.jobs.mobility import UNKNOWN, Mobility
from dphmm.landmarks import Adaptive, LandmarkBudget, Noise, ReleasedSeries, Timeline, leakage, release_series
from dphmm.leakage.accumulate import highest
from dphmm.release.engine import Releaser


def release_places(
    releaser: Releaser, states: npt.ArrayLike, slots: npt.ArrayLike, scheme: LandmarkBudget | Adaptive
) -> tuple[ReleasedSeries, FloatArray]:
    """Release a person's states under a landmark scheme, with each step's budget from the scheme.

    Where the scheme gives the last release again the engine is not called: nothing is drawn, nothing is spent, and
    the true state is not looked at. Its belief moves on by the steps of the clock when it is called next.

    Parameters
    ----------
    releaser
        An engine; it starts anew.
    states
        ``(T,)`` true states.
    slots
        ``(T,)`` strictly increasing integers: the steps of the model's clock to which the states belong.
    scheme
        Over the same ``T`` timestamps: fixed budgets, or an `Adaptive` that has not begun.

    Returns
    -------
    series
        The released measurements ``(T, d)``, which of them are fresh, and the budget, proved sound. Public.
    costs
        ``(T,)``: what each release may tell about *any* two possible states; zero where nothing was drawn. A record's
        ``constrained_factor * epsilon`` (Theorem 6.3 of the DPHMM paper), infinite where a release can rule a possible
        state out. The scheme's own budgets are about the policy's edges.

    Raises
    ------
    TimeOrderError
        When the slots are not strictly increasing integers, or not as many as the states.
    CoordinateError, BudgetError
        As `dphmm.landmarks.release_series`.
    StateError, AlreadyKnownError
        As `Releaser.release`.
    """
    true, clock = np.asarray(states), np.asarray(slots)
    if clock.shape != true.shape or clock.ndim != 1 or clock.dtype.kind != "i" or (np.diff(clock) <= 0).any():
        raise TimeOrderError(
            f"slots have shape {clock.shape} and type {clock.dtype} for {true.size} states; give increasing integers"
        )
    costs = np.zeros(true.size)
    last: list[int] = []

    def draw(row: FloatArray, epsilon: float) -> FloatArray:
        at = int(row[0])
        steps = int(clock[at]) - last[-1] if last else 1
        record = releaser.release(int(true[at]), epsilon, steps)
        last.append(int(clock[at]))
        costs[at] = record.constrained_epsilon
        return np.array(record.released)

    releaser.restart()
    return release_series(np.arange(true.size), scheme, Noise(releaser.settings.mechanism, draw)), costs


def noise_scale(releaser: Releaser) -> float:
    """A length with which `Adaptive` compares the engine's releases: the noise body's root mean square radius.

    Of the body at the first step, which is public, in the unit of the measurements: the noise of budget ε is of the
    order of this over ε. Where components have bodies of their own, their root mean square by the belief.

    Raises
    ------
    InvalidInputError
        When the engine releases the first state as it is, without noise.
    AlreadyKnownError
        As `Releaser.plan`.
    """
    releaser.restart()
    prior = releaser.prior()
    protection = releaser.plan(prior).protection
    squared = 0.0
    if protection is not None and protection.part_of is not None:
        squares = np.array([part.hull.mean_squared_radius for part in protection.parts])
        possible = protection.part_of >= 0
        squared = float(np.average(squares[protection.part_of[possible]], weights=prior.probabilities[possible]))
    elif protection is not None:
        squared = protection.hull.mean_squared_radius
    if squared == 0:
        raise InvalidInputError("the first release has no noise, so there is no scale to compare changes with")
    return sqrt(squared)


def losses_on_clock(line: Timeline, slots: IntArray, costs: FloatArray, known: Mobility = UNKNOWN) -> FloatArray:
    """What is told of all landmarks and each timestamp, where timestamps lie several steps of the clock apart.

    The steps in between are regular timestamps at which nothing is spent: leakage decays through them. The backward
    matrix of each step follows from the distribution at that step; as for the engine, the first one with a release is
    where the initial distribution holds.

    Parameters
    ----------
    line
        Timestamps and landmarks, ``T``.
    slots
        ``(T,)`` strictly increasing steps of the clock of the matrices.
    costs
        ``(T,)`` what each timestamp's release tells about any two states; zero where nothing was drawn.
    known
        How the person moves, as far as the adversary knows.

    Returns
    -------
    FloatArray
        ``(T,)``; infinite everywhere when a cost is infinite, which is an upper bound.
    """
    if not np.isfinite(costs).all():
        return np.full(len(line), np.inf)
    at = np.asarray(slots, dtype=np.int64) - int(slots[0])
    whole: npt.NDArray[Any] = np.arange(int(at[-1]) + 1)
    spent = np.zeros(whole.size)
    spent[at] = costs
    if known.transition is None:
        return leakage(whole, at[line.landmark], spent)[at]
    first = int(np.argmax(spent > 0))
    backward = chain(repeat(None, first), known.pasts(whole.size - first, highest(spent)))
    return leakage(whole, at[line.landmark], spent, backward, known.transition)[at]
