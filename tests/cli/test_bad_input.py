"""Tests of invalid input: one line with the remedy, exit code 2 and no partial output."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

from dphmm.model.model import MarkovModel
from dphmm.space import Grid

HEADER = "user_id,tracked_at,latitude,longitude\n"
GOOD = "a,2024-03-07T09:00:00Z,45.001,-30.001\n"
RELEASE = ("release", "walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1", "-o", "out.gpkg")


def _replace_option(option, value):
    words = list(RELEASE)
    words[words.index(option) + 1] = value
    return words


def _write_table(line):
    return lambda folder: (folder / "walk.csv").write_text(HEADER + GOOD + line)


def _truncate_model(folder):
    content = (folder / "m.npz").read_bytes()
    (folder / "m.npz").write_bytes(content[: len(content) // 2])


def _write_model(**changes):
    def write(folder):
        model = MarkovModel.load(folder / "m.npz")
        parts = {
            "about": np.array(
                json.dumps({"format": "dphmm-markov-model-1", "states": model.states.to_json(), "step_seconds": 60.0})
            ),
            "data": model.transition.data,
            "indices": model.transition.indices,
            "indptr": model.transition.indptr,
            "initial": model.initial,
        }
        changed = {name: change(parts[name]) if callable(change) else change for name, change in changes.items()}
        np.savez(folder / "m.npz", **(parts | changed))

    return write


def _write_known_model(folder):
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    initial = np.zeros(grid.size)
    initial[0] = 1.0
    MarkovModel(np.eye(grid.size), initial, grid, 60.0).save(folder / "m.npz")


def _change_nothing(folder):
    pass


CASES = {
    "epsilon zero": (_change_nothing, _replace_option("--epsilon", "0"), "epsilon must be in"),
    "epsilon negative": (_change_nothing, _replace_option("--epsilon", "-1"), "epsilon must be in"),
    "epsilon infinite": (_change_nothing, _replace_option("--epsilon", "inf"), "epsilon must be in"),
    "epsilon nan": (_change_nothing, _replace_option("--epsilon", "nan"), "epsilon must be in"),
    "epsilon no number": (_change_nothing, _replace_option("--epsilon", "much"), r"--epsilon.*'much'"),
    "latitude nan": (_write_table("a,2024-03-07T09:01:00Z,nan,-30\n"), RELEASE, r"walk\.csv, line 3: latitude .*nan"),
    "latitude 400.17": (
        _write_table("a,2024-03-07T09:01:00Z,400.17,-30\n"),
        RELEASE,
        r"walk\.csv, line 3: latitude .*400\.17",
    ),
    "no time": (_write_table("a,yesterday,45,-30\n"), RELEASE, r"walk\.csv, line 3: time .*'yesterday'"),
    "no file": (lambda folder: (folder / "walk.csv").unlink(), RELEASE, r"walk\.csv: .*no such file"),
    "rows of M": (
        _write_model(data=lambda values: values / 2),
        RELEASE,
        r"rows that sum to 1, got 0\.5 in row 0.*dphmm learn",
    ),
    "a model's arrays do not fit": (_write_model(data=np.ones(3)), RELEASE, r"m\.npz: .*Markov model"),
    "truncated model": (_truncate_model, RELEASE, r"m\.npz: .*Markov model"),
    "no model": (_change_nothing, _replace_option("--model", "absent.npz"), r"absent\.npz: .*Markov model"),
    "one possible state": (_write_known_model, RELEASE, "only state of the constraint set"),
    "no user names": (_change_nothing, (*RELEASE, "--users", ""), "--users must be names separated by commas, got ''"),
    "empty path": (
        _change_nothing,
        ("release", "", *RELEASE[2:]),
        "paths must name files, folders or archives, got ''",
    ),
    "no policy": (
        _change_nothing,
        _replace_option("--policy", "star"),
        "policy must be one of utility:1km.*got 'star'",
    ),
    "policy of strangers": (
        lambda folder: (folder / "p.json").write_text('{"nodes": [{"id": 9999}], "edges": []}'),
        _replace_option("--policy", "graph:p.json"),
        "node 9999",
    ),
    "policy file absent": (_change_nothing, _replace_option("--policy", "graph:p.json"), r"p\.json: .*no such file"),
    "layer truncated": (
        lambda folder: (folder / "l.geojson").write_text('{"features": ['),
        _replace_option("--policy", "categorical:l.geojson"),
        r"l\.geojson, line 1: .*JSON",
    ),
    "no mechanism": (
        _change_nothing,
        (*RELEASE, "--mechanism", "gauss"),
        "--mechanism must be one of lattice",
    ),
    "delta": (_change_nothing, (*RELEASE, "--delta", "2"), r"delta must be in \[0, 1\)"),
    "no format": (_change_nothing, _replace_option("-o", "out.xlsx"), r"\.gpkg.*'\.xlsx'"),
    "no folder": (_change_nothing, _replace_option("-o", "absent/out.csv"), "folder absent"),
    "no output": (_change_nothing, RELEASE[:-2], "output .*-o"),
    "unknown user": (_change_nothing, (*RELEASE, "--users", "zoe"), "'zoe'"),
    "no user left": (_change_nothing, (*RELEASE, {"exclude_users": ["a", "b"]}), "not excluded"),
    "elsewhere": (
        lambda f: (f / "walk.csv").write_text(HEADER + "a,2024-03-07,1,1\n"),
        RELEASE,
        "model's region",
    ),
    "public name for private things": (
        _change_nothing,
        (*RELEASE, "--private-diagnostics", "errors.csv"),
        r"PRIVATE-errors\.csv",
    ),
    "model with no map": (
        _write_model(
            about=np.array(json.dumps({"format": "dphmm-markov-model-1", "states": None, "step_seconds": None}))
        ),
        RELEASE,
        "state locations and step_seconds: .*dphmm learn",
    ),
    "learn with cells of no region": (
        _change_nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--cell", "0.5"),
        "--preset",
    ),
    "learn without a cell": (
        _change_nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--bbox", "44", "-31", "46", "-29"),
        "--cell",
    ),
    "learn with a box upside down": (
        _change_nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--bbox", "46", "-31", "44", "-29", "--cell", "1"),
        "south < north",
    ),
    "learn with no step": (
        _change_nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--preset", "geolife", "--step", "0"),
        r"--step.*0\.0",
    ),
    "learn elsewhere": (
        _change_nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--preset", "geolife"),
        "no sequence",
    ),
    "learn a table": (_change_nothing, ("learn", "walk.csv", "-o", "out.csv", "--preset", "geolife"), r"\.npz"),
    "show nothing": (_change_nothing, ("show", "absent.gpkg", "-o", "out.png"), r"absent\.gpkg: .*no such file"),
    "show a model": (_change_nothing, ("show", "m.npz", "-o", "out.png"), r"'\.npz'"),
    "show in words": (_change_nothing, ("show", "absent.csv", "-o", "out.doc"), r"'\.doc'"),
    "fetch something else": (_change_nothing, ("data", "fetch", "porto"), "'porto'"),
}


@pytest.mark.parametrize("case", CASES)
def test_invalid_input_prints_one_line_exits_with_2_and_leaves_no_file(world, run, case):
    prepare, words, message = CASES[case]
    prepare(world)
    before = {path.name: path.read_bytes() for path in world.iterdir()}
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert re.search(message, result.stderr), result.stderr
    assert {path.name: path.read_bytes() for path in world.iterdir()} == before


@pytest.mark.parametrize("option", ["-o", "summary", "--private-diagnostics"])
def test_existing_output_raises_before_any_work_without_overwrite(world, run, option):
    outputs = {"-o": "out.csv", "summary": "sums.csv", "--private-diagnostics": "private.csv"}
    (world / outputs[option]).write_text("mine")
    words = ["release", "walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1"]
    words += ["-o", "out.csv", "--private-diagnostics", "private.csv", {"summary": "sums.csv"}]
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr == f"Error: {outputs[option]} exists; name another file or pass --overwrite\n"
    assert {path.name for path in world.iterdir()} == {"m.npz", "walk.csv", outputs[option]}
    assert run(*words, "--overwrite").exit_code == 0
    assert (world / outputs[option]).read_text() != "mine"


def test_known_locations_are_released_only_if_allowed(world, run):
    _write_known_model(world)
    words = _replace_option("-o", "out.csv")
    assert run(*words).stderr.count("allow_singleton") == 1
    assert run(*words, {"allow_singleton": True}).exit_code == 0


def test_skip_bad_skips_and_counts_records(world, run):
    _write_table("a,2024-03-07T09:01:00Z,400.17,-30\n")(world)
    result = run(*_replace_option("-o", "out.csv"), {"skip_bad": True}, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["private"]["num_skipped_fixes"] == 1


def test_unpacking_limit_is_set_by_option_or_environment(world, run, monkeypatch):
    (world / "walk.csv.gz").write_bytes(gzip.compress((world / "walk.csv").read_bytes()))
    words = ["release", "walk.csv.gz", *RELEASE[2:-1], "out.csv"]
    refused = run("--max-unpacked", "100", *words)
    assert refused.exit_code == 2
    assert "unpacks to more than 100 bytes, out of proportion to its size" in refused.stderr
    assert refused.stderr.count("\n") == 1
    wrong = run("--max-unpacked", "much", *words)
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert "--max-unpacked must be a positive size such as 8GB, got 'much'" in wrong.stderr
    assert run("--max-unpacked", "1 MB", *words).exit_code == 0
    monkeypatch.setenv("DPHMM_MAX_UNPACKED", "100")
    assert run(*words, "--overwrite").exit_code == 2
    monkeypatch.delenv("DPHMM_MAX_UNPACKED")
    assert run(*words, "--overwrite").exit_code == 0
