"""Schemes that allocate a budget to all landmarks together with any one regular timestamp.

A mechanism that spends ``eps_i`` at timestamp ``i`` with independent randomness has landmark privacy ``epsilon`` if for
every timestamp ``t`` the budgets of ``L ∪ {t}`` sum to at most ``epsilon`` (Katsomallos, Tzompanaki and Kotzinos,
*Landmark Privacy*, CODASPY 2022, the theorem of its problem section). The theorem assumes data that are independent
over time; `dphmm.landmarks.temporal_loss` bounds the leakage under correlation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray, as_numbers, copy_read_only, make_read_only
from dphmm.errors import (
    BudgetError,
    BudgetExceededError,
    ConfigurationError,
    CoordinateError,
    LandmarkError,
    TimeOrderError,
)
from dphmm.leakage.stream_leakage import as_budgets
from dphmm.mechanisms.exact_sampling import parse_rational
from dphmm.random import Rng, as_random_source
from dphmm.validation import Interval, NoiseEpsilon, check_arguments


@dataclass(frozen=True)
class Timeline:
    """Strictly increasing timestamps with a subset of landmarks, both public.

    Parameters
    ----------
    timestamps
        ``(T,)``, read-only: integers, floats or ``datetime64``.
    landmark
        ``(T,)`` booleans, read-only.

    Raises
    ------
    TimeOrderError
        If there is no timestamp, or timestamps are not strictly increasing.
    LandmarkError
        If there is not one boolean for each timestamp.
    CoordinateError
        If a timestamp is not finite.
    """

    timestamps: npt.NDArray[Any]
    landmark: BoolArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "timestamps", copy_read_only(as_times(self.timestamps, "timestamps")))
        try:
            object.__setattr__(self, "landmark", copy_read_only(self.landmark))
        except ValueError as problem:
            raise LandmarkError(f"landmarks must be booleans, one for each timestamp: {problem}") from None
        check_increasing(self.timestamps, "timestamps")
        if self.timestamps.size == 0:
            raise TimeOrderError("timestamps must not be empty")
        if self.landmark.shape != self.timestamps.shape or self.landmark.dtype != np.bool_:
            raise LandmarkError(
                f"landmarks must be {self.timestamps.size} booleans, got shape {self.landmark.shape} and type "
                f"{self.landmark.dtype}"
            )

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def indices(self) -> IntArray:
        """Indices of the landmarks, increasing, ``(|L|,)``."""
        return np.flatnonzero(self.landmark)


def timeline(timestamps: npt.ArrayLike, landmarks: npt.ArrayLike) -> Timeline:
    """Build a timeline from timestamps and landmarks.

    Parameters
    ----------
    timestamps
        ``(T,)``, strictly increasing: integers, floats, ``datetime64`` or ISO strings.
    landmarks
        A subset of the timestamps, strictly increasing. Can be empty.

    Returns
    -------
    Timeline
        The validated timeline.

    Raises
    ------
    TimeOrderError
        When either list is not strictly increasing.
    LandmarkError
        When a landmark is not a timestamp.

    Examples
    --------
    >>> timeline([1, 2, 3, 4], [2, 4]).landmark.tolist()
    [False, True, False, True]
    """
    times = as_times(timestamps, "timestamps")
    marks = as_times(landmarks, "landmarks")
    marks = marks if marks.size else times[:0]  # an empty list takes the type of the timestamps
    check_increasing(marks, "landmarks")
    line = Timeline(times, np.isin(times, marks))
    outside = marks[~np.isin(marks, times)]
    if outside.size:
        raise LandmarkError(f"landmarks must be among the {times.size} timestamps, got {outside[0]}")
    return line


def as_times(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Convert numbers, ``datetime64`` or ISO strings to an array of times.

    Raises
    ------
    TimeOrderError
        When the values have another type or shape.
    CoordinateError
        When a value is missing or infinite.
    """
    try:
        times = np.asarray(values)
        if times.dtype.kind in "OUS":
            times = times.astype("datetime64[us]")
    except (ValueError, TypeError, OverflowError) as error:
        raise TimeOrderError(f"{name} must be numbers, datetime64 or ISO strings: {error}") from error
    if times.ndim != 1 or times.dtype.kind not in "iufM":
        raise TimeOrderError(f"{name} must be one list of times, got shape {times.shape} and type {times.dtype}")
    missing = np.isnat(times) if times.dtype.kind == "M" else ~np.isfinite(times)
    if missing.any():
        raise CoordinateError(f"{name} must be finite: entry {int(np.flatnonzero(missing)[0])} is not a time")
    return times


