"""Lower bounds on the error of larger bodies, against closed-form errors of such bodies."""

from __future__ import annotations

import numpy as np
import pytest
import shapely
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dphmm import SensitivityHull
from dphmm.geometry import planar
from dphmm.geometry.incremental_hull import build_growing_body
from dphmm.geometry.least_error import (
    compute_error_floor,
    compute_open_bounds,
    compute_polygon_error,
    compute_reach_bounds,
)
from tests.sizes import choose_count

CLOSE = 1 + 1e-9


def vectors(d, maximum=6):
    return st.lists(st.tuples(*[st.integers(-9, 9)] * d), min_size=1, max_size=maximum).map(np.array)


pairs = st.sampled_from([2, 3]).flatmap(lambda d: st.tuples(vectors(d), vectors(d)))


def compute_error(*differences):
    return SensitivityHull(np.concatenate(differences)).squared_error


def compute_corners(differences):
    return planar.build_convex_polygon(np.concatenate([differences, -differences])).astype(float)


@given(vectors(2), vectors(2))
def test_error_floor_is_below_error_of_every_larger_body(inner, extra):
    assert compute_error_floor(compute_corners(inner)) <= compute_error(inner, extra) * CLOSE + 1e-12


def test_error_floor_is_exact_for_disc_and_segment():
    angles = np.linspace(0, np.pi, 200, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert compute_error_floor(compute_corners(3 * circle)) == pytest.approx(6 * 3**2, rel=1e-3)
    assert compute_error_floor(np.array([[-3.0, -4.0], [3.0, 4.0]])) == pytest.approx(compute_error([[3, 4]])) == 50


@pytest.mark.parametrize("differences", [[[10, 1], [10, -1]], [[9, 2], [-3, 2]], [[4, 3], [-3, 4], [5, 5]]], ids=repr)
def test_error_floor_is_error_of_union_with_disc(differences):
    """The union is star-shaped. Shapely builds it with a disc of 4,000 corners."""
    inner = compute_corners(np.array(differences))
    floor = compute_error_floor(inner)
    union = shapely.Polygon(inner).union(shapely.Point(0, 0).buffer(np.sqrt(floor / 12), quad_segs=1000))
    assert compute_polygon_error(shapely.get_coordinates(shapely.normalize(union).exterior)[-1:0:-1]) == pytest.approx(
        floor, rel=1e-5
    )


def test_error_floor_uses_unit_of_spacing():
    body, spacing = build_growing_body(compute_corners(np.array([[4, 1], [-2, 3]]))), np.array([0.5, 3.0])
    assert body.compute_error_floor(spacing) == compute_error_floor(body.vertices * spacing)
    assert body.compute_error_floor(2 * spacing) == pytest.approx(4 * body.compute_error_floor(spacing))
    vectors, level = np.array([[4.0, 2.0], [9.0, 0.0], [-1.0, 4.0], [0.0, 8.0]]), 1.5 * body.squared_error(spacing)
    bounds = body.compute_open_bounds(vectors, spacing, level)
    np.testing.assert_array_equal(bounds, compute_open_bounds(body.vertices * spacing, vectors * spacing, level))
    assert np.isfinite(bounds).any()
    assert np.isinf(bounds).any()


def test_error_floor_of_long_body_is_below_its_error():
    long = compute_corners(np.array([[10.0, 1.0], [10.0, -1.0]]))
    fat = np.array([[0.0, 6.0]])
    assert compute_error(long, fat) < compute_polygon_error(long)
    assert compute_error_floor(long) < compute_error(long, fat)


@given(vectors(2))
def test_polygon_error_matches_hull(inner):
    assume(len(compute_corners(inner)) > 2)
    assert compute_polygon_error(compute_corners(inner)) == pytest.approx(compute_error(inner))


@settings(max_examples=choose_count(50, 20))
@given(pairs)
def test_reach_bounds_are_below_error_of_larger_bodies(pair):
    inner, extra = pair
    for bound in compute_reach_bounds(np.concatenate([inner, -inner]).astype(float), extra.astype(float)):
        assert bound <= compute_error(inner, extra) * CLOSE


@pytest.mark.parametrize("d", [1, 2, 3])
def test_reach_bound_is_tight_for_orthogonal_double_cones(d):
    axes = np.diag(np.arange(1.0, d + 1))
    bounds = compute_reach_bounds(np.concatenate([axes[1:], -axes[1:], np.zeros((1, d))]), axes[:1])
    assert bounds[0] == pytest.approx(compute_error(axes)) == pytest.approx(2 * (axes**2).sum())


@settings(max_examples=choose_count(60, 20))
@given(pairs)
def test_vectors_of_better_bodies_have_bounds_within_level(pair):
    inner, extra = pair
    level = compute_error(inner, extra) * CLOSE
    assume(level > 0)
    body = build_growing_body(
        compute_corners(inner) if inner.shape[1] == 2 else np.concatenate([inner, -inner]).astype(float)
    )
    bounds = body.compute_open_bounds(extra.astype(float), np.ones(inner.shape[1]), level)
    assert (bounds <= level).all()
    assert body.compute_error_floor(np.ones(inner.shape[1])) <= level


def test_vectors_outside_better_bodies_have_infinite_bound():
    square = compute_corners(np.array([[3.0, 0.0], [0.0, 3.0]]))
    bounds = compute_open_bounds(
        square, np.array([[2.0, 2.0], [5.0, 5.0], [9.0, 0.0]]), compute_polygon_error(square) * 1.2
    )
    assert np.isfinite(bounds).tolist() == [True, False, False]
