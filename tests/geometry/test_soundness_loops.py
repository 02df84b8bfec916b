"""Loops of the soundness check: compiled and NumPy forms agree, and match all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import SensitivityHull
from dphmm.compilation import HotFunction
from dphmm.geometry import gauge, soundness_loops
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.policy import PolicyGraph, cliques, protect
from dphmm.release import soundness
from tests.forms import list_forms


def sample_points(seed: int) -> np.ndarray:
    """Sample integer, float, collinear and repeated points."""
    rng = np.random.default_rng(seed)
    points = rng.integers(-9, 10, (int(rng.integers(3, 60)), 2)).astype(np.float64)
    return points * [1.0, 0.7] if seed % 3 == 1 else points + rng.normal(size=points.shape) * (seed % 3 == 2)


@pytest.mark.parametrize("seed", range(30))
def test_walls_match_hull_from_inside(seed):
    hull = SensitivityHull(sample_points(seed))
    results = []
    for form in list_forms(gauge._compute_halfspaces):
        normals, limits = np.empty((len(hull.cones), 2)), np.empty(len(hull.cones))
        assert form(hull.cones, 1.5, 1e-6, 1e-9, normals, limits)
        results.append((normals, limits))
    for normals, limits in results:
        np.testing.assert_array_equal(normals, results[0][0])
        np.testing.assert_array_equal(limits, results[0][1])
        vectors = np.random.default_rng(seed).normal(size=(200, 2)) * 9
        gauged = (np.abs(vectors @ normals.T) / limits).max(axis=1)
        np.testing.assert_allclose(gauged, hull.norm(vectors) / 1.5, rtol=1e-4)
        assert (gauged <= hull.norm(vectors) / 1.5).all(), "a valid loss must not be rejected"


@pytest.mark.parametrize("seed", range(10))
def test_unordered_cones_are_rejected(seed):
    hull = SensitivityHull([*sample_points(3 * seed).tolist(), [14, 3], [3, 14], [-11, 11]])
    broken = hull.cones.copy()
    broken[0, 0] *= 1.01
    for form in list_forms(gauge._compute_halfspaces):
        assert not form(broken, 1.0, 0.0, 1e-9, np.empty((len(broken), 2)), np.empty(len(broken)))


@pytest.mark.parametrize("seed", range(30))
def test_widest_row_difference_matches_all_pairs(seed):
    points, rng = sample_points(seed), np.random.default_rng(seed)
    order = np.lexsort((points[:, 0], points[:, 1]))
    nodes = rng.random(len(points)) < (0.0 if seed == 0 else rng.random())
    normals, limits = rng.normal(size=(7, 2)), rng.random(7)
    pairs = (points[nodes][:, None] - points[nodes]).reshape(-1, 2)
    wanted = (np.abs(pairs @ normals.T) / limits).max(initial=0.0)
    arguments = nodes, order, np.ascontiguousarray(points[order].T), normals, limits
    widths = [form(*arguments) for form in list_forms(cliques._measure_widths)]
    assert len(set(widths)) == 1
    assert widths[0] == pytest.approx(wanted, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_states_without_partner_match_plain_loop(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    partner, distance = rng.integers(0, size, size), rng.random(size)
    members, hidden = rng.random((2, size)) < rng.random((2, 1))
    wanted = [i for i in range(size) if hidden[i] and not (members[partner[i]] and distance[i] <= 0.6)]
    for form in list_forms(soundness._find_without_partner):
        out = np.empty(size, dtype=np.int64)
        assert out[: form(partner, distance, members, hidden, 0.6, out)].tolist() == wanted


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("body", ["hull", "cross-polytope", "disc"])
def test_complete_policy_degrees_match_counts(seed, body):
    points, rng = sample_points(seed), np.random.default_rng(seed)
    possible = rng.random(len(points)) < 0.5
    possible[:2] = True
    measurements = Measurements(points)
    repaired = protect(PolicyGraph.complete(len(points)), measurements, possible, body=body)
    around = SensitivityHull(repaired.body.vertices / measurements.spacing) if body != "disc" else repaired.body
    counted = CoordinateBody(measurements, repaired.coordinate_hull if body == "hull" else around)
    np.testing.assert_array_equal(repaired.degrees, count_within(counted, possible))
    assert repaired.diameter == pytest.approx(counted.diameter(possible), rel=1e-9)


def test_every_compiled_loop_has_plain_form():
    modules = (gauge, cliques, soundness)
    loops = {member.loop for module in modules for member in vars(module).values() if isinstance(member, HotFunction)}
    assert loops == {
        member
        for member in vars(soundness_loops).values()
        if getattr(member, "__module__", "") == soundness_loops.__name__
    }
