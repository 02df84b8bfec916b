"""A whole release step beside its literal form; how it grows; exact noise beside real-valued; what a repair costs.

A step is timed cold: nothing is carried over from the step before but the belief (a real step whose constraint set has
not changed is warm, and shown beside it). The literal form puts every edge into a hull and decides every degree of
protection by one quadratic program per pair of states, as the paper writes it; with a million pairs it is timed on a
sample of pairs and multiplied, and the row says so.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

import numpy as np
from scipy.spatial import ConvexHull

from dphmm import PolicyGraph, SensitivityHull, exposed_states, protect
from scripts.benchmarks.report import Report, in_new_process, once, seconds
from scripts.benchmarks.town import CELL_KM, RADIUS_KM, points, releaser


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--largest", type=int, default=1_000_000, metavar="STATES", help="default: 1000000")


def run(report: Report, options: argparse.Namespace) -> None:
    largest = 1_024 if report.small else options.largest
    sides = [side for side in (16, 32, 100, 316, 1000) if side * side <= largest]
    for policy in ("utility", "transition", "complete"):
        before = None
        for side in sides:
            cold, warm = step_times(side, policy, report.repeats)
            report.row(f"cold step, {side * side:,} states, {policy} policy", 1e3 * cold, "ms", {"warm": 1e3 * warm})
            rate = cold / (side * side * np.log(side * side))
            if before is not None:
                report.row("    its growth beyond N log N since the row above", rate / before, "x")
            before = rate
    repeats = 3 if report.small else 31
    exact, real = (step_times(32, "utility", repeats, mechanism) for mechanism in ("lattice", "k-norm"))
    for name, mine, other in zip(("cold", "warm"), exact, real, strict=True):
        report.row(f"{name} step with exact noise, 1,024 states", 1e3 * mine, "ms", {"real-valued": 1e3 * other})
    pairs = 50 if report.small else 300
    name = f"literal form, extrapolated from {pairs} of 1,047,552 pairs"
    report.row("cold step, 1,024 states, beside the paper's form", real[0], "s", {name: literal_seconds(32, pairs)})
    repairs(report, 1 if report.small else 8)
    for side in sides[-1:] if report.small else sides:
        _, peak = in_new_process(__name__, "step_times", side, "utility", 1)
        report.row(f"peak memory of a process at {side * side:,} states", peak, "MiB")


def step_times(side: int, policy: str, repeats: int, mechanism: str = "k-norm") -> tuple[float, float]:
    """Medians of cold and of warm steps, in seconds, after one step that is not counted."""
    engine, state = releaser(side, policy, mechanism), side * side // 2
    engine.release(state)

    def cold() -> float:
        fresh = engine.another()
        fresh.resume(engine.belief, 1)
        return once(partial(fresh.release, state))

    return median(cold() for _ in range(repeats)), seconds(partial(engine.release, state), repeats)


def literal_seconds(side: int, sampled: int) -> float:
    """One step's hull and degrees of protection in the literal form, extrapolated from a sample of pairs."""
    places = points(side, side)
    ends = PolicyGraph.utility(places, RADIUS_KM).edges()

    def vertices() -> np.ndarray:
        differences = places[ends[:, 0]] - places[ends[:, 1]]
        both = np.concatenate([differences, -differences])
        return both[ConvexHull(both).vertices]

    hull, rng = SensitivityHull(vertices()), np.random.default_rng(0)
    pairs = np.subtract(*places[rng.integers(len(places), size=(2, sampled))])
    per_pair = once(lambda: hull.contains(pairs, method="qp")) / sampled
    return once(vertices) + per_pair * len(places) * (len(places) - 1)


def repairs(report: Report, count: int) -> None:
    instances = [isolated_instance(seed) for seed in range(count)]
    assert all(len(exposed_states(*instance)) == 12 for instance in instances)
    for objective in ("volume",) if report.small else ("volume", "error"):
        taken, values = {}, {}
        for method in ("exact", "sequential", "greedy"):
            repair = partial(protect, method=method, objective=objective)
            found = [repair(*instance) for instance in instances]
            taken[method] = median(once(partial(repair, *instance)) for instance in instances)
            values[method] = float(np.mean([one.value for one in found]))
            if method == "exact":
                certified = sum(one.certified for one in found)
        what = f"repair of 196 states, 12 isolated, objective {objective}"
        report.row(f"{what}: exact", taken.pop("exact"), "s", taken)
        report.row("    mean value that it reaches", values.pop("exact"), objective, values)
        report.row("    certified as best", certified, f"of {count}")


def isolated_instance(seed: int) -> tuple[PolicyGraph, np.ndarray, np.ndarray]:
    """196 possible grid states: a block of 184 whose neighbours protect each other, and 12 with nobody near."""
    rng, side = np.random.default_rng(seed), 40
    places, mask = points(side, side), np.zeros((side, side), dtype=bool)
    mask[10:24, 10:24] = True
    mask[10:13, 10:14] = False
    while mask.sum() < 196:
        a, b = rng.integers(0, side, 2)
        if not mask[max(0, a - 4) : a + 5, max(0, b - 4) : b + 5].any():
            mask[a, b] = True
    return PolicyGraph.utility(places, 1.5 * CELL_KM), places, mask.ravel()
