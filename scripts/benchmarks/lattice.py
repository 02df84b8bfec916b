"""Samples of the exact lattice mechanism compared with K-norm noise in floating point.

Floating-point rows are the K-norm mechanism with numpy and the same cones: a gamma radius times a uniform point of the
hull. "One call" draws many samples in one call. "One call each" draws one sample per call, as a step of a trajectory
does; the exact mechanism uses fresh randomness of the operating system.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from dphmm import LatticeKNormMechanism, SensitivityHull
from scripts.benchmarks.report import Report

HULLS = {
    "1 km, coprime vertices": [[1000, 3], [-401, 997], [703, 705], [999, 400]],
    "340 m grid cells": [[340, 0], [0, 340], [340, 340], [-340, 340], [680, 0]],
    "segment of 1 km": [[800, 600]],
}
PLAIN = "floating point"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draws", type=int, default=20_000)


def run(report: Report, options: argparse.Namespace) -> None:
    draws = 400 if report.small else options.draws
    few = max(1, draws // 20)
    rng = np.random.default_rng(1)
    for name, differences in HULLS.items():
        hull = SensitivityHull(differences)
        for epsilon in (0.5, 2) if report.small else (0.1, 0.5, 1, 2, 5):
            exact, plain = LatticeKNormMechanism(hull, epsilon), partial(sample_float_noise, hull, epsilon, rng=rng)
            what = f"{name}, epsilon {epsilon:g}"
            many = {PLAIN: (partial(plain, draws), draws)}
            report.rate(f"{what}, one call", partial(exact.sample, [0, 0], size=draws), draws, "draws", many)
            calls = {PLAIN: (partial(repeat, partial(plain, 1), few), few)}
            each = partial(repeat, partial(exact.sample, [0, 0]), few)
            report.rate(f"{what}, one call each", each, few, "draws", calls)
            report.time("    preparation", lambda h=hull, e=epsilon: LatticeKNormMechanism(h, e).log_normaliser)


def repeat(call: partial, times: int) -> None:
    for _ in range(times):
        call()


def sample_float_noise(hull: SensitivityHull, epsilon: float, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Sample K-norm noise ``(draws, d)`` in floats: a cone, a point of its simplex, a radius."""
    r = hull.dimension
    which = rng.choice(len(hull.cones), size=draws, p=hull.cone_volumes / hull.cone_volumes.sum())
    weights = rng.dirichlet(np.ones(r + 1), size=draws)[:, :r]
    inside = np.einsum("nr,nrd->nd", weights, hull.cones[which])
    return rng.gamma(r + 1, 1 / epsilon, size=draws)[:, None] * inside
