"""Releases of realistic phones per second: a constant budget and the default schedule.

The phones are those of users of the synthetic city, with stays, trips, missed fixes and hours without a phone, thinned
to bursts with irregular gaps. With the folder DPHMM_REAL_DATA also those of GeoLife: the first days with fixes of
held-out users, unchanged. Both settings release the same tracks in turn, in this process, and the order alternates. A
time is the fewest processor seconds of `release_trajectory` over the turns, without reading and writing. The first user
of each data set is not counted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from dphmm import ReleaseSettings, read
from dphmm.jobs.model.region import region
from dphmm.model.learning import fit_shrunk
from dphmm.model.model import MarkovModel
from dphmm.model.observed_moves import state_sequences
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from dphmm.release.trajectory_release import release_trajectory
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory
from scripts.benchmarks.report import Report

POLICY = "utility:1km"
SETTINGS = {
    "default: a budget of 3 in 24 h": ReleaseSettings.for_a_day(policy=POLICY),
    "constant ε = 1": ReleaseSettings(POLICY, 1.0),
}
BEIJING = (39.87, 116.29, 39.97, 116.46)
CELL_KM = 0.34
STEP_S = 300.0
# Length of a burst of fixes, and of the silence after it, in minutes: means of exponential distributions.
BURST_MINUTES = 40.0
SILENCE_MINUTES = 25.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-users", type=int, default=12, help="number of released users (default: 12)")
    parser.add_argument("--days", type=int, default=10, help="days of each user (default: 10)")


def run(report: Report, options: argparse.Namespace) -> None:
    num_users, days = (2, 1) if report.small else (options.num_users, options.days)
    city = build_city()
    users = sample_synthetic_trajectories(2 * num_users, days, STEP_S / 60, city=city)
    rng = np.random.default_rng(1)
    phones = [thin_to_bursts(track, rng) for track in users[:num_users]]
    measure(report, "synthetic city", phones, users[num_users:], city.box)
    real = os.environ.get("DPHMM_REAL_DATA")
    if report.small or not real:
        report.skip("GeoLife", "DPHMM_REAL_DATA is not set, or --small")
        return
    everyone = read(Path(real, "geolife/geolife_beijing.tar.gz")).trajectories
    order = np.random.default_rng(0).permutation(len(everyone)).tolist()
    tracks = [everyone[i] for i in order]
    phones = [select_first_days(track, days) for track in tracks[:num_users]]
    measure(report, "GeoLife", phones, tracks[num_users:], BEIJING)


def measure(
    report: Report,
    name: str,
    phones: Sequence[Trajectory],
    others: Sequence[Trajectory],
    box: tuple[float, float, float, float],
) -> None:
    """Add the rows per second of both settings, and the ratio of their times over users."""
    grid = region(bbox=box, cell_km=CELL_KM)
    assert isinstance(grid, Grid)
    model = fit_shrunk(state_sequences(others, grid, STEP_S), grid, STEP_S).model
    turns = max(2, report.repeats)
    seconds = []
    rows = 0
    sampled = 0
    for number, track in enumerate(phones):
        best = dict.fromkeys(SETTINGS, np.inf)
        for turn in range(turns):
            for setting in list(SETTINGS)[:: 1 if turn % 2 else -1]:
                took, count, drawn = release(model, track, SETTINGS[setting])
                best[setting] = min(best[setting], took)
                if number and not turn and SETTINGS[setting].schedule is not None:
                    sampled += drawn
                    rows += count
        if number:
            seconds.append(list(best.values()))
    scheduled, constant = np.array(seconds).sum(axis=0)
    report.row(
        f"{name}, {len(seconds)} users, {rows:,} rows, {model.size:,} states, default schedule",
        rows / scheduled,
        "rows/s",
        {"a constant ε of 1": rows / constant},
    )
    report.row("    time of the default by time of a constant ε", scheduled / constant, "x")
    report.row("    median over users", median(a / b for a, b in seconds), "x")
    report.row("    rows with a sampled location, default schedule", 100 * sampled / rows, "%")


def release(model: MarkovModel, track: Trajectory, settings: ReleaseSettings) -> tuple[float, int, int]:
    """Return processor seconds, rows and sampled locations of a release."""
    engine = settings.engine(model, rng=0)
    slotted = track.resample(model.step)
    begun = time.process_time()
    releases = list(release_trajectory(engine, model.space, slotted))
    took = time.process_time() - begun
    return took, len(releases), sum(not release.record.withheld for release in releases)


def thin_to_bursts(track: Trajectory, rng: np.random.Generator) -> Trajectory:
    """Return the fixes of a track in bursts, as a phone that saves power reports them."""
    minutes = (track.times - track.times[0]) / np.timedelta64(60, "s")
    lengths = rng.exponential([BURST_MINUTES, SILENCE_MINUTES], (2 + int(minutes[-1] / SILENCE_MINUTES), 2))
    ends = np.cumsum(lengths.ravel())
    kept = np.searchsorted(ends, minutes) % 2 == 0
    return Trajectory(track.user, track.times[kept], track.latitude[kept], track.longitude[kept])


def select_first_days(track: Trajectory, days: int) -> Trajectory:
    """Return the fixes of the first days of a track that have fixes."""
    dates = track.times.astype("datetime64[D]")
    return track.select_time_range(track.times[0], np.unique(dates)[:days][-1] + np.timedelta64(1, "D"))
