"""Tests of the options of recipients: predictions, zone names or true locations."""

from __future__ import annotations

import json
import logging
import time
from urllib.parse import parse_qs

import pytest

from dphmm.jobs.model.loading import load_model
from dphmm.model.radius_factors import CalibratedRadii
from dphmm.release.session_store import SessionStore
from dphmm.serve import delivery
from dphmm.serve.outgoing_messages import Message
from tests.serve.conftest import START, TOKEN, make_location, serve_relay, wait_for
from tests.serve.test_delivery import STEP, describe_recipient, log_in, post, read_messages
from tests.serve.test_endpoints import ANN, read_releases
from tests.serve.test_page import HOME, make_zones


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.1)
    monkeypatch.setattr(delivery, "MAX_RECONNECT_WAIT_S", 0.1)


def read_inbox(inbox, name):
    return [json.loads(body) for _, headers, body in inbox.messages if headers.get("x-name") == name]


def describe_named_recipient(inbox, name, **more):
    return describe_recipient(inbox, **more) | {"name": name, "headers": {"X-Name": name}}


@pytest.mark.slow
def test_exhausted_budget_sends_prediction_or_nothing_as_configured(config, inbox, tmp_path):
    recipients = [
        describe_named_recipient(inbox, "family"), describe_named_recipient(inbox, "quiet", when_withheld="nothing"),
        describe_named_recipient(inbox, "friends", precision="2km"),
        describe_named_recipient(inbox, "map", kind="owntracks"),
    ]  # fmt: skip
    settings = config(recipient=recipients, limits={"epsilon": 1.0})
    with serve_relay(settings) as client:
        post(client, 0, 1, 2, 2)
        wait_for(lambda: all(len(read_inbox(inbox, name)) == 3 for name in ("family", "friends", "map")))
    with serve_relay(settings) as client:  # permanently: the same timestep again, after a restart
        post(client, 2, 3)
        wait_for(lambda: len(read_inbox(inbox, "friends")) == len(read_inbox(inbox, "family")) == 4)
        assert 'dphmm_fixes_total{outcome="unreleased"} 2' in client.get("/metrics").text
    records = [release.record for release in read_releases(tmp_path / "users.db")]
    assert [record.withheld_reason for record in records] == ["", "", "budget", "budget"]
    assert records[-1].epsilon_total == 1.0
    for name in ("family", "friends"):
        assert [message["released"] for message in read_inbox(inbox, name)] == [True, True, False, False]
        assert [message["latitude"] for message in read_inbox(inbox, name)][2:] == [None, None]
    assert [message["prediction"] for message in read_inbox(inbox, "map")][:3] == [False, False, True]
    assert [message["released"] for message in read_inbox(inbox, "quiet")] == [True, True]


@pytest.mark.slow
def test_every_post_that_can_have_a_message_wakes_the_senders(config, inbox, monkeypatch):
    """Without it, the prediction of a withheld timestep would wait for the next release."""
    woken = []
    monkeypatch.setattr(delivery.Outbox, "wake", lambda _, user: woken.append(user))
    with serve_relay(config(recipient=[describe_named_recipient(inbox, "family")], limits={"epsilon": 1.0})) as client:
        post(client, 0, 1, 2)
    assert woken == ["ann"] * 3


@pytest.mark.slow
def test_timestep_beyond_limit_has_no_record_without_predictions(config, inbox, tmp_path):
    quiet = describe_named_recipient(inbox, "quiet", when_withheld="nothing")
    with serve_relay(config(recipient=[quiet], limits={"epsilon": 1.0})) as client:
        post(client, 0, 1, 2)
        assert 'dphmm_fixes_total{outcome="unreleased"} 1' in client.get("/metrics").text
    assert len(read_releases(tmp_path / "users.db")) == 2


@pytest.mark.slow
def test_zone_recipient_gets_only_name_of_zone_of_estimate(config, inbox):
    recipients = [describe_named_recipient(inbox, "house", content="zone"), describe_named_recipient(inbox, "family")]
    with serve_relay(config(recipient=recipients)) as client:
        log_in(client)
        assert client.post("/page/zones", json=make_zones(HOME)).status_code == 200
        post(client, 0)
        client.post("/owntracks", json=make_location(START + STEP, 45.025, -30.035), auth=ANN)
        wait_for(lambda: len(read_inbox(inbox, "house")) == len(read_inbox(inbox, "family")) == 2)
    for house, family in zip(read_inbox(inbox, "house"), read_inbox(inbox, "family"), strict=True):
        latitude, longitude = family["estimate_latitude"], family["estimate_longitude"]
        inside = 44.99 <= latitude <= 45.01 and -30.01 <= longitude <= -29.99
        assert house == {
            "user": "ann", "time": family["time"], "zone": "zone 1" if inside else "away", "prediction": False,
        }  # fmt: skip
    assert read_inbox(inbox, "house")[1]["zone"] == "away"  # an open place, released exactly


