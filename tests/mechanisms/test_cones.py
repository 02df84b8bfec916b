"""Half-open cones hold every lattice point once, and their cells combine to the stated weights."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections import Counter
from fractions import Fraction
from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphmm.geometry.hull import SensitivityHull
from dphmm.mechanisms import cones, exact
from dphmm.mechanisms.cones import Cone, Fan, cross
from dphmm.mechanisms.lattice_sum import LatticeSum

RUNNING_EXAMPLE = [(-4, -1), (1, -1), (3, 0), (4, 1), (-1, 1), (-3, 0)]
THIN = [(-31, -30), (-1, -1), (31, 30), (1, 1)]
BOX = 10

FEW = settings(max_examples=20)

steps = st.integers(-5, 5)
polygons = (
    st.lists(st.tuples(steps, steps), min_size=2, max_size=5)
    .map(SensitivityHull)
    .filter(lambda hull: hull.dimension == 2)
    .map(lambda hull: [(int(x), int(y)) for x, y in hull.vertices])
)


def holds(cone: Cone, z: tuple[int, int]) -> bool:
    """Membership of the half-open cone from its definition, by two determinants."""
    alpha, beta = cross(z, cone.w), cross(cone.v, z)
    return (alpha > 0 if cone.open_v else alpha >= 0) and (beta > 0 if cone.open_w else beta >= 0)


def box() -> list[tuple[int, int]]:
    return list(product(range(-BOX, BOX + 1), repeat=2))


@FEW
@given(polygons)
def test_every_lattice_point_lies_in_exactly_one_cone(vertices):
    fan = Fan(vertices)
    assert all(sum(holds(cone, z) for cone in fan.cones) == 1 for z in box())


@FEW
@given(polygons)
def test_the_cells_of_a_cone_are_the_lattice_points_of_its_half_open_parallelogram(vertices):
    for cone in Fan(vertices).cones:
        drawn = Counter(cone.point(*cone.cell(index)) for index in range(cone.det))
        inside = set()
        for z in box():
            m, n = cross(z, cone.w), cross(cone.v, z)
            if 0 <= m - cone.open_v < cone.det and 0 <= n - cone.open_w < cone.det:
                inside.add(z)
        assert drawn == Counter(inside)


@FEW
@given(polygons)
def test_cells_and_counts_reach_every_lattice_point_once_with_its_exact_norm(vertices):
    """The law itself: one cell and one pair of counts per point, whose exponents add up to the Minkowski norm."""
    hull = SensitivityHull(vertices)
    reached: dict[tuple[int, int], list[Fraction]] = {}
    for cone in Fan(vertices).cones:
        for index, a, b in product(range(cone.det), range(3), range(3)):
            m, n = cone.cell(index)
            z = cone.point(m + a * cone.det, n + b * cone.det)
            reached.setdefault(z, []).append(a + b + Fraction(m + n, cone.det))
    halves = np.array([[Fraction(x, 2) for x in z] for z in box()])
    within_two = [z for z, inside in zip(box(), hull.contains(halves), strict=True) if inside]
    for z in within_two:
        norms = [r for r in reached.pop(z, []) if r <= 2]
        assert len(norms) == 1
        if norms[0]:
            point = np.array([[Fraction(x) / norms[0] for x in z]])
            assert hull.contains(point)[0]
            assert not hull.contains(point * Fraction(1001, 1000))[0]
        else:
            assert z == (0, 0)
    assert all(r >= 2 for norms in reached.values() for r in norms)


def cell_sum(fan: Fan, decay: Fraction) -> mpmath.mpf:
    """The normaliser as the sampler builds it: all cells' weights times two geometric series, in 50 digits."""
    weights: Counter[Fraction] = Counter()
    for cone in fan.cones:
        weights.update(Fraction(sum(cone.cell(index)), cone.det) for index in range(cone.det))
    with mpmath.workdps(50):
        rate = mpmath.mpf(decay.numerator) / decay.denominator
        cells = sum(count * mpmath.exp(-rate * mpmath.mpf(s.numerator) / s.denominator) for s, count in weights.items())
        return cells / (1 - mpmath.exp(-rate)) ** 2


@pytest.mark.parametrize("vertices", [RUNNING_EXAMPLE, THIN], ids=["running example", "thin"])
@pytest.mark.parametrize("decay", [Fraction(1, 100), Fraction(1), Fraction(20)])
def test_cells_times_geometric_series_are_the_normaliser_of_the_sails(vertices, decay):
    """Two decompositions of the same sum, one used to draw and one used to report probabilities."""
    fan = Fan(vertices)
    with mpmath.workdps(50):
        difference = mpmath.mpf(str(LatticeSum(2, fan).total(decay, 40))) / cell_sum(fan, decay) - 1
        assert abs(difference) < mpmath.mpf("1e-40")


def test_a_cone_wrongly_closed_is_another_sum():
    """The broken twin: one boundary ray counted twice."""
    fan = Fan(RUNNING_EXAMPLE)
    which = next(i for i, cone in enumerate(fan.cones) if cone.open_v)
    broken = Fan(RUNNING_EXAMPLE)
    broken.cones = tuple(dataclasses.replace(c, open_v=False) if i == which else c for i, c in enumerate(fan.cones))
    twice = [z for z in box() if sum(holds(cone, z) for cone in broken.cones) == 2]
    assert twice
    assert all(cross(z, fan.cones[which].w) == 0 for z in twice)
    assert cell_sum(broken, Fraction(1)) > cell_sum(fan, Fraction(1)) * 1.01


def test_points_are_exact_where_doubles_are_not():
    """Determinants near 2**57: adding up ``(m / det) v + (n / det) w`` in doubles misses the lattice point."""
    big = 2**28
    cone = Cone((big - 57, 1001), (3, big - 5), open_v=True, open_w=False)
    missed = 0
    for index in range(0, cone.det, cone.det // 1000):
        m, n = cone.cell(index)
        z = cone.point(m, n)
        assert (cross(z, cone.w), cross(cone.v, z)) == (m, n)
        missed += tuple(m / cone.det * a + n / cone.det * b for a, b in zip(cone.v, cone.w, strict=True)) != z
    assert missed > 300


@pytest.mark.parametrize("module", [cones, exact], ids=["cones", "exact"])
def test_the_source_of_the_sampler_names_no_float(module):
    """No true division, no float constant, no ``float`` and no mathematical library; reading a budget is apart."""
    tree = ast.parse(inspect.getsource(module))
    tree.body = [node for node in tree.body if getattr(node, "name", "") != "rational"]
    sampler = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert sampler
    for node in (inner for top in sampler for inner in ast.walk(top)):
        assert not isinstance(node, ast.Div)
        assert not (isinstance(node, ast.Constant) and isinstance(node.value, float))
        assert not (isinstance(node, ast.Name) and node.id in {"float", "math", "exp", "log", "Decimal"})
        assert not (isinstance(node, ast.Attribute) and node.attr in {"float64", "uniform", "exp", "random"})
