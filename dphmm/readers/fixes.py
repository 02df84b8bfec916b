"""Raw fixes on their way from a file to trajectories: collected, sorted, one place per time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import DataFileError
from dphmm.space.trajectory import TimeArray, Trajectory


@dataclass(frozen=True)
class Fixes:
    """Fixes of one file or a part of it, in the order in which they were recorded.

    Parameters
    ----------
    source
        The file, as messages name it.
    names
        The users that occur.
    owner
        Shape ``(n,)``: for each fix the index of its user in `names`.
    times
        Shape ``(n,)``, ``datetime64[us]`` in UTC, in any order.
    latitude, longitude
        Shape ``(n,)`` each, degrees, on the Earth.
    skipped
        How many malformed records were passed over.
    """

    source: str
    names: tuple[str, ...]
    owner: IntArray
    times: TimeArray
    latitude: FloatArray
    longitude: FloatArray
    skipped: int = 0


@dataclass(frozen=True)
class ReadResult:
    """What was read.

    Parameters
    ----------
    trajectories
        One per user, in the order of the users' names.
    skipped
        File → the number of malformed records passed over in it; only files with such records, and only on request.
    merged
        How many fixes gave way to a later one of the same user and the same timestamp.
    """

    trajectories: tuple[Trajectory, ...]
    skipped: Mapping[str, int]
    merged: int

    @property
    def points(self) -> int:
        """The number of fixes in all trajectories."""
        return sum(len(trajectory) for trajectory in self.trajectories)


_FIX = np.dtype([("owner", np.int64), ("time", "datetime64[us]"), ("latitude", np.float64), ("longitude", np.float64)])


class FixCollector:
    """Takes a file's records one by one and settles what happens to a malformed one.

    Parameters
    ----------
    source
        The file, as messages name it.
    skip_bad
        True to pass over malformed records and count them, false to stop at the first.
    user
        The user whose fixes these are whatever the records say; None to believe the records.
    """

    def __init__(self, source: str, skip_bad: bool, user: str | None = None) -> None:
        self.source = source
        self.user = user
        self.skip_bad = skip_bad
        self.skipped = 0
        self._index: dict[str, int] = {}
        self._rows: list[tuple[int, int, float, float]] = []

    def add(self, user: str, microseconds: int, latitude: float, longitude: float) -> None:
        """One fix: its user, microseconds since 1970 in UTC, and degrees.

        Raises
        ------
        ValueError
            When the place is not on the Earth or the user has no name.
        """
        user = self.user or user
        if not user:
            raise ValueError("the user is empty; every fix needs one")
        if not -90.0 <= latitude <= 90.0:
            raise ValueError(f"latitude is {latitude}; it must lie in -90 to 90")
        if not -180.0 <= longitude <= 180.0:
            raise ValueError(f"longitude is {longitude}; it must lie in -180 to 180")
        self._rows.append((self._index.setdefault(user, len(self._index)), microseconds, latitude, longitude))

    def refuse(self, problem: str, line: int | None = None) -> None:
        """A malformed record: counted where that was asked for.

        Raises
        ------
        DataFileError
            Where it was not.
        """
        if not self.skip_bad:
            raise DataFileError(self.source, problem, line)
        self.skipped += 1

    def fixes(self) -> Fixes:
        """What was collected."""
        rows = np.array(self._rows, dtype=_FIX)
        owner, times, latitude, longitude = (rows[part] for part in ("owner", "time", "latitude", "longitude"))
        return Fixes(self.source, tuple(self._index), owner, times, latitude, longitude, self.skipped)


def user_of_file(source: str) -> str:
    """The user that a file is named after: its name without the extension, and without a ``.gz`` after it."""
    return PurePath(PurePath(source).name.removesuffix(".gz")).stem


def trajectories(blocks: Iterable[Fixes]) -> ReadResult:
    """One trajectory per user out of all fixes.

    Each user's fixes are sorted by time. Of fixes with the same timestamp the one recorded last is kept: a clock
    that ticks in seconds saw it nearest to the next tick. An exact duplicate is the simplest case of that.
    """
    pieces: dict[str, list[tuple[TimeArray, FloatArray, FloatArray]]] = {}
    skipped: dict[str, int] = {}
    for block in blocks:
        if block.skipped:
            skipped[block.source] = skipped.get(block.source, 0) + block.skipped
        for name, rows in _by_owner(block):
            pieces.setdefault(name, []).append((block.times[rows], block.latitude[rows], block.longitude[rows]))
    made, merged = [], 0
    for name in sorted(pieces):
        times, latitude, longitude = (np.concatenate(columns) for columns in zip(*pieces.pop(name), strict=True))
        if (times[1:] <= times[:-1]).any():
            times, from_the_end = np.unique(times[::-1], return_index=True)
            merged += latitude.size - times.size
            latitude, longitude = latitude[::-1][from_the_end], longitude[::-1][from_the_end]
        made.append(Trajectory(name, times, latitude, longitude))
    return ReadResult(tuple(made), skipped, merged)


def _by_owner(block: Fixes) -> list[tuple[str, IntArray]]:
    order = np.argsort(block.owner, kind="stable")
    edges = np.searchsorted(block.owner[order], np.arange(len(block.names) + 1))
    return [(name, order[edges[k] : edges[k + 1]]) for k, name in enumerate(block.names) if edges[k] < edges[k + 1]]
