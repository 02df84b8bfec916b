"""A batch with one and two workers, its memory by users, and its steps per second.

The first runs include everything from reading a Parquet file of synthetic users to the last output, each in a separate
process. Few users with short jobs show the start of workers; longer jobs follow; many users with a few releases each
show the memory per user. Steps per second are compared with the engine without resampling, posterior and files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from dphmm import Grid, MarkovModel, Trajectory
from dphmm.jobs.batch.batch import BatchJob, batch, release_everyone
from dphmm.jobs.batch.run_folder import Published, load_or_create_key
from dphmm.jobs.batch.workers import Processes
from dphmm.release.engine import ReleaseSettings
from scripts.benchmarks.report import Report, get_peak_mib, get_processor_seconds, time_once
from scripts.benchmarks.town import make_releaser, sample_path, walk

SIDE = 32
SETTINGS = ReleaseSettings("utility:1km", 1.0)
LOOK_S = 0.2
SCHEMA = pa.schema(
    {"user": pa.string(), "time": pa.timestamp("us", "UTC"), "latitude": pa.float64(), "longitude": pa.float64()}
)


def run(report: Report, options: argparse.Namespace) -> None:  # noqa: ARG001 - every stage has this signature
    for users, steps in ((6, 10),) if report.small else ((50, 100), (50, 1_000)):
        runs = [
            [run_crowd(report, users, steps, SIDE, workers)[0] for workers in (1, 2)] for _ in range(report.repeats)
        ]
        for place, kind in enumerate(("wall", "processor")):
            single, two = (median(run[workers][place] for run in runs) for workers in (0, 1))
            report.row(
                f"batch of {users} users, {steps} steps each, two workers, {kind}", two, "s", {"one worker": single}
            )
    for users in (20,) if report.small else (1_000, 10_000):
        (wall, _, worker), parent = run_crowd(report, users, 5, 10, 2)
        report.row(f"batch of {users} users, 5 steps each, two workers", users / wall, "users/s")
        report.row("    peak memory of the parent", parent, "MiB")
        report.row("    peak memory of a worker, including shared memory", worker, "MiB")
    steps = 20 if report.small else 500
    for users in (1,) if report.small else (4, 40):
        (wall, spent), peak = report.run_apart(__name__, "batch_here", users, steps)
        report.row(
            f"batch of {users} users, {steps} steps each",
            wall,
            "steps/s",
            {"the engine alone": measure_engine_alone(users * steps)},
        )
        report.row("    in processor time", spent, "steps/s")
        report.row("    peak memory", peak, "MiB")


def build_town(side: int) -> MarkovModel:
    grid = Grid.over((45.0, -30.0, 45.0 + 0.003015 * side, -30.0 + 0.004265 * side), 0.34)
    return MarkovModel(walk(side, side), np.full(grid.size, 1 / grid.size), grid, 60.0)


def generate_users(model: MarkovModel, count: int, steps: int) -> Iterator[Trajectory]:
    """Yield synthetic users one by one."""
    for number in range(count):
        places = model.states.latlon(np.array(sample_path(model, steps, np.random.default_rng(number))))
        times = np.datetime64("2024-03-01", "us") + np.arange(steps) * np.timedelta64(60, "s")
        yield Trajectory(f"u{number}", times, places[:, 0], places[:, 1])


def run_crowd(
    report: Report, users: int, steps: int, side: int, workers: int
) -> tuple[tuple[float, float, float], float]:
    """Return the result of `whole_batch` for synthetic users and its process's peak in MiB."""
    model = build_town(side)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.npz")
        with parquet.ParquetWriter(Path(folder) / "users.parquet", SCHEMA) as writer:
            everyone = generate_users(model, users, steps)
            while chunk := [trajectory for _, trajectory in zip(range(100), everyone, strict=False)]:
                writer.write_table(build_rows(chunk))
        return report.run_apart(__name__, "whole_batch", folder, workers)


def build_rows(trajectories: Iterable[Trajectory]) -> pa.Table:
    columns = zip(
        *((np.repeat(track.user, len(track)), track.times, track.latitude, track.longitude) for track in trajectories),
        strict=True,
    )
    return pa.table(dict(zip(SCHEMA.names, map(np.concatenate, columns), strict=True))).cast(SCHEMA)


def whole_batch(folder: str, workers: int) -> tuple[float, float, float]:
    """Return wall and processor seconds of a batch with workers, and a worker's peak in MiB."""
    peaks, looked = [0.0], 0.0

    def watch_memory(items, what, total=None):  # noqa: ARG001 - a ProgressCallback
        nonlocal looked
        for item in items:
            if time.perf_counter() > looked + LOOK_S:
                peaks.extend(get_peak_mib(child.pid) for child in multiprocessing.active_children())
                looked = time.perf_counter()
            yield item

    files, spent = (f"{folder}/users.parquet", f"{folder}/out", f"{folder}/model.npz"), get_processor_seconds()
    wall = time_once(lambda: batch(*files, SETTINGS, workers=workers, watch=watch_memory))
    return wall, get_processor_seconds() - spent, max(peaks)


def batch_here(users: int, steps: int) -> tuple[float, float]:
    """Return steps per second and per processor second, without the first user (warm-up)."""
    model = build_town(SIDE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        model.save(file)
        job = BatchJob(
            folder, str(file), model.content_hash, SETTINGS, kind="csv", key=load_or_create_key(Path(folder))
        )
        published = Published(Path(folder), "csv")
        wall = spent = done = 0.0
        for number, trajectory in enumerate(generate_users(model, users + 1, steps)):
            began = time.perf_counter(), time.process_time()
            released = sum(
                outcome.entry.releases for outcome in release_everyone(job, [trajectory], Processes(1), published)
            )
            if number:
                wall, spent = wall + time.perf_counter() - began[0], spent + time.process_time() - began[1]
                done += released
        return done / wall, done / spent


def measure_engine_alone(steps: int) -> float:
    """Return steps per second of the engine alone, with all states possible."""
    engine = make_releaser(SIDE)
    for state in sample_path(engine.model, 20, np.random.default_rng(0)):
        engine.release(state)
    states = sample_path(engine.model, min(steps, 500), np.random.default_rng(0))
    return len(states) / time_once(partial(list, map(engine.release, states)))
