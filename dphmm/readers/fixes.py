"""Raw fixes on their way from a file to trajectories: collected, sorted, one place per time."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import DataFileError
from dphmm.space.trajectory import EARLIEST, LATEST, TimeArray, Trajectory
from dphmm.tables.values import shorten


@dataclass(frozen=True)
class Fixes:
    """Fixes of one file or a part of it, in the order in which they were recorded.

    Parameters
    ----------
    source
        The file, as messages name it.
    names
        The users that occur; None for whoever the file is about without saying so.
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
    names: tuple[str | None, ...]
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
    unnamed
        User → the file that does not say whose fixes it holds, and after which the user is therefore named.
    """

    trajectories: tuple[Trajectory, ...]
    skipped: Mapping[str, int]
    merged: int
    unnamed: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def points(self) -> int:
        """The number of fixes in all trajectories."""
        return sum(len(trajectory) for trajectory in self.trajectories)


_FIRST, _LAST = (int(instant.astype(np.int64)) for instant in (EARLIEST, LATEST))


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
        self._index: dict[str | None, int] = {}
        self._owner, self._times = array("q"), array("q")
        self._latitude, self._longitude = array("d"), array("d")

    def add(self, user: str | None, microseconds: int, latitude: float, longitude: float) -> None:
        """One fix: its user (None where the file does not say), microseconds since 1970 in UTC, and degrees.

        Raises
        ------
        ValueError
            When the place is not on the Earth, the time not in the years 1 to 9999, or the user's name is empty or
            holds a control character or half a character.
        """
        user = self.user or user
        owner = self._index.get(user)
        if owner is None and user is not None:
            check_user(user)
        if not -90.0 <= latitude <= 90.0:
            raise ValueError(f"latitude is {latitude}; it must lie in -90 to 90")
        if not -180.0 <= longitude <= 180.0:
            raise ValueError(f"longitude is {longitude}; it must lie in -180 to 180")
        if not _FIRST <= microseconds <= _LAST:
            raise ValueError(f"time is {microseconds} microseconds after 1970; it must lie in the years 1 to 9999")
        self._owner.append(self._index.setdefault(user, len(self._index)) if owner is None else owner)
        self._times.append(microseconds)
        self._latitude.append(latitude)
        self._longitude.append(longitude)

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
        owner, times = (np.array(part, dtype=np.int64) for part in (self._owner, self._times))
        latitude, longitude = (np.array(part, dtype=np.float64) for part in (self._latitude, self._longitude))
        return Fixes(
            self.source, tuple(self._index), owner, times.astype("datetime64[us]"), latitude, longitude, self.skipped
        )


def check_user(user: str) -> None:
    """Refuse a name that cannot stand in every file and on every screen.

    Raises
    ------
    ValueError
        When it is empty, or holds a control character or half a character.
    """
    if not user:
        raise ValueError("the user is empty; every fix needs one")
    if _UNFIT.search(user):
        raise ValueError(f"the user is {shorten(user)}; a name holds no control characters")


def check_name(user: str, source: str) -> None:
    """The same of a name that is in the path of a file.

    Raises
    ------
    DataFileError
        Naming the file.
    """
    try:
        check_user(user)
    except ValueError as problem:
        raise DataFileError(source, str(problem)) from None


_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def user_of_file(source: str) -> str:
    """The user that a file is named after: its name without the extension, and without a ``.gz`` after it."""
    return PurePath(PurePath(source).name.removesuffix(".gz")).stem


def trajectories(blocks: Iterable[Fixes], user_per_file: bool = False) -> ReadResult:
    """One trajectory per user out of all fixes.

    Each user's fixes are sorted by time. Of fixes with the same timestamp the one recorded last is kept: a clock
    that ticks in seconds saw it nearest to the next tick. An exact duplicate is the simplest case of that.

    A file that does not say whose fixes it holds names its user. Were there several such files, or other users beside
    it, one person could become several, each with a belief and a budget of their own.

    Parameters
    ----------
    blocks
        All fixes.
    user_per_file
        Whether files that do not say whose fixes they hold are each another person's.

    Raises
    ------
    DataFileError
        When a file does not say whose fixes it holds, and there are other files or users; with `user_per_file`, when
        two such files have one name.
    """
    pieces: dict[str, list[tuple[TimeArray, FloatArray, FloatArray]]] = {}
    skipped: dict[str, int] = {}
    unnamed: dict[str, str] = {}
    for block in blocks:
        if block.skipped:
            skipped[block.source] = skipped.get(block.source, 0) + block.skipped
        for said, rows in _by_owner(block):
            name = said or user_of_file(block.source)
            if said is None:
                check_name(name, block.source)
            if said is None and unnamed.setdefault(name, block.source) != block.source and user_per_file:
                raise two_files_of_one_name(block.source, unnamed[name])
            pieces.setdefault(name, []).append((block.times[rows], block.latitude[rows], block.longitude[rows]))
        files = {*unnamed.values(), block.source}
        if unnamed and not user_per_file and (len(pieces) > 1 or len(files) > 1):
            raise nobody_named(next(iter(unnamed.values())))
    made, merged = [], 0
    for name in sorted(pieces):
        times, latitude, longitude = (np.concatenate(columns) for columns in zip(*pieces.pop(name), strict=True))
        if (times[1:] <= times[:-1]).any():
            times, from_the_end = np.unique(times[::-1], return_index=True)
            merged += latitude.size - times.size
            latitude, longitude = latitude[::-1][from_the_end], longitude[::-1][from_the_end]
        made.append(Trajectory(name, times, latitude, longitude))
    return ReadResult(tuple(made), skipped, merged, unnamed)


def nobody_named(source: str) -> DataFileError:
    """What is said of a file whose person cannot be told, where that matters."""
    return DataFileError(
        source,
        "does not say whose fixes it holds; name the person with --user NAME, or say --user-per-file where every file "
        "is another person's",
    )


def two_files_of_one_name(source: str, other: str) -> DataFileError:
    """What is said of two files that would be one person's by their names."""
    return DataFileError(
        source, f"has the name of {other}, and neither says whose fixes it holds; rename one, or give each with --user"
    )


def _by_owner(block: Fixes) -> list[tuple[str | None, IntArray]]:
    order = np.argsort(block.owner, kind="stable")
    edges = np.searchsorted(block.owner[order], np.arange(len(block.names) + 1))
    return [(name, order[edges[k] : edges[k + 1]]) for k, name in enumerate(block.names) if edges[k] < edges[k + 1]]
