"""Tests of phones at an MQTT broker: no loss of acknowledged messages, and no echo."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from paho.mqtt import client as mqtt

from dphmm.errors import OutputError
from dphmm.release.session_store import SessionStore
from dphmm.serve import broker as listening
from dphmm.serve import endpoints, sessions
from dphmm.serve.broker import NUM_SHARES, Listener, SharedListener, Shares, get_share
from dphmm.serve.config import Broker, make_user_topic
from dphmm.serve.delivery import POLL_INTERVAL_S
from dphmm.serve.metrics import Metrics
from dphmm.serve.recipient_tables import RecipientTables
from scripts.relay.servers import Postgres, find_program
from tests.serve.conftest import (
    START,
    TOKEN,
    count_messages,
    make_location,
    read_metrics,
    serve_app,
    serve_relay,
    wait_for,
)
from tests.serve.test_endpoints import ANN, read_releases

STEP = 300


class Mosquitto:
    """A broker that the test can stop and restart."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._file = folder / "mosquitto.conf"
        lines = ["user root", f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true"]
        self._file.write_text("\n".join([*lines, f"persistence_location {folder}/", "autosave_interval 1", ""]))
        self.start()

    def start(self) -> None:
        program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
        self._process = subprocess.Popen([program, "-c", str(self._file)], stderr=subprocess.DEVNULL)
        wait_for(lambda: self._is_there())

    def _is_there(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def publish(self, *messages: tuple[str, object], retain: bool = False) -> None:
        aiomqtt = pytest.importorskip("aiomqtt")

        async def publish_messages() -> None:
            async with aiomqtt.Client("127.0.0.1", self.port) as phone:
                for topic, message in messages:
                    body = message if isinstance(message, bytes) else json.dumps(message)
                    await phone.publish(topic, body, qos=1, retain=retain)

        asyncio.run(publish_messages())


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    if not (shutil.which("mosquitto") or Path("/usr/sbin/mosquitto").exists()):
        pytest.skip("mosquitto is not installed")
    folder = tmp_path / "broker"
    folder.mkdir()
    broker_process = Mosquitto(folder)
    yield broker_process
    broker_process.stop()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(listening, "POLL_INTERVAL_S", 0.05)


def make_message(step, **more):
    return ("owntracks/ann/phone", make_location(START + STEP * step, **more))


def is_listening(client):
    return client.get("/ready").json()["broker"] is True


def list_steps(path):
    return [release.slot - START // STEP for release in read_releases(path)]


@pytest.mark.slow
def test_published_and_retained_messages_are_not_read_as_fixes(config, mosquitto, tmp_path):
    mosquitto.publish(make_message(0), retain=True)
    out = [
        {"name": "family", "kind": "mqtt", "url": mosquitto.url},
        {"name": "house", "kind": "mqtt", "url": mosquitto.url, "content": "zone"},
    ]
    with serve_relay(config(recipient=out, mqtt={"url": mosquitto.url, "topic": "+/+/+"})) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(make_message(1))
        wait_for(lambda: list(count_messages(client, "delivered").values()) == [1, 1])
        other = ("owntracks/mallory/phone", make_location(START))
        odd = [("owntracks/ann/phone", body) for body in (b"", b"\xff", b"[" * 5000)]
        mosquitto.publish(other, *odd, ("a", b""), make_message(2))
        wait_for(lambda: list(count_messages(client, "delivered").values()) == [2, 2])
        time.sleep(0.3)  # allow time for unexpected messages
    assert list_steps(tmp_path / "users.db") == [1, 2]
    assert read_releases(tmp_path / "users.db", "mallory") == []


@pytest.mark.slow
def test_messages_sent_while_relay_is_down_are_received_after_start(config, mosquitto, tmp_path):
    settings = config(mqtt={"url": mosquitto.url})
    with serve_relay(settings) as client:
        wait_for(lambda: is_listening(client))
    mosquitto.publish(*(make_message(k) for k in range(50)))
    with serve_relay(settings):
        wait_for(lambda: len(list_steps(tmp_path / "users.db")) == 50)
    assert list_steps(tmp_path / "users.db") == list(range(50))


@pytest.mark.slow
def test_message_is_acknowledged_only_after_release(config, mosquitto, tmp_path, monkeypatch):
    settings = config(mqtt={"url": mosquitto.url})
    with monkeypatch.context() as patch:

        def refuse_writing(*_):
            raise OutputError("no room")

        patch.setattr(SessionStore, "append", refuse_writing)
        with serve_relay(settings) as client:
            wait_for(lambda: is_listening(client))
            mosquitto.publish(make_message(0), make_message(1))
            time.sleep(0.3)  # otherwise it would be acknowledged by now
    assert list_steps(tmp_path / "users.db") == []
    with serve_relay(settings):
        wait_for(lambda: len(list_steps(tmp_path / "users.db")) == 2)


def test_broker_keeps_session_and_may_send_all_messages_together(config):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        with serve_relay(config(mqtt={"url": url})), server.accept()[0] as connection:
            packet = connection.recv(1000)
    header = packet.index(b"\x00\x04MQTT") + 6
    version, flags = packet[header : header + 2]
    assert (version, flags & 0b10) == (5, 0)  # MQTT 5, no clean start
    properties = packet[header + 5 : header + 5 + packet[header + 4]]
    sizes = {0x11: 5, 0x21: 3, 0x27: 5}
    kept = set()
    while properties:
        kept.add(properties[: sizes[properties[0]]])
        properties = properties[sizes[properties[0]] :]
    # session expiry interval of thirty days, receive maximum, maximum packet size
    assert kept == {b"\x11\x00\x27\x8d\x00", b"\x21\xff\xff", b"\x27\x00\x01\x00\x00"}


@pytest.mark.slow
@pytest.mark.parametrize("honours_limit", [True, False], ids=["broker drops it", "broker sends it"])
def test_large_message_does_not_delay_others(config, mosquitto, tmp_path, monkeypatch, honours_limit):
    """A message of 48 MB is not parsed: parsing it would take most of a minute."""
    if not honours_limit:
        from paho.mqtt.properties import Properties

        set_property = Properties.__setattr__

        def omit_limit(properties, name, value):
            if name != "MaximumPacketSize":
                set_property(properties, name, value)

        monkeypatch.setattr(Properties, "__setattr__", omit_limit)
    parsed = []
    read = listening.read_owntracks
    monkeypatch.setattr(listening, "read_owntracks", lambda payload: parsed.append(len(payload)) or read(payload))
    large = json.dumps(make_location(START) | {"x": [[]] * 12_000_000}).encode()
    assert len(large) > 48_000_000
    with serve_relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(("owntracks/ann/phone", large), make_message(1))
        wait_for(lambda: client.get("/health").status_code == 200 and list_steps(tmp_path / "users.db") == [1])
    assert max(parsed) < 1000


@pytest.mark.slow
def test_temporarily_full_store_delays_but_loses_no_messages(config, mosquitto, tmp_path, monkeypatch):
    real, fails = SessionStore.append, iter([True] * 2)

    def write_or_fail(*arguments):
        if next(fails, False):
            raise OutputError("no room")
        return real(*arguments)

    monkeypatch.setattr("dphmm.serve.delivery._FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(SessionStore, "append", write_or_fail)
    with serve_relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(make_message(0), make_message(1))
        wait_for(lambda: list_steps(tmp_path / "users.db") == [0, 1])


@pytest.mark.slow
def test_failing_message_is_retried_and_then_skipped(config, mosquitto, tmp_path, monkeypatch):
    real, passing = SessionStore.append, iter([True] * (listening._MAX_ATTEMPTS - 1))

    def append_or_fail(store, session, progress, slot, draw):
        step = slot - START // STEP
        if step == 1 or (step == 0 and next(passing, False)):
            raise ZeroDivisionError
        return real(store, session, progress, slot, draw)

    monkeypatch.setattr("dphmm.serve.delivery._FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(SessionStore, "append", append_or_fail)
    with serve_relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(*(make_message(k) for k in range(3)))
        wait_for(lambda: list_steps(tmp_path / "users.db") == [0, 2])


@pytest.mark.slow
def test_refused_subscription_is_reported_and_repeated(config, caplog, monkeypatch):
    """The broker's access list does not allow the topic, until the list is corrected."""
    monkeypatch.setattr(listening, "MAX_RECONNECT_WAIT_S", 1.0)
    accepted = bytes([0x20, 0x03, 0x00, 0x00, 0x00])
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        with serve_relay(config(mqtt={"url": url})) as client, server.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(accepted)
            for reason in (0x87, 0x87, 0x01):
                packet = connection.recv(1000)
                assert packet[0] == 0x82  # a subscription, number at the third byte
                answer = client.get("/ready")
                assert (answer.status_code, answer.json()["broker"]) == (503, False)
                assert read_metrics(client)["dphmm_broker_connected"] == 0
                connection.sendall(bytes([0x90, 0x04, *packet[2:4], 0x00, reason]))
            wait_for(lambda: client.get("/ready").status_code == 200)
    (message,) = [record.message for record in caplog.records if "refuses" in record.message]
    assert message == (
        "the broker refuses the subscription to owntracks/+/+ (Not authorized); "
        "allow the relay's account to read this topic"
    )


@pytest.mark.slow
def test_session_is_deleted_by_another_client_with_its_name(config, mosquitto, tmp_path, caplog):
    """The log contains the name of a session, which can be deleted by it."""
    program = shutil.which("mosquitto_sub")
    if program is None:
        pytest.skip("mosquitto_sub is not installed")
    caplog.set_level("INFO")
    settings = config(mqtt={"url": mosquitto.url})
    with serve_relay(settings) as client:
        wait_for(lambda: is_listening(client))
    mosquitto.publish(make_message(0))
    (line,) = [record.message for record in caplog.records if "session at the broker is" in record.message]
    words = ["-p", str(mosquitto.port), "-V", "5", "-i", line.split()[-1], "-t", "none", "-E"]
    subprocess.run([program, *words], check=True, timeout=60)
    with serve_relay(settings) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(make_message(1))
        wait_for(lambda: list_steps(tmp_path / "users.db") == [1])


@pytest.mark.slow
def test_ignored_posts_of_a_device_are_logged_once(config, mosquitto, tmp_path, caplog):
    caplog.set_level("INFO")
    with serve_relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(
            *((f"owntracks/ann/{name}", make_location(START)) for name in ("dphmm", "dphmm-x")), make_message(1)
        )
        wait_for(lambda: list_steps(tmp_path / "users.db") == [1])
    messages = [record.message for record in caplog.records if "are ignored" in record.message]
    assert messages == ["messages of devices called dphmm are ignored, because relays publish on their topics"]


@pytest.mark.slow
def test_user_with_the_name_of_a_share_is_released_while_another_process_listens(config, postgres, monkeypatch):
    monkeypatch.setattr(sessions, "_MAX_TURN_S", 1.0)
    settings = config(store=postgres, device=[{"user": "share 3", "token": TOKEN["ann"]}])
    with SessionStore(postgres) as other, serve_relay(settings) as client:
        assert other.database.try_lock("share 3")
        answer = client.post("/owntracks", json=make_location(), auth=("share 3", TOKEN["ann"]))
    assert answer.status_code == 200


class FailingOnce:
    """A database with an unexpected error, of which another process then holds all locks."""

    num_connections = 1

    def __init__(self):
        self.num_calls = 0

    def count_processes(self):
        self.num_calls += 1
        if self.num_calls == 2:
            raise ZeroDivisionError
        return 2

    def try_lock(self, _):
        return False


def test_listener_of_shares_continues_after_an_unexpected_error(caplog):
    """It reports that others listen only while the database has confirmed it."""
    database = FailingOnce()
    expected = {0: False, 1: None, 2: False, 3: None}
    states = {}

    async def run(work, *arguments):
        states[database.num_calls] = listener.is_connected
        return work(*arguments)

    async def listen():
        async with asyncio.timeout(10):
            task = asyncio.create_task(listener.listen())
            while len(states) < len(expected):
                await asyncio.sleep(0.01)
            task.cancel()

    broker = Broker(url="mqtt://127.0.0.1:9")
    listener = SharedListener(broker, "store", frozenset(), endpoints.Relay.take, Shares(database), run)
    asyncio.run(listen())
    assert states == expected
    assert "the users are not divided among workers: ZeroDivisionError" in caplog.text
    assert Listener(broker, "store", frozenset(), endpoints.Relay.take).is_connected is False


def test_metric_of_broker_is_no_alarm_if_other_processes_listen():
    metrics = Metrics((), None)
    for is_connected, value in ((True, "1.0"), (False, "0.0"), (None, "NaN")):
        metrics.set_broker_connected(is_connected)
        assert f"dphmm_broker_connected {value}\n".encode() in metrics.render("", True, {}, {})[0]


@pytest.mark.slow
def test_failed_listener_restarts_without_loss(config, mosquitto, tmp_path, monkeypatch):
    from paho.mqtt.client import Client

    real, fails = Client.ack, iter([True])

    def acknowledge(*arguments):
        if next(fails, False):
            raise OSError
        return real(*arguments)

    monkeypatch.setattr(Client, "ack", acknowledge)
    monkeypatch.setattr(listening, "POLL_INTERVAL_S", 0.5)
    status = lambda: client.get("/ready").json()["broker"]  # noqa: E731
    with serve_relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(status)
        mosquitto.publish(make_message(0), make_message(1))
        wait_for(lambda: not status())
        assert status() is False
        wait_for(lambda: list_steps(tmp_path / "users.db") == [0, 1])
        wait_for(status)


@pytest.mark.slow
def test_slow_releases_are_awaited(config, mosquitto, tmp_path, monkeypatch):
    real = SessionStore.append

    def delay(*arguments):
        time.sleep(0.15)  # longer than the listener waits for another message
        return real(*arguments)

    monkeypatch.setattr(SessionStore, "append", delay)
    with serve_relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(*(make_message(k) for k in range(25)))
        wait_for(lambda: len(list_steps(tmp_path / "users.db")) == 25)


@pytest.mark.slow
def test_restarted_broker_is_reconnected_and_its_messages_are_read(config, mosquitto, tmp_path):
    settings = config(mqtt={"url": mosquitto.url})
    with serve_relay(settings) as client:
        wait_for(lambda: is_listening(client))
        mosquitto.publish(make_message(0))
        wait_for(lambda: len(list_steps(tmp_path / "users.db")) == 1)
        mosquitto.stop()
        until = time.monotonic() + 2 * POLL_INTERVAL_S
        answers = []
        while time.monotonic() < until:  # the relay replaces its client meanwhile
            answers.append(client.get("/ready"))
        lost = [answer.json() == {"store": True, "broker": False, "oldest_message_s": 0.0} for answer in answers]
        assert lost == sorted(lost)
        assert lost[-1]
        assert [answer.status_code for answer in answers] == [503 if is_lost else 200 for is_lost in lost]
        assert client.get("/health").status_code == 200
        mosquitto.start()
        mosquitto.publish(make_message(1))
        wait_for(lambda: len(list_steps(tmp_path / "users.db")) == 2)
        assert client.get("/ready").status_code == 200


@pytest.mark.slow
def test_processes_divide_the_users_and_take_over_those_of_an_ended_one(config, mosquitto, postgres):
    """No message is lost, or released after a later one of its user."""
    names = [f"p{k:02}" for k in range(12)]
    assert len({get_share(name) for name in names}) >= NUM_SHARES // 2
    devices = [{"user": name, "token": f"{name:x<40}"} for name in names]
    settings = config(store=postgres, mqtt={"url": mosquitto.url}, device=devices)

    def publish(*steps):
        mosquitto.publish(
            *((f"owntracks/{name}/phone", make_location(START + STEP * k)) for k in steps for name in names)
        )

    def are_released(count):
        with SessionStore(postgres, readonly=True) as store:
            rows = store.database.execute("SELECT number, slot FROM record ORDER BY session, number")
        assert [slot - START // STEP for _, slot in rows] == [number for number, _ in rows], "in order"
        return len(rows) == count * len(names)

    with serve_relay(settings) as first:
        wait_for(lambda: is_listening(first) and count_shares(postgres) == [NUM_SHARES])
        publish(0, 1)
        wait_for(lambda: are_released(2))
        with serve_relay(settings) as second:
            publish(2, 3)  # during the division
            wait_for(lambda: count_shares(postgres) == [NUM_SHARES // 2] * 2)
            wait_for(lambda: is_listening(first) and is_listening(second))
            publish(4, 5)
            wait_for(lambda: are_released(6))
        publish(6)
        wait_for(lambda: count_shares(postgres) == [NUM_SHARES])
        publish(7)
        wait_for(lambda: are_released(8))
    publish(8)
    with serve_relay(settings):
        wait_for(lambda: are_released(9))


def count_shares(url):
    """Return the number of shares of each process, from the locks of the database."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND ((classid::bigint << 32) | "
            "objid::bigint) IN (SELECT hashtextextended(current_schema() || ' share ' || share, 0) "
            "FROM generate_series(0, 99) AS share) GROUP BY pid"
        )
        return [count for (count,) in rows]


@pytest.fixture
def restartable():
    """Return a PostgreSQL server that the test can restart."""
    if find_program("initdb") is None:
        pytest.skip("the programs of a PostgreSQL server are not installed")
    with TemporaryDirectory(prefix="dphmm-") as parent:  # pytest's folders cannot be entered by another account
        folder = Path(parent) / "postgres"
        folder.mkdir()
        server = Postgres(folder)
        server.start()
        wait_for(lambda: accepts_connections(server.url))
        yield server
        server.stop()


def accepts_connections(url):
    psycopg = pytest.importorskip("psycopg")
    with suppress(psycopg.OperationalError):
        psycopg.connect(url).close()
        return True
    return False


class OneConnection:
    """A database of one process, all of whose locks are lost with its connection."""

    num_connections = 1

    def count_processes(self):
        return 1

    def try_lock(self, _):
        return True


def test_share_that_was_lost_and_taken_again_is_not_confirmed():
    database = OneConnection()
    shares = Shares(database)
    shares.balance()
    hold = shares.get_hold(3)
    assert hold > 0
    assert shares.confirm(3, hold)
    database.num_connections = 2  # it has lost its locks
    shares.balance()
    assert shares.get_hold(3) > 0
    assert not shares.confirm(3, hold)
    assert shares.confirm(3, shares.get_hold(3))


@pytest.mark.slow
def test_restarted_database_is_not_taken_for_another_relay(config, mosquitto, restartable, caplog):
    """Workers lose their locks, and the first that returns takes the sessions of the other.

    The other one is busy, and learns that its session has ended earlier than that its lock has.
    """
    settings = config(store=restartable.url, mqtt={"url": mosquitto.url})
    apps = [endpoints.make_app(settings) for _ in range(2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(serve_app(app)) for app in apps]
        clients = [stack.enter_context(httpx.Client(base_url=url, verify=False, timeout=60)) for url in urls]
        are_ready = lambda: all(map(is_listening, clients))  # noqa: E731
        wait_for(lambda: count_shares(restartable.url) == [NUM_SHARES // 2] * 2 and are_ready())
        mosquitto.publish(make_message(0), make_message(1))
        wait_for(lambda: list_steps(restartable.url) == [0, 1])
        for step, app in ((2, apps[0]), (4, apps[1])):
            busy = app.state.sessions._thread.submit(time.sleep, 6)
            restartable.stop()
            mosquitto.publish(make_message(step))
            restartable.start()
            wait_for(lambda: accepts_connections(restartable.url))
            wait_for(lambda: count_shares(restartable.url) == [NUM_SHARES])
            mosquitto.publish(make_message(step + 1))
            busy.result()
            wait_for(lambda: count_shares(restartable.url) == [NUM_SHARES // 2] * 2 and are_ready())
            wait_for(lambda: list_steps(restartable.url) == list(range(step + 2)))  # noqa: B023
        assert [client.get("/ready").json()["broker"] for client in clients] == [True, True]
    assert "is taken over" not in caplog.text


def test_sessions_at_a_broker_have_distinct_names():
    """In some of 256 stores the name of the first share would be that of another one."""
    for store in range(256):
        names = {listening._make_client_id(str(store), share) for share in range(NUM_SHARES)}
        assert len(names) == NUM_SHARES
        assert listening._make_client_id(str(store), None) in names
        assert all(len(name) <= 23 for name in names)


@pytest.mark.parametrize(
    ("topic", "of_ann"),
    [
        ("owntracks/+/+", "owntracks/ann/+"),
        ("owntracks/#", "owntracks/ann/#"),
        ("#", "+/ann/#"),
        ("+/+/phone", "+/ann/phone"),
        ("owntracks/ann/+", "owntracks/ann/+"),
        ("owntracks/bob/+", None),
        ("owntracks", None),
    ],
)
def test_topic_of_a_user_matches_what_the_topic_of_all_does(topic, of_ann):
    assert make_user_topic(topic, "ann") == of_ann
    for example in (
        "owntracks/ann/phone",
        "owntracks/ann",
        "other/ann/phone",
        "owntracks/ann/phone/event",
        "owntracks",
    ):
        expected = mqtt.topic_matches_sub(topic, example) and example.split("/")[1:2] == ["ann"]
        assert (of_ann is not None and mqtt.topic_matches_sub(of_ann, example)) is expected


@pytest.mark.slow
def test_messages_kept_in_the_session_of_all_users_are_released(config, mosquitto, postgres, monkeypatch):
    """An upgrade from a version without shares loses nothing.

    The session then receives its share only.
    """
    settings = config(store=postgres, mqtt={"url": mosquitto.url})
    with monkeypatch.context() as patch:
        patch.setattr(endpoints, "SharedListener", lambda *arguments: Listener(*arguments[:4]))
        with serve_relay(settings) as earlier:
            wait_for(lambda: is_listening(earlier))
            mosquitto.publish(make_message(0))
            wait_for(lambda: list_steps(postgres) == [0])
    mosquitto.publish(make_message(1))
    with serve_relay(settings) as later:
        wait_for(lambda: list_steps(postgres) == [0, 1])
        wait_for(lambda: is_listening(later))
        mosquitto.publish(make_message(2))
        wait_for(lambda: list_steps(postgres) == [0, 1, 2])


@pytest.mark.slow
def test_messages_arrive_however_the_path_of_the_store_is_written(config, mosquitto, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to("users.db")
    paths = [str(tmp_path / "users.db"), "users.db", "./users.db", "link.db"]
    with serve_relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: is_listening(client))
    for step, path in enumerate(paths):
        mosquitto.publish(make_message(step))
        with serve_relay(config(store=path, mqtt={"url": mosquitto.url})):
            wait_for(lambda: len(list_steps(tmp_path / "users.db")) == step + 1)  # noqa: B023


@pytest.mark.slow
def test_relays_with_other_stores_have_other_sessions_at_a_broker(config, mosquitto, tmp_path, monkeypatch):
    """Two families with default names share a broker. Each gets its own messages."""
    listening_relays = []
    with ExitStack() as stack:
        for family in ("ann", "bob"):
            (tmp_path / family).mkdir()
            monkeypatch.chdir(tmp_path / family)
            device = [{"user": family, "token": family[0] * 40}]
            settings = config(store="users.db", device=device, mqtt={"url": mosquitto.url})
            listening_relays.append(stack.enter_context(serve_relay(settings)))
            wait_for(lambda: is_listening(listening_relays[-1]))
        for step in range(20):
            mosquitto.publish(make_message(step), ("owntracks/bob/phone", make_location(START + STEP * step)))
        for family in ("ann", "bob"):
            path = tmp_path / family / "users.db"
            wait_for(lambda: len(read_releases(path, family)) == 20)  # noqa: B023
        assert all(map(is_listening, listening_relays))


@pytest.mark.slow
def test_taken_over_session_is_reported(config, mosquitto, tmp_path, monkeypatch, caplog):
    """A relay with a copy of the store takes the session over, and keeps it."""
    settings = config(mqtt={"url": mosquitto.url})
    with serve_relay(settings) as first:
        wait_for(lambda: is_listening(first))
        with (
            closing(sqlite3.connect(tmp_path / "users.db")) as store,
            closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
        ):
            store.backup(copy)
        with serve_relay(config(store=str(tmp_path / "copy.db"), mqtt={"url": mosquitto.url})) as second:
            status = lambda: {client.get("/ready").json()["broker"] for client in (first, second)}  # noqa: E731
            wait_for(lambda: status() == {"taken over", True})
            time.sleep(2.5)
            assert status() == {"taken over", True}
            assert {client.get("/ready").status_code for client in (first, second)} == {200, 503}
            (record,) = [record for record in caplog.records if "session at the broker is taken over" in record.message]
            assert record.levelname == "ERROR"


@pytest.mark.slow
def test_disconnection_with_the_reason_of_a_takeover_is_reported(config, caplog):
    """Other brokers send the reason code. Then nothing reconnects for a minute."""
    taken_over = bytes([0xE0, 0x02, 0x8E, 0x00])
    accepted = bytes([0x20, 0x03, 0x00, 0x00, 0x00])
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        with serve_relay(config(mqtt={"url": url})) as client:
            with server.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(accepted + taken_over)
                wait_for(lambda: client.get("/ready").json()["broker"] == "taken over")
            server.settimeout(2.5)
            with pytest.raises(TimeoutError):
                server.accept()
    assert [record.levelname for record in caplog.records if "is taken over" in record.message] == ["ERROR"]


def test_store_without_identity_gets_one(config, tmp_path):
    """The table is added to a store of an earlier version when it is opened for writing."""
    with serve_relay(config()):
        pass
    with closing(sqlite3.connect(tmp_path / "users.db")) as store:
        store.execute("DROP TABLE identity")
    with SessionStore(tmp_path / "users.db", readonly=True) as store:
        assert store.names() == []
    identities = []
    for _ in range(2):
        with SessionStore(tmp_path / "users.db") as store:
            identities.append(RecipientTables(store).get_identity())
    assert identities[0] == identities[1]
    assert len(identities[0]) == 32


@pytest.mark.slow
def test_metrics_contain_status_latency_queues_broker_and_disk(config, inbox, tmp_path, mosquitto):
    inbox.status = 503
    recipient = {"name": 'a "b"', "kind": "webhook", "url": inbox.url}
    with serve_relay(config(recipient=[recipient], mqtt={"url": mosquitto.url})) as client:
        label = 'recipient="a "b""'
        client.post("/owntracks", json=make_location(), auth=("ann", "wrong"))
        for step in range(3):
            client.post("/owntracks", json=make_location(START + 300 * step), auth=ANN).raise_for_status()
        wait_for(lambda: read_metrics(client)[f'dphmm_message_seconds_bucket le="20.0" {label}'] >= 1)
        wait_for(lambda: read_metrics(client)["dphmm_broker_connected"] == 1)
        metrics = read_metrics(client)
        assert metrics['dphmm_requests_total path="/owntracks" status="200"'] == 3
        assert metrics['dphmm_requests_total path="/owntracks" status="401"'] == 1
        assert metrics[f"dphmm_waiting_messages {label}"] == 3
        assert 0 < metrics[f"dphmm_oldest_message_seconds {label}"] < 60
        assert metrics["dphmm_store_ready"] == 1
        free = shutil.disk_usage(tmp_path).free
        assert abs(metrics["dphmm_disk_free_bytes"] - free) < 0.2 * free
        inbox.status = 200
        wait_for(lambda: read_metrics(client)[f"dphmm_waiting_messages {label}"] == 0)
        with SessionStore(tmp_path / "users.db") as store, store.database.run_transaction():
            store.set_mark({"state": "moved"})
        answer = client.post("/owntracks", json=make_location(START + 900), auth=ANN)
        assert answer.status_code == 503, "the phone keeps the message for the store that continues"
        wait_for(lambda: client.get("/ready").status_code == 503)
        mosquitto.stop()
        wait_for(lambda: read_metrics(client)["dphmm_broker_connected"] == 0)
        metrics = read_metrics(client)
        assert metrics["dphmm_store_ready"] == 0
        assert metrics['dphmm_requests_total path="/owntracks" status="503"'] == 1
