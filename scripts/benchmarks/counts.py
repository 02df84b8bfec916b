"""Noise, repair and coupling of counts, compared with inexact noise and SciPy's SLSQP."""

from __future__ import annotations

import argparse
from fractions import Fraction
from functools import partial

import numpy as np
from scipy.optimize import minimize
from scipy.special import digamma, gammaln

from dphmm import counts
from dphmm.counts.map_estimate import build_first_distribution, compute_occupancy
from dphmm.counts.noisy_stream import as_transition
from dphmm.mechanisms.discrete_laplace import sample_discrete_laplace
from dphmm.random import as_random_source
from scripts.benchmarks.report import Report


def run(report: Report, _: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    time_noise(report, rng, 1_000 if report.small else 50_000)
    cases = (
        [(1_000, 10, 200)] if report.small else [(100_000, 10, 200), (10_000, 100, 10_000), (10_000, 100, 10_000_000)]
    )
    for steps, places, users in cases:
        noisy, matrix = sample_stream(steps, places, users, rng)
        repair = partial(counts.post_process, noisy, matrix, users, 2.0)
        beside = {
            "integers": partial(repair, integer=True),
            "least squares": partial(counts.least_squares, noisy, users),
        }
        report.time(f"MAP, T={steps} m={places} n={users}", repair, beside)
    compare_with_slsqp(report, rng, 5 if report.small else 30)
    steps, places = (50, 10) if report.small else (1_000, 100)
    noisy, matrix = sample_stream(steps, places, 5_000, rng)
    repair = partial(counts.post_process, noisy, matrix, 5_000, 2.0)
    beside = {"online": partial(repair, coupled="online"), "each time separately": repair}
    report.time(f"coupled, T={steps} m={places} n=5000", partial(repair, coupled=True), beside, min(report.repeats, 3))


def time_noise(report: Report, rng: np.random.Generator, draws: int) -> None:
    exact = partial(sample_discrete_laplace, Fraction(1, 20), draws, as_random_source(None))
    beside = {"in floating point": (lambda: [round(rng.laplace(0, 20)) for _ in range(draws)], draws)}
    report.rate("discrete Laplace, scale 20", exact, draws, "draws", beside)


def sample_stream(steps: int, places: int, users: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    matrix = rng.dirichlet(np.full(places, 0.2), size=places)
    occupied = compute_occupancy(np.full(places, 1 / places), as_transition(matrix, places), steps)
    true = np.array([rng.multinomial(users, p / p.sum()) for p in occupied.probabilities])
    return np.rint(true + rng.laplace(0, 2, true.shape)), matrix  # integers, like exact noise


def compare_with_slsqp(report: Report, rng: np.random.Generator, steps: int) -> None:
    users, scale = 200, 2.0
    noisy, matrix = sample_stream(steps, 10, users, rng)
    first = build_first_distribution(noisy, "uniform")
    log_p = compute_occupancy(first, as_transition(matrix, 10), steps).log_probabilities
    repair = partial(counts.post_process, noisy, matrix, users, scale, prior="uniform")
    search = partial(solve_by_slsqp, noisy, log_p, users, scale)
    report.time(f"MAP of {10 * steps} values", repair, {"SLSQP": search}, 20 * report.repeats)
    solution = np.maximum(search(), 0)
    solution *= users / solution.sum(axis=1, keepdims=True)

    def compute_objective(estimate: np.ndarray) -> float:
        return float((np.abs(noisy - estimate) / scale + gammaln(estimate + 1) - estimate * log_p).sum())

    best, reached = compute_objective(repair()), compute_objective(solution)
    report.row("    objective value", best, "nats", {"SLSQP": reached})


def solve_by_slsqp(noisy: np.ndarray, log_p: np.ndarray, users: int, scale: float) -> np.ndarray:
    """Solve each time with SciPy's SLSQP and its gradient, with split absolute values.

    A single problem for all times would be much slower.
    """
    m = noisy.shape[1]
    eye = np.eye(m)
    total, sides = np.concatenate([np.ones(m), np.zeros(m)]), np.block([[eye, eye], [-eye, eye]])
    rows = []
    for y, lp in zip(noisy, log_p, strict=True):

        def compute_cost(x: np.ndarray, lp: np.ndarray = lp) -> float:
            return float(x[m:].sum() / scale + (gammaln(x[:m] + 1) - x[:m] * lp).sum())

        def compute_slope(x: np.ndarray, lp: np.ndarray = lp) -> np.ndarray:
            return np.concatenate([digamma(x[:m] + 1) - lp, np.full(m, 1 / scale)])

        rules = [
            {"type": "eq", "fun": lambda x: total @ x - users, "jac": lambda _: total},
            {"type": "ineq", "fun": lambda x, y=y: sides @ x - np.concatenate([y, -y]), "jac": lambda _: sides},
        ]
        begin = np.concatenate([np.full(m, users / m), np.abs(users / m - y)])
        bounds = [(0, users)] * m + [(0, None)] * m
        options = {"maxiter": 300}
        rows.append(
            minimize(
                compute_cost,
                begin,
                jac=compute_slope,
                method="SLSQP",
                bounds=bounds,
                constraints=rules,
                options=options,
            ).x
        )
    return np.array(rows)[:, :m]
