"""Kill a relay repeatedly under load, and compare answers, store and messages.

    python -m scripts.relay.kills 500
    python -m scripts.relay.kills 500 --postgres --workers 2
    python -m scripts.relay.kills 12 --postgres --workers 4 --period 10

Phones post one timestep after another. Each message is repeated from another location until it is answered. Half of the
phones use HTTP, the others an MQTT broker. The relay is killed (SIGKILL) at random times and restarted, with a clock
that may be set back by up to a day. Sometimes the disk is full, PostgreSQL is restarted, or the broker is restarted.
Users change their zones meanwhile. There are two recipients, one of them with a precision. At the end the answers, the
store and the messages to recipients are compared. With several workers, either one of them or all are killed. A relay
that gives up is restarted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from dphmm.jobs import learn, region
from dphmm.release.ledger import to_fraction
from dphmm.release.session_store import SessionStore
from dphmm.serve.broker import NUM_SHARES
from dphmm.serve.precision_grid import PrecisionGrid
from dphmm.tables import iso_time
from scripts.relay.servers import Mosquitto, Postgres, Server, find_free_port, find_program

STEP_S = 300
START = 1_709_802_000
EPSILON = 0.5
PRECISION_M = 2000
REGION: dict[str, Any] = {"bbox": (44.97, -30.04, 45.03, -29.96), "cell_km": 0.5}
_DISTURBANCE_PROBABILITY = 0.25  # of a disturbance other than a kill of the relay
_NUM_ANSWERS = 20
_MAX_UNRELEASED = 50  # timesteps of a phone that wait at the broker
ROOT = Path(__file__).parents[2]
Deliveries = dict[tuple[str, str, str], list[bytes]]
_RECIPIENTS = "family", "friends"


@dataclass
class Observations:
    """Answers to phones and messages to recipients."""

    answered: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    delivered: Deliveries = field(default_factory=lambda: defaultdict(list))
    changes: int = 0
    num_heard: Counter[str] = field(default_factory=Counter)
    num_events: Counter[str] = field(default_factory=Counter)


def find_flaws(store: Path | str, seen: Observations) -> Iterator[str]:
    """Yield every violated guarantee."""
    import numpy as np

    grid = PrecisionGrid(region(**REGION).projection, PRECISION_M)
    with SessionStore(store, readonly=True) as opened:
        for user in opened.names():
            session = opened.session(user)
            assert session is not None
            releases = list(opened.releases(session.number))
            answers = [(release.slot, release.query) for release in releases]
            if len(set(answers)) < len(answers):
                yield f"{user}: a slot has two values"
            slots = {release.slot for release in releases}
            if lost := seen.answered[user] - slots:
                yield f"{user}: {len(lost)} timesteps were answered and are not in the store"
            last, spent = (
                releases[-1].record if releases else None,
                sum(to_fraction(release.record.epsilon) for release in releases),
            )
            if last is not None and last.epsilon_total != float(spent):
                yield f"{user}: the sum of the epsilons differs from the total of the last record"
            for number, release in enumerate(releases):
                if session.agreement_at(number).terms[release.query].settings_hash != release.record.settings_hash:
                    yield f"{user}: release {number} was not made under the settings of that time"
                when = iso_time(np.datetime64(release.slot * STEP_S, "s").astype("datetime64[us]"))
                for recipient in _RECIPIENTS:
                    bodies = seen.delivered[recipient, user, when]
                    if not bodies:
                        yield f"{user}: {recipient} was sent no message of {when}"
                    if len(set(bodies)) > 1:
                        yield f"{user}: {recipient} was sent two values of {when}"
                fine, rounded = (
                    [json.loads(body) for body in seen.delivered[name, user, when]] for name in _RECIPIENTS
                )
                if any(row["x_km"] != release.record.released[0] for row in fine):
                    yield f"{user}: the message to family of {when} differs from the store"
                centres = {grid.get_centre(row["latitude"], row["longitude"]) for row in fine}
                if {(row["latitude"], row["longitude"]) for row in rounded} - centres:
                    yield f"{user}: the message to friends of {when} is not the rounded message to family"


def run(
    kills: int,
    num_users: int,
    folder: Path,
    seconds: float,
    seed: int = 1,
    postgres: Postgres | None = None,
    workers: int = 1,
    broker: Mosquitto | None = None,
    period: float | None = None,
) -> tuple[Observations, Path | str]:
    """Kill a relay under load, and return the observations and the store.

    With a period in seconds, only single workers are killed, one in each period.
    """
    store = folder / "users.db" if postgres is None else postgres.url
    rng, seen = random.Random(seed), Observations()
    learn(ROOT / "data" / "sample" / "geolife", region(**REGION), step_seconds=STEP_S, output=folder / "m.npz")
    users = {f"p{k:02}": f"{k:040}" for k in range(num_users)}
    recipient = start_recipient(seen)
    address = f"http://127.0.0.1:{recipient.server_port}"
    listen = find_free_address()
    keys: dict[str, Any] = {
        "model": "m.npz", "store": str(store), "listen": listen,
        "release": {"policy": "utility:1km", "epsilon": EPSILON},
        "device": [{"user": user, "token": token} for user, token in users.items()],
        "page": [{"user": user, "token": f"page {token}"} for user, token in users.items()],
        "recipient": [
            {"name": "family", "kind": "webhook", "url": f"{address}/family"},
            {"name": "friends", "kind": "webhook", "url": f"{address}/friends", "precision": f"{PRECISION_M}m"},
        ],
        **({} if broker is None else {"mqtt": {"url": broker.url}}),
    }  # fmt: skip
    (folder / "relay.toml").write_text(tomli_w.dumps(keys), encoding="utf-8")
    url, over = f"http://{listen}", threading.Event()
    threads = []
    for number, (user, token) in enumerate(users.items()):
        at_broker = broker is not None and number % 2 == 0
        phone, where = (_post_at_broker, broker) if at_broker else (_post_over_http, url)
        phone_rng = random.Random(f"{seed}{user}")
        threads.append(threading.Thread(target=phone, args=(where, user, token, seen, over, phone_rng)))
    process = start(folder, url, workers)
    while broker is not None and not _is_listening(url, postgres):
        time.sleep(0.1)  # the broker keeps no messages that are posted before the relay subscribes
    try:
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        while seen.num_events["kills"] < kills and time.monotonic() < until:
            time.sleep(rng.uniform(0.05, 1.5) if period is None else period)
            if (
                process.poll() is not None
            ):  # it gives up if workers are killed before they serve; systemd would restart it
                process = start(folder, url, workers)
                seen.num_events["restarts after giving up"] += 1
            if period is None and rng.random() < _DISTURBANCE_PROBABILITY:
                _disturb(process, store, postgres, broker, seen, rng)
                continue
            if period is not None or (workers > 1 and rng.random() < 0.5):  # the supervisor restarts it
                with suppress(ProcessLookupError):
                    if children := _list_workers(process):
                        os.kill(rng.choice(children), signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                back = rng.choice((0, 0, rng.randrange(86400)))
                seen.num_events["starts with a clock set back"] += back > 0
                process = start(folder, url, workers, back)
            seen.num_events["kills"] += 1
            print(f"\r{seen.num_events['kills']} kills", end="", file=sys.stderr, flush=True)
        over.set()
        for thread in threads:
            thread.join()
        _wait_until_settled(store, seen)
    finally:
        over.set()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        recipient.shutdown()
        recipient.server_close()
    return seen, store


def _is_listening(url: str, postgres: Postgres | None) -> bool:
    """Return whether the relay has subscribed to the messages of all users."""
    if postgres is None:
        return bool(httpx.get(f"{url}/ready").json()["broker"])
    import psycopg

    with psycopg.connect(postgres.url) as connection:
        held = "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
        if connection.execute(held).fetchone() != (NUM_SHARES,):
            return False
    answers = [httpx.get(f"{url}/ready").json()["broker"] for _ in range(_NUM_ANSWERS)]  # each of some worker
    return False not in answers


def _disturb(
    process: subprocess.Popen[bytes],
    store: Path | str,
    postgres: Postgres | None,
    broker: Mosquitto | None,
    seen: Observations,
    rng: random.Random,
) -> None:
    """Restart the database or the broker, or simulate a full disk."""
    if broker is not None and rng.random() < 0.5:
        broker.stop()
        time.sleep(rng.uniform(0, 1))
        broker.start()
        seen.num_events["restarts of the broker"] += 1
    elif postgres is not None:
        postgres.stop()
        time.sleep(rng.uniform(0, 1))
        postgres.start()
        seen.num_events["restarts of PostgreSQL"] += 1
    elif hasattr(resource, "prlimit"):  # limit the size of files, so that writes fail as on a full disk
        size = max(Path(f"{store}{end}").stat().st_size for end in ("", "-wal") if Path(f"{store}{end}").exists())
        with suppress(ProcessLookupError):
            _, maximum = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, maximum))
            time.sleep(rng.uniform(0.2, 1.5))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (maximum, maximum))
            seen.num_events["full disks"] += 1


def _list_workers(parent: subprocess.Popen[bytes]) -> list[int]:
    """Return the workers of a relay with several, or none if it has ended."""
    while parent.poll() is None:
        with suppress(FileNotFoundError, ProcessLookupError):  # of a worker that was just killed
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            serving = [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
            if serving:
                return serving
        time.sleep(0.05)
    return []


def find_free_address() -> str:
    """Return a free address of this machine."""
    return f"127.0.0.1:{find_free_port()}"


def start(folder: Path, url: str, workers: int = 1, back: int = 0) -> subprocess.Popen[bytes]:
    """Start a relay in its own process group with a slow clock, and wait for its answer."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        code = f"import runpy, time; now = time.time; time.time = lambda: now() - {back}; runpy.run_module('dphmm')"
        program = ["-c", code.replace("'dphmm'", "'dphmm', run_name='__main__'")] if back else ["-m", "dphmm"]
        command = [sys.executable, *program, "serve", str(folder / "relay.toml"), "--workers", str(workers)]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    while True:
        try:
            httpx.get(f"{url}/health")
        except httpx.TransportError:
            if process.poll() is not None:
                raise SystemExit(f"the relay did not start: see {folder / 'log'}") from None
            time.sleep(0.05)
        else:
            return process


