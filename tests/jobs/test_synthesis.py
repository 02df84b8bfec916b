"""People who do not exist, as files, and compared with people who do."""

from __future__ import annotations

import csv
import tracemalloc

import numpy as np
import pytest

from dphmm import read
from dphmm.errors import ConfigurationError, OutputError
from dphmm.jobs import Data, compare_people, learn, region, synthesis, synthesize
from dphmm.model import MarkovModel, TimeClasses, state_sequence
from dphmm.space import Grid

TOWN = "data/sample/geolife"
SPACE = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.npz"
    others = Data((TOWN,), exclude_users=("002",))
    learn(others, SPACE, 300, output=path, by="hours", zone="Europe/Lisbon")
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_of_people_reads_back_as_paths_that_the_model_allows(model, tmp_path, kind):
    made = synthesize(model, tmp_path / f"p.{kind}", people=12, days=1.5, rng=3)
    assert (made.people, made.steps) == (12, 432)
    known = MarkovModel.load(model)
    people = read(tmp_path / f"p.{kind}").trajectories
    assert [one.user for one in people] == [f"synthetic-{k:02d}" for k in range(1, 13)]
    for person in people:
        assert person.times[0] == made.first == np.datetime64("2024-01-01T00:00")
        slots, states = state_sequence(person, known.space, known.step)
        assert len(slots) == 432
        assert (np.diff(slots) == 1).all()
        assert (states >= 0).all()
        assert (known.structure[states[:-1], states[1:]]).all()


def test_all_formats_hold_the_same_and_seeds_repeat(model, tmp_path):
    import geopandas
    import pyarrow.parquet

    for kind in ("csv", "parquet", "gpkg"):
        synthesize(model, tmp_path / f"p.{kind}", people=5, days=0.5, start="2024-03-05T08:00+01:00", rng=8)
    with (tmp_path / "p.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0]["time"] == "2024-03-05T07:00:00Z"
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pydict()
    layer = geopandas.read_file(tmp_path / "p.gpkg")
    for name in ("latitude", "longitude"):
        assert [float(row[name]) for row in rows] == table[name] == layer[name].tolist()
    assert [row["user"] for row in rows] == table["user"] == layer["user"].tolist()
    assert [row["time"] for row in rows] == [f"{one:%Y-%m-%dT%H:%M:%S}Z" for one in table["time"]]
    assert (layer.geometry.x == layer["longitude"]).all()
    before = (tmp_path / "p.csv").read_bytes()
    synthesize(model, tmp_path / "p.csv", people=5, days=0.5, start="2024-03-05T08:00+01:00", rng=8, overwrite=True)
    assert (tmp_path / "p.csv").read_bytes() == before


def test_days_begin_at_midnight_where_the_model_is(tmp_path):
    grid = Grid.over((45.0, 0.0, 45.008, 0.038), 1.0)
    time_classes = TimeClasses.of("hours", 3600.0, "Asia/Shanghai")
    even = np.full((grid.size, grid.size), 1 / grid.size)
    model = MarkovModel([even] * 24, [even[0]] * 24, grid, 3600.0, time_classes)
    assert synthesize(model, tmp_path / "p.csv", 1, 1).first == np.datetime64("2023-12-31T16:00")


def test_memory_is_that_of_a_block_however_many_people(model, tmp_path, monkeypatch):
    monkeypatch.setattr(synthesis, "_BLOCK", 1 << 17)
    synthesize(model, tmp_path / "p.parquet", people=1, days=1)  # libraries are loaded only once
    most = []
    for people in (625, 1875):
        tracemalloc.start()
        synthesize(model, tmp_path / f"{people}.parquet", people=people, days=1, rng=1)
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert most[1] < 1.2 * most[0]


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("p.txt", {}, "no format goes by '.txt'"),
        ("p.csv", {"people": 0}, "at least one person"),
        ("p.csv", {"days": -1}, "at least one person"),
        ("p.csv", {"days": float("nan")}, "at least one person"),
        ("p.csv", {"start": "yesterday"}, "'yesterday' is no day"),
        ("p.csv", {"start": "2024-13-01"}, "is no day"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(model, tmp_path, name, more, told):
    with pytest.raises(ConfigurationError, match=told):
        synthesize(model, tmp_path / name, **more)
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_is_kept(model, tmp_path):
    (tmp_path / "p.csv").write_text("mine")
    with pytest.raises(OutputError, match="--overwrite"):
        synthesize(model, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_text() == "mine"


def test_people_whom_the_model_has_seen_are_left_out_of_a_comparison(model):
    found = compare_people(model, TOWN, rng=1)
    assert (found.people, found.left_out) == (1, 2)
    assert np.isnan(found.halves["visits"])
    with pytest.raises(ConfigurationError, match="all 2 people are among those that the model was learned from"):
        compare_people(model, Data((TOWN,), exclude_users=("002",)))


def test_people_drawn_from_the_true_law_are_nearer_than_those_of_another_and_than_places_alone(tmp_path):
    """Real people are a sample of a model: its own people must be as near to them as one half of them to the other."""
    grid = Grid.over((45.0, 0.0, 45.06, 0.08), 1.0)
    rng = np.random.default_rng(5)
    near = np.exp(-3 * np.linalg.norm(grid.points[:, None] - grid.points, axis=2)) * rng.random(grid.size)
    rows = near / near.sum(axis=1, keepdims=True)
    flat = np.full_like(rows, 1 / grid.size)
    truth, other = (MarkovModel(one, rows.mean(axis=0) / rows.mean(axis=0).sum(), grid, 300.0) for one in (rows, flat))
    synthesize(truth, tmp_path / "real.csv", people=400, days=0.5, rng=1)
    own, another = (compare_people(one, tmp_path / "real.csv", rng=2) for one in (truth, other))
    for name in ("visits", "moves", "trip_length", "radius_of_gyration", "origin_destination"):
        assert own.synthetic[name] < 1.2 * own.halves[name] + 0.01
        factor = 1.1 if name == "origin_destination" else 3  # few trips for so many pairs of zones
        assert another.synthetic[name] > factor * own.synthetic[name]
    for name in ("moves", "trip_length", "radius_of_gyration"):
        assert own.places_alone[name] > 3 * own.synthetic[name]
