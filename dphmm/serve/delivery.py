"""Delivery to recipients by HTTP and MQTT: every release once each, in order, however often either side was away.

True places on their way to a server of the person's own, where the relay's file says so, are held in memory alone, for
as long as it takes to send them: the outbox of releases is on the disk, and nothing true may be there. So what cannot
be sent before the relay ends, or is more than some hundreds, is lost, oldest first; the phone is not asked again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx

from dphmm.errors import DphmmError, need
from dphmm.serve.apps import Fix, Message, Received, http_content, owntracks_message, owntracks_topic, read_owntracks
from dphmm.serve.config import Broker, Recipient
from dphmm.serve.sessions import Sessions

_FIRST_WAIT_S, _LONGEST_WAIT_S, _LONGEST_CONNECTION_WAIT_S, _LOOK_AGAIN_S = 1.0, 300.0, 60.0, 1.0
_TIMEOUT_S = 20.0
_LATER = frozenset({401, 403, 404, 405, 408, 425, 429})
"""Answers of a recipient who is set up wrongly or busy, and may take the same message later."""
_MOST_WAITING = 500
"""At most this many true places wait in memory to be sent."""
_LOG = logging.getLogger(__name__)


class Unreachable(Exception):
    """A recipient who did not take a message, and may take it later."""


class Refused(Exception):
    """A message that a recipient will never take."""


class Sender(Protocol):
    """The way to a recipient."""

    async def send(self, message: Message) -> None:
        """Send a message.

        Raises
        ------
        Unreachable, Refused
            When the recipient did not take it.
        """


@dataclass
class Deliveries:
    """Counts of messages to one recipient."""

    delivered: int = 0
    failed: int = 0
    refused: int = 0


class _Backoff:
    """Waits after failures, each time twice as long up to a bound; the first failure of a run is logged."""

    def __init__(self, longest: float) -> None:
        self._longest, self._wait = longest, _FIRST_WAIT_S

    def reset(self) -> None:
        """Begin again with the shortest wait: something succeeded."""
        self._wait = _FIRST_WAIT_S

    async def failed(self, said: str) -> None:
        """Wait after a failure."""
        if self._wait == _FIRST_WAIT_S:
            _LOG.warning("%s", said)
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))  # not all at once
        self._wait = min(2 * self._wait, self._longest)


def _reason(problem: Exception, *safe: type[Exception]) -> str:
    """What is logged of an error: of all but these kinds their name alone, as the text might hold a place."""
    return str(problem) if isinstance(problem, safe) else type(problem).__name__


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


@dataclass(frozen=True)
class _Line:
    """One person's releases on their way to one recipient."""

    recipient: Recipient
    sender: Sender
    user: str
    event: asyncio.Event


class Outbox:
    """Sends people's releases to recipients.

    A person's releases go to a recipient one after another. How far they came is written after each; what was
    released and not sent before a restart is sent after it. A message may be sent twice, where the answer to it or
    the note of it is lost; it is the same both times, for it is read from the record.

    Parameters
    ----------
    sessions
        Where the releases are.
    senders
        Recipient and the way to them, by name.
    users
        The people whose phones post.
    """

    def __init__(
        self, sessions: Sessions, senders: Mapping[str, tuple[Recipient, Sender]], users: tuple[str, ...]
    ) -> None:
        self._sessions = sessions
        self._lines = [
            _Line(recipient, sender, user, asyncio.Event())
            for recipient, sender in senders.values()
            for user in users
            if recipient.is_about(user)
        ]
        self.counts = {name: Deliveries() for name in senders}
        """Recipient → counts."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to send."""
        self._tasks = [asyncio.create_task(self._send_all(line)) for line in self._lines]

    def wake(self, user: str) -> None:
        """Say that a person has a new release."""
        for line in self._lines:
            if line.user == user:
                line.event.set()

    async def stop(self) -> None:
        """Send no more."""
        await cancel(self._tasks)

    async def _send_all(self, line: _Line) -> None:
        """Send one person's releases to one recipient, for ever."""
        name, backoff = line.recipient.name, _Backoff(_LONGEST_WAIT_S)
        while True:
            line.event.clear()
            try:
                sent = await self._send_next(line)
            except Exception as problem:  # whatever it is, it ends no line: the others, and this one, go on
                self.counts[name].failed += 1
                await backoff.failed(
                    f"recipient {name} was not sent a release: {_reason(problem, Unreachable, DphmmError)}"
                )
                continue
            backoff.reset()
            if not sent:
                with suppress(TimeoutError):  # other processes may release too where several share a store
                    async with asyncio.timeout(_LOOK_AGAIN_S if self._sessions.is_shared else None):
                        await line.event.wait()

    async def _send_next(self, line: _Line) -> bool:
        """Send the next release; False where there is none."""
        name = line.recipient.name
        found = await self._sessions.first_unsent(name, line.user)
        if found is None:
            return False
        count, message, paused = found
        if not paused:
            try:
                await line.sender.send(message)
                self.counts[name].delivered += 1
            except Refused as problem:
                self.counts[name].refused += 1
                _LOG.warning("recipient %s refuses a message for good: %s", name, problem)
        await self._sessions.set_sent(name, line.user, count)
        return True


