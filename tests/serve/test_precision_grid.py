"""Tests of recipients with a precision: all messages are functions of rounded releases."""

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
from dphmm.jobs.model.loading import load_model
from dphmm.release.record import ReleaseRecord
from dphmm.release.trajectory_release import TimedRelease
from dphmm.serve import delivery
from dphmm.serve.config import Recipient
from dphmm.serve.outgoing_messages import FORMATS, Message
from dphmm.serve.page_content import PageContent, _describe_message
from dphmm.serve.precision_grid import PrecisionGrid
from dphmm.serve.recipient_tables import FOREVER, RecipientState
from dphmm.space import LocalProjection
from tests.serve.conftest import START, serve_relay, wait_for
from tests.serve.test_choices import describe_named_recipient, read_inbox
from tests.serve.test_delivery import log_in, post
from tests.serve.test_page import create_link

PLANE = LocalProjection(45.0, -30.0)
SIDE_M = 5000
GRID = PrecisionGrid(PLANE, SIDE_M)
KINDS = (*FORMATS, "mqtt")
TIME = np.datetime64(START, "s").astype("datetime64[us]")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(delivery, "_MAX_WAIT_S", 0.1)


def convert_to_degrees(point):
    return tuple(PLANE.to_latlon(np.array(point))[0].tolist())


@dataclass(frozen=True)
class Case:
    """A true location and a release of it, in kilometres of the plane."""

    true: tuple[float, float]
    message: Message


def sample_case(rng, released=(1.0, 1.0), estimate=(6.0, -4.0), radius_km=1.2, withheld=False) -> Case:
    """Return a release within the cells of the given points, with random other fields."""
    side = SIDE_M / 1000

    def sample_within(point):
        # At least one centimetre from the borders: degrees and kilometres agree to less than that.
        return tuple((np.floor(np.array(point) / side) * side + rng.uniform(1e-5, side - 1e-5, 2)).tolist())

    z, guess = sample_within(released), sample_within(estimate)
    record = ReleaseRecord(
        int(rng.integers(99)), 1, None if withheld else z, guess, float(rng.uniform(0.1, 1)), "lattice", True,
        float(rng.uniform(0.1, 2)), int(rng.integers(1, 99)), 2, (), float(rng.uniform(1, 2)), 2, float(rng.uniform()),
        True, 0.0, bool(rng.integers(2)), "s", "m", radius_km + float(rng.uniform(0, 0.2)), float(rng.uniform(0.1, 2)),
        float(rng.uniform()), float(rng.uniform(1, 9)), float(rng.uniform(1, 9)), is_unprotected=bool(rng.integers(2)),
        component_posterior=float(rng.uniform()), withheld_reason="budget" if withheld else "",
        calibrated_radius_90=2 * radius_km + float(rng.uniform(0, 0.2)),
    )  # fmt: skip
    place = (float("nan"),) * 2 if withheld else convert_to_degrees(z)
    message = Message.from_release(TimedRelease("ann", TIME, record, *place, *convert_to_degrees(guess)))
    if withheld:
        message = message.with_last_known(START - 300)
    return Case(tuple(rng.uniform(-9, 9, 2).tolist()), message)


def encode(kind, message) -> bytes:
    """Return the bytes that the relay's senders send: URL, headers and body."""
    if kind == "link":
        reader = RecipientState("link x", 1, "Bea", "main", SIDE_M, 0, 0, False, FOREVER)
        page = PageContent.__new__(PageContent)
        page._towns = ()
        return json.dumps([_describe_message(7, message), page._infer(reader, message)]).encode()
    messages: list[bytes] = []
    recipient = Recipient(name="x", kind=kind, url="mqtt://b" if kind == "mqtt" else "https://a.example/in")
    if kind == "mqtt":

        async def publish(topic, body):
            messages.append(f"{topic} {body}".encode())

        asyncio.run(delivery.MqttSender(SimpleNamespace(publish=publish), "x").send(message))
        return messages[0]

    def answer(request: httpx.Request) -> httpx.Response:
        messages.append(
            b"|".join([str(request.url).encode(), request.headers.get("x-limit-u", "").encode(), request.read()])
        )
        return httpx.Response(200)

    async def send():
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            await delivery.HttpSender(recipient, client).send(message)

    asyncio.run(send())
    return messages[0]


def round_message(release_case: Case, grid=GRID) -> Message:
    return grid.round_message(release_case.message)


