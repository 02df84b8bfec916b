"""Releases of synthetic users for plots and pages, of any length and without an engine."""

from __future__ import annotations

import numpy as np

from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.trajectory_release import release_trajectory
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from dphmm.writers.release_table import COLUMNS, ReleaseTable

# In Los Angeles, so the map has recognisable features.
GRID = Grid.over((33.95, -118.40, 34.10, -118.20), cell_km=1.5)
START = np.datetime64("2024-03-07T08:00:00", "us")
STEP = np.timedelta64(5, "m")


def build_model() -> MarkovModel:
    """Return a model with uniform transitions."""
    size = GRID.size
    return MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), GRID, 300.0)


def make_engine(policy: str = "utility:2km") -> Releaser:
    return ReleaseSettings(policy=policy, epsilon=1.0).engine(build_model(), rng=1)


def walk(num_steps: int, user: str = "ann", seed: int = 0, reach: float = 0.0) -> Trajectory:
    """Return a track along the region's diagonal.

    If ``reach`` is positive, some fixes lie outside the region.
    """
    along = np.linspace(0.1, 0.9 + reach, num_steps)
    rng = np.random.default_rng(seed)
    latitude = 33.95 + 0.15 * along + rng.normal(0, 0.002, num_steps)
    longitude = -118.40 + 0.20 * along + rng.normal(0, 0.002, num_steps)
    return Trajectory(user, START + np.arange(num_steps) * STEP, latitude, longitude)


def release_walk(num_steps: int = 20, user: str = "ann") -> ReleaseTable:
    """Return releases of the walk by the engine."""
    return ReleaseTable.from_releases(release_trajectory(make_engine(), GRID, walk(num_steps, user).resample(300.0)))


def sample_table(num_steps: int, users: int) -> ReleaseTable:
    """Return rows of several users, sampled around the estimates of the walk.

    Each user has one day of five-minute timesteps.
    """
    base = release_walk(20)
    rng = np.random.default_rng(2)
    row = rng.integers(0, len(base), num_steps)
    columns = {column.name: base[column.name][row].copy() for column in COLUMNS}
    user, at = np.arange(num_steps) % users, np.arange(num_steps) // users
    columns["user"] = np.array([f"u{number:03d}" for number in user], dtype=object)
    columns["time"] = START + at * STEP
    for name, wide in (("latitude", 0.02), ("estimate_latitude", 0.006)):
        columns[name] = columns[name] + rng.normal(0, wide, num_steps)
        east = name.replace("lat", "long")
        columns[east] = columns[east] + rng.normal(0, wide, num_steps)
    for name in ("estimate_error_m", "expected_error_m"):
        columns[name] = columns[name] * rng.uniform(0.8, 1.2, num_steps)
    return ReleaseTable(columns)
