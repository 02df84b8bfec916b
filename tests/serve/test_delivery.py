"""Tests of delivery: each release once, in order, equal after outages, and in any format."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from urllib.parse import parse_qs

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from dphmm.serve import delivery
from dphmm.serve.config import Recipient
from dphmm.serve.metrics import Metrics
from dphmm.serve.recipient_tables import Lease
from tests.serve.conftest import (
    START,
    TOKEN,
    count_messages,
    get_page_token,
    make_location,
    serve_app,
    serve_relay,
    wait_for,
)
from tests.serve.test_endpoints import ANN, read_releases

STEP = 300


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.1)


def describe_recipient(inbox, kind="webhook", **more):
    return {"name": "family", "kind": kind, "url": inbox.url, "users": ["ann"], **more}


def log_in(client, user="ann"):
    assert client.post("/page/login", json={"token": get_page_token(user)}).status_code == 200
    state = client.get("/page/state").json()
    client.headers["X-CSRF-Token"] = state["csrf"]
    return state


def post(client, *steps):
    for k in steps:
        assert client.post("/owntracks", json=make_location(START + STEP * k), auth=ANN).status_code == 200


def read_messages(inbox):
    return [json.loads(body) for _, _, body in inbox.messages]


@pytest.mark.slow
def test_webhook_gets_answer_of_stream_only(config, inbox, tmp_path):
    with serve_relay(config(recipient=[describe_recipient(inbox, headers={"X-Key": "k"})])) as client:
        post(client, 0)
        wait_for(lambda: inbox.messages)
    (message,) = read_messages(inbox)
    (release,) = read_releases(tmp_path / "users.db")
    assert message["released"] is True
    assert (message["user"], message["x_km"]) == ("ann", release.record.released[0])
    assert {"time", "latitude", "longitude", "estimate_latitude", "estimate_longitude"} <= set(message)
    assert inbox.messages[0][1]["x-key"] == "k"


@pytest.mark.slow
def test_messages_have_format_of_each_recipient(config, inbox):
    for kind in ("owntracks", "overland", "traccar", "home-assistant"):
        inbox.messages.clear()
        store = {"store": config().store + kind}
        with serve_relay(config(recipient=[describe_recipient(inbox, kind)], **store)) as client:
            post(client, 0)
            wait_for(lambda: inbox.messages)
        ((_, headers, body),) = inbox.messages
        if kind == "owntracks":
            message = json.loads(body)
            assert (message["_type"], message["tst"], headers["x-limit-u"]) == ("location", START, "ann")
            radius = message["acc"]
        elif kind == "overland":
            (feature,) = json.loads(body)["locations"]
            assert feature["geometry"]["type"] == "Point"
            assert feature["properties"]["timestamp"] == "2024-03-07T09:00:00Z"
            radius = feature["properties"]["horizontal_accuracy"]
        else:
            fields = {name: value for name, (value,) in parse_qs(body.decode()).items()}
            assert fields["id" if kind == "traccar" else "device"] == "ann"
            radius = float(fields["accuracy"])
        assert radius > 100


@pytest.mark.slow
def test_outage_delays_messages_without_loss_and_keeps_order(config, inbox):
    settings = config(recipient=[describe_recipient(inbox)])
    inbox.status = 503
    with serve_relay(settings) as client:
        post(client, 0, 1, 2)
        wait_for(lambda: count_messages(client, "failed")["family"] > 0)
    with serve_relay(settings) as client:  # restarted during the outage of the recipient
        post(client, 3)
        inbox.status = 200
        wait_for(lambda: len(inbox.messages) == 4)
    assert [message["time"] for message in read_messages(inbox)] == sorted(
        message["time"] for message in read_messages(inbox)
    )


@pytest.mark.slow
def test_permanently_rejected_message_is_skipped(config, inbox):
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        inbox.status = 422
        post(client, 0)
        wait_for(lambda: count_messages(client, "set_aside") == {"family": 1})
        inbox.status = 200
        post(client, 1)
        wait_for(lambda: inbox.messages)
    assert read_messages(inbox)[0]["time"] == "2024-03-07T09:05:00Z"


@pytest.mark.slow
def test_new_recipient_gets_no_earlier_releases_and_no_other_users(config, inbox):
    with serve_relay(config()) as client:
        post(client, 0, 1)
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        post(client, 2)
        client.post("/owntracks", json=make_location(), auth=("bob", TOKEN["bob"]))
        wait_for(lambda: inbox.messages)
    assert [(message["user"], message["time"]) for message in read_messages(inbox)] == [("ann", "2024-03-07T09:10:00Z")]


@pytest.mark.slow
def test_paused_recipient_never_gets_releases_of_the_pause(config, inbox):
    with serve_relay(config(recipient=[describe_recipient(inbox, paused=True)])) as client:
        post(client, 0)
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        post(client, 1)
        wait_for(lambda: inbox.messages)
    assert [message["time"] for message in read_messages(inbox)] == ["2024-03-07T09:05:00Z"]


@pytest.mark.slow
def test_message_repeated_after_crash_is_equal(config, inbox, monkeypatch):
    from dphmm.serve.sessions import Sessions

    settings = config(recipient=[describe_recipient(inbox)])
    with monkeypatch.context() as patch:
        run = Sessions.run

        async def crash(sessions, work, *arguments):
            if work == sessions.set_num_sent:
                await asyncio.sleep(3600)  # the process ends before the message is recorded as sent
            return await run(sessions, work, *arguments)

        patch.setattr(Sessions, "run", crash)
        with serve_relay(settings) as client:
            post(client, 0)
            wait_for(lambda: inbox.messages)
    with serve_relay(settings):
        wait_for(lambda: len(inbox.messages) == 2)
    first, second = inbox.messages
    assert first[2] == second[2]


@pytest.mark.slow
def test_permanently_failing_message_is_set_aside_and_does_not_block_others(config, inbox):
    poison = []
    inbox.answer = lambda body: 500 if json.loads(body)["time"] in poison else 200
    poison += ["2024-03-07T09:00:00Z", "2024-03-07T09:05:00Z"]
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        post(client, 0, 1, 2, 3)
        wait_for(lambda: count_messages(client, "set_aside") == {"family": 2})
        wait_for(lambda: {message["time"][11:16] for message in read_messages(inbox)} == {"09:10", "09:15"})
        inbox.status = 503  # during a complete outage no message is set aside, regardless of the number of attempts
        post(client, 4, 5)
        wait_for(lambda: count_messages(client, "failed")["family"] > 30)
        assert count_messages(client, "set_aside") == {"family": 2}
        assert client.get("/ready").json()["oldest_message_s"] > 0
        inbox.status = 200
        wait_for(lambda: [message["time"][11:16] for message in read_messages(inbox)][-2:] == ["09:20", "09:25"])
        (shown,) = log_in(client)["recipients"]
        assert (shown["num_set_aside"], shown["set_aside_reason"]) == (2, "status 500")


@pytest.mark.slow
def test_outage_that_ends_between_two_attempts_sets_no_message_aside(config, inbox):
    """The outage ends when the newest message is sent, after the first one failed."""
    is_over = threading.Event()

    def answer(body):
        if json.loads(body)["time"][11:16] == "09:05":
            attempts.append(body)
            if len(attempts) > 8:
                is_over.set()
        return 200 if is_over.is_set() else 500

    attempts, inbox.answer = [], answer
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        post(client, 0, 1)
        wait_for(lambda: {message["time"][11:16] for message in read_messages(inbox)} == {"09:00", "09:05"})
        assert len(attempts) > 8
        assert count_messages(client, "set_aside") == {"family": 0}


@pytest.mark.slow
@pytest.mark.parametrize("user", ["Zoë", "李雷", "Алиса", "ann ", " ann", "ann: Zoë"])
def test_user_names_that_headers_cannot_contain_reach_owntracks_recipients(config, inbox, user):
    settings = config(
        device=[{"user": user, "token": TOKEN["ann"]}],
        recipient=[describe_recipient(inbox, "owntracks") | {"users": [user]}],
    )
    with serve_relay(settings) as client:
        sent = client.post(
            "/owntracks",
            json=make_location(),
            headers={"Authorization": format_basic(user, TOKEN["ann"])},
            params={"u": user},
        )
        assert sent.status_code == 200
        wait_for(lambda: inbox.messages)
    assert inbox.queries == [{"u": user, "d": "dphmm"}]
    assert json.loads(inbox.messages[0][2])["topic"] == f"owntracks/{user}/dphmm"


def format_basic(user, token):
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


@pytest.mark.slow
def test_concurrent_messages_to_one_recipient_are_limited(config, monkeypatch):
    monkeypatch.setattr(delivery, "_MAX_CONCURRENT_MESSAGES", 3)
    now = 0
    maximum = 0
    taken = []
    names = [f"p{k:02}" for k in range(12)]

    async def take(_):
        nonlocal now, maximum
        now += 1
        maximum = max(maximum, now)
        while not taken:  # answer only when all concurrent messages have arrived
            await asyncio.sleep(0.01)
        now -= 1
        return Response()

    devices = [{"user": name, "token": f"{name:x<40}"} for name in names]
    with serve_app(Starlette(routes=[Route("/in", take, methods=["POST"])])) as url:
        family = {"name": "family", "kind": "webhook", "url": f"{url}/in"}
        with serve_relay(config(device=devices, recipient=[family])) as client:
            for name in names:
                client.post("/owntracks", json=make_location(), auth=(name, f"{name:x<40}")).raise_for_status()
            wait_for(lambda: now >= 3)
            time.sleep(0.2)
            taken.append(True)
            wait_for(lambda: 12 in count_messages(client, "delivered").values())
    assert maximum == 3


@pytest.mark.slow
def test_releases_of_one_process_are_sent_by_another(config, inbox, postgres):
    settings = config(store=postgres, recipient=[describe_recipient(inbox)])
    with serve_relay(settings) as second:
        with serve_relay(settings) as first:
            post(second, 0)
            post(first, 1)
            wait_for(lambda: len(inbox.messages) == 2)
        post(second, 2)
        wait_for(lambda: len(inbox.messages) == 3)
    assert [message["time"] for message in read_messages(inbox)] == sorted(
        message["time"] for message in read_messages(inbox)
    )


# ---- answers of recipients -------------------------------------------------------------------------------------------


def measure_answer(mode, megabytes):
    run = [sys.executable, "-m", "tests.serve.answering", mode, str(megabytes)]
    return int(subprocess.run(run, capture_output=True, check=True, text=True, timeout=300).stdout)


@pytest.mark.slow
def test_answer_of_one_gigabyte_does_not_grow_memory():
    """One megabyte of gzip decompresses to 1 GiB.

    The variant that reads answers must grow by at least the size of a smaller one.
    """
    assert measure_answer("stream", 1024) <= 16
    assert measure_answer("read", 128) >= 128


@contextmanager
def serve_badly(*parts, pause=0.05, repeat=b""):
    """Serve connections that are sent these parts, and then one part over and over, slowly."""
    ended = threading.Event()
    connections = []

    def answer(connection):
        with connection, suppress(OSError):
            connection.recv(65536)
            for part in parts:
                connection.sendall(part)
            while not ended.wait(pause):
                connection.sendall(repeat)

    def accept():
        with suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                threading.Thread(target=answer, args=(connections[-1],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/in", connections
        ended.set()
        server.shutdown(socket.SHUT_RDWR)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "repeat", "outcome"),
    [
        ((OK, b"Content-Length: 999\r\n\r\n"), b"x", "delivered"),
        ((OK, b"Transfer-Encoding: chunked\r\n\r\n"), b"1\r\nx\r\n", "delivered"),
        ((OK, b"Content-Length: 99999999\r\n\r\n", b"x" * (1 << 20)), b"x", "delivered"),
        ((OK,), b"x", "failed"),
        ((), b"", "failed"),
        ((), b"HTTP/1.1 100 Continue\r\n\r\n", "failed"),
        ((OK,), b"x: " + b"y" * 9999 + b"\r\n", "failed"),
    ],
    ids=["slow body", "slow chunks", "long body", "slow header", "silence", "interim answers", "long header"],
)
def test_misbehaving_recipient_holds_its_own_messages_only(config, inbox, monkeypatch, parts, repeat, outcome):
    """Ten users wait for a recipient that misbehaves, and another gets all messages at once."""
    monkeypatch.setattr(delivery, "_TIMEOUT_S", 0.4)
    monkeypatch.setattr(delivery, "_ANSWER_TIMEOUT_S", 0.2)
    names = [f"p{k:02}" for k in range(10)]
    devices = [{"user": name, "token": f"{name:x<40}"} for name in names]
    with serve_badly(*parts, repeat=repeat) as (url, connections):
        bad = {"name": "bad", "kind": "webhook", "url": url}
        good = {"name": "good", "kind": "webhook", "url": inbox.url}
        with serve_relay(config(device=devices, recipient=[bad, good])) as client:
            for name in names:
                client.post("/owntracks", json=make_location(), auth=(name, f"{name:x<40}")).raise_for_status()
            # On a busy machine an answer can exceed the short deadline, and its message is sent again.
            wait_for(lambda: len({body for _, _, body in inbox.messages}) == 10)
            count = 10 if outcome == "delivered" else 20
            wait_for(lambda: count_messages(client, outcome)["bad"] >= count)
            assert client.get("/health").status_code == 200
            wait_for(lambda: sum(is_open(connection) for connection in connections) <= 8)


def is_open(connection):
    """Return whether neither side has closed a connection."""
    try:
        while connection.recv(65536, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


# ---- brokers and the end of a relay ----------------------------------------------------------------------------------


async def lose_cancellations(number):
    """Run until cancelled more often than this number, as a library that loses cancellations."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            number -= 1
            if number < 0:
                raise


