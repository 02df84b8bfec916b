"""Overland: batches of GeoJSON points, which come again as a whole until they are answered by ``{"result": "ok"}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dphmm.serve.fix import Fix, Received, fix_of, json_object, received
from dphmm.serve.told import Told

ANSWER = '{"result":"ok"}'


def read(body: bytes) -> Received:
    """The points of a batch, and the current one."""
    batch = json_object(body) or {}
    locations = batch.get("locations")
    places = list(locations) if isinstance(locations, list) else []
    if isinstance(batch.get("current"), dict):
        places.append(batch["current"])
    return received(places, _fix)


def message(told: Told) -> dict[str, Any]:
    """A batch of one point: the estimate, with its radius as accuracy."""
    properties = {
        "timestamp": told.time,
        "horizontal_accuracy": told.radius_m,
        "device_id": told.user,
        **({"prediction": True} if told.is_prediction else {}),
    }
    point = {"type": "Point", "coordinates": [told.longitude, told.latitude]}
    return {"locations": [{"type": "Feature", "geometry": point, "properties": properties}]}


def _fix(feature: Mapping[str, Any]) -> Fix:
    if feature["geometry"]["type"] != "Point":
        raise ValueError("a place is no point")
    longitude, latitude = feature["geometry"]["coordinates"][:2]
    return fix_of(feature["properties"]["timestamp"], latitude, longitude)
