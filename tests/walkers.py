"""Walkers on a small grid, as a table of fixes on disk, and an evaluation of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dphmm.evaluation.config import EvaluationConfig, parse_config
from dphmm.readers import read
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory

BOX = (45.0, -30.05, 45.03, -30.0)
CELL_KM = 0.5
STEP_SECONDS = 60


def make_walker(user: str, steps: int, seed: int) -> Trajectory:
    """A user with a random move to a neighbouring cell, or a stay, every minute."""
    grid = Grid.over(BOX, CELL_KM)
    rng = np.random.default_rng(seed)
    cell = rng.integers([grid.columns, grid.rows])
    cells = []
    for _ in range(steps):
        cell = np.clip(cell + rng.integers(-1, 2, size=2), 0, [grid.columns - 1, grid.rows - 1])
        cells.append(cell)
    places = grid.latlon(grid.state_at(np.array(cells)))
    times = np.datetime64("2024-03-01T00:00:00", "us") + np.arange(1, steps + 1) * np.timedelta64(STEP_SECONDS, "s")
    return Trajectory(user, times, places[:, 0], places[:, 1])


@pytest.fixture(scope="session")
def walkers_file(tmp_path_factory) -> Path:
    """Eight users with walks of 60 minutes, and one with a walk of five."""
    path = tmp_path_factory.mktemp("walkers") / "walkers.csv"
    lines = ["user_id,tracked_at,latitude,longitude"]
    for number in range(9):
        trajectory = make_walker(f"w{number}", 60 if number else 5, number)
        for time, latitude, longitude in zip(trajectory.times, trajectory.latitude, trajectory.longitude, strict=True):
            lines.append(
                f"{trajectory.user},{time}Z,{latitude!r},{longitude!r}".replace("np.float64(", "").replace(")", "")
            )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def config(walkers_file) -> EvaluationConfig:
    """Four sequences of twelve steps under seven settings, in fourteen tasks."""
    return parse_config(
        {
            "data": [str(walkers_file)],
            "bbox": list(BOX),
            "cell_km": CELL_KM,
            "step_seconds": float(STEP_SECONDS),
            "folds": 2,
            "sequences": 4,
            "length": 12,
            "epsilons": [1.0, 4.0],
            "policies": ["utility", "complete"],
            "mechanism": "planar-isotropic",
            "mechanisms": ["lattice"],
            "radii_km": [1.0, 2.0],
            "seed": 7,
            "task_sequences": 2,
        }
    )


@pytest.fixture(scope="session")
def trajectories(walkers_file) -> tuple[Trajectory, ...]:
    return read(walkers_file).trajectories
