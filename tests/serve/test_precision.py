"""Recipients with a precision: what they are sent is a function of rounded releases, over every channel."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from urllib.parse import parse_qs

import httpx
import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.jobs.models import load_model
from dphmm.release.record import ReleaseRecord
from dphmm.release.trajectory import TimedRelease
from dphmm.serve import delivery
from dphmm.serve.config import Recipient
from dphmm.serve.content import PageContent, _place
from dphmm.serve.message_formats import FORMATS, Message
from dphmm.serve.precision import PrecisionGrid
from dphmm.serve.recipients import FOREVER, Reader
from dphmm.space import LocalProjection
from tests.serve.conftest import START, relay, wait_for
from tests.serve.test_choices import named, some
from tests.serve.test_delivery import log_in, post
from tests.serve.test_page import link

PLANE = LocalProjection(45.0, -30.0)
SIDE_M = 5000
GRID = PrecisionGrid(PLANE, SIDE_M)
KINDS = (*FORMATS, "mqtt")
TIME = np.datetime64(START, "s").astype("datetime64[us]")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_LONGEST_WAIT_S", 0.1)


def degrees(point):
    return tuple(PLANE.to_latlon(np.array(point))[0].tolist())


@dataclass(frozen=True)
class Case:
    """A true location and a release of it, in kilometres of the plane."""

    true: tuple[float, float]
    message: Message


def case(rng, released=(1.0, 1.0), estimate=(6.0, -4.0), radius_km=1.2, withheld=False) -> Case:
    """A release within the cells of the given points; everything else that a record contains is drawn at random."""
    side = SIDE_M / 1000

    def within(point):
        # A centimetre from the borders at least: degrees and kilometres agree to less than that.
        return tuple((np.floor(np.array(point) / side) * side + rng.uniform(1e-5, side - 1e-5, 2)).tolist())

    z, guess = within(released), within(estimate)
    record = ReleaseRecord(
        int(rng.integers(99)), 1, None if withheld else z, guess, float(rng.uniform(0.1, 1)), "lattice", True,
        float(rng.uniform(0.1, 2)), int(rng.integers(1, 99)), 2, (), float(rng.uniform(1, 2)), 2, float(rng.uniform()),
        True, 0.0, bool(rng.integers(2)), "s", "m", radius_km + float(rng.uniform(0, 0.2)), float(rng.uniform(0.1, 2)),
        float(rng.uniform()), float(rng.uniform(1, 9)), float(rng.uniform(1, 9)), open=bool(rng.integers(2)),
        component_certainty=float(rng.uniform()), reason="budget" if withheld else "",
        held_radius=2 * radius_km + float(rng.uniform(0, 0.2)),
    )  # fmt: skip
    place = (float("nan"),) * 2 if withheld else degrees(z)
    message = Message.of_release(TimedRelease("ann", TIME, record, *place, *degrees(guess)))
    if withheld:
        message = message.known_at(START - 300)
    return Case(tuple(rng.uniform(-9, 9, 2).tolist()), message)


def sent(kind, message) -> bytes:
    """The bytes that a channel sends: URL, headers and body, by the relay's own senders."""
    if kind == "link":
        reader = Reader("link x", 1, "Bea", "main", SIDE_M, 0, 0, False, FOREVER)
        page = PageContent.__new__(PageContent)
        page._towns = ()
        return json.dumps([_place(7, message), page._can_tell(reader, 7, message)]).encode()
    found: list[bytes] = []
    recipient = Recipient(name="x", kind=kind, url="mqtt://b" if kind == "mqtt" else "https://a.example/in")
    if kind == "mqtt":
        sender = delivery.MqttSender(recipient)

        async def publish(topic, body, **_):
            found.append(f"{topic} {body}".encode())

        sender._client = SimpleNamespace(publish=publish)
        asyncio.run(sender.send(message))
        return found[0]

    def answer(request: httpx.Request) -> httpx.Response:
        found.append(
            b"|".join([str(request.url).encode(), request.headers.get("x-limit-u", "").encode(), request.read()])
        )
        return httpx.Response(200)

    async def send():
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await delivery.HttpSender(recipient, client).send(message)

    asyncio.run(send())
    return found[0]


