"""One fix, or a list of them, as plain JSON: ``{"time": …, "latitude": …, "longitude": …}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dphmm.errors import InvalidInputError
from dphmm.serve.fix import Fix, Received, fix_of, received
from dphmm.serve.told import Told
from dphmm.tables.json_text import parse_json

ANSWER = '{"result":"ok"}'


def read(body: bytes) -> Received:
    """The fixes of a body.

    Raises
    ------
    InvalidInputError
        When it is neither an object nor a list, or a fix is none: who writes this format wants to be told.
    """
    try:
        value = parse_json(body)
    except ValueError:
        raise InvalidInputError("the body is no JSON; give one object, or a list of them") from None
    found = received(value if isinstance(value, list) else [value], _fix)
    if found.malformed:
        raise InvalidInputError(
            f"{found.malformed} of the fixes are none; give each a time with its zone, a latitude and a longitude"
        )
    return found


def message(told: Told) -> dict[str, Any]:
    """What a webhook gets: what the stream answers, and nothing else."""
    return told.row


def zone_message(told: Told) -> dict[str, Any]:
    """What a webhook gets that is told zones: no place."""
    return {"user": told.user, "time": told.time, "zone": told.zone, "prediction": told.is_prediction}


def _fix(fix: Mapping[str, Any]) -> Fix:
    if isinstance(fix["time"], str):
        return fix_of(fix["time"], fix["latitude"], fix["longitude"])
    raise ValueError("a number does not say what it counts")
