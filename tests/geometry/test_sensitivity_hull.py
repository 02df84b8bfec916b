"""The sensitivity hull: the paper's values, norm axioms, exact membership, flat bodies."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from shapely.geometry import MultiPoint

from dphmm import SensitivityHull
from dphmm.errors import CoordinateError, InvalidInputError
from tests.running_example import F, build_graph

small_ints = hnp.arrays(np.int64, st.tuples(st.integers(0, 7), st.integers(1, 4)), elements=st.integers(-6, 6))
lengths = st.floats(-50, 50, width=32).map(lambda x: x if abs(x) > 1e-20 else 0.0)
planar_floats = hnp.arrays(np.float64, st.tuples(st.integers(2, 12), st.just(2)), elements=lengths)


def build_running_hull() -> SensitivityHull:
    edges = build_graph().edge_array()
    return SensitivityHull(F[edges[:, 0]] - F[edges[:, 1]])


def test_example_5_1_vertices_and_area():
    hull = build_running_hull()
    assert {tuple(v) for v in hull.vertices.tolist()} == {(-4, -1), (1, -1), (3, 0), (4, 1), (-1, 1), (-3, 0)}
    assert hull.volume == 11.0
    assert hull.norm_form.exact is not None


def test_planar_vertices_are_counter_clockwise():
    corners = build_running_hull().vertices
    following = np.roll(corners, -1, axis=0)
    assert (corners[:, 0] * following[:, 1] - corners[:, 1] * following[:, 0] > 0).all()


def test_running_example_mean_squared_radius_is_118_33rds():
    assert build_running_hull().mean_squared_radius == pytest.approx(118 / 33, rel=1e-14)
    assert np.sqrt(build_running_hull().squared_error) == pytest.approx(6.55050, abs=5e-6)


def test_mean_squared_radius_matches_monte_carlo():
    # 10^6 uniform points in the bounding box, seed 0; five standard errors (two-sided alpha below 1e-6).
    hull = build_running_hull()
    points = np.random.default_rng(0).uniform([-4, -1], [4, 1], (1_000_000, 2))
    squares = (points[hull.contains(points)] ** 2).sum(axis=1)
    assert abs(squares.mean() - hull.mean_squared_radius) < 5 * squares.std() / np.sqrt(len(squares))


@pytest.mark.slow
@given(small_ints)
def test_half_spaces_and_quadratic_program_agree(differences):
    hull = SensitivityHull(differences)
    corners = np.rint(hull.vertices).astype(int)
    vectors = np.concatenate([differences, corners, corners + 1, 2 * corners])[:14]
    np.testing.assert_array_equal(hull.contains(vectors), hull.contains(vectors, method="qp"))


@pytest.mark.parametrize("seed", range(20))
def test_quadratic_program_distinguishes_relative_difference_of_1e_7(seed):
    rng = np.random.default_rng(seed)
    hull = SensitivityHull(rng.integers(-9, 10, (4 + 10 * seed, 1 + seed % 3)))
    # Boundary points: directions within the span, divided by their norms.
    rays = rng.normal(size=(20, len(hull.differences))) @ hull.differences
    edge = rays / hull.norm(rays)[:, np.newaxis]
    assert hull.contains(edge * (1 - 1e-7), method="qp").all()
    assert not hull.contains(edge * (1 + 1e-7), method="qp").any()


@given(planar_floats)
@example(np.array([[0.0, 2.0], [2.0**-24, 11.0]]))  # flat within the tolerance
def test_planar_hull_matches_shapely(differences):
    hull = SensitivityHull(differences)
    reference = MultiPoint(np.concatenate([differences, -differences])).convex_hull
    # A body is flat if all differences are within 1e-9 of its length from a line. Its area is then at most 4e-9 of the
    # square of the length.
    length = np.linalg.norm(differences, axis=1).max()
    tolerance = 4e-9 * length**2 if hull.dimension < 2 else 1e-9 * max(1.0, length**2)
    assert hull.volume == pytest.approx(reference.area, rel=1e-9, abs=tolerance)


@given(small_ints, st.data())
def test_norm_satisfies_axioms(differences, data):
    hull = SensitivityHull(differences)
    d = differences.shape[1]
    u, v = (np.array(data.draw(st.lists(st.integers(-9, 9), min_size=d, max_size=d)), dtype=float) for _ in "uv")
    norm_u = hull.norm(u).item()
    norm_v = hull.norm(v).item()
    norm_sum = hull.norm(u + v).item()
    assert (norm_u == 0) == (not u.any())
    assert hull.norm(-u).item() == norm_u
    assert norm_sum <= (norm_u + norm_v) * (1 + 1e-12)
    for factor in (0.25, 3.0):
        assert hull.norm(factor * u).item() == pytest.approx(factor * norm_u, rel=1e-12)


@given(small_ints)
def test_differences_are_inside_and_vertices_have_norm_one(differences):
    hull = SensitivityHull(differences)
    assert hull.contains(differences).all()
    if hull.dimension:
        np.testing.assert_allclose(hull.norm(hull.vertices), 1.0, rtol=1e-12)


def test_boundary_point_is_inside_and_next_lattice_point_is_not():
    hull = SensitivityHull([[4, 1], [1, 1], [3, 0]])
    assert hull.contains([[4, 1], [2, 1], [1, 2], [5, 1]]).tolist() == [True, True, False, False]
    assert hull.norm([2, 1]).item() == 1.0


def test_membership_is_exact_beyond_float_precision():
    # The second point is off the edge from (0, n) to (n, 0) by 1 / (2n): relatively 2e-17, below a double's resolution.
    n = 2**27
    hull = SensitivityHull([[n, 0], [0, n]])
    points = np.array([[Fraction(n, 2), Fraction(n, 2)], [Fraction(n, 2), Fraction(n, 2) + Fraction(1, 2 * n)]])
    assert hull.contains(points).tolist() == [True, False]


def test_common_denominator_membership_matches_fractions():
    square = SensitivityHull([[2, 2], [-2, 2]]).norm_form.exact
    vectors = np.array([[4, 0], [5, 0], [3, 3], [2, 2], [1, 3]])
    for denominator in (1, 2, 3):
        inside = [bool((abs(x) <= 2 * denominator) and (abs(y) <= 2 * denominator)) for x, y in vectors.tolist()]
        assert square.contains(vectors, denominator).tolist() == inside


def test_rational_differences_are_exact():
    hull = SensitivityHull([[Fraction(1, 3), 0], [0, Fraction(1, 7)]])
    on, beyond = [Fraction(1, 6), Fraction(1, 14)], [Fraction(1, 6), Fraction(1, 14) + Fraction(1, 10**30)]
    assert hull.norm_form.exact is not None
    assert hull.contains(np.array([on, beyond], dtype=object)).tolist() == [True, False]
    assert hull.volume == pytest.approx(2 / 21, rel=1e-15)


@pytest.mark.parametrize("differences", [np.zeros((0, 2)), [[0, 0]], np.zeros((3, 2))], ids=["none", "zero", "zeros"])
def test_no_differences_give_single_point(differences):
    hull = SensitivityHull(differences)
    assert (hull.dimension, hull.volume, hull.span_volume) == (0, 0.0, 1.0)
    assert hull.vertices.tolist() == [[0.0, 0.0]]
    assert hull.contains([[0, 0], [0, 1]]).tolist() == [True, False]
    assert hull.norm([[0, 0], [1e-3, 0]]).tolist() == [0.0, np.inf]


@pytest.mark.parametrize("differences", [[[2, 1]], [[2, 1], [4, 2]], [[2, 1], [2, 1], [-4, -2]]], ids=repr)
def test_collinear_differences_give_a_segment(differences):
    hull = SensitivityHull(differences)
    reach = np.abs(differences).max(axis=0)
    assert (hull.dimension, hull.volume) == (1, 0.0)
    assert hull.span_volume == pytest.approx(2 * np.hypot(*reach))
    assert hull.norm(reach).item() == pytest.approx(1.0)
    assert hull.norm([reach[0], reach[1] + 1e-3]).item() == np.inf


def test_plane_in_space_has_its_own_volume_and_norm():
    hull = SensitivityHull([[1, 2, 3], [2, 0, 1]])
    assert (hull.dimension, hull.ambient_dimension, hull.volume) == (2, 3, 0.0)
    normal = np.cross([1, 2, 3], [2, 0, 1])
    assert hull.span_volume == pytest.approx(2 * np.linalg.norm(normal), rel=1e-12)
    assert hull.contains([[1, 2, 3], [3, 2, 4], normal.tolist()]).tolist() == [True, False, False]
    assert hull.norm([1.5, 1.0, 2.0]).item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_cross_polytope_and_cube_have_known_volumes(d):
    from math import factorial

    cross = SensitivityHull(3 * np.eye(d, dtype=int))
    assert cross.volume == pytest.approx(6**d / factorial(d), rel=1e-12)
    corners = np.array(np.meshgrid(*[[-2, 2]] * d)).reshape(d, -1).T
    cube = SensitivityHull(corners)
    assert cube.volume == pytest.approx(4**d, rel=1e-12)
    assert cube.mean_squared_radius == pytest.approx(d * 4 / 3, rel=1e-12)
    assert cube.norm_form.exact is not None


def test_nearly_parallel_facets_of_long_body_are_kept():
    # |y + x t| <= 1, |y - x t| <= 1, |z| <= 1, |x| <= 10^6 with t = 4e-10: the two normals agree to nine digits.
    length, t = 1e6, 4e-10
    ends = [[length, y * (1 - length * t), z] for y in (1, -1) for z in (1, -1)]
    hull = SensitivityHull([*ends, [0, 1, 1], [0, 1, -1]])
    assert hull.norm([length, 1.0, 0.0]).item() == pytest.approx(1 + length * t, abs=1e-12)
    assert hull.norm([-length, 1.0, 0.0]).item() == pytest.approx(1 + length * t, abs=1e-12)
    np.testing.assert_allclose(hull.norm(hull.vertices), 1.0, atol=1e-9)


def test_scaling_preserves_norms():
    hull = build_running_hull()
    vectors = np.random.default_rng(1).normal(size=(50, 2))
    factors = np.array([0.34, 2.5])
    np.testing.assert_allclose(hull.scale_axes(factors).norm(vectors * factors), hull.norm(vectors), rtol=1e-12)
    assert hull.scale_axes(factors).volume == pytest.approx(hull.volume * 0.85, rel=1e-12)
    assert hull.scale_axes(factors).squared_error == pytest.approx(
        SensitivityHull(hull.vertices * factors).squared_error
    )


def test_to_shapely_matches_dimension():
    assert build_running_hull().to_shapely().area == pytest.approx(11.0)
    assert SensitivityHull([[3, 4]]).to_shapely().length == pytest.approx(10.0)
    assert SensitivityHull(np.zeros((0, 2))).to_shapely().geom_type == "Point"
    with pytest.raises(InvalidInputError, match=r"at most 2 dimensions.*got 3"):
        SensitivityHull(np.eye(3)).to_shapely()


@pytest.mark.parametrize("bad", [[[np.nan, 0]], [[np.inf, 1]], [1.0, 2.0], np.zeros((2, 0))])
def test_invalid_differences_raise(bad):
    with pytest.raises(CoordinateError, match="differences"):
        SensitivityHull(bad)


def test_unknown_membership_method_raises():
    with pytest.raises(InvalidInputError, match="halfspace"):
        build_running_hull().contains([0, 0], method="magic")


def test_vectors_of_wrong_length_raise():
    with pytest.raises(CoordinateError, match="vectors must have 2 as the last axis"):
        build_running_hull().norm([1.0, 2.0, 3.0])


@given(st.integers(0, 2**32 - 1), st.sampled_from([5, 40, 2**26]))
def test_hull_from_corners_equals_searched_hull(seed, size):
    """Compare corners, facets and half-spaces bit by bit, also in other units and steps."""
    rng = np.random.default_rng(seed)
    plain = SensitivityHull(rng.integers(-size, size + 1, (int(rng.integers(2, 12)), 2)))
    if plain.dimension < 2:
        assert plain.corners is None
        return
    assert plain.corners is not None
    from_corners = SensitivityHull.from_polygon(plain.corners)
    spacing = np.array([0.34, 1.7])
    steps = np.array([3, 2])
    anew = SensitivityHull(np.rint(plain.vertices).astype(np.int64) * steps)
    pairs = (
        (from_corners, plain),
        (from_corners.scale_axes(spacing), plain.scale_axes(spacing)),
        (from_corners.convert_to_steps(steps), anew),
    )
    for first, second in pairs:
        for name in ("vertices", "cones", "cone_volumes", "second_moments", "_facets"):
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        form, wanted = first.norm_form, second.norm_form
        np.testing.assert_array_equal(form.normals, wanted.normals)
        np.testing.assert_array_equal(form.equations, wanted.equations)
        assert (first.dimension, first.volume, form.scale) == (second.dimension, second.volume, wanted.scale)
    assert (from_corners.norm_form.exact.offsets == plain.norm_form.exact.offsets).all()
    assert (from_corners.norm_form.exact.normals == plain.norm_form.exact.normals).all()


@pytest.mark.parametrize("size", [3, 9, 60])
def test_lattice_rows_contain_exactly_lattice_points_of_polygon(size):
    rng = np.random.default_rng(size)
    for _ in range(40):
        hull = SensitivityHull(rng.integers(-size, size + 1, (4, 2)))
        if hull.dimension < 2:
            continue
        x, y = np.meshgrid(np.arange(-size, size + 1), np.arange(-size, size + 1))
        inside = hull.contains(np.stack([x, y], axis=2))
        from_rows = np.zeros_like(inside)
        for height, low, high in hull.lattice_rows:
            assert low <= high
            from_rows[height + size] = (x[0] >= low) & (x[0] <= high)
        np.testing.assert_array_equal(from_rows, inside)


def test_only_integer_polygons_have_lattice_rows():
    for differences in ([[1, 0, 0], [0, 1, 0]], [[4, 2]], [[0.5, 0.0], [0.0, 1.0]], [[3]]):
        hull = SensitivityHull(differences)
        assert (hull.corners, hull.lattice_rows) == (None, None)
    assert SensitivityHull([[2**29, 0], [0, 1]]).corners is None


@pytest.mark.parametrize("unit", [1e-29, 1e-3, 1.0, 1e29])
def test_squared_error_scales_with_squared_unit(unit):
    plain, other = SensitivityHull([[4, 1], [-1, 3]]), SensitivityHull(np.array([[4.0, 1.0], [-1.0, 3.0]]) * unit)
    assert other.squared_error == pytest.approx(plain.squared_error * unit**2, rel=1e-12)
