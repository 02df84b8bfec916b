"""Traccar's clients: the OsmAnd protocol, one point in a query or a form, and the JSON of newer apps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dphmm.serve.fix import Fix, Received, fix_of, json_object, received
from dphmm.serve.told import Told

ANSWER = ""


def device_of(fields: Mapping[str, str]) -> str | None:
    """Who says to have sent a point: with us the device's token."""
    return fields.get("id") or fields.get("deviceid")


def read_fields(fields: Mapping[str, str]) -> Received:
    """The point in a query or a form."""
    return received([fields], _fix_of_fields)


def json_device_of(body: bytes) -> str | None:
    """Who says to have sent a JSON message."""
    device = (json_object(body) or {}).get("device_id")
    return device if isinstance(device, str) else None


def read(body: bytes) -> Received:
    """The point of a JSON message, or several."""
    location = (json_object(body) or {}).get("location")
    return received(location if isinstance(location, list) else [location], _fix_of_json)


def fields(told: Told) -> dict[str, str]:
    """A point in the OsmAnd protocol: the estimate, with its radius as accuracy."""
    return {
        "id": told.user,
        "timestamp": str(told.second),
        "lat": f"{told.latitude:.7f}",
        "lon": f"{told.longitude:.7f}",
        "accuracy": f"{told.radius_m:.0f}",
        **({"prediction": "true"} if told.is_prediction else {}),
    }


def _fix_of_fields(fields: Mapping[str, str]) -> Fix:
    both = fields["location"].split(",") if "location" in fields else [fields["lat"], fields["lon"]]
    latitude, longitude = both
    return fix_of(fields["timestamp"], latitude, longitude)


def _fix_of_json(location: Mapping[str, Any]) -> Fix:
    return fix_of(location["timestamp"], location["coords"]["latitude"], location["coords"]["longitude"])
