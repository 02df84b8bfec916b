"""Delivery of releases to recipients by POST or MQTT.

Releases are delivered in order and once each, across outages of either side.

A message that a recipient refuses is set aside and recorded. So is one that it repeatedly answers with errors while it
accepts the newest message. Messages that are set aside do not delay later ones.

True locations for a server of the user, if the relay's file requests them, are kept in memory only until they are sent.
The outbox of releases is on disk, where true locations must not be stored. Locations that cannot be sent before the
relay ends, or that exceed some hundreds, are lost, oldest first. The phone is not asked to send them again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx

from dphmm.errors import DphmmError, import_library
from dphmm.serve.clock import get_current_second
from dphmm.serve.config import Recipient
from dphmm.serve.incoming_messages import Fix, to_seconds
from dphmm.serve.metrics import DELIVERED, FAILED, SET_ASIDE, Metrics
from dphmm.serve.outgoing_messages import (
    Message,
    build_http_content,
    build_owntracks_message,
    get_location_topic,
    get_zone_topic,
)
from dphmm.serve.recipient_tables import Lease
from dphmm.serve.sessions import Sessions

_FIRST_WAIT_S = 1.0
_MAX_WAIT_S = 300.0
MAX_RECONNECT_WAIT_S = 60.0
POLL_INTERVAL_S = 1.0
# Tasks are cancelled this many times, so that a relay ends within `_NUM_CANCELLATIONS * _CANCELLATION_TIMEOUT_S`.
_NUM_CANCELLATIONS = 6
_CANCELLATION_TIMEOUT_S = 0.5
# After this many consecutive errors for one message, the newest message is tried.
_MAX_ATTEMPTS = 6
# Bounds the load of one recipient, so that phones do not wait for the messages of many users.
_MAX_CONCURRENT_MESSAGES = 8
# Leases of one recipient by one process. More than are sent concurrently, so that the store is not searched for each.
_MAX_LEASES = 32
_MAX_WOKEN = 100  # users per statement
_RETRY_MARGIN_S = 0.01  # for a process to be later than the end of a wait in the store
_MAX_DOUBLINGS = 20
_MAX_WAITING = 500  # true locations in memory
_LOG = logging.getLogger(__name__)
# By default aiomqtt warns at each failed attempt to connect, although the first failure is logged here.
_MQTT_LOG = logging.getLogger(f"{__name__}.mqtt")
_MQTT_LOG.setLevel(logging.ERROR)


# ---- senders ---------------------------------------------------------------------------------------------------------

# Deadline of a message: from its start to the status of the answer, however slowly a recipient answers.
_TIMEOUT_S = 20.0
# Deadline of a message with the connection and the discarded answer. A lease with less time left is not used.
_SEND_DEADLINE_S = 30.0
# The rest of an answer is discarded, so that the connection can be used again. If it is longer or slower than this, the
# connection is closed instead. The outcome of the message follows from the status alone.
_MAX_ANSWER_BYTES = 1 << 16
# Deadline of a broker's answer to a connection. The keep-alive time also limits TLS handshakes.
_CONNECT_TIMEOUT_S = 10.0
_KEEPALIVE_S = 15
_CLOSE_TIMEOUT_S = 1.0
_ANSWER_TIMEOUT_S = 2.0
# Answers of a recipient that is misconfigured or busy and may accept the same message later.
_RETRY_STATUSES = frozenset({401, 403, 404, 405, 408, 425, 429})


class UnreachableError(Exception):
    """A recipient did not accept a message and may accept it later.

    Parameters
    ----------
    reason : str
        Reason, without the content of the message.
    answered : bool
        Whether the recipient answered that it did not accept the message.
    """

    def __init__(self, reason: str, answered: bool = False) -> None:
        super().__init__(reason)
        self.answered = answered


class RefusedError(Exception):
    """A recipient will never accept a message."""


class HttpSender:
    """Sends each message by one POST.

    Parameters
    ----------
    recipient : Recipient
        The recipient.
    client : httpx.AsyncClient
        Client of this recipient alone, which follows no redirects.
    """

    def __init__(self, recipient: Recipient, client: httpx.AsyncClient) -> None:
        self._recipient = recipient
        self._client = client
        # Answers are never decompressed: one megabyte can decompress to a gigabyte.
        self._headers = {"Accept-Encoding": "identity"} | recipient.resolve_headers()

    async def send(self, message: Message) -> None:
        """Send a message.

        Raises
        ------
        UnreachableError, RefusedError
            If the recipient did not accept it, or sent no status in time.
        """
        kind = self._recipient.kind
        url = self._recipient.url
        headers = dict(self._headers)
        content = build_http_content(kind, message)
        try:
            if kind == "owntracks" and message.user.isascii() and message.user == message.user.strip():
                headers |= {"X-Limit-U": message.user, "X-Limit-D": "dphmm"}
            elif kind == "owntracks":
                # Headers are limited to ASCII without outer spaces. The recorder accepts both fields in the query.
                url = str(httpx.URL(url).copy_merge_params({"u": message.user, "d": "dphmm"}))
            request = self._client.build_request("POST", url, headers=headers, timeout=_TIMEOUT_S, **content)
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await self._client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as problem:
            raise UnreachableError(type(problem).__name__) from None
        await _discard(answer)
        if answer.is_success:
            return
        if 400 <= answer.status_code < 500 and answer.status_code not in _RETRY_STATUSES:
            raise RefusedError(f"status {answer.status_code}")
        raise UnreachableError(f"status {answer.status_code}", answered=True)

    async def close(self) -> None:
        """Close all connections to the recipient."""
        await self._client.aclose()


async def _discard(answer: httpx.Response) -> None:
    """Discard the body of an answer as it is transferred, and close the answer."""
    size = 0
    with suppress(httpx.HTTPError, httpx.StreamError, TimeoutError):
        async with aclosing(answer), asyncio.timeout(_ANSWER_TIMEOUT_S):
            async for part in answer.aiter_raw():
                size += len(part)
                if size > _MAX_ANSWER_BYTES:
                    return


class MqttConnection:
    """A connection to a broker, shared by recipients with the same address and account.

    It is opened by the first message and again after any failure. There is at most one at a time.

    Parameters
    ----------
    url : str
        ``mqtt://host:port`` or ``mqtts://host:port``.
    username, password : str, optional
        Account at the broker.
    """

    def __init__(self, url: str, username: str | None, password: str | None) -> None:
        self._mqtt = import_library("aiomqtt", "serve")
        self._url = url
        self._account = {"username": username, "password": password}
        self._lock = asyncio.Lock()
        self._client: Any = None
        self._closing: set[asyncio.Task[None]] = set()

    async def publish(self, topic: str, body: str) -> None:
        """Publish a message, retained and with QoS 1.

        Raises
        ------
        UnreachableError
            If the broker did not acknowledge it in time.
        """
        client = None
        try:
            async with self._lock:
                if self._client is None:
                    self._client = await self._open()
                client = self._client
            await client.publish(topic, body, qos=1, retain=True, timeout=_TIMEOUT_S)
        except (self._mqtt.MqttError, OSError, TimeoutError) as problem:
            if client is not None and client is self._client:
                self._client = None
                self._abandon(client)
            # The texts of these errors are fixed, and contain no message.
            reason = f" {problem}" if isinstance(problem, self._mqtt.MqttCodeError) else ""
            raise UnreachableError(f"{type(problem).__name__}{reason}") from None

    async def close(self) -> None:
        """Close the connection, but do not wait for a broker that does not answer."""
        client = self._client
        self._client = None
        if client is not None:
            self._abandon(client)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_TIMEOUT_S)

    async def _open(self) -> Any:
        host, port, tls = parse_broker_address(self._url)
        client = self._mqtt.Client(
            host,
            port,
            **self._account,
            tls_params=self._mqtt.TLSParameters() if tls else None,
            keepalive=_KEEPALIVE_S,
            timeout=_CONNECT_TIMEOUT_S,
            logger=_MQTT_LOG,
        )
        connecting = asyncio.create_task(client.__aenter__())
        try:
            # aiomqtt logs an error for a client whose attempt to connect was cancelled. It ends by its timeout.
            return await asyncio.shield(connecting)
        except BaseException:  # a cancellation must not leave an open connection, either
            self._abandon(client, connecting)
            raise

    def _abandon(self, client: Any, connecting: asyncio.Task[Any] | None = None) -> None:
        """Close a connection in the background, after an unfinished attempt to open it."""

        async def close() -> None:
            if connecting is not None:
                with suppress(self._mqtt.MqttError, OSError, TimeoutError):
                    await connecting
            with suppress(self._mqtt.MqttError, OSError, TimeoutError):
                await client.__aexit__(None, None, None)

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class MqttSender:
    """Publishes each message at an MQTT broker, retained and with QoS 1.

    The topic is ``owntracks/USER/dphmm-RECIPIENT``, where OwnTracks' apps expect a user. For recipients of zones it
    publishes the name of the zone on ``dphmm/USER/dphmm-RECIPIENT``.

    Parameters
    ----------
    connection : MqttConnection
        Connection to the recipient's broker.
    recipient : str
        Name of the recipient.
    """

    def __init__(self, connection: MqttConnection, recipient: str) -> None:
        self.connection = connection
        self._recipient = recipient

    async def send(self, message: Message) -> None:
        """Publish a message. Raises the errors of `HttpSender.send`."""
        if message.zone is not None:
            await self.connection.publish(get_zone_topic(message.user, self._recipient), message.zone)
        else:
            topic = get_location_topic(message.user, self._recipient)
            await self.connection.publish(topic, json.dumps({**build_owntracks_message(message), "topic": topic}))


def parse_broker_address(url: str) -> tuple[str, int, bool]:
    """Return host, port and use of TLS of ``mqtt://host:port`` or ``mqtts://host:port``."""
    parts = urlsplit(url)
    tls = parts.scheme == "mqtts"
    return parts.hostname or "", parts.port or (8883 if tls else 1883), tls


