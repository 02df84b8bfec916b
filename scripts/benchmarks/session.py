"""Cost of durability: a session's step compared with the engine's and an empty commit.

The three are measured alternately on the same disk; results are medians of 400 rounds. "Added" is the durable step
minus the commit and the engine's step.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from pathlib import Path
from statistics import median

from dphmm.release.session import Session
from dphmm.release.session_limits import Limits
from scripts.benchmarks.report import Report, time_once
from scripts.benchmarks.town import make_releaser

UNCOUNTED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="folder on the measured disk (default: .)")
    parser.add_argument("--largest", type=int, default=10_000, metavar="STATES", help="default: 10000")


def run(report: Report, options: argparse.Namespace) -> None:
    for side in (10, 32, 100):
        if side == 10 or (side**2 <= options.largest and not report.small):
            with tempfile.TemporaryDirectory(dir=options.folder) as here:
                commit, step, durable = measure(Path(here), side, 40 if report.small else 400)
            beside = {"an empty commit": commit, "the engine's step": step, "both together": commit + step}
            report.row(f"durable step, {side * side:,} states", durable, "ms", beside)
            report.row("    added", durable - commit - step, "ms")


def measure(folder: Path, side: int, rounds: int) -> tuple[float, float, float]:
    """Return median milliseconds of an empty commit, an engine's step and a session's step."""
    alone = make_releaser(side)
    kept = make_releaser(side)
    states = side * side
    empty = sqlite3.connect(folder / "empty.db", isolation_level=None)
    empty.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE tally (value INTEGER)")
    empty.execute("INSERT INTO tally VALUES (0)")
    limits = Limits(epsilon=1e6, constrained_epsilon=1e9, window_epsilon=100, window_steps=24)
    taken = []
    with Session.open(folder / "kept.session", "benchmark", kept, limits) as session:
        for slot in range(rounds + UNCOUNTED):
            state = slot % states
            turns = (
                lambda slot=slot: empty.execute("UPDATE tally SET value = ?", (slot,)),
                lambda state=state: alone.release(state),
                lambda state=state, slot=slot: session.release(state, slot),
            )
            taken.append([1e3 * time_once(turn) for turn in turns])
    empty.close()
    commit, step, durable = map(median, zip(*taken[UNCOUNTED:], strict=True))
    return commit, step, durable
