"""Messages to recipients by format.

They contain a release and what follows from releases, and nothing else.

The apps of OwnTracks, Overland and Traccar, and Home Assistant's GPS webhook, accept an estimate with a radius.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from math import isnan
from typing import Any

import numpy as np

from dphmm.release.trajectory_release import TimedRelease
from dphmm.serve.incoming_messages import Fix, to_seconds
from dphmm.tables import iso_time
from dphmm.tables.json_toml import parse_json
from dphmm.writers.release_table import DECIMALS, build_release_object, to_digits

LatLon = tuple[float, float]

# The relay's name where the apps' formats have that of a phone.
_DEVICE = "dphmm"

# Fields of a row that follow from the release alone, not from earlier ones.
_FIELDS_OF_RELEASE = (
    "released",
    "user",
    "time",
    "latitude",
    "longitude",
    "withheld",
    "x_km",
    "y_km",
    "epsilon",
    "last_known",
)
# Field of a row, figure of a belief, and factor from the unit of the figure to that of the field.
_FIELDS_OF_BELIEF = (
    ("estimate_error_m", "expected_estimate_error", 1000.0),
    ("calibrated_radius_90_m", "calibrated_radius_90", 1000.0),
    ("adversary_error_m", "adversary_error", 1000.0),
    ("adversary_max_posterior", "max_posterior_probability", 1.0),
)


@dataclass(frozen=True)
class Message:
    """One message to a recipient, independent of its format.

    Parameters
    ----------
    user : str
        The user.
    second : int
        End of the timestep, in seconds since 1970.
    time : str
        End of the timestep as ISO 8601.
    latitude, longitude : float
        Estimate from all releases. It is usually closer than the released location, at no additional epsilon.
    radius_m : float or None
        Calibrated 90 % radius around the estimate if the model has one, otherwise the expected error of the estimate.
        For a true location, the accuracy that the phone posted; None if it posted none.
    row : dict
        The release, as the stream returns it, and ``reason`` and ``last_known``. Its keys are always the same. Fields
        that do not apply, or that `for_partial_recipient` omits, are None.
    zone : str, optional
        Zone that contains the estimate, ``"away"`` if no zone does. None except for recipients of zones.
    last_known : int, optional
        For a prediction, the second of the last release with a draw that the recipient was sent. None if there was
        none.
    is_valid : bool, default True
        For a true location, whether the phone posted it as valid.
    exact_posterior : float, optional
        If the release most probably comes from an unprotected state, the probability that it does. It is for the user's
        page and is not sent. None otherwise, and with a precision.
    """

    user: str
    second: int
    time: str
    latitude: float
    longitude: float
    radius_m: float | None
    row: dict[str, Any]
    zone: str | None = None
    last_known: int | None = None
    is_valid: bool = True
    exact_posterior: float | None = None

    @property
    def is_true_location(self) -> bool:
        """Whether the location is a true one, not an estimate."""
        return "true_location" in self.row

    @property
    def is_prediction(self) -> bool:
        """Whether nothing was drawn, so that the estimate follows from earlier releases."""
        return not self.row["released"]

    @property
    def last_known_text(self) -> str:
        """Time of the last release that the recipient was sent. Empty without prediction."""
        if not self.is_prediction:
            return ""
        if self.last_known is None:
            return "from the model alone"
        then, now = (datetime.fromtimestamp(second, UTC) for second in (self.last_known, self.second))
        form = "%H:%M" if then.date() == now.date() else "%Y-%m-%d %H:%M"
        return f"last known {then:{form}} UTC"

    def to_json(self) -> str:
        """Encode the message as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Message:
        """Decode a message encoded by `to_json`."""
        return cls(**parse_json(text))

    @classmethod
    def from_release(cls, release: TimedRelease) -> Message:
        """Create the message of a release for a recipient without a precision."""
        row: dict[str, Any] = {"released": True, "reason": None} | build_release_object(release)
        row["last_known"] = row["time"] if row["released"] else None
        estimate = release.estimate_latitude, release.estimate_longitude
        calibrated_radius = release.calibrated_radius_90
        radius = round(1000 * (release.expected_estimate_error if isnan(calibrated_radius) else calibrated_radius), 1)
        exact_posterior = release.record.component_posterior if release.record.is_unprotected else None
        second = to_seconds(release.time)
        return cls(release.user, second, row["time"], *estimate, radius, row, exact_posterior=exact_posterior)

    def for_partial_recipient(self, estimate: LatLon, figures: Mapping[str, float]) -> Message:
        """Return this message for a recipient that was not sent all earlier releases.

        The result has the same keys. Its fields are the release itself and figures of the recipient's own belief, which
        follows from the releases that it was sent and their noise. The noise can depend on other releases; see
        `dphmm.serve.recipient_tables`. All other fields are None, because they can reveal more about those.

        Parameters
        ----------
        estimate : tuple of float
            Estimate from the releases that the recipient was sent, degrees.
        figures : mapping
            ``expected_estimate_error`` of this estimate, and possibly ``calibrated_radius_90``, ``adversary_error`` and
            ``max_posterior_probability``, and for the page ``component_posterior`` and ``is_unprotected``. Lengths are
            kilometres.
        """
        fields = {name: self.row[name] for name in _FIELDS_OF_RELEASE}
        fields |= {
            "estimate_latitude": round(estimate[0], DECIMALS),
            "estimate_longitude": round(estimate[1], DECIMALS),
        }
        for name, figure, scale in _FIELDS_OF_BELIEF:
            fields[name] = to_digits(scale * figures[figure]) if figure in figures else None
        known_km = figures.get("calibrated_radius_90", figures["expected_estimate_error"])
        radius_m = round(1000 * known_km, 1)
        return replace(
            self,
            latitude=estimate[0],
            longitude=estimate[1],
            radius_m=radius_m,
            row=dict.fromkeys(self.row) | fields,
            exact_posterior=figures["component_posterior"] if figures.get("is_unprotected") else None,
        )

    def with_last_known(self, second: int | None) -> Message:
        """Return this prediction with the second of the last release with a draw."""
        at = None if second is None else iso_time(np.datetime64(second, "s").astype("datetime64[us]"))
        return replace(self, last_known=second, row={**self.row, "last_known": at})

    @classmethod
    def from_true_location(cls, user: str, fix: Fix) -> Message:
        """Create the message of a true location, for a server of the user."""
        time = iso_time(fix.time)
        row: dict[str, Any] = {"released": True, "true_location": True, "user": user, "time": time}
        row |= {"latitude": fix.latitude, "longitude": fix.longitude, "valid": fix.is_valid}
        if fix.accuracy_m is not None:
            row["accuracy"] = fix.accuracy_m
        second = to_seconds(fix.time)
        return cls(user, second, time, fix.latitude, fix.longitude, fix.accuracy_m, row, is_valid=fix.is_valid)


