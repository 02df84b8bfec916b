"""A release step compared with its literal form, its growth, and exact noise.

A cold step reuses only the belief of the step before. A warm step has an unchanged constraint set. The literal form
puts every edge into a hull and decides every degree of protection by one quadratic program per pair of states, as in
the paper. With a million pairs, it is extrapolated from a sample, which the row states.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median

import numpy as np
from scipy.spatial import ConvexHull

from dphmm import PolicyGraph, SensitivityHull
from scripts.benchmarks.report import Report, run_in_new_process, time_median, time_once
from scripts.benchmarks.town import RADIUS_KM, forget, make_points, make_releaser


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
                report.row("    growth relative to N log N since the row above", rate / before, "x")
            before = rate
    repeats = 3 if report.small else 31
    exact, real = (step_times(32, "utility", repeats, mechanism) for mechanism in ("lattice", "k-norm"))
    for name, exact_s, real_s in zip(("cold", "warm"), exact, real, strict=True):
        report.row(f"{name} step with exact noise, 1,024 states", 1e3 * exact_s, "ms", {"real-valued": 1e3 * real_s})
    time_checks(report, sides[:1] if report.small else [side for side in sides if side <= 316])
    pairs = 50 if report.small else 300
    name = f"literal form, extrapolated from {pairs} of 1,047,552 pairs"
    report.row("cold step, 1,024 states, and the paper's form", real[0], "s", {name: time_literal_form(32, pairs)})
    for side in sides[-1:] if report.small else sides:
        _, peak = run_in_new_process(__name__, "step_times", side, "utility", 1)
        report.row(f"peak memory of a process at {side * side:,} states", peak, "MiB")


def step_times(side: int, policy: str, repeats: int, mechanism: str = "k-norm") -> tuple[float, float]:
    """Return medians of cold and of warm steps in seconds, after one warm-up step."""
    engine = make_releaser(side, policy, mechanism)
    state = side * side // 2
    engine.release(state)

    def time_cold_step() -> float:
        fresh = engine.spawn()
        forget(fresh, fresh.soundness)
        fresh.resume(engine.belief, 1)
        return time_once(partial(fresh.release, state))

    return median(time_cold_step() for _ in range(repeats)), time_median(partial(engine.release, state), repeats)


def time_checks(report: Report, sides: list[int]) -> None:
    """Time the soundness check as part of a step: medians of both from the same steps."""
    for side in sides:
        for policy in ("utility", "transition", "complete"):
            for mechanism in ("lattice", "k-norm"):
                engine = make_releaser(side, policy, mechanism)
                state = side * side // 2
                check = engine.soundness
                seconds_of_checks: list[float] = []
                engine.soundness = lambda plan, check=check, taken=seconds_of_checks: taken.append(
                    time_once(partial(check, plan))
                )
                engine.release(state)

                def run_cold_step(engine=engine, state=state, check=check) -> None:
                    forget(engine, check)
                    engine.restart()
                    engine.release(state)

                for name, step in (("cold", run_cold_step), ("warm", partial(engine.release, state))):
                    seconds_of_checks.clear()
                    whole = time_median(step, 5 * report.repeats)
                    what = f"{name} step, {side * side:,} states, {policy} policy, {mechanism}"
                    report.row(what, 1e3 * whole, "ms", {"its soundness check": 1e3 * median(seconds_of_checks)})


def time_literal_form(side: int, sampled: int) -> float:
    """Time the hull and degrees of protection in the literal form, from a sample of pairs."""
    places = make_points(side, side)
    ends = PolicyGraph.utility(places, RADIUS_KM).edge_array()

    def find_vertices() -> np.ndarray:
        differences = places[ends[:, 0]] - places[ends[:, 1]]
        both = np.concatenate([differences, -differences])
        return both[ConvexHull(both).vertices]

    hull = SensitivityHull(find_vertices())
    rng = np.random.default_rng(0)
    pairs = np.subtract(*places[rng.integers(len(places), size=(2, sampled))])
    per_pair = time_once(lambda: hull.contains(pairs, method="qp")) / sampled
    return time_once(find_vertices) + per_pair * len(places) * (len(places) - 1)
