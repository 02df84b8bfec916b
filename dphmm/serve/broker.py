"""Messages that phones post at an MQTT broker, which keeps them until they are released."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from dphmm.errors import DataFileError, DphmmError, OutputError, SessionBusyError, SessionMismatchError, import_library
from dphmm.release.database_backends import Database, PostgresDatabase
from dphmm.serve.config import Broker, get_mqtt_name, make_user_topic
from dphmm.serve.delivery import MAX_RECONNECT_WAIT_S, POLL_INTERVAL_S, Backoff, describe_error, parse_broker_address
from dphmm.serve.devices_and_recipients import Source
from dphmm.serve.incoming_messages import Received, read_owntracks
from dphmm.serve.outgoing_messages import is_relay_topic

_LOG = logging.getLogger(__name__)
# Errors of the store. Messages wait at the broker until the store works again, however long it takes.
_STORE_ERRORS = (OutputError, SessionBusyError, SessionMismatchError, DataFileError)
# The broker deletes a session, and the true locations in it, when no relay has used it for this time. A relay with
# another topic, or with a file instead of a database, does not use the earlier sessions. One that was off for longer
# waits for `dphmm serve confirm-clock` anyway.
_SESSION_EXPIRY_S = 30 * 86400
# Number of messages that the broker sends before the first is acknowledged. With its default of 20, Mosquitto 2.0.11
# sent the newest message before others that it had kept over a restart, and these then were too late to be released:
# 543 of 5,331 messages in a run of 48 restarts, and none of 2,724 with the maximum.
_RECEIVE_MAXIMUM = 2**16 - 1
# The broker drops larger packets instead of sending them. A message of OwnTracks has less than a kilobyte. Payloads of
# brokers that ignore the limit are not parsed, because parsing takes about a second per megabyte.
_MAX_PACKET_BYTES = 1 << 16
_SESSION_TAKEN_OVER = 0x8E  # reason code of MQTT 5
# Mosquitto 2.0.11 closes the connection without this code. Two relays with one session then close each other's
# connection as often as they reconnect, which these limits detect.
_SHORT_CONNECTION_S = 10.0
_MAX_SHORT_CONNECTIONS = 3
_TAKEN_OVER_S = 600.0  # time for which a lost session is reported
# After this many attempts with other errors a message is set aside, because it must not delay all others.
_MAX_ATTEMPTS = 6
# Number of parts into which the users are divided for listening. At most this many processes listen.
NUM_SHARES = 16
_MAX_TOPICS_PER_PACKET = 500


def get_share(user: str) -> int:
    """Return the share of a user, a number below `NUM_SHARES`."""
    return hashlib.sha256(user.encode()).digest()[0] % NUM_SHARES


def _make_client_id(store: str, share: int | None) -> str:
    """Return the name of a session at a broker. MQTT 3.1 limits it to 23 characters.

    The first share has the name of a session of all users, of which it takes the messages that were kept before shares
    were introduced.
    """
    digest = hashlib.sha256(store.encode()).hexdigest()
    if not share:
        return f"dphmm-{digest[:16]}"
    # The name of the first share can end like that of another one; the two would then take one session from each other.
    suffix = f"{share:02x}" if digest[14:16] != f"{share:02x}" else f"x{share:x}"
    return f"dphmm-{digest[:14]}{suffix}"


class Shares:
    """Divides the users among the processes that listen at one broker.

    Each of `NUM_SHARES` shares has a session at the broker, and one process at a time listens in it: the one that holds
    an advisory lock of the database. A user's messages therefore stay in order, and wait at the broker while no process
    listens. Shared subscriptions of MQTT would send the messages of one user to several processes. The last of them
    would sometimes be released first, and the others would then be too late.

    Parameters
    ----------
    database : PostgresDatabase
        Database that the processes share.
    """

    def __init__(self, database: Database | PostgresDatabase) -> None:
        self._database = database
        self._held: dict[int, int] = {}
        self._num_holds = 0
        self._leaving: set[int] = set()
        self._num_connections = 0

    def get_hold(self, share: int) -> int:
        """Return a positive number if this process has to listen to a share, and 0 otherwise.

        The number is another one after the share was lost and taken again.
        """
        return self._held.get(share, 0)

    def is_leaving(self, share: int) -> bool:
        """Return whether this process has to end listening to a share."""
        return share in self._leaving

    def is_empty(self) -> bool:
        """Return whether this process holds no share."""
        return not self._held

    def balance(self) -> None:
        """Take free shares up to this process's part, and begin to leave those beyond it.

        A process that dies or loses its connection to the database loses all its shares.

        Raises
        ------
        DphmmError
            If the database cannot be reached. After any error this process holds no share.
        """
        try:
            num_processes = self._database.count_processes()
            if self._num_connections != self._database.num_connections:
                self._lose_all()
                self._num_connections = self._database.num_connections
            part = -(-NUM_SHARES // num_processes)
            for share in sorted(self._held)[part:]:
                del self._held[share]
                self._leaving.add(share)
            for share in random.sample(range(NUM_SHARES), NUM_SHARES):
                if len(self._held) >= part:
                    break
                if share not in self._held.keys() | self._leaving and self._database.try_lock(f"share {share}"):
                    self._num_holds += 1
                    self._held[share] = self._num_holds
        except Exception:  # after any error the held locks are unknown
            self._lose_all()
            raise

    def confirm(self, share: int, hold: int) -> bool:
        """Return whether the database confirms that this process still has a hold of `get_hold`."""
        with suppress(DphmmError):
            self.balance()
        return self.get_hold(share) == hold

    def _lose_all(self) -> None:
        self._held.clear()
        self._leaving.clear()

    def leave(self, share: int) -> None:
        """Let another process take a share, once this process does not listen to it any longer."""
        if share in self._leaving:
            self._database.unlock(f"share {share}")
            self._leaving.discard(share)


class Listener:
    """Receives the messages that phones post at a broker.

    The topic (``owntracks/USER/DEVICE``) determines the user of a message. The broker must ensure that USER wrote it:
    its access list should allow each account its own topics only.

    The client identifier is constant, and the broker keeps its session for 30 days without a connection. Messages that
    are posted while the relay or the connection is down therefore arrive later. A message is acknowledged once its
    content is released. It is not lost if the store cannot accept it, and a repeated delivery has no further effect.
    Retained messages are ignored, because they can be old. Messages that the relay itself publishes, at this broker or
    another, and those of more than 64 kB are ignored, too.

    Parameters
    ----------
    broker : Broker
        The broker.
    identity : str
        Name of the relay's store, which distinguishes several relays at one broker. See `RecipientTables.get_identity`.
    users : frozenset of str
        Users of accepted messages. Other messages are ignored.
    take : callable
        Receives the source and the content of a message.
    get_hold : callable
        Returns a positive number if this process, of all with this store, has to listen, and 0 otherwise. See
        `Shares.get_hold`.
    share : int, optional
        Number of the users' share to which this listener subscribes; all messages by default. See `Shares`.
    confirm : callable, optional
        Returns whether this process had to listen since `get_hold` returned a number, as the database states now.
        Without the answer, a process that has lost its lock would take the session at the broker from its successor.
        None if there is one process.
    """

    def __init__(
        self,
        broker: Broker,
        identity: str,
        users: frozenset[str],
        take: Callable[[Source, Received], Awaitable[None]],
        get_hold: Callable[[], int] = lambda: 1,
        share: int | None = None,
        confirm: Callable[[int], Awaitable[bool]] | None = None,
    ) -> None:
        self._confirm = confirm
        self._mqtt = import_library("paho.mqtt.client", "serve")
        self._broker = broker
        self._users = users
        self._take = take
        self._get_hold = get_hold
        self._share = share
        self._client: Any = None
        self._client_id = _make_client_id(f"{identity} {broker.topic}", share)
        self._messages: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._connection = 0
        # Whether the broker is connected and sends messages; None if another process listens.
        self.is_connected: bool | None = False if get_hold() else None
        self._is_open = False  # whether the broker has accepted the connection
        self._unconfirmed: set[int | None] = set()  # numbers of subscriptions
        self._retry: asyncio.TimerHandle | None = None
        self._is_ignored_logged = False
        self._taken_over_at: float | None = None
        self._has_lost_connection = False
        self._has_lost_session = False
        self._is_loss_logged = False
        self._connected_at = 0.0
        self._num_short_connections = 0

    @property
    def is_taken_over(self) -> bool:
        """Whether another relay recently took over the session at the broker.

        Messages can be lost then.
        """
        return self._taken_over_at is not None and monotonic() - self._taken_over_at < _TAKEN_OVER_S

    async def listen(self) -> None:
        """Listen without end. The broker keeps messages that are not acknowledged at the end."""
        while True:
            try:
                if hold := self._get_hold():
                    client = self._client = self._make_client()
                    try:
                        await self._take_while_leading(client)
                    finally:
                        self._client = None
                        self._is_open = False
                        # After an error or a lost connection this process still has to listen.
                        self.is_connected = False if self._get_hold() else None
                        client.disconnect()  # its thread then ends; it must not delay the end of this process
                    if self._has_lost_connection and self._confirm is not None and not await self._confirm(hold):
                        self._num_short_connections = 0  # a process with this store has taken the share
                        self.is_connected = None
                    elif self._has_lost_session:
                        self._report_takeover()
                        # Without a wait, two relays would take it from each other in turn.
                        await asyncio.sleep(MAX_RECONNECT_WAIT_S)
                else:
                    self.is_connected = None
            except Exception as problem:  # no error may end this loop; unacknowledged messages come again
                _LOG.error("listening at the broker restarts: %s", type(problem).__name__)
            await asyncio.sleep(POLL_INTERVAL_S)

    def _make_client(self) -> Any:
        """Create a client of one connection, which a separate thread tries to open."""
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        mqtt = self._mqtt
        broker = self._broker
        loop = asyncio.get_running_loop()
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=self._client_id, protocol=mqtt.MQTTv5, manual_ack=True
        )
        if broker.username is not None:
            client.username_pw_set(broker.username, broker.resolved_password)
        host, port, tls = parse_broker_address(broker.url)
        if tls:
            client.tls_set()

        is_established = threading.Event()

        def call(function: Callable[..., None], *arguments: Any) -> None:
            with suppress(RuntimeError):  # the relay has ended before the client's thread
                loop.call_soon_threadsafe(function, *arguments)

        # These functions refer to the client by their argument only. Its sockets are then closed without a garbage
        # collection, because paho closes them when the client is deleted.
        def handle_connection(client: Any, _: Any, __: Any, reason: Any, ___: Any) -> None:
            if reason.is_failure:
                call(self._handle_disconnection, f"refused: {reason}")
            else:
                is_established.set()
                call(self._handle_connection, client)

        client.on_connect = handle_connection

        def handle_disconnection(client: Any, _: Any, __: Any, reason: Any, ___: Any) -> None:
            if not is_established.is_set():  # it was refused, and waits longer for every attempt
                return
            client.loop_stop()  # otherwise it would reconnect; after `disconnect`, which paho then forgets, too
            call(self._handle_connection_loss, client, reason.value == _SESSION_TAKEN_OVER)

        client.on_disconnect = handle_disconnection
        client.on_connect_fail = lambda *_: call(self._handle_disconnection, "unreachable")
        client.on_message = lambda client, _, message: call(self._enqueue, client, message)
        client.on_subscribe = lambda client, _, mid, reasons, __: call(self._handle_subscription, client, mid, reasons)
        client.reconnect_delay_set(1, int(MAX_RECONNECT_WAIT_S))
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # untyped in paho-mqtt
        properties.SessionExpiryInterval = _SESSION_EXPIRY_S
        properties.ReceiveMaximum = _RECEIVE_MAXIMUM
        properties.MaximumPacketSize = _MAX_PACKET_BYTES
        self._has_lost_connection = self._has_lost_session = False
        client.connect_async(host, port, clean_start=False, properties=properties)
        self.is_connected = False
        client.loop_start()
        return client

    def _handle_connection(self, client: Any) -> None:
        if client is not self._client:  # it was connecting when this process ended it
            client.disconnect()
            return
        self._is_open = True
        self._is_loss_logged = False
        self._connected_at = monotonic()
        self._connection += 1  # unacknowledged messages of earlier connections come again
        _LOG.info("the session at the broker is %s", self._client_id)
        self._subscribe_to_all()
        if self._share is not None:
            client.unsubscribe(self._broker.topic)

    def _subscribe_to_all(self) -> None:
        """Subscribe to the messages of all users of this share."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        client = self._client
        if client is None or not self._is_open:
            return
        self._unconfirmed.clear()
        if self._share is None:
            self._unconfirmed.add(client.subscribe(self._broker.topic, qos=1)[1])
        else:
            self._subscribe(client, self._users)
        self.is_connected = not self._unconfirmed  # a share can be without users

    def _handle_subscription(self, client: Any, number: int, reasons: Iterable[Any]) -> None:
        if client is not self._client or number not in self._unconfirmed:
            return
        refusals = [reason for reason in reasons if reason.is_failure]
        if not refusals:
            self._unconfirmed.discard(number)
            self.is_connected = not self._unconfirmed
            return
        self.is_connected = False
        if self._retry is not None:  # another subscription was refused, too
            return
        if not self._is_loss_logged:
            _LOG.error(
                "the broker refuses the subscription to %s (%s); allow the relay's account to read this topic",
                self._broker.topic,
                refusals[0],
            )
        self._is_loss_logged = True
        # A broker with a new access list does not close connections. Subscriptions that it accepted are repeated, too.
        self._retry = asyncio.get_running_loop().call_later(MAX_RECONNECT_WAIT_S, self._subscribe_to_all)

    def _subscribe(self, client: Any, users: Iterable[str], ends: bool = False) -> None:
        """Subscribe to the users of this share among these, or end their subscriptions."""
        topics = [
            topic
            for user in users
            if get_share(user) == self._share
            for topic in [make_user_topic(self._broker.topic, user)]
            if topic is not None
        ]
        for start in range(0, len(topics), _MAX_TOPICS_PER_PACKET):
            part = topics[start : start + _MAX_TOPICS_PER_PACKET]
            if ends:
                client.unsubscribe(part)
            else:
                self._unconfirmed.add(client.subscribe([(topic, 1) for topic in part])[1])

    def set_users(self, users: frozenset[str]) -> None:
        """Set the users of accepted messages."""
        earlier, self._users = self._users, users
        if self._share is not None and self._is_open:
            self._subscribe(self._client, users - earlier)
            self._subscribe(self._client, earlier - users, ends=True)

    def _handle_connection_loss(self, client: Any, is_taken_over: bool) -> None:
        if client is not self._client:  # an earlier one, which this process has ended
            return
        is_short = self._is_open and monotonic() - self._connected_at < _SHORT_CONNECTION_S
        self._is_open = False
        self._num_short_connections = self._num_short_connections + 1 if is_short else 0
        self._connection += 1  # unacknowledged messages come again
        self._has_lost_connection = True
        self._has_lost_session = is_taken_over or self._num_short_connections >= _MAX_SHORT_CONNECTIONS
        if self._has_lost_session:
            self.is_connected = False
        else:
            self._handle_disconnection("connection lost")

    def _handle_disconnection(self, why: str) -> None:
        if self.is_connected is not None:
            self.is_connected = False
            if not self._is_loss_logged:
                _LOG.warning("the broker is not connected: %s", why)
            self._is_loss_logged = True

    def _report_takeover(self) -> None:
        self._num_short_connections = 0
        self._taken_over_at = monotonic()
        _LOG.error(
            "the session at the broker is taken over, as by another relay with a copy of this store, so that messages "
            "can be lost; stop one of the relays"
        )

    def _enqueue(self, client: Any, message: Any) -> None:
        if client is self._client:
            self._messages.put_nowait((self._connection, message))

    async def _take_while_leading(self, client: Any) -> None:
        """Process one message after another while this process is the leader."""
        while not self._has_lost_connection and self._get_hold():
            try:
                async with asyncio.timeout(POLL_INTERVAL_S):
                    connection, message = await self._messages.get()
            except TimeoutError:
                continue
            if connection != self._connection or not await self._try_take(message, connection):
                continue
            if connection == self._connection:  # otherwise it comes again and is acknowledged then
                client.ack(message.mid, message.qos)

    async def _try_take(self, message: Any, connection: int) -> bool:
        """Process a message with retries. Return False if it will come again."""
        try:
            parts = message.topic.split("/")
        except UnicodeDecodeError:
            return True
        if message.retain or len(parts) < 2 or parts[1] not in self._users:
            return True
        if is_relay_topic(message.topic):
            if not self._is_ignored_logged:
                self._is_ignored_logged = True
                _LOG.info("messages of devices called dphmm are ignored, because relays publish on their topics")
            return True
        if len(message.payload) > _MAX_PACKET_BYTES:
            _LOG.warning("a message of %d bytes is ignored; the maximum is %d", len(message.payload), _MAX_PACKET_BYTES)
            return True
        source = Source(parts[1], get_mqtt_name(parts[2] if len(parts) > 2 else ""))
        backoff = Backoff(MAX_RECONNECT_WAIT_S)
        failures = 0
        while connection == self._connection:
            try:
                await self._take(source, read_owntracks(message.payload))
                return True
            except Exception as problem:  # an unexpected error is retried, too
                failures += not isinstance(problem, _STORE_ERRORS)
                if failures == _MAX_ATTEMPTS:
                    _LOG.error("a message was not accepted and is set aside: %s", type(problem).__name__)
                    return True
                await backoff.wait(f"a message is not accepted now: {describe_error(problem, *_STORE_ERRORS)}")
        return False


