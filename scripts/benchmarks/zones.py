"""Noise per component: what a step takes beside one hull for all, what the joint repair reaches, how much buffers hide.

Check-ins are real where DPHMM_REAL_DATA names a folder with them: possible are the cells of the paper's grid that
anybody visited, or those that a model learned from all people reaches in three steps from a known start. Entering a
zone is measured on a town of cells of 250 m whose people stay or go to one of the eight cells around: from the last
open release on, how probable is the true cell to a reader who knows the model and all releases?
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
from scripts.benchmarks.report import Report, once
from scripts.benchmarks.town import RADIUS_KM, model, points, walk

SIDE = 24
"""Of the town in which a zone of eight by eight cells is entered."""


def run(report: Report, _: argparse.Namespace) -> None:
    for side in (32,) if report.small else (32, 316):
        steps(report, side)
    entering(report)
    if report.small:
        return
    folder = os.environ.get("DPHMM_REAL_DATA")
    file = Path(folder or "", "gowalla/loc-gowalla_LA.txt.gz")
    if folder and file.exists():
        check_ins(report, file)
    else:
        report.skip("repairs of check-ins", "gowalla/loc-gowalla_LA.txt.gz is not in the folder DPHMM_REAL_DATA")


def steps(report: Report, side: int) -> None:
    """Cold steps by component beside one hull for all, under the same policies."""
    f, moves = Measurements(points(side, side)), model(side, side)
    square = (np.stack(np.divmod(np.arange(side * side), side)) < 8).all(axis=0)
    zone = PolicyGraph.categorical(np.where(square, 0, -1))
    town = PolicyGraph.utility(f, RADIUS_KM).restrict(~square)
    policies = {
        "utility": PolicyGraph.utility(f, RADIUS_KM),
        "a zone beside utility": zone.restrict(square) | town,
        "a zone, the rest open": zone.with_open(~square),
    }
    for name, policy in policies.items():
        found = {}
        for calibration in ("component", "graph"):
            engine = Releaser(moves, f, policy, 1.0, calibration=calibration, rng=1)
            engine.release(side * side - 1)

            def cold(engine: Releaser = engine) -> float:
                fresh = engine.another()
                fresh.planner._last, fresh.planner._made = None, ()
                fresh.query._made.clear()  # mechanisms of parts that were met before
                fresh.resume(engine.belief, 1)
                return once(partial(fresh.release, side * side - 1))

            found[calibration] = 1e3 * median(cold() for _ in range(report.repeats))
        what = f"cold step by component, {side * side:,} states, {name}"
        report.row(what, found["component"], "ms", {"one hull for all": found["graph"]})


def entering(report: Report) -> None:
    """How probable the true cell is while somebody is in a zone of 64 cells, by the width of its buffer."""
    count = 2 if report.small else 250
    for width in (0, 2) if report.small else (0, 1, 2, 3, 4):
        at_entry, inside = posteriors(width, count, np.random.default_rng(1))
        what = f"in a zone of 64 cells with a buffer of {width} cells ({0.25 * width:g} km)"
        report.row(f"{what}: at entry, 90 % at most", float(np.quantile(at_entry, 0.9)), "of one")
        report.row("    its median", float(np.median(at_entry)), "of one")
        report.row("    at all moments in the zone, 90 % at most", float(np.quantile(inside, 0.9)), "of one")


def zoned(width: int) -> tuple[MarkovModel, np.ndarray, np.ndarray, PolicyGraph]:
    """A town, kilometres of its cells, which are the home's, and the policy that hides them with a buffer."""
    y, x = np.divmod(np.arange(SIDE * SIDE), SIDE)
    far = np.maximum(np.maximum(8 - x, x - 15), np.maximum(8 - y, y - 15))
    home, hidden = far <= 0, far <= width
    moves = MarkovModel(walk(SIDE, SIDE), (~hidden) / (~hidden).sum())
    policy = PolicyGraph.categorical(np.where(hidden, 0, -1)).with_open(~hidden)
    return moves, 0.25 * np.stack([x, y], axis=1), home, policy


def posteriors(width: int, count: int, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """The probability of the true cell at the first release from the home, and at all of them, of walks into it."""
    moves, f, home, policy = zoned(width)
    engine = Releaser(moves, f, policy, 1.0, calibration="component", rng=2, spacing=0.25)
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
    people = read(file, skip_bad=True).trajectories
    states = np.concatenate([grid.locate(one.latitude, one.longitude) for one in people])
    visits = np.bincount(states[states >= 0], minlength=grid.size).astype(float)
    possible, policy = visits > 0, PolicyGraph.utility(f, 1.0)
    lone = len(exposed_states(policy, f, possible, calibration="component"))
    for name, prior in (("uniform", None), ("visits", visits)):
        repair = partial(protect, policy, f, possible, calibration="component", prior=prior)
        taken = median(once(repair) for _ in range(report.repeats))
        found, nearest = repair(), repair(method="greedy")
        report.row(f"joint repair, {lone} exposed of {possible.sum():,} cells, prior {name}", taken, "s")
        report.row("    mean squared error", found.value, "km²", {"nearest partners": nearest.value})
        report.row("    its gap", found.gap, "of the error")
    for radius in (1.0, 2.0, 4.0):
        three_steps(report, grid, file, radius)


def three_steps(report: Report, grid: Grid, file: Path, radius: float) -> None:
    """Three steps from a known start: one hull for all, nearest partners and the joint repair by component, tables.

    All of them at one budget, from the same starts, under the belief after the three steps; errors are those of what is
    released, and of the posterior mean of noise by component.
    """
    chain = learn(Data((file,), skip_bad=True), grid, step_seconds=3600, smoothing=0.0).model
    policy, f = PolicyGraph.utility(grid.measurements(), radius), grid.measurements()
    engine = Releaser(chain, f, policy, 1.0, mechanism="optimal", optimal_limit=128, repair_limit=500, rng=1)
    rng, errors, gaps, sizes = np.random.default_rng(3), [], [], []
    leads = np.flatnonzero(np.diff(chain.transition.indptr) > 1)
    for start in rng.choice(leads, 40, replace=False):
        belief = Belief.first(chain, None, np.eye(1, grid.size, start)[0]).predict(chain, 3)
        possible, prior = belief.support, belief.probabilities
        if not 3 <= possible.sum() <= 128:  # of which the program is solved in seconds
            continue
        shared = protect(policy, f, possible, repair_limit=500)
        nearest = protect(policy, f, possible, "greedy", calibration="component", prior=prior)
        plan = engine.plan(belief)
        joint, tables = plan.protection, engine.noise(plan, 1.0).comparison(belief)
        table = tables["mean_error"] * (1 - tables["gain"])
        errors.append([shared.value**0.5, nearest.value**0.5, joint.value**0.5, tables["mean_error"], table])
        gaps.append(joint.gap)
        sizes.append(int(possible.sum()))
    names = "best hull for all", "nearest partners", "joint repair", "its posterior mean", "optimal"
    found = np.array(errors)
    what = f"three steps from a start, {radius:g} km, {len(found)} starts, {min(sizes)} to {max(sizes)} cells"
    for number, name in enumerate(names):
        report.row(f"{what}: {name}, median RMS", float(np.median(found[:, number])), "km")
        if number:
            report.row(
                "        best hull for all over it, median", float(np.median(found[:, 0] / found[:, number])), "x"
            )
        what = "   "
    report.row("    the joint repair's largest gap", max(gaps), "of the error")
