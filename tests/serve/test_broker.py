"""Phones at an MQTT broker: nothing that was acknowledged is lost, and the relay never hears itself."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dphmm.errors import OutputError
from dphmm.release.session_store import SessionStore
from dphmm.serve import broker as listening
from tests.serve.conftest import START, location, relay, wait_for
from tests.serve.test_endpoints import releases

STEP = 300


class Mosquitto:
    """A broker of the test's own that can be ended and started again."""

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
        self._process.wait(10)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def publish(self, *messages: tuple[str, object], retain: bool = False) -> None:
        aiomqtt = pytest.importorskip("aiomqtt")

        async def all_of_them() -> None:
            async with aiomqtt.Client("127.0.0.1", self.port) as phone:
                for topic, message in messages:
                    body = message if isinstance(message, bytes) else json.dumps(message)
                    await phone.publish(topic, body, qos=1, retain=retain)

        asyncio.run(all_of_them())


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    if not (shutil.which("mosquitto") or Path("/usr/sbin/mosquitto").exists()):
        pytest.skip("mosquitto is not installed")
    folder = tmp_path / "broker"
    folder.mkdir()
    made = Mosquitto(folder)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(listening, "LOOK_AGAIN_S", 0.05)


def at(step, **more):
    return ("owntracks/ann/phone", location(START + STEP * step, **more))


def listens(client):
    return client.get("/ready").json()["broker"] is True


def steps(path):
    return [one.slot - START // STEP for one in releases(path)]


def test_what_the_relay_publishes_and_what_is_retained_is_not_taken_for_a_place(config, mosquitto, tmp_path):
    mosquitto.publish(at(0), retain=True)
    out = [
        {"name": "family", "kind": "mqtt", "url": mosquitto.url},
        {"name": "house", "kind": "mqtt", "url": mosquitto.url, "tells": "zone"},
    ]
    with relay(config(recipient=out, mqtt={"url": mosquitto.url, "topic": "+/+/+"})) as client:
        wait_for(lambda: listens(client))
        mosquitto.publish(at(1))
        wait_for(lambda: client.get("/metrics").text.count('outcome="delivered"} 1') == 2)
        other = ("owntracks/mallory/phone", location(START))
        odd = [("owntracks/ann/phone", body) for body in (b"", b"\xff", b"[" * 5000)]
        mosquitto.publish(other, *odd, ("a", b""), at(2))
        wait_for(lambda: client.get("/metrics").text.count('outcome="delivered"} 2') == 2)
        time.sleep(0.3)  # for what should not come
    assert steps(tmp_path / "people.db") == [1, 2]
    assert releases(tmp_path / "people.db", "mallory") == []


def test_what_was_posted_while_the_relay_was_down_comes_when_it_is_up(config, mosquitto, tmp_path):
    made = config(mqtt={"url": mosquitto.url})
    with relay(made) as client:
        wait_for(lambda: listens(client))
    mosquitto.publish(*(at(k) for k in range(50)))
    with relay(made):
        wait_for(lambda: len(steps(tmp_path / "people.db")) == 50)
    assert steps(tmp_path / "people.db") == list(range(50))


def test_a_message_is_acknowledged_when_it_is_released_and_not_before(config, mosquitto, tmp_path, monkeypatch):
    made = config(mqtt={"url": mosquitto.url})
    with monkeypatch.context() as patch:

        def full(*_):
            raise OutputError("no room")

        patch.setattr(SessionStore, "append", full)
        with relay(made) as client:
            wait_for(lambda: listens(client))
            mosquitto.publish(at(0), at(1))
            time.sleep(0.3)  # it would have been acknowledged by now
    assert steps(tmp_path / "people.db") == []
    with relay(made):
        wait_for(lambda: len(steps(tmp_path / "people.db")) == 2)


def test_a_broker_is_asked_to_keep_the_session_for_good_and_to_send_all_that_it_kept_at_once(config):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        with relay(config(mqtt={"url": url})), server.accept()[0] as asked:
            packet = asked.recv(1000)
    header = packet.index(b"\x00\x04MQTT") + 6
    version, flags = packet[header : header + 2]
    assert (version, flags & 0b10) == (5, 0)  # MQTT 5, and no clean start
    properties = packet[header + 5 : header + 5 + packet[header + 4]]
    kept = {properties[:5], properties[5:]} if properties[0] == 0x11 else {properties[3:], properties[:3]}
    assert kept == {b"\x11\xff\xff\xff\xff", b"\x21\xff\xff"}  # session expiry interval, receive maximum


def test_a_store_that_is_full_for_a_while_holds_messages_up_and_loses_none(config, mosquitto, tmp_path, monkeypatch):
    real, fails = SessionStore.append, iter([True] * 2)

    def full_at_first(*arguments):
        if next(fails, False):
            raise OutputError("no room")
        return real(*arguments)

    monkeypatch.setattr("dphmm.serve.delivery._FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(SessionStore, "append", full_at_first)
    with relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: listens(client))
        mosquitto.publish(at(0), at(1))
        wait_for(lambda: steps(tmp_path / "people.db") == [0, 1])


def test_what_fails_for_a_reason_not_known_is_tried_again_and_then_holds_up_no_others(
    config, mosquitto, tmp_path, monkeypatch
):
    real, passing = SessionStore.append, iter([True] * (listening._TRIES - 1))

    def fails(store, session, progress, slot, draw):
        step = slot - START // STEP
        if step == 1 or (step == 0 and next(passing, False)):
            raise ZeroDivisionError
        return real(store, session, progress, slot, draw)

    monkeypatch.setattr("dphmm.serve.delivery._FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(SessionStore, "append", fails)
    with relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: listens(client))
        mosquitto.publish(*(at(k) for k in range(3)))
        wait_for(lambda: steps(tmp_path / "people.db") == [0, 2])


def test_a_listener_that_failed_begins_anew_and_loses_nothing(config, mosquitto, tmp_path, monkeypatch):
    from paho.mqtt.client import Client

    real, fails = Client.ack, iter([True])

    def ack(*arguments):
        if next(fails, False):
            raise OSError
        return real(*arguments)

    monkeypatch.setattr(Client, "ack", ack)
    with relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: listens(client))
        mosquitto.publish(at(0), at(1))
        wait_for(lambda: steps(tmp_path / "people.db") == [0, 1])
        assert listens(client)


