"""Hulls in three and more dimensions: exact facets, true vertices, cones that tile, sizes that are refused."""

from __future__ import annotations

from fractions import Fraction
from math import comb, factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import linprog
from scipy.spatial import ConvexHull

from dphmm import SensitivityHull
from dphmm.errors import InvalidInputError
from dphmm.geometry import facets
from dphmm.geometry.facets import check_size, estimate_facets, outer_points, symmetric_boundary

space_ints = hnp.arrays(np.int64, st.tuples(st.integers(3, 12), st.integers(3, 4)), elements=st.integers(-4, 4))


def both(points: np.ndarray) -> np.ndarray:
    return np.unique(np.concatenate([points, -points]), axis=0)


def is_combination(point: np.ndarray, others: np.ndarray) -> bool:
    """Whether a point is a convex combination of others, by a linear program."""
    equations = np.concatenate([others.T, np.ones((1, len(others)))])
    return linprog(np.zeros(len(others)), A_eq=equations, b_eq=np.append(point, 1.0)).status == 0


@given(space_ints)
def test_vertices_are_the_points_that_no_others_combine_to(differences):
    hull = SensitivityHull(differences)
    points = both(differences)
    if hull.dimension > 2:
        others = {tuple(p): points[(points != p).any(axis=1)] for p in points.tolist()}
        expected = {p for p, rest in others.items() if not is_combination(np.array(p), rest)}
        assert {tuple(v) for v in np.rint(hull.vertices).astype(int).tolist()} == expected


@given(space_ints)
def test_integer_half_spaces_touch_a_facet_and_contain_every_difference(differences):
    hull = SensitivityHull(differences)
    if hull.dimension < hull.ambient_dimension:
        return
    exact = hull.norm_form.exact
    assert exact is not None
    points = both(differences).astype(object)
    for normal, offset in zip(exact.normals, exact.offsets, strict=True):
        heights = points @ normal
        assert offset > 0
        assert max(heights) == offset
        touching = points[heights == offset].astype(float)
        assert np.linalg.matrix_rank(touching[1:] - touching[0]) == hull.dimension - 1
        assert np.gcd.reduce(normal) == 1
    planes = {tuple(np.round(e / -e[-1], 6)) for e in ConvexHull(points.astype(float)).equations}
    assert len(planes) == 2 * len(exact.normals)


def test_wide_integers_have_exact_half_spaces_too():
    """Determinants of 2**112 are beyond doubles, so that all facets come from exact minors."""
    rng = np.random.default_rng(3)
    differences = rng.integers(-(2**28), 2**28, (9, 4))
    exact = SensitivityHull(differences).norm_form.exact
    assert exact is not None
    for normal, offset in zip(exact.normals, exact.offsets, strict=True):
        heights = [abs(sum(int(a) * int(b) for a, b in zip(v, normal, strict=True))) for v in differences]
        assert max(heights) == offset
        assert heights.count(offset) >= 4


@pytest.mark.parametrize("dimension", [3, 4, 5])
def test_points_inside_faces_of_a_cube_are_not_vertices(dimension):
    grid = np.stack(np.meshgrid(*[[-2, -1, 0, 1, 2]] * dimension), axis=-1).reshape(-1, dimension)
    hull = SensitivityHull(grid)
    assert len(hull.vertices) == 2**dimension
    assert hull.volume == pytest.approx(4**dimension, rel=1e-12)
    assert len(hull.norm_form.normals) == dimension
    assert hull.mean_squared_radius == pytest.approx(dimension * 4 / 3, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_cones_tile_bodies_in_five_dimensions(seed):
    """Their volumes add up to the hull's, which Qhull computes from facets that are not divided."""
    points = np.random.default_rng(seed).integers(0, 4, (24, 5))
    first, second = np.triu_indices(len(points), 1)
    differences = both(points[first] - points[second])
    assert SensitivityHull(differences).volume == pytest.approx(ConvexHull(differences).volume, rel=1e-9)


def test_triangulated_facets_of_qhull_overlap():
    """The broken twin: simplices made of merged facets, as SciPy gives them, add up to more than the body."""
    excess = []
    for seed in range(6):
        points = np.random.default_rng(seed).integers(0, 4, (24, 5))
        first, second = np.triu_indices(len(points), 1)
        differences = both(points[first] - points[second]).astype(float)
        found = ConvexHull(differences, qhull_options="Qt")
        sizes = np.abs(np.linalg.det(differences[found.simplices]))
        excess.append(sizes.sum() / factorial(5) / found.volume - 1)
    assert max(excess) > 1e-4


@pytest.mark.parametrize("seed", range(24))
def test_rotated_lattices_have_bodies_of_the_right_volume(seed):
    """Rounding makes their facets ambiguous, so that Qhull refuses some of them without merging."""
    rng, dimension = np.random.default_rng(seed), 3 + seed % 2
    turn = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0] * rng.uniform(0.1, 3.0, dimension)
    lattice = rng.integers(0, 3 + seed % 5, (25, dimension))
    points = lattice @ turn + 1000.0 * rng.normal(size=dimension)
    first, second = np.triu_indices(len(points), 1)
    differences = points[first] - points[second]
    hull = SensitivityHull(differences)
    # SciPy fails for some of the rotated points, so that it gets the lattice itself.
    expected = ConvexHull(both(lattice[first] - lattice[second])).volume * abs(np.linalg.det(turn))
    assert hull.volume == pytest.approx(expected, rel=1e-9)
    assert hull.contains(differences).all()
    assert (hull.norm(hull.vertices) <= 1 + 1e-9).all()


