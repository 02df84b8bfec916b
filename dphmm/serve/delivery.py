"""Delivery to recipients, by POST or MQTT: every release once each, in order, however often either side was away.

A message that a recipient refuses, or answers with errors again and again while it takes the newest one, is set aside
and noted: it holds up none of those after it.

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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx

from dphmm.errors import DphmmError, need
from dphmm.serve.config import Recipient
from dphmm.serve.message_formats import (
    Fix,
    Message,
    http_content,
    owntracks_message,
    owntracks_topic,
    seconds_of,
    zone_topic,
)
from dphmm.serve.recipients import now
from dphmm.serve.sessions import Sessions

_FIRST_WAIT_S, _LONGEST_WAIT_S, LONGEST_CONNECTION_WAIT_S, LOOK_AGAIN_S = 1.0, 300.0, 60.0, 1.0
_TRIES = 6
"""So many errors in a row that a recipient answers one message with, and the newest one is tried."""
_AT_ONCE = 8
"""At most this many messages are on their way to one recipient, so that phones do not wait for those of a crowd."""
_MOST_WAITING = 500
"""At most this many true places wait in memory to be sent."""
_LOG = logging.getLogger(__name__)


# ---- ways to recipients ----------------------------------------------------------------------------------------------

_TIMEOUT_S = 20.0
_LATER = frozenset({401, 403, 404, 405, 408, 425, 429})
"""Answers of a recipient who is set up wrongly or busy, and may take the same message later."""


class Unreachable(Exception):
    """A recipient who did not take a message, and may take it later.

    Parameters
    ----------
    said
        What is said of it: never what the message holds.
    answered
        Whether the recipient is there, and answered that it did not take this message.
    """

    def __init__(self, said: str, answered: bool = False) -> None:
        super().__init__(said)
        self.answered = answered


class Refused(Exception):
    """A message that a recipient will never take."""


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
        """Send a message.

        Raises
        ------
        Unreachable, Refused
            When the recipient did not take it.
        """
        kind, url, headers = self._recipient.kind, self._recipient.url, dict(self._headers)
        content = http_content(kind, message)
        try:
            if kind == "owntracks" and message.user.isascii():
                headers |= {"X-Limit-U": message.user, "X-Limit-D": "dphmm"}
            elif kind == "owntracks":  # no header takes other scripts; the recorder takes both from a query too
                url = str(httpx.URL(url).copy_merge_params({"u": message.user, "d": "dphmm"}))
            answer = await self._client.post(url, headers=headers, timeout=_TIMEOUT_S, **content)
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise Unreachable(type(problem).__name__) from None
        if answer.is_success:
            return
        if 400 <= answer.status_code < 500 and answer.status_code not in _LATER:
            raise Refused(f"status {answer.status_code}")
        raise Unreachable(f"status {answer.status_code}", answered=True)


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
        """As `HttpSender.send`."""
        topic, body = owntracks_topic(message.user), json.dumps(owntracks_message(message))
        if message.zone is not None:
            topic, body = zone_topic(message.user), message.zone
        try:
            if self._client is None:
                account = self._recipient.sent_headers()
                host, port, tls = broker_address(self._recipient.url)
                client = self._mqtt.Client(
                    host,
                    port,
                    username=account.get("username"),
                    password=account.get("password"),
                    tls_params=self._mqtt.TLSParameters() if tls else None,
                )
                self._client = await client.__aenter__()
            await self._client.publish(topic, body, qos=1, retain=True, timeout=_TIMEOUT_S)
        except (self._mqtt.MqttError, OSError, TimeoutError) as problem:
            client, self._client = self._client, None
            if client is not None:
                with suppress(self._mqtt.MqttError):
                    await client.__aexit__(None, None, None)
            raise Unreachable(type(problem).__name__) from None


def broker_address(url: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is spoken, of ``mqtt://host:port`` or ``mqtts://host:port``."""
    parts = urlsplit(url)
    tls = parts.scheme == "mqtts"
    return parts.hostname or "", parts.port or (8883 if tls else 1883), tls


Sender = HttpSender | MqttSender
"""The way to a recipient."""


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


# ---- what is on its way ----------------------------------------------------------------------------------------------


@dataclass
class Deliveries:
    """Counts of messages to one recipient."""

    delivered: int = 0
    failed: int = 0
    set_aside: int = 0


class Backoff:
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


def reason(problem: Exception, *safe: type[Exception]) -> str:
    """What is logged of an error: of all but these kinds their name alone, as the text might hold a place."""
    return str(problem) if isinstance(problem, safe) else type(problem).__name__


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


