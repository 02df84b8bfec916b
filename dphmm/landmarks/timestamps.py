"""Timestamps, and which of them are landmarks: the public input of every scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, IntArray, frozen
from dphmm.errors import CoordinateError, LandmarkError, TimeOrderError


@dataclass(frozen=True)
class Timeline:
    """Strictly increasing timestamps, some of which are landmarks. Both are public.

    Attributes
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
