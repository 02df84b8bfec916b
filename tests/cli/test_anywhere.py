"""Tests of all commands with states off the lattice of metres: places and 333.3 m cells."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dphmm.jobs.batch.run_folder import get_user_file_path
from dphmm.model.model import MarkovModel
from dphmm.writers import read_releases
from tests.sizes import mark_slow

HERE = "data/sample/geolife"
STEP = ("--step", "300", "--smoothing", "0.5")
BOX = ("--bbox", "44.97", "-30.04", "45.03", "-29.96")
RELEASE = ("--policy", "utility:1km", "--epsilon", "1")


@pytest.fixture(params=["places", mark_slow("cells")])
def region(request, tmp_path, monkeypatch, pytestconfig) -> tuple[str, ...]:
    """Return the options of a region, in a folder with the sample data."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(pytestconfig.rootpath / "data")
    if request.param == "cells":
        return (*BOX, "--cell", "0.3333")
    rng = np.random.default_rng(7)
    lines = [f"stop {i},{45 + x / 40:.7f},{-30 + y / 30:.7f}" for i, (x, y) in enumerate(rng.uniform(-1, 1, (40, 2)))]
    (tmp_path / "stops.csv").write_text("name,latitude,longitude\n" + "\n".join(lines) + "\n")
    return ("--places", "stops.csv")


@pytest.fixture
def model(region, run, tmp_path) -> MarkovModel:
    learned = run("learn", HERE, "--exclude-users", "002", *region, *STEP, "-o", "m.npz")
    assert learned.exit_code == 0, learned.stderr
    return MarkovModel.load(tmp_path / "m.npz")


def is_off_lattice(model: MarkovModel) -> bool:
    metres = model.space.points * 1000
    return bool(np.abs(metres - np.rint(metres)).max() > 0.01)


@pytest.mark.slow
def test_release_batch_and_session_accept_states_off_lattice(model, run, tmp_path):
    assert is_off_lattice(model)
    done = run("release", HERE, "--users", "002", "--model", "m.npz", *RELEASE, "--session", "s.db", "-o", "r.csv")
    assert done.exit_code == 0, done.stderr
    table = read_releases(tmp_path / "r.csv")
    assert np.abs(table["x_km"] * 1000 - np.rint(table["x_km"] * 1000)).max() < 1e-6, (
        "exact noise, on a lattice of metres"
    )
    assert table["min_degree_of_protection"].min() >= 2
    shown = json.loads(run("session", "show", "s.db", "002", "--json").stdout)
    assert shown["num_timesteps"] == len(table)
    batch = run("batch", HERE, "--users", "002", "--model", "m.npz", *RELEASE, "-o", "out", "--workers", "1")
    assert batch.exit_code == 0, batch.stderr
    assert len(read_releases(get_user_file_path(tmp_path / "out", "002", "parquet"))) == len(table)


@pytest.mark.slow
def test_evaluate_accepts_states_off_lattice(region, run, tmp_path):
    keys = {"--bbox": "bbox = [44.97, -30.04, 45.03, -29.96]\ncell_km = 0.3333", "--places": 'places = "stops.csv"'}
    (tmp_path / "e.toml").write_text(
        f'data = ["{HERE}"]\n{keys[region[0]]}\nstep_seconds = 300.0\nsequences = 2\nlength = 20\n'
        'policies = ["utility", "transition"]\nmechanisms = ["lattice", "k-norm"]\n'
    )
    done = run("evaluate", "e.toml", "-o", "run", "--workers", "1", "--no-pictures", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["num_tasks_run"] == 8, (
        "two policies, two mechanisms and two users with models of others"
    )
