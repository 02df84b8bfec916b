"""Recipients as people mean them: absent is paused, a new address is a new reader, links end, a pause clears queues."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from dphmm.errors import InvalidInputError
from dphmm.jobs.models import load_model
from dphmm.model.belief import Belief
from dphmm.release.session_store import SessionStore
from dphmm.release.trajectory import degrees_of
from dphmm.serve import delivery
from dphmm.serve.recipients import FOREVER, RecipientTables
from dphmm.serve.sessions import Sessions
from tests.serve.conftest import START, location, relay, wait_for
from tests.serve.test_delivery import STEP, log_in, post, recipient, told
from tests.serve.test_endpoints import ANN, releases


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_LONGEST_WAIT_S", 0.1)
    monkeypatch.setattr(delivery, "LONGEST_CONNECTION_WAIT_S", 0.1)


def times(inbox):
    return [(int(np.datetime64(one["time"].rstrip("Z")).astype(int)) - START) // STEP for one in told(inbox)]


def pause(client, name="family", **said):
    answer = client.post("/page/pause", json={"recipient": name, **said})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("away", [{"recipient": []}, {"recipient": "paused"}, {"recipient": "of bob"}])
def test_who_is_taken_out_of_the_file_and_put_back_is_told_nothing_of_the_time_between(config, inbox, clock, away):
    there = {"recipient": [recipient(inbox)]}
    if away["recipient"] == "paused":
        away = {"recipient": [recipient(inbox, paused=True)]}
    if away["recipient"] == "of bob":
        away = {"recipient": [recipient(inbox) | {"users": ["bob"]}]}
    inbox.status = 503
    with relay(config(**there)) as client:
        post(client, 0)  # waits, and is not sent
    clock.at = START + STEP
    with relay(config(**away)) as client:
        post(client, 2)
    clock.at, inbox.status = START + 4 * STEP, 200
    with relay(config(**there)) as client:
        post(client, 3, 4)  # late, of the time between
        post(client, 5)
        wait_for(lambda: inbox.messages)
        post(client, 6)
        wait_for(lambda: len(inbox.messages) == 2)
    assert times(inbox) == [5, 6]


@pytest.mark.parametrize("change", ["address", "precision"])
def test_under_another_address_or_with_another_precision_a_recipient_is_another_reader(config, inbox, change):
    inbox.status = 503
    with relay(config(recipient=[recipient(inbox)])) as client:
        post(client, 0, 1)
    inbox.status = 200
    moved = recipient(inbox) | ({"url": f"{inbox.url}?to=elsewhere"} if change == "address" else {"precision": "2km"})
    with relay(config(recipient=[moved])) as client:
        post(client, 2)
        wait_for(lambda: inbox.messages)
    assert times(inbox) == [2]
    assert "epsilon_so_far" not in told(inbox)[0]


def test_a_pause_clears_what_waits_of_true_places_too(config, inbox, clock):
    mine = recipient(inbox, true_places_unprotected=True)
    clock.at = START + 5 * STEP
    with relay(config(recipient=[mine])) as client:
        log_in(client)
        inbox.status = 503
        post(client, *range(6))
        pause(client, paused=True)
        time.sleep(1)  # what was on its way when the pause began is refused too
        inbox.status = 200
        clock.at += 1
        pause(client, paused=False)
        post(client, 5)  # of the time before the pause ended
        clock.at = START + 6 * STEP
        post(client, 6)
        wait_for(lambda: inbox.messages)
    assert times(inbox) == [6]


def test_a_pause_until_a_time_ends_by_itself_and_steps_that_touch_it_stay_untold(config, inbox, clock):
    made = config(recipient=[recipient(inbox)])
    with relay(made) as client:
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
    assert times(inbox) == [0, 4]


def test_a_pause_before_the_first_release_is_one_too(config, inbox, clock, tmp_path):
    with relay(config(recipient=[recipient(inbox)])) as client:
        log_in(client)
        pause(client, paused=True, until=START + STEP)
        post(client, 0)
        clock.at = START + 2 * STEP
        post(client, 2)
        wait_for(lambda: inbox.messages)
    assert times(inbox) == [2]
    own = releases(tmp_path / "people.db")[1].record.estimate
    model = load_model(config().model)
    assert told(inbox)[0]["estimate_latitude"] != pytest.approx(
        degrees_of(np.array([own]), model.space)[0, 0], abs=1e-7
    )


def test_a_link_tells_what_is_released_from_its_making_to_its_end_and_what_follows_from_that(
    config, inbox, clock, tmp_path
):
    with relay(config()) as client:
        post(client, 0)
    made = config()
    people = Sessions(made)
    try:
        tables = people.tables
        session = people._number("ann")
        clock.at = START
        on_thread = lambda work, *values: people._thread.submit(work, *values).result()  # noqa: E731
        with pytest.raises(InvalidInputError, match="ended already"):
            on_thread(tables.add_link, session, "Bea", 0, START)
        token = on_thread(tables.add_link, session, "Bea", 0, START + 3 * STEP)
        on_thread(people.people.take, "ann", np.datetime64(START + STEP, "s"), 45.0, -30.0)
        user, link = on_thread(tables.link, token)
        clock.at = START + 3 * STEP - 1
        assert on_thread(tables.link, token + "x") is None
        ((number, message),) = on_thread(people.told_by_link, "ann", link, 0, 500)
        assert (user, link.name, link.ends, number) == ("ann", "Bea", START + 3 * STEP, 1)
        clock.at = START + 3 * STEP
        on_thread(people.people.take, "ann", np.datetime64(START + 3 * STEP, "s"), 45.0, -30.0)
        assert on_thread(tables.link, token) is None
        assert len(on_thread(people.told_by_link, "ann", link, 0, 500)) == 1
        assert on_thread(tables.links, session) == []
        for _ in range(20):
            on_thread(tables.add_link, session, "x", 0, FOREVER)
        with pytest.raises(InvalidInputError, match="20 links"):
            on_thread(tables.add_link, session, "x", 0, FOREVER)
        on_thread(tables.end_link, on_thread(tables.links, session)[0].key, session)
        assert len(on_thread(tables.links, session)) == 19
    finally:
        people.close()
    assert token.encode() not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    model, second = load_model(made.model), releases(tmp_path / "people.db")[1]
    engine = made.release.engine(model)
    belief = Belief.first(model, second.slot - 1).predict(model, 1, second.slot - 1)
    step = engine.prepare_on(belief, engine.plan(belief), second.record.epsilon)
    belief = belief.update(engine.log_likelihood(step, second.record.released))
    expected = degrees_of((belief.probabilities @ engine.measurements.points)[np.newaxis], model.space)[0]
    assert (message.latitude, message.longitude) == pytest.approx(expected, abs=1e-9)


def test_rows_of_a_reader_are_kept_by_key_and_session(config, tmp_path):
    with relay(config()) as client:
        client.post("/owntracks", json=location(), auth=ANN)
    with SessionStore(tmp_path / "people.db") as store:
        tables = RecipientTables(store)
        tables.set_present(1, {"recipient a": ("a", "main", 0), "recipient b": ("b", "main", 0)})
        tables.set_present(1, {"recipient b": ("b", "main", 0)})
        assert json.dumps([tables.reader(f"recipient {name}", 1).absent for name in "ab"]) == "[true, false]"
        assert tables.reader("recipient a", 2) is None
