"""Times of the leakage stage beside a linear program per pair of rows and the published algorithms, in one run.

Usage: python scripts/benchmark_leakage.py [--large] [--repeats N]

Each line: what, the median wall time, the median processor time, and the ratio of wall times to the form that it is
compared with, which is the line before it (plain Python for the published algorithms). ``--large`` adds n = 5 000 (some
minutes). Matrices are random with uniform entries unless the line says otherwise; α = 1 unless it says otherwise.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from dphmm.leakage import LossFunction, backward, constant_budget, exact_budgets, loss, smooth, supremum

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.leakage import published


def matrix(n: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).random((n, n))
    return weights / weights.sum(axis=1, keepdims=True)


def mobility(n: int, hub: bool) -> sp.csr_array:
    """A grid walker's matrix: stay or one of eight neighbours; with ``hub`` every state also leads to state 0."""
    side = math.isqrt(n)
    row, column = np.divmod(np.arange(n), side)
    rows, columns = [], []
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            inside = (row + down >= 0) & (row + down < side) & (column + right >= 0) & (column + right < side)
            rows.append(np.flatnonzero(inside))
            columns.append((row + down)[inside] * side + (column + right)[inside])
    if hub:
        rows.append(np.arange(n))
        columns.append(np.zeros(n, dtype=np.int64))
    at = np.concatenate(rows), np.concatenate(columns)
    weights = sp.csr_array((np.random.default_rng(1).random(at[0].size) + 0.05, at), shape=(n, n))
    return sp.csr_array(sp.diags_array(1 / weights.sum(axis=1)) @ weights)


def linear_programs(rows: np.ndarray, alpha: float) -> float:
    n, grown = len(rows), math.exp(alpha)
    above = np.hstack([np.eye(n), np.full((n, 1), -grown)])
    bounds = np.vstack([above, np.hstack([-np.eye(n), np.ones((n, 1))])])
    best = 1.0
    for q, d in permutations(rows, 2):
        found = linprog(-np.append(q, 0), bounds, np.zeros(2 * n), [np.append(d, 0)], [1.0], method="highs")
        best = max(best, -found.fun)
    return math.log(best)


def medians(task: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median wall time and median processor time (of all threads; comparable also on a busy machine)."""
    walls, processor = [], []
    for _ in range(repeats):
        wall, spent = time.perf_counter(), time.process_time()
        task()
        walls.append(time.perf_counter() - wall)
        processor.append(time.process_time() - spent)
    return statistics.median(walls), statistics.median(processor)


class Report:
    def __init__(self, repeats: int) -> None:
        self.repeats = repeats

    def line(
        self, what: str, task: Callable[[], object], beside: float | None = None, repeats: int | None = None
    ) -> float:
        seconds, processor = medians(task, repeats or self.repeats)
        ratio = "" if beside is None else f"   {beside / seconds:>8.0f} x"
        print(f"{what:<66}{seconds:>11.5f} s {processor:>11.5f} s{ratio}", flush=True)
        return seconds


def small(report: Report) -> None:
    twelve = matrix(12)
    slow = report.line("n = 12, a linear program per pair (HiGHS)", lambda: linear_programs(twelve, 1.0), repeats=3)
    report.line("n = 12, loss", lambda: loss(twelve, 1.0), slow)
    assert abs(linear_programs(twelve, 1.0) - loss(twelve, 1.0)) < 1e-9
    for n in (50, 100, 200):
        rows = matrix(n)
        slow = report.line(f"n = {n}, Algorithm 1", lambda r=rows: published.algorithm_1(r, 1.0), repeats=1)
        report.line(f"n = {n}, loss", lambda r=rows: loss(r, 1.0), slow)
        assert abs(published.algorithm_1(rows, 1.0) - loss(rows, 1.0)) < 1e-9
    hundred, two_hundred = matrix(100), matrix(200)

    def built() -> None:
        pairs = published.algorithm_2(hundred)
        published.algorithm_4(pairs, 1e-6, 10.0)

    slow = report.line("n = 100, Algorithms 2 and 4 to α = 10", built, repeats=1)
    report.line("n = 100, LossFunction to α = 10", lambda: LossFunction(hundred, limit=10.0), slow)
    report.line("n = 200, LossFunction to α = 10", lambda: LossFunction(two_hundred, limit=10.0))
    report.line("n = 200, LossFunction for every α", lambda: LossFunction(two_hundred))
    report.line("n = 200, supremum at ε = 1, built anew", lambda: supremum(two_hundred, 1.0))
    strong = smooth(np.eye(200), 0.005)
    report.line("n = 200, supremum at ε = 1, smoothed identity, s = .005", lambda: supremum(strong, 1.0))
    report.line("n = 200, constant budget, α = 1", lambda: constant_budget(two_hundred, strong, 1.0))
    report.line("n = 200, exact budgets, α = 1, T = 100", lambda: exact_budgets(two_hundred, strong, 1.0, 100))


def medium(report: Report) -> None:
    rows, strong = matrix(1000), smooth(np.eye(1000), 0.005)
    for alpha in (0.1, 1.0, 10.0):
        report.line(f"n = 1000, loss, α = {alpha:g}", lambda a=alpha: loss(rows, a))
    report.line("n = 1000, loss, smoothed identity, s = .005", lambda: loss(strong, 1.0))
    for epsilon in (0.01, 0.1, 1.0):
        budgets = [epsilon] * 1000
        report.line(f"n = 1000, BPL over T = 1000, ε = {epsilon:g}", lambda b=budgets: backward(rows, b), repeats=3)
    report.line(
        "n = 1000, BPL over T = 1000, ε = .1, smoothed identity", lambda: backward(strong, [0.1] * 1000), repeats=3
    )
    for hub in (False, True):
        sparse = mobility(10_000, hub)
        kind = "with a hub (no disjoint rows)" if hub else "on a grid"
        report.line(f"n = 10000 sparse {kind}, loss", lambda s=sparse: loss(s, 1.0), repeats=3)
        report.line(f"n = 10000 sparse {kind}, BPL over T = 100", lambda s=sparse: backward(s, [0.1] * 100), repeats=3)


def large(report: Report) -> None:
    rows = matrix(5000)
    for alpha in (0.1, 1.0, 10.0):
        report.line(f"n = 5000, loss, α = {alpha:g}", lambda a=alpha: loss(rows, a), repeats=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="add n = 5 000")
    parser.add_argument("--repeats", type=int, default=5, help="runs behind each median")
    options = parser.parse_args()
    report = Report(options.repeats)
    report.line(
        "the first call with 64 states or more (loads or compiles kernels)", lambda: loss(matrix(64), 1.0), repeats=1
    )
    small(report)
    medium(report)
    if options.large:
        large(report)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this run {peak:.0f} MiB")


if __name__ == "__main__":
    main()
