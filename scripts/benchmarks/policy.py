"""Repairs of families of instances: optimal for error or area, and the paper's methods.

The instances are also repaired with noise by component, where a partner merges two components.

For check-ins and GeoLife, the possible states are the visited cells of the papers' grids. The policy connects cells
within a radius; isolated cells are exposed. These instances are skipped if the folder DPHMM_REAL_DATA has no data.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from dphmm import Grid, Measurements, PolicyGraph, degree_of_protection, exposed_states, protect, read
from dphmm.policy.protection_degrees import Protection
from scripts.benchmarks.report import Report, time_once
from scripts.benchmarks.town import CELL_KM, make_points

Instance = tuple[PolicyGraph, Measurements, np.ndarray]
# Preset → a file within DPHMM_REAL_DATA, and radii. At 0.3 km no two cells of the first are adjacent.
REAL = {
    "geolife": ("geolife/geolife_beijing.tar.gz", (0.3,)),
    "gowalla": ("gowalla/loc-gowalla_LA.txt.gz", (1.0, 2.0)),
}


def run(report: Report, _: argparse.Namespace) -> None:
    count = 1 if report.small else 8
    report_family(report, "196 states, 12 isolated", [build_isolated_instance(seed) for seed in range(count)])
    report_family(
        report, "40 grid states, none connected", [build_unconnected_instance(40, seed) for seed in range(count)]
    )
    report_family(
        report, "300 scattered states, 9 isolated", [build_scattered_instance(300, 9, seed) for seed in range(count)]
    )
    report_family(
        report, "spatial categories, 24 of 400 states", [build_category_instance(seed) for seed in range(count)]
    )
    report_long_edges(report, 500 if report.small else 4000)
    if report.small:
        return
    report_long_edges(report, 12_500)
    for name, instance in iterate_real_instances(report):
        cells = f"{instance[2].sum():,} cells, {len(exposed_states(*instance)):,} exposed"
        report_family(report, f"{name}, {cells}", [instance])
    space = [protect_in_space(seed) for seed in range(count)]
    report_family(report, "three dimensions, 20 states, 3 isolated", space)


def report_long_edges(report: Report, count: int) -> None:
    """Report times with long listed edges between scattered states, and of NumPy."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=(count, 2))
    edges = rng.integers(0, count, (8 * count, 2))
    graph = PolicyGraph.from_edges(count, edges[edges[:, 0] != edges[:, 1]])
    normals = graph.hull(Measurements(f)).norm_form.normals
    every_pair = {"NumPy, all pairs, half-spaces known": partial(count_pairs, f, normals)}
    degrees = partial(degree_of_protection, graph, f)
    assert np.array_equal(degrees(), count_pairs(f, normals))
    report.time(f"degrees of {count:,} states, {8 * count:,} listed edges", degrees, every_pair)
    report.time(f"protection of {count:,} states, {8 * count:,} listed edges", partial(protect, graph, f))