def _post_over_http(
    url: str, user: str, token: str, seen: Observations, over: threading.Event, rng: random.Random
) -> None:
    """Post one timestep after another until answered, and sometimes change the zones."""
    slot = START // STEP_S
    with httpx.Client(timeout=30) as client:
        while not over.is_set():
            slot += rng.choice((1, 1, 1, 2, 7))
            while not over.is_set():
                position = {"lat": 45 + rng.uniform(-0.025, 0.025), "lon": -30 + rng.uniform(-0.035, 0.035)}
                fix = {"_type": "location", "tst": slot * STEP_S, "acc": 5, **position}
                try:
                    if client.post(f"{url}/owntracks", json=fix, auth=(user, token)).status_code == 200:
                        seen.answered[user].add(slot)
                        break
                except httpx.TransportError:
                    time.sleep(rng.uniform(0.05, 0.2))
            if rng.random() < 0.1:
                _change_zones(client, url, token, seen, rng)


def _post_at_broker(
    broker: Mosquitto, user: str, _: str, seen: Observations, over: threading.Event, rng: random.Random
) -> None:
    """Post one timestep after another at a broker until it acknowledges."""
    from paho.mqtt import client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=user, clean_session=False)
    client.connect_async("127.0.0.1", broker.port)
    client.reconnect_delay_set(1, 1)
    client.loop_start()
    slot = START // STEP_S
    while not over.is_set():
        slot += rng.choice((1, 1, 1, 2, 7))
        while not over.is_set():
            position = {"lat": 45 + rng.uniform(-0.025, 0.025), "lon": -30 + rng.uniform(-0.035, 0.035)}
            fix = json.dumps({"_type": "location", "tst": slot * STEP_S, "acc": 5, **position})
            try:
                sent = client.publish(f"owntracks/{user}/phone", fix, qos=1)
                while not sent.is_published() and not over.is_set():
                    time.sleep(0.02)
            except RuntimeError:  # not connected
                time.sleep(0.1)
                continue
            if sent.is_published():
                seen.answered[user].add(slot)
            break
        time.sleep(rng.uniform(0, 0.1))
        while len(seen.answered[user]) - seen.num_heard[user] > _MAX_UNRELEASED and not over.is_set():
            time.sleep(0.1)  # a broker accepts messages faster than a relay releases them
    client.disconnect()
    client.loop_stop()


