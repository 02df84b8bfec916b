"""The independent gauge, against the norms of hulls, which use different code."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import SensitivityHull
from dphmm.errors import GuaranteeError
from dphmm.geometry.gauge import Gauge
from dphmm.geometry.sensitivity_hull import Disc

RNG = np.random.default_rng(0)
HULLS = {
    "point": SensitivityHull(np.zeros((0, 2))),
    "line": SensitivityHull([[3.0]]),
    "segment": SensitivityHull([[3, 4]]),
    "polygon": SensitivityHull(RNG.integers(-9, 9, (7, 2))),
    "scattered polygon": SensitivityHull(RNG.normal(size=(9, 2))),
    "sliver": SensitivityHull([[10**6, 10**6 - 1], [10**6 - 1, 10**6 - 2]]),
    "segment in space": SensitivityHull([[1, 2, 3]]),
    "plane in space": SensitivityHull([[1, 2, 3], [0, 1, -1], [1, 3, 2]]),
    "body in space": SensitivityHull(RNG.normal(size=(12, 3))),
    "body in four dimensions": SensitivityHull(RNG.integers(-3, 4, (12, 4))),
}


@pytest.mark.parametrize("name", HULLS)
@pytest.mark.parametrize("scale", [1.0, 0.25, 8.0])
def test_gauge_of_hull_cones_matches_norm(name, scale):
    hull = HULLS[name]
    gauge = Gauge.from_cones(hull.cones, scale, 0.0)
    inside = RNG.integers(-3, 4, (50, len(hull.vertices))) @ hull.vertices
    vectors = np.concatenate([scale * hull.vertices, inside])
    across = 0.0 if hull.dimension > 1 else 0.1  # rounding error of a flat body's wall
    np.testing.assert_allclose(gauge(vectors), hull.norm(vectors) / scale, rtol=3e-9, atol=across)
    assert (gauge(scale * hull.vertices) <= 1).all()
    if name != "point":
        assert (gauge(scale * hull.vertices * (1 + 1e-8)) > 1).all()
    off = RNG.normal(size=(20, hull.ambient_dimension))
    assert ((gauge(off) > 1) == (hull.norm(off) > scale)).all()


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dimension", [1, 2, 3, 9])
def test_gauge_of_ball_matches_norm(order, dimension):
    gauge, vectors = Gauge.from_ball(order, 2.5, dimension, 0.0), RNG.normal(size=(40, dimension))
    np.testing.assert_allclose(gauge(vectors), np.linalg.norm(vectors, ord=order, axis=1) / 2.5, rtol=3e-9)


@pytest.mark.parametrize("gauge", [Gauge.from_cones(HULLS["polygon"].cones, 2.0, 0.0), Gauge.from_ball(2, 1.5, 2, 0.0)])
def test_embedded_distances_match_gauge(gauge):
    points = RNG.normal(size=(30, 2))
    placed, order = gauge.embed_points(points)
    apart = np.linalg.norm(placed[1:] - placed[:1], ord=order, axis=1)
    np.testing.assert_allclose(apart, gauge(points[1:] - points[:1]), rtol=1e-12)
    directions = Disc(1.0).norm(points)[:, None]
    assert (gauge(points / directions * gauge.inner) <= 1 + 1e-12).all()
    assert (gauge(points / directions * gauge.inner) > 0.99).any() or gauge.normals is not None


@pytest.mark.parametrize("name", ["segment", "segment in space", "plane in space"])
def test_distant_integer_points_are_decided_exactly_for_flat_bodies(name):
    hull, d = HULLS[name], HULLS[name].ambient_dimension
    gauge = Gauge.from_cones(hull.cones, 1.0, 0.0)
    points = RNG.integers(-(10**7), 10**7, (200, d)).astype(float)
    placed, order = gauge.embed_points(points)
    for tip in hull.vertices:
        moved = gauge.embed_points(points + tip)[0]
        assert (np.linalg.norm(moved - placed, ord=order, axis=1) <= 1).all()
        off_span = gauge.embed_points(points + tip + np.eye(d)[0])[0]
        assert (np.linalg.norm(off_span - placed, ord=order, axis=1) > 1).all()


def test_rounding_length_widens_body_in_every_direction():
    flat = Gauge.from_cones(HULLS["segment"].cones, 1.0, 1e-3)
    assert flat([[3.0, 4.0 + 1e-3]])[0] <= 1 < flat([[3.0, 4.0 + 3e-3]])[0]
    assert flat([[3e-4, 4e-4 - 5e-4]])[0] <= 1


@pytest.mark.parametrize(
    "cones",
    [
        [[[1.0, 0.0], [0.1, 0.1]], [[0.1, 0.1], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]],
        [[[1.0, 0.0], [2.0, 0.0]]],
        [[[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]],
    ],
    ids=["not convex", "flat", "flat in space"],
)
def test_invalid_cones_raise(cones):
    with pytest.raises(GuaranteeError, match=r"the cones of the noise must .* aborted"):
        Gauge.from_cones(np.array(cones), 1.0, 0.0)
