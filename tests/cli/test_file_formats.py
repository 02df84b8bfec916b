"""Tests of files with other format versions: one line with the remedy, and no change."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from dphmm.release.database_backends import get_format
from tests.documents import ROOT

RIDE = ROOT / "data/sample/ride.gpx"
TERMS = ("--model", "m.npz", "--policy", "complete", "--epsilon", 1)
HIDE = ("hide", RIDE, "--near", "45.01,-30.01", "--within", "500m", "--session", "hidden.json")


def rename_model_format(folder, run):
    """Change the format in the folder's model."""
    with np.load(folder / "m.npz") as archive:
        arrays = dict(archive)
    about = json.loads(arrays["about"].item())
    assert about["format"] == "dphmm-markov-model-1"
    np.savez(folder / "m.npz", **arrays | {"about": np.array(json.dumps(about | {"format": "dphmm-markov-model-2"}))})


def rename_session_format(folder, run):
    """Create a session, and change the format number in its header."""
    done = run("release", "walk.csv", "--user", "a", "--session", "s.db", *TERMS, "-o", "first.csv")
    assert done.exit_code == 0, done.stderr
    with closing(sqlite3.connect(folder / "s.db")) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (get_format(),)
        file.execute(f"PRAGMA user_version={get_format() + 1}")
        file.commit()


def rename_hidden_places_format(folder, run):
    """Hide a place, and change the format in the file that counts its recordings."""
    done = run(*HIDE, "-o", "first.gpx")
    assert done.exit_code == 0, done.stderr
    _rename_format(folder / "hidden.json", "dphmm-hidden-places-1", "dphmm-hidden-places-2")


def rename_user_list_format(folder, run):
    """Train a model, and change the format in the list of its training users."""
    box = ("--bbox", 44.995, -30.015, 45.005, -29.985, "--cell", 0.5, "--step", 60)
    done = run("learn", "walk.csv", *box, "-o", "own.npz")
    assert done.exit_code == 0, done.stderr
    _rename_format(folder / "own.PRIVATE-users.json", "dphmm-learned-from-1", "dphmm-learned-from-2")


def _rename_format(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "command", "message"),
    [
        (
            rename_model_format,
            ("release", "walk.csv", *TERMS, "-o", "out.csv"),
            "must be dphmm-markov-model-1, got 'dphmm-markov-model-2'): create one with 'dphmm learn'",
        ),
        (
            rename_session_format,
            ("release", "walk.csv", "--user", "a", "--session", "s.db", *TERMS, "-o", "out.csv"),
            f"s.db: must be of format {get_format()} or earlier, got {get_format() + 1}; use the version",
        ),
        (
            rename_session_format,
            ("audit", "session", "s.db", "--model", "m.npz"),
            f"s.db: must be of format {get_format()} or earlier, got {get_format() + 1}; use the version",
        ),
        (
            rename_hidden_places_format,
            (*HIDE, "-o", "out.gpx"),
            "must be of format dphmm-hidden-places-1, got 'dphmm-hidden-places-2': use a new file with --session",
        ),
        (
            rename_user_list_format,
            ("release", "walk.csv", "--model", "own.npz", "--policy", "complete", "--epsilon", 1, "-o", "out.csv"),
            "own.PRIVATE-users.json: is not a valid list of training users: restore it, or set allow_training_users",
        ),
    ],
)
def test_file_of_other_format_raises_and_stays_unchanged(world, run, change, command, message):
    change(world, run)
    before = {path.name: path.read_bytes() for path in world.iterdir()}
    done = run(*command)
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert message in line
    assert {path.name: path.read_bytes() for path in world.iterdir()} == before
