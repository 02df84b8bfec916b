"""A relay that is killed again and again under load: what it answered is kept, what it told was told once.

    python -m scripts.relay.kills 500
    python -m scripts.relay.kills 500 --postgres --workers 2

Phones post one moment after another, each again until it is answered and each time from another place, every other one
by HTTP and the rest at an MQTT broker; the relay is killed (SIGKILL) at random and started anew, by a clock that may
have gone back by up to a day; the disk is full for a while, or PostgreSQL is restarted; the broker is restarted; people
change their zones meanwhile; two recipients are told, one of them with a precision. In the end everything is compared:
what was answered, what is in the store, what was told. Of several workers either one is killed, or all of them at once;
a relay that gives up for that is started anew.
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
from dphmm.release.ledger import exactly
from dphmm.release.session_store import SessionStore
from dphmm.serve.precision import PrecisionGrid
from dphmm.tables import iso_time
from scripts.relay.servers import Mosquitto, Postgres, Server, free_port, program

STEP_S, START, EPSILON, PRECISION_M = 300, 1_709_802_000, 0.5, 2000
REGION: dict[str, Any] = {"bbox": (44.97, -30.04, 45.03, -29.96), "cell": 0.5}
_OTHERWISE = 0.25
"""How often it is something else than the relay that ends."""
_AHEAD = 50
"""At most this many moments wait at the broker for each phone."""
ROOT = Path(__file__).parents[2]
Told = dict[tuple[str, str, str], list[bytes]]
_RECIPIENTS = "family", "friends"


@dataclass
class Seen:
    """What phones and recipients saw."""

    answered: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    told: Told = field(default_factory=lambda: defaultdict(list))
    changes: int = 0
    heard: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)


def flaws(store: Path | str, seen: Seen) -> Iterator[str]:
    """Every promise that was broken."""
    import numpy as np

    grid = PrecisionGrid(region(**REGION).projection, PRECISION_M)
    with SessionStore(store, readonly=True) as opened:
        for user in opened.names():
            session = opened.session(user)
            assert session is not None
            releases = list(opened.releases(session.number))
            answers = [(one.slot, one.query) for one in releases]
            if len(set(answers)) < len(answers):
                yield f"{user}: a slot has two values"
            slots = {one.slot for one in releases}
            if lost := seen.answered[user] - slots:
                yield f"{user}: {len(lost)} moments were answered and are not in the store"
            last, spent = (
                releases[-1].record if releases else None,
                sum(exactly(one.record.epsilon) for one in releases),
            )
            if last is not None and last.epsilon_so_far != float(spent):
                yield f"{user}: the epsilons add up to something else than the last record says"
            for number, one in enumerate(releases):
                if session.agreed_at(number).terms[one.query].settings_hash != one.record.settings:
                    yield f"{user}: release {number} was not made under what was agreed on then"
                when = iso_time(np.datetime64(one.slot * STEP_S, "s").astype("datetime64[us]"))
                for recipient in _RECIPIENTS:
                    bodies = seen.told[recipient, user, when]
                    if not bodies:
                        yield f"{user}: {recipient} was not told of {when}"
                    if len(set(bodies)) > 1:
                        yield f"{user}: {recipient} was told two values of {when}"
                fine, rounded = ([json.loads(one) for one in seen.told[name, user, when]] for name in _RECIPIENTS)
                if any(row["x_km"] != one.record.released[0] for row in fine):
                    yield f"{user}: what family was told of {when} is not what is stored"
                centres = {grid.centre(row["latitude"], row["longitude"]) for row in fine}
                if {(row["latitude"], row["longitude"]) for row in rounded} - centres:
                    yield f"{user}: what friends was told of {when} is not what family was told, rounded"


def run(
    kills: int,
    people: int,
    folder: Path,
    seconds: float,
    seed: int = 1,
    postgres: Postgres | None = None,
    workers: int = 1,
    broker: Mosquitto | None = None,
) -> tuple[Seen, Path | str]:
    """Kill a relay so often under load, or for so long; what was seen, and the store."""
    store = folder / "people.db" if postgres is None else postgres.url
    rng, seen = random.Random(seed), Seen()
    learn(ROOT / "data" / "sample" / "geolife", region(**REGION), step_seconds=STEP_S, output=folder / "m.npz")
    users = {f"p{k:02}": f"{k:040}" for k in range(people)}
    recipient = recipient_of(seen)
    told = f"http://127.0.0.1:{recipient.server_port}"
    listen = listening()
    keys: dict[str, Any] = {
        "model": "m.npz", "store": str(store), "listen": listen,
        "release": {"policy": "utility:1km", "epsilon": EPSILON},
        "device": [{"user": user, "token": token} for user, token in users.items()],
        "recipient": [
            {"name": "family", "kind": "webhook", "url": f"{told}/family"},
            {"name": "friends", "kind": "webhook", "url": f"{told}/friends", "precision": f"{PRECISION_M}m"},
        ],
        **({} if broker is None else {"mqtt": {"url": broker.url}}),
    }  # fmt: skip
    (folder / "relay.toml").write_text(tomli_w.dumps(keys), encoding="utf-8")
    url, over = f"http://{listen}", threading.Event()
    threads = []
    for number, (user, token) in enumerate(users.items()):
        at_broker = broker is not None and number % 2 == 0
        phone, where = (_phone_at, broker) if at_broker else (_phone, url)
        own = random.Random(f"{seed}{user}")
        threads.append(threading.Thread(target=phone, args=(where, user, token, seen, over, own)))
    process = start(folder, url, workers)
    while broker is not None and httpx.get(f"{url}/ready").json()["broker"] is not True and workers == 1:
        time.sleep(0.05)  # what is posted before anybody subscribed has nobody to be kept for
    try:
        for one in threads:
            one.start()
        until = time.monotonic() + seconds
        while seen.done["kills"] < kills and time.monotonic() < until:
            time.sleep(rng.uniform(0.05, 1.5))
            if process.poll() is not None:  # as it does where its workers are killed before they serve: systemd would
                process = start(folder, url, workers)
                seen.done["starts after it had given up"] += 1
            if rng.random() < _OTHERWISE:
                _disturb(process, store, postgres, broker, seen, rng)
                continue
            if workers > 1 and rng.random() < 0.5:  # the supervisor starts another
                with suppress(ProcessLookupError):
                    if children := _children(process):
                        os.kill(rng.choice(children), signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                back = rng.choice((0, 0, rng.randrange(86400)))
                seen.done["starts by a clock that went back"] += back > 0
                process = start(folder, url, workers, back)
            seen.done["kills"] += 1
            print(f"\r{seen.done['kills']} kills", end="", file=sys.stderr, flush=True)
        over.set()
        for one in threads:
            one.join()
        _settled(store, seen)
    finally:
        over.set()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        recipient.shutdown()
        recipient.server_close()
    return seen, store


def _disturb(
    process: subprocess.Popen[bytes],
    store: Path | str,
    postgres: Postgres | None,
    broker: Mosquitto | None,
    seen: Seen,
    rng: random.Random,
) -> None:
    """Restart the database or the broker, or have the disk full for a while."""
    if broker is not None and rng.random() < 0.5:
        broker.stop()
        time.sleep(rng.uniform(0, 1))
        broker.start()
        seen.done["restarts of the broker"] += 1
    elif postgres is not None:
        postgres.stop()
        time.sleep(rng.uniform(0, 1))
        postgres.start()
        seen.done["restarts of PostgreSQL"] += 1
    elif hasattr(resource, "prlimit"):  # files of the relay may grow no more: writes fail as on a full disk
        size = max(Path(f"{store}{end}").stat().st_size for end in ("", "-wal") if Path(f"{store}{end}").exists())
        with suppress(ProcessLookupError):
            _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, most))
            time.sleep(rng.uniform(0.2, 1.5))
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
            seen.done["times of a full disk"] += 1


def _children(parent: subprocess.Popen[bytes]) -> list[int]:
    """The workers of a relay that has several; none where it has ended."""
    while parent.poll() is None:
        with suppress(FileNotFoundError, ProcessLookupError):  # of one that was killed just now
            found = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            serving = [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
            if serving:
                return serving
        time.sleep(0.05)
    return []


def listening() -> str:
    """An address of this machine that is free."""
    return f"127.0.0.1:{free_port()}"


def start(folder: Path, url: str, workers: int = 1, back: int = 0) -> subprocess.Popen[bytes]:
    """A relay that answers, in a group of processes of its own, whose clock is some seconds slow."""
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


def _phone(url: str, user: str, token: str, seen: Seen, over: threading.Event, rng: random.Random) -> None:
    """Post one moment after another, each until it is answered; now and then change the zones."""
    slot = START // STEP_S
    with httpx.Client(timeout=30) as client:
        while not over.is_set():
            slot += rng.choice((1, 1, 1, 2, 7))
            while not over.is_set():
                place = {"lat": 45 + rng.uniform(-0.025, 0.025), "lon": -30 + rng.uniform(-0.035, 0.035)}
                fix = {"_type": "location", "tst": slot * STEP_S, "acc": 5, **place}
                try:
                    if client.post(f"{url}/owntracks", json=fix, auth=(user, token)).status_code == 200:
                        seen.answered[user].add(slot)
                        break
                except httpx.TransportError:
                    time.sleep(rng.uniform(0.05, 0.2))
            if rng.random() < 0.1:
                _change(client, url, token, seen, rng)


def _phone_at(broker: Mosquitto, user: str, _: str, seen: Seen, over: threading.Event, rng: random.Random) -> None:
    """The same at a broker, which says that it has a message."""
    from paho.mqtt import client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=user, clean_session=False)
    client.connect_async("127.0.0.1", broker.port)
    client.reconnect_delay_set(1, 1)
    client.loop_start()
    slot = START // STEP_S
    while not over.is_set():
        slot += rng.choice((1, 1, 1, 2, 7))
        while not over.is_set():
            place = {"lat": 45 + rng.uniform(-0.025, 0.025), "lon": -30 + rng.uniform(-0.035, 0.035)}
            fix = json.dumps({"_type": "location", "tst": slot * STEP_S, "acc": 5, **place})
            try:
                sent = client.publish(f"owntracks/{user}/phone", fix, qos=1)
                while not sent.is_published() and not over.is_set():
                    time.sleep(0.02)
            except RuntimeError:  # it is not connected
                time.sleep(0.1)
                continue
            if sent.is_published():
                seen.answered[user].add(slot)
            break
        time.sleep(rng.uniform(0, 0.1))
        while len(seen.answered[user]) - seen.heard[user] > _AHEAD and not over.is_set():
            time.sleep(0.1)  # a broker takes more than any relay releases
    client.disconnect()
    client.loop_stop()


def _change(client: httpx.Client, url: str, token: str, seen: Seen, rng: random.Random) -> None:
    west, south = -30 + rng.uniform(-0.02, 0), 45 + rng.uniform(-0.02, 0)
    ring = [[west + 0.015 * x, south + 0.012 * y] for x, y in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]
    polygon = {"type": "Polygon", "coordinates": [ring]}
    zone = {"type": "Feature", "properties": {"name": "home"}, "geometry": polygon}
    zones = {"zones": {"type": "FeatureCollection", "features": [zone]}, "elsewhere": rng.choice(("policy", "exact"))}
    try:
        client.post(f"{url}/page/login", json={"token": token})
        secret = client.get(f"{url}/page/state").json()["csrf"]
        answer = client.post(f"{url}/page/zones", json=zones, headers={"X-CSRF-Token": secret})
        seen.changes += answer.status_code == 200
    except (httpx.TransportError, ValueError, KeyError):
        return


def _settled(store: Path | str, seen: Seen, seconds: float = 600.0) -> None:
    """Wait until everything that was answered is stored, and what is stored was told; or for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with SessionStore(store, readonly=True) as opened:
            sessions = [one for one in map(opened.session, opened.names()) if one is not None]
            slots = {one.name: {each.slot for each in opened.releases(one.number)} for one in sessions}
        told, stored = (
            Counter(key[:2] for key in list(seen.told)),
            all(seen.answered[user] <= slots[user] for user in slots),
        )
        if stored and all(told["family", user] == told["friends", user] == len(found) for user, found in slots.items()):
            return
        time.sleep(1.0)


