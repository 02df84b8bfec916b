"""Tests of synthetic users: output files and comparison with real users."""

from __future__ import annotations

import csv
import shutil
import tracemalloc

import numpy as np
import pytest

from dphmm import read
from dphmm.errors import ConfigurationError, OutputError
from dphmm.jobs import Data, compare_users, learn, region, synthesize
from dphmm.jobs.model import synthesis
from dphmm.model import MarkovModel, TimeClasses, state_sequence
from dphmm.space import Grid

TOWN = "data/sample/geolife"
SPACE = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.npz"
    others = Data((TOWN,), exclude_users=("002",))
    learn(others, SPACE, 300, output=path, time_classes="hour", zone="Europe/Lisbon")
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_synthetic_file_reads_back_as_possible_paths(model, tmp_path, kind):
    result = synthesize(model, tmp_path / f"p.{kind}", num_users=12, days=1.5, rng=3)
    assert (result.num_users, result.steps) == (12, 432)
    loaded = MarkovModel.load(model)
    tracks = read(tmp_path / f"p.{kind}").trajectories
    assert [track.user for track in tracks] == [f"synthetic-{k:02d}" for k in range(1, 13)]
    for track in tracks:
        assert track.times[0] == result.first == np.datetime64("2024-01-01T00:00")
        slots, states = state_sequence(track, loaded.space, loaded.step)
        assert len(slots) == 432
        assert (np.diff(slots) == 1).all()
        assert (states >= 0).all()
        assert (loaded.structure[states[:-1], states[1:]]).all()


@pytest.mark.slow
def test_formats_are_equivalent_and_seed_is_reproducible(model, tmp_path):
    import geopandas
    import pyarrow.parquet

    for kind in ("csv", "parquet", "gpkg"):
        synthesize(model, tmp_path / f"p.{kind}", num_users=5, days=0.5, start="2024-03-05T08:00+01:00", rng=8)
    with (tmp_path / "p.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["time"] == "2024-03-05T07:00:00Z"
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pydict()
    layer = geopandas.read_file(tmp_path / "p.gpkg")
    for name in ("latitude", "longitude"):
        assert [float(row[name]) for row in rows] == table[name] == layer[name].tolist()
    assert [row["user"] for row in rows] == table["user"] == layer["user"].tolist()
    assert [row["time"] for row in rows] == [f"{time:%Y-%m-%dT%H:%M:%S}Z" for time in table["time"]]
    assert (layer.geometry.x == layer["longitude"]).all()
    before = (tmp_path / "p.csv").read_bytes()
    synthesize(model, tmp_path / "p.csv", num_users=5, days=0.5, start="2024-03-05T08:00+01:00", rng=8, overwrite=True)
    assert (tmp_path / "p.csv").read_bytes() == before


def test_days_start_at_local_midnight_of_model(tmp_path):
    grid = Grid.over((45.0, 0.0, 45.008, 0.038), 1.0)
    time_classes = TimeClasses.from_name("hour", 3600.0, "Asia/Shanghai")
    even = np.full((grid.size, grid.size), 1 / grid.size)
    model = MarkovModel([even] * 24, [even[0]] * 24, grid, 3600.0, time_classes)
    assert synthesize(model, tmp_path / "p.csv", 1, 1).first == np.datetime64("2023-12-31T16:00")


@pytest.mark.slow
def test_memory_does_not_grow_with_number_of_users(model, tmp_path, monkeypatch):
    monkeypatch.setattr(synthesis, "_BLOCK_LOCATIONS", 1 << 17)
    synthesize(model, tmp_path / "p.parquet", num_users=1, days=1)  # load the libraries before measuring
    maximum = []
    for num_users in (625, 1875):
        tracemalloc.start()
        synthesize(model, tmp_path / f"{num_users}.parquet", num_users=num_users, days=1, rng=1)
        maximum.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert maximum[1] < 1.2 * maximum[0]


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("p.txt", {}, "got '.txt'"),
        ("p.csv", {"num_users": 0}, "num_users must be"),
        ("p.csv", {"days": -1}, "days must be"),
        ("p.csv", {"days": float("nan")}, "days must be"),
        ("p.csv", {"start": "yesterday"}, "start must be a day .*got 'yesterday'"),
        ("p.csv", {"start": "2024-13-01"}, "start must be a day"),
        (
            "p.csv",
            {"start": "9999-12-31T23:30", "days": 2},
            "in the years 1 to 9999, got '9999-12-31T23:30' for 2 days",
        ),
        ("p.gpkg", {"start": "9999-12-31T23:30", "days": 2}, "start must leave all timesteps in the years 1 to 9999"),
        ("p.csv", {"start": "0001-01-01T00:00+08:00"}, "start must leave all timesteps in the years 1 to 9999"),
    ],
)
def test_invalid_arguments_raise_before_writing(model, tmp_path, name, more, message):
    with pytest.raises(ConfigurationError, match=message):
        synthesize(model, tmp_path / name, **more)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("start", ["9999-12-31T00:00Z", "0001-01-01T00:00Z"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "gpkg"])