def rounded(one: Case, grid=GRID) -> Message:
    return grid.rounded(one.message)


def rounded_truth(one: Case) -> Message:
    """A broken twin: the centre of the cell in which the user is."""
    message = rounded(one)
    latitude, longitude = GRID.centre(*degrees(one.true))
    row = {**message.row, "estimate_latitude": latitude, "estimate_longitude": longitude}
    return replace(message, latitude=latitude, longitude=longitude, row=row)


@dataclass(frozen=True)
class Anchored(PrecisionGrid):
    """A broken twin: cells that begin at the location."""

    def centre(self, latitude, longitude):
        moved = self.projection.to_plane(latitude, longitude) + self.side_m / 2000
        return tuple(self.projection.to_latlon(moved)[0].tolist())


@dataclass(frozen=True)
class ExactRadius(PrecisionGrid):
    """A broken twin: the exact radius about the centre, which tells the estimate within its cell."""

    def radius_m(self, radius_m):
        return radius_m + self.side_m / np.sqrt(2)


@pytest.mark.parametrize("kind", [*KINDS, "link"])
@pytest.mark.parametrize("withheld", [False, True])
def test_releases_of_the_same_cells_give_equal_bytes_over_every_channel(kind, withheld):
    """40 pairs, seed 3: true locations and all figures of the records differ, the cells do not."""
    rng = np.random.default_rng(3)
    cases = [case(rng, withheld=withheld) for _ in range(40)]
    assert len({one.message.to_json() for one in cases}) == len(cases)
    assert len({sent(kind, rounded(one)) for one in cases}) == 1
    others = [case(rng, withheld=withheld, **one) for one in ({"estimate": (11.0, -4.0)}, {"released": (-1.0, 1.0)})]
    differ = [sent(kind, rounded(one)) != sent(kind, rounded(cases[0])) for one in others]
    assert differ == [True, kind == "webhook" and not withheld]  # apps are sent the estimate alone


@pytest.mark.parametrize("kind", [*KINDS, "link"])
@pytest.mark.parametrize("twin", [rounded_truth, partial(rounded, grid=Anchored(PLANE, SIDE_M)), "radius"])
def test_broken_twins_give_different_bytes(kind, twin):
    """The same pairs refuse a rounded true location, cells that follow the release, and exact radii."""
    rng = np.random.default_rng(3)
    make = partial(rounded, grid=ExactRadius(PLANE, SIDE_M)) if twin == "radius" else twin
    assert len({sent(kind, make(case(rng))) for _ in range(40)}) > 1


@pytest.mark.parametrize("kind", [*KINDS, "link"])
def test_form_does_not_depend_on_what_was_withheld_or_not_sent(kind):
    """Keys of a release, of a prediction, and of both after a pause, when the recipient's own estimate is sent."""
    rng = np.random.default_rng(5)
    drawn, withheld = (case(rng, withheld=is_withheld).message for is_withheld in (False, True))
    parts = [one.of_part(0.5, degrees((6.0, -4.0)), 1.2, 2.4) for one in (drawn, withheld)]
    messages = [drawn, withheld, parts[0], parts[1].known_at(START - 300), parts[1].known_at(None)]

    def keys(body):
        if kind in ("traccar", "home-assistant"):
            return sorted(parse_qs(body.split(b"|")[2].decode(), keep_blank_values=True))
        text = body if kind == "link" else body.split(b"|")[2] if kind != "mqtt" else body.split(b" ", 1)[1]
        return shape(json.loads(text))

    def shape(value):
        if isinstance(value, dict):
            return {name: shape(one) for name, one in sorted(value.items())}
        return [shape(one) for one in value] if isinstance(value, list) else None

    found = [keys(sent(kind, GRID.rounded(one))) for one in messages]
    assert all(one == found[0] for one in found)
    assert drawn.row.keys() != withheld.row.keys()  # of recipients without a precision it does, as their page says


