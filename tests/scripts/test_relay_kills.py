"""What the killing of a relay is judged by finds each kind of broken promise."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from dphmm import Session
from dphmm.tables import iso_time
from scripts.relay import soak
from scripts.relay.kills import START, STEP_S, Seen, flaws, run, running
from scripts.relay.servers import Mosquitto, Postgres, program
from tests.release.people import engine, with_policy

FIRST = START // STEP_S


@pytest.fixture
def world(tmp_path):
    """A store of four moments and two tiers, agreed on anew after two, and all that phones and recipients saw of it."""
    seen = Seen()
    for slots, maker in ((range(2), engine()), (range(2, 4), engine(policy=with_policy((0, 3))))):
        with Session.open(tmp_path / "s", "ann", maker, coarser=[0.2], anew="") as session:
            for slot in slots:
                session.release(slot, FIRST + slot)
                when = iso_time(np.datetime64((FIRST + slot) * STEP_S, "s").astype("datetime64[us]"))
                for name, stored in zip(("friends", "family"), session.releases()[-2:], strict=True):
                    seen.told[name, "ann", when].append(json.dumps({"x_km": stored.record.released[0]}).encode())
                seen.answered["ann"].add(FIRST + slot)
    return tmp_path / "s", seen


def test_a_world_in_order_has_no_flaw(world):
    assert list(flaws(*world)) == []


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda seen, key: seen.answered["ann"].add(FIRST + 9), "answered and are not in the store"),
        (lambda seen, key: seen.told["friends", *key].clear(), "friends was not told"),
        (lambda seen, key: seen.told["friends", *key].append(b"{}"), "told two values"),
        (lambda seen, key: seen.told["family", *key].__setitem__(0, b'{"x_km": 99}'), "not what is stored"),
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