def check_increasing(times: npt.NDArray[Any], name: str) -> None:
    """Raise an error if times are not strictly increasing.

    Raises
    ------
    TimeOrderError
        When they are not.
    """
    back = np.flatnonzero(times[1:] <= times[:-1])
    if back.size:
        at = int(back[0])
        raise TimeOrderError(
            f"{name} must be strictly increasing, got {times[at + 1]} at entry {at + 1} after {times[at]}"
        )


@check_arguments
@dataclass(frozen=True)
class LandmarkBudget:
    """A budget for every timestamp, verified at construction.

    The check is exact. Budgets are summed as their shortest decimal representations, which lattice mechanisms use too.
    Therefore rounding cannot conceal an excess.

    Parameters
    ----------
    timeline
        Timestamps and landmarks.
    epsilons
        ``(T,)``, read-only. Zero at timestamps of which no data are read.
    epsilon
        Bound on the budget of ``L ∪ {t}``, for every t.

    Raises
    ------
    BudgetExceededError
        When the budgets exceed ``epsilon``.
    BudgetError
        When a budget is negative or not finite, or their number is not ``T``.
    """

    timeline: Timeline
    epsilons: FloatArray
    epsilon: NoiseEpsilon

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilons", make_read_only(validate_budgets(self.timeline, self.epsilons)))
        if self.spent > parse_rational(self.epsilon):
            raise BudgetExceededError(
                f"budgets of the landmarks and one regular timestamp must sum to at most {self.epsilon!r}, "
                f"got {float(self.spent)!r}"
            )

    @property
    def spent(self) -> Fraction:
        """Largest budget of any ``L ∪ {t}``, exact: sum over L plus maximum over regular times."""
        landmark = self.timeline.landmark
        together = sum((to_shortest_decimal(budget) for budget in self.epsilons[landmark]), Fraction(0))
        return together + to_shortest_decimal(self.epsilons[~landmark].max(initial=0.0))


def validate_budgets(line: Timeline, epsilons: npt.ArrayLike) -> FloatArray:
    """Return the budgets of all timestamps as an array ``(T,)``.

    Raises
    ------
    BudgetError
        When a budget is negative or not finite, or their number is not ``T``.
    """
    budgets = as_numbers(epsilons, "budgets", BudgetError)
    if budgets.shape != (len(line),):
        raise BudgetError(f"budgets must be {len(line)} finite, non-negative numbers, got shape {budgets.shape}")
    return as_budgets(budgets)


def to_shortest_decimal(budget: float) -> Fraction:
    """Return the shortest decimal representation of a budget: 0.1 is one tenth."""
    return Fraction(repr(float(budget)))


def round_down(budget: Fraction) -> float:
    """Return the largest float with a decimal representation of at most ``budget``."""
    value = float(budget)
    return math.nextafter(value, -math.inf) if to_shortest_decimal(value) > budget else value


