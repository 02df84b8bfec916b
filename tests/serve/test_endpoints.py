"""The relay over HTTP: who may post, what is answered, and that nothing true is kept, logged or answered."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dphmm.arrays import random_source
from dphmm.model.model import MarkovModel
from dphmm.model.time_classes import TimeClasses
from dphmm.release.noise import StepNoise
from dphmm.release.session_store import SessionStore
from tests.serve.conftest import START, TOKEN, location, relay, wait_for
from tests.serve.test_payloads import OSMAND, OVERLAND, TRACCAR

ANN = ("ann", TOKEN["ann"])
BEARER = {"Authorization": f"Bearer {TOKEN['ann']}"}


def releases(path: Path, user: str = "ann"):
    with SessionStore(path, readonly=True) as store:
        session = store.session(user)
        return [] if session is None else list(store.releases(session.number))


def posts(client, second=START):
    """The same place through every door, as each app posts it."""
    at = datetime.fromtimestamp(second, UTC).isoformat()
    feature = json.loads(json.dumps(OVERLAND["locations"][0]))
    feature["properties"]["timestamp"] = at
    point = {"device_id": TOKEN["ann"], "location": TRACCAR["location"] | {"timestamp": at}}
    fields = OSMAND | {"id": TOKEN["ann"], "timestamp": str(second)}
    plain = {"time": at, "latitude": 45.0, "longitude": -30.0}
    return {
        "owntracks": client.post("/owntracks", json=location(second), auth=ANN),
        "owntracks, named by a header": client.post(
            "/owntracks", json=location(second), auth=("", TOKEN["ann"]), headers={"X-Limit-U": "ann"}
        ),
        "overland": client.post("/overland", json={"locations": [feature]}, headers=BEARER),
        "overland, token in the query": client.post(
            f"/overland?token={TOKEN['ann']}", json={"locations": [feature]}
        ),
        "osmand": client.get("/osmand", params=fields),
        "osmand, as a form": client.post("/osmand", data=fields),
        "traccar": client.post("/traccar", json=point),
        "gpslogger": client.get("/gpslogger", params=fields | {"token": TOKEN["ann"]}),
        "plain": client.post("/fix", json=plain, headers=BEARER),
        "plain, a list": client.post("/fix", json=[plain], headers=BEARER),
    }  # fmt: skip


def test_one_moment_has_one_release_whoever_posts_it_and_how_often(config, tmp_path):
    made = config()
    with relay(made) as client:
        for _ in range(2):
            for name, answer in posts(client).items():
                assert answer.status_code == 200, name
    with relay(made) as client:  # after a restart
        posts(client)
    (only,) = releases(tmp_path / "people.db")
    assert only.slot * 300 == START


@pytest.mark.parametrize("depends_on", ["hours", "dates of an event"])
def test_first_releases_may_depend_on_their_time(config, tmp_path, depends_on):
    """Before, a relay with such a model or cap did not start."""
    made = config()
    if depends_on == "hours":
        plain = MarkovModel.load(made.model)
        classes = TimeClasses.of("hours", 300, "Atlantic/Azores")
        varying = MarkovModel([plain.transition] * 24, [plain.initial] * 24, plain.space, 300, classes)
        varying.save(tmp_path / "hours.npz")
        made = config(model=str(tmp_path / "hours.npz"))
    else:
        cap = {"event": "at:0 on 2024-03-07 any day 9-12", "probability": 0.9}
        made = config(release={"policy": "utility:1km", "epsilon": 0.5, "caps": [cap]})
    with relay(made) as client:
        for second in (START, START + 300):
            assert client.post("/owntracks", json=location(second), auth=ANN).status_code == 200
    assert [one.slot * 300 - START for one in releases(tmp_path / "people.db")] == [0, 300]


def test_apps_get_the_answers_that_let_their_queues_go_on(client):
    answers = posts(client)
    assert answers["owntracks"].json() == []
    assert answers["overland"].json() == {"result": "ok"}
    for body in (b"", b"nonsense", b'{"_type": "dump"}', b'{"_type": "encrypted", "data": "x"}'):
        answer = client.post("/owntracks", content=body, auth=ANN)
        assert (answer.status_code, answer.json()) == (200, [])
    late = client.post("/owntracks", json=location(START - 90_000), auth=ANN)
    ahead = client.post("/owntracks", json=location(START + 10**9), auth=ANN)
    assert (late.status_code, ahead.status_code) == (200, 200)
    metrics = client.get("/metrics").text
    assert 'dphmm_fixes_total{outcome="unreleased"} 1' in metrics
    assert 'dphmm_fixes_total{outcome="ahead"} 1' in metrics


def test_a_batch_of_old_points_in_any_order_is_released_in_time_s_order(config, tmp_path):
    features = []
    for k in (7, 3, 9, 0, 1, 8, 2, 6, 4, 5):
        feature = json.loads(json.dumps(OVERLAND["locations"][0]))
        feature["properties"]["timestamp"] = datetime.fromtimestamp(START + 300 * k, UTC).isoformat()
        features.append(feature)
    with relay(config()) as client:
        for _ in range(2):
            assert client.post("/overland", json={"locations": features}, headers=BEARER).json() == {"result": "ok"}
    slots = [one.slot for one in releases(tmp_path / "people.db")]
    assert slots == [START // 300 + k for k in range(10)]


@pytest.mark.parametrize(
    ("path", "sent", "status"),
    [
        ("/owntracks", {"json": location()}, 401),
        ("/owntracks", {"json": location(), "auth": ("ann", "wrong")}, 401),
        ("/owntracks", {"json": location(), "auth": ("bob", TOKEN["ann"])}, 401),
        ("/owntracks", {"json": location(), "auth": ANN, "headers": {"X-Limit-U": "bob"}}, 401),
        ("/owntracks", {"json": location(), "headers": {"Authorization": "Basic \x80"}}, 401),
        ("/overland", {"json": OVERLAND}, 401),
        ("/overland?token=wrong", {"json": OVERLAND}, 401),
        ("/osmand", {"data": OSMAND}, 400),
        ("/traccar", {"json": TRACCAR}, 404),
        ("/gpslogger", {"data": OSMAND}, 401),
        ("/home-assistant/wrong", {"json": {"type": "update_location"}}, 404),
        ("/fix", {"json": {}}, 401),
        ("/fix", {"json": {}, "headers": BEARER}, 400),
        ("/fix", {"content": b"[1", "headers": BEARER}, 400),
        ("/fix", {"json": [{"time": "2024-03-07", "latitude": 45, "longitude": -30}], "headers": BEARER}, 400),
        ("/fix", {"content": b"x" * (1 << 20) + b"x", "headers": BEARER}, 413),
        ("/owntracks", {"content": iter([b"x" * (1 << 19)] * 3), "auth": ANN}, 413),
        ("/elsewhere", {"json": {}}, 404),
    ],
)
def test_what_may_not_be_posted_is_refused_and_nothing_is_released(config, tmp_path, path, sent, status):
    if "headers" in sent and "\x80" in sent["headers"].get("Authorization", ""):
        sent = sent | {"headers": {"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()}}
    with relay(config()) as client:
        assert client.post(path, **sent).status_code == status
    assert releases(tmp_path / "people.db") == []


def test_nothing_true_is_stored_logged_or_answered(config, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    latitude, longitude = 45.0123456, -30.0123456
    sent = {**location(latitude=latitude, longitude=longitude), "SSID": "Home Sweet Home", "batt": 51}
    with relay(config()) as client:
        seen = client.post("/owntracks", json=sent, auth=ANN).text
        fields = OSMAND | {"id": TOKEN["ann"], "lat": str(latitude), "lon": str(longitude), "timestamp": "x"}
        seen += client.get("/osmand", params=fields).text
        seen += client.post("/fix", json={"time": "x", "latitude": latitude, "longitude": 0}, headers=BEARER).text
        seen += client.get("/metrics").text + client.get("/health").text + client.get("/openapi.json").text
    logged = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith(("dphmm", "uvicorn")))
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in ("45.0123", "30.0123", "Home Sweet Home", TOKEN["ann"], "b0:f2"):
        assert secret not in seen
        assert secret not in logged
        assert secret.encode() not in kept


def test_a_store_that_is_full_or_gone_is_answered_by_later_and_the_same_post_is_taken_then(config, monkeypatch):
    from dphmm.errors import OutputError

    with relay(config()) as client:
        with monkeypatch.context() as patch:
            patch.setattr(SessionStore, "append", lambda *_: (_ for _ in ()).throw(OutputError("no room at 45.0123")))
            answer = client.post("/owntracks", json=location(), auth=ANN)
            assert answer.status_code == 503
            assert "45.0123" not in answer.text
        assert client.post("/owntracks", json=location(), auth=ANN).status_code == 200


STEPS = [0, 1, 0, 2, 4, 4, 2, 3, 10**6]
"""The steps of fixes: new ones, repeated ones, late ones, and one from the far future."""
HERE, BORDER_AND_BEYOND = (45.0, -30.0), (45.4, -30.4)


def seen_of(config, places, caplog, monkeypatch):
    """What is answered, counted, logged and released of fixes, with draws that are the same whatever the place is."""
    real, drawn, answers = StepNoise.draw, itertools.count(), []
    caplog.clear()
    with monkeypatch.context() as patched:
        patched.setattr(StepNoise, "draw", lambda self, state, _: real(self, 7, random_source(next(drawn))))
        with relay(config) as client:
            for step, (latitude, longitude) in zip(STEPS, places, strict=True):
                answer = client.post("/owntracks", json=location(START + 300 * step, latitude, longitude), auth=ANN)
                answers.append((answer.status_code, answer.text, sorted(answer.headers)))
            answers.append(client.get("/health").json())
            counted = client.get("/metrics").text
    logged = [one.getMessage() for one in caplog.records if one.name.startswith("dphmm")]
    told = [(one.slot, one.record.released) for one in releases(Path(config.store))]
    return answers, counted, logged, told


@pytest.mark.parametrize(
    ("release", "limits", "released"),
    [({"outside": "omit"}, {"epsilon": 1.0}, 2), ({"outside": "border"}, None, 4)],
    ids=["a place outside has no release, and one inside no budget", "a place outside has the nearest one's release"],
)
def test_what_the_relay_counts_answers_and_logs_is_the_same_inside_the_region_and_out_where_releases_are(
    config, tmp_path, caplog, monkeypatch, release, limits, released
):
    caplog.set_level(logging.DEBUG)
    inside, outside = [HERE] * len(STEPS), [HERE] * 3 + [BORDER_AND_BEYOND] * (len(STEPS) - 3)
    seen = []
    for name, places in (("in", inside), ("out", outside)):
        changes = {"store": str(tmp_path / name), "limits": limits}
        changes["release"] = {"policy": "utility:1km", "epsilon": 0.5, **release}
        seen.append(seen_of(config(**changes), places, caplog, monkeypatch))
    assert seen[0] == seen[1]
    assert len(seen[0][-1]) == released
    assert 'dphmm_fixes_total{outcome="ahead"} 1' in seen[0][1]
    assert 'dphmm_requests_total{path="/owntracks"} 9' in seen[0][1]


def test_limits_hold_and_phones_are_not_told(config, tmp_path):
    from dphmm import Limits

    with relay(config(limits={"epsilon": 1.0})) as client:
        for k in range(4):
            assert client.post("/owntracks", json=location(START + 300 * k), auth=ANN).json() == []
        assert 'dphmm_fixes_total{outcome="unreleased"} 2' in client.get("/metrics").text
    assert len(releases(tmp_path / "people.db")) == 2
    assert Limits(epsilon=1.0).epsilon == 1.0


def test_people_whom_the_model_saw_are_refused_without_a_word_to_their_phones(config, tmp_path):
    seen = [{"user": "001", "token": "c" * 40}]
    with relay(config(device=seen)) as client:
        assert client.post("/owntracks", json=location(), auth=("001", "c" * 40)).status_code == 200
        assert 'dphmm_fixes_total{outcome="refused"} 1' in client.get("/metrics").text
    assert releases(tmp_path / "people.db", "001") == []


def test_a_body_that_never_ends_is_given_up(config, monkeypatch):
    monkeypatch.setattr("dphmm.serve.requests._BODY_TIMEOUT_S", 0.2)
    with relay(config()) as client:
        host, port = client.base_url.host, client.base_url.port
        with socket.create_connection((host, port)) as slow:
            slow.sendall(
                f"POST /fix HTTP/1.1\r\nHost: x\r\nAuthorization: {BEARER['Authorization']}\r\n"
                "Content-Length: 100\r\n\r\n{".encode()
            )
            slow.settimeout(10)
            assert b"408" in slow.recv(1000)
        assert client.get("/health").json()["status"] == "ok"


@pytest.fixture
def patient(config, monkeypatch):
    """The address of a relay that closes slow connections after 0.3 seconds."""
    import asyncio
    import threading

    import uvicorn

    from dphmm.serve import server
    from dphmm.serve.endpoints import make_app
    from tests.serve.conftest import wait_for

    monkeypatch.setattr(server, "IDLE_TIMEOUT_S", 0.3)
    app = make_app(config())
    made = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_config=None, http=server.TimedProtocol))
    thread = threading.Thread(target=lambda: asyncio.run(made.serve()), daemon=True)
    thread.start()
    wait_for(lambda: made.started)
    yield made.servers[0].sockets[0].getsockname()
    made.should_exit = True
    thread.join(10)


@pytest.mark.parametrize("asks_first", [False, True])
@pytest.mark.parametrize("said", [b"GET / HT", b"POST /fix HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"])
def test_connections_that_dribble_are_closed_also_after_a_whole_request(patient, asks_first, said):
    ended = False
    with socket.create_connection(patient) as slow:
        slow.settimeout(10)
        if asks_first:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in slow.recv(4096)
        slow.sendall(said)
        slow.settimeout(0.05)
        for _ in range(200):  # ten seconds at most
            try:
                slow.sendall(b"x")
                if slow.recv(4096) == b"":
                    ended = True
                    break
            except TimeoutError:
                continue
            except OSError:
                ended = True
                break
    assert ended
    with socket.create_connection(patient) as other:  # and the others are served
        other.settimeout(10)
        other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in other.recv(4096)


@pytest.mark.parametrize(
    "said",
    [
        b"POST /fix HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /fix HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
    ],
)
def test_requests_that_are_none_are_refused_and_the_others_served(patient, said):
    with socket.create_connection(patient) as wrong:
        wrong.settimeout(10)
        try:
            wrong.sendall(said)
            answer = wrong.recv(4096)
        except OSError:  # closed before all of it was read
            answer = b""
    assert answer == b"" or answer.split()[1] in (b"400", b"401", b"404", b"431")
    with socket.create_connection(patient) as other:
        other.settimeout(10)
        other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in other.recv(4096)


def test_a_backlog_is_released_whole_though_the_same_person_posts_what_is_newer_meanwhile(config, tmp_path):
    features = []
    for k in range(200):
        feature = json.loads(json.dumps(OVERLAND["locations"][0]))
        feature["properties"]["timestamp"] = datetime.fromtimestamp(START + 300 * k, UTC).isoformat()
        features.append(feature)
    with relay(config()) as client, ThreadPoolExecutor(2) as pool:
        backlog = pool.submit(client.post, "/overland", json={"locations": features}, headers=BEARER, timeout=60)
        wait_for(lambda: releases(tmp_path / "people.db"))
        other = client.post("/owntracks", json=location(), auth=("bob", TOKEN["bob"]))  # and others have their turn
        assert not backlog.done()
        assert client.post("/owntracks", json=location(START + 300 * 200), auth=ANN, timeout=60).status_code == 200
        assert (other.status_code, backlog.result().status_code) == (200, 200)
    assert [one.slot for one in releases(tmp_path / "people.db")] == [START // 300 + k for k in range(201)]


def test_a_backlog_that_the_store_breaks_off_is_answered_by_later_and_whole_when_it_comes_again(
    config, tmp_path, monkeypatch
):
    from dphmm.errors import OutputError

    times = [datetime.fromtimestamp(START + 300 * k, UTC).isoformat() for k in range(20)]
    places = [{"time": time, "latitude": 45, "longitude": -30} for time in times]
    real, done = SessionStore.append, itertools.count()

    def full_after_ten(*arguments):
        if next(done) == 10:
            raise OutputError("no room")
        return real(*arguments)

    with relay(config()) as client:
        monkeypatch.setattr(SessionStore, "append", full_after_ten)
        assert client.post("/fix", json=places, headers=BEARER).status_code == 503
        assert len(releases(tmp_path / "people.db")) == 10
        assert client.post("/fix", json=places, headers=BEARER).status_code == 200
    assert len(releases(tmp_path / "people.db")) == 20


def test_a_person_s_messages_take_turns_across_processes_too(config, postgres):
    made = config(store=postgres)
    places = [location(START + 300 * k) for k in range(60)]
    batch = {"locations": [{**OVERLAND["locations"][0], "properties": {"timestamp": one["tst"]}} for one in places]}
    with relay(made) as one, relay(made) as two, ThreadPoolExecutor(2) as pool:
        backlog = pool.submit(one.post, "/overland", json=batch, headers=BEARER, timeout=60)
        wait_for(lambda: releases(postgres))
        assert two.post("/owntracks", json=location(START + 300 * 60), auth=ANN, timeout=60).status_code == 200
        assert backlog.result().status_code == 200
    assert len(releases(postgres)) == 61


def test_a_relay_whose_connection_to_the_database_is_lost_goes_on_and_says_when_it_cannot(config, postgres, inbox):
    import psycopg

    def lose():
        idle = (  # what is lost within a transaction is refused, and asked again by who sent it
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE state = "
            "'idle' AND locktype = 'advisory' AND objid = hashtext(current_schema())::oid AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(postgres, autocommit=True) as other:
            wait_for(lambda: other.execute(idle).fetchall() == [(True,)])

    made = config(store=postgres, recipient=[{"name": "family", "kind": "webhook", "url": inbox.url}])
    with relay(made) as client:
        for k in range(4):
            assert client.post("/owntracks", json=location(START + 300 * k), auth=ANN).status_code == 200
            wait_for(lambda: len(inbox.messages) > k)  # noqa: B023 - it is waited for here
            lose()
        assert client.get("/ready").status_code == 200
        assert client.get("/health").status_code == 200
    assert len(releases(postgres)) == 4


def test_ready_says_that_the_store_is_away_where_alive_does_not(config, monkeypatch):
    from dphmm.serve.sessions import Sessions

    async def away(_):
        return False

    with relay(config()) as client:
        assert client.get("/ready").json() == {"store": True, "broker": None, "oldest_message_s": 0.0}
        monkeypatch.setattr(Sessions, "is_there", away)
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200


def test_what_became_of_what_a_phone_posted_is_said_on_its_page_and_not_to_the_app(config, clock, tmp_path):
    with relay(config()) as client:
        client.post("/page/login", json={"token": TOKEN["ann"]})
        assert client.get("/page/state").json()["heard"] is None
        fields = {"token": TOKEN["ann"], "lat": "45,0", "lon": "-30,0"}
        for sent, became in (
            (lambda: client.post("/owntracks", json={"_type": "encrypted", "data": "x"}, auth=ANN), {"encrypted": 1}),
            (lambda: client.get("/gpslogger", params=fields | {"timestamp": "2024-03-07T09:00"}), {"no_zone": 1}),
            (lambda: client.get("/gpslogger", params=fields | {"timestamp": "x"}), {"malformed": 1}),
            (lambda: client.get("/gpslogger", params=fields | {"timestamp": str(START)}), {"taken": 1}),
            (
                lambda: client.post("/owntracks", json=location(START + 300) | {"acc": 50_000}, auth=ANN),
                {"inaccurate": 1},
            ),
            (lambda: client.post("/owntracks", json=location(START + 10**9), auth=ANN), {"ahead": 1}),
        ):
            assert sent().status_code == 200
            assert client.get("/page/state").json()["heard"] == [START, became]
        counted = client.get("/metrics").text
        assert all(f'outcome="{why}"}} 1' in counted for why in ("encrypted", "no_zone", "malformed"))
        assert "inaccurate" not in counted
    assert [one.slot for one in releases(tmp_path / "people.db")] == [START // 300]


def test_a_fix_that_is_good_to_50_km_decides_no_step_and_of_a_message_the_best_does(config, tmp_path, monkeypatch):
    taken = []

    def batch(*fixes):
        return {
            "locations": [
                {
                    "geometry": {"type": "Point", "coordinates": [-30.0, latitude]},
                    "properties": {"timestamp": START + second, "horizontal_accuracy": metres},
                }
                for second, latitude, metres in fixes
            ]
        }

    from dphmm.release.trajectory import RecordedPeople

    take = RecordedPeople.take

    def seen(people, user, time, *place):
        taken.append(place)
        return take(people, user, time, *place)

    monkeypatch.setattr(RecordedPeople, "take", seen)
    with relay(config()) as client:
        client.post("/overland", json=batch((0, 45.4, 50_000)), headers=BEARER)
        client.post("/overland", json=batch((-9, 45.01, 80), (-8, 45.02, 10), (-7, 45.03, 10)), headers=BEARER)
    assert taken == [(45.02, -30.0)]
    assert len(releases(tmp_path / "people.db")) == 1


def test_traccar_s_json_is_taken_at_the_path_that_its_older_versions_post_to(config, tmp_path):
    with relay(config()) as client:
        assert client.post("/osmand", json=TRACCAR | {"device_id": TOKEN["ann"]}).status_code == 200
        assert client.post("/osmand", json=TRACCAR | {"device_id": "wrong"}).status_code == 400
    assert len(releases(tmp_path / "people.db")) == 1
