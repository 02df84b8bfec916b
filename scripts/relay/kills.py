"""A relay that is killed again and again under load: what it answered is kept, what it told was told once.

    python -m scripts.relay.kills 500
    python -m scripts.relay.kills 500 --postgres postgresql://postgres@127.0.0.1:5432/test --workers 2

Phones post one moment after another, each again until it is answered and each time from another place; the relay is
killed (SIGKILL) at random and started anew; people change their zones meanwhile; two recipients are told, one of them
coarser releases. In the end everything is compared: what was answered, what is in the store, what was told.
Of several workers either one is killed, or all of them at once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from dphmm.jobs import learn, region
from dphmm.release.store import SessionStore
from dphmm.tables import iso_time

STEP_S, START, EPSILON, COARSE = 300, 1_709_802_000, 0.5, 0.2
ROOT = Path(__file__).parents[2]
Told = dict[tuple[str, str, str], list[bytes]]


@dataclass
class Seen:
    """What phones and recipients saw."""

    answered: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    told: Told = field(default_factory=lambda: defaultdict(list))
    changes: int = 0


def flaws(store: Path | str, seen: Seen) -> Iterator[str]:
    """Every promise that was broken."""
    import numpy as np

    with SessionStore(store, readonly=True) as opened:
        for user in opened.names():
            session = opened.session(user)
            assert session is not None
            releases = list(opened.releases(session.number))
            slots = [one.slot for one in releases]
            if len(set(slots)) < len(slots):
                yield f"{user}: a slot has two values"
            if lost := seen.answered[user] - set(slots):
                yield f"{user}: {len(lost)} moments were answered and are not in the store"
            last = releases[-1].record if releases else None
            if last is not None and last.epsilon_so_far != sum(one.record.epsilon for one in releases):
                yield f"{user}: the epsilons add up to something else than the last record says"
            for number, one in enumerate(releases):
                if session.agreed_at(number).terms["main"].settings_hash != one.record.settings:
                    yield f"{user}: release {number} was not made under what was agreed on then"
                when = iso_time(np.datetime64(one.slot * STEP_S, "s").astype("datetime64[us]"))
                for recipient in ("family", "friends"):
                    bodies = seen.told[recipient, user, when]
                    if not bodies:
                        yield f"{user}: {recipient} was not told of {when}"
                    if len(set(bodies)) > 1:
                        yield f"{user}: {recipient} was told two values of {when}"
                if any(json.loads(body)["x_km"] != one.record.released[0] for body in seen.told["family", user, when]):
                    yield f"{user}: what was told of {when} is not what is stored"


def run(
    kills: int, people: int, folder: Path, seconds: float, seed: int = 1, server: str | None = None, workers: int = 1
) -> tuple[Seen, Path | str, int]:
    """Kill a relay so often under load, or for so long; what was seen, the store, and how often it was."""
    store = server or folder / "people.db"
    rng, seen = random.Random(seed), Seen()
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    learn(ROOT / "data" / "sample" / "geolife", space, step_seconds=STEP_S, output=folder / "m.npz")
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
            {"name": "friends", "kind": "webhook", "url": f"{told}/friends", "epsilon": COARSE},
        ],
    }  # fmt: skip
    (folder / "relay.toml").write_text(tomli_w.dumps(keys), encoding="utf-8")
    url, over = f"http://{listen}", threading.Event()
    threads = [
        threading.Thread(target=_phone, args=(url, user, token, seen, over, random.Random(f"{seed}{user}")))
        for user, token in users.items()
    ]
    process = start(folder, url, workers)
    try:
        for one in threads:
            one.start()
        done, until = 0, time.monotonic() + seconds
        while done < kills and time.monotonic() < until:
            time.sleep(rng.uniform(0.05, 1.5))
            if workers > 1 and rng.random() < 0.5:  # whoever minds them starts another
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(_children(process.pid)), signal.SIGKILL)
            else:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process = start(folder, url, workers)
            done += 1
            print(f"\r{done} kills", end="", file=sys.stderr, flush=True)
        over.set()
        for one in threads:
            one.join()
        _settled(store, seen)
    finally:
        over.set()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        recipient.shutdown()
    return seen, store, done


def _children(parent: int) -> list[int]:
    """The workers of a relay that has several."""
    while True:
        found = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        with suppress(FileNotFoundError, ProcessLookupError):  # of one that was killed just now
            serving = [int(one) for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
            if serving:
                return serving
        time.sleep(0.05)


def listening() -> str:
    """An address of this machine that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def start(folder: Path, url: str, workers: int = 1) -> subprocess.Popen[bytes]:
    """A relay that answers, in a group of processes of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", "dphmm", "serve", str(folder / "relay.toml"), "--workers", str(workers)]
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
    """Wait until everything that is stored was told, or for so long."""
    with SessionStore(store, readonly=True) as opened:
        sessions = [opened.session(name) for name in opened.names()]
        wanted = 2 * sum(opened.progress(one.number).count for one in sessions if one is not None)
    until = time.monotonic() + seconds
    while len(seen.told) < wanted and time.monotonic() < until:
        time.sleep(0.2)


def recipient_of(seen: Seen) -> ThreadingHTTPServer:
    """Somebody who is told, and keeps all of it."""
    lock = threading.Lock()

    class Taken(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            said = json.loads(body)
            with lock:
                seen.told[self.path.strip("/"), said["user"], said["time"]].append(body)
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
def _schema(server: str | None) -> Iterator[str | None]:
    """Tables of our own on a server, for as long as they are needed."""
    if server is None:
        yield None
        return
    import psycopg

    name = f"dphmm_kills_{os.getpid()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
        try:
            yield f"{server}?options=-csearch_path%3D{name}"
        finally:
            connection.execute(f"DROP SCHEMA {name} CASCADE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", type=int)
    parser.add_argument("--people", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="on the disk to be used (default: a temporary one)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="kill it for so long at most")
    parser.add_argument("--seed", type=int, default=1, help="of places, of zones, and of when it is killed")
    parser.add_argument(
        "--postgres", metavar="URL", help="keep the people there, in a schema of its own, not in a file"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes; several need --postgres")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as here, _schema(options.postgres) as server:
        seen, store, done = run(
            options.kills, options.people, Path(here), options.seconds, options.seed, server, options.workers
        )
        found = list(flaws(store, seen))
        answered = sum(map(len, seen.answered.values()))
        twice = sum(len(bodies) - 1 for bodies in seen.told.values() if bodies)
        print(f"\n{done} kills, {options.people} people: {answered} moments answered, {seen.changes} changes of zones,")
        print(f"{len(seen.told)} messages and {twice} of them again; flaws: {len(found)}")
        for one in found[:20]:
            print(one)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