# A sender to a recipient.
Sender = HttpSender | MqttSender


class Senders(Mapping[str, tuple[Recipient, Sender]]):
    """Senders to the present recipients: name → recipient and sender.

    Each recipient by HTTP has its own connections. A recipient that holds them therefore takes none from others.
    Recipients at one broker share a connection.
    """

    def __init__(self) -> None:
        self._senders: dict[str, tuple[Recipient, Sender]] = {}
        self._connections: dict[tuple[str, str | None, str | None], MqttConnection] = {}
        self._certificates: ssl.SSLContext | None = None

    def __getitem__(self, name: str) -> tuple[Recipient, Sender]:
        return self._senders[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._senders)

    def __len__(self) -> int:
        return len(self._senders)

    async def set_recipients(self, recipients: Iterable[Recipient]) -> None:
        """Open the senders to new and changed recipients, and close those to earlier ones."""
        present = {recipient.name: recipient for recipient in recipients}
        earlier = self._senders
        kept = {name: entry for name, entry in earlier.items() if present.get(name) == entry[0]}
        self._senders = {
            name: kept[name] if name in kept else (recipient, self._open(recipient))
            for name, recipient in present.items()
        }
        used = {sender.connection for _, sender in self._senders.values() if isinstance(sender, MqttSender)}
        for name, (_, sender) in earlier.items():
            if name not in kept and isinstance(sender, HttpSender):
                await sender.close()
        for broker, connection in list(self._connections.items()):
            if connection not in used:
                del self._connections[broker]
                await connection.close()

    def _open(self, recipient: Recipient) -> Sender:
        if recipient.kind == "mqtt":
            account = recipient.resolve_headers()
            broker = recipient.url, account.get("username"), account.get("password")
            if broker not in self._connections:
                self._connections[broker] = MqttConnection(*broker)
            return MqttSender(self._connections[broker], recipient.name)
        if self._certificates is None:
            self._certificates = httpx.create_ssl_context()  # shared, because loading them takes long
        return HttpSender(recipient, httpx.AsyncClient(follow_redirects=False, verify=self._certificates))


