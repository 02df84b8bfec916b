"""The cross-polytope in closed form, against the same body as a hull."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import SensitivityHull
from dphmm.errors import InvalidInputError
from dphmm.geometry.sensitivity_hull import CrossPolytope


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 5])
def test_cross_polytope_matches_hull_of_its_tips(dimension):
    rng = np.random.default_rng(dimension)
    radii = rng.uniform(0.5, 3.0, dimension)
    body, hull = CrossPolytope(radii), SensitivityHull(np.diag(radii))
    vectors = rng.normal(size=(50, dimension))
    np.testing.assert_allclose(body.norm(vectors), hull.norm(vectors), rtol=1e-13)
    np.testing.assert_allclose(body.second_moments, hull.second_moments, rtol=1e-12, atol=1e-15)
    assert body.volume == pytest.approx(hull.volume, rel=1e-13)
    assert body.squared_error == pytest.approx(hull.squared_error, rel=1e-13)
    assert body.circumradius == radii.max()
    assert body.cone_volumes.sum() == pytest.approx(body.volume, rel=1e-13)
    assert {tuple(v) for v in body.vertices.tolist()} == {tuple(v) for v in hull.vertices.tolist()}
    stretch = rng.uniform(0.5, 2.0, dimension)
    np.testing.assert_allclose(
        body.scale_axes(stretch).norm(vectors), hull.scale_axes(stretch).norm(vectors), rtol=1e-13
    )


def test_integer_boundary_points_are_decided_exactly():
    radius = 2**40 + 1
    body = CrossPolytope(np.full(4, float(radius)))
    at = np.array([[2**40, 1, 0, 0], [2**40, 0, 1, 1]])
    assert body.contains(at).tolist() == [True, False]


@pytest.mark.parametrize(("count", "dimension"), [(5, 6), (200, 3), (30, 12)])
def test_diameter_is_largest_norm_of_differences(count, dimension):
    """Computed by pairs if there are fewer points than facets, otherwise by facets."""
    rng = np.random.default_rng(count)
    points, radii = rng.normal(size=(count, dimension)), rng.uniform(1.0, 2.0, dimension)
    expected = (np.abs(points[:, None] - points[None]) / radii).sum(axis=2).max()
    assert CrossPolytope(radii).norm_form.diameter(points) == pytest.approx(expected, rel=1e-13)


def test_facets_are_not_enumerated_in_thirty_dimensions():
    body = CrossPolytope(np.ones(30))
    assert body.norm(np.ones(30)) == 30.0
    assert body.squared_error == pytest.approx(60.0, rel=1e-13)
    assert body.contains(np.eye(30)).all()
    with pytest.raises(InvalidInputError, match="facets"):
        _ = body.cones
