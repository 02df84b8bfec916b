"""Numbers and times out of the texts in cells, and back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.errors import InvalidInputError

Times = npt.NDArray[Any]
"""``(T,)``: whole numbers, decimal numbers or ``datetime64[us]`` in UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = 300
_MOST_DIGITS = 300
_FRACTION = re.compile(r"[+-]?(?:\d+/\d+|(?:\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,4}))?)", re.ASCII)
_WHOLE = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
_DECIMAL = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)


def shorten(value: object) -> str:
    """Quote a text, or what else a file holds, cut to a length that fits a message of one line."""
    try:
        text = str(value)
    except (ValueError, RecursionError):  # thousands of digits, a thousand brackets
        return f"a very long {type(value).__name__}"
    return repr(text if len(text) <= 40 else text[:37] + "...")


def shown(value: object) -> str:
    """Write a value as Python does, cut to a length that fits a message of one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a very long {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def one_line(problem: BaseException) -> str:
    """Write what an error says on one line that is not too long; its class where it says nothing."""
    text = " ".join(str(problem).split())
    return (text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...") or type(problem).__name__


def is_text(text: str) -> bool:
    """Return whether a text can be written: JSON and names of files may hold halves of characters (lone surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def writable(text: str) -> str:
    """Put a question mark for each half of a character in a text (see `is_text`), so that a page can have it."""
    return text.encode("utf-8", "replace").decode()


def plain_text(value: object) -> str:
    """Write a value of a typed file as a CSV would have it: None is empty, and a whole float has no point."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def parse_number(value: object, name: str) -> float:
    """Parse a decimal number, given as a text or as the number of a typed file.

    Parameters
    ----------
    value
        The text or number.
    name
        What it is, for messages.

    Returns
    -------
    float
        The nearest float; NaN and infinities where the text says so.

    Raises
    ------
    ValueError
        When it is something else; Python's underscores in numbers are refused.
    """
    try:
        if isinstance(value, str) and "_" not in value:
            return float(value)
        return as_number(value, name)
    except ValueError:
        raise ValueError(f"{name} is {shorten(value)}; give a decimal number") from None


def as_number(value: object, name: str) -> float:
    """Convert a number of a typed file, such as JSON, to a float.

    Parameters
    ----------
    value
        The number.
    name
        What it is, for messages.

    Returns
    -------
    float
        The nearest float.

    Raises
    ------
    ValueError
        When the value is something else, a text or a boolean among it, or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shorten(value)}; give a decimal number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is {shorten(value)}; give a number below 1e308") from None


def parse_fraction(text: str, name: str) -> Fraction:
    """Parse a decimal number, or a fraction of two whole ones, exactly.

    Parameters
    ----------
    text
        Such as ``"0.1"``, ``"1e-6"`` or ``"1/3"``.
    name
        What it is, for messages.

    Returns
    -------
    Fraction
        Exactly what the text says.

    Raises
    ------
    ValueError
        When it is something else, or has over 300 digits, which a few characters can stand for.
    """
    text = text.strip()
    matched = _FRACTION.fullmatch(text)
    try:
        if matched and len(text) <= _MOST_DIGITS and abs(int(matched[1] or 0)) <= _MOST_DIGITS:
            return Fraction(text)
    except ZeroDivisionError:
        pass
    raise ValueError(f"{name} is {shorten(text)}; give a decimal number or a fraction")


def parse_time(text: object) -> int:
    """Parse an ISO 8601 time; one without a zone is taken as UTC.

    Parameters
    ----------
    text
        Such as ``"2009-10-11T14:04:30Z"``.

    Returns
    -------
    int
        Microseconds since 1970 in UTC.

    Raises
    ------
    InvalidInputError
        When it is no such time, or no text: a number may count seconds or milliseconds, and nothing says which.
    """
    try:
        if not isinstance(text, str):
            raise ValueError
        return since_epoch(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise InvalidInputError(
            f"time is {shorten(text)}; give an ISO 8601 time such as 2009-10-11T14:04:30Z"
        ) from None


def since_epoch(moment: datetime) -> int:
    """Return microseconds since 1970 in UTC; a time without a zone is taken as UTC.

    Raises
    ------
    InvalidInputError
        When it is not in the years 1 to 9999 in UTC, as the last hour of 9999 west of Greenwich is not.
    """
    try:
        return ((moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise InvalidInputError(f"time is {moment.isoformat()}; it must lie in the years 1 to 9999") from None


def parse_times(texts: Sequence[str]) -> Times:
    """Parse times out of texts: all whole numbers, or all numbers, or all ISO 8601, where no zone means UTC.

    Parameters
    ----------
    texts
        The texts.

    Returns
    -------
    array ``(n,)``
        int64, float64, or ``datetime64[us]`` in UTC.

    Raises
    ------
    InvalidInputError
        Naming the first that is no time, or not finite.

    Examples
    --------
    >>> parse_times(["1", "2"]).dtype.kind, parse_times(["2024-03-07T11:00+02:00"]).tolist()
    ('i', [datetime.datetime(2024, 3, 7, 9, 0)])
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidInputError(f"times are {shorten(texts)}; give a list of texts")
    if all(map(_WHOLE.fullmatch, texts)):
        return np.array([int(text) for text in texts], dtype=np.int64)
    if all(map(_DECIMAL.fullmatch, texts)):
        found = np.array([float(text) for text in texts])
        if not np.isfinite(found).all():
            raise InvalidInputError(
                f"time is {shorten(texts[int(np.argmin(np.isfinite(found)))])}; give a finite number"
            )
        return found
    return np.array([parse_time(text) for text in texts], dtype=np.int64).astype("datetime64[us]")


def iso_time(moment: np.datetime64) -> str:
    """Write a UTC instant as ISO 8601 text that ends in ``Z``, with as many digits as the second needs.

    Parameters
    ----------
    moment
        The instant.

    Returns
    -------
    str
        To the second, or to the unit of the instant where that is needed.

    Raises
    ------
    InvalidInputError
        When it is no instant.

    Examples
    --------
    >>> iso_time(np.datetime64("2009-10-11T14:04:30.000000"))
    '2009-10-11T14:04:30Z'
    """
    if not isinstance(moment, np.datetime64) or np.isnat(moment):
        raise InvalidInputError(f"time is {shorten(moment)}; give a numpy.datetime64")
    whole = moment.astype("datetime64[s]")
    return f"{whole if whole == moment else moment}Z"


def time_text(moment: Any) -> str:
    """Write a time as the tables have it: ISO 8601 in UTC, or a number.

    Examples
    --------
    >>> time_text(np.datetime64("2024-03-07T09:00")), time_text(np.int64(3))
    ('2024-03-07T09:00:00Z', '3')
    """
    return iso_time(moment) if isinstance(moment, np.datetime64) else str(moment)
