"""Hulls in three and more dimensions: exact facets, vertices, cones and size limits."""

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
from dphmm.geometry import convex_hull
from dphmm.geometry.convex_hull import build_symmetric_boundary, check_size, estimate_facets, select_outer_points

space_ints = hnp.arrays(np.int64, st.tuples(st.integers(3, 12), st.integers(3, 4)), elements=st.integers(-4, 4))


def add_negatives(points: np.ndarray) -> np.ndarray:
    return np.unique(np.concatenate([points, -points]), axis=0)


def is_combination(point: np.ndarray, others: np.ndarray) -> bool:
    """Return whether a point is a convex combination of others, by a linear program."""
    equations = np.concatenate([others.T, np.ones((1, len(others)))])
    return linprog(np.zeros(len(others)), A_eq=equations, b_eq=np.append(point, 1.0)).status == 0


@pytest.mark.slow
@given(space_ints)
def test_vertices_are_not_combinations_of_other_points(differences):
    hull = SensitivityHull(differences)
    points = add_negatives(differences)
    if hull.dimension > 2:
        others = {tuple(p): points[(points != p).any(axis=1)] for p in points.tolist()}
        expected = {p for p, rest in others.items() if not is_combination(np.array(p), rest)}
        assert {tuple(v) for v in np.rint(hull.vertices).astype(int).tolist()} == expected


@given(space_ints)
def test_integer_half_spaces_touch_facet_and_contain_differences(differences):
    hull = SensitivityHull(differences)
    if hull.dimension < hull.ambient_dimension:
        return
    exact = hull.norm_form.exact
    assert exact is not None
    points = add_negatives(differences).astype(object)
    for normal, offset in zip(exact.normals, exact.offsets, strict=True):
        heights = points @ normal
        assert offset > 0
        assert max(heights) == offset
        touching = points[heights == offset].astype(float)
        assert np.linalg.matrix_rank(touching[1:] - touching[0]) == hull.dimension - 1
        assert np.gcd.reduce(normal) == 1
    planes = {tuple(np.round(e / -e[-1], 6)) for e in ConvexHull(points.astype(float)).equations}
    assert len(planes) == 2 * len(exact.normals)


def test_large_integers_have_exact_half_spaces():
    """Determinants of 2**112 exceed floats. Exact minors then give all facets."""
    rng = np.random.default_rng(3)
    differences = rng.integers(-(2**28), 2**28, (9, 4))
    exact = SensitivityHull(differences).norm_form.exact
    assert exact is not None
    for normal, offset in zip(exact.normals, exact.offsets, strict=True):
        heights = [abs(sum(int(a) * int(b) for a, b in zip(v, normal, strict=True))) for v in differences]
        assert max(heights) == offset
        assert heights.count(offset) >= 4


