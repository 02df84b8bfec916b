"""Fixes on their way from a file to trajectories: parsed from delimited lines, collected, sorted, one place per time.

Delimited lines are parsed as arrays, a block at a time, and line by line only where a block has a flaw.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.readers.instants import Instants
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
        The users that occur; None for the one person of a file that does not say whose fixes it holds.
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
    """The trajectories that were read, and what was passed over or merged.

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


HELD = ("user", "time", "latitude", "longitude", "geometry")
"""What a column of a table of fixes may hold; `dphmm.tables.ALIASES` has the names that each is recognised by."""


@dataclass(frozen=True)
class ReadOptions:
    """What the caller says of the files that are read.

    Parameters
    ----------
    skip_bad
        True to pass over malformed records and count them, false to stop at the first.
    user
        The user whose fixes these are whatever the records say; None to believe the records. With check-ins, the only
        user to read.
    columns
        Of tables: what a column holds, one of `HELD` → its name in the file.
    instants
        Of tables: how their times are to be understood; left out, texts and timestamps alone, in UTC where they do not
        say.

    Raises
    ------
    ConfigurationError
        For columns that hold anything else.
    """

    skip_bad: bool = False
    user: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    instants: Instants = field(default_factory=Instants)

    def __post_init__(self) -> None:
        unknown = set(self.columns) - set(HELD)
        if unknown:
            raise ConfigurationError(f"columns name {sorted(unknown)}; what a column may hold is one of {sorted(HELD)}")


class FixCollector:
    """Collects a file's records one by one, and decides what becomes of a malformed one.

    Parameters
    ----------
    source
        The file, as messages name it.
    options
        What becomes of a malformed one, and whose fixes these are.
    """

    def __init__(self, source: str, options: ReadOptions) -> None:
        self.source, self.options = source, options
        self.skipped = 0
        self._index: dict[str | None, int] = {}
        self._owner, self._times = array("q"), array("q")
        self._latitude, self._longitude = array("d"), array("d")

    def add(self, user: str | None, microseconds: int, latitude: float, longitude: float) -> None:
        """Add one fix.

        Parameters
        ----------
        user
            Its user; None where the file does not say.
        microseconds
            Its time, microseconds since 1970 in UTC.
        latitude, longitude
            Its place in degrees.

        Raises
        ------
        ValueError
            When the place is not on the Earth, the time not in the years 1 to 9999, or the user's name is empty or
            holds a control character or half a character.
        """
        user = self.options.user or user
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
        """Count a malformed record, where that was asked for.

        Parameters
        ----------
        problem
            What is wrong with it, and what to do.
        line
            Its line, from 1, where the file has lines.

        Raises
        ------
        DataFileError
            Where counting was not asked for.
        """
        if not self.options.skip_bad:
            raise DataFileError(self.source, problem, line)
        self.skipped += 1

    def fixes(self) -> Fixes:
        """Return all that was collected."""
        times = np.array(self._times).astype("datetime64[us]")
        owner, latitude, longitude = map(np.array, (self._owner, self._latitude, self._longitude))
        return Fixes(self.source, tuple(self._index), owner, times, latitude, longitude, self.skipped)


def check_user(user: str) -> None:
    """Refuse a name that cannot stand in every file and on every screen.

    Parameters
    ----------
    user
        The name.

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
    """Refuse such a name in the path of a file; see `check_user`.

    Parameters
    ----------
    user
        The name.
    source
        The file, for the message.

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
    """Return the user that a file is named after: its name without the extension, and without a ``.gz`` after it."""
    return PurePath(PurePath(source).name.removesuffix(".gz")).stem


def trajectories(blocks: Iterable[Fixes], user_per_file: bool = False) -> ReadResult:
    """Make one trajectory per user out of all fixes.

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

    Returns
    -------
    ReadResult
        The trajectories in the order of the users' names.

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
                if unnamed.setdefault(name, block.source) != block.source and user_per_file:
                    raise same_file_name(block.source, unnamed[name])
            pieces.setdefault(name, []).append((block.times[rows], block.latitude[rows], block.longitude[rows]))
        files = {*unnamed.values(), block.source}
        if unnamed and not user_per_file and (len(pieces) > 1 or len(files) > 1):
            raise unnamed_person(next(iter(unnamed.values())))
    made, merged = [], 0
    for name in sorted(pieces):
        times, latitude, longitude = (np.concatenate(columns) for columns in zip(*pieces.pop(name), strict=True))
        if (times[1:] <= times[:-1]).any():
            times, from_the_end = np.unique(times[::-1], return_index=True)
            merged += latitude.size - times.size
            latitude, longitude = latitude[::-1][from_the_end], longitude[::-1][from_the_end]
        made.append(Trajectory(name, times, latitude, longitude))
    return ReadResult(tuple(made), skipped, merged, unnamed)


def unnamed_person(source: str) -> DataFileError:
    """Make the error for a file that does not say whose fixes it holds, where that matters."""
    return DataFileError(
        source,
        "does not say whose fixes it holds; name the person with --user NAME, or say --user-per-file where every file "
        "is another person's",
    )


def same_file_name(source: str, other: str) -> DataFileError:
    """Make the error for two files that would be one person's by their names."""
    return DataFileError(
        source, f"has the name of {other}, and neither says whose fixes it holds; rename one, or give each with --user"
    )


