"""Tests of recipients: removal, new addresses, links and pauses."""

from __future__ import annotations

import json
import time
from itertools import product

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.jobs.model.loading import load_model
from dphmm.model.belief import Belief
from dphmm.release.session import Session
from dphmm.release.session_store import SessionStore
from dphmm.release.session_terms import MAIN_QUERY
from dphmm.release.trajectory_release import to_degrees
from dphmm.serve import delivery
from dphmm.serve.config import Recipient
from dphmm.serve.page import TEXTS
from dphmm.serve.recipient_tables import FOREVER, RecipientTables
from dphmm.serve.sessions import Sessions
from tests.release.engines import make_engine
from tests.serve.conftest import START, count_messages, make_location, make_recipient, serve_relay, wait_for
from tests.serve.test_delivery import STEP, describe_recipient, log_in, post, read_messages
from tests.serve.test_endpoints import ANN, read_releases


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.1)
    monkeypatch.setattr(delivery, "MAX_RECONNECT_WAIT_S", 0.1)


def list_times(inbox):
    return [
        (int(np.datetime64(message["time"].rstrip("Z")).astype(int)) - START) // STEP
        for message in read_messages(inbox)
    ]


def pause(client, name="family", **changes):
    answer = client.post("/page/pause", json={"recipient": name, **changes})
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "away",
    [{"recipient": []}, {"recipient": "paused"}, {"recipient": "of bob"}],
    ids=["removed", "paused", "other user"],
)
def test_removed_recipient_gets_no_releases_of_its_absence(config, inbox, clock, away):
    there = {"recipient": [describe_recipient(inbox)]}
    if away["recipient"] == "paused":
        away = {"recipient": [describe_recipient(inbox, paused=True)]}
    if away["recipient"] == "of bob":
        away = {"recipient": [describe_recipient(inbox) | {"users": ["bob"]}]}
    inbox.status = 503
    with serve_relay(config(**there)) as client:
        post(client, 0)  # it waits and is not sent
    clock.at = START + STEP
    with serve_relay(config(**away)) as client:
        post(client, 2)
    clock.at, inbox.status = START + 4 * STEP, 200
    with serve_relay(config(**there)) as client:
        post(client, 3, 4)  # late fixes of the absence
        post(client, 5)
        wait_for(lambda: inbox.messages)
        post(client, 6)
        wait_for(lambda: len(inbox.messages) == 2)
    assert list_times(inbox) == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"url": "?to=elsewhere"}, {"precision": "2km"}, {"content": "zone"}], ids=str)
def test_changed_address_precision_or_content_makes_a_new_recipient(config, inbox, change):
    inbox.status = 503
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        post(client, 0, 1)
        assert [shown["had_other_settings"] for shown in log_in(client)["recipients"]] == [False]
    inbox.status = 200
    if "url" in change:
        change = {"url": inbox.url + change["url"]}
    with serve_relay(
        config(recipient=[describe_recipient(inbox) | change, describe_recipient(inbox) | {"name": "new"}])
    ) as client:
        post(client, 2)
        wait_for(lambda: len(inbox.messages) == 2)
        assert [shown["had_other_settings"] for shown in log_in(client)["recipients"]] == [True, False]
    assert list_times(inbox) == [2, 2]
    assert all(message.get("epsilon_total") is None for message in read_messages(inbox))


@pytest.mark.parametrize(
    ("before", "after", "is_other"),
    [
        ({}, {}, False),
        ({"content": "zone"}, {"content": "zone"}, False),
        ({}, {"users": ("ann",), "headers": {"a": "b"}, "when_withheld": "nothing"}, False),
        ({"precision": "2km"}, {"precision": "2000m"}, False),
        ({"precision": "2km"}, {"precision": "1km"}, True),
        ({}, {"url": "http://127.0.0.1:9/elsewhere"}, True),
        ({}, {"kind": "overland"}, True),
        ({}, {"content": "zone"}, True),
        ({}, {"true_locations_unprotected": True}, True),
    ],
)
def test_restart_makes_a_new_recipient_only_if_address_precision_or_content_differ(tmp_path, before, after, is_other):
    with SessionStore(tmp_path / "users.db") as store, Session.open(store, "ann", make_engine()) as session:
        tables = RecipientTables(store)
        for settings in (before, after):
            family = Recipient(**make_recipient("family").model_dump() | settings)
            tables.set_active_recipients(session.number, {family.key: family})
        assert tables.has_other_settings(family.key, session.number, "family") == is_other
        assert len(tables.list_active_recipients()["ann"]) == 1


