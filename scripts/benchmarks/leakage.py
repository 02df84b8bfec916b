"""Leakage compared with linear programs for pairs of rows and the published algorithms.

The published algorithms are in plain Python. By default, matrices are random with uniform entries, and α = 1.
``--largest 5000`` adds matrices of 5,000 states, which take minutes.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from itertools import permutations

import numpy as np
from scipy.optimize import linprog

from dphmm.leakage import LossFunction, backward_leakage, constant_budget, exact_budgets, loss, smooth, supremum
from scripts.benchmarks.report import Report, get_peak_mib, time_once
from scripts.benchmarks.town import walk
from tests.leakage import published


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--largest", type=int, default=1000, metavar="STATES", help="largest dense matrix (default: 1000)"
    )


def run(report: Report, options: argparse.Namespace) -> None:
    report.row(
        "first call with 64 states or more (loads or compiles)", time_once(partial(loss, sample_matrix(64), 1.0)), "s"
    )
    compare_with_literature(report)
    time_budgets(report, 50 if report.small else 200)
    for n in (100,) if report.small else [n for n in (1000, 5000) if n <= options.largest]:
        time_dense_matrix(report, n)
    for hub in (False, True):
        side, times = (20, 10) if report.small else (100, 100)
        town, kind = walk(side, side, np.random.default_rng(1), hub), "with a hub" if hub else "of a grid"
        report.time(f"n = {side * side} sparse {kind}, loss", partial(loss, town, 1.0))
        report.time(
            f"n = {side * side} sparse {kind}, BPL, T = {times}", partial(backward_leakage, town, [0.1] * times), {}, 3
        )
    report.row("peak memory of this run", get_peak_mib(), "MiB")


def sample_matrix(n: int, seed: int = 0) -> np.ndarray:
    weights = np.random.default_rng(seed).random((n, n))
    return weights / weights.sum(axis=1, keepdims=True)


def solve_linear_programs(rows: np.ndarray, alpha: float) -> float:
    n, grown = len(rows), math.exp(alpha)
    above = np.hstack([np.eye(n), np.full((n, 1), -grown)])
    bounds = np.vstack([above, np.hstack([-np.eye(n), np.ones((n, 1))])])
    best = 1.0
    for q, d in permutations(rows, 2):
        solution = linprog(-np.append(q, 0), bounds, np.zeros(2 * n), [np.append(d, 0)], [1.0], method="highs")
        best = max(best, -solution.fun)
    return math.log(best)


def run_vectorised_algorithm_1(rows: np.ndarray, alpha: float) -> float:
    """Run Algorithm 1 of the paper vectorised: one row against all others."""
    e, largest = math.expm1(alpha), 1.0
    for row in rows:
        chosen = row > rows
        while True:
            ratio = (chosen @ row * e + 1) / (np.einsum("kj,kj->k", chosen, rows) * e + 1)
            kept = chosen & (row > rows * ratio[:, np.newaxis])
            if np.array_equal(kept, chosen):
                break
            chosen = kept
        largest = max(largest, float(ratio.max()))
    return math.log(largest)


def compare_with_literature(report: Report) -> None:
    few, middle = (6, 30) if report.small else (12, 100)
    rows = sample_matrix(few)
    programs = {"a linear program per pair (HiGHS)": partial(solve_linear_programs, rows, 1.0)}
    report.time(f"n = {few}, loss", partial(loss, rows, 1.0), programs)
    assert abs(solve_linear_programs(rows, 1.0) - loss(rows, 1.0)) < 1e-9
    for n in (middle,) if report.small else (50, middle, 200):
        rows = sample_matrix(n)
        forms = {"Algorithm 1": published.run_algorithm_1, "Algorithm 1 of arrays": run_vectorised_algorithm_1}
        beside = {name: partial(form, rows, 1.0) for name, form in forms.items()}
        report.time(f"n = {n}, loss", partial(loss, rows, 1.0), beside)
        for form in beside.values():
            assert abs(form() - loss(rows, 1.0)) < 1e-9
    rows = sample_matrix(middle)
    beside = {"Algorithms 2 and 4": lambda: published.run_algorithm_4(published.run_algorithm_2(rows), 1e-6, 10.0)}
    report.time(f"n = {middle}, LossFunction to α = 10", partial(LossFunction, rows, limit=10.0), beside)


def time_budgets(report: Report, n: int) -> None:
    rows, strong = sample_matrix(n), smooth(np.eye(n), 0.005)
    report.time(f"n = {n}, LossFunction for every α", partial(LossFunction, rows))
    report.time(f"n = {n}, supremum at ε = 1, built anew", partial(supremum, rows, 1.0))
    report.time(f"n = {n}, supremum at ε = 1, smoothed identity, s = .005", partial(supremum, strong, 1.0))
    report.time(f"n = {n}, constant budget", partial(constant_budget, rows, strong, 1.0))
    report.time(f"n = {n}, exact budgets, T = 100", partial(exact_budgets, rows, strong, 1.0, 100))


def time_dense_matrix(report: Report, n: int) -> None:
    rows, strong = sample_matrix(n), smooth(np.eye(n), 0.005)
    for alpha in (0.1, 1.0, 10.0):
        report.time(f"n = {n}, loss, α = {alpha:g}", partial(loss, rows, alpha))
    report.time(f"n = {n}, loss, smoothed identity, s = .005", partial(loss, strong, 1.0))
    if n <= 1000:
        for epsilon in (0.01, 0.1, 1.0):
            report.time(
                f"n = {n}, BPL over T = {n}, ε = {epsilon:g}", partial(backward_leakage, rows, [epsilon] * n), {}, 3
            )
        report.time(
            f"n = {n}, BPL, T = {n}, ε = .1, smoothed identity", partial(backward_leakage, strong, [0.1] * n), {}, 3
        )