@pytest.mark.slow
def test_true_locations_are_sent_only_if_configured_and_never_stored_or_logged(config, inbox, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    true_places = describe_named_recipient(inbox, "mine", true_locations_unprotected=True)
    with serve_relay(config(recipient=[true_places, describe_named_recipient(inbox, "family")])) as client:
        client.post("/owntracks", json=make_location(latitude=45.0123456, longitude=-30.0123456), auth=ANN)
        wait_for(lambda: read_inbox(inbox, "mine") and read_inbox(inbox, "family"))
        inbox.status = 503
        client.post("/owntracks", json=make_location(START + STEP, 45.0123456, -30.0123456), auth=ANN)
        wait_for(lambda: "recipient mine was not sent a location" in caplog.text)
        assert "mine" not in client.get("/metrics").text, "the answers of that server may depend on a true place"
        state = log_in(client)
        assert client.post("/page/pause", json={"recipient": "mine", "paused": True}).status_code == 200
        client.post("/owntracks", json=make_location(START + 2 * STEP), auth=ANN)
    inbox.status = 200
    with serve_relay(
        config(recipient=[true_places, describe_named_recipient(inbox, "family")])
    ) as client:  # the queue is cleared, and the recipient is paused
        post(client, 3)
        wait_for(lambda: len(read_inbox(inbox, "family")) == 4)
    (place,) = read_inbox(inbox, "mine")
    assert (place["latitude"], place["true_location"]) == (45.0123456, True)
    assert not any("true_location" in message for message in read_inbox(inbox, "family"))
    assert [shown["content"] for shown in state["recipients"]] == ["true locations", "location"]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"45.0123" not in kept
    assert "45.0123" not in "".join(
        log_record.getMessage() for log_record in caplog.records if log_record.name.startswith("dphmm")
    )


# Kind of recipient → field of the accuracy.
ACCURACY_FIELDS = {
    "webhook": "accuracy", "owntracks": "acc", "overland": "horizontal_accuracy", "traccar": "accuracy",
    "home-assistant": "accuracy", "mqtt": "acc",
}  # fmt: skip


@pytest.mark.slow
def test_recipients_of_true_locations_get_accuracy_and_validity_as_posted(config, inbox, monkeypatch):
    published = []

    async def publish(_, topic, body):
        published.append(json.loads(body))

    monkeypatch.setattr(delivery.MqttConnection, "publish", publish)
    recipients = [
        describe_named_recipient(inbox, kind, kind=kind, true_locations_unprotected=True)
        | ({"url": "mqtt://127.0.0.1", "headers": {}} if kind == "mqtt" else {})
        for kind in ACCURACY_FIELDS
    ]
    posted = [{"accuracy": 3.5}, {}, {"accuracy": 25, "valid": False}, {"accuracy": -1}]
    fixes = [
        {"time": f"2024-03-07T09:0{minute}:00Z", "latitude": 45.0, "longitude": -30.0, **quality}
        for minute, quality in enumerate(posted)
    ]

    def read(kind):
        if kind == "mqtt":
            return published
        bodies = [body.decode() for _, headers, body in inbox.messages if headers.get("x-name") == kind]
        if kind in ("traccar", "home-assistant"):
            return [{name: value for name, (value,) in parse_qs(body).items()} for body in bodies]
        messages = list(map(json.loads, bodies))
        return [message["locations"][0]["properties"] for message in messages] if kind == "overland" else messages

    with serve_relay(config(recipient=recipients)) as client:
        client.post("/fix", json=fixes, headers={"Authorization": f"Bearer {TOKEN['ann']}"}).raise_for_status()
        wait_for(lambda: all(len(read(kind)) == len(posted) for kind in ACCURACY_FIELDS))
    for kind, field in ACCURACY_FIELDS.items():
        accuracies = [float(message[field]) if field in message else None for message in read(kind)]
        assert accuracies == [3.5, None, 25, -1], kind
    assert [message["valid"] for message in read("traccar")] == ["true", "true", "false", "true"]
    for kind in ("webhook", "overland"):  # they have the fields under which the relay reads validity
        assert [message["valid"] for message in read(kind)] == [True, True, False, True]
    assert {message["provider"] for message in read("home-assistant")} == {"true location"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"true_locations_unprotected": True, "url": "http://elsewhere.example/"}, "with TLS"),
        ({"true_locations_unprotected": True, "precision": "2km"}, "cannot be combined with precision"),
        ({"content": "zone", "precision": "2km"}, "precision cannot be combined with content = 'zone'"),
        ({"content": "zone", "kind": "overland"}, "use webhook or mqtt"),
    ],
)
def test_conflicting_recipient_options_raise(config, inbox, keys, message):
    with pytest.raises(ValueError, match=message):
        config(recipient=[describe_recipient(inbox) | keys])


