"""Stop and reload a relay repeatedly under load, with recipients that never answer.

    python -m scripts.relay.ends 500

Users post one timestep after another. One recipient answers, one accepts connections and never answers, and one is an
MQTT broker that never answers. At random times the relay is stopped (SIGTERM) and started again, or reloaded (SIGHUP).
The command prints the longest time until a stopped relay has ended, and until a reloaded one is ready again, and the
number of those that took too long. A relay that takes too long is killed. An interrupt (SIGINT) ends the run early.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from dphmm.jobs import learn, region
from scripts.relay.kills import EPSILON, REGION, ROOT, START, STEP_S, Observations, find_free_address, start_recipient

# A relay that is stopped has ten seconds. A reloaded one starts as well, which takes longest on a busy machine.
STOP_S = 10.0
RELOAD_S = 90.0


class SilentServer:
    """A server that accepts connections and never answers."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            self._connections.append(self._socket.accept()[0])
            if len(self._connections) > 500:
                self._connections.pop(0).close()


class Manager:
    """A service manager that receives the relay's messages. See sd_notify(3)."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)

    def wait(self, line: str, seconds: float) -> float | None:
        """Return the seconds until a line is received, or None if it is not received in time."""
        begun = time.monotonic()
        while (left := begun + seconds - time.monotonic()) > 0:
            self._socket.settimeout(left)
            with suppress(TimeoutError):
                if line in self._socket.recv(4096).decode().splitlines():
                    return time.monotonic() - begun
        return None

    def forget(self) -> None:
        """Discard received messages."""
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(4096)


def run(ends: int, seconds: float, num_users: int, folder: Path, seed: int) -> dict[str, list[float | None]]:
    """Stop and reload a relay, and return the times of each, None for one that took too long."""
    rng, seen = random.Random(seed), Observations()
    learn(ROOT / "data" / "sample" / "geolife", region(**REGION), step_seconds=STEP_S, output=folder / "m.npz")
    users = {f"p{k:02}": f"{k:040}" for k in range(num_users)}
    recipient, listen = start_recipient(seen), find_free_address()
    keys: dict[str, Any] = {
        "model": "m.npz", "store": "users.db", "listen": listen,
        "release": {"policy": "utility:1km", "epsilon": EPSILON},
        "device": [{"user": user, "token": token} for user, token in users.items()],
        "recipient": [
            {"name": "family", "kind": "webhook", "url": f"http://127.0.0.1:{recipient.server_port}/family"},
            {"name": "silent", "kind": "webhook", "url": f"http://{SilentServer().address}/in"},
            {"name": "broker", "kind": "mqtt", "url": f"mqtt://{SilentServer().address}"},
        ],
    }  # fmt: skip
    (folder / "relay.toml").write_text(tomli_w.dumps(keys), encoding="utf-8")
    manager, over = Manager(folder), threading.Event()
    threads = [
        threading.Thread(target=_post, args=(f"http://{listen}", user, token, over)) for user, token in users.items()
    ]
    process = _start(folder, manager)
    times: dict[str, list[float | None]] = {"stops": [], "reloads": []}
    try:
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        while sum(map(len, times.values())) < ends and time.monotonic() < until:
            time.sleep(rng.uniform(0.0, 2.0))
            kind = rng.choice(("stops", "reloads"))
            manager.forget()
            begun = time.monotonic()
            took: float | None = None
            if kind == "stops":
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)
                    took = time.monotonic() - begun
            else:
                process.send_signal(signal.SIGHUP)
                took = manager.wait("READY=1", RELOAD_S)
            times[kind].append(took)
            if took is None:
                process.kill()
            if kind == "stops" or took is None:
                process.wait()
                process = _start(folder, manager)
            print(f"\r{sum(map(len, times.values()))} ends", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:  # what was measured until then is printed
        pass
    finally:
        over.set()
        process.kill()
        process.wait()
        recipient.shutdown()
    return times


def _start(folder: Path, manager: Manager) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "NOTIFY_SOCKET": manager.address}
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", "dphmm", "serve", str(folder / "relay.toml")]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    if manager.wait("READY=1", RELOAD_S) is None:
        process.kill()
        raise SystemExit(f"the relay did not start: see {folder / 'log'}")
    return process


def _post(url: str, user: str, token: str, over: threading.Event) -> None:
    rng = random.Random(user)
    with closing(httpx.Client(timeout=30)) as client:
        for slot in range(START // STEP_S, 2**31):
            posted = False
            while not (posted or over.is_set()):
                position = {"lat": 45 + rng.uniform(-0.025, 0.025), "lon": -30 + rng.uniform(-0.035, 0.035)}
                fix = {"_type": "location", "tst": slot * STEP_S, "acc": 5, **position}
                with suppress(httpx.TransportError):
                    posted = client.post(f"{url}/owntracks", json=fix, auth=(user, token)).status_code == 200
                time.sleep(0.05)
            if over.is_set():
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ends", type=int, help="number of stops and reloads")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="maximum duration, seconds")
    parser.add_argument("--num-users", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1, help="seed of the times and kinds of ends")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as here:
        times = run(options.ends, options.seconds, options.num_users, Path(here), options.seed)
    for kind, limit in (("stops", STOP_S), ("reloads", RELOAD_S)):
        ended = [took for took in times[kind] if took is not None]
        print(f"\n{kind}: {len(times[kind])}, longest {max(ended, default=0.0):.1f} s, ", end="")
        print(f"{len(times[kind]) - len(ended)} above {limit:.0f} s")
    sys.exit(any(took is None for took in (*times["stops"], *times["reloads"])))


if __name__ == "__main__":
    main()