class SharedListener:
    """Listens to the shares of this process. See `Shares`.

    Parameters
    ----------
    broker, identity, users, take
        See `Listener`.
    shares : Shares
        Shares of this process.
    run : callable
        Runs a function on the thread of the database; see `dphmm.serve.sessions.Sessions.run`.
    """

    def __init__(
        self,
        broker: Broker,
        identity: str,
        users: frozenset[str],
        take: Callable[[Source, Received], Awaitable[None]],
        shares: Shares,
        run: Callable[..., Awaitable[Any]],
    ) -> None:
        self._shares = shares
        self._is_balanced = False
        self._run = run
        self._listeners = [
            Listener(
                broker,
                identity,
                users,
                take,
                partial(shares.get_hold, share),
                share,
                partial(run, shares.confirm, share),
            )
            for share in range(NUM_SHARES)
        ]

    def set_users(self, users: frozenset[str]) -> None:
        """Set the users of accepted messages."""
        for listener in self._listeners:
            listener.set_users(users)

    @property
    def is_connected(self) -> bool | None:
        """Whether the sessions of all shares are connected. None if others have all shares."""
        if self._shares.is_empty():
            return None if self._is_balanced else False
        return all(
            listener.is_connected for share, listener in enumerate(self._listeners) if self._shares.get_hold(share)
        )

    @property
    def is_taken_over(self) -> bool:
        """Whether another relay recently took over a session. See `Listener`."""
        return any(listener.is_taken_over for listener in self._listeners)

    async def listen(self) -> None:
        """Listen until cancelled."""
        async with asyncio.TaskGroup() as group:
            for listener in self._listeners:
                group.create_task(listener.listen())
            while True:
                try:
                    await self._run(self._shares.balance)
                    for share, listener in enumerate(self._listeners):
                        if listener.is_connected is None and self._shares.is_leaving(share):
                            await self._run(self._shares.leave, share)
                    self._is_balanced = True
                except Exception as problem:  # no error may end this loop; the messages wait at the broker
                    self._is_balanced = False
                    if not isinstance(problem, DphmmError):
                        _LOG.error("the users are not divided among workers: %s", type(problem).__name__)
                await asyncio.sleep(POLL_INTERVAL_S)