def test_figures_of_exact_releases_are_not_sent():
    row = rounded(case(np.random.default_rng(1))).row
    assert set(row) == {
        "released", "user", "time", "precision_m", "latitude", "longitude", "estimate_latitude", "estimate_longitude",
        "estimate_radius_m", "radius_90_m", "last_known",
    }  # fmt: skip


def test_cell_beyond_the_earth_has_no_centre():
    """Of the plane, 12,742 km around its centre show the Earth: 8,500 km east and north lie within, 9,500 km do not."""
    wide, message = PrecisionGrid(PLANE, 1_000_000), case(np.random.default_rng(1)).message
    far = {**message.row, **dict(zip(("latitude", "longitude"), degrees((8950.0, 8950.0)), strict=True))}
    row = wide.rounded(replace(message, row=far)).row
    assert row["latitude"] is not None
    far |= dict(zip(("latitude", "longitude"), degrees((9005.0, 9005.0)), strict=True))
    row = wide.rounded(replace(message, row=far)).row
    assert (row["latitude"], row["longitude"]) == (None, None)


def test_centre_is_the_nearest_of_a_fixed_lattice():
    """Against all centres within four cells, seed 2; the lattice is anchored at the projection's own centre."""
    rng = np.random.default_rng(2)
    lattice = (np.stack(np.meshgrid(np.arange(-4, 4), np.arange(-4, 4)), axis=-1).reshape(-1, 2) + 0.5) * SIDE_M / 1000
    for point in rng.uniform(-18, 18, (200, 2)):
        away = np.linalg.norm(lattice - PLANE.to_plane(*GRID.centre(*degrees(point)))[0], axis=1)
        assert away.min() < 1e-4  # six decimals of a degree
        assert np.argmin(np.linalg.norm(lattice - point, axis=1)) == away.argmin()


def test_cells_meet_at_the_projections_centre():
    centres = [PLANE.to_plane(*GRID.centre(*degrees(one)))[0] for one in ((0.01, 0.01), (-0.01, -0.01))]
    np.testing.assert_allclose(centres, [[2.5, 2.5], [-2.5, -2.5]], atol=1e-4)


def test_radius_contains_the_rounding():
    """2,000 circles, a third of them about a corner's neighbourhood, seed 4; half a diagonal less is too little."""
    rng = np.random.default_rng(4)
    held, narrower = [], []
    for k in range(2000):
        corner = SIDE_M / 1000 * rng.integers(-3, 3, 2)
        point = corner + (rng.uniform(0, 0.05, 2) if k % 3 == 0 else rng.uniform(0, SIDE_M / 1000, 2))
        radius_m = float(rng.uniform(1, 9000))
        centre = PLANE.to_plane(*GRID.centre(*degrees(point)))[0]
        away = point - centre
        farthest = 1000 * np.linalg.norm(point + radius_m / 1000 * away / np.linalg.norm(away) - centre)
        held.append(farthest <= GRID.radius_m(radius_m))
        narrower.append(farthest <= SIDE_M * np.ceil(radius_m / SIDE_M))
        assert GRID.radius_m(radius_m) < radius_m + SIDE_M / np.sqrt(2) + SIDE_M + 2
    assert all(held)
    assert not all(narrower)


def test_expected_error_about_the_centre_is_not_above_the_radius():
    """Of discrete distributions: the mean distance from the centre of their mean's cell, by the plain sum; seed 6."""
    rng = np.random.default_rng(6)
    for _ in range(200):
        points, mass = rng.uniform(-20, 20, (30, 2)), rng.dirichlet(np.full(30, 0.3))
        mean = mass @ points
        radius = 1000 * mass @ np.linalg.norm(points - mean, axis=1)
        centre = PLANE.to_plane(*GRID.centre(*degrees(mean)))[0]
        assert 1000 * mass @ np.linalg.norm(points - centre, axis=1) <= GRID.radius_m(radius)


