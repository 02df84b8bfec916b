"""Flows, learning, batches and audits by number of fixes, on processes and on Dask.

The users live in the synthetic city and report their location every minute, in bursts. They are read from a Parquet
file. Audits read the releases of a batch of these users. The audit of identity also reads fixes of the same users from
a week before, and compares each user with each candidate. Its time is therefore quadratic in the number of users.

Each run is a separate process, and its results must equal those of the other runs of its size. The efficiency of
two workers is the time of one process by twice the time of two. They share the processors with the process that reads
the data. The slope is that of the logarithms of time and fixes between two sizes; from the largest size the time of
10⁸ fixes is extrapolated with it. A peak includes memory that a worker shares with its parent.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from math import log
from pathlib import Path
from shutil import rmtree
from statistics import median

import numpy as np
from pyarrow import parquet

from dphmm.flows import Areas, FlowSettings
from dphmm.jobs.audit.events import audit_event
from dphmm.jobs.audit.identity import audit_identity
from dphmm.jobs.audit.session import audit_session
from dphmm.jobs.audit.utility import audit_utility
from dphmm.jobs.batch.batch import batch
from dphmm.jobs.batch.run_folder import read_journal
from dphmm.jobs.batch.workers import DaskCluster, Engine, Processes
from dphmm.jobs.flows import flows
from dphmm.jobs.model.learn import learn
from dphmm.jobs.model.region import region
from dphmm.readers.synthetic_city import build_city, sample_synthetic_trajectories
from dphmm.release.engine import ReleaseSettings
from dphmm.space.grid import Grid
from scripts.benchmarks.batch import SCHEMA, build_rows
from scripts.benchmarks.phones import CELL_KM, STEP_S, thin_to_bursts
from scripts.benchmarks.report import MAX_REPEATED_SECONDS, Report, get_peak_mib, run_in_new_process

DAYS = 2
USERS_AT_ONCE = 50
EXTRAPOLATED_FIXES = 10**8
RELEASES = "releases"
ENGINES = ("one process", "two processes", "Dask, two workers")
ONE, TWO, DASK = ENGINES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fixes", type=int, nargs="+", default=[10**5, 10**6], help="sizes, ascending (default: 100000 1000000)"
    )
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="jobs to measure (default: all)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES, help="workers (default: all)")


def run(report: Report, options: argparse.Namespace) -> None:
    sizes = (2_000, 2_200) if report.small else tuple(options.fixes)
    durations: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_users(Path(folder, "others.parquet"), 3_000 if report.small else 10**5, first=10**6)
        learn(f"{folder}/others.parquet", build_space(), STEP_S, calibrate_radii=False, output=f"{folder}/model.npz")
        for size in sizes:
            num_users = write_users(Path(folder, "users.parquet"), size)
            if any(job.startswith("audit") for job in options.jobs):
                write_users(Path(folder, "earlier.parquet"), size, days_before=7)
                if "batch" not in options.jobs:
                    run_batch(folder, Processes(1 if report.small else None))
            for job in options.jobs:
                engines = [engine for engine in ENGINES if engine in options.engines]
                if report.small:
                    engines = [ONE, DASK] if job == "batch" else [ONE]
                measured = [measure(report, folder, job, engine) for engine in engines]
                digests = {digest for _, digest, _, _ in measured}
                assert len(digests) == 1, f"{job}: results depend on the workers"
                times = {engine: wall for engine, (wall, _, _, _) in zip(engines, measured, strict=True)}
                what = f"{job}, {size:,} fixes of {num_users:,} users"
                report.row(f"{what}, {engines[0]}", measured[0][0], "s", {name: times[name] for name in engines[1:]})
                for engine, (wall, _, parent, worker) in zip(engines, measured, strict=True):
                    durations.setdefault((job, engine), []).append(wall)
                    if engine != ONE and ONE in times:
                        report.row(f"    efficiency, {engine}", times[ONE] / (2 * wall), "of the ideal")
                    report.row(f"    peak memory of the parent, {engine}", parent, "MiB")
                    if engine != ONE:
                        report.row(f"    peak memory of a worker, {engine}", worker, "MiB")
    for (job, engine), seconds in durations.items():
        for (size, wall), (next_size, next_wall) in pairwise(zip(sizes, seconds, strict=True)):
            slope = log(next_wall / wall) / log(next_size / size)
            report.row(f"{job}, {engine}: slope from {size:,} to {next_size:,} fixes", slope, "")
        if len(sizes) > 1:
            hours = seconds[-1] * (EXTRAPOLATED_FIXES / sizes[-1]) ** slope / 3600
            report.row(f"    extrapolated to {EXTRAPOLATED_FIXES:,} fixes", hours, "h")


def build_space() -> Grid:
    grid = region(bbox=build_city().box, cell_km=CELL_KM)
    assert isinstance(grid, Grid)
    return grid


def write_users(file: Path, num_fixes: int, first: int = 0, days_before: int = 0) -> int:
    """Write fixes of synthetic users, some days earlier. Return the number of users."""
    city, rng = build_city(), np.random.default_rng(first)
    num_users = count = 0
    with parquet.ParquetWriter(file, SCHEMA) as writer:
        while count < num_fixes:
            tracks = []
            for track in sample_synthetic_trajectories(USERS_AT_ONCE, DAYS, 1.0, city=city, rng=first + num_users):
                phone = thin_to_bursts(track, rng)
                earlier = phone.times - np.timedelta64(days_before, "D")
                tracks.append(replace(phone, user=f"u{first + num_users}", times=earlier))
                num_users += 1
                count += len(phone)
                if count >= num_fixes:
                    break
            writer.write_table(build_rows(tracks))
    return num_users


def run_flows(folder: str, engine: Engine) -> object:
    settings = FlowSettings("visits,flows", visits_per_user=20, trips_per_user=10)
    tables = flows(f"{folder}/users.parquet", Areas.from_space(build_space()), 1, settings, rng=1, engine=engine).tables
    return [tables[name].counts.tobytes() for name in sorted(tables)]


def run_learning(folder: str, engine: Engine) -> object:
    return learn(f"{folder}/users.parquet", build_space(), STEP_S, engine=engine).model.content_hash


def run_batch(folder: str, engine: Engine) -> object:
    """Release all users, to a folder that audits read. Return the hash of each user's file."""
    data, model, out = (f"{folder}/{name}" for name in ("users.parquet", "model.npz", RELEASES))
    rmtree(out, ignore_errors=True)
    batch(data, out, model, ReleaseSettings("utility:1km", 1.0), rng=1, engine=engine)
    return [(entry.user, entry.sha256) for entry in read_journal(Path(out))]


