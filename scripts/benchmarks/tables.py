"""Integer tables: solving the linear program, exact rounding, sampling, an engine's step.

The policies are neighbouring cells with a private corner of 16 cells, and a clique of all cells. Sampling is compared
with numpy's search in a row of cumulative sums.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from dphmm import MarkovModel, PolicyGraph, Releaser
from dphmm.mechanisms import TableMechanism
from dphmm.mechanisms.noise_tables import build_integer_rows, compute_exp_lower_bound, compute_min_error_table
from scripts.benchmarks.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draws", type=int, default=1_000_000)


def run(report: Report, options: argparse.Namespace) -> None:
    for side in (3,) if report.small else (6, 8, 10):
        points, mixed, clique = build_city_policies(side)
        for name, graph in (("neighbours and a private corner", mixed), ("one clique", clique)):
            edges, what = graph.edge_array(), f"{side * side} states, {name}"
            prior = np.random.default_rng(0).dirichlet(np.ones(len(points)))
            report.time(f"{what}: linear program", partial(compute_min_error_table, points, edges, np.e, prior))
            table = compute_min_error_table(points, edges, np.e, prior)[0]
            report.time("    exact rounding", partial(build_integer_rows, table, edges, compute_exp_lower_bound(1.0)))
            report.time("    graph-exponential", partial(TableMechanism.graph_exponential, points, edges, 1.0, prior))
    draws = 10_000 if report.small else options.draws
    mechanism = TableMechanism.optimal(points, mixed.edge_array(), 1.0)
    floor = partial(sample_by_doubles, np.cumsum(np.exp(mechanism.log_density(mechanism.points, points[0]))), draws)
    report.rate("draws", partial(mechanism.sample, points[0], size=draws), draws, "draws", {"doubles": (floor, draws)})
    points, mixed, _ = build_city_policies(3 if report.small else 8)
    size = len(points)
    engine = Releaser(
        MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size)), points, mixed, 1.0, "optimal"
    )
    step = engine.prepare()
    report.time(f"a step of {size} states with unchanged belief and component", engine.prepare)
    report.time("    its soundness check", partial(check_soundness, engine, step))


def build_city_policies(side: int) -> tuple[np.ndarray, PolicyGraph, PolicyGraph]:
    """Return centres of cells of 250 m, the policy with a private corner, and the clique."""
    points = np.array([(i / 4, j / 4) for i in range(side) for j in range(side)])
    corner = np.flatnonzero((points < 0.99).all(axis=1))
    mixed = PolicyGraph.utility(points, 0.25) | PolicyGraph.from_groups(len(points), [corner])
    return points, mixed, PolicyGraph.complete(len(points))


def check_soundness(engine: Releaser, step: object) -> None:
    engine.soundness.clear()
    engine.soundness(step)


def sample_by_doubles(sums: np.ndarray, draws: int) -> np.ndarray:
    return np.searchsorted(sums, np.random.default_rng().random(draws))