@pytest.mark.parametrize(("number", "ends"), [(0, True), (1, True), (4, True), (100, False)])
def test_tasks_that_lose_cancellations_do_not_delay_the_end(monkeypatch, caplog, number, ends):
    monkeypatch.setattr(delivery, "_CANCELLATION_TIMEOUT_S", 0.05)

    async def run():
        tasks = [asyncio.create_task(lose_cancellations(count)) for count in (number, 0)]
        await asyncio.sleep(0)
        await delivery.cancel_tasks(tasks)
        ended = [task.done() for task in tasks]
        for _ in range(100):
            tasks[0].cancel()
            await asyncio.sleep(0)
        return ended

    began = time.monotonic()
    assert asyncio.run(run()) == [ends, True]
    assert time.monotonic() - began < 60, "a lost cancellation leaves a sleep of an hour"
    assert ("1 senders did not end in time" in caplog.text) is not ends


@pytest.mark.slow
def test_cancellation_is_not_lost_with_an_acknowledgement(config, monkeypatch):
    """A broker acknowledges a message in the same moment in which the relay ends.

    In Python 3.11 `asyncio.wait_for` then returns normally. The variant that cancels once must not end.
    """

    class Acknowledging:
        """A sender of which the acknowledgement and a cancellation coincide."""

        def __init__(self):
            self.waiting = asyncio.get_running_loop().create_future()

        async def send(self):
            while True:
                await asyncio.wait_for(self.waiting, 60)
                self.waiting = asyncio.get_running_loop().create_future()

    async def run(cancel):
        sender = Acknowledging()
        task = asyncio.create_task(sender.send())
        await asyncio.sleep(0.01)
        sender.waiting.set_result(None)
        await cancel([task])
        ended = task.done()
        task.cancel()
        return ended

    async def cancel_once(tasks):
        tasks[0].cancel()
        await asyncio.wait(tasks, timeout=0.3)

    assert asyncio.run(run(delivery.cancel_tasks))
    assert asyncio.run(run(cancel_once)) is (sys.version_info >= (3, 12))


