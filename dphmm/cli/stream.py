"""JSON lines from standard input to standard output, one line out for each line in."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from dphmm.errors import BudgetError, BudgetExceededError, CoordinateError, DataFileError, TimeOrderError
from dphmm.tables.columns import ALIASES
from dphmm.tables.values import as_number, parse_time, shorten
from dphmm.writers.table import ReleaseTable

if TYPE_CHECKING:
    from dphmm.release.people import ReleaseStream

_SOURCE = "standard input"


def answer_lines(stream: ReleaseStream, skip_bad: bool) -> None:
    """Answer every line of standard input by one line of standard output, flushed before the next is read.

    The answer is the release as an object with the columns of a table of releases; for a fix outside the region it is
    ``{"user": …, "released": false, "reason": "outside the region"}``.

    Parameters
    ----------
    stream
        Who answers.
    skip_bad
        True to answer a malformed line by ``{"released": false, "reason": …}`` and go on; false to stop there.

    Raises
    ------
    DataFileError
        For the first malformed line, with its number, unless it is to be skipped.
    """
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            answer = _answer(stream, line)
        except (ValueError, BudgetExceededError) as problem:
            if not isinstance(problem, _BAD_LINE) and type(problem) is not ValueError:
                raise
            reason = " ".join(str(problem).split())
            if not skip_bad:
                raise DataFileError(_SOURCE, reason, number) from None
            answer = {"released": False, "reason": f"line {number}: {reason}"}
        sys.stdout.write(json.dumps(answer, ensure_ascii=False, allow_nan=False) + "\n")
        sys.stdout.flush()


_BAD_LINE = (BudgetError, BudgetExceededError, CoordinateError, TimeOrderError)


def _answer(stream: ReleaseStream, line: bytes) -> dict[str, Any]:
    fix = _parsed(line)
    user = str(_value(fix, "user"))
    time = _value(fix, "time")
    instant = np.datetime64(parse_time(time), "us")
    latitude, longitude = (as_number(_value(fix, what), what) for what in ("latitude", "longitude"))
    epsilon = fix.get("epsilon")
    if epsilon is not None and (isinstance(epsilon, bool) or not isinstance(epsilon, int | float)):
        raise ValueError(f"epsilon is {shorten(str(epsilon))}; give a number")
    release = stream.take(user, instant, latitude, longitude, epsilon)
    if release is None:
        return {"user": user, "time": time, "released": False, "reason": "outside the region"}
    return {"released": True} | next(ReleaseTable.of([release]).rows())


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        fix = json.loads(line)
    except (ValueError, RecursionError):
        fix = None
    if not isinstance(fix, dict):
        raise ValueError("is no JSON object; give one object a line, with user, time, latitude and longitude")
    return fix


def _value(fix: dict[str, Any], what: str) -> Any:
    for name in ALIASES[what]:
        if fix.get(name) not in (None, ""):
            return fix[name]
    raise ValueError(f"has no {what}; give it as {what!r}")
