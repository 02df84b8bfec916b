"""Policy hulls in three to five dimensions: one call of Qhull, and the exact body."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.spatial

from dphmm import Measurements, PolicyGraph, SensitivityHull, degree_of_protection, protect
from dphmm.geometry.sensitivity_hull import CrossPolytope

KINDS = ("complete", "categorical", "utility", "listed", "union", "intersection", "transition")


def build_instance(kind: str, dimension: int, seed: int, whole: bool) -> tuple[PolicyGraph, np.ndarray]:
    rng, size = np.random.default_rng(seed), 40 if dimension < 5 else 20
    f = rng.integers(0, 9, (size, dimension)).astype(float) if whole else rng.normal(size=(size, dimension))
    radius = float(np.median(np.linalg.norm(f[:, None] - f[None], axis=2)))
    edges = rng.integers(0, size, (3 * size, 2))
    listed = PolicyGraph.from_edges(size, edges[edges[:, 0] != edges[:, 1]])
    policies = {
        "complete": lambda: PolicyGraph.complete(size),
        "categorical": lambda: PolicyGraph.categorical(rng.integers(0, 3, size)),
        "utility": lambda: PolicyGraph.utility(f, radius),
        "listed": lambda: listed,
        "union": lambda: listed | PolicyGraph.utility(f, radius / 2),
        "intersection": lambda: PolicyGraph.complete(size) & PolicyGraph.utility(f, radius),
        "transition": lambda: PolicyGraph.transition((rng.random((size, size)) < 0.2).astype(float) + np.eye(size)),
    }
    return policies[kind](), f


def count_qhull_calls(monkeypatch) -> list[int]:
    sizes: list[int] = []
    original = scipy.spatial.ConvexHull

    def call(points, *arguments, **named):
        sizes.append(len(points))
        return original(points, *arguments, **named)

    monkeypatch.setattr(scipy.spatial, "ConvexHull", call)
    return sizes


@pytest.mark.parametrize("whole", [True, False], ids=["lattice", "scattered"])
@pytest.mark.parametrize("dimension", [3, 4, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_hull_matches_all_differences_with_one_qhull_call(kind, dimension, whole, monkeypatch):
    graph, f = build_instance(kind, dimension, dimension, whole)
    measurements = Measurements(f)
    for constraint in (None, np.random.default_rng(1).random(graph.size) < 0.7):
        restricted = graph if constraint is None else graph.restrict(constraint)
        edges = restricted.edge_array()
        differences = f[edges[:, 0]] - f[edges[:, 1]]
        expected = scipy.spatial.ConvexHull(np.concatenate([differences, -differences])).volume
        with monkeypatch.context() as patch:
            calls = count_qhull_calls(patch)
            hull = measurements.to_units(restricted.hull(measurements))
            # Complete policies first filter their points by a hull of them. Everything else is computed on demand.
            assert len(calls) == (kind == "complete")
            assert hull.volume == pytest.approx(expected, rel=1e-9)
            assert len(hull.vertices) > dimension
            assert len(calls) == 1 + (kind == "complete")
        assert (hull.norm(differences) <= 1 + 1e-9).all()
        spanning = restricted.differences(f)
        assert SensitivityHull(spanning).volume == pytest.approx(expected, rel=1e-9)
        pairs = {tuple(np.round(d, 9)) for d in np.concatenate([differences, -differences, differences[:1] * 0])}
        assert {tuple(np.round(d, 9) + 0.0) for d in spanning} <= {tuple(np.array(d) + 0.0) for d in pairs}


def test_large_groups_and_small_blocks_give_equal_hull(monkeypatch):
    """Hulls of groups and vertex sets only save memory."""
    rng = np.random.default_rng(2)
    f, labels = rng.normal(size=(120, 3)), rng.integers(0, 2, 120)
    expected = PolicyGraph.categorical(labels).hull(Measurements(f)).volume
    monkeypatch.setattr("dphmm.policy.cliques._PAIRWISE_MAX_SIZE_IN_SPACE", 4)
    assert PolicyGraph.categorical(labels).hull(Measurements(f)).volume == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr("dphmm.geometry.incremental_hull._MAX_POINTS", 50)
    monkeypatch.setattr("dphmm.policy.cliques._CHUNK_PAIRS", 64)
    assert PolicyGraph.categorical(labels).hull(Measurements(f)).volume == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("noise_scope", ["graph", "component"])
def test_cross_polytope_noise_needs_no_hull(noise_scope, monkeypatch):
    """In twelve dimensions the hull would have over two million facets.

    The radius is the longest edge.
    """
    rng = np.random.default_rng(3)
    f = rng.integers(0, 9, (60, 12)).astype(float)
    graph = PolicyGraph.categorical(np.r_[np.repeat(np.arange(5), 11), np.arange(5, 10)])
    calls = count_qhull_calls(monkeypatch)
    repaired = protect(graph, f, np.ones(60, dtype=bool), body="cross-polytope", noise_scope=noise_scope)
    edges = repaired.graph.edge_array()
    lengths = np.abs(f[edges[:, 0]] - f[edges[:, 1]]).sum(axis=1)
    assert isinstance(repaired.body, CrossPolytope)
    assert repaired.body.radii.tolist() == pytest.approx([lengths.max()] * 12)
    assert len(repaired.added) >= (3 if noise_scope == "component" else 0)
    assert (repaired.degrees > 1).all()
    for state, partner in repaired.added:
        assert np.abs(f[state] - f[partner]).sum() <= lengths.max()
    assert calls == []
    if noise_scope == "graph":
        apart = np.abs(f[:, None] - f[None]).sum(axis=2)
        assert repaired.diameter == pytest.approx(apart.max() / lengths.max(), rel=1e-12)
        np.testing.assert_array_equal(repaired.degrees, (apart <= lengths.max()).sum(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [3, 4])
def test_degrees_agree_for_both_membership_methods_in_space(dimension):
    graph, f = build_instance("listed", dimension, 7, True)
    expected = degree_of_protection(graph, f)
    np.testing.assert_array_equal(degree_of_protection(graph, f, membership="qp"), expected)
