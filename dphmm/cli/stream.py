"""JSON lines from standard input to standard output, one line out for each line in."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.cli.terminal import echo
from dphmm.errors import AlreadyKnownError, BudgetExceededError, DataFileError, InvalidInputError, SessionBusyError
from dphmm.tables import iso_time
from dphmm.tables.columns import ALIASES
from dphmm.tables.values import since_epoch
from dphmm.writers.table import said_of

if TYPE_CHECKING:
    from dphmm.release.people import ReleaseStream

_REFUSALS = (InvalidInputError, BudgetExceededError, SessionBusyError)
"""What concerns one line, or the person that it is about. A store that is damaged or cannot be written ends the run."""


def answer_lines(stream: ReleaseStream) -> None:
    """Answer every line of standard input by one line of standard output, flushed before the next is read.

    The answer is the release as an object with the columns of a table of releases. A line that has none, whatever is in
    it, is answered by ``{"released": false, "reason": …}``, with the user and the time of the slot as far as the line
    tells them, and the next is read: no line of one person ends the stream for the others. No answer repeats a place or
    the time of a fix. Where a schedule or caps on events leave nothing to draw with, the answer says so and has the
    columns too, with the prediction in them.

    Parameters
    ----------
    stream
        Who answers.

    Raises
    ------
    DataFileError, OutputError
        When the file of sessions is damaged, or cannot be written.
    """
    for number, line in enumerate(sys.stdin.buffer, start=1):
        echo(json.dumps(_answer(stream, line, number), allow_nan=False))
        sys.stdout.flush()


def _answer(stream: ReleaseStream, line: bytes, number: int) -> dict[str, Any]:
    about: dict[str, Any] = {}
    try:
        fix = _parsed(line)
        about["user"] = user = _user(fix)
        time = np.datetime64(_time(fix), "us")
        about["time"] = iso_time(stream.moment(time))
        latitude, longitude = _degrees(fix, "latitude", 90), _degrees(fix, "longitude", 180)
        release = stream.take(user, time, latitude, longitude, _epsilon(fix))
    except AlreadyKnownError as problem:
        return about | _refusal(number, f"{problem}, with --allow-known")
    except DataFileError:
        raise
    except _REFUSALS as problem:
        return about | _refusal(number, str(problem))
    if release is None:
        return about | {"released": False, "reason": stream.silence}
    return said_of(release)


def _refusal(number: int, reason: str) -> dict[str, Any]:
    return {"released": False, "reason": f"line {number}: {' '.join(reason.split())}"}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        fix = json.loads(line)
    except (ValueError, RecursionError):  # also no UTF-8, and numbers of thousands of digits
        fix = None
    if not isinstance(fix, dict):
        raise InvalidInputError("is no JSON object; give one object a line, with user, time, latitude and longitude")
    return fix


def _value(fix: dict[str, Any], what: str) -> Any:
    for name in ALIASES[what]:
        if fix.get(name) not in (None, ""):
            return fix[name]
    raise InvalidInputError(f"has no {what}; give it as {what!r}")


def _user(fix: dict[str, Any]) -> str:
    user = _value(fix, "user")
    if isinstance(user, bool) or not isinstance(user, int | str) or not str(user).isprintable():
        raise InvalidInputError("the user is no name; give a text of printable characters")
    return str(user)


def _time(fix: dict[str, Any]) -> int:
    """Microseconds since 1970 of a time that says its zone."""
    text = _value(fix, "time")
    try:
        moment = datetime.fromisoformat(text.strip())
    except (AttributeError, ValueError):
        raise InvalidInputError("the time is none; give an ISO 8601 time such as 2009-10-11T14:04:30Z") from None
    if moment.tzinfo is None:
        raise InvalidInputError("the time has no zone; add Z for UTC, or an offset such as +02:00")
    return since_epoch(moment)


def _degrees(fix: dict[str, Any], what: str, most: int) -> float:
    degrees = _number(_value(fix, what), what)
    if not abs(degrees) <= most:  # NaN compares false
        raise InvalidInputError(f"the {what} is not on the Earth; give degrees, -{most} to {most}")
    return degrees


def _epsilon(fix: dict[str, Any]) -> float | None:
    epsilon = fix.get("epsilon")
    return None if epsilon is None else _number(epsilon, "epsilon")


def _number(value: Any, what: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return float(value)
    except (TypeError, OverflowError):  # the latter of a whole number beyond all floats
        raise InvalidInputError(f"the {what} is no number that can be used; give a decimal number") from None