def _by_owner(block: Fixes) -> list[tuple[str | None, IntArray]]:
    order = np.argsort(block.owner, kind="stable")
    edges = np.searchsorted(block.owner[order], np.arange(len(block.names) + 1))
    return [(name, order[edges[k] : edges[k + 1]]) for k, name in enumerate(block.names) if edges[k] < edges[k + 1]]


BLOCK_BYTES = 1 << 22
"""How much text is parsed at once: enough to make Python's share vanish, little enough to stay in the cache's reach."""

_WIDEST = 32
_NEWLINE, _RETURN = 10, 13
_NUMBER_BYTES = np.zeros(256, dtype=np.bool_)
_NUMBER_BYTES[list(b"0123456789+-.eE\0")] = True
_TIME_LOW = np.frombuffer(b"0000-00-00T00:00:00", dtype=np.uint8)
_TIME_HIGH = np.frombuffer(b"9999-19-39T29:59:59", dtype=np.uint8)
"""Byte by byte the least and the greatest that a time may show; the calendar itself is numpy's to check."""

BlockParser = Callable[[bytes, str], Fixes]
LineParser = Callable[[bytes, FixCollector], None]


class Fields:
    """The fields of a block of delimited lines, found with array operations.

    Parameters
    ----------
    block
        Whole lines, each ended by a newline (with or without a carriage return before it).
    delimiter
        One byte.
    count
        How many fields every line has.

    Raises
    ------
    ValueError
        When some line has another number of fields, or holds a NUL byte.
    """

    def __init__(self, block: bytes, delimiter: bytes, count: int) -> None:
        if b"\0" in block:  # numpy's byte strings drop it at their end
            raise ValueError("a line holds a NUL byte")
        self._bytes = np.frombuffer(block + b"\0" * _WIDEST, dtype=np.uint8)
        ends: IntArray = np.flatnonzero(self._bytes == _NEWLINE)
        separators = np.flatnonzero(self._bytes == delimiter[0])
        if separators.size != ends.size * (count - 1):
            raise ValueError("a line has another number of fields")
        cuts: IntArray = separators.reshape(ends.size, count - 1)
        starts = np.concatenate([[0], ends[:-1] + 1])
        if (cuts[:, 0] < starts).any() or (cuts[:, -1] > ends).any():
            raise ValueError("a line has another number of fields")
        ends = ends - (self._bytes[ends - 1] == _RETURN)
        self._starts = np.column_stack([starts, cuts + 1])
        self._ends = np.column_stack([cuts, ends])

    def __len__(self) -> int:
        return int(self._starts.shape[0])

    def _windows(self, starts: IntArray, width: int) -> npt.NDArray[np.uint8]:
        """The ``width`` bytes from each start; shape ``(n, width)``."""
        return np.lib.stride_tricks.sliding_window_view(self._bytes, width)[starts]

    def texts(self, column: int) -> npt.NDArray[np.bytes_]:
        """Return a column as byte strings, ``(n,)``.

        Raises
        ------
        ValueError
            When a field is longer than any number or name has reason to be.
        """
        starts, ends = self._starts[:, column], self._ends[:, column]
        width = max(int((ends - starts).max(initial=1)), 1)
        if width > _WIDEST:
            raise ValueError("a field is very long")
        window = self._windows(starts, width) * (np.arange(width) < (ends - starts)[:, None])
        texts: npt.NDArray[np.bytes_] = window.view(f"S{width}").ravel()
        return texts

    def numbers(self, column: int) -> FloatArray:
        """Return a column as decimal numbers ``(n,)``, each the nearest float, as Python's `float` gives it.

        Raises
        ------
        ValueError
            When a field is no plain decimal number.
        """
        texts = self.texts(column)
        if not _NUMBER_BYTES[texts.view(np.uint8)].all():
            raise ValueError("a field is no plain number")
        return texts.astype(np.float64)

    def times(self, column: int, extra: int) -> TimeArray:
        """Return times of the form ``YYYY-MM-DD?HH:MM:SS`` that start in a column, ``(n,)``, to the microsecond.

        Parameters
        ----------
        column
            The column that the time starts in; the byte at ``?`` may be anything (a space, a ``T``, the delimiter).
        extra
            How many further columns the time runs into.

        Returns
        -------
        array ``(n,)`` of ``datetime64[us]``
            The times, in the zone that they are in.

        Raises
        ------
        ValueError
            When a time is of another form or length or no date of the calendar.
        """
        starts = self._starts[:, column]
        if (self._ends[:, column + extra] - starts != _TIME_LOW.size).any():
            raise ValueError("a time is of another length")
        window = self._windows(starts, _TIME_LOW.size).copy()
        window[:, 10] = _TIME_LOW[10]
        if ((window < _TIME_LOW) | (window > _TIME_HIGH)).any():
            raise ValueError("a time is of another form")
        times = window.view(f"S{_TIME_LOW.size}").ravel().astype("datetime64[s]").astype("datetime64[us]")
        if (times < EARLIEST).any():
            raise ValueError("a time lies before the year 1")
        return times

    def places(self, latitude: int, longitude: int) -> tuple[FloatArray, FloatArray]:
        """Return two columns as degrees on the Earth, ``(n,)`` each.

        Raises
        ------
        ValueError
            When one is no plain number or off the Earth, without saying where: the line-by-line form says it.
        """
        north, east = self.numbers(latitude), self.numbers(longitude)
        if not ((np.abs(north) <= 90.0) & (np.abs(east) <= 180.0)).all():
            raise ValueError("a place is not on the Earth")
        return north, east

    def shorten(self, column: int, endings: tuple[bytes, ...]) -> None:
        """Take one ending, the same for all lines, off a column where one fits."""
        starts, ends = self._starts[:, column], self._ends[:, column]
        for ending in endings:
            # of a field shorter than the ending this holds the delimiter, which is in no ending
            tails = self._windows(np.maximum(ends - len(ending), starts), len(ending))
            if (tails == np.frombuffer(ending, dtype=np.uint8)).all():
                self._ends[:, column] -= len(ending)
                return


