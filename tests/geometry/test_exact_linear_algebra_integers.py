"""Large integers are multiplied and compared without rounding or overflow."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dphmm import SensitivityHull
from dphmm.geometry.exact_linear_algebra import exact_product, to_common_denominator


@pytest.mark.parametrize("size", [1, 2**31, 2**62])
def test_products_do_not_overflow(size):
    left = np.array([[size - 1, 3 - size]])
    right = np.array([size - 1, size - 3])
    assert exact_product(left, right).tolist() == [(size - 1) ** 2 - (size - 3) ** 2]


def test_common_denominator_of_rationals():
    whole, denominator = to_common_denominator(np.array([[Fraction(1, 6), Fraction(-3, 4)]], dtype=object))
    assert (whole.tolist(), denominator) == ([[2, -9]], 12)


@pytest.mark.parametrize("far", [2**34, 2**36, 2**62])
def test_distant_vectors_are_outside_body_of_large_integers(far):
    square = SensitivityHull([[2**27, 0], [0, 2**27]])
    assert square.contains([[far, far], [2**26, 2**26], [2**27, 1]]).tolist() == [False, True, False]
    assert square.contains([far, 0]).item() is False


def test_products_beyond_64_bits_give_exact_body():
    square = SensitivityHull([[2**40, 0], [0, 2**40]])
    assert square.volume == 2.0**81
    assert square.contains([[2**39, 2**39], [2**40, 1], [2**39 + 1, 2**39]]).tolist() == [True, False, False]
    assert square.norm([2**41, 0]).item() == 2.0
