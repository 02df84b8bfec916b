"""Without numba all commands run, and published results are identical to the last byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from dphmm import MarkovModel, compilation
from dphmm.jobs.batch.run_folder import get_user_file_path
from dphmm.space import Grid
from tests import command_line
from tests.cli.conftest import HEADER, make_fixes

# Run in a separate process: the commands one after another. Prints their outputs.
DRIVER = """
import json, sys
sys.modules["numba"] = None
from tests.test_without_numba import run_commands
from tests import command_line
print(json.dumps(run_commands(json.loads(sys.argv[1]))))
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
    ("leak", "--releases", "r.csv", "--model", "m.npz", "--users", "a", "--json"),
)
RANDOM_FILES = ("r.csv", "c.csv", "l.csv", *(str(get_user_file_path(Path("all"), user, "parquet")) for user in "ab"))


def build_folder(path: Path) -> Path:
    path.mkdir()
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    rng = np.random.default_rng(0)
    matrix = rng.dirichlet(np.full(grid.size, 0.2), grid.size) + 1e-12 * (rng.random((grid.size, grid.size)) < 0.5)
    matrix[matrix < 1e-13] = 0.0
    model = MarkovModel(matrix / matrix.sum(axis=1, keepdims=True), np.full(grid.size, 1 / grid.size), grid, 60.0)
    model.save(path / "m.npz")
    (path / "walk.csv").write_text(HEADER + make_fixes("a") + make_fixes("b", start=7))
    (path / "one.csv").write_text(HEADER + make_fixes("a"))
    return path


def run_commands(lines: Iterable[Sequence[str]]) -> list[str]:
    """The output of the commands, with every sum of masses in compiled loops if available."""
    outputs = []
    with pytest.MonkeyPatch.context() as compiled:
        compiled.setattr(compilation, "_MIN_WORK", 0)
        for words in lines:
            done = command_line.run(*words)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            assert done.exit_code in (0, 1), done.output + done.stderr
            outputs.append(done.stdout)
    return outputs


def run_commands_without_numba(folder: Path) -> list[str]:
    words = [sys.executable, "-c", DRIVER, json.dumps(LINES)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_commands_without_numba_publish_same_bytes(tmp_path, monkeypatch):
    pytest.importorskip("numba")
    pytest.importorskip("pyarrow")
    hidden = run_commands_without_numba(build_folder(tmp_path / "hidden"))
    monkeypatch.chdir(build_folder(tmp_path / "there"))
    there = run_commands(LINES)
    assert "numba" in sys.modules
    for name in RANDOM_FILES:
        assert (tmp_path / "hidden" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name
    for words, hidden_output, output in zip(LINES, hidden, there, strict=True):
        assert find_numbers(hidden_output) == pytest.approx(find_numbers(output), rel=1e-9, abs=1e-9), words
        assert len(find_numbers(hidden_output)) > 3


def find_numbers(text: str) -> list[float]:
    """All numbers of a text, in order."""
    values: list[float] = []
    for word in text.replace("[", " ").replace("]", " ").replace(",", " ").replace(":", " ").split():
        try:
            values.append(float(word.strip('"{}')))
        except ValueError:
            continue
    return values