@dataclass
class _Line:
    """One person's releases on their way to one recipient; since when the first one waits, and how often it failed."""

    recipient: Recipient
    sender: Sender
    gate: asyncio.Semaphore
    user: str
    event: asyncio.Event = field(default_factory=asyncio.Event)
    since: float | None = None
    errors: int = 0


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
        self,
        sessions: Sessions,
        senders: Mapping[str, tuple[Recipient, Sender]],
        users: tuple[str, ...],
    ) -> None:
        self._sessions = sessions
        self._lines = [
            _Line(recipient, sender, gate, user)
            for recipient, sender in senders.values()
            for gate in [asyncio.Semaphore(_AT_ONCE)]
            for user in users
            if recipient.is_about(user)
        ]
        self.counts = {name: Deliveries() for name in senders}
        """Recipient → counts."""

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """What sends, each for ever."""
        return [*map(self._send_all, self._lines), *([self._look()] if self._sessions.is_shared else [])]

    def wake(self, user: str) -> None:
        """Say that a person has a new release."""
        for line in self._lines:
            if line.user == user:
                line.event.set()

    def ages(self) -> dict[str, float]:
        """Recipient → for how many seconds the message that has waited longest was tried; 0 where none waits."""
        found = dict.fromkeys(self.counts, 0.0)
        for line in self._lines:
            if line.since is not None:
                found[line.recipient.name] = max(found[line.recipient.name], monotonic() - line.since)
        return found

    async def _send_all(self, line: _Line) -> None:
        """Send one person's releases to one recipient, for ever."""
        name, backoff = line.recipient.name, Backoff(_LONGEST_WAIT_S)
        while True:
            line.event.clear()
            try:
                async with line.gate:
                    more = await self._send_next(line)
            except Exception as problem:  # whatever it is, it ends no line: the others, and this one, go on
                self.counts[name].failed += 1
                await backoff.failed(
                    f"recipient {name} was not sent a release: {reason(problem, Unreachable, DphmmError)}"
                )
                continue
            backoff.reset()
            if not more:
                await line.event.wait()

    async def _look(self) -> None:
        """Look for what other processes release to the store, and whether it is now for this one to send."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            with suppress(DphmmError):  # a store that is away: the lines say so
                waiting = await self._sessions.run(self._sessions.waiting)
                for line in self._lines:
                    if (line.user, line.recipient.name) in waiting:
                        line.event.set()

    async def _send_next(self, line: _Line) -> bool:
        """Send the next release; whether there are more."""
        counts = self.counts[line.recipient.name]
        found = await self._sessions.run(self._sessions.first_unsent, line.recipient, line.user)
        if found is None:
            line.since = None
            return False
        count, message, more = found
        line.since = monotonic() if line.since is None else line.since
        said = ""
        try:
            await line.sender.send(message)
            counts.delivered += 1
        except Refused as problem:
            said = str(problem)
        except Unreachable as problem:
            line.errors = line.errors + 1 if problem.answered else 0
            if line.errors < _TRIES or not await self._newest_is_taken(line, count):
                raise
            said = str(problem)
        if said:
            counts.set_aside += 1
            _LOG.warning("recipient %s does not take a message, which is set aside: %s", line.recipient.name, said)
        await self._sessions.run(self._sessions.set_sent, line.recipient, line.user, count, said)
        line.since, line.errors = None, 0
        return more

    async def _newest_is_taken(self, line: _Line, count: int) -> bool:
        """Whether a recipient who answers one message with errors takes the newest: then it is that one's fault."""
        found = await self._sessions.run(self._sessions.last_unsent, line.recipient, line.user)
        if found is None or found[0] == count:
            return False
        try:
            await line.sender.send(found[1])
        except (Refused, Unreachable):
            return False
        return True


class TruePlaces:
    """Passes places on to one recipient who is to have them as they are; what becomes of them is not counted.

    Parameters
    ----------
    recipient, sender
        The recipient and the way to them.
    told_from
        From which second on the recipient is told of a person: places from before, and those that waited then, are
        not sent.
    """

    def __init__(self, recipient: Recipient, sender: Sender, told_from: Callable[[str], Awaitable[int]]) -> None:
        self.recipient = recipient
        self._sender, self._told_from = sender, told_from
        self._waiting: deque[tuple[str, Fix, int]] = deque(maxlen=_MOST_WAITING)
        self._event = asyncio.Event()

    def take(self, user: str, fixes: Sequence[Fix]) -> None:
        """Pass a person's places on."""
        if self.recipient.is_about(user):
            self._waiting.extend((user, fix, now()) for fix in fixes)
            self._event.set()

    async def send_all(self) -> None:
        """Send what waits, for ever."""
        backoff = Backoff(LONGEST_CONNECTION_WAIT_S)
        while True:
            self._event.clear()
            if not self._waiting:
                await self._event.wait()
                continue
            user, fix, since = self._waiting.popleft()
            try:
                if await self._told_from(user) <= min(since, seconds_of(fix.time)):
                    await self._sender.send(Message.of_true_place(user, fix))
                    backoff.reset()
            except Refused:
                pass
            except Exception as problem:  # whatever it is, the next one goes on; nothing of it is logged but its kind
                if len(self._waiting) < _MOST_WAITING:
                    self._waiting.appendleft((user, fix, since))
                await backoff.failed(
                    f"recipient {self.recipient.name} was not sent a place: {reason(problem, Unreachable)}"
                )
