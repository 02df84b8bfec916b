"""Without numba everything runs, and what is exact or published is the same to the last byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dphmm import MarkovModel, compilation
from dphmm.cli import main
from dphmm.jobs.run_folder import user_file
from dphmm.space import Grid
from tests.cli.conftest import HEADER, fixes

# Run in a process of its own: the commands one after another. Prints what each said.
DRIVER = """
import json, sys
sys.modules["numba"] = None
from tests.test_without_numba import said
print(json.dumps(said(json.loads(sys.argv[1]))))
"""
RELEASE = ("--model", "m.npz", "--policy", "utility:1km & complete", "--epsilon", "1")
LINES = (
    ("release", "walk.csv", *RELEASE, "--seed", "3", "-o", "r.csv", "--session", "s.db"),
    ("batch", "walk.csv", *RELEASE, "--seed", "4", "--workers", "1", "-o", "all"),
    ("counts", "release", "walk.csv", "--model", "m.npz", "--epsilon", "1", "--seed", "5", "-o", "c.csv"),
    ("landmarks", "one.csv", *RELEASE, "--at", "2024-03-07T09:03:00", "--seed", "6", "-o", "l.csv"),
    ("audit", "session", "r.csv", *RELEASE, "--json"),
    ("audit", "session", "s.db", "--model", "m.npz", "--json"),
    ("audit", "event", "r.csv", *RELEASE, "--event", "state:1 between 0 and 3", "--json"),
    ("leak", "--releases", "r.csv", "--model", "m.npz", "--of", "a", "--json"),
)
RANDOM_FILES = ("r.csv", "c.csv", "l.csv", *(str(user_file(Path("all"), user, "parquet")) for user in "ab"))


def folder_of(path: Path) -> Path:
    path.mkdir()
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.full(grid.size, 0.2), grid.size) + 1e-12 * (rng.random((grid.size, grid.size)) < 0.5)
    matrix[matrix < 1e-13] = 0.0
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(grid.size, 1 / grid.size), grid, 60.0)
    model.save(path / "m.npz")
    (path / "walk.csv").write_text(HEADER + fixes("a") + fixes("b", start=7))
    (path / "one.csv").write_text(HEADER + fixes("a"))
    return path


def said(lines: Iterable[Sequence[str]]) -> list[str]:
    """What the commands print, with every sum of masses taken by the loops that numba compiles, where it is there."""
    told = []
    with pytest.MonkeyPatch.context() as compiled:
        compiled.setattr(compilation, "_WORTH", 0)
        for words in lines:
            done = CliRunner().invoke(main, words)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            assert done.exit_code in (0, 1), done.output + done.stderr
            told.append(done.stdout)
    return told


def said_without(folder: Path) -> list[str]:
    words = [sys.executable, "-c", DRIVER, json.dumps(LINES)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_command_runs_without_numba_and_publishes_the_same_bytes(tmp_path, monkeypatch):
    pytest.importorskip("numba")
    pytest.importorskip("pyarrow")
    hidden = said_without(folder_of(tmp_path / "hidden"))
    monkeypatch.chdir(folder_of(tmp_path / "there"))
    there = said(LINES)
    assert "numba" in sys.modules
    for name in RANDOM_FILES:
        assert (tmp_path / "hidden" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name
    for words, one, other in zip(LINES, hidden, there, strict=True):
        assert numbers(one) == pytest.approx(numbers(other), rel=1e-9, abs=1e-9), words
        assert len(numbers(one)) > 3


def numbers(told: str) -> list[float]:
    """All numbers of what was said, in their order."""
    found: list[float] = []
    for word in told.replace("[", " ").replace("]", " ").replace(",", " ").replace(":", " ").split():
        try:
            found.append(float(word.strip('"{}')))
        except ValueError:
            continue
    return found
