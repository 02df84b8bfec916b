"""Hulls in 2 to 5 dimensions compared with SciPy, Equation (6), and Laplace noise.

Times are medians of processor time. A policy's hull includes its vertices, its cones and the norms of ten vectors.
SciPy's hull includes the differences of listed edges.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from time import process_time

import numpy as np
from scipy.spatial import ConvexHull

from dphmm import MarkovModel, Measurements, PolicyGraph, Releaser, SensitivityHull
from dphmm.geometry import planar
from scripts.benchmarks.report import Report, time_median

STATES = {3: 300, 4: 150, 5: 100}


def run(report: Report, _: argparse.Namespace) -> None:
    for dimension in (3,) if report.small else (3, 4, 5):
        for name, graph, f in iterate_instances(dimension, 40 if report.small else STATES[dimension]):
            edges = graph.edge_array()
            package_hull, scipys = partial(build_hull, graph, Measurements(f)), partial(build_scipy_hull, f, edges)
            what = f"hull, {dimension} dimensions, {name}, {len(edges):,} edges"
            compare(report, what, package_hull, {"ConvexHull of all differences": scipys})
    for count in (40,) if report.small else (20, 200, 1_000, 20_000):
        for name, points in sample_planar_points(count):
            package_hull = partial(build_polygon, points)
            scipys = partial(ConvexHull, points.astype(float))
            compare(report, f"polygon of {count:,} points, {name}", package_hull, {"ConvexHull": scipys})
    time_membership(report)
    for dimension in (3, 12):
        laplace = partial(run_laplace_step, dimension, 40)
        compare(report, f"first step with Laplace noise, 40 states, {dimension} dimensions", laplace, {})


def compare(report: Report, what: str, run: Callable[[], object], beside: dict[str, Callable[[], object]]) -> None:
    def measure_call(call: Callable[[], object]) -> float:
        call()
        return 1e3 * time_median(call, report.repeats, process_time)

    report.row(what, measure_call(run), "ms", {name: measure_call(other) for name, other in beside.items()})


def iterate_instances(dimension: int, size: int) -> Iterator[tuple[str, PolicyGraph, np.ndarray]]:
    rng = np.random.default_rng(dimension)
    labels, pairs = rng.integers(0, 5, size), rng.integers(0, size, (8 * size, 2))
    for kind, f in (
        ("lattice", rng.integers(0, 12, (size, dimension)).astype(float)),
        ("scattered", rng.normal(size=(size, dimension))),
    ):
        radius = 0.9 * float(np.linalg.norm(f - f.mean(axis=0), axis=1).mean())
        yield f"complete, {kind}", PolicyGraph.complete(size), f
        yield f"categorical, {kind}", PolicyGraph.categorical(labels), f
        yield f"utility, {kind}", PolicyGraph.utility(f, radius), f
        yield f"listed, {kind}", PolicyGraph.from_edges(size, pairs[pairs[:, 0] != pairs[:, 1]]), f


def build_hull(graph: PolicyGraph, measurements: Measurements) -> None:
    body = measurements.to_units(graph.hull(measurements))
    assert len(body.vertices) > 0
    assert len(body.cones) > 0
    body.norm(measurements.points[:10])


def build_scipy_hull(f: np.ndarray, edges: np.ndarray) -> None:
    differences = f[edges[:, 0]] - f[edges[:, 1]]
    ConvexHull(np.concatenate([differences, -differences]))


def sample_planar_points(count: int) -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(count)
    whole = rng.integers(-200, 201, (count // 2, 2))
    scattered = rng.normal(size=(count // 2, 2))
    yield "integers", np.concatenate([whole, -whole])
    yield "floats", np.concatenate([scattered, -scattered])


def build_polygon(points: np.ndarray) -> None:
    corners = planar.build_convex_polygon(points)
    if corners.dtype.kind == "f":
        planar.without_blur(corners)


def time_membership(report: Report) -> None:
    """Time Equation (6) for boundary points, which take longest, and for a mixture."""
    rng, count = np.random.default_rng(0), 50 if report.small else 1_000
    for corners in (8, 40):
        for dimension in (2, 3):
            tips = rng.normal(size=(corners // 2, dimension))
            body = SensitivityHull(tips / np.linalg.norm(tips, axis=1, keepdims=True))
            cones = body.cones[rng.integers(0, len(body.cones), count)]
            edge = np.einsum("kr,krd->kd", rng.dirichlet(np.ones(dimension), count), cones)
            for name, points in (("boundary", edge), ("mixed", edge * rng.choice([0.5, 1.0, 1.5], (count, 1)))):
                together = partial(body.contains, points, method="qp")
                singly = partial(check_points_singly, body, points[:50])
                what = f"Equation (6), {corners} vertices, {dimension} dimensions, {name} points"
                taken = {run: 1e3 * time_median(run, report.repeats, process_time) for run in (together, singly)}
                report.row(what, taken[together] / count, "ms/point", {"one call each": taken[singly] / 50})


def check_points_singly(body: SensitivityHull, points: np.ndarray) -> None:
    for point in points:
        body.contains(point, method="qp")


def run_laplace_step(dimension: int, size: int) -> None:
    f = np.random.default_rng(0).integers(0, 9, (size, dimension))
    model = MarkovModel(np.full((size, size), 1 / size), np.full(size, 1 / size))
    Releaser(model, f, PolicyGraph.complete(size), epsilon=1.0, mechanism="laplace", rng=0).release(0)
