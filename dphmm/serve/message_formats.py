"""What phones' apps send and what recipients are sent, format by format: places and times, and nothing else.

OwnTracks sends by HTTP or MQTT. Only messages whose ``_type`` is ``location`` say where the person is; all others are
answered alike, as the app keeps and resends whatever is not answered by 2xx and a list, and one refused message has
blocked its queue for good. Overland sends batches of GeoJSON points, which come again as a whole until they are
answered by ``{"result": "ok"}``. Traccar's clients use the OsmAnd protocol (one point in a query or a form) or JSON.
GPSLogger's custom URL has fields under the names that its user gave them. Home Assistant's app posts to a webhook, and
its webhooks for GPS trackers take an estimate. Plain JSON is one fix or a list of them.

A recipient is never sent anything but a release, and what it says of where the person is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from math import isnan
from typing import Any, Literal

import numpy as np

from dphmm.errors import InvalidInputError
from dphmm.release.trajectory import TimedRelease
from dphmm.serve.recipients import now
from dphmm.space.trajectory import LATEST_SECOND
from dphmm.tables import iso_time
from dphmm.tables.json_toml import parse_json
from dphmm.tables.table import ALIASES
from dphmm.tables.values import as_number, parse_number, since_epoch
from dphmm.writers.table import release_object

_MILLISECONDS_FROM = 10**11
"""Numbers from here up count milliseconds: as seconds they would lie beyond the year 5000."""

_MOST_FIXES = 5000
"""At most this many fixes of plain JSON are taken at once."""

LatLon = tuple[float, float]


@dataclass(frozen=True)
class Fix:
    """A true place. Never logged, stored or shown.

    Parameters
    ----------
    time
        ``datetime64[us]``, UTC.
    latitude, longitude
        WGS 84 degrees.
    accuracy_m
        The radius that its app says it is good to; None where it does not say.
    """

    time: np.datetime64
    latitude: float
    longitude: float
    accuracy_m: float | None = None

    def __repr__(self) -> str:
        """Without the place, so that no traceback and no log can hold it."""
        return "Fix(…)"


NotTaken = Literal["malformed", "no_zone", "encrypted"]
"""Why something that was posted is no place: its time has no zone, it is encrypted, or something else is wrong."""


class NoZone(ValueError):
    """A time without a zone, which may be any of two dozen."""


@dataclass(frozen=True)
class Received:
    """What the relay takes from a message.

    Parameters
    ----------
    fixes
        The places, in the message's order.
    not_taken
        Why each entry of the message that was no place was none.
    """

    fixes: tuple[Fix, ...] = ()
    not_taken: tuple[NotTaken, ...] = ()

    def __repr__(self) -> str:
        """Without the places."""
        return f"Received({len(self.fixes)} fixes, {len(self.not_taken)} others)"


def received(places: Iterable[Any], read: Callable[[Any], Fix]) -> Received:
    """Read every place of a message; what is none is noted, so that one of them holds up no other.

    Parameters
    ----------
    places
        The entries of a message.
    read
        Makes a fix of an entry; a ValueError, TypeError, KeyError, AttributeError or OverflowError means that the
        entry is none.

    Returns
    -------
    Received
        The fixes in the message's order, and why other entries are none.
    """
    fixes: list[Fix] = []
    others: list[NotTaken] = []
    for place in places:
        try:
            fixes.append(read(place))
        except NoZone:
            others.append("no_zone")
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            others.append("malformed")
    return Received(tuple(fixes), tuple(others))


def fix_of(time: Any, latitude: Any, longitude: Any, accuracy: Any = None) -> Fix:
    """A place out of the fields of a message.

    Parameters
    ----------
    time
        Seconds or milliseconds since 1970 as a number or a text, or ISO 8601 with a zone.
    latitude, longitude
        Degrees, as numbers or texts; some phones write decimal commas.
    accuracy
        Metres, as a number or a text; what is none, or not positive, counts as not said.

    Returns
    -------
    Fix
        The place, its time rounded to microseconds.

    Raises
    ------
    ValueError
        When one of them is malformed or not on the Earth. The error does not repeat it.
    """
    north, east = _degrees(latitude, 90), _degrees(longitude, 180)
    try:
        metres = parse_number(_with_point(accuracy), "an accuracy")
    except (ValueError, TypeError):
        metres = 0.0
    return Fix(np.datetime64(_microseconds(time), "us"), north, east, metres if metres > 0 else None)


def json_object(body: bytes) -> Mapping[str, Any]:
    """The object that a body is; an empty one where it is something else."""
    try:
        value = parse_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _with_point(value: Any) -> Any:
    """A number that is written with a decimal comma, with a point; coordinates have no thousands."""
    return value.replace(",", ".") if isinstance(value, str) and value.count(",") == 1 and "." not in value else value


def _degrees(value: Any, most: int) -> float:
    degrees = parse_number(_with_point(value), "a coordinate")
    if not abs(degrees) <= most:  # NaN compares false
        raise ValueError("a coordinate is not on the Earth")
    return degrees


def _microseconds(value: Any) -> int:
    if isinstance(value, str) and not value.strip().replace(".", "", 1).isdigit():
        moment = datetime.fromisoformat(value.strip())
        if moment.tzinfo is None:
            raise NoZone("a time has no zone")
        return since_epoch(moment)
    seconds = parse_number(value, "a time") if isinstance(value, str) else as_number(value, "a time")
    if seconds >= _MILLISECONDS_FROM:
        seconds /= 1000
    if not 0 <= seconds <= LATEST_SECOND:
        raise ValueError("a time is outside the range of dates")
    return round(seconds * 1_000_000)


def seconds_of(time: np.datetime64) -> int:
    """A moment in whole seconds since 1970."""
    return int(time.astype("datetime64[s]").astype(np.int64))


# ---- what phones send ------------------------------------------------------------------------------------------------


def read_owntracks(body: bytes) -> Received:
    """The location in a message of OwnTracks, if it holds one.

    Parameters
    ----------
    body
        The bytes of the message.

    Returns
    -------
    Received
        Its places; none where the message is of another kind.
    """
    message = json_object(body)
    if message.get("_type") == "encrypted":
        return Received(not_taken=("encrypted",))
    if message.get("_type") != "location":
        return Received()
    return received([message], lambda one: fix_of(one["tst"], one["lat"], one["lon"], one.get("acc")))


def read_overland(body: bytes) -> Received:
    """The points of a batch of Overland, and the current one.

    Parameters
    ----------
    body
        The bytes of the message.

    Returns
    -------
    Received
        Its places; none where the message is of another kind.
    """
    batch = json_object(body)
    locations = batch.get("locations")
    places = list(locations) if isinstance(locations, list) else []
    if isinstance(batch.get("current"), dict):
        places.append(batch["current"])
    return received(places, _overland_fix)


def _overland_fix(feature: Mapping[str, Any]) -> Fix:
    if feature["geometry"]["type"] != "Point":
        raise ValueError("a place is no point")
    longitude, latitude = feature["geometry"]["coordinates"][:2]
    about = feature["properties"]
    return fix_of(about["timestamp"], latitude, longitude, about.get("horizontal_accuracy"))


def read_osmand(fields: Mapping[str, str] | bytes) -> Received:
    """The point in a query or a form of the OsmAnd protocol, or in JSON as newer versions of Traccar's client post it.

    Parameters
    ----------
    fields
        Name → text; or the bytes of a body that is JSON.

    Returns
    -------
    Received
        Its place; malformed where a field is missing.
    """
    return read_traccar(fields) if isinstance(fields, bytes) else received([fields], _osmand_fix)


def _osmand_fix(fields: Mapping[str, str]) -> Fix:
    latitude, longitude = fields["location"].split(",") if "location" in fields else (fields["lat"], fields["lon"])
    return fix_of(fields["timestamp"], latitude, longitude, fields.get("accuracy"))


def read_traccar(body: bytes) -> Received:
    """The point, or points, of a JSON message of Traccar's client.

    Parameters
    ----------
    body
        The bytes of the message.

    Returns
    -------
    Received
        Its places; none where the message is of another kind.
    """
    location = json_object(body).get("location")
    return received(location if isinstance(location, list) else [location], _traccar_fix)


def _traccar_fix(location: Mapping[str, Any]) -> Fix:
    place = location["coords"]
    return fix_of(location["timestamp"], place["latitude"], place["longitude"], place.get("accuracy"))


def read_gpslogger(fields: Mapping[str, str]) -> Received:
    """The point in a query or a form of GPSLogger. Without a time it is taken as just now: the app sends at once.

    Parameters
    ----------
    fields
        Name → text.

    Returns
    -------
    Received
        Its place; malformed where a field is missing.
    """
    return received([fields], _gpslogger_fix)


def _gpslogger_fix(fields: Mapping[str, str]) -> Fix:
    time, latitude, longitude = (
        next((fields[key] for key in ALIASES[name] if fields.get(key)), None)
        for name in ("time", "latitude", "longitude")
    )
    accuracy = fields.get("acc") or fields.get("accuracy")
    return fix_of(now() if time is None else time, latitude, longitude, accuracy)


def read_home_assistant(body: bytes) -> Received:
    """The place of an ``update_location``; the app sends none of its time, so that it is taken as just now.

    Parameters
    ----------
    body
        The bytes of the message.

    Returns
    -------
    Received
        Its places; none where the message is of another kind.
    """
    message = json_object(body)
    if message.get("type") != "update_location":
        return Received()
    return received([message.get("data")], _home_assistant_fix)


def _home_assistant_fix(data: Mapping[str, Any]) -> Fix:
    latitude, longitude = data["gps"]
    return fix_of(now(), latitude, longitude, data.get("gps_accuracy"))


def read_plain(body: bytes) -> Received:
    """The fixes of a body of plain JSON.

    Parameters
    ----------
    body
        The bytes of the message.

    Returns
    -------
    Received
        Its places.

    Raises
    ------
    InvalidInputError
        When it is neither an object nor a list, or a fix is malformed: senders of this format want to be told.
    """
    try:
        value = parse_json(body)
    except ValueError:
        raise InvalidInputError("the body is no JSON; give one object, or a list of them") from None
    if isinstance(value, list) and len(value) > _MOST_FIXES:
        raise InvalidInputError(f"the body holds {len(value)} fixes; post at most {_MOST_FIXES} at once")
    found = received(value if isinstance(value, list) else [value], _plain_fix)
    if found.not_taken:
        raise InvalidInputError(
            f"{len(found.not_taken)} of the fixes are malformed; "
            "give each a time with its zone, a latitude and a longitude"
        )
    return found


def _plain_fix(fix: Mapping[str, Any]) -> Fix:
    if isinstance(fix["time"], str):
        return fix_of(fix["time"], fix["latitude"], fix["longitude"], fix.get("accuracy"))
    raise ValueError("a number does not say what it counts")


# ---- what recipients are sent ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """One message to a recipient, whatever its format.

    Parameters
    ----------
    user
        Whom it is about.
    second
        The end of the time step, in seconds since 1970.
    time
        The same as ISO 8601.
    latitude, longitude
        The best estimate given all releases: closer than the released place, at no further cost.
    radius_m
        Of a circle about the estimate that holds 90 % of moments, where the model knows it; otherwise how far the
        estimate is from the person, in expectation.
    row
        The release as the stream answers it.
    zone
        The zone that the estimate lies in, ``"away"`` for none; for recipients who are told that instead. None for
        others.
    last_known
        Of a prediction the second of the last release with a draw that the reader was told; None where there was none.
    """

    user: str
    second: int
    time: str
    latitude: float
    longitude: float
    radius_m: float
    row: dict[str, Any]
    zone: str | None = None
    last_known: int | None = None

    @property
    def is_prediction(self) -> bool:
        """Whether nothing was drawn at this moment, so that the estimate follows from releases before."""
        return not self.row["released"]

    @property
    def last_known_text(self) -> str:
        """When the person was last known, by this machine's clock: ``last known 01:40``; empty but for predictions."""
        if not self.is_prediction:
            return ""
        if self.last_known is None:
            return "not known yet"
        then, now = (datetime.fromtimestamp(one).astimezone() for one in (self.last_known, self.second))
        return f"last known {then:%H:%M}" if then.date() == now.date() else f"last known {then:%Y-%m-%d %H:%M}"

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Message:
        """What `to_json` wrote."""
        return cls(**parse_json(text))

    @classmethod
    def of_release(cls, release: TimedRelease) -> Message:
        """What a recipient without a precision is told of a release."""
        row: dict[str, Any] = release_object(release)
        estimate = release.estimate_latitude, release.estimate_longitude
        held = release.held_radius
        radius = round(1000 * (release.estimate_radius if isnan(held) else held), 1)
        return cls(release.user, seconds_of(release.time), row["time"], *estimate, radius, row)

    def of_part(self, epsilon: float, estimate: LatLon, radius_km: float, held_km: float | None = None) -> Message:
        """The same for a recipient who was not told all releases before: with nothing that follows from the others.

        Parameters
        ----------
        epsilon
            The budget of the release.
        estimate
            The best estimate from what they were told, degrees.
        radius_km
            How far it is from the person, in expectation, for a reader of that alone.
        held_km
            Of a circle about it that holds 90 % of moments; None where that is not known.
        """
        known_km = radius_km if held_km is None else held_km
        kept = {name: self.row[name] for name in ("released", "user", "time", "latitude", "longitude")}
        row = {
            **kept,
            "estimate_latitude": estimate[0],
            "estimate_longitude": estimate[1],
            "estimate_radius_m": 1000 * radius_km,
            **({} if held_km is None else {"radius_90_m": 1000 * held_km}),
            "epsilon": epsilon,
        }
        return replace(self, latitude=estimate[0], longitude=estimate[1], radius_m=round(1000 * known_km, 1), row=row)

    def known_at(self, second: int | None) -> Message:
        """The same of a prediction, with when the person was last known."""
        at = None if second is None else iso_time(np.datetime64(second, "s").astype("datetime64[us]"))
        return replace(self, last_known=second, row={**self.row, "last_known": at})

    @classmethod
    def of_true_place(cls, user: str, fix: Fix) -> Message:
        """A true place in the form of what recipients are told, for a server of the person's own."""
        time = iso_time(fix.time)
        row: dict[str, Any] = {"released": True, "true_place": True, "user": user, "time": time}
        row |= {"latitude": fix.latitude, "longitude": fix.longitude}
        return cls(user, seconds_of(fix.time), time, fix.latitude, fix.longitude, 0.0, row)


