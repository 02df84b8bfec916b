"""Tests with a real Home Assistant core, skipped if it is not installed.

Home Assistant needs a separate Python environment. Install ``homeassistant`` and ``home-assistant-frontend`` of the
version in its ``frontend`` integration, and set ``DPHMM_HASS`` to its ``hass``.
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
from tests.serve.conftest import START, make_location, serve_relay, wait_for
from tests.serve.test_endpoints import ANN, read_releases

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
    """Return a client of the owner of a new Home Assistant with its first account."""
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
            grant = {"grant_type": "authorization_code", "code": code, "client_id": f"{url}/"}
            token = client.post("/auth/token", data=grant).json()["access_token"]
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


def create_webhook(home: httpx.Client) -> str:
    """Return the address of the GPSLogger integration."""
    flow = home.post("/api/config/config_entries/flow", json={"handler": "gpslogger"}).json()["flow_id"]
    webhook_flow = home.post(f"/api/config/config_entries/flow/{flow}", json={}).json()
    return str(webhook_flow["description_placeholders"]["webhook_url"])


def test_tracker_shows_estimate_with_its_radius(home, config, model, tmp_path):
    home_recipient = {"name": "home", "kind": "home-assistant", "url": create_webhook(home), "users": ["ann"]}
    with serve_relay(config(recipient=[home_recipient])) as client:
        for step in range(2):
            assert client.post("/owntracks", json=make_location(START + 300 * step), auth=ANN).status_code == 200
        last = list(read_releases(tmp_path / "users.db"))[-1].record
        radius = round(1000 * last.expected_estimate_error)
        wait_for(lambda: read_tracker(home).get("gps_accuracy") == radius)
    space = load_model(model).states
    ((latitude, longitude),) = space.projection.to_latlon(np.array([last.estimate]))
    attributes = read_tracker(home)
    assert (attributes["latitude"], attributes["longitude"]) == (
        pytest.approx(latitude, abs=1e-6),
        pytest.approx(longitude, abs=1e-6),
    )
    assert attributes["source_type"] == "gps"


def read_tracker(home: httpx.Client) -> dict[str, Any]:
    """Return the attributes of Ann's tracker, which are empty before the first message."""
    return home.get("/api/states/device_tracker.ann").json().get("attributes", {})
