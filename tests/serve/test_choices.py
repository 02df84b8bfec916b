"""What each recipient was chosen to be told: predictions or nothing, zones' names, or true places."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from urllib.parse import parse_qs

import pytest

from dphmm.jobs.models import load_model
from dphmm.model.point_estimate import HeldRadii
from dphmm.release.session_store import SessionStore
from dphmm.serve import delivery
from tests.serve.conftest import START, location, relay, wait_for
from tests.serve.test_delivery import STEP, log_in, post, recipient, told
from tests.serve.test_endpoints import ANN, releases
from tests.serve.test_page import HOME, zones


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_LONGEST_WAIT_S", 0.1)
    monkeypatch.setattr(delivery, "LONGEST_CONNECTION_WAIT_S", 0.1)


def named(inbox, name):
    return [json.loads(body) for _, headers, body in inbox.messages if headers.get("x-name") == name]


def some(inbox, name, **more):
    return recipient(inbox, **more) | {"name": name, "headers": {"X-Name": name}}


def test_when_a_budget_ends_each_is_told_the_prediction_marked_or_nothing_as_was_chosen(config, inbox, tmp_path):
    recipients = [
        some(inbox, "family"), some(inbox, "quiet", when_withheld="nothing"), some(inbox, "friends", precision="2km"),
        some(inbox, "map", kind="owntracks"),
    ]  # fmt: skip
    made = config(recipient=recipients, limits={"epsilon": 1.0})
    with relay(made) as client:
        post(client, 0, 1, 2, 2)
        wait_for(lambda: all(len(named(inbox, name)) == 3 for name in ("family", "friends", "map")))
    with relay(made) as client:  # and for good: the same moment again, after a restart
        post(client, 2, 3)
        wait_for(lambda: len(named(inbox, "friends")) == len(named(inbox, "family")) == 4)
    records = [one.record for one in releases(tmp_path / "people.db")]
    assert [one.reason for one in records] == ["", "", "budget", "budget"]
    assert records[-1].epsilon_so_far == 1.0
    for name in ("family", "friends"):
        assert [one["released"] for one in named(inbox, name)] == [True, True, False, False]
        assert [one["latitude"] for one in named(inbox, name)][2:] == [None, None]
    assert [one["prediction"] for one in named(inbox, "map")][:3] == [False, False, True]
    assert [one["released"] for one in named(inbox, "quiet")] == [True, True]


def test_where_nobody_wants_predictions_a_moment_beyond_the_limit_has_no_record(config, inbox, tmp_path):
    quiet = some(inbox, "quiet", when_withheld="nothing")
    with relay(config(recipient=[quiet], limits={"epsilon": 1.0})) as client:
        post(client, 0, 1, 2)
        assert 'dphmm_fixes_total{outcome="unreleased"} 1' in client.get("/metrics").text
    assert len(releases(tmp_path / "people.db")) == 2


def test_who_is_told_zones_gets_the_name_of_the_zone_that_the_estimate_lies_in_and_no_place(config, inbox):
    recipients = [some(inbox, "house", tells="zone"), some(inbox, "family")]
    with relay(config(recipient=recipients)) as client:
        log_in(client)
        assert client.post("/page/zones", json=zones(HOME)).status_code == 200
        post(client, 0)
        client.post("/owntracks", json=location(START + STEP, 45.025, -30.035), auth=ANN)
        wait_for(lambda: len(named(inbox, "house")) == len(named(inbox, "family")) == 2)
    for house, family in zip(named(inbox, "house"), named(inbox, "family"), strict=True):
        latitude, longitude = family["estimate_latitude"], family["estimate_longitude"]
        inside = 44.99 <= latitude <= 45.01 and -30.01 <= longitude <= -29.99
        assert house == {
            "user": "ann", "time": family["time"], "zone": "zone 1" if inside else "away", "prediction": False,
        }  # fmt: skip
    assert named(inbox, "house")[1]["zone"] == "away"  # a place that is released as it is


def test_true_places_go_to_whom_the_file_says_so_and_are_kept_and_logged_nowhere(config, inbox, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    mine = some(inbox, "mine", true_places_unprotected=True)
    with relay(config(recipient=[mine, some(inbox, "family")])) as client:
        client.post("/owntracks", json=location(latitude=45.0123456, longitude=-30.0123456), auth=ANN)
        wait_for(lambda: named(inbox, "mine") and named(inbox, "family"))
        inbox.status = 503
        client.post("/owntracks", json=location(START + STEP, 45.0123456, -30.0123456), auth=ANN)
        wait_for(lambda: "recipient mine was not sent a place" in caplog.text)
        assert "mine" not in client.get("/metrics").text, "how that server answers may depend on a true place"
        state = log_in(client)
        assert client.post("/page/pause", json={"recipient": "mine", "paused": True}).status_code == 200
        client.post("/owntracks", json=location(START + 2 * STEP), auth=ANN)
    inbox.status = 200
    with relay(config(recipient=[mine, some(inbox, "family")])) as client:  # what waited is gone, and it is paused
        post(client, 3)
        wait_for(lambda: len(named(inbox, "family")) == 4)
    (place,) = named(inbox, "mine")
    assert (place["latitude"], place["true_place"]) == (45.0123456, True)
    assert not any("true_place" in one for one in named(inbox, "family"))
    assert [one["tells"] for one in state["recipients"]] == ["true places", "place"]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"45.0123" not in kept
    assert "45.0123" not in "".join(one.getMessage() for one in caplog.records if one.name.startswith("dphmm"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"true_places_unprotected": True, "url": "http://elsewhere.example/"}, "with TLS"),
        ({"true_places_unprotected": True, "precision": "2km"}, "leave precision"),
        ({"tells": "zone", "precision": "2km"}, "precision cannot be combined with tells = 'zone'"),
        ({"tells": "zone", "kind": "overland"}, "choose webhook or mqtt"),
    ],
)
def test_choices_that_do_not_fit_are_refused(config, inbox, keys, said):
    with pytest.raises(ValueError, match=said):
        config(recipient=[recipient(inbox) | keys])


def test_told_is_what_the_stream_says_for_others(config, inbox):
    with relay(config(recipient=[recipient(inbox)])) as client:
        post(client, 0)
        wait_for(lambda: inbox.messages)
    assert "zone" not in told(inbox)[0]


def test_a_prediction_says_in_each_app_s_own_way_when_the_person_was_last_known(config, inbox, clock):
    kinds = ("owntracks", "overland", "traccar", "home-assistant", "webhook")
    made = config(recipient=[some(inbox, kind, kind=kind) for kind in kinds], limits={"epsilon": 1.0})

    def bodies(name):
        return [body for _, headers, body in inbox.messages if headers.get("x-name") == name]

    with relay(made) as client:
        post(client, 0, 1, 2, 300)
        wait_for(lambda: all(len(bodies(name)) == 4 for name in kinds))
    with relay(made) as client:  # also where it is asked for after a restart
        post(client, 301)
        wait_for(lambda: all(len(bodies(name)) == 5 for name in kinds))
    known = START + STEP
    for at, step in ((2, 2), (3, 300), (4, 301)):
        owntracks = json.loads(bodies("owntracks")[at])
        assert (owntracks["tst"], owntracks["created_at"]) == (known, START + step * STEP)
        (feature,) = json.loads(bodies("overland")[at])["locations"]
        then = datetime.fromtimestamp(known).astimezone()
        said = f"last known {then:%H:%M}" if step == 2 else f"last known {then:%Y-%m-%d %H:%M}"
        assert feature["properties"]["activity"] == said
        for kind, key in (("traccar", "prediction"), ("home-assistant", "activity")):
            fields = {name: value for name, (value,) in parse_qs(bodies(kind)[at].decode()).items()}
            assert fields[key] == said
            assert fields.get("valid") == ("false" if kind == "traccar" else None)
            assert fields.get("provider") == (None if kind == "traccar" else "prediction")
        assert json.loads(bodies("webhook")[at])["last_known"] == "2024-03-07T09:05:00Z"
    drawn = json.loads(bodies("owntracks")[1])
    assert (drawn["tst"], drawn["created_at"], drawn["prediction"]) == (known, known, False)
    for kind in kinds:  # a message of a release has the keys of one of a prediction, but for what a webhook's row says
        keys = [set(json.loads(body) if kind in ("owntracks", "overland", "webhook") else parse_qs(body.decode(), True))
                for body in bodies(kind)]  # fmt: skip
        assert kind == "webhook" or all(one == keys[0] for one in keys)


def test_accuracies_are_those_of_circles_that_hold_where_the_model_knows_them(config, inbox, clock, tmp_path):
    holding = load_model(config().model).holding(HeldRadii((2.0, 2.0, 3.0, 4.0, 5.0), 30))
    holding.save(tmp_path / "holding.npz")
    told = [some(inbox, "map", kind="owntracks")]
    made = config(model=str(tmp_path / "holding.npz"), recipient=told, limits={"epsilon": 1.5})
    with relay(made) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: named(inbox, "map"))
        clock.at = START - 1
        client.post("/page/pause", json={"recipient": "map", "paused": True, "until": START})
        clock.at = START + STEP
        post(client, 1, 2, 40)  # the last one is beyond the limit
        wait_for(lambda: len(named(inbox, "map")) == 4)
    with SessionStore(made.store, readonly=True) as store:
        own = [one.record for one in store.releases(1)]
        (key,) = made.readers("ann")
        parts = [json.loads(store.said(1, number, key)) for number in (1, 2, 3)]
    assert own[0].held_radius == 2.0 * own[0].estimate_radius
    assert named(inbox, "map")[0]["acc"] == pytest.approx(1000 * own[0].held_radius, abs=0.1)
    for part, message, factor in zip(parts, named(inbox, "map")[1:], (2.0, 2.0, 5.0), strict=True):
        assert message["acc"] == pytest.approx(1000 * factor * part["estimate_radius"], abs=0.1)