def owntracks_topic(user: str) -> str:
    """The MQTT topic under which OwnTracks' apps look for a person."""
    return f"owntracks/{user}/dphmm"


def zone_topic(user: str) -> str:
    """The MQTT topic of the name of the zone that a person's estimate lies in."""
    return f"dphmm/{user}/zone"


def owntracks_message(message: Message) -> dict[str, Any]:
    """What OwnTracks' apps show: the estimate, with its radius as accuracy.

    Of a prediction the time is when the person was last known, which the app shows. The message's own time is in the
    field that OwnTracks has for it.

    Parameters
    ----------
    message
        The message.

    Returns
    -------
    dict
        What is sent.
    """
    return {
        "_type": "location",
        "lat": message.latitude,
        "lon": message.longitude,
        "acc": message.radius_m,
        "tst": message.second if message.last_known is None else message.last_known,
        "created_at": message.second,
        "tid": message.user[-2:],
        "topic": owntracks_topic(message.user),
        "prediction": message.is_prediction,
    }


def overland_message(message: Message) -> dict[str, Any]:
    """A batch of Overland with one point: the estimate, with its radius as accuracy.

    Parameters
    ----------
    message
        The message.

    Returns
    -------
    dict
        What is sent.
    """
    properties = {
        "timestamp": message.time,
        "horizontal_accuracy": message.radius_m,
        "device_id": message.user,
        "prediction": message.is_prediction,
        "activity": message.last_known_text,
    }
    point = {"type": "Point", "coordinates": [message.longitude, message.latitude]}
    return {"locations": [{"type": "Feature", "geometry": point, "properties": properties}]}


