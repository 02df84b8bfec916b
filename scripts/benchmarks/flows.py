"""Tables of flows of many users: processor time and memory of the command and its parts.

Each user moves between four places in a city of 22 km with cells of 1 km, in districts of four cells a side.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dphmm.flows.area_hierarchy import Forest
from scripts.benchmarks.report import Report

BOX = (45.0, 7.0, 45.2, 7.28)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-users", type=int, default=100_000)
    parser.add_argument("--moves", type=int, default=100, help="moves of each user")


def run(report: Report, options: argparse.Namespace) -> None:
    num_users, moves = (500, 50) if report.small else (options.num_users, options.moves)
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "moves.parquet", Path(folder) / "flows.parquet"
        write(data, num_users, moves)
        settings = Path(folder) / "settings.toml"
        settings.write_text("stay = 0\n", encoding="utf-8")
        where = [*map(str, ("--bbox", *BOX)), "--cell", "1", "--user-epsilon", "1", "--settings", str(settings)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "dphmm", "flows", str(data), *where, "-o", str(out)], check=True, capture_output=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report.row(f"dphmm flows, {num_users * moves:,} moves of {num_users:,} users: processor time", spent, "s")
    report.row("    peak memory", after.ru_maxrss / 2**20, "GiB")
    n = 60 if report.small else 529
    tree, counts = build_city_forest(n), np.random.default_rng(1)
    measured = [counts.laplace(0, 60, size) for size in tree.sizes]
    plain = partial(tree.estimate, measured, [7200.0] * 3)
    report.time(
        f"{n * n:,} flows: non-negative",
        partial(tree.estimate_nonnegative, measured, [7200.0] * 3),
        {"of any sign": plain},
    )


def write(path: Path, num_users: int, moves: int) -> None:
    rng = np.random.default_rng(0)
    positions = rng.random((num_users, 1, 2)) + rng.normal(0, 0.06, (num_users, 4, 2))
    at = np.clip(positions[np.arange(num_users)[:, None], rng.integers(0, 4, (num_users, moves))], 0, 1)
    south, west, north, east = BOX
    hours = (2 * np.arange(moves))[None] + rng.random((num_users, moves))
    columns = {
        "user": pa.array(np.repeat(np.arange(num_users), moves).astype(str)).dictionary_encode(),
        "time": np.datetime64("2024-03-04", "us") + (hours * 3600e6).astype("m8[us]").ravel(),
        "latitude": south + (north - south) * at[..., 0].ravel(),
        "longitude": west + (east - west) * at[..., 1].ravel(),
    }
    pq.write_table(pa.table(columns), path, row_group_size=500_000)


def build_city_forest(n: int) -> Forest:
    block = np.arange(n) // 16
    pairs = (block[:, None] * (block[-1] + 1) + block[None]).ravel()
    return Forest(n * n, [pairs, np.zeros(pairs.max() + 1, dtype=np.int64)])