@pytest.mark.slow
def test_pause_clears_queue_of_true_locations(config, inbox, clock):
    true_places = describe_recipient(inbox, true_locations_unprotected=True)
    clock.at = START + 5 * STEP
    with serve_relay(config(recipient=[true_places])) as client:
        log_in(client)
        inbox.status = 503
        post(client, *range(6))
        pause(client, paused=True)
        time.sleep(1)  # messages in transit when the pause began are refused, too
        inbox.status = 200
        clock.at += 1
        pause(client, paused=False)
        post(client, 5)  # from the time before the pause ended
        clock.at = START + 6 * STEP
        post(client, 6)
        wait_for(lambda: inbox.messages)
    assert list_times(inbox) == [6]


@pytest.mark.slow
def test_pause_ends_at_its_time_and_overlapping_timesteps_are_not_sent(config, inbox, clock):
    settings = config(recipient=[describe_recipient(inbox)])
    with serve_relay(settings) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: inbox.messages)
        pause(client, paused=True, until=START + 2 * STEP + 1)
        (shown,) = client.get("/page/state").json()["recipients"]
        assert (shown["paused"], shown["paused_until"]) == (True, START + 2 * STEP + 1)
        post(client, 1)
        clock.at = START + 3 * STEP
        post(client, 2, 3)  # the pause ended within step 3
        assert not client.get("/page/state").json()["recipients"][0]["paused"]
        post(client, 4)
        wait_for(lambda: len(inbox.messages) == 2)
        pause(client, paused=True)
        (shown,) = client.get("/page/state").json()["recipients"]
        assert (shown["paused"], shown["paused_until"]) == (True, None)
    assert list_times(inbox) == [0, 4]


@pytest.mark.parametrize("change", ["pause", "absence", "link"])
def test_timestep_that_begins_in_the_second_in_which_a_pause_ends_is_not_sent(tmp_path, clock, change):
    with SessionStore(tmp_path / "users.db") as store, Session.open(store, "ann", make_engine()) as session:
        tables, family = RecipientTables(store), {"family": make_recipient("family")}
        tables.set_active_recipients(session.number, family)
        session.release(3, 0)
        if change == "pause":
            tables.pause("family", session.number, FOREVER)
        elif change == "absence":
            tables.set_active_recipients(session.number, {})
        clock.at = START + 0.5
        if change == "pause":
            tables.pause("family", session.number, None)
        elif change == "absence":
            tables.set_active_recipients(session.number, family)
        else:
            tables.add_link(session.number, "map", 0, START + STEP)
        assert not any(state.is_paused for state in tables.list_links(session.number))
        clock.at = START + 1
        assert tables.list_partial_recipients(session.number, START) == {}
        assert len(tables.list_partial_recipients(session.number, START + 1)) == 1
        if change == "link":
            assert tables.list_partial_recipients(session.number, START + STEP) == {}, "it has ended by then"


@pytest.mark.parametrize("is_paused", [False, True], ids=["before a pause", "in a pause"])
@pytest.mark.parametrize("until", [0, START - 1, START])
def test_pause_that_would_have_ended_is_refused_and_changes_nothing(config, inbox, clock, is_paused, until):
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        log_in(client)
        if is_paused:
            pause(client, paused=True)
        body = {"recipient": "family", "paused": True, "until": until}
        for language, error in (("en", TEXTS["en"]["reason_pause"]), ("de", TEXTS["de"]["reason_pause"])):
            answer = client.post("/page/pause", json=body, headers={"Accept-Language": language})
            assert (answer.status_code, answer.json()["error"]) == (400, error)
        (shown,) = client.get("/page/state").json()["recipients"]
        assert (shown["paused"], shown["paused_until"]) == (is_paused, None)


