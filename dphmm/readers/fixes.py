"""Fixes between a file and trajectories: parsing of delimited lines, collecting, sorting.

Delimited lines are parsed as arrays, block by block. A block with a flaw is parsed line by line.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.arrays import BoolArray, FloatArray, IntArray
from dphmm.errors import ConfigurationError, DataFileError
from dphmm.readers.instants import Instants
from dphmm.space.fix_quality import REASONS, Region, find_refused, select_most_accurate
from dphmm.space.trajectory import EARLIEST, LATEST, SENSORS, TimeArray, Trajectory
from dphmm.tables.source import remove_packed_suffix
from dphmm.tables.values import format_cell, shorten


@dataclass(frozen=True)
class Details:
    """Contents of a file that a recording keeps in addition to its fixes.

    Parameters
    ----------
    elevation
        Shape ``(n,)``, metres, NaN if unknown.
    sensors
        Names out of `dphmm.space.trajectory.SENSORS` → ``(n,)`` numbers, NaN if unknown.
    segment
        Shape ``(n,)``: the index of each fix's segment in the file. It does not decrease.
    tracks
        For each segment the index of its track and the activity of the track, None if unknown.
    dropped
        The names of contents that are not kept.
    """

    elevation: FloatArray
    sensors: dict[str, FloatArray]
    segment: IntArray
    tracks: tuple[tuple[int, str | None], ...]
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fixes:
    """Fixes of one file or a part of it, in the order in which they were recorded.

    Parameters
    ----------
    source
        The file, for messages.
    names
        The users that occur. None is the single user of a file without user information.
    owner
        Shape ``(n,)``: for each fix the index of its user in `names`.
    times
        Shape ``(n,)``, ``datetime64[us]`` in UTC, in any order. In a recording NaT if unknown.
    latitude, longitude
        Shape ``(n,)`` each, degrees, on the Earth.
    skipped
        Number of malformed records that were skipped.
    accuracy_m
        Shape ``(n,)``, or None: accuracy radius in metres, NaN if unstated, negative if the device has no position.
    is_valid
        Shape ``(n,)``, or None: whether the device considers the fix valid.
    details
        The contents that only a recording keeps; None if `ReadOptions.is_recording` is false.
    refused
        Reason → number of records that are well-formed, but not fixes.
    """

    source: str
    names: tuple[str | None, ...]
    owner: IntArray
    times: TimeArray
    latitude: FloatArray
    longitude: FloatArray
    skipped: int = 0
    accuracy_m: FloatArray | None = None
    is_valid: BoolArray | None = None
    details: Details | None = None
    refused: Mapping[str, int] = field(default_factory=dict)

    def select(self, chosen: BoolArray | IntArray | slice) -> Fixes:
        """Return some of the fixes."""
        arrays: dict[str, Any] = {
            name: value[chosen] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        return replace(self, **arrays)


@dataclass(frozen=True)
class ReadResult:
    """The trajectories that were read, with counts of skipped and merged records.

    Parameters
    ----------
    trajectories
        One per user, in the order of the users' names.
    skipped
        File → number of malformed records that were skipped, on request. Contains only files with such records.
    merged
        Number of fixes that were replaced by another one of the same user with the same timestamp.
    unnamed
        User → file without user information, after which the user is named.
    refused
        Reason → number of refused fixes, which are invalid; see `dphmm.space.fix_quality`.
    passed_over
        File of a folder or archive → its content, which is not a recording. Such files are not read.
    """

    trajectories: tuple[Trajectory, ...]
    skipped: Mapping[str, int]
    merged: int
    unnamed: Mapping[str, str] = field(default_factory=dict, compare=False)
    refused: Mapping[str, int] = field(default_factory=dict, compare=False)
    passed_over: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def points(self) -> int:
        """The number of fixes in all trajectories."""
        return sum(len(trajectory) for trajectory in self.trajectories)


_FIRST, _LAST = (int(instant.astype(np.int64)) for instant in (EARLIEST, LATEST))
_UNKNOWN = int(np.datetime64("NaT", "us").astype(np.int64))
# Of a file that is read in chunks: some megabytes.
_BLOCK_FIXES = 1 << 18


# The quantities that a column of a table of fixes may contain; `dphmm.tables.ALIASES` lists their recognised names.
FIX_QUANTITIES = ("user", "time", "latitude", "longitude", "geometry", "accuracy", "valid")
# The quantities that are read of a recording in addition.
DETAIL_QUANTITIES = ("elevation", "segment", *SENSORS)


@dataclass(frozen=True)
class ReadOptions:
    """Options for the files that are read.

    Parameters
    ----------
    skip_bad
        True to skip and count malformed records, false to stop at the first one.
    user
        The user of all fixes, regardless of the records. None to use the records. With check-ins, the only user to
        read.
    columns
        For tables: quantity, one of `FIX_QUANTITIES` → name of its column in the file, or its number from 1.
    instants
        For tables: the interpretation of times. By default only strings and timestamps are accepted, in UTC if they
        have no zone.
    region
        The region of the model; see `build_trajectories`.
    is_recording
        Whether points without times are accepted, and `Details` are read.

    Raises
    ------
    ConfigurationError
        For columns of any other quantity.
    """

    skip_bad: bool = False
    user: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    instants: Instants = field(default_factory=Instants)
    region: Region | None = None
    is_recording: bool = False

    def __post_init__(self) -> None:
        quantities = {*FIX_QUANTITIES, *(DETAIL_QUANTITIES if self.is_recording else ())}
        unknown = set(self.columns) - quantities
        if unknown:
            raise ConfigurationError(f"columns must name quantities out of {sorted(quantities)}, got {sorted(unknown)}")
        if self.user is not None:
            object.__setattr__(self, "user", parse_user(self.user))


class FixCollector:
    """Collects a file's records one by one, and counts or refuses malformed ones.

    Parameters
    ----------
    source
        The file, for messages.
    options
        Treatment of malformed records, and the user.
    """

    def __init__(self, source: str, options: ReadOptions) -> None:
        self.source = source
        self.options = options
        self.skipped = 0
        self._index: dict[str | None, int] = {}
        self._owner, self._times = array("q"), array("q")
        self._latitude, self._longitude = array("d"), array("d")
        self._accuracy, self._valid = array("d"), array("b")
        self._elevation, self._segment = array("d"), array("q")
        self._sensors: dict[str, array[float]] = {}
        self._tracks: list[tuple[int, str | None]] = []
        self._label: object = None
        self._dropped: set[str] = set()
        self._passed: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._times)

    def start_segment(self, label: object, track: int = 0, activity: str | None = None) -> None:
        """Start a segment, unless the last one has the same label.

        Parameters
        ----------
        label
            The label.
        track
            The index of its track.
        activity
            The activity of the track, such as ``"cycling"``.
        """
        if not self._tracks or label != self._label:
            self._tracks.append((track, activity))
            self._label = label

    def set_activity(self, track: int, activity: str | None) -> None:
        """Set the activity of the segments of the last track."""
        at = len(self._tracks) - 1
        while at >= 0 and self._tracks[at][0] == track:
            self._tracks[at] = track, activity
            at -= 1

    def pass_over(self, reason: str, count: int = 1) -> None:
        """Count records that are well-formed, but not fixes."""
        self._passed[reason] += count

    def drop(self, *names: str) -> None:
        """Note contents of the file that are not kept."""
        self._dropped.update(names)

    def add(
        self,
        user: str | None,
        microseconds: int | None,
        latitude: float,
        longitude: float,
        accuracy_m: float = nan,
        is_valid: bool = True,
        elevation: float = nan,
        sensors: Mapping[str, float] | None = None,
    ) -> None:
        """Add one fix.

        Parameters
        ----------
        user
            The user; None if the file does not specify one.
        microseconds
            The time, microseconds since 1970 in UTC; None if it is unknown.
        latitude, longitude
            The location in degrees.
        accuracy_m
            The accuracy radius in metres; NaN if unstated.
        is_valid
            Whether the device considers the fix valid.
        elevation
            Metres; NaN if unknown.
        sensors
            Name out of `dphmm.space.trajectory.SENSORS` → number.

        Raises
        ------
        ValueError
            If the coordinates are out of range, the time is unknown (except in a recording) or not in the years 1 to
            9999, or the user's name is empty or contains a control character or an unpaired surrogate.
        """
        user = self.options.user or user
        owner = self._index.get(user)
        if owner is None and user is not None:
            check_user(user)
        if not -90.0 <= latitude <= 90.0:
            raise ValueError(f"latitude must be in [-90, 90], got {latitude}")
        if not -180.0 <= longitude <= 180.0:
            raise ValueError(f"longitude must be in [-180, 180], got {longitude}")
        is_recording = self.options.is_recording
        if microseconds is None:
            if not is_recording:
                raise ValueError("has no time; record the track with times, or remove the point")
            microseconds = _UNKNOWN
        elif not _FIRST <= microseconds <= _LAST:
            raise ValueError(f"time must be in the years 1 to 9999, got {microseconds} microseconds after 1970")
        if is_recording:
            self._add_details(elevation, sensors or {})
        self._owner.append(self._index.setdefault(user, len(self._index)) if owner is None else owner)
        self._times.append(microseconds)
        self._latitude.append(latitude)
        self._longitude.append(longitude)
        self._accuracy.append(accuracy_m)
        self._valid.append(is_valid)

    def _add_details(self, elevation: float, sensors: Mapping[str, float]) -> None:
        if not self._tracks:
            self._tracks.append((0, None))
        self._segment.append(len(self._tracks) - 1)
        self._elevation.append(elevation if isfinite(elevation) else nan)
        for name in sensors.keys() - self._sensors.keys():
            self._sensors[name] = array("d", [nan]) * len(self._times)
        for name, values in self._sensors.items():
            value = sensors.get(name, nan)
            values.append(value if isfinite(value) else nan)

    def refuse(self, problem: str, line: int | None = None) -> None:
        """Count a malformed record, or raise unless such records are skipped.

        Parameters
        ----------
        problem
            The problem and its fix.
        line
            The line number, from 1, if the file has lines.

        Raises
        ------
        DataFileError
            If malformed records are not skipped.
        """
        if not self.options.skip_bad:
            remedy = "" if self.options.is_recording else " (skip_bad=True or --skip-bad skips and counts such records)"
            raise DataFileError(self.source, f"{problem}{remedy}", line)
        self.skipped += 1

    def get_fixes(self) -> Fixes:
        """Return all collected fixes."""
        times = np.array(self._times).astype("datetime64[us]")
        owner, latitude, longitude = map(np.array, (self._owner, self._latitude, self._longitude))
        accuracy = np.array(self._accuracy)
        details = None
        if self.options.is_recording:
            details = Details(
                np.array(self._elevation),
                {name: np.array(values) for name, values in self._sensors.items()},
                np.array(self._segment),
                tuple(self._tracks),
                tuple(sorted({*self._dropped, *self._passed})),
            )
        return Fixes(
            self.source,
            tuple(self._index),
            owner,
            times,
            latitude,
            longitude,
            self.skipped,
            None if np.isnan(accuracy).all() else accuracy,
            np.array(self._valid, dtype=np.bool_),
            details,
            dict(self._passed),
        )

    def flush(self) -> Iterator[Fixes]:
        """Yield the collected fixes and forget them, if there are enough for a block.

        A recording is kept whole.
        """
        if len(self) >= _BLOCK_FIXES and not self.options.is_recording:
            yield self.get_fixes()
            self.skipped = 0
            self._passed.clear()
            for name in ("_owner", "_times", "_latitude", "_longitude", "_accuracy", "_valid"):
                del getattr(self, name)[:]


def parse_user(cell: object) -> str:
    """Return the user in a cell, an option or the name of a file. Empty if missing.

    An integer is written without decimals. pandas writes a column of integers with them if one is missing: without this
    rule, a user in two files would be two users, each with a separate budget.

    Parameters
    ----------
    cell
        The cell or text.

    Returns
    -------
    str
        The name.

    Examples
    --------
    >>> parse_user("7.0"), parse_user(7), parse_user(b"7"), parse_user("007.0"), parse_user("7.5")
    ('7', '7', '7', '007.0', '7.5')
    """
    name = format_cell(cell).strip()
    integer = _INTEGER_WITH_DECIMALS.fullmatch(name)
    return integer[1] if integer else name


_INTEGER_WITH_DECIMALS = re.compile(r"(0|-?[1-9]\d*)\.0+", re.ASCII)


def check_user(user: str) -> None:
    """Raise an error for a name that cannot be written to every file or displayed.

    Parameters
    ----------
    user
        The name.

    Raises
    ------
    ValueError
        If it is empty, or contains a control character or an unpaired surrogate.
    """
    if not user:
        raise ValueError("user must not be empty")
    if _UNPRINTABLE.search(user):
        raise ValueError(f"user must be UTF-8 without control characters, got {shorten(user)}")


def check_name(user: str, source: str) -> None:
    """Raise an error, with the file's name, for an invalid user name. See `check_user`.

    Parameters
    ----------
    user
        The name.
    source
        The file, for the message.

    Raises
    ------
    DataFileError
        If the name is invalid.
    """
    try:
        check_user(user)
    except ValueError as problem:
        raise DataFileError(source, str(problem)) from None


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")


def get_file_user(source: str) -> str:
    """Return the user that a file is named after: the name without extensions."""
    return parse_user(PurePath(remove_packed_suffix(PurePath(source).name)).stem)


def build_trajectories(
    blocks: Iterable[Fixes], user_per_file: bool = False, region: Region | None = None
) -> ReadResult:
    """Build one trajectory per user from all fixes.

    Invalid and inaccurate fixes are refused and counted; see `dphmm.space.fix_quality`. Each user's fixes are sorted by
    time. Of fixes with the same timestamp the most accurate one is kept, and of equally accurate ones that recorded
    last: if the clock has a resolution of seconds, it lies closest to the next second. Exact duplicates are a special
    case.

    The user of a file without user information is named after the file. With several such files, or with other users in
    the same input, one user could be split into several, each with a separate belief and budget.

    Parameters
    ----------
    blocks
        All fixes.
    user_per_file
        Whether each file without user information belongs to a different user.
    region
        The region of the model, if it is known. Only if it contains the location (0, 0), fixes there are valid.

    Returns
    -------
    ReadResult
        The trajectories in the order of the users' names.

    Raises
    ------
    DataFileError
        If a file has no user information and there are other files or users; with `user_per_file`, if two such files
        have the same name.
    """
    pieces: dict[str, list[Fixes]] = {}
    skipped: dict[str, int] = {}
    refused: Counter[str] = Counter()
    unnamed: dict[str, str] = {}
    for read_block in blocks:
        refused.update(read_block.refused)
        block = remove_refused(read_block, region, refused)
        if block.skipped:
            skipped[block.source] = skipped.get(block.source, 0) + block.skipped
        for user, rows in _group_by_owner(block):
            name = user or get_file_user(block.source)
            if user is None:
                check_name(name, block.source)
                if unnamed.setdefault(name, block.source) != block.source and user_per_file:
                    raise build_same_name_error(block.source, unnamed[name])
            pieces.setdefault(name, []).append(block.select(rows))
        files = {*unnamed.values(), block.source}
        if unnamed and not user_per_file and (len(pieces) > 1 or len(files) > 1):
            raise build_unnamed_user_error(next(iter(unnamed.values())))
    trajectories = []
    merged = 0
    for name in sorted(pieces):
        of_user = pieces.pop(name)
        times, latitude, longitude = (
            np.concatenate([getattr(piece, column) for piece in of_user])
            for column in ("times", "latitude", "longitude")
        )
        accuracy = None
        if any(piece.accuracy_m is not None for piece in of_user):
            accuracy = np.concatenate(
                [np.full(len(piece.times), nan) if piece.accuracy_m is None else piece.accuracy_m for piece in of_user]
            )
        if (times[1:] <= times[:-1]).any():
            used = select_most_accurate(times.astype(np.int64), accuracy)
            merged += times.size - used.size
            times = times[used]
            latitude = latitude[used]
            longitude = longitude[used]
            accuracy = None if accuracy is None else accuracy[used]
        trajectories.append(Trajectory(name, times, latitude, longitude, accuracy))
    return ReadResult(tuple(trajectories), skipped, merged, unnamed, dict(refused))


def remove_refused(block: Fixes, region: Region | None, refused: Counter[str]) -> Fixes:
    """Return the fixes that are valid and accurate enough, and count the others by reason.

    Parameters
    ----------
    block
        The fixes.
    region
        As for `build_trajectories`.
    refused
        Reason → number of refused fixes, which is increased.

    Returns
    -------
    Fixes
        The other fixes.
    """
    reasons = find_refused(block.latitude, block.longitude, block.accuracy_m, block.is_valid, region)
    if (reasons < 0).all():
        return block
    refused.update({REASONS[reason]: int((reasons == reason).sum()) for reason in np.unique(reasons[reasons >= 0])})
    return block.select(reasons < 0)


def build_unnamed_user_error(source: str) -> DataFileError:
    """Build the error for a file without user information among other files or users."""
    return DataFileError(
        source,
        "does not specify a user; name the user with --user NAME, or set user_per_file if every file belongs to a "
        "different user",
    )


def build_same_name_error(source: str, other: str) -> DataFileError:
    """Build the error for two files without user information that have the same name."""
    return DataFileError(
        source, f"has the same name as {other}, and neither specifies a user; rename one, or read each with --user"
    )


def order_by_user(users: IntArray) -> IntArray:
    """Return the stable order of rows by the index of their user.

    Parameters
    ----------
    users
        ``(n,)`` index of each row's user, below 2³².

    Returns
    -------
    IntArray
        ``(n,)``.
    """
    # NumPy sorts numbers of 16 bits in linear time: first by the low bits, then by the high ones.
    order = np.argsort((users & 0xFFFF).astype(np.uint16), kind="stable")
    if users.max(initial=0) <= 0xFFFF:
        return order
    return np.asarray(order[np.argsort((users[order] >> 16).astype(np.uint16), kind="stable")])


def _group_by_owner(block: Fixes) -> list[tuple[str | None, IntArray]]:
    order = order_by_user(block.owner)
    edges = np.searchsorted(block.owner[order], np.arange(len(block.names) + 1))
    return [(name, order[edges[k] : edges[k + 1]]) for k, name in enumerate(block.names) if edges[k] < edges[k + 1]]


# Size of a block of text: large enough that Python's overhead is negligible, small enough to fit in the cache.
BLOCK_BYTES = 1 << 22

_MAX_FIELD_BYTES = 32
_NEWLINE = 10
_RETURN = 13
_NUMBER_BYTES = np.zeros(256, dtype=np.bool_)
_NUMBER_BYTES[list(b"0123456789+-.eE\0")] = True
_TIME_LOW = np.frombuffer(b"0000-00-00T00:00:00", dtype=np.uint8)
# The smallest and the largest character of a time, byte by byte; numpy validates the calendar date itself.
_TIME_HIGH = np.frombuffer(b"9999-19-39T29:59:59", dtype=np.uint8)

BlockParser = Callable[[bytes, str], Fixes]
LineParser = Callable[[bytes, FixCollector], None]


class Fields:
    """The fields of a block of delimited lines, located with array operations.

    Parameters
    ----------
    block
        Whole lines, each ended by a newline (with or without a preceding carriage return).
    delimiter
        One byte.
    count
        Number of fields of every line.

    Raises
    ------
    ValueError
        If a line has a different number of fields, or contains a NUL byte.
    """

    def __init__(self, block: bytes, delimiter: bytes, count: int) -> None:
        if b"\0" in block:  # numpy drops NUL at the end of byte strings
            raise ValueError("a line contains a NUL byte")
        self._bytes = np.frombuffer(block + b"\0" * _MAX_FIELD_BYTES, dtype=np.uint8)
        ends: IntArray = np.flatnonzero(self._bytes == _NEWLINE)
        separators = np.flatnonzero(self._bytes == delimiter[0])
        if separators.size != ends.size * (count - 1):
            raise ValueError("a line has a different number of fields")
        cuts: IntArray = separators.reshape(ends.size, count - 1)
        starts = np.concatenate([[0], ends[:-1] + 1])
        if (cuts[:, 0] < starts).any() or (cuts[:, -1] > ends).any():
            raise ValueError("a line has a different number of fields")
        ends = ends - (self._bytes[ends - 1] == _RETURN)
        self._starts = np.column_stack([starts, cuts + 1])
        self._ends = np.column_stack([cuts, ends])

    def __len__(self) -> int:
        return int(self._starts.shape[0])

    def _get_windows(self, starts: IntArray, width: int) -> npt.NDArray[np.uint8]:
        """Return ``width`` bytes from each start, shape ``(n, width)``."""
        return np.lib.stride_tricks.sliding_window_view(self._bytes, width)[starts]

    def get_texts(self, column: int) -> npt.NDArray[np.bytes_]:
        """Return a column as byte strings, ``(n,)``.

        Raises
        ------
        ValueError
            If a field is longer than 32 bytes.
        """
        starts = self._starts[:, column]
        ends = self._ends[:, column]
        width = max(int((ends - starts).max(initial=1)), 1)
        if width > _MAX_FIELD_BYTES:
            raise ValueError("a field is too long")
        window = self._get_windows(starts, width) * (np.arange(width) < (ends - starts)[:, None])
        texts: npt.NDArray[np.bytes_] = window.view(f"S{width}").ravel()
        return texts

    def parse_numbers(self, column: int) -> FloatArray:
        """Return a column as decimal numbers ``(n,)``, rounded to nearest as by `float`.

        Raises
        ------
        ValueError
            If a field is not a plain decimal number.
        """
        texts = self.get_texts(column)
        if not _NUMBER_BYTES[texts.view(np.uint8)].all():
            raise ValueError("a field is not a plain number")
        return texts.astype(np.float64)

    def parse_times(self, column: int, extra: int) -> TimeArray:
        """Return times ``YYYY-MM-DD?HH:MM:SS`` that start in a column, ``(n,)``.

        Parameters
        ----------
        column
            The column in which the time starts. The byte at ``?`` may be anything (a space, a ``T``, the delimiter).
        extra
            Number of further columns that the time extends over.

        Returns
        -------
        array ``(n,)`` of ``datetime64[us]``
            The times in their own zone, to the microsecond.

        Raises
        ------
        ValueError
            If a time has a different form or length or is not a calendar date.
        """
        starts = self._starts[:, column]
        if (self._ends[:, column + extra] - starts != _TIME_LOW.size).any():
            raise ValueError("a time has a different length")
        window = self._get_windows(starts, _TIME_LOW.size).copy()
        window[:, 10] = _TIME_LOW[10]
        if ((window < _TIME_LOW) | (window > _TIME_HIGH)).any():
            raise ValueError("a time has a different form")
        times = window.view(f"S{_TIME_LOW.size}").ravel().astype("datetime64[s]").astype("datetime64[us]")
        if (times < EARLIEST).any():
            raise ValueError("a time lies before the year 1")
        return times

    def parse_degrees(self, latitude: int, longitude: int) -> tuple[FloatArray, FloatArray]:
        """Return two columns as degrees on the Earth, ``(n,)`` each.

        Raises
        ------
        ValueError
            If a field is not a plain number or out of range. The line is not named; line-by-line parsing reports it.
        """
        north = self.parse_numbers(latitude)
        east = self.parse_numbers(longitude)
        if not ((np.abs(north) <= 90.0) & (np.abs(east) <= 180.0)).all():
            raise ValueError("coordinates are out of range")
        return north, east

    def shorten(self, column: int, endings: tuple[bytes, ...]) -> None:
        """Remove the first ending that all fields of a column have."""
        starts = self._starts[:, column]
        ends = self._ends[:, column]
        for ending in endings:
            # If a field is shorter than the ending, this includes the delimiter, which no ending contains.
            tails = self._get_windows(np.maximum(ends - len(ending), starts), len(ending))
            if (tails == np.frombuffer(ending, dtype=np.uint8)).all():
                self._ends[:, column] -= len(ending)
                return


def parse_lines(
    data: bytes, source: str, first_line: int, parse_block: BlockParser, parse_line: LineParser, options: ReadOptions
) -> Iterator[Fixes]:
    """Yield fixes from delimited lines, block by block.

    A block that the array parser refuses is parsed line by line. This either reports the malformed lines or accepts
    lines that are unusual but valid. Blank lines are counted and otherwise ignored.

    Parameters
    ----------
    data
        The lines; the final newline is optional.
    source
        The file, for messages.
    first_line
        The number of the first line, for messages.
    parse_block
        The array parser; raises `ValueError` for a block that it cannot parse.
    parse_line
        The exact parser of one line; raises `ValueError` with the problem.
    options
        Whether malformed lines are skipped and counted, and whether the file is a recording; others are ignored.

    Yields
    ------
    Fixes
        The fixes of a block.

    Raises
    ------
    DataFileError
        For the first malformed line, unless it is skipped.
    """
    start = 0
    line = first_line
    while start < len(data):
        cut = data.find(b"\n", min(start + BLOCK_BYTES, len(data) - 1))
        end = len(data) if cut < 0 else cut + 1
        block = data[start:end] if data[end - 1 : end] == b"\n" else data[start:end] + b"\n"
        try:
            fixes = parse_block(block, source)
        except ValueError:
            collector = FixCollector(source, ReadOptions(options.skip_bad, is_recording=options.is_recording))
            collect_lines(block, line, parse_line, collector)
            fixes = collector.get_fixes()
        yield fixes
        line += block.count(b"\n")
        start = end


def collect_lines(data: bytes, first_line: int, parse_line: LineParser, collector: FixCollector) -> None:
    """Collect the fixes of the lines of a text, one by one. Blank lines are ignored.

    Raises
    ------
    DataFileError
        For the first malformed line, unless the collector skips it.
    """
    for number, text in enumerate(data.split(b"\n"), start=first_line):
        if text.strip():
            try:
                parse_line(text.removesuffix(b"\r"), collector)
            except ValueError as problem:
                collector.refuse(str(problem), number)
