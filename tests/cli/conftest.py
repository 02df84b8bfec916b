"""A small model and data set on disk, and the command run in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from dphmm.model.model import MarkovModel
from dphmm.space import Grid
from tests import command_line

HEADER = "user_id,tracked_at,latitude,longitude\n"


def make_fixes(user: str = "a", count: int = 6, start: int = 0) -> str:
    """Return lines of a table: a walk to the east with one fix per minute."""
    return "".join(f"{user},2024-03-07T09:{start + k:02d}:00Z,45.001,{-30.012 + 0.004 * k:.6f}\n" for k in range(count))


@pytest.fixture
def world(tmp_path, monkeypatch) -> Path:
    """Return a folder with a model ``m.npz`` and a table ``walk.csv`` of two users.

    It is the working directory.
    """
    monkeypatch.chdir(tmp_path)
    grid = Grid.over((44.995, -30.015, 45.005, -29.985), cell_km=0.5)
    matrix = np.full((grid.size, grid.size), 1 / grid.size)
    MarkovModel(matrix, np.full(grid.size, 1 / grid.size), grid, 60.0).save(tmp_path / "m.npz")
    (tmp_path / "walk.csv").write_text(HEADER + make_fixes("a") + make_fixes("b"))
    return tmp_path


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run the command in this process. See `tests.command_line.run`."""
    return command_line.run


def start(*words: str) -> subprocess.Popen[bytes]:
    """Start the command in a separate process with pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "dphmm", *words], stdin=pipe, stdout=pipe, stderr=pipe)
