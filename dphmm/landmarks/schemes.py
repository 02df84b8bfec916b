"""Budgets that protect all landmarks together with any one regular timestamp, and the proof that they do.

A mechanism that spends ``eps_i`` at timestamp ``i`` with independent randomness has landmark privacy ``epsilon`` when
for every timestamp ``t`` the budgets of ``L ∪ {t}`` sum to at most ``epsilon`` (Katsomallos, Tzompanaki and Kotzinos,
*Landmark Privacy*, CODASPY 2022, the theorem of its problem section). The theorem is about releases whose data are
independent over time; `dphmm.landmarks.leakage` says what correlation adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, Rng, as_numbers, check_epsilon, frozen, locked, random_source
from dphmm.errors import (
    BudgetError,
    BudgetExceededError,
    ConfigurationError,
    CoordinateError,
    LandmarkError,
    TimeOrderError,
)
from dphmm.leakage.stream import as_budgets
from dphmm.mechanisms.exact import rational


@dataclass(frozen=True)
class Timeline:
    """Strictly increasing timestamps, some of which are landmarks. Both are public.

    Parameters
    ----------
    timestamps
        ``(T,)``, read-only: integers, floats or ``datetime64``.
    landmark
        ``(T,)`` booleans, read-only.
    """

    timestamps: npt.NDArray[Any]
    landmark: BoolArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "timestamps", frozen(as_times(self.timestamps, "timestamps")))
        try:
            object.__setattr__(self, "landmark", frozen(self.landmark))
        except ValueError as problem:
            raise LandmarkError(f"the landmarks are no booleans ({problem}); give one for each timestamp") from None
        check_increasing(self.timestamps, "timestamps")
        if self.timestamps.size == 0:
            raise TimeOrderError("there are no timestamps; give at least one")
        if self.landmark.shape != self.timestamps.shape or self.landmark.dtype != np.bool_:
            raise LandmarkError(
                f"the landmarks have shape {self.landmark.shape} and type {self.landmark.dtype}; "
                f"give {self.timestamps.size} booleans"
            )

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def indices(self) -> IntArray:
        """``(|L|,)`` positions of the landmarks, increasing."""
        return np.flatnonzero(self.landmark)


def timeline(timestamps: npt.ArrayLike, landmarks: npt.ArrayLike) -> Timeline:
    """Put landmarks among timestamps.

    Parameters
    ----------
    timestamps
        ``(T,)``, strictly increasing: integers, floats, ``datetime64`` or ISO strings.
    landmarks
        Some of the timestamps, strictly increasing; may be empty.

    Returns
    -------
    Timeline
        Both together, checked.

    Raises
    ------
    TimeOrderError
        When either list goes back or repeats a time.
    LandmarkError
        When a landmark is not a timestamp.

    Examples
    --------
    >>> timeline([1, 2, 3, 4], [2, 4]).landmark.tolist()
    [False, True, False, True]
    """
    times, marks = as_times(timestamps, "timestamps"), as_times(landmarks, "landmarks")
    marks = marks if marks.size else times[:0]  # an empty list has no type of its own
    check_increasing(marks, "landmarks")
    line = Timeline(times, np.isin(times, marks))
    outside = marks[~np.isin(marks, times)]
    if outside.size:
        raise LandmarkError(f"landmark {outside[0]} is not among the {times.size} timestamps; give one that is")
    return line


def as_times(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Numbers, ``datetime64`` or ISO strings as one array of times.

    Raises
    ------
    TimeOrderError
        When they are something else.
    CoordinateError
        When one is missing or infinite.
    """
    try:
        times = np.asarray(values)
        if times.dtype.kind in "OUS":
            times = times.astype("datetime64[us]")
    except (ValueError, TypeError, OverflowError) as error:
        raise TimeOrderError(f"{name} cannot be read as times ({error}); give numbers or datetime64") from error
    if times.ndim != 1 or times.dtype.kind not in "iufM":
        raise TimeOrderError(f"{name} have shape {times.shape} and type {times.dtype}; give one list of times")
    missing = np.isnat(times) if times.dtype.kind == "M" else ~np.isfinite(times)
    if missing.any():
        raise CoordinateError(f"{name}: entry {int(np.flatnonzero(missing)[0])} is no time; every one must be finite")
    return times


def check_increasing(times: npt.NDArray[Any], name: str) -> None:
    """Refuse times that go back or repeat.

    Raises
    ------
    TimeOrderError
        When they do.
    """
    back = np.flatnonzero(times[1:] <= times[:-1])
    if back.size:
        at = int(back[0])
        raise TimeOrderError(
            f"{name}: entry {at + 1} is {times[at + 1]} after {times[at]}; sort them and keep each time once"
        )


