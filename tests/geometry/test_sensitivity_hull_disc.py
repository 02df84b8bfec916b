"""The ball of planar Laplace noise, in any dimension."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from dphmm.errors import InvalidInputError
from dphmm.geometry.sensitivity_hull import Disc


@pytest.mark.parametrize("radius", [1.0, 0.3, 2.5])
def test_ball_volume_matches_integral_over_slices(radius):
    volume = 2 * radius  # volume of an interval
    assert Disc(radius, 1).volume == pytest.approx(volume, rel=1e-12)
    for dimension in range(2, 7):
        lower = Disc(1.0, dimension - 1).volume
        volume, _ = quad(lambda x, d=dimension, v=lower: v * (radius**2 - x**2) ** ((d - 1) / 2), -radius, radius)
        assert Disc(radius, dimension).volume == pytest.approx(volume, rel=1e-9), dimension


def test_norm_membership_and_error_match_definitions():
    disc = Disc(2.0, 3)
    vectors = np.array([[2.0, 0.0, 0.0], [0.0, -1.0, 1.0], [0.0, 3.0, -4.0]])
    assert disc.norm(vectors).tolist() == pytest.approx([1.0, math.sqrt(0.5), 2.5])
    assert disc.contains(vectors).tolist() == [True, True, False]
    assert not disc.contains([2.0 * (1 + 1e-8), 0.0, 0.0])
    assert disc.circumradius == 2.0
    # E|u|² of the uniform distribution is 3/5 r². K-norm noise at epsilon 1 has (d + 1)(d + 2) times that.
    assert disc.squared_error == pytest.approx(4 * 5 * 3 / 5 * 2.0**2)


def test_extreme_radii_raise_and_extreme_vectors_do_not_warn():
    assert Disc(2e-60).norm([1e300, 1e300]) == math.inf
    assert Disc(9e59).norm([1e-300, 0.0]) < 1e-300
    for radius in (0.0, -1.0, 1e-61, 1e61, math.inf, math.nan, 1e-308):
        with pytest.raises(InvalidInputError, match=r"radius must be in \[1e-60, 1e\+60\]"):
            Disc(radius)