def osmand_fields(message: Message) -> dict[str, str]:
    """A point in the OsmAnd protocol: the estimate, with its radius as accuracy.

    Parameters
    ----------
    message
        The message.

    Returns
    -------
    dict
        What is sent.
    """
    return {
        "id": message.user,
        "timestamp": str(message.second),
        "lat": f"{message.latitude:.7f}",
        "lon": f"{message.longitude:.7f}",
        "accuracy": f"{message.radius_m:.0f}",
        "valid": "false" if message.is_prediction else "true",
        "prediction": message.last_known_text,
    }


def home_assistant_fields(message: Message) -> dict[str, str]:
    """What the webhook of a GPSLogger device in Home Assistant takes: the estimate, with its radius as accuracy.

    Parameters
    ----------
    message
        The message.

    Returns
    -------
    dict
        What is sent.
    """
    return {
        "device": message.user,
        "latitude": f"{message.latitude:.7f}",
        "longitude": f"{message.longitude:.7f}",
        "accuracy": f"{message.radius_m:.0f}",
        "provider": "prediction" if message.is_prediction else "release",
        "activity": message.last_known_text,
    }


FORMATS: Mapping[str, tuple[str, Callable[[Message], dict[str, Any]]]] = {
    "owntracks": ("json", owntracks_message),
    "overland": ("json", overland_message),
    "webhook": ("json", lambda message: message.row),  # what the stream answers
    "traccar": ("data", osmand_fields),
    "home-assistant": ("data", home_assistant_fields),
}
"""Kind of recipient → whether it takes JSON or the data of a form, and what it is sent."""


def http_content(kind: str, message: Message) -> dict[str, Any]:
    """What a POST to a recipient holds, as the keyword of `httpx`; the name of the zone alone where one is told.

    Parameters
    ----------
    kind
        A key of `FORMATS`.
    message
        The message.

    Returns
    -------
    dict
        ``json`` or ``data``, and what it holds.
    """
    if message.zone is None:
        keyword, make = FORMATS[kind]
        return {keyword: make(message)}
    zone = {"user": message.user, "time": message.time, "zone": message.zone, "prediction": message.is_prediction}
    return {"json": zone}
