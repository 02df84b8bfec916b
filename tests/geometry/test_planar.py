"""Polygons: growth and difference bodies against building the hull anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dphmm.geometry import planar
from dphmm.geometry.hull import SensitivityHull
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody, origin

points = hnp.arrays(np.int64, st.tuples(st.integers(1, 14), st.just(2)), elements=st.integers(-9, 9))


def symmetric(differences):
    return planar.convex_polygon(np.concatenate([differences, -differences]))


@given(points, points)
def test_growth_is_the_difference_of_areas(differences, vectors):
    polygon = symmetric(differences)
    growth = PlanarBody(polygon).growth(vectors)
    for vector, gained in zip(vectors, growth, strict=True):
        larger = planar.convex_polygon(np.concatenate([polygon, [vector], [-vector]]))
        assert planar.doubled_area(larger) - planar.doubled_area(polygon) == 2 * gained


@given(points, points)
def test_planar_and_spatial_bodies_agree(differences, vectors):
    planar_body, spatial = (kind(symmetric(np.vstack([differences, [[0, 0]]]))) for kind in (PlanarBody, GrowingBody))
    np.testing.assert_allclose(planar_body.volume, spatial.volume)
    np.testing.assert_allclose(planar_body.growth(vectors), spatial.growth(vectors))
    np.testing.assert_array_equal(planar_body.contains(vectors), spatial.contains(vectors))
    np.testing.assert_array_equal(planar_body.grow(vectors).vertices, spatial.grow(vectors).vertices)


@given(points)
def test_difference_polygon_is_the_hull_of_all_differences(cloud):
    every = planar.convex_polygon((cloud[:, None] - cloud[None]).reshape(-1, 2))
    np.testing.assert_array_equal(planar.difference_polygon(planar.convex_polygon(cloud)), every)
    np.testing.assert_array_equal(planar.difference_polygon(planar.convex_polygon(cloud.astype(float))), every)


def test_many_points_take_the_filtered_path_and_give_the_same_polygon():
    rng = np.random.default_rng(6)
    for cloud in (rng.integers(-40, 40, (3000, 2)), rng.normal(size=(3000, 2))):
        few = planar.convex_polygon(np.concatenate([planar.convex_polygon(cloud), cloud[:300]]))
        np.testing.assert_array_equal(planar.convex_polygon(cloud), few)


@given(points, points)
def test_body_grows_to_the_hull_of_everything_added_and_stays_itself(first, second):
    body = origin(first)
    grown = body.grow(first).grow(second)
    np.testing.assert_array_equal(grown.vertices, symmetric(np.concatenate([first, second, [[0, 0]]])))
    assert body.vertices.tolist() == [[0, 0]]


@given(st.integers(0, 2**32 - 1), st.integers(2, 400))
def test_where_a_side_turns_the_other_way_there_is_no_corner(seed, rows):
    """Of both ends of rows, the corners of the hull stay; a chain that is bent everywhere stays as it is."""
    rng = np.random.default_rng(seed)
    y, widths = np.arange(rows), rng.integers(0, 1 + rng.integers(1, 2000), rows)
    if rng.random() < 0.5:
        widths = np.rint(np.sqrt(np.maximum(0, rows**2 / 4 - (y - rows / 2) ** 2)) * rng.integers(1, 9)).astype(
            np.int64
        )
    middle = rng.integers(-9, 10, rows)
    left, right = np.stack([middle - widths, y], axis=1), np.stack([middle + widths, y], axis=1)
    whole = planar.convex_polygon(np.concatenate([left, right]))
    fewer = np.concatenate([planar.bending(left[::-1]), planar.bending(right)])
    np.testing.assert_array_equal(planar.convex_polygon(fewer), whole)
    np.testing.assert_array_equal(planar.polygon_of_rows(left, right), whole)
    curve = np.stack([y**2, y], axis=1)[::-1]
    np.testing.assert_array_equal(planar.bending(curve), curve)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_the_polygon_of_a_few_rows_is_that_of_all_their_points(points):
    """Among them points and segments."""
    first, last = (
        np.array([[pick(x for x, y in points if y == row), row] for row in sorted({y for _, y in points})])
        for pick in (min, max)
    )
    np.testing.assert_array_equal(planar.polygon_of_rows(first, last), planar.convex_polygon(np.array(points)))


@pytest.mark.parametrize("dimension", [2, 3])
def test_a_sheared_lattice_of_floats_has_no_edges_made_by_rounding(dimension, monkeypatch):
    """Its differences are met a few units in the last place apart; edges between them lead anywhere."""
    blurred = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        whole = rng.integers(0, 7, (int(rng.integers(4, 30)), 2))
        shear = rng.normal(size=(2, dimension))
        among = (whole[:, None] - whole[None]).reshape(-1, 2)
        among = among[np.linalg.norm(among @ shear, axis=1) <= 0.5 * np.ptp(whole @ shear)]
        if np.linalg.matrix_rank(among) < 2:
            continue
        points = whole @ shear
        apart = (points[:, None] - points[None]).reshape(-1, dimension)
        hull = SensitivityHull(apart[np.linalg.norm(apart, axis=1) <= 0.5 * np.ptp(points)])
        exact = SensitivityHull(among)
        edges = np.diff(hull.vertices, axis=0, append=hull.vertices[:1])
        assert np.linalg.norm(edges, axis=1).min() > 1e-3
        np.testing.assert_allclose(hull.norm(among @ shear), exact.norm(among), rtol=0, atol=1e-9)
        with monkeypatch.context() as patch:
            patch.setattr(planar, "_MANY", 10**9)  # Qhull merges most of them, the scan none
            plain = planar.convex_polygon(np.concatenate([hull.differences, -hull.differences])[:, :2])
        blurred += np.linalg.norm(np.diff(plain, axis=0), axis=1).min() < 1e-12
    assert blurred > 2, "the scan by itself makes such edges now and then"


@pytest.mark.parametrize("seed", range(20))
def test_many_points_have_the_polygon_that_the_scan_finds(seed, monkeypatch):
    """Floats in general position come from Qhull; narrow integers are sifted by it, and all integers are exact."""
    rng = np.random.default_rng(seed)
    width = [3, 100, 2**16, 2**16 + 9, 2**27][seed % 5]
    sets = (
        rng.normal(size=(700, 2)),
        rng.integers(-width, width + 1, (700, 2)),
        rng.integers(-width, width + 1, (300, 2)),
    )
    found = [planar.convex_polygon(points) for points in sets]
    monkeypatch.setattr(planar, "_MANY", 10**9)
    for points, polygon in zip(sets, found, strict=True):
        np.testing.assert_array_equal(polygon, planar.convex_polygon(points))


@pytest.mark.parametrize("points", [np.ones((300, 2)), np.outer(np.arange(300), [1.0, 2.0])], ids=["point", "segment"])
def test_many_degenerate_floats_go_through_the_scan(points):
    np.testing.assert_array_equal(planar.convex_polygon(points), np.unique(points[[0, -1]], axis=0))


def test_a_polygon_without_blur_stays_as_it_is():
    rng = np.random.default_rng(2)
    for thin in (1.0, 1e-3, 1e-7):
        points = rng.normal(size=(30, 2)) * [1.0, thin]
        polygon = planar.convex_polygon(np.concatenate([points, -points]))
        assert planar.without_blur(polygon) is polygon