@pytest.mark.parametrize("dimension", [3, 4, 5])
def test_points_on_cube_faces_are_not_vertices(dimension):
    grid = np.stack(np.meshgrid(*[[-2, -1, 0, 1, 2]] * dimension), axis=-1).reshape(-1, dimension)
    hull = SensitivityHull(grid)
    assert len(hull.vertices) == 2**dimension
    assert hull.volume == pytest.approx(4**dimension, rel=1e-12)
    assert len(hull.norm_form.normals) == dimension
    assert hull.mean_squared_radius == pytest.approx(dimension * 4 / 3, rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_cone_volumes_sum_to_hull_volume_in_five_dimensions(seed):
    """Qhull computes the volume of the hull from undivided facets."""
    points = np.random.default_rng(seed).integers(0, 4, (24, 5))
    first, second = np.triu_indices(len(points), 1)
    differences = add_negatives(points[first] - points[second])
    assert SensitivityHull(differences).volume == pytest.approx(ConvexHull(differences).volume, rel=1e-9)


@pytest.mark.slow
def test_merged_qhull_facets_overlap():
    """A broken variant: SciPy's simplices of merged facets sum to more than the body."""
    excess = []
    for seed in range(6):
        points = np.random.default_rng(seed).integers(0, 4, (24, 5))
        first, second = np.triu_indices(len(points), 1)
        differences = add_negatives(points[first] - points[second]).astype(float)
        qhull = ConvexHull(differences, qhull_options="Qt")
        sizes = np.abs(np.linalg.det(differences[qhull.simplices]))
        excess.append(sizes.sum() / factorial(5) / qhull.volume - 1)
    assert max(excess) > 1e-4


@pytest.mark.parametrize("seed", range(24))
def test_rotated_lattices_have_correct_volume(seed):
    """Rounding makes facets ambiguous. Without merging, Qhull rejects some of these bodies."""
    rng, dimension = np.random.default_rng(seed), 3 + seed % 2
    turn = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0] * rng.uniform(0.1, 3.0, dimension)
    lattice = rng.integers(0, 3 + seed % 5, (25, dimension))
    points = lattice @ turn + 1000.0 * rng.normal(size=dimension)
    first, second = np.triu_indices(len(points), 1)
    differences = points[first] - points[second]
    hull = SensitivityHull(differences)
    # SciPy fails for some of the rotated points and therefore gets the lattice itself.
    expected = ConvexHull(add_negatives(lattice[first] - lattice[second])).volume * abs(np.linalg.det(turn))
    assert hull.volume == pytest.approx(expected, rel=1e-9)
    assert hull.contains(differences).all()
    assert (hull.norm(hull.vertices) <= 1 + 1e-9).all()


@pytest.mark.parametrize("kind", ["integers", "floats", "flat", "needle"])
def test_outer_points_contain_every_vertex(kind):
    rng = np.random.default_rng(5)
    points = rng.integers(-9, 10, (3000, 3)) if kind == "integers" else rng.normal(size=(3000, 3))
    if kind == "flat":
        points[:, 2] = points[:, 0] - points[:, 1]
    if kind == "needle":
        points[:, 2] *= 1e-7
    kept = select_outer_points(points)
    hull = SensitivityHull(kept)
    # Flat float bodies need their own axes. The norm decides whether one body contains the other.
    assert (hull.norm(points) <= 1 + 1e-9).all()
    if kind in ("integers", "floats"):
        reference = ConvexHull(np.concatenate([points, -points]).astype(float))
        assert hull.volume == pytest.approx(reference.volume, rel=1e-12)
        assert len(kept) < 1000


# ---- sizes -----------------------------------------------------------------------------------------------------------


def test_facet_estimate_is_known_constant_per_point_and_within_upper_bound():
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
def test_facet_estimate_is_above_count_for_random_points(dimension, count):
    points = np.random.default_rng(dimension).normal(size=(count // 2, dimension))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    boundary = build_symmetric_boundary(points)
    assert len(boundary.simplices) <= estimate_facets(count, dimension) <= 40 * len(boundary.simplices)


def test_too_large_hull_raises_before_computation(monkeypatch):
    """The message is one line with the estimate and the memory. Qhull is not called."""
    monkeypatch.setattr("scipy.spatial.ConvexHull", None)
    hull = SensitivityHull(np.random.default_rng(0).normal(size=(400, 10)))
    assert hull.dimension == 10
    with pytest.raises(InvalidInputError, match=r"2,000,000 facets.*7e\+08 \(698 GB\)") as caught:
        _ = hull.volume
    assert "\n" not in str(caught.value)


def test_facet_limit_applies_to_estimate(monkeypatch):
    check_size(1000, 6)
    monkeypatch.setattr(convex_hull, "MAX_FACETS", estimate_facets(1000, 6) - 1)
    with pytest.raises(InvalidInputError, match=r"1,000 .*6 dimensions"):
        check_size(1000, 6)


def test_rationals_in_space_are_exact():
    third = Fraction(1, 3)
    hull = SensitivityHull([[third, 0, 0], [0, third, 0], [0, 0, third]])
    assert hull.contains([[Fraction(1, 9)] * 3, [Fraction(1, 9), Fraction(1, 9), Fraction(1, 8)]]).tolist() == [1, 0]
    assert hull.volume == pytest.approx(8 / 6 / 27, rel=1e-14)
