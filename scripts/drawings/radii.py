"""Coverage of calibrated radii for held-out users of GeoLife and Gowalla.

In each run 24 random users are held out, and a model is learned from the others with the default settings. GeoLife
users are released on whole days in the third ring of Beijing and in its centre (cells of 0.5 km, ``utility:1km``);
Gowalla users with at least 60 check-ins in Los Angeles (cells of 2 km, ``utility:4km``, hourly timesteps). A row is a
mean over the users of all runs: the ratio of the sums of true and stated mean errors, the coverage, the half-width of
its 95 % interval over users, the share of users who are covered at 80 % of the timesteps, and the rank correlation of
stated and true errors.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from dphmm import ReleaseSettings, Schedule
from dphmm.jobs import Data, audit_utility, learn, region, release
from scripts.drawings.sheet import write

DATA = ("geolife", "gowalla")
RUNS = 3
NUM_USERS = 24
# Name → data, region, side of a cell in kilometres, policy, step in seconds, least number of fixes of a user.
REGIONS = {
    "third ring": ("geolife", (39.87, 116.29, 39.97, 116.46), 0.5, "utility:1km", 300, 1),
    "third ring, 60 s": ("geolife", (39.87, 116.29, 39.97, 116.46), 0.5, "utility:1km", 60, 1),
    "centre": ("geolife", (39.895, 116.33, 39.945, 116.42), 0.5, "utility:1km", 300, 1),
    "Los Angeles": ("gowalla", (33.9, -118.5, 34.2, -118.1), 2.0, "utility:4km", 3600, 60),
}
# Epsilon of each release; None for the default, 3 in any 24 hours.
BUDGETS = (5.0, 1.0, 0.2, None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bbox", type=float, nargs=4, metavar=("S", "W", "N", "E"), help="region instead of the cities"
    )


def draw(options: argparse.Namespace) -> None:
    rows = []
    num_users = 2 if options.small else NUM_USERS
    for name in [*REGIONS][: 1 if options.small else None]:
        started = time.perf_counter()
        data, box, *_ = REGIONS[name]
        path, box = getattr(options, data), tuple(options.bbox or box)
        budgets = BUDGETS[1:2] if options.small else BUDGETS
        users = {budget: np.empty((0, 3)) for budget in budgets}
        for seed in range(options.seed, options.seed + options.runs):
            for budget, measured in measure(name, path, box, num_users, budgets, options.folder, seed).items():
                users[budget] = np.concatenate([users[budget], measured])
        for budget, values in users.items():
            true, stated, coverage = values.T
            rows.append([
                name, budget or "default", len(values), true.sum() / stated.sum(), coverage.mean(),
                1.96 * coverage.std(ddof=1) / len(values) ** 0.5, (coverage >= 0.8).mean(), spearmanr(stated, true)[0],
            ])  # fmt: skip
            print(*rows[-1])
        print(f"{name}: {time.perf_counter() - started:.0f} s")
    header = ["region", "epsilon", "users", "true_by_stated", "coverage", "half_width", "covered_users", "correlation"]
    write(options.folder / "PRIVATE-radii.csv", header, rows)


def measure(
    name: str,
    path: Path,
    box: tuple[float, ...],
    num_users: int,
    budgets: tuple[float | None, ...],
    folder: Path,
    seed: int,
) -> dict[float | None, np.ndarray]:
    """Return true and stated mean error (km), and the coverage, of each held-out user."""
    *_, cell, policy, step, minimum = REGIONS[name]
    tracks = Data((path,)).read().trajectories
    users = sorted(track.user for track in tracks if len(track) >= minimum)
    rng = np.random.default_rng(seed)
    held_out = tuple(rng.choice(users, num_users, replace=False).tolist())
    model = learn(Data((path,), exclude_users=held_out), region(bbox=box, cell_km=cell), step_seconds=step).model
    data = Data((path,), users=held_out)
    measured = {}
    for budget in budgets:
        schedule = Schedule(window_epsilon=3.0) if budget is None else None
        settings = ReleaseSettings(policy, 1.0 if budget is None else budget, schedule=schedule)
        file = folder / "releases.parquet"
        release(data, model, settings, file, rng=seed, overwrite=True)
        measured[budget] = np.array([
            (user.errors_km.mean(), user.stated_errors_km.mean(), user.coverage)
            for user in audit_utility(file, model, data).users
        ])  # fmt: skip
        file.unlink()
    return measured
