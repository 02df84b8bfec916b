"""Tests of checkpoints: a restored engine releases what the original would."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.errors import DphmmError, InvalidInputError
from dphmm.random import as_random_source
from dphmm.release.checkpoint import compute_digest
from dphmm.release.ledger import Account
from tests.release.travelling import ENGINES, GROUPS, F, release


@pytest.fixture(scope="module")
def restored(tmp_path_factory) -> Path:
    """A folder of checkpoints and pickles, with the next releases in another process and here."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, make in ENGINES.items():
        engine = make(5)
        release(engine, 3)
        (folder / f"{name}.checkpoint").write_bytes(engine.checkpoint())
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(engine))
        (folder / f"{name}.expected-copy").write_text("\n".join(release(engine)))
        engine = pickle.loads((folder / f"{name}.pickle").read_bytes())
        engine.source = as_random_source(7)
        (folder / f"{name}.expected").write_text("\n".join(release(engine)))
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, "-m", "tests.release.travelling", str(folder)]
    subprocess.run(command, check=True, env=environment, cwd=root)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_restored_engine_releases_like_original_in_another_process(restored, name):
    assert (restored / f"{name}.records").read_text() == (restored / f"{name}.expected").read_text()


@pytest.mark.parametrize("name", ENGINES)
def test_unpickled_engine_releases_like_original_in_another_process(restored, name):
    assert (restored / f"{name}.copied").read_text() == (restored / f"{name}.expected-copy").read_text()


@pytest.mark.parametrize("name", ENGINES)
def test_restored_engine_has_same_checkpoint(name):
    engine, other = ENGINES[name](5), ENGINES[name](6)
    for count in (0, 3):
        release(engine, count)
        checkpoint = engine.checkpoint()
        other.restore(checkpoint)
        assert other.checkpoint() == checkpoint
    assert not other.has_copied_noise


def sign(checkpoint: bytes, content: bytes) -> bytes:
    """Return a checkpoint with other content and its digest."""
    return checkpoint.split(b"\n")[0] + b"\n" + compute_digest(content) + b"\n" + content


def change(checkpoint: bytes, **changes) -> bytes:
    """Return a checkpoint with other values of its JSON object and its digest."""
    text, _, binary = checkpoint.split(b"\n", 2)[2].partition(b"\n")
    return sign(checkpoint, json.dumps({**json.loads(text), **changes}).encode() + b"\n" + binary)


def test_checkpoint_without_part_of_state_gives_other_records():
    """The broken twin: the comparison detects a belief or an account that is not restored."""
    engine = ENGINES["schedule"](5)
    release(engine, 3)
    checkpoint = engine.checkpoint()
    account = json.loads(checkpoint.split(b"\n")[2])["account"]
    records = []
    fresh = ENGINES["schedule"](1).checkpoint()
    for data in (
        checkpoint,
        change(checkpoint, account={**account, "epsilon": "5/2", "recent": [[0, "1/2"]]}),
        fresh,
    ):
        other = ENGINES["schedule"](7)
        other.restore(data)
        records.append("\n".join(release(other)))
    assert records[0] != records[1]
    assert records[0] != records[2]


def test_plans_are_stale_after_restoring():
    engine = ENGINES["lattice"](5)
    release(engine, 2)
    checkpoint, plan = engine.checkpoint(), engine.prepare()
    engine.restore(checkpoint)
    with pytest.raises(InvalidInputError, match="stale"):
        engine.draw(plan, 1)


def test_every_damaged_byte_raises_and_leaves_engine_unchanged():
    engine, other = ENGINES["caps"](5), ENGINES["caps"](6)
    release(engine, 3)
    checkpoint = engine.checkpoint()
    before = other.checkpoint()
    rng = np.random.default_rng(0)
    damaged = [checkpoint[:place] for place in range(len(checkpoint))]
    for place in range(len(checkpoint)):
        data = bytearray(checkpoint)
        data[place] ^= int(rng.integers(1, 256))
        damaged.append(bytes(data))
    for data in damaged:
        with pytest.raises(InvalidInputError) as caught:
            other.restore(data)
        assert "\n" not in str(caught.value)
    assert other.checkpoint() == before


