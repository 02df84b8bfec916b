"""Telling recipients: each release once, in order, the same after restarts and outages, in the format each expects."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from urllib.parse import parse_qs

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from dphmm.serve import delivery
from tests.serve.conftest import START, TOKEN, location, relay, running, wait_for
from tests.serve.test_endpoints import ANN, releases

STEP = 300


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_LONGEST_WAIT_S", 0.1)


def recipient(inbox, kind="webhook", **more):
    return {"name": "family", "kind": kind, "url": inbox.url, "users": ["ann"], **more}


def log_in(client, user="ann"):
    assert client.post("/page/login", json={"token": TOKEN[user]}).status_code == 200
    state = client.get("/page/state").json()
    client.headers["X-CSRF-Token"] = state["csrf"]
    return state


def post(client, *steps):
    for k in steps:
        assert client.post("/owntracks", json=location(START + STEP * k), auth=ANN).status_code == 200


def told(inbox):
    return [json.loads(body) for _, _, body in inbox.messages]


def test_a_webhook_gets_what_the_stream_answers_and_nothing_else(config, inbox, tmp_path):
    with relay(config(recipient=[recipient(inbox, headers={"X-Key": "k"})])) as client:
        post(client, 0)
        wait_for(lambda: inbox.messages)
    (message,) = told(inbox)
    (release,) = releases(tmp_path / "people.db")
    assert message["released"] is True
    assert (message["user"], message["x_km"]) == ("ann", release.record.released[0])
    assert {"time", "latitude", "longitude", "estimate_latitude", "estimate_longitude"} <= set(message)
    assert inbox.messages[0][1]["x-key"] == "k"


def test_messages_have_the_format_that_each_kind_expects(config, inbox):
    for kind in ("owntracks", "overland", "traccar", "home-assistant"):
        inbox.messages.clear()
        store = {"store": config().store + kind}
        with relay(config(recipient=[recipient(inbox, kind)], **store)) as client:
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


def test_an_outage_delays_messages_and_loses_none_and_keeps_their_order(config, inbox):
    made = config(recipient=[recipient(inbox)])
    inbox.status = 503
    with relay(made) as client:
        post(client, 0, 1, 2)
        wait_for(lambda: 'outcome="failed"} 0' not in client.get("/metrics").text)
    with relay(made) as client:  # restarted while the recipient is away
        post(client, 3)
        inbox.status = 200
        wait_for(lambda: len(inbox.messages) == 4)
    assert [one["time"] for one in told(inbox)] == sorted(one["time"] for one in told(inbox))


def test_a_recipient_who_refuses_one_message_for_good_gets_the_next(config, inbox):
    with relay(config(recipient=[recipient(inbox)])) as client:
        inbox.status = 422
        post(client, 0)
        wait_for(lambda: 'recipient="family",outcome="set_aside"} 1' in client.get("/metrics").text)
        inbox.status = 200
        post(client, 1)
        wait_for(lambda: inbox.messages)
    assert told(inbox)[0]["time"] == "2024-03-07T09:05:00Z"


def test_a_new_recipient_is_told_nothing_of_the_time_before_and_others_of_no_one_else(config, inbox):
    with relay(config()) as client:
        post(client, 0, 1)
    with relay(config(recipient=[recipient(inbox)])) as client:
        post(client, 2)
        client.post("/owntracks", json=location(), auth=("bob", TOKEN["bob"]))
        wait_for(lambda: inbox.messages)
    assert [(one["user"], one["time"]) for one in told(inbox)] == [("ann", "2024-03-07T09:10:00Z")]


def test_whoever_is_paused_is_told_nothing_then_and_nothing_of_it_later(config, inbox):
    with relay(config(recipient=[recipient(inbox, paused=True)])) as client:
        post(client, 0)
    with relay(config(recipient=[recipient(inbox)])) as client:
        post(client, 1)
        wait_for(lambda: inbox.messages)
    assert [one["time"] for one in told(inbox)] == ["2024-03-07T09:05:00Z"]


def test_a_message_sent_again_after_a_crash_is_the_same(config, inbox, monkeypatch):
    from dphmm.serve.sessions import Sessions

    made = config(recipient=[recipient(inbox)])
    with monkeypatch.context() as patch:
        run = Sessions.run

        async def crash(sessions, work, *arguments):
            if work.__name__ == "set_sent":
                await asyncio.sleep(3600)  # the process ends before the note is written
            return await run(sessions, work, *arguments)

        patch.setattr(Sessions, "run", crash)
        with relay(made) as client:
            post(client, 0)
            wait_for(lambda: inbox.messages)
    with relay(made):
        wait_for(lambda: len(inbox.messages) == 2)
    first, second = inbox.messages
    assert first[2] == second[2]


def test_one_message_that_is_answered_by_errors_for_ever_is_set_aside_and_holds_up_no_other(config, inbox):
    poison = []
    inbox.answer = lambda body: 500 if json.loads(body)["time"] in poison else 200
    poison += ["2024-03-07T09:00:00Z", "2024-03-07T09:05:00Z"]
    with relay(config(recipient=[recipient(inbox)])) as client:
        post(client, 0, 1, 2, 3)
        wait_for(lambda: 'recipient="family",outcome="set_aside"} 2' in client.get("/metrics").text)
        wait_for(lambda: {one["time"][11:16] for one in told(inbox)} == {"09:10", "09:15"})
        inbox.status = 503  # away altogether: nothing is set aside, whatever number of times it is tried
        post(client, 4, 5)
        before = client.get("/metrics").text.count("failed")
        wait_for(lambda: int(client.get("/metrics").text.split('outcome="failed"} ')[1].split()[0]) > 30)
        assert 'recipient="family",outcome="set_aside"} 2' in client.get("/metrics").text
        assert client.get("/ready").json()["oldest_message_s"] > 0
        inbox.status = 200
        wait_for(lambda: [one["time"][11:16] for one in told(inbox)][-2:] == ["09:20", "09:25"])
        (shown,) = log_in(client)["recipients"]
        assert (shown["set_aside"], shown["set_aside_last"]) == (2, "status 500")
        assert before


@pytest.mark.parametrize("user", ["Zoë", "李雷", "Алиса"])
def test_names_in_any_script_reach_owntracks_recipients_over_http(config, inbox, user):
    made = config(
        device=[{"user": user, "token": TOKEN["ann"]}], recipient=[recipient(inbox, "owntracks") | {"users": [user]}]
    )
    with relay(made) as client:
        sent = client.post(
            "/owntracks", json=location(), headers={"Authorization": basic(user, TOKEN["ann"])}, params={"u": user}
        )
        assert sent.status_code == 200
        wait_for(lambda: inbox.messages)
    assert inbox.queries == [{"u": user, "d": "dphmm"}]
    assert json.loads(inbox.messages[0][2])["topic"] == f"owntracks/{user}/dphmm"


def basic(user, token):
    return "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()


def test_so_many_messages_at_once_are_on_their_way_to_one_recipient_and_no_more(config, monkeypatch):
    monkeypatch.setattr(delivery, "_AT_ONCE", 3)
    now, most, taken, names = 0, 0, [], [f"p{k:02}" for k in range(12)]

    async def take(_):
        nonlocal now, most
        now += 1
        most = max(most, now)
        while not taken:  # none is taken before all that come at once are there
            await asyncio.sleep(0.01)
        now -= 1
        return Response()

    devices = [{"user": name, "token": f"{name:x<40}"} for name in names]
    with running(Starlette(routes=[Route("/in", take, methods=["POST"])])) as url:
        family = {"name": "family", "kind": "webhook", "url": f"{url}/in"}
        with relay(config(device=devices, recipient=[family])) as client:
            for name in names:
                client.post("/owntracks", json=location(), auth=(name, f"{name:x<40}")).raise_for_status()
            wait_for(lambda: now >= 3)
            time.sleep(0.2)
            taken.append(True)
            wait_for(lambda: 'outcome="delivered"} 12' in client.get("/metrics").text)
    assert most == 3


def test_what_one_process_releases_another_tells_and_goes_on_when_that_is_gone(config, inbox, postgres):
    made = config(store=postgres, recipient=[recipient(inbox)])
    with relay(made) as second:
        with relay(made) as first:
            post(second, 0)
            post(first, 1)
            wait_for(lambda: len(inbox.messages) == 2)
        post(second, 2)
        wait_for(lambda: len(inbox.messages) == 3)
    assert [one["time"] for one in told(inbox)] == sorted(one["time"] for one in told(inbox))
