"""How fast landmark losses, schemes and stay points are; medians of one run.

Usage: python scripts/benchmark_landmarks.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from dphmm import landmarks


def median(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def adaptive(times: np.ndarray, marks: np.ndarray) -> object:
    scheme = landmarks.Adaptive(times, marks, 1.0, sensitivity=1.0, rng=1)
    return landmarks.release_series(np.zeros((len(times), 2)), scheme, landmarks.laplace(1.0, rng=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    times = np.arange(1000)
    marks = np.sort(rng.choice(times, 200, replace=False))
    back, forth = rng.dirichlet(np.ones(100), size=100), rng.dirichlet(np.ones(100), size=100)
    for name, epsilons in [
        ("Uniform", landmarks.uniform(times, marks, 1.0).epsilons),
        ("Skip", landmarks.skip(times, marks, 1.0).epsilons),
        ("random budgets", rng.exponential(0.1, 1000)),
    ]:
        seconds = median(lambda e=epsilons: landmarks.leakage(times, marks, e, back, forth), min(repeats, 3))
        print(f"losses, |T|=1000 |L|=200 n=100, {name:20s} {seconds:10.3f} s")
    one = np.array([500])
    budget = landmarks.uniform(times, one, 1.0).epsilons
    seconds = median(lambda: landmarks.leakage(times, one, budget, back, forth), min(repeats, 3))
    print(f"losses, |T|=1000 |L|=  1 n=100, {'Uniform':20s} {seconds:10.3f} s")
    seconds = median(lambda: adaptive(times, marks), repeats)
    print(f"Adaptive release of 1000 steps, |L|=200              {seconds:10.3f} s")
    stamps = np.datetime64("2020-01-01", "us") + np.arange(200_000) * np.timedelta64(5, "s")
    moving = rng.random(200_000) < 0.01
    points = np.cumsum(rng.normal(0, 0.3, (200_000, 2)) * moving[:, None], axis=0) + rng.normal(0, 0.01, (200_000, 2))
    seconds = median(lambda: landmarks.stay_points(stamps, points, 0.2, 10), repeats)
    print(f"stay points of 200,000 fixes                         {seconds:10.3f} s")


if __name__ == "__main__":
    main()
