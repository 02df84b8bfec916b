"""Draws per second of the exact lattice mechanism, beside K-norm noise in floating point by the same cones.

Usage: python scripts/benchmark_lattice.py [--draws 20000] [--repeats 5]

The floating-point column is the K-norm mechanism with numpy: a gamma radius times a uniform point of the hull, drawn
all at once. The per-call columns make one release per call, as a step of a trajectory does, with fresh randomness from
the operating system for the exact one. All figures are medians of the repeats, on one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms.lattice import LatticeKNormMechanism

HULLS = {
    "1 km, coprime vertices": [[1000, 3], [-401, 997], [703, 705], [999, 400]],
    "340 m grid cells": [[340, 0], [0, 340], [340, 340], [-340, 340], [680, 0]],
    "segment of 1 km": [[800, 600]],
}
EPSILONS = (0.1, 0.5, 1, 2, 5)


def rate(call: Callable[[], object], draws: int, repeats: int) -> float:
    """Draws per second: the median over the repeats, after one call that warms up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return draws / median(times)


def float_noise(hull: SensitivityHull, epsilon: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """K-norm noise ``(draws, d)`` in doubles: a cone by its volume, a uniform point of its simplex, a gamma radius."""
    r = hull.dimension
    which = rng.choice(len(hull.cones), size=draws, p=hull.cone_volumes / hull.cone_volumes.sum())
    weights = rng.dirichlet(np.ones(r + 1), size=draws)[:, :r]
    inside = np.einsum("nr,nrd->nd", weights, hull.cones[which])
    return rng.gamma(r + 1, 1 / epsilon, size=draws)[:, None] * inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    draws, repeats = options.draws, options.repeats
    few = max(1, draws // 20)
    rng = np.random.default_rng(1)
    header = ("hull", "epsilon", "exact/s", "float/s", "ratio", "exact calls/s", "float calls/s", "prepare ms")
    print("{:24}{:>8}{:>10}{:>12}{:>8}{:>15}{:>15}{:>12}".format(*header))
    for name, differences in HULLS.items():
        hull = SensitivityHull(differences)
        for epsilon in EPSILONS:
            mechanism = LatticeKNormMechanism(hull, epsilon)
            exact = rate(lambda m=mechanism: m.sample([0, 0], size=draws), draws, repeats)
            floats = rate(lambda h=hull, e=epsilon: float_noise(h, e, draws, rng), draws, repeats)
            calls = rate(lambda m=mechanism: [m.sample([0, 0]) for _ in range(few)], few, repeats)
            float_calls = rate(lambda h=hull, e=epsilon: [float_noise(h, e, 1, rng) for _ in range(few)], few, repeats)
            made = rate(lambda h=hull, e=epsilon: LatticeKNormMechanism(h, e).log_normaliser, 1, repeats)
            print(
                f"{name:24}{epsilon:>8}{exact:>10.0f}{floats:>12.0f}{floats / exact:>8.1f}"
                f"{calls:>15.0f}{float_calls:>15.0f}{1e3 / made:>12.2f}"
            )


if __name__ == "__main__":
    main()
