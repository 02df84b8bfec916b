"""Noise by component: time of a step, errors of the joint repair, and effect of buffers.

Check-ins are read from the folder DPHMM_REAL_DATA, if set. The possible states are the visited cells of the paper's
grid, or those that a model of all users reaches in three steps from a known start. Entering a zone is measured in a
town of cells of 250 m with moves to the eight neighbours. The measure is the posterior probability of the true cell,
after the last unprotected release, for an adversary who knows the model and all releases.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from dphmm import Grid, MarkovModel, Measurements, PolicyGraph, Releaser, exposed_states, protect, read
from dphmm.jobs import Data, learn
from dphmm.model import Belief
from scripts.benchmarks.report import Report, time_once
from scripts.benchmarks.town import RADIUS_KM, build_model, make_points, walk

# Cells per side of the town, which contains a zone of eight by eight cells.
SIDE = 24


def run(report: Report, _: argparse.Namespace) -> None:
    for side in (32,) if report.small else (32, 316):
        time_steps(report, side)
    report_entry(report)
    if report.small:
        return
    folder = os.environ.get("DPHMM_REAL_DATA")
    file = Path(folder or "", "gowalla/loc-gowalla_LA.txt.gz")
    if folder and file.exists():
        check_ins(report, file)
    else:
        report.skip("repairs of check-ins", "gowalla/loc-gowalla_LA.txt.gz is not in the folder DPHMM_REAL_DATA")


def time_steps(report: Report, side: int) -> None:
    """Time cold steps by component and with one hull under the same policies."""
    f, moves = Measurements(make_points(side, side)), build_model(side, side)
    square = (np.stack(np.divmod(np.arange(side * side), side)) < 8).all(axis=0)
    zone = PolicyGraph.categorical(np.where(square, 0, -1))
    town = PolicyGraph.utility(f, RADIUS_KM).restrict(~square)
    policies = {
        "utility": PolicyGraph.utility(f, RADIUS_KM),
        "a zone and utility": zone.restrict(square) | town,
        "a zone, the rest unprotected": zone.with_open(~square),
    }
    for name, policy in policies.items():
        results = {}
        for noise_scope in ("component", "graph"):
            engine = Releaser(moves, f, policy, 1.0, noise_scope=noise_scope, rng=1)
            engine.release(side * side - 1)

            def time_cold_step(engine: Releaser = engine) -> float:
                fresh = engine.spawn()
                fresh.planner.clear()
                fresh.resume(engine.belief, 1)
                return time_once(partial(fresh.release, side * side - 1))

            results[noise_scope] = 1e3 * median(time_cold_step() for _ in range(report.repeats))
        what = f"cold step by component, {side * side:,} states, {name}"
        report.row(what, results["component"], "ms", {"one hull for all": results["graph"]})


def report_entry(report: Report) -> None:
    """Report the posterior of the true cell in a zone of 64 cells by the width of its buffer."""
    count = 2 if report.small else 250
    for width in (0, 2) if report.small else (0, 1, 2, 3, 4):
        at_entry, inside = compute_posteriors(width, count, np.random.default_rng(1))
        what = f"in a zone of 64 cells with a buffer of {width} cells ({0.25 * width:g} km)"
        report.row(f"{what}: posterior at entry, 90 % quantile", float(np.quantile(at_entry, 0.9)), "of one")
        report.row("    median", float(np.median(at_entry)), "of one")
        report.row("    at all timesteps in the zone, 90 % quantile", float(np.quantile(inside, 0.9)), "of one")


def build_zone(width: int) -> tuple[MarkovModel, np.ndarray, np.ndarray, PolicyGraph]:
    """Return a model, centres in km, mask of the home, and the policy with a buffer."""
    y, x = np.divmod(np.arange(SIDE * SIDE), SIDE)
    far = np.maximum(np.maximum(8 - x, x - 15), np.maximum(8 - y, y - 15))
    home, hidden = far <= 0, far <= width
    moves = MarkovModel(walk(SIDE, SIDE), (~hidden) / (~hidden).sum())
    policy = PolicyGraph.categorical(np.where(hidden, 0, -1)).with_open(~hidden)
    return moves, 0.25 * np.stack([x, y], axis=1), home, policy


def compute_posteriors(width: int, count: int, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Return posteriors of the true cell at the first and at all releases from the home."""
    moves, f, home, policy = build_zone(width)
    engine = Releaser(moves, f, policy, 1.0, noise_scope="component", rng=2, spacing=0.25)
    rows = [moves.transition.indices[a:b] for a, b in pairwise(moves.transition.indptr.tolist())]
    at_entry, inside = [], []
    while len(at_entry) < count:
        path = [int(rng.choice(np.flatnonzero(moves.initial)))]
        while len(path) < 60 and not (home[path[-1]] and len(path) > 50):
            path.append(int(rng.choice(rows[path[-1]])))
        if not home[path].any():
            continue
        engine.restart()
        first = True
        for state in path:
            engine.release(state)
            if home[state]:
                inside.append(float(engine.belief.probabilities[state]))
                if first:
                    at_entry.append(inside[-1])
                    first = False
    return at_entry, inside


