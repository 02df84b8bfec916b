"""Tests of the relay over HTTP: access, answers, and no true location stored or logged."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import logging
import resource
import socket
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dphmm.errors import DataFileError, OutputError, SessionMismatchError
from dphmm.model.model import MarkovModel
from dphmm.model.time_classes import TimeClasses
from dphmm.random import as_random_source
from dphmm.release.session_store import SessionStore
from dphmm.release.step_noise import StepNoise
from dphmm.serve import sessions
from tests.serve.conftest import START, TOKEN, get_page_token, make_location, read_metrics, serve_relay, wait_for
from tests.serve.test_incoming_messages import OSMAND, OVERLAND, TRACCAR

ANN = ("ann", TOKEN["ann"])
BEARER = {"Authorization": f"Bearer {TOKEN['ann']}"}


def read_releases(path: Path, user: str = "ann"):
    with SessionStore(path, readonly=True) as store:
        session = store.session(user)
        return [] if session is None else list(store.releases(session.number))


def post_formats(client, second=START):
    """Post one position in every format, as each app does."""
    at = datetime.fromtimestamp(second, UTC).isoformat()
    feature = json.loads(json.dumps(OVERLAND["locations"][0]))
    feature["properties"]["timestamp"] = at
    point = {"device_id": TOKEN["ann"], "location": TRACCAR["location"] | {"timestamp": at}}
    fields = OSMAND | {"id": TOKEN["ann"], "timestamp": str(second)}
    plain = {"time": at, "latitude": 45.0, "longitude": -30.0}
    return {
        "owntracks": client.post("/owntracks", json=make_location(second), auth=ANN),
        "owntracks, named by a header": client.post(
            "/owntracks", json=make_location(second), auth=("", TOKEN["ann"]), headers={"X-Limit-U": "ann"}
        ),
        "overland": client.post("/overland", json={"locations": [feature]}, headers=BEARER),
        "osmand": client.get("/osmand", params=fields),
        "osmand, as a form": client.post("/osmand", data=fields),
        "traccar": client.post("/traccar", json=point),
        "gpslogger": client.post("/gpslogger", data=fields, headers=BEARER),
        "gpslogger, in the query": client.get("/gpslogger", params=fields, auth=("", TOKEN["ann"])),
        "plain": client.post("/fix", json=plain, headers=BEARER),
        "plain, a list": client.post("/fix", json=[plain], headers=BEARER),
    }  # fmt: skip


@pytest.mark.slow
def test_timestep_has_one_release_for_any_app_and_number_of_posts(config, tmp_path):
    settings = config()
    with serve_relay(settings) as client:
        for _ in range(2):
            for name, answer in post_formats(client).items():
                assert answer.status_code == 200, name
    with serve_relay(settings) as client:  # after a restart
        post_formats(client)
    (only,) = read_releases(tmp_path / "users.db")
    assert only.slot * 300 == START


@pytest.mark.parametrize("depends_on", ["hours", "dates of an event"])
def test_time_dependent_first_releases_are_supported(config, tmp_path, depends_on):
    """The relay starts with such a model or cap."""
    settings = config()
    if depends_on == "hour":
        plain = MarkovModel.load(settings.model)
        classes = TimeClasses.from_name("hour", 300, "Atlantic/Azores")
        varying = MarkovModel([plain.transition] * 24, [plain.initial] * 24, plain.space, 300, classes)
        varying.save(tmp_path / "hours.npz")
        settings = config(model=str(tmp_path / "hours.npz"))
    else:
        cap = {"event": "at:0 on 2024-03-07 any day 9-12", "probability": 0.9}
        settings = config(release={"policy": "utility:1km", "epsilon": 0.5, "caps": [cap]})
    with serve_relay(settings) as client:
        for second in (START, START + 300):
            assert client.post("/owntracks", json=make_location(second), auth=ANN).status_code == 200
    assert [release.slot * 300 - START for release in read_releases(tmp_path / "users.db")] == [0, 300]


def test_apps_get_answers_that_clear_their_queues(client):
    answers = post_formats(client)
    assert answers["owntracks"].json() == []
    assert answers["overland"].json() == {"result": "ok"}
    for body in (b"", b"nonsense", b'{"_type": "dump"}', b'{"_type": "encrypted", "data": "x"}'):
        answer = client.post("/owntracks", content=body, auth=ANN)
        assert (answer.status_code, answer.json()) == (200, [])
    late = client.post("/owntracks", json=make_location(START - 90_000), auth=ANN)
    ahead = client.post("/owntracks", json=make_location(START + 10**9), auth=ANN)
    assert (late.status_code, ahead.status_code) == (200, 200)
    metrics = client.get("/metrics").text
    assert 'dphmm_fixes_total{outcome="unreleased"} 1' in metrics
    assert 'dphmm_fixes_total{outcome="ahead"} 1' in metrics


def test_batch_of_unordered_points_is_released_in_time_order(config, tmp_path):
    features = []
    for k in (7, 3, 9, 0, 1, 8, 2, 6, 4, 5):
        feature = json.loads(json.dumps(OVERLAND["locations"][0]))
        feature["properties"]["timestamp"] = datetime.fromtimestamp(START + 300 * k, UTC).isoformat()
        features.append(feature)
    with serve_relay(config()) as client:
        for _ in range(2):
            assert client.post("/overland", json={"locations": features}, headers=BEARER).json() == {"result": "ok"}
    slots = [release.slot for release in read_releases(tmp_path / "users.db")]
    assert slots == [START // 300 + k for k in range(10)]


def test_user_name_with_colons_posts_by_basic_authentication(config, tmp_path):
    user = "ann: the: first"
    with serve_relay(config(device=[{"user": user, "token": TOKEN["ann"]}])) as client:
        assert client.post("/owntracks", json=make_location(), auth=(user, TOKEN["ann"])).status_code == 200
        assert client.post("/owntracks", json=make_location(), auth=("ann", TOKEN["ann"])).status_code == 401
    assert len(read_releases(tmp_path / "users.db", user)) == 1


@pytest.mark.parametrize(
    ("path", "sent", "status"),
    [
        ("/owntracks", {"json": make_location()}, 401),
        ("/owntracks", {"json": make_location(), "auth": ("ann", "wrong")}, 401),
        ("/owntracks", {"json": make_location(), "auth": ("bob", TOKEN["ann"])}, 401),
        ("/owntracks", {"json": make_location(), "auth": ANN, "headers": {"X-Limit-U": "bob"}}, 401),
        (
            "/owntracks",
            {"json": make_location(), "headers": {"Authorization": b"Basic " + base64.b64encode(b"\xff:\xff")}},
            401,
        ),
        ("/owntracks", {"json": make_location(), "headers": {"Authorization": b"Basic \xff"}}, 401),
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
def test_invalid_posts_are_rejected_without_release(config, tmp_path, path, sent, status):
    with serve_relay(config()) as client:
        assert client.post(path, **sent).status_code == status
    assert read_releases(tmp_path / "users.db") == []


def test_true_locations_are_never_stored_logged_or_answered(config, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    latitude, longitude = 45.0123456, -30.0123456
    sent = {**make_location(latitude=latitude, longitude=longitude), "SSID": "Home Sweet Home", "batt": 51}
    with serve_relay(config()) as client:
        seen = client.post("/owntracks", json=sent, auth=ANN).text
        fields = OSMAND | {"id": TOKEN["ann"], "lat": str(latitude), "lon": str(longitude), "timestamp": "x"}
        seen += client.get("/osmand", params=fields).text
        seen += client.post("/fix", json={"time": "x", "latitude": latitude, "longitude": 0}, headers=BEARER).text
        seen += client.get("/metrics").text + client.get("/health").text + client.get("/openapi.json").text
    logged = "\n".join(
        log_record.getMessage() for log_record in caplog.records if log_record.name.startswith(("dphmm", "uvicorn"))
    )
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in ("45.0123", "30.0123", "Home Sweet Home", TOKEN["ann"], "b0:f2"):
        assert secret not in seen
        assert secret not in logged
        assert secret.encode() not in kept


@pytest.mark.parametrize(
    "problem",
    [OutputError("no room at 45.0123"), DataFileError("45.0123.db", "is damaged"), SessionMismatchError("45.0123")],
)
def test_unavailable_store_answers_503_and_repeated_post_succeeds(config, monkeypatch, problem):
    with serve_relay(config()) as client:
        with monkeypatch.context() as patch:
            patch.setattr(SessionStore, "append", lambda *_: (_ for _ in ()).throw(problem))
            answer = client.post("/owntracks", json=make_location(), auth=ANN)
            assert answer.status_code == 503
            assert "45.0123" not in answer.text
        assert client.post("/owntracks", json=make_location(), auth=ANN).status_code == 200


# Timesteps of the fixes: new, repeated, late and far in the future.
STEPS = [0, 1, 0, 2, 4, 4, 2, 3, 10**6]
HERE = (45.0, -30.0)
BORDER_AND_BEYOND = (45.4, -30.4)


def observe(config, places, caplog, monkeypatch):
    """Return answers, metrics, logs and releases of fixes.

    The noise does not depend on the place.
    """
    real = StepNoise.draw
    counter = itertools.count()
    answers = []
    caplog.clear()
    with monkeypatch.context() as patched:
        patched.setattr(StepNoise, "draw", lambda self, state, _: real(self, 7, as_random_source(next(counter))))
        with serve_relay(config) as client:
            for step, (latitude, longitude) in zip(STEPS, places, strict=True):
                answer = client.post(
                    "/owntracks", json=make_location(START + 300 * step, latitude, longitude), auth=ANN
                )
                answers.append((answer.status_code, answer.text, sorted(answer.headers)))
            answers.append(client.get("/health").json())
            counted = {
                name: value
                for name, value in read_metrics(client).items()
                if not name.startswith("dphmm_disk_free_bytes")  # of all files
            }
    logged = [log_record.getMessage() for log_record in caplog.records if log_record.name.startswith("dphmm")]
    released = [(release.slot, release.record.released) for release in read_releases(Path(config.store))]
    return answers, counted, logged, released


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "limits", "released"),
    [({"outside": "drop"}, {"epsilon": 1.0}, 2), ({"outside": "clamp"}, None, 4)],
    ids=["a place outside has no release, and one inside no budget", "a place outside has the nearest one's release"],
)
def test_answers_metrics_and_logs_do_not_depend_on_being_outside_region(
    config, tmp_path, caplog, monkeypatch, release, limits, released
):
    caplog.set_level(logging.DEBUG)
    inside, outside = [HERE] * len(STEPS), [HERE] * 3 + [BORDER_AND_BEYOND] * (len(STEPS) - 3)
    seen = []
    for name, places in (("in", inside), ("out", outside)):
        changes = {"store": str(tmp_path / name), "limits": limits}
        changes["release"] = {"policy": "utility:1km", "epsilon": 0.5, **release}
        seen.append(observe(config(**changes), places, caplog, monkeypatch))
    assert seen[0] == seen[1]
    assert len(seen[0][-1]) == released
    assert seen[0][1]['dphmm_fixes_total outcome="ahead"'] == 1
    assert seen[0][1]['dphmm_requests_total path="/owntracks" status="200"'] == 9


def test_limits_hold_and_phones_are_not_notified(config, tmp_path):
    from dphmm import Limits

    with serve_relay(config(limits={"epsilon": 1.0})) as client:
        for k in range(4):
            assert client.post("/owntracks", json=make_location(START + 300 * k), auth=ANN).json() == []
        assert 'dphmm_fixes_total{outcome="unreleased"} 2' in client.get("/metrics").text
    assert len(read_releases(tmp_path / "users.db")) == 2
    assert Limits(epsilon=1.0).epsilon == 1.0


def test_training_users_are_refused_without_notifying_phones(config, tmp_path):
    seen = [{"user": "001", "token": "c" * 40}]
    with serve_relay(config(device=seen)) as client:
        assert client.post("/owntracks", json=make_location(), auth=("001", "c" * 40)).status_code == 200
        assert 'dphmm_fixes_total{outcome="refused"} 1' in client.get("/metrics").text
    assert read_releases(tmp_path / "users.db", "001") == []


@pytest.mark.slow
def test_endless_body_is_aborted(config, monkeypatch):
    monkeypatch.setattr("dphmm.serve.requests._BODY_TIMEOUT_S", 0.2)
    with serve_relay(config()) as client:
        host, port = client.base_url.host, client.base_url.port
        with socket.create_connection((host, port)) as slow:
            slow.sendall(
                f"POST /fix HTTP/1.1\r\nHost: x\r\nAuthorization: {BEARER['Authorization']}\r\n"
                "Content-Length: 100\r\n\r\n{".encode()
            )
            slow.settimeout(60)
            assert b"408" in slow.recv(1000)
        assert client.get("/health").json()["status"] == "ok"


@contextmanager
def serve_with_timeouts(app, monkeypatch, seconds=0.3):
    """Serve an application that closes slow connections after some time."""
    from dphmm.serve import server

    monkeypatch.setattr(server, "IDLE_TIMEOUT_S", seconds)
    monkeypatch.setattr(server, "WRITE_TIMEOUT_S", seconds)
    running_server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", 0, log_config=None, http=server.TimedProtocol))
    thread = threading.Thread(target=lambda: asyncio.run(running_server.serve()), daemon=True)
    thread.start()
    wait_for(lambda: running_server.started)
    yield running_server
    running_server.should_exit = True
    thread.join(60)


def get_address(running_server):
    return running_server.servers[0].sockets[0].getsockname()


@pytest.fixture
def relay_address(config, monkeypatch):
    """Return the address of a relay that closes slow connections after a second.

    A client that is not slow sends its request in this time, even on a busy machine.
    """
    from dphmm.serve.endpoints import make_app

    with serve_with_timeouts(make_app(config()), monkeypatch, 1.0) as running_server:
        yield get_address(running_server)


LARGE_ANSWER = 1 << 24


def answer_large(_):
    return Response(b"x" * LARGE_ANSWER)


async def answer_large_in_parts(_):
    async def iterate_parts():
        for _ in range(256):
            yield b"x" * (LARGE_ANSWER // 256)

    return StreamingResponse(iterate_parts())


LARGE_ROUTES = [Route("/whole", answer_large), Route("/parts", answer_large_in_parts)]


def open_small_client(address):
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(address)
    return client


@pytest.mark.slow
@pytest.mark.parametrize("path", ["whole", "parts"])
@pytest.mark.parametrize("header", ["Accept: */*", "Connection: close"])
def test_clients_that_do_not_read_are_closed(monkeypatch, path, header):
    with serve_with_timeouts(Starlette(routes=LARGE_ROUTES), monkeypatch) as running_server:
        clients = [open_small_client(get_address(running_server)) for _ in range(20)]
        for client in clients:
            client.sendall(f"GET /{path} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        wait_for(lambda: all(client.recv(1, socket.MSG_PEEK) for client in clients))
        wait_for(lambda: not running_server.server_state.connections)
        wait_for(lambda: not running_server.server_state.tasks)
        for client in clients:
            client.close()


@pytest.mark.slow
@pytest.mark.parametrize("path", ["whole", "parts"])
def test_client_that_reads_steadily_gets_the_whole_answer(monkeypatch, path):
    with serve_with_timeouts(Starlette(routes=LARGE_ROUTES), monkeypatch, 1.0) as running_server:
        with open_small_client(get_address(running_server)) as client:
            client.sendall(f"GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            size, began = 0, time.monotonic()
            while part := client.recv(1 << 20):
                size += len(part)
                if size < LARGE_ANSWER / 8 and time.monotonic() - began < 3:
                    time.sleep(0.005)
        assert size > LARGE_ANSWER


@pytest.mark.slow
@pytest.mark.parametrize("asks_first", [False, True])
@pytest.mark.parametrize("data", [b"GET / HT", b"POST /fix HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n"])
def test_slow_connections_are_closed_even_after_a_complete_request(relay_address, asks_first, data):
    is_closed = False
    with socket.create_connection(relay_address) as slow:
        slow.settimeout(60)
        if asks_first:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in slow.recv(4096)
        slow.sendall(data)
        slow.settimeout(0.05)
        for _ in range(1200):  # at most a minute
            try:
                slow.sendall(b"x")
                if slow.recv(4096) == b"":
                    is_closed = True
                    break
            except TimeoutError:
                continue
            except OSError:
                is_closed = True
                break
    assert is_closed
    with socket.create_connection(relay_address) as other:  # other clients are served
        other.settimeout(60)
        other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in other.recv(4096)


@pytest.mark.parametrize(
    "data",
    [
        b"POST /fix HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /fix HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X-A: b\r\n" * 20_000 + b"\r\n",
    ],
    ids=["invalid length", "two lengths", "TLS", "long path", "many headers"],
)
def test_malformed_requests_are_rejected_and_others_served(relay_address, data):
    with socket.create_connection(relay_address) as wrong:
        wrong.settimeout(60)
        try:
            wrong.sendall(data)
            answer = wrong.recv(4096)
        except OSError:  # closed before the request was read completely
            answer = b""
    assert answer == b"" or answer.split()[1] in (b"400", b"401", b"404", b"431")
    with socket.create_connection(relay_address) as other:
        other.settimeout(60)
        other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in other.recv(4096)


@pytest.mark.slow
def test_backlog_is_released_completely_despite_newer_posts(config, tmp_path):
    features = []
    for k in range(200):
        feature = json.loads(json.dumps(OVERLAND["locations"][0]))
        feature["properties"]["timestamp"] = datetime.fromtimestamp(START + 300 * k, UTC).isoformat()
        features.append(feature)
    with serve_relay(config()) as client, ThreadPoolExecutor(2) as pool:
        backlog = pool.submit(client.post, "/overland", json={"locations": features}, headers=BEARER, timeout=60)
        wait_for(lambda: read_releases(tmp_path / "users.db"))
        other = client.post(
            "/owntracks", json=make_location(), auth=("bob", TOKEN["bob"])
        )  # other users are served meanwhile
        assert not backlog.done()
        assert client.post("/owntracks", json=make_location(START + 300 * 200), auth=ANN, timeout=60).status_code == 200
        assert (other.status_code, backlog.result().status_code) == (200, 200)
    assert [release.slot for release in read_releases(tmp_path / "users.db")] == [START // 300 + k for k in range(201)]


def test_interrupted_backlog_answers_503_and_is_completed_on_repetition(config, tmp_path, monkeypatch):
    from dphmm.errors import OutputError

    times = [datetime.fromtimestamp(START + 300 * k, UTC).isoformat() for k in range(20)]
    places = [{"time": time, "latitude": 45, "longitude": -30} for time in times]
    real, done = SessionStore.append, itertools.count()

    def write_or_fail(*arguments):
        if next(done) == 10:
            raise OutputError("no room")
        return real(*arguments)

    with serve_relay(config()) as client:
        monkeypatch.setattr(SessionStore, "append", write_or_fail)
        assert client.post("/fix", json=places, headers=BEARER).status_code == 503
        assert len(read_releases(tmp_path / "users.db")) == 10
        assert client.post("/fix", json=places, headers=BEARER).status_code == 200
    assert len(read_releases(tmp_path / "users.db")) == 20


@pytest.mark.slow
def test_messages_of_user_are_serialised_across_processes(config, postgres):
    settings = config(store=postgres)
    places = [make_location(START + 300 * k) for k in range(60)]
    batch = {
        "locations": [{**OVERLAND["locations"][0], "properties": {"timestamp": message["tst"]}} for message in places]
    }
    with serve_relay(settings) as first, serve_relay(settings) as second, ThreadPoolExecutor(2) as pool:
        backlog = pool.submit(first.post, "/overland", json=batch, headers=BEARER, timeout=60)
        wait_for(lambda: read_releases(postgres))
        assert second.post("/owntracks", json=make_location(START + 300 * 60), auth=ANN, timeout=60).status_code == 200
        assert backlog.result().status_code == 200
    assert len(read_releases(postgres)) == 61


@pytest.mark.slow
def test_lost_database_connection_is_restored(config, postgres, inbox):
    import psycopg

    def lose():
        idle = (  # a query lost within a transaction is refused, and the client repeats it
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE state = "
            "'idle' AND locktype = 'advisory' AND objid = hashtext(current_schema())::oid AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(postgres, autocommit=True) as other:
            wait_for(lambda: other.execute(idle).fetchall() == [(True,)])

    settings = config(store=postgres, recipient=[{"name": "family", "kind": "webhook", "url": inbox.url}])
    with serve_relay(settings) as client:
        for k in range(4):
            assert client.post("/owntracks", json=make_location(START + 300 * k), auth=ANN).status_code == 200
            wait_for(lambda: len(inbox.messages) > k)  # noqa: B023 - it is waited for here
            lose()
        assert client.get("/ready").status_code == 200
        assert client.get("/health").status_code == 200
    assert len(read_releases(postgres)) == 4


def test_ready_reports_missing_store_and_health_does_not(config, monkeypatch):
    from dphmm.serve.sessions import Sessions

    async def report_unavailable(_):
        return False

    with serve_relay(config()) as client:
        assert client.get("/ready").json() == {"store": True, "broker": None, "oldest_message_s": 0.0}
        monkeypatch.setattr(Sessions, "is_store_available", report_unavailable)
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200


def test_outcome_of_posts_is_shown_on_page_and_not_to_app(config, clock, tmp_path):
    with serve_relay(config()) as client:
        client.post("/page/login", json={"token": get_page_token("ann")})
        assert client.get("/page/state").json()["last_contact"] is None
        client.auth = ("", TOKEN["ann"])
        fields = {"lat": "45,0", "lon": "-30,0"}
        for sent, became in (
            (lambda: client.post("/owntracks", json={"_type": "encrypted", "data": "x"}, auth=ANN), {"encrypted": 1}),
            (lambda: client.get("/gpslogger", params=fields | {"timestamp": "2024-03-07T09:00"}), {"no_timezone": 1}),
            (lambda: client.get("/gpslogger", params=fields | {"timestamp": "x"}), {"malformed": 1}),
            (lambda: client.get("/gpslogger", params=fields | {"timestamp": str(START)}), {"accepted": 1}),
            (
                lambda: client.post("/owntracks", json=make_location(START + 300) | {"acc": 50_000}, auth=ANN),
                {"inaccurate": 1},
            ),
            (lambda: client.post("/owntracks", json=make_location(START + 10**9), auth=ANN), {"ahead": 1}),
        ):
            assert sent().status_code == 200
            assert client.get("/page/state").json()["last_contact"] == [START, became]
        counted = client.get("/metrics").text
        assert all(f'outcome="{why}"}} 1' in counted for why in ("encrypted", "no_timezone", "malformed"))
        assert "inaccurate" not in counted
    assert [release.slot for release in read_releases(tmp_path / "users.db")] == [START // 300]


@pytest.mark.parametrize(
    "other",
    [{"acc": -1}, {"lat": 0.0, "lon": 0.0, "acc": 4}, {"lat": 0.0, "lon": 0.0}, {"acc": 50_000}, {}, {"acc": None}],
    ids=["negative", "zero", "zero without accuracy", "inaccurate", "unstated", "null"],
)
def test_no_other_fix_of_a_message_replaces_a_fix_of_5_m(config, monkeypatch, other):
    from dphmm.release.trajectory_release import RecordedReleaseStream

    taken = []
    take = RecordedReleaseStream.take

    def take_and_record(stream, user, time, *place):
        taken.append(place)
        return take(stream, user, time, *place)

    monkeypatch.setattr(RecordedReleaseStream, "take", take_and_record)

    def make_feature(second, message):
        place = {"type": "Point", "coordinates": [message["lon"], message["lat"]]}
        accuracy = {} if "acc" not in message else {"horizontal_accuracy": message["acc"]}
        return {"geometry": place, "properties": {"timestamp": START + second, **accuracy}}

    with serve_relay(config()) as client:
        good = make_feature(-20, {"lat": 45.01, "lon": -30.0, "acc": 5})
        bad = make_feature(-10, {"lat": 45.02, "lon": -30.0, **other})
        answer = client.post("/overland", json={"locations": [good, bad]}, headers=BEARER)
        assert answer.json() == {"result": "ok"}
        assert taken == [(45.01, -30.0)]
        client.post("/page/login", json={"token": get_page_token("ann")})
        outcomes = client.get("/page/state").json()["last_contact"][1]
        assert outcomes.get("invalid", 0) == (other.get("acc") == -1 or other.get("lat") == 0.0)
        assert outcomes.get("inaccurate", 0) == (other.get("acc") == 50_000)


def test_invalid_fix_is_refused_if_there_is_no_other(config, tmp_path):
    with serve_relay(config()) as client:
        client.post("/owntracks", json=make_location(START) | {"acc": -1}, auth=ANN)
        client.post("/owntracks", json=make_location(START) | {"lat": 0.0, "lon": 0.0}, auth=ANN)
        client.get("/gpslogger", params={"token": TOKEN["ann"], "lat": "45", "lon": "-30", "valid": "false"})
    assert read_releases(tmp_path / "users.db") == []


def test_inaccurate_fix_is_ignored_and_most_accurate_fix_of_message_is_used(config, tmp_path, monkeypatch):
    taken = []

    def make_batch(*fixes):
        return {
            "locations": [
                {
                    "geometry": {"type": "Point", "coordinates": [-30.0, latitude]},
                    "properties": {"timestamp": START + second, "horizontal_accuracy": metres},
                }
                for second, latitude, metres in fixes
            ]
        }

    from dphmm.release.trajectory_release import RecordedReleaseStream

    take = RecordedReleaseStream.take

    def take_and_record(stream, user, time, *place):
        taken.append(place)
        return take(stream, user, time, *place)

    monkeypatch.setattr(RecordedReleaseStream, "take", take_and_record)
    with serve_relay(config()) as client:
        client.post("/overland", json=make_batch((0, 45.4, 50_000)), headers=BEARER)
        client.post("/overland", json=make_batch((-9, 45.01, 80), (-8, 45.02, 10), (-7, 45.03, 10)), headers=BEARER)
    assert taken == [(45.03, -30.0)]
    assert len(read_releases(tmp_path / "users.db")) == 1


def make_traccar_location(second):
    """Return a location of Traccar Client 9, with its copy for servers without JSON."""
    time = f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.512Z"
    return {
        "timestamp": time,
        "coords": {
            "latitude": 45.0,
            "longitude": -30.0,
            "accuracy": 11.6,
            "speed": -1,
            "heading": -1,
            "altitude": 209.4,
        },
        "is_moving": False,
        "odometer": 0,
        "event": "heartbeat",
        "battery": {"level": 0.96, "is_charging": False},
        "activity": {"type": "still"},
        "extras": {},
        "_": f"&id={TOKEN['ann']}&lat=45.0&lon=-30.0&timestamp={time}&",
    }


def test_both_protocols_of_traccar_client_are_accepted_at_both_paths(config, tmp_path):
    with serve_relay(config()) as client:
        for step, path in enumerate(("/traccar", "/osmand")):
            first = START + 1800 * step
            body = {"location": make_traccar_location(first), "device_id": TOKEN["ann"]}
            assert client.post(path, json=body).status_code == 200
            assert len(read_releases(tmp_path / "users.db")) == 3 * step + 1
            batch = [make_traccar_location(first + 600), make_traccar_location(first + 601)]
            assert client.post(path, json={"location": batch, "device_id": TOKEN["ann"]}).status_code == 200
            query = OSMAND | {"id": TOKEN["ann"], "timestamp": str(first + 1200)}
            assert client.post(path, params=query).status_code == 200
            assert client.get(path, params=query).status_code == 200
            assert len(read_releases(tmp_path / "users.db")) == 3 * step + 3
            assert client.get(path, params=query | {"id": "wrong"}).status_code in (400, 404)


def test_traccar_json_is_accepted_at_path_of_older_versions(config, tmp_path):
    with serve_relay(config()) as client:
        assert client.post("/osmand", json=TRACCAR | {"device_id": TOKEN["ann"]}).status_code == 200
        assert client.post("/osmand", json=TRACCAR | {"device_id": "wrong"}).status_code == 400
    assert len(read_releases(tmp_path / "users.db")) == 1


@contextmanager
def limit_file_size(path):
    """Let no file grow beyond the size of this one, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_ready_is_what_a_post_gets_on_a_full_disk(config, tmp_path, monkeypatch):
    """Fill the disk, and make room again. Reading the store still works meanwhile."""
    monkeypatch.setattr(sessions, "_PROBE_INTERVAL_S", 0.0)
    with serve_relay(config()) as client:

        def post(second):
            return client.post("/owntracks", json=make_location(second), auth=ANN).status_code

        for step in range(3):
            assert (post(START + 300 * (2 * step)), client.get("/ready").status_code) == (200, 200)
            with limit_file_size(tmp_path / "users.db-wal"):
                assert (post(START + 300 * (2 * step + 1)), client.get("/ready").status_code) == (503, 503)
                assert client.get("/ready").json()["store"] is False
                assert client.get("/page/state").status_code == 200
            assert client.get("/ready").status_code == 200
    assert [release.slot - START // 300 for release in read_releases(tmp_path / "users.db")] == [0, 2, 4]


def test_probes_of_the_store_do_not_grow_it(config, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "_PROBE_INTERVAL_S", 0.0)
    with serve_relay(config()) as client:
        for _ in range(3):
            assert client.get("/ready").status_code == 200
        with closing(sqlite3.connect(tmp_path / "users.db")) as store:
            ((before,),) = store.execute("PRAGMA page_count")
            for _ in range(50):
                assert client.get("/ready").status_code == 200
            assert store.execute("PRAGMA page_count").fetchone()[0] <= before + 1