WRONG = {
    "terms": [None, [], {"model": 3}, {}, {"other": "x"}],
    "count": [None, -1, 0, 2.5, True, "3", 10**4000],
    "first": ["1", 1.5, []],
    "slot": ["1", 1.5, {}],
    "belief_bytes": [0, -1, 5, None, "64", 2**63, 1e300],
    "account": [
        3,
        [],
        {},
        "text",
        {"count": 3, "epsilon": "1e999999999", "constrained_epsilon": "0", "last_draw_slot": 0},
        *(
            {
                "count": 3,
                "epsilon": "1",
                "constrained_epsilon": "inf",
                "last_draw_slot": 0,
                "max_window_steps": None,
                "recent": [[0, "1/2"]],
            }
            | changed
            for changed in (
                {"count": 0},
                {"count": "3"},
                {"epsilon": "1/4"},
                {"epsilon": "-1"},
                {"epsilon": 1},
                {"epsilon": "1/0"},
                {"constrained_epsilon": "nan"},
                {"max_window_steps": 0},
                {"max_window_steps": 23},
                {"last_draw_slot": "0"},
                {"recent": [[1, "1/4"], [0, "1/4"]]},
                {"recent": [[0]]},
                {"recent": 7},
                {"recent": [["0", "1/2"]]},
            )
        ),
    ],
    "caps": [
        None,
        [],
        3,
        {},
        ["cap"],
        *(
            [{"cap": 0, "prior": 0, "last_step": 2, "shape": [2, 6]} | changed]
            for changed in (
                {"cap": 1},
                {"cap": "0"},
                {"prior": 1},
                {"last_step": -1},
                {"last_step": 10**30},
                {"shape": [3, 4]},
                {"shape": [12]},
                {"shape": []},
                {"shape": [2, -6]},
                {"shape": [10**9, 10**9]},
                {"shape": None},
            )
        ),
        [{"cap": 0, "prior": 0, "last_step": 2, "shape": [2, 6]}] * 2,
    ],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(name, value, id=f"{name} {i}") for name, values in WRONG.items() for i, value in enumerate(values)],
)
def test_invalid_content_with_valid_digest_raises(name, value):
    engine, other = ENGINES["caps"](5), ENGINES["caps"](6)
    release(engine, 3)
    before = other.checkpoint()
    data = change(engine.checkpoint(), **{name: value})
    with pytest.raises(DphmmError) as caught:
        other.restore(data)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)
    assert other.checkpoint() == before


def test_other_bytes_raise():
    engine = ENGINES["lattice"](5)
    checkpoint = engine.checkpoint()
    for data, message in (
        (b"", "must be a checkpoint of an engine"),
        (pickle.dumps(1), "must be a checkpoint of an engine"),
        (checkpoint.replace(b"checkpoint 1\n", b"checkpoint 2\n"), "must have format 1, got"),
        (sign(checkpoint, b"[]\n"), "invalid checkpoint"),
        (sign(checkpoint, b"{\n"), "invalid checkpoint"),
        (sign(checkpoint, b"[" * 100_000 + b"\n"), "nested too deeply"),
        (sign(checkpoint, checkpoint.split(b"\n", 2)[2] + b"x"), "binary bytes"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            engine.restore(data)
    with pytest.raises(InvalidInputError, match="checkpoint must be"):
        engine.restore("text")


def _make_engine(**changes) -> Releaser:
    values = {
        "model": np.full((6, 6), 1 / 6),
        "f": F,
        "policy": GROUPS,
        "epsilon": 0.5,
        "mechanism": "k-norm",
        "rng": 5,
    }
    values |= changes
    return Releaser(MarkovModel(values.pop("model"), np.full(6, 1 / 6)), **values)


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("settings", {"epsilon": 0.4}),
        ("model", {"model": np.eye(6) / 2 + 1 / 12}),
        ("policy", {"policy": PolicyGraph.complete(6)}),
        ("measurements", {"f": [[1, 0], [2, 1], [3, 0], [0, 1], [4, 2], [1, 3]]}),
        ("randomness", {"rng": None}),
    ],
)
def test_checkpoint_of_other_engine_raises(part, changes):
    engine, other = _make_engine(), _make_engine(**changes)
    release(engine, 2)
    with pytest.raises(
        InvalidInputError, match=r"checkpoint must be of an engine with the same \w+, .*, got"
    ) as caught:
        other.restore(engine.checkpoint())
    # The settings of a policy without a name contain its hash.
    assert f"same {part}," in str(caught.value) or part == "settings" or "policy" in str(caught.value)
    assert other.filter_state.count == 0


def test_checkpoint_grows_with_window_only():
    """Records and schedules look back a day of 24 steps. Older releases are a sum."""
    engine = ENGINES["k-norm"](5)
    release(engine, 30)
    size = len(engine.checkpoint())
    release(engine, 300)
    assert len(engine.checkpoint()) < size + 100
    other = ENGINES["k-norm"](6)
    other.restore(engine.checkpoint())
    assert other.filter_state.account.epsilon == Fraction(330, 2)
    assert other.release(1).epsilon_24h == engine.release(1).epsilon_24h == 12


@pytest.mark.parametrize("seed", range(20))
def test_account_round_trip_keeps_all_sums_in_its_window(seed):
    """Exact rationals are the oracle."""
    rng = np.random.default_rng(seed)
    account = Account(None if seed % 2 else 40)
    slot, costs = 0, []
    for _ in range(int(rng.integers(0, 200))):
        slot += int(rng.integers(0, 4))
        budget = float(rng.choice([0.0, 0.1, 0.25, 1e-7]))
        costs.append((slot, Fraction(repr(budget))))
        account.add(slot, budget, float(rng.choice([1.0, 2.5])))
    again = Account.from_dict(json.loads(json.dumps(account.to_dict(30))))
    assert (again.count, again.epsilon) == (account.count, sum(cost for _, cost in costs))
    assert (again.constrained_epsilon, again.last_draw_slot) == (account.constrained_epsilon, account.last_draw_slot)
    for steps in (1, 7, 30):
        expected = sum(cost for when, cost in costs if when > slot - steps)
        assert again.sum_window_epsilon(slot, steps) == expected
        assert again.list_recent_releases(slot, steps) == account.list_recent_releases(slot, steps)