@pytest.mark.slow
def test_recipients_at_one_broker_share_one_connection(config, broker, monkeypatch):
    import aiomqtt

    opened = []
    enter = aiomqtt.Client.__aenter__

    async def count(client):
        opened.append(client)
        await asyncio.sleep(0.2)  # others want to send meanwhile
        return await enter(client)

    monkeypatch.setattr(aiomqtt.Client, "__aenter__", count)
    names = [f"p{k:02}" for k in range(12)]
    devices = [{"user": name, "token": f"{name:x<40}"} for name in names]
    recipients = [{"name": name, "kind": "mqtt", "url": broker} for name in ("family", "friends")]
    with serve_relay(config(device=devices, recipient=recipients)) as client:
        for name in names:
            client.post("/owntracks", json=make_location(), auth=(name, f"{name:x<40}")).raise_for_status()
        wait_for(lambda: count_messages(client, "delivered") == {"family": 12, "friends": 12})
    assert len(opened) == 1


def test_recipients_at_one_broker_have_separate_topics(config, monkeypatch):
    """A recipient with a precision does not receive the messages of one without."""
    published = []

    async def publish(_, topic, body):
        published.append((topic, body))

    monkeypatch.setattr(delivery.MqttConnection, "publish", publish)
    choices = {"family": {"precision": "5km"}, "mine": {}, "house": {"content": "zone"}}
    recipients = [{"name": name, "kind": "mqtt", "url": "mqtt://b"} | choice for name, choice in choices.items()]
    with serve_relay(config(recipient=recipients)) as client:
        post(client, 0, 1)
        wait_for(lambda: len(published) == 6)
    bodies = {topic: [body for other, body in published if other == topic] for topic, _ in published}
    assert sorted(bodies) == ["dphmm/ann/dphmm-house", "owntracks/ann/dphmm-family", "owntracks/ann/dphmm-mine"]
    rounded, exact = (list(map(json.loads, bodies[f"owntracks/ann/dphmm-{name}"])) for name in ("family", "mine"))
    assert [body["topic"] for body in rounded] == ["owntracks/ann/dphmm-family"] * 2
    assert {body["lat"] for body in rounded}.isdisjoint(body["lat"] for body in exact)
    assert not any(body.startswith("{") for body in bodies["dphmm/ann/dphmm-house"])