@pytest.mark.parametrize("num_releases", [0, 1])
def test_pause_continues_under_other_settings_of_the_recipient(tmp_path, clock, num_releases):
    with SessionStore(tmp_path / "users.db") as store, Session.open(store, "ann", make_engine()) as session:
        tables, family = RecipientTables(store), make_recipient("family")
        tables.set_active_recipients(session.number, {"old": family})
        for slot in range(num_releases):
            session.release(3, slot)
        tables.pause("old", session.number, START + STEP)
        tables.set_active_recipients(session.number, {"new": family, "other": make_recipient("other")})
        states = {key: tables.get_state(key, session.number) for key in ("new", "other")}
        assert {key: state.is_paused for key, state in states.items()} == {"new": True, "other": False}
        clock.at = START + 2 * STEP
        assert "new" not in tables.list_partial_recipients(session.number, START)
        assert "new" in tables.list_partial_recipients(session.number, START + STEP)


@pytest.mark.parametrize("last", ["old", "third"])
@pytest.mark.parametrize("is_absent_between", [False, True])
def test_decision_of_the_user_holds_for_all_settings_of_a_recipient(tmp_path, clock, last, is_absent_between):
    """Decide in every way under two settings, and expect the last decision under the next."""
    with SessionStore(tmp_path / "users.db") as store, Session.open(store, "ann", make_engine()) as session:
        tables = RecipientTables(store)
        session.release(3, 0)
        decisions = ["none", "pause", "resume", "expired"]
        for number, pair in enumerate(product(decisions, repeat=2)):
            family, is_paused = make_recipient(f"family {number}"), False
            for settings, decision in zip(("old", "new"), pair, strict=True):
                key = f"{settings} {number}"
                tables.set_active_recipients(session.number, {key: family})
                assert tables.get_state(key, session.number).is_paused == is_paused
                if decision == "expired":
                    tables.pause(key, session.number, clock.at + 5)
                    clock.at += 10
                elif decision != "none":
                    tables.pause(key, session.number, FOREVER if decision == "pause" else None)
                is_paused = is_paused if decision == "none" else decision == "pause"
                if is_absent_between:
                    tables.set_active_recipients(session.number, {})
            key = f"{last} {number}"
            tables.set_active_recipients(session.number, {key: family})
            clock.at += 2
            assert tables.get_state(key, session.number).is_paused == is_paused, pair
            assert tables.list_partial_recipients(session.number, clock.at) == ({} if is_paused else {key: MAIN_QUERY})


def test_pause_of_a_link_leaves_other_links_and_recipients_of_its_name(tmp_path, clock):
    with SessionStore(tmp_path / "users.db") as store, Session.open(store, "ann", make_engine()) as session:
        tables = RecipientTables(store)
        tables.set_active_recipients(session.number, {"family": make_recipient("family")})
        for _ in range(2):
            tables.add_link(session.number, "family", 0, START + STEP)
        first, second = (link.key for link in tables.list_links(session.number))
        tables.pause(first, session.number, FOREVER)
        states = [tables.get_state(key, session.number) for key in (first, second, "family")]
        assert [state.paused_until == FOREVER for state in states] == [True, False, False]
        tables.pause("family", session.number, FOREVER)
        states = [tables.get_state(key, session.number) for key in (first, second, "family")]
        assert [state.paused_until == FOREVER for state in states] == [True, False, True]