def run_session_audit(folder: str, engine: Engine) -> object:
    paths = f"{folder}/{RELEASES}", f"{folder}/model.npz"
    audit = audit_session(*paths, keep_beliefs=False, engine=engine)
    return [(user.user, float(user.smoothed_metrics.entropy.sum())) for user in audit.audits]


def run_event_audit(folder: str, engine: Engine) -> object:
    state = build_space().size // 2
    audit = audit_event(f"{folder}/{RELEASES}", f"{folder}/model.npz", f"at:{state} between 5 and 30", engine=engine)
    return [float(user.log_odds_change[-1]) for audits in audit.audits for user in audits]


def run_identity_audit(folder: str, engine: Engine) -> object:
    paths = f"{folder}/{RELEASES}", f"{folder}/model.npz", f"{folder}/earlier.parquet"
    return [float(user.log_evidence.sum()) for user in audit_identity(*paths, engine=engine).users]


def run_utility_audit(folder: str, engine: Engine) -> object:
    paths = f"{folder}/{RELEASES}", f"{folder}/model.npz", f"{folder}/users.parquet"
    return [float(user.errors_km.sum()) for user in audit_utility(*paths, engine=engine).users]


JOBS: dict[str, Callable[[str, Engine], object]] = {
    "flows": run_flows,
    "learn": run_learning,
    "batch": run_batch,
    "audit session": run_session_audit,
    "audit event": run_event_audit,
    "audit identity": run_identity_audit,
    "audit utility": run_utility_audit,
}


def measure(report: Report, folder: str, job: str, engine: str) -> tuple[float, str, float, float]:
    """Return seconds, a digest of the results, and the peaks of parent and worker in MiB."""
    durations: list[float] = []
    while not durations or (len(durations) < report.repeats and durations[0] < MAX_REPEATED_SECONDS):
        with start_cluster(report.small) if engine == DASK else nullcontext(("", ())) as (address, workers):
            if report.small:  # in this process: starting another takes longer
                wall, digest = run_job(folder, job, engine, address)
                parent = worker = get_peak_mib()
            else:
                peaks = [0.0]

                def record_peaks(pid: int, peaks: list[float] = peaks, workers: Sequence[int] = workers) -> None:
                    peaks.extend(map(get_peak_mib, workers or find_children(pid)))

                place = (folder, job, engine, address)
                (wall, digest), parent = run_in_new_process(__name__, "run_job", *place, look=record_peaks)
                worker = max(peaks)
        durations.append(wall)
    return median(durations), digest, parent, worker


def run_job(folder: str, job: str, engine: str, address: str) -> tuple[float, str]:
    """Run a job. Return seconds and a digest of its results."""
    crew = DaskCluster(address) if address else Processes(1 + (engine == TWO))
    started = time.perf_counter()
    results = JOBS[job](folder, crew)
    return time.perf_counter() - started, hashlib.sha256(repr(results).encode()).hexdigest()


def start_cluster(small: bool) -> AbstractContextManager[tuple[str, tuple[int, ...]]]:
    """Return a context with the address and the processes of a cluster of two workers."""

    @contextmanager
    def start_cluster() -> Iterator[tuple[str, tuple[int, ...]]]:
        import distributed

        # A small run takes less time than the start of processes.
        place = {"processes": False, "protocol": "inproc://"} if small else {"processes": True, "protocol": "tcp://"}
        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", **place) as cluster:
            pids = () if small else tuple(worker.pid for worker in cluster.workers.values())
            with distributed.Client(
                cluster, set_as_default=False
            ) as client:  # a cluster imports once, not for each run
                for job in ("flows", "model.training_data", "batch.batch", "audit.events", "audit.identity"):
                    client.run(importlib.import_module, f"dphmm.jobs.{job}")
            yield cluster.scheduler_address, pids

    return start_cluster()


def find_children(pid: int) -> list[int]:
    """Return the processes that a process has started. Empty if the system does not list them."""
    try:
        lists = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
        return [int(child) for children in lists for child in children.split()]
    except OSError:
        return []
