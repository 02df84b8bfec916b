"""Releases of invented people for pictures and pages: as many moments as wanted, without an engine."""

from __future__ import annotations

import numpy as np

from dphmm.model.model import MarkovModel
from dphmm.release.engine import Releaser, ReleaseSettings
from dphmm.release.trajectory import release_trajectory
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from dphmm.writers.table import COLUMNS, ReleaseTable

GRID = Grid.over((33.95, -118.40, 34.10, -118.20), cell_km=1.5)
"""In Los Angeles, so that there is something to recognise."""
START = np.datetime64("2024-03-07T08:00:00", "us")
STEP = np.timedelta64(5, "m")


def model() -> MarkovModel:
    """People who may be anywhere next."""
    size = GRID.size
    return MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size), GRID, 300.0)


def engine(policy: str = "utility:2km") -> Releaser:
    return ReleaseSettings(policy=policy, epsilon=1.0).engine(model(), rng=1)


def walk(moments: int, user: str = "ann", seed: int = 0, reach: float = 0.0) -> Trajectory:
    """A true track along the region's diagonal; with a reach some fixes lie beyond it."""
    along = np.linspace(0.1, 0.9 + reach, moments)
    rng = np.random.default_rng(seed)
    latitude = 33.95 + 0.15 * along + rng.normal(0, 0.002, moments)
    longitude = -118.40 + 0.20 * along + rng.normal(0, 0.002, moments)
    return Trajectory(user, START + np.arange(moments) * STEP, latitude, longitude)


def released(moments: int = 20, user: str = "ann") -> ReleaseTable:
    """Real releases of the walk."""
    return ReleaseTable.from_releases(release_trajectory(engine(), GRID, walk(moments, user).resample(300.0)))


def many(moments: int, users: int) -> ReleaseTable:
    """Rows of so many moments of so many users, a day of five-minute steps each, drawn around the walk's estimates."""
    base = released(20)
    rng = np.random.default_rng(2)
    row = rng.integers(0, len(base), moments)
    columns = {column.name: base[column.name][row].copy() for column in COLUMNS}
    person, at = np.arange(moments) % users, np.arange(moments) // users
    columns["user"] = np.array([f"u{number:03d}" for number in person], dtype=object)
    columns["time"] = START + at * STEP
    for name, wide in (("latitude", 0.02), ("estimate_latitude", 0.006)):
        columns[name] = columns[name] + rng.normal(0, wide, moments)
        east = name.replace("lat", "long")
        columns[east] = columns[east] + rng.normal(0, wide, moments)
    for name in ("estimate_radius_m", "expected_error_m"):
        columns[name] = columns[name] * rng.uniform(0.8, 1.2, moments)
    return ReleaseTable(columns)
