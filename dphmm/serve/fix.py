"""What goes on of a message that a phone sends: places and times, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from dphmm.space.trajectory import LATEST_SECOND
from dphmm.tables.json_text import parse_json
from dphmm.tables.values import as_number, parse_number, since_epoch

_MILLISECONDS_FROM = 10**11
"""Numbers from here up count milliseconds: as seconds they would lie beyond the year 5000."""


@dataclass(frozen=True)
class Fix:
    """A true place. Never logged, stored or shown.

    Parameters
    ----------
    time
        ``datetime64[us]``, UTC.
    latitude, longitude
        WGS 84 degrees.
    """

    time: np.datetime64
    latitude: float
    longitude: float

    def __repr__(self) -> str:
        """Without the place, so that no traceback and no log can hold it."""
        return "Fix(…)"


@dataclass(frozen=True)
class Received:
    """What a message held that goes on.

    Parameters
    ----------
    fixes
        The places, in the message's order.
    malformed
        How many places it held that are none: without a time, not on the Earth.
    """

    fixes: tuple[Fix, ...] = ()
    malformed: int = 0

    def __repr__(self) -> str:
        """Without the places."""
        return f"Received({len(self.fixes)} fixes, {self.malformed} malformed)"


def received(places: Iterable[Any], read: Callable[[Any], Fix]) -> Received:
    """Every place of a message that reads; those that do not are counted, so that one of them holds up no other."""
    fixes, malformed = [], 0
    for place in places:
        try:
            fixes.append(read(place))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            malformed += 1
    return Received(tuple(fixes), malformed)


def fix_of(time: Any, latitude: Any, longitude: Any) -> Fix:
    """A place out of the fields of a message.

    Parameters
    ----------
    time
        Seconds or milliseconds since 1970 as a number or a text, or ISO 8601 with a zone.
    latitude, longitude
        Degrees, as numbers or texts.

    Raises
    ------
    ValueError
        When one of them is none. The error does not repeat it.
    """
    places = [_degrees(latitude, 90), _degrees(longitude, 180)]
    return Fix(np.datetime64(_microseconds(time), "us"), *places)


def json_object(body: bytes) -> Mapping[str, Any] | None:
    """The object that a body is; None where it is something else."""
    try:
        value = parse_json(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _degrees(value: Any, most: int) -> float:
    degrees = parse_number(value, "a coordinate")
    if not abs(degrees) <= most:  # NaN compares false
        raise ValueError("a coordinate is not on the Earth")
    return degrees


def _microseconds(value: Any) -> int:
    if isinstance(value, str) and not _is_number(value):
        moment = datetime.fromisoformat(value.strip())
        if moment.tzinfo is None:
            raise ValueError("a time has no zone")
        return since_epoch(moment)
    seconds = parse_number(value, "a time") if isinstance(value, str) else as_number(value, "a time")
    if seconds >= _MILLISECONDS_FROM:
        seconds /= 1000
    if not 0 <= seconds <= LATEST_SECOND:
        raise ValueError("a time is beyond all years that count")
    return round(seconds * 1_000_000)


def _is_number(text: str) -> bool:
    return text.strip().replace(".", "", 1).isdigit()