@pytest.mark.parametrize("until", [0, START - 1, START])
def test_pause_until_a_past_time_raises(tmp_path, clock, until):
    with SessionStore(tmp_path / "users.db") as store, Session.open(store, "ann", make_engine()) as session:
        tables = RecipientTables(store)
        tables.set_active_recipients(session.number, {"family": make_recipient("family")})
        with pytest.raises(InvalidInputError, match=f"until must be in the future, got {until}"):
            tables.pause("family", session.number, until)


@pytest.mark.slow
def test_pause_before_first_release_is_respected(config, inbox, clock, tmp_path):
    with serve_relay(config(recipient=[describe_recipient(inbox)])) as client:
        log_in(client)
        pause(client, paused=True, until=START + STEP)
        post(client, 0)
        clock.at = START + 2 * STEP
        post(client, 2)
        wait_for(lambda: inbox.messages)
    assert list_times(inbox) == [2]
    estimate = read_releases(tmp_path / "users.db")[1].record.estimate
    model = load_model(config().model)
    assert read_messages(inbox)[0]["estimate_latitude"] != pytest.approx(
        to_degrees(np.array([estimate]), model.space)[0, 0], abs=1e-7
    )


@pytest.mark.slow
def test_link_contains_releases_from_its_creation_to_its_end(config, inbox, clock, tmp_path):
    with serve_relay(config()) as client:
        post(client, 0)
    settings = config()
    sessions = Sessions(settings)
    try:
        tables = sessions.recipient_tables
        session = sessions._get_session_number("ann")
        clock.at = START
        on_thread = lambda work, *values: sessions._thread.submit(work, *values).result()  # noqa: E731
        with pytest.raises(InvalidInputError, match="must be in the future; choose a later time"):
            on_thread(tables.add_link, session, "Bea", 0, START)
        token = on_thread(tables.add_link, session, "Bea", 0, START + 3 * STEP)
        on_thread(sessions.stream.take, "ann", np.datetime64(START + STEP, "s"), 45.0, -30.0)
        user, link = on_thread(tables.find_link, token)
        clock.at = START + 3 * STEP - 1
        assert on_thread(tables.find_link, token + "x") is None
        (message,) = on_thread(sessions.list_link_messages, "ann", link, 500)
        assert (user, link.name, link.ends, message.second) == ("ann", "Bea", START + 3 * STEP, START + STEP)
        clock.at = START + 3 * STEP
        on_thread(sessions.stream.take, "ann", np.datetime64(START + 3 * STEP, "s"), 45.0, -30.0)
        assert on_thread(tables.find_link, token) is None
        assert len(on_thread(sessions.list_link_messages, "ann", link, 500)) == 1
        assert [link.has_ended for link in on_thread(tables.list_links, session)] == [True]
        for _ in range(20):
            on_thread(tables.add_link, session, "x", 0, FOREVER)
        with pytest.raises(InvalidInputError, match="20 links"):
            on_thread(tables.add_link, session, "x", 0, FOREVER)
        on_thread(tables.end_link, on_thread(tables.list_links, session)[-1].key, session)
        links = on_thread(tables.list_links, session)
        assert sum(not link.has_ended for link in links) == 19
    finally:
        sessions.close()
    assert token.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    model, second = load_model(settings.model), read_releases(tmp_path / "users.db")[1]
    engine = settings.release.engine(model)
    belief = Belief.initial(model, second.slot - 1).predict(model, 1, second.slot - 1)
    step = engine.build_plan(belief, second.record.epsilon)
    belief = belief.update(engine.log_likelihood(step, second.record.released))
    expected = to_degrees((belief.probabilities @ engine.measurements.points)[np.newaxis], model.space)[0]
    assert (message.latitude, message.longitude) == pytest.approx(expected, abs=1e-9)


def read_trail(client):
    locations = client.get("/page/trail", params={"recipient": "family", "from": 1}).json()["locations"]
    return [(shown["number"], shown["last_known"]) for shown in locations]


