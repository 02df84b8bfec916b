"""The relay under load: fixes of a thousand users over HTTP, with SQLite or PostgreSQL.

Every fix belongs to a separate timestep. Each is released, written and on disk before it is answered. The clients run
on the same processors as the relay, and the figures include them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import httpx
import numpy as np
import tomli_w

from dphmm import MarkovModel
from dphmm.release.database_backends import is_server
from dphmm.release.session_store import SessionStore
from dphmm.serve.config import hash_token
from dphmm.serve.devices_and_recipients import AccessTable
from dphmm.space import Grid
from scripts.benchmarks.report import Report
from scripts.benchmarks.town import walk

Running = tuple[str, subprocess.Popen[bytes], float]
Box = tuple[np.ndarray, np.ndarray]
STEP_S = 300
START = 1_709_802_000
CELL_KM = 0.34
SIDE = 32
CONNECTIONS = 16
MANY_WORKERS = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="folder on the measured disk (default: the current one)"
    )
    parser.add_argument("--postgres", metavar="URL", help="empty database; skipped by default")
    parser.add_argument("--num-users", type=int, default=1000)
    parser.add_argument("--fixes", type=int, default=6000)


def run(report: Report, options: argparse.Namespace) -> None:
    num_users, fixes = (20, 100) if report.small else (options.num_users, options.fixes)
    with tempfile.TemporaryDirectory(dir=options.folder) as here:
        folder = Path(here)
        space = Grid.over((45.0, -30.2, 45.0 + SIDE * CELL_KM / 111.2, -30.2 + SIDE * CELL_KM / 78.6), CELL_KM)
        columns = len(np.unique(np.round(space.points[:, 0], 6)))
        moves, first = walk(space.size // columns, columns), np.full(space.size, 1 / space.size)
        MarkovModel(moves, first, space, STEP_S).save(folder / "m.npz")
        box = space.latlon().min(axis=0), space.latlon().max(axis=0)
        name, load = f"SQLite, {num_users:,} users, {space.size:,} states", (num_users, fixes, box)
        measure(report, folder, name, "users.db", 1, *load)
        measure(report, folder, "SQLite, two recipients", "recipients.db", 1, *load, num_recipients=2)
        if options.postgres:  # the devices are in the database, too
            start = START
            speeds: dict[int, list[float]] = {1: [], MANY_WORKERS: []}
            for _ in range(1 if report.small else 2):  # alternating, because the machine may have other load
                for workers in speeds:
                    name = f"PostgreSQL, workers: {workers}, two recipients"
                    speeds[workers].append(measure(report, folder, name, options.postgres, workers, *load, 2, start))
                    start += STEP_S * (fixes // num_users + 2)  # the database has the earlier timesteps
            ratios = [many / single for single, many in zip(*speeds.values(), strict=True)]
            more = {"others": ", ".join(f"{ratio:.2f}" for ratio in ratios[1:])}
            report.row(f"PostgreSQL: fixes with {MANY_WORKERS} workers, relative to one", ratios[0], "times", more)
        else:
            report.skip("PostgreSQL, several workers", "pass an empty database with --postgres")


def measure(
    report: Report,
    folder: Path,
    name: str,
    store: str,
    workers: int,
    num_users: int,
    fixes: int,
    box: Box,
    num_recipients: int = 0,
    start: int = START,
) -> float:
    """Measure a relay under load, and return the number of fixes per second."""
    with (
        run_recipient() as address,
        run_relay(folder, store, workers, num_users, address, num_recipients) as (url, process, started),
    ):
        report.row(f"{name}: from start to first answer", started, "s")
        before = measure_memory(process)
        cpu_before = measure_cpu(process)
        took, waits = asyncio.run(post_fixes(url, num_users, fixes, box, start))
        report.row(f"{name}: fixes", fixes / took, "a second")
        report.row("    median", 1e3 * median(waits), "ms")
        report.row("    99th percentile", 1e3 * quantiles(waits, n=100)[98], "ms")
        after = measure_memory(process)
        report.row("    memory of the relay before", before, "MiB", {"after": after})
        report.row("    processor time of the relay for a fix", 1e3 * (measure_cpu(process) - cpu_before) / fixes, "ms")
        if num_recipients:
            late = wait_until_delivered(url)
            report.row("    messages to recipients", num_recipients * fixes / (took + late), "a second")
            report.row("    the last one after the last fix", late, "s")
    return fixes / took


@contextmanager
def run_recipient() -> Iterator[str]:
    """Run a recipient that accepts everything in a separate process. Yield its address."""
    code = (
        "import asyncio\n"
        "async def take(reader, writer):\n"
        "    while head := await reader.readuntil(b'\\r\\n\\r\\n'):\n"
        "        length = head.lower().partition(b'content-length:')[2].split(b'\\r')[0]\n"
        "        await reader.readexactly(int(length))\n"
        "        writer.write(b'HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n')\n"
        "async def main():\n"
        "    server = await asyncio.start_server(take, '127.0.0.1', 0)\n"
        "    print(server.sockets[0].getsockname()[1], flush=True)\n"
        "    await server.serve_forever()\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        process.terminate()


def wait_until_delivered(url: str) -> float:
    """Return the seconds until recipients were sent everything, by any worker."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < 600:
        text = httpx.get(f"{url}/metrics").text
        if not any(float(line.split()[1]) for line in text.splitlines() if line.startswith("dphmm_waiting_messages{")):
            break
        time.sleep(0.05)
    return time.perf_counter() - begun


