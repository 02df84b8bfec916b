"""``dphmm serve --demo``: the relay with synthetic users who post to it over HTTP."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from dphmm.errors import ConfigurationError, import_library
from dphmm.jobs import learn, region
from dphmm.plots.basemap import Basemap, PlaceName, write_basemap
from dphmm.readers.synthetic_city import City, build_city, sample_synthetic_trajectories
from dphmm.serve.config import generate_token, hash_token
from dphmm.serve.server import SOCKET_VARIABLE, serve
from dphmm.space.trajectory import Trajectory
from dphmm.tables import write_text
from dphmm.tables.table import write_csv

STEP_SECONDS = 300
_NUM_TRAINING_USERS = 12
_NUM_DAYS = 5
_CELL_KM = 0.25
# The first day is posted immediately, as by phones that had no network, and then one step per second.
_NUM_IMMEDIATE_STEPS = 288
_PAUSE_S = 1.0
# Retries with doubling waits, about a minute in total.
_NUM_RETRIES = 8


def serve_demo(folder: Path, names: Sequence[str] = ("ann", "bob"), port: int = 8787) -> Iterator[str]:
    """Run a relay in a folder with synthetic users who post to it.

    Parameters
    ----------
    folder : Path
        Folder for the model, the relay's file and the store.
    names : sequence of str
        Names of the users who post.
    port : int
        Port on this machine; 0 for a free one.

    Yields
    ------
    str
        Lines to print. After the last one it serves until it is interrupted.

    Raises
    ------
    ConfigurationError
        If the port cannot be used. Raised before any work.
    """
    listening = bind_local_port(port)
    port = listening.getsockname()[1]
    city = build_city()
    everyone = sample_synthetic_trajectories(_NUM_TRAINING_USERS + len(names), _NUM_DAYS, STEP_SECONDS / 60, city=city)
    others, senders = everyone[:_NUM_TRAINING_USERS], everyone[_NUM_TRAINING_USERS:]
    south, west, north, east = city.box
    rows = (
        (trajectory.user, f"{when.astype('datetime64[s]')}Z", round(float(latitude), 6), round(float(longitude), 6))
        for trajectory in others
        for when, latitude, longitude in zip(trajectory.times, trajectory.latitude, trajectory.longitude, strict=True)
    )
    write_csv(folder / "others.csv", ("user", "time", "latitude", "longitude"), rows)
    learn(
        folder / "others.csv",
        region(bbox=(south, west, north, east), cell_km=_CELL_KM),
        step_seconds=STEP_SECONDS,
        output=folder / "model.npz",
    )
    write_basemap(folder / "city.geojson", build_city_basemap(city))
    family = _start_recipient()
    tokens = {name: generate_token() for name in names}
    page_tokens = {name: generate_token() for name in names}
    address = f"http://127.0.0.1:{family.server_port}/"
    keys = {
        "model": "model.npz",
        "store": "users.db",
        "basemap": "city.geojson",
        "listen": f"127.0.0.1:{port}",
        "release": {"policy": "utility:1km", "epsilon": 0.5},
        "limits": {"window_epsilon": 200.0, "window_steps": 288},
        "device": [{"user": name, "token": hash_token(token)} for name, token in tokens.items()],
        "page": [{"user": name, "token": hash_token(token)} for name, token in page_tokens.items()],
        "recipient": [
            {"name": "family", "kind": "owntracks", "url": address},
            {"name": "friends", "kind": "webhook", "url": address, "precision": "2km"},
        ],
    }
    write_text(folder / "relay.toml", tomli_w.dumps(keys), private=True)
    url = f"http://127.0.0.1:{port}"
    phones = [
        (account, _build_messages(trajectory)) for account, trajectory in zip(tokens.items(), senders, strict=True)
    ]
    yield f"{len(phones)} synthetic users post to a relay in {folder}."
    yield f"Open {url}/ and log in with a token:"
    yield from (f"  {name:<8}{token}" for name, token in page_tokens.items())
    yield "The first day appears within seconds. Then one second represents five minutes. Press Ctrl-C to stop."
    threading.Thread(target=_post_messages, args=(f"{url}/owntracks", phones), daemon=True).start()
    os.environ[SOCKET_VARIABLE] = str(listening.detach())
    serve(folder / "relay.toml")


def bind_local_port(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine.

    Connections wait there for the server.

    Parameters
    ----------
    port : int
        The port; 0 for a free one.

    Raises
    ------
    ConfigurationError
        If the port cannot be used.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError as problem:
        listening.close()
        raise ConfigurationError(f"--port {port} cannot be used ({problem.strerror}): choose another one") from None
    return listening


def build_city_basemap(city: City) -> Basemap:
    """Build a basemap of the synthetic city: streets and names of districts."""
    lines: dict[str, list[Any]] = {"road": [], "street": []}
    for start, end, effort in city.streets.edges(data="effort"):
        ends = np.array([city.get_point(start), city.get_point(end)])
        kind = "road" if effort < 0.99 * np.linalg.norm(ends[1] - ends[0]) else "street"
        lines[kind].append(city.projection.to_latlon(ends)[:, ::-1])
    names = []
    for name, outline in city.districts.items():
        latitude, longitude = city.projection.to_latlon(np.array([*outline.centroid.coords]))[0].tolist()
        names.append(PlaceName(name, latitude, longitude, 45.0))
    return Basemap((), lines, names, "An invented city.")


def _build_messages(days: Trajectory) -> dict[int, dict[str, Any]]:
    """Build the OwnTracks messages of a phone by timestep, ending now."""
    seconds = days.times.astype("datetime64[s]").astype(np.int64)
    moved = seconds + (int(time.time()) - int(seconds[-1])) // STEP_SECONDS * STEP_SECONDS
    fixes = zip(moved.tolist(), days.latitude.tolist(), days.longitude.tolist(), strict=True)
    return {
        second // STEP_SECONDS: {"_type": "location", "tst": second, "lat": latitude, "lon": longitude, "acc": 8}
        for second, latitude, longitude in fixes
    }


def _post_messages(url: str, phones: Sequence[tuple[tuple[str, str], Mapping[int, dict[str, Any]]]]) -> None:
    """Post the messages of all phones (accounts and messages by timestep)."""
    httpx = import_library("httpx", "serve")
    with httpx.Client(timeout=30, transport=httpx.HTTPTransport(retries=_NUM_RETRIES)) as client:
        try:
            for number, step in enumerate(sorted({step for _, messages in phones for step in messages})):
                for account, messages in phones:
                    while step in messages and not client.post(url, json=messages[step], auth=account).is_success:
                        time.sleep(_PAUSE_S)
                if number >= _NUM_IMMEDIATE_STEPS:
                    time.sleep(_PAUSE_S)
        except httpx.TransportError:
            return  # the relay has ended


def _start_recipient() -> ThreadingHTTPServer:
    """Start a recipient on this machine that accepts every message and logs none."""

    class Taken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
