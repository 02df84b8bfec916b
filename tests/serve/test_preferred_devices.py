"""Tests of the preferred device of a user, and of the others while it is silent."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest
import tomli_w

from dphmm.errors import ConfigurationError
from dphmm.release.session_store import SessionStore
from dphmm.serve import RelayConfig, add_device, prefer_device, rotate_token
from dphmm.serve.config import hash_token
from dphmm.serve.device_tables import DeviceTables
from dphmm.serve.devices_and_recipients import AccessTable
from dphmm.serve.endpoints import make_app
from tests.serve.conftest import START, make_location, read_metrics, serve_app, serve_relay, wait_for
from tests.serve.test_broker import Mosquitto
from tests.serve.test_delivery import STEP
from tests.serve.test_devices_and_recipients import get_tokens
from tests.serve.test_endpoints import read_releases

PHONE = "a" * 40
TABLET = "t" * 40
SILENCE_S = 1800
DEVICES = [{"user": "ann", "token": PHONE, "preferred": True}, {"user": "ann", "token": TABLET}]


@pytest.fixture(params=["file", "database"])
def settings(request, config, tmp_path):
    store = request.getfixturevalue("postgres") if request.param == "database" else str(tmp_path / "users.db")
    return config(device=DEVICES, store=store)


def post(client, token, *steps, **changes):
    """Post a batch of locations of ann, given by their timesteps."""
    times = [{"timestamp": f"2024-03-07T09:{5 * step:02}:00Z", "horizontal_accuracy": 5} | changes for step in steps]
    place = {"type": "Point", "coordinates": [-30.0, 45.0]}
    body = {"locations": [{"type": "Feature", "geometry": place, "properties": about} for about in times]}
    answer = client.post("/overland", json=body, headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()) == (200, {"result": "ok"}), "the answer does not reveal what is used"


def count_dropped(client):
    return read_metrics(client)['dphmm_fixes_total outcome="other_device"']


def count_releases(settings):
    return len(read_releases(settings.store))


@pytest.mark.slow
def test_other_devices_are_used_only_while_the_preferred_one_is_silent(settings, clock):
    with serve_relay(settings) as client:
        post(client, TABLET, 0)
        assert count_releases(settings) == 1, "the preferred device has not posted yet"
        post(client, PHONE, 1)
        post(client, TABLET, 2, 3)
        assert (count_releases(settings), count_dropped(client)) == (2, 2), "a batch is dropped as a whole"
    clock.at += SILENCE_S - 1
    with serve_relay(settings) as client:  # the time of the last post survives a restart
        post(client, TABLET, 3)
        assert (count_releases(settings), count_dropped(client)) == (2, 1)
        clock.at += 1
        post(client, TABLET, 4)
        assert count_releases(settings) == 3
        post(client, PHONE, 2, 5)  # a late batch: 2 is too late now, 5 is new
        assert count_releases(settings) == 4
        post(client, TABLET, 6)
        assert count_releases(settings) == 4, "a late batch shows that the preferred device posts again"
        post(client, PHONE, 3)
        post(client, PHONE, 6)
        assert count_releases(settings) == 5, "fixes of the preferred device in any order follow the usual rule"
    with SessionStore(settings.store) as store:  # the broken twin: without the stored time, the other device is used
        store.database.execute("DELETE FROM device_contact")
    with serve_relay(settings) as client:
        post(client, TABLET, 7)
        assert count_releases(settings) == 6


@pytest.mark.parametrize(
    "place", [{}, {"lat": 44.98}, {"lat": 10.0}, {"acc": 90_000}, {"tst": START - 90 * 86400}, {"tst": START + 9**9}]
)
def test_decision_does_not_depend_on_the_location_or_its_time(config, clock, place):
    """Fixes that are dropped for other reasons also count as posts."""
    with serve_relay(
        config(device=DEVICES, release={"policy": "utility:1km", "epsilon": 0.5, "outside": "drop"})
    ) as client:
        assert client.post("/owntracks", json=make_location() | place, auth=("ann", PHONE)).status_code == 200
        post(client, TABLET, 1)
        assert count_dropped(client) == 1
        clock.at += SILENCE_S
        post(client, TABLET, 1)
        assert count_dropped(client) == 1


def test_messages_without_a_location_do_not_show_that_a_device_posts(config, clock):
    with serve_relay(config(device=DEVICES)) as client:
        for message in (
            {"_type": "lwt", "tst": START},
            {"_type": "encrypted", "data": "x"},
            make_location() | {"lat": 95},
        ):
            assert client.post("/owntracks", json=message, auth=("ann", PHONE)).status_code == 200
        post(client, TABLET, 1)
        assert count_dropped(client) == 0


def test_clock_that_is_set_back_does_not_silence_other_devices(postgres, clock):
    with SessionStore(postgres) as store:
        tables = DeviceTables(store)
        assert tables.admit("ann", "a", {"a"}, SILENCE_S)
        for moved, is_used in ((0, False), (-60, False), (-61, True), (SILENCE_S - 1, False), (SILENCE_S, True)):
            clock.at = START + moved
            assert tables.admit("ann", "b", {"a"}, SILENCE_S) is is_used, moved
            assert tables.admit("bob", "b", {"a"}, SILENCE_S), "another user"
            assert tables.admit("ann", "b", {"c"}, SILENCE_S), "another device is preferred now"


@pytest.mark.slow
def test_device_in_the_database_is_preferred_while_two_workers_run(model, postgres, tmp_path, clock):
    path = tmp_path / "relay.toml"
    keys = {"model": str(model), "store": postgres, "release": {"policy": "utility:1km", "epsilon": 0.5}}
    path.write_text(tomli_w.dumps(keys | {"url": "https://relay.example"}))
    tokens = [get_tokens(add_device(path, "ann"))[-1] for _ in range(2)]
    settings = RelayConfig.read(path)
    with SessionStore(postgres) as store:
        digests = list(AccessTable(store).list_tokens("device", "ann"))
    phone, tablet = sorted(tokens, key=lambda token: digests.index(hash_token(token)))
    apps = [make_app(settings) for _ in range(2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(serve_app(app)) for app in apps]
        first, second = (stack.enter_context(httpx.Client(base_url=url, verify=False)) for url in urls)
        with pytest.raises(ConfigurationError, match="--number must select one of the 2 devices of 'ann'"):
            prefer_device(path, "ann")
        prefer_device(path, "ann", 1)
        wait_for(lambda: all(map(has_preference, apps)))
        post(first, phone, 0)
        post(second, tablet, 1)
        assert (count_releases(settings), count_dropped(second)) == (1, 1)
        clock.at += SILENCE_S
        post(second, tablet, 1)
        post(first, phone, 2)
        post(second, tablet, 3)
        assert (count_releases(settings), count_dropped(second)) == (3, 2)
        rotate_token(path, "ann", 2)  # the preference stays
        prefer_device(path, "ann", 0)
        wait_for(lambda: not any(map(has_preference, apps)))


def test_preference_in_the_database_needs_a_device_of_the_user(model, postgres, tmp_path):
    path = tmp_path / "relay.toml"
    keys = {"model": str(model), "store": postgres, "device": [{"user": "ann", "token": PHONE}]}
    path.write_text(tomli_w.dumps(keys))
    add_device(path, "bob")
    for user, error in (
        ("carl", "must have a device in the database, got 'carl' with 0"),
        ("ann", "of 'ann' are those of .*relay.toml; change preferred there"),
    ):
        for choice in ({}, {"number": 0}, {"number": 1}, {"mqtt_device": "tablet"}):
            with pytest.raises(ConfigurationError, match=error):
                prefer_device(path, user, **choice)
    with pytest.raises(ConfigurationError, match="MQTT_DEVICE cannot be combined with --number 0, got 'tablet'"):
        prefer_device(path, "bob", 0, "tablet")
    with pytest.raises(ConfigurationError, match=r"--number must select one of the 1 devices of 'bob' .*, got 2"):
        prefer_device(path, "bob", 2)


def has_preference(app):
    """Return whether a worker knows a preferred device."""
    return bool(app.state.sessions.access.preferred)


@pytest.mark.slow
@pytest.mark.parametrize("mqtt_device", [None, "phone"])
def test_third_level_of_the_topic_is_the_device(config, tmp_path, clock, mqtt_device):
    """Without `mqtt_device`, all devices at the broker are others."""
    broker = Mosquitto(tmp_path)
    devices = [DEVICES[0] | ({} if mqtt_device is None else {"mqtt_device": mqtt_device}), DEVICES[1]]
    settings = config(device=devices, mqtt={"url": broker.url})
    try:
        with serve_relay(settings) as client:
            wait_for(lambda: client.get("/ready").json()["broker"] is True)
            if mqtt_device is None:
                post(client, PHONE, 0)
            else:
                broker.publish(("owntracks/ann/phone", make_location(START)))
            wait_for(lambda: count_releases(settings) == 1)
            broker.publish(("owntracks/ann/tablet", make_location(START + STEP)))
            wait_for(lambda: count_dropped(client) == 1)
            post(client, TABLET, 1)
            assert (count_releases(settings), count_dropped(client)) == (1, 2)
            clock.at += SILENCE_S
            broker.publish(("owntracks/ann/tablet", make_location(START + 2 * STEP)))
            wait_for(lambda: count_releases(settings) == 2)
    finally:
        broker.stop()


def test_invalid_preferences_are_refused(config, tmp_path, model):
    with pytest.raises(ValueError, match="at most one device of a user can be preferred"):
        config(device=[DEVICES[0], DEVICES[1] | {"preferred": True}])
    with pytest.raises(ValueError, match="mqtt_device requires preferred"):
        config(device=[DEVICES[1] | {"mqtt_device": "phone"}])
    with pytest.raises(ValueError, match="greater than 0"):
        config(preferred_silence_seconds=0)
    path = tmp_path / "relay.toml"
    path.write_text(tomli_w.dumps({"model": str(model), "store": "users.db", "device": DEVICES}))
    with pytest.raises(ConfigurationError, match=r"preferred devices of 'ann' are those of .*relay.toml; change"):
        prefer_device(path, "ann")
