"""A relay for a small town, with phones, recipients and a clock."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dphmm.jobs import learn, region
from dphmm.serve import clock as clock_module
from dphmm.serve.config import Recipient, RelayConfig
from dphmm.serve.endpoints import make_app

TOKEN = {"ann": "a" * 40, "bob": "b" * 40}


def get_page_token(user: str) -> str:
    """Return the token of a user's page in the tests."""
    return f"page {user:-<40}"


# A time in the past, the end of a 300 s timestep.
START = 1_709_802_000

# Limit of a wait that usually takes milliseconds: the machine may run other tests and builds at the same time.
PATIENCE_S = 60.0
# Limit of a wait for processes that start, which import the package first.
START_S = 3 * PATIENCE_S


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    path = tmp_path_factory.mktemp("relay") / "model.npz"
    learn("data/sample/geolife", space, step_seconds=300, output=path)
    return path


@pytest.fixture
def config(model: Path, tmp_path: Path) -> Callable[..., RelayConfig]:
    def make(**changes: Any) -> RelayConfig:
        keys = {
            "model": str(model),
            "store": str(tmp_path / "users.db"),
            "release": {"policy": "utility:1km", "epsilon": 0.5},
            "device": [{"user": user, "token": token} for user, token in TOKEN.items()],
        }
        keys |= changes
        users = dict.fromkeys(device["user"] for device in keys["device"])
        pages = [{"user": user, "token": get_page_token(user)} for user in users]
        return RelayConfig.model_validate({"page": pages} | keys)

    return make


@contextmanager
def serve_app(app: Any) -> Iterator[str]:
    """Serve an application on a local port in a thread, and yield its address."""
    import uvicorn

    class Prompt(uvicorn.Server):
        """A server that checks for its end more often than ten times a second, as there are many."""

        async def main_loop(self) -> None:
            while not self.should_exit:
                await self.on_tick(0)
                await asyncio.sleep(0.005)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Prompt(uvicorn.Config(app, "127.0.0.1", port, log_config=None, access_log=False))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


@contextmanager
def serve_relay(config: RelayConfig, accept_changes: bool = False) -> Iterator[httpx.Client]:
    """Yield a client of the relay over plain HTTP, since loading certificates takes long."""
    with (
        serve_app(make_app(config, accept_changes)) as url,
        httpx.Client(base_url=url, verify=False, timeout=PATIENCE_S) as client,
    ):
        yield client


@pytest.fixture
def client(config: Callable[..., RelayConfig]) -> Iterator[httpx.Client]:
    with serve_relay(config()) as opened:
        yield opened


def make_recipient(name: str) -> Recipient:
    """Return a recipient that cannot be reached."""
    return Recipient(name=name, kind="webhook", url="http://127.0.0.1:9/in")


class Inbox:
    """An HTTP recipient that keeps its messages and answers with a given status."""

    def __init__(self) -> None:
        self.status = 200
        self.answer: Callable[[bytes], int] = lambda _: self.status
        self.queries: list[dict[str, str]] = []
        self.messages: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        status = self.answer(body) if self.status == 200 else self.status
        if status == 200:
            self.queries.append(dict(request.query_params))
            self.messages.append((request.url.path, dict(request.headers), body))
        return Response("[]", status)

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/in", self._take, methods=["POST"])])


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    box = Inbox()
    with serve_app(box.app) as url:
        box.url = f"{url}/in"
        yield box


class Clock:
    """The relay's clock, set by the test."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> float:
        return float(self.at)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fixed_clock = Clock()
    monkeypatch.setattr(clock_module, "clock", fixed_clock)
    return fixed_clock


def wait_for(true: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
    """Wait until a condition holds.

    The pauses grow, because checking takes processor time from the work itself.
    """
    began, pause = time.monotonic(), 0.005
    while not true():
        assert time.monotonic() < began + seconds, "it took too long"
        time.sleep(pause)
        pause = min(1.3 * pause, 0.1)


def read_metrics(client: httpx.Client) -> dict[str, float]:
    """Return the relay's metrics by name and sorted labels.

    Keys are such as ``x_total path="/" status="200"``. Prometheus' own parser reads them.
    """
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        " ".join([sample.name, *(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))]): sample.value
        for family in families
        for sample in family.samples
    }


def count_messages(client: httpx.Client, outcome: str) -> dict[str, int]:
    """Return the number of messages with an outcome by recipient."""
    start = f'dphmm_messages_total outcome="{outcome}" recipient="'
    counts = read_metrics(client).items()
    return {name.removeprefix(start)[:-1]: int(count) for name, count in counts if name.startswith(start)}


def make_location(second: int = START, latitude: float = 45.0, longitude: float = -30.0) -> dict[str, Any]:
    """Return a message of OwnTracks, with the fields that the relay must drop."""
    return {
        "_type": "location", "BSSID": "b0:f2:8:45:94:33", "SSID": "Home Sweet Home", "acc": 4, "alt": 15, "batt": 51,
        "bs": 1, "conn": "w", "created_at": second, "lat": latitude, "lon": longitude, "m": 1, "t": "u", "tid": "p9",
        "topic": "owntracks/ann/phone", "tst": second, "vac": 4, "vel": 0,
    }  # fmt: skip


@pytest.fixture
def broker() -> str:
    """Return the address of an open MQTT broker.

    The test is skipped if none runs at ``DPHMM_BROKER``.
    """
    pytest.importorskip("aiomqtt")
    address = os.environ.get("DPHMM_BROKER", "mqtt://127.0.0.1:1883")
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 1883), timeout=20).close()
    except OSError:
        pytest.skip(f"no MQTT broker at {address}: start one, or set DPHMM_BROKER")
    return address
