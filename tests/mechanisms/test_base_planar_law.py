"""Densities by the walls of a polygon are what the mechanisms say."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import LatticeKNormMechanism, SensitivityHull
from dphmm.mechanisms import base
from dphmm.mechanisms.norm_noise import KNormMechanism, PlanarIsotropicMechanism


@pytest.mark.parametrize("seed", range(8))
def test_densities_by_walls_are_the_mechanisms(seed):
    rng = np.random.default_rng(seed)
    count = 60 if seed < 6 else 3 * base._AT_ONCE + 7
    corners, points = rng.integers(-40, 41, (5, 2)), rng.integers(-999, 1000, (count, 2))
    z, wall = rng.integers(-2000, 2001, 2), SensitivityHull(corners)
    for noise in (KNormMechanism(wall, 0.7), PlanarIsotropicMechanism(wall, 0.7), LatticeKNormMechanism(wall, 0.7)):
        found = noise.planar_law(3000.0).log_densities(z, np.ascontiguousarray(points.T, dtype=float))
        np.testing.assert_allclose(found, noise.log_density(z, points), rtol=1e-13)


def test_where_doubles_would_round_heights_or_the_body_is_flat_there_is_no_law():
    hull = SensitivityHull([[3, 1], [-2, 5]])
    assert LatticeKNormMechanism(hull, 1).planar_law(1e6) is not None
    assert LatticeKNormMechanism(hull, 1).planar_law(2.0**51) is None
    for flat in ([[2, 1]], [[0, 0]]):
        assert LatticeKNormMechanism(SensitivityHull(flat), 1).planar_law(9.0) is None
        assert KNormMechanism(SensitivityHull(flat), 1.0).planar_law(9.0) is None
    assert KNormMechanism(SensitivityHull(np.eye(3)), 1.0).planar_law(9.0) is None