@pytest.mark.parametrize("is_changed", [True, False])
def test_recipient_of_the_same_name_gets_no_message_of_an_earlier_one(is_changed):
    """The recipient is replaced while the message is read from the store."""

    class Recorder:
        def __init__(self):
            self.messages = []

        async def send(self, message):
            self.messages.append(message)

    exact = Recipient(name="family", kind="webhook", url="https://a.example")
    rounded = Recipient(name="family", kind="webhook", url="https://b.example", precision="5km")
    earlier, later = Recorder(), Recorder()
    senders = {"family": (exact, earlier)}

    class Sessions:
        def find_first_unsent(self, *_):
            if is_changed:
                senders["family"] = rounded, later
            return 1, "the unrounded message"

        def set_num_sent(self, *_):
            return False

        async def run(self, function, *arguments):
            return function(*arguments)

    async def send():
        outbox = delivery.Outbox(Sessions(), senders, Metrics((), None))
        await outbox._send_leased(exact, Lease("key", 1, "ann", 0, 0, time.monotonic() + 60), None)
        return outbox

    asyncio.run(send())
    assert (earlier.messages, later.messages) == ([] if is_changed else ["the unrounded message"], [])


def test_recipient_that_was_just_added_is_sent_its_first_message():
    """Another process can store a release for it before this one has applied the change."""
    family = Recipient(name="family", kind="webhook", url="https://a.example")
    sent, senders = [], {}

    class Sessions:
        find_first_unsent = staticmethod(lambda *_: (1, "first"))
        set_num_sent = staticmethod(lambda *_: False)
        defer = staticmethod(lambda *_: None)

        async def run(self, function, *arguments):
            return function(*arguments)

    class Sender:
        async def send(self, message):
            sent.append(message)

    async def send():
        outbox = delivery.Outbox(Sessions(), senders, Metrics((), None))
        senders["family"] = family, Sender()
        await outbox._send_leased(family, Lease("key", 1, "ann", 0, 0, time.monotonic() + 60), None)

    asyncio.run(send())
    assert sent == ["first"]


@pytest.mark.slow
def test_refusal_of_a_broker_is_logged_once_with_its_reason(config, caplog, monkeypatch):
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        family = {"name": "family", "kind": "mqtt", "url": f"mqtt://127.0.0.1:{server.getsockname()[1]}"}
        with serve_relay(config(recipient=[family])) as client:
            post(client, 0)
            for _ in range(3):
                with server.accept()[0] as connection:
                    connection.recv(1000)
                    connection.sendall(bytes([0x20, 2, 0, 5]))  # a CONNACK that refuses the account
                    while connection.recv(1000):
                        continue
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == ["recipient family was not sent a release: MqttConnectError [code:135] Not authorized"]


@pytest.mark.slow
def test_failed_connections_to_a_broker_are_closed(config, monkeypatch):
    """A broker that accepts connections and never answers has at most two open ones."""
    monkeypatch.setattr(delivery, "_CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.05)
    with serve_badly() as (url, connections):
        family = {"name": "family", "kind": "mqtt", "url": url.replace("http", "mqtt").removesuffix("/in")}
        with serve_relay(config(recipient=[family])) as client:
            post(client, 0)
            wait_for(lambda: len(connections) >= 8)
            assert sum(map(is_open, connections)) <= 2
