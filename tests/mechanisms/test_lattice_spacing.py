"""Points are whole numbers of lattice steps or they are refused by name."""

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
def test_kilometres_are_read_as_metres(points):
    assert METRES.steps(points).tolist() == [345, -1200]


@given(
    st.lists(st.integers(-(10**7), 10**7), min_size=2, max_size=2), st.sampled_from(["1", "0.001", "1/3", "7", "25"])
)
def test_points_and_steps_are_inverse(steps, step):
    spacing = Spacing(step)
    assert spacing.steps(spacing.points(np.array(steps))).tolist() == steps


def test_points_are_the_nearest_doubles_even_where_steps_are_many():
    spacing = Spacing(Fraction(10**9 + 7, 10**9 + 9))
    steps = np.array([2**51 + 1, -(2**50) - 3])
    assert spacing.points(steps).tolist() == [float(spacing.step * int(k)) for k in steps]
    assert Spacing(2**63).points(np.array([0, 3])).tolist() == [0.0, 3 * 2.0**63]
    assert Spacing(2**63).points(np.array([0])).tolist() == [0.0]


def test_whole_points_stay_integers_at_spacing_one():
    assert Spacing().steps([3.0, -4.0]).dtype == np.int64
    assert Spacing().points(np.array([3, -4])).dtype == np.int64


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([[0.345, 1.0], [0.3456, 1.0]], r"\(0.3456, 1.0\) is off the lattice with spacing 1/1000.*\(173/500, 1\)"),
        ([Fraction(1, 3), Fraction(1)], r"\(1/3, 1\) is off the lattice.*\(333/1000, 1\)"),
        ([np.nan, 0.0], "NaN"),
        ([np.inf, 0.0], "infinity"),
        ([1e13, 0.0], "wider spacing"),
        (["a", "b"], "give numbers"),
        ([None, 1], "no finite number"),
    ],
)
def test_what_is_no_lattice_point_is_refused_by_name(points, message):
    with pytest.raises(CoordinateError, match=message) as caught:
        METRES.steps(points, "x")
    assert str(caught.value).startswith("x")
    assert "\n" not in str(caught.value)


def test_integers_off_a_wider_lattice_are_refused():
    with pytest.raises(CoordinateError, match=r"spacing 25; the nearest lattice point is \(50, 100\)"):
        Spacing(25).steps([51, 100])


def test_integers_too_far_out_are_refused():
    with pytest.raises(CoordinateError, match="wider spacing"):
        Spacing().steps([STEP_LIMIT + 1, 0])


@pytest.mark.parametrize("step", [0, -1, float("nan"), float("inf"), "metre", None, 1j])
def test_an_impossible_step_is_refused(step):
    with pytest.raises(InvalidInputError, match="spacing is"):
        Spacing(step)
