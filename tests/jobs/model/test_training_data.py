"""Tests of learning on workers: the model does not depend on how the users are divided."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from importlib import import_module
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dphmm.jobs import Data, learn, region
from dphmm.jobs.batch.workers import DaskCluster, Processes
from dphmm.model.observed_moves import MoveCounts, extract_moves
from dphmm.random import as_random_source
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from tests import command_line
from tests.sizes import choose_count

CITY = build_city()
SOUTH, WEST, NORTH, EAST = CITY.box
# A third of the city: users are inside and outside.
SPACE = region(bbox=(SOUTH, WEST, NORTH, WEST + (EAST - WEST) / 3), cell_km=0.5)
INPUTS = import_module("dphmm.jobs.input_data")
CASES = {
    "calibrated radii, outside states": {},
    "classes of time": {"time_classes": "hour", "zone": "Etc/GMT+2"},
    "smoothing, gaps": {"smoothing": 0.5, "gap_seconds": 1800},
    "states of at least two users": {"min_users": 2},
    "selected region": {"space": None, "calibrate_radii": False},
    "private": {"user_epsilon": 2, "outside_states": True},
}


def test_classes_of_time_without_gain_are_reported():
    data = Data(("data/sample/geolife",), users=("001", "002"))
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    learned = learn(data, space, 300, time_classes="hour", zone="Asia/Shanghai")
    assert learned.to_dict()["class_weight_moves"] is None
    assert "class_weight_moves is infinite" in learned.warnings[0]


@pytest.fixture(scope="module")
def users_file(tmp_path_factory):
    """Twenty-four users with 96 or more fixes, in the order of time."""
    path = tmp_path_factory.mktemp("users") / "users.parquet"
    tracks = sample_synthetic_trajectories(24, 1, 10.0, city=CITY, rng=3)
    columns = {
        "user": np.concatenate([np.repeat(f"u{number}", len(track)) for number, track in enumerate(tracks)]),
        **{name: np.concatenate([getattr(track, name) for track in tracks]) for name in ("latitude", "longitude")},
    }
    times = np.concatenate([track.times for track in tracks])
    table = pa.table({**columns, "time": pa.array(times, pa.timestamp("us", "UTC"))})
    parquet.write_table(table.take(np.argsort(times, kind="stable")), path, row_group_size=500)
    return path


def learn_summary(data, monkeypatch, engine=None, **options):
    """Return the model's hash and the exported and private counts. Noise of seed 5."""
    for module in ("region", "private"):
        monkeypatch.setattr(
            import_module(f"dphmm.jobs.model.{module}"), "as_random_source", lambda _: as_random_source(5)
        )
    result = learn(data, **{"space": SPACE, "step_seconds": 600, **options}, engine=engine)
    return result.model.content_hash, result.to_dict(), result.dropped


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_model_does_not_depend_on_workers_or_blocks(case, users_file, monkeypatch):
    """A file in memory and one block, against a streamed file and blocks of two users."""
    distributed = pytest.importorskip("distributed")
    whole = learn_summary(Data((users_file,)), monkeypatch, **CASES[case])
    assert "space" in CASES[case] or whole[1].get("num_locations_outside", 1) > 0
    monkeypatch.setattr(INPUTS.parquet, "MAX_FIXES", 700)
    monkeypatch.setattr(INPUTS, "_BLOCK_USERS", 2)
    assert learn_summary(Data((users_file,)), monkeypatch, **CASES[case]) == whole
    assert learn_summary(Data((users_file,)), monkeypatch, Processes(2), **CASES[case]) == whole
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, dashboard_address=None, processes=False, protocol="inproc://"
    ) as cluster:
        engine = DaskCluster(cluster.scheduler_address)
        assert learn_summary(Data((users_file,)), monkeypatch, engine, **CASES[case]) == whole


@pytest.mark.slow
def test_command_has_workers(users_file, tmp_path, monkeypatch):
    monkeypatch.setattr(INPUTS, "_BLOCK_USERS", 2)
    outputs = []
    for workers in (1, 2):
        line = [users_file, "--bbox", *CITY.box, "--cell", "0.5", "--step", "600", "--workers", workers]
        file = tmp_path / f"{workers}.npz"
        done = command_line.run("learn", *line, "-o", file, "--json")
        assert done.exit_code == 0, done.stderr
        outputs.append((file.read_bytes(), json.loads(done.stdout)["calibrated_radius_factors"]))
    assert outputs[0] == outputs[1]


