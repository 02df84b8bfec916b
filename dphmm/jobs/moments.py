"""Which timestamps are landmarks: named, or found in a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dphmm.arguments import checked
from dphmm.arrays import BoolArray, FloatArray
from dphmm.errors import ConfigurationError, LandmarkError
from dphmm.landmarks import repeated_places, stay_points
from dphmm.tables import content_lines, parse_times
from dphmm.tables.values import Times

Rule = Literal["stays", "repeated", "home", "work", "home-and-work"]


@checked
@dataclass(frozen=True)
class Find:
    """A rule by which landmarks are found in a trajectory. This reads true places: it is a person's own act.

    Parameters
    ----------
    rule
        All ``"stays"``, those at places that were stayed at more than once (``"repeated"``), or those at ``"home"``, at
        ``"work"``, or at both (``"home-and-work"``).
    radius
        How far a stay or place reaches, kilometres.
    minutes
        How long a stay lasts at least.
    utc_offset
        Hours by which local time is ahead of UTC, for home and work.

    Raises
    ------
    ConfigurationError
        For another rule.
    """

    rule: Rule
    radius: float = 0.2
    minutes: float = 20.0
    utc_offset: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise ConfigurationError(f"rule is {self.rule!r}; choose one of {', '.join(get_args(Rule))}")

    def mask(self, times: npt.ArrayLike, points: FloatArray) -> BoolArray:
        """Which fixes of a trajectory are landmarks, ``(n,)``.

        Parameters
        ----------
        times
            ``(n,)`` UTC.
        points
            ``(n, 2)`` kilometres.

        Raises
        ------
        LandmarkError
            When there is none.
        DphmmError
            As `dphmm.landmarks.stay_points` and `dphmm.landmarks.repeated_places`.

        Examples
        --------
        >>> times = np.datetime64("2024-03-07T08:00") + np.arange(4) * np.timedelta64(15, "m")
        >>> Find("stays").mask(times, np.array([[0, 0], [0, 0.1], [0.1, 0], [3, 0]])).tolist()
        [True, True, True, False]
        """
        stays = stay_points(times, points, self.radius, self.minutes)
        chosen = None
        if self.rule != "stays":
            places = repeated_places(stays, self.radius, self.utc_offset)
            wanted = [getattr(places, name) for name in ("home", "work") if name in self.rule]  # -1 is no stay's place
            chosen = np.isin(places.place, wanted) if wanted else places.visits[places.place] > 1
        mask = stays.mask(chosen)
        if not mask.any():
            raise LandmarkError(
                f"--find {self.rule} finds nothing within {self.radius:g} km for {self.minutes:g} minutes; "
                "widen the one or shorten the other"
            )
        return mask


Moments = Find | Sequence[Any] | npt.NDArray[Any] | Path
"""Landmarks: a rule by which to find them, some of the timestamps (as times or texts), or a file with one a line."""


def moments_of(moments: Moments, timestamps: Times, points: FloatArray | None = None) -> Times:
    """Landmarks as times of the timestamps' kind; none is an empty list.

    Parameters
    ----------
    moments
        What they are.
    timestamps
        Of the series or trajectory.
    points
        ``(T, 2)`` places to find landmarks in, kilometres.

    Raises
    ------
    ConfigurationError
        When they are to be found and there are no places.
    DataFileError
        When the file cannot be read.
    LandmarkError
        When one is no time, or numbers are given among instants or the other way round, or none is found.
    """
    if isinstance(moments, Find):
        if points is None:
            raise ConfigurationError("landmarks are found in places; name those of a table of values")
        return np.asarray(timestamps[moments.mask(timestamps, points)])
    if isinstance(moments, Path):
        moments = [line for _, line in content_lines(moments) if line.lower() != "time"]
    if len(moments) == 0:
        return np.zeros(0, dtype=timestamps.dtype)
    found = np.asarray(moments)
    if found.dtype.kind in "US":
        try:
            found = parse_times(found.tolist())
        except ValueError as problem:
            raise LandmarkError(f"landmarks: {problem}") from None
    if (found.dtype.kind == "M") != (timestamps.dtype.kind == "M"):
        raise LandmarkError(f"landmark {moments[0]} is not of the timestamps' kind, such as {timestamps[0]}")
    return found
