"""What the killing of a relay is judged by finds each kind of broken promise."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dphmm import Session
from dphmm.jobs import region
from dphmm.serve.precision import PrecisionGrid
from dphmm.tables import iso_time
from scripts.relay import soak
from scripts.relay.kills import PRECISION_M, REGION, START, STEP_S, Seen, flaws, run, running
from scripts.relay.servers import Mosquitto, Postgres, program
from tests.release.people import engine, with_policy

FIRST = START // STEP_S
OTHERWISE = b'{"x_km": 99, "latitude": 45.01, "longitude": -30.02}'


@pytest.fixture
def world(tmp_path):
    """A store of four moments, agreed on anew after two, and all that phones and two recipients saw of it."""
    seen, grid = Seen(), PrecisionGrid(region(**REGION).projection, PRECISION_M)
    for slots, maker in ((range(2), engine()), (range(2, 4), engine(policy=with_policy((0, 3))))):
        with Session.open(tmp_path / "s", "ann", maker, anew="") as session:
            for slot in slots:
                session.release(slot, FIRST + slot)
                when = iso_time(np.datetime64((FIRST + slot) * STEP_S, "s").astype("datetime64[us]"))
                fine = {"x_km": session.releases()[-1].record.released[0], "latitude": 45.01, "longitude": -30.02}
                latitude, longitude = grid.centre(45.01, -30.02)
                for name, row in (("family", fine), ("friends", {"latitude": latitude, "longitude": longitude})):
                    seen.told[name, "ann", when].append(json.dumps(row).encode())
                seen.answered["ann"].add(FIRST + slot)
    return tmp_path / "s", seen


def test_a_world_in_order_has_no_flaw(world):
    assert list(flaws(*world)) == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda seen, key: seen.answered["ann"].add(FIRST + 9), "answered and are not in the store"),
        (lambda seen, key: seen.told["friends", *key].clear(), "friends was not told"),
        (lambda seen, key: seen.told["friends", *key].append(seen.told["family", *key][0]), "told two values"),
        (lambda seen, key: seen.told["family", *key].__setitem__(0, OTHERWISE), "not what is stored"),
        (lambda seen, key: seen.told["friends", *key].__setitem__(0, OTHERWISE), "not what family was told, rounded"),
    ],
)
def test_each_kind_of_broken_promise_is_found(world, harm, said):
    store, seen = world
    harm(seen, next(iter(seen.told))[1:])
    assert any(said in one for one in flaws(store, seen))


@pytest.mark.slow
def test_half_a_day_of_twenty_people_with_two_recipients_is_told_whole_and_the_relay_does_not_grow():
    """A twentieth of the day that is run whole by hand: see the page on the relay."""
    held, missing = soak.run(20, 144)
    assert missing == 0
    assert held[-1] < 1.05 * held[len(held) // 2]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["file", "server"])
def test_kills_restarts_a_full_disk_and_clocks_that_go_back_leave_no_flaw(tmp_path, where):
    if (where == "server" and program("initdb") is None) or program("mosquitto") is None:
        pytest.skip("PostgreSQL or Mosquitto is not installed")
    with (
        tempfile.TemporaryDirectory() as here,  # which another user may pass, as whom the database runs
        running(Mosquitto, tmp_path / "b", True) as broker,
        running(Postgres, Path(here) / "p", where == "server") as server,
    ):
        seen, store = run(8, 4, tmp_path, 60, 2, server, 2 if server else 1, broker)
        assert list(flaws(store, seen)) == []
        assert sum(map(len, seen.answered.values())) > 20
        assert sum(seen.done.values()) > seen.done["kills"] > 0
