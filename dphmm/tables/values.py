"""What a cell says: numbers and times out of texts, and back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[Any]
"""``(T,)``: whole numbers, decimal numbers or ``datetime64[us]`` in UTC."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def shorten(text: str) -> str:
    """The text in quotes, cut to a length that fits a message of one line."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def one_line(problem: BaseException) -> str:
    """What an error says, on one line; its kind where it says nothing."""
    return " ".join(str(problem).split()) or type(problem).__name__


def plain_text(value: object) -> str:
    """A value of a typed file as a CSV would say it: nothing is empty, and a whole float has no point."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def parse_number(value: object, name: str) -> float:
    """A decimal number, as a text or as the number of a typed file.

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
        raise ValueError(f"{name} is {shorten(str(value))}; give a decimal number") from None


def as_number(value: object, name: str) -> float:
    """A number of a typed file, such as JSON, as a float.

    Raises
    ------
    ValueError
        When the value is something else, a text or a truth among it.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shorten(str(value))}; give a decimal number")
    return float(value)


def parse_time(text: object) -> int:
    """Microseconds since 1970 in UTC of an ISO 8601 time; one without a zone is taken as UTC.

    Raises
    ------
    ValueError
        When it is no such time, or no text: nothing says whether a number counts seconds or milliseconds.
    """
    try:
        if not isinstance(text, str):
            raise ValueError
        return since_epoch(datetime.fromisoformat(text.strip()))
    except ValueError:
        raise ValueError(f"time is {shorten(str(text))}; give an ISO 8601 time such as 2009-10-11T14:04:30Z") from None


def since_epoch(moment: datetime) -> int:
    """Microseconds since 1970 in UTC; a time without a zone is taken as UTC."""
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def parse_times(texts: Sequence[str]) -> Times:
    """Times out of texts: all whole numbers, or all numbers, or all ISO 8601, where no zone means UTC.

    Raises
    ------
    ValueError
        Naming the first that is none.

    Examples
    --------
    >>> parse_times(["1", "2"]).dtype.kind, parse_times(["2024-03-07T11:00+02:00"]).tolist()
    ('i', [datetime.datetime(2024, 3, 7, 9, 0)])
    """
    for kind in (np.int64, np.float64):
        try:
            return np.array([kind(text.strip()) for text in texts])
        except ValueError:
            continue
    return np.array([parse_time(text) for text in texts], dtype=np.int64).astype("datetime64[us]")


def iso_time(moment: np.datetime64) -> str:
    """A UTC instant as ISO 8601 text that ends in ``Z``, with as many digits as the second needs.

    Examples
    --------
    >>> iso_time(np.datetime64("2009-10-11T14:04:30.000000"))
    '2009-10-11T14:04:30Z'
    """
    whole = moment.astype("datetime64[s]")
    return f"{whole if whole == moment else moment}Z"


def time_text(moment: Any) -> str:
    """A time as the tables write it: ISO 8601 in UTC, or a number.

    Examples
    --------
    >>> time_text(np.datetime64("2024-03-07T09:00")), time_text(np.int64(3))
    ('2024-03-07T09:00:00Z', '3')
    """
    return iso_time(moment) if isinstance(moment, np.datetime64) else str(moment)
