"""Tests of ``dphmm explore``: its address, its end, and bad input."""

from __future__ import annotations

import re
import signal

import httpx
import pytest

from tests.cli.conftest import start


@pytest.mark.slow  # starts a process; the page's own tests cover the server
def test_page_is_served_on_this_machine_until_interrupt(world):
    process = start(
        "explore", "m.npz", "--data", "walk.csv", "--user", "b", "--steps", "3", "--no-browser", "--port", "0"
    )
    try:
        url = re.fullmatch(r"Open (http://127\.0\.0\.1:\d+/\?token=\S+)\n", process.stdout.readline().decode())[1]
        assert "private recording" in process.stdout.readline().decode()
        with httpx.Client(base_url=url.partition("?")[0], verify=False, timeout=60) as client:
            assert client.get("/explore/scene").status_code == 401
            client.get(url)
            scene = client.get("/explore/scene").json()
        assert (scene["is_private"], scene["user"], len(scene["times"])) == (True, "b", 3)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == b""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("absent.npz",), "absent.npz"),
        (("m.npz", "--town", "Wien"), "at most one of MODEL, --town and --bbox"),
        (("m.npz", "--user", "a"), "--user needs --data"),
        (("m.npz", "--data", "walk.csv", "--user", "zoe"), "user must be one of a, b, got 'zoe'"),
        (("m.npz", "--data", "walk.csv", "--seed", "1"), "--seed cannot be combined with --data"),
        (("m.npz", "--data", "me.gpx"), "me.gpx: does not specify a user; name the user with --user NAME"),
        (("m.npz", "--data", "me.gpx", "--user", "ann"), "inside the model's region, got 1 timesteps outside it"),
        (("m.npz", "--steps", "0"), "'--steps': 0 is not in the range 1<=x<=2000"),
        (("m.npz", "--basemap", "absent.geojson"), "absent.geojson"),
    ],
)
def test_bad_input_is_one_line(world, run, words, message):
    track = '<trk><trkseg><trkpt lat="46" lon="-30"><time>2024-03-07T09:00:00Z</time></trkpt></trkseg></trk>'
    (world / "me.gpx").write_text(f'<gpx version="1.1" xmlns="http://www.topografix.com/GPX/1/1">{track}</gpx>')
    done = run("explore", *words, "--no-browser", "--port", "0")
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