def test_first_and_last_day_are_written(model, tmp_path, start, kind):
    result = synthesize(model, tmp_path / f"p.{kind}", num_users=1, days=1, start=start, rng=1)
    assert result.steps == 288
    if kind == "csv":
        (track,) = read(tmp_path / "p.csv").trajectories
        assert (track.times[0], len(track)) == (np.datetime64(start[:-1]), 288)


def test_existing_file_is_kept(model, tmp_path):
    (tmp_path / "p.csv").write_text("mine")
    with pytest.raises(OutputError, match="--overwrite"):
        synthesize(model, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "mine"


def test_training_users_are_excluded_from_comparison(model):
    comparison = compare_users(model, TOWN, rng=1)
    assert (comparison.num_users, comparison.left_out, comparison.trained_on_users) == (1, 2, "no")
    assert np.isnan(comparison.halves["visits"])
    with pytest.raises(ConfigurationError, match="got 2 training users only"):
        compare_users(model, Data((TOWN,), exclude_users=("002",)))


def test_comparison_states_that_training_users_are_unknown_without_their_list(model, tmp_path):
    shutil.copy(model, tmp_path / "copy.npz")
    comparison = compare_users(tmp_path / "copy.npz", TOWN, rng=1)
    assert (comparison.num_users, comparison.left_out) == (3, 0)
    assert comparison.to_dict()["model_trained_on_these_users"] == "unknown: no user list next to the model"


@pytest.mark.slow
def test_users_from_true_model_are_nearer_than_from_uniform_model(tmp_path):
    """Real users are sampled from a model.

    Its synthetic users must be as near to them as the halves are to each other.
    """
    grid = Grid.over((45.0, 0.0, 45.06, 0.08), 1.0)
    rng = np.random.default_rng(5)
    near = np.exp(-3 * np.linalg.norm(grid.points[:, None] - grid.points, axis=2)) * rng.random(grid.size)
    rows = near / near.sum(axis=1, keepdims=True)
    flat = np.full_like(rows, 1 / grid.size)
    truth, other = (
        MarkovModel(matrix, rows.mean(axis=0) / rows.mean(axis=0).sum(), grid, 300.0) for matrix in (rows, flat)
    )
    synthesize(truth, tmp_path / "real.csv", num_users=400, days=0.5, rng=1)
    true_comparison, another = (
        compare_users(sampled_model, tmp_path / "real.csv", rng=2) for sampled_model in (truth, other)
    )
    for name in ("visits", "moves", "trip_length", "radius_of_gyration", "origin_destination"):
        assert true_comparison.synthetic[name] < 1.2 * true_comparison.halves[name] + 0.01
        factor = 1.1 if name == "origin_destination" else 3  # few trips for many pairs of zones
        assert another.synthetic[name] > factor * true_comparison.synthetic[name]
    for name in ("moves", "trip_length", "radius_of_gyration"):
        assert true_comparison.places_alone[name] > 3 * true_comparison.synthetic[name]
