"""Edges of sails represent every lattice point once, and their sums are lattice sums."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product
from math import log2

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.geometry.sensitivity_hull import SensitivityHull
from dphmm.mechanisms import lattice_normalizer as lattice_sum
from dphmm.mechanisms.exact_sampling import compute_exp_of_negative
from dphmm.mechanisms.lattice_normalizer import LatticeSum, SailEdge, cross, iterate_sail_edges, list_half_sail_edges
from tests.mechanisms.cells import Cone, build_fan

RUNNING_EXAMPLE = [(-4, -1), (1, -1), (3, 0), (4, 1), (-1, 1), (-3, 0)]
THIN = [(-31, -30), (-1, -1), (31, 30), (1, 1)]
BOX = list(product(range(-10, 11), repeat=2))

FEWER_EXAMPLES = settings(max_examples=20)

steps = st.integers(-60, 60)
cones = st.tuples(steps, steps, steps, steps).filter(lambda c: c[0] * c[3] > c[1] * c[2]).map(lambda c: (c[:2], c[2:]))
small_steps = st.integers(-5, 5)
polygons = (
    st.lists(st.tuples(small_steps, small_steps), min_size=2, max_size=5)
    .map(SensitivityHull)
    .filter(lambda hull: hull.dimension == 2)
    .map(lambda hull: [(int(x), int(y)) for x, y in hull.vertices])
)


@given(cones)
def test_sail_edges_connect_rays_with_unit_area_steps(cone):
    v, w = cone
    edges = list(iterate_sail_edges(v, w))
    assert cross(v, edges[0].start) == 0
    assert cross(w, edges[-1].end) == 0
    assert all(before.end == after.start for before, after in pairwise(edges))
    assert all(cross(edge.start, edge.step) == 1 and edge.count >= 1 for edge in edges)
    assert all(cross(before.step, after.step) < 0 for before, after in pairwise(edges))


@given(cones)
def test_sail_norms_are_in_unit_interval(cone):
    v, w = cone
    for edge in iterate_sail_edges(v, w):
        assert 0 < edge.first <= edge.unit
        assert 0 < edge.last <= edge.unit


@pytest.mark.parametrize(
    ("v", "w"),
    [
        ((1, 0), (1, 10**9)),
        ((2**28 - 57, 1001), (3, 2**28 - 5)),
        ((0, 1), (-102334155, -63245986)),
    ],
)
def test_sail_has_logarithmic_number_of_edges(v, w):
    edges = list(iterate_sail_edges(v, w))
    assert len(edges) <= 2 + log2(cross(v, w))
    assert sum(edge.count for edge in edges) >= len(edges)


def enumerate_points(edges, maximum: int) -> dict[tuple[int, int], list[Fraction]]:
    """Enumerate points ``± ((1 + a) start + k step + b end)``, each with its norms.

    The counts are those with a norm of at most ``most``.
    """
    norms_by_point: dict[tuple[int, int], list[Fraction]] = {(0, 0): [Fraction(0)]}
    for edge in edges:
        first, last = Fraction(edge.first, edge.unit), Fraction(edge.last, edge.unit)
        for a, b, k in product(range(int(maximum / first)), range(int(maximum / last) + 1), range(edge.count)):
            norm = (1 + a) * first + k * Fraction(edge.slope, edge.unit) + b * last
            if norm <= maximum:
                x, y = ((1 + a) * s + k * t + b * e for s, t, e in zip(edge.start, edge.step, edge.end, strict=True))
                for point in ((x, y), (-x, -y)):
                    norms_by_point.setdefault(point, []).append(norm)
    return norms_by_point


@pytest.mark.slow
@FEWER_EXAMPLES
@given(polygons)
def test_edges_and_counts_reach_every_lattice_point_once_with_exact_norm(vertices):
    """The weight of a draw is therefore that of its point."""
    hull, norms_by_point = SensitivityHull(vertices), enumerate_points(list_half_sail_edges(vertices), 2)
    halves = np.array([[Fraction(x, 2) for x in z] for z in BOX])
    for z, inside in zip(BOX, hull.contains(halves), strict=True):
        assert (z in norms_by_point) == inside
        if inside and z != (0, 0):
            (norm,) = norms_by_point.pop(z)
            point = np.array([[Fraction(x) / norm for x in z]])
            assert hull.contains(point)[0]
            assert not hull.contains(point * Fraction(1001, 1000))[0]
    assert list(norms_by_point) == [(0, 0)]


def test_cone_closed_on_both_sides_is_detected():
    """A broken variant: one edge includes the end ray, which belongs to its neighbour."""
    edges = list_half_sail_edges(RUNNING_EXAMPLE)
    edges[0] = edges[0]._replace(count=edges[0].count + 1)
    assert max(len(norms) for norms in enumerate_points(edges, 2).values()) > 1


def compute_cell_sum(vertices: list[tuple[int, int]], decay: Fraction) -> mpmath.mpf:
    """Compute the normalizer by parallelograms and two geometric series, in 50 digits."""
    with mpmath.workdps(50):
        rate = mpmath.mpf(decay.numerator) / decay.denominator
        cells = [mpmath.exp(-rate * norm / cone.det) for cone in build_fan(vertices) for _, norm in cone.cells()]
        return mpmath.fsum(cells) / (1 - mpmath.exp(-rate)) ** 2


@pytest.mark.parametrize("vertices", [RUNNING_EXAMPLE, THIN], ids=["running example", "thin"])
@pytest.mark.parametrize("decay", [Fraction(1, 100), Fraction(1), Fraction(20)], ids=str)
def test_normalizer_matches_parallelograms(vertices, decay):
    with mpmath.workdps(50):
        total = LatticeSum(2, list_half_sail_edges(vertices)).total(decay, 40)
        assert abs(mpmath.mpf(str(total)) / compute_cell_sum(vertices, decay) - 1) < mpmath.mpf("1e-40")


@pytest.mark.parametrize(
    "vertices", [((4, 1), (-1, 1)), ((31, 30), (1, 1)), ((7, -3), (2, 5)), ((3, 0), (0, 3))], ids=repr
)
@pytest.mark.parametrize("decay", [0.9, 6.0])
def test_masses_and_moments_of_edges_match_lattice_points(vertices, decay):
    """Brute force over the half-open cone up to a mass of 1e-12, and over its mirror image."""
    v, w = vertices
    cone = Cone(v, w, open_v=True, open_w=False)
    reach = int(30 / decay) + 4
    mass, moments = 0.0, np.zeros((2, 2))
    for (x, y), norm in cone.cells():
        for a, b in product(range(reach), repeat=2):
            z = np.array([x + a * v[0] + b * w[0], y + a * v[1] + b * w[1]], dtype=float)
            weight = np.exp(-decay * (a + b + norm / cone.det))
            mass += weight
            moments += weight * np.outer(z, z)
    rows = list(iterate_sail_edges(v, w))
    np.testing.assert_allclose(np.exp(LatticeSum(2, rows).log_masses(decay)).sum(), mass, rtol=1e-11)
    for direction in ((1, 0), (0, 1), (1, 1), (3, -2)):
        sums = LatticeSum(2, rows, np.array(direction, dtype=object)[:, None])
        mean_square = sums.mean_square(decay) * np.exp(sums.log_total(decay))
        wanted = 2 * np.array(direction) @ moments @ direction
        np.testing.assert_allclose(mean_square, wanted, rtol=1e-10, atol=2e-9 * np.abs(moments).max())


@given(st.floats(-3, 3) | st.floats(-1e-6, 1e-6), st.integers(1, 40))
def test_moments_of_truncated_count_have_no_pole(t, count):
    t = round(t * 10**9) / 10**9
    values = np.arange(count)
    with mpmath.workdps(40):
        weights = [mpmath.exp(-mpmath.mpf(t) * k) for k in range(count)]
        total = mpmath.fsum(weights)
        mean = mpmath.fsum(k * p for k, p in enumerate(weights)) / total
        variance = mpmath.fsum((k - mean) ** 2 * p for k, p in enumerate(weights)) / total
    # The norms of the edge's ends are so large that only points on the edge matter: k is the only count.
    high = 400 * 10**9
    squares = []
    for start in ((0, 0), (1, 0)):
        edge = SailEdge(start, (1, 0), count, high, round(t * 10**9), 10**9)
        sums = LatticeSum(2, [edge], np.array([[1], [0]], dtype=object))
        squares.append(sums.mean_square(1.0) / 2 / np.exp(sums.log_masses(1.0)[0] - sums.log_total(1.0)))
    truncated_mean = (squares[1] - squares[0] - 1) / 2
    largest = max(values.max(), 1)
    np.testing.assert_allclose(truncated_mean, float(mean), rtol=1e-11, atol=1e-12 * largest**2)
    np.testing.assert_allclose(squares[0], float(variance + mean**2), rtol=1e-11, atol=1e-12 * largest)


@pytest.mark.parametrize("count", [2, 3, 5, 20])
def test_moments_of_truncated_count_keep_their_digits_around_the_end_of_the_series(count):
    """The series is used where the closed form cancels, but not where omitted terms matter."""
    steps = np.array([0.011, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.29, 0.31, 0.4, 0.6, 1.0])
    for sign in (1, -1):
        moments = lattice_sum._compute_mean_and_variance(sign * steps, np.full(len(steps), count))
        with mpmath.workdps(50):
            for step, mean, variance in zip(sign * steps, *moments, strict=True):
                weights = [mpmath.exp(-mpmath.mpf(step) * k) for k in range(count)]
                shares = [weight / mpmath.fsum(weights) for weight in weights]
                wanted = mpmath.fsum(k * share for k, share in enumerate(shares))
                spread = mpmath.fsum((k - wanted) ** 2 * share for k, share in enumerate(shares))
                assert abs(mean / wanted - 1) < 1e-14
                assert abs(variance / spread - 1) < 1e-13


def test_float_and_decimal_normalizers_agree_for_huge_thin_polygon():
    big = 2**28 - 1
    sums = LatticeSum(2, list_half_sail_edges([(big, big - 1), (-1, 0), (-big, 1 - big), (1, 0)]))
    for decay in (Fraction(1, 1000), Fraction(1), Fraction(700), Fraction(10**9)):
        exact = float(sums.total(decay, 30).ln())
        np.testing.assert_allclose(sums.log_total(float(decay)), exact, rtol=1e-12)


def test_higher_precision_refines_lower_precision():
    sums = LatticeSum(2, list_half_sail_edges([(31, 30), (-1, -1), (-31, -30), (1, 1)][::-1]))
    fine = sums.total(Fraction(1, 1000), 80)
    for digits in (5, 15, 40):
        assert abs(sums.total(Fraction(1, 1000), digits) / fine - 1) < Decimal(10) ** -digits


def test_masses_have_requested_digits_where_exponents_are_tiny():
    big = 2**28 - 1
    sums = LatticeSum(2, list_half_sail_edges([(big, big - 1), (-1, 0), (-big, 1 - big), (1, 0)]))
    for decay in (Fraction(1, 10**6), Fraction(700)):
        fine = sums.masses(decay, 200)
        for digits in (5, 20, 60):
            errors = [abs(mass / wanted - 1) for mass, wanted in zip(sums.masses(decay, digits), fine, strict=True)]
            assert max(errors) < Decimal(10) ** -digits


def test_decimal_exponential_has_requested_digits():
    with mpmath.workdps(60):
        wanted = mpmath.exp(-mpmath.mpf(1234567) / 1001)
        assert abs(mpmath.mpf(str(compute_exp_of_negative(Fraction(1234567, 1001), 50))) / wanted - 1) < mpmath.mpf(
            "1e-50"
        )


def test_sums_beyond_64_bits_are_finite():
    big = 2**40 + 1
    assert np.isfinite(
        LatticeSum(2, list_half_sail_edges([(big, 1), (-1, big), (-big, -1), (1, -big)])).mean_square(1.0)
    )
