#!/usr/bin/env python
"""How fast an evaluation and a batch are: one worker against two, steps a second, memory by users.

Prints, in one run: wall and processor time of the default comparison of each preset whose data are given (3 policies,
20 sequences of 100 steps, after reading), with one worker and with two, and their ratio; the steps a second of a batch
on one core with exact lattice noise, on invented people; and the peak memory of such a batch for few and many users.

    scripts/benchmark_evaluation.py [--geolife PATH] [--gowalla PATH]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from dphmm.evaluation.batch import BatchJob, check_job, release_everyone
from dphmm.evaluation.checkpoint import content_hash
from dphmm.evaluation.engines import Processes
from rich.console import Console
from rich.table import Table

from dphmm.evaluation.config import parse_config
from dphmm.evaluation.run import Evaluation, drain
from dphmm.markov.model import MarkovModel
from dphmm.readers import read
from dphmm.space.grid import Grid
from dphmm.space.trajectory import Trajectory

NO_SWEEPS = {"epsilons": [], "radii_km": [], "repairs": [], "mechanisms": []}
STEPS_PER_USER = 500
SIDE = 32


def processor_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def comparison(preset: str, path: str, people: tuple[Trajectory, ...], workers: int) -> tuple[float, float]:
    """Wall and processor seconds of the default comparison; the workers' start is in both."""
    config = parse_config({"preset": preset, "data": [path], **NO_SWEEPS})
    with tempfile.TemporaryDirectory() as folder:
        evaluation = Evaluation.open(config, Path(folder) / "run", lambda: people)
        wall, used = time.perf_counter(), processor_seconds()
        drain(evaluation.run(Processes(workers)))
        return time.perf_counter() - wall, processor_seconds() - used


def invented_model() -> MarkovModel:
    """A walk to the cells around, in a town of 1,024 cells of 340 m."""
    grid = Grid.over((45.0, -30.0, 45.0965, -29.8635), 0.34)
    column, row = grid.lattice.T
    near = (np.abs(column[:, None] - column) <= 1) & (np.abs(row[:, None] - row) <= 1)
    transition = near / near.sum(axis=1, keepdims=True)
    return MarkovModel(transition, np.full(grid.size, 1 / grid.size), grid, 60.0)


def invented_people(model: MarkovModel, count: int) -> Iterator[Trajectory]:
    """One person after another, none of them kept."""
    for number in range(count):
        rng = np.random.default_rng(number)
        state, states = int(rng.integers(model.size)), []
        for _ in range(STEPS_PER_USER):
            first, last = model.transition.indptr[state : state + 2]
            state = int(rng.choice(model.transition.indices[first:last]))
            states.append(state)
        places = model.states.latlon(np.array(states))
        times = np.datetime64("2024-03-01", "us") + np.arange(1, STEPS_PER_USER + 1) * np.timedelta64(60, "s")
        yield Trajectory(f"u{number}", times, places[:, 0], places[:, 1])


def batch(users: int) -> tuple[int, float, float, float]:
    """States, steps a processor second, steps a second, and peak memory in MiB of this process."""
    with tempfile.TemporaryDirectory() as folder:
        model, path = invented_model(), Path(folder) / "model.npz"
        model.save(path)
        job = BatchJob(folder, str(path), content_hash(path), "utility:1km", 1.0, kind="csv")
        check_job(job)
        warm = list(invented_people(model, 1))
        drain(done.releases for done in release_everyone(job, warm))
        spent = wall = steps = 0.0
        for person in invented_people(model, users + 1):
            begun, at = time.process_time(), time.perf_counter()
            steps += sum(done.releases for done in release_everyone(job, [person]))
            spent, wall = spent + time.process_time() - begun, wall + time.perf_counter() - at
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return model.size, steps / spent, steps / wall, peak


def batch_in_new_process(users: int) -> tuple[float, ...]:
    code = "import runpy, sys; print(*runpy.run_path(sys.argv[1])['batch'](int(sys.argv[2])))"
    line = [sys.executable, "-c", code, __file__, str(users)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    return tuple(float(word) for word in done.stdout.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geolife")
    parser.add_argument("--gowalla")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    console = Console()
    table = Table(title=f"Default comparison, 6,000 steps (medians of {options.repeats}; seconds)")
    for column in (
        "preset",
        "reading",
        "1 worker, wall",
        "2 workers, wall",
        "speed-up",
        "processor, 1",
        "processor, 2",
    ):
        table.add_column(column, justify="right")
    for preset in ("geolife", "gowalla"):
        path = getattr(options, preset)
        if path is None:
            continue
        begun = time.perf_counter()
        people = read(path).trajectories
        reading = time.perf_counter() - begun
        runs = [[comparison(preset, path, people, workers) for workers in (1, 2)] for _ in range(options.repeats)]
        one, two = (median(run[k][0] for run in runs) for k in (0, 1))
        cpu = [f"{median(run[k][1] for run in runs):.1f}" for k in (0, 1)]
        table.add_row(preset, f"{reading:.1f}", f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}", *cpu)
    if table.row_count:
        console.print(table)
    found = {users: batch_in_new_process(users) for users in (4, 40)}
    size, per_processor, per_second, _ = found[40]
    console.print(f"Batch, lattice noise, utility:1km, {size:,.0f} states, one core, CSV files written:")
    console.print(f"  {per_processor:,.0f} steps a processor second, {per_second:,.0f} a second")
    for users, (_, _, _, peak) in found.items():
        console.print(f"  peak memory with {users} users of {STEPS_PER_USER} steps: {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
