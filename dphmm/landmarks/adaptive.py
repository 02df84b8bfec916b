"""Scheme Adaptive: publish or approximate, and pass on what skipped landmarks did not need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, Rng, as_numbers, check_epsilon, random_source
from dphmm.errors import ConfigurationError, CoordinateError, LandmarkError
from dphmm.landmarks.budget import LandmarkBudget, printed, round_down
from dphmm.landmarks.timestamps import timeline
from dphmm.mechanisms.exact import rational

Draw = Callable[[float], npt.ArrayLike]
"""A release with a given budget: reads the data of the present timestamp, adds noise, returns what may be seen."""


@dataclass(frozen=True)
class Release:
    """What one timestamp gave. Every field is public.

    Attributes
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