def check_ins(report: Report, file: Path) -> None:
    grid = Grid.preset("gowalla")
    f = grid.measurements()
    tracks = read(file, skip_bad=True).trajectories
    states = np.concatenate([grid.locate(track.latitude, track.longitude) for track in tracks])
    visits = np.bincount(states[states >= 0], minlength=grid.size).astype(float)
    possible, policy = visits > 0, PolicyGraph.utility(f, 1.0)
    lone = len(exposed_states(policy, f, possible, noise_scope="component"))
    for name, prior in (("uniform", None), ("visits", visits)):
        repair = partial(protect, policy, f, possible, noise_scope="component", prior=prior)
        taken = median(time_once(repair) for _ in range(report.repeats))
        repaired, nearest = repair(), repair(method="greedy")
        report.row(f"joint repair, {lone} exposed of {possible.sum():,} cells, prior {name}", taken, "s")
        report.row(
            "    mean squared error", repaired.objective_value, "km²", {"nearest partners": nearest.objective_value}
        )
        report.row("    its optimality gap", repaired.optimality_gap, "of the error")
    for radius in (1.0, 2.0, 4.0):
        report_three_steps(report, grid, file, radius)


def report_three_steps(report: Report, grid: Grid, file: Path, radius: float) -> None:
    """Report errors three steps after a known start, for hulls, repairs and tables.

    All have one budget, the same starts and the belief after three steps. Errors are those of the releases, and of the
    posterior mean for noise by component.
    """
    chain = learn(Data((file,), skip_bad=True), grid, step_seconds=3600, smoothing=0.0).model
    policy, f = PolicyGraph.utility(grid.measurements(), radius), grid.measurements()
    engine = Releaser(chain, f, policy, 1.0, mechanism="optimal", optimal_max_states=128, repair_max_work=500, rng=1)
    rng = np.random.default_rng(3)
    errors = []
    gaps = []
    sizes = []
    leads = np.flatnonzero(np.diff(chain.transition.indptr) > 1)
    for start in rng.choice(leads, 40, replace=False):
        belief = Belief.initial(chain, None, np.eye(1, grid.size, start)[0]).predict(chain, 3)
        possible, prior = belief.support, belief.probabilities
        if not 3 <= possible.sum() <= 128:  # sizes for which the linear program is solved in seconds
            continue
        shared = protect(policy, f, possible, repair_max_work=500)
        nearest = protect(policy, f, possible, "greedy", noise_scope="component", prior=prior)
        plan = engine.build_plan(belief, 1.0)
        joint, tables = plan.protection, plan.noise.compare_with_knorm(belief)
        table = tables["knorm_estimate_error"] * (1 - tables["table_gain"])
        errors.append(
            [
                shared.objective_value**0.5,
                nearest.objective_value**0.5,
                joint.objective_value**0.5,
                tables["knorm_estimate_error"],
                table,
            ]
        )
        gaps.append(joint.optimality_gap)
        sizes.append(int(possible.sum()))
    names = "best hull for all", "nearest partners", "joint repair", "its posterior mean", "optimal"
    values = np.array(errors)
    what = f"three steps from a start, {radius:g} km, {len(values)} starts, {min(sizes)} to {max(sizes)} cells"
    for number, name in enumerate(names):
        report.row(f"{what}: {name}, median RMS", float(np.median(values[:, number])), "km")
        if number:
            report.row(
                "        best hull for all over it, median", float(np.median(values[:, 0] / values[:, number])), "x"
            )
        what = "   "
    report.row("    the joint repair's largest gap", max(gaps), "of the error")
