"""Conversion between the text of cells and numbers or times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dphmm.errors import InvalidInputError

# ``(T,)``: integers, decimal numbers or ``datetime64[us]`` in UTC.
Times = npt.NDArray[Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_MESSAGE_CHARACTERS = 300
_MAX_DIGITS = 300
_FRACTION = re.compile(r"[+-]?(?:\d+/\d+|(?:\d+\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,4}))?)", re.ASCII)
_INTEGER = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
_DECIMAL = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)


def shorten(value: object) -> str:
    """Quote a value, cut to a length that fits a message of one line. None is *no value*."""
    if value is None:
        return "no value"
    try:
        text = str(value)
    except (ValueError, RecursionError):  # thousands of digits, or deeply nested brackets
        return f"a very long {type(value).__name__}"
    return repr(text if len(text) <= 40 else text[:37] + "...")


def shorten_repr(value: object) -> str:
    """Return the `repr` of a value, cut to a length that fits a message of one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a very long {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def shorten_message(problem: BaseException) -> str:
    """Return an error's message on one line of bounded length, or its class if empty."""
    text = " ".join(str(problem).split())
    short = text if len(text) <= _MAX_MESSAGE_CHARACTERS else text[: _MAX_MESSAGE_CHARACTERS - 3] + "..."
    return short or type(problem).__name__


def is_text(text: str) -> bool:
    """Return whether a string can be encoded: it contains no unpaired surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """Replace each unpaired surrogate in a string (see `is_text`) by a question mark."""
    return text.encode("utf-8", "replace").decode()


def format_cell(value: object) -> str:
    """Write a value of a typed file as in CSV: None is empty, integral floats have no point.

    Bytes are text in UTF-8, with an unpaired surrogate for each byte that is not; see `is_text`.
    """
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def parse_number(value: object, name: str) -> float:
    """Parse a decimal number from a string or the number of a typed file.

    Parameters
    ----------
    value
        The string or number.
    name
        The name of the quantity, for messages.

    Returns
    -------
    float
        The nearest float, which can be NaN or infinite.

    Raises
    ------
    ValueError
        If it is not a number; underscores as in Python are refused.
    """
    try:
        if isinstance(value, str) and "_" not in value:
            return float(value)
        return as_number(float(value) if isinstance(value, Decimal) else value, name)
    except ValueError:
        raise ValueError(f"{name} must be a decimal number, got {shorten(value)}") from None


def with_decimal_point(value: Any) -> Any:
    """Replace the decimal comma of a string by a point. Other values are unchanged.

    For quantities without thousands separators, such as coordinates.

    Examples
    --------
    >>> with_decimal_point("45,01"), with_decimal_point("1,234.5"), with_decimal_point(45)
    ('45.01', '1,234.5', 45)
    """
    is_comma = isinstance(value, str) and value.count(",") == 1 and "." not in value
    return value.replace(",", ".") if is_comma else value


def as_number(value: object, name: str) -> float:
    """Convert a number of a typed file, such as JSON, to a float.

    Parameters
    ----------
    value
        The number.
    name
        The name of the quantity, for messages.

    Returns
    -------
    float
        The nearest float.

    Raises
    ------
    ValueError
        If the value is not a number (strings and booleans are not), or is too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a decimal number, got {shorten(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be below 1e308, got {shorten(value)}") from None


def parse_fraction(text: str, name: str) -> Fraction:
    """Parse a decimal number, or a fraction of two integers, exactly.

    Parameters
    ----------
    text
        Such as ``"0.1"``, ``"1e-6"`` or ``"1/3"``.
    name
        The name of the quantity, for messages.

    Returns
    -------
    Fraction
        The exact value.

    Raises
    ------
    ValueError
        If it is not such a number, or has over 300 digits, which an exponent can produce from a short string.
    """
    text = text.strip()
    matched = _FRACTION.fullmatch(text)
    try:
        if matched and len(text) <= _MAX_DIGITS and abs(int(matched[1] or 0)) <= _MAX_DIGITS:
            return Fraction(text)
    except ZeroDivisionError:
        pass
    raise ValueError(f"{name} must be a decimal number or a fraction, got {shorten(text)}")


def parse_time(text: object) -> int:
    """Parse an ISO 8601 time. One without a zone is taken as UTC.

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
        If it is not such a time, or not a string: the unit of a number is unknown.
    """
    try:
        if not isinstance(text, str):
            raise ValueError
        return to_microseconds(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise InvalidInputError(f"time must be ISO 8601 such as 2009-10-11T14:04:30Z, got {shorten(text)}") from None


def to_microseconds(instant: datetime) -> int:
    """Return microseconds since 1970 in UTC. A time without a zone is taken as UTC.

    Raises
    ------
    InvalidInputError
        If it is not in the years 1 to 9999 in UTC, such as the last hour of 9999 west of Greenwich.
    """
    try:
        return ((instant.astimezone(UTC) if instant.tzinfo else instant.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise InvalidInputError(f"time must be in the years 1 to 9999, got {instant.isoformat()}") from None


def parse_times(texts: Sequence[str]) -> Times:
    """Parse strings as times: all integers, all numbers, or all ISO 8601 (UTC by default).

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
        For the first one that is not a time, or not finite.

    Examples
    --------
    >>> parse_times(["1", "2"]).dtype.kind, parse_times(["2024-03-07T11:00+02:00"]).tolist()
    ('i', [datetime.datetime(2024, 3, 7, 9, 0)])
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidInputError(f"times must be a list of strings, got {shorten(texts)}")
    if all(map(_INTEGER.fullmatch, texts)):
        return np.array([int(text) for text in texts], dtype=np.int64)
    if all(map(_DECIMAL.fullmatch, texts)):
        numbers = np.array([float(text) for text in texts])
        if not np.isfinite(numbers).all():
            raise InvalidInputError(f"time must be finite, got {shorten(texts[int(np.argmin(np.isfinite(numbers)))])}")
        return numbers
    return np.array([parse_time(text) for text in texts], dtype=np.int64).astype("datetime64[us]")


def iso_time(instant: np.datetime64) -> str:
    """Format a UTC instant as ISO 8601 text that ends in ``Z``.

    Parameters
    ----------
    instant
        The instant.

    Returns
    -------
    str
        To the second, or to the unit of the instant if it has a fraction of a second.

    Raises
    ------
    InvalidInputError
        If it is not an instant.

    Examples
    --------
    >>> iso_time(np.datetime64("2009-10-11T14:04:30.000000"))
    '2009-10-11T14:04:30Z'
    """
    if not isinstance(instant, np.datetime64) or np.isnat(instant):
        raise InvalidInputError(f"time must be a numpy.datetime64, got {shorten(instant)}")
    whole = instant.astype("datetime64[s]")
    return f"{whole if whole == instant else instant}Z"


def format_time(time: Any) -> str:
    """Format a time as in tables: ISO 8601 in UTC, or a number.

    Examples
    --------
    >>> format_time(np.datetime64("2024-03-07T09:00")), format_time(np.int64(3))
    ('2024-03-07T09:00:00Z', '3')
    """
    return iso_time(time) if isinstance(time, np.datetime64) else str(time)