@pytest.mark.parametrize("kind", ["integers", "floats", "flat", "needle"])
def test_sifting_keeps_every_vertex(kind):
    rng = np.random.default_rng(5)
    points = rng.integers(-9, 10, (3000, 3)) if kind == "integers" else rng.normal(size=(3000, 3))
    if kind == "flat":
        points[:, 2] = points[:, 0] - points[:, 1]
    if kind == "needle":
        points[:, 2] *= 1e-7
    kept = outer_points(points)
    found = SensitivityHull(kept)
    # In floats a flat body needs its own axes; the norm decides whether one body contains the other.
    assert (found.norm(points) <= 1 + 1e-9).all()
    if kind in ("integers", "floats"):
        everything = ConvexHull(np.concatenate([points, -points]).astype(float))
        assert found.volume == pytest.approx(everything.volume, rel=1e-12)
        assert len(kept) < 1000


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_estimate_is_a_known_constant_per_point_and_at_most_the_upper_bound():
    # Expected simplices per point of Poisson-Delaunay tessellations: 2, 24 π² / 35 and 286 / 9 in 2, 3, 4 dimensions.
    for dimension, expected in ((3, 2.0), (4, 24 * np.pi**2 / 35), (5, 286 / 9)):
        assert estimate_facets(10**12, dimension) == pytest.approx(expected * 10**12, rel=1e-9)
    # Few points: McMullen's theorem, attained by cyclic polytopes.
    for dimension, count in ((4, 8), (5, 9), (6, 10)):
        times = np.arange(count, dtype=float) / count
        cyclic = ConvexHull(times[:, None] ** np.arange(1, dimension + 1))
        assert len(cyclic.simplices) == comb(count - (dimension + 1) // 2, dimension // 2) + comb(
            count - dimension // 2 - 1, (dimension - 1) // 2
        )
        assert estimate_facets(count, dimension) <= len(cyclic.simplices)


@pytest.mark.parametrize(("dimension", "count"), [(3, 400), (4, 400), (5, 300), (6, 200), (7, 100), (8, 60)])
def test_estimate_is_above_bodies_of_random_points_and_near_them(dimension, count):
    points = np.random.default_rng(dimension).normal(size=(count // 2, dimension))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    boundary = symmetric_boundary(points)
    assert len(boundary.simplices) <= estimate_facets(count, dimension) <= 40 * len(boundary.simplices)


def test_hopeless_hulls_are_refused_before_they_are_computed(monkeypatch):
    """Nothing calls Qhull, and the message is one line with the estimate and the memory."""
    monkeypatch.setattr("scipy.spatial.ConvexHull", None)
    hull = SensitivityHull(np.random.default_rng(0).normal(size=(400, 10)))
    assert hull.dimension == 10
    with pytest.raises(InvalidInputError, match=r"2,000,000 facets, got an estimate of 7e\+08 \(698 GB\)") as caught:
        _ = hull.volume
    assert "\n" not in str(caught.value)


def test_the_limit_is_on_the_estimate(monkeypatch):
    check_size(1000, 6)
    monkeypatch.setattr(facets, "MAX_FACETS", estimate_facets(1000, 6) - 1)
    with pytest.raises(InvalidInputError, match="1,000 differences in 6 dimensions"):
        check_size(1000, 6)


def test_rationals_in_space_are_exact():
    third = Fraction(1, 3)
    hull = SensitivityHull([[third, 0, 0], [0, third, 0], [0, 0, third]])
    assert hull.contains([[Fraction(1, 9)] * 3, [Fraction(1, 9), Fraction(1, 9), Fraction(1, 8)]]).tolist() == [1, 0]
    assert hull.volume == pytest.approx(8 / 6 / 27, rel=1e-14)
