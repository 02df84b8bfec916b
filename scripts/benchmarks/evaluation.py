"""The default comparison with one worker and with two; a batch's steps a second, and its memory by users.

The comparison is that of each preset whose data are given (3 policies, 20 sequences of 100 steps, after reading). The
batch releases invented people on one core with exact lattice noise, beside the engine's steps alone: what is added is
the resampling, the posterior, and the files. Where no data are named, those in the folder DPHMM_REAL_DATA are taken.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from dphmm import Grid, MarkovModel, Trajectory, read
from dphmm.evaluation.config import parse_config
from dphmm.evaluation.run import Evaluation
from dphmm.jobs.batches import BatchJob, release_everyone
from dphmm.jobs.published import Published
from dphmm.jobs.secret import folder_key
from dphmm.jobs.workers import Processes
from dphmm.release.settings import ReleaseSettings
from scripts.benchmarks.report import ROOT, Report, in_new_process, once
from scripts.benchmarks.town import path, releaser, walk

NO_SWEEPS = {"epsilons": [], "radii_km": [], "repairs": [], "mechanisms": []}
DATA = {"geolife": "geolife/geolife_beijing.tar.gz", "gowalla": "gowalla/loc-gowalla_LA.txt.gz"}
SIDE = 32


def arguments(parser: argparse.ArgumentParser) -> None:
    for preset in DATA:
        parser.add_argument(f"--{preset}", metavar="PATH")


def run(report: Report, options: argparse.Namespace) -> None:
    for name, keys in comparisons(report, options).items():
        people = read(keys["data"][0], skip_bad=True).trajectories
        runs = [[comparison(keys, people, workers) for workers in (1, 2)] for _ in range(report.repeats)]
        for unit, kind in enumerate(("wall", "processor")):
            one, two = (median(run[workers][unit] for run in runs) for workers in (0, 1))
            report.row(f"default comparison, {name}, two workers, {kind}", two, "s", {"one worker": one})
    steps = 20 if report.small else 500
    for users in (1,) if report.small else (4, 40):
        (wall, spent), peak = in_new_process(__name__, "batch", users, steps)
        report.row(
            f"batch of {users} users, {steps} steps each", wall, "steps/s", {"the engine alone": alone(users * steps)}
        )
        report.row("    in processor time", spent, "steps/s")
        report.row("    peak memory", peak, "MiB")


def comparisons(report: Report, options: argparse.Namespace) -> dict[str, dict]:
    """Name → configuration, for the presets whose data are there; with --small, a few steps of the sample."""
    if report.small:
        few = {
            "bbox": [44.97, -30.04, 45.03, -29.96],
            "cell_km": 1.0,
            "step_seconds": 600.0,
            "sequences": 2,
            "length": 5,
        }
        return {"sample": {"data": [str(ROOT / "data" / "sample" / "geolife")], **few}}
    real, found = os.environ.get("DPHMM_REAL_DATA"), {}
    for preset, within in DATA.items():
        data = getattr(options, preset) or (real and str(Path(real, within)))
        if data:
            found[preset] = {"preset": preset, "data": [data]}
        else:
            report.skip(f"default comparison, {preset}", f"give --{preset} PATH")
    return found


def processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def comparison(keys: dict, people: tuple[Trajectory, ...], workers: int) -> tuple[float, float]:
    """Wall and processor seconds of the default comparison; the workers' start is in both."""
    config = parse_config({**keys, **NO_SWEEPS})
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Evaluation.open(config, Path(folder) / "run", lambda: people)) as evaluation,
    ):
        spent = processor_seconds()
        wall = once(lambda: sum(1 for _ in evaluation.run(Processes(workers))))
        return wall, processor_seconds() - spent


def people(model: MarkovModel, count: int, steps: int) -> Iterator[Trajectory]:
    """One person after another, none of them kept."""
    for number in range(count):
        places = model.states.latlon(np.array(path(model, steps, np.random.default_rng(number))))
        times = np.datetime64("2024-03-01", "us") + np.arange(steps) * np.timedelta64(60, "s")
        yield Trajectory(f"u{number}", times, places[:, 0], places[:, 1])


def batch(users: int, steps: int) -> tuple[float, float]:
    """Steps a second and steps a processor second; the first user, who finds nothing warm, is not counted."""
    grid = Grid.over((45.0, -30.0, 45.0965, -29.8635), 0.34)
    model = MarkovModel(walk(SIDE, SIDE), np.full(grid.size, 1 / grid.size), grid, 60.0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        model.save(file)
        settings = ReleaseSettings("utility:1km", 1.0)
        job = BatchJob(folder, str(file), model.content_hash, settings, kind="csv", key=folder_key(Path(folder)))
        published = Published(Path(folder), "csv")
        wall = spent = done = 0.0
        for number, person in enumerate(people(model, users + 1, steps)):
            began = time.perf_counter(), time.process_time()
            released = sum(one.releases for one in release_everyone(job, [person], Processes(1), published))
            if number:
                wall, spent = wall + time.perf_counter() - began[0], spent + time.process_time() - began[1]
                done += released
        return done / wall, done / spent


def alone(steps: int) -> float:
    """Steps a second of the engine by itself, everything possible."""
    engine = releaser(SIDE)
    for state in path(engine.model, 20, np.random.default_rng(0)):
        engine.release(state)
    states = path(engine.model, min(steps, 500), np.random.default_rng(0))
    return len(states) / once(partial(list, map(engine.release, states)))
