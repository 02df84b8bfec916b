"""Sums over cones by their sails agree with sums over lattice points."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product
from math import log2

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.mechanisms.cones import Cone, Fan, cross
from dphmm.mechanisms.lattice_sum import LatticeSum, decimal_exp
from dphmm.mechanisms.sails import _truncated_moments, sail

steps = st.integers(-60, 60)
half_open = (
    st.tuples(steps, steps, steps, steps)
    .filter(lambda c: c[0] * c[3] - c[1] * c[2] > 0)
    .map(lambda c: Cone((c[0], c[1]), (c[2], c[3]), open_v=True, open_w=False))
)


@given(half_open)
def test_the_edges_of_a_sail_go_from_ray_to_ray_in_steps_of_area_one(cone):
    edges = list(sail(cone))
    assert cross(cone.v, edges[0].start) == 0
    assert cross(cone.w, edges[-1].end) == 0
    assert all(before.end == after.start for before, after in pairwise(edges))
    assert all(cross(edge.start, edge.step) == 1 and edge.count >= 1 for edge in edges)
    assert all(cross(before.step, after.step) < 0 for before, after in pairwise(edges))


@given(half_open)
def test_norms_on_the_sail_lie_above_zero_and_at_most_at_one(cone):
    for edge in sail(cone):
        assert 0 < edge.first <= 1
        assert 0 < edge.last <= 1


@pytest.mark.parametrize(
    "cone",
    [
        Cone((1, 0), (1, 10**9), True, False),
        Cone((2**28 - 57, 1001), (3, 2**28 - 5), True, False),
        Cone((0, 1), (-102334155, -63245986), True, False),
    ],
)
def test_a_sail_has_few_edges(cone):
    edges = list(sail(cone))
    assert len(edges) <= 2 + log2(cone.det)
    assert sum(edge.count for edge in edges) >= len(edges)


@pytest.mark.parametrize("vertices", [((4, 1), (-1, 1)), ((31, 30), (1, 1)), ((7, -3), (2, 5)), ((3, 0), (0, 3))])
@pytest.mark.parametrize("decay", [0.9, 6.0])
def test_masses_and_moments_of_edges_add_up_to_those_of_the_lattice_points(vertices, decay):
    """Brute force over the half-open cone as far out as anything is left at 1e-12."""
    v, w = vertices
    cone = Cone(v, w, open_v=False, open_w=False)
    reach = int(30 / decay) + 4
    mass, moments = 0.0, np.zeros((2, 2))
    for a, b, index in product(range(reach), range(reach), range(cone.det)):
        m, n = cone.cell(index)
        x, y = cone.point(m + a * cone.det, n + b * cone.det)
        if cross((x, y), w) > 0:
            weight = np.exp(-decay * (a + b + (m + n) / cone.det))
            mass += weight
            moments += weight * np.outer((x, y), (x, y))
    edges = list(sail(cone))
    np.testing.assert_allclose(sum(np.exp(e.log_mass(decay)) for e in edges), mass, rtol=1e-11)
    found = sum(np.exp(e.log_mass(decay)) * e.second_moments(decay, np.eye(2, dtype=int)) for e in edges)
    np.testing.assert_allclose(found, moments, rtol=1e-10, atol=1e-10 * np.abs(moments).max())


@given(st.floats(-3, 3), st.integers(1, 40))
def test_moments_of_a_truncated_count_have_no_pole(t, count):
    values = np.arange(count)
    with mpmath.workdps(40):
        weights = [mpmath.exp(-mpmath.mpf(t) * k) for k in range(count)]
        total = mpmath.fsum(weights)
        mean = mpmath.fsum(k * p for k, p in enumerate(weights)) / total
        variance = mpmath.fsum((k - mean) ** 2 * p for k, p in enumerate(weights)) / total
    found = _truncated_moments(t, count)
    np.testing.assert_allclose(found, (float(mean), float(variance)), rtol=1e-11, atol=1e-11 * max(values.max(), 1))


def test_doubles_and_decimals_agree_on_the_normaliser_of_a_huge_thin_polygon():
    big = 2**28 - 1
    fan = Fan([(big, big - 1), (-1, 0), (-big, 1 - big), (1, 0)])
    for decay in (Fraction(1, 1000), Fraction(1), Fraction(700)):
        exact = float(LatticeSum(2, fan).total(decay, 30).ln())
        np.testing.assert_allclose(LatticeSum(2, fan).log_total(float(decay)), exact, rtol=1e-12)


def test_more_digits_only_refine_what_fewer_digits_said():
    total = LatticeSum(2, Fan([(31, 30), (-1, -1), (-31, -30), (1, 1)][::-1]))
    fine = total.total(Fraction(1, 1000), 80)
    for digits in (5, 15, 40):
        assert abs(total.total(Fraction(1, 1000), digits) / fine - 1) < Decimal(10) ** -digits


def test_a_decimal_exponential_has_its_digits():
    with mpmath.workdps(60):
        wanted = mpmath.exp(-mpmath.mpf(1234567) / 1001)
        assert abs(mpmath.mpf(str(decimal_exp(Fraction(1234567, 1001), 50))) / wanted - 1) < mpmath.mpf("1e-50")