def get_location_topic(user: str, recipient: str) -> str:
    """Return the MQTT topic of a user's estimates for a recipient.

    OwnTracks' apps expect a user there. Recipients at one broker have different topics. Otherwise one with a precision
    would receive the messages of one without.
    """
    return f"owntracks/{user}/{_DEVICE}-{recipient}"


def get_zone_topic(user: str, recipient: str) -> str:
    """Return the MQTT topic of the zone that contains a user's estimate for a recipient."""
    return f"{_DEVICE}/{user}/{_DEVICE}-{recipient}"


def is_relay_topic(topic: str) -> bool:
    """Return whether only relays publish on an MQTT topic."""
    return any(level.split("-")[0] == _DEVICE for level in topic.split("/")[2:3])


def build_owntracks_message(message: Message) -> dict[str, Any]:
    """Build a message for OwnTracks: the estimate, with its radius as accuracy.

    Without a radius, the optional accuracy is omitted. For a prediction, ``tst`` is the time at which the user was last
    known, because the app shows it. The time of the message is in ``created_at``.

    Parameters
    ----------
    message : Message
        The message.

    Returns
    -------
    dict
        Content that is sent.
    """
    return {
        "_type": "location",
        "lat": message.latitude,
        "lon": message.longitude,
        **({} if message.radius_m is None else {"acc": message.radius_m}),
        "tst": message.second if message.last_known is None else message.last_known,
        "created_at": message.second,
        "tid": message.user[-2:],
        "topic": f"owntracks/{message.user}/{_DEVICE}",
        "prediction": message.is_prediction,
    }