def test_messages_that_take_long_to_release_are_waited_for(config, mosquitto, tmp_path, monkeypatch):
    real = SessionStore.append

    def slowly(*arguments):
        time.sleep(0.15)  # longer than the listener looks for another message
        return real(*arguments)

    monkeypatch.setattr(SessionStore, "append", slowly)
    with relay(config(mqtt={"url": mosquitto.url})) as client:
        wait_for(lambda: listens(client))
        mosquitto.publish(*(at(k) for k in range(25)))
        wait_for(lambda: len(steps(tmp_path / "people.db")) == 25)


def test_a_broker_that_restarts_is_found_again_and_what_it_kept_is_taken(config, mosquitto, tmp_path):
    made = config(mqtt={"url": mosquitto.url})
    with relay(made) as client:
        wait_for(lambda: listens(client))
        mosquitto.publish(at(0))
        wait_for(lambda: len(steps(tmp_path / "people.db")) == 1)
        mosquitto.stop()
        wait_for(lambda: client.get("/ready").status_code == 503)
        assert client.get("/health").status_code == 200
        assert client.get("/ready").json() == {"store": True, "broker": False, "oldest_message_s": 0.0}
        mosquitto.start()
        mosquitto.publish(at(1))
        wait_for(lambda: len(steps(tmp_path / "people.db")) == 2)
        assert client.get("/ready").status_code == 200


def test_of_several_processes_one_listens_and_another_when_it_is_gone(config, mosquitto, postgres):
    made = config(store=postgres, mqtt={"url": mosquitto.url})
    with relay(made) as first:
        wait_for(lambda: listens(first))
        with relay(made) as second:
            time.sleep(0.2)
            assert second.get("/ready").json()["broker"] is None
            mosquitto.publish(at(0))
            wait_for(lambda: len(releases(postgres)) == 1)
            first.get("/health")
            break_off = first
            assert break_off.get("/ready").json()["broker"] is True
    with relay(made) as third:
        wait_for(lambda: listens(third))
        mosquitto.publish(at(1))
        wait_for(lambda: len(releases(postgres)) == 2)
