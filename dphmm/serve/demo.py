"""``dphmm serve --demo``: the real relay, and people of the synthetic city whose phones post to it over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from dphmm.errors import need
from dphmm.jobs import learn, region
from dphmm.plots.basemap import Basemap, PlaceName, write_basemap
from dphmm.readers.synthetic_city import City, build_city, synthetic_trajectories
from dphmm.serve.config import hash_token, new_token
from dphmm.serve.server import serve
from dphmm.space.trajectory import Trajectory
from dphmm.tables import write_text
from dphmm.tables.table import write_csv

STEP_SECONDS = 300
_PEOPLE, _DAYS, _CELL_KM = 12, 5, 0.25
_AT_ONCE = 288
"""The first day is posted at once, as by phones that had no network, the rest a step a second."""
_PAUSE_S = 1.0
_CONNECTIONS_TRIED = 8
"""A phone tries again to reach the relay this often, twice as late each time: about a minute."""


def serve_demo(folder: Path, names: Sequence[str] = ("ann", "bob"), port: int = 8787) -> Iterator[str]:
    """Make everything that a relay needs in a folder, run it, and have people post.

    Parameters
    ----------
    folder
        Where the model, the relay's file and the store go.
    names
        Who posts; the first is whose page one might look at.
    port
        Where it listens on this machine.

    Yields
    ------
    str
        Lines to show; after the last one it serves until it is interrupted.
    """
    city = build_city()
    everyone = synthetic_trajectories(_PEOPLE + len(names), _DAYS, STEP_SECONDS / 60, city=city)
    others, people = everyone[:_PEOPLE], everyone[_PEOPLE:]
    south, west, north, east = city.box
    rows = (
        (one.user, f"{when.astype('datetime64[s]')}Z", round(float(latitude), 6), round(float(longitude), 6))
        for one in others
        for when, latitude, longitude in zip(one.times, one.latitude, one.longitude, strict=True)
    )
    write_csv(folder / "others.csv", ("user", "time", "latitude", "longitude"), rows)
    learn(
        folder / "others.csv",
        region(bbox=(south, west, north, east), cell=_CELL_KM),
        step_seconds=STEP_SECONDS,
        output=folder / "model.npz",
    )
    write_basemap(folder / "city.geojson", city_basemap(city))
    family, tokens = _recipient(), {name: new_token() for name in names}
    told = f"http://127.0.0.1:{family.server_port}/"
    keys = {
        "model": "model.npz",
        "store": "people.db",
        "basemap": "city.geojson",
        "listen": f"127.0.0.1:{port}",
        "release": {"policy": "utility:1km", "epsilon": 0.5},
        "limits": {"window_epsilon": 200.0, "window_steps": 288},
        "device": [{"user": name, "token": hash_token(token)} for name, token in tokens.items()],
        "recipient": [
            {"name": "family", "kind": "owntracks", "url": told},
            {"name": "friends", "kind": "webhook", "url": told, "precision": "2km"},
        ],
    }
    write_text(folder / "relay.toml", tomli_w.dumps(keys), private=True)
    url = f"http://127.0.0.1:{port}"
    phones = [(account, _messages(one)) for account, one in zip(tokens.items(), people, strict=True)]
    yield f"{len(phones)} people of a city that does not exist post to a relay in {folder}."
    yield f"Look at {url}/ and log in with a token:"
    yield from (f"  {name:<8}{token}" for name, token in tokens.items())
    yield "Their first day is there within seconds; then five minutes pass in each second. Ctrl-C ends it."
    threading.Thread(target=_post, args=(f"{url}/owntracks", phones), daemon=True).start()
    serve(folder / "relay.toml")


def city_basemap(city: City) -> Basemap:
    """The streets and the districts' names of the synthetic city."""
    lines: dict[str, list[Any]] = {"road": [], "street": []}
    for start, end, effort in city.streets.edges(data="effort"):
        ends = np.array([city.point(start), city.point(end)])
        kind = "road" if effort < 0.99 * np.linalg.norm(ends[1] - ends[0]) else "street"
        lines[kind].append(city.projection.to_latlon(ends)[:, ::-1])
    names = []
    for name, outline in city.districts.items():
        latitude, longitude = city.projection.to_latlon(np.array([*outline.centroid.coords]))[0].tolist()
        names.append(PlaceName(name, latitude, longitude, 45.0))
    return Basemap((), lines, names, "An invented city.")


def _messages(days: Trajectory) -> dict[int, dict[str, Any]]:
    """What a phone with OwnTracks posts at each time step, days moved in time so that the last one ends now."""
    seconds = days.times.astype("datetime64[s]").astype(np.int64)
    moved = seconds + (int(time.time()) - int(seconds[-1])) // STEP_SECONDS * STEP_SECONDS
    fixes = zip(moved.tolist(), days.latitude.tolist(), days.longitude.tolist(), strict=True)
    return {
        second // STEP_SECONDS: {"_type": "location", "tst": second, "lat": latitude, "lon": longitude, "acc": 8}
        for second, latitude, longitude in fixes
    }


def _post(url: str, phones: Sequence[tuple[tuple[str, str], Mapping[int, dict[str, Any]]]]) -> None:
    """Post the messages of all phones, each an account and its messages by time step, until the relay ends."""
    httpx = need("httpx", "serve")
    with httpx.Client(timeout=30, transport=httpx.HTTPTransport(retries=_CONNECTIONS_TRIED)) as client:
        try:
            for number, step in enumerate(sorted({step for _, messages in phones for step in messages})):
                for account, messages in phones:
                    while step in messages and not client.post(url, json=messages[step], auth=account).is_success:
                        time.sleep(_PAUSE_S)
                if number >= _AT_ONCE:
                    time.sleep(_PAUSE_S)
        except httpx.TransportError:
            return  # the relay has ended


def _recipient() -> ThreadingHTTPServer:
    """A recipient on this machine that takes every message and logs none."""

    class Taken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taken)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
