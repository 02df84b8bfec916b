"""Points are integer multiples of the lattice spacing, or raise with their value."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphmm.errors import CoordinateError, InvalidInputError
from dphmm.mechanisms.lattice import STEP_LIMIT, Spacing

METRES = Spacing(0.001)


@pytest.mark.parametrize(
    "points",
    [
        [0.345, -1.2],
        np.array([345, -1200]) * 0.001,
        [Decimal("0.345"), Decimal("-1.2")],
        [Fraction(345, 1000), Fraction(-6, 5)],
    ],
    ids=["decimals", "products", "Decimal", "Fraction"],
)
def test_kilometres_convert_to_integer_steps(points):
    assert METRES.to_steps(points).tolist() == [345, -1200]


@given(
    st.lists(st.integers(-(10**7), 10**7), min_size=2, max_size=2), st.sampled_from(["1", "0.001", "1/3", "7", "25"])
)
def test_points_and_steps_are_inverse(steps, step):
    spacing = Spacing(step)
    assert spacing.to_steps(spacing.to_points(np.array(steps))).tolist() == steps


def test_points_are_nearest_floats_for_large_steps():
    spacing = Spacing(Fraction(10**9 + 7, 10**9 + 9))
    steps = np.array([2**51 + 1, -(2**50) - 3])
    assert spacing.to_points(steps).tolist() == [float(spacing.step * int(k)) for k in steps]
    assert Spacing(2**63).to_points(np.array([0, 3])).tolist() == [0.0, 3 * 2.0**63]
    assert Spacing(2**63).to_points(np.array([0])).tolist() == [0.0]


def test_integer_points_stay_integers_at_spacing_one():
    assert Spacing().to_steps([3.0, -4.0]).dtype == np.int64
    assert Spacing().to_points(np.array([3, -4])).dtype == np.int64


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (
            [[0.345, 1.0], [0.3456, 1.0]],
            r"must lie on the lattice with spacing 1/1000, got \(0.3456, 1.0\); the nearest point is \(173/500, 1\)",
        ),
        (
            [Fraction(1, 3), Fraction(1)],
            r"must lie on the lattice with spacing 1/1000, got \(1/3, 1\); the nearest point is \(333/1000, 1\)",
        ),
        ([np.nan, 0.0], "NaN"),
        ([np.inf, 0.0], "infinity"),
        ([1e13, 0.0], "wider spacing"),
        (["a", "b"], "must be numbers"),
        ([None, 1], "must be finite integers or fractions"),
    ],
)
def test_point_off_lattice_raises_with_its_value(points, message):
    with pytest.raises(CoordinateError, match=message) as caught:
        METRES.to_steps(points, "x")
    assert str(caught.value).startswith("x")
    assert "\n" not in str(caught.value)


def test_integers_off_wider_lattice_raise():
    with pytest.raises(CoordinateError, match=r"\(50, 100\)"):
        Spacing(25).to_steps([51, 100])


def test_integers_beyond_step_limit_raise():
    with pytest.raises(CoordinateError, match="wider spacing"):
        Spacing().to_steps([STEP_LIMIT + 1, 0])
    with pytest.raises(CoordinateError, match="wider spacing"):
        Spacing().to_steps([0, -STEP_LIMIT - 1])


@pytest.mark.parametrize("step", [0, -1, float("nan"), float("inf"), "metre", None, 1j])
def test_invalid_spacing_raises(step):
    with pytest.raises(InvalidInputError, match="spacing "):
        Spacing(step)
