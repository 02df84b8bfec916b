"""Closed forms of a single curve, against 60-digit arithmetic."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dphmm.leakage.envelope import (
    compute_growth,
    compute_loss,
    compute_slack,
    compute_threshold,
    find_crossing,
    solve_supremum,
)
from dphmm.leakage.row_pairs import Vertex

POINTS = [(0.8, 0.0), (1 - 2**-40, 2**-45), (0.5, 0.5 - 2**-38), (2**-30, 2**-31), (1.0, 0.25), (2**-200, 2**-210)]


def compute_exact(q: float, d: float, alpha: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    e = mpmath.expm1(mpmath.mpf(alpha))
    loss = mpmath.log1p((mpmath.mpf(q) - mpmath.mpf(d)) * e / (1 + d * e))
    return loss, alpha - loss


def build_arrays(q: float, d: float) -> tuple[np.ndarray, ...]:
    return tuple(np.array(value) for value in (q, d, 1 - q, q - d))


@pytest.mark.parametrize(("q", "d"), POINTS)
@pytest.mark.parametrize("alpha", [1e-12, 1e-3, 1.0, 30.0, 299.0, 301.0, 720.0, 5000.0])
def test_loss_and_slack_have_full_precision(q, d, alpha):
    with mpmath.workdps(4000 if alpha > 400 else 400):
        loss, slack = (float(value) for value in compute_exact(q, d, alpha))
    assert float(compute_loss(np.array(alpha), *build_arrays(q, d))) == pytest.approx(loss, rel=2e-14)
    assert float(compute_slack(np.array(alpha), *build_arrays(q, d))) == pytest.approx(
        slack, rel=2e-13 if alpha < 300 else 1e-9
    )


@pytest.mark.parametrize(("q", "d"), POINTS)
@pytest.mark.parametrize("epsilon", [1e-200, 1e-12, 1e-3, 0.2, 1.0, 30.0, 299.0, 301.0, 900.0])
def test_supremum_solves_its_equation(q, d, epsilon):
    value = solve_supremum(epsilon, q, d, 1 - q)
    with mpmath.workdps(500):
        if d == 0 and epsilon >= math.log(1 / q):
            assert value == math.inf
        else:
            slack = compute_exact(q, d, mpmath.mpf(value))[1]
            slope = 1 - mpmath.diff(lambda a: compute_exact(q, d, a)[0], mpmath.mpf(value))
            error = abs(slack - epsilon) / slope  # the distance of the value from the root
            assert error <= 4e-14 * value


@pytest.mark.parametrize("alpha", [0.01, 1.0, 20.0, 400.0, 650.0])
def test_growth_and_threshold_are_consistent(alpha):
    vertex = Vertex(0.6, 0.0, 0.4, 0.6, (0, 1))
    other = Vertex(0.9, 0.1, 0.1, 0.8, (0, 1))
    with mpmath.workdps(400):
        for point in (vertex, other):
            loss = compute_exact(point.q, point.d, alpha)[0]
            assert compute_growth(point, alpha) == pytest.approx(float(mpmath.expm1(loss)), rel=1e-12)
            expected = mpmath.expm1(loss) / mpmath.expm1(alpha)
            assert compute_threshold(point, alpha) == pytest.approx(float(expected), rel=1e-12)


def test_meeting_point_has_equal_curves():
    assert find_crossing(Vertex(0.6, 0.0, 0.4, 0.6, (0, 1)), Vertex(0.5, 0.0, 0.5, 0.5, (1, 0))) == math.inf
    left, right = Vertex(0.9, 0.3, 0.1, 0.6, (0, 1)), Vertex(0.5, 0.02, 0.5, 0.48, (1, 0))
    alpha = find_crossing(left, right)
    assert float(compute_exact(0.9, 0.3, alpha)[0]) == pytest.approx(
        float(compute_exact(0.5, 0.02, alpha)[0]), rel=1e-14
    )
    assert find_crossing(left, Vertex(0.2, 0.0666666666666666666, 0.8, 0.2 - 0.06666666666666667, (0, 1))) > 30
    far = find_crossing(Vertex(1.0, 1e-150, 0.0, 1.0, (0, 1)), Vertex(1e-190, 0.0, 1.0, 1e-190, (1, 0)))
    assert far == pytest.approx(340 * math.log(10), rel=1e-12)
