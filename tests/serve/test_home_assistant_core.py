"""A Home Assistant core, the real one, is told by a relay; skipped where there is none.

Home Assistant wants a Python of its own: install ``homeassistant`` and ``home-assistant-frontend`` of the version that
its ``frontend`` integration names into another environment, and set ``DPHMM_HASS`` to its ``hass``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dphmm.jobs import load_model
from tests.serve.conftest import START, location, relay, wait_for
from tests.serve.test_endpoints import ANN, releases

SETTINGS = """\
homeassistant:
  name: Home
  latitude: 45
  longitude: -30
  unit_system: metric
  time_zone: UTC
  internal_url: "{url}"
  external_url: "{url}"
http:
  server_host: 127.0.0.1
  server_port: {port}
api:
config:
frontend:
onboarding:
auth:
webhook:
device_tracker:
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[httpx.Client]:
    """Whoever owns a new Home Assistant, with its first account."""
    core = os.environ.get("DPHMM_HASS") or shutil.which("hass")
    if core is None:
        pytest.skip("no Home Assistant core: install one, and set DPHMM_HASS to its hass")
    folder = tmp_path / "home"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    (folder / "configuration.yaml").write_text(SETTINGS.format(url=url, port=port), encoding="utf-8")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([core, "-c", str(folder), "--skip-pip"], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            wait_for(lambda: is_up(client), 120)
            name = {"client_id": f"{url}/", "name": "a", "username": "a", "password": "a" * 12, "language": "en"}
            code = client.post("/api/onboarding/users", json=name).json()["auth_code"]
            asked = {"grant_type": "authorization_code", "code": code, "client_id": f"{url}/"}
            token = client.post("/auth/token", data=asked).json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            yield client
    finally:
        process.terminate()
        process.wait(60)


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/api/onboarding").status_code == 200
    except httpx.TransportError:
        return False


def webhook(home: httpx.Client) -> str:
    """The address of its GPSLogger integration."""
    flow = home.post("/api/config/config_entries/flow", json={"handler": "gpslogger"}).json()["flow_id"]
    made = home.post(f"/api/config/config_entries/flow/{flow}", json={}).json()
    return str(made["description_placeholders"]["webhook_url"])


def test_the_tracker_stands_where_the_estimate_is_with_its_radius(home, config, model, tmp_path):
    told = {"name": "home", "kind": "home-assistant", "url": webhook(home), "users": ["ann"]}
    with relay(config(recipient=[told])) as client:
        for step in range(2):
            assert client.post("/owntracks", json=location(START + 300 * step), auth=ANN).status_code == 200
        last = list(releases(tmp_path / "people.db"))[-1].record
        radius = round(1000 * last.estimate_radius)
        wait_for(lambda: tracker(home).get("gps_accuracy") == radius)
    space = load_model(model).states
    ((latitude, longitude),) = space.projection.to_latlon(np.array([last.estimate]))
    found = tracker(home)
    assert (found["latitude"], found["longitude"]) == (
        pytest.approx(latitude, abs=1e-6),
        pytest.approx(longitude, abs=1e-6),
    )
    assert found["source_type"] == "gps"


def tracker(home: httpx.Client) -> dict[str, Any]:
    """What it says of Ann; nothing before it was told."""
    return home.get("/api/states/device_tracker.ann").json().get("attributes", {})
