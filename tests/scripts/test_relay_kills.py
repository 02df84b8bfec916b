"""What the killing of a relay is judged by finds each kind of broken promise."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm import Session
from dphmm.tables import iso_time
from scripts.relay.kills import START, STEP_S, Seen, flaws
from tests.release.people import engine, with_policy

FIRST = START // STEP_S


@pytest.fixture
def world(tmp_path):
    """A store of four releases, agreed on anew after two, and all that phones and recipients saw of it."""
    seen = Seen()
    for slots, maker in ((range(2), engine()), (range(2, 4), engine(policy=with_policy((0, 3))))):
        with Session.open(tmp_path / "s", "ann", maker, anew="") as session:
            for slot in slots:
                record = session.release(slot, FIRST + slot)
                when = iso_time(np.datetime64((FIRST + slot) * STEP_S, "s").astype("datetime64[us]"))
                for name in ("family", "friends"):
                    seen.told[name, "ann", when].append(json.dumps({"x_km": record.released[0]}).encode())
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
