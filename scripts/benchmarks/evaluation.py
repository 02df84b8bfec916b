"""The default comparison with one worker and with two.

Each preset with data is run (3 policies, 20 sequences of 100 steps, after reading). The data default to those in the
folder DPHMM_REAL_DATA.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

from dphmm import Trajectory, read
from dphmm.evaluation.config import parse_config
from dphmm.evaluation.run import Evaluation
from dphmm.jobs.batch.workers import Processes
from scripts.benchmarks.report import ROOT, Report, get_processor_seconds, time_once

NO_SWEEPS = {"epsilons": [], "radii_km": [], "repairs": [], "mechanisms": []}
DATA = {"geolife": "geolife/geolife_beijing.tar.gz", "gowalla": "gowalla/loc-gowalla_LA.txt.gz"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for preset in DATA:
        parser.add_argument(f"--{preset}", metavar="PATH")


def run(report: Report, options: argparse.Namespace) -> None:
    for name, keys in build_comparisons(report, options).items():
        tracks = read(keys["data"][0], skip_bad=True).trajectories
        runs = [[time_comparison(keys, tracks, workers) for workers in (1, 2)] for _ in range(report.repeats)]
        for unit, kind in enumerate(("wall", "processor")):
            single, two = (median(run[workers][unit] for run in runs) for workers in (0, 1))
            report.row(f"default comparison, {name}, two workers, {kind}", two, "s", {"one worker": single})


def build_comparisons(report: Report, options: argparse.Namespace) -> dict[str, dict]:
    """Return name → configuration of presets with data. With --small, steps of the sample."""
    if report.small:
        few = {
            "bbox": [44.97, -30.04, 45.03, -29.96],
            "cell_km": 1.0,
            "step_seconds": 600.0,
            "sequences": 2,
            "length": 5,
        }
        return {"sample": {"data": [str(ROOT / "data" / "sample" / "geolife")], **few}}
    real, results = os.environ.get("DPHMM_REAL_DATA"), {}
    for preset, within in DATA.items():
        data = getattr(options, preset) or (real and str(Path(real, within)))
        if data:
            results[preset] = {"preset": preset, "data": [data]}
        else:
            report.skip(f"default comparison, {preset}", f"requires --{preset} PATH")
    return results


def time_comparison(keys: dict, tracks: tuple[Trajectory, ...], workers: int) -> tuple[float, float]:
    """Return wall and processor seconds of the default comparison with its workers' start."""
    config = parse_config({**keys, **NO_SWEEPS})
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Evaluation.open(config, Path(folder) / "run", lambda: tracks)) as evaluation,
    ):
        spent = get_processor_seconds()
        wall = time_once(lambda: sum(1 for _ in evaluation.run(Processes(workers))))
        return wall, get_processor_seconds() - spent
