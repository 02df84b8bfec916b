"""How long a whole release step takes, beside its literal form; how it grows; what a repair costs.

Usage: python scripts/benchmark_engine.py [--largest STATES]

A step is timed cold: nothing is carried over from the step before but the belief (a real step whose constraint set has
not changed is faster, and shown beside it). The literal form puts every edge into a hull and decides every degree of
protection by one quadratic program per pair of states, as the paper writes it; with a million pairs it is timed on a
sample of pairs and multiplied, and the table says so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.sparse import coo_array, csr_array
from scipy.spatial import ConvexHull

from dphmm import MarkovModel, Measurements, PolicyGraph, Releaser, exposed_states, protect
from dphmm.geometry.quadratic import in_convex_hull

CELL_KM = 0.34
RADIUS_KM = 1.0
SAMPLED_PAIRS = 300


def city(side: int) -> tuple[np.ndarray, csr_array]:
    """A square grid and a walk to the eight neighbours or nowhere."""
    x, y = np.meshgrid(np.arange(side), np.arange(side))
    index = np.arange(side * side).reshape(side, side)
    rows, columns = [], []
    for dx in (-1, 0, 1):
        for dy in (-1, 0, 1):
            here = index[max(0, -dy) : side - max(0, dy), max(0, -dx) : side - max(0, dx)]
            there = index[max(0, dy) : side - max(0, -dy), max(0, dx) : side - max(0, -dx)]
            rows.append(here.ravel())
            columns.append(there.ravel())
    row, column = np.concatenate(rows), np.concatenate(columns)
    walk = coo_array((np.ones(len(row)), (row, column)), shape=(side * side,) * 2).tocsr()
    walk.data /= np.repeat(np.diff(walk.indptr), np.diff(walk.indptr))
    return CELL_KM * np.stack([x.ravel(), y.ravel()], axis=1), walk


def policy(name: str, f: Measurements, walk: csr_array) -> PolicyGraph:
    if name == "utility":
        return PolicyGraph.utility(f, RADIUS_KM)
    return PolicyGraph.complete(f.size) if name == "complete" else PolicyGraph.transition(walk)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def step_times(side: int, name: str, repeats: int, mechanism: str = "k-norm") -> tuple[float, float]:
    """Medians of cold and of warm steps, in seconds, everything possible, after one step that is not counted."""
    points, walk = city(side)
    f = Measurements(points)
    releaser = Releaser(MarkovModel(walk, np.full(f.size, 1 / f.size)), f, policy(name, f, walk), 1.0, mechanism, rng=0)
    state = f.size // 2
    releaser.release(state)

    def cold() -> None:
        releaser.forget_plan()
        releaser.release(state)

    return median(timed(cold) for _ in range(repeats)), median(
        timed(lambda: releaser.release(state)) for _ in range(repeats)
    )


def literal_seconds(side: int) -> float:
    """The literal form of one step's hull and degrees of protection, extrapolated from a sample of pairs."""
    points, walk = city(side)
    f = Measurements(points)
    edges = policy("utility", f, walk).edges()

    def hull() -> np.ndarray:
        differences = points[edges[:, 0]] - points[edges[:, 1]]
        both = np.concatenate([differences, -differences])
        return both[ConvexHull(both).vertices]

    vertices = hull()
    rng = np.random.default_rng(0)
    pairs = points[rng.integers(f.size, size=SAMPLED_PAIRS)] - points[rng.integers(f.size, size=SAMPLED_PAIRS)]
    per_pair = timed(lambda: in_convex_hull(vertices, pairs)) / SAMPLED_PAIRS
    return timed(hull) + per_pair * f.size * (f.size - 1)


def isolated_instance(seed: int) -> tuple[PolicyGraph, np.ndarray, np.ndarray]:
    """196 possible grid states: a block of 184 whose neighbours protect each other, and 12 with nobody near."""
    rng, side = np.random.default_rng(seed), 40
    points, _ = city(side)
    mask = np.zeros((side, side), dtype=bool)
    mask[10:24, 10:24] = True
    mask[10:13, 10:14] = False
    while mask.sum() < 196:
        a, b = rng.integers(0, side, 2)
        if not mask[max(0, a - 4) : a + 5, max(0, b - 4) : b + 5].any():
            mask[a, b] = True
    return PolicyGraph.utility(points, 1.5 * CELL_KM), points, mask.ravel()


def memory_mib(side: int) -> float:
    """Peak memory of a new process that does three utility steps (Linux: VmHWM, which starts anew with the process)."""
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1])['step_times'](int(sys.argv[2]), 'utility', 1);"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, __file__, str(side)], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=1_000_000, help="largest number of states")
    largest = parser.parse_args().largest
    console = Console()
    sides = [side for side in (32, 100, 316, 1000) if side * side <= largest]

    steps = Table(title="A whole step, everything possible (median of 7; milliseconds)")
    for column in ("states", "policy", "cold", "warm", "cold / (N log N), relative to the row above"):
        steps.add_column(column, justify="right")
    for name in ("utility", "transition", "complete"):
        before = None
        for side in sides:
            size = side * side
            cold, warm = step_times(side, name, 7)
            rate = cold / (size * np.log(size))
            growth = "" if before is None else f"{rate / before:.2f}"
            steps.add_row(f"{size:,}", name, f"{1e3 * cold:.2f}", f"{1e3 * warm:.2f}", growth)
            before = rate
    console.print(steps)

    exact_cold, exact_warm = step_times(32, "utility", 31, "lattice")
    real_cold, real_warm = step_times(32, "utility", 31, "k-norm")
    console.print("Exact lattice noise against real-valued noise, a whole step at 1,024 states (medians of 31):")
    console.print(f"  cold {1e3 * exact_cold:.2f} / {1e3 * real_cold:.2f} ms: ratio {exact_cold / real_cold:.2f}")
    console.print(f"  warm {1e3 * exact_warm:.2f} / {1e3 * real_warm:.2f} ms: ratio {exact_warm / real_warm:.2f}\n")

    fast, literal = step_times(32, "utility", 31)[0], literal_seconds(32)
    console.print(f"Literal form at 1,024 states, extrapolated from {SAMPLED_PAIRS} of 1,047,552 quadratic programs:")
    console.print(f"  {literal:.0f} s against {1e3 * fast:.2f} ms: ratio {literal / fast:,.0f}\n")

    repairs = Table(title="Repair of 196 grid states, 12 of them isolated (8 instances; seconds)")
    for column in ("objective", "method", "median", "largest", "certified", "mean value / exact value"):
        repairs.add_column(column, justify="right")
    instances = [isolated_instance(seed) for seed in range(8)]
    assert all(len(exposed_states(*instance)) == 12 for instance in instances)
    for objective in ("volume", "error"):
        best = [protect(*i, objective=objective).value for i in instances]
        for method in ("exact", "sequential", "greedy"):
            found = [protect(*i, method=method, objective=objective) for i in instances]
            times = [timed(lambda i=i, m=method, o=objective: protect(*i, method=m, objective=o)) for i in instances]
            ratio = np.mean([f.value / b for f, b in zip(found, best, strict=True)])
            certified = f"{sum(f.certified for f in found)} of 8"
            repairs.add_row(objective, method, f"{median(times):.3f}", f"{max(times):.3f}", certified, f"{ratio:.2f}")
    console.print(repairs)

    for side in sides:
        console.print(
            f"Peak memory of a process at {side * side:,} states, utility policy: {memory_mib(side):,.0f} MiB"
        )


if __name__ == "__main__":
    main()
