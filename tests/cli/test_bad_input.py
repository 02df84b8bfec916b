"""Every bad input: one line that names the thing and the remedy, exit code 2, nothing half-written."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from dphmm.model.model import MarkovModel
from dphmm.space import Grid

HEADER = "user_id,tracked_at,latitude,longitude\n"
GOOD = "a,2024-03-07T09:00:00Z,45.001,-30.001\n"
RELEASE = ("release", "walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1", "-o", "out.gpkg")


def _with(option, value):
    words = list(RELEASE)
    words[words.index(option) + 1] = value
    return words


def _table(line):
    return lambda folder: (folder / "walk.csv").write_text(HEADER + GOOD + line)


def _truncated_model(folder):
    content = (folder / "m.npz").read_bytes()
    (folder / "m.npz").write_bytes(content[: len(content) // 2])


def _model(**changes):
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
        made = {name: change(parts[name]) if callable(change) else change for name, change in changes.items()}
        np.savez(folder / "m.npz", **(parts | made))

    return write


def _known_model(folder):
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    initial = np.zeros(grid.size)
    initial[0] = 1.0
    MarkovModel(np.eye(grid.size), initial, grid, 60.0).save(folder / "m.npz")


def _nothing(folder):
    pass


CASES = {
    "epsilon zero": (_nothing, _with("--epsilon", "0"), "epsilon is 0.0; give a positive"),
    "epsilon negative": (_nothing, _with("--epsilon", "-1"), "epsilon is -1.0; give a positive"),
    "epsilon infinite": (_nothing, _with("--epsilon", "inf"), "epsilon is inf; give a positive"),
    "epsilon nan": (_nothing, _with("--epsilon", "nan"), "epsilon is nan; give a positive"),
    "epsilon no number": (_nothing, _with("--epsilon", "much"), "'much' is not a valid float"),
    "latitude nan": (_table("a,2024-03-07T09:01:00Z,nan,-30\n"), RELEASE, "walk.csv, line 3: latitude is nan"),
    "latitude 400.17": (_table("a,2024-03-07T09:01:00Z,400.17,-30\n"), RELEASE, "walk.csv, line 3: latitude is 400.17"),
    "no time": (_table("a,yesterday,45,-30\n"), RELEASE, "walk.csv, line 3: time is 'yesterday'"),
    "no file": (lambda folder: (folder / "walk.csv").unlink(), RELEASE, "walk.csv: there is no such file"),
    "rows of M": (_model(data=lambda values: values / 2), RELEASE, "row 0 sums to 0.5"),
    "a model's arrays do not fit": (_model(data=np.ones(3)), RELEASE, "m.npz: no Markov model"),
    "truncated model": (_truncated_model, RELEASE, "m.npz: no Markov model"),
    "no model": (_nothing, _with("--model", "absent.npz"), "absent.npz: no Markov model"),
    "one possible state": (_known_model, RELEASE, "only possible one"),
    "no policy": (_nothing, _with("--policy", "star"), "policy 'star' is none; give utility:1km"),
    "policy of strangers": (
        lambda folder: (folder / "p.json").write_text('{"nodes": [{"id": 9999}], "edges": []}'),
        _with("--policy", "graph:p.json"),
        "got node 9999",
    ),
    "policy file absent": (_nothing, _with("--policy", "graph:p.json"), "p.json: there is no such file"),
    "layer truncated": (
        lambda folder: (folder / "l.geojson").write_text('{"features": ['),
        _with("--policy", "categorical:l.geojson"),
        "l.geojson, line 1: is no JSON",
    ),
    "no mechanism": (
        _nothing,
        (*RELEASE, "--mechanism", "gauss"),
        "--mechanism is 'gauss'; choose one of lattice",
    ),
    "delta": (_nothing, (*RELEASE, "--delta", "2"), "delta is 2.0; give a number from 0 to below 1"),
    "no format": (_nothing, _with("-o", "out.xlsx"), "no format goes by '.xlsx'; use .gpkg"),
    "no folder": (_nothing, _with("-o", "absent/out.csv"), "there is no folder absent"),
    "no output": (_nothing, RELEASE[:-2], "no output is given; name one with -o"),
    "unknown user": (_nothing, (*RELEASE, "--users", "zoe"), "user 'zoe' is not in the data"),
    "nobody left": (_nothing, (*RELEASE, "--exclude-users", "a,b"), "no user is left"),
    "elsewhere": (
        lambda f: (f / "walk.csv").write_text(HEADER + "a,2024-03-07,1,1\n"),
        RELEASE,
        "no place of the data lies in the model's region",
    ),
    "public name for private things": (
        _nothing,
        (*RELEASE, "--private-diagnostics", "errors.csv"),
        "errors.csv: the file tells true places; call it PRIVATE-errors.csv",
    ),
    "model with no map": (
        _model(about=np.array(json.dumps({"format": "dphmm-markov-model-1", "states": None, "step_seconds": None}))),
        RELEASE,
        "the model has no map or no time step",
    ),
    "learn with cells of no region": (
        _nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--cell", "0.5"),
        "give one of --preset",
    ),
    "learn without a cell": (
        _nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--bbox", "44", "-31", "46", "-29"),
        "no cell size is given; give --cell",
    ),
    "learn with a box upside down": (
        _nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--bbox", "46", "-31", "44", "-29", "--cell", "1"),
        "give south < north",
    ),
    "learn with no step": (
        _nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--preset", "geolife", "--step", "0"),
        "'--step': 0.0 is not in the range x>0",
    ),
    "learn elsewhere": (
        _nothing,
        ("learn", "walk.csv", "-o", "out.npz", "--preset", "geolife"),
        "no sequence visits any state",
    ),
    "learn a table": (_nothing, ("learn", "walk.csv", "-o", "out.csv", "--preset", "geolife"), "is a .npz file"),
    "show nothing": (_nothing, ("show", "absent.gpkg", "-o", "out.png"), "absent.gpkg: there is no such file"),
    "show a model": (_nothing, ("show", "m.npz", "-o", "out.png"), "no format goes by '.npz'"),
    "show in words": (_nothing, ("show", "absent.csv", "-o", "out.doc"), "no map goes by '.doc'"),
    "fetch something else": (_nothing, ("data", "fetch", "porto"), "no data set is called 'porto'"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_exit_code_2_and_leaves_nothing(world, run, case):
    prepare, words, message = CASES[case]
    prepare(world)
    before = {path.name: path.read_bytes() for path in world.iterdir()}
    result = run(*words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert message in result.stderr
    assert {path.name: path.read_bytes() for path in world.iterdir()} == before


@pytest.mark.parametrize("option", ["-o", "--summary", "--private-diagnostics"])
def test_an_existing_output_is_refused_before_any_work_unless_asked_for(world, run, option):
    outputs = {"-o": "out.csv", "--summary": "sums.csv", "--private-diagnostics": "private.csv"}
    (world / outputs[option]).write_text("mine")
    words = ["release", "walk.csv", "--model", "m.npz", "--policy", "complete", "--epsilon", "1"]
    words += [word for pair in outputs.items() for word in pair]
    result = run(*words)
    assert result.exit_code == 2
    assert result.stderr == f"dphmm: {outputs[option]} exists; name another file or pass --overwrite\n"
    assert {path.name for path in world.iterdir()} == {"m.npz", "walk.csv", outputs[option]}
    assert run(*words, "--overwrite").exit_code == 0
    assert (world / outputs[option]).read_text() != "mine"


def test_known_places_are_released_only_when_that_is_allowed(world, run):
    _known_model(world)
    words = _with("-o", "out.csv")
    assert "--allow-known" in run(*words).stderr
    assert run(*words, "--allow-known").exit_code == 0


def test_skip_bad_passes_over_and_counts(world, run):
    _table("a,2024-03-07T09:01:00Z,400.17,-30\n")(world)
    result = run(*_with("-o", "out.csv"), "--skip-bad", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["private_fixes_skipped"] == 1


def test_what_may_be_unpacked_is_said_before_the_command_or_in_the_environment(world, run, monkeypatch):
    (world / "walk.csv.gz").write_bytes(gzip.compress((world / "walk.csv").read_bytes()))
    words = ["release", "walk.csv.gz", *RELEASE[2:-1], "out.csv"]
    refused = run("--max-unpacked", "100", *words)
    assert refused.exit_code == 2
    assert "unpacks to more than 100 bytes, out of proportion to its size" in refused.stderr
    assert refused.stderr.count("\n") == 1
    wrong = run("--max-unpacked", "much", *words)
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert "'much'; give a size such as 8GB" in wrong.stderr
    assert run("--max-unpacked", "1 MB", *words).exit_code == 0
    monkeypatch.setenv("DPHMM_MAX_UNPACKED", "100")
    assert run(*words, "--overwrite").exit_code == 2
    monkeypatch.delenv("DPHMM_MAX_UNPACKED")
    assert run(*words, "--overwrite").exit_code == 0