class TruePlaces:
    """Passes places on to one recipient who is to have them as they are; what becomes of them is not counted.

    Parameters
    ----------
    recipient, sender
        The recipient and the way to them.
    is_paused
        Whether a person has paused the recipient.
    """

    def __init__(self, recipient: Recipient, sender: Sender, is_paused: Callable[[str], Awaitable[bool]]) -> None:
        self.recipient = recipient
        self._sender, self._is_paused = sender, is_paused
        self._waiting: deque[tuple[str, Fix]] = deque(maxlen=_MOST_WAITING)
        self._event = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to send."""
        self._tasks = [asyncio.create_task(self._send_all())]

    async def stop(self) -> None:
        """Send no more, and forget what was not sent."""
        self._waiting.clear()
        await cancel(self._tasks)

    async def take(self, user: str, fixes: Sequence[Fix]) -> None:
        """Pass a person's places on, unless the recipient is paused."""
        if self.recipient.is_about(user) and not self.recipient.paused and not await self._is_paused(user):
            self._waiting.extend((user, fix) for fix in fixes)
            self._event.set()

    async def _send_all(self) -> None:
        backoff = _Backoff(_LONGEST_CONNECTION_WAIT_S)
        while True:
            self._event.clear()
            if not self._waiting:
                await self._event.wait()
                continue
            user, fix = self._waiting.popleft()
            try:
                await self._sender.send(Message.of_true_place(user, fix))
                backoff.reset()
            except Refused:
                pass
            except Exception as problem:  # whatever it is, the next one goes on; nothing of it is logged but its kind
                if len(self._waiting) < _MOST_WAITING:
                    self._waiting.appendleft((user, fix))
                await backoff.failed(
                    f"recipient {self.recipient.name} was not sent a place: {_reason(problem, Unreachable)}"
                )


# ---- ways to recipients, and from phones -----------------------------------------------------------------------------


def sender_to(recipient: Recipient, client: httpx.AsyncClient) -> Sender:
    """The way to a recipient.

    Parameters
    ----------
    recipient
        The recipient.
    client
        The HTTP client that all recipients share.
    """
    return MqttSender(recipient) if recipient.kind == "mqtt" else HttpSender(recipient, client)


class HttpSender:
    """One POST for each message.

    Parameters
    ----------
    recipient
        The recipient.
    client
        The client that sends; it follows no redirects.
    """

    def __init__(self, recipient: Recipient, client: httpx.AsyncClient) -> None:
        self._recipient, self._client = recipient, client
        self._headers = recipient.sent_headers()

    async def send(self, message: Message) -> None:
        """As `Sender.send`."""
        kind, headers = self._recipient.kind, dict(self._headers)
        if kind == "owntracks":
            headers |= {"X-Limit-U": message.user, "X-Limit-D": "dphmm"}
        content = http_content(kind, message)
        try:
            answer = await self._client.post(self._recipient.url, headers=headers, timeout=_TIMEOUT_S, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise Unreachable(type(problem).__name__) from None
        if answer.is_success:
            return
        if 400 <= answer.status_code < 500 and answer.status_code not in _LATER:
            raise Refused(f"status {answer.status_code}")
        raise Unreachable(f"status {answer.status_code}")


class MqttSender:
    """One retained message on ``owntracks/USER/dphmm`` for each, where OwnTracks' apps look, at quality of service 1.

    Recipients of zones get their names alone, on ``dphmm/USER/zone``.

    Parameters
    ----------
    recipient
        The recipient, with the broker's URL; the user name and password among the headers may be ``env:NAME``.
    """

    def __init__(self, recipient: Recipient) -> None:
        self._mqtt = need("aiomqtt", "serve")
        self._recipient = recipient
        self._client: Any = None

    async def send(self, message: Message) -> None:
        """As `Sender.send`."""
        topic, body = owntracks_topic(message.user), json.dumps(owntracks_message(message))
        if message.zone is not None:
            topic, body = f"dphmm/{message.user}/zone", message.zone
        try:
            if self._client is None:
                account = self._recipient.sent_headers()
                url, name, password = self._recipient.url, account.get("username"), account.get("password")
                self._client = await broker_client(self._mqtt, url, name, password).__aenter__()
            await self._client.publish(topic, body, qos=1, retain=True, timeout=_TIMEOUT_S)
        except (self._mqtt.MqttError, OSError, TimeoutError) as problem:
            client, self._client = self._client, None
            if client is not None:
                with suppress(self._mqtt.MqttError):
                    await client.__aexit__(None, None, None)
            raise Unreachable(type(problem).__name__) from None


def broker_client(mqtt: Any, url: str, username: str | None, password: str | None) -> Any:
    """A client of the broker at ``mqtt://host:port`` or ``mqtts://host:port``, not connected yet."""
    parts = urlsplit(url)
    tls = mqtt.TLSParameters() if parts.scheme == "mqtts" else None
    port = parts.port or (8883 if tls else 1883)
    return mqtt.Client(parts.hostname, port, username=username, password=password, tls_params=tls)


async def listen(broker: Broker, users: frozenset[str], take: Callable[[str, Received], Awaitable[None]]) -> None:
    """Take what phones post, for ever; a broker that is away is waited for.

    The topic (``owntracks/USER/DEVICE``) says whose a message is. That USER wrote it is for the broker to see to: let
    its access list allow each account its own topics alone. A message of MQTT cannot be refused: one that the store
    does not take now is lost, and the log says so.

    Parameters
    ----------
    broker
        The broker.
    users
        The people whose messages are taken; those of others are passed over.
    take
        Is given the user and what the message held.
    """
    mqtt, backoff = need("aiomqtt", "serve"), _Backoff(_LONGEST_CONNECTION_WAIT_S)
    while True:
        try:
            async with broker_client(mqtt, broker.url, broker.username, broker.secret) as client:
                await client.subscribe(broker.topic, qos=1)
                backoff.reset()
                async for message in client.messages:
                    user = (*message.topic.value.split("/"), "")[1]
                    if user not in users or not isinstance(message.payload, bytes):
                        continue
                    try:
                        await take(user, read_owntracks(message.payload))
                    except DphmmError as problem:
                        _LOG.error("a message was not taken: %s", problem)
        except mqtt.MqttError as problem:
            await backoff.failed(f"the broker cannot be reached: {type(problem).__name__}")