def _change_zones(client: httpx.Client, url: str, token: str, seen: Observations, rng: random.Random) -> None:
    west, south = -30 + rng.uniform(-0.02, 0), 45 + rng.uniform(-0.02, 0)
    ring = [[west + 0.015 * x, south + 0.012 * y] for x, y in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]
    polygon = {"type": "Polygon", "coordinates": [ring]}
    zone = {"type": "Feature", "properties": {"name": "home"}, "geometry": polygon}
    zones = {"zones": {"type": "FeatureCollection", "features": [zone]}, "elsewhere": rng.choice(("policy", "exact"))}
    try:
        client.post(f"{url}/page/login", json={"token": f"page {token}"})
        secret = client.get(f"{url}/page/state").json()["csrf"]
        answer = client.post(f"{url}/page/zones", json=zones, headers={"X-CSRF-Token": secret})
        seen.changes += answer.status_code == 200
    except (httpx.TransportError, ValueError, KeyError):
        return


def _wait_until_settled(store: Path | str, seen: Observations, seconds: float = 600.0) -> None:
    """Wait until answered timesteps are stored and stored releases are delivered."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with SessionStore(store, readonly=True) as opened:
            sessions = [session for session in map(opened.session, opened.names()) if session is not None]
            slots = {
                session.name: {release.slot for release in opened.releases(session.number)} for session in sessions
            }
        num_delivered, all_stored = (
            Counter(key[:2] for key in list(seen.delivered)),
            all(seen.answered[user] <= slots[user] for user in slots),
        )
        if all_stored and all(
            num_delivered["family", user] == num_delivered["friends", user] == len(stored_slots)
            for user, stored_slots in slots.items()
        ):
            return
        time.sleep(1.0)


def start_recipient(seen: Observations) -> ThreadingHTTPServer:
    """Start a recipient that keeps all messages."""
    lock = threading.Lock()

    class Taken(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            row = json.loads(body)
            key = self.path.strip("/"), row["user"], row["time"]
            with lock:
                seen.num_heard[row["user"]] += key[0] == "family" and key not in seen.delivered
                seen.delivered[key].append(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore connections that a killed relay has aborted."""

    server = Quiet(("127.0.0.1", 0), Taken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@contextmanager
def run_server(kind: type[Server], folder: Path, wanted: bool) -> Iterator[Any]:
    """Run a server in this context. None if it is not wanted."""
    server = None
    if wanted:
        folder.mkdir()
        server = kind(folder)
        server.start()
    try:
        yield server
    finally:
        if server is not None:
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--num-users", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="parent of the working folder, which is kept if a flaw is found")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="maximum duration, seconds")
    parser.add_argument("--seed", type=int, default=1, help="seed of locations, zones and kills")
    parser.add_argument("--postgres", action="store_true", help="store the sessions in a separate PostgreSQL server")
    parser.add_argument("--no-broker", action="store_true", help="post over HTTP only")
    parser.add_argument("--workers", type=int, default=1, help="processes; several need --postgres")
    parser.add_argument("--period", type=float, help="kill only single workers, one in this time, seconds")
    options = parser.parse_args()
    at_broker = not options.no_broker and find_program("mosquitto") is not None
    here = tempfile.mkdtemp(dir=options.folder)
    with (
        run_server(Postgres, Path(here) / "postgres", options.postgres) as postgres,
        run_server(Mosquitto, Path(here) / "broker", at_broker) as broker,
    ):
        seen, store = run(
            options.kills,
            options.num_users,
            Path(here),
            options.seconds,
            options.seed,
            postgres,
            options.workers,
            broker,
            options.period,
        )
        flaws = list(find_flaws(store, seen))
        answered = sum(map(len, seen.answered.values()))
        twice = sum(len(bodies) - 1 for bodies in seen.delivered.values() if bodies)
        print("\n" + ", ".join(f"{count} {what}" for what, count in seen.num_events.items()))
        print(f"{options.num_users} users: {answered} timesteps answered, {seen.changes} changes of zones,")
        print(f"{len(seen.delivered)} messages, {twice} repeated; flaws: {len(flaws)}")
        for flaw in flaws[:20]:
            print(flaw)
    if flaws:
        sys.exit(f"store and log: {here}")
    shutil.rmtree(here)


if __name__ == "__main__":
    main()