def parse_lines(
    data: bytes, source: str, first_line: int, parse_block: BlockParser, parse_line: LineParser, skip_bad: bool
) -> Iterator[Fixes]:
    """Yield fixes out of delimited lines, block by block.

    A block that the array form refuses is gone through line by line, which either finds the lines at fault or finds
    that they are only unusual. Blank lines count as lines and hold nothing.

    Parameters
    ----------
    data
        Lines; the last need not end in a newline.
    source
        The file, for messages.
    first_line
        The number of the first line, for messages.
    parse_block
        The array form; raises `ValueError` for a block that it cannot take.
    parse_line
        The exact form for one line; raises `ValueError` saying what is wrong.
    skip_bad
        True to pass over malformed lines and count them.

    Yields
    ------
    Fixes
        The fixes of a block.

    Raises
    ------
    DataFileError
        For the first malformed line, unless it is to be skipped.
    """
    start, line = 0, first_line
    while start < len(data):
        cut = data.find(b"\n", min(start + BLOCK_BYTES, len(data) - 1))
        end = len(data) if cut < 0 else cut + 1
        block = data[start:end] if data[end - 1 : end] == b"\n" else data[start:end] + b"\n"
        try:
            fixes = parse_block(block, source)
        except ValueError:
            collector = FixCollector(source, ReadOptions(skip_bad))
            collect_lines(block, line, parse_line, collector)
            fixes = collector.fixes()
        yield fixes
        line += block.count(b"\n")
        start = end


def collect_lines(data: bytes, first_line: int, parse_line: LineParser, collector: FixCollector) -> None:
    """Collect what the lines of a text say, one after another; blank ones hold nothing.

    Raises
    ------
    DataFileError
        For the first malformed line, unless the collector is to skip it.
    """
    for number, text in enumerate(data.split(b"\n"), start=first_line):
        if text.strip():
            try:
                parse_line(text.removesuffix(b"\r"), collector)
            except ValueError as problem:
                collector.refuse(str(problem), number)
