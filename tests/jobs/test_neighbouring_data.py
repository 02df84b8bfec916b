"""Tests of neighbouring data sets: outputs have one form, with and without a user.

Commands with user-level differential privacy run with and without one user. Exit code, files, columns, warnings and the
rows of the summary must agree, except for the private ones.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from dphmm.jobs.input_data import Data
from dphmm.model import MarkovModel
from tests import command_line

HEADER = "user,time,lat,lon,accuracy\n"
REGION = ("--bbox", "44.97", "-30.04", "45.03", "-29.96", "--cell", "1")
LEARN = ("learn", "--user-epsilon", "1", "-o", "m.npz", "--json")
FLOWS = ("flows", "--user-epsilon", "1", *REGION, "--only", "visits,flows", "--workers", "1", "--json")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _make_track(user, seed, inside=True):
    """Return a user's lines of a table: a random walk, inside the region or far from it."""
    rng = np.random.default_rng(seed)
    steps = np.cumsum(rng.normal(0, 0.002, (int(rng.integers(1, 40)), 2)), axis=0)
    places = steps + ((45.0, -30.0) if inside else (10.0, 10.0))
    times = np.datetime64("2024-03-07T00:00") + np.sort(rng.choice(2880, len(places), replace=False))
    rows = zip(times, places.tolist(), strict=True)
    return [f"{user},{time}:00Z,{latitude:.6f},{longitude:.6f},5\n" for time, (latitude, longitude) in rows]


def _write_tables(path, users):
    path.mkdir()
    (path / "all.csv").write_text(HEADER + "".join(line for lines in users.values() for line in lines))


def _write_table_of_each(path, users):
    path.mkdir()
    for user, lines in users.items():
        (path / f"{user}.csv").write_text(HEADER + "".join(lines))


def _write_gpx(path, users):
    path.mkdir()
    for user, lines in users.items():
        points = "".join(
            f'<trkpt lat="{latitude}" lon="{longitude}"><time>{time}</time></trkpt>'
            for _, time, latitude, longitude, _ in (line.strip().split(",") for line in lines)
        )
        gpx = f'<gpx version="1.1" xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{points}</trkseg></trk></gpx>'
        (path / f"{user}.gpx").write_text(gpx)


def _write_geojson(path, users):
    path.mkdir()
    features = []
    for lines in users.values():
        for user, time, latitude, longitude, _ in (line.strip().split(",") for line in lines):
            place = {"type": "Point", "coordinates": [float(longitude), float(latitude)]}
            features.append({"type": "Feature", "properties": {"user": user, "time": time}, "geometry": place})
    (path / "all.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": features}))


WRITERS = {"table": _write_tables, "tables": _write_table_of_each, "gpx": _write_gpx, "geojson": _write_geojson}


def _describe_file(path):
    """Return the form of an output, such as the columns of a table."""
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return next(csv.reader(file))
    if path.suffix == ".gpkg":
        with closing(sqlite3.connect(path)) as connection, connection:
            return sorted(connection.execute("SELECT name, sql FROM sqlite_master").fetchall(), key=str)
    if path.suffix == ".json" and "PRIVATE" not in path.name:
        return sorted(json.loads(path.read_text()))
    if path.suffix == ".npz":
        provenance = MarkovModel.load(path).provenance
        return sorted(provenance)
    return None


def _run_for_form(tmp_path, users, write, words):
    """Run a command on data of some users, and return the form of everything that it produced."""
    run_folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
    run_folder.mkdir()
    write(run_folder / "data", users)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(run_folder)
        result = command_line.run(words[0], "data", *words[1:])
        shutil.rmtree(run_folder / "data")
        files = {path.name: _describe_file(path) for path in sorted(run_folder.iterdir())}
    keys = None
    if result.exit_code == 0:
        keys = [key for key in json.loads(result.stdout) if not key.startswith("private")]
    # Selected regions and noisy numbers differ between runs.
    warnings = re.sub(r"[-\d.,]+", "#", result.stderr)
    return result.exit_code, files, warnings, keys


def _make_neighbours(count, seed, inside=True):
    others = {f"user{number}": _make_track(f"user{number}", 1000 * seed + number) for number in range(count)}
    return {**others, "ann": _make_track("ann", seed, inside)}, others


CASES = {
    "flows to csv": (*FLOWS, "-o", "f.csv"),
    "flows to gpkg": (*FLOWS, "-o", "f.gpkg"),
    "flows to json": (*FLOWS, "-o", "f.json"),
    "flows with every row": (*FLOWS, "-o", "f.csv", {"every_row": True}),
    "flows of accurate numbers": (*FLOWS, "-o", "f.csv", {"relative_error": 0.01}),
    "flows of ann": (*FLOWS, "-o", "f.csv", "--users", "ann"),
    "flows without ann": (*FLOWS, "-o", "f.csv", "--exclude-users", "ann"),
    "flows by hour": (*FLOWS, "-o", "f.csv", "--time-classes", "hour", {"zone": "UTC"}),
    "learn": (*LEARN, *REGION),
    "learn a region": LEARN,
    "learn outside states": (*LEARN, *REGION, {"outside_states": True}),
    "learn from ann": (*LEARN, *REGION, "--users", "ann"),
    "learn without ann": (*LEARN, *REGION, "--exclude-users", "ann"),
}


@pytest.mark.parametrize(
    ("count", "inside"), [(0, True), (0, False), (2, True)], ids=["only", "outside", "with others"]
)
@pytest.mark.parametrize("case", CASES)
def test_form_does_not_depend_on_presence_of_a_user(tmp_path, case, count, inside):
    options = ({"user_per_file": True},)
    for number, (name, write) in enumerate(WRITERS.items()):
        if name != list(WRITERS)[(count + len(case)) % len(WRITERS)] and case != "flows to csv":
            continue  # every case with one type of file; one with all of them
        present, absent = _make_neighbours(count, 10 * number + count, inside)
        words = (*CASES[case], *options)
        with_user = _run_for_form(tmp_path, present, write, words)
        without_user = _run_for_form(tmp_path, absent, write, words)
        assert with_user == without_user, name
        assert with_user[0] == 0, with_user[2]


def test_form_test_rejects_an_error_for_missing_users(tmp_path, monkeypatch):
    """A broken variant, which raises an error without users, must differ."""
    stream = Data.stream
    monkeypatch.setattr(Data, "stream", lambda data, dropped, may_be_empty=False: stream(data, dropped))
    present, absent = _make_neighbours(0, 1)
    words = (*LEARN, *REGION)
    assert _run_for_form(tmp_path, present, _write_tables, words) != _run_for_form(
        tmp_path, absent, _write_tables, words
    )


@pytest.mark.parametrize("words", [("flows", *FLOWS[1:], "-o", "f.csv"), (*LEARN, *REGION)], ids=["flows", "learn"])
@pytest.mark.parametrize("content", ["", "\n", HEADER])
@pytest.mark.parametrize("name", ["x.csv", "x.txt", "x.rec"])
def test_input_without_records_is_a_data_set_without_users(tmp_path, words, content, name):
    if name != "x.csv" and content == HEADER:
        content = " \n"  # files of these types have no header
    (tmp_path / name).write_text(content)
    result = command_line.run(words[0], name, *words[1:])
    assert result.exit_code == 0, result.stderr


def test_learning_without_a_budget_still_requires_users(tmp_path):
    (tmp_path / "x.csv").write_text(HEADER)
    result = command_line.run("learn", "x.csv", *REGION, "-o", "m.npz")
    assert result.exit_code == 2
    assert "no usable fix" in result.stderr