@asynccontextmanager
async def open_senders(recipients: Iterable[Recipient] = ()) -> AsyncIterator[Senders]:
    """Yield the senders to recipients, and close them at the end.

    Parameters
    ----------
    recipients : iterable of Recipient
        The recipients, which `Senders.set_recipients` can change.
    """
    senders = Senders()
    try:
        await senders.set_recipients(recipients)
        yield senders
    finally:
        await senders.set_recipients(())


# ---- queues ----------------------------------------------------------------------------------------------------------


class Backoff:
    """Waits after failures, doubling up to a maximum. The first failure of a series is logged."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._wait = _FIRST_WAIT_S

    def reset(self) -> None:
        """Reset to the shortest wait after a success."""
        self._wait = _FIRST_WAIT_S

    async def wait(self, warning: str) -> None:
        """Log the first failure of a series, and wait."""
        if self._wait == _FIRST_WAIT_S:
            _LOG.warning("%s", warning)
        await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))  # jitter spreads simultaneous retries
        self._wait = min(2 * self._wait, self._max_wait_s)


def describe_error(problem: Exception, *safe: type[Exception]) -> str:
    """Describe an error for the log.

    Only the type is returned unless it is among the safe ones, because the text could contain a location.
    """
    return str(problem) if isinstance(problem, safe) else type(problem).__name__


async def cancel_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended, but for a limited time.

    A task can lose a cancellation: in Python 3.11 `asyncio.wait_for` does, if what it waits for ends at the same time.
    Therefore tasks are cancelled again until they end.
    """
    remaining = set(tasks)
    for _ in range(_NUM_CANCELLATIONS):
        if not remaining:
            return
        for task in remaining:
            task.cancel()
        _, remaining = await asyncio.wait(remaining, timeout=_CANCELLATION_TIMEOUT_S)
    if remaining:
        _LOG.error("%d senders did not end in time", len(remaining))


