"""Landmark losses, Adaptive and stay points, compared with plain implementations."""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from dphmm import landmarks
from dphmm.leakage import compute_leakage
from scripts.benchmarks.report import Report


def run(report: Report, _: argparse.Namespace) -> None:
    steps, states, fixes = (100, 20, 2_000) if report.small else (1_000, 100, 200_000)
    rng, times = np.random.default_rng(0), np.arange(steps)
    marks = np.sort(rng.choice(times, steps // 5, replace=False))
    back, forth = rng.dirichlet(np.ones(states), size=states), rng.dirichlet(np.ones(states), size=states)
    uniform, skip = (scheme(times, marks, 1.0) for scheme in (landmarks.uniform_scheme, landmarks.skip_scheme))
    for name, chosen, epsilons in [
        ("Uniform", marks, uniform.epsilons),
        ("Skip", marks, skip.epsilons),
        ("random budgets", marks, rng.exponential(0.1, steps)),
        ("Uniform, one landmark", times[steps // 2 :][:1], landmarks.uniform_scheme(times, [steps // 2], 1.0).epsilons),
    ]:
        what = f"losses, T={steps} L={len(chosen)} n={states}, {name}"
        floor = {
            "temporal leakage without landmarks": partial(compute_leakage, back, forth, np.maximum(epsilons, 1e-9)),
            "the paper's sum": partial(landmarks.paper_leakage, times, chosen, epsilons, back, forth),
        }
        report.time(
            what, partial(landmarks.leakage, times, chosen, epsilons, back, forth), floor, min(report.repeats, 3)
        )

    def release(scheme: landmarks.Adaptive | landmarks.LandmarkBudget) -> object:
        return landmarks.release_series(np.zeros((steps, 2)), scheme, landmarks.lattice_noise(1, rng=2))

    what = f"Adaptive release of {steps} steps, L={len(marks)}"
    adaptive = partial(landmarks.Adaptive, times, marks, 1.0, sensitivity=1.0, rng=1)
    report.time(what, lambda: release(adaptive()), {"Uniform": lambda: release(uniform)})
    stamps = np.datetime64("2020-01-01", "us") + np.arange(fixes) * np.timedelta64(5, "s")
    moving = rng.random(fixes) < 0.01
    points = np.cumsum(rng.normal(0, 0.3, (fixes, 2)) * moving[:, None], axis=0) + rng.normal(0, 0.01, (fixes, 2))
    literal = {"a fix at a time": partial(find_plainly, stamps, points, 0.2, np.timedelta64(10, "m"))}
    report.time(f"stay points of {fixes:,} fixes", partial(landmarks.stay_points, stamps, points, 0.2, 10), literal)


def find_plainly(
    times: np.ndarray, points: np.ndarray, radius: float, minimum: np.timedelta64
) -> list[tuple[int, int]]:
    """Find stay points by the algorithm of Li et al. (2008) as published."""
    rows, i = [], 0
    while i < len(times):
        j = i + 1
        while j < len(times) and np.linalg.norm(points[j] - points[i]) <= radius:
            j += 1
        if times[j - 1] - times[i] >= minimum:
            rows.append((i, j - 1))
            i = j
        else:
            i += 1
    return rows
