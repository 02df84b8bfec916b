"""How fast counts are noised, repaired and coupled; medians of one run.

Usage: python scripts/benchmark_counts.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, gammaln

from dphmm import counts
from dphmm.arrays import random_source
from dphmm.counts.occupancy import as_transition, first_distribution, occupancy
from dphmm.mechanisms.exact import RandomBits, bernoulli_exp, discrete_laplace


def median(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def stream(steps: int, places: int, users: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    matrix = rng.dirichlet(np.full(places, 0.2), size=places)
    first = np.full(places, 1 / places)
    occupied = occupancy(first, as_transition(matrix, places), steps)
    true = np.array([rng.multinomial(users, p / p.sum()) for p in occupied.probabilities])
    return true + rng.laplace(0, 2, true.shape), matrix


def slsqp(noisy: np.ndarray, log_p: np.ndarray, users: int, scale: float) -> np.ndarray:
    """Each time given to scipy's SLSQP with its gradient; the absolute values are split into linear variables.

    All times as one problem would be far slower still.
    """
    m = noisy.shape[1]
    eye = np.eye(m)
    total, sides = np.concatenate([np.ones(m), np.zeros(m)]), np.block([[eye, eye], [-eye, eye]])
    found = []
    for y, lp in zip(noisy, log_p, strict=True):

        def cost(x: np.ndarray, lp: np.ndarray = lp) -> float:
            return float(x[m:].sum() / scale + (gammaln(x[:m] + 1) - x[:m] * lp).sum())

        def slope(x: np.ndarray, lp: np.ndarray = lp) -> np.ndarray:
            return np.concatenate([digamma(x[:m] + 1) - lp, np.full(m, 1 / scale)])

        rules = [
            {"type": "eq", "fun": lambda x: total @ x - users, "jac": lambda _: total},
            {"type": "ineq", "fun": lambda x, y=y: sides @ x - np.concatenate([y, -y]), "jac": lambda _: sides},
        ]
        begin = np.concatenate([np.full(m, users / m), np.abs(users / m - y)])
        bounds = [(0, users)] * m + [(0, None)] * m
        options = {"maxiter": 300}
        done = minimize(cost, begin, jac=slope, method="SLSQP", bounds=bounds, constraints=rules, options=options)
        found.append(done.x[:m])
    return np.array(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)

    bits = RandomBits(random_source(None))
    for name, draw, number in [
        ("Bernoulli(exp(-1/20))", lambda: bernoulli_exp(1, 20, bits), 100_000),
        ("Bernoulli(exp(-19/20))", lambda: bernoulli_exp(19, 20, bits), 100_000),
        ("discrete Laplace, scale 20", lambda: discrete_laplace(1, 20, bits), 50_000),
    ]:
        seconds = median(lambda draw=draw, number=number: [draw() for _ in range(number)], repeats)
        print(f"{name:52s} {number / seconds:12,.0f} draws/s")

    for steps, places, users in [(100_000, 10, 200), (10_000, 100, 10_000), (10_000, 100, 10_000_000)]:
        noisy, matrix = stream(steps, places, users, rng)
        for integer in (False, True):
            kind = "integer" if integer else "real"
            run = partial(counts.post_process, noisy, matrix, users, 2.0, integer=integer)
            seconds = median(run, repeats)
            print(f"MAP, {kind:7s} T={steps:6d} m={places:3d} n={users:8d}          {seconds:12.3f} s")

    noisy, matrix = stream(30, 10, 200, rng)
    log_p = occupancy(first_distribution(noisy, "uniform"), as_transition(matrix, 10), 30).log_probabilities

    def objective(found: np.ndarray) -> float:
        return float((np.abs(noisy - found) / 2.0 + gammaln(found + 1.0) - found * log_p).sum())

    ours = median(lambda: counts.post_process(noisy, matrix, 200, 2.0, prior="uniform"), 20 * repeats)
    theirs = median(lambda: slsqp(noisy, log_p, 200, 2.0), 1)
    best = objective(counts.post_process(noisy, matrix, 200, 2.0, prior="uniform"))
    found = np.maximum(slsqp(noisy, log_p, 200, 2.0), 0)
    reached = objective(found * 200 / found.sum(1, keepdims=True))
    print(f"MAP of 300 values: {1e3 * ours:.2f} ms, SLSQP {theirs:.2f} s: {theirs / ours:,.0f} times faster")
    print(f"  objective {best:.6f}, SLSQP's {reached:.6f}")

    noisy, matrix = stream(1_000, 100, 5_000, rng)
    for mode in (True, "online"):
        run = partial(counts.post_process, noisy, matrix, 5_000, 2.0, coupled=mode)
        seconds = median(run, min(repeats, 3))
        print(f"coupled={mode!s:7s} T=  1000 m=100 n=    5000              {seconds:12.3f} s")


if __name__ == "__main__":
    main()