def round_truth(release_case: Case) -> Message:
    """Round to the cell of the true location (wrong variant)."""
    message = round_message(release_case)
    latitude, longitude = GRID.get_centre(*convert_to_degrees(release_case.true))
    row = {**message.row, "estimate_latitude": latitude, "estimate_longitude": longitude}
    return replace(message, latitude=latitude, longitude=longitude, row=row)


@dataclass(frozen=True)
class Anchored(PrecisionGrid):
    """Cells that begin at the location (wrong variant)."""

    def get_centre(self, latitude, longitude):
        moved = self.projection.to_plane(latitude, longitude) + self.side_m / 2000
        return tuple(self.projection.to_latlon(moved)[0].tolist())


@dataclass(frozen=True)
class ExactRadius(PrecisionGrid):
    """The exact radius about the centre, which reveals the estimate within its cell."""

    def enlarge_radius(self, radius_m):
        return radius_m + self.side_m / np.sqrt(2)


@pytest.mark.parametrize("kind", [*KINDS, "link"])
@pytest.mark.parametrize("withheld", [False, True])
def test_releases_in_equal_cells_give_equal_bytes_in_every_channel(kind, withheld):
    """40 pairs, seed 3: true locations and all fields differ, and the cells are equal."""
    rng = np.random.default_rng(3)
    cases = [sample_case(rng, withheld=withheld) for _ in range(40)]
    assert len({release_case.message.to_json() for release_case in cases}) == len(cases)
    assert len({encode(kind, round_message(release_case)) for release_case in cases}) == 1
    others = [
        sample_case(rng, withheld=withheld, **cells)
        for cells in ({"estimate": (11.0, -4.0)}, {"released": (-1.0, 1.0)})
    ]
    differ = [
        encode(kind, round_message(release_case)) != encode(kind, round_message(cases[0])) for release_case in others
    ]
    assert differ == [True, kind == "webhook" and not withheld]  # apps get only the estimate


@pytest.mark.parametrize("kind", [*KINDS, "link"])
@pytest.mark.parametrize(
    "variant",
    [round_truth, partial(round_message, grid=Anchored(PLANE, SIDE_M)), "radius"],
    ids=["true location", "moving cells", "exact radius"],
)
def test_wrong_variants_give_different_bytes(kind, variant):
    """The same cases reject rounded true locations, moving cells and exact radii."""
    rng = np.random.default_rng(3)
    make = partial(round_message, grid=ExactRadius(PLANE, SIDE_M)) if variant == "radius" else variant
    assert len({encode(kind, make(sample_case(rng))) for _ in range(40)}) > 1


@pytest.mark.parametrize("kind", [*KINDS, "link"])
def test_form_does_not_depend_on_withholding(kind):
    """Compare the keys of releases, of predictions, and of both after a pause.

    After a pause the recipient's own estimate is sent.
    """
    rng = np.random.default_rng(5)
    released, withheld = (sample_case(rng, withheld=is_withheld).message for is_withheld in (False, True))
    figures = {"expected_estimate_error": 1.2, "calibrated_radius_90": 2.4}
    parts = [
        message.for_partial_recipient(convert_to_degrees((6.0, -4.0)), figures) for message in (released, withheld)
    ]
    messages = [released, withheld, parts[0], parts[1].with_last_known(START - 300), parts[1].with_last_known(None)]

    def list_keys(body):
        if kind in ("traccar", "home-assistant"):
            return sorted(parse_qs(body.split(b"|")[2].decode(), keep_blank_values=True))
        text = body if kind == "link" else body.split(b"|")[2] if kind != "mqtt" else body.split(b" ", 1)[1]
        return describe_shape(json.loads(text))

    def describe_shape(value):
        if isinstance(value, dict):
            return {name: describe_shape(nested) for name, nested in sorted(value.items())}
        return [describe_shape(nested) for nested in value] if isinstance(value, list) else None

    forms = [list_keys(encode(kind, GRID.round_message(message))) for message in messages]
    assert all(form == forms[0] for form in forms)
    assert all(message.row.keys() == released.row.keys() for message in messages)


