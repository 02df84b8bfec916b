"""Home Assistant: what its phone app posts to a webhook, and what its own webhooks of GPS trackers take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dphmm.serve.fix import Fix, Received, fix_of, json_object, received
from dphmm.serve.told import Told

ANSWER = "{}"


def read(body: bytes) -> Received:
    """The place of an ``update_location``; the app sends none of its time, so that it is taken as just now."""
    message = json_object(body) or {}
    if message.get("type") != "update_location":
        return Received()
    return received([message.get("data")], _fix)


def fields(told: Told) -> dict[str, str]:
    """What the webhook of a GPSLogger device takes: the estimate, with its radius as accuracy."""
    return {
        "device": told.user,
        "latitude": f"{told.latitude:.7f}",
        "longitude": f"{told.longitude:.7f}",
        "accuracy": f"{told.radius_m:.0f}",
        **({"provider": "prediction"} if told.is_prediction else {}),
    }


def _fix(data: Mapping[str, Any]) -> Fix:
    latitude, longitude = data["gps"]
    return fix_of(int(np.datetime64("now", "s").astype(np.int64)), latitude, longitude)
