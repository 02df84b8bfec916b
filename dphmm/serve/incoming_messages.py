"""Parsers of the messages of location apps: locations and times, and nothing else.

OwnTracks sends by HTTP or MQTT. Only messages with ``_type`` ``location`` contain the location. All other messages get
the same answer, because the app resends everything that is not answered by 2xx and a list, and one refused message has
blocked its queue permanently. Overland sends batches of GeoJSON points, and resends a whole batch until it is answered
by ``{"result": "ok"}``. Traccar's clients use the OsmAnd protocol (one point in a query or a form) or JSON. GPSLogger's
custom URL has fields with names chosen by its user. Home Assistant's app posts to a webhook. Plain JSON is one fix or a
list of fixes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isnan
from typing import Any, Literal

import numpy as np

from dphmm.errors import InvalidInputError
from dphmm.serve.clock import get_current_second
from dphmm.space.fix_quality import parse_accuracy, parse_validity
from dphmm.space.trajectory import LATEST_SECOND
from dphmm.tables.json_toml import parse_json
from dphmm.tables.table import ALIASES
from dphmm.tables.values import as_number, parse_number, to_microseconds, with_decimal_point

_MIN_MILLISECONDS = 10**11  # as seconds, numbers from here on would lie beyond the year 5000
_MAX_FIXES = 5000  # in one body of plain JSON


@dataclass(frozen=True)
class Fix:
    """A true location. Never logged, stored or displayed.

    Parameters
    ----------
    time : numpy.datetime64
        ``datetime64[us]``, UTC.
    latitude, longitude : float
        WGS 84 degrees.
    accuracy_m : float, optional
        Accuracy radius that the app reports, in metres; negative if it has no position. None if it reports none.
    is_valid : bool, default True
        Whether the app considers the fix valid.
    """

    time: np.datetime64
    latitude: float
    longitude: float
    accuracy_m: float | None = None
    is_valid: bool = True

    def __repr__(self) -> str:
        """Return a representation without the location, so that no traceback or log contains it."""
        return "Fix(…)"


# Why an entry is not a location: its time has no time zone, it is encrypted, or it is otherwise malformed.
RejectReason = Literal["malformed", "no_timezone", "encrypted"]


class MissingTimezoneError(ValueError):
    """A time has no time zone and is therefore ambiguous."""


@dataclass(frozen=True)
class Received:
    """Content that the relay uses of a message.

    Parameters
    ----------
    fixes : tuple of Fix
        Locations, in the order of the message.
    rejected : tuple of str
        Reason for each entry that is not a location.
    """

    fixes: tuple[Fix, ...] = ()
    rejected: tuple[RejectReason, ...] = ()

    def __repr__(self) -> str:
        """Return a representation without the locations."""
        return f"Received({len(self.fixes)} fixes, {len(self.rejected)} rejected)"


def parse_fixes(entries: Iterable[Any], parse: Callable[[Any], Fix]) -> Received:
    """Parse every entry of a message.

    Invalid entries are recorded and do not affect the others.

    Parameters
    ----------
    entries : iterable
        Entries of the message.
    parse : callable
        Converts an entry to a fix. A ValueError, TypeError, KeyError, AttributeError or OverflowError marks the entry
        as invalid.

    Returns
    -------
    Received
        The fixes in the order of the message, and the reasons for the other entries.
    """
    fixes: list[Fix] = []
    others: list[RejectReason] = []
    for entry in entries:
        try:
            fixes.append(parse(entry))
        except MissingTimezoneError:
            others.append("no_timezone")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            others.append("malformed")
    return Received(tuple(fixes), tuple(others))


def parse_fix(time: Any, latitude: Any, longitude: Any, accuracy: Any = None, valid: Any = None) -> Fix:
    """Parse the fields of a message as a fix.

    Parameters
    ----------
    time : float or str
        Seconds or milliseconds since 1970 as a number or a string, or ISO 8601 with a time zone.
    latitude, longitude : float or str
        Degrees. Some phones write decimal commas.
    accuracy : float or str, optional
        Metres. Values that are not numbers count as missing, as in `dphmm.space.fix_quality.parse_accuracy`.
    valid : bool, int or str, optional
        Whether the app considers the fix valid, as in `dphmm.space.fix_quality.parse_validity`.

    Returns
    -------
    Fix
        The location, with its time rounded to microseconds.

    Raises
    ------
    ValueError
        If a value is malformed or not on the Earth. The message does not repeat the value.
    """
    north = _parse_degrees(latitude, 90)
    east = _parse_degrees(longitude, 180)
    metres = parse_accuracy(accuracy)
    stated = None if isnan(metres) or metres == 0 else metres
    return Fix(np.datetime64(_parse_microseconds(time), "us"), north, east, stated, parse_validity(valid))


def parse_object(body: bytes) -> Mapping[str, Any]:
    """Parse a body as a JSON object. Other bodies yield an empty object."""
    try:
        value = parse_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _parse_degrees(value: Any, max_degrees: int) -> float:
    degrees = parse_number(with_decimal_point(value), "a coordinate")
    if not abs(degrees) <= max_degrees:  # NaN compares false
        raise ValueError("a coordinate must be on the Earth")
    return degrees


def _parse_microseconds(value: Any) -> int:
    if isinstance(value, str) and not value.strip().replace(".", "", 1).isdigit():
        time = datetime.fromisoformat(value.strip())
        if time.tzinfo is None:
            raise MissingTimezoneError("a time must have a time zone")
        return to_microseconds(time)
    seconds = parse_number(value, "a time") if isinstance(value, str) else as_number(value, "a time")
    if seconds >= _MIN_MILLISECONDS:
        seconds /= 1000
    if not 0 <= seconds <= LATEST_SECOND:
        raise ValueError("a time must be within the range of dates")
    return round(seconds * 1_000_000)


def to_seconds(time: np.datetime64) -> int:
    """Return a time in whole seconds since 1970."""
    return int(time.astype("datetime64[s]").astype(np.int64))


def read_owntracks(body: bytes) -> Received:
    """Read the location of an OwnTracks message, if it contains one.

    Parameters
    ----------
    body : bytes
        Body of the message.

    Returns
    -------
    Received
        The location. Messages of other types contain none.
    """
    message = parse_object(body)
    if message.get("_type") == "encrypted":
        return Received(rejected=("encrypted",))
    if message.get("_type") != "location":
        return Received()
    return parse_fixes(
        [message], lambda location: parse_fix(location["tst"], location["lat"], location["lon"], location.get("acc"))
    )


def read_overland(body: bytes) -> Received:
    """Read the points of an Overland batch, including the current one.

    Parameters
    ----------
    body : bytes
        Body of the message.

    Returns
    -------
    Received
        The locations. Other messages contain none.
    """
    batch = parse_object(body)
    locations = batch.get("locations")
    entries = list(locations) if isinstance(locations, list) else []
    if isinstance(batch.get("current"), dict):
        entries.append(batch["current"])
    return parse_fixes(entries, _parse_overland_fix)


def _parse_overland_fix(feature: Mapping[str, Any]) -> Fix:
    if feature["geometry"]["type"] != "Point":
        raise ValueError("a location must be a point")
    longitude, latitude = feature["geometry"]["coordinates"][:2]
    about = feature["properties"]
    return parse_fix(about["timestamp"], latitude, longitude, about.get("horizontal_accuracy"), about.get("valid"))


def read_osmand(fields: Mapping[str, str] | bytes) -> Received:
    """Read a message of Traccar's client: the OsmAnd protocol, or JSON since version 9.

    Parameters
    ----------
    fields : mapping or bytes
        Fields of the query or form, or a body of JSON.

    Returns
    -------
    Received
        The location; rejected as malformed if a field is missing.
    """
    return read_traccar(fields) if isinstance(fields, bytes) else parse_fixes([fields], _parse_osmand_fix)


def _parse_osmand_fix(fields: Mapping[str, str]) -> Fix:
    latitude, longitude = fields["location"].split(",") if "location" in fields else (fields["lat"], fields["lon"])
    return parse_fix(fields["timestamp"], latitude, longitude, fields.get("accuracy"), fields.get("valid"))


def read_traccar(body: bytes) -> Received:
    """Read the location or locations of a JSON message of Traccar's client.

    Parameters
    ----------
    body : bytes
        Body of the message.

    Returns
    -------
    Received
        The locations, none for an empty list; rejected as malformed if the key is missing.
    """
    location = parse_object(body).get("location")
    return parse_fixes(location if isinstance(location, list) else [location], _parse_traccar_fix)


def _parse_traccar_fix(location: Mapping[str, Any]) -> Fix:
    coordinates = location["coords"]
    return parse_fix(
        location["timestamp"],
        coordinates["latitude"],
        coordinates["longitude"],
        coordinates.get("accuracy"),
        coordinates.get("valid", location.get("valid")),
    )


def read_gpslogger(fields: Mapping[str, str]) -> Received:
    """Read a location of GPSLogger.

    Without a time it counts as current, because the app sends immediately.

    Parameters
    ----------
    fields : mapping
        Fields of the query or form.

    Returns
    -------
    Received
        The location; rejected as malformed if a field is missing.
    """
    return parse_fixes([fields], _parse_gpslogger_fix)


def _parse_gpslogger_fix(fields: Mapping[str, str]) -> Fix:
    time, latitude, longitude = (
        next((fields[key] for key in ALIASES[name] if fields.get(key)), None)
        for name in ("time", "latitude", "longitude")
    )
    accuracy = fields.get("acc") or fields.get("accuracy")
    return parse_fix(get_current_second() if time is None else time, latitude, longitude, accuracy, fields.get("valid"))


def read_home_assistant(body: bytes) -> Received:
    """Read the location of an ``update_location`` message.

    The app sends no time. The location counts as current.

    Parameters
    ----------
    body : bytes
        Body of the message.

    Returns
    -------
    Received
        The location. Messages of other types contain none.
    """
    message = parse_object(body)
    if message.get("type") != "update_location":
        return Received()
    return parse_fixes([message.get("data")], _parse_home_assistant_fix)


def _parse_home_assistant_fix(data: Mapping[str, Any]) -> Fix:
    latitude, longitude = data["gps"]
    return parse_fix(get_current_second(), latitude, longitude, data.get("gps_accuracy"))


def read_plain(body: bytes) -> Received:
    """Read the fixes of a plain JSON body.

    Parameters
    ----------
    body : bytes
        Body of the message.

    Returns
    -------
    Received
        The locations.

    Raises
    ------
    InvalidInputError
        If the body is neither an object nor a list, or a fix is malformed. Senders of this format expect an error.
    """
    try:
        value = parse_json(body)
    except ValueError:
        raise InvalidInputError("the body must be a JSON object or a list of them") from None
    if isinstance(value, list) and len(value) > _MAX_FIXES:
        raise InvalidInputError(f"the body must contain at most {_MAX_FIXES} fixes, got {len(value)}")
    parsed = parse_fixes(value if isinstance(value, list) else [value], _parse_plain_fix)
    if parsed.rejected:
        raise InvalidInputError(
            f"every fix must have a time with a time zone, a latitude and a longitude, got {len(parsed.rejected)} "
            "malformed fixes"
        )
    return parsed


def _parse_plain_fix(fix: Mapping[str, Any]) -> Fix:
    if isinstance(fix["time"], str):
        return parse_fix(fix["time"], fix["latitude"], fix["longitude"], fix.get("accuracy"), fix.get("valid"))
    raise ValueError("a time must be a string: the unit of a number is unknown")