@pytest.mark.parametrize("kind", KINDS)
def test_components_are_not_sent_to_a_recipient_that_was_not_sent_all_releases(kind):
    """They follow from the other releases, too, and are for the user's page."""
    message, figures = sample_case(np.random.default_rng(1)).message, {"expected_estimate_error": 1.2}
    parts = [
        message.for_partial_recipient(convert_to_degrees((6.0, -4.0)), figures | component)
        for component in (
            {"component_posterior": 1.0, "is_unprotected": False},
            {"component_posterior": 0.75, "is_unprotected": True},
            {"component_posterior": 0.5, "is_unprotected": True},
        )
    ]
    assert [part.exact_posterior for part in parts] == [None, 0.75, 0.5]
    assert len({encode(kind, part) for part in parts}) == 1
    assert [GRID.round_message(part) for part in parts] == [GRID.round_message(parts[0])] * 3


def test_fields_of_exact_releases_are_not_sent():
    row = round_message(sample_case(np.random.default_rng(1))).row
    assert set(row) == {
        "released", "user", "time", "precision_m", "latitude", "longitude", "estimate_latitude", "estimate_longitude",
        "estimate_error_m", "calibrated_radius_90_m", "last_known",
    }  # fmt: skip


def test_cell_beyond_earth_has_no_centre():
    """The plane shows the Earth up to 12,742 km from its centre.

    8,500 km to the east and north are within, 9,500 km are not.
    """
    wide, message = PrecisionGrid(PLANE, 1_000_000), sample_case(np.random.default_rng(1)).message
    far = {**message.row, **dict(zip(("latitude", "longitude"), convert_to_degrees((8950.0, 8950.0)), strict=True))}
    row = wide.round_message(replace(message, row=far)).row
    assert row["latitude"] is not None
    far |= dict(zip(("latitude", "longitude"), convert_to_degrees((9005.0, 9005.0)), strict=True))
    row = wide.round_message(replace(message, row=far)).row
    assert (row["latitude"], row["longitude"]) == (None, None)


def test_centre_is_nearest_point_of_fixed_lattice():
    """Compare with all centres within four cells, seed 2.

    The lattice is anchored at the centre of the projection.
    """
    rng = np.random.default_rng(2)
    lattice = (np.stack(np.meshgrid(np.arange(-4, 4), np.arange(-4, 4)), axis=-1).reshape(-1, 2) + 0.5) * SIDE_M / 1000
    for point in rng.uniform(-18, 18, (200, 2)):
        away = np.linalg.norm(lattice - PLANE.to_plane(*GRID.get_centre(*convert_to_degrees(point)))[0], axis=1)
        assert away.min() < 1e-4  # six decimals of a degree
        assert np.argmin(np.linalg.norm(lattice - point, axis=1)) == away.argmin()


def test_cells_meet_at_centre_of_projection():
    centres = [
        PLANE.to_plane(*GRID.get_centre(*convert_to_degrees(position)))[0]
        for position in ((0.01, 0.01), (-0.01, -0.01))
    ]
    np.testing.assert_allclose(centres, [[2.5, 2.5], [-2.5, -2.5]], atol=1e-4)


@pytest.mark.slow
def test_radius_includes_rounding():
    """2,000 circles, a third of them near corners, seed 4. Half a diagonal less is too small."""
    rng = np.random.default_rng(4)
    covered, narrower = [], []
    for k in range(2000):
        corner = SIDE_M / 1000 * rng.integers(-3, 3, 2)
        point = corner + (rng.uniform(0, 0.05, 2) if k % 3 == 0 else rng.uniform(0, SIDE_M / 1000, 2))
        radius_m = float(rng.uniform(1, 9000))
        centre = PLANE.to_plane(*GRID.get_centre(*convert_to_degrees(point)))[0]
        away = point - centre
        farthest = 1000 * np.linalg.norm(point + radius_m / 1000 * away / np.linalg.norm(away) - centre)
        covered.append(farthest <= GRID.enlarge_radius(radius_m))
        narrower.append(farthest <= SIDE_M * np.ceil(radius_m / SIDE_M))
        assert GRID.enlarge_radius(radius_m) < radius_m + SIDE_M / np.sqrt(2) + SIDE_M + 2
    assert all(covered)
    assert not all(narrower)


def test_expected_error_about_centre_is_at_most_radius():
    """The mean distance from the cell's centre is computed by a sum (seed 6)."""
    rng = np.random.default_rng(6)
    for _ in range(200):
        points, mass = rng.uniform(-20, 20, (30, 2)), rng.dirichlet(np.full(30, 0.3))
        mean = mass @ points
        radius = 1000 * mass @ np.linalg.norm(points - mean, axis=1)
        centre = PLANE.to_plane(*GRID.get_centre(*convert_to_degrees(mean)))[0]
        assert 1000 * mass @ np.linalg.norm(points - centre, axis=1) <= GRID.enlarge_radius(radius)


