"""Answers to fixes in lines of JSON, as ``dphmm release`` reads them from standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.cli.console import echo
from dphmm.errors import BudgetExceededError, ConfigurationError, DataFileError, InvalidInputError, SessionBusyError
from dphmm.readers.fixes import parse_user
from dphmm.readers.instants import Instants
from dphmm.space.fix_quality import parse_accuracy, parse_validity
from dphmm.tables import ALIASES, iso_time
from dphmm.writers.release_table import build_release_object

if TYPE_CHECKING:
    from dphmm.release.trajectory_release import ReleaseStream

# Errors of one line or user. A store that is damaged or cannot be written ends the run.
_REFUSALS = (InvalidInputError, BudgetExceededError, SessionBusyError)


# The contents of a line.
LINE_FIELDS = ("user", "time", "latitude", "longitude", "epsilon", "accuracy", "valid")


class LineKeys:
    """The keys of input lines, and the interpretation of their times.

    Parameters
    ----------
    columns
        A content, one of `LINE_FIELDS`, → its key, which replaces the default keys.
    instants
        The interpretation of times. Without a zone, times must contain their zone.

    Raises
    ------
    ConfigurationError
        For an unknown content.
    """

    def __init__(self, columns: Mapping[str, str], instants: Instants) -> None:
        unknown = sorted(set(columns) - set(LINE_FIELDS))
        if unknown:
            raise ConfigurationError(f"columns of lines must be {', '.join(LINE_FIELDS)}, got {unknown[0]!r}")
        self._names = {**ALIASES, "epsilon": ("epsilon",), **{content: (name,) for content, name in columns.items()}}
        self._instants = instants

    def get_value(self, fix: Mapping[str, Any], content: str) -> Any:
        """Return a content of a line, None if it is missing or empty."""
        return next((fix[name] for name in self._names[content] if fix.get(name) not in (None, "")), None)

    def get_required_value(self, fix: Mapping[str, Any], content: str) -> Any:
        """Return a required content of a line."""
        value = self.get_value(fix, content)
        if value is None:
            name = self._names[content][0] if len(self._names[content]) == 1 else content
            raise InvalidInputError(f"{content} is missing: use the key {name!r}")
        return value

    def parse_time(self, fix: Mapping[str, Any]) -> int:
        """Return the time of a line in microseconds since 1970."""
        value = self.get_required_value(fix, "time")
        needs_unit = not isinstance(value, str) and not self._instants.unit
        remedy = ", or set time_format to the unit of numbers" if needs_unit else ""
        try:
            if self._instants.zone is None and self._instants.lacks_zone(value):
                raise InvalidInputError("time must contain its zone: add Z for UTC, or an offset such as +02:00")
            return self._instants.parse_microseconds(value)
        except InvalidInputError:
            raise
        except ValueError:
            raise InvalidInputError(f"time must be an ISO 8601 time such as 2009-10-11T14:04:30Z{remedy}") from None


def answer_lines(
    stream: ReleaseStream,
    columns: Mapping[str, str] | None = None,
    instants: Instants | None = None,
) -> None:
    """Answer every line of standard input with one line of standard output.

    An answer is flushed before the next line is read.

    The answer is the release as an object with the columns of a table of releases. A line without a release, for any
    reason, is answered by ``{"released": false, "reason": …}``, with the user and the time of the slot if the line
    contains them. No line of one user ends the stream for the others. No answer repeats a location or the time of a
    fix. If a schedule or event caps withhold the timestep, the answer also contains the columns with the prediction.

    Parameters
    ----------
    stream
        The stream of releases.
    columns, instants
        As for `LineKeys`.

    Raises
    ------
    DataFileError, OutputError
        If the file of sessions is damaged or cannot be written.
    ConfigurationError
        As `LineKeys`, before the first line is read.
    """
    keys = LineKeys(columns or {}, Instants() if instants is None else instants)
    for number, line in enumerate(sys.stdin.buffer, start=1):
        echo(json.dumps(_answer_line(stream, keys, line, number), allow_nan=False))
        sys.stdout.flush()


def _answer_line(stream: ReleaseStream, keys: LineKeys, line: bytes, number: int) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    try:
        fix = _parse_line(line)
        answer["user"] = user = _parse_user(keys, fix)
        time = np.datetime64(keys.parse_time(fix), "us")
        answer["time"] = iso_time(stream.get_slot_end(time))
        latitude = _parse_degrees(keys, fix, "latitude", 90)
        longitude = _parse_degrees(keys, fix, "longitude", 180)
        quality: dict[str, Any] = {
            "accuracy_m": parse_accuracy(keys.get_value(fix, "accuracy")),
            "is_valid": parse_validity(keys.get_value(fix, "valid")),
        }
        release = stream.take(user, time, latitude, longitude, _parse_epsilon(keys, fix), **quality)
    except DataFileError:
        raise
    except _REFUSALS as problem:
        return answer | _build_refusal(number, str(problem))
    if release is None:
        return answer | {"released": False, "reason": stream.no_release_reason}
    return build_release_object(release)


def _build_refusal(number: int, reason: str) -> dict[str, Any]:
    return {"released": False, "reason": f"line {number}: {' '.join(reason.split())}"}


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        fix = json.loads(line)
    except (ValueError, RecursionError):  # including invalid UTF-8, and numbers with thousands of digits
        fix = None
    if not isinstance(fix, dict):
        raise InvalidInputError("must be a JSON object with user, time, latitude and longitude")
    return fix


def _parse_user(keys: LineKeys, fix: dict[str, Any]) -> str:
    user = keys.get_required_value(fix, "user")
    if isinstance(user, bool) or not isinstance(user, int | str) or not str(user).isprintable():
        raise InvalidInputError("user must be a string of printable characters")
    return parse_user(user)


def _parse_degrees(keys: LineKeys, fix: dict[str, Any], content: str, limit: int) -> float:
    degrees = _parse_number(keys.get_required_value(fix, content), content)
    if not abs(degrees) <= limit:  # NaN compares false
        raise InvalidInputError(f"{content} must be in [-{limit}, {limit}] degrees")
    return degrees


def _parse_epsilon(keys: LineKeys, fix: dict[str, Any]) -> float | None:
    epsilon = keys.get_value(fix, "epsilon")
    return None if epsilon is None else _parse_number(epsilon, "epsilon")


def _parse_number(value: Any, content: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError
        return float(value)
    except (TypeError, OverflowError):  # an integer may exceed all floats
        raise InvalidInputError(f"{content} must be a number") from None
