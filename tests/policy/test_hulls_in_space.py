"""Hulls of policies in three to five dimensions: one call of Qhull, and the body of all differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.spatial

from dphmm import Measurements, PolicyGraph, SensitivityHull, degree_of_protection, protect
from dphmm.geometry.hull import CrossPolytope

KINDS = ("complete", "categorical", "utility", "listed", "union", "intersection", "transition")


def instance(kind: str, dimension: int, seed: int, whole: bool) -> tuple[PolicyGraph, np.ndarray]:
    rng, size = np.random.default_rng(seed), 40 if dimension < 5 else 20
    f = rng.integers(0, 9, (size, dimension)).astype(float) if whole else rng.normal(size=(size, dimension))
    radius = float(np.median(np.linalg.norm(f[:, None] - f[None], axis=2)))
    edges = rng.integers(0, size, (3 * size, 2))
    listed = PolicyGraph.from_edges(size, edges[edges[:, 0] != edges[:, 1]])
    made = {
        "complete": lambda: PolicyGraph.complete(size),
        "categorical": lambda: PolicyGraph.categorical(rng.integers(0, 3, size)),
        "utility": lambda: PolicyGraph.utility(f, radius),
        "listed": lambda: listed,
        "union": lambda: listed | PolicyGraph.utility(f, radius / 2),
        "intersection": lambda: PolicyGraph.complete(size) & PolicyGraph.utility(f, radius),
        "transition": lambda: PolicyGraph.transition((rng.random((size, size)) < 0.2).astype(float) + np.eye(size)),
    }
    return made[kind](), f


def counted(monkeypatch) -> list[int]:
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
def test_hull_is_that_of_all_differences_and_takes_one_call(kind, dimension, whole, monkeypatch):
    graph, f = instance(kind, dimension, dimension, whole)
    measurements = Measurements(f)
    for constraint in (None, np.random.default_rng(1).random(graph.size) < 0.7):
        restricted = graph if constraint is None else graph.restrict(constraint)
        edges = restricted.edge_array()
        differences = f[edges[:, 0]] - f[edges[:, 1]]
        expected = scipy.spatial.ConvexHull(np.concatenate([differences, -differences])).volume
        with monkeypatch.context() as patch:
            calls = counted(patch)
            hull = measurements.to_units(restricted.hull(measurements))
            # Complete policies sift their points by a hull of them first. Nothing else is computed until it is needed.
            assert len(calls) == (kind == "complete")
            assert hull.volume == pytest.approx(expected, rel=1e-9)
            assert len(hull.vertices) > dimension
            assert len(calls) == 1 + (kind == "complete")
        assert (hull.norm(differences) <= 1 + 1e-9).all()
        spanning = restricted.differences(f)
        assert SensitivityHull(spanning).volume == pytest.approx(expected, rel=1e-9)
        pairs = {tuple(np.round(d, 9)) for d in np.concatenate([differences, -differences, differences[:1] * 0])}
        assert {tuple(np.round(d, 9) + 0.0) for d in spanning} <= {tuple(np.array(d) + 0.0) for d in pairs}


def test_large_groups_and_small_blocks_give_the_same_body(monkeypatch):
    """Groups are compared by the hulls of their points, and points replaced by vertices, only to save memory."""
    rng = np.random.default_rng(2)
    f, labels = rng.normal(size=(120, 3)), rng.integers(0, 2, 120)
    expected = PolicyGraph.categorical(labels).hull(Measurements(f)).volume
    monkeypatch.setattr("dphmm.policy.cliques._SMALL_GROUP_IN_SPACE", 4)
    assert PolicyGraph.categorical(labels).hull(Measurements(f)).volume == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr("dphmm.geometry.incremental_hull._MAX_POINTS", 50)
    monkeypatch.setattr("dphmm.policy.cliques._PAIRS_AT_A_TIME", 64)
    assert PolicyGraph.categorical(labels).hull(Measurements(f)).volume == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("calibration", ["graph", "component"])
def test_noise_of_a_cross_polytope_needs_no_hull(calibration, monkeypatch):
    """In twelve dimensions the hull would have more than two million facets; the radius is the longest edge."""
    rng = np.random.default_rng(3)
    f = rng.integers(0, 9, (60, 12)).astype(float)
    graph = PolicyGraph.categorical(np.r_[np.repeat(np.arange(5), 11), np.arange(5, 10)])
    calls = counted(monkeypatch)
    found = protect(graph, f, np.ones(60, dtype=bool), body="cross-polytope", calibration=calibration)
    edges = found.graph.edge_array()
    lengths = np.abs(f[edges[:, 0]] - f[edges[:, 1]]).sum(axis=1)
    assert isinstance(found.body, CrossPolytope)
    assert found.body.radii.tolist() == pytest.approx([lengths.max()] * 12)
    assert len(found.added) >= (3 if calibration == "component" else 0)
    assert (found.degrees > 1).all()
    for state, partner in found.added:
        assert np.abs(f[state] - f[partner]).sum() <= lengths.max()
    assert calls == []
    if calibration == "graph":
        apart = np.abs(f[:, None] - f[None]).sum(axis=2)
        assert found.diameter == pytest.approx(apart.max() / lengths.max(), rel=1e-12)
        np.testing.assert_array_equal(found.degrees, (apart <= lengths.max()).sum(axis=1))


@pytest.mark.parametrize("dimension", [3, 4])
def test_degrees_of_both_memberships_agree_in_space(dimension):
    graph, f = instance("listed", dimension, 7, True)
    expected = degree_of_protection(graph, f)
    np.testing.assert_array_equal(degree_of_protection(graph, f, membership="qp"), expected)