def recipient_of(seen: Seen) -> ThreadingHTTPServer:
    """Somebody who is told, and keeps all of it."""
    lock = threading.Lock()

    class Taken(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            said = json.loads(body)
            key = self.path.strip("/"), said["user"], said["time"]
            with lock:
                seen.heard[said["user"]] += key[0] == "family" and key not in seen.told
                seen.told[key].append(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Connections of a relay that was killed break off."""

    server = Quiet(("127.0.0.1", 0), Taken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@contextmanager
def running(kind: type[Server], folder: Path, wanted: bool) -> Iterator[Any]:
    """A server for as long as it is needed; None where it is not wanted."""
    made = None
    if wanted:
        folder.mkdir()
        made = kind(folder)
        made.start()
    try:
        yield made
    finally:
        if made is not None:
            made.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--people", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where; kept if a flaw is found (default: a temporary one)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="kill it for so long at most")
    parser.add_argument("--seed", type=int, default=1, help="of places, of zones, and of when it is killed")
    parser.add_argument("--postgres", action="store_true", help="keep the people in a PostgreSQL server of its own")
    parser.add_argument("--no-broker", action="store_true", help="have all phones post over HTTP")
    parser.add_argument("--workers", type=int, default=1, help="processes; several need --postgres")
    options = parser.parse_args()
    at_broker = not options.no_broker and program("mosquitto") is not None
    here = tempfile.mkdtemp(dir=options.folder)
    with (
        running(Postgres, Path(here) / "postgres", options.postgres) as postgres,
        running(Mosquitto, Path(here) / "broker", at_broker) as broker,
    ):
        seen, store = run(
            options.kills, options.people, Path(here), options.seconds, options.seed, postgres, options.workers, broker
        )
        found = list(flaws(store, seen))
        answered = sum(map(len, seen.answered.values()))
        twice = sum(len(bodies) - 1 for bodies in seen.told.values() if bodies)
        print("\n" + ", ".join(f"{count} {what}" for what, count in seen.done.items()))
        print(f"{options.people} people: {answered} moments answered, {seen.changes} changes of zones,")
        print(f"{len(seen.told)} messages and {twice} of them again; flaws: {len(found)}")
        for one in found[:20]:
            print(one)
    if found:
        sys.exit(f"what was stored, and the log: {here}")
    shutil.rmtree(here)


if __name__ == "__main__":
    main()