def test_streamed_users_are_not_all_in_memory(users_file, monkeypatch):
    """Of 24 users, less than half are alive: one group of the reader, and the blocks."""
    monkeypatch.setattr(INPUTS.parquet, "MAX_FIXES", 300)
    monkeypatch.setattr(INPUTS, "_BLOCK_USERS", 1)
    references, alive = [], []

    def watch_items(items, *_):
        for item in items:
            alive.append(sum(reference() is not None for reference in references))
            yield item

    real = Data.stream

    def stream_tracks(*arguments, **options):
        for track in real(*arguments, **options):
            references.append(weakref.ref(track))
            yield track

    monkeypatch.setattr(Data, "stream", stream_tracks)
    learn(Data((users_file,)), SPACE, 600, calibrate_radii=False, watch=watch_items)
    assert len(references) == len(alive) == 24
    assert 0 < max(alive) < 12


paths = st.lists(st.integers(-1, 4), max_size=12)


@settings(max_examples=choose_count(200, 40))
@given(st.lists(paths, max_size=6), st.lists(st.integers(0, 6), max_size=3))
def test_counts_of_divided_users_match_enumeration(user_paths, cuts):
    edges = sorted({0, len(user_paths), *(min(cut, len(user_paths)) for cut in cuts)})
    moves = [extract_moves(path, 5) for path in user_paths]
    blocks = [MoveCounts.count(moves[a:b], 5) for a, b in pairwise(edges)]
    counts = MoveCounts.concatenate(blocks)
    visits = Counter((user, state) for user, path in enumerate(user_paths) for state in path if state >= 0)
    pairs = Counter((user, *pair) for user, path in enumerate(user_paths) for pair in pairwise(path) if min(pair) >= 0)
    assert counts.num_users == len(user_paths)
    assert dict(zip(zip(counts.visitors, counts.visits, strict=True), counts.visit_counts, strict=True)) == visits
    moved = zip(counts.owners, counts.sources, counts.targets, strict=True)
    assert dict(zip(moved, counts.counts, strict=True)) == pairs
    assert list(counts.owners) == sorted(counts.owners)
    kept = np.arange(len(user_paths)) % 2 == 0
    order = np.array(sorted(range(len(user_paths)), key=lambda user: (user % 3, user)), dtype=np.int64)
    reordered = MoveCounts.count([moves[user] for user in order], 5)
    for name, column in vars(counts.reorder(order)).items():
        assert np.array_equal(column, getattr(reordered, name))
    selected = counts.select_users(kept)
    assert selected.counts.sum() == sum(count for (user, *_), count in pairs.items() if kept[user])


@pytest.mark.parametrize("order", [1, -1])
def test_calibration_of_many_users_simulates_those_with_smallest_hashes(users_file, monkeypatch, order):
    """The selection does not depend on the order of the users, and every user is counted."""
    module = import_module("dphmm.jobs.model.learn")
    monkeypatch.setattr(module, "MAX_USERS", 21)
    simulated = []

    def record(fit, tracks, run):
        simulated.extend(tracks)
        held_out = fit([0, 1])
        assert held_out.content_hash != fit([2]).content_hash
        users = {track.user for track in tracks[:2]}
        rest = [track for track in everyone if track.user not in users]
        alone = learn(rest, SPACE, 600, calibrate_radii=False).model
        assert held_out.transitions[0].toarray().tolist() == alone.transitions[0].toarray().tolist()

    monkeypatch.setattr(module, "compute_calibrated_radii", record)
    everyone = [replace(track) for track in Data((users_file,)).read().trajectories][::order]
    learn(everyone, SPACE, 600)
    digests = {track.user: blake2b(track.user.encode(), digest_size=8).digest() for track in everyone}
    expected = sorted(digests, key=digests.__getitem__)[:21]
    assert {track.user for track in simulated} == set(expected)
    assert [track.user for track in simulated] == sorted(expected)