@pytest.mark.slow
def test_messages_without_zones_have_no_zone(config, inbox):
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        post(client, 0)
        wait_for(lambda: inbox.messages)
    assert "zone" not in read_messages(inbox)[0]


@pytest.mark.slow
def test_prediction_states_last_known_time_in_format_of_each_app(config, inbox, clock):
    kinds = ("owntracks", "overland", "traccar", "home-assistant", "webhook")
    settings = config(
        recipient=[describe_named_recipient(inbox, kind, kind=kind) for kind in kinds], limits={"epsilon": 1.0}
    )

    def list_bodies(name):
        return [body for _, headers, body in inbox.messages if headers.get("x-name") == name]

    with serve_relay(settings) as client:
        post(client, 0, 1, 2, 300)
        wait_for(lambda: all(len(list_bodies(name)) == 4 for name in kinds))
    with serve_relay(settings) as client:  # also if it is requested after a restart
        post(client, 301)
        wait_for(lambda: all(len(list_bodies(name)) == 5 for name in kinds))
    last_known = START + STEP
    for at, step in ((2, 2), (3, 300), (4, 301)):
        owntracks = json.loads(list_bodies("owntracks")[at])
        assert (owntracks["tst"], owntracks["created_at"]) == (last_known, START + step * STEP)
        (feature,) = json.loads(list_bodies("overland")[at])["locations"]
        activity = f"last known {'' if step == 2 else '2024-03-07 '}09:05 UTC"
        assert feature["properties"]["activity"] == activity
        for kind, key in (("traccar", "prediction"), ("home-assistant", "activity")):
            fields = {name: value for name, (value,) in parse_qs(list_bodies(kind)[at].decode()).items()}
            assert fields[key] == activity
            assert fields.get("valid") == ("false" if kind == "traccar" else None)
            assert fields.get("provider") == (None if kind == "traccar" else "prediction")
        assert json.loads(list_bodies("webhook")[at])["last_known"] == "2024-03-07T09:05:00Z"
    release_message = json.loads(list_bodies("owntracks")[1])
    assert (release_message["tst"], release_message["created_at"], release_message["prediction"]) == (
        last_known,
        last_known,
        False,
    )
    for kind in kinds:  # releases and predictions have equal keys, except for a webhook's row
        keys = [set(json.loads(body) if kind in ("owntracks", "overland", "webhook") else parse_qs(body.decode(), True))
                for body in list_bodies(kind)]  # fmt: skip
        assert kind == "webhook" or all(keys_of_message == keys[0] for keys_of_message in keys)


def test_last_known_time_in_text_does_not_depend_on_time_zone_of_machine(monkeypatch):
    midnight = START - START % 86400
    message = Message("ann", midnight + 60, "", 0.0, 0.0, 1.0, {"released": False})
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        texts = [message.with_last_known(second).last_known_text for second in (midnight, midnight - 60)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert texts == ["last known 00:00 UTC", "last known 2024-03-06 23:59 UTC"]


@pytest.mark.slow
def test_accuracy_is_calibrated_radius_if_model_has_radii(config, inbox, clock, tmp_path):
    holding = load_model(config().model).with_calibrated_radii(CalibratedRadii((2.0, 2.0, 3.0, 4.0, 5.0), 30))
    holding.save(tmp_path / "holding.npz")
    recipients = [describe_named_recipient(inbox, "map", kind="owntracks")]
    settings = config(model=str(tmp_path / "holding.npz"), recipient=recipients, limits={"epsilon": 1.5})
    with serve_relay(settings) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: read_inbox(inbox, "map"))
        clock.at = START - 1
        client.post("/page/pause", json={"recipient": "map", "paused": True, "until": START})
        clock.at = START + STEP
        post(client, 1, 2, 40)  # the last one is beyond the limit
        wait_for(lambda: len(read_inbox(inbox, "map")) == 4)
    with SessionStore(settings.store, readonly=True) as store:
        records = [release.record for release in store.releases(1)]
        (recipient,) = settings.recipients
        parts = [json.loads(store.partial_message(1, number, recipient.key)) for number in (1, 2, 3)]
    assert records[0].calibrated_radius_90 == 2.0 * records[0].expected_estimate_error
    assert read_inbox(inbox, "map")[0]["acc"] == pytest.approx(1000 * records[0].calibrated_radius_90, abs=0.1)
    for part, message, factor in zip(parts, read_inbox(inbox, "map")[1:], (2.0, 2.0, 5.0), strict=True):
        assert message["acc"] == pytest.approx(1000 * factor * part["expected_estimate_error"], abs=0.1)
