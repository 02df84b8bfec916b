"""What is looked at before a draw: compiled loops and numpy give the same bits, and what every pair gives."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import SensitivityHull
from dphmm.compilation import Often
from dphmm.geometry import check_loops, gauge
from dphmm.geometry.measurements import Measurements
from dphmm.geometry.neighbours import CoordinateBody, count_within
from dphmm.policy import PolicyGraph, cliques, protect
from dphmm.release import soundness
from tests.forms import forms_of


def places(seed: int) -> np.ndarray:
    """Points of many kinds: whole numbers, floats, columns and rows, many in one place."""
    rng = np.random.default_rng(seed)
    points = rng.integers(-9, 10, (int(rng.integers(3, 60)), 2)).astype(np.float64)
    return points * [1.0, 0.7] if seed % 3 == 1 else points + rng.normal(size=points.shape) * (seed % 3 == 2)


@pytest.mark.parametrize("seed", range(30))
def test_walls_hold_what_the_hull_holds_and_no_more(seed):
    hull = SensitivityHull(places(seed))
    found = []
    for form in forms_of(gauge._walls_of_cones):
        normals, limits = np.empty((len(hull.cones), 2)), np.empty(len(hull.cones))
        assert form(hull.cones, 1.5, 1e-6, 1e-9, normals, limits)
        found.append((normals, limits))
    for normals, limits in found:
        np.testing.assert_array_equal(normals, found[0][0])
        np.testing.assert_array_equal(limits, found[0][1])
        vectors = np.random.default_rng(seed).normal(size=(200, 2)) * 9
        gauged = (np.abs(vectors @ normals.T) / limits).max(axis=1)
        np.testing.assert_allclose(gauged, hull.norm(vectors) / 1.5, rtol=1e-4)
        assert (gauged <= hull.norm(vectors) / 1.5).all(), "a loss that is kept must not be called broken"


@pytest.mark.parametrize("seed", range(10))
def test_cones_out_of_order_are_no_body(seed):
    hull = SensitivityHull([*places(3 * seed).tolist(), [14, 3], [3, 14], [-11, 11]])
    broken = hull.cones.copy()
    broken[0, 0] *= 1.01
    for form in forms_of(gauge._walls_of_cones):
        assert not form(broken, 1.0, 0.0, 1e-9, np.empty((len(broken), 2)), np.empty(len(broken)))


@pytest.mark.parametrize("seed", range(30))
def test_rows_are_as_wide_as_all_pairs_are(seed):
    points, rng = places(seed), np.random.default_rng(seed)
    order = np.lexsort((points[:, 0], points[:, 1]))
    nodes = rng.random(len(points)) < (0.0 if seed == 0 else rng.random())
    normals, limits = rng.normal(size=(7, 2)), rng.random(7)
    pairs = (points[nodes][:, None] - points[nodes]).reshape(-1, 2)
    wanted = (np.abs(pairs @ normals.T) / limits).max(initial=0.0)
    given = nodes, order, np.ascontiguousarray(points[order].T), normals, limits
    found = [form(*given) for form in forms_of(cliques._widest_of_rows)]
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(wanted, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_alone_is_who_has_no_member_within_reach(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40))
    partner, distance = rng.integers(0, size, size), rng.random(size)
    members, hidden = rng.random((2, size)) < rng.random((2, 1))
    wanted = [i for i in range(size) if hidden[i] and not (members[partner[i]] and distance[i] <= 0.6)]
    for form in forms_of(soundness._alone_among):
        out = np.empty(size, dtype=np.int64)
        assert out[: form(partner, distance, members, hidden, 0.6, out)].tolist() == wanted


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("body", ["hull", "cross-polytope", "disc"])
def test_whom_the_complete_policy_hides_among_need_not_be_counted(seed, body):
    points, rng = places(seed), np.random.default_rng(seed)
    possible = rng.random(len(points)) < 0.5
    possible[:2] = True
    measurements = Measurements(points)
    found = protect(PolicyGraph.complete(len(points)), measurements, possible, body=body)
    around = SensitivityHull(found.body.vertices / measurements.spacing) if body != "disc" else found.body
    counted = CoordinateBody(measurements, found.coordinate_hull if body == "hull" else around)
    np.testing.assert_array_equal(found.degrees, count_within(counted, possible))
    assert found.diameter == pytest.approx(counted.diameter(possible), rel=1e-9)


def test_every_loop_has_a_plain_form():
    modules = (gauge, cliques, soundness)
    known = {one.loop for module in modules for one in vars(module).values() if isinstance(one, Often)}
    assert known == {
        one for one in vars(check_loops).values() if getattr(one, "__module__", "") == check_loops.__name__
    }
