"""Densities by the edges of a polygon match the mechanisms."""

from __future__ import annotations

import numpy as np
import pytest

from dphmm import LatticeKNormMechanism, SensitivityHull
from dphmm.mechanisms import base
from dphmm.mechanisms.norm_noise import KNormMechanism, PlanarIsotropicMechanism


@pytest.mark.parametrize("seed", range(8))
def test_planar_log_densities_match_mechanisms(seed):
    rng = np.random.default_rng(seed)
    count = 60 if seed < 6 else 3 * base._POINT_BLOCK + 7
    corners, points = rng.integers(-40, 41, (5, 2)), rng.integers(-999, 1000, (count, 2))
    z, wall = rng.integers(-2000, 2001, 2), SensitivityHull(corners)
    for noise in (KNormMechanism(wall, 0.7), PlanarIsotropicMechanism(wall, 0.7), LatticeKNormMechanism(wall, 0.7)):
        log_densities = noise.planar_law(3000.0).log_densities(z, np.ascontiguousarray(points.T, dtype=float))
        np.testing.assert_allclose(log_densities, noise.log_density(z, points), rtol=1e-13)
        outputs = rng.integers(-2000, 2001, (3, 2))
        table = noise.planar_law(3000.0).log_densities(outputs, np.ascontiguousarray(points.T, dtype=float))
        wanted = [noise.log_density(output, points) for output in outputs]
        np.testing.assert_allclose(table, wanted, rtol=1e-12)


def test_planar_law_is_missing_for_large_values_and_flat_bodies():
    hull = SensitivityHull([[3, 1], [-2, 5]])
    assert LatticeKNormMechanism(hull, 1).planar_law(1e6) is not None
    assert LatticeKNormMechanism(hull, 1).planar_law(2.0**51) is None
    for flat in ([[2, 1]], [[0, 0]]):
        assert LatticeKNormMechanism(SensitivityHull(flat), 1).planar_law(9.0) is None
        assert KNormMechanism(SensitivityHull(flat), 1.0).planar_law(9.0) is None
    assert KNormMechanism(SensitivityHull(np.eye(3)), 1.0).planar_law(9.0) is None


def test_lattice_loop_matches_plain_form_bit_by_bit():
    """Releases use the faster form. Real-valued noise has the plain form only."""
    rng = np.random.default_rng(3)
    forms, shares = rng.integers(-999, 1000, (7, 2)).astype(float), 1.0 / rng.integers(1, 10**6, 7)
    columns, z = rng.integers(-(10**6), 10**6, (2, 5000)).astype(float), np.array([17.0, -4.0])
    plain, loop = np.empty((2, 5000))
    base._fill_norms.plain(forms, shares, z, columns, plain)
    base._fill_norms_loop(forms, shares, z, columns, loop)
    np.testing.assert_array_equal(plain, loop)
    assert LatticeKNormMechanism(SensitivityHull([[3, 1], [-2, 5]]), 1).planar_law(9.0).is_exact
    assert not KNormMechanism(SensitivityHull([[3, 1], [-2, 5]]), 1.0).planar_law(9.0).is_exact
