"""JSON lines from standard input to standard output, one line out for each line in."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.cli.terminal import echo
from dphmm.errors import (
    AlreadyKnownError,
    BudgetExceededError,
    ConfigurationError,
    DataFileError,
    InvalidInputError,
    SessionBusyError,
)
from dphmm.readers.instants import Instants
from dphmm.tables import iso_time
from dphmm.tables.columns import ALIASES
from dphmm.writers.table import said_of

if TYPE_CHECKING:
    from dphmm.release.people import ReleaseStream

_REFUSALS = (InvalidInputError, BudgetExceededError, SessionBusyError)
"""What concerns one line, or the person that it is about. A store that is damaged or cannot be written ends the run."""


HELD = ("user", "time", "latitude", "longitude", "epsilon")
"""What a key of a line may hold."""


class Keys:
    """What the lines' keys are called, and how their times are to be understood.

    Parameters
    ----------
    columns
        What a key holds, one of `HELD`, → its name, which is then the only one that it goes by.
    time_unit, time_zone
        As for `dphmm.readers.instants.Instants`; without a zone, a time that does not say its own is refused.

    Raises
    ------
    ConfigurationError
        For a key that holds something else, an unknown unit or an unknown zone.
    """

    def __init__(self, columns: Mapping[str, str], time_unit: str | None = None, time_zone: str | None = None) -> None:
        unknown = sorted(set(columns) - set(HELD))
        if unknown:
            raise ConfigurationError(f"--column names {unknown[0]!r}; a line's keys hold {', '.join(HELD)}")
        self._names = {**ALIASES, "epsilon": ("epsilon",), **{what: (name,) for what, name in columns.items()}}
        self._instants = Instants(time_unit, time_zone)

    def value(self, fix: Mapping[str, Any], what: str) -> Any:
        """What a line says of something, None where it says nothing."""
        return next((fix[name] for name in self._names[what] if fix.get(name) not in (None, "")), None)

    def needed(self, fix: Mapping[str, Any], what: str) -> Any:
        """The same of what every line has to say."""
        value = self.value(fix, what)
        if value is None:
            name = self._names[what][0] if len(self._names[what]) == 1 else what
            raise InvalidInputError(f"has no {what}; give it as {name!r}")
        return value

    def time(self, fix: Mapping[str, Any]) -> int:
        """Microseconds since 1970 of a time that says its zone, or counts in a unit that is known."""
        value = self.needed(fix, "time")
        what = "" if isinstance(value, str) or self._instants.unit else ", or say what numbers count with --time-unit"
        try:
            if self._instants.zone is None and self._instants.lacks_zone(value):
                raise InvalidInputError("the time has no zone; add Z for UTC, or an offset such as +02:00")
            return self._instants.microseconds(value)
        except InvalidInputError:
            raise
        except ValueError:
            wrong = "the time is none; give an ISO 8601 time such as 2009-10-11T14:04:30Z"
            raise InvalidInputError(wrong + what) from None


def answer_lines(
    stream: ReleaseStream,
    columns: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    time_zone: str | None = None,
) -> None:
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
    columns, time_unit, time_zone
        As for `Keys`.

    Raises
    ------
    DataFileError, OutputError
        When the file of sessions is damaged, or cannot be written.
    ConfigurationError
        As `Keys`, before the first line is read.
    """
    keys = Keys(columns or {}, time_unit, time_zone)
    for number, line in enumerate(sys.stdin.buffer, start=1):
        echo(json.dumps(_answer(stream, keys, line, number), allow_nan=False))
        sys.stdout.flush()


def _answer(stream: ReleaseStream, keys: Keys, line: bytes, number: int) -> dict[str, Any]:
    about: dict[str, Any] = {}
    try:
        fix = _parsed(line)
        about["user"] = user = _user(keys, fix)
        time = np.datetime64(keys.time(fix), "us")
        about["time"] = iso_time(stream.moment(time))
        latitude, longitude = _degrees(keys, fix, "latitude", 90), _degrees(keys, fix, "longitude", 180)
        release = stream.take(user, time, latitude, longitude, _epsilon(keys, fix))
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


def _user(keys: Keys, fix: dict[str, Any]) -> str:
    user = keys.needed(fix, "user")
    if isinstance(user, bool) or not isinstance(user, int | str) or not str(user).isprintable():
        raise InvalidInputError("the user is no name; give a text of printable characters")
    return str(user)


def _degrees(keys: Keys, fix: dict[str, Any], what: str, most: int) -> float:
    degrees = _number(keys.needed(fix, what), what)
    if not abs(degrees) <= most:  # NaN compares false
        raise InvalidInputError(f"the {what} is not on the Earth; give degrees, -{most} to {most}")
    return degrees


def _epsilon(keys: Keys, fix: dict[str, Any]) -> float | None:
    epsilon = keys.value(fix, "epsilon")
    return None if epsilon is None else _number(epsilon, "epsilon")


def _number(value: Any, what: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return float(value)
    except (TypeError, OverflowError):  # the latter of a whole number beyond all floats
        raise InvalidInputError(f"the {what} is no number that can be used; give a decimal number") from None