def count_pairs(f: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Count the states in the body around each state, from all pairs."""
    heights = f @ normals.T
    is_inside = np.ones((len(f), len(f)), dtype=bool)
    for height in heights.T:
        is_inside &= np.abs(height[:, None] - height) <= 1 + 1e-9
    return is_inside.sum(axis=1)


def report_family(report: Report, name: str, instances: list[Instance]) -> None:
    """Report times and errors of every method on the same instances."""
    ways = {
        "exact, least error": {},
        "exact, least area": {"objective": "volume"},
        "one after another (Algorithm 3)": {"method": "sequential"},
        "nearest (Algorithm 1)": {"method": "greedy"},
    }
    taken = {}
    errors = {}
    results = {}
    for way, options in ways.items():
        repair = partial(protect, **options)
        results[way], taken[way] = run_repairs(report, repair, instances)
        errors[way] = float(np.mean([get_error(result) for result in results[way]]))
    best, area, nearest = (results[way] for way in ("exact, least error", "exact, least area", "nearest (Algorithm 1)"))
    report.row(f"repair of {name}: least error", 1e3 * taken.pop("exact, least error"), "ms", scale_to_ms(taken))
    report.row("    its mean squared error", errors.pop("exact, least error"), "km²", errors)
    report_optimality(report, best)
    worse = sum(
        get_error(by_area) > get_error(other) * (1 + 1e-9) for by_area, other in zip(area, nearest, strict=True)
    )
    report.row("    least area has more error than Algorithm 1", worse, f"of {len(best)}")
    for objective in ("error", "volume"):
        repair = partial(protect, objective=objective, noise_scope="component")
        merged, seconds = run_repairs(report, repair, instances)
        report.row(f"    by component: least {objective}", 1e3 * seconds, "ms")
        mean = float(np.mean([result.objective_value for result in merged]))
        report.row("    its mean objective value", mean, "km²")
        report_optimality(report, merged)


def report_optimality(report: Report, results: list[Protection]) -> None:
    report.row("    proven optimal", sum(result.is_optimal for result in results), f"of {len(results)}")
    report.row("    its largest optimality gap", max(result.optimality_gap for result in results), "of the value")


def run_repairs(
    report: Report, repair: Callable[..., Protection], instances: list[Instance]
) -> tuple[list[Protection], float]:
    """Return the repaired graph of each instance, and the median of their median times."""
    results: list[Protection] = []
    times = []
    for instance in instances:
        repaired: list[Protection] = []
        run = partial(lambda to, of: to.append(repair(*of)), repaired, instance)
        times.append(median(time_once(run) for _ in range(report.repeats)))
        results.append(repaired[-1])
    return results, median(times)


def scale_to_ms(taken: dict[str, float]) -> dict[str, float]:
    return {way: 1e3 * seconds for way, seconds in taken.items()}


def get_error(result: Protection) -> float:
    return result.hull.squared_error


def build_isolated_instance(seed: int) -> Instance:
    """Return 196 possible grid states: a block of 184 connected ones, and 12 isolated ones."""
    rng, side = np.random.default_rng(seed), 40
    places, mask = make_points(side, side), np.zeros((side, side), dtype=bool)
    mask[10:24, 10:24] = True
    mask[10:13, 10:14] = False
    while mask.sum() < 196:
        a, b = rng.integers(0, side, 2)
        if not mask[max(0, a - 4) : a + 5, max(0, b - 4) : b + 5].any():
            mask[a, b] = True
    return PolicyGraph.utility(places, 1.5 * CELL_KM), Measurements(places), mask.ravel()


def build_unconnected_instance(count: int, seed: int) -> Instance:
    cells = np.random.default_rng(seed).permutation(400)[:count]
    return PolicyGraph.from_edges(count, []), Measurements(make_points(20, 20)[cells]), np.ones(count, dtype=bool)


def build_scattered_instance(count: int, isolated: int, seed: int) -> Instance:
    """Return scattered states with a radius that isolates some of them."""
    f = 3 * np.random.default_rng(seed).normal(size=(count, 2))
    apart = np.linalg.norm(f[:, None] - f[None], axis=2) + np.diag(np.full(count, np.inf))
    radius = np.sort(apart.min(axis=1))[-isolated - 1]
    return PolicyGraph.utility(f, radius), Measurements(f), np.ones(count, dtype=bool)


def build_category_instance(seed: int) -> Instance:
    rng, places = np.random.default_rng(seed), make_points(20, 20)
    centres = rng.uniform(0, 20 * CELL_KM, (25, 2))
    labels = np.linalg.norm(places[:, None] - centres[None], axis=2).argmin(axis=1)
    return PolicyGraph.categorical(labels), Measurements(places), rng.random(400) < 0.06


def protect_in_space(seed: int) -> Instance:
    rng = np.random.default_rng(seed)
    f = rng.integers(0, 12, (20, 3))
    f[17:] = rng.integers(-30, 40, (3, 3))
    near = [np.argsort(np.linalg.norm(f[:17] - point, axis=1), kind="stable")[1:3] for point in f[:17]]
    edges = [(a, int(b)) for a, others in enumerate(near) for b in others if a != b]
    return PolicyGraph.from_edges(20, edges), Measurements(f), np.ones(20, dtype=bool)


def iterate_real_instances(report: Report) -> Iterator[tuple[str, Instance]]:
    for name, (within, radii) in REAL.items():
        folder = os.environ.get("DPHMM_REAL_DATA")
        if not folder or not Path(folder, within).exists():
            report.skip(f"repairs, {name}", f"{within} is not in the folder DPHMM_REAL_DATA")
            continue
        grid = Grid.preset(name)
        tracks = read(Path(folder, within), skip_bad=True).trajectories
        for radius in radii:
            graph = PolicyGraph.utility(grid.measurements(), radius)
            for users in (tracks, tracks[::20]):
                states = np.concatenate([grid.locate(user.latitude, user.longitude) for user in users])
                visited = np.isin(np.arange(grid.size), states)
                yield f"{name}, {len(users)} users, radius {radius:g} km", (graph, grid.measurements(), visited)