@check_arguments
def skip_scheme(timestamps: npt.ArrayLike, landmarks: npt.ArrayLike, epsilon: NoiseEpsilon) -> LandmarkBudget:
    """Allocate by Skip: the full budget at every regular timestamp, none at landmarks.

    At a landmark an approximation replaces the data, such as the last release. The gap itself reveals the landmarks,
    which are public. Under correlation, the neighbouring releases can disclose much about the skipped timestamps: see
    `dphmm.landmarks.temporal_loss`.

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

    Raises
    ------
    TimeOrderError, LandmarkError, CoordinateError
        See `dphmm.landmarks.timeline`.
    BudgetError
        If the budget is not positive, or out of range.

    Examples
    --------
    >>> skip_scheme([1, 2, 3], [2], 0.5).epsilons.tolist()
    [0.5, 0.0, 0.5]
    """
    line = timeline(timestamps, landmarks)
    whole = float(epsilon)
    return LandmarkBudget(line, np.where(line.landmark, 0.0, whole), whole)


@check_arguments
def uniform_scheme(timestamps: npt.ArrayLike, landmarks: npt.ArrayLike, epsilon: NoiseEpsilon) -> LandmarkBudget:
    """Allocate by Uniform: ``epsilon / (|L| + 1)`` at every timestamp.

    If all timestamps are landmarks, each gets ``epsilon / |L|``. Shares are rounded down, so that their sum is at most
    the budget.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilon
        Positive.

    Returns
    -------
    LandmarkBudget
        An equal budget at all timestamps.

    Raises
    ------
    TimeOrderError, LandmarkError, CoordinateError
        See `dphmm.landmarks.timeline`.
    BudgetError
        If the budget is not positive, or out of range.

    Examples
    --------
    >>> uniform_scheme([1, 2, 3, 4], [2, 4], 0.75).epsilons.tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    line = timeline(timestamps, landmarks)
    whole = float(epsilon)
    parts = int(line.landmark.sum()) + (0 if line.landmark.all() else 1)
    return LandmarkBudget(line, np.full(len(line), round_down(parse_rational(whole) / parts)), whole)


# A function from a budget to a release: reads the current timestamp's data and adds noise.
Draw = Callable[[float], npt.ArrayLike]


@dataclass(frozen=True)
class Release:
    """The public output of one timestamp.

    Parameters
    ----------
    time
        The timestamp.
    value
        ``(d,)``: a new release, or the last release repeated.
    published
        Whether the release is new.
    epsilon
        Epsilon spent; zero for an approximation.
    rate
        The probability of publishing at the next timestamp.
    exact
        Whether the value's noise was sampled with integers only, according to the ``exact`` argument of `step`.
    """

    time: Any
    value: FloatArray
    published: bool
    epsilon: float
    rate: float
    exact: bool


Rate = Annotated[float, Interval(0, 1, "right", error=ConfigurationError)]
Change = Annotated[float, Interval(0, 1, "left", error=ConfigurationError)]


@check_arguments
class Adaptive:
    """Landmark privacy with a sampling rate that adapts to the released values.

    The budget is reserved in equal shares for the remaining landmarks and one regular timestamp. At each timestamp a
    coin with the current rate decides whether data are published with the current share, or the last release is
    repeated. After a publication, its distance to the previous one is compared with the scale of its noise,
    ``sensitivity / share``. A smaller distance lowers the rate, a larger one raises it. The share of an approximated
    landmark is divided among later timestamps.

    Only released values are compared. A comparison of true values, as the scheme's description can be read, would leak
    through the rate. Data of an approximated timestamp are never read: `step` then does not call its argument.

    Parameters
    ----------
    timestamps, landmarks
        As in `dphmm.landmarks.timeline`.
    epsilon
        Bound on the budget of ``L ∪ {t}``, for every t.
    sensitivity
        The noise scale of a release with budget 1, in the unit of the values.
    rate
        Initial probability of publishing, in (0, 1]. The first timestamp always publishes.
    change
        Fraction by which the rate falls towards `min_rate` or rises towards 1 after a publication, in [0, 1).
    min_rate
        Lower bound on the rate, in (0, rate].
    rng
        Source of randomness for the coins.

    Raises
    ------
    TimeOrderError, LandmarkError, CoordinateError
        See `dphmm.landmarks.timeline`.
    BudgetError
        If the budget or the sensitivity is not positive, or out of range.
    ConfigurationError
        If the rates or the change are out of range.

    Notes
    -----
    Soundness: a published landmark leaves the share of later timestamps unchanged, an approximated one raises it.
    Therefore no regular timestamp spends more than the budget that remains after all landmarks. Once no regular
    timestamp remains, the landmarks share the budget that the largest regular budget leaves. Shares are computed as
    rationals and rounded down. `budget` verifies the result again.

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
        epsilon: NoiseEpsilon,
        sensitivity: Annotated[float, Interval(0, math.inf, "neither", error=BudgetError)],
        rate: Rate = 1.0,
        change: Change = 0.2,
        min_rate: Rate = 0.1,
        rng: Rng = None,
    ) -> None:
        self._line = timeline(timestamps, landmarks)
        self._epsilon = float(epsilon)
        self._sensitivity = float(sensitivity)
        if min_rate > rate:
            raise ConfigurationError(f"min_rate must be at most the rate {rate}, got {min_rate}")
        self._rate = float(rate)
        self._min_rate = float(min_rate)
        self._change = float(change)
        self._source = as_random_source(rng)
        self._pool, self._greatest_regular = parse_rational(self._epsilon), Fraction(0)
        self._landmarks_ahead = int(self._line.landmark.sum())
        self._regular_ahead = len(self._line) - self._landmarks_ahead
        self._epsilons = np.zeros(len(self._line))
        self._at = 0
        self._last: FloatArray | None = None
        self._exact = False

    def __len__(self) -> int:
        """Return the number of remaining timestamps."""
        return len(self._line) - self._at

    @property
    def share(self) -> float:
        """Epsilon that the next timestamp spends if it publishes. Zero after the last one."""
        if self._at == len(self._line):
            return 0.0
        if self._regular_ahead:
            return round_down(self._pool / (self._landmarks_ahead + 1))
        return round_down((self._pool - self._greatest_regular) / self._landmarks_ahead)

    @property
    def budget(self) -> LandmarkBudget:
        """Budgets spent so far, zero at remaining timestamps. Verified at construction."""
        return LandmarkBudget(self._line, self._epsilons, self._epsilon)

    def step(self, draw: Draw, exact: bool = False) -> Release:
        """Process the next timestamp.

        Parameters
        ----------
        draw
            Called with the share if, and only if, this timestamp publishes. Its budget counts as spent before the
            call, even if the call fails.
        exact
            Whether `draw` adds exact noise, for the record.

        Returns
        -------
        Release
            The output of this timestamp.

        Raises
        ------
        LandmarkError
            After the last timestamp.
        CoordinateError
            When the result of `draw` is not an array of numbers.
        """
        if self._at == len(self._line):
            raise LandmarkError(f"all {len(self._line)} timestamps are processed: create a new object for a new series")
        at = self._at
        publish = self._last is None or bool(self._source.sample_uniform(1)[0] < self._rate)
        share = self.share if publish else 0.0
        if self._line.landmark[at]:
            self._landmarks_ahead -= 1
            self._pool -= to_shortest_decimal(share)
        else:
            self._regular_ahead -= 1
            self._greatest_regular = max(self._greatest_regular, to_shortest_decimal(share))
        self._epsilons[at] = share
        self._at += 1
        if publish:
            value = np.atleast_1d(as_numbers(draw(share), "released values", CoordinateError))
            if self._last is not None:
                close = float(np.linalg.norm(value - self._last)) < self._sensitivity / share
                self._rate += self._change * ((self._min_rate if close else 1.0) - self._rate)
            self._last = value
            self._exact = exact
        assert self._last is not None
        return Release(self._line.timestamps[at], self._last.copy(), publish, share, self._rate, self._exact)