def build_overland_message(message: Message) -> dict[str, Any]:
    """Build an Overland batch with one point: the estimate, with its radius as accuracy.

    Parameters
    ----------
    message : Message
        The message.

    Returns
    -------
    dict
        Content that is sent.
    """
    properties = {
        "timestamp": message.time,
        **({} if message.radius_m is None else {"horizontal_accuracy": message.radius_m}),
        **({"valid": message.is_valid} if message.is_true_location else {}),
        "device_id": message.user,
        "prediction": message.is_prediction,
        "activity": message.last_known_text,
    }
    point = {"type": "Point", "coordinates": [message.longitude, message.latitude]}
    return {"locations": [{"type": "Feature", "geometry": point, "properties": properties}]}


def build_osmand_fields(message: Message) -> dict[str, str]:
    """Build a point in the OsmAnd protocol: the estimate, with its radius as accuracy.

    Parameters
    ----------
    message : Message
        The message.

    Returns
    -------
    dict
        Content that is sent.
    """
    return {
        "id": message.user,
        "timestamp": str(message.second),
        "lat": f"{message.latitude:.7f}",
        "lon": f"{message.longitude:.7f}",
        **_format_accuracy(message),
        "valid": "true" if message.is_valid and not message.is_prediction else "false",
        "prediction": message.last_known_text,
    }


def build_home_assistant_fields(message: Message) -> dict[str, str]:
    """Build the fields of a GPSLogger webhook in Home Assistant.

    The location is the estimate, with its radius as accuracy.

    Parameters
    ----------
    message : Message
        The message.

    Returns
    -------
    dict
        Content that is sent.
    """
    provider = "prediction" if message.is_prediction else "true location" if message.is_true_location else "release"
    return {
        "device": message.user,
        "latitude": f"{message.latitude:.7f}",
        "longitude": f"{message.longitude:.7f}",
        **_format_accuracy(message),
        "provider": provider,
        "activity": message.last_known_text,
    }


def _format_accuracy(message: Message) -> dict[str, str]:
    """Return the field of the accuracy, which is optional in both protocols."""
    if message.radius_m is None:
        return {}
    return {"accuracy": str(message.radius_m) if message.is_true_location else f"{message.radius_m:.0f}"}


# Kind of recipient → whether it accepts JSON or form data, and the function that builds it.
FORMATS: Mapping[str, tuple[str, Callable[[Message], dict[str, Any]]]] = {
    "owntracks": ("json", build_owntracks_message),
    "overland": ("json", build_overland_message),
    "webhook": ("json", lambda message: message.row),  # as the stream returns it
    "traccar": ("data", build_osmand_fields),
    "home-assistant": ("data", build_home_assistant_fields),
}


def build_http_content(kind: str, message: Message) -> dict[str, Any]:
    """Build the content of a POST as a keyword of `httpx`.

    Recipients of zones are sent the name of the zone.

    Parameters
    ----------
    kind : str
        A key of `FORMATS`.
    message : Message
        The message.

    Returns
    -------
    dict
        ``json`` or ``data``, and its content.
    """
    if message.zone is None:
        keyword, make = FORMATS[kind]
        return {keyword: make(message)}
    zone = {"user": message.user, "time": message.time, "zone": message.zone, "prediction": message.is_prediction}
    return {"json": zone}