@dataclass(frozen=True)
class LandmarkBudget:
    """A budget for every timestamp, proved sound when it is made.

    The check is exact: budgets are summed as the decimal numbers that they print as, which is how mechanisms on a
    lattice read them too, so no rounding can hide an excess, however small.

    Parameters
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

    Returns
    -------
    LandmarkBudget
        Zero at landmarks, ``epsilon`` elsewhere.

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

    Returns
    -------
    LandmarkBudget
        The same budget at all timestamps.

    Examples
    --------
    >>> uniform([1, 2, 3, 4], [2, 4], 0.75).epsilons.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    line, whole = timeline(timestamps, landmarks), check_epsilon(epsilon)
    parts = int(line.landmark.sum()) + (0 if line.landmark.all() else 1)
    return LandmarkBudget(line, np.full(len(line), round_down(rational(whole) / parts)), whole)


Draw = Callable[[float], npt.ArrayLike]
"""A release with a given budget: reads the data of the present timestamp, adds noise, returns what may be seen."""


@dataclass(frozen=True)
class Release:
    """What one timestamp gave. Every field is public.

    Parameters
    ----------
    time
        The timestamp.
    value
        ``(d,)``: a fresh release, or the last one again.
    published
        Whether it is fresh.
    epsilon
        What it spent; zero for an approximation.
    rate
        The probability of publishing that the next timestamp will have.
    exact
        Whether the value's noise was drawn by integers alone, as far as the scheme was told.
    """

    time: Any
    value: FloatArray
    published: bool
    epsilon: float
    rate: float
    exact: bool


class Adaptive:
    """Landmark privacy with a sampling rate that follows the released values.

    The budget is reserved in equal shares for the landmarks ahead and one regular timestamp. At each timestamp a
    coin with the present rate says whether data are published, with the share of the moment, or the last release is
    given again. After a publication the distance between it and the one before is compared with the scale of its
    noise, ``sensitivity / share``: a smaller distance means that little changed and lowers the rate, a greater one
    raises it. The share of a landmark that was approximated is divided among what comes later.

    Only released values are compared: a comparison of true values, as the scheme's description may be read, would leak
    through the rate. Data of a timestamp that is approximated are never read: `step` then does not call its argument.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilon
        What ``L ∪ {t}`` may spend, for every t.
    sensitivity
        The noise scale of a release with budget 1, in the unit of the values.
    rate
        The probability of publishing at the start, in (0, 1]. The first timestamp always publishes.
    change
        The share by which the rate falls towards `least_rate`, or rises towards 1, after a publication; in [0, 1).
    least_rate
        Below this the rate never falls; in (0, rate].
    rng
        Where the coins come from.

    Notes
    -----
    Soundness: a published landmark leaves the share of those behind it as it was, an approximated one raises it; so
    no regular timestamp spends more than what is left of the budget when all landmarks are past. Once no regular
    timestamp is ahead, the landmarks share all that the greatest regular budget leaves. Shares are computed as
    rationals and rounded down; `budget` proves the outcome once more.

    Examples
    --------
    >>> scheme = Adaptive([1, 2, 3], [2], 1.0, sensitivity=1.0, rng=1)
    >>> scheme.step(lambda epsilon: [4.0]).epsilon
    0.5
    """

    def __init__(
        self,
        timestamps: npt.ArrayLike,
        landmarks: npt.ArrayLike,
        epsilon: float,
        sensitivity: float,
        rate: float = 1.0,
        change: float = 0.2,
        least_rate: float = 0.1,
        rng: Rng = None,
    ) -> None:
        self._line = timeline(timestamps, landmarks)
        self._epsilon = check_epsilon(epsilon)
        self._sensitivity = check_epsilon(sensitivity, "sensitivity")
        rates = as_numbers([rate, least_rate, change], "rate, least_rate and change", ConfigurationError)
        if not (rates.shape == (3,) and 0 < rates[1] <= rates[0] <= 1 and 0 <= rates[2] < 1):
            raise ConfigurationError(
                f"rate, least_rate and change are {rate}, {least_rate}, {change}; "
                "give 0 < least_rate <= rate <= 1 and 0 <= change < 1"
            )
        self._rate, self._least_rate, self._change = rates.tolist()
        self._source = random_source(rng)
        self._pool, self._greatest_regular = rational(self._epsilon), Fraction(0)
        self._landmarks_ahead = int(self._line.landmark.sum())
        self._regular_ahead = len(self._line) - self._landmarks_ahead
        self._epsilons = np.zeros(len(self._line))
        self._at = 0
        self._last: FloatArray | None = None
        self._exact = False

    def __len__(self) -> int:
        """How many timestamps are ahead."""
        return len(self._line) - self._at

    @property
    def share(self) -> float:
        """What the next timestamp would spend if it published; zero after the last one."""
        if self._at == len(self._line):
            return 0.0
        if self._regular_ahead:
            return round_down(self._pool / (self._landmarks_ahead + 1))
        return round_down((self._pool - self._greatest_regular) / self._landmarks_ahead)

    @property
    def budget(self) -> LandmarkBudget:
        """What was spent so far, zero at timestamps to come; proved sound as it is made."""
        return LandmarkBudget(self._line, self._epsilons, self._epsilon)

    def step(self, draw: Draw, exact: bool = False) -> Release:
        """Take the next timestamp.

        Parameters
        ----------
        draw
            Called with the share if, and only if, this timestamp publishes. Its budget counts as spent before the
            call, also when the call fails.
        exact
            Whether `draw` makes exact noise, for the record.

        Returns
        -------
        Release
            What this timestamp gave.

        Raises
        ------
        LandmarkError
            After the last timestamp.
        CoordinateError
            When what `draw` returns is no array of numbers.
        """
        if self._at == len(self._line):
            raise LandmarkError(f"all {len(self._line)} timestamps are past; make a new object for a new series")
        at = self._at
        publish = self._last is None or bool(self._source.uniform(1)[0] < self._rate)
        share = self.share if publish else 0.0
        if self._line.landmark[at]:
            self._landmarks_ahead -= 1
            self._pool -= printed(share)
        else:
            self._regular_ahead -= 1
            self._greatest_regular = max(self._greatest_regular, printed(share))
        self._epsilons[at] = share
        self._at += 1
        if publish:
            value = np.atleast_1d(as_numbers(draw(share), "the values that were drawn", CoordinateError))
            if self._last is not None:
                close = float(np.linalg.norm(value - self._last)) < self._sensitivity / share
                self._rate += self._change * ((self._least_rate if close else 1.0) - self._rate)
            self._last, self._exact = value, exact
        assert self._last is not None
        return Release(self._line.timestamps[at], self._last.copy(), publish, share, self._rate, self._exact)
