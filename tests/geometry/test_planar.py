"""Planar polygons: growth and difference bodies, against new hulls."""

from __future__ import annotations

from fractions import Fraction
from operator import mul

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dphmm.arrays import read_only
from dphmm.geometry import planar
from dphmm.geometry.incremental_hull import GrowingBody, PlanarBody, build_origin
from dphmm.geometry.sensitivity_hull import SensitivityHull
from tests.forms import list_forms

points = hnp.arrays(np.int64, st.tuples(st.integers(1, 14), st.just(2)), elements=st.integers(-9, 9))


def build_symmetric_polygon(differences):
    return planar.build_convex_polygon(np.concatenate([differences, -differences]))


@given(points, points)
def test_growth_is_difference_of_areas(differences, vectors):
    polygon = build_symmetric_polygon(differences)
    growth = PlanarBody(polygon).compute_growth(vectors)
    for vector, gained in zip(vectors, growth, strict=True):
        larger = planar.build_convex_polygon(np.concatenate([polygon, [vector], [-vector]]))
        assert planar.doubled_area(larger) - planar.doubled_area(polygon) == 2 * gained


@given(points, points)
def test_planar_and_spatial_bodies_agree(differences, vectors):
    planar_body, spatial = (
        kind(build_symmetric_polygon(np.vstack([differences, [[0, 0]]]))) for kind in (PlanarBody, GrowingBody)
    )
    np.testing.assert_allclose(planar_body.volume, spatial.volume)
    np.testing.assert_allclose(planar_body.compute_growth(vectors), spatial.compute_growth(vectors))
    np.testing.assert_array_equal(planar_body.contains(vectors), spatial.contains(vectors))
    np.testing.assert_array_equal(planar_body.grow(vectors).vertices, spatial.grow(vectors).vertices)


@given(points)
def test_difference_polygon_is_hull_of_all_differences(cloud):
    all_differences = planar.build_convex_polygon((cloud[:, None] - cloud[None]).reshape(-1, 2))
    np.testing.assert_array_equal(planar.build_difference_polygon(planar.build_convex_polygon(cloud)), all_differences)
    np.testing.assert_array_equal(
        planar.build_difference_polygon(planar.build_convex_polygon(cloud.astype(float))), all_differences
    )


def test_filtered_path_gives_same_polygon_for_many_points():
    rng = np.random.default_rng(6)
    for cloud in (rng.integers(-40, 40, (3000, 2)), rng.normal(size=(3000, 2))):
        few = planar.build_convex_polygon(np.concatenate([planar.build_convex_polygon(cloud), cloud[:300]]))
        np.testing.assert_array_equal(planar.build_convex_polygon(cloud), few)


@given(points, points)
def test_grown_body_is_hull_of_all_vectors_and_original_is_unchanged(first, second):
    body = build_origin(first)
    grown = body.grow(first).grow(second)
    np.testing.assert_array_equal(grown.vertices, build_symmetric_polygon(np.concatenate([first, second, [[0, 0]]])))
    assert body.vertices.tolist() == [[0, 0]]


@given(st.integers(0, 2**32 - 1), st.integers(2, 400))
def test_bending_keeps_hull_corners_of_rows(seed, rows):
    """The corners of the hull of both row ends stay, and a strictly bent chain is unchanged."""
    rng = np.random.default_rng(seed)
    y, widths = np.arange(rows), rng.integers(0, 1 + rng.integers(1, 2000), rows)
    if rng.random() < 0.5:
        widths = np.rint(np.sqrt(np.maximum(0, rows**2 / 4 - (y - rows / 2) ** 2)) * rng.integers(1, 9)).astype(
            np.int64
        )
    middle = rng.integers(-9, 10, rows)
    left, right = np.stack([middle - widths, y], axis=1), np.stack([middle + widths, y], axis=1)
    whole = planar.build_convex_polygon(np.concatenate([left, right]))
    bent = np.concatenate([planar.select_left_turns(left[::-1]), planar.select_left_turns(right)])
    np.testing.assert_array_equal(planar.build_convex_polygon(bent), whole)
    np.testing.assert_array_equal(planar.build_polygon(left, right), whole)
    curve = np.stack([y**2, y], axis=1)[::-1]
    np.testing.assert_array_equal(planar.select_left_turns(curve), curve)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12))