class _ChangedError(Exception):
    """A recipient was removed, or another has its name."""


class Outbox:
    """Sends users' releases to recipients.

    Several processes share the work: a process leases the releases of a user to a recipient for a short time, and then
    sends them one after another. The progress is stored after each, and sending resumes there after a restart or the
    death of a process. A message may be sent twice if the answer or the stored progress is lost. Both copies are
    identical, because the message is read from the record.

    Parameters
    ----------
    sessions : Sessions
        Sessions with the releases.
    senders : Senders
        Senders to the recipients, which may change.
    metrics : Metrics
        Metrics in which messages are counted.
    """

    def __init__(self, sessions: Sessions, senders: Senders, metrics: Metrics) -> None:
        self._sessions = sessions
        self._metrics = metrics
        self._senders = senders
        self._gates = defaultdict[str, asyncio.Semaphore](partial(asyncio.Semaphore, _MAX_CONCURRENT_MESSAGES))
        self._active: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._num_active: Counter[str] = Counter()
        self._saturated: set[str] = set()
        self._woken: set[str] = set()
        self._next_poll = 0.0
        self._event = asyncio.Event()
        self._ages: dict[str, float] = {}
        self.update()

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """Tasks that send, which end after `send_all` if they are cancelled."""
        return tuple(self._active.values())

    def update(self) -> None:
        """Apply a change of the recipients."""
        for name in self._senders:
            self._metrics.add_recipient(name)
        self._next_poll = 0.0
        self._event.set()

    def wake(self, user: str) -> None:
        """Send the releases of a user now."""
        self._woken.add(user)
        self._event.set()

    async def get_ages(self, is_store_available: bool) -> dict[str, float]:
        """Return the age of the oldest waiting message by recipient, in seconds.

        Without the store these are the last known ones.
        """
        if is_store_available:
            with suppress(DphmmError):
                self._ages = await self._sessions.run(self._sessions.get_ages)
        waiting = {name: age for name, age in self._ages.items() if age}  # also for recipients without a sender now
        return dict.fromkeys(self._senders, 0.0) | waiting

    async def send_all(self) -> None:
        """Send releases until cancelled."""
        backoff = Backoff(MAX_RECONNECT_WAIT_S)
        while True:
            self._event.clear()
            try:
                await self._claim_due()
                backoff.reset()
            except Exception as problem:  # no error may end this loop
                self._next_poll = 0.0
                await backoff.wait(f"releases are not sent now: {describe_error(problem, DphmmError)}")
                continue
            if not self._woken:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_poll - monotonic()):
                        await self._event.wait()

    async def _claim_due(self) -> None:
        """Lease what woken users have, or sometimes what all users have.

        The latter includes releases of other processes, and of processes that have died. It takes longer, so that the
        processes together do it once a second. The clock is kept as often.
        """
        if monotonic() >= self._next_poll:
            with suppress(DphmmError):  # it does not concern what is sent, and the next poll tries again
                await self._sessions.run(self._sessions.keep_clock)
            num_processes = await self._sessions.run(self._sessions.database.count_processes)
            self._next_poll = monotonic() + POLL_INTERVAL_S * num_processes
            self._woken.clear()
            self._saturated.clear()
            await self._claim()
        elif self._woken:
            await self._claim([self._woken.pop() for _ in range(min(len(self._woken), _MAX_WOKEN))])

    async def _claim(self, users: Collection[str] = ()) -> None:
        """Lease releases, and begin to send them."""
        busy = {key for key, count in self._num_active.items() if count >= _MAX_LEASES // 2}
        keys = {recipient.key for recipient, _ in self._senders.values()} - busy
        claimed = await self._sessions.run(self._sessions.claim_deliveries, _MAX_LEASES, keys, users)
        for recipient, lease in claimed:
            pair = lease.key, lease.session
            task = asyncio.create_task(self._send_leased(recipient, lease, self._active.get(pair)))
            self._active[pair] = task
            self._num_active[lease.key] += 1
            task.add_done_callback(partial(self._remove, pair))
        counts = Counter(lease.key for _, lease in claimed)
        self._saturated.update(busy, (key for key, count in counts.items() if count >= _MAX_LEASES))

    def _remove(self, pair: tuple[str, int], task: asyncio.Task[None]) -> None:
        """Remove a task that has ended. Lease more if the recipient has more."""
        if self._active.get(pair) is task:
            del self._active[pair]
        key, _ = pair
        self._num_active[key] -= 1
        if self._num_active[key] < _MAX_LEASES // 2 and key in self._saturated:
            self._next_poll = 0.0
            self._event.set()
        if not self._num_active[key]:
            del self._num_active[key]

    async def _send_leased(self, recipient: Recipient, lease: Lease, previous: asyncio.Task[None] | None) -> None:
        """Send one user's releases to one recipient until there are no more or one fails."""
        if previous is not None:
            await asyncio.wait([previous])
        name = recipient.name
        try:
            more = True
            while more:
                async with self._gates[name]:
                    if lease.until - monotonic() < _SEND_DEADLINE_S:
                        return  # too late to begin; any process can lease it again
                    more = await self._send_next(recipient, lease)
        except _ChangedError:
            return
        except Exception as problem:  # it is tried again
            self._metrics.messages.labels(name, FAILED).inc()
            wait_s = min(_FIRST_WAIT_S * 2.0 ** min(lease.failures, _MAX_DOUBLINGS), _MAX_WAIT_S)
            wait_s *= random.uniform(0.5, 1.0)  # jitter spreads simultaneous retries
            if lease.failures == 0:
                reason = describe_error(problem, UnreachableError, DphmmError)
                _LOG.warning("recipient %s was not sent a release: %s", name, reason)
            lease.failures += 1
            with suppress(DphmmError):  # without the store the lease ends by itself
                await self._sessions.run(self._sessions.defer, lease, wait_s)
            asyncio.get_running_loop().call_later(wait_s + _RETRY_MARGIN_S, self.wake, lease.user)

    async def _send_next(self, recipient: Recipient, lease: Lease) -> bool:
        """Send the next release and return whether there are more."""
        name = recipient.name
        unsent = await self._sessions.run(self._sessions.find_first_unsent, recipient, lease)
        if unsent is None:
            return False
        count, message = unsent
        reason = ""
        try:
            with self._metrics.message_seconds.labels(name).time():
                await self._send(recipient, message)
        except RefusedError as problem:
            reason = str(problem)
        except UnreachableError as problem:
            lease.errors = lease.errors + 1 if problem.answered else 0
            if lease.errors < _MAX_ATTEMPTS or not await self._accepts_newest(recipient, lease, count):
                raise
            reason = await self._send_again(recipient, lease, message)
        if reason:
            self._metrics.messages.labels(name, SET_ASIDE).inc()
            _LOG.warning("recipient %s did not accept a message, which is set aside: %s", name, reason)
        else:
            self._metrics.messages.labels(name, DELIVERED).inc()
        return await self._sessions.run(self._sessions.set_num_sent, lease, count, reason)

    async def _send(self, recipient: Recipient, message: Message) -> None:
        """Send a message within the time of a lease.

        Raises
        ------
        _ChangedError
            If the recipient was removed or changed meanwhile. One of the same name must not get its messages, which can
            be more precise.
        """
        present, sender = self._senders.get(recipient.name, (None, None))
        if sender is None or present != recipient:
            raise _ChangedError
        try:
            async with asyncio.timeout(_SEND_DEADLINE_S):
                await sender.send(message)
        except TimeoutError:
            raise UnreachableError("TimeoutError") from None

    async def _accepts_newest(self, recipient: Recipient, lease: Lease, count: int) -> bool:
        """Return whether a recipient that answers one message with errors accepts the newest one."""
        if lease.until - monotonic() < _SEND_DEADLINE_S:
            return False
        newest = await self._sessions.run(self._sessions.find_last_unsent, recipient, lease)
        if newest is None or newest[0] == count:
            return False
        try:
            await self._send(recipient, newest[1])
        except (RefusedError, UnreachableError):
            return False
        return True

    async def _send_again(self, recipient: Recipient, lease: Lease, message: Message) -> str:
        """Send a message again after the newest one was accepted. Return why it was not accepted.

        An outage can end between the two, and a message that failed because of it must not be set aside.
        """
        if lease.until - monotonic() < _SEND_DEADLINE_S:
            raise UnreachableError("no time left to send it again")
        try:
            await self._send(recipient, message)
        except RefusedError as problem:
            return str(problem)
        except UnreachableError as problem:
            if not problem.answered:
                raise
            return str(problem)
        return ""


class TrueLocationForwarder:
    """Forwards true locations to one recipient that is configured for them.

    Their outcomes are not counted.

    Parameters
    ----------
    recipient, sender
        The recipient and its sender.
    get_sending_start : callable
        Returns the second from which the recipient is sent a user's locations. Earlier locations, and those that
        were waiting at that second, are not sent.
    """

    def __init__(
        self, recipient: Recipient, sender: Sender, get_sending_start: Callable[[str], Awaitable[int]]
    ) -> None:
        self.recipient = recipient
        self._sender = sender
        self._get_sending_start = get_sending_start
        self._waiting: deque[tuple[str, Fix, int]] = deque(maxlen=_MAX_WAITING)
        self._event = asyncio.Event()

    def take(self, user: str, fixes: Sequence[Fix]) -> None:
        """Enqueue a user's locations."""
        if self.recipient.has_user(user):
            self._waiting.extend((user, fix, get_current_second()) for fix in fixes)
            self._event.set()

    async def send_all(self) -> None:
        """Send waiting locations. Never returns."""
        backoff = Backoff(MAX_RECONNECT_WAIT_S)
        while True:
            self._event.clear()
            if not self._waiting:
                await self._event.wait()
                continue
            user, fix, since = self._waiting.popleft()
            try:
                if await self._get_sending_start(user) <= min(since, to_seconds(fix.time)):
                    await self._sender.send(Message.from_true_location(user, fix))
                    backoff.reset()
            except RefusedError:
                pass
            except Exception as problem:  # no error may end this loop; its text is not logged
                if len(self._waiting) < _MAX_WAITING:
                    self._waiting.appendleft((user, fix, since))
                reason = describe_error(problem, UnreachableError)
                await backoff.wait(f"recipient {self.recipient.name} was not sent a location: {reason}")
