"""OwnTracks: what the app sends by HTTP or MQTT, and what it is sent to show other people.

Only messages whose ``_type`` is ``location`` say where the person is. Transitions, waypoints, dumps, cards, last wills
and encrypted messages hold nothing that goes on, and are answered as all others are: the app keeps and sends again
whatever is not answered by 2xx and a list, and one refused message has blocked its queue for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dphmm.serve.fix import Fix, Received, fix_of, json_object, received
from dphmm.serve.told import Told

ANSWER = "[]"
"""What the app expects: a list of messages for it."""


def read(body: bytes) -> Received:
    """The location in a message, if it holds one."""
    message = json_object(body)
    if message is None or message.get("_type") != "location":
        return Received()
    return received([message], _fix)


def topic_of(user: str) -> str:
    """The topic under which the app looks for a person."""
    return f"owntracks/{user}/dphmm"


def message(told: Told) -> dict[str, Any]:
    """What the app shows: the estimate, with its radius as accuracy."""
    return {
        "_type": "location",
        "lat": told.latitude,
        "lon": told.longitude,
        "acc": told.radius_m,
        "tst": told.second,
        "tid": told.user[-2:],
        "topic": topic_of(told.user),
        **({"prediction": True} if told.is_prediction else {}),
    }


def _fix(message: Mapping[str, Any]) -> Fix:
    return fix_of(message["tst"], message["lat"], message["lon"])