def test_polygon_of_rows_matches_all_points(points):
    """Points and segments are included."""
    first, last = (
        np.array([[pick(x for x, y in points if y == row), row] for row in sorted({y for _, y in points})])
        for pick in (min, max)
    )
    np.testing.assert_array_equal(planar.build_polygon(first, last), planar.build_convex_polygon(np.array(points)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.sampled_from([3, 2**28 - 1]))
def test_compiled_and_plain_chains_are_equal(seed, rows, largest):
    rng = np.random.default_rng(seed)
    rows_up = np.arange(rows) * max(1, largest // 300)
    points = read_only(np.stack([rng.integers(-largest, largest + 1, rows), rows_up], axis=1))
    chains = []
    for form in list_forms(planar._write_chain):
        corners = np.empty_like(points)
        chains.append(corners[: form(points, corners)].tolist())
    assert all(chain == chains[0] for chain in chains)


@pytest.mark.parametrize("dimension", [2, 3])
def test_sheared_float_lattice_has_no_edges_from_rounding(dimension, monkeypatch):
    """Its differences vary by a few units in the last place. Edges between them are arbitrary."""
    obfuscated = 0
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
            patch.setattr(planar, "_MIN_QHULL_POINTS", 10**9)  # Qhull merges most of these edges, the scan none
            plain = planar.build_convex_polygon(np.concatenate([hull.differences, -hull.differences])[:, :2])
        obfuscated += np.linalg.norm(np.diff(plain, axis=0), axis=1).min() < 1e-12
    assert obfuscated > 2, "the scan alone produces such edges in some cases"


@pytest.mark.parametrize("seed", range(20))
def test_qhull_path_matches_scan_for_many_points(seed, monkeypatch):
    """General floats use Qhull, which also filters small integers. Integers are exact."""
    rng = np.random.default_rng(seed)
    width = [3, 100, 2**16, 2**16 + 9, 2**27][seed % 5]
    sets = (
        rng.normal(size=(700, 2)),
        rng.integers(-width, width + 1, (700, 2)),
        rng.integers(-width, width + 1, (300, 2)),
    )
    polygons = [planar.build_convex_polygon(points) for points in sets]
    monkeypatch.setattr(planar, "_MIN_QHULL_POINTS", 10**9)
    for points, polygon in zip(sets, polygons, strict=True):
        np.testing.assert_array_equal(polygon, planar.build_convex_polygon(points))


@pytest.mark.parametrize("points", [np.ones((300, 2)), np.outer(np.arange(300), [1.0, 2.0])], ids=["point", "segment"])
def test_degenerate_points_use_scan(points):
    np.testing.assert_array_equal(planar.build_convex_polygon(points), np.unique(points[[0, -1]], axis=0))


def test_polygon_without_rounding_edges_is_unchanged():
    rng = np.random.default_rng(2)
    for thin in (1.0, 1e-3, 1e-7):
        points = rng.normal(size=(30, 2)) * [1.0, thin]
        polygon = planar.build_convex_polygon(np.concatenate([points, -points]))
        assert planar.without_blur(polygon) is polygon


def test_polygon_that_would_cut_its_own_corner_is_cleaned():
    """A short edge that rounding has tilted cuts a corner by more than the tolerance."""
    short, below = 1.5e-7, 1.0 - 2.0**-53
    half = [(1.0, -1.0), (1.0, 1.0), (1.0 - short, below)]
    polygon = np.array(half + [(-x, -y) for x, y in half])

    def find_excess(corners):
        """Compute the largest excess of a corner of the polygon over a half-plane, exactly."""
        normals, offsets = planar.half_planes(np.array([list(map(Fraction, corner)) for corner in corners.tolist()]))
        heights = [
            [abs(sum(map(mul, normal, map(Fraction, corner)))) for normal in normals.tolist()]
            for corner in polygon.tolist()
        ]
        return max(height / offset - 1 for row in heights for height, offset in zip(row, offsets, strict=True))

    assert 1e-9 < find_excess(polygon) < 2e-9
    assert find_excess(planar.without_blur(polygon)) <= 2.0**-52


@pytest.mark.parametrize(("num_units", "is_kept"), [(8, False), (15, False), (17, True), (32, True)])
def test_only_corners_within_sixteen_units_of_rounding_are_removed(num_units, is_kept):
    tip = 1.0 + num_units * 2.0**-52
    half = [(1.0, -1.0), (1.0, 1.0), (1.0 - 2.0**-52, 1.0), (0.0, tip)]
    polygon = np.array(half + [(-x, -y) for x, y in half])
    corners = planar.without_blur(polygon).tolist()
    assert [0.0, tip] in corners if is_kept else len(corners) == 4
