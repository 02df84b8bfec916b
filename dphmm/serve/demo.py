"""``dphmm serve --demo``: the real relay, and people of the synthetic city whose phones post to it over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from dphmm.errors import need
from dphmm.jobs import learn, region
from dphmm.readers.synthetic_city import build_city, synthetic_trajectories
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
    family, tokens = _recipient(), {name: new_token() for name in names}
    told = f"http://127.0.0.1:{family.server_port}/"
    keys = {
        "model": "model.npz",
        "store": "people.db",
        "listen": f"127.0.0.1:{port}",
        "release": {"policy": "utility:1km", "epsilon": 0.5},
        "limits": {"window_epsilon": 200.0, "window_steps": 288},
        "device": [{"user": name, "token": hash_token(token)} for name, token in tokens.items()],
        "recipient": [
            {"name": "family", "kind": "owntracks", "url": told},
            {"name": "friends", "kind": "webhook", "url": told, "epsilon": 0.1},
        ],
    }
    write_text(folder / "relay.toml", tomli_w.dumps(keys), private=True)
    url = f"http://127.0.0.1:{port}"
    phones = [_Phone(url, name, token, one) for (name, token), one in zip(tokens.items(), people, strict=True)]
    yield f"{len(phones)} people of a city that does not exist post to a relay in {folder}."
    yield f"Look at {url}/ and log in with a token:"
    yield from (f"  {name:<8}{token}" for name, token in tokens.items())
    yield "Their first day is there within seconds; then five minutes pass in each second. Ctrl-C ends it."
    threading.Thread(target=_live, args=(url, phones), daemon=True).start()
    serve(folder / "relay.toml")


class _Phone:
    """Posts as OwnTracks does. Its person's days are moved in time so that the last one ends now."""

    def __init__(self, url: str, user: str, token: str, days: Trajectory) -> None:
        self._url, self._account = f"{url}/owntracks", (user, token)
        seconds = days.times.astype("datetime64[s]").astype(np.int64)
        moved = (int(time.time()) - int(seconds[-1])) // STEP_SECONDS * STEP_SECONDS
        self._fixes = {
            int(second) // STEP_SECONDS: (int(second), float(latitude), float(longitude))
            for second, latitude, longitude in zip(seconds + moved, days.latitude, days.longitude, strict=True)
        }

    @property
    def steps(self) -> list[int]:
        """The time steps in which it has a fix."""
        return sorted(self._fixes)

    def post(self, client: Any, step: int) -> None:
        """Post the fix of a step, if there is one, until it is taken."""
        if step not in self._fixes:
            return
        second, latitude, longitude = self._fixes[step]
        fix = {"_type": "location", "tst": second, "lat": latitude, "lon": longitude, "acc": 8, "tid": "ph"}
        while not client.post(self._url, json=fix, auth=self._account).is_success:
            time.sleep(_PAUSE_S)


def _live(url: str, phones: Sequence[_Phone]) -> None:
    httpx = need("httpx", "serve")
    with httpx.Client(timeout=30) as client:
        while True:
            try:
                client.get(f"{url}/health")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        steps = sorted({step for phone in phones for step in phone.steps})
        try:
            for number, step in enumerate(steps):
                for phone in phones:
                    phone.post(client, step)
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
