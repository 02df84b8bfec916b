"""What phones post at an MQTT broker: kept there until it is released, and nothing that the relay wrote itself."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from dphmm.errors import DataFileError, DphmmError, OutputError, SessionBusyError, SessionMismatchError, need
from dphmm.serve.config import Broker
from dphmm.serve.delivery import LONGEST_CONNECTION_WAIT_S, LOOK_AGAIN_S, Backoff, broker_address, reason
from dphmm.serve.message_formats import Received, owntracks_topic, read_owntracks, zone_topic

_LOG = logging.getLogger(__name__)
_NOT_NOW = (OutputError, SessionBusyError, SessionMismatchError, DataFileError)
"""What the store raises until somebody mends it: messages wait at the broker for that, however long it takes."""
_FOREVER_S, _ALL = 2**32 - 1, 2**16 - 1
"""How long the broker keeps the session, and how many messages it sends before the first is acknowledged.

With the 20 of its default, Mosquitto 2.0.11 sent the newest before others that it kept over a restart, and these came
too late to be released: of 5,331 messages 543 did so in a run of 48 restarts, and with all at once none of 2,724.
"""
_TRIES = 6
"""How often a message is tried that raises something else: it is set aside then, and must not hold up all others."""


class Listener:
    """Takes what phones post at a broker.

    The topic (``owntracks/USER/DEVICE``) says whose a message is. That USER wrote it is for the broker to see to: let
    its access list allow each account its own topics alone.

    The broker keeps the session of this client, whose name is always the same, so that what is posted while the relay
    or the connection is down comes then; and a message is acknowledged once what it holds is released, so that one that
    the store does not take now is not lost. It may come twice, and is then what it was. Retained messages are passed
    over, which say where somebody was at some time; so is what the relay itself publishes, at this broker or another.

    Parameters
    ----------
    broker
        The broker.
    store
        The relay's store, by which relays at one broker are told apart.
    users
        The people whose messages are taken; those of others are passed over.
    take
        Is given the user and what the message held.
    leads
        Whether this process is the one that listens, of all that share a store.
    """

    def __init__(
        self,
        broker: Broker,
        store: str,
        users: frozenset[str],
        take: Callable[[str, Received], Awaitable[None]],
        leads: Callable[[], Awaitable[bool]],
    ) -> None:
        self._mqtt = need("paho.mqtt.client", "serve")
        self._broker, self._users, self._take, self._leads = broker, users, take, leads
        self._own = {made(user) for user in users for made in (owntracks_topic, zone_topic)}
        digest = hashlib.sha256(f"{store} {broker.topic}".encode()).hexdigest()
        self._name = f"dphmm-{digest[:16]}"  # brokers of MQTT 3.1 take 23 characters
        self._messages: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._connection = 0
        self.is_connected: bool | None = None
        """Whether the broker is there; None where another process listens."""

    async def listen(self) -> None:
        """Listen for ever; what is not acknowledged at the end the broker keeps."""
        while True:
            try:
                if await self._leads():
                    client = self._client()
                    try:
                        await self._take_while_leading(client)
                    finally:
                        self.is_connected = None
                        client.disconnect()
                        await asyncio.to_thread(client.loop_stop)
            except DphmmError:  # the store is away: who leads is not known
                pass
            except Exception as problem:  # whatever it is, the relay goes on listening, and what it did not take comes
                _LOG.error("listening at the broker begins anew: %s", type(problem).__name__)
            await asyncio.sleep(LOOK_AGAIN_S)

    def _client(self) -> Any:
        """A client that connects, and again whenever the connection is lost, on a thread of its own."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        mqtt, broker, loop = self._mqtt, self._broker, asyncio.get_running_loop()
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=self._name, protocol=mqtt.MQTTv5, manual_ack=True
        )
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.secret)
        host, port, tls = broker_address(broker.url)
        if tls:
            client.tls_set()

        def connected(_: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
            if reason.is_failure:
                loop.call_soon_threadsafe(self._is_gone, f"it refuses: {reason}")
            else:
                loop.call_soon_threadsafe(self._is_there, client)

        client.on_connect = connected
        client.on_disconnect = lambda *_: loop.call_soon_threadsafe(self._is_gone, "the connection was lost")
        client.on_connect_fail = lambda *_: loop.call_soon_threadsafe(self._is_gone, "it cannot be reached")
        client.on_message = lambda _, __, message: loop.call_soon_threadsafe(self._queue, message)
        client.reconnect_delay_set(1, int(LONGEST_CONNECTION_WAIT_S))
        kept = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        kept.SessionExpiryInterval, kept.ReceiveMaximum = _FOREVER_S, _ALL
        client.connect_async(host, port, clean_start=False, properties=kept)
        self.is_connected = False
        client.loop_start()
        return client

    def _is_there(self, client: Any) -> None:
        self.is_connected = True
        self._connection += 1  # what came before and was not acknowledged comes again
        client.subscribe(self._broker.topic, qos=1)

    def _is_gone(self, why: str) -> None:
        if self.is_connected is not None:
            self.is_connected = False
            _LOG.warning("the broker is away: %s", why)

    def _queue(self, message: Any) -> None:
        self._messages.put_nowait((self._connection, message))

    async def _take_while_leading(self, client: Any) -> None:
        """Take one message after another for as long as this process leads."""
        while await self._leads():
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    connection, message = await self._messages.get()
            except TimeoutError:
                continue
            if connection != self._connection or not await self._taken(message, connection):
                continue
            if connection == self._connection:  # else it comes again, and is acknowledged then
                client.ack(message.mid, message.qos)

    async def _taken(self, message: Any, connection: int) -> bool:
        """Take a message, for as long as that takes; False where it will come again by another connection."""
        try:
            parts = message.topic.split("/")
        except UnicodeDecodeError:
            return True
        if message.retain or message.topic in self._own or len(parts) < 2 or parts[1] not in self._users:
            return True
        backoff, failures = Backoff(LONGEST_CONNECTION_WAIT_S), 0
        while connection == self._connection:
            try:
                await self._take(parts[1], read_owntracks(message.payload))
                return True
            except Exception as problem:
                failures += not isinstance(problem, _NOT_NOW)
                if failures == _TRIES:
                    _LOG.error("a message was not taken, and is set aside: %s", type(problem).__name__)
                    return True
                await backoff.failed(f"a message is not taken now: {reason(problem, *_NOT_NOW)}")
        return False
