"""Points per second of each reader and of its line-by-line form, and Parquet in 2 orders.

The files default to GeoLife and Gowalla in the folder DPHMM_REAL_DATA. If it is not set, or with --small, the sample of
the repository is read. Processor time depends least on the load of the machine.

Parquet files of 10^5 to 10^7 fixes are read user by user, in order of time and sorted by user: seconds until the first
user and until the last one, peak memory, and the growth of the time with the number of fixes (1: linear).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from functools import partial
from math import log
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dphmm import read
from dphmm.jobs.input_data import Data
from dphmm.readers import delimited_data_sets, fix_tables
from scripts.benchmarks.report import ROOT, Report, time_median


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=Path, help="files or folders to read instead")
    parser.add_argument("--fixes", type=int, nargs="*", default=[10**5, 10**6, 10**7], help="sizes of Parquet files")


def run(report: Report, options: argparse.Namespace) -> None:
    for path in options.files or list_inputs(report.small):
        dataset = read(path)
        points, again = dataset.points + dataset.merged, partial(read, path)
        quick = points / time_median(again, report.repeats, time.process_time)
        beside = {}
        if path.suffix != ".csv":
            with (
                mock.patch.object(delimited_data_sets, "_parse_geolife_block", refuse),
                mock.patch.object(delimited_data_sets, "_parse_checkin_block", refuse),
            ):
                beside["line by line"] = points / time_median(again, 1, time.process_time)
        report.row(f"{path.name}, {points:,} points", quick, "points/s", beside)

    run_orders(report, [20_000, 40_000] if report.small else options.fixes)


def run_orders(report: Report, sizes: list[int]) -> None:
    """Report seconds and memory of Parquet files in order of time and sorted by user."""
    totals: dict[str, list[float]] = {"time": [], "user": []}
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            results: dict[str, list[tuple[list[float], float]]] = {order: [] for order in totals}
            for order in totals:
                write_fixes(Path(folder, f"{order}.parquet"), size, size // 100, order)
            for _ in range(min(report.repeats, 3)):
                for order, runs in results.items():
                    runs.append(report.run_apart(__name__, "read_users", folder, order, report.small))
            medians = {order: np.median([spent for spent, _ in runs], axis=0) for order, runs in results.items()}
            memory = {order: max(peak for _, peak in runs) for order, runs in results.items()}
            what = f"{size:,} fixes of {size // 100:,} users in order of time: peak memory"
            report.row(what, memory["time"], "MiB", {"sorted by user": memory["user"]})
            for at, end in enumerate(("first user", "first user, processor", "last user", "last user, processor")):
                report.row(f"    until the {end}", medians["time"][at], "s", {"sorted by user": medians["user"][at]})
            for order, values in totals.items():
                values.append(medians[order][3])
    for order, values in totals.items():
        for at in range(1, len(sizes)):
            growth = log(values[at] / values[at - 1]) / log(sizes[at] / sizes[at - 1])
            report.row(f"growth from {sizes[at - 1]:,} to {sizes[at]:,} fixes, by {order}", growth, "(1: linear)")


def write_fixes(path: Path, count: int, users: int, order: str) -> None:
    """Write fixes of random users at random times, in order of "time" or of "user"."""
    rng = np.random.default_rng(0)
    owner = rng.integers(0, users, count)
    times = np.datetime64("2024-03-04", "us") + np.sort(rng.integers(0, 30 * 86_400 * 10**6, count)).astype("m8[us]")
    rows = np.argsort(owner, kind="stable") if order == "user" else np.arange(count)
    columns = {
        "user": np.char.add("user", owner.astype(str))[rows],
        "time": times[rows],
        "latitude": 45 + rng.random(count)[rows],
        "longitude": 7 + rng.random(count)[rows],
    }
    pq.write_table(pa.table(columns), path)


def read_users(folder: str, order: str, small: bool) -> list[float]:
    """Return wall and processor seconds until the first and the last user."""
    wall, processor = time.perf_counter(), time.process_time()
    first: list[float] = []
    with mock.patch.object(fix_tables, "MAX_FIXES", 10_000 if small else fix_tables.MAX_FIXES):
        for _ in Data((str(Path(folder, f"{order}.parquet")),)).stream_by_path(lambda _: None):
            first = first or [time.perf_counter() - wall, time.process_time() - processor]
    return [*first, time.perf_counter() - wall, time.process_time() - processor]


def refuse(*_: object, **__: object) -> None:
    raise ValueError("sent to the line-by-line form")


def list_inputs(small: bool) -> list[Path]:
    real, sample = os.environ.get("DPHMM_REAL_DATA"), ROOT / "data" / "sample"
    if real and not small:
        return [Path(real, "geolife/geolife_beijing.tar.gz"), Path(real, "gowalla/loc-gowalla_LA.txt.gz")]
    return [sample / "geolife", sample / "checkins.txt.gz", sample / "table.csv"]