@pytest.mark.slow
def test_last_known_time_after_a_pause_is_that_of_the_last_sent_draw_in_every_process(config, inbox, clock):
    settings = config(recipient=[describe_recipient(inbox)], limits={"epsilon": 0.5})
    with serve_relay(settings) as client:
        log_in(client)
        post(client, 0, 1)  # the second is withheld
        wait_for(lambda: len(inbox.messages) == 2)
        pause(client, paused=True)
        clock.at = START + 3 * STEP
        pause(client, paused=False)
        post(client, 4, 5)
        wait_for(lambda: len(inbox.messages) == 4)
        wait_for(lambda: len(read_trail(client)) == 2)  # the relay stores that it sent a message after the answer
        shown = read_trail(client)
    assert [message["last_known"] for message in read_messages(inbox)] == ["2024-03-07T09:00:00Z"] * 4
    assert shown == [(2, START), (3, START)]
    with serve_relay(settings) as client:
        log_in(client)
        assert read_trail(client) == shown


@pytest.mark.slow
@pytest.mark.parametrize("is_new", [False, True], ids=["sent all", "own belief"])
def test_draws_that_a_pause_discards_determine_no_later_message(config, inbox, clock, is_new):
    """The recipient answers with errors, so the newest of the waiting releases is tried."""
    settings = config(recipient=[describe_recipient(inbox)], limits={"epsilon": 1.0 + 0.5 * is_new})
    if is_new:
        with serve_relay(config(limits={"epsilon": 1.5})) as client:
            post(client, -1)
    with serve_relay(settings) as client:
        log_in(client)
        post(client, 0)
        wait_for(lambda: inbox.messages)
        inbox.status = 503
        post(client, 1, 2)
        wait_for(lambda: count_messages(client, "failed").get("family", 0) >= 12)
        pause(client, paused=True)
        clock.at = START + 3 * STEP
        pause(client, paused=False)
        inbox.status = 200
        post(client, 4)
        wait_for(lambda: len(inbox.messages) == 2)
    first, last = read_messages(inbox)
    assert (first["released"], last["released"], last["last_known"]) == (True, False, None)
    model = load_model(settings.model)
    first_slot = START // STEP - is_new
    prior = Belief.initial(model, first_slot).predict(model, 4 + is_new, first_slot)
    engine = settings.release.engine(model)
    guess = prior.infer(engine.measurements.by_columns, engine.cell)
    assert last["adversary_max_posterior"] == pytest.approx(guess.max_probability, rel=1e-5)


@pytest.mark.slow
def test_inference_of_a_recipient_with_own_belief_is_that_of_its_last_message(config, inbox):
    release = {"policy": "utility:1km", "epsilon": 30.0}
    with serve_relay(config(release=release)) as client:
        post(client, 0)
    with serve_relay(config(release=release, recipient=[describe_recipient(inbox)])) as client:
        log_in(client)
        post(client, 1)
        wait_for(lambda: client.get("/page/state").json()["recipients"][0]["last"])
        before = client.get("/page/state").json()["recipients"][0]
        inbox.status = 503
        post(client, *range(2, 32))
    with serve_relay(
        config(release=release, recipient=[describe_recipient(inbox)])
    ) as client:  # it computes the inference again
        log_in(client)
        after = client.get("/page/state").json()["recipients"][0]
    assert (before["num_waiting"], after["num_waiting"]) == (0, 30)
    assert "max_posterior" in after["last"]["inference"], "the budget is large, so that the figures are shown"
    assert after["last"] == before["last"]


def test_recipient_rows_are_keyed_by_recipient_and_session(config, tmp_path):
    with serve_relay(config()) as client:
        client.post("/owntracks", json=make_location(), auth=ANN)
    with SessionStore(tmp_path / "users.db") as store:
        tables = RecipientTables(store)
        tables.set_active_recipients(1, {"recipient a": make_recipient("a"), "recipient b": make_recipient("b")})
        tables.set_active_recipients(1, {"recipient b": make_recipient("b")})
        assert json.dumps([tables.get_state(f"recipient {name}", 1).is_absent for name in "ab"]) == "[true, false]"
        assert tables.get_state("recipient a", 2) is None