def test_every_channel_of_a_relay_is_sent_rounded_releases(config, inbox, clock):
    """A relay's own messages: each is the rounded one of what a recipient without a precision is sent."""
    kinds = [kind for kind in FORMATS if kind != "webhook"]
    made = config(
        recipient=[
            some(inbox, "family"), some(inbox, "webhook", precision="2km"),
            *(some(inbox, kind, kind=kind, precision="2km") for kind in kinds),
        ],
        limits={"epsilon": 1.0},
    )  # fmt: skip

    def bodies(name):
        return [body for _, headers, body in inbox.messages if headers.get("x-name") == name]

    with relay(made) as client:
        log_in(client)
        key = {"Authorization": f"Bearer {link(client, precision_m=2000).json()['token']}"}
        post(client, 1, 2, 3)
        wait_for(lambda: all(len(bodies(name)) == 3 for name in ("family", "webhook", *kinds)))
        seen = client.get("/page/trail?reader=webhook").json()["places"]
        household = client.get("/page/state").json()["people"][0]["last"]
        shown = client.get("/link/told", headers=key).json()
    grid = PrecisionGrid(load_model(made.model).space.projection, 2000)
    for number, fine in enumerate(named(inbox, "family")):
        coarse = json.loads(bodies("webhook")[number])
        expected = grid.centre(fine["estimate_latitude"], fine["estimate_longitude"])
        assert (coarse["estimate_latitude"], coarse["estimate_longitude"]) == expected
        if fine["released"]:
            assert (coarse["latitude"], coarse["longitude"]) == grid.centre(fine["latitude"], fine["longitude"])
        assert coarse["estimate_radius_m"] == grid.radius_m(fine["estimate_radius_m"])
        assert (seen[number]["latitude"], seen[number]["longitude"]) == expected
        owntracks, overland = (json.loads(bodies(kind)[number]) for kind in ("owntracks", "overland"))
        (feature,) = overland["locations"]
        fields = [
            {name: value for name, (value,) in parse_qs(bodies(kind)[number].decode()).items()}
            for kind in ("traccar", "home-assistant")
        ]
        assert (owntracks["lat"], owntracks["lon"]) == expected
        assert tuple(feature["geometry"]["coordinates"][::-1]) == expected
        assert (float(fields[0]["lat"]), float(fields[0]["lon"])) == expected
        assert (float(fields[1]["latitude"]), float(fields[1]["longitude"])) == expected
    assert [one["released"] for one in named(inbox, "webhook")] == [True, True, False]
    assert household["latitude"] == pytest.approx(named(inbox, "family")[-1]["estimate_latitude"], abs=1e-6)
    assert len(shown["places"]) == 3
    for one in [*shown["places"], shown["last"]]:
        assert one["radius_m"] % 2000 == 0
        place = load_model(made.model).space.projection.to_plane(one["latitude"], one["longitude"])[0]
        np.testing.assert_allclose(place % 2, [1, 1], atol=1e-4)
    assert shown["last"]["can_tell"]["off_m"] == shown["last"]["radius_m"]


@pytest.mark.parametrize(
    "value", ["5", "5 miles", "", "0m", "5m", "-1km", "12.5m", "2000km", "nankm", "infkm", 5000, True, ["5km"]]
)
def test_invalid_precision_is_refused_in_one_line(model, tmp_path, value):
    keys = {
        "model": str(model),
        "store": str(tmp_path / "people.db"),
        "device": [{"user": "ann", "token": "a" * 40}],
        "recipient": [{"name": "town", "kind": "webhook", "url": "https://a.example/", "precision": value}],
    }
    (tmp_path / "relay.toml").write_text(tomli_w.dumps(keys))
    done = CliRunner().invoke(main, ["serve", str(tmp_path / "relay.toml")])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "recipient.0.precision" in done.stderr
    assert not (tmp_path / "people.db").exists()