@pytest.mark.slow
def test_all_channels_of_relay_send_rounded_releases(config, inbox, clock):
    """Each message equals the rounded message of a recipient without a precision."""
    kinds = [kind for kind in FORMATS if kind != "webhook"]
    settings = config(
        recipient=[
            describe_named_recipient(inbox, "family"), describe_named_recipient(inbox, "webhook", precision="2km"),
            *(describe_named_recipient(inbox, kind, kind=kind, precision="2km") for kind in kinds),
        ],
        limits={"epsilon": 1.0},
    )  # fmt: skip

    def list_bodies(name):
        return [body for _, headers, body in inbox.messages if headers.get("x-name") == name]

    with serve_relay(settings) as client:
        log_in(client)
        key = {"Authorization": f"Bearer {create_link(client, precision_m=2000).json()['token']}"}
        post(client, 1, 2, 3)
        wait_for(lambda: all(len(list_bodies(name)) == 3 for name in ("family", "webhook", *kinds)))
        seen = client.get("/page/trail?recipient=webhook").json()["locations"]
        household = client.get("/page/state").json()["household"][0]["last"]
        shown = client.get("/link/trail", headers=key).json()
    grid = PrecisionGrid(load_model(settings.model).space.projection, 2000)
    for number, fine in enumerate(read_inbox(inbox, "family")):
        coarse = json.loads(list_bodies("webhook")[number])
        expected = grid.get_centre(fine["estimate_latitude"], fine["estimate_longitude"])
        assert (coarse["estimate_latitude"], coarse["estimate_longitude"]) == expected
        if fine["released"]:
            assert (coarse["latitude"], coarse["longitude"]) == grid.get_centre(fine["latitude"], fine["longitude"])
        assert coarse["estimate_error_m"] == grid.enlarge_radius(fine["estimate_error_m"])
        assert (seen[number]["latitude"], seen[number]["longitude"]) == expected
        owntracks, overland = (json.loads(list_bodies(kind)[number]) for kind in ("owntracks", "overland"))
        (feature,) = overland["locations"]
        fields = [
            {name: value for name, (value,) in parse_qs(list_bodies(kind)[number].decode()).items()}
            for kind in ("traccar", "home-assistant")
        ]
        assert (owntracks["lat"], owntracks["lon"]) == expected
        assert tuple(feature["geometry"]["coordinates"][::-1]) == expected
        assert (float(fields[0]["lat"]), float(fields[0]["lon"])) == expected
        assert (float(fields[1]["latitude"]), float(fields[1]["longitude"])) == expected
    assert [message["released"] for message in read_inbox(inbox, "webhook")] == [True, True, False]
    assert household["latitude"] == pytest.approx(read_inbox(inbox, "family")[-1]["estimate_latitude"], abs=1e-6)
    assert len(shown["locations"]) == 3
    for place_shown in [*shown["locations"], shown["last"]]:
        assert place_shown["error_m"] % 2000 == 0
        place = load_model(settings.model).space.projection.to_plane(place_shown["latitude"], place_shown["longitude"])[
            0
        ]
        np.testing.assert_allclose(place % 2, [1, 1], atol=1e-4)
    assert shown["last"]["inference"]["error_m"] == shown["last"]["error_m"]


@pytest.mark.parametrize(
    "value", ["5", "5 miles", "", "0m", "5m", "-1km", "12.5m", "2000km", "nankm", "infkm", 5000, True, ["5km"]]
)
def test_invalid_precision_raises_in_one_line(model, tmp_path, value):
    keys = {
        "model": str(model),
        "store": str(tmp_path / "users.db"),
        "device": [{"user": "ann", "token": "a" * 40}],
        "recipient": [{"name": "town", "kind": "webhook", "url": "https://a.example/", "precision": value}],
    }
    (tmp_path / "relay.toml").write_text(tomli_w.dumps(keys))
    done = CliRunner().invoke(main, ["serve", str(tmp_path / "relay.toml")])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "recipient.0.precision" in done.stderr
    assert not (tmp_path / "users.db").exists()
