"""Delimited lines as arrays: whole blocks at once, and line by line only where a block has a flaw."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from dphmm.arrays import FloatArray, IntArray
from dphmm.readers.fixes import FixCollector, Fixes
from dphmm.space.trajectory import EARLIEST, TimeArray

BLOCK_BYTES = 1 << 22
"""How much text is parsed at once: enough to make Python's share vanish, little enough to stay in the cache's reach."""

_WIDEST = 32
_NEWLINE, _RETURN = 10, 13
_NUMBER_BYTES = np.zeros(256, dtype=np.bool_)
_NUMBER_BYTES[list(b"0123456789+-.eE\0")] = True
_ZERO = ord("0")
_TENS: FloatArray = np.array([10**power for power in range(16)], dtype=np.float64)
"""Powers of ten, exact: so are whole numbers of up to 15 digits, and their ratio is rounded once."""
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
        """A column as byte strings; shape ``(n,)``.

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
        """A column as decimal numbers, each the nearest float, as Python's `float` gives it; shape ``(n,)``.

        Raises
        ------
        ValueError
            When a field is no plain decimal number.
        """
        texts = self.texts(column)
        characters = texts.view(np.uint8).reshape(len(texts), -1)
        found = _alike(characters)
        if found is not None:
            return found
        if not _NUMBER_BYTES[characters].all():
            raise ValueError("a field is no plain number")
        return texts.astype(np.float64)

    def times(self, column: int, extra: int) -> TimeArray:
        """Times of the form ``YYYY-MM-DD?HH:MM:SS`` that start with a column; shape ``(n,)``, to the microsecond.

        Parameters
        ----------
        column
            The column that the time starts in; the byte at ``?`` may be anything (a space, a ``T``, the delimiter).
        extra
            How many further columns the time runs into.

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
        """Two columns as degrees on the Earth; shape ``(n,)`` each.

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


def _alike(characters: npt.NDArray[np.uint8]) -> FloatArray | None:
    """Decimal numbers, ``(n, width)`` characters padded with NUL, that all have their point in the same place.

    Each is a whole number over a power of ten, rounded once, in a fifth of the time that reading one by one takes. None
    for others: without a point, with an exponent or a plus sign, of both signs, or of too many digits.
    """
    first = characters[:1].tobytes()
    point, sign = first.find(b"."), first.startswith(b"-")
    if point <= sign or len(first) - sign > len(_TENS):
        return None
    if (characters[:, point] != ord(".")).any() or (sign and (characters[:, 0] != ord("-")).any()):
        return None
    digits = np.concatenate([characters[:, sign:point], characters[:, point + 1 :]], axis=1)
    digits[digits == 0] = _ZERO  # behind the last digit of those that are shorter
    digits -= _ZERO
    if digits.max() > 9:
        return None
    found = digits.astype(np.float64) @ _TENS[digits.shape[1] - 1 :: -1] / _TENS[len(first) - point - 1]
    return np.asarray(-found if sign else found)


def parse_lines(
    data: bytes, source: str, first_line: int, parse_block: BlockParser, parse_line: LineParser, skip_bad: bool
) -> Iterator[Fixes]:
    """Fixes out of delimited lines, block by block.

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
            collector = FixCollector(source, skip_bad)
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