@contextmanager
def run_relay(
    folder: Path, store: str, workers: int, num_users: int, address: str = "", num_recipients: int = 0
) -> Iterator[Running]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    devices = {f"p{k}": f"{k:040d}" for k in range(num_users)}
    if is_server(store):
        _write_devices(store, devices)
        devices = {}
    content = {
        "model": "m.npz",
        "store": store,
        "listen": listen,
        "release": {"policy": "utility:1km", "epsilon": 0.5},
        "device": [{"user": user, "token": token} for user, token in devices.items()],
        "recipient": [{"name": f"r{k}", "kind": "webhook", "url": address} for k in range(num_recipients)],
    }
    (folder / "relay.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    command = [sys.executable, "-m", "dphmm", "serve", str(folder / "relay.toml"), "--workers", str(workers)]
    begun = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        try:
            while True:
                try:
                    httpx.get(f"http://{listen}/health", verify=False)  # avoids reading certificates each time
                    break
                except httpx.HTTPError:
                    if process.poll() is not None or time.perf_counter() - begun > 60:
                        raise SystemExit((folder / "log").read_text()) from None
                    time.sleep(0.01)
            yield f"http://{listen}", process, time.perf_counter() - begun
        finally:
            process.terminate()
            process.wait(30)


def _write_devices(store: str, devices: dict[str, str]) -> None:
    """Write devices to a database that lacks them."""
    with SessionStore(store) as opened:
        table = AccessTable(opened)
        there = table.list_tokens("device").values()
        for user in set(devices) - set(there):
            table.add("device", user, hash_token(devices[user]))


async def post_fixes(url: str, num_users: int, fixes: int, box: Box, start: int) -> tuple[float, list[float]]:
    """Post fixes. Return the total seconds and the latency of each."""
    rng = np.random.default_rng(0)
    positions = rng.uniform(*box, size=(fixes, 2)).tolist()
    waits: list[float] = []
    numbers = iter(range(fixes))
    host, _, port = url.removeprefix("http://").partition(":")
    address = host, port

    async def run_phone() -> None:
        reader, writer = await asyncio.open_connection(*address)
        for k in numbers:
            latitude, longitude = positions[k]
            sent = build_request(address, k % num_users, start + STEP_S * (k // num_users), latitude, longitude)
            begun = time.perf_counter()
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            waits.append(time.perf_counter() - begun)
            if not head.startswith(b"HTTP/1.1 200 "):
                raise SystemExit(head.decode())
        writer.close()

    async with httpx.AsyncClient(timeout=60) as client:
        await post_first_fix(client, url, box, start)
    begun = time.perf_counter()
    await asyncio.gather(*(run_phone() for _ in range(CONNECTIONS)))
    return time.perf_counter() - begun, waits


def build_request(address: tuple[str, str], user_index: int, second: int, latitude: float, longitude: float) -> bytes:
    """Build a phone's request as bytes. An HTTP client would need too much CPU."""
    body = f'{{"_type":"location","tst":{second},"lat":{latitude!r},"lon":{longitude!r}}}'.encode()
    credentials = b64encode(f"p{user_index}:{user_index:040d}".encode()).decode()
    head = (
        f"POST /owntracks HTTP/1.1\r\nHost: {':'.join(address)}\r\nAuthorization: Basic {credentials}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def post_first_fix(client: httpx.AsyncClient, url: str, box: Box, start: int) -> None:
    """Post a first fix, which includes one-time preparations."""
    latitude, longitude = box[0].tolist()
    body = {"_type": "location", "tst": start - STEP_S, "lat": latitude, "lon": longitude}
    (await client.post(f"{url}/owntracks", json=body, auth=("p0", f"{0:040d}"))).raise_for_status()


def list_processes(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the numbers of a process and its workers."""
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [process.pid, *map(int, tasks.read_text().split())] if tasks.exists() else [process.pid]


def measure_cpu(process: subprocess.Popen[bytes]) -> float:
    """Return the processor time of a process and its workers in seconds."""
    fields = [Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split() for number in list_processes(process)]
    return sum(int(user) + int(system) for *_, user, system in (row[:13] for row in fields)) / os.sysconf("SC_CLK_TCK")


def measure_memory(process: subprocess.Popen[bytes]) -> float:
    """Return the memory of a process and its workers in MiB."""
    pages = sum(int(Path(f"/proc/{number}/statm").read_text().split()[1]) for number in list_processes(process))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
