"""Files of another format number: refused in one line that says what to do, with exit code 2, and left unchanged."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from tests.documents import ROOT

RIDE = ROOT / "data/sample/ride.gpx"
TERMS = ("--model", "m.npz", "--policy", "complete", "--epsilon", 1)
HIDE = ("hide", RIDE, "--near", "45.01,-30.01", "--within", "500m", "--session", "hidden.json")


def model(folder, run):
    """Name another format in the model of the folder."""
    with np.load(folder / "m.npz") as archive:
        arrays = dict(archive)
    about = json.loads(arrays["about"].item())
    assert about["format"] == "dphmm-markov-model-1"
    np.savez(folder / "m.npz", **arrays | {"about": np.array(json.dumps(about | {"format": "dphmm-markov-model-2"}))})


def session(folder, run):
    """Make a session, and write another format number into its header."""
    done = run("release", "walk.csv", "--user", "a", "--session", "s.db", *TERMS, "-o", "first.csv")
    assert done.exit_code == 0, done.stderr
    with closing(sqlite3.connect(folder / "s.db")) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (1,)
        file.execute("PRAGMA user_version=2")
        file.commit()


def hidden_places(folder, run):
    """Hide a place, and name another format in the file that counts its recordings."""
    done = run(*HIDE, "-o", "first.gpx")
    assert done.exit_code == 0, done.stderr
    _rename_format(folder / "hidden.json", "dphmm-hidden-places-1", "dphmm-hidden-places-2")


def people(folder, run):
    """Learn a model, and name another format in the list of whose data it was learned from."""
    box = ("--bbox", 44.995, -30.015, 45.005, -29.985, "--cell", 0.5, "--step", 60)
    done = run("learn", "walk.csv", *box, "-o", "own.npz")
    assert done.exit_code == 0, done.stderr
    _rename_format(folder / "own.PRIVATE-people.json", "dphmm-learned-from-1", "dphmm-learned-from-2")


def _rename_format(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "command", "said"),
    [
        (
            model,
            ("release", "walk.csv", *TERMS, "-o", "out.csv"),
            "must be dphmm-markov-model-1, got 'dphmm-markov-model-2'); make one with: dphmm learn",
        ),
        (
            session,
            ("release", "walk.csv", "--user", "a", "--session", "s.db", *TERMS, "-o", "out.csv"),
            "s.db: must be of format 1, got 2; use the version of dphmm that made it, or a new session file",
        ),
        (
            session,
            ("audit", "session", "s.db", "--model", "m.npz"),
            "s.db: must be of format 1, got 2; use the version of dphmm that made it, or a new session file",
        ),
        (
            hidden_places,
            (*HIDE, "-o", "out.gpx"),
            "must be of format dphmm-hidden-places-1, got 'dphmm-hidden-places-2'; name a new file with --session",
        ),
        (
            people,
            ("release", "walk.csv", "--model", "own.npz", "--policy", "complete", "--epsilon", 1, "-o", "out.csv"),
            "own.PRIVATE-people.json: cannot be read as a list of whose data a model has seen; restore it, or say",
        ),
    ],
)
def test_a_file_of_another_format_is_refused_and_nothing_is_changed(world, run, change, command, said):
    change(world, run)
    before = {path.name: path.read_bytes() for path in world.iterdir()}
    done = run(*command)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert said in line
    assert {path.name: path.read_bytes() for path in world.iterdir()} == before
