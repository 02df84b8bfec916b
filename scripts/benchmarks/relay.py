"""The relay under load: fixes of a thousand people over HTTP, from this machine, to SQLite or PostgreSQL.

Every fix is of a moment of its own, so that each is drawn, written and on the disk before it is answered. The clients
run beside the relay on the same processors, and are in the figures.
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
from dphmm.space import Grid
from scripts.benchmarks.report import Report
from scripts.benchmarks.town import walk

Running = tuple[str, subprocess.Popen[bytes], float]
Box = tuple[np.ndarray, np.ndarray]
STEP_S, START = 300, 1_709_802_000
CELL_KM, SIDE = 0.34, 32
CONNECTIONS = 16


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="on the disk to be measured (default: here)"
    )
    parser.add_argument("--postgres", metavar="URL", help="an empty database; left out, it is skipped")
    parser.add_argument("--people", type=int, default=1000)
    parser.add_argument("--fixes", type=int, default=6000)


def run(report: Report, options: argparse.Namespace) -> None:
    people, fixes = (20, 100) if report.small else (options.people, options.fixes)
    with tempfile.TemporaryDirectory(dir=options.folder) as here:
        folder = Path(here)
        space = Grid.over((45.0, -30.2, 45.0 + SIDE * CELL_KM / 111.2, -30.2 + SIDE * CELL_KM / 78.6), CELL_KM)
        columns = len(np.unique(np.round(space.points[:, 0], 6)))
        moves, first = walk(space.size // columns, columns), np.full(space.size, 1 / space.size)
        MarkovModel(moves, first, space, STEP_S).save(folder / "m.npz")
        box = space.latlon().min(axis=0), space.latlon().max(axis=0)
        name, load = f"SQLite, {people:,} people, {space.size:,} states", (people, fixes, box)
        measure(report, folder, name, "people.db", 1, *load)
        measure(report, folder, "SQLite, two recipients", "told.db", 1, *load, told=2)
        if options.postgres:
            measure(report, folder, "PostgreSQL, two workers", options.postgres, 2, *load)
            later = START + STEP_S * (fixes // people + 2)  # the database has the moments before
            both = ("PostgreSQL, two workers, two recipients", options.postgres, 2, *load, 2, later)
            measure(report, folder, *both)
        else:
            report.skip("PostgreSQL, two workers", "name an empty database with --postgres")


def measure(
    report: Report,
    folder: Path,
    name: str,
    store: str,
    workers: int,
    people: int,
    fixes: int,
    box: Box,
    told: int = 0,
    start: int = START,
) -> None:
    with taking() as address, serving(folder, store, workers, people, address, told) as (url, process, started):
        report.row(f"{name}: from start to first answer", started, "s")
        before = memory(process)
        took, waits = asyncio.run(post(url, people, fixes, box, start))
        report.row(f"{name}: fixes", fixes / took, "a second")
        report.row("    median", 1e3 * median(waits), "ms")
        report.row("    99th percentile", 1e3 * quantiles(waits, n=100)[98], "ms")
        report.row("    memory of the relay before", before, "MiB", {"after": memory(process)})
        if told:
            late = until_told(url, told * (fixes + 1))
            report.row("    messages to recipients", told * fixes / (took + late), "a second")
            report.row("    the last one after the last fix", late, "s")


@contextmanager
def taking() -> Iterator[str]:
    """A recipient in a process of its own that takes everything: its address."""
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


def until_told(url: str, messages: int) -> float:
    """The seconds until recipients were told of everything."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < 600:
        text = httpx.get(f"{url}/metrics").text
        if sum(int(line.split()[1]) for line in text.splitlines() if 'outcome="delivered"' in line) >= messages:
            break
        time.sleep(0.05)
    return time.perf_counter() - begun


@contextmanager
def serving(folder: Path, store: str, workers: int, people: int, address: str = "", told: int = 0) -> Iterator[Running]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    content = {
        "model": "m.npz",
        "store": store,
        "listen": listen,
        "release": {"policy": "utility:1km", "epsilon": 0.5},
        "device": [{"user": f"p{k}", "token": f"{k:040d}"} for k in range(people)],
        "recipient": [{"name": f"r{k}", "kind": "webhook", "url": address} for k in range(told)],
    }
    (folder / "relay.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    command = [sys.executable, "-m", "dphmm", "serve", str(folder / "relay.toml"), "--workers", str(workers)]
    begun = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        try:
            while True:
                try:
                    httpx.get(f"http://{listen}/health", verify=False)  # certificates would be read each time
                    break
                except httpx.HTTPError:
                    if process.poll() is not None or time.perf_counter() - begun > 60:
                        raise SystemExit((folder / "log").read_text()) from None
                    time.sleep(0.01)
            yield f"http://{listen}", process, time.perf_counter() - begun
        finally:
            process.terminate()
            process.wait(30)


async def post(url: str, people: int, fixes: int, box: Box, start: int) -> tuple[float, list[float]]:
    """The seconds that all took, and how long each waited."""
    rng = np.random.default_rng(0)
    places = rng.uniform(*box, size=(fixes, 2)).tolist()
    waits: list[float] = []
    numbers = iter(range(fixes))
    host, _, port = url.removeprefix("http://").partition(":")
    address = host, port

    async def phone() -> None:
        reader, writer = await asyncio.open_connection(*address)
        for k in numbers:
            latitude, longitude = places[k]
            sent = message(address, k % people, start + STEP_S * (k // people), latitude, longitude)
            begun = time.perf_counter()
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(one for one in head.lower().split(b"\r\n") if one.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            waits.append(time.perf_counter() - begun)
            if not head.startswith(b"HTTP/1.1 200 "):
                raise SystemExit(head.decode())
        writer.close()

    async with httpx.AsyncClient(timeout=60) as client:
        await phone_once(client, url, box, start)
    begun = time.perf_counter()
    await asyncio.gather(*(phone() for _ in range(CONNECTIONS)))
    return time.perf_counter() - begun, waits


def message(address: tuple[str, str], person: int, moment: int, latitude: float, longitude: float) -> bytes:
    """A phone's request as bytes: a client of its own comfort would take as much of the processors as the relay."""
    body = f'{{"_type":"location","tst":{moment},"lat":{latitude!r},"lon":{longitude!r}}}'.encode()
    known = b64encode(f"p{person}:{person:040d}".encode()).decode()
    head = (
        f"POST /owntracks HTTP/1.1\r\nHost: {':'.join(address)}\r\nAuthorization: Basic {known}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def phone_once(client: httpx.AsyncClient, url: str, box: Box, start: int) -> None:
    """A first fix, which meets what is made once."""
    latitude, longitude = box[0].tolist()
    body = {"_type": "location", "tst": start - STEP_S, "lat": latitude, "lon": longitude}
    (await client.post(f"{url}/owntracks", json=body, auth=("p0", f"{0:040d}"))).raise_for_status()


def memory(process: subprocess.Popen[bytes]) -> float:
    """MiB that a process and its workers hold."""
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found = [process.pid, *map(int, tasks.read_text().split())] if tasks.exists() else [process.pid]
    pages = sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in found)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
