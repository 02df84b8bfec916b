"""What durability costs: a session's step against the engine's own and against an empty commit to the same disk.

Usage: python scripts/benchmark_session.py [FOLDER] [STATES ...]

FOLDER is on the disk to be measured (default: the current one); STATES are numbers of states (default: 100 1000 10000).
The three are measured in turn, one of each after the other, so that they meet the same disk. Prints medians of 400
rounds in milliseconds. "beyond the commit" is the durable step less the empty commit, and so holds the engine's own
work too; "added" is less that as well. Both may fall below zero: an empty commit lengthens its log each time until the
log comes round, which some file systems make dear, and a session's log is lengthened ahead.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dphmm import MarkovModel, Measurements, PolicyGraph, Releaser
from dphmm.release.ledger import Limits
from dphmm.release.session import Session

ROUNDS = 400


def engine(side: int, other: int) -> Releaser:
    """A grid of cells of 340 m in which a person moves to one of the nine cells around, under the policy of 1 km."""
    from scipy.sparse import diags_array, kron

    def line(length: int) -> object:
        return diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(length, length))

    moves = kron(line(other), line(side)).tocsr()
    moves = diags_array(1 / np.asarray(moves.sum(axis=1)).ravel()) @ moves
    x, y = np.meshgrid(np.arange(side), np.arange(other))
    points = Measurements(np.stack([x.ravel(), y.ravel()], axis=1) * 0.34)
    size = side * other
    model = MarkovModel(moves, np.full(size, 1 / size))
    return Releaser(model, points, PolicyGraph.utility(points, 1.0), 1.0)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def measure(folder: Path, states: int) -> tuple[float, float, float]:
    side = int(states**0.5)
    alone, kept = engine(side, states // side), engine(side, states // side)
    empty = sqlite3.connect(folder / f"empty{states}.db", isolation_level=None)
    empty.execute("PRAGMA journal_mode=WAL")
    empty.execute("PRAGMA synchronous=FULL")
    empty.execute("CREATE TABLE tally (value INTEGER)")
    empty.execute("INSERT INTO tally VALUES (0)")
    limits = Limits(epsilon=1e6, constrained_epsilon=1e9, window_epsilon=100, window_steps=24)
    taken: list[tuple[float, float, float]] = []
    with Session.open(folder / f"{states}.session", "benchmark", kept, limits) as session:
        for slot in range(ROUNDS + 20):
            state = slot % states
            commit = timed(lambda slot=slot: empty.execute("UPDATE tally SET value = ?", (slot,)))  # type: ignore[misc]
            step = timed(lambda state=state: alone.release(state))  # type: ignore[misc]
            durable = timed(lambda state=state, slot=slot: session.release(state, slot))  # type: ignore[misc]
            taken.append((commit, step, durable))
    empty.close()
    commits, steps, durables = zip(*taken[20:], strict=True)
    return statistics.median(commits), statistics.median(steps), statistics.median(durables)


def main() -> None:
    arguments = sys.argv[1:]
    folder = arguments.pop(0) if arguments and not arguments[0].isdigit() else "."
    print(f"{'states':>7} {'commit':>8} {'engine':>8} {'durable':>8} {'beyond commit':>14} {'added':>8} {'ratio':>6}")
    for states in [int(argument) for argument in arguments] or [100, 1_000, 10_000]:
        with tempfile.TemporaryDirectory(dir=folder) as here:
            commit, step, durable = measure(Path(here), states)
        beyond, added, ratio = durable - commit, durable - commit - step, durable / (commit + step)
        print(f"{states:7d} {commit:8.2f} {step:8.2f} {durable:8.2f} {beyond:14.2f} {added:8.2f} {ratio:6.2f}")


if __name__ == "__main__":
    main()
