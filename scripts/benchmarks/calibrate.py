"""Number of budgets that a search for the largest one evaluates, against plain bisection.

Each problem is the exact error of a mechanism's noise with a target. Both searches have the same range and tolerance.
"""

from __future__ import annotations

from math import log, sqrt
from statistics import mean

import numpy as np

from dphmm import KNormMechanism, LaplaceMechanism, LatticeKNormMechanism, SensitivityHull
from dphmm.calibrate.epsilon_search import search_largest
from dphmm.mechanisms.base import Mechanism
from scripts.benchmarks.report import Report

LOW = 1e-3
HIGH = 1e2
# The ratios at which searches of `dphmm calibrate` end: with few users, for lookup tables, and with many users.
RATIOS = (1.2, 1.005, 1.01)


def run(report: Report, options: object) -> None:  # noqa: ARG001 - every stage has this signature
    hull = SensitivityHull([[1, -1], [4, 1], [-3, 0]])
    mechanisms = {
        "K-norm": KNormMechanism(hull, 1.0),
        "lattice": LatticeKNormMechanism(hull, 1.0),
        "Laplace": LaplaceMechanism(5.0, 1.0, 2),
    }
    budgets = np.random.default_rng(0).uniform(log(0.01), log(5.0), 3 if report.small else 40)
    for name, mechanism in mechanisms.items():
        for max_ratio in RATIOS:
            counts = [count_evaluations(mechanism, epsilon, max_ratio) for epsilon in np.exp(budgets).tolist()]
            searched, bisected = map(mean, zip(*counts, strict=True))
            report.row(f"evaluations to a ratio of {max_ratio:g}, {name}", searched, "budgets", {"bisection": bisected})


def count_evaluations(mechanism: Mechanism, epsilon: float, max_ratio: float) -> tuple[int, int]:
    """Return the number of evaluated budgets of the search and of bisection."""
    target = mechanism.squared_error_at(epsilon)
    values: dict[float, float] = {}

    def compute_excess(budget: float) -> float:
        return log(mechanism.squared_error_at(budget) / target)

    search_largest(compute_excess, LOW, HIGH, max_ratio, values=values)
    low = LOW
    high = HIGH
    num_bisections = 0
    while high > max_ratio * low:
        middle = sqrt(low * high)
        low, high = (middle, high) if compute_excess(middle) >= 0 else (low, middle)
        num_bisections += 1
    return len(values), num_bisections
