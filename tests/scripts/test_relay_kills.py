"""Tests that the checks of the relay's crash test detect each type of violation."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dphmm import Session
from dphmm.jobs import region
from dphmm.serve.precision_grid import PrecisionGrid
from dphmm.tables import iso_time
from scripts.relay import soak
from scripts.relay.kills import PRECISION_M, REGION, START, STEP_S, Observations, find_flaws, run, run_server
from scripts.relay.servers import Mosquitto, Postgres, find_program
from tests.release.engines import make_engine, with_policy

FIRST = START // STEP_S
OTHERWISE = b'{"x_km": 99, "latitude": 45.01, "longitude": -30.02}'


@pytest.fixture
def recorded_relay(tmp_path):
    """Return a store of four releases with changed settings after two, and all that was sent."""
    seen, grid = Observations(), PrecisionGrid(region(**REGION).projection, PRECISION_M)
    for slots, maker in ((range(2), make_engine()), (range(2, 4), make_engine(policy=with_policy((0, 3))))):
        with Session.open(tmp_path / "s", "ann", maker, amendment_note="") as session:
            for slot in slots:
                session.release(slot, FIRST + slot)
                when = iso_time(np.datetime64((FIRST + slot) * STEP_S, "s").astype("datetime64[us]"))
                fine = {"x_km": session.releases()[-1].record.released[0], "latitude": 45.01, "longitude": -30.02}
                latitude, longitude = grid.get_centre(45.01, -30.02)
                for name, row in (("family", fine), ("friends", {"latitude": latitude, "longitude": longitude})):
                    seen.delivered[name, "ann", when].append(json.dumps(row).encode())
                seen.answered["ann"].add(FIRST + slot)
    return tmp_path / "s", seen


def test_consistent_records_have_no_flaw(recorded_relay):
    assert list(find_flaws(*recorded_relay)) == []


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda seen, key: seen.answered["ann"].add(FIRST + 9), "answered and are not in the store"),
        (lambda seen, key: seen.delivered["friends", *key].clear(), "friends was sent no message"),
        (
            lambda seen, key: seen.delivered["friends", *key].append(seen.delivered["family", *key][0]),
            "sent two values",
        ),
        (lambda seen, key: seen.delivered["family", *key].__setitem__(0, OTHERWISE), "differs from the store"),
        (
            lambda seen, key: seen.delivered["friends", *key].__setitem__(0, OTHERWISE),
            "is not the rounded message to family",
        ),
    ],
)
def test_each_violation_is_detected(recorded_relay, harm, message):
    store, seen = recorded_relay
    harm(seen, next(iter(seen.delivered))[1:])
    assert any(message in flaw for flaw in find_flaws(store, seen))


@pytest.mark.slow
def test_half_a_day_of_ten_users_is_sent_completely_without_memory_growth():
    """This is a fortieth of the full day that is run by hand: see the page on the relay."""
    memory, missing = soak.run(10, 144)
    assert missing == 0
    assert memory[-1] < 1.05 * memory[len(memory) // 2]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["file", "server"])
def test_kills_restarts_full_disk_and_clock_changes_cause_no_flaw(tmp_path, where):
    if (where == "server" and find_program("initdb") is None) or find_program("mosquitto") is None:
        pytest.skip("PostgreSQL or Mosquitto is not installed")
    with (
        tempfile.TemporaryDirectory() as here,  # the database runs as another user, who needs access
        run_server(Mosquitto, tmp_path / "b", True) as broker,
        run_server(Postgres, Path(here) / "p", where == "server") as server,
    ):
        seen, store = run(5, 4, tmp_path, 60, 2, server, 2 if server else 1, broker)
        assert list(find_flaws(store, seen)) == []
        assert sum(map(len, seen.answered.values())) > 20
        assert sum(seen.num_events.values()) > seen.num_events["kills"] > 0
