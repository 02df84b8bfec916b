"""Phones that post to an MQTT broker, as OwnTracks does: one subscription for everybody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dphmm.errors import DphmmError, need
from dphmm.serve import owntracks
from dphmm.serve.config import Broker
from dphmm.serve.fix import Received
from dphmm.serve.senders import broker_client

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_LOG = logging.getLogger(__name__)


async def listen(broker: Broker, users: frozenset[str], take: Callable[[str, Received], Awaitable[None]]) -> None:
    """Take what phones post, for ever; a broker that is away is waited for.

    Whose a message is, its topic says (``owntracks/USER/DEVICE``). That USER wrote it is for the broker to see to: let
    its access list allow each account its own topics alone.

    Parameters
    ----------
    broker
        Where.
    users
        Whose messages are taken; those of others are passed over.
    take
        Is given the user and what goes on.
    """
    mqtt = need("aiomqtt", "serve")
    wait = _FIRST_WAIT_S
    while True:
        try:
            async with broker_client(mqtt, broker.url, broker.username, broker.secret) as client:
                await client.subscribe(broker.topic, qos=1)
                wait = _FIRST_WAIT_S
                async for message in client.messages:
                    user = _user(message.topic.value)
                    body = message.payload if isinstance(message.payload, bytes) else b""
                    if user in users:
                        await _taken(take, user, owntracks.read(body))
        except mqtt.MqttError as problem:
            if wait == _FIRST_WAIT_S:
                _LOG.warning("the broker cannot be reached: %s", type(problem).__name__)
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)


async def _taken(take: Callable[[str, Received], Awaitable[None]], user: str, received: Received) -> None:
    """A message of MQTT cannot be refused: one that the store does not take now is lost, and the log says so."""
    try:
        await take(user, received)
    except DphmmError as problem:
        _LOG.error("a message was not taken: %s", problem)


def _user(topic: str) -> str:
    parts = topic.split("/")
    return parts[1] if len(parts) >= 2 else ""
